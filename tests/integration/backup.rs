//! Backups of a running server and restores to any moment: what is in them, what is carried over,
//! and that it may all be killed at any time.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::contents::contains;
use crate::crash::assert_verifies;
use crate::harness::{
    Direction, Random, TestServer, User, encode, number_from_env, offline::history, run_and_kill,
    run_logcabin, until_ok,
};

const PASSWORD: &str = "a password that is long enough";

/// Runs the program, which must end with this code, and gives what it says in JSON.
#[track_caller]
fn logcabin(code: i32, arguments: &[&OsStr]) -> Value {
    let output = run_logcabin(arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}{complained}");
    serde_json::from_str(&said).unwrap_or(Value::String(said + &complained))
}

#[track_caller]
fn backup(data_dir: &Path, dest: &Path) -> Value {
    logcabin(0, &backup_line(data_dir, dest))
}

fn backup_line<'a>(data_dir: &'a Path, dest: &'a Path) -> [&'a OsStr; 5] {
    let [backup, at, json] = ["backup", "--data-dir", "--json"].map(OsStr::new);
    [backup, dest.as_os_str(), at, data_dir.as_os_str(), json]
}

#[track_caller]
fn verify_backup(code: i32, dest: &Path, more: &[&OsStr]) -> Value {
    let line = ["verify-backup".as_ref(), dest.as_os_str(), "--json".as_ref()];
    logcabin(code, &[&line, more].concat())
}

#[track_caller]
pub(crate) fn restore(data_dir: &Path, more: &[&OsStr]) -> Value {
    let [restore, at, json] = ["restore", "--data-dir", "--json"].map(OsStr::new);
    logcabin(0, &[&[restore, at, data_dir.as_os_str(), json], more].concat())
}

/// How many records the log of a stopped server has, and the digest of what they add up to.
pub(crate) fn replayed(data_dir: &Path) -> (u64, String) {
    let [replay, at, json] = ["replay", "--data-dir", "--json"].map(OsStr::new);
    let said = logcabin(0, &[replay, at, data_dir.as_os_str(), json]);
    let digest = said["digest"].as_str().expect("a digest").to_owned();
    (said["records"].as_u64().expect("a number of records"), digest)
}

/// The bodies of the last messages of a room, the oldest first.
async fn messages(user: &User, room_id: &str) -> Vec<String> {
    let page = user.messages(room_id, None, None, Direction::Back, 1000).await;
    let events = page["chunk"].as_array().into_iter().flatten().rev();
    events.filter_map(|event| Some(event["content"]["body"].as_str()?.to_owned())).collect()
}

async fn upload(user: &User, bytes: &'static str) -> String {
    let token = format!("Bearer {}", user.access_token);
    let headers = [("authorization", token.as_str()), ("content-type", "text/plain")];
    let answer = user.http.raw("POST", "/_matrix/media/v3/upload", &headers, bytes).await.json();
    answer.ok_string("content_uri")
}

async fn download(user: &User, uri: &str) -> Vec<u8> {
    let path = uri.trim_start_matches("mxc://");
    let token = format!("Bearer {}", user.access_token);
    let path = format!("/_matrix/client/v1/media/download/{path}");
    let answer = user.http.raw("GET", &path, &[("authorization", &token)], "").await;
    assert_eq!(answer.parts.status, 200, "{uri}");
    answer.bytes.to_vec()
}

async fn upload_one_time(user: &User, names: &[&str]) {
    let keys = user.keys();
    let body = json!({ "one_time_keys": keys.one_time(names), "fallback_keys": keys.fallback("fallback") });
    user.request("POST", "/keys/upload", Some(&body)).await.ok();
}

/// The id of the key that is handed out.
async fn claim(by: &User, of: &User) -> String {
    let body = json!({ "one_time_keys": { &of.user_id: { &of.device_id: "signed_curve25519" } } });
    let claimed = by.request("POST", "/keys/claim", Some(&body)).await.ok();
    let keys = claimed["one_time_keys"][&of.user_id][&of.device_id].as_object();
    keys.and_then(|keys| keys.keys().next().cloned()).expect("a key")
}

