//! Rooms: what each consists of, and the map of all. A file for each subject has what is known of
//! it, and how events change it.
//!
//! A room stores offsets and small facts. The events themselves are read from the log.

mod directory;
mod expiry;
pub(super) mod former;
pub mod gaps;
pub mod graph;
mod members;
mod membership;
mod receipts;
mod relations;
mod servers;
mod state_events;
mod stored;
mod timeline;
mod typing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicBool},
};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{
    OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, RoomVersionId, events::StateEventType,
    room_version_rules::RoomVersionRules,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use members::MemberCounts;
pub use membership::Membership;
pub use receipts::{ReceiptEntry, ReceiptKey};
pub use timeline::{Tip, is_activity};
pub use typing::Typist;

use self::{
    gaps::Gaps,
    graph::{Change, Graph},
    servers::Servers,
};
use super::{
    history::History,
    lifetimes::{Lifetimes, RoomRetention},
    relations::{NewRelation, Relations},
    serializers,
};
use logcabin_record::Offset;

/// One room.
#[derive(Debug, Deserialize)]
#[serde(try_from = "stored::KeptRoom")]
pub struct Room {
    pub id: OwnedRoomId,
    pub version: RoomVersionId,
    pub rules: RoomVersionRules,
    /// The offset of its `m.room.create` event, or of the membership by which it was first heard of
    /// while that event is not known (see [`Room::is_begun`]).
    pub created: Offset,
    /// Whether its history ever had a gap.
    gapped: Arc<AtomicBool>,
    inner: Arc<RwLock<Inner>>,
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
    lifetimes: [Option<(Offset, RoomRetention)>; 2],
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

/// The facts about an event that a room stores.
#[derive(Clone, Debug)]
pub(super) struct EventFacts {
    pub(super) event_id: OwnedEventId,
    pub(super) event_type: Box<str>,
    /// For a state event with lifetimes: the index of its name, and the lifetimes.
    pub(super) lifetime: Option<(usize, Option<RoomRetention>)>,
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
    /// Whether its `m.room.create` event is known, which tells its version. Before, anybody may
    /// have told a wrong one.
    pub fn is_begun(&self) -> bool {
        self.create_event().is_some() || self.aside(self.created).is_some()
    }

    /// The offset of the `m.room.create` event in its state. There is none until this homeserver
    /// enters it.
    pub fn create_event(&self) -> Option<Offset> {
        self.state_event(&StateEventType::RoomCreate, "", Offset::MAX)
    }

    /// The offset of its `m.room.create` event, or of what made it known before that.
    pub fn first_event(&self) -> Offset {
        self.create_event().unwrap_or(self.created)
    }

    /// The offset of the last record that changed the room, typing and receipts included.
    pub fn changed(&self) -> Offset {
        self.inner.read().changed
    }
}

/// All rooms.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Rooms {
    #[serde(with = "stored::by_id")]
    pub rooms: DashMap<OwnedRoomId, Arc<Room>>,
    /// The rooms in the public directory.
    #[serde(with = "serializers::locked")]
    public: RwLock<BTreeSet<OwnedRoomId>>,
    /// The rooms in an application service's list of a network, by both.
    #[serde(with = "serializers::locked")]
    networks: RwLock<BTreeMap<(String, String), BTreeSet<OwnedRoomId>>>,
    /// The oldest events of rooms.
    pub lifetimes: Lifetimes,
}

/// What remains of a purged room.
#[derive(Debug)]
pub(super) struct PurgedRoom {
    pub(super) version: RoomVersionId,
    pub(super) created: Offset,
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
    pub fn get(&self, room_id: &RoomId) -> Option<Arc<Room>> {
        self.rooms.get(room_id).map(|room| Arc::clone(&room))
    }

    /// How many rooms there are.
    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    /// Whether there is no room.
    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }

    /// All rooms, in the order of their creation.
    pub fn all(&self) -> Vec<Arc<Room>> {
        in_order(&self.rooms)
    }

    /// Adds a room by the first event in its timeline. Of a room that is only known by what others
    /// told, corrects the version. Returns false for a version without known rules.
    pub(super) fn create(&self, offset: Offset, id: OwnedRoomId, version: RoomVersionId) -> bool {
        let created = self.get(&id).map_or(offset, |known| known.created);
        self.begin(created, id, version)
    }

    /// Adds a room of other homeservers by its `m.room.create` event, or settles the version of one
    /// that was known by what others told.
    pub(super) fn begin(&self, created: Offset, id: OwnedRoomId, version: RoomVersionId) -> bool {
        let Some(rules) = version.rules() else { return false };
        let known = self.get(&id);
        let known = known.map(|known| (Arc::clone(&known.gapped), Arc::clone(&known.inner)));
        let (gapped, inner) = known.unwrap_or_default();
        let room = Room { id: id.clone(), version, rules, created, gapped, inner };
        self.rooms.insert(id, Arc::new(room));
        true
    }

    /// Removes a room.
    pub(super) fn purge(&self, room_id: &RoomId) -> Option<PurgedRoom> {
        let (_, room) = self.rooms.remove(room_id)?;
        self.lifetimes.remove(room_id, room.oldest());
        self.public.write().remove(room_id);
        self.networks.write().retain(|_, rooms| {
            rooms.remove(room_id);
            !rooms.is_empty()
        });
        let inner = room.inner.read();
        let ephemeral = inner.moved.keys().chain(inner.typing_records.values()).copied();
        Some(PurgedRoom {
            version: room.version.clone(),
            created: room.created,
            events: inner.timeline.iter().chain(inner.graph.asides.keys()).copied().collect(),
            ephemeral: ephemeral.collect(),
            members: inner.members.keys().cloned().collect(),
        })
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
