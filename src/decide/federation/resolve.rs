//! The state of a room where branches of its graph meet (room version 2 and later, "State
//! resolution").
//!
//! The current state as of an offset is the resolution of the states after all forward extremities
//! as of that offset.

use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap, HashSet},
};

use ruma::{
    EventId, OwnedEventId,
    events::StateEventType,
    room_version_rules::StateResolutionVersion,
    state_res::{self, StateMap},
};

use crate::{
    base::{
        limits,
        metrics::{Tried, metrics},
    },
    decide::Refusal,
    log::ReadError,
    read::branches::{Branches, ChainError, Keys, View},
    record::{
        Offset,
        command::{Conflict, SaidLifetime, StateChange},
    },
    state::{RETENTION, lifetime, lifetimes::Own},
};

/// Why a state cannot be computed.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoState {
    /// The state at these events is not known.
    #[error("events before it are missing")]
    Missing(Vec<OwnedEventId>),
    /// There is too much to examine.
    #[error("the room's branches have {0}")]
    TooMuch(ChainError),
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
            ChainError::Read(error) => Self::Refused(error.into()),
        }
    }
}

impl From<ReadError> for NoState {
    fn from(error: ReadError) -> Self {
        Self::Refused(error.into())
    }
}

/// The state after each of these events.
pub(super) fn after_each<'e>(
    branches: &Branches<'_>,
    events: impl IntoIterator<Item = &'e EventId>,
) -> Result<Vec<View>, NoState> {
    let (mut views, mut missing) = (Vec::new(), Vec::new());
    for event_id in events {
        match branches.find(event_id)?.and_then(|event| branches.after(&event)) {
            Some(view) => views.push(view),
            None => missing.push(event_id.to_owned()),
        }
    }
    if missing.is_empty() { Ok(views) } else { Err(NoState::Missing(missing)) }
}

/// The resolved state of several branches, and the conflicts between them.
pub(super) fn resolve(
    branches: &Branches<'_>,
    views: Vec<View>,
) -> Result<(View, Vec<Conflict>), NoState> {
    let Some((maps, offsets)) = state_maps(branches, &views)? else {
        // Any of them will do.
        let first = views.into_iter().next();
        return first.map(|view| (view, Vec::new())).ok_or(NoState::Missing(Vec::new()));
    };
    let chains: Result<Vec<_>, _> = maps.iter().map(|map| branches.chain(map.values())).collect();
    let resolved = chains.map_err(NoState::from).and_then(|chains| run(branches, &maps, chains));
    let outcome = if resolved.is_ok() { Tried::Done } else { Tried::Failed };
    metrics().federation_resolutions.of_value(outcome).inc();
    let resolved = resolved?;
    let conflicts = conflicts(&maps, &resolved);
    let mut keys = Keys::new();
    for ((event_type, state_key), event_id) in resolved {
        let offset = match offsets.get(&event_id) {
            Some(offset) => *offset,
            // The auth difference may bring in events that are in no branch's state.
            None => match branches.find(&event_id)? {
                Some(event) => event.offset,
                None => continue,
            },
        };
        keys.insert((event_type, state_key.into()), offset);
    }
    Ok((View::Own(keys), conflicts))
}

/// The different states of branches, as event ids with their offsets; `None` if all branches have
/// the same state.
pub(super) fn state_maps(
    branches: &Branches<'_>,
    views: &[View],
) -> Result<Option<StateMaps>, NoState> {
    let mut distinct: Vec<&View> = Vec::new();
    for view in views {
        if !distinct.contains(&view) {
            distinct.push(view);
        }
    }
    if distinct.len() < 2 {
        return Ok(None);
    }
    let mut states: Vec<Keys> = Vec::new();
    for view in distinct {
        let keys = branches.keys(view);
        if !states.contains(&keys) {
            states.push(keys);
        }
    }
    if states.len() < 2 {
        return Ok(None);
    }
    let mut offsets = HashMap::new();
    let mut maps: Vec<StateMap<OwnedEventId>> = Vec::new();
    for keys in &states {
        let mut map = StateMap::new();
        for ((event_type, state_key), offset) in keys {
            let Some(event) = branches.get(*offset)? else { continue };
            offsets.insert(event.event_id.clone(), *offset);
            map.insert((event_type.clone(), state_key.to_string()), event.event_id.clone());
            branches.note(&event);
        }
        maps.push(map);
    }
    Ok(Some((maps, offsets)))
}

/// States as event ids, with the offsets of these events.
pub(super) type StateMaps = (Vec<StateMap<OwnedEventId>>, HashMap<OwnedEventId, Offset>);

pub(super) fn run(
    branches: &Branches<'_>,
    maps: &[StateMap<OwnedEventId>],
    chains: Vec<HashSet<OwnedEventId>>,
) -> Result<StateMap<OwnedEventId>, NoState> {
    let StateResolutionVersion::V2(rules) = &branches.room.rules.state_res else {
        return Err(NoState::Failed("the room's version is too old".to_owned()));
    };
    let failed = RefCell::new(None);
    let fetch = |event_id: &EventId| match branches.find(event_id) {
        Ok(found) => found,
        Err(error) => {
            *failed.borrow_mut() = Some(error);
            None
        }
    };
    let chains = chains.into_iter().map(|chain| chain.into_iter().collect()).collect();
    let subgraph = |conflicted: &StateMap<Vec<OwnedEventId>>| {
        let between = branches.between(conflicted.values().flatten());
        between.ok().map(|events| events.into_iter().collect())
    };
    let rules_of_events = &branches.room.rules.authorization;
    let resolved = state_res::resolve(rules_of_events, rules, maps, chains, fetch, subgraph);
    if let Some(error) = failed.into_inner() {
        return Err(error.into());
    }
    resolved.map_err(|error| NoState::Failed(error.to_string()))
}

/// The differences of `to` from `from`.
pub(super) fn changes(
    branches: &Branches<'_>,
    from: &View,
    to: &View,
) -> Result<Vec<StateChange>, ReadError> {
    if from == to {
        return Ok(Vec::new());
    }
    let (from, to) = (branches.keys(from), branches.keys(to));
    let all: BTreeSet<_> = from.keys().chain(to.keys()).collect();
    let mut changes = Vec::new();
    for key in all {
        let event = to.get(key).copied();
        if from.get(key).copied() == event {
            continue;
        }
        let membership = match event {
            Some(event) if key.0 == StateEventType::RoomMember => membership(branches, event)?,
            _ => None,
        };
        changes.push(StateChange {
            event_type: key.0.to_string(),
            state_key: key.1.to_string(),
            event,
            membership,
            lifetime: None,
        });
    }
    Ok(changes)
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
        change.lifetime = said.map(|Own { max_ms, min_ms }| SaidLifetime { max_ms, min_ms });
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

/// The keys for which branches had different events.
fn conflicts(maps: &[StateMap<OwnedEventId>], resolved: &StateMap<OwnedEventId>) -> Vec<Conflict> {
    let all: BTreeSet<_> = maps.iter().flat_map(StateMap::keys).collect();
    let mut conflicts = Vec::new();
    for key in all {
        let held: BTreeSet<_> = maps.iter().map(|map| map.get(key)).collect();
        if held.len() > 1 && conflicts.len() < limits::RESOLUTION_CONFLICTS {
            conflicts.push(Conflict {
                event_type: key.0.to_string(),
                state_key: key.1.clone(),
                events: held.into_iter().flatten().cloned().collect(),
                winner: resolved.get(key).cloned(),
            });
        }
    }
    conflicts
}
