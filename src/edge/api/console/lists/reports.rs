//! The reports that nobody has dealt with: a list, the newest first, and a page for each.

use maud::{Markup, html};
use ruma::OwnedUserId;
use serde::Deserialize;

use super::{pages, start};
use crate::{
    api::{
        console::{
            parts::{acts, at_second, facts, long, record, room, short, table, user},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::reports::{ReportSummary, details, page, related};
use logcabin_read::events::StoredEvent;
use logcabin_record::Offset;

/// How many events are shown before a reported one, and after it.
const AROUND: usize = 5;

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
        Ok(html! {
            (choice(&found, "There are no open reports."))
            (pages(&[], from, found.len(), total))
            p { a href="/_logcabin/console/log?kind=report.remove" { "Closed reports" } }
        })
    })
    .await
}

/// The button leads to the form of the act, with the reports filled in that are ticked.
fn choice(found: &[ReportSummary], none: &str) -> Markup {
    html! {
        form.choose method="get" action="/_logcabin/console/act/remove-reports" {
            (list_of(found, none))
            @if !found.is_empty() {
                p { button type="submit" { "Close" } }
                p.note { "Those that are ticked. Nothing happens before you confirm." }
            }
        }
    }
}

fn list_of(reports: &[ReportSummary], none: &str) -> Markup {
    let rows: Vec<_> = reports
        .iter()
        .map(|report| {
            let reason = report.reason.as_deref().filter(|reason| !reason.trim().is_empty());
            vec![
                html! {
                    input type="checkbox" name="reports" value=(report.id)
                        aria-label={ "Choose report " (report.id) };
                },
                html! {
                    a href={ "/_logcabin/console/reports/" (report.id) } {
                        bdi { (short(reason.unwrap_or("no reason given"))) }
                    }
                },
                html! { (at_second(report.received_ts)) },
                user(report.user_id.as_str()),
                about(report).map(|id| user(id.as_str())).unwrap_or_default(),
                room_of(report),
            ]
        })
        .collect();
    table(&["Choose", "Report", "Time", "By", "About", "Room"], &rows, none)
}

/// The reported user, or who sent the reported event.
fn about(report: &ReportSummary) -> Option<&OwnedUserId> {
    report.target_user_id.as_ref().or(report.sender.as_ref())
}

fn room_of(report: &ReportSummary) -> Markup {
    let of = report.room_id.as_ref().map(|id| {
        let id = id.as_str();
        room(id, report.name.as_deref().unwrap_or(id))
    });
    of.unwrap_or_default()
}

endpoint! {
    pub(in super::super) struct OneReport = GET "/_logcabin/console/reports/{id}";
    for ConsoleLogin;
    { id: String = path }
}

/// A report with what it is about, other reports about that, and what can be done.
pub(in super::super) async fn one(
    cx: Cx<Server, Visitor>,
    request: OneReport,
) -> Result<Reply, ApiError> {
    let id = request.id.parse().map(Offset::new);
    let id = id.map_err(|_| ApiError::not_found("There is no such report."))?;
    show(&cx, (&format!("Report {id}"), "reports"), |app| {
        let report = details(&app.context, id)?.summary;
        let others = related(&app.context, &report, limits::CONSOLE_ROWS)?;
        let facts_of = [
            ("Reason", html! { bdi { (long(report.reason.as_deref().unwrap_or("–"))) } }),
            ("By", user(report.user_id.as_str())),
            ("About", about(&report).map(|id| user(id.as_str())).unwrap_or_default()),
            ("Room", room_of(&report)),
            ("Time", html! { (at_second(report.received_ts)) }),
            ("Record", record(id)),
        ];
        let facts_of: Vec<_> = facts_of.into_iter().filter(|(_, of)| !of.0.is_empty()).collect();
        Ok(html! {
            (facts(&facts_of))
            @if report.event_id.is_some() {
                h2 { "What was said" }
                (context(app, &report)?)
            }
            h2 { "What can be done" }
            (what_to_do(app, &report))
            h2 { "Other open reports about the same" }
            (choice(&others, "There are none."))
        })
    })
    .await
}

