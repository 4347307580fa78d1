//! The search field: leads to whatever an id, an address or a number names, or lists the users and
//! rooms with such a name.

use std::net::IpAddr;

use http::HeaderValue;
use maud::{Markup, html};
use ruma::{EventId, MxcUri, UserId};

use super::{
    frame::HOME,
    parts::{acts, at_second, encoded, record, room, short, table, text, user},
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::{background::at_length, limits};
use logcabin_log::ReadError;
use logcabin_ops::admin::{
    rooms::{self, RoomSearch},
    users::{
        rooms_elsewhere,
        search::{FoundUser, UserSearch, search},
    },
};
use logcabin_record::{Offset, command::Sighting};
use logcabin_state::{Membership, media::Item};

endpoint! {
    /// What the search field holds.
    pub(super) struct Find = GET "/_logcabin/console/find";
    for ConsoleLogin;
    { q: Option<String> = parameter }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Find) -> Result<Reply, ApiError> {
    let wanted = request.q.as_deref().unwrap_or_default().trim();
    if let Some(path) = at_length(|| place(&cx.app, wanted))? {
        let to = HeaderValue::try_from(path).map_err(ApiError::internal)?;
        return Ok(Reply::see_other(to));
    }
    let title = format!("Search for {}", short(wanted));
    show(&cx, (&title, ""), |app| {
        if let Ok(address) = wanted.parse() {
            return Ok(at_address(app, address));
        }
        match <&UserId>::try_from(wanted) {
            Ok(user_id) if user_id.server_name() != app.config.server.name => {
                Ok(elsewhere(app, user_id))
            }
            _ => names(app, wanted),
        }
    })
    .await
}

/// The page of the one thing that this id or number names. Names are not ids: whoever is called
/// like a room, or like an address, must not hide it.
fn place(app: &Server, wanted: &str) -> Result<Option<String>, ReadError> {
    let (state, events) = (app.engine.state(), app.engine.events());
    let record = |offset: Offset| format!("{HOME}/log/{offset}");
    if wanted.is_empty() {
        return Ok(Some(HOME.to_owned()));
    }
    if let Ok(number) = wanted.parse().map(Offset::new) {
        let is_there = number > Offset::ZERO && number <= app.engine.head().offset();
        return Ok(is_there.then(|| record(number)));
    }
    Ok(match wanted.chars().next() {
        Some('!' | '#') => {
            let found = app.context.room(wanted).ok();
            found.map(|room| format!("{HOME}/rooms/{}", encoded(room.id.as_str())))
        }
        Some('$') => {
            let found = <&EventId>::try_from(wanted).ok();
            let found = found.map(|event_id| events.find_shown(&state, event_id)).transpose()?;
            found.flatten().map(|event| record(event.offset))
        }
        Some('@') => {
            let found = app.context.user_id(wanted).ok();
            found.map(|user_id| format!("{HOME}/users/{}", encoded(user_id.as_str())))
        }
        _ => upload(app, wanted).map(record),
    })
}

/// The record of the upload of a file of this server, by its address or by its id alone.
fn upload(app: &Server, wanted: &str) -> Option<Offset> {
    let media_id = match <&MxcUri>::from(wanted).parts() {
        Ok((server, media_id)) => (*server == app.config.server.name).then_some(media_id)?,
        Err(_) => wanted,
    };
    match app.engine.state().media.get(media_id)? {
        Item::Stored(stored) => Some(stored.offset),
        _ => None,
    }
}

/// What there is of a user of another homeserver.
fn elsewhere(app: &Server, user_id: &UserId) -> Markup {
    let found = rooms_elsewhere(&app.context, user_id);
    let joined = found.iter().filter(|(_, membership, _)| *membership == Membership::Join).count();
    let rows: Vec<_> = found
        .iter()
        .take(limits::CONSOLE_ROWS)
        .map(|(id, membership, changed)| {
            let id = id.as_str();
            vec![room(id, id), html! { (membership.as_str()) }, record(*changed)]
        })
        .collect();
    html! {
        p {
            "A user of another homeserver, who is in " (joined) " room(s) of this one, and known in "
            (found.len()) "."
        }
        @let given = [("user", user_id.as_str()), ("from", user_id.as_str())];
        (acts(&["clean-up", "change-member", "redact-user", "reject-invites"], &given))
        (table(&["Room", "Membership", "Record"], &rows, "No room of this server knows this user."))
    }
}

/// The devices at this address.
fn at_address(app: &Server, address: IpAddr) -> Markup {
    let devices = devices(app, |_, seen| seen.is_some_and(|seen| seen.address == address));
    html! {
        (table(&DEVICES, &devices, "No device was last seen at this address."))
        @if devices.len() >= limits::CONSOLE_ROWS { p.note { "There may be more." } }
    }
}

/// The devices, users and rooms with such a name.
fn names(app: &Server, wanted: &str) -> Result<Markup, ApiError> {
    let devices = match wanted.contains(char::is_whitespace) {
        true => Vec::new(),
        false => devices(app, |device_id, _| device_id == wanted),
    };
    let limit = limits::CONSOLE_ROWS;
    let name = Some(wanted.to_owned());
    let users = UserSearch { name: name.clone(), limit, ..UserSearch::default() };
    let (users, users_in_all) = search(&app.context, &users);
    let users: Vec<_> = users
        .iter()
        .map(|FoundUser { user: one, .. }| {
            let name = one.display_name.as_deref().unwrap_or_default();
            vec![user(one.user_id.as_str()), text(name)]
        })
        .collect();
    let rooms = RoomSearch { search: name, limit: Some(limit), ..RoomSearch::default() };
    let (rooms, rooms_in_all) = rooms::list(&app.context, &rooms)?;
    let rooms: Vec<_> = rooms
        .iter()
        .map(|one| {
            let id = one.room_id.as_str();
            vec![room(id, one.name.as_deref().unwrap_or(id)), html! { (one.joined_members) }]
        })
        .collect();
    let all = |of: &str, shown: usize, count: usize| {
        html! {
            @if count > shown {
                p { a href={ (HOME) "/" (of) "?name=" (encoded(wanted)) } { "All " (count) } }
            }
        }
    };
    let nothing = devices.is_empty() && users.is_empty() && rooms.is_empty();
    Ok(html! {
        @if nothing { p role="status" { "Nothing on this server has this name." } }
        @if !devices.is_empty() { h2 { "Devices" } (table(&DEVICES, &devices, "")) }
        @if !users.is_empty() {
            h2 { "Users" }
            (table(&["User", "Name"], &users, ""))
            (all("users", users.len(), users_in_all))
        }
        @if !rooms.is_empty() {
            h2 { "Rooms" }
            (table(&["Room", "Members"], &rooms, ""))
            (all("rooms", rooms.len(), rooms_in_all))
        }
        p.note {
            "Ids of users, rooms, aliases, events, files and devices, numbers of records, IP "
            "addresses, and parts of the names of users and rooms can be searched for."
        }
    })
}

const DEVICES: [&str; 4] = ["User", "Device", "Last seen", "IP address"];

/// The wanted devices, by their ids and their last uses.
fn devices(app: &Server, is_wanted: impl Fn(&str, Option<&Sighting>) -> bool) -> Vec<Vec<Markup>> {
    let state = app.engine.state();
    let mut rows = Vec::new();
    for user_id in state.accounts.user_ids() {
        if rows.len() >= limits::CONSOLE_ROWS {
            break;
        }
        let Some(account) = state.accounts.get(&user_id) else { continue };
        for (device_id, device) in account.read().active_devices() {
            let seen = app.context.last_seen.of(&state, &user_id, device_id, device);
            if is_wanted(device_id.as_str(), seen.as_ref()) {
                let (at, from) = seen.map(|seen| (at_second(seen.seen_ms), seen.address)).unzip();
                rows.push(vec![
                    user(user_id.as_str()),
                    text(device_id.as_str()),
                    html! { (at.unwrap_or_default()) },
                    html! { (from.map(|from| from.to_string()).unwrap_or_default()) },
                ]);
            }
        }
    }
    rows
}
