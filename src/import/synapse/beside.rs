//! What other tables hold of events, read in the order in which it was written.
//!
//! An event's text is found by the event's id, and ids are random: in a database that is larger
//! than the memory, each look-up would wait for the disk. But Synapse writes the rows of an event
//! to all tables at once, so from the row of one event on, those of the next ones mostly follow.

use std::collections::{HashMap, HashSet};

use crate::{
    facts::SourceError,
    sql::database::{Cell, Database},
};
use logcabin_base::limits;

/// The columns of a table besides the event's id.
struct Table {
    name: &'static str,
    columns: &'static [&'static str],
    /// Whether every event has a row, so that the rows are in the order of the events.
    is_of_all: bool,
}

const TEXTS: Table = Table {
    name: "event_json",
    columns: &["internal_metadata", "format_version", "json"],
    is_of_all: true,
};
const GROUPS: Table =
    Table { name: "event_to_state_groups", columns: &["state_group"], is_of_all: true };
const REJECTIONS: Table = Table { name: "rejections", columns: &["reason"], is_of_all: false };
const TRANSACTIONS: Table =
    Table { name: "event_txn_id_device_id", columns: &["txn_id", "device_id"], is_of_all: false };

/// Adds to rows of `events` what the joins of all columns would add, and hands them to `add` until
/// it says `false`.
pub(super) fn complete(
    database: &mut dyn Database,
    versions: &mut HashMap<String, Cell>,
    rows: Vec<Vec<Cell>>,
    add: &mut dyn FnMut(Vec<Cell>) -> bool,
) -> Result<(), SourceError> {
    let mut rows = rows.into_iter();
    loop {
        let some: Vec<Vec<Cell>> = rows.by_ref().take(limits::SOURCE_EVENTS_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = some.iter().filter_map(|row| text(row.get(1))).collect();
        let rooms: HashSet<&str> = some.iter().filter_map(|row| text(row.get(2))).collect();
        let mut texts = TEXTS.rows(database, &ids)?;
        let mut groups = GROUPS.rows(database, &ids)?;
        let mut rejections = REJECTIONS.rows(database, &ids)?;
        let mut transactions = TRANSACTIONS.rows(database, &ids)?;
        let from = made_from(database, groups.values())?;
        learn_versions(database, versions, &rooms)?;
        for mut row in some {
            let id = text(row.get(1)).unwrap_or_default().to_owned();
            let version = text(row.get(2)).and_then(|room| versions.get(room)).cloned();
            TEXTS.extend(&mut row, texts.remove(&id));
            let group = groups.remove(&id);
            let edge = group.as_ref().and_then(|group| match group.first() {
                Some(Cell::Int(group)) => from.get(group).cloned(),
                _ => None,
            });
            GROUPS.extend(&mut row, group);
            row.push(edge.unwrap_or(Cell::Null));
            REJECTIONS.extend(&mut row, rejections.remove(&id));
            row.push(version.unwrap_or(Cell::Null));
            TRANSACTIONS.extend(&mut row, transactions.remove(&id));
            if !add(row) {
                return Ok(());
            }
        }
    }
}

impl Table {
    /// The rows of these events, without their ids.
    fn rows(
        &self,
        database: &mut dyn Database,
        ids: &[&str],
    ) -> Result<HashMap<String, Vec<Cell>>, SourceError> {
        let Self { name, columns, is_of_all } = self;
        let columns = columns.join(", ");
        let wanted: HashSet<&str> = ids.iter().copied().collect();
        let mut found = HashMap::with_capacity(if *is_of_all { ids.len() } else { 0 });
        let first = format!("SELECT rowid FROM {name} WHERE event_id = $1");
        if *is_of_all
            && let Some(id) = ids.first()
            && let Some(first) = database.number(&first, &[Cell::Text((*id).to_owned())])?
        {
            // Others may be among them: of events at other places, and of some that were written
            // again.
            let most = ids.len() + ids.len() / 4;
            let sql = format!(
                "SELECT event_id, {columns} FROM {name} WHERE rowid >= $1
                 ORDER BY rowid LIMIT {most}"
            );
            database.query(&sql, &[Cell::Int(first)], &mut |row| {
                put(&mut found, &wanted, row);
                found.len() < wanted.len()
            })?;
        }
        let rest: Vec<Cell> = ids
            .iter()
            .filter(|id| !found.contains_key(**id))
            .map(|id| Cell::Text((*id).to_owned()))
            .collect();
        if !rest.is_empty() {
            let sql = format!(
                "SELECT event_id, {columns} FROM {name} WHERE event_id IN ({})",
                numbered(rest.len())
            );
            database.query(&sql, &rest, &mut |row| {
                put(&mut found, &wanted, row);
                true
            })?;
        }
        Ok(found)
    }

    /// Adds the columns to a row, empty if there are none.
    fn extend(&self, row: &mut Vec<Cell>, cells: Option<Vec<Cell>>) {
        match cells {
            Some(cells) => row.extend(cells),
            None => row.extend(self.columns.iter().map(|_| Cell::Null)),
        }
    }
}

fn put(found: &mut HashMap<String, Vec<Cell>>, wanted: &HashSet<&str>, mut row: Vec<Cell>) {
    if row.is_empty() {
        return;
    }
    let cells = row.split_off(1);
    if let Some(Cell::Text(id)) = row.pop()
        && wanted.contains(&*id)
    {
        found.entry(id).or_insert(cells);
    }
}

/// From which states these states were made.
fn made_from<'a>(
    database: &mut dyn Database,
    groups: impl Iterator<Item = &'a Vec<Cell>>,
) -> Result<HashMap<i64, Cell>, SourceError> {
    let groups: HashSet<i64> = groups
        .filter_map(|cells| match cells.first() {
            Some(Cell::Int(group)) => Some(*group),
            _ => None,
        })
        .collect();
    let mut from = HashMap::with_capacity(groups.len());
    if groups.is_empty() {
        return Ok(from);
    }
    let sql = format!(
        "SELECT state_group, prev_state_group FROM state_group_edges WHERE state_group IN ({})",
        numbered(groups.len())
    );
    let groups: Vec<Cell> = groups.into_iter().map(Cell::Int).collect();
    database.query(&sql, &groups, &mut |mut row| {
        if let (Some(before), Some(Cell::Int(group))) = (row.pop(), row.pop()) {
            from.entry(group).or_insert(before);
        }
        true
    })?;
    Ok(from)
}

