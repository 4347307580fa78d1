//! Clients that run all the time, and one on another homeserver.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::with_synapse::both;
use super::{backup, finished_without_a_difference, imported, refused, seen, settings, texts};
use crate::clients::{Client, Tools, assert_every_request_was_known, meet, say, text};
use crate::encryption::{Device, Sdk, until};
use crate::harness::{TestServer, User, encode, refused_start_on, skip, until as until_so};

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
    assert!(why.contains("must never run"), "{why}");
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
    finished_without_a_difference(&synapse, &data_dir);

    // Somebody starts Synapse again: then this server does not start.
    let own = settings(&authority, &synapse);
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    synapse.run().await;
    let why = refused_start_on(&data_dir, &own, &[]);
    assert!(why.contains("must never run"), "{why}");
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
    // A new device has the password, and with the backup all that was written. Bob's device keeps
    // carol's keys there some time after it has got them.
    let of_bob = User::login(&server.http(), "bob", "a password that is long enough").await;
    until_so("the backup has the keys of both", async || {
        backup(&of_bob).await.1.as_u64() >= Some(2)
    })
    .await;
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
