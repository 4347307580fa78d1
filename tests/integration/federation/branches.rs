//! Another homeserver makes long branches in a room, without any power in it.

use serde_json::{Value, json};

use super::hostile::{Hostile, now, texts, with_pia};
use super::peer::{Peer, Script};
use super::{Federated, authority};
use crate::harness::{User, encode, until};

/// The id of a state event of a room.
async fn holder(user: &User, room_id: &str, event_type: &str) -> Value {
    let path = format!("/rooms/{}/state", encode(room_id));
    let state = user.request("GET", &path, None).await.ok();
    let is_it = |event: &&Value| event["type"] == event_type;
    let found = state.as_array().expect("a list").iter().find(is_it);
    found.expect("an event of the state")["event_id"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn long_branches_of_made_up_members_are_accepted_and_delay_nobody() {
    let Some(authority) = authority("long branches") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options.clone()).await;
    let quiet = ann.create_room(options).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let mut basis = Vec::new();
    for event_type in ["m.room.create", "m.room.power_levels", "m.room.join_rules"] {
        basis.push(holder(&ann, &room_id, event_type).await);
    }
    let start = hostile.message("start").await;
    let (prev, depth) = (start["prev_events"].clone(), start["depth"].as_u64().expect("a depth"));
    let mut tips = [(prev.clone(), depth), (prev, depth)];
    let (transactions, members) = (6, 2 * 6 * 25);
    let floods = async {
        for part in 0..transactions {
            for (branch, (prev, depth)) in tips.iter_mut().enumerate() {
                let mut events = Vec::new();
                for number in 0..25 {
                    let user = hostile.user(&format!("made-up-{branch}-{part}-{number}"));
                    let (event_id, event) = hostile.signed(json!({
                        "type": "m.room.member", "room_id": room_id, "sender": user,
                        "state_key": user, "content": { "membership": "join" }, "depth": depth,
                        "origin_server_ts": now(), "prev_events": prev, "auth_events": basis,
                    }));
                    (*prev, *depth) = (json!([event_id]), *depth + 1);
                    events.push(event);
                }
                let said = hostile.send(&events).await;
                let said = said.as_object().expect("an object");
                assert!(said.values().all(|of| *of == json!({})), "{said:?}");
            }
        }
    };
    let others = async {
        for number in 0..50 {
            let room = if number % 2 == 0 { &quiet } else { &room_id };
            ann.send_text(room, &format!("n{number}"), "x").await;
            ann.request("GET", "/account/whoami", None).await.ok();
        }
    };
    tokio::join!(floods, others);
    let path = format!("/rooms/{}/joined_members", encode(&room_id));
    let joined = ann.request("GET", &path, None).await.ok();
    let joined = joined["joined"].as_object().expect("an object").len();
    assert_eq!(joined, 2 + members);
    // Whoever comes after all of it is heard.
    let (event_id, last) = hostile.signed(hostile.message("last").await);
    assert_eq!(hostile.send(&[last]).await, json!({ event_id: {} }));
}

/// Users of a third homeserver join at the same time, and one of them is heard of only by the auth
/// events of what they say.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_who_is_first_known_by_auth_events_is_heard() {
    let Some(authority) = authority("concurrent joins") else { return };
    let cabin = Federated::start(&authority).await;
    let script = Script::default();
    let peer = script.start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "room_version": "10" })).await;
    let mut of_peer = Hostile::new(&peer, &cabin, &room_id);
    of_peer.join().await;
    let mut basis = Vec::new();
    for event_type in ["m.room.create", "m.room.power_levels"] {
        basis.push(holder(&ann, &room_id, event_type).await);
    }
    let rules = holder(&ann, &room_id, "m.room.join_rules").await;
    let template = of_peer.message("").await;
    let depth = template["depth"].as_u64().expect("a depth");
    let nina = of_peer.user("nina");
    let (join_id, join) = of_peer.signed(json!({
        "type": "m.room.member", "room_id": room_id, "sender": nina, "state_key": nina,
        "content": { "membership": "join" }, "depth": depth, "origin_server_ts": now(),
        "prev_events": template["prev_events"],
        "auth_events": [basis[0], basis[1], rules],
    }));
    let (said_id, said) = of_peer.signed(json!({
        "type": "m.room.message", "room_id": room_id, "sender": nina,
        "content": { "msgtype": "m.text", "body": "hello" }, "depth": depth + 1,
        "origin_server_ts": now(), "prev_events": [join_id],
        "auth_events": [basis[0], basis[1], join_id],
    }));
    let path = format!("/rooms/{}/state", encode(&room_id));
    let state = ann.request("GET", &path, None).await.ok();
    let ids: Vec<_> = state.as_array().expect("a list").iter().map(|of| &of["event_id"]).collect();
    script.set([
        ("event_auth", json!({ "auth_chain": [join] })),
        ("get_missing_events", json!({ "events": [join] })),
        ("state_ids", json!({ "pdu_ids": ids, "auth_chain_ids": [] })),
    ]);
    assert_eq!(of_peer.send(&[said]).await, json!({ &*said_id: {} }));
    assert_eq!(texts(&ann, &room_id).await, ["hello"]);
    let path = format!("/rooms/{}/joined_members", encode(&room_id));
    let joined = ann.request("GET", &path, None).await.ok();
    assert!(joined["joined"][&nina].is_object(), "{joined}");
}

/// A homeserver reaches this one while it cannot be reached itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_placed_once_its_homeserver_answers_what_comes_before_it() {
    let Some(authority) = authority("late answers") else { return };
    let cabin = Federated::start(&authority).await;
    let script = Script::default();
    let peer = script.start(&authority).await;
    let (ann, room_id, mut pia) = with_pia(&peer, &cabin).await;
    let before = pia.message("missed").await;
    let (missed_id, missed) = pia.signed(before.clone());
    let mut after = before.clone();
    after["prev_events"] = json!([missed_id]);
    after["depth"] = json!(before["depth"].as_u64().expect("a depth") + 1);
    after["content"]["body"] = json!("after it");
    let (id, after) = pia.signed(after);
    let said = pia.send(std::slice::from_ref(&after)).await;
    assert!(said[&*id]["error"].is_string(), "{said}");
    assert!(texts(&ann, &room_id).await.is_empty());
    script.set([("get_missing_events", json!({ "events": [missed] }))]);
    until("both are there", async || texts(&ann, &room_id).await == ["after it", "missed"]).await;
}
