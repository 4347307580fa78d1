//! How much each user stores, where no other projection counts it: the sizes of account data and
//! filters, and who sent each pending invite. Quotas (`decide::quota`) are checked against these
//! numbers, and nothing else reads them.
//!
//! A snapshot of an earlier version does not contain this projection. Until it has been rebuilt
//! from the log, the counts are too low, and the quotas too generous.

use std::collections::BTreeMap;

use dashmap::DashMap;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, ServerName, UserId};
use serde::{Deserialize, Serialize};

use super::{index::hash, rooms::Membership, serializers};
use logcabin_record::{
    Offset,
    command::{AccountDataSet, FilterCreate},
};

/// Types of account data that only the server writes: one read marker for each room, and push
/// rules, which have limits of their own.
const NOT_COUNTED: [&str; 2] = ["m.fully_read", "m.push_rules"];

/// The overhead of an account data entry, in bytes: about what it takes in memory.
const DATA_OVERHEAD: usize = 64;

/// How much each user stores.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Usage(#[serde(with = "serializers::shared")] DashMap<OwnedUserId, UserUsage>);

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct UserUsage {
    /// The size of each existing account data entry, by hashes of its room and type.
    data: BTreeMap<DataKey, u32>,
    /// The sum of these sizes.
    data_bytes: u64,
    /// The total size of filters.
    filter_bytes: u64,
    /// Pending invites, by room.
    invites: BTreeMap<OwnedRoomId, Invite>,
}

/// A pending invite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// The record that has it.
    pub at: Offset,
    /// Its sender, as a hash.
    by: u64,
    /// The sender's homeserver, as a hash.
    server: u64,
}

impl Invite {
    fn new(at: Offset, sender: &str) -> Self {
        let server = sender.split_once(':').map_or("", |(_, server)| server);
        Self { at, by: hash(&[sender]), server: hash(&[server]) }
    }

    /// Whether a user of this homeserver has sent it.
    pub fn is_from(&self, server: &ServerName) -> bool {
        self.server == hash(&[server.as_str()])
    }

    /// Whether users of one homeserver have sent both.
    pub const fn is_from_that_of(&self, other: &Self) -> bool {
        self.server == other.server
    }
}

type DataKey = (u64, u64);

/// A number of items, and their total size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number.
    pub count: usize,
    /// The size in bytes.
    pub bytes: u64,
}

fn data_key(room_id: Option<&RoomId>, event_type: &str) -> DataKey {
    (room_id.map_or(0, room_key), hash(&[event_type]))
}

fn room_key(room_id: &RoomId) -> u64 {
    hash(&[room_id.as_str()])
}

/// The size that `body` counts as: 0 if it deletes, or its type does not count.
pub fn data_bytes(body: &AccountDataSet) -> u64 {
    let AccountDataSet { user_id: _, room_id, event_type, content } = body;
    if content.get() == "null" || NOT_COUNTED.contains(&&**event_type) {
        return 0;
    }
    let names = room_id.as_ref().map_or(0, |room_id| room_id.as_str().len()) + event_type.len();
    (content.get().len() + names + DATA_OVERHEAD) as u64
}

impl Usage {
    pub fn account_data(&self, user_id: &UserId) -> Totals {
        self.look(user_id, |of| Totals { count: of.data.len(), bytes: of.data_bytes })
    }

    /// The size of the account data that `body` replaces.
    pub fn data_before(&self, body: &AccountDataSet) -> u64 {
        let key = data_key(body.room_id.as_deref(), &body.event_type);
        self.look(&body.user_id, |of| of.data.get(&key).copied().unwrap_or_default()).into()
    }

    /// The total size of the filters of `user_id`.
    pub fn filter_bytes(&self, user_id: &UserId) -> u64 {
        self.look(user_id, |of| of.filter_bytes)
    }

    /// The number of pending invites of `user_id`.
    pub fn invites(&self, user_id: &UserId) -> usize {
        self.look(user_id, |of| of.invites.len())
    }

    /// The number of pending invites of `user_id` from `inviter`.
    pub fn invites_by(&self, user_id: &UserId, inviter: &UserId) -> usize {
        let inviter = hash(&[inviter.as_str()]);
        self.look(user_id, |of| of.invites.values().filter(|of| of.by == inviter).count())
    }

    /// The number of pending invites of `user_id` by users of a homeserver.
    pub fn invites_from(&self, user_id: &UserId, server: &ServerName) -> usize {
        let server = hash(&[server.as_str()]);
        self.look(user_id, |of| of.invites.values().filter(|of| of.server == server).count())
    }

    /// The pending invites of `user_id`, the oldest first.
    pub fn invites_by_age(&self, user_id: &UserId) -> Vec<(OwnedRoomId, Invite)> {
        let mut invites: Vec<_> = self.look(user_id, |of| {
            of.invites.iter().map(|(room_id, invite)| (room_id.clone(), *invite)).collect()
        });
        invites.sort_unstable_by_key(|(_, invite)| invite.at);
        invites
    }

    fn look<T: Default>(&self, user_id: &UserId, look: impl FnOnce(&UserUsage) -> T) -> T {
        self.0.get(user_id).map(|of| look(&of)).unwrap_or_default()
    }

