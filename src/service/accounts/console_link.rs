//! Links that log an administrator in to the console, once. They are signed and not stored; the log
//! records their use, as that of login tokens.

use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use crate::base::{
    clock::{millis, random_token},
    limits,
    signed::Signer,
};

const PURPOSE: &str = "console link";

/// What a link says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The administrator.
    pub(crate) user_id: OwnedUserId,
    /// Identifies the link.
    pub(crate) nonce: String,
    /// When it expires, in milliseconds since the Unix epoch.
    pub(crate) expires_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct Statement {
    #[serde(rename = "u")]
    user_id: OwnedUserId,
    #[serde(rename = "n")]
    nonce: String,
}

/// A new link for this user: the secret part of its address, and when it expires.
///
/// # Errors
/// When it cannot be written as JSON.
pub(crate) fn make(
    signer: &Signer,
    user_id: &UserId,
    now_ms: u64,
) -> Result<(String, u64), serde_json::Error> {
    let statement = Statement { user_id: user_id.to_owned(), nonce: random_token() };
    let expires_ms = now_ms.saturating_add(millis(limits::CONSOLE_LINK));
    Ok((signer.sign(PURPOSE, &statement, expires_ms)?, expires_ms))
}

/// What a link says, if this server made it and it has not expired. It may have been used.
pub(crate) fn open(signer: &Signer, text: &str, now_ms: u64) -> Option<Link> {
    let (Statement { user_id, nonce }, expires_ms) = signer.open(PURPOSE, text, now_ms)?;
    Some(Link { user_id, nonce, expires_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_for_one_user_and_for_minutes() {
        let (signer, other) = (Signer::new("a key"), Signer::new("another key"));
        let ann = ruma::user_id!("@ann:a.example");
        let (text, expires_ms) = make(&signer, ann, 1_000).expect("it is made");
        let link = open(&signer, &text, expires_ms - 1).expect("it is good");
        assert_eq!((&*link.user_id, link.expires_ms), (ann, expires_ms));
        assert_eq!(open(&signer, &text, expires_ms), None);
        assert_eq!(open(&other, &text, 1_000), None);
        assert_eq!(signer.open::<Statement>("login token", &text, 1_000).map(|_| ()), None);
        let (second, _) = make(&signer, ann, 1_000).expect("it is made");
        assert_ne!(open(&signer, &second, 1_000), Some(link));
    }
}
