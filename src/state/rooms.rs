//! Rooms: timeline, state with its history, members, receipts, typing, and directory listing.
//!
//! A room stores offsets and small facts. The events themselves are read from the log.

pub(super) mod former;
pub mod gaps;
pub mod graph;
mod membership;
mod past;
mod servers;
mod stored;
mod typing;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{
    OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, RoomVersionId, UserId, events::StateEventType,
    room_version_rules::RoomVersionRules,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use membership::Membership;

use super::{
    history::History,
    kept,
    lifetimes::{Class, Lifetimes, Own},
    relations::{Child, NewRelation, Relations, Sought},
    rooms::{
        gaps::Gaps,
        graph::{Change, Graph},
        servers::Servers,
    },
};
use crate::record::{
    Offset,
    command::{Extremity, Receipt, RoomNetwork, RoomReceipt, RoomVisibility},
};

/// One room.
#[derive(Debug, Deserialize)]
#[serde(try_from = "stored::KeptRoom")]
pub struct Room {
    /// The room.
    pub id: OwnedRoomId,
    /// Its version.
    pub version: RoomVersionId,
    /// The rules of its version.
    pub rules: RoomVersionRules,
    /// The offset of its `m.room.create` event.
    pub created: Offset,
    /// Whether its history ever had a gap.
    gapped: AtomicBool,
    inner: RwLock<Inner>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    timeline: Vec<Offset>,
    /// The highest timestamp of an event.
    latest_ts: u64,
    /// The events whose timestamp is lower than that of an earlier one, or ahead of time, with the
    /// timestamp. Those of all other events never decrease along the timeline.
    late: BTreeMap<Offset, u64>,
    /// The events that can expire, by type, oldest first: all but state, and redactions, which
    /// expire with their targets.
    messages: BTreeMap<Box<str>, Vec<Offset>>,
    /// The lifetimes in the room's state: the state event with its content, under the stable and
    /// the unstable name of the specification proposal.
    lifetimes: [Option<(Offset, Own)>; 2],
    /// The last record that removed events.
    erased: Offset,
    /// Every change of state, as (offset, index into `keys`).
    state_log: Vec<(Offset, u32)>,
    keys: Vec<(StateEventType, Box<str>)>,
    #[serde(skip)]
    key_index: BTreeMap<StateEventType, BTreeMap<Box<str>, u32>>,
    /// The offsets at which each key changed, by key index.
    state: Vec<Vec<Offset>>,
    members: BTreeMap<OwnedUserId, History<Membership>>,
    /// Users who are joined or invited now, and are woken by events.
    present: BTreeSet<OwnedUserId>,
    #[serde(skip)]
    servers: Servers,
    counts: History<MemberCounts>,
    tip: Option<Tip>,
    /// Redacted event → the redaction.
    redactions: BTreeMap<Offset, Offset>,
    /// Has its own part in the digest: see [`Relations::digest`].
    #[serde(skip)]
    relations: Relations,
    /// Is in the digest if there is anything in it.
    #[serde(skip)]
    graph: Graph,
    /// Is in the digest if there is anything in it.
    #[serde(skip)]
    gaps: Gaps,
    /// The same by redaction, in order.
    #[serde(skip)]
    redaction_log: Vec<(Offset, Offset)>,
    public: History<bool>,
    receipts: BTreeMap<Arc<ReceiptKey>, ReceiptEntry>,
    /// By record, the receipts that it set and that have not moved since.
    #[serde(skip)]
    moved: BTreeMap<Offset, Vec<Arc<ReceiptKey>>>,
    typing: BTreeMap<OwnedUserId, Typist>,
    typing_changed: Offset,
    /// The last record of each user's typing.
    typing_records: BTreeMap<OwnedUserId, Offset>,
    changed: Offset,
    /// The last event that counts as activity: see [`is_activity`].
    #[serde(skip)]
    last_activity: Offset,
}

/// Whether an event of this type moves its room to the top of a room list (MSC4186, `bump_stamp`).
#[must_use]
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
    /// Its depth.
    pub depth: u64,
}

impl From<Extremity> for Tip {
    fn from(Extremity { event_id, depth }: Extremity) -> Self {
        Self { event_id, depth }
    }
}

