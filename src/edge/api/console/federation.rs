//! Other homeservers: how far each has been told, whose keys are known, who may federate, and which
//! events were refused. The pages show what `logcabin federation` shows.

use maud::{Markup, html};

use super::{
    lists::{pages, start},
    parts::{
        acts, at_second, encoded, facts, long, record, room, server, short, table, text, user,
    },
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_config as config;
use logcabin_engine::Engine;
use logcabin_ops::{
    admin::federation::{
        DestinationDetails, DestinationRow, Destinations, RefusedEvents, SharedRoom, WaitingEvents,
        destination, destinations, refused_events,
    },
    history::terminal::{duration, grouped},
};
use logcabin_record::command::{Failing, SetAsideItem};

/// How many of the refused events the first page shows.
const REFUSED: usize = 20;

endpoint! {
    /// The homeservers that are told of events.
    pub(super) struct Overview = GET "/_logcabin/console/federation";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

endpoint! {
    /// One homeserver.
    pub(super) struct OneServer = GET "/_logcabin/console/federation/server/{server}";
    for ConsoleLogin;
    { server: String = path }
}

endpoint! {
    /// Events that were refused.
    pub(super) struct Refused = GET "/_logcabin/console/federation/refused";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

endpoint! {
    /// The homeservers whose keys are known.
    pub(super) struct Keys = GET "/_logcabin/console/federation/keys";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

pub(super) async fn overview(
    cx: Cx<Server, Visitor>,
    request: Overview,
) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Federation", "federation"), |app| {
        let found = destinations(&app.context, from, limits::CONSOLE_ROWS)?;
        let refused = refused_events(&app.context, 0, REFUSED)?;
        Ok(html! {
            (state(&app.engine, &found))
            h2 { "Homeservers" }
            (rows(&found, app.engine.clock().now_ms()))
            (pages(&[], from, found.destinations.len(), found.total))
            h2 { "Events that were refused last" }
            (refused_table(&refused))
            @if refused.and_more {
                p.pages { a href="/_logcabin/console/federation/refused" { "All of them" } }
            }
            h2 { "Who may federate" }
            (rules(&app.context.federation.load()))
        })
    })
    .await
}

pub(super) async fn one(cx: Cx<Server, Visitor>, request: OneServer) -> Result<Reply, ApiError> {
    let title = format!("Homeserver {}", short(&request.server));
    show(&cx, (&title, "federation"), |app| {
        let found = destination(&app.context, &request.server, limits::CONSOLE_ROWS)?;
        Ok(details(&found, app.engine.clock().now_ms()))
    })
    .await
}

pub(super) async fn refused(cx: Cx<Server, Visitor>, request: Refused) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Refused events", "federation"), |app| {
        let found = refused_events(&app.context, from, limits::CONSOLE_ROWS)?;
        let shown = found.events.len();
        Ok(html! {
            (refused_table(&found))
            p.pages {
                @if from > 0 {
                    a href={ "?from=" (from.saturating_sub(limits::CONSOLE_ROWS)) } { "Back" }
                }
                @if found.and_more { " " a href={ "?from=" (from + shown) } { "Next" } }
            }
        })
    })
    .await
}

pub(super) async fn keys(cx: Cx<Server, Visitor>, request: Keys) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Keys of homeservers", "federation"), |app| {
        let peers = &app.engine.state().federation_keys;
        let now_ms = app.engine.clock().now_ms();
        let rows: Vec<_> = peers
            .page(from, limits::CONSOLE_ROWS)
            .into_iter()
            .map(|(server, peer)| {
                let ids: Vec<_> = peer.keys.keys().map(String::as_str).collect();
                vec![
                    text(server.as_str()),
                    text(&ids.join(", ")),
                    html! {
                        (at_second(peer.valid_until_ms))
                        @if peer.valid_until_ms <= now_ms { " (fetched again when needed)" }
                    },
                    html! { (peer.old.len()) },
                    record(peer.record),
                ]
            })
            .collect();
        let columns = ["Homeserver", "Keys", "Valid until", "Old keys", "Record"];
        Ok(html! {
            p {
                "These keys were fetched when they were first needed, from the homeservers or from "
                "those whom the configuration trusts for it. Old keys verify old events."
            }
            (table(&columns, &rows, "None is known."))
            (pages(&[], from, rows.len(), peers.len()))
        })
    })
    .await
}

fn state(engine: &Engine, found: &Destinations) -> Markup {
    let known = engine.state().federation_keys.len();
    html! {
        @if !found.is_on {
            p.bad role="status" { "Federation is off: nothing is delivered." }
        } @else if found.failing > 0 {
            p.bad role="status" {
                (grouped(found.failing as u64)) " of " (grouped(found.total as u64))
                " homeservers cannot be reached."
            }
        }
        dl.facts {
            div { dt { "Homeservers" } dd { (grouped(found.total as u64)) } }
            div { dt { "Cannot be reached" } dd { (grouped(found.failing as u64)) } }
            div { dt { "The last record" } dd { (record(found.end)) } }
            div {
                dt { "Keys known of" }
                dd { a href="/_logcabin/console/federation/keys" { (grouped(known as u64)) } }
            }
        }
    }
}

fn rows(found: &Destinations, now_ms: u64) -> Markup {
    let row = |of: &DestinationRow| {
        let name = of.server_name.as_str();
        vec![
            server(name),
            html! { (of.rooms) },
            html! { (of.up_to) },
            waiting(&of.waiting),
            standing(of, now_ms),
            html! { @if of.failing.is_some() { (acts(ACTS, &[("server", name)])) } },
        ]
    };
    let rows: Vec<_> = found.destinations.iter().map(row).collect();
    let columns = ["Homeserver", "Rooms", "Told up to", "Waiting", "State", "Acts"];
    html! {
        (table(&columns, &rows, "No homeserver shares a room with this one."))
        p.note {
            "Those that cannot be reached come first. An event waits for a homeserver if a user of "
            "it is in the room and it has not been told of the event yet."
        }
    }
}

