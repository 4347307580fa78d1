//! `/initialSync` and `/events`, which are deprecated and still called.

use std::time::Duration;

use serde_json::{Value, json};

use super::{anonymous, each, event_ids, server, string, texts, user};
use crate::harness::{Direction, TestServer, User, encode};

/// A server on which presence does not come between the events.
async fn without_presence() -> TestServer {
    TestServer::start_with(&[("LOGCABIN_PRESENCE_ENABLED", "false")]).await
}

async fn events(user: &User, from: &str, timeout_ms: u64, more: &str) -> Value {
    user.get(&format!("/events?from={}&timeout={timeout_ms}{more}", encode(from))).await.ok()
}

#[track_caller]
fn room<'a>(snapshot: &'a Value, room_id: &str) -> Option<&'a Value> {
    snapshot["rooms"].as_array()?.iter().find(|room| room["room_id"] == room_id)
}

#[tokio::test]
async fn a_snapshot_has_all_rooms_with_their_last_messages_and_state() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let main = ann
        .create_room(json!({ "preset": "public_chat", "visibility": "public", "name": "main" }))
        .await;
    for number in 0..4 {
        ann.send_text(&main, &number.to_string(), &number.to_string()).await;
    }
    let me = format!("/user/{}", encode(&ann.user_id));
    let data = format!("{me}/rooms/{}/account_data/org.example.x", encode(&main));
    ann.put(&data, json!({ "a": 1 })).await.ok();
    ann.put(&format!("{me}/account_data/org.example.y"), json!({ "b": 2 })).await.ok();
    let invited = bob.create_room(json!({ "invite": [ann.user_id] })).await;
    let left = bob.create_room(json!({ "preset": "public_chat" })).await;
    ann.join(&left).await.ok();
    bob.send_text(&left, "1", "seen").await;
    ann.act(&left, "leave", None).await.ok();
    bob.send_text(&left, "2", "unseen").await;

    let snapshot = ann.get("/initialSync?limit=2").await.ok();
    let of_main = room(&snapshot, &main).unwrap();
    assert_eq!(
        (&of_main["membership"], &of_main["visibility"]),
        (&json!("join"), &json!("public"))
    );
    assert_eq!(texts(&of_main["messages"]["chunk"]), ["2", "3"]);
    let types = each(&of_main["state"], "/type");
    assert!(types.contains(&"m.room.name".to_owned()), "{types:?}");
    assert_eq!(
        of_main["account_data"],
        json!([{ "type": "org.example.x", "content": { "a": 1 } }])
    );
    let (start, end) = (string(&of_main["messages"], "start"), string(&of_main["messages"], "end"));
    let earlier = ann.messages(&main, Some(&start), None, Direction::Back, 2).await;
    assert_eq!(texts(&earlier["chunk"]), ["1", "0"]);
    let later = ann.messages(&main, Some(&end), None, Direction::Forward, 2).await;
    assert_eq!(event_ids(&later["chunk"]), [""; 0]);
    let of_invited = room(&snapshot, &invited).unwrap();
    assert_eq!(of_invited["membership"], "invite");
    assert_eq!(of_invited["inviter"], bob.user_id.as_str());
    assert_eq!(of_invited["invite"]["state_key"], ann.user_id.as_str());
    assert!(of_invited.get("messages").is_none() && of_invited["state"] == json!([]));
    assert!(room(&snapshot, &left).is_none());
    let types = each(&snapshot["account_data"], "/type");
    assert!(types.contains(&"org.example.y".to_owned()), "{types:?}");
    assert!(types.contains(&"m.push_rules".to_owned()), "{types:?}");

    let archived = ann.get("/initialSync?archived=true").await.ok();
    let of_left = room(&archived, &left).unwrap();
    assert_eq!(of_left["membership"], "leave");
    assert_eq!(texts(&of_left["messages"]["chunk"]), ["seen"]);
    ann.act(&left, "forget", None).await.ok();
    assert!(room(&ann.get("/initialSync?archived=true").await.ok(), &left).is_none());
    ann.get("/initialSync?limit=many").await.refused(400, "M_INVALID_PARAM");
    anonymous(&server.http(), "GET", "/initialSync", None).await.refused(401, "M_MISSING_TOKEN");

    // One room.
    let one = ann.get_room(&main, "/initialSync?limit=1").await.ok();
    assert_eq!(texts(&one["messages"]["chunk"]), ["3"]);
    assert_eq!(one["room_id"], main.as_str());
    bob.get_room(&main, "/initialSync").await.refused(403, "M_FORBIDDEN");
    ann.get_room(&invited, "/initialSync").await.refused(403, "M_FORBIDDEN");
    ann.get_room("!none:e2e.test", "/initialSync").await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn events_come_from_where_one_was_in_order_and_only_those_one_may_see() {
    let server = without_presence().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let from = next_batch_of(&ann).await;
    let room_id = bob.create_room(json!({ "preset": "public_chat" })).await;
    bob.send_text(&room_id, "0", "before").await;
    bob.act(&room_id, "invite", Some(&ann)).await.ok();
    let invite = events(&ann, &from, 0, "").await;
    assert_eq!(each(&invite["chunk"], "/content/membership"), ["invite"]);
    assert_eq!(invite["start"], from.as_str());
    let from = string(&invite, "end");
    assert_eq!(events(&ann, &from, 0, "").await["chunk"], json!([]));

    ann.join(&room_id).await.ok();
    let other = ann.create_room(json!({})).await;
    let one = bob.send_text(&room_id, "1", "1").await;
    let two = ann.send_text(&other, "2", "2").await;
    let three = bob.send_text(&room_id, "3", "3").await;
    ann.act(&room_id, "leave", None).await.ok();
    bob.send_text(&room_id, "4", "unseen").await;
    let news = events(&ann, &from, 0, "").await;
    let ids = event_ids(&news["chunk"]);
    let sent: Vec<_> = ids.iter().filter(|id| [&one, &two, &three].contains(id)).collect();
    assert_eq!(sent, [&one, &two, &three]);
    assert_eq!(texts(&news["chunk"]), ["1", "2", "3"]);
    assert_eq!(news["chunk"][0]["room_id"], room_id.as_str());
    assert_eq!(
        each(&news["chunk"], "/content/membership").last().map(String::as_str),
        Some("leave")
    );
    ann.get("/events?from=nonsense").await.refused(400, "M_INVALID_PARAM");
    ann.get("/events?timeout=long").await.refused(400, "M_INVALID_PARAM");
}

