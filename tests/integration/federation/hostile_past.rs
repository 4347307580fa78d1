//! A homeserver that makes up the history of its room.

use serde_json::{Value, json};

use super::Federated;
use super::authority;
use super::elsewhere::{TIME, stage, texts};
use super::hostile::{Hostile, with_pia};
use super::peer::{Peer, Script};
use super::view::fresh_sync;
use crate::harness::stand_in::{reply, reply_json};
use crate::harness::{User, encode};

#[tokio::test(flavor = "multi_thread")]
async fn history_is_fetched_only_as_far_as_somebody_reads() {
    let Some((_authority, _cabin, stage, ann)) = stage().await else { return };
    for number in 0..1500 {
        stage.say(&format!("old {number}"));
    }
    let room_id = stage.entered_by(&ann).await;
    // One page of few.
    let (read, end) = texts(&ann, &room_id, "limit=10").await;
    assert_eq!(read.first().map(String::as_str), Some("old 1499"));
    assert_eq!((read.len(), stage.room().asked), (9, 1));
    // A filter that matches nothing has it fetch no more than a page may.
    let filter = encode(&json!({ "types": ["none"] }).to_string());
    let query = format!("limit=10&filter={filter}&from={}", end.expect("an end"));
    let (none, end) = texts(&ann, &room_id, &query).await;
    assert!(none.is_empty() && end.is_some());
    let asked = stage.room().asked;
    assert!((2..=6).contains(&asked), "asked {asked} times");
    // And the whole of it, in the end.
    let (mut all, mut from) = (Vec::new(), String::new());
    loop {
        let (read, end) = texts(&ann, &room_id, &format!("limit=100{from}")).await;
        all.extend(read);
        let Some(end) = end else { break };
        from = format!("&from={end}");
    }
    let expected: Vec<_> = (0..1500).rev().map(|number| format!("old {number}")).collect();
    assert_eq!(all, expected);
    assert!(stage.room().asked <= 17);
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_is_left_out_of_a_rooms_history() {
    let Some((_authority, _cabin, stage, ann)) = stage().await else { return };
    stage.say("one");
    let content = |text: &str| json!({ "msgtype": "m.text", "body": text });
    // What is not allowed, or not signed, is a step on the way back and nothing else.
    let (_, mut event) = stage.event("m.room.message", None, content("bad sender"));
    event["sender"] = json!(format!("@eve:{}", stage.peer.name));
    for name in ["hashes", "signatures"] {
        event.as_object_mut().expect("an event").remove(name);
    }
    stage.add(stage.signed(event));
    let (id, mut event) = stage.event("m.room.message", None, content("bad signature"));
    event["signatures"] = json!({ stage.peer.name.as_str(): { "ed25519:peer": "AAAA" } });
    stage.add((id, event));
    let (id, mut event) = stage.event("m.room.message", None, content("two"));
    // This content does not fit its hash.
    event["content"] = content("bad content");
    stage.add((id, event));
    stage.say("three");
    // Events of another room, that nothing leads to, too large, and no events.
    let (_, mut foreign) = stage.event("m.room.message", None, content("bad room"));
    foreign["room_id"] = json!("!other:example.org");
    let (_, foreign) = stage.signed(foreign);
    let (_, stray) = stage.event("m.room.message", None, content("bad stray"));
    let (_, mut large) = stage.event("m.room.message", None, content("bad size"));
    large["content"]["more"] = json!("x".repeat(200_000));
    let mut pdus: Vec<Value> = vec![foreign, stray, large, json!(7), json!({}), json!([])];
    {
        let mut room = stage.room();
        pdus.extend(room.order.iter().rev().map(|id| room.events[id].clone()));
        let junk = reply_json(200, &json!({ "pdus": pdus }));
        room.backfill = vec![
            reply(200, "application/json", "no JSON"),
            reply(200, "application/json", vec![b' '; 9 << 20]),
            junk,
        ];
    }
    let room_id = stage.entered_by(&ann).await;
    let mut read = Vec::new();
    crate::harness::until("there is an answer of use", async || {
        read = texts(&ann, &room_id, "limit=50").await.0;
        !read.is_empty()
    })
    .await;
    assert_eq!(read, ["three", "one"]);
    assert_eq!(texts(&ann, &room_id, "limit=50").await.1, None, "the room's beginning is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn history_from_when_only_members_saw_it_is_not_shown() {
    let Some((authority, cabin, stage, ann)) = stage().await else { return };
    let setting = |name: &str| json!({ "history_visibility": name });
    let visibility = "m.room.history_visibility";
    stage.say("first");
    stage.state(visibility, "", setting("joined"));
    stage.say("secret");
    stage.state(visibility, "", setting("invited"));
    stage.say("secret, too");
    stage.state(visibility, "", setting("shared"));
    stage.say("last");
    let room_id = stage.entered_by(&ann).await;
    let (read, end) = texts(&ann, &room_id, "limit=50").await;
    assert_eq!((read, end), (vec!["last".to_owned(), "first".to_owned()], None));
    let secret = stage.room().order[6].clone();
    let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&secret));
    ann.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    let path = format!("/rooms/{}/context/{}", encode(&room_id), encode(&secret));
    ann.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    // Nor is it found.
    let search = json!({ "search_categories": { "room_events": { "search_term": "secret" } } });
    let found = ann.request("POST", "/search", Some(&search)).await.ok();
    assert_eq!(found["search_categories"]["room_events"]["count"], 0, "{found}");
    let search = json!({ "search_categories": { "room_events": { "search_term": "first" } } });
    let found = ann.request("POST", "/search", Some(&search)).await.ok();
    assert_eq!(found["search_categories"]["room_events"]["count"], 1, "{found}");
    // Another homeserver gets as little from here.
    let other = Peer::start(&authority).await;
    let mut other = Hostile::new(&other, &cabin, &room_id);
    other.join().await;
    let last = stage.room().order.last().cloned().expect("an event");
    let path = format!("/_matrix/federation/v1/backfill/{}", encode(&room_id));
    let path = format!("{path}?v={}&limit=50", encode(&last));
    let sent = other.ask("GET", &path, &Value::Null).await.ok();
    let sent = sent["pdus"].as_array().expect("a list");
    assert_eq!(sent.len(), 11, "{sent:?}");
    let said = sent.iter().filter(|event| event["type"] == "m.room.message");
    let said: Vec<_> = said.map(|event| event["content"]["body"].as_str()).collect();
    assert_eq!(said, [Some("last"), None, None, Some("first")]);
    let path = format!("/_matrix/federation/v1/event/{}", encode(&secret));
    let sent = other.ask("GET", &path, &Value::Null).await.ok();
    assert_eq!(sent["pdus"][0]["content"], json!({}), "{sent}");
    let path = format!("/_matrix/federation/v1/timestamp_to_event/{}", encode(&room_id));
    let path = format!("{path}?dir=f&ts={}", TIME + 6);
    let found = other.ask("GET", &path, &Value::Null).await.ok();
    assert_eq!(found["event_id"], stage.room().order[7], "the secret is not told of");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_nobody_can_fill_is_passed() {
    let Some((_authority, mut cabin, stage, ann)) = stage().await else { return };
    stage.say("lost");
    stage.room().backfill = vec![reply_json(200, &json!({ "pdus": [] }))];
    let room_id = stage.entered_by(&ann).await;
    assert_eq!(texts(&ann, &room_id, "limit=50").await, (Vec::new(), None));
    assert_eq!(stage.room().asked, 1);
    // It is not asked again soon, not even after a restart.
    cabin.server.restart().await;
    assert_eq!(texts(&ann, &room_id, "limit=50").await, (Vec::new(), None));
    assert_eq!(stage.room().asked, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_odd_event_does_not_cost_a_homeserver_its_others() {
    let Some((authority, _cabin, stage, ann)) = stage().await else { return };
    let other = Peer::start(&authority).await;
    let joins = |user: &str| {
        let content = json!({ "membership": "join" });
        let (_, mut event) = stage.event("m.room.member", Some(user), content);
        let authorities = ["m.room.create", "m.room.power_levels", "m.room.join_rules"];
        let id = |event_type: &str| stage.room().state[&(event_type.to_owned(), "".into())].clone();
        event["auth_events"] = json!(authorities.map(id));
        event["sender"] = json!(user);
        let event = event.as_object_mut().expect("an event");
        event.retain(|name, _| name != "hashes" && name != "signatures");
        json!(event)
    };
    let add = |user: &str, signed: (String, Value)| {
        let id = stage.add(signed);
        stage.room().state.insert(("m.room.member".to_owned(), user.to_owned()), id);
    };
    let (mia, max) = (format!("@mia:{}", other.name), format!("@max:{}", other.name));
    add(&mia, stage.signed_by(&other, joins(&mia)));
    // From a time at which no key is valid, with signatures of keys that nobody has.
    let mut odd = joins(&max);
    odd["origin_server_ts"] = json!(9_007_199_254_740_991_u64);
    let (id, mut odd) = stage.signed_by(&other, odd);
    let signatures = odd["signatures"].as_object_mut().expect("signatures");
    let of_other = signatures[other.name.as_str()].as_object_mut().expect("signatures");
    of_other.extend((0..40).map(|number| (format!("ed25519:{number:02}"), json!("AAAA"))));
    signatures.insert("odd.example".to_owned(), Value::Null);
    add(&max, (id, odd));

    let room_id = stage.entered_by(&ann).await;
    let member = async |user: &str| {
        let path = format!("/rooms/{}/state/m.room.member/{}", encode(&room_id), encode(user));
        ann.request("GET", &path, None).await
    };
    assert_eq!(member(&mia).await.ok()["membership"], "join");
    member(&max).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_events_for_one_key_of_the_state_a_room_has_one() {
    let Some((_authority, mut cabin, stage, ann)) = stage().await else { return };
    let name = |name: &str, key: &str| {
        let id = stage.add(stage.event("m.room.name", Some(""), json!({ "name": name })));
        stage.room().state.insert(("m.room.name".to_owned(), key.to_owned()), id);
    };
    name("one", "");
    name("two", "the same key, in fact");
    let room_id = stage.entered_by(&ann).await;
    let names = async || -> Vec<Value> {
        let state =
            ann.request("GET", &format!("/rooms/{}/state", encode(&room_id)), None).await.ok();
        let state = state.as_array().expect("a list").clone().into_iter();
        state.filter(|event| event["type"] == "m.room.name").collect()
    };
    let before = names().await;
    assert_eq!(before.len(), 1, "{before:?}");
    cabin.server.kill9();
    cabin.server.restart().await;
    assert_eq!(names().await[0]["event_id"], before[0]["event_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_after_what_cannot_be_had_is_in_the_next_sync() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let script = Script::default();
    let peer = script.start(&authority).await;
    let (ann, room_id, mut of_peer) = with_pia(&peer, &cabin).await;
    let path = format!("/rooms/{}/state", encode(&room_id));
    let state = ann.request("GET", &path, None).await.ok();
    let ids = state.as_array().expect("a list").iter().map(|event| event["event_id"].clone());
    let ids: Vec<_> = ids.collect();
    // Somebody has made an event that this server cannot have, and pia speaks after it.
    script.set([
        ("get_missing_events", json!({ "events": [] })),
        ("state_ids", json!({ "pdu_ids": ids, "auth_chain_ids": [] })),
    ]);
    let since = fresh_sync(&ann).await["next_batch"].as_str().expect("a token").to_owned();
    let mut message = of_peer.message("heard").await;
    message["prev_events"] = json!([format!("${}", "x".repeat(43))]);
    let (event_id, message) = of_peer.signed(message);
    assert_eq!(of_peer.send(&[message]).await, json!({ &*event_id: {} }));
    let synced = ann.sync(Some(&since), 0, None).await;
    let timeline = &synced["rooms"]["join"][&room_id]["timeline"];
    assert_eq!(timeline["events"][0]["content"]["body"], "heard", "{synced}");
    assert_eq!(timeline["limited"], true, "something may be missing before it");
    // What follows it is heard, too, and what ann says then.
    let mut next = of_peer.message("heard, too").await;
    next["prev_events"] = json!([event_id]);
    let (event_id, next) = of_peer.signed(next);
    assert_eq!(of_peer.send(&[next]).await, json!({ &*event_id: {} }));
    assert_eq!(super::hostile::texts(&ann, &room_id).await[..2], ["heard, too", "heard"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_false_state_told_of_the_past_keeps_nobody_else_out() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let (script, lies) = (Script::default(), Script::default());
    let (peer, liar) = (script.start(&authority).await, lies.start(&authority).await);
    let (ann, room_id, mut of_peer) = with_pia(&peer, &cabin).await;
    let mut of_liar = Hostile::new(&liar, &cabin, &room_id);
    of_liar.join().await;
    let path = format!("/rooms/{}/state", encode(&room_id));
    let state = ann.request("GET", &path, None).await.ok();
    let state = state.as_array().expect("a list");
    let told = |without: &str| {
        let others = state.iter().filter(|event| event["state_key"] != without);
        let ids: Vec<_> = others.map(|event| event["event_id"].clone()).collect();
        [
            ("get_missing_events", json!({ "events": [] })),
            ("state_ids", json!({ "pdu_ids": ids, "auth_chain_ids": [] })),
        ]
    };
    script.set(told("nobody"));
    lies.set(told(&of_peer.user("pia")));
    let mut lie = of_liar.message("after what nobody has").await;
    lie["prev_events"] = json!([format!("${}", "x".repeat(43))]);
    let (lie_id, lie) = of_liar.signed(lie);
    assert_eq!(of_liar.send(&[lie]).await, json!({ &*lie_id: {} }));
    // By that state, pia is not in the room.
    let mut message = of_peer.message("heard").await;
    message["prev_events"] = json!([lie_id]);
    let (event_id, message) = of_peer.signed(message);
    assert_eq!(of_peer.send(&[message]).await, json!({ &*event_id: {} }));
    assert_eq!(super::hostile::texts(&ann, &room_id).await[0], "heard");
    let mut next = of_peer.message("heard, too").await;
    next["prev_events"] = json!([event_id]);
    let (event_id, next) = of_peer.signed(next);
    assert_eq!(of_peer.send(&[next]).await, json!({ &*event_id: {} }));
    assert_eq!(super::hostile::texts(&ann, &room_id).await[0], "heard, too");
    // Nor if the liar is asked first for the state before what pia says.
    let mut last = of_peer.message("heard at last").await;
    last["prev_events"] = json!([lie_id]);
    let (last_id, last) = of_peer.signed(last);
    let of_event = json!({ "origin": liar.name, "origin_server_ts": 1, "pdus": [last] });
    lies.set_text("event", of_event.to_string());
    let mut after = of_liar.message("after what the liar has of pia").await;
    after["prev_events"] = json!([last_id]);
    let (_, after) = of_liar.signed(after);
    of_liar.send(&[after]).await;
    assert_eq!(of_peer.send(&[last]).await, json!({ &*last_id: {} }));
    let texts = super::hostile::texts(&ann, &room_id).await;
    assert!(texts.iter().any(|text| text == "heard at last"), "{texts:?}");
    assert_eq!(fresh_members(&ann, &room_id).await, 3, "the current state is as it was");
}

async fn fresh_members(user: &User, room_id: &str) -> usize {
    let path = format!("/rooms/{}/joined_members", encode(room_id));
    let joined = user.request("GET", &path, None).await.ok();
    joined["joined"].as_object().expect("an object").len()
}