/// How many users are joined and invited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberCounts {
    /// Joined users.
    pub joined: u64,
    /// Invited users.
    pub invited: u64,
}

/// The owner of a receipt: user, receipt type, thread.
pub type ReceiptKey = (OwnedUserId, String, Option<String>);

/// A receipt's position.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiptEntry {
    /// The record that set it.
    pub offset: Offset,
    /// The event.
    pub event_id: OwnedEventId,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

/// A typing user.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Typist {
    /// When it expires, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The record that began it.
    pub since: Offset,
}

/// The facts about an event that a room stores.
#[derive(Clone, Debug)]
pub(super) struct EventFacts {
    pub(super) event_id: OwnedEventId,
    pub(super) event_type: Box<str>,
    /// For a state event with lifetimes: the index of its name, and the lifetimes.
    pub(super) lifetime: Option<(usize, Option<Own>)>,
    pub(super) depth: u64,
    pub(super) ts: u64,
    pub(super) state_key: Option<(StateEventType, Box<str>)>,
    pub(super) membership: Option<(OwnedUserId, Membership)>,
    pub(super) redacts: Option<Offset>,
    pub(super) relation: Option<NewRelation>,
    pub(super) activity: bool,
    /// A timestamp after this one is out of order: those of later events would be behind it.
    pub(super) horizon: u64,
    /// Whether it may hold its key, if it is a state event.
    pub(super) takes_effect: bool,
    /// What else it changes in the state.
    pub(super) changes: Vec<Change>,
    /// The forward extremities besides it.
    pub(super) others: Vec<Tip>,
    /// Whether it is none itself.
    pub(super) beside: bool,
    /// The events before it that are missing.
    pub(super) missing: Vec<OwnedEventId>,
    /// The event that it would redact if that were known.
    pub(super) redacts_unknown: Option<OwnedEventId>,
    /// The event that it relates to, if that is not known.
    pub(super) relates_to_unknown: Option<OwnedEventId>,
}

#[cfg(test)]
impl EventFacts {
    /// Those of a message.
    fn message(event_id: OwnedEventId) -> Self {
        Self {
            event_id,
            event_type: "m.room.message".into(),
            lifetime: None,
            depth: 1,
            ts: 1,
            state_key: None,
            membership: None,
            redacts: None,
            relation: None,
            activity: true,
            horizon: u64::MAX,
            takes_effect: true,
            changes: Vec::new(),
            others: Vec::new(),
            beside: false,
            missing: Vec::new(),
            redacts_unknown: None,
            relates_to_unknown: None,
        }
    }
}

impl Room {
    /// The offset of the last record that changed the room, typing and receipts included.
    #[must_use]
    pub fn changed(&self) -> Offset {
        self.inner.read().changed
    }

    /// The end of the event graph, or, of several, the newest.
    #[must_use]
    pub fn tip(&self) -> Option<Tip> {
        self.inner.read().tip.clone()
    }

    /// The offset of the last event up to and including `at`.
    #[must_use]
    pub fn last_event(&self, at: Offset) -> Option<Offset> {
        let inner = self.inner.read();
        let end = inner.timeline.partition_point(|offset| *offset <= at);
        end.checked_sub(1).and_then(|last| inner.timeline.get(last).copied())
    }

    /// The offset of the newest event that counts as activity ([`is_activity`]), however new it is.
    #[must_use]
    pub fn last_activity(&self) -> Offset {
        self.inner.read().last_activity
    }

    /// Up to `limit` events after `after`, up to and including `to`, oldest first.
    #[must_use]
    pub fn events_forward(&self, after: Offset, to: Offset, limit: usize) -> Vec<Offset> {
        let inner = self.inner.read();
        let from = inner.timeline.partition_point(|offset| *offset <= after);
        inner.timeline[from..].iter().copied().take_while(|o| *o <= to).take(limit).collect()
    }

