//! Sends the metrics to a collector.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Method, header::CONTENT_TYPE};
use percent_encoding::percent_decode_str;
use tracing::{info, warn};

use super::{
    collector::{self, CollectorStatus},
    encoding,
};
use logcabin_base::{bodies::BodyBudget, limits, shutdown::Shutdown};
use logcabin_config::Config;
use logcabin_outside::outbound::{Outbound, OutboundRequest};
use logcabin_service::observe::Observer;

/// Sends the metrics to the configured collector until the server stops, and once more then. A
/// failed export is not repeated: the next one counts from the start as well.
pub(crate) async fn send_metrics(config: Arc<Config>, observer: Arc<Observer>, shutdown: Shutdown) {
    let Some(endpoint) = &config.metrics.endpoint else { return };
    let bodies = BodyBudget::new(config.body_shares());
    let client = match Outbound::new(&config.outbound, &bodies) {
        Ok(client) => client.technical(),
        Err(error) => return warn!(%error, "metrics cannot be sent"),
    };
    let url = match collector::url(endpoint, "metrics") {
        Ok(url) => url,
        Err(error) => return warn!(error, "metrics cannot be sent"),
    };
    let attributes = collector::attributes(&config.server);
    let headers = std::env::var("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
    let headers = headers_of(&headers);
    info!(%url, "metrics are sent");
    let every = Duration::from_secs(config.metrics.every_seconds);
    let taken = CollectorStatus::new("metrics");
    loop {
        let is_last = tokio::select! {
            () = tokio::time::sleep(every) => false,
            () = shutdown.given() => true,
        };
        observer.look().await;
        let mut request = OutboundRequest::new(Method::POST, url.clone());
        request.headers = headers.clone();
        request.timeout = limits::METRICS_TIMEOUT;
        // What it says of metrics that it refused does not matter.
        request.cut = true;
        request = request.header(CONTENT_TYPE, encoding::CONTENT_TYPE);
        request.body = encoding::request(&attributes).into();
        taken.note(match client.send(request).await {
            Ok(answer) if answer.status.is_success() => None,
            Ok(answer) => Some(answer.status.to_string()),
            Err(error) => Some(error.to_string()),
        });
        if is_last {
            return;
        }
    }
}

/// The headers in a list such as `a=b,c=d%20e` (OpenTelemetry, "OTLP Exporter Configuration"). They
/// may be secret. Invalid ones are skipped.
fn headers_of(list: &str) -> HeaderMap {
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name.trim()).ok()?, value))
    };
    list.split(',').filter_map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::headers_of;

    #[test]
    fn headers_are_read_as_opentelemetry_writes_them() {
        let headers = headers_of("authorization=Basic%20YTpi, x-scope = a ,nothing,=b,bad name=c");
        let mut pairs: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        pairs.sort_unstable();
        assert_eq!(pairs, [("authorization", "Basic YTpi"), ("x-scope", "a")]);
        assert!(headers.values().all(|value| value.is_sensitive()));
        assert!(headers_of("").is_empty());
    }
}
