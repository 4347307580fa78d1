//! Sends traces to an OpenTelemetry collector, if one is configured.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SpanProcessor as _},
};
use tokio::runtime::Handle;
use tracing::{info, warn};

use super::ServerError;
use crate::{
    base::{
        limits,
        traces::{self, Traces},
    },
    config::Config,
    outside::outbound,
};

/// Has requests be traced, if the configuration says where traces go. To be called within a tokio
/// runtime.
pub(super) fn begin(config: &Config) -> Result<(), ServerError> {
    let Some(endpoint) = &config.traces.endpoint else { return Ok(()) };
    let unusable = |error: String| ServerError::Traces(error);
    let url = format!("{}/v1/traces", endpoint.to_string().trim_end_matches('/'));
    let client = outbound::client(&config.outbound, limits::TRACE_TIMEOUT);
    let client = client.map_err(|error| unusable(error.to_string()))?;
    let sender = Sender { client, runtime: Handle::current(), is_failing: AtomicBool::new(false) };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(sender)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(&url)
        .with_timeout(limits::TRACE_TIMEOUT)
        .build()
        .map_err(|error| unusable(error.to_string()))?;
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(limits::TRACE_SPANS)
        .with_scheduled_delay(limits::TRACE_TOGETHER)
        .build();
    let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
    let resource = Resource::builder_empty().with_service_name("logcabin").with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance(config)),
    ]);
    processor.set_resource(&resource.build());
    let of = &config.traces;
    traces::install(Traces::new(Box::new(processor), of.sample_percent, of.per_second));
    info!(%url, "requests are traced");
    Ok(())
}

/// The name of this process among those that have traces or metrics.
pub(super) fn instance(config: &Config) -> String {
    let bind = config.server.bind.first().map(ToString::to_string).unwrap_or_default();
    format!("{} at {bind}", config.server.name)
}

/// Sends what is left.
pub(super) async fn end() {
    if let Some(traces) = traces::traces() {
        // A collector that does not answer is given up after a while.
        let _ = tokio::task::spawn_blocking(|| traces.flush()).await;
    }
}

/// Sends spans with the HTTP client that everything else uses. The thread that has it do so is not
/// one of tokio's.
#[derive(Debug)]
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    /// Whether the collector does not take what it is sent, and this was logged.
    is_failing: AtomicBool,
}

impl HttpClient for Sender {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'b, Result<http::Response<Bytes>, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let client = self.client.clone();
            let sent = self.runtime.spawn(async move {
                let response = client.execute(request.try_into()?).await?;
                let status = response.status();
                // What it says of spans that it did not want is not of interest.
                let body = Bytes::new();
                let mut answer = http::Response::new(body);
                *answer.status_mut() = status;
                Ok::<_, HttpError>(answer)
            });
            let answer = sent.await.map_err(HttpError::from).flatten();
            let failure = match &answer {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(answer.status().to_string()),
                Err(error) => Some(error.to_string()),
            };
            let was_failing = self.is_failing.swap(failure.is_some(), Ordering::Relaxed);
            match failure {
                Some(reason) if !was_failing => {
                    warn!(reason, "the collector takes no traces; they are dropped until it does");
                }
                None if was_failing => info!("the collector takes traces again"),
                _ => {}
            }
            answer
        })
    }
}
