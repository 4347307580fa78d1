//! Rooms: their state and members by event id, their last events, receipts, aliases.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedUserId, RoomAliasId, RoomId};

use logcabin_base::clock::Clock;
use logcabin_record::Offset;
use logcabin_state::{
    Membership, Room,
    rooms::gaps::{ReadOptions, TimelinePosition},
};

use super::{Compared, Imported, Reason, Subject, each, lost, sample};
use crate::{
    ImportError,
    facts::{Fact, Section, Source},
};

/// How many of the last events are compared.
const LAST_EVENTS: usize = 200;

/// State by type and key.
type EventIds = BTreeMap<(String, String), String>;

pub(super) fn compare(
    source: &mut dyn Source,
    copy: &Imported,
    number: Option<usize>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    // A room that nobody of this server is in has no state that anybody could see.
    let (mut joined, mut left) = (Vec::new(), BTreeMap::new());
    each(source, Section::Rooms, |fact| {
        if let Fact::Room(room) = fact
            && room.joined
        {
            if room.partial {
                left.insert(room.room_id.clone(), "it was still being joined there");
            } else if room.version.is_none() {
                left.insert(room.room_id.clone(), "nobody knows its version");
            }
            joined.push(room.room_id);
        }
        Ok(())
    })?;
    let rooms = sample(joined, number);
    for room_id in &rooms {
        let found = match (the_room(copy, room_id), left.get(room_id)) {
            (Some(_), _) => Ok(()),
            (None, Some(why)) => Err(Reason::explained("it is not there", why)),
            (None, None) => Err(Reason::fault("it is not there")),
        };
        compared.is(Subject::Rooms, room_id.clone(), found);
    }
    state(source, copy, &rooms, compared)?;
    last_events(source, copy, &rooms, compared)?;
    receipts(source, copy, &rooms, compared)?;
    aliases(source, copy, &rooms, compared)
}

fn the_room(copy: &Imported, room_id: &str) -> Option<std::sync::Arc<Room>> {
    copy.state.rooms.get(<&RoomId>::try_from(room_id).ok()?)
}

/// The facts come room by room.
fn state(
    source: &mut dyn Source,
    copy: &Imported,
    rooms: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    let (mut of, mut ids, mut joined) = (String::new(), EventIds::new(), BTreeSet::new());
    let mut finish = |of: &str, ids: &EventIds, joined: &BTreeSet<String>| {
        match the_room(copy, of) {
            Some(room) => one_state(copy, &room, (of, ids, joined), compared),
            // That it is missing was said.
            None => Ok(()),
        }
    };
    each(source, Section::CurrentState, |fact| {
        let Fact::CurrentState(entry) = fact else { return Ok(()) };
        if entry.room_id != of {
            finish(&of, &ids, &joined)?;
            of.clone_from(&entry.room_id);
            (ids, joined) = (EventIds::new(), BTreeSet::new());
        }
        if rooms.contains(&of) {
            if entry.membership.as_deref() == Some("join") {
                joined.insert(entry.state_key.clone());
            }
            ids.insert((entry.event_type, entry.state_key), entry.event_id);
        }
        Ok(())
    })?;
    if ids.is_empty() { Ok(()) } else { finish(&of, &ids, &joined) }
}

fn one_state(
    copy: &Imported,
    room: &Room,
    (of, theirs, joined): (&str, &EventIds, &BTreeSet<String>),
    compared: &mut Compared,
) -> Result<(), ImportError> {
    if theirs.is_empty() {
        return Ok(());
    }
    let mut ours = EventIds::new();
    for (event_type, state_key, offset) in room.state_map(copy.at) {
        let event = copy.events.get(offset).map_err(lost)?;
        let id = event.map_or_else(String::new, |event| event.event_id.to_string());
        ours.insert((event_type.to_string(), state_key.into()), id);
    }
    let keys: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    for key in keys {
        let found = match (theirs.get(key), ours.get(key)) {
            (Some(theirs), Some(ours)) if theirs == ours => Ok(()),
            (theirs, ours) => {
                let said = |id: Option<&String>| id.map_or("nothing", String::as_str).to_owned();
                Err(Reason::fault(format!("{} there, {} here", said(theirs), said(ours))))
            }
        };
        compared.is(Subject::State, format!("{of} {} {}", key.0, key.1), found);
    }
    let members = room.members(Membership::Join, copy.at).into_iter();
    let members: BTreeSet<_> = members.map(|(user_id, _)| user_id.to_string()).collect();
    for user_id in members.symmetric_difference(joined) {
        let (there, here) = if joined.contains(user_id) { ("", "not ") } else { ("not ", "") };
        let found = Err(Reason::fault(format!("{there}joined there, {here}joined here")));
        compared.is(Subject::Members, format!("{of} {user_id}"), found);
    }
    for _ in members.intersection(joined) {
        compared.same(Subject::Members);
    }
    Ok(())
}

