//! Reports, and what an operator sees of them.

use serde_json::json;

use logcabin::{
    history::{Output, Question, Source, Target, run},
    socket::socket_path,
};

use super::{anonymous, user};
use crate::harness::{TestServer, encode};

#[tokio::test]
async fn events_rooms_and_users_are_reported_and_shown_to_the_operator() {
    let server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let event_id = ann.send_text(&room_id, "1", "something rude").await;
    let event = format!("/rooms/{}/report/{}", encode(&room_id), encode(&event_id));
    let room = format!("/rooms/{}/report", encode(&room_id));
    let of_user = format!("/users/{}/report", encode(&ann.user_id));

    // Only those in the room report its events; a stranger does not learn which there are.
    bob.post(&event, json!({ "reason": "rude" })).await.refused(404, "M_NOT_FOUND");
    bob.join(&room_id).await.ok();
    for good in [
        json!({ "reason": "rude", "score": -100 }),
        json!({ "score": 0 }),
        json!({ "reason": null, "score": null }),
        json!({ "reason": "" }),
        json!({}),
    ] {
        assert_eq!(bob.post(&event, good).await.ok(), json!({}));
    }
    for (bad, status, code) in [
        (json!({ "score": 1 }), 400, "M_INVALID_PARAM"),
        (json!({ "score": -101 }), 400, "M_INVALID_PARAM"),
        (json!({ "score": -1000 }), 400, "M_INVALID_PARAM"),
        (json!({ "score": -1.5 }), 400, "M_BAD_JSON"),
        (json!({ "score": "bad" }), 400, "M_BAD_JSON"),
        (json!({ "reason": 5 }), 400, "M_BAD_JSON"),
        (json!({ "reason": "x".repeat(4097) }), 413, "M_TOO_LARGE"),
    ] {
        bob.post(&event, bad).await.refused(status, code);
    }
    let nothing = format!("/rooms/{}/report/%24nothing", encode(&room_id));
    bob.post(&nothing, json!({})).await.refused(404, "M_NOT_FOUND");
    bob.post("/rooms/!none:e2e.test/report/%24x", json!({})).await.refused(404, "M_NOT_FOUND");
    let other = bob.create_room(json!({})).await;
    let elsewhere = format!("/rooms/{}/report/{}", encode(&other), encode(&event_id));
    bob.post(&elsewhere, json!({})).await.refused(404, "M_NOT_FOUND");

    let cas = user(&server, "cas").await;
    cas.post(&room, json!({ "reason": "spam room" })).await.ok();
    cas.post("/rooms/!none:e2e.test/report", json!({ "reason": "" }))
        .await
        .refused(404, "M_NOT_FOUND");
    cas.post(&of_user, json!({ "reason": "a bot" })).await.ok();
    cas.post("/users/@nobody:e2e.test/report", json!({ "reason": "" }))
        .await
        .refused(404, "M_NOT_FOUND");
    cas.post(&of_user, json!({})).await.refused(400, "M_BAD_JSON");
    for path in [&event, &room, &of_user] {
        let body = json!({ "reason": "" });
        anonymous(&server.http(), "POST", path, Some(&body)).await.refused(401, "M_MISSING_TOKEN");
    }

    let socket = socket_path(server.data_dir());
    let shown = tokio::task::spawn_blocking(move || {
        let source = Source::open(&format!("unix:{}", socket.display())).expect("the server");
        let mut shown = Vec::new();
        let question = Question::AsOf { what: Target::Reports, at: None };
        run(&source, &question, &mut Output::for_programs(&mut shown)).expect("an answer");
        String::from_utf8(shown).expect("JSON")
    });
    let shown = shown.await.expect("no panic");
    let lines: Vec<serde_json::Value> =
        shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let said: Vec<_> = lines.iter().map(|line| line["text"].as_str().unwrap_or_default()).collect();
    assert_eq!(said.len(), 7, "{shown}");
    assert_eq!(said[0], format!("reported {event_id} in {room_id} with -100: rude"));
    assert_eq!(said[5], format!("reported the room {room_id}: spam room"));
    assert_eq!(said[6], format!("reported {}: a bot", ann.user_id));
    assert_eq!(lines[6]["who"], cas.user_id.as_str());
}

#[tokio::test]
async fn an_event_that_one_may_not_see_cannot_be_reported() {
    let server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann
        .create_room(json!({
            "preset": "public_chat",
            "initial_state": [{ "type": "m.room.history_visibility",
                                "content": { "history_visibility": "joined" } }],
        }))
        .await;
    let hidden = ann.send_text(&room_id, "1", "before").await;
    bob.join(&room_id).await.ok();
    let path = format!("/rooms/{}/report/{}", encode(&room_id), encode(&hidden));
    bob.post(&path, json!({})).await.refused(404, "M_NOT_FOUND");
}
