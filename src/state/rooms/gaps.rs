//! Gaps in a room's history, and the events of other homeservers that were found for them.
//!
//! A gap lies before an event. The events found for it are numbered backward in time, from 1, and
//! keep their numbers: later finds only get higher ones. So a [`TimelinePosition`] never moves.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::atomic,
};

use ruma::OwnedEventId;
use serde::{Deserialize, Serialize};

use super::{Inner, Room, Rooms};
use crate::relations::NewRelation;
use logcabin_record::{
    Offset,
    command::{Filled, RoomGap},
};

/// A position in a room's history, between two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelinePosition {
    /// After this record.
    After(Offset),
    /// In the gap before the event at `gap`: right before this many of its events, counted backward
    /// in time. With 0, right before the event at `gap`.
    Within {
        /// The event that follows the gap.
        gap: Offset,
        /// The number of events of the gap that follow it.
        passed: u32,
    },
}

impl TimelinePosition {
    fn rank(self) -> (Offset, i64) {
        match self {
            Self::After(offset) => (offset, i64::MAX),
            Self::Within { gap, passed } => (gap, -i64::from(passed)),
        }
    }

    /// The last record before it: the room's state there is the state as of this offset.
    pub const fn offset(self) -> Offset {
        match self {
            Self::After(offset) => offset,
            Self::Within { gap, .. } => gap.prev(),
        }
    }
}

impl PartialOrd for TimelinePosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimelinePosition {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// The position of an event in a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapPosition {
    /// The event that follows the gap.
    pub gap: Offset,
    /// The event's number in it.
    pub number: u32,
}

impl GapPosition {
    /// The position right after the event.
    pub const fn after(self) -> TimelinePosition {
        TimelinePosition::Within { gap: self.gap, passed: self.number.saturating_sub(1) }
    }

    /// The position right before the event.
    pub const fn before(self) -> TimelinePosition {
        TimelinePosition::Within { gap: self.gap, passed: self.number }
    }
}

/// The current state of a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapNow {
    /// The number of its events.
    pub filled: u32,
    pub missing: Vec<OwnedEventId>,
    /// Until when it is given up.
    pub given_up_until_ms: Option<u64>,
}

impl GapNow {
    /// Whether it may get more events.
    pub fn is_open(&self, now_ms: u64) -> bool {
        is_open(&self.missing, self.given_up_until_ms, now_ms)
    }
}

fn is_open(missing: &[OwnedEventId], given_up_until_ms: Option<u64>, now_ms: u64) -> bool {
    !missing.is_empty() && given_up_until_ms.is_none_or(|until_ms| until_ms <= now_ms)
}

/// Events of a room in their order, as a reader goes through them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelinePart {
    /// The events, each with the position after it in the direction of the walk.
    pub events: Vec<(Offset, TimelinePosition)>,
    /// The gap at which the walk ends, because it may get more events.
    pub open: Option<Offset>,
}

/// How to read a room's history.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// As of this offset.
    pub at: Offset,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Whether the walk ends at a gap that may get more events.
    pub stops: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Gaps {
    /// By the event that follows them.
    gaps: BTreeMap<Offset, Gap>,
    filled: BTreeMap<Offset, GapPosition>,
    /// The redactions of unknown events, by these events.
    redactions: BTreeSet<(OwnedEventId, Offset)>,
    /// The facts that become visible once an event is in a gap.
    waiting: BTreeMap<Offset, UntimedEvent>,
    /// The events that relate to an unknown event, by that event.
    orphans: BTreeMap<OwnedEventId, Vec<(Offset, NewRelation)>>,
    /// The size of the records made for the gaps, in bytes.
    bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Gap {
    /// Newest first, each with its time.
    events: Vec<(Offset, u64)>,
    /// The number of events after a record.
    parts: Vec<(Offset, u32)>,
    /// The history visibility before the event with a number, and before those with higher numbers.
    visibility: Vec<(u32, Box<str>)>,
    missing: Vec<OwnedEventId>,
    given_up_until_ms: Option<u64>,
}

impl Gap {
    fn known(&self, at: Offset) -> u32 {
        let parts = self.parts.partition_point(|(record, _)| *record <= at);
        parts.checked_sub(1).and_then(|last| self.parts.get(last)).map_or(0, |(_, count)| *count)
    }

    fn event(&self, number: u32) -> Option<Offset> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.events.get(index).map(|(event, _)| *event)
    }

    fn visibility(&self, number: u32) -> Option<&str> {
        let of = self.visibility.partition_point(|(from, _)| *from <= number);
        of.checked_sub(1).and_then(|of| self.visibility.get(of)).map(|(_, name)| &**name)
    }

    fn stops(&self, reading: &ReadOptions) -> bool {
        reading.stops && is_open(&self.missing, self.given_up_until_ms, reading.now_ms)
    }
}

