//! When and from where devices were last in use.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{PASSWORD, server, user};
use crate::harness::{TestServer, User};

async fn device(of: &User, device_id: &str) -> Value {
    of.get(&format!("/devices/{device_id}")).await.ok()
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.expect("a clock that is set").as_millis()).expect("a time")
}

#[tokio::test]
async fn a_device_is_seen_from_its_login_on() {
    crate::harness::nodes::one_server!("another node hears of a request within a minute");
    let server = server().await;
    let before = now_ms();
    let ann = user(&server, "ann").await;
    let other = ann.another_device().await;
    let after = now_ms();
    let list = ann.get("/devices").await.ok();
    let devices = list["devices"].as_array().expect("a list");
    let seen = devices.iter().find(|device| device["device_id"] == other.device_id.as_str());
    let seen = seen.expect("the other device");
    assert_eq!(seen["last_seen_ip"], "127.0.0.1", "{list}");
    let seen_ms = seen["last_seen_ts"].as_u64().expect("a time");
    assert!((before..=after).contains(&seen_ms), "{list}");
}

#[tokio::test]
async fn a_device_is_last_seen_with_its_last_request() {
    crate::harness::nodes::one_server!("another node hears of a request within a minute");
    let server = server().await;
    let ann = user(&server, "ann").await;
    let other = ann.another_device().await;
    let before = now_ms();
    let agent = "Client of a test (1.0)";
    let bearer = format!("Bearer {}", other.access_token);
    let headers = [("authorization", bearer.as_str()), ("user-agent", agent)];
    let path = "/_matrix/client/v3/account/whoami";
    other.http.raw("GET", path, &headers, "").await;
    let after = now_ms();
    let seen = device(&ann, &other.device_id).await;
    assert_eq!(seen["last_seen_ip"], "127.0.0.1", "{seen}");
    let seen_ms = seen["last_seen_ts"].as_u64().expect("a time");
    assert!((before..=after).contains(&seen_ms), "{seen_ms}, not {before} to {after}");
    // Looking at it from another device is no use of it.
    assert_eq!(device(&ann, &other.device_id).await["last_seen_ts"], seen_ms);
    let list = ann.get("/devices").await.ok();
    let devices = list["devices"].as_array().expect("a list");
    assert!(devices.iter().all(|device| device["last_seen_ts"].is_u64()), "{list}");
    let whois = ann.get(&format!("/admin/whois/{}", ann.user_id)).await.ok();
    let connection = &whois["devices"][&other.device_id]["sessions"][0]["connections"][0];
    assert_eq!(connection["ip"], "127.0.0.1", "{whois}");
    assert_eq!(connection["last_seen"], seen_ms, "{whois}");
    assert_eq!(connection["user_agent"], agent, "{whois}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_device_was_last_seen_is_still_known_after_a_restart() {
    crate::harness::nodes::one_server!("another node hears of a request within a minute");
    let settings = [("LOGCABIN_DEVICES_NOTE_LAST_SEEN_SECONDS", "1")];
    let mut server = TestServer::start_with(&settings).await;
    let mut ann = server.register("ann").await;
    let mut other = User::login(&server.http(), "ann", PASSWORD).await;
    let history = |server: &TestServer| {
        crate::harness::offline::history(server.data_dir()).matches(" was seen on ").count()
    };
    // Recorded about once a second, and not with every request.
    let begun = Instant::now();
    let mut requests = 0;
    while begun.elapsed() < Duration::from_millis(2500) || requests < 30 {
        other.get("/account/whoami").await.ok();
        requests += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seconds = begun.elapsed().as_secs() as usize;
    server.stop();
    let records = history(&server);
    // One for each second, and those of the registration, the login and the stop.
    let expected = 2..=seconds + 4;
    assert!(expected.contains(&records), "{records} records of {requests} requests in {seconds} s");
    server.restart().await;
    (ann.http, other.http) = (server.http(), server.http());
    let seen = device(&ann, &other.device_id).await;
    assert_eq!(seen["last_seen_ip"], "127.0.0.1", "{seen}");
    let age = now_ms().saturating_sub(seen["last_seen_ts"].as_u64().expect("a time"));
    assert!(age < 600_000, "{seen}");
}
