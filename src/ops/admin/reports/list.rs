//! List the open reports, the newest first.

use ruma::UserId;
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

/// The open reports that `wanted` lets through, the newest first.
pub fn list(
    context: &ActContext,
    wanted: impl Fn(&Report) -> bool,
) -> Result<Vec<ReportSummary>, ReadError> {
    let all = context.engine.state().reports.all().into_iter().rev();
    let wanted = all.filter(|(_, report)| wanted(report));
    wanted.map(|(id, report)| summary(context, id, report)).collect()
}

/// How many of the newest open reports are compared with one.
const COMPARED: usize = 1000;

/// Other open reports about the same event or the same user as this one, the newest first.
pub fn related(
    context: &ActContext,
    to: &ReportSummary,
    limit: usize,
) -> Result<Vec<ReportSummary>, ReadError> {
    let reported = to.target_user_id.as_ref().or(to.sender.as_ref());
    let mut found = Vec::new();
    for (id, report) in context.engine.state().reports.all().into_iter().rev().take(COMPARED) {
        if found.len() >= limit {
            break;
        }
        if id != to.id {
            let other = summary(context, id, report)?;
            let about = other.target_user_id.as_ref().or(other.sender.as_ref());
            let is_same_event = other.event_id.is_some() && other.event_id == to.event_id;
            if is_same_event || (about.is_some() && about == reported) {
                found.push(other);
            }
        }
    }
    Ok(found)
}

/// The open reports about a user, or about what they sent, the newest first.
pub fn about(context: &ActContext, user_id: &UserId) -> Result<Vec<Offset>, ReadError> {
    let mut found = Vec::new();
    for (id, report) in context.engine.state().reports.all().into_iter().rev() {
        let ReportSummary { target_user_id, sender, .. } = summary(context, id, report)?;
        if target_user_id.or(sender).as_deref() == Some(user_id) {
            found.push(id);
        }
    }
    Ok(found)
}

/// A page of the open reports, the newest first, and how many there are.
pub fn page(
    context: &ActContext,
    from: usize,
    limit: usize,
) -> Result<(Vec<ReportSummary>, usize), ReadError> {
    let all = context.engine.state().reports.all();
    let total = all.len();
    let shown = all.into_iter().rev().skip(from).take(limit);
    let shown = shown.map(|(id, report)| summary(context, id, report));
    Ok((shown.collect::<Result<_, _>>()?, total))
}
