//! Facts about accounts, their devices and their keys.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{Json, Secret};

/// An account of this server.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    pub user_id: String,
    /// Without it, nobody logs in by a password.
    pub password: Option<Password>,
    /// 0 if the source does not know it. Synapse counts in seconds.
    pub created_ms: i64,
    pub admin: bool,
    pub guest: bool,
    pub deactivated: bool,
    /// With `deactivated`: the data were to be erased, too.
    pub erased: bool,
    pub locked: bool,
    pub suspended: bool,
    /// What the user sends reaches nobody.
    pub shadow_banned: bool,
    /// `false` if an administrator has not yet let the account in.
    pub approved: bool,
    /// What the source calls the kind of account: `support` or `bot`.
    pub user_type: Option<String>,
    /// The version of the terms that the user agreed to.
    pub consent_version: Option<String>,
    pub consent_ms: Option<i64>,
    /// The application service that made the account.
    pub app_service: Option<String>,
}

impl Account {
    /// Whether the user is shadow-banned here, where an administrator cannot be.
    pub(crate) const fn is_shadow_banned(&self) -> bool {
        self.shadow_banned && !self.admin
    }
}

/// How a source stores what proves a password.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Password {
    /// `$2b$…`, over the text with the pepper after it, of which 72 bytes count.
    Bcrypt { hash: Secret, preparation: Preparation, peppered: bool },
    /// A PHC string `$argon2id$…`, over the text. The pepper is the secret of Argon2.
    Argon2id { hash: Secret, preparation: Preparation, peppered: bool },
    /// A PHC string `$pbkdf2-…`, over the text with the pepper after it.
    Pbkdf2 { hash: Secret, preparation: Preparation, peppered: bool },
}

/// What happens to a password's text before it is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Preparation {
    Nothing,
    Nfkc,
}

/// A field of a user's profile.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    pub user_id: String,
    /// `displayname`, `avatar_url`, or the name of another field.
    pub field: String,
    pub value: serde_json::Value,
}

/// An address by which a user is found, and logs in.
#[derive(Clone, Debug, Serialize)]
pub struct Threepid {
    pub user_id: String,
    /// `email` or `msisdn`.
    pub medium: String,
    pub address: String,
    pub validated_ms: i64,
    pub added_ms: i64,
}

/// An identity server that publishes an address of a user.
#[derive(Clone, Debug, Serialize)]
pub struct ThreepidBinding {
    pub user_id: String,
    pub medium: String,
    pub address: String,
    pub id_server: String,
}

/// Who a user is at a provider of identities.
#[derive(Clone, Debug, Serialize)]
pub struct ExternalId {
    pub user_id: String,
    /// As the source calls it: `oidc-google`, `saml`.
    pub provider: String,
    pub subject: String,
}

/// A device that a person logged in by, or an application service.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    pub user_id: String,
    pub device_id: String,
    pub display_name: Option<String>,
    pub seen_ms: Option<i64>,
    pub address: Option<String>,
    pub agent: Option<String>,
}

/// A token as a source keeps it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Token {
    Plain(Secret),
    /// Its SHA-256.
    Hashed([u8; 32]),
}

impl Token {
    pub(crate) fn sha256(&self) -> [u8; 32] {
        match self {
            Self::Plain(text) => Sha256::digest(text.expose().as_bytes()).into(),
            Self::Hashed(hash) => *hash,
        }
    }
}

/// Text that lets its bearer act as the user.
#[derive(Clone, Debug, Serialize)]
pub struct AccessToken {
    pub user_id: String,
    /// Without it the token is of no device: of a grant without one, or one that an administrator
    /// took to act as the user.
    pub device_id: Option<String>,
    /// The [`OauthGrant`](super::OauthGrant) that it is of.
    pub grant_id: Option<String>,
    pub token: Token,
    /// Without it, it does not expire.
    pub valid_until_ms: Option<i64>,
    /// The user who acts by it as `user_id`.
    pub puppet_of: Option<String>,
    pub used_ms: Option<i64>,
    /// When it was used last, if the source still knows.
    pub seen_ms: Option<i64>,
    /// Whether it was used: it ends the tokens that it replaced.
    pub used: bool,
    /// The [`RefreshToken::id`] that came with it.
    pub refresh: Option<i64>,
}

