//! The state of a room at each event of its graph. Most states are the room's as of some offset,
//! and cost nothing: see the decision on federation.

mod event_info;
mod memo;
mod tree;

use std::{
    cell::{Cell, RefCell, RefMut},
    collections::{BTreeMap, HashMap, HashSet},
};

use ruma::{EventId, OwnedEventId, events::StateEventType};

pub use event_info::{Levels, NOBODY, is_about_power};
use memo::BorrowedMemo;
pub use memo::{Memo, Memos, Resolved};
pub use tree::StateTree;

use super::events::{EventRef, EventStore, StoredEvent};
use logcabin_base::{limits, work};
use logcabin_log::ReadError;
use logcabin_record::{
    Offset,
    command::{Outcome, StateBase, StateBefore},
    event_format::has_chosen_ids,
};
use logcabin_state::{Room, State};

/// A state: each key with the offset of the event that holds it.
pub type Keys = BTreeMap<(StateEventType, Box<str>), Offset>;

/// The state of a room at some event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateView {
    /// The room's state as of this offset, which is that of a change of state.
    AsOf(Offset),
    /// A state that the room never had as a whole.
    Own(StateTree),
}

/// The event that is being decided, which has no offset yet.
pub const PENDING: Offset = Offset::ZERO;

/// Why the examination of a room's graph stopped early.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("more than {} events", limits::RESOLUTION_EVENTS)]
    TooMany,
    /// It takes more work than the caller may do. What was found so far is remembered.
    #[error("more to look at than there is time for")]
    Unprepared,
    /// An event was decided again meanwhile.
    #[error("an event that changed")]
    Changed,
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// How much work a look at a room's graph may take.
#[derive(Clone, Copy)]
pub enum Effort<'a> {
    /// Little enough to do within the room's turn.
    Short,
    /// As much as it takes. The function is called now and then: it may block for a while, and
    /// returns whether to go on.
    Long(&'a dyn Fn() -> bool),
}

/// The graph of a room.
pub struct Branches<'a> {
    state: &'a State,
    events: &'a EventStore,
    pub room: &'a Room,
    pending: Option<EventRef>,
    looked: Cell<usize>,
    found: RefCell<HashMap<OwnedEventId, Option<EventRef>>>,
    /// Without it, the memo is not shared with others that look at the room.
    effort: Option<Effort<'a>>,
    /// The work so far, in examined events: in all, and before the current resolution.
    worked: Cell<usize>,
    begun: Cell<usize>,
    memo: RefCell<Option<BorrowedMemo<'a>>>,
}

impl<'a> Branches<'a> {
    pub fn new(state: &'a State, events: &'a EventStore, room: &'a Room) -> Self {
        let (looked, worked, begun) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let (found, memo) = (RefCell::default(), RefCell::new(None));
        Self {
            state,
            events,
            room,
            pending: None,
            looked,
            found,
            effort: None,
            worked,
            begun,
            memo,
        }
    }

    /// Shares the room's memo with others.
    pub const fn with_effort(mut self, effort: Effort<'a>) -> Self {
        self.effort = Some(effort);
        self
    }

    /// Includes an event that is being decided.
    pub fn with_pending(mut self, event: EventRef) -> Self {
        self.pending = Some(event);
        self
    }

    pub fn current(&self) -> StateView {
        self.as_of(Offset::MAX)
    }

    /// The room's state as of an offset.
    pub fn as_of(&self, at: Offset) -> StateView {
        StateView::AsOf(self.room.last_state_change(at))
    }

    pub fn find(&self, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        if let Some(pending) = self.pending.as_ref().filter(|event| event.event_id == event_id) {
            return Ok(Some(EventRef::clone(pending)));
        }
        if let Some(found) = self.found.borrow().get(event_id) {
            return Ok(found.clone());
        }
        let found = self.events.find_known(self.state, self.room, event_id)?;
        self.found.borrow_mut().insert(event_id.to_owned(), found.clone());
        Ok(found)
    }

    /// Like [`Self::find`], for many events that are looked at once each: they are not kept.
    pub fn look(&self, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        match self.pending.as_ref().filter(|event| event.event_id == event_id) {
            Some(pending) => Ok(Some(EventRef::clone(pending))),
            None => self.events.find_known(self.state, self.room, event_id),
        }
    }

    /// The state before an event that is being decided again, as it was recorded when the event was
    /// an outlier; `None` if it has no place in the room.
    pub fn recorded_before(&self, event_id: &EventId) -> Result<Option<StateView>, ChainError> {
        let recorded = self.events.find_known(self.state, self.room, event_id)?;
        recorded.map_or(Ok(None), |event| self.before(&event))
    }

