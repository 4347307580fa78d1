//! A homeserver in a room of this one that signs properly and sends what it must not.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use ruma::room_version_rules::RoomVersionRules;
use ruma::serde::{
    Base64,
    base64::{Standard, UrlSafe},
};
use ruma::signatures::{hash_and_sign_event, reference_hash, sign_json};
use ruma::{CanonicalJsonObject, RoomVersionId};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::peer::{Peer, Script};
use super::{Federated, authority};
use crate::harness::{User, encode};

/// A homeserver with a user, pia, in a room of this one, which has version 10.
pub(super) struct Hostile<'a> {
    peer: &'a Peer,
    /// The name of this server, and where it is asked.
    name: String,
    address: SocketAddr,
    room_id: String,
    version: RoomVersionId,
    rules: RoomVersionRules,
    transactions: u32,
}

impl<'a> Hostile<'a> {
    /// One in a room of version 10.
    pub(super) fn new(peer: &'a Peer, cabin: &'a Federated, room_id: &str) -> Self {
        Self::at(peer, &cabin.name, cabin.address, room_id)
    }

    /// One that asks the server of this name at this address.
    pub(super) fn at(peer: &'a Peer, name: &str, address: SocketAddr, room_id: &str) -> Self {
        let version = RoomVersionId::V10;
        let rules = version.rules().expect("rules");
        let (name, room_id) = (name.to_owned(), room_id.to_owned());
        Self { peer, name, address, room_id, version, rules, transactions: 0 }
    }

    /// The same in a room of this version.
    pub(super) fn of_version(mut self, version: RoomVersionId) -> Self {
        self.rules = version.rules().expect("rules");
        self.version = version;
        self
    }

    /// The same, whose next transaction has this number.
    pub(super) const fn numbered(mut self, number: u32) -> Self {
        self.transactions = number;
        self
    }

    pub(super) fn user(&self, name: &str) -> String {
        format!("@{name}:{}", self.peer.name)
    }

    /// Its name.
    pub(super) fn origin(&self) -> &str {
        self.peer.name.as_str()
    }

    pub(super) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> crate::harness::Answer {
        let header = self.peer.header(&self.name, method, path, body);
        self.peer.send(self.address, method, path, Some(&header), body).await
    }

    /// The event with its hashes and the peer's signature, and its id.
    pub(super) fn signed(&self, event: Value) -> (String, Value) {
        let event = self.with_id(event);
        let mut object: CanonicalJsonObject = serde_json::from_value(event).expect("an object");
        let (name, keys) = (self.peer.name.as_str(), &self.peer.keys);
        hash_and_sign_event(name, keys, &mut object, &self.rules.redaction).expect("an event");
        (self.id(&object), json!(object))
    }

    /// The event with an id, if one has to be chosen and none is.
    fn with_id(&self, mut event: Value) -> Value {
        if self.rules.event_format.require_event_id && event["event_id"].is_null() {
            let hash = Base64::<UrlSafe, _>::new(Sha256::digest(event.to_string())).encode();
            event["event_id"] = json!(format!("${hash}:{}", self.peer.name));
        }
        event
    }

    fn id(&self, event: &CanonicalJsonObject) -> String {
        match event.get("event_id").and_then(|id| id.as_str()) {
            Some(chosen) => chosen.to_owned(),
            None => format!("${}", reference_hash(event, &self.rules).expect("an event")),
        }
    }

    /// The same for a message with numbers that canonical JSON does not have.
    pub(super) fn signed_with_odd_numbers(&self, event: Value) -> (String, Value) {
        let mut event = self.with_id(event);
        let hash = Base64::<Standard, _>::new(Sha256::digest(event.to_string())).encode();
        event["hashes"] = json!({ "sha256": hash });
        // The content of a message is not signed.
        let mut redacted = event.clone();
        redacted["content"] = json!({});
        let mut redacted: CanonicalJsonObject = serde_json::from_value(redacted).expect("JSON");
        let id = self.id(&redacted);
        sign_json(self.peer.name.as_str(), &self.peer.keys, &mut redacted).expect("an event");
        event["signatures"] = json!(redacted["signatures"]);
        (id, event)
    }

    /// What the server says of events that are sent to it.
    pub(super) async fn send(&mut self, events: &[Value]) -> Value {
        self.transactions += 1;
        let path = format!("/_matrix/federation/v1/send/t{}", self.transactions);
        let body = json!({ "origin": self.peer.name, "origin_server_ts": now(), "pdus": events });
        self.ask("PUT", &path, &body).await.ok()["pdus"].clone()
    }

