//! A room's timeline: its events in the order in which they were recorded.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use ruma::{OwnedEventId, RoomId};
use serde::{Deserialize, Serialize};

use super::{EventFacts, Inner, Room, Rooms};
use crate::lifetimes::RetentionClass;
use logcabin_record::{Offset, command::Extremity};

/// Whether an event of this type moves its room to the top of a room list (MSC4186, `bump_stamp`).
pub fn is_activity(event_type: &str) -> bool {
    matches!(
        event_type,
        "m.room.create"
            | "m.room.message"
            | "m.room.encrypted"
            | "m.sticker"
            | "m.call.invite"
            | "m.poll.start"
            | "m.beacon_info"
    )
}

/// The end of a room's event graph, on which the next event is built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tip {
    /// The forward extremity.
    pub event_id: OwnedEventId,
    pub depth: u64,
}

impl From<Extremity> for Tip {
    fn from(Extremity { event_id, depth }: Extremity) -> Self {
        Self { event_id, depth }
    }
}

impl Room {
    /// The end of the event graph, or, of several, the newest.
    pub fn tip(&self) -> Option<Tip> {
        self.inner.read().tip.clone()
    }

    /// The offset of the last event up to and including `at`.
    pub fn last_event(&self, at: Offset) -> Option<Offset> {
        let inner = self.inner.read();
        let end = inner.timeline.partition_point(|offset| *offset <= at);
        end.checked_sub(1).and_then(|last| inner.timeline.get(last).copied())
    }

    /// The offset of the newest event that counts as activity ([`is_activity`]), however new it is.
    pub fn last_activity(&self) -> Offset {
        self.inner.read().last_activity
    }

    /// Up to `limit` events after `after`, up to and including `to`, oldest first.
    pub fn events_forward(&self, after: Offset, to: Offset, limit: usize) -> Vec<Offset> {
        self.events_after(after, to, limit).1
    }

    /// Up to `limit` events after `after`, up to and including `to`, oldest first, and the index of
    /// the first of them.
    pub fn events_after(&self, after: Offset, to: Offset, limit: usize) -> (usize, Vec<Offset>) {
        let inner = self.inner.read();
        let from = inner.timeline.partition_point(|offset| *offset <= after);
        let events = inner.timeline[from..].iter().copied().take_while(|o| *o <= to);
        (from, events.take(limit).collect())
    }

    /// Up to `limit` events from `from` (inclusive) back to `after` (exclusive), newest first.
    pub fn events_backward(&self, from: Offset, after: Offset, limit: usize) -> Vec<Offset> {
        let inner = self.inner.read();
        let end = inner.timeline.partition_point(|offset| *offset <= from);
        let events = inner.timeline[..end].iter().rev().copied();
        events.take_while(|offset| *offset > after).take(limit).collect()
    }

    /// The number of events in the room as of `at`.
    pub fn event_count(&self, at: Offset) -> usize {
        self.inner.read().timeline.partition_point(|offset| *offset <= at)
    }

    /// The event at this index of the timeline, from 0.
    pub fn nth_event(&self, index: usize) -> Option<Offset> {
        self.inner.read().timeline.get(index).copied()
    }

    /// Whether the timestamp of the event at `offset` is lower than that of an earlier one.
    pub fn is_late(&self, offset: Offset) -> bool {
        self.inner.read().late.contains_key(&offset)
    }

    /// The events up to and including `at` whose timestamp is lower than that of an earlier one,
    /// each with its timestamp in milliseconds since the Unix epoch.
    pub fn late_events(&self, at: Offset) -> Vec<(Offset, u64)> {
        self.inner.read().late.range(..=at).map(|(offset, ts)| (*offset, *ts)).collect()
    }

    /// The position before the last `count` events up to and including `at`.
    pub fn before_last(&self, count: usize, at: Offset) -> Offset {
        let inner = self.inner.read();
        let end = inner.timeline.partition_point(|offset| *offset <= at);
        let before = end.checked_sub(count + 1).and_then(|index| inner.timeline.get(index));
        before.copied().unwrap_or(Offset::ZERO)
    }

    /// Whether `offset` is an event of this room.
    pub fn has_event(&self, offset: Offset) -> bool {
        self.inner.read().has_event(offset)
    }

    /// The last record that removed events from the room.
    pub fn erased(&self) -> Offset {
        self.inner.read().erased
    }

    /// Removes events and their redactions. Returns all removed events.
    pub(super) fn erase(&self, offset: Offset, events: &[Offset]) -> BTreeSet<Offset> {
        let mut inner = self.inner.write();
        let inner = &mut *inner;
        let wanted: BTreeSet<Offset> = events.iter().copied().collect();
        let mut gone = BTreeSet::new();
        inner.messages.retain(|_, offsets| {
            gone.extend(take_out(offsets, &wanted));
            !offsets.is_empty()
        });
        // A redaction may itself have been redacted.
        let mut targets: Vec<_> = gone.iter().copied().collect();
        while let Some(target) = targets.pop() {
            if let Some(redaction) = inner.redactions.remove(&target) {
                if let Ok(at) = inner.redaction_log.binary_search(&(redaction, target)) {
                    inner.redaction_log.remove(at);
                }
                // A `room.redact_sender` redacts other events, too.
                if inner.shows_event(redaction) {
                    gone.insert(redaction);
                    targets.push(redaction);
                }
            }
        }
        take_out(&mut inner.timeline, &gone);
        inner.gaps.forget(&gone);
        for event in &gone {
            inner.late.remove(event);
        }
        let Inner { relations, redactions, .. } = inner;
        relations.forget(&gone, redactions);
        inner.erased = offset;
        gone
    }

