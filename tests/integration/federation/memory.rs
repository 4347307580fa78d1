//! Bodies and answers that stop half-way: how much memory they take, and who waits for them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::elsewhere::{Stage, stage};
use super::hostile::{Hostile, now};
use super::peer::Peer;
use super::{Federated, authority};
use crate::harness::stand_in::{Reply, Stops, reply, reply_json};
use crate::harness::{Asked, TestServer, encode, free_address, until};
use crate::monitoring::{scrape, value};

const MIB: u64 = 1 << 20;

/// Sends the head of a request and a half of its body, as much of it as the server takes, and keeps
/// the connection until the other end is dropped. Says what the server answers, if it does.
async fn half_sent<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    head: &str,
    length: usize,
) -> (S, String) {
    let head = format!("{head}Host: localhost\r\nContent-Length: {}\r\n\r\n", 2 * length);
    let sending = async {
        stream.write_all(head.as_bytes()).await?;
        let piece = vec![b' '; 64 * 1024];
        for _ in 0..length / piece.len() {
            stream.write_all(&piece).await?;
        }
        stream.flush().await
    };
    // The server may read no more of it.
    let _ = tokio::time::timeout(Duration::from_secs(8), sending).await;
    let mut answer = vec![0; 4096];
    let reading = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut answer)).await;
    let read = reading.ok().and_then(Result::ok).unwrap_or(0);
    (stream, String::from_utf8_lossy(&answer[..read]).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_bodies_that_nobody_signed_take_little_memory_and_nobody_waits_for_them() {
    crate::harness::nodes::one_server!("it measures the memory of one process");
    let Some(authority) = authority("half-sent bodies") else { return };
    let cabin = Federated::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let peer = Arc::new(Peer::start(&authority).await);
    let profile = format!("/_matrix/federation/v1/query/profile?user_id={}", encode(&ann.user_id));
    let (address, name) = (cabin.address, cabin.name.clone());
    peer.ask(address, &name, &profile).await.ok();
    let before = cabin.server.peak_memory();

    // Half a gigabyte, of six addresses, and in another's name.
    let mut attack = JoinSet::new();
    for number in 0..120_u8 {
        let (peer, origin) = (Arc::clone(&peer), peer.name.clone());
        attack.spawn(async move {
            let from = Ipv4Addr::new(127, 0, 0, 2 + number % 6);
            let stream = peer.connect_from(from, address).await.expect("a connection");
            let head = format!(
                "PUT /_matrix/federation/v1/send/x{number} HTTP/1.1\r\n\
                 Authorization: X-Matrix origin={origin},key=\"ed25519:a\",sig=\"AAAA\"\r\n"
            );
            half_sent(stream, &head, 4 << 20).await
        });
    }
    // Others are answered all the while, also those who send much at a time.
    let body = json!({
        "origin": peer.name, "origin_server_ts": now(), "pdus": [], "edus": [],
        "padding": "x".repeat(200 << 10),
    });
    let (mut times, mut halves) = (Vec::new(), Vec::new());
    while halves.len() < 120 {
        let began = Instant::now();
        peer.ask(address, &name, &profile).await.ok();
        let path = format!("/_matrix/federation/v1/send/good{}", times.len());
        let header = peer.header(&name, "PUT", &path, &body);
        peer.send(address, "PUT", &path, Some(&header), &body).await.ok();
        times.push(began.elapsed());
        while let Some(half) = attack.try_join_next() {
            halves.push(half.expect("no panic"));
        }
    }
    let grown = cabin.server.peak_memory().saturating_sub(before) / MIB;
    times.sort_unstable();
    let refused = halves.iter().filter(|(_, answer)| answer.contains(" 429 ")).count();
    println!("{grown} MiB more, {refused} refused, others waited for at most {:?}", times.last());
    assert!(grown < 100, "480 MiB of half-sent bodies took {grown} MiB");
    assert!(times.last().is_some_and(|time| *time < Duration::from_secs(8)), "{times:?}");
    // What they hold is not held for good: others need it.
    for number in 0..8 {
        let path = format!("/_matrix/federation/v1/send/large{number}");
        let body = json!({
            "origin": peer.name, "origin_server_ts": now(), "pdus": [], "edus": [],
            "padding": "x".repeat(3 << 20),
        });
        let header = peer.header(&name, "PUT", &path, &body);
        peer.send(address, "PUT", &path, Some(&header), &body).await.ok();
    }
    drop(halves);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_bodies_of_clients_take_little_memory() {
    crate::harness::nodes::one_server!("it measures the memory of one process");
    let server = TestServer::start().await;
    let ann = server.register("ann").await;
    let bob = server.register("bob").await;
    let address: SocketAddr = server.base().trim_start_matches("http://").parse().expect("it");
    let before = server.peak_memory();
    let token = format!("Authorization: Bearer {}\r\n", ann.access_token);
    let mut attack = JoinSet::new();
    for number in 0..200 {
        let head = match number % 2 {
            0 => "POST /_matrix/client/v3/register HTTP/1.1\r\n".to_owned(),
            _ => {
                let path = format!("/_matrix/client/v3/sendToDevice/m.x/{number}");
                format!("PUT {path} HTTP/1.1\r\n{token}")
            }
        };
        attack.spawn(async move {
            let stream = TcpStream::connect(address).await.expect("a connection");
            half_sent(stream, &head, 1 << 20).await
        });
    }
    let mut slowest = Duration::ZERO;
    let content = json!({ "messages": { &ann.user_id: { "*": { "x": "y".repeat(50 << 10) } } } });
    let (mut number, mut halves) = (0, Vec::new());
    while halves.len() < 200 {
        number += 1;
        let began = Instant::now();
        let path = format!("/sendToDevice/m.x/{number}");
        bob.request("PUT", &path, Some(&content)).await.ok();
        slowest = slowest.max(began.elapsed());
        while let Some(half) = attack.try_join_next() {
            halves.push(half.expect("no panic"));
        }
    }
    let grown = server.peak_memory().saturating_sub(before) / MIB;
    println!("{grown} MiB more, another user waited for at most {slowest:?}");
    assert!(grown < 64, "200 MiB of half-sent bodies took {grown} MiB");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    // An account has as much room as it uses, and what is idle makes some.
    until("there is room again", async || {
        number += 1;
        let path = format!("/sendToDevice/m.x/{number}");
        ann.request("PUT", &path, Some(&content)).await.status == 200
    })
    .await;
    drop(halves);
}

/// What the peer answers.
#[derive(Default)]
struct Answers {
    events: Vec<(String, Value)>,
    stops: Stops,
}

impl Answers {
    fn answer(&self, asked: &Asked) -> Option<Reply> {
        let path = asked.path.strip_prefix("/_matrix/federation/v1/")?;
        if path.starts_with("state_ids/") {
            // Twenty megabytes of a list without an end.
            let id = format!("\"${}\",", "x".repeat(43));
            let text = format!("{{\"pdu_ids\":[{}", id.repeat((20 << 20) / id.len()));
            return reply(200, "application/json", text).map(|mut reply| {
                reply.extensions_mut().insert(self.stops.clone());
                Some(reply)
            });
        }
        if path.starts_with("get_missing_events/") {
            return Some(reply_json(200, &json!({ "events": [] })));
        }
        let of = |(id, _): &&(String, Value)| path == format!("event/{}", encode(id));
        let (_, event) = self.events.iter().find(of)?;
        Some(reply_json(200, &json!({ "pdus": [event] })))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_stop_are_dropped_and_take_little_memory() {
    crate::harness::nodes::one_server!("it measures the memory of one process");
    const ROOMS: usize = 12;
    let Some(authority) = authority("answers that stop") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let answers = Arc::<Mutex<Answers>>::default();
    let answering = Arc::clone(&answers);
    let answer = Arc::new(move |asked: &Asked| answering.lock().expect("no panic").answer(asked));
    let peer = Peer::start_with(&authority, Duration::from_secs(3600), answer).await;
    let ann = cabin.server.register("ann").await;
    let mut events = Vec::new();
    for _ in 0..ROOMS {
        let options = json!({ "preset": "public_chat", "room_version": "10" });
        let room_id = ann.create_room(options).await;
        let mut hostile = Hostile::new(&peer, &cabin, &room_id);
        hostile.join().await;
        // One after one that the peer has, which is after one that nobody has.
        let mut message = hostile.message("made up").await;
        message["prev_events"] = json!([format!("${}", "x".repeat(43))]);
        let (event_id, event) = hostile.signed(message.clone());
        answers.lock().expect("no panic").events.push((event_id.clone(), event));
        message["prev_events"] = json!([event_id]);
        message["depth"] = json!(1000);
        events.push((hostile, message));
    }
    let before = cabin.server.peak_memory();
    let stops = answers.lock().expect("no panic").stops.clone();
    let began = Instant::now();
    let sending = events.iter().enumerate().map(|(number, (hostile, message))| async move {
        let (_, event) = hostile.signed(message.clone());
        let path = format!("/_matrix/federation/v1/send/s{number}");
        let body = json!({
            "origin": hostile.user("x").split_once(':').expect("a name").1,
            "origin_server_ts": now(), "pdus": [event],
        });
        hostile.ask("PUT", &path, &body).await
    });
    let sending = futures_util::future::join_all(sending);
    let mut sending = std::pin::pin!(sending);
    let mut slowest = Duration::ZERO;
    let mut number = 0;
    let watching = async {
        // While they are on their way, ann goes on in another room.
        let options = json!({ "preset": "private_chat" });
        let room_id = ann.create_room(options).await;
        while stops.left() < 2 {
            number += 1;
            let at = Instant::now();
            ann.send_text(&room_id, &format!("t{number}"), &format!("hello {number}")).await;
            slowest = slowest.max(at.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        _ = &mut sending => {}
        () = watching => {}
    }
    let (grown, took) = (cabin.server.peak_memory().saturating_sub(before) / MIB, began.elapsed());
    println!("{grown} MiB more, the first was dropped after {took:?}; ann waited {slowest:?}");
    assert!(grown < 128, "{} MiB of answers took {grown} MiB", 20 * ROOMS);
    assert!(took < Duration::from_secs(25), "{took:?}");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
}

/// They are copied from the answer that had them.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_wait_for_earlier_ones_stay_charged() {
    crate::harness::nodes::one_server!("it looks at the metrics of one server");
    let Some(authority) = authority("waiting events") else { return };
    let metrics = free_address().to_string();
    let cabin = Federated::start_with(&authority, &[("LOGCABIN_METRICS_BIND", &*metrics)]).await;
    let between = Arc::<OnceLock<Value>>::default();
    let answering = Arc::clone(&between);
    let answer = Arc::new(move |asked: &Asked| {
        let path = asked.path.strip_prefix("/_matrix/federation/v1/")?;
        if path.starts_with("get_missing_events/") {
            return Some(reply_json(200, answering.get()?));
        }
        // What comes before all of them never arrives.
        let mut begun = reply(200, "application/json", "{\"pdus\":[")?;
        begun.extensions_mut().insert(Stops::default());
        path.starts_with("event/").then_some(Some(begun))
    });
    let peer = Peer::start_with(&authority, Duration::from_secs(3600), answer).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let mut message = hostile.message(&"x".repeat(50_000)).await;
    message["prev_events"] = json!([format!("${}", "x".repeat(43))]);
    let mut chain = Vec::new();
    for _ in 0..40 {
        let (event_id, event) = hostile.signed(message.clone());
        message["prev_events"] = json!([event_id]);
        message["depth"] = json!(message["depth"].as_u64().expect("a depth") + 1);
        chain.push(event);
    }
    let (_, last) = hostile.signed(message);
    between.set(json!({ "events": chain })).expect("the first");
    let charged = async || {
        let counted = scrape(&metrics).await;
        value(&counted, "logcabin_body_memory_bytes{bodies=\"answers\"}").expect("the metric")
    };
    let body = json!({ "origin": peer.name, "origin_server_ts": now(), "pdus": [last] });
    let path = "/_matrix/federation/v1/send/waits";
    let mut sending = std::pin::pin!(hostile.ask("PUT", path, &body));
    // Not only while the answer is read.
    let waiting = async {
        let mut lately = Vec::new();
        until("they are charged", async || {
            lately.push(charged().await >= 1_900_000.0);
            tokio::time::sleep(Duration::from_millis(20)).await;
            lately.ends_with(&[true; 50])
        })
        .await;
    };
    tokio::select! {
        answer = &mut sending => panic!("it is answered: {:?}", answer.body),
        () = waiting => {}
    }
    sending.await.ok();
    until("nothing is charged", async || charged().await == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_whose_state_is_as_large_as_an_answer_may_be_is_joined() {
    const EVENTS: usize = 950;
    let Some((_authority, cabin, stage, ann)) = stage().await else { return };
    let content = "x".repeat(60_000);
    for number in 0..EVENTS {
        stage.state("org.example.large", &number.to_string(), json!({ "x": content }));
    }
    let before = cabin.server.peak_memory();
    // Two at a time: one waits for its turn.
    let other = stage.another();
    for number in 0..EVENTS * 3 / 8 {
        other.state("org.example.large", &number.to_string(), json!({ "x": content }));
    }
    // While it makes such answers, the peer may have no time to answer for its keys.
    let profile = format!("/_matrix/federation/v1/query/profile?user_id={}", encode(&ann.user_id));
    stage.peer.ask(cabin.address, &cabin.name, &profile).await.ok();
    let joining = async |stage: &Stage| stage.entered_by(&ann).await;
    let (room_id, _) = tokio::join!(joining(&stage), joining(&other));
    let path = format!("/rooms/{}/state/org.example.large/{}", encode(&room_id), EVENTS - 1);
    assert_eq!(ann.request("GET", &path, None).await.ok()["x"], content);
    let grown = cabin.server.peak_memory().saturating_sub(before) / MIB;
    println!("joins of 54 and of 20 MiB took {grown} MiB");
}
