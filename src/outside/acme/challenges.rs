//! What an authority asks for to learn that a name is this server's.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::{pki_types::PrivatePkcs8KeyDer, sign::CertifiedKey};

use super::AcmeError;

/// The protocol by which an authority asks for a certificate (RFC 8737, section 6.2).
pub const ACME_TLS: &[u8] = b"acme-tls/1";

/// The answers to the challenges of the open order.
#[derive(Debug, Default)]
pub struct Challenges(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    /// By the token in the path.
    http: HashMap<String, String>,
    /// By the name.
    tls: HashMap<String, Arc<CertifiedKey>>,
}

impl Challenges {
    /// The answer at `/.well-known/acme-challenge/TOKEN`.
    pub fn http(&self, token: &str) -> Option<String> {
        self.0.lock().http.get(token).cloned()
    }

    /// The certificate for who asks for this name by [`ACME_TLS`].
    pub fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.0.lock().tls.get(&name.to_ascii_lowercase()).cloned()
    }

    pub(super) fn answer_http(&self, token: String, answer: String) {
        self.0.lock().http.insert(token, answer);
    }

    /// `digest` is that of the key authorization, 32 bytes.
    pub(super) fn answer_tls(&self, name: &str, digest: &[u8]) -> Result<(), AcmeError> {
        let certified = certificate(name, digest).map_err(AcmeError::Making)?;
        self.0.lock().tls.insert(name.to_ascii_lowercase(), Arc::new(certified));
        Ok(())
    }

    pub(super) fn clear(&self) {
        *self.0.lock() = Answers::default();
    }
}

/// A certificate that shows the digest (RFC 8737, section 3).
fn certificate(name: &str, digest: &[u8]) -> Result<CertifiedKey, String> {
    if digest.len() != 32 {
        return Err("the digest is not one of SHA-256".to_owned());
    }
    let text = |error: rcgen::Error| error.to_string();
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(text)?;
    params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    let key = KeyPair::generate().map_err(text)?;
    let made = params.self_signed(&key).map_err(text)?;
    let private = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let private = rustls::crypto::ring::sign::any_supported_type(&private)
        .map_err(|error| error.to_string())?;
    Ok(CertifiedKey::new(vec![made.der().clone()], private))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_answered_until_its_order_is_over() {
        let challenges = Challenges::default();
        challenges.answer_http("token".to_owned(), "token.print".to_owned());
        challenges.answer_tls("Example.org", &[7; 32]).unwrap();
        assert_eq!(challenges.http("token").as_deref(), Some("token.print"));
        assert_eq!(challenges.http("other"), None);
        let certified = challenges.certificate("example.ORG").unwrap();
        // id-pe-acmeIdentifier, critical, with the digest in an octet string.
        let extension =
            [&[0x06, 8, 0x2b, 6, 1, 5, 5, 7, 1, 31, 1, 1, 0xff, 4, 34, 4, 32][..], &[7; 32]];
        let extension = extension.concat();
        let der = certified.cert[0].as_ref();
        assert!(der.windows(extension.len()).any(|part| part == extension));
        assert!(challenges.certificate("other.org").is_none());
        assert!(challenges.answer_tls("example.org", b"short").is_err());
        challenges.clear();
        assert_eq!(challenges.http("token"), None);
        assert!(challenges.certificate("example.org").is_none());
    }
}
