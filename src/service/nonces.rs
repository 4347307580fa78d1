//! Nonces of registrations by the shared secret. They are in memory: after a restart, a client asks
//! for another.

use std::collections::VecDeque;

use parking_lot::Mutex;

use logcabin_base::{clock::random_bytes, tag::Tag};

/// The lifetime of a nonce in milliseconds. The tool uses it right away.
const NONCE_MS: u64 = 60_000;

/// The number of outstanding nonces; beyond this the oldest is dropped.
const NONCES: usize = 1000;

/// The outstanding nonces, oldest first.
#[derive(Debug, Default)]
pub struct Nonces {
    nonces: Mutex<VecDeque<(String, u64)>>,
    tag: Tag,
}

impl Nonces {
    /// No nonces yet; those to come have this mark.
    pub fn tagged(tag: Tag) -> Self {
        Self { nonces: Mutex::default(), tag }
    }

    /// A nonce that is valid from now on.
    pub fn make(&self, now_ms: u64) -> String {
        let nonce: String = random_bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect();
        let nonce = self.tag.mark(nonce);
        let mut nonces = self.nonces.lock();
        nonces.retain(|(_, until_ms)| *until_ms > now_ms);
        if nonces.len() == NONCES {
            nonces.pop_front();
        }
        nonces.push_back((nonce.clone(), now_ms.saturating_add(NONCE_MS)));
        nonce
    }

    /// Uses up a nonce. Returns whether it was valid.
    pub fn take(&self, nonce: &str, now_ms: u64) -> bool {
        let mut nonces = self.nonces.lock();
        let Some(place) = nonces.iter().position(|(known, _)| known == nonce) else { return false };
        nonces.remove(place).is_some_and(|(_, until_ms)| until_ms > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_can_be_used_once_and_expires_and_their_number_is_limited() {
        let nonces = Nonces::default();
        let first = nonces.make(0);
        assert!(nonces.take(&first, 1));
        assert!(!nonces.take(&first, 2));
        let late = nonces.make(0);
        assert!(!nonces.take(&late, NONCE_MS));
        let oldest = nonces.make(10);
        let all: Vec<_> = (0..NONCES).map(|_| nonces.make(10)).collect();
        assert!(!nonces.take(&oldest, 11));
        assert!(nonces.take(&all[0], 11));
        assert_eq!(nonces.nonces.lock().len(), NONCES - 1);
    }
}
