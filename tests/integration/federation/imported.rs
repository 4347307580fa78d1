//! A Synapse becomes a Logcabin: its clients go on with the stores and tokens that they have, and
//! so do the rooms that it shares with others.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Authority;
use super::synapse::Synapse;
use super::with_synapse::both;
use crate::clients::{Client, Tools, assert_every_request_was_known, meet, say, text};
use crate::encryption::{Device, Sdk, until};
use crate::harness::nodes::FEDERATION_BIND;
use crate::harness::{
    Direction, TestServer, User, encode, refused_start_on, run_logcabin, skip, until as until_so,
};

/// Runs `logcabin import-synapse`.
fn import(what: &str, synapse: &Synapse, data_dir: Option<&Path>, more: &[&str]) -> Output {
    let config = synapse.config().display().to_string();
    let mut line = vec!["import-synapse", what, "--config", &config];
    let data_dir = data_dir.map(|path| path.display().to_string());
    if let Some(data_dir) = &data_dir {
        line.extend(["--data-dir", data_dir]);
    }
    line.extend(more);
    run_logcabin(line)
}

/// The same, which must work; what it printed.
#[track_caller]
fn imported(what: &str, synapse: &Synapse, data_dir: Option<&Path>, more: &[&str]) -> String {
    let output = import(what, synapse, data_dir, more);
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {said}{printed}");
    printed
}

