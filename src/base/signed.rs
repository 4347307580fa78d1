//! Statements that the server hands out and later verifies, if they are unaltered and have not
//! expired, without storing anything: login tokens, for example, and the state of a login in a
//! browser. Also secrets and short MACs that are derived from the same key.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::Sha256;

/// How many bytes of a MAC are kept where the whole one would be too long. 128 bits cannot be
/// guessed.
const MAC_BYTES: usize = 16;

/// A key of the server, from which one key for each purpose is derived. A statement for one purpose
/// is invalid for another. Use a purpose with only one of `sign`, `secret` and `mac`: for the same
/// text, a MAC is the first half of the secret.
#[derive(Clone)]
pub struct Signer(Hmac<Sha256>);

/// A statement and its expiry.
#[derive(Serialize, Deserialize)]
struct Dated<T> {
    #[serde(rename = "s")]
    statement: T,
    #[serde(rename = "e")]
    expires_ms: u64,
}

impl Signer {
    pub fn new(key: &str) -> Self {
        Self(hmac(key.as_bytes()))
    }

    /// A secret of 256 bits for this purpose and `name`, the same on every call, in URL-safe
    /// base64.
    pub fn secret(&self, purpose: &str, name: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.for_purpose(purpose).chain_update(name).finalize().into_bytes())
    }

    /// Signs a statement for this purpose, as URL-safe text that anyone can read. It expires at
    /// `expires_ms`, in milliseconds since the Unix epoch.
    pub fn sign<T: Serialize>(
        &self,
        purpose: &str,
        statement: &T,
        expires_ms: u64,
    ) -> Result<String, serde_json::Error> {
        let text = serde_json::to_vec(&Dated { statement, expires_ms })?;
        let mac = self.for_purpose(purpose).chain_update(&text).finalize().into_bytes();
        Ok(format!("{}.{}", URL_SAFE_NO_PAD.encode(text), URL_SAFE_NO_PAD.encode(mac)))
    }

    /// The statement and expiry in a text that [`sign`](Self::sign) returned for the same purpose;
    /// `None` for any other text and for one that has expired.
    pub fn open<T: DeserializeOwned>(
        &self,
        purpose: &str,
        signed: &str,
        now_ms: u64,
    ) -> Option<(T, u64)> {
        let (text, mac) = signed.split_once('.')?;
        let text = URL_SAFE_NO_PAD.decode(text).ok()?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        self.for_purpose(purpose).chain_update(&text).verify_slice(&mac).ok()?;
        let Dated { statement, expires_ms } = serde_json::from_slice(&text).ok()?;
        (now_ms < expires_ms).then_some((statement, expires_ms))
    }

    /// A MAC of `text` for this purpose, short enough for a token in a URL: 128 bits in URL-safe
    /// base64.
    pub fn mac(&self, purpose: &str, text: &str) -> String {
        let mac = self.for_purpose(purpose).chain_update(text).finalize().into_bytes();
        URL_SAFE_NO_PAD.encode(&mac[..MAC_BYTES])
    }

    /// Whether `mac` is the result of [`mac`](Self::mac) for the same purpose and text.
    pub fn is_mac(&self, purpose: &str, text: &str, mac: &str) -> bool {
        let mac = URL_SAFE_NO_PAD.decode(mac).unwrap_or_default();
        mac.len() == MAC_BYTES
            && self.for_purpose(purpose).chain_update(text).verify_truncated_left(&mac).is_ok()
    }

    fn for_purpose(&self, purpose: &str) -> Hmac<Sha256> {
        let key = self.0.clone().chain_update("logcabin signed statements: ").chain_update(purpose);
        hmac(&key.finalize().into_bytes())
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signed(words: &str) -> (Signer, String) {
        let signer = Signer::new("a key");
        let text = signer.sign("tests", &words, 1000).unwrap();
        (signer, text)
    }

    #[test]
    fn a_statement_is_recognised_until_it_expires() {
        let (signer, text) = signed("I said so");
        assert_eq!(signer.open("tests", &text, 999), Some(("I said so".to_owned(), 1000)));
        assert_eq!(signer.open::<String>("tests", &text, 1000), None);
    }

    #[test]
    fn a_statement_is_invalid_for_another_purpose_or_server() {
        let (signer, text) = signed("I said so");
        assert_eq!(signer.open::<String>("test", &text, 0), None);
        assert_eq!(Signer::new("b key").open::<String>("tests", &text, 0), None);
        assert_ne!(signer.secret("tests", "a"), signer.secret("tests", "b"));
        assert_ne!(signer.secret("tests", "a"), signer.secret("test", "sa"));
    }

    #[test]
    fn a_mac_matches_only_its_purpose_and_text() {
        let (signer, _) = signed("");
        let mac = signer.mac("tests", "text");
        assert!(signer.is_mac("tests", "text", &mac));
        for (purpose, text) in [("test", "stext"), ("tests", "texts"), ("other", "text")] {
            assert!(!signer.is_mac(purpose, text, &mac), "{purpose} {text}");
        }
        assert!(!Signer::new("b key").is_mac("tests", "text", &mac));
        for bad in ["", "A", &mac[..mac.len() - 2], &format!("{mac}AA")] {
            assert!(!signer.is_mac("tests", "text", bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn altered_statements_are_refused(
            words in ".{0,40}", at in any::<prop::sample::Index>(), byte in any::<u8>(), how in 0..3,
        ) {
            let (signer, text) = signed(&words);
            let mut changed = text.clone().into_bytes();
            let at = at.index(changed.len());
            match how {
                0 => changed[at] = byte,
                1 => { changed.remove(at); }
                _ => changed.insert(at, byte),
            }
            if let Ok(changed) = String::from_utf8(changed)
                && changed != text
            {
                prop_assert_eq!(signer.open::<String>("tests", &changed, 0), None);
            }
        }
    }
}
