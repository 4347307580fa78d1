//! The server's name, its key, and the signatures of events.
//!
//! Events are stored without a signature. Nobody needs one until the event leaves for another
//! server, and making it takes longer than everything else in a decision. Ed25519 is deterministic
//! and the signature covers only what a redaction keeps, so it has the same bytes whenever it is
//! made.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ruma::{
    CanonicalJsonValue, OwnedServerName, room_version_rules::RedactionRules,
    signatures::Ed25519KeyPair,
};

use crate::{
    command::{Secret, ServerKey},
    lax_object::{LaxError, LaxObject},
};
use logcabin_base::clock::random_letters;

/// The server's name and the keys it signs with.
pub struct ServerKeys {
    pub name: OwnedServerName,
    /// The key pair of its identity, for signatures that must hold as long as the log.
    pub key_pair: Ed25519KeyPair,
    /// The key pair for other homeservers, if it is a different one.
    rotated: ArcSwapOption<Ed25519KeyPair>,
}

impl std::fmt::Debug for ServerKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerKeys").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An invalid private key.
#[derive(Debug, thiserror::Error)]
#[error("the private key is not usable: {0}")]
pub struct NoKey(String);

/// The key pair of a private key from the log.
pub fn key_pair(key_id: &str, private_key: &Secret) -> Result<Ed25519KeyPair, NoKey> {
    let unusable = |what: &dyn std::fmt::Display| NoKey(what.to_string());
    let document = STANDARD_NO_PAD.decode(private_key.expose()).map_err(|e| unusable(&e))?;
    let version = key_id.strip_prefix("ed25519:").unwrap_or(key_id);
    Ed25519KeyPair::from_der(&document, version.to_owned()).map_err(|e| unusable(&e))
}

/// A new key: its id and both parts, encoded as in the log.
pub fn new_key() -> Result<ServerKey, NoKey> {
    let version = random_letters(6).to_lowercase();
    let document = Ed25519KeyPair::generate();
    let pair = Ed25519KeyPair::from_der(&document, version.clone());
    let pair = pair.map_err(|error| NoKey(error.to_string()))?;
    Ok(ServerKey {
        key_id: format!("ed25519:{version}"),
        private_key: STANDARD_NO_PAD.encode(&*document).into(),
        public_key: STANDARD_NO_PAD.encode(pair.public_key()),
    })
}

impl ServerKeys {
    /// The keys of a server that has only those of its identity.
    pub fn new(name: OwnedServerName, key_pair: Ed25519KeyPair) -> Self {
        Self { name, key_pair, rotated: ArcSwapOption::empty() }
    }

    /// From now on, signs with this key for other homeservers.
    pub fn rotate(&self, key: &ServerKey) -> Result<(), NoKey> {
        let pair = key_pair(&key.key_id, &key.private_key)?;
        self.rotated.store(Some(Arc::new(pair)));
        Ok(())
    }

    /// Calls `work` with the key pair for other homeservers.
    pub fn with_current<T>(&self, work: impl FnOnce(&Ed25519KeyPair) -> T) -> T {
        match &*self.rotated.load() {
            Some(pair) => work(pair),
            None => work(&self.key_pair),
        }
    }

    /// Sets the server's signature of `pdu`, an event in federation format with its content hash
    /// (server-server API, "Signing Events"). It is the same before and after a redaction.
    pub fn sign_event(&self, pdu: &mut LaxObject, rules: &RedactionRules) -> Result<(), LaxError> {
        self.with_current(|pair| pdu.sign(self.name.as_str(), pair, rules))
    }

    /// How many bytes [`sign_event`](Self::sign_event) adds to the canonical JSON of an event.
    pub fn signature_bytes(&self) -> usize {
        /// An Ed25519 signature of 64 bytes in unpadded base64.
        const SIGNATURE: usize = 86;
        let name = CanonicalJsonValue::String(self.name.to_string()).to_string();
        let around = r#","signatures":{:{"ed25519:":""}}"#.len();
        around + name.len() + self.with_current(|pair| pair.version().len()) + SIGNATURE
    }
}

#[cfg(test)]
mod tests {
    use ruma::{
        CanonicalJsonObject, RoomVersionId, canonical_json::redact, signatures::hash_and_sign_event,
    };
    use serde_json::json;

    use super::*;

    #[test]
    fn a_signature_made_later_is_the_same() {
        let document = Ed25519KeyPair::generate();
        let key_pair = Ed25519KeyPair::from_der(&document, "abc".to_owned()).unwrap();
        let keys = ServerKeys::new("test.example:8448".try_into().unwrap(), key_pair);
        let rules = RoomVersionId::V11.rules().unwrap().redaction;
        let event = json!({
            "type": "m.room.message", "sender": "@ann:test.example", "room_id": "!r:test.example",
            "origin_server_ts": 1, "depth": 2, "prev_events": [], "auth_events": [],
            "content": { "body": "hello", "msgtype": "m.text" },
        });
        let mut signed: CanonicalJsonObject = serde_json::from_value(event).unwrap();
        hash_and_sign_event(keys.name.as_str(), &keys.key_pair, &mut signed, &rules).unwrap();

        let mut stored = signed.clone();
        stored.remove("signatures");
        let unsigned_bytes = serde_json::to_string(&stored).unwrap().len();
        let redacted = redact(stored.clone(), &rules, None).unwrap();
        for event in [stored, redacted] {
            let mut event = LaxObject::from(event);
            keys.sign_event(&mut event, &rules).unwrap();
            assert_eq!(event["signatures"], signed["signatures"]);
        }
        let bytes = serde_json::to_string(&signed).unwrap().len();
        assert_eq!(bytes, unsigned_bytes + keys.signature_bytes());
    }
}
