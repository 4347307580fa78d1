//! What logs a user in once: login tokens (client-server API, "Token-based") and links to the
//! console. They are signed and not stored; the log records their use.

use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use logcabin_base::{clock::random_token, signed::Signer};

/// What a login is for. What was made for one purpose is nothing for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For a client.
    Login,
    Console,
}

impl Purpose {
    const fn name(self) -> &'static str {
        match self {
            Self::Login => "login token",
            Self::Console => "console link",
        }
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginToken {
    /// The user that it logs in.
    pub user_id: OwnedUserId,
    /// Identifies the token.
    pub nonce: String,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct Statement {
    #[serde(rename = "u")]
    user_id: OwnedUserId,
    #[serde(rename = "n")]
    nonce: String,
}

/// A new token that logs this user in until it expires.
pub fn make(
    signer: &Signer,
    purpose: Purpose,
    user_id: &UserId,
    expires_ms: u64,
) -> Result<String, serde_json::Error> {
    let statement = Statement { user_id: user_id.to_owned(), nonce: random_token() };
    signer.sign(purpose.name(), &statement, expires_ms)
}

/// What a token says, if this server made it for this purpose and it has not expired. It may have
/// been used.
pub fn open(signer: &Signer, purpose: Purpose, token: &str, now_ms: u64) -> Option<LoginToken> {
    let (Statement { user_id, nonce }, expires_ms) = signer.open(purpose.name(), token, now_ms)?;
    Some(LoginToken { user_id, nonce, expires_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_one_user_one_purpose_and_a_while() {
        let (signer, other) = (Signer::new("a key"), Signer::new("another key"));
        let ann = ruma::user_id!("@ann:a.example");
        let (purpose, expires_ms) = (Purpose::Console, 2_000);
        let text = make(&signer, purpose, ann, expires_ms).expect("it is made");
        let link = open(&signer, purpose, &text, expires_ms - 1).expect("it is good");
        assert_eq!((&*link.user_id, link.expires_ms), (ann, expires_ms));
        assert_eq!(open(&signer, purpose, &text, expires_ms), None);
        assert_eq!(open(&other, purpose, &text, 1_000), None);
        assert_eq!(open(&signer, Purpose::Login, &text, 1_000), None);
        let second = make(&signer, purpose, ann, expires_ms).expect("it is made");
        assert_ne!(open(&signer, purpose, &second, 1_000), Some(link));
    }
}
