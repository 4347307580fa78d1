//! Room key backups (client-server API, "Server-side key backups"): the keys of each and their
//! offsets in the log.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::{serializers, usage::Totals};
use logcabin_record::{
    Offset,
    command::{BackedUpKey, KeyBackupDelete, KeyBackupPut, KeyBackupRemove, KeyBackupSet},
};

/// The backups of one user.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UserKeyBackups {
    /// The existing backups, by version.
    backups: BTreeMap<u64, KeyBackup>,
    /// The highest version so far.
    last: u64,
}

/// One backup.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KeyBackup {
    /// The algorithm that its keys are encrypted with.
    pub algorithm: String,
    /// The record with its `auth_data`.
    pub set: Offset,
    /// The number of its keys.
    pub count: u64,
    /// The size of these keys, in bytes.
    pub bytes: u64,
    /// The last record that changed its keys.
    pub changed: Offset,
    rooms: BTreeMap<OwnedRoomId, BTreeMap<Box<str>, StoredKey>>,
}

/// A key in a backup: its metadata and its offset.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StoredKey {
    /// The record that holds it.
    pub record: Offset,
    first_message_index: u64,
    forwarded_count: u64,
    /// Its size.
    pub bytes: u32,
    is_verified: bool,
}

/// The size of a key: that of its encrypted data, which `limits::KEY_BYTES` limits.
pub fn key_bytes(key: &BackedUpKey) -> u32 {
    u32::try_from(key.session_data.get().len()).unwrap_or(u32::MAX)
}

impl StoredKey {
    fn new(record: Offset, key: &BackedUpKey) -> Self {
        let bytes = key_bytes(key);
        let BackedUpKey { first_message_index, forwarded_count, is_verified, session_data: _ } =
            *key;
        Self { record, first_message_index, forwarded_count, bytes, is_verified }
    }

    /// Whether `key` is better than this one: a verified key beats an unverified one, then the one
    /// that decrypts more, then the one that was forwarded less often.
    pub fn gives_way_to(&self, key: &BackedUpKey) -> bool {
        let rank = |is_verified: bool, first: u64, forwarded: u64| (!is_verified, first, forwarded);
        let new = rank(key.is_verified, key.first_message_index, key.forwarded_count);
        new < rank(self.is_verified, self.first_message_index, self.forwarded_count)
    }
}

impl UserKeyBackups {
    /// The version of the present backup: the newest.
    pub fn current(&self) -> Option<u64> {
        self.backups.keys().next_back().copied()
    }

    /// The version of the next backup.
    pub const fn next(&self) -> u64 {
        self.last + 1
    }

    /// All of them, by version.
    pub fn all(&self) -> impl Iterator<Item = (u64, &KeyBackup)> {
        self.backups.iter().map(|(version, backup)| (*version, backup))
    }

    /// The number of backups.
    pub fn len(&self) -> usize {
        self.backups.len()
    }

    /// Whether there are no backups.
    pub fn is_empty(&self) -> bool {
        self.backups.is_empty()
    }

    /// The number and size of the keys in all backups. Linear in the number of backups, which has a
    /// quota.
    pub fn kept(&self) -> Totals {
        self.backups.values().fold(Totals::default(), |sum, backup| Totals {
            count: sum.count + usize::try_from(backup.count).unwrap_or(usize::MAX),
            bytes: sum.bytes + backup.bytes,
        })
    }

    /// The backup of this version.
    pub fn get(&self, version: u64) -> Option<&KeyBackup> {
        self.backups.get(&version)
    }
}

impl KeyBackup {
    pub fn key(&self, room_id: &RoomId, session_id: &str) -> Option<&StoredKey> {
        self.rooms.get(room_id)?.get(session_id)
    }

    /// The offsets of the keys of `room_id` (`None`: of all rooms) and `session_id` (`None`: of all
    /// sessions).
    pub fn keys<'a>(
        &'a self,
        room_id: Option<&'a RoomId>,
        session_id: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a RoomId, &'a str, Offset)> {
        let rooms = self.rooms.iter().filter(move |(id, _)| room_id.is_none_or(|of| of == **id));
        rooms.flat_map(move |(room_id, sessions)| {
            let sessions = sessions.iter().map(|(id, key)| (&**id, key.record));
            let sessions = sessions.filter(move |(id, _)| session_id.is_none_or(|of| of == *id));
            sessions.map(|(session_id, record)| (&**room_id, session_id, record))
        })
    }

    /// The keys of `room_id` (`None`: of all rooms) after `after`, a room and a session, in order.
    pub fn keys_after<'a>(
        &'a self,
        room_id: Option<&'a RoomId>,
        after: Option<&'a (OwnedRoomId, String)>,
    ) -> impl Iterator<Item = (&'a OwnedRoomId, &'a str, &'a StoredKey)> {
        let first = match after {
            Some((room_id, _)) => Bound::Included(room_id.clone()),
            None => Bound::Unbounded,
        };
        let rooms = self.rooms.range::<OwnedRoomId, _>((first, Bound::Unbounded));
        let rooms = rooms.filter(move |(id, _)| room_id.is_none_or(|of| of == **id));
        rooms.flat_map(move |(room_id, sessions)| {
            let after = after.filter(|(room, _)| room == room_id);
            let first = after.map_or(Bound::Unbounded, |(_, session)| Bound::Excluded(&**session));
            let sessions = sessions.range::<str, _>((first, Bound::Unbounded));
            sessions.map(move |(session_id, key)| (room_id, &**session_id, key))
        })
    }
}