    /// Adds an event; returns the event that it is the first to redact.
    pub(super) fn add_event(&self, offset: Offset, facts: EventFacts) -> Option<Offset> {
        let mut inner = self.inner.write();
        inner.timeline.push(offset);
        let redacts = facts.redacts.filter(|target| !inner.redactions.contains_key(target));
        let takes_effect = facts.takes_effect;
        if facts.state_key.is_none() && redacts.is_none() {
            inner.messages.entry(facts.event_type).or_default().push(offset);
        }
        if let Some((name, lifetime)) = facts.lifetime
            && takes_effect
            && let Some(of) = inner.lifetimes.get_mut(name)
        {
            *of = lifetime.map(|lifetime| (offset, lifetime));
        }
        if facts.ts < inner.latest_ts || facts.ts > facts.horizon {
            inner.late.insert(offset, facts.ts);
        } else {
            inner.latest_ts = facts.ts;
        }
        let mut others = facts.others;
        let tip = match facts.beside && !others.is_empty() {
            true => others.remove(0),
            false => Tip { event_id: facts.event_id, depth: facts.depth },
        };
        inner.tip = Some(tip);
        inner.graph.others = others;
        if !facts.missing.is_empty() {
            inner.gaps.begin(offset, facts.missing);
            self.gapped.store(true, Ordering::Release);
        }
        if let Some(target) = facts.redacts_unknown {
            inner.gaps.note_redaction(target, offset);
        }
        inner.changed = offset;
        if facts.activity {
            inner.last_activity = offset;
        }
        if let Some((event_type, state_key)) = facts.state_key.filter(|_| takes_effect) {
            let key = inner.key(event_type, state_key);
            inner.state_log.push((offset, key));
            inner.state[key as usize].push(offset);
        }
        if let Some((user_id, membership)) = facts.membership.filter(|_| takes_effect) {
            inner.set_membership(offset, user_id, membership);
        }
        for change in facts.changes {
            inner.reassign(offset, change);
        }
        if let Some(relation) = facts.relation {
            // Two event ids of one room that share half of their hash have never been seen. If
            // there are any, the older event is the parent.
            if let Some(parent) = relation.parents.iter().find(|at| inner.shows_event(**at)) {
                let Inner { relations, redactions, .. } = &mut *inner;
                relations.add(offset, *parent, &relation, redactions);
            } else if let Some(parent) = facts.relates_to_unknown {
                inner.gaps.note_orphan(parent, offset, relation);
            }
        }
        let target = redacts?;
        inner.redact(target, offset);
        for of in &mut inner.lifetimes {
            if of.is_some_and(|(event, _)| event == target) {
                *of = None;
            }
        }
        Some(target)
    }

    /// Redacts events that are no state but joins, with the record at `offset`, which is not an
    /// event. Returns those that were not redacted before.
    pub(crate) fn redact(&self, offset: Offset, mut events: Vec<Offset>) -> Vec<Offset> {
        let mut inner = self.inner.write();
        events.sort_unstable();
        events.dedup();
        events.retain(|event| inner.shows_event(*event) && !inner.redactions.contains_key(event));
        for event in &events {
            inner.redact(*event, offset);
        }
        inner.changed = offset;
        events
    }
}

impl Inner {
    /// Notes the newest redaction. Redactions are noted in the order of their targets if they have
    /// the same offset.
    fn redact(&mut self, target: Offset, offset: Offset) {
        self.redactions.insert(target, offset);
        self.relations.redact(target, offset);
        self.redaction_log.push((offset, target));
    }
}

impl Rooms {
    /// Adds an event to its room; returns the event that it is the first to redact.
    pub(crate) fn add_event(
        &self,
        offset: Offset,
        room_id: &RoomId,
        facts: EventFacts,
    ) -> Option<Offset> {
        let room = self.get(room_id)?;
        let changes_lifetime = facts.lifetime.is_some()
            || facts.changes.iter().any(|change| change.lifetime.is_some());
        if !changes_lifetime && facts.redacts.is_none() {
            let event_type = facts.state_key.is_none().then(|| facts.event_type.clone());
            let target = room.add_event(offset, facts);
            if let Some(event_type) = event_type
                && room.messages(&event_type, offset, 1) == [offset]
            {
                let own = room.lifetime();
                self.lifetimes.add(RetentionClass { own, event_type }, offset, room_id);
            }
            return target;
        }
        self.lifetimes.change(room_id, || room.oldest(), || room.add_event(offset, facts))
    }

    /// Removes events and their redactions from a room. Returns all removed events.
    pub(crate) fn erase(&self, offset: Offset, room_id: &RoomId, events: &[Offset]) -> Vec<Offset> {
        let Some(room) = self.get(room_id) else { return Vec::new() };
        let erase = || room.erase(offset, events);
        self.lifetimes.change(room_id, || room.oldest(), erase).into_iter().collect()
    }
}

impl Inner {
    pub(super) fn has_event(&self, offset: Offset) -> bool {
        self.timeline.binary_search(&offset).is_ok()
    }
}

/// Removes `wanted` from ascending offsets; returns those that were there.
pub(super) fn take_out(offsets: &mut Vec<Offset>, wanted: &BTreeSet<Offset>) -> Vec<Offset> {
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
    let from = offsets.partition_point(|offset| offset < first);
    let to = offsets.partition_point(|offset| offset <= last).max(from);
    let (out, stay): (Vec<_>, Vec<_>) =
        offsets[from..to].iter().copied().partition(|offset| wanted.contains(offset));
    offsets.splice(from..to, stay);
    out
}
