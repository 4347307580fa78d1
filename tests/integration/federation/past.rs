//! The history of rooms from before this server was in them, and from while it was away.

use serde_json::{Value, json};

use super::with_synapse::both;
use crate::harness::{User, encode, until};

/// One page of a room's history: the ids of its events, and its end.
async fn page(user: &User, room_id: &str, query: &str) -> (Vec<String>, Option<String>) {
    let path = format!("/rooms/{}/messages?{query}", encode(room_id));
    let page = user.request("GET", &path, None).await.ok();
    (ids(&page["chunk"]), page["end"].as_str().map(ToOwned::to_owned))
}

fn ids(events: &Value) -> Vec<String> {
    let events = events.as_array().into_iter().flatten();
    events.map(|event| event["event_id"].as_str().expect("an id").to_owned()).collect()
}

/// All events from a position on in one direction, in that order, page by page.
async fn walk(
    user: &User,
    room_id: &str,
    dir: &str,
    from: Option<&str>,
    limit: u32,
) -> Vec<String> {
    walk_to(user, room_id, &format!("dir={dir}&limit={limit}"), from).await
}

async fn walk_to(user: &User, room_id: &str, query: &str, from: Option<&str>) -> Vec<String> {
    let (mut all, mut from) = (Vec::new(), from.map(ToOwned::to_owned));
    loop {
        let position = from.as_deref().map(|from| format!("&from={from}")).unwrap_or_default();
        let (events, end) = page(user, room_id, &format!("{query}{position}")).await;
        let is_last = events.is_empty() && (end.is_none() || end == from);
        all.extend(events);
        match end {
            Some(end) if !is_last => from = Some(end),
            _ => return all,
        }
    }
}

fn reversed(mut events: Vec<String>) -> Vec<String> {
    events.reverse();
    events
}

/// A room of a user, with so many messages.
async fn room_with(user: &User, messages: usize, version: &str) -> String {
    let options = json!({ "preset": "public_chat", "room_version": version, "name": "Old" });
    let room_id = user.create_room(options).await;
    say_all(user, &room_id, "old", messages).await;
    room_id
}

async fn say_all(user: &User, room_id: &str, text: &str, count: usize) {
    for number in 0..count {
        let body = format!("{text} {number}");
        user.send_text(room_id, &encode(&body), &body).await;
    }
}

async fn join(user: &User, room_id: &str, via: &str) {
    let path = format!("/join/{}?via={via}", encode(room_id));
    user.request("POST", &path, Some(&json!({}))).await.ok();
}

