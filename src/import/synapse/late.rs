//! Events that were written long after the places before and after them, so that a copy that goes
//! on with a running Synapse has passed them by.
//!
//! Synapse hands out places before it writes. A reader waits for a place that is empty, but not for
//! ever: it remembers the place, and looks there once more when Synapse has stopped.

use std::fmt::Write as _;

use super::events::{self, Places, Point, Run, Wanted};
use crate::{
    facts::{Fact, Key, SourceError},
    sql::{
        database::{Cell, Database},
        schema::Schema,
    },
};

/// How long a transaction of Synapse may take until it is given up, in milliseconds: an event whose
/// place was passed by may still come for so long.
const LATE_MS: u64 = 24 * 60 * 60 * 1000;

/// The newest places among which holes are looked for, each time everything was read.
const LATE_PLACES: usize = 10_000;

/// Stretches of places that are remembered. Synapse leaves one where a write failed.
const HOLES: usize = 1000;

/// Places in a row that were empty, from the one nearest to zero to the one farthest from it, as
/// numbers above zero.
pub(super) type Hole = (i64, i64);

/// Where a reading of the stream is, and what it has passed by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) after: i64,
    pub(super) holes: Vec<Hole>,
}

impl Mark {
    /// Reads `5 2-3 4-4`. `None` if it is something else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let after = words.next()?.parse().ok()?;
        let hole = |word: &str| {
            let (from, to) = word.split_once('-')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        };
        Some(Self { after, holes: words.map(hole).collect::<Option<_>>()? })
    }

    pub(super) fn text(&self) -> String {
        let mut text = self.after.to_string();
        for (from, to) in &self.holes {
            let _ = write!(text, " {from}-{to}");
        }
        text
    }
}

/// The holes that are known, with those that are there now between the newest places up to `end`,
/// or down to it if it is below zero.
pub(super) fn with_new(
    database: &mut dyn Database,
    schema: &Schema,
    known: Vec<Hole>,
    end: i64,
    now_ms: u64,
) -> Result<Vec<Hole>, SourceError> {
    let mut all = known;
    let newest = all.iter().map(|(_, to)| *to).max().unwrap_or_default();
    // Holes are found in their order: what is before the newest one was looked at.
    let new = holes(&points(database, schema, end)?, now_ms).into_iter();
    all.extend(new.filter(|(from, _)| *from > newest));
    let many = all.len().saturating_sub(HOLES);
    drop(all.drain(..many));
    Ok(all)
}

/// The places nearest to `end`, on its side of zero, ascending as numbers above zero, and when
/// their events came.
fn points(
    database: &mut dyn Database,
    schema: &Schema,
    end: i64,
) -> Result<Vec<Point>, SourceError> {
    let side = if end < 0 { ("<", ">=", "ASC") } else { (">", "<=", "DESC") };
    let tables = [
        ("events", "stream_ordering", "received_ts"),
        ("ex_outlier_stream", "event_stream_ordering", "NULL"),
        ("current_state_delta_stream", "stream_id", "NULL"),
    ];
    let queries = tables.into_iter().filter(|(table, ..)| schema.has(table));
    let queries: Vec<String> = queries
        .map(|(table, place, time)| {
            let (beyond, up_to, order) = side;
            format!(
                "SELECT {place}, {time} FROM {table} WHERE {place} {beyond} 0
                 AND {place} {up_to} $1 ORDER BY {place} {order} LIMIT {LATE_PLACES}"
            )
        })
        .collect();
    let (mut points, known_from) =
        events::points(database, &queries, &[Cell::Int(end)], LATE_PLACES)?;
    if known_from == 0 && points.first().is_some_and(|(place, _)| *place > 1) {
        // The very first place may be a late one, too.
        points.insert(0, (0, None));
    }
    Ok(points)
}

/// The holes between places, after the last event that is older than anything can be late.
fn holes(points: &[Point], now_ms: u64) -> Vec<Hole> {
    let is_old = |(_, time): &Point| {
        let time = time.and_then(|time| u64::try_from(time).ok());
        time.is_some_and(|time| time.saturating_add(LATE_MS) < now_ms)
    };
    let from = points.iter().rposition(is_old).unwrap_or_default();
    let recent = points.get(from..).unwrap_or_default().windows(2);
    let between = recent.filter_map(|pair| match pair {
        [(one, _), (next, _)] if next - one > 1 => Some((one + 1, next - 1)),
        _ => None,
    });
    between.collect()
}

