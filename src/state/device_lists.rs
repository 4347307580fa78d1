//! What is known of the devices of users of other homeservers. The lists themselves are in the log.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedServerName, OwnedUserId, ServerName, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_base::limits;
use logcabin_record::{Offset, command::PeerDevices};

/// The lists of users of other homeservers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct DeviceLists {
    #[serde(with = "serializers::locked")]
    inner: RwLock<Inner>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    servers: BTreeMap<OwnedServerName, ServerDevices>,
    /// The users by the last record about each.
    by_last: BTreeMap<Offset, OwnedUserId>,
    /// The users by the last change of each.
    changes: Changes,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Changes(BTreeMap<Offset, BTreeSet<OwnedUserId>>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct ServerDevices {
    users: BTreeMap<OwnedUserId, KnownDevices>,
    /// Those whose lists are out of date.
    outdated: BTreeSet<OwnedUserId>,
}

/// What is known of a user's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDevices {
    /// The record with the list.
    pub record: Option<Offset>,
    /// The last change in it, as the user's homeserver counts them.
    pub stream_id: Option<u64>,
    /// Whether it may be another one by now.
    pub is_outdated: bool,
    /// The last record about it.
    pub last: Offset,
    /// The last change that users who share a room with them are told of; 0 if there was none.
    pub changed: Offset,
}

impl DeviceLists {
    /// Whether nothing is known of anybody.
    pub fn is_empty(&self) -> bool {
        self.inner.read().by_last.is_empty()
    }

    /// What is known of the devices of `user_id`.
    pub fn get(&self, user_id: &UserId) -> Option<KnownDevices> {
        self.inner.read().servers.get(user_id.server_name())?.users.get(user_id).copied()
    }

    /// Up to `limit` users of this homeserver whose lists are out of date.
    pub fn outdated(&self, server: &ServerName, limit: usize) -> Vec<OwnedUserId> {
        let inner = self.inner.read();
        let of = inner.servers.get(server);
        of.into_iter().flat_map(|of| &of.outdated).take(limit).cloned().collect()
    }

    /// The users whose devices changed after `since`, and not again after `to`.
    pub fn changed_between(&self, since: Offset, to: Offset) -> BTreeSet<OwnedUserId> {
        if since >= to {
            return BTreeSet::new();
        }
        let inner = self.inner.read();
        inner.changes.0.range(since.next()..=to).flat_map(|(_, users)| users).cloned().collect()
    }

    /// Returns the superseded records.
    pub(super) fn note(&self, offset: Offset, body: PeerDevices) -> Vec<Offset> {
        let PeerDevices { user_id, list: new, changed, changed_at } = body;
        let inner = &mut *self.inner.write();
        let of = inner.servers.entry(user_id.server_name().to_owned()).or_default();
        let list = of.users.entry(user_id.clone()).or_default();
        let mut superseded = Vec::new();
        inner.by_last.remove(&list.last);
        // A record without a list, or one whose list is replaced.
        let is_marker = list.last != Offset::ZERO && list.record != Some(list.last);
        superseded.extend(Some(list.last).filter(|_| is_marker));
        list.last = offset;
        // The record comes from a log, and may be malformed.
        let changed_at = changed_at.unwrap_or_default().min(offset);
        inner.changes.forget(list.changed, &user_id);
        list.changed = if changed { offset } else { changed_at };
        inner.changes.note(list.changed, &user_id);
        list.is_outdated = new.is_none();
        if let Some(new) = new {
            superseded.extend(list.record.replace(offset));
            list.stream_id = new.stream_id;
            of.outdated.remove(&user_id);
        } else {
            of.outdated.insert(user_id.clone());
        }
        inner.by_last.insert(offset, user_id);
        if inner.by_last.len() > limits::DEVICE_LISTS
            && let Some((last, oldest)) = inner.by_last.pop_first()
        {
            superseded.push(last);
            superseded.extend(inner.forget(&oldest).filter(|record| *record != last));
        }
        superseded
    }

