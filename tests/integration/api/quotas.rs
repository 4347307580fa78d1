//! How fast one user may write, and how much they may store.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PASSWORD, user};
use crate::harness::{Answer, TestServer, User, encode};

/// A server with the default rate limits.
async fn limited(settings: &[(&str, &str)]) -> TestServer {
    TestServer::start_with(&[&[("LOGCABIN_RATE_LIMITS_ENABLED", "true")], settings].concat()).await
}

fn data_path(user: &User, event_type: &str) -> String {
    format!("/user/{}/account_data/{}", encode(&user.user_id), encode(event_type))
}

/// Kinds of writes that a client could repeat forever.
const ENDLESS: [&str; 9] = [
    "account data",
    "account data of a room",
    "tags",
    "aliases",
    "devices",
    "bans",
    "push rules",
    "profile",
    "room list",
];

async fn write(ann: &User, bob: &User, room_id: &str, what: &str, number: usize) -> Answer {
    let (user_id, room) = (encode(&ann.user_id), encode(room_id));
    let (method, path, body) = match what {
        "account data" => ("PUT", data_path(ann, "org.example"), json!({ "n": number })),
        "account data of a room" => {
            let path = format!("/user/{user_id}/rooms/{room}/account_data/org.example");
            ("PUT", path, json!({ "n": number }))
        }
        "tags" => {
            let path = format!("/user/{user_id}/rooms/{room}/tags/u.tag");
            ("PUT", path, json!({ "order": 1.0 / (number + 1) as f64 }))
        }
        "aliases" => {
            let alias = encode(&format!("#{}-{number}:e2e.test", ann.localpart()));
            ("PUT", format!("/directory/room/{alias}"), json!({ "room_id": room_id }))
        }
        "devices" => {
            let path = format!("/devices/{}", encode(&ann.device_id));
            ("PUT", path, json!({ "display_name": number.to_string() }))
        }
        "bans" => {
            let action = if number.is_multiple_of(2) { "ban" } else { "unban" };
            let body = json!({ "user_id": bob.user_id, "reason": "x".repeat(20_000) });
            ("POST", format!("/rooms/{room}/{action}"), body)
        }
        "push rules" => {
            let path = "/pushrules/global/override/.m.rule.master/enabled".to_owned();
            ("PUT", path, json!({ "enabled": number.is_multiple_of(2) }))
        }
        "profile" => {
            let path = format!("/profile/{user_id}/displayname");
            ("PUT", path, json!({ "displayname": number.to_string() }))
        }
        "room list" => {
            let visibility = if number.is_multiple_of(2) { "public" } else { "private" };
            let path = format!("/directory/list/room/{room}");
            ("PUT", path, json!({ "visibility": visibility }))
        }
        _ => panic!("no such write: {what}"),
    };
    ann.request(method, &path, Some(&body)).await
}

#[tokio::test]
async fn every_kind_of_repeated_write_is_rate_limited() {
    let server = limited(&[
        // Each class must have a limit of its own, besides those of addresses, devices and users.
        ("LOGCABIN_RATE_LIMITS_ADDRESS", "1000/s burst 1000"),
        ("LOGCABIN_RATE_LIMITS_REGISTRATION", "1000/s burst 1000"),
        ("LOGCABIN_RATE_LIMITS_DEVICE", "1000/s burst 100000"),
        ("LOGCABIN_RATE_LIMITS_USER", "1000/s burst 100000"),
    ])
    .await;
    let bob = user(&server, "bob").await;
    for what in ENDLESS {
        let ann = user(&server, "ann").await;
        let room_id = ann.create_room(json!({})).await;
        let mut number = 0;
        let refused = loop {
            let answer = write(&ann, &bob, &room_id, what, number).await;
            if answer.status != 200 {
                break answer;
            }
            number += 1;
            assert!(number < 10_000, "{what}: no limit after {number} writes");
        };
        refused.refused(429, "M_LIMIT_EXCEEDED");
        assert!(number >= 20, "{what}: {number} writes are too few for a normal client");
        // Reading goes on.
        ann.get("/account/whoami").await.ok();
    }
}

