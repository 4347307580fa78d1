//! The reports that nobody has dealt with, the newest first.

use maud::html;

use super::{pages, start};
use crate::{
    api::{
        console::{
            parts::{acts, at_second, record, room, table, text, user},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::reports::page;

endpoint! {
    pub(in super::super) struct ReportList = GET "/_logcabin/console/reports";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: ReportList,
) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Reports", "reports"), |app| {
        let (found, total) = page(&app.context, from, limits::CONSOLE_ROWS)?;
        let rows: Vec<_> = found
            .iter()
            .map(|report| {
                let id = report.id.to_string();
                let reported = report.target_user_id.as_ref().or(report.sender.as_ref());
                vec![
                    record(report.id),
                    html! { (at_second(report.received_ts)) },
                    user(report.user_id.as_str()),
                    reported.map(|id| user(id.as_str())).unwrap_or_default(),
                    report
                        .room_id
                        .as_ref()
                        .map(|id| room(id.as_str(), report.name.as_deref().unwrap_or(id.as_str())))
                        .unwrap_or_default(),
                    text(report.reason.as_deref().unwrap_or_default()),
                    html! {
                        (acts(&["remove-report"], &[("id", &id)]))
                        @if let (Some(room), Some(event)) = (&report.room_id, &report.event_id) {
                            (acts(&["redact-event"], &[("room", room.as_str()), ("event", event.as_str())]))
                        }
                        @if let Some(user) = reported {
                            (acts(&["redact-user"], &[("user", user.as_str())]))
                        }
                    },
                ]
            })
            .collect();
        let columns = ["Record", "Time", "By", "About", "Room", "Reason", "Acts"];
        Ok(html! {
            (table(&columns, &rows, "There are no open reports."))
            (pages(&[], from, rows.len(), total))
        })
    })
    .await
}
