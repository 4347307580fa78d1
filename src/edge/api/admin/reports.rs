//! Reports. Tools only know reports of events; `?kind=` selects those of a `room` or a `user`, or
//! `all`.

use ruma::api::auth_scheme::AccessToken;
use serde_json::json;

use super::parts::{ActParameters, AdminParts as _, PageOf, nothing, page_of};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_ops::admin::reports::{self, RemoveReport};
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
    cx.act(RemoveReport { id }, request.terms, nothing).await
}
