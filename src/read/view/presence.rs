//! The presence that a user sees (client-server API, "Presence"): of users who share a room with
//! them, and their own.

use std::collections::BTreeSet;

use ruma::{OwnedUserId, UserId};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{View, filter::EventFilter};
use crate::events::to_raw;
use logcabin_record::{Offset, command::PresenceState};
use logcabin_state::{Membership, RoomMembership, presence::UserPresence};

impl View<'_> {
    /// The `m.presence` events that are new after `since`: of users whose presence changed, and of
    /// online users who began to share a room with the user. Without `since`, of all online users.
    ///
    /// `rooms` contains at least those of the user's rooms whose members changed after `since`. The
    /// cost is proportional to the changes of presence and of those members; in an initial sync, to
    /// the online users.
    pub fn presence(
        &self,
        since: Option<Offset>,
        rooms: &[RoomMembership],
        filter: &EventFilter,
    ) -> Vec<Box<RawValue>> {
        if !filter.wants_type("m.presence") {
            return Vec::new();
        }
        let mut users = BTreeSet::new();
        match since {
            None => users.extend(self.state.presence.around()),
            Some(since) => {
                users.extend(self.state.presence.changed(since, self.at()));
                users.extend(self.newcomers(since, rooms));
            }
        }
        users.retain(|user_id| filter.wants_sender(user_id) && self.sees_presence_of(user_id));
        let of = |user_id: &OwnedUserId| {
            // A later change belongs to the next sync.
            let shown = self.state.presence.get(user_id).filter(|shown| shown.offset <= self.at());
            Some((user_id.clone(), shown?))
        };
        let mut found: Vec<_> = users.iter().filter_map(of).collect();
        if let Some(limit) = filter.limit.and_then(|limit| usize::try_from(limit).ok()) {
            // The newest are the most useful.
            found.sort_unstable_by_key(|(_, shown)| std::cmp::Reverse(shown.offset));
            found.truncate(limit);
        }
        let now_ms = self.viewer.now_ms;
        found.iter().map(|(user_id, shown)| event(user_id, shown, now_ms)).collect()
    }

    /// Whether the user may see the presence of `other`.
    pub fn sees_presence_of(&self, other: &UserId) -> bool {
        let own = other == self.user_id();
        own || self.state.memberships.share_a_room(self.user_id(), other, self.at())
    }

    /// Online users who began to share a room with the user after `since`.
    fn newcomers(&self, since: Offset, rooms: &[RoomMembership]) -> Vec<OwnedUserId> {
        let joined = rooms.iter().filter(|part| part.membership == Membership::Join);
        let rooms = joined.filter_map(|part| self.state.rooms.get(&part.room_id));
        let is_there = |user_id: &OwnedUserId| {
            let shown = self.state.presence.get(user_id);
            shown.is_some_and(|shown| shown.presence != PresenceState::Offline)
        };
        let mut newcomers = Vec::new();
        for room in rooms {
            if room.is_joined(self.user_id(), since) {
                newcomers
                    .extend(room.joined_between(since, self.at()).into_iter().filter(is_there));
            } else {
                let members = room.members(Membership::Join, self.at()).into_iter();
                newcomers.extend(members.map(|(user_id, _)| user_id).filter(is_there));
            }
        }
        let memberships = &self.state.memberships;
        newcomers.retain(|user_id| !memberships.share_a_room(self.user_id(), user_id, since));
        newcomers
    }
}

/// A presence event.
#[derive(Serialize)]
struct Event<'a> {
    content: Content<'a>,
    sender: &'a UserId,
    #[serde(rename = "type")]
    event_type: &'static str,
}

/// The content of a presence event, and of the response to a request for a user's presence.
#[derive(Debug, Serialize)]
pub struct Content<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    currently_active: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_active_ago: Option<u64>,
    presence: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_msg: Option<&'a str>,
}

/// The presence event of a user.
pub fn event(user_id: &UserId, shown: &UserPresence, now_ms: u64) -> Box<RawValue> {
    to_raw(&Event {
        content: Content::of(shown, shown.last_active_ms, now_ms),
        sender: user_id,
        event_type: "m.presence",
    })
}

impl<'a> Content<'a> {
    /// The presence of a user who was last active at `last_active_ms`.
    pub fn of(shown: &'a UserPresence, last_active_ms: u64, now_ms: u64) -> Self {
        Self {
            currently_active: (shown.presence == PresenceState::Online)
                .then_some(shown.currently_active),
            last_active_ago: (last_active_ms > 0).then(|| now_ms.saturating_sub(last_active_ms)),
            presence: shown.presence.as_str(),
            status_msg: shown.status_msg.as_deref(),
        }
    }
}
