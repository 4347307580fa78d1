//! Invites and knocks: whom one can invite, what the invited are shown, and how they come in.

use ruma::{CanonicalJsonObject, signatures::Ed25519KeyPair};
use serde_json::{Value, json};

use super::sliding::{Slide, rooms, window};
use super::{each, event_ids, next_batch, server, user};
use crate::harness::{IdentityServer, TestServer, User, encode};

async fn room_id_of(ann: &User, options: Value) -> String {
    ann.create_room(options).await
}

#[tokio::test]
async fn an_invite_of_a_user_who_does_not_exist_is_refused_wherever_it_is_made() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = room_id_of(&ann, json!({})).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    let nobody = "@nobody-at-all:e2e.test";
    ann.post(&path, json!({ "user_id": nobody })).await.refused(404, "M_NOT_FOUND");
    let options = json!({ "invite": [nobody] });
    ann.post("/createRoom", options).await.refused(404, "M_NOT_FOUND");
    let invite = json!({ "membership": "invite" });
    let answer = ann.set_state(&room_id, "m.room.member", nobody, &invite).await;
    answer.refused(404, "M_NOT_FOUND");
    let stranger = "@x:elsewhere.test";
    let answer = ann.set_state(&room_id, "m.room.member", stranger, &invite).await;
    answer.refused(403, "M_FORBIDDEN");
    ann.post(&path, json!({ "user_id": ann.user_id })).await.refused(403, "M_FORBIDDEN");
    ann.post(&path, json!({ "user_id": "nobody" })).await.refused(400, "M_BAD_JSON");
}

/// A homeserver that trusts this identity server.
async fn server_with(id: &IdentityServer) -> TestServer {
    let certificate = id.certificate().display().to_string();
    let server = TestServer::start_with(&[
        ("LOGCABIN_THREEPIDS_IDENTITY_SERVERS", "localhost:*"),
        ("LOGCABIN_OUTBOUND_CERTIFICATES", &certificate),
    ])
    .await;
    id.serves(server.base());
    server
}

#[tokio::test]
async fn an_address_that_is_bound_is_invited_as_its_user() {
    let Some(id) = IdentityServer::start("invites").await else { return };
    let server = server_with(&id).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    id.bind(&bob, "bob@example.org").await;
    let room_id = room_id_of(&ann, json!({})).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    assert_eq!(ann.post(&path, id.invite_body("Bob@Example.org")).await.ok(), json!({}));
    let member = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(member["membership"], "invite");
    assert_eq!(id.invites().len(), 0, "nothing was left with the identity server");
    bob.join(&room_id).await.ok();
    // A room can begin with it, also beside the same user by name.
    let options = json!({
        "invite": [bob.user_id], "invite_3pid": [id.invite_body("bob@example.org")],
        "is_direct": true,
    });
    let direct = room_id_of(&ann, options).await;
    let member = ann.state(&direct, "m.room.member", &bob.user_id).await.ok();
    assert_eq!((&member["membership"], &member["is_direct"]), (&json!("invite"), &json!(true)));
}

