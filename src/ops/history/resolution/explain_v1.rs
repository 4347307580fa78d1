//! State resolution of room version 1, step by step on whole states: slow, independent of this
//! server's own, and with what it says of each event.

use std::collections::{BTreeMap, HashSet};

use ruma::{
    OwnedEventId,
    events::StateEventType,
    state_res::{StateMap, check_state_dependent_auth_rules},
};

use super::explain::{Contender, Dispute, Fate, Rule, Unexplained};
use logcabin_decide::federation::resolution_v1::{Pass, rank};
use logcabin_read::{branches::Branches, events::EventRef};
use logcabin_record::command::Conflict;

type Key = (StateEventType, String);

/// The outcomes of the events of a key, in their order.
type Fates = Vec<(EventRef, Fate)>;

/// The steps by which a state came about.
pub(super) struct Steps {
    pub(super) state: StateMap<OwnedEventId>,
    disputes: BTreeMap<Key, Fates>,
}

impl Steps {
    pub(super) fn new(
        branches: &Branches<'_>,
        maps: &[StateMap<OwnedEventId>],
    ) -> Result<Self, Unexplained> {
        let mut held: BTreeMap<Key, Vec<EventRef>> = BTreeMap::new();
        for (key, event_id) in maps.iter().flatten() {
            let events = held.entry(key.clone()).or_default();
            if events.iter().any(|event| event.event_id == *event_id) {
                continue;
            }
            branches.work(1)?;
            events.extend(branches.find(event_id)?);
        }
        let mut state: StateMap<EventRef> = StateMap::new();
        let mut open: BTreeMap<Key, Vec<EventRef>> = BTreeMap::new();
        for (key, mut events) in held {
            events.sort_by_key(|event| rank(event));
            match &*events {
                [] => {}
                [only] => drop(state.insert(key, EventRef::clone(only))),
                _ => drop(open.insert(key, events)),
            }
        }
        let mut disputes = BTreeMap::new();
        for pass in Pass::ALL {
            let mut settled = Vec::new();
            for (key, events) in &open {
                if Pass::of(&key.0, &key.1) != pass {
                    continue;
                }
                branches.work(events.len())?;
                let (holder, fates) = match pass {
                    Pass::Others => last_allowed(branches, &state, events),
                    _ => last_in_a_row(branches, &state, key, events),
                };
                settled.push((key.clone(), EventRef::clone(&events[holder])));
                disputes.insert(key.clone(), fates);
            }
            state.extend(settled);
        }
        let state = state.into_iter().map(|(key, event)| (key, event.event_id.clone())).collect();
        Ok(Self { state, disputes })
    }

    /// The outcomes of the events of a recorded conflict.
    pub(super) fn dispute(&self, conflict: &Conflict) -> Result<Dispute, Unexplained> {
        let Conflict { event_type, state_key, events: _, winner } = conflict.clone();
        let key = (StateEventType::from(event_type.as_str()), state_key.clone());
        if self.state.get(&key) != winner.as_ref() {
            return Err(Unexplained::Differs);
        }
        let fates = self.disputes.get(&key).into_iter().flatten();
        let events = fates.map(|(event, fate)| Contender {
            event_id: event.event_id.clone(),
            record: event.offset,
            sender: event.sender.clone(),
            origin_server_ts: event.origin_server_ts.get().into(),
            fate: fate.clone(),
        });
        Ok(Dispute { event_type, state_key, winner, events: events.collect() })
    }
}

/// Whether the rules allow an event in a state, and with `own`, a key and its holder.
fn allowed(
    branches: &Branches<'_>,
    state: &StateMap<EventRef>,
    own: Option<(&Key, &EventRef)>,
    event: &EventRef,
) -> Result<(), String> {
    let find = |event_type: &StateEventType, state_key: &str| {
        let key = (event_type.clone(), state_key.to_owned());
        let own = own.filter(|(of, _)| **of == key).map(|(_, holder)| holder);
        own.or_else(|| state.get(&key)).cloned()
    };
    check_state_dependent_auth_rules(&branches.room.rules.authorization, &**event, find)
}

fn last_in_a_row(
    branches: &Branches<'_>,
    state: &StateMap<EventRef>,
    key: &Key,
    events: &[EventRef],
) -> (usize, Fates) {
    let (mut holder, mut refused) = (0, None);
    for (place, event) in events.iter().enumerate() {
        if place > 0
            && let Err(reason) = allowed(branches, state, Some((key, &events[holder])), event)
        {
            refused = Some((place, reason));
            break;
        }
        holder = place;
    }
    let fate = |(place, event): (usize, &EventRef)| {
        let fate = match &refused {
            Some((at, reason)) if place == *at => Fate::NotAllowed { reason: reason.clone() },
            Some((at, _)) if place > *at => Fate::NotReached,
            _ => fate(place, holder, events),
        };
        (EventRef::clone(event), fate)
    };
    (holder, events.iter().enumerate().map(fate).collect())
}

fn last_allowed(
    branches: &Branches<'_>,
    state: &StateMap<EventRef>,
    events: &[EventRef],
) -> (usize, Fates) {
    let (mut holder, mut refused) = (0, HashSet::new());
    let mut fates = Vec::new();
    for (place, event) in events.iter().enumerate().rev() {
        match allowed(branches, state, None, event) {
            Ok(()) => {
                holder = place;
                break;
            }
            Err(reason) => {
                refused.insert(place);
                fates.push((EventRef::clone(event), Fate::NotAllowed { reason }));
            }
        }
    }
    fates.reverse();
    if refused.contains(&holder) {
        // None is allowed.
        fates.splice(..1, [(EventRef::clone(&events[0]), Fate::Holds)]);
        return (holder, fates);
    }
    let others = events[..=holder].iter().enumerate();
    let others = others.map(|(place, event)| (EventRef::clone(event), fate(place, holder, events)));
    (holder, others.chain(fates).collect())
}

/// The outcome of an event that does not come after the holder.
fn fate(place: usize, holder: usize, events: &[EventRef]) -> Fate {
    if place == holder {
        return Fate::Holds;
    }
    let (depth, other) = (events[holder].depth, events[place].depth);
    let by = if depth == other { Rule::IdHash } else { Rule::Depth { depth, other } };
    Fate::Replaced { by }
}
