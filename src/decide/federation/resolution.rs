//! State resolution of room version 2 and later ("State resolution"; room version 12, the changes
//! to it), at a cost near linear in what the states differ in.
//!
//! `ruma-state-res` has the algorithm, too, and `history why` uses it. It walks the chain of power
//! levels again for each event and needs whole auth chains, so somebody who makes long branches
//! makes each further event as expensive as all of them together. Here, events are numbers, and
//! their auth events, their senders' power and what the rules said of them are remembered (see
//! [`Memo`]). The rules themselves are ruma's. Tests hold both to the same results.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
};

use ruma::{
    EventId, OwnedEventId, OwnedUserId,
    events::{StateEventType, TimelineEventType, room::power_levels::UserPowerLevel},
    room_version_rules::{AuthorizationRules, StateResolutionV2Rules, StateResolutionVersion},
    state_res::{
        auth_types_for_event, check_state_dependent_auth_rules,
        events::{RoomCreateEvent, RoomPowerLevelsEvent, RoomPowerLevelsIntField},
    },
};

use super::resolve::{NoState, read, record};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_read::{
    branches::{Branches, ChainError, Levels, Memo, NOBODY, Resolved, StateTree},
    events::EventRef,
};

/// Resolves different states, of which there are at least two.
pub(super) fn resolved(
    branches: &Branches<'_>,
    memo: &mut Memo,
    trees: &[StateTree],
) -> Result<Resolved, NoState> {
    let StateResolutionVersion::V2(rules) = &branches.room.rules.state_res else {
        return Err(NoState::Failed("the room's version is too old".to_owned()));
    };
    let Some(first) = trees.first().filter(|_| trees.len() < 32) else {
        return Err(NoState::Failed("there are too many of them".to_owned()));
    };
    let auth_rules = &branches.room.rules.authorization;
    let mut resolving = Resolving {
        branches,
        memo,
        rules,
        auth_rules,
        trees,
        first,
        conflicted: HashSet::new(),
        state: HashMap::new(),
        begins_empty: rules.begin_iterative_auth_checks_with_empty_state_map,
        creators: None,
    };
    resolving.run()
}

/// A set of states, by their places in the list of them.
type Mask = u32;

struct Resolving<'a, 'b> {
    branches: &'a Branches<'b>,
    memo: &'a mut Memo,
    rules: &'a StateResolutionV2Rules,
    auth_rules: &'a AuthorizationRules,
    trees: &'a [StateTree],
    first: &'a StateTree,
    /// The keys for which the states have different events.
    conflicted: HashSet<u32>,
    /// The events that hold keys so far, beside the unconflicted ones.
    state: HashMap<u32, u32>,
    /// Whether unconflicted events do not count at first.
    begins_empty: bool,
    creators: Option<HashSet<OwnedUserId>>,
}

impl Resolving<'_, '_> {
    fn run(&mut self) -> Result<Resolved, NoState> {
        let (conflicted, starts) = self.split()?;
        self.conflicted = conflicted.iter().copied().collect();
        let mut full: HashSet<u32> = self.difference(&starts)?;
        full.extend(starts.iter().map(|(event, _)| *event));
        if self.rules.consider_conflicted_state_subgraph {
            full.extend(self.subgraph(&starts)?);
        }
        self.refresh(&full)?;
        full.retain(|event| self.memo.event(*event).is_some_and(|event| event.record != 0));
        if full.len() > limits::RESOLUTION_EVENTS {
            return Err(NoState::TooMuch(ChainError::TooMany));
        }
        let powerful = self.sorted_by_power(&full)?;
        self.check(&powerful)?;
        for event in &powerful {
            full.remove(event);
        }
        let rest = self.sorted_by_mainline(full)?;
        self.check(&rest)?;
        let state = self.result(&conflicted)?;
        Ok(Resolved { state, conflicted })
    }

    /// Looks again at events that may have been decided again, and at their auth events.
    fn refresh(&mut self, events: &HashSet<u32>) -> Result<(), NoState> {
        let mut seen = HashSet::new();
        for event in events {
            for number in self.auth(*event).into_iter().chain([*event]) {
                if seen.insert(number) {
                    self.branches.refresh(self.memo, number)?;
                }
            }
        }
        Ok(())
    }

