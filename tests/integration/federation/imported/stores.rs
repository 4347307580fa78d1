//! A Synapse on PostgreSQL, and clients that end before the move and begin again after it, with
//! what they have on disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::Federated;
use super::super::authority;
use super::super::postgresql::Postgresql;
use super::super::synapse::{self, Synapse};
use super::{backup, finished_without_a_difference, imported, settings, texts};
use crate::clients::{Client, Tools, text};
use crate::encryption::{Device, Sdk, until};
use crate::harness::{TestServer, User, encode, skip, tools, until as until_so};

/// The password of the clients' users.
const PASSWORD: &str = "a password that is long enough";

/// An SDK that keeps what it has in a directory.
#[derive(Clone, Copy)]
enum Stored {
    Nio,
    Rust,
}

impl Stored {
    fn missing() -> Result<(), String> {
        tools::python_of_programs("vodozemac")?;
        Client::sdk_program().map(|_| ())
    }

    /// `how` is `register`, or `restore` for one that goes on with its store.
    fn start(self, (base, store): (&str, &Path), name: &'static str, how: &str) -> Device {
        let (mut command, user) = match self {
            Self::Nio => {
                let python = tools::python_of_programs("vodozemac").expect("it was there");
                let mut command = Command::new(python);
                command.arg(tools::programs().join("nio_client.py"));
                (command, "nora")
            }
            Self::Rust => (Command::new(Client::sdk_program().expect("it was there")), "ruth"),
        };
        std::fs::create_dir_all(store).expect("a directory");
        command.arg(base).arg(store);
        let client = Client::run(command, name);
        let given = if how == "restore" { json!({}) } else { json!({ "user": user }) };
        let answer = client.ok(how, given);
        let (user_id, device_id) = (text(&answer, "user_id"), text(&answer, "device_id"));
        client.ok("start", json!({ "encrypt": true }));
        Device { client, user_id, device_id }
    }
}

/// What each user has not read of a room: messages, and those for them alone.
async fn unread(users: &[&User], room_id: &str) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for user in users {
        let synced = user.request("GET", "/sync", None).await.ok();
        let counts = &synced["rooms"]["join"][room_id]["unread_notifications"];
        let counts = ["notification_count", "highlight_count"].map(|name| counts[name].clone());
        all.push((user.user_id.clone(), counts.into()));
    }
    all
}

