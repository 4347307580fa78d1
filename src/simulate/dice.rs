//! Chance, decided by a seed. Each part of a world has dice of its own, so that one more throw in
//! one part changes nothing in the others.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::os::next;

#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

impl Dice {
    /// The dice of a part of the world.
    pub(crate) fn new(seed: u64, part: &str) -> Self {
        let hash = blake3::keyed_hash(&key(seed), part.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(hash.as_bytes().split_at(8).0);
        Self(AtomicU64::new(u64::from_be_bytes(first)))
    }

    /// Other dice, for something that goes on at the same time.
    pub(crate) fn apart(&self, number: usize) -> Self {
        Self::new(self.throw(), &number.to_string())
    }

    fn throw(&self) -> u64 {
        let mut state = self.0.load(Ordering::Relaxed);
        let thrown = next(&mut state);
        self.0.store(state, Ordering::Relaxed);
        thrown
    }

    /// A number below `bound`.
    pub(crate) fn below(&self, bound: usize) -> usize {
        let bound = bound.max(1) as u64;
        usize::try_from(self.throw() % bound).unwrap_or(0)
    }

    /// Whether something happens that does so in `percent` of all cases.
    pub(crate) fn happens(&self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A duration between two, in milliseconds.
    pub(crate) fn between_ms(&self, from: usize, to: usize) -> Duration {
        Duration::from_millis((from + self.below(to.saturating_sub(from) + 1)) as u64)
    }

    pub(crate) fn pick<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

fn key(seed: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key.split_at_mut(8).0.copy_from_slice(&seed.to_be_bytes());
    key
}
