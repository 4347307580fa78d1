//! What reads of a room's events have in common: what the caller may see, how much of it, and the
//! filter.

use std::sync::Arc;

use ruma::{RoomId, UInt};
use serde::Serialize;

use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};
use logcabin_base::limits;
use logcabin_engine::Engine;
use logcabin_read::{
    events::{ClientEvent, EventRef},
    view::{View, filter::EventFilter},
};
use logcabin_record::Offset;
use logcabin_state::Room;

/// The response of `GET /rooms/{roomId}/messages`.
#[derive(Serialize)]
pub(super) struct Messages {
    pub(super) start: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<String>,
    pub(super) chunk: Vec<ClientEvent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) state: Vec<ClientEvent>,
}

/// The event, if the caller may see it. Otherwise it does not exist for them.
pub(crate) fn visible_event(
    view: &View<'_>,
    room: &Room,
    event_id: &ruma::EventId,
) -> Result<EventRef, ApiError> {
    let event = view.events.find_shown(&view.state, event_id)?;
    let event = event.filter(|event| event.room_id == room.id && event.offset <= view.at());
    match event {
        Some(event) if view.may_see(room, &event)? => Ok(event),
        _ => Err(no_such_event()),
    }
}

/// The room in which to look for an event. A room that does not exist has no visible events.
pub(super) fn room_of_event(engine: &Engine, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
    engine.state().rooms.get(room_id).ok_or_else(no_such_event)
}

fn no_such_event() -> ApiError {
    ApiError::not_found("There is no such event, or you may not see it.")
}

/// The offset of the room state that the caller may read. The caller must be a current or former
/// member of the room, unless the room is world-readable.
pub(crate) fn readable_as_of(view: &View<'_>, room: &Room) -> Result<Offset, ApiError> {
    let at = view.state_as_of(room)?;
    at.ok_or_else(|| ApiError::forbidden("You are not in this room."))
}

/// How many events a page has if the request asks for `limit`; the filter can lower it.
pub(crate) fn page_size(limit: UInt, filter: &EventFilter) -> usize {
    let limit = u64::from(limit).min(filter.limit.unwrap_or(u64::MAX)).min(limits::PAGE_EVENTS);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The event filter of a request, given as JSON.
pub(in crate::api) fn event_filter(cx: &Cx<Server>) -> Result<EventFilter, ApiError> {
    let Some(filter) = cx.query("filter")? else { return Ok(EventFilter::default()) };
    if !filter.starts_with('{') {
        return Err(ApiError::invalid_param("The filter is not a JSON object."));
    }
    EventFilter::parse(&filter).map_err(|error| ApiError::invalid_param(error.to_string()))
}
