//! Why state resolution decided as it did, derived from the recorded events.
//!
//! The record of an event holds the events that the branches had for a key, and the one that now
//! holds it. The rule that decided follows from the events, so it is not recorded. [`explain`]
//! repeats the steps of the algorithm (room version 2, "State resolution", and room version 12),
//! and compares the result with the record. It names rules only if both agree. They may differ:
//! content that rules depend on may have been erased since.

use std::collections::{BTreeSet, HashMap, HashSet};

use ruma::{
    EventId, OwnedEventId, OwnedUserId,
    events::room::power_levels::UserPowerLevel,
    events::{StateEventType, TimelineEventType},
    room_version_rules::StateResolutionVersion,
    state_res::{
        StateMap, auth_types_for_event, check_state_dependent_auth_rules,
        events::{RoomCreateEvent, RoomPowerLevelsEvent, RoomPowerLevelsIntField},
    },
};
use serde::Serialize;

use super::{
    explain_v1::Steps,
    reference::{run, state_maps},
};
use logcabin_base::limits;
use logcabin_read::{
    branches::{Branches, ChainError, StateView, is_about_power},
    events::{EventRef, EventStore, StoredEvent},
};
use logcabin_record::{Offset, command::Conflict};
use logcabin_state::{Room, State};

/// The outcome of state resolution for a key for which the branches had different events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dispute {
    #[serde(rename = "type")]
    pub event_type: String,
    pub state_key: String,
    /// The event that holds the key, if any does.
    pub winner: Option<OwnedEventId>,
    /// The events that were considered, in the order in which state resolution looked at them: each
    /// one that is allowed replaces the previous one.
    pub events: Vec<Contender>,
}

/// An event that was considered for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Contender {
    pub event_id: OwnedEventId,
    pub record: Offset,
    /// Who sent it.
    pub sender: OwnedUserId,
    /// When, by the clock of the sender's homeserver, in milliseconds since the Unix epoch.
    pub origin_server_ts: u64,
    /// Its outcome.
    pub fate: Fate,
}

/// The outcome for an event that was considered for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It holds the key.
    Holds,
    /// It was allowed, but the event that holds the key came after it, by this rule.
    Replaced {
        #[serde(flatten)]
        by: Rule,
    },
    /// The state resolved before it did not allow it.
    NotAllowed {
        /// The authorisation rule that it breaks.
        reason: String,
    },
    /// It was allowed, but all branches have another event for the key.
    Agreed,
    /// It came after one that was not allowed; room version 1 stops there.
    NotReached,
    /// State resolution may not use it: for example, it can no longer be read.
    Unknown,
}

/// Why an event comes after another in the order in which state resolution looks at them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Rule {
    /// It depends on the other, as one of its auth events or theirs.
    RestsOnIt,
    /// Events that may take somebody's power come first. The other is one, or an auth event of one,
    /// and this one is not.
    PowerEventsFirst,
    /// It depends on an event that comes after the other.
    RestsOnLater,
    /// The power of the other's sender is greater: the greater power comes first.
    SenderPower {
        /// The power of its sender.
        power: String,
        /// The power of the other's sender.
        other: String,
    },
    /// The other depends on older power levels. Counts how many levels each is behind the current
    /// ones.
    Mainline {
        /// The number of power levels newer than its own; `None` if it depends on none of them.
        position: Option<usize>,
        /// The same for the other.
        other: Option<usize>,
    },
    /// It has the later time.
    Time,
    /// They have the same time, and its id is greater.
    EventId,
    /// It is deeper in the room's graph (room version 1).
    Depth {
        depth: u64,
        /// The depth of the other.
        other: u64,
    },
    /// They have the same depth, and the SHA-1 of its id is smaller (room version 1).
    IdHash,
}

impl Fate {
    pub fn words(&self) -> String {
        match self {
            Self::Holds => "holds the key".to_owned(),
            Self::Replaced { by } => format!("was replaced: {}", by.words()),
            Self::NotAllowed { reason } => {
                format!("was not allowed when its turn came: {reason}")
            }
            Self::Agreed => "all branches agree on another event".to_owned(),
            Self::NotReached => {
                "was not looked at: one before it was not allowed, and room version 1 ends there"
                    .to_owned()
            }
            Self::Unknown => "can no longer be read".to_owned(),
        }
    }
}

