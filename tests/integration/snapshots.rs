//! A start from a snapshot: nothing of it shows but that it is quick, whatever became of the file.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::crash::assert_verifies;
use crate::harness::{Direction, TestServer, User, run_logcabin};

fn snapshots(data_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data_dir.join("snapshots")).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "snapshot")).collect();
    paths.sort();
    paths
}

fn snapshot(data_dir: &Path, what: &str) -> (bool, Value) {
    let output = run_logcabin([
        "snapshot".as_ref(),
        what.as_ref(),
        "--json".as_ref(),
        "--data-dir".as_ref(),
        data_dir.as_os_str(),
    ]);
    let said = serde_json::from_slice(&output.stdout);
    (output.status.success(), said.unwrap_or_else(|_| panic!("{output:?}")))
}

/// The offset of the snapshot that the server last started from, and how many records it replayed.
fn start_of(server: &TestServer) -> (u64, u64) {
    let output = server.output();
    let line = output.lines().rfind(|line| line.contains("the projections are loaded"));
    let line = line.unwrap_or_else(|| panic!("no start in {output}"));
    let number = |name: &str| {
        let value = line.split_once(&format!("{name}=")).map(|(_, rest)| rest);
        let digits: String = value.unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("no {name} in {line}"))
    };
    (number("snapshot"), number("replayed"))
}

/// What a user sees of everything: to be the same before and after.
async fn seen(server: &TestServer, user: &User, room_id: &str) -> Value {
    let user = User { http: server.http(), ..user.clone() };
    let mut sync = user.sync(None, 0, None).await;
    // Presence is of the moment.
    sync.as_object_mut().map(|sync| sync.remove("presence"));
    let state = user.request("GET", &format!("/rooms/{room_id}/state"), None).await.ok();
    let messages = user.messages(room_id, None, None, Direction::Back, 100).await;
    let mut seen = json!({ "sync": sync, "state": state, "messages": messages });
    forget_ages(&mut seen);
    seen
}

fn forget_ages(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("age");
            fields.values_mut().for_each(forget_ages);
        }
        Value::Array(values) => values.iter_mut().for_each(forget_ages),
        _ => {}
    }
}

async fn talk(server: &TestServer, user: &User, room_id: &str, name: &str, messages: usize) {
    let user = User { http: server.http(), ..user.clone() };
    for number in 0..messages {
        user.send_text(room_id, &format!("{name}{number}"), &format!("{name} {number}")).await;
    }
}

