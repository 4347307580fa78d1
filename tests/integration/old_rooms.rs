//! Rooms of versions 1 and 2, from their creation to their upgrade.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::administration::{command, done, done_json, failed};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode, run_logcabin, until};

#[track_caller]
fn run(words: &[&str], data_dir: &Path) {
    let data_dir = data_dir.to_str().expect("a path in UTF-8");
    done(run_logcabin([words, &["--data-dir", data_dir]].concat()));
}

/// The body of a message; nothing if it was redacted.
async fn body(user: &User, room_id: &str, event_id: &str) -> Value {
    let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
    user.request("GET", &path, None).await.ok()["content"]["body"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn old_rooms_live_through_redactions_restarts_exports_and_upgrades() {
    let mut server = TestServer::start().await;
    let (mut ann, mut ben) = (server.register("ann").await, server.register("ben").await);
    let mut rooms = Vec::new();
    for version in ["1", "2"] {
        let options = json!({ "room_version": version, "preset": "public_chat" });
        let room_id = ann.create_room(options).await;
        ben.join(&room_id).await.ok();
        let kept = ben.send_text(&room_id, "kept", "a word to keep").await;
        let gone = ben.send_text(&room_id, "gone", "a word to lose").await;
        assert!(kept.ends_with(":e2e.test") && kept != gone, "{kept} {gone}");
        let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&gone));
        ann.request("PUT", &path, Some(&json!({}))).await.ok();
        // The rule for aliases: each homeserver sets its own, without power.
        let aliases = json!({ "aliases": [] });
        ben.set_state(&room_id, "m.room.aliases", "e2e.test", &aliases).await.ok();
        let other = ben.set_state(&room_id, "m.room.aliases", "other.test", &aliases).await;
        other.refused(403, "M_FORBIDDEN");
        let query = json!({ "search_categories": { "room_events": {
            "search_term": "keep", "filter": { "rooms": [room_id] },
        } } });
        until("the message is found", async || {
            let found = ann.request("POST", "/search", Some(&query)).await.ok();
            let results = &found["search_categories"]["room_events"]["results"];
            results[0]["result"]["event_id"] == *kept
        })
        .await;
        rooms.push((room_id, kept, gone));
    }
    server.kill9();
    server.restart().await;
    for user in [&mut ann, &mut ben] {
        *user = User { http: server.http(), ..user.clone() };
    }
    for (room_id, kept, gone) in &rooms {
        assert_eq!(body(&ben, room_id, kept).await, "a word to keep");
        assert_eq!(body(&ben, room_id, gone).await, Value::Null);
        ben.send_text(room_id, "after", "after a restart").await;
    }
    server.stop();
    assert_verifies(server.data_dir());
    let directory = TempDir::new().expect("a temporary directory");
    let (dest, data_dir) = (directory.path().join("export"), directory.path().join("data"));
    let dest = dest.to_str().expect("a path in UTF-8");
    let source = server.data_dir().to_str().expect("a path in UTF-8");
    for (_, kept, gone) in &rooms {
        for event_id in [kept, gone] {
            let why = done(run_logcabin(["history", "why", source, "event", event_id]));
            assert!(why.contains("ben"), "{why}");
        }
    }
    run(&["export", dest], server.data_dir());
    run(&["import", dest], &data_dir);
    assert_verifies(&data_dir);

    let server = TestServer::start_on(&data_dir).await;
    for user in [&mut ann, &mut ben] {
        *user = User { http: server.http(), ..user.clone() };
    }
    for ((room_id, kept, gone), version) in rooms.iter().zip(["1", "2"]) {
        assert_eq!(body(&ben, room_id, kept).await, "a word to keep");
        assert_eq!(body(&ben, room_id, gone).await, Value::Null);
        let new = if version == "1" {
            let (path, body) = (format!("/rooms/{}/upgrade", encode(room_id)), "new_version");
            let upgraded = ann.request("POST", &path, Some(&json!({ body: "10" }))).await.ok();
            upgraded["replacement_room"].clone()
        } else {
            let of = |user: &str| format!("upgrade {room_id} {user}");
            let refused = failed(command("room", &data_dir, &of("ben"), ""));
            assert!(refused.contains("You may not upgrade this room"), "{refused}");
            let foretold = done(command("room", &data_dir, &(of("ann") + " --dry-run"), ""));
            assert!(foretold.contains("of version 10"), "{foretold}");
            done_json(command("room", &data_dir, &(of("ann") + " --json"), ""))["replacement"]
                .clone()
        };
        let new = new.as_str().expect("a room");
        let path = format!("/rooms/{}/state/m.room.create/", encode(new));
        let create = ann.request("GET", &path, None).await.ok();
        assert_eq!(create["predecessor"]["room_id"], **room_id);
        ben.join(new).await.ok();
    }
}
