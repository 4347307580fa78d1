//! A server of several nodes: what other homeservers send takes effect once, whichever nodes they
//! send it to; and they are told everything in order, whichever node tells them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::authority;
use super::devices::{devices_in, keys, query};
use super::ephemeral::{self, Watch};
use super::hostile::{Hostile, now};
use super::media::upload;
use super::peer::Peer;
use super::several::Several;
use super::synapse::{self, Synapse};
use super::to_device::{self, Inbox};
use super::view::{join, say, texts, until_member, until_same_state, until_says, whole_state};
use crate::administration::{command, done};
use crate::cluster::fleet::signal;
use crate::harness::stand_in::{Reply, reply_json};
use crate::harness::{Answer, Asked, User, encode, skip, until};

/// How a peer answers transactions.
#[derive(Clone, Copy, Default)]
enum Mood {
    #[default]
    Takes,
    Refuses,
    /// It takes the next one, and kills this process before it answers.
    Kills(u32),
}

/// What a peer says, and what it was told.
#[derive(Default)]
struct Says {
    mood: Mood,
    /// The transactions that it took.
    taken: Vec<Asked>,
    /// What it answers to those who miss events.
    missing: Vec<Value>,
    /// The devices of its user, and their number.
    devices: Vec<String>,
    stream_id: u64,
    /// How often the devices were fetched.
    fetched: usize,
}

impl Says {
    fn answer(&mut self, asked: &Asked) -> Option<Reply> {
        let path = asked.path.split('?').next()?;
        let pia = format!("@pia:{}", asked.headers.get("host")?.to_str().ok()?);
        let own = self.devices.iter().map(|id| (id, keys(&pia, id)));
        if path.starts_with("/_matrix/federation/v1/send/") {
            if !matches!(self.mood, Mood::Refuses) {
                self.taken.push(asked.clone());
            }
            return Some(match std::mem::take(&mut self.mood) {
                Mood::Takes => reply_json(200, &json!({ "pdus": {} })),
                Mood::Refuses => {
                    self.mood = Mood::Refuses;
                    reply_json(502, &json!({ "errcode": "M_UNKNOWN" }))
                }
                Mood::Kills(process) => {
                    assert!(signal("KILL", process), "the node runs");
                    None
                }
            });
        }
        if path.contains("/get_missing_events/") {
            return Some(reply_json(200, &json!({ "events": self.missing })));
        }
        if path.ends_with("/user/keys/query") {
            let own: serde_json::Map<_, _> = own.map(|(id, of)| (id.clone(), of)).collect();
            return Some(reply_json(200, &json!({ "device_keys": { pia: own } })));
        }
        if path.contains("/user/devices/") {
            self.fetched += 1;
            let own: Vec<_> = own.map(|(id, of)| json!({ "device_id": id, "keys": of })).collect();
            let answer = json!({ "user_id": pia, "stream_id": self.stream_id, "devices": own });
            return Some(reply_json(200, &answer));
        }
        None
    }
}

/// A peer with what it says.
struct Told {
    peer: Peer,
    says: Arc<Mutex<Says>>,
}

impl Told {
    async fn start(authority: &super::Authority) -> Self {
        let says = Arc::<Mutex<Says>>::default();
        let answering = Arc::clone(&says);
        let answers =
            Arc::new(move |asked: &Asked| answering.lock().expect("no panic").answer(asked));
        Self { peer: Peer::start_with(authority, Duration::from_secs(3600), answers).await, says }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Says) -> T) -> T {
        act(&mut self.says.lock().expect("no panic"))
    }

    fn is(&self, mood: Mood) {
        self.with(|says| says.mood = mood);
    }

    /// What is in the transactions that it took, under this name.
    fn all(&self, name: &str) -> Vec<Value> {
        let of = |asked: &Asked| asked.body[name].as_array().cloned().unwrap_or_default();
        self.with(|says| says.taken.iter().flat_map(of).collect())
    }

    /// The texts of the messages that it was told.
    fn texts(&self) -> Vec<String> {
        let pdus = self.all("pdus").into_iter();
        pdus.filter_map(|pdu| Some(pdu["content"]["body"].as_str()?.to_owned())).collect()
    }

    /// The contents of the EDUs of this type that it was told.
    fn edus(&self, edu_type: &str) -> Vec<Value> {
        let edus = self.all("edus").into_iter().filter(|edu| edu["edu_type"] == edu_type);
        edus.map(|edu| edu["content"].clone()).collect()
    }

    /// The texts of the messages to devices that it was told.
    fn letters(&self) -> Vec<String> {
        let letters = self.edus("m.direct_to_device").into_iter();
        let devices =
            letters.flat_map(|of| of["messages"].as_object().cloned().unwrap_or_default());
        let of_devices = devices.map(|(_, devices)| devices["A"]["text"].clone());
        of_devices.filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    }
}