/// The backups of all users.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KeyBackups {
    #[serde(with = "serializers::by_key")]
    users: DashMap<OwnedUserId, Arc<RwLock<UserKeyBackups>>>,
}

impl KeyBackups {
    pub fn get(&self, user_id: &UserId) -> Option<Arc<RwLock<UserKeyBackups>>> {
        self.users.get(user_id).map(|backups| Arc::clone(&backups))
    }

    /// The user was erased: they have no backups, and never had.
    pub(super) fn forget(&self, user_id: &UserId) {
        self.users.remove(user_id);
    }

    pub(super) fn set(&self, offset: Offset, body: KeyBackupSet) {
        let backups = self.users.entry(body.user_id).or_default();
        let mut backups = backups.write();
        backups.last = backups.last.max(body.version);
        let backup = backups
            .backups
            .entry(body.version)
            .or_insert_with(|| KeyBackup { changed: offset, ..KeyBackup::default() });
        backup.algorithm = body.algorithm;
        backup.set = offset;
    }

    pub(super) fn delete(&self, body: &KeyBackupDelete) {
        if let Some(backups) = self.get(&body.user_id) {
            backups.write().backups.remove(&body.version);
        }
    }

    pub(super) fn put(&self, offset: Offset, body: KeyBackupPut) {
        self.change(&body.user_id, body.version, |backup| {
            backup.changed = offset;
            for (room_id, sessions) in body.rooms {
                let room = backup.rooms.entry(room_id).or_default();
                for (session_id, key) in sessions {
                    let key = StoredKey::new(offset, &key);
                    backup.bytes += u64::from(key.bytes);
                    match room.insert(session_id.into(), key) {
                        Some(before) => backup.bytes -= u64::from(before.bytes),
                        None => backup.count += 1,
                    }
                }
            }
        });
    }

    pub(super) fn remove(&self, offset: Offset, body: &KeyBackupRemove) {
        self.change(&body.user_id, body.version, |backup| {
            backup.changed = offset;
            match (&body.room_id, &body.session_id) {
                (None, _) => backup.rooms.clear(),
                (Some(room_id), None) => {
                    backup.rooms.remove(room_id);
                }
                (Some(room_id), Some(session_id)) => {
                    if let Some(room) = backup.rooms.get_mut(room_id) {
                        room.remove(&**session_id);
                        if room.is_empty() {
                            backup.rooms.remove(room_id);
                        }
                    }
                }
            }
            backup.count = backup.rooms.values().map(|sessions| sessions.len() as u64).sum();
            let keys = backup.rooms.values().flat_map(BTreeMap::values);
            backup.bytes = keys.map(|key| u64::from(key.bytes)).sum();
        });
    }

    fn change(&self, user_id: &UserId, version: u64, change: impl FnOnce(&mut KeyBackup)) {
        let Some(backups) = self.get(user_id) else { return };
        if let Some(backup) = backups.write().backups.get_mut(&version) {
            change(backup);
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let mut users: Vec<_> =
            self.users.iter().map(|e| (e.key().clone(), Arc::clone(e.value()))).collect();
        users.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (user_id, backups) in users {
            digest.add(&user_id);
            digest.add(&*backups.read());
        }
    }
}

/// The formats of earlier versions in snapshots.
pub(super) mod former {
    use super::*;

    /// Version 1, without the sizes of keys. They count as 0 until the projection has been rebuilt
    /// from the log.
    #[derive(Deserialize)]
    pub(crate) struct V1 {
        users: Vec<(OwnedUserId, Users)>,
    }

    #[derive(Deserialize)]
    struct Users {
        backups: BTreeMap<u64, OfVersion>,
        last: u64,
    }

    #[derive(Deserialize)]
    struct OfVersion {
        algorithm: String,
        set: Offset,
        count: u64,
        changed: Offset,
        rooms: BTreeMap<OwnedRoomId, BTreeMap<Box<str>, Key>>,
    }

    #[derive(Deserialize)]
    struct Key {
        record: Offset,
        first_message_index: u64,
        forwarded_count: u64,
        is_verified: bool,
    }

    impl From<V1> for KeyBackups {
        fn from(V1 { users }: V1) -> Self {
            let users = users.into_iter().map(|(user_id, Users { backups, last })| {
                let backups = backups.into_iter().map(|(version, of)| (version, of.into()));
                let of_user = UserKeyBackups { backups: backups.collect(), last };
                (user_id, Arc::new(RwLock::new(of_user)))
            });
            Self { users: users.collect() }
        }
    }

