//! To-device messages that have not been acknowledged (client-server API, "Send-to-Device
//! messaging"). The messages themselves are in the log.

mod received;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use dashmap::DashMap;
use parking_lot::RwLock;
use received::Received;
use ruma::{DeviceId, OwnedDeviceId, OwnedServerName, OwnedUserId, ServerName, UserId};
use serde::{Deserialize, Serialize};

use super::{index::hash, serializers};
use logcabin_record::{
    Offset,
    command::{ToDeviceAck, ToDeviceSend},
};

/// The unacknowledged messages of each device.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct ToDevice {
    /// The devices with pending messages.
    #[serde(with = "serializers::shared")]
    inboxes: DashMap<OwnedUserId, BTreeMap<OwnedDeviceId, Inbox>>,
    /// The records that are in at least one inbox.
    #[serde(with = "serializers::locked")]
    open: RwLock<BTreeMap<Offset, Open>>,
    /// What other homeservers have not been told yet: an inbox for each.
    #[serde(with = "serializers::locked")]
    outside: RwLock<BTreeMap<OwnedServerName, Inbox>>,
    /// What other homeservers have sent.
    #[serde(with = "serializers::locked")]
    received: RwLock<Received>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inbox {
    /// The records with a message for the device, oldest first.
    waiting: VecDeque<Offset>,
    /// The number of records by sender, which is stored as a hash.
    #[serde(skip)]
    by_sender: HashMap<u64, usize>,
}

/// A pending record.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Open {
    /// The number of inboxes that it is in.
    count: u32,
    /// The sender, as a hash.
    sender: u64,
}

/// The part that snapshots contain. The counts are derived from it.
#[derive(Deserialize)]
struct Stored {
    #[serde(with = "serializers::shared")]
    inboxes: DashMap<OwnedUserId, BTreeMap<OwnedDeviceId, Inbox>>,
    open: BTreeMap<Offset, Open>,
    outside: BTreeMap<OwnedServerName, Inbox>,
    received: Received,
}

impl From<Stored> for ToDevice {
    fn from(Stored { inboxes, open, mut outside, received }: Stored) -> Self {
        for mut inboxes in inboxes.iter_mut() {
            inboxes.values_mut().for_each(|inbox| inbox.count(&open));
        }
        outside.values_mut().for_each(|inbox| inbox.count(&open));
        let (open, outside) = (RwLock::new(open), RwLock::new(outside));
        Self { inboxes, open, outside, received: RwLock::new(received) }
    }
}

impl Inbox {
    /// Counts its records by sender.
    fn count(&mut self, open: &BTreeMap<Offset, Open>) {
        for sender in self.waiting.iter().filter_map(|record| Some(open.get(record)?.sender)) {
            *self.by_sender.entry(sender).or_default() += 1;
        }
    }

    /// The number of its records, and of those from `sender`.
    fn counts(&self, sender: u64) -> (usize, usize) {
        (self.waiting.len(), self.by_sender.get(&sender).copied().unwrap_or_default())
    }

    fn push(&mut self, record: Offset, sender: u64) {
        self.waiting.push_back(record);
        *self.by_sender.entry(sender).or_default() += 1;
    }

    /// Removes the first `count` records.
    fn take_first(&mut self, count: usize, open: &BTreeMap<Offset, Open>) -> Vec<Offset> {
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        for sender in taken.iter().filter_map(|record| Some(open.get(record)?.sender)) {
            if let Some(count) = self.by_sender.get_mut(&sender) {
                *count -= 1;
                if *count == 0 {
                    self.by_sender.remove(&sender);
                }
            }
        }
        taken
    }
}

impl ToDevice {
    /// Up to `limit` records with messages for the device after `since`, up to and including `to`.
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

    /// The number of unacknowledged messages up to and including `up_to`.
    pub fn unacknowledged(&self, user_id: &UserId, device_id: &DeviceId, up_to: Offset) -> usize {
        let count = |inbox: &Inbox| inbox.waiting.partition_point(|offset| *offset <= up_to);
        self.look(user_id, device_id, count).unwrap_or_default()
    }

