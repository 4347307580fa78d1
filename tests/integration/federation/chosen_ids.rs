//! Rooms of versions 1 and 2, in which homeservers choose the ids of their events.

use futures_util::future::join_all;
use ruma::RoomVersionId;
use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::Peer;
use super::view::texts;
use super::{Federated, authority};
use crate::harness::{User, encode};

async fn says(user: &User, room_id: &str, text: &str) -> bool {
    texts(user, room_id).await.iter().any(|(_, body)| body == text)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_events_that_claim_one_id_the_first_is_kept() {
    let Some(authority) = authority("hostile peers") else { return };
    let mut cabin = Federated::start(&authority).await;
    let peer = Peer::start_taking(&authority).await;
    let mut ann = cabin.server.register("ann").await;
    let mut rooms = Vec::new();
    for version in ["1", "2"] {
        let options = json!({ "preset": "public_chat", "room_version": version });
        rooms.push(ann.create_room(options).await);
    }
    let (one, other) = (rooms[0].clone(), rooms[1].clone());
    let (address, name) = (cabin.address, cabin.name.clone());
    let of = |room: &str, version: RoomVersionId| {
        Hostile::at(&peer, &name, address, room).of_version(version)
    };
    let mut in_one = of(&one, RoomVersionId::V1);
    let mut in_other = of(&other, RoomVersionId::V2).numbered(50);
    in_one.join().await;
    in_other.join().await;

    // None of them follows another.
    let messages = ["first", "second", "third"].map(|text| in_one.message(text));
    let [first, mut second, mut third] = join_all(messages).await.try_into().expect("three");
    let (id, first) = in_one.signed(first);
    assert_eq!(in_one.send(std::slice::from_ref(&first)).await, json!({ &*id: {} }));
    assert!(says(&ann, &one, "first").await);
    // The same event again is no other one.
    assert_eq!(in_one.send(std::slice::from_ref(&first)).await, json!({ &*id: {} }));
    let refused = |said: &Value| {
        let why = said[&*id]["error"].as_str().unwrap_or_default();
        assert!(why.contains("another event has its id"), "{said}");
    };
    // In the same room, also as another kind of event, and in the other room.
    second["event_id"] = json!(id);
    let mut state = second.clone();
    state["type"] = json!("m.room.member");
    state["state_key"] = state["sender"].clone();
    state["content"] = json!({ "membership": "join", "displayname": "second" });
    for event in [second, state] {
        let (_, event) = in_one.signed(event);
        refused(&in_one.send(&[event]).await);
    }
    let mut elsewhere = in_other.message("elsewhere").await;
    elsewhere["event_id"] = json!(id);
    let (_, elsewhere) = in_other.signed(elsewhere);
    refused(&in_other.send(&[elsewhere]).await);
    assert!(says(&ann, &one, "first").await && !says(&ann, &one, "second").await);
    assert!(!says(&ann, &other, "elsewhere").await && !says(&ann, &other, "first").await);
    let path = |room: &str| format!("/rooms/{}/event/{}", encode(room), encode(&id));
    let got = ann.request("GET", &path(&one), None).await.ok();
    assert_eq!(got["content"]["body"], "first");
    ann.request("GET", &path(&other), None).await.refused(404, "M_NOT_FOUND");

    // An id in another homeserver's name needs its signature, and one that names none is none.
    for chosen in [format!("$x:{name}"), "$x:nobody.example".to_owned(), "$x".to_owned()] {
        let mut event = in_one.message("stolen").await;
        event["event_id"] = json!(chosen);
        let (id, event) = in_one.signed(event);
        let said = in_one.send(&[event]).await;
        assert!(said.get(&id).is_none_or(|said| said["error"].is_string()), "{said}");
    }
    let mut long = in_one.message("long").await;
    long["event_id"] = json!(format!("${}:{}", "x".repeat(255), peer.name));
    in_one.send(&[in_one.signed(long).1]).await;
    assert!(!says(&ann, &one, "stolen").await && !says(&ann, &one, "long").await);

    // After a restart too.
    cabin.server.kill9();
    cabin.server.restart().await;
    ann = User { http: cabin.server.http(), ..ann };
    let mut in_one = of(&one, RoomVersionId::V1).numbered(100);
    third["event_id"] = json!(id);
    let (_, third) = in_one.signed(third);
    refused(&in_one.send(&[third]).await);
    assert!(says(&ann, &one, "first").await && !says(&ann, &one, "third").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn older_homeservers_join_leave_and_invite_by_older_endpoints() {
    let Some(authority) = authority("peers") else { return };
    let cabin = Federated::start(&authority).await;
    let peer = Peer::start_taking(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "1" });
    let room_id = ann.create_room(options).await;
    let hostile = Hostile::new(&peer, &cabin, &room_id).of_version(RoomVersionId::V1);
    let (room, pia) = (encode(&room_id), hostile.user("pia"));
    let membership = async || {
        let path = format!("/rooms/{room}/state/m.room.member/{}", encode(&pia));
        ann.request("GET", &path, None).await.ok()["membership"].clone()
    };
    // No version is asked for: it is 1.
    for (what, is) in [("join", "join"), ("leave", "leave")] {
        let path = format!("/_matrix/federation/v1/make_{what}/{room}/{}", encode(&pia));
        let made = hostile.ask("GET", &path, &Value::Null).await.ok();
        assert_eq!(made["room_version"], "1");
        assert!(made["event"]["prev_events"][0][1]["sha256"].is_string(), "{made}");
        let (event_id, event) = hostile.signed(made["event"].clone());
        let path = format!("/_matrix/federation/v1/send_{what}/{room}/{}", encode(&event_id));
        let sent = hostile.ask("PUT", &path, &event).await.ok();
        assert_eq!(sent[0], 200, "{sent}");
        assert_eq!(sent[1]["state"].is_array(), what == "join", "{sent}");
        assert_eq!(membership().await, is);
    }
    let other = format!("!other:{}", peer.name);
    let event = json!({
        "type": "m.room.member", "room_id": other, "sender": pia, "state_key": ann.user_id,
        "content": { "membership": "invite" }, "depth": 5, "origin_server_ts": 1,
        "prev_events": [[format!("$a:{}", peer.name), { "sha256": "x" }]], "auth_events": [],
    });
    let invite = async |event: Value| {
        let (event_id, mut event) = hostile.signed(event);
        event["unsigned"] = json!({ "invite_room_state": [{
            "type": "m.room.name", "state_key": "", "sender": pia, "content": { "name": "Old" },
        }] });
        let path =
            format!("/_matrix/federation/v1/invite/{}/{}", encode(&other), encode(&event_id));
        hostile.ask("PUT", &path, &event).await
    };
    // This server signs no id in its own name that it has not chosen.
    let mut stolen = event.clone();
    stolen["event_id"] = json!(format!("$mine:{}", cabin.name));
    assert!(invite(stolen).await.status >= 400);
    let invited = invite(event).await.ok();
    assert_eq!(invited[0], 200, "{invited}");
    let signatures = &invited[1]["event"]["signatures"];
    assert!(signatures[&cabin.name].is_object() && signatures[peer.name.as_str()].is_object());
    let synced = super::view::fresh_sync(&ann).await;
    assert!(synced["rooms"]["invite"][&other].to_string().contains("Old"), "{synced}");
}