    /// Up to `limit` events from `from` (inclusive) back to `after` (exclusive), newest first.
    #[must_use]
    pub fn events_backward(&self, from: Offset, after: Offset, limit: usize) -> Vec<Offset> {
        let inner = self.inner.read();
        let end = inner.timeline.partition_point(|offset| *offset <= from);
        let events = inner.timeline[..end].iter().rev().copied();
        events.take_while(|offset| *offset > after).take(limit).collect()
    }

    /// The number of events in the room as of `at`.
    #[must_use]
    pub fn event_count(&self, at: Offset) -> usize {
        self.inner.read().timeline.partition_point(|offset| *offset <= at)
    }

    /// The event at this index of the timeline, from 0.
    #[must_use]
    pub fn nth_event(&self, index: usize) -> Option<Offset> {
        self.inner.read().timeline.get(index).copied()
    }

    /// Whether the timestamp of the event at `offset` is lower than that of an earlier one.
    #[must_use]
    pub fn is_late(&self, offset: Offset) -> bool {
        self.inner.read().late.contains_key(&offset)
    }

    /// The events up to and including `at` whose timestamp is lower than that of an earlier one,
    /// each with its timestamp in milliseconds since the Unix epoch.
    #[must_use]
    pub fn late_events(&self, at: Offset) -> Vec<(Offset, u64)> {
        self.inner.read().late.range(..=at).map(|(offset, ts)| (*offset, *ts)).collect()
    }

    /// The position before the last `count` events up to and including `at`.
    #[must_use]
    pub fn before_last(&self, count: usize, at: Offset) -> Offset {
        let inner = self.inner.read();
        let end = inner.timeline.partition_point(|offset| *offset <= at);
        let before = end.checked_sub(count + 1).and_then(|index| inner.timeline.get(index));
        before.copied().unwrap_or(Offset::ZERO)
    }

    /// Whether `offset` is an event of this room.
    #[must_use]
    pub fn has_event(&self, offset: Offset) -> bool {
        self.inner.read().has_event(offset)
    }

    /// The offset of the state event of this key as of `at`.
    #[must_use]
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

    /// The offsets of all state events with this key up to and including `at`, oldest first.
    #[must_use]
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
    #[must_use]
    pub fn state_before(
        &self,
        event_type: &StateEventType,
        state_key: &str,
        before: Offset,
    ) -> Option<Offset> {
        self.state_event(event_type, state_key, before.prev())
    }

    /// The offsets of all state events as of `at`, in the order in which they were sent.
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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
    #[must_use]
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

    /// The membership of `user_id` as of `at`, with the offset that set it.
    #[must_use]
    pub fn membership(&self, user_id: &UserId, at: Offset) -> Option<(Offset, Membership)> {
        let inner = self.inner.read();
        inner.members.get(user_id)?.at(at).map(|(offset, membership)| (offset, *membership))
    }

    /// Whether `user_id` is joined as of `at`.
    #[must_use]
    pub fn is_joined(&self, user_id: &UserId, at: Offset) -> bool {
        matches!(self.membership(user_id, at), Some((_, Membership::Join)))
    }

    /// The offset since which `user_id` has been joined without a break; `None` if they are not
    /// joined as of `at`.
    #[must_use]
    pub fn joined_since(&self, user_id: &UserId, at: Offset) -> Option<Offset> {
        let inner = self.inner.read();
        let changes = inner.members.get(user_id)?.between(Offset::ZERO, at).rev();
        let joined = changes.take_while(|(_, membership)| **membership == Membership::Join);
        joined.last().map(|(offset, _)| offset)
    }

    /// All memberships of `user_id` up to and including `at`, oldest first.
    #[must_use]
    pub fn membership_changes(&self, user_id: &UserId, at: Offset) -> Vec<(Offset, Membership)> {
        let inner = self.inner.read();
        inner.members.get(user_id).map_or_else(Vec::new, |history| {
            history.between(Offset::ZERO, at).map(|(offset, m)| (offset, *m)).collect()
        })
    }

    /// When `user_id` last stopped being joined, up to and including `at`.
    #[must_use]
    pub fn departed(&self, user_id: &UserId, at: Offset) -> Option<Offset> {
        let changes = self.membership_changes(user_id, at);
        let leave = changes.windows(2).rfind(|pair| {
            let (before, after) = (pair[0].1, pair[1].1);
            before == Membership::Join && after != Membership::Join
        });
        leave.map(|pair| pair[1].0)
    }

