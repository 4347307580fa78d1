//! Somebody tries passwords as fast as they can: what others notice of it. A measurement, to be run
//! on a machine that does nothing else:
//!
//! ```text
//! cargo test --release --test integration brute_force -- --ignored --nocapture
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval_at};

use crate::harness::{TestServer, User, alone, number_from_env};

/// Wrong logins in a second.
const RATE: u64 = 1000;
/// The connections that they come over, each with one at a time.
const CONNECTIONS: u64 = 100;
/// Users who sync meanwhile, and how long each pauses between two.
const SYNCING: usize = 4;
const PAUSE: Duration = Duration::from_millis(10);

/// What the attacker sent and was told.
#[derive(Default)]
struct Attack {
    on: AtomicBool,
    sent: AtomicU64,
    wrong: AtomicU64,
    refused: AtomicU64,
}

/// Sends this connection's share of wrong logins while it is on. Written by hand, so that the
/// attacker, who would be elsewhere, takes little of this machine.
async fn attack(address: SocketAddr, begin: Instant, attack: Arc<Attack>) {
    let body = json!({
        "type": "m.login.password", "password": "a guess",
        "identifier": { "type": "m.id.user", "user": "victim" },
    })
    .to_string();
    let length = body.len();
    let request = format!(
        "POST /_matrix/client/v3/login HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 203.0.113.66\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    let mut tick = interval_at(begin.into(), Duration::from_millis(1000 * CONNECTIONS / RATE));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut answer = vec![0; 4096];
    loop {
        tick.tick().await;
        if !attack.on.load(Ordering::Relaxed) {
            continue;
        }
        attack.sent.fetch_add(1, Ordering::Relaxed);
        if stream.write_all(request.as_bytes()).await.is_err() {
            return;
        }
        // An answer is small: it comes in one piece, and ends with its JSON.
        let Ok(length @ 1..) = stream.read(&mut answer).await else { return };
        let answer = String::from_utf8_lossy(&answer[..length]);
        let counter = match answer.get(9..12) {
            Some("403") => &attack.wrong,
            Some("429") => &attack.refused,
            _ => panic!("a wrong login was answered with {answer}"),
        };
        assert!(answer.ends_with('}'), "half an answer: {answer}");
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Syncs one after the other for a while; gives how long each took.
async fn sync_for(user: User, time: Duration) -> Vec<Duration> {
    let filter = r#"{"presence":{"not_types":["*"]}}"#;
    let first = user.sync(None, 0, Some(filter)).await;
    let since = first["next_batch"].as_str().expect("a next_batch").to_owned();
    let (begun, mut took) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let asked = Instant::now();
        user.sync(Some(&since), 0, Some(filter)).await;
        took.push(asked.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    took
}

fn percentile(took: &mut [Duration], percent: usize) -> Duration {
    took.sort_unstable();
    took[(took.len() * percent / 100).min(took.len() - 1)]
}

/// The p99 of syncs without and with an attack, in turns, so that what else happens on the machine
/// hits both alike.
async fn measure(name: &str, settings: &[(&str, &str)]) -> f64 {
    let always = [
        ("LOGCABIN_SERVER_TRUST_FORWARDED_FOR", "true"),
        ("LOGCABIN_REGISTRATION_OPEN", "true"),
        ("LOGCABIN_PASSWORDS_ITERATIONS", "210000"),
    ];
    let server = TestServer::start_with(&[&always, settings].concat()).await;
    server.register("victim").await;
    let mut users = Vec::new();
    for number in 0..SYNCING {
        users.push(server.register(&format!("user{number}")).await);
    }
    let room_id = users[0].create_room(json!({ "preset": "public_chat" })).await;
    for user in &users {
        user.join(&room_id).await.ok();
    }
    let state = Arc::new(Attack::default());
    let address = server.base().trim_start_matches("http://").parse().expect("an address");
    // One after the other through each second, not all at once ten times in it.
    let (begin, apart) = (Instant::now(), Duration::from_micros(1_000_000 / RATE));
    for number in 0..CONNECTIONS {
        let begin = begin + apart * u32::try_from(number).expect("few connections");
        tokio::spawn(attack(address, begin, Arc::clone(&state)));
    }

    let rounds = number_from_env("LOGCABIN_BRUTE_FORCE_ROUNDS", 10);
    let mut took = [Vec::new(), Vec::new()];
    let (mut attacked_for, round) = (Duration::ZERO, Duration::from_secs(2));
    for number in 0..rounds * 2 {
        let under_attack = number % 2 == 1;
        state.on.store(under_attack, Ordering::Relaxed);
        let begun = Instant::now();
        let syncs: Vec<_> =
            users.iter().map(|user| tokio::spawn(sync_for(user.clone(), round))).collect();
        for syncs in syncs {
            took[usize::from(under_attack)].extend(syncs.await.expect("no sync failed"));
        }
        if under_attack {
            attacked_for += begun.elapsed();
        }
    }
    let [calm, attacked] = &mut took;
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let [before, after] = [percentile(calm, 99), percentile(attacked, 99)];
    println!(
        "{name}: {:.0} wrong logins a second ({} sent, {} looked at, {} refused)\n  \
         syncs without: {} (p50 {:?}, p99 {before:?})\n  \
         syncs with:    {} (p50 {:?}, p99 {after:?})",
        of(&state.sent) as f64 / attacked_for.as_secs_f64(),
        of(&state.sent),
        of(&state.wrong),
        of(&state.refused),
        calm.len(),
        percentile(calm, 50),
        attacked.len(),
        percentile(attacked, 50),
    );
    after.as_secs_f64() / before.as_secs_f64()
}

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread")]
async fn brute_force_does_not_double_the_latency_of_others() {
    let _alone = alone().await;
    let limited = measure("with limits", &[("LOGCABIN_RATE_LIMITS_ENABLED", "true")]).await;
    println!("  the p99 is {limited:.2} times as long");
    let unlimited = measure("without limits", &[]).await;
    println!("  the p99 is {unlimited:.2} times as long");
    assert!(limited <= 2.0, "the p99 of syncs is {limited:.2} times as long");
}
