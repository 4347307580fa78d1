//! Who is in a room, and was.

use std::collections::BTreeSet;

use ruma::{OwnedUserId, UserId, events::StateEventType};
use serde::{Deserialize, Serialize};

use super::{Inner, Membership, Room};
use logcabin_record::Offset;

/// How many users are joined and invited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberCounts {
    /// Joined users.
    pub joined: u64,
    /// Invited users.
    pub invited: u64,
}

impl Room {
    /// The membership of `user_id` as of `at`, with the offset that set it.
    pub fn membership(&self, user_id: &UserId, at: Offset) -> Option<(Offset, Membership)> {
        let inner = self.inner.read();
        inner.members.get(user_id)?.at(at).map(|(offset, membership)| (offset, *membership))
    }

    pub fn is_joined(&self, user_id: &UserId, at: Offset) -> bool {
        matches!(self.membership(user_id, at), Some((_, Membership::Join)))
    }

    /// The offset since which `user_id` has been joined without a break; `None` if they are not
    /// joined as of `at`.
    pub fn joined_since(&self, user_id: &UserId, at: Offset) -> Option<Offset> {
        let inner = self.inner.read();
        let changes = inner.members.get(user_id)?.between(Offset::ZERO, at).rev();
        let joined = changes.take_while(|(_, membership)| **membership == Membership::Join);
        joined.last().map(|(offset, _)| offset)
    }

    /// All memberships of `user_id` up to and including `at`, oldest first.
    pub fn membership_changes(&self, user_id: &UserId, at: Offset) -> Vec<(Offset, Membership)> {
        let inner = self.inner.read();
        inner.members.get(user_id).map_or_else(Vec::new, |history| {
            history.between(Offset::ZERO, at).map(|(offset, m)| (offset, *m)).collect()
        })
    }

    /// When `user_id` last stopped being joined, up to and including `at`.
    pub fn departed(&self, user_id: &UserId, at: Offset) -> Option<Offset> {
        let changes = self.membership_changes(user_id, at);
        let leave = changes.windows(2).rfind(|pair| {
            let (before, after) = (pair[0].1, pair[1].1);
            before == Membership::Join && after != Membership::Join
        });
        leave.map(|pair| pair[1].0)
    }

    /// The users with this membership as of `at`, in order, each with the member event.
    pub fn members(&self, membership: Membership, at: Offset) -> Vec<(OwnedUserId, Offset)> {
        let inner = self.inner.read();
        let keys = inner.key_index.get(&StateEventType::RoomMember);
        let event_of = |user_id: &UserId, changed: Offset| {
            if inner.graph.is_plain() {
                return changed;
            }
            let key = keys.and_then(|keys| keys.get(user_id.as_str()));
            key.and_then(|key| inner.held(*key, changed)).unwrap_or(changed)
        };
        inner
            .members
            .iter()
            .filter_map(|(user_id, history)| {
                let (offset, is) = history.at(at)?;
                (*is == membership).then(|| (user_id.clone(), event_of(user_id, offset)))
            })
            .collect()
    }

    /// The users who are joined as of `to` and were not as of `since`, ordered by id. The cost is
    /// proportional to the changes of the room's state.
    pub fn joined_between(&self, since: Offset, to: Offset) -> Vec<OwnedUserId> {
        let inner = self.inner.read();
        let is_joined = |user_id: &UserId, at| {
            let history = inner.members.get(user_id);
            history
                .and_then(|history| history.at(at))
                .is_some_and(|(_, is)| *is == Membership::Join)
        };
        let newly = |user_id: &&UserId| is_joined(user_id, to) && !is_joined(user_id, since);
        let changed = inner.members_changed(since, to);
        changed.into_iter().filter(newly).map(ToOwned::to_owned).collect()
    }

    /// How many users are joined or invited now.
    pub fn present_now(&self) -> usize {
        self.inner.read().present.len()
    }

    /// Calls `found` for each of these users who is joined or invited now.
    pub fn each_present_of<T>(&self, users: &[(OwnedUserId, T)], mut found: impl FnMut(&T)) {
        let inner = self.inner.read();
        users.iter().filter(|(user, _)| inner.present.contains(user)).for_each(|(_, t)| found(t));
    }

    /// How many users are joined and invited as of `at`.
    pub fn counts(&self, at: Offset) -> MemberCounts {
        self.inner.read().counts.at(at).map(|(_, counts)| *counts).unwrap_or_default()
    }

    /// The users whose membership or profile changed after `since`, up to and including `to`.
    pub fn members_changed(&self, since: Offset, to: Offset) -> BTreeSet<OwnedUserId> {
        let inner = self.inner.read();
        inner.members_changed(since, to).into_iter().map(ToOwned::to_owned).collect()
    }

    /// Whether the number of joined or invited users changed after `since`, even if it changed
    /// back.
    pub fn counts_changed(&self, since: Offset, to: Offset) -> bool {
        self.inner.read().counts.between(since, to).next().is_some()
    }
}

impl Inner {
    pub(super) fn members_changed(&self, since: Offset, to: Offset) -> BTreeSet<&UserId> {
        let from = self.state_log.partition_point(|(offset, _)| *offset <= since);
        let changed = self.state_log[from..].iter().take_while(|(offset, _)| *offset <= to);
        let members = changed.filter_map(|(_, key)| match self.keys.get(*key as usize)? {
            (StateEventType::RoomMember, user_id) => <&UserId>::try_from(&**user_id).ok(),
            _ => None,
        });
        members.collect()
    }

    pub(super) fn set_membership(
        &mut self,
        offset: Offset,
        user_id: OwnedUserId,
        membership: Membership,
    ) {
        let mut counts = self.counts.latest().copied().unwrap_or_default();
        let history = self.members.entry(user_id.clone()).or_default();
        let before = history.latest().copied();
        history.push(offset, membership);
        self.servers.change(&user_id, before, membership);
        let tally = |of| u64::from(membership == of) as i64 - i64::from(before == Some(of));
        counts.joined = counts.joined.saturating_add_signed(tally(Membership::Join));
        counts.invited = counts.invited.saturating_add_signed(tally(Membership::Invite));
        if self.counts.latest() != Some(&counts) {
            self.counts.push(offset, counts);
        }
        if matches!(membership, Membership::Join | Membership::Invite) {
            self.present.insert(user_id.clone());
        } else {
            self.present.remove(&user_id);
        }
        if membership != Membership::Join && self.typing.remove(&user_id).is_some() {
            self.typing_changed = offset;
        }
    }
}
