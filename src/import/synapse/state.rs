//! States of rooms, which Synapse keeps as differences from other states.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    facts::{SourceError, StateEntry, StateGroup, StateStep},
    sql::database::{Cell, Database, Row},
};

const COLUMNS: &[&str] = &["s.type", "s.state_key", "s.event_id"];

/// What a group adds to the one that it was made from.
pub(super) fn step(
    database: &mut dyn Database,
    group: StateGroup,
) -> Result<StateStep, SourceError> {
    let from = "SELECT prev_state_group FROM state_group_edges WHERE state_group = $1";
    let from = database.number(from, &[Cell::Int(group.0)])?.map(StateGroup);
    let sql =
        format!("SELECT {} FROM state_groups_state s WHERE s.state_group = $1", COLUMNS.join(", "));
    let mut entries = Vec::new();
    let mut fault = None;
    database.query(&sql, &[Cell::Int(group.0)], &mut |cells| {
        match entry(&mut Row::new(COLUMNS, cells)) {
            Ok(entry) => entries.push(entry),
            Err(why) => fault = Some(why),
        }
        fault.is_none()
    })?;
    if let Some(why) = fault {
        return Err(SourceError::Absent { what: format!("state group {} ({why})", group.0) });
    }
    // The order of text in a database depends on how it was set up.
    entries.sort();
    if from.is_none() && entries.is_empty() {
        let known = "SELECT id FROM state_groups WHERE id = $1";
        if database.number(known, &[Cell::Int(group.0)])?.is_none() {
            return Err(SourceError::Absent { what: format!("state group {}", group.0) });
        }
    }
    Ok(StateStep { from, entries })
}

fn entry(row: &mut Row) -> Result<StateEntry, String> {
    Ok(StateEntry {
        event_type: row.text("type")?,
        state_key: row.text("state_key")?,
        event_id: row.text("event_id")?,
    })
}

/// The whole state of a group.
pub(super) fn whole(
    database: &mut dyn Database,
    group: StateGroup,
) -> Result<Vec<StateEntry>, SourceError> {
    let mut state = BTreeMap::new();
    let mut met = BTreeSet::new();
    let mut next = Some(group);
    while let Some(group) = next {
        if !met.insert(group) {
            let what = format!("state group {}, which is made from itself,", group.0);
            return Err(SourceError::Absent { what });
        }
        let step = step(database, group)?;
        for entry in step.entries {
            // The nearest group counts.
            state.entry((entry.event_type, entry.state_key)).or_insert(entry.event_id);
        }
        next = step.from;
    }
    Ok(state
        .into_iter()
        .map(|((event_type, state_key), event_id)| StateEntry { event_type, state_key, event_id })
        .collect())
}
