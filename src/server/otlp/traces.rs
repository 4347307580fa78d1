//! Sends traces to a collector.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor as _,
    },
};
use tokio::runtime::Handle;
use tracing::info;

use super::{
    collector::{self, CollectorStatus},
    encoding,
};
use crate::ServerError;
use logcabin_base::{
    bodies::BodyBudget,
    limits, threads,
    traces::{self, Attribute, AttributeValue, Exporter, Span, Traces},
};
use logcabin_config::Config;
use logcabin_outside::outbound::{Outbound, OutboundRequest};

/// Begins to count what is sent, and to trace requests, if a collector is configured for these.
/// Must be called within a tokio runtime.
pub(crate) fn begin(config: &Config) -> Result<(), ServerError> {
    encoding::begin();
    let Some(endpoint) = &config.traces.endpoint else { return Ok(()) };
    let unusable = |error: String| ServerError::Traces(error);
    let url = collector::url(endpoint, "traces").map_err(unusable)?;
    let client = Outbound::new(&config.outbound, &BodyBudget::new(config.body_shares()));
    let client = client.map_err(|error| unusable(error.to_string()))?.technical();
    let sender =
        Sender { client, runtime: Handle::current(), taken: CollectorStatus::new("traces") };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(sender)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url.as_str())
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
    let scope = InstrumentationScope::builder("logcabin").with_version(env!("CARGO_PKG_VERSION"));
    let batches = Batches { processor, scope: scope.build() };
    traces::install(Traces::new(Box::new(batches), of.sample_percent, of.per_second));
    info!(%url, "requests are traced");
    Ok(())
}

/// Sends the remaining spans.
pub(crate) async fn end() {
    if let Some(traces) = traces::traces() {
        // A collector that does not answer is given up after a while.
        let _ = threads::spawn_blocking(|| traces.flush()).await;
    }
}

/// Collects spans, and sends some at once.
#[derive(Debug)]
struct Batches {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
}

impl Exporter for Batches {
    fn take(&self, span: Span) {
        self.processor.on_end(exported(span, self.scope.clone()));
    }

    fn flush(&self) {
        // Spans that the collector does not take are lost, which is logged.
        let _ = self.processor.force_flush();
    }
}

/// A span in the form of the library.
fn exported(span: Span, instrumentation_scope: InstrumentationScope) -> SpanData {
    let trace_id = TraceId::from_bytes(span.trace_id.to_bytes());
    let id = |id: traces::SpanId| SpanId::from_bytes(id.to_bytes());
    let (flags, state) = (TraceFlags::SAMPLED, TraceState::default());
    SpanData {
        span_context: SpanContext::new(trace_id, id(span.span_id), flags, false, state),
        parent_span_id: span.parent.map_or(SpanId::INVALID, id),
        parent_span_is_remote: span.is_request && span.parent.is_some(),
        span_kind: if span.is_request { SpanKind::Server } else { SpanKind::Internal },
        name: span.name,
        start_time: span.start,
        end_time: span.end,
        attributes: span.attributes.into_iter().map(key_value).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: if span.failed { Status::error("") } else { Status::Unset },
        instrumentation_scope,
    }
}

fn key_value(Attribute { name, value }: Attribute) -> KeyValue {
    match value {
        AttributeValue::Text(text) => KeyValue::new(name, text),
        AttributeValue::Number(number) => KeyValue::new(name, number),
    }
}

/// Sends spans with the server's HTTP client. It is called on a thread that is not tokio's.
#[derive(Debug)]
struct Sender {
    client: Outbound,
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
                let (head, body) = request.into_parts();
                let url = head.uri.to_string().parse()?;
                let sent = client.send(OutboundRequest {
                    headers: head.headers,
                    body,
                    timeout: limits::TRACE_TIMEOUT,
                    // What it says of spans that it refused does not matter.
                    cut: true,
                    ..OutboundRequest::new(head.method, url)
                });
                let mut answer = http::Response::new(Bytes::new());
                *answer.status_mut() = sent.await?.status;
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
