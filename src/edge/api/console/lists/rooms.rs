//! Rooms: a list, and a page for each.

use maud::{Markup, html};
use ruma::RoomVersionId;

use super::{choice, pages, start};
use crate::{
    api::{
        console::{
            parts::{
                acts, encoded, facts, field, record, room, short, table, text, those, user, why,
            },
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::rooms::{RoomOrder, RoomSearch, details, list as search};
use logcabin_record::room_version::is_old;

endpoint! {
    /// The list.
    pub(in super::super) struct Rooms = GET "/_logcabin/console/rooms";
    for ConsoleLogin;
    {
        name: Option<String> = parameter,
        only: Option<String> = parameter,
        order: Option<String> = parameter,
        from: Option<String> = parameter,
    }
}

endpoint! {
    pub(in super::super) struct OneRoom = GET "/_logcabin/console/rooms/{room}";
    for ConsoleLogin;
    { room: String = path }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: Rooms,
) -> Result<Reply, ApiError> {
    let Rooms { name, only, order, from } = &request;
    let skipped = start(from)?;
    let only_if = |what: &str| (only.as_deref() == Some(what)).then_some(true);
    let wanted = RoomSearch {
        search: name.clone(),
        public: only_if("public"),
        empty: only_if("empty"),
        order: match order.as_deref() {
            Some("name") => RoomOrder::Name,
            Some("state") => RoomOrder::StateEvents,
            _ => RoomOrder::JoinedMembers,
        },
        reverse: false,
        from: skipped,
        limit: Some(limits::CONSOLE_ROWS),
    };
    show(&cx, ("Rooms", "rooms"), |app| {
        let (found, total) = search(&app.context, &wanted)?;
        let rows: Vec<_> = found
            .iter()
            .map(|one| {
                let id = one.room_id.as_str();
                let called = one.name.as_deref().or(one.canonical_alias.as_deref()).unwrap_or(id);
                let is = those(&[
                    ("public", one.public),
                    ("encrypted", one.encryption.is_some()),
                    ("blocked", one.blocked),
                ]);
                vec![
                    room(id, called),
                    text(one.canonical_alias.as_deref().unwrap_or_default()),
                    html! { (one.joined_members) },
                    html! { (one.events) },
                    html! { (is) },
                    user(one.creator.as_deref().unwrap_or_default()),
                ]
            })
            .collect();
        let columns = ["Room", "Alias", "Joined", "Events", "Status", "Creator"];
        Ok(html! {
            form.filters method="get" role="search" {
                (field("name", "Name", name, "part of a name, alias or id"))
                (choice("only", "Only", only, &[
                    ("", "all"), ("public", "in the directory"), ("empty", "without members"),
                ]))
                (choice("order", "Order", order, &[
                    ("", "most members"), ("name", "name"), ("state", "most state"),
                ]))
                button type="submit" { "Search" }
            }
            (table(&columns, &rows, "No room has this name."))
            (pages(
                &[("name", name), ("only", only), ("order", order)], skipped, rows.len(), total,
            ))
        })
    })
    .await
}

pub(in super::super) async fn one(
    cx: Cx<Server, Visitor>,
    request: OneRoom,
) -> Result<Reply, ApiError> {
    let title = format!("Room {}", short(&request.room));
    show(&cx, (&title, "rooms"), |app| {
        let found = app.context.room(&request.room)?;
        let details = details(&app.context, &request.room)?;
        let room = &details.summary;
        let id = room.room_id.as_str();
        let why = |words: &[&str]| why(&[&["room", id], words].concat(), None);
        let or = |text: &Option<String>| short(text.as_deref().unwrap_or("–"));
        let yes = |is: bool| if is { "yes" } else { "no" };
        let rows = [
            ("Room", text(id)),
            ("Name", html! { bdi { (or(&room.name)) } " " (why(&["name"])) }),
            ("Topic", html! { bdi { (or(&details.topic)) } " " (why(&["topic"])) }),
            (
                "Alias",
                html! { bdi { (or(&room.canonical_alias)) } " " (why(&["canonical_alias"])) },
            ),
            ("Creator", user(room.creator.as_deref().unwrap_or_default())),
            ("Version", version(&room.version)),
            ("Joined", html! { (room.joined_members) }),
            ("Events", html! { (room.events) }),
            ("In the directory", html! { (yes(room.public)) " " (why(&["directory"])) }),
            ("Encrypted", html! { bdi { (or(&room.encryption)) } " " (why(&["encryption"])) }),
            ("Who may join", html! { bdi { (or(&room.join_rules)) } " " (why(&["join_rules"])) }),
            ("Blocked", html! { (yes(room.blocked)) }),
            ("Created", record(found.created)),
        ];
        Ok(html! {
            nav.tools aria-label="More about this room" {
                a href={ "/_logcabin/console/past?room=" (encoded(id)) } {
                    "Time travel, members and state"
                }
                a href={ "/_logcabin/console/log?room=" (encoded(id)) } { "Records" }
            }
            (facts(&rows))
            h2 { "Acts" }
            (acts(
                &[
                    "join-room", "make-room-admin", "upgrade-room", "block-room",
                    "quarantine-media", "purge-history", "shut-down-room", "purge-room",
                ],
                &[("room", id), ("of", id)],
            ))
        })
    })
    .await
}

/// A room's version, and what to do about an old one.
fn version(version: &str) -> Markup {
    let is_old = RoomVersionId::try_from(version).is_ok_and(|version| is_old(&version));
    html! {
        (text(version))
        @if is_old { " – old: ids prove nothing here. Upgrade the room, below or with a client." }
    }
}
