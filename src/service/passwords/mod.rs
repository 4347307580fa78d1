//! Passwords: the rules for new ones ([`policy`]), their hashes ([`hasher`]), those of other
//! servers ([`imported`]), and limits on guesses ([`guesses`]). Guessing slows others only a
//! little: guesses beyond the limits are not hashed, hashes are computed at a low priority, and the
//! queue is short.

mod guesses;
mod hasher;
pub mod imported;
pub mod policy;

use std::{
    net::IpAddr,
    sync::OnceLock,
    time::{Duration, Instant},
};

use ruma::UserId;

use self::{guesses::Guesses, hasher::Hasher, imported::Peppers};
use logcabin_config as config;
use logcabin_record::command::Secret;

/// Makes and checks password hashes, and limits wrong guesses.
pub struct Passwords {
    hasher: Hasher,
    guesses: Option<Guesses>,
    /// Told of each wrong password.
    on_wrong: OnceLock<OnWrong>,
}

type OnWrong = Box<dyn Fn(Guess<'_>) + Send + Sync>;

/// Why a password was neither hashed nor checked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Denied {
    /// Too many wrong passwords; the time is how long to wait.
    #[error("Too many wrong passwords were tried.")]
    TooOften(Duration),
    /// The queue is full; the time is how long to wait.
    #[error("Too many passwords are being checked.")]
    Busy(Duration),
    #[error("The server is shutting down.")]
    Closed,
    /// The hash is another server's, with a pepper that this one lacks.
    #[error("This password cannot be checked now.")]
    NoPepper,
}

/// The pepper of imported hashes cannot be read: nobody who has one could log in.
#[derive(Debug, thiserror::Error)]
#[error("`passwords.imported_pepper_file`: {0}")]
pub struct NoPepper(#[from] std::io::Error);

/// The result of checking a password.
#[derive(Debug)]
pub enum Verdict {
    Wrong,
    /// It is right. If its hash is weaker than new ones, or was another server's, a new hash is
    /// included.
    Right {
        /// The new hash.
        renewed: Option<Secret>,
    },
}

/// The user name that was claimed, and the address it came from.
#[derive(Clone, Copy, Debug)]
pub struct Guess<'a> {
    /// The name as given, normalised so that all its spellings are equal. It need not be anyone's.
    pub name: &'a str,
    /// The address that the request came from.
    pub client: IpAddr,
}

impl Passwords {
    /// # Errors
    /// When the file with the pepper of imported hashes cannot be read.
    pub fn new(
        settings: &config::Passwords,
        limits: &config::RateLimits,
    ) -> Result<Self, NoPepper> {
        let peppers = settings.imported_pepper_file.as_ref().map(Peppers::read).transpose()?;
        Ok(Self {
            hasher: Hasher::new(settings.iterations, settings.concurrent_hashes(), peppers),
            guesses: limits.enabled.then(|| Guesses::new(limits)),
            on_wrong: OnceLock::new(),
        })
    }

