//! Users of other homeservers join local rooms, knock and leave (server-server API, "Joining
//! Rooms", "Knocking upon a room", "Leaving Rooms (Rejecting Invites)").

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, RoomId, RoomVersionId, ServerName, UserId,
    api::federation::membership::{
        RawStrippedState, create_join_event::v2 as create_join_event,
        create_knock_event::v1 as create_knock_event, create_leave_event::v2 as create_leave_event,
        prepare_join_event::v1 as prepare_join_event,
        prepare_knock_event::v1 as prepare_knock_event,
        prepare_leave_event::v1 as prepare_leave_event,
    },
    events::room::member::MembershipState,
};
use serde_json::value::RawValue;

use super::events::ServerView;
use crate::{
    api::server::Server,
    http::{ApiError, Cx, ErrorCode, Homeserver},
};
use logcabin_decide::federation::{TemplateError, may_authorise, may_enter, template};
use logcabin_engine::Engine;
use logcabin_read::{events::EventRef, sync::heroes};
use logcabin_record::lax_object::LaxObject;
use logcabin_service::federation::{Pdu, PduError};

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::NoRoom => Self::not_found("This server is not in the room."),
            TemplateError::Version(room_version) => Self::new(
                ErrorCode::IncompatibleRoomVersion { room_version },
                "Your server does not support the version of this room.",
            ),
            TemplateError::Refused(refusal) => refusal.into(),
        }
    }
}

impl From<PduError> for ApiError {
    fn from(error: PduError) -> Self {
        match error {
            PduError::Form(_) | PduError::OtherEvent => {
                Self::bad_json("This is not the expected event.").with_cause(error)
            }
            PduError::Version(room_version) => Self::new(
                ErrorCode::IncompatibleRoomVersion { room_version },
                "This server does not support the version of the room.",
            ),
            PduError::NotInRoom => Self::forbidden("Your server is not in this room."),
            PduError::NoRoom => Self::not_found("This server is not in the room."),
            PduError::Taken => Self::forbidden("Another event has the id of this one."),
            PduError::AccessControl => Self::forbidden("This room denies your server."),
            PduError::Key(_) | PduError::Late | PduError::Signatures(_) | PduError::Altered => {
                Self::forbidden("The event's signatures are not valid.").with_cause(error)
            }
            PduError::Missing => {
                Self::forbidden("Events that this one depends on are missing here.")
            }
            PduError::NotRecorded(error) => error.into(),
        }
    }
}

/// Accepts only a user of the requesting homeserver.
pub(super) fn must_be_of(user_id: &UserId, server: &ServerName) -> Result<(), ApiError> {
    if user_id.server_name() == server {
        Ok(())
    } else {
        Err(ApiError::forbidden("The user is not one of your server."))
    }
}

fn make(
    cx: &Cx<Server, Homeserver>,
    room_id: &RoomId,
    user_id: &UserId,
    membership: MembershipState,
    versions: Option<&[RoomVersionId]>,
) -> Result<(RoomVersionId, Box<RawValue>), ApiError> {
    let Homeserver(server) = &cx.caller;
    must_be_of(user_id, server)?;
    ServerView::at_all(&cx.app.engine, room_id, server)?;
    let (env, now) = (cx.app.engine.env(), cx.app.engine.clock().timestamp());
    let (version, event) = template(&env, room_id, user_id, membership, versions, now)?;
    let event = serde_json::value::to_raw_value(&event).map_err(ApiError::internal)?;
    Ok((version, event))
}

pub(super) async fn make_join(
    cx: Cx<Server, Homeserver>,
    request: prepare_join_event::Request,
) -> Result<prepare_join_event::Response, ApiError> {
    let prepare_join_event::Request { room_id, user_id, ver, .. } = request;
    let (version, event) =
        cx.at_length(|| make(&cx, &room_id, &user_id, MembershipState::Join, Some(&ver))).await?;
    let mut response = prepare_join_event::Response::new(event);
    response.room_version = Some(version);
    Ok(response)
}

