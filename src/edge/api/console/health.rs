//! "Health": what `logcabin doctor` finds. Looking at the page examines nothing: a button does, and
//! not more often than once a minute. Forms of other sites are refused before they get here.

use maud::{Markup, html};

use super::{
    parts::{ago, at_second, long, table},
    visitor::{ConsoleLogin, Visitor, see_other},
};
use crate::{
    api::server::Server,
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::doctor::{Finding, Level, Report, examine};

const PATH: &str = "/_logcabin/console/health";

endpoint! {
    /// What was found last.
    pub(super) struct HealthPage = GET "/_logcabin/console/health";
    for ConsoleLogin;
    {}
}

endpoint! {
    /// The button that has the server examined.
    pub(super) struct HealthCheck = POST "/_logcabin/console/health";
    for ConsoleLogin;
    body Body::Short(limits::FORM_BYTES);
    {}
}

pub(super) async fn page(cx: Cx<Server, Visitor>, _: HealthPage) -> Result<Reply, ApiError> {
    let doctor = &cx.app.context.doctor;
    let now_ms = cx.app.engine.clock().now_ms();
    let body = body(doctor.last_report().as_ref(), doctor.is_at_work(), now_ms);
    Ok(cx.caller.page(&cx.app, ("Health", "health"), body).reply())
}

pub(super) async fn submit(cx: Cx<Server, Visitor>, _: HealthCheck) -> Result<Reply, ApiError> {
    let context = std::sync::Arc::clone(&cx.app.context);
    // Whoever comes meanwhile finds it at work, and does not wait for it.
    if !context.doctor.is_at_work() {
        // To its end, even if the browser goes away.
        let work = async move { examine(&context, Some(limits::DOCTOR_AGAIN)).await };
        tokio::spawn(work).await.map_err(ApiError::internal)?;
    }
    Ok(see_other(PATH))
}

fn body(report: Option<&Report>, is_at_work: bool, now_ms: u64) -> Markup {
    html! {
        @match report {
            None => { p.note role="status" { "The server was not examined since its start." } }
            Some(report) => { (found(report, now_ms)) }
        }
        @if is_at_work {
            p role="status" { "The server is being examined. " a href=(PATH) { "Show the findings" } }
        } @else {
            form method="post" action=(PATH) { button type="submit" { "Examine the server" } }
        }
        p.note {
            "This asks DNS, other homeservers, and the mail and TURN servers, and takes up to half a "
            "minute. What was found within the last minute is not looked for again. "
            code { "logcabin doctor" } " shows the same in a terminal, of a stopped server, too."
        }
    }
}

fn found(report: &Report, now_ms: u64) -> Markup {
    let rows: Vec<_> = report.findings.iter().map(row).collect();
    let columns = ["Level", "Check", "What", "Why it matters", "What mends it"];
    html! {
        p class=[class(report.level)] role="status" {
            (report.count(Level::Error)) " error(s), " (report.count(Level::Warning))
            " warning(s), " (report.count(Level::Unknown)) " unknown, "
            (report.count(Level::Ok)) " ok"
        }
        p.moment {
            "Examined " (ago(report.checked_ms, now_ms)) ", at " (at_second(report.checked_ms))
        }
        (table(&columns, &rows, ""))
    }
}

fn row(of: &Finding) -> Vec<Markup> {
    vec![
        html! { span.word { span class=[class(of.level)] { (of.level.name()) } } },
        html! { span.word { (of.check) } },
        whole(&of.what),
        whole(&of.why),
        whole(&of.mend),
    ]
}

/// A text of any length: none may be cut off.
fn whole(text: &str) -> Markup {
    html! { bdi { (long(text)) } }
}

const fn class(level: Level) -> Option<&'static str> {
    match level {
        Level::Ok => Some("good"),
        Level::Unknown => None,
        Level::Warning | Level::Error => Some("bad"),
    }
}
