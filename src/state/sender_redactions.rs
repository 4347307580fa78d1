//! Kicks and bans that redact what their users sent (MSC4293), until that has been done.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{EventId, OwnedEventId, OwnedRoomId, OwnedUserId, RoomId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{Offset, command::RoomRedactSender};

/// By their rooms and ids.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SenderRedactions(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<Key, SenderRedaction>>,
);

type Key = (OwnedRoomId, OwnedEventId);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderRedaction {
    /// The record that began it.
    pub begun: Offset,
    /// Who sent the kick or the ban.
    pub by: OwnedUserId,
    /// Who was kicked or banned.
    pub user_id: OwnedUserId,
    /// The record with which they joined.
    pub since: Offset,
}

impl SenderRedactions {
    /// The rooms in which something is left to be redacted.
    pub fn rooms(&self) -> Vec<OwnedRoomId> {
        let mut rooms: Vec<_> = self.0.read().keys().map(|(room_id, _)| room_id.clone()).collect();
        rooms.dedup();
        rooms
    }

    /// What is left to be redacted in a room, by the ids of the kicks and bans.
    pub fn in_room(&self, room_id: &RoomId) -> BTreeMap<OwnedEventId, SenderRedaction> {
        let pending = self.0.read();
        let of_room = pending.iter().filter(|((of, _), _)| of == room_id);
        of_room.map(|((_, because), redaction)| (because.clone(), redaction.clone())).collect()
    }

    /// What a kick or ban redacts, until that is done.
    pub fn get(&self, room_id: &RoomId, because: &EventId) -> Option<SenderRedaction> {
        self.0.read().get(&(room_id.to_owned(), because.to_owned())).cloned()
    }

    pub(super) fn begin(&self, begun: Offset, order: RoomRedactSender) {
        let RoomRedactSender { room_id, because, by, user_id, since, .. } = order;
        let redaction = SenderRedaction { begun, by, user_id, since };
        self.0.write().insert((room_id, because), redaction);
    }

    pub(super) fn end(&self, room_id: OwnedRoomId, because: OwnedEventId) {
        self.0.write().remove(&(room_id, because));
    }

    pub(super) fn end_room(&self, room_id: &RoomId) {
        self.0.write().retain(|(of, _), _| of != room_id);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