/// The facts about an event that is not state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UntimedEvent {
    pub(crate) event_type: Box<str>,
    /// The event that it relates to, and how.
    pub(crate) relation: Option<(OwnedEventId, NewRelation)>,
    /// The event that it redacts, if the redaction is allowed.
    pub(crate) redacts: Option<OwnedEventId>,
}

impl Gaps {
    /// Whether the room's history ever had a gap.
    pub(super) fn has_any(&self) -> bool {
        !self.gaps.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        let Self { gaps, filled, redactions, waiting, orphans, bytes: _ } = self;
        gaps.is_empty()
            && filled.is_empty()
            && redactions.is_empty()
            && waiting.is_empty()
            && orphans.is_empty()
    }

    pub(super) fn begin(&mut self, offset: Offset, missing: Vec<OwnedEventId>) {
        self.gaps.entry(offset).or_insert_with(|| Gap { missing, ..Gap::default() });
    }

    pub(super) fn note_redaction(&mut self, target: OwnedEventId, redaction: Offset) {
        if !self.gaps.is_empty() {
            self.redactions.insert((target, redaction));
        }
    }

    pub(super) fn note_orphan(&mut self, parent: OwnedEventId, child: Offset, how: NewRelation) {
        if !self.gaps.is_empty() {
            self.orphans.entry(parent).or_default().push((child, how));
        }
    }

    pub(super) fn has(&self, event: Offset) -> bool {
        self.filled.contains_key(&event)
    }

    /// Forgets events whose content was erased. Their numbers remain.
    pub(super) fn forget(&mut self, gone: &BTreeSet<Offset>) {
        if self.is_empty() {
            return;
        }
        self.filled.retain(|event, _| !gone.contains(event));
        self.redactions.retain(|(_, redaction)| !gone.contains(redaction));
        self.orphans.retain(|_, children| {
            children.retain(|(child, _)| !gone.contains(child));
            !children.is_empty()
        });
    }
}

impl Inner {
    /// Whether clients are shown the event at `offset`, in the timeline or in a gap.
    pub(super) fn shows_event(&self, offset: Offset) -> bool {
        self.has_event(offset) || self.gaps.has(offset)
    }

    /// The last timeline event or gap up to and including `offset`, and whether it is an event and
    /// whether there is a gap before it.
    fn last_up_to(&self, offset: Offset) -> Option<(Offset, bool, bool)> {
        let end = self.timeline.partition_point(|event| *event <= offset);
        let event = end.checked_sub(1).and_then(|last| self.timeline.get(last)).copied();
        let gap = self.gaps.gaps.range(..=offset).next_back().map(|(gap, _)| *gap);
        let found = event.max(gap)?;
        Some((found, event == Some(found), gap == Some(found)))
    }

    /// The same for the first after `offset`.
    fn first_after(&self, offset: Offset) -> Option<(Offset, bool, bool)> {
        let from = self.timeline.partition_point(|event| *event <= offset);
        let event = self.timeline.get(from).copied();
        let gap = self.gaps.gaps.range(offset.next()..).next().map(|(gap, _)| *gap);
        let found = event.into_iter().chain(gap).min()?;
        Some((found, event == Some(found), gap == Some(found)))
    }

