//! Receipts, read markers and typing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{each, next_batch, server, user};
use crate::harness::{Answer, TestServer, User, encode};

async fn room_of_two(ann: &User, bob: &User) -> String {
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    room_id
}

async fn receipt(user: &User, room_id: &str, kind: &str, event_id: &str, body: Value) -> Answer {
    let path = format!("/rooms/{}/receipt/{kind}/{}", encode(room_id), encode(event_id));
    user.post(&path, body).await
}

async fn typing(user: &User, room_id: &str, of: &User, body: Value) -> Answer {
    let path = format!("/rooms/{}/typing/{}", encode(room_id), encode(&of.user_id));
    user.put(&path, body).await
}

/// The content of an ephemeral event of a room; null if there is none.
fn ephemeral(sync: &Value, room_id: &str, kind: &str) -> Value {
    let events = sync["rooms"]["join"][room_id]["ephemeral"]["events"].as_array();
    let found = events.and_then(|events| events.iter().find(|event| event["type"] == kind));
    found.map_or(Value::Null, |event| event["content"].clone())
}

#[tokio::test]
async fn a_receipt_is_seen_by_all_and_a_private_one_by_its_owner_alone() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    let (of_ann, of_bob) = (ann.here().await, bob.here().await);
    receipt(&bob, &room_id, "m.read.private", &event_id, json!({})).await.ok();
    let own = ephemeral(&bob.news(&of_bob).await, &room_id, "m.receipt");
    assert!(own[&event_id]["m.read.private"][&bob.user_id]["ts"].is_u64(), "{own}");
    for sync in [ann.news(&of_ann).await, ann.sync(None, 0, None).await] {
        assert_eq!(ephemeral(&sync, &room_id, "m.receipt"), Value::Null);
    }
    receipt(&bob, &room_id, "m.read", &event_id, json!({})).await.ok();
    for sync in [ann.news(&of_ann).await, ann.sync(None, 0, None).await] {
        let seen = ephemeral(&sync, &room_id, "m.receipt");
        assert!(seen[&event_id]["m.read"][&bob.user_id]["ts"].is_u64(), "{seen}");
        assert!(!seen.to_string().contains("private"), "{seen}");
    }
}

#[tokio::test]
async fn a_receipt_moves_forward_alone() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let (one, two) =
        (ann.send_text(&room_id, "1", "x").await, ann.send_text(&room_id, "2", "x").await);
    receipt(&bob, &room_id, "m.read", &two, json!({})).await.ok();
    let since = next_batch(&ann.sync(None, 0, None).await);
    receipt(&bob, &room_id, "m.read", &one, json!({})).await.ok();
    assert_eq!(ephemeral(&ann.news(&since).await, &room_id, "m.receipt"), Value::Null);
    // A thread has receipts of its own.
    receipt(&bob, &room_id, "m.read", &one, json!({ "thread_id": "main" })).await.ok();
    let seen = ephemeral(&ann.news(&since).await, &room_id, "m.receipt");
    assert_eq!(seen[&one]["m.read"][&bob.user_id]["thread_id"], "main", "{seen}");
}

#[tokio::test]
async fn receipts_point_at_events_of_ones_own_room() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    receipt(&bob, &room_id, "m.read", &event_id, json!({})).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    receipt(&bob, &room_id, "m.read", "$none", json!({})).await.refused(404, "M_NOT_FOUND");
    let unknown = receipt(&bob, &room_id, "m.unknown", &event_id, json!({})).await;
    unknown.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn read_markers_set_all_three_at_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    let since = bob.here().await;
    let path = format!("/rooms/{}/read_markers", encode(&room_id));
    let markers = json!({
        "m.fully_read": event_id, "m.read": event_id, "m.read.private": event_id,
    });
    bob.post(&path, markers).await.ok();
    let sync = bob.news(&since).await;
    let receipts = ephemeral(&sync, &room_id, "m.receipt");
    assert!(receipts[&event_id]["m.read"][&bob.user_id].is_object(), "{receipts}");
    assert!(receipts[&event_id]["m.read.private"][&bob.user_id].is_object(), "{receipts}");
    let data = &sync["rooms"]["join"][&room_id]["account_data"]["events"];
    assert_eq!(data, &json!([{ "type": "m.fully_read", "content": { "event_id": event_id } }]));
    receipt(&bob, &room_id, "m.fully_read", &event_id, json!({})).await.ok();
}

