//! Other servers, and application services.

use super::keys::{CROSS_SIGNING_COLUMNS, NEWEST_CROSS_SIGNING_KEYS, cross_signing_key};
use crate::{
    facts::{
        AppService, AppServiceTransaction, Destination, DestinationRoom, DeviceChange, DeviceKeys,
        Fact, PeerDeviceList, PeerKey,
    },
    sql::{
        database::{Fault, Row},
        plan::Plan,
    },
    synapse::context::Context,
};

/// What a server publishes, Synapse mostly has from a notary, and then keeps it by the notary's
/// name. There may be one for each notary.
pub(super) const PEER_KEYS: &[Plan<Context>] = &[Plan {
    from: "server_signature_keys k",
    only: "",
    keys: 2,
    columns: &[
        "k.server_name",
        "k.key_id",
        "k.from_server",
        "k.ts_added_ms",
        "k.ts_valid_until_ms",
        "k.verify_key",
        "(SELECT d.key_json FROM server_keys_json d
            WHERE d.server_name = k.server_name AND d.key_id = k.key_id
            ORDER BY COALESCE(d.ts_valid_until_ms, 0) DESC, d.ts_added_ms DESC, d.from_server
            LIMIT 1) AS key_json",
    ],
    shown: 2,
    tell: |row, _, facts| {
        let public = row.bytes_or_none("verify_key")?;
        let public = public
            .map(|bytes| {
                <[u8; 32]>::try_from(bytes)
                    .map_err(|_| "the column `verify_key` holds no key".to_owned())
            })
            .transpose()?;
        facts.push(Fact::PeerKey(PeerKey {
            server_name: row.text("server_name")?,
            key_id: row.text("key_id")?,
            from_server: row.text_or_none("from_server")?.unwrap_or_default(),
            added_ms: row.int_or_none("ts_added_ms")?,
            valid_until_ms: row.int_or_none("ts_valid_until_ms")?,
            // Without it, the key is still there.
            document: row.json_or_none("key_json").unwrap_or_default(),
            public,
        }));
        Ok(())
    },
}];

pub(super) const PEER_DEVICES: &[Plan<Context>] = &[Plan {
    from: "device_lists_remote_cache c",
    only: "",
    keys: 2,
    columns: &["c.user_id", "c.device_id", "c.content"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::PeerDevices(DeviceKeys {
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            keys: row.object("content")?,
            uploaded_ms: None,
        }));
        Ok(())
    },
}];

pub(super) const PEER_CROSS_SIGNING_KEYS: &[Plan<Context>] = &[Plan {
    from: "e2e_cross_signing_keys c",
    only: NEWEST_CROSS_SIGNING_KEYS,
    keys: 3,
    columns: CROSS_SIGNING_COLUMNS,
    shown: 3,
    tell: |row, context, facts| {
        let user_id = row.text("user_id")?;
        if !context.is_local(&user_id) {
            facts.push(Fact::PeerCrossSigningKey(cross_signing_key(row, user_id)?));
        }
        Ok(())
    },
}];

pub(super) const PEER_DEVICE_LISTS: &[Plan<Context>] = &[Plan {
    from: "device_lists_remote_extremeties x
        LEFT JOIN device_lists_remote_resync s ON s.user_id = x.user_id",
    only: "",
    keys: 1,
    columns: &["x.user_id", "x.stream_id", "s.user_id AS stale"],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::PeerDeviceList(PeerDeviceList {
            user_id: row.text("user_id")?,
            stream_id: row.text("stream_id")?,
            stale: row.text_or_none("stale")?.is_some(),
        }));
        Ok(())
    },
}];

pub(super) const DESTINATIONS: &[Plan<Context>] = &[Plan {
    from: "destinations d",
    only: "",
    keys: 1,
    columns: &[
        "d.destination",
        "d.last_successful_stream_ordering",
        "d.failure_ts",
        "d.retry_last_ts",
        "d.retry_interval",
        "(SELECT max(r.stream_ordering) FROM destination_rooms r
            WHERE r.destination = d.destination) AS newest",
    ],
    shown: 1,
    tell: |row, _, facts| {
        let above_zero = |number: &i64| *number > 0;
        facts.push(Fact::Destination(Destination {
            server_name: row.text("destination")?,
            sent_up_to: row.int_or_none("last_successful_stream_ordering")?,
            failing_since_ms: row.int_or_none("failure_ts")?.filter(above_zero),
            tried_ms: row.int_or_none("retry_last_ts")?.filter(above_zero),
            wait_ms: row.int_or_none("retry_interval")?.filter(above_zero),
            newest: row.int_or_none("newest")?,
        }));
        Ok(())
    },
}];

pub(super) const DESTINATION_ROOMS: &[Plan<Context>] = &[Plan {
    from: "destination_rooms d",
    only: "",
    keys: 2,
    columns: &["d.destination", "d.room_id", "d.stream_ordering"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::DestinationRoom(DestinationRoom {
            server_name: row.text("destination")?,
            room_id: row.text("room_id")?,
            newest: row.int("stream_ordering")?,
        }));
        Ok(())
    },
}];

/// What Synapse has sorted by server already, and what it has not. It removes what was sent.
pub(super) const DEVICE_CHANGES: &[Plan<Context>] = &[
    Plan {
        from: "device_lists_outbound_pokes p",
        only: "NOT p.sent",
        keys: 4,
        columns: &["p.destination", "p.stream_id", "p.user_id", "p.device_id"],
        shown: 4,
        tell: device_change,
    },
    Plan {
        from: "device_lists_changes_in_room c",
        only: "NOT c.converted_to_destinations",
        keys: 2,
        columns: &["c.stream_id", "c.room_id", "c.user_id", "c.device_id"],
        shown: 2,
        tell: device_change,
    },
];

fn device_change(row: &mut Row, _: &Context, facts: &mut Vec<Fact>) -> Result<(), Fault> {
    facts.push(Fact::DeviceChange(DeviceChange {
        user_id: row.text("user_id")?,
        device_id: row.text("device_id")?,
    }));
    Ok(())
}

pub(super) const APP_SERVICES: &[Plan<Context>] = &[Plan {
    from: "application_services_state s LEFT JOIN appservice_stream_position p ON TRUE",
    only: "",
    keys: 1,
    columns: &["s.as_id", "s.state", "p.stream_ordering"],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::AppService(AppService {
            id: row.text("as_id")?,
            state: row.text_or_none("state")?,
            told_up_to: row.int_or_none("stream_ordering")?,
        }));
        Ok(())
    },
}];

pub(super) const APP_SERVICE_TRANSACTIONS: &[Plan<Context>] = &[Plan {
    from: "application_services_txns t",
    only: "",
    keys: 2,
    columns: &["t.as_id", "t.txn_id", "t.event_ids"],
    shown: 2,
    tell: |row, _, facts| {
        let event_ids = row.json("event_ids")?;
        let event_ids = serde_json::from_str(event_ids.get())
            .map_err(|_| "the column `event_ids` is no list of texts".to_owned())?;
        facts.push(Fact::AppServiceTransaction(AppServiceTransaction {
            id: row.text("as_id")?,
            number: row.int("txn_id")?,
            event_ids,
        }));
        Ok(())
    },
}];
