//! Memberships.

use ruma::{
    CanonicalJsonObject, OwnedMxcUri, OwnedRoomId, OwnedUserId, RoomId, UserId,
    api::client::{
        knock::knock_room::v3 as knock_room,
        membership::{
            ThirdPartySigned,
            ban_user::v3 as ban_user,
            forget_room::v3 as forget_room,
            get_member_events::v3 as get_member_events,
            invite_user::v3::{self as invite_user, InvitationRecipient},
            join_room_by_id::v3 as join_room_by_id,
            join_room_by_id_or_alias::v3 as join_room_by_id_or_alias,
            joined_members::v3::{self as joined_members_v3, RoomMember},
            joined_rooms::v3 as joined_rooms_v3,
            kick_user::v3 as kick_user,
            leave_room::v3 as leave_room,
            unban_user::v3 as unban_user,
        },
    },
    events::StateEventType,
};
use serde::{Deserialize, Serialize};

use super::{
    address_invite::Addressee,
    reading::readable_as_of,
    remote_rooms::{RoomReference, invite_content},
};
use crate::{
    api::{answer::json, appservice::services as appservice, server::Server},
    http::{ApiError, Cx, ErrorCode, Json},
};
use logcabin_decide::{
    canonical,
    membership::{Change, ChangeMembership, ForgetRoom, LeaveAndForget, must_be_able_to_invite},
};
use logcabin_read::events::{ClientEvent, EventForm, as_shown, to_raw};
use logcabin_record::Offset;
use logcabin_service::federation::MembershipChange;
use logcabin_state::Membership;

async fn change(cx: &Cx<Server>, change: ChangeMembership) -> Result<(), ApiError> {
    drop(cx.propose(change).await?.into_inner());
    Ok(())
}

/// A change by the caller.
fn by_caller(
    cx: &Cx<Server>,
    room_id: OwnedRoomId,
    target: OwnedUserId,
    change: Change,
    reason: Option<String>,
) -> ChangeMembership {
    let sender = cx.caller.user_id.clone();
    ChangeMembership {
        reason,
        ..ChangeMembership::new(room_id, sender, target, change, cx.app.now())
    }
}

/// Whether the caller may invite this user, who is not elsewhere.
///
/// Anyone who registers a name gets the invites to it. So a name that does not exist cannot be
/// invited but application services, some of which invite their owner before the owner registers.
pub(super) async fn check_invitee(cx: &Cx<Server>, user_id: &UserId) -> Result<(), ApiError> {
    if user_id.server_name() != cx.app.config.server.name {
        return Err(ApiError::forbidden(
            "This server does not federate: it cannot reach other servers' users.",
        ));
    }
    // The service whose user it may be is asked in any case.
    let exists = appservice::user_exists(&cx.app.engine, &cx.app.outside, user_id).await?;
    if !exists && cx.caller.service.is_none() {
        return Err(ApiError::not_found("There is no such user."));
    }
    Ok(())
}

fn signed(signed: Option<&ThirdPartySigned>) -> Result<Option<CanonicalJsonObject>, ApiError> {
    Ok(signed.map(|signed| canonical(&to_raw(signed))).transpose()?)
}

pub(super) async fn join(
    mut cx: Cx<Server>,
    request: join_room_by_id::Request,
) -> Result<join_room_by_id::Response, ApiError> {
    // Other homeservers may take their time.
    cx.forget_request();
    let signed = signed(request.third_party_signed.as_ref())?;
    let place = cx.place((&*request.room_id).into(), Vec::new()).await?;
    enter(&cx, place, request.reason, signed).await?;
    Ok(join_room_by_id::Response::new(request.room_id))
}

pub(super) async fn join_by_id_or_alias(
    mut cx: Cx<Server>,
    request: join_room_by_id_or_alias::Request,
) -> Result<join_room_by_id_or_alias::Response, ApiError> {
    // Other homeservers may take their time.
    cx.forget_request();
    let signed = signed(request.third_party_signed.as_ref())?;
    let place = cx.place(&request.room_id_or_alias, request.via).await?;
    let room_id = place.room_id.clone();
    enter(&cx, place, request.reason, signed).await?;
    Ok(join_room_by_id_or_alias::Response::new(room_id))
}

