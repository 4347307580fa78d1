//! What the specification says of homeservers to each other, where no other file shows it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ruma::signatures::{Ed25519KeyPair, hash_and_sign_event, reference_hash, sign_json};
use ruma::{CanonicalJsonObject, OwnedServerName, RoomVersionId};
use serde_json::{Value, json};

use super::elsewhere::{Stage, TIME, stage, stage_with};
use super::ephemeral;
use super::hostile::{Hostile, now, with_pia};
use super::peer::{Answers, Peer, Script, document, new_keys};
use super::view::state;
use super::{Federated, authority};
use crate::harness::stand_in::reply_json;
use crate::harness::{User, encode, until};

const UNLIMITED: [(&str, &str); 1] = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];

/// The rooms that a user is invited to.
async fn invites(user: &User) -> Vec<String> {
    let sync = user.sync(None, 0, None).await;
    let rooms = sync["rooms"]["invite"].as_object().cloned().unwrap_or_default();
    rooms.into_iter().map(|(room_id, _)| room_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invite_that_its_sender_withdrew_is_gone_and_nobody_else_withdraws_it() {
    let Some(authority) = authority("hostile peers") else { return };
    let mut cabin = Federated::start_with(&authority, &UNLIMITED).await;
    let (peer, other) = (Peer::start(&authority).await, Peer::start(&authority).await);
    let ann = cabin.server.register("ann").await;
    let room_id = format!("!room:{}", peer.name);
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    let mut stranger = Hostile::new(&other, &cabin, &room_id);
    let member = |sender: &str, membership: &str, auth: &[&str], depth: u32| {
        json!({
            "type": "m.room.member", "room_id": room_id, "sender": sender,
            "state_key": ann.user_id, "content": { "membership": membership }, "depth": depth,
            "auth_events": auth, "prev_events": auth, "origin_server_ts": now(),
        })
    };
    let (pia, sam) = (hostile.user("pia"), stranger.user("sam"));
    // Twice: the end of the first one does not end the second.
    let mut first = None;
    for depth in [5, 15] {
        let (id, invite) = hostile.signed(member(&pia, "invite", &[], depth));
        let path = format!("/_matrix/federation/v2/invite/{}/{}", encode(&room_id), encode(&id));
        let body = json!({ "room_version": "10", "event": invite, "invite_room_state": [] });
        hostile.ask("PUT", &path, &body).await.ok();
        assert_eq!(invites(&ann).await, [&*room_id]);

        let by_another = stranger.signed(member(&sam, "leave", &[&id], depth + 1)).1;
        let in_the_name_of_another = stranger.signed(member(&pia, "leave", &[&id], depth + 1)).1;
        stranger.send(&[by_another.clone(), in_the_name_of_another.clone()]).await;
        hostile.send(&[by_another, in_the_name_of_another]).await;
        let of_nothing = hostile.signed(member(&pia, "leave", &[], depth + 1)).1;
        hostile.send(&[of_nothing]).await;
        hostile.send(&first.take().into_iter().collect::<Vec<_>>()).await;
        assert_eq!(invites(&ann).await, [&*room_id], "somebody else withdrew it");

        let (leave_id, leave) = hostile.signed(member(&pia, "leave", &[&id], depth + 1));
        let said = hostile.send(std::slice::from_ref(&leave)).await;
        assert_eq!(said, json!({ &*leave_id: {} }));
        assert!(invites(&ann).await.is_empty());
        first = Some(leave);
    }
    drop((hostile, stranger));
    cabin.server.restart().await;
    let ann = User { http: cabin.server.http(), ..ann };
    assert!(invites(&ann).await.is_empty());
}

/// The event with these members instead of its own.
fn with(event: &Value, members: &Value) -> Value {
    let mut event = event.clone();
    let into = event.as_object_mut().expect("an event");
    into.extend(members.as_object().expect("an object").clone());
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redaction_that_takes_no_effect_is_not_shown() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &UNLIMITED).await;
    let peer = Peer::start(&authority).await;
    let (ann, room_id, mut hostile) = with_pia(&peer, &cabin).await;
    let another = ann.create_room(json!({ "preset": "public_chat", "room_version": "10" })).await;
    let elsewhere = ann.send_text(&another, "t1", "elsewhere").await;
    let here = ann.send_text(&room_id, "t2", "here").await;
    let (own, said) = hostile.signed(hostile.message("mine").await);
    hostile.send(&[said]).await;
    let mut shown = Vec::new();
    for target in [&elsewhere, &here, &own] {
        let redaction = json!({
            "type": "m.room.redaction", "redacts": target, "content": {},
        });
        let (id, redaction) = hostile.signed(with(&hostile.message("").await, &redaction));
        hostile.send(&[redaction]).await;
        shown.push(id);
    }
    let path = format!("/rooms/{}/messages?dir=b&limit=100", encode(&room_id));
    let page = ann.request("GET", &path, None).await.ok();
    let events = page["chunk"].as_array().expect("a list");
    let is_redaction = |event: &&Value| event["type"] == "m.room.redaction";
    let redactions: Vec<_> = events.iter().filter(is_redaction).collect();
    assert_eq!(redactions.len(), 1, "{redactions:?}");
    assert_eq!(redactions[0]["event_id"], *shown[2]);
    for (room_id, event_id, text) in [
        (&another, &elsewhere, json!("elsewhere")),
        (&room_id, &here, json!("here")),
        (&room_id, &own, Value::Null),
    ] {
        let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
        let event = ann.request("GET", &path, None).await.ok();
        assert_eq!(event["content"]["body"], text, "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redaction_in_the_past_of_a_room_that_takes_no_effect_is_not_shown() {
    let Some((_authority, _cabin, stage, ann)) = stage().await else { return };
    let another = ann.create_room(json!({ "preset": "public_chat" })).await;
    let elsewhere = ann.send_text(&another, "t1", "elsewhere").await;
    stage.say("old");
    let (_, redaction) = stage.event("m.room.redaction", None, json!({}));
    let mut redaction = with(&redaction, &json!({ "redacts": elsewhere }));
    let unsigned = redaction.as_object_mut().expect("an event");
    for name in ["hashes", "signatures"] {
        unsigned.remove(name);
    }
    stage.add(stage.signed(redaction));
    stage.say("new");
    let room_id = stage.entered_by(&ann).await;
    let path = format!("/rooms/{}/messages?dir=b&limit=100", encode(&room_id));
    let page = ann.request("GET", &path, None).await.ok();
    let said = |of: &str| page.to_string().contains(of);
    assert!(said("old") && said("new") && !said("m.room.redaction"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_event_follows_by_way_of_refused_ones_is_no_extremity() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &UNLIMITED).await;
    let peer = Peer::start(&authority).await;
    let (ann, room_id, mut hostile) = with_pia(&peer, &cabin).await;
    let template = hostile.message("m").await;
    let path = format!("/rooms/{}/state/m.room.power_levels", encode(&room_id));
    let mut levels = ann.request("GET", &path, None).await.ok();
    levels["events"]["org.example.refused"] = json!(50);
    let levels = ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    // On a branch that does not know of it, what it forbids is allowed, but not now.
    let mut last = None;
    let mut ids = Vec::new();
    for (number, event_type) in
        ["m.room.message", "org.example.refused", "org.example.refused", "m.room.message"]
            .into_iter()
            .enumerate()
    {
        let depth = template["depth"].as_u64().expect("a depth") + number as u64;
        let mut event = with(
            &template,
            &json!({
                "type": event_type, "depth": depth, "content": { "body": number.to_string() },
            }),
        );
        if let Some(last) = &last {
            event["prev_events"] = json!([last]);
        }
        let (id, event) = hostile.signed(event);
        assert_eq!(hostile.send(&[event]).await, json!({ &*id: {} }));
        last = Some(id.clone());
        ids.push(id);
    }
    let next = hostile.message("next").await;
    let mut prev: Vec<_> = next["prev_events"].as_array().expect("a list").clone();
    prev.sort_by_key(Value::to_string);
    let mut expected = vec![levels["event_id"].clone(), json!(ids[3])];
    expected.sort_by_key(Value::to_string);
    assert_eq!(prev, expected);
}

/// The EDUs of a type that a peer was sent.
fn edus(peer: &Peer, edu_type: &str) -> Vec<Value> {
    let asked = peer.asked();
    let edus = asked.iter().filter_map(|asked| asked.body["edus"].as_array());
    let edus = edus.flatten().filter(|edu| edu["edu_type"] == edu_type);
    edus.map(|edu| edu["content"].clone()).collect()
}

fn is_present(peer: &Peer, user: &User, status: &str) -> bool {
    let updates = edus(peer, "m.presence");
    let mut updates = updates.iter().filter_map(|edu| edu["push"].as_array()).flatten();
    updates.any(|update| update["user_id"] == *user.user_id && update["status_msg"] == status)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_meets_by_a_join_learns_of_devices_and_presence() {
    let Some((_authority, cabin, stage, ann)) = stage().await else { return };
    ephemeral::is(&ann, "online", "here").await;
    // A user of this server enters a room of another, with a device that has no keys.
    stage.entered_by(&ann).await;
    until("the peer learns of ann's device", async || {
        edus(&stage.peer, "m.device_list_update").iter().any(|update| {
            update["user_id"] == *ann.user_id
                && update["device_id"] == *ann.device_id
                && update["stream_id"].is_u64()
                && update["prev_id"] == json!([])
                && update.get("deleted").is_none()
        })
    })
    .await;
    until("the peer learns of ann's presence", async || is_present(&stage.peer, &ann, "here"))
        .await;
    // And the other way round.
    let bob = cabin.server.register("bob").await;
    ephemeral::is(&bob, "online", "there").await;
    let room_id = bob.create_room(json!({ "preset": "public_chat", "room_version": "10" })).await;
    Hostile::new(&stage.peer, &cabin, &room_id).join().await;
    until("the peer learns of bob's presence", async || is_present(&stage.peer, &bob, "there"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_needs_no_members_is_answered_with_those_that_name_the_room() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &UNLIMITED).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    for name in ["bob", "cid", "dan", "eve", "fay"] {
        cabin.server.register(name).await.join(&room_id).await.ok();
    }
    let hostile = Hostile::new(&peer, &cabin, &room_id);
    let enter = async |name: &str| {
        let (room, user) = (encode(&room_id), encode(&hostile.user(name)));
        let path = format!("/_matrix/federation/v1/make_join/{room}/{user}?ver=10");
        let made = hostile.ask("GET", &path, &Value::Null).await.ok();
        let (event_id, event) = hostile.signed(made["event"].clone());
        let path = format!(
            "/_matrix/federation/v2/send_join/{room}/{}?omit_members=true",
            encode(&event_id)
        );
        let joined = hostile.ask("PUT", &path, &event).await.ok();
        assert_eq!(joined["members_omitted"], true, "{joined}");
        let members = |list: &str| -> Vec<String> {
            let events = joined[list].as_array().expect("a list").iter();
            let members = events.filter(|event| event["type"] == "m.room.member");
            let name = |event: &Value| event["state_key"].as_str().expect("a key").to_owned();
            let mut members: Vec<_> = members.map(name).collect();
            members.sort();
            members
        };
        (members("state"), members("auth_chain"), joined["servers_in_room"].clone())
    };
    let (members, chain, servers) = enter("pia").await;
    let heroes = ["ann", "bob", "cid", "dan", "eve"].map(|name| format!("@{name}:{}", cabin.name));
    assert_eq!(members, heroes);
    // The creator's join is in the state already.
    assert_eq!(chain, Vec::<String>::new());
    assert_eq!(servers, json!([cabin.name]));
    // In a room with a name, nobody else's membership is needed.
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "Cabin" })).await.ok();
    let (members, chain, servers) = enter("pip").await;
    assert_eq!((members, chain), (Vec::new(), vec![heroes[0].clone()]));
    assert_eq!(servers.as_array().map(Vec::len), Some(2), "{servers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_authorities_are_fetched_in_any_way_that_their_homeserver_answers() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &UNLIMITED).await;
    let script = Script::default();
    let peer = script.start(&authority).await;
    let (ann, room_id, mut hostile) = with_pia(&peer, &cabin).await;
    for way in ["event", "state", "get_missing_events"] {
        let template = hostile.message(way).await;
        let path = format!("/rooms/{}/state", encode(&room_id));
        let state = ann.request("GET", &path, None).await.ok();
        let (pia, state) = (hostile.user("pia"), state.as_array().expect("a list"));
        let is_pias = |event: &&Value| event["state_key"] == *pia;
        let member = state.iter().find(is_pias).expect("pia")["event_id"].clone();
        let rules = state.iter().find(|event| event["type"] == "m.room.join_rules");
        let mut of_join = template["auth_events"].as_array().expect("a list").clone();
        of_join.push(rules.expect("join rules")["event_id"].clone());
        // A change of pia's name, which this server was not sent.
        let (renamed_id, renamed) = hostile.signed(with(
            &template,
            &json!({
                "type": "m.room.member", "state_key": pia, "auth_events": of_join,
                "content": { "membership": "join", "displayname": way },
            }),
        ));
        let renamed_id = json!(renamed_id);
        let instead = |ids: Vec<&Value>| -> Vec<Value> {
            let others = ids.into_iter().filter(|id| **id != member).cloned();
            others.chain([renamed_id.clone()]).collect()
        };
        let auth = template["auth_events"].as_array().expect("a list").iter().collect();
        let mut message = with(&template, &json!({ "auth_events": instead(auth) }));
        let answer = match way {
            "event" => vec![("event", json!({ "pdus": [renamed] }))],
            "state" => {
                let ids = instead(state.iter().map(|event| &event["event_id"]).collect());
                vec![
                    ("state_ids", json!({ "pdu_ids": ids, "auth_chain_ids": [member] })),
                    ("state", json!({ "pdus": [renamed], "auth_chain": [] })),
                ]
            }
            _ => {
                message["prev_events"] = json!([renamed_id]);
                message["depth"] = json!(template["depth"].as_u64().expect("a depth") + 1);
                vec![("get_missing_events", json!({ "events": [renamed] }))]
            }
        };
        script.set(answer);
        let (id, message) = hostile.signed(message);
        let said = hostile.send(&[message]).await;
        assert_eq!(said, json!({ &*id: {} }), "by {way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn older_homeservers_get_keys_by_their_ids() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let peer = Peer::start(&authority).await;
    let get =
        async |path: &str| peer.send(cabin.address, "GET", path, None, &Value::Null).await.ok();
    let own = get("/_matrix/key/v2/server").await;
    for path in ["/_matrix/key/v2/server/", "/_matrix/key/v2/server/ed25519%3Aany"] {
        let named = get(path).await;
        assert_eq!(
            (&named["verify_keys"], &named["server_name"]),
            (&own["verify_keys"], &own["server_name"]),
            "{path}"
        );
    }
    for path in ["ed25519:peer", "", "ed25519:peer?minimum_valid_until_ts=5"] {
        let path = format!("/_matrix/key/v2/query/{}/{path}", peer.name);
        let known = get(&path).await;
        let document = &known["server_keys"][0];
        assert_eq!(document["server_name"], *peer.name.as_str(), "{path}: {known}");
        assert!(document["signatures"].get(&cabin.name).is_some(), "{path}: {known}");
    }
}

/// Users of homeservers that are gone, in a room of the stage, and the documents of their keys.
fn lost(stage: &Stage, count: u32) -> Vec<CanonicalJsonObject> {
    let rules = RoomVersionId::V10.rules().expect("rules");
    let mut documents = Vec::new();
    for port in 1..=count {
        let name: OwnedServerName = format!("localhost:{port}").try_into().expect("a name");
        let keys: Ed25519KeyPair = new_keys("lost");
        let user_id = format!("@lost:{name}");
        let auth: Vec<_> = {
            let room = stage.room();
            let of = |kind: &str| room.state[&(kind.to_owned(), String::new())].clone();
            ["m.room.create", "m.room.power_levels", "m.room.join_rules"].map(of).to_vec()
        };
        let (room_id, last, depth) = {
            let room = stage.room();
            (room.room_id.clone(), room.order.last().cloned(), room.order.len() + 1)
        };
        let event = json!({
            "type": "m.room.member", "room_id": room_id, "sender": user_id, "state_key": user_id,
            "content": { "membership": "join" }, "origin_server_ts": TIME, "depth": depth,
            "auth_events": auth, "prev_events": [last],
        });
        let mut object: CanonicalJsonObject = serde_json::from_value(event).expect("an object");
        hash_and_sign_event(name.as_str(), &keys, &mut object, &rules.redaction).expect("an event");
        let id = format!("${}", reference_hash(&object, &rules).expect("an event"));
        stage.add((id.clone(), json!(object)));
        stage.room().state.insert(("m.room.member".to_owned(), user_id), id);
        documents.push(document(&name, &keys, Duration::from_secs(60)));
    }
    documents
}

#[tokio::test(flavor = "multi_thread")]
async fn notaries_are_asked_for_the_keys_of_many_homeservers_at_once() {
    const LOST: u32 = 70;
    let Some(authority) = authority("notaries") else { return };
    let attested = Arc::<Mutex<Vec<Value>>>::default();
    let answering = Arc::clone(&attested);
    let answers: Answers = Arc::new(move |asked| {
        let wanted = asked.body["server_keys"].as_object()?;
        let attested = answering.lock().expect("no panic");
        let is_wanted = |document: &&Value| {
            wanted.contains_key(document["server_name"].as_str().expect("a name"))
        };
        let documents: Vec<_> = attested.iter().filter(is_wanted).collect();
        Some(reply_json(200, &json!({ "server_keys": documents })))
    });
    let notary = Peer::start_with(&authority, Duration::from_secs(3600), answers).await;
    let settings = [UNLIMITED[0], ("LOGCABIN_FEDERATION_NOTARIES", notary.name.as_str())];
    let cabin = Federated::start_with(&authority, &settings).await;
    let stage = Stage::set(&authority).await;
    for mut document in lost(&stage, LOST) {
        sign_json(notary.name.as_str(), &notary.keys, &mut document).expect("a signature");
        attested.lock().expect("no panic").push(json!(document));
    }
    let ann = cabin.server.register("ann").await;
    let room_id = stage.entered_by(&ann).await;
    let path = format!("/rooms/{}/joined_members", encode(&room_id));
    let joined = ann.request("GET", &path, None).await.ok();
    let count = joined["joined"].as_object().map(serde_json::Map::len);
    assert_eq!(count, Some(LOST as usize + 2), "pia, ann and the others");
    let asked = notary.asked();
    let asked = asked.iter().filter(|asked| asked.path == "/_matrix/key/v2/query").count();
    assert_eq!(asked, 2, "50 in each request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_is_asked_for_again_is_the_one_in_progress() {
    let Some((_authority, _cabin, stage, ann)) = stage_with(&[]).await else { return };
    let asked = |what: &str| {
        let asked = stage.peer.asked();
        asked.iter().filter(|asked| asked.path.contains(what)).count()
    };
    stage.peer.is_silent_on(&["/_matrix/federation/v2/send_join"]);
    let room_id = stage.room().room_id.clone();
    let path = format!("/join/{}?via={}", encode(&room_id), stage.peer.name);
    let join = || {
        let (ann, path) = (ann.clone(), path.clone());
        tokio::spawn(async move { ann.request("POST", &path, Some(&json!({}))).await })
    };
    let first = join();
    until("the join is on its way", async || asked("send_join") > 0).await;
    // The client gives up, and tries again.
    first.abort();
    let again = [join(), join()];
    ann.sync(None, 0, None).await;
    stage.peer.is_silent_on(&[]);
    for join in again {
        join.await.expect("no panic").ok();
    }
    assert_eq!((asked("make_join"), asked("send_join")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_of_a_joined_room_may_themselves_rest_on_its_state() {
    let Some((_authority, _cabin, stage, ann)) = stage().await else { return };
    // The power levels before these rest on pia's join, which is only in the state.
    let levels = json!({ "users": { stage.pia(): 100 }, "users_default": 7 });
    stage.state("m.room.power_levels", "", levels.clone());
    stage.room().unrepeated = 2;
    let room_id = stage.entered_by(&ann).await;
    assert_eq!(state(&ann, &room_id, "m.room.power_levels", "").await, levels);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_is_not_altered_by_the_homeserver_that_accepts_it() {
    let Some((_authority, _cabin, stage, ann)) = stage().await else { return };
    stage.room().added_to_join = json!({ "displayname": "mallory" });
    let room_id = stage.room().room_id.clone();
    let path = format!("/join/{}?via={}", encode(&room_id), stage.peer.name);
    ann.request("POST", &path, Some(&json!({}))).await.refused(502, "M_CONNECTION_FAILED");
    stage.room().added_to_join = json!({});
    stage.entered_by(&ann).await;
    let member = state(&ann, &room_id, "m.room.member", &ann.user_id).await;
    assert_eq!(member["displayname"], "ann");
}