/// The versions of rooms that are not known yet. They never change.
fn learn_versions(
    database: &mut dyn Database,
    versions: &mut HashMap<String, Cell>,
    rooms: &HashSet<&str>,
) -> Result<(), SourceError> {
    let unknown = rooms.iter().filter(|room| !versions.contains_key(**room));
    let unknown: Vec<Cell> = unknown.map(|room| Cell::Text((*room).to_owned())).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT room_id, room_version FROM rooms WHERE room_id IN ({})",
        numbered(unknown.len())
    );
    database.query(&sql, &unknown, &mut |mut row| {
        // One that has none may get one.
        if let (Some(version), Some(Cell::Text(room))) = (row.pop(), row.pop())
            && version != Cell::Null
        {
            versions.insert(room, version);
        }
        true
    })
}

fn text(cell: Option<&Cell>) -> Option<&str> {
    match cell {
        Some(Cell::Text(text)) => Some(text),
        _ => None,
    }
}

/// `$1, $2, …`
fn numbered(count: usize) -> String {
    let args = (1..=count).map(|number| format!("${number}"));
    args.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use crate::{
        facts::{Event, Fact, Judged, Section, Source as _, StateGroup},
        synapse::tests::{Synapse, all, event},
    };

    #[test]
    fn what_other_tables_hold_of_events_is_found_in_whatever_order_it_was_written() {
        let synapse = Synapse::new();
        synapse
            .run("BEGIN; INSERT INTO rooms (room_id, room_version) VALUES ('!r:a.example', '10')");
        for place in 1..=1300 {
            synapse.event(place, &format!("$e{place}"), None, "{}", false);
        }
        synapse.run(
            "INSERT INTO event_to_state_groups
                SELECT event_id, stream_ordering / 3 FROM events
                ORDER BY stream_ordering % 10, event_id;
             INSERT INTO state_group_edges
                SELECT DISTINCT stream_ordering / 3, 7 FROM events WHERE stream_ordering % 2;
             INSERT INTO rejections
                SELECT event_id, 'bad', 0 FROM events WHERE stream_ordering % 90 = 0;
             INSERT INTO event_txn_id_device_id
                SELECT event_id, room_id, sender, 'D', 't' || event_id, 0 FROM events
                WHERE stream_ordering % 50 = 0;
             CREATE TABLE moved AS
                SELECT * FROM event_json WHERE rowid % 7 = 0 OR rowid IN (1, 501);
             DELETE FROM event_json WHERE event_id IN (SELECT event_id FROM moved);
             INSERT INTO event_json SELECT * FROM moved ORDER BY event_id DESC;
             DELETE FROM event_to_state_groups WHERE rowid % 40 = 0;
             COMMIT",
        );
        let mut source = synapse.source();
        let (facts, bad, _) = all(&mut source, Section::Events);
        assert_eq!((facts.len(), bad), (1300, Vec::new()));
        // One after the other, by joins.
        let ids: Vec<String> = (1..=1300).map(|place| format!("$e{place}")).collect();
        let joined = source.events(&ids).expect("events").facts;
        let shown = |fact: &Fact| format!("{:?}", event(fact));
        for (fact, joined) in facts.iter().zip(&joined) {
            assert_eq!(shown(fact), shown(&joined.fact));
        }
        let count =
            |is: &dyn Fn(&Event) -> bool| facts.iter().filter(|fact| is(event(fact))).count();
        assert_eq!(count(&|event| event.room_version.as_deref() == Some("10")), 1300);
        assert_eq!(count(&|event| event.transaction_id.is_some()), 26);
        assert_eq!(count(&|event| matches!(event.judged, Judged::Rejected { .. })), 14);
        assert!(count(&|event| event.group_from == Some(StateGroup(7))) > 600);
        assert!(count(&|event| event.group.is_none()) > 30);
    }
}
