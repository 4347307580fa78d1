//! "Time travel": a room, a user or the server as of any moment, and what changed between two.
//! Everything comes from the live projections and the records that they name, so that a page costs
//! what it shows, wherever in the log its moment is.

use std::sync::Arc;

use maud::{Markup, html};
use serde_json::Value;

use super::{
    parts::{
        encoded, facts, field, json, moment, query, record, room as room_link, seconds, table,
        text, those, time_of, unanswered, user as user_link, value, why,
    },
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_engine::Engine;
use logcabin_ops::history::{
    History, HistoryError, Source,
    diff::{Change, Scope, changed},
    query::EventRow,
};
use logcabin_record::Offset;
use logcabin_state::Membership;

/// How many of a room's newest events a page shows.
const EVENTS: usize = 20;

endpoint! {
    pub(super) struct Past = GET "/_logcabin/console/past";
    for ConsoleLogin;
    {
        room: Option<String> = parameter,
        user: Option<String> = parameter,
        at: Option<String> = parameter,
        time: Option<String> = parameter,
        from: Option<String> = parameter,
        after: Option<String> = parameter,
    }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Past) -> Result<Reply, ApiError> {
    show(&cx, ("Time travel", "past"), |app| view(&app.engine, &request)).await
}

fn view(engine: &Engine, request: &Past) -> Result<Markup, ApiError> {
    let head = engine.head().offset();
    let given =
        |text: &Option<String>| text.as_deref().map(|text| moment(engine, text)).transpose();
    // A time that was typed counts more than where the slider was left.
    let at = match given(&request.time)? {
        Some(at) => at,
        None => given(&request.at)?.unwrap_or(head),
    };
    let from = given(&request.from)?;
    let time = time_of(engine, at)?;
    let source = Source::own(Arc::clone(engine.log()), head);
    let state = engine.state().share();
    let history = History::live(&source, Arc::clone(&state), at);
    let before = from.map(|from| History::live(&source, state, from.min(at)));
    let scope = match (&request.room, &request.user) {
        (Some(room), _) => Scope::Room(room.clone()),
        (None, Some(user)) => Scope::User(user.clone()),
        (None, None) => Scope::Server,
    };
    let seen = match &scope {
        Scope::Room(name) => room(&history, name, request),
        Scope::User(name) => user(&history, name),
        Scope::Server => Ok(server(&history, before.as_ref())),
    };
    let seen = match seen {
        // Before the beginning, the slider still works.
        Err(error @ HistoryError::NotYet { .. }) => {
            html! { p { (unanswered(error).message()) } }
        }
        seen => seen.map_err(unanswered)?,
    };
    let changes = match &before {
        Some(before) if scope != Scope::Server => {
            let rows = changed(before, &history, &scope, limits::CONSOLE_ROWS);
            Some((before.end(), rows.map_err(unanswered)?))
        }
        _ => None,
    };
    Ok(html! {
        form.filters method="get" role="search" data-live="view" {
            (field("room", "Room", &request.room, "!id or #alias"))
            (field("user", "User", &request.user, "@user:server"))
            (field("time", "As of", &None, "record, time, or -10m"))
            (field("from", "Compare with", &request.from, "an earlier one"))
            div.wide {
                label for="at" { "Moment: from the first record to the last" }
                input type="range" id="at" name="at" min="1" max=(head.get().max(1)) value=(at);
            }
            button type="submit" { "Look" }
        }
        div id="view" aria-live="polite" {
            p.moment {
                "As of record " (record(at)) ", " (time)
            }
            @if let Some((from, changes)) = &changes { (differences(*from, at, changes)) }
            (seen)
        }
    })
}

fn differences(from: Offset, to: Offset, changes: &[Change]) -> Markup {
    let rows: Vec<_> = changes
        .iter()
        .map(|change| vec![text(&change.what), value(&change.before), value(&change.after)])
        .collect();
    html! {
        h2 { "What changed between records " (from) " and " (to) }
        (table(&["What", "Before", "After"], &rows, "Nothing that is known of it."))
        @if changes.len() >= limits::CONSOLE_ROWS {
            p.note { "There may be more: these are the last changes." }
        }
    }
}

fn content<'a>(row: &'a EventRow, field: &str) -> Option<&'a str> {
    row.content.as_ref()?.get(field)?.as_str()
}