/// Three who read differently: one has read half, one is named, and one has muted the room.
async fn readers(synapse: &Synapse, writer: &User) -> (String, Vec<User>) {
    let room_id = writer.create_room(json!({ "preset": "public_chat" })).await;
    let mut readers = Vec::new();
    for name in ["half", "named", "mute"] {
        let reader = synapse.register(name).await;
        reader.join(&room_id).await.ok();
        readers.push(reader);
    }
    let rule = format!("/pushrules/global/room/{}", encode(&room_id));
    let silent = json!({ "actions": [] });
    readers[2].request("PUT", &rule, Some(&silent)).await.ok();
    let mut sent = Vec::new();
    for number in 0..6 {
        sent.push(writer.send_text(&room_id, &format!("t{number}"), "a message").await);
    }
    let content = json!({
        "msgtype": "m.text", "body": "you there", "m.mentions": { "user_ids": [readers[1].user_id] },
    });
    writer.send(&room_id, "m.room.message", "mention", &content).await.ok();
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&sent[2]));
    readers[0].request("POST", &path, Some(&json!({}))).await.ok();
    (room_id, readers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_synapse_on_postgresql_go_on_with_their_stores_on_disk() {
    let test = "import from PostgreSQL";
    if let Err(missing) = Stored::missing().and_then(|()| Tools::find().map(|_| ())) {
        return skip(test, &missing);
    }
    let Some(authority) = authority(test) else { return };
    let python = synapse::python().and_then(|it| Postgresql::programs(&it).map(|of| (it, of)));
    let (python, programs) = match python {
        Ok(found) => found,
        Err(missing) => return skip(test, &missing),
    };
    let postgresql = Postgresql::start(&programs).await;
    let database = json!({ "database": postgresql.database() });
    let mut synapse = Synapse::start_with(&python, &authority, &database).await;
    let other = Federated::start(&authority).await;
    let directory = TempDir::new().expect("a temporary directory");
    let [of_ruth, of_nora, data_dir] =
        ["ruth", "nora", "data"].map(|name| directory.path().join(name));

    // An encrypted room of three, two of whom keep their keys on disk.
    let base = synapse.base();
    let ruth = Stored::Rust.start((&base, &of_ruth), "ruth on matrix-rust-sdk", "register");
    let nora = Stored::Nio.start((&base, &of_nora), "nora on matrix-nio", "register");
    let carol = Device::start(Sdk::Js, &base, "carol on matrix-js-sdk", "register", "carol");
    ruth.ok("cross_sign", json!({}));
    carol.ok("cross_sign", json!({}));
    let secrets = json!({
        "name": "secrets", "invite": [carol.user_id, nora.user_id], "encrypted": true,
    });
    let room = text(&ruth.ok("create_room", secrets), "room_id");
    for one in [&carol, &nora] {
        until(&format!("{} can join", one.client.name), || {
            one.client.asked("join", json!({ "room_id": room }))
        });
    }
    for (one, others) in [(&ruth, [&carol, &nora]), (&carol, [&ruth, &nora])] {
        for other in others {
            one.knows(&other.user_id, "the other has a device", |known| {
                known["devices"][&other.device_id].is_object()
            });
        }
    }
    let mut said = Vec::new();
    said.push((ruth.says(&room, "ruth on Synapse", &[&carol, &nora]), "ruth on Synapse"));
    said.push((carol.says(&room, "carol on Synapse", &[&ruth, &nora]), "carol on Synapse"));
    said.push((nora.says(&room, "nora on Synapse", &[&ruth, &carol]), "nora on Synapse"));
    carol.verifies(&ruth, Some(&room), true);
    let of_carol = json!({ "user_id": carol.user_id, "device_id": carol.device_id });
    nora.ok("trust", of_carol);
    let recovery_key = text(&ruth.ok("back_up", json!({})), "recovery_key");

    // A room of those who count what they have not read, and one on another homeserver.
    let writer = synapse.register("writer").await;
    let (counted, readers) = readers(&synapse, &writer).await;
    let sam = other.server.register("sam").await;
    let path = format!("/join/{}?via={}", encode(&counted), encode(&synapse.name));
    until_so("sam can join", async || {
        sam.try_request("POST", &path, Some(&json!({}))).await.is_ok_and(|it| it.status == 200)
    })
    .await;
    sam.send_text(&counted, "t", "from elsewhere").await;
    until_so("the writer has what sam wrote", async || {
        texts(&writer, &counted).await.iter().any(|text| text == "from elsewhere")
    })
    .await;
    let file = writer.upload("text/plain", "a file on Synapse").await;

    imported("copy", &synapse, Some(&data_dir), &[]);
    said.push((carol.says(&room, "carol after the copy", &[&ruth, &nora]), "carol after the copy"));
    // Two are gone, and what is written to them waits.
    ruth.client.stop(&mut BTreeMap::new());
    nora.client.stop(&mut BTreeMap::new());
    carol.ok("rotate", json!({ "room_id": room }));
    let waits = carol.says(&room, "while you were away", &[&carol]);
    said.push((waits, "while you were away"));
    let readers: Vec<&User> = readers.iter().collect();
    let unread_before = unread(&readers, &counted).await;
    let of_ruth_here = User::login(&synapse.http(), "ruth", PASSWORD).await;
    let backup_before = backup(&of_ruth_here).await;
    assert!(backup_before.1.as_u64() >= Some(1), "{backup_before:?}");

    synapse.kill();
    finished_without_a_difference(&synapse, &data_dir);
    let own = settings(&authority, &synapse);
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    let server = TestServer::start_at(synapse.clients(), &data_dir, &own).await;

    assert_eq!(unread(&readers, &counted).await, unread_before);
    assert_eq!(backup(&of_ruth_here).await, backup_before);
    assert_eq!(&*readers[0].download(&file).await.bytes, b"a file on Synapse");
    let ruth = Stored::Rust.start((&base, &of_ruth), "ruth again", "restore");
    let nora = Stored::Nio.start((&base, &of_nora), "nora again", "restore");
    // What was written before, and while they were away.
    for (event_id, body) in &said {
        carol.reads(&room, event_id, body);
        nora.reads(&room, event_id, body);
    }
    for one in [&ruth, &carol] {
        let other = if one.user_id == ruth.user_id { &carol } else { &ruth };
        one.knows(&other.user_id, "the other is still verified", |known| known["verified"] == true);
    }
    nora.knows(&carol.user_id, "carol's device is still trusted", |known| {
        known["devices"][&carol.device_id]["verified"] == true
    });
    for (event_id, body) in &said {
        let path = format!("/rooms/{}/event/{}", encode(&room), encode(event_id));
        let event = of_ruth_here.request("GET", &path, None).await.ok();
        until(&format!("ruth decrypts `{body}`"), || {
            match ruth.client.asked("decrypt", json!({ "event": event })) {
                Ok(read) if read["body"] == *body => Ok(()),
                Ok(other) | Err(other) => Err(other),
            }
        });
    }
    // And what they write now.
    ruth.says(&room, "ruth on Logcabin", &[&carol, &nora]);
    carol.says(&room, "carol on Logcabin", &[&ruth, &nora]);
    nora.says(&room, "nora on Logcabin", &[&ruth, &carol]);
    // A new device reads the past with the backup.
    let new = Device::start(Sdk::Js, &server.base(), "ruth's new device", "login", "ruth");
    new.ok("recover", json!({ "recovery_key": recovery_key }));
    until("the new device reads what ruth wrote on Synapse", || {
        let _ = new.client.asked("page_back", json!({ "room_id": room, "limit": 50 }));
        let read = new.ok("read", json!({ "room_id": room, "event_id": said[0].0 }));
        if read["body"] == said[0].1 { Ok(()) } else { Err(read) }
    });
    ruth.knows_device(&new, true);

    // The other homeserver goes on, without a join.
    sam.send_text(&counted, "u", "from elsewhere, after the move").await;
    until_so("the writer has it", async || {
        texts(&writer, &counted).await.iter().any(|text| text == "from elsewhere, after the move")
    })
    .await;
    writer.send_text(&counted, "after", "written after the move").await;
    until_so("sam has it", async || {
        texts(&sam, &counted).await.iter().any(|text| text == "written after the move")
    })
    .await;
    for device in [ruth, nora, carol, new] {
        device.client.stop(&mut BTreeMap::new());
    }
}
