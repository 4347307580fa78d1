//! Makes a room of other homeservers known: its state where this homeserver enters it, or where a
//! branch of its graph begins whose past is not fetched.

use std::{collections::BTreeMap, sync::Arc};

use ruma::{
    OwnedEventId, OwnedRoomId, OwnedServerName, OwnedUserId, RoomVersionId, UserId,
    events::StateEventType,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    division::{fit, record_before, record_changes, record_unverified},
    fill::missing_of,
    receive::{IncomingPdu, body},
    resolve::{NoState, changes_once, differences, say_lifetimes},
};
use crate::{
    Commit, Proposal, Refusal, RoomDraft, is_local,
    member_event::{may_come, must_not_be_blocked},
    not_in_it,
};
use logcabin_base::limits;
use logcabin_log::MAX_BATCH_BYTES;
use logcabin_read::{
    branches::{Branches, PENDING, StateView},
    events::StoredEvent,
};
use logcabin_record::{
    Offset, Stream,
    command::{Outcome, Received, RoomPdu, StateBase, StateBefore, StateChange},
    division::bare,
    event_format::differ,
};

/// Make a room of other homeservers known by its `m.room.create` event, which was verified.
#[derive(Clone, Debug)]
pub struct BeginRoom {
    pub room_id: OwnedRoomId,
    pub version: RoomVersionId,
    pub event_id: OwnedEventId,
    /// The homeserver that sent it.
    pub from: OwnedServerName,
    /// The event.
    pub pdu: Box<RawValue>,
}

impl Proposal for BeginRoom {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let room = commit.env.state.rooms.get(&self.room_id);
        let rules = self.version.rules();
        let rules =
            rules.ok_or_else(|| Refusal::UnsupportedRoomVersion(self.version.to_string()))?;
        let bad = |why: &str| Refusal::BadState(format!("The room's first event {why}."));
        let env = commit.env;
        let begun = room.as_ref().filter(|room| room.is_begun());
        if let Some(room) = begun {
            if room.version != self.version {
                return Err(Refusal::BadState(format!("The room has version {}.", room.version)));
            }
            if let Some(known) = env.events.find_known(&env.state, room, &self.event_id)?
                && !differ(&known.pdu, &self.pdu, &rules)
            {
                return Ok(());
            }
        } else if room.is_none() && env.state.erasures.purged(&self.room_id).is_some() {
            return Err(Refusal::Forbidden("This room was purged from this server.".to_owned()));
        }
        let of = (&*self.room_id, &rules);
        if env.events.is_taken(&env.state, of, &self.event_id, &self.pdu)? {
            return Err(bad("has the id of another event"));
        }
        let event = StoredEvent::new(
            PENDING,
            body(&self.room_id, &self.event_id, self.pdu.clone(), None, None),
        );
        let event = event.map_err(|_| bad("is not one"))?;
        let is_first = event.event_type.to_string() == "m.room.create"
            && event.state_key.as_deref() == Some("")
            && event.auth_events.is_empty()
            && event.prev_events.is_empty();
        if !is_first {
            return Err(bad("is another"));
        }
        let names_it = if rules.authorization.room_create_event_id_as_room_id {
            self.room_id.strip_sigil() == self.event_id.localpart()
        } else {
            event.names_room && Some(event.sender.server_name()) == self.room_id.server_name()
        };
        if !names_it {
            return Err(bad("is that of another room"));
        }
        if version_in(&event) != Some(self.version.clone()) {
            return Err(bad("names another version"));
        }
        let pdu = RoomPdu {
            room_id: self.room_id.clone(),
            event_id: self.event_id.clone(),
            sender: event.sender,
            from: self.from.clone(),
            // Earlier claims about the room, such as those of an invite, may be false.
            room_version: begun.is_none().then(|| self.version.clone()),
            outcome: Outcome::Outlier,
            before: None,
            pdu: self.pdu.clone(),
        };
        commit.append(self.stream(), pdu);
        Ok(())
    }
}

