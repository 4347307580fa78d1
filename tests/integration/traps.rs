//! What an operator can do by mistake, and what must not come of it: two data directories with one
//! archive, a port that is taken, files that others can read.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::administration::{done_json, user_command};
use crate::harness::{TestServer, free_address, run_logcabin, until};
use crate::monitoring::{scrape, value};

/// A live server whose archive is elsewhere, and the configuration file that says so.
struct Live {
    directory: TempDir,
    server: TestServer,
    archive: PathBuf,
    config: PathBuf,
    metrics: String,
}

impl Live {
    async fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let at = |name: &str| directory.path().join(name);
        let (data, archive, config) = (at("live"), at("archive"), at("live.toml"));
        let text = format!(
            "[server]\ndata_dir = {:?}\n[log]\narchive_dir = {:?}\n",
            data.display().to_string(),
            archive.display().to_string()
        );
        fs::write(&config, text).expect("the file can be written");
        let metrics = free_address().to_string();
        let archive_text = archive.display().to_string();
        let settings = [
            ("LOGCABIN_LOG_ARCHIVE_DIR", archive_text.as_str()),
            ("LOGCABIN_METRICS_BIND", metrics.as_str()),
        ];
        let server = TestServer::start_on_with(&data, &settings).await;
        server.register("ann").await;
        let live = Self { server, archive, config, metrics, directory };
        live.until_archived().await;
        live
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn until_archived(&self) {
        until("the archive has everything", async || {
            let metrics = scrape(&self.metrics).await;
            has_segments(&self.archive)
                && value(&metrics, "logcabin_archive_lag_records") == Some(0.0)
        })
        .await;
    }

    /// Runs a command with the configuration of the live server on another data directory.
    fn run_on(&self, data_dir: &Path, arguments: &[&str]) -> Output {
        let config = self.config.display().to_string();
        let data_dir = data_dir.display().to_string();
        run_logcabin(arguments.iter().copied().chain([
            "--config",
            config.as_str(),
            "--data-dir",
            data_dir.as_str(),
        ]))
    }
}