    /// Puts an event into a gap; returns those that it redacts and is redacted by.
    fn put(&mut self, slot: GapPosition, filled: &Filled) -> Vec<(Offset, Offset)> {
        let Filled { event, event_id, redacts, redacted_by, .. } = filled;
        self.gaps.filled.insert(*event, slot);
        let waiting = self.gaps.waiting.remove(event);
        let shared = self.gaps.gaps.get(&slot.gap).and_then(|gap| gap.visibility(slot.number));
        let shared = shared.is_some_and(|name| matches!(name, "shared" | "world_readable"));
        if let Some(UntimedEvent { event_type, relation, redacts: target }) = waiting {
            match target {
                Some(target) if redacts.is_none() => {
                    self.gaps.redactions.insert((target, *event));
                }
                Some(_) => {}
                None => {
                    let of_type = self.messages.entry(event_type).or_default();
                    let at = of_type.partition_point(|other| other < event);
                    of_type.insert(at, *event);
                }
            }
            // Counts are for everybody, so they leave out an event that not everybody may see.
            if let Some((to, relation)) = relation.filter(|_| shared) {
                self.relate(to, *event, relation);
            }
        }
        let mut children = self.gaps.orphans.remove(event_id).unwrap_or_default();
        children.sort_unstable_by_key(|(child, _)| *child);
        for (child, relation) in children {
            let Self { relations, redactions, .. } = self;
            relations.add(child, *event, &relation, redactions);
        }
        let met: Vec<_> = self
            .gaps
            .redactions
            .range((event_id.clone(), Offset::ZERO)..=(event_id.clone(), Offset::MAX))
            .cloned()
            .collect();
        if redacted_by.is_some() {
            for redaction in met {
                self.gaps.redactions.remove(&redaction);
            }
        }
        let pairs = redacts.map(|target| (*event, target));
        pairs.into_iter().chain(redacted_by.map(|by| (by, *event))).collect()
    }

    fn relate(&mut self, parent_id: OwnedEventId, child: Offset, relation: NewRelation) {
        match relation.parents.iter().find(|at| self.shows_event(**at)).copied() {
            Some(parent) => {
                let Self { relations, redactions, .. } = self;
                relations.add(child, parent, &relation, redactions);
            }
            None => self.gaps.note_orphan(parent_id, child, relation),
        }
    }

    /// Fills a gap; returns the events that are now redacted.
    fn fill(&mut self, offset: Offset, body: RoomGap) -> Vec<Offset> {
        let RoomGap { gap, events, missing, bytes, given_up_until_ms, .. } = body;
        let mut pairs = Vec::new();
        for filled in events {
            if self.shows_event(filled.event) {
                continue;
            }
            let Some(of) = self.gaps.gaps.get_mut(&gap) else { break };
            let number = u32::try_from(of.events.len() + 1).unwrap_or(u32::MAX);
            of.events.push((filled.event, filled.ts));
            if let Some(name) = &filled.visibility {
                of.visibility.push((number, name.as_str().into()));
            }
            pairs.extend(self.put(GapPosition { gap, number }, &filled));
        }
        if let Some(of) = self.gaps.gaps.get_mut(&gap) {
            let count = u32::try_from(of.events.len()).unwrap_or(u32::MAX);
            of.parts.push((offset, count));
            of.missing = missing;
            of.given_up_until_ms = given_up_until_ms;
        }
        self.gaps.bytes = self.gaps.bytes.saturating_add(bytes);
        let mut redacted = Vec::new();
        for (redaction, target) in pairs {
            if self.redactions.contains_key(&target) {
                continue;
            }
            self.redactions.insert(target, redaction);
            self.relations.redact(target, redaction);
            let at = self.redaction_log.partition_point(|pair| *pair < (redaction, target));
            self.redaction_log.insert(at, (redaction, target));
            redacted.push(target);
        }
        redacted
    }
}

impl Room {
    /// Whether its history ever had a gap. Without one, positions in it are offsets.
    pub fn is_gapped(&self) -> bool {
        self.gapped.load(atomic::Ordering::Acquire)
    }

    /// Whether clients are shown the event at `offset`, in the timeline or in a gap.
    pub fn shows_event(&self, offset: Offset) -> bool {
        self.inner.read().shows_event(offset)
    }

    /// The position of the event at `offset`, if it is in a gap.
    pub fn slot(&self, offset: Offset) -> Option<GapPosition> {
        self.inner.read().gaps.filled.get(&offset).copied()
    }

