//! The third-party identifiers in the log: e-mail addresses and phone numbers, their owners, their
//! validations, and where they were published.

use std::fmt;

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use super::{
    Holds,
    command::{
        kind::{Content, Erased},
        values::TokenHash,
    },
};

/// The medium of an identifier (appendices, "3PID Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// An e-mail address.
    Email,
    /// A phone number.
    Msisdn,
}

impl Medium {
    /// Its name in requests and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Msisdn => "msisdn",
        }
    }
}

/// A third-party identifier. [`crate::address`] parses what clients write, and has the
/// rules of the canonical forms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Threepid {
    pub medium: Medium,
    /// The address in its canonical form.
    pub address: String,
}

impl fmt::Display for Threepid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.medium {
            Medium::Email => f.write_str(&self.address),
            Medium::Msisdn => write!(f, "+{}", self.address),
        }
    }
}

/// The purpose of a validation. A validation for one purpose is not valid for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// To register an account with it.
    Register,
    /// To prove ownership of an account: for a new password, for example.
    Account,
    /// To add it to an account.
    Add,
}

/// Payload of `validation.request`. It replaces an earlier one with the same `sid`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationRequest {
    /// The id of the validation session.
    pub sid: String,
    pub purpose: Purpose,
    /// The identifier to validate.
    pub threepid: Threepid,
    pub client_secret: TokenHash,
    /// The hash of the client's secret, a line feed, and the token in the message. None if there is
    /// nothing to validate: then the message says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenHash>,
    /// The client's count of its requests for messages.
    pub send_attempt: u64,
    /// When the session expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

impl Content for ValidationRequest {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Address(&self.threepid)
    }
}

/// Payload of `validation.sent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationSent {
    /// The validation session.
    pub sid: String,
    /// The client's count of its requests for messages.
    pub send_attempt: u64,
}

impl Content for ValidationSent {}

/// Payload of `validation.miss`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationMiss {
    /// The validation session.
    pub sid: String,
}

impl Content for ValidationMiss {}

/// Payload of `validation.complete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationComplete {
    /// The validation session.
    pub sid: String,
    /// When it was validated, in milliseconds since the Unix epoch.
    pub validated_ms: u64,
}

impl Content for ValidationComplete {}

/// Payload of `validation.use`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationUse {
    /// The validation session.
    pub sid: String,
}

impl Content for ValidationUse {}

/// Payload of `threepid.add`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreepidAdd {
    /// The new owner.
    pub user_id: OwnedUserId,
    pub threepid: Threepid,
    /// When it was validated, in milliseconds since the Unix epoch.
    pub validated_ms: u64,
    /// When it was added, in milliseconds since the Unix epoch.
    pub added_ms: u64,
}

impl Content for ThreepidAdd {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `threepid.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreepidRemove {
    /// The former owner.
    pub user_id: OwnedUserId,
    pub threepid: Threepid,
}

impl Content for ThreepidRemove {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `threepid.bind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreepidBind {
    pub user_id: OwnedUserId,
    pub threepid: Threepid,
    /// The identity server, as the client named it.
    pub id_server: String,
}

impl Content for ThreepidBind {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `threepid.unbind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreepidUnbind {
    pub user_id: OwnedUserId,
    pub threepid: Threepid,
    /// The identity server.
    pub id_server: String,
}

impl Content for ThreepidUnbind {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}
