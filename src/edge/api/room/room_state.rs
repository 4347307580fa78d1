//! Reading a room's state.

use ruma::api::client::state::{
    get_state_event_for_key::v3::{self as get_state_event_for_key, StateEventFormat},
    get_state_events::v3 as get_state_events,
};

use super::reading::readable_as_of;
use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json},
};
use logcabin_read::events::EventForm;

pub(super) async fn all(
    cx: Cx<Server>,
    request: get_state_events::Request,
) -> Result<Json, ApiError> {
    let room = cx.app.room(&request.room_id)?;
    let view = cx.view_as_of()?;
    let at = readable_as_of(&view, &room)?;
    cx.at_length(|| {
        let events = view.events.get_all(&room.full_state(at))?;
        json(&view.client_events(&room, &events, &EventForm::STATE)?)
    })
    .await
}

pub(super) async fn one(
    cx: Cx<Server>,
    request: get_state_event_for_key::Request,
) -> Result<Json, ApiError> {
    let room = cx.app.room(&request.room_id)?;
    let view = cx.view_as_of()?;
    let at = readable_as_of(&view, &room)?;
    let missing = || ApiError::not_found("The room has no such state.");
    let offset = room.state_event(&request.event_type, &request.state_key, at);
    let event = view.events.get(offset.ok_or_else(missing)?)?.ok_or_else(missing)?;
    let shown = view.client_event(&room, &event, &EventForm::STATE)?;
    if request.format == StateEventFormat::Event {
        return json(&shown);
    }
    // From the client format, so that redacted content stays hidden.
    #[derive(serde::Deserialize)]
    struct EventContent<'a> {
        #[serde(borrow)]
        content: &'a serde_json::value::RawValue,
    }
    let shown: EventContent<'_> = serde_json::from_str(shown.get()).map_err(ApiError::internal)?;
    json(&shown.content)
}
