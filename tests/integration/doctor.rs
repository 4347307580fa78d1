//! `logcabin doctor` and `logcabin status`: each thing that is broken is found, nothing is called
//! well that nobody looked at, and the console shows the same.

mod https;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::administration::{command, done, done_json, failed, user_command};
use crate::calls::Livekit;
use crate::console::{CONSOLE, PASSWORD, cookie, get, log_in, status, text};
use crate::harness::{Random, TestServer, until};

/// Settings with which a server on any machine that runs tests is well but for what a test breaks.
const MODEST: [(&str, &str); 2] =
    [("LOGCABIN_HTTP_MAX_CONNECTIONS", "100"), ("LOGCABIN_LOG_MIN_FREE_BYTES", "0")];

async fn server(more: &[(&str, &str)]) -> TestServer {
    TestServer::start_with(&[&MODEST, more].concat()).await
}

/// What is found, and the exit code.
#[track_caller]
fn examined(data_dir: &Path, arguments: &str) -> (Value, Option<i32>) {
    let output = command("doctor", data_dir, &format!("--json{arguments}"), "");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let report = serde_json::from_str(&said);
    (report.unwrap_or_else(|error| panic!("{error}: {output:?}")), output.status.code())
}

/// The findings of a check.
fn found(report: &Value, check: &str) -> Vec<Value> {
    let all = report["findings"].as_array().expect("findings");
    all.iter().filter(|finding| finding["check"] == check).cloned().collect()
}