#[tokio::test]
async fn an_invitation_of_an_address_becomes_one_of_the_user_who_binds_it() {
    let Some(id) = IdentityServer::start("invites").await else { return };
    let mut server = server_with(&id).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let options = json!({ "name": "Cabin", "invite_3pid": [id.invite_body("bob@example.org")] });
    let first = room_id_of(&ann, options).await;
    let second = room_id_of(&ann, json!({})).await;
    let path = format!("/rooms/{}/invite", encode(&second));
    assert_eq!(ann.post(&path, id.invite_body("bob@example.org")).await.ok(), json!({}));
    // The identity server knows what its message may say.
    let kept = id.invites();
    let of_first = kept.iter().find(|kept| kept["room_id"] == first.as_str()).expect("it is kept");
    assert_eq!(of_first["address"], "bob@example.org");
    assert_eq!(
        (&of_first["sender"], &of_first["room_name"]),
        (&json!(ann.user_id), &json!("Cabin"))
    );
    assert_eq!(of_first["sender_display_name"], ann.localpart());
    assert_eq!(of_first["room_join_rules"], "invite");
    for invite in &kept {
        let room_id = invite["room_id"].as_str().unwrap_or_default();
        let token = invite["token"].as_str().unwrap_or_default();
        let event = ann.state(room_id, "m.room.third_party_invite", token).await.ok();
        assert_eq!(event["display_name"], "a...@e...");
        assert_eq!(event["public_key"], event["public_keys"][0]["public_key"]);
    }
    assert_eq!(bob.sync(None, 0, None).await["rooms"]["invite"], json!({}));

    server.restart().await;
    id.bind(&bob, "bob@example.org").await;
    let sync = bob.sync(None, 0, None).await;
    for room_id in [&first, &second] {
        let invited = &sync["rooms"]["invite"][room_id]["invite_state"]["events"];
        let events = invited.as_array().cloned().unwrap_or_default();
        let own = events.iter().find(|event| event["state_key"] == bob.user_id.as_str());
        let own = own.unwrap_or_else(|| panic!("no invite: {sync}"));
        assert_eq!(own["sender"], ann.user_id.as_str());
        let member = ann.state(room_id, "m.room.member", &bob.user_id).await.ok();
        assert_eq!(member["third_party_invite"]["signed"]["mxid"], bob.user_id.as_str());
        bob.join(room_id).await.ok();
    }
    // Told again, it changes nothing.
    id.bind(&bob, "bob@example.org").await;
    let member = ann.state(&first, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(member["membership"], "join");
}

#[tokio::test]
async fn an_invitation_of_an_address_can_be_accepted_by_its_signature() {
    let Some(id) = IdentityServer::start("invites").await else { return };
    let server = server_with(&id).await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = room_id_of(&ann, json!({})).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    ann.post(&path, id.invite_body("bob@example.org")).await.ok();
    let token = id.invites()[0]["token"].as_str().unwrap_or_default().to_owned();
    let signed = |token: &str| json!({ "third_party_signed": id.signed_by_key(token, &bob.user_id, &ann.user_id) });
    let join = format!("/rooms/{}/join", encode(&room_id));
    // It is another's, or for another invitation.
    cas.post(&join, signed(&token)).await.refused(403, "M_FORBIDDEN");
    bob.post(&join, signed("x")).await.refused(403, "M_FORBIDDEN");
    bob.post(&join, signed(&token)).await.ok();
    let member = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(member["membership"], "join");
}

#[tokio::test]
async fn only_signed_invitations_are_taken_from_an_identity_server() {
    let Some(id) = IdentityServer::start("invites").await else { return };
    let server = server_with(&id).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_id_of(&ann, json!({})).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    ann.post(&path, id.invite_body("bob@example.org")).await.ok();
    let token = id.invites()[0]["token"].as_str().unwrap_or_default().to_owned();
    let told = |signed: &Value, room_id: &str, mxid: &str| {
        json!({
            "medium": "email", "address": "bob@example.org", "mxid": mxid,
            "invites": [{
                "medium": "email", "address": "bob@example.org", "mxid": bob.user_id,
                "room_id": room_id, "sender": ann.user_id, "signed": signed,
            }],
        })
    };
    let http = server.http();
    let tell = async |body: Value| {
        http.request("PUT", "/_matrix/federation/v1/3pid/onbind", None, Some(&body)).await
    };
    let right = id.signed(&token, &bob.user_id);
    let mut forged = right.clone();
    forged["mxid"] = ann.user_id.as_str().into();
    let mut unsigned = right.clone();
    unsigned["signatures"] = json!({});
    // Whoever tells it is told nothing, and nothing comes of it.
    for wrong in [
        told(&forged, &room_id, &bob.user_id),
        told(&unsigned, &room_id, &bob.user_id),
        told(&id.signed("x", &bob.user_id), &room_id, &bob.user_id),
        told(&right, "!none:e2e.test", &bob.user_id),
        told(&right, &room_id, &ann.user_id),
        told(&id.signed(&token, "@nobody:e2e.test"), &room_id, &bob.user_id),
    ] {
        assert_eq!(tell(wrong).await.ok(), json!({}));
    }
    let none = ann.state(&room_id, "m.room.member", &bob.user_id).await;
    none.refused(404, "M_NOT_FOUND");
    for bad in [json!({}), json!({ "mxid": "bob", "invites": [] }), json!({ "mxid": 5 })] {
        tell(bad).await.refused(400, "M_BAD_JSON");
    }
    let mut many = told(&right, &room_id, &bob.user_id);
    many["invites"] = json!(vec![many["invites"][0].clone(); 21]);
    tell(many).await.refused(413, "M_TOO_LARGE");
    // An invitation that was taken back is none.
    ann.set_state(&room_id, "m.room.third_party_invite", &token, &json!({})).await.ok();
    assert_eq!(tell(told(&right, &room_id, &bob.user_id)).await.ok(), json!({}));
    let none = ann.state(&room_id, "m.room.member", &bob.user_id).await;
    none.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn an_invitation_by_address_that_cannot_be_made_says_why() {
    let Some(id) = IdentityServer::start("invites").await else { return };
    let server = server_with(&id).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_id_of(&ann, json!({ "preset": "public_chat" })).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    let good = id.invite_body("x@example.org");
    for (key, value, status, code) in [
        ("id_server", "id.elsewhere.test", 400, "M_SERVER_NOT_TRUSTED"),
        ("id_access_token", "wrong", 403, "M_UNAUTHORIZED"),
        ("medium", "pigeon", 400, "M_THREEPID_MEDIUM_NOT_SUPPORTED"),
        ("address", "nobody", 400, "M_INVALID_PARAM"),
    ] {
        let mut bad = good.clone();
        bad[key] = value.into();
        ann.post(&path, bad.clone()).await.refused(status, code);
        let options = json!({ "invite_3pid": [bad] });
        ann.post("/createRoom", options).await.refused(status, code);
    }
    let mut lacks = good.clone();
    lacks.as_object_mut().unwrap().remove("id_access_token");
    ann.post(&path, lacks).await.refused(400, "M_BAD_JSON");
    // A number that nobody has bound: this identity server keeps none.
    let mut number = id.invite_body("447400123456");
    number["medium"] = "msisdn".into();
    ann.post(&path, number).await.refused(400, "M_UNRECOGNIZED");
    let many = json!({ "invite_3pid": vec![good.clone(); 21] });
    ann.post("/createRoom", many).await.refused(413, "M_TOO_LARGE");
    // One who may not invite asks nobody.
    let before = id.asked().len();
    bob.post(&path, good.clone()).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    let mut levels = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    levels["invite"] = 50.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    bob.post(&path, good.clone()).await.refused(403, "M_FORBIDDEN");
    let nowhere = "/rooms/!none:e2e.test/invite";
    bob.post(nowhere, good).await.refused(403, "M_FORBIDDEN");
    assert_eq!(id.asked().len(), before);
}

#[tokio::test]
async fn the_invited_and_those_who_knock_are_shown_what_the_room_was_then() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let options = json!({
        "name": "Name", "topic": "Topic", "room_alias_name": super::unique("shown"),
        "initial_state": [
            { "type": "m.room.join_rules", "content": { "join_rule": "knock" } },
            { "type": "m.room.avatar", "content": { "url": "mxc://e2e.test/a" } },
            { "type": "m.room.encryption", "content": { "algorithm": "m.megolm.v1.aes-sha2" } },
            { "type": "org.example.secret", "content": { "for": "members" } },
        ],
    });
    let room_id = room_id_of(&ann, options).await;
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    cas.post(&format!("/knock/{}", encode(&room_id)), json!({})).await.ok();
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "Later" })).await.ok();
    let helpful = [
        "m.room.avatar",
        "m.room.canonical_alias",
        "m.room.create",
        "m.room.encryption",
        "m.room.join_rules",
        "m.room.member",
        "m.room.name",
        "m.room.power_levels",
        "m.room.topic",
    ];
    for (user, part, state, unsigned, members) in [
        (&bob, "invite", "invite_state", "invite_room_state", vec![&ann, &bob]),
        (&cas, "knock", "knock_state", "knock_room_state", vec![&cas]),
    ] {
        let sync = user.sync(None, 0, None).await;
        let shown = &sync["rooms"][part][&room_id][state]["events"];
        let mut types = each(shown, "/type");
        types.sort();
        types.dedup();
        assert_eq!(types, helpful, "{part}");
        let of_members: Vec<_> = shown
            .as_array()
            .into_iter()
            .flatten()
            .filter(|event| event["type"] == "m.room.member")
            .map(|event| event["state_key"].as_str().unwrap_or_default().to_owned())
            .collect();
        let expected: Vec<_> = members.iter().map(|user| user.user_id.clone()).collect();
        assert_eq!(of_members, expected);
        for event in shown.as_array().into_iter().flatten() {
            let keys: Vec<_> =
                event.as_object().into_iter().flat_map(|event| event.keys()).collect();
            assert_eq!(keys, ["content", "sender", "state_key", "type"]);
            if event["type"] == "m.room.name" {
                assert_eq!(event["content"], json!({ "name": "Name" }), "as of the {part}");
            }
        }
        // The event itself holds the same, for the one whom it concerns.
        let key = encode(&user.user_id);
        let path = format!("/state/m.room.member/{key}?format=event");
        let to_ann = ann.get_room(&room_id, &path).await.ok();
        assert_eq!(to_ann["unsigned"].get(unsigned), None);
        if part == "knock" {
            ann.act(&room_id, "invite", Some(user)).await.ok();
        }
        user.join(&room_id).await.ok();
        let event_id = encode(&event_ids(&json!([to_ann]))[0]);
        let own = user.get_room(&room_id, &format!("/event/{event_id}")).await.ok();
        let held = &own["unsigned"][unsigned];
        let count = shown.as_array().map_or(0, Vec::len);
        assert_eq!(held.as_array().map(Vec::len), Some(count - 1), "all but itself: {own}");
        assert_eq!(held[0], shown[0]);
        assert_eq!(held[0]["type"], "m.room.create");
    }
}

