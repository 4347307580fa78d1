//! What was redacted leaves the disk, and the server goes on as if nothing had happened.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::crash::assert_verifies;
use crate::harness::{
    Random, TestServer, User, encode, number_from_env, restore, run_logcabin, until, until_ok,
};

/// Everything that is due is erased at once.
const AT_ONCE: [(&str, &str); 2] =
    [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];

const DELAYED: &str = "/_matrix/client/unstable/org.matrix.msc4140/delayed_events";

/// The files below `dir` that hold `text`.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // Files come and go while a server runs.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if plain(&path)
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        {
            found.push(path);
        }
    }
    found
}

/// What a file holds, once it is no longer compressed.
fn plain(path: &Path) -> std::io::Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    let compressed = path.extension().is_some_and(|extension| extension == "lcvol");
    if compressed { zstd::stream::decode_all(&*bytes) } else { Ok(bytes) }
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
async fn what_was_redacted_leaves_every_file() {
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
    let new = TempDir::new().expect("a temporary directory");
    let data_dir = new.path().join("data");
    restore(&server.data_dir().join("archive"), &data_dir);
    assert_verifies(&data_dir);
    assert_eq!(files_with(&data_dir, SECRET), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn what_was_scheduled_sent_and_redacted_leaves_every_file() {
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
    let new = TempDir::new().expect("a temporary directory");
    let data_dir = new.path().join("data");
    restore(&server.data_dir().join("archive"), &data_dir);
    assert_verifies(&data_dir);
    assert_eq!(files_with(&data_dir, SECRET), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn what_was_redacted_stays_in_the_log_for_its_time_of_grace_and_is_shown_to_nobody() {
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
    until("a sweep", async || server.output().contains("erased what is due")).await;
    assert!(!files_with(server.data_dir(), SECRET).is_empty());
    assert!(!bob.sync(None, 0, None).await.to_string().contains(SECRET));
}

/// `LOGCABIN_CRASH_ROUNDS` sets the number of rounds.
#[tokio::test]
async fn a_server_that_is_killed_while_it_erases_loses_nothing_and_erases_all() {
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