/// Each of these checks has one finding, of this level.
#[track_caller]
fn are(report: &Value, level: &str, checks: &[&str]) {
    for check in checks {
        let found = found(report, check);
        assert!(found.len() == 1 && found[0]["level"] == level, "{check}: {report:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_server_lacks_only_a_backup() {
    let server = server(&[]).await;
    server.register("ann").await;
    server.until_archived().await;
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "warning", &["backup"]);
    let well = [
        "server",
        "configuration",
        "permissions",
        "descriptors",
        "disk",
        "log",
        "archive",
        "projections",
        "federation",
        "turn",
        "calls",
        "mail",
        "push-gateways",
        "oauth",
    ];
    are(&report, "ok", &well);
    assert_eq!((&report["level"], code), (&json!("warning"), Some(1)), "{report:#}");
    assert_eq!((&report["done"], &report["running"]), (&json!("examined"), &json!(true)));
    assert!(report["checked_ms"].as_u64() > Some(1_700_000_000_000), "{report:#}");
    for finding in report["findings"].as_array().expect("findings") {
        let fields = ["check", "level", "what", "why", "mend"];
        assert!(fields.iter().all(|field| finding[field].is_string()), "{finding}");
        let is_mended = finding["level"] == "ok" || finding["mend"] != "";
        assert!(is_mended && finding["what"] != "", "{finding}");
    }

    // A name that would disturb a terminal.
    let place = TempDir::new().expect("a directory");
    let place = place.path().join("<img\u{202e}\u{1b}[31m>");
    let directory = place.display().to_string();
    let backup = command("backup", server.data_dir(), &directory, "");
    assert!(backup.status.success(), "{backup:?}");
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "ok", &["backup"]);
    are(&report, "warning", &["backup-verified"]);
    assert_eq!(code, Some(1), "{report:#}");
    let shown = command("doctor", server.data_dir(), "--allow-unknown", "");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.starts_with("warning"), "{shown}");
    assert!(shown.contains("never verified") && shown.contains("Mend: logcabin"), "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");

    let verified = command("verify-backup", server.data_dir(), &directory, "");
    assert!(verified.status.success(), "{verified:?}");
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "ok", &["backup", "backup-verified"]);
    assert_eq!((&report["level"], code), (&json!("ok"), Some(0)), "{report:#}");
    // What is out of sight is not well.
    fs::remove_dir_all(&place).expect("it can be removed");
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "unknown", &["backup-verified"]);
    assert_eq!(code, Some(1), "{report:#}");
    assert_eq!(examined(server.data_dir(), " --allow-unknown").1, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_others_can_read_is_found() {
    let server = server(&[]).await;
    server.register("ann").await;
    let key = server.data_dir().join("tokens.key");
    let set = |mode| fs::set_permissions(&key, Permissions::from_mode(mode)).expect("its mode");
    set(0o644);
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "error", &["permissions"]);
    let mend = &found(&report, "permissions")[0]["mend"];
    assert_eq!(mend, &json!(format!("chmod 600 {}", key.display())), "{report:#}");
    assert_eq!((&report["findings"][0]["level"], code), (&json!("error"), Some(2)));
    set(0o600);
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "ok", &["permissions"]);
    assert_eq!(code, Some(1), "{report:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_required_and_does_not_exist_is_found() {
    let server = server(&[("LOGCABIN_REGISTRATION_REQUIRE", "token")]).await;
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "error", &["registration"]);
    assert_eq!(code, Some(2), "{report:#}");
    let mend = found(&report, "registration")[0]["mend"].as_str().expect("a command").to_owned();
    assert_eq!(mend, "logcabin registration-token create");
    done(command("registration-token", server.data_dir(), "create", ""));
    let (report, code) = examined(server.data_dir(), "");
    assert!(found(&report, "registration").is_empty(), "{report:#}");
    are(&report, "ok", &["configuration"]);
    assert_eq!(code, Some(1), "{report:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_livekit_that_does_not_know_the_key_is_found() {
    let livekit = Livekit::start().await;
    let server = livekit.server(&MODEST).await;
    let (report, _) = examined(server.data_dir(), "");
    are(&report, "ok", &["calls"]);
    livekit.refuses(Some(503));
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "error", &["calls"]);
    assert_eq!(code, Some(2), "{report:#}");
    livekit.refuses(Some(401));
    let (report, _) = examined(server.data_dir(), "");
    are(&report, "error", &["calls"]);
    let mend = found(&report, "calls")[0]["mend"].as_str().expect("what to do").to_owned();
    assert!(mend.contains("rtc.livekit_keys_file"), "{report:#}");
    // The key of the running server stays, and what it reads at the next reload is no key.
    livekit.refuses(None);
    livekit.has_keys("APItest: short\n");
    let (report, _) = examined(server.data_dir(), "");
    are(&report, "error", &["calls"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_descriptors_are_found() {
    let wrapper = ["sh", "-c", r#"ulimit -n 256 && "$@""#, "sh"];
    let server = TestServer::start_under(wrapper.map(Into::into).into()).await;
    let (report, code) = examined(server.data_dir(), "");
    are(&report, "error", &["descriptors"]);
    let finding = &found(&report, "descriptors")[0];
    assert!(finding["what"].as_str().is_some_and(|what| what.contains("256")), "{finding}");
    assert!(finding["mend"].as_str().is_some_and(|mend| mend.contains("LimitNOFILE=")));
    assert_eq!(code, Some(2), "{report:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_cannot_be_written_is_found() {
    let place = TempDir::new().expect("a directory");
    let archive = place.path().join("archive");
    let directory = archive.display().to_string();
    let settings = [
        ("LOGCABIN_LOG_ARCHIVE_DIR", directory.as_str()),
        ("LOGCABIN_LOG_ARCHIVE_SEGMENT_BYTES", "65536"),
    ];
    let server = server(&settings).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    are(&examined(server.data_dir(), "").0, "ok", &["archive"]);
    fs::rename(&archive, place.path().join("away")).expect("it can be moved");
    fs::write(&archive, "not a directory").expect("it can be written");
    // The archive compresses what it can.
    let mut random = Random::from_env("LOGCABIN_DOCTOR_SEED");
    let letters = (0..10_000).filter_map(|_| char::from_u32(random.between(0x4e00, 0x9fff) as u32));
    let large: String = letters.collect();
    let mut sent = 0;
    until("the archive fails", async || {
        // The present segment is full sooner or later.
        for _ in 0..4 {
            sent += 1;
            ann.send_text(&room_id, &sent.to_string(), &large).await;
        }
        let (report, _) = examined(server.data_dir(), "");
        found(&report, "archive").iter().any(|finding| finding["level"] == "error")
    })
    .await;
    let shown = done_json(command("status", server.data_dir(), "--json", ""));
    assert_eq!(shown["archive"]["state"], "failing", "{shown:#}");
    assert_eq!(examined(server.data_dir(), "").1, Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_stopped_server_nothing_is_well_that_only_a_running_one_knows() {
    let mut server = server(&[]).await;
    let ann = server.register("ann").await;
    ann.create_room(json!({})).await;
    let data_dir = server.data_dir().to_owned();
    let shown = done_json(command("status", &data_dir, "--json", ""));
    assert_eq!((&shown["running"], &shown["users"]), (&json!(true), &json!(1)), "{shown:#}");
    assert_eq!(shown["pid"].as_u64(), server.process().map(u64::from), "{shown:#}");
    assert_eq!(shown["server_name"], "e2e.test");
    let text = done(command("status", &data_dir, "--config /dev/null", ""));
    assert!(text.contains("running, process") && text.contains("Last backup   none"), "{text}");

    server.stop();
    let (report, code) = examined(&data_dir, "");
    are(&report, "warning", &["server", "backup"]);
    are(&report, "unknown", &["descriptors", "log", "archive", "push-gateways", "oauth"]);
    are(&report, "ok", &["permissions", "configuration", "projections"]);
    assert_eq!((&report["running"], code), (&json!(false), Some(1)), "{report:#}");
    let stopped = done_json(command("status", &data_dir, "--json", ""));
    assert_eq!((&stopped["running"], &stopped["pid"]), (&json!(false), &Value::Null));
    for same in ["users", "rooms", "server_name", "open_reports"] {
        assert_eq!(stopped[same], shown[same], "{same}: {stopped:#}");
    }
    assert!(done(command("status", &data_dir, "--config /dev/null", "")).contains("stopped"));

    // Without a log, nothing is made, and what needs it is unknown.
    let place = TempDir::new().expect("a directory");
    let nowhere = place.path().join("nowhere");
    let (report, code) = examined(&nowhere, "");
    are(&report, "error", &["server"]);
    are(&report, "unknown", &["backup", "projections", "archive"]);
    assert_eq!(code, Some(2), "{report:#}");
    failed(command("status", &nowhere, "--json", ""));
    assert!(!nowhere.exists());
    let wrong = command("doctor", &data_dir, "--config /does/not/exist.toml", "");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_shows_the_findings_and_examines_only_when_asked() {
    let server = server(&[("LOGCABIN_CONSOLE_ENABLED", "true")]).await;
    let admin = server.register("admin").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    let see = async || {
        let answer = get(&server, "/health", &mine).await;
        assert_eq!(status(&answer), 200, "{}", text(&answer));
        text(&answer)
    };
    let ask = async |more: &[(&str, &str)]| {
        let form = ("content-type", "application/x-www-form-urlencoded");
        let headers = [&[form], more].concat();
        server.http().raw("POST", &format!("{CONSOLE}/health"), &headers, "").await
    };
    for _ in 0..2 {
        assert!(see().await.contains("not examined since its start"));
    }
    let evil = [("cookie", mine.as_str()), ("origin", "https://evil.example")];
    assert_eq!(status(&ask(&evil).await), 403);
    let ann = server.register("ann").await;
    let as_ann = format!("logcabin_console={}", ann.access_token);
    assert_eq!(status(&ask(&[("cookie", &as_ann)]).await), 403);
    assert_eq!(status(&ask(&[]).await), 303);
    assert!(see().await.contains("not examined since its start"));

    let asked = ask(&[("cookie", &mine)]).await;
    assert_eq!((status(&asked), asked.header("location")), (303, "/_logcabin/console/health"));
    let page = see().await;
    for words in ["There is no backup.", "logcabin backup DIRECTORY", "1 warning(s)", "Examine"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    // Within a minute, the same is shown, although it is no longer so.
    let place = TempDir::new().expect("a directory");
    let place = place.path().join("backup").display().to_string();
    assert!(command("backup", server.data_dir(), &place, "").status.success());
    assert_eq!(status(&ask(&[("cookie", &mine)]).await), 303);
    assert!(see().await.contains("There is no backup."));
    // What the command finds is shown, too.
    examined(server.data_dir(), "");
    let page = see().await;
    assert!(!page.contains("There is no backup.") && page.contains("never verified"), "{page}");
}
