//! Presence.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{next_batch, server, user};
use crate::harness::{Answer, TestServer, User, encode};

fn path(of: &User) -> String {
    format!("/presence/{}/status", encode(&of.user_id))
}

impl User {
    /// One `/sync` that says what the device is to be shown as.
    async fn sync_as(&self, presence: &str, since: Option<&str>, timeout_ms: u64) -> Value {
        let since = since.map_or_else(String::new, |since| format!("&since={}", encode(since)));
        self.get(&format!("/sync?set_presence={presence}&timeout={timeout_ms}{since}")).await.ok()
    }

    async fn set_presence(&self, presence: &str, status_msg: Option<&str>) -> Answer {
        let mut body = json!({ "presence": presence });
        if let Some(status_msg) = status_msg {
            body["status_msg"] = status_msg.into();
        }
        self.put(&path(self), body).await
    }
}

/// The contents of the presence events of one user.
fn of(sync: &Value, user: &User) -> Vec<Value> {
    let events = sync["presence"]["events"].as_array().cloned().unwrap_or_default();
    let mut own = events.into_iter().filter(|event| event["sender"] == json!(user.user_id));
    let first = own.next();
    assert!(own.next().is_none(), "each user once: {sync}");
    first.into_iter().map(|event| event["content"].clone()).collect()
}

/// Syncs until an event of `of` satisfies `wanted`; gives its content and the token after it.
async fn wait_for(
    watcher: &User,
    mut since: String,
    whose: &User,
    wanted: impl Fn(&Value) -> bool,
) -> (Value, String) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let sync = watcher.sync(Some(&since), 10_000, None).await;
        since = next_batch(&sync);
        if let Some(content) = of(&sync, whose).into_iter().find(|content| wanted(content)) {
            return (content, since);
        }
    }
    panic!("no such presence of {}", whose.user_id);
}

async fn room_of_two(ann: &User, bob: &User) -> String {
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    room_id
}

#[tokio::test]
async fn what_a_user_sets_is_seen_by_those_in_a_room_with_them_alone() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    room_of_two(&ann, &bob).await;
    let (of_ann, of_bob, of_cas) = (ann.here().await, bob.here().await, cas.here().await);
    bob.set_presence("unavailable", Some("at lunch")).await.ok();
    for (watcher, since) in [(&ann, &of_ann), (&bob, &of_bob)] {
        let (content, after) = wait_for(watcher, since.clone(), &bob, |_| true).await;
        assert_eq!(content["presence"], "unavailable");
        assert_eq!(content["status_msg"], "at lunch");
        assert!(content["last_active_ago"].as_u64().is_some_and(|ago| ago < 60_000), "{content}");
        assert_eq!(content.get("currently_active"), None, "{content}");
        assert_eq!(of(&watcher.news(&after).await, &bob), Vec::<Value>::new());
        let seen = watcher.get(&path(&bob)).await.ok();
        assert_eq!(
            (&seen["presence"], &seen["status_msg"]),
            (&json!("unavailable"), &json!("at lunch"))
        );
        assert_eq!(of(&watcher.sync(None, 0, None).await, &bob).len(), 1);
    }
    assert_eq!(cas.news(&of_cas).await["presence"]["events"], json!([]));
    assert_eq!(cas.sync(None, 0, None).await["presence"]["events"], json!([]));
    cas.get(&path(&bob)).await.refused(403, "M_FORBIDDEN");
    cas.put(&path(&bob), json!({ "presence": "online" })).await.refused(403, "M_FORBIDDEN");
    cas.get("/presence/@nobody:e2e.test/status").await.refused(404, "M_NOT_FOUND");
    // Words that are not repeated are gone.
    bob.set_presence("online", None).await.ok();
    let seen = ann.get(&path(&bob)).await.ok();
    assert_eq!((&seen["presence"], &seen["currently_active"]), (&json!("online"), &json!(true)));
    assert_eq!(seen.get("status_msg"), None);
    // One who never was there is offline, and is no news.
    assert_eq!(bob.get(&path(&ann)).await.ok(), json!({ "presence": "offline" }));
}