    /// The keys for which the states have different events, and these events, each with the states
    /// that have it.
    #[expect(clippy::type_complexity, reason = "keys, and events with their states")]
    fn split(&mut self) -> Result<(Vec<u32>, Vec<(u32, Mask)>), NoState> {
        let mut differing = Vec::new();
        for other in &self.trees[1..] {
            let looked = self.first.differences(other, |key, _, _| differing.push(key));
            self.branches.work(looked / 8)?;
        }
        differing.sort_unstable();
        differing.dedup();
        let mut starts = Vec::new();
        let mut conflicted = Vec::new();
        for key in differing {
            self.branches.work(1)?;
            let mut held: Vec<(u32, Mask)> = Vec::new();
            for (place, tree) in self.trees.iter().enumerate() {
                let event = match tree.get(key) {
                    0 => NOBODY,
                    record => self.branches.know_record(self.memo, record)?,
                };
                match held.iter_mut().find(|(known, _)| *known == event) {
                    Some((_, mask)) => *mask |= 1 << place,
                    None => held.push((event, 1 << place)),
                }
            }
            // One event may have several records.
            if held.len() > 1 {
                conflicted.push(key);
                starts.extend(held.into_iter().filter(|(event, _)| *event != NOBODY));
            }
        }
        Ok((conflicted, starts))
    }

    fn auth(&self, event: u32) -> Vec<u32> {
        self.memo.event(event).map_or_else(Vec::new, |event| event.auth.to_vec())
    }

    fn generation(&self, event: u32) -> u32 {
        self.memo.event(event).map_or(0, |event| event.generation)
    }

    /// The events that are auth events in some states and not in all. From the conflicted events,
    /// the walk goes down to where all ways have met.
    fn difference(&mut self, starts: &[(u32, Mask)]) -> Result<HashSet<u32>, NoState> {
        let all = (1 << self.trees.len()) - 1;
        let mut walk = Walk { all, masks: HashMap::new(), next: BinaryHeap::new(), partial: 0 };
        for (event, mask) in starts {
            for auth in self.auth(*event) {
                walk.reach(auth, self.generation(auth), *mask);
            }
        }
        let mut differing = HashSet::new();
        while let Some((event, mask)) = walk.pop() {
            self.branches.work(1)?;
            if mask != all {
                differing.insert(event);
            }
            for auth in self.auth(event) {
                walk.reach(auth, self.generation(auth), mask);
            }
        }
        self.leave_out_common(&mut differing)?;
        Ok(differing)
    }

