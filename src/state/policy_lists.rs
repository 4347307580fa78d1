//! The moderation policy lists whose rules this server applies. The rules themselves are state of
//! the rooms.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedEventId, OwnedRoomId, RoomId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{
        JudgedRule, PolicyApprove, PolicyArea, PolicyJudge, PolicySubscribe, PolicyUnsubscribe,
    },
};

/// The subscriptions by room.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PolicyLists(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<OwnedRoomId, Subscription>>,
);

/// A list whose rules are applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    pub room_id: OwnedRoomId,
    /// The record that made it, or changed how it is applied.
    pub offset: Offset,
    /// The last record about it.
    pub changed: Offset,
    pub areas: BTreeSet<PolicyArea>,
    /// Lists with a lower number come first.
    pub order: u32,
    /// Globs of what no rule of this list is applied to.
    pub except: Vec<String>,
    /// Whether `m.takedown` is applied like `m.ban`.
    pub takedowns: bool,
    /// How many local users and rooms its rules may hit before further ones wait for approval.
    pub hold_above: u64,
    /// The last rule that was judged: the record with which it became state of the room, and that
    /// of its event.
    pub judged: (Offset, Offset),
    /// Rules that are applied and hit users and rooms here, by the records of their events, with
    /// how many.
    pub applied: BTreeMap<Offset, u64>,
    /// Rules that wait for approval.
    pub held: BTreeMap<Offset, HeldRule>,
    /// The rules that were approved.
    pub approved: BTreeSet<OwnedEventId>,
}

/// A rule that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRule {
    pub event_id: OwnedEventId,
    /// How many users and rooms of this server it would hit.
    pub hits: u64,
}

impl PolicyLists {
    /// Whether there is no subscription.
    pub fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    pub fn get(&self, room_id: &RoomId) -> Option<Subscription> {
        self.0.read().get(room_id).cloned()
    }

    /// The last record about the subscription to this room.
    pub fn changed(&self, room_id: &RoomId) -> Option<Offset> {
        self.0.read().get(room_id).map(|list| list.changed)
    }

    /// The rooms, in the order in which their rules are looked up.
    pub fn in_order(&self) -> Vec<OwnedRoomId> {
        let lists = self.0.read();
        let mut rooms: Vec<_> = lists.values().map(|list| (list.order, &list.room_id)).collect();
        rooms.sort();
        rooms.into_iter().map(|(_, room_id)| room_id.clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.0.read().len()
    }

    pub(super) fn subscribe(&self, offset: Offset, body: PolicySubscribe) {
        let PolicySubscribe { room_id, areas, order, except, takedowns, hold_above } = body;
        let mut lists = self.0.write();
        let before = lists.remove(&room_id);
        let keeps = before
            .as_ref()
            .is_some_and(|before| before.except == except && before.hold_above == hold_above);
        let (judged, applied, held, approved) = match before {
            // What may be hit is as before.
            Some(before) if keeps => (before.judged, before.applied, before.held, before.approved),
            before => {
                let approved = before.map(|before| before.approved).unwrap_or_default();
                (Default::default(), BTreeMap::new(), BTreeMap::new(), approved)
            }
        };
        let subscription = Subscription {
            room_id: room_id.clone(),
            offset,
            changed: offset,
            areas: areas.into_iter().collect(),
            order,
            except,
            takedowns,
            hold_above,
            judged,
            applied,
            held,
            approved,
        };
        lists.insert(room_id, subscription);
    }

    pub(super) fn unsubscribe(&self, body: &PolicyUnsubscribe) {
        self.0.write().remove(&body.room_id);
    }

    pub(super) fn judge(&self, offset: Offset, body: PolicyJudge) {
        let PolicyJudge { room_id, until, applied, held, gone } = body;
        let mut lists = self.0.write();
        let Some(list) = lists.get_mut(&room_id) else { return };
        list.changed = offset;
        list.judged = list.judged.max(until);
        for record in gone {
            list.applied.remove(&record);
            list.held.remove(&record);
        }
        for rule in applied.iter().chain(&held) {
            list.applied.remove(&rule.record);
            list.held.remove(&rule.record);
        }
        list.applied.extend(applied.into_iter().map(|rule| (rule.record, rule.hits)));
        list.held
            .extend(held.into_iter().map(|JudgedRule { record, event_id, hits }| {
                (record, HeldRule { event_id, hits })
            }));
    }

    pub(super) fn approve(&self, offset: Offset, body: PolicyApprove) {
        if let Some(list) = self.0.write().get_mut(&body.room_id) {
            list.changed = offset;
            list.approved.extend(body.rules);
            let approved = &list.approved;
            list.held.retain(|_, held| !approved.contains(&held.event_id));
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
