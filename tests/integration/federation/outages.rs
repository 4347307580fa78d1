//! One of two homeservers is away, or dies in the middle of an exchange.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::authority::Authority;
use super::hostile::Hostile;
use super::operators::{federation, fickle, told};
use super::synapse::Synapse;
use super::view::{join, say, state, texts, until_member, until_same_state, until_says};
use super::with_synapse::both;
use super::{Federated, authority};
use crate::harness::{User, encode, until};

/// So many messages are more than one transaction has.
const MESSAGES: usize = 120;

/// The texts of a room, back to its beginning or to `first`.
async fn all_texts(user: &User, room_id: &str, first: &str) -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    let mut from = String::new();
    loop {
        let path = format!("/rooms/{}/messages?dir=b&limit=100{from}", encode(room_id));
        let page = user.request("GET", &path, None).await.body;
        for event in page["chunk"].as_array().into_iter().flatten() {
            texts.extend(event["content"]["body"].as_str().map(ToOwned::to_owned));
        }
        match page["end"].as_str() {
            Some(end) if !texts.contains(first) => from = format!("&from={}", encode(end)),
            _ => return texts,
        }
    }
}

/// Two homeservers, each with a user and a room that both users are in.
struct Stage {
    _authority: Authority,
    cabin: Federated,
    synapse: Synapse,
    ann: User,
    bob: User,
    rooms: Vec<String>,
}

impl Stage {
    async fn set() -> Option<Self> {
        let (authority, cabin, synapse) = both("Synapse").await?;
        let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
        let mut rooms = Vec::new();
        for (number, (host, guest)) in [(&ann, &bob), (&bob, &ann)].into_iter().enumerate() {
            let alias = format!("porch{number}");
            let options = json!({ "preset": "public_chat", "room_alias_name": alias });
            let room_id = host.create_room(options).await;
            let server = host.user_id.split_once(':').expect("a user id").1;
            join(guest, &format!("#{alias}:{server}")).await;
            until_member(host, &room_id, guest, "join").await;
            say(guest, &room_id, "here").await;
            until_says(host, &room_id, guest, "here").await;
            let mut levels = state(host, &room_id, "m.room.power_levels", "").await;
            levels["state_default"] = json!(0);
            host.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
            until("the guest may set the topic", async || {
                let levels = state(guest, &room_id, "m.room.power_levels", "").await;
                levels["state_default"] == 0
            })
            .await;
            rooms.push(room_id);
        }
        Some(Self { _authority: authority, cabin, synapse, ann, bob, rooms })
    }

    /// Sends so many messages and changes of state to each room, with a pause after each.
    async fn talk(&self, user: &User, name: &str, messages: usize, pause: Duration) {
        for number in 0..messages {
            for room_id in &self.rooms {
                say(user, room_id, &format!("{name} {number}")).await;
            }
            tokio::time::sleep(pause).await;
        }
        for room_id in &self.rooms {
            let topic = json!({ "topic": name });
            user.set_state(room_id, "m.room.topic", "", &topic).await.ok();
            say(user, room_id, &format!("{name} end")).await;
        }
    }

