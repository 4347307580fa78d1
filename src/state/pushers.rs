//! Pushers: the gateways and addresses of users' notifications, and the delivery positions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::RwLock;
use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    pusher::{PusherAdvance, PusherIds, PusherKind, PusherMail, PusherRemove, PusherSet},
};

/// A pusher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pusher {
    /// The record that first set it, which identifies it. It notifies of later events.
    pub since: Offset,
    /// When it was last set, in milliseconds since the Unix epoch.
    pub set_ms: u64,
    /// Its settings.
    #[serde(with = "serializers::json")]
    pub body: PusherSet,
    /// For a mail pusher: the last mail.
    pub mailed: Option<Mailed>,
}

impl Pusher {
    /// Whether it sends mail.
    pub fn is_mail(&self) -> bool {
        self.body.kind == PusherKind::Email
    }

    /// Whether it sends requests to a gateway.
    pub fn is_at_gateway(&self) -> bool {
        !self.is_mail() && !self.body.disabled
    }

    /// The record after which events are to be mailed.
    pub fn mailed_up_to(&self) -> Offset {
        self.mailed.map_or(self.since, |mailed| mailed.up_to.max(self.since))
    }
}

/// A mail that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailed {
    /// The record that says so.
    pub record: Offset,
    /// The time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// It listed unread messages up to this record.
    pub up_to: Offset,
    /// How many mails were sent since the user last read anything, including this one.
    pub in_a_row: u32,
    /// Whether the user has read something since.
    pub read: bool,
}

/// All pushers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Pushers(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    all: BTreeMap<Offset, Arc<Pusher>>,
    users: BTreeMap<OwnedUserId, BTreeSet<Offset>>,
    holders: BTreeMap<PusherIds, BTreeSet<Offset>>,
    /// Users with mailed notifications of which they have read nothing yet.
    unread: BTreeMap<OwnedUserId, BTreeSet<Offset>>,
    /// The common delivery position, with its record.
    #[serde(with = "serializers::json")]
    told: Option<(Offset, PusherAdvance)>,
}

impl Pushers {
    /// The pusher that this record first set, if it still exists.
    pub fn get(&self, since: Offset) -> Option<Arc<Pusher>> {
        self.0.read().all.get(&since).cloned()
    }

    /// All pushers, oldest first.
    pub fn all(&self) -> Vec<Arc<Pusher>> {
        self.0.read().all.values().cloned().collect()
    }

    /// Whether there are no pushers.
    pub fn is_empty(&self) -> bool {
        self.0.read().all.is_empty()
    }

    /// The pushers of a user, oldest first.
    pub fn of_user(&self, user_id: &UserId) -> Vec<Arc<Pusher>> {
        let inner = self.0.read();
        let own = inner.users.get(user_id).into_iter().flatten();
        own.filter_map(|since| inner.all.get(since).cloned()).collect()
    }

    /// Whether the user has pushers.
    pub fn has_any(&self, user_id: &UserId) -> bool {
        self.0.read().users.contains_key(user_id)
    }

    /// The number of users with pushers.
    pub fn user_count(&self) -> usize {
        self.0.read().users.len()
    }

    /// The users with pushers, among those that `wanted` accepts.
    pub fn users(&self, wanted: impl Fn(&UserId) -> bool) -> Vec<OwnedUserId> {
        let inner = self.0.read();
        inner.users.keys().filter(|user_id| wanted(user_id)).cloned().collect()
    }

    /// All users' pushers with these ids.
    pub fn of_ids(&self, ids: &PusherIds) -> Vec<Arc<Pusher>> {
        let inner = self.0.read();
        let held = inner.holders.get(ids).into_iter().flatten();
        held.filter_map(|since| inner.all.get(since).cloned()).collect()
    }

    /// The common delivery position; `None` before the first delivery.
    pub fn told(&self) -> Option<PusherAdvance> {
        self.0.read().told.as_ref().map(|(_, told)| told.clone())
    }

    pub(super) fn set(&self, offset: Offset, time_ms: u64, body: PusherSet) {
        let mut inner = self.0.write();
        let held = inner.holders.get(&body.ids).into_iter().flatten();
        let before = held.copied().find(|since| {
            inner.all.get(since).is_some_and(|pusher| pusher.body.user_id == body.user_id)
        });
        let since = before.unwrap_or(offset);
        inner.users.entry(body.user_id.clone()).or_default().insert(since);
        inner.holders.entry(body.ids.clone()).or_default().insert(since);
        let mailed = inner.all.get(&since).and_then(|pusher| pusher.mailed);
        inner.all.insert(since, Arc::new(Pusher { since, set_ms: time_ms, body, mailed }));
    }

