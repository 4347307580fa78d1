//! What was redacted leaves the disk, and the server goes on as if nothing had happened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::administration::done;
use crate::contents::files_with;
use crate::crash::assert_verifies;
use crate::harness::{
    Direction, Random, TestServer, User, encode, number_from_env, restore, run_logcabin,
    run_logcabin_with, until, until_ok,
};

/// Everything that is due is erased at once.
const AT_ONCE: [(&str, &str); 2] =
    [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];

const DELAYED: &str = "/_matrix/client/unstable/org.matrix.msc4140/delayed_events";

/// A restore of the stopped server's archive verifies, and has these texts in no file.
fn assert_restored_without(server: &TestServer, texts: &[&str]) {
    let new = TempDir::new().expect("a temporary directory");
    let data_dir = new.path().join("data");
    restore(&server.data_dir().join("archive"), &data_dir);
    assert_verifies(&data_dir);
    for text in texts {
        assert_eq!(files_with(&data_dir, text), Vec::<PathBuf>::new(), "{text}");
    }
}

async fn wait_until_gone(server: &TestServer, text: &str) {
    until_ok("what is erased is in no file", async || {
        let found = files_with(server.data_dir(), text);
        if found.is_empty() { Ok(()) } else { Err(found) }
    })
    .await;
}

async fn redact(user: &User, room_id: &str, event_id: &str, txn_id: &str) -> String {
    let path = format!("/rooms/{}/redact/{}/{txn_id}", encode(room_id), encode(event_id));
    let body = json!({ "reason": "said too much" });
    user.request("PUT", &path, Some(&body)).await.ok_string("event_id")
}

async fn event(user: &User, room_id: &str, event_id: &str) -> Value {
    let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
    user.request("GET", &path, None).await.ok()
}

fn digest(data_dir: &Path) -> String {
    let output = run_logcabin([
        "replay".as_ref(),
        "--json".as_ref(),
        "--data-dir".as_ref(),
        data_dir.as_os_str(),
    ]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    report["digest"].as_str().expect("a digest").to_owned()
}

#[tokio::test]
async fn redacted_content_leaves_every_file() {
    const SECRET: &str = "the-eagle-has-landed";
    const TOPIC: &str = "where-the-eagle-lands";
    let mut server = TestServer::start_with(&AT_ONCE).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "topic": TOPIC })).await;
    let event_id = ann.send_text(&room_id, "1", SECRET).await;
    let stays = ann.send_text(&room_id, "2", "this-one-stays").await;
    let path = format!("/rooms/{}/messages?dir=b&limit=20", encode(&room_id));
    let all = ann.request("GET", &path, None).await.ok();
    let is_topic = |event: &&Value| event["type"] == "m.room.topic";
    let topic = all["chunk"].as_array().and_then(|events| events.iter().find(is_topic));
    let topic = topic.and_then(|event| event["event_id"].as_str()).expect("the topic is there");

    let redaction = redact(&ann, &room_id, &event_id, "3").await;
    redact(&ann, &room_id, topic, "4").await;
    for text in [SECRET, TOPIC] {
        wait_until_gone(&server, text).await;
    }
    assert!(!files_with(server.data_dir(), "this-one-stays").is_empty());
    let seen = event(&ann, &room_id, &event_id).await;
    assert_eq!((&seen["content"], &seen["type"]), (&json!({}), &json!("m.room.message")));
    assert_eq!(seen["unsigned"]["redacted_because"]["event_id"], redaction);
    assert_eq!(event(&ann, &room_id, &stays).await["content"]["body"], "this-one-stays");
    // Under the same transaction it is still the same event.
    assert_eq!(ann.send_text(&room_id, "1", SECRET).await, event_id);

    server.stop();
    assert_verifies(server.data_dir());
    let before = digest(server.data_dir());
    let output =
        run_logcabin(["verify".as_ref(), "--data-dir".as_ref(), server.data_dir().as_os_str()]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("that were erased"), "{output:?}");
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    assert_eq!(event(&ann, &room_id, &event_id).await["content"], json!({}));
    ann.send_text(&room_id, "5", "and so on").await;
    server.stop();
    assert_ne!(digest(server.data_dir()), before);

    // Of what is left, all can be rebuilt.
    assert_restored_without(&server, &[SECRET]);
}