    /// The users with this membership as of `at`, in order, each with the member event.
    #[must_use]
    pub fn members(&self, membership: Membership, at: Offset) -> Vec<(OwnedUserId, Offset)> {
        let inner = self.inner.read();
        let keys = inner.key_index.get(&StateEventType::RoomMember);
        let event_of = |user_id: &UserId, changed: Offset| {
            if inner.graph.is_plain() {
                return changed;
            }
            let key = keys.and_then(|keys| keys.get(user_id.as_str()));
            key.and_then(|key| inner.held(*key, changed)).unwrap_or(changed)
        };
        inner
            .members
            .iter()
            .filter_map(|(user_id, history)| {
                let (offset, is) = history.at(at)?;
                (*is == membership).then(|| (user_id.clone(), event_of(user_id, offset)))
            })
            .collect()
    }

    /// The users who are joined as of `to` and were not as of `since`, ordered by id. The cost is
    /// proportional to the changes of the room's state.
    #[must_use]
    pub fn joined_between(&self, since: Offset, to: Offset) -> Vec<OwnedUserId> {
        let inner = self.inner.read();
        let is_joined = |user_id: &UserId, at| {
            let history = inner.members.get(user_id);
            history
                .and_then(|history| history.at(at))
                .is_some_and(|(_, is)| *is == Membership::Join)
        };
        let newly = |user_id: &&UserId| is_joined(user_id, to) && !is_joined(user_id, since);
        let changed = inner.members_changed(since, to);
        changed.into_iter().filter(newly).map(ToOwned::to_owned).collect()
    }

    /// How many users are joined or invited now.
    pub(crate) fn present_now(&self) -> usize {
        self.inner.read().present.len()
    }

    /// Calls `found` for each of these users who is joined or invited now.
    pub(crate) fn each_present_of<T>(&self, users: &[(OwnedUserId, T)], mut found: impl FnMut(&T)) {
        let inner = self.inner.read();
        users.iter().filter(|(user, _)| inner.present.contains(user)).for_each(|(_, t)| found(t));
    }

    /// How many users are joined and invited as of `at`.
    #[must_use]
    pub fn counts(&self, at: Offset) -> MemberCounts {
        self.inner.read().counts.at(at).map(|(_, counts)| *counts).unwrap_or_default()
    }

    /// The users whose membership or profile changed after `since`, up to and including `to`.
    #[must_use]
    pub fn members_changed(&self, since: Offset, to: Offset) -> BTreeSet<OwnedUserId> {
        let inner = self.inner.read();
        inner.members_changed(since, to).into_iter().map(ToOwned::to_owned).collect()
    }

    /// Whether the number of joined or invited users changed after `since`, even if it changed
    /// back.
    #[must_use]
    pub fn counts_changed(&self, since: Offset, to: Offset) -> bool {
        self.inner.read().counts.between(since, to).next().is_some()
    }

    /// The offset of the redaction of the event at `event`, if it was redacted as of `at`.
    #[must_use]
    pub fn redaction_of(&self, event: Offset, at: Offset) -> Option<Offset> {
        self.inner.read().redactions.get(&event).copied().filter(|redaction| *redaction <= at)
    }

    /// Whether any event relates to the one at `parent`, or once did.
    #[must_use]
    pub fn has_children(&self, parent: Offset) -> bool {
        self.inner.read().relations.has_children(parent)
    }

    /// Up to `most` events that relate to the one at `parent` as of `at`, newest first, without
    /// redacted ones.
    #[must_use]
    pub fn children(&self, parent: Offset, at: Offset, most: usize) -> Vec<Child> {
        let inner = self.inner.read();
        let children = inner.relations.children(parent, at).rev();
        children.filter(|child| !inner.is_redacted(child.offset, at)).take(most).collect()
    }

    /// The number of visible events that relate to the one at `parent` in this way.
    #[must_use]
    pub fn count_children(&self, parent: Offset, rel_type: &str, sought: &Sought<'_>) -> usize {
        let inner = self.inner.read();
        inner.relations.count(parent, rel_type, sought, &inner.redactions)
    }

