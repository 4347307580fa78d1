//! Purges of the history of rooms: what was sent before some record is removed, but for state.

use ruma::OwnedRoomId;

use super::{Commit, Proposal, Refusal};
use logcabin_record::{
    Offset, Stream,
    command::{EventsEnd, RoomErase, RoomPurgeHistory, RoomPurgeHistoryFinish},
};

/// Begin to purge the history of a room. The caller does the rest.
#[derive(Clone, Debug)]
pub struct BeginHistoryPurge(pub RoomPurgeHistory);

impl Proposal for BeginHistoryPurge {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.0.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let state = &commit.env.state;
        if state.rooms.get(&self.0.room_id).is_none() {
            return Err(Refusal::NotFound("There is no such room.".to_owned()));
        }
        if state.history_purges.is_under_way(&self.0.room_id) {
            let why = "The history of this room is being purged already.";
            return Err(Refusal::InvalidParam(why.to_owned()));
        }
        commit.append(self.stream(), self.0.clone());
        Ok(())
    }
}

/// Remove events, which are no state, for a purge.
#[derive(Clone, Debug)]
pub struct RemoveHistory {
    /// The id of the purge.
    pub id: String,
    pub room_id: OwnedRoomId,
    /// At most [`AT_ONCE`](super::erasure::AT_ONCE), ascending.
    pub events: Vec<Offset>,
}

impl Proposal for RemoveHistory {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Some(room) = commit.env.state.rooms.get(&self.room_id) else { return Ok(()) };
        // Others may have expired meanwhile.
        let events = room.still_messages(&self.events);
        if !events.is_empty() {
            let (room_id, why) = (self.room_id.clone(), EventsEnd::Purge { id: self.id.clone() });
            commit.append(self.stream(), RoomErase { room_id, events, why });
        }
        Ok(())
    }
}

/// Record the end of such a purge.
#[derive(Clone, Debug)]
pub struct FinishHistoryPurge(pub RoomPurgeHistoryFinish);

impl Proposal for FinishHistoryPurge {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.0.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let purge = commit.env.state.history_purges.get(&self.0.id);
        if purge.is_some_and(|purge| purge.ended.is_none()) {
            commit.append(self.stream(), self.0.clone());
        }
        Ok(())
    }
}