#[tokio::test]
async fn the_content_of_a_redacted_scheduled_event_leaves_every_file() {
    const SECRET: &str = "the-eagle-will-land";
    let mut server = TestServer::start_with(&AT_ONCE).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let mut delays = Vec::new();
    for (txn_id, text) in [("1", SECRET), ("2", "this-one-stays")] {
        let query = "org.matrix.msc4140.delay=3600000";
        let path = format!("/rooms/{}/send/m.room.message/{txn_id}?{query}", encode(&room_id));
        let content = json!({ "msgtype": "m.text", "body": text });
        delays.push(ann.request("PUT", &path, Some(&content)).await.ok_string("delay_id"));
    }
    for delay_id in &delays {
        let path = format!("{DELAYED}/{}/send", encode(delay_id));
        server.http().request("POST", &path, None, Some(&json!({}))).await.ok();
    }
    let delayed = async |ann: &User, delay_id: &str| {
        let path = format!("{DELAYED}/{}", encode(delay_id));
        ann.http.request("GET", &path, Some(&ann.access_token), None).await.ok()
    };
    let sent = delayed(&ann, &delays[0]).await;
    assert_eq!(sent["content"]["body"], SECRET);
    let event_id = sent["event_id"].as_str().expect("it was sent");

    redact(&ann, &room_id, event_id, "3").await;
    // From now on, whether it has left the files yet or not.
    assert_eq!(delayed(&ann, &delays[0]).await["content"], json!({}));
    wait_until_gone(&server, SECRET).await;
    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    let after = delayed(&ann, &delays[0]).await;
    assert_eq!((&after["content"], &after["event_id"]), (&json!({}), &sent["event_id"]));
    assert_eq!(delayed(&ann, &delays[1]).await["content"]["body"], "this-one-stays");

    server.stop();
    assert_restored_without(&server, &[SECRET]);
}

#[tokio::test]
async fn redacted_content_is_hidden_at_once_and_erased_after_its_grace_period() {
    const SECRET: &str = "the-eagle-has-landed";
    let settings = [("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];
    let server = TestServer::start_with(&settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let event_id = ann.send_text(&room_id, "1", SECRET).await;
    redact(&ann, &room_id, &event_id, "2").await;
    assert_eq!(event(&bob, &room_id, &event_id).await["content"], json!({}));
    // Until another sweep has come and gone: of receipts, which have no time of grace.
    for number in 0..2 {
        let newer = ann.send_text(&room_id, &format!("n{number}"), "x").await;
        let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&newer));
        bob.request("POST", &path, Some(&json!({}))).await.ok();
    }
    until("a sweep", async || server.output().contains("erased expired content")).await;
    assert!(!files_with(server.data_dir(), SECRET).is_empty());
    assert!(!bob.sync(None, 0, None).await.to_string().contains(SECRET));
}

/// `LOGCABIN_CRASH_ROUNDS` sets the number of rounds.
#[tokio::test]
async fn a_server_killed_while_erasing_loses_nothing_and_erases_everything() {
    const SECRET: &str = "the-eagle-has-landed";
    let rounds = number_from_env("LOGCABIN_CRASH_ROUNDS", 6);
    let mut random = Random::from_env("LOGCABIN_CRASH_SEED");
    let mut server = TestServer::start_with(&AT_ONCE).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let (mut kept, mut redacted) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let ann = User { http: server.http(), ..ann.clone() };
        for number in 0..5 {
            let txn = format!("{round}-{number}");
            let event_id = ann.send_text(&room_id, &txn, &format!("{SECRET} {txn}")).await;
            redact(&ann, &room_id, &event_id, &format!("r{txn}")).await;
            redacted.push(event_id);
            kept.push(ann.send_text(&room_id, &format!("k{txn}"), "this-one-stays").await);
        }
        // Sweeps are a second apart; erasing takes some milliseconds of it.
        tokio::time::sleep(Duration::from_millis(random.between(600, 2500))).await;
        server.kill9();
        if round % 2 == 0 {
            assert_verifies(server.data_dir());
        }
        server.restart().await;
    }
    wait_until_gone(&server, SECRET).await;
    let ann = User { http: server.http(), ..ann };
    for event_id in &kept {
        assert_eq!(event(&ann, &room_id, event_id).await["content"]["body"], "this-one-stays");
    }
    for event_id in &redacted {
        assert_eq!(event(&ann, &room_id, event_id).await["content"], json!({}));
    }
    server.stop();
    assert_verifies(server.data_dir());
}

/// Sweeps are a second apart, and rooms are heard however short a life they ask for.
const SHORT_LIVES: [(&str, &str); 4] = [
    ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1"),
    ("LOGCABIN_RETENTION_LOWEST_SECONDS", "0"),
    ("LOGCABIN_RETENTION_RULES", "* m.reaction 0,!nobody:e2e.test * off"),
    ("LOGCABIN_RETENTION_HIGHEST_SECONDS", "5000"),
];