    /// Changes of the user's devices may have been missed, for example because the user shares a
    /// room with users of this server again.
    pub(super) fn suspect(&self, user_id: &UserId) {
        let mut inner = self.inner.write();
        let Some(of) = inner.servers.get_mut(user_id.server_name()) else { return };
        if let Some(list) = of.users.get_mut(user_id) {
            list.is_outdated = true;
            of.outdated.insert(user_id.to_owned());
        }
    }

    /// The same for all users, which counts as a change of each.
    pub(super) fn suspect_all(&self, offset: Offset) {
        let Inner { servers, by_last: _, changes } = &mut *self.inner.write();
        changes.0.clear();
        for of in servers.values_mut() {
            for (user_id, list) in &mut of.users {
                list.is_outdated = true;
                list.changed = offset;
                changes.note(offset, user_id);
            }
            of.outdated = of.users.keys().cloned().collect();
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let inner = self.inner.read();
        if !inner.servers.is_empty() {
            digest.add(&*inner);
        }
    }
}

impl Inner {
    /// Returns the record with the user's list.
    fn forget(&mut self, user_id: &UserId) -> Option<Offset> {
        let of = self.servers.get_mut(user_id.server_name())?;
        let list = of.users.remove(user_id);
        of.outdated.remove(user_id);
        if of.users.is_empty() {
            self.servers.remove(user_id.server_name());
        }
        let list = list?;
        self.changes.forget(list.changed, user_id);
        list.record
    }
}

impl Changes {
    fn note(&mut self, at: Offset, user_id: &UserId) {
        if at != Offset::ZERO {
            self.0.entry(at).or_default().insert(user_id.to_owned());
        }
    }

    fn forget(&mut self, at: Offset, user_id: &UserId) {
        if let Some(users) = self.0.get_mut(&at) {
            users.remove(user_id);
            if users.is_empty() {
                self.0.remove(&at);
            }
        }
    }
}

/// The formats of earlier versions in snapshots.
pub(super) mod former {
    use super::*;

    /// Version 1, without changes: they were among those of this server's users.
    #[derive(Deserialize)]
    pub(crate) struct V1 {
        servers: BTreeMap<OwnedServerName, ServerDevicesOfV1>,
        by_last: BTreeMap<Offset, OwnedUserId>,
    }

    #[derive(Deserialize)]
    struct ServerDevicesOfV1 {
        users: BTreeMap<OwnedUserId, KnownDevicesOfV1>,
        outdated: BTreeSet<OwnedUserId>,
    }

    #[derive(Deserialize)]
    struct KnownDevicesOfV1 {
        record: Option<Offset>,
        stream_id: Option<u64>,
        is_outdated: bool,
        last: Offset,
    }

    impl From<V1> for DeviceLists {
        fn from(V1 { servers, by_last }: V1) -> Self {
            let servers = servers.into_iter().map(|(name, of)| (name, of.into())).collect();
            let inner = Inner { servers, by_last, changes: Changes::default() };
            Self { inner: RwLock::new(inner) }
        }
    }

    impl From<ServerDevicesOfV1> for ServerDevices {
        fn from(ServerDevicesOfV1 { users, outdated }: ServerDevicesOfV1) -> Self {
            let users = users.into_iter().map(|(user_id, known)| (user_id, known.into()));
            Self { users: users.collect(), outdated }
        }
    }