    /// Sends a transaction with these items, in which a text stands in the place of another one:
    /// what is sent, and its canonical form. Returns the status of the answer.
    pub(super) async fn send_text(
        &mut self,
        items: &Value,
        place: &str,
        (text, canonical): (&str, &str),
    ) -> u16 {
        self.transactions += 1;
        let path = format!("/_matrix/federation/v1/send/w{}", self.transactions);
        let mut body = json!({ "origin": self.peer.name, "origin_server_ts": now() });
        for name in ["pdus", "edus"] {
            body[name] = items[name].clone();
        }
        let body = body.to_string();
        let header = self.peer.header_of(&self.name, "PUT", &path, &body.replace(place, canonical));
        let body = body.replace(place, text);
        self.peer.send_text(self.address, "PUT", &path, Some(&header), body).await.status
    }

    /// Sends EDUs, each a type with its content.
    pub(super) async fn send_edus(&mut self, edus: &[(&str, Value)]) {
        self.transactions += 1;
        let path = format!("/_matrix/federation/v1/send/e{}", self.transactions);
        let edu = |(name, content): &(&str, Value)| json!({ "edu_type": name, "content": content });
        let edus: Vec<_> = edus.iter().map(edu).collect();
        let body = json!({
            "origin": self.peer.name, "origin_server_ts": now(), "pdus": [], "edus": edus,
        });
        self.ask("PUT", &path, &body).await.ok();
    }

    /// A message that comes after the end of the room, as the server describes it.
    pub(super) async fn message(&self, body: &str) -> Value {
        let user = self.user("pia");
        let path = format!(
            "/_matrix/federation/v1/make_leave/{}/{}",
            encode(&self.room_id),
            encode(&user)
        );
        let made = self.ask("GET", &path, &Value::Null).await.ok();
        let mut event = made["event"].clone();
        let event = event.as_object_mut().expect("an event");
        event.remove("state_key");
        event.insert("type".to_owned(), json!("m.room.message"));
        event.insert("content".to_owned(), json!({ "msgtype": "m.text", "body": body }));
        event.insert("origin_server_ts".to_owned(), json!(now()));
        json!(event)
    }

    pub(super) async fn join(&mut self) {
        self.join_as("pia").await;
    }

    pub(super) async fn join_as(&mut self, name: &str) {
        let join = self.make_join(name).await;
        self.send_join(&join).await;
    }

    /// What is to be signed for a join.
    pub(super) async fn make_join(&self, name: &str) -> Value {
        let (room, of) = (encode(&self.room_id), encode(&self.user(name)));
        let version = &self.version;
        let path = format!("/_matrix/federation/v1/make_join/{room}/{of}?ver={version}");
        let made = self.ask("GET", &path, &Value::Null).await.ok();
        assert_eq!(made["room_version"], json!(version));
        made["event"].clone()
    }

    pub(super) async fn send_join(&self, join: &Value) {
        let (event_id, event) = self.signed(join.clone());
        let (room, id) = (encode(&self.room_id), encode(&event_id));
        let path = format!("/_matrix/federation/v2/send_join/{room}/{id}");
        let joined = self.ask("PUT", &path, &event).await.ok();
        assert!(joined["state"].as_array().is_some_and(|state| state.len() > 4), "{joined}");
    }
}

/// A room of ann's with pia of the peer in it.
pub(super) async fn with_pia<'a>(
    peer: &'a Peer,
    cabin: &'a Federated,
) -> (User, String, Hostile<'a>) {
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut hostile = Hostile::new(peer, cabin, &room_id);
    hostile.join().await;
    (ann, room_id, hostile)
}

pub(super) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
    u64::try_from(now.as_millis()).expect("a time")
}

