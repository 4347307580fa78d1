//! What is there before a restart is there after it.

use serde_json::{Value, json};

use super::sliding::{Slide, public_room, rooms, window};
use super::{texts, user};
use crate::harness::{TestServer, User, encode};

const PASSING: [&str; 4] = ["age", "last_active_ago", "last_seen_ts", "last_seen_ip"];

/// Leaves out what differs from one moment to the next: how long ago something was, and when a
/// device was last in use.
fn timeless(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(name, _)| !PASSING.contains(&name.as_str()))
            .map(|(name, value)| (name, timeless(value)))
            .collect(),
        Value::Array(values) => values.into_iter().map(timeless).collect(),
        other => other,
    }
}

/// The answers to many questions of one user, each with its question.
async fn answers(user: &User, paths: &[String]) -> Vec<(String, u16, Value)> {
    let mut answers = Vec::new();
    for path in paths {
        let answer = user.get(path).await;
        answers.push((path.clone(), answer.status, timeless(answer.body)));
    }
    answers
}

/// A bit of everything: rooms of every membership, redactions, receipts, account data, aliases.
/// Gives the questions to be asked by the second user.
async fn a_bit_of_everything(ann: &User, bob: &User, cas: &User) -> Vec<String> {
    let mut paths = Vec::new();
    let since = bob.here().await;
    let main = ann
        .create_room(json!({
            "preset": "public_chat", "visibility": "public", "name": "main", "topic": "t",
            "room_alias_name": "main", "invite": [bob.user_id],
        }))
        .await;
    bob.join(&main).await.ok();
    let mut events = Vec::new();
    for number in 0..15 {
        let who = if number % 2 == 0 { ann } else { bob };
        events.push(who.send_text(&main, &format!("t{number}"), &number.to_string()).await);
    }
    let redact = format!("/rooms/{}/redact/{}/r", encode(&main), encode(&events[7]));
    bob.put(&redact, json!({ "reason": "because" })).await.ok();
    ann.act(&main, "ban", Some(cas)).await.ok();
    let avatar = format!("/profile/{}/avatar_url", encode(&bob.user_id));
    bob.put(&avatar, json!({ "avatar_url": "mxc://e2e.test/x" })).await.ok();
    let receipt = format!("/rooms/{}/receipt/m.read/{}", encode(&main), encode(&events[3]));
    ann.post(&receipt, json!({})).await.ok();
    let me = format!("/user/{}", encode(&bob.user_id));
    for place in [String::new(), format!("/rooms/{}", encode(&main))] {
        let path = format!("{me}{place}/account_data/org.example.x");
        bob.put(&path, json!({ "here": place })).await.ok();
        paths.push(path);
    }
    let tags = format!("{me}/rooms/{}/tags", encode(&main));
    bob.put(&format!("{tags}/u.x"), json!({ "order": 0.5 })).await.ok();
    let status = format!("/presence/{}/status", encode(&ann.user_id));
    ann.put(&status, json!({ "presence": "offline", "status_msg": "gone" })).await.ok();
    paths.extend([tags, status]);
    let filter = json!({ "room": { "timeline": { "limit": 3 }, "include_leave": true } });
    let filter_id = bob.post(&format!("{me}/filter"), filter).await.ok_string("filter_id");
    bob.put(&format!("/devices/{}", bob.device_id), json!({ "display_name": "mine" })).await.ok();

    let left = cas.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&left).await.ok();
    cas.send_text(&left, "1", "seen").await;
    bob.act(&left, "leave", None).await.ok();
    cas.send_text(&left, "2", "unseen").await;
    cas.create_room(json!({ "invite": [bob.user_id], "room_version": "12" })).await;
    let door = cas
        .create_room(json!({
            "initial_state": [{ "type": "m.room.join_rules", "content": { "join_rule": "knock" } }],
        }))
        .await;
    bob.post(&format!("/knock/{}", encode(&door)), json!({})).await.ok();
    let gone = cas.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&gone).await.ok();
    bob.act(&gone, "leave", None).await.ok();
    bob.act(&gone, "forget", None).await.ok();

    for room_id in [&main, &left, &gone] {
        let room = format!("/rooms/{}", encode(room_id));
        for path in [
            "/state",
            "/members",
            "/joined_members",
            "/messages?dir=b&limit=5",
            "/messages?dir=f&limit=100",
            "/aliases",
            "/state/m.room.name",
        ] {
            paths.push(format!("{room}{path}"));
        }
    }
    let room = format!("/rooms/{}", encode(&main));
    for event_id in &events[6..9] {
        paths.push(format!("{room}/event/{}", encode(event_id)));
        paths.push(format!("{room}/context/{}?limit=4", encode(event_id)));
    }
    paths.push(format!("{room}/members?at={since}"));
    paths.push(format!("{me}/filter/{filter_id}"));
    paths.push(format!("/profile/{}", encode(&bob.user_id)));
    for path in [
        "/account/whoami",
        "/devices",
        "/joined_rooms",
        "/publicRooms",
        "/pushrules/",
        "/capabilities",
        "/directory/room/%23main:e2e.test",
        &format!("/directory/list/room/{}", encode(&main)),
        // Unseen: to come online is a record, which moves the token.
        "/sync?set_presence=offline",
        &format!("/sync?set_presence=offline&filter={filter_id}"),
        &format!("/sync?set_presence=offline&since={since}"),
        &format!("/sync?set_presence=offline&since={since}&full_state=true&filter={filter_id}"),
    ] {
        paths.push(path.to_owned());
    }
    paths
}