    /// Up to `limit` visible events that relate to the one at `parent` in this way, newest first.
    #[must_use]
    pub fn newest_children(
        &self,
        parent: Offset,
        rel_type: &str,
        sought: &Sought<'_>,
        limit: usize,
    ) -> Vec<Child> {
        let inner = self.inner.read();
        inner.relations.newest(parent, rel_type, sought, limit, &inner.redactions)
    }

    /// Like [`Room::newest_children`], only those by `sender`.
    #[must_use]
    pub fn newest_children_of(
        &self,
        parent: Offset,
        rel_type: &str,
        sender: &UserId,
        sought: &Sought<'_>,
        limit: usize,
    ) -> Vec<Child> {
        let inner = self.inner.read();
        inner.relations.newest_of(parent, rel_type, sender, sought, limit, &inner.redactions)
    }

    /// Up to `count` events that relate to the one at `parent` as of `at`, after one offset, up to
    /// and including another: with this relation type, or, without one, of any type and redacted or
    /// not. They are the oldest, oldest first, or, `backward`, the newest, newest first.
    #[must_use]
    pub fn page_of_children(
        &self,
        parent: Offset,
        rel_type: Option<&str>,
        at: Offset,
        stretch: (Offset, Offset),
        backward: bool,
        count: usize,
    ) -> Vec<Offset> {
        let inner = self.inner.read();
        let redactions = &inner.redactions;
        inner.relations.page(parent, rel_type, at, stretch, backward, count, redactions)
    }

    /// Whether an event relates to the one at `parent` as of `at` with one of these relation types
    /// and by one of these senders, if given.
    #[must_use]
    pub fn is_related(
        &self,
        parent: Offset,
        rel_types: Option<&HashSet<String>>,
        senders: Option<&HashSet<OwnedUserId>>,
        at: Offset,
    ) -> bool {
        let inner = self.inner.read();
        inner.relations.is_related(parent, rel_types, senders, at, &inner.redactions)
    }

    /// Up to `limit` threads whose newest reply is before `before`, newest first: that reply and
    /// the root. The reply may have been redacted since.
    #[must_use]
    pub fn threads(&self, before: Offset, limit: usize) -> Vec<(Offset, Offset)> {
        self.inner.read().relations.threads(before, limit)
    }

    /// The events that were redacted after `since` up to and including `to`, as (redaction, event),
    /// in the order of the redactions.
    #[must_use]
    pub fn redacted_between(&self, since: Offset, to: Offset) -> Vec<(Offset, Offset)> {
        let inner = self.inner.read();
        let from = inner.redaction_log.partition_point(|(redaction, _)| *redaction <= since);
        let redactions = inner.redaction_log[from..].iter().copied();
        redactions.take_while(|(redaction, _)| *redaction <= to).collect()
    }

