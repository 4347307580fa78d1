//! Typing, receipts and presence between homeservers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::Peer;
use super::with_synapse::both;
use super::{Federated, authority};
use crate::administration::done;
use crate::harness::stand_in::reply_json;
use crate::harness::{User, encode, run_logcabin, until};

/// The typing notifications, receipts and presence that a user has seen so far.
pub(super) struct Watch {
    user: User,
    since: String,
    /// Who types, by room.
    typing: BTreeMap<String, Value>,
    /// The event of each receipt: by room, user and thread.
    receipts: BTreeMap<(String, String, Option<String>), String>,
    /// The presence and status of each user.
    presence: BTreeMap<String, (String, Option<String>)>,
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(ToOwned::to_owned)
}

impl Watch {
    pub(super) async fn of(user: &User) -> Self {
        let mut watch = Self {
            user: user.clone(),
            since: String::new(),
            typing: BTreeMap::new(),
            receipts: BTreeMap::new(),
            presence: BTreeMap::new(),
        };
        watch.take(&user.sync(None, 0, None).await);
        watch
    }

    fn take(&mut self, sync: &Value) {
        self.since = text(&sync["next_batch"]).expect("a token");
        for event in sync["presence"]["events"].as_array().into_iter().flatten() {
            let content = &event["content"];
            let shown =
                (text(&content["presence"]).expect("a state"), text(&content["status_msg"]));
            self.presence.insert(text(&event["sender"]).expect("a user"), shown);
        }
        for (room_id, room) in sync["rooms"]["join"].as_object().into_iter().flatten() {
            for event in room["ephemeral"]["events"].as_array().into_iter().flatten() {
                if event["type"] == "m.typing" {
                    self.typing.insert(room_id.clone(), event["content"]["user_ids"].clone());
                    continue;
                }
                for (event_id, kinds) in event["content"].as_object().into_iter().flatten() {
                    for (user_id, data) in kinds["m.read"].as_object().into_iter().flatten() {
                        let key = (room_id.clone(), user_id.clone(), text(&data["thread_id"]));
                        self.receipts.insert(key, event_id.clone());
                    }
                }
            }
        }
    }

    async fn look(&mut self) -> &Self {
        if let Ok(answer) = self.user.try_sync(Some(&self.since), 0, None).await {
            self.take(&answer.ok());
        }
        self
    }

    pub(super) async fn until_types(&mut self, room_id: &str, who: &[&User]) {
        let wanted = json!(who.iter().map(|user| &user.user_id).collect::<Vec<_>>());
        until(&format!("{} sees {wanted} typing", self.user.user_id.clone()), async || {
            self.look().await.typing.get(room_id) == Some(&wanted)
        })
        .await;
    }

    pub(super) async fn until_read(
        &mut self,
        room_id: &str,
        who: &User,
        thread: Option<&str>,
        event: &str,
    ) {
        let key = (room_id.to_owned(), who.user_id.clone(), thread.map(ToOwned::to_owned));
        until(
            &format!("{} sees what {} read", self.user.user_id.clone(), who.user_id),
            async || self.look().await.receipts.get(&key).map(String::as_str) == Some(event),
        )
        .await;
    }

    pub(super) async fn until_present(&mut self, who: &User, presence: &str, status: &str) {
        let wanted = (presence.to_owned(), Some(status.to_owned()));
        until(
            &format!("{} sees that {} is {status}", self.user.user_id.clone(), who.user_id),
            async || self.look().await.presence.get(&who.user_id) == Some(&wanted),
        )
        .await;
    }
}

pub(super) async fn types(user: &User, room_id: &str, typing: bool) {
    let path = format!("/rooms/{}/typing/{}", encode(room_id), encode(&user.user_id));
    let body = json!({ "typing": typing, "timeout": 30_000 });
    user.request("PUT", &path, Some(&body)).await.ok();
}

/// Who types in a room, as a user sees it.
pub(super) async fn typists(user: &User, room_id: &str) -> Value {
    let mut watch = Watch::of(user).await;
    watch.typing.remove(room_id).unwrap_or_else(|| json!([]))
}

pub(super) async fn reads(
    user: &User,
    room_id: &str,
    kind: &str,
    event_id: &str,
    thread: Option<&str>,
) {
    let path = format!("/rooms/{}/receipt/{kind}/{}", encode(room_id), encode(event_id));
    let mut body = json!({});
    if let Some(thread) = thread {
        body["thread_id"] = json!(thread);
    }
    user.request("POST", &path, Some(&body)).await.ok();
}

