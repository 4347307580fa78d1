//! Rooms that are taken out of the server.

use std::collections::BTreeSet;

use ruma::OwnedRoomId;

use super::{Commit, Membership, Proposal, Refusal};
use crate::record::{
    Offset, Stream,
    command::{MediaEnd, MediaRemove, RoomPurge},
    runs,
};

/// The most files in one record.
const FILES: usize = 1000;

/// The most runs of records in one `room.purge`: they fit into a payload.
const RUNS: usize = 4000;

/// Take a room out of the server, to which nobody is joined.
#[derive(Clone, Debug)]
pub struct PurgeRoom {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The files that nothing but the room names.
    pub media_ids: Vec<String>,
    /// Records in which something is said of the room.
    pub said: Vec<Offset>,
    /// Why.
    pub reason: Option<String>,
}

impl Proposal for PurgeRoom {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Some(room) = commit.env.state.rooms.get(&self.room_id) else {
            return Err(Refusal::NotFound("There is no such room.".to_owned()));
        };
        if !room.members(Membership::Join, Offset::MAX).is_empty() {
            return Err(Refusal::Forbidden("Somebody is joined to the room.".to_owned()));
        }
        let state = &commit.env.state;
        let mut records: BTreeSet<Offset> = self.said.iter().copied().collect();
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
        for media_ids in self.media_ids.chunks(FILES) {
            let why = MediaEnd::Room { room_id: self.room_id.clone() };
            let remove = MediaRemove { media_ids: media_ids.to_vec(), why };
            commit.append(Stream::server(), remove);
        }
        Ok(())
    }
}