#[tokio::test]
async fn one_who_takes_no_invites_gets_none_and_is_told_of_none() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = room_id_of(&ann, json!({})).await;
    let since = bob.here().await;
    let earlier = room_id_of(&ann, json!({ "invite": [bob.user_id] })).await;
    let path = format!("/user/{}/account_data/m.invite_permission_config", encode(&bob.user_id));
    bob.put(&path, json!({ "default_action": "block" })).await.ok();
    ann.act(&room_id, "invite", Some(&bob)).await.refused(403, "M_INVITE_BLOCKED");
    let invite = json!({ "membership": "invite" });
    let answer = ann.set_state(&room_id, "m.room.member", &bob.user_id, &invite).await;
    answer.refused(403, "M_INVITE_BLOCKED");
    let options = json!({ "invite": [bob.user_id] });
    ann.post("/createRoom", options).await.refused(403, "M_INVITE_BLOCKED");
    ann.state(&room_id, "m.room.member", &bob.user_id).await.refused(404, "M_NOT_FOUND");
    // Only those who may invite learn of it.
    cas.act(&room_id, "invite", Some(&bob)).await.refused(403, "M_FORBIDDEN");
    let sync = bob.news(&since).await;
    assert_eq!(sync["rooms"]["invite"], json!({}));
    assert_eq!(bob.sync(None, 0, None).await["rooms"]["invite"], json!({}));
    assert_eq!(
        ann.state(&earlier, "m.room.member", &bob.user_id).await.ok()["membership"],
        "invite"
    );
    for action in [json!({}), json!({ "default_action": "other" }), json!({ "default_action": 3 })]
    {
        bob.put(&path, action).await.ok();
        ann.act(&room_id, "invite", Some(&bob)).await.ok();
    }
    let news = bob.news(&next_batch(&sync)).await;
    assert!(news["rooms"]["invite"].get(&room_id).is_some(), "{news}");
}

