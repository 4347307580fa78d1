//! A homeserver with rooms of its own, whose history it makes up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ruma::room_version_rules::RoomVersionRules;
use ruma::signatures::{hash_and_sign_event, reference_hash};
use ruma::{CanonicalJsonObject, RoomVersionId};
use serde_json::{Value, json};

use super::hostile::now;
use super::peer::Peer;
use super::{Authority, Federated, authority};
use crate::harness::stand_in::{Reply, reply_json};
use crate::harness::{Asked, User, encode, until};

pub(super) const TIME: u64 = 1_700_000_000_000;

/// A room of the peer, and what it says of it.
#[derive(Default)]
pub(super) struct Elsewhere {
    pub(super) room_id: String,
    /// By id.
    pub(super) events: BTreeMap<String, Value>,
    /// The ids in the order in which they were made.
    pub(super) order: Vec<String>,
    /// By type and state key.
    pub(super) state: BTreeMap<(String, String), String>,
    /// The state before the changes of the history visibility.
    before: BTreeMap<String, Vec<String>>,
    /// The first events that are not repeated among the authorities if they are in the state.
    pub(super) unrepeated: usize,
    /// What it adds to the content of a join.
    pub(super) added_to_join: Value,
    /// The room's version, as it says.
    pub(super) version: Option<&'static str>,
    /// What is answered instead of the truth, while it lasts.
    pub(super) backfill: Vec<Reply>,
    pub(super) asked: usize,
    /// The last event that it got or sent since somebody joined.
    tip: Option<String>,
    /// The ids of what it was sent, which is not part of its history yet.
    received: Vec<String>,
}

/// What a request to a homeserver is for, as it is written in the specification.
fn path_of(asked: &Asked) -> String {
    let mut path = asked.path.trim_start_matches("/_matrix/federation/").to_owned();
    for (written, is) in
        [("%21", "!"), ("%24", "$"), ("%2D", "-"), ("%3A", ":"), ("%40", "@"), ("%5F", "_")]
    {
        path = path.replace(written, is);
    }
    path
}

impl Elsewhere {
    fn receive(&mut self, pdu: &Value) {
        if pdu["room_id"] == self.room_id {
            let rules = RoomVersionId::V10.rules().expect("rules");
            let object: CanonicalJsonObject =
                serde_json::from_value(pdu.clone()).expect("an event");
            let id = format!("${}", reference_hash(&object, &rules).expect("an event"));
            self.events.insert(id.clone(), pdu.clone());
            self.received.push(id.clone());
            self.tip = Some(id);
        }
    }

    /// The answer to a request, if it is about this room.
    fn answer(&mut self, path: &str, body: &Value) -> Option<Reply> {
        if !path.contains(&self.room_id) && !path.starts_with("v1/event/") {
            return None;
        }
        if path.starts_with("v2/send_join") {
            self.receive(body);
        }
        let whole = |ids: Vec<&String>| -> Vec<Value> {
            ids.into_iter().map(|id| self.events[id].clone()).collect()
        };
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
            let version = self.version.unwrap_or("10");
            return Some(reply_json(200, &json!({ "room_version": version, "event": event })));
        }
        if path.starts_with("v2/send_join") {
            let state = whole(self.state.values().collect());
            let chain = whole(self.order.iter().take(4).skip(self.unrepeated).collect());
            let mut answer = json!({ "state": state, "auth_chain": chain, "event": body });
            if let Some(added) = self.added_to_join.as_object() {
                let content = answer["event"]["content"].as_object_mut().expect("content");
                content.extend(added.clone());
            }
            return Some(reply_json(200, &answer));
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
            let is_authority = |id: &&String| {
                self.order.iter().take(5).any(|first| first == *id)
                    || self.events[*id]["type"] == "m.room.member"
            };
            let chain = whole(self.order.iter().filter(is_authority).collect());
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
        None
    }
}

/// The rooms of a peer.
type Rooms = Arc<Mutex<Vec<Arc<Mutex<Elsewhere>>>>>;

/// The peer with a room.
pub(super) struct Stage {
    pub(super) peer: Arc<Peer>,
    rooms: Rooms,
    room: Arc<Mutex<Elsewhere>>,
    rules: RoomVersionRules,
}

impl Stage {
    pub(super) async fn set(authority: &Authority) -> Self {
        let rooms = Rooms::default();
        let answering = Arc::clone(&rooms);
        let answers = Arc::new(move |asked: &Asked| {
            let path = path_of(asked);
            let rooms = answering.lock().expect("no panic");
            let mut rooms = rooms.iter().map(|room| room.lock().expect("no panic"));
            if path.starts_with("v1/send/") {
                let pdus = asked.body["pdus"].as_array();
                rooms.for_each(|mut room| pdus.into_iter().flatten().for_each(|p| room.receive(p)));
                return Some(reply_json(200, &json!({ "pdus": {} })));
            }
            rooms.find_map(|mut room| room.answer(&path, &asked.body))
        });
        let peer = Peer::start_with(authority, Duration::from_secs(3600), answers).await;
        Self::with(Arc::new(peer), rooms)
    }

    /// Another room of the same peer.
    pub(super) fn another(&self) -> Self {
        Self::with(Arc::clone(&self.peer), Arc::clone(&self.rooms))
    }

