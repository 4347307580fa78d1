//! Traces and metrics for an OpenTelemetry collector, if one is configured.
//!
//! Without the feature `otlp` nothing is sent, and a configuration with a collector is refused.

#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod encoding;
#[cfg(not(feature = "otlp"))]
mod left_out;
#[cfg(feature = "otlp")]
mod metrics;
#[cfg(feature = "otlp")]
mod traces;

#[cfg(not(feature = "otlp"))]
pub(super) use self::left_out::{begin, end, send_metrics};
#[cfg(feature = "otlp")]
pub(super) use self::{
    metrics::send_metrics,
    traces::{begin, end},
};
use super::ServerError;
use logcabin_config::Config;

/// Refuses a collector that this program could send nothing to.
pub(super) fn check(config: &Config) -> Result<(), ServerError> {
    let settings = [
        ("traces.endpoint", &config.traces.endpoint),
        ("metrics.endpoint", &config.metrics.endpoint),
    ];
    let is_there = cfg!(feature = "otlp");
    match settings.iter().find(|(_, endpoint)| endpoint.is_some() && !is_there) {
        Some((setting, _)) => Err(ServerError::LeftOut { setting, feature: "otlp" }),
        None => Ok(()),
    }
}