    /// The number of pending messages for the device, and of those that count for `sender`, a user
    /// or another homeserver.
    pub fn count(&self, user_id: &UserId, device_id: &DeviceId, sender: &str) -> (usize, usize) {
        let sender = hash(&[sender]);
        self.look(user_id, device_id, |inbox| inbox.counts(sender)).unwrap_or_default()
    }

    /// The same of the messages for a homeserver.
    pub fn count_outside(&self, server: &ServerName, sender: &UserId) -> (usize, usize) {
        let sender = hash(&[sender.as_str()]);
        self.outside.read().get(server).map(|inbox| inbox.counts(sender)).unwrap_or_default()
    }

    /// Up to `limit` records after `since` with messages that a homeserver has not been told.
    pub fn waiting_outside(&self, server: &ServerName, since: Offset, limit: usize) -> Vec<Offset> {
        let outside = self.outside.read();
        let Some(inbox) = outside.get(server) else { return Vec::new() };
        let from = inbox.waiting.partition_point(|offset| *offset <= since);
        inbox.waiting.range(from..).take(limit).copied().collect()
    }

    /// The homeservers that have not been told everything, each with the last record for it.
    pub fn outside(&self) -> Vec<(OwnedServerName, Offset)> {
        let outside = self.outside.read();
        let last = |inbox: &Inbox| inbox.waiting.back().copied();
        outside.iter().filter_map(|(server, inbox)| Some((server.clone(), last(inbox)?))).collect()
    }

    /// Whether a homeserver has sent a message under this id lately.
    pub fn was_received(&self, sender: &UserId, message_id: &str) -> bool {
        self.received.read().has(sender, message_id)
    }

    fn look<T>(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        look: impl FnOnce(&Inbox) -> T,
    ) -> Option<T> {
        self.inboxes.get(user_id)?.get(device_id).map(look)
    }

    /// A device that is not `there` gets nothing. It may have been removed while the message was
    /// decided, and its inbox would wait for a later device with the same id. Returns the record if
    /// no device gets it.
    pub(super) fn send(
        &self,
        offset: Offset,
        body: &ToDeviceSend,
        there: impl Fn(&UserId, &DeviceId) -> bool,
    ) -> Option<Offset> {
        let (mut count, sender) = (0, hash(&[body.counts_for()]));
        if let Some(message_id) = &body.received_as {
            self.received.write().note(offset, &body.sender, message_id);
        }
        for (user_id, devices) in &body.messages {
            for device_id in devices.keys().filter(|device_id| there(user_id, device_id)) {
                let mut inboxes = self.inboxes.entry(user_id.clone()).or_default();
                inboxes.entry(device_id.clone()).or_default().push(offset, sender);
                count += 1;
            }
        }
        if let Some(letter) = &body.outside {
            let servers: BTreeSet<_> = letter.messages.keys().map(|id| id.server_name()).collect();
            let mut outside = self.outside.write();
            for server in servers {
                outside.entry(server.to_owned()).or_default().push(offset, sender);
                count += 1;
            }
        }
        if count == 0 {
            return Some(offset);
        }
        self.open.write().insert(offset, Open { count, sender });
        None
    }

    /// Returns the records that all of their devices have received now.
    pub(super) fn acknowledge(&self, body: &ToDeviceAck) -> Vec<Offset> {
        let Some(mut inboxes) = self.inboxes.get_mut(&body.user_id) else { return Vec::new() };
        let Some(inbox) = inboxes.get_mut(&body.device_id) else { return Vec::new() };
        let acknowledged = inbox.waiting.partition_point(|offset| *offset <= body.up_to);
        let delivered = inbox.take_first(acknowledged, &self.open.read());
        // An empty inbox is removed, like one that never had a message.
        if inbox.waiting.is_empty() {
            inboxes.remove(&body.device_id);
        }
        drop(inboxes);
        self.tidy(&body.user_id);
        self.close(delivered)
    }

    /// Returns the records without any recipient left.
    pub(super) fn remove_devices(
        &self,
        user_id: &UserId,
        devices: &[OwnedDeviceId],
    ) -> Vec<Offset> {
        let Some(mut inboxes) = self.inboxes.get_mut(user_id) else { return Vec::new() };
        let removed = devices.iter().filter_map(|device_id| inboxes.remove(device_id));
        let dropped: Vec<_> = removed.flat_map(|inbox| inbox.waiting).collect();
        drop(inboxes);
        self.tidy(user_id);
        self.close(dropped)
    }