fn room(history: &History<'_>, name: &str, request: &Past) -> Result<Markup, HistoryError> {
    let (room, at) = (history.room_now(name)?, history.end());
    let id = room.id.as_str();
    if room.created > at {
        return Err(HistoryError::NotYet { name: id.to_owned(), at });
    }
    let mut offsets = room.state_without_members(at);
    let all = offsets.len();
    offsets.truncate(limits::CONSOLE_ROWS);
    let state = history.events(&room, &offsets)?;
    let of = |kind: &str, field: &str| {
        let row = state.iter().find(|row| row.event_type == kind);
        row.and_then(|row| content(row, field)).unwrap_or("–").to_owned()
    };
    let counts = room.counts(at);
    let public = if room.was_public(at) { "yes" } else { "no" };
    let why = |words: &[&str]| why(&[&["room", id], words].concat(), Some(at));
    let rows = [
        ("Room", room_link(id, id)),
        ("Name", html! { (text(&of("m.room.name", "name"))) " " (why(&["m.room.name"])) }),
        ("Topic", html! { (text(&of("m.room.topic", "topic"))) " " (why(&["m.room.topic"])) }),
        ("Joined", html! { (counts.joined) }),
        ("Invited", html! { (counts.invited) }),
        ("Events", html! { (room.event_count(at)) }),
        ("In the directory", html! { (public) " " (why(&["directory"])) }),
        ("Created", record(room.created)),
    ];
    let state_rows: Vec<_> = state
        .iter()
        .map(|row| {
            let key = row.state_key.as_deref().unwrap_or_default();
            let content = row.content.as_ref().map(Value::to_string);
            let words = [row.event_type.as_str(), key];
            vec![
                text(&format!("{} {key}", row.event_type)),
                text(content.as_deref().unwrap_or("(redacted)")),
                user_link(&row.sender),
                record(row.offset),
                why(if key.is_empty() { &words[..1] } else { &words }),
            ]
        })
        .collect();
    let powers = state.iter().find(|row| row.event_type == "m.room.power_levels");
    let powers = powers.and_then(|row| row.content.as_ref()?.get("users")?.as_object());
    let powers: Vec<_> = powers
        .into_iter()
        .flatten()
        .take(limits::CONSOLE_ROWS)
        .map(|(user, level)| vec![user_link(user), text(&level.to_string()), why(&["power", user])])
        .collect();
    let after = request.after.as_deref().unwrap_or_default();
    let mut members = room.members(Membership::Join, at);
    members.sort_unstable();
    let start = members.partition_point(|(user, _)| user.as_str() <= after);
    let shown = members.iter().skip(start).take(limits::CONSOLE_ROWS);
    let rows_of_members: Vec<_> = shown
        .clone()
        .map(|(user, offset)| {
            vec![user_link(user.as_str()), record(*offset), why(&["member", user.as_str()])]
        })
        .collect();
    let more =
        (start + limits::CONSOLE_ROWS < members.len()).then(|| shown.clone().next_back()).flatten();
    let mut events = Vec::new();
    history.timeline(&room, room.before_last(EVENTS, at), at, Some(EVENTS), |row| {
        events.push(vec![
            record(row.offset),
            html! { (seconds(&row.time)) },
            user_link(&row.sender),
            text(&row.text),
        ]);
        Ok(())
    })?;
    events.reverse();
    Ok(html! {
        (facts(&rows))
        h2 { "The newest events" }
        (table(&["Record", "Time", "Who", "What"], &events, "None yet."))
        h2 { "State" }
        (table(&["What", "Value", "Set by", "Record", "Who changed it"], &state_rows, "None yet."))
        @if all > limits::CONSOLE_ROWS {
            p.note { "The first " (limits::CONSOLE_ROWS) " of " (all) "." }
        }
        h2 { "Power levels" }
        (table(&["User", "Level", "Who changed it"], &powers, "Nobody has a level of their own."))
        h2 { "Members" }
        (table(&["User", "Since record", "Who changed it"], &rows_of_members, "Nobody."))
        @if let Some((last, _)) = more {
            p {
                a href={
                    "?" (query(&[("room", &request.room)])) "at=" (at)
                        "&after=" (encoded(last.as_str()))
                } { "More members" }
            }
        }
    })
}

