//! Traces and metrics, as an OpenTelemetry collector gets them: a small one that is here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};

use crate::api::threepids::{add_email, start};
use crate::harness::mail::MailServer;
use crate::harness::stand_in::{Reply, Service, reply};
use crate::harness::{
    Asked, Bridge, Gateway, Mood, TestServer, User, encode, free_address, run_logcabin, until,
    until_ok,
};
use crate::monitoring::{scrape, value};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector.
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    service: Service,
}

impl Collector {
    async fn start() -> Self {
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let collected = Arc::clone(&spans);
        let answer = move |asked: Asked| {
            let collected = Arc::clone(&collected);
            async move { collect(&asked, &collected) }
        };
        Self { spans, service: Service::start(answer).await }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.service.address)
    }

    fn of(&self, trace: &str) -> Vec<Span> {
        let spans = self.spans.lock().expect("no panic");
        spans.iter().filter(|span| hex(&span.trace_id) == trace).cloned().collect()
    }

    /// The traces of which it knows something.
    fn traces(&self) -> BTreeSet<String> {
        self.spans.lock().expect("no panic").iter().map(|span| hex(&span.trace_id)).collect()
    }
}

fn collect(asked: &Asked, collected: &Mutex<Vec<Span>>) -> Reply {
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/v1/traces"));
    assert_eq!(asked.headers["content-type"], "application/x-protobuf");
    let sent = ExportTraceServiceRequest::decode(&*asked.bytes).expect("it speaks OTLP");
    for of_resource in sent.resource_spans {
        let resource = of_resource.resource.expect("a resource");
        let named = resource.attributes.iter().find(|one| one.key == "service.name");
        assert!(format!("{named:?}").contains("logcabin"), "{resource:?}");
        let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        collected.lock().expect("no panic").extend(spans);
    }
    reply(200, "application/x-protobuf", "")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a text with a `traceparent` header. Returns the id of the request.
async fn send(user: &User, room_id: &str, txn_id: &str, traceparent: &str) -> String {
    let path = format!("/rooms/{}/send/m.room.message/{txn_id}", encode(room_id));
    let body = json!({ "msgtype": "m.text", "body": "hello" });
    ask(user, ("PUT", &path), &body, traceparent).await
}

/// Asks for something with a `traceparent` header. Returns the id of the request.
async fn ask(user: &User, (method, path): (&str, &str), body: &Value, traceparent: &str) -> String {
    let path = format!("/_matrix/client/v3{path}");
    let bearer = format!("Bearer {}", user.access_token);
    let headers = [("authorization", &*bearer), ("traceparent", traceparent)];
    let answer = user.http.raw(method, &path, &headers, body.to_string()).await;
    let request_id = answer.header("x-request-id").to_owned();
    answer.json().ok();
    request_id
}

/// The record that a request made, as the history tool shows it.
fn record(server: &TestServer, request: &str) -> Value {
    let data_dir = server.data_dir().to_string_lossy();
    let output = run_logcabin(["history", "--json", "tail", &data_dir, "--no-follow"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let mut records = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    records.find(|record| record["request"] == request).expect("its record")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_shows_a_message_from_its_request_to_the_sync_and_the_push_that_tell_of_it() {
    let (collector, gateway) = (Collector::start().await, Gateway::start().await);
    let endpoint = collector.endpoint();
    let metrics = free_address().to_string();
    let server = Gateway::server(&[
        ("LOGCABIN_METRICS_BIND", &*metrics),
        ("LOGCABIN_TRACES_ENDPOINT", &*endpoint),
        ("LOGCABIN_TRACES_SAMPLE_PERCENT", "0"),
    ])
    .await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let cat = server.register("cat").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    gateway.serves(&bob, "bobs-phone").await;
    let here = |answer: Value| answer["next_batch"].as_str().expect("a token").to_owned();
    // Bob's sync is to answer with the message, and Cat's, who is not in the room, is not.
    let mut waiting = Vec::new();
    for user in [bob.clone(), cat.clone()] {
        let since = here(user.sync(None, 0, None).await);
        let answer = async move { user.try_sync(Some(&since), 30_000, None).await };
        waiting.push(tokio::spawn(answer));
    }
    until("both wait", async || {
        value(&scrape(&metrics).await, "logcabin_sync_waiting_users") == Some(2.0)
    })
    .await;
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let request = send(&ann, &room_id, "1", &traceparent).await;
    assert!(request.ends_with(&format!(".{TRACE}")), "{request}");
    let (of_cat, of_bob) = (waiting.pop().expect("Cat's"), waiting.pop().expect("Bob's"));
    of_bob.await.expect("no panic").expect("an answer").ok();
    gateway.until("bob's phone is told", |gateway| !gateway.events("bobs-phone").is_empty()).await;
    let names = || collector.of(TRACE).iter().map(|span| span.name.clone()).collect::<Vec<_>>();
    let stages = ["turn", "decide", "group", "sync", "apply", "wake", "push"];
    until_ok("all of the trace has arrived", async || {
        let names = names();
        let is_there = |stage: &&str| names.iter().any(|name| name == stage);
        if stages.iter().all(is_there) && names.len() >= stages.len() + 2 {
            Ok(())
        } else {
            Err(names)
        }
    })
    .await;
    of_cat.abort();

    let spans = collector.of(TRACE);
    let (roots, children): (Vec<_>, Vec<_>) =
        spans.iter().partition(|span| hex(&span.parent_span_id) == PARENT);
    let [root] = roots[..] else { panic!("not one root: {roots:?}") };
    assert_eq!(root.name, "PUT /_matrix/client/v3/rooms/{room_id}/send/{event_type}/{txn_id}");
    let mut count = BTreeMap::new();
    for child in &children {
        assert_eq!(child.parent_span_id, root.span_id, "{child:?}");
        assert!(child.start_time_unix_nano <= child.end_time_unix_nano, "{child:?}");
        *count.entry(&*child.name).or_insert(0) += 1;
    }
    // `sync` is to the disk, and the answer to Bob; nobody else waited for the message.
    let expected = [
        ("apply", 1),
        ("decide", 1),
        ("group", 1),
        ("push", 1),
        ("sync", 1),
        ("sync answer", 1),
        ("turn", 1),
        ("wake", 1),
    ];
    assert_eq!(count, expected.into());
    let of = |name: &str| children.iter().find(|span| span.name == name).expect("it is there");
    let order = ["turn", "decide", "group", "sync", "apply", "wake", "sync answer"];
    assert!(order.map(|name| of(name).start_time_unix_nano).is_sorted(), "{children:?}");
    // No span says who or where it was.
    let said = format!("{spans:?}");
    for name in ["ann", "bob", &*room_id, "hello"] {
        assert!(!said.contains(name), "{name}: {said}");
    }
    assert_eq!(collector.traces(), [TRACE.to_owned()].into());

    let record = record(&server, &request);
    assert_eq!(record["trace"], TRACE, "{record}");
    let (offset, data_dir) = (record["offset"].to_string(), server.data_dir().to_string_lossy());
    let shown = run_logcabin(["history", "show", &data_dir, &offset]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    let line = shown.lines().find(|line| line.trim_start().starts_with("trace "));
    assert!(line.is_some_and(|line| line.ends_with(TRACE)), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_and_mail_are_in_the_traces_of_what_they_tell() {
    const BOB: &str = "bob@example.org";
    const CALM: &str = "5bf92f3577b34da6a3ce929d0e0e4736";
    const ASKED: &str = "6bf92f3577b34da6a3ce929d0e0e4736";
    let Some(mail) = MailServer::start("traces of mail") else { return };
    let (collector, irc) = (Collector::start().await, Bridge::start("irc", "").await);
    let (endpoint, file) = (collector.endpoint(), irc.file().display().to_string());
    let settings = [
        ("LOGCABIN_APPSERVICES_FILES", &*file),
        ("LOGCABIN_PUSH_EMAIL_DELAY_SECONDS", "0"),
        ("LOGCABIN_TRACES_ENDPOINT", &*endpoint),
        ("LOGCABIN_TRACES_SAMPLE_PERCENT", "0"),
    ];
    let server = start(&mail.settings(), &settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    add_email(&mail, &bob, BOB).await;
    let before = mail.mails(BOB).len();
    let alone = ann.create_room(json!({})).await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let ghost = irc.ghost(&server, "cat").await;
    let join = format!("/v3/join/{}", encode(&room_id));
    irc.request(&server, "POST", &join, Some(&ghost), Some(&json!({}))).await.ok();
    let pusher = json!({
        "app_id": "m.email", "pushkey": BOB, "kind": "email", "lang": "en",
        "app_display_name": "Mail", "device_display_name": BOB, "data": {},
    });
    bob.post("/pushers/set", pusher).await.ok();
    let is_told = |irc: &Bridge| irc.texts().contains(&"hello".to_owned());

    // A transaction that is refused is repeated as it is: none may be on its way when the message
    // is sent.
    let has_joined = |event: &Value| event["state_key"] == *ghost;
    let is_quiet = |irc: &Bridge| {
        irc.transactions().iter().any(|(_, body, answered)| {
            *answered && body["events"].as_array().is_some_and(|told| told.iter().any(has_joined))
        })
    };
    irc.until("the join is told", is_quiet).await;
    irc.is(Mood::Status(500));
    let traceparent = |trace: &str| format!("00-{trace}-{PARENT}-01");
    send(&ann, &alone, "1", &traceparent(CALM)).await;
    send(&ann, &room_id, "2", &traceparent(TRACE)).await;
    irc.until("it is told", is_told).await;
    irc.is(Mood::Fine);
    mail.mail(BOB, before);
    let body = json!({ "client_secret": "s", "email": "ann@example.org", "send_attempt": 1 });
    ask(&ann, ("POST", "/account/3pid/email/requestToken"), &body, &traceparent(ASKED)).await;
    mail.mail("ann@example.org", 0);

    let count = |trace: &str, name: &str| {
        collector.of(trace).iter().filter(|span| span.name == name).count()
    };
    until_ok("all of the traces has arrived", async || {
        let found = (count(TRACE, "transaction"), count(TRACE, "mail"), count(ASKED, "mail"));
        // The first transaction was refused, and is seen, too.
        if found.0 >= 2 && (found.1, found.2) == (1, 1) { Ok(()) } else { Err(found) }
    })
    .await;
    for span in [collector.of(TRACE), collector.of(ASKED)].concat() {
        let is_of_the_request = hex(&span.parent_span_id) == PARENT;
        assert_eq!(is_of_the_request, span.name.starts_with('P'), "{span:?}");
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        let said = format!("{span:?}");
        for name in ["bob", "example.org", "irc", &*room_id] {
            assert!(!said.contains(name), "{name}: {said}");
        }
    }
    // What no service and no mail was told of.
    assert_eq!((count(CALM, "apply"), count(CALM, "transaction"), count(CALM, "mail")), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_ask_for_it_are_traced_up_to_a_bound_and_a_sample_of_the_rest() {
    let collector = Collector::start().await;
    let endpoint = format!("{}/", collector.endpoint());
    let mut server = TestServer::start_with(&[
        ("LOGCABIN_TRACES_ENDPOINT", &*endpoint),
        ("LOGCABIN_TRACES_SAMPLE_PERCENT", "100"),
        ("LOGCABIN_TRACES_PER_SECOND", "1"),
    ])
    .await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let began = std::time::Instant::now();
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    let request = send(&ann, &room_id, "unsampled", &unsampled).await;
    assert!(!request.contains('.'), "{request}");
    let (mut traced, mut sent) = (0, 0);
    // The first requests of this test were traced, too.
    while traced < 3 {
        sent += 1;
        let parent = format!("00-{sent:032x}-{PARENT}-01");
        let request = send(&ann, &room_id, &sent.to_string(), &parent).await;
        traced += u64::from(request.contains('.'));
    }
    let seconds = began.elapsed().as_secs() + 2;
    assert!(traced <= seconds && traced < sent, "{traced} of {sent} in {seconds} seconds");
    // What was not sent yet is sent before the server ends.
    server.stop();
    let traces = collector.traces();
    assert!(traces.len() as u64 > traced, "{traced}, {traces:?}");
    assert!(!traces.contains(TRACE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_traces_says_nothing_and_one_without_its_collector_goes_on() {
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let silent = TestServer::start().await;
    let ann = silent.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let request = send(&ann, &room_id, "1", &traceparent).await;
    assert!(!request.contains('.'), "{request}");
    assert!(record(&silent, &request).get("trace").is_none());

    let nowhere = format!("http://{}", free_address());
    let server = TestServer::start_with(&[("LOGCABIN_TRACES_ENDPOINT", &*nowhere)]).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    for number in 0..50 {
        send(&ann, &room_id, &number.to_string(), &traceparent).await;
    }
    until("the log says so", async || server.output().contains("takes no traces")).await;
    for number in 50..60 {
        send(&ann, &room_id, &number.to_string(), &traceparent).await;
    }
}

/// The metrics of each export that a collector was sent.
async fn exports() -> (Arc<Mutex<Vec<Vec<Metric>>>>, Service) {
    let exports = Arc::<Mutex<Vec<Vec<Metric>>>>::default();
    let kept = Arc::clone(&exports);
    let service = Service::start(move |asked: Asked| {
        let kept = Arc::clone(&kept);
        async move {
            assert_eq!((&*asked.method, &*asked.path), ("POST", "/v1/metrics"));
            assert_eq!(asked.headers["content-type"], "application/x-protobuf");
            let sent = ExportMetricsServiceRequest::decode(&*asked.bytes).expect("it speaks OTLP");
            let mut metrics = Vec::new();
            for of_resource in sent.resource_metrics {
                let resource = format!("{:?}", of_resource.resource);
                assert!(resource.contains("service.name") && resource.contains("logcabin"));
                metrics.extend(of_resource.scope_metrics.into_iter().flat_map(|one| one.metrics));
            }
            kept.lock().expect("no panic").push(metrics);
            reply(200, "application/x-protobuf", "")
        }
    })
    .await;
    (exports, service)
}

/// What a counter comes to over all labels.
fn sum(metrics: &[Metric], name: &str) -> f64 {
    let metric = metrics.iter().find(|metric| metric.name == name).expect(name);
    let Some(Data::Sum(sum)) = &metric.data else { panic!("{name} is {metric:?}") };
    assert!(sum.is_monotonic);
    assert_eq!(sum.aggregation_temporality, 2, "cumulative");
    let value = |value: &Option<_>| match value {
        Some(number_data_point::Value::AsDouble(number)) => *number,
        other => panic!("{other:?}"),
    };
    sum.data_points.iter().map(|point| value(&point.value)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_the_metrics_that_prometheus_gets() {
    let (exports, collector) = exports().await;
    let endpoint = format!("http://{}", collector.address);
    let bind = free_address().to_string();
    let mut server = TestServer::start_with(&[
        ("LOGCABIN_METRICS_BIND", &*bind),
        ("LOGCABIN_METRICS_ENDPOINT", &*endpoint),
        ("LOGCABIN_METRICS_EVERY_SECONDS", "1"),
    ])
    .await;
    let ann = server.register("ann").await;
    ann.create_room(json!({})).await;
    let sent = || exports.lock().expect("no panic").len();
    let before = sent();
    until("a later export has come", async || sent() >= before + 2).await;
    let scraped = scrape(&bind).await;
    let last = exports.lock().expect("no panic").last().expect("an export").clone();
    let of_scrape: BTreeSet<_> = scraped
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let of_export: BTreeSet<_> = last.iter().map(|metric| &*metric.name).collect();
    assert_eq!(of_export, of_scrape);
    assert!(sum(&last, "logcabin_log_records_total") > 5.0);
    let gauge = last.iter().find(|metric| metric.name == "logcabin_users").expect("a gauge");
    assert!(matches!(gauge.data, Some(Data::Gauge(_))), "{gauge:?}");
    let name = "logcabin_http_request_duration_seconds";
    let durations = last.iter().find(|metric| metric.name == name).expect(name);
    assert_eq!(durations.unit, "s");
    let Some(Data::Histogram(durations)) = &durations.data else { panic!("{durations:?}") };
    for point in &durations.data_points {
        assert!(point.start_time_unix_nano < point.time_unix_nano, "{point:?}");
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1, "{point:?}");
        assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count, "{point:?}");
    }
    assert!(durations.data_points.iter().any(|point| point.count > 0));
    // The last one, when it stops, has everything.
    ann.create_room(json!({})).await;
    let before = sum(&last, "logcabin_log_records_total");
    server.stop();
    let last = exports.lock().expect("no panic").last().expect("an export").clone();
    assert!(sum(&last, "logcabin_log_records_total") > before);
}