fn last_events(
    source: &mut dyn Source,
    copy: &Imported,
    rooms: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    let now_ms = Clock::system().now_ms();
    let reading = ReadOptions { at: copy.at, now_ms, stops: false };
    for room_id in rooms {
        let Some(room) = the_room(copy, room_id) else { continue };
        let theirs = source.newest(room_id, LAST_EVENTS)?;
        let ours = newest(&room, reading, theirs.len());
        let mut found = Ok(());
        // Newest first on both sides.
        for (place, theirs) in theirs.iter().enumerate() {
            let ours = match ours.get(place) {
                Some(offset) => copy.events.get(*offset).map_err(lost)?,
                None => None,
            };
            let ours = ours.map(|event| event.event_id.to_string());
            let ours = ours.unwrap_or_else(|| "nothing".to_owned());
            if ours != *theirs {
                let number = place + 1;
                found = Err(Reason::fault(format!(
                    "event {number} from the end is {theirs} there, {ours} here"
                )));
                break;
            }
        }
        compared.is(Subject::LastEvents, room_id.clone(), found);
    }
    Ok(())
}

/// The newest events of a room's timeline, without what was fetched from the past.
fn newest(room: &Room, reading: ReadOptions, most: usize) -> Vec<Offset> {
    let mut from = TimelinePosition::After(reading.at);
    let mut newest = Vec::new();
    while newest.len() < most {
        let to = TimelinePosition::After(Offset::ZERO);
        let walked = room.walk_back(from, to, reading, most).events;
        let Some((_, last)) = walked.last() else { break };
        from = *last;
        let is_filled =
            |at: &TimelinePosition| matches!(at, TimelinePosition::Within { passed: 1.., .. });
        let came = walked.into_iter().filter(|(_, before)| !is_filled(before));
        newest.extend(came.map(|(offset, _)| offset));
    }
    newest
}

fn receipts(
    source: &mut dyn Source,
    copy: &Imported,
    rooms: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    each(source, Section::Receipts, |fact| {
        let Fact::Receipt(receipt) = fact else { return Ok(()) };
        if !rooms.contains(&receipt.room_id) {
            return Ok(());
        }
        let (Some(room), Ok(user_id)) =
            (the_room(copy, &receipt.room_id), OwnedUserId::try_from(receipt.user_id.as_str()))
        else {
            return Ok(());
        };
        let of = format!("{} {} {}", receipt.room_id, receipt.user_id, receipt.receipt_type);
        let key = (user_id, receipt.receipt_type, receipt.thread_id);
        let found = match room.receipt(&key) {
            None if !matches!(&*key.1, "m.read" | "m.read.private") => {
                Err(Reason::explained("it is not there", "it is of no type that is known"))
            }
            Some(entry) if entry.event_id == receipt.event_id => Ok(()),
            Some(entry) if entry.offset > copy.at => {
                let what = format!("{} here", entry.event_id);
                Err(Reason::explained(what, "the user has read on since"))
            }
            Some(entry) => {
                let what = format!("{} there, {} here", receipt.event_id, entry.event_id);
                Err(Reason::fault(what))
            }
            None => Err(Reason::fault(format!("{} there, nothing here", receipt.event_id))),
        };
        compared.is(Subject::Receipts, of, found);
        Ok(())
    })
}

fn aliases(
    source: &mut dyn Source,
    copy: &Imported,
    rooms: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    let own = source.about()?.server_name;
    each(source, Section::Aliases, |fact| {
        let Fact::Alias(alias) = fact else { return Ok(()) };
        if !rooms.contains(&alias.room_id) {
            return Ok(());
        }
        let target = <&RoomAliasId>::try_from(alias.alias.as_str())
            .ok()
            .and_then(|name| copy.state.aliases.get(name, copy.at));
        let is_own = alias.alias.split_once(':').is_some_and(|(_, of)| of == own);
        let found = match target {
            Some(target) if target.room_id == alias.room_id => Ok(()),
            _ if !is_own => {
                Err(Reason::explained("it is not there", "it is an alias of another server"))
            }
            _ => Err(Reason::fault(format!("it does not lead to {} here", alias.room_id))),
        };
        compared.is(Subject::Aliases, alias.alias, found);
        Ok(())
    })
}
