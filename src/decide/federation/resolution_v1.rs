//! State resolution of room version 1 ("State resolution"). Where the specification leaves
//! something open, it is as in Synapse, which made nearly all rooms of this version:
//!
//! - A key that only some of the states have is not in conflict: it belongs to their union.
//! - What a pass settles counts from the next pass on, so the order of the keys within a pass does
//!   not matter.
//! - If no event of a key is allowed, the key is held by the one that the specification examines
//!   last.
//!
//! Only the conflicting events are looked at, not their auth chains: an old event may come back to
//! hold a key. Room version 2 fixes that, which is why no new room should have version 1.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use ruma::{
    EventId, events::StateEventType, room_version_rules::AuthorizationRules,
    state_res::check_state_dependent_auth_rules,
};
use sha1::{Digest as _, Sha1};

use super::resolve::{NoState, read, record};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_read::{
    branches::{Branches, ChainError, Memo, NOBODY, Resolved, StateTree},
    events::{EventRef, StoredEvent},
};

/// The passes, in their order: the rules look at what the earlier ones settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    PowerLevels,
    JoinRules,
    Members,
    Others,
}

impl Pass {
    pub const ALL: [Self; 4] = [Self::PowerLevels, Self::JoinRules, Self::Members, Self::Others];

    /// The pass that settles a key.
    pub fn of(event_type: &StateEventType, state_key: &str) -> Self {
        match event_type {
            StateEventType::RoomPowerLevels if state_key.is_empty() => Self::PowerLevels,
            StateEventType::RoomJoinRules => Self::JoinRules,
            StateEventType::RoomMember => Self::Members,
            _ => Self::Others,
        }
    }
}

/// The sort key of events of one key: ascending by depth, then descending by the SHA-1 of the id.
pub type Rank = (u64, Reverse<[u8; 20]>);

pub fn rank(event: &StoredEvent) -> Rank {
    (event.depth, Reverse(hash(&event.event_id)))
}

fn hash(event_id: &EventId) -> [u8; 20] {
    Sha1::digest(event_id.as_str()).into()
}

/// Resolves different states, of which there are at least two.
pub(super) fn resolved(
    branches: &Branches<'_>,
    memo: &mut Memo,
    trees: &[StateTree],
) -> Result<Resolved, NoState> {
    let Some(first) = trees.first() else {
        return Err(NoState::Failed("there are none of them".to_owned()));
    };
    let auth_rules = &branches.room.rules.authorization;
    let mut resolving = Resolving {
        branches,
        memo,
        auth_rules,
        trees,
        first,
        conflicts: BTreeMap::new(),
        agreed: HashMap::new(),
        settled: HashMap::new(),
    };
    resolving.run()
}

struct Resolving<'a, 'b> {
    branches: &'a Branches<'b>,
    memo: &'a mut Memo,
    auth_rules: &'a AuthorizationRules,
    trees: &'a [StateTree],
    first: &'a StateTree,
    /// The keys for which the states have different events, with these events in their order.
    conflicts: BTreeMap<u32, Vec<u32>>,
    /// The events of keys that only some of the states have.
    agreed: HashMap<u32, u32>,
    /// The events that hold the keys of earlier passes.
    settled: HashMap<u32, u32>,
}

impl Resolving<'_, '_> {
    fn run(&mut self) -> Result<Resolved, NoState> {
        let differing = self.split()?;
        for pass in Pass::ALL {
            let mut settled = Vec::new();
            for (key, events) in &self.conflicts {
                let Some((event_type, state_key)) = self.memo.name(*key) else { continue };
                if Pass::of(event_type, state_key) == pass {
                    settled.push((*key, events.clone()));
                }
            }
            let mut holders = Vec::with_capacity(settled.len());
            for (key, events) in settled {
                let holder = match pass {
                    Pass::Others => self.last_allowed(&events)?,
                    _ => self.last_in_a_row(key, &events)?,
                };
                holders.extend(holder.map(|holder| (key, holder)));
            }
            self.settled.extend(holders);
        }
        let state = self.result(&differing)?;
        Ok(Resolved { state, conflicted: self.conflicts.keys().copied().collect() })
    }

