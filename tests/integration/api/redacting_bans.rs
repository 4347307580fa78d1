//! Kicks and bans that redact what their users sent (MSC4293).

use serde_json::{Value, json};

use crate::administration::command;
use crate::crash::assert_verifies;
use crate::harness::{Direction, TestServer, User, encode, until};

const FLAG: &str = "org.matrix.msc4293.redact_events";

/// A public room of the first user in which the second said something, left, came back, and said
/// something else. Returns the ids of the room and of both messages.
async fn visited(ann: &User, bob: &User) -> [String; 3] {
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let before = bob.send_text(&room_id, "before", "from an earlier visit").await;
    bob.act(&room_id, "leave", None).await.ok();
    bob.join(&room_id).await.ok();
    let since = bob.send_text(&room_id, "since", "cheap watches").await;
    [room_id, before, since]
}

async fn event(user: &User, room_id: &str, event_id: &str) -> Value {
    let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
    user.get(&path).await.ok()
}

async fn until_redacted(user: &User, room_id: &str, event_id: &str) {
    until("the event is redacted", async || {
        event(user, room_id, event_id).await["content"] == json!({})
    })
    .await;
}

async fn unread(user: &User, room_id: &str) -> Value {
    let synced = user.get("/sync?timeout=0").await.ok();
    synced["rooms"]["join"][room_id]["unread_notifications"]["notification_count"].clone()
}

#[tokio::test]
async fn a_ban_redacts_what_its_user_sent_since_they_joined() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let [room_id, before, since] = visited(&ann, &bob).await;
    let own = ann.send_text(&room_id, "own", "cheap watches, he says").await;
    bob.send_text(&room_id, "more", "cheap bags").await;
    let place =
        json!({ "m.relates_to": { "rel_type": "m.annotation", "event_id": own, "key": "!" } });
    bob.send(&room_id, "m.reaction", "reaction", &place).await.ok();
    let http = server.http();
    let versions = http.request("GET", "/_matrix/client/versions", None, None).await.ok();
    assert_eq!(versions["unstable_features"]["org.matrix.msc4293"], true, "{versions}");

    // Neither a leave nor a kick by somebody who may not redact redacts anything.
    let mut levels = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    let eve = server.register("eve").await;
    eve.join(&room_id).await.ok();
    levels["users"][&*eve.user_id] = json!(50);
    levels["redact"] = json!(75);
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let cas = server.register("cas").await;
    cas.join(&room_id).await.ok();
    let kept = cas.send_text(&room_id, "kept", "stays").await;
    let kick = json!({ "user_id": cas.user_id, FLAG: true });
    eve.request("POST", &format!("/rooms/{}/kick", encode(&room_id)), Some(&kick)).await.ok();
    let said = eve.send_text(&room_id, "said", "goodbye").await;
    let leave = json!({ "membership": "leave", FLAG: true });
    eve.set_state(&room_id, "m.room.member", &eve.user_id, &leave).await.ok();
    let unread_before = unread(&ann, &room_id).await;

    let ban = json!({ "user_id": bob.user_id, "reason": "spam", FLAG: true });
    ann.request("POST", &format!("/rooms/{}/ban", encode(&room_id)), Some(&ban)).await.ok();
    until_redacted(&ann, &room_id, &since).await;
    let redacted = event(&ann, &room_id, &since).await;
    let because = &redacted["unsigned"]["redacted_because"];
    assert_eq!(because["type"], "m.room.member", "{redacted}");
    assert_eq!(because["state_key"], *bob.user_id, "{redacted}");
    assert_eq!(because["content"]["reason"], "spam", "{redacted}");
    assert_eq!(redacted["unsigned"]["redacted_by"], because["event_id"], "{redacted}");
    assert!(unread(&ann, &room_id).await.as_u64() < unread_before.as_u64());

    let look = async || {
        for (event_id, body) in [
            (&before, json!("from an earlier visit")),
            (&since, Value::Null),
            (&own, json!("cheap watches, he says")),
            (&kept, json!("stays")),
            (&said, json!("goodbye")),
        ] {
            let event = event(&ann, &room_id, event_id).await;
            assert_eq!(event["content"]["body"], body, "{event}");
        }
        let annotated = event(&ann, &room_id, &own).await;
        assert_eq!(annotated["unsigned"]["m.relations"], Value::Null, "{annotated}");
        let sought = json!({ "search_categories": { "room_events": {
            "search_term": "watches", "filter": { "rooms": [room_id] },
        } } });
        let found = ann.request("POST", "/search", Some(&sought)).await.ok();
        assert_eq!(found["search_categories"]["room_events"]["count"], 1, "{found}");
        let page = ann.messages(&room_id, None, None, Direction::Back, 50).await;
        assert!(!page.to_string().contains("cheap watches\""), "{page}");
    };
    look().await;
    server.kill9();
    server.restart().await;
    look().await;
    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    look().await;
}

#[tokio::test]
async fn a_redacting_kick_that_the_end_of_the_server_interrupts_is_completed() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let mut sent = Vec::new();
    for number in 0..40 {
        sent.push(bob.send_text(&room_id, &number.to_string(), "spam").await);
    }
    let kick = json!({ "membership": "leave", FLAG: true });
    ann.set_state(&room_id, "m.room.member", &bob.user_id, &kick).await.ok();
    server.kill9();
    server.restart().await;
    for event_id in &sent {
        until_redacted(&ann, &room_id, event_id).await;
    }
    // Who comes back can speak, and the next kick says nothing about it.
    bob.join(&room_id).await.ok();
    let later = bob.send_text(&room_id, "later", "sorry").await;
    ann.act(&room_id, "kick", Some(&bob)).await.ok();
    let data_dir = server.data_dir().to_owned();
    let output = command("user", &data_dir, "ban bob --redact", "");
    assert!(output.status.success(), "{output:?}");
    let after = event(&ann, &room_id, &later).await;
    assert_eq!(after["content"]["body"], "sorry", "{after}");
    server.stop();
    assert_verifies(&data_dir);
}

#[tokio::test]
async fn an_operator_redacts_with_a_ban() {
    let server = super::server().await;
    let (ann, bob) = (super::user(&server, "ann").await, super::user(&server, "bob").await);
    let [room_id, before, since] = visited(&ann, &bob).await;
    let run = |arguments: &str| command("user", server.data_dir(), arguments, "");
    let would = run(&format!("ban {} --redact --dry-run", bob.user_id));
    let would = String::from_utf8_lossy(&would.stdout).into_owned();
    assert!(would.contains("since they joined is redacted"), "{would}");
    assert_eq!(event(&ann, &room_id, &since).await["content"]["body"], "cheap watches");
    let output = run(&format!("unban {} --redact", bob.user_id));
    assert!(!output.status.success(), "{output:?}");
    let output = run(&format!("ban {} --redact", bob.user_id));
    assert!(output.status.success(), "{output:?}");
    until_redacted(&ann, &room_id, &since).await;
    let kept = event(&ann, &room_id, &before).await;
    assert_eq!(kept["content"]["body"], "from an earlier visit", "{kept}");
}
