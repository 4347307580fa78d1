//! The rules of member events: who may join, be invited, knock and leave, and what the content of
//! such an event says.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, RoomId, UserId,
    events::{StateEventType, room::member::MembershipState},
};

use super::{Env, Membership, Refusal, RoomDraft, is_local};
use logcabin_read::{
    invites::{InviteRule, invite_rule, is_of_refused_stranger},
    policy_lists::{KeptBy, Subject},
};
use logcabin_record::{Offset, command::PolicyArea};

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

/// Refuses an invite of a user who blocks such invites (client-server API, "Invite permission", and
/// MSC4155), is deactivated, or has used up the quota of pending invites, and an invite that the
/// server's rules are against. `now` is their membership before the invite.
pub(super) fn must_take_invites(
    env: &Env,
    room_id: Option<&RoomId>,
    user_id: &UserId,
    inviter: &UserId,
    now: Option<Membership>,
) -> Result<(), Refusal> {
    if env.state.accounts.is_deactivated(user_id) {
        return Err(Refusal::Forbidden("Their account has been deactivated.".to_owned()));
    }
    if env.state.accounts.standing(user_id).is_some_and(|standing| standing.waiting.is_some()) {
        return Err(Refusal::Forbidden("Their account awaits approval.".to_owned()));
    }
    // Whoever knocks asks to be invited.
    let was_asked_for = now == Some(Membership::Knock);
    if !was_asked_for
        && invite_rule(&env.events, &env.state, user_id, inviter)? == InviteRule::Block
    {
        return Err(Refusal::InviteBlocked(user_id.to_owned()));
    }
    let subject = Subject { room: room_id, by: Some(user_id), ..Subject::of_user(inviter) };
    must_pass(env, PolicyArea::Invites, subject)?;
    let own = &env.server.name;
    if !was_asked_for && is_of_refused_stranger(&env.events, &env.state, own, user_id, inviter) {
        let by = KeptBy::Setting("invites.strangers");
        let (kept_away, at) = (&env.events.policy_lists().kept_away, env.state.applied());
        kept_away.note(PolicyArea::Invites.name(), inviter.as_str(), &by, true, at);
        return Err(Refusal::AgainstPolicy(OF_STRANGER));
    }
    if now == Some(Membership::Invite) {
        return Ok(());
    }
    env.quotas.invite(&env.state, &env.server.name, user_id, inviter)
}

/// Refuses what a rule of a policy list is against.
pub(super) fn must_pass(env: &Env, area: PolicyArea, subject: Subject<'_>) -> Result<(), Refusal> {
    let lists = env.events.policy_lists();
    match lists.refuses(&env.state, area, subject) {
        None => Ok(()),
        Some(_) => Err(Refusal::AgainstPolicy(AGAINST_POLICY)),
    }
}

const OF_STRANGER: &str =
    "Users of this server are invited only by people with whom they share a room.";

const AGAINST_POLICY: &str = "A moderation policy of this server does not allow this.";

/// The type of the state event by which a room asks for the rules of this server's policy lists to
/// be applied to joins and knocks.
const ASKS_FOR_POLICIES: &str = "org.logcabin.policy_lists";

/// Refuses a user whom a policy list bans, if the room has asked for that.
pub(super) fn must_be_welcome(
    env: &Env,
    room: &RoomDraft,
    user_id: &UserId,
) -> Result<(), Refusal> {
    if env.state.policy_lists.is_empty() {
        return Ok(());
    }
    let asks = room.shown_content(env, &StateEventType::from(ASKS_FOR_POLICIES), "")?;
    let enabled = asks.as_ref().and_then(|content| content.get("enabled"));
    if enabled != Some(&CanonicalJsonValue::Bool(true)) {
        return Ok(());
    }
    let room = room.room_id().map(|room_id| &**room_id);
    let subject = Subject { room, ..Subject::of_user(user_id) };
    must_pass(env, PolicyArea::Joins, subject)
}

/// Refuses a room that is blocked, or that a policy list bans, unless the user is spared.
///
/// # Errors
/// When it is.
pub fn may_be_entered(env: &Env, room_id: &RoomId, user_id: &UserId) -> Result<(), Refusal> {
    if env.state.closures.blocked(room_id).is_some() {
        return Err(Refusal::Forbidden("This room has been blocked on this server.".to_owned()));
    }
    let subject = Subject { by: Some(user_id), ..Subject::default().in_room(room_id) };
    must_pass(env, PolicyArea::Joins, subject)
}

/// Refuses an invite that comes with a room's events, as [`must_take_invites`].
///
/// # Errors
/// When the user, or a rule of this server, is against it.
pub fn may_be_invited(
    env: &Env,
    room_id: &RoomId,
    user_id: &UserId,
    inviter: &UserId,
) -> Result<(), Refusal> {
    must_take_invites(env, Some(room_id), user_id, inviter, Some(Membership::Invite))
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
                must_not_be_blocked(env, room, target)?;
                must_take_guests(env, room, target)?;
                must_be_welcome(env, room, target)?;
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
            must_not_be_blocked(env, room, target)?;
            must_be_welcome(env, room, target)?;
            may_come(env, target, room.membership(env, target)?)
        }
        Some("invite") => must_not_be_blocked(env, room, sender),
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

/// Refuses joins, knocks and invites for a room that is blocked, or that a policy list bans.
pub(super) fn must_not_be_blocked(
    env: &Env,
    room: &RoomDraft,
    user_id: &UserId,
) -> Result<(), Refusal> {
    room.room_id().map_or(Ok(()), |room_id| may_be_entered(env, room_id, user_id))
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