impl Rule {
    /// In words, about the event that was replaced.
    pub fn words(&self) -> String {
        let behind = |position: &Option<usize>| match position {
            None => "on no power levels of the room's line".to_owned(),
            Some(0) => "on the current power levels".to_owned(),
            Some(levels) => format!("on power levels {levels} before the current ones"),
        };
        match self {
            Self::RestsOnIt => "the event that holds the key rests on it".to_owned(),
            Self::PowerEventsFirst => {
                "events about power, and those that they rest on, come before all others".to_owned()
            }
            Self::RestsOnLater => {
                "the event that holds the key rests on one that came later".to_owned()
            }
            Self::SenderPower { power, other } => format!(
                "its sender has more power ({other}) than that of the event that holds the key \
                 ({power}), and so it came first"
            ),
            Self::Mainline { position, other } => format!(
                "it rests {}, and the event that holds the key {}",
                behind(other),
                behind(position)
            ),
            Self::Time => "the event that holds the key has a later time".to_owned(),
            Self::EventId => {
                "both have the same time, and the event that holds the key the greater id"
                    .to_owned()
            }
            Self::Depth { depth, other } => format!(
                "the event that holds the key is deeper in the room's graph ({depth}) than it \
                 ({other})"
            ),
            Self::IdHash => {
                "both have the same depth, and the id of the event that holds the key the smaller \
                 SHA-1"
                    .to_owned()
            }
        }
    }
}

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    /// It cannot be derived.
    #[error("{0}")]
    Failed(String),
    /// The derived result differs from the recorded one.
    #[error("the recorded decision does not follow from what is left of the events")]
    Differs,
}

impl From<ChainError> for Unexplained {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::Read(error) => error.into(),
            error => Self::Failed(format!("the room's branches have {error}")),
        }
    }
}

