//! The event closest to a time.

use ruma::api::client::room::get_event_by_timestamp::v1 as get_event_by_timestamp;

use super::{past, reading::readable_as_of};
use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};

pub(super) async fn timestamp_to_event(
    cx: Cx<Server>,
    request: get_event_by_timestamp::Request,
) -> Result<get_event_by_timestamp::Response, ApiError> {
    let room = cx.app.room(&request.room_id)?;
    if room.is_gapped() {
        past::fill_up_to(&cx, &room, request.ts.get().into(), request.dir).await?;
    }
    cx.at_length(|| {
        let view = cx.view();
        readable_as_of(&view, &room)?;
        let event = view.closest_event(&room, request.ts.get().into(), request.dir)?;
        let event = event.ok_or_else(|| {
            ApiError::not_found("There is no event that you may see in this direction.")
        })?;
        let event_id = event.event_id.clone();
        Ok(get_event_by_timestamp::Response::new(event_id, event.origin_server_ts))
    })
    .await
}
