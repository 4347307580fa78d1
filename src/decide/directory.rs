//! The directory: aliases, and which rooms are listed.

use ruma::{OwnedRoomAliasId, OwnedRoomId, OwnedUserId, events::StateEventType};

use super::{Membership, Proposal, Refusal, Turn};
use crate::record::{
    Offset, Stream,
    command::{AliasRemove, AliasSet, RoomVisibility},
};

/// Point an alias at a room.
#[derive(Clone, Debug)]
pub struct SetAlias {
    /// The alias.
    pub alias: OwnedRoomAliasId,
    /// The room.
    pub room_id: OwnedRoomId,
    /// Who does it.
    pub sender: OwnedUserId,
}

impl Proposal for SetAlias {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::alias(&self.alias)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        turn.rests_on(Stream::room(&self.room_id));
        let state = &turn.env.state;
        if state.aliases.get(&self.alias, Offset::MAX).is_some() {
            return Err(Refusal::AliasInUse(self.alias.to_string()));
        }
        let room = state.rooms.get(&self.room_id);
        let room = room.ok_or_else(|| Refusal::NotFound("There is no such room.".to_owned()))?;
        if !room.is_joined(&self.sender, Offset::MAX) {
            return Err(Refusal::Forbidden("You are not in this room.".to_owned()));
        }
        turn.append(
            self.stream(),
            AliasSet {
                alias: self.alias.clone(),
                room_id: self.room_id.clone(),
                creator: self.sender.clone(),
            },
        );
        Ok(())
    }
}

/// Remove an alias.
#[derive(Clone, Debug)]
pub struct RemoveAlias {
    /// The alias.
    pub alias: OwnedRoomAliasId,
    /// Who does it.
    pub sender: OwnedUserId,
}

impl Proposal for RemoveAlias {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::alias(&self.alias)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let env = turn.env;
        let target = env.state.aliases.get(&self.alias, Offset::MAX);
        let target =
            target.ok_or_else(|| Refusal::NotFound("There is no such alias.".to_owned()))?;
        // Its maker may remove it, and those who may set the room's canonical alias.
        if target.creator != self.sender {
            turn.rests_on(Stream::room(&target.room_id));
            let room = turn.room(&target.room_id)?;
            let member = room.membership(env, &self.sender)? == Some(Membership::Join);
            if !member
                || !room
                    .powers(env)?
                    .may_send_state(&self.sender, StateEventType::RoomCanonicalAlias)
            {
                return Err(Refusal::Forbidden("You may not remove this alias.".to_owned()));
            }
        }
        turn.append(self.stream(), AliasRemove { alias: self.alias.clone() });
        Ok(())
    }
}

/// List a room in the public directory, or take it off.
#[derive(Clone, Debug)]
pub struct SetVisibility {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Who does it.
    pub sender: OwnedUserId,
    /// Whether the directory lists it.
    pub public: bool,
}

impl Proposal for SetVisibility {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let env = turn.env;
        let room = turn.room(&self.room_id)?;
        let member = room.membership(env, &self.sender)? == Some(Membership::Join);
        if !member
            || !room.powers(env)?.may_send_state(&self.sender, StateEventType::RoomCanonicalAlias)
        {
            return Err(Refusal::Forbidden("You may not list this room.".to_owned()));
        }
        let (room_id, public) = (self.room_id.clone(), self.public);
        turn.append(self.stream(), RoomVisibility { room_id, public });
        Ok(())
    }
}