fn user(history: &History<'_>, name: &str) -> Result<Markup, HistoryError> {
    let (user_id, at) = (history.user_id(name)?, history.end());
    let user = history.user(&user_id)?;
    let id = user.user_id.as_str();
    let why = |words: &[&str]| why(&[&["user", id], words].concat(), Some(at));
    let password = match user.password {
        Some(offset) => html! { "set with record " (record(offset)) " " },
        None => html! { "none " },
    };
    let now = those(&[
        ("administrator", user.admin),
        ("locked", user.locked),
        ("suspended", user.suspended),
        ("deactivated", user.deactivated.is_some()),
    ]);
    let now = if now.is_empty() { "nothing special".to_owned() } else { now };
    let rows = [
        ("User", user_link(id)),
        ("Registered", record(user.registered)),
        ("Password", html! { (password) (why(&["password"])) }),
        ("Status, at present", html! { (now) " " (why(&["account"])) }),
    ];
    let most = limits::CONSOLE_ROWS;
    let profile = user.profile.iter().take(most);
    let profile: Vec<_> = profile
        .map(|(name, value)| vec![text(name), json(value), why(&["profile", name])])
        .collect();
    let devices = user.devices.iter().take(most);
    let devices: Vec<_> = devices
        .map(|device| {
            vec![
                text(&device.device_id),
                text(device.display_name.as_deref().unwrap_or_default()),
                html! { (seconds(&device.since)) },
                record(device.session),
                why(&["device", &device.device_id]),
            ]
        })
        .collect();
    let rooms = user.rooms.iter().take(most);
    let rooms: Vec<_> = rooms
        .map(|(room, membership)| {
            let words = ["room", room.as_str(), "member", id];
            vec![room_link(room, room), text(membership), super::parts::why(&words, Some(at))]
        })
        .collect();
    let data = user.account_data.iter().take(most);
    let data: Vec<_> = data
        .map(|(name, offset)| vec![text(name), record(*offset), why(&["data", name])])
        .collect();
    let part = |of: usize| {
        html! { @if of > most { p.note { "The first " (most) " of " (of) "." } } }
    };
    Ok(html! {
        (facts(&rows))
        h2 { "Profile" }
        (table(&["Field", "Value", "Who changed it"], &profile, "Nothing."))
        h2 { "Devices" }
        (table(&["Device", "Name", "Since", "Login", "Who changed it"], &devices, "None."))
        (part(user.devices.len()))
        h2 { "Rooms" }
        p {
            a href={ "/_logcabin/console/users/" (encoded(id)) "/unread?at=" (at) } {
                "Unread counts"
            }
        }
        (table(&["Room", "Membership", "Who changed it"], &rooms, "None."))
        (part(user.rooms.len()))
        h2 { "Account data" }
        (table(&["Type", "Record", "Who changed it"], &data, "None."))
        (part(user.account_data.len()))
    })
}

/// The server in outline; with `before`, what is new since then.
fn server(history: &History<'_>, before: Option<&History<'_>>) -> Markup {
    let (state, at) = (history.state(), history.end());
    let since = before.map_or(at, History::end);
    let (mut users, mut new_users) = (0_usize, Vec::new());
    state.accounts.each_registration(|user_id, registered| {
        users += usize::from(registered <= at);
        if registered > since && registered <= at {
            new_users.push((registered, user_id.to_owned()));
        }
    });
    let (mut rooms, mut events, mut new_rooms) = (0_usize, 0_usize, Vec::new());
    for room in state.rooms.all() {
        rooms += usize::from(room.created <= at);
        events += room.event_count(at);
        if room.created > since && room.created <= at {
            new_rooms.push((room.created, room.id.clone()));
        }
    }
    new_users.sort_unstable();
    new_rooms.sort_unstable();
    let most = limits::CONSOLE_ROWS;
    let rows = |new: Vec<(Offset, Markup)>| -> Vec<Vec<Markup>> {
        new.into_iter().map(|(offset, name)| vec![name, record(offset)]).collect()
    };
    let counts = (new_users.len(), new_rooms.len());
    let new_users = new_users.into_iter().take(most);
    let new_users = rows(new_users.map(|(at, id)| (at, user_link(id.as_str()))).collect());
    let new_rooms = new_rooms.into_iter().take(most);
    let new_rooms =
        rows(new_rooms.map(|(at, id)| (at, room_link(id.as_str(), id.as_str()))).collect());
    html! {
        dl.facts {
            @for (name, count) in [
                ("Records", usize::try_from(at.get()).unwrap_or(usize::MAX)),
                ("Users", users),
                ("Rooms", rooms),
                ("Events", events),
            ] {
                div { dt { (name) } dd { (count) } }
            }
        }
        @if let Some(before) = before {
            h2 { (counts.0) " new users since record " (before.end()) }
            (table(&["User", "Record"], &new_users, "Nobody."))
            h2 { (counts.1) " new rooms since record " (before.end()) }
            (table(&["Room", "Record"], &new_rooms, "None."))
            @if counts.0.max(counts.1) > most { p.note { "The first " (most) " of each." } }
        }
        @if before.is_none() {
            p.note { "Name a room or a user to see it as it was, or another moment to compare." }
        }
    }
}
