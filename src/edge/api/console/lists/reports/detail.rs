//! One report: what was said, by whom, what was reported before, and what can be done.

use maud::{Markup, html};

use super::{
    buttons,
    decided::{instead, sentence},
    place::Place,
};
use crate::{
    api::{
        console::{
            lists::{
                CLEAN_UP, clean_up,
                said::{in_a_line, said},
            },
            parts::{
                acts, at_second, facts, long, record, room_of, short, status, table, text, user,
            },
        },
        server::Server,
    },
    http::ApiError,
};
use logcabin_ops::admin::{
    reports::{EarlierReport, ReportSummary, decision_on, details, earlier, of_same_line},
    users::{self, rooms_elsewhere},
};
use logcabin_record::Offset;
use logcabin_state::Membership;

/// How many events are shown before a reported one, and after it.
const AROUND: usize = 5;

/// How many reports of a line are shown with their words.
const REPORTERS: usize = 20;

/// How many earlier reports are shown.
const EARLIER: usize = 20;

/// A report; if it was closed, by whom.
pub(super) fn shown(app: &Server, place: &Place, id: Offset) -> Result<Markup, ApiError> {
    if app.engine.state().reports.get(id).is_none() {
        let none = || ApiError::not_found("There is no such report.");
        return decision_on(&app.context, id)?.as_ref().map(instead).ok_or_else(none);
    }
    let report = details(&app.context, id)?.summary;
    let line = of_same_line(&app.context, id);
    let others = earlier(&app.context, &report, EARLIER + line.len())?;
    let others = others.iter().filter(|other| !line.contains(&other.report.id)).take(EARLIER);
    let others: Vec<_> = others.map(|other| before(place, other)).collect();
    let columns = ["Report", "Same", "Time", "By", "About", "What was decided"];
    Ok(html! {
        (facts(&facts_of(app, &report)?))
        (buttons::of_report(app, place, &report))
        h2 { "What the reporters wrote" }
        (reporters(app, &line)?)
        @if report.event_id.is_some() {
            h2 { "What was said" }
            (context(app, &report)?)
        }
        h2 { "Other reports about the same, or by the same reporter" }
        (table(&columns, &others, "There are none."))
        details {
            summary { "More acts" }
            (what_to_do(app, &report))
        }
    })
}

fn facts_of(app: &Server, report: &ReportSummary) -> Result<Vec<(&'static str, Markup)>, ApiError> {
    let of_user = |user_id: &ruma::OwnedUserId| -> Result<Markup, ApiError> {
        Ok(html! { span { (user(user_id.as_str())) " " (standing(app, user_id)?) } })
    };
    let facts = [
        ("About", report.about().map(of_user).transpose()?.unwrap_or_default()),
        ("Room", room_of(report)),
        ("Time", html! { (at_second(report.received_ts)) }),
        ("Record", record(report.id)),
    ];
    Ok(facts.into_iter().filter(|(_, of)| !of.0.is_empty()).collect())
}

/// Since when a user is here, in how many rooms, and what is special about the account.
fn standing(app: &Server, user_id: &ruma::UserId) -> Result<Markup, ApiError> {
    if user_id.server_name() != app.config.server.name {
        let rooms = rooms_elsewhere(&app.context, user_id);
        let joined = rooms.iter().filter(|(_, of, _)| *of == Membership::Join).count();
        return Ok(html! { "of another homeserver, in " (joined) " room(s) of this one" });
    }
    if !app.engine.state().accounts.contains(user_id) {
        return Ok(html! { "not on this server any more" });
    }
    let of = users::details(&app.context, user_id.as_str())?;
    let special = status(&of.summary);
    Ok(html! {
        "here since " (at_second(of.created_ms)) ", in " (of.joined_rooms) " room(s), "
        (of.media_count) " upload(s)"
        @if !special.is_empty() { ", " strong { (special) } }
    })
}

/// What those who reported it wrote, the newest first.
fn reporters(app: &Server, line: &[Offset]) -> Result<Markup, ApiError> {
    let mut shown = Vec::new();
    for id in line.iter().take(REPORTERS) {
        // Another administrator may have closed it meanwhile.
        if app.engine.state().reports.get(*id).is_some() {
            shown.push(details(&app.context, *id)?.summary);
        }
    }
    Ok(html! {
        ul.reporters {
            @for of in &shown {
                li {
                    (user(of.user_id.as_str())) ", " (at_second(of.received_ts)) ": "
                    @match of.reason.as_deref().filter(|reason| !reason.trim().is_empty()) {
                        Some(reason) => { "“" bdi { (long(reason)) } "”" }
                        None => { "no reason given" }
                    }
                    @if let Some(score) = of.score { " (score " (score) ")" }
                }
            }
        }
        @if line.len() > shown.len() { p.note { "And " (line.len() - shown.len()) " more." } }
    })
}

fn before(place: &Place, other: &EarlierReport) -> Vec<Markup> {
    let EarlierReport { report, same, decision } = other;
    let reason = report.reason.as_deref().filter(|reason| !reason.trim().is_empty());
    let words = html! { bdi { (short(reason.unwrap_or("no reason given"))) } };
    let is_open = decision.is_none();
    vec![
        html! {
            @if is_open {
                a href={ (place.address()) "report=" (report.id) } { (words) }
            } @else { (words) " " (record(report.id)) }
        },
        text(same),
        html! { (at_second(report.received_ts)) },
        user(report.user_id.as_str()),
        report.about().map(|id| user(id.as_str())).unwrap_or_default(),
        html! {
            @match decision {
                Some(decision) => { span { (sentence(decision)) } }
                None => { "open" }
            }
        },
    ]
}

/// The beginning of the reported message, if it can be read.
pub(super) fn excerpt(app: &Server, report: &ReportSummary) -> Result<Option<String>, ApiError> {
    let (state, events) = (app.engine.state(), app.engine.events());
    let Some(event_id) = &report.event_id else { return Ok(None) };
    let Some(event) = events.find_shown(&state, event_id)? else { return Ok(None) };
    let is_redacted = state
        .rooms
        .get(&event.room_id)
        .is_some_and(|room| room.redaction_of(event.offset, Offset::MAX).is_some());
    Ok(Some(match is_redacted {
        true => format!("{}, redacted", event.event_type),
        false => in_a_line(&event),
    }))
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
    let mut rows = Vec::new();
    for one in events.get_all(&offsets)? {
        let class = (one.offset == at).then_some("reported");
        rows.push(vec![
            html! { (at_second(one.time_ms)) },
            user(one.sender.as_str()),
            html! { div class=[class] { (said(app, &of_room, &one)?) } },
            record(one.offset),
        ]);
    }
    Ok(table(&["Time", "Who", "What", "Record"], &rows, ""))
}

/// The acts, by what they are about.
fn what_to_do(app: &Server, report: &ReportSummary) -> Markup {
    let id = report.id.to_string();
    let sender = report.about();
    let is_local = sender.is_some_and(|user_id| app.engine.state().accounts.contains(user_id));
    let is_active =
        sender.is_some_and(|user_id| !app.engine.state().accounts.is_deactivated(user_id));
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
                @let all = clean_up(user.as_str(), is_active, true);
                (group(CLEAN_UP, &["clean-up"], &all))
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
