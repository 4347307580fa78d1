//! Backups of room keys.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Answer, TestServer, User, encode};

fn auth_data() -> Value {
    json!({ "public_key": "abcdefg", "signatures": { "@a:b.example": { "ed25519:X": "c2ln" } } })
}

async fn begin(user: &User) -> String {
    let body = json!({
        "algorithm": "m.megolm_backup.v1.curve25519-aes-sha2", "auth_data": auth_data()
    });
    let begun = user.request("POST", "/room_keys/version", Some(&body)).await.ok();
    begun["version"].as_str().unwrap().to_owned()
}

fn key(first_message_index: u64, forwarded_count: u64, is_verified: bool) -> Value {
    let session_data = json!({
        "ephemeral": "ZXBo", "mac": "bWFj", "ciphertext": format!("c{first_message_index}"),
    });
    json!({
        "first_message_index": first_message_index, "forwarded_count": forwarded_count,
        "is_verified": is_verified, "session_data": session_data,
    })
}

async fn ask(user: &User, method: &str, path: &str, version: &str, body: Option<&Value>) -> Answer {
    user.request(method, &format!("/room_keys/keys{path}?version={version}"), body).await
}

const ROOM: &str = "!room:x.example";

fn rooms(keys: &Value) -> Value {
    json!({ "rooms": { ROOM: { "sessions": keys } } })
}

#[tokio::test]
async fn a_backup_is_begun_changed_and_deleted() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    ann.request("GET", "/room_keys/version", None).await.refused(404, "M_NOT_FOUND");
    let first = begin(&ann).await;
    let info = ann.request("GET", "/room_keys/version", None).await.ok();
    assert_eq!(info["version"], first.as_str());
    assert_eq!(info["algorithm"], "m.megolm_backup.v1.curve25519-aes-sha2");
    assert_eq!(info["auth_data"], auth_data());
    assert_eq!(info["count"], 0);
    assert!(info["etag"].is_string());

    let path = format!("/room_keys/version/{first}");
    let mut changed = json!({ "algorithm": info["algorithm"], "auth_data": auth_data() });
    changed["auth_data"]["public_key"] = "b3RoZXI".into();
    assert_eq!(ann.request("PUT", &path, Some(&changed)).await.ok(), json!({}));
    assert_eq!(ann.request("GET", &path, None).await.ok()["auth_data"], changed["auth_data"]);
    changed["version"] = "another".into();
    ann.request("PUT", &path, Some(&changed)).await.refused(400, "M_INVALID_PARAM");
    changed["version"] = first.as_str().into();
    ann.request("PUT", &path, Some(&changed)).await.ok();
    changed["algorithm"] = "org.example.other".into();
    ann.request("PUT", &path, Some(&changed)).await.refused(400, "M_INVALID_PARAM");
    changed.as_object_mut().unwrap().remove("version");
    ann.request("PUT", "/room_keys/version/77", Some(&changed)).await.refused(404, "M_NOT_FOUND");

    let second = begin(&ann).await;
    assert_ne!(first, second);
    let latest = ann.request("GET", "/room_keys/version", None).await.ok();
    assert_eq!(latest["version"], second.as_str());
    assert_eq!(
        ann.request("DELETE", &format!("/room_keys/version/{second}"), None).await.ok(),
        json!({})
    );
    let latest = ann.request("GET", "/room_keys/version", None).await.ok();
    assert_eq!(latest["version"], first.as_str());
    for method in ["GET", "DELETE"] {
        let gone = ann.request(method, &format!("/room_keys/version/{second}"), None).await;
        gone.refused(404, "M_NOT_FOUND");
    }
    assert_ne!(begin(&ann).await, second, "a version is never used twice");
    let bob = user(&server, "bob").await;
    bob.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn what_vouches_for_a_backup_is_between_the_users_clients() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let algorithm = "m.megolm_backup.v1.curve25519-aes-sha2";
    // The example of the specification, whose key is none.
    for auth_data in [
        json!({ "public_key": "abcdefg", "signatures": { "something": { "ed25519:x": "y" } } }),
        json!({ "public_key": "abcdefg" }),
        json!({}),
        json!("opaque"),
    ] {
        let body = json!({ "algorithm": algorithm, "auth_data": auth_data });
        ann.post("/room_keys/version", body).await.ok_string("version");
        let info = ann.get("/room_keys/version").await.ok();
        assert_eq!(info["auth_data"], auth_data);
    }
    for auth_data in [json!([]), json!(null), json!(5)] {
        let body = json!({ "algorithm": algorithm, "auth_data": auth_data });
        ann.post("/room_keys/version", body).await.refused(400, "M_BAD_JSON");
    }
}