    /// The event with this id, if it is shown to clients, or else if it is an outlier.
    pub fn find_shown(&self, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        let found = self.find(event_id)?;
        let Some(aside) = found.as_ref().and_then(|event| event.aside.as_deref()) else {
            return Ok(found);
        };
        if !matches!(aside, (Outcome::Outlier, _)) {
            return Ok(None);
        }
        // It may have a second record, in the timeline.
        Ok(self.events.find_shown(self.state, event_id)?.or(found))
    }

    /// Whether clients are shown this event in another room.
    pub fn is_in_another_room(&self, event_id: &EventId) -> Result<bool, ReadError> {
        let found = self.events.find_shown(self.state, event_id)?;
        Ok(found.is_some_and(|event| event.room_id != self.room.id))
    }

    /// Whether an event is known only as an outlier, with no place in the history that clients see.
    pub fn is_out_of_sight(&self, event: &StoredEvent) -> Result<bool, ReadError> {
        Ok(matches!(event.aside.as_deref(), Some((Outcome::Outlier, _)))
            && self.events.find_shown(self.state, &event.event_id)?.is_none())
    }

    /// Notes an event that was read, so that it is found by its id.
    pub fn note(&self, event: &EventRef) {
        self.found.borrow_mut().insert(event.event_id.clone(), Some(EventRef::clone(event)));
    }

    pub fn get(&self, offset: Offset) -> Result<Option<EventRef>, ReadError> {
        match &self.pending {
            Some(pending) if offset == PENDING => Ok(Some(EventRef::clone(pending))),
            _ => self.events.get(offset),
        }
    }

    /// Counts an examined event.
    fn visit(&self) -> Result<(), ChainError> {
        work::look();
        self.looked.set(self.looked.get() + 1);
        let is_too_much = self.looked.get() > limits::AUTH_EVENTS_VISITED;
        if is_too_much { Err(ChainError::TooMany) } else { Ok(()) }
    }

    /// The event that holds a key in a state.
    pub fn holder(
        &self,
        view: &StateView,
        event_type: &StateEventType,
        state_key: &str,
    ) -> Result<Option<EventRef>, ReadError> {
        let offset = match view {
            StateView::AsOf(at) => self.room.state_event(event_type, state_key, *at),
            StateView::Own(tree) => {
                let mut memo = self.memo();
                let record = tree.get(memo.number(event_type, state_key));
                (record != 0).then(|| Memo::offset(record))
            }
        };
        offset.map_or(Ok(None), |offset| self.get(offset))
    }

    pub fn keys(&self, view: &StateView) -> Result<Keys, ChainError> {
        Ok(match view {
            StateView::AsOf(at) => {
                let all = self.room.state_map(*at).into_iter();
                all.map(|(event_type, state_key, event)| ((event_type, state_key), event)).collect()
            }
            StateView::Own(tree) => {
                let memo = self.memo();
                let entries = tree.entries().into_iter();
                let named = entries.filter_map(|(key, record)| {
                    Some((memo.name(key)?.clone(), Memo::offset(record)))
                });
                named.collect()
            }
        })
    }

