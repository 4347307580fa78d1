//! What an operator meets: a directory that is in use, a disk that is full, a restore.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::crash::assert_verifies;
use crate::harness::{
    Direction, Random, TestServer, User, encode, restore, run_logcabin, runs, skip, until,
};

#[tokio::test]
async fn a_second_server_on_the_same_data_is_refused_with_the_reason() {
    let mut server = TestServer::start().await;
    let data_dir = server.data_dir().to_owned();
    let output = run_logcabin([
        "serve".as_ref(),
        "--server-name".as_ref(),
        "e2e.test".as_ref(),
        "--bind".as_ref(),
        "127.0.0.1:0".as_ref(),
        "--data-dir".as_ref(),
        data_dir.as_os_str(),
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("is using"), "{said}");
    // The first has not noticed.
    server.register("ann").await;
    server.stop();
}

#[tokio::test]
async fn a_directory_keeps_its_server_name() {
    let mut server = TestServer::start().await;
    server.stop();
    let output = run_logcabin([
        "serve".as_ref(),
        "--server-name".as_ref(),
        "other.test".as_ref(),
        "--bind".as_ref(),
        "127.0.0.1:0".as_ref(),
        "--data-dir".as_ref(),
        server.data_dir().as_os_str(),
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("e2e.test") && said.contains("other.test"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_writes_are_refused_reads_go_on_and_nothing_is_lost() {
    let mount = TempDir::new().expect("a temporary directory");
    let Some(_disk) = SmallDisk::mount(mount.path()) else {
        skip("full disk", "a small file system cannot be mounted here (that takes root)");
        return;
    };
    let reserve = ("LOGCABIN_LOG_MIN_FREE_BYTES", "33554432");
    let mut server = TestServer::start_on_with(&mount.path().join("data"), &[reserve]).await;
    let mut ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let before = ann.send_text(&room_id, "before", "before").await;

    let filler = mount.path().join("filler");
    SmallDisk::fill(&filler);
    let refused = ann.send(&room_id, "m.room.message", "during", &text("during")).await;
    assert_eq!(refused.status, 503, "{refused}");
    assert!(refused.body["error"].as_str().is_some_and(|said| said.contains("full")), "{refused}");
    // Nothing of it was done, and everything can be read.
    let messages = ann.messages(&room_id, None, None, Direction::Back, 10).await;
    let first = messages["chunk"][0]["event_id"].as_str();
    assert_eq!(first, Some(before.as_str()), "{messages}");
    ann.sync(None, 0, None).await;

    // A start needs no room either: it serves what there is, and takes no writes.
    server.stop();
    SmallDisk::fill(&filler);
    server.restart().await;
    ann.http = server.http();
    let refused = ann.send(&room_id, "m.room.message", "during", &text("during")).await;
    assert_eq!(refused.status, 503, "{refused}");
    let messages = ann.messages(&room_id, None, None, Direction::Back, 10).await;
    assert_eq!(messages["chunk"][0]["event_id"], json!(before), "{messages}");
    ann.sync(None, 0, None).await;
    // Nor does one after a crash.
    server.kill9();
    SmallDisk::fill(&filler);
    server.restart().await;
    ann.http = server.http();
    ann.sync(None, 0, None).await;

    // With room again, writes are taken again, without a restart.
    fs::remove_file(&filler).expect("the filler can be removed");
    let after = ann.send_text(&room_id, "during", "during").await;
    server.restart().await;
    let messages = ann.messages(&room_id, None, None, Direction::Back, 10).await;
    assert_eq!(messages["chunk"][0]["event_id"], json!(after));
    assert_eq!(messages["chunk"][1]["event_id"], json!(before));
    server.stop();
    assert_verifies(server.data_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_few_descriptors_goes_on_whatever_connections_there_are() {
    let limit = r#"ulimit -n 256 && "$@""#;
    let wrapper = ["env", "LOGCABIN_RATE_LIMITS_ENABLED=false", "sh", "-c", limit, "sh"];
    let server = TestServer::start_under(wrapper.map(Into::into).into()).await;
    server.prints("the limit on file descriptors is too low").await;
    let mut ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    ann.send_text(&room_id, "before", "hello").await;

    let address = server.base().replace("http://", "");
    let connect = |_| std::net::TcpStream::connect(&address).expect("it listens");
    let silent: Vec<_> = (0..400).map(connect).collect();
    for round in 0..20 {
        // Each with a connection of its own.
        ann.http = server.http();
        ann.http.request("GET", "/health/live", None, None).await.ok();
        ann.http.request("GET", "/health/ready", None, None).await.ok();
        ann.send_text(&room_id, &format!("during-{round}"), "hello").await;
    }
    until("all of it is found", async || {
        let body = json!({ "search_categories": { "room_events": { "search_term": "hello" } } });
        let answer = ann.request("POST", "/search", Some(&body)).await.ok();
        answer["search_categories"]["room_events"]["count"] == 21
    })
    .await;
    let said = server.output();
    assert!(!said.contains("Too many open files") && !said.contains("os error 24"), "{said}");
    assert!(said.matches("too few file descriptors").count() <= 1, "{said}");
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_write_writes_are_refused_reads_go_on_and_nothing_is_lost() {
    // A file that may not grow past 24 MiB: the write in the middle of which that happens fails.
    let limit = r#"trap "" XFSZ; ulimit -f 49152 && "$@""#;
    let wrapper = ["env", "LOGCABIN_LOG_ARCHIVE_DIR=off", "sh", "-c", limit, "sh"];
    let mut server = TestServer::start_under(wrapper.map(Into::into).into()).await;
    let mut ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    // The log compresses what it can.
    let mut random = Random::from_env("LOGCABIN_LARGE_SEED");
    let letters = (0..20_000).filter_map(|_| char::from_u32(random.between(0x4e00, 0x9fff) as u32));
    let large = text(&letters.collect::<String>());
    let mut acknowledged = Vec::new();
    let refused = loop {
        let txn_id = format!("large-{}", acknowledged.len());
        let answer = ann.send(&room_id, "m.room.message", &txn_id, &large).await;
        if answer.status != 200 {
            break answer;
        }
        acknowledged.push(answer.ok_string("event_id"));
        assert!(acknowledged.len() < 2000, "the limit did nothing");
    };
    assert_eq!(refused.status, 503, "{refused}");
    server.prints("the log failed").await;
    // For good, however small.
    assert_eq!(ann.send(&room_id, "m.room.message", "small", &text("x")).await.status, 503);
    assert_holds(&ann, &room_id, &acknowledged).await;
    server.kill9();
    // Started again, without the limit.
    let mut again = TestServer::start_on(server.data_dir()).await;
    ann.http = again.http();
    assert_holds(&ann, &room_id, &acknowledged).await;
    ann.send_text(&room_id, "again", "there is room again").await;
    again.stop();
    assert_verifies(server.data_dir());
}

/// That the room's messages can be read, and begin with the acknowledged ones. The one that was
/// under way when a write failed may or may not have reached the disk.
async fn assert_holds(user: &User, room_id: &str, acknowledged: &[String]) {
    let (mut messages, mut from) = (Vec::new(), None::<String>);
    loop {
        let page = user.messages(room_id, from.as_deref(), None, Direction::Back, 1000).await;
        let events = page["chunk"].as_array().into_iter().flatten();
        messages.extend(events.filter(|event| event["type"] == "m.room.message").cloned());
        match page["end"].as_str() {
            Some(end) => from = Some(end.to_owned()),
            None => break,
        }
    }
    messages.reverse();
    assert!(messages.len() >= acknowledged.len(), "{} of {}", messages.len(), acknowledged.len());
    for (event, event_id) in messages.iter().zip(acknowledged) {
        assert_eq!(event["event_id"], json!(event_id));
    }
    user.sync(None, 0, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_from_an_undone_future_starts_over() {
    let mut server = TestServer::start().await;
    let mut ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    ann.send_text(&room_id, "kept", "kept").await;
    let known = next_batch(&ann.sync(None, 0, None).await);
    server.until_archived().await;
    let earlier = TempDir::new().expect("a temporary directory");
    let archive = earlier.path().join("archive");
    copy_files(&server.data_dir().join("archive"), &archive);
    ann.send_text(&room_id, "lost", "lost").await;
    let undone = next_batch(&ann.sync(Some(&known), 0, None).await);
    server.kill9();

    let data_dir = earlier.path().join("data");
    restore(&archive, &data_dir);
    let mut restored = TestServer::start_on(&data_dir).await;
    ann.http = restored.http();
    // New records take the offsets of those that were lost, and more.
    for number in 0..5 {
        ann.send_text(&room_id, &format!("new-{number}"), &format!("new {number}")).await;
    }
    let full = ann.sync(Some(&undone), 0, None).await;
    let room = &full["rooms"]["join"][&room_id];
    assert!(bodies(&room["timeline"]["events"]).contains(&"new 4".to_owned()), "{full}");
    let told = room["state"]["events"].as_array().into_iter().flatten();
    let told = told.chain(room["timeline"]["events"].as_array().into_iter().flatten());
    assert!(told.into_iter().any(|event| event["type"] == "m.room.create"), "{full}");
    // One from before the cut goes on as if nothing had been.
    let news = ann.sync(Some(&known), 0, None).await;
    let news = bodies(&news["rooms"]["join"][&room_id]["timeline"]["events"]);
    assert_eq!(news, ["new 0", "new 1", "new 2", "new 3", "new 4"]);
    // A token of the undone future names nothing in a room's history.
    let path = format!("/rooms/{}/messages?dir=b&from={undone}", encode(&room_id));
    ann.request("GET", &path, None).await.refused(400, "M_INVALID_PARAM");
    restored.stop();
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verifying_a_log_changes_no_byte_of_it_and_leaves_nothing_behind() {
    let mut server = TestServer::start_with(&[
        ("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"),
        ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1"),
    ])
    .await;
    let data_dir = server.data_dir().to_owned();
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let said = ann.send_text(&room_id, "0", "taken back").await;
    let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&said));
    ann.request("PUT", &path, Some(&json!({}))).await.ok();
    // So that there are volumes, too.
    volume(&data_dir).await;
    for number in 1..20 {
        ann.send_text(&room_id, &format!("{number}"), "hello").await;
    }
    server.kill9();
    // What a start would tidy up.
    fs::write(data_dir.join("log/volumes/00000000000000000099.new"), "half").expect("a file");
    fs::create_dir_all(data_dir.join("log/tails/000077.new")).expect("a directory");
    let before = everything(&data_dir);
    assert!(before.keys().any(|path| path.ends_with("db")), "{:?}", before.keys());
    for _ in 0..2 {
        assert_verifies(&data_dir);
        let after = everything(&data_dir);
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        let changed = before.iter().find(|(path, bytes)| after.get(*path) != Some(*bytes));
        assert_eq!(changed.map(|(path, _)| path), None);
    }
    // The copy of one that was killed goes with the next, and a fault is named where it is.
    fs::create_dir_all(data_dir.join("verifying/log")).expect("a directory");
    assert_verifies(&data_dir);
    assert!(!data_dir.join("verifying").exists());
    let volume = before.keys().find(|path| path.extension().is_some_and(|e| e == "lcvol"));
    let volume = volume.expect("a volume");
    let mut bytes = before[volume].1.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(volume, bytes).expect("it can be written");
    let output = run_logcabin(["verify".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str()]);
    let said = format!("{output:?}");
    assert!(!output.status.success() && !said.contains("verifying"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_volume_is_read_from_the_archive_and_can_be_repaired() {
    let mut server = TestServer::start_with(&[
        ("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"),
        ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1"),
    ])
    .await;
    let data_dir = server.data_dir().to_owned();
    let mut ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    for number in 0..30 {
        ann.send_text(&room_id, &format!("{number}"), "hello").await;
    }
    let said = ann.send_text(&room_id, "secret", "taken back").await;
    let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&said));
    ann.request("PUT", &path, Some(&json!({}))).await.ok();
    let volume = volume(&data_dir).await;
    let before = ann.messages(&room_id, None, None, Direction::Back, 100).await;
    let before = without_age(&before);
    server.stop();
    let mut bytes = fs::read(&volume).expect("a volume");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&volume, bytes).expect("it can be written");

    server.restart().await;
    ann.http = server.http();
    for _ in 0..3 {
        let after = ann.messages(&room_id, None, None, Direction::Back, 100).await;
        assert!(without_age(&after) == before, "other messages");
    }
    server.prints("is read from the archive").await;
    server.stop();
    assert_eq!(server.output().matches("is read from the archive").count(), 1);

    let verify = |more: &[&str]| {
        let mut line = vec!["verify".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str()];
        line.extend(more.iter().map(std::ffi::OsStr::new));
        let output = run_logcabin(line);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = verify(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is damaged") && said.contains("`logcabin verify --repair`"), "{said}");
    let (code, said) = verify(&["--repair"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("taken from the archive: records 1 to"), "{said}");
    let (code, said) = verify(&["--repair"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no volume of the log is damaged"), "{said}");

    // Without the archive, too, now.
    fs::rename(data_dir.join("archive"), data_dir.join("elsewhere")).expect("an archive");
    server.restart().await;
    ann.http = server.http();
    let after = ann.messages(&room_id, None, None, Direction::Back, 100).await;
    assert!(without_age(&after) == before, "other messages");
    server.stop();
    assert_eq!(server.output().matches("is read from the archive").count(), 1);
}

/// The events of a page, without what differs from one moment to the next.
fn without_age(page: &Value) -> Vec<Value> {
    let mut events = page["chunk"].as_array().cloned().unwrap_or_default();
    for event in &mut events {
        event["unsigned"] = Value::Null;
    }
    assert!(!events.is_empty(), "{page}");
    events
}

/// Waits for the first volume of a log that compacts at once.
async fn volume(data_dir: &Path) -> PathBuf {
    let volumes = || {
        let entries = fs::read_dir(data_dir.join("log/volumes")).into_iter().flatten().flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "lcvol"))
    };
    until("there is a volume", async || volumes().is_some()).await;
    volumes().expect("a volume")
}

/// All files below a directory but the lock: when they were changed, and what is in them; of
/// directories, that they are there.
fn everything(dir: &Path) -> BTreeMap<PathBuf, (Option<SystemTime>, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(everything(&path));
            found.insert(path, (None, Vec::new()));
        } else if path.is_file() && path.file_name() != Some("lock".as_ref()) {
            let changed = fs::metadata(&path).and_then(|of| of.modified()).ok();
            let bytes = fs::read(&path).expect("it can be read");
            found.insert(path, (changed, bytes));
        }
    }
    found
}

fn text(body: &str) -> Value {
    json!({ "msgtype": "m.text", "body": body })
}

fn next_batch(sync: &Value) -> String {
    sync["next_batch"].as_str().expect("every sync has a next_batch").to_owned()
}

fn bodies(events: &Value) -> Vec<String> {
    let events = events.as_array().into_iter().flatten();
    events.filter_map(|event| Some(event["content"]["body"].as_str()?.to_owned())).collect()
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the directory can be made");
    for entry in fs::read_dir(from).expect("the archive can be listed") {
        let entry = entry.expect("the archive can be listed");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a segment can be copied");
    }
}

/// A file system of 96 MiB in memory.
pub(crate) struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    pub(crate) fn mount(at: &'a Path) -> Option<Self> {
        let at_text = at.to_str()?;
        runs("mount", &["-t", "tmpfs", "-o", "size=96m", "tmpfs", at_text]).then_some(Self(at))
    }

    /// Takes all the room there is.
    pub(crate) fn fill(file: &Path) {
        let mut out = fs::File::create(file).expect("a file can be made");
        let block = vec![0_u8; 1 << 16];
        while std::io::Write::write_all(&mut out, &block).is_ok() {}
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // Lazily: the server in it may still be ending.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// The files and directories in `dir` with which others than their owner may do something.
fn open_to_others(dir: &Path) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.permissions().mode() & 0o077 != 0 {
            found.push(format!("{} {:o}", path.display(), about.permissions().mode()));
        }
        if about.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory can be read");
            left.extend(entries.map(|entry| entry.expect("an entry can be read").path()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_but_the_owner_can_read_any_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let aside = TempDir::new().expect("a temporary directory");
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    for number in 0..20 {
        ann.send_text(&room_id, &number.to_string(), "words to be found").await;
    }
    let search = json!({ "search_categories": { "room_events": { "search_term": "words" } } });
    ann.request("POST", "/search", Some(&search)).await.ok();
    let mut picture = std::io::Cursor::new(Vec::new());
    let pixels = image::RgbImage::from_fn(400, 400, |x, y| image::Rgb([x as u8, y as u8, 0]));
    pixels.write_to(&mut picture, image::ImageFormat::Png).expect("a picture can be encoded");
    let media = ann.upload("image/png", picture.into_inner()).await;
    let small = ann.thumbnail(&media, "width=96&height=96&method=crop").await;
    assert_eq!(small.parts.status, 200);
    let data_dir = server.data_dir().to_owned();
    let at = |words: &[&str], dest: &str| {
        let dest = aside.path().join(dest);
        let mut line: Vec<_> = words.iter().map(std::ffi::OsString::from).collect();
        line.extend(["--data-dir".into(), data_dir.clone().into(), dest.into()]);
        let output = run_logcabin(line);
        assert!(output.status.success(), "{output:?}");
    };
    at(&["backup"], "backup");
    server.stop();
    let snapshot = run_logcabin([
        "snapshot".as_ref(),
        "write".as_ref(),
        "--data-dir".as_ref(),
        data_dir.as_os_str(),
    ]);
    assert!(snapshot.status.success(), "{snapshot:?}");
    at(&["export"], "export");
    for dir in [&data_dir, &aside.path().join("backup"), &aside.path().join("export")] {
        assert_eq!(open_to_others(dir), Vec::<String>::new());
    }

    // What an earlier version left readable, or a copy made so, is put right at the start.
    let log = data_dir.join("log");
    let any_file = fs::read_dir(data_dir.join("archive")).expect("an archive").next();
    let any_file = any_file.expect("a file").expect("an entry").path();
    for path in [&log, &any_file] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode can be set");
    }
    let server = TestServer::start_on(&data_dir).await;
    server.prints("removed other users' access").await;
    assert_eq!(open_to_others(&data_dir), Vec::<String>::new());
}
