//! How old the oldest events of each room are: by this those are found that have lived long enough,
//! at a cost that follows what is due.
//!
//! How long events live is for the configuration to say, for the room's own wish (the state event
//! `m.room.retention`) and for their type. So rooms stand together that wish the same, with events
//! of one type, in the order of their oldest event.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedRoomId, RoomId};
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::Offset;

/// How long events live in a room as its state says, in milliseconds, as far as it does.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Own {
    /// At most.
    pub max_ms: Option<u64>,
    /// At least.
    pub min_ms: Option<u64>,
}

/// Events that live equally long, but for what is configured of single rooms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Class {
    /// How long events live in their room as its state says.
    pub own: Own,
    /// Their type.
    pub event_type: Box<str>,
}

type Oldest = BTreeMap<Class, BTreeSet<(Offset, OwnedRoomId)>>;

/// The oldest event of each type in each room.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Lifetimes(#[serde(with = "kept::locked")] RwLock<Oldest>);

impl Lifetimes {
    /// The classes of which there is any event.
    #[must_use]
    pub fn classes(&self) -> Vec<Class> {
        self.0.read().keys().cloned().collect()
    }

    /// Up to `limit` rooms of which the oldest event of this class is at or before `until`, those
    /// with the oldest first, as far as `wanted` says so.
    #[must_use]
    pub fn rooms(
        &self,
        class: &Class,
        until: Offset,
        limit: usize,
        wanted: impl Fn(&RoomId) -> bool,
    ) -> Vec<OwnedRoomId> {
        let oldest = self.0.read();
        let rooms = oldest.get(class).into_iter().flatten();
        let due = rooms.take_while(|(offset, _)| *offset <= until).map(|(_, room_id)| room_id);
        due.filter(|room_id| wanted(room_id)).take(limit).cloned().collect()
    }

    pub(super) fn add(&self, class: Class, oldest: Offset, room_id: &RoomId) {
        self.0.write().entry(class).or_default().insert((oldest, room_id.to_owned()));
    }

    /// Does what may change which events are the oldest of a room.
    pub(super) fn change<T>(
        &self,
        room_id: &RoomId,
        oldest: impl Fn() -> Vec<(Class, Offset)>,
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

    pub(super) fn remove(&self, room_id: &RoomId, oldest: Vec<(Class, Offset)>) {
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
