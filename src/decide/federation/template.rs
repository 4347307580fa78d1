//! Member events for users of other homeservers to sign (server-server API, "Joining Rooms",
//! "Knocking upon a room", "Leaving Rooms").

use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, RoomId, RoomVersionId, UserId,
    events::{TimelineEventType, room::member::MembershipState},
};

use crate::{
    Env, Membership, NewEvent, Refusal, RoomDraft,
    member_event::{authorise_join, member_content, must_be_welcome, must_not_be_blocked},
    not_in_it,
};

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The room is not known.
    #[error("there is no such room here")]
    NoRoom,
    /// The other homeserver does not support this room version.
    #[error("the room has version `{0}`")]
    Version(RoomVersionId),
    /// The room's rules do not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The event with which `user_id` joins a room, knocks or leaves, as of now, for their homeserver,
/// which supports these room versions (`None`: any).
///
/// # Errors
/// When the user may not do that now.
pub fn template(
    env: &Env,
    room_id: &RoomId,
    user_id: &UserId,
    membership: MembershipState,
    versions: Option<&[RoomVersionId]>,
    ts: MilliSecondsSinceUnixEpoch,
) -> Result<(RoomVersionId, CanonicalJsonObject), TemplateError> {
    let room = env.state.rooms.get(room_id).ok_or(TemplateError::NoRoom)?;
    let version = room.version.clone();
    if versions.is_some_and(|versions| !versions.contains(&version)) {
        return Err(TemplateError::Version(version));
    }
    let draft = RoomDraft::of(room);
    let comes = matches!(membership, MembershipState::Join | MembershipState::Knock);
    if comes {
        must_not_be_blocked(env, &draft, user_id)?;
        must_be_welcome(env, &draft, user_id)?;
    }
    let mut content = member_content(env, user_id, membership.clone(), None);
    if membership == MembershipState::Join {
        may_join(env, &draft, user_id, &mut content)?;
    }
    let kind = TimelineEventType::RoomMember;
    let event = NewEvent::state(kind, user_id.as_str(), content, user_id, ts);
    Ok((version, draft.template(env, &event)?))
}

/// Names a local user who authorises the join, if one has to.
fn may_join(
    env: &Env,
    draft: &RoomDraft,
    user_id: &UserId,
    content: &mut CanonicalJsonObject,
) -> Result<(), Refusal> {
    use logcabin_state::Membership::{Ban, Invite, Join};
    match draft.membership(env, user_id)? {
        Some(Join | Invite | Ban) => Ok(()),
        _ => authorise_join(env, draft, user_id, content),
    }
}

/// Whether `user_id` meets the conditions of a restricted room, so that this homeserver may sign
/// their join in the name of one of its users (server-server API, "Restricted rooms").
///
/// # Errors
/// When the user does not.
pub fn may_authorise(env: &Env, room_id: &RoomId, user_id: &UserId) -> Result<(), TemplateError> {
    let room = env.state.rooms.get(room_id).ok_or(TemplateError::NoRoom)?;
    let draft = RoomDraft::of(room);
    let mut content = CanonicalJsonObject::new();
    may_join(env, &draft, user_id, &mut content)?;
    if content.is_empty() {
        let why = "The user is in none of the rooms whose members may join.";
        return Err(Refusal::Forbidden(why.to_owned()).into());
    }
    Ok(())
}

/// Refuses a user of another homeserver whom this server's policy lists keep out of the room.
///
/// # Errors
/// When they do.
pub fn may_enter(env: &Env, room_id: &RoomId, user_id: &UserId) -> Result<(), TemplateError> {
    let room = env.state.rooms.get(room_id).ok_or(TemplateError::NoRoom)?;
    Ok(must_be_welcome(env, &RoomDraft::of(room), user_id)?)
}

/// The event with which `inviter` of this homeserver invites a user of another one. `content` is
/// what it says besides.
///
/// # Errors
/// When the inviter may not do that now.
pub fn invitation(
    env: &Env,
    room_id: &RoomId,
    inviter: &UserId,
    target: &UserId,
    mut content: CanonicalJsonObject,
    ts: MilliSecondsSinceUnixEpoch,
) -> Result<(RoomVersionId, CanonicalJsonObject), TemplateError> {
    let room = env.state.rooms.get(room_id).ok_or(TemplateError::NoRoom)?;
    let version = room.version.clone();
    let draft = RoomDraft::of(room);
    if draft.membership(env, inviter)? != Some(Membership::Join) {
        return Err(not_in_it().into());
    }
    must_not_be_blocked(env, &draft, inviter)?;
    if draft.membership(env, target)? == Some(Membership::Join) {
        return Err(Refusal::Forbidden("They are in this room already.".to_owned()).into());
    }
    content.extend(member_content(env, target, MembershipState::Invite, None));
    let kind = TimelineEventType::RoomMember;
    let event = NewEvent::state(kind, target.as_str(), content, inviter, ts);
    Ok((version, draft.template(env, &event)?))
}
