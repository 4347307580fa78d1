//! Tables that do not come along, and why.

use serde::Serialize;

use crate::{
    facts::SourceError,
    synapse::{database::Database, schema::Schema},
};

/// A table that does not come along.
#[derive(Debug, Serialize)]
pub struct Left {
    pub table: &'static str,
    pub rows: u64,
    /// A sentence without its full stop.
    pub why: &'static str,
}

const COMPUTED: &str = "computed from the rest";
const SHORT: &str = "lives for minutes, and clients ask again";
const NO_EQUIVALENT: &str = "nothing here corresponds to it";
const ANEW: &str = "made anew when it is asked for";

/// The tables with something that somebody might miss. Those that hold Synapse's own work, such as
/// locks and positions of its streams, are not among them.
const LEFT: &[(&str, &str)] = &[
    ("account_validity", NO_EQUIVALENT),
    ("device_auth_providers", "log-outs that a provider asks for end the sessions begun here only"),
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
    ("room_ban_redactions", NO_EQUIVALENT),
    ("sessions", SHORT),
    ("sticky_events", NO_EQUIVALENT),
    ("threepid_guest_access_tokens", SHORT),
    ("threepid_validation_session", SHORT),
    ("ui_auth_sessions", SHORT),
    ("user_daily_visits", "statistics of the past"),
    ("user_directory", COMPUTED),
    ("user_ips", "each device has its last use; earlier addresses are not kept"),
];

/// Those of them that have rows.
pub(super) fn left(database: &mut dyn Database, schema: &Schema) -> Result<Vec<Left>, SourceError> {
    let mut found = Vec::new();
    for &(table, why) in LEFT {
        if !schema.has(table) {
            continue;
        }
        let rows = database.number(&format!("SELECT count(*) FROM {table}"), &[])?;
        let rows = rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or_default();
        if rows > 0 {
            found.push(Left { table, rows, why });
        }
    }
    Ok(found)
}
