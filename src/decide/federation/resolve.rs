//! The state of a room where branches of its graph meet ("State resolution" of the room
//! versions).
//!
//! The current state as of an offset is the resolution of the states after all forward extremities
//! as of that offset.

use std::{collections::BTreeSet, sync::Arc};

use ruma::{
    EventId, OwnedEventId, events::StateEventType, room_version_rules::StateResolutionVersion,
};

use super::{resolution, resolution_v1};
use crate::Refusal;
use logcabin_base::{
    limits,
    metrics::{Tried, metrics},
};
use logcabin_log::ReadError;
use logcabin_read::{
    branches::{Branches, ChainError, Memo, NOBODY, Resolved, StateTree, StateView},
    events::EventRef,
};
use logcabin_record::{
    Offset,
    command::{Conflict, SaidLifetime, StateChange},
    division::recorded,
};
use logcabin_state::{RETENTION, lifetime, lifetimes::RoomRetention};

/// Why a state cannot be computed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoState {
    /// The state at these events is not known.
    #[error("events before it are missing")]
    Missing(Vec<OwnedEventId>),
    /// There is too much to examine.
    #[error("the room's branches have {0}")]
    TooMuch(ChainError),
    /// It takes too long to do while the room's other events wait.
    #[error("the room's branches have {0}")]
    Unprepared(ChainError),
    /// An event was decided again meanwhile.
    #[error("the room's branches have {0}")]
    Changed(ChainError),
    /// More bytes of changes than one event may make.
    #[error("the room's branches differ in too much ({0} bytes)")]
    TooLarge(usize),
    /// It rests on what another homeserver told, and does not allow an event that the current state
    /// and its auth events allow.
    #[error("the state before it is what another homeserver told")]
    Disputed,
    /// The algorithm failed.
    #[error("the room's branches cannot be resolved: {0}")]
    Failed(String),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<ChainError> for NoState {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::TooMany => Self::TooMuch(error),
            ChainError::Unprepared => Self::Unprepared(error),
            ChainError::Changed => Self::Changed(error),
            ChainError::Read(error) => Self::Refused(error.into()),
        }
    }
}

impl From<ReadError> for NoState {
    fn from(error: ReadError) -> Self {
        Self::Refused(error.into())
    }
}

impl NoState {
    pub(super) fn refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            other => Refusal::BadState(other.to_string()),
        }
    }
}

/// How often a resolution starts over because an event that it looks at was decided again.
const CHANGES: usize = 3;

/// The state after each of these events.
pub(super) fn after_each<'e>(
    branches: &Branches<'_>,
    events: impl IntoIterator<Item = &'e EventId>,
) -> Result<Vec<StateView>, NoState> {
    let (mut views, mut missing) = (Vec::new(), Vec::new());
    for event_id in events {
        let event = branches.find(event_id)?;
        match event.map_or(Ok(None), |event| branches.after(&event))? {
            Some(view) => views.push(view),
            None => missing.push(event_id.to_owned()),
        }
    }
    if missing.is_empty() { Ok(views) } else { Err(NoState::Missing(missing)) }
}

/// The different ones among some states.
#[derive(Debug)]
pub(super) struct States {
    /// By their hashes.
    trees: Vec<StateTree>,
    /// One of the states, as it is best referred to.
    any: StateView,
}

impl States {
    pub(super) fn new(branches: &Branches<'_>, views: Vec<StateView>) -> Result<Self, NoState> {
        let mut trees = Vec::with_capacity(views.len());
        for view in &views {
            trees.push(branches.tree(view)?);
        }
        trees.sort_unstable_by_key(StateTree::hash);
        trees.dedup();
        let of_room = views.iter().position(|view| matches!(view, StateView::AsOf(_)));
        let any = views.into_iter().nth(of_room.unwrap_or(0));
        Ok(Self { trees, any: any.ok_or(NoState::Missing(Vec::new()))? })
    }

    pub(super) fn hashes(&self) -> Vec<u128> {
        self.trees.iter().map(StateTree::hash).collect()
    }

