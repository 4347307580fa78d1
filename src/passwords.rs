//! Passwords: PBKDF2-HMAC-SHA-512 with a salt for each, off the async threads and bounded in number.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use subtle::ConstantTimeEq as _;
use tokio::sync::Semaphore;

use crate::{clock::random_bytes, record::command::Secret};

/// The hash's length. SHA-512 gives 64 bytes; half of it is beyond any search already.
const HASH_BYTES: usize = 32;
/// The salt's length, as NIST SP 800-132 advises at least.
const SALT_BYTES: usize = 16;
/// The most iterations that a stored hash may ask for: the bound of the setting.
const MAX_ITERATIONS: u32 = 10_000_000;
/// What a hash begins with.
const SCHEME: &str = "$pbkdf2-sha512$i=";

/// Makes and checks password hashes.
#[derive(Clone, Debug)]
pub(crate) struct Passwords {
    iterations: u32,
    slots: Arc<Semaphore>,
}

impl Passwords {
    /// Hashes with this many iterations, this many at once.
    pub(crate) fn new(iterations: u32, concurrent: usize) -> Self {
        Self { iterations, slots: Arc::new(Semaphore::new(concurrent)) }
    }

    /// The hash of `password` with a new salt, in the form that is stored:
    /// `$pbkdf2-sha512$i=<iterations>$<salt>$<hash>`.
    pub(crate) async fn hash(&self, password: String) -> Option<Secret> {
        let iterations = self.iterations;
        self.compute(move || {
            let salt = random_bytes::<SALT_BYTES>();
            let hash = derive(&password, &salt, iterations);
            let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
            format!("{SCHEME}{iterations}${salt}${hash}").into()
        })
        .await
    }

    /// Whether `password` is the one that `stored` is the hash of. Takes as long when there is no
    /// hash, so that the time does not tell whether an account exists.
    pub(crate) async fn verify(&self, password: String, stored: Option<Secret>) -> bool {
        let iterations = self.iterations;
        self.compute(move || {
            let stored = stored.as_ref().and_then(|stored| parse(stored.expose()));
            let (iterations, salt, expected) =
                stored.clone().unwrap_or_else(|| (iterations, vec![0; SALT_BYTES], Vec::new()));
            let hash = derive(&password, &salt, iterations);
            stored.is_some() && bool::from(hash.ct_eq(&expected))
        })
        .await
        .unwrap_or(false)
    }

    /// Runs `work` on a blocking thread once there is a slot. `None` when the server goes down.
    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
        tokio::task::spawn_blocking(move || {
            // Held by the work itself: a client that hangs up frees no slot while it is computed.
            let _slot = slot;
            work()
        })
        .await
        .ok()
    }
}

fn derive(password: &str, salt: &[u8], iterations: u32) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    pbkdf2::pbkdf2_hmac::<sha2::Sha512>(password.as_bytes(), salt, iterations, &mut hash);
    hash
}

fn parse(stored: &str) -> Option<(u32, Vec<u8>, Vec<u8>)> {
    let mut parts = stored.strip_prefix(SCHEME)?.split('$');
    let iterations = parts.next()?.parse().ok().filter(|i| (1..=MAX_ITERATIONS).contains(i))?;
    let salt = STANDARD_NO_PAD.decode(parts.next()?).ok()?;
    let hash = STANDARD_NO_PAD.decode(parts.next()?).ok().filter(|h| h.len() == HASH_BYTES)?;
    parts.next().is_none().then_some((iterations, salt, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passwords() -> Passwords {
        Passwords::new(1000, 2)
    }

    #[tokio::test]
    async fn a_password_matches_its_own_hash_alone() {
        let passwords = passwords();
        let hash = passwords.hash("correct horse".to_owned()).await.unwrap();
        assert!(hash.expose().starts_with("$pbkdf2-sha512$i=1000$"));
        assert!(!hash.expose().contains("horse"));
        assert_eq!(format!("{hash:?}"), "(secret)");
        assert!(passwords.verify("correct horse".to_owned(), Some(hash.clone())).await);
        assert!(!passwords.verify("wrong horse".to_owned(), Some(hash.clone())).await);
        assert_ne!(passwords.hash("correct horse".to_owned()).await.unwrap(), hash);
    }

    #[tokio::test]
    async fn nothing_matches_no_hash_or_a_broken_one() {
        for stored in [None, Some(""), Some("$pbkdf2-sha512$i=0$AA$AA"), Some("$argon2$x")] {
            assert!(!passwords().verify(String::new(), stored.map(Secret::from)).await);
        }
    }

    #[test]
    fn the_derivation_is_the_standard_one() {
        // PBKDF2-HMAC-SHA-512, "password", "salt", 4096 iterations: a published test vector.
        let hash = derive("password", b"salt", 4096);
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "d197b1b33db0143e018b12f3d1d1479e6cdebdcc97c5c0f87f6902e072f457b5");
    }
}