impl From<logcabin_log::ReadError> for Unexplained {
    fn from(error: logcabin_log::ReadError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Why state resolution decided as it did at `event`, for each key for which the branches had
/// different events; empty if there were no branches.
///
/// # Errors
/// When the record does not follow from the remaining events, or too many would have to be
/// examined.
pub fn explain(
    state: &State,
    events: &EventStore,
    room: &Room,
    event: &StoredEvent,
) -> Result<Vec<Dispute>, Unexplained> {
    let Some(received) = &event.received else { return Ok(Vec::new()) };
    let conflicts = received.resolved.as_ref().map(|of| of.conflicts.as_slice());
    let Some(conflicts) = conflicts.filter(|conflicts| !conflicts.is_empty()) else {
        return Ok(Vec::new());
    };
    let branches = Branches::new(state, events, room);
    let others = received.extremities.iter().map(|tip| &*tip.event_id);
    let mut views = after_each(&branches, others)?;
    let before = branches.before(event)?.ok_or(Unexplained::Differs)?;
    views.push(branches.with(before, event)?);
    let Some((maps, _)) = state_maps(&branches, &views)? else {
        return Err(Unexplained::Differs);
    };
    if room.rules.state_res == StateResolutionVersion::V1 {
        let steps = Steps::new(&branches, &maps)?;
        return conflicts.iter().map(|conflict| steps.dispute(conflict)).collect();
    }
    let chains: Result<Vec<_>, _> = maps.iter().map(|map| branches.chain(map.values())).collect();
    let chains = chains?;
    let resolved = run(&branches, &maps, chains.clone())?;
    let trace = Trace::new(&branches, &maps, chains)?;
    if trace.state != resolved {
        return Err(Unexplained::Differs);
    }
    conflicts.iter().map(|conflict| trace.dispute(conflict)).collect()
}

/// The room's state after an event in its timeline, as `ruma-state-res` resolves that, or, in room
/// version 1, which it does not know, the specification step by step: each key with the event that
/// holds it. It is slow. Tests hold this server's own algorithm to it.
///
/// # Errors
/// When too many events would have to be examined.
#[doc(hidden)]
pub fn state_by_reference(
    state: &State,
    events: &EventStore,
    room: &Room,
    event: &StoredEvent,
) -> Result<StateMap<OwnedEventId>, Unexplained> {
    let branches = Branches::new(state, events, room);
    let others = event.received.iter().flat_map(|received| &received.extremities);
    let mut views = after_each(&branches, others.map(|tip| &*tip.event_id))?;
    let before = branches.before(event)?.ok_or(Unexplained::Differs)?;
    if event.received.as_ref().is_none_or(|received| !received.beside) {
        views.push(branches.with(before, event)?);
    }
    if let Some((maps, _)) = state_maps(&branches, &views)? {
        if room.rules.state_res == StateResolutionVersion::V1 {
            return Ok(Steps::new(&branches, &maps)?.state);
        }
        let chains = maps.iter().map(|map| branches.chain(map.values()));
        let chains: Result<Vec<_>, _> = chains.collect();
        return run(&branches, &maps, chains?);
    }
    let mut agreed = StateMap::new();
    for view in views.iter().take(1) {
        for ((event_type, state_key), offset) in branches.keys(view)? {
            if let Some(event) = branches.get(offset)? {
                agreed.insert((event_type, state_key.into()), event.event_id.clone());
            }
        }
    }
    Ok(agreed)
}

fn after_each<'e>(
    branches: &Branches<'_>,
    events: impl Iterator<Item = &'e EventId>,
) -> Result<Vec<StateView>, Unexplained> {
    let mut views = Vec::new();
    for event_id in events {
        let event = branches.find(event_id)?;
        let view = event.map_or(Ok(None), |event| branches.after(&event))?;
        let missing = || Unexplained::Failed("events before it are missing".to_owned());
        views.push(view.ok_or_else(missing)?);
    }
    Ok(views)
}

/// The steps by which state resolution reached a state.
struct Trace<'a, 'b> {
    branches: &'a Branches<'b>,
    /// The events about power, and those that they depend on, each with the conflicted events that
    /// it names as auth events.
    graph: HashMap<OwnedEventId, BTreeSet<OwnedEventId>>,
    /// All conflicted events, in the order in which they were examined.
    order: Vec<OwnedEventId>,
    /// Why each event that was not allowed was refused.
    refused: HashMap<OwnedEventId, String>,
    /// The power levels that hold after the first phase, their predecessors, and so on.
    mainline: Vec<OwnedEventId>,
    creators: HashSet<OwnedUserId>,
    agreed: StateMap<OwnedEventId>,
    state: StateMap<OwnedEventId>,
}

impl<'a, 'b> Trace<'a, 'b> {
    fn new(
        branches: &'a Branches<'b>,
        maps: &[StateMap<OwnedEventId>],
        chains: Vec<HashSet<OwnedEventId>>,
    ) -> Result<Self, Unexplained> {
        let StateResolutionVersion::V2(rules) = &branches.room.rules.state_res else {
            return Err(Unexplained::Failed("the room's version is too old".to_owned()));
        };
        let (agreed, conflicted) = split(maps);
        let mut all: BTreeSet<OwnedEventId> = difference(chains).collect();
        if rules.consider_conflicted_state_subgraph {
            all.extend(branches.between(conflicted.iter())?);
        }
        all.extend(conflicted);
        let mut known = BTreeSet::new();
        for event_id in all {
            if branches.find(&event_id)?.is_some() {
                known.insert(event_id);
            }
        }
        let mut trace = Self {
            branches,
            graph: HashMap::new(),
            order: Vec::new(),
            refused: HashMap::new(),
            mainline: Vec::new(),
            creators: HashSet::new(),
            agreed,
            state: StateMap::new(),
        };
        trace.creators = trace.creators()?;
        trace.link(&known)?;
        let first = trace.sorted_by_power()?;
        if !rules.begin_iterative_auth_checks_with_empty_state_map {
            trace.state = trace.agreed.clone();
        }
        trace.check(&first)?;
        let levels = (StateEventType::RoomPowerLevels, String::new());
        let levels = trace.state.get(&levels).cloned();
        trace.mainline = trace.line(levels)?;
        let rest = known.into_iter().filter(|event_id| !trace.graph.contains_key(event_id));
        let rest = trace.sorted_by_mainline(rest.collect())?;
        trace.check(&rest)?;
        trace.order = first.into_iter().chain(rest).collect();
        trace.state.extend(trace.agreed.clone());
        Ok(trace)
    }

    fn event(&self, event_id: &OwnedEventId) -> Result<EventRef, Unexplained> {
        self.branches.find(event_id)?.ok_or(Unexplained::Differs)
    }

