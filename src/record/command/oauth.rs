//! Commands of OAuth 2.0: clients, what they were granted, and the browsers in which users are
//! signed in at this server's pages.

use std::net::IpAddr;

use ruma::{OwnedDeviceId, OwnedUserId};
use serde::{Deserialize, Serialize};

use super::{Content, Erased, device::Tokens, values::TokenHash};
use crate::{Holds, client::ClientMetadata};

/// Payload of `oauth.client`. It replaces an earlier one with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthClient {
    /// The client's id. That of a client without a secret is a hash of its metadata.
    pub client_id: String,
    /// The hash of its secret, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<TokenHash>,
    /// Its metadata, as registered.
    pub metadata: ClientMetadata,
}

impl Content for OauthClient {
    const ERASED: Erased = Erased::All;
}

/// Payload of `oauth.client_remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthClientRemove {
    /// The clients. None of them has a grant.
    pub clients: Vec<String>,
}

impl Content for OauthClientRemove {}

/// Payload of `oauth.code`: a user allowed a client what it asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthCode {
    pub user_id: OwnedUserId,
    pub client_id: String,
    /// What it was allowed.
    pub scope: String,
    pub code: TokenHash,
    /// The address to which the code was sent.
    pub redirect_uri: String,
    /// SHA-256 of the verifier that must come with the code, in URL-safe base64 (RFC 7636).
    pub code_challenge: String,
    /// The client's nonce for the ID token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// When the user last authenticated, in milliseconds since the Unix epoch.
    pub auth_ms: u64,
    /// When the code expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

impl Content for OauthCode {}

/// Payload of `oauth.device_request`: a client without a browser asks to be allowed something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthDeviceRequest {
    /// The hash of the code that the client polls with.
    pub device_code: TokenHash,
    /// The hash of the code that the user types.
    pub user_code: TokenHash,
    pub client_id: String,
    /// What it asks for.
    pub scope: String,
    /// When both codes expire, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

impl Content for OauthDeviceRequest {
    const ERASED: Erased = Erased::All;
}

/// Payload of `oauth.device_answer`: a user allowed or denied what a client asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthDeviceAnswer {
    pub user_id: OwnedUserId,
    /// The hash of the code that the client polls with.
    pub device_code: TokenHash,
    /// Whether they allowed it.
    pub allowed: bool,
    /// When the user last authenticated, in milliseconds since the Unix epoch.
    pub auth_ms: u64,
}

impl Content for OauthDeviceAnswer {}

/// Payload of `oauth.grant`: a client exchanged a code for tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthGrant {
    pub grant_id: String,
    pub user_id: OwnedUserId,
    pub client_id: String,
    /// What it may do.
    pub scope: String,
    /// The device that it logs in. Its `device.login` precedes this record in the same batch and
    /// has the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<OwnedDeviceId>,
    /// The tokens, if there is no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// The hash of the code: that of an `oauth.code`, or the `device_code` of an
    /// `oauth.device_request`. It is used up.
    pub code: TokenHash,
    /// When the user last authenticated, in milliseconds since the Unix epoch.
    pub auth_ms: u64,
}

impl Content for OauthGrant {}

/// Payload of `oauth.refresh`: a grant without a device got new tokens. Those before them stay
/// valid until one of these is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthRefresh {
    pub grant_id: String,
    pub tokens: Tokens,
}

impl Content for OauthRefresh {}

/// Payload of `oauth.confirm`: the newest tokens of a grant without a device were used for the
/// first time, which revokes the ones before them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthConfirm {
    pub grant_id: String,
}

impl Content for OauthConfirm {}

/// Why a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantEnd {
    /// Its tokens were revoked, by the client or by the holder of one of them.
    Revoked,
    /// Its code was used a second time.
    CodeReused,
    /// A refresh token was used after the one that followed it.
    RefreshReused,
    /// The user ended it on the page of their account.
    ByUser,
    /// The user was logged out everywhere.
    LoggedOut,
}

/// Payload of `oauth.end`: grants ended. Their devices are removed by a `device.remove` in the same
/// batch. (A grant also ends with its device, and with the user's account.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthEnd {
    pub user_id: OwnedUserId,
    pub grants: Vec<String>,
    pub because: GrantEnd,
}

impl Content for OauthEnd {}

/// Payload of `oauth.key`: a key for ID tokens. Its private part is in no log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OauthKey {
    /// The key's id.
    pub kid: String,
    /// The modulus of the RSA key, in URL-safe base64.
    pub n: String,
    /// Its exponent, in URL-safe base64.
    pub e: String,
    /// Until when it is published, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

impl Content for OauthKey {}

/// How a user authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignedInBy {
    Password,
    /// At a provider of single sign-on: its id in the configuration.
    Sso(String),
    /// By creating the account.
    Registration,
}

/// Payload of `browser.sign_in`: a user signed in at this server's pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrowserSignIn {
    pub user_id: OwnedUserId,
    /// The hash of the browser's cookie.
    pub browser: TokenHash,
    pub by: SignedInBy,
    /// When they must sign in again, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// From where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// What the browser calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

impl Content for BrowserSignIn {
    const ERASED: Erased =
        Erased::Members { emptied: &[], gone: &["address", "agent"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `browser.sign_out`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrowserSignOut {
    pub user_id: OwnedUserId,
    /// The hashes of the browsers' cookies.
    pub browsers: Vec<TokenHash>,
}

impl Content for BrowserSignOut {}
