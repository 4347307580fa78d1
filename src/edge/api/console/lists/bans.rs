//! The rooms that a user is banned from, and how that is taken back.

use maud::{Markup, html};
use ruma::{OwnedRoomId, UserId};

use crate::api::console::{
    acts::button,
    parts::{record, room, table},
};
use logcabin_base::limits;
use logcabin_record::Offset;
use logcabin_state::Membership;

/// Nothing for a user who is banned from no room.
pub(super) fn of(user_id: &UserId, rooms: &[(OwnedRoomId, Membership, Offset)]) -> Markup {
    let banned = rooms.iter().filter(|(_, membership, _)| *membership == Membership::Ban);
    let rows: Vec<_> = banned
        .take(limits::CONSOLE_ROWS)
        .map(|(room_id, _, since)| {
            let id = room_id.as_str();
            vec![room(id, id), record(*since), take_back(user_id.as_str(), Some(id))]
        })
        .collect();
    html! {
        @if !rows.is_empty() {
            h2 { "Banned from" }
            (table(&["Room", "Record", "Acts"], &rows, ""))
            @if rows.len() > 1 { (take_back(user_id.as_str(), None)) }
        }
    }
}

/// Takes back the ban from a room, or from all.
fn take_back(user_id: &str, room_id: Option<&str>) -> Markup {
    let title = if room_id.is_some() { "Unban" } else { "Unban in all rooms" };
    let given = [
        ("user", user_id),
        ("change", "unban"),
        ("rooms", room_id.unwrap_or_default()),
        ("redact", "no"),
    ];
    button(title, "change-member", &given)
}
