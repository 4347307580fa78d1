//! What is taken elsewhere and back: a whole server, and what there is of one user.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::contents::contains;
use crate::crash::assert_verifies;
use crate::harness::{
    Direction, Random, TestServer, User, encode, logcabin_command, run_logcabin, run_logcabin_with,
    runs, skip, until,
};

const DOCUMENT: &str = include_str!("../../docs/export.md");

/// Everything that is due is erased at once.
const AT_ONCE: [(&str, &str); 2] =
    [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];

const SECRET: &str = "the-eagle-has-landed";

fn arguments<'a>(words: &[&'a str], data_dir: &'a Path) -> Vec<&'a str> {
    let data_dir = data_dir.to_str().expect("a path in UTF-8");
    [words, &["--data-dir", data_dir]].concat()
}

#[track_caller]
fn ok(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[track_caller]
fn refused(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !said.contains("panicked"), "{output:?}");
    said
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Exports the server in `data_dir`, in files small enough that there are some.
fn export(data_dir: &Path, dest: &Path) -> Output {
    run_logcabin(arguments(&["export", path(dest), "--json", "--file-bytes", "20000"], data_dir))
}

fn export_user(data_dir: &Path, user: &str, dest: &Path) -> Output {
    run_logcabin(arguments(&["export", path(dest), "--json", "--user", user], data_dir))
}

fn import(src: &Path, data_dir: &Path) -> Output {
    run_logcabin(arguments(&["import", path(src), "--json"], data_dir))
}

fn replay(data_dir: &Path) -> String {
    let replayed = ok(&run_logcabin(arguments(&["replay", "--json"], data_dir)));
    replayed["digest"].as_str().expect("a digest").to_owned()
}

/// Every file below `dir`.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn holds(path: &Path, text: &str) -> bool {
    contains(path, text).expect("the file can be read")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn temporary() -> (TempDir, PathBuf, PathBuf) {
    let directory = TempDir::new().expect("a temporary directory");
    let (dest, data_dir) = (directory.path().join("export"), directory.path().join("data"));
    (directory, dest, data_dir)
}

/// What happened before an export.
struct Lived {
    server: TestServer,
    ann: User,
    ben: User,
    room_id: String,
    media: String,
    since: String,
}

/// A server with something of much, and a redacted secret that was erased.
async fn lived() -> Lived {
    let server = TestServer::start_with(&AT_ONCE).await;
    let (ann, ben) = (server.register("ann").await, server.register("ben").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "Cabin" })).await;
    ben.join(&room_id).await.ok();
    for number in 0..30 {
        ann.send_text(&room_id, &format!("a{number}"), &format!("message {number}")).await;
    }
    let media = ann.upload("text/plain", "the bytes of a file").await;
    let url = format!("mxc://{media}");
    let content = json!({ "msgtype": "m.file", "body": "a file", "url": url });
    ann.send(&room_id, "m.room.message", "file", &content).await.ok();
    // With breaks of lines between its parts, as clients may write JSON.
    let data = format!("/_matrix/client/v3/user/{}/account_data/org.example.wide", ann.user_id);
    let bearer = format!("Bearer {}", ann.access_token);
    let headers = [("authorization", &*bearer), ("content-type", "application/json")];
    let answer = ann.http.raw("PUT", &data, &headers, "{\n  \"a\": 1.50,\r\n  \"b\": [2]\n}").await;
    answer.json().ok();
    let since = ben.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();

    let event_id = ann.send_text(&room_id, "secret", SECRET).await;
    let redact = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&event_id));
    ann.request("PUT", &redact, Some(&json!({}))).await.ok();
    until("the secret is erased", async || {
        files(server.data_dir()).iter().all(|path| !path.exists() || !holds_now(path, SECRET))
    })
    .await;
    Lived { server, ann, ben, room_id, media, since }
}

