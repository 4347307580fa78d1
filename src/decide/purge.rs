//! Purging rooms.

use std::collections::BTreeSet;

use ruma::{OwnedRoomId, RoomId};

use super::{
    Commit, Membership, Proposal, Refusal,
    erasure::{address_of_files, each_since, files_in},
};
use logcabin_record::{
    Holds, Offset, Record, Stream,
    command::{Body as _, MediaEnd, MediaRemove, RoomEvent, RoomPurge},
    runs,
};

/// The most files in one record.
const FILES: usize = 1000;

/// The most ranges of records in one `room.purge`: they fit into a payload.
const RUNS: usize = 4000;

/// Purge a room without joined members.
#[derive(Clone, Debug)]
pub struct PurgeRoom {
    pub room_id: OwnedRoomId,
    /// The files that only the room refers to.
    pub media_ids: Vec<String>,
    /// Other records that contain data of the room.
    pub said: Vec<Offset>,
    /// The last record that was looked at for `media_ids` and `said`.
    pub looked: Offset,
    pub reason: Option<String>,
}

impl Proposal for PurgeRoom {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    // What names one of its files may be on any stream.
    fn is_exclusive(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Some(room) = commit.env.state.rooms.get(&self.room_id) else {
            return Err(Refusal::NotFound("There is no such room.".to_owned()));
        };
        if !room.members(Membership::Join, Offset::MAX).is_empty() {
            return Err(Refusal::Forbidden("Somebody is joined to the room.".to_owned()));
        }
        let mut records: BTreeSet<Offset> = self.said.iter().copied().collect();
        let mut media_ids: BTreeSet<String> = self.media_ids.iter().cloned().collect();
        let (stream, address) = (self.stream(), address_of_files(commit.env));
        each_since(commit.env, self.looked, |record| {
            if record.header.stream != stream {
                for named in files_in(record, &address) {
                    media_ids.remove(&named);
                }
            }
            if is_said_of(record, &self.room_id) {
                records.insert(record.offset());
            }
        })?;
        let state = &commit.env.state;
        records.extend(state.aliases.records_of(&self.room_id));
        records.extend(state.reports.of_room(&self.room_id));
        let records = runs(records);
        let mut pieces = records.chunks(RUNS).peekable();
        loop {
            let records = pieces.next().unwrap_or_default().to_vec();
            let more = pieces.peek().is_some();
            let (room_id, reason) = (self.room_id.clone(), self.reason.clone());
            commit.append(self.stream(), RoomPurge { room_id, records, more, reason });
            if !more {
                break;
            }
        }
        let media_ids: Vec<String> = media_ids.into_iter().collect();
        for media_ids in media_ids.chunks(FILES) {
            let why = MediaEnd::Room { room_id: self.room_id.clone() };
            let remove = MediaRemove { media_ids: media_ids.to_vec(), why };
            commit.append(Stream::server(), remove);
        }
        Ok(())
    }
}

/// Whether a record of another stream contains data of the room.
pub fn is_said_of(record: &Record, room_id: &RoomId) -> bool {
    // Most records are events, and what passes.
    if record.header.ephemeral || &*record.header.kind == RoomEvent::KIND.name {
        return false;
    }
    let Ok(Some(command)) = record.command() else { return false };
    match command.holds() {
        Holds::Room(of) | Holds::Report { room_id: Some(of), .. } => of == room_id,
        _ => false,
    }
}
