//! Reports. Tools look for those of events alone; `?kind=` shows those of a `room` or a `user`, or
//! `all`.

use serde_json::json;

use super::{Caller, Desk, nothing, page_of, reply};
use crate::{
    edge::{
        api::at_length,
        http::{ApiError, RawRequest, Reply},
    },
    ops::admin::Act,
    record::Offset,
    state::reports::Report,
};

pub(super) async fn list(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (from, limit) = desk.page()?;
    let kind: fn(&Report) -> bool = match desk.cx.query("kind")?.as_deref() {
        None | Some("event") => |report| report.event_id.is_some(),
        Some("room") => |report| report.event_id.is_none() && report.room_id.is_some(),
        Some("user") => |report| report.user_id.is_some(),
        Some("all") => |_| true,
        Some(_) => return Err(ApiError::invalid_param("There is no such kind of reports.")),
    };
    let (user, room) = (desk.cx.query("user_id")?, desk.cx.query("room_id")?);
    let sender = desk.cx.query("sender_user_id")?;
    let wanted = |report: &Report| {
        let by = user.as_ref().is_none_or(|part| report.reporter.as_str().contains(part));
        let of_room = report.room_id.as_ref().map_or("", |room_id| room_id.as_str());
        kind(report) && by && room.as_ref().is_none_or(|part| of_room.contains(part))
    };
    let mut reports = at_length(|| desk.cx.app.office.reports(wanted))?;
    if let Some(sender) = sender {
        reports.retain(|report| report.sender.as_ref().is_some_and(|of| of.as_str() == sender));
    }
    if desk.backwards()? == Some(false) {
        reports.reverse();
    }
    let total = reports.len();
    let (reports, next) = page_of(reports, from, limit);
    let mut answer = json!({ "event_reports": reports, "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.into();
    }
    reply(&answer)
}

fn id(desk: &Desk) -> Result<Offset, ApiError> {
    let id = desk.arg(0)?.parse().map(Offset::new);
    id.map_err(|_| ApiError::invalid_param("The id of a report is a number."))
}

pub(super) async fn get(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    reply(&desk.cx.app.office.report(id(&desk)?)?)
}

pub(super) async fn delete(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    desk.act(Act::RemoveReport { id: id(&desk)? }, nothing).await
}