    /// What state resolution makes of them.
    pub(super) fn resolve(self, branches: &Branches<'_>) -> Result<Joined, NoState> {
        let Self { trees, any } = self;
        if trees.len() < 2 {
            return Ok(Joined { view: any, of: None });
        }
        let hashes: Vec<_> = trees.iter().map(StateTree::hash).collect();
        let mut memo = branches.memo();
        let known = memo.resolutions.get(&hashes).cloned();
        let resolved = match known {
            Some(known) => known,
            None => {
                let made = match run(branches, &mut memo, &trees) {
                    Ok(made) => Some(Arc::new(made)),
                    Err(NoState::TooMuch(_)) => None,
                    Err(error) => return Err(error),
                };
                memo.resolutions.put(hashes, made.clone(), limits::RESOLUTION_RESULTS);
                made
            }
        };
        let resolved = resolved.ok_or(NoState::TooMuch(ChainError::TooMany))?;
        Ok(Joined { view: StateView::Own(resolved.state.clone()), of: Some((trees, resolved)) })
    }
}

fn run(branches: &Branches<'_>, memo: &mut Memo, trees: &[StateTree]) -> Result<Resolved, NoState> {
    memo.keep_space();
    let is_fresh = !memo.knows_events();
    let mut outcome = of_memo(branches, memo, trees);
    if !is_fresh && matches!(outcome, Err(NoState::TooMuch(_))) {
        // The limit must not depend on what was known before.
        memo.forget_events();
        outcome = of_memo(branches, memo, trees);
    }
    if !matches!(outcome, Err(NoState::Unprepared(_))) {
        let tried = if outcome.is_ok() { Tried::Done } else { Tried::Failed };
        metrics().federation_resolutions.of_value(tried).inc();
    }
    outcome
}

fn of_memo(
    branches: &Branches<'_>,
    memo: &mut Memo,
    trees: &[StateTree],
) -> Result<Resolved, NoState> {
    let resolved = match branches.room.rules.state_res {
        StateResolutionVersion::V1 => resolution_v1::resolved,
        _ => resolution::resolved,
    };
    branches.begin_work();
    let mut outcome = resolved(branches, memo, trees);
    for _ in 0..CHANGES {
        if !matches!(outcome, Err(NoState::Changed(_))) {
            break;
        }
        outcome = resolved(branches, memo, trees);
    }
    outcome
}

/// The record of an event that holds a key: the one from one of the states, if the event is in any.
pub(super) fn record(
    branches: &Branches<'_>,
    memo: &mut Memo,
    trees: &[StateTree],
    (key, event): (u32, u32),
) -> Result<u64, NoState> {
    for tree in trees {
        let record = tree.get(key);
        if record != 0 && branches.know_record(memo, record)? == event {
            return Ok(record);
        }
    }
    Ok(memo.event(event).map_or(0, |known| known.record))
}

/// The event of a number, if it has a record.
pub(super) fn read(
    branches: &Branches<'_>,
    memo: &Memo,
    event: u32,
) -> Result<Option<EventRef>, ReadError> {
    match memo.event(event) {
        Some(known) if known.record != 0 => branches.get(Memo::offset(known.record)),
        _ => Ok(None),
    }
}

/// The result of resolving several states.
pub(super) struct Joined {
    pub(super) view: StateView,
    /// The states and what state resolution made of them, if they differ.
    of: Option<(Vec<StateTree>, Arc<Resolved>)>,
}

impl Joined {
    /// A state that nothing conflicts with.
    pub(super) const fn plain(view: StateView) -> Self {
        Self { view, of: None }
    }

