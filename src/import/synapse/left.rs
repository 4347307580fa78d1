//! Tables that do not come along, and why.

use crate::{
    facts::{LeftTable, SourceError},
    sql::{database::Database, schema::Schema},
};

const COMPUTED: &str = "computed from the rest";
const SHORT: &str = "lives for minutes, and clients ask again";
const NO_EQUIVALENT: &str = "nothing here corresponds to it";
const ANEW: &str = "generated again when it is requested";

/// The tables with something that somebody might miss. Those that hold Synapse's own work, such as
/// locks and positions of its streams, are not among them.
const LEFT: &[(&str, &str)] = &[
    ("account_validity", NO_EQUIVALENT),
    ("device_auth_providers", "log-outs that a provider asks for end the sessions begun here only"),
    (
        "device_federation_inbox",
        "it does not say whose the messages were: one that another server sends again, as it was \
         not answered, comes twice, and devices pass by what they have decrypted",
    ),
    ("device_lists_remote_pending", "lists of devices that are out of date are fetched again"),
    ("event_expiry", "computed from the events, by the rooms' retention"),
    ("event_push_actions", COMPUTED),
    ("event_search", COMPUTED),
    (
        "federation_inbound_events_staging",
        "events that Synapse has taken and not judged: start it until there are none, or the next \
         event of the room brings them",
    ),
    ("local_media_repository_thumbnails", ANEW),
    ("local_media_repository_url_cache", ANEW),
    ("login_tokens", SHORT),
    ("monthly_active_users", NO_EQUIVALENT),
    ("open_id_tokens", SHORT),
    ("per_user_experimental_features", NO_EQUIVALENT),
    ("pusher_throttle", "mails of notifications wait for the shortest time at first"),
    ("ratelimit_override", "limits of single users are not kept"),
    ("received_transactions", "other servers' repetitions are recognised by their events"),
    ("remote_media_cache_thumbnails", ANEW),
    ("room_alias_servers", COMPUTED),
    ("sessions", SHORT),
    ("sticky_events", NO_EQUIVALENT),
    ("threepid_guest_access_tokens", SHORT),
    ("threepid_validation_session", SHORT),
    ("ui_auth_sessions", SHORT),
    ("user_daily_visits", "statistics of the past"),
    ("user_directory", COMPUTED),
    ("user_ips", "each device has its last use; earlier addresses are not kept"),
];

/// Rows that are a part of a table. What they are of comes along.
const PARTS: &[(&str, &str, &str)] = &[
    (
        "scheduled_tasks",
        "status IN ('scheduled', 'active')",
        "work that Synapse has planned, such as deleting rooms and redacting what a user wrote: \
         start it until it is done, or ask for it here",
    ),
    (
        "users",
        "is_guest = 1 AND deactivated = 0",
        "guests are logged out: what they log in with is computed by Synapse and is in no table; who \
         wants to keep such an account registers with it before the move",
    ),
    (
        "users",
        "user_type IS NOT NULL",
        "accounts of a kind, such as support and bot, which come along as users",
    ),
    (
        "users",
        "appservice_id IS NOT NULL AND appservice_id <> ''",
        "whose accounts are an application service's is told by the ids in its registration",
    ),
];

