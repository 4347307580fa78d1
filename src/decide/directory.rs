//! The directory: aliases, and the listed rooms.

use ruma::{
    CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedRoomAliasId, OwnedRoomId, OwnedUserId,
    RoomId, UserId,
    events::{StateEventType, TimelineEventType},
};

use super::{Commit, Membership, NewEvent, Proposal, Refusal, not_in_it};
use logcabin_record::{
    Offset, Stream,
    command::{AliasRemove, AliasSet, RoomNetwork, RoomVisibility},
};

/// Point an alias at a room.
#[derive(Clone, Debug)]
pub struct SetAlias {
    pub alias: OwnedRoomAliasId,
    pub room_id: OwnedRoomId,
    pub sender: OwnedUserId,
    /// Whether an application service does it, in its namespace. It then needs no permission in the
    /// room.
    pub of_service: bool,
}

impl Proposal for SetAlias {
    type Outcome = ();

    // The room is the busier of the two streams: a decision that merely depended on it would be
    // repeated whenever somebody sends a message.
    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        commit.rests_on(Stream::alias(&self.alias));
        let state = &commit.env.state;
        if state.aliases.get(&self.alias, Offset::MAX).is_some() {
            return Err(Refusal::AliasInUse(self.alias.to_string()));
        }
        let room = state.rooms.get(&self.room_id);
        let room = room.ok_or_else(not_in_it)?;
        if !self.of_service && !room.is_joined(&self.sender, Offset::MAX) {
            return Err(not_in_it());
        }
        commit.env.quotas.alias(state, &self.sender, &self.room_id)?;
        commit.append(
            Stream::alias(&self.alias),
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
    pub alias: OwnedRoomAliasId,
    /// The room that it points at.
    pub room_id: OwnedRoomId,
    pub sender: OwnedUserId,
    /// Whether an application service does it, in its namespace. It then needs no permission in the
    /// room.
    pub of_service: bool,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for RemoveAlias {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let env = commit.env;
        commit.rests_on(Stream::alias(&self.alias));
        let target = env.state.aliases.get(&self.alias, Offset::MAX);
        let target = target
            .filter(|target| target.room_id == self.room_id)
            .ok_or_else(|| Refusal::NotFound("There is no such alias.".to_owned()))?;
        // Its creator may remove it, and so may users who can set the room's canonical alias.
        let room = commit.room(&self.room_id)?;
        let member = room.membership(env, &self.sender)? == Some(Membership::Join);
        let may_name = member
            && room.powers(env)?.may_send_state(&self.sender, StateEventType::RoomCanonicalAlias);
        if target.creator != self.sender && !may_name && !self.of_service {
            return Err(Refusal::Forbidden("You may not remove this alias.".to_owned()));
        }
        commit.append(Stream::alias(&self.alias), AliasRemove { alias: self.alias.clone() });
        if may_name {
            let gone = |alias: &str| alias == self.alias.as_str();
            disclaim(commit, &self.room_id, gone, &self.sender, self.ts)?;
        }
        Ok(())
    }
}

/// Removes the aliases in `gone` from a room's canonical alias event.
pub(super) fn disclaim(
    commit: &mut Commit<'_>,
    room_id: &RoomId,
    gone: impl Fn(&str) -> bool,
    sender: &UserId,
    ts: MilliSecondsSinceUnixEpoch,
) -> Result<(), Refusal> {
    let env = commit.env;
    let kind = StateEventType::RoomCanonicalAlias;
    let Some(event) = commit.room(room_id)?.shown_content(env, &kind, "")? else { return Ok(()) };
    let mut content = event.clone();
    let is_gone = |alias: &CanonicalJsonValue| alias.as_str().is_some_and(&gone);
    if content.get("alias").is_some_and(is_gone) {
        content.remove("alias");
    }
    if let Some(CanonicalJsonValue::Array(aliases)) = content.get_mut("alt_aliases") {
        aliases.retain(|alias| !is_gone(alias));
    }
    if content != event {
        let event_type = TimelineEventType::RoomCanonicalAlias;
        commit.add_event(NewEvent::state(event_type, "", content, sender, ts))?;
    }
    Ok(())
}

/// List a room in the public directory, or remove it. Administrators need not be in the room.
#[derive(Clone, Debug)]
pub struct SetVisibility {
    pub room_id: OwnedRoomId,
    pub sender: OwnedUserId,
    /// Whether the directory lists it.
    pub public: bool,
}

impl Proposal for SetVisibility {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let env = commit.env;
        let room = commit.room(&self.room_id)?;
        let administers = env.state.accounts.standing(&self.sender).is_some_and(|is| is.admin);
        let member = room.membership(env, &self.sender)? == Some(Membership::Join);
        let alias = StateEventType::RoomCanonicalAlias;
        let moderates = member && room.powers(env)?.may_send_state(&self.sender, alias);
        if !administers && !moderates {
            return Err(Refusal::Forbidden("You may not list this room.".to_owned()));
        }
        let (room_id, public) = (self.room_id.clone(), self.public);
        commit.append(self.stream(), RoomVisibility { room_id, public });
        Ok(())
    }
}

/// List a room for a network of an application service, or remove it.
#[derive(Clone, Debug)]
pub struct SetNetwork {
    pub room_id: OwnedRoomId,
    pub service: String,
    /// The service's id of the network.
    pub network_id: String,
    /// Whether the directory lists the room there.
    pub listed: bool,
}

impl Proposal for SetNetwork {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { room_id, service, network_id, listed } = self.clone();
        let rooms = &commit.env.state.rooms;
        if rooms.get(&room_id).is_none() {
            return Err(Refusal::NotFound("There is no such room.".to_owned()));
        }
        let there = rooms.of_network(&service, &network_id);
        if there.iter().any(|room| room.id == room_id) != listed {
            commit.append(self.stream(), RoomNetwork { room_id, service, network_id, listed });
        }
        Ok(())
    }
}