    /// Whether the public directory lists the room.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.inner.read().public.latest().copied().unwrap_or(false)
    }

    /// The receipts that moved after `since` up to and including `to`, in order. The cost is
    /// proportional to these.
    #[must_use]
    pub fn receipts_between(
        &self,
        since: Offset,
        to: Offset,
    ) -> Vec<(Arc<ReceiptKey>, ReceiptEntry)> {
        if since >= to {
            return Vec::new();
        }
        let inner = self.inner.read();
        let keys = inner.moved.range(since.next()..=to).flat_map(|(_, keys)| keys);
        keys.filter_map(|key| Some((Arc::clone(key), inner.receipts.get(key)?.clone()))).collect()
    }

    /// The receipt of this user, type and thread.
    #[must_use]
    pub fn receipt(&self, key: &ReceiptKey) -> Option<ReceiptEntry> {
        self.inner.read().receipts.get(key).cloned()
    }

    /// The lifetimes of events according to the room's state.
    #[must_use]
    pub fn lifetime(&self) -> Own {
        self.inner.read().lifetime()
    }

    /// Up to `limit` events of this type up to and including `until`, oldest first, that can
    /// expire.
    #[must_use]
    pub fn messages(&self, event_type: &str, until: Offset, limit: usize) -> Vec<Offset> {
        let inner = self.inner.read();
        let all = inner.messages.get(event_type).into_iter().flatten().copied();
        all.take_while(|offset| *offset <= until).take(limit).collect()
    }

    /// The types of the events that can expire.
    #[must_use]
    pub fn message_types(&self) -> Vec<Box<str>> {
        self.inner.read().messages.keys().cloned().collect()
    }

    /// The last record that removed events from the room.
    #[must_use]
    pub fn erased(&self) -> Offset {
        self.inner.read().erased
    }

    /// The oldest event of each type.
    fn oldest(&self) -> Vec<(Class, Offset)> {
        let inner = self.inner.read();
        let own = inner.lifetime();
        let oldest = inner.messages.iter().filter_map(|(event_type, offsets)| {
            Some((Class { own, event_type: event_type.clone() }, *offsets.first()?))
        });
        oldest.collect()
    }

    /// Removes events and their redactions. Returns all removed events.
    fn erase(&self, offset: Offset, events: &[Offset]) -> BTreeSet<Offset> {
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
                gone.insert(redaction);
                targets.push(redaction);
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
    fn add_event(&self, offset: Offset, facts: EventFacts) -> Option<Offset> {
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
        inner.redactions.insert(target, offset);
        inner.relations.redact(target, offset);
        inner.redaction_log.push((offset, target));
        for of in &mut inner.lifetimes {
            if of.is_some_and(|(event, _)| event == target) {
                *of = None;
            }
        }
        Some(target)
    }
}

/// Removes `wanted` from ascending offsets; returns those that were there.
fn take_out(offsets: &mut Vec<Offset>, wanted: &BTreeSet<Offset>) -> Vec<Offset> {
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Vec::new() };
    let from = offsets.partition_point(|offset| offset < first);
    let to = offsets.partition_point(|offset| offset <= last).max(from);
    let (out, stay): (Vec<_>, Vec<_>) =
        offsets[from..to].iter().copied().partition(|offset| wanted.contains(offset));
    offsets.splice(from..to, stay);
    out
}

impl Inner {
    fn lifetime(&self) -> Own {
        self.lifetimes.iter().flatten().next().map(|(_, own)| *own).unwrap_or_default()
    }

    fn members_changed(&self, since: Offset, to: Offset) -> BTreeSet<&UserId> {
        let from = self.state_log.partition_point(|(offset, _)| *offset <= since);
        let changed = self.state_log[from..].iter().take_while(|(offset, _)| *offset <= to);
        let members = changed.filter_map(|(_, key)| match self.keys.get(*key as usize)? {
            (StateEventType::RoomMember, user_id) => <&UserId>::try_from(&**user_id).ok(),
            _ => None,
        });
        members.collect()
    }

    fn has_event(&self, offset: Offset) -> bool {
        self.timeline.binary_search(&offset).is_ok()
    }

    fn is_redacted(&self, event: Offset, at: Offset) -> bool {
        self.redactions.get(&event).is_some_and(|redaction| *redaction <= at)
    }