async fn log_in(http: &crate::harness::Http, user: &str, password: &str) -> u16 {
    let body = json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": user },
        "password": password,
    });
    http.request("POST", "/_matrix/client/v3/login", None, Some(&body)).await.status
}

async fn set_password(user: &User, new: &str) {
    let auth = json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": user.localpart() },
        "password": PASSWORD,
    });
    let body = json!({ "new_password": new, "auth": auth, "logout_devices": false });
    user.request("POST", "/account/password", Some(&body)).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_contains_everything_acknowledged_and_the_next_copies_little() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let file = upload(&ann, "a file to keep").await;
    for number in 0..200 {
        ann.send_text(&room_id, &format!("before-{number}"), &format!("before {number}")).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (ann, room_id, stop) = (ann.clone(), room_id.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return number;
                }
                ann.send_text(&room_id, &format!("during-{number}"), &format!("during {number}"))
                    .await;
            }
            0
        })
    };
    let place = TempDir::new().expect("a temporary directory");
    let dest = place.path().join("backup");
    let made = {
        let (data_dir, dest) = (server.data_dir().to_owned(), dest.clone());
        tokio::task::spawn_blocking(move || backup(&data_dir, &dest)).await.expect("it is made")
    };
    stop.store(true, Ordering::SeqCst);
    let written = writing.await.expect("the writer goes on to its end");
    assert!(made["copied_records"].as_u64() >= Some(200), "{made}");
    assert_eq!((&made["copied_files"], &made["files"]), (&json!(1), &json!(1)), "{made}");
    let log = server.data_dir().to_owned();
    let of = ["--of".as_ref(), log.as_os_str()];
    let checked = verify_backup(0, &dest, &of);
    assert_eq!(checked["moments"][0]["is_prefix"], true, "{checked}");

    let last = ann.send_text(&room_id, "last", "the last").await;
    let second = upload(&ann, "another file").await;
    let again = backup(server.data_dir(), &dest);
    // What was written since, and of what was there no more than that once more.
    let new = again["offset"].as_u64().unwrap() - made["offset"].as_u64().unwrap();
    assert!(again["copied_records"].as_u64().unwrap() <= 3 * new + 1, "{again}, new: {new}");
    assert_eq!((&again["copied_files"], &again["files"]), (&json!(1), &json!(2)), "{again}");
    let nothing_new = backup(server.data_dir(), &dest);
    assert!(nothing_new["copied_records"].as_u64() <= Some(4), "{nothing_new}");
    let checked = verify_backup(0, &dest, &of);
    assert_eq!(checked["moments"].as_array().map(Vec::len), Some(3), "{checked}");
    server.stop();
    let said = history(server.data_dir());
    assert_eq!(said.matches("made a backup in").count(), 3, "{said}");

    // Each moment can be restored by itself.
    let data_dir = place.path().join("restored");
    let restored = restore(&data_dir, &["--from".as_ref(), dest.as_os_str()]);
    assert_eq!(
        (&restored["files"], &restored["missing_files"]),
        (&json!(2), &json!(0)),
        "{restored}"
    );
    let to = made["offset"].to_string();
    let earlier = place.path().join("earlier");
    let line = ["--from".as_ref(), dest.as_os_str(), "--to".as_ref(), to.as_ref()];
    let restored = restore(&earlier, &line);
    assert_eq!(restored["files"], 1, "{restored}");
    for (data_dir, has_last) in [(&data_dir, true), (&earlier, false)] {
        assert_verifies(data_dir);
        let mut server = TestServer::start_on(data_dir).await;
        let ann = User { http: server.http(), ..ann.clone() };
        let held: BTreeSet<_> = messages(&ann, &room_id).await.into_iter().collect();
        assert!((0..200).all(|number| held.contains(&format!("before {number}"))));
        assert_eq!(held.contains("the last"), has_last);
        assert!(!has_last || held.contains(&format!("during {}", written - 1)), "{written}");
        assert_eq!(download(&ann, &file).await, b"a file to keep");
        if has_last {
            assert_eq!(download(&ann, &second).await, b"another file");
            let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&last));
            ann.request("GET", &path, None).await.ok();
        }
        server.stop();
    }

    // Of a stopped server, too; and old ones go.
    let line =
        [&backup_line(server.data_dir(), &dest)[..], &["--keep".as_ref(), "1".as_ref()]].concat();
    let kept = logcabin(0, &line);
    assert_eq!(kept["removed"].as_array().map(Vec::len), Some(3), "{kept}");
    let checked = verify_backup(0, &dest, &of);
    assert_eq!(checked["moments"].as_array().map(Vec::len), Some(1), "{checked}");
    assert_eq!(fs::read_dir(dest.join("lists")).expect("a directory").count(), 1);
    // Another server's backups are not mixed with them.
    let mut other = TestServer::start_with(&[]).await;
    other.register("ann").await;
    other.stop();
    logcabin(1, &backup_line(other.data_dir(), &dest));
    let someone_elses = place.path().join("restored");
    let refused = logcabin(1, &backup_line(server.data_dir(), &someone_elses)).to_string();
    assert!(refused.contains("holds no backup"), "{refused}");
}

