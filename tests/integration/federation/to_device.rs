//! To-device messages between homeservers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::authority::Authority;
use super::hostile::Hostile;
use super::peer::{Answers, Peer};
use super::with_synapse::both;
use super::{Federated, authority};
use crate::harness::stand_in::reply_json;
use crate::harness::{User, encode, until};

/// What a device has received so far.
pub(super) struct Inbox {
    user: User,
    since: String,
    /// Each message's sender and text.
    pub(super) letters: Vec<(String, String)>,
}

impl Inbox {
    pub(super) async fn of(user: &User) -> Self {
        let synced = user.sync(None, 0, None).await;
        let since = synced["next_batch"].as_str().expect("a token").to_owned();
        Self { user: user.clone(), since, letters: Vec::new() }
    }

    pub(super) async fn look(&mut self) -> &[(String, String)] {
        if let Ok(answer) = self.user.try_sync(Some(&self.since), 0, None).await {
            let answer = answer.ok();
            self.since = answer["next_batch"].as_str().expect("a token").to_owned();
            let letters = answer["to_device"]["events"].as_array().cloned().unwrap_or_default();
            let letters = letters.iter().filter(|letter| letter["type"] == "m.test");
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            let read = |letter: &Value| (text(&letter["sender"]), text(&letter["content"]["text"]));
            self.letters.extend(letters.map(read));
        }
        &self.letters
    }

    /// Waits for a message, which is the newest and came once.
    pub(super) async fn until(&mut self, sender: &User, text: &str) {
        self.until_from(&sender.user_id, text).await;
    }

    pub(super) async fn until_from(&mut self, sender: &str, text: &str) {
        let letter = (sender.to_owned(), text.to_owned());
        until(&format!("{} gets `{text}`", self.user.user_id.clone()), async || {
            self.look().await.contains(&letter)
        })
        .await;
        assert_eq!(self.letters.iter().filter(|other| **other == letter).count(), 1);
    }
}

