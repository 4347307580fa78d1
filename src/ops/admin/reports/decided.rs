//! The reports that were closed last: what was decided, by whom and when. And what was reported
//! before about the same.

use super::{
    list::newest,
    summary::{ReportSummary, summary},
};
use crate::admin::context::ActContext;
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset};
use logcabin_state::reports::{ClosedReport, Report};

/// How many of the newest open reports are compared with one, and how many of those that were
/// closed last.
const COMPARED: usize = 300;

/// What was decided on a report.
#[derive(Clone, Debug)]
pub struct ReportDecision {
    /// The record that closed the report.
    pub record: Offset,
    pub time_ms: u64,
    pub by: String,
    /// The reason that was recorded.
    pub words: Option<String>,
}

/// A report that was closed.
#[derive(Clone, Debug)]
pub struct DecidedReport {
    pub id: Offset,
    /// None if its content was erased.
    pub report: Option<ReportSummary>,
    pub decision: ReportDecision,
}

/// An earlier report, and what the two have in common.
#[derive(Clone, Debug)]
pub struct EarlierReport {
    pub report: ReportSummary,
    pub same: &'static str,
    /// None if it is open.
    pub decision: Option<ReportDecision>,
}

fn decision(context: &ActContext, record: Offset) -> Result<ReportDecision, ReadError> {
    let words = context.reason_for(record)?;
    let (by, time_ms) = (context.author_of(record)?, context.time_of(record)?);
    Ok(ReportDecision { record, time_ms, by, words })
}

/// A report that is not open any more, as it was.
fn as_it_was(context: &ActContext, id: Offset) -> Result<Option<ReportSummary>, ReadError> {
    let Some(Command::ReportCreate(body)) = context.engine.events().command(id)? else {
        return Ok(None);
    };
    let report = Report {
        time_ms: context.time_of(id)?,
        reporter: body.reporter,
        room_id: body.room_id,
        event_id: body.event_id,
        user_id: body.user_id,
    };
    summary(context, id, report).map(Some)
}

fn decided(context: &ActContext, closed: ClosedReport) -> Result<DecidedReport, ReadError> {
    let ClosedReport { report: id, by } = closed;
    Ok(DecidedReport { id, report: as_it_was(context, id)?, decision: decision(context, by)? })
}

/// A page of the reports that were closed last, the last first, and how many are known.
pub fn decided_page(
    context: &ActContext,
    from: usize,
    limit: usize,
) -> Result<(Vec<DecidedReport>, usize), ReadError> {
    let all = context.engine.state().reports.closed();
    let total = all.len();
    let shown = all.into_iter().skip(from).take(limit).map(|closed| decided(context, closed));
    Ok((shown.collect::<Result<_, _>>()?, total))
}

/// What was decided on this report, if it is among those that were closed last.
pub fn decision_on(context: &ActContext, id: Offset) -> Result<Option<DecidedReport>, ReadError> {
    let closed = context.engine.state().reports.closed();
    let found = closed.into_iter().find(|closed| closed.report == id);
    found.map(|closed| decided(context, closed)).transpose()
}

/// What two reports have in common.
fn same(one: &ReportSummary, other: &ReportSummary) -> Option<&'static str> {
    if one.event_id.is_some() && one.event_id == other.event_id {
        Some("message")
    } else if one.about().is_some() && one.about() == other.about() {
        Some("user")
    } else if one.about().is_none() && other.about().is_none() && one.room_id == other.room_id {
        Some("room")
    } else {
        (one.user_id == other.user_id).then_some("reporter")
    }
}

/// Other reports, open and closed, about the same as this one or by the same reporter, the newest
/// first.
pub fn earlier(
    context: &ActContext,
    to: &ReportSummary,
    limit: usize,
) -> Result<Vec<EarlierReport>, ReadError> {
    let mut found = Vec::new();
    for (id, report) in newest(context).take(COMPARED) {
        if id != to.id {
            let report = summary(context, id, report)?;
            let same = same(to, &report);
            found.extend(same.map(|same| EarlierReport { report, same, decision: None }));
        }
    }
    for ClosedReport { report: id, by } in
        context.engine.state().reports.closed().into_iter().take(COMPARED)
    {
        let Some(report) = as_it_was(context, id)? else { continue };
        if let Some(same) = same(to, &report) {
            let decision = Some(decision(context, by)?);
            found.push(EarlierReport { report, same, decision });
        }
    }
    found.sort_by_key(|earlier| std::cmp::Reverse(earlier.report.id));
    found.truncate(limit);
    Ok(found)
}