    fn key(&mut self, event_type: StateEventType, state_key: Box<str>) -> u32 {
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

    /// Moves a receipt; returns the record whose receipts have now all moved on.
    fn set_receipt(&mut self, offset: Offset, receipt: Receipt) -> Option<Offset> {
        let key = (receipt.user_id, receipt.receipt_type, receipt.thread_id);
        let entry = ReceiptEntry { offset, event_id: receipt.event_id, ts: receipt.ts };
        let before =
            self.receipts.get_key_value(&key).map(|(key, was)| (Arc::clone(key), was.offset));
        let key = before.as_ref().map_or_else(|| Arc::new(key), |(key, _)| Arc::clone(key));
        let left = before.and_then(|(_, was)| self.leave(was, &key));
        self.moved.entry(offset).or_default().push(Arc::clone(&key));
        self.receipts.insert(key, entry);
        left
    }

    fn leave(&mut self, record: Offset, key: &Arc<ReceiptKey>) -> Option<Offset> {
        let keys = self.moved.get_mut(&record)?;
        keys.retain(|other| !Arc::ptr_eq(other, key));
        if !keys.is_empty() {
            return None;
        }
        self.moved.remove(&record);
        Some(record)
    }

    fn set_membership(&mut self, offset: Offset, user_id: OwnedUserId, membership: Membership) {
        let mut counts = self.counts.latest().copied().unwrap_or_default();
        let history = self.members.entry(user_id.clone()).or_default();
        let before = history.latest().copied();
        history.push(offset, membership);
        self.servers.change(&user_id, before, membership);
        let tally = |of| u64::from(membership == of) as i64 - i64::from(before == Some(of));
        counts.joined = counts.joined.saturating_add_signed(tally(Membership::Join));
        counts.invited = counts.invited.saturating_add_signed(tally(Membership::Invite));
        if self.counts.latest() != Some(&counts) {
            self.counts.push(offset, counts);
        }
        if matches!(membership, Membership::Join | Membership::Invite) {
            self.present.insert(user_id.clone());
        } else {
            self.present.remove(&user_id);
        }
        if membership != Membership::Join && self.typing.remove(&user_id).is_some() {
            self.typing_changed = offset;
        }
    }
}

fn as_of(changes: &[Offset], at: Offset) -> Option<Offset> {
    let after = changes.partition_point(|offset| *offset <= at);
    after.checked_sub(1).and_then(|index| changes.get(index).copied())
}

/// All rooms.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Rooms {
    #[serde(with = "stored::by_id")]
    rooms: DashMap<OwnedRoomId, Arc<Room>>,
    /// The rooms in the public directory.
    #[serde(with = "kept::locked")]
    public: RwLock<BTreeSet<OwnedRoomId>>,
    /// The rooms in an application service's list of a network, by both.
    #[serde(with = "kept::locked")]
    networks: RwLock<BTreeMap<(String, String), BTreeSet<OwnedRoomId>>>,
    /// The oldest events of rooms.
    pub lifetimes: Lifetimes,
}

/// What remains of a purged room.
#[derive(Debug)]
pub(super) struct Remains {
    pub(super) version: RoomVersionId,
    pub(super) created: Offset,
    /// Its events.
    pub(super) events: Vec<Offset>,
    /// The records of its present receipts and typing.
    pub(super) ephemeral: Vec<Offset>,
    /// Everyone with a membership in it.
    pub(super) members: Vec<OwnedUserId>,
}

/// Rooms in the order of their creation.
fn in_order(rooms: &DashMap<OwnedRoomId, Arc<Room>>) -> Vec<Arc<Room>> {
    let mut rooms: Vec<_> = rooms.iter().map(|entry| Arc::clone(entry.value())).collect();
    rooms.sort_unstable_by_key(|room| room.created);
    rooms
}

impl Rooms {
    /// The room of this id.
    #[must_use]
    pub fn get(&self, room_id: &RoomId) -> Option<Arc<Room>> {
        self.rooms.get(room_id).map(|room| Arc::clone(&room))
    }

    /// How many rooms there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    /// Whether there is no room.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }

