//! The first page: whether anything is wrong, what there is to do, and how the server does, over
//! the last hour and the last day.

use maud::{Markup, html};

use super::{
    parts::short,
    plot::{Plot, Unit},
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_engine::Engine;
use logcabin_ops::{
    doctor::{Finding, Level, Report, glance},
    history::terminal::{duration, grouped},
};
use logcabin_service::samples::{Sample, Samples};
use logcabin_state::State;

endpoint! {
    pub(super) struct Now = GET "/_logcabin/console";
    for ConsoleLogin;
    {}
}

endpoint! {
    /// What changes on it.
    pub(super) struct Plots = GET "/_logcabin/console/plots";
    for ConsoleLogin;
    {}
}

pub(super) async fn page(cx: Cx<Server, Visitor>, _: Now) -> Result<Reply, ApiError> {
    show(&cx, ("Home", "now"), |app| {
        let found = glance(&app.context);
        let examined = app.context.doctor.last_report();
        let now_ms = app.engine.clock().now_ms();
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
            div id="plots" data-from="/_logcabin/console/plots" {
                (plots(&app.engine, &app.samples))
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
    let ago = |report: &Report| duration(now_ms.saturating_sub(report.checked_ms) / 1000);
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
            "Looked at " (ago(found)) " ago. "
            @if unknown > 0 { (unknown) " check(s) could not be made. " }
            @match examined {
                Some(report) => { "Other servers were asked " (ago(report)) " ago. " }
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
    let ago = |ms: u64| duration(now_ms.saturating_sub(ms) / 1000);
    let state = app.engine.state();
    let free = app.samples.hour().last().map(|last| Unit::Bytes.show(last.disk_free));
    let facts = [
        ("Version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("Runs for", app.context.doctor.since_ms().map(ago)),
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

pub(super) async fn part(cx: Cx<Server, Visitor>, _: Plots) -> Result<Reply, ApiError> {
    let plots = plots(&cx.app.engine, &cx.app.samples);
    Ok(Reply::bytes("text/html; charset=utf-8", plots.into_string()))
}

/// From two samples, the value between them; from one, that at it.
type Value = fn(&Sample, &Sample) -> Option<f64>;

/// How much something that counts has grown; none if it began again.
fn grown(before: f64, after: f64) -> Option<f64> {
    // A sum of nothing is a negative zero.
    (after >= before).then_some(after - before + 0.0)
}

fn rate(of: fn(&Sample) -> f64, before: &Sample, after: &Sample) -> Option<f64> {
    let seconds = after.at_ms.saturating_sub(before.at_ms) as f64 / 1000.0;
    grown(of(before), of(after)).filter(|_| seconds > 0.0).map(|grown| grown / seconds)
}

/// The mean of what was measured between two samples; none if nothing was.
fn mean(
    sum: fn(&Sample) -> f64,
    count: fn(&Sample) -> f64,
    before: &Sample,
    after: &Sample,
) -> Option<f64> {
    let count = grown(count(before), count(after)).filter(|count| *count > 0.0)?;
    grown(sum(before), sum(after)).map(|sum| sum / count)
}

const PLOTS: [(&str, Unit, Value); 10] = [
    ("Requests per second", Unit::Number, |a, b| rate(|s| s.requests, a, b)),
    ("Records per second", Unit::Number, |a, b| rate(|s| s.records, a, b)),
    ("Write to disk, mean", Unit::Seconds, |a, b| mean(|s| s.sync_seconds, |s| s.syncs, a, b)),
    ("Until a waiting client knows, mean", Unit::Seconds, |a, b| {
        mean(|s| s.delay_seconds, |s| s.delays, a, b)
    }),
    ("Failed requests per second", Unit::Number, |a, b| rate(|s| s.errors, a, b)),
    ("Waiting users", Unit::Number, |_, b| Some(b.waiting)),
    ("Processor", Unit::Percent, |a, b| rate(|s| s.cpu_seconds * 100.0, a, b)),
    ("Memory", Unit::Bytes, |_, b| Some(b.memory)),
    ("Disk used", Unit::Bytes, |_, b| Some(b.disk_used)),
    ("Deliveries behind, records", Unit::Number, |_, b| Some(b.lag)),
];

fn plots(engine: &Engine, samples: &Samples) -> Markup {
    let now_ms = engine.clock().now_ms();
    let of = |title, samples: &[Sample], length_ms: u64| {
        let from_ms = now_ms.saturating_sub(length_ms);
        // A stretch without a server has no line.
        let longest = length_ms / 60;
        html! {
            h2 { (title) }
            div.plots {
                @for (title, unit, value) in PLOTS {
                    (Plot {
                        title,
                        unit,
                        from_ms,
                        to_ms: now_ms,
                        points: points(samples, from_ms, longest, value),
                    }.draw())
                }
            }
        }
    };
    html! {
        (of("The last hour", &samples.hour(), 3_600_000))
        (of("The last day", &samples.day(), 86_400_000))
        p.note { "Times are in UTC." }
    }
}

fn points(
    samples: &[Sample],
    from_ms: u64,
    longest_ms: u64,
    value: Value,
) -> Vec<(u64, Option<f64>)> {
    // The first one has none before it, and says what is there at it.
    let pairs = samples.iter().take(1).chain(samples).zip(samples);
    pairs
        .filter(|(_, after)| after.at_ms >= from_ms)
        .map(|(before, after)| {
            let is_gap = after.at_ms.saturating_sub(before.at_ms) > longest_ms;
            (after.at_ms, if is_gap { None } else { value(before, after) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_shown_as_a_rate_and_has_a_gap_where_the_server_was_down() {
        let sample = |at_ms, requests| Sample { at_ms, requests, ..Sample::default() };
        let samples = [
            sample(0, 0.0),
            sample(10_000, 50.0),
            // It was started again.
            sample(20_000, 5.0),
            sample(90_000, 100.0),
            sample(100_000, 100.0),
        ];
        let ((_, _, requests), (_, _, memory)) = (PLOTS[0], PLOTS[7]);
        let found = points(&samples, 5_000, 60_000, requests);
        let expected = [(10_000, Some(5.0)), (20_000, None), (90_000, None), (100_000, Some(0.0))];
        assert_eq!(found, expected);
        assert_eq!(points(&samples[..1], 0, 60_000, requests), [(0, None)]);
        assert_eq!(points(&samples[..1], 0, 60_000, memory), [(0, Some(0.0))]);
    }
}
