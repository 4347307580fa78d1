//! Events, and the changes of rooms' states between them, in the order of Synapse's one stream.
//!
//! Three tables share the places of that stream: `events`, `current_state_delta_stream`, and
//! `ex_outlier_stream` for events that were known before and got their state at this place.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use super::beside;
use crate::{
    facts::{
        Bad, Event, Fact, Judged, Key, Metadata, Origin, SourceError, StateDelta, StateGroup, Told,
    },
    sql::{
        database::{Cell, Database, Fault, Row, bad},
        schema::Schema,
    },
};
use logcabin_base::limits;

const COLUMNS: &[&str] = &[
    "e.stream_ordering",
    "e.event_id",
    "e.room_id",
    "e.type",
    "e.state_key",
    "e.sender",
    "e.depth",
    "e.origin_server_ts",
    "e.received_ts",
    "e.outlier",
    "e.rejection_reason",
    "j.internal_metadata",
    "j.format_version",
    "j.json",
    "g.state_group",
    "p.prev_state_group",
    "r.reason",
    "m.room_version",
    "t.txn_id",
    "t.device_id",
];

/// How many of the columns are the table's own. The others are in [`JOINS`].
pub(super) const OWN_COLUMNS: usize = 11;

/// What belongs to an event. The order keeps PostgreSQL and SQLite on `events`.
const JOINS: &str = "LEFT JOIN event_json j ON j.event_id = e.event_id
    LEFT JOIN event_to_state_groups g ON g.event_id = e.event_id
    LEFT JOIN state_group_edges p ON p.state_group = g.state_group
    LEFT JOIN rejections r ON r.event_id = e.event_id
    LEFT JOIN rooms m ON m.room_id = e.room_id
    LEFT JOIN event_txn_id_device_id t ON t.event_id = e.event_id";

const DELTA_COLUMNS: &[&str] =
    &["d.stream_id", "d.room_id", "d.type", "d.state_key", "d.event_id", "d.prev_event_id"];

/// What a reader remembers between slices.
#[derive(Default)]
pub(super) struct Places {
    /// First places of events that were outliers there, and the later places that they found.
    pub(super) former: HashMap<i64, i64>,
    /// Up to where, and down to where, the later places were read.
    known: Option<(i64, i64)>,
    /// Holes in the stream, by the place before them, and when they were met.
    pub(super) holes: BTreeMap<i64, Instant>,
    /// The same for what was fetched from the past.
    pub(super) holes_below: BTreeMap<i64, Instant>,
    /// The names of the processes that write events.
    pub(super) writers: Vec<String>,
    /// The versions of rooms.
    pub(super) versions: HashMap<String, Cell>,
    /// The other server has stopped: what is missing stays missing.
    pub(super) stopped: bool,
}

impl Places {
    /// `writers` are the names of the processes that write events.
    pub(super) fn of(writers: Vec<String>) -> Self {
        Self { writers, ..Self::default() }
    }
}

/// A part of the stream.
#[derive(Default)]
pub(super) struct Run {
    pub(super) facts: Vec<Told>,
    pub(super) bad: Vec<Bad>,
    /// Up to where it goes.
    pub(super) end: i64,
    pub(super) more: bool,
}

/// What is at one place of the stream.
#[derive(Default)]
struct Here {
    deltas: Vec<Told>,
    event: Option<Told>,
    bad: Vec<Bad>,
    received_ms: Option<i64>,
}

/// The newest place of the stream.
pub(super) fn head(database: &mut dyn Database) -> Result<i64, SourceError> {
    let mut head = 0_i64;
    for sql in [
        "SELECT max(stream_ordering) FROM events",
        "SELECT max(stream_id) FROM current_state_delta_stream",
        "SELECT max(event_stream_ordering) FROM ex_outlier_stream",
    ] {
        head = head.max(database.number(sql, &[])?.unwrap_or_default());
    }
    Ok(head)
}