    pub(super) fn set_data(&self, body: &AccountDataSet) {
        let key = data_key(body.room_id.as_deref(), &body.event_type);
        // Records are much smaller than 4 GiB.
        let bytes = u32::try_from(data_bytes(body)).unwrap_or(u32::MAX);
        self.change(&body.user_id, |of| {
            let before = if bytes == 0 { of.data.remove(&key) } else { of.data.insert(key, bytes) };
            of.data_bytes = of.data_bytes + u64::from(bytes) - u64::from(before.unwrap_or(0));
        });
    }

    pub(super) fn add_filter(&self, body: &FilterCreate) {
        let bytes = body.filter.get().len() as u64;
        self.change(&body.user_id, |of| of.filter_bytes += bytes);
    }

    /// Removes account data and filters of an erased user.
    pub(super) fn forget(&self, user_id: &UserId) {
        self.change(user_id, |of| {
            of.data.clear();
            (of.data_bytes, of.filter_bytes) = (0, 0);
        });
    }

    /// An event of `sender` changed the membership of `user_id`.
    pub(super) fn set_membership(
        &self,
        offset: Offset,
        user_id: &UserId,
        room_id: &RoomId,
        membership: Membership,
        sender: &str,
    ) {
        if membership == Membership::Invite {
            let invite = Invite::new(offset, sender);
            self.change(user_id, |of| of.invites.insert(room_id.to_owned(), invite));
        } else if self.0.contains_key(user_id) {
            self.change(user_id, |of| of.invites.remove(room_id));
        }
    }

    /// Removes all account data of a purged room.
    pub(super) fn end_room(&self, room_id: &RoomId) {
        let (first, last) = ((room_key(room_id), 0), (room_key(room_id), u64::MAX));
        self.0.retain(|_, of| {
            of.invites.remove(room_id);
            let gone: Vec<_> = of.data.range(first..=last).map(|(key, _)| *key).collect();
            for key in gone {
                of.data_bytes -= u64::from(of.data.remove(&key).unwrap_or_default());
            }
            *of != UserUsage::default()
        });
    }

    /// Users who store nothing have no entry, so that equal states have equal bytes.
    fn change<T>(&self, user_id: &UserId, change: impl FnOnce(&mut UserUsage) -> T) {
        change(&mut self.0.entry(user_id.to_owned()).or_default());
        self.0.remove_if(user_id, |_, of| *of == UserUsage::default());
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let mut users: Vec<_> = self.0.iter().map(|entry| entry.key().clone()).collect();
        users.sort_unstable();
        for user_id in users {
            if let Some(of) = self.0.get(&user_id) {
                digest.add(&(&user_id, &*of));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{room_id, user_id};
    use serde_json::value::RawValue;

    use super::*;

    fn ann() -> &'static UserId {
        user_id!("@ann:test")
    }

    fn data(room_id: Option<&RoomId>, event_type: &str, content: &str) -> AccountDataSet {
        AccountDataSet {
            user_id: ann().to_owned(),
            room_id: room_id.map(ToOwned::to_owned),
            event_type: event_type.to_owned(),
            content: RawValue::from_string(content.to_owned()).unwrap(),
        }
    }

    #[test]
    fn account_data_counts_until_it_is_deleted() {
        let usage = Usage::default();
        let room_id = room_id!("!r:test");
        let long = format!("{{\"a\":{:?}}}", "x".repeat(1000));
        let (first, longer) = (data(None, "t", "{}"), data(None, "t", &long));
        let of_room = data(Some(room_id), "t", "{}");
        for body in [&first, &longer, &of_room, &data(None, "m.push_rules", &long)] {
            usage.set_data(body);
        }
        let sum = data_bytes(&longer) + data_bytes(&of_room);
        assert_eq!(usage.account_data(ann()), Totals { count: 2, bytes: sum });
        assert_eq!(usage.data_before(&first), data_bytes(&longer));
        usage.set_data(&data(None, "t", "null"));
        assert_eq!(usage.account_data(ann()), Totals { count: 1, bytes: data_bytes(&of_room) });
        usage.end_room(room_id);
        assert!(usage.0.is_empty());
    }

    #[test]
    fn an_invite_counts_until_it_is_answered() {
        let usage = Usage::default();
        let (bob, cat) = ("@bob:test", "@cat:test");
        let rooms = ["!a:test", "!b:test", "!c:test"].map(|id| <&RoomId>::try_from(id).unwrap());
        for (room_id, by) in rooms.iter().zip([bob, bob, cat]) {
            usage.set_membership(Offset::new(1), ann(), room_id, Membership::Invite, by);
        }
        let by = |user_id: &str| usage.invites_by(ann(), <&UserId>::try_from(user_id).unwrap());
        assert_eq!((usage.invites(ann()), by(bob), by(cat)), (3, 2, 1));
        usage.set_membership(Offset::new(2), ann(), rooms[0], Membership::Join, ann().as_str());
        // The sender of the latest invite counts.
        usage.set_membership(Offset::new(2), ann(), rooms[1], Membership::Invite, cat);
        assert_eq!((usage.invites(ann()), by(bob), by(cat)), (2, 0, 2));
        usage.end_room(rooms[1]);
        usage.set_membership(Offset::new(2), ann(), rooms[2], Membership::Leave, cat);
        assert!(usage.0.is_empty());
    }
}
