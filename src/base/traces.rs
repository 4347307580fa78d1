//! Traces of requests, for OpenTelemetry: off unless the program installs a destination.
//!
//! A span is built when its work is over, from the times that are measured for the
//! [metrics](super::metrics) as well. No span is carried along, since much of what a request causes
//! is done together with other work, later, or by another node. The request's id is carried along,
//! into the records: the id of a traced request ends with its trace id, and its span id follows
//! from it. So any code that has a record can add to the trace.
//!
//! Spans have no names of users, rooms or servers.

use std::{
    borrow::Cow,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use opentelemetry::{
    InstrumentationScope, KeyValue,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{
        SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
        TraceState,
    },
};
use opentelemetry_sdk::{
    propagation::TraceContextPropagator,
    trace::{SpanData, SpanEvents, SpanLinks, SpanProcessor},
};

/// What separates the id of a request from that of its trace.
const SEPARATOR: char = '.';

static TRACES: OnceLock<Traces> = OnceLock::new();

/// Where spans go, if requests are traced.
pub fn traces() -> Option<&'static Traces> {
    TRACES.get()
}

/// Turns tracing on. A second call has no effect.
pub fn install(traces: Traces) {
    let _ = TRACES.set(traces);
}

/// The trace id in the id of a request, if it was traced.
pub fn trace_of(request: &str) -> Option<&str> {
    let (_, trace) = request.rsplit_once(SEPARATOR)?;
    (trace.len() == 32 && TraceId::from_hex(trace).is_ok()).then_some(trace)
}

/// The tracing of this process.
#[derive(Debug)]
pub struct Traces {
    processor: Box<dyn SpanProcessor>,
    scope: InstrumentationScope,
    chosen: Sampler,
}

/// A request that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    trace_id: TraceId,
    span_id: SpanId,
}

/// A traced request that has just begun.
#[derive(Debug)]
pub struct Begun {
    trace_id: TraceId,
    /// The client's span of the request, in the same trace.
    parent: SpanId,
}

/// Which requests are traced.
#[derive(Debug)]
struct Sampler {
    /// In percent of the requests that make no sampling decision of their own.
    percent: u64,
    per_second: u64,
    seen: AtomicU64,
    /// The current second, in the upper half, and how many were chosen in it.
    chosen: AtomicU64,
}

impl Sampler {
    fn choose(&self, wish: Option<bool>) -> bool {
        let wanted = wish.unwrap_or_else(|| {
            let before = self.seen.fetch_add(1, Ordering::Relaxed) % 100;
            // As evenly as whole numbers allow.
            (before + 1) * self.percent / 100 > before * self.percent / 100
        });
        wanted && self.has_room()
    }

    fn has_room(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let second = now.as_secs() & u64::from(u32::MAX);
        let count = |held: u64| {
            let count = if held >> 32 == second { held & u64::from(u32::MAX) } else { 0 };
            (count < self.per_second).then_some((second << 32) | (count + 1))
        };
        self.chosen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }
}

impl Traces {
    /// Sends spans to `processor`. Traces `percent` of the requests that make no sampling decision
    /// of their own, and at most `per_second` in all.
    pub fn new(processor: Box<dyn SpanProcessor>, percent: u32, per_second: u32) -> Self {
        Self {
            processor,
            scope: InstrumentationScope::builder("logcabin")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
            chosen: Sampler {
                percent: percent.into(),
                per_second: per_second.into(),
                seen: AtomicU64::new(0),
                chosen: AtomicU64::new(0),
            },
        }
    }

    /// The trace of a request that begins, if it is traced: that of its `traceparent` header, or a
    /// new one.
    pub fn begin(&self, traceparent: Option<&str>) -> Option<Begun> {
        struct Header<'a>(&'a str);
        impl Extractor for Header<'_> {
            fn get(&self, key: &str) -> Option<&str> {
                (key == "traceparent").then_some(self.0)
            }

