//! The event closest to a moment. What clocks that run backward do to it is in `tests/finding.rs`.

use serde_json::{Value, json};

use super::{anonymous, server, user};
use crate::harness::{Answer, User, encode};

async fn closest(user: &User, room_id: &str, ts: u64, dir: &str) -> Answer {
    let path = format!(
        "/_matrix/client/v1/rooms/{}/timestamp_to_event?ts={ts}&dir={dir}",
        encode(room_id)
    );
    user.http.request("GET", &path, Some(&user.access_token), None).await
}

async fn sent_at(user: &User, room_id: &str, event_id: &str) -> u64 {
    let event = user.get_room(room_id, &format!("/event/{}", encode(event_id))).await.ok();
    event["origin_server_ts"].as_u64().unwrap_or_default()
}

/// Sends a text in a millisecond of its own; gives its id and time.
async fn text(user: &User, room_id: &str, name: &str) -> (String, u64) {
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let event_id = user.send_text(room_id, name, name).await;
    let ts = sent_at(user, room_id, &event_id).await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    (event_id, ts)
}

#[tokio::test]
async fn the_closest_event_is_found_in_either_direction() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let (first, at_first) = text(&ann, &room_id, "1").await;
    let (second, at_second) = text(&ann, &room_id, "2").await;
    let is = |event_id: &str, ts: u64| json!({ "event_id": event_id, "origin_server_ts": ts });
    for (ts, dir, expected) in [
        (at_first, "f", is(&first, at_first)),
        (at_first, "b", is(&first, at_first)),
        (at_first + 1, "f", is(&second, at_second)),
        (at_second - 1, "b", is(&first, at_first)),
        (u64::from(u32::MAX) * 100_000, "b", is(&second, at_second)),
    ] {
        assert_eq!(closest(&ann, &room_id, ts, dir).await.ok(), expected, "{ts} {dir}");
    }
    let create = closest(&ann, &room_id, 0, "f").await.ok_string("event_id");
    let create = ann.get_room(&room_id, &format!("/event/{}", encode(&create))).await.ok();
    assert_eq!(create["type"], "m.room.create");
    closest(&ann, &room_id, 0, "b").await.refused(404, "M_NOT_FOUND");
    closest(&ann, &room_id, at_second + 1, "f").await.refused(404, "M_NOT_FOUND");
    closest(&ann, "!none:e2e.test", 0, "f").await.refused(403, "M_FORBIDDEN");
    closest(&ann, &room_id, 0, "x").await.refused(400, "M_INVALID_PARAM");
    let bare = format!("/_matrix/client/v1/rooms/{}/timestamp_to_event", encode(&room_id));
    let answer = ann.http.request("GET", &bare, Some(&ann.access_token), None).await;
    answer.refused(400, "M_MISSING_PARAM");
    ann.http
        .request("GET", &format!("{bare}?ts=1&dir=f"), None, None)
        .await
        .refused(401, "M_MISSING_TOKEN");
    let unstable = bare.replace("/v1/", "/unstable/org.matrix.msc3030/");
    let path = format!("{unstable}?ts={at_first}&dir=f");
    let answer = ann.http.request("GET", &path, Some(&ann.access_token), None).await;
    assert_eq!(answer.ok_string("event_id"), first);
}

#[tokio::test]
async fn what_one_may_not_see_is_passed_over() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann
        .create_room(json!({
            "preset": "public_chat",
            "initial_state": [{ "type": "m.room.history_visibility",
                                "content": { "history_visibility": "joined" } }],
        }))
        .await;
    let (_, before) = text(&ann, &room_id, "before").await;
    closest(&bob, &room_id, before, "f").await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    let (seen, at_seen) = text(&ann, &room_id, "seen").await;
    bob.act(&room_id, "leave", None).await.ok();
    let (_, after) = text(&ann, &room_id, "after").await;
    let event = async |answer: Answer| -> Value {
        let event_id = answer.ok_string("event_id");
        bob.get_room(&room_id, &format!("/event/{}", encode(&event_id))).await.ok()
    };
    let joined = event(closest(&bob, &room_id, before, "f").await).await;
    assert_eq!(joined["content"]["membership"], "join");
    let left = event(closest(&bob, &room_id, after, "b").await).await;
    assert_eq!(left["content"]["membership"], "leave");
    assert_eq!(closest(&bob, &room_id, at_seen, "b").await.ok_string("event_id"), seen);
    // What was there before the room said who sees its history, everyone in it sees.
    let early = event(closest(&bob, &room_id, before, "b").await).await;
    assert_ne!(early["type"], "m.room.message");
    closest(&bob, &room_id, after, "f").await.refused(404, "M_NOT_FOUND");
    anonymous(&server.http(), "GET", "/events", None).await.refused(401, "M_MISSING_TOKEN");
}
