//! Backups of room keys (client-server API, "Server-side key backups"): which keys each holds and where
//! they are in the log.

use std::{collections::BTreeMap, sync::Arc};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::{
    Offset,
    command::{BackedUpKey, KeyBackupDelete, KeyBackupPut, KeyBackupRemove, KeyBackupSet},
};

/// The backups of one user.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UserBackups {
    /// Those that are not deleted, by version.
    backups: BTreeMap<u64, Backup>,
    /// The highest version there ever was.
    last: u64,
}

/// One backup.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Backup {
    /// The algorithm that its keys are encrypted with.
    pub algorithm: String,
    /// The record that holds what vouches for it.
    pub set: Offset,
    /// How many keys it holds.
    pub count: u64,
    /// The last record that changed its keys.
    pub changed: Offset,
    rooms: BTreeMap<OwnedRoomId, BTreeMap<Box<str>, StoredKey>>,
}

/// What is known of a key in a backup, and where it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StoredKey {
    /// The record that holds it.
    pub record: Offset,
    first_message_index: u64,
    forwarded_count: u64,
    is_verified: bool,
}

impl StoredKey {
    fn new(record: Offset, key: &BackedUpKey) -> Self {
        let BackedUpKey { first_message_index, forwarded_count, is_verified, session_data: _ } =
            *key;
        Self { record, first_message_index, forwarded_count, is_verified }
    }

    /// Whether `key` is to take the place of this one: a verified key of one that is not, then one that
    /// decrypts more, then one that came a shorter way.
    #[must_use]
    pub fn gives_way_to(&self, key: &BackedUpKey) -> bool {
        let rank = |is_verified: bool, first: u64, forwarded: u64| (!is_verified, first, forwarded);
        let new = rank(key.is_verified, key.first_message_index, key.forwarded_count);
        new < rank(self.is_verified, self.first_message_index, self.forwarded_count)
    }
}

impl UserBackups {
    /// The version of the backup that is in use: the newest.
    #[must_use]
    pub fn current(&self) -> Option<u64> {
        self.backups.keys().next_back().copied()
    }

    /// The version that the next backup has.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.last + 1
    }

    /// All of them, by version.
    pub fn all(&self) -> impl Iterator<Item = (u64, &Backup)> {
        self.backups.iter().map(|(version, backup)| (*version, backup))
    }

    /// The backup of this version.
    #[must_use]
    pub fn get(&self, version: u64) -> Option<&Backup> {
        self.backups.get(&version)
    }
}

impl Backup {
    /// The key of a session.
    #[must_use]
    pub fn key(&self, room_id: &RoomId, session_id: &str) -> Option<&StoredKey> {
        self.rooms.get(room_id)?.get(session_id)
    }

    /// Where the keys are of `room_id` (none: of all rooms) and `session_id` (none: of all sessions).
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
}

/// The backups of all users.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Backups {
    #[serde(with = "kept::by_key")]
    users: DashMap<OwnedUserId, Arc<RwLock<UserBackups>>>,
}

impl Backups {
    /// The backups of `user_id`.
    #[must_use]
    pub fn get(&self, user_id: &UserId) -> Option<Arc<RwLock<UserBackups>>> {
        self.users.get(user_id).map(|backups| Arc::clone(&backups))
    }

    /// A user who was erased has none, and never had.
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
            .or_insert_with(|| Backup { changed: offset, ..Backup::default() });
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
                    if room.insert(session_id.into(), key).is_none() {
                        backup.count += 1;
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
        });
    }

    fn change(&self, user_id: &UserId, version: u64, change: impl FnOnce(&mut Backup)) {
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

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn key(is_verified: bool, first_message_index: u64, forwarded_count: u64) -> BackedUpKey {
        let session_data = RawValue::from_string("{}".to_owned()).unwrap();
        BackedUpKey { first_message_index, forwarded_count, is_verified, session_data }
    }

    #[test]
    fn only_a_better_key_takes_the_place_of_another() {
        // From the best to the worst.
        let ranked = [key(true, 0, 0), key(true, 0, 3), key(true, 5, 0), key(false, 0, 0)];
        for (a, better) in ranked.iter().enumerate() {
            for (b, worse) in ranked.iter().enumerate() {
                let stored = StoredKey::new(Offset::new(1), worse);
                assert_eq!(stored.gives_way_to(better), a < b, "{better:?} for {worse:?}");
            }
        }
    }
}