/// The same, which must be refused; why.
#[track_caller]
fn refused(what: &str, synapse: &Synapse, data_dir: &Path, more: &[&str]) -> String {
    let output = import(what, synapse, Some(data_dir), more);
    assert!(!output.status.success(), "{what} was not refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The settings of the server that takes over.
fn settings(authority: &Authority, synapse: &Synapse) -> Vec<(&'static str, String)> {
    let (key, certificate) = authority.certify("taken-over");
    let path = |path: std::path::PathBuf| path.display().to_string();
    vec![
        ("LOGCABIN_SERVER_NAME", synapse.name.clone()),
        ("LOGCABIN_FEDERATION_ENABLED", "true".to_owned()),
        (FEDERATION_BIND, synapse.address.to_string()),
        ("LOGCABIN_FEDERATION_CERTIFICATE", path(certificate)),
        ("LOGCABIN_FEDERATION_CERTIFICATE_KEY", path(key)),
        ("LOGCABIN_FEDERATION_CA", path(authority.certificate())),
        ("LOGCABIN_OUTBOUND_CERTIFICATES", path(authority.certificate())),
        ("LOGCABIN_FEDERATION_ALLOWED_NETWORKS", "127.0.0.0/8,::1".to_owned()),
    ]
}

/// What a sync from the start says of a room: unread messages, and the room's account data.
async fn seen(user: &User, room_id: &str) -> (Value, Value) {
    let synced = user.request("GET", "/sync", None).await.ok();
    let room = &synced["rooms"]["join"][room_id];
    let mut data = room["account_data"]["events"].as_array().cloned().unwrap_or_default();
    data.sort_by_key(|event| event["type"].to_string());
    (room["unread_notifications"].clone(), data.into())
}

/// The texts of the last messages of a room, oldest first.
async fn texts(user: &User, room_id: &str) -> Vec<String> {
    let page = user.messages(room_id, None, None, Direction::Back, 100).await;
    let events = page["chunk"].as_array().cloned().unwrap_or_default();
    let texts = events.iter().filter_map(|event| event["content"]["body"].as_str());
    let mut texts: Vec<String> = texts.map(str::to_owned).collect();
    texts.reverse();
    texts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_of_a_synapse_go_on_with_what_they_have() {
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(missing) => return skip("import", &missing),
    };
    let Some((authority, other, mut synapse)) = both("import").await else { return };

    // Two who write, two who encrypt, one who does not read, and one on another homeserver.
    let ann = Client::nio(&tools, &synapse.base(), "ann on matrix-nio");
    let ann_id = text(&ann.ok("register", json!({ "user": "ann" })), "user_id");
    ann.ok("start", json!({}));
    let bob = Device::start(Sdk::Js, &synapse.base(), "bob", "register", "bob");
    let carol = Device::start(Sdk::Js, &synapse.base(), "carol", "register", "carol");
    let eve = synapse.register("eve").await;
    let sam = other.server.register("sam").await;
    let room = text(&ann.ok("create_room", json!({ "name": "Before and after" })), "room_id");
    meet(&ann, &bob.client, &room, &bob.user_id);
    for user_id in [&eve.user_id, &sam.user_id] {
        ann.ok("invite", json!({ "room_id": room, "user_id": user_id }));
    }
    eve.join(&room).await.ok();
    let path = format!("/join/{}?via={}", encode(&room), encode(&synapse.name));
    until_so("sam can join", async || {
        sam.try_request("POST", &path, Some(&json!({}))).await.is_ok_and(|it| it.status == 200)
    })
    .await;
    say(&ann, &bob.client, &room, &ann_id, "before the move");
    let read = say(&bob.client, &ann, &room, &bob.user_id, "also before the move");
    for one in [&bob, &carol] {
        one.ok("cross_sign", json!({}));
    }
    let secrets = json!({ "name": "secrets", "invite": [carol.user_id], "encrypted": true });
    let secret_room = text(&bob.ok("create_room", secrets), "room_id");
    until("carol can join", || carol.client.asked("join", json!({ "room_id": secret_room })));
    let whispered = bob.says(&secret_room, "whispered on Synapse", &[&carol]);
    bob.verifies(&carol, Some(&secret_room), true);
    let recovery_key = text(&bob.ok("back_up", json!({})), "recovery_key");
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room), encode(&read));
    eve.request("POST", &path, Some(&json!({}))).await.ok();
    let path = format!("/user/{}/rooms/{}/tags/u.work", encode(&eve.user_id), encode(&room));
    eve.request("PUT", &path, Some(&json!({ "order": 0.5 }))).await.ok();
    let file = eve.upload("text/plain", "a file on Synapse").await;
    say(&ann, &bob.client, &room, &ann_id, "eve has not read this");

    let directory = TempDir::new().expect("a temporary directory");
    let [first, data_dir] = ["first", "data"].map(|name| directory.path().join(name));
    let report = imported("check", &synapse, None, &["--json"]);
    serde_json::from_str::<Value>(&report).expect("a report in JSON");
    imported("copy", &synapse, Some(&first), &[]);
    assert!(first.join("proposed/logcabin.toml").exists());
    // It is copied while Synapse runs, and nothing takes over from one that runs.
    let why = refused("finish", &synapse, &first, &[]);
    assert!(why.contains("answers at"), "{why}");
    say(&ann, &bob.client, &room, &ann_id, "after the copy");
    let whispered_late = carol.says(&secret_room, "whispered after the copy", &[&bob]);
    let before = seen(&eve, &room).await;

    // One takes over, is undone, and another one does.
    synapse.kill();
    imported("finish", &synapse, Some(&first), &[]);
    let why = refused("copy", &synapse, &data_dir, &[]);
    assert!(why.contains("has taken over"), "{why}");
    imported("finish", &synapse, Some(&first), &["--undo"]);
    let why = refused_start_on(&first, &[], &[]);
    assert!(why.contains("was undone"), "{why}");
    imported("copy", &synapse, Some(&data_dir), &[]);
    let why = refused_start_on(&data_dir, &[], &[]);
    assert!(why.contains("not finished"), "{why}");
    imported("finish", &synapse, Some(&data_dir), &[]);
    let compared = imported("compare", &synapse, Some(&data_dir), &["--json"]);
    let compared: Value = serde_json::from_str(&compared).expect("JSON");
    assert_eq!(compared["faults"], 0, "{compared:#}");

    // Somebody starts Synapse again: then this server does not start.
    let own = settings(&authority, &synapse);
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    synapse.run().await;
    let why = refused_start_on(&data_dir, &own, &[]);
    assert!(why.contains("answers at"), "{why}");
    synapse.kill();
    let server = TestServer::start_at(synapse.clients(), &data_dir, &own).await;

    // The same clients, with what they have: tokens, positions, keys.
    say(&ann, &bob.client, &room, &ann_id, "after the move");
    say(&bob.client, &ann, &room, &bob.user_id, "also after the move");
    bob.says(&secret_room, "whispered on Logcabin", &[&carol]);
    carol.says(&secret_room, "and back", &[&bob]);
    for one in [&bob, &carol] {
        let other = if one.user_id == bob.user_id { &carol } else { &bob };
        one.knows(&other.user_id, "the other is still verified", |known| known["verified"] == true);
    }
    // A new device has the password, and with the backup all that was written.
    let new = Device::start(Sdk::Js, &server.base(), "bob's new device", "login", "bob");
    new.ok("recover", json!({ "recovery_key": recovery_key }));
    for (event_id, body) in
        [(&whispered, "whispered on Synapse"), (&whispered_late, "whispered after the copy")]
    {
        until(&format!("the new device reads `{body}`"), || {
            let path = json!({ "room_id": secret_room, "limit": 50 });
            let _ = new.client.asked("page_back", path);
            let read = json!({ "room_id": secret_room, "event_id": event_id });
            let read = new.ok("read", read);
            if read["body"] == body { Ok(()) } else { Err(read) }
        });
    }
    // Who has not read before has not read now, besides what came since.
    let after = seen(&eve, &room).await;
    let count = |of: &Value| of["notification_count"].as_u64().expect("a count");
    assert_eq!(count(&after.0), count(&before.0) + 2, "{before:?} {after:?}");
    assert_eq!(after.1, before.1, "the room's account data");
    assert_eq!(&*eve.download(&file).await.bytes, b"a file on Synapse");

    // The other homeserver goes on, without a join.
    sam.send_text(&room, "t", "from elsewhere, after the move").await;
    until_so("eve has what sam wrote", async || {
        texts(&eve, &room).await.iter().any(|text| text == "from elsewhere, after the move")
    })
    .await;
    until_so("sam has what ann wrote", async || {
        texts(&sam, &room).await.iter().any(|text| text == "after the move")
    })
    .await;
    let expected = ["before the move", "also before the move", "eve has not read this"];
    assert_eq!(texts(&eve, &room).await[..3], expected);

    // Now there is no way back.
    let mut server = server;
    server.stop();
    let why = refused("finish", &synapse, &data_dir, &["--undo", "--yes"]);
    assert!(why.contains("no way back"), "{why}");
    server.restart().await;
    say(&ann, &bob.client, &room, &ann_id, "and on it goes");

    let mut requests = BTreeMap::new();
    new.client.stop(&mut requests);
    assert_every_request_was_known(&requests);
    for client in [ann, bob.client, carol.client] {
        client.stop(&mut BTreeMap::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_of_a_move_leaves_synapse_and_others_alone() {
    let Some((authority, other, synapse)) = both("rehearsal").await else { return };
    let (ann, sam) = (synapse.register("ann").await, other.server.register("sam").await);
    let room = ann.create_room(json!({ "preset": "public_chat" })).await;
    let path = format!("/join/{}?via={}", encode(&room), encode(&synapse.name));
    sam.request("POST", &path, Some(&json!({}))).await.ok();
    ann.send_text(&room, "1", "before").await;

    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("rehearsal");
    // Synapse runs all the time.
    imported("copy", &synapse, Some(&data_dir), &[]);
    imported("finish", &synapse, Some(&data_dir), &["--rehearsal"]);
    let guard = format!("{}.moved-to-logcabin", synapse.config().display());
    assert!(!Path::new(&guard).exists());
    let why = refused_start_on(&data_dir, &[], &[]);
    assert!(why.contains("is for rehearsals"), "{why}");

    let mut own = settings(&authority, &synapse);
    own.push(("LOGCABIN_OUTBOUND_REHEARSAL", "true".to_owned()));
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    let server = TestServer::start_alone_with(&data_dir, &own).await;
    let rehearsing = User { http: server.http(), ..ann.clone() };
    assert!(texts(&rehearsing, &room).await.contains(&"before".to_owned()));
    rehearsing.send_text(&room, "2", "only in the rehearsal").await;
    // What is written on Synapse arrives as ever, and what was rehearsed never does.
    ann.send_text(&room, "3", "on Synapse").await;
    until_so("sam has what ann wrote", async || {
        texts(&sam, &room).await.iter().any(|text| text == "on Synapse")
    })
    .await;
    let told = texts(&sam, &room).await;
    assert!(!told.contains(&"only in the rehearsal".to_owned()), "{told:?}");
    drop(other.server);
}
