//! Traces of requests, for OpenTelemetry: off unless the program installs a destination.
//!
//! A span is built when its work is over, from the times that are measured for the
//! [metrics](super::metrics) as well. No span is carried along, since much of what a request causes
//! is done together with other work, later, or by another node. The request's id is carried along,
//! into the records: the id of a traced request ends with its trace id, and its span id follows
//! from it. So any code that has a record can add to the trace.
//!
//! Spans have no names of users, rooms or servers. What takes them to a collector is in the server
//! ([`Exporter`]), so that a program can be built without it.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
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
    TraceId::from_hex(trace).map(|_| trace)
}

/// The id of a trace; as text, 32 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// The id of a span within its trace; as text, 16 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

impl TraceId {
    fn from_hex(text: &str) -> Option<Self> {
        hex(text, 32).map(|id| Self(id.to_be_bytes()))
    }

    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl SpanId {
    fn from_hex(text: &str) -> Option<Self> {
        u64::try_from(hex(text, 16)?).ok().map(|id| Self(id.to_be_bytes()))
    }

    pub const fn to_bytes(self) -> [u8; 8] {
        self.0
    }
}

/// What a span says about its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub name: &'static str,
    pub value: AttributeValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    Text(Cow<'static, str>),
    Number(i64),
}

impl Attribute {
    pub fn text(name: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self { name, value: AttributeValue::Text(text.into()) }
    }

    pub const fn number(name: &'static str, number: i64) -> Self {
        Self { name, value: AttributeValue::Number(number) }
    }
}

/// A piece of work that is over.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    /// The span that caused it; for a request, one of the client.
    pub parent: Option<SpanId>,
    /// Whether it is a request, rather than something that was done because of one.
    pub is_request: bool,
    pub name: Cow<'static, str>,
    pub start: SystemTime,
    pub end: SystemTime,
    pub attributes: Vec<Attribute>,
    pub failed: bool,
}

/// Takes spans to a collector.
pub trait Exporter: Send + Sync + fmt::Debug {
    /// Queues a span, or drops it if too many are waiting.
    fn take(&self, span: Span);

    /// Sends the queued spans. Blocks.
    fn flush(&self);
}

/// What a `traceparent` header says (W3C Trace Context).
struct Parent {
    trace_id: TraceId,
    span_id: SpanId,
    is_sampled: bool,
}

impl Parent {
    /// `None` if the header is not valid: it then counts as missing.
    fn parse(header: &str) -> Option<Self> {
        if header.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let mut parts = header.trim().split('-');
        let (version, trace_id) = (byte(parts.next()?)?, TraceId::from_hex(parts.next()?)?);
        let (span_id, flags) = (SpanId::from_hex(parts.next()?)?, byte(parts.next()?)?);
        // Later versions may have more parts.
        let is_known = version == 0 && parts.next().is_none();
        let is_later = (1..u8::MAX).contains(&version);
        let are_set = trace_id.0 != [0; 16] && span_id.0 != [0; 8];
        let is_sampled = flags & 1 == 1;
        (are_set && (is_known || is_later)).then_some(Self { trace_id, span_id, is_sampled })
    }
}

/// The number that a text of exactly this many hex digits stands for. `digits` is at most 32.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

fn byte(text: &str) -> Option<u8> {
    hex(text, 2)?.try_into().ok()
}

/// The tracing of this process.
#[derive(Debug)]
pub struct Traces {
    exporter: Box<dyn Exporter>,
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
    /// The client's span of the request, in the same trace, if it has one.
    parent: Option<SpanId>,
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
    /// Sends spans to `exporter`. Traces `percent` of the requests that make no sampling decision
    /// of their own, and at most `per_second` in all.
    pub fn new(exporter: Box<dyn Exporter>, percent: u32, per_second: u32) -> Self {
        Self {
            exporter,
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
        let given = traceparent.and_then(Parent::parse);
        if !self.chosen.choose(given.as_ref().map(|given| given.is_sampled)) {
            return None;
        }
        Some(match given {
            Some(given) => Begun { trace_id: given.trace_id, parent: Some(given.span_id) },
            None => {
                let mut random = [0; 16];
                getrandom::fill(&mut random).ok()?;
                Begun { trace_id: TraceId(random), parent: None }
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
        attributes: Vec<Attribute>,
        failed: bool,
    ) {
        let Some(traced) = Traced::of(request) else { return };
        self.exporter.take(Span {
            trace_id: traced.trace_id,
            span_id: traced.span_id,
            parent: begun.parent,
            is_request: true,
            name: name.into(),
            start: time_of(since),
            end: SystemTime::now(),
            attributes,
            failed,
        });
    }

    /// Adds a child of a request's span, for something that was done because of it.
    pub fn child(
        &self,
        of: Traced,
        name: &'static str,
        since: Instant,
        until: Instant,
        attributes: Vec<Attribute>,
    ) {
        let Ok(span_id) = getrandom::u64() else { return };
        self.exporter.take(Span {
            trace_id: of.trace_id,
            span_id: SpanId(span_id.to_be_bytes()),
            parent: Some(of.span_id),
            is_request: false,
            name: name.into(),
            start: time_of(since),
            end: time_of(until),
            attributes,
            failed: false,
        });
    }

    /// Sends the queued spans. Blocks.
    pub fn flush(&self) {
        self.exporter.flush();
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
        let trace_id = TraceId::from_hex(trace_of(request)?)?;
        let hash = blake3::hash(request.as_bytes());
        let (start, _) = hash.as_bytes().split_first_chunk()?;
        Some(Self { trace_id, span_id: SpanId(*start) })
    }
}

/// Adds a span from `since` until now to a trace.
pub fn stage(of: Traced, name: &'static str, since: Instant) {
    if let Some(traces) = traces() {
        traces.child(of, name, since, Instant::now(), Vec::new());
    }
}

/// The attribute with the record that a span is about.
pub fn about(offset: u64) -> Attribute {
    Attribute::number("logcabin.offset", i64::try_from(offset).unwrap_or(i64::MAX))
}

/// The traced request with this id, if requests are traced.
pub fn traced(request: &str) -> Option<Traced> {
    traces().and_then(|_| Traced::of(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(percent: u32, per_second: u32) -> Traces {
        #[derive(Debug)]
        struct Nowhere;
        impl Exporter for Nowhere {
            fn take(&self, _: Span) {}
            fn flush(&self) {}
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
        let upper = sampled.to_ascii_uppercase();
        let (longer, forbidden) = (format!("{sampled}-more"), sampled.replacen("00", "ff", 1));
        let sign = sampled.replacen("4bf9", "+bf9", 1);
        let wrong = [&*unsampled, zero, "", "00-x-y-01", &upper, &longer, &forbidden, &sign];
        for parent in wrong {
            assert!(begin(&traces, Some(parent)).is_none(), "{parent}");
        }
        // A version to come, with a part more and a flag more.
        let later = format!("01-{TRACE}-00f067aa0ba902b7-03-more");
        assert_eq!(begin(&traces, Some(&later)).unwrap().trace_id, begun.trace_id);
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