    fn with(peer: Arc<Peer>, rooms: Rooms) -> Self {
        let room = Arc::<Mutex<Elsewhere>>::default();
        let number = {
            let mut rooms = rooms.lock().expect("no panic");
            rooms.push(Arc::clone(&room));
            rooms.len()
        };
        room.lock().expect("no panic").room_id = format!("!made-up-{number}:{}", peer.name);
        let rules = RoomVersionId::V10.rules().expect("rules");
        let stage = Self { peer, rooms, room, rules };
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

    pub(super) fn pia(&self) -> String {
        format!("@pia:{}", self.peer.name)
    }

    pub(super) fn room(&self) -> std::sync::MutexGuard<'_, Elsewhere> {
        self.room.lock().expect("no panic")
    }

    /// An event at the end of the room, which is not added to it.
    pub(super) fn event(
        &self,
        event_type: &str,
        key: Option<&str>,
        content: Value,
    ) -> (String, Value) {
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

    pub(super) fn signed(&self, event: Value) -> (String, Value) {
        self.signed_by(&self.peer, event)
    }

    /// The event with its hashes and the signature of a peer, and its id.
    pub(super) fn signed_by(&self, peer: &Peer, event: Value) -> (String, Value) {
        let mut object: CanonicalJsonObject = serde_json::from_value(event).expect("an object");
        let (name, keys) = (peer.name.as_str(), &peer.keys);
        hash_and_sign_event(name, keys, &mut object, &self.rules.redaction).expect("an event");
        let hash = reference_hash(&object, &self.rules).expect("an event");
        (format!("${hash}"), json!(object))
    }

    pub(super) fn add(&self, (id, event): (String, Value)) -> String {
        let mut room = self.room();
        room.order.push(id.clone());
        room.events.insert(id.clone(), event);
        id
    }

    pub(super) fn state(&self, event_type: &str, key: &str, content: Value) -> String {
        let event = self.event(event_type, Some(key), content);
        let before = self.room().state.values().cloned().collect();
        self.room().before.insert(event.0.clone(), before);
        let id = self.add(event);
        self.room().state.insert((event_type.to_owned(), key.to_owned()), id.clone());
        id
    }

    pub(super) fn say(&self, text: &str) -> String {
        let content = json!({ "msgtype": "m.text", "body": text });
        self.add(self.event("m.room.message", None, content))
    }

    /// Sends an event that comes after what the other homeserver did last, and gives its id.
    pub(super) async fn tell(&self, cabin: &Federated, event_type: &str, more: Value) -> String {
        let (_, mut event) = self.event(event_type, None, json!({}));
        let tip = self.room().tip.clone();
        event["prev_events"] = json!(tip.into_iter().collect::<Vec<_>>());
        event["depth"] = json!(self.room().events.len() + 1);
        event["origin_server_ts"] = json!(now());
        let event = event.as_object_mut().expect("an event");
        event.extend(more.as_object().expect("an object").clone());
        for name in ["hashes", "signatures"] {
            event.remove(name);
        }
        let (id, event) = self.signed(json!(event));
        let path = format!("/_matrix/federation/v1/send/{}", encode(&id));
        let body = json!({
            "origin": self.peer.name, "origin_server_ts": now(), "pdus": [event], "edus": [],
        });
        let header = self.peer.header(&cabin.name, "PUT", &path, &body);
        let said = self.peer.send(cabin.address, "PUT", &path, Some(&header), &body).await.ok();
        assert_eq!(said["pdus"], json!({ &*id: {} }));
        self.room().events.insert(id.clone(), event);
        self.room().tip = Some(id.clone());
        id
    }

    /// Waits until the peer was sent so many events, and makes them part of its history.
    pub(super) async fn keep_received(&self, count: usize) {
        until("the peer gets what is said", async || self.room().received.len() >= count).await;
        let mut room = self.room();
        let received = std::mem::take(&mut room.received);
        assert_eq!(received.len(), count);
        room.order.extend(received);
    }

    pub(super) async fn entered_by(&self, user: &User) -> String {
        let room_id = self.room().room_id.clone();
        let path = format!("/join/{}?via={}", encode(&room_id), self.peer.name);
        user.request("POST", &path, Some(&json!({}))).await.ok();
        room_id
    }
}

/// The texts of a page, newest first, with whether there may be more.
pub(super) async fn texts(
    user: &User,
    room_id: &str,
    query: &str,
) -> (Vec<String>, Option<String>) {
    let path = format!("/rooms/{}/messages?dir=b&{query}", encode(room_id));
    let page = user.request("GET", &path, None).await.ok();
    let chunk = page["chunk"].as_array().expect("a list").iter();
    let bodies = chunk.filter_map(|event| event["content"]["body"].as_str());
    (bodies.map(ToOwned::to_owned).collect(), page["end"].as_str().map(ToOwned::to_owned))
}

/// A server without limits of rate, and the peer.
pub(super) async fn stage() -> Option<(Authority, Federated, Stage, User)> {
    stage_with(&[]).await
}

/// The same with settings.
pub(super) async fn stage_with(
    settings: &[(&str, &str)],
) -> Option<(Authority, Federated, Stage, User)> {
    let authority = authority("hostile peers")?;
    let mut all = vec![("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    all.extend(settings);
    let cabin = Federated::start_with(&authority, &all).await;
    let stage = Stage::set(&authority).await;
    let ann = cabin.server.register("ann").await;
    Some((authority, cabin, stage, ann))
}