#[tokio::test]
async fn presence_that_cannot_be_is_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    ann.set_presence("asleep", None).await.refused(400, "M_INVALID_PARAM");
    ann.put(&path(&ann), json!({ "status_msg": "x" })).await.refused(400, "M_BAD_JSON");
    ann.put(&path(&ann), json!({ "presence": 1 })).await.refused(400, "M_BAD_JSON");
    ann.put(&path(&ann), json!({ "presence": "online", "status_msg": 1 }))
        .await
        .refused(400, "M_BAD_JSON");
    ann.set_presence("online", Some(&"x".repeat(1025))).await.refused(413, "M_TOO_LARGE");
    ann.get("/sync?set_presence=asleep").await.refused(400, "M_INVALID_PARAM");
    let anonymous = super::anonymous(&server.http(), "GET", &path(&ann), None).await;
    anonymous.refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn one_who_syncs_is_online_unless_the_sync_says_otherwise() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let since = ann.here().await;
    bob.sync_as("offline", None, 0).await;
    assert_eq!(bob.get(&path(&bob)).await.ok(), json!({ "presence": "offline" }));
    bob.get("/sync").await.ok();
    let (content, since) = wait_for(&ann, since, &bob, |_| true).await;
    assert_eq!(
        (&content["presence"], &content["currently_active"]),
        (&json!("online"), &json!(true))
    );
    bob.sync_as("unavailable", None, 0).await;
    let (content, since) = wait_for(&ann, since, &bob, |_| true).await;
    assert_eq!(content["presence"], "unavailable");
    // Another device that is there counts for more, and so does doing something.
    let phone = bob.another_device().await;
    phone.sync_as("online", None, 0).await;
    let (content, since) = wait_for(&ann, since, &bob, |_| true).await;
    assert_eq!(content["presence"], "online");
    phone.set_presence("offline", None).await.ok();
    let (content, since) = wait_for(&ann, since, &bob, |_| true).await;
    assert_eq!(content["presence"], "unavailable");
    bob.send_text(&room_id, "1", "here").await;
    let (content, _) = wait_for(&ann, since, &bob, |_| true).await;
    assert_eq!(content["presence"], "online");
}

#[tokio::test]
async fn one_who_comes_into_a_room_sees_who_is_there_and_is_seen() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    ann.set_presence("unavailable", None).await.ok();
    bob.set_presence("online", None).await.ok();
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    cas.join(&room_id).await.ok();
    let (of_ann, of_bob) = (ann.here().await, bob.here().await);
    bob.join(&room_id).await.ok();
    let sync = ann.news(&of_ann).await;
    assert_eq!(of(&sync, &bob)[0]["presence"], "online", "{sync}");
    let sync = bob.news(&of_bob).await;
    assert_eq!(of(&sync, &ann)[0]["presence"], "unavailable", "{sync}");
    // Cas is not there, which nobody needs to be told.
    assert_eq!(of(&sync, &cas), Vec::<Value>::new());
    bob.act(&room_id, "leave", None).await.ok();
    ann.get(&path(&bob)).await.refused(403, "M_FORBIDDEN");
    let since = ann.here().await;
    bob.set_presence("unavailable", None).await.ok();
    assert_eq!(of(&ann.news(&since).await, &bob), Vec::<Value>::new());
}

#[tokio::test]
async fn a_filter_chooses_among_presence() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    room_of_two(&ann, &bob).await;
    for user in [&bob, &ann] {
        user.set_presence("unavailable", None).await.ok();
    }
    let (own, other) = (ann.user_id.clone(), bob.user_id.clone());
    for (filter, expected) in [
        (json!({}), vec![&own, &other]),
        (json!({ "senders": [other] }), vec![&other]),
        (json!({ "not_senders": [other] }), vec![&own]),
        (json!({ "types": ["m.pres*"] }), vec![&own, &other]),
        (json!({ "types": [] }), vec![]),
        (json!({ "not_types": ["*"] }), vec![]),
        // The newest.
        (json!({ "limit": 1 }), vec![&own]),
    ] {
        let whole = json!({ "presence": filter }).to_string();
        let sync = ann.sync(None, 0, Some(&whole)).await;
        let mut seen = super::each(&sync["presence"]["events"], "/sender");
        seen.sort_unstable();
        assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "{filter}");
    }
}

