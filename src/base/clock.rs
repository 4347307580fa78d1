//! The only source of time and randomness. Decisions and projections take both as inputs, so that
//! they can be repeated exactly.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ruma::{MilliSecondsSinceUnixEpoch, UInt};

/// Wall-clock time, in milliseconds since the Unix epoch.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    /// The machine's clock.
    pub const fn system() -> Self {
        Self(None)
    }

    /// A clock for tests: starts at `now_ms` and advances by one millisecond each time it is read.
    pub fn manual(now_ms: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(now_ms))))
    }

    /// Advances a clock for tests; the machine's clock ignores it.
    pub fn advance(&self, ms: u64) {
        if let Some(now) = &self.0 {
            now.fetch_add(ms, Ordering::Relaxed);
        }
    }

    /// Milliseconds since the Unix epoch; 0 for a clock set before it.
    pub fn now_ms(&self) -> u64 {
        match &self.0 {
            Some(now) => now.fetch_add(1, Ordering::Relaxed),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis),
        }
    }

    /// The same, as events carry it.
    pub fn timestamp(&self) -> MilliSecondsSinceUnixEpoch {
        MilliSecondsSinceUnixEpoch(UInt::try_from(self.now_ms()).unwrap_or(UInt::MAX))
    }
}

/// The processor time of this thread. In a simulation, work takes none: it would differ each time.
pub(crate) fn processor_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    if cfg!(feature = "simulate") {
        return Duration::ZERO;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A duration in whole milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Fills `N` bytes with randomness from the operating system.
///
/// # Panics
/// When the operating system has no source of randomness: nothing secure is possible then.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// A random string of `length` characters from `A`–`Z`.
pub fn random_letters(length: usize) -> String {
    let mut letters = String::with_capacity(length);
    while letters.len() < length {
        for byte in random_bytes::<16>() {
            // 234 is the largest multiple of 26 below 256: larger bytes would favour some letters.
            if byte < 234 && letters.len() < length {
                letters.push(char::from(b'A' + byte % 26));
            }
        }
    }
    letters
}

/// A random secret of 256 bits in URL-safe base64, without padding.
pub fn random_token() -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    URL_SAFE_NO_PAD.encode(random_bytes::<32>())
}
