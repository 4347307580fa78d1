//! The versions of Synapse's tables, and how they differ.

use crate::{
    facts::{Bad, SourceError},
    sql::{
        database::{Cell, Database},
        schema::{Difference, Schema, column, table},
    },
};

/// The oldest version that is read: that of Synapse 1.120.
const OLDEST: i64 = 88;

/// The newest one, of Synapse 1.163. A newer one may mean something else by what it has.
const NEWEST: i64 = 94;

/// All of the differences that a reader sees. A version gets tables and columns until the next one,
/// so the version alone does not tell. What else changed: 89 `state_groups_pending_deletion`
/// and `state_groups_persisting` (what Synapse is about to delete is read like the rest), 90
/// `room_memberships.participant`, 92 triggers, 93 `delayed_events.content` from bytes to text
/// (both are read as text), 94 the state DAG of an experimental room version.
const DIFFERENCES: &[Difference] = &[
    column("profiles", "fields", 89, "CAST(NULL AS TEXT)"),
    table("delayed_events", 89),
    column("local_media_repository", "sha256", 92, "CAST(NULL AS TEXT)"),
    table("room_ban_redactions", 92),
    column("remote_media_cache", "sha256", 92, "CAST(NULL AS TEXT)"),
    table("thread_subscriptions", 93),
    table("user_reports", 93),
];

/// The tables that are read by statements of their own, and what these read of them, with its type.
/// Of a table that is missing, nothing is read.
const JOINED: &[(&str, &[(&str, &str)])] = &[
    (
        "events",
        &[
            ("stream_ordering", "BIGINT"),
            ("topological_ordering", "BIGINT"),
            ("event_id", "TEXT"),
            ("type", "TEXT"),
            ("room_id", "TEXT"),
            ("outlier", "BOOLEAN"),
            ("depth", "BIGINT"),
            ("origin_server_ts", "BIGINT"),
            ("received_ts", "BIGINT"),
            ("sender", "TEXT"),
            ("state_key", "TEXT"),
            ("rejection_reason", "TEXT"),
        ],
    ),
    ("event_to_state_groups", &[("event_id", "TEXT"), ("state_group", "BIGINT")]),
    ("state_groups", &[("id", "BIGINT")]),
    ("state_group_edges", &[("state_group", "BIGINT"), ("prev_state_group", "BIGINT")]),
    (
        "state_groups_state",
        &[("state_group", "BIGINT"), ("type", "TEXT"), ("state_key", "TEXT"), ("event_id", "TEXT")],
    ),
    ("rejections", &[("event_id", "TEXT"), ("reason", "TEXT")]),
    ("rooms", &[("room_id", "TEXT"), ("room_version", "TEXT")]),
    ("event_txn_id_device_id", &[("event_id", "TEXT"), ("txn_id", "TEXT"), ("device_id", "TEXT")]),
    ("ex_outlier_stream", &[("event_stream_ordering", "BIGINT"), ("event_id", "TEXT")]),
    ("current_state_delta_stream", &[("stream_id", "BIGINT")]),
    (
        "stream_positions",
        &[("stream_name", "TEXT"), ("instance_name", "TEXT"), ("stream_id", "BIGINT")],
    ),
    ("partial_state_rooms", &[("room_id", "TEXT")]),
    ("application_services_state", &[("as_id", "TEXT")]),
    ("appservice_stream_position", &[("stream_ordering", "BIGINT")]),
    ("local_current_membership", &[("room_id", "TEXT"), ("membership", "TEXT")]),
    ("destination_rooms", &[("destination", "TEXT"), ("stream_ordering", "BIGINT")]),
    ("user_ips", &[("user_id", "TEXT"), ("access_token", "TEXT"), ("last_seen", "BIGINT")]),
    (
        "server_keys_json",
        &[
            ("server_name", "TEXT"),
            ("key_id", "TEXT"),
            ("from_server", "TEXT"),
            ("ts_added_ms", "BIGINT"),
            ("ts_valid_until_ms", "BIGINT"),
            ("key_json", "BYTEA"),
        ],
    ),
];

/// What comes before every statement: empty tables in place of those that are missing.
pub(super) fn stand_ins(schema: &Schema) -> String {
    let missing = JOINED.iter().filter(|(table, _)| !schema.has(table));
    let tables = missing.map(|(table, columns)| {
        let columns = columns.iter().map(|(name, of)| format!("CAST(NULL AS {of}) AS {name}"));
        let columns = columns.collect::<Vec<_>>().join(", ");
        format!("{table} AS (SELECT {columns} WHERE 1 = 0)")
    });
    let tables = tables.collect::<Vec<_>>();
    if tables.is_empty() { String::new() } else { format!("WITH {} ", tables.join(", ")) }
}

