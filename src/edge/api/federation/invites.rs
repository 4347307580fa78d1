//! Invites of users of this homeserver (server-server API, "Inviting to a room").

use std::sync::Arc;

use ruma::{
    CanonicalJsonObject, OwnedEventId, OwnedRoomId, RoomVersionId,
    api::federation::{
        membership::{RawStrippedState, create_invite::v2 as create_invite},
        thirdparty::exchange_invite::v1 as exchange_invite,
    },
    events::StateEventType,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{events::ServerView, memberships::must_be_of};
use crate::{
    api::{outgoing::AskedServer, server::Server},
    http::{ApiError, Cx, Homeserver},
};

/// The content of an invite by address.
#[derive(Deserialize)]
struct ByAddress {
    membership: String,
    third_party_invite: ThirdParty,
}

#[derive(Deserialize)]
struct ThirdParty {
    signed: CanonicalJsonObject,
}

/// Invites a user of the requesting homeserver, whose address a local user invited. The room's
/// rules check the identity server's signature.
pub(super) async fn exchange(
    cx: Cx<Server, Homeserver>,
    request: exchange_invite::Request,
) -> Result<exchange_invite::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    let exchange_invite::Request { room_id, kind, sender, state_key: target, content, .. } =
        request;
    must_be_of(&target, server)?;
    if kind != StateEventType::RoomMember || sender.server_name() != cx.app.config.server.name {
        return Err(ApiError::forbidden("This is not an invite by a user of this server."));
    }
    let content: ByAddress = serde_json::from_str(content.json().get()).map_err(|error| {
        ApiError::bad_json("This is not an invite by address.").with_cause(error)
    })?;
    if content.membership != "invite" {
        return Err(ApiError::bad_json("This is not an invite by address."));
    }
    // Its homeserver need not be in the room, but the access control list must not deny it.
    ServerView::at_all(&cx.app.engine, &room_id, server)?;
    let (app, signed) = (Arc::clone(&cx.app), content.third_party_invite.signed);
    // It continues if the other homeserver disconnects: the room may have the invite already.
    let inviting = tokio::spawn(async move {
        let receiving = app.receiving()?;
        let invited = receiving.invite_by_address(&room_id, &target, &signed).await;
        invited.map_err(|error| AskedServer::OfInvited.failed(error))
    });
    inviting.await.map_err(ApiError::internal)??;
    Ok(exchange_invite::Response::new())
}

pub(super) async fn invite(
    cx: Cx<Server, Homeserver>,
    request: create_invite::Request,
) -> Result<create_invite::Response, ApiError> {
    let create_invite::Request {
        room_id, event_id, room_version, event, invite_room_state, ..
    } = request;
    let (room_id, event_id): (OwnedRoomId, OwnedEventId) = (room_id, event_id);
    let stripped = invite_room_state.into_iter().filter_map(|state| match state {
        RawStrippedState::Pdu(pdu) => Some(pdu),
        #[allow(deprecated, reason = "older homeservers send it")]
        RawStrippedState::Stripped(event) => Some(event.into_json()),
        _ => None,
    });
    let stripped = stripped.collect();
    let event = take(&cx, room_id, event_id, room_version, &event, stripped).await?;
    Ok(create_invite::Response::new(event))
}

/// Takes an invite. Returns it with this server's signature.
pub(super) async fn take(
    cx: &Cx<Server, Homeserver>,
    room_id: OwnedRoomId,
    event_id: OwnedEventId,
    version: RoomVersionId,
    event: &RawValue,
    stripped: Vec<Box<RawValue>>,
) -> Result<Box<RawValue>, ApiError> {
    let Homeserver(server) = &cx.caller;
    let receiving = cx.app.receiving()?;
    receiving.admit_invite(server).map_err(ApiError::limit_exceeded)?;
    let taken = receiving.take_invite(server, room_id, &event_id, version, event, stripped);
    let object = Box::pin(taken).await?;
    serde_json::value::to_raw_value(&object).map_err(ApiError::internal)
}
