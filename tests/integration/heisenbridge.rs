//! heisenbridge, a bridge to IRC that nobody here wrote: it invites its owner before the owner has
//! an account, takes commands, and makes rooms.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{TestServer, User, encode, free_address, skip, tools, until};

/// The bridge as a process.
struct Bridge(Child);

impl Bridge {
    fn start(python: &Path, registration: &Path, server: &str) -> Self {
        let child = Command::new(python)
            .args(["-m", "heisenbridge", "--owner", "@owner:e2e.test", "--config"])
            .arg(registration)
            .arg(server)
            .stdin(Stdio::null())
            .spawn();
        Self(child.expect("the bridge can be started"))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What others have said in a room, the newest first.
async fn said(owner: &User, room_id: &str) -> Vec<String> {
    let path = format!("/rooms/{}/messages?dir=b&limit=20", encode(room_id));
    let page = owner.request("GET", &path, None).await.ok();
    let others = page["chunk"].as_array().expect("events").iter();
    let others = others.filter(|event| event["sender"] != owner.user_id.as_str());
    others.filter_map(|event| event["content"]["body"].as_str().map(str::to_owned)).collect()
}

/// Says something to the bridge, and waits until it answers with `answer`.
async fn tell(owner: &User, room_id: &str, text: &str, answer: &str) {
    owner.send_text(room_id, &encode(text), text).await;
    until(answer, async || said(owner, room_id).await.iter().any(|said| said.contains(answer)))
        .await;
}

/// The room to which the owner is invited and whose name begins with `name`, or that has none.
async fn invited(owner: &User, name: Option<&str>) -> String {
    let mut room_id = None;
    until("the bridge invites", async || {
        let sync = owner.request("GET", "/sync", None).await.ok();
        let rooms = sync["rooms"]["invite"].as_object().cloned().unwrap_or_default();
        let named = |room: &Value| {
            let mut state = room["invite_state"]["events"].as_array().into_iter().flatten();
            let of_name = state.find(|event| event["type"] == "m.room.name");
            of_name.and_then(|event| event["content"]["name"].as_str().map(str::to_owned))
        };
        let fits = |found: Option<String>| match (found, name) {
            (Some(found), Some(name)) => found.starts_with(name),
            (found, name) => found.is_none() && name.is_none(),
        };
        let mut found = rooms.iter().filter(|(_, room)| fits(named(room)));
        room_id = found.next().map(|(room_id, _)| room_id.clone());
        room_id.is_some()
    })
    .await;
    let room_id = room_id.expect("an invite");
    owner.join(&room_id).await.ok();
    room_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heisenbridge_invites_an_owner_who_registers_later_and_obeys() {
    let python = match tools::python_of_programs("heisenbridge") {
        Ok(python) => python,
        Err(missing) => return skip("heisenbridge", &missing),
    };
    let directory = TempDir::new().expect("a temporary directory");
    let registration = directory.path().join("registration.yaml");
    let port = free_address().port().to_string();
    let generated = Command::new(&python)
        .args(["-m", "heisenbridge", "--generate", "--listen-port", &port, "--config"])
        .arg(&registration)
        .status();
    assert!(generated.expect("heisenbridge runs").success());
    let file = registration.display().to_string();
    let server = TestServer::start_with(&[("LOGCABIN_APPSERVICES_FILES", &file)]).await;
    let _bridge = Bridge::start(&python, &registration, &server.base());
    let watcher = server.register("watcher").await;
    let profile = format!("/profile/{}", encode("@heisenbridge:e2e.test"));
    until("the bridge has begun", async || {
        watcher.request("GET", &profile, None).await.status == 200
    })
    .await;

    let owner = server.register("owner").await;
    let control = invited(&owner, None).await;
    tell(&owner, &control, "help", "OPEN").await;
    tell(&owner, &control, "addnetwork test", "Network added").await;
    tell(&owner, &control, "addserver test irc.example", "Server added").await;
    owner.send_text(&control, "open", "open test").await;
    let network = invited(&owner, Some("test")).await;
    tell(&owner, &network, "help", "NICK").await;
}
