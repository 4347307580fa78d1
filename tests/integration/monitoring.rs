//! What those who watch a server are told: by Prometheus, with the alerts and the dashboard in
//! `docs/monitoring/`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::tools::prometheus;
use crate::harness::{
    Bridge, Gateway, Http, TestServer, User, free_address, skip, until, until_ok,
};

const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/monitoring/alerts.yml");
const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/monitoring/dashboard.json");

/// A Prometheus that scrapes one address five times a second.
struct Prometheus {
    address: String,
    child: Child,
    _directory: TempDir,
}

impl Prometheus {
    async fn start(target: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let config = directory.path().join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 200ms, evaluation_interval: 1s }}\n\
             rule_files: ['{ALERTS}']\n\
             scrape_configs:\n\
             - job_name: logcabin\n  static_configs: [{{ targets: ['{target}'] }}]\n"
        );
        fs::write(&config, text).expect("the directory can be written to");
        assert_eq!(promtool(&["check", "config", &config.to_string_lossy()], ""), Ok(()));
        let address = free_address().to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Prometheus can be started");
        let prometheus = Self { address, child, _directory: directory };
        until("Prometheus has scraped the server twice", async || {
            prometheus
                .query("count_over_time(logcabin_users[1m]) >= 2")
                .is_ok_and(|r| !r.is_empty())
        })
        .await;
        prometheus
    }

    /// What an expression comes to, one series in a line.
    fn query(&self, expression: &str) -> Result<Vec<String>, String> {
        let server = format!("http://{}", self.address);
        let output = Command::new("promtool")
            .args(["query", "instant", &server, expression])
            .output()
            .expect("promtool runs");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn promtool(arguments: &[&str], input: &str) -> Result<(), String> {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be started");
    child.stdin.take().expect("stdin is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let told = [&output.stdout[..], &output.stderr[..]].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    match output.status.success() {
        // It prints what could be better, and succeeds.
        true if arguments != ["check", "metrics"] || told.trim().is_empty() => Ok(()),
        _ => Err(told),
    }
}

/// The metrics as text.
pub(crate) async fn scrape(address: &str) -> String {
    let http = Http::new(&format!("http://{address}"));
    let request = Request::get(format!("http://{address}/metrics"));
    let answer = http.try_raw(request.body(Full::default()).expect("a request")).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    String::from_utf8(answer.bytes.to_vec()).expect("text")
}

pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// The names of metrics in an expression.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| word.starts_with("logcabin_") || word.starts_with("process_");
    words.filter(is_metric).map(str::to_owned).collect()
}

/// The expressions of the dashboard, as they are with its usual variables.
fn dashboard_expressions() -> Vec<(String, String)> {
    let text = fs::read_to_string(DASHBOARD).expect("the dashboard is there");
    let dashboard: Value = serde_json::from_str(&text).expect("the dashboard is JSON");
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title").to_owned();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().expect("an expression");
            let expression = expression
                .replace("$__rate_interval", "1m")
                .replace("$job", "logcabin")
                .replace("$instance", ".*");
            found.push((title.clone(), expression));
        }
    }
    found
}

fn alert_expressions() -> Vec<(String, String)> {
    let text = fs::read_to_string(ALERTS).expect("the alerts are there");
    let mut found: Vec<(String, String)> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("- alert: ") {
            found.push((name.to_owned(), String::new()));
        } else if let Some(expression) = line.strip_prefix("expr: ") {
            goes_on = expression == "|";
            let last = found.last_mut().expect("an alert");
            last.1 = expression.trim_start_matches('|').to_owned();
        } else if line.contains(": ") && !line.contains('(') {
            goes_on = false;
        } else if goes_on {
            let last = found.last_mut().expect("an alert");
            last.1 = format!("{} {line}", last.1);
        }
    }
    found
}

/// Does what people and their devices do.
async fn use_server(server: &TestServer, gateway: &Gateway, metrics: &str) {
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    gateway.serves(&bob, "bobs-phone").await;
    let room = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room).await.ok();
    let since = bob.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();
    let (waiting, _) = tokio::join!(bob.sync(Some(&since), 60_000, None), async {
        until("the sync waits", async || {
            value(&scrape(metrics).await, "logcabin_sync_waiting_users") == Some(1.0)
        })
        .await;
        ann.send_text(&room, "1", "hello").await
    });
    assert!(waiting["rooms"]["join"][&room].is_object());
    gateway.until("bob's phone is told", |gateway| !gateway.events("bobs-phone").is_empty()).await;
    ann.http.request("GET", "/_matrix/client/v3/nowhere", None, None).await;
    search(&ann).await;
}

