//! What stands beside a server: bridges, and another Synapse. The server runs with the
//! configuration that the import has proposed.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::authority;
use super::super::synapse::{self, Synapse};
use super::{finished_without_a_difference, imported, settings, texts};
use crate::bridge::{Echo, free_port, registration};
use crate::harness::{Bridge, Http, Mood, TestServer, User, encode, skip, tools, until};

/// How Synapse's users log in, in [`Synapse::register`].
const PASSWORD: &str = "correct horse battery";

const FILE: &str = "a file on Synapse";

/// Writes these, and notes the events and what they say.
async fn say(writer: &User, room_id: &str, bodies: &[&str], said: &mut Vec<(String, String)>) {
    for body in bodies {
        said.push((writer.send_text(room_id, body, body).await, (*body).to_owned()));
    }
}

/// The messages of the transactions that a service took, in order.
fn taken(bridge: &Bridge) -> Vec<String> {
    let answered = bridge.transactions().into_iter().filter(|(_, _, answered)| *answered);
    let events = answered.flat_map(|(_, body, _)| body["events"].as_array().cloned());
    let texts =
        events.flatten().filter_map(|event| Some(event["content"]["body"].as_str()?.into()));
    texts.collect()
}

/// The members who are in a room, by the answer of a server.
async fn joined(user: &User, room_id: &str) -> BTreeSet<String> {
    let path = format!("/rooms/{}/joined_members", encode(room_id));
    let members = user.request("GET", &path, None).await.ok();
    members["joined"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(user_id, _)| user_id.clone())
        .collect()
}

