//! Single events, and where a room's history ends. Administrators see what they could also read in
//! the log.

use ruma::{
    OwnedEventId,
    api::{Direction, auth_scheme::AccessToken},
};
use serde_json::{Map, Value, json};

use super::parts::AdminParts as _;
use crate::{
    api::{
        answer::json as to_json,
        room::{context::EventWithContext, timestamp::closest_of_all},
        server::Server,
    },
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_log::ReadError;
use logcabin_read::events::EventForm;
use logcabin_record::Offset;

/// The most events around one.
const CONTEXT_EVENTS: u64 = 100;

endpoint! {
    /// `GET …/fetch_event/{event_id}`
    pub(super) struct Fetch = GET "/_synapse/admin/v1/fetch_event/{event_id}";
    for AccessToken;
    { event_id: OwnedEventId = path }
}

/// An event in the format of federation, with its id.
pub(super) async fn fetch(cx: Cx<Server>, request: Fetch) -> Result<Json, ApiError> {
    let view = cx.view();
    let event = view.events.find_shown(&view.state, &request.event_id)?.ok_or_else(no_event)?;
    let mut pdu: Map<String, Value> =
        serde_json::from_str(event.pdu.get()).map_err(ApiError::internal)?;
    pdu.insert("event_id".to_owned(), event.event_id.as_str().into());
    to_json(&json!({ "event": pdu }))
}

fn no_event() -> ApiError {
    ApiError::not_found("There is no such event.")
}

endpoint! {
    /// `GET …/rooms/{room_id}/context/{event_id}`
    pub(super) struct Context = GET "/_synapse/admin/v1/rooms/{room_id}/context/{event_id}";
    for AccessToken;
    { room: String = path, event_id: OwnedEventId = path, limit: Option<u64> = number }
}

/// What is around an event, and the state after that.
pub(super) async fn context(cx: Cx<Server>, request: Context) -> Result<Json, ApiError> {
    let (app, view) = (&cx.app, cx.view());
    let room = app.context.room(&request.room)?;
    let limit = request.limit.unwrap_or(10).min(CONTEXT_EVENTS);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    at_length(|| {
        let event = view.events.find_shown(&view.state, &request.event_id)?;
        let event = event.filter(|event| event.room_id == room.id).ok_or_else(no_event)?;
        let at = event.offset;
        // An event that was fetched into a gap of the timeline stands alone: its record is not
        // where it belongs.
        let (before, after) = match room.slot(at) {
            None => (limit.div_ceil(2), limit / 2),
            Some(_) => (0, 0),
        };
        let before = room.events_backward(at.prev(), Offset::ZERO, before);
        let after = room.events_forward(at, view.at(), after);
        let (first, last) = (before.last().unwrap_or(&at), after.last().unwrap_or(&at));
        let (start, end) = match room.slot(at) {
            None => (app.token(first.prev()), app.token(*last)),
            Some(slot) => (app.history_token(slot.before()), app.history_token(slot.after())),
        };
        let shown = |offsets: &[Offset], form: &EventForm| {
            let events = view.events.get_all(offsets)?;
            view.client_events(&room, &events, form)
        };
        to_json(&EventWithContext {
            start,
            end,
            event: view.client_event(&room, &event, &EventForm::FULL)?,
            events_before: shown(&before, &EventForm::FULL)?,
            events_after: shown(&after, &EventForm::FULL)?,
            state: shown(&room.full_state(*last), &EventForm::STATE)?,
        })
    })
}

endpoint! {
    /// `GET …/rooms/{room_id}/timestamp_to_event`
    pub(super) struct Closest = GET "/_synapse/admin/v1/rooms/{room_id}/timestamp_to_event";
    for AccessToken;
    { room: String = path, ts: Option<u64> = number, dir: Option<bool> = backwards }
}

/// The event closest to a time, whoever may see it.
pub(super) async fn closest(cx: Cx<Server>, request: Closest) -> Result<Json, ApiError> {
    let ts = request.ts.ok_or_else(|| ApiError::missing_param("`ts` is missing."))?;
    let room = cx.app.context.room(&request.room)?;
    let direction =
        if request.dir == Some(true) { Direction::Backward } else { Direction::Forward };
    let event = closest_of_all(&cx, &room, ts, direction).await?;
    let event = event.ok_or_else(|| ApiError::not_found("There is no event in this direction."))?;
    let (event_id, time) = (&event.event_id, event.origin_server_ts);
    to_json(&json!({ "event_id": event_id, "origin_server_ts": time }))
}

endpoint! {
    /// `GET …/rooms/{room_id}/forward_extremities`
    pub(super) struct Extremities = GET "/_synapse/admin/v1/rooms/{room_id}/forward_extremities";
    for AccessToken;
    { room: String = path }
}

/// The ends of a room's history. There are no groups of state here: `state_group` is the record
/// with the last change of state.
pub(super) async fn extremities(cx: Cx<Server>, request: Extremities) -> Result<Json, ApiError> {
    let context = &cx.app.context;
    let room = context.room(&request.room)?;
    let ends = room.extremities().into_iter().map(|tip| {
        let at = cx.app.engine.state().event_in_room(&room.id, &tip.event_id);
        Ok(json!({
            "event_id": tip.event_id,
            "depth": tip.depth,
            "state_group": at.map(|at| room.last_state_change(at).get()),
            "received_ts": at.map(|at| context.time_of(at)).transpose()?,
        }))
    });
    let ends = at_length(|| ends.collect::<Result<Vec<_>, ReadError>>())?;
    to_json(&json!({ "count": ends.len(), "results": ends }))
}
