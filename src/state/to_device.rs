//! Messages that were sent to devices and that those have not acknowledged (client-server API,
//! "Send-to-Device messaging"). The messages themselves are in the log.

use std::collections::{BTreeMap, VecDeque};

use dashmap::DashMap;
use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::{
    Offset,
    command::{ToDeviceAck, ToDeviceSend},
};

/// What each device has not acknowledged.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ToDevice(
    #[serde(with = "kept::shared")] DashMap<OwnedUserId, BTreeMap<OwnedDeviceId, Inbox>>,
);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inbox {
    /// The records that hold a message for the device, oldest first.
    waiting: VecDeque<Offset>,
}

impl ToDevice {
    /// Up to `limit` records with messages for the device after `since`, up to and with `to`.
    #[must_use]
    pub fn waiting(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        since: Offset,
        to: Offset,
        limit: usize,
    ) -> Vec<Offset> {
        self.look(user_id, device_id, |inbox| {
            let from = inbox.waiting.partition_point(|offset| *offset <= since);
            let after = inbox.waiting.range(from..).copied();
            after.take_while(|offset| *offset <= to).take(limit).collect()
        })
        .unwrap_or_default()
    }

    /// How many messages up to and with `up_to` the device has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self, user_id: &UserId, device_id: &DeviceId, up_to: Offset) -> usize {
        let count = |inbox: &Inbox| inbox.waiting.partition_point(|offset| *offset <= up_to);
        self.look(user_id, device_id, count).unwrap_or_default()
    }

    fn look<T>(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        look: impl FnOnce(&Inbox) -> T,
    ) -> Option<T> {
        self.0.get(user_id)?.get(device_id).map(look)
    }

    /// A device that is not `there` gets nothing: it may have been removed while the message was decided on,
    /// and its inbox would wait for one that is given the same id later.
    pub(super) fn send(
        &self,
        offset: Offset,
        body: &ToDeviceSend,
        there: impl Fn(&UserId, &DeviceId) -> bool,
    ) {
        for (user_id, devices) in &body.messages {
            let mut inboxes = self.0.entry(user_id.clone()).or_default();
            for device_id in devices.keys().filter(|device_id| there(user_id, device_id)) {
                inboxes.entry(device_id.clone()).or_default().waiting.push_back(offset);
            }
        }
    }

    pub(super) fn acknowledge(&self, body: &ToDeviceAck) {
        if let Some(mut inboxes) = self.0.get_mut(&body.user_id)
            && let Some(inbox) = inboxes.get_mut(&body.device_id)
        {
            let acknowledged = inbox.waiting.partition_point(|offset| *offset <= body.up_to);
            inbox.waiting.drain(..acknowledged);
        }
    }

    pub(super) fn remove_devices(&self, user_id: &UserId, devices: &[OwnedDeviceId]) {
        if let Some(mut inboxes) = self.0.get_mut(user_id) {
            for device_id in devices {
                inboxes.remove(device_id);
            }
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let mut users: Vec<_> = self.0.iter().map(|entry| entry.key().clone()).collect();
        users.sort_unstable();
        for user_id in users {
            if let Some(inboxes) = self.0.get(&user_id) {
                digest.add(&(&user_id, &*inboxes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{device_id, user_id};
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_device_that_is_gone_has_no_inbox() {
        let to_device = ToDevice::default();
        let (ann, here, gone) = (user_id!("@ann:test"), device_id!("HERE"), device_id!("GONE"));
        let none = || RawValue::from_string("{}".to_owned()).expect("JSON");
        let devices = BTreeMap::from([(here.to_owned(), none()), (gone.to_owned(), none())]);
        let body = ToDeviceSend {
            sender: user_id!("@bob:test").to_owned(),
            event_type: "m.test".to_owned(),
            messages: BTreeMap::from([(ann.to_owned(), devices)]),
            transaction: None,
        };
        to_device.send(Offset::new(5), &body, |_, device_id| device_id == here);
        let count = |device_id| to_device.unacknowledged(ann, device_id, Offset::MAX);
        assert_eq!((count(here), count(gone)), (1, 0));
    }
}