#[tokio::test]
async fn writes_are_limited_by_size_as_well() {
    let server = limited(&[("LOGCABIN_RATE_LIMITS_WRITTEN_KILOBYTES", "1/h burst 500")]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let large = json!({ "text": "x".repeat(100_000) });
    let set = |user: &User, number: usize| {
        let (user, large) = (user.clone(), large.clone());
        async move { user.put(&data_path(&user, &format!("org.example.{number}")), large).await }
    };
    for number in 0..5 {
        set(&ann, number).await.ok();
    }
    set(&ann, 5).await.refused(429, "M_LIMIT_EXCEEDED");
    // A short write still fits, and other users are not affected.
    ann.put(&data_path(&ann, "org.example.short"), json!({})).await.ok();
    set(&bob, 0).await.ok();
    // The size counts on every endpoint, such as in the reason of a ban.
    let room_id = bob.create_room(json!({})).await;
    let body = json!({ "user_id": ann.user_id, "reason": "x".repeat(20_000) });
    let mut taken = 0;
    for number in 0..30_u32 {
        let action = if number.is_multiple_of(2) { "ban" } else { "unban" };
        let answer = bob.post(&format!("/rooms/{}/{action}", encode(&room_id)), body.clone()).await;
        taken += usize::from(answer.status == 200);
    }
    assert!((10..25).contains(&taken), "{taken} of 30");
}

/// Small quotas.
const SMALL: [(&str, &str); 14] = [
    ("LOGCABIN_QUOTAS_ACCOUNT_DATA_TYPES", "4"),
    ("LOGCABIN_QUOTAS_ACCOUNT_DATA_BYTES", "200000"),
    ("LOGCABIN_QUOTAS_FILTERS", "3"),
    ("LOGCABIN_QUOTAS_DEVICES", "2"),
    ("LOGCABIN_QUOTAS_ALIASES", "2"),
    ("LOGCABIN_QUOTAS_ROOMS", "3"),
    ("LOGCABIN_QUOTAS_INVITES", "4"),
    ("LOGCABIN_QUOTAS_INVITES_BY_ONE", "2"),
    ("LOGCABIN_QUOTAS_TO_DEVICE", "4"),
    ("LOGCABIN_QUOTAS_TO_DEVICE_BY_ONE", "3"),
    ("LOGCABIN_QUOTAS_KEY_BACKUPS", "2"),
    ("LOGCABIN_QUOTAS_ROOM_KEYS", "3"),
    ("LOGCABIN_QUOTAS_ROOM_KEY_BYTES", "131072"),
    ("LOGCABIN_QUOTAS_REPORTS", "2"),
];

#[track_caller]
fn over(answer: Answer) {
    let said = answer.to_string();
    let text = answer.body["error"].as_str().unwrap_or_default().to_owned();
    assert!(text.len() > 40, "the error does not explain itself: {said}");
    answer.refused(413, "M_TOO_LARGE");
}

#[tokio::test]
async fn account_data_has_quotas_and_deleting_makes_room() {
    let server = TestServer::start_with(&SMALL).await;
    let ann = user(&server, "ann").await;
    let set = |kind: &'static str, content: Value| {
        let ann = ann.clone();
        async move { ann.put(&data_path(&ann, kind), content).await }
    };
    for kind in ["a", "b", "c", "d"] {
        set(kind, json!({ "n": 0 })).await.ok();
    }
    over(set("e", json!({ "n": 0 })).await);
    // Existing entries can be changed as long as the total size stays within the quota.
    let large = json!({ "text": "x".repeat(100_000) });
    set("a", large.clone()).await.ok();
    over(set("b", large.clone()).await);
    set("a", large.clone()).await.ok();
    // Tags count as account data. Read markers and push rules do not.
    let room_id = ann.create_room(json!({})).await;
    let tag = format!("/user/{}/rooms/{}/tags/u.x", encode(&ann.user_id), encode(&room_id));
    over(ann.put(&tag, json!({})).await);
    let event_id = ann.send_text(&room_id, "1", "read me").await;
    let marker = format!("/rooms/{}/read_markers", encode(&room_id));
    ann.post(&marker, json!({ "m.fully_read": event_id })).await.ok();
    let rule = "/pushrules/global/content/word";
    ann.put(rule, json!({ "pattern": "word", "actions": [] })).await.ok();

    let deleted = data_path(&ann, "b");
    let path = format!("/_matrix/client/unstable/org.matrix.msc3391{deleted}");
    ann.http.request("DELETE", &path, Some(&ann.access_token), None).await.ok();
    ann.put(&tag, json!({})).await.ok();
    over(set("b", json!({ "n": 0 })).await);
    ann.request("DELETE", &tag, None).await.ok();
    assert_eq!(ann.get(&data_path(&ann, "a")).await.ok(), large);
}

#[tokio::test]
async fn the_tags_of_a_room_are_limited() {
    let server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let tags = format!("/user/{}/rooms/{}/tags", encode(&ann.user_id), encode(&room_id));
    let long = json!({ "order": 0.5, "text": "x".repeat(2000) });
    ann.put(&format!("{tags}/u.long"), long).await.refused(413, "M_TOO_LARGE");
    for number in 0..100 {
        ann.put(&format!("{tags}/u.{number}"), json!({ "order": 0.5 })).await.ok();
    }
    over(ann.put(&format!("{tags}/u.more"), json!({})).await);
    ann.put(&format!("{tags}/u.7"), json!({ "order": 0.1 })).await.ok();
    ann.request("DELETE", &format!("{tags}/u.7"), None).await.ok();
    ann.put(&format!("{tags}/u.more"), json!({})).await.ok();
    assert_eq!(ann.get(&tags).await.ok()["tags"].as_object().map(serde_json::Map::len), Some(100));
}