    impl From<OfVersion> for KeyBackup {
        fn from(of: OfVersion) -> Self {
            let OfVersion { algorithm, set, count, changed, rooms } = of;
            let rooms = rooms.into_iter().map(|(room_id, keys)| {
                let keys = keys.into_iter().map(|(session_id, key)| {
                    let Key { record, first_message_index, forwarded_count, is_verified } = key;
                    let bytes = 0;
                    let key = StoredKey {
                        record,
                        first_message_index,
                        forwarded_count,
                        bytes,
                        is_verified,
                    };
                    (session_id, key)
                });
                (room_id, keys.collect())
            });
            Self { algorithm, set, count, bytes: 0, changed, rooms: rooms.collect() }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn key(is_verified: bool, first_message_index: u64, forwarded_count: u64) -> BackedUpKey {
        let session_data = RawValue::from_string("{}".to_owned()).unwrap();
        BackedUpKey { first_message_index, forwarded_count, is_verified, session_data }
    }

    #[test]
    fn the_size_of_a_backup_is_the_size_of_its_keys() {
        let backups = KeyBackups::default();
        let ann: OwnedUserId = "@ann:test".try_into().unwrap();
        let room_id: OwnedRoomId = "!r:test".try_into().unwrap();
        let put = |offset: u64, session_id: &str, data: &str| {
            let session_data = RawValue::from_string(data.to_owned()).unwrap();
            let key = BackedUpKey { session_data, ..key(false, 9 - offset, 0) };
            let sessions = BTreeMap::from([(session_id.to_owned(), key)]);
            let rooms = BTreeMap::from([(room_id.clone(), sessions)]);
            let body = KeyBackupPut { user_id: ann.clone(), version: 1, rooms };
            backups.put(Offset::new(offset), body);
        };
        let auth_data = RawValue::from_string("{}".to_owned()).unwrap();
        let algorithm = "a".to_owned();
        let set = KeyBackupSet { user_id: ann.clone(), version: 1, algorithm, auth_data };
        backups.set(Offset::new(1), set);
        put(2, "one", r#"{"a":1}"#);
        put(3, "two", "{}");
        put(4, "one", r#"{"a":12}"#);
        let kept = || backups.get(&ann).unwrap().read().kept();
        assert_eq!(kept(), Totals { count: 2, bytes: 10 });
        let remove = |session_id: Option<&str>| KeyBackupRemove {
            user_id: ann.clone(),
            version: 1,
            room_id: Some(room_id.clone()),
            session_id: session_id.map(str::to_owned),
        };
        backups.remove(Offset::new(5), &remove(Some("one")));
        assert_eq!(kept(), Totals { count: 1, bytes: 2 });
        backups.remove(Offset::new(6), &remove(None));
        assert_eq!(kept(), Totals::default());
    }

    #[test]
    fn version_1_is_read_without_the_sizes_of_keys() {
        let ann: OwnedUserId = "@ann:test".try_into().unwrap();
        let room_id: OwnedRoomId = "!r:test".try_into().unwrap();
        let keys = BTreeMap::from([("session", (Offset::new(3), 5_u64, 6_u64, true))]);
        let rooms = BTreeMap::from([(room_id.clone(), keys)]);
        let backup = ("algorithm", Offset::new(2), 1_u64, Offset::new(3), rooms);
        let stored = vec![(ann.clone(), (BTreeMap::from([(7_u64, backup)]), 9_u64))];
        let stored = postcard::to_stdvec(&stored).unwrap();
        let backups = KeyBackups::from(postcard::from_bytes::<former::V1>(&stored).unwrap());
        let of_ann = backups.get(&ann).unwrap();
        let of_ann = of_ann.read();
        let backup = of_ann.get(7).unwrap();
        let found = (&*backup.algorithm, backup.set, backup.count, backup.changed, of_ann.next());
        assert_eq!(found, ("algorithm", Offset::new(2), 1, Offset::new(3), 10));
        let key = backup.key(&room_id, "session").unwrap();
        let found = (key.record, key.first_message_index, key.forwarded_count, key.is_verified);
        assert_eq!((found, key.bytes), ((Offset::new(3), 5, 6, true), 0));
        assert_eq!(of_ann.kept(), Totals { count: 1, bytes: 0 });
    }

    #[test]
    fn only_a_better_key_replaces_another() {
        // From best to worst.
        let ranked = [key(true, 0, 0), key(true, 0, 3), key(true, 5, 0), key(false, 0, 0)];
        for (a, better) in ranked.iter().enumerate() {
            for (b, worse) in ranked.iter().enumerate() {
                let stored = StoredKey::new(Offset::new(1), worse);
                assert_eq!(stored.gives_way_to(better), a < b, "{better:?} for {worse:?}");
            }
        }
    }
}
