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
    command("user", data_dir, arguments, input)
}

pub(crate) fn command(of: &str, data_dir: &Path, arguments: &str, input: &str) -> Output {
    let data_dir = data_dir.to_str().expect("a temporary directory has a plain name");
    let arguments = arguments.split(' ').chain(["--data-dir", data_dir]);
    run_logcabin_with(input, [of].into_iter().chain(arguments))
}

/// What a command says that must succeed.
#[track_caller]
pub(crate) fn done(output: Output) -> String {
    let (said, failed) = both(&output);
    assert!(output.status.success(), "{}: {said}{failed}", output.status);
    said
}

#[track_caller]
pub(crate) fn done_json(output: Output) -> Value {
    let said = done(output);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// What a command says that must fail, with the exit code that failures have.
#[track_caller]
pub(crate) fn failed(output: Output) -> String {
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
pub(crate) fn history(data_dir: &Path) -> String {
    use logcabin::{history::describe, record::Offset, source::Source};
    let source = Source::stopped(data_dir).expect("a log");
    let records = source.records(Offset::new(1)).expect("records");
    let words = records.map(|record| describe::of_record(&record.expect("a record")));
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
    assert!(failed(run("reset-password bob", PASSWORD)).contains("cannot be undone"));
    assert!(failed(run("set-admin bob", "")).contains("cannot be undone"));
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
async fn an_impossible_command_is_refused_and_changes_nothing() {
    let server = TestServer::start().await;
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str, input: &str| user_command(&data_dir, arguments, input);
    server.register("ann").await;
    for (arguments, input, expected) in [
        ("show nobody", "", "no user `nobody`"),
        ("lock @ann:elsewhere.test", "", "no user"),
        ("create ann", PASSWORD, "taken"),
        ("create An!n", PASSWORD, "user name"),
        ("create new", "", "no input"),
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

/// An attempt to register with a registration token.
async fn register_with(http: &Http, name: &str, token: &str) -> crate::harness::Answer {
    let mut body = json!({ "username": name, "password": PASSWORD });
    let register = "/_matrix/client/v3/register";
    let asked = http.request("POST", register, None, Some(&body)).await;
    let session = &asked.body["session"];
    body["auth"] =
        json!({ "type": "m.login.registration_token", "token": token, "session": session });
    http.request("POST", register, None, Some(&body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_creates_counts_changes_and_removes_registration_tokens() {
    let settings =
        [("LOGCABIN_REGISTRATION_OPEN", "true"), ("LOGCABIN_REGISTRATION_REQUIRE", "token")];
    let mut server = TestServer::start_with(&settings).await;
    let (http, data_dir) = (server.http(), server.data_dir().to_owned());
    let run =
        |arguments: &str, input: &str| command("registration-token", &data_dir, arguments, input);
    assert_eq!(done(run("list", "")), "0 registration token(s)\n");

    // One that is made up, for one account and a week; one that is given, for ever.
    let made = done_json(run("create --uses 1 --expires 1w --label club --json", ""));
    let token = made["token"].as_str().expect("a token").to_owned();
    let id = made["id"].as_str().expect("an id").to_owned();
    assert!(token.len() >= 20 && !token.contains(&id), "{made}");
    let said = done(run("create --given --uses 5", "given.token~1\n"));
    assert!(said.starts_with("given.token~1\n"), "{said}");

    register_with(&http, "ann", "nonsense").await.refused(401, "M_UNAUTHORIZED");
    User::of(&http, register_with(&http, "ann", &token).await);
    register_with(&http, "bob", &token).await.refused(401, "M_UNAUTHORIZED");
    User::of(&http, register_with(&http, "bob", "given.token~1").await);

    let listed = done_json(run("list --json", ""));
    let tokens = listed["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 2, "{listed}");
    let of = |id: &str| tokens.iter().find(|token| token["id"] == id).expect("it is listed");
    let club = of(&id);
    assert_eq!((&club["uses"], &club["uses_allowed"]), (&json!(1), &json!(1)));
    assert_eq!((&club["label"], &club["good"]), (&json!("club"), &json!(false)));
    let week = club["expires_ms"].as_u64().expect("a time");
    let now_ms = logcabin::clock::Clock::system().now_ms();
    assert!((now_ms + 600_000_000..now_ms + 604_800_000).contains(&week), "{club}");
    let said = done(run("list", ""));
    assert!(said.contains("club") && said.contains("1 of 1 used"), "{said}");
    assert!(!said.contains(&token) && !said.contains("given.token"), "{said}");

    // What is not named stays; what was used stays counted, over a restart too.
    let said = done(run(&format!("update {id} --uses 2"), ""));
    assert!(said.contains("is now: club, 1 of 2 used, until "), "{said}");
    assert!(done(run(&format!("update {id} --uses 2"), "")).contains("was already"));
    server.restart().await;
    let http = server.http();
    User::of(&http, register_with(&http, "cas", &token).await);
    register_with(&http, "dee", &token).await.refused(401, "M_UNAUTHORIZED");

    // On a server that is stopped as well; a token is also named by itself, unseen.
    drop(http);
    server.stop();
    done(run(&format!("update {id} --uses unlimited --expires never"), ""));
    done(run("update - --expires 2020-01-01", "given.token~1"));
    server.restart().await;
    let http = server.http();
    register_with(&http, "dee", "given.token~1").await.refused(401, "M_UNAUTHORIZED");
    User::of(&http, register_with(&http, "dee", &token).await);
    assert_eq!(
        done(run(&format!("delete {id}"), "")),
        format!("Removed the registration token {id}.\n")
    );
    register_with(&http, "eve", &token).await.refused(401, "M_UNAUTHORIZED");
    assert_eq!(done_json(run("list --json", ""))["tokens"].as_array().map(Vec::len), Some(1));

    for (arguments, input, expected) in [
        (format!("delete {id}"), "", "no such registration token"),
        (format!("update {token} --uses 3"), "", "no such registration token"),
        ("create --given".to_owned(), "not a token", "1 to 64 of"),
        ("create --given".to_owned(), "given.token~1", "already"),
        ("create --given".to_owned(), "", "no input"),
        ("create --expires 2020-01-01".to_owned(), "", "this time is in the past"),
        (format!("create --label {}", "x".repeat(129)), "", "128 bytes"),
    ] {
        let said = failed(run(&arguments, input));
        assert!(said.contains(expected), "{arguments}: {said}");
    }
    for wrong in ["create --uses 0", "create --expires soon", "update 12345678"] {
        assert_eq!(run(wrong, "").status.code(), Some(2), "{wrong}");
    }

    // The history says who did it, and no token.
    drop(http);
    server.stop();
    let words = history(&data_dir);
    let made = format!("set the registration token {id}… (club) for 1 account(s), until 20");
    for said in [made.as_str(), "removed the registration token", "admin ("] {
        assert!(words.contains(said), "expected {said:?} in {words}");
    }
    assert!(!words.contains(&token) && !words.contains("given.token"), "{words}");
    assert_verifies(&data_dir);
}
