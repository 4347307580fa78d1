//! "Work": what takes the server long, how far it has come, and how long it will take.

use std::time::Duration;

use http::HeaderMap;
use maud::{Markup, html};
use ruma::api::auth_scheme::NoAccessToken;

use super::{
    acts::acts,
    parts::{at_second, facts, record, room, table},
    show,
};
use crate::{
    base::{limits, progress},
    edge::{
        api::{Server, browser::page::refusal},
        http::{ApiError, Cx, Reply, endpoint},
    },
    ops::history::look::grouped,
    record::Offset,
};

endpoint! {
    /// The page.
    pub(super) struct WorkPage = GET "/_logcabin/console/work";
    for NoAccessToken;
    refusal refusal;
    { headers: HeaderMap = headers }
}

pub(super) async fn page(cx: Cx<Server, ()>, request: WorkPage) -> Result<Reply, ApiError> {
    show(&cx, &request.headers, ("Work", "work"), |app| Ok(body(app))).await
}

fn body(app: &Server) -> Markup {
    let state = app.engine.state();
    let under_way: Vec<_> = progress::under_way()
        .iter()
        .map(|work| {
            let done = format!("{} of {}", grouped(work.done), grouped(work.total));
            let left = work.left.map_or_else(|| "not known yet".to_owned(), length);
            vec![
                html! { (work.what) },
                html! {
                    progress value=(work.done) max=(work.total.max(1)) aria-label=(work.what) {
                        (done)
                    }
                    " " (done)
                },
                html! { (length(work.taken)) },
                html! { (left) },
            ]
        })
        .collect();
    let shutdowns: Vec<_> = state
        .closures
        .under_way()
        .iter()
        .take(limits::CONSOLE_ROWS)
        .map(|shutdown| {
            let id = shutdown.room_id.as_str();
            let left = state.rooms.get(&shutdown.room_id);
            let left = left.map_or(0, |room| room.counts(Offset::MAX).joined);
            vec![room(id, id), html! { (grouped(left)) }]
        })
        .collect();
    let waiting = state.erasures.condemned(limits::CONSOLE_LOOK).len();
    let waiting = match waiting < limits::CONSOLE_LOOK {
        true => grouped(waiting as u64),
        false => format!("at least {}", grouped(limits::CONSOLE_LOOK as u64)),
    };
    let status = app.office.snapshots.status();
    let verified = match status.verified_through {
        Offset::ZERO => html! { "nothing since the start" },
        through => html! {
            "up to record " (record(through)) ", " (at_second(status.verified_ms))
        },
    };
    let snapshot = match status.snapshot {
        Offset::ZERO => html! { "none" },
        offset => html! { "of record " (record(offset)) },
    };
    let rows = [
        ("Newest snapshot", snapshot),
        ("Compared with the log", verified),
        ("Records to be erased", html! { (waiting) }),
    ];
    html! {
        h2 { "Under way" }
        (table(&["What", "Progress", "For", "Left, about"], &under_way, "Nothing takes long now."))
        h2 { "Rooms that are shut down" }
        (table(&["Room", "Members left"], &shutdowns, "None."))
        h2 { "Snapshots and erasure" }
        (facts(&rows))
        @if let Some(fault) = &status.fault {
            p.bad role="alert" {
                "Projections differed from the log: " (fault.projections.join(", "))
            }
        }
        @if !status.provisional.is_empty() {
            p.note { "Being rebuilt: " (status.provisional.join(", ")) }
        }
        (acts(&["write-snapshot", "compare-snapshots"], &[]))
        p.note {
            "Backups, exports, imports, restores and verification are commands, and show their \
             progress in the terminal."
        }
    }
}

/// A length of time for people.
fn length(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..100 => format!("{seconds} s"),
        seconds @ 100..6000 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
