//! Passwords: what they have to be like ([`policy`]), how they are hashed ([`hasher`]), and how
//! often one may be guessed ([`guesses`]). Nobody's guesses cost others more than a little of one
//! processor: those that come too often cost no hash, hashes are computed at a low priority, and
//! few wait.

mod guesses;
mod hasher;
pub(crate) mod policy;

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use ruma::UserId;

use self::{guesses::Guesses, hasher::Hasher};
use crate::{config::Config, record::command::Secret};

/// Makes and checks password hashes.
pub(crate) struct Passwords {
    hasher: Hasher,
    guesses: Option<Guesses>,
}

/// Why a password was not looked at.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Denied {
    /// There were too many wrong ones; another may be tried after this time.
    #[error("Too many wrong passwords were tried.")]
    TooOften(Duration),
    /// Too many wait to be looked at.
    #[error("Too many passwords are being checked.")]
    Busy(Duration),
    /// The server goes down.
    #[error("The server is shutting down.")]
    Closed,
}

/// What a look at a password found.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It is not the one.
    Wrong,
    /// It is the one. If its hash is weaker than new ones are, here is one that is as strong.
    Right {
        /// The new hash.
        renewed: Option<Secret>,
    },
}

/// Who says to be whom, from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guess<'a> {
    /// The name that was given, in the form in which all spellings of it are the same. It need not
    /// be anyone's.
    pub(crate) name: &'a str,
    /// The address that the request came from.
    pub(crate) client: IpAddr,
}

impl Passwords {
    /// As the configuration says.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            hasher: Hasher::new(config.passwords.iterations, config.concurrent_hashes()),
            guesses: config.rate_limits.enabled.then(|| Guesses::new(&config.rate_limits)),
        }
    }

    /// The hash of `password` with a new salt, in the form that is stored:
    /// `$pbkdf2-sha512$i=<iterations>$<salt>$<hash>`.
    ///
    /// # Errors
    /// When too many wait, or the server goes down.
    pub(crate) async fn hash(&self, password: String) -> Result<Secret, Denied> {
        self.hasher.hash(password).await
    }

    /// Whether `password` is the one that `stored` is the hash of. Says the same, after the same
    /// time, when there is no hash, so that nothing tells whether an account exists.
    ///
    /// # Errors
    /// When there were too many wrong ones before, too many wait, or the server goes down.
    pub(crate) async fn check(
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
        if !matches!(verdict, Ok(Verdict::Wrong))
            && let Some(attempt) = attempt
        {
            attempt.did_not_count();
        }
        verdict
    }

    /// Takes note that this user uses the server from this address: guesses from elsewhere do not
    /// keep them from logging in there.
    pub(crate) fn seen(&self, user_id: &UserId, client: IpAddr) {
        if let Some(guesses) = &self.guesses {
            guesses.seen(user_id.as_str(), client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passwords() -> Passwords {
        let mut config = Config::default();
        config.passwords.iterations = 1000;
        config.rate_limits.wrong_passwords_of_address = "1/h burst 20".parse().unwrap();
        config.rate_limits.wrong_passwords_for_user = "1/h burst 30".parse().unwrap();
        Passwords::new(&config)
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
    async fn guesses_from_many_addresses_do_not_lock_the_owner_out_where_they_are_at_home() {
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
        // At home, too, guesses are limited.
        for _ in 0..20 {
            assert!(!is_right(&passwords, from(200, "@ann:x"), "guess", &stored).await);
        }
        let at_home = passwords.check(from(200, "@ann:x"), "guess".to_owned(), Some(stored)).await;
        assert!(matches!(at_home, Err(Denied::TooOften(_))));
    }
}
