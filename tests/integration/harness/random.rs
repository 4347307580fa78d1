//! Randomness from a seed that is printed, so that a failed run can be repeated.

use super::number_from_env;

/// SplitMix64: small, and good enough to choose moments and orders.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// From the seed in the environment variable `name`, or a fresh one; either way it is printed.
    pub(crate) fn from_env(name: &str) -> Self {
        let fresh = getrandom::u64().expect("the system gives random bytes");
        let seed = number_from_env(name, fresh);
        println!("seed: {seed} (repeat with {name}={seed})");
        Self { state: seed }
    }

    /// From this seed.
    pub(crate) const fn from_seed(seed: u64) -> Self {
        Self { state: seed }
    }

    /// An independent source, for a task of its own.
    pub(crate) fn split(&mut self) -> Self {
        Self { state: self.next() }
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `low..high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }
}
