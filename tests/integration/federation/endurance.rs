//! Two servers, a Synapse and a homeserver that means harm, for as long as one wants: what correct
//! users send arrives everywhere, and all three end with the same state.
//!
//! The Synapse gets no more harm than it can take by itself: of events that come faster, it prunes
//! those that correct users sent, too. A room that it is not in gets the rest.
//!
//! `LOGCABIN_ENDURANCE_SECONDS` says for how long (40 minutes unless set),
//! `LOGCABIN_ENDURANCE_SEED` repeats a run.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::hostile::{Hostile, now};
use super::peer::Peer;
use super::synapse::{self, Synapse};
use super::view::{until_says, whole_state};
use super::wild::{HERE, Wild, below, peer_items};
use super::{Federated, authority};
use crate::administration::{command, done};
use crate::harness::{PATIENCE, Random, User, encode, number_from_env, skip, until};

/// How long users wait between what they send, and in what time one server is killed.
const PACE: Duration = Duration::from_millis(700);
const KILLS: (u64, u64) = (20, 50);

/// Events of harm in a second, in the rooms that the Synapse is in and in those that it is not in.
const HARM_FOR_SYNAPSE: f64 = 2.0;
const HARM: f64 = 40.0;

/// A room that correct users talk in.
#[derive(Clone)]
struct Place {
    room_id: String,
    takes_numbers: bool,
    /// Whether the user of the Synapse is in it, besides the others.
    is_everybodys: bool,
}

impl Place {
    fn among<'a>(&self, users: &'a [User; 3]) -> &'a [User] {
        if self.is_everybodys { users } else { &users[..2] }
    }
}

/// What is sent and comes to all homeservers.
#[derive(Default)]
struct Sent {
    /// Rooms with the ids of events.
    events: Vec<(String, String)>,
    /// Users with the texts of messages to their devices.
    letters: Vec<(String, String)>,
}

/// Asks until there is an answer: the server may be down.
async fn persistently(user: &User, method: &str, path: &str, body: &Value) -> Value {
    loop {
        match user.try_request(method, path, Some(body)).await {
            Ok(answer) if answer.status == 200 => return answer.body,
            Ok(answer) if answer.status == 429 || answer.status >= 500 => {}
            Ok(answer) => panic!("{method} {path}: {} {}", answer.status, answer.body),
            Err(_) => {}
        }
        sleep(Duration::from_millis(300)).await;
    }
}

/// A user who talks in rooms and writes to other users.
async fn talk(
    user: User,
    rooms: Vec<Place>,
    others: Vec<String>,
    mut random: Random,
    is_over: Arc<AtomicBool>,
) -> Sent {
    let (mut sent, mut number) = (Sent::default(), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        let Place { room_id, takes_numbers, .. } = &rooms[below(&mut random, rooms.len())];
        let room = encode(room_id);
        let message = format!("/rooms/{room}/send/m.room.message/n{number}");
        let text = format!("{number} of {}", user.user_id);
        let say = |more: Value| json!({ "msgtype": "m.text", "body": text, "more": more });
        let deep = || (0..60).fold(json!(1), |inner, _| json!([inner]));
        let (path, body) = match below(&mut random, 10) {
            0 => {
                let path = format!("/rooms/{room}/state/m.load/{}", encode(&user.user_id));
                (path, json!({ "number": number }))
            }
            1 => (message, say(deep())),
            2 | 3 if *takes_numbers => {
                (message, say(json!([1.5, 1e300, 1_152_921_504_606_846_976_u64, -0.0])))
            }
            4 => {
                let to = &others[below(&mut random, others.len())];
                let path = format!("/sendToDevice/m.load/n{number}");
                let body = json!({ "messages": { to: { "*": { "text": text } } } });
                persistently(&user, "PUT", &path, &body).await;
                sent.letters.push((to.clone(), text));
                sleep(PACE).await;
                continue;
            }
            _ => (message, say(json!("x".repeat(below(&mut random, 2000))))),
        };
        let answer = persistently(&user, "PUT", &path, &body).await;
        let event_id = answer["event_id"].as_str().expect("an id").to_owned();
        sent.events.push((room_id.clone(), event_id));
        sleep(PACE).await;
    }
    sent
}

