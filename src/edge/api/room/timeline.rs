//! Reading a room's timeline: pages of history and single events.

use std::time::Duration;

use ruma::api::{
    Direction,
    client::{
        message::get_message_events::v3 as get_message_events,
        room::get_room_event::v3 as get_room_event,
    },
};

use super::{
    past,
    reading::{Messages, event_filter, page_size, readable_as_of, room_of_event, visible_event},
};
use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, ErrorCode, Json},
};
use logcabin_config::EraseAfter;
use logcabin_decide::redaction::may_redact_others;
use logcabin_read::events::EventForm;
use logcabin_record::{Offset, Payload};
use logcabin_state::Room;

/// The parameter that asks for the content of a redacted event (MSC2815).
const UNREDACTED: &str = "fi.mau.msc2815.include_unredacted_content";

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
    let filter = event_filter(&cx)?;
    let limit = page_size(request.limit, &filter);
    let position =
        |token: Option<&str>| token.map(|token| cx.app.position_in(&room, token)).transpose();
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
    let room = room_of_event(&cx.app.engine, &request.room_id)?;
    let view = cx.view_as_of()?;
    let event = visible_event(&view, &room, &request.event_id)?;
    let unredacted = cx.query(UNREDACTED)?.is_some_and(|wanted| wanted == "true")
        && room.redaction_of(event.offset, view.at()).is_some();
    if unredacted {
        check_unredacted(&cx, &room, event.offset)?;
    }
    json(&view.client_event(&room, &event, &EventForm { unredacted, ..EventForm::FULL })?)
}

/// Refuses to show what was redacted, if the caller may not see it or it was erased.
fn check_unredacted(cx: &Cx<Server>, room: &Room, event: Offset) -> Result<(), ApiError> {
    let (engine, user_id) = (&cx.app.engine, &cx.caller.user_id);
    let is_admin = engine.state().accounts.standing(user_id).is_some_and(|of| of.admin);
    if !is_admin && !may_redact_others(engine.events(), room, user_id)? {
        return Err(ApiError::forbidden("You may not see what was redacted in this room."));
    }
    let record = engine.log().get(event)?;
    if record.is_some_and(|record| matches!(record.payload, Payload::Present(_))) {
        return Ok(());
    }
    let kept = match cx.app.config.erasure.redacted_after_seconds {
        EraseAfter::Seconds(seconds) => Some(Duration::from_secs(seconds.into())),
        EraseAfter::Off => None,
    };
    let why = "The content of this event was erased.";
    Err(ApiError::new(ErrorCode::UnredactedContentDeleted { kept }, why))
}
