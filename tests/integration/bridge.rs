//! A bridge that nobody here wrote the framework of: mautrix, with ghosts that say again what they
//! hear (`tests/e2e/echo_bridge.py`).

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::files::Kind;
use crate::harness::tools::{Lines, programs, python};
use crate::harness::{Random, TestServer, User, encode, skip};

const SERVER: &str = "e2e.test";
const GHOST: &str = "@echo_one:e2e.test";

/// The bridge as a process.
pub(crate) struct Echo {
    child: Child,
    told: Lines,
}

impl Echo {
    /// A bridge of the server of this name, at this address.
    pub(crate) fn start(python: &Path, (name, address): (&str, &str), port: u16) -> Self {
        let mut command = Command::new(python);
        command.arg(programs().join("echo_bridge.py"));
        command.arg(address).arg(port.to_string()).arg(name);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the bridge can be started");
        let told = Lines::of(child.stdout.take().expect("stdout is piped"));
        Self { child, told }
    }

    fn told(&self) -> Vec<Value> {
        self.told.all()
    }

    /// The ids of the messages that it has heard, in order.
    pub(crate) fn heard(&self) -> Vec<String> {
        let told = self.told().into_iter().filter(|told| told["event"] == "heard");
        told.map(|told| told["event_id"].as_str().expect("an event id").to_owned()).collect()
    }