/// All files below `dir`, but for those that nothing depends on.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_name() != Some(OsStr::new("lock")) {
            found.push(path);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_byte_in_any_file_of_a_backup_is_found() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    upload(&ann, "a file to keep").await;
    let place = TempDir::new().expect("a temporary directory");
    let dest = place.path().join("backup");
    backup(server.data_dir(), &dest);
    for number in 0..3 {
        ann.send_text(&room_id, &format!("{number}"), "hello").await;
    }
    backup(server.data_dir(), &dest);
    server.stop();
    verify_backup(0, &dest, &[]);
    let mut random = Random::from_env("LOGCABIN_BACKUP_SEED");
    let all = files(&dest);
    for part in ["manifests", "segments", "lists", "media"] {
        assert!(all.iter().any(|path| path.starts_with(dest.join(part))), "{part}: {all:?}");
    }
    for path in all {
        let intact = fs::read(&path).expect("the file can be read");
        for _ in 0..4 {
            let at = random.between(0, intact.len() as u64) as usize;
            let mut changed = intact.clone();
            changed[at] ^= 1 << random.between(0, 8);
            fs::write(&path, &changed).expect("the file can be written");
            let checked = verify_backup(1, &dest, &[]);
            assert_eq!(checked["intact"], false, "{} at {at}: {checked}", path.display());
        }
        fs::remove_file(&path).expect("the file can be removed");
        let gone = run_logcabin(["verify-backup".as_ref(), dest.as_os_str()]);
        // Of a manifest that is gone nobody knows; the other is intact.
        let is_manifest = path.starts_with(dest.join("manifests"));
        assert_eq!(gone.status.success(), is_manifest, "{} is gone", path.display());
        fs::write(&path, &intact).expect("the file can be written");
    }
    verify_backup(0, &dest, &[]);
    let none = verify_backup(2, &dest, &["--offset".as_ref(), "1".as_ref()]).to_string();
    assert!(none.contains("there is no backup"), "{none}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_killed_at_any_moment_leaves_earlier_ones_intact() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let place = TempDir::new().expect("a temporary directory");
    let dest = place.path().join("backup");
    backup(server.data_dir(), &dest);
    let mut random = Random::from_env("LOGCABIN_BACKUP_SEED");
    let line = backup_line(server.data_dir(), &dest);
    let (mut killed, mut number) = (0, 0);
    while killed < number_from_env("LOGCABIN_BACKUP_ROUNDS", 8) {
        for _ in 0..20 {
            ann.send_text(&room_id, &format!("{number}"), &format!("message {number}")).await;
            number += 1;
        }
        upload(&ann, Box::leak(format!("file {number}").into_boxed_str())).await;
        let after = Duration::from_micros(random.between(500, 120_000));
        killed += u64::from(!run_and_kill(line, after));
        verify_backup(0, &dest, &["--of".as_ref(), server.data_dir().as_os_str()]);
    }
    let made = backup(server.data_dir(), &dest);
    server.stop();
    let checked = verify_backup(0, &dest, &[]);
    let newest = checked["moments"].as_array().and_then(|all| all.last().cloned()).expect("one");
    assert_eq!(newest["offset"], made["offset"], "{checked}");
    assert_eq!(fs::read_dir(dest.join("incoming")).expect("a directory").count(), 0);
    let data_dir = place.path().join("restored");
    restore(&data_dir, &["--from".as_ref(), dest.as_os_str()]);
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_killed_at_any_moment_loses_nothing_and_can_be_repeated() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    for number in 0..30 {
        ann.send_text(&room_id, &format!("{number}"), &format!("message {number}")).await;
    }
    server.stop();
    let data_dir = server.data_dir().to_owned();
    let (cut, at_cut) = replayed(&data_dir);
    server.restart().await;
    for number in 30..60 {
        ann.send_text(&room_id, &format!("{number}"), &format!("message {number}")).await;
    }
    server.stop();
    let (end, at_end) = replayed(&data_dir);
    let to = cut.to_string();
    let [restore_word, at, in_place, until] =
        ["restore", "--data-dir", "--in-place", "--to"].map(OsStr::new);
    let line = [restore_word, at, data_dir.as_os_str(), in_place, until, OsStr::new(&to)];
    let mut random = Random::from_env("LOGCABIN_BACKUP_SEED");
    let mut kills = 0;
    for round in 0..number_from_env("LOGCABIN_BACKUP_ROUNDS", 8) {
        let after = Duration::from_micros(random.between(500, 20_000 + 60_000 * round));
        if run_and_kill(line, after) {
            break;
        }
        kills += 1;
        // The one or the other, whole.
        let (records, digest) = replayed(&data_dir);
        let is_old = (records, &digest) == (end, &at_end);
        assert!(is_old || records > cut && records < end, "{records} records after a kill");
    }
    println!("killed {kills} times");
    let restored = restore(&data_dir, &["--in-place".as_ref(), "--to".as_ref(), to.as_ref()]);
    assert_eq!((&restored["last"], &restored["digest"]), (&json!(cut), &json!(at_cut)));
    assert_verifies(&data_dir);
    assert!(!data_dir.join("restoring").exists() && !data_dir.join("log.ready").exists());
    // What was there before is kept, whole.
    let aside = TempDir::new().expect("a temporary directory");
    fs::rename(data_dir.join("log.epoch-0"), aside.path().join("log")).expect("it is there");
    assert_eq!(replayed(aside.path()), (end, at_end));
    server.restart().await;
    let held = messages(&User { http: server.http(), ..ann }, &room_id).await;
    assert_eq!((held.len(), held.last()), (30, Some(&"message 29".to_owned())));
    server.stop();

    // Into an empty directory, from a backup.
    let place = TempDir::new().expect("a temporary directory");
    let (dest, fresh) = (place.path().join("backup"), place.path().join("data"));
    backup(aside.path(), &dest);
    let from = [restore_word, at, fresh.as_os_str(), OsStr::new("--from"), dest.as_os_str()];
    for round in 0..number_from_env("LOGCABIN_BACKUP_ROUNDS", 8) {
        let after = Duration::from_micros(random.between(500, 20_000 + 60_000 * round));
        if run_and_kill(from, after) {
            break;
        }
    }
    let output = run_logcabin(from);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || said.contains("is not empty"), "{said}");
    assert_verifies(&fresh);
}

