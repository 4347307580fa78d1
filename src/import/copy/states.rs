//! The state before an event, and how a record says it.
//!
//! In most rooms there is one branch, and the state before an event is the room's: nothing is said.
//! Where there are several, the source's number of the state tells whether an earlier event had the
//! same, which is then named. Only if none had, the whole state is read from the source.

use std::collections::{BTreeMap, HashSet};

use super::{
    index::Status,
    known::KnownRoom,
    prepare::{EventFacts, ReadyEvent},
    writer::Writer,
};
use crate::{
    ImportError,
    facts::{Event, Judged, SourceError, StateEntry, StateGroup},
};
use logcabin_base::limits;
use logcabin_read::events::StoredEvent;
use logcabin_record::{
    Command, Offset,
    command::{SaidLifetime, StateBase, StateBefore, StateChange},
    division::bytes,
};
use logcabin_state::RETENTION;

/// A whole state: the event of each key.
pub(super) type FullState = BTreeMap<(String, String), Offset>;

impl Writer<'_> {
    /// The source's number of the state before an event.
    fn group_before(
        &mut self,
        event: &Event,
        facts: &EventFacts,
    ) -> Result<Option<StateGroup>, ImportError> {
        let is_rejected = matches!(event.judged, Judged::Rejected { .. });
        if facts.state_key.is_none() || is_rejected {
            let own = event.group.filter(|group| group.0 > 0);
            return Ok(own.or_else(|| self.group_of_predecessors(facts)));
        }
        // How the source stores the state after it is the last resort: programs that make its
        // database smaller make states from any others.
        if let Some(group) = self.group_of_predecessors(facts) {
            return Ok(Some(group));
        }
        let (Some(group), Some(from)) = (event.group, event.group_from) else { return Ok(None) };
        let step = match self.feeder.step(group) {
            Err(ImportError::Source(SourceError::Absent { .. })) => return Ok(None),
            step => step?,
        };
        let is_own = |entry: &StateEntry| {
            let key = (&*entry.event_type, &*entry.state_key);
            facts.key() == Some(key) && entry.event_id == event.event_id
        };
        let is_step = step.from == Some(from) && matches!(&step.entries[..], [one] if is_own(one));
        Ok(Some(from).filter(|_| is_step))
    }

    /// The number of the state that all predecessors of an event have after them.
    fn group_of_predecessors(&self, facts: &EventFacts) -> Option<StateGroup> {
        let mut groups = facts.prev_events.iter().map(|id| {
            let seen = self.known.seen(id.as_str());
            seen.filter(|seen| seen.status != Status::Rejected).and_then(|seen| seen.group)
        });
        let first = groups.next().flatten()?;
        groups.all(|group| group == Some(first)).then_some(first)
    }

    /// What the record of an event says of the state before it; `None` if that is the room's.
    pub(super) fn state_before(
        &mut self,
        event: &Event,
        ready: &ReadyEvent,
    ) -> Result<Option<StateBefore>, ImportError> {
        let facts = &ready.facts;
        let room_id = ready.room_id.as_str();
        if self.known.room(room_id).is_none_or(|room| follows_all(room, facts)) {
            return Ok(None);
        }
        let Some(group) = self.group_before(event, facts)? else {
            let line = format!("event {}: the state before it is not known", event.event_id);
            self.list.note(&mut self.progress.counts, &line)?;
            return Ok(None);
        };
        let Some(room) = self.known.room(room_id).filter(|of| of.group != Some(group.0)) else {
            return Ok(None);
        };
        let now = room.last_change(Offset::MAX);
        if let Some(named) = room.named(group)
            && named.links <= limits::STATE_LINKS as u64
        {
            let before = StateBefore { links: named.links, ..StateBefore::same_as(named.base) };
            return Ok(Some(before).filter(|before| before.base != StateBase::At(now)));
        }
        let Some(full) = self.full_state(group)? else { return Ok(None) };
        let changes = self.differences(ready.room_id.as_str(), &full, false)?;
        if changes.is_empty() {
            return Ok(None);
        }
        if bytes(&changes) > limits::ENTERED_BYTES {
            let line = format!("event {}: the state before it is too large", event.event_id);
            self.list.note(&mut self.progress.counts, &line)?;
            return Ok(None);
        }
        Ok(Some(StateBefore { base: StateBase::At(now), changes, links: 0 }))
    }

    /// The number of a state that is the one before an event, apart from the key that the event
    /// sets itself.
    pub(super) fn group_beside(&self, event: &Event, facts: &EventFacts) -> Option<StateGroup> {
        let own = event.group.filter(|group| group.0 > 0);
        own.or_else(|| self.group_of_predecessors(facts))
    }

    /// The state with this number; `None` if the source lacks it. Events that are not in the log
    /// are left out.
    pub(super) fn full_state(
        &mut self,
        group: StateGroup,
    ) -> Result<Option<FullState>, ImportError> {
        let mut state = FullState::new();
        let entries = match self.feeder.state(group) {
            Err(ImportError::Source(error @ SourceError::Absent { .. })) => {
                self.list.note(&mut self.progress.counts, &error.to_string())?;
                return Ok(None);
            }
            entries => entries?,
        };
        for entry in entries {
            if let Some(seen) = self.known.seen(&entry.event_id)
                && seen.status != Status::Rejected
            {
                state.insert((entry.event_type, entry.state_key), seen.offset);
            }
        }
        Ok(Some(state))
    }

    /// What leads from the state of a room to another one. With `says_lifetimes`, they are changes
    /// of the room's state.
    pub(super) fn differences(
        &mut self,
        room_id: &str,
        to: &FullState,
        says_lifetimes: bool,
    ) -> Result<Vec<StateChange>, ImportError> {
        let mut changed = Vec::new();
        let none = KnownRoom::default();
        let room = self.known.room(room_id).unwrap_or(&none);
        for ((event_type, state_key), event) in to {
            if room.holder(event_type, state_key) != Some(*event) {
                changed.push((event_type.clone(), state_key.clone(), Some(*event)));
            }
        }
        for (event_type, keys) in &room.state {
            for state_key in keys.keys() {
                let key = (event_type.to_string(), state_key.to_string());
                if !to.contains_key(&key) {
                    changed.push((key.0, key.1, None));
                }
            }
        }
        changed
            .into_iter()
            .map(|(event_type, state_key, event)| {
                self.change((event_type, state_key), event, says_lifetimes)
            })
            .collect()
    }

    /// A change of state, with what a reader needs to know of the event.
    pub(super) fn change(
        &mut self,
        (event_type, state_key): (String, String),
        event: Option<Offset>,
        says_lifetimes: bool,
    ) -> Result<StateChange, ImportError> {
        let is_lifetime = says_lifetimes
            && state_key.is_empty()
            && RETENTION.iter().any(|name| *name == event_type);
        let facts = match event {
            Some(event) if is_lifetime || event_type == "m.room.member" => self.facts_at(event)?,
            _ => None,
        };
        let member = facts.as_ref().and_then(|facts| facts.member);
        let lifetime: Option<SaidLifetime> =
            facts.and_then(|facts| facts.lifetime).filter(|_| is_lifetime);
        Ok(StateChange {
            membership: member
                .filter(|_| event_type == "m.room.member")
                .map(|member| member.as_str().to_owned()),
            event_type,
            state_key,
            event,
            lifetime,
        })
    }

    /// What is known of the event in a record.
    pub(super) fn facts_at(&mut self, offset: Offset) -> Result<Option<EventFacts>, ImportError> {
        Ok(self.event_at(offset)?.and_then(|event| EventFacts::of(&event).ok()))
    }

    /// The event in a record.
    pub(super) fn event_at(&mut self, offset: Offset) -> Result<Option<StoredEvent>, ImportError> {
        let Some(record) = self.log.get(offset)? else { return Ok(None) };
        Ok(match record.command() {
            Ok(Some(Command::RoomEvent(body))) => StoredEvent::new(offset, body).ok(),
            Ok(Some(Command::RoomPdu(body))) => StoredEvent::of_pdu(offset, body).ok(),
            _ => None,
        })
    }
}

/// Whether an event follows all forward extremities of its room, and nothing else: the state before
/// it is then the room's.
pub(super) fn follows_all(room: &KnownRoom, facts: &EventFacts) -> bool {
    let prev: HashSet<&str> = facts.prev_events.iter().map(|id| id.as_str()).collect();
    prev.len() == room.tips.len() && room.tips.iter().all(|tip| prev.contains(&*tip.event_id))
}
