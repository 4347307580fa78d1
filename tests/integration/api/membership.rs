//! Memberships: the table of transitions, and who may bring them about.

use serde_json::{Value, json};

use super::{each, next_batch, server, unique, user};
use crate::harness::{Answer, TestServer, User, encode};

/// A public room of the first user.
async fn public_room(ann: &User) -> String {
    ann.create_room(json!({ "preset": "public_chat" })).await
}

async fn membership(viewer: &User, room_id: &str, of: &User) -> Value {
    let answer = viewer.state(room_id, "m.room.member", &of.user_id).await;
    if answer.status == 404 { Value::Null } else { answer.ok()["membership"].clone() }
}

async fn knock(user: &User, room: &str) -> Answer {
    user.post(&format!("/knock/{}", encode(room)), json!({ "reason": "please" })).await
}

async fn three(server: &TestServer) -> (User, User, User) {
    (user(server, "ann").await, user(server, "bob").await, user(server, "cas").await)
}

#[tokio::test]
async fn a_public_room_is_joined_by_id_and_by_alias() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let name = unique("lounge");
    let room_id =
        ann.create_room(json!({ "preset": "public_chat", "room_alias_name": name })).await;
    let joined = bob.post(&format!("/rooms/{}/join", encode(&room_id)), json!({})).await;
    assert_eq!(joined.ok(), json!({ "room_id": room_id }));
    let joined = cas.join(&format!("#{name}:e2e.test")).await;
    assert_eq!(joined.ok(), json!({ "room_id": room_id }));
    assert_eq!(bob.get("/joined_rooms").await.ok(), json!({ "joined_rooms": [room_id] }));
    cas.join(&format!("#{}:e2e.test", unique("none"))).await.refused(404, "M_NOT_FOUND");
    cas.join("!none:e2e.test").await.refused(403, "M_FORBIDDEN");
    cas.join("nonsense").await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn joining_twice_adds_nothing() {
    let server = server().await;
    let (ann, bob, _) = three(&server).await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let since = ann.here().await;
    bob.join(&room_id).await.ok();
    assert_eq!(ann.news(&since).await["rooms"]["join"], json!({}));
}

#[tokio::test]
async fn a_room_by_invitation_takes_the_invited_alone() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let room_id = ann.create_room(json!({})).await;
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    bob.act(&room_id, "invite", Some(&bob)).await.refused(403, "M_FORBIDDEN");
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    assert_eq!(membership(&ann, &room_id, &bob).await, "invite");
    // Invited is not joined.
    bob.act(&room_id, "invite", Some(&cas)).await.refused(403, "M_FORBIDDEN");
    let text = json!({ "msgtype": "m.text", "body": "x" });
    bob.send(&room_id, "m.room.message", "t", &text).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    assert_eq!(membership(&ann, &room_id, &bob).await, "join");
    ann.act(&room_id, "invite", Some(&bob)).await.refused(403, "M_FORBIDDEN");
    let stranger = json!({ "user_id": "@x:elsewhere.test" });
    let path = format!("/rooms/{}/invite", encode(&room_id));
    assert_eq!(ann.post(&path, stranger).await.status, 403);
    ann.post(&path, json!({})).await.refused(400, "M_BAD_JSON");
}

#[tokio::test]
async fn an_invite_is_rejected_or_revoked() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let room_id = ann.create_room(json!({ "invite": [bob.user_id, cas.user_id] })).await;
    bob.act(&room_id, "leave", None).await.ok();
    ann.act(&room_id, "kick", Some(&cas)).await.ok();
    for who in [&bob, &cas] {
        assert_eq!(membership(&ann, &room_id, who).await, "leave");
        who.join(&room_id).await.refused(403, "M_FORBIDDEN");
    }
    // leave → invite → join
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    bob.join(&room_id).await.ok();
}

#[tokio::test]
async fn only_members_can_leave() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    bob.act(&room_id, "leave", None).await.ok();
    // leave → leave: no change.
    bob.act(&room_id, "leave", None).await.ok();
    assert_eq!(bob.get("/joined_rooms").await.ok(), json!({ "joined_rooms": [] }));
    assert_eq!(cas.act(&room_id, "leave", None).await.status, 403);
    assert_eq!(cas.act("!none:e2e.test", "leave", None).await.status, 403);
    bob.join(&room_id).await.ok();
}