    fn create(&self) -> Result<Option<EventRef>, Unexplained> {
        let create = self.branches.room.create_event();
        Ok(create.map_or(Ok(None), |create| self.branches.get(create))?)
    }

    fn creators(&self) -> Result<HashSet<OwnedUserId>, Unexplained> {
        let rules = &self.branches.room.rules.authorization;
        let create = self.create()?;
        let creators = create.map(|create| RoomCreateEvent::new(create).creators(rules));
        creators.transpose().map(Option::unwrap_or_default).map_err(Unexplained::Failed)
    }

    /// Adds the events about power among `all` to the graph, and those that they depend on.
    fn link(&mut self, all: &BTreeSet<OwnedEventId>) -> Result<(), Unexplained> {
        for first in all {
            if !is_about_power(&self.event(first)?) {
                continue;
            }
            let mut todo = vec![first.clone()];
            while let Some(event_id) = todo.pop() {
                if self.graph.contains_key(&event_id) {
                    continue;
                }
                let event = self.event(&event_id)?;
                let rests_on: BTreeSet<_> =
                    event.auth_events.iter().filter(|auth| all.contains(*auth)).cloned().collect();
                todo.extend(rests_on.iter().cloned());
                self.graph.insert(event_id, rests_on);
            }
        }
        Ok(())
    }

    /// The power of an event's sender, by the power levels that it depends on.
    fn power(&self, event: &EventRef) -> Result<UserPowerLevel, Unexplained> {
        let rules = &self.branches.room.rules.authorization;
        if rules.explicitly_privilege_room_creators && self.creators.contains(&event.sender) {
            return Ok(UserPowerLevel::Infinite);
        }
        let failed = Unexplained::Failed;
        if let Some(levels) = self.levels_of(event)? {
            let levels = RoomPowerLevelsEvent::new(levels);
            return Ok(levels.user_power_level(&event.sender, rules).map_err(failed)?.into());
        }
        let default = RoomPowerLevelsIntField::UsersDefault.default_value();
        let level = if self.creators.contains(&event.sender) { ruma::int!(100) } else { default };
        Ok(level.into())
    }

    /// The power levels that an event depends on.
    fn levels_of(&self, event: &StoredEvent) -> Result<Option<EventRef>, Unexplained> {
        for auth in &event.auth_events {
            if let Some(auth) = self.branches.find(auth)?
                && auth.event_type == TimelineEventType::RoomPowerLevels
                && auth.state_key.as_deref() == Some("")
            {
                return Ok(Some(auth));
            }
        }
        Ok(None)
    }

    /// The sort key of events about power that may both come next: the smaller comes first.
    fn rank(&self, event_id: &OwnedEventId) -> Result<PowerRank, Unexplained> {
        let event = self.event(event_id)?;
        let power = self.power(&event)?;
        Ok((std::cmp::Reverse(power), event.origin_server_ts.get().into(), event_id.clone()))
    }

    /// The reverse topological power ordering.
    fn sorted_by_power(&self) -> Result<Vec<OwnedEventId>, Unexplained> {
        let mut left = self.graph.clone();
        let mut over: HashMap<&OwnedEventId, Vec<&OwnedEventId>> = HashMap::new();
        for (event_id, rests_on) in &self.graph {
            for auth in rests_on {
                over.entry(auth).or_default().push(event_id);
            }
        }
        let mut next = BTreeSet::new();
        for (event_id, rests_on) in &self.graph {
            if rests_on.is_empty() {
                next.insert(self.rank(event_id)?);
            }
        }
        let mut sorted = Vec::new();
        while let Some((_, _, event_id)) = next.pop_first() {
            for above in over.get(&event_id).into_iter().flatten() {
                let Some(rests_on) = left.get_mut(*above) else { continue };
                rests_on.remove(&event_id);
                if rests_on.is_empty() {
                    next.insert(self.rank(above)?);
                }
            }
            sorted.push(event_id);
        }
        Ok(sorted)
    }

    /// The power levels `of`, those that they depend on, and so on.
    fn line(&self, of: Option<OwnedEventId>) -> Result<Vec<OwnedEventId>, Unexplained> {
        let mut line = Vec::new();
        let mut next = of.map(|of| self.event(&of)).transpose()?;
        while let Some(levels) = next {
            if line.len() >= limits::RESOLUTION_EVENTS {
                return Err(Unexplained::Differs);
            }
            line.push(levels.event_id.clone());
            next = self.levels_of(&levels)?;
        }
        Ok(line)
    }

