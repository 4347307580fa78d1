//! The list of users.

use maud::html;

use super::{choice, pages, start};
use crate::{
    api::{
        console::{
            parts::{acts, at_second, field, record, status, table, text, user},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::users::search::{FoundUser, UserOrder, UserSearch, search};

endpoint! {
    /// The list of users.
    pub(in super::super) struct Users = GET "/_logcabin/console/users";
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
    request: Users,
) -> Result<Reply, ApiError> {
    let Users { name, only, order, from } = &request;
    let skipped = start(from)?;
    let only_if = |what: &str| (only.as_deref() == Some(what)).then_some(true);
    let wanted = UserSearch {
        name: name.clone(),
        guests: only_if("guests"),
        admins: only_if("admins"),
        deactivated: only_if("deactivated"),
        locked: only_if("locked"),
        order: match order.as_deref() {
            Some("displayname") => UserOrder::DisplayName,
            Some("new") => UserOrder::CreationTs,
            Some("seen") => UserOrder::LastSeenTs,
            _ => UserOrder::Name,
        },
        reverse: matches!(order.as_deref(), Some("new" | "seen")),
        from: skipped,
        limit: limits::CONSOLE_ROWS,
        ..UserSearch::default()
    };
    show(&cx, ("Users", "users"), |app| {
        let (found, total) = search(&app.context, &wanted);
        let rows: Vec<_> = found
            .iter()
            .map(|FoundUser { user: one, registered }| {
                vec![
                    user(one.user_id.as_str()),
                    text(one.display_name.as_deref().unwrap_or_default()),
                    html! { (status(one)) },
                    html! { (one.devices) },
                    html! { (one.last_seen_ms.map(at_second).unwrap_or_default()) },
                    record(*registered),
                ]
            })
            .collect();
        let columns = ["User", "Name", "Status", "Devices", "Last seen", "Record"];
        Ok(html! {
            form.filters method="get" role="search" {
                (field("name", "Name", name, "part of a name"))
                (choice("only", "Only", only, &[
                    ("", "everybody"), ("admins", "administrators"), ("guests", "guests"),
                    ("locked", "locked"), ("deactivated", "deactivated"),
                ]))
                (choice("order", "Order", order, &[
                    ("", "user name"), ("displayname", "display name"), ("new", "newest"),
                    ("seen", "last seen"),
                ]))
                button type="submit" { "Search" }
            }
            (acts(&["create-user"], &[]))
            (table(&columns, &rows, "No such user."))
            (pages(
                &[("name", name), ("only", only), ("order", order)], skipped, rows.len(), total,
            ))
        })
    })
    .await
}
