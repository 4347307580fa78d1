//! The metrics of requests.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use http::{Method, StatusCode};

use logcabin_base::{
    metrics::{Histogram, IntCounter, metrics},
    traces::{Attribute, Begun, traces},
};

/// The metrics of one endpoint, created with its first answer: a server has hundreds of endpoints,
/// but only some dozens are called.
#[derive(Debug)]
pub(super) struct Measured {
    method: Box<str>,
    endpoint: &'static str,
    duration: OnceLock<Histogram>,
    /// Answers with 200, the most frequent.
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

/// Counts an answer to a request that matches no endpoint. Its method and path are left out: the
/// client chooses them freely.
pub(super) fn answered_nowhere(status: StatusCode) {
    metrics().http_requests.with_label_values(&["other", "none", status.as_str()]).inc();
}

/// Adds the span of a request to its trace.
pub(super) fn trace(
    begun: &Begun,
    request_id: &str,
    method: &Method,
    measured: Option<&Measured>,
    status: StatusCode,
    since: Instant,
) {
    let Some(traces) = traces() else { return };
    // The path is that of the endpoint, without what the client filled in.
    let route = measured.map(|measured| measured.endpoint);
    let mut attributes = vec![
        Attribute::text("http.request.method", method.to_string()),
        Attribute::number("http.response.status_code", i64::from(status.as_u16())),
        Attribute::text("logcabin.request_id", request_id.to_owned()),
    ];
    attributes.extend(route.map(|route| Attribute::text("http.route", route)));
    let name = route.map_or_else(|| method.to_string(), |route| format!("{method} {route}"));
    traces.request(begun, request_id, name, since, attributes, status.is_server_error());
}
