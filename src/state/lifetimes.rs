//! The oldest events of each room. They lead to expired events at a cost proportional to what is
//! due.
//!
//! The lifetime of an event depends on the configuration, on the room (the state event
//! `m.room.retention`) and on its type. So rooms with the same state are grouped, by type of event,
//! in the order of their oldest event.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedRoomId, RoomId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::serializers;
use logcabin_record::Offset;

/// The lifetime of events in a room according to its state, in milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct RoomRetention {
    /// The maximum.
    pub max_ms: Option<u64>,
    /// The minimum.
    pub min_ms: Option<u64>,
}

/// The state events that say how long events live in a room (MSC1763): the first wins.
pub const RETENTION: [&str; 2] = ["m.room.retention", "org.matrix.msc1763.retention"];

/// The lifetime of events by the content of such a state event; `None` if it sets none, or an
/// invalid one.
pub fn lifetime(content: &RawValue) -> Option<RoomRetention> {
    #[derive(Deserialize)]
    struct Retention {
        #[serde(default)]
        max_lifetime: Option<u64>,
        #[serde(default)]
        min_lifetime: Option<u64>,
    }
    let retention: Retention = serde_json::from_str(content.get()).ok()?;
    let times = |ms: Option<u64>| ms.filter(|ms| *ms > 0);
    let (max_ms, min_ms) = (times(retention.max_lifetime), times(retention.min_lifetime));
    (max_ms.is_some() || min_ms.is_some()).then_some(RoomRetention { max_ms, min_ms })
}

/// Events with the same lifetime, apart from configuration for single rooms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RetentionClass {
    /// The lifetime according to the room's state.
    pub own: RoomRetention,
    pub event_type: Box<str>,
}

type Oldest = BTreeMap<RetentionClass, BTreeSet<(Offset, OwnedRoomId)>>;

/// The oldest event of each type in each room.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Lifetimes(#[serde(with = "serializers::locked")] RwLock<Oldest>);

impl Lifetimes {
    /// The classes with any events.
    pub fn classes(&self) -> Vec<RetentionClass> {
        self.0.read().keys().cloned().collect()
    }

    /// Up to `limit` rooms whose oldest event of this class is at or before `until`, oldest first,
    /// among those that `wanted` accepts.
    pub fn rooms(
        &self,
        class: &RetentionClass,
        until: Offset,
        limit: usize,
        wanted: impl Fn(&RoomId) -> bool,
    ) -> Vec<OwnedRoomId> {
        let oldest = self.0.read();
        let rooms = oldest.get(class).into_iter().flatten();
        let due = rooms.take_while(|(offset, _)| *offset <= until).map(|(_, room_id)| room_id);
        due.filter(|room_id| wanted(room_id)).take(limit).cloned().collect()
    }

    pub(super) fn add(&self, class: RetentionClass, oldest: Offset, room_id: &RoomId) {
        self.0.write().entry(class).or_default().insert((oldest, room_id.to_owned()));
    }

    /// Runs a change that may affect which events of a room are the oldest.
    pub(super) fn change<T>(
        &self,
        room_id: &RoomId,
        oldest: impl Fn() -> Vec<(RetentionClass, Offset)>,
        change: impl FnOnce() -> T,
    ) -> T {
        let before = oldest();
        let changed = change();
        let after = oldest();
        if before != after {
            self.remove(room_id, before);
            for (class, oldest) in after {
                self.add(class, oldest, room_id);
            }
        }
        changed
    }

    pub(super) fn remove(&self, room_id: &RoomId, oldest: Vec<(RetentionClass, Offset)>) {
        let mut all = self.0.write();
        for (class, oldest) in oldest {
            if let Some(rooms) = all.get_mut(&class) {
                rooms.remove(&(oldest, room_id.to_owned()));
                if rooms.is_empty() {
                    all.remove(&class);
                }
            }
        }
    }
}