    /// What is remembered of the room's graph.
    pub fn memo(&self) -> RefMut<'_, Memo> {
        let memo = self.memo.borrow_mut();
        RefMut::map(memo, |memo| {
            let lend = || match self.effort {
                Some(effort) => {
                    let waits = matches!(effort, Effort::Long(_));
                    self.events.memos().lend(self.room, waits)
                }
                None => BorrowedMemo::private(self.room),
            };
            &mut **memo.get_or_insert_with(lend)
        })
    }

    /// Counts work, in examined events.
    pub fn work(&self, count: usize) -> Result<(), ChainError> {
        work::looks(count);
        let before = self.worked.get();
        let worked = before + count;
        self.worked.set(worked);
        match self.effort {
            Some(Effort::Short) if worked > limits::RESOLUTION_IN_TURN => {
                return Err(ChainError::Unprepared);
            }
            Some(Effort::Long(pause)) => {
                let pauses = |worked: usize| worked / limits::RESOLUTION_PAUSE;
                if pauses(worked) > pauses(before) && !pause() {
                    return Err(ChainError::Unprepared);
                }
            }
            _ => {}
        }
        let is_too_much = worked - self.begun.get() > limits::RESOLUTION_WORK;
        if is_too_much { Err(ChainError::TooMany) } else { Ok(()) }
    }

    /// Begins a resolution, which has its own limit of work.
    pub fn begin_work(&self) {
        self.begun.set(self.worked.get());
    }

    /// The number that trees have for an event: of its record, or a stand-in.
    pub(crate) fn record_of(&self, memo: &mut Memo, event: &StoredEvent) -> u64 {
        if event.offset != PENDING {
            return event.offset.get();
        }
        if has_chosen_ids(&self.room.rules) {
            // Several undecided events may claim one id.
            let hash = blake3::hash(event.pdu.get().as_bytes()).to_hex();
            if let Ok(unique) = OwnedEventId::try_from(format!("${hash}")) {
                return memo.stand_in(&unique);
            }
        }
        memo.stand_in(&event.event_id)
    }

    pub fn tree(&self, view: &StateView) -> Result<StateTree, ChainError> {
        match view {
            StateView::Own(tree) => Ok(tree.clone()),
            StateView::AsOf(at) => self.tree_as_of(&mut self.memo(), *at),
        }
    }

    fn tree_as_of(&self, memo: &mut Memo, at: Offset) -> Result<StateTree, ChainError> {
        if let Some(tree) = memo.as_of.get(&at) {
            return Ok(tree.clone());
        }
        let (from, mut tree) = memo.trunk.clone().unwrap_or_default();
        self.work(1 + self.room.state_changes_between(from, at) / 8)?;
        for (event_type, state_key, event) in self.room.state_from_to(from, at) {
            let key = memo.number(&event_type, &state_key);
            tree.set(key, event.map_or(0, Offset::get));
        }
        if from <= at {
            memo.trunk = Some((at, tree.clone()));
        }
        memo.as_of.put(at, tree.clone(), limits::RESOLUTION_STATES);
        Ok(tree)
    }

    pub fn is_same(&self, one: &StateView, other: &StateView) -> Result<bool, ChainError> {
        match (one, other) {
            (StateView::AsOf(one), StateView::AsOf(other)) if one == other => Ok(true),
            _ => Ok(self.tree(one)? == self.tree(other)?),
        }
    }

    /// What is recorded of the state before an event: `None` if the event has no place in the room,
    /// `Some(None)` if that state is the room's as of the record before.
    pub fn noted<'e>(&self, event: &'e StoredEvent) -> Option<Option<&'e StateBefore>> {
        match event.aside.as_deref() {
            Some((Outcome::Outlier, None)) => None,
            Some((_, noted)) => Some(noted.as_ref()),
            None => Some(event.received.as_ref().and_then(|received| received.before.as_ref())),
        }
    }

    /// The state before an event; `None` if it has no place in the room.
    pub fn before(&self, event: &StoredEvent) -> Result<Option<StateView>, ChainError> {
        let mut memo = self.memo();
        let mut steps = Vec::new();
        let mut earlier: Option<EventRef> = None;
        let mut view = loop {
            let event = earlier.as_deref().unwrap_or(event);
            if let Some(tree) = memo.before.get(&event.offset) {
                break StateView::Own(tree.clone());
            }
            let Some(noted) = self.noted(event) else { return Ok(None) };
            let Some(noted) = noted else { break self.as_of(event.offset.prev()) };
            self.work(1 + noted.changes.len() / 8)?;
            if !noted.changes.is_empty() || !matches!(noted.base, StateBase::At(_)) {
                steps.push(Step::changes(&mut memo, event.offset, noted));
            }
            let (base, is_after) = match noted.base {
                StateBase::At(at) => break StateView::AsOf(at),
                StateBase::After(base) => (base, true),
                StateBase::Before(base) => (base, false),
                StateBase::Part(_) => match self.part_before(event) {
                    Some(part) => (part, false),
                    None => return Ok(None),
                },
            };
            // An event that it depends on may have expired.
            let Some(base) = self.get(base)?.filter(|base| base.offset < event.offset) else {
                return Ok(None);
            };
            if is_after && is_alone(&base) {
                break self.as_of(base.offset);
            }
            if is_after
                && !ruma::state_res::Event::rejected(&*base)
                && let Some((event_type, state_key)) = base.key()
            {
                let key = memo.number(&event_type, &state_key);
                steps.push(Step { changes: vec![(key, base.offset.get())], before: None });
            }
            earlier = Some(base);
        };
        let Some(last) = steps.len().checked_sub(1) else { return Ok(Some(view)) };
        let mut tree = match view {
            StateView::AsOf(at) => self.tree_as_of(&mut memo, at)?,
            StateView::Own(tree) => tree,
        };
        for (number, step) in steps.into_iter().rev().enumerate() {
            for (key, record) in step.changes {
                tree.set(key, record);
            }
            if let Some(offset) = step.before
                && (number == last || number % limits::RESOLUTION_STATES == 0)
            {
                memo.before.put(offset, tree.clone(), limits::RESOLUTION_STATES);
            }
        }
        view = StateView::Own(tree);
        Ok(Some(view))
    }

    /// The previous record of the same event.
    fn part_before(&self, event: &StoredEvent) -> Option<Offset> {
        let mut records = self.state.events.candidates(&event.event_id);
        records.retain(|record| *record < event.offset && self.room.aside(*record).is_some());
        records.into_iter().max()
    }

    /// The state after an event; `None` if it has no place in the room.
    pub fn after(&self, event: &StoredEvent) -> Result<Option<StateView>, ChainError> {
        if is_alone(event) {
            return Ok(Some(self.as_of(event.offset)));
        }
        let Some(before) = self.before(event)? else { return Ok(None) };
        match event.aside.as_deref() {
            Some((Outcome::Rejected { .. }, _)) => Ok(Some(before)),
            _ => Ok(Some(self.with(before, event)?)),
        }
    }

    /// A state after a state event is added to it.
    pub fn with(&self, view: StateView, event: &StoredEvent) -> Result<StateView, ChainError> {
        let Some((event_type, state_key)) = event.key() else { return Ok(view) };
        let mut tree = self.tree(&view)?;
        let mut memo = self.memo();
        let (key, record) =
            (memo.number(&event_type, &state_key), self.record_of(&mut memo, event));
        tree.set(key, record);
        Ok(StateView::Own(tree))
    }

    pub fn state_of(
        &self,
        events: impl IntoIterator<Item = ((StateEventType, Box<str>), Offset)>,
    ) -> StateView {
        let (mut memo, mut tree) = (self.memo(), StateTree::default());
        for ((event_type, state_key), offset) in events {
            tree.set(memo.number(&event_type, &state_key), offset.get());
        }
        StateView::Own(tree)
    }

    /// The auth chains of these events, together.
    pub fn chain<'e>(
        &self,
        events: impl Iterator<Item = &'e OwnedEventId>,
    ) -> Result<HashSet<OwnedEventId>, ChainError> {
        let mut chain = HashSet::new();
        let mut todo: Vec<OwnedEventId> = events.cloned().collect();
        let mut seen: HashSet<OwnedEventId> = todo.iter().cloned().collect();
        while let Some(event_id) = todo.pop() {
            self.visit()?;
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

    /// The events on the paths from one of these to another through `auth_events`, ends included
    /// (room version 12, "Conflicted state subgraph").
    pub fn between<'e>(
        &self,
        ends: impl Iterator<Item = &'e OwnedEventId>,
    ) -> Result<HashSet<OwnedEventId>, ChainError> {
        let ends: HashSet<OwnedEventId> = ends.cloned().collect();
        // Whether a path leads on to an end. An event is done after all its auth events.
        let mut leads: HashMap<OwnedEventId, bool> = HashMap::new();
        let mut todo: Vec<(OwnedEventId, bool)> =
            ends.iter().map(|event_id| (event_id.clone(), false)).collect();
        while let Some((event_id, auth_events_done)) = todo.pop() {
            if leads.contains_key(&event_id) {
                continue;
            }
            self.visit()?;
            let event = self.find(&event_id)?;
            let auth = event.map(|event| event.auth_events.clone()).unwrap_or_default();
            if auth_events_done {
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

/// A step from a state to a later one.
struct Step {
    changes: Vec<(u32, u64)>,
    /// The record before which the room has the resulting state.
    before: Option<Offset>,
}

impl Step {
    fn changes(memo: &mut Memo, offset: Offset, noted: &StateBefore) -> Self {
        let changes = noted.changes.iter().map(|change| {
            let event_type = StateEventType::from(change.event_type.as_str());
            let key = memo.number(&event_type, &change.state_key);
            (key, change.event.map_or(0, Offset::get))
        });
        Self { changes: changes.collect(), before: Some(offset) }
    }
}

/// Whether the room had no other forward extremity when this event came, so that the state after it
/// was the room's.
fn is_alone(event: &StoredEvent) -> bool {
    event.aside.is_none()
        && event.received.as_ref().is_none_or(|received| received.extremities.is_empty())
}
