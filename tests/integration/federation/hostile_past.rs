//! A homeserver that makes up the history of its room.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ruma::room_version_rules::RoomVersionRules;
use ruma::signatures::{hash_and_sign_event, reference_hash};
use ruma::{CanonicalJsonObject, RoomVersionId};
use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::Peer;
use super::{Authority, Federated, authority};
use crate::harness::stand_in::{Reply, reply, reply_json};
use crate::harness::{Asked, User, encode};

const TIME: u64 = 1_700_000_000_000;

/// A room of the peer, and what it says of it.
#[derive(Default)]
struct Elsewhere {
    room_id: String,
    /// By id.
    events: BTreeMap<String, Value>,
    /// The ids in the order in which they were made.
    order: Vec<String>,
    /// By type and state key.
    state: BTreeMap<(String, String), String>,
    /// The state before the changes of the history visibility.
    before: BTreeMap<String, Vec<String>>,
    /// What is answered instead of the truth, while it lasts.
    backfill: Vec<Reply>,
    asked: usize,
}

impl Elsewhere {
    fn answer(&mut self, asked: &Asked) -> Option<Reply> {
        let whole = |ids: Vec<&String>| -> Vec<Value> {
            ids.into_iter().map(|id| self.events[id].clone()).collect()
        };
        let mut path = asked.path.trim_start_matches("/_matrix/federation/").to_owned();
        for (written, is) in [("%24", "$"), ("%2D", "-"), ("%3A", ":"), ("%40", "@"), ("%5F", "_")]
        {
            path = path.replace(written, is);
        }
        if path.starts_with("v1/make_join") {
            let state = ["m.room.create", "m.room.join_rules", "m.room.power_levels"];
            let auth: Vec<_> =
                state.iter().map(|of| &self.state[&((*of).to_owned(), String::new())]).collect();
            let user = path.rsplit('/').next()?.split('?').next()?;
            let event = json!({
                "type": "m.room.member", "room_id": self.room_id, "sender": user,
                "state_key": user, "content": { "membership": "join" }, "auth_events": auth,
                "prev_events": [self.order.last()], "depth": self.order.len() + 1,
            });
            return Some(reply_json(200, &json!({ "room_version": "10", "event": event })));
        }
        if path.starts_with("v2/send_join") {
            let state = whole(self.state.values().collect());
            return Some(reply_json(200, &json!({ "state": state, "auth_chain": state })));
        }
        if path.starts_with("v1/backfill") {
            self.asked += 1;
            if !self.backfill.is_empty() {
                return Some(self.backfill.remove(0));
            }
            // From the newest that is asked for, back.
            let place = self.order.iter().rposition(|id| path.contains(&**id));
            let place = place.map_or(0, |place| place + 1);
            let ids = self.order[place.saturating_sub(100)..place].iter().rev().collect();
            return Some(reply_json(200, &json!({ "origin": "peer", "pdus": whole(ids) })));
        }
        if path.starts_with("v1/event_auth") {
            let chain = whole(self.order.iter().take(5).collect());
            return Some(reply_json(200, &json!({ "auth_chain": chain })));
        }
        if path.starts_with("v1/state_ids") {
            let of = self.before.iter().find(|(id, _)| path.contains(&**id))?;
            let ids = json!({ "pdu_ids": of.1, "auth_chain_ids": [] });
            return Some(reply_json(200, &ids));
        }
        if path.starts_with("v1/event/") {
            let of = self.events.iter().find(|(id, _)| path.contains(&**id))?;
            return Some(reply_json(200, &json!({ "pdus": [of.1] })));
        }
        path.starts_with("v1/send/").then(|| reply_json(200, &json!({ "pdus": {} })))
    }
}

/// The peer with its room.
struct Stage {
    peer: Peer,
    room: Arc<Mutex<Elsewhere>>,
    rules: RoomVersionRules,
}