#[tokio::test]
async fn keys_are_put_read_and_removed_by_session_room_and_all() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let version = begin(&ann).await;
    let empty = ask(&ann, "GET", "", &version, None).await.ok();
    assert_eq!(empty, json!({ "rooms": {} }));
    let of_room = ask(&ann, "GET", "/!none:x.example", &version, None).await.ok();
    assert_eq!(of_room, json!({ "sessions": {} }));
    let none = ask(&ann, "GET", "/!none:x.example/S", &version, None).await;
    none.refused(404, "M_NOT_FOUND");

    let put = rooms(&json!({ "one/a": key(1, 0, true), "two": key(2, 0, true) }));
    let answer = ask(&ann, "PUT", "", &version, Some(&put)).await.ok();
    assert_eq!(answer["count"], 2);
    let answer =
        ask(&ann, "PUT", &format!("/{ROOM}/three"), &version, Some(&key(3, 0, true))).await;
    assert_eq!(answer.ok()["count"], 3);
    let put = json!({ "sessions": { "four": key(4, 0, true) } });
    let answer = ask(&ann, "PUT", "/!other:x.example", &version, Some(&put)).await.ok();
    assert_eq!(answer["count"], 4);
    let info = ann.request("GET", "/room_keys/version", None).await.ok();
    assert_eq!((&info["count"], &info["etag"]), (&answer["count"], &answer["etag"]));

    let all = ask(&ann, "GET", "", &version, None).await.ok();
    assert_eq!(all["rooms"][ROOM]["sessions"]["one/a"], key(1, 0, true));
    assert_eq!(all["rooms"][ROOM]["sessions"]["three"], key(3, 0, true));
    assert_eq!(all["rooms"]["!other:x.example"]["sessions"]["four"], key(4, 0, true));
    let one = ask(&ann, "GET", &format!("/{ROOM}/one%2Fa"), &version, None).await.ok();
    assert_eq!(one, key(1, 0, true));

    let answer = ask(&ann, "DELETE", &format!("/{ROOM}/one%2Fa"), &version, None).await.ok();
    assert_eq!(answer["count"], 3);
    assert_ne!(answer["etag"], info["etag"]);
    let again = ask(&ann, "DELETE", &format!("/{ROOM}/one%2Fa"), &version, None).await.ok();
    assert_eq!(again, answer, "there was nothing to remove");
    assert_eq!(ask(&ann, "DELETE", &format!("/{ROOM}"), &version, None).await.ok()["count"], 1);
    assert_eq!(ask(&ann, "DELETE", "", &version, None).await.ok()["count"], 0);
    assert_eq!(ask(&ann, "GET", "", &version, None).await.ok(), json!({ "rooms": {} }));
}

#[tokio::test]
async fn only_a_better_key_replaces_another() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let version = begin(&ann).await;
    let path = format!("/{ROOM}/S");
    let put = async |key: &Value| ask(&ann, "PUT", &path, &version, Some(key)).await.ok();
    put(&key(10, 1, false)).await;
    for (new, taken) in [
        (key(11, 0, false), false),
        (key(10, 1, false), false),
        (key(10, 0, false), true),
        (key(5, 9, false), true),
        (key(20, 20, true), true),
        (key(0, 0, false), false),
        (key(20, 19, true), true),
    ] {
        let before = ask(&ann, "GET", &path, &version, None).await.ok();
        let etag = ann.request("GET", "/room_keys/version", None).await.ok()["etag"].clone();
        let answer = put(&new).await;
        assert_eq!(answer["count"], 1);
        assert_eq!(answer["etag"] != etag, taken, "{new}");
        let after = ask(&ann, "GET", &path, &version, None).await.ok();
        assert_eq!(after, if taken { new } else { before });
    }
}

#[tokio::test]
async fn keys_go_into_the_newest_backup_alone() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let put = rooms(&json!({ "S": key(1, 0, true) }));
    ask(&ann, "PUT", "", "1", Some(&put)).await.refused(404, "M_NOT_FOUND");
    let old = begin(&ann).await;
    ask(&ann, "PUT", "", &old, Some(&put)).await.ok();
    let new = begin(&ann).await;
    let refused = ask(&ann, "PUT", "", &old, Some(&put)).await;
    let refused = refused.refused(403, "M_WRONG_ROOM_KEYS_VERSION");
    assert_eq!(refused["current_version"], new.as_str());
    // An old one can be read and emptied.
    assert_eq!(ask(&ann, "GET", &format!("/{ROOM}/S"), &old, None).await.ok(), key(1, 0, true));
    assert_eq!(ask(&ann, "DELETE", "", &old, None).await.ok()["count"], 0);
    for version in ["99", "x", "01", "-1"] {
        for (method, body) in [("GET", None), ("PUT", Some(&put)), ("DELETE", None)] {
            ask(&ann, method, "", version, body).await.refused(404, "M_NOT_FOUND");
        }
    }
}