    /// How many power levels of the mainline are newer than those that an event depends on; `None`
    /// if it depends on none of them.
    fn position(&self, event: &EventRef) -> Result<Option<usize>, Unexplained> {
        let mut next = Some(EventRef::clone(event));
        while let Some(event) = next {
            if let Some(position) = self.mainline.iter().position(|of| *of == event.event_id) {
                return Ok(Some(position));
            }
            next = self.levels_of(&event)?;
        }
        Ok(None)
    }

    /// The mainline ordering.
    fn sorted_by_mainline(
        &self,
        events: Vec<OwnedEventId>,
    ) -> Result<Vec<OwnedEventId>, Unexplained> {
        let mut sorted = Vec::new();
        for event_id in events {
            let event = self.event(&event_id)?;
            // Events that depend on none come first, then those that depend on the oldest.
            let place = self.position(&event)?.map(std::cmp::Reverse);
            sorted.push((place, event.origin_server_ts, event_id));
        }
        sorted.sort();
        Ok(sorted.into_iter().map(|(_, _, event_id)| event_id).collect())
    }

    /// The iterative auth checks.
    fn check(&mut self, events: &[OwnedEventId]) -> Result<(), Unexplained> {
        let rules = &self.branches.room.rules.authorization;
        for event_id in events {
            let event = self.event(event_id)?;
            let mut rests_on: StateMap<EventRef> = StateMap::new();
            let is_good = |event: &EventRef| !ruma::state_res::Event::rejected(&**event);
            let key = |event: &StoredEvent| {
                let (event_type, state_key) = event.key()?;
                Some((event_type, String::from(state_key)))
            };
            for auth in &event.auth_events {
                if let Some(auth) = self.branches.find(auth)?.filter(is_good)
                    && let Some(key) = key(&auth)
                {
                    rests_on.insert(key, auth);
                }
            }
            if rules.room_create_event_id_as_room_id
                && event.event_type != TimelineEventType::RoomCreate
                && let Some(create) = self.create()?
            {
                rests_on.insert((StateEventType::RoomCreate, String::new()), create);
            }
            let Some(own_key) = key(&event) else { return Err(Unexplained::Differs) };
            let needed = auth_types_for_event(
                &event.event_type,
                &event.sender,
                Some(&own_key.1),
                &event.content,
                rules,
            );
            let allowed = match needed {
                Err(reason) => Err(reason),
                Ok(needed) => {
                    for key in needed {
                        if let Some(auth) = self.state.get(&key)
                            && let Some(auth) = self.branches.find(auth)?.filter(is_good)
                        {
                            rests_on.insert(key, auth);
                        }
                    }
                    let find = |event_type: &StateEventType, state_key: &str| {
                        rests_on.get(&(event_type.clone(), state_key.to_owned())).cloned()
                    };
                    check_state_dependent_auth_rules(rules, &*event, find)
                }
            };
            match allowed {
                Ok(()) => drop(self.state.insert(own_key, event_id.clone())),
                Err(reason) => drop(self.refused.insert(event_id.clone(), reason)),
            }
        }
        Ok(())
    }

    fn dispute(&self, conflict: &Conflict) -> Result<Dispute, Unexplained> {
        let key = (StateEventType::from(conflict.event_type.as_str()), conflict.state_key.clone());
        let winner = self.state.get(&key).cloned();
        if winner != conflict.winner {
            return Err(Unexplained::Differs);
        }
        let mut events = Vec::new();
        let mut seen = HashSet::new();
        let given = conflict.events.iter().filter(|event_id| !self.order.contains(event_id));
        for event_id in self.order.iter().chain(given) {
            let Some(event) = self.branches.find(event_id)? else { continue };
            let is_of_key = event.key().is_some_and(|(event_type, state_key)| {
                (event_type, &*state_key) == (key.0.clone(), &*key.1)
            });
            if !is_of_key || !seen.insert(event_id.clone()) {
                continue;
            }
            events.push(Contender {
                fate: self.fate(event_id, winner.as_ref())?,
                event_id: event_id.clone(),
                record: event.offset,
                sender: event.sender.clone(),
                origin_server_ts: event.origin_server_ts.get().into(),
            });
        }
        let Conflict { event_type, state_key, .. } = conflict.clone();
        Ok(Dispute { event_type, state_key, winner, events })
    }

