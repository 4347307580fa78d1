//! Filters: uploaded and used by id, or given inline.

use serde_json::{Value, json};

use super::{each, server, texts, user};
use crate::harness::{Answer, User, encode};

async fn upload(user: &User, of: &User, filter: &Value) -> Answer {
    user.post(&format!("/user/{}/filter", encode(&of.user_id)), filter.clone()).await
}

#[tokio::test]
async fn a_filter_is_given_back_as_it_was_uploaded() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let filter = json!({
        "event_fields": ["content.body"], "event_format": "client",
        "room": { "timeline": { "limit": 3 }, "org.example.unknown": [1] },
    });
    let id = upload(&ann, &ann, &filter).await.ok_string("filter_id");
    assert!(!id.starts_with('{'));
    let path = format!("/user/{}/filter/{id}", encode(&ann.user_id));
    assert_eq!(ann.get(&path).await.ok(), filter);
    bob.get(&path).await.refused(403, "M_FORBIDDEN");
    upload(&bob, &ann, &filter).await.refused(403, "M_FORBIDDEN");
    let unknown = format!("/user/{}/filter/none", encode(&ann.user_id));
    ann.get(&unknown).await.refused(404, "M_NOT_FOUND");
    upload(&ann, &ann, &json!({ "room": 3 })).await.refused(400, "M_BAD_JSON");
    let sync = ann.get("/sync?filter=none").await;
    assert_eq!(sync.status, 400, "{sync}");
    ann.get("/sync?filter=%7Bnonsense").await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_filter_works_the_same_inline_and_by_id() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (one, two) = (ann.create_room(json!({})).await, ann.create_room(json!({})).await);
    for room_id in [&one, &two] {
        ann.send_text(room_id, "1", "one").await;
        ann.send(room_id, "org.example.x", "2", &json!({ "body": "two" })).await.ok();
    }
    for (filter, rooms, expected) in [
        (json!({ "room": { "rooms": [one] } }), vec![&one], vec!["one", "two"]),
        (json!({ "room": { "not_rooms": [one] } }), vec![&two], vec!["one", "two"]),
        (json!({ "room": { "rooms": [one], "not_rooms": [one] } }), vec![], vec![]),
        (
            json!({ "room": { "rooms": [one], "timeline": { "types": ["org.*"] } } }),
            vec![&one],
            vec!["two"],
        ),
        (
            json!({ "room": { "rooms": [one], "timeline": { "not_types": ["org.*"], "limit": 1 } } }),
            vec![&one],
            vec!["one"],
        ),
        (
            json!({ "room": { "rooms": [one], "timeline": { "not_senders": [ann.user_id] } } }),
            vec![&one],
            vec![],
        ),
        (
            json!({ "room": { "rooms": [one, two], "timeline": { "rooms": [two], "limit": 2 },
                              "state": { "types": [] } } }),
            vec![&one, &two],
            vec!["one", "two"],
        ),
    ] {
        let id = upload(&ann, &ann, &filter).await.ok_string("filter_id");
        for given in [filter.to_string(), id] {
            let sync = ann.sync(None, 0, Some(&given)).await;
            let joined = sync["rooms"]["join"].as_object().cloned().unwrap_or_default();
            let mut wanted: Vec<&String> = rooms.clone();
            wanted.sort();
            assert_eq!(joined.keys().collect::<Vec<_>>(), wanted, "{filter}");
            let seen: Vec<String> =
                joined.values().flat_map(|room| texts(&room["timeline"]["events"])).collect();
            assert_eq!(seen, expected, "{filter}");
        }
    }
}

#[tokio::test]
async fn state_that_the_timelines_filter_leaves_out_is_not_lost() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let since = ann.here().await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "x" })).await.ok();
    ann.send_text(&room_id, "1", "one").await;
    let filter = r#"{"room":{"timeline":{"types":["m.room.message"]}}}"#;
    let sync = ann.sync(Some(&since), 0, Some(filter)).await;
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(texts(&room["timeline"]["events"]), ["one"]);
    assert_eq!(each(&room["state"]["events"], "/content/name"), ["x"]);
}

#[tokio::test]
async fn account_data_state_and_ephemeral_events_are_filtered() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let me = format!("/user/{}", encode(&ann.user_id));
    for kind in ["org.example.a", "org.example.b"] {
        ann.put(&format!("{me}/account_data/{kind}"), json!({})).await.ok();
        let path = format!("{me}/rooms/{}/account_data/{kind}", encode(&room_id));
        ann.put(&path, json!({})).await.ok();
    }
    let event_id = bob.send_text(&room_id, "1", "x").await;
    let room = format!("/rooms/{}", encode(&room_id));
    bob.post(&format!("{room}/receipt/m.read/{}", encode(&event_id)), json!({})).await.ok();
    let typing = json!({ "typing": true, "timeout": 30_000 });
    bob.put(&format!("{room}/typing/{}", encode(&bob.user_id)), typing).await.ok();
    let filter = json!({
        "account_data": { "types": ["org.example.a"] },
        "room": {
            "account_data": { "not_types": ["*.a"] },
            "state": { "types": ["m.room.create"] },
            "timeline": { "limit": 0 },
            "ephemeral": { "types": ["m.receipt"] },
        },
    });
    let sync = ann.sync(None, 0, Some(&filter.to_string())).await;
    assert_eq!(each(&sync["account_data"]["events"], "/type"), ["org.example.a"]);
    let joined = &sync["rooms"]["join"][&room_id];
    assert_eq!(each(&joined["account_data"]["events"], "/type"), ["org.example.b"]);
    assert_eq!(each(&joined["state"]["events"], "/type"), ["m.room.create"]);
    assert_eq!(each(&joined["ephemeral"]["events"], "/type"), ["m.receipt"]);
    // A part can leave out single rooms as well.
    let filter = json!({ "room": {
        "account_data": { "not_rooms": [room_id] },
        "ephemeral": { "rooms": [] },
    }});
    let sync = ann.sync(None, 0, Some(&filter.to_string())).await;
    let joined = &sync["rooms"]["join"][&room_id];
    assert_eq!(joined["account_data"]["events"], json!([]));
    assert_eq!(joined["ephemeral"]["events"], json!([]));
}

#[tokio::test]
async fn what_a_filter_leaves_out_does_not_end_a_wait() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let since = bob.here().await;
    let filter = json!({ "room": { "ephemeral": { "types": [] }, "timeline": {
        "not_types": ["org.*"] } } });
    let waiting = {
        let (bob, since, filter) = (bob.clone(), since.clone(), filter.to_string());
        tokio::spawn(async move { bob.sync(Some(&since), 10_000, Some(&filter)).await })
    };
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    ann.send(&room_id, "org.example.x", "1", &json!({})).await.ok();
    let typing = json!({ "typing": true, "timeout": 30_000 });
    let path = format!("/rooms/{}/typing/{}", encode(&room_id), encode(&ann.user_id));
    ann.put(&path, typing).await.ok();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    ann.send_text(&room_id, "2", "news").await;
    let sync = waiting.await.expect("a waiting sync does not panic");
    assert_eq!(texts(&sync["rooms"]["join"][&room_id]["timeline"]["events"]), ["news"]);
}