#[tokio::test]
async fn what_is_no_key_is_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let version = begin(&ann).await;
    let mut strings = key(1, 0, true);
    strings["first_message_index"] = "1".into();
    let mut negative = key(1, 0, true);
    negative["forwarded_count"] = (-1).into();
    let mut no_object = key(1, 0, true);
    no_object["session_data"] = "text".into();
    let mut large = key(1, 0, true);
    large["session_data"]["ciphertext"] = "x".repeat(40_000).into();
    for (bad, status, code) in [
        (json!({}), 400, "M_BAD_JSON"),
        (strings, 400, "M_BAD_JSON"),
        (negative, 400, "M_BAD_JSON"),
        (no_object, 400, "M_BAD_JSON"),
        (large, 413, "M_TOO_LARGE"),
    ] {
        ask(&ann, "PUT", &format!("/{ROOM}/S"), &version, Some(&bad)).await.refused(status, code);
        let all = rooms(&json!({ "S": bad }));
        ask(&ann, "PUT", "", &version, Some(&all)).await.refused(status, code);
    }
    let long = rooms(&json!({ "S".repeat(256): key(1, 0, true) }));
    ask(&ann, "PUT", "", &version, Some(&long)).await.refused(400, "M_INVALID_PARAM");
    let no_version = ann.request("GET", "/room_keys/keys", None).await;
    no_version.refused(400, "M_MISSING_PARAM");
    assert_eq!(ask(&ann, "GET", "", &version, None).await.ok(), json!({ "rooms": {} }));
    let nobody = json!({ "algorithm": "m.megolm_backup.v1.curve25519-aes-sha2" });
    ann.request("POST", "/room_keys/version", Some(&nobody)).await.refused(400, "M_BAD_JSON");
}

/// Of a large backup, in several records, none is lost over a restart; devices that put at the same
/// time do not hinder each other.
#[tokio::test]
async fn a_large_backup_survives_a_restart() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let version = begin(&ann).await;
    let mut puts = Vec::new();
    for part in 0..4 {
        let keys: serde_json::Map<_, _> = (0..300)
            .map(|number| {
                let mut key = key(number, 0, true);
                key["session_data"]["ciphertext"] = "c".repeat(1000).into();
                (format!("session {part} {number}"), key)
            })
            .collect();
        puts.push(rooms(&keys.into()));
    }
    let put = |body| {
        let (ann, version) = (&ann, &version);
        async move { ask(ann, "PUT", "", version, Some(body)).await.ok() }
    };
    tokio::join!(put(&puts[0]), put(&puts[1]), put(&puts[2]), put(&puts[3]));
    let before = ask(&ann, "GET", "", &version, None).await.ok();
    assert_eq!(before["rooms"][ROOM]["sessions"].as_object().unwrap().len(), 1200);
    let info = ann.request("GET", "/room_keys/version", None).await.ok();
    assert_eq!(info["count"], 1200);
    server.restart().await;
    assert_eq!(ask(&ann, "GET", "", &version, None).await.ok(), before);
    assert_eq!(ann.request("GET", "/room_keys/version", None).await.ok(), info);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_backup_comes_whole_and_takes_little_memory() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let version = begin(&ann).await;
    let room = |number: usize| format!("!room{number}:x.example");
    let mut expected = json!({});
    for number in 0..48 {
        // Some of each room in each record.
        let mut sent = json!({});
        for session in 0..48 {
            let mut key = key(number as u64, 0, true);
            key["session_data"]["ciphertext"] = format!("{number}-{session}").repeat(5_000).into();
            let name = format!("session \"{number}\" {session}");
            sent[room(session % 3)]["sessions"][&name] = key.clone();
            expected[room(session % 3)]["sessions"][&name] = key;
        }
        ask(&ann, "PUT", "", &version, Some(&json!({ "rooms": sent }))).await.ok();
    }
    let size = expected.to_string().len();
    assert!(size > 50_000_000, "{size}");
    let before = server.peak_memory();
    let one = ask(&ann, "GET", &format!("/{}", encode(&room(1))), &version, None).await.ok();
    assert!(one == expected[room(1)], "other keys of a room");
    let all = ask(&ann, "GET", "", &version, None).await.ok();
    assert!(all["rooms"] == expected, "other keys");
    let grown = server.peak_memory().saturating_sub(before);
    // Caches, the allocator and the compression of what was just written take up to 40 MB of it,
    // whatever the size. A whole answer takes twice its size.
    assert!(grown < 48 << 20, "{grown} bytes more for an answer of {size}");
    // One of a room without any is as short as ever.
    let none = ask(&ann, "GET", "/!other:x.example", &version, None).await.ok();
    assert_eq!(none, json!({ "sessions": {} }));
}