#[tokio::test]
async fn one_who_does_nothing_is_idle_and_one_who_is_gone_offline() {
    let settings =
        [("LOGCABIN_PRESENCE_IDLE_SECONDS", "2"), ("LOGCABIN_PRESENCE_OFFLINE_SECONDS", "1")];
    let server = TestServer::start_with(&settings).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let since = ann.here().await;
    let of_bob = next_batch(&bob.sync_as("offline", None, 0).await);
    let waits = {
        let bob = bob.clone();
        let filter = encode(r#"{"presence":{"types":[]},"room":{"rooms":[]}}"#);
        let path = format!("/sync?timeout=6000&since={of_bob}&filter={filter}");
        tokio::spawn(async move { bob.get(&path).await.ok() })
    };
    let (_, since) = wait_for(&ann, since, &bob, |seen| seen["presence"] == "online").await;
    let (_, since) = wait_for(&ann, since, &bob, |seen| seen["presence"] == "unavailable").await;
    assert!(!waits.is_finished(), "idle while the sync waits");
    bob.send_text(&room_id, "1", "back").await;
    let (_, since) = wait_for(&ann, since, &bob, |seen| seen["presence"] == "online").await;
    let (_, since) = wait_for(&ann, since, &bob, |seen| seen["presence"] == "unavailable").await;
    waits.await.expect("a waiting sync does not panic");
    let (content, _) = wait_for(&ann, since, &bob, |seen| seen["presence"] == "offline").await;
    assert!(content["last_active_ago"].is_u64(), "{content}");
    assert_eq!(of(&ann.sync(None, 0, None).await, &bob), Vec::<Value>::new());
}

#[tokio::test]
async fn users_who_do_not_come_back_after_a_restart_go_offline() {
    crate::harness::nodes::one_server!("other nodes hear of presence a moment later");
    let settings = [("LOGCABIN_PRESENCE_OFFLINE_SECONDS", "2")];
    let mut server = TestServer::start_with(&settings).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let room_id = room_of_two(&ann, &bob).await;
    cas.join(&room_id).await.ok();
    bob.set_presence("online", Some("soon back")).await.ok();
    cas.set_presence("online", None).await.ok();
    let since = ann.here().await;
    server.restart().await;
    let again = |user: User| User { http: server.http(), ..user };
    let (ann, bob, cas) = (again(ann), again(bob), again(cas));
    let seen = ann.get(&path(&bob)).await.ok();
    assert_eq!((&seen["presence"], &seen["status_msg"]), (&json!("online"), &json!("soon back")));
    let stays = tokio::spawn(async move {
        cas.sync_as("online", None, 0).await;
        let since = cas.here().await;
        let filter = encode(r#"{"presence":{"types":[]},"room":{"rooms":[]}}"#);
        cas.get(&format!("/sync?timeout=4000&since={since}&filter={filter}")).await.ok();
        cas
    });
    let (content, _) = wait_for(&ann, since, &bob, |seen| seen["presence"] == "offline").await;
    assert_eq!(content["status_msg"], "soon back");
    assert!(!stays.is_finished());
    let around = super::each(&ann.sync(None, 0, None).await["presence"]["events"], "/sender");
    let cas = stays.await.expect("a waiting sync does not panic");
    assert_eq!(around, [cas.user_id]);
}

#[tokio::test]
async fn changes_of_presence_wake_only_the_users_concerned_and_in_one_batch() {
    let server = server().await;
    let (ann, cas) = (user(&server, "ann").await, user(&server, "cas").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let mut others = Vec::new();
    for number in 0..5 {
        let other = user(&server, &format!("other{number}")).await;
        other.join(&room_id).await.ok();
        others.push(other);
    }
    let (since, of_cas) = (ann.here().await, cas.here().await);
    let stranger = tokio::spawn(async move { cas.sync(Some(&of_cas), 3000, None).await });
    let waiting = {
        let ann = ann.clone();
        tokio::spawn(async move { ann.sync(Some(&since), 30_000, None).await })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    for other in &others {
        other.set_presence("unavailable", None).await.ok();
    }
    // If it took longer to set them than a wave takes to come, this shows nothing.
    let in_time = began.elapsed() < Duration::from_millis(900);
    let sync = waiting.await.expect("a waiting sync does not panic");
    let seen = sync["presence"]["events"].as_array().map_or(0, Vec::len);
    assert!(seen == 5 || !in_time, "{sync}");
    assert!(began.elapsed() < Duration::from_secs(20));
    let sync = stranger.await.expect("a waiting sync does not panic");
    assert_eq!(sync["presence"]["events"], json!([]));
}

#[tokio::test]
async fn what_one_does_costs_no_record_of_presence_each() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let since = ann.here().await;
    bob.sync_as("online", None, 0).await;
    let (_, since) = wait_for(&ann, since, &bob, |_| true).await;
    for number in 0..20 {
        bob.send_text(&room_id, &number.to_string(), "x").await;
        bob.sync_as("online", None, 0).await;
    }
    assert_eq!(of(&ann.news(&since).await, &bob), Vec::<Value>::new());
    // How long ago the last thing was is right all the same.
    let seen = ann.get(&path(&bob)).await.ok();
    assert!(seen["last_active_ago"].as_u64().is_some_and(|ago| ago < 30_000), "{seen}");
}

#[tokio::test]
async fn without_presence_everyone_is_offline_and_nobody_is_told_otherwise() {
    let mut server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    room_of_two(&ann, &bob).await;
    bob.set_presence("online", None).await.ok();
    let since = ann.here().await;
    server.stop();
    let data_dir = server.data_dir().to_owned();
    let off = [("LOGCABIN_PRESENCE_ENABLED", "false")];
    let second = TestServer::start_on_with(&data_dir, &off).await;
    let again = |user: &User| User { http: second.http(), ..user.clone() };
    let (ann, bob) = (again(&ann), again(&bob));
    bob.sync_as("online", None, 0).await;
    bob.set_presence("unavailable", None).await.ok();
    ann.put(&path(&bob), json!({ "presence": "online" })).await.refused(403, "M_FORBIDDEN");
    assert_eq!(ann.get(&path(&bob)).await.ok(), json!({ "presence": "offline" }));
    for sync in [ann.news(&since).await, ann.sync(None, 0, None).await] {
        assert_eq!(sync["presence"]["events"], json!([]));
    }
}
