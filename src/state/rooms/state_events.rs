//! A room's state as of any offset.

use std::collections::{BTreeMap, HashSet};

use ruma::events::StateEventType;

use super::{Inner, Room};
use logcabin_record::Offset;

impl Room {
    /// The offset of the state event of this key as of `at`.
    pub fn state_event(
        &self,
        event_type: &StateEventType,
        state_key: &str,
        at: Offset,
    ) -> Option<Offset> {
        let inner = self.inner.read();
        let index = *inner.key_index.get(event_type)?.get(state_key)?;
        inner.holder(index, at)
    }

    /// As [`Room::state_event`], with the record since which it is that event: a later one, if
    /// state was resolved.
    pub fn state_event_since(
        &self,
        event_type: &StateEventType,
        state_key: &str,
    ) -> Option<(Offset, Offset)> {
        let inner = self.inner.read();
        let index = *inner.key_index.get(event_type)?.get(state_key)?;
        let since = as_of(inner.state.get(index as usize)?, Offset::MAX)?;
        Some((since, inner.held(index, since)?))
    }

    /// The offsets of all state events with this key up to and including `at`, oldest first.
    pub fn state_events_of(
        &self,
        event_type: &StateEventType,
        state_key: &str,
        at: Offset,
    ) -> Vec<Offset> {
        let inner = self.inner.read();
        let index = inner.key_index.get(event_type).and_then(|keys| keys.get(state_key));
        let changes = index.and_then(|index| inner.state.get(*index as usize));
        changes.map_or_else(Vec::new, |changes| {
            changes.iter().copied().take_while(|offset| *offset <= at).collect()
        })
    }

    /// The offset of the state event of this key right before `before`.
    pub fn state_before(
        &self,
        event_type: &StateEventType,
        state_key: &str,
        before: Offset,
    ) -> Option<Offset> {
        self.state_event(event_type, state_key, before.prev())
    }

    /// The offsets of all state events as of `at`, in the order in which they were sent.
    pub fn full_state(&self, at: Offset) -> Vec<Offset> {
        let inner = self.inner.read();
        let keys = inner.state.iter().zip(0..);
        let held = keys.filter_map(|(changes, key)| inner.held(key, as_of(changes, at)?));
        let mut state: Vec<_> = held.collect();
        drop(inner);
        state.sort_unstable();
        state
    }

    /// The state events of one type as of `at`, by state key: the offset of each.
    pub fn state_of_type(&self, event_type: &StateEventType, at: Offset) -> Vec<(String, Offset)> {
        let inner = self.inner.read();
        let Some(keys) = inner.key_index.get(event_type) else { return Vec::new() };
        keys.iter()
            .filter_map(|(state_key, index)| {
                Some((state_key.to_string(), inner.holder(*index, at)?))
            })
            .collect()
    }

    /// The offsets of all state events except memberships as of `at`, in order.
    pub fn state_without_members(&self, at: Offset) -> Vec<Offset> {
        let inner = self.inner.read();
        let mut state: Vec<_> = inner
            .key_index
            .iter()
            .filter(|(event_type, _)| **event_type != StateEventType::RoomMember)
            .flat_map(|(_, keys)| keys.values())
            .filter_map(|index| inner.holder(*index, at))
            .collect();
        drop(inner);
        state.sort_unstable();
        state
    }

    /// The offsets of the state events of this type (`None`: of every type) with this key (`None`:
    /// with every key) as of `at`, in order.
    pub fn state_like(
        &self,
        event_type: Option<&StateEventType>,
        state_key: Option<&str>,
        at: Offset,
    ) -> Vec<Offset> {
        let inner = self.inner.read();
        let with_key = |keys: &BTreeMap<Box<str>, u32>| -> Vec<u32> {
            match state_key {
                Some(state_key) => keys.get(state_key).copied().into_iter().collect(),
                None => keys.values().copied().collect(),
            }
        };
        let indexes: Vec<u32> = match event_type {
            Some(event_type) => inner.key_index.get(event_type).map(with_key).unwrap_or_default(),
            None => inner.key_index.values().flat_map(with_key).collect(),
        };
        let held = indexes.into_iter().filter_map(|index| inner.holder(index, at));
        let mut state: Vec<_> = held.collect();
        drop(inner);
        state.sort_unstable();
        state
    }

    /// The offsets of the state events as of `to` whose key changed after `since`, in order. State
    /// resolution may have chosen an event from before `since`. The cost is proportional to the
    /// changes, not to the state.
    pub fn state_delta(&self, since: Offset, to: Offset) -> Vec<Offset> {
        let inner = self.inner.read();
        let from = inner.state_log.partition_point(|(offset, _)| *offset <= since);
        let mut seen = HashSet::new();
        let mut delta: Vec<_> = inner.state_log[from..]
            .iter()
            .take_while(|(offset, _)| *offset <= to)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .filter(|(_, key)| seen.insert(*key))
            .filter_map(|(offset, key)| inner.held(*key, *offset))
            .collect();
        drop(inner);
        delta.sort_unstable();
        delta
    }

    /// Every change of state up to and including `at`: offset, type, state key; oldest first.
    pub fn state_changes(&self, at: Offset) -> Vec<(Offset, StateEventType, String)> {
        let inner = self.inner.read();
        inner
            .state_log
            .iter()
            .take_while(|(offset, _)| *offset <= at)
            .filter_map(|(offset, key)| {
                let (event_type, state_key) = inner.keys.get(*key as usize)?;
                Some((*offset, event_type.clone(), state_key.to_string()))
            })
            .collect()
    }

    /// The types and state keys of the state that changed after `since`, up to and including `to`:
    /// at most `most`, those that changed last before the others. The cost is proportional to the
    /// changes.
    pub fn changed_keys(
        &self,
        since: Offset,
        to: Offset,
        most: usize,
    ) -> Vec<(StateEventType, String)> {
        let inner = self.inner.read();
        let from = inner.state_log.partition_point(|(offset, _)| *offset <= since);
        let end = inner.state_log.partition_point(|(offset, _)| *offset <= to).max(from);
        let mut seen = HashSet::new();
        let changes = inner.state_log.get(from..end).unwrap_or_default().iter().rev();
        changes
            .filter(|(_, key)| seen.insert(*key))
            .filter_map(|(_, key)| inner.keys.get(*key as usize))
            .map(|(event_type, state_key)| (event_type.clone(), state_key.to_string()))
            .take(most)
            .collect()
    }
}

impl Inner {
    pub(super) fn key(&mut self, event_type: StateEventType, state_key: Box<str>) -> u32 {
        let keys = self.key_index.entry(event_type.clone()).or_default();
        if let Some(index) = keys.get(&state_key) {
            return *index;
        }
        // A log cannot hold 2^32 distinct state keys of one room: each takes a record.
        let index = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        keys.insert(state_key.clone(), index);
        self.keys.push((event_type, state_key));
        self.state.push(Vec::new());
        index
    }
}

pub(super) fn as_of(changes: &[Offset], at: Offset) -> Option<Offset> {
    let after = changes.partition_point(|offset| *offset <= at);
    after.checked_sub(1).and_then(|index| changes.get(index).copied())
}
