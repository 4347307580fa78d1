//! The rooms of each user, with the history of their memberships.

use std::{collections::BTreeMap, sync::Arc};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::{few::FewMap, history::History, rooms::Membership, serializers};
use logcabin_record::Offset;

/// A user's relation to a room.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RoomRelation {
    /// The user's memberships.
    pub membership: History<Membership>,
    /// Whether the user has forgotten the room; a new membership undoes that.
    pub forgotten: History<bool>,
}

impl RoomRelation {
    /// Whether the user is joined as of `at`.
    pub fn is_joined(&self, at: Offset) -> bool {
        self.membership.at(at).is_some_and(|(_, membership)| *membership == Membership::Join)
    }

    /// Whether the user has joined or knocked.
    fn is_present(&self) -> bool {
        matches!(self.membership.latest(), Some(Membership::Join | Membership::Knock))
    }

    /// Whether the room was forgotten as of `at`.
    pub fn is_forgotten(&self, at: Offset) -> bool {
        self.forgotten.at(at).is_some_and(|(_, forgotten)| *forgotten)
    }
}

/// A user's relation to each room.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<OwnedRoomId, RoomRelation>")]
struct UserRooms {
    rooms: FewMap<OwnedRoomId, RoomRelation>,
    /// The number of rooms that they have joined or knocked on.
    #[serde(skip)]
    present: usize,
}

impl From<BTreeMap<OwnedRoomId, RoomRelation>> for UserRooms {
    fn from(rooms: BTreeMap<OwnedRoomId, RoomRelation>) -> Self {
        let present = rooms.values().filter(|part| part.is_present()).count();
        Self { rooms: rooms.into(), present }
    }
}

/// The rooms of every user.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Memberships(
    #[serde(with = "serializers::by_key")] DashMap<OwnedUserId, Arc<RwLock<UserRooms>>>,
);

impl Memberships {
    /// The rooms with a membership of `user_id` as of `at`, ordered by id.
    pub fn of(&self, user_id: &UserId, at: Offset) -> Vec<RoomMembership> {
        let Some(parts) = self.parts(user_id) else { return Vec::new() };
        let parts = parts.read();
        let of = |(room_id, part): (&OwnedRoomId, &RoomRelation)| {
            let (offset, membership) = part.membership.at(at)?;
            Some(RoomMembership {
                room_id: room_id.clone(),
                membership: *membership,
                offset,
                forgotten: part.is_forgotten(at),
            })
        };
        parts.rooms.iter().filter_map(of).collect()
    }

    /// How many rooms `user_id` has or had a membership in.
    pub fn count(&self, user_id: &UserId) -> usize {
        self.parts(user_id).map_or(0, |parts| parts.read().rooms.len())
    }

    /// The number of rooms that `user_id` has joined or knocked on.
    pub fn count_present(&self, user_id: &UserId) -> usize {
        self.parts(user_id).map_or(0, |parts| parts.read().present)
    }

    pub fn in_room(
        &self,
        user_id: &UserId,
        room_id: &RoomId,
        at: Offset,
    ) -> Option<RoomMembership> {
        let part = self.part(user_id, room_id)?;
        let (offset, membership) = part.membership.at(at)?;
        Some(RoomMembership {
            room_id: room_id.to_owned(),
            membership: *membership,
            offset,
            forgotten: part.is_forgotten(at),
        })
    }

    /// Whether both share a joined room as of `at`. The cost is proportional to the rooms of the
    /// user with fewer.
    pub fn share_a_room(&self, one: &UserId, other: &UserId, at: Offset) -> bool {
        let (Some(one), Some(other)) = (self.parts(one), self.parts(other)) else { return false };
        if Arc::ptr_eq(&one, &other) {
            return one.read().rooms.iter().any(|(_, part)| part.is_joined(at));
        }
        // Locked one after the other: two threads that hold one lock each and wait for the other
        // would deadlock.
        let (few, many) = if one.read().rooms.len() <= other.read().rooms.len() {
            (one, other)
        } else {
            (other, one)
        };
        let joined = few
            .read()
            .rooms
            .iter()
            .filter(|(_, part)| part.is_joined(at))
            .map(|(id, _)| id.clone())
            .collect::<Vec<_>>();
        let many = many.read();
        joined.iter().any(|room_id| many.rooms.get(room_id).is_some_and(|part| part.is_joined(at)))
    }

    /// The rooms that `user_id` forgot after `since`, up to and including `to`.
    pub fn forgotten_between(
        &self,
        user_id: &UserId,
        since: Offset,
        to: Offset,
    ) -> Vec<OwnedRoomId> {
        let Some(parts) = self.parts(user_id) else { return Vec::new() };
        let parts = parts.read();
        let forgot = |part: &RoomRelation| {
            part.forgotten.between(since, to).any(|(_, forgotten)| *forgotten)
        };
        let rooms = parts.rooms.iter().filter(|(_, part)| forgot(part));
        rooms.map(|(room_id, _)| room_id.clone()).collect()
    }

    /// The relation of `user_id` to one room.
    pub fn part(&self, user_id: &UserId, room_id: &RoomId) -> Option<RoomRelation> {
        self.parts(user_id)?.read().rooms.get(room_id).cloned()
    }

    fn parts(&self, user_id: &UserId) -> Option<Arc<RwLock<UserRooms>>> {
        self.0.get(user_id).map(|parts| Arc::clone(&parts))
    }

    fn change(&self, user_id: &UserId, room_id: &RoomId, change: impl FnOnce(&mut RoomRelation)) {
        let parts = match self.parts(user_id) {
            Some(parts) => parts,
            None => Arc::clone(&self.0.entry(user_id.to_owned()).or_default()),
        };
        let parts = &mut *parts.write();
        let part = parts.rooms.get_or_default(room_id);
        let was_present = part.is_present();
        change(part);
        match (was_present, part.is_present()) {
            (false, true) => parts.present += 1,
            (true, false) => parts.present -= 1,
            _ => {}
        }
    }

    pub(super) fn set(
        &self,
        offset: Offset,
        user_id: &UserId,
        room_id: &RoomId,
        membership: Membership,
    ) {
        self.change(user_id, room_id, |part| {
            part.membership.push(offset, membership);
            let comes_back =
                matches!(membership, Membership::Join | Membership::Invite | Membership::Knock);
            if comes_back && part.forgotten.latest() == Some(&true) {
                part.forgotten.push(offset, false);
            }
        });
    }

    pub(super) fn forget(&self, offset: Offset, user_id: &UserId, room_id: &RoomId) {
        self.change(user_id, room_id, |part| part.forgotten.push(offset, true));
    }

    /// The room was purged: its members have left and forgotten it.
    pub(super) fn end_room(&self, offset: Offset, room_id: &RoomId, members: &[OwnedUserId]) {
        for user_id in members {
            self.change(user_id, room_id, |part| {
                let is = part.membership.latest();
                if !matches!(is, Some(Membership::Leave | Membership::Ban)) {
                    part.membership.push(offset, Membership::Leave);
                }
                if part.forgotten.latest() != Some(&true) {
                    part.forgotten.push(offset, true);
                }
            });
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let mut users: Vec<_> =
            self.0.iter().map(|entry| (entry.key().clone(), Arc::clone(entry.value()))).collect();
        users.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (user_id, parts) in users {
            digest.add(&user_id);
            digest.add(&*parts.read());
        }
    }
}

/// A user's membership in a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomMembership {
    pub room_id: OwnedRoomId,
    pub membership: Membership,
    /// The offset of the member event.
    pub offset: Offset,
    /// Whether the user has forgotten the room.
    pub forgotten: bool,
}
