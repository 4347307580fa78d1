//! What passes: receipts and typing.

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId};

use super::{Proposal, Refusal, Turn};
use crate::record::{
    Offset, Stream,
    command::{RoomReceipt, RoomTyping},
};

/// Move a receipt.
#[derive(Clone, Debug)]
pub struct SetReceipt {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Whose receipt.
    pub user_id: OwnedUserId,
    /// `m.read` or `m.read.private`.
    pub receipt_type: String,
    /// Where to.
    pub event_id: OwnedEventId,
    /// The thread, as the client named it.
    pub thread_id: Option<String>,
    /// When, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Proposal for SetReceipt {
    type Outcome = ();

    // The user's stream, not the room's: a receipt has no bearing on what may be sent.
    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let env = turn.env;
        let room = env.state.rooms.get(&self.room_id);
        let room = room.filter(|room| room.is_joined(&self.user_id, Offset::MAX));
        let room =
            room.ok_or_else(|| Refusal::Forbidden("You are not in this room.".to_owned()))?;
        let event = env.events.find(&env.state, &self.event_id)?;
        let event = event.filter(|event| event.room_id == self.room_id);
        let event =
            event.ok_or_else(|| Refusal::NotFound("There is no such event here.".to_owned()))?;
        let key = (self.user_id.clone(), self.receipt_type.clone(), self.thread_id.clone());
        if let Some(before) = room.receipt(&key)
            && let Some(before) = env.events.find(&env.state, &before.event_id)?
            && before.offset >= event.offset
        {
            return Ok(());
        }
        turn.append(
            Stream::ephemeral(&self.room_id),
            RoomReceipt {
                room_id: self.room_id.clone(),
                user_id: self.user_id.clone(),
                receipt_type: self.receipt_type.clone(),
                event_id: self.event_id.clone(),
                thread_id: self.thread_id.clone(),
                ts: self.ts,
            },
        );
        Ok(())
    }
}

/// Start or stop typing.
#[derive(Clone, Debug)]
pub struct SetTyping {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Who types.
    pub user_id: OwnedUserId,
    /// Until when, in milliseconds since the Unix epoch; 0 stops.
    pub until_ms: u64,
    /// Only if the typing there is ends at this time: for the timer that ends it.
    pub only_if_until: Option<u64>,
}

impl Proposal for SetTyping {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let room = turn.env.state.rooms.get(&self.room_id);
        let room = room.filter(|room| room.is_joined(&self.user_id, Offset::MAX));
        let room =
            room.ok_or_else(|| Refusal::Forbidden("You are not in this room.".to_owned()))?;
        let (typing, _) = room.typing();
        let until = typing.iter().find(|(user_id, _)| *user_id == self.user_id).map(|(_, t)| *t);
        let same = until.unwrap_or(0) == self.until_ms;
        if same || self.only_if_until.is_some_and(|only| until != Some(only)) {
            return Ok(());
        }
        turn.append(
            Stream::ephemeral(&self.room_id),
            RoomTyping {
                room_id: self.room_id.clone(),
                user_id: self.user_id.clone(),
                until_ms: self.until_ms,
            },
        );
        Ok(())
    }
}