    /// Returns the superseded record: the previous one, or this one if the pusher no longer exists.
    pub(super) fn mail(&self, offset: Offset, time_ms: u64, body: &PusherMail) -> Option<Offset> {
        let PusherMail { user_id, pusher: since, up_to, in_a_row } = body;
        let mut inner = self.0.write();
        let inner = &mut *inner;
        let Some(pusher) = inner.all.get_mut(since).filter(|of| of.body.user_id == *user_id) else {
            return Some(offset);
        };
        let (up_to, in_a_row) = (*up_to, *in_a_row);
        let mailed = Mailed { record: offset, at_ms: time_ms, up_to, in_a_row, read: false };
        let before = Arc::make_mut(pusher).mailed.replace(mailed);
        inner.unread.entry(user_id.clone()).or_default().insert(*since);
        before.map(|mailed| mailed.record)
    }

    /// The user has read something.
    pub(super) fn note_read(&self, user_id: &UserId) {
        if !self.0.read().unread.contains_key(user_id) {
            return;
        }
        let mut inner = self.0.write();
        for since in inner.unread.remove(user_id).unwrap_or_default() {
            if let Some(pusher) = inner.all.get_mut(&since)
                && let Some(mailed) = &mut Arc::make_mut(pusher).mailed
            {
                mailed.read = true;
            }
        }
    }

    /// Removes the pushers that send mail to this address.
    pub(super) fn remove_address(&self, user_id: &UserId, address: &str) -> Vec<Offset> {
        self.remove_of(user_id, |pusher| pusher.is_mail() && pusher.body.ids.pushkey == address)
    }

    pub(super) fn remove(&self, body: &PusherRemove) -> Vec<Offset> {
        let ids = &body.ids;
        self.remove_of(&body.user_id, |pusher| pusher.body.ids == *ids)
    }

    /// Removes the pushers that these devices set.
    pub(super) fn remove_devices(
        &self,
        user_id: &UserId,
        devices: &[OwnedDeviceId],
    ) -> Vec<Offset> {
        let gone = |device_id: &DeviceId| devices.iter().any(|device| device == device_id);
        self.remove_of(user_id, |pusher| pusher.body.device_id.as_deref().is_some_and(gone))
    }

    pub(super) fn remove_user(&self, user_id: &UserId) -> Vec<Offset> {
        self.remove_of(user_id, |_| true)
    }

    /// Returns the superseded records of mails.
    fn remove_of(&self, user_id: &UserId, is_gone: impl Fn(&Pusher) -> bool) -> Vec<Offset> {
        let mut mails = Vec::new();
        let mut inner = self.0.write();
        let inner = &mut *inner;
        let Some(own) = inner.users.get_mut(user_id) else { return mails };
        own.retain(|since| {
            let Some(pusher) = inner.all.get(since) else { return false };
            if !is_gone(pusher) {
                return true;
            }
            if let Some(held) = inner.holders.get_mut(&pusher.body.ids) {
                held.remove(since);
                if held.is_empty() {
                    inner.holders.remove(&pusher.body.ids);
                }
            }
            mails.extend(pusher.mailed.map(|mailed| mailed.record));
            inner.all.remove(since);
            if let Some(unread) = inner.unread.get_mut(user_id) {
                unread.remove(since);
            }
            false
        });
        if inner.unread.get(user_id).is_some_and(BTreeSet::is_empty) {
            inner.unread.remove(user_id);
        }
        if own.is_empty() {
            inner.users.remove(user_id);
        }
        mails
    }

