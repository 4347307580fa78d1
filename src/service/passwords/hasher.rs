//! PBKDF2-HMAC-SHA-512 with a salt for each password, on a few threads of its own with a short
//! queue. Hashes of other servers are checked there, too, and replaced ([`super::imported`]).

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;
use tokio::sync::oneshot;

use super::{
    Denied, Verdict,
    imported::{ImportedHash, Peppers, is_usable},
};
use logcabin_base::{background, clock::random_bytes, limits};
use logcabin_record::command::Secret;

/// The hash's length. SHA-512 gives 64 bytes; half of them are out of reach of any search.
const HASH_BYTES: usize = 32;
/// The salt's length, the minimum of NIST SP 800-132.
const SALT_BYTES: usize = 16;
/// The most iterations that a stored hash may demand: the maximum of the setting.
const MAX_ITERATIONS: u32 = 10_000_000;
/// The prefix of a hash.
const SCHEME: &str = "$pbkdf2-sha512$i=";
/// When to retry if the queue is full.
const BUSY: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// Computes hashes.
pub(super) struct Hasher {
    iterations: u32,
    /// The secret in hashes of other servers, if there is one.
    peppers: Option<Arc<Peppers>>,
    jobs: SyncSender<Job>,
    computed: Arc<AtomicU64>,
    /// Whether a hash needed a pepper, and there was none: it is logged once.
    lacks_pepper: AtomicBool,
}

impl Hasher {
    /// Computes this many hashes at once, with this many iterations each.
    pub(super) fn new(iterations: u32, concurrent: usize, peppers: Option<Peppers>) -> Self {
        let concurrent = concurrent.max(1);
        let (jobs, queue) = sync_channel(concurrent.saturating_mul(limits::HASHES_WAITING));
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..concurrent {
            let queue = Arc::clone(&queue);
            let thread = std::thread::Builder::new().name(format!("passwords-{number}"));
            if let Err(error) = thread.spawn(move || work(&queue)) {
                tracing::error!(%error, "a thread for passwords could not be started");
            }
        }
        Self {
            iterations,
            peppers: peppers.map(Arc::new),
            jobs,
            computed: Arc::default(),
            lacks_pepper: AtomicBool::default(),
        }
    }

    /// The hash of `password` with a new salt.
    pub(super) async fn hash(&self, password: String) -> Result<Secret, Denied> {
        let iterations = self.iterations;
        self.compute(move |counter| new_hash(&password, iterations, counter)).await
    }

    /// Whether `password` is the one that `stored` is the hash of.
    pub(super) async fn verify(
        &self,
        password: String,
        stored: Option<Secret>,
    ) -> Result<Verdict, Denied> {
        let wanted = self.iterations;
        let is_imported = stored.as_ref().is_some_and(|stored| is_usable(stored.expose()));
        let most = match is_imported {
            true => limits::IMPORTED_PASSWORD_BYTES,
            false => limits::PASSWORD_BYTES,
        };
        // Longer than any password that was ever accepted.
        if password.len() > most {
            return Ok(Verdict::Wrong);
        }
        let peppers = self.peppers.clone();
        let checked = self.compute(move |counter| {
            let imported = stored.as_ref().and_then(|stored| ImportedHash::parse(stored.expose()));
            if let Some(imported) = imported {
                counter.fetch_add(1, Ordering::Relaxed);
                if !imported.is_of(&password, peppers.as_deref())? {
                    return Ok(Verdict::Wrong);
                }
                let renewed = Some(new_hash(&password, wanted, counter));
                return Ok(Verdict::Right { renewed });
            }
            let stored = stored.as_ref().and_then(|stored| parse(stored.expose()));
            let (iterations, salt, expected) =
                stored.clone().unwrap_or_else(|| (wanted, vec![0; SALT_BYTES], Vec::new()));
            let hash = derive(&password, &salt, iterations, counter);
            if stored.is_none() || !bool::from(hash.ct_eq(&expected)) {
                return Ok(Verdict::Wrong);
            }
            let renewed = (iterations < wanted).then(|| new_hash(&password, wanted, counter));
            Ok(Verdict::Right { renewed })
        });
        let checked = checked.await?;
        if matches!(checked, Err(Denied::NoPepper))
            && !self.lacks_pepper.swap(true, Ordering::Relaxed)
        {
            tracing::error!(
                "imported passwords cannot be checked without the pepper that \
                 `passwords.imported_pepper_file` names"
            );
        }
        checked
    }

    /// How many hashes were computed.
    #[cfg(test)]
    pub(super) fn computed(&self) -> u64 {
        self.computed.load(Ordering::Relaxed)
    }

    async fn compute<T: Send + 'static>(
        &self,
        compute: impl FnOnce(&AtomicU64) -> T + Send + 'static,
    ) -> Result<T, Denied> {
        let (answer, answered) = oneshot::channel();
        let counter = Arc::clone(&self.computed);
        let job: Job = Box::new(move || {
            // The requester has gone.
            if !answer.is_closed() {
                let _ = answer.send(compute(&counter));
            }
        });
        if cfg!(feature = "simulate") {
            // There is one thread.
            job();
        } else {
            self.jobs.try_send(job).map_err(|error| match error {
                TrySendError::Full(_) => Denied::Busy(BUSY),
                TrySendError::Disconnected(_) => Denied::Closed,
            })?;
        }
        answered.await.map_err(|_| Denied::Closed)
    }
}

/// Runs the jobs of `queue` until the hasher is dropped.
fn work(queue: &Mutex<Receiver<Job>>) {
    background::stand_back();
    loop {
        let job = queue.lock().recv();
        let Ok(job) = job else { return };
        let done = std::panic::catch_unwind(AssertUnwindSafe(job));
        if done.is_err() {
            tracing::error!("hashing a password panicked");
        }
    }
}