#[tokio::test]
async fn a_start_uses_the_newest_usable_snapshot() {
    let mut server = TestServer::start().await;
    let (ann, ben) = (server.register("ann").await, server.register("ben").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    ben.join(&room_id).await.ok();
    talk(&server, &ann, &room_id, "a", 5).await;

    // Written beside the running server, which goes on.
    let (written, header) = snapshot(server.data_dir(), "write");
    assert!(written, "{header}");
    let first = header["offset"].as_u64().expect("an offset");
    assert!(first > 10, "{header}");
    talk(&server, &ben, &room_id, "b", 5).await;
    let before = seen(&server, &ann, &room_id).await;
    server.kill9();
    server.restart().await;
    let (from, replayed) = start_of(&server);
    assert_eq!(from, first);
    assert!((5..100).contains(&replayed), "{replayed}");
    assert_eq!(seen(&server, &ann, &room_id).await, before);

    // A second one, then damaged in every part: the first serves, and a person can see why.
    let (_, header) = snapshot(server.data_dir(), "write");
    let second = header["offset"].as_u64().expect("an offset");
    assert!(second > first);
    server.kill9();
    let newest = snapshots(server.data_dir()).pop().expect("a snapshot");
    let whole = fs::read(&newest).expect("the snapshot can be read");
    let newer =
        String::from_utf8_lossy(&whole[..HEADER]).replacen("\"version\":1", "\"version\":9", 1);
    let damages: [(&str, Vec<u8>, &str); 5] = [
        ("a byte of the body", flipped(&whole, whole.len() - 7), "has another hash"),
        ("the header", flipped(&whole, 3), "its header is invalid"),
        ("the end", whole[..whole.len() - 1].to_vec(), "not as long as its header says"),
        ("all but a few bytes", whole[..100].to_vec(), "too short"),
        (
            "the version",
            [&newer.as_bytes()[..HEADER], &whole[HEADER..]].concat(),
            "whose snapshots differ",
        ),
    ];
    for (what, bytes, said) in damages {
        fs::write(&newest, bytes).expect("the snapshot can be written");
        server.restart().await;
        assert_eq!(start_of(&server).0, first, "{what}");
        assert!(server.output().contains(said), "{what}: {}", server.output());
        assert_eq!(seen(&server, &ann, &room_id).await, before, "{what}");
        server.kill9();
    }
    // With none that can be used, all is replayed.
    fs::write(&newest, &whole[..whole.len() - 1]).expect("the snapshot can be written");
    fs::remove_file(&snapshots(server.data_dir())[0]).expect("the first can be removed");
    server.restart().await;
    assert_eq!(start_of(&server).0, 0);
    assert_eq!(seen(&server, &ann, &room_id).await, before);
    // The next takes its place, and what nobody can use goes in time.
    talk(&server, &ann, &room_id, "c", 2).await;
    let (_, header) = snapshot(server.data_dir(), "write");
    let third = header["offset"].as_u64().expect("an offset");
    let (equal, status) = snapshot(server.data_dir(), "compare");
    assert!(equal && status["verified_through"].as_u64() >= Some(third), "{status}");
    server.stop();
    assert_verifies(server.data_dir());
}

/// The length of a snapshot's header.
const HEADER: usize = 8192;

/// A snapshot whose sections are changed, with a header that says so.
fn rewrite(path: &Path, change: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>>) {
    let bytes = fs::read(path).expect("the snapshot can be read");
    let (header, mut body) = bytes.split_at(HEADER);
    let mut header: Value = serde_json::from_slice(header).expect("a header");
    let (mut sections, mut written) = (Vec::new(), Vec::new());
    for section in header["sections"].as_array().expect("sections") {
        let length = section["bytes"].as_u64().expect("a length");
        let (part, rest) = body.split_at(usize::try_from(length).expect("a length"));
        body = rest;
        let name = section["name"].as_str().expect("a name");
        let Some(part) = change(name, part.to_vec()) else { continue };
        let mut section = section.clone();
        section["bytes"] = json!(part.len());
        section["blake3"] = json!(blake3::hash(&part).to_hex().to_string());
        sections.push(section);
        written.extend(part);
    }
    header["bytes"] = json!(written.len());
    header["sections"] = json!(sections);
    let header = format!("{:<width$}\n", header.to_string(), width = HEADER - 1);
    fs::write(path, [header.as_bytes(), &written].concat()).expect("the snapshot can be written");
}

/// A snapshot that looks whole and says something else than the log.
fn forge(path: &Path, section: &str, from: &str, to: &str) {
    rewrite(path, |name, mut part| {
        if name == section {
            let at = part.windows(from.len()).position(|part| part == from.as_bytes());
            let at = at.unwrap_or_else(|| panic!("{from} is not in the section"));
            part[at..at + from.len()].copy_from_slice(to.as_bytes());
        }
        Some(part)
    });
}

#[tokio::test]
async fn a_snapshot_that_contradicts_the_log_is_found() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let path = format!("/profile/{}/displayname", ann.user_id);
    ann.request("PUT", &path, Some(&json!({ "displayname": "Ann of old" }))).await.ok();
    let written = snapshot(server.data_dir(), "write").1;
    server.kill9();
    let path = snapshots(server.data_dir()).remove(0);
    forge(&path, "accounts", "Ann of old", "Ben of old");

    let verify = || {
        let data_dir = server.data_dir().as_os_str();
        run_logcabin(["verify".as_ref(), "--json".as_ref(), "--data-dir".as_ref(), data_dir])
    };
    let output = verify();
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report in JSON");
    assert_eq!((output.status.code(), &report["fault"]), (Some(1), &written["offset"]), "{report}");
    let checks = report["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["name"] == "snapshots").expect("the check");
    assert_eq!(check["outcome"], "failed", "{check}");

    let (equal, status) = snapshot(server.data_dir(), "compare");
    assert!(!equal, "{status}");
    let fault = &status["fault"];
    assert_eq!((&fault["held"], &fault["after"]), (&json!("snapshot"), &json!(0)), "{status}");
    assert_eq!((&fault["by"], &fault["projections"]), (&written["offset"], &json!(["accounts"])));
    assert!(fault["first"]["place"].as_str().is_some_and(|place| place.contains("@ann:")));
    assert_eq!(fault["first"]["record"], written["offset"], "{status}");
    // It is gone, so that nothing begins with it.
    assert_eq!(snapshots(server.data_dir()), Vec::<PathBuf>::new());
    assert!(verify().status.success());
}

/// Waits until the server has made again what another version wrote.
async fn made_again(server: &TestServer) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, status) = snapshot(server.data_dir(), "status");
        if status["provisional"] == json!([]) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status} {}", server.output());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn wrong_state_is_corrected_while_the_server_runs() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let path = format!("/profile/{}/displayname", ann.user_id);
    ann.request("PUT", &path, Some(&json!({ "displayname": "Ann of old" }))).await.ok();
    let named = snapshot(server.data_dir(), "write").1["offset"].clone();
    let room_id = ann.create_room(json!({})).await;
    server.kill9();
    forge(&snapshots(server.data_dir())[0], "accounts", "Ann of old", "Ben of old");
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    let name = || async { ann.request("GET", &path, None).await.ok()["displayname"].clone() };
    assert_eq!(name().await, "Ben of old");

    let (equal, status) = snapshot(server.data_dir(), "compare");
    assert!(!equal, "{status}");
    let fault = &status["fault"];
    assert_eq!((&fault["held"], &fault["projections"]), (&json!("server"), &json!(["accounts"])));
    assert_eq!(fault["first"]["projection"], "accounts");
    assert_eq!(fault["first"]["record"], named, "{status}");
    assert_eq!(name().await, "Ann of old");
    talk(&server, &ann, &room_id, "on", 3).await;

    let (equal, status) = snapshot(server.data_dir(), "compare");
    assert!(equal, "{status}");
    assert!(status["verified_through"].as_u64() > named.as_u64(), "{status}");
    let (_, known) = snapshot(server.data_dir(), "status");
    assert_eq!(known["verified_through"], status["verified_through"], "{known}");
    server.stop();
    // What was seen is known to the next start, too.
    server.restart().await;
    let (_, later) = snapshot(server.data_dir(), "status");
    assert_eq!(later["verified_through"], status["verified_through"]);
    server.stop();
    assert_verifies(server.data_dir());
}

