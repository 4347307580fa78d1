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

/// The event of the user's fully-read marker.
async fn marker(user: &User, room_id: &str) -> String {
    let sync = user.get("/sync").await.ok();
    let data = &sync["rooms"]["join"][room_id]["account_data"]["events"];
    let of = |event: &&Value| event["type"] == "m.fully_read";
    let marker = data.as_array().expect("events").iter().find(of).expect("a marker");
    super::string(&marker["content"], "event_id")
}

#[tokio::test]
async fn a_read_marker_moves_backward_only_when_asked() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let mut events = Vec::new();
    for number in ["1", "2", "3"] {
        events.push(ann.send_text(&room_id, number, number).await);
    }
    let room = format!("/rooms/{}", encode(&room_id));
    let markers = format!("{room}/read_markers");
    let receipt = |of: &str, event: &str| format!("{room}/receipt/{of}/{}", encode(event));
    ann.post(&markers, json!({ "m.fully_read": events[2], "m.read": events[2] })).await.ok();
    ann.post(&markers, json!({ "m.fully_read": events[0] })).await.ok();
    ann.post(&receipt("m.fully_read", &events[0]), json!({ "allow_backward": false })).await.ok();
    assert_eq!(marker(&ann, &room_id).await, events[2]);
    let back = json!({ "m.fully_read": events[0], "m.read": events[0], "allow_backward": true });
    ann.post(&markers, back).await.ok();
    assert_eq!(marker(&ann, &room_id).await, events[0]);
    // Receipts only move forward.
    let sync = ann.get("/sync").await.ok();
    let read = &sync["rooms"]["join"][&room_id]["ephemeral"]["events"][0]["content"];
    assert!(read.get(&events[2]).is_some(), "{read}");
    let back = json!({ "com.beeper.allow_backward": true });
    for of in ["m.read", "m.read.private"] {
        let answer = ann.post(&receipt(of, &events[1]), back.clone()).await;
        answer.refused(400, "M_INVALID_PARAM");
    }
    ann.post(&markers, json!({ "m.fully_read": events[2] })).await.ok();
    ann.post(&receipt("m.fully_read", &events[1]), back).await.ok();
    assert_eq!(marker(&ann, &room_id).await, events[1]);
    ann.post(&markers, json!({ "allow_backward": 1 })).await.refused(400, "M_BAD_JSON");
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
        // To go on is no news; when it ends is.
        (json!({ "typing": true, "timeout": 300 }), Value::Null),
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
async fn receipts_and_typing_of_ignored_users_are_not_sent() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let eve = user(&server, "eve").await;
    let room_id = room_of_two(&ann, &bob).await;
    eve.join(&room_id).await.ok();
    let ignored = format!("/user/{}/account_data/m.ignored_user_list", encode(&bob.user_id));
    bob.put(&ignored, json!({ "ignored_users": { &eve.user_id: {} } })).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    let event_id = ann.send_text(&room_id, "1", "x").await;
    for who in [&ann, &eve] {
        receipt(who, &room_id, "m.read", &event_id, json!({})).await.ok();
        typing(who, &room_id, who, json!({ "typing": true, "timeout": 30_000 })).await.ok();
    }
    for sync in [bob.news(&since).await, bob.sync(None, 0, None).await] {
        let receipts = ephemeral(&sync, &room_id, "m.receipt");
        let of = receipts[&event_id]["m.read"].as_object().expect("receipts");
        assert_eq!(of.keys().collect::<Vec<_>>(), [&ann.user_id], "{receipts}");
        assert_eq!(ephemeral(&sync, &room_id, "m.typing")["user_ids"], json!([ann.user_id]));
    }
    let extensions = json!({ "receipts": { "enabled": true }, "typing": { "enabled": true } });
    let list = json!({ "ranges": [[0, 9]], "timeline_limit": 1, "required_state": [] });
    let body = json!({ "lists": { "all": list }, "extensions": extensions });
    let sliding = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync";
    let bearer = format!("Bearer {}", bob.access_token);
    let answer =
        bob.http.raw("POST", sliding, &[("authorization", &bearer)], body.to_string()).await;
    let text = answer.json().ok()["extensions"].to_string();
    assert!(text.contains(&ann.user_id) && !text.contains(&eve.user_id), "{text}");
    // That they begin wakes nobody.
    typing(&eve, &room_id, &eve, json!({ "typing": false })).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    typing(&eve, &room_id, &eve, json!({ "typing": true, "timeout": 30_000 })).await.ok();
    let sync = bob.sync(Some(&since), 0, None).await;
    assert_eq!(sync["rooms"]["join"][&room_id], Value::Null, "{sync}");
    // When nobody else types, nobody does.
    typing(&ann, &room_id, &ann, json!({ "typing": false })).await.ok();
    let sync = bob.sync(None, 0, None).await;
    assert_eq!(ephemeral(&sync, &room_id, "m.typing"), Value::Null, "{sync}");
    assert!(eve.sync(None, 0, None).await.to_string().contains("m.typing"));
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

