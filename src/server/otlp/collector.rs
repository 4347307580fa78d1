//! An OpenTelemetry collector, to which traces and metrics are sent: its address, the name of this
//! process there, and whether it takes what it is sent.

use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{info, warn};

use logcabin_config::{Server, WebUrl};

/// The address at which a collector takes a signal, `traces` or `metrics`.
pub(super) fn url(endpoint: &WebUrl, signal: &str) -> Result<url::Url, String> {
    let url = format!("{}/v1/{signal}", endpoint.to_string().trim_end_matches('/'));
    url.parse().map_err(|_| "its address is not one on the web".to_owned())
}

/// What tells this process from others that send to the same collector.
pub(super) fn attributes(server: &Server) -> [(&'static str, String); 3] {
    let bind = server.bind.first().map(ToString::to_string).unwrap_or_default();
    [
        ("service.name", "logcabin".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", format!("{} at {bind}", server.name)),
    ]
}

/// Whether the collector takes a signal. A change is logged once.
#[derive(Debug)]
pub(super) struct CollectorStatus {
    signal: &'static str,
    is_failing: AtomicBool,
}

impl CollectorStatus {
    pub(super) const fn new(signal: &'static str) -> Self {
        Self { signal, is_failing: AtomicBool::new(false) }
    }

    /// `failure` says why the collector did not take what it was sent; `None` if it did.
    pub(super) fn note(&self, failure: Option<String>) {
        let signal = self.signal;
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(reason) if !was_failing => {
                warn!(reason, "the collector takes no {signal}; they are dropped until it does");
            }
            None if was_failing => info!("the collector takes {signal} again"),
            _ => {}
        }
    }
}