/// Joins a room, by way of another homeserver if this one is not in it, or if nobody on this one
/// may authorise a join that somebody has to authorise.
async fn enter(
    cx: &Cx<Server>,
    place: RoomReference,
    reason: Option<String>,
    signed: Option<CanonicalJsonObject>,
) -> Result<(), ApiError> {
    if cx.is_remote_room(&place.room_id) {
        return cx.change_membership_elsewhere(MembershipChange::Join, place, reason).await;
    }
    let (room_id, user_id) = (place.room_id.clone(), cx.caller.user_id.clone());
    let join = by_caller(cx, room_id, user_id, Change::Join, reason.clone());
    match change(cx, ChangeMembership { third_party_signed: signed, ..join }).await {
        Err(error) if is_for_others(&error) && cx.has_others(&place.room_id) => {
            cx.change_membership_elsewhere(MembershipChange::Join, place, reason).await
        }
        done => done,
    }
}

/// Whether another homeserver may be able to authorise a join that this one cannot.
fn is_for_others(error: &ApiError) -> bool {
    matches!(error.code(), ErrorCode::UnableToAuthoriseJoin | ErrorCode::UnableToGrantJoin)
}

pub(super) async fn knock(
    mut cx: Cx<Server>,
    request: knock_room::Request,
) -> Result<knock_room::Response, ApiError> {
    // Other homeservers may take their time.
    cx.forget_request();
    let place = cx.place(&request.room_id_or_alias, request.via).await?;
    let room_id = place.room_id.clone();
    if cx.is_remote_room(&room_id) {
        cx.change_membership_elsewhere(MembershipChange::Knock, place, request.reason).await?;
        return Ok(knock_room::Response::new(room_id));
    }
    let user_id = cx.caller.user_id.clone();
    let knock = by_caller(&cx, room_id.clone(), user_id, Change::Knock, request.reason);
    change(&cx, knock).await?;
    Ok(knock_room::Response::new(room_id))
}

/// Whether the caller is invited or has knocked. Who has left a room need not leave it again: the
/// second leave could overtake what they said before the first.
fn is_at_the_door(cx: &Cx<Server>, room_id: &RoomId) -> bool {
    let room = cx.app.engine.state().rooms.get(room_id);
    let own = room.and_then(|room| room.membership(&cx.caller.user_id, Offset::MAX));
    own.is_some_and(|(_, is)| matches!(is, Membership::Invite | Membership::Knock))
}

pub(super) async fn leave(
    mut cx: Cx<Server>,
    request: leave_room::Request,
) -> Result<leave_room::Response, ApiError> {
    // Other homeservers may take their time.
    cx.forget_request();
    let user_id = cx.caller.user_id.clone();
    if cx.is_remote_room(&request.room_id) && is_at_the_door(&cx, &request.room_id) {
        let place = cx.place((&*request.room_id).into(), Vec::new()).await?;
        cx.change_membership_elsewhere(MembershipChange::Leave, place, request.reason).await?;
        if cx.app.config.accounts.forget_on_leave {
            cx.propose(ForgetRoom { user_id, room_id: request.room_id }).await?.into_inner();
        }
        return Ok(leave_room::Response::new());
    }
    let leave = by_caller(&cx, request.room_id, user_id, Change::Leave, request.reason);
    let left = if cx.app.config.accounts.forget_on_leave {
        cx.propose(LeaveAndForget(leave)).await?
    } else {
        cx.propose(leave).await?
    };
    drop(left.into_inner());
    Ok(leave_room::Response::new())
}

pub(super) async fn forget(
    cx: Cx<Server>,
    request: forget_room::Request,
) -> Result<forget_room::Response, ApiError> {
    let proposal = ForgetRoom { user_id: cx.caller.user_id.clone(), room_id: request.room_id };
    cx.propose(proposal).await?.into_inner();
    Ok(forget_room::Response::new())
}

pub(super) async fn invite(
    mut cx: Cx<Server>,
    request: invite_user::Request,
) -> Result<invite_user::Response, ApiError> {
    // Other homeservers may take their time.
    cx.forget_request();
    let (target, reason) = match request.recipient {
        InvitationRecipient::UserId(recipient) => (recipient.user_id, recipient.reason),
        InvitationRecipient::ThirdPartyId(invite) => {
            let addressee = Addressee::read(&cx.app, &invite)?;
            must_be_able_to_invite(&cx.app.engine.env(), &request.room_id, &cx.caller.user_id)?;
            match addressee.user(&cx.app).await? {
                Some(user_id) => (user_id, None),
                None => {
                    addressee.invite(&cx, &request.room_id).await?;
                    return Ok(invite_user::Response::new());
                }
            }
        }
        _ => return Err(ApiError::bad_json("The request names nobody to invite.")),
    };
    if cx.is_remote(target.server_name()) {
        let content = invite_content(reason, false);
        cx.invite_elsewhere(request.room_id, target, content).await?;
        return Ok(invite_user::Response::new());
    }
    check_invitee(&cx, &target).await?;
    change(&cx, by_caller(&cx, request.room_id, target, Change::Invite, reason)).await?;
    Ok(invite_user::Response::new())
}

