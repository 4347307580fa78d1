//! The server's own keys, and what it knows of others.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ed25519_dalek::SigningKey;
use ruma::OwnedServerName;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{Made, ms, server, user};
use crate::{
    copy::writer::Left,
    facts::{self, KeyUse},
};
use logcabin_record::{
    Offset, Stream,
    command::{
        DeliveryAdvance, DeviceList, Failing, OldKey, PeerDevices, PeerKeys, Reached, Secret,
        ServerIdentity, ServerOldKey, SetAside,
    },
};

/// PKCS#8 DER of an Ed25519 key with its public key (RFC 5958 and RFC 8410), before the private key
/// and before the public one.
const DER_PRIVATE: [u8; 16] =
    [0x30, 0x51, 2, 1, 1, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const DER_PUBLIC: [u8; 3] = [0x81, 0x21, 0];

/// How long keys of others are trusted at most, in milliseconds: seven days.
const TRUSTED_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// The identity of a server by the key that it signs with.
pub(in crate::copy) fn identity(
    server_name: &str,
    key: &facts::ServerKey,
) -> Option<ServerIdentity> {
    let seed = key.seed.as_ref()?;
    let public = SigningKey::from_bytes(&seed.0).verifying_key().to_bytes();
    let mut document = Vec::with_capacity(83);
    document.extend_from_slice(&DER_PRIVATE);
    document.extend_from_slice(&seed.0);
    document.extend_from_slice(&DER_PUBLIC);
    document.extend_from_slice(&public);
    Some(ServerIdentity {
        server_name: server_name.to_owned(),
        key_id: key.key_id.clone(),
        private_key: Secret::from(STANDARD_NO_PAD.encode(document)),
        public_key: STANDARD_NO_PAD.encode(public),
    })
}

/// A key that the server signed with once. `until_ms` is for one that it may have signed with until
/// it stopped.
pub(in crate::copy) fn old_key(
    key: &facts::ServerKey,
    until_ms: Option<u64>,
) -> Option<ServerOldKey> {
    Some(ServerOldKey {
        key_id: key.key_id.clone(),
        public_key: STANDARD_NO_PAD.encode(key.public?),
        expired_ms: key.expired_ms.map(ms).or(until_ms)?,
    })
}

#[derive(Deserialize)]
struct Document {
    server_name: OwnedServerName,
    #[serde(default)]
    valid_until_ts: u64,
    #[serde(default)]
    verify_keys: BTreeMap<String, VerifyKey>,
    #[serde(default)]
    old_verify_keys: BTreeMap<String, OldVerifyKey>,
}

#[derive(Deserialize)]
struct VerifyKey {
    key: String,
}

#[derive(Deserialize)]
struct OldVerifyKey {
    key: String,
    #[serde(default)]
    expired_ts: u64,
}

/// The keys of one server. The newest document counts; the others still say which keys it had, and
/// so does a key that has none.
pub(in crate::copy) fn peer_keys(keys: Vec<facts::PeerKey>) -> Result<Made, Left> {
    let Some(first) = keys.first() else { return Ok(Made::default()) };
    let server_name = server(&first.server_name)?;
    let (mut documents, mut old) = (Vec::new(), BTreeMap::new());
    for key in keys {
        if let Some(public) = key.public {
            let expired_ms = ms(key.valid_until_ms.unwrap_or_default());
            old.insert(key.key_id, OldKey { key: STANDARD_NO_PAD.encode(public), expired_ms });
        }
        let Some(text) = key.document else { continue };
        let Ok(document) = serde_json::from_str::<Document>(text.get()) else { continue };
        if document.server_name == server_name {
            documents.push((document, text, ms(key.added_ms.unwrap_or_default())));
        }
    }
    documents.sort_by_key(|(document, _, added_ms)| (document.valid_until_ts, *added_ms));
    let Some((newest, document, added_ms)) = documents.pop() else {
        return Err(("its document is not there", "its document is not there".to_owned()));
    };
    for (document, _, _) in documents {
        let until = document.valid_until_ts;
        old.extend(
            document
                .verify_keys
                .into_iter()
                .map(|(id, VerifyKey { key })| (id, OldKey { key, expired_ms: until })),
        );
        old.extend(document.old_verify_keys.into_iter().map(old_key_of));
    }
    old.extend(newest.old_verify_keys.into_iter().map(old_key_of));
    let keys: BTreeMap<String, String> =
        newest.verify_keys.into_iter().map(|(id, VerifyKey { key })| (id, key)).collect();
    old.retain(|id, _| !keys.contains_key(id));
    let valid_until_ms = newest.valid_until_ts.min(added_ms.saturating_add(TRUSTED_MS));
    let stream = Stream::peer(&server_name);
    Ok(Made::one(stream, PeerKeys { server_name, keys, old, valid_until_ms, document }))
}

fn old_key_of((id, of): (String, OldVerifyKey)) -> (String, OldKey) {
    (id, OldKey { key: of.key, expired_ms: of.expired_ts })
}

/// What is known of a user of another server, besides the devices.
#[derive(Debug, Default)]
pub(in crate::copy) struct PeerUser {
    master_key: Option<Box<RawValue>>,
    self_signing_key: Option<Box<RawValue>>,
    list: Option<facts::PeerDeviceList>,
}

impl PeerUser {
    pub(in crate::copy) fn set_key(&mut self, fact: facts::CrossSigningKey) {
        match fact.key_use {
            KeyUse::Master => self.master_key = Some(fact.key),
            KeyUse::SelfSigning => self.self_signing_key = Some(fact.key),
            KeyUse::UserSigning => {}
        }
    }

    pub(in crate::copy) fn set_list(&mut self, fact: facts::PeerDeviceList) {
        self.list = Some(fact);
    }
}

/// The devices of one user of another server.
pub(in crate::copy) fn peer_devices(
    user_id: &str,
    devices: Vec<facts::DeviceKeys>,
    known: PeerUser,
) -> Result<Made, Left> {
    let user_id = user(user_id)?;
    let stream_id = known.list.as_ref().and_then(|list| list.stream_id.parse().ok());
    let devices = devices.into_iter().filter_map(|device| {
        // What the other server told of a device has the keys among other things.
        let told: BTreeMap<String, &RawValue> = serde_json::from_str(device.keys.get()).ok()?;
        let is_wrapped = told.get("keys").is_some_and(|keys| {
            serde_json::from_str::<Value>(keys.get()).is_ok_and(|keys| keys.get("keys").is_some())
        });
        let keys = told.get("keys").filter(|_| is_wrapped).map(|keys| (*keys).to_owned());
        Some((device.device_id, keys.unwrap_or_else(|| device.keys.clone())))
    });
    let list = DeviceList {
        stream_id,
        devices: devices.collect(),
        master_key: known.master_key,
        self_signing_key: known.self_signing_key,
    };
    let stream = Stream::peer(user_id.server_name());
    let stale = known.list.as_ref().is_some_and(|list| list.stale);
    let of =
        |list| PeerDevices { user_id: user_id.clone(), changed: false, changed_at: None, list };
    let mut made = Made::one(stream.clone(), of(Some(list)));
    if stale {
        made.add(stream, of(None));
    }
    Ok(made)
}

/// That the list of devices of a user of another server is out of date.
pub(in crate::copy) fn out_of_date(user_id: &str) -> Result<Made, Left> {
    let user_id = user(user_id)?;
    let stream = Stream::peer(user_id.server_name());
    Ok(Made::one(stream, PeerDevices { user_id, changed: false, changed_at: None, list: None }))
}

/// How far another server was told, and how it is.
pub(in crate::copy) fn reached(fact: &facts::Destination, up_to: Offset) -> Result<Reached, Left> {
    let server_name = server(&fact.server_name)?;
    let failing = fact.failing_since_ms.filter(|since| *since > 0).map(|since| {
        let (tried, wait) = (fact.tried_ms.unwrap_or_default(), fact.wait_ms.unwrap_or_default());
        Failing {
            since_ms: ms(since),
            attempts: 1,
            again_ms: ms(tried.saturating_add(wait)),
            error: "it did not answer before the import".to_owned(),
        }
    });
    Ok(Reached { server_name, up_to, failing, set_aside: SetAside::default() })
}

/// How far an application service was told.
pub(in crate::copy) fn delivery(id: &str, done: Offset) -> Made {
    let to = format!("appservice/{id}");
    let stream = Stream::delivery(&to);
    let body = DeliveryAdvance { to, done, under_way: None, set_aside: SetAside::default() };
    Made::one(stream, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{SeedBytes, ServerKey};
    use logcabin_record::server_keys::key_pair;

    #[test]
    fn the_key_of_the_source_is_one_that_the_server_can_sign_with() {
        let key = ServerKey {
            key_id: "ed25519:a_b".to_owned(),
            seed: Some(SeedBytes([7; 32])),
            public: None,
            expired_ms: None,
        };
        let identity = identity("a.example", &key).unwrap();
        let pair = key_pair(&identity.key_id, &identity.private_key).unwrap();
        assert_eq!(STANDARD_NO_PAD.encode(pair.public_key()), identity.public_key);
        let public = SigningKey::from_bytes(&[7; 32]).verifying_key().to_bytes();
        assert_eq!(STANDARD_NO_PAD.encode(public), identity.public_key);
    }

    #[test]
    fn a_key_without_a_document_is_an_old_one() {
        let alone = facts::PeerKey {
            valid_until_ms: Some(4_000),
            document: None,
            public: Some([7; 32]),
            ..key(0, "ed25519:alone")
        };
        let made = peer_keys(vec![alone.clone(), key(9_000, "ed25519:2")]).unwrap();
        let logcabin_record::Command::PeerKeys(body) = &made.commands[0].1 else {
            panic!("no keys")
        };
        assert_eq!(body.keys.keys().collect::<Vec<_>>(), ["ed25519:2"]);
        let kept = &body.old["ed25519:alone"];
        assert_eq!((&*kept.key, kept.expired_ms), (&*STANDARD_NO_PAD.encode([7; 32]), 4_000));
        assert!(peer_keys(vec![alone]).is_err(), "nothing can be shown to those who ask");
    }

    fn key(valid_until_ts: u64, id: &str) -> facts::PeerKey {
        let text = format!(
            r#"{{"server_name":"b.example","valid_until_ts":{valid_until_ts},
                 "verify_keys":{{"{id}":{{"key":"k-{id}"}}}},
                 "old_verify_keys":{{"ed25519:0":{{"key":"zero","expired_ts":3}}}}}}"#
        );
        facts::PeerKey {
            server_name: "b.example".to_owned(),
            key_id: id.to_owned(),
            from_server: "b.example".to_owned(),
            added_ms: Some(1_000),
            valid_until_ms: None,
            document: Some(RawValue::from_string(text).unwrap()),
            public: None,
        }
    }

    #[test]
    fn the_newest_keys_of_a_server_count_and_earlier_ones_are_old() {
        let made = peer_keys(vec![key(9_000, "ed25519:2"), key(5_000, "ed25519:1")]).unwrap();
        let logcabin_record::Command::PeerKeys(body) = &made.commands[0].1 else {
            panic!("no keys")
        };
        assert_eq!(body.keys["ed25519:2"], "k-ed25519:2");
        let old: Vec<_> = body.old.iter().map(|(id, key)| (&**id, key.expired_ms)).collect();
        assert_eq!(old, [("ed25519:0", 3), ("ed25519:1", 5_000)]);
        assert_eq!(body.valid_until_ms, 9_000);
        let far = peer_keys(vec![key(u64::MAX, "ed25519:2")]).unwrap();
        let logcabin_record::Command::PeerKeys(body) = &far.commands[0].1 else {
            panic!("no keys")
        };
        assert_eq!(body.valid_until_ms, 1_000 + TRUSTED_MS);
    }
}
