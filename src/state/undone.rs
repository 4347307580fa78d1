//! Memberships that restores undid.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{Epoch, Offset, command::RoomUndo};

/// By user, the rooms.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UndoneMemberships(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<OwnedUserId, Vec<UndoneMembership>>>,
);

/// A user's membership that was undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneMembership {
    pub room_id: OwnedRoomId,
    /// The epoch of the record that made it.
    pub epoch: Epoch,
    /// The offset of that record.
    pub offset: Offset,
    /// The epoch that the restore began.
    pub begun: Epoch,
    /// The record that says so.
    pub said: Offset,
}

impl UndoneMemberships {
    /// The undone memberships of the user that a client at `offset` of `epoch` knew.
    pub fn known_at(
        &self,
        user_id: &UserId,
        epoch: Epoch,
        offset: Offset,
    ) -> Vec<UndoneMembership> {
        let parts = self.0.read();
        let parts = parts.get(user_id).map(Vec::as_slice).unwrap_or_default();
        let known = |part: &&UndoneMembership| {
            (part.epoch..part.begun).contains(&epoch) && part.offset <= offset
        };
        parts.iter().filter(known).cloned().collect()
    }

    pub(super) fn add(&self, said: Offset, body: RoomUndo) {
        let RoomUndo { user_id, begun, rooms } = body;
        let rooms = rooms.into_iter().map(|room| UndoneMembership {
            room_id: room.room_id,
            epoch: room.epoch,
            offset: room.offset,
            begun,
            said,
        });
        self.0.write().entry(user_id).or_default().extend(rooms);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::command::UndoneRoom;

    #[test]
    fn only_clients_that_knew_a_membership_learn_that_it_was_undone() {
        let user_id: OwnedUserId = "@ann:test".try_into().unwrap();
        let undone = UndoneMemberships::default();
        let room = |id: &str, epoch, offset| UndoneRoom {
            room_id: id.try_into().unwrap(),
            epoch: Epoch(epoch),
            offset: Offset::new(offset),
        };
        let add = |said, begun, rooms| {
            let body = RoomUndo { user_id: user_id.clone(), begun: Epoch(begun), rooms };
            undone.add(Offset::new(said), body);
        };
        // Restored to 100, then to 120.
        add(102, 1, vec![room("!a:test", 0, 110), room("!b:test", 0, 130)]);
        add(122, 2, vec![room("!c:test", 1, 125)]);
        let known = |epoch, offset| -> Vec<_> {
            let known = undone.known_at(&user_id, Epoch(epoch), Offset::new(offset));
            known.into_iter().map(|part| part.room_id.to_string()).collect()
        };
        assert_eq!(known(0, 109), [""; 0]);
        assert_eq!(known(0, 129), ["!a:test"]);
        assert_eq!(known(0, 150), ["!a:test", "!b:test"]);
        assert_eq!(known(1, 150), ["!c:test"]);
        assert_eq!(known(2, 150), [""; 0]);
    }
}