/// Waits until nothing in these directories has the text.
async fn wait_until_gone(dirs: &[PathBuf], text: &str) {
    until_ok("what is erased is in no file", async || {
        let holds = |path: &PathBuf| contains(path, text).is_ok_and(|found| found);
        let all = dirs.iter().filter(|dir| dir.is_dir()).flat_map(|dir| files(dir));
        let found: Vec<_> = all.filter(holds).collect();
        if found.is_empty() { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_to_an_earlier_moment_keeps_what_must_not_be_rewound() {
    const SECRET: &str = "the-eagle-has-landed";
    const SCOLDED: &str = "the-eagle-was-scolded";
    const SPAM: &str = "the-eagle-sells-watches";
    // A later use of a device supersedes the earlier one, which is then not in its old state.
    let settings = ["ERASURE_REDACTED_AFTER", "DEVICES_NOTE_LAST_SEEN", "ERASURE_SWEEP"];
    let settings = settings.map(|name| format!("LOGCABIN_{name}_SECONDS"));
    let settings: Vec<_> = settings.iter().map(String::as_str).zip(["0", "0", "1"]).collect();
    let mut server = TestServer::start_with(&settings).await;
    let (mut ann, mut bob) = (server.register("ann").await, server.register("bob").await);
    let mut second = User::login(&server.http(), "ann", PASSWORD).await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "before" })).await;
    bob.join(&room_id).await.ok();
    let secret = bob.send_text(&room_id, "secret", SECRET).await;
    let scolded = bob.send_text(&room_id, "scolded", SCOLDED).await;
    let kept = bob.send_text(&room_id, "kept", "kept").await;
    let dave = server.register("dave").await;
    dave.join(&room_id).await.ok();
    let spam = dave.send_text(&room_id, "spam", SPAM).await;
    upload_one_time(&ann, &["one", "two", "three"]).await;
    let known = ann.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();
    server.stop();
    let data_dir = server.data_dir().to_owned();
    let (cut, at_cut) = replayed(&data_dir);
    server.restart().await;

    // What is kept after the moment, each in its way.
    set_password(&ann, "another password that is long").await;
    second.request("POST", "/logout", None).await.ok();
    let mut third = User::login(&server.http(), "bob", PASSWORD).await;
    let mut carol = server.register("carol").await;
    let first_key = claim(&bob, &ann).await;
    let message = json!({ "messages": { &ann.user_id: { &ann.device_id: { "body": "a key" } } } });
    bob.request("PUT", "/sendToDevice/m.test/1", Some(&message)).await.ok();
    let path = format!("/user/{}/account_data/m.secret_storage.default_key", encode(&ann.user_id));
    ann.request("PUT", &path, Some(&json!({ "key": "a" }))).await.ok();
    let path = format!("/user/{}/filter", encode(&ann.user_id));
    let filter = ann.request("POST", &path, Some(&json!({}))).await.ok_string("filter_id");
    let redact = async |user: &User, event_id: &str| {
        let path = format!("/rooms/{}/redact/{}/{event_id}", encode(&room_id), encode(event_id));
        user.request("PUT", &path, Some(&json!({ "reason": "said too much" }))).await.ok();
    };
    redact(&bob, &secret).await;
    let ban = json!({ "membership": "ban", "org.matrix.msc4293.redact_events": true });
    ann.set_state(&room_id, "m.room.member", &dave.user_id, &ban).await.ok();
    // By one who may not, as of the moment.
    let powers = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    let mut raised = powers.clone();
    raised["users"][&carol.user_id] = json!(100);
    carol.join(&room_id).await.ok();
    ann.set_state(&room_id, "m.room.power_levels", "", &raised).await.ok();
    redact(&carol, &scolded).await;
    let receipt = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&kept));
    ann.request("POST", &receipt, Some(&json!({}))).await.ok();
    // And what is lost.
    ann.send_text(&room_id, "lost", "lost").await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "after" })).await.ok();
    let lost_room = ann.create_room(json!({})).await;
    let undone =
        ann.sync(Some(&known), 0, None).await["next_batch"].as_str().expect("one").to_owned();
    for text in [SECRET, SCOLDED, SPAM] {
        wait_until_gone(&[data_dir.join("log"), data_dir.join("archive")], text).await;
    }
    server.stop();

    let to = cut.to_string();
    let line = ["--in-place".as_ref(), "--to".as_ref(), to.as_ref()];
    let before = replayed(&data_dir);
    let dry = restore(&data_dir, &[&line[..], &["--dry-run".as_ref()]].concat());
    assert_eq!(replayed(&data_dir), before, "a dry run changes nothing");
    let restored = restore(&data_dir, &line);
    for field in ["last", "lost", "carried", "lost_rooms", "lost_events", "keys_dropped"] {
        assert_eq!(dry[field], restored[field], "{field}");
    }
    assert_eq!(
        (&restored["last"], &restored["digest"]),
        (&json!(cut), &json!(at_cut)),
        "{restored}"
    );
    assert_eq!(restored["undone"], json!(before.0), "{restored}");
    assert_eq!(
        (&restored["lost_rooms"], &restored["keys_dropped"]),
        (&json!(1), &json!(false)),
        "{restored}"
    );
    assert_eq!(
        (&restored["redacted_again"], &restored["redacted_without"]),
        (&json!(3), &json!(1)),
        "{restored}"
    );
    for (kind, count) in [("keys.claim", 1), ("user.password", 1), ("to_device.send", 1)] {
        assert_eq!(restored["carried"][kind], count, "{kind}: {restored}");
    }
    assert_verifies(&data_dir);
    server.restart().await;
    for user in [&mut ann, &mut bob, &mut second, &mut third, &mut carol] {
        user.http = server.http();
    }

    // Passwords, devices and accounts are as they were at the end.
    assert_eq!(log_in(&ann.http, "ann", PASSWORD).await, 403);
    assert_eq!(log_in(&ann.http, "ann", "another password that is long").await, 200);
    second.request("GET", "/account/whoami", None).await.refused(401, "M_UNKNOWN_TOKEN");
    for user in [&ann, &bob, &third, &carol] {
        let who = user.request("GET", "/account/whoami", None).await.ok();
        assert_eq!(who["device_id"], json!(user.device_id));
    }
    let path = format!("/profile/{}/displayname", encode(&carol.user_id));
    assert_eq!(carol.request("GET", &path, None).await.ok()["displayname"], "carol");
    // No key is handed out twice.
    let claimed = [claim(&bob, &ann).await, claim(&bob, &ann).await, claim(&bob, &ann).await];
    let all: BTreeSet<_> = claimed.iter().chain([&first_key]).collect();
    assert_eq!(all.len(), 4, "{first_key}, then {claimed:?}");
    assert!(claimed[2].ends_with(":fallback"), "{claimed:?}");
    // What was erased is away, from the kept log, too; and the events say that they were redacted.
    for (event_id, by) in [(&secret, Some(&bob)), (&scolded, None), (&spam, Some(&ann))] {
        let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(event_id));
        let event = ann.request("GET", &path, None).await.ok();
        assert_eq!(event["content"], json!({}), "{event}");
        let redacted =
            event["unsigned"]["redacted_because"]["sender"].as_str().map(ToOwned::to_owned);
        assert_eq!(redacted, by.map(|by| by.user_id.clone()), "{event}");
    }
    for text in [SECRET, SCOLDED, SPAM] {
        wait_until_gone(std::slice::from_ref(&data_dir), text).await;
    }
    // What was said and set since is lost.
    assert_eq!(messages(&ann, &room_id).await, ["kept"]);
    assert_eq!(ann.state(&room_id, "m.room.name", "").await.ok()["name"], "before");
    ann.state(&lost_room, "m.room.create", "").await.refused(403, "M_FORBIDDEN");
    carol.state(&room_id, "m.room.create", "").await.refused(403, "M_FORBIDDEN");

    // A client from the abandoned future starts over, and looks at the devices that changed since
    // the moment.
    let filter = format!("/user/{}/filter/{filter}", encode(&ann.user_id));
    ann.request("GET", &filter, None).await.ok();
    let full = ann.sync(Some(&undone), 0, None).await;
    assert_eq!(full["rooms"]["join"].as_object().map(|rooms| rooms.len()), Some(1), "{full}");
    let types: Vec<_> = full["account_data"]["events"].as_array().into_iter().flatten().collect();
    assert!(types.iter().any(|event| event["type"] == "m.secret_storage.default_key"), "{full}");
    let told: Vec<_> = full["to_device"]["events"].as_array().into_iter().flatten().collect();
    assert_eq!(told.len(), 1, "{full}");
    assert_eq!(told[0]["content"]["body"], "a key");
    let receipts = full["rooms"]["join"][&room_id]["ephemeral"].to_string();
    assert!(receipts.contains(&kept), "{full}");
    // One from before the moment goes on.
    let on = ann.sync(Some(&known), 0, None).await;
    assert!(on["rooms"]["join"][&room_id]["timeline"]["events"].is_array(), "{on}");
    server.stop();
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_without_the_logs_end_reuses_no_key_and_updates_device_lists() {
    let mut server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    upload_one_time(&ann, &["one", "two"]).await;
    bob.upload_identity().await;
    let place = TempDir::new().expect("a temporary directory");
    let dest = place.path().join("backup");
    backup(server.data_dir(), &dest);
    // Nobody will know.
    let lost = claim(&bob, &ann).await;
    let undone = ann.sync(None, 0, None).await["next_batch"].as_str().expect("one").to_owned();
    server.kill9();
    let data_dir = place.path().join("data");
    let restored = restore(&data_dir, &["--from".as_ref(), dest.as_os_str()]);
    assert_eq!(
        (&restored["complete"], &restored["keys_dropped"]),
        (&json!(false), &json!(true)),
        "{restored}"
    );
    let mut server = TestServer::start_on(&data_dir).await;
    let (ann, bob) = (User { http: server.http(), ..ann }, User { http: server.http(), ..bob });
    let full = ann.sync(Some(&undone), 0, None).await;
    assert_eq!(full["device_one_time_keys_count"]["signed_curve25519"], 0, "{full}");
    assert_eq!(full["device_unused_fallback_key_types"], json!([]), "{full}");
    let changed = full["device_lists"]["changed"].as_array().cloned().unwrap_or_default();
    assert!(changed.contains(&json!(bob.user_id)), "{full}");
    let now = claim(&bob, &ann).await;
    assert!(now.ends_with(":fallback") && now != lost, "{lost}, then {now}");
    // Keys that were dropped are not taken again; new ones are.
    upload_one_time(&ann, &["one", "four"]).await;
    let claimed = claim(&bob, &ann).await;
    assert!(claimed.ends_with(":four"), "{claimed}");
    server.stop();
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_goes_to_a_time_and_from_an_archive_or_another_log() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let early = ann.send_text(&room_id, "early", "early").await;
    let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&early));
    let event = ann.request("GET", &path, None).await.ok();
    let at_ms = event["origin_server_ts"].as_u64().expect("a time") + 500;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    ann.send_text(&room_id, "late", "late").await;
    server.stop();
    let data_dir = server.data_dir().to_owned();
    let (end, digest) = replayed(&data_dir);
    let place = TempDir::new().expect("a temporary directory");
    // To the second and below, in UTC.
    let time = time_of(at_ms);
    for (name, from) in [("of-log", data_dir.clone()), ("of-archive", data_dir.join("archive"))] {
        let whole = place.path().join(name);
        let restored = restore(&whole, &["--from".as_ref(), from.as_os_str()]);
        assert_eq!(
            (&restored["last"], &restored["digest"]),
            (&json!(end), &json!(digest)),
            "{restored}"
        );
        assert_eq!(restored["complete"], name == "of-log", "{restored}");
        let early = place.path().join(format!("{name}-early"));
        let line = ["--from".as_ref(), from.as_os_str(), "--to".as_ref(), time.as_ref()];
        let restored = restore(&early, &line);
        assert!(restored["last"].as_u64() < Some(end), "{restored}");
        assert!(restored["last_ms"].as_u64() <= Some(at_ms), "{restored}");
        assert_verifies(&early);
        let mut server = TestServer::start_on(&early).await;
        let ann = User { http: server.http(), ..ann.clone() };
        assert_eq!(messages(&ann, &room_id).await, ["early"]);
        server.stop();
        // There is a log now: it is not overwritten.
        let refused = logcabin(
            1,
            &["restore".as_ref(), "--data-dir".as_ref(), early.as_os_str(), line[0], line[1]],
        );
        assert!(refused.to_string().contains("is not empty"), "{refused}");
    }
    let beyond = (end + 1).to_string();
    let line =
        ["restore".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str(), "--in-place".as_ref()];
    let refused = logcabin(1, &[&line[..], &["--to".as_ref(), beyond.as_ref()]].concat());
    assert!(refused.to_string().contains("ends at record"), "{refused}");
    // Twice into the past: each life has an epoch of its own, and a token of any is understood.
    let token = |sync: Value| sync["next_batch"].as_str().expect("a token").to_owned();
    server.restart().await;
    let on = User { http: server.http(), ..ann.clone() };
    for number in 0..8 {
        on.send_text(&room_id, &format!("on-{number}"), "and on").await;
    }
    server.stop();
    let (end, _) = replayed(&data_dir);
    let mut tokens = Vec::new();
    for back in [2, 6] {
        server.restart().await;
        let ann = User { http: server.http(), ..ann.clone() };
        ann.send_text(&room_id, &format!("again-{back}"), "again").await;
        tokens.push(token(ann.sync(None, 0, None).await));
        server.stop();
        let to = (end - back).to_string();
        restore(&data_dir, &["--in-place".as_ref(), "--to".as_ref(), to.as_ref()]);
    }
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    for undone in tokens {
        let full = ann.sync(Some(&undone), 0, None).await;
        assert!(
            full["rooms"]["join"][&room_id]["timeline"]["events"].is_array(),
            "{undone}: {full}"
        );
    }
    server.stop();
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_interrupted_while_swapping_logs_is_finished_by_the_next_start() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    ann.send_text(&room_id, "kept", "kept").await;
    server.stop();
    let data_dir = server.data_dir().to_owned();
    let (cut, _) = replayed(&data_dir);
    server.restart().await;
    User { http: server.http(), ..ann.clone() }.send_text(&room_id, "lost", "lost").await;
    server.stop();
    let to = cut.to_string();
    restore(&data_dir, &["--in-place".as_ref(), "--to".as_ref(), to.as_ref()]);
    let mut now = replayed(&data_dir);
    let [log, ready, swapping, old] =
        ["log", "log.ready", "log.swapping", "log.epoch-0"].map(|name| data_dir.join(name));
    // As it is where the file system knows no exchange, after the first and the second renaming.
    for (names, with_server) in [
        ([(&old, &swapping), (&log, &ready)].as_slice(), false),
        (&[(&old, &swapping), (&log, &ready)], true),
        (&[(&old, &swapping)], false),
        (&[(&old, &swapping)], true),
    ] {
        for (from, to) in names {
            fs::rename(from, to).expect("it is there");
        }
        if with_server {
            server.restart().await;
            let held = messages(&User { http: server.http(), ..ann.clone() }, &room_id).await;
            assert_eq!(held, ["kept"]);
            server.stop();
            now = replayed(&data_dir);
        } else {
            assert_eq!(replayed(&data_dir), now);
        }
        assert!(log.is_dir() && ready.is_dir() && !swapping.exists());
        fs::rename(&ready, &old).expect("it is there");
    }
    // The next restore puts what was replaced aside.
    fs::rename(&old, &swapping).expect("it is there");
    fs::rename(&log, &ready).expect("it is there");
    restore(&data_dir, &["--in-place".as_ref(), "--to".as_ref(), to.as_ref()]);
    assert!(!ready.exists() && !swapping.exists() && old.is_dir());
    assert_verifies(&data_dir);
    // An import that was cut short is no obstacle to a restore, nor to the server after it.
    let place = TempDir::new().expect("a temporary directory");
    let fresh = place.path().join("data");
    fs::create_dir_all(fresh.join("log.importing")).expect("a directory");
    restore(&fresh, &["--from".as_ref(), data_dir.as_os_str()]);
    TestServer::start_on(&fresh).await.stop();
}

/// A time as the command line takes it.
fn time_of(ms: u64) -> String {
    logcabin::history::moment::Time(ms).to_string()
}