/// Where streams end is known to the log, too, since it was started.
#[tokio::test]
async fn a_server_with_wrong_stream_ends_asks_for_a_restart() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    snapshot(server.data_dir(), "write");
    server.kill9();
    let stream = format!("room/{room_id}");
    let forged = format!("room/!{}", "x".repeat(stream.len() - "room/!".len()));
    forge(&snapshots(server.data_dir())[0], "streams", &stream, &forged);
    server.restart().await;
    let (equal, status) = snapshot(server.data_dir(), "compare");
    assert!(!equal, "{status}");
    let fault = &status["fault"];
    assert_eq!((&fault["held"], &fault["projections"]), (&json!("stale"), &json!(["streams"])));
    server.prints("restart the server").await;
    server.kill9();
    server.restart().await;
    let (equal, status) = snapshot(server.data_dir(), "compare");
    assert!(equal, "{status}");
    talk(&server, &ann, &room_id, "on", 3).await;
    server.stop();
    assert_verifies(server.data_dir());
}

#[tokio::test]
async fn a_start_does_not_wait_for_projections_that_another_version_did_not_have() {
    let mut server = TestServer::start().await;
    let (ann, ben) = (server.register("ann").await, server.register("ben").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    ben.join(&room_id).await.ok();
    talk(&server, &ann, &room_id, "a", 20).await;
    let (_, header) = snapshot(server.data_dir(), "write");
    let before = seen(&server, &ann, &room_id).await;
    server.kill9();
    let old = snapshots(server.data_dir()).remove(0);
    rewrite(&old, |name, part| (name != "names").then_some(part));

    // What acts on the log meanwhile, without a server, does not take them for what the log adds up
    // to.
    let (_, status) = snapshot(server.data_dir(), "status");
    assert_eq!(status["provisional"], json!(["names"]), "{status}");
    assert_verifies(server.data_dir());
    // Also one that is cut off in the middle of it.
    for _ in 0..3 {
        server.restart().await;
        assert_eq!(start_of(&server).0, header["offset"].as_u64().expect("an offset"));
        assert_eq!(seen(&server, &ann, &room_id).await, before);
        server.kill9();
    }
    server.restart().await;
    assert!(server.output().contains("rebuilding in the background"), "{}", server.output());
    let ann = User { http: server.http(), ..ann };
    // It takes what is written meanwhile.
    talk(&server, &ann, &room_id, "b", 20).await;
    let status = made_again(&server).await;
    assert_eq!(status["fault"], Value::Null, "{status}");
    let found = ann
        .request("POST", "/user_directory/search", Some(&json!({ "search_term": "ben" })))
        .await
        .ok();
    assert_eq!(found["results"][0]["user_id"], json!(ben.user_id), "{found}");
    talk(&server, &ann, &room_id, "c", 3).await;
    let before = seen(&server, &ann, &room_id).await;
    server.kill9();
    // The next start finds what was made, and nothing is to be made again.
    server.restart().await;
    assert_eq!(snapshot(server.data_dir(), "status").1["provisional"], json!([]));
    assert!(start_of(&server).0 >= header["offset"].as_u64().expect("an offset"));
    assert_eq!(seen(&server, &ann, &room_id).await, before);
    server.stop();
    assert_verifies(server.data_dir());
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x20;
    bytes
}

#[tokio::test]
async fn a_snapshot_of_another_server_is_skipped() {
    let (mut one, mut other) = (TestServer::start().await, TestServer::start().await);
    for server in [&one, &other] {
        let user = server.register("ann").await;
        user.create_room(json!({})).await;
        snapshot(server.data_dir(), "write");
    }
    let ann = one.register("ann2").await;
    let room_id = ann.create_room(json!({})).await;
    let before = seen(&one, &ann, &room_id).await;
    one.kill9();
    other.kill9();
    let (mine, theirs) = (snapshots(one.data_dir()), snapshots(other.data_dir()));
    fs::copy(&theirs[0], &mine[0]).expect("the snapshot can be copied");
    one.restart().await;
    assert_eq!(start_of(&one).0, 0);
    assert!(one.output().contains("not a snapshot of this log"), "{}", one.output());
    assert_eq!(seen(&one, &ann, &room_id).await, before);
}

#[tokio::test]
async fn a_kill_while_a_snapshot_is_written_costs_nothing() {
    let mut server = TestServer::start_with(&[("LOGCABIN_SNAPSHOTS_EVERY_RECORDS", "100")]).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    for round in 0..6_u64 {
        talk(&server, &ann, &room_id, &format!("r{round}-"), 20).await;
        let before = seen(&server, &ann, &room_id).await;
        let data_dir = server.data_dir().to_owned();
        let writing = std::thread::spawn(move || {
            // It is cut off in the middle.
            run_logcabin([
                "snapshot".as_ref(),
                "write".as_ref(),
                "--data-dir".as_ref(),
                data_dir.as_os_str(),
            ])
        });
        tokio::time::sleep(Duration::from_millis(round * 7)).await;
        server.kill9();
        writing.join().expect("the command ends");
        server.restart().await;
        assert_eq!(seen(&server, &ann, &room_id).await, before, "round {round}");
    }
    // Those that are due are written by themselves.
    let said = server.output().len();
    talk(&server, &ann, &room_id, "last", 100).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !server.output()[said..].contains("wrote a snapshot") {
        assert!(Instant::now() < deadline, "{}", server.output());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.stop();
    assert_verifies(server.data_dir());
    let left = fs::read_dir(server.data_dir().join("snapshots")).expect("the directory");
    let left: Vec<_> = left.flatten().map(|entry| entry.path()).collect();
    assert!(left.iter().all(|path| path.extension().is_none_or(|end| end != "new")), "{left:?}");
}

#[tokio::test]
async fn erased_content_is_in_no_snapshot() {
    const NAME: &str = "Ann-of-the-hundred-days";
    let mut server = TestServer::start_with(&[
        ("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"),
        ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1"),
    ])
    .await;
    let ann = server.register("ann").await;
    let path = format!("/profile/{}/displayname", ann.user_id);
    ann.request("PUT", &path, Some(&json!({ "displayname": NAME }))).await.ok();
    let room_id = ann.create_room(json!({})).await;
    let event_id = ann.send_text(&room_id, "1", "soon gone").await;
    snapshot(server.data_dir(), "write");
    let old = snapshots(server.data_dir());
    assert_eq!(old.len(), 1);
    let holds = |path: &PathBuf| {
        let bytes = fs::read(path).expect("the snapshot can be read");
        bytes.windows(NAME.len()).any(|part| part == NAME.as_bytes())
    };
    assert!(holds(&old[0]));

    let path = format!("/rooms/{room_id}/redact/{event_id}/2");
    ann.request("PUT", &path, Some(&json!({}))).await.ok();
    let body = json!({
        "erase": true,
        "auth": { "type": "m.login.password", "password": "a password that is long enough",
                  "identifier": { "type": "m.id.user", "user": "ann" } },
    });
    ann.request("POST", "/account/deactivate", Some(&body)).await.ok();
    let deadline = Instant::now() + Duration::from_secs(60);
    while snapshots(server.data_dir()).iter().any(|path| *path == old[0] || holds(path)) {
        assert!(Instant::now() < deadline, "{}", server.output());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.stop();
    assert!(!snapshots(server.data_dir()).iter().any(holds));
    assert_verifies(server.data_dir());
}