/// The reported event between those around it.
fn context(app: &Server, report: &ReportSummary) -> Result<Markup, ApiError> {
    let (state, events) = (app.engine.state(), app.engine.events());
    let found = report.event_id.as_ref().map(|event_id| events.find_shown(&state, event_id));
    let found = found.transpose()?.flatten();
    let of_room = found.as_ref().and_then(|event| state.rooms.get(&event.room_id));
    let (Some(event), Some(of_room)) = (found, of_room) else {
        return Ok(html! { p.note { "The event is not on this server any more." } });
    };
    let at = event.offset;
    // An event in a gap of the timeline stands alone.
    let around = if of_room.slot(at).is_none() { AROUND } else { 0 };
    let mut offsets = of_room.events_backward(at.prev(), Offset::ZERO, around);
    offsets.reverse();
    offsets.push(at);
    offsets.extend(of_room.events_forward(at, Offset::MAX, around));
    let rows: Vec<_> = events
        .get_all(&offsets)?
        .iter()
        .map(|one| {
            let is_redacted = of_room.redaction_of(one.offset, Offset::MAX).is_some();
            let said = html! { bdi { (long(&said(one, is_redacted))) } };
            vec![
                html! { (at_second(one.time_ms)) },
                user(one.sender.as_str()),
                html! { @if one.offset == at { strong { (said) } } @else { (said) } },
                record(one.offset),
            ]
        })
        .collect();
    Ok(table(&["Time", "Who", "What", "Record"], &rows, ""))
}

/// An event in words.
fn said(event: &StoredEvent, is_redacted: bool) -> String {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Content {
        body: Option<serde_json::Value>,
        membership: Option<serde_json::Value>,
    }
    let event_type = &event.event_type;
    if is_redacted {
        return format!("{event_type}, redacted");
    }
    let Content { body, membership } = event.content_as().unwrap_or_default();
    let text = |value: Option<serde_json::Value>| value?.as_str().map(ToOwned::to_owned);
    text(body).or_else(|| text(membership)).unwrap_or_else(|| event_type.to_string())
}

/// The acts, by what they are about.
fn what_to_do(app: &Server, report: &ReportSummary) -> Markup {
    let id = report.id.to_string();
    let sender = about(report);
    let is_local = sender.is_some_and(|user_id| app.engine.state().accounts.contains(user_id));
    let event = report.room_id.as_ref().zip(report.event_id.as_ref());
    let group = |title: &str, names: &[&str], given: &[(&str, &str)]| {
        html! { dt { (title) } dd { (acts(names, given)) } }
    };
    html! {
        dl.record {
            @if let Some((room, event)) = event {
                @let given = [("room", room.as_str()), ("event", event.as_str())];
                (group("The message", &["redact-event"], &given))
            }
            @if let Some(user) = sender {
                @let given = [("user", user.as_str()), ("of", user.as_str())];
                @let all = [
                    ("user", user.as_str()), ("ban", "yes"), ("reject_invites", "yes"),
                    ("redact", "yes"), ("quarantine", "yes"), ("close_reports", "yes"),
                ];
                (group("All of it at once", &["clean-up"], &all))
                @let everywhere = [("user", user.as_str()), ("from", user.as_str())];
                (group("All that they sent", &["redact-user", "quarantine-media"], &given))
                (group("Their rooms", &["change-member", "reject-invites"], &everywhere))
                @if is_local {
                    (group("The account", &["send-notice", "set-status", "deactivate"], &given))
                }
            }
            @if let Some(room) = &report.room_id {
                @let given = [("room", room.as_str())];
                (group("The room", &["block-room", "shut-down-room"], &given))
            }
            (group("The report", &["remove-report"], &[("id", &*id)]))
        }
    }
}