/// The rooms whose state has changed after a place.
pub(super) fn changed_rooms(
    database: &mut dyn Database,
    schema: &Schema,
    after: i64,
) -> Result<Vec<String>, SourceError> {
    const TABLE: &str = "current_state_delta_stream";
    let mut rooms = Vec::new();
    if schema.has(TABLE) {
        let sql = format!("SELECT DISTINCT room_id FROM {TABLE} WHERE stream_id > $1");
        database.query(&sql, &[Cell::Int(after)], &mut |mut cells| {
            if let Some(Cell::Text(room_id)) = cells.pop() {
                rooms.push(room_id);
            }
            true
        })?;
    }
    Ok(rooms)
}

/// How many events came as they happened.
pub(super) fn count(database: &mut dyn Database) -> Result<u64, SourceError> {
    let sql = "SELECT count(*) FROM events WHERE stream_ordering > 0";
    Ok(database.number(sql, &[])?.and_then(|count| u64::try_from(count).ok()).unwrap_or_default())
}

/// The stream after a place, until there is enough.
pub(super) fn read(
    database: &mut dyn Database,
    schema: &Schema,
    places: &mut Places,
    after: i64,
    now_ms: u64,
) -> Result<Run, SourceError> {
    learn_former(database, places)?;
    let mut stream = BTreeMap::<i64, Here>::new();
    let (mut taken, mut bytes, mut last) = (0_usize, 0_usize, after);
    let mut enough = false;
    let former = &places.former;
    let mut add = |cells: Vec<Cell>| {
        let Some(Cell::Int(place)) = cells.first().cloned() else { return true };
        let mut row = Row::new(COLUMNS, cells);
        taken += 1;
        bytes += row.bytes();
        // A join that finds two rows gives the event twice.
        if place != last {
            last = place;
            let former = former.contains_key(&place);
            put(stream.entry(place).or_default(), event(&mut row, place, None, former), place);
        }
        enough = bytes >= limits::SOURCE_SLICE_BYTES;
        !enough
    };
    let rows = |columns: &[&str], joins: &str| {
        format!(
            "SELECT {} FROM events e {joins} WHERE e.stream_ordering > $1
             ORDER BY e.stream_ordering LIMIT {}",
            columns.join(", "),
            limits::SOURCE_SLICE_ROWS
        )
    };
    if database.has_row_numbers() {
        let own = COLUMNS.get(..OWN_COLUMNS).unwrap_or_default();
        let rows = database.rows(&rows(own, ""), &[Cell::Int(after)])?;
        beside::complete(database, &mut places.versions, rows, &mut add)?;
    } else {
        database.query(&rows(COLUMNS, JOINS), &[Cell::Int(after)], &mut add)?;
    }
    let mut more = enough || taken >= limits::SOURCE_SLICE_ROWS;
    let mut end = if more { last } else { head(database)?.max(after) };
    let cut = deltas(database, schema, after, end, &mut stream)?;
    more |= cut < end;
    end = cut;
    later_places(database, after, end, &mut stream)?;
    if !places.stopped {
        let points = stream.iter().map(|(place, here)| (*place, here.received_ms));
        let points = points.collect::<Vec<_>>();
        let sure = completed(database, &places.writers, "events")?;
        let settled = settled(&mut places.holes, (after, end), &points, sure, now_ms);
        more &= settled == end;
        end = settled;
    }
    Ok(run(stream, end, more))
}

/// Puts the places in order, up to `end`.
fn run(stream: BTreeMap<i64, Here>, end: i64, more: bool) -> Run {
    let mut run = Run { end, more, ..Run::default() };
    for (_, here) in stream.into_iter().take_while(|(place, _)| *place <= end) {
        run.facts.extend(here.deltas);
        run.facts.extend(here.event);
        run.bad.extend(here.bad);
    }
    run
}

