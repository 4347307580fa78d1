//! Commands of accounts: registration, passwords, status, profiles, account data, presence.

use std::collections::BTreeMap;

use ruma::{OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Content, Erased,
    values::{Secret, TokenHash},
};
use crate::record::{Holds, Offset};

/// What kind of account it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    /// A full account.
    User,
    /// A guest account.
    Guest,
}

/// Payload of `user.register`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserRegister {
    /// The new user.
    pub user_id: OwnedUserId,
    /// Full or guest account.
    pub kind: AccountKind,
    /// Password hash in PHC form (`$pbkdf2-sha512$i=…$salt$hash`); none for accounts without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// What the user met to be let in.
    #[serde(flatten)]
    pub met: Requirements,
}

impl Content for UserRegister {
    const ERASED: Erased =
        Erased::Members { emptied: &[], gone: &["password", "terms"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `user.upgrade`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserUpgrade {
    /// The user, a guest until now.
    pub user_id: OwnedUserId,
    /// Password hash in PHC form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// What the user met to be let in.
    #[serde(flatten)]
    pub met: Requirements,
}

impl Content for UserUpgrade {
    const ERASED: Erased =
        Erased::Members { emptied: &[], gone: &["password", "terms"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Of what a new user met, that which is to be remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    /// The registration token that was used, which counts as one use of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_token: Option<TokenHash>,
    /// The documents that were agreed to: each one's name and version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, String>,
}

/// Payload of `registration_token.set`. How often it was used stays as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrationTokenSet {
    /// The token.
    pub registration_token: TokenHash,
    /// What it is called among those who run the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How many accounts can be made with it; none: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_allowed: Option<u64>,
    /// When it expires, in milliseconds since the Unix epoch; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

impl Content for RegistrationTokenSet {}

/// Payload of `registration_token.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrationTokenRemove {
    /// The token.
    pub registration_token: TokenHash,
}

impl Content for RegistrationTokenRemove {}

/// Payload of `user.password`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserPassword {
    /// The user.
    pub user_id: OwnedUserId,
    /// Password hash in PHC form.
    pub password: Secret,
    /// Whether it is the same password as before under a stronger hash. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}

impl Content for UserPassword {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `login_token.use`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoginTokenUse {
    /// The user whom the token logs in.
    pub user_id: OwnedUserId,
    /// What tells the token from others: in itself it opens nothing.
    pub nonce: String,
    /// When the token expires, in milliseconds since the Unix epoch. From then on, that it was used
    /// need not be known.
    pub expires_ms: u64,
}

impl Content for LoginTokenUse {}

/// Payload of `sso.link`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SsoLink {
    /// The user.
    pub user_id: OwnedUserId,
    /// The provider's id in the configuration.
    pub provider: String,
    /// How the provider names the person. Never another person's at this provider.
    pub subject: String,
}

impl Content for SsoLink {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `user.status`. What is absent stays as it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user.
    pub user_id: OwnedUserId,
    /// Whether they administer the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<bool>,
    /// Whether their account is locked (client-server API, "Account locking").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Whether their account is suspended (client-server API, "Account suspension").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// Why, in the words of whoever did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for UserStatus {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `user.deactivate`. The password ends with it; the devices were removed before, in the
/// same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserDeactivate {
    /// The user.
    pub user_id: OwnedUserId,
    /// Whether what they sent is kept from those who have not seen it, and what is kept of them is
    /// gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erase: bool,
    /// With `erase`: whether what they sent is gone for everybody. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub messages: bool,
    /// With `erase`: whether the files that they uploaded are removed. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub media: bool,
    /// Why, in the words of whoever did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for UserDeactivate {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `user.erase`. It follows a `user.deactivate` with `erase`, and there may be several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserErase {
    /// The user.
    pub user_id: OwnedUserId,
    /// The `user.deactivate`.
    pub because: Offset,
    /// The records that held something of the user: runs, each with its first and last offset, in
    /// ascending order.
    pub records: Vec<(Offset, Offset)>,
    /// Whether another one follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

impl Content for UserErase {}

/// Payload of `profile.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProfileSet {
    /// The user.
    pub user_id: OwnedUserId,
    /// The field, for example `displayname`.
    pub field: String,
    /// The new value; none removes the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
}

impl Content for ProfileSet {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `account_data.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AccountDataSet {
    /// The user.
    pub user_id: OwnedUserId,
    /// The room, for account data of a room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    /// The event type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The content: a JSON object, or `null` for what was deleted.
    pub content: Box<RawValue>,
}

impl Content for AccountDataSet {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `filter.create`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilterCreate {
    /// The user.
    pub user_id: OwnedUserId,
    /// The id given out for it.
    pub filter_id: String,
    /// The filter as the client sent it.
    pub filter: Box<RawValue>,
}

impl Content for FilterCreate {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// What others see of a user: there, there but idle, or gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PresenceState {
    /// Not connected, or not to be seen.
    #[default]
    Offline,
    /// Connected, but idle.
    Unavailable,
    /// Connected.
    Online,
}

impl PresenceState {
    /// The word in the presence event's content.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Unavailable => "unavailable",
            Self::Online => "online",
        }
    }
}

/// Payload of `presence.set`. Each says everything: an earlier one of the same user is superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceSet {
    /// The user.
    pub user_id: OwnedUserId,
    /// Of the user's devices the one that is there most.
    pub presence: PresenceState,
    /// The user's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_msg: Option<String>,
    /// Whether the user did something within the last minute.
    pub currently_active: bool,
    /// When the user last did something, in milliseconds since the Unix epoch; 0: not known.
    pub last_active_ms: u64,
}

impl Content for PresenceSet {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}
