//! What one homeserver may have this one take.

use std::time::Duration;

use serde_json::{Value, json};

use super::ephemeral::recorded;
use super::hostile::{Hostile, now};
use super::peer::Peer;
use super::to_device::{Inbox, letter};
use super::{Federated, authority};
use crate::administration::{done, user_command};
use crate::harness::{Answer, User, encode};

const LETTER: &str = "m.direct_to_device";

/// With rates, which most tests do without.
const LIMITED: [(&str, &str); 1] = [("LOGCABIN_RATE_LIMITS_ENABLED", "true")];

/// The body of a transaction with these EDUs.
fn with_edus(origin: &str, edus: &[(&str, Value)]) -> Value {
    let edu = |(name, content): &(&str, Value)| json!({ "edu_type": name, "content": content });
    let edus: Vec<_> = edus.iter().map(edu).collect();
    json!({ "origin": origin, "origin_server_ts": now(), "pdus": [], "edus": edus })
}

async fn send(hostile: &Hostile<'_>, transaction_id: &str, body: &Value) -> Answer {
    hostile.ask("PUT", &format!("/_matrix/federation/v1/send/{transaction_id}"), body).await
}

/// The time after which a refused request may be repeated.
fn wait_of(refused: Answer) -> Duration {
    let body = refused.refused(429, "M_LIMIT_EXCEEDED");
    Duration::from_millis(body["retry_after_ms"].as_u64().expect("a time"))
}

/// The size of all files of the server.
fn disk(cabin: &Federated) -> u64 {
    fn size(folder: &std::path::Path) -> u64 {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let of = |entry: std::fs::DirEntry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        };
        entries.map(of).sum()
    }
    size(cabin.server.data_dir())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_flood_of_messages_to_devices_is_refused_and_taken_when_it_is_repeated() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &LIMITED).await;
    let (peer, flooding) = (Peer::start(&authority).await, Peer::start(&authority).await);
    let ann = cabin.server.register("ann").await;
    let mut of_ann = Inbox::of(&ann).await;
    let stranger = Hostile::new(&peer, &cabin, "!none");
    let sam = stranger.user("sam");
    let letters = |from: usize, to: usize| {
        let one = |number: usize| {
            let text = number.to_string();
            (LETTER, letter(&sam, &text, &ann.user_id, "*", &text))
        };
        with_edus(peer.name.as_str(), &(from..to).map(one).collect::<Vec<_>>())
    };
    // All that a stranger may send at once, and some more.
    send(&stranger, "first", &letters(0, 50)).await.ok();
    let more = letters(50, 53);
    let wait = wait_of(send(&stranger, "more", &more).await);
    assert!(wait <= Duration::from_secs(3), "{wait:?}");
    assert_eq!(of_ann.look().await.len(), 50, "nothing of it was taken");
    tokio::time::sleep(wait).await;
    send(&stranger, "more", &more).await.ok();
    let taken: Vec<_> = of_ann.look().await.iter().map(|(_, text)| text.clone()).collect();
    assert_eq!(taken, (0..53).map(|number| number.to_string()).collect::<Vec<_>>());

    // Twenty megabytes of made-up senders.
    let before = disk(&cabin);
    let flood = Hostile::new(&flooding, &cabin, "!none");
    let mut refused = 0;
    for number in 0..40 {
        let one = |of: usize| {
            let sender = flood.user(&format!("sam{number}x{of}"));
            let text = "x".repeat(50_000);
            (LETTER, letter(&sender, &format!("{number}.{of}"), &ann.user_id, "*", &text))
        };
        let body = with_edus(flooding.name.as_str(), &(0..10).map(one).collect::<Vec<_>>());
        let answer = send(&flood, &format!("f{number}"), &body).await;
        if answer.status == 429 {
            refused += 1;
        } else {
            answer.ok();
        }
    }
    assert!(refused > 30, "{refused} of 40 were refused");
    let grown = (disk(&cabin) - before) >> 20;
    assert!(grown < 12, "{grown} MiB");
    // The other one is not concerned.
    let body = with_edus(
        peer.name.as_str(),
        &[("m.typing", json!({ "room_id": "!none", "user_id": sam, "typing": true }))],
    );
    send(&stranger, "typing", &body).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_is_over_its_share_is_refused_before_its_signature_is_verified() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &LIMITED).await;
    let peer = Peer::start(&authority).await;
    let stranger = Hostile::new(&peer, &cabin, "!none");
    let junk = ("m.unknown", json!({ "junk": "x".repeat(7 << 20) }));
    let body = with_edus(peer.name.as_str(), &[junk]);
    // The largest transaction passes, but is more than a share.
    send(&stranger, "large", &body).await.ok();
    let path = "/_matrix/federation/v1/send/second";
    let body = with_edus(peer.name.as_str(), &[]);
    let header = peer.header(&cabin.name, "PUT", path, &json!({ "another": "body" }));
    let wait = wait_of(peer.send(cabin.address, "PUT", path, Some(&header), &body).await);
    assert!(wait > Duration::from_secs(60), "{wait:?}");
}