    /// Calls `tell` for each wrong password from now on, unless guesses are unlimited. Only the
    /// first call has an effect.
    pub fn on_wrong(&self, tell: impl Fn(Guess<'_>) + Send + Sync + 'static) {
        let _ = self.on_wrong.set(Box::new(tell));
    }

    /// Counts a wrong password that another node was given.
    pub fn wrong_elsewhere(&self, guess: Guess<'_>) {
        if let Some(guesses) = &self.guesses {
            // What exceeds the limit here was allowed there.
            let _ = guesses.begin(guess, Instant::now());
        }
    }

    /// The hash of `password` with a new salt, in the form that is stored:
    /// `$pbkdf2-sha512$i=<iterations>$<salt>$<hash>`.
    ///
    /// # Errors
    /// When the queue is full, or the server shuts down.
    pub async fn hash(&self, password: String) -> Result<Secret, Denied> {
        self.hasher.hash(password).await
    }

    /// Whether `password` is the one that `stored` is the hash of. Without a hash, it takes as long
    /// as with one and returns [`Verdict::Wrong`], so that nobody can learn whether an account
    /// exists.
    ///
    /// # Errors
    /// When there were too many wrong passwords before, the queue is full, or the server shuts
    /// down.
    pub async fn check(
        &self,
        guess: Guess<'_>,
        password: String,
        stored: Option<Secret>,
    ) -> Result<Verdict, Denied> {
        let attempt = match &self.guesses {
            Some(guesses) => Some(guesses.begin(guess, Instant::now()).map_err(Denied::TooOften)?),
            None => None,
        };
        let verdict = self.hasher.verify(password, stored).await;
        match (&verdict, attempt) {
            (_, None) => {}
            (Ok(Verdict::Wrong), Some(_)) => {
                if let Some(tell) = self.on_wrong.get() {
                    tell(guess);
                }
            }
            (_, Some(attempt)) => attempt.refund(),
        }
        verdict
    }

    /// Notes that this user was active at this address: guesses from other addresses then cannot
    /// lock the user out here.
    pub fn seen(&self, user_id: &UserId, client: IpAddr) {
        if let Some(guesses) = &self.guesses {
            guesses.seen(user_id.as_str(), client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passwords() -> Passwords {
        let settings = config::Passwords { iterations: 1000, ..config::Passwords::default() };
        let limits = config::RateLimits {
            wrong_passwords_of_address: "1/h burst 20".parse().unwrap(),
            wrong_passwords_for_user: "1/h burst 30".parse().unwrap(),
            ..config::RateLimits::default()
        };
        Passwords::new(&settings, &limits).unwrap()
    }

    fn from(last: u8, name: &str) -> Guess<'_> {
        Guess { name, client: IpAddr::from([10, 0, 0, last]) }
    }

    async fn is_right(
        passwords: &Passwords,
        guess: Guess<'_>,
        password: &str,
        stored: &Secret,
    ) -> bool {
        let verdict = passwords.check(guess, password.to_owned(), Some(stored.clone())).await;
        matches!(verdict.unwrap(), Verdict::Right { .. })
    }

    #[tokio::test]
    async fn guesses_beyond_the_limit_cost_no_hash_whether_the_user_exists_or_not() {
        let passwords = passwords();
        let stored = passwords.hash("correct horse".to_owned()).await.unwrap();
        let before = passwords.hasher.computed();
        for (address, name, stored) in [(1, "@ann:x", Some(stored.clone())), (2, "@nobody:x", None)]
        {
            let (mut looked_at, mut refused) = (0, 0);
            for _ in 0..1000 {
                let guess = from(address, name);
                match passwords.check(guess, "guess".to_owned(), stored.clone()).await {
                    Ok(Verdict::Wrong) => looked_at += 1,
                    Err(Denied::TooOften(_)) => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((looked_at, refused), (20, 980), "{name}");
        }
        assert_eq!(passwords.hasher.computed() - before, 40);
    }

    #[tokio::test]
    async fn right_passwords_do_not_count() {
        let passwords = passwords();
        let stored = passwords.hash("correct horse".to_owned()).await.unwrap();
        for _ in 0..100 {
            assert!(is_right(&passwords, from(1, "@ann:x"), "correct horse", &stored).await);
        }
        for _ in 0..19 {
            assert!(!is_right(&passwords, from(1, "@ann:x"), "wrong", &stored).await);
        }
        assert!(is_right(&passwords, from(1, "@ann:x"), "correct horse", &stored).await);
    }

    #[tokio::test]
    async fn guesses_from_many_addresses_do_not_lock_the_owner_out_at_a_known_address() {
        let passwords = passwords();
        let stored = passwords.hash("correct horse".to_owned()).await.unwrap();
        passwords.seen(ruma::user_id!("@ann:x"), IpAddr::from([10, 0, 0, 200]));
        let mut refused = 0;
        for address in 0..100 {
            let guess = from(address, "@ann:x");
            let guess = passwords.check(guess, "guess".to_owned(), Some(stored.clone())).await;
            refused += usize::from(matches!(guess, Err(Denied::TooOften(_))));
        }
        assert_eq!(refused, 70);
        let elsewhere = from(201, "@ann:x");
        let elsewhere =
            passwords.check(elsewhere, "correct horse".to_owned(), Some(stored.clone()));
        assert!(matches!(elsewhere.await, Err(Denied::TooOften(_))));
        assert!(is_right(&passwords, from(200, "@ann:x"), "correct horse", &stored).await);
        // Guesses from a known address are limited, too.
        for _ in 0..20 {
            assert!(!is_right(&passwords, from(200, "@ann:x"), "guess", &stored).await);
        }
        let at_home = passwords.check(from(200, "@ann:x"), "guess".to_owned(), Some(stored)).await;
        assert!(matches!(at_home, Err(Denied::TooOften(_))));
    }
}