/// Those that are new, in order.
fn once(all: &[String]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    all.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect()
}

/// Sends a transaction under this id.
async fn send(by: &Hostile<'_>, id: &str, pdus: &[Value], edus: &[(&str, Value)]) -> Answer {
    let edu = |(name, content): &(&str, Value)| json!({ "edu_type": name, "content": content });
    let edus: Vec<_> = edus.iter().map(edu).collect();
    let origin = by.user("").split_off(2);
    let body = json!({ "origin": origin, "origin_server_ts": now(), "pdus": pdus, "edus": edus });
    by.ask("PUT", &format!("/_matrix/federation/v1/send/{id}"), &body).await
}

/// An event that comes after another one.
fn after(event: &Value, id: &str, text: &str) -> Value {
    let mut next = event.clone();
    next["prev_events"] = json!([id]);
    next["depth"] = json!(event["depth"].as_u64().expect("a depth") + 1);
    next["content"] = json!({ "msgtype": "m.text", "body": text });
    next.as_object_mut()
        .expect("an event")
        .retain(|name, _| name != "hashes" && name != "signatures");
    next
}

/// Two users, each at a node, in a room.
async fn ann_and_ben(several: &Several) -> (User, User, String) {
    let (ann, ben) = (several.register(0, "ann").await, several.register(1, "ben").await);
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    ben.join(&room_id).await.ok();
    (ann, ben, room_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_homeserver_sends_takes_effect_once_whichever_nodes_it_sends_it_to() {
    const DEVICES: &str = "m.device_list_update";
    let Some(authority) = authority("several nodes") else { return };
    let Some(mut several) = Several::start("several nodes", &authority).await else { return };
    let told = Told::start(&authority).await;
    let peer = &told.peer;
    let (ann, ben, room_id) = ann_and_ben(&several).await;
    let (mut one, other) = (several.peer(peer, 0, &room_id), several.peer(peer, 1, &room_id));
    one.join().await;
    let pia = one.user("pia");
    let levels = ann.state(&room_id, "m.room.power_levels", "").await;
    let mut levels = levels.ok();
    levels["users"][&pia] = json!(100);
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let mut of_ann = Inbox::of(&ann).await;

    // Its user's devices are known, with their number.
    let update = |device: &str, number: u64| {
        json!({
            "user_id": pia, "device_id": device, "stream_id": number, "prev_id": [number - 1],
            "keys": keys(&pia, device),
        })
    };
    told.with(|says| (says.devices, says.stream_id) = (vec!["A".to_owned()], 5));
    query(&ann, &pia).await;
    one.send_edus(&[(DEVICES, update("A", 5))]).await;
    until("the list is known with its number", async || {
        several.records(0, "peer.devices").len() == 3
    })
    .await;

    const KINDS: [&str; 4] = ["room.event", "room.receipt", "to_device.send", "peer.devices"];
    for round in 0..6_u64 {
        let text = format!("round {round}");
        let heard = ann.send_text(&room_id, &encode(&text), "hello").await;
        let (id, message) = one.signed(one.message(&text).await);
        let read = json!({ "data": { "ts": now() }, "event_ids": [heard] });
        let typing = json!({ "room_id": room_id, "user_id": pia, "typing": round % 2 == 0 });
        let edus = [
            ("m.direct_to_device", to_device::letter(&pia, &text, &ann.user_id, "*", &text)),
            ("m.receipt", json!({ &*room_id: { "m.read": { &*pia: read } } })),
            (DEVICES, update(&format!("D{round}"), 6 + round)),
            ("m.typing", typing),
        ];
        let before = KINDS.map(|kind| several.records(0, kind).len());
        // The same transaction, and another one with the same in it.
        let (first, second) = match round % 2 {
            0 => (text.replace(' ', "-"), text.replace(' ', "-")),
            _ => (format!("a{round}"), format!("b{round}")),
        };
        let pdus = [message];
        let at_once =
            tokio::join!(send(&one, &first, &pdus, &edus), send(&other, &second, &pdus, &edus));
        let later =
            [send(&other, &first, &pdus, &edus).await, send(&one, &second, &pdus, &edus).await];
        for answer in [at_once.0, at_once.1].into_iter().chain(later) {
            assert_eq!(answer.ok()["pdus"], json!({ &*id: {} }));
        }
        let recorded = KINDS.map(|kind| several.records(0, kind).len());
        assert_eq!(recorded, before.map(|count| count + 1), "{KINDS:?} in round {round}");
        of_ann.until_from(&pia, &text).await;
        for user in [several.at(1, &ann), several.at(0, &ben)] {
            let count = texts(&user, &room_id).await.iter().filter(|(_, of)| *of == text).count();
            assert_eq!(count, 1, "{text} as {} sees it", user.user_id);
            let typists = ephemeral::typists(&user, &room_id).await;
            assert_eq!(typists, if round % 2 == 0 { json!([pia]) } else { json!([]) });
        }
    }
    assert_eq!(told.with(|says| says.fetched), 1, "the list of devices was followed");
    let known = devices_in(&query(&several.at(1, &ann), &pia).await, &pia);
    assert_eq!(known.len(), 7, "{known:?}");

    // It cannot choose the node that answers, by what clients name a node with.
    let status = several.fleet.status(0);
    let nodes = status["nodes"].as_array().expect("nodes").iter();
    for tag in nodes.map(|node| node["tag"].as_u64().expect("a mark")) {
        let path = "/_matrix/federation/v1/send/forward";
        let body = json!({
            "origin": peer.name, "origin_server_ts": now(), "pdus": [],
            "nonce": format!("x~{tag:04x}"),
        });
        assert_eq!(one.ask("PUT", path, &body).await.ok()["pdus"], json!({}));
    }

    // Of a chain of events, both nodes hear of the last one, and fetch the others.
    for round in 0..3 {
        let first = one.message(&format!("chain {round} 0")).await;
        let (mut id, mut event) = one.signed(first);
        let mut chain = vec![event.clone()];
        for number in 1..6 {
            (id, event) = one.signed(after(&event, &id, &format!("chain {round} {number}")));
            chain.push(event.clone());
        }
        let last = [chain.pop().expect("six events")];
        told.with(|says| says.missing = chain);
        let ids = [format!("c{round}"), format!("d{round}")];
        let at_once =
            tokio::join!(send(&one, &ids[0], &last, &[]), send(&other, &ids[1], &last, &[]));
        for answer in [at_once.0, at_once.1] {
            assert_eq!(answer.ok()["pdus"], json!({ &*id: {} }));
        }
        let wanted: Vec<_> = (0..6).map(|number| format!("chain {round} {number}")).collect();
        for user in [several.at(0, &ann), several.at(1, &ben)] {
            let seen = texts(&user, &room_id).await.into_iter().map(|(_, text)| text);
            let begin = format!("chain {round}");
            let seen: Vec<_> = seen.filter(|text| text.starts_with(&begin)).collect();
            assert_eq!(seen, wanted, "as {} sees it", user.user_id);
        }
    }

    // Branches, each of which another node hears of.
    for round in 0..4 {
        let mut topic = one.message("").await;
        topic["type"] = json!("m.room.topic");
        topic["state_key"] = json!("");
        let mut branch = |name: &str, later: u64| {
            topic["content"] = json!({ "topic": format!("{name} {round}") });
            topic["origin_server_ts"] = json!(now() + later);
            [one.signed(topic.clone()).1]
        };
        let (left, right) = (branch("left", round % 2), branch("right", (round + 1) % 2));
        let ids = [format!("l{round}"), format!("r{round}")];
        let at_once =
            tokio::join!(send(&one, &ids[0], &left, &[]), send(&other, &ids[1], &right, &[]));
        at_once.0.ok();
        at_once.1.ok();
        let states = [
            whole_state(&several.at(0, &ann), &room_id).await,
            whole_state(&several.at(1, &ann), &room_id).await,
        ];
        assert_eq!(states[0], states[1], "after the branches of round {round}");
        assert!(states[0].iter().any(|event| event.contains("m.room.topic")), "{states:?}");
    }

    // While the log takes no writes, the homeserver is not told that an event has arrived.
    let (id, message) = one.signed(one.message("while the log is away").await);
    let message = [message];
    several.fleet.nats.kill(0);
    let answer = send(&one, "away", &message, &[]).await;
    assert_eq!(answer.status, 503, "{answer}");
    several.fleet.nats.run(0);
    until("the event is taken", async || {
        let answer = send(&one, "away", &message, &[]).await;
        answer.status == 200 && answer.body["pdus"] == json!({ &*id: {} })
    })
    .await;
    let seen = texts(&several.at(1, &ben), &room_id).await;
    assert_eq!(seen.iter().filter(|(_, text)| text == "while the log is away").count(), 1);
    several.ends_with_the_same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_is_told_everything_in_order_whichever_node_tells_it() {
    let Some(authority) = authority("several nodes") else { return };
    let Some(mut several) = Several::start("several nodes", &authority).await else { return };
    let told = Told::start(&authority).await;
    let peer = &told.peer;
    let (ann, ben, room_id) = ann_and_ben(&several).await;
    let mut of_peer = several.peer(peer, 0, &room_id);
    of_peer.join().await;
    let pia = of_peer.user("pia");
    let mut said: Vec<String> = Vec::new();
    let mut number = 0;
    // A message, and one to pia's devices.
    let mut speak = async |by: &User| {
        number += 1;
        let text = format!("number {number}");
        say(by, &room_id, &text).await;
        to_device::send(by, &pia, "A", &text).await;
        said.push(text);
    };
    let is_told = |text: &str| {
        let (texts, letters) = (told.texts(), told.letters());
        [texts, letters].iter().all(|all| all.iter().any(|of| of == text))
    };
    for _ in 0..3 {
        speak(&ann).await;
        speak(&ben).await;
    }
    until("the peer is told", async || is_told("number 6")).await;
    let row = |node: usize| several.federation(node, "status")["destinations"][0].clone();
    let reached = |row: &Value| row["failing"].is_null() && row["waiting"]["events"] == 0;
    until("it is recorded", async || reached(&row(0))).await;
    assert_eq!((told.texts().len(), told.letters().len()), (6, 6), "each was told once");

    // What passes is told, too, whichever node its user is at, and nobody is told it twice.
    let teller = several.teller(&[0, 1]).await;
    let user_at_other = several.at(1 - teller, &ann);
    ephemeral::types(&user_at_other, &room_id, true).await;
    ephemeral::is(&user_at_other, "unavailable", "away").await;
    let last = said_last(&user_at_other, &room_id).await;
    ephemeral::reads(&user_at_other, &room_id, "m.read", &last, None).await;
    until("the peer sees ann typing", async || {
        told.edus("m.typing").iter().any(|of| of["user_id"] == ann.user_id && of["typing"] == true)
    })
    .await;
    until("the peer sees that ann is away", async || {
        told.edus("m.presence").iter().any(|of| of["push"][0]["status_msg"] == "away")
    })
    .await;
    until("the peer sees what ann has read", async || {
        told.edus("m.receipt").iter().any(|of| of.to_string().contains(&last))
    })
    .await;

    // The node that tells is killed while the peer takes a transaction, before it answers.
    for round in 0..2 {
        let teller = several.teller(&[0, 1]).await;
        let survivor = 1 - teller;
        let told_before = told.texts().len();
        let process = several.fleet.nodes[teller].process().expect("it runs");
        told.is(Mood::Kills(process));
        let (ann, ben) = (several.at(survivor, &ann), several.at(survivor, &ben));
        for _ in 0..5 {
            speak(&ann).await;
            speak(&ben).await;
        }
        let last = format!("number {}", 6 + 10 * (round + 1));
        until("the other node tells the peer", async || is_told(&last)).await;
        assert!(!several.fleet.nodes[teller].is_running(), "it was killed");
        assert_eq!(several.teller(&[survivor]).await, survivor);
        let (texts, letters) = (told.texts(), told.letters());
        let wanted: Vec<_> = (1..=6 + 10 * (round + 1)).map(|n| format!("number {n}")).collect();
        assert_eq!(once(&texts), wanted, "{texts:?}");
        assert_eq!(once(&letters), wanted, "{letters:?}");
        // What was known to have arrived is not repeated.
        let repeated = &texts[told_before..];
        let known = &wanted[..6 + 10 * round];
        assert!(!repeated.iter().any(|text| known.contains(text)), "{repeated:?}");
        // A repeated one has the id by which the peer knows it.
        let ids: BTreeSet<_> = told
            .edus("m.direct_to_device")
            .iter()
            .map(|of| (of["messages"].to_string(), of["message_id"].to_string()))
            .collect();
        assert_eq!(ids.len(), wanted.len(), "{ids:?}");
        several.fleet.nodes[teller].run();
        several.fleet.until_ready().await;
        let row = || several.federation(survivor, "status")["destinations"][0].clone();
        until("it is recorded", async || reached(&row())).await;
    }

    // One that hangs meanwhile, and goes on later, does not tell everything again.
    let teller = several.teller(&[0, 1]).await;
    let survivor = 1 - teller;
    several.fleet.nodes[teller].signal("STOP");
    let hung = several.at(survivor, &ann);
    speak(&hung).await;
    until("the other node tells the peer", async || is_told("number 27")).await;
    let row = || several.federation(survivor, "status")["destinations"][0].clone();
    until("it is recorded", async || reached(&row())).await;
    let up_to = row()["up_to"].as_u64();
    let told_before = told.texts().len();
    several.fleet.nodes[teller].signal("CONT");
    several.fleet.until_ready().await;
    speak(&several.at(teller, &ann)).await;
    until("the peer is told", async || is_told("number 28")).await;
    until("it is recorded", async || reached(&row()) && row()["up_to"].as_u64() > up_to).await;
    assert_eq!(told.texts()[told_before..], ["number 28"]);
    let texts = told.texts();
    assert_eq!(once(&texts), said.iter().map(String::as_str).collect::<Vec<_>>());

    several.ends_with_the_same_state().await;
}

/// The id of the newest message.
async fn said_last(user: &User, room_id: &str) -> String {
    let path = format!("/rooms/{}/messages?dir=b&limit=1", encode(room_id));
    user.request("GET", &path, None).await.ok()["chunk"][0]["event_id"]
        .as_str()
        .expect("an id")
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_requests_and_keys_reach_the_node_that_tells_from_any_other() {
    let Some(authority) = authority("several nodes") else { return };
    let Some(several) = Several::start("several nodes", &authority).await else { return };
    let told = Told::start(&authority).await;
    let peer = &told.peer;
    let name = peer.name.to_string();
    let ann = several.register(0, "ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    several.peer(peer, 0, &room_id).join().await;
    let is_told = |text: &str| told.texts().iter().any(|of| of == text);
    say(&ann, &room_id, "first").await;
    until("the peer is told", async || is_told("first")).await;
    // All is done at a node that does not tell.
    let teller = several.teller(&[0, 1]).await;
    let other = 1 - teller;
    let row = || several.federation(other, "status")["destinations"][0].clone();
    let attempts = || row()["failing"]["attempts"].as_u64().unwrap_or_default();
    let fail_until = async |tried: u64| {
        for tried in 1..=tried {
            until(&format!("it was tried {tried} times"), async || attempts() == tried).await;
            let done = several.federation(other, &format!("retry {name}"));
            assert_eq!(done["was_failing"], true, "{done}");
        }
        // The next pause is longer than a test waits.
        until("it is tried again", async || attempts() == tried + 1).await;
    };

    told.is(Mood::Refuses);
    say(&ann, &room_id, "second").await;
    fail_until(5).await;
    assert!(!is_told("second"));
    told.is(Mood::Takes);
    several.federation(other, &format!("retry {name}"));
    until("the order is heeded", async || is_told("second")).await;

    // A request of it is a reason to try at once.
    told.is(Mood::Refuses);
    say(&ann, &room_id, "third").await;
    fail_until(5).await;
    told.is(Mood::Takes);
    let path = format!("/_matrix/federation/v1/query/profile?user_id={}", encode(&ann.user_id));
    peer.ask(several.binds[other], &several.name, &path).await.ok();
    until("it is tried at once", async || is_told("third")).await;
    until("that is recorded", async || row()["failing"].is_null()).await;

    told.is(Mood::Refuses);
    say(&ann, &room_id, "never").await;
    until("it fails", async || attempts() >= 1).await;
    several.federation(other, &format!("reset {name} --yes"));
    until("it is reset", async || row()["failing"].is_null()).await;
    told.is(Mood::Takes);
    say(&ann, &room_id, "fourth").await;
    until("the peer is told", async || is_told("fourth")).await;
    assert!(!is_told("never"));

    // A new key is that of all nodes.
    let published = async |node: usize| {
        let path = "/_matrix/key/v2/server";
        let keys = peer.send(several.binds[node], "GET", path, None, &Value::Null).await.ok();
        (keys["verify_keys"].clone(), keys["old_verify_keys"].clone())
    };
    let before = published(teller).await;
    assert_eq!(published(other).await, before);
    let data_dir = &several.fleet.nodes[other].data_dir;
    done(command("federation", data_dir, "new-key", ""));
    let after = published(teller).await;
    assert_eq!(published(other).await, after);
    let (key, old) = (after.0.as_object().expect("keys"), &after.1);
    let key = key.keys().next().expect("a key");
    assert!(before.0[key].is_null(), "{before:?} {after:?}");
    assert_eq!(old.as_object().map(|old| old.len()), Some(1), "{old}");
    for node in [teller, other] {
        let text = format!("signed by {node}");
        say(&several.at(node, &ann), &room_id, &text).await;
        until("the peer is told", async || is_told(&text)).await;
    }
    let signed = told.with(|says| says.taken.last().cloned()).expect("a transaction");
    let header = signed.headers["authorization"].to_str().expect("a header").to_owned();
    assert!(header.contains(key.as_str()), "{key} in {header}");
    let pdus = told.all("pdus");
    for pdu in &pdus[pdus.len() - 2..] {
        assert!(pdu["signatures"][&several.name][key].is_string(), "{pdu}");
    }
    several.ends_with_the_same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_at_all_nodes_share_rooms_and_files_with_users_of_synapse() {
    let Some(authority) = authority("several nodes") else { return };
    let python = match synapse::python() {
        Ok(python) => python,
        Err(missing) => return skip("several nodes and Synapse", &missing),
    };
    let Some(several) = Several::start("several nodes", &authority).await else { return };
    let mut synapse = Synapse::start(&python, &authority).await;
    let (ann, ben) = (several.register(0, "ann").await, several.register(1, "ben").await);
    let bob = synapse.register("bob").await;
    let options =
        json!({ "preset": "public_chat", "room_alias_name": "lobby", "room_version": "10" });
    let room_id = bob.create_room(options).await;

    // They join by two nodes at once; and one of them by both at once.
    let alias = format!("#lobby:{}", synapse.name);
    let ann_elsewhere = several.at(1, &ann);
    tokio::join!(join(&ann, &alias), join(&ben, &alias), join(&ann_elsewhere, &alias));
    for user in [&ann, &ben] {
        for by in [&bob, &several.at(0, user), &several.at(1, user)] {
            until_member(by, &room_id, user, "join").await;
        }
    }
    for number in 0..6 {
        let by = if number % 2 == 0 { &ann } else { &ben };
        say(by, &room_id, &format!("ours {number}")).await;
        say(&bob, &room_id, &format!("bob's {number}")).await;
    }
    for (user, begin, last) in [
        (&bob, "ours", (&ben, "ours 5")),
        (&ann, "bob's", (&bob, "bob's 5")),
        (&ben, "bob's", (&bob, "bob's 5")),
    ] {
        until_says(user, &room_id, last.0, last.1).await;
        let seen = texts(user, &room_id).await.into_iter().map(|(_, text)| text);
        let seen: Vec<_> = seen.filter(|text| text.starts_with(begin)).collect();
        let wanted: Vec<_> = (0..6).map(|number| format!("{begin} {number}")).collect();
        assert_eq!(seen, wanted, "as {} sees it", user.user_id);
    }
    until_same_state(&room_id, &bob, &ann).await;
    assert_eq!(whole_state(&ann, &room_id).await, whole_state(&ann_elsewhere, &room_id).await);

    // What passes reaches the other side from each node, and users at all nodes from there.
    let mut of_bob = Watch::of(&bob).await;
    for (user, status) in [(&ann, "ann is here"), (&ben, "ben is here")] {
        ephemeral::types(user, &room_id, true).await;
        of_bob.until_types(&room_id, &[user]).await;
        ephemeral::types(user, &room_id, false).await;
        of_bob.until_types(&room_id, &[]).await;
        let newest = said_last(user, &room_id).await;
        ephemeral::reads(user, &room_id, "m.read", &newest, None).await;
        of_bob.until_read(&room_id, user, None, &newest).await;
        ephemeral::is(user, "unavailable", status).await;
        of_bob.until_present(user, "unavailable", status).await;
    }
    let (mut of_ann, mut of_ben) = (Watch::of(&ann).await, Watch::of(&ben).await);
    ephemeral::types(&bob, &room_id, true).await;
    of_ann.until_types(&room_id, &[&bob]).await;
    of_ben.until_types(&room_id, &[&bob]).await;

    // Synapse reaches one node alone, and then the other.
    for (node, by) in [(0, &ben), (1, &ann)] {
        several.balancer.use_only(&[several.binds[node]]);
        let text = format!("by node {node}");
        say(&bob, &room_id, &text).await;
        until_says(by, &room_id, &bob, &text).await;
    }

    // A file that came by one node is served by the other when Synapse has gone.
    let bytes: Vec<u8> = (0..600_000).map(|byte| (byte % 251) as u8).collect();
    let place = upload(&bob, "a.png", "image/png", bytes.clone()).await;
    let path = format!("/_matrix/client/v1/media/download/{place}");
    let fetched = async |user: &User| {
        let token = format!("Bearer {}", user.access_token);
        user.http.raw("GET", &path, &[("authorization", &*token)], "").await
    };
    assert!(fetched(&ann).await.bytes == bytes, "from Synapse");
    synapse.kill();
    let file = fetched(&ben).await;
    assert!(file.bytes == bytes, "{:?}", file.parts);
    assert_eq!(file.header("content-type"), "image/png");
    several.ends_with_the_same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_homeserver_asks_of_one_node_counts_at_the_others() {
    const BURST: usize = 60;
    let Some(authority) = authority("rates") else { return };
    let rate = format!("1/h burst {BURST}");
    let settings =
        [("LOGCABIN_RATE_LIMITS_ENABLED", "true"), ("LOGCABIN_RATE_LIMITS_FEDERATION", &*rate)];
    let several = Several::start_with("rates", &authority, &settings).await;
    let Some(several) = several else { return };
    let told = Told::start(&authority).await;
    let name = encode(&format!("@nobody:{}", several.name));
    let path = format!("/_matrix/federation/v1/query/profile?user_id={name}");
    let admitted = async |node: usize| {
        let mut admitted = 0;
        loop {
            let answer = told.peer.ask(several.binds[node], &several.name, &path).await;
            match answer.status {
                429 => return admitted,
                _ => admitted += usize::from(answer.status == 404),
            }
        }
    };
    assert_eq!(admitted(0).await, BURST);
    // One node tells the other a moment later.
    let more = admitted(1).await;
    assert!(more < BURST / 2, "{more} more at the other node");
}