/// Those of them that have rows.
pub(super) fn left(
    database: &mut dyn Database,
    schema: &Schema,
) -> Result<Vec<LeftTable>, SourceError> {
    let mut found = Vec::new();
    for &(table, why) in LEFT {
        let rows = schema.rows(database, table)?;
        if rows > 0 {
            found.push(LeftTable { table, rows, why });
        }
    }
    for &(table, only, why) in PARTS.iter().filter(|(table, ..)| schema.has(table)) {
        let sql = format!("SELECT count(*) FROM {table} WHERE {only}");
        let rows = database.number(&sql, &[])?.and_then(|rows| u64::try_from(rows).ok());
        if let Some(rows) = rows.filter(|rows| *rows > 0) {
            found.push(LeftTable { table, rows, why });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{LEFT, PARTS};
    use crate::{facts::Section, synapse::sections::plans};

    /// All tables of a Synapse with tables of version 94.
    const TABLES: &str = include_str!("tests/all_tables.txt");

    /// What the readers of events and of the version read.
    const OTHERS: [&str; 17] = [
        "applied_schema_deltas",
        "background_updates",
        "current_state_delta_stream",
        "event_edges",
        "event_json",
        "event_to_state_groups",
        "event_txn_id_device_id",
        "events",
        "ex_outlier_stream",
        "rejections",
        "room_memberships",
        "rooms",
        "schema_version",
        "state_group_edges",
        "state_groups",
        "state_groups_state",
        "stream_positions",
    ];

    /// Synapse's own work: copies of what other tables say, made for looking it up, positions of
    /// its streams and of its workers, and what it is about to do with its own tables.
    const OWN_WORK: &str = "
        applied_module_schemas delayed_events_stream_pos deleted_pushers
        destination_rooms_sticky_events_backlog device_lists_changes_converted_stream_position
        device_lists_changes_in_room_max_pruned_stream_id device_lists_outbound_last_success
        device_lists_stream event_auth event_auth_chain_links event_auth_chain_to_calculate
        event_auth_chains event_failed_pull_attempts event_labels event_push_actions_staging
        event_push_summary event_push_summary_last_receipt_stream_id
        event_push_summary_stream_ordering event_relations federation_stream_position ignored_users
        msc4242_state_dag_edges msc4242_state_dag_forward_extremities partial_state_events
        partial_state_rooms_servers profile_updates profile_updates_per_user push_rules_stream
        quarantined_media_changes receipts_graph room_depth room_forgetter_stream_pos
        room_stats_current room_stats_earliest_token room_stats_state room_tags_revisions
        schema_compat_version sliding_sync_connection_lazy_members
        sliding_sync_connection_positions sliding_sync_connection_required_state
        sliding_sync_connection_room_configs sliding_sync_connection_streams
        sliding_sync_connections sliding_sync_joined_rooms
        sliding_sync_joined_rooms_to_recalculate sliding_sync_membership_snapshots state_events
        state_groups_pending_deletion state_groups_persisting stats_incremental_position
        stream_ordering_to_exterm threads threepid_validation_token
        ui_auth_sessions_credentials ui_auth_sessions_ips un_partial_stated_event_stream
        un_partial_stated_room_stream user_directory_search user_directory_stale_remote_users
        user_directory_stream_pos user_signature_stream user_stats_current users_in_public_rooms
        users_to_send_full_presence_to users_who_share_private_rooms worker_locks
        worker_read_write_locks worker_read_write_locks_mode";

    #[test]
    fn every_table_is_read_or_said_to_be_left_or_is_work_of_its_own() {
        let all: BTreeSet<&str> = TABLES.split_whitespace().collect();
        let mut accounted: BTreeSet<&str> = OTHERS.into_iter().collect();
        for plan in Section::ALL.into_iter().flat_map(plans) {
            let texts = plan.columns.iter().copied().chain([plan.from, plan.only]);
            accounted.extend(texts.flat_map(str::split_whitespace).filter(|of| all.contains(of)));
        }
        accounted.extend(LEFT.iter().map(|(table, _)| *table));
        accounted.extend(PARTS.iter().map(|(table, ..)| *table));
        let own: BTreeSet<&str> = OWN_WORK.split_whitespace().collect();
        let twice: Vec<_> = own.intersection(&accounted).collect();
        assert!(twice.is_empty(), "read or left, and said to be of no use: {twice:?}");
        let known: BTreeSet<&str> = accounted.union(&own).copied().collect();
        let missing: Vec<_> = all.difference(&known).collect();
        assert!(missing.is_empty(), "nobody knows what becomes of {missing:?}");
        let gone: Vec<_> = own.difference(&all).collect();
        assert!(gone.is_empty(), "there are no such tables: {gone:?}");
    }
}