#[tokio::test]
async fn typing_begins_ends_and_expires() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let mut since = next_batch(&bob.sync(None, 0, None).await);
    let typists = |sync: &Value| ephemeral(sync, &room_id, "m.typing")["user_ids"].clone();
    for (body, expected) in [
        (json!({ "typing": true, "timeout": 30_000 }), json!([ann.user_id])),
        (json!({ "typing": false }), json!([])),
        (json!({ "typing": true }), json!([ann.user_id])),
        (json!({ "typing": true, "timeout": 300 }), json!([ann.user_id])),
    ] {
        typing(&ann, &room_id, &ann, body).await.ok();
        let sync = bob.news(&since).await;
        assert_eq!(typists(&sync), expected);
        since = next_batch(&sync);
    }
    let began = Instant::now();
    let sync = bob.sync(Some(&since), 10_000, None).await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(typists(&sync), json!([]));
    // One who leaves does not type on.
    typing(&ann, &room_id, &ann, json!({ "typing": true, "timeout": 30_000 })).await.ok();
    since = next_batch(&bob.news(&next_batch(&sync)).await);
    ann.act(&room_id, "leave", None).await.ok();
    assert_eq!(typists(&bob.news(&since).await), json!([]));
}

#[tokio::test]
async fn nobody_types_for_another_or_where_they_are_not() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let body = json!({ "typing": true, "timeout": 1000 });
    typing(&bob, &room_id, &bob, body.clone()).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    typing(&bob, &room_id, &ann, body).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn one_who_joins_sees_the_receipts_there_are() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    receipt(&ann, &room_id, "m.read", &event_id, json!({})).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    bob.join(&room_id).await.ok();
    let seen = ephemeral(&bob.news(&since).await, &room_id, "m.receipt");
    assert!(seen[&event_id]["m.read"][&ann.user_id].is_object(), "{seen}");
}

#[tokio::test]
async fn receipts_outlive_a_restart_and_typing_does_not_outlive_its_time() {
    let mut server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    receipt(&ann, &room_id, "m.read", &event_id, json!({})).await.ok();
    typing(&ann, &room_id, &ann, json!({ "typing": true, "timeout": 1500 })).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    server.restart().await;
    let bob = User { http: server.http(), ..bob };
    // Those who saw it begin see it end.
    let sync = bob.sync(Some(&since), 10_000, None).await;
    assert_eq!(ephemeral(&sync, &room_id, "m.typing")["user_ids"], json!([]), "{sync}");
    let sync = bob.sync(None, 0, None).await;
    let kinds = each(&sync["rooms"]["join"][&room_id]["ephemeral"]["events"], "/type");
    assert_eq!(kinds, ["m.receipt"]);
}

#[tokio::test]
async fn typing_and_receipts_wake_those_in_the_room_alone() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let room_id = room_of_two(&ann, &bob).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    let since = cas.here().await;
    let stranger = tokio::spawn(async move { cas.sync(Some(&since), 600, None).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    typing(&ann, &room_id, &ann, json!({ "typing": true, "timeout": 30_000 })).await.ok();
    receipt(&bob, &room_id, "m.read", &event_id, json!({})).await.ok();
    assert!(!stranger.is_finished());
    let sync = stranger.await.expect("a waiting sync does not panic");
    assert_eq!(sync["rooms"]["join"], json!({}));
}
