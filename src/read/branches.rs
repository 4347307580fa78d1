//! The state of a room at each event of its graph. Most states are the room's as of some offset,
//! and cost nothing: see the decision on federation.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap, HashSet},
};

use ruma::{EventId, OwnedEventId, events::StateEventType};

use super::events::{EventRef, EventStore, StoredEvent};
use crate::{
    base::limits,
    log::ReadError,
    record::{
        Offset,
        command::{Outcome, StateBefore},
    },
    state::{Room, State},
};

/// A state: each key with the event that holds it.
pub(crate) type Keys = BTreeMap<(StateEventType, Box<str>), Offset>;

/// The state of a room at some event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The room's as of this offset, which is that of a change of state.
    AsOf(Offset),
    /// One that the room never had as a whole.
    Own(Keys),
}

/// The event that is being decided, which has no offset yet.
pub(crate) const PENDING: Offset = Offset::ZERO;

/// More would have to be looked at than is allowed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChainError {
    /// There are too many events.
    #[error("more than {} events", limits::RESOLUTION_EVENTS)]
    TooMany,
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The graph of a room.
pub(crate) struct Branches<'a> {
    state: &'a State,
    events: &'a EventStore,
    pub(crate) room: &'a Room,
    pending: Option<EventRef>,
    looked: Cell<usize>,
    found: RefCell<HashMap<OwnedEventId, Option<EventRef>>>,
}

impl<'a> Branches<'a> {
    pub(crate) fn new(state: &'a State, events: &'a EventStore, room: &'a Room) -> Self {
        let (looked, found) = (Cell::new(0), RefCell::default());
        Self { state, events, room, pending: None, looked, found }
    }

    /// The graph as a decision on an event sees it.
    pub(crate) fn with_pending(mut self, event: EventRef) -> Self {
        self.pending = Some(event);
        self
    }

    /// The room's state now.
    pub(crate) fn current(&self) -> View {
        self.as_of(Offset::MAX)
    }

    /// The room's state as of an offset.
    pub(crate) fn as_of(&self, at: Offset) -> View {
        View::AsOf(self.room.last_state_change(at))
    }

    /// The event of this id.
    pub(crate) fn find(&self, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        if let Some(pending) = self.pending.as_ref().filter(|event| event.event_id == event_id) {
            return Ok(Some(EventRef::clone(pending)));
        }
        if let Some(found) = self.found.borrow().get(event_id) {
            return Ok(found.clone());
        }
        self.looked.set(self.looked.get() + 1);
        let found = self.events.find_known(self.state, self.room, event_id)?;
        self.found.borrow_mut().insert(event_id.to_owned(), found.clone());
        Ok(found)
    }

    /// As [`Self::find`], for a lot of events that are looked at once each: they are not kept.
    pub(crate) fn look(&self, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        match self.pending.as_ref().filter(|event| event.event_id == event_id) {
            Some(pending) => Ok(Some(EventRef::clone(pending))),
            None => self.events.find_known(self.state, self.room, event_id),
        }
    }

    /// The event of this id, if clients are shown it; or else one that is only known, but not if it
    /// is not allowed.
    pub(crate) fn find_shown(&self, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        let found = self.find(event_id)?;
        let Some(aside) = found.as_ref().and_then(|event| event.aside.as_deref()) else {
            return Ok(found);
        };
        if !matches!(aside, (Outcome::Outlier, _)) {
            return Ok(None);
        }
        // It may have more than one record.
        Ok(self.events.find_shown(self.state, event_id)?.or(found))
    }

    /// Whether clients are shown this event in another room.
    pub(crate) fn is_in_another_room(&self, event_id: &EventId) -> Result<bool, ReadError> {
        let found = self.events.find_shown(self.state, event_id)?;
        Ok(found.is_some_and(|event| event.room_id != self.room.id))
    }

    /// Whether an event is only known as an authority for others, or by the state before it: it has
    /// no place in the history that clients see.
    pub(crate) fn is_out_of_sight(&self, event: &StoredEvent) -> Result<bool, ReadError> {
        Ok(matches!(event.aside.as_deref(), Some((Outcome::Outlier, _)))
            && self.events.find_shown(self.state, &event.event_id)?.is_none())
    }

    /// Notes an event that was read, so that it is found by its id.
    pub(crate) fn note(&self, event: &EventRef) {
        self.found.borrow_mut().insert(event.event_id.clone(), Some(EventRef::clone(event)));
    }

    /// The event at this offset.
    pub(crate) fn get(&self, offset: Offset) -> Result<Option<EventRef>, ReadError> {
        match &self.pending {
            Some(pending) if offset == PENDING => Ok(Some(EventRef::clone(pending))),
            _ => self.events.get(offset),
        }
    }

