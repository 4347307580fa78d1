//! "Log": the newest records, those that are searched for, and one record.

use std::sync::Arc;

use http::HeaderMap;
use maud::{Markup, html};

use super::{
    parts::{
        acts, encoded, field, lines, long, moment, query, record as link, seconds, short, why,
    },
    visitor::{ConsoleLogin, ConsoleStream, Visitor, show},
};
use crate::{
    api::{
        admin::changes::{self, FeedFormat, FeedRequest},
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_ops::history::{query::RecordView, select::Selection};
use logcabin_record::{Offset, Record};

endpoint! {
    /// The page with records.
    pub(super) struct LogPage = GET "/_logcabin/console/log";
    for ConsoleLogin;
    {
        kind: Option<String> = parameter,
        room: Option<String> = parameter,
        user: Option<String> = parameter,
        at: Option<String> = parameter,
    }
}

endpoint! {
    /// The page of one record.
    pub(super) struct RecordPage = GET "/_logcabin/console/log/{offset}";
    for ConsoleLogin;
    { offset: String = path }
}

endpoint! {
    /// The feed of changes, for the script of the page.
    pub(super) struct Live = GET "/_logcabin/console/live";
    for ConsoleStream;
    {
        kind: Option<String> = parameter,
        room: Option<String> = parameter,
        user: Option<String> = parameter,
        headers: HeaderMap = headers,
    }
}

/// The records of one page, from the newest on.
struct FoundRecords {
    records: Vec<Record>,
    /// The last record that was examined, if there are more before it.
    left: Option<Offset>,
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: LogPage) -> Result<Reply, ApiError> {
    show(&cx, ("Log", "log"), |app| view(app, &request)).await
}

fn view(app: &Server, request: &LogPage) -> Result<Markup, ApiError> {
    let LogPage { kind, room, user, at } = request;
    let selection = changes::selection(app, [room, user, kind].map(Option::as_deref))?;
    let newest = match at {
        Some(at) => moment(&app.engine, at)?,
        None => app.engine.head().offset(),
    };
    let found = find(&app.engine, &selection, newest)?;
    let query = query(&[("kind", kind), ("room", room), ("user", user)]);
    Ok(html! {
        form.filters method="get" role="search" {
            (field("kind", "Kind", kind, "room.event, user.*"))
            (field("room", "Room", room, "!id or #alias"))
            (field("user", "User", user, "@user:server"))
            (field("at", "Up to", at, "record, time, or -10m"))
            button type="submit" { "Search" }
        }
        div.tools {
            button.second id="follow" type="button" aria-pressed="false" hidden
                data-from={ "/_logcabin/console/live?" (query) } { "Follow" }
            p.note id="said" role="status" aria-live="polite" {}
        }
        (table(&found.records))
        @if let Some(left) = found.left {
            p { a href={ "?" (query) "at=" (left.prev()) } { "Older records" } }
        }
    })
}

fn table(records: &[Record]) -> Markup {
    html! {
        table.log {
            thead {
                tr {
                    @for name in ["Record", "Time", "Kind", "Who", "What"] {
                        th scope="col" { (name) }
                    }
                }
            }
            tbody id="records" {
                @for record in records.iter().map(RecordView::of) {
                    tr {
                        td data-label="Record" { (link(record.offset)) }
                        td data-label="Time" { (seconds(record.happened())) }
                        td data-label="Kind" { (record.kind) }
                        td data-label="Who" { bdi { (short(&record.who)) } }
                        td.what data-label="What" { bdi { (short(&record.text)) } }
                    }
                }
            }
        }
        @if records.is_empty() { p.note { "No record matches the search." } }
    }
}

/// The newest records up to `newest` that are selected: a page of them, among a bounded number.
fn find(engine: &Engine, selection: &Selection, newest: Offset) -> Result<FoundRecords, ReadError> {
    const CHUNK: u64 = 128;
    let (mut records, mut last, mut examined) = (Vec::new(), newest.get(), 0);
    while last > 0 && examined < limits::CONSOLE_LOOK {
        let first = last.saturating_sub(CHUNK - 1).max(1);
        let count = usize::try_from(last - first + 1).unwrap_or(usize::MAX);
        for record in engine.log().read(Offset::new(first), count)?.into_iter().rev() {
            if record.offset().get() > last {
                continue;
            }
            last = record.offset().get() - 1;
            examined += 1;
            if selection.has(&record) {
                records.push(record);
                if records.len() >= limits::CONSOLE_RECORDS {
                    let left = (last > 0).then(|| Offset::new(last + 1));
                    return Ok(FoundRecords { records, left });
                }
            }
        }
    }
    Ok(FoundRecords { records, left: (last > 0).then(|| Offset::new(last + 1)) })
}

pub(super) async fn one(cx: Cx<Server, Visitor>, request: RecordPage) -> Result<Reply, ApiError> {
    let missing = || ApiError::not_found("There is no such record.");
    let offset = request.offset.parse().map(Offset::new).map_err(|_| missing())?;
    let head = cx.app.engine.head().offset();
    let record = cx.app.engine.log().get(offset)?.filter(|_| offset <= head);
    let view = RecordView::of(&record.ok_or_else(missing)?);
    let payload = view.payload.as_ref().map(serde_json::to_string_pretty).transpose();
    let payload = payload.map_err(ApiError::internal)?;
    let rows = [
        ("What", format!("{} {}", view.who, view.text)),
        ("Time", view.time.clone()),
        ("Original time", view.original.clone().unwrap_or_default()),
        ("Kind", format!("{}, version {}", view.kind, view.version)),
        ("Stream", view.stream.clone()),
        ("User", view.user.clone()),
        ("Device", view.device.clone()),
        ("Request", view.request.clone()),
        ("Trace", view.trace.clone().unwrap_or_default()),
        ("Batch", format!("{} more records follow", view.batch_remaining)),
        ("Payload", format!("{}, {} bytes", view.payload_is, view.payload_len)),
        ("Hash", view.payload_hash.clone()),
        ("Chain", view.chain.clone()),
    ];
    let link_as = |offset: Offset, text: &str| {
        html! {
            a href={ "/_logcabin/console/log/" (offset) } { (text) }
        }
    };
    let of = |name: &str, value: Option<&str>| match value.filter(|value| !value.is_empty()) {
        Some(value) => {
            html! {
                a href={ "/_logcabin/console/log?" (name) "=" (encoded(value)) } {
                    "Of this " (name)
                }
            }
        }
        None => html! {},
    };
    let user = view.user.starts_with('@').then_some(&*view.user);
    let body = html! {
        nav.tools aria-label="Other records" {
            @if offset > Offset::new(1) { (link_as(offset.prev(), "Previous")) }
            @if offset < head { (link_as(offset.next(), "Next")) }
            @if view.kind == "room.event" {
                a href={ "/_logcabin/console/relations?event=" (offset) } { "Relations" }
            }
            @if let Some(event_id) = decided(&view) { (why(&["event", event_id], None)) }
            (of("kind", Some(&view.kind))) (of("room", view.room.as_deref())) (of("user", user))
        }
        dl.record {
            @for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
                dt { (name) } dd { bdi { (long(value)) } }
            }
        }
        @if let Some(payload) = payload {
            h2 { "Payload" }
            pre tabindex="0" { (lines(&payload)) }
        }
        @let number = offset.to_string();
        (acts(&["undo", "prove"], &[("record", &number), ("inclusion/offset", &number)]))
    };
    Ok(cx.caller.page(&cx.app, (&format!("Record {offset}"), "log"), body).reply())
}

/// The id of an event of another homeserver whose outcome can be explained.
fn decided(view: &RecordView) -> Option<&str> {
    let payload = view.payload.as_ref()?;
    let is_resolved = !payload["received"]["resolved"].is_null();
    let is_decided = view.kind == "room.pdu" || is_resolved;
    is_decided.then(|| payload["event_id"].as_str()).flatten()
}

pub(super) async fn live(cx: Cx<Server, Visitor>, request: Live) -> Result<Reply, ApiError> {
    let session = cx.caller.browser_session().clone();
    let Live { kind, room, user, headers } = request;
    let wanted = FeedRequest { from: None, since: None, follow: true, room, user, kind, headers };
    changes::open(Arc::clone(&cx.app), session, cx.shutdown.clone(), &wanted, FeedFormat::Events)
}