fn new_hash(password: &str, iterations: u32, counter: &AtomicU64) -> Secret {
    let salt = random_bytes::<SALT_BYTES>();
    let hash = derive(password, &salt, iterations, counter);
    let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
    format!("{SCHEME}{iterations}${salt}${hash}").into()
}

fn derive(password: &str, salt: &[u8], iterations: u32, counter: &AtomicU64) -> [u8; HASH_BYTES] {
    counter.fetch_add(1, Ordering::Relaxed);
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

    fn hasher() -> Hasher {
        Hasher::new(1000, 2, None)
    }

    async fn verify(hasher: &Hasher, password: &str, stored: Option<Secret>) -> bool {
        let verdict = hasher.verify(password.to_owned(), stored).await.unwrap();
        matches!(verdict, Verdict::Right { renewed: None })
    }

    #[tokio::test]
    async fn a_password_matches_its_own_hash_alone() {
        let hasher = hasher();
        let hash = hasher.hash("correct horse".to_owned()).await.unwrap();
        assert!(hash.expose().starts_with("$pbkdf2-sha512$i=1000$"));
        assert!(!hash.expose().contains("horse"));
        assert_eq!(format!("{hash:?}"), "(secret)");
        assert!(verify(&hasher, "correct horse", Some(hash.clone())).await);
        assert!(!verify(&hasher, "wrong horse", Some(hash.clone())).await);
        assert_ne!(hasher.hash("correct horse".to_owned()).await.unwrap(), hash);
    }

    #[tokio::test]
    async fn nothing_matches_no_hash_or_a_broken_one() {
        let hasher = hasher();
        let broken = ["", "$pbkdf2-sha512$i=0$AA$AA", "$argon2$x", "{nfkc}$2b$04$x", "{}"];
        for stored in broken.into_iter().map(Some).chain([None]) {
            assert!(!verify(&hasher, "", stored.map(Secret::from)).await);
        }
    }

    #[tokio::test]
    async fn a_weaker_hash_is_renewed_for_the_right_password_alone() {
        let weak = hasher().hash("correct horse".to_owned()).await.unwrap();
        let strong = Hasher::new(2000, 1, None);
        let verdict = strong.verify("correct horse".to_owned(), Some(weak.clone())).await.unwrap();
        let Verdict::Right { renewed: Some(renewed) } = verdict else { panic!("{verdict:?}") };
        assert!(renewed.expose().starts_with("$pbkdf2-sha512$i=2000$"));
        assert!(verify(&strong, "correct horse", Some(renewed.clone())).await);
        let wrong = strong.verify("wrong".to_owned(), Some(weak)).await.unwrap();
        assert!(matches!(wrong, Verdict::Wrong));
        // A stronger hash stays.
        assert!(verify(&hasher(), "correct horse", Some(renewed)).await);
    }

    /// Whatever a stored hash of another server demands, it becomes one of this server's own.
    #[tokio::test]
    async fn an_imported_hash_is_renewed_for_the_right_password_alone() {
        let hasher = hasher();
        // Made with Python's bcrypt.
        let stored = "{nfkc}$2b$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e";
        let check = |password: &str| hasher.verify(password.to_owned(), Some(Secret::from(stored)));
        let verdict = check("correct horse").await.unwrap();
        let Verdict::Right { renewed: Some(renewed) } = verdict else { panic!("{verdict:?}") };
        assert!(renewed.expose().starts_with("$pbkdf2-sha512$i=1000$"));
        assert!(verify(&hasher, "correct horse", Some(renewed)).await);
        assert!(matches!(check("wrong horse").await.unwrap(), Verdict::Wrong));
    }

    /// Nobody has given a wrong password then.
    #[tokio::test]
    async fn a_hash_whose_pepper_is_missing_is_neither_right_nor_wrong() {
        let stored = "{nfkc,pepper}$2b$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e";
        let hasher = hasher();
        let checked = hasher.verify("correct horse".to_owned(), Some(Secret::from(stored)));
        assert_eq!(checked.await.unwrap_err(), Denied::NoPepper);
    }

    #[tokio::test]
    async fn few_wait_and_those_who_gave_up_cost_nothing() {
        let hasher = Arc::new(Hasher::new(1000, 1, None));
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let (began, begun) = oneshot::channel();
        let first = tokio::spawn({
            let hasher = Arc::clone(&hasher);
            let blocks = move |_: &AtomicU64| {
                let _ = began.send(());
                wait.recv().is_ok()
            };
            async move { hasher.compute(blocks).await }
        });
        begun.await.unwrap();
        // The one thread is busy, so the queue fills up.
        let mut waiting = Vec::new();
        for _ in 0..limits::HASHES_WAITING {
            let mut hash = Box::pin(hasher.hash("x".to_owned()));
            assert!(futures_util::poll!(&mut hash).is_pending());
            waiting.push(hash);
        }
        assert_eq!(hasher.hash("x".to_owned()).await, Err(Denied::Busy(BUSY)));
        let patient = waiting.pop().unwrap();
        drop(waiting);
        go_on.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(true));
        patient.await.unwrap();
        assert_eq!(hasher.computed(), 1);
    }

    #[test]
    fn the_derivation_is_the_standard_one() {
        // PBKDF2-HMAC-SHA-512, "password", "salt", 4096 iterations: a published test vector.
        let hash = derive("password", b"salt", 4096, &AtomicU64::default());
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "d197b1b33db0143e018b12f3d1d1479e6cdebdcc97c5c0f87f6902e072f457b5");
    }
}
