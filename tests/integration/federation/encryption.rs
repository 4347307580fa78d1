//! Clients of different homeservers encrypt for each other and verify each other.

use std::collections::BTreeMap;

use serde_json::json;

use super::with_synapse::both;
use crate::clients::{Client, Tools, assert_every_request_was_known, text};
use crate::encryption::{Device, Sdk, until};
use crate::harness::skip;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_here_and_on_synapse_encrypt_for_and_verify_each_other() {
    encrypt(Sdk::Js).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_here_and_matrix_rust_sdk_on_synapse_encrypt_for_and_verify_each_other() {
    encrypt(Sdk::Rust).await;
}

/// Ann is here, on matrix-js-sdk, and bob is on Synapse.
async fn encrypt(of_bob: Sdk) {
    if let Err(missing) = Tools::find().and_then(|_| Client::sdk_program()) {
        return skip("encryption", &missing);
    }
    let Some((_authority, mut cabin, mut synapse)) = both("Synapse").await else { return };
    let ann = Device::start(Sdk::Js, &cabin.server.base(), "ann", "register", "ann");
    let bob = Device::start(of_bob, &synapse.base(), "bob", "register", "bob");
    for one in [&ann, &bob] {
        one.ok("cross_sign", json!({}));
    }
    let invited = json!({ "name": "secrets", "invite": [bob.user_id], "encrypted": true });
    let room = text(&ann.ok("create_room", invited), "room_id");
    until("bob has the invite", || bob.client.asked("join", json!({ "room_id": room })));
    // Ann encrypts for him once she knows that he is there.
    for (one, other) in [(&ann, &bob), (&bob, &ann)] {
        one.knows(&other.user_id, "the other has cross-signed", |known| {
            known["devices"][&other.device_id]["signed"] == true
        });
    }
    ann.says(&room, "only for bob", &[&bob]);
    bob.says(&room, "only for ann", &[&ann]);
    ann.verifies(&bob, Some(&room), true);
    for (one, other) in [(&ann, &bob), (&bob, &ann)] {
        one.knows(&other.user_id, "the other is verified", |known| known["verified"] == true);
        one.knows_device(other, true);
    }
    // Another device of each is written to, and so is one whose server was away.
    let second = Device::start(Sdk::Js, &synapse.base(), "bob's second", "login", "bob");
    ann.knows_device(&second, false);
    ann.says(&room, "for both", &[&bob, &second]);
    let third = Device::start(Sdk::Js, &cabin.server.base(), "ann's second", "login", "ann");
    for one in [&bob, &second] {
        one.knows_device(&third, false);
    }
    bob.says(&room, "for both of hers", &[&ann, &third]);
    for one in [&bob, &second] {
        one.ok("pause", json!({}));
    }
    synapse.kill();
    ann.ok("rotate", json!({ "room_id": room }));
    let sent = ann.ok("send", json!({ "room_id": room, "body": "while you were away" }));
    let sent = text(&sent, "event_id");
    cabin.server.restart().await;
    synapse.run().await;
    for one in [&bob, &second] {
        one.ok("resume", json!({}));
    }
    // What comes from it says that it is back.
    let back = until("bob can write", || {
        bob.client.asked("send", json!({ "room_id": room, "body": "back again" }))
    });
    ann.reads(&room, &text(&back, "event_id"), "back again");
    for one in [&bob, &second] {
        one.reads(&room, &sent, "while you were away");
    }
    let mut requests = BTreeMap::new();
    for device in [ann, third] {
        device.client.stop(&mut requests);
    }
    assert_every_request_was_known(&requests);
    for device in [bob, second] {
        device.client.stop(&mut BTreeMap::new());
    }
    cabin.server.stop();
}
