//! Third-party invites that become invites across homeservers (server-server API, "Third-party
//! invites").

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, RoomId, RoomVersionId,
    UserId,
    events::{StateEventType, TimelineEventType},
};

use super::template::TemplateError;
use crate::{
    Env, Membership, NewEvent, Refusal, RoomDraft, is_local,
    member_event::{must_not_be_blocked, must_take_invites},
    membership::address_invite_content,
};

/// The invite of `user_id` that follows from what an identity server has signed, in the name of the
/// user who invited the address. That user belongs to this homeserver if `user_id` does not, and to
/// another one otherwise. `None` if `user_id` is in the room or is invited.
///
/// # Errors
/// When there is no such invitation, the room does not allow it, or the user accepts no invites.
pub fn address_invite(
    env: &Env,
    room_id: &RoomId,
    user_id: &UserId,
    signed: &CanonicalJsonObject,
    ts: MilliSecondsSinceUnixEpoch,
) -> Result<Option<(RoomVersionId, CanonicalJsonObject)>, TemplateError> {
    let room = env.state.rooms.get(room_id).ok_or(TemplateError::NoRoom)?;
    let version = room.version.clone();
    let draft = RoomDraft::of(room);
    must_not_be_blocked(env, &draft, user_id)?;
    let token = signed.get("token").and_then(CanonicalJsonValue::as_str).unwrap_or_default();
    let invite = draft.state_event(env, &StateEventType::RoomThirdPartyInvite, token)?;
    let is_own_user = is_local(&env.server, user_id);
    let invite = invite.filter(|invite| is_own_user != is_local(&env.server, &invite.sender));
    let invite = invite.ok_or_else(|| {
        Refusal::Forbidden("There is no such invitation of an address.".to_owned())
    })?;
    let now = draft.membership(env, user_id)?;
    if matches!(now, Some(Membership::Join | Membership::Invite)) {
        return Ok(None);
    }
    if is_own_user {
        if !env.state.accounts.contains(user_id) {
            return Err(Refusal::NotFound("There is no such user.".to_owned()).into());
        }
        must_take_invites(env, Some(room_id), user_id, &invite.sender, now)?;
    }
    let content = address_invite_content(env, user_id, &invite, signed);
    let kind = TimelineEventType::RoomMember;
    let event = NewEvent::state(kind, user_id.as_str(), content, &invite.sender, ts);
    Ok(Some((version, draft.template(env, &event)?)))
}