/// What has been written into holes of the stream since.
pub(super) fn above_zero(
    database: &mut dyn Database,
    schema: &Schema,
    places: &mut Places,
    holes: &[Hole],
    now_ms: u64,
) -> Result<Run, SourceError> {
    let mut late = Run::default();
    for (from, to) in holes {
        if !is_filled(database, schema, (*from, *to))? {
            continue;
        }
        let mut after = from - 1;
        while after < *to {
            let run = events::read(database, schema, places, after, now_ms)?;
            late.facts.extend(run.facts.into_iter().filter(|told| match &told.fact {
                Fact::Event(event) => event.stream <= *to,
                Fact::StateDelta(delta) => delta.stream <= *to,
                _ => false,
            }));
            let is_here = |key: &Key| matches!(key, Key::Number(place) if place <= to);
            late.bad.extend(run.bad.into_iter().filter(|bad| is_here(&bad.origin.key)));
            if !run.more || run.end <= after {
                break;
            }
            after = run.end;
        }
    }
    Ok(late)
}

fn is_filled(
    database: &mut dyn Database,
    schema: &Schema,
    (from, to): Hole,
) -> Result<bool, SourceError> {
    for (table, place) in [
        ("events", "stream_ordering"),
        ("ex_outlier_stream", "event_stream_ordering"),
        ("current_state_delta_stream", "stream_id"),
    ] {
        let sql = format!("SELECT min({place}) FROM {table} WHERE {place} >= $1 AND {place} <= $2");
        if schema.has(table) && database.number(&sql, &[Cell::Int(from), Cell::Int(to)])?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What has been written into holes below zero since: outliers, or events with a place.
pub(super) fn below_zero(
    database: &mut dyn Database,
    places: &mut Places,
    holes: &[Hole],
    outliers: bool,
) -> Result<Run, SourceError> {
    events::learn_former(database, places)?;
    let (mut late, mut bytes) = (Run::default(), 0_usize);
    let first = "SELECT stream_ordering, stream_ordering, outlier FROM events
        WHERE stream_ordering >= $1 AND stream_ordering <= $2 ORDER BY stream_ordering DESC";
    let found = "SELECT x.event_stream_ordering, e.stream_ordering, 0 FROM ex_outlier_stream x
        JOIN events e ON e.event_id = x.event_id
        WHERE x.event_stream_ordering >= $1 AND x.event_stream_ordering <= $2
            AND x.event_stream_ordering <> e.stream_ordering";
    for (from, to) in holes {
        let mut wanted = Vec::new();
        for sql in [first, found] {
            database.query(sql, &[Cell::Int(-to), Cell::Int(-from)], &mut |row| {
                if let [Cell::Int(place), Cell::Int(first), outlier] = &row[..] {
                    let former = place == first && places.former.contains_key(place);
                    if (former || *outlier != Cell::Int(0)) == outliers {
                        wanted.push(Wanted { first: *first, place: *place, former });
                    }
                }
                true
            })?;
        }
        events::at_places(database, &wanted, &mut late, &mut bytes)?;
    }
    Ok(late)
}

#[cfg(test)]
mod tests {
    use super::{LATE_MS, Mark, holes};

    const NOW_MS: u64 = 1_700_000_000_000;

    #[test]
    fn a_mark_is_read_as_it_is_written() {
        for (after, holes) in [(7, vec![]), (-9, vec![(1, 2), (5, 5)])] {
            let mark = Mark { after, holes };
            assert_eq!(Mark::parse(&mark.text()), Some(mark));
        }
        for wrong in ["", "x", "5 6", "5 6-", "5  6-7"] {
            assert_eq!(Mark::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn holes_among_recent_events_are_remembered() {
        let at = |place: i64, age_ms: u64| (place, i64::try_from(NOW_MS - age_ms).ok());
        let old = LATE_MS + 1;
        let points = [at(1, old), at(5, old), at(8, 9), (9, None), at(11, 5)];
        assert_eq!(holes(&points, NOW_MS), [(6, 7), (10, 10)]);
        assert_eq!(holes(&points[..2], NOW_MS), []);
        assert_eq!(holes(&[], NOW_MS), []);
    }
}