fn logcabin(data_dir: &Path, arguments: &[&str]) -> std::process::Output {
    let data_dir = data_dir.to_str().expect("a temporary directory has a plain name");
    run_logcabin_with("", arguments.iter().copied().chain(["--data-dir", data_dir]))
}

async fn room_with_lifetime(user: &User, lifetime_ms: u64) -> String {
    let retention = json!({
        "type": "m.room.retention", "state_key": "", "content": { "max_lifetime": lifetime_ms },
    });
    let options =
        json!({ "preset": "public_chat", "topic": "short", "initial_state": [retention] });
    user.create_room(options).await
}

#[tokio::test]
async fn expired_events_are_deleted_and_leave_every_file() {
    const SECRET: &str = "the-eagle-has-landed";
    const REACTION: &str = "wings-of-an-eagle";
    let mut server = TestServer::start_with(&SHORT_LIVES).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = room_with_lifetime(&ann, 1).await;
    let other = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let event_id = ann.send_text(&room_id, "1", SECRET).await;
    let stays = ann.send_text(&other, "2", "this-one-stays").await;
    let relation = json!({ "rel_type": "m.annotation", "event_id": stays, "key": REACTION });
    let reaction = json!({ "m.relates_to": relation });
    ann.send(&other, "m.reaction", "3", &reaction).await.ok();
    let since = bob.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();
    for text in [SECRET, REACTION] {
        wait_until_gone(&server, text).await;
    }

    for user in [&ann, &bob] {
        for what in ["event", "context"] {
            let path = format!("/rooms/{}/{what}/{}", encode(&room_id), encode(&event_id));
            user.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
        }
        // A page goes on past what is gone, and the room is there.
        let path = format!("/rooms/{}/messages?dir=f&limit=100", encode(&room_id));
        let page = user.request("GET", &path, None).await.ok();
        let types: Vec<_> =
            page["chunk"].as_array().into_iter().flatten().map(|e| &e["type"]).collect();
        assert!(types.contains(&&json!("m.room.topic")), "{page}");
        assert!(!types.contains(&&json!("m.room.message")), "{page}");
    }
    let later = bob.sync(Some(&since), 0, None).await;
    assert!(!later.to_string().contains(SECRET), "{later}");
    let search = json!({ "search_categories": { "room_events": { "search_term": "eagle" } } });
    let found = ann.request("POST", "/search", Some(&search)).await.ok();
    assert_eq!(found["search_categories"]["room_events"]["count"], 0, "{found}");
    // The room goes on from it, and a transaction is still the one that it was.
    assert_eq!(ann.send_text(&room_id, "1", SECRET).await, event_id);
    ann.send_text(&room_id, "4", "and so on").await;
    let path = format!("/rooms/{}/relations/{}", encode(&other), encode(&stays));
    let path = format!("/_matrix/client/v1{path}");
    let relations = ann.http.request("GET", &path, Some(&ann.access_token), None).await.ok();
    assert_eq!(relations["chunk"], json!([]));
    assert_eq!(event(&ann, &other, &stays).await["content"]["body"], "this-one-stays");

    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&event_id));
    ann.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    assert_eq!(event(&ann, &other, &stays).await["content"]["body"], "this-one-stays");
    server.stop();
    assert_restored_without(&server, &[SECRET]);
}