/// A room's part of a sync.
fn timeline(sync: &Value, room_id: &str) -> Value {
    sync["rooms"]["join"][room_id]["timeline"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_who_joins_reads_the_room_from_its_beginning() {
    let Some((_authority, mut cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (version, messages) in [("10", 250), ("12", 30), ("6", 30)] {
        let room_id = room_with(&bob, messages, version).await;
        // What relates to what, and what is taken back, before anybody here reads it.
        let root = bob.send_text(&room_id, "root", "root").await;
        let reaction = json!({ "m.relates_to": {
            "rel_type": "m.annotation", "event_id": root, "key": "+",
        } });
        let path = format!("/rooms/{}/send/m.reaction/r", encode(&room_id));
        bob.request("PUT", &path, Some(&reaction)).await.ok();
        let secret = bob.send_text(&room_id, "secret", "secret").await;
        let path = format!("/rooms/{}/redact/{}/s", encode(&room_id), encode(&secret));
        bob.request("PUT", &path, Some(&json!({}))).await.ok();
        join(&ann, &room_id, &synapse.name).await;
        let new = ann.send_text(&room_id, "new", "new").await;
        until("bob hears ann", async || {
            page(&bob, &room_id, "dir=b&limit=5").await.0.contains(&new)
        })
        .await;

        // The sync begins with the join, and says that there is more.
        let sync = ann.sync(None, 0, None).await;
        let shown = timeline(&sync, &room_id);
        assert_eq!(shown["limited"], true, "{shown}");
        assert_eq!(ids(&shown["events"]).len(), 2, "{shown}");
        let prev_batch = shown["prev_batch"].as_str().expect("a token");
        // It is good wherever a token is.
        for path in [
            format!("/rooms/{}/members?at={prev_batch}", encode(&room_id)),
            format!("/sync?since={prev_batch}"),
        ] {
            ann.request("GET", &path, None).await.ok();
        }
        let expected = walk(&bob, &room_id, "b", None, 100).await;
        assert!(expected.len() > messages + 8, "{}", expected.len());

        // Back from there with a restart in the middle.
        let query = format!("dir=b&limit=25&from={prev_batch}");
        let (mut back, end) = page(&ann, &room_id, &query).await;
        assert_eq!(back.len(), 25);
        cabin.server.kill9();
        cabin.server.restart().await;
        back.extend(walk(&ann, &room_id, "b", end.as_deref(), 40).await);
        assert_eq!(back[..], expected[2..], "version {version}");
        // And on again, and all of it in other pages.
        let all = walk(&ann, &room_id, "f", None, 33).await;
        assert_eq!(all, reversed(expected.clone()), "version {version}");
        assert_eq!(walk(&ann, &room_id, "b", None, 100).await, expected);
        let first = all.first().expect("an event");
        let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(first));
        assert_eq!(ann.request("GET", &path, None).await.ok()["type"], "m.room.create");

        // What surrounds an event, from both sides.
        let path = format!("/rooms/{}/context/{}?limit=6", encode(&room_id), encode(&root));
        let context = ann.request("GET", &path, None).await.ok();
        let place = all.iter().position(|id| *id == root).expect("the event");
        assert_eq!(ids(&context["events_before"]), reversed(all[place - 3..place].to_vec()));
        assert_eq!(ids(&context["events_after"]), all[place + 1..place + 4]);
        let end = context["end"].as_str();
        assert_eq!(walk(&ann, &room_id, "f", end, 2).await, all[place + 4..]);
        let start = context["start"].as_str();
        assert_eq!(walk(&ann, &room_id, "b", start, 50).await, reversed(all[..place - 3].to_vec()));
        // Related events, and what was taken back.
        assert_eq!(context["event"]["unsigned"]["m.relations"], Value::Null);
        let path = format!("/rooms/{}/relations/{}", encode(&room_id), encode(&root));
        let path = format!("/_matrix/client/v1{path}");
        let related = ann.http.request("GET", &path, Some(&ann.access_token), None).await.ok();
        assert_eq!(ids(&related["chunk"]), all[place + 1..place + 2]);
        let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&secret));
        let shown = ann.request("GET", &path, None).await.ok();
        assert_eq!(shown["content"], json!({}), "{shown}");
        // An event by its time, on either server.
        let time = ann.request("GET", &path, None).await.ok()["origin_server_ts"].clone();
        let closest = async |user: &User| {
            let path = format!("/rooms/{}/timestamp_to_event?dir=b&ts={time}", encode(&room_id));
            let path = format!("/_matrix/client/v1{path}");
            user.http.request("GET", &path, Some(&user.access_token), None).await.ok()
        };
        assert_eq!(closest(&ann).await["event_id"], closest(&bob).await["event_id"]);
        // A sync shows none of it.
        let next = ann.sync(sync["next_batch"].as_str(), 0, None).await;
        assert_eq!(timeline(&next, &room_id), Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_goes_on_once_the_other_homeserver_is_back() {
    let Some((_authority, mut cabin, mut synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let room_id = room_with(&bob, 150, "10").await;
    join(&ann, &room_id, &synapse.name).await;
    let expected = walk(&bob, &room_id, "b", None, 100).await;
    let (mut read, end) = page(&ann, &room_id, "dir=b&limit=20").await;
    assert_eq!(read.len(), 20);
    synapse.kill();
    // What is here is read to its end, and then there is no error.
    let mut from = end;
    loop {
        let query = format!("dir=b&limit=50&from={}", from.as_deref().expect("an end"));
        let (events, end) = page(&ann, &room_id, &query).await;
        let stays = events.is_empty();
        read.extend(events);
        assert!(end.is_some(), "the end of the room is not known");
        if stays {
            assert_eq!(end, from, "the end stays in the gap");
            break;
        }
        from = end;
    }
    assert!(read.len() < expected.len());
    // Nor from the other end, which is not known.
    let (events, _) = page(&ann, &room_id, "dir=f&limit=50").await;
    assert!(events.is_empty(), "{events:?}");
    cabin.server.restart().await;
    synapse.run().await;
    let from = from.expect("an end");
    until("ann reads on", async || {
        let (events, _) = page(&ann, &room_id, &format!("dir=b&limit=10&from={from}")).await;
        !events.is_empty()
    })
    .await;
    read.extend(walk(&ann, &room_id, "b", Some(&from), 30).await);
    assert_eq!(read, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_while_the_server_was_down_is_between_what_came_before_and_after() {
    let Some((_authority, mut cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    // Where only members see what is said.
    let room_id = room_with(&bob, 1, "10").await;
    let private = json!({ "history_visibility": "joined" });
    bob.set_state(&room_id, "m.room.history_visibility", "", &private).await.ok();
    join(&ann, &room_id, &synapse.name).await;
    bob.send_text(&room_id, "before", "before").await;
    let heard = async |text: &str| {
        let (path, text) =
            (format!("/rooms/{}/messages?dir=b&limit=5", encode(&room_id)), json!(text));
        let page = ann.request("GET", &path, None).await.ok();
        page["chunk"].as_array().into_iter().flatten().any(|of| of["content"]["body"] == text)
    };
    until("ann hears bob", async || heard("before").await).await;
    let sync = ann.sync(None, 0, None).await;
    let since = sync["next_batch"].as_str().expect("a token").to_owned();
    cabin.server.kill9();
    say_all(&bob, &room_id, "missed", 700).await;
    cabin.server.restart().await;
    bob.send_text(&room_id, "after", "after").await;
    until("ann hears bob again", async || heard("after").await).await;
    // The sync is cut at the gap, and what is in it is found from there.
    let (mut shown, mut next) = (Vec::new(), since.clone());
    let mut prev_batch = None;
    let filter = json!({ "room": { "timeline": { "limit": 100 } } }).to_string();
    until("the sync has come to the end", async || {
        let sync = ann.sync(Some(&next), 0, Some(&filter)).await;
        let part = timeline(&sync, &room_id);
        if part["limited"] == true {
            shown.clear();
            prev_batch = part["prev_batch"].as_str().map(ToOwned::to_owned);
        }
        shown.extend(ids(&part["events"]));
        next = sync["next_batch"].as_str().expect("a token").to_owned();
        heard("after").await && part.is_null()
    })
    .await;
    let prev_batch = prev_batch.expect("the sync is limited");
    let expected = walk(&bob, &room_id, "b", None, 100).await;
    let place = shown.len();
    assert_eq!(reversed(shown), expected[..place]);
    let query = format!("dir=b&limit=60&to={since}");
    let between = walk_to(&ann, &room_id, &query, Some(&prev_batch)).await;
    // Those of the last transaction came in time.
    assert!((600..=700).contains(&between.len()), "{}", between.len());
    assert_eq!(between, expected[place..place + between.len()]);
    let forward = walk(&ann, &room_id, "f", Some(&since), 70).await;
    assert_eq!(reversed(forward), expected[..place + between.len()]);
    // What was said before ann came is not for her.
    let all = walk(&ann, &room_id, "b", None, 100).await;
    let path = format!("/rooms/{}/messages?dir=b&limit=1000", encode(&room_id));
    let seen = ann.request("GET", &path, None).await.ok();
    let old =
        seen["chunk"].as_array().into_iter().flatten().any(|of| of["content"]["body"] == "old 0");
    assert!(old, "what was said while everybody could see it");
    assert_eq!(all.first(), expected.first());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_found_by_its_time_before_anybody_has_read_that_far() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let room_id = room_with(&bob, 30, "10").await;
    let wanted = bob.send_text(&room_id, "wanted", "wanted").await;
    say_all(&bob, &room_id, "later", 150).await;
    let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&wanted));
    let time = bob.request("GET", &path, None).await.ok()["origin_server_ts"].clone();
    join(&ann, &room_id, &synapse.name).await;
    let path = format!("/_matrix/client/v1/rooms/{}/timestamp_to_event", encode(&room_id));
    let query = format!("{path}?dir=b&ts={time}");
    let found = ann.http.request("GET", &query, Some(&ann.access_token), None).await.ok();
    assert_eq!(found["origin_server_ts"], time);
    let found = found["event_id"].as_str().expect("an id");
    let path = format!("/rooms/{}/context/{}?limit=4", encode(&room_id), encode(found));
    let context = ann.request("GET", &path, None).await.ok();
    assert_eq!(ids(&context["events_after"]).len(), 2, "{context}");
    // The other way round: Synapse asks this server for what it has not.
    let cara = cabin.server.register("cara").await;
    let room_id = room_with(&cara, 30, "10").await;
    let wanted = cara.send_text(&room_id, "wanted", "wanted").await;
    say_all(&cara, &room_id, "later", 30).await;
    let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&wanted));
    let time = cara.request("GET", &path, None).await.ok()["origin_server_ts"].clone();
    join(&bob, &room_id, &cabin.name).await;
    let path = format!("/_matrix/client/v1/rooms/{}/timestamp_to_event", encode(&room_id));
    let query = format!("{path}?dir=b&ts={time}");
    let found = bob.http.request("GET", &query, Some(&bob.access_token), None).await.ok();
    assert_eq!(found["origin_server_ts"], time);
}
