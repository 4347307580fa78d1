//! Sends traces to an OpenTelemetry collector, if one is configured.

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
use tracing::info;

use super::{
    ServerError,
    collector::{self, CollectorStatus},
};
use logcabin_base::{
    limits,
    traces::{self, Traces},
};
use logcabin_config::Config;
use logcabin_outside::outbound;

/// Starts to trace requests, if a collector is configured. Must be called within a tokio runtime.
pub(super) fn begin(config: &Config) -> Result<(), ServerError> {
    let Some(endpoint) = &config.traces.endpoint else { return Ok(()) };
    let unusable = |error: String| ServerError::Traces(error);
    let url = collector::url(endpoint, "traces");
    let client = outbound::client(&config.outbound, limits::TRACE_TIMEOUT);
    let client = client.map_err(|error| unusable(error.to_string()))?;
    let sender =
        Sender { client, runtime: Handle::current(), taken: CollectorStatus::new("traces") };
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
    let attributes = collector::attributes(&config.server);
    let attributes = attributes.map(|(name, value)| KeyValue::new(name, value));
    let resource = Resource::builder_empty().with_attributes(attributes);
    processor.set_resource(&resource.build());
    let of = &config.traces;
    traces::install(Traces::new(Box::new(processor), of.sample_percent, of.per_second));
    info!(%url, "requests are traced");
    Ok(())
}

/// Sends the remaining spans.
pub(super) async fn end() {
    if let Some(traces) = traces::traces() {
        // A collector that does not answer is given up after a while.
        let _ = tokio::task::spawn_blocking(|| traces.flush()).await;
    }
}

/// Sends spans with the server's HTTP client. It is called on a thread that is not tokio's.
#[derive(Debug)]
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    taken: CollectorStatus,
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
                // What it says of spans that it refused does not matter.
                let body = Bytes::new();
                let mut answer = http::Response::new(body);
                *answer.status_mut() = status;
                Ok::<_, HttpError>(answer)
            });
            let answer = sent.await.map_err(HttpError::from).flatten();
            self.taken.note(match &answer {
                Ok(answer) if answer.status().is_success() => None,
                Ok(answer) => Some(answer.status().to_string()),
                Err(error) => Some(error.to_string()),
            });
            answer
        })
    }
}