    /// Returns the superseded record.
    pub(super) fn advance(&self, offset: Offset, body: PusherAdvance) -> Option<Offset> {
        let before = self.0.write().told.replace((offset, body));
        before.map(|(offset, _)| offset)
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let inner = self.0.read();
        let all: Vec<_> = inner
            .all
            .values()
            .map(|pusher| {
                // As in the log's JSON, which leaves out absent fields.
                let body = serde_json::to_string(&pusher.body).unwrap_or_default();
                (pusher.since, pusher.set_ms, body)
            })
            .collect();
        digest.add(&all);
        let mailed = inner.all.values().filter_map(|pusher| Some((pusher.since, pusher.mailed?)));
        digest.add(&mailed.collect::<Vec<_>>());
        let told = inner.told.as_ref();
        digest.add(&told.map(|(offset, told)| (*offset, told.done, told.behind.clone())));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use logcabin_record::pusher::{PusherEnd, PusherKind};

    fn body(user: &str, device: &str, pushkey: &str) -> PusherSet {
        PusherSet {
            user_id: UserId::parse(format!("@{user}:test")).unwrap(),
            device_id: Some(device.into()),
            ids: PusherIds { app_id: "app".to_owned(), pushkey: pushkey.to_owned() },
            kind: PusherKind::Http,
            app_display_name: String::new(),
            device_display_name: String::new(),
            profile_tag: None,
            lang: "en".to_owned(),
            data: Map::new(),
            disabled: false,
        }
    }

    #[test]
    fn setting_a_pusher_again_keeps_it_unless_it_was_removed() {
        let pushers = Pushers::default();
        let (ann, other) = (body("ann", "A", "k"), body("bob", "B", "k"));
        pushers.set(Offset::new(1), 10, ann.clone());
        pushers.set(Offset::new(2), 20, other);
        pushers.set(Offset::new(3), 30, ann.clone());
        let sinces = |ids| pushers.of_ids(ids).iter().map(|p| p.since.get()).collect::<Vec<_>>();
        assert_eq!(sinces(&ann.ids), [1, 2]);
        assert_eq!(pushers.get(Offset::new(1)).unwrap().set_ms, 30);
        let PusherSet { user_id, ids, .. } = ann.clone();
        pushers.remove(&PusherRemove { user_id, ids, because: PusherEnd::Asked });
        assert_eq!((sinces(&ann.ids), pushers.has_any(&ann.user_id)), (vec![2], false));
        pushers.set(Offset::new(4), 40, ann.clone());
        assert_eq!(sinces(&ann.ids), [2, 4]);
    }

    #[test]
    fn pushers_go_with_the_device_that_set_them() {
        let pushers = Pushers::default();
        for (number, device) in (1..).zip(["A", "A", "B"]) {
            let pusher = body("ann", device, &number.to_string());
            pushers.set(Offset::new(number), 1, pusher);
        }
        let ann = body("ann", "", "").user_id;
        pushers.remove_devices(&ann, &["A".into(), "C".into()]);
        let left: Vec<_> = pushers.of_user(&ann).iter().map(|p| p.since.get()).collect();
        assert_eq!((left, pushers.all().len(), pushers.user_count()), (vec![3], 1, 1));
        pushers.remove_user(&ann);
        assert!(pushers.is_empty() && !pushers.has_any(&ann));
    }

    #[test]
    fn the_last_mail_is_known_until_the_pusher_is_removed_and_records_reading() {
        let pushers = Pushers::default();
        let mut ann = body("ann", "A", "ann@example.org");
        ann.kind = PusherKind::Email;
        let since = Offset::new(1);
        pushers.set(since, 10, ann.clone());
        let mail = |up_to, in_a_row| PusherMail {
            user_id: ann.user_id.clone(),
            pusher: since,
            up_to: Offset::new(up_to),
            in_a_row,
        };
        let last = || pushers.get(since).and_then(|pusher| pusher.mailed);
        pushers.note_read(&ann.user_id);
        assert_eq!(last(), None);
        assert_eq!(pushers.mail(Offset::new(5), 50, &mail(4, 1)), None);
        pushers.note_read(&body("bob", "", "").user_id);
        // Setting it again does not change that.
        pushers.set(Offset::new(6), 60, ann.clone());
        let first = Mailed {
            record: Offset::new(5),
            at_ms: 50,
            up_to: Offset::new(4),
            in_a_row: 1,
            read: false,
        };
        assert_eq!(last(), Some(first));
        pushers.note_read(&ann.user_id);
        assert_eq!(last(), Some(Mailed { read: true, ..first }));
        // The previous record is superseded.
        assert_eq!(pushers.mail(Offset::new(7), 70, &mail(6, 2)), Some(Offset::new(5)));
        assert!(last().is_some_and(|mailed| !mailed.read && mailed.in_a_row == 2));
        pushers.remove_address(&ann.user_id, "other@example.org");
        assert!(last().is_some());
        pushers.remove_address(&ann.user_id, "ann@example.org");
        assert_eq!((last(), pushers.is_empty()), (None, true));
        assert_eq!(pushers.mail(Offset::new(8), 80, &mail(7, 3)), Some(Offset::new(8)));
        pushers.note_read(&ann.user_id);
    }
}
