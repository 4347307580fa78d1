//! The part of a room's event graph that is not a line: events of other homeservers that are not in
//! the timeline, extremities besides the newest event, and state that state resolution chose.
//!
//! A room that has events of this server only has none of this.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Inner, Membership, Room, Rooms, Tip, state_events::as_of};
use crate::{RETENTION, lifetimes::RoomRetention};
use logcabin_record::{
    Offset,
    command::{Outcome, SaidLifetime, StateChange},
};

/// Why an event is not in the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OffTimeline {
    /// Its position in the room is not known.
    Outlier,
    /// The current state did not allow it.
    SoftFailed,
    /// It was not allowed at its place in the room.
    Rejected,
}

impl From<&Outcome> for OffTimeline {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Outlier => Self::Outlier,
            Outcome::SoftFailed { .. } => Self::SoftFailed,
            Outcome::Rejected { .. } => Self::Rejected,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Graph {
    /// The forward extremities besides the tip.
    pub(super) others: Vec<Tip>,
    /// The events that hold a key since an offset at which another record changed it, by the key's
    /// index and that offset; `None` if the key has had no event since.
    reassigned: BTreeMap<(u32, Offset), Option<Offset>>,
    /// The events that are not in the timeline.
    pub(super) asides: BTreeMap<Offset, OffTimeline>,
}

impl Graph {
    /// Whether each key was always held by the events that changed it.
    pub(super) fn is_plain(&self) -> bool {
        self.reassigned.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self { others, reassigned, asides } = self;
        others.is_empty() && reassigned.is_empty() && asides.is_empty()
    }
}

/// A change of state other than by an event that sets its own key.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: (ruma::events::StateEventType, Box<str>),
    pub(crate) event: Option<Offset>,
    /// For a member: the user, and their membership now.
    pub(crate) membership: Option<(ruma::OwnedUserId, Membership)>,
    /// For an event about lifetimes: the index of its type, and the lifetimes.
    pub(crate) lifetime: Option<(usize, Option<RoomRetention>)>,
}

impl Change {
    /// If a member's event is gone, they count as having left.
    pub(crate) fn of(change: StateChange) -> Self {
        let StateChange { event_type, state_key, event, membership, lifetime } = change;
        let name = RETENTION.iter().position(|name| *name == event_type && state_key.is_empty());
        let said = lifetime.map(|SaidLifetime { max_ms, min_ms }| RoomRetention { max_ms, min_ms });
        let lifetime = name.map(|name| (name, said));
        let event_type = ruma::events::StateEventType::from(event_type);
        let membership = (event_type == ruma::events::StateEventType::RoomMember)
            .then(|| ruma::OwnedUserId::try_from(state_key.as_str()).ok())
            .flatten()
            .map(|user_id| {
                let membership = membership.map(|text| text.as_str().into());
                let is = membership.as_ref().and_then(Membership::from_ruma);
                (user_id, is.unwrap_or(Membership::Leave))
            });
        Self { key: (event_type, state_key.into()), event, membership, lifetime }
    }
}

impl Inner {
    /// The event that holds the key of this index as of `at`.
    pub(super) fn holder(&self, key: u32, at: Offset) -> Option<Offset> {
        let changed = as_of(self.state.get(key as usize)?, at)?;
        self.held(key, changed)
    }

    /// The event that holds the key of this index since it changed at `changed`.
    pub(super) fn held(&self, key: u32, changed: Offset) -> Option<Offset> {
        if self.graph.is_plain() {
            return Some(changed);
        }
        self.graph.reassigned.get(&(key, changed)).copied().unwrap_or(Some(changed))
    }

    pub(super) fn reassign(&mut self, offset: Offset, change: Change) {
        let key = self.key(change.key.0, change.key.1);
        self.state_log.push((offset, key));
        self.state[key as usize].push(offset);
        self.graph.reassigned.insert((key, offset), change.event);
        if let Some((user_id, membership)) = change.membership {
            self.set_membership(offset, user_id, membership);
        }
        if let Some((name, said)) = change.lifetime
            && let Some(of) = self.lifetimes.get_mut(name)
        {
            *of = change.event.zip(said);
        }
    }
}

impl Room {
    /// The forward extremities, newest record first.
    pub fn extremities(&self) -> Vec<Tip> {
        let inner = self.inner.read();
        inner.tip.iter().chain(&inner.graph.others).cloned().collect()
    }

    /// The reason why the event at `offset` is not in the timeline, if it is known but not there.
    pub fn aside(&self, offset: Offset) -> Option<OffTimeline> {
        self.inner.read().graph.asides.get(&offset).copied()
    }

    /// Whether the event at `offset` is known, in the timeline or not.
    pub fn holds(&self, offset: Offset) -> bool {
        self.has_event(offset) || self.aside(offset).is_some()
    }

    /// The events that are known but not in the timeline, oldest first.
    pub fn asides(&self) -> Vec<Offset> {
        self.inner.read().graph.asides.keys().copied().collect()
    }