/// Waits until each has what the other writes, and sees the other's state.
async fn exchange(one: &User, other: &User, room_id: &str, when: &str) {
    for (writer, reader) in [(one, other), (other, one)] {
        let body = format!("{} {when}", writer.user_id);
        writer.send_text(room_id, &encode(&body), &body).await;
        until(&format!("{} has `{body}`", reader.user_id), async || {
            texts(reader, room_id).await.contains(&body)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bridges_get_their_next_transaction_and_another_synapse_goes_on() {
    let test = "import with neighbours";
    let Some(authority) = authority(test) else { return };
    let found = synapse::python().and_then(|it| tools::python("mautrix").map(|of| (it, of)));
    let (python, mautrix) = match found {
        Ok(found) => found,
        Err(missing) => return skip(test, &missing),
    };
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("echo.yaml");
    let mut log = Bridge::start("log", "").await;
    let address = crate::harness::free_address();
    let name = format!("localhost:{}", address.port());
    let port = free_port();
    std::fs::write(&file, registration(&name, port)).expect("a file");
    let more = json!({
        "app_service_config_files": [file, log.file()],
        "password_config": { "pepper": "pfeffer" },
    });
    let mut synapse = Synapse::launch(&python, &authority, (name.clone(), address), &more).await;
    let elsewhere = Synapse::start(&python, &authority).await;
    let base = synapse.base();
    let echo = Echo::start(&mautrix, (&name, &base), port);
    echo.tells(&json!({ "event": "ready" }));

    // One room with the ghosts of both bridges, and one with a user of another Synapse.
    let ann = synapse.register("ann").await;
    let ghost = format!("@echo_one:{name}");
    let room = ann.create_room(json!({ "preset": "private_chat", "invite": [ghost] })).await;
    echo.tells(&json!({ "event": "joined", "user_id": ghost, "room_id": room }));
    let of_log = ghost_of(&log, &synapse.http()).await;
    let invite = json!({ "user_id": of_log });
    let path = format!("/rooms/{}/invite", encode(&room));
    ann.request("POST", &path, Some(&invite)).await.ok();
    let path = format!("/v3/join/{}", encode(&room));
    log.request_by(&synapse.http(), "POST", &path, Some(&of_log), Some(&json!({}))).await.ok();
    let sam = elsewhere.register("sam").await;
    let options = json!({ "preset": "public_chat", "name": "Shared" });
    let shared = ann.create_room(options).await;
    let path = format!("/join/{}?via={}", encode(&shared), encode(&name));
    sam.request("POST", &path, Some(&json!({}))).await.ok();
    exchange(&ann, &sam, &shared, "before").await;
    for (user, of) in [(&ann, &sam), (&sam, &ann)] {
        user.upload_identity().await;
        let wanted = json!({ "device_keys": { &*of.user_id: [] } });
        user.request("POST", "/keys/query", Some(&wanted)).await.ok();
    }
    let file = ann.upload("text/plain", FILE).await;

    let mut said = Vec::new();
    say(&ann, &room, &["one", "two"], &mut said).await;
    echo.tells(&json!({ "event": "echoed", "of": said[1].0 }));
    log.until("it has both", |log| taken(log).contains(&"two".to_owned())).await;

    let data_dir = directory.path().join("data");
    imported("copy", &synapse, Some(&data_dir), &[]);
    say(&ann, &room, &["three"], &mut said).await;
    echo.tells(&json!({ "event": "echoed", "of": said[2].0 }));
    log.until("it has the third", |log| taken(log).contains(&"three".to_owned())).await;
    // One bridge is gone, and the other does not take what it gets: Synapse keeps that for them.
    let before = echo.heard();
    echo.stop();
    log.is(Mood::Status(500));
    say(&ann, &room, &["four", "five"], &mut said).await;
    let refused = |log: &Bridge| log.transactions().iter().any(|(_, _, answered)| !answered);
    log.until("it has refused a transaction", refused).await;
    exchange(&ann, &sam, &shared, "after the copy").await;

    synapse.kill();
    finished_without_a_difference(&synapse, &data_dir);
    let mut own = settings(&authority, &synapse);
    let proposed = data_dir.join("proposed/logcabin.toml").display().to_string();
    own.push(("LOGCABIN_CONFIG", proposed));
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    log.is(Mood::Fine);
    let mut server = TestServer::start_at(synapse.clients(), &data_dir, &own).await;
    let echo = Echo::start(&mautrix, (&name, &base), port);
    echo.tells(&json!({ "event": "ready" }));

    // Nothing is lost, and nothing comes twice.
    say(&ann, &room, &["six"], &mut said).await;
    let (ids, said): (Vec<_>, Vec<_>) = said.into_iter().unzip();
    echo.tells(&json!({ "event": "heard", "event_id": ids[5] }));
    let heard: Vec<String> = before.into_iter().chain(echo.heard()).collect();
    assert_eq!(heard, ids);
    log.until("it has the last", |log| taken(log).contains(&"six".to_owned())).await;
    let ours: Vec<String> = taken(&log).into_iter().filter(|text| said.contains(text)).collect();
    assert_eq!(ours, said);
    // The bridge fetches a file of before, and its ghost sends it again.
    let content = json!({
        "msgtype": "m.file", "body": "file.txt", "url": format!("mxc://{file}"),
        "info": { "mimetype": "text/plain", "size": FILE.len() },
    });
    let of = ann.send(&room, "m.room.message", "file", &content).await.ok_string("event_id");
    let relayed = echo.tells(&json!({ "event": "relayed", "of": of }));
    let copy = relayed["url"].as_str().and_then(|url| url.strip_prefix("mxc://"));
    assert_eq!(&*ann.download(copy.expect("an address")).await.bytes, FILE.as_bytes());

    // The other Synapse goes on in the room without a join, in both directions.
    exchange(&ann, &sam, &shared, "after").await;
    let topic = json!({ "topic": "moved" });
    ann.set_state(&shared, "m.room.topic", "", &topic).await.ok();
    until("sam sees the topic", async || {
        sam.state(&shared, "m.room.topic", "").await.body["topic"] == "moved"
    })
    .await;
    assert_eq!(&*sam.download(&file).await.bytes, FILE.as_bytes());
    for (user, of) in [(&ann, &sam), (&sam, &ann)] {
        let wanted = json!({ "device_keys": { &*of.user_id: [] } });
        let found = user.request("POST", "/keys/query", Some(&wanted)).await.ok();
        let found = &found["device_keys"][&of.user_id][&of.device_id];
        assert_eq!(found["keys"], of.keys().public(), "{found}");
    }
    // Whoever is new is let in by the other, too.
    let newcomer = User::register(&server.http(), "newcomer", PASSWORD).await;
    newcomer.join(&shared).await.ok();
    until("sam sees the newcomer", async || {
        joined(&sam, &shared).await.contains(&newcomer.user_id)
    })
    .await;
    exchange(&newcomer, &sam, &shared, "as a newcomer").await;
    assert_eq!(joined(&ann, &shared).await, joined(&sam, &shared).await);

    // Ann's password is still hers, also once it was hashed again.
    for _ in 0..2 {
        let body = json!({
            "type": "m.login.password", "password": "another",
            "identifier": { "type": "m.id.user", "user": "ann" },
        });
        let login = "/_matrix/client/v3/login";
        ann.http.request("POST", login, None, Some(&body)).await.refused(403, "M_FORBIDDEN");
        let again = User::login(&server.http(), "ann", PASSWORD).await;
        assert_eq!(again.user_id, ann.user_id);
    }
    echo.stop();
    log.vanish().await;
    server.stop();
    let history = crate::harness::offline::history(&data_dir);
    assert!(history.contains(r#""renewed":true"#), "the password was not hashed again");
}

/// Registers a ghost of a service.
async fn ghost_of(service: &Bridge, http: &Http) -> String {
    let username = format!("_{}_one", service.id);
    let body: Value = json!({
        "type": "m.login.application_service", "username": username, "inhibit_login": true,
    });
    let path = "/v3/register";
    service.request_by(http, "POST", path, None, Some(&body)).await.ok_string("user_id")
}