    /// All rooms, in the order of their creation.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Room>> {
        in_order(&self.rooms)
    }

    /// The rooms in the public directory, ordered by id.
    #[must_use]
    pub fn public(&self) -> Vec<Arc<Room>> {
        self.public.read().iter().filter_map(|room_id| self.get(room_id)).collect()
    }

    /// The rooms in an application service's list of a network, ordered by id.
    #[must_use]
    pub fn of_network(&self, service: &str, network_id: &str) -> Vec<Arc<Room>> {
        let networks = self.networks.read();
        let rooms = networks.get(&(service.to_owned(), network_id.to_owned())).into_iter();
        rooms.flatten().filter_map(|room_id| self.get(room_id)).collect()
    }

    /// The networks that list this room: the application service and its id of the network.
    #[must_use]
    pub fn networks_of(&self, room_id: &RoomId) -> Vec<(String, String)> {
        let networks = self.networks.read();
        let listing = networks.iter().filter(|(_, rooms)| rooms.contains(room_id));
        listing.map(|(network, _)| network.clone()).collect()
    }

    /// The rooms in the public directory or in the list of a network, ordered by id.
    #[must_use]
    pub fn of_all_networks(&self) -> Vec<Arc<Room>> {
        let mut listed = self.public.read().clone();
        listed.extend(self.networks.read().values().flatten().cloned());
        listed.iter().filter_map(|room_id| self.get(room_id)).collect()
    }

    /// Adds the room of a create event. Returns false for a version without known rules.
    pub(super) fn create(&self, offset: Offset, id: OwnedRoomId, version: RoomVersionId) -> bool {
        let Some(rules) = version.rules() else { return false };
        let (gapped, inner) = (AtomicBool::new(false), RwLock::default());
        let room = Room { id: id.clone(), version, rules, created: offset, gapped, inner };
        // Decisions ensure that a room is created once; an existing one is never replaced.
        self.rooms.entry(id).or_insert_with(|| Arc::new(room));
        true
    }

    /// Adds an event to its room; returns the event that it is the first to redact.
    pub(super) fn add_event(
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
                self.lifetimes.add(Class { own, event_type }, offset, room_id);
            }
            return target;
        }
        self.lifetimes.change(room_id, || room.oldest(), || room.add_event(offset, facts))
    }

    /// Removes events and their redactions from a room. Returns all removed events.
    pub(super) fn erase(&self, offset: Offset, room_id: &RoomId, events: &[Offset]) -> Vec<Offset> {
        let Some(room) = self.get(room_id) else { return Vec::new() };
        let erase = || room.erase(offset, events);
        self.lifetimes.change(room_id, || room.oldest(), erase).into_iter().collect()
    }

    /// Removes a room.
    pub(super) fn purge(&self, room_id: &RoomId) -> Option<Remains> {
        let (_, room) = self.rooms.remove(room_id)?;
        self.lifetimes.remove(room_id, room.oldest());
        self.public.write().remove(room_id);
        self.networks.write().retain(|_, rooms| {
            rooms.remove(room_id);
            !rooms.is_empty()
        });
        let inner = room.inner.read();
        let ephemeral = inner.moved.keys().chain(inner.typing_records.values()).copied();
        Some(Remains {
            version: room.version.clone(),
            created: room.created,
            events: inner.timeline.iter().chain(inner.graph.asides.keys()).copied().collect(),
            ephemeral: ephemeral.collect(),
            members: inner.members.keys().cloned().collect(),
        })
    }

    pub(super) fn set_visibility(&self, offset: Offset, body: &RoomVisibility) {
        if let Some(room) = self.get(&body.room_id) {
            room.inner.write().public.push(offset, body.public);
            let mut public = self.public.write();
            if body.public {
                public.insert(body.room_id.clone());
            } else {
                public.remove(&body.room_id);
            }
        }
    }

    pub(super) fn set_network(&self, body: RoomNetwork) {
        let RoomNetwork { room_id, service, network_id, listed } = body;
        let (mut networks, network) = (self.networks.write(), (service, network_id));
        if listed {
            networks.entry(network).or_default().insert(room_id);
        } else if let Some(rooms) = networks.get_mut(&network) {
            rooms.remove(&room_id);
            if rooms.is_empty() {
                networks.remove(&network);
            }
        }
    }

    /// Moves receipts; returns the records whose receipts have all moved on.
    pub(super) fn set_receipts(&self, offset: Offset, body: RoomReceipt) -> Vec<Offset> {
        let Some(room) = self.get(&body.room_id) else { return Vec::new() };
        let mut inner = room.inner.write();
        inner.changed = offset;
        let receipts = body.receipts.into_iter();
        // A receipt that is twice in one record would make the record supersede itself.
        receipts.filter_map(|r| inner.set_receipt(offset, r)).filter(|o| *o < offset).collect()
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        for room in self.all() {
            digest.add(&(&room.id, &room.version, room.created));
            let inner = room.inner.read();
            digest.add(&*inner);
            inner.relations.digest(digest, |event| inner.is_redacted(event, Offset::MAX));
            if !inner.graph.is_empty() {
                digest.add(&inner.graph);
            }
            if !inner.gaps.is_empty() {
                digest.add(&inner.gaps);
            }
            inner.servers.digest(digest);
        }
        digest.add(&*self.networks.read());
    }
}
