//! State resolution as `ruma-state-res` has it, on whole states and auth chains: slow, and
//! independent of this server's own.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
};

use ruma::{
    EventId, OwnedEventId,
    room_version_rules::StateResolutionVersion,
    state_res::{self, StateMap},
};

use super::explain::Unexplained;
use logcabin_read::branches::{Branches, Keys, StateView};
use logcabin_record::Offset;

/// The different states of branches, as event ids with their offsets; `None` if all branches have
/// the same state.
pub(super) fn state_maps(
    branches: &Branches<'_>,
    views: &[StateView],
) -> Result<Option<StateMaps>, Unexplained> {
    let mut states: Vec<Keys> = Vec::new();
    for view in views {
        let keys = branches.keys(view)?;
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
) -> Result<StateMap<OwnedEventId>, Unexplained> {
    let unresolved = |why: &dyn std::fmt::Display| {
        Unexplained::Failed(format!("the room's branches cannot be resolved: {why}"))
    };
    let StateResolutionVersion::V2(rules) = &branches.room.rules.state_res else {
        return Err(unresolved(&"the room's version is too old"));
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
    resolved.map_err(|error| unresolved(&error))
}
