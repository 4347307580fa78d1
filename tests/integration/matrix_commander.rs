//! matrix-commander, with which people send and read messages on a terminal: a program on
//! matrix-nio that encrypts and that nobody here wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{TestServer, User, encode, skip, tools};

const PASSWORD: &str = "a password that is long enough";

/// The program with the credentials and the keys of one user.
struct Commander {
    python: PathBuf,
    directory: TempDir,
}

impl Commander {
    fn log_in(python: &Path, server: &TestServer, user: &User) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let commander = Self { python: python.to_owned(), directory };
        let (base, user_id) = (&*server.base(), &*user.user_id);
        let login = ["--login", "password", "--homeserver", base, "--user-login", user_id];
        // It wants a room to speak in unless it is told another one.
        let device =
            ["--password", PASSWORD, "--device", "terminal", "--room-default", "!no:e2e.test"];
        commander.said(&[&login[..], &device[..]].concat());
        commander
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What it prints.
    #[track_caller]
    fn said(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.python)
            .args(["-c", "from matrix_commander import main; main()"])
            .arg("--credentials")
            .arg(self.file("credentials.json"))
            .arg("--store")
            .arg(self.file("store"))
            .args(["--output", "json"])
            .args(arguments)
            .env("HOME", self.directory.path())
            .stdin(Stdio::null())
            .output()
            .expect("matrix-commander runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}{complained}");
        said.into_owned()
    }

    /// The contents of the messages that it has not read before, decrypted.
    fn read(&self) -> Vec<Value> {
        let media = self.file("media");
        let said = self.said(&["--listen", "once", "--download-media", &media.to_string_lossy()]);
        let content = |line: &str| -> Value {
            let line: Value = serde_json::from_str(line).expect("a line of JSON");
            line["source"]["content"].clone()
        };
        said.lines().map(content).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_commander_exchanges_encrypted_messages_and_files() {
    let python = match tools::python_of_programs("matrix_commander") {
        Ok(python) => python,
        Err(missing) => return skip("matrix-commander", &missing),
    };
    let server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let encryption = json!({
        "type": "m.room.encryption", "state_key": "",
        "content": { "algorithm": "m.megolm.v1.aes-sha2" },
    });
    let options = json!({ "preset": "public_chat", "initial_state": [encryption] });
    let room_id = ann.create_room(options).await;
    bob.join(&room_id).await.ok();
    let on_terminal = |user: &User| Commander::log_in(&python, &server, user);
    let (anns, bobs) = (on_terminal(&ann), on_terminal(&bob));
    // Each has uploaded its keys before the other encrypts for it.
    assert!(anns.read().is_empty() && bobs.read().is_empty());

    anns.said(&["--room", &room_id, "--message", "hello of ann"]);
    let bodies = |read: Vec<Value>| -> Vec<Value> {
        read.into_iter().map(|content| content["body"].clone()).collect()
    };
    assert_eq!(bodies(bobs.read()), ["hello of ann"]);
    bobs.said(&["--room", &room_id, "--message", "answer of bob"]);
    let (secret, bytes) = (bobs.file("secret.bin"), [7_u8; 3000]);
    fs::write(&secret, bytes).expect("a file");
    bobs.said(&["--room", &room_id, "--file", &secret.to_string_lossy()]);
    let read = anns.read();
    assert!(read[1]["file"]["key"].is_object(), "{read:?}");
    assert_eq!(bodies(read), ["answer of bob", "secret.bin"]);
    assert_eq!(fs::read(anns.file("media/secret.bin")).expect("a file"), bytes);
    // The server has seen none of it in plain text.
    let path = format!("/rooms/{}/messages?dir=b&limit=3", encode(&room_id));
    let page = ann.request("GET", &path, None).await.ok();
    for event in page["chunk"].as_array().expect("events") {
        assert_eq!(event["type"], "m.room.encrypted", "{event}");
    }

    // It takes a list only if all devices in it have a name.
    let path = format!("/devices/{}", encode(&ann.device_id));
    ann.request("PUT", &path, Some(&json!({ "display_name": "first" }))).await.ok();
    let devices = anns.said(&["--devices"]);
    assert!(devices.contains("terminal") && devices.contains(&ann.device_id), "{devices}");
}
