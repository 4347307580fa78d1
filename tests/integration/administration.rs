//! What the command line does with the accounts of a server, running or stopped.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::crash::assert_verifies;
use crate::harness::{Http, TestServer, User, run_logcabin_with};

const PASSWORD: &str = "a password that is long enough";

/// `logcabin user …` on this data directory, with `input` on standard input.
pub(crate) fn user_command(data_dir: &Path, arguments: &str, input: &str) -> Output {
    let data_dir = data_dir.to_str().expect("a temporary directory has a plain name");
    let arguments = arguments.split(' ').chain(["--data-dir", data_dir]);
    run_logcabin_with(input, ["user"].into_iter().chain(arguments))
}

/// What a command says that must succeed.
#[track_caller]
pub(crate) fn done(output: Output) -> String {
    let (said, failed) = both(&output);
    assert!(output.status.success(), "{}: {said}{failed}", output.status);
    said
}

#[track_caller]
fn done_json(output: Output) -> Value {
    let said = done(output);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// What a command says that must fail, with the exit code that failures have.
#[track_caller]
fn failed(output: Output) -> String {
    let (said, failed) = both(&output);
    assert_eq!(output.status.code(), Some(1), "{said}{failed}");
    failed
}

fn both(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

async fn login(http: &Http, name: &str, password: &str) -> crate::harness::Answer {
    let body = json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": name },
        "password": password,
    });
    http.request("POST", "/_matrix/client/v3/login", None, Some(&body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_acts_on_a_running_server() {
    let mut server = TestServer::start_with(&[("LOGCABIN_REGISTRATION_OPEN", "false")]).await;
    let (http, data_dir) = (server.http(), server.data_dir().to_owned());
    let run = |arguments: &str, input: &str| user_command(&data_dir, arguments, input);

    let said = done(run("create ann --admin --display-name Ann", &format!("{PASSWORD}\n")));
    assert_eq!(said, "Made the account @ann:e2e.test.\n");
    let ann = User::of(&http, login(&http, "ann", PASSWORD).await);
    let profile = ann.request("GET", "/profile/@ann:e2e.test", None).await.ok();
    assert_eq!(profile["displayname"], "Ann");
    done(run("create @bob:e2e.test --no-password", ""));
    login(&http, "bob", "").await.refused(403, "M_FORBIDDEN");

    let listed = done_json(run("list --json", ""));
    let ids: Vec<_> = listed["users"].as_array().expect("a list").iter().collect();
    assert_eq!(ids.len(), 2, "{listed}");
    assert_eq!((&ids[0]["user_id"], &ids[0]["admin"]), (&json!("@ann:e2e.test"), &json!(true)));
    assert_eq!((&ids[1]["user_id"], &ids[1]["devices"]), (&json!("@bob:e2e.test"), &json!(0)));
    let said = done(run("list --admin", ""));
    assert!(said.contains("@ann:e2e.test  Ann  1 device(s)  administrator\n1 user(s)"), "{said}");
    let shown = done_json(run("show ann --json", ""));
    assert_eq!(shown["has_password"], true);
    assert!(shown["logged_in"][&ann.device_id]["since_ms"].as_u64() > Some(1_700_000_000_000));
    assert!(done(run("show ann", "")).contains(&ann.device_id));

    // A new password logs everyone out who knew the old one.
    done(run("reset-password bob", "the password of bob"));
    let bob = User::of(&http, login(&http, "bob", "the password of bob").await);
    done(run("reset-password bob --keep-devices", "another one of bob"));
    bob.request("GET", "/account/whoami", None).await.ok();
    done(run("reset-password bob", "the third one of bob"));
    bob.request("GET", "/account/whoami", None).await.refused(401, "M_UNKNOWN_TOKEN");

    let bob = User::of(&http, login(&http, "bob", "the third one of bob").await);
    assert_eq!(done(run("lock bob", "")), "@bob:e2e.test is locked now.\n");
    assert_eq!(done(run("lock bob", "")), "@bob:e2e.test is locked already.\n");
    bob.request("GET", "/account/whoami", None).await.refused(401, "M_USER_LOCKED");
    done(run("unlock bob", ""));
    done(run("suspend bob --reason spam", ""));
    bob.request("POST", "/createRoom", Some(&json!({}))).await.refused(403, "M_USER_SUSPENDED");
    done(run("unsuspend bob", ""));
    let other = User::of(&http, login(&http, "bob", "the third one of bob").await);
    let said = done(run(&format!("logout bob --device {}", other.device_id), ""));
    assert!(said.contains(&other.device_id), "{said}");
    other.request("GET", "/account/whoami", None).await.refused(401, "M_UNKNOWN_TOKEN");
    bob.request("GET", "/account/whoami", None).await.ok();
    done(run("logout bob", ""));
    bob.request("GET", "/account/whoami", None).await.refused(401, "M_UNKNOWN_TOKEN");
    done(run("unset-admin ann", ""));
    assert_eq!(done_json(run("list --admin --json", ""))["users"], json!([]));

    // Who did it, and why, is in the log; no password is.
    server.stop();
    let words = history(&data_dir);
    assert!(words.contains("suspended @bob:e2e.test: spam"), "{words}");
    assert!(words.contains("has a new password (done by admin ("), "{words}");
    assert!(!words.contains("password of bob") && !words.contains("one of bob"), "{words}");
    assert_verifies(&data_dir);
}

/// What the log says, in words.
fn history(data_dir: &Path) -> String {
    use logcabin::{history::source::Source, history::words, record::Offset};
    let source = Source::stopped(data_dir).expect("a log");
    let records = source.records(Offset::new(1)).expect("records");
    let words = records.map(|record| words::of_record(&record.expect("a record")));
    words.map(|words| format!("{} {}\n", words.who, words.text)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_acts_on_a_stopped_server_too() {
    let mut server = TestServer::start().await;
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str, input: &str| user_command(&data_dir, arguments, input);
    let (mut ann, mut bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    server.stop();

    done(run("create cas", PASSWORD));
    let closed = done_json(run("deactivate bob --yes --json --reason gone", ""));
    assert_eq!((&closed["changed"], &closed["rooms"]), (&json!(true), &json!(1)));
    let again = done(run("deactivate bob --yes", ""));
    assert!(again.contains("deactivated already"), "{again}");
    assert!(failed(run("reset-password bob", PASSWORD)).contains("for ever"));
    assert!(failed(run("set-admin bob", "")).contains("for ever"));
    done(run("lock ann", ""));
    assert_verifies(&data_dir);

    server.restart().await;
    let http = server.http();
    (ann.http, bob.http) = (http.clone(), http.clone());
    User::of(&http, login(&http, "cas", PASSWORD).await);
    ann.request("GET", "/account/whoami", None).await.refused(401, "M_USER_LOCKED");
    bob.request("GET", "/account/whoami", None).await.refused(401, "M_UNKNOWN_TOKEN");
    login(&http, "bob", PASSWORD).await.refused(403, "M_USER_DEACTIVATED");
    done(run("unlock ann", ""));
    let left = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(left["membership"], "leave");
    assert_eq!(done_json(run("list --deactivated --json", ""))["users"][0]["devices"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_said_and_nothing_is_done() {
    let server = TestServer::start().await;
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str, input: &str| user_command(&data_dir, arguments, input);
    server.register("ann").await;
    for (arguments, input, expected) in [
        ("show nobody", "", "no user `nobody`"),
        ("lock @ann:elsewhere.test", "", "no user"),
        ("create ann", PASSWORD, "taken"),
        ("create An!n", PASSWORD, "user name"),
        ("create new", "", "there is no password"),
        ("logout ann --device NONE", "", "not logged in on a device `NONE`"),
        ("deactivate ann", "", "--yes"),
    ] {
        let said = failed(run(arguments, input));
        assert!(said.contains(expected), "{arguments}: {said}");
    }
    let usage = run("create", "");
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");
    let listed = done_json(run("list --json", ""));
    assert_eq!(listed["users"].as_array().map(Vec::len), Some(1), "{listed}");

    // A directory without a log gets none: its server's name would be nobody's choice.
    let empty = TempDir::new().expect("a temporary directory");
    let said = failed(user_command(empty.path(), "create ann", PASSWORD));
    assert!(said.contains("start the server once"), "{said}");
    assert_eq!(std::fs::read_dir(empty.path()).expect("a directory").count(), 0);
}