    /// The newest events that were rejected or soft-failed, newest first, at most `limit`.
    pub fn refused(&self, limit: usize) -> Vec<Offset> {
        let inner = self.inner.read();
        let all = inner.graph.asides.iter().rev();
        let refused = all.filter(|(_, aside)| **aside != OffTimeline::Outlier);
        refused.map(|(offset, _)| *offset).take(limit).collect()
    }

    /// The last change of state up to and including `at`: the room's state is the same at both.
    pub fn last_state_change(&self, at: Offset) -> Offset {
        let inner = self.inner.read();
        let end = inner.state_log.partition_point(|(offset, _)| *offset <= at);
        let last = end.checked_sub(1).and_then(|last| inner.state_log.get(last));
        last.map_or(Offset::ZERO, |(offset, _)| *offset)
    }

    /// The whole state as of `at`: each key with its event.
    pub fn state_map(&self, at: Offset) -> Vec<(ruma::events::StateEventType, Box<str>, Offset)> {
        let inner = self.inner.read();
        let keys = inner.keys.iter().zip(0_u32..);
        keys.filter_map(|((event_type, state_key), index)| {
            let event = inner.holder(index, at)?;
            Some((event_type.clone(), state_key.clone(), event))
        })
        .collect()
    }

    /// How many changes of state there were after one of these offsets, up to and including the
    /// other.
    pub fn state_changes_between(&self, one: Offset, other: Offset) -> usize {
        let inner = self.inner.read();
        let before = |at| inner.state_log.partition_point(|(offset, _)| *offset <= at);
        before(one).abs_diff(before(other))
    }

    /// What leads from the state as of `from` to the state as of `to`, which may be earlier or
    /// later: each key that changed in between, with the event that holds it as of `to`.
    pub fn state_from_to(
        &self,
        from: Offset,
        to: Offset,
    ) -> Vec<(ruma::events::StateEventType, Box<str>, Option<Offset>)> {
        let inner = self.inner.read();
        let place = |at| inner.state_log.partition_point(|(offset, _)| *offset <= at);
        let (from, until) = (place(from.min(to)), place(from.max(to)));
        let mut keys: Vec<u32> = inner.state_log[from..until].iter().map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys.dedup();
        let change = |key: u32| {
            let (event_type, state_key) = inner.keys.get(key as usize)?;
            Some((event_type.clone(), state_key.clone(), inner.holder(key, to)))
        };
        keys.into_iter().filter_map(change).collect()
    }

    pub(super) fn add_aside(&self, offset: Offset, outcome: &Outcome) {
        self.inner.write().graph.asides.insert(offset, outcome.into());
    }
}

impl Rooms {
    /// Changes the state of a room other than by an event in its timeline.
    pub(crate) fn reassign(&self, offset: Offset, room_id: &ruma::RoomId, changes: Vec<Change>) {
        let Some(room) = self.get(room_id) else { return };
        let reassign = || {
            let mut inner = room.inner.write();
            inner.changed = offset;
            for change in changes {
                inner.reassign(offset, change);
            }
        };
        self.lifetimes.change(room_id, || room.oldest(), reassign);
    }

    /// Adds an event that is not in the timeline of its room.
    pub(crate) fn add_aside(&self, offset: Offset, room_id: &ruma::RoomId, outcome: &Outcome) {
        if let Some(room) = self.get(room_id) {
            room.add_aside(offset, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{OwnedRoomId, RoomVersionId};

    use super::*;
    use crate::{lifetimes::RetentionClass, rooms::EventFacts};

    #[test]
    fn a_lifetime_that_state_resolution_changes_moves_the_room_in_the_index() {
        let room_id: OwnedRoomId = "!r:test".try_into().unwrap();
        let rooms = Rooms::default();
        assert!(rooms.create(Offset::new(1), room_id.clone(), RoomVersionId::V11));
        let message = |number: u64| EventFacts::message(format!("${number}").try_into().unwrap());
        rooms.add_event(Offset::new(2), &room_id, message(2));
        let class = |max_ms| RetentionClass {
            own: RoomRetention { max_ms, min_ms: None },
            event_type: "m.room.message".into(),
        };
        assert_eq!(rooms.lifetimes.classes(), [class(None)]);
        let change = |max_ms: Option<u64>| StateChange {
            event_type: RETENTION[0].to_owned(),
            state_key: String::new(),
            event: Some(Offset::new(1)),
            membership: None,
            lifetime: Some(SaidLifetime { max_ms, min_ms: None }),
        };
        for (number, max_ms) in [(3, Some(1000)), (4, Some(2000)), (5, None)] {
            let changes = vec![Change::of(change(max_ms))];
            let facts = EventFacts { changes, ..message(number) };
            rooms.add_event(Offset::new(number), &room_id, facts);
            assert_eq!(rooms.lifetimes.classes(), [class(max_ms)]);
            let due = rooms.lifetimes.rooms(&class(max_ms), Offset::new(2), 10, |_| true);
            assert_eq!(due, std::slice::from_ref(&room_id));
        }
    }
}
