//! How often clients may cause requests to other homeservers.

use std::time::{Duration, Instant};

use crate::requester::Requester;
use logcabin_base::{limits, rate::Refundable};

/// The rates of callers' requests to other homeservers.
pub struct QueryRates {
    questions: Refundable<Requester>,
    strangers: Refundable<Requester>,
}

impl Default for QueryRates {
    fn default() -> Self {
        Self {
            questions: Refundable::new(limits::REMOTE_QUESTIONS),
            strangers: Refundable::new(limits::STRANGERS),
        }
    }
}

impl QueryRates {
    /// Counts a request to another homeserver.
    ///
    /// # Errors
    /// The time to wait if it must not be sent now.
    pub fn question(&self, requester: Requester) -> Result<(), Duration> {
        self.questions.take(requester, Instant::now())
    }

    /// Counts homeservers that this one has never reached: all of them, or none.
    ///
    /// # Errors
    /// The time to wait if they must not be contacted now.
    pub fn strangers(&self, requester: &Requester, count: usize) -> Result<(), Duration> {
        for taken in 0..count {
            if let Err(wait) = self.strangers.take(requester.clone(), Instant::now()) {
                (0..taken).for_each(|_| self.strangers.give_back(requester));
                return Err(wait);
            }
        }
        Ok(())
    }
}