pub(super) async fn is(user: &User, presence: &str, status: &str) {
    let path = format!("/presence/{}/status", encode(&user.user_id));
    let body = json!({ "presence": presence, "status_msg": status });
    user.request("PUT", &path, Some(&body)).await.ok();
}

async fn presence_of(asker: &User, user_id: &str) -> Value {
    asker.request("GET", &format!("/presence/{}/status", encode(user_id)), None).await.body
}

#[tokio::test(flavor = "multi_thread")]
async fn typing_receipts_and_presence_federate_both_ways_and_receipts_survive_outages() {
    let Some((_authority, mut cabin, mut synapse)) = both("Synapse").await else { return };
    let (mut ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let path = format!("/join/{}?via={}", encode(&room_id), encode(&cabin.name));
    bob.request("POST", &path, Some(&json!({}))).await.ok();
    let first = ann.send_text(&room_id, "1", "first").await;
    let second = ann.send_text(&room_id, "2", "second").await;
    let (mut of_ann, mut of_bob) = (Watch::of(&ann).await, Watch::of(&bob).await);
    until("bob has the message", async || {
        let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&second));
        bob.request("GET", &path, None).await.status == 200
    })
    .await;

    types(&ann, &room_id, true).await;
    of_bob.until_types(&room_id, &[&ann]).await;
    types(&ann, &room_id, false).await;
    of_bob.until_types(&room_id, &[]).await;
    types(&bob, &room_id, true).await;
    of_ann.until_types(&room_id, &[&bob]).await;
    types(&bob, &room_id, false).await;
    of_ann.until_types(&room_id, &[]).await;

    // What is read privately is told to nobody.
    reads(&ann, &room_id, "m.read.private", &second, None).await;
    reads(&ann, &room_id, "m.read", &first, None).await;
    of_bob.until_read(&room_id, &ann, None, &first).await;
    reads(&ann, &room_id, "m.read", &second, Some("main")).await;
    of_bob.until_read(&room_id, &ann, Some("main"), &second).await;
    reads(&bob, &room_id, "m.read", &first, None).await;
    of_ann.until_read(&room_id, &bob, None, &first).await;
    reads(&bob, &room_id, "m.read", &second, Some("main")).await;
    of_ann.until_read(&room_id, &bob, Some("main"), &second).await;

    is(&ann, "online", "at the lake").await;
    of_bob.until_present(&ann, "online", "at the lake").await;
    is(&bob, "unavailable", "in the wood").await;
    of_ann.until_present(&bob, "unavailable", "in the wood").await;
    let seen = presence_of(&ann, &bob.user_id).await;
    assert_eq!(
        (&seen["presence"], &seen["status_msg"]),
        (&json!("unavailable"), &json!("in the wood"))
    );
    let nobody = format!("@nobody:{}", synapse.name);
    assert_eq!(presence_of(&ann, &nobody).await["errcode"], "M_FORBIDDEN");

    // A restart keeps what came from elsewhere.
    cabin.server.kill9();
    cabin.server.restart().await;
    ann.http = cabin.server.http();
    let mut of_ann = Watch::of(&ann).await;
    of_ann.until_read(&room_id, &bob, Some("main"), &second).await;
    // Synapse may have it that bob is gone by now.
    let seen = presence_of(&ann, &bob.user_id).await;
    assert!(seen["last_active_ago"].is_number(), "{seen}");

    // What is read while the other homeserver is away, it gets later.
    synapse.kill();
    reads(&ann, &room_id, "m.read", &second, None).await;
    synapse.run().await;
    types(&bob, &room_id, true).await;
    of_ann.until_types(&room_id, &[&bob]).await;
    of_bob.until_read(&room_id, &ann, None, &second).await;
}

/// How many records of typing, receipts and presence there are.
pub(super) fn recorded(cabin: &Federated) -> usize {
    let data_dir = cabin.server.data_dir().display().to_string();
    let of = "room.typing,room.receipt,presence.set";
    let arguments = ["history", "tail", &data_dir, "--no-follow", "-n", "100000", "--kind", of];
    done(run_logcabin(arguments.into_iter().chain(["--json"]))).lines().count()
}

/// A peer that takes whatever it is sent.
async fn taking(authority: &super::Authority) -> Peer {
    let answers = Arc::new(|asked: &crate::harness::Asked| {
        let is_sent = asked.path.starts_with("/_matrix/federation/v1/send/");
        is_sent.then(|| reply_json(200, &json!({ "pdus": {} })))
    });
    Peer::start_with(authority, Duration::from_secs(3600), answers).await
}

