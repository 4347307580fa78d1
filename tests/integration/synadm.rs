//! synadm, a tool that administrators of another server use, which nobody here wrote: it
//! administers this one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::administration::{done, user_command};
use crate::harness::{TestServer, User, skip, tools};

/// The program with the configuration of one administrator.
struct Synadm {
    python: PathBuf,
    directory: TempDir,
}

impl Synadm {
    fn new(python: PathBuf, server: &TestServer, admin: &User) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let config = json!({
            "user": admin.user_id, "token": admin.access_token, "base_url": server.base(),
            "admin_path": "/_synapse/admin", "matrix_path": "/_matrix", "timeout": 60,
            "server_discovery": "well-known", "homeserver": "e2e.test", "ssl_verify": false,
            "format": "json",
        });
        let synadm = Self { python, directory };
        // YAML holds JSON.
        std::fs::write(synadm.config(), config.to_string()).expect("a file");
        synadm
    }

    fn config(&self) -> PathBuf {
        Path::join(self.directory.path(), "synadm.yaml")
    }

    /// The JSON that it prints last.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Value {
        let said = self.said(arguments);
        let begins = |(_, line): &(usize, &str)| line.starts_with(['{', '[']);
        let mut at = 0;
        let lines = said.split_inclusive('\n').map(|line| {
            at += line.len();
            (at - line.len(), line)
        });
        let last = lines.filter(begins).last().unwrap_or_else(|| panic!("no JSON: {said}"));
        let json = &said[last.0..];
        let mut values = serde_json::Deserializer::from_str(json).into_iter();
        let value = values.next().expect("something is printed");
        value.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said}"))
    }

    /// What it prints.
    #[track_caller]
    fn said(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.python)
            .args(["-c", "from synadm.cli import root; root()", "--batch", "--config-file"])
            .arg(self.config())
            .args(["--output", "json"])
            .args(arguments)
            .env("HOME", self.directory.path())
            .stdin(Stdio::null())
            .output()
            .expect("synadm runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}{said}");
        text.into_owned() + &said
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synadm_administers_the_server() {
    let python = match tools::python("synadm") {
        Ok(python) => python,
        Err(missing) => return skip("synadm", &missing),
    };
    let server = TestServer::start().await;
    let (admin, bob) = (server.register("admin").await, server.register("bob").await);
    done(user_command(server.data_dir(), "set-admin admin", ""));
    let synadm = Synadm::new(python, &server, &admin);
    let names = |list: &Value| -> Vec<String> {
        let users = list["users"].as_array().expect("a list of users").iter();
        users.map(|user| user["name"].as_str().expect("a name").to_owned()).collect()
    };

    let version = synadm.run(&["version"]);
    assert!(version["server_version"].as_str().is_some_and(|v| v.starts_with("logcabin")));
    assert_eq!(names(&synadm.run(&["user", "list"])), [admin.user_id.clone(), bob.user_id.clone()]);
    let password = "a password that is long enough";
    synadm.said(&["user", "modify", "-n", "New", "-P", password, "@new:e2e.test"]);
    let mut new = User::login(&server.http(), "new", password).await;
    let shown = synadm.run(&["user", "details", "@new:e2e.test"]);
    assert_eq!((&shown["displayname"], &shown["admin"]), (&json!("New"), &json!(false)), "{shown}");
    synadm.said(&["user", "password", "-p", "another long password", "@new:e2e.test"]);
    new.request("GET", "/account/whoami", None).await.refused(401, "M_UNKNOWN_TOKEN");
    new = User::login(&server.http(), "new", "another long password").await;
    let whois = synadm.run(&["user", "whois", "@new:e2e.test"]);
    assert!(whois["devices"].get(&new.device_id).is_some(), "{whois}");

    let room_id = bob.create_room(json!({ "preset": "public_chat", "name": "Club" })).await;
    let rooms = synadm.run(&["room", "list", "-n", "Club"]);
    assert_eq!(
        (&rooms["total_rooms"], &rooms["rooms"][0]["room_id"]),
        (&json!(1), &json!(room_id))
    );
    assert_eq!(synadm.run(&["room", "details", &room_id])["creator"], bob.user_id.as_str());
    synadm.run(&["room", "block", &room_id]);
    new.join(&room_id).await.refused(403, "M_FORBIDDEN");
    assert_eq!(synadm.run(&["room", "block-status", &room_id])["block"], true);
    synadm.run(&["room", "block", "-u", &room_id]);
    synadm.run(&["room", "join", &room_id, "@new:e2e.test"]);
    synadm.run(&["room", "make-admin", "-u", "@new:e2e.test", &room_id]);
    let topic = json!({ "topic": "mine" });
    new.set_state(&room_id, "m.room.topic", "", &topic).await.ok();
    let members = synadm.run(&["room", "members", &room_id]);
    assert_eq!(members["total"], 2, "{members}");

    let media = bob.upload("text/plain", "something bad").await;
    let id = media.split('/').nth(1).expect("an id");
    synadm.run(&["media", "quarantine", "-s", "e2e.test", "-i", id]);
    assert_eq!(bob.download(&media).await.parts.status, 404);
    synadm.run(&["media", "unquarantine", "-s", "e2e.test", "-i", id]);
    assert_eq!(bob.download(&media).await.parts.status, 200);
    let listed = synadm.run(&["media", "list", "-u", &bob.user_id]);
    assert_eq!(listed["total"], 1, "{listed}");

    let made = synadm.run(&["regtok", "new", "-n", "club", "-u", "3"]);
    assert_eq!(made["uses_allowed"], 3, "{made}");
    assert_eq!(
        synadm.run(&["regtok", "list"])["registration_tokens"].as_array().map(Vec::len),
        Some(1)
    );
    synadm.said(&["regtok", "delete", "club"]);
    let told = synadm.run(&["notice", "send", "bob", "The server stops at noon."]);
    assert!(told[0]["event_id"].is_string(), "{told}");

    synadm.said(&["room", "delete", "--v1", "--no-purge", &room_id]);
    for user in [&bob, &new] {
        let joined = user.request("GET", "/joined_rooms", None).await.ok();
        assert_eq!(joined["joined_rooms"], json!([]), "{}", user.user_id);
    }
    synadm.said(&["user", "deactivate", "@new:e2e.test"]);
    new.request("GET", "/account/whoami", None).await.refused(401, "M_UNKNOWN_TOKEN");
}
