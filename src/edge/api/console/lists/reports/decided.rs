//! What was decided last, and by whom.

use maud::{Markup, html};

use super::place::{REPORTS, tabs};
use crate::{
    api::{
        console::{
            lists::{pages, start},
            parts::{acts, at_second, long, record, room_of, short, table, text, user},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::reports::{DecidedReport, ReportDecision, decided_page, decision_on};
use logcabin_record::Offset;

endpoint! {
    pub(in crate::api::console) struct DecidedList = GET "/_logcabin/console/reports/decided";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

pub(in crate::api::console) async fn list(
    cx: Cx<Server, Visitor>,
    request: DecidedList,
) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Decided reports", "reports"), |app| {
        let (found, total) = decided_page(&app.context, from, limits::CONSOLE_ROWS)?;
        let rows: Vec<_> = found.iter().map(row).collect();
        let columns =
            ["Closed", "By", "What was decided", "Report", "About", "Room", "Reporter", "Acts"];
        Ok(html! {
            (tabs(true))
            (table(&columns, &rows, "No report was closed yet."))
            (pages(&[], from, rows.len(), total))
            p.note {
                "The last " (limits::CLOSED_REPORTS) " that were closed. The log has all: "
                a href="/_logcabin/console/log?kind=report.remove" { "closed reports" } "."
            }
        })
    })
    .await
}

fn row(of: &DecidedReport) -> Vec<Markup> {
    let DecidedReport { id, report, decision } = of;
    let reason = report.as_ref().and_then(|report| report.reason.as_deref());
    let about = report.as_ref().and_then(|report| report.about());
    vec![
        html! { (at_second(decision.time_ms)) },
        who(&decision.by),
        words(decision),
        html! { (record(*id)) " " bdi { (short(reason.unwrap_or_default())) } },
        about.map(|user_id| user(user_id.as_str())).unwrap_or_default(),
        report.as_ref().map(room_of).unwrap_or_default(),
        report.as_ref().map(|report| user(report.user_id.as_str())).unwrap_or_default(),
        acts(&["undo"], &[("record", &decision.record.to_string())]),
    ]
}

/// Who decided: operators have no page.
pub(super) fn who(by: &str) -> Markup {
    if by.starts_with('@') { user(by) } else { text(by) }
}

fn words(decision: &ReportDecision) -> Markup {
    html! { bdi { (long(decision.words.as_deref().unwrap_or("closed, without a reason"))) } }
}

/// In a sentence, without its end.
pub(super) fn sentence(decision: &ReportDecision) -> Markup {
    html! {
        "closed by " (who(&decision.by)) " at " (at_second(decision.time_ms)) ": "
        (words(decision)) " (record " (record(decision.record)) ")"
    }
}

/// Says what has just been decided.
pub(super) fn closed(app: &Server, id: Offset) -> Result<Markup, ApiError> {
    Ok(html! {
        @if let Some(of) = decision_on(&app.context, id)? {
            p.good role="status" { "Report " (id) " was " (sentence(&of.decision)) "." }
        }
    })
}

/// The place of a report that somebody else has closed.
pub(super) fn instead(of: &DecidedReport) -> Markup {
    html! {
        p role="status" { "Report " (of.id) " was " (sentence(&of.decision)) "." }
        (acts(&["undo"], &[("record", &of.decision.record.to_string())]))
        p { a href=(REPORTS) { "All open reports" } }
    }
}
