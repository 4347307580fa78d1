//! The server notices room of each user.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::command::NoticeRoom;

/// The server notices room of each user who has one.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Notices(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<OwnedUserId, OwnedRoomId>>,
);

impl Notices {
    /// The server notices room of a user.
    pub fn room_of(&self, user_id: &UserId) -> Option<OwnedRoomId> {
        self.0.read().get(user_id).cloned()
    }

    /// Whether this is the user's server notices room.
    pub fn is_room_of(&self, user_id: &UserId, room_id: &RoomId) -> bool {
        self.0.read().get(user_id).is_some_and(|own| own == room_id)
    }

    pub(super) fn set(&self, body: NoticeRoom) {
        self.0.write().insert(body.user_id, body.room_id);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
