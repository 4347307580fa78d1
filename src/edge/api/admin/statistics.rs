//! How much users did since a time, and which rooms take most of the log.

use ruma::api::auth_scheme::AccessToken;
use serde_json::json;

use super::parts::AdminParts as _;
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_ops::admin::{rooms, users};

/// How many rooms are listed.
const LARGEST: usize = 10;

fn since(from_ts: Option<u64>) -> Result<u64, ApiError> {
    from_ts.ok_or_else(|| ApiError::missing_param("`from_ts` is missing."))
}

endpoint! {
    /// `GET …/users/{user_id}/sent_invite_count`
    pub(super) struct Invites = GET "/_synapse/admin/v1/users/{user_id}/sent_invite_count";
    for AccessToken;
    { user: String = path, from_ts: Option<u64> = number }
}

pub(super) async fn invites(cx: Cx<Server>, request: Invites) -> Result<Json, ApiError> {
    let from_ms = since(request.from_ts)?;
    let count = users::sent_invites(&cx.app.context, &request.user, from_ms).await?;
    to_json(&json!({ "invite_count": count }))
}

endpoint! {
    /// `GET …/users/{user_id}/cumulative_joined_room_count`
    pub(super) struct Joins = GET
        "/_synapse/admin/v1/users/{user_id}/cumulative_joined_room_count";
    for AccessToken;
    { user: String = path, from_ts: Option<u64> = number }
}

pub(super) async fn joins(cx: Cx<Server>, request: Joins) -> Result<Json, ApiError> {
    let from_ms = since(request.from_ts)?;
    let count = at_length(|| users::rooms_joined(&cx.app.context, &request.user, from_ms))?;
    to_json(&json!({ "cumulative_joined_room_count": count }))
}

endpoint! {
    /// `GET …/statistics/database/rooms`
    pub(super) struct Rooms = GET "/_synapse/admin/v1/statistics/database/rooms";
    for AccessToken;
    {}
}

/// The largest rooms, as far as some of their events tell.
pub(super) async fn rooms(cx: Cx<Server>, _: Rooms) -> Result<Json, ApiError> {
    cx.at_length(|| {
        let rooms = rooms::largest(&cx.app.context, LARGEST)?.into_iter();
        let rooms =
            rooms.map(|(room_id, bytes)| json!({ "room_id": room_id, "estimated_size": bytes }));
        to_json(&json!({ "rooms": rooms.collect::<Vec<_>>() }))
    })
    .await
}
