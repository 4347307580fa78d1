//! Purges of the history of rooms.

use ruma::{OwnedEventId, api::auth_scheme::AccessToken};
use serde::Deserialize;
use serde_json::json;

use super::parts::{ActParameters, AdminParts as _};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, ErrorCode, Json, endpoint, read_body},
};
use logcabin_ops::admin::rooms::{PurgeHistory, history_purge_status};

#[derive(Deserialize)]
struct PurgeBody {
    /// Whether what users of this homeserver sent goes, too.
    #[serde(default)]
    delete_local_events: Option<bool>,
    #[serde(default)]
    purge_up_to_event_id: Option<OwnedEventId>,
    #[serde(default)]
    purge_up_to_ts: Option<u64>,
}

endpoint! {
    /// `POST …/purge_history/{room_id}`
    pub(super) struct Purge = POST "/_synapse/admin/v1/purge_history/{room_id}";
    for AccessToken;
    { room_id: String = path, terms: ActParameters = terms }
}

endpoint! {
    /// `POST …/purge_history/{room_id}/{event_id}`
    pub(super) struct PurgeTo = POST "/_synapse/admin/v1/purge_history/{room_id}/{event_id}";
    for AccessToken;
    { room_id: String = path, event_id: String = path, terms: ActParameters = terms }
}

/// Begins to purge what was sent before an event, or until a time.
pub(super) async fn purge(cx: Cx<Server>, request: Purge) -> Result<Json, ApiError> {
    begin(cx, request.room_id, None, request.terms).await
}

pub(super) async fn purge_to(cx: Cx<Server>, request: PurgeTo) -> Result<Json, ApiError> {
    begin(cx, request.room_id, Some(request.event_id), request.terms).await
}

async fn begin(
    cx: Cx<Server>,
    room: String,
    event: Option<String>,
    terms: ActParameters,
) -> Result<Json, ApiError> {
    let body: PurgeBody = read_body(&cx.body)?;
    let event = event.or_else(|| body.purge_up_to_event_id.map(Into::into));
    let before_ms = body.purge_up_to_ts.filter(|_| event.is_none());
    if event.is_none() && before_ms.is_none() {
        let why = "`purge_up_to_event_id` or `purge_up_to_ts` is missing.";
        return Err(ApiError::new(ErrorCode::MissingParam, why));
    }
    let keep_local = !body.delete_local_events.unwrap_or(false);
    let act = PurgeHistory { room, event, before_ms, days: None, keep_local, wait: false };
    cx.act(act, terms, |status| json!({ "purge_id": status.id })).await
}

endpoint! {
    /// `GET …/purge_history_status/{purge_id}`
    pub(super) struct Status = GET "/_synapse/admin/v1/purge_history_status/{purge_id}";
    for AccessToken;
    { purge_id: String = path }
}

pub(super) async fn status(cx: Cx<Server>, request: Status) -> Result<Json, ApiError> {
    let status = history_purge_status(&cx.app.context, &request.purge_id);
    let status = status.ok_or_else(|| ApiError::not_found("There is no such purge."))?;
    to_json(&json!({ "status": if status.complete { "complete" } else { "active" } }))
}
