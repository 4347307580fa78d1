//! The rules of member events: who may join, be invited, knock and leave, and what the content of
//! such an event says.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, RoomId, UserId,
    events::{StateEventType, room::member::MembershipState},
};

use super::{Env, Membership, Refusal, RoomDraft, is_local};
use logcabin_record::Offset;

/// Refuses a guest if the room does not admit guests (client-server API, "Guest Access").
pub(super) fn must_take_guests(
    env: &Env,
    room: &RoomDraft,
    user_id: &UserId,
) -> Result<(), Refusal> {
    if !env.state.accounts.is_guest(user_id) {
        return Ok(());
    }
    let access = room.shown_content(env, &StateEventType::RoomGuestAccess, "")?;
    let access = access.as_ref().and_then(|content| content.get("guest_access"));
    if access.and_then(CanonicalJsonValue::as_str) == Some("can_join") {
        Ok(())
    } else {
        Err(Refusal::GuestAccessForbidden)
    }
}

/// Checks the quota of rooms for a user who is about to join or knock. `now` is their present
/// membership.
pub(super) fn may_come(
    env: &Env,
    user_id: &UserId,
    now: Option<Membership>,
) -> Result<(), Refusal> {
    // A knock already counts.
    if matches!(now, Some(Membership::Join | Membership::Knock)) {
        return Ok(());
    }
    env.quotas.room(&env.state, user_id)
}

/// Refuses an invite of a user who blocks invites (client-server API, "Invite permission"), is
/// deactivated, or has used up the quota of pending invites. `now` is their membership before the
/// invite.
pub(super) fn must_take_invites(
    env: &Env,
    user_id: &UserId,
    inviter: &UserId,
    now: Option<Membership>,
) -> Result<(), Refusal> {
    if env.state.accounts.is_deactivated(user_id) {
        return Err(Refusal::Forbidden("Their account has been deactivated.".to_owned()));
    }
    if env.events.blocks_invites(&env.state, user_id)? {
        return Err(Refusal::InviteBlocked(user_id.to_owned()));
    }
    if now == Some(Membership::Invite) {
        return Ok(());
    }
    env.quotas.invite(&env.state, &env.server.name, user_id, inviter)
}

/// The content of the previous member event with the profile in `content`. Members about the join
/// itself are left out.
pub(super) fn with_the_rest_of(
    mut before: CanonicalJsonObject,
    content: CanonicalJsonObject,
) -> CanonicalJsonObject {
    const NOT_KEPT: [&str; 5] =
        [AUTHORISED_VIA, "reason", "third_party_invite", "displayname", "avatar_url"];
    before.retain(|key, _| !NOT_KEPT.contains(&key.as_str()));
    before.extend(content);
    before
}

/// The key that names the user whose power authorises a join to a restricted room.
const AUTHORISED_VIA: &str = "join_authorised_via_users_server";

/// For a restricted room: adds a user who may invite to the content of `target`'s join, if the
/// target is in one of the rooms that the join rules name (client-server API, "Restricted rooms").
pub(super) fn authorise_join(
    env: &Env,
    room: &RoomDraft,
    target: &UserId,
    content: &mut CanonicalJsonObject,
) -> Result<(), Refusal> {
    #[derive(serde::Deserialize)]
    struct Rules {
        join_rule: String,
        #[serde(default)]
        allow: Vec<serde_json::Value>,
    }
    if !room.rules().authorization.restricted_join_rule {
        return Ok(());
    }
    let rules = room.state_event(env, &StateEventType::RoomJoinRules, "")?;
    let Some(rules) = rules.and_then(|rules| rules.content_as::<Rules>().ok()) else {
        return Ok(());
    };
    if !matches!(rules.join_rule.as_str(), "restricted" | "knock_restricted") {
        return Ok(());
    }
    let rooms = rules.allow.iter().filter(|condition| condition["type"] == "m.room_membership");
    let rooms =
        rooms.filter_map(|condition| <&RoomId>::try_from(condition["room_id"].as_str()?).ok());
    let rooms: Vec<_> = rooms.map(|room_id| env.state.rooms.get(room_id)).collect();
    if rooms.iter().flatten().any(|other| other.is_joined(target, Offset::MAX)) {
        let authoriser = room.someone_who_may_invite(env)?.ok_or(Refusal::UnableToGrantJoin)?;
        let authoriser = CanonicalJsonValue::String(authoriser.to_string());
        content.insert(AUTHORISED_VIA.to_owned(), authoriser);
    } else if !rooms.is_empty() && rooms.iter().all(Option::is_none) {
        return Err(Refusal::UnableToAuthoriseJoin);
    }
    Ok(())
}

