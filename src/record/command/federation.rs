//! Commands about other homeservers.

use std::collections::BTreeMap;

use ruma::OwnedServerName;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    kind::{Content, Erased},
    values::Secret,
};

/// Payload of `peer.keys`. It supersedes earlier ones of the same homeserver, and has what is still
/// needed of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerKeys {
    /// The homeserver.
    pub server_name: OwnedServerName,
    /// The keys that it signs with, by their ids, in unpadded base64.
    pub keys: BTreeMap<String, String>,
    /// The keys that it signed events with before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub old: BTreeMap<String, OldKey>,
    /// Until when `keys` are valid, in milliseconds since the Unix epoch.
    pub valid_until_ms: u64,
    /// What it published, with its signature.
    pub document: Box<RawValue>,
}

/// Payload of `server.key`. From then on, the server signs requests and events for other
/// homeservers with this key. The one before it is published as expired.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerKey {
    /// Its id, `ed25519:<version>`.
    pub key_id: String,
    /// The private key: PKCS#8 DER in unpadded base64.
    pub private_key: Secret,
    /// The public key in unpadded base64.
    pub public_key: String,
}

impl Content for ServerKey {}

/// A key that is not in use any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldKey {
    /// The public key in unpadded base64.
    pub key: String,
    /// When it was last valid, in milliseconds since the Unix epoch.
    pub expired_ms: u64,
}

impl Content for PeerKeys {
    const ERASED: Erased = Erased::All;
}
