//! `logcabin setup`: what it makes, what it refuses, and that it leaves nothing half-made.

mod terminal;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::json;
use tempfile::TempDir;

use crate::administration::{done, failed, user_command};
use crate::harness::{TestServer, run_logcabin};

const PASSWORD: &str = "a password that is long enough";

/// A place for a server, and the flags that answer every question.
struct Place {
    directory: TempDir,
    flags: Vec<(&'static str, String)>,
}

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let at = |name: &str| directory.path().join(name).display().to_string();
        fs::write(at("password"), format!("{PASSWORD}\n")).expect("the file can be written");
        let flags = vec![
            ("--config", at("etc/logcabin.toml")),
            ("--data-dir", at("data")),
            ("--server-name", "example.org".to_owned()),
            ("--public-url", "https://matrix.example.org".to_owned()),
            ("--contact", "ann@example.org".to_owned()),
            ("--registration", "token".to_owned()),
            ("--tls", "proxy".to_owned()),
            ("--federation", "off".to_owned()),
            ("--admin", "ann".to_owned()),
            ("--admin-password-file", at("password")),
        ];
        Self { directory, flags }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// With another answer, or none.
    fn with(mut self, flag: &'static str, answer: Option<&str>) -> Self {
        self.flags.retain(|(given, _)| *given != flag);
        self.flags.extend(answer.map(|answer| (flag, answer.to_owned())));
        self
    }

    fn run(&self) -> Output {
        let flags = self.flags.iter().flat_map(|(flag, answer)| [*flag, answer.as_str()]);
        run_logcabin(["setup"].into_iter().chain(flags))
    }

    /// What it says when it must fail, after which nothing is there that was not before.
    #[track_caller]
    fn refused(&self) -> String {
        let before = entries(self.directory.path());
        let said = failed(self.run());
        assert_eq!(entries(self.directory.path()), before, "{said}");
        said
    }
}

/// Everything in a directory.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(entries(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setup_makes_a_server_that_its_administrator_can_use() {
    crate::harness::nodes::one_server!("it makes one server");
    let place = Place::new();
    let said = done(place.run());
    assert!(
        said.contains("@ann:example.org") && said.contains("logcabin serve --config"),
        "{said}"
    );
    let link = "https://matrix.example.org/_logcabin/console/login?link=";
    assert!(said.contains(link) && said.contains("registration-token create"), "{said}");
    let file = place.at("etc/logcabin.toml");
    let mode = fs::metadata(&file).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let text = fs::read_to_string(&file).expect("the file");
    assert!(!text.contains(PASSWORD) && text.contains("name = \"example.org\""), "{text}");
    let data = place.at("data");
    assert!(!data.join("setup").exists());
    assert!(done(user_command(&data, "list --admin", "")).contains("@ann:example.org"));

    let config = file.display().to_string();
    let server = TestServer::start_on_with(
        &data,
        &[("LOGCABIN_CONFIG", config.as_str()), ("LOGCABIN_SERVER_NAME", "example.org")],
    )
    .await;
    let login = json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": "ann" },
        "password": PASSWORD,
    });
    server.http().request("POST", "/_matrix/client/v3/login", None, Some(&login)).await.ok();
    let banner = server.output();
    assert!(!banner.contains("anyone who reaches") && !banner.contains("curl"), "{banner}");
    assert!(banner.contains("a registration token"), "{banner}");
}

#[test]
fn setup_overwrites_nothing() {
    let place = Place::new();
    done(place.run());
    let text = fs::read_to_string(place.at("etc/logcabin.toml")).expect("the file");
    let said = place.refused();
    assert!(said.contains("is not overwritten") && said.contains("--config"), "{said}");
    assert_eq!(fs::read_to_string(place.at("etc/logcabin.toml")).expect("the file"), text);
    let other = place.at("other.toml").display().to_string();
    let said = place.with("--config", Some(&other)).refused();
    assert!(said.contains("--data-dir"), "{said}");
}

#[test]
fn setup_replaces_a_file_of_comments() {
    let place = Place::new();
    fs::create_dir(place.at("etc")).expect("it can be made");
    fs::write(place.at("etc/logcabin.toml"), "# Run `logcabin setup`.\n").expect("a file");
    done(place.run());
    let text = fs::read_to_string(place.at("etc/logcabin.toml")).expect("the file");
    assert!(text.contains("[server]"), "{text}");
}

#[test]
fn without_a_terminal_setup_names_the_missing_flag_and_the_wrong_answer() {
    for flag in [
        "--server-name",
        "--public-url",
        "--contact",
        "--registration",
        "--tls",
        "--federation",
        "--admin",
        "--admin-password-file",
    ] {
        let said = Place::new().with(flag, None).refused();
        assert!(said.contains(&format!("`{flag}` is missing")), "{flag}: {said}");
    }
    for (flag, answer) in [
        ("--server-name", "not a name"),
        ("--public-url", "http://matrix.example.org"),
        ("--contact", "nobody"),
        ("--admin", "Ann!"),
        ("--admin-password-file", "/nowhere/password"),
    ] {
        let said = Place::new().with(flag, Some(answer)).refused();
        assert!(said.contains(flag), "{flag}: {said}");
    }
    let said = Place::new().with("--registration", Some("captcha")).refused();
    assert!(said.contains("--captcha-site-key"), "{said}");
    let said = Place::new().with("--tls", Some("files")).refused();
    assert!(said.contains("--tls-certificate"), "{said}");
}

#[test]
fn a_password_that_is_too_weak_leaves_nothing() {
    let place = Place::new();
    fs::write(place.at("password"), "ann\n").expect("the file can be written");
    place.refused();
}
