//! What a client may try that means no good, or knows no measure.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Direction, TestServer, User, alone, encode};

#[tokio::test]
async fn a_chain_of_redactions_has_an_end() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let first = ann.send_text(&room_id, "first", "nothing lasts").await;
    let mut target = first.clone();
    for number in 0..60 {
        let path = format!("/rooms/{}/redact/{}/r{number}", encode(&room_id), encode(&target));
        target = ann.put(&path, json!({})).await.ok_string("event_id");
    }
    let event = ann.get_room(&room_id, &format!("/event/{}", encode(&first))).await.ok();
    let because = &event["unsigned"]["redacted_because"];
    assert_eq!(because["type"], "m.room.redaction");
    assert_eq!(because["unsigned"].get("redacted_because"), None, "{because}");
    let page = ann.messages(&room_id, None, None, Direction::Back, 100).await;
    assert!(page.to_string().len() < 200_000, "{} bytes", page.to_string().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rooms_named_after_their_first_event_are_as_many_as_were_made() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let rooms = join_all((0..12).map(|_| ann.create_room(json!({ "room_version": "12" })))).await;
    assert_eq!(rooms.iter().collect::<HashSet<_>>().len(), rooms.len(), "{rooms:?}");
    for room_id in &rooms {
        ann.send_text(room_id, "t", "mine").await;
        let page = ann.messages(room_id, None, None, Direction::Back, 100).await;
        let creates = page["chunk"].as_array().into_iter().flatten();
        let creates = creates.filter(|event| event["type"] == "m.room.create").count();
        assert_eq!(creates, 1, "{room_id}: {page}");
    }
}

#[tokio::test]
async fn a_room_cannot_be_made_with_any_amount_of_state() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let state: Vec<_> = (0..600)
        .map(|number| json!({ "type": "org.test", "state_key": number.to_string(), "content": {} }))
        .collect();
    ann.post("/createRoom", json!({ "initial_state": state })).await.refused(413, "M_TOO_LARGE");
    ann.post("/createRoom", json!({ "initial_state": state[..100] })).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_of_the_largest_messages_at_once_are_all_taken() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let content = json!({ "msgtype": "m.text", "body": "x".repeat(64_000) });
    let sends = (0..120).map(|number| {
        let (ann, room_id, content) = (&ann, &room_id, &content);
        async move {
            let id = format!("big{number}");
            let mut answer = ann.send(room_id, "m.room.message", &id, content).await;
            // What is more than one user's share of memory is sent again, as clients do.
            while let Some(wait_ms) = answer.body["retry_after_ms"].as_u64() {
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                answer = ann.send(room_id, "m.room.message", &id, content).await;
            }
            answer
        }
    });
    for answer in join_all(sends).await {
        let _: Value = answer.ok();
    }
}

#[tokio::test]
async fn a_thread_of_a_receipt_is_a_thread() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let event_id = ann.send_text(&room_id, "t", "read me").await;
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&event_id));
    let junk = json!({ "thread_id": "x".repeat(10_000) });
    ann.post(&path, junk).await.refused(400, "M_INVALID_PARAM");
    ann.post(&path, json!({ "thread_id": "main" })).await.ok();
    ann.post(&path, json!({ "thread_id": event_id })).await.ok();
}

/// How long an ordinary user waits for a message and the sync that shows it: the times of `rounds`,
/// in order.
async fn waits(quiet: &User, room_id: &str, rounds: usize) -> Vec<Duration> {
    static SENT: AtomicU64 = AtomicU64::new(0);
    let mut since = quiet.sync(None, 0, None).await["next_batch"].as_str().unwrap().to_owned();
    let mut waits = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        let number = SENT.fetch_add(1, Ordering::Relaxed);
        quiet.send_text(room_id, &format!("quiet{number}"), "hello").await;
        let news = quiet.sync(Some(&since), 10_000, None).await;
        waits.push(begun.elapsed());
        since = news["next_batch"].as_str().unwrap().to_owned();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    waits.sort_unstable();
    waits
}

/// What a class of requests is: its name, the method, the path, and the body.
type Attack = (&'static str, &'static str, String, Option<Value>);

