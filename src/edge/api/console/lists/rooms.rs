//! The list of rooms.

use maud::html;

use super::{choice, pages, start};
use crate::{
    api::{
        console::{
            parts::{field, room, table, text, those, user},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::rooms::{RoomOrder, RoomSearch, list as search};

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