/// Checks the parts of a client's member event content for which the server is responsible: who
/// authorises a join to a restricted room.
pub(super) fn vet_content(
    env: &Env,
    room: &RoomDraft,
    sender: &UserId,
    target: &UserId,
    content: &mut CanonicalJsonObject,
) -> Result<(), Refusal> {
    content.remove(AUTHORISED_VIA);
    let membership = content.get("membership").and_then(CanonicalJsonValue::as_str);
    match membership {
        Some("join") if sender == target => {
            let now = room.membership(env, target)?;
            if now != Some(Membership::Join) {
                must_not_be_blocked(env, room)?;
                must_take_guests(env, room, target)?;
                may_come(env, target, now)?;
            }
            if !matches!(now, Some(Membership::Join | Membership::Invite | Membership::Ban)) {
                authorise_join(env, room, target, content)?;
            }
            Ok(())
        }
        Some("invite") if !is_local(&env.server, target) => Err(Refusal::Forbidden(
            "A user of another server cannot be invited by this request.".to_owned(),
        )),
        Some("knock") => {
            must_not_be_blocked(env, room)?;
            may_come(env, target, room.membership(env, target)?)
        }
        Some("invite") => must_not_be_blocked(env, room),
        Some("leave") if sender == target => {
            match (room.membership(env, target)?, room.room_id()) {
                (Some(Membership::Invite), Some(room_id)) => may_reject(env, room_id, target),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// The content of a member event, with the profile of a local user who joins, is invited or
/// knocks.
pub fn member_content(
    env: &Env,
    user_id: &UserId,
    membership: MembershipState,
    reason: Option<&str>,
) -> CanonicalJsonObject {
    let mut content = CanonicalJsonObject::new();
    let with_profile = !matches!(membership, MembershipState::Leave | MembershipState::Ban);
    if with_profile
        && is_local(&env.server, user_id)
        && let Some(account) = env.state.accounts.get(user_id)
    {
        let account = account.read();
        for field in ["displayname", "avatar_url"] {
            if let Some(value) = account.profile_field(field)
                && let Some(text) = value.as_str()
            {
                content.insert(field.to_owned(), CanonicalJsonValue::String(text.to_owned()));
            }
        }
    }
    content.insert("membership".to_owned(), CanonicalJsonValue::String(membership.to_string()));
    if let Some(reason) = reason {
        content.insert("reason".to_owned(), CanonicalJsonValue::String(reason.to_owned()));
    }
    content
}

/// Refuses joins, knocks and invites for a blocked room.
pub(super) fn must_not_be_blocked(env: &Env, room: &RoomDraft) -> Result<(), Refusal> {
    let blocked = room.room_id().and_then(|room_id| env.state.closures.blocked(room_id));
    match blocked {
        None => Ok(()),
        Some(_) => Err(Refusal::Forbidden("This room has been blocked on this server.".to_owned())),
    }
}

/// Refuses to reject the invite to the room of server notices. Deactivated users leave it
/// nevertheless, and so does everyone when the room is shut down.
pub(super) fn may_reject(env: &Env, room_id: &RoomId, user_id: &UserId) -> Result<(), Refusal> {
    let state = &env.state;
    let is_held = state.notices.is_room_of(user_id, room_id)
        && !state.accounts.is_deactivated(user_id)
        && !state.closures.is_closing(room_id);
    if is_held { Err(Refusal::CannotLeaveServerNoticeRoom) } else { Ok(()) }
}
