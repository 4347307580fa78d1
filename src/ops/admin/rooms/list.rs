//! List the rooms.

use std::cmp::Ordering;

use ruma::events::StateEventType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::summary::{RoomSummary, creator, joined_here, state_content, summary};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::{background, text};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Room;

/// The most rooms in one answer.
const PAGE: usize = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListRooms {
    #[serde(flatten)]
    pub wanted: RoomSearch,
}

/// Which rooms, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoomSearch {
    /// A part of their name, of the localpart of their alias or of their id.
    pub search: Option<String>,
    /// Whether the public directory lists them.
    pub public: Option<bool>,
    /// Whether nobody is in them.
    pub empty: Option<bool>,
    pub order: RoomOrder,
    /// Whether to reverse the order.
    pub reverse: bool,
    /// How many to skip.
    pub from: usize,
    /// How many to list; none for as many as one answer can hold.
    pub limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum RoomOrder {
    /// By name; those without one come last.
    #[default]
    #[serde(alias = "alphabetical")]
    Name,
    /// By main alias; those without one come last.
    CanonicalAlias,
    /// By the number of members, the largest first.
    #[serde(alias = "size")]
    JoinedMembers,
    /// By the number of members of this server, the largest first.
    JoinedLocalMembers,
    /// By version, the newest first.
    Version,
    /// By creator.
    Creator,
    /// By encryption algorithm; those without one come last.
    Encryption,
    /// Rooms that users of other homeservers could join come last.
    Federatable,
    /// Rooms that the public directory lists come last.
    Public,
    /// By join rule.
    JoinRules,
    /// By guest access.
    GuestAccess,
    /// By history visibility.
    HistoryVisibility,
    /// By the number of state events, the largest first.
    StateEvents,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rooms {
    pub rooms: Vec<RoomSummary>,
    /// How many rooms match in all.
    pub total: usize,
}

impl Act for ListRooms {
    const NAME: &'static str = "list-rooms";
    const DONE: &'static str = "rooms";
    type Done = Rooms;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Rooms, ActError> {
        // The work grows with the number of rooms.
        let (rooms, total) = background::at_length(|| list(context, &self.wanted))?;
        Ok(Rooms { rooms, total })
    }
}

/// What rooms are sorted by.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// The greatest first.
    Number(std::cmp::Reverse<u64>),
    /// Rooms without a text come last.
    Text(bool, String),
}

/// The rooms that are wanted, in order, and how many there are.
pub fn list(
    context: &ActContext,
    wanted: &RoomSearch,
) -> Result<(Vec<RoomSummary>, usize), ActError> {
    let search = wanted.search.as_deref().map(text::fold);
    let mut found = Vec::new();
    for room in context.engine.state().rooms.all() {
        let is = |asked: Option<bool>, is: bool| asked.is_none_or(|asked| asked == is);
        let empty = room.counts(Offset::MAX).joined == 0;
        if !is(wanted.public, room.is_public()) || !is(wanted.empty, empty) {
            continue;
        }
        if let Some(search) = &search
            && !mentions(context, &room, search)?
        {
            continue;
        }
        found.push((key(context, &room, wanted.order)?, room));
    }
    found.sort_by(|(a, one), (b, other)| match a.cmp(b) {
        Ordering::Equal => one.id.cmp(&other.id),
        order => order,
    });
    if wanted.reverse {
        found.reverse();
    }
    let total = found.len();
    let limit = wanted.limit.unwrap_or(PAGE).min(PAGE);
    let page = found.into_iter().skip(wanted.from).take(limit);
    let page = page.map(|(_, room)| summary(context, &room)).collect::<Result<_, _>>()?;
    Ok((page, total))
}

fn mentions(context: &ActContext, room: &Room, search: &str) -> Result<bool, ReadError> {
    let alias = context.room_names.alias(&context.engine, room)?;
    let alias = alias.and_then(|alias| alias.split(':').next().map(ToOwned::to_owned));
    let name = context.room_names.name(&context.engine, room)?;
    let texts = [name, alias, Some(text::fold(room.id.as_str()))];
    Ok(texts.into_iter().flatten().any(|of| of.contains(search)))
}

fn key(context: &ActContext, room: &Room, order: RoomOrder) -> Result<Key, ReadError> {
    use StateEventType as Kind;
    let number = |number: u64| Ok(Key::Number(std::cmp::Reverse(number)));
    let count = |count: usize| number(u64::try_from(count).unwrap_or(u64::MAX));
    let folded = |text: Option<String>| Key::Text(text.is_none(), text.unwrap_or_default());
    let named = |text: Option<String>| folded(text.as_deref().map(text::fold));
    let (kind, field) = match order {
        RoomOrder::JoinedMembers => return number(room.counts(Offset::MAX).joined),
        RoomOrder::JoinedLocalMembers => return count(joined_here(context, room)),
        RoomOrder::Version => return number(room.version.as_str().parse().unwrap_or(0)),
        RoomOrder::Public => return number((!room.is_public()).into()),
        RoomOrder::StateEvents => return count(room.full_state(Offset::MAX).len()),
        RoomOrder::Federatable => {
            let create = state_content(context, room, Kind::RoomCreate)?;
            return number((create["m.federate"] == Value::Bool(false)).into());
        }
        RoomOrder::Creator => return Ok(named(creator(context, room)?)),
        RoomOrder::Name => return Ok(folded(context.room_names.name(&context.engine, room)?)),
        RoomOrder::CanonicalAlias => {
            return Ok(folded(context.room_names.alias(&context.engine, room)?));
        }
        RoomOrder::Encryption => (Kind::RoomEncryption, "algorithm"),
        RoomOrder::JoinRules => (Kind::RoomJoinRules, "join_rule"),
        RoomOrder::GuestAccess => (Kind::RoomGuestAccess, "guest_access"),
        RoomOrder::HistoryVisibility => (Kind::RoomHistoryVisibility, "history_visibility"),
    };
    Ok(named(context.state_text(room, kind, field)?))
}