pub(super) async fn make_knock(
    cx: Cx<Server, Homeserver>,
    request: prepare_knock_event::Request,
) -> Result<prepare_knock_event::Response, ApiError> {
    let prepare_knock_event::Request { room_id, user_id, ver, .. } = request;
    let (version, event) =
        cx.at_length(|| make(&cx, &room_id, &user_id, MembershipState::Knock, Some(&ver))).await?;
    Ok(prepare_knock_event::Response::new(version, event))
}

pub(super) async fn make_leave(
    cx: Cx<Server, Homeserver>,
    request: prepare_leave_event::Request,
) -> Result<prepare_leave_event::Response, ApiError> {
    let prepare_leave_event::Request { room_id, user_id, .. } = request;
    let (version, event) =
        cx.at_length(|| make(&cx, &room_id, &user_id, MembershipState::Leave, None)).await?;
    Ok(prepare_leave_event::Response::new(Some(version), event))
}

/// The event of a membership, as it was sent.
struct Sent<'a> {
    look: ServerView<'a>,
    event: EventRef,
}

async fn send<'a>(
    cx: &'a Cx<Server, Homeserver>,
    room_id: &RoomId,
    event_id: &EventId,
    pdu: &RawValue,
    membership: MembershipState,
) -> Result<Sent<'a>, ApiError> {
    let Homeserver(server) = &cx.caller;
    let app = &*cx.app;
    let look = ServerView::at_all(&app.engine, room_id, server)?;
    let mut object = Pdu::object(pdu)?;
    if Pdu::room_of(&object)? != *room_id {
        return Err(PduError::OtherEvent.into());
    }
    let user_id = member(&object, &membership).ok_or(PduError::OtherEvent)?;
    must_be_of(&user_id, server)?;
    if membership != MembershipState::Leave {
        may_enter(&app.engine.env(), room_id, &user_id)?;
    }
    let receiving = app.receiving()?;
    let is_knock = membership == MembershipState::Knock;
    let admitted = receiving.admit_member(&look.room, server, &user_id, is_knock);
    admitted.map_err(ApiError::limit_exceeded)?;
    if membership == MembershipState::Join {
        authorise(&app.engine, room_id, &user_id, &mut object, &look)?;
    }
    let pdu = Pdu::in_room(&look.room, object)?;
    if pdu.event_id != event_id {
        return Err(PduError::OtherEvent.into());
    }
    // It is passed on, and nobody takes it without its content from this homeserver.
    if !pdu.object.has_own_content() {
        return Err(PduError::Form("its content does not match its hash".to_owned()).into());
    }
    let mut verified = receiving.verify(&look.room, pdu).await?;
    verified.relayed = true;
    receiving.accept(server, &look.room, verified).await?;
    let state = app.engine.state();
    let event = app.engine.events().find(&state, event_id)?;
    let event = event.ok_or_else(|| ApiError::internal("an accepted event is missing"))?;
    // With its first user, it is no stranger any more.
    receiving.reassess(server);
    Ok(Sent { look: ServerView::at_all(&app.engine, room_id, server)?, event })
}

/// The user, if the event sets their own membership to this one.
fn member(object: &CanonicalJsonObject, membership: &MembershipState) -> Option<ruma::OwnedUserId> {
    let text = |name: &str| object.get(name).and_then(CanonicalJsonValue::as_str);
    let content = object.get("content").and_then(CanonicalJsonValue::as_object)?;
    let is = content.get("membership").and_then(CanonicalJsonValue::as_str)?;
    let (sender, state_key) = (text("sender")?, text("state_key")?);
    let fits = text("type") == Some("m.room.member")
        && sender == state_key
        && is == membership.to_string();
    fits.then(|| sender.try_into().ok())?
}

/// Signs a join that a user of this homeserver authorises.
fn authorise(
    engine: &Engine,
    room_id: &RoomId,
    user_id: &UserId,
    object: &mut LaxObject,
    look: &ServerView<'_>,
) -> Result<(), ApiError> {
    let content = object.get("content").and_then(CanonicalJsonValue::as_object);
    let authoriser = content
        .and_then(|content| content.get("join_authorised_via_users_server"))
        .and_then(CanonicalJsonValue::as_str)
        .and_then(|user_id| <&UserId>::try_from(user_id).ok());
    let own = &engine.env().server;
    if authoriser.is_none_or(|authoriser| authoriser.server_name() != own.name) {
        return Ok(());
    }
    may_authorise(&engine.env(), room_id, user_id)?;
    own.sign_event(object, &look.room.rules.redaction).map_err(ApiError::internal)
}