/// Which events have a later place. A few of many, so their numbers fit into memory.
pub(super) fn learn_former(
    database: &mut dyn Database,
    places: &mut Places,
) -> Result<(), SourceError> {
    let sql = "SELECT x.event_stream_ordering, e.stream_ordering
        FROM ex_outlier_stream x JOIN events e ON e.event_id = x.event_id";
    let learn = |row: Vec<Cell>, known: &mut Option<(i64, i64)>, former: &mut HashMap<i64, i64>| {
        if let [Cell::Int(later), Cell::Int(first)] = row[..] {
            let (high, low) = known.unwrap_or((0, 0));
            *known = Some((high.max(later), low.min(later)));
            if later != first {
                former.insert(first, later);
            }
        }
        true
    };
    let (mut known, former) = (places.known, &mut places.former);
    match known {
        None => {
            known = Some((0, 0));
            database.query(sql, &[], &mut |row| learn(row, &mut known, former))?;
        }
        Some((high, low)) => {
            let newer = format!("{sql} WHERE x.event_stream_ordering > $1");
            database
                .query(&newer, &[Cell::Int(high)], &mut |row| learn(row, &mut known, former))?;
            let older = format!("{sql} WHERE x.event_stream_ordering < $1");
            database.query(&older, &[Cell::Int(low)], &mut |row| learn(row, &mut known, former))?;
        }
    }
    places.known = known;
    Ok(())
}

/// Changes of states up to `end`, or up to an earlier place if there are many; that place.
fn deltas(
    database: &mut dyn Database,
    schema: &Schema,
    after: i64,
    end: i64,
    stream: &mut BTreeMap<i64, Here>,
) -> Result<i64, SourceError> {
    const TABLE: &str = "current_state_delta_stream";
    if !schema.has(TABLE) {
        return Ok(end);
    }
    let sql = format!(
        "SELECT {} FROM {TABLE} d WHERE d.stream_id > $1 AND d.stream_id <= $2
         ORDER BY d.stream_id, d.room_id, d.type, d.state_key",
        DELTA_COLUMNS.join(", ")
    );
    let (mut taken, mut last, mut cut) = (0_usize, after, end);
    database.query(&sql, &[Cell::Int(after), Cell::Int(end)], &mut |cells| {
        let Some(Cell::Int(place)) = cells.first().cloned() else { return true };
        if place != last && taken >= limits::SOURCE_SLICE_DELTAS {
            cut = last;
            return false;
        }
        (last, taken) = (place, taken + 1);
        let here = stream.entry(place).or_default();
        match delta(&mut Row::new(DELTA_COLUMNS, cells), place) {
            Ok(delta) => here.deltas.push(Told {
                origin: Origin { table: TABLE, key: Key::Number(place) },
                fact: Fact::StateDelta(delta),
            }),
            Err(why) => here.bad.push(bad(TABLE, Key::Number(place), why)),
        }
        true
    })?;
    Ok(cut)
}

fn delta(row: &mut Row, stream: i64) -> Result<StateDelta, Fault> {
    Ok(StateDelta {
        stream,
        room_id: row.text("room_id")?,
        event_type: row.text("type")?,
        state_key: row.text("state_key")?,
        event_id: row.text_or_none("event_id")?,
        previous: row.text_or_none("prev_event_id")?,
    })
}

/// Events at their later places after `after`, up to `end`.
fn later_places(
    database: &mut dyn Database,
    after: i64,
    end: i64,
    stream: &mut BTreeMap<i64, Here>,
) -> Result<(), SourceError> {
    // The place comes last, so that the other columns are where they are in all events.
    let sql = format!(
        "SELECT {}, x.event_stream_ordering FROM ex_outlier_stream x
         JOIN events e ON e.event_id = x.event_id {JOINS}
         WHERE x.event_stream_ordering > $1 AND x.event_stream_ordering <= $2",
        COLUMNS.join(", ")
    );
    database.query(&sql, &[Cell::Int(after), Cell::Int(end)], &mut |mut cells| {
        let (Some(Cell::Int(place)), Some(Cell::Int(first))) =
            (cells.pop(), cells.first().cloned())
        else {
            return true;
        };
        let here = stream.entry(place).or_default();
        if here.event.is_none() && place != first {
            let mut row = Row::new(COLUMNS, cells);
            put(here, event(&mut row, place, Some(first), false), place);
        }
        true
    })
}

