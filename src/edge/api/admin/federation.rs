//! The homeservers that this one delivers to. Positions are those of the log.

use std::cmp::Reverse;

use http::StatusCode;
use ruma::{ServerName, api::auth_scheme::AccessToken};
use serde_json::{Value, json};

use super::parts::{ActParameters, AdminParts as _, PageOf, nothing, page_of};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, ErrorCode, Json, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_log::ReadError;
use logcabin_ops::admin::{
    context::ActContext,
    federation::{RetryDestination, destinations},
};
use logcabin_record::Offset;
use logcabin_state::destinations::Destination;

endpoint! {
    /// `GET …/federation/destinations`
    pub(super) struct List = GET "/_synapse/admin/v1/federation/destinations";
    for AccessToken;
    {
        page: PageOf = page,
        destination: Option<String> = parameter,
        order_by: Option<String> = parameter,
        dir: Option<bool> = backwards,
    }
}

pub(super) async fn list(cx: Cx<Server>, request: List) -> Result<Json, ApiError> {
    let context = &cx.app.context;
    let mut all = at_length(|| destinations::known(context));
    if let Some(part) = request.destination {
        let part = part.to_lowercase();
        all.retain(|(server, _)| server.as_str().to_lowercase().contains(&part));
    }
    let failing = |of: &Option<Destination>| {
        let of = of.as_ref()?;
        of.failing.as_ref().map(|failing| (failing.since_ms, failing.attempts, of.record))
    };
    // Records are written in the order of their times, and pauses grow with the attempts.
    match request.order_by.as_deref() {
        None | Some("destination") => {}
        Some("failure_ts") => all.sort_by_key(|(_, of)| failing(of).map(|(since, ..)| since)),
        Some("retry_interval") => all.sort_by_key(|(_, of)| failing(of).map(|(_, tried, _)| tried)),
        Some("retry_last_ts") => all.sort_by_key(|(_, of)| failing(of).map(|(.., record)| record)),
        Some("last_successful_stream_ordering") => {
            all.sort_by_key(|(_, of)| of.as_ref().map(|of| of.up_to));
        }
        Some(_) => return Err(ApiError::invalid_param("There is no such order of homeservers.")),
    }
    if request.dir == Some(true) {
        all.reverse();
    }
    let total = all.len();
    let (shown, next) = page_of(all, request.page);
    let shown = shown.iter().map(|(server, of)| words(context, server, of.as_ref()));
    let shown = at_length(|| shown.collect::<Result<Vec<_>, _>>())?;
    let mut answer = json!({ "destinations": shown, "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.to_string().into();
    }
    to_json(&answer)
}

/// A homeserver in the format of the tools.
fn words(
    context: &ActContext,
    server: &ServerName,
    of: Option<&Destination>,
) -> Result<Value, ReadError> {
    let up_to = of.map(|of| of.up_to).filter(|up_to| *up_to > Offset::ZERO);
    let mut shown = json!({
        "destination": server,
        "retry_last_ts": 0,
        "retry_interval": 0,
        "failure_ts": null,
        "last_successful_stream_ordering": up_to.map(Offset::get),
    });
    if let Some(of) = of
        && let Some(failing) = &of.failing
    {
        let last_ms = context.time_of(of.record)?;
        shown["retry_last_ts"] = last_ms.into();
        shown["retry_interval"] = failing.again_ms.saturating_sub(last_ms).into();
        shown["failure_ts"] = failing.since_ms.into();
    }
    Ok(shown)
}

endpoint! {
    /// `GET …/federation/destinations/{destination}`
    pub(super) struct Get = GET "/_synapse/admin/v1/federation/destinations/{destination}";
    for AccessToken;
    { destination: String = path }
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    let context = &cx.app.context;
    at_length(|| {
        let (server, of) = destinations::find(context, &request.destination)?;
        to_json(&words(context, &server, of.as_ref())?)
    })
}

endpoint! {
    /// `GET …/federation/destinations/{destination}/rooms`
    pub(super) struct Rooms = GET "/_synapse/admin/v1/federation/destinations/{destination}/rooms";
    for AccessToken;
    { destination: String = path, page: PageOf = page, dir: Option<bool> = backwards }
}

/// The rooms that are shared with a homeserver, each with its last event.
pub(super) async fn rooms(cx: Cx<Server>, request: Rooms) -> Result<Json, ApiError> {
    let Rooms { destination, page, dir } = request;
    let mut rooms = at_length(|| destinations::shared_with(&cx.app.context, &destination))?;
    match dir {
        Some(true) => rooms.sort_by_key(|room| Reverse(room.id.clone())),
        _ => rooms.sort_by_key(|room| room.id.clone()),
    }
    let total = rooms.len();
    let (shown, next) = page_of(rooms, page);
    let shown = shown.iter().map(|room| {
        let last = room.last_event(Offset::MAX).map(Offset::get);
        json!({ "room_id": room.id, "stream_ordering": last })
    });
    let mut answer = json!({ "rooms": shown.collect::<Vec<_>>(), "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.to_string().into();
    }
    to_json(&answer)
}

endpoint! {
    /// `POST …/federation/destinations/{destination}/reset_connection`
    pub(super) struct Retry = POST
        "/_synapse/admin/v1/federation/destinations/{destination}/reset_connection";
    for AccessToken;
    { destination: String = path, terms: ActParameters = terms }
}

pub(super) async fn retry(cx: Cx<Server>, request: Retry) -> Result<Json, ApiError> {
    let Retry { destination: server, terms } = request;
    let (_, of) = at_length(|| destinations::find(&cx.app.context, &server))?;
    if of.is_none_or(|of| of.failing.is_none()) {
        let why = "The last attempt to reach this homeserver did not fail.";
        return Err(ApiError::new(ErrorCode::Unknown, why).with_status(StatusCode::BAD_REQUEST));
    }
    cx.act(RetryDestination { server }, terms, nothing).await
}
