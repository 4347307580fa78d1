//! What the log holds of third-party identifiers: e-mail addresses and phone numbers, whose they
//! are, how they were shown to be, and where they were published.

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

/// What kind of identifier it is (appendices, "3PID Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// An e-mail address.
    Email,
    /// A phone number.
    Msisdn,
}

impl Medium {
    /// The word for it in requests and responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Msisdn => "msisdn",
        }
    }
}

/// A third-party identifier. One that a client names becomes this in [`crate::record::address`],
/// which has the rules of the canonical forms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Threepid {
    /// What kind it is.
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

/// What an identifier is validated for. What was validated for one thing is good for no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// To register an account with it.
    Register,
    /// To prove, as its owner, that an account is one's own: for a new password, for example.
    Account,
    /// To add it to an account.
    Add,
}

/// Payload of `validation.request`. One of a `sid` that is there already takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationRequest {
    /// The id given out for it.
    pub sid: String,
    /// What for.
    pub purpose: Purpose,
    /// What is to be validated.
    pub threepid: Threepid,
    /// The hash of the client's secret.
    pub client_secret: TokenHash,
    /// The hash of the client's secret, a line feed, and the token that is sent. None when there is
    /// nothing to validate: the message then says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenHash>,
    /// The client's count of the messages that it asked for.
    pub send_attempt: u64,
    /// When it ends, in milliseconds since the Unix epoch.
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
    /// Which.
    pub sid: String,
    /// Which of the client's requests.
    pub send_attempt: u64,
}

impl Content for ValidationSent {}

/// Payload of `validation.miss`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationMiss {
    /// Which.
    pub sid: String,
}

impl Content for ValidationMiss {}

/// Payload of `validation.complete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationComplete {
    /// Which.
    pub sid: String,
    /// When, in milliseconds since the Unix epoch.
    pub validated_ms: u64,
}

impl Content for ValidationComplete {}

/// Payload of `validation.use`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationUse {
    /// Which.
    pub sid: String,
}

impl Content for ValidationUse {}

/// Payload of `threepid.add`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreepidAdd {
    /// Whose it is from now on.
    pub user_id: OwnedUserId,
    /// Which.
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
    /// Whose it was.
    pub user_id: OwnedUserId,
    /// Which.
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
    /// To whom it was bound.
    pub user_id: OwnedUserId,
    /// Which.
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
    /// To whom it was bound.
    pub user_id: OwnedUserId,
    /// Which.
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
