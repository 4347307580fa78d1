//! Users: a list, and a page for each.

use maud::html;

use super::{choice, pages, start};
use crate::{
    api::{
        console::{
            parts::{
                act_groups, acts, at_second, encoded, facts, field, record, short, table, text,
                those, user, why,
            },
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::users::{
    UserSummary, details,
    search::{FoundUser, UserOrder, UserSearch, search},
};

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

endpoint! {
    pub(in super::super) struct OneUser = GET "/_logcabin/console/users/{user}";
    for ConsoleLogin;
    { user: String = path }
}

/// What is special about an account, in words.
fn status(user: &UserSummary) -> String {
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

pub(in super::super) async fn one(
    cx: Cx<Server, Visitor>,
    request: OneUser,
) -> Result<Reply, ApiError> {
    let title = format!("User {}", short(&request.user));
    show(&cx, (&title, "users"), |app| {
        let user = details(&app.context, &request.user)?;
        let id = user.summary.user_id.as_str();
        let status = status(&user.summary);
        let why = |words: &[&str]| why(&[&["user", id], words].concat(), None);
        let name = user.summary.display_name.as_deref().unwrap_or("–");
        let password = if user.has_password { "set" } else { "none" };
        let media = format!("{} file(s), {} bytes", user.media_count, user.media_bytes);
        let rows = [
            ("User", text(id)),
            ("Display name", html! { (text(name)) " " (why(&["profile", "displayname"])) }),
            ("Status", html! { (status) " " (why(&["account"])) }),
            ("Registered", html! { (at_second(user.created_ms)) }),
            ("Password", html! { (password) " " (why(&["password"])) }),
            ("Rooms", html! { (user.joined_rooms) }),
            ("Uploads", html! { (media) }),
        ];
        let waits: &[&str] = match user.summary.waiting {
            true => &["approve-users", "refuse-users"],
            false => &[],
        };
        let devices = user.logged_in.iter().take(limits::CONSOLE_ROWS);
        let devices: Vec<_> = devices
            .map(|(device, shown)| {
                let given =
                    [("user", id), ("devices", device.as_str()), ("device", device.as_str())];
                vec![
                    text(device.as_str()),
                    text(shown.display_name.as_deref().unwrap_or_default()),
                    html! { (at_second(shown.since_ms)) },
                    html! { (shown.seen_ms.map(at_second).unwrap_or_default()) },
                    text(shown.seen_ip.as_deref().unwrap_or_default()),
                    why(&["device", device.as_str()]),
                    acts(&["log-out", "rename-device"], &given),
                ]
            })
            .collect();
        let addresses = user.threepids.iter().take(limits::CONSOLE_ROWS);
        let addresses: Vec<_> = addresses
            .map(|one| vec![text(&one.address), why(&["address", &one.address])])
            .collect();
        let columns =
            ["Device", "Name", "Logged in", "Last seen", "IP address", "Who changed it", "Acts"];
        Ok(html! {
            nav.tools aria-label="More about this user" {
                a href={ "/_logcabin/console/past?user=" (encoded(id)) } { "Time travel" }
                a href={ "/_logcabin/console/log?user=" (encoded(id)) } { "Records" }
                a href={ "/_logcabin/console/media?user=" (encoded(id)) } { "Uploads" }
                a href={ "/_logcabin/console/users/" (encoded(id)) "/unread" } { "Unread counts" }
            }
            (facts(&rows))
            h2 { "Acts" }
            (act_groups(
                &[
                    ("The registration", waits),
                    ("About spam", &["clean-up"]),
                    ("The account", &["set-status", "set-profile", "reset-password", "log-out"]),
                    ("Their rooms", &["change-member", "reject-invites", "join-room"]),
                    ("What they sent", &["redact-user", "quarantine-media"]),
                    ("Word to them", &["send-notice"]),
                    ("For ever", &["deactivate", "erase-user"]),
                ],
                &[("user", id), ("users", id), ("of", id), ("from", id)],
            ))
            h2 { "Devices" }
            (table(&columns, &devices, "No device is logged in."))
            h2 { "Addresses" }
            (table(&["Address", "Who changed it"], &addresses, "This user has no address."))
        })
    })
    .await
}