impl Stage {
    async fn set(authority: &Authority) -> Self {
        let room = Arc::<Mutex<Elsewhere>>::default();
        let answering = Arc::clone(&room);
        let answers =
            Arc::new(move |asked: &Asked| answering.lock().expect("no panic").answer(asked));
        let peer = Peer::start_with(authority, Duration::from_secs(3600), answers).await;
        let rules = RoomVersionId::V10.rules().expect("rules");
        room.lock().expect("no panic").room_id = format!("!made-up:{}", peer.name);
        let stage = Self { peer, room, rules };
        let pia = stage.pia();
        for (event_type, key, content) in [
            ("m.room.create", "", json!({ "creator": pia, "room_version": "10" })),
            ("m.room.member", &*pia, json!({ "membership": "join" })),
            ("m.room.power_levels", "", json!({ "users": { &*pia: 100 } })),
            ("m.room.join_rules", "", json!({ "join_rule": "public" })),
        ] {
            stage.state(event_type, key, content);
        }
        stage
    }

    fn pia(&self) -> String {
        format!("@pia:{}", self.peer.name)
    }

    fn room(&self) -> std::sync::MutexGuard<'_, Elsewhere> {
        self.room.lock().expect("no panic")
    }

    /// An event at the end of the room, which is not added to it.
    fn event(&self, event_type: &str, key: Option<&str>, content: Value) -> (String, Value) {
        let room = self.room();
        let key_of = |event_type: &str, key: &str| (event_type.to_owned(), key.to_owned());
        let auth = [
            key_of("m.room.create", ""),
            key_of("m.room.power_levels", ""),
            key_of("m.room.member", &self.pia()),
        ];
        let auth: Vec<_> = auth.iter().filter_map(|key| room.state.get(key)).collect();
        let mut event = json!({
            "type": event_type, "room_id": room.room_id, "sender": self.pia(), "content": content,
            "origin_server_ts": TIME + room.order.len() as u64, "depth": room.order.len() + 1,
            "prev_events": room.order.last().into_iter().collect::<Vec<_>>(), "auth_events": auth,
        });
        if let Some(key) = key {
            event["state_key"] = json!(key);
        }
        self.signed(event)
    }

    fn signed(&self, event: Value) -> (String, Value) {
        let mut object: CanonicalJsonObject = serde_json::from_value(event).expect("an object");
        let (name, keys) = (self.peer.name.as_str(), &self.peer.keys);
        hash_and_sign_event(name, keys, &mut object, &self.rules.redaction).expect("an event");
        let hash = reference_hash(&object, &self.rules).expect("an event");
        (format!("${hash}"), json!(object))
    }

    fn add(&self, (id, event): (String, Value)) -> String {
        let mut room = self.room();
        room.order.push(id.clone());
        room.events.insert(id.clone(), event);
        id
    }

    fn state(&self, event_type: &str, key: &str, content: Value) -> String {
        let event = self.event(event_type, Some(key), content);
        let before = self.room().state.values().cloned().collect();
        self.room().before.insert(event.0.clone(), before);
        let id = self.add(event);
        self.room().state.insert((event_type.to_owned(), key.to_owned()), id.clone());
        id
    }

    fn say(&self, text: &str) -> String {
        let content = json!({ "msgtype": "m.text", "body": text });
        self.add(self.event("m.room.message", None, content))
    }

    async fn entered_by(&self, user: &User) -> String {
        let room_id = self.room().room_id.clone();
        let path = format!("/join/{}?via={}", encode(&room_id), self.peer.name);
        user.request("POST", &path, Some(&json!({}))).await.ok();
        room_id
    }
}

/// The texts of a page, newest first, with whether there may be more.
async fn texts(user: &User, room_id: &str, query: &str) -> (Vec<String>, Option<String>) {
    let path = format!("/rooms/{}/messages?dir=b&{query}", encode(room_id));
    let page = user.request("GET", &path, None).await.ok();
    let chunk = page["chunk"].as_array().expect("a list").iter();
    let bodies = chunk.filter_map(|event| event["content"]["body"].as_str());
    (bodies.map(ToOwned::to_owned).collect(), page["end"].as_str().map(ToOwned::to_owned))
}

