//! Invites of users of this homeserver (server-server API, "Inviting to a room").

use ruma::{
    OwnedEventId, OwnedRoomId,
    api::federation::membership::{RawStrippedState, create_invite::v2 as create_invite},
};
use serde_json::value::RawValue;

use crate::edge::{
    api::Server,
    http::{ApiError, Cx, Homeserver},
};

pub(super) async fn invite(
    cx: Cx<Server, Homeserver>,
    request: create_invite::Request,
) -> Result<create_invite::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
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
    let receiving = cx.app.receiving()?;
    let stripped: Vec<Box<RawValue>> = stripped.collect();
    let taken = receiving.take_invite(server, room_id, &event_id, room_version, &event, stripped);
    let object = Box::pin(taken).await?;
    let event = serde_json::value::to_raw_value(&object).map_err(ApiError::internal)?;
    Ok(create_invite::Response::new(event))
}
