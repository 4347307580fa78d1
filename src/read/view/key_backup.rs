//! The room keys in a backup.

use std::collections::BTreeMap;

use ruma::{OwnedRoomId, RoomId, UserId};

use crate::events::EventStore;
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::{
    Command, Offset,
    command::{BackedUpKey, KeyBackupPut},
};
use logcabin_state::State;

/// Keys by room and session.
pub type RoomKeys = BTreeMap<OwnedRoomId, BTreeMap<String, BackedUpKey>>;

/// The keys in a user's backup of `room_id` (`None`: all rooms) and `session_id` (`None`: all
/// sessions); `None` if there is no such backup. Each record is read once.
pub fn room_keys(
    state: &State,
    events: &EventStore,
    user_id: &UserId,
    version: u64,
    (room_id, session_id): (Option<&RoomId>, Option<&str>),
) -> Result<Option<RoomKeys>, ReadError> {
    let mut by_record: BTreeMap<Offset, Vec<(OwnedRoomId, String)>> = BTreeMap::new();
    {
        let Some(backups) = state.key_backups.get(user_id) else { return Ok(None) };
        let backups = backups.read();
        let Some(backup) = backups.get(version) else { return Ok(None) };
        for (room_id, session_id, record) in backup.keys(room_id, session_id) {
            by_record.entry(record).or_default().push((room_id.to_owned(), session_id.to_owned()));
        }
    }
    let mut rooms = RoomKeys::new();
    for (record, keys) in by_record {
        let Some(Command::KeyBackupPut(KeyBackupPut { rooms: mut put, .. })) =
            events.command(record)?
        else {
            continue;
        };
        for (room_id, session_id) in keys {
            let key = put.get_mut(&room_id).and_then(|room| room.remove(&session_id));
            if let Some(key) = key {
                rooms.entry(room_id).or_default().insert(session_id, key);
            }
        }
    }
    Ok(Some(rooms))
}

/// A key with its room and session.
pub type PlacedKey = (OwnedRoomId, String, BackedUpKey);

/// The next keys of a backup after `after`, a room and a session, in order: as many as the limits
/// allow, none at the end. `None` if there is no such backup.
pub fn next_room_keys(
    state: &State,
    events: &EventStore,
    user_id: &UserId,
    version: u64,
    room_id: Option<&RoomId>,
    after: Option<&(OwnedRoomId, String)>,
) -> Result<Option<Vec<PlacedKey>>, ReadError> {
    let mut by_record: BTreeMap<Offset, Vec<(OwnedRoomId, String)>> = BTreeMap::new();
    {
        let Some(backups) = state.key_backups.get(user_id) else { return Ok(None) };
        let backups = backups.read();
        let Some(backup) = backups.get(version) else { return Ok(None) };
        let mut bytes = 0;
        for (room_id, session_id, key) in backup.keys_after(room_id, after) {
            bytes += key.bytes as usize;
            by_record.entry(key.record).or_default().push((room_id.clone(), session_id.to_owned()));
            if bytes >= limits::PAGE_BYTES || by_record.len() >= limits::KEY_BACKUP_RECORDS {
                break;
            }
        }
    }
    let mut found = Vec::new();
    for (record, keys) in by_record {
        let Some(Command::KeyBackupPut(KeyBackupPut { rooms: mut put, .. })) =
            events.command(record)?
        else {
            return Err(ReadError::Missing(record));
        };
        for (room_id, session_id) in keys {
            let key = put.get_mut(&room_id).and_then(|room| room.remove(&session_id));
            let key = key.ok_or(ReadError::Missing(record))?;
            found.push((room_id, session_id, key));
        }
    }
    found.sort_unstable_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    Ok(Some(found))
}