/// What an identity server signs for one who proved that the address is theirs.
fn signed(key: &Ed25519KeyPair, sender: &User, mxid: &User, token: &str) -> Value {
    let value = json!({ "sender": sender.user_id, "mxid": mxid.user_id, "token": token });
    let mut object: CanonicalJsonObject =
        serde_json::from_value(value).expect("it is canonical JSON");
    ruma::signatures::sign_json("id.test", key, &mut object).expect("it can be signed");
    serde_json::to_value(object).expect("it is JSON")
}

#[tokio::test]
async fn a_third_party_invite_is_accepted_with_the_signature_of_its_key_alone() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let key = || {
        let document = Ed25519KeyPair::generate();
        Ed25519KeyPair::from_der(&document, "1".to_owned()).expect("it is a key")
    };
    let (identity, other) = (key(), key());
    let public_key = ruma::serde::Base64::<ruma::serde::base64::Standard, _>::new(
        identity.public_key().to_vec(),
    )
    .encode();
    for version in ["3", "10", "12"] {
        let room_id = room_id_of(&ann, json!({ "room_version": version })).await;
        let content = json!({
            "display_name": "b...@b...", "key_validity_url": "https://id.test/valid",
            "public_key": public_key, "public_keys": [{ "public_key": public_key }],
        });
        ann.set_state(&room_id, "m.room.third_party_invite", "token", &content).await.ok();
        let join = format!("/rooms/{}/join", encode(&room_id));
        let with = |signed: Value| json!({ "third_party_signed": signed });
        for bad in [
            with(signed(&other, &ann, &bob, "token")),
            with(signed(&identity, &ann, &cas, "token")),
            with(signed(&identity, &ann, &bob, "another")),
            json!({}),
        ] {
            bob.post(&join, bad).await.refused(403, "M_FORBIDDEN");
        }
        bob.post(&join, with(json!({ "token": "token" }))).await.refused(400, "M_BAD_JSON");
        ann.state(&room_id, "m.room.member", &bob.user_id).await.refused(404, "M_NOT_FOUND");
        bob.post(&join, with(signed(&identity, &ann, &bob, "token"))).await.ok();
        let path = format!("/state/m.room.member/{}?format=event", encode(&bob.user_id));
        let joined = ann.get_room(&room_id, &path).await.ok();
        assert_eq!(joined["content"]["membership"], "join");
        assert_eq!(joined["content"].get("third_party_signed"), None);
        let invite = &joined["unsigned"]["prev_content"];
        assert_eq!(invite["membership"], "invite", "{joined}");
        assert_eq!(invite["third_party_invite"]["display_name"], "b...@b...");
        assert_eq!(invite["third_party_invite"]["signed"]["mxid"], bob.user_id.as_str());
        assert_eq!(joined["unsigned"]["prev_sender"], ann.user_id.as_str());
        // The same as state, which is for the one who made the third-party invite.
        let content = json!({
            "membership": "invite",
            "third_party_invite": {
                "display_name": "c", "signed": signed(&identity, &ann, &cas, "token"),
            },
        });
        let set = |user: &User| {
            let (user, room_id, content, cas) =
                (user.clone(), room_id.clone(), content.clone(), cas.user_id.clone());
            async move { user.set_state(&room_id, "m.room.member", &cas, &content).await }
        };
        set(&bob).await.refused(403, "M_FORBIDDEN");
        set(&ann).await.ok();
        cas.join(&room_id).await.ok();
    }
    // It takes the power to invite to make one.
    let room_id = room_id_of(
        &ann,
        json!({ "preset": "public_chat", "power_level_content_override": { "invite": 10 } }),
    )
    .await;
    bob.join(&room_id).await.ok();
    let kind = "m.room.third_party_invite";
    bob.set_state(&room_id, kind, "t", &json!({})).await.refused(403, "M_FORBIDDEN");
    ann.set_state(&room_id, kind, "t", &json!({})).await.ok();
}

