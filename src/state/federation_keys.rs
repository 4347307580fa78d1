//! Other homeservers: their signing keys, and those that this one signs with for them.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedServerName, ServerName};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{OldKey, PeerKeys, ServerIdentity, ServerKey, ServerOldKey},
};

/// What is known of other homeservers, and of this one for them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FederationKeys {
    #[serde(with = "serializers::locked")]
    others: RwLock<BTreeMap<OwnedServerName, HomeserverKeys>>,
    #[serde(with = "serializers::locked")]
    own: RwLock<OwnKeys>,
}

/// The keys that this server signs with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct OwnKeys {
    /// The current one, if it is not that of the server's identity.
    current: Option<ServerKey>,
    /// Those that were, by their ids.
    retired: BTreeMap<String, OldKey>,
}

/// What is known of another homeserver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeserverKeys {
    /// The record that says so. It has the document that the homeserver signed.
    pub record: Offset,
    /// The keys that it signs with, by their ids, in unpadded base64.
    pub keys: BTreeMap<String, String>,
    /// The keys that it signed with before.
    pub old: BTreeMap<String, OldKey>,
    /// Until when `keys` are valid, in milliseconds since the Unix epoch.
    pub valid_until_ms: u64,
}

impl FederationKeys {
    /// What is known of this homeserver.
    pub fn get(&self, server_name: &ServerName) -> Option<HomeserverKeys> {
        self.others.read().get(server_name).cloned()
    }

    /// Those after the first `from` by their names, at most `limit`.
    pub fn page(&self, from: usize, limit: usize) -> Vec<(OwnedServerName, HomeserverKeys)> {
        let others = self.others.read();
        let page = others.iter().skip(from).take(limit);
        page.map(|(name, peer)| (name.clone(), peer.clone())).collect()
    }

    /// How many homeservers are known.
    pub fn len(&self) -> usize {
        self.others.read().len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.others.read().is_empty()
    }

    /// The key that this server signs with, if it is not that of its identity.
    pub fn own_key(&self) -> Option<ServerKey> {
        self.own.read().current.clone()
    }

    /// The keys that this server signed with before, by their ids.
    pub fn retired_keys(&self) -> BTreeMap<String, OldKey> {
        self.own.read().retired.clone()
    }

    pub(super) fn sign_with(
        &self,
        identity: Option<&ServerIdentity>,
        key: ServerKey,
        time_ms: u64,
    ) {
        let mut own = self.own.write();
        let before = match own.current.replace(key) {
            Some(ServerKey { key_id, public_key, .. }) => Some((key_id, public_key)),
            None => identity.map(|of| (of.key_id.clone(), of.public_key.clone())),
        };
        if let Some((key_id, key)) = before {
            own.retired.insert(key_id, OldKey { key, expired_ms: time_ms });
        }
    }

    /// Notes a key that it signed with before there was this log.
    pub(super) fn retire(&self, body: ServerOldKey) {
        let ServerOldKey { key_id, public_key, expired_ms } = body;
        let old = OldKey { key: public_key, expired_ms };
        self.own.write().retired.insert(key_id, old);
    }

    /// Returns the superseded record.
    pub(super) fn learn(&self, offset: Offset, body: PeerKeys) -> Option<Offset> {
        let PeerKeys { server_name, keys, old, valid_until_ms, document: _ } = body;
        let peer = HomeserverKeys { record: offset, keys, old, valid_until_ms };
        self.others.write().insert(server_name, peer).map(|before| before.record)
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.others.read());
        digest.add(&*self.own.read());
    }
}