    fn fate(
        &self,
        event_id: &OwnedEventId,
        winner: Option<&OwnedEventId>,
    ) -> Result<Fate, Unexplained> {
        if winner == Some(event_id) {
            return Ok(Fate::Holds);
        }
        if let Some(reason) = self.refused.get(event_id) {
            return Ok(Fate::NotAllowed { reason: reason.clone() });
        }
        let Some(winner) = winner else { return Ok(Fate::Unknown) };
        if self.agreed.values().any(|agreed| agreed == winner) {
            return Ok(Fate::Agreed);
        }
        let place = |of: &OwnedEventId| self.order.iter().position(|event_id| event_id == of);
        let (Some(own), Some(other)) = (place(event_id), place(winner)) else {
            return Ok(Fate::Unknown);
        };
        if own > other {
            return Err(Unexplained::Differs);
        }
        Ok(Fate::Replaced { by: self.rule(winner, event_id)? })
    }

    /// Why an event comes after another.
    fn rule(&self, later: &OwnedEventId, sooner: &OwnedEventId) -> Result<Rule, Unexplained> {
        match (self.graph.contains_key(later), self.graph.contains_key(sooner)) {
            (false, true) => return Ok(Rule::PowerEventsFirst),
            (true, false) => return Err(Unexplained::Differs),
            (true, true) => {
                if self.rests_on(later, sooner) {
                    return Ok(Rule::RestsOnIt);
                }
                let (of_later, of_sooner) = (self.rank(later)?, self.rank(sooner)?);
                return Ok(match of_sooner.cmp(&of_later) {
                    std::cmp::Ordering::Less => match (of_later, of_sooner) {
                        (later, sooner) if later.0 != sooner.0 => {
                            Rule::SenderPower { power: level(later.0.0), other: level(sooner.0.0) }
                        }
                        (later, sooner) if later.1 != sooner.1 => Rule::Time,
                        _ => Rule::EventId,
                    },
                    _ => Rule::RestsOnLater,
                });
            }
            (false, false) => {}
        }
        let (later, sooner) = (self.event(later)?, self.event(sooner)?);
        let (position, other) = (self.position(&later)?, self.position(&sooner)?);
        Ok(if position != other {
            Rule::Mainline { position, other }
        } else if later.origin_server_ts != sooner.origin_server_ts {
            Rule::Time
        } else {
            Rule::EventId
        })
    }

    /// Whether an event about power depends on another.
    fn rests_on(&self, event_id: &OwnedEventId, other: &OwnedEventId) -> bool {
        let mut todo = vec![event_id];
        let mut seen = HashSet::new();
        while let Some(event_id) = todo.pop() {
            for auth in self.graph.get(event_id).into_iter().flatten() {
                if auth == other {
                    return true;
                }
                if seen.insert(auth) {
                    todo.push(auth);
                }
            }
        }
        false
    }
}

/// The power of the sender, the time and the id.
type PowerRank = (std::cmp::Reverse<UserPowerLevel>, u64, OwnedEventId);

fn level(level: UserPowerLevel) -> String {
    match level {
        UserPowerLevel::Int(level) => level.to_string(),
        _ => "that of a creator".to_owned(),
    }
}

/// The keys for which all branches have the same event, and the events of the others.
fn split(maps: &[StateMap<OwnedEventId>]) -> (StateMap<OwnedEventId>, BTreeSet<OwnedEventId>) {
    let (mut agreed, mut conflicted) = (StateMap::new(), BTreeSet::new());
    for (key, event_id) in maps.iter().flatten() {
        if maps.iter().all(|map| map.get(key) == Some(event_id)) {
            agreed.insert(key.clone(), event_id.clone());
        } else {
            conflicted.insert(event_id.clone());
        }
    }
    (agreed, conflicted)
}

/// The events that are in some of these sets, but not in all of them.
fn difference(sets: Vec<HashSet<OwnedEventId>>) -> impl Iterator<Item = OwnedEventId> {
    let many = sets.len();
    let mut counts: HashMap<OwnedEventId, usize> = HashMap::new();
    for event_id in sets.into_iter().flatten() {
        *counts.entry(event_id).or_default() += 1;
    }
    counts.into_iter().filter(move |(_, count)| *count < many).map(|(event_id, _)| event_id)
}
