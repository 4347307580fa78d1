//! The page of a room: what it is, what is said there, who is in it, and what can be done.

use maud::{Markup, html};
use ruma::{RoomId, RoomVersionId, events::StateEventType};
use serde_json::Value;

use super::{members, said, spaces, start};
use crate::{
    api::{
        console::{
            frame::HOME,
            parts::{
                at_second, encoded, facts, last_at, record, room as room_link, short, table, text,
                user, why,
            },
            pictures::{avatar, heading},
            severity::{Choice, Severity, choices},
            visitor::{ConsoleLogin, Visitor, show_headed},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::{
    admin::{
        reports::about_room,
        rooms::{RoomDetails, details},
    },
    history::terminal::{bytes, grouped},
};
use logcabin_read::events::as_shown;
use logcabin_record::{Offset, room_version::is_old};
use logcabin_state::Room;

const DAY_MS: u64 = 86_400_000;

/// How many open reports are named.
const REPORTS: usize = 10;

/// The state that says most about a room, besides its name and its members.
const STATE: [StateEventType; 9] = [
    StateEventType::RoomPowerLevels,
    StateEventType::RoomJoinRules,
    StateEventType::RoomHistoryVisibility,
    StateEventType::RoomGuestAccess,
    StateEventType::RoomEncryption,
    StateEventType::RoomServerAcl,
    StateEventType::RoomCanonicalAlias,
    StateEventType::RoomPinnedEvents,
    StateEventType::RoomTombstone,
];

endpoint! {
    pub(in super::super) struct OneRoom = GET "/_logcabin/console/rooms/{room}";
    for ConsoleLogin;
    { room: String = path, from: Option<String> = parameter }
}

pub(in super::super) async fn one(
    cx: Cx<Server, Visitor>,
    request: OneRoom,
) -> Result<Reply, ApiError> {
    let title = format!("Room {}", short(&request.room));
    let from = start(&request.from)?;
    show_headed(&cx, (&title, "rooms"), |app| {
        let room = app.context.room(&request.room)?;
        let details = details(&app.context, &request.room)?;
        let is_reported = !app.engine.state().reports.of_room(&room.id).is_empty();
        let summary = &details.summary;
        let name = summary.name.as_deref().or(summary.canonical_alias.as_deref());
        let name = name.unwrap_or("A room without a name");
        let picture = avatar(app, details.avatar.as_deref(), name, is_reported);
        let below = html! { p.id { bdi { (short(room.id.as_str())) } } };
        Ok((heading(&picture, name, &below), body(app, &room, &details, from)?))
    })
    .await
}

fn body(app: &Server, room: &Room, details: &RoomDetails, from: usize) -> Result<Markup, ApiError> {
    let id = room.id.as_str();
    let tree = spaces::tree(app, room)?;
    Ok(html! {
        (status(app, room, details)?)
        p.topic {
            bdi { (short(details.topic.as_deref().unwrap_or("No topic."))) } " "
            (why(&["room", id, "topic"], None))
        }
        nav.tools aria-label="More about this room" {
            a href={ (HOME) "/past?room=" (encoded(id)) } { "Time travel, members and state" }
            a href={ (HOME) "/log?room=" (encoded(id)) } { "Records" }
        }
        (facts(&about(room, details)))
        h2 { "What can be done" }
        (what_to_do(details))
        h2 { "Newest messages" }
        (said::newest(app, room, details.summary.encryption.is_some())?)
        h2 id="members" { "Members" }
        (members::list(app, room, from)?)
        h2 { "Homeservers" }
        (members::servers(room))
        @if let Some(tree) = tree { h2 { "Spaces" } (tree) }
        h2 { "State" }
        (state(app, room)?)
        h2 { "Size and growth" }
        (size(app, room)?)
    })
}

/// What is special about the room, and open reports about it.
fn status(app: &Server, room: &Room, details: &RoomDetails) -> Result<Markup, ApiError> {
    let summary = &details.summary;
    let is_space = summary.room_type.as_deref() == Some("m.space");
    let special = [
        ("A space", is_space),
        ("In the public directory", summary.public),
        ("Encrypted", summary.encryption.is_some()),
        ("Nobody is in it", summary.joined_members == 0),
    ];
    let reports = about_room(&app.context, &room.id, REPORTS)?;
    let tombstone = content(app, room, StateEventType::RoomTombstone)?;
    let replacement = tombstone["replacement_room"].as_str().map(<&RoomId>::try_from);
    let create = content(app, room, StateEventType::RoomCreate)?;
    let before = create["predecessor"]["room_id"].as_str().map(<&RoomId>::try_from);
    let closed = details.shutdowns.iter().any(|shutdown| shutdown.complete);
    Ok(html! {
        ul.lines.status aria-label="Status" {
            @if summary.blocked { li.bad { strong { "Blocked" } ": nobody can join it" } }
            @if closed { li.bad { strong { "Shut down" } } }
            @if let Some(Ok(next)) = replacement {
                li.bad { strong { "Replaced" } " by " (room_link(next.as_str(), next.as_str())) }
            }
            @if let Some(Ok(before)) = before {
                li { "Replaces " (room_link(before.as_str(), before.as_str())) }
            }
            @for (words, _) in special.iter().filter(|(_, holds)| *holds) { li { (words) } }
            @for report in &reports {
                li.bad {
                    a href={ (HOME) "/reports/" (report.id) } {
                        strong { "Reported" } ": "
                        bdi { (short(report.reason.as_deref().unwrap_or("no reason given"))) }
                    }
                    " by " (user(report.user_id.as_str())) ", " (at_second(report.received_ts))
                }
            }
        }
    })
}

/// The content of a state event; `null` without one.
fn content(app: &Server, room: &Room, kind: StateEventType) -> Result<Value, ApiError> {
    let Some(offset) = room.state_event(&kind, "", Offset::MAX) else { return Ok(Value::Null) };
    let event = app.engine.events().get(offset)?;
    let event = event.map(|event| as_shown(room, event, Offset::MAX));
    Ok(event.and_then(|event| event.content_as().ok()).unwrap_or_default())
}

fn about(of: &Room, details: &RoomDetails) -> Vec<(&'static str, Markup)> {
    let room = &details.summary;
    let id = room.room_id.as_str();
    let why = |words: &[&str]| why(&[&["room", id], words].concat(), None);
    let or = |text: &Option<String>| short(text.as_deref().unwrap_or("–"));
    let yes = |is: bool| if is { "yes" } else { "no" };
    let aliases = details.aliases.iter().take(limits::CONSOLE_ROWS);
    vec![
        ("Name", html! { bdi { (or(&room.name)) } " " (why(&["name"])) }),
        (
            "Main alias",
            html! { bdi { (or(&room.canonical_alias)) } " " (why(&["canonical_alias"])) },
        ),
        (
            "Aliases here",
            html! {
                @if details.aliases.is_empty() { "none" }
                @for (number, alias) in aliases.enumerate() {
                    @if number > 0 { ", " } bdi { (short(alias.as_str())) }
                }
            },
        ),
        ("Creator", user(room.creator.as_deref().unwrap_or_default())),
        ("Version", version(&room.version)),
        (
            "Joined",
            html! { (grouped(room.joined_members)) ", and " (details.invited_members) " invited" },
        ),
        ("In the directory", html! { (yes(room.public)) " " (why(&["directory"])) }),
        ("Encrypted", html! { bdi { (or(&room.encryption)) } " " (why(&["encryption"])) }),
        ("Who may join", html! { bdi { (or(&room.join_rules)) } " " (why(&["join_rules"])) }),
        (
            "Who may read",
            html! { bdi { (or(&room.history_visibility)) } " " (why(&["history_visibility"])) },
        ),
        ("Blocked", html! { (yes(room.blocked)) }),
        ("Created", record(of.created)),
    ]
}

/// A room's version, and what to do about an old one.
fn version(version: &str) -> Markup {
    let is_old = RoomVersionId::try_from(version).is_ok_and(|version| is_old(&version));
    html! {
        (text(version))
        @if is_old { " – old: ids prove nothing here. Upgrade the room, below or with a client." }
    }
}

fn what_to_do(details: &RoomDetails) -> Markup {
    use Severity::{Final, Mild, Undoable};
    let room = &details.summary;
    let id = room.room_id.as_str();
    let (block, blocked) =
        if room.blocked { ("Unblock", "no") } else { ("Block: nobody can join", "yes") };
    let given = [("room", id)];
    let log = format!("{HOME}/log?room={}", encoded(id));
    choices(&[
        Choice::page(Mild, "See what happened lately", log),
        Choice::act(Mild, "Make a user join", "join-room", &given),
        Choice::act(Mild, "Give a user power", "make-room-admin", &given),
        Choice::act(Undoable, block, "block-room", &[("room", id), ("blocked", blocked)]),
        Choice::act(
            Undoable,
            "Quarantine its files",
            "quarantine-media",
            &[("of", id), ("quarantined", "yes")],
        ),
        Choice::act(Final, "Upgrade the room", "upgrade-room", &given),
        Choice::act(Final, "Purge its history", "purge-history", &given),
        Choice::act(Final, "Delete its files", "delete-media", &[("of", id)]),
        Choice::act(Final, "Shut the room down", "shut-down-room", &given),
        Choice::act(Final, "Purge the room", "purge-room", &given),
    ])
}

/// The state that says most, with who set it.
fn state(app: &Server, room: &Room) -> Result<Markup, ApiError> {
    let mut rows = Vec::new();
    for kind in STATE {
        let Some(offset) = room.state_event(&kind, "", Offset::MAX) else { continue };
        let Some(event) = app.engine.events().get(offset)? else { continue };
        let event = as_shown(room, event, Offset::MAX);
        let kind = kind.to_string();
        rows.push(vec![
            text(&kind),
            text(&event.content_as::<Value>().unwrap_or_default().to_string()),
            user(event.sender.as_str()),
            record(offset),
            why(&["room", room.id.as_str(), &kind], None),
        ]);
    }
    let columns = ["What", "Value", "Set by", "Record", "Who changed it"];
    Ok(table(&columns, &rows, "None yet."))
}

/// How many events and bytes there are, and how many events came lately.
fn size(app: &Server, room: &Room) -> Result<Markup, ApiError> {
    let engine = &app.engine;
    let (head, now_ms) = (engine.head().offset(), engine.clock().now_ms());
    let all = room.event_count(Offset::MAX);
    let mut lately = Vec::new();
    for (words, days) in [("last day", 1), ("last 7 days", 7), ("last 30 days", 30)] {
        let then = last_at(engine, head, now_ms.saturating_sub(days * DAY_MS))?;
        lately.push((words, all.saturating_sub(room.event_count(then))));
    }
    let id = room.id.as_str();
    let (records, files) = app.tally.look(|of| (of.rooms.get(id), of.files.get(id)));
    let count = |count: usize| grouped(u64::try_from(count).unwrap_or(u64::MAX));
    let mut rows = vec![("Events", html! { (count(all)) })];
    if let Some(of) = records {
        let words = html! { (grouped(of.records)) ", " (bytes(of.bytes)) };
        rows.push(("Records", words));
    }
    if let Some(of) = files {
        rows.push(("Files sent", html! { (grouped(of.records)) ", " (bytes(of.bytes)) }));
    }
    rows.extend(lately.into_iter().map(|(words, new)| (words, html! { (count(new)) " events" })));
    rows.push(("State events", html! { (count(room.full_state(Offset::MAX).len())) }));
    Ok(html! {
        (facts(&rows))
        @if records.is_none() {
            p.note { "The room is not among the largest, whose bytes are counted one by one." }
        }
    })
}
