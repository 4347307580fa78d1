//! What several pages are made of: times, texts of users, links, and tables.

use logcabin_engine::Engine;
use maud::{Markup, html};
use serde_json::Value;

pub(super) use logcabin_base::text::encoded;

use crate::http::ApiError;
use logcabin_base::limits;
use logcabin_ops::{
    admin::{registry, reports::ReportSummary, users::UserSummary},
    history::{
        HistoryError,
        moment::{Moment, Time, last_until},
        terminal::{clean, duration},
    },
};
use logcabin_record::{Offset, Record};

/// The parts of a query that are there, each with an ampersand behind it.
pub(super) fn query(parts: &[(&str, &Option<String>)]) -> String {
    let given = parts.iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    given.map(|(name, value)| format!("{name}={}&", encoded(value))).collect()
}

/// A time as RFC 3339, shown without its fraction. The script shows it in the reader's zone.
pub(super) fn seconds(time: &str) -> Markup {
    let text = time.split('.').next().unwrap_or(time).replacen('T', " ", 1);
    html! { time datetime=(time) { (text.trim_end_matches('Z')) "Z" } }
}

/// A time in milliseconds since the Unix epoch, as [`seconds`].
pub(super) fn at_second(ms: u64) -> Markup {
    seconds(&Time(ms).to_string())
}

/// How long ago something was, with the time behind it.
pub(super) fn ago(ms: u64, now_ms: u64) -> Markup {
    html! {
        time datetime=(Time(ms)) title={ (Time(ms).to_second()) " UTC" } data-ago {
            (duration(now_ms.saturating_sub(ms) / 1000)) " ago"
        }
    }
}

/// Where the log is shown as of a time.
pub(super) fn log_at(ms: u64) -> String {
    format!("/_logcabin/console/log?at={}", encoded(&Time(ms).to_string()))
}

/// Text that users wrote, cut, and without what would disturb the page.
pub(super) fn short(text: &str) -> String {
    const LONGEST: usize = 300;
    let mut cut: String = text.chars().take(LONGEST).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    clean(&cut)
}

/// Text in full length, as far as a page should be that long.
pub(super) fn long(text: &str) -> String {
    clean(&text.chars().take(limits::CONSOLE_TEXT).collect::<String>())
}

/// JSON on several lines.
pub(super) fn lines(text: &str) -> String {
    let text: String = text.chars().take(limits::CONSOLE_TEXT).collect();
    text.lines().map(|line| clean(line) + "\n").collect()
}

/// The last record as of a moment.
pub(super) fn moment(engine: &Engine, at: &str) -> Result<Offset, ApiError> {
    let moment = at.parse::<Moment>();
    let moment = moment.map_err(|error| ApiError::invalid_param(format!("{error}.")))?;
    let head = engine.head().offset();
    match moment.from_now(engine.clock().now_ms()) {
        Moment::At(offset) => Ok(offset.min(head)),
        Moment::Time(ms) | Moment::Ago(ms) => last_at(engine, head, ms),
    }
}

/// The record that a parameter names; without it, one after all.
pub(super) fn before(given: &Option<String>) -> Result<Offset, ApiError> {
    let given = given.as_deref().map(str::parse).transpose();
    let given = given.map_err(|_| ApiError::invalid_param("A record is a number."))?;
    Ok(given.map_or(Offset::MAX, Offset::new))
}

/// The last record up to `head` that was written at or before a time. Imported events count as
/// written when they happened.
pub(super) fn last_at(engine: &Engine, head: Offset, until_ms: u64) -> Result<Offset, ApiError> {
    let written = last_until(head, until_ms, |offset| {
        let record = engine.log().get(offset)?;
        Ok::<_, ApiError>(record.map(|record| record.header.time_ms))
    })?;
    Ok(written.max(engine.state().imports.until(until_ms)).min(head))
}

/// When what a record says happened, and whether it was imported: it was recorded later then, and
/// what stands beside it in the log may be of another time.
pub(super) fn time_of(engine: &Engine, at: Offset) -> Result<Markup, ApiError> {
    let found = engine.log().get(at)?;
    let time_ms = found.as_ref().map_or(0, Record::happened_ms);
    let import = found.as_ref().and_then(|record| record.header.origin.import());
    Ok(html! {
        (at_second(time_ms)) @if let Some(import) = import { ", " (import.to_string()) }
    })
}