fn put(here: &mut Here, event: Result<(Event, Option<Fault>), Fault>, place: i64) {
    match event {
        Ok((event, fault)) => {
            // An event that found its place later keeps the time of the first one: that says
            // nothing of what is under way around the later one.
            here.received_ms = event.received_ms.filter(|_| event.first_stream.is_none());
            here.bad.extend(fault.map(|why| bad("event_json", Key::Number(place), why)));
            here.event = Some(Told {
                origin: Origin { table: "events", key: Key::Number(place) },
                fact: Fact::Event(Box::new(event)),
            });
        }
        Err(why) => here.bad.push(bad("events", Key::Number(place), why)),
    }
}

/// An event from its row, and what is wrong with it besides.
///
/// `former`: this is its first place, and it has a later one.
fn event(
    row: &mut Row,
    stream: i64,
    first_stream: Option<i64>,
    former: bool,
) -> Result<(Event, Option<Fault>), Fault> {
    let event_id = row.text("event_id")?;
    let json = row.text_or_none("json")?.ok_or("it has no row in `event_json`")?;
    let mut fault = None;
    let metadata = row.text_or_none("internal_metadata")?.unwrap_or_else(|| "{}".to_owned());
    let mut metadata: Metadata = serde_json::from_str(&metadata).unwrap_or_else(|_| {
        fault = Some("the column `internal_metadata` cannot be read: taken as empty".to_owned());
        Metadata::default()
    });
    // The column says what is so now, the marks what was so when it was written.
    metadata.outlier = row.flag("outlier")?;
    let rejected = match row.text_or_none("reason")? {
        None => row.text_or_none("rejection_reason")?,
        reason => reason,
    };
    let outlier = metadata.outlier || former;
    let judged = match rejected {
        Some(reason) => Judged::Rejected { reason, outlier },
        None if outlier => {
            Judged::Outlier { out_of_band: metadata.out_of_band_membership && !former }
        }
        None if metadata.soft_failed => Judged::SoftFailed,
        None if stream < 0 => Judged::Backfilled,
        None => Judged::Timeline,
    };
    let group = row.int_or_none("state_group")?.filter(|_| !former);
    let event = Event {
        event_id,
        room_id: row.text("room_id")?,
        sender: match row.text_or_none("sender")? {
            Some(sender) => sender,
            None => sender(&json)?,
        },
        event_type: row.text("type")?,
        state_key: row.text_or_none("state_key")?,
        stream,
        first_stream,
        depth: row.int_or_none("depth")?.unwrap_or_default(),
        origin_ms: row.int_or_none("origin_server_ts")?.unwrap_or_default(),
        received_ms: row.int_or_none("received_ts")?,
        judged,
        group: group.map(StateGroup),
        group_from: row.int_or_none("prev_state_group")?.filter(|_| !former).map(StateGroup),
        room_version: row.text_or_none("room_version")?,
        format: row.int_or_none("format_version")?.unwrap_or_default(),
        transaction_id: row.text_or_none("txn_id")?.or_else(|| metadata.txn_id.clone()),
        device_id: row.text_or_none("device_id")?.or_else(|| metadata.device_id.clone()),
        metadata,
        json,
    };
    Ok((event, fault))
}

/// The sender in an event's text: old versions of Synapse did not keep it beside it.
fn sender(json: &str) -> Result<String, Fault> {
    #[derive(serde::Deserialize)]
    struct Sent {
        sender: String,
    }
    let sent: Result<Sent, _> = serde_json::from_str(json);
    sent.map(|sent| sent.sender).map_err(|_| "it has no sender".to_owned())
}