/// Text that is exchanged for new tokens.
#[derive(Clone, Debug, Serialize)]
pub struct RefreshToken {
    /// Greater than that of an earlier one of the same device or grant.
    pub id: i64,
    pub user_id: String,
    /// Without it the token is of a grant without a device.
    pub device_id: Option<String>,
    /// The [`OauthGrant`](super::OauthGrant) that it is of.
    pub grant_id: Option<String>,
    pub token: Token,
    /// The [`RefreshToken::id`] for which it was exchanged. It is valid until that one is used.
    pub next: Option<i64>,
    pub expires_ms: Option<i64>,
    /// When the whole session ends, however often it is refreshed.
    pub session_ends_ms: Option<i64>,
    /// When it began, if it ends.
    pub session_began_ms: Option<i64>,
}

/// The keys of a device, as it signed them, of a user of this server or of another.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceKeys {
    pub user_id: String,
    pub device_id: String,
    /// Of another server's user: what that server told of the device, with `keys` in it.
    pub keys: Json,
    pub uploaded_ms: Option<i64>,
}

/// A key that is given away once, and was not yet.
#[derive(Clone, Debug, Serialize)]
pub struct OneTimeKey {
    pub user_id: String,
    pub device_id: String,
    /// With the algorithm: `signed_curve25519:AAAAHg`.
    pub key_id: String,
    pub key: Json,
    pub uploaded_ms: Option<i64>,
}

/// A key that is given away when there is no other.
#[derive(Clone, Debug, Serialize)]
pub struct FallbackKey {
    pub user_id: String,
    pub device_id: String,
    /// With the algorithm.
    pub key_id: String,
    pub key: Json,
    /// Whether it was given away.
    pub used: bool,
}

/// What a cross-signing key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyUse {
    Master,
    SelfSigning,
    UserSigning,
}

/// The newest key of a user for one use.
#[derive(Clone, Debug, Serialize)]
pub struct CrossSigningKey {
    pub user_id: String,
    pub key_use: KeyUse,
    pub key: Json,
    /// Until then a client that logs in elsewhere may replace it without a further proof.
    pub replaceable_until_ms: Option<i64>,
}

/// A signature that was added to a key after its upload.
#[derive(Clone, Debug, Serialize)]
pub struct KeySignature {
    /// Who signed.
    pub user_id: String,
    /// The key that signed, with the algorithm.
    pub key_id: String,
    pub target_user_id: String,
    /// A device id, or the public part of a cross-signing key.
    pub target_device_id: String,
    pub signature: String,
}

/// A device without a login, which gathers messages for the next one.
#[derive(Clone, Debug, Serialize)]
pub struct DehydratedDevice {
    pub user_id: String,
    /// Its name is in [`Device`], its public keys in [`DeviceKeys`].
    pub device_id: String,
    pub data: Json,
}

/// A version of a backup of room keys.
#[derive(Clone, Debug, Serialize)]
pub struct KeyBackup {
    pub user_id: String,
    pub version: i64,
    pub algorithm: String,
    pub auth_data: Json,
    pub deleted: bool,
    /// Changes with each change of a key in it.
    pub etag: Option<i64>,
}

/// A key in a backup.
#[derive(Clone, Debug, Serialize)]
pub struct BackedUpKey {
    pub user_id: String,
    pub version: i64,
    pub room_id: String,
    pub session_id: String,
    pub first_message_index: Option<i64>,
    pub forwarded_count: Option<i64>,
    pub is_verified: bool,
    pub session_data: Json,
}

/// Up to which number of its server the list of a user's devices is known.
#[derive(Clone, Debug, Serialize)]
pub struct PeerDeviceList {
    pub user_id: String,
    pub stream_id: String,
    /// Whether it is known to be out of date.
    pub stale: bool,
}

/// A message to one device, which it has not taken yet.
#[derive(Clone, Debug, Serialize)]
pub struct ToDevice {
    pub user_id: String,
    pub device_id: String,
    /// Its place among all of them.
    pub stream: i64,
    /// An object with `sender`, `type` and `content`.
    pub message: Json,
}

/// Messages to devices of another server's users, which that server has not taken yet.
#[derive(Clone, Debug, Serialize)]
pub struct ToPeerDevice {
    pub server_name: String,
    pub stream: i64,
    pub queued_ms: i64,
    /// The content of an `m.direct_to_device`, with `sender`, `type`, `message_id` and `messages`.
    pub messages: Json,
}
