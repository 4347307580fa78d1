//! What other servers are told, and what is known of them.

use super::*;
use crate::facts::KeyUse;

#[test]
fn a_second_key_of_the_source_was_valid_until_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    for (key_id, expired_ms) in [("ed25519:second", None), ("ed25519:old", Some(5))] {
        let key_id = key_id.to_owned();
        let key = ServerKey { key_id, seed: None, public: Some([7; 32]), expired_ms };
        source.tell(Section::Server, Fact::ServerKey(key));
    }
    let begun = Clock::system().now_ms();
    copy_in(dir.path(), &mut source).unwrap();
    finish_in(dir.path(), &mut source).unwrap();
    let old = payloads(dir.path(), "server.old_key");
    let old: BTreeMap<_, _> = old
        .iter()
        .map(|key| (key["key_id"].as_str().unwrap(), key["expired_ms"].as_u64().unwrap()))
        .collect();
    assert_eq!((old.len(), old["ed25519:old"]), (2, 5));
    assert!(old["ed25519:second"] >= begun, "{old:?}");
}

#[test]
fn servers_that_were_not_told_of_a_change_of_devices_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let users = [format!("@ann:{OWN}"), format!("@bob:{OWN}")];
    for user_id in &users {
        source.tell(Section::Accounts, account(user_id));
        log_in(&mut source, user_id, "D");
        let (user_id, device_id) = (user_id.clone(), "D".to_owned());
        let keys = raw(&json!({ "keys": {} }));
        let keys = facts::DeviceKeys { user_id, device_id, keys, uploaded_ms: None };
        source.tell(Section::DeviceKeys, Fact::DeviceKeys(keys));
    }
    for device_id in ["D", "GONE"] {
        let (user_id, device_id) = (users[0].clone(), device_id.to_owned());
        let change = facts::DeviceChange { user_id, device_id };
        source.tell(Section::DeviceChanges, Fact::DeviceChange(change));
    }
    let destination = facts::Destination {
        server_name: "b.example".to_owned(),
        sent_up_to: None,
        failing_since_ms: None,
        tried_ms: None,
        wait_ms: None,
        newest: None,
    };
    source.tell(Section::Destinations, Fact::Destination(destination));
    finish_in(dir.path(), &mut source).unwrap();
    let signed = payloads(dir.path(), "keys.sign");
    assert_eq!((signed.len(), &signed[0]["user_id"]), (1, &json!(users[0])), "{signed:?}");
    let (_, records) = records(dir.path());
    let state = State::default();
    for record in &records {
        state.apply(record).unwrap();
    }
    let reached = payloads(dir.path(), "peer.reached");
    let up_to = reached[0]["servers"][0]["up_to"].as_u64().unwrap();
    let last = |user_id: &str| {
        let user_id = <&ruma::UserId>::try_from(user_id).unwrap();
        state.keys.told(user_id, Offset::MAX).0.map(Offset::get)
    };
    assert!(last(&users[0]).is_some_and(|last| last > up_to), "it is sent");
    assert!(last(&users[1]).is_some_and(|last| last <= up_to), "this one was");
}

fn tell(source: &mut Memory, user_id: &str) {
    let key = facts::CrossSigningKey {
        user_id: user_id.to_owned(),
        key_use: KeyUse::Master,
        key: raw(&json!({ "of": user_id })),
        replaceable_until_ms: None,
    };
    source.tell(Section::PeerCrossSigningKeys, Fact::PeerCrossSigningKey(key));
    let list = facts::PeerDeviceList {
        user_id: user_id.to_owned(),
        stream_id: "7".to_owned(),
        stale: false,
    };
    source.tell(Section::PeerDeviceLists, Fact::PeerDeviceList(list));
    for device_id in ["ONE", "TWO"] {
        let device = facts::DeviceKeys {
            user_id: user_id.to_owned(),
            device_id: device_id.to_owned(),
            keys: raw(&json!({ "keys": {} })),
            uploaded_ms: None,
        };
        source.tell(Section::PeerDevices, Fact::PeerDevices(device));
    }
}

#[test]
fn what_is_known_of_users_of_other_servers_is_read_with_their_devices() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let users: Vec<String> = (0..5).map(|number| format!("@u{number}:b.example")).collect();
    users.iter().for_each(|user_id| tell(&mut source, user_id));
    // Users have devices in two slices.
    source.slice = 3;
    copy_in(dir.path(), &mut source).unwrap();
    let of_keys = source.asked.iter().filter(|(of, _)| *of == Section::PeerCrossSigningKeys);
    assert!(of_keys.clone().all(|(_, users)| users.len() <= 3), "{:?}", source.asked);
    assert!(of_keys.count() > 1);
    source.asked.clear();
    finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(source.asked, Vec::new(), "nothing has changed");
    let told = payloads(dir.path(), "peer.devices");
    let of =
        |payload: &Value| (payload["user_id"].clone(), payload["list"]["master_key"]["of"].clone());
    let told: Vec<_> = told.iter().map(of).collect();
    let expected: Vec<_> = users.iter().map(|user_id| (json!(user_id), json!(user_id))).collect();
    assert_eq!(told, expected, "each once, with its key");
}
