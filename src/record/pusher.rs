//! The pushers in the log: how users are notified, through push gateways or by mail, and how far
//! they have been notified.

use std::fmt;

use ruma::{OwnedDeviceId, OwnedUserId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Holds, Offset,
    command::kind::{Content, Erased},
};

/// The identity of a pusher. A user has at most one pusher with these ids.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PusherIds {
    /// The app, in reverse-DNS style.
    pub app_id: String,
    /// How the app's provider identifies the device. Anyone who has it can send to the device. For
    /// mail, the address.
    pub pushkey: String,
}

impl fmt::Debug for PusherIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PusherIds").field("app_id", &self.app_id).finish_non_exhaustive()
    }
}

/// How a pusher notifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PusherKind {
    /// By requests to a push gateway.
    Http,
    /// By mail with a summary of what was missed.
    Email,
}

/// Payload of `pusher.set`. It replaces the user's pusher with the same ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PusherSet {
    pub user_id: OwnedUserId,
    /// The device that set it; the pusher is removed with it. None for an application service that
    /// names no device, and for mail, which is for users who are away and is removed with the
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<OwnedDeviceId>,
    #[serde(flatten)]
    pub ids: PusherIds,
    pub kind: PusherKind,
    /// The name of the app, for people.
    pub app_display_name: String,
    /// The name of the device, for people.
    pub device_display_name: String,
    /// The tag of push rules for this device only, which this server does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_tag: Option<String>,
    pub lang: String,
    /// The app's data for the gateway, with the gateway's `url` and the `format` of notifications.
    pub data: Map<String, Value>,
    /// Whether it does not notify until it is enabled (MSC3881).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
}

impl Content for PusherSet {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Why a pusher was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PusherEnd {
    /// The user removed it.
    Asked,
    /// Another user set a pusher with the same ids: the device has changed hands.
    Moved,
    /// The gateway rejected the key.
    Rejected,
}

/// Payload of `pusher.remove`. Pushers also go with the device that set them and with the account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PusherRemove {
    /// Whose it was.
    pub user_id: OwnedUserId,
    #[serde(flatten)]
    pub ids: PusherIds,
    pub because: PusherEnd,
}

impl Content for PusherRemove {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `pusher.advance`. Each is complete and supersedes earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PusherAdvance {
    /// All pushers except those in `behind` have been told of everything up to this record.
    pub done: Offset,
    /// Pushers that are behind, by the record that they were first set with, in order, each with
    /// the record up to which it has been told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<(Offset, Offset)>,
}

impl Content for PusherAdvance {
    const ERASED: Erased = Erased::All;
}

/// Payload of `pusher.mail`: a mail was handed over. It supersedes earlier ones of the same pusher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PusherMail {
    /// Whose it is.
    pub user_id: OwnedUserId,
    /// The pusher, by the record that it was first set with.
    pub pusher: Offset,
    /// It listed unread messages up to this record.
    pub up_to: Offset,
    /// The number of this mail since the user last read anything, from 1.
    pub in_a_row: u32,
}

impl Content for PusherMail {
    const ERASED: Erased = Erased::All;
}