/// Events by their ids, at their places.
pub(super) fn by_id(
    database: &mut dyn Database,
    event_ids: &[String],
) -> Result<(Vec<Told>, Vec<Bad>), SourceError> {
    let mut stream = BTreeMap::<i64, Here>::new();
    for some in event_ids.chunks(limits::SOURCE_EVENTS_AT_ONCE) {
        let args = (1..=some.len()).map(|number| format!("${number}")).collect::<Vec<_>>();
        let sql = format!(
            "SELECT {} FROM events e {JOINS} WHERE e.event_id IN ({})",
            COLUMNS.join(", "),
            args.join(", ")
        );
        let ids = some.iter().map(|id| Cell::Text(id.clone())).collect::<Vec<_>>();
        database.query(&sql, &ids, &mut |cells| {
            let Some(Cell::Int(place)) = cells.first().cloned() else { return true };
            let here = stream.entry(place).or_default();
            if here.event.is_none() {
                put(here, event(&mut Row::new(COLUMNS, cells), place, None, false), place);
            }
            true
        })?;
    }
    let run = run(stream, i64::MAX, false);
    Ok((run.facts, run.bad))
}

/// An event that is asked for by its first place.
pub(super) struct Wanted {
    pub(super) first: i64,
    /// Where it is told.
    pub(super) place: i64,
    /// It is told as the outlier that it was there.
    pub(super) former: bool,
}

/// These events, in this order. Their size in memory is added to `bytes`.
pub(super) fn at_places(
    database: &mut dyn Database,
    wanted: &[Wanted],
    run: &mut Run,
    bytes: &mut usize,
) -> Result<(), SourceError> {
    for some in wanted.chunks(limits::SOURCE_EVENTS_AT_ONCE) {
        let args = (1..=some.len()).map(|number| format!("${number}")).collect::<Vec<_>>();
        let sql = format!(
            "SELECT {} FROM events e {JOINS} WHERE e.stream_ordering IN ({})",
            COLUMNS.join(", "),
            args.join(", ")
        );
        let places = some.iter().map(|wanted| Cell::Int(wanted.first)).collect::<Vec<_>>();
        let mut rows = HashMap::new();
        database.query(&sql, &places, &mut |cells| {
            let Some(Cell::Int(first)) = cells.first().cloned() else { return true };
            let row = Row::new(COLUMNS, cells);
            *bytes += row.bytes();
            rows.insert(first, row);
            true
        })?;
        for wanted in some {
            let Some(mut row) = rows.remove(&wanted.first) else { continue };
            let mut here = Here::default();
            let first = (wanted.place != wanted.first).then_some(wanted.first);
            put(&mut here, event(&mut row, wanted.place, first, wanted.former), wanted.place);
            run.facts.extend(here.event);
            run.bad.extend(here.bad);
        }
    }
    Ok(())
}

/// Up to where all of Synapse's processes that write a stream have completed what they began, also
/// what failed: each notes its place after it has written. `None` if one of them has not.
pub(super) fn completed(
    database: &mut dyn Database,
    writers: &[String],
    stream: &str,
) -> Result<Option<i64>, SourceError> {
    let sql = "SELECT instance_name, stream_id FROM stream_positions WHERE stream_name = $1";
    let rows = database.rows(sql, &[Cell::Text(stream.to_owned())])?;
    let noted: HashMap<String, i64> = rows
        .into_iter()
        .filter_map(|row| match <[Cell; 2]>::try_from(row) {
            Ok([Cell::Text(name), Cell::Int(place)]) => Some((name, place.saturating_abs())),
            _ => None,
        })
        .collect();
    let all: Option<Vec<i64>> = writers.iter().map(|writer| noted.get(writer).copied()).collect();
    Ok(all.and_then(|all| all.into_iter().min()))
}

/// A place, as a number above zero, and when its event came, if that is known.
pub(super) type Point = (i64, Option<i64>);

