//! Snapshots of the projections, the newest first.

use maud::{Markup, html};

use crate::{
    api::{
        console::{
            parts::{acts, at_second, facts, record, table, text},
            progress::progress_of,
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::progress;
use logcabin_ops::{
    admin::snapshots::list as all,
    history::terminal::{bytes, grouped},
};
use logcabin_record::Offset;
use logcabin_snapshot::{Difference, Fault, FaultLocation, SnapshotFile, Status};

endpoint! {
    pub(in super::super) struct SnapshotList = GET "/_logcabin/console/snapshots";
    for ConsoleLogin;
    {}
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    _: SnapshotList,
) -> Result<Reply, ApiError> {
    show(&cx, ("Snapshots", "snapshots"), |app| {
        let kept = all(&app.context).map_err(ApiError::internal)?.snapshots;
        Ok(body(app, &kept))
    })
    .await
}

fn body(app: &Server, kept: &[SnapshotFile]) -> Markup {
    let rows: Vec<_> = kept
        .iter()
        .map(|kept| {
            vec![
                record(kept.offset),
                html! { (at_second(kept.written_ms)) },
                html! { (bytes(kept.bytes)) },
                text(kept.version.as_deref().unwrap_or("cannot be read")),
            ]
        })
        .collect();
    let status = app.context.snapshots.status();
    let newest = kept.first().map_or(0, |kept| kept.offset.get());
    let new = app.engine.head().offset().get().saturating_sub(newest);
    let every = app.config.snapshots.every_records;
    html! {
        p.note {
            "A start loads the newest snapshot and replays only the records after it. Snapshots "
            "can be deleted at any time."
        }
        (progress_of(&[progress::SNAPSHOT, progress::COMPARISON]))
        (facts(&[
            ("Records since the newest", html! { (grouped(new)) }),
            ("The next one is written after", html! { (grouped(every)) " records" }),
            ("Compared with the log", compared(&status)),
        ]))
        @if let Some(fault) = &status.fault { (differed(fault)) }
        @if !status.provisional.is_empty() {
            p.note { "Being rebuilt: " (status.provisional.join(", ")) }
        }
        h2 { "Kept" }
        (table(&["Up to record", "Written", "Size", "Version"], &rows, "None yet."))
        h2 { "Acts" }
        (acts(&["write-snapshot", "compare-snapshots"], &[]))
    }
}

/// The record up to which the projections are verified.
pub(in super::super) fn compared(status: &Status) -> Markup {
    match status.verified_through {
        Offset::ZERO => html! { "not yet" },
        through => html! {
            "up to record " (record(through)) ", " (at_second(status.verified_ms))
        },
    }
}

/// Projections that were wrong.
pub(in super::super) fn differed(fault: &Fault) -> Markup {
    let (who, what) = match fault.held {
        FaultLocation::Snapshot => ("A snapshot", "It was removed."),
        FaultLocation::Server => ("The server", "It now has the state rebuilt from the log."),
        FaultLocation::Stale => ("The server", "Restart it."),
    };
    html! {
        p.bad role="alert" {
            (who) " differed from the log, after record " (record(fault.after)) " and by record "
            (record(fault.by)) ", in: " (fault.projections.join(", ")) ". " (what)
            @if let Some(Difference { projection, place, record: since }) = &fault.first {
                " The first difference: " (projection) " / " (text(place))
                @if let Some(since) = since { ", since record " (record(*since)) }
                "."
            }
        }
    }
}