    /// Finds out for which keys the states have different events. Returns all for which they
    /// differ, those included that only some have.
    fn split(&mut self) -> Result<Vec<u32>, NoState> {
        let mut differing = Vec::new();
        for other in &self.trees[1..] {
            let looked = self.first.differences(other, |key, _, _| differing.push(key));
            self.branches.work(looked / 8)?;
        }
        differing.sort_unstable();
        differing.dedup();
        let mut many = 0;
        for key in &differing {
            let mut held: Vec<(Rank, u32)> = Vec::new();
            for tree in self.trees {
                self.branches.work(1)?;
                let record = tree.get(*key);
                if record == 0 {
                    continue;
                }
                let event = self.branches.know_record(self.memo, record)?;
                if event == NOBODY || held.iter().any(|(_, known)| *known == event) {
                    continue;
                }
                self.branches.refresh(self.memo, event)?;
                if let Some(read) = self.read(event)? {
                    held.push((rank(&read), event));
                }
            }
            held.sort_unstable();
            many += held.len();
            if many > limits::RESOLUTION_EVENTS {
                return Err(NoState::TooMuch(ChainError::TooMany));
            }
            match &*held {
                [] => {}
                [(_, only)] => drop(self.agreed.insert(*key, *only)),
                _ => {
                    let events = held.into_iter().map(|(_, event)| event).collect();
                    self.conflicts.insert(*key, events);
                }
            }
        }
        Ok(differing)
    }

    /// The last event up to which each is allowed after the one before it. The first one needs no
    /// permission.
    fn last_in_a_row(&mut self, key: u32, events: &[u32]) -> Result<Option<u32>, NoState> {
        let mut events = events.iter().copied();
        let Some(mut holder) = events.next() else { return Ok(None) };
        for event in events {
            if !self.is_allowed(event, Some((key, holder)))? {
                break;
            }
            holder = event;
        }
        Ok(Some(holder))
    }

    /// The last event that is allowed, or else the first one.
    fn last_allowed(&mut self, events: &[u32]) -> Result<Option<u32>, NoState> {
        for event in events.iter().rev() {
            if self.is_allowed(*event, None)? {
                return Ok(Some(*event));
            }
        }
        Ok(events.first().copied())
    }

    /// The event that holds a key so far: none, while the key is in conflict and not settled.
    fn holder(&mut self, key: u32) -> Result<u32, NoState> {
        if let Some(settled) = self.settled.get(&key).or_else(|| self.agreed.get(&key)) {
            return Ok(*settled);
        }
        if self.conflicts.contains_key(&key) {
            return Ok(NOBODY);
        }
        Ok(match self.first.get(key) {
            0 => NOBODY,
            record => self.branches.know_record(self.memo, record)?,
        })
    }

    /// Whether the rules allow an event in the state so far, and with `own`, a key and its holder.
    fn is_allowed(&mut self, event: u32, own: Option<(u32, u32)>) -> Result<bool, NoState> {
        self.branches.work(1)?;
        let Some(read_event) = self.read(event)? else {
            return Err(NoState::Changed(ChainError::Changed));
        };
        let (auth_rules, branches) = (self.auth_rules, self.branches);
        let (failed, this) = (RefCell::new(None), RefCell::new(self));
        let find = |event_type: &StateEventType, state_key: &str| {
            let mut this = this.borrow_mut();
            let key = this.memo.number(event_type, state_key);
            let holder = match own {
                Some((of, holder)) if of == key => Ok(holder),
                _ => this.holder(key),
            };
            let read = holder.and_then(|holder| Ok(read(branches, this.memo, holder)?));
            read.unwrap_or_else(|error| {
                *failed.borrow_mut() = Some(error);
                None
            })
        };
        let allowed = check_state_dependent_auth_rules(auth_rules, &*read_event, find);
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(allowed.is_ok()),
        }
    }

    fn read(&self, event: u32) -> Result<Option<EventRef>, ReadError> {
        read(self.branches, self.memo, event)
    }

    /// The resolved state.
    fn result(&mut self, differing: &[u32]) -> Result<StateTree, NoState> {
        let mut result = self.first.clone();
        for key in differing {
            let event = self.settled.get(key).or_else(|| self.agreed.get(key)).copied();
            let record = event.map_or(Ok(0), |event| {
                record(self.branches, self.memo, self.trees, (*key, event))
            })?;
            result.set(*key, record);
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use ruma::event_id;

    use super::*;

    #[test]
    fn ids_are_ordered_by_their_sha1() {
        let hex = |event_id| {
            let hash = hash(event_id);
            hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        // As Python's hashlib has it.
        assert_eq!(hex(event_id!("$a:a.example")), "bffe7eb1c6aa907e488afbe8dbe345d370306d66");
        assert_eq!(hex(event_id!("$ä:a.example")), "1a32cf436d34a4b1e401c7f7d113b706e425d3e1");
    }

    #[test]
    fn each_key_has_its_pass() {
        let passes = [
            (StateEventType::RoomPowerLevels, "", Pass::PowerLevels),
            (StateEventType::RoomPowerLevels, "x", Pass::Others),
            (StateEventType::RoomJoinRules, "", Pass::JoinRules),
            (StateEventType::RoomMember, "@u:a.example", Pass::Members),
            (StateEventType::RoomCreate, "", Pass::Others),
            (StateEventType::RoomName, "", Pass::Others),
        ];
        for (event_type, state_key, pass) in passes {
            assert_eq!(Pass::of(&event_type, state_key), pass, "{event_type} {state_key}");
        }
    }
}