#[tokio::test]
async fn a_ban_keeps_out_until_it_is_lifted() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    for banned in [&bob, &cas] {
        let path = format!("/rooms/{}/ban", encode(&room_id));
        let body = json!({ "user_id": banned.user_id, "reason": "spam" });
        ann.post(&path, body.clone()).await.ok();
        // ban → ban: no change.
        ann.post(&path, body).await.ok();
        let member = ann.state(&room_id, "m.room.member", &banned.user_id).await.ok();
        assert_eq!(member["membership"], "ban");
        assert_eq!(member["reason"], "spam");
        banned.join(&room_id).await.refused(403, "M_FORBIDDEN");
        assert_eq!(banned.act(&room_id, "leave", None).await.status, 403);
        ann.act(&room_id, "invite", Some(banned)).await.refused(403, "M_FORBIDDEN");
        assert_eq!(knock(banned, &room_id).await.status, 403);
        assert_eq!(ann.act(&room_id, "kick", Some(banned)).await.status, 403);
        ann.act(&room_id, "unban", Some(banned)).await.ok();
        assert_eq!(membership(&ann, &room_id, banned).await, "leave");
        banned.join(&room_id).await.ok();
    }
    for not_banned in [&bob, &ann] {
        let answer = ann.act(&room_id, "unban", Some(not_banned)).await;
        assert_eq!(answer.body["errcode"], "M_BAD_STATE", "{answer}");
    }
    let answer = ann.act(&room_id, "kick", Some(&user(&server, "dan").await)).await;
    assert_eq!(answer.status, 403);
}

#[tokio::test]
async fn moderation_needs_power() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    cas.join(&room_id).await.ok();
    for action in ["kick", "ban"] {
        bob.act(&room_id, action, Some(&cas)).await.refused(403, "M_FORBIDDEN");
        bob.act(&room_id, action, Some(&ann)).await.refused(403, "M_FORBIDDEN");
    }
    let mut levels = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    levels["users"][&bob.user_id] = 50.into();
    levels["invite"] = 50.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let dan = user(&server, "dan").await;
    cas.act(&room_id, "invite", Some(&dan)).await.refused(403, "M_FORBIDDEN");
    bob.act(&room_id, "invite", Some(&dan)).await.ok();
    bob.act(&room_id, "kick", Some(&cas)).await.ok();
    bob.act(&room_id, "ban", Some(&cas)).await.ok();
    cas.act(&room_id, "unban", Some(&cas)).await.refused(403, "M_FORBIDDEN");
    bob.act(&room_id, "unban", Some(&cas)).await.ok();
    // Not those of the same or more power.
    bob.act(&room_id, "kick", Some(&ann)).await.refused(403, "M_FORBIDDEN");
    levels["users"][&dan.user_id] = 50.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    bob.act(&room_id, "ban", Some(&dan)).await.refused(403, "M_FORBIDDEN");
    // Nobody gives more than they have, or takes it from those who have as much.
    levels["users"][&cas.user_id] = 75.into();
    bob.set_state(&room_id, "m.room.power_levels", "", &levels).await.refused(403, "M_FORBIDDEN");
    // One who left moderates nothing.
    bob.act(&room_id, "leave", None).await.ok();
    bob.act(&room_id, "ban", Some(&cas)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_knock_is_accepted_denied_or_retracted() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let name = unique("door");
    let room_id = ann
        .create_room(json!({
            "room_alias_name": name,
            "initial_state": [{ "type": "m.room.join_rules", "content": { "join_rule": "knock" } }],
        }))
        .await;
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    assert_eq!(knock(&bob, &room_id).await.ok(), json!({ "room_id": room_id }));
    let member = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!((&member["membership"], &member["reason"]), (&json!("knock"), &json!("please")));
    // knock → join must never happen; knock → knock changes nothing.
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    knock(&bob, &room_id).await.ok();
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    bob.join(&room_id).await.ok();
    assert_eq!(knock(&bob, &room_id).await.status, 403);

    knock(&cas, &format!("#{name}:e2e.test")).await.ok();
    ann.act(&room_id, "kick", Some(&cas)).await.ok();
    assert_eq!(membership(&ann, &room_id, &cas).await, "leave");
    knock(&cas, &room_id).await.ok();
    cas.act(&room_id, "leave", None).await.ok();
    assert_eq!(membership(&ann, &room_id, &cas).await, "leave");
    knock(&cas, &room_id).await.ok();
    ann.act(&room_id, "ban", Some(&cas)).await.ok();
    assert_eq!(knock(&cas, &room_id).await.status, 403);
    // Where the rule is another, there is no door to knock on.
    let closed = ann.create_room(json!({})).await;
    assert_eq!(knock(&cas, &closed).await.status, 403);
}

