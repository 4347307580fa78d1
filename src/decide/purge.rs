//! Rooms that are taken out of the server.

use ruma::OwnedRoomId;

use super::{Membership, Proposal, Refusal, Turn};
use crate::record::{
    Offset, Stream,
    command::{MediaEnd, MediaRemove, RoomPurge},
};

/// The most files in one record.
const FILES: usize = 1000;

/// Take a room out of the server, to which nobody is joined.
#[derive(Clone, Debug)]
pub struct PurgeRoom {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The files that nothing but the room names.
    pub media_ids: Vec<String>,
    /// Why.
    pub reason: Option<String>,
}

impl Proposal for PurgeRoom {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let Some(room) = turn.env.state.rooms.get(&self.room_id) else {
            return Err(Refusal::NotFound("There is no such room.".to_owned()));
        };
        if !room.members(Membership::Join, Offset::MAX).is_empty() {
            return Err(Refusal::Forbidden("Somebody is joined to the room.".to_owned()));
        }
        let (room_id, reason) = (self.room_id.clone(), self.reason.clone());
        turn.append(self.stream(), RoomPurge { room_id, reason });
        for media_ids in self.media_ids.chunks(FILES) {
            let why = MediaEnd::Room { room_id: self.room_id.clone() };
            let remove = MediaRemove { media_ids: media_ids.to_vec(), why };
            turn.append(Stream::server(), remove);
        }
        Ok(())
    }
}
