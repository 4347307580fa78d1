//! The room keys that a backup holds.

use std::collections::BTreeMap;

use ruma::{OwnedRoomId, RoomId, UserId};

use crate::{
    events::EventStore,
    log::ReadError,
    record::{
        Command, Offset,
        command::{BackedUpKey, KeyBackupPut},
    },
    state::State,
};

/// Keys by room and session.
pub type RoomKeys = BTreeMap<OwnedRoomId, BTreeMap<String, BackedUpKey>>;

/// The keys in a user's backup of `room_id` (none: of all rooms) and `session_id` (none: of all sessions); `None` if there
/// is no such backup. Each record is read once.
///
/// # Errors
/// When the log cannot be read.
pub fn room_keys(
    state: &State,
    events: &EventStore,
    user_id: &UserId,
    version: u64,
    (room_id, session_id): (Option<&RoomId>, Option<&str>),
) -> Result<Option<RoomKeys>, ReadError> {
    let mut by_record: BTreeMap<Offset, Vec<(OwnedRoomId, String)>> = BTreeMap::new();
    {
        let Some(backups) = state.backups.get(user_id) else { return Ok(None) };
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
