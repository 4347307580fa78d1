//! All details of an account, for people.

use std::fmt::Write as _;

use super::{
    paragraphs::hanging,
    render::{devices, heading, pushers, table},
    rows::UserView,
    terminal::{BLUE, ColumnLayout, DIM, Layout, PLAIN, clean},
};
use logcabin_record::Offset;

/// All details of an account.
pub(super) fn user(user: &UserView, look: &Layout) -> String {
    let mut out = heading(look, &user.user_id, None);
    let standing = [
        (user.admin, "administrator"),
        (user.locked, "locked"),
        (user.suspended, "suspended"),
        (user.shadow_banned, "shadow-banned"),
        (user.waiting.is_some(), "waiting for approval"),
        (user.deactivated.is_some(), "deactivated"),
    ];
    let standing = standing.iter().filter(|(is, _)| *is).map(|(_, word)| *word);
    let kind = user.kind.as_str().unwrap_or("user");
    let words: Vec<_> = std::iter::once(kind).chain(standing).collect();
    let record = |offset: Option<Offset>| offset.map(|offset| format!("record {offset}"));
    let mut field = |name: &str, text: &str| {
        if !text.is_empty() {
            let first = format!("  {}  ", look.paint(DIM, &format!("{name:12}")));
            hanging(&first, 16, &clean(text), PLAIN, look, &mut out);
        }
    };
    field("account", &words.join(", "));
    field("registered", &record(Some(user.registered)).unwrap_or_default());
    field("password", &record(user.password).unwrap_or_else(|| "none".to_owned()));
    field("deactivated", &record(user.deactivated).unwrap_or_default());
    for (name, value) in &user.profile {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        field("profile", &format!("{name}: {value}"));
    }
    field("addresses", &user.addresses.join(", "));
    let data: Vec<_> = user.account_data.iter().map(|(of, at)| format!("{of} ({at})")).collect();
    field("account data", &data.join(", "));
    if !user.devices.is_empty() {
        let _ = write!(out, "\n{}", devices(&user.devices, look));
    }
    if !user.rooms.is_empty() {
        let columns = [("ROOM", ColumnLayout::Flexible), ("MEMBERSHIP", ColumnLayout::Left)];
        let rooms: Vec<_> = user.rooms.iter().collect();
        let rooms = table(&rooms, look, &columns, "", |(room_id, membership)| {
            [((*room_id).clone(), BLUE), ((**membership).to_owned(), PLAIN)]
        });
        let _ = write!(out, "\n{rooms}");
    }
    if !user.pushers.is_empty() {
        let _ = write!(out, "\n{}", pushers(&user.pushers, look));
    }
    out
}