#[tokio::test]
async fn every_answer_is_the_same_after_a_restart() {
    // A note of when a device was last in use is a record, which moves the token, and so is a
    // checkpoint.
    let settings = [
        ("LOGCABIN_DEVICES_NOTE_LAST_SEEN_SECONDS", "0"),
        ("LOGCABIN_PROOFS_EVERY_RECORDS", "0"),
        ("LOGCABIN_PROOFS_EVERY_MINUTES", "0"),
    ];
    let mut server = TestServer::start_with(&settings).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let paths = a_bit_of_everything(&ann, &bob, &cas).await;
    let before = answers(&bob, &paths).await;
    assert!(before.iter().filter(|(_, status, _)| *status == 200).count() > 30);
    // By a kill, in peace, and by a kill after that.
    for how in ["kill", "stop", "kill"] {
        if how == "stop" {
            server.stop();
        }
        server.restart().await;
        let bob = User { http: server.http(), ..bob.clone() };
        for (before, after) in before.iter().zip(answers(&bob, &paths).await) {
            assert_eq!(*before, after, "after a {how}");
        }
    }
    let ann = User { http: server.http(), ..ann };
    ann.post("/logout", json!({})).await.ok();
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test]
async fn a_sliding_sync_connection_goes_on_after_a_restart_and_starts_over_after_a_crash() {
    crate::harness::nodes::one_server!("a connection ends with its node");
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let (room_id, other) = (public_room(&ann, "x").await, public_room(&ann, "y").await);
    let mut slide = Slide::new(&ann);
    let body = window(0, 9, 5);
    slide.next(&body).await;
    // Nothing is sent again, whether the last response has been confirmed or not.
    for text in ["one", "two"] {
        slide.user.send_text(&room_id, text, text).await;
        server.stop();
        server.restart().await;
        slide.user.http = server.http();
        let answer = slide.next(&body).await;
        assert_eq!(rooms(&answer), std::slice::from_ref(&room_id), "{answer}");
        let room = &answer["rooms"][&room_id];
        assert_eq!((room.get("initial"), texts(&room["timeline"])), (None, vec![text.to_owned()]));
        let nothing = slide.next(&body).await;
        assert_eq!(rooms(&nothing), [""; 0], "{nothing}");
    }
    // What the client was sent since that start is in no file.
    server.kill9();
    server.restart().await;
    slide.user.http = server.http();
    slide.try_at(slide.pos.as_deref(), 0, &body).await.refused(400, "M_UNKNOWN_POS");
    slide.pos = None;
    let answer = slide.next(&body).await;
    assert_eq!(answer["rooms"][&other]["initial"], true, "{answer}");
    let room = &answer["rooms"][&room_id];
    assert_eq!(room["initial"], true, "{answer}");
    assert!(texts(&room["timeline"]).ends_with(&["one".to_owned(), "two".to_owned()]), "{answer}");
}
