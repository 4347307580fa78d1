//! List the open reports, the newest first.

use ruma::{RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::summary::{ReportSummary, summary};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::reports::Report;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListReports {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reports {
    pub reports: Vec<ReportSummary>,
}

impl Act for ListReports {
    const NAME: &'static str = "list-reports";
    const DONE: &'static str = "reports";
    type Done = Reports;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Reports, ActError> {
        Ok(Reports { reports: list(context, |_| true)? })
    }
}

/// The open reports, the newest first.
pub(super) fn newest(context: &ActContext) -> impl Iterator<Item = (Offset, Report)> {
    context.engine.state().reports.all().into_iter().rev()
}

/// The open reports that `wanted` lets through, the newest first.
pub fn list(
    context: &ActContext,
    wanted: impl Fn(&Report) -> bool,
) -> Result<Vec<ReportSummary>, ReadError> {
    let wanted = newest(context).filter(|(_, report)| wanted(report));
    wanted.map(|(id, report)| summary(context, id, report)).collect()
}

/// How many of the newest open reports are looked at for one user.
const COMPARED: usize = 1000;

/// The newest open reports about a room or its events, the newest first.
pub fn about_room(
    context: &ActContext,
    room_id: &RoomId,
    limit: usize,
) -> Result<Vec<ReportSummary>, ReadError> {
    let reports = &context.engine.state().reports;
    let of_room = reports.of_room(room_id).into_iter().rev().take(limit);
    let open = of_room.filter_map(|id| Some((id, reports.get(id)?)));
    open.map(|(id, report)| summary(context, id, report)).collect()
}

/// The open reports about a user or what they sent, and those that they made, the newest first.
pub fn involving(
    context: &ActContext,
    user_id: &UserId,
    limit: usize,
) -> Result<(Vec<ReportSummary>, Vec<ReportSummary>), ReadError> {
    let (mut about, mut by) = (Vec::new(), Vec::new());
    for (id, report) in newest(context).take(COMPARED) {
        if about.len() >= limit && by.len() >= limit {
            break;
        }
        let is_by = report.reporter == *user_id;
        let summary = summary(context, id, report)?;
        if about.len() < limit && summary.about().is_some_and(|of| of == user_id) {
            about.push(summary.clone());
        }
        if by.len() < limit && is_by {
            by.push(summary);
        }
    }
    Ok((about, by))
}

/// The open reports about a user, or about what they sent, the newest first.
pub fn about(context: &ActContext, user_id: &UserId) -> Result<Vec<Offset>, ReadError> {
    let mut found = Vec::new();
    for (id, report) in newest(context) {
        if summary(context, id, report)?.about().is_some_and(|of| of == user_id) {
            found.push(id);
        }
    }
    Ok(found)
}