/// The EDUs of a type that a peer was sent.
fn told(peer: &Peer, edu_type: &str) -> Vec<Value> {
    let asked = peer.asked();
    let edus = asked.iter().flat_map(|asked| asked.body["edus"].as_array().into_iter().flatten());
    let of_type = edus.filter(|edu| edu["edu_type"] == edu_type);
    of_type.map(|edu| edu["content"].clone()).collect()
}

fn receipt(room_id: &str, kind: &str, user_id: &str, event_id: &str) -> Value {
    let of_user = json!({ "data": { "ts": 1 }, "event_ids": [event_id] });
    json!({ room_id: { kind: { user_id: of_user } } })
}

fn typing(room_id: &str, user_id: &str, typing: bool) -> Value {
    json!({ "room_id": room_id, "user_id": user_id, "typing": typing })
}

fn present(user_id: &str, status: &str) -> Value {
    let update = json!({
        "user_id": user_id, "presence": "online", "status_msg": status,
        "last_active_ago": 5, "currently_active": true,
    });
    json!({ "push": [update] })
}

#[tokio::test(flavor = "multi_thread")]
async fn edus_are_accepted_only_about_own_users_in_their_rooms_and_at_a_limited_rate() {
    const TYPING: &str = "m.typing";
    const RECEIPT: &str = "m.receipt";
    const PRESENCE: &str = "m.presence";
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let (peer, other) = (taking(&authority).await, Peer::start(&authority).await);
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options.clone()).await;
    let elsewhere = ann.create_room(options).await;
    ann.join(&room_id).await.ok();
    bob.join(&room_id).await.ok();
    let there = ann.send_text(&elsewhere, "1", "elsewhere").await;
    let event = ann.send_text(&room_id, "2", "here").await;
    let last = ann.send_text(&room_id, "3", "the last one").await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let mut third = Hostile::new(&other, &cabin, &room_id);
    third.join().await;
    // Sam is there, too, and on another homeserver.
    let (pia, sam, nobody) = (hostile.user("pia"), third.user("pia"), hostile.user("nobody"));
    let mut of_ann = Watch::of(&ann).await;
    let before = recorded(&cabin);
    let mut no_thread = receipt(&room_id, "m.read", &pia, &event);
    no_thread[&room_id]["m.read"][&pia]["data"]["thread_id"] = json!("x".repeat(9999));
    let mut other_thread = receipt(&room_id, "m.read", &pia, &last);
    other_thread[&room_id]["m.read"][&pia]["data"]["thread_id"] = json!(event);
    let long = present(&pia, &"x".repeat(100_000));
    hostile
        .send_edus(&[
            (TYPING, typing(&room_id, &bob.user_id, true)),
            (TYPING, typing(&room_id, &sam, true)),
            (TYPING, typing(&room_id, &nobody, true)),
            (TYPING, typing(&elsewhere, &pia, true)),
            (TYPING, typing("!none:none", &pia, true)),
            (TYPING, typing(&room_id, &pia, false)),
            (TYPING, json!({ "room_id": room_id })),
            (RECEIPT, receipt(&room_id, "m.read", &bob.user_id, &event)),
            (RECEIPT, receipt(&room_id, "m.read", &sam, &event)),
            (RECEIPT, receipt(&room_id, "m.read", &nobody, &event)),
            (RECEIPT, receipt(&elsewhere, "m.read", &pia, &there)),
            (RECEIPT, receipt(&room_id, "m.read", &pia, &there)),
            (RECEIPT, receipt(&room_id, "m.read", &pia, "$none")),
            (RECEIPT, receipt(&room_id, "m.read.private", &pia, &event)),
            (RECEIPT, receipt(&room_id, "m.fully_read", &pia, &event)),
            (RECEIPT, no_thread),
            (RECEIPT, other_thread),
            (RECEIPT, json!({ &*room_id: [] })),
            (PRESENCE, present(&bob.user_id, "forged")),
            (PRESENCE, present(&sam, "forged")),
            (PRESENCE, present(&nobody, "not here")),
            (PRESENCE, json!({ "push": [{ "user_id": pia, "presence": "everywhere" }] })),
            (PRESENCE, json!({ "push": 7 })),
        ])
        .await;
    assert_eq!(recorded(&cabin), before, "nothing of that is recorded");
    of_ann.look().await;
    assert!(of_ann.receipts.is_empty() && of_ann.presence.is_empty(), "{:?}", of_ann.receipts);

    hostile
        .send_edus(&[
            (TYPING, typing(&room_id, &pia, true)),
            (RECEIPT, receipt(&room_id, "m.read", &pia, &event)),
            (PRESENCE, long),
        ])
        .await;
    of_ann.look().await;
    assert_eq!(of_ann.typing[&room_id], json!([pia]));
    let key = (room_id.clone(), pia.clone(), None);
    assert_eq!(of_ann.receipts.get(&key), Some(&event));
    assert_eq!(of_ann.presence.get(&pia), Some(&("online".to_owned(), None)));
    // The same again is no news.
    let before = recorded(&cabin);
    let again = [
        (TYPING, typing(&room_id, &pia, true)),
        (RECEIPT, receipt(&room_id, "m.read", &pia, &event)),
        (PRESENCE, present(&pia, "")),
    ];
    hostile.send_edus(&again).await;
    assert_eq!(recorded(&cabin), before, "nothing has changed");

    // A flood: a burst of it at most is recorded, and others go on meanwhile.
    for _ in 0..5 {
        let flood: Vec<_> = (0..100)
            .map(|number| match number % 2 {
                0 => (TYPING, typing(&room_id, &pia, number % 4 == 0)),
                _ => (PRESENCE, present(&pia, &number.to_string())),
            })
            .collect();
        hostile.send_edus(&flood).await;
    }
    let all: Vec<_> = (0..2000).map(|number| format!("@{number}:{}", peer.name)).collect();
    let users: serde_json::Map<String, Value> = all
        .iter()
        .map(|user_id| (user_id.clone(), json!({ "data": { "ts": 1 }, "event_ids": [last] })))
        .collect();
    hostile.send_edus(&[(RECEIPT, json!({ &*room_id: { "m.read": users } }))]).await;
    let flood = recorded(&cabin) - before;
    assert!((10..300).contains(&flood), "{flood} records");

    // This server tells it of its own users, and of nobody else's, as long as it may know.
    types(&ann, &room_id, true).await;
    is(&ann, "online", "here").await;
    reads(&ann, &room_id, "m.read.private", &last, None).await;
    reads(&ann, &room_id, "m.read", &event, None).await;
    until("the peer is told", async || {
        [TYPING, RECEIPT, PRESENCE].iter().all(|edu_type| !told(&peer, edu_type).is_empty())
    })
    .await;
    assert_eq!(told(&peer, TYPING), [typing(&room_id, &ann.user_id, true)]);
    let receipts = told(&peer, RECEIPT);
    assert_eq!(receipts.len(), 1, "{receipts:?}");
    assert_eq!(receipts[0][&room_id]["m.read"][&ann.user_id]["event_ids"], json!([event]));
    assert!(told(&peer, PRESENCE).iter().all(|of| of["push"][0]["user_id"] == *ann.user_id));
    let acl = json!({ "allow": ["*"], "deny": ["localhost"] });
    // This denies all of this machine. Only the peer is meant: nobody else asks.
    let path = format!("/rooms/{}/state/m.room.server_acl/", encode(&room_id));
    ann.request("PUT", &path, Some(&acl)).await.ok();
    let (before, sent) = (recorded(&cabin), told(&peer, TYPING).len());
    hostile
        .send_edus(&[
            (TYPING, typing(&room_id, &pia, true)),
            (TYPING, typing(&room_id, &pia, false)),
            (RECEIPT, receipt(&room_id, "m.read", &pia, &last)),
        ])
        .await;
    assert_eq!(recorded(&cabin), before, "it is denied");
    types(&ann, &room_id, false).await;
    reads(&ann, &room_id, "m.read", &last, None).await;
    is(&ann, "unavailable", "gone").await;
    until("the peer is told of what is not of the room", async || {
        told(&peer, PRESENCE).iter().any(|of| of["push"][0]["status_msg"] == "gone")
    })
    .await;
    assert_eq!((told(&peer, TYPING).len(), told(&peer, RECEIPT).len()), (sent, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_presence_other_homeservers_send_and_get_none() {
    let Some(authority) = authority("hostile peers") else { return };
    let off = [("LOGCABIN_PRESENCE_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &off).await;
    let peer = taking(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let before = recorded(&cabin);
    hostile.send_edus(&[("m.presence", present(&hostile.user("pia"), "here"))]).await;
    assert_eq!(recorded(&cabin), before);
    assert_eq!(presence_of(&ann, &hostile.user("pia")).await, json!({ "presence": "offline" }));
}
