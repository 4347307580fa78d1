//! The events around an event.

use ruma::api::client::context::get_context::v3 as get_context;
use serde::Serialize;

use super::reading::{event_filter, page_size, room_of_event, visible_event};
use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json},
};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_read::{
    events::{ClientEvent, EventForm, EventRef},
    view::{ByteBudget, PageLimit, View, filter::EventFilter, past::HistoryRange},
};
use logcabin_record::Offset;
use logcabin_state::{
    Room,
    rooms::gaps::{GapPosition, TimelinePosition},
};

/// The response of `GET /rooms/{roomId}/context/{eventId}`.
#[derive(Serialize)]
pub(in crate::api) struct EventWithContext {
    pub(in crate::api) start: String,
    pub(in crate::api) end: String,
    pub(in crate::api) event: ClientEvent,
    pub(in crate::api) events_before: Vec<ClientEvent>,
    pub(in crate::api) events_after: Vec<ClientEvent>,
    pub(in crate::api) state: Vec<ClientEvent>,
}

pub(super) async fn context(
    cx: Cx<Server>,
    request: get_context::Request,
) -> Result<Json, ApiError> {
    let room = room_of_event(&cx.app.engine, &request.room_id)?;
    let view = cx.view_as_of()?;
    let event = visible_event(&view, &room, &request.event_id)?;
    let filter = event_filter(&cx)?;
    let limit = page_size(request.limit, &filter);
    cx.at_length(|| {
        // Half on each side; an odd one comes before the event.
        let (before, after) = (limit.div_ceil(2), limit / 2);
        let budget = ByteBudget::new(limits::PAGE_BYTES);
        let page = |events| PageLimit { events, budget: Some(&budget) };
        let sides = (page(before), page(after));
        let Around { before, after, start, end } = around(&view, &room, &event, sides, &filter)?;
        let last = end.offset();
        // The state at the last returned event, as far as the caller may see it.
        let seen = view.state_as_of(&room)?.unwrap_or(Offset::ZERO);
        let state_at = last.min(seen);
        let mut state = if filter.lazy_load_members {
            let around: Vec<_> = before.iter().chain(&after).chain([&event]).cloned().collect();
            let mut state = view.events.get_all(&room.state_without_members(state_at))?;
            state.extend(view.members_of(&room, &around, None, state_at)?);
            state.sort_unstable_by_key(|event| event.offset);
            state
        } else {
            view.events.get_all(&room.full_state(state_at))?
        };
        state.retain(|event| filter.matches(&room, event, view.at()));
        let form = &EventForm::FULL;
        json(&EventWithContext {
            start: cx.app.history_token(start),
            end: cx.app.history_token(end),
            event: view.client_event(&room, &event, form)?,
            events_before: view.client_events(&room, &before, form)?,
            events_after: view.client_events(&room, &after, form)?,
            state: view.client_events(&room, &state, &EventForm::STATE)?,
        })
    })
    .await
}

/// What is around an event, and where that begins and ends.
pub(super) struct Around {
    pub(super) before: Vec<EventRef>,
    pub(super) after: Vec<EventRef>,
    pub(super) start: TimelinePosition,
    pub(super) end: TimelinePosition,
}

/// The events around one. Missing events are not fetched: a client continues from either end with
/// `GET /messages`.
pub(super) fn around<'a>(
    view: &View<'a>,
    room: &Room,
    event: &EventRef,
    (before, after): (PageLimit<'a>, PageLimit<'a>),
    filter: &EventFilter,
) -> Result<Around, ReadError> {
    if !room.is_gapped() {
        let earlier = event.offset.prev();
        let before = view.page_backward(room, earlier, Offset::ZERO, before, filter)?.events;
        let after = view.page_forward(room, event.offset, Offset::MAX, after, filter)?.events;
        let start = TimelinePosition::After(before.last().unwrap_or(event).offset.prev());
        let end = TimelinePosition::After(after.last().unwrap_or(event).offset);
        return Ok(Around { before, after, start, end });
    }
    let slot = room.slot(event.offset);
    let start = slot.map_or_else(|| room.before_event(event.offset), GapPosition::before);
    let end = slot.map_or(TimelinePosition::After(event.offset), GapPosition::after);
    let first = TimelinePosition::After(Offset::ZERO);
    let earlier = HistoryRange { from: start, to: first, backward: true, stops: true };
    let earlier = view.past(room, earlier, before, filter)?;
    let last = TimelinePosition::After(Offset::MAX);
    let later = HistoryRange { from: end, to: last, backward: false, stops: true };
    let later = view.past(room, later, after, filter)?;
    Ok(Around {
        start: earlier.last.unwrap_or(start),
        end: later.last.unwrap_or(end),
        before: earlier.events,
        after: later.events,
    })
}