pub(super) async fn texts(user: &User, room_id: &str) -> Vec<String> {
    let path = format!("/rooms/{}/messages?dir=b&limit=100", encode(room_id));
    let page = user.request("GET", &path, None).await.ok();
    let bodies = page["chunk"].as_array().expect("a list").iter();
    bodies.filter_map(|event| event["content"]["body"].as_str().map(ToOwned::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_must_not_be_are_refused_and_change_nothing() {
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let (peer, stranger) = (Peer::start(&authority).await, Peer::start(&authority).await);
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let hostile = |peer| Hostile::new(peer, &cabin, &room_id);
    let mut of_peer = hostile(&peer);
    of_peer.join().await;

    // A good one, twice, and once more in another transaction.
    let (event_id, good) = of_peer.signed(of_peer.message("good").await);
    for events in [vec![good.clone(), good.clone()], vec![good.clone()]] {
        let said = of_peer.send(&events).await;
        assert_eq!(said, json!({ &*event_id: {} }));
    }
    // One who is not in the room.
    let mut of_stranger = hostile(&stranger);
    let said = of_stranger.send(std::slice::from_ref(&good)).await;
    assert!(said[&*event_id]["error"].is_string(), "{said}");
    let mut foreign = of_peer.message("of a stranger").await;
    foreign["sender"] = json!(of_stranger.user("sam"));
    let (id, foreign) = of_stranger.signed(foreign);
    assert!(of_stranger.send(&[foreign]).await[&id]["error"].is_string());

    let bad = |name: &str, event: Value| {
        let (id, event) = of_peer.signed(event);
        (name.to_owned(), id, event)
    };
    let message = of_peer.message("bad").await;
    let with = |name: &str, value: Value| {
        let mut event = message.clone();
        event[name] = value;
        event
    };
    let visibility =
        ann.request("GET", &format!("/rooms/{}/state", encode(&room_id)), None).await.ok();
    let is_visibility = |event: &&Value| event["type"] == "m.room.history_visibility";
    let visibility = visibility.as_array().expect("a list").iter().find(is_visibility);
    let visibility = visibility.expect("the history's visibility")["event_id"].clone();
    let and_by = |authority: &Value| {
        let mut authorities = message["auth_events"].as_array().expect("a list").clone();
        authorities.push(authority.clone());
        json!(authorities)
    };
    let mut unsigned = bad("without a signature", message.clone());
    unsigned.2.as_object_mut().expect("an event").remove("signatures");
    let mut altered = bad("with another's signature", with("depth", json!(77)));
    altered.2["signatures"] = good["signatures"].clone();
    let mut large = bad("too large", message.clone());
    large.2["content"]["body"] = json!("bad".repeat(30_000));
    let refused = [
        unsigned,
        altered,
        bad("in the name of ann", with("sender", json!(ann.user_id))),
        bad("by one who is not in the room", with("sender", json!(of_peer.user("nobody")))),
        bad("after what nobody has", with("prev_events", json!([format!("${}", "x".repeat(43))]))),
        bad("after nothing", with("prev_events", json!([]))),
        bad("by nobody's leave", with("auth_events", json!([format!("${}", "y".repeat(43))]))),
        bad("without authorities", with("auth_events", json!([]))),
        bad("with an authority twice", with("auth_events", and_by(&message["auth_events"][0]))),
        bad("with an authority that gives none", with("auth_events", and_by(&visibility))),
        large,
        bad("with a negative depth", with("depth", json!(-1))),
        bad("with too many predecessors", {
            let many: Vec<_> = (0..21).map(|n| format!("${}{n:02}", "z".repeat(41))).collect();
            with("prev_events", json!(many))
        }),
        bad("power", {
            let mut event = with("state_key", json!(""));
            event["type"] = json!("m.room.power_levels");
            event["content"] = json!({ "users": { of_peer.user("pia"): 100 }, "body": "bad" });
            event
        }),
        bad("another beginning", {
            let mut event = with("state_key", json!(""));
            event["type"] = json!("m.room.create");
            event["prev_events"] = json!([]);
            event["auth_events"] = json!([]);
            event["content"] = json!({ "creator": of_peer.user("pia"), "body": "bad" });
            event
        }),
    ];
    let rejected =
        refused.iter().find(|(name, ..)| name == "power").expect("it is there").1.clone();
    for (name, id, event) in refused {
        let said = of_peer.send(&[event]).await;
        // What is not even an event has no id.
        assert!(said.get(&id).is_none_or(|said| said["error"].is_string()), "{name}: {said}");
        assert!(!texts(&ann, &room_id).await.iter().any(|body| body.contains("bad")), "{name}");
    }
    // What comes after an event that comes after nothing has no state before it.
    let (nowhere, event) = of_peer.signed(with("prev_events", json!([])));
    let (id, next) = of_peer.signed(with("prev_events", json!([nowhere])));
    let said = of_peer.send(&[event, next]).await;
    assert!(said[&id]["error"].is_string(), "{said}");
    // The same if it comes as a membership.
    let mut leave = message.clone();
    leave["type"] = json!("m.room.member");
    leave["state_key"] = leave["sender"].clone();
    leave["content"] = json!({ "membership": "leave" });
    leave["prev_events"] = json!([]);
    let (nowhere, leave) = of_peer.signed(leave);
    let path = format!("send_leave/{}/{}", encode(&room_id), encode(&nowhere));
    let path = format!("/_matrix/federation/v2/{path}");
    of_peer.ask("PUT", &path, &leave).await.refused(400, "M_BAD_JSON");
    let (id, next) = of_peer.signed(with("prev_events", json!([nowhere])));
    let said = of_peer.send(&[next]).await;
    assert!(said[&id]["error"].is_string(), "{said}");
    // Others need a rejected event to take what follows it.
    let room = encode(&room_id);
    for path in [
        format!("event/{}", encode(&rejected)),
        format!("state_ids/{room}?event_id={}", encode(&rejected)),
    ] {
        of_peer.ask("GET", &format!("/_matrix/federation/v1/{path}"), &Value::Null).await.ok();
    }
    // Content that does not fit its hash is not shown, but the event is there.
    let (id, mut altered) = of_peer.signed(of_peer.message("original").await);
    altered["content"]["body"] = json!("altered");
    assert_eq!(of_peer.send(&[altered]).await, json!({ &*id: {} }));
    assert!(!texts(&ann, &room_id).await.iter().any(|body| body == "altered"));
    // Nobody else says what a homeserver's content is.
    let other = Peer::start(&authority).await;
    let mut of_other = hostile(&other);
    of_other.join().await;
    let (id, event) = of_other.signed(of_other.message("said").await);
    let mut altered = event.clone();
    altered["content"]["body"] = json!("altered");
    let said = of_peer.send(&[altered]).await;
    let error = "its content does not match its hash, and its sender's homeserver did not send it";
    assert_eq!(said[&id]["error"], error);
    assert_eq!(of_other.send(&[event]).await, json!({ &*id: {} }));
    assert!(texts(&ann, &room_id).await.iter().any(|body| body == "said"));
    // The greatest depth and a time far ahead keep nobody from talking.
    let mut last = of_peer.message("deep").await;
    last["depth"] = json!(9_007_199_254_740_991_u64);
    last["origin_server_ts"] = json!(now() + 1_000_000);
    let (id, last) = of_peer.signed(last);
    assert_eq!(of_peer.send(&[last]).await, json!({ &*id: {} }));
    ann.send_text(&room_id, "t1", "I go on").await;
    // Too much at once.
    let many: Vec<_> = (0..51).map(|_| good.clone()).collect();
    let body = json!({ "origin": peer.name, "origin_server_ts": now(), "pdus": many });
    let path = "/_matrix/federation/v1/send/many";
    of_peer.ask("PUT", path, &body).await.refused(413, "M_TOO_LARGE");
    // Shut out by the room's list.
    let (id, late) = of_peer.signed(of_peer.message("late").await);
    let acl = json!({ "allow": ["*"], "deny": ["localhost"], "allow_ip_literals": true });
    ann.set_state(&room_id, "m.room.server_acl", "", &acl).await.ok();
    assert!(of_peer.send(&[late]).await[&id]["error"].is_string());
    let backfill = format!(
        "/_matrix/federation/v1/backfill/{}?v={}&limit=10",
        encode(&room_id),
        encode(&event_id)
    );
    of_peer.ask("GET", &backfill, &Value::Null).await.refused(403, "M_FORBIDDEN");
    let all = texts(&ann, &room_id).await;
    assert_eq!(all, ["I go on", "deep", "said", "good"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_another_homeserver_altered_is_asked_for_at_its_senders() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let (script, lies) = (Script::default(), Script::default());
    let (sender, liar) = (script.start(&authority).await, lies.start(&authority).await);
    let (ann, room_id, of_sender) = with_pia(&sender, &cabin).await;
    let mut of_liar = Hostile::new(&liar, &cabin, &room_id);
    of_liar.join().await;
    // The liar says something after a message that only it knows, and tells that with other words.
    let mut follow = async |text: &str, truth: &dyn Fn(&Value) -> Option<Value>| {
        let (event_id, event) = of_sender.signed(of_sender.message(text).await);
        script.set(truth(&event).map(|event| ("event", json!({ "pdus": [event] }))));
        let mut altered = event.clone();
        altered["content"]["body"] = json!("altered");
        lies.set([("get_missing_events", json!({ "events": [altered] }))]);
        let mut next = of_liar.message(&format!("after {text}")).await;
        next["prev_events"] = json!([event_id]);
        next["depth"] = json!(event["depth"].as_u64().expect("a depth") + 1);
        let (id, next) = of_liar.signed(next);
        assert_eq!(of_liar.send(&[next]).await, json!({ &*id: {} }));
    };
    follow("one", &|event| Some(event.clone())).await;
    assert_eq!(texts(&ann, &room_id).await, ["after one", "one"]);
    // A homeserver that does not answer, or alters its own message, holds up little.
    sender.is_silent_on(&["/_matrix/federation/v1/event/"]);
    let began = std::time::Instant::now();
    follow("two", &|_| None).await;
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    sender.is_silent_on(&[]);
    follow("three", &|event| {
        let mut altered = event.clone();
        altered["content"]["body"] = json!("altered by its sender");
        Some(altered)
    })
    .await;
    assert_eq!(texts(&ann, &room_id).await, ["after three", "after two", "after one", "one"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_event_does_not_block_the_events_after_it() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let script = Script::default();
    let peer = script.start(&authority).await;
    let (ann, room_id, mut of_peer) = with_pia(&peer, &cabin).await;
    let state = ann.request("GET", &format!("/rooms/{}/state", encode(&room_id)), None).await.ok();
    let ids: Vec<_> = state.as_array().expect("a list").iter().map(|of| &of["event_id"]).collect();
    script.set([
        ("state_ids", json!({ "pdu_ids": ids, "auth_chain_ids": [] })),
        ("get_missing_events", json!({ "events": [] })),
    ]);
    let mut prev = format!("${}", "x".repeat(43));
    let template = of_peer.message("").await;
    for (place, text) in ["one", "two", "three"].into_iter().enumerate() {
        let mut message = template.clone();
        message["content"]["body"] = json!(text);
        message["prev_events"] = json!([prev]);
        message["depth"] = json!(template["depth"].as_u64().expect("a depth") + place as u64 + 1);
        let (id, message) = of_peer.signed(message);
        assert_eq!(of_peer.send(&[message]).await, json!({ &*id: {} }), "{text}");
        prev = id;
    }
    let all = texts(&ann, &room_id).await;
    assert_eq!(all[..2], ["three", "two"], "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_the_largest_size_may_come_with_escapes() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let script = Script::default();
    let peer = script.start(&authority).await;
    let (ann, room_id, mut of_peer) = with_pia(&peer, &cabin).await;
    let text = "д".repeat(31_000);
    let (id, event) = of_peer.signed(of_peer.message(&text).await);
    let escaped = event.to_string().replace('д', "\\u0434");
    assert!(escaped.len() > 180_000);
    let event: Box<serde_json::value::RawValue> = serde_json::from_str(&escaped).expect("JSON");
    let answer = serde_json::to_string(&json!({ "events": [1] })).expect("JSON");
    script.set_text("get_missing_events", answer.replace('1', event.get()));
    let mut next = of_peer.message("next").await;
    next["prev_events"] = json!([id]);
    let (id, next) = of_peer.signed(next);
    assert_eq!(of_peer.send(&[next]).await, json!({ &*id: {} }));
    assert_eq!(texts(&ann, &room_id).await, ["next".to_owned(), text]);
}

#[tokio::test(flavor = "multi_thread")]
async fn homeservers_that_give_no_keys_do_not_hold_up_a_transaction() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let peer = Peer::start(&authority).await;
    let (ann, room_id, mut of_peer) = with_pia(&peer, &cabin).await;
    let template = of_peer.message("of nobody").await;
    let (mut silent, mut events) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let other = Peer::start(&authority).await;
        other.is_silent_on(&["/_matrix/key/"]);
        let of_other = Hostile::new(&other, &cabin, &room_id);
        let mut message = template.clone();
        message["sender"] = json!(of_other.user("sam"));
        events.push(of_other.signed(message).1);
        silent.push(other);
    }
    let (id, event) = of_peer.signed(of_peer.message("of pia").await);
    events.push(event);
    let began = std::time::Instant::now();
    let said = of_peer.send(&events).await;
    assert_eq!(said[&id], json!({}), "{said}");
    assert!(began.elapsed().as_secs() < 40, "{:?}", began.elapsed());
    assert_eq!(texts(&ann, &room_id).await, ["of pia"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_of_rooms_also_counts_rooms_of_other_homeservers() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &[("LOGCABIN_QUOTAS_ROOMS", "1")]).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let path = format!("/join/{}", encode(&format!("!elsewhere:{}", peer.name)));
    let asked = || peer.asked().iter().filter(|asked| asked.path.contains("make_join")).count();
    ann.request("POST", &path, Some(&json!({}))).await.refused(404, "M_NOT_FOUND");
    assert_eq!(asked(), 1, "the peer has no such room");
    ann.create_room(json!({})).await;
    ann.request("POST", &path, Some(&json!({}))).await.refused(413, "M_TOO_LARGE");
    assert_eq!(asked(), 1, "the peer was asked again");
}