/// The texts of the messages to a user's device, of which each sync takes some.
async fn read_letters(user: User, is_read: Arc<AtomicBool>) -> BTreeSet<String> {
    let (mut since, mut texts) = (String::new(), BTreeSet::new());
    while !is_read.load(Ordering::Relaxed) {
        let path = format!("/sync?timeout=1000&filter=%7B%7D{since}");
        let synced = persistently(&user, "GET", &path, &Value::Null).await;
        let events = synced["to_device"]["events"].as_array().cloned().unwrap_or_default();
        texts.extend(
            events.iter().filter_map(|of| of["content"]["text"].as_str()).map(str::to_owned),
        );
        since = format!("&since={}", encode(synced["next_batch"].as_str().expect("a token")));
    }
    texts
}

/// What one homeserver does in a room.
#[derive(Clone)]
struct Harm {
    room_id: String,
    servers: Vec<(String, SocketAddr)>,
    /// Events in a second.
    pace: f64,
    /// The number of its first transaction.
    first: u32,
}

/// A homeserver in a room that sends whatever it likes, and forks the room's history.
async fn harm(
    peer: &'static Peer,
    of: Harm,
    ann: User,
    mut random: Random,
    is_over: Arc<AtomicBool>,
) -> (u32, u32) {
    let mut start = None;
    let (mut rounds, mut done) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        rounds += 1;
        let began = Instant::now();
        let (Harm { room_id, servers, pace, first }, ann) = (of.clone(), ann.clone());
        let (mut random, begun) = (random.split(), start.clone());
        // A server may be down, which ends the round.
        let round = tokio::spawn(async move {
            let number = first + 1000 * rounds;
            let at = |(name, address): &(String, SocketAddr)| {
                Hostile::at(peer, name, *address, &room_id)
            };
            let mut hostile = at(&servers[0]).numbered(number);
            let depth = 1 + below(&mut random, 3);
            let wild = Wild::any(&mut random, depth);
            let items = peer_items(&mut random, &hostile, &ann, &room_id).await;
            hostile.send_text(&items, HERE, (&wild.text, &wild.canonical)).await;
            let message = hostile.message("harm").await;
            let begun = begun.unwrap_or_else(|| message.clone());
            let mut prev = begun["prev_events"].clone();
            let mut events = Vec::new();
            for number in 0..below(&mut random, 30) {
                let mut event = begun.clone();
                event["prev_events"] = prev.clone();
                event["content"] = json!({ "msgtype": "m.text", "body": format!("harm {number}") });
                event["origin_server_ts"] = json!(now());
                let (event_id, event) = hostile.signed(event);
                prev = json!([event_id]);
                events.push(event);
            }
            for server in &servers {
                at(server).numbered(number + 100).send(&events).await;
            }
            (begun, events.len() + 1)
        });
        match round.await {
            Ok((begun, count)) => {
                start.get_or_insert(begun);
                done += 1;
                let count = f64::from(u32::try_from(count).expect("few"));
                let due = Duration::from_secs_f64(count / pace);
                sleep(due.saturating_sub(began.elapsed())).await;
            }
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    }
    (rounds, done)
}

/// The ids of all events of a room that a user sees.
async fn history(user: &User, room_id: &str) -> BTreeSet<String> {
    let (mut from, mut ids) = (String::new(), BTreeSet::new());
    loop {
        let path = format!("/rooms/{}/messages?dir=b&limit=500{from}", encode(room_id));
        let page = persistently(user, "GET", &path, &Value::Null).await;
        let chunk = page["chunk"].as_array().expect("a list");
        ids.extend(chunk.iter().filter_map(|event| event["event_id"].as_str().map(str::to_owned)));
        match page["end"].as_str() {
            Some(end) if !chunk.is_empty() => from = format!("&from={}", encode(end)),
            _ => return ids,
        }
    }
}