/// No sweep comes for a day.
#[tokio::test]
async fn expired_events_are_hidden_before_the_next_sweep() {
    const SECRET: &str = "the-eagle-has-landed";
    let settings =
        [("LOGCABIN_RETENTION_LOWEST_SECONDS", "0"), ("LOGCABIN_RETENTION_HIGHEST_SECONDS", "2")];
    let server = TestServer::start_with(&settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = room_with_lifetime(&ann, 2000).await;
    bob.join(&room_id).await.ok();
    // One that asks for its events to be kept, whatever the longest time for all is.
    let kept = ann
        .create_room(json!({ "preset": "public_chat", "initial_state": [{
        "type": "m.room.retention", "state_key": "",
        "content": { "max_lifetime": 1, "min_lifetime": 3_600_000 },
    }] }))
        .await;
    bob.join(&kept).await.ok();
    let root = ann.send_text(&kept, "0", "the root").await;
    let event_id = ann.send_text(&room_id, "1", SECRET).await;
    let reply = json!({ "msgtype": "m.text", "body": SECRET,
        "m.relates_to": { "rel_type": "m.thread", "event_id": event_id } });
    ann.send(&room_id, "m.room.message", "2", &reply).await.ok();
    let stays = ann.send_text(&kept, "3", "this-one-stays").await;
    let before = bob.sync(None, 0, None).await;
    assert!(before.to_string().contains(SECRET), "{before}");
    let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&event_id));
    until("the event has lived long enough", async || {
        bob.request("GET", &path, None).await.status == 404
    })
    .await;
    // It is still in the files: only the time has passed.
    assert!(!files_with(server.data_dir(), SECRET).is_empty());
    until("so has the one after it", async || {
        !bob.sync(None, 0, None).await.to_string().contains(SECRET)
    })
    .await;
    for user in [&ann, &bob] {
        for path in ["messages?dir=b&limit=50", "messages?dir=f&limit=50", "threads"] {
            let version = if path == "threads" { "v1" } else { "v3" };
            let path = format!("/_matrix/client/{version}/rooms/{}/{path}", encode(&room_id));
            let page = user.http.request("GET", &path, Some(&user.access_token), None).await.ok();
            assert!(!page.to_string().contains(SECRET), "{page}");
        }
        let path = format!("/rooms/{}/context/{}", encode(&room_id), encode(&event_id));
        user.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
        let search = json!({ "search_categories": { "room_events": { "search_term": "eagle" } } });
        let found = user.request("POST", "/search", Some(&search)).await.ok();
        assert!(!found.to_string().contains(SECRET), "{found}");
        for event_id in [&root, &stays] {
            assert!(event(user, &kept, event_id).await["content"]["body"].is_string());
        }
    }
    // The room goes on from it, and a transaction is still the one that it was.
    assert_eq!(ann.send_text(&room_id, "1", SECRET).await, event_id);
    ann.send_text(&room_id, "4", "and so on").await;
}

#[tokio::test]
async fn clients_are_told_how_long_events_live() {
    let server = TestServer::start_with(&SHORT_LIVES).await;
    let ann = server.register("ann").await;
    for path in [
        "/_matrix/client/unstable/org.matrix.msc1763/retention/configuration",
        "/_matrix/client/v3/retention/configuration",
    ] {
        let told = ann.http.request("GET", path, Some(&ann.access_token), None).await.ok();
        assert_eq!(
            told,
            json!({
                "policies": { "*": {} },
                "limits": { "max_lifetime": { "min": 0, "max": 5_000_000 } },
            })
        );
        ann.http.request("GET", path, None, None).await.refused(401, "M_MISSING_TOKEN");
    }
}

