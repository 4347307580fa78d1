//! Somebody tries passwords as fast as they can: what others notice of it. A measurement, to be run on a
//! machine that does nothing else:
//!
//! ```text
//! cargo test --release --test integration brute_force -- --ignored --nocapture
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::harness::{Http, TestServer, User, alone, number_from_env};

/// Wrong logins in a second.
const RATE: u64 = 1000;
/// Wrong logins on their way at once: a client has only so many connections.
const UNDER_WAY: u64 = 500;
/// Users who sync meanwhile, and how long each pauses between two.
const SYNCING: usize = 4;
const PAUSE: Duration = Duration::from_millis(10);

/// What the attacker sent and was told.
#[derive(Default)]
struct Attack {
    on: AtomicBool,
    sent: AtomicU64,
    under_way: AtomicU64,
    wrong: AtomicU64,
    refused: AtomicU64,
}

/// Sends wrong logins at a fixed rate while it is on, without waiting for the answers to the earlier ones
/// unless very many are outstanding.
async fn attack(http: Http, attack: Arc<Attack>) {
    let mut tick = interval(Duration::from_millis(10));
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
        if !attack.on.load(Ordering::Relaxed) {
            continue;
        }
        for _ in 0..RATE / 100 {
            if attack.under_way.load(Ordering::Relaxed) >= UNDER_WAY {
                break;
            }
            attack.under_way.fetch_add(1, Ordering::Relaxed);
            let (http, attack) = (http.clone(), Arc::clone(&attack));
            tokio::spawn(async move {
                let number = attack.sent.fetch_add(1, Ordering::Relaxed);
                let body = json!({
                    "type": "m.login.password", "password": format!("guess {number}"),
                    "identifier": { "type": "m.id.user", "user": "victim" },
                });
                let headers = [("x-forwarded-for", "203.0.113.66")];
                let path = "/_matrix/client/v3/login";
                let answer = http.raw("POST", path, &headers, body.to_string()).await;
                let counter = match answer.parts.status.as_u16() {
                    403 => &attack.wrong,
                    429 => &attack.refused,
                    other => panic!("a wrong login was answered with {other}"),
                };
                counter.fetch_add(1, Ordering::Relaxed);
                attack.under_way.fetch_sub(1, Ordering::Relaxed);
            });
        }
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

/// The p99 of syncs without and with an attack, in turns, so that what else happens on the machine hits
/// both alike.
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
    let attacker = tokio::spawn(attack(server.http(), Arc::clone(&state)));

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
    attacker.abort();
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
async fn brute_force_does_not_double_the_time_that_others_wait() {
    let _alone = alone().await;
    let limited = measure("with limits", &[("LOGCABIN_RATE_LIMITS_ENABLED", "true")]).await;
    println!("  the p99 is {limited:.2} times as long");
    let unlimited = measure("without limits", &[]).await;
    println!("  the p99 is {unlimited:.2} times as long");
    assert!(limited <= 2.0, "the p99 of syncs is {limited:.2} times as long");
}