/// What can be done about a homeserver.
const ACTS: &[&str] = &["retry-destination", "reset-destination"];

fn waiting(waiting: &WaitingEvents) -> Markup {
    html! {
        (grouped(waiting.events as u64)) @if waiting.and_more { " or more" }
        @if waiting.events > 0 { ", in " (grouped(waiting.records)) " records" }
    }
}

fn standing(of: &DestinationRow, now_ms: u64) -> Markup {
    html! {
        @match &of.failing {
            _ if of.is_denied => { "denied by the configuration" }
            // One element: on a narrow page, each is a column.
            Some(failing) => {
                span { (tried(failing, now_ms)) ": " bdi { (short(&failing.error)) } }
            }
            None if of.up_to.get() == 0 => { "not told of anything yet" }
            None if of.set_aside > 0 => {
                "reached; " (grouped(of.set_aside)) " item(s) set aside"
            }
            None => { "reached" }
        }
    }
}

fn tried(failing: &Failing, now_ms: u64) -> String {
    let since = duration(now_ms.saturating_sub(failing.since_ms) / 1000);
    let next = match failing.again_ms.saturating_sub(now_ms) / 1000 {
        0 => "now".to_owned(),
        left => format!("in {}", duration(left)),
    };
    let tried = match failing.attempts {
        1 => "once".to_owned(),
        attempts => format!("{attempts} times"),
    };
    format!("has failed for {since}, tried {tried}, next {next}")
}

fn details(found: &DestinationDetails, now_ms: u64) -> Markup {
    let of = &found.destination;
    let name = of.server_name.as_str();
    let since = of.waiting.since_ms.map(at_second);
    let keys = match (found.keys, found.keys_valid_until_ms) {
        (Some(offset), Some(until_ms)) => html! {
            bdi { (short(&found.key_ids.join(", "))) } ", valid until " (at_second(until_ms))
            ", record " (record(offset))
        },
        _ => html! { "not fetched" },
    };
    let row = |shared: &SharedRoom| {
        let id = shared.room_id.as_str();
        vec![
            room(id, shared.name.as_deref().unwrap_or(id)),
            html! { (shared.members) },
            waiting(&shared.waiting),
        ]
    };
    let rooms: Vec<_> = found.shared.iter().map(row).collect();
    html! {
        (facts(&[
            ("Homeserver", text(name)),
            ("State", standing(of, now_ms)),
            ("Told up to record", html! { (of.up_to) }),
            ("Events that wait", waiting(&of.waiting)),
            ("Waiting since", html! { @match since { Some(since) => (since), None => "–" } }),
            ("Keys", keys),
            ("Shared rooms", html! { (of.rooms) }),
            ("Used of its shares", html! {
                @match &found.used { Some(used) => (used), None => "not counted" }
            }),
            ("State resolution", html! { (grouped(found.resolving_ms)) " ms lately" }),
        ]))
        h2 { "Acts" }
        (acts(ACTS, &[("server", name)]))
        @if of.set_aside > 0 {
            h2 { "Set aside" }
            p.note {
                "These items cannot be sent to this homeserver, or it refuses them although it "
                "takes others. They are never sent to it. There were "
                (grouped(of.set_aside)) "; these are the newest."
            }
            (aside(&found.newest_aside))
        }
        h2 { "Shared rooms" }
        (table(&["Room", "Its members", "Waiting"], &rooms, "None."))
    }
}

fn aside(items: &[SetAsideItem]) -> Markup {
    let row = |of: &SetAsideItem| {
        vec![
            html! { (at_second(of.at_ms)) },
            of.record.map_or_else(|| html! { "–" }, record),
            text(&of.item),
            html! { bdi { (long(&of.why())) } },
        ]
    };
    let rows: Vec<_> = items.iter().rev().map(row).collect();
    table(&["When", "Record", "Item", "Why"], &rows, "None.")
}

fn refused_table(found: &RefusedEvents) -> Markup {
    let rows: Vec<_> = found
        .events
        .iter()
        .map(|event| {
            let (outcome, reason) = event.why();
            let id = event.room_id.as_str();
            let of = encoded(&format!("event\n{}", event.event_id));
            vec![
                record(event.record),
                html! { (at_second(event.time_ms)) },
                text(event.from.as_str()),
                user(event.sender.as_str()),
                room(id, id),
                html! {
                    a href={ "/_logcabin/console/why?of=" (of) } { (outcome) }
                },
                html! { bdi { (long(reason)) } },
            ]
        })
        .collect();
    let columns = ["Record", "Came", "From", "Sender", "Room", "Outcome", "Why"];
    table(&columns, &rows, "None was rejected or soft-failed.")
}

fn rules(federation: &config::Federation) -> Markup {
    let patterns = |list: &[logcabin_config::ServerPattern], none: &str| match list.is_empty() {
        true => none.to_owned(),
        false => list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    };
    let notaries: Vec<_> = federation.notaries.iter().map(ToString::to_string).collect();
    let notaries = match notaries.is_empty() {
        true => "none".to_owned(),
        false => notaries.join(", "),
    };
    html! {
        (facts(&[
            ("federation.allow", text(&patterns(&federation.allow, "everybody"))),
            ("federation.deny", text(&patterns(&federation.deny, "nobody"))),
            ("federation.notaries", text(&notaries)),
        ]))
        p.note {
            "The configuration says so; " code { "federation.deny" } " wins. What a room's access "
            "control list says comes on top of it."
        }
    }
}
