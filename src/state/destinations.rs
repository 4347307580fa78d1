//! The delivery positions of other homeservers.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedServerName, ServerName};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{Failing, PeerReached, Reached, SetAside},
};

/// The delivery position of each homeserver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Destinations {
    #[serde(with = "serializers::locked")]
    inner: RwLock<Inner>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    servers: BTreeMap<OwnedServerName, Destination>,
    /// For how many homeservers each record is the latest.
    lasts: BTreeMap<Offset, u64>,
}

/// The delivery position of a homeserver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The record that says so.
    pub record: Offset,
    /// It has been told of everything up to this record.
    pub up_to: Offset,
    /// Set if it was unreachable at the last attempt.
    #[serde(with = "serializers::json")]
    pub failing: Option<Failing>,
    /// What is set aside, and never delivered.
    #[serde(with = "serializers::json")]
    pub set_aside: SetAside,
}

impl Destinations {
    /// The delivery position of this homeserver.
    pub fn get(&self, server_name: &ServerName) -> Option<Destination> {
        self.inner.read().servers.get(server_name).cloned()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<(OwnedServerName, Destination)> {
        let inner = self.inner.read();
        inner.servers.iter().map(|(name, of)| (name.clone(), of.clone())).collect()
    }

    pub fn count(&self) -> usize {
        self.inner.read().servers.len()
    }

    /// How many there are, and how many of them were unreachable at the last attempt.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.read();
        let failing = inner.servers.values().filter(|of| of.failing.is_some()).count();
        (inner.servers.len(), failing)
    }

    /// Returns the superseded records.
    pub(super) fn reach(&self, offset: Offset, body: PeerReached) -> Vec<Offset> {
        let mut inner = self.inner.write();
        let mut superseded = Vec::new();
        for reached in body.servers {
            let Reached { server_name, up_to, failing, set_aside } = reached;
            let destination = Destination { record: offset, up_to, failing, set_aside };
            *inner.lasts.entry(offset).or_default() += 1;
            let before = inner.servers.insert(server_name, destination);
            let Some(before) = before.map(|before| before.record) else { continue };
            if let Some(count) = inner.lasts.get_mut(&before) {
                *count -= 1;
                if *count == 0 {
                    inner.lasts.remove(&before);
                    superseded.extend((before < offset).then_some(before));
                }
            }
        }
        superseded
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let inner = self.inner.read();
        if !inner.servers.is_empty() {
            digest.add(&*inner);
        }
    }
}

pub(super) mod former {
    use super::*;

    /// Version 1, in which nothing was set aside.
    #[derive(Deserialize)]
    pub(crate) struct V1 {
        inner: Former,
    }

    #[derive(Deserialize)]
    struct Former {
        servers: BTreeMap<OwnedServerName, Told>,
        lasts: BTreeMap<Offset, u64>,
    }

    #[derive(Deserialize)]
    struct Told {
        record: Offset,
        up_to: Offset,
        #[serde(deserialize_with = "serializers::json::deserialize")]
        failing: Option<Failing>,
    }

    impl From<V1> for Destinations {
        fn from(V1 { inner: Former { servers, lasts } }: V1) -> Self {
            let now = |Told { record, up_to, failing }| Destination {
                record,
                up_to,
                failing,
                set_aside: SetAside::default(),
            };
            let servers = servers.into_iter().map(|(name, told)| (name, now(told))).collect();
            Self { inner: RwLock::new(Inner { servers, lasts }) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_version_1_are_kept() {
        let servers = BTreeMap::from([("peer.example", (9_u64, 7_u64, "null"))]);
        let stored = postcard::to_allocvec(&(servers, BTreeMap::from([(9_u64, 1_u64)]))).unwrap();
        let kept = Destinations::from(postcard::from_bytes::<former::V1>(&stored).unwrap());
        let (record, up_to) = (Offset::new(9), Offset::new(7));
        let expected = Destination { record, up_to, failing: None, set_aside: SetAside::default() };
        assert_eq!(kept.get("peer.example".try_into().unwrap()), Some(expected));
    }
}
