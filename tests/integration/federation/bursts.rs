//! Many messages at a time reach the users of a Synapse live. It keeps what it receives of a room
//! in a queue, and drops events from one of a hundred.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::view::{join, until_member};
use super::with_synapse::both;
use crate::harness::{User, encode};

/// The messages of a burst.
const MESSAGES: usize = 300;

/// The messages of each room during an absence: more than Synapse keeps in its queue.
const MISSED: usize = 120;

/// What one user sees of some rooms by `/sync` alone.
struct Live<'a> {
    user: &'a User,
    since: String,
    /// The texts of each room, in the order in which they came.
    texts: Vec<(String, Vec<String>)>,
    /// How often something was left out of a timeline.
    gaps: usize,
}

impl<'a> Live<'a> {
    const FILTER: &'static str = r#"{"room":{"timeline":{"limit":100}}}"#;

    async fn begin(user: &'a User, rooms: &[String]) -> Self {
        let (mut since, mut joined) = (None::<String>, BTreeSet::new());
        while joined.len() < rooms.len() {
            let synced = user.sync(since.as_deref(), 1000, Some(Self::FILTER)).await;
            let of = |room_id: &&String| synced["rooms"]["join"][&***room_id].is_object();
            joined.extend(rooms.iter().filter(of).cloned());
            since = Some(next(&synced));
        }
        let texts = rooms.iter().map(|room_id| (room_id.clone(), Vec::new())).collect();
        Self { user, since: since.expect("rooms"), texts, gaps: 0 }
    }

    async fn look(&mut self) {
        let synced = self.user.sync(Some(&self.since), 1000, Some(Self::FILTER)).await;
        self.since = next(&synced);
        for (room_id, texts) in &mut self.texts {
            let timeline = &synced["rooms"]["join"][&**room_id]["timeline"];
            self.gaps += usize::from(timeline["limited"] == true);
            let events = timeline["events"].as_array().into_iter().flatten();
            texts
                .extend(events.filter_map(|event| Some(event["content"]["body"].as_str()?.into())));
        }
    }

    /// Looks until the last messages of all rooms have come. Nothing comes after them.
    async fn until(&mut self, last: &str) {
        let looking = async {
            while !self.texts.iter().all(|(_, texts)| texts.iter().any(|text| text == last)) {
                self.look().await;
            }
        };
        let looked = tokio::time::timeout(Duration::from_secs(100), looking).await;
        let came: Vec<_> = self.texts.iter().map(|(_, texts)| texts.len()).collect();
        assert!(looked.is_ok(), "`{last}` has not come: {came:?} messages, {} gaps", self.gaps);
    }
}

fn next(synced: &Value) -> String {
    synced["next_batch"].as_str().expect("a token").to_owned()
}

/// Rooms of this server's user, in which the other homeserver's user is.
async fn shared(host: &User, guest: &User, rooms: usize) -> Vec<String> {
    let mut all = Vec::new();
    for number in 0..rooms {
        let alias = format!("hall{number}");
        let options = json!({ "preset": "public_chat", "room_alias_name": alias });
        let room_id = host.create_room(options).await;
        let server = host.user_id.split_once(':').expect("a user id").1;
        join(guest, &format!("#{alias}:{server}")).await;
        until_member(host, &room_id, guest, "join").await;
        all.push(room_id);
    }
    all
}

/// Says so much in each room at once, and then one more thing.
async fn burst(user: &User, rooms: &[String], messages: usize) {
    let mut saying = tokio::task::JoinSet::new();
    for room_id in rooms {
        for number in 0..messages {
            let (user, room_id) = (user.clone(), room_id.clone());
            saying.spawn(async move {
                let text = format!("burst {number}");
                user.send_text(&room_id, &encode(&text), &text).await
            });
        }
    }
    saying.join_all().await;
    for room_id in rooms {
        user.send_text(room_id, "last", "last").await;
    }
}

/// The texts of a room as its own homeserver has them, from the burst on.
async fn said(user: &User, room_id: &str) -> Vec<String> {
    let (mut texts, mut from) = (Vec::new(), String::new());
    loop {
        let path = format!("/rooms/{}/messages?dir=b&limit=100{from}", encode(room_id));
        let page = user.request("GET", &path, None).await.ok();
        let events = page["chunk"].as_array().into_iter().flatten();
        texts
            .extend(events.filter_map(|event| Some(event["content"]["body"].as_str()?.to_owned())));
        match page["end"].as_str() {
            Some(end) => from = format!("&from={}", encode(end)),
            None => break,
        }
    }
    texts.reverse();
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_messages_arrives_live_and_in_order() {
    let Some((_authority, cabin, synapse)) = both("bursts").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let rooms = shared(&ann, &bob, 2).await;
    let mut live = Live::begin(&bob, &rooms).await;
    let began = tokio::time::Instant::now();
    burst(&ann, &rooms[..1], MESSAGES).await;
    let sent = began.elapsed();
    // What is said in another room does not wait for the burst.
    ann.send_text(&rooms[1], "aside", "last").await;
    let mut aside = None;
    while aside.is_none() && began.elapsed() < Duration::from_secs(100) {
        live.look().await;
        aside = live.texts[1].1.first().map(|_| began.elapsed());
    }
    let before = live.texts[0].1.len();
    live.until("last").await;
    println!("sent in {sent:?}, aside after {aside:?} and {before}, all in {:?}", began.elapsed());
    let (came, gaps) = (&live.texts[0].1, live.gaps);
    assert_eq!((came.len(), gaps), (MESSAGES + 1, 0), "messages and gaps");
    assert_eq!(*came, said(&ann, &rooms[0]).await);
    assert!(before < MESSAGES, "the other room waited for {before} messages");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_in_a_short_absence_arrives_live() {
    let Some((_authority, cabin, mut synapse)) = both("absences").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let rooms = shared(&ann, &bob, 2).await;
    let mut live = Live::begin(&bob, &rooms).await;
    synapse.kill();
    burst(&ann, &rooms, MISSED).await;
    synapse.run().await;
    live.until("last").await;
    let came: Vec<_> = live.texts.iter().map(|(_, texts)| texts.len()).collect();
    assert_eq!((came, live.gaps), (vec![MISSED + 1; 2], 0), "messages and gaps");
    for (room_id, texts) in &live.texts {
        assert_eq!(*texts, said(&ann, room_id).await);
    }
}