/// Until the index has what is searched for.
async fn search(user: &User) {
    let body = json!({ "search_categories": { "room_events": { "search_term": "hello" } } });
    until_ok("the message is found", async || {
        let answer = user.request("POST", "/search", Some(&body)).await.ok();
        let count = answer["search_categories"]["room_events"]["count"].as_u64();
        if count == Some(1) { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_the_server_and_every_alert_and_panel_finds_its_metrics() {
    if let Err(missing) = prometheus() {
        return skip("monitoring", &missing);
    }
    let (gateway, bridge) = (Gateway::start().await, Bridge::start("irc", "").await);
    let (address, file) = (free_address().to_string(), bridge.file().display().to_string());
    let server = Gateway::server(&[
        ("LOGCABIN_METRICS_BIND", &address),
        ("LOGCABIN_APPSERVICES_FILES", &file),
        ("LOGCABIN_RATE_LIMITS_ENABLED", "true"),
        ("LOGCABIN_RATE_LIMITS_REPORTS", "1/m burst 1"),
    ])
    .await;
    use_server(&server, &gateway, &address).await;

    let text = scrape(&address).await;
    assert_eq!(promtool(&["check", "metrics"], &text), Ok(()));
    let send = "/_matrix/client/v3/rooms/{room_id}/send/{event_type}/{txn_id}";
    let sent = format!(
        "logcabin_http_requests_total{{endpoint=\"{send}\",method=\"PUT\",status=\"200\"}}"
    );
    assert_eq!(value(&text, &sent), Some(1.0), "{text}");
    for (series, at_least) in [
        ("logcabin_http_requests_total{endpoint=\"none\",method=\"other\",status=\"404\"}", 1.0),
        ("logcabin_log_records_total{kind=\"user.register\"}", 2.0),
        ("logcabin_write_stage_duration_seconds_count{stage=\"sync\"}", 3.0),
        ("logcabin_write_stage_duration_seconds_count{stage=\"wake\"}", 1.0),
        ("logcabin_sync_stage_duration_seconds_count{stage=\"write\"}", 2.0),
        ("logcabin_delivery_attempts_total{destination=\"pushers\",outcome=\"arrived\"}", 1.0),
        ("logcabin_cache_hits_total{cache=\"events\"}", 1.0),
        ("logcabin_users", 2.0),
        ("logcabin_rooms", 1.0),
        ("logcabin_disk_used_bytes{part=\"log\"}", 1.0),
        ("process_resident_memory_bytes", 1e6),
    ] {
        assert!(value(&text, series).is_some_and(|found| found >= at_least), "{series} in {text}");
    }

    let prometheus = Prometheus::start(&address).await;
    let of_cluster = |name: &String| name.starts_with("logcabin_cluster_");
    let all = alert_expressions().into_iter().chain(dashboard_expressions()).collect::<Vec<_>>();
    assert!(all.len() > 70, "{}", all.len());
    let mut names = BTreeSet::new();
    for (title, expression) in &all {
        if let Err(error) = prometheus.query(expression) {
            panic!("{title}: {expression}: {error}");
        }
        names.extend(metrics_in(expression));
    }
    // An expression without a result may be one that names a metric wrongly.
    for name in names.iter().filter(|name| !of_cluster(name)) {
        // Of what never happened, or is off, there is no series.
        let may_lack =
            ["logcabin_http_rate_limited_total", "logcabin_certificate_expiry_timestamp_seconds"];
        if !may_lack.contains(&&**name) {
            let found = prometheus.query(&format!("count({name}) > 0"));
            assert!(found.is_ok_and(|found| !found.is_empty()), "there is no {name}");
        }
    }
    let declared: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, _)| name.to_owned())
        .collect();
    let shown: BTreeSet<_> = names.iter().map(|name| without_part(name)).collect();
    let not_shown: Vec<_> = declared.difference(&shown).collect();
    assert!(
        not_shown.iter().all(|name| ALSO.contains(&name.as_str())),
        "neither on the dashboard nor in an alert: {not_shown:?}"
    );
}

/// Metrics that are for a closer look.
const ALSO: [&str; 5] = [
    "logcabin_acme_orders_total",
    "logcabin_delivery_position",
    "logcabin_hook_questions_total",
    "logcabin_policy_matches_total",
    "process_virtual_memory_bytes",
];

/// The name of the histogram that a series is a part of.
fn without_part(name: &str) -> String {
    let parts = ["_bucket", "_sum", "_count"].into_iter();
    let whole = parts.filter_map(|part| name.strip_suffix(part)).next();
    whole.unwrap_or(name).to_owned()
}

#[test]
fn every_alert_fires_in_its_situation() {
    if let Err(missing) = prometheus() {
        return skip("monitoring", &missing);
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/alerts.test.yml");
    assert_eq!(promtool(&["check", "rules", ALERTS], ""), Ok(()));
    assert_eq!(promtool(&["test", "rules", &tests.to_string_lossy()], ""), Ok(()));
    let tested = fs::read_to_string(tests).expect("the tests are there");
    for (alert, _) in alert_expressions() {
        assert!(tested.contains(&format!("alertname=\"{alert}\"")), "{alert} is not tested");
    }
}

#[tokio::test]
async fn the_public_address_serves_no_metrics() {
    let server = TestServer::start().await;
    let answer = server.http().request("GET", "/metrics", None, None).await;
    answer.refused(404, "M_UNRECOGNIZED");
}
