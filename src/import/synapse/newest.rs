//! The newest events of one room.

use std::collections::HashMap;

use super::events::{self, Places, Run, Wanted};
use crate::{
    facts::{Fact, Judged, SourceError},
    sql::database::{Cell, Database},
};

/// The events of each room that found their places later: places and first places, ascending.
pub(super) type Later = HashMap<String, Vec<(i64, i64)>>;

/// Which events found their places in the timeline later. A few of many.
pub(super) fn later(database: &mut dyn Database) -> Result<Later, SourceError> {
    let sql = "SELECT e.room_id, x.event_stream_ordering, e.stream_ordering
        FROM ex_outlier_stream x JOIN events e ON e.event_id = x.event_id
        WHERE x.event_stream_ordering > 0 ORDER BY x.event_stream_ordering";
    let mut later = Later::new();
    database.query(sql, &[], &mut |row| {
        if let [Cell::Text(room), Cell::Int(place), Cell::Int(first)] = &row[..]
            && place != first
        {
            later.entry(room.clone()).or_default().push((*place, *first));
        }
        true
    })?;
    Ok(later)
}

/// The events of a room's timeline, the newest first.
pub(super) fn of_room(
    database: &mut dyn Database,
    places: &mut Places,
    later: &Later,
    room_id: &str,
    most: usize,
) -> Result<Vec<String>, SourceError> {
    events::learn_former(database, places)?;
    let mut later = later.get(room_id).cloned().unwrap_or_default();
    let sql = format!(
        "SELECT stream_ordering FROM events
         WHERE room_id = $1 AND stream_ordering > 0 AND stream_ordering < $2
         ORDER BY stream_ordering DESC LIMIT {most}"
    );
    let (mut newest, mut before) = (Vec::new(), i64::MAX);
    while newest.len() < most {
        let args = [Cell::Text(room_id.to_owned()), Cell::Int(before)];
        let mut found = Vec::new();
        database.query(&sql, &args, &mut |row| {
            if let [Cell::Int(place)] = row[..] {
                found.push((place, place));
            }
            true
        })?;
        let is_last = found.len() < most;
        before = found.last().map_or(0, |(place, _)| *place);
        let from = later.partition_point(|(place, _)| !is_last && *place < before);
        found.extend(later.split_off(from));
        found.sort_unstable_by(|one, other| other.cmp(one));
        let wanted = found.into_iter().map(|(place, first)| Wanted {
            first,
            place,
            former: place == first && places.former.contains_key(&first),
        });
        let (mut run, mut bytes) = (Run::default(), 0);
        events::at_places(database, &wanted.collect::<Vec<_>>(), &mut run, &mut bytes)?;
        newest.extend(run.facts.into_iter().filter_map(|told| match told.fact {
            Fact::Event(event) if event.judged == Judged::Timeline => Some(event.event_id),
            _ => None,
        }));
        if is_last {
            break;
        }
    }
    newest.truncate(most);
    Ok(newest)
}