#[tokio::test]
async fn a_restricted_join_that_fails_says_why() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let club = room_id_of(&ann, json!({ "preset": "public_chat" })).await;
    let restricted = |allow: Value| json!({ "join_rule": "restricted", "allow": allow });
    let of = |room_id: &str| json!({ "type": "m.room_membership", "room_id": room_id });
    let room_id = room_id_of(&ann, json!({ "room_version": "8" })).await;
    for (allow, status, code) in [
        (json!([of(&club)]), 403, "M_FORBIDDEN"),
        (json!([]), 403, "M_FORBIDDEN"),
        (json!([{ "type": "org.example.other" }]), 403, "M_FORBIDDEN"),
        (json!("nonsense"), 403, "M_FORBIDDEN"),
        (json!([of("!unknown:elsewhere.test"), of(&club)]), 403, "M_FORBIDDEN"),
        (json!([of("!unknown:elsewhere.test")]), 400, "M_UNABLE_TO_AUTHORISE_JOIN"),
    ] {
        let rules = restricted(allow.clone());
        ann.set_state(&room_id, "m.room.join_rules", "", &rules).await.ok();
        let path = format!("/rooms/{}/join", encode(&room_id));
        bob.post(&path, json!({})).await.refused(status, code);
        let join = json!({ "membership": "join" });
        let answer = bob.set_state(&room_id, "m.room.member", &bob.user_id, &join).await;
        answer.refused(status, code);
    }
    // The condition is met, and nobody is there who may let bob in.
    bob.join(&club).await.ok();
    let rules = restricted(json!([of(&club)]));
    ann.set_state(&room_id, "m.room.join_rules", "", &rules).await.ok();
    let mut levels = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    levels["invite"] = 100.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    ann.act(&room_id, "leave", None).await.ok();
    bob.join(&room_id).await.refused(400, "M_UNABLE_TO_GRANT_JOIN");
}

