//! A homeserver that has this one fetch without end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::Peer;
use super::{Federated, authority};
use crate::harness::stand_in::{Reply, reply, reply_json};
use crate::harness::{Asked, encode};

/// More than are fetched for a transaction.
const ANCESTORS: usize = 2500;

/// What the peer answers.
#[derive(Default)]
struct Answers {
    /// A chain of messages, the oldest first, and the place of each.
    chain: Vec<Value>,
    places: HashMap<String, usize>,
    /// Answered to everything instead.
    huge: Option<bytes::Bytes>,
    asked: usize,
}

impl Answers {
    fn answer(&mut self, asked: &Asked) -> Option<Reply> {
        if !asked.path.starts_with("/_matrix/federation/v1/") || asked.path.contains("/send/") {
            return None;
        }
        self.asked += 1;
        if let Some(huge) = &self.huge {
            return Some(reply(200, "application/json", huge.clone()));
        }
        if !asked.path.contains("get_missing_events") {
            return None;
        }
        let latest = asked.body["latest_events"].as_array()?;
        let places = latest.iter().filter_map(|id| self.places.get(id.as_str()?).copied());
        let place = places.min().unwrap_or(0);
        let limit = usize::try_from(asked.body["limit"].as_u64()?).ok()?;
        let events = &self.chain[place.saturating_sub(limit)..place];
        Some(reply_json(200, &json!({ "events": events })))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ancestors_without_end_and_huge_answers_cost_a_bounded_amount() {
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let answers = Arc::<Mutex<Answers>>::default();
    let answering = Arc::clone(&answers);
    let answer = Arc::new(move |asked: &Asked| answering.lock().expect("no panic").answer(asked));
    let peer = Peer::start_with(&authority, Duration::from_secs(3600), answer).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut of_peer = Hostile::new(&peer, &cabin, &room_id);
    of_peer.join().await;

    // Each comes after the one before it, and the first after one that nobody has.
    let mut message = of_peer.message("made up").await;
    message["prev_events"] = json!([format!("${}", "x".repeat(43))]);
    let mut last = Value::Null;
    for place in 0..=ANCESTORS {
        message["depth"] = json!(place + 10);
        let (event_id, event) = of_peer.signed(message.clone());
        message["prev_events"] = json!([event_id]);
        if place == ANCESTORS {
            last = event;
            break;
        }
        let mut answers = answers.lock().expect("no panic");
        answers.places.insert(event_id, place);
        answers.chain.push(event);
    }
    let asked = || std::mem::take(&mut answers.lock().expect("no panic").asked);
    asked();
    let memory = cabin.server.peak_memory();
    let mut number = 0;
    let mut talk = async |of_peer: &mut Hostile<'_>| {
        // While the peer keeps the server busy, ann goes on in the same room.
        let done = AtomicUsize::new(0);
        let events = [last.clone()];
        let sending = async {
            let said = of_peer.send(&events).await;
            done.store(1, Ordering::Relaxed);
            said
        };
        let talking = async {
            loop {
                number += 1;
                ann.send_text(&room_id, &format!("t{number}"), &format!("hello {number}")).await;
                if done.load(Ordering::Relaxed) == 1 {
                    return;
                }
            }
        };
        tokio::join!(sending, talking).0
    };
    let said = talk(&mut of_peer).await;
    let said = said.as_object().and_then(|said| said.values().next()).expect("an outcome");
    assert!(said["error"].is_string(), "{said}");
    let times = asked();
    assert!((2..=40).contains(&times), "{times} questions for one event");

    // A hundred megabytes for each question.
    answers.lock().expect("no panic").huge = Some(vec![b' '; 100 << 20].into());
    talk(&mut of_peer).await;
    let times = asked();
    assert!((1..=40).contains(&times), "{times} questions for one event");
    let grown = (cabin.server.peak_memory() - memory) >> 20;
    assert!(grown < 64, "{grown} MiB");
    let path = format!("/rooms/{}/messages?dir=b&limit=100", encode(&room_id));
    let page = ann.request("GET", &path, None).await.ok();
    assert!(!page.to_string().contains("made up"), "{page}");
}