#[tokio::test]
async fn continued_typing_wakes_nobody_and_extends_the_timeout() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let body = |timeout: u64| json!({ "typing": true, "timeout": timeout });
    typing(&ann, &room_id, &ann, body(1000)).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    let waiting = {
        let (bob, since) = (bob.clone(), since.clone());
        tokio::spawn(async move { bob.sync(Some(&since), 1500, None).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    typing(&ann, &room_id, &ann, body(30_000)).await.ok();
    // Past the time at which it would have ended.
    let sync = waiting.await.expect("a waiting sync does not panic");
    assert_eq!(sync["rooms"]["join"], json!({}));
    let sync = bob.sync(None, 0, None).await;
    assert_eq!(ephemeral(&sync, &room_id, "m.typing")["user_ids"], json!([ann.user_id]));
}

#[tokio::test]
async fn what_moves_no_receipt_is_not_even_recorded() {
    let server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let (one, two) =
        (ann.send_text(&room_id, "1", "x").await, ann.send_text(&room_id, "2", "x").await);
    let markers = format!("/rooms/{}/read_markers", encode(&room_id));
    let all = |id: &str| json!({ "m.fully_read": id, "m.read": id, "m.read.private": id });
    ann.post(&markers, all(&two)).await.ok();
    let before = ann.here().await;
    for event_id in [&two, &one] {
        ann.post(&markers, all(event_id)).await.ok();
        for kind in ["m.read", "m.read.private", "m.fully_read"] {
            receipt(&ann, &room_id, kind, event_id, json!({})).await.ok();
        }
    }
    assert_eq!(ann.here().await, before, "a position of the log for each record");
    let sync = ann.sync(None, 0, None).await;
    let data = &sync["rooms"]["join"][&room_id]["account_data"]["events"];
    assert_eq!(data, &json!([{ "type": "m.fully_read", "content": { "event_id": two } }]));
    let unknown = json!({ "m.fully_read": "$none" });
    ann.post(&markers, unknown).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn a_threaded_receipt_is_for_events_of_its_thread() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let root = ann.send_text(&room_id, "1", "root").await;
    let other = ann.send_text(&room_id, "2", "other").await;
    let reply = json!({
        "msgtype": "m.text", "body": "in the thread",
        "m.relates_to": { "rel_type": "m.thread", "event_id": root },
    });
    let reply = ann.send(&room_id, "m.room.message", "3", &reply).await.ok_string("event_id");
    let reaction = json!({
        "m.relates_to": { "rel_type": "m.annotation", "event_id": reply, "key": "+1" },
    });
    let reaction = ann.send(&room_id, "m.reaction", "4", &reaction).await.ok_string("event_id");
    let thread = |id: &str| json!({ "thread_id": id });
    for (event, of) in [
        (&root, root.as_str()),
        (&root, "main"),
        (&other, "main"),
        (&reply, &root),
        (&reaction, &root),
    ] {
        receipt(&ann, &room_id, "m.read", event, thread(of)).await.ok();
    }
    for (event, of) in
        [(&reply, "main"), (&reaction, "main"), (&other, root.as_str()), (&reply, &other)]
    {
        let refused = receipt(&ann, &room_id, "m.read", event, thread(of)).await;
        refused.refused(400, "M_INVALID_PARAM");
    }
    let marker = receipt(&ann, &room_id, "m.fully_read", &other, thread("main")).await;
    marker.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn the_receipts_of_a_large_room_come_together() {
    crate::harness::nodes::one_server!("each node gathers receipts by itself");
    let settings =
        [("LOGCABIN_RECEIPTS_GATHER_MEMBERS", "6"), ("LOGCABIN_RECEIPTS_GATHER_MS", "400")];
    let mut server = TestServer::start_with(&settings).await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let mut others = Vec::new();
    for number in 0..5 {
        let other = user(&server, &format!("u{number}")).await;
        other.join(&room_id).await.ok();
        others.push(other);
    }
    let event_id = ann.send_text(&room_id, "1", "x").await;
    let since = ann.here().await;
    let waiting = {
        let (ann, since) = (ann.clone(), since.clone());
        tokio::spawn(async move { ann.sync(Some(&since), 30_000, None).await })
    };
    let mut sent = tokio::task::JoinSet::new();
    for other in others.clone() {
        let (room_id, event_id) = (room_id.clone(), event_id.clone());
        sent.spawn(async move {
            receipt(&other, &room_id, "m.read", &event_id, json!({})).await.ok();
            // Of one's own in one turn, the furthest is kept.
            receipt(&other, &room_id, "m.read.private", &event_id, json!({})).await.ok();
        });
    }
    let sync = waiting.await.expect("a waiting sync does not panic");
    let seen = ephemeral(&sync, &room_id, "m.receipt");
    let readers = seen[&event_id]["m.read"].as_object().map_or(0, serde_json::Map::len);
    assert_eq!(readers, others.len(), "one wake with all of them: {seen}");
    assert!(!seen.to_string().contains("private"), "{seen}");
    while let Some(done) = sent.join_next().await {
        done.expect("no request panics");
    }
    // All of it is there after a restart, too, and each sees their own private one alone.
    server.restart().await;
    for other in &others {
        let other = User { http: server.http(), ..other.clone() };
        let seen = ephemeral(&other.sync(None, 0, None).await, &room_id, "m.receipt");
        assert_eq!(seen[&event_id]["m.read"].as_object().map_or(0, serde_json::Map::len), 5);
        let private = seen[&event_id]["m.read.private"].as_object();
        assert_eq!(private.map(|p| p.keys().collect::<Vec<_>>()), Some(vec![&other.user_id]));
    }
}

/// The users whose receipt an event of receipts has, of all events and types.
fn receipts_of(content: &Value) -> Vec<String> {
    let events = content.as_object().into_iter().flatten();
    let types = events.flat_map(|(_, types)| types.as_object().into_iter().flatten());
    let users = types.flat_map(|(_, users)| users.as_object().into_iter().flatten());
    users.map(|(user_id, _)| user_id.clone()).collect()
}

#[tokio::test]
async fn an_initial_sync_has_all_own_receipts_and_the_newest_of_others() {
    // More than `RECEIPTS_OF_OTHERS`.
    const THREADS: usize = 120;
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let mut roots = Vec::new();
    let before = ann.here().await;
    for n in 0..THREADS {
        let root = ann.send_text(&room_id, &n.to_string(), "x").await;
        receipt(&bob, &room_id, "m.read", &root, json!({ "thread_id": root })).await.ok();
        roots.push(root);
    }
    // Own ones and those of others, of both kinds of sync, from the beginning and across a gap.
    for (user, expected) in [(&ann, 100), (&bob, THREADS)] {
        for since in [None, Some(&*before)] {
            let sync = user.sync(since, 0, None).await;
            let seen = ephemeral(&sync, &room_id, "m.receipt");
            assert_eq!(receipts_of(&seen), vec![bob.user_id.clone(); expected]);
            assert!(roots[THREADS - expected..].iter().all(|root| !seen[root].is_null()), "{seen}");
        }
        let asked = json!({
            "lists": {
                "all": { "ranges": [[0, 9]], "required_state": [], "timeline_limit": 1 },
            },
            "extensions": { "receipts": { "enabled": true } },
        });
        let path = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync";
        let token = Some(user.access_token.as_str());
        let answer = user.http.request("POST", path, token, Some(&asked)).await.ok();
        let seen = &answer["extensions"]["receipts"]["rooms"][&room_id]["content"];
        assert_eq!(receipts_of(seen), vec![bob.user_id.clone(); expected]);
    }
}

#[tokio::test]
async fn in_a_large_room_typing_wakes_those_who_wait_at_most_once_a_second() {
    let settings =
        [("LOGCABIN_RECEIPTS_GATHER_MEMBERS", "2"), ("LOGCABIN_RECEIPTS_GATHER_MS", "0")];
    let directory = tempfile::tempdir().expect("a temporary directory");
    // Each node of a cluster has its own waves.
    let server = TestServer::start_alone_with(&directory.path().join("data"), &settings).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let mut since = next_batch(&bob.sync(None, 0, None).await);
    let began = Instant::now();
    let toggle = async {
        let mut changes = 0;
        while changes < 20 || began.elapsed() < Duration::from_secs(1) {
            let body = json!({ "typing": changes % 2 == 0, "timeout": 30_000 });
            typing(&ann, &room_id, &ann, body).await.ok();
            changes += 1;
            // Until now each change was told: bob has the time to ask again.
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        typing(&ann, &room_id, &ann, json!({ "typing": false })).await.ok();
        typing(&ann, &room_id, &ann, json!({ "typing": true, "timeout": 30_000 })).await.ok();
        changes
    };
    let wait = async {
        let mut told = Vec::new();
        // He is told of the last change, too: ann types on.
        while began.elapsed() < Duration::from_secs(4) {
            let sync = bob.sync(Some(&since), 500, None).await;
            since = next_batch(&sync);
            let users = ephemeral(&sync, &room_id, "m.typing")["user_ids"].clone();
            told.extend((!users.is_null()).then_some(users));
        }
        told
    };
    let (changes, told) = tokio::join!(toggle, wait);
    let waves = usize::try_from(began.elapsed().as_secs()).unwrap_or(usize::MAX);
    assert!(told.len() <= waves + 1, "{} answers for {changes} changes: {told:?}", told.len());
    assert_eq!(told.first(), Some(&json!([ann.user_id])), "the first at once");
    assert_eq!(told.last(), Some(&json!([ann.user_id])), "and the last");
}
