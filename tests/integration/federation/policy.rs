//! Rooms with a policy server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ruma::canonical_json::redact;
use ruma::serde::{Base64, base64::Standard};
use ruma::signatures::{Ed25519KeyPair, sign_json};
use ruma::{CanonicalJsonObject, RoomVersionId};
use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::{Peer, new_keys};
use super::{Authority, Federated, authority};
use crate::administration::{command, done_json};
use crate::harness::stand_in::reply_json;
use crate::harness::{Asked, User, encode, until};

/// Whom a policy server signs for: all that does not speak of spam.
fn verdict(name: &str, keys: &Ed25519KeyPair, event: &Value) -> (u16, Value) {
    if event.to_string().contains("spam") {
        return (400, json!({ "errcode": "M_FORBIDDEN", "error": "That looks like spam." }));
    }
    (200, signature(name, keys, event))
}

/// The signature of an event in a room of version 10.
fn signature(name: &str, keys: &Ed25519KeyPair, event: &Value) -> Value {
    let mut object: CanonicalJsonObject = serde_json::from_value(event.clone()).expect("an object");
    object.remove("signatures");
    let rules = RoomVersionId::V10.rules().expect("rules").redaction;
    let mut kept = redact(object, &rules, None).expect("an event");
    sign_json(name, keys, &mut kept).expect("a signature");
    json!(kept["signatures"])
}

struct Policy {
    peer: Peer,
    /// The key by which it recommends events.
    keys: Arc<Ed25519KeyPair>,
    answers: Arc<AtomicBool>,
}

impl Policy {
    async fn start(authority: &Authority) -> Self {
        let keys = Arc::new(new_keys("policy_server"));
        let (name, answers) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(true)));
        let (named, key, up) = (Arc::clone(&name), Arc::clone(&keys), Arc::clone(&answers));
        let answer = Arc::new(move |asked: &Asked| {
            if asked.path.starts_with("/_matrix/federation/v1/send/") {
                return Some(reply_json(200, &json!({ "pdus": {} })));
            }
            (asked.path == "/_matrix/policy/v1/sign").then(|| {
                if !up.load(Ordering::SeqCst) {
                    return reply_json(503, &json!({ "errcode": "M_UNKNOWN", "error": "down" }));
                }
                let name: &String = named.get().expect("a name");
                let (status, said) = verdict(name, &key, &asked.body);
                reply_json(status, &said)
            })
        });
        let peer = Peer::start_with(authority, Duration::from_secs(3600), answer).await;
        name.set(peer.name.to_string()).expect("one name");
        Self { peer, keys, answers }
    }

    /// The events that it was asked to sign.
    fn asked(&self) -> Vec<Value> {
        let asked = self.peer.asked().into_iter();
        asked.filter(|asked| asked.path == "/_matrix/policy/v1/sign").map(|of| of.body).collect()
    }

    fn content(&self) -> Value {
        let key = Base64::<Standard, _>::new(self.keys.public_key()).encode();
        json!({ "via": self.peer.name, "public_keys": { "ed25519": key } })
    }
}

