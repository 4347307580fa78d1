//! How fast a body must arrive.

use std::time::Duration;

use tokio::time::Instant;

/// How slowly a body may arrive.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a body without any bytes may take.
    pub grace: Duration,
    /// How many bytes earn it a second more.
    pub bytes_per_second: u64,
}

impl Pace {
    /// How long a body may have taken when `read` bytes of it are there.
    pub fn allows(self, read: u64) -> Duration {
        let earned_ms = read.saturating_mul(1000) / self.bytes_per_second.max(1);
        self.grace.saturating_add(Duration::from_millis(earned_ms))
    }

    /// When a body that began to arrive at `began` is late, of which `read` bytes are there.
    pub fn deadline(self, began: Instant, read: u64) -> Instant {
        let never = began + Duration::from_secs(365 * 24 * 3600);
        began.checked_add(self.allows(read)).unwrap_or(never)
    }
}
