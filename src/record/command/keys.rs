//! Commands of end-to-end encryption: keys of devices and users, and backups of room keys.

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::kind::{Content, Erased};
use crate::Holds;

/// Payload of `keys.upload`. Absent members leave their keys as they were.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysUpload {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The device's identity keys, as it signed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_keys: Option<Box<RawValue>>,
    /// One-time keys that are new, by key id (`<algorithm>:<name>`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub one_time_keys: BTreeMap<String, Box<RawValue>>,
    /// Fallback keys, by key id; each replaces the one of its algorithm.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fallback_keys: BTreeMap<String, Box<RawValue>>,
}

impl Content for KeysUpload {
    const ERASED: Erased = Erased::Members {
        emptied: &["device_keys"],
        gone: &["one_time_keys", "fallback_keys"],
        required: None,
    };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `keys.claim`. The record's origin made the claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysClaim {
    /// Whose key it is.
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    pub key_id: String,
    /// Whether it is a fallback key, which is handed out repeatedly.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fallback: bool,
}

impl Content for KeysClaim {}

/// Payload of `keys.drop`, which is empty. No one-time key that was uploaded before is handed out
/// any more, every fallback key counts as used, and all device lists count as changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysDrop {}

impl Content for KeysDrop {}

/// Payload of `keys.cross_sign`. Absent members leave their keys as they were.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysCrossSign {
    pub user_id: OwnedUserId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_key: Option<Box<RawValue>>,
    /// The key that signs the user's own devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_signing_key: Option<Box<RawValue>>,
    /// The key that signs other users' master keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_signing_key: Option<Box<RawValue>>,
}

impl Content for KeysCrossSign {
    const ERASED: Erased = Erased::Members {
        emptied: &["master_key", "self_signing_key", "user_signing_key"],
        gone: &[],
        required: None,
    };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

impl KeysCrossSign {
    /// The public keys in it, in unpadded base64.
    pub fn public_keys(&self) -> impl Iterator<Item = String> {
        #[derive(Deserialize)]
        struct Key {
            keys: BTreeMap<String, String>,
        }
        let keys = [&self.master_key, &self.self_signing_key, &self.user_signing_key];
        let keys = keys.into_iter().flatten();
        keys.filter_map(|key| serde_json::from_str::<Key>(key.get()).ok())
            .flat_map(|key| key.keys.into_values())
    }
}

/// Payload of `keys.permit_reset`: clients that logged in by OAuth may replace the user's
/// cross-signing keys, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysPermitReset {
    pub user_id: OwnedUserId,
    /// Until when, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

impl Content for KeysPermitReset {}

/// Payload of `keys.sign`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysSign {
    /// Whose keys were signed.
    pub user_id: OwnedUserId,
    /// Who signed them.
    pub by: OwnedUserId,
    /// By device id or public key: the signatures, each by the id of the key that made it.
    pub signatures: BTreeMap<String, BTreeMap<String, String>>,
}

impl Content for KeysSign {
    const ERASED: Erased =
        Erased::Members { emptied: &["signatures"], gone: &[], required: Some("signatures") };

    fn holds(&self) -> Holds<'_> {
        Holds::OfBoth(&self.user_id, &self.by)
    }
}

/// Payload of `key_backup.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupSet {
    pub user_id: OwnedUserId,
    /// The backup's version: a user's backups are numbered from 1.
    pub version: u64,
    /// The algorithm that its keys are encrypted with.
    pub algorithm: String,
    /// Data that the algorithm defines, for example a public key with signatures.
    pub auth_data: Box<RawValue>,
}

impl Content for KeyBackupSet {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `key_backup.delete`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupDelete {
    pub user_id: OwnedUserId,
    pub version: u64,
}

impl Content for KeyBackupDelete {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `key_backup.put`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupPut {
    pub user_id: OwnedUserId,
    pub version: u64,
    /// The keys by room and session; each replaces an earlier one.
    pub rooms: BTreeMap<OwnedRoomId, BTreeMap<String, BackedUpKey>>,
}

impl Content for KeyBackupPut {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// The key of one session in a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackedUpKey {
    /// The first message that it decrypts.
    pub first_message_index: u64,
    /// How often it was forwarded.
    pub forwarded_count: u64,
    /// Whether the device that put it there trusts where it came from.
    pub is_verified: bool,
    /// The key, encrypted.
    pub session_data: Box<RawValue>,
}

/// Payload of `key_backup.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupRemove {
    pub user_id: OwnedUserId,
    pub version: u64,
    /// The room whose keys are removed; none for all rooms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    /// The session whose key is removed; none for all sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

impl Content for KeyBackupRemove {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}