/// Which of these events a user still does not see after a while, in which the conversation goes
/// on: what a homeserver could not take while others were down, later events lead it to.
async fn missing_after_all(
    user: &User,
    users: &[User],
    room_id: &str,
    wanted: &BTreeSet<String>,
) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    for round in 0.. {
        let has = history(user, room_id).await;
        let missing: Vec<_> = wanted.difference(&has).cloned().collect();
        if missing.is_empty() || Instant::now() > until {
            return missing;
        }
        for speaker in users {
            let text = format!("round {round} for {}", user.user_id);
            speaker.send_text(room_id, &encode(&text), &text).await;
        }
        sleep(Duration::from_secs(2)).await;
    }
    Vec::new()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes as long as one wants"]
async fn what_correct_users_send_arrives_whatever_another_homeserver_does() {
    let Some(authority) = authority("endurance") else { return };
    let Ok(python) = synapse::python().map_err(|missing| skip("endurance", &missing)) else {
        return;
    };
    let mut random = Random::from_env("LOGCABIN_ENDURANCE_SEED");
    let lasts = Duration::from_secs(number_from_env("LOGCABIN_ENDURANCE_SECONDS", 2400));
    let mut one = Federated::start(&authority).await;
    let mut two = Federated::start(&authority).await;
    let mut synapse = Synapse::start(&python, &authority).await;
    let peer: &'static Peer = Box::leak(Box::new(Peer::start_taking(&authority).await));
    let users = [
        one.server.register("ann").await,
        two.server.register("bob").await,
        synapse.register("sam").await,
    ];
    let names = [one.name.clone(), two.name.clone(), synapse.name.clone()];
    let mut rooms = Vec::new();
    for (number, version) in ["10", "4", "12"].into_iter().enumerate() {
        let options = json!({
            "preset": "public_chat", "room_version": version,
            "power_level_content_override": { "events": { "m.load": 0 } },
        });
        let room_id = users[number].create_room(options).await;
        for other in (0..3).filter(|other| *other != number) {
            let path = format!("/join/{}?via={}", encode(&room_id), encode(&names[number]));
            users[other].request("POST", &path, Some(&json!({}))).await.ok();
        }
        rooms.push(Place { room_id, takes_numbers: version == "4", is_everybodys: true });
    }
    let options = json!({
        "preset": "public_chat", "room_version": "10",
        "power_level_content_override": { "events": { "m.load": 0 } },
    });
    let room_id = users[0].create_room(options).await;
    let path = format!("/join/{}?via={}", encode(&room_id), encode(&names[0]));
    users[1].request("POST", &path, Some(&json!({}))).await.ok();
    rooms.push(Place { room_id, takes_numbers: false, is_everybodys: false });
    let (shared, apart) = (rooms[0].room_id.clone(), rooms[3].room_id.clone());
    for room_id in [&shared, &apart] {
        Hostile::new(peer, &one, room_id).join().await;
    }

    let (is_over, is_read) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let talking: Vec<JoinHandle<Sent>> = users
        .iter()
        .map(|user| {
            let others = users.iter().filter(|other| other.user_id != user.user_id);
            let others = others.map(|other| other.user_id.clone()).collect();
            let over = Arc::clone(&is_over);
            let is_in = |room: &&Place| {
                room.among(&users).iter().any(|member| member.user_id == user.user_id)
            };
            let rooms = rooms.iter().filter(is_in).cloned().collect();
            tokio::spawn(talk(user.clone(), rooms, others, random.split(), over))
        })
        .collect();
    let reading = users.iter().map(|user| read_letters(user.clone(), Arc::clone(&is_read)));
    let reading: Vec<_> = reading.map(tokio::spawn).collect();
    let servers = [
        (one.name.clone(), one.address),
        (two.name.clone(), two.address),
        (synapse.name.clone(), synapse.address),
    ];
    let of_cabins = servers[..2].to_vec();
    let servers = servers.to_vec();
    let harming = [
        Harm { room_id: shared, servers, pace: HARM_FOR_SYNAPSE, first: 0 },
        Harm { room_id: apart, servers: of_cabins, pace: HARM, first: 1 << 31 },
    ];
    let harming = harming.map(|of| {
        let (ann, over) = (users[0].clone(), Arc::clone(&is_over));
        tokio::spawn(harm(peer, of, ann, random.split(), over))
    });
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < lasts {
        let pause = Duration::from_secs(random.between(KILLS.0, KILLS.1));
        sleep(pause.min(lasts.saturating_sub(began.elapsed()))).await;
        let away = Duration::from_secs(random.between(0, 8));
        match below(&mut random, 3) {
            0 => {
                one.server.kill9();
                sleep(away).await;
                one.server.restart().await;
            }
            1 => {
                two.server.kill9();
                sleep(away).await;
                two.server.restart().await;
            }
            _ => {
                synapse.kill();
                sleep(away).await;
                synapse.run().await;
            }
        }
        kills += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut rounds = Vec::new();
    for harming in harming {
        rounds.push(harming.await.expect("no panic"));
    }
    let mut sent = Sent::default();
    for talking in talking {
        let of_one = talking.await.expect("no panic");
        sent.events.extend(of_one.events);
        sent.letters.extend(of_one.letters);
    }
    for (all, done) in &rounds {
        assert!(2 * done > *all, "{done} of {all} rounds of harm were done");
    }
    let (events, letters) = (sent.events.len(), sent.letters.len());
    println!(
        "{events} events, {letters} letters, {kills} kills, {rounds:?} rounds of harm, tried and done"
    );

    for place in &rooms {
        let (room_id, users) = (&place.room_id, place.among(&users));
        let wanted = sent.events.iter().filter(|(room, _)| room == room_id);
        let wanted: BTreeSet<_> = wanted.map(|(_, id)| id.clone()).collect();
        for user in users {
            let missing = missing_after_all(user, users, room_id, &wanted).await;
            if let Some(first) = missing.first() {
                for other in users {
                    let path = format!("/rooms/{}/event/{}", encode(room_id), encode(first));
                    let answer = other.request("GET", &path, None).await;
                    println!("{}: {} {}", other.user_id, answer.status, answer.body);
                }
                for cabin in [&one, &two] {
                    let refused = command("federation", cabin.server.data_dir(), "refused", "");
                    println!("{}: {}", cabin.name, done(refused));
                }
                panic!("{} lacks {missing:?} in {room_id}", user.user_id);
            }
        }
        // After a word of each, all know of the same branches.
        for user in users {
            let text = format!("the last word of {}", user.user_id);
            user.send_text(room_id, "last", &text).await;
            for other in users {
                until_says(other, room_id, user, &text).await;
            }
        }
        until(&format!("the same state of {room_id}"), async || {
            let mut states = BTreeSet::new();
            for user in users {
                states.insert(whole_state(user, room_id).await);
            }
            states.len() == 1
        })
        .await;
    }
    // Letters are last: they are read meanwhile.
    for user in &users {
        let path = format!("/sendToDevice/m.load/last-{}", encode(&user.user_id));
        for other in users.iter().filter(|other| other.user_id != user.user_id) {
            let body = json!({ "messages": { &*other.user_id: { "*": { "text": "last" } } } });
            let path = format!("{path}-{}", encode(&other.user_id));
            persistently(user, "PUT", &path, &body).await;
        }
    }
    sleep(Duration::from_secs(5)).await;
    is_read.store(true, Ordering::Relaxed);
    for (user, reading) in users.iter().zip(reading) {
        let texts = reading.await.expect("no panic");
        let wanted = sent.letters.iter().filter(|(to, _)| *to == user.user_id);
        let missing: Vec<_> = wanted.filter(|(_, text)| !texts.contains(text)).collect();
        assert!(missing.is_empty(), "{} lacks letters: {missing:?}", user.user_id);
    }
}
