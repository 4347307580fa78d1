//! Keys that the source removed from backups after they were copied.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    hash::{BuildHasher as _, RandomState},
};

use ruma::{OwnedRoomId, OwnedUserId};

use super::{convert::Made, sections::Sections};
use crate::{
    ImportError,
    facts::{self, KeyBackup},
};
use logcabin_record::{
    Command, Offset, Stream,
    command::{KeyBackupPut, KeyBackupRemove},
};

/// The backups that changed since they were copied, and the keys that the source has of them.
#[derive(Debug, Default)]
pub(super) struct ChangedBackups {
    numbers: RandomState,
    /// The versions of each user. Those that were deleted have no keys.
    versions: BTreeMap<String, BTreeSet<i64>>,
    keys: HashSet<u64>,
}

impl ChangedBackups {
    pub(super) fn add(&mut self, backup: &KeyBackup) {
        self.versions.entry(backup.user_id.clone()).or_default().insert(backup.version);
    }

    pub(super) fn users(&self) -> Vec<String> {
        self.versions.keys().cloned().collect()
    }

    fn number(&self, of: (&str, i64, &str, &str)) -> u64 {
        self.numbers.hash_one(of)
    }

    /// Notes a key that the source has.
    pub(super) fn note(&mut self, key: &facts::BackedUpKey) {
        let versions = self.versions.get(&key.user_id);
        if versions.is_some_and(|versions| versions.contains(&key.version)) {
            let of = (&*key.user_id, key.version, &*key.room_id, &*key.session_id);
            let number = self.number(of);
            self.keys.insert(number);
        }
    }

    fn has(&self, version: i64, put: &KeyBackupPut, room_id: &str, session_id: &str) -> bool {
        self.keys.contains(&self.number((put.user_id.as_str(), version, room_id, session_id)))
    }
}

/// Rooms and sessions of one version.
type Gone = BTreeSet<(OwnedRoomId, String)>;

impl Sections<'_, '_> {
    /// Removes the keys that the source has no more, of backups that have changed.
    pub(super) fn remove_gone_keys(&mut self) -> Result<(), ImportError> {
        let changed = std::mem::take(&mut self.gather.changed_backups);
        for (user_id, versions) in &changed.versions {
            // What a row that cannot be read says is still there.
            if self.gather.seen.has_bad_of(user_id) {
                continue;
            }
            let records = self.writer.known.all.backups.get(&**user_id).cloned();
            let mut gone: BTreeMap<u64, Gone> = BTreeMap::new();
            let mut of = None;
            for offset in records.into_iter().flatten() {
                let Some(put) = self.backed_up(offset)? else { continue };
                let Ok(version) = i64::try_from(put.version) else { continue };
                if !versions.contains(&version) {
                    continue;
                }
                for (room_id, sessions) in &put.rooms {
                    let gone_of = sessions
                        .keys()
                        .filter(|id| !changed.has(version, &put, room_id.as_str(), id))
                        .map(|session_id| (room_id.clone(), session_id.clone()));
                    gone.entry(put.version).or_default().extend(gone_of);
                }
                of = Some(put.user_id);
            }
            if let Some(user_id) = of {
                self.write_gone(&user_id, gone)?;
            }
        }
        Ok(())
    }

    fn backed_up(&mut self, offset: Offset) -> Result<Option<KeyBackupPut>, ImportError> {
        let record = self.writer.log.get(offset)?;
        let command = record.and_then(|record| record.command().ok().flatten());
        Ok(match command {
            Some(Command::KeyBackupPut(put)) => Some(put),
            _ => None,
        })
    }

    fn write_gone(
        &mut self,
        user_id: &OwnedUserId,
        gone: BTreeMap<u64, Gone>,
    ) -> Result<(), ImportError> {
        for (version, keys) in gone {
            for (room_id, session_id) in keys {
                let body = KeyBackupRemove {
                    user_id: user_id.clone(),
                    version,
                    room_id: Some(room_id),
                    session_id: Some(session_id),
                };
                self.gone("e2e_room_keys", Made::one(Stream::user(user_id), body))?;
            }
        }
        Ok(())
    }
}
