//! Work that was ordered and takes long: shutdowns of rooms, purges of their history, and
//! redactions of what users sent.

use ruma::api::auth_scheme::AccessToken;
use serde_json::{Value, json};

use super::parts::AdminParts as _;
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_log::ReadError;
use logcabin_ops::admin::rooms::shutdown;
use logcabin_record::Offset;

endpoint! {
    /// `GET …/scheduled_tasks`
    pub(super) struct List = GET "/_synapse/admin/v1/scheduled_tasks";
    for AccessToken;
    {
        action_name: Option<String> = parameter,
        resource_id: Option<String> = parameter,
        status: Option<String> = parameter,
        max_timestamp: Option<u64> = number,
    }
}

/// A piece of such work.
struct Task {
    id: String,
    action: &'static str,
    /// The room or the user that it is about.
    resource_id: String,
    status: &'static str,
    /// The record that began it, or that ended it.
    changed: Offset,
    result: Value,
}

/// What was ordered, the oldest first.
pub(super) async fn list(cx: Cx<Server>, request: List) -> Result<Json, ApiError> {
    const STATUSES: [&str; 5] = ["scheduled", "active", "complete", "cancelled", "failed"];
    let List { action_name, resource_id, status, max_timestamp } = request;
    if status.as_deref().is_some_and(|status| !STATUSES.contains(&status)) {
        return Err(ApiError::invalid_param("There is no such status."));
    }
    let is_wanted = |task: &Task| {
        action_name.as_deref().is_none_or(|name| name == task.action)
            && resource_id.as_deref().is_none_or(|id| id == task.resource_id)
            && status.as_deref().is_none_or(|status| status == task.status)
    };
    at_length(|| {
        let mut tasks: Vec<_> =
            shutdowns(&cx).chain(redactions(&cx)).chain(purges(&cx)).filter(is_wanted).collect();
        tasks.sort_unstable_by_key(|task| task.changed);
        let mut listed = Vec::new();
        for task in tasks {
            let record = cx.app.engine.log().get(task.changed)?;
            let time_ms = record.ok_or(ReadError::Missing(task.changed))?.header.time_ms;
            if max_timestamp.is_none_or(|most| time_ms < most) {
                listed.push(json!({
                    "id": task.id, "action": task.action, "status": task.status,
                    "timestamp_ms": time_ms, "resource_id": task.resource_id,
                    "result": task.result, "error": null,
                }));
            }
        }
        to_json(&json!({ "scheduled_tasks": listed }))
    })
}

fn shutdowns(cx: &Cx<Server>) -> impl Iterator<Item = Task> {
    let state = cx.app.engine.state();
    state.closures.shutdowns().into_iter().map(move |ended| {
        let changed = ended.ended.unwrap_or(ended.begun);
        let status = shutdown::status(&state, ended);
        Task {
            id: status.id.clone(),
            action: "shutdown_and_purge_room",
            resource_id: status.room_id.to_string(),
            status: status.in_words(),
            changed,
            result: super::rooms::outcome(&status),
        }
    })
}

fn redactions(cx: &Cx<Server>) -> impl Iterator<Item = Task> {
    let redactions = cx.app.engine.state().redactions.all();
    redactions.into_iter().map(|redaction| {
        let (status, changed, result) = match redaction.ended {
            None => ("active", redaction.begun, Value::Null),
            Some(done) => ("complete", done.at, json!({ "failed_redactions": done.failed })),
        };
        let (id, resource_id) = (redaction.id, redaction.user_id.to_string());
        Task { id, action: "redact_all_events", resource_id, status, changed, result }
    })
}

fn purges(cx: &Cx<Server>) -> impl Iterator<Item = Task> {
    let purges = cx.app.engine.state().history_purges.all();
    purges.into_iter().map(|purge| Task {
        id: purge.id,
        action: "purge_history",
        resource_id: purge.room_id.to_string(),
        status: if purge.ended.is_some() { "complete" } else { "active" },
        changed: purge.ended.unwrap_or(purge.begun),
        result: Value::Null,
    })
}
