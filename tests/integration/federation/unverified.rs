//! Users who are in a room of another homeserver, and whose own homeserver gives no keys when a
//! user of this one joins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::elsewhere::{Stage, stage, texts};
use super::hostile::now;
use super::peer::{Peer, Script};
use super::{Authority, Federated};
use crate::harness::stand_in::reply_json;
use crate::harness::{Asked, encode, until};

/// A homeserver that can be down.
struct Other {
    peer: Peer,
    is_down: Arc<AtomicBool>,
    script: Script,
    transactions: u32,
}

impl Other {
    async fn start_down(authority: &Authority) -> Self {
        let (is_down, script) = (Arc::new(AtomicBool::new(true)), Script::default());
        let (down, scripted) = (Arc::clone(&is_down), script.clone());
        let answers = move |asked: &Asked| {
            if down.load(Ordering::SeqCst) {
                return Some(reply_json(502, &json!({})));
            }
            scripted.answer(asked)
        };
        let peer = Peer::start_with(authority, Duration::from_secs(3600), Arc::new(answers)).await;
        Self { peer, is_down, script, transactions: 0 }
    }

    fn user(&self, name: &str) -> String {
        format!("@{name}:{}", self.peer.name)
    }

    /// An event of a user after these.
    fn event(&self, stage: &Stage, name: &str, auth: &[&str], prev: &str, more: Value) -> Value {
        let room = stage.room();
        let of = |key: &str| room.state[&(key.to_owned(), String::new())].clone();
        let mut all = vec![of("m.room.create"), of("m.room.power_levels")];
        all.extend(auth.iter().map(|id| (*id).to_owned()));
        let mut event = json!({
            "type": "m.room.message", "room_id": room.room_id, "sender": self.user(name),
            "content": { "msgtype": "m.text", "body": format!("of {name}") },
            "origin_server_ts": now(), "depth": room.events.len() + 1,
            "prev_events": [prev], "auth_events": all,
        });
        event.as_object_mut().expect("an event").extend(more.as_object().expect("members").clone());
        event
    }

    /// Joins the room where it is.
    fn join(&self, stage: &Stage, name: &str) -> (String, Value) {
        let (id, event) = self.forged_join(stage, name);
        stage.add((id.clone(), event.clone()));
        let key = ("m.room.member".to_owned(), self.user(name));
        stage.room().state.insert(key, id.clone());
        (id, event)
    }

    /// A join that is not in the room's state.
    fn forged_join(&self, stage: &Stage, name: &str) -> (String, Value) {
        let user = self.user(name);
        let (rules, last) = {
            let room = stage.room();
            let rules = room.state[&("m.room.join_rules".to_owned(), String::new())].clone();
            (rules, room.order.last().cloned().expect("an event"))
        };
        let more = json!({
            "type": "m.room.member", "state_key": user, "content": { "membership": "join" },
        });
        let event = self.event(stage, name, &[&rules], &last, more);
        stage.signed_by(&self.peer, event)
    }

    /// Sends an event, and returns what is said of it, and its id.
    async fn send(&mut self, stage: &Stage, cabin: &Federated, event: Value) -> (String, Value) {
        let (id, event) = stage.signed_by(&self.peer, event);
        self.transactions += 1;
        let path = format!("/_matrix/federation/v1/send/t{}", self.transactions);
        let body = json!({
            "origin": self.peer.name, "origin_server_ts": now(), "pdus": [event], "edus": [],
        });
        let header = self.peer.header(&cabin.name, "PUT", &path, &body);
        let said = self.peer.send(cabin.address, "PUT", &path, Some(&header), &body).await.ok();
        (id.clone(), said["pdus"][&id].clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_whose_homeserver_was_down_at_a_join_are_heard_once_it_is_up() {
    let Some((authority, mut cabin, stage, ann)) = stage().await else { return };
    let mut other = Other::start_down(&authority).await;
    let (omar, omar_joins) = other.join(&stage, "omar");
    let (oda, oda_joins) = other.join(&stage, "oda");
    stage.say("before the join");
    let room_id = stage.entered_by(&ann).await;
    let members = async || {
        let path = format!("/rooms/{}/joined_members", encode(&room_id));
        let members = ann.request("GET", &path, None).await.ok();
        let joined = members["joined"].as_object().expect("members");
        joined.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(members().await, [ann.user_id.clone(), stage.pia()]);
    let ban = json!({
        "type": "m.room.member", "state_key": other.user("oda"), "content": { "membership": "ban" },
    });
    stage.tell(&cabin, "m.room.member", ban).await;
    let (eve, eve_joins) = other.forged_join(&stage, "eve");
    other.is_down.store(false, Ordering::SeqCst);
    other.script.set([
        ("event_auth", json!({ "auth_chain": [omar_joins, oda_joins, eve_joins] })),
        ("send", json!({ "pdus": {} })),
    ]);
    cabin.server.kill9();
    cabin.server.restart().await;

    let message = json!({ "msgtype": "m.text", "body": "of ann" });
    let here = ann.send(&room_id, "m.room.message", "1", &message).await.ok();
    let here = here["event_id"].as_str().expect("an id");
    // Who was banned meanwhile, or was never there, is not heard.
    let (oda, eve) = (("oda", &*oda), ("eve", &*eve));
    for (name, auth) in [oda, eve, ("eve", &*omar)] {
        let auth = [auth];
        let event = other.event(&stage, name, &auth, here, json!({}));
        let (_, said) = other.send(&stage, &cabin, event).await;
        assert!(said["error"].is_string(), "{name}: {said}");
    }
    let event = other.event(&stage, "omar", &[&omar], here, json!({}));
    let (id, said) = other.send(&stage, &cabin, event).await;
    assert_eq!(said, json!({}));
    let (said, _) = texts(&ann, &room_id, "limit=2").await;
    assert_eq!(said, ["of omar", "of ann"]);
    let is_told = |asked: &Asked| {
        let told = asked.body["pdus"].as_array();
        told.is_some_and(|all| all.iter().any(|pdu| pdu["content"]["body"] == "of ann"))
    };
    until("the other one is told", async || other.peer.asked().iter().any(is_told)).await;
    let mut expected = vec![ann.user_id.clone(), stage.pia(), other.user("omar")];
    expected.sort();
    assert_eq!(members().await, expected);

    // Nobody is there twice, and a leave counts.
    let leaves = json!({
        "type": "m.room.member", "state_key": other.user("omar"),
        "content": { "membership": "leave" },
    });
    let event = other.event(&stage, "omar", &[&omar], &id, leaves);
    let (id, said) = other.send(&stage, &cabin, event).await;
    assert_eq!(said, json!({}));
    assert_eq!(members().await, [ann.user_id.clone(), stage.pia()]);
    let event = other.event(&stage, "omar", &[&omar], &id, json!({}));
    let (_, said) = other.send(&stage, &cabin, event).await;
    assert!(said["error"].is_string(), "{said}");
}