/// As [`holds`], of a file that may go away meanwhile.
fn holds_now(path: &Path, text: &str) -> bool {
    contains(path, text).is_ok_and(|found| found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exported_server_continues_elsewhere() {
    let Lived { mut server, ann, ben, room_id, media, since } = lived().await;
    let (_directory, dest, data_dir) = temporary();
    server.stop();
    let manifest = ok(&export(server.data_dir(), &dest));
    assert_eq!(manifest["state_digest"], replay(server.data_dir()));
    assert_eq!((&manifest["holds"], &manifest["running"]), (&json!("server"), &json!(false)));
    let records: u64 = manifest["files"]
        .as_array()
        .expect("files")
        .iter()
        .filter(|file| file["first"].is_u64())
        .map(|file| {
            assert!(file["bytes"].as_u64() <= Some(20_000), "{file}");
            file["lines"].as_u64().expect("lines")
        })
        .sum();
    assert_eq!(json!(records), manifest["last"]);
    assert!(files(&dest.join("log")).len() > 2);
    for file in files(&dest) {
        assert!(!holds(&file, SECRET), "{file:?}");
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(&file).expect("the file is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "others may read {file:?}");
    }
    // The payload of several lines is JSON to be read, and is kept to the byte.
    let all: Vec<_> = files(&dest.join("log")).iter().flat_map(|path| lines(path)).collect();
    let wide = |line: &&Value| line["payload"]["type"] == "org.example.wide";
    let wide = all.iter().find(wide).expect("the account data");
    assert_eq!(wide["payload"]["content"]["a"], 1.5);
    assert!(wide["payload_base64"].is_string(), "{wide}");
    assert!(all.iter().any(|line| line["payload_state"] == "reduced"));

    let imported = ok(&import(&dest, &data_dir));
    for (said, is) in [("digest", "state_digest"), ("chain", "chain"), ("last", "last")] {
        assert_eq!(imported[said], manifest[is], "{said}");
    }
    assert_eq!(imported["new_epoch"], Value::Null);
    assert_verifies(&data_dir);
    assert_eq!(replay(&data_dir), manifest["state_digest"]);
    // Out again it is the same, file by file.
    let again = dest.with_extension("again");
    let second = ok(&export(&data_dir, &again));
    assert_eq!(second["files"], manifest["files"]);

    // Clients go on where they were, with their tokens, transactions and files.
    let mut moved = TestServer::start_on_with(&data_dir, &AT_ONCE).await;
    let ann = User { http: moved.http(), ..ann };
    let ben = User { http: moved.http(), ..ben };
    let next = ben.sync(Some(&since), 0, None).await;
    let timeline = &next["rooms"]["join"][&room_id]["timeline"];
    assert_eq!(timeline["limited"], false, "{next}");
    let types: Vec<_> = timeline["events"].as_array().expect("events").iter().collect();
    assert_eq!(types.len(), 2, "{next}");
    assert_eq!(types[0]["content"], json!({}), "the redacted one");
    let before = ann.send_text(&room_id, "a7", "message 7").await;
    let page = ann.messages(&room_id, None, None, Direction::Back, 100).await;
    let seven = page["chunk"]
        .as_array()
        .and_then(|events| events.iter().find(|event| event["content"]["body"] == "message 7"));
    assert_eq!(seven.map(|event| &event["event_id"]), Some(&json!(before)));
    let file = ben.download(&media).await;
    assert_eq!((file.parts.status.as_u16(), &file.bytes[..]), (200, &b"the bytes of a file"[..]));
    ann.send_text(&room_id, "on", "and so on").await;
    moved.stop();
    assert_verifies(&data_dir);
    for file in files(&data_dir) {
        assert!(!holds(&file, SECRET), "{file:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_server_is_exported_while_it_writes_and_erases() {
    let Lived { server, ann, ben, room_id, since, .. } = lived().await;
    let (_directory, dest, data_dir) = temporary();
    // Redacted messages are erased every second, so some while it is exported.
    let writing = {
        let (ann, room_id) = (ann.clone(), room_id.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let (say, unsay) = (format!("w{number}"), format!("u{number}"));
                let event_id = ann.send_text(&room_id, &say, &say).await;
                let redact = format!("/rooms/{room_id}/redact/{}/{unsay}", encode(&event_id));
                ann.request("PUT", &redact, Some(&json!({}))).await.ok();
            }
        })
    };
    for round in 0..5 {
        let (dest, data_dir) = (dest.join(format!("{round}")), data_dir.join(format!("{round}")));
        fs::create_dir_all(dest.parent().expect("a parent")).expect("it can be made");
        let from = server.data_dir().to_owned();
        let to = dest.clone();
        let exported = tokio::task::spawn_blocking(move || export(&from, &to)).await;
        let manifest = ok(&exported.expect("no panic"));
        assert_eq!(manifest["running"], true);
        let imported = ok(&import(&dest, &data_dir));
        assert_eq!(imported["digest"], manifest["state_digest"]);
        assert_eq!(imported["new_epoch"], 1);
        assert_verifies(&data_dir);
    }
    writing.abort();
    let later = ben.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();

    // What the export has is as it was; who has seen more starts over, and is not left standing.
    let moved = TestServer::start_on(&data_dir.join("0")).await;
    let ben = User { http: moved.http(), ..ben };
    let next = ben.sync(Some(&since), 0, None).await;
    let sent = &next["rooms"]["join"][&room_id]["timeline"]["events"];
    assert!(sent.as_array().is_some_and(|events| !events.is_empty()), "{next}");
    let fresh = ben.sync(Some(&later), 0, None).await;
    let state = &fresh["rooms"]["join"][&room_id]["state"]["events"];
    assert!(state.as_array().is_some_and(|state| !state.is_empty()), "{fresh}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_byte_is_found_in_each_kind_of_file() {
    let mut lived = lived().await;
    lived.server.stop();
    let (_directory, dest, data_dir) = temporary();
    ok(&export(lived.server.data_dir(), &dest));
    let mut random = Random::from_env("LOGCABIN_EXPORT_SEED");
    let mut kinds = BTreeMap::new();
    for file in files(&dest) {
        let kind = file.strip_prefix(&dest).expect("it is in there").components().next();
        let kind = kind.expect("a first part").as_os_str().to_owned();
        kinds.entry(kind).or_insert_with(Vec::new).push(file);
    }
    let kinds: Vec<_> = kinds.into_values().collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    let checked = || run_logcabin(["import", path(&dest), "--check", "--json"]);
    ok(&checked());
    for round in 0..60 {
        let kind = &kinds[round % kinds.len()];
        let file = &kind[random.between(0, kind.len() as u64) as usize];
        let whole = fs::read(file).expect("the file can be read");
        let at = random.between(0, whole.len() as u64) as usize;
        let mut changed = whole.clone();
        let damage = match round % 5 {
            0 => {
                changed.remove(at);
                "is missing"
            }
            1 => {
                changed.truncate(at);
                "and all after it are missing"
            }
            _ => {
                changed[at] ^= 1 << random.between(0, 7);
                "is another"
            }
        };
        if serde_json::from_slice::<Value>(&changed).ok().is_some_and(|value| {
            file.ends_with("manifest.json")
                && without_signatures(value)
                    == without_signatures(serde_json::from_slice(&whole).expect("JSON"))
        }) {
            // A blank, or a letter of the signature whose last bits say nothing.
            continue;
        }
        fs::write(file, &changed).expect("the file can be written");
        let said = refused(&checked());
        let what = format!("byte {at} of {file:?} {damage}: {said}");
        assert!(said.contains(path(file)), "{what}");
        if file.parent().is_some_and(|parent| parent.ends_with("log")) && !changed.is_empty() {
            let line = whole[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            // Where a line feed is gone, it is the line before or after.
            let named =
                [line, line - 1, line + 1].map(|line| said.contains(&format!("line {line}:")));
            // A member whose name is not known says nothing: then it is the file that is another.
            let by_hash = said.contains("and the manifest says");
            assert!(named.contains(&true) || by_hash, "line {line}: {what}");
        }
        assert_eq!(refused(&import(&dest, &data_dir)), said);
        assert!(!data_dir.exists(), "{what}");
        fs::write(file, &whole).expect("the file can be written");
    }
    // A file that is not there.
    for kind in &kinds {
        let aside = dest.with_extension("aside");
        fs::rename(&kind[0], &aside).expect("it can be moved");
        assert!(refused(&checked()).contains(path(&kind[0])));
        fs::rename(&aside, &kind[0]).expect("it can be moved back");
    }
    // What was signed by somebody else.
    let manifest = fs::read_to_string(dest.join("manifest.json")).expect("it can be read");
    let other = manifest.replace("\"running\": false", "\"running\": true");
    fs::write(dest.join("manifest.json"), other).expect("it can be written");
    assert!(refused(&checked()).contains("signature"));
    fs::write(dest.join("manifest.json"), manifest).expect("it can be written");
    ok(&checked());
}

fn without_signatures(mut value: Value) -> Value {
    if let Some(members) = value.as_object_mut() {
        members.remove("signatures");
    }
    value
}

#[tokio::test]
async fn existing_files_are_not_overwritten() {
    let mut server = TestServer::start().await;
    server.register("ann").await;
    let (_directory, dest, data_dir) = temporary();
    fs::create_dir(&dest).expect("it can be made");
    fs::write(dest.join("mine.ndjson"), "mine").expect("it can be written");
    let said = refused(&export(server.data_dir(), &dest));
    assert!(said.contains("is not empty") && said.contains("mine.ndjson"), "{said}");
    assert_eq!(files(&dest), [dest.join("mine.ndjson")]);
    fs::remove_file(dest.join("mine.ndjson")).expect("it can be removed");
    ok(&export(server.data_dir(), &dest));
    let said = refused(&export(server.data_dir(), &dest));
    assert!(said.contains("is not empty"), "{said}");

    server.stop();
    let said = refused(&import(&dest, server.data_dir()));
    assert!(said.contains("is not empty"), "{said}");
    assert_verifies(server.data_dir());
    fs::create_dir(&data_dir).expect("it can be made");
    ok(&import(&dest, &data_dir));
    // Of one user no server can be made.
    let (_other, user, empty) = temporary();
    ok(&export_user(&data_dir, "ann", &user));
    assert!(refused(&import(&user, &empty)).contains("export of one user"));
    assert!(refused(&export_user(&data_dir, "nobody", &user)).contains("no user"));
    assert!(refused(&export(&empty, &user)).contains("no log"));
}

const UNFINISHED: &str = "manifest.json.unfinished";

/// How often something is killed that is to be interrupted so many times.
const TRIES: u32 = 60;
const ENOUGH: u32 = 4;

/// Runs it and kills it after this time, if it has not ended by then.
fn killed_after(words: &[&str], wait: Duration) {
    let mut command = logcabin_command();
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("logcabin can be started");
    std::thread::sleep(wait);
    let _ = child.kill();
    child.wait().expect("it can be waited for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_export_or_import_starts_over() {
    let mut lived = lived().await;
    for number in 0..40 {
        lived.ann.upload("text/plain", format!("file {number} {}", "x".repeat(50_000))).await;
    }
    lived.server.stop();
    let (_directory, dest, data_dir) = temporary();
    let from = lived.server.data_dir();
    let out = arguments(&["export", path(&dest), "--file-bytes", "20000"], from);
    let back = arguments(&["import", path(&dest)], &data_dir);

    let timed = |words: &[&str]| {
        let begun = Instant::now();
        assert!(run_logcabin(words).status.success());
        begun.elapsed()
    };
    let (out_takes, back_takes) = (timed(&out), timed(&back));
    for dir in [&dest, &data_dir] {
        fs::remove_dir_all(dir).expect("it can be removed");
    }
    let mut random = Random::from_env("LOGCABIN_EXPORT_SEED");
    let mut interrupted = 0;
    for _ in 0..TRIES {
        killed_after(&out, out_takes * random.between(10, 110) as u32 / 100);
        if dest.join(UNFINISHED).exists() {
            interrupted += 1;
            let said = refused(&import(&dest, &data_dir));
            assert!(said.contains("incomplete"), "{said}");
            assert!(!data_dir.exists());
            if interrupted == ENOUGH {
                break;
            }
        } else if dest.join("manifest.json").exists() {
            // It was done, and nothing is written over it.
            assert!(refused(&export(from, &dest)).contains("is not empty"));
            ok(&run_logcabin(["import", path(&dest), "--check", "--json"]));
            fs::remove_dir_all(&dest).expect("it can be removed");
        }
    }
    assert!(interrupted > 0, "no export was interrupted in {out_takes:?}");
    // Over what the last one left.
    fs::create_dir_all(&dest).expect("it can be made");
    let _ = fs::remove_file(dest.join("manifest.json"));
    fs::write(dest.join(UNFINISHED), "").expect("it can be written");
    let manifest = ok(&export(from, &dest));
    ok(&run_logcabin(["import", path(&dest), "--check", "--json"]));

    let mut interrupted = 0;
    for _ in 0..TRIES {
        killed_after(&back, back_takes * random.between(10, 110) as u32 / 100);
        if data_dir.join("log").exists() {
            // It was done, or as good as.
            assert_verifies(&data_dir);
            fs::remove_dir_all(&data_dir).expect("it can be removed");
        } else if data_dir.join("log.importing").exists() {
            interrupted += 1;
            let said = refused(&run_logcabin(arguments(&["verify"], &data_dir)));
            assert!(said.contains("no log"), "{said}");
            let serve = arguments(&["serve", "--bind", "127.0.0.1:0"], &data_dir);
            let said = refused(&run_logcabin(serve));
            assert!(said.contains("import") && said.contains("incomplete"), "{said}");
            assert!(!data_dir.join("log").exists());
            if interrupted == ENOUGH {
                break;
            }
        }
    }
    assert!(interrupted > 0, "no import was interrupted in {back_takes:?}");
    let imported = ok(&import(&dest, &data_dir));
    assert_eq!(imported["digest"], manifest["state_digest"]);
    assert_verifies(&data_dir);
    assert!(!data_dir.join("log.importing").exists());
}

/// Without what is of the moment of asking.
fn timeless(mut event: Value) -> Value {
    match &mut event {
        Value::Object(members) => {
            members.remove("age");
            members.remove("transaction_id");
            for value in members.values_mut() {
                *value = timeless(value.take());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = timeless(value.take())),
        _ => {}
    }
    event
}

/// All that `/messages` gives of a room, oldest first; none where it is refused.
async fn all_messages(user: &User, room_id: &str) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    let mut from: Option<String> = None;
    loop {
        let page = user.try_messages(room_id, from.as_deref(), None, Direction::Forward, 7).await;
        let page = page.expect("an answer");
        if page.status != 200 {
            return None;
        }
        let chunk = page.body["chunk"].as_array().expect("a chunk").clone();
        if chunk.is_empty() {
            return Some(all);
        }
        all.extend(chunk.into_iter().map(timeless));
        match page.body["end"].as_str() {
            Some(end) => from = Some(end.to_owned()),
            None => return Some(all),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_export_contains_their_data_and_what_they_may_see() {
    const PASSWORD: &str = "a password that is long enough";
    let mut server =
        TestServer::start_with(&[("LOGCABIN_DEVICES_NOTE_LAST_SEEN_SECONDS", "0")]).await;
    let (ann, ben) = (server.register("ann").await, server.register("ben").await);
    let eve = server.register("eve").await;
    let phone = User::login(&server.http(), "ben", PASSWORD).await;
    // Rooms of each history visibility that ben joins late and leaves, or stays in.
    let mut rooms = Vec::new();
    for visibility in ["joined", "invited", "shared", "world_readable"] {
        for stays in [true, false] {
            let state = json!([{ "type": "m.room.history_visibility", "state_key": "",
                "content": { "history_visibility": visibility } }]);
            let options = json!({ "preset": "public_chat", "name": format!("{visibility} {stays}"),
                "initial_state": state });
            let room_id = ann.create_room(options).await;
            let say = async |when: &str| {
                let text = format!("{when} in {visibility} {stays}");
                ann.send_text(&room_id, when, &text).await
            };
            say("before").await;
            ann.act(&room_id, "invite", Some(&ben)).await.ok();
            say("invited").await;
            ben.join(&room_id).await.ok();
            let read = say("joined").await;
            ben.send_text(&room_id, "mine", "of ben").await;
            let receipt = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&read));
            ben.request("POST", &receipt, Some(&json!({}))).await.ok();
            if !stays {
                ben.act(&room_id, "leave", None).await.ok();
                say("after").await;
            }
            rooms.push(room_id);
        }
    }
    // One that ben was invited to, one that he forgot, one whose member he never was.
    let invited = ann.create_room(json!({ "name": "only invited" })).await;
    ann.act(&invited, "invite", Some(&ben)).await.ok();
    ann.send_text(&invited, "1", "not for the invited").await;
    let forgotten = ann.create_room(json!({ "preset": "public_chat" })).await;
    ben.join(&forgotten).await.ok();
    ann.send_text(&forgotten, "1", "long forgotten").await;
    ben.act(&forgotten, "leave", None).await.ok();
    ben.act(&forgotten, "forget", None).await.ok();
    let foreign = ann.create_room(json!({ "preset": "private_chat" })).await;
    let hidden = ann.upload("text/plain", "not for the eyes of ben").await;
    let file = json!({ "msgtype": "m.file", "body": "f", "url": format!("mxc://{hidden}") });
    ann.send(&foreign, "m.room.message", "f", &file).await.ok();
    ann.send_text(&foreign, "1", "of no concern to ben").await;
    rooms.extend([invited.clone(), forgotten.clone(), foreign.clone()]);
    // A message that was redacted, one of someone who is ignored, and one that was edited.
    let said = ann.send_text(&rooms[4], "r", "taken back").await;
    let redact = format!("/rooms/{}/redact/{}/r", encode(&rooms[4]), encode(&said));
    ann.request("PUT", &redact, Some(&json!({}))).await.ok();
    eve.join(&rooms[4]).await.ok();
    eve.send_text(&rooms[4], "1", "an ignored text").await;
    let edited = ann.send_text(&rooms[4], "e", "first words").await;
    let edit = json!({ "msgtype": "m.text", "body": "* better words",
        "m.new_content": { "msgtype": "m.text", "body": "better words" },
        "m.relates_to": { "rel_type": "m.replace", "event_id": edited } });
    ann.send(&rooms[4], "m.room.message", "e2", &edit).await.ok();

    // What is ben's own.
    let of_ben = format!("/user/{}", ben.user_id);
    let put = async |what: &str, body: Value| {
        ben.request("PUT", &format!("{of_ben}/{what}"), Some(&body)).await.ok();
    };
    put("account_data/org.example.colour", json!({ "colour": "blue" })).await;
    put(&format!("rooms/{}/account_data/m.tag", encode(&rooms[0])), json!({ "tags": {} })).await;
    put("account_data/m.ignored_user_list", json!({ "ignored_users": { &eve.user_id: {} } })).await;
    let name = format!("/profile/{}/displayname", ben.user_id);
    ben.request("PUT", &name, Some(&json!({ "displayname": "Ben of the cabin" }))).await.ok();
    let own = ben.upload("text/plain", "a file of ben").await;
    let shown = ann.upload("text/plain", "a file for all").await;
    let file = json!({ "msgtype": "m.file", "body": "f", "url": format!("mxc://{shown}") });
    ann.send(&rooms[0], "m.room.message", "f", &file).await.ok();
    let rule = json!({ "actions": ["notify"], "pattern": "firewood" });
    ben.request("PUT", "/pushrules/global/content/wood", Some(&rule)).await.ok();
    let pusher = json!({ "app_id": "org.example.app", "pushkey": "a-secret-pushkey", "kind": "http",
        "lang": "en", "app_display_name": "App", "device_display_name": "Phone",
        "data": { "url": "https://gateway.example.org/_matrix/push/v1/notify" } });
    ben.request("POST", "/pushers/set", Some(&pusher)).await.ok();
    back_up_keys(&ben, &rooms[0]).await;
    let waiting =
        json!({ "messages": { &ben.user_id: { &phone.device_id: { "body": "waits" } } } });
    ann.request("PUT", "/sendToDevice/org.example.note/1", Some(&waiting)).await.ok();
    let later = format!(
        "/rooms/{}/send/m.room.message/later?org.matrix.msc4140.delay=3600000",
        encode(&rooms[0])
    );
    let later = ben.request("PUT", &later, Some(&json!({ "body": "said later" }))).await;
    let delay_id = later.ok_string("delay_id");
    let filter = json!({ "room": { "timeline": { "limit": 5 } } });
    ben.request("POST", &format!("{of_ben}/filter"), Some(&filter)).await.ok();

    let (_directory, running, stopped) = temporary();
    let manifest = ok(&export_user(server.data_dir(), &ben.user_id, &running));
    let mut expected = BTreeMap::new();
    for room_id in &rooms {
        expected.insert(room_id.clone(), all_messages(&ben, room_id).await);
    }
    server.stop();
    ok(&export_user(server.data_dir(), "ben", &stopped));

    assert_eq!((&manifest["holds"], &manifest["user_id"]), (&json!("user"), &json!(ben.user_id)));
    ok(&run_logcabin(["import", path(&running), "--check", "--json"]));
    for name in
        ["account", "profile", "devices", "account_data", "memberships", "receipts", "media"]
    {
        let read = |dest: &Path| -> Vec<_> {
            lines(&dest.join(format!("{name}.ndjson"))).into_iter().map(timeless).collect()
        };
        assert_eq!(read(&running), read(&stopped), "{name}");
    }
    // Exactly what the endpoint shows, room by room.
    for dest in [&running, &stopped] {
        let listed = lines(&dest.join("rooms.ndjson"));
        for room in &listed {
            let events = lines(&dest.join(room["file"].as_str().expect("a file")));
            let events: Vec<_> = events.into_iter().map(timeless).collect();
            let room_id = room["room_id"].as_str().expect("an id");
            assert_eq!(Some(&events), expected[room_id].as_ref(), "{room}");
            assert_eq!(room["events"], events.len());
        }
        let exported: BTreeSet<_> =
            listed.iter().filter_map(|room| room["room_id"].as_str()).collect();
        let shown = expected.iter().filter(|(_, events)| events.is_some());
        let shown: BTreeSet<_> = shown.map(|(room_id, _)| room_id.as_str()).collect();
        assert_eq!(exported, shown);
        assert_eq!(exported.len(), 8);
    }
    let all = files(&running);
    for text in [
        "not for the invited",
        "long forgotten",
        "of no concern to ben",
        "not for the eyes of ben",
        foreign.as_str(),
        hidden.as_str(),
        "before in joined",
        "invited in joined",
        "after in joined",
        "before in invited",
        "after in shared",
        "taken back",
        "an ignored text",
    ] {
        assert_eq!(all.iter().find(|file| holds(file, text)), None, "{text}");
    }
    for text in [
        "joined in joined",
        "invited in invited",
        "before in shared",
        "after in world_readable",
        "better words",
        "Ben of the cabin",
        "a file of ben",
        "a file for all",
        "firewood",
        own.as_str(),
        shown.as_str(),
        forgotten.as_str(),
        phone.device_id.as_str(),
    ] {
        assert!(all.iter().any(|file| holds(file, text)), "{text}");
    }
    // Nothing with which anybody could get in, or send to a device.
    let hash = |token: &str| blake3_and_sha256(token);
    let mut secrets = vec!["a-secret-pushkey".to_owned(), PASSWORD.to_owned()];
    secrets.extend(["$pbkdf2".to_owned(), "private_key".to_owned(), delay_id]);
    for user in [&ben, &phone] {
        secrets.push(user.access_token.clone());
        secrets.extend(hash(&user.access_token));
    }
    for secret in &secrets {
        assert_eq!(all.iter().find(|file| holds(file, secret)), None, "{secret}");
    }

    let read = |name: &str| lines(&running.join(format!("{name}.ndjson")));
    assert_eq!(read("account")[0]["user_id"], ben.user_id);
    assert_eq!(read("account")[0]["has_password"], true);
    assert_eq!(read("devices").len(), 2);
    assert_eq!(read("receipts").len(), 8);
    assert_eq!(read("pushers")[0]["app_id"], "org.example.app");
    assert_eq!(read("filters").len(), 1);
    let backup = read("key_backups");
    assert_eq!((backup.len(), &backup[0]["current"]), (1, &json!(true)), "{backup:?}");
    assert_eq!(backup[0]["auth_data"]["public_key"], "abc", "{backup:?}");
    let keys = read("key_backup_keys");
    assert_eq!((keys.len(), &keys[0]["room_id"]), (2, &json!(rooms[0])), "{keys:?}");
    assert_eq!(keys[1]["session_data"]["ciphertext"], "key of two", "{keys:?}");
    let waiting = read("to_device");
    assert_eq!((waiting.len(), &waiting[0]["device_id"]), (1, &json!(phone.device_id)));
    let message = &waiting[0]["message"];
    assert_eq!(
        (&message["content"]["body"], &message["sender"]),
        (&json!("waits"), &json!(ann.user_id))
    );
    let scheduled = read("scheduled");
    assert_eq!((scheduled.len(), &scheduled[0]["delay_ms"]), (1, &json!(3_600_000)));
    assert_eq!(scheduled[0]["content"]["body"], "said later", "{scheduled:?}");
    let colour = read("account_data");
    assert!(colour.iter().any(|line| line["content"]["colour"] == "blue"), "{colour:?}");
    assert!(read("push_rules").iter().any(|line| line["rule"]["rule_id"] == "wood"));
    let was: Vec<_> = read("memberships")
        .into_iter()
        .filter(|line| line["room_id"] == rooms[1])
        .map(|line| line["membership"].clone())
        .collect();
    assert_eq!(was, ["invite", "join", "leave"]);
    for file in read("media") {
        let path = running.join(file["path"].as_str().expect("a path"));
        assert_eq!(fs::metadata(&path).map(|of| of.len()).ok(), file["bytes"].as_u64(), "{file}");
    }

    // A changed byte in any of the files is found.
    for file in &all {
        let whole = fs::read(file).expect("it can be read");
        if whole.is_empty() || file.ends_with("manifest.json") {
            continue;
        }
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        fs::write(file, changed).expect("it can be written");
        let said = refused(&run_logcabin(["import", path(&running), "--check"]));
        assert!(said.contains(path(file)), "{said}");
        fs::write(file, whole).expect("it can be written");
    }
}

fn blake3_and_sha256(token: &str) -> [String; 2] {
    use sha2::Digest as _;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [blake3::hash(token.as_bytes()).to_hex().to_string(), hex(&sha2::Sha256::digest(token))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jq_examples_of_the_chapter_work() {
    if !runs("jq", &["--version"]) {
        return skip("export", "jq is absent");
    }
    let Lived { mut server, ann, .. } = lived().await;
    server.stop();
    let (directory, dest, _) = temporary();
    let user = directory.path().join("ann");
    ok(&export(server.data_dir(), &dest));
    ok(&export_user(server.data_dir(), &ann.user_id, &user));
    let mut said = Vec::new();
    for line in DOCUMENT.lines().filter_map(|line| line.strip_prefix("    jq ")) {
        let script = format!("set -euo pipefail\njq {line}");
        let script =
            script.replace("SERVER_EXPORT", path(&dest)).replace("USER_EXPORT", path(&user));
        let output = Command::new("bash").args(["-c", &script]).output().expect("bash starts");
        assert!(output.status.success() && !output.stdout.is_empty(), "{line}: {output:?}");
        said.push(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    assert!(said.len() >= 3, "{said:?}");
    assert!(said.iter().any(|said| said.contains("room.event")), "{said:?}");
    assert!(said.iter().any(|said| said.contains("message 7")), "{said:?}");
    assert!(said.iter().any(|said| said.contains("Cabin")), "{said:?}");
}

/// Hands an imported account over, as the command says.
async fn handed_over(server: &TestServer, name: &str) -> User {
    let password = "another password that is long";
    let reset = arguments(&["user", "reset-password", name], server.data_dir());
    let output = run_logcabin_with(&format!("{password}\n"), reset);
    assert!(output.status.success(), "{output:?}");
    let unlock = run_logcabin(arguments(&["user", "unlock", name], server.data_dir()));
    assert!(unlock.status.success(), "{unlock:?}");
    User::login(&server.http(), name, password).await
}

/// Begins a backup with two keys of a room.
async fn back_up_keys(user: &User, room_id: &str) {
    let algorithm = "m.megolm_backup.v1.curve25519-aes-sha2";
    let auth_data = json!({ "public_key": "abc", "signatures": {} });
    let body = json!({ "algorithm": algorithm, "auth_data": auth_data });
    let version = user.request("POST", "/room_keys/version", Some(&body)).await.ok();
    let version = version["version"].as_str().expect("a version").to_owned();
    let key = |name: &str| {
        json!({
            "first_message_index": 1, "forwarded_count": 0, "is_verified": true,
            "session_data":
                { "ciphertext": format!("key of {name}"), "ephemeral": "e", "mac": "m" },
        })
    };
    let keys = json!({ "rooms": { room_id: { "sessions": {
        "one": key("one"), "two": key("two"),
    } } } });
    let path = format!("/room_keys/keys?version={version}");
    user.request("PUT", &path, Some(&keys)).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_export_becomes_an_account_elsewhere() {
    let from = TestServer::start().await;
    let ann = from.register("ann").await;
    let picture = ann.upload("image/png", "a picture of ann").await;
    let avatar = format!("mxc://{picture}");
    let set = async |path: String, body: Value| {
        ann.request("PUT", &path, Some(&body)).await.ok();
    };
    set(format!("/profile/{}/avatar_url", ann.user_id), json!({ "avatar_url": avatar })).await;
    set(format!("/profile/{}/displayname", ann.user_id), json!({ "displayname": "Ann A." })).await;
    let data = |what: &str| format!("/user/{}/account_data/{what}", ann.user_id);
    set(data("org.example.colour"), json!({ "colour": "blue" })).await;
    set(data("m.secret_storage.default_key"), json!({ "key": "abc" })).await;
    let rule = json!({ "actions": ["notify"], "pattern": "firewood" });
    set("/pushrules/global/content/wood".to_owned(), rule).await;
    set(data("m.cross_signing.master"), json!({ "encrypted": {} })).await;
    let room_id = ann.create_room(json!({ "name": "stays where it is" })).await;
    back_up_keys(&ann, &room_id).await;
    let (_directory, dest, _) = temporary();
    ok(&export_user(from.data_dir(), "ann", &dest));

    let mut server = TestServer::start().await;
    server.register("ann").await;
    let import_user = |server: &TestServer, name: &[&str]| {
        let words = [&["import-user", path(&dest), "--json"], name].concat();
        run_logcabin(arguments(&words, server.data_dir()))
    };
    let said = refused(&import_user(&server, &[]));
    assert!(said.contains("is taken"), "{said}");
    let done = ok(&import_user(&server, &["--name", "anna"]));
    assert_eq!(
        (&done["user_id"], &done["exported"]),
        (&json!("@anna:e2e.test"), &json!(ann.user_id))
    );
    assert_eq!((&done["profile"], &done["files"]), (&json!(2), &json!(1)), "{done}");
    assert_eq!(done["room_keys"], 2, "{done}");
    // Whoever has the recovery key reads the backup; the identity does not come along.
    let left_out = done["left_out"].to_string();
    assert!(left_out.contains("m.cross_signing.master"), "{done}");
    assert!(!left_out.contains("m.secret_storage"), "{done}");
    let said = refused(&import_user(&server, &["--name", "anna"]));
    assert!(said.contains("is taken"), "{said}");
    // Nobody has it before it is handed over.
    let login = json!({ "type": "m.login.password", "password": "",
        "identifier": { "type": "m.id.user", "user": "anna" } });
    let answer =
        server.http().request("POST", "/_matrix/client/v3/login", None, Some(&login)).await;
    assert_eq!(answer.status, 403, "{answer}");
    // Another one of the same: the address of the picture is taken there.
    ok(&import_user(&server, &["--name", "annb"]));

    for (name, same) in [("anna", true), ("annb", false)] {
        let user = handed_over(&server, name).await;
        let profile = user.request("GET", &format!("/profile/{}", user.user_id), None).await.ok();
        assert_eq!(profile["displayname"], "Ann A.");
        let here = profile["avatar_url"].as_str().expect("a picture").to_owned();
        assert_eq!(here == avatar, same, "{here}");
        let file = user.download(here.trim_start_matches("mxc://")).await;
        assert_eq!(&file.bytes[..], b"a picture of ann");
        let colour = format!("/user/{}/account_data/org.example.colour", user.user_id);
        assert_eq!(user.request("GET", &colour, None).await.ok()["colour"], "blue");
        let rule = user.request("GET", "/pushrules/global/content/wood", None).await.ok();
        assert_eq!(rule["pattern"], "firewood");
        let rooms = user.request("GET", "/joined_rooms", None).await.ok();
        assert_eq!(rooms["joined_rooms"], json!([]));
        let backup = user.request("GET", "/room_keys/version", None).await.ok();
        assert_eq!(backup["auth_data"]["public_key"], "abc", "{backup}");
        let keys = user.request("GET", "/room_keys/keys?version=1", None).await.ok();
        let keys = &keys["rooms"][&room_id]["sessions"];
        assert_eq!(keys["one"]["session_data"]["ciphertext"], "key of one", "{keys}");
        let secrets = format!("/user/{}/account_data/m.secret_storage.default_key", user.user_id);
        assert_eq!(user.request("GET", &secrets, None).await.ok()["key"], "abc");
    }

    // Killed on the way it can be done again, to its end; here on a stopped server.
    server.stop();
    let begun = Instant::now();
    ok(&import_user(&server, &["--name", "annc"]));
    let takes = begun.elapsed();
    for part in 1..8 {
        let name = format!("ann{part}");
        let words = ["import-user", path(&dest), "--name", &name];
        killed_after(&arguments(&words, server.data_dir()), takes * part / 8);
        let output = import_user(&server, &["--name", &name]);
        if !output.status.success() {
            assert!(refused(&output).contains("is taken"), "{output:?}");
        }
    }
    assert_verifies(server.data_dir());
    server.restart().await;
    for part in 1..8 {
        let user = handed_over(&server, &format!("ann{part}")).await;
        let origin = format!("/user/{}/account_data/io.logcabin.import", user.user_id);
        assert_eq!(user.request("GET", &origin, None).await.ok()["finished"], true);
        let profile = user.request("GET", &format!("/profile/{}", user.user_id), None).await.ok();
        assert_eq!(profile["displayname"], "Ann A.");
        let backup = user.request("GET", "/room_keys/version", None).await.ok();
        assert_eq!((&backup["version"], &backup["count"]), (&json!("1"), &json!(2)), "{backup}");
    }
}