/// Has a homeserver invite a user of the server to a made-up room.
pub(super) async fn invite(hostile: &Hostile<'_>, user: &User, number: usize) -> Answer {
    let room_id = format!("!made-up{number}:{}", hostile.origin());
    let (event_id, event) = hostile.signed(json!({
        "type": "m.room.member", "room_id": room_id, "state_key": user.user_id,
        "sender": hostile.user(&format!("made-up{number}")),
        "content": { "membership": "invite" }, "depth": 5, "origin_server_ts": now(),
        "prev_events": [format!("${}", "p".repeat(43))],
        "auth_events": [format!("${}", "a".repeat(43))],
    }));
    let path = format!("/_matrix/federation/v2/invite/{}/{}", encode(&room_id), encode(&event_id));
    let body = json!({ "room_version": "10", "event": event, "invite_room_state": [] });
    hostile.ask("PUT", &path, &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn invites_by_made_up_strangers_are_dropped_first_and_block_no_others() {
    let Some(authority) = authority("hostile peers") else { return };
    let settings = [("LOGCABIN_RATE_LIMITS_ENABLED", "false"), ("LOGCABIN_QUOTAS_INVITES", "10")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let (peer, other) = (Peer::start(&authority).await, Peer::start(&authority).await);
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    let hostile = Hostile::new(&peer, &cabin, "!none");
    invite(&hostile, &ann, 0).await.ok();
    let since = ann.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();
    // One stranger at another homeserver invites once.
    let honest = Hostile::new(&other, &cabin, "!none");
    invite(&honest, &ann, 1000).await.ok();
    for number in 1..30 {
        invite(&hostile, &ann, number).await.ok();
    }
    let pending = async || {
        let synced = ann.sync(None, 0, None).await["rooms"]["invite"].clone();
        synced.as_object().cloned().unwrap_or_default()
    };
    let rooms = pending().await;
    assert_eq!(rooms.len(), 5, "half of the quota: {:?}", rooms.keys());
    assert!(rooms.contains_key(&format!("!made-up29:{}", peer.name)));
    assert!(rooms.contains_key(&format!("!made-up1000:{}", other.name)), "{:?}", rooms.keys());
    // Clients see that the first one is gone.
    let news = ann.sync(Some(&since), 0, None).await;
    let first = format!("!made-up0:{}", peer.name);
    assert!(news["rooms"]["leave"].get(&first).is_some(), "{}", news["rooms"]);
    // Nobody here waits behind them.
    for _ in 0..10 {
        let options = json!({ "invite": [ann.user_id] });
        bob.create_room(options).await;
    }
    assert_eq!(pending().await.len(), 15);
    let options = json!({ "invite": [ann.user_id] });
    bob.request("POST", "/createRoom", Some(&options)).await.refused(413, "M_TOO_LARGE");
    // Nor does one with whom ann shares a room.
    let room_id = ann.create_room(json!({ "preset": "public_chat", "room_version": "10" })).await;
    let mut known = Hostile::new(&other, &cabin, &room_id);
    known.join_as("made-up7").await;
    invite(&known, &ann, 7).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_rejects_the_invites_of_another_homeserver() {
    let Some(authority) = authority("hostile peers") else { return };
    let settings = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let (peer, other) = (Peer::start(&authority).await, Peer::start(&authority).await);
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    let (spam, honest) =
        (Hostile::new(&peer, &cabin, "!none"), Hostile::new(&other, &cabin, "!none"));
    for number in 0..3 {
        invite(&spam, &ann, number).await.ok();
        invite(&spam, &bob, number + 3).await.ok();
    }
    invite(&honest, &ann, 6).await.ok();
    let pending = async |user: &User| {
        let synced = user.sync(None, 0, None).await["rooms"]["invite"].clone();
        synced.as_object().map_or(0, serde_json::Map::len)
    };
    assert_eq!((pending(&ann).await, pending(&bob).await), (4, 3));
    let run = |arguments: &str| done(user_command(cabin.server.data_dir(), arguments, ""));
    // Kicking is another way to the same, for one user.
    assert!(run("kick bob").contains("Kicked @bob:"), "in all rooms");
    assert_eq!(pending(&bob).await, 0);
    let said = run(&format!("reject-invites --from-server {}", peer.name));
    assert!(said.contains("Rejected 3 invite(s)") && !said.contains("could not"), "{said}");
    assert_eq!(pending(&ann).await, 1);
    // A user who closes their account leaves no invites behind.
    run("deactivate ann --yes");
    assert!(run("reject-invites --to ann").contains("Rejected 0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn invites_by_made_up_users_who_share_a_room_give_way_to_other_homeservers() {
    let Some(authority) = authority("hostile peers") else { return };
    let settings = [("LOGCABIN_RATE_LIMITS_ENABLED", "false"), ("LOGCABIN_QUOTAS_INVITES", "10")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let (peer, other) = (Peer::start(&authority).await, Peer::start(&authority).await);
    let ann = cabin.server.register("ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "room_version": "10" })).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    for number in 0..12 {
        hostile.join_as(&format!("made-up{number}")).await;
    }
    let mut refused = 0;
    for number in 0..12 {
        refused += usize::from(invite(&hostile, &ann, number).await.status != 200);
    }
    assert_eq!(refused, 2, "one homeserver displaces nothing of its own");
    let mut honest = Hostile::new(&other, &cabin, &room_id);
    honest.join_as("made-up1000").await;
    invite(&honest, &ann, 1000).await.ok();
    let synced = ann.sync(None, 0, None).await["rooms"]["invite"].clone();
    let rooms = synced.as_object().expect("invites");
    assert_eq!(rooms.len(), 10, "{:?}", rooms.keys());
    assert!(rooms.contains_key(&format!("!made-up1000:{}", other.name)));
    assert!(!rooms.contains_key(&format!("!made-up0:{}", peer.name)), "the oldest");
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_users_of_one_homeserver_fill_no_room_with_knocks() {
    let Some(authority) = authority("hostile peers") else { return };
    // With rates, some may have become free meanwhile.
    for (is_limited, expected) in [("false", 50..=50), ("true", 20..=30)] {
        let settings = [("LOGCABIN_RATE_LIMITS_ENABLED", is_limited)];
        let cabin = Federated::start_with(&authority, &settings).await;
        let peer = Peer::start(&authority).await;
        let ann = cabin.server.register("ann").await;
        let room_id = ann
            .create_room(json!({
                "preset": "private_chat", "room_version": "10",
                "initial_state": [{
                    "type": "m.room.join_rules", "state_key": "",
                    "content": { "join_rule": "knock" },
                }],
            }))
            .await;
        let hostile = Hostile::new(&peer, &cabin, &room_id);
        let (mut taken, mut refused) = (0, 0);
        for number in 0..60 {
            let user_id = hostile.user(&format!("knocker{number}"));
            let (room, of) = (encode(&room_id), encode(&user_id));
            let path = format!("/_matrix/federation/v1/make_knock/{room}/{of}?ver=10");
            let made = hostile.ask("GET", &path, &Value::Null).await.ok();
            let (event_id, event) = hostile.signed(made["event"].clone());
            let path = format!("/_matrix/federation/v1/send_knock/{room}/{}", encode(&event_id));
            let answer = hostile.ask("PUT", &path, &event).await;
            if answer.status == 200 {
                taken += 1;
            } else {
                wait_of(answer);
                refused += 1;
            }
        }
        assert!(expected.contains(&taken) && taken + refused == 60, "{taken} and {refused}");
        let path = format!("/rooms/{}/members?membership=knock", encode(&room_id));
        let members = ann.request("GET", &path, None).await.ok();
        assert_eq!(members["chunk"].as_array().map(Vec::len), Some(taken));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_users_presence_in_one_transaction_the_newest_is_recorded() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start_with(&authority, &LIMITED).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let pia = hostile.user("pia");
    let present = |status: usize| {
        let of = json!({
            "user_id": pia, "presence": "online", "status_msg": status.to_string(),
            "last_active_ago": 5, "currently_active": true,
        });
        ("m.presence", json!({ "push": [of.clone(), of] }))
    };
    let before = recorded(&cabin);
    hostile.send_edus(&(1..=50).map(present).collect::<Vec<_>>()).await;
    let seen = ann.request("GET", &format!("/presence/{}/status", encode(&pia)), None).await.ok();
    assert_eq!(seen["status_msg"], "50");
    assert_eq!(recorded(&cabin) - before, 1);
}
