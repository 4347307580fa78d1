//! The search field: leads to whatever an id, an address or a number names, or lists the users and
//! rooms with such a name.

use std::net::IpAddr;

use http::HeaderValue;
use maud::{Markup, html};
use ruma::{EventId, MxcUri, UserId};

use super::{
    frame::{HOME, pages_named},
    parts::{acts, at_second, encoded, room, short, table, text, user},
    visitor::{ConsoleLogin, Visitor, in_turn},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::{background::at_length, limits};
use logcabin_log::ReadError;
use logcabin_ops::admin::{
    federation::destination,
    registry,
    rooms::{self, RoomSearch},
    users::search::{FoundUser, UserSearch, search},
};
use logcabin_record::{Offset, command::Sighting};
use logcabin_state::media::Item;

endpoint! {
    /// What the search field holds.
    pub(super) struct Find = GET "/_logcabin/console/find";
    for ConsoleLogin;
    { q: Option<String> = parameter }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Find) -> Result<Reply, ApiError> {
    let wanted = request.q.as_deref().unwrap_or_default().trim();
    if let Some(path) = at_length(|| place(&cx.app, wanted))? {
        return to(path);
    }
    let title = format!("Search for {}", short(wanted));
    let found = in_turn(&cx, |app| {
        if let Ok(address) = wanted.parse() {
            return Ok(Found::Several(at_address(app, address)));
        }
        names(app, wanted)
    });
    match found.await? {
        Found::One(path) => to(path),
        Found::Several(body) => Ok(cx.caller.page(&cx.app, (&title, ""), body).reply()),
    }
}

/// What has a name.
enum Found {
    /// The path of its page.
    One(String),
    Several(Markup),
}

fn to(path: String) -> Result<Reply, ApiError> {
    Ok(Reply::see_other(HeaderValue::try_from(path).map_err(ApiError::internal)?))
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
            let elsewhere = UserId::parse(wanted).ok();
            let elsewhere = elsewhere.filter(|of| of.server_name() != app.config.server.name);
            let found = elsewhere.or_else(|| app.context.user_id(wanted).ok());
            found.map(|user_id| format!("{HOME}/users/{}", encoded(user_id.as_str())))
        }
        _ => upload(app, wanted).map(record).or_else(|| homeserver(app, wanted)),
    })
}

/// The page of another homeserver that shares rooms with this one.
fn homeserver(app: &Server, wanted: &str) -> Option<String> {
    if wanted.parse::<IpAddr>().is_ok() {
        return None;
    }
    let found = destination(&app.context, wanted, 1).ok()?;
    let name = found.destination.server_name;
    Some(format!("{HOME}/federation/server/{}", encoded(name.as_str())))
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

/// The devices at this address.
fn at_address(app: &Server, address: IpAddr) -> Markup {
    let devices = devices(app, |_, seen| seen.is_some_and(|seen| seen.address == address));
    html! {
        (table(&DEVICES, &devices, "No device was last seen at this address."))
        @if devices.len() >= limits::CONSOLE_ROWS { p.note { "There may be more." } }
    }
}

/// The devices, users, rooms, pages and acts with such a name; if there is but one user, room or
/// page, its path.
fn names(app: &Server, wanted: &str) -> Result<Found, ApiError> {
    let devices = match wanted.contains(char::is_whitespace) {
        true => Vec::new(),
        false => devices(app, |device_id, _| device_id == wanted),
    };
    let limit = limits::CONSOLE_ROWS;
    let name = Some(wanted.to_owned());
    let users = UserSearch { name: name.clone(), limit, ..UserSearch::default() };
    let (users, users_in_all) = search(&app.context, &users);
    let mut paths: Vec<_> = users
        .iter()
        .map(|found| format!("{HOME}/users/{}", encoded(found.user.user_id.as_str())))
        .collect();
    let users: Vec<_> = users
        .iter()
        .map(|FoundUser { user: one, .. }| {
            let name = one.display_name.as_deref().unwrap_or_default();
            vec![user(one.user_id.as_str()), text(name)]
        })
        .collect();
    let rooms = RoomSearch { search: name, limit: Some(limit), ..RoomSearch::default() };
    let (rooms, rooms_in_all) = rooms::list(&app.context, &rooms)?;
    let of_room = |id: &str| format!("{HOME}/rooms/{}", encoded(id));
    paths.extend(rooms.iter().map(|one| of_room(one.room_id.as_str())));
    let pages = pages_named(wanted);
    paths.extend(pages.iter().map(|(path, _)| format!("{HOME}{path}")));
    if let ([path], true) = (&*paths, devices.is_empty()) {
        return Ok(Found::One(path.clone()));
    }
    let acts_named = acts_named(wanted);
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
    let nothing = paths.is_empty() && devices.is_empty() && acts_named.is_empty();
    Ok(Found::Several(html! {
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
        @if !pages.is_empty() {
            h2 { "Pages" }
            ul.acts {
                @for (path, title) in &pages { li { a href={ (HOME) (path) } { (title) } } }
            }
        }
        @if !acts_named.is_empty() { h2 { "Acts" } (acts(&acts_named, &[])) }
        p.note {
            "Ids of users, rooms, aliases, events, files and devices, numbers of records, IP "
            "addresses, homeservers, and parts of the names of users, rooms, pages and acts can "
            "be searched for."
        }
    }))
}

/// The acts that are called so.
fn acts_named(wanted: &str) -> Vec<&'static str> {
    let wanted = wanted.to_lowercase();
    let forms = registry::forms();
    let named = forms.filter(|(_, form)| form.title.to_lowercase().contains(&wanted));
    named.map(|(name, _)| name).collect()
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
                    html! { @if let Some(at) = at { (at) } },
                    html! { (from.map(|from| from.to_string()).unwrap_or_default()) },
                ]);
            }
        }
    }
    rows
}
