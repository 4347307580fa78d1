//! The recorded last use of each device. `logcabin_service::last_seen` has what is not recorded
//! yet.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{DeviceSeen, Sighting},
};

/// The last use of each device.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Sightings(#[serde(with = "serializers::locked")] RwLock<BTreeMap<OwnedUserId, Devices>>);

type Devices = BTreeMap<OwnedDeviceId, DeviceSighting>;

#[derive(Debug, Serialize, Deserialize)]
struct DeviceSighting {
    record: Offset,
    seen_ms: u64,
    address: String,
    agent: Option<String>,
}

impl Sightings {
    /// When and from where this device was last used.
    pub fn get(&self, user_id: &UserId, device_id: &DeviceId) -> Option<Sighting> {
        let seen = self.0.read();
        let DeviceSighting { seen_ms, address, agent, .. } = seen.get(user_id)?.get(device_id)?;
        Some(Sighting { seen_ms: *seen_ms, address: address.parse().ok()?, agent: agent.clone() })
    }

    /// Returns the superseded record: the previous one, or this one if the device is not `there`,
    /// because it may have been removed meanwhile.
    pub(super) fn note(&self, offset: Offset, body: DeviceSeen, there: bool) -> Option<Offset> {
        if !there {
            return Some(offset);
        }
        let DeviceSeen { user_id, device_id, sighting: Sighting { seen_ms, address, agent } } =
            body;
        let noted = DeviceSighting { record: offset, seen_ms, address: address.to_string(), agent };
        let before = self.0.write().entry(user_id).or_default().insert(device_id, noted);
        before.map(|noted| noted.record)
    }

    /// Returns the records of devices that no longer exist.
    pub(super) fn remove_devices(
        &self,
        user_id: &UserId,
        devices: &[OwnedDeviceId],
    ) -> Vec<Offset> {
        let mut seen = self.0.write();
        let Some(of_user) = seen.get_mut(user_id) else { return Vec::new() };
        let removed = devices.iter().filter_map(|device_id| of_user.remove(device_id));
        let removed = removed.map(|noted| noted.record).collect();
        if of_user.is_empty() {
            seen.remove(user_id);
        }
        removed
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
