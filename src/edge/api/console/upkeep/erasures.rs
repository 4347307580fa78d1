//! Erasures: a list, and a page for each.

use maud::{Markup, html};

use crate::{
    api::{
        console::{
            parts::{at_second, before, facts, record, table, text, user},
            progress::{bar, progress_of},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::{limits, progress};
use logcabin_engine::Engine;
use logcabin_ops::{
    admin::erasures::{
        Bounds, ErasureReceipt, Page, PageStart, PendingErasures, page, receipt, waiting,
    },
    history::terminal::grouped,
};
use logcabin_record::Offset;

/// How many `log.erase` records are read for the page of an erasure: each names up to a thousand
/// records.
const STEPS: usize = 200;

endpoint! {
    pub(in super::super) struct ErasureList = GET "/_logcabin/console/erasures";
    for ConsoleLogin;
    {
        step: Option<String> = parameter,
        passed: Option<String> = parameter,
    }
}

endpoint! {
    pub(in super::super) struct OneErasure = GET "/_logcabin/console/erasures/{because}";
    for ConsoleLogin;
    {
        because: String = path,
        after: Option<String> = parameter,
    }
}

/// A link to an erasure.
fn link(because: Offset, shown: &str) -> Markup {
    html! { a href={ "/_logcabin/console/erasures/" (because) } { (shown) } }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: ErasureList,
) -> Result<Reply, ApiError> {
    let place = match request.step {
        None => None,
        step => {
            let passed = request.passed.as_deref().unwrap_or("0").parse();
            let passed = passed.map_err(|_| ApiError::invalid_param("`passed` is a number."))?;
            Some(PageStart { step: before(&step)?, passed })
        }
    };
    show(&cx, ("Erasures", "erasures"), |app| {
        let (most, look) = (limits::CONSOLE_ROWS, limits::CONSOLE_LOOK);
        let found = page(&app.context, place, most, look)?;
        // What waits is shown once, on the first page.
        let waiting = place.is_none().then(|| waiting(&app.context, most, look)).transpose()?;
        Ok(body(&app.engine, &found, waiting.as_ref()))
    })
    .await
}

fn body(engine: &Engine, found: &Page, waiting: Option<&PendingErasures>) -> Markup {
    let rows: Vec<_> = found
        .rows
        .iter()
        .map(|row| {
            let (first, last) = row.steps;
            let is_cause = row.because > Offset::ZERO;
            vec![
                html! {
                    @if is_cause { (link(row.because, &row.because.to_string())) } @else { "–" }
                },
                html! { @if is_cause { (at_second(row.time_ms)) } },
                text(&row.who),
                text(&row.what),
                html! { (grouped(row.records)) },
                html! {
                    (record(first))
                    @if first != last { " to " (record(last)) }
                },
            ]
        })
        .collect();
    let columns = ["Because of", "Time", "Who", "What", "Records", "Erased with record"];
    html! {
        @if let Some(waiting) = waiting { (still_there(engine, waiting)) }
        h2 { "Erased" }
        (table(&columns, &rows, "Nothing has been erased so far."))
        @if let Some(PageStart { step, passed }) = found.left {
            p.pages {
                a href={ "?step=" (step) "&passed=" (passed) } { "Older erasures" }
            }
        }
    }
}

/// What is still to be erased.
fn still_there(engine: &Engine, waiting: &PendingErasures) -> Markup {
    let causes: Vec<_> = waiting
        .causes
        .iter()
        .map(|(because, who, what, records)| {
            vec![
                link(*because, &because.to_string()),
                text(who),
                text(what),
                html! { (grouped(*records)) },
            ]
        })
        .collect();
    let users: Vec<_> =
        waiting.users.iter().map(|(id, because)| vec![user(id), record(*because)]).collect();
    let redacted = engine.state().erasures.redacted(u64::MAX, limits::CONSOLE_LOOK);
    let more = if redacted.len() < limits::CONSOLE_LOOK { "" } else { "at least " };
    html! {
        (progress_of(&[progress::ERASURE, progress::SEARCH_FOR_USERS]))
        (facts(&[
            ("Records to be erased now", html! { (grouped(waiting.records)) }),
            (
                "Redacted records, to be erased after a while",
                html! {
                    (more) (grouped(redacted.len() as u64))
                    @if let Some(oldest) = redacted.first() {
                        ", the oldest redacted " (at_second(oldest.time_ms))
                    }
                },
            ),
        ]))
        @if !causes.is_empty() {
            h2 { "Waiting for the next sweep" }
            (table(&["Because of", "Who", "What", "Records left"], &causes, ""))
        }
        @if !users.is_empty() {
            h2 { "Users whose records are still to be found" }
            (table(&["User", "Because of"], &users, ""))
        }
        @if waiting.is_cut { p.note { "There are more; these are the first that were found." } }
    }
}

pub(in super::super) async fn one(
    cx: Cx<Server, Visitor>,
    request: OneErasure,
) -> Result<Reply, ApiError> {
    let missing = || ApiError::not_found("There is no such record.");
    let because = request.because.parse().map(Offset::new).map_err(|_| missing())?;
    let after = match request.after {
        None => Offset::ZERO,
        after => before(&after)?,
    };
    let title = format!("Erasure because of record {because}");
    show(&cx, (&title, "erasures"), |app| {
        app.engine.log().get(because)?.ok_or_else(missing)?;
        let bounds = Bounds { after, steps: STEPS, counted: limits::CONSOLE_LOOK };
        Ok(shown(&*receipt(&app.context, because, bounds)?, after))
    })
    .await
}

fn shown(receipt: &ErasureReceipt, after: Offset) -> Markup {
    let ErasureReceipt { because, time_ms, who, what, kinds, records, waiting, files, .. } =
        receipt;
    let run = |(first, last): &(Offset, Offset)| first.get()..=last.get();
    let erased: u64 = records.iter().map(|of| run(of).end() + 1 - run(of).start()).sum();
    let counted: u64 = kinds.values().sum();
    let gone = |is: bool| if is && *waiting == 0 { "gone" } else { "not yet gone" };
    let left = match waiting {
        0 => html! { "nothing" },
        waiting => html! { (grouped(*waiting)) " records" },
    };
    let rows = [
        ("Who", text(who)),
        ("What", text(what)),
        ("Cause", html! { "record " (record(*because)) ", " (at_second(*time_ms)) }),
        ("Erased", html! { (grouped(erased)) " records" }),
        ("Still to be erased", left),
        ("Files", html! { (grouped(*files)) }),
        ("From the files of the log", html! { (gone(receipt.off_the_log)) }),
        ("From the archive", html! { (receipt.off_the_archive.map_or("there is none", gone)) }),
    ];
    let kinds: Vec<_> =
        kinds.iter().map(|(kind, count)| vec![text(kind), html! { (grouped(*count)) }]).collect();
    let most = limits::CONSOLE_ROWS;
    let steps: Vec<_> = receipt.carried_out.iter().take(most).map(|at| vec![record(*at)]).collect();
    let runs: Vec<_> = records
        .iter()
        .take(most)
        .map(|(first, last)| {
            let count = last.get() + 1 - first.get();
            vec![record(*first), record(*last), html! { (grouped(count)) }]
        })
        .collect();
    let copies: Vec<_> = receipt.backups.iter().take(most).map(|copy| vec![text(copy)]).collect();
    let part = |all: usize| {
        html! { @if all > most { p.note { "The first " (most) " of " (grouped(all as u64)) "." } } }
    };
    html! {
        @if after == Offset::ZERO && receipt.looked_up_to.is_none() && *waiting > 0 {
            p {
                (bar("Records that are erased", erased, erased + waiting))
                " records are erased."
            }
        }
        @if *waiting > 0 {
            p.note { "A sweep begins within a minute." }
            (progress_of(&[progress::ERASURE]))
        }
        (facts(&rows))
        h2 { "What lost its content" }
        (table(&["Kind", "Records"], &kinds, "Nothing yet."))
        @if counted < erased {
            p.note { "The kinds of the first " (grouped(counted)) " records." }
        }
        h2 { "Which records" }
        (table(&["First", "Last", "Records"], &runs, "None yet."))
        (part(records.len()))
        h2 { "Carried out by records" }
        (table(&["Record"], &steps, "None yet."))
        (part(receipt.carried_out.len()))
        h2 { "Backups that still have it" }
        (table(&["Backup"], &copies, "None that the log knows of."))
        (part(receipt.backups.len()))
        @if let Some(upto) = receipt.looked_up_to {
            p.note {
                "This is what was erased up to record " (record(upto)) "; there may be more later."
            }
            p.pages { a href={ "?after=" (upto) } { "Later" } }
        }
    }
}