#[tokio::test]
async fn who_authorised_a_join_is_not_said_again_with_a_new_profile() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let club = room_id_of(&ann, json!({ "preset": "public_chat" })).await;
    bob.join(&club).await.ok();
    let rules = json!({
        "join_rule": "restricted",
        "allow": [{ "type": "m.room_membership", "room_id": club }],
    });
    let rules = json!({ "type": "m.room.join_rules", "content": rules });
    let room_id = room_id_of(&ann, json!({ "initial_state": [rules] })).await;
    let join = format!("/join/{}?via=elsewhere.test&via=e2e.test", encode(&room_id));
    bob.post(&join, json!({ "reason": "curious" })).await.ok();
    let member = bob.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(member["join_authorised_via_users_server"], ann.user_id.as_str());
    let mut own = member;
    own["org.example.badge"] = json!({ "of": "honour" });
    bob.set_state(&room_id, "m.room.member", &bob.user_id, &own).await.ok();
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.put(&name, json!({ "displayname": "Bob" })).await.ok();
    // What else stood in the event stays; what was said of the join does not.
    assert_eq!(
        bob.state(&room_id, "m.room.member", &bob.user_id).await.ok(),
        json!({
            "membership": "join", "displayname": "Bob", "org.example.badge": { "of": "honour" },
        })
    );
    bob.put(&name, json!({ "displayname": "" })).await.ok();
    let member = bob.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(member.get("displayname"), None, "{member}");
}

#[tokio::test]
async fn of_an_invite_by_an_ignored_user_only_the_removal_before_it_is_told() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let ignored = format!("/user/{}/account_data/m.ignored_user_list", encode(&bob.user_id));
    bob.put(&ignored, json!({ "ignored_users": { &ann.user_id: {} } })).await.ok();
    let options = json!({ "preset": "public_chat", "topic": "before" });
    let room_id = ann.create_room(options).await;
    bob.join(&room_id).await.ok();
    let body = window(0, 9, 5);
    let mut slide = Slide::new(&bob);
    assert_eq!(rooms(&slide.next(&body).await), std::slice::from_ref(&room_id));
    ann.act(&room_id, "kick", Some(&bob)).await.ok();
    ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "not for bob" })).await.ok();
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    let answer = slide.next(&body).await;
    let room = &answer["rooms"][&room_id];
    assert_eq!(each(&room["required_state"], "/content/membership"), ["leave"], "{answer}");
    assert_eq!(room.get("invite_state"), None, "{answer}");
    assert!(!answer.to_string().contains("not for bob"), "{answer}");
    assert_eq!(slide.next(&body).await["rooms"], json!({}));
    // Those of others are told.
    bob.put(&ignored, json!({ "ignored_users": {} })).await.ok();
    let answer = slide.next(&body).await;
    assert!(answer["rooms"][&room_id]["invite_state"].is_array(), "{answer}");
}