    impl From<KnownDevicesOfV1> for KnownDevices {
        fn from(known: KnownDevicesOfV1) -> Self {
            let KnownDevicesOfV1 { record, stream_id, is_outdated, last } = known;
            Self { record, stream_id, is_outdated, last, changed: Offset::ZERO }
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{server_name, user_id};

    use super::*;
    use logcabin_record::command::DeviceList;

    fn note(
        lists: &DeviceLists,
        offset: u64,
        user_id: &UserId,
        stream_id: Option<u64>,
    ) -> Vec<u64> {
        let list = stream_id.map(|id| DeviceList { stream_id: Some(id), ..DeviceList::default() });
        let (user_id, changed_at) = (user_id.to_owned(), None);
        let body = PeerDevices { user_id, changed: true, changed_at, list };
        lists.note(Offset::new(offset), body).into_iter().map(Offset::get).collect()
    }

    #[test]
    fn a_list_supersedes_what_was_known_before_and_a_change_only_says_that_it_is_outdated() {
        let lists = DeviceLists::default();
        let (pia, peer) = (user_id!("@pia:peer.test"), server_name!("peer.test"));
        assert_eq!(note(&lists, 1, pia, None), [0; 0]);
        assert_eq!(note(&lists, 2, pia, None), [1]);
        assert_eq!(note(&lists, 3, pia, Some(7)), [2]);
        assert_eq!(lists.outdated(peer, 9), [] as [OwnedUserId; 0]);
        assert_eq!(note(&lists, 4, pia, None), [0; 0]);
        let list = lists.get(pia).expect("a list");
        assert_eq!((list.record, list.stream_id), (Some(Offset::new(3)), Some(7)));
        assert!(list.is_outdated && lists.outdated(peer, 9) == [pia]);
        assert_eq!(note(&lists, 5, pia, Some(8)), [4, 3]);
        lists.suspect(pia);
        assert_eq!(lists.outdated(peer, 9), [pia]);
        assert_eq!(note(&lists, 6, pia, Some(8)), [5]);
        assert!(!lists.get(pia).expect("a list").is_outdated);
    }

    #[test]
    fn a_user_counts_as_changed_from_the_last_change_on_and_not_from_later_lists() {
        let lists = DeviceLists::default();
        let (pia, lou) = (user_id!("@pia:peer.test"), user_id!("@lou:peer.test"));
        let changed = |since, to| lists.changed_between(Offset::new(since), Offset::new(to));
        note(&lists, 1, pia, None);
        let list = Some(DeviceList::default());
        let changed_at = Some(Offset::new(1));
        let body = PeerDevices { user_id: pia.to_owned(), changed: false, changed_at, list };
        lists.note(Offset::new(2), body.clone());
        assert_eq!((changed(0, 2), changed(1, 2)), ([pia.to_owned()].into(), BTreeSet::new()));
        note(&lists, 3, lou, Some(1));
        assert_eq!(changed(0, 9), [pia.to_owned(), lou.to_owned()].into());
        lists.suspect_all(Offset::new(4));
        assert_eq!((changed(0, 3).len(), changed(3, 4).len()), (0, 2));
        // A list of an earlier version says nothing of it.
        lists.note(Offset::new(5), PeerDevices { changed_at: None, ..body.clone() });
        assert_eq!(changed(0, 9), [lou.to_owned()].into());
        // No record tells of what comes after it.
        lists.note(Offset::new(6), PeerDevices { changed_at: Some(Offset::MAX), ..body });
        assert_eq!(changed(5, 6), [pia.to_owned()].into());
    }

    #[test]
    fn the_lists_that_were_not_heard_of_longest_are_forgotten() {
        let lists = DeviceLists::default();
        let first = user_id!("@first:peer.test");
        note(&lists, 1, first, Some(1));
        note(&lists, 2, first, None);
        for number in 1..=limits::DEVICE_LISTS as u64 {
            let user_id = UserId::parse(format!("@u{number}:peer.test")).expect("a user");
            let gone = note(&lists, 2 + number, &user_id, Some(1));
            let is_last = number == limits::DEVICE_LISTS as u64;
            assert_eq!(gone, if is_last { vec![2, 1] } else { Vec::new() });
        }
        assert_eq!(lists.get(first), None);
        assert!(!lists.changed_between(Offset::ZERO, Offset::MAX).contains(first));
    }
}
