//! The first page: whether anything is wrong, what there is to do, and how the server does, over
//! the last hour, day, week or month.

use maud::{Markup, html};

use super::{
    axis::Unit,
    marks,
    parts::{ago, short},
    recent::{Recent, Values, range},
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::metrics::{LATENCY, STAGE};
use logcabin_ops::{
    doctor::{Finding, Level, Report, glance},
    history::terminal::{duration, grouped},
};
use logcabin_service::samples::{Range, Sample, quantile};
use logcabin_state::State;

endpoint! {
    pub(super) struct Now = GET "/_logcabin/console";
    for ConsoleLogin;
    { range: Option<String> = parameter }
}

endpoint! {
    /// What changes on it.
    pub(super) struct Plots = GET "/_logcabin/console/plots";
    for ConsoleLogin;
    { range: Option<String> = parameter }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Now) -> Result<Reply, ApiError> {
    let range = range(request.range.as_deref(), Range::Hour)?;
    show(&cx, ("Home", "now"), |app| {
        let found = glance(&app.context);
        let examined = app.context.doctor.last_report();
        let now_ms = app.engine.clock().now_ms();
        let recent = Recent::of(app, range);
        Ok(html! {
            div.pair {
                section aria-labelledby="wrong" {
                    h2 #wrong { "Is anything wrong?" }
                    (wrong(&found, examined.as_ref(), now_ms))
                }
                section aria-labelledby="to-do" {
                    h2 #to-do { "Is there work?" }
                    (to_do(&app.engine.state()))
                }
            }
            (known(app, now_ms))
            div.over {
                h2 { (recent.title()) }
                (recent.links())
            }
            div id="plots" data-from={ "/_logcabin/console/plots" (recent.query()) }
                data-every=(range.every_ms()) {
                (plots(&recent))
            }
        })
    })
    .await
}

/// What is not well: of what was looked at now, and of what the last examination found beyond that.
fn wrong(found: &Report, examined: Option<&Report>, now_ms: u64) -> Markup {
    let is_known = |of: &Finding| found.findings.iter().any(|known| known.check == of.check);
    let beyond = examined.iter().flat_map(|report| &report.findings).filter(|of| !is_known(of));
    let all: Vec<_> = found.findings.iter().chain(beyond).collect();
    let mut bad: Vec<_> = all.iter().filter(|of| of.level >= Level::Warning).collect();
    bad.sort_by_key(|of| std::cmp::Reverse(of.level));
    let unknown = all.iter().filter(|of| of.level == Level::Unknown).count();
    html! {
        @if bad.is_empty() { p.good { "Nothing that was looked at." } } @else {
            ul.lines {
                @for of in bad {
                    li class=[(of.level == Level::Error).then_some("bad")] {
                        a href={ "/_logcabin/console" (page_of(&of.check)) } { bdi { (short(&of.what)) } }
                        p.note { bdi { (short(&of.mend)) } }
                    }
                }
            }
        }
        p.note {
            "Looked at " (ago(found.checked_ms, now_ms)) ". "
            @if unknown > 0 { (unknown) " check(s) could not be made. " }
            @match examined {
                Some(report) => {
                    "Other servers were asked " (ago(report.checked_ms, now_ms)) ". "
                }
                None => { "Other servers were not asked since the start. " }
            }
            a href="/_logcabin/console/health" { "Health" }
        }
    }
}

/// The page that says more about a check.
fn page_of(check: &str) -> &'static str {
    match check {
        "destinations" => "/federation",
        "backup" | "backup-verified" => "/backups",
        "disk" => "/disk",
        "projections" => "/snapshots",
        _ => "/health",
    }
}

/// What waits for an administrator.
fn to_do(state: &State) -> Markup {
    let (reports, waiting) = (state.reports.len(), state.accounts.waiting_count());
    html! {
        @if reports + waiting == 0 { p.good { "Nothing waits for you." } } @else {
            ul.lines {
                @if reports > 0 {
                    li { a href="/_logcabin/console/reports" { (reports) " open report(s)" } }
                }
                @if waiting > 0 {
                    li {
                        a href="/_logcabin/console/waiting" { (waiting) " waiting registration(s)" }
                    }
                }
            }
        }
    }
}