    /// The gap before the event at `offset`.
    pub fn gap(&self, offset: Offset) -> Option<GapNow> {
        let inner = self.inner.read();
        let gap = inner.gaps.gaps.get(&offset)?;
        Some(GapNow {
            filled: u32::try_from(gap.events.len()).unwrap_or(u32::MAX),
            missing: gap.missing.clone(),
            given_up_until_ms: gap.given_up_until_ms,
        })
    }

    /// The newest gap after `after`, up to and including the event at `to`, that has events or may
    /// get some: a reader who goes from `after` to `to` has not seen them.
    pub fn last_gap(&self, after: Offset, to: Offset) -> Option<Offset> {
        if after >= to {
            return None;
        }
        let inner = self.inner.read();
        let within = inner.gaps.gaps.range(after.next()..=to).rev();
        let mut real = within.filter(|(_, of)| !of.missing.is_empty() || !of.events.is_empty());
        real.next().map(|(gap, _)| *gap)
    }

    /// The position right before the event at `offset` of the timeline.
    pub fn before_event(&self, offset: Offset) -> TimelinePosition {
        if self.is_gapped() && self.inner.read().gaps.gaps.contains_key(&offset) {
            return TimelinePosition::Within { gap: offset, passed: 0 };
        }
        TimelinePosition::After(offset.prev())
    }

    /// The number of events that a gap had as of `at`.
    pub fn filled_as_of(&self, gap: Offset, at: Offset) -> u32 {
        self.inner.read().gaps.gaps.get(&gap).map_or(0, |gap| gap.known(at))
    }

    /// The history visibility before an event in a gap, and after it.
    pub fn visibility_around(&self, slot: GapPosition) -> (Option<String>, Option<String>) {
        let inner = self.inner.read();
        let Some(gap) = inner.gaps.gaps.get(&slot.gap) else { return (None, None) };
        let of = |number| gap.visibility(number).map(ToOwned::to_owned);
        (of(slot.number), of(slot.number.saturating_sub(1)))
    }

    /// The history visibility before the oldest event in a gap.
    pub fn visibility_at_end(&self, gap: Offset) -> Option<String> {
        let inner = self.inner.read();
        inner.gaps.gaps.get(&gap)?.visibility.last().map(|(_, name)| name.to_string())
    }

    /// The size of the records made for the room's gaps, in bytes.
    pub fn gap_bytes(&self) -> u64 {
        self.inner.read().gaps.bytes
    }

    /// The redactions of the event with this id that were recorded before the event was known.
    pub fn unmet_redactions(&self, event_id: &OwnedEventId) -> Vec<Offset> {
        let inner = self.inner.read();
        let range = (event_id.clone(), Offset::ZERO)..=(event_id.clone(), Offset::MAX);
        inner.gaps.redactions.range(range).map(|(_, redaction)| *redaction).collect()
    }

    /// The events in gaps as of `at`, each with its time.
    pub fn filled_times(&self, at: Offset) -> Vec<(Offset, u64)> {
        let inner = self.inner.read();
        let known = |gap: &Gap| usize::try_from(gap.known(at)).unwrap_or(usize::MAX);
        let gaps = inner.gaps.gaps.values();
        gaps.flat_map(|gap| gap.events.iter().take(known(gap)).copied()).collect()
    }

    /// The oldest known event of a gap, or else the event that follows the gap.
    pub fn oldest_of_gap(&self, gap: Offset) -> Offset {
        let inner = self.inner.read();
        let last = inner.gaps.gaps.get(&gap).and_then(|gap| gap.events.last());
        last.map_or(gap, |(event, _)| *event)
    }

    /// The gaps before events up to `to`, at most this many, newest first.
    pub fn gaps(&self, to: Offset, most: usize) -> Vec<Offset> {
        let inner = self.inner.read();
        inner.gaps.gaps.range(..=to).rev().take(most).map(|(gap, _)| *gap).collect()
    }

    /// The event with this number in a gap, counted from 1 backward in time.
    pub fn event_of_gap(&self, gap: Offset, number: u32) -> Option<Offset> {
        self.inner.read().gaps.gaps.get(&gap)?.event(number)
    }

    /// The gaps that may get more events, oldest first.
    pub fn open_gaps(&self, now_ms: u64) -> Vec<Offset> {
        let inner = self.inner.read();
        let all = inner.gaps.gaps.iter();
        let open = all.filter(|(_, of)| is_open(&of.missing, of.given_up_until_ms, now_ms));
        open.map(|(gap, _)| *gap).collect()
    }