#[tokio::test]
async fn a_restricted_room_takes_the_members_of_another() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let club = public_room(&ann).await;
    let room_id = ann
        .create_room(json!({
            "initial_state": [{ "type": "m.room.join_rules", "content": {
                "join_rule": "restricted",
                "allow": [{ "type": "m.room_membership", "room_id": club }],
            }}],
        }))
        .await;
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    bob.join(&club).await.ok();
    bob.join(&room_id).await.ok();
    let member = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(member["join_authorised_via_users_server"], ann.user_id.as_str());
    // An invite opens it too.
    ann.act(&room_id, "invite", Some(&cas)).await.ok();
    cas.join(&room_id).await.ok();
    // Out of the club is not out of the room, but one who has left both stays out.
    bob.act(&club, "leave", None).await.ok();
    assert_eq!(membership(&ann, &room_id, &bob).await, "join");
    bob.act(&room_id, "leave", None).await.ok();
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_forgotten_room_can_be_read_no_more() {
    let server = server().await;
    let (ann, bob, _) = three(&server).await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let event_id = bob.send_text(&room_id, "t", "hello").await;
    let answer = bob.act(&room_id, "forget", None).await;
    answer.refused(400, "M_UNKNOWN");
    bob.act(&room_id, "leave", None).await.ok();
    bob.get_room(&room_id, "/messages?dir=b").await.ok();
    bob.act(&room_id, "forget", None).await.ok();
    bob.act(&room_id, "forget", None).await.ok();
    for path in ["/messages?dir=b", "/members", "/state", "/state/m.room.create/"] {
        bob.get_room(&room_id, path).await.refused(403, "M_FORBIDDEN");
    }
    for path in ["event", "context"] {
        let path = format!("/{path}/{}", encode(&event_id));
        bob.get_room(&room_id, &path).await.refused(404, "M_NOT_FOUND");
    }
    let filter = r#"{"room":{"include_leave":true}}"#;
    assert_eq!(bob.sync(None, 0, Some(filter)).await["rooms"]["leave"], json!({}));
    // Coming back brings it all back.
    bob.join(&room_id).await.ok();
    bob.get_room(&room_id, &format!("/event/{}", encode(&event_id))).await.ok();
}

#[tokio::test]
async fn a_member_event_can_be_sent_as_state_within_the_rules() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let room_id = public_room(&ann).await;
    let join = json!({ "membership": "join", "displayname": "in this room" });
    bob.set_state(&room_id, "m.room.member", &bob.user_id, &join).await.ok();
    assert_eq!(bob.state(&room_id, "m.room.member", &bob.user_id).await.ok(), join);
    // Nobody makes another join.
    ann.set_state(&room_id, "m.room.member", &cas.user_id, &join).await.refused(403, "M_FORBIDDEN");
    bob.set_state(&room_id, "m.room.member", &ann.user_id, &json!({ "membership": "leave" }))
        .await
        .refused(403, "M_FORBIDDEN");
    // join → invite and join → knock must never happen.
    for never in ["invite", "knock", "nonsense"] {
        let content = json!({ "membership": never });
        let answer = bob.set_state(&room_id, "m.room.member", &bob.user_id, &content).await;
        assert!(matches!(answer.status, 400 | 403), "{answer}");
    }
    assert_eq!(membership(&ann, &room_id, &bob).await, "join");
}

#[tokio::test]
async fn members_are_listed_by_membership_and_as_of_a_token() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let dan = user(&server, "dan").await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let before = next_batch(&ann.sync(None, 0, None).await);
    bob.act(&room_id, "leave", None).await.ok();
    cas.join(&room_id).await.ok();
    ann.act(&room_id, "invite", Some(&dan)).await.ok();
    let members = |query: String| {
        let (ann, room_id) = (ann.clone(), room_id.clone());
        async move {
            let list = ann.get_room(&room_id, &format!("/members{query}")).await.ok();
            let mut users = each(&list["chunk"], "/state_key");
            users.sort();
            users
        }
    };
    let (a, b, c, d) = (&ann.user_id, &bob.user_id, &cas.user_id, &dan.user_id);
    let sorted = |users: &[&String]| {
        let mut users: Vec<String> = users.iter().map(|user| (*user).clone()).collect();
        users.sort();
        users
    };
    assert_eq!(members(String::new()).await, sorted(&[a, b, c, d]));
    assert_eq!(members("?membership=join".into()).await, sorted(&[a, c]));
    assert_eq!(members("?not_membership=leave".into()).await, sorted(&[a, c, d]));
    assert_eq!(members("?membership=leave&not_membership=join".into()).await, sorted(&[b, d]));
    assert_eq!(members(format!("?at={before}")).await, sorted(&[a, b]));
    assert_eq!(members(format!("?at={before}&membership=join")).await, sorted(&[a, b]));
    ann.get_room(&room_id, "/members?at=garbage").await.refused(400, "M_INVALID_PARAM");
    // One who left sees the members as they were then; strangers see nothing.
    let seen = bob.get_room(&room_id, "/members").await.ok();
    assert_eq!(each(&seen["chunk"], "/state_key").len(), 2);
    dan.get_room(&room_id, "/members").await.refused(403, "M_FORBIDDEN");

    let joined = ann.get_room(&room_id, "/joined_members").await.ok();
    let joined = joined["joined"].as_object().cloned().unwrap_or_default();
    assert_eq!(sorted(&[a, c]), joined.keys().cloned().collect::<Vec<_>>());
    let name = c.trim_start_matches('@').split(':').next();
    assert_eq!(joined[c]["display_name"].as_str(), name);
    for outside in [&bob, &dan] {
        outside.get_room(&room_id, "/joined_members").await.refused(403, "M_FORBIDDEN");
    }
}