    /// Leaves out the auth events of unconflicted events, which are auth events in all states. The
    /// newest of these events come first: they name the newest auth events.
    fn leave_out_common(&mut self, differing: &mut HashSet<u32>) -> Result<(), NoState> {
        let Some(lowest) = differing.iter().map(|event| self.generation(*event)).min() else {
            return Ok(());
        };
        let is_agreed = |(key, _): &(u32, u64)| !self.conflicted.contains(key);
        let mut agreed: Vec<u64> =
            self.first.entries().into_iter().filter(is_agreed).map(|(_, record)| record).collect();
        agreed.sort_unstable_by_key(|record| Reverse(*record));
        let mut seen = HashSet::new();
        for record in agreed {
            self.branches.work(1)?;
            let mut todo = self.branches.auth_events(self.memo, record)?.to_vec();
            while let Some(event) = todo.pop() {
                if self.generation(event) < lowest || !seen.insert(event) {
                    continue;
                }
                self.branches.work(1)?;
                differing.remove(&event);
                todo.extend(self.auth(event));
            }
            if differing.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// The events on the ways by auth events from one conflicted event to another (room version 12,
    /// "Conflicted state subgraph").
    fn subgraph(&mut self, starts: &[(u32, Mask)]) -> Result<Vec<u32>, NoState> {
        let ends: HashSet<u32> = starts.iter().map(|(event, _)| *event).collect();
        let lowest = ends.iter().map(|event| self.generation(*event)).min().unwrap_or(0);
        let mut seen = ends.clone();
        let mut todo: Vec<u32> = ends.iter().copied().collect();
        while let Some(event) = todo.pop() {
            self.branches.work(1)?;
            for auth in self.auth(event) {
                if self.generation(auth) >= lowest && seen.insert(auth) {
                    todo.push(auth);
                }
            }
        }
        let mut sorted: Vec<u32> = seen.into_iter().collect();
        sorted.sort_unstable_by_key(|event| (self.generation(*event), *event));
        // Each one comes after its auth events.
        let mut between = HashSet::new();
        for event in sorted {
            if ends.contains(&event) || self.auth(event).iter().any(|auth| between.contains(auth)) {
                between.insert(event);
            }
        }
        Ok(between.into_iter().collect())
    }

    /// The events about power, and those that they depend on, in the reverse topological power
    /// ordering.
    fn sorted_by_power(&mut self, full: &HashSet<u32>) -> Result<Vec<u32>, NoState> {
        let mut graph: HashMap<u32, Vec<u32>> = HashMap::new();
        let is_about_power =
            |event: &&u32| self.memo.event(**event).is_some_and(|event| event.is_about_power);
        let mut todo: Vec<u32> = full.iter().filter(is_about_power).copied().collect();
        while let Some(event) = todo.pop() {
            if graph.contains_key(&event) {
                continue;
            }
            self.branches.work(1)?;
            let mut auth = self.auth(event);
            auth.retain(|auth| full.contains(auth));
            auth.sort_unstable();
            auth.dedup();
            todo.extend(&auth);
            graph.insert(event, auth);
        }
        let mut powers = HashMap::with_capacity(graph.len());
        for event in graph.keys() {
            powers.insert(*event, self.power(*event)?);
        }
        let mut over: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut left: HashMap<u32, usize> = HashMap::with_capacity(graph.len());
        let mut next = BinaryHeap::new();
        for (event, auth) in &graph {
            left.insert(*event, auth.len());
            for auth in auth {
                over.entry(*auth).or_default().push(*event);
            }
            if auth.is_empty() {
                next.extend(self.rank(&powers, *event).map(Reverse));
            }
        }
        let mut sorted = Vec::with_capacity(graph.len());
        while let Some(Reverse((.., event))) = next.pop() {
            sorted.push(event);
            for above in over.get(&event).into_iter().flatten() {
                let Some(left) = left.get_mut(above) else { continue };
                *left -= 1;
                if *left == 0 {
                    next.extend(self.rank(&powers, *above).map(Reverse));
                }
            }
        }
        Ok(sorted)
    }

    /// The sort key of events about power that may both come next: the smaller comes first.
    fn rank(
        &self,
        powers: &HashMap<u32, UserPowerLevel>,
        event: u32,
    ) -> Option<(Reverse<UserPowerLevel>, u64, &OwnedEventId, u32)> {
        let known = self.memo.event(event)?;
        Some((Reverse(*powers.get(&event)?), known.ts, &known.id, event))
    }

    /// The power of an event's sender, by the power levels that it depends on.
    fn power(&mut self, event: u32) -> Result<UserPowerLevel, NoState> {
        if let Some(power) = self.memo.event(event).and_then(|known| known.power.clone()) {
            return power.map_err(NoState::Failed);
        }
        self.branches.work(1)?;
        let levels = self.memo.levels_named(event);
        let levels = levels.map_or(Ok(None), |levels| self.read(levels))?;
        let Some(read) = self.read(event)? else { return Err(Self::changed()) };
        let rules = self.auth_rules;
        let power = power_of(&read, levels, self.creators()?, rules);
        if let Some(known) = self.memo.event_mut(event) {
            known.power = Some(power.clone());
        }
        power.map_err(NoState::Failed)
    }

    fn creators(&mut self) -> Result<&HashSet<OwnedUserId>, NoState> {
        if self.creators.is_none() {
            let create = self.branches.get(self.branches.room.first_event())?;
            let of = |create: EventRef| RoomCreateEvent::new(create).creators(self.auth_rules);
            let creators = create.map(of).transpose().map_err(NoState::Failed)?;
            self.creators = Some(creators.unwrap_or_default());
        }
        Ok(self.creators.get_or_insert_default())
    }

    fn read(&self, event: u32) -> Result<Option<EventRef>, ReadError> {
        read(self.branches, self.memo, event)
    }

    fn changed() -> NoState {
        NoState::Failed(ChainError::Changed.to_string())
    }

    /// The iterative auth checks.
    fn check(&mut self, events: &[u32]) -> Result<(), NoState> {
        for event in events {
            self.branches.work(1)?;
            let key = self.memo.event(*event).and_then(|known| known.key);
            let Some(key) = key else {
                return Err(NoState::Failed("an event is not one of a state".to_owned()));
            };
            if self.is_allowed(*event)? {
                self.state.insert(key, *event);
            }
        }
        Ok(())
    }

    /// The event that holds a key so far, if it counts.
    fn holder(&mut self, key: u32) -> Result<u32, NoState> {
        let event = match self.state.get(&key) {
            Some(event) => *event,
            None if self.begins_empty || self.conflicted.contains(&key) => NOBODY,
            None => match self.first.get(key) {
                0 => NOBODY,
                record => self.branches.know_record(self.memo, record)?,
            },
        };
        Ok(if self.memo.is_good(event) { event } else { NOBODY })
    }

    fn is_allowed(&mut self, event: u32) -> Result<bool, NoState> {
        let needs = match self.memo.event(event).and_then(|known| known.needs.clone()) {
            Some(needs) => needs,
            None => self.needs(event)?,
        };
        let Some(needs) = needs else { return Ok(false) };
        let mut holders = Vec::with_capacity(needs.len());
        for key in &needs {
            holders.push(self.holder(*key)?);
        }
        let verdict = self.memo.event(event).and_then(|known| known.verdict.as_ref());
        if let Some((_, is_allowed)) = verdict.filter(|(of, _)| **of == *holders) {
            return Ok(*is_allowed);
        }
        self.branches.work(1)?;
        let is_allowed = self.is_allowed_by(event, &needs, &holders)?;
        if let Some(known) = self.memo.event_mut(event) {
            known.verdict = Some((holders.into(), is_allowed));
        }
        Ok(is_allowed)
    }

    /// The keys that the rules look at for an event; none if it is malformed.
    fn needs(&mut self, event: u32) -> Result<Option<Box<[u32]>>, NoState> {
        let Some(read) = self.read(event)? else { return Err(Self::changed()) };
        let needs = auth_types_for_event(
            &read.event_type,
            &read.sender,
            read.state_key.as_deref(),
            &read.content,
            self.auth_rules,
        );
        let needs = needs.ok().map(|keys| {
            let numbers = keys.iter().map(|(event_type, key)| self.memo.number(event_type, key));
            numbers.collect::<Box<[u32]>>()
        });
        if let Some(known) = self.memo.event_mut(event) {
            known.needs = Some(needs.clone());
        }
        Ok(needs)
    }

    /// Whether the rules allow an event, where these events hold the keys that they look at. For a
    /// key that nobody holds, they look at the event's own auth events.
    fn is_allowed_by(
        &mut self,
        event: u32,
        needs: &[u32],
        holders: &[u32],
    ) -> Result<bool, NoState> {
        let Some(read_event) = self.read(event)? else { return Err(Self::changed()) };
        let mut rests_on: HashMap<u32, u32> = HashMap::new();
        for auth in self.auth(event) {
            let Some(known) = self.memo.event(auth).filter(|known| known.record != 0) else {
                continue;
            };
            let Some(key) = known.key else {
                return Err(NoState::Failed("an authority is not one of a state".to_owned()));
            };
            if !known.rejected {
                rests_on.insert(key, auth);
            }
        }
        if self.auth_rules.room_create_event_id_as_room_id
            && read_event.event_type != TimelineEventType::RoomCreate
        {
            let create = format!("${}", self.branches.room.id.strip_sigil());
            if let Ok(create) = <&EventId>::try_from(&*create) {
                let create = self.branches.know(self.memo, create)?;
                let key = self.memo.number(&StateEventType::RoomCreate, "");
                rests_on.insert(key, create);
            }
        }
        let held = needs.iter().zip(holders).filter(|(_, holder)| **holder != NOBODY);
        rests_on.extend(held.map(|(key, holder)| (*key, *holder)));
        let (failed, memo) = (RefCell::new(None), RefCell::new(&mut *self.memo));
        let find = |event_type: &StateEventType, state_key: &str| {
            let mut memo = memo.borrow_mut();
            let event = *rests_on.get(&memo.number(event_type, state_key))?;
            read(self.branches, &memo, event).unwrap_or_else(|error| {
                *failed.borrow_mut() = Some(error);
                None
            })
        };
        let allowed = check_state_dependent_auth_rules(self.auth_rules, &*read_event, find);
        match failed.into_inner() {
            Some(error) => Err(ReadError::into(error)),
            None => Ok(allowed.is_ok()),
        }
    }

    /// These events in the mainline ordering, by the power levels that hold so far.
    fn sorted_by_mainline(&mut self, events: HashSet<u32>) -> Result<Vec<u32>, NoState> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let levels = self.memo.number(&StateEventType::RoomPowerLevels, "");
        let mut next = match self.state.get(&levels) {
            Some(event) => Some(*event),
            None if self.begins_empty || self.conflicted.contains(&levels) => None,
            None => match self.first.get(levels) {
                0 => None,
                record => Some(self.branches.know_record(self.memo, record)?),
            },
        };
        // The position of power levels: how many newer ones are in the mainline, if they lead to
        // it; `None` if it is not known whether they do.
        let mut places: HashMap<u32, Option<Option<usize>>> = HashMap::new();
        while let Some(event) = next {
            self.branches.work(1)?;
            places.insert(event, Some(Some(places.len())));
            next = match self.memo.event(event).map(|known| known.levels) {
                Some(Levels::Some(levels)) => Some(levels).filter(|of| !places.contains_key(of)),
                Some(Levels::None) => None,
                Some(Levels::Broken) | None => return Err(Self::changed()),
            };
        }
        let mut placed = Vec::with_capacity(events.len());
        for event in events {
            self.branches.work(1)?;
            placed.extend(self.place(event, &mut places)?.map(|place| (place.map(Reverse), event)));
        }
        let mut sorted: Vec<_> = placed
            .into_iter()
            .filter_map(|(place, event)| {
                let known = self.memo.event(event)?;
                // Events that depend on none of the mainline come first, then those that depend on
                // the oldest.
                Some((place, known.ts, &known.id, event))
            })
            .collect();
        sorted.sort_unstable();
        Ok(sorted.into_iter().map(|(.., event)| event).collect())
    }

    /// The place of an event in the mainline. The places of all power levels on the way are kept.
    #[expect(clippy::option_option, reason = "no place, and none that is known")]
    fn place(
        &self,
        event: u32,
        places: &mut HashMap<u32, Option<Option<usize>>>,
    ) -> Result<Option<Option<usize>>, NoState> {
        let (mut way, mut at) = (Vec::new(), event);
        let place = loop {
            if let Some(place) = places.get(&at) {
                break *place;
            }
            self.branches.work(1)?;
            way.push(at);
            match self.memo.event(at).map(|known| known.levels) {
                Some(Levels::Some(levels)) => at = levels,
                Some(Levels::None) => break Some(None),
                Some(Levels::Broken) | None => break None,
            }
        };
        places.extend(way.into_iter().map(|event| (event, place)));
        Ok(place)
    }

    /// The resolved state.
    fn result(&mut self, conflicted: &[u32]) -> Result<StateTree, NoState> {
        let mut result = self.first.clone();
        for key in conflicted {
            let record = match self.state.get(key) {
                Some(event) => record(self.branches, self.memo, self.trees, (*key, *event))?,
                None => 0,
            };
            result.set(*key, record);
        }
        let mut more = Vec::new();
        for (key, event) in &self.state {
            if !self.conflicted.contains(key) && self.first.get(*key) == 0 {
                more.extend(self.memo.event(*event).map(|known| (*key, known.record)));
            }
        }
        for (key, record) in more {
            result.set(key, record);
        }
        Ok(result)
    }
}

/// The power of an event's sender, by the power levels that it depends on.
fn power_of(
    event: &EventRef,
    levels: Option<EventRef>,
    creators: &HashSet<OwnedUserId>,
    rules: &AuthorizationRules,
) -> Result<UserPowerLevel, String> {
    if rules.explicitly_privilege_room_creators && creators.contains(&event.sender) {
        return Ok(UserPowerLevel::Infinite);
    }
    if let Some(levels) = levels {
        let levels = RoomPowerLevelsEvent::new(levels);
        return Ok(levels.user_power_level(&event.sender, rules)?.into());
    }
    let default = RoomPowerLevelsIntField::UsersDefault.default_value();
    let level = if creators.contains(&event.sender) { ruma::int!(100) } else { default };
    Ok(level.into())
}

/// A walk along auth events, from the longest ways to the root down: when an event's turn comes,
/// it is known in which states it is an auth event.
struct Walk {
    all: Mask,
    masks: HashMap<u32, Mask>,
    next: BinaryHeap<(u32, u32)>,
    /// How many of those to come are not auth events in all states.
    partial: usize,
}

impl Walk {
    fn reach(&mut self, event: u32, generation: u32, mask: Mask) {
        match self.masks.get_mut(&event) {
            None => {
                self.masks.insert(event, mask);
                self.next.push((generation, event));
                self.partial += usize::from(mask != self.all);
            }
            Some(known) => {
                let was_partial = *known != self.all;
                *known |= mask;
                if was_partial && *known == self.all {
                    self.partial = self.partial.saturating_sub(1);
                }
            }
        }
    }

    /// The next event, unless all to come are auth events in all states.
    fn pop(&mut self) -> Option<(u32, Mask)> {
        if self.partial == 0 {
            return None;
        }
        let (_, event) = self.next.pop()?;
        let mask = self.masks.get(&event).copied().unwrap_or(self.all);
        if mask != self.all {
            self.partial -= 1;
        }
        Some((event, mask))
    }
}