pub(super) async fn send(user: &User, to: &str, device: &str, text: &str) {
    let path = format!("/sendToDevice/m.test/{}", encode(text));
    let body = json!({ "messages": { to: { device: { "text": text } } } });
    user.request("PUT", &path, Some(&body)).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn to_device_messages_arrive_once_even_after_an_outage_of_either_side() {
    let Some((_authority, mut cabin, mut synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let path = format!("/join/{}?via={}", encode(&room_id), encode(&cabin.name));
    bob.request("POST", &path, Some(&json!({}))).await.ok();
    let (mut of_ann, mut of_bob) = (Inbox::of(&ann).await, Inbox::of(&bob).await);
    for (device, text) in [(&*bob.device_id, "to one"), ("*", "to all")] {
        send(&ann, &bob.user_id, device, text).await;
        of_bob.until(&ann, text).await;
    }
    for (device, text) in [(&*ann.device_id, "back to one"), ("*", "back to all")] {
        send(&bob, &ann.user_id, device, text).await;
        of_ann.until(&bob, text).await;
    }
    // Synapse is away, and this server meanwhile too.
    synapse.kill();
    send(&ann, &bob.user_id, "*", "while you were away").await;
    cabin.server.kill9();
    cabin.server.restart().await;
    send(&ann, &bob.user_id, "*", "and I was, too").await;
    synapse.run().await;
    // What comes from it says that it is back.
    send(&bob, &ann.user_id, "*", "I am back").await;
    of_ann.until(&bob, "I am back").await;
    of_bob.until(&ann, "while you were away").await;
    of_bob.until(&ann, "and I was, too").await;
    // This server is away.
    cabin.server.stop();
    send(&bob, &ann.user_id, "*", "can you hear me?").await;
    cabin.server.restart().await;
    of_ann.until(&bob, "can you hear me?").await;
    // In order, and each once.
    send(&ann, &bob.user_id, "*", "last").await;
    of_bob.until(&ann, "last").await;
    let texts: Vec<_> = of_bob.letters.iter().map(|(_, text)| &**text).collect();
    assert_eq!(texts, ["to one", "to all", "while you were away", "and I was, too", "last"]);
}

pub(super) fn letter(sender: &str, message_id: &str, to: &str, device: &str, text: &str) -> Value {
    json!({
        "sender": sender, "type": "m.test", "message_id": message_id,
        "messages": { to: { device: { "text": text } } },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_sends_messages_to_devices_for_its_own_users_only_and_each_once() {
    const EDU: &str = "m.direct_to_device";
    let Some(authority) = authority("hostile peers") else { return };
    let settings =
        [("LOGCABIN_RATE_LIMITS_ENABLED", "false"), ("LOGCABIN_QUOTAS_TO_DEVICE_BY_ONE", "5")];
    let mut cabin = Federated::start_with(&authority, &settings).await;
    let (peer, other) = (Peer::start(&authority).await, Peer::start(&authority).await);
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    let mut of_ann = Inbox::of(&ann).await;
    let (mut hostile, mut stranger) =
        (Hostile::new(&peer, &cabin, "!none"), Hostile::new(&other, &cabin, "!none"));
    let (pia, sam) = (hostile.user("pia"), stranger.user("sam"));
    let good = letter(&pia, "1", &ann.user_id, "*", "good");
    let mut no_object = letter(&pia, "2", &ann.user_id, "*", "bad");
    no_object["messages"][&ann.user_id]["*"] = json!("bad");
    let mut long_type = letter(&pia, "3", &ann.user_id, "*", "bad");
    long_type["type"] = json!("m".repeat(300));
    let bad = [
        (EDU, letter(&bob.user_id, "4", &ann.user_id, "*", "bad")),
        (EDU, letter(&sam, "5", &ann.user_id, "*", "bad")),
        (EDU, letter(&pia, &"6".repeat(200), &ann.user_id, "*", "bad")),
        (EDU, letter(&pia, "7", &ann.user_id, "*", &"bad".repeat(30_000))),
        (EDU, letter("pia", "8", &ann.user_id, "*", "bad")),
        (EDU, letter(&pia, "9", &sam, "*", "bad")),
        (EDU, letter(&pia, "10", &format!("@nobody:{}", cabin.name), "*", "bad")),
        (EDU, letter(&pia, "11", &ann.user_id, "NONE", "bad")),
        (EDU, no_object),
        (EDU, long_type),
        (EDU, json!([])),
        (EDU, json!("bad")),
        ("m.unknown", json!({ "bad": true })),
        (EDU, good.clone()),
        (EDU, good.clone()),
    ];
    hostile.send_edus(&bad).await;
    // Under the same id, it is the same; from another, it is not.
    hostile.send_edus(&[(EDU, letter(&pia, "1", &ann.user_id, "*", "again"))]).await;
    stranger.send_edus(&[(EDU, letter(&sam, "1", &ann.user_id, &ann.device_id, "mine"))]).await;
    let expected = [(pia.clone(), "good".to_owned()), (sam.clone(), "mine".to_owned())];
    assert_eq!(of_ann.look().await, expected);
    let too_many: Vec<_> = (0..101).map(|_| (EDU, good.clone())).collect();
    let edus: Vec<_> = too_many.iter().map(|(name, content)| json!([name, content])).collect();
    let body = json!({ "origin": peer.name, "origin_server_ts": 1, "pdus": [], "edus": edus });
    let path = "/_matrix/federation/v1/send/many";
    let refused = hostile.ask("PUT", path, &body).await;
    refused.refused(413, "M_TOO_LARGE");

    // What one homeserver can have wait for a device is bounded, whoever it says it is from.
    for number in 20..30 {
        let sender = hostile.user(&format!("pia{number}"));
        let text = number.to_string();
        hostile.send_edus(&[(EDU, letter(&sender, &text, &bob.user_id, "*", "flood"))]).await;
    }
    stranger.send_edus(&[(EDU, letter(&sam, "2", &bob.user_id, "*", "for bob"))]).await;
    let waiting = bob.sync(None, 0, None).await["to_device"]["events"].clone();
    assert_eq!(waiting.as_array().map(Vec::len), Some(6), "{waiting}");
    assert_eq!(waiting[5]["sender"], json!(sam));

    // What was taken is known after a restart, even if it was delivered.
    drop((hostile, stranger));
    cabin.server.restart().await;
    let mut hostile = Hostile::new(&peer, &cabin, "!none");
    hostile.send_edus(&[(EDU, good), (EDU, letter(&pia, "30", &ann.user_id, "*", "new"))]).await;
    let last = of_ann.look().await.last().cloned();
    assert_eq!(last, Some((pia, "new".to_owned())));
    assert_eq!(of_ann.letters.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_users_who_share_no_room_with_anybody_here() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let (peer, other) =
        (takes_transactions(&authority).await, takes_transactions(&authority).await);
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut known = Hostile::new(&peer, &cabin, &room_id);
    known.join().await;
    let sent = |peer: &Peer, text: &str| {
        let asked = peer.asked();
        asked.iter().filter(|asked| asked.body.to_string().contains(text)).count()
    };
    send(&ann, &format!("@sam:{}", other.name), "*", "to a stranger").await;
    send(&ann, &known.user("nobody"), "*", "to nobody").await;
    send(&ann, &known.user("pia"), "*", "to pia").await;
    until("a stranger's homeserver is told", async || sent(&other, "to a stranger") > 0).await;
    until("pia's homeserver is told", async || sent(&peer, "to pia") > 0).await;
    assert_eq!((sent(&other, "to a stranger"), sent(&peer, "to nobody")), (1, 1));
}

/// A peer that takes whatever it is sent.
async fn takes_transactions(authority: &Authority) -> Peer {
    let answers: Answers = Arc::new(|asked| {
        let is_sent = asked.path.starts_with("/_matrix/federation/v1/send/");
        is_sent.then(|| reply_json(200, &json!({ "pdus": {} })))
    });
    Peer::start_with(authority, Duration::from_secs(3600), answers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_the_server_write_to_few_homeservers_that_may_not_exist() {
    let Some(authority) = authority("hostile peers") else { return };
    let limited = [("LOGCABIN_RATE_LIMITS_ENABLED", "true")];
    let cabin = Federated::start_with(&authority, &limited).await;
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    let to = async |user: &User, number: u32, servers: std::ops::Range<u32>| {
        let of = |server| (format!("@x:localhost:{}", 60_000 + server), json!({ "*": {} }));
        let messages: serde_json::Map<_, _> = servers.map(of).collect();
        let path = format!("/sendToDevice/m.test/{number}");
        user.request("PUT", &path, Some(&json!({ "messages": messages }))).await
    };
    to(&ann, 1, 0..61).await.refused(413, "M_TOO_LARGE");
    to(&ann, 2, 0..50).await.ok();
    to(&ann, 3, 100..120).await.refused(429, "M_LIMIT_EXCEEDED");
    // What was refused did not count, and others have an allowance of their own.
    to(&ann, 4, 100..105).await.ok();
    to(&bob, 1, 100..120).await.ok();
}
