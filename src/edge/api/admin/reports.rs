//! Reports. `event_reports` lists those of events; `?kind=` selects those of a `room` or a `user`,
//! or `all`. `user_reports` has those of users in the form that tools know.

use ruma::{UserId, api::auth_scheme::AccessToken};
use serde_json::{Value, json};

use super::parts::{ActParameters, AdminParts as _, PageOf, nothing, page_of};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_ops::admin::reports::{self, RemoveReport, ReportSummary};
use logcabin_record::Offset;
use logcabin_state::reports::Report;

endpoint! {
    /// `GET …/event_reports`
    pub(super) struct List = GET "/_synapse/admin/v1/event_reports";
    for AccessToken;
    {
        page: PageOf = page,
        kind: Option<String> = parameter,
        user_id: Option<String> = parameter,
        room_id: Option<String> = parameter,
        sender_user_id: Option<String> = parameter,
        dir: Option<bool> = backwards,
    }
}

pub(super) async fn list(cx: Cx<Server>, request: List) -> Result<Json, ApiError> {
    let kind: fn(&Report) -> bool = match request.kind.as_deref() {
        None | Some("event") => |report| report.event_id.is_some(),
        Some("room") => |report| report.event_id.is_none() && report.room_id.is_some(),
        Some("user") => |report| report.user_id.is_some(),
        Some("all") => |_| true,
        Some(_) => return Err(ApiError::invalid_param("There is no such kind of reports.")),
    };
    let (user, room, sender) = (request.user_id, request.room_id, request.sender_user_id);
    let wanted = |report: &Report| {
        let by = user.as_ref().is_none_or(|part| report.reporter.as_str().contains(part));
        let of_room = report.room_id.as_ref().map_or("", |room_id| room_id.as_str());
        kind(report) && by && room.as_ref().is_none_or(|part| of_room.contains(part))
    };
    let mut reports = at_length(|| reports::list(&cx.app.context, wanted))?;
    if let Some(sender) = sender {
        reports.retain(|report| report.sender.as_ref().is_some_and(|of| of.as_str() == sender));
    }
    if request.dir == Some(false) {
        reports.reverse();
    }
    let total = reports.len();
    let (reports, next) = page_of(reports, request.page);
    let mut answer = json!({ "event_reports": reports, "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.into();
    }
    to_json(&answer)
}

fn id(report_id: &str) -> Result<Offset, ApiError> {
    let id = report_id.parse().map(Offset::new);
    id.map_err(|_| ApiError::invalid_param("The id of a report is a number."))
}

endpoint! {
    /// `GET …/event_reports/{report_id}`
    pub(super) struct Get = GET "/_synapse/admin/v1/event_reports/{report_id}";
    for AccessToken;
    { report_id: String = path }
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    to_json(&reports::details(&cx.app.context, id(&request.report_id)?)?)
}

endpoint! {
    /// `DELETE …/event_reports/{report_id}`
    pub(super) struct Delete = DELETE "/_synapse/admin/v1/event_reports/{report_id}";
    for AccessToken;
    { report_id: String = path, terms: ActParameters = terms }
}

pub(super) async fn delete(cx: Cx<Server>, request: Delete) -> Result<Json, ApiError> {
    let id = id(&request.report_id)?;
    cx.act(RemoveReport { id, tell: None }, request.terms, nothing).await
}

endpoint! {
    /// `GET …/user_reports`
    pub(super) struct ListOfUsers = GET "/_synapse/admin/v1/user_reports";
    for AccessToken;
    {
        page: PageOf = page,
        user_id: Option<String> = parameter,
        target_user_id: Option<String> = parameter,
        dir: Option<bool> = backwards,
    }
}

/// The reports of users alone, the newest first.
pub(super) async fn list_of_users(cx: Cx<Server>, request: ListOfUsers) -> Result<Json, ApiError> {
    let ListOfUsers { page, user_id, target_user_id, dir } = request;
    let has = |part: &Option<String>, user_id: &UserId| {
        part.as_ref().is_none_or(|part| user_id.as_str().contains(part))
    };
    let wanted = |report: &Report| {
        report.user_id.as_ref().is_some_and(|target| has(&target_user_id, target))
            && has(&user_id, &report.reporter)
    };
    let mut reports = at_length(|| reports::list(&cx.app.context, wanted))?;
    if dir == Some(false) {
        reports.reverse();
    }
    let total = reports.len();
    let (reports, next) = page_of(reports, page);
    let reports: Vec<_> = reports.iter().map(of_user).collect();
    let mut answer = json!({ "user_reports": reports, "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.into();
    }
    to_json(&answer)
}

fn of_user(report: &ReportSummary) -> Value {
    json!({
        "id": report.id,
        "received_ts": report.received_ts,
        "target_user_id": report.target_user_id,
        "user_id": report.user_id,
        "reason": report.reason,
    })
}

/// The report of a user that has this id. Reports of anything else have other endpoints.
fn report_of_user(cx: &Cx<Server>, report_id: &str) -> Result<ReportSummary, ApiError> {
    let summary = reports::details(&cx.app.context, id(report_id)?)?.summary;
    let is_of_user = summary.target_user_id.is_some();
    is_of_user
        .then_some(summary)
        .ok_or_else(|| ApiError::not_found("There is no such report of a user."))
}

endpoint! {
    /// `GET …/user_reports/{report_id}`
    pub(super) struct GetOfUser = GET "/_synapse/admin/v1/user_reports/{report_id}";
    for AccessToken;
    { report_id: String = path }
}

pub(super) async fn get_of_user(cx: Cx<Server>, request: GetOfUser) -> Result<Json, ApiError> {
    to_json(&of_user(&report_of_user(&cx, &request.report_id)?))
}

endpoint! {
    /// `DELETE …/user_reports/{report_id}`
    pub(super) struct DeleteOfUser = DELETE "/_synapse/admin/v1/user_reports/{report_id}";
    for AccessToken;
    { report_id: String = path, terms: ActParameters = terms }
}

pub(super) async fn delete_of_user(
    cx: Cx<Server>,
    request: DeleteOfUser,
) -> Result<Json, ApiError> {
    let id = report_of_user(&cx, &request.report_id)?.id;
    cx.act(RemoveReport { id, tell: None }, request.terms, nothing).await
}