    /// Waits until a user sees what another one said and did meanwhile.
    async fn caught_up(&self, user: &User, name: &str, of: &User, messages: usize) {
        for room_id in &self.rooms {
            until_says(user, room_id, of, &format!("{name} end")).await;
            until(&format!("{} has it all of {name}", user.user_id), async || {
                let texts = all_texts(user, room_id, &format!("{name} 0")).await;
                (0..messages).all(|number| texts.contains(&format!("{name} {number}")))
            })
            .await;
            until_same_state(room_id, user, of).await;
            assert_eq!(state(user, room_id, "m.room.topic", "").await["topic"], name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_was_away_catches_up() {
    let Some(mut stage) = Stage::set().await else { return };
    let (ann, bob) = (stage.ann.clone(), stage.bob.clone());

    stage.synapse.kill();
    stage.talk(&ann, "ann", MESSAGES, Duration::ZERO).await;
    stage.synapse.run().await;
    for room_id in &stage.rooms {
        say(&bob, room_id, "what has happened?").await;
    }
    stage.caught_up(&bob, "ann", &ann, MESSAGES).await;

    stage.cabin.server.stop();
    stage.talk(&bob, "bob", MESSAGES, Duration::ZERO).await;
    stage.cabin.server.restart().await;
    stage.caught_up(&ann, "bob", &bob, MESSAGES).await;

    // Both had something to say while they could not hear each other.
    stage.synapse.kill();
    stage.talk(&ann, "ann again", MESSAGES, Duration::ZERO).await;
    stage.cabin.server.kill9();
    stage.synapse.run().await;
    stage.talk(&bob, "bob again", MESSAGES, Duration::ZERO).await;
    stage.cabin.server.restart().await;
    for (user, other) in [(&ann, &bob), (&bob, &ann), (&ann, &bob)] {
        for room_id in &stage.rooms {
            let body = format!("at last, {}", texts(user, room_id).await.len());
            say(user, room_id, &body).await;
            until_says(other, room_id, user, &body).await;
        }
    }
    for room_id in &stage.rooms {
        until_same_state(room_id, &ann, &bob).await;
    }
}

/// It may not ask for anything of the room any more, not even for what comes before the removal.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_removed_while_away_is_told_what_was_said_before_that() {
    let Some(authority) = authority("removed") else { return };
    let mut cabin = Federated::start(&authority).await;
    let (peer, takes) = fickle(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut guest = Hostile::new(&peer, &cabin, &room_id);
    guest.join().await;
    say(&ann, &room_id, "first").await;
    until("the peer is told", async || told(&peer) == ["first"]).await;

    takes.store(false, Ordering::SeqCst);
    say(&ann, &room_id, "second").await;
    let removal = json!({ "user_id": guest.user("pia") });
    let path = format!("/rooms/{}/kick", encode(&room_id));
    ann.request("POST", &path, Some(&removal)).await.ok();
    say(&ann, &room_id, "among us").await;
    // What was missed is looked up.
    cabin.server.kill9();
    cabin.server.restart().await;
    let before = peer.asked().len();
    takes.store(true, Ordering::SeqCst);
    federation(cabin.server.data_dir(), &format!("retry {}", peer.name));
    let removing = || {
        let later = peer.asked().into_iter().skip(before);
        let mut pdus = later.filter_map(|asked| asked.body["pdus"].as_array().cloned());
        let is_removal = |pdu: &Value| pdu["content"]["membership"] == "leave";
        pdus.rfind(|pdus| pdus.iter().any(is_removal))
    };
    until("the peer is told of the removal", async || removing().is_some()).await;
    let pdus = removing().expect("a transaction");
    let bodies: Vec<_> = pdus.iter().map(|pdu| &pdu["content"]["body"]).collect();
    assert!(
        bodies.contains(&&json!("second")) && !bodies.contains(&&json!("among us")),
        "{pdus:?}"
    );
}

/// While one is away for an hour, the other one's user sends two messages every six seconds.
const HOUR: (usize, Duration) = (600, Duration::from_secs(6));

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes an hour"]
async fn synapse_catches_up_after_an_hour() {
    let Some(mut stage) = Stage::set().await else { return };
    let (ann, bob) = (stage.ann.clone(), stage.bob.clone());
    stage.synapse.kill();
    stage.talk(&ann, "ann", HOUR.0, HOUR.1).await;
    stage.synapse.run().await;
    // Whoever hears of it again sends to it again: nobody waits for the next attempt.
    for room_id in &stage.rooms {
        say(&bob, room_id, "what has happened?").await;
    }
    stage.caught_up(&bob, "ann", &ann, HOUR.0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes an hour"]
async fn logcabin_catches_up_after_an_hour() {
    let Some(mut stage) = Stage::set().await else { return };
    let (ann, bob) = (stage.ann.clone(), stage.bob.clone());
    stage.cabin.server.stop();
    stage.talk(&bob, "bob", HOUR.0, HOUR.1).await;
    stage.cabin.server.restart().await;
    for room_id in &stage.rooms {
        say(&ann, room_id, "what has happened?").await;
    }
    stage.caught_up(&ann, "bob", &bob, HOUR.0).await;
}

/// What dies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Victim {
    Cabin,
    Synapse,
}

async fn dies(victim: Victim, cabin: &mut Federated, synapse: &mut Synapse) {
    match victim {
        Victim::Cabin => cabin.server.restart().await,
        Victim::Synapse => {
            synapse.kill();
            synapse.run().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_in_which_either_side_dies_can_be_repeated() {
    let Some((_authority, mut cabin, mut synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let corridor = ann.create_room(json!({ "preset": "private_chat" })).await;
    ann.act(&corridor, "invite", Some(&bob)).await.ok();
    bob.join(&corridor).await.ok();
    let mut number = 0;
    for victim in [Victim::Cabin, Victim::Synapse] {
        // From before the first request is made until after the last one is answered.
        for delay in [0, 20, 80] {
            for (host, guest) in [(&ann, &bob), (&bob, &ann)] {
                number += 1;
                let exchange = Exchange { host, guest, victim, delay, number };
                exchange.run(&mut cabin, &mut synapse, (&ann, &corridor)).await;
            }
        }
    }
}

/// An invite, a join, a message and a leave, in each of which one side dies.
struct Exchange<'a> {
    host: &'a User,
    guest: &'a User,
    victim: Victim,
    /// After so many milliseconds.
    delay: u64,
    number: u32,
}

impl Exchange<'_> {
    async fn run(
        self,
        cabin: &mut Federated,
        synapse: &mut Synapse,
        (ann, corridor): (&User, &str),
    ) {
        let Self { host, guest, victim, delay, number } = self;
        let options = json!({ "preset": "private_chat" });
        let room_id = host.create_room(options).await;
        let path = |action: &str| format!("/rooms/{}/{action}", encode(&room_id));
        let message = format!("send/m.room.message/{number}");
        let invite = json!({ "user_id": guest.user_id });
        let text = json!({ "msgtype": "m.text", "body": "survives" });
        let steps: [(&User, &str, &str, &Value, &str); 4] = [
            (host, "POST", "invite", &invite, "invite"),
            (guest, "POST", "join", &json!({}), "join"),
            (guest, "PUT", &message, &text, "join"),
            (guest, "POST", "leave", &json!({}), "leave"),
        ];
        for (user, method, action, body, then) in steps {
            let (again, path) = (user.clone(), path(action));
            let request = {
                let (user, path, body) = (user.clone(), path.clone(), body.clone());
                tokio::spawn(async move { user.try_request(method, &path, Some(&body)).await })
            };
            // The fault is that it dies at whatever the exchange has come to by then.
            tokio::time::sleep(Duration::from_millis(delay)).await;
            dies(victim, cabin, synapse).await;
            let _ = request.await;
            if victim == Victim::Synapse {
                // With the next transaction, Synapse goes on with what it has taken already.
                say(ann, corridor, &format!("{number} {action}")).await;
            }
            let told = async |of: &User| {
                let member = state(of, &room_id, "m.room.member", &guest.user_id).await;
                member["membership"] == then
            };
            until(&format!("{action} after {victim:?} died after {delay} ms"), async || {
                let is_done = told(host).await && (action != "join" || told(guest).await);
                if is_done && action != message {
                    return true;
                }
                let answer = again.try_request(method, &path, Some(body)).await;
                // A client does not repeat itself any faster.
                tokio::time::sleep(Duration::from_millis(500)).await;
                action == message && answer.is_ok_and(|answer| answer.status == 200)
            })
            .await;
            if action == "join" {
                until_same_state(&room_id, host, guest).await;
            }
        }
        let heard = async || {
            let texts = texts(host, &room_id).await;
            texts.iter().filter(|(_, body)| body == "survives").count()
        };
        until("the message is heard", async || heard().await > 0).await;
        assert_eq!(heard().await, 1, "the message is there twice");
    }
}