            fn keys(&self) -> Vec<&str> {
                vec!["traceparent"]
            }
        }
        let given = traceparent.map(|header| {
            let context = TraceContextPropagator::new().extract(&Header(header));
            context.span().span_context().clone()
        });
        let given = given.filter(SpanContext::is_valid);
        if !self.chosen.choose(given.as_ref().map(SpanContext::is_sampled)) {
            return None;
        }
        Some(match given {
            Some(given) => Begun { trace_id: given.trace_id(), parent: given.span_id() },
            None => {
                let mut random = [0; 16];
                getrandom::fill(&mut random).ok()?;
                Begun { trace_id: TraceId::from_bytes(random), parent: SpanId::INVALID }
            }
        })
    }

    /// Adds the span of a request.
    pub fn request(
        &self,
        begun: &Begun,
        request: &str,
        name: String,
        since: Instant,
        attributes: Vec<KeyValue>,
        failed: bool,
    ) {
        let Some(traced) = Traced::of(request) else { return };
        let status = if failed { Status::error("") } else { Status::Unset };
        self.end(SpanData {
            parent_span_id: begun.parent,
            parent_span_is_remote: begun.parent != SpanId::INVALID,
            span_kind: SpanKind::Server,
            status,
            attributes,
            ..self.span(traced, traced.span_id, name.into(), since, Instant::now())
        });
    }

    /// Adds a child of a request's span, for something that was done because of it.
    pub fn child(
        &self,
        of: Traced,
        name: &'static str,
        since: Instant,
        until: Instant,
        attributes: Vec<KeyValue>,
    ) {
        let Ok(span_id) = getrandom::u64() else { return };
        self.end(SpanData {
            parent_span_id: of.span_id,
            attributes,
            ..self.span(of, SpanId::from_bytes(span_id.to_be_bytes()), name.into(), since, until)
        });
    }

    /// Sends the queued spans. Blocks.
    pub fn flush(&self) {
        let _ = self.processor.force_flush();
    }

    fn span(
        &self,
        of: Traced,
        span_id: SpanId,
        name: Cow<'static, str>,
        since: Instant,
        until: Instant,
    ) -> SpanData {
        let state = TraceState::default();
        SpanData {
            span_context: SpanContext::new(of.trace_id, span_id, TraceFlags::SAMPLED, false, state),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name,
            start_time: time_of(since),
            end_time: time_of(until),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn end(&self, span: SpanData) {
        self.processor.on_end(span);
    }
}

/// A recent moment in wall-clock time.
fn time_of(moment: Instant) -> SystemTime {
    SystemTime::now().checked_sub(moment.elapsed()).unwrap_or(UNIX_EPOCH)
}

impl Begun {
    /// The request's id with its trace id at the end.
    pub fn request_id(&self, id: &str) -> Arc<str> {
        format!("{id}{SEPARATOR}{}", self.trace_id).into()
    }
}

impl Traced {
    /// The traced request with this id. The id of its span is the beginning of the id's hash.
    pub fn of(request: &str) -> Option<Self> {
        let trace_id = TraceId::from_hex(trace_of(request)?).ok()?;
        let hash = blake3::hash(request.as_bytes());
        let (start, _) = hash.as_bytes().split_first_chunk()?;
        Some(Self { trace_id, span_id: SpanId::from_bytes(*start) })
    }
}

/// Adds a span from `since` until now to a trace.
pub fn stage(of: Traced, name: &'static str, since: Instant) {
    if let Some(traces) = traces() {
        traces.child(of, name, since, Instant::now(), Vec::new());
    }
}

/// The attribute with the record that a span is about.
pub fn about(offset: u64) -> KeyValue {
    KeyValue::new("logcabin.offset", i64::try_from(offset).unwrap_or(i64::MAX))
}

/// The traced request with this id, if requests are traced.
pub fn traced(request: &str) -> Option<Traced> {
    traces().and_then(|_| Traced::of(request))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn traces(percent: u32, per_second: u32) -> Traces {
        #[derive(Debug)]
        struct Nowhere;
        impl SpanProcessor for Nowhere {
            fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &opentelemetry::Context) {
            }
            fn on_end(&self, _: SpanData) {}
            fn force_flush(&self) -> opentelemetry_sdk::error::OTelSdkResult {
                Ok(())
            }
            fn shutdown_with_timeout(
                &self,
                _: Duration,
            ) -> opentelemetry_sdk::error::OTelSdkResult {
                Ok(())
            }
        }
        Traces::new(Box::new(Nowhere), percent, per_second)
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn begin(traces: &Traces, parent: Option<&str>) -> Option<Begun> {
        traces.begin(parent)
    }

    #[test]
    fn a_request_takes_its_trace_from_the_header_and_carries_it_in_its_id() {
        let traces = traces(0, 1000);
        let sampled = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let begun = begin(&traces, Some(&sampled)).unwrap();
        let id = begun.request_id("abcdef-1f");
        assert_eq!(&*id, format!("abcdef-1f.{TRACE}"));
        assert_eq!(trace_of(&id), Some(TRACE));
        let traced = Traced::of(&id).unwrap();
        assert_eq!(traced.trace_id, begun.trace_id);
        assert_ne!(traced, Traced::of(&begun.request_id("abcdef-20")).unwrap());
        let unsampled = format!("00-{TRACE}-00f067aa0ba902b7-00");
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for parent in [&*unsampled, zero, "", "00-x-y-01"] {
            assert!(begin(&traces, Some(parent)).is_none(), "{parent}");
        }
        assert!(begin(&traces, None).is_none());
        for id in ["", "abcdef-1f", "abcdef-1f.", "abcdef-1f.4bf92f", &TRACE.replace('4', ".")] {
            assert_eq!(trace_of(id), None, "{id}");
        }
    }

    #[test]
    fn a_share_of_the_requests_is_traced_up_to_a_maximum_rate() {
        let count = |traces: &Traces| (0..1000).filter(|_| begin(traces, None).is_some()).count();
        assert_eq!(count(&traces(7, 100_000)), 70);
        assert_eq!(count(&traces(100, 100_000)), 1000);
        // The clock may move on to another second or two meanwhile.
        assert!((5..=50).contains(&count(&traces(100, 5))));
    }
}