async fn next_batch_of(user: &User) -> String {
    string(&user.get("/initialSync").await.ok(), "end")
}

#[tokio::test]
async fn events_are_waited_for() {
    let server = without_presence().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let from = next_batch_of(&ann).await;
    let waiting = {
        let (ann, from) = (ann.clone(), from.clone());
        tokio::spawn(async move { events(&ann, &from, 60_000, "").await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "there was nothing to tell yet");
    let sent = bob.send_text(&room_id, "1", "wake up").await;
    let news = waiting.await.expect("no panic");
    assert_eq!(event_ids(&news["chunk"]), [sent]);
    // Nothing more: the time is over, and the answer empty.
    let end = string(&news, "end");
    assert_eq!(events(&ann, &end, 50, "").await["chunk"], json!([]));
    // Whoever logs out waits no longer.
    let waiting = {
        let ann = ann.clone();
        tokio::spawn(async move { ann.get(&format!("/events?from={end}&timeout=60000")).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    ann.post("/logout", json!({})).await.ok();
    waiting.await.expect("no panic").refused(401, "M_UNKNOWN_TOKEN");
}

fn of_type<'a>(events: &'a Value, event_type: &str) -> Vec<&'a Value> {
    let events = events.as_array().into_iter().flatten();
    events.filter(|event| event["type"] == event_type).collect()
}

#[tokio::test]
async fn presence_typing_receipts_and_account_data_come_with_the_events() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let event_id = ann.send_text(&room_id, "1", "hello").await;
    let from = next_batch_of(&ann).await;
    let me = |user: &User| format!("/user/{}", encode(&user.user_id));
    let typing = format!("/rooms/{}/typing/{}", encode(&room_id), encode(&bob.user_id));
    bob.put(&typing, json!({ "typing": true, "timeout": 30_000 })).await.ok();
    let receipt = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&event_id));
    bob.post(&receipt, json!({})).await.ok();
    let status = format!("/presence/{}/status", encode(&bob.user_id));
    bob.put(&status, json!({ "presence": "online", "status_msg": "at work" })).await.ok();
    ann.put(&format!("{}/account_data/org.example.y", me(&ann)), json!({ "b": 2 })).await.ok();
    let of_room = format!("{}/rooms/{}/account_data/org.example.x", me(&ann), encode(&room_id));
    ann.put(&of_room, json!({ "a": 1 })).await.ok();

    // All of it is there once, whichever look finds it.
    let mut all = Vec::new();
    let mut at = from;
    crate::harness::until_ok("all of it has come", async || {
        let news = events(&ann, &at, 0, "").await;
        at = string(&news, "end");
        all.extend(news["chunk"].as_array().cloned().unwrap_or_default());
        let found = Value::from(all.clone());
        let of_bob = |event: &&&Value| event["content"]["user_id"] == bob.user_id.as_str();
        let presence = of_type(&found, "m.presence");
        let there = presence.iter().filter(of_bob).any(|e| e["content"]["status_msg"] == "at work");
        let types = ["m.typing", "m.receipt", "org.example.x", "org.example.y"];
        let counts = types.map(|event_type| of_type(&found, event_type).len());
        if there && counts == [1; 4] { Ok(()) } else { Err(found) }
    })
    .await;
    let found = Value::from(all);
    let typing = of_type(&found, "m.typing")[0];
    assert_eq!(typing["content"]["user_ids"], json!([bob.user_id]));
    let receipt = of_type(&found, "m.receipt")[0];
    assert!(receipt["content"][&event_id]["m.read"][&bob.user_id]["ts"].is_u64(), "{receipt}");
    for event in [typing, receipt, of_type(&found, "org.example.x")[0]] {
        assert_eq!(event["room_id"], room_id.as_str(), "{event}");
    }
    assert_eq!(of_type(&found, "org.example.y")[0]["content"], json!({ "b": 2 }));

    // One who begins finds it, too.
    let snapshot = ann.get("/initialSync").await.ok();
    let presence = of_type(&snapshot["presence"], "m.presence");
    assert!(presence.iter().any(|event| event["sender"] == bob.user_id.as_str()), "{snapshot}");
    assert_eq!(snapshot["receipts"][0]["room_id"], room_id.as_str());
    let of_room = room(&snapshot, &room_id).unwrap();
    assert_eq!(of_room["typing"]["content"]["user_ids"], json!([bob.user_id]));
    let one = ann.get_room(&room_id, "/initialSync").await.ok();
    assert!(one["receipts"][0]["content"].get(&event_id).is_some(), "{one}");
    assert!(!of_type(&one["presence"], "m.presence").is_empty(), "{one}");

    // One who is not in the room learns nothing of it.
    let cas = user(&server, "cas").await;
    let snapshot = cas.get("/initialSync").await.ok();
    assert_eq!((&snapshot["receipts"], &snapshot["rooms"]), (&json!([]), &json!([])));
    let of_others = of_type(&snapshot["presence"], "m.presence");
    assert!(of_others.iter().all(|event| event["sender"] == cas.user_id.as_str()), "{snapshot}");
}

