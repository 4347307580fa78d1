//! Memberships of local users in rooms that this homeserver is not in: incoming invites, knocks,
//! and the end of both, by the user or by members of the room.

use ruma::{
    OwnedEventId, OwnedRoomId, OwnedServerName, RoomVersionId, UserId,
    events::room::member::MembershipState,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::receive::body;
use crate::{
    Commit, Membership, Proposal, Refusal, is_local,
    member_event::{may_be_entered, may_come, may_reject, must_take_invites},
};
use logcabin_read::{
    branches::PENDING,
    events::{EventRef, StoredEvent},
};
use logcabin_record::{
    Offset, Stream,
    command::{Received, RoomEvent},
};
use logcabin_state::Room;

/// Record a membership of a user of this homeserver in a room that it is not in.
#[derive(Clone, Debug)]
pub struct RemoteMembership {
    pub room_id: OwnedRoomId,
    pub version: RoomVersionId,
    /// The homeserver that sent the event, or accepted it.
    pub from: OwnedServerName,
    pub event_id: OwnedEventId,
    /// The member event, with valid signatures.
    pub pdu: Box<RawValue>,
    /// The room's stripped state, as the homeserver sent it.
    pub stripped: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Content {
    membership: MembershipState,
}

impl Proposal for RemoteMembership {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let env = commit.env;
        let own = &env.server.name;
        let received =
            Received { stripped: self.stripped.clone(), ..Received::new(self.from.clone()) };
        let body = body(&self.room_id, &self.event_id, self.pdu.clone(), Some(received), None);
        let rules = self.version.rules();
        let rules =
            rules.ok_or_else(|| Refusal::UnsupportedRoomVersion(self.version.to_string()))?;
        let of = (&*self.room_id, &rules);
        if env.events.is_taken(&env.state, of, &self.event_id, &self.pdu)? {
            return Err(Refusal::BadState("Another event has this id.".to_owned()));
        }
        let event = StoredEvent::new(PENDING, body.clone());
        let event = event.map_err(|error| Refusal::BadJson(error.to_string()))?;
        let content: Content =
            event.content_as().map_err(|error| Refusal::BadJson(error.to_string()))?;
        let user_id = event.state_key.as_deref().and_then(|key| <&UserId>::try_from(key).ok());
        let user_id = user_id.filter(|user_id| is_local(&env.server, user_id));
        let user_id = user_id.ok_or_else(|| {
            Refusal::BadState("It is not a membership of a user of this server.".to_owned())
        })?;
        if env.state.accounts.get(user_id).is_none() {
            return Err(Refusal::NotFound("There is no such user.".to_owned()));
        }
        commit.rests_on(Stream::user(user_id));
        let room = env.state.rooms.get(&self.room_id);
        if room.as_ref().is_some_and(|room| room.has_server(own)) {
            return Err(Refusal::BadState("This server is in the room.".to_owned()));
        }
        // Until the room's first event is known, claims about the room cannot be verified.
        let has_version = room.as_ref().is_some_and(|room| room.version == self.version);
        if !has_version && room.as_ref().is_some_and(|room| room.is_begun()) {
            return Err(Refusal::BadState("The room has another version.".to_owned()));
        }
        if env.state.erasures.purged(&self.room_id).is_some() && room.is_none() {
            return Err(Refusal::Forbidden("This room was purged from this server.".to_owned()));
        }
        let now = room.as_ref().and_then(|room| room.membership(user_id, Offset::MAX));
        let now = now.map(|(_, membership)| membership);
        match (content.membership, now) {
            (_, Some(Membership::Join)) => {
                return Err(Refusal::BadState("The user is in the room.".to_owned()));
            }
            (MembershipState::Invite, _) => {
                may_be_entered(env, &self.room_id, user_id)?;
                must_take_invites(env, Some(&self.room_id), user_id, &event.sender, now)?;
            }
            (MembershipState::Knock, _) => {
                may_be_entered(env, &self.room_id, user_id)?;
                may_come(env, user_id, now)?;
            }
            (
                MembershipState::Leave | MembershipState::Ban,
                Some(Membership::Invite | Membership::Knock),
            ) if event.sender != *user_id => {
                if !room.as_ref().is_some_and(|room| self.ends(commit, room, user_id, &event)) {
                    let why = "It does not end this user's invite or knock.";
                    return Err(Refusal::Forbidden(why.to_owned()));
                }
            }
            (MembershipState::Leave, Some(Membership::Invite)) => {
                may_reject(env, &self.room_id, user_id)?;
            }
            (MembershipState::Leave, Some(Membership::Knock)) => {}
            (MembershipState::Leave, _) => return Ok(()),
            _ => return Err(Refusal::BadState("It is not such a membership.".to_owned())),
        }
        let room_version = (!has_version).then(|| self.version.clone());
        commit.append(self.stream(), RoomEvent { room_version, ..body });
        Ok(())
    }
}

impl RemoteMembership {
    /// Whether this event of somebody else ends the user's invite or knock. Without the room's
    /// state, this homeserver cannot judge whether its sender has the power. So it counts only from
    /// the homeserver that sent the invite, or through which the user knocked; and its auth events
    /// must name the invite or the knock, so that it is not about an earlier one.
    fn ends(
        &self,
        commit: &Commit<'_>,
        room: &Room,
        user_id: &UserId,
        event: &StoredEvent,
    ) -> bool {
        let at = |at| {
            let found = room.membership(user_id, at).filter(|(_, membership)| {
                matches!(membership, Membership::Invite | Membership::Knock)
            });
            found.and_then(|(offset, _)| commit.env.events.get(offset).ok().flatten())
        };
        let is_of = |event: &EventRef| {
            event.received.as_ref().is_some_and(|received| received.from == self.from)
        };
        let Some(ended) = at(Offset::MAX) else { return false };
        // Somebody else's invite does not go with the one that replaced it.
        let replaced = at(ended.offset.prev());
        event.sender.server_name() == self.from
            && is_of(&ended)
            && replaced.is_none_or(|replaced| is_of(&replaced))
            && event.auth_events.contains(&ended.event_id)
    }
}