#[tokio::test]
async fn purging_a_room_deletes_everything_in_it() {
    const SECRET: &str = "the-eagle-has-landed";
    const TOPIC: &str = "where-the-eagle-lands";
    const PICTURE: &str = "a picture of the eagle, as text";
    let mut server = TestServer::start_with(&AT_ONCE).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let options = json!({
        "preset": "public_chat", "topic": TOPIC, "room_alias_name": "eyrie", "visibility": "public",
    });
    let room_id = ann.create_room(options).await;
    let other = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let (picture, shared) =
        (ann.upload("text/plain", PICTURE).await, ann.upload("text/plain", "shared").await);
    for (txn_id, media, room) in
        [("1", &picture, &room_id), ("2", &shared, &room_id), ("3", &shared, &other)]
    {
        let content = json!({ "msgtype": "m.file", "body": "f", "url": format!("mxc://{media}") });
        ann.send(room, "m.room.message", txn_id, &content).await.ok();
    }
    let event_id = ann.send_text(&room_id, "4", SECRET).await;
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&event_id));
    bob.request("POST", &path, Some(&json!({}))).await.ok();
    let tag =
        format!("/user/{}/rooms/{}/tags/u.eagles-own", encode(&ann.user_id), encode(&room_id));
    ann.request("PUT", &tag, Some(&json!({}))).await.ok();
    let stays = ann.send_text(&other, "5", "this-one-stays").await;
    let since = bob.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();

    let data_dir = server.data_dir().to_owned();
    let purge = |more: &[&str]| {
        logcabin(&data_dir, &[&["room", "purge", "#eyrie:e2e.test", "--json"], more].concat())
    };
    let would = done(purge(&["--dry-run"]));
    for part in ["2 user(s) leave", "#eyrie:e2e.test", "1 file(s) that only it names"] {
        assert!(would.contains(part), "no {part:?} in {would}");
    }
    assert!(!purge(&["--yes"]).status.success());
    assert_eq!(event(&ann, &room_id, &event_id).await["content"]["body"], SECRET);
    let did: Value =
        serde_json::from_str(&done(purge(&["--yes", "--force", "--reason", "no more eagles"])))
            .expect("JSON");
    assert_eq!((&did["left"], &did["room_id"]), (&json!(2), &json!(room_id)));

    for text in [SECRET, TOPIC, PICTURE, "u.eagles-own"] {
        wait_until_gone(&server, text).await;
    }
    let told = bob.sync(Some(&since), 0, None).await;
    assert!(told["rooms"]["leave"][&room_id].is_object(), "{told}");
    let check = async |ann: &User| {
        let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&event_id));
        let status = ann.request("GET", &path, None).await.status;
        assert!([403, 404].contains(&status), "{status}");
        let joined = ann.request("GET", "/joined_rooms", None).await.ok();
        assert_eq!(joined["joined_rooms"], json!([other]));
        ann.request("GET", "/directory/room/%23eyrie:e2e.test", None)
            .await
            .refused(404, "M_NOT_FOUND");
        let public = ann.request("GET", "/publicRooms", None).await.ok();
        assert_eq!(public["chunk"], json!([]));
        assert_eq!(ann.download(&picture).await.parts.status, 404);
        assert_eq!(ann.download(&shared).await.parts.status, 200);
        assert_eq!(event(ann, &other, &stays).await["content"]["body"], "this-one-stays");
        assert!(!ann.sync(None, 0, None).await.to_string().contains(&room_id));
    };
    check(&ann).await;
    ann.join(&room_id).await.refused(403, "M_FORBIDDEN");

    let list: Value =
        serde_json::from_str(&done(logcabin(&data_dir, &["erasure", "list", "--json"])))
            .expect("JSON");
    let rows = list["rows"].as_array().expect("rows");
    let row = rows
        .iter()
        .find(|row| row["what"].as_str().is_some_and(|what| what.contains("no more eagles")));
    let because = row.expect("the purge is listed")["because"].to_string();
    let shown = || -> Value {
        let shown = done(logcabin(&data_dir, &["erasure", "show", &because, "--json"]));
        serde_json::from_str(&shown).expect("JSON")
    };
    until_ok("the receipt says that it is off the disk", async || {
        let shown = shown();
        let off = shown["off_the_log"] == true && shown["off_the_archive"] == true;
        if off { Ok(()) } else { Err(shown) }
    })
    .await;
    let receipt = shown();
    assert_eq!(receipt["waiting"], 0);
    assert_eq!(receipt["kinds"]["room.event"], did["events"], "{receipt}");
    assert!(done(logcabin(&data_dir, &["erasure", "show", &because])).contains("no more eagles"));

    server.stop();
    assert_verifies(server.data_dir());
    // A stopped server does it, too.
    server.restart().await;
    check(&User { http: server.http(), ..ann.clone() }).await;
    server.stop();
    assert!(
        done(logcabin(&data_dir, &["room", "purge", &other, "--yes", "--force"]))
            .contains("Purged")
    );
    assert_verifies(server.data_dir());
    server.restart().await;
    wait_until_gone(&server, "this-one-stays").await;
    server.stop();
    assert_verifies(server.data_dir());
}

