//! Events with places below zero: those that Synapse fetched from other servers, because others
//! needed them, or to show what was before.
//!
//! Their places say when they were fetched, and not where they are in their room: a batch of them
//! has the oldest event nearest to zero.

use serde::{Deserialize, Serialize};

use super::{
    events::{self, Places, Run, Wanted},
    late::Hole,
};
use crate::{
    facts::SourceError,
    sql::database::{Cell, Database},
};
use logcabin_base::limits;

/// Where a reading of the past is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// Places from here up were read before.
    from: i64,
    /// Places below this one are read another time.
    pub(super) to: i64,
    /// The last event that was told, if not all of them were.
    pub(super) at: Option<At>,
    /// Places that were passed by.
    #[serde(default)]
    pub(super) holes: Vec<Hole>,
}

/// An event among those of all rooms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct At {
    room: String,
    depth: i64,
    place: i64,
}

/// What is left of a reading, so that the next slice need not look for it again.
#[derive(Default)]
pub(super) struct Left {
    mark: Option<Mark>,
    /// Rooms, the next one last.
    rooms: Vec<String>,
    /// Depth, place and first place of the room's events, the next one last.
    events: Vec<(i64, i64, i64)>,
    room: String,
}

/// Places that are looked through for one slice of outliers.
const LOOKED_AT: usize = limits::SOURCE_SLICE_ROWS * 5;

/// The lowest place above which nothing can come any more.
fn bottom(
    database: &mut dyn Database,
    places: &mut Places,
    now_ms: u64,
) -> Result<i64, SourceError> {
    if places.stopped {
        let events = "SELECT min(stream_ordering) FROM events";
        let later = "SELECT min(event_stream_ordering) FROM ex_outlier_stream";
        let lowest = database.number(events, &[])?.unwrap_or_default();
        return Ok(lowest.min(database.number(later, &[])?.unwrap_or_default()).min(0));
    }
    // Only among the newest can there be a hole that may be filled.
    let sql = format!(
        "SELECT stream_ordering, received_ts FROM events WHERE stream_ordering < 0
         ORDER BY stream_ordering LIMIT {LOOKED_AT}"
    );
    let later = format!(
        "SELECT event_stream_ordering, NULL FROM ex_outlier_stream WHERE event_stream_ordering < 0
         ORDER BY event_stream_ordering LIMIT {LOOKED_AT}"
    );
    let (points, _) = events::points(database, &[sql, later], &[], LOOKED_AT)?;
    let (Some((lowest, _)), Some((highest, _))) = (points.first(), points.last()) else {
        return Ok(0);
    };
    let (before, end) = (lowest - 1, *highest);
    let sure = events::completed(database, &places.writers, "backfill")?;
    let bottom = events::settled(&mut places.holes_below, (before, end), &points, sure, now_ms);
    Ok(-bottom)
}

/// Events that were outliers when they were fetched, from place to place. `after` is the last one.
pub(super) fn outliers(
    database: &mut dyn Database,
    places: &mut Places,
    after: i64,
    now_ms: u64,
) -> Result<Run, SourceError> {
    events::learn_former(database, places)?;
    let bottom = bottom(database, places, now_ms)?;
    let sql = format!(
        "SELECT stream_ordering, outlier FROM events WHERE stream_ordering < $1 AND stream_ordering >= $2
         ORDER BY stream_ordering DESC LIMIT {LOOKED_AT}"
    );
    let (mut wanted, mut looked_at, mut end) = (Vec::new(), 0_usize, after);
    database.query(&sql, &[Cell::Int(after), Cell::Int(bottom)], &mut |row| {
        let [Cell::Int(place), outlier] = &row[..] else { return true };
        looked_at += 1;
        end = *place;
        let former = places.former.contains_key(place);
        if former || *outlier != Cell::Int(0) {
            wanted.push(Wanted { first: *place, place: *place, former });
        }
        wanted.len() < limits::SOURCE_SLICE_ROWS
    })?;
    let mut run = Run {
        more: looked_at >= LOOKED_AT || wanted.len() >= limits::SOURCE_SLICE_ROWS,
        end,
        ..Run::default()
    };
    let mut bytes = 0;
    for some in wanted.chunks(limits::SOURCE_EVENTS_AT_ONCE) {
        events::at_places(database, some, &mut run, &mut bytes)?;
        if bytes >= limits::SOURCE_SLICE_BYTES {
            let last = some.last().map_or(end, |wanted| wanted.place);
            run.more |= last != end;
            run.end = last;
            break;
        }
    }
    Ok(run)
}

