//! Where Synapse's streams are: whenever it is in use, some of them move.

use std::collections::BTreeMap;

use crate::{
    facts::SourceError,
    sql::{
        database::{Cell, Database},
        schema::Schema,
    },
};

/// What tells that a table was written, and what of it.
const WRITTEN: &[(&str, &str)] = &[
    ("access_tokens", "max(id)"),
    ("account_data", "max(stream_id)"),
    ("current_state_delta_stream", "max(stream_id)"),
    ("device_federation_inbox", "max(received_ts)"),
    ("device_federation_outbox", "max(stream_id)"),
    ("device_inbox", "max(stream_id)"),
    ("device_lists_outbound_pokes", "max(stream_id)"),
    ("device_lists_remote_extremeties", "count(*)"),
    ("device_lists_stream", "max(stream_id)"),
    ("devices", "max(last_seen)"),
    ("e2e_cross_signing_keys", "max(stream_id)"),
    ("e2e_fallback_keys_json", "sum(CASE WHEN used THEN 1 ELSE 0 END)"),
    ("e2e_one_time_keys_json", "count(*)"),
    ("e2e_room_keys_versions", "sum(etag)"),
    ("events", "max(stream_ordering)"),
    ("events", "min(stream_ordering)"),
    ("ex_outlier_stream", "max(event_stream_ordering)"),
    ("local_media_repository", "max(created_ts)"),
    ("presence_stream", "max(stream_id)"),
    ("push_rules_stream", "max(stream_id)"),
    ("pushers", "max(id)"),
    ("receipts_linearized", "max(stream_id)"),
    ("refresh_tokens", "max(id)"),
    ("room_account_data", "max(stream_id)"),
    ("room_tags_revisions", "max(stream_id)"),
    ("user_ips", "max(last_seen)"),
    ("user_signature_stream", "max(stream_id)"),
    ("users", "count(*)"),
];

/// The position of each stream, by its name and the process that writes it, and what tells of
/// writing that is in no stream.
pub(super) fn all(
    database: &mut dyn Database,
    schema: &Schema,
) -> Result<BTreeMap<String, i64>, SourceError> {
    let mut positions = BTreeMap::new();
    for (table, what) in WRITTEN.iter().filter(|(table, _)| schema.has(table)) {
        let sql = format!("SELECT CAST({what} AS BIGINT) FROM {table}");
        let at = database.number(&sql, &[])?.unwrap_or_default();
        positions.insert(format!("{table} {what}"), at);
    }
    // Those of other processes, and of what is only kept in memory otherwise.
    let sql = "SELECT stream_name, instance_name, stream_id FROM stream_positions";
    for row in database.rows(sql, &[])? {
        if let Ok([Cell::Text(stream), Cell::Text(instance), Cell::Int(at)]) =
            <[Cell; 3]>::try_from(row)
        {
            positions.insert(format!("stream {stream} of {instance}"), at);
        }
    }
    Ok(positions)
}