#[tokio::test]
async fn an_erased_user_leaves_nothing_in_any_file() {
    const TEXTS: [&str; 9] = [
        "eagle-name",
        "eagle-data",
        "eagle-room-data",
        "eagleKey",
        "eagle-filter",
        "eagle-device",
        "eagle-file-name",
        "eagle-file-content",
        "eagle-message",
    ];
    let mut server = TestServer::start_with(&AT_ONCE).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = bob.create_room(json!({ "preset": "public_chat" })).await;
    ann.join(&room_id).await.ok();
    let user = format!("/user/{}", encode(&ann.user_id));
    let put = async |path: &str, body: Value| ann.request("PUT", path, Some(&body)).await.ok();
    put(
        &format!("/profile/{}/displayname", encode(&ann.user_id)),
        json!({ "displayname": "eagle-name" }),
    )
    .await;
    put(&format!("{user}/account_data/test"), json!({ "of": "eagle-data" })).await;
    put(
        &format!("{user}/rooms/{}/account_data/test", encode(&room_id)),
        json!({ "of": "eagle-room-data" }),
    )
    .await;
    put(&format!("/devices/{}", ann.device_id), json!({ "display_name": "eagle-device" })).await;
    let filter = json!({ "room": { "timeline": { "types": ["eagle-filter"] } } });
    ann.request("POST", &format!("{user}/filter"), Some(&filter)).await.ok();
    let backup = json!({ "algorithm": "m.megolm_backup.v1.curve25519-aes-sha2",
        "auth_data": { "public_key": "eagleKey", "signatures": {} } });
    ann.request("POST", "/room_keys/version", Some(&backup)).await.ok();
    let key = json!({ "first_message_index": 0, "forwarded_count": 0, "is_verified": true,
        "session_data": { "ciphertext": "eagleKey" } });
    put("/room_keys/keys/!r:e2e.test/s?version=1", key).await;
    let media = ann.upload("text/eagle-file-name", "eagle-file-content").await;
    let sent = ann.send_text(&room_id, "1", "eagle-message").await;
    let stays = bob.send_text(&room_id, "1", "this-one-stays").await;
    bob.sync(None, 0, None).await;
    // The change of the name has come into the room.
    until("the name is in the room", async || {
        let member = ann.state(&room_id, "m.room.member", &ann.user_id).await.ok();
        member["displayname"] == "eagle-name"
    })
    .await;
    for text in TEXTS {
        assert!(!files_with(server.data_dir(), text).is_empty(), "{text}");
    }

    let erase = |more: &[&str]| {
        logcabin(server.data_dir(), &[&["user", "erase", "ann", "--messages"], more].concat())
    };
    assert!(done(erase(&["--dry-run"])).contains("the account @ann:e2e.test is closed"));
    assert_eq!(event(&bob, &room_id, &sent).await["content"]["body"], "eagle-message");
    assert!(done(erase(&["--yes", "--reason", "asked for it"])).contains("Erased @ann:e2e.test"));
    for text in TEXTS {
        wait_until_gone(&server, text).await;
    }
    let check = async |bob: &User| {
        let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&sent));
        bob.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
        assert_eq!(event(bob, &room_id, &stays).await["content"]["body"], "this-one-stays");
        let member = bob.state(&room_id, "m.room.member", &ann.user_id).await.ok();
        assert_eq!(
            (&member["membership"], &member["displayname"]),
            (&json!("leave"), &Value::Null)
        );
        assert_eq!(bob.download(&media).await.parts.status, 404);
    };
    check(&bob).await;
    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    check(&User { http: server.http(), ..bob }).await;
    server.stop();
    assert_restored_without(&server, &TEXTS);
}

#[tokio::test]
async fn deactivation_with_erasure_removes_the_profile_and_hides_unseen_messages() {
    let mut server = TestServer::start_with(&AT_ONCE).await;
    let bob = server.register("bob").await;
    let ann = User::register(&server.http(), "ann", "a password that is long").await;
    let room_id = bob.create_room(json!({ "preset": "public_chat" })).await;
    ann.join(&room_id).await.ok();
    let name = json!({ "displayname": "eagle-name" });
    let path = format!("/profile/{}/displayname", encode(&ann.user_id));
    ann.request("PUT", &path, Some(&name)).await.ok();
    let sent = ann.send_text(&room_id, "1", "eagle-message").await;
    let auth = json!({ "type": "m.login.password", "password": "a password that is long",
        "identifier": { "type": "m.id.user", "user": "ann" } });
    let body = json!({ "erase": true, "auth": auth });
    ann.request("POST", "/account/deactivate", Some(&body)).await.ok();
    wait_until_gone(&server, "eagle-name").await;
    assert_eq!(event(&bob, &room_id, &sent).await["content"]["body"], "eagle-message");
    server.stop();
    assert_verifies(server.data_dir());
}

