//! The metrics of requests.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use http::{Method, StatusCode};

use crate::base::metrics::{Histogram, IntCounter, metrics};

/// The metrics of one endpoint. They exist from its first answer on: a server serves hundreds of
/// endpoints, and is asked for some dozens.
#[derive(Debug)]
pub(super) struct Measured {
    method: Box<str>,
    endpoint: &'static str,
    duration: OnceLock<Histogram>,
    /// The answers with 200, which most are.
    successes: OnceLock<IntCounter>,
}

impl Measured {
    pub(super) fn new(method: &Method, endpoint: &'static str) -> Self {
        let method = method.as_str().into();
        Self { method, endpoint, duration: OnceLock::new(), successes: OnceLock::new() }
    }

    /// Counts an answer to a request that came at this moment.
    pub(super) fn answered(&self, status: StatusCode, began: Instant) {
        self.took(began.elapsed());
        let requests = |status: &str| {
            metrics().http_requests.with_label_values(&[&*self.method, self.endpoint, status])
        };
        match status {
            StatusCode::OK => self.successes.get_or_init(|| requests("200")).inc(),
            other => requests(other.as_str()).inc(),
        }
    }

    fn took(&self, time: Duration) {
        let durations = &metrics().http_duration;
        let duration = || durations.with_label_values(&[&*self.method, self.endpoint]);
        self.duration.get_or_init(duration).observe(time.as_secs_f64());
    }
}

/// Counts an answer to a request that is for no endpoint. Its method and its path are whatever the
/// client makes up.
pub(super) fn answered_nowhere(status: StatusCode) {
    metrics().http_requests.with_label_values(&["other", "none", status.as_str()]).inc();
}