#[tokio::test]
async fn a_users_rules_say_whose_invites_are_allowed_ignored_or_blocked() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (cas, dan) = (user(&server, "cas").await, user(&server, "dan").await);
    for (name, other) in [
        ("m.invite_permission_config", "org.matrix.msc4155.invite_permission_config"),
        ("org.matrix.msc4155.invite_permission_config", "m.invite_permission_config"),
    ] {
        let path = |of: &str| format!("/user/{}/account_data/{of}", encode(&bob.user_id));
        bob.put(&path(other), json!({})).await.ok();
        let rules = json!({
            "allowed_users": [ann.user_id.to_uppercase()], "ignored_users": ["@cas*:*", 7],
            "blocked_servers": ["e2e.*"], "allowed_servers": "all", "ignored_servers": null,
        });
        bob.put(&path(name), rules).await.ok();
        let since = bob.here().await;
        let invite = json!({ "invite": [bob.user_id] });
        let (by_ann, by_cas) =
            (room_id_of(&ann, invite.clone()).await, room_id_of(&cas, invite).await);
        let answer = dan.post("/createRoom", json!({ "invite": [bob.user_id] })).await;
        answer.refused(403, "M_INVITE_BLOCKED");
        let invites = bob.news(&since).await["rooms"]["invite"].clone();
        assert!(invites.get(&by_ann).is_some() && invites.get(&by_cas).is_none(), "{invites}");
        let invites = bob.sync(None, 0, None).await["rooms"]["invite"].clone();
        assert!(invites.get(&by_ann).is_some() && invites.get(&by_cas).is_none(), "{invites}");
        // The inviter learns nothing of it.
        let invited = cas.state(&by_cas, "m.room.member", &bob.user_id).await.ok();
        assert_eq!(invited["membership"], "invite");
        let told = Slide::new(&bob).next(&window(0, 99, 1)).await;
        let seen = rooms(&told);
        assert!(seen.contains(&by_ann) && !seen.contains(&by_cas), "{told}");
        // Nor do other answers tell of it, nor does its end.
        let told = bob.get("/notifications").await.ok().to_string();
        assert!(told.contains(&by_ann) && !told.contains(&by_cas), "{told}");
        let gone = room_id_of(&cas, json!({ "invite": [bob.user_id] })).await;
        let here = bob.here().await;
        cas.act(&gone, "kick", Some(&bob)).await.ok();
        assert_eq!(bob.news(&here).await["rooms"]["leave"], json!({}));
        // Rules about users come first.
        let rules = json!({
            "allowed_servers": ["*"], "blocked_users": [dan.user_id], "ignored_users": ["@cas*:*"],
        });
        bob.put(&path(name), rules).await.ok();
        let answer = dan.post("/createRoom", json!({ "invite": [bob.user_id] })).await;
        answer.refused(403, "M_INVITE_BLOCKED");
        // Whoever knocks asks for an invite.
        let knock = json!({ "type": "m.room.join_rules", "content": { "join_rule": "knock" } });
        let knocked = room_id_of(&dan, json!({ "initial_state": [knock] })).await;
        bob.post(&format!("/knock/{}", encode(&knocked)), json!({})).await.ok();
        dan.act(&knocked, "invite", Some(&bob)).await.ok();
        let invites = bob.sync(None, 0, None).await["rooms"]["invite"].clone();
        assert!(invites.get(&knocked).is_some(), "{invites}");
        // With no rules, it is there.
        bob.put(&path(name), json!({ "blocked_users": ["@c?s:other.example"] })).await.ok();
        let invites = bob.sync(None, 0, None).await["rooms"]["invite"].clone();
        assert!(invites.get(&by_cas).is_some(), "{invites}");
        dan.post("/createRoom", json!({ "invite": [bob.user_id] })).await.ok();
    }
    let path = "/capabilities";
    let told = bob.get(path).await.ok()["capabilities"].clone();
    let enforced = &told["org.matrix.msc4155.invite_permission_config_enforced"];
    assert_eq!(enforced, &json!({ "enabled": true }));
}

#[tokio::test]
async fn strangers_may_be_kept_from_inviting() {
    let server = TestServer::start_with(&[("LOGCABIN_INVITES_STRANGERS", "refuse")]).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let invite = json!({ "invite": [bob.user_id] });
    ann.post("/createRoom", invite.clone()).await.refused(403, "M_FORBIDDEN");
    let room_id = room_id_of(&ann, json!({ "preset": "public_chat" })).await;
    ann.act(&room_id, "invite", Some(&bob)).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    ann.post("/createRoom", invite).await.ok();
}
