//! Commands of devices: sessions and their tokens, and messages to devices.

use std::{collections::BTreeMap, net::IpAddr};

use ruma::{OwnedDeviceId, OwnedUserId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    kind::{Content, Erased},
    room::Transaction,
    values::TokenHash,
};
use crate::{Holds, Offset};

/// Payload of `device.login`. The offset of this record identifies the session that it opens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceLogin {
    pub user_id: OwnedUserId,
    /// The device; an existing device with this id loses its tokens.
    pub device_id: OwnedDeviceId,
    /// Display name for a new device; ignored for one that exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The session's first tokens.
    pub tokens: Tokens,
    /// What the client sent before the session was imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<SentBefore>,
}

/// A transaction of a client at the server that its session was imported from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentBefore {
    /// As in a [`Transaction`].
    pub scope: String,
    /// The client's transaction id.
    pub id: String,
    /// The event that it sent.
    pub event: Offset,
}

impl Content for DeviceLogin {
    const ERASED: Erased =
        Erased::Members { emptied: &[], gone: &["display_name", "sent"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// The tokens of a session, as hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    pub access: TokenHash,
    /// When the access token expires, in milliseconds since the Unix epoch; none for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The refresh token, for clients that support it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<TokenHash>,
}

impl Tokens {
    /// Whether the tokens are the same, regardless of their expiry.
    pub fn same_as(&self, other: &Self) -> bool {
        self.access == other.access && self.refresh == other.refresh
    }
}

/// Payload of `device.refresh`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRefresh {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The new tokens. Those before them stay valid until one of these is used.
    pub tokens: Tokens,
}

impl Content for DeviceRefresh {}

/// Payload of `device.confirm`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceConfirm {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
}

impl Content for DeviceConfirm {}

/// Payload of `device.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRemove {
    pub user_id: OwnedUserId,
    /// The devices that were removed.
    pub devices: Vec<OwnedDeviceId>,
}

impl Content for DeviceRemove {}

/// Payload of `device.rename`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRename {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The new display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

impl Content for DeviceRename {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `device.dehydrate`. Its keys are in a `keys.upload` of the same batch; an earlier
/// dehydrated device of the user was removed before, in the same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceDehydrate {
    pub user_id: OwnedUserId,
    /// The device, on which nobody is logged in: it receives messages until one of the user's
    /// devices fetches them.
    pub device_id: OwnedDeviceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Its private keys, encrypted for the user.
    pub device_data: Box<RawValue>,
}

impl Content for DeviceDehydrate {
    const ERASED: Erased = Erased::Members {
        emptied: &["device_data"],
        gone: &["display_name"],
        required: Some("device_data"),
    };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `device.seen`. An earlier one of the same device is superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSeen {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// When and from where.
    #[serde(flatten)]
    pub sighting: Sighting,
}

impl Content for DeviceSeen {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// A use of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// When, in milliseconds since the Unix epoch.
    pub seen_ms: u64,
    /// From where.
    pub address: IpAddr,
    /// What the client calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// Payload of `to_device.send`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToDeviceSend {
    pub sender: OwnedUserId,
    #[serde(rename = "type")]
    pub event_type: String,
    /// The content for each device of each user.
    pub messages: BTreeMap<OwnedUserId, BTreeMap<OwnedDeviceId, Box<RawValue>>>,
    /// The part for users of other homeservers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<ForeignToDevice>,
    /// The id under which the sender's homeserver sent it, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_as: Option<String>,
    /// The transaction that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Transaction>,
}

/// A message to devices of users of other homeservers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForeignToDevice {
    /// The id by which other homeservers recognise a repetition.
    pub message_id: String,
    /// The content for each device of each user; `*` stands for all of a user's.
    pub messages: BTreeMap<OwnedUserId, BTreeMap<String, Box<RawValue>>>,
}

impl ToDeviceSend {
    /// Whose share of an inbox it counts towards: the sender's, or that of the homeserver that sent
    /// it, which can make up senders.
    pub fn counts_for(&self) -> &str {
        match self.received_as {
            Some(_) => self.sender.server_name().as_str(),
            None => self.sender.as_str(),
        }
    }
}

impl Content for ToDeviceSend {
    const ERASED: Erased =
        Erased::Members { emptied: &["messages"], gone: &["outside"], required: Some("messages") };

    fn holds(&self) -> Holds<'_> {
        Holds::Letter(self)
    }
}

/// Payload of `to_device.ack`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToDeviceAck {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The last record whose message the device has.
    pub up_to: Offset,
}

impl Content for ToDeviceAck {}