/// Events with a place in their room, room by room, the newest first.
pub(super) fn backfilled(
    database: &mut dyn Database,
    places: &mut Places,
    left: &mut Left,
    after: Mark,
    now_ms: u64,
) -> Result<(Run, Mark), SourceError> {
    events::learn_former(database, places)?;
    let mut mark = after;
    if mark.at.is_none() {
        mark.from = mark.to;
        mark.to = bottom(database, places, now_ms)?.min(mark.from);
    }
    if left.mark.as_ref() != Some(&mark) {
        *left = resume(database, places, &mark)?;
    }
    let (mut run, mut bytes, mut taken) = (Run::default(), 0_usize, 0_usize);
    while bytes < limits::SOURCE_SLICE_BYTES && taken < limits::SOURCE_SLICE_ROWS {
        if left.events.is_empty() {
            let Some(room) = left.rooms.pop() else {
                left.mark = None;
                return Ok((run, Mark { at: None, ..mark }));
            };
            left.events = of_room(database, places, &mark, &room)?;
            left.room = room;
            continue;
        }
        let rest = left.events.len().saturating_sub(limits::SOURCE_EVENTS_AT_ONCE);
        let some = left.events.split_off(rest);
        let wanted = some.iter().rev().map(|(_, place, first)| Wanted {
            first: *first,
            place: *place,
            former: false,
        });
        let wanted = wanted.collect::<Vec<_>>();
        taken += wanted.len();
        events::at_places(database, &wanted, &mut run, &mut bytes)?;
        if let Some((depth, place, _)) = some.first() {
            mark.at = Some(At { room: left.room.clone(), depth: *depth, place: *place });
        }
    }
    run.more = true;
    left.mark = Some(mark.clone());
    Ok((run, mark))
}

/// What is left after a mark.
fn resume(database: &mut dyn Database, places: &Places, mark: &Mark) -> Result<Left, SourceError> {
    let mut left = Left::default();
    if mark.to >= mark.from {
        return Ok(left);
    }
    let between = [Cell::Int(mark.to), Cell::Int(mark.from)];
    for sql in [
        "SELECT DISTINCT room_id FROM events WHERE stream_ordering >= $1 AND stream_ordering < $2",
        // Outliers that found their place there.
        "SELECT DISTINCT e.room_id FROM ex_outlier_stream x JOIN events e ON e.event_id = x.event_id
         WHERE x.event_stream_ordering >= $1 AND x.event_stream_ordering < $2",
    ] {
        database.query(sql, &between, &mut |row| {
            if let Some(Cell::Text(room)) = row.first() {
                left.rooms.push(room.clone());
            }
            true
        })?;
    }
    left.rooms.sort_unstable_by(|one, other| other.cmp(one));
    left.rooms.dedup();
    if let Some(at) = &mark.at {
        left.rooms.retain(|room| *room > at.room);
        left.events = of_room(database, places, mark, &at.room)?;
        left.events.retain(|(depth, place, _)| (*depth, *place) < (at.depth, at.place));
        left.room.clone_from(&at.room);
    }
    Ok(left)
}

/// The events of a room that are told between the places of a mark, the newest last.
fn of_room(
    database: &mut dyn Database,
    places: &Places,
    mark: &Mark,
    room: &str,
) -> Result<Vec<(i64, i64, i64)>, SourceError> {
    let mut found = Vec::new();
    let mut add = |row: Vec<Cell>| {
        if let [Cell::Int(depth), Cell::Int(first)] = row[..] {
            let place = places.former.get(&first).copied().unwrap_or(first);
            if (mark.to..mark.from).contains(&place) {
                found.push((depth, place, first));
            }
        }
        true
    };
    let columns = "SELECT e.topological_ordering, e.stream_ordering";
    let room = [Cell::Text(room.to_owned())];
    let past = format!(
        "{columns} FROM events e WHERE e.room_id = $1 AND e.stream_ordering < 0 AND NOT e.outlier"
    );
    database.query(&past, &room, &mut add)?;
    let later = format!(
        "{columns} FROM ex_outlier_stream x JOIN events e ON e.event_id = x.event_id
         WHERE e.room_id = $1 AND x.event_stream_ordering < 0 AND e.stream_ordering > 0"
    );
    // Only a few rooms have such events, and looking for them reads the whole table.
    if places.former.iter().any(|(first, place)| *first > 0 && *place < 0) {
        database.query(&later, &room, &mut add)?;
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// How many events have places below zero, outliers and others.
pub(super) fn count(database: &mut dyn Database, outliers: bool) -> Result<u64, SourceError> {
    let sql = if outliers {
        "SELECT count(*) FROM events WHERE stream_ordering < 0 AND outlier"
    } else {
        "SELECT count(*) FROM events WHERE stream_ordering < 0 AND NOT outlier"
    };
    Ok(database.number(sql, &[])?.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
}