    /// A homeserver has been told everything up to `up_to`. Returns the records without any
    /// recipient left.
    pub(super) fn reached(&self, server: &ServerName, up_to: Offset) -> Vec<Offset> {
        let mut outside = self.outside.write();
        let Some(inbox) = outside.get_mut(server) else { return Vec::new() };
        let told = inbox.waiting.partition_point(|offset| *offset <= up_to);
        let told = inbox.take_first(told, &self.open.read());
        if inbox.waiting.is_empty() {
            outside.remove(server);
        }
        drop(outside);
        self.close(told)
    }

    fn tidy(&self, user_id: &UserId) {
        self.inboxes.remove_if(user_id, |_, inboxes| inboxes.is_empty());
    }

    /// Removes these records from one inbox each. Returns those that are in none any more.
    fn close(&self, records: Vec<Offset>) -> Vec<Offset> {
        let mut open = self.open.write();
        let mut closed = records;
        closed.retain(|record| {
            let Some(waiting) = open.get_mut(record) else { return false };
            waiting.count -= 1;
            if waiting.count == 0 {
                open.remove(record);
                return true;
            }
            false
        });
        closed
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let mut users: Vec<_> = self.inboxes.iter().map(|entry| entry.key().clone()).collect();
        users.sort_unstable();
        for user_id in users {
            if let Some(inboxes) = self.inboxes.get(&user_id) {
                digest.add(&(&user_id, &*inboxes));
            }
        }
        let (outside, received) = (self.outside.read(), self.received.read());
        if !outside.is_empty() || !received.is_empty() {
            digest.add(&(&*outside, &*received));
        }
    }
}

/// The formats of earlier versions in snapshots.
pub(super) mod former {
    use super::*;

    /// Version 1, without senders. These messages count for no sender until the projection has been
    /// rebuilt from the log.
    #[derive(Deserialize)]
    pub(crate) struct V1 {
        #[serde(with = "serializers::shared")]
        inboxes: DashMap<OwnedUserId, BTreeMap<OwnedDeviceId, Inbox>>,
        open: BTreeMap<Offset, u32>,
    }

    impl From<V1> for ToDevice {
        fn from(V1 { inboxes, open }: V1) -> Self {
            let open = open.into_iter().map(|(record, count)| (record, Open { count, sender: 0 }));
            V2 { inboxes, open: open.collect() }.into()
        }
    }

    /// Version 2, without other homeservers.
    #[derive(Deserialize)]
    pub(crate) struct V2 {
        #[serde(with = "serializers::shared")]
        inboxes: DashMap<OwnedUserId, BTreeMap<OwnedDeviceId, Inbox>>,
        open: BTreeMap<Offset, Open>,
    }

