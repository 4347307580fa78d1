//! Purges of the history of rooms, which administrators ordered.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedRoomId, RoomId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{RoomPurgeHistory, RoomPurgeHistoryFinish},
};

/// How many that ended are remembered.
const ENDED: usize = 100;

/// Those in progress, and the latest that ended, by the offsets of the records that began them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct HistoryPurges(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<Offset, HistoryPurge>>,
);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPurge {
    pub id: String,
    /// The record that began it.
    pub begun: Offset,
    pub room_id: OwnedRoomId,
    /// The first record that stays.
    pub before: Offset,
    /// Whether what users of this homeserver sent stays.
    pub keep_local: bool,
    /// The number of events that were removed.
    pub removed: u64,
    /// The record that ended it; `None` while it is in progress.
    pub ended: Option<Offset>,
}

impl HistoryPurges {
    /// The purge of this id.
    pub fn get(&self, id: &str) -> Option<HistoryPurge> {
        self.0.read().values().find(|purge| purge.id == id).cloned()
    }

    /// All that are remembered, the oldest first.
    pub fn all(&self) -> Vec<HistoryPurge> {
        self.0.read().values().cloned().collect()
    }

    /// Those in progress, the oldest first.
    pub fn under_way(&self) -> Vec<HistoryPurge> {
        self.0.read().values().filter(|purge| purge.ended.is_none()).cloned().collect()
    }

    /// Whether one of this room is in progress.
    pub fn is_under_way(&self, room_id: &RoomId) -> bool {
        self.0.read().values().any(|purge| purge.room_id == *room_id && purge.ended.is_none())
    }

    pub(super) fn begin(&self, offset: Offset, body: RoomPurgeHistory) {
        let RoomPurgeHistory { id, room_id, before, keep_local } = body;
        let purge = HistoryPurge {
            id,
            begun: offset,
            room_id,
            before,
            keep_local,
            removed: 0,
            ended: None,
        };
        self.0.write().insert(offset, purge);
    }

    pub(super) fn count(&self, id: &str, removed: usize) {
        if let Some(purge) = self.0.write().values_mut().find(|purge| purge.id == id) {
            purge.removed += removed as u64;
        }
    }

    pub(super) fn finish(&self, at: Offset, body: &RoomPurgeHistoryFinish) {
        let mut all = self.0.write();
        if let Some(purge) = all.values_mut().find(|purge| purge.id == body.id) {
            purge.ended = Some(at);
        }
        let ended = || all.iter().filter(|(_, purge)| purge.ended.is_some());
        if ended().count() > ENDED
            && let Some(oldest) = ended().map(|(offset, _)| *offset).next()
        {
            all.remove(&oldest);
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