    /// The conflicts about these keys, in which the same key may appear more than once. It is no
    /// conflict if only one branch has an event for a key: that event then holds it.
    pub(super) fn conflicts<'k>(
        &self,
        branches: &Branches<'_>,
        keys: impl Iterator<Item = (StateEventType, &'k str)>,
    ) -> Result<Vec<Conflict>, NoState> {
        let Some((trees, resolved)) = &self.of else { return Ok(Vec::new()) };
        let mut memo = branches.memo();
        let mut conflicts = Vec::new();
        let mut seen = BTreeSet::new();
        let mut left = limits::EVENT_STATE_BYTES;
        for (event_type, state_key) in keys {
            let key = memo.number(&event_type, state_key);
            let is_one = resolved.conflicted.binary_search(&key).is_ok();
            if !is_one || !seen.insert(key) || conflicts.len() >= limits::RESOLUTION_CONFLICTS {
                continue;
            }
            let mut name = |record: u64| -> Result<Option<OwnedEventId>, NoState> {
                if record == 0 {
                    return Ok(None);
                }
                let event = branches.know_record(&mut memo, record)?;
                let known = memo.event(event).filter(|_| event != NOBODY);
                Ok(known.map(|known| known.id.clone()))
            };
            let mut events = BTreeSet::new();
            for tree in trees {
                events.extend(name(tree.get(key))?);
            }
            let winner = name(resolved.state.get(key))?;
            if events.len() == 1 && events.first() == winner.as_ref() {
                continue;
            }
            let conflict = Conflict {
                event_type: event_type.to_string(),
                state_key: state_key.to_owned(),
                events: events.into_iter().collect(),
                winner,
            };
            left = match left.checked_sub(recorded(&conflict)) {
                Some(left) => left,
                None => break,
            };
            conflicts.push(conflict);
        }
        Ok(conflicts)
    }
}

/// How many changes are worth remembering.
const MANY: usize = 32;

/// The differences of `to` from `from`, as changes of a room's current state.
pub(super) fn changes(
    branches: &Branches<'_>,
    from: &StateView,
    to: &StateView,
) -> Result<Vec<StateChange>, NoState> {
    if from == to {
        return Ok(Vec::new());
    }
    let pair = (branches.tree(from)?.hash(), branches.tree(to)?.hash());
    if let Some(known) = branches.memo().changes.get(&pair) {
        return Ok(known.to_vec());
    }
    let changes = changes_once(branches, from, to)?;
    if changes.len() >= MANY {
        let kept = Arc::new(changes.clone());
        branches.memo().changes.put(pair, kept, limits::RESOLUTION_RESULTS / 4);
    }
    Ok(changes)
}

/// The same where nobody will ask again: of a large room, they would be most of what is remembered.
pub(super) fn changes_once(
    branches: &Branches<'_>,
    from: &StateView,
    to: &StateView,
) -> Result<Vec<StateChange>, NoState> {
    let mut changes = differences(branches, from, to)?;
    let of_members = changes.iter_mut().filter(|of| of.event_type == MEMBER);
    for change in of_members {
        let Some(event) = change.event else { continue };
        branches.work(1)?;
        change.membership = membership(branches, event)?;
    }
    Ok(changes)
}

const MEMBER: &str = "m.room.member";

pub(super) fn differences(
    branches: &Branches<'_>,
    from: &StateView,
    to: &StateView,
) -> Result<Vec<StateChange>, NoState> {
    let (from, to) = (branches.tree(from)?, branches.tree(to)?);
    let mut differing = Vec::new();
    let looked = from.differences(&to, |key, _, record| differing.push((key, record)));
    branches.work(looked / 8)?;
    let mut named = Vec::with_capacity(differing.len());
    for (key, record) in differing {
        let event = (record != 0).then(|| Memo::offset(record));
        named.extend(branches.memo().name(key).map(|name| (name.clone(), event)));
    }
    named.sort_unstable();
    let changes = named.into_iter().map(|((event_type, state_key), event)| StateChange {
        event_type: event_type.to_string(),
        state_key: state_key.into(),
        event,
        membership: None,
        lifetime: None,
    });
    Ok(changes.collect())
}

/// Adds the lifetime of events to changes of a room's current state.
pub(super) fn say_lifetimes(
    branches: &Branches<'_>,
    changes: &mut [StateChange],
) -> Result<(), ReadError> {
    let of_lifetimes = changes
        .iter_mut()
        .filter(|of| of.state_key.is_empty() && RETENTION.contains(&&*of.event_type));
    for change in of_lifetimes {
        let Some(event) = change.event else { continue };
        let said = branches.get(event)?.and_then(|event| lifetime(&event.content));
        change.lifetime =
            said.map(|RoomRetention { max_ms, min_ms }| SaidLifetime { max_ms, min_ms });
    }
    Ok(())
}

fn membership(branches: &Branches<'_>, event: Offset) -> Result<Option<String>, ReadError> {
    #[derive(serde::Deserialize)]
    struct Content {
        membership: String,
    }
    let event = branches.get(event)?;
    Ok(event.and_then(|event| event.content_as::<Content>().ok()).map(|is| is.membership))
}
