//! Limits on password guesses: from one address, and for one user from all other addresses
//! together.
//!
//! Anyone who knows a user's name could lock the user out by guessing all the time. So addresses
//! from which the user was recently active are counted separately: there the user can still log in,
//! just as existing sessions stay valid.

use std::{
    hash::BuildHasher as _,
    net::IpAddr,
    time::{Duration, Instant},
};

use quick_cache::sync::Cache;

use super::Guess;
use logcabin_base::{
    limits,
    rate::{Refundable, network_prefix},
};
use logcabin_config::RateLimits;

/// Recent wrong passwords.
pub(super) struct Guesses {
    of_address: Refundable<IpAddr>,
    /// By a hash of the name: what a client sends as a name may be as long as a request.
    for_user: Refundable<u64>,
    /// Hashes of users with the addresses from which they were active.
    known: Cache<u64, ()>,
    hasher: std::hash::RandomState,
}

/// A password that is being checked. It counts as wrong until it turns out to be right.
pub(super) struct Attempt<'a> {
    guesses: &'a Guesses,
    address: IpAddr,
    /// The user for whom it counts as a stranger's guess.
    user: Option<u64>,
}

impl Guesses {
    pub(super) fn new(config: &RateLimits) -> Self {
        Self {
            of_address: Refundable::new(config.wrong_passwords_of_address),
            for_user: Refundable::new(config.wrong_passwords_for_user),
            known: Cache::new(limits::KNOWN_ADDRESSES),
            hasher: std::hash::RandomState::new(),
        }
    }

    /// Counts one guess.
    ///
    /// # Errors
    /// How long to wait, if there were too many.
    pub(super) fn begin(&self, guess: Guess<'_>, now: Instant) -> Result<Attempt<'_>, Duration> {
        let address = network_prefix(guess.client);
        self.of_address.take(address, now)?;
        let mut attempt = Attempt { guesses: self, address, user: None };
        if self.known.get(&self.place(guess.name, address)).is_none() {
            let user = self.hasher.hash_one(guess.name);
            if let Err(wait) = self.for_user.take(user, now) {
                // It is not checked, so it does not count for this address.
                attempt.refund();
                return Err(wait);
            }
            attempt.user = Some(user);
        }
        Ok(attempt)
    }

    pub(super) fn seen(&self, name: &str, client: IpAddr) {
        let place = self.place(name, network_prefix(client));
        if self.known.get(&place).is_none() {
            self.known.insert(place, ());
        }
    }

    fn place(&self, name: &str, address: IpAddr) -> u64 {
        self.hasher.hash_one((name, address))
    }
}

impl Attempt<'_> {
    /// It was right, or could not be checked.
    pub(super) fn refund(self) {
        self.guesses.of_address.give_back(&self.address);
        if let Some(user) = &self.user {
            self.guesses.for_user.give_back(user);
        }
    }
}