/// Those that are missing.
pub(super) fn missing(schema: &Schema) -> Vec<Bad> {
    JOINED.iter().filter_map(|(table, _)| schema.missing(table)).collect()
}

/// The tables of a Synapse.
pub(super) fn read(database: &mut dyn Database) -> Result<Schema, SourceError> {
    let place = database.place();
    let tables = database.tables()?;
    if !tables.contains_key("schema_version") || !tables.contains_key("event_json") {
        let what = format!("{place} is no database of Synapse: it lacks its tables");
        return Err(SourceError::Refused(what));
    }
    let rows = database.rows("SELECT version, upgraded FROM schema_version", &[])?;
    let (version, upgraded) = match rows.first().map(Vec::as_slice) {
        Some([Cell::Int(version), upgraded]) => (*version, *upgraded != Cell::Int(0)),
        _ => {
            let what = format!("{place} does not say the version of its tables");
            return Err(SourceError::Refused(what));
        }
    };
    if let Some(refused) = refused(version) {
        return Err(SourceError::Refused(format!("{place} {refused}")));
    }
    // Without it, a start of Synapse was interrupted on the way to this version.
    if !upgraded && database.rows("SELECT file FROM applied_schema_deltas", &[])?.is_empty() {
        let what = format!("{place} was never completed by Synapse: start it once");
        return Err(SourceError::Refused(what));
    }
    Ok(Schema::new(version, tables, DIFFERENCES))
}

/// What is done in the background to a database after an upgrade, and changes what is read.
pub(super) fn unfinished(
    database: &mut dyn Database,
    schema: &Schema,
) -> Result<Vec<String>, SourceError> {
    if !schema.has("background_updates") {
        return Ok(Vec::new());
    }
    let sql = "SELECT update_name FROM background_updates ORDER BY ordering, update_name";
    let rows = database.rows(sql, &[])?;
    let names = rows.into_iter().filter_map(|mut row| match row.pop() {
        Some(Cell::Text(name)) => Some(name),
        _ => None,
    });
    Ok(names.collect())
}

/// Background updates without which rows say something else than they mean. The others make
/// indexes, fill tables that are not read, or delete what does no harm.
const NEEDED: [&str; 7] = [
    "add_rooms_room_version_column",
    "delete_soft_failed_extremities",
    "event_fix_redactions_bytes",
    "events_populate_state_key_rejections",
    "populate_rooms_creator_column",
    "user_threepids_grandfather",
    "users_set_deactivated_flag",
];

/// What is unfinished, and must not be.
pub(super) fn unready(
    database: &mut dyn Database,
    schema: &Schema,
) -> Result<Vec<String>, SourceError> {
    let mut names = unfinished(database, schema)?;
    names.retain(|name| NEEDED.contains(&name.as_str()));
    Ok(names)
}

/// Why a version is not read, as the end of a sentence.
fn refused(version: i64) -> Option<String> {
    if version < OLDEST {
        Some(format!(
            "has tables of version {version}, and this program reads {OLDEST} to {NEWEST}: start \
             Synapse 1.120 or later on it once, and wait until its background updates are done"
        ))
    } else if version > NEWEST {
        Some(format!(
            "has tables of version {version}, and this program reads {OLDEST} to {NEWEST}: a newer \
             Logcabin may read it"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{DIFFERENCES, NEWEST, OLDEST, refused};

    #[test]
    fn other_versions_are_refused_with_what_to_do() {
        assert_eq!(refused(OLDEST), None);
        assert_eq!(refused(NEWEST), None);
        let old = refused(OLDEST - 1).expect("a refusal");
        assert!(old.contains("87") && old.contains("1.120"), "{old}");
        let new = refused(NEWEST + 1).expect("a refusal");
        assert!(new.contains("95") && new.contains("newer Logcabin"), "{new}");
    }

    #[test]
    fn every_difference_is_within_the_versions_that_are_read() {
        for difference in DIFFERENCES {
            assert!((OLDEST..=NEWEST + 1).contains(&difference.until), "{}", difference.table);
            assert_eq!(difference.column.is_some(), !difference.instead.is_empty());
        }
    }
}