/// The answer to a question about the history that has none.
pub(super) fn unanswered(error: HistoryError) -> ApiError {
    match error {
        HistoryError::NoRoom(_) | HistoryError::NoUser(_) | HistoryError::NotYet { .. } => {
            let text = error.to_string();
            let mut text = text.split(';').next().unwrap_or_default().chars();
            let first: String = text.next().into_iter().flat_map(char::to_uppercase).collect();
            ApiError::not_found(format!("{first}{}.", text.as_str()))
        }
        HistoryError::NotASubject(_) => ApiError::invalid_param(error.to_string()),
        error => ApiError::internal(error),
    }
}

/// A link to a record.
pub(super) fn record(offset: Offset) -> Markup {
    html! { a href={ "/_logcabin/console/log/" (offset) } { (offset) } }
}

/// A link to a user.
pub(super) fn user(user_id: &str) -> Markup {
    html! {
        @if !user_id.is_empty() {
            a href={ "/_logcabin/console/users/" (encoded(user_id)) } { bdi { (short(user_id)) } }
        }
    }
}

/// A link to a room, as it is called.
pub(super) fn room(room_id: &str, name: &str) -> Markup {
    html! {
        a href={ "/_logcabin/console/rooms/" (encoded(room_id)) } { bdi { (short(name)) } }
    }
}

/// A link to who changed a value, and when.
pub(super) fn why(subject: &[&str], at: Option<Offset>) -> Markup {
    let of = encoded(&subject.join("\n"));
    let at = at.map(|at| format!("&at={at}")).unwrap_or_default();
    html! {
        a href={ "/_logcabin/console/why?of=" (of) (at) }
            aria-label={ "Why: " (short(&subject.join(" "))) } { "Why?" }
    }
}

/// Text of a user as a cell.
pub(super) fn text(text: &str) -> Markup {
    html! { bdi { (short(text)) } }
}

/// A value of the log as a cell.
pub(super) fn json(value: &Value) -> Markup {
    match value {
        Value::String(value) => text(value),
        value => text(&value.to_string()),
    }
}

/// A value that may be missing, as a cell.
pub(super) fn value(value: &Option<Value>) -> Markup {
    value.as_ref().map_or_else(|| html! { span.note { "–" } }, json)
}

/// The names of those that hold.
pub(super) fn those(all: &[(&'static str, bool)]) -> String {
    let held = all.iter().filter(|(_, holds)| *holds).map(|(name, _)| *name);
    held.collect::<Vec<_>>().join(", ")
}

/// What is special about an account, in words.
pub(super) fn status(user: &UserSummary) -> String {
    those(&[
        ("guest", user.guest),
        ("administrator", user.admin),
        ("locked", user.locked),
        ("suspended", user.suspended),
        ("shadow-banned", user.shadow_banned),
        ("waiting for approval", user.waiting),
        ("deactivated", user.deactivated),
        ("erased", user.erased),
    ])
}

/// A link to another homeserver.
pub(super) fn server(name: &str) -> Markup {
    html! {
        a href={ "/_logcabin/console/federation/server/" (encoded(name)) } { bdi { (short(name)) } }
    }
}

/// The room of a report.
pub(super) fn room_of(report: &ReportSummary) -> Markup {
    let id = report.room_id.as_ref().map(|id| id.as_str());
    id.map(|id| room(id, report.name.as_deref().unwrap_or(id))).unwrap_or_default()
}

/// A table; what there is instead of one without rows.
pub(super) fn table(columns: &[&str], rows: &[Vec<Markup>], none: &str) -> Markup {
    html! {
        @if rows.is_empty() { p.note { (none) } } @else {
            table {
                thead { tr { @for name in columns { th scope="col" { (name) } } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (name, cell) in columns.iter().zip(row) {
                                td data-label=(name) { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Names with values, and why they are so.
pub(super) fn facts(rows: &[(&str, Markup)]) -> Markup {
    html! {
        dl.record { @for (name, value) in rows { dt { (name) } dd { (value) } } }
    }
}

/// A text field of a form that searches.
pub(super) fn field(name: &str, label: &str, given: &Option<String>, hint: &str) -> Markup {
    html! {
        div {
            label for=(name) { (label) }
            input type="text" id=(name) name=(name) value=(given.as_deref().unwrap_or_default())
                placeholder=(hint) autocapitalize="none" spellcheck="false";
        }
    }
}

/// Links to the forms of acts, with what is known filled in.
pub(super) fn acts(names: &[&str], given: &[(&str, &str)]) -> Markup {
    let query: Vec<_> =
        given.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    let query = query.join("&");
    html! {
        ul.acts {
            @for (name, form) in names.iter().filter_map(|name| Some((name, registry::form(name)?)))
            {
                li { a href={ "/_logcabin/console/act/" (name) "?" (query) } { (form.title) } }
            }
        }
    }
}
