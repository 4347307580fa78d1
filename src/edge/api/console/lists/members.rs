//! The members of a room, those with power first, and their homeservers.

use std::collections::HashSet;

use maud::{Markup, html};
use ruma::{Int, OwnedUserId, UserId};

use super::pages;
use crate::{
    api::{
        console::parts::{record, server, table, user, why},
        server::Server,
    },
    http::ApiError,
};
use logcabin_base::limits;
use logcabin_decide::powers::Powers;
use logcabin_ops::history::terminal::grouped;
use logcabin_record::Offset;
use logcabin_state::{Membership, Room};

/// What a power level makes of a member, by the names that clients have for the usual levels.
pub(super) fn role(powers: &Powers<'_>, user_id: &UserId) -> String {
    match powers.level(user_id).map(i64::from) {
        None => "no power: the room's levels are not valid".to_owned(),
        Some(level) if level == i64::from(Int::MAX) => "Creator".to_owned(),
        Some(level) => format!("{} ({level})", named(level)),
    }
}

const fn named(level: i64) -> &'static str {
    match level {
        100.. => "Admin",
        50.. => "Moderator",
        0.. => "Member",
        _ => "Restricted",
    }
}

/// A page of the members.
pub(super) fn list(app: &Server, room: &Room, from: usize) -> Result<Markup, ApiError> {
    let powers = Powers::of_room(room, app.engine.events())?;
    let members = ordered(room, &powers);
    let id = room.id.as_str();
    let shown = members.iter().skip(from).take(limits::CONSOLE_ROWS);
    let rows: Vec<_> = shown
        .map(|(user_id, since)| {
            let of = user_id.as_str();
            vec![
                user(of),
                html! { (role(&powers, user_id)) " " (why(&["room", id, "power", of], None)) },
                record(*since),
                why(&["room", id, "member", of], None),
            ]
        })
        .collect();
    let columns = ["User", "Role", "Since record", "Who changed it"];
    Ok(html! {
        (table(&columns, &rows, "Nobody is in the room."))
        @if members.len() > limits::CONSOLE_ROWS { (pages(&[], from, rows.len(), members.len())) }
    })
}

/// The members, those with the most power first, the others by their ids.
fn ordered(room: &Room, powers: &Powers<'_>) -> Vec<(OwnedUserId, Offset)> {
    let named: HashSet<_> = powers.named().into_iter().collect();
    let members = room.members(Membership::Join, Offset::MAX);
    let (mut first, rest): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|(user_id, _)| named.contains(user_id));
    first.sort_by_cached_key(|(user_id, _)| std::cmp::Reverse(powers.level(user_id)));
    first.extend(rest);
    first
}

/// The homeservers whose users are in the room, those with most members first.
pub(super) fn servers(room: &Room) -> Markup {
    let servers = room.servers().into_iter();
    let mut servers: Vec<_> = servers.map(|name| (room.joined_of(&name), name)).collect();
    servers.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let shown = servers.iter().take(limits::CONSOLE_ROWS);
    let rows: Vec<_> = shown
        .map(|(members, name)| vec![server(name.as_str()), html! { (grouped(*members as u64)) }])
        .collect();
    html! {
        (table(&["Homeserver", "Members"], &rows, "None."))
        @if servers.len() > rows.len() {
            p.note { "The first " (rows.len()) " of " (servers.len()) "." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_names_that_clients_give_them() {
        let names = [-1, 0, 49, 50, 99, 100, 9000].map(named);
        let expected =
            ["Restricted", "Member", "Member", "Moderator", "Moderator", "Admin", "Admin"];
        assert_eq!(names, expected);
    }
}
