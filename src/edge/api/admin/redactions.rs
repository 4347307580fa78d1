//! Redactions of what users sent.

use ruma::{UserId, api::auth_scheme::AccessToken};
use serde::Deserialize;
use serde_json::json;

use super::parts::{ActParameters, AdminParts as _};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_ops::admin::users::{RedactUser, RedactionStatus, redaction_status};

/// How many of the latest events in each room are redacted if the request does not say.
const LIMIT: u64 = 1000;

endpoint! {
    /// `POST …/user/{user_id}/redact`
    pub(super) struct Redact = POST "/_synapse/admin/v1/user/{user_id}/redact";
    for AccessToken;
    { user: String = path, body: RedactBody = json, terms: ActParameters = terms }
}

/// What is to be redacted.
#[derive(Deserialize)]
pub(super) struct RedactBody {
    /// None means all.
    rooms: Vec<String>,
    limit: Option<u64>,
    after_ts: Option<u64>,
    before_ts: Option<u64>,
    /// Whether it is done in the administrator's name where they may.
    use_admin: Option<bool>,
}

/// Begins to redact what a user sent. The rooms are told the reason, too.
pub(super) async fn redact(cx: Cx<Server>, request: Redact) -> Result<Json, ApiError> {
    let Redact { user, body, terms } = request;
    let RedactBody { rooms, limit, after_ts: after_ms, before_ts: before_ms, use_admin } = body;
    let limit = limit.filter(|limit| *limit > 0).or(Some(LIMIT));
    let own = &cx.app.config.server.name;
    let is_local = UserId::parse(&user).is_ok_and(|user| user.server_name() == own);
    let by = use_admin.unwrap_or(!is_local).then(|| cx.caller.user_id.to_string());
    let (say, wait) = (terms.reason.clone(), false);
    let act = RedactUser { user, rooms, limit, after_ms, before_ms, by, say, wait };
    cx.act(act, terms, |status| json!({ "redact_id": status.id })).await
}

endpoint! {
    /// `GET …/user/redact_status/{redact_id}`
    pub(super) struct Status = GET "/_synapse/admin/v1/user/redact_status/{redact_id}";
    for AccessToken;
    { redact_id: String = path }
}

pub(super) async fn status(cx: Cx<Server>, request: Status) -> Result<Json, ApiError> {
    let status = redaction_status(&cx.app.context, &request.redact_id);
    let status = status.ok_or_else(|| ApiError::not_found("There is no such redaction."))?;
    let RedactionStatus { complete, redacted, failed, .. } = status;
    let mut answer = json!({ "status": "active", "failed_redactions": failed });
    if complete {
        answer["status"] = "complete".into();
        answer["redacted"] = redacted.into();
    }
    to_json(&answer)
}
