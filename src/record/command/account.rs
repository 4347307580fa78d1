//! Commands of accounts: registration, passwords, status, profiles, account data, presence.

use std::{collections::BTreeMap, net::IpAddr};

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Content, Erased,
    values::{Secret, TokenHash},
};
use crate::{Holds, Offset};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    /// A full account.
    User,
    Guest,
}

/// Payload of `user.register`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserRegister {
    /// The new user.
    pub user_id: OwnedUserId,
    pub kind: AccountKind,
    /// Password hash in PHC form (`$pbkdf2-sha512$i=…$salt$hash`), or one of another server (see
    /// [`PasswordFlags`](super::PasswordFlags)); none for accounts without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// The stages that the registration completed.
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
    /// The stages that the registration completed.
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

/// What is recorded of the stages that a registration completed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    /// The registration token that was used, which counts as one use of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_token: Option<TokenHash>,
    /// The documents that were agreed to: each one's name and version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, String>,
}

/// Payload of `user.wait`. It is in the same batch as the `user.register` or the `user.upgrade`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserWait {
    pub user_id: OwnedUserId,
    /// What they answered to the operator's question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// From where they registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
}

impl Content for UserWait {
    const ERASED: Erased =
        Erased::Members { emptied: &[], gone: &["answer", "address"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `registration_token.set`. The count of its uses stays, unless it is given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrationTokenSet {
    pub registration_token: TokenHash,
    /// Its label, for administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How many accounts can be created with it; none for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_allowed: Option<u64>,
    /// When it expires, in milliseconds since the Unix epoch; none for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// How many accounts were created with it. Only imports say so: programs that do not know this
    /// member stop at `import.begin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
}

impl Content for RegistrationTokenSet {}

/// Payload of `registration_token.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrationTokenRemove {
    pub registration_token: TokenHash,
}

impl Content for RegistrationTokenRemove {}

/// Payload of `user.password`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserPassword {
    pub user_id: OwnedUserId,
    /// Password hash in PHC form.
    pub password: Secret,
    /// Whether it is the same password under a stronger hash. (Not in version 1.)
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
    /// Tells the token from others. It grants no access by itself.
    pub nonce: String,
    /// When the token expires, in milliseconds since the Unix epoch. After that, its use need not
    /// be remembered.
    pub expires_ms: u64,
}

impl Content for LoginTokenUse {}

/// Payload of `sso.link`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SsoLink {
    pub user_id: OwnedUserId,
    /// The provider's id in the configuration.
    pub provider: String,
    /// The person's identifier at the provider, which never changes hands.
    pub subject: String,
}

impl Content for SsoLink {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `user.status`. Absent members leave their setting as it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserStatus {
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
    /// Whether nobody is told of what they do, without their knowing. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_banned: Option<bool>,
    /// Whether their registration, which waited for it, is approved; never false. (Not in
    /// version 1.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<bool>,
    /// The administrator's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The documents that the user has agreed to at the source of an import since the account was
    /// copied: each one's name and version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, String>,
}

impl UserStatus {
    /// One that changes nothing.
    pub const fn of(user_id: OwnedUserId) -> Self {
        Self {
            user_id,
            admin: None,
            locked: None,
            suspended: None,
            shadow_banned: None,
            approved: None,
            reason: None,
            terms: BTreeMap::new(),
        }
    }
}

impl Content for UserStatus {
    const ERASED: Erased =
        Erased::Members { emptied: &[], gone: &["reason", "terms"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `user.deactivate`. It removes the password; the devices were removed before, in the
/// same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserDeactivate {
    pub user_id: OwnedUserId,
    /// Whether the user's messages are hidden from users who join later, and profile and account
    /// data are erased.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erase: bool,
    /// With `erase`: whether the user's messages are erased for everybody. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub messages: bool,
    /// With `erase`: whether the user's uploads are removed. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub media: bool,
    /// The reason that the user or administrator gave.
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
    pub user_id: OwnedUserId,
    /// The `user.deactivate`.
    pub because: Offset,
    /// The records that contained the user's data: runs, each with its first and last offset, in
    /// ascending order.
    pub records: Vec<(Offset, Offset)>,
    /// Whether another one follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

impl Content for UserErase {}

/// Payload of `user.redact`. Redactions follow, each an event of its own, and then a
/// `user.redact_finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRedact {
    pub id: String,
    /// Who sent it: a user of any homeserver.
    pub user_id: OwnedUserId,
    /// In these rooms; none means in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rooms: Vec<OwnedRoomId>,
    /// This many of the latest events in each room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The times of the first and the last event, by their senders' clocks, in milliseconds since
    /// the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_ms: Option<u64>,
    /// In whose name, where they may. Otherwise it is done in the sender's, or in the name of
    /// another user of this homeserver who may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<OwnedUserId>,
    /// The reason that the rooms are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub say: Option<String>,
}

impl Content for UserRedact {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["say"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `user.redact_finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRedactFinish {
    /// That of the `user.redact`.
    pub id: String,
    pub user_id: OwnedUserId,
    pub redacted: u64,
    /// How many events could not be redacted.
    pub failures: u64,
    /// Some of them, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<OwnedEventId, String>,
}

impl Content for UserRedactFinish {}

/// Payload of `profile.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProfileSet {
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
    pub user_id: OwnedUserId,
    /// The room, for account data of a room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    #[serde(rename = "type")]
    pub event_type: String,
    /// The content: a JSON object, or `null` after a deletion.
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

/// A user's presence as others see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PresenceState {
    /// Not connected, or hidden.
    #[default]
    Offline,
    /// Connected, but idle.
    Unavailable,
    /// Connected.
    Online,
}

impl PresenceState {
    /// Its name in the content of presence events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Unavailable => "unavailable",
            Self::Online => "online",
        }
    }
}

/// Payload of `presence.set`. It supersedes earlier ones of the same user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceSet {
    pub user_id: OwnedUserId,
    /// The highest presence of the user's devices.
    pub presence: PresenceState,
    /// The status message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_msg: Option<String>,
    /// Whether the user was active within the last minute.
    pub currently_active: bool,
    /// When the user was last active, in milliseconds since the Unix epoch; 0 if unknown.
    pub last_active_ms: u64,
}

impl Content for PresenceSet {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}