async fn texts(user: &User, room_id: &str) -> Vec<String> {
    let path = format!("/rooms/{}/messages?dir=f&limit=100", encode(room_id));
    let page = user.request("GET", &path, None).await.ok();
    let bodies = page["chunk"].as_array().expect("a list").iter();
    bodies.filter_map(|event| event["content"]["body"].as_str().map(ToOwned::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_server_has_a_say_in_what_is_sent_and_what_is_received() {
    let Some(authority) = authority("policy servers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let mut cabin = Federated::start_with(&authority, &unlimited).await;
    let (policy, guest) = (Policy::start(&authority).await, Peer::start(&authority).await);
    let ann = cabin.server.register("ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "room_version": "10" })).await;
    let send = async |text: &str| {
        let path = format!("/rooms/{}/send/m.room.message/{}", encode(&room_id), encode(text));
        let body = json!({ "msgtype": "m.text", "body": text });
        ann.request("PUT", &path, Some(&body)).await
    };
    // It has a say only once a user of it is in the room.
    ann.set_state(&room_id, "m.room.policy", "", &policy.content()).await.ok();
    send("nobody asks").await.ok();
    let mut of_policy = Hostile::new(&policy.peer, &cabin, &room_id);
    of_policy.join().await;
    assert_eq!(policy.asked(), Vec::<Value>::new());

    send("hello").await.ok();
    let asked = policy.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0]["content"]["body"], "hello");
    assert!(asked[0]["signatures"][&cabin.name].is_object(), "{}", asked[0]);
    let told = || {
        let all = policy.peer.asked().into_iter();
        let sent = all.filter(|asked| asked.path.starts_with("/_matrix/federation/v1/send/"));
        let pdus = sent.flat_map(|of| of.body["pdus"].as_array().cloned().unwrap_or_default());
        pdus.collect::<Vec<_>>()
    };
    let by_text = |text: &str| told().into_iter().find(|pdu| pdu["content"]["body"] == text);
    until("the event is sent", async || by_text("hello").is_some()).await;
    let sent = by_text("hello").expect("an event");
    let name = policy.peer.name.as_str();
    let expected = signature(name, &policy.keys, &sent);
    assert_eq!(sent["signatures"][name], expected[name], "{sent}");
    assert!(sent["signatures"][&cabin.name].is_object(), "{sent}");
    assert_eq!(sent["prev_events"], asked[0]["prev_events"]);

    // What it refuses is refused in its words, and is nowhere.
    let refused = send("spam").await;
    assert_eq!(refused.body["error"], "That looks like spam.", "{}", refused.body);
    refused.refused(400, "M_FORBIDDEN");
    let topic = json!({ "topic": "spam" });
    ann.set_state(&room_id, "m.room.topic", "", &topic).await.refused(400, "M_FORBIDDEN");
    // Many at once each get their signature.
    let many: Vec<_> = (0..10).map(|number| format!("at once {number}")).collect();
    let all = futures_util::future::join_all(many.iter().map(|text| send(text))).await;
    all.into_iter().for_each(|answer| drop(answer.ok()));
    // The same again is not sent again.
    let before = policy.asked().len();
    send("hello").await.ok();
    assert_eq!(policy.asked().len(), before);

    // Of others: what has no signature is asked for, and what is refused is soft-failed.
    let mut of_guest = Hostile::new(&guest, &cabin, &room_id);
    of_guest.join().await;
    let (fine, event) = of_guest.signed(of_guest.message("fine").await);
    assert_eq!(of_guest.send(&[event]).await, json!({ &*fine: {} }));
    let (bad, event) = of_guest.signed(of_guest.message("spam").await);
    assert_eq!(of_guest.send(&[event]).await, json!({ &*bad: {} }));
    let with = |mut event: Value, signatures: &Value| {
        event["signatures"][name] = signatures[name].clone();
        event
    };
    let before = policy.asked().len();
    let (_, event) = of_guest.signed(of_guest.message("signed").await);
    let event = with(event.clone(), &signature(name, &policy.keys, &event));
    of_guest.send(&[event]).await;
    assert_eq!(policy.asked().len(), before, "it was asked although it had signed");
    let (_, event) = of_guest.signed(of_guest.message("forged spam").await);
    let event = with(event.clone(), &signature(name, &new_keys("policy_server"), &event));
    of_guest.send(&[event]).await;
    let heard = texts(&ann, &room_id).await;
    let of_guest_heard: Vec<_> = heard.iter().filter(|text| !text.contains("at once")).collect();
    assert_eq!(of_guest_heard, ["nobody asks", "hello", "fine", "signed"]);
    assert_eq!(heard.len(), 14, "{heard:?}");
    let refused = done_json(command("federation", cabin.server.data_dir(), "refused --json", ""));
    let reasons: Vec<_> = refused["events"].as_array().expect("a list").iter().collect();
    assert!(reasons.len() == 2 && reasons.iter().all(|of| of["outcome"] == "soft_failed"));
    assert!(reasons[1]["reason"].as_str().is_some_and(|why| why.contains("looks like spam")));

    // It cannot be asked.
    policy.answers.store(false, Ordering::SeqCst);
    send("too late").await.refused(502, "M_CONNECTION_FAILED");
    cabin.server.kill9();
    cabin.server.restart().await;
    send("still too late").await.refused(502, "M_CONNECTION_FAILED");
    // The room does without it from now on, which it need not agree to.
    ann.set_state(&room_id, "m.room.policy", "", &json!({})).await.ok();
    send("spam, for nobody minds").await.ok();
}