pub(super) async fn send_join(
    cx: Cx<Server, Homeserver>,
    request: create_join_event::Request,
) -> Result<create_join_event::Response, ApiError> {
    let create_join_event::Request { room_id, event_id, pdu, omit_members, .. } = request;
    let joined = join(&cx, &room_id, &event_id, &pdu, omit_members).await?;
    Ok(create_join_event::Response::new(joined))
}

/// Takes a join. Returns the room's state before it.
pub(super) async fn join(
    cx: &Cx<Server, Homeserver>,
    room_id: &RoomId,
    event_id: &EventId,
    pdu: &RawValue,
    omit_members: bool,
) -> Result<create_join_event::RoomState, ApiError> {
    let Sent { look, event } = send(cx, room_id, event_id, pdu, MembershipState::Join).await?;
    cx.at_length(|| {
        let branches = look.branches();
        let (mut state, mut chain) = look.state_before(&branches, &event)?;
        let mut room_state = create_join_event::RoomState::new();
        if omit_members {
            let (room, user_id) = (&look.room, &event.sender);
            let before = event.offset.prev();
            let mut servers = room.servers();
            let was_in = room.is_joined(user_id, before);
            // As they were before the join.
            let own = user_id.server_name();
            servers.retain(|server| server != own || was_in || room.joined_of(own) > 1);
            room_state.servers_in_room = Some(servers.iter().map(ToString::to_string).collect());
            room_state.members_omitted = true;
            let heroes = heroes(cx.app.engine.events(), room, user_id, before)?.unwrap_or_default();
            state.retain(|event| {
                event.event_type.to_string() != "m.room.member"
                    || event
                        .state_key
                        .as_ref()
                        .is_some_and(|key| heroes.iter().any(|hero| hero.as_str() == &**key))
            });
            let ids = state.iter().map(|event| &event.event_id).chain([&event.event_id]);
            chain = branches.chain(ids).map_err(super::events::too_many)?.into_iter().collect();
        }
        for event in &state {
            chain.remove(&event.event_id);
        }
        room_state.auth_chain = look.pdus(&branches, chain)?;
        let state: Result<Vec<_>, _> = state.into_iter().map(|event| look.pdu(event)).collect();
        room_state.state = state?;
        room_state.event = Some(look.pdu(EventRef::clone(&event))?);
        Ok(room_state)
    })
    .await
}

pub(super) async fn send_knock(
    cx: Cx<Server, Homeserver>,
    request: create_knock_event::Request,
) -> Result<create_knock_event::Response, ApiError> {
    let create_knock_event::Request { room_id, event_id, pdu, .. } = request;
    let Sent { look, event } = send(&cx, &room_id, &event_id, &pdu, MembershipState::Knock).await?;
    let events = cx.app.engine.events().state_to_strip(&look.room, &event, event.offset)?;
    let pdus: Result<Vec<_>, _> =
        events.into_iter().map(|event| look.pdu(event).map(RawStrippedState::Pdu)).collect();
    Ok(create_knock_event::Response::new(pdus?))
}

pub(super) async fn send_leave(
    cx: Cx<Server, Homeserver>,
    request: create_leave_event::Request,
) -> Result<create_leave_event::Response, ApiError> {
    let create_leave_event::Request { room_id, event_id, pdu, .. } = request;
    leave(&cx, &room_id, &event_id, &pdu).await?;
    Ok(create_leave_event::Response::new())
}

/// Takes a leave.
pub(super) async fn leave(
    cx: &Cx<Server, Homeserver>,
    room_id: &RoomId,
    event_id: &EventId,
    pdu: &RawValue,
) -> Result<(), ApiError> {
    send(cx, room_id, event_id, pdu, MembershipState::Leave).await?;
    Ok(())
}
