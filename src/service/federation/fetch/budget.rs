//! How much is fetched for one transaction: requests, events, bytes and time.

use std::time::{Duration, Instant};

use logcabin_base::limits;

/// The limits on fetches for one transaction of a homeserver, or for one event that is sent alone.
pub struct Budget {
    /// For ancestors and auth events.
    pub(super) missing: Allowance,
    /// For the room's state at events whose past is not fetched.
    pub(super) state: Allowance,
    /// The number and the time of requests for events that other homeservers passed on with altered
    /// content.
    pub(super) senders: (usize, Duration),
    /// The time for keys with which events are signed.
    pub(in crate::federation) keys: Duration,
    /// The number of requests to policy servers.
    pub(in crate::federation) policy: usize,
    /// The deadline of those requests.
    pub(in crate::federation) policy_until: Instant,
    /// Until when events wait for the rooms that are being entered.
    pub(in crate::federation) entries_until: Instant,
}

pub(in crate::federation) struct Allowance {
    pub(in crate::federation) requests: usize,
    pub(in crate::federation) events: usize,
    pub(in crate::federation) bytes: usize,
    pub(in crate::federation) until: Instant,
}

impl Budget {
    pub fn full() -> Self {
        let (requests, events, bytes, time) = limits::MISSING_EVENTS;
        let now = Instant::now();
        Self {
            missing: Allowance { requests, events, bytes, until: now + time },
            state: Allowance {
                requests: 3 * limits::EVENTS_ONE_BY_ONE,
                events: usize::MAX,
                bytes: limits::FEDERATION_STATE_BYTES,
                until: now + limits::FEDERATION_STATE_TIMEOUT,
            },
            senders: limits::SENDERS_ASKED,
            keys: limits::TRANSACTION_KEYS_TIME,
            policy: limits::TRANSACTION_PDUS,
            policy_until: now + limits::POLICY_TIME,
            entries_until: now + limits::ENTRY_WAIT,
        }
    }
}

impl Allowance {
    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (self.requests > 0 && self.events > 0 && self.bytes > 0 && !left.is_zero()).then_some(left)
    }
}