    impl From<V2> for ToDevice {
        fn from(V2 { inboxes, open }: V2) -> Self {
            Stored { inboxes, open, outside: BTreeMap::new(), received: Received::default() }.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{device_id, user_id};
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_removed_device_has_no_inbox() {
        let to_device = ToDevice::default();
        let (ann, here, gone) = (user_id!("@ann:test"), device_id!("HERE"), device_id!("GONE"));
        let none = || RawValue::from_string("{}".to_owned()).expect("JSON");
        let devices = BTreeMap::from([(here.to_owned(), none()), (gone.to_owned(), none())]);
        let body = ToDeviceSend {
            sender: user_id!("@bob:test").to_owned(),
            event_type: "m.test".to_owned(),
            messages: BTreeMap::from([(ann.to_owned(), devices)]),
            outside: None,
            received_as: None,
            transaction: None,
        };
        to_device.send(Offset::new(5), &body, |_, device_id| device_id == here);
        let count = |device_id| to_device.unacknowledged(ann, device_id, Offset::MAX);
        assert_eq!((count(here), count(gone)), (1, 0));
    }

    #[test]
    fn pending_messages_are_counted_by_sender_and_still_are_after_a_snapshot() {
        let (ann, device) = (user_id!("@ann:test"), device_id!("D"));
        let (bob, cat) = (user_id!("@bob:test"), user_id!("@cat:test"));
        let send = |to_device: &ToDevice, offset: u64, sender: &UserId| {
            let none = RawValue::from_string("{}".to_owned()).expect("JSON");
            let devices = BTreeMap::from([(device.to_owned(), none)]);
            let body = ToDeviceSend {
                sender: sender.to_owned(),
                event_type: "m.test".to_owned(),
                messages: BTreeMap::from([(ann.to_owned(), devices)]),
                outside: None,
                received_as: None,
                transaction: None,
            };
            to_device.send(Offset::new(offset), &body, |_, _| true);
        };
        let to_device = ToDevice::default();
        for (offset, sender) in [(1, bob), (2, bob), (3, cat), (4, bob)] {
            send(&to_device, offset, sender);
        }
        let counts = |to_device: &ToDevice| {
            [bob, cat].map(|sender| to_device.count(ann, device, sender.as_str()))
        };
        assert_eq!(counts(&to_device), [(4, 3), (4, 1)]);
        let stored = postcard::to_stdvec(&to_device).expect("it can be stored");
        let to_device: ToDevice = postcard::from_bytes(&stored).expect("it can be read");
        assert_eq!(counts(&to_device), [(4, 3), (4, 1)]);
        let (user_id, device_id) = (ann.to_owned(), device.to_owned());
        let up_to = Offset::new(3);
        to_device.acknowledge(&ToDeviceAck { user_id, device_id, up_to });
        assert_eq!(counts(&to_device), [(1, 1), (1, 0)]);
    }

    #[test]
    fn version_1_is_read_without_senders() {
        let (ann, device) = (user_id!("@ann:test"), device_id!("D"));
        let waiting = VecDeque::from([Offset::new(3), Offset::new(5)]);
        let inboxes = BTreeMap::from([(device.to_owned(), waiting)]);
        let inboxes = BTreeMap::from([(ann.to_owned(), inboxes)]);
        let open = BTreeMap::from([(Offset::new(3), 1_u32), (Offset::new(5), 1)]);
        let stored = postcard::to_stdvec(&(inboxes, open)).expect("it can be stored");
        let former: former::V1 = postcard::from_bytes(&stored).expect("it can be read");
        let to_device = ToDevice::from(former);
        assert_eq!(to_device.count(ann, device, "@bob:test"), (2, 0));
        let (user_id, device_id) = (ann.to_owned(), device.to_owned());
        let up_to = Offset::new(3);
        let done = to_device.acknowledge(&ToDeviceAck { user_id, device_id, up_to });
        assert_eq!(done, [up_to]);
        assert_eq!(to_device.count(ann, device, "@bob:test"), (1, 0));
    }

    #[test]
    fn a_record_is_superseded_once_every_device_has_it_or_was_removed() {
        let to_device = ToDevice::default();
        let (ann, one, two) = (user_id!("@ann:test"), device_id!("ONE"), device_id!("TWO"));
        let send = |offset: u64, devices: &[&DeviceId]| {
            let none = || RawValue::from_string("{}".to_owned()).expect("JSON");
            let devices = devices.iter().map(|device_id| ((*device_id).to_owned(), none()));
            let body = ToDeviceSend {
                sender: user_id!("@bob:test").to_owned(),
                event_type: "m.test".to_owned(),
                messages: BTreeMap::from([(ann.to_owned(), devices.collect())]),
                outside: None,
                received_as: None,
                transaction: None,
            };
            to_device.send(Offset::new(offset), &body, |_, _| true)
        };
        let ack = |device_id: &DeviceId, up_to| {
            let (user_id, device_id) = (ann.to_owned(), device_id.to_owned());
            to_device.acknowledge(&ToDeviceAck { user_id, device_id, up_to: Offset::new(up_to) })
        };
        assert_eq!((send(1, &[one, two]), send(2, &[one]), send(3, &[two])), (None, None, None));
        assert_eq!(send(4, &[]), Some(Offset::new(4)));
        assert_eq!(ack(one, 9), [Offset::new(2)]);
        assert_eq!(ack(one, 9), []);
        assert_eq!(ack(two, 1), [Offset::new(1)]);
        let dropped = to_device.remove_devices(ann, &[two.to_owned()]);
        assert_eq!(dropped, [Offset::new(3)]);
        // As if nothing had ever been sent.
        assert!(to_device.inboxes.is_empty() && to_device.open.read().is_empty());
    }
}