pub(super) async fn kick(
    cx: Cx<Server>,
    request: kick_user::Request,
) -> Result<kick_user::Response, ApiError> {
    let kick_user::Request { room_id, user_id, reason, redact_events, .. } = request;
    let kick = by_caller(&cx, room_id, user_id, Change::Kick, reason);
    change(&cx, ChangeMembership { redact_events, ..kick }).await?;
    Ok(kick_user::Response::new())
}

pub(super) async fn ban(
    cx: Cx<Server>,
    request: ban_user::Request,
) -> Result<ban_user::Response, ApiError> {
    let ban_user::Request { room_id, user_id, reason, redact_events, .. } = request;
    let ban = by_caller(&cx, room_id, user_id, Change::Ban, reason);
    change(&cx, ChangeMembership { redact_events, ..ban }).await?;
    Ok(ban_user::Response::new())
}

pub(super) async fn unban(
    cx: Cx<Server>,
    request: unban_user::Request,
) -> Result<unban_user::Response, ApiError> {
    let unban_user::Request { room_id, user_id, reason, .. } = request;
    change(&cx, by_caller(&cx, room_id, user_id, Change::Unban, reason)).await?;
    Ok(unban_user::Response::new())
}

pub(super) async fn joined_rooms(
    cx: Cx<Server>,
    _: joined_rooms_v3::Request,
) -> Result<joined_rooms_v3::Response, ApiError> {
    let view = cx.view();
    let parts = view.state.memberships.of(view.user_id(), view.at());
    let joined = parts.into_iter().filter(|part| part.membership == Membership::Join);
    Ok(joined_rooms_v3::Response::new(joined.map(|part| part.room_id).collect()))
}

pub(super) async fn joined_members(
    cx: Cx<Server>,
    request: joined_members_v3::Request,
) -> Result<joined_members_v3::Response, ApiError> {
    #[derive(Deserialize)]
    struct Profile {
        #[serde(default)]
        displayname: Option<String>,
        #[serde(default)]
        avatar_url: Option<OwnedMxcUri>,
    }
    let view = cx.view_as_of()?;
    let room = cx.app.room(&request.room_id)?;
    if !room.is_joined(view.user_id(), view.at()) {
        return Err(ApiError::forbidden("You are not in this room."));
    }
    cx.at_length(|| {
        let mut joined = std::collections::BTreeMap::new();
        for (user_id, offset) in room.members(Membership::Join, view.at()) {
            let mut member = RoomMember::new();
            let event = view.events.get(offset)?.map(|event| as_shown(&room, event, view.at()));
            if let Some(profile) = event.and_then(|event| event.content_as::<Profile>().ok()) {
                member.display_name = profile.displayname;
                member.avatar_url = profile.avatar_url;
            }
            joined.insert(user_id, member);
        }
        Ok(joined_members_v3::Response::new(joined))
    })
    .await
}

pub(super) async fn members(
    cx: Cx<Server>,
    request: get_member_events::Request,
) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response {
        chunk: Vec<ClientEvent>,
    }
    let room = cx.app.room(&request.room_id)?;
    let view = cx.view_as_of()?;
    let latest = readable_as_of(&view, &room)?;
    let at: Offset = match &request.at {
        Some(token) if cx.moment()?.is_none() => cx.app.position_in(&room, token)?.min(latest),
        _ => latest,
    };
    if at < latest && !view.sees_state_at(&room, at)? {
        return Err(ApiError::forbidden("You may not see who was in this room at that point."));
    }
    let mut offsets = Vec::new();
    for membership in [
        Membership::Join,
        Membership::Invite,
        Membership::Knock,
        Membership::Leave,
        Membership::Ban,
    ] {
        let is = |asked: &ruma::events::room::member::MembershipState| {
            Membership::from_ruma(asked) == Some(membership)
        };
        // If both are given, one match is enough.
        let wanted = match (&request.membership, &request.not_membership) {
            (None, None) => true,
            (Some(wanted), None) => is(wanted),
            (None, Some(unwanted)) => !is(unwanted),
            (Some(wanted), Some(unwanted)) => is(wanted) || !is(unwanted),
        };
        if wanted {
            let members = room.members(membership, at);
            offsets.extend(members.into_iter().filter_map(|(user_id, _)| {
                room.state_event(&StateEventType::RoomMember, user_id.as_str(), at)
            }));
        }
    }
    offsets.sort_unstable();
    cx.at_length(|| {
        let events = view.events.get_all(&offsets)?;
        json(&Response { chunk: view.client_events(&room, &events, &EventForm::STATE)? })
    })
    .await
}
