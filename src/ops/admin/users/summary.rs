//! What lists say about a user.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use crate::admin::context::ActContext;
use logcabin_state::{Account, State};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserSummary {
    pub user_id: OwnedUserId,
    pub display_name: Option<String>,
    pub guest: bool,
    pub admin: bool,
    pub locked: bool,
    pub suspended: bool,
    #[serde(default)]
    pub shadow_banned: bool,
    /// Whether an administrator has to approve it first.
    #[serde(default)]
    pub waiting: bool,
    pub deactivated: bool,
    /// How many devices are logged in.
    pub devices: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar_url: Option<String>,
    /// Whether the user's messages are hidden from users who join later.
    #[serde(default)]
    pub erased: bool,
    /// When a device of the user was last used, in milliseconds since the Unix epoch, as far as is
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_ms: Option<u64>,
}

/// A field of a user's profile, if it is a text.
pub(super) fn profile_text<'a>(account: &'a Account, field: &str) -> Option<&'a str> {
    account.profile_field(field).and_then(serde_json::Value::as_str)
}

/// When a device of the user was last used, in milliseconds since the Unix epoch, as far as is
/// known.
pub(super) fn last_seen(context: &ActContext, state: &State, account: &Account) -> Option<u64> {
    let seen = account.active_devices().filter_map(|(device_id, device)| {
        let seen = context.last_seen.of(state, &account.user_id, device_id, device);
        seen.map(|seen| seen.seen_ms)
    });
    seen.max()
}

pub(super) fn summary(context: &ActContext, account: &Account) -> UserSummary {
    let text = |field| profile_text(account, field).map(ToOwned::to_owned);
    UserSummary {
        user_id: account.user_id.clone(),
        display_name: text("displayname"),
        avatar_url: text("avatar_url"),
        guest: account.standing.guest,
        admin: account.standing.admin,
        locked: account.standing.locked,
        suspended: account.standing.suspended,
        shadow_banned: account.standing.shadow_banned,
        waiting: account.standing.waiting.is_some(),
        deactivated: account.standing.deactivated.is_some(),
        erased: account.standing.erased.is_some(),
        devices: account.active_devices().count(),
        last_seen_ms: last_seen(context, &context.engine.state(), account),
    }
}
