//! Backups that the log knows of, the newest first.

use maud::{Markup, html};

use crate::{
    api::{
        console::{
            lists::{pages, start},
            parts::{ago, at_second, facts, long, record, short, table, text},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::{clock::Clock, limits};
use logcabin_ops::{
    admin::snapshots::{BackupRow, Backups, backups},
    doctor::{Level, glance},
    history::terminal::grouped,
};
use logcabin_record::Epoch;

endpoint! {
    pub(in super::super) struct BackupList = GET "/_logcabin/console/backups";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: BackupList,
) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Backups", "backups"), |app| {
        let found = backups(&app.context, from, limits::CONSOLE_ROWS)?;
        let newest = match from {
            0 => found.backups.first().cloned(),
            _ => backups(&app.context, 0, 1)?.backups.pop(),
        };
        Ok(body(app, from, &found, newest.as_ref()))
    })
    .await
}

fn body(app: &Server, from: usize, found: &Backups, newest: Option<&BackupRow>) -> Markup {
    let Backups { backups, total, end } = found;
    let rows: Vec<_> = backups
        .iter()
        .map(|BackupRow { copy, noted_ms, who }| {
            let moment = copy.moment;
            vec![
                record(copy.record),
                html! { (at_second(*noted_ms)) },
                text(who),
                text(&copy.destination),
                html! { (grouped(moment.offset.get())) },
                html! { (moment.epoch.0) },
                text(&copy.manifest.to_string()),
            ]
        })
        .collect();
    let columns = ["Record", "Made", "By", "Directory", "Up to record", "Epoch", "Manifest"];
    let archive = app.context.archive.as_ref().map(|dir| dir.display().to_string());
    html! {
        @match newest {
            None => {
                p.bad role="status" { "The log knows of no backup." }
            }
            Some(newest) => {
                (last(app.engine.clock(), app.epoch, newest, end.get()))
                (verified(app))
            }
        }
        h2 { "Backups that the log knows of" }
        (table(&columns, &rows, "None."))
        (pages(&[], from, rows.len(), *total))
        (facts(&[("Archive", text(archive.as_deref().unwrap_or("none")))]))
        h2 { "Making and checking them" }
        p {
            "Commands make and check backups, because the server need not reach their directories. "
            "What the log knows of may have been deleted or damaged since."
        }
        @let directory = newest.map_or("DIRECTORY", |newest| &newest.copy.destination);
        pre tabindex="0" {
            "logcabin backup " (text(directory)) "\n"
            "logcabin verify-backup " (text(directory))
        }
    }
}

/// How old the newest backup is, and what it lacks.
fn last(clock: &Clock, epoch: Epoch, newest: &BackupRow, end: u64) -> Markup {
    let moment = newest.copy.moment;
    let lacks = match moment.epoch == epoch {
        true => grouped(end.saturating_sub(moment.offset.get())),
        // The log was rewound since: what it has in common with the backup is not known here.
        false => "not known".to_owned(),
    };
    html! {
        dl.facts {
            div { dt { "The last backup" } dd { (ago(newest.noted_ms, clock.now_ms())) } }
            div { dt { "Records since" } dd { (lacks) } }
        }
    }
}

/// Whether the newest backup was verified, and what to do if not.
fn verified(app: &Server) -> Markup {
    let found = glance(&app.context).findings.into_iter();
    html! {
        @for of in found.filter(|of| of.check == "backup-verified") {
            p.good[of.level == Level::Ok].bad[of.level == Level::Warning] role="status" {
                bdi { (short(&of.what)) }
            }
            @if of.level != Level::Ok { p.note { bdi { (long(&of.mend)) } } }
        }
    }
}