    /// Waits until it has told something that has these fields, and gives it.
    #[track_caller]
    pub(crate) fn tells(&self, wanted: &Value) -> Value {
        let fields = wanted.as_object().expect("an object");
        let fits = |line: &&Value| fields.iter().all(|(name, value)| line[name] == *value);
        self.told.wait(&wanted.to_string(), |told| told.iter().find(fits).cloned())
    }

    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that stays free while the bridge is gone: none that the system gives to connections.
pub(crate) fn free_port() -> u16 {
    let mut random = Random::from_env("LOGCABIN_E2E_SEED");
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let ports = std::iter::repeat_with(|| 20_000 + random.between(0, 10_000) as u16);
    ports.take(1000).find(is_free).expect("a free port")
}

/// As mautrix writes it for its bridges.
pub(crate) fn registration(server_name: &str, port: u16) -> String {
    let server_name = server_name.replace('.', "\\.");
    format!(
        "id: echo\nas_token: as-echo\nhs_token: hs-echo\nnamespaces:\n    users:\n    - \
         exclusive: true\n      regex: ^@echo_.*:{server_name}$\n    - exclusive: true\n      \
         regex: ^@echobot:{server_name}$\n    aliases:\n    - exclusive: true\n      \
         regex: ^#echo_.*:{server_name}$\nurl: http://localhost:{port}\nsender_localpart: \
         echobot\nrate_limited: false\nde.sorunome.msc2409.push_ephemeral: true\n\
         push_ephemeral: true\n"
    )
}

/// A file of each kind goes to the bridge and comes back from its ghost, as another one that is the
/// same.
async fn relays_files(ann: &User, echo: &Echo, room_id: &str) {
    for kind in Kind::all() {
        let name = kind.name;
        let path = format!("/_matrix/media/v3/upload?filename={}", encode(name));
        let token = format!("Bearer {}", ann.access_token);
        let headers = [("authorization", &*token), ("content-type", kind.content_type)];
        let uploaded = ann.http.raw("POST", &path, &headers, kind.bytes.clone()).await;
        let address = uploaded.json().ok_string("content_uri");
        let content = kind.content(&json!({ "url": address }));
        let sent = ann.send(room_id, kind.event_type(), name, &content).await;
        let sent = sent.ok_string("event_id");
        let relayed = echo.tells(&json!({ "event": "relayed", "of": sent }));
        let said = relayed["said"].as_str().expect("an event id");
        let path = format!("/rooms/{}/event/{}", encode(room_id), encode(said));
        let event = ann.request("GET", &path, None).await.ok();
        assert_eq!((&event["sender"], &event["type"]), (&json!(GHOST), &json!(kind.event_type())));
        let mut expected = content;
        expected["url"] = relayed["url"].clone();
        // Of a sticker, mautrix says that as a type of message, too.
        let fields = ["url", "body", "info"].into_iter().chain(kind.msgtype.map(|_| "msgtype"));
        for field in fields {
            assert_eq!(event["content"][field], expected[field], "{field} of {event}");
        }
        let answer = ann.download(&media_of(relayed["url"].as_str().expect("an address"))).await;
        assert_eq!(answer.parts.status, 200, "{name}");
        assert!(answer.bytes == kind.bytes, "{name} is not what was sent");
        assert_eq!(answer.header("content-type"), kind.content_type);
        let disposition = answer.header("content-disposition");
        assert!(disposition.starts_with(kind.disposition), "{name}: {disposition}");
        let original = ann.download(&media_of(&address)).await;
        assert_eq!(disposition, original.header("content-disposition"));
        if let Some(thumbnail) = relayed["thumbnail"].as_str() {
            let thumbnail = BASE64.decode(thumbnail).expect("base64");
            let thumbnail = image::load_from_memory(&thumbnail).expect("a picture");
            assert_eq!((thumbnail.width(), thumbnail.height()), (96, 96));
            let profile = format!("/profile/{}/avatar_url", encode(GHOST));
            let profile = ann.request("GET", &profile, None).await.ok();
            assert_eq!(profile["avatar_url"], relayed["url"]);
        }
    }
}

fn media_of(address: &str) -> String {
    address.strip_prefix("mxc://").expect("the address of a file").to_owned()
}

/// Everything that is said in the room, in order: who says it, and what.
async fn said(ann: &User, room_id: &str) -> Vec<(String, Value)> {
    let path = format!("/rooms/{}/messages?dir=f&limit=1000", encode(room_id));
    let page = ann.request("GET", &path, None).await.ok();
    let events = page["chunk"].as_array().cloned().unwrap_or_default();
    let messages = events.into_iter().filter(|event| event["type"] == "m.room.message");
    messages.map(|event| (event["sender"].as_str().unwrap_or_default().to_owned(), event)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mautrix_bridge_makes_ghosts_and_echoes_what_it_hears_over_restarts() {
    let python = match python("mautrix") {
        Ok(python) => python,
        Err(missing) => return skip("bridge", &missing),
    };
    let port = free_port();
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("registration.yaml");
    std::fs::write(&file, registration(SERVER, port)).expect("a file can be written");
    let file = file.display().to_string();
    let mut server = TestServer::start_with(&[("LOGCABIN_APPSERVICES_FILES", &file)]).await;
    let ann = server.register("ann").await;
    let echo = Echo::start(&python, (SERVER, &server.base()), port);
    let ready = echo.tells(&json!({ "event": "ready" }));
    assert_eq!(ready["user_id"], "@echobot:e2e.test");

    // A ghost that nobody has made yet is invited: the bridge makes it, and it comes.
    let room_id = ann.create_room(json!({ "preset": "private_chat" })).await;
    let invite = json!({ "user_id": GHOST });
    let path = format!("/rooms/{}/invite", encode(&room_id));
    ann.request("POST", &path, Some(&invite)).await.ok();
    echo.tells(&json!({ "event": "ghost", "user_id": GHOST }));
    echo.tells(&json!({ "event": "joined", "user_id": GHOST, "room_id": room_id }));
    let profile = ann.request("GET", &format!("/profile/{}", encode(GHOST)), None).await.ok();
    assert_eq!(profile["displayname"], "echo_one (echo)");

    // It says again what it hears, as of the time at which that was said.
    let mut sent = vec![ann.send_text(&room_id, "0", "hello").await];
    let echoed = echo.tells(&json!({ "event": "echoed", "of": sent[0] }));
    assert_eq!(echoed["body"], "one: hello");
    let all = said(&ann, &room_id).await;
    assert_eq!(all.len(), 2);
    assert_eq!((&*all[1].0, &all[1].1["content"]["body"]), (GHOST, &json!("one: hello")));
    assert_eq!(all[1].1["origin_server_ts"], all[0].1["origin_server_ts"]);

    // It sees what passes.
    let path = format!("/rooms/{}/typing/{}", encode(&room_id), encode(&ann.user_id));
    let typing = json!({ "typing": true, "timeout": 20_000 });
    ann.request("PUT", &path, Some(&typing)).await.ok();
    echo.tells(&json!({ "event": "typing", "room_id": room_id, "user_ids": [ann.user_id] }));
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&sent[0]));
    ann.request("POST", &path, Some(&json!({}))).await.ok();
    echo.tells(&json!({ "event": "receipt", "event_id": sent[0], "user_id": ann.user_id }));

    // The server is killed and started again; the bridge goes on.
    for number in 1..4 {
        let text = number.to_string();
        sent.push(ann.send_text(&room_id, &text, &text).await);
        server.restart().await;
    }
    for event_id in &sent {
        echo.tells(&json!({ "event": "echoed", "of": event_id }));
    }
    let all = said(&ann, &room_id).await.into_iter();
    let echoes: Vec<_> = all.filter(|(sender, _)| sender == GHOST).collect();
    let echoes: Vec<_> = echoes.iter().map(|(_, event)| event["content"]["body"].clone()).collect();
    assert_eq!(json!(echoes), json!(["one: hello", "one: 1", "one: 2", "one: 3"]));

    // What is said while the bridge is gone, it hears when it is back.
    echo.stop();
    let mut missed = Vec::new();
    for number in 4..9 {
        let text = number.to_string();
        missed.push(ann.send_text(&room_id, &text, &text).await);
    }
    server.restart().await;
    let echo = Echo::start(&python, (SERVER, &server.base()), port);
    echo.tells(&json!({ "event": "ready" }));
    let last = missed.last().expect("something was said");
    let heard = json!({ "event": "heard", "event_id": last });
    echo.tells(&heard);
    assert_eq!(echo.heard(), missed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mautrix_bridge_fetches_files_of_every_kind_and_its_ghost_sends_them_again() {
    let python = match python("mautrix") {
        Ok(python) => python,
        Err(missing) => return skip("bridge", &missing),
    };
    let port = free_port();
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("registration.yaml");
    std::fs::write(&file, registration(SERVER, port)).expect("a file can be written");
    let file = file.display().to_string();
    let server = TestServer::start_with(&[("LOGCABIN_APPSERVICES_FILES", &file)]).await;
    let ann = server.register("ann").await;
    let echo = Echo::start(&python, (SERVER, &server.base()), port);
    echo.tells(&json!({ "event": "ready" }));
    let options = json!({ "preset": "private_chat", "invite": [GHOST] });
    let room_id = ann.create_room(options).await;
    echo.tells(&json!({ "event": "joined", "user_id": GHOST, "room_id": room_id }));
    relays_files(&ann, &echo, &room_id).await;
    echo.stop();
}
