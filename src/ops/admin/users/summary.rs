//! What lists say about a user.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use crate::{ops::admin::office::Office, state::Account};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserSummary {
    pub(crate) user_id: OwnedUserId,
    pub(crate) display_name: Option<String>,
    pub(crate) guest: bool,
    pub(crate) admin: bool,
    pub(crate) locked: bool,
    pub(crate) suspended: bool,
    pub(crate) deactivated: bool,
    /// How many devices are logged in.
    pub(crate) devices: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) avatar_url: Option<String>,
    /// Whether the user's messages are hidden from users who join later.
    #[serde(default)]
    pub(crate) erased: bool,
    /// When a device of the user was last used, in milliseconds since the Unix epoch, as far as is
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen_ms: Option<u64>,
}

pub(super) fn summary(office: &Office, account: &Account) -> UserSummary {
    let text = |field| {
        let value = account.profile_field(field).and_then(serde_json::Value::as_str);
        value.map(ToOwned::to_owned)
    };
    let (user_id, state) = (&account.user_id, office.engine.state());
    let seen = account.active_devices().filter_map(|(device_id, device)| {
        office.last_seen.of(&state, user_id, device_id, device).map(|seen| seen.seen_ms)
    });
    UserSummary {
        user_id: user_id.clone(),
        display_name: text("displayname"),
        avatar_url: text("avatar_url"),
        guest: account.standing.guest,
        admin: account.standing.admin,
        locked: account.standing.locked,
        suspended: account.standing.suspended,
        deactivated: account.standing.deactivated.is_some(),
        erased: account.standing.erased.is_some(),
        devices: account.active_devices().count(),
        last_seen_ms: seen.max(),
    }
}