fn has_segments(archive: &Path) -> bool {
    let entries = fs::read_dir(archive).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().extension().is_some_and(|e| e == "lcseg"))
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_beside_a_live_server_leaves_its_archive_alone() {
    crate::harness::nodes::one_server!("it is about the archive of one server");
    let mut live = Live::start().await;
    let backup = live.at("backup").display().to_string();
    let taken = live.run_on(live.server.data_dir(), &["backup", &backup]);
    assert!(taken.status.success(), "{}", said(&taken));
    let copy = live.at("copy");
    // An earlier moment: the archive of the live server is not a part of what is restored.
    let restored = live.run_on(&copy, &["restore", "--from", &backup, "--to", "2"]);
    let text = said(&restored);
    assert!(restored.status.success(), "{text}");
    assert!(text.contains("is left alone") && text.contains("log.archive_dir"), "{text}");
    assert!(!text.contains("previous archive"), "{text}");
    assert!(has_segments(&live.archive));

    // A start of the copy with that configuration is refused, and says whose the archive is.
    let started =
        live.run_on(&copy, &["serve", "--bind", "127.0.0.1:0", "--server-name", "e2e.test"]);
    let text = said(&started);
    assert!(!started.status.success(), "{text}");
    assert!(text.contains("is in use by another logcabin"), "{text}");
    assert!(text.contains(&live.server.data_dir().display().to_string()), "{text}");
    live.server.register("bob").await;
    live.server.restart().await;
    // Nor may it while the other one is stopped.
    live.server.stop();
    let started =
        live.run_on(&copy, &["serve", "--bind", "127.0.0.1:0", "--server-name", "e2e.test"]);
    let text = said(&started);
    assert!(!started.status.success(), "{text}");
    assert!(text.contains("belongs to the data directory"), "{text}");
    live.server.restart().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_that_was_moved_keeps_its_archive() {
    crate::harness::nodes::one_server!("it is about the archive of one server");
    let mut live = Live::start().await;
    live.server.stop();
    let moved = live.at("moved");
    fs::rename(live.server.data_dir(), &moved).expect("it can be renamed");
    let archive = live.archive.display().to_string();
    let settings = [("LOGCABIN_LOG_ARCHIVE_DIR", archive.as_str())];
    let server = TestServer::start_on_with(&moved, &settings).await;
    server.prints("the data directory was moved").await;
    server.register("bob").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_server_whose_archive_vanishes_says_so_and_makes_a_new_one() {
    crate::harness::nodes::one_server!("it is about the archive of one server");
    let mut live = Live::start().await;
    let healthy = live.server.http().request("GET", "/health/ready", None, None).await;
    assert_eq!(healthy.ok(), json!({ "status": "ready" }));
    fs::rename(&live.archive, live.at("gone")).expect("it can be renamed");
    live.server.prints("has vanished while the server ran").await;
    live.until_archived().await;
    assert!(live.archive.join("owner.json").is_file());
    let failing = value(&scrape(&live.metrics).await, "logcabin_archive_failing");
    assert_eq!(failing, Some(1.0));
    let health = live.server.http().request("GET", "/health/ready", None, None).await.ok();
    assert_eq!(
        (&health["status"], &health["warnings"][0]["check"]),
        (&json!("ready"), &json!("archive"))
    );
    // The new one is complete.
    live.server.stop();
    let archive = live.archive.display().to_string();
    let verified = run_logcabin(
        ["verify", "--archive", &archive, "--data-dir"].into_iter().chain([live
            .server
            .data_dir()
            .to_str()
            .expect("a plain name")]),
    );
    assert!(verified.status.success(), "{}", said(&verified));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_does_not_use_the_uploaded_files_of_a_live_server() {
    crate::harness::nodes::one_server!("it is about the files of one server");
    let directory = TempDir::new().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    let media = at("media").display().to_string();
    let settings = [("LOGCABIN_MEDIA_DIR", media.as_str())];
    let mut live = TestServer::start_on_with(&at("live"), &settings).await;
    live.register("ann").await;
    live.until_archived().await;
    crate::harness::restore(&at("live").join("archive"), &at("copy"));
    let config = at("config.toml");
    fs::write(&config, format!("[media]\ndir = {media:?}\n")).expect("the file can be written");
    let line = ["serve", "--bind", "127.0.0.1:0", "--server-name", "e2e.test", "--config"];
    let (config, copy) = (config.display().to_string(), at("copy").display().to_string());
    let line = line.into_iter().chain([config.as_str(), "--data-dir", copy.as_str()]);
    let started = run_logcabin(line);
    let text = said(&started);
    assert!(!started.status.success() && text.contains("`media.dir`"), "{text}");
    live.stop();
}

#[test]
fn a_port_that_is_taken_leaves_no_data_directory_and_names_the_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("new/data").display().to_string();
    let output = run_logcabin(["serve", "--bind", &address, "--data-dir", &data_dir]);
    let text = said(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("`server.bind`") && text.contains(&address), "{text}");
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0, "{text}");
}

#[tokio::test]
async fn what_others_can_read_is_made_private_at_the_start() {
    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("data");
    TestServer::start_on(&data_dir).await.stop();
    let key = data_dir.join("tokens.key");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode can be set");
    };
    set(&key, 0o644);
    set(&data_dir, 0o755);
    let server = TestServer::start_on(&data_dir).await;
    server.prints("removed other users' access").await;
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&key), mode(&data_dir)), (0o600, 0o700));
}

#[tokio::test]
async fn the_last_use_of_a_device_survives_a_restart() {
    crate::harness::nodes::one_server!("another node hears of a request within a minute");
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    ann.request("GET", "/account/whoami", None).await.ok();
    // Nothing is recorded yet. It is asked for on the command line, which is no use of a device.
    let seen = |data_dir: &Path| -> Value {
        let shown = done_json(user_command(data_dir, "show ann --json", ""));
        shown["logged_in"][&ann.device_id]["seen_ms"].clone()
    };
    let before = seen(server.data_dir());
    assert!(before.as_u64() > Some(1_700_000_000_000), "{before}");
    server.stop();
    server.restart().await;
    assert_eq!(seen(server.data_dir()), before);
}