#[tokio::test]
async fn who_was_in_a_room_earlier_is_shown_to_those_who_see_its_history_from_then() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    for (visibility, shown) in [("joined", false), ("invited", false), ("shared", true)] {
        let visibility = json!({
            "type": "m.room.history_visibility", "content": { "history_visibility": visibility },
        });
        let options = json!({ "preset": "public_chat", "initial_state": [visibility] });
        let room_id = ann.create_room(options).await;
        cas.join(&room_id).await.ok();
        let before = ann.here().await;
        cas.act(&room_id, "leave", None).await.ok();
        bob.join(&room_id).await.ok();
        let after = bob.here().await;
        let members = async |at: &str| bob.get_room(&room_id, &format!("/members?at={at}")).await;
        if shown {
            members(&before).await.ok();
        } else {
            members(&before).await.refused(403, "M_FORBIDDEN");
        }
        // What they may see stays visible after they have left.
        bob.act(&room_id, "leave", None).await.ok();
        let seen = members(&after).await.ok();
        assert_eq!(each(&seen["chunk"], "/state_key").len(), 3);
    }
}

#[tokio::test]
async fn nobody_lets_themselves_into_a_restricted_room() {
    let server = server().await;
    let (ann, bob, _) = three(&server).await;
    let club = public_room(&ann).await;
    let room_id = ann
        .create_room(json!({
            "initial_state": [{ "type": "m.room.join_rules", "content": {
                "join_rule": "restricted",
                "allow": [{ "type": "m.room_membership", "room_id": club }],
            }}],
        }))
        .await;
    let forged = json!({ "membership": "join", "join_authorised_via_users_server": ann.user_id });
    bob.set_state(&room_id, "m.room.member", &bob.user_id, &forged)
        .await
        .refused(403, "M_FORBIDDEN");
    let path = format!("/rooms/{}/join", encode(&room_id));
    bob.post(&path, forged).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn other_devices_learn_that_a_forgotten_room_was_left() {
    let server = server().await;
    let (ann, bob, _) = three(&server).await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let other = bob.another_device().await;
    let since = next_batch(&other.sync(None, 0, None).await);
    ann.send_text(&room_id, "1", "not fetched in time").await;
    bob.act(&room_id, "leave", None).await.ok();
    bob.act(&room_id, "forget", None).await.ok();
    let sync = other.news(&since).await;
    let room = &sync["rooms"]["leave"][&room_id];
    assert_eq!(each(&room["timeline"]["events"], "/content/membership"), ["leave"], "{sync}");
    assert_eq!(room["state"]["events"], json!([]));
}

#[tokio::test]
async fn reasons_are_passed_on() {
    let server = server().await;
    let (ann, bob, _) = three(&server).await;
    let room_id = public_room(&ann).await;
    let target = json!({ "user_id": bob.user_id, "reason": "because" });
    let own = json!({ "reason": "because" });
    for (who, action, body, expected) in [
        (&ann, "invite", &target, "invite"),
        (&bob, "join", &own, "join"),
        (&ann, "kick", &target, "leave"),
        (&bob, "join", &own, "join"),
        (&bob, "leave", &own, "leave"),
        (&ann, "ban", &target, "ban"),
        (&ann, "unban", &target, "leave"),
    ] {
        let path = format!("/rooms/{}/{action}", encode(&room_id));
        who.post(&path, body.clone()).await.ok();
        let member = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
        assert_eq!(member["membership"], expected, "{action}");
        assert_eq!(member["reason"], "because", "{action}");
    }
}

#[tokio::test]
async fn a_room_can_be_both_restricted_and_knocked_on() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let club = public_room(&ann).await;
    let room_id = ann
        .create_room(json!({
            "initial_state": [{ "type": "m.room.join_rules", "content": {
                "join_rule": "knock_restricted",
                "allow": [{ "type": "m.room_membership", "room_id": club }],
            }}],
        }))
        .await;
    bob.join(&club).await.ok();
    bob.join(&room_id).await.ok();
    cas.join(&room_id).await.refused(403, "M_FORBIDDEN");
    knock(&cas, &room_id).await.ok();
    ann.act(&room_id, "invite", Some(&cas)).await.ok();
    cas.join(&room_id).await.ok();
}

