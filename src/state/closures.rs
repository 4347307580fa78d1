//! Rooms closed by administrators: blocked rooms, and rooms that are or were being shut down.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{Replacement, RoomBlock, RoomShutdown, RoomShutdownFinish},
};

/// Blocked rooms, and the state of each shutdown.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Closures(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    /// The blocked rooms, each with the record that blocked it.
    blocked: BTreeMap<OwnedRoomId, Offset>,
    /// The shutdowns by id.
    shutdowns: BTreeMap<String, Shutdown>,
}

/// The shutdown of a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shutdown {
    pub id: String,
    pub room_id: OwnedRoomId,
    /// The record that began it.
    pub begun: Offset,
    /// The room to which members and aliases move.
    pub replacement: Option<Replacement>,
    /// Whether the room is purged at the end.
    pub purge: bool,
    /// The record that ended it; `None` while it is in progress.
    pub ended: Option<Offset>,
    /// Users who could not be removed.
    pub failed: Vec<OwnedUserId>,
    /// For a purged room, the users who left.
    pub left: Vec<OwnedUserId>,
}

impl Closures {
    /// The record that blocked the room, if it is blocked.
    pub fn blocked(&self, room_id: &RoomId) -> Option<Offset> {
        self.0.read().blocked.get(room_id).copied()
    }

    /// The shutdown of this id.
    pub fn shutdown(&self, id: &str) -> Option<Shutdown> {
        self.0.read().shutdowns.get(id).cloned()
    }

    /// The shutdowns of a room, the oldest first.
    pub fn of_room(&self, room_id: &RoomId) -> Vec<Shutdown> {
        let inner = self.0.read();
        let of_room = inner.shutdowns.values().filter(|shutdown| shutdown.room_id == *room_id);
        let mut shutdowns: Vec<_> = of_room.cloned().collect();
        shutdowns.sort_unstable_by_key(|shutdown| shutdown.begun);
        shutdowns
    }

    /// All shutdowns.
    pub fn shutdowns(&self) -> Vec<Shutdown> {
        self.0.read().shutdowns.values().cloned().collect()
    }

    /// The shutdowns in progress, oldest first.
    pub fn under_way(&self) -> Vec<Shutdown> {
        let inner = self.0.read();
        let open = inner.shutdowns.values().filter(|shutdown| shutdown.ended.is_none());
        let mut shutdowns: Vec<_> = open.cloned().collect();
        shutdowns.sort_unstable_by_key(|shutdown| shutdown.begun);
        shutdowns
    }

    /// Whether the room is being shut down.
    pub fn is_closing(&self, room_id: &RoomId) -> bool {
        let inner = self.0.read();
        let mut shutdowns = inner.shutdowns.values();
        shutdowns.any(|shutdown| shutdown.room_id == *room_id && shutdown.ended.is_none())
    }

    pub(super) fn block(&self, offset: Offset, body: RoomBlock) {
        let mut inner = self.0.write();
        if body.blocked {
            inner.blocked.entry(body.room_id).or_insert(offset);
        } else {
            inner.blocked.remove(&body.room_id);
        }
    }

    pub(super) fn begin(&self, offset: Offset, body: RoomShutdown) {
        let RoomShutdown { room_id, id, replacement, purge, reason: _ } = body;
        let (ended, failed) = (None, Vec::new());
        let shutdown = Shutdown {
            id: id.clone(),
            room_id,
            begun: offset,
            replacement,
            purge,
            ended,
            failed,
            left: Vec::new(),
        };
        self.0.write().shutdowns.insert(id, shutdown);
    }

    pub(super) fn finish(&self, offset: Offset, body: RoomShutdownFinish) {
        if let Some(shutdown) = self.0.write().shutdowns.get_mut(&body.id) {
            shutdown.ended = Some(offset);
            shutdown.failed = body.failed;
            shutdown.left = body.left;
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