#[tokio::test]
async fn events_without_a_timeout_are_not_waited_for() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let from = next_batch_of(&ann).await;
    let path = format!("/events?from={}", encode(&from));
    let asked = ann.get(&path);
    let news = tokio::time::timeout(Duration::from_secs(10), asked).await.expect("at once").ok();
    assert!(news["end"].is_string() && news["chunk"].is_array(), "{news}");
}

#[tokio::test]
async fn a_world_readable_room_is_peeked_into() {
    let server = without_presence().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let visibility = |to: &str| json!({ "history_visibility": to });
    let room_id = ann
        .create_room(json!({
            "initial_state": [{ "type": "m.room.history_visibility",
                                "content": visibility("world_readable") }],
        }))
        .await;
    ann.send_text(&room_id, "1", "hello").await;
    let peek = bob.get_room(&room_id, "/initialSync").await.ok();
    assert!(peek.get("membership").is_none(), "{peek}");
    assert_eq!(texts(&peek["messages"]["chunk"]), ["hello"]);
    let from = string(&peek["messages"], "end");
    let more = format!("&room_id={}", encode(&room_id));
    let waiting = {
        let (bob, from, more) = (bob.clone(), from.clone(), more.clone());
        tokio::spawn(async move { events(&bob, &from, 60_000, &more).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    ann.send_text(&room_id, "2", "and more").await;
    let news = waiting.await.expect("no panic");
    assert_eq!(texts(&news["chunk"]), ["and more"]);
    // Without naming the room it is none of theirs.
    assert_eq!(events(&bob, &from, 0, "").await["chunk"], json!([]));
    let closed = visibility("shared");
    ann.set_state(&room_id, "m.room.history_visibility", "", &closed).await.ok();
    let path = format!("/events?from={from}{more}");
    bob.get(&path).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn one_event_is_found_without_its_room() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({})).await;
    let event_id = ann.send_text(&room_id, "1", "hello").await;
    let path = format!("/events/{}", encode(&event_id));
    let event = ann.get(&path).await.ok();
    assert_eq!((&event["content"]["body"], &event["room_id"]), (&json!("hello"), &json!(room_id)));
    bob.get(&path).await.refused(404, "M_NOT_FOUND");
    ann.get("/events/%24nothing").await.refused(404, "M_NOT_FOUND");
    ann.get("/events/nonsense").await.refused(400, "M_INVALID_PARAM");
}