    /// Up to `limit` events from `from` back to `to`, newest first.
    #[must_use]
    pub fn walk_back(
        &self,
        from: TimelinePosition,
        to: TimelinePosition,
        reading: ReadOptions,
        limit: usize,
    ) -> TimelinePart {
        let inner = self.inner.read();
        let (mut walk, mut place) = (TimelinePart::default(), from);
        while walk.events.len() < limit && to < place {
            match place {
                TimelinePosition::After(offset) => {
                    let Some((found, is_event, is_gap)) = inner.last_up_to(offset) else { break };
                    let before = if is_gap {
                        TimelinePosition::Within { gap: found, passed: 0 }
                    } else {
                        TimelinePosition::After(found.prev())
                    };
                    if TimelinePosition::After(found) <= to {
                        break;
                    }
                    if is_event {
                        walk.events.push((found, before));
                    }
                    place = before;
                }
                TimelinePosition::Within { gap, passed } => {
                    let Some(of) = inner.gaps.gaps.get(&gap) else {
                        place = TimelinePosition::After(gap.prev());
                        continue;
                    };
                    if passed < of.known(reading.at) {
                        let before = TimelinePosition::Within { gap, passed: passed + 1 };
                        if before < to {
                            break;
                        }
                        walk.events.extend(of.event(passed + 1).map(|event| (event, before)));
                        place = before;
                    } else if of.stops(&reading) {
                        walk.open = Some(gap);
                        break;
                    } else {
                        place = TimelinePosition::After(gap.prev());
                    }
                }
            }
        }
        walk
    }

    /// Up to `limit` events from `from` on to `to`, oldest first.
    #[must_use]
    pub fn walk_on(
        &self,
        from: TimelinePosition,
        to: TimelinePosition,
        reading: ReadOptions,
        limit: usize,
    ) -> TimelinePart {
        let inner = self.inner.read();
        let (mut walk, mut place) = (TimelinePart::default(), from);
        while walk.events.len() < limit && place < to {
            let (event, after) = match place {
                TimelinePosition::After(offset) => {
                    let Some((found, is_event, is_gap)) = inner.first_after(offset) else { break };
                    if is_gap {
                        let Some(of) = inner.gaps.gaps.get(&found) else { break };
                        // Stop at the far end: later finds would be behind the reader.
                        let entered =
                            TimelinePosition::Within { gap: found, passed: of.known(reading.at) };
                        if to <= entered {
                            break;
                        }
                        if of.stops(&reading) {
                            walk.open = Some(found);
                            break;
                        }
                        place = entered;
                        continue;
                    }
                    (is_event.then_some(found), TimelinePosition::After(found))
                }
                TimelinePosition::Within { gap, passed: 0 } => {
                    (inner.has_event(gap).then_some(gap), TimelinePosition::After(gap))
                }
                TimelinePosition::Within { gap, passed } => {
                    let of = inner.gaps.gaps.get(&gap);
                    let known = of.map_or(0, |of| of.known(reading.at));
                    let passed = passed.min(known);
                    let event = of.and_then(|of| of.event(passed));
                    (event, TimelinePosition::Within { gap, passed: passed.saturating_sub(1) })
                }
            };
            if to < after {
                break;
            }
            walk.events.extend(event.map(|event| (event, after)));
            place = after;
        }
        walk
    }
}

impl Rooms {
    /// Fills a gap of a room; returns the events that are now redacted.
    pub(crate) fn fill(&self, offset: Offset, body: RoomGap) -> Vec<Offset> {
        let Some(room) = self.get(&body.room_id) else { return Vec::new() };
        let room_id = body.room_id.clone();
        self.lifetimes.change(&room_id, || room.oldest(), || room.inner.write().fill(offset, body))
    }

    /// Notes the facts that become visible once an event is in a gap.
    pub(crate) fn await_gap(&self, offset: Offset, room_id: &ruma::RoomId, waiting: UntimedEvent) {
        if let Some(room) = self.get(room_id) {
            room.inner.write().gaps.waiting.insert(offset, waiting);
        }
    }
}

#[cfg(test)]
mod tests;