/// The version that a room's first event names.
fn version_in(create: &StoredEvent) -> Option<RoomVersionId> {
    #[derive(Deserialize)]
    struct Content {
        room_version: Option<RoomVersionId>,
    }
    let content: Content = create.content_as().ok()?;
    Some(content.room_version.unwrap_or(RoomVersionId::V1))
}

/// Record the state before an outlier, from another homeserver. A state without a first event is
/// none.
#[derive(Clone, Debug)]
pub struct PlaceOutlier {
    pub room_id: OwnedRoomId,
    /// The outlier.
    pub event_id: OwnedEventId,
    /// The homeserver that supplied the state.
    pub from: OwnedServerName,
    /// The state. Unknown events are left out.
    pub state: Vec<OwnedEventId>,
}

impl Proposal for PlaceOutlier {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn is_long(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let env = commit.env;
        let room = env.state.rooms.get(&self.room_id).ok_or_else(not_in_it)?;
        let branches = Branches::new(&env.state, &env.events, &room);
        let event = branches.find(&self.event_id)?.ok_or_else(unknown)?;
        let may_be_placed = match event.aside.as_deref() {
            Some((Outcome::Outlier, None)) => true,
            // What its own homeserver tells replaces what another one told.
            Some((Outcome::Outlier, Some(_))) => event.sender.server_name() == self.from,
            _ => false,
        };
        if !may_be_placed {
            return Ok(());
        }
        let before = state(&branches, &self.state)?;
        if branches.holder(&before, &StateEventType::RoomCreate, "")?.is_none() {
            return Err(Refusal::BadState("The state has no first event.".to_owned()));
        }
        let of_room = |at| Ok((at, differences(&branches, &branches.as_of(at), &before)?));
        let bases = [Offset::MAX, Offset::ZERO].map(of_room);
        let bases: Result<Vec<_>, NoState> = bases.into_iter().collect();
        let nearest = bases.map_err(NoState::refusal)?;
        let nearest = nearest.into_iter().min_by_key(|(_, changes)| changes.len());
        let (at, changes) = nearest.ok_or_else(unknown)?;
        // Each part comes with the event.
        let parts = limits::ENTERED_BYTES / limits::STATE_CHANGES_BYTES + 2;
        let copies = parts * event.pdu.get().len();
        let most = limits::ENTERED_BYTES.min(MAX_BATCH_BYTES.saturating_sub(copies));
        fit(&changes, most).map_err(NoState::refusal)?;
        let base = StateBase::At(room.last_state_change(at));
        let record = |before| RoomPdu {
            room_id: self.room_id.clone(),
            event_id: self.event_id.clone(),
            sender: event.sender.clone(),
            from: self.from.clone(),
            room_version: None,
            outcome: Outcome::Outlier,
            before: Some(before),
            pdu: event.pdu.clone(),
        };
        let part = |before| RoomPdu { pdu: bare(&event.pdu, &room.rules), ..record(before) };
        let before = record_before(commit, part, StateBefore { base, changes, links: 0 });
        commit.append(self.stream(), record(before));
        Ok(())
    }
}

/// Enter a room that this homeserver is not in, with the join of one of its users. Nothing is
/// recorded if another user entered it meanwhile.
#[derive(Clone, Debug)]
pub struct EnterRoom {
    /// The room, which is known.
    pub room_id: OwnedRoomId,
    /// The join's id.
    pub event_id: OwnedEventId,
    /// The homeserver that accepted the join.
    pub from: OwnedServerName,
    /// The join.
    pub pdu: Box<RawValue>,
    /// The room's state before it. Unknown events are left out.
    pub state: Vec<OwnedEventId>,
    /// The joins in it that are unknown because they cannot be verified.
    pub unverified: BTreeMap<OwnedUserId, OwnedEventId>,
}

