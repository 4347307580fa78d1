//! The events around an event.

use ruma::api::client::context::get_context::v3 as get_context;
use serde::Serialize;

use super::timeline::{page_size, room_of_event, visible_event};
use crate::{
    base::limits,
    edge::{
        api::{Server, json, sync::filter},
        http::{ApiError, Cx, Json},
    },
    read::{
        events::{ClientEvent, EventForm},
        view::{ByteBudget, PageLimit},
    },
    record::Offset,
};

pub(super) async fn context(
    cx: Cx<Server>,
    request: get_context::Request,
) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response {
        start: String,
        end: String,
        event: ClientEvent,
        events_before: Vec<ClientEvent>,
        events_after: Vec<ClientEvent>,
        state: Vec<ClientEvent>,
    }
    let room = room_of_event(&cx.app, &request.room_id)?;
    let view = cx.view_as_of()?;
    let event = visible_event(&view, &room, &request.event_id)?;
    let filter = filter::of_events(&cx)?;
    let limit = page_size(request.limit, &filter);
    cx.at_length(|| {
        // Half on each side; an odd one comes before the event.
        let (before, after) = (limit.div_ceil(2), limit / 2);
        let budget = ByteBudget::new(limits::PAGE_BYTES);
        let page = |events| PageLimit { events, budget: Some(&budget) };
        let before =
            view.page_backward(&room, event.offset.prev(), Offset::ZERO, page(before), &filter)?;
        let after =
            view.page_forward(&room, event.offset, Offset::MAX, page(after), &filter)?.events;
        let before = before.events;

        let first = before.last().unwrap_or(&event).offset;
        let last = after.last().unwrap_or(&event).offset;
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
        json(&Response {
            start: cx.app.token(first.prev()),
            end: cx.app.token(last),
            event: view.client_event(&room, &event, form)?,
            events_before: view.client_events(&room, &before, form)?,
            events_after: view.client_events(&room, &after, form)?,
            state: view.client_events(&room, &state, &EventForm::STATE)?,
        })
    })
    .await
}
