//! "Work": the long-running work of the server, its progress, and the estimated time left.

use maud::{Markup, html};

use super::{
    parts::{acts, at_second, facts, record, room, table},
    progress::{bar, under_way},
    upkeep::snapshots::{compared, differed},
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::{limits, progress};
use logcabin_engine::Engine;
use logcabin_ops::{
    admin::context::ActContext,
    history::terminal::{duration, grouped},
};
use logcabin_record::Offset;

endpoint! {
    pub(super) struct WorkPage = GET "/_logcabin/console/work";
    for ConsoleLogin;
    {}
}

pub(super) async fn page(cx: Cx<Server, Visitor>, _: WorkPage) -> Result<Reply, ApiError> {
    show(&cx, ("Work", "work"), |app| body(&app.engine, &app.context)).await
}

/// The rooms that are shut down. What is left of each is estimated from what was done since its
/// shutdown began, across restarts.
fn shutdowns(engine: &Engine, context: &ActContext) -> Result<Vec<Vec<Markup>>, ApiError> {
    let state = engine.state();
    let mut rows = Vec::new();
    for shutdown in state.closures.under_way().into_iter().take(limits::CONSOLE_ROWS) {
        let id = shutdown.room_id.as_str();
        let begun_ms = context.time_of(shutdown.begun)?;
        let taken_ms = engine.clock().now_ms().saturating_sub(begun_ms);
        let joined = |at| {
            let room = state.rooms.get(&shutdown.room_id);
            room.map_or(0, |room| room.counts(at).joined)
        };
        let (total, left) = (joined(shutdown.begun), joined(Offset::MAX));
        let gone = total.saturating_sub(left);
        let ms_left = taken_ms.saturating_mul(left).checked_div(gone);
        let then = if shutdown.purge { "it is purged" } else { "" };
        rows.push(vec![
            room(id, id),
            bar("Members who have left", gone, total),
            html! { (at_second(begun_ms)) },
            html! {
                (ms_left.map_or_else(|| "not known yet".to_owned(), |ms| duration(ms / 1000)))
            },
            html! { (then) },
        ]);
    }
    Ok(rows)
}

fn body(engine: &Engine, context: &ActContext) -> Result<Markup, ApiError> {
    let shutdowns = shutdowns(engine, context)?;
    let columns = ["Room", "Members who have left", "Begun", "Left, about", "Then"];
    let status = context.snapshots.status();
    let snapshot = match status.snapshot {
        Offset::ZERO => html! { "none" },
        offset => html! { "of record " (record(offset)) },
    };
    let waiting = engine.state().erasures.condemned_count();
    let rows = [
        ("Newest snapshot", snapshot),
        ("Compared with the log", compared(&status)),
        ("Records to be erased", html! { (grouped(waiting)) }),
    ];
    Ok(html! {
        h2 { "Under way" }
        (under_way(&progress::under_way()))
        h2 { "Rooms that are shut down" }
        (table(&columns, &shutdowns, "None."))
        h2 { "Snapshots and erasure" }
        (facts(&rows))
        @if let Some(fault) = &status.fault { (differed(fault)) }
        @if !status.provisional.is_empty() {
            p.note { "Being rebuilt: " (status.provisional.join(", ")) }
        }
        (acts(&["write-snapshot", "compare-snapshots"], &[]))
        p.note {
            "Backups, exports, imports, restores and verification are commands, and show their "
            "progress in the terminal."
        }
    })
}
