//! How fast a body must arrive.

use std::time::Duration;

use tokio::time::Instant;

/// The minimum rate at which a body must arrive, after a grace period.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a body without any bytes may take.
    pub grace: Duration,
    /// Each time this many bytes arrive, the body gets one more second.
    pub bytes_per_second: u64,
}

impl Pace {
    /// How long a body may take until `read` bytes of it have arrived.
    pub fn allows(self, read: u64) -> Duration {
        let earned_ms = read.saturating_mul(1000) / self.bytes_per_second.max(1);
        self.grace.saturating_add(Duration::from_millis(earned_ms))
    }

    /// The deadline for more of a body that began to arrive at `began`, after `read` bytes.
    pub fn deadline(self, began: Instant, read: u64) -> Instant {
        let never = began + Duration::from_secs(365 * 24 * 3600);
        began.checked_add(self.allows(read)).unwrap_or(never)
    }
}