#[tokio::test]
async fn filters_have_a_quota_and_existing_ones_keep_working() {
    let server = TestServer::start_with(&SMALL).await;
    let ann = user(&server, "ann").await;
    let path = format!("/user/{}/filter", encode(&ann.user_id));
    let filter = |limit: u32| json!({ "room": { "timeline": { "limit": limit } } });
    let mut first = String::new();
    for limit in [3, 2, 1] {
        first = ann.post(&path, filter(limit)).await.ok_string("filter_id");
    }
    // The endpoint has no rate limit, so refused requests must write nothing.
    let here = ann.here().await;
    for limit in 4..104 {
        over(ann.post(&path, filter(limit)).await);
    }
    assert_eq!(ann.here().await, here);
    assert_eq!(ann.post(&path, filter(1)).await.ok_string("filter_id"), first);
    ann.sync(None, 0, Some(&first)).await;
    ann.sync(None, 0, Some(&filter(4).to_string())).await;
}

#[tokio::test]
async fn devices_have_a_quota_and_a_logout_makes_room() {
    let server = TestServer::start_with(&SMALL).await;
    let ann = user(&server, "ann").await;
    let second = ann.another_device().await;
    let login = |device_id: Option<&str>| {
        let mut body = json!({
            "type": "m.login.password", "password": PASSWORD,
            "identifier": { "type": "m.id.user", "user": ann.user_id },
        });
        if let Some(device_id) = device_id {
            body["device_id"] = device_id.into();
        }
        let http = ann.http.clone();
        async move { http.request("POST", "/_matrix/client/v3/login", None, Some(&body)).await }
    };
    over(login(None).await);
    // A login as an existing device adds none.
    login(Some(&second.device_id)).await.ok();
    ann.post("/logout", json!({})).await.ok();
    login(None).await.ok();
    over(login(None).await);
}

#[tokio::test]
async fn aliases_rooms_and_reports_have_quotas() {
    let server = TestServer::start_with(&SMALL).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({})).await;
    let alias = |name: &str| format!("/directory/room/{}", encode(&format!("#{name}:e2e.test")));
    let to = json!({ "room_id": room_id });
    ann.put(&alias("one"), to.clone()).await.ok();
    ann.put(&alias("two"), to.clone()).await.ok();
    over(ann.put(&alias("three"), to.clone()).await);
    over(ann.post("/createRoom", json!({ "room_alias_name": "three" })).await);
    ann.request("DELETE", &alias("one"), None).await.ok();
    ann.put(&alias("three"), to).await.ok();

    let others = bob.create_room(json!({ "preset": "public_chat" })).await;
    ann.create_room(json!({})).await;
    let last = ann.create_room(json!({})).await;
    over(ann.post("/createRoom", json!({})).await);
    over(ann.join(&others).await);
    let member = format!("/rooms/{}/state/m.room.member/{}", encode(&others), encode(&ann.user_id));
    over(ann.put(&member, json!({ "membership": "join" })).await);
    ann.act(&last, "leave", None).await.ok();
    ann.join(&others).await.ok();

    let report = format!("/users/{}/report", encode(&bob.user_id));
    ann.post(&report, json!({ "reason": "rude" })).await.ok();
    ann.post(&report, json!({ "reason": "ruder" })).await.ok();
    over(ann.post(&report, json!({ "reason": "rudest" })).await);
}

#[tokio::test]
async fn one_sender_cannot_use_up_the_invites_of_a_user() {
    let server = TestServer::start_with(&SMALL).await;
    let ann = user(&server, "ann").await;
    for name in ["bob", "cat"] {
        let inviter = user(&server, name).await;
        for _ in 0..2 {
            inviter.create_room(json!({ "invite": [ann.user_id] })).await;
        }
        let room_id = inviter.create_room(json!({})).await;
        over(inviter.act(&room_id, "invite", Some(&ann)).await);
    }
    let dan = user(&server, "dan").await;
    let room_id = dan.create_room(json!({})).await;
    // The total is used up.
    over(dan.act(&room_id, "invite", Some(&ann)).await);
    let invited = ann.sync(None, 0, None).await["rooms"]["invite"].clone();
    let invited: Vec<_> = invited.as_object().into_iter().flatten().collect();
    assert_eq!(invited.len(), 4);
    ann.act(invited[0].0, "leave", None).await.ok();
    dan.act(&room_id, "invite", Some(&ann)).await.ok();
}

