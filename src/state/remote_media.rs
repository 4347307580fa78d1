//! Files of other homeservers that are in quarantine. Of which of them this server has copies is
//! not in the log.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{MxcUri, OwnedMxcUri};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{Offset, command::MediaQuarantine};

/// By address, the record that put the file into quarantine.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RemoteMedia(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<OwnedMxcUri, Offset>>,
);

impl RemoteMedia {
    /// The record that put the file at this address into quarantine, if it is in it.
    pub fn quarantined(&self, address: &MxcUri) -> Option<Offset> {
        self.0.read().get(address).copied()
    }

    pub(super) fn quarantine(&self, offset: Offset, body: &MediaQuarantine) {
        if body.remote.is_empty() {
            return;
        }
        let mut quarantined = self.0.write();
        for address in &body.remote {
            if body.quarantined {
                quarantined.entry(address.clone()).or_insert(offset);
            } else {
                quarantined.remove(address);
            }
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