    /// Whether more was looked at than a resolution may look at.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.looked.get() > limits::RESOLUTION_EVENTS
    }

    /// The event that holds a key in a state.
    pub(crate) fn holder(
        &self,
        view: &View,
        event_type: &StateEventType,
        state_key: &str,
    ) -> Result<Option<EventRef>, ReadError> {
        let offset = match view {
            View::AsOf(at) => self.room.state_event(event_type, state_key, *at),
            View::Own(keys) => keys.get(&(event_type.clone(), state_key.into())).copied(),
        };
        offset.map_or(Ok(None), |offset| self.get(offset))
    }

    /// The whole of a state.
    pub(crate) fn keys(&self, view: &View) -> Keys {
        match view {
            View::AsOf(at) => {
                let all = self.room.state_map(*at).into_iter();
                all.map(|(event_type, state_key, event)| ((event_type, state_key), event)).collect()
            }
            View::Own(keys) => keys.clone(),
        }
    }

    /// The state before an event that has a place in the room; `None` if it has none.
    pub(crate) fn before(&self, event: &StoredEvent) -> Option<View> {
        let noted = match event.aside.as_deref() {
            Some((Outcome::Outlier, None)) => return None,
            Some((_, noted)) => noted.as_ref(),
            None => event.received.as_ref().and_then(|received| received.before.as_ref()),
        };
        let Some(StateBefore { at, changes }) = noted else {
            return Some(self.as_of(event.offset.prev()));
        };
        if changes.is_empty() {
            return Some(self.as_of(*at));
        }
        let mut keys = self.keys(&View::AsOf(*at));
        for change in changes {
            let key = (
                StateEventType::from(change.event_type.as_str()),
                change.state_key.as_str().into(),
            );
            match change.event {
                Some(event) => keys.insert(key, event),
                None => keys.remove(&key),
            };
        }
        Some(View::Own(keys))
    }

    /// The state after an event; `None` if it has no place in the room.
    pub(crate) fn after(&self, event: &StoredEvent) -> Option<View> {
        let is_only_extremity = event.aside.is_none()
            && event.received.as_ref().is_none_or(|received| received.extremities.is_empty());
        if is_only_extremity {
            return Some(self.as_of(event.offset));
        }
        let before = self.before(event)?;
        match event.aside.as_deref() {
            Some((Outcome::Rejected { .. }, _)) => Some(before),
            _ => Some(self.with(before, event)),
        }
    }

    /// A state with an event in it.
    pub(crate) fn with(&self, view: View, event: &StoredEvent) -> View {
        let Some(key) = event.key() else { return view };
        let mut keys = self.keys(&view);
        keys.insert(key, event.offset);
        View::Own(keys)
    }

    /// The authorities of these events, and theirs, and so on.
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn chain<'e>(
        &self,
        events: impl Iterator<Item = &'e OwnedEventId>,
    ) -> Result<HashSet<OwnedEventId>, ChainError> {
        let mut chain = HashSet::new();
        let mut todo: Vec<OwnedEventId> = events.cloned().collect();
        let mut seen: HashSet<OwnedEventId> = todo.iter().cloned().collect();
        while let Some(event_id) = todo.pop() {
            if self.is_exhausted() {
                return Err(ChainError::TooMany);
            }
            let Some(event) = self.find(&event_id)? else { continue };
            for auth in &event.auth_events {
                chain.insert(auth.clone());
                if seen.insert(auth.clone()) {
                    todo.push(auth.clone());
                }
            }
        }
        Ok(chain)
    }

    /// The events on the ways from one of these to another by `auth_events`, ends included (room
    /// version 12, "Conflicted state subgraph").
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn between<'e>(
        &self,
        ends: impl Iterator<Item = &'e OwnedEventId>,
    ) -> Result<HashSet<OwnedEventId>, ChainError> {
        let ends: HashSet<OwnedEventId> = ends.cloned().collect();
        // Whether a way leads on to an end. An event is done after all its authorities.
        let mut leads: HashMap<OwnedEventId, bool> = HashMap::new();
        let mut todo: Vec<(OwnedEventId, bool)> =
            ends.iter().map(|event_id| (event_id.clone(), false)).collect();
        while let Some((event_id, authorities_done)) = todo.pop() {
            if leads.contains_key(&event_id) {
                continue;
            }
            if self.is_exhausted() {
                return Err(ChainError::TooMany);
            }
            let event = self.find(&event_id)?;
            let auth = event.map(|event| event.auth_events.clone()).unwrap_or_default();
            if authorities_done {
                let does = ends.contains(&event_id)
                    || auth.iter().any(|auth| leads.get(auth).copied().unwrap_or(false));
                leads.insert(event_id, does);
            } else {
                todo.push((event_id, true));
                todo.extend(auth.into_iter().map(|auth| (auth, false)));
            }
        }
        Ok(leads.into_iter().filter(|(_, does)| *does).map(|(event_id, _)| event_id).collect())
    }
}
