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
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<OwnedRoomId, Pending>>,
);

type Pending = BTreeMap<OwnedEventId, SenderRedaction>;

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
        self.0.read().keys().cloned().collect()
    }

    /// What is left to be redacted in a room, by the ids of the kicks and bans.
    pub fn in_room(&self, room_id: &RoomId) -> Pending {
        self.0.read().get(room_id).cloned().unwrap_or_default()
    }

    /// Whether something is left in a room that began after a record.
    pub fn has_since(&self, room_id: &RoomId, offset: Offset) -> bool {
        let all = self.0.read();
        all.get(room_id).is_some_and(|pending| pending.values().any(|of| of.begun > offset))
    }

    /// What a kick or ban redacts, until that is done.
    pub fn get(&self, room_id: &RoomId, because: &EventId) -> Option<SenderRedaction> {
        self.0.read().get(room_id)?.get(because).cloned()
    }

    pub(super) fn begin(&self, begun: Offset, order: RoomRedactSender) {
        let RoomRedactSender { room_id, because, by, user_id, since, .. } = order;
        let redaction = SenderRedaction { begun, by, user_id, since };
        self.0.write().entry(room_id).or_default().insert(because, redaction);
    }

    pub(super) fn end(&self, room_id: &RoomId, because: &EventId) {
        let mut all = self.0.write();
        if let Some(pending) = all.get_mut(room_id) {
            pending.remove(because);
            if pending.is_empty() {
                all.remove(room_id);
            }
        }
    }

    pub(super) fn end_room(&self, room_id: &RoomId) {
        self.0.write().remove(room_id);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
