//! `m.presence` (server-server API, "Presence").

use std::collections::{BTreeSet, HashMap};

use ruma::{OwnedServerName, OwnedUserId, UserId, events::room::member::MembershipState};
use serde_json::{Value, json};

use super::{Edu, edu};
use crate::federation::Sender;
use logcabin_base::{clock::millis, limits};
use logcabin_read::events::EventRef;
use logcabin_record::{
    Offset,
    command::{PresenceSet, PresenceState},
};
use logcabin_state::{Membership, Room, State};

/// The users who are not offline, each with the record of their presence and the time it was last
/// sent.
pub(in crate::federation::sender) type SentPresence = HashMap<OwnedUserId, (Offset, u64)>;

/// The key, and the EDU.
pub(super) fn transient(said: &PresenceSet, now_ms: u64) -> (String, Edu) {
    (format!("presence {}", said.user_id), presence_edu(&[update(said, now_ms)]))
}

fn presence_edu(updates: &[Value]) -> Edu {
    edu("m.presence", &json!({ "push": updates }))
}

/// The presence of one user in an EDU.
fn update(said: &PresenceSet, now_ms: u64) -> Value {
    let PresenceSet { user_id, presence, status_msg, currently_active, last_active_ms } = said;
    let mut update = json!({ "user_id": user_id, "presence": presence.as_str() });
    if *presence == PresenceState::Online {
        update["currently_active"] = json!(currently_active);
    }
    if *last_active_ms > 0 {
        update["last_active_ago"] = json!(now_ms.saturating_sub(*last_active_ms));
    }
    if let Some(status_msg) = status_msg {
        update["status_msg"] = json!(status_msg);
    }
    update
}

/// Of these users, those whose unchanged presence is due to be repeated.
fn again(
    told: &mut SentPresence,
    around: Vec<(OwnedUserId, Offset)>,
    now_ms: u64,
) -> Vec<OwnedUserId> {
    let before = std::mem::take(told);
    let mut again = Vec::new();
    for (user_id, offset) in around {
        let known = before.get(&user_id).filter(|(of, _)| *of == offset);
        let mut at_ms = known.map_or(now_ms, |(_, at_ms)| *at_ms);
        if now_ms.saturating_sub(at_ms) >= millis(limits::PRESENCE_AGAIN) {
            at_ms = now_ms;
            again.push(user_id.clone());
        }
        told.insert(user_id, (offset, at_ms));
    }
    again
}

/// The presence of a user as it is now.
fn said_by(state: &State, user_id: &UserId) -> Option<PresenceSet> {
    let shown = state.presence.get(user_id)?;
    Some(PresenceSet {
        user_id: user_id.to_owned(),
        presence: shown.presence,
        status_msg: shown.status_msg,
        currently_active: shown.currently_active,
        last_active_ms: shown.last_active_ms,
    })
}

impl Sender {
    /// The presence of a user of this server who enters a room by this event, for the homeservers
    /// in it.
    pub(in crate::federation::sender) fn presence_at_join(
        &self,
        state: &State,
        room: &Room,
        event: &EventRef,
    ) -> Vec<(OwnedServerName, String, Edu)> {
        let said = self.who_joins(room, event).and_then(|user_id| said_by(state, &user_id));
        let Some(said) = said.filter(|said| said.presence != PresenceState::Offline) else {
            return Vec::new();
        };
        let (key, edu) = transient(&said, self.engine.clock().now_ms());
        let servers = self.servers_of(room);
        servers.iter().map(|server| (server.clone(), key.clone(), edu.clone())).collect()
    }

    /// The presence of this server's users in a room who are around, for a homeserver that has
    /// entered it.
    pub(in crate::federation::sender) fn presence_in(&self, room: &Room) -> Vec<(String, Edu)> {
        let (state, now_ms) = (self.engine.state(), self.engine.clock().now_ms());
        let own = self.client.own_name();
        let mut around = state.presence.around();
        around
            .retain(|user_id| user_id.server_name() == own && room.is_joined(user_id, Offset::MAX));
        around.truncate(limits::PRESENCE_AT_JOIN);
        let said: Vec<_> = around.iter().filter_map(|user_id| said_by(&state, user_id)).collect();
        let edus = said.chunks(limits::PRESENCE_IN_EDU).enumerate().map(|(number, part)| {
            let updates: Vec<_> = part.iter().map(|said| update(said, now_ms)).collect();
            (format!("presence in {} {number}", room.id), presence_edu(&updates))
        });
        edus.collect()
    }

    /// The other homeservers with a user who may see the presence of this one.
    pub(super) fn servers_that_see(
        &self,
        state: &State,
        user_id: &UserId,
    ) -> BTreeSet<OwnedServerName> {
        let rooms = state.memberships.of(user_id, Offset::MAX).into_iter();
        let joined = rooms.filter(|part| part.membership == Membership::Join);
        let rooms = joined.filter_map(|part| state.rooms.get(&part.room_id));
        rooms.flat_map(|room| self.servers_of(&room).to_vec()).collect()
    }

    /// The presence that must be repeated to other homeservers, which would otherwise let it
    /// expire.
    pub(in crate::federation::sender) fn presence_again(
        &self,
        told: &mut SentPresence,
    ) -> Vec<(OwnedServerName, String, Edu)> {
        let (state, now_ms) = (self.engine.state(), self.engine.clock().now_ms());
        let own = self.client.own_name();
        let around = state.presence.around().into_iter();
        let around = around.filter(|user_id| user_id.server_name() == own);
        let around = around.filter_map(|user_id| {
            let offset = state.presence.get(&user_id)?.offset;
            Some((user_id, offset))
        });
        let mut found = Vec::new();
        for user_id in again(told, around.collect(), now_ms) {
            let Some(said) = said_by(&state, &user_id) else { continue };
            let servers = self.servers_that_see(&state, &user_id);
            let (key, edu) = transient(&said, now_ms);
            found.extend(servers.into_iter().map(|server| (server, key.clone(), edu.clone())));
        }
        found
    }
}

/// The homeserver whose first user enters a room by this event.
pub(in crate::federation::sender) fn newcomer(
    room: &Room,
    event: &EventRef,
) -> Option<OwnedServerName> {
    let (user_id, membership) = event.membership()?;
    let before = room.membership(user_id, event.offset.prev());
    let is_new = before.is_none_or(|(_, membership)| membership != Membership::Join);
    let server = user_id.server_name();
    let is_first = room.joined_of(server) == 1;
    (membership == MembershipState::Join && is_new && is_first).then(|| server.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_again_of_who_stays() {
        let ann: OwnedUserId = "@ann:own".try_into().unwrap();
        let mut told = SentPresence::default();
        let mut count = |offset, minute: u64| {
            let around = vec![(ann.clone(), Offset::new(offset))];
            again(&mut told, around, minute * 60_000).len()
        };
        let minutes = [(5, 0), (5, 19), (5, 20), (5, 21), (6, 39), (6, 40), (6, 59)];
        let told = minutes.map(|(offset, minute)| count(offset, minute));
        assert_eq!(told, [0, 0, 1, 0, 0, 0, 1]);
    }
}
