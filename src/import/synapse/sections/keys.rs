//! Keys of this server's users, their backups, and messages to devices.

use crate::{
    facts::{
        BackedUpKey, CrossSigningKey, DehydratedDevice, DeviceKeys, Fact, FallbackKey, KeyBackup,
        KeySignature, KeyUse, OneTimeKey, ToDevice, ToPeerDevice,
    },
    sql::{
        database::{Fault, Row},
        plan::Plan,
    },
    synapse::context::Context,
};

pub(super) const DEVICE_KEYS: &[Plan<Context>] = &[Plan {
    from: "e2e_device_keys_json k",
    only: "",
    keys: 2,
    columns: &["k.user_id", "k.device_id", "k.ts_added_ms", "k.key_json"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::DeviceKeys(DeviceKeys {
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            keys: row.object("key_json")?,
            uploaded_ms: row.int_or_none("ts_added_ms")?,
        }));
        Ok(())
    },
}];

pub(super) const ONE_TIME_KEYS: &[Plan<Context>] = &[Plan {
    from: "e2e_one_time_keys_json k",
    only: "",
    keys: 4,
    columns: &[
        "k.user_id",
        "k.device_id",
        "k.algorithm",
        "k.key_id",
        "k.ts_added_ms",
        "k.key_json",
    ],
    shown: 4,
    tell: |row, _, facts| {
        facts.push(Fact::OneTimeKey(OneTimeKey {
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            key_id: key_id(row)?,
            key: row.json("key_json")?,
            uploaded_ms: row.int_or_none("ts_added_ms")?,
        }));
        Ok(())
    },
}];

pub(super) const FALLBACK_KEYS: &[Plan<Context>] = &[Plan {
    from: "e2e_fallback_keys_json k",
    only: "",
    keys: 3,
    columns: &["k.user_id", "k.device_id", "k.algorithm", "k.key_id", "k.key_json", "k.used"],
    shown: 3,
    tell: |row, _, facts| {
        facts.push(Fact::FallbackKey(FallbackKey {
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            key_id: key_id(row)?,
            key: row.json("key_json")?,
            used: row.flag("used")?,
        }));
        Ok(())
    },
}];

/// The id of a key as clients name it.
fn key_id(row: &mut Row) -> Result<String, Fault> {
    Ok(format!("{}:{}", row.text("algorithm")?, row.text("key_id")?))
}

/// Earlier keys stay in the table.
pub(super) const NEWEST_CROSS_SIGNING_KEYS: &str = "NOT EXISTS (
    SELECT 1 FROM e2e_cross_signing_keys n
    WHERE n.user_id = c.user_id AND n.keytype = c.keytype AND n.stream_id > c.stream_id)";

pub(super) const CROSS_SIGNING_COLUMNS: &[&str] =
    &["c.user_id", "c.keytype", "c.stream_id", "c.keydata", "c.updatable_without_uia_before_ms"];

pub(super) const CROSS_SIGNING_KEYS: &[Plan<Context>] = &[Plan {
    from: "e2e_cross_signing_keys c",
    only: NEWEST_CROSS_SIGNING_KEYS,
    keys: 3,
    columns: CROSS_SIGNING_COLUMNS,
    shown: 3,
    tell: |row, context, facts| {
        let user_id = row.text("user_id")?;
        if context.is_local(&user_id) {
            facts.push(Fact::CrossSigningKey(cross_signing_key(row, user_id)?));
        }
        Ok(())
    },
}];

pub(super) fn cross_signing_key(row: &mut Row, user_id: String) -> Result<CrossSigningKey, Fault> {
    let key_use = match row.text("keytype")?.as_str() {
        "master" => KeyUse::Master,
        "self_signing" => KeyUse::SelfSigning,
        "user_signing" => KeyUse::UserSigning,
        other => return Err(format!("no key is for `{}`", other.escape_debug())),
    };
    Ok(CrossSigningKey {
        user_id,
        key_use,
        key: row.object("keydata")?,
        replaceable_until_ms: row.int_or_none("updatable_without_uia_before_ms")?,
    })
}

pub(super) const KEY_SIGNATURES: &[Plan<Context>] = &[Plan {
    from: "e2e_cross_signing_signatures s",
    only: "",
    keys: 5,
    columns: &["s.user_id", "s.target_user_id", "s.target_device_id", "s.key_id", "s.signature"],
    shown: 5,
    tell: |row, _, facts| {
        facts.push(Fact::KeySignature(KeySignature {
            user_id: row.text("user_id")?,
            key_id: row.text("key_id")?,
            target_user_id: row.text("target_user_id")?,
            target_device_id: row.text("target_device_id")?,
            signature: row.text("signature")?,
        }));
        Ok(())
    },
}];

pub(super) const DEHYDRATED_DEVICES: &[Plan<Context>] = &[Plan {
    from: "dehydrated_devices d",
    only: "",
    keys: 1,
    columns: &["d.user_id", "d.device_id", "d.device_data"],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::DehydratedDevice(DehydratedDevice {
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            data: row.object("device_data")?,
        }));
        Ok(())
    },
}];

pub(super) const KEY_BACKUPS: &[Plan<Context>] = &[Plan {
    from: "e2e_room_keys_versions v",
    only: "",
    keys: 2,
    columns: &["v.user_id", "v.version", "v.algorithm", "v.auth_data", "v.deleted", "v.etag"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::KeyBackup(KeyBackup {
            user_id: row.text("user_id")?,
            version: row.int("version")?,
            algorithm: row.text("algorithm")?,
            auth_data: row.json("auth_data")?,
            deleted: row.flag("deleted")?,
            etag: row.int_or_none("etag")?,
        }));
        Ok(())
    },
}];

pub(super) const BACKED_UP_KEYS: &[Plan<Context>] = &[Plan {
    from: "e2e_room_keys k",
    only: "",
    keys: 4,
    columns: &[
        "k.user_id",
        "k.version",
        "k.room_id",
        "k.session_id",
        "k.first_message_index",
        "k.forwarded_count",
        "k.is_verified",
        "k.session_data",
    ],
    shown: 4,
    tell: |row, _, facts| {
        facts.push(Fact::BackedUpKey(BackedUpKey {
            user_id: row.text("user_id")?,
            version: row.int("version")?,
            room_id: row.text("room_id")?,
            session_id: row.text("session_id")?,
            first_message_index: row.int_or_none("first_message_index")?,
            forwarded_count: row.int_or_none("forwarded_count")?,
            is_verified: row.flag("is_verified")?,
            session_data: row.json("session_data")?,
        }));
        Ok(())
    },
}];

pub(super) const TO_DEVICE: &[Plan<Context>] = &[Plan {
    from: "device_inbox i",
    only: "",
    keys: 3,
    columns: &["i.stream_id", "i.user_id", "i.device_id", "i.message_json"],
    shown: 3,
    tell: |row, _, facts| {
        facts.push(Fact::ToDevice(ToDevice {
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            stream: row.int("stream_id")?,
            message: row.object("message_json")?,
        }));
        Ok(())
    },
}];

pub(super) const TO_PEER_DEVICE: &[Plan<Context>] = &[Plan {
    from: "device_federation_outbox o",
    only: "",
    keys: 2,
    columns: &["o.destination", "o.stream_id", "o.queued_ts", "o.messages_json"],
    shown: 2,
    tell: |row, _, facts| {
        facts.push(Fact::ToPeerDevice(ToPeerDevice {
            server_name: row.text("destination")?,
            stream: row.int("stream_id")?,
            queued_ms: row.int("queued_ts")?,
            messages: row.object("messages_json")?,
        }));
        Ok(())
    },
}];
