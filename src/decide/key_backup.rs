//! Room key backups.

use std::collections::BTreeMap;

use ruma::{OwnedRoomId, OwnedUserId, UserId};
use serde_json::value::RawValue;

use super::{Commit, Proposal, Refusal};
use logcabin_base::limits;
use logcabin_record::{
    Stream,
    command::{BackedUpKey, KeyBackupDelete, KeyBackupPut, KeyBackupRemove, KeyBackupSet},
};
use logcabin_state::key_backups::{KeyBackup, UserKeyBackups, key_bytes};

fn no_backup() -> Refusal {
    Refusal::NotFound("There is no such backup.".to_owned())
}

/// Calls `look` with a backup and all of its user's backups.
fn with_backup<T>(
    commit: &Commit<'_>,
    user_id: &UserId,
    version: u64,
    look: impl FnOnce(&UserKeyBackups, &KeyBackup) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let backups = commit.env.state.key_backups.get(user_id).ok_or_else(no_backup)?;
    let backups = backups.read();
    look(&backups, backups.get(version).ok_or_else(no_backup)?)
}

/// Create a backup, or change its authentication data.
#[derive(Debug)]
pub struct SetBackup {
    pub user_id: OwnedUserId,
    /// The backup to change; `None` creates a new one.
    pub version: Option<u64>,
    /// The algorithm, which cannot change later.
    pub algorithm: String,
    /// The data of the algorithm.
    pub auth_data: Box<RawValue>,
}

impl Proposal for SetBackup {
    /// The backup's version.
    type Outcome = u64;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<u64, Refusal> {
        let backups = commit.env.state.key_backups.get(&self.user_id);
        let backups = backups.as_ref().map(|backups| backups.read());
        let version = match self.version {
            Some(version) => {
                let backup = backups.as_ref().and_then(|backups| backups.get(version));
                if backup.ok_or_else(no_backup)?.algorithm != self.algorithm {
                    return Err(Refusal::InvalidParam(
                        "The algorithm of a backup does not change.".to_owned(),
                    ));
                }
                version
            }
            None => backups.as_ref().map_or(1, |backups| backups.next()),
        };
        drop(backups);
        if self.version.is_none() {
            commit.env.quotas.key_backup(&commit.env.state, &self.user_id)?;
        }
        commit.append(
            self.stream(),
            KeyBackupSet {
                user_id: self.user_id.clone(),
                version,
                algorithm: self.algorithm.clone(),
                auth_data: self.auth_data.clone(),
            },
        );
        Ok(version)
    }
}

/// Delete a backup with its keys.
#[derive(Debug)]
pub struct DeleteBackup {
    pub user_id: OwnedUserId,
    /// The backup.
    pub version: u64,
}

impl Proposal for DeleteBackup {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        with_backup(commit, &self.user_id, self.version, |_, _| Ok(()))?;
        let (user_id, version) = (self.user_id.clone(), self.version);
        commit.append(self.stream(), KeyBackupDelete { user_id, version });
        Ok(())
    }
}

/// Put keys into a backup, where they are better than the stored ones.
#[derive(Debug)]
pub struct PutKeys {
    pub user_id: OwnedUserId,
    /// The backup, which must be the newest.
    pub version: u64,
    /// The keys, by room and session.
    pub rooms: BTreeMap<OwnedRoomId, BTreeMap<String, BackedUpKey>>,
}

impl Proposal for PutKeys {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let better = with_backup(commit, &self.user_id, self.version, |backups, backup| {
            match backups.current().filter(|current| *current != self.version) {
                Some(current) => Err(Refusal::WrongBackup { current }),
                None => Ok(self.better_than(backup)),
            }
        })?;
        let BetterKeys { puts, more, more_bytes } = better;
        commit.env.quotas.room_keys(&commit.env.state, &self.user_id, more, more_bytes)?;
        for put in puts {
            commit.append(self.stream(), put);
        }
        Ok(())
    }
}

/// Keys that are better than those in a backup.
struct BetterKeys {
    /// The keys in records of bounded size.
    puts: Vec<KeyBackupPut>,
    /// How many keys the backup grows by.
    more: usize,
    /// How many bytes the backup grows by.
    more_bytes: i64,
}

impl PutKeys {
    fn better_than(&self, backup: &KeyBackup) -> BetterKeys {
        let empty = || KeyBackupPut {
            user_id: self.user_id.clone(),
            version: self.version,
            rooms: BTreeMap::new(),
        };
        let (mut puts, mut put, mut bytes) = (Vec::new(), empty(), 0);
        let (mut more, mut more_bytes) = (0, 0);
        for (room_id, sessions) in &self.rooms {
            for (session_id, key) in sessions {
                let known = backup.key(room_id, session_id);
                if known.is_some_and(|known| !known.gives_way_to(key)) {
                    continue;
                }
                more += usize::from(known.is_none());
                let before = known.map_or(0, |known| known.bytes);
                more_bytes += i64::from(key_bytes(key)) - i64::from(before);
                // With the surrounding JSON; the room is counted for each key.
                let size = key.session_data.get().len() + 8 * limits::IDENTIFIER_BYTES;
                if bytes + size > limits::KEY_BACKUP_RECORD_BYTES && bytes > 0 {
                    puts.push(std::mem::replace(&mut put, empty()));
                    bytes = 0;
                }
                bytes += size;
                let room = put.rooms.entry(room_id.clone()).or_default();
                room.insert(session_id.clone(), key.clone());
            }
        }
        if !put.rooms.is_empty() {
            puts.push(put);
        }
        BetterKeys { puts, more, more_bytes }
    }
}

/// Remove keys from a backup.
#[derive(Debug)]
pub struct RemoveKeys {
    pub user_id: OwnedUserId,
    /// The backup.
    pub version: u64,
    /// The room; `None`: all.
    pub room_id: Option<OwnedRoomId>,
    /// The session; `None`: all.
    pub session_id: Option<String>,
}

impl Proposal for RemoveKeys {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let holds_any = with_backup(commit, &self.user_id, self.version, |_, backup| {
            let mut keys = backup.keys(self.room_id.as_deref(), self.session_id.as_deref());
            Ok(keys.next().is_some())
        })?;
        if holds_any {
            commit.append(
                self.stream(),
                KeyBackupRemove {
                    user_id: self.user_id.clone(),
                    version: self.version,
                    room_id: self.room_id.clone(),
                    session_id: self.session_id.clone(),
                },
            );
        }
        Ok(())
    }
}