/// The outcome of a proposal to enter a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The join is in the room.
    Yes,
    /// A part of the room's state is recorded. The same proposal records the next one, and the join
    /// after the last.
    Partly,
    /// Another user was faster.
    No,
}

impl Proposal for EnterRoom {
    type Outcome = Entered;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn is_long(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Entered, Refusal> {
        let env = commit.env;
        let room = env.state.rooms.get(&self.room_id).ok_or_else(not_in_it)?;
        // Otherwise its version may be a false one.
        if !room.is_begun() {
            return Err(Refusal::BadState("The room's first event is not known.".to_owned()));
        }
        if env.events.find(&env.state, &self.event_id)?.is_some() {
            return Ok(Entered::Yes);
        }
        let of = (&*self.room_id, &room.rules);
        if env.events.is_taken(&env.state, of, &self.event_id, &self.pdu)? {
            return Err(Refusal::BadState("Another event has the id of this join.".to_owned()));
        }
        let body = |received| body(&self.room_id, &self.event_id, self.pdu.clone(), received, None);
        let event = StoredEvent::new(PENDING, body(None));
        let event = Arc::new(event.map_err(|error| Refusal::BadJson(error.to_string()))?);
        commit.rests_on(Stream::user(&event.sender));
        if env.state.accounts.is_deactivated(&event.sender) {
            return Err(Refusal::UserDeactivated);
        }
        must_not_be_blocked(env, &RoomDraft::of(Arc::clone(&room)), &event.sender)?;
        let now = room.membership(&event.sender, Offset::MAX).map(|(_, membership)| membership);
        may_come(env, &event.sender, now)?;
        if room.has_server(&env.server.name) {
            return Ok(Entered::No);
        }
        let branches = Branches::new(&env.state, &env.events, &room);
        let branches = branches.with_pending(Arc::clone(&event));
        let before = state(&branches, &self.state)?;
        let receipt = IncomingPdu::new(&room, &branches, &event);
        if let Err(reason) = receipt.allowed_in(&before)? {
            return Err(Refusal::Forbidden(reason));
        }
        let mut changes =
            changes_once(&branches, &branches.current(), &before).map_err(NoState::refusal)?;
        say_lifetimes(&branches, &mut changes)?;
        // That users of this server are in the room is in the batch of the join: until then, this
        // homeserver is not in it.
        let is_of_own = |of: &StateChange| {
            let user_id = <&UserId>::try_from(of.state_key.as_str());
            of.membership.is_some() && user_id.is_ok_and(|user_id| is_local(&env.server, user_id))
        };
        changes.sort_by_key(is_of_own);
        let of_room = (&self.room_id, &self.from);
        if !record_changes(commit, of_room, changes, limits::ENTERED_BYTES) {
            return Ok(Entered::Partly);
        }
        let mut unverified = self.unverified.clone();
        for user_id in self.unverified.keys() {
            let holder = branches.holder(&before, &StateEventType::RoomMember, user_id.as_str())?;
            if holder.is_some() || is_local(&env.server, user_id) {
                unverified.remove(user_id);
            }
        }
        record_unverified(commit, &room, &self.from, unverified);
        let missing = missing_of(&env.state, &env.events, &room, &event.prev_events)?;
        let received = Received { missing, ..Received::new(self.from.clone()) };
        commit.append(self.stream(), body(Some(received)));
        Ok(Entered::Yes)
    }
}

/// The state made of the known ones among these events.
fn state(branches: &Branches<'_>, events: &[OwnedEventId]) -> Result<StateView, Refusal> {
    let mut known = Vec::with_capacity(events.len());
    for event_id in events {
        let Some(event) = branches.look(event_id)? else { continue };
        if ruma::state_res::Event::rejected(&*event) {
            continue;
        }
        // No more of each than its key and its record.
        known.extend(event.key().map(|key| (key, event.offset)));
    }
    Ok(branches.state_of(known))
}

fn unknown() -> Refusal {
    Refusal::BadState("An event of the room's state is not known.".to_owned())
}