#[tokio::test]
async fn files_are_kept_for_their_lifetime_and_avatars_while_in_use() {
    let settings =
        [("LOGCABIN_MEDIA_LIFETIME_SECONDS", "1"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];
    let mut server = TestServer::start_with(&settings).await;
    let ann = server.register("ann").await;
    let shown = ann.upload("image/png", "eagle-of-a-user").await;
    let path = format!("/profile/{}/avatar_url", encode(&ann.user_id));
    let avatar = json!({ "avatar_url": format!("mxc://{shown}") });
    ann.request("PUT", &path, Some(&avatar)).await.ok();
    let room_id = ann.create_room(json!({})).await;
    let of_room = ann.upload("image/png", "eagle-of-a-room").await;
    let avatar = json!({ "url": format!("mxc://{of_room}") });
    ann.set_state(&room_id, "m.room.avatar", "", &avatar).await.ok();
    let media = ann.upload("text/plain", "eagle-that-goes").await;
    wait_until_gone(&server, "eagle-that-goes").await;
    assert_eq!(ann.download(&media).await.parts.status, 404);
    for kept in [&shown, &of_room] {
        assert_eq!(ann.download(kept).await.parts.status, 200);
    }
    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    assert_eq!(ann.download(&media).await.parts.status, 404);
    assert_eq!(ann.download(&shown).await.parts.status, 200);
}

#[tokio::test]
async fn delivered_to_device_messages_leave_every_file() {
    let settings =
        [("LOGCABIN_ERASURE_SWEEP_SECONDS", "1"), ("LOGCABIN_ERASURE_COMPACT_PERCENT", "1")];
    let mut server = TestServer::start_with(&settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    for (number, text) in ["eagle-arrived", "eagle-waits"].into_iter().enumerate() {
        let devices = json!({ bob.device_id.clone(): { "of": text } });
        let body = json!({ "messages": { bob.user_id.clone(): devices } });
        ann.request("PUT", &format!("/sendToDevice/test/{number}"), Some(&body)).await.ok();
        if number == 0 {
            let got = bob.sync(None, 0, None).await;
            assert!(got["to_device"].to_string().contains(text), "{got}");
            bob.sync(got["next_batch"].as_str(), 0, None).await;
        }
    }
    wait_until_gone(&server, "eagle-arrived").await;
    assert!(!files_with(server.data_dir(), "eagle-waits").is_empty());
    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    let bob = User { http: server.http(), ..bob };
    let got = bob.sync(None, 0, None).await;
    assert!(got["to_device"].to_string().contains("eagle-waits"), "{got}");
}

/// `LOGCABIN_CRASH_ROUNDS` sets the number of rounds.
#[tokio::test]
async fn a_server_killed_while_purging_and_erasing_completes_the_work() {
    const SECRET: &str = "the-eagle-has-landed";
    let rounds = number_from_env("LOGCABIN_CRASH_ROUNDS", 6);
    let mut random = Random::from_env("LOGCABIN_CRASH_SEED");
    let mut settings = SHORT_LIVES.to_vec();
    settings.push(("LOGCABIN_MEDIA_LIFETIME_SECONDS", "1"));
    let mut server = TestServer::start_with(&settings).await;
    let ann = server.register("ann").await;
    let other = ann.create_room(json!({})).await;
    let mut kept = Vec::new();
    for round in 0..rounds {
        let ann = User { http: server.http(), ..ann.clone() };
        let gone = server.register(&format!("gone{round}")).await;
        let name = json!({ "displayname": format!("{SECRET} {round}") });
        let path = format!("/profile/{}/displayname", encode(&gone.user_id));
        gone.request("PUT", &path, Some(&name)).await.ok();
        let (short, purged) = (
            room_with_lifetime(&ann, 500).await,
            ann.create_room(json!({ "topic": SECRET })).await,
        );
        for number in 0..5 {
            ann.send_text(&short, &format!("s{round}-{number}"), SECRET).await;
            ann.send_text(&purged, &format!("p{round}-{number}"), SECRET).await;
        }
        ann.upload("text/plain", format!("{SECRET} {round}")).await;
        kept.push(ann.send_text(&other, &format!("k{round}"), "this-one-stays").await);
        done(logcabin(server.data_dir(), &["room", "purge", &purged, "--yes", "--force"]));
        let user = format!("gone{round}");
        done(logcabin(server.data_dir(), &["user", "erase", &user, "--messages", "--yes"]));
        tokio::time::sleep(Duration::from_millis(random.between(100, 2500))).await;
        server.kill9();
        if round % 2 == 0 {
            assert_verifies(server.data_dir());
        }
        server.restart().await;
    }
    wait_until_gone(&server, SECRET).await;
    let ann = User { http: server.http(), ..ann };
    for event_id in &kept {
        assert_eq!(event(&ann, &other, event_id).await["content"]["body"], "this-one-stays");
    }
    let page = ann.messages(&other, None, None, Direction::Back, 100).await;
    assert!(page.to_string().contains("this-one-stays"));
    server.stop();
    assert_verifies(server.data_dir());
}

const TAKEN_BACK: &str = "the-eagle-has-landed";

/// What a room holds: each message with what it says, which is nothing once it was redacted.
type Said = BTreeMap<String, Option<String>>;

/// Writes until the server is gone, and takes back every other message. Gives what was
/// acknowledged, and those of which it is not known whether they were taken back.
async fn write_and_take_back(user: User, room_id: String, round: u64) -> (Said, BTreeSet<String>) {
    let (mut said, mut open) = (Said::new(), BTreeSet::new());
    for number in 0.. {
        let text = if number % 2 == 0 { TAKEN_BACK } else { "this-one-stays" };
        let Ok(answer) = user.try_send_text(&room_id, &format!("{round}-{number}"), text).await
        else {
            break;
        };
        let event_id = answer.ok_string("event_id");
        said.insert(event_id.clone(), Some(text.to_owned()));
        if number % 2 == 0 {
            let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&event_id));
            match user.try_request("PUT", &path, Some(&json!({}))).await {
                Ok(answer) => {
                    answer.ok();
                    said.insert(event_id, None);
                }
                Err(_) => {
                    open.insert(event_id);
                    break;
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (said, open)
}

async fn all_said(user: &User, room_id: &str) -> Said {
    let mut said = Said::new();
    let mut from: Option<String> = None;
    loop {
        let page = user.messages(room_id, from.as_deref(), None, Direction::Back, 1000).await;
        for event in page["chunk"].as_array().into_iter().flatten() {
            if event["type"] == "m.room.message" {
                let event_id = event["event_id"].as_str().expect("an id").to_owned();
                let body = event["content"]["body"].as_str().map(ToOwned::to_owned);
                assert!(said.insert(event_id, body).is_none(), "twice: {event}");
            }
        }
        match page["end"].as_str() {
            Some(end) => from = Some(end.to_owned()),
            None => return said,
        }
    }
}

/// Whether files of the log are being rewritten.
fn is_compacting(server: &TestServer) -> bool {
    let files = fs::read_dir(server.data_dir().join("log/volumes")).into_iter().flatten();
    let mut paths = files.flatten().map(|entry| entry.path());
    paths.any(|path| path.extension().is_some_and(|extension| extension == "new"))
}

/// `LOGCABIN_CRASH_ROUNDS` sets the number of rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_while_compacting_under_load_loses_nothing_acknowledged() {
    let rounds = number_from_env("LOGCABIN_CRASH_ROUNDS", 4);
    let mut random = Random::from_env("LOGCABIN_CRASH_SEED");
    let mut server = TestServer::start_with(&AT_ONCE).await;
    let mut writers = Vec::new();
    for number in 0..3 {
        let user = server.register(&format!("writer{number}")).await;
        let room_id = user.create_room(json!({})).await;
        writers.push((user, room_id, Said::new(), BTreeSet::new()));
    }
    let mut seen = 0;
    for round in 0..rounds {
        let running: Vec<_> = writers
            .iter()
            .map(|(user, room_id, ..)| {
                let user = User { http: server.http(), ..user.clone() };
                tokio::spawn(write_and_take_back(user, room_id.clone(), round))
            })
            .collect();
        // A sweep each second is followed by a compaction.
        let mut compacting = false;
        for _ in 0..3_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            compacting = is_compacting(&server);
            if compacting {
                break;
            }
        }
        seen += u64::from(compacting);
        // In the middle of it, at its end or behind it.
        tokio::time::sleep(Duration::from_micros(random.between(0, 50_000))).await;
        server.kill9();
        for ((_, _, said, open), running) in writers.iter_mut().zip(running) {
            let (more, unknown) = running.await.expect("a writer ends with the server");
            said.extend(more);
            open.extend(unknown);
        }
        assert_verifies(server.data_dir());
        server.restart().await;
        for (user, room_id, said, open) in &writers {
            let user = User { http: server.http(), ..user.clone() };
            let there = all_said(&user, room_id).await;
            for (event_id, text) in said {
                let found = there.get(event_id);
                let is_open = open.contains(event_id) && found == Some(&None);
                assert!(is_open || found == Some(text), "round {round}: {event_id}: {found:?}");
            }
        }
    }
    assert!(seen > 0, "no compaction was met");
    println!("killed {rounds} times, {seen} times in or right after a compaction");
    // And it all ends: nothing of what was taken back is left.
    for (user, room_id, ..) in &writers {
        let user = User { http: server.http(), ..user.clone() };
        for (event_id, text) in all_said(&user, room_id).await {
            if text.as_deref() == Some(TAKEN_BACK) {
                redact(&user, room_id, &event_id, &format!("end-{}", &event_id[1..])).await;
            }
        }
    }
    wait_until_gone(&server, TAKEN_BACK).await;
    server.stop();
    assert_verifies(server.data_dir());
}
