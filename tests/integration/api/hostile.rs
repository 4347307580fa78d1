//! What a client may try that means no good, or knows no measure.

use std::collections::HashSet;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Direction, encode};

#[tokio::test]
async fn a_chain_of_redactions_has_an_end() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let first = ann.send_text(&room_id, "first", "nothing lasts").await;
    let mut target = first.clone();
    for number in 0..60 {
        let path = format!("/rooms/{}/redact/{}/r{number}", encode(&room_id), encode(&target));
        target = ann.put(&path, json!({})).await.ok_string("event_id");
    }
    let event = ann.get_room(&room_id, &format!("/event/{}", encode(&first))).await.ok();
    let because = &event["unsigned"]["redacted_because"];
    assert_eq!(because["type"], "m.room.redaction");
    assert_eq!(because["unsigned"].get("redacted_because"), None, "{because}");
    let page = ann.messages(&room_id, None, None, Direction::Back, 100).await;
    assert!(page.to_string().len() < 200_000, "{} bytes", page.to_string().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rooms_named_after_their_first_event_are_as_many_as_were_made() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let rooms = join_all((0..12).map(|_| ann.create_room(json!({ "room_version": "12" })))).await;
    assert_eq!(rooms.iter().collect::<HashSet<_>>().len(), rooms.len(), "{rooms:?}");
    for room_id in &rooms {
        ann.send_text(room_id, "t", "mine").await;
        let page = ann.messages(room_id, None, None, Direction::Back, 100).await;
        let creates = page["chunk"].as_array().into_iter().flatten();
        let creates = creates.filter(|event| event["type"] == "m.room.create").count();
        assert_eq!(creates, 1, "{room_id}: {page}");
    }
}

#[tokio::test]
async fn a_room_cannot_be_made_with_any_amount_of_state() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let state: Vec<_> = (0..600)
        .map(|number| json!({ "type": "org.test", "state_key": number.to_string(), "content": {} }))
        .collect();
    ann.post("/createRoom", json!({ "initial_state": state })).await.refused(413, "M_TOO_LARGE");
    ann.post("/createRoom", json!({ "initial_state": state[..100] })).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_of_the_largest_messages_at_once_are_all_taken() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let content = json!({ "msgtype": "m.text", "body": "x".repeat(64_000) });
    let sends = (0..120).map(|number| {
        let (ann, room_id, content) = (&ann, &room_id, &content);
        async move { ann.send(room_id, "m.room.message", &format!("big{number}"), content).await }
    });
    for answer in join_all(sends).await {
        let _: Value = answer.ok();
    }
}

#[tokio::test]
async fn a_thread_of_a_receipt_is_a_thread() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let event_id = ann.send_text(&room_id, "t", "read me").await;
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&event_id));
    let junk = json!({ "thread_id": "x".repeat(10_000) });
    ann.post(&path, junk).await.refused(400, "M_INVALID_PARAM");
    ann.post(&path, json!({ "thread_id": "main" })).await.ok();
    ann.post(&path, json!({ "thread_id": event_id })).await.ok();
}
