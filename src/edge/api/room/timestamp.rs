//! The event closest to a time.

use ruma::api::{Direction, client::room::get_event_by_timestamp::v1 as get_event_by_timestamp};

use super::{
    past::{self, Closest},
    reading::readable_as_of,
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};
use logcabin_read::{events::EventRef, view::time::ByTime};
use logcabin_state::Room;

pub(super) async fn timestamp_to_event(
    cx: Cx<Server>,
    request: get_event_by_timestamp::Request,
) -> Result<get_event_by_timestamp::Response, ApiError> {
    let room = cx.app.room(&request.room_id)?;
    let (ts, direction) = (request.ts.get().into(), request.dir);
    let closest = || {
        let view = cx.view();
        readable_as_of(&view, &room)?;
        Ok(view.closest_event(&room, ts, direction)?)
    };
    let event =
        known_or_fetched(&cx, &room, (ts, direction), &closest).await?.ok_or_else(|| {
            ApiError::not_found("There is no event that you may see in this direction.")
        })?;
    Ok(get_event_by_timestamp::Response::new(event.event_id.clone(), event.origin_server_ts))
}

/// The same, whoever may see the event: only for administrators.
pub(in crate::api) async fn closest_of_all(
    cx: &Cx<Server>,
    room: &Room,
    ts: u64,
    direction: Direction,
) -> Result<Option<EventRef>, ApiError> {
    let closest = || {
        let view = cx.view();
        let by_time = ByTime { events: view.events, room, at: view.at() };
        Ok(by_time.closest(ts, direction, |_| Ok(true), usize::MAX)?)
    };
    known_or_fetched(cx, room, (ts, direction), &closest).await
}

/// What `closest` finds, after the room's gaps were filled up to the time, as far as one request
/// does that.
async fn known_or_fetched(
    cx: &Cx<Server>,
    room: &Room,
    (ts, direction): (u64, Direction),
    closest: &Closest<'_>,
) -> Result<Option<EventRef>, ApiError> {
    if room.is_gapped() {
        past::fill_up_to(cx, room, (ts, direction), closest).await?;
    }
    cx.at_length(closest).await
}