#[tokio::test]
async fn older_room_versions_know_no_knocking_and_no_restriction() {
    let server = server().await;
    let (ann, bob, _) = three(&server).await;
    for (version, rule) in [("6", "knock"), ("7", "restricted")] {
        let room_id = ann
            .create_room(json!({
                "room_version": version,
                "initial_state": [{ "type": "m.room.join_rules",
                                    "content": { "join_rule": rule } }],
            }))
            .await;
        bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
        assert_eq!(knock(&bob, &room_id).await.status, 403);
        // A rule that the version does not know lets nobody in.
        ann.act(&room_id, "invite", Some(&bob)).await.ok();
        bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    }
}

#[tokio::test]
async fn an_invalid_join_rule_lets_nobody_in() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    for content in [json!({}), json!({ "join_rule": 3 }), json!({ "join_rule": "nonsense" })] {
        let room_id = public_room(&ann).await;
        ann.act(&room_id, "invite", Some(&cas)).await.ok();
        let answer = ann.set_state(&room_id, "m.room.join_rules", "", &content).await;
        if answer.status == 400 {
            continue;
        }
        answer.ok();
        for user in [&bob, &cas] {
            user.join(&room_id).await.refused(403, "M_FORBIDDEN");
        }
    }
}

#[tokio::test]
async fn a_room_that_does_not_exist_is_answered_as_one_that_the_caller_may_not_see() {
    let server = server().await;
    let (ann, bob, cas) = three(&server).await;
    let room_id = ann.create_room(json!({ "preset": "private_chat" })).await;
    let invite = json!({ "user_id": cas.user_id });
    for (method, path, body) in [
        ("GET", "/messages?dir=b", None),
        ("GET", "/members", None),
        ("GET", "/joined_members", None),
        ("GET", "/state", None),
        ("GET", "/state/m.room.name/", None),
        ("GET", "/aliases", None),
        ("GET", "/event/$x", None),
        ("GET", "/context/$x", None),
        ("GET", "/initialSync", None),
        ("POST", "/leave", Some(json!({}))),
        ("POST", "/join", Some(json!({}))),
        ("POST", "/invite", Some(invite.clone())),
        ("POST", "/kick", Some(invite.clone())),
        ("POST", "/ban", Some(invite)),
        ("POST", "/upgrade", Some(json!({ "new_version": "11" }))),
        ("PUT", "/send/m.room.message/t", Some(json!({ "msgtype": "m.text", "body": "x" }))),
        ("PUT", "/state/m.room.name/", Some(json!({ "name": "x" }))),
        ("PUT", "/typing/@bob", Some(json!({ "typing": true }))),
        ("POST", "/receipt/m.read/$x", Some(json!({}))),
        ("POST", "/forget", Some(json!({}))),
        (
            "PUT",
            "/send/m.room.message/later?org.matrix.msc4140.delay=3600000",
            Some(json!({ "msgtype": "m.text", "body": "x" })),
        ),
        ("GET", "@data/account_data/org.example", None),
        ("PUT", "@data/account_data/org.example", Some(json!({ "x": 1 }))),
        ("GET", "@data/tags", None),
        ("PUT", "@data/tags/u.x", Some(json!({}))),
        ("DELETE", "@data/tags/u.x", None),
    ] {
        let path = path.replace("@bob", &encode(&bob.user_id)).replace("$x", "%24x");
        let ask = async |room_id: &str| {
            let room_id = encode(room_id);
            let path = match path.strip_prefix("@data") {
                Some(path) => format!("/user/{}/rooms/{room_id}{path}", encode(&bob.user_id)),
                None => format!("/rooms/{room_id}{path}"),
            };
            bob.request(method, &path, body.as_ref()).await
        };
        let (private, none) = (ask(&room_id).await, ask("!none:e2e.test").await);
        assert!(private.status >= 400, "{method} {path}: {private}");
        assert_eq!(none.status, private.status, "{method} {path}: {private}, {none}");
        assert_eq!(none.body, private.body, "{method} {path}");
    }
}