#[tokio::test]
async fn waiting_messages_have_quotas_and_older_ones_are_not_dropped_for_newer_ones() {
    let server = TestServer::start_with(&SMALL).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cat = user(&server, "cat").await;
    let send = |from: &User, number: usize, to: &User| {
        let body = json!({ "messages": { &to.user_id: { "*": { "n": number } } } });
        let (from, path) = (from.clone(), format!("/sendToDevice/m.test/{number}"));
        async move { from.put(&path, body).await }
    };
    for number in 0..3 {
        send(&bob, number, &ann).await.ok();
    }
    over(send(&bob, 3, &ann).await);
    // Repeating a transaction sends nothing.
    send(&bob, 2, &ann).await.ok();
    let second = ann.another_device().await;
    // The new device has room.
    send(&bob, 4, &ann).await.ok();
    send(&cat, 5, &ann).await.ok();
    // The first device is full now, the second one is not yet.
    for number in 6..8 {
        send(&cat, number, &ann).await.ok();
    }
    over(send(&cat, 8, &ann).await);
    let got = |sync: &Value| -> Vec<u64> {
        let events = sync["to_device"]["events"].as_array().cloned().unwrap_or_default();
        events.iter().filter_map(|event| event["content"]["n"].as_u64()).collect()
    };
    let first = ann.sync(None, 0, None).await;
    assert_eq!(got(&first), [0, 1, 2, 5]);
    assert_eq!(got(&second.sync(None, 0, None).await), [4, 5, 6, 7]);
}

#[tokio::test]
async fn room_key_backups_have_quotas() {
    let server = TestServer::start_with(&SMALL).await;
    let ann = user(&server, "ann").await;
    let begin = || {
        let auth_data = json!({ "public_key": "abcdefg", "signatures": {} });
        let algorithm = "m.megolm_backup.v1.curve25519-aes-sha2";
        let body = json!({ "algorithm": algorithm, "auth_data": auth_data });
        let ann = ann.clone();
        async move { ann.post("/room_keys/version", body).await }
    };
    let put = |version: &str, session: &str, bytes: usize| {
        let data = json!({ "ephemeral": "a", "mac": "b", "ciphertext": "x".repeat(bytes) });
        let key = json!({
            "first_message_index": 0, "forwarded_count": 0, "is_verified": false,
            "session_data": data,
        });
        let path = format!("/room_keys/keys/{}/{session}?version={version}", encode("!r:e2e.test"));
        let ann = ann.clone();
        async move { ann.put(&path, key).await }
    };
    let first = begin().await.ok_string("version");
    put(&first, "one", 100).await.ok();
    let second = begin().await.ok_string("version");
    over(begin().await);
    for session in ["two", "three"] {
        put(&second, session, 100).await.ok();
    }
    over(put(&second, "four", 100).await);
    // This key is no better than the stored one, so it is ignored without an error.
    put(&second, "three", 30_000).await.ok();
    ann.request("DELETE", &format!("/room_keys/version/{first}"), None).await.ok();
    put(&second, "four", 30_000).await.ok();
    let info = ann.get("/room_keys/version").await.ok();
    assert_eq!((info["version"].as_str(), info["count"].as_u64()), (Some(&*second), Some(3)));
    begin().await.ok();
}

#[tokio::test]
async fn data_above_a_new_quota_stays_readable_and_can_be_deleted() {
    let directory = TempDir::new().expect("a temporary directory");
    let mut server = TestServer::start_on(directory.path()).await;
    let ann = user(&server, "ann").await;
    for number in 0..6 {
        ann.put(&data_path(&ann, &format!("t{number}")), json!({ "n": number })).await.ok();
        ann.another_device().await;
    }
    server.stop();
    drop(server);
    let server = TestServer::start_on_with(directory.path(), &SMALL).await;
    let ann = User { http: server.http(), ..ann };
    for number in 0..6 {
        let path = data_path(&ann, &format!("t{number}"));
        assert_eq!(ann.get(&path).await.ok(), json!({ "n": number }));
        // Replacing it with something of the same size works.
        ann.put(&path, json!({ "n": 9 })).await.ok();
    }
    over(ann.put(&data_path(&ann, "new"), json!({ "n": 0 })).await);
    for number in 0..3 {
        let path = data_path(&ann, &format!("t{number}"));
        let path = format!("/_matrix/client/unstable/org.matrix.msc3391{path}");
        ann.http.request("DELETE", &path, Some(&ann.access_token), None).await.ok();
    }
    ann.put(&data_path(&ann, "new"), json!({ "n": 0 })).await.ok();
    let devices = ann.get("/devices").await.ok();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(7));
}
