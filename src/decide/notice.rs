//! Server notices: messages of administrators to a user, in a room for that purpose (client-server
//! API, "Server Notices").

use ruma::{
    MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, UserId,
    events::{TimelineEventType, room::member::MembershipState},
};
use serde_json::json;

use super::{
    Commit, Env, Membership, NewEvent, Proposal, Refusal,
    account::no_account,
    create_room::{CreateRoom, DEFAULT_ROOM_VERSION, Preset},
    member_event::member_content,
    object,
};
use logcabin_read::events::to_raw;
use logcabin_record::{
    Offset, Stream,
    command::{AccountDataSet, NoticeRoom},
};

/// The tag that identifies the room to clients.
const TAG: &str = "m.server_notice";

/// Open the room for notices to a user: the existing one, or a new one.
#[derive(Clone, Debug)]
pub struct OpenNoticeRoom {
    /// The recipient.
    pub user_id: OwnedUserId,
    /// The sender of notices.
    pub sender: OwnedUserId,
    /// The id that a new room gets.
    pub room_id: OwnedRoomId,
    /// The name of a new room.
    pub name: String,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for OpenNoticeRoom {
    type Outcome = OwnedRoomId;

    // The user's stream, so that nobody gets two rooms.
    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<OwnedRoomId, Refusal> {
        let state = &commit.env.state;
        let standing = state.accounts.standing(&self.user_id).ok_or_else(no_account)?;
        if standing.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        if let Some(room_id) = state.notices.room_of(&self.user_id) {
            let room = state.rooms.get(&room_id);
            // The room of a previously configured sender is abandoned.
            if room.is_some_and(|room| room.is_joined(&self.sender, Offset::MAX)) {
                return Ok(room_id);
            }
        }
        let create = CreateRoom {
            power_levels: object(json!({ "users_default": -10 })),
            name: Some(self.name.clone()),
            // The invite is sent separately, because it also goes to users who block invites.
            ..CreateRoom::new(
                self.room_id.clone(),
                self.sender.clone(),
                DEFAULT_ROOM_VERSION,
                Preset::PrivateChat,
                self.ts,
            )
        };
        let room_id = create.decide(commit)?;
        let invite = invite(commit.env, &self.user_id, &self.sender, self.ts);
        commit.add_event(invite)?;
        let made = NoticeRoom { user_id: self.user_id.clone(), room_id: room_id.clone() };
        commit.append(self.stream(), made);
        // Not by `SetTag`, because a notice must reach a user whose quota of account data is used
        // up. The room is new, so there are no other tags to preserve.
        let tags = AccountDataSet {
            user_id: self.user_id.clone(),
            room_id: Some(room_id.clone()),
            event_type: "m.tag".to_owned(),
            content: to_raw(&json!({ "tags": { TAG: {} } })),
        };
        commit.append(self.stream(), tags);
        Ok(room_id)
    }
}

fn invite(
    env: &Env,
    user_id: &UserId,
    sender: &UserId,
    ts: MilliSecondsSinceUnixEpoch,
) -> NewEvent {
    let content = member_content(env, user_id, MembershipState::Invite, None);
    NewEvent::state(TimelineEventType::RoomMember, user_id.as_str(), content, sender, ts)
}

/// Invite a user again who has left the room of their notices.
#[derive(Clone, Debug)]
pub struct InviteAgain {
    pub room_id: OwnedRoomId,
    /// The recipient.
    pub user_id: OwnedUserId,
    /// The sender of notices.
    pub sender: OwnedUserId,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for InviteAgain {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let env = commit.env;
        let now = commit.room(&self.room_id)?.membership(env, &self.user_id)?;
        if !matches!(now, Some(Membership::Join | Membership::Invite)) {
            commit.add_event(invite(env, &self.user_id, &self.sender, self.ts))?;
        }
        Ok(())
    }
}