/// What the server is.
fn known(app: &Server, now_ms: u64) -> Markup {
    let since = |ms: u64| duration(now_ms.saturating_sub(ms) / 1000);
    let state = app.engine.state();
    let free = app.samples.last().map(|last| Unit::Bytes.show(last.disk_free));
    let facts = [
        ("Version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("Runs for", app.context.doctor.since_ms().map(since)),
        ("Users", Some(grouped(state.accounts.len() as u64))),
        ("Rooms", Some(grouped(state.rooms.len() as u64))),
        ("Records", Some(grouped(app.engine.head().offset().get()))),
        ("Disk free", free),
    ];
    html! {
        dl.facts {
            @for (name, value) in facts {
                @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
            }
        }
    }
}

pub(super) async fn part(cx: Cx<Server, Visitor>, request: Plots) -> Result<Reply, ApiError> {
    let range = range(request.range.as_deref(), Range::Hour)?;
    let plots = plots(&Recent::of(&cx.app, range));
    Ok(Reply::bytes("text/html; charset=utf-8", plots.into_string()))
}

/// How much something that counts has grown each second.
fn rate(of: fn(&Sample) -> f64, before: &Sample, after: &Sample) -> Option<f64> {
    let seconds = after.at_ms.saturating_sub(before.at_ms) as f64 / 1000.0;
    // A sum of nothing is a negative zero.
    let grown = of(after) - of(before) + 0.0;
    // It may have begun again.
    (seconds > 0.0 && grown >= 0.0).then(|| grown / seconds)
}

/// What half of the measurements do not exceed, and what 99 of 100 do not.
fn percentiles(bounds: &[f64], before: &[f64], after: &[f64]) -> Vec<Option<f64>> {
    [0.5, 0.99].map(|part| quantile(bounds, before, after, part)).to_vec()
}

/// Of latencies, the names of [`percentiles`].
pub(super) const PERCENTILES: &[&str] = &["half", "99 of 100"];

/// The time until a waiting client knows.
pub(super) const NEWS: Values = |a, b| percentiles(LATENCY, &a.news_within, &b.news_within);

const PLOTS: [(&str, Unit, &[&str], Values); 12] = [
    ("Requests per second", Unit::Number, &[], |a, b| vec![rate(|s| s.requests, a, b)]),
    ("Records per second", Unit::Number, &[], |a, b| vec![rate(|s| s.records, a, b)]),
    ("Failed requests per second", Unit::Number, &[], |a, b| vec![rate(|s| s.errors, a, b)]),
    ("Answers to requests", Unit::Seconds, PERCENTILES, |a, b| {
        percentiles(LATENCY, &a.requests_within, &b.requests_within)
    }),
    ("Writes to disk", Unit::Seconds, PERCENTILES, |a, b| {
        percentiles(STAGE, &a.writes_within, &b.writes_within)
    }),
    ("Until a waiting client knows", Unit::Seconds, PERCENTILES, NEWS),
    ("Waiting users", Unit::Count, &[], |_, b| vec![Some(b.waiting)]),
    ("Processor", Unit::Percent, &[], |a, b| vec![rate(|s| s.cpu_seconds * 100.0, a, b)]),
    ("Memory", Unit::Bytes, &[], |_, b| vec![Some(b.memory)]),
    ("Disk used", Unit::Bytes, &[], |_, b| vec![Some(b.disk_used)]),
    ("Disk free", Unit::Bytes, &[], |_, b| vec![Some(b.disk_free)]),
    ("Deliveries behind, records", Unit::Count, &[], |_, b| vec![Some(b.lag)]),
];

fn plots(recent: &Recent) -> Markup {
    html! {
        div.plots {
            @for (title, unit, names, values) in PLOTS {
                (recent.plot(title, unit, names, values))
            }
        }
        (marks::listed(&recent.marks))
        p.note {
            "A click on a plot, or Enter on a moment, leads to the log at that moment. Answers to \
             requests are counted without those that wait for news."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_shown_as_a_rate_and_latencies_by_percentiles() {
        let (mut before, mut after) =
            (Sample::default(), Sample { at_ms: 10_000, ..Sample::default() });
        (before.requests, after.requests) = (10.0, 60.0);
        (before.requests_within, after.requests_within) = ([5.0; 19], [105.0; 19]);
        // 90 of 100 within the first bound, 98 within the second, and one of the rest in the last.
        (after.requests_within[0], after.requests_within[1]) = (95.0, 103.0);
        let of = |place: usize, before, after| (PLOTS[place].3)(before, after);
        assert_eq!(of(0, &before, &after), [Some(5.0)]);
        assert_eq!(of(0, &after, &after), [None]);
        let found = of(3, &before, &after);
        assert!(found[0].is_some_and(|half| half < LATENCY[0]), "{found:?}");
        assert!(found[1].is_some_and(|most| most > LATENCY[1] && most < LATENCY[2]), "{found:?}");
        assert_eq!(of(4, &before, &after), [None, None], "nothing was written");
    }
}
