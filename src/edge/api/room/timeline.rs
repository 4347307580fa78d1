//! Reading a room's timeline: pages of history and single events.

use std::sync::Arc;

use ruma::{
    RoomId, UInt,
    api::{
        Direction,
        client::{
            message::get_message_events::v3 as get_message_events,
            room::get_room_event::v3 as get_room_event,
        },
    },
};
use serde::Serialize;

use super::past;
use crate::{
    base::limits,
    edge::{
        api::{answer::json, server::Server, sync::filter},
        http::{ApiError, Cx, Json},
    },
    read::{
        events::{ClientEvent, EventForm, EventRef},
        view::{View, filter::EventFilter},
    },
    record::Offset,
    state::Room,
};

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

pub(super) async fn messages(
    cx: Cx<Server>,
    request: get_message_events::Request,
) -> Result<Json, ApiError> {
    let room = cx.app.room(&request.room_id)?;
    if room.is_gapped() {
        return past::messages(&cx, &room, &request).await;
    }
    let view = cx.view_as_of()?;
    let seen = readable_as_of(&view, &room)?;
    let filter = filter::of_events(&cx)?;
    let limit = page_size(request.limit, &filter);
    let position = |token: Option<&str>| token.map(|token| cx.app.position(token)).transpose();
    let to = position(request.to.as_deref())?;
    let from = position(request.from.as_deref())?;
    cx.at_length(|| {
        let (start, page) = match request.dir {
            Direction::Backward => {
                let from = from.unwrap_or_else(|| view.at());
                let to = to.unwrap_or(Offset::ZERO);
                (from, view.page_backward(&room, from, to, limit, &filter)?)
            }
            Direction::Forward => {
                let from = from.unwrap_or(Offset::ZERO);
                let to = to.unwrap_or(Offset::MAX);
                (from, view.page_forward(&room, from, to, limit, &filter)?)
            }
        };
        let state = if filter.lazy_load_members {
            view.members_of(&room, &page.events, None, seen)?
        } else {
            Vec::new()
        };
        // At the live end of the timeline there may be more later, so the token to continue with is
        // `start` moved past the returned events. At the room's beginning there is none.
        let end = match (request.dir, page.next, page.events.last()) {
            (_, Some(next), _) => Some(next),
            (Direction::Forward, None, Some(last)) if request.to.is_none() => Some(last.offset),
            _ => None,
        };
        json(&Messages {
            start: cx.app.token(start),
            end: end.map(|offset| cx.app.token(offset)),
            chunk: view.client_events(&room, &page.events, &EventForm::FULL)?,
            state: view.client_events(&room, &state, &EventForm::STATE)?,
        })
    })
    .await
}

pub(super) async fn event(
    cx: Cx<Server>,
    request: get_room_event::Request,
) -> Result<Json, ApiError> {
    let room = room_of_event(&cx.app, &request.room_id)?;
    let view = cx.view_as_of()?;
    let event = visible_event(&view, &room, &request.event_id)?;
    json(&view.client_event(&room, &event, &EventForm::FULL)?)
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
pub(super) fn room_of_event(app: &Server, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
    app.engine.state().rooms.get(room_id).ok_or_else(no_such_event)
}

fn no_such_event() -> ApiError {
    ApiError::not_found("There is no such event, or you may not see it.")
}

/// The offset as of which the caller sees the room's state. Only for users who are or were in the
/// room, unless everyone may read it.
pub(crate) fn readable_as_of(view: &View<'_>, room: &Room) -> Result<Offset, ApiError> {
    let at = view.state_as_of(room)?;
    at.ok_or_else(|| ApiError::forbidden("You are not in this room."))
}

/// How many events a page has if the request asks for `limit`; the filter can lower it.
pub(crate) fn page_size(limit: UInt, filter: &EventFilter) -> usize {
    let limit = u64::from(limit).min(filter.limit.unwrap_or(u64::MAX)).min(limits::PAGE_EVENTS);
    usize::try_from(limit).unwrap_or(usize::MAX)
}