/// The places that these queries give, each of at most `limit` rows from the end of its table,
/// ascending; and from which one on all are known.
pub(super) fn points(
    database: &mut dyn Database,
    queries: &[String],
    parameters: &[Cell],
    limit: usize,
) -> Result<(Vec<Point>, i64), SourceError> {
    let (mut points, mut known_from) = (Vec::<Point>::new(), 0);
    for sql in queries {
        let before = points.len();
        database.query(sql, parameters, &mut |row| {
            match row[..] {
                [Cell::Int(place), Cell::Int(time)] => {
                    points.push((place.saturating_abs(), Some(time)));
                }
                [Cell::Int(place), _] => points.push((place.saturating_abs(), None)),
                _ => {}
            }
            true
        })?;
        // Of the places before the first one of a full list, only some are known.
        if points.len() - before >= limit {
            known_from = points.last().map_or(0, |(place, _)| known_from.max(*place));
        }
    }
    points.retain(|(place, _)| *place >= known_from);
    points.sort_unstable();
    points.dedup_by_key(|(place, _)| *place);
    Ok((points, known_from))
}

/// The last place before which nothing can come any more. Places are ascending, and above zero.
///
/// Synapse hands out the places before it writes. One that is missing may be written yet, unless
/// Synapse is `sure` of the places up to there, or it has been missing for a while.
pub(super) fn settled(
    holes: &mut BTreeMap<i64, Instant>,
    (after, end): (i64, i64),
    points: &[Point],
    sure: Option<i64>,
    now_ms: u64,
) -> i64 {
    let now = Instant::now();
    let long_ago = |received: Option<i64>| {
        let received = received.and_then(|time| u64::try_from(time).ok());
        received.is_some_and(|time| time.saturating_add(limits::SOURCE_SETTLED_MS) < now_ms)
    };
    let points = points.iter().filter(|(place, _)| *place > after && *place <= end);
    let is_sure = |place: i64| sure.is_some_and(|sure| place <= sure);
    // What is before such an event is settled, too.
    let old = points.clone().rev().find(|(place, received)| is_sure(*place) || long_ago(*received));
    let mut settled = old.map_or(after, |(place, _)| *place);
    for (place, _) in points.filter(|(place, _)| old.is_none_or(|(old, _)| place > old)) {
        if place - settled > 1 {
            let met = *holes.entry(settled).or_insert(now);
            if now.duration_since(met) < limits::SOURCE_HOLE_PATIENCE {
                return settled;
            }
        }
        settled = *place;
    }
    *holes = holes.split_off(&settled);
    settled
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::{Point, settled};
    use logcabin_base::limits;

    const NOW_MS: u64 = 1_700_000_000_000;

    fn points(places: &[i64], age_ms: u64) -> Vec<Point> {
        let received = i64::try_from(NOW_MS - age_ms).ok();
        places.iter().map(|place| (*place, received)).collect()
    }

    #[test]
    fn a_hole_among_new_events_is_waited_for_and_not_for_ever() {
        let mut holes = BTreeMap::new();
        let new = points(&[1, 2, 4], 10);
        assert_eq!(settled(&mut holes, (0, 4), &new, None, NOW_MS), 2, "3 may be written yet");
        assert_eq!(
            settled(&mut holes, (0, 4), &new, Some(3), NOW_MS),
            2,
            "it is not known to have failed"
        );
        assert_eq!(
            settled(&mut holes.clone(), (0, 4), &new, Some(4), NOW_MS),
            4,
            "it is not written any more, as Synapse says"
        );
        let met = holes.get_mut(&2).expect("the hole is remembered");
        let long = limits::SOURCE_HOLE_PATIENCE + Duration::from_secs(1);
        *met = met.checked_sub(long).expect("the machine has been up for a minute");
        assert_eq!(
            settled(&mut holes, (0, 4), &new, None, NOW_MS),
            4,
            "it is not written any more"
        );
    }

    #[test]
    fn holes_among_old_events_hold_nobody_up() {
        let old = points(&[5, 9, 20], limits::SOURCE_SETTLED_MS + 1);
        assert_eq!(settled(&mut BTreeMap::new(), (0, 20), &old, None, NOW_MS), 20);
        assert_eq!(settled(&mut BTreeMap::new(), (7, 7), &[], None, NOW_MS), 7);
    }
}