/// A server without limits of rate, and the peer.
async fn stage() -> Option<(Authority, Federated, Stage, User)> {
    let authority = authority("hostile peers")?;
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let stage = Stage::set(&authority).await;
    let ann = cabin.server.register("ann").await;
    Some((authority, cabin, stage, ann))
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_fetched_only_as_far_as_somebody_reads() {
    let Some((_authority, _cabin, stage, ann)) = stage().await else { return };
    for number in 0..1500 {
        stage.say(&format!("old {number}"));
    }
    let room_id = stage.entered_by(&ann).await;
    // One page of few.
    let (read, end) = texts(&ann, &room_id, "limit=10").await;
    assert_eq!(read.first().map(String::as_str), Some("old 1499"));
    assert_eq!((read.len(), stage.room().asked), (9, 1));
    // A filter that matches nothing has it fetch no more than a page may.
    let filter = encode(&json!({ "types": ["none"] }).to_string());
    let query = format!("limit=10&filter={filter}&from={}", end.expect("an end"));
    let (none, end) = texts(&ann, &room_id, &query).await;
    assert!(none.is_empty() && end.is_some());
    let asked = stage.room().asked;
    assert!((2..=6).contains(&asked), "asked {asked} times");
    // And the whole of it, in the end.
    let (mut all, mut from) = (Vec::new(), String::new());
    loop {
        let (read, end) = texts(&ann, &room_id, &format!("limit=100{from}")).await;
        all.extend(read);
        let Some(end) = end else { break };
        from = format!("&from={end}");
    }
    let expected: Vec<_> = (0..1500).rev().map(|number| format!("old {number}")).collect();
    assert_eq!(all, expected);
    assert!(stage.room().asked <= 17);
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_is_left_out_of_a_rooms_history() {
    let Some((_authority, _cabin, stage, ann)) = stage().await else { return };
    stage.say("one");
    let content = |text: &str| json!({ "msgtype": "m.text", "body": text });
    // What is not allowed, or not signed, is a step on the way back and nothing else.
    let (_, mut event) = stage.event("m.room.message", None, content("bad sender"));
    event["sender"] = json!(format!("@eve:{}", stage.peer.name));
    for name in ["hashes", "signatures"] {
        event.as_object_mut().expect("an event").remove(name);
    }
    stage.add(stage.signed(event));
    let (id, mut event) = stage.event("m.room.message", None, content("bad signature"));
    event["signatures"] = json!({ stage.peer.name.as_str(): { "ed25519:peer": "AAAA" } });
    stage.add((id, event));
    let (id, mut event) = stage.event("m.room.message", None, content("two"));
    // This content does not fit its hash.
    event["content"] = content("bad content");
    stage.add((id, event));
    stage.say("three");
    // Events of another room, that nothing leads to, too large, and no events.
    let (_, mut foreign) = stage.event("m.room.message", None, content("bad room"));
    foreign["room_id"] = json!("!other:example.org");
    let (_, foreign) = stage.signed(foreign);
    let (_, stray) = stage.event("m.room.message", None, content("bad stray"));
    let (_, mut large) = stage.event("m.room.message", None, content("bad size"));
    large["content"]["more"] = json!("x".repeat(200_000));
    let mut pdus: Vec<Value> = vec![foreign, stray, large, json!(7), json!({}), json!([])];
    {
        let mut room = stage.room();
        pdus.extend(room.order.iter().rev().map(|id| room.events[id].clone()));
        let junk = reply_json(200, &json!({ "pdus": pdus }));
        room.backfill = vec![
            reply(200, "application/json", "no JSON"),
            reply(200, "application/json", vec![b' '; 9 << 20]),
            junk,
        ];
    }
    let room_id = stage.entered_by(&ann).await;
    let mut read = Vec::new();
    crate::harness::until("there is an answer of use", async || {
        read = texts(&ann, &room_id, "limit=50").await.0;
        !read.is_empty()
    })
    .await;
    assert_eq!(read, ["three", "one"]);
    assert_eq!(texts(&ann, &room_id, "limit=50").await.1, None, "the room's beginning is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_from_when_only_members_saw_it_is_not_shown() {
    let Some((authority, cabin, stage, ann)) = stage().await else { return };
    let setting = |name: &str| json!({ "history_visibility": name });
    let visibility = "m.room.history_visibility";
    stage.say("first");
    stage.state(visibility, "", setting("joined"));
    stage.say("secret");
    stage.state(visibility, "", setting("invited"));
    stage.say("secret, too");
    stage.state(visibility, "", setting("shared"));
    stage.say("last");
    let room_id = stage.entered_by(&ann).await;
    let (read, end) = texts(&ann, &room_id, "limit=50").await;
    assert_eq!((read, end), (vec!["last".to_owned(), "first".to_owned()], None));
    let secret = stage.room().order[6].clone();
    let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&secret));
    ann.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    let path = format!("/rooms/{}/context/{}", encode(&room_id), encode(&secret));
    ann.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    // Nor is it found.
    let search = json!({ "search_categories": { "room_events": { "search_term": "secret" } } });
    let found = ann.request("POST", "/search", Some(&search)).await.ok();
    assert_eq!(found["search_categories"]["room_events"]["count"], 0, "{found}");
    let search = json!({ "search_categories": { "room_events": { "search_term": "first" } } });
    let found = ann.request("POST", "/search", Some(&search)).await.ok();
    assert_eq!(found["search_categories"]["room_events"]["count"], 1, "{found}");
    // Another homeserver gets as little from here.
    let other = Peer::start(&authority).await;
    let mut other = Hostile::new(&other, &cabin, &room_id);
    other.join().await;
    let last = stage.room().order.last().cloned().expect("an event");
    let path = format!("/_matrix/federation/v1/backfill/{}", encode(&room_id));
    let path = format!("{path}?v={}&limit=50", encode(&last));
    let sent = other.ask("GET", &path, &Value::Null).await.ok();
    let sent = sent["pdus"].as_array().expect("a list");
    assert_eq!(sent.len(), 11, "{sent:?}");
    let said = sent.iter().filter(|event| event["type"] == "m.room.message");
    let said: Vec<_> = said.map(|event| event["content"]["body"].as_str()).collect();
    assert_eq!(said, [Some("last"), None, None, Some("first")]);
    let path = format!("/_matrix/federation/v1/event/{}", encode(&secret));
    let sent = other.ask("GET", &path, &Value::Null).await.ok();
    assert_eq!(sent["pdus"][0]["content"], json!({}), "{sent}");
    let path = format!("/_matrix/federation/v1/timestamp_to_event/{}", encode(&room_id));
    let path = format!("{path}?dir=f&ts={}", TIME + 6);
    let found = other.ask("GET", &path, &Value::Null).await.ok();
    assert_eq!(found["event_id"], stage.room().order[7], "the secret is not told of");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_nobody_can_fill_is_passed() {
    let Some((_authority, mut cabin, stage, ann)) = stage().await else { return };
    stage.say("lost");
    stage.room().backfill = vec![reply_json(200, &json!({ "pdus": [] }))];
    let room_id = stage.entered_by(&ann).await;
    assert_eq!(texts(&ann, &room_id, "limit=50").await, (Vec::new(), None));
    assert_eq!(stage.room().asked, 1);
    // It is not asked again soon, not even after a restart.
    cabin.server.restart().await;
    assert_eq!(texts(&ann, &room_id, "limit=50").await, (Vec::new(), None));
    assert_eq!(stage.room().asked, 1);
}