/// Sends the same request over and over on some connections while an ordinary user goes on. Gives
/// how long that user waited nine times of ten, and how many of the requests were answered.
async fn wait_during(
    hostile: &User,
    quiet: &User,
    room_id: &str,
    attack: &Attack,
) -> (Duration, u64) {
    let (ends, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let attackers: Vec<_> = (0..8)
        .map(|_| {
            let (hostile, attack) = (hostile.clone(), attack.clone());
            let (ends, answered) = (Arc::clone(&ends), Arc::clone(&answered));
            tokio::spawn(async move {
                let (_, method, path, body) = attack;
                let token = format!("Bearer {}", hostile.access_token);
                let headers = [("authorization", &*token), ("content-type", "application/json")];
                let body = Bytes::from(body.map(|body| body.to_string()).unwrap_or_default());
                while !ends.load(Ordering::Relaxed) {
                    // What is answered is not parsed: that would delay the other user's client.
                    let answer = hostile.http.raw(method, &path, &headers, body.clone()).await;
                    let status = answer.parts.status.as_u16();
                    assert!([200, 429].contains(&status), "{path}: {status}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let during = waits(quiet, room_id, 40).await;
    ends.store(true, Ordering::Relaxed);
    join_all(attackers).await.into_iter().for_each(|ended| ended.unwrap());
    (during[35], answered.load(Ordering::Relaxed))
}

/// A room of `hostile` with everything in it that takes long to read. Gives it, and the event with
/// relations.
async fn costly_room(hostile: &User) -> (String, String) {
    let room_id = hostile.create_room(json!({ "preset": "public_chat" })).await;
    let root = hostile.send_text(&room_id, "root", "needle").await;
    let large = "needle hay ".repeat(5_300);
    for number in 0..60 {
        let content = json!({
            "msgtype": "m.text",
            "body": large,
            "m.relates_to": { "rel_type": "m.thread", "event_id": root },
        });
        hostile.send(&room_id, "m.room.message", &format!("l{number}"), &content).await.ok();
    }
    for number in 0..150 {
        let content = json!({ "topic": "state ".repeat(1_500) });
        hostile.set_state(&room_id, "org.test", &number.to_string(), &content).await.ok();
    }
    (room_id, root)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_class_of_requests_holds_up_another_user() {
    let _alone = alone().await;
    let server = server().await;
    let (hostile, quiet) = (user(&server, "mallory").await, user(&server, "ann").await);
    let room_id = quiet.create_room(json!({})).await;
    let (costly, root) = costly_room(&hostile).await;
    let v3 = |path: &str| format!("/_matrix/client/v3{path}");
    let path = |rest: &str| v3(&format!("/rooms/{}{rest}", encode(&costly)));
    let whole_state = json!({ "room": { "timeline": { "limit": 1000 } } }).to_string();
    let search = json!({ "search_categories": { "room_events": {
        "search_term": "needle",
        "include_state": true,
        "event_context": { "before_limit": 20, "after_limit": 20 },
        "filter": { "limit": 100 },
    } } });
    let users: serde_json::Map<_, _> =
        (0..9_000).map(|number| (format!("@u{number}:e2e.test"), json!([]))).collect();
    let sliding = json!({ "lists": { "all": {
        "ranges": [[0, 99]], "timeline_limit": 100, "required_state": [["*", "*"]],
    } } });
    let sliding_path = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync".to_owned();
    let v1 = |rest: String| format!("/_matrix/client/v1/rooms/{}{rest}", encode(&costly));
    let threads = v1("/threads?limit=100".to_owned());
    let relations = v1(format!("/relations/{}?limit=1000", encode(&root)));
    let attacks: Vec<Attack> = vec![
        ("pages", "GET", path("/messages?dir=b&limit=1000"), None),
        ("contexts", "GET", path(&format!("/context/{}?limit=100", encode(&root))), None),
        ("threads", "GET", threads, None),
        ("relations", "GET", relations, None),
        ("state", "GET", path("/state"), None),
        ("initial syncs", "GET", v3(&format!("/sync?filter={}", encode(&whole_state))), None),
        ("sliding syncs", "POST", sliding_path, Some(sliding)),
        ("searches", "POST", v3("/search"), Some(search)),
        ("keys", "POST", v3("/keys/query"), Some(json!({ "device_keys": users }))),
        ("notifications", "GET", v3("/notifications?limit=100"), None),
    ];
    for attack in &attacks {
        let mut tries = 0..TRIES;
        while tries.next().is_some() {
            let usual = waits(&quiet, &room_id, 40).await[35];
            let (during, answered) = wait_during(&hostile, &quiet, &room_id, attack).await;
            println!("{}: {usual:?} before, {during:?} during {answered} requests", attack.0);
            assert!(answered > 0, "{} did nothing", attack.0);
            if hardly_delayed(usual, during) {
                break;
            }
            assert!(!tries.is_empty(), "{}: {usual:?} before, {during:?} during it", attack.0);
        }
    }
}

/// How often a wait is measured before it counts as too long. Other tests run meanwhile and may
/// delay one measurement; what the server does wrong delays each.
const TRIES: usize = 3;

/// Coarse: the server may be a build without optimisation, and the attackers' own client takes
/// time, too. `benches/hostile.py` measures it.
fn hardly_delayed(usual: Duration, during: Duration) -> bool {
    during < 5 * usual + Duration::from_millis(150)
}

/// Three new users whose rules have as many costly patterns as the server takes, with large unread
/// messages.
async fn judges(server: &TestServer, sender: &User, prefix: &str) -> Vec<User> {
    let room_id = sender.create_room(json!({ "preset": "public_chat" })).await;
    let mut judges = Vec::new();
    for number in 0..3 {
        let judge = user(server, &format!("{prefix}{number}")).await;
        judge.join(&room_id).await.ok();
        let mut taken = 0;
        for rule in 0..60 {
            let conditions: Vec<_> = (0..32)
                .map(|condition| {
                    let pattern = format!("*{}b", "b?".repeat((rule * 32 + condition) % 40));
                    json!({ "kind": "event_match", "key": "content.body", "pattern": pattern })
                })
                .collect();
            let path = format!("/pushrules/global/override/rule{rule}");
            let body = json!({ "actions": ["notify"], "conditions": conditions });
            let answer = judge.put(&path, body).await;
            taken += u32::from(answer.status == 200);
            if answer.status != 200 {
                answer.refused(413, "M_TOO_LARGE");
            }
        }
        assert!((5..30).contains(&taken), "{taken} of 60 rules were taken");
        judges.push(judge);
    }
    let body = format!("{}b", "ab ".repeat(19_600));
    for number in 0..40 {
        sender.send_text(&room_id, &format!("{prefix}u{number}"), &body).await;
    }
    judges
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costly_push_rules_do_not_delay_other_users() {
    let _alone = alone().await;
    let server = server().await;
    let (sender, quiet) = (user(&server, "sender").await, user(&server, "ann").await);
    let room_id = quiet.create_room(json!({})).await;
    let mut tries = 0..TRIES;
    while let Some(round) = tries.next() {
        let judges = judges(&server, &sender, &format!("judge{round}x")).await;
        let usual = waits(&quiet, &room_id, 20).await[17];
        let syncs: Vec<_> = judges
            .into_iter()
            .map(|judge| tokio::spawn(async move { judge.sync(None, 0, None).await }))
            .collect();
        let during = waits(&quiet, &room_id, 20).await[17];
        // Judging ends by its budget, and the event counts as matching no rule.
        let synced = tokio::time::timeout(Duration::from_secs(60), join_all(syncs)).await;
        for counts in synced.expect("judging ends") {
            let counts = counts.unwrap();
            assert!(counts["rooms"]["join"].as_object().is_some_and(|rooms| rooms.len() == 1));
        }
        println!("{usual:?} before, {during:?} during");
        if hardly_delayed(usual, during) {
            break;
        }
        assert!(!tries.is_empty(), "{usual:?} before, {during:?} during");
    }
    server.prints("the budget of a user's push rules").await;
}

#[tokio::test]
async fn pages_of_threads_are_bounded_in_bytes() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let large = "x".repeat(50_000);
    let mut roots = Vec::new();
    for number in 0..30 {
        let root = ann.send_text(&room_id, &format!("root{number}"), &large).await;
        let reply = json!({
            "msgtype": "m.text",
            "body": large,
            "m.relates_to": { "rel_type": "m.thread", "event_id": root },
        });
        ann.send(&room_id, "m.room.message", &format!("reply{number}"), &reply).await.ok();
        roots.push(root);
    }
    let path = format!("/_matrix/client/v1/rooms/{}/threads?limit=100", encode(&room_id));
    let (mut seen, mut from, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let token = Some(&*ann.access_token);
        let page = ann.http.request("GET", &format!("{path}{from}"), token, None).await.ok();
        assert!(page.to_string().len() < 1_500_000, "{} bytes", page.to_string().len());
        let chunk = page["chunk"].as_array().unwrap();
        seen.extend(chunk.iter().map(|root| root["event_id"].as_str().unwrap().to_owned()));
        pages += 1;
        match page["next_batch"].as_str() {
            Some(next) => from = format!("&from={}", encode(next)),
            None => break,
        }
    }
    roots.reverse();
    assert_eq!(seen, roots);
    assert!(pages > 2, "{pages}");
}
