//! Where a room is in spaces: those that list it, and what it lists, two levels each way.

use std::{collections::BTreeSet, sync::Arc};

use maud::{Markup, html};
use ruma::{OwnedRoomId, RoomId, events::StateEventType};
use serde_json::Value;

use crate::{
    api::{
        console::parts::{room as room_link, short},
        server::Server,
    },
    http::ApiError,
};
use logcabin_log::ReadError;
use logcabin_read::events::as_shown;
use logcabin_record::Offset;
use logcabin_state::Room;

/// How many rooms are shown below, and below each of those.
const ROOMS: usize = 50;
const BELOW: usize = 10;

/// How many are shown above, and above each of those: all rooms are looked through for each.
const ABOVE: usize = 5;

/// A room, and those behind it.
struct Place {
    room_id: OwnedRoomId,
    next: Vec<Self>,
    /// Whether there are more behind it than are shown.
    is_cut: bool,
}

/// The spaces above a room and the rooms below it, if there are any.
pub(super) fn tree(app: &Server, room: &Room) -> Result<Option<Markup>, ApiError> {
    let (above, below) = (above(app, room)?, below(app, room, ROOMS, 2)?);
    if above.next.is_empty() && below.next.is_empty() {
        return Ok(None);
    }
    Ok(Some(html! {
        @for (title, place) in [("In these spaces", &above), ("Rooms in this space", &below)] {
            @if !place.next.is_empty() { h3 { (title) } (shown(app, place)?) }
        }
    }))
}

fn shown(app: &Server, place: &Place) -> Result<Markup, ReadError> {
    Ok(html! {
        ul.tree {
            @for next in &place.next {
                li {
                    (link(app, &next.room_id)?)
                    @if !next.next.is_empty() { (shown(app, next)?) }
                }
            }
            @if place.is_cut { li.note { "and more" } }
        }
    })
}

fn link(app: &Server, room_id: &RoomId) -> Result<Markup, ReadError> {
    let id = room_id.as_str();
    let Some(room) = app.engine.state().rooms.get(room_id) else {
        return Ok(html! { bdi { (short(id)) } " " span.note { "not on this server" } });
    };
    let events = app.engine.events();
    let name = events.state_text(&room, &StateEventType::RoomName, "name", Offset::MAX)?;
    Ok(room_link(id, name.as_deref().unwrap_or(id)))
}

/// Whether the event at this offset still says that rooms belong together: it names homeservers.
fn holds(app: &Server, room: &Room, offset: Offset) -> Result<bool, ReadError> {
    let event = app.engine.events().get(offset)?.map(|event| as_shown(room, event, Offset::MAX));
    let content = event.and_then(|event| event.content_as::<Value>().ok());
    let via = content.as_ref().and_then(|content| content["via"].as_array());
    Ok(via.is_some_and(|via| !via.is_empty()))
}

/// What the room lists. A space may list itself, or one above it: the levels are counted.
fn below(app: &Server, room: &Room, most: usize, levels: usize) -> Result<Place, ReadError> {
    let mut place = Place { room_id: room.id.clone(), next: Vec::new(), is_cut: false };
    if levels == 0 {
        return Ok(place);
    }
    // Children that were taken out again are still there as empty events.
    for (key, offset) in
        room.state_of_type(&StateEventType::SpaceChild, Offset::MAX).into_iter().take(4 * most)
    {
        let Ok(room_id) = RoomId::parse(&key) else { continue };
        if !holds(app, room, offset)? {
            continue;
        }
        if place.next.len() >= most {
            place.is_cut = true;
            break;
        }
        let known = app.engine.state().rooms.get(&room_id);
        let known = known.map(|child| below(app, &child, BELOW, levels - 1)).transpose()?;
        let alone = Place { room_id, next: Vec::new(), is_cut: false };
        place.next.push(known.unwrap_or(alone));
    }
    Ok(place)
}

/// The spaces that list the room, or that it names, and those above them.
fn above(app: &Server, room: &Room) -> Result<Place, ReadError> {
    let all = app.engine.state().rooms.all();
    let mut next = Vec::new();
    let parents = parents(app, &all, room, ABOVE)?;
    for room_id in &parents {
        let known = app.engine.state().rooms.get(room_id);
        let more = known.map(|space| self::parents(app, &all, &space, ABOVE)).transpose()?;
        let more = more.unwrap_or_default().into_iter();
        let more = more.map(|room_id| Place { room_id, next: Vec::new(), is_cut: false });
        next.push(Place { room_id: room_id.clone(), next: more.collect(), is_cut: false });
    }
    Ok(Place { room_id: room.id.clone(), is_cut: parents.len() >= ABOVE, next })
}

fn parents(
    app: &Server,
    all: &[Arc<Room>],
    room: &Room,
    most: usize,
) -> Result<BTreeSet<OwnedRoomId>, ReadError> {
    let mut found = BTreeSet::new();
    for (key, offset) in
        room.state_of_type(&StateEventType::SpaceParent, Offset::MAX).into_iter().take(4 * most)
    {
        if found.len() < most
            && let Ok(room_id) = RoomId::parse(&key)
            && holds(app, room, offset)?
        {
            found.insert(room_id);
        }
    }
    for space in all {
        if found.len() >= most {
            break;
        }
        let child = space.state_event(&StateEventType::SpaceChild, room.id.as_str(), Offset::MAX);
        if let Some(child) = child
            && holds(app, space, child)?
        {
            found.insert(space.id.clone());
        }
    }
    Ok(found)
}
