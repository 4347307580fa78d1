//! Events and EDUs with numbers, strings and depths that not everybody can read: each is refused by
//! itself, or survives unchanged where the room version allows it.

use ruma::RoomVersionId;
use serde_json::{Value, json};

use super::hostile::{Hostile, now};
use super::peer::Peer;
use super::to_device::{Inbox, letter};
use super::view::{fresh_sync, say, until_says};
use super::with_synapse::both;
use super::{Federated, authority};
use crate::harness::{User, encode, until};

/// Values that JSON has and canonical JSON does not.
fn odd_values() -> Vec<Value> {
    vec![
        json!(1.5),
        json!(-0.0),
        json!(1e300),
        json!(1_u64 << 53),
        json!(1_u64 << 60),
        json!(-(1_i64 << 60)),
        json!(u64::MAX),
        nested(97),
        too_deep(),
    ]
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!([inner]))
}

/// Deeper than an EDU or an event may nest.
fn too_deep() -> Value {
    nested(120)
}

/// A message with a content that a room of version 3 to 5 may have.
fn odd_content(body: &str) -> Value {
    json!({
        "msgtype": "m.text", "body": body, "f": [1.5, -0.5, 0.0, { "deep": 100.0 }],
        "big": 1_u64 << 60, "negative": -(1_i64 << 60),
    })
}

/// The content of the message with this body, as a user sees it.
async fn content(user: &User, room_id: &str, body: &str) -> Option<Value> {
    let path = format!("/rooms/{}/messages?dir=b&limit=100", encode(room_id));
    let page = user.request("GET", &path, None).await.ok();
    let mut contents = page["chunk"].as_array()?.iter().map(|event| event["content"].clone());
    contents.find(|content| content["body"] == body)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_clients_could_not_read_counts_without_its_content() {
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let unreadable = [
        ("5", nested(120)),
        ("10", nested(120)),
        ("10", nested(20_000)),
        ("12", nested(500)),
        ("5", "1e400".to_owned()),
        ("4", "9".repeat(400)),
        // Synapse cannot hold it.
        ("3", "9223372036854775808".to_owned()),
    ];
    for (number, (version, text)) in (1..).zip(unreadable) {
        let options = json!({ "preset": "public_chat", "room_version": version });
        let room_id = ann.create_room(options).await;
        let version = RoomVersionId::try_from(version).expect("a version");
        let hostile = Hostile::new(&peer, &cabin, &room_id).of_version(version);
        let mut hostile = hostile.numbered(number);
        hostile.join().await;
        let mut event = hostile.message("deep").await;
        event["content"]["deep"] = json!("DEEP");
        let (deep_id, event) = hostile.signed_with_odd_numbers(event);
        // Others go on from it.
        let mut next = hostile.message("next").await;
        next["prev_events"] = json!([deep_id]);
        next["depth"] = json!(next["depth"].as_u64().expect("a depth") + 1);
        let (_, next) = hostile.signed(next);
        let items = json!({ "pdus": [event, next], "edus": [] });
        assert_eq!(hostile.send_text(&items, "\"DEEP\"", (&text, &text)).await, 200);
        assert!(content(&ann, &room_id, "next").await.is_some(), "{number}");
        let path = format!("/rooms/{}/event/{}", encode(&room_id), encode(&deep_id));
        let seen = ann.request("GET", &path, None).await.ok();
        assert_eq!(seen["content"], json!({}), "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_odd_item_is_refused_by_itself() {
    const TO_DEVICE: &str = "m.direct_to_device";
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let mut hostile = Hostile::new(&peer, &cabin, &room_id);
    hostile.join().await;
    let (pia, mut of_ann) = (hostile.user("pia"), Inbox::of(&ann).await);
    for (number, odd) in odd_values().into_iter().enumerate() {
        let text = format!("after {number}");
        let (good_id, good) = hostile.signed(hostile.message(&text).await);
        let mut bad = hostile.message("odd").await;
        bad["content"]["odd"] = odd.clone();
        let (bad_id, bad) = hostile.signed_with_odd_numbers(bad);
        let mut deep = hostile.message("odd").await;
        deep["depth"] = odd.clone();
        let said = hostile.send(&[bad, deep, json!(5), json!([odd]), good]).await;
        assert_eq!(said[&*good_id], json!({}), "{odd}: {said}");
        // What nests as deep as content of clients may is good.
        let is_refused = said.get(&*bad_id).is_none_or(|said| said["error"].is_string());
        assert!(is_refused || odd.is_array(), "{odd}: {said}");
        // What others could not read takes its whole EDU with it.
        let is_read = odd != too_deep() && odd != json!(u64::MAX);
        assert!(content(&ann, &room_id, &text).await.is_some(), "{odd}");

        let mut to_device = letter(&pia, &format!("odd{number}"), &ann.user_id, "*", "odd");
        to_device["messages"][&ann.user_id]["*"]["odd"] = odd.clone();
        let receipt = json!({ "data": { "ts": odd }, "event_ids": [good_id] });
        let good_receipt = json!({ "data": { "ts": 1 }, "event_ids": [good_id] });
        let readers = json!({ pia.clone(): good_receipt, "@odd:x": receipt, "odd": odd });
        let presence = json!([
            { "user_id": pia, "presence": "online", "last_active_ago": odd },
            odd,
            { "user_id": pia, "presence": "online", "status_msg": text },
        ]);
        let edus = [
            (TO_DEVICE, to_device),
            ("m.typing", json!({ "room_id": room_id, "user_id": pia, "typing": odd })),
            ("m.receipt", json!({ room_id.clone(): { "m.read": readers }, "odd": odd })),
            ("m.presence", json!({ "push": presence })),
            (
                "m.device_list_update",
                json!({
                    "user_id": pia, "device_id": "D", "stream_id": odd, "prev_id": [odd],
                    "keys": { "unsigned": { "odd": odd } },
                }),
            ),
            ("m.signing_key_update", json!({ "user_id": pia, "master_key": { "odd": odd } })),
            ("m.unknown", odd.clone()),
            (TO_DEVICE, letter(&pia, &format!("good{number}"), &ann.user_id, "*", &text)),
        ];
        hostile.send_edus(&edus).await;
        of_ann.until_from(&pia, &text).await;
        let path = format!("/presence/{}/status", encode(&pia));
        let shown = ann.request("GET", &path, None).await.body["status_msg"] == *text;
        assert_eq!(shown, is_read, "the presence behind {odd}");
        let synced = fresh_sync(&ann).await;
        let ephemeral = synced["rooms"]["join"][&room_id]["ephemeral"].to_string();
        assert_eq!(ephemeral.contains(&good_id), is_read, "{odd}: {ephemeral}");
    }
    // An invite whose stripped state is odd.
    let other = format!("!other:{}", peer.name);
    let event = json!({
        "type": "m.room.member", "room_id": other, "sender": pia, "state_key": ann.user_id,
        "content": { "membership": "invite" }, "origin_server_ts": now(), "depth": 7,
        "prev_events": [], "auth_events": [],
    });
    let (event_id, event) = hostile.signed(event);
    let stripped = json!({
        "type": "m.room.name", "state_key": "", "sender": pia,
        "content": { "name": "Odd", "odd": 1.5 },
    });
    let body = json!({ "room_version": "10", "event": event, "invite_room_state": [stripped] });
    let path = format!("/_matrix/federation/v2/invite/{}/{}", encode(&other), encode(&event_id));
    hostile.ask("PUT", &path, &body).await.ok();
    let invited = fresh_sync(&ann).await["rooms"]["invite"][&other].to_string();
    assert!(invited.contains("Odd"), "{invited}");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_rooms_keep_all_numbers_in_every_place() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let peer = Peer::start_taking(&authority).await;
    let ann = cabin.server.register("ann").await;
    use RoomVersionId::{V1, V2, V3, V4, V5};
    for version in [V1, V2, V3, V4, V5] {
        let options = json!({ "preset": "public_chat", "room_version": version });
        let room_id = ann.create_room(options).await;
        let mut hostile = Hostile::new(&peer, &cabin, &room_id).of_version(version.clone());
        hostile.join().await;
        // In.
        let mut event = hostile.message("").await;
        event["content"] = odd_content("in");
        let (event_id, event) = hostile.signed_with_odd_numbers(event);
        assert_eq!(hostile.send(&[event]).await, json!({ &*event_id: {} }));
        assert_eq!(content(&ann, &room_id, "in").await, Some(odd_content("in")));
        // Out, with hashes and signatures that hold.
        let path = format!("/rooms/{}/send/m.room.message/{version}", encode(&room_id));
        let sent = ann.request("PUT", &path, Some(&odd_content("out"))).await.ok();
        assert_eq!(content(&ann, &room_id, "out").await, Some(odd_content("out")));
        let is_it =
            |pdu: &&Value| pdu["content"] == odd_content("out") && pdu["room_id"] == *room_id;
        until("the peer gets the message", async || {
            let bodies = peer.asked().into_iter().map(|asked| asked.body);
            bodies
                .filter_map(|body| body["pdus"].as_array().cloned())
                .flatten()
                .any(|pdu| is_it(&&pdu))
        })
        .await;
        let bodies = peer.asked().into_iter().map(|asked| asked.body);
        let pdus: Vec<_> = bodies.filter_map(|body| body["pdus"].as_array().cloned()).collect();
        let mut pdu = pdus.iter().flatten().find(is_it).cloned().expect("the message");
        let hash = pdu["hashes"]["sha256"].clone();
        for member in ["hashes", "signatures", "unsigned"] {
            pdu.as_object_mut().expect("an event").remove(member);
        }
        let (event_id, signed) = hostile.signed_with_odd_numbers(pdu);
        assert_eq!(
            (&signed["hashes"]["sha256"], json!(event_id)),
            (&hash, sent["event_id"].clone())
        );
        // State.
        let power = json!({ "odd": 0.5, "n": 1 });
        ann.set_state(&room_id, "m.test", "", &power).await.ok();
        let path = format!("/rooms/{}/state/m.test/", encode(&room_id));
        assert_eq!(ann.request("GET", &path, None).await.ok(), power);
        // In search, and after a redaction of the one, of the other.
        let query = json!({ "search_categories": { "room_events": { "search_term": "out",
            "filter": { "rooms": [room_id] } } } });
        until("the message is found", async || {
            let found = ann.request("POST", "/search", Some(&query)).await.ok();
            let results = &found["search_categories"]["room_events"]["results"];
            results[0]["result"]["content"] == odd_content("out")
        })
        .await;
        let path = format!("/rooms/{}/redact/{}/r{version}", encode(&room_id), encode(&event_id));
        ann.request("PUT", &path, Some(&json!({}))).await.ok();
        assert_eq!(content(&ann, &room_id, "out").await, None);
        assert_eq!(content(&ann, &room_id, "in").await, Some(odd_content("in")));
    }
    // Where the version is strict, a client is told.
    let room_id = ann.create_room(json!({ "room_version": "6" })).await;
    let path = format!("/rooms/{}/send/m.room.message/1", encode(&room_id));
    ann.request("PUT", &path, Some(&odd_content("x"))).await.refused(400, "M_BAD_JSON");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_survive_between_this_server_and_synapse() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let options = json!({ "preset": "public_chat", "room_version": "5" });
    let room_id = bob.create_room(options).await;
    // State from before the join, and a message after it.
    bob.set_state(&room_id, "m.test", "odd", &json!({ "odd": 0.25 })).await.ok();
    let path = format!("/join/{}?via={}", encode(&room_id), encode(&synapse.name));
    ann.request("POST", &path, Some(&json!({}))).await.ok();
    let state = format!("/rooms/{}/state/m.test/odd", encode(&room_id));
    assert_eq!(ann.request("GET", &state, None).await.ok(), json!({ "odd": 0.25 }));
    let send = format!("/rooms/{}/send/m.room.message", encode(&room_id));
    for (from, to, body) in [(&bob, &ann, "from bob"), (&ann, &bob, "from ann")] {
        // Python writes them in another way than Rust.
        let mut odd_content = odd_content(body);
        odd_content["other"] = json!([2.5e-7, 1e16]);
        odd_content["large"] = json!(i64::MIN);
        let path = format!("{send}/{}", encode(body));
        from.request("PUT", &path, Some(&odd_content)).await.ok();
        until(&format!("the message {body} arrives"), async || {
            content(to, &room_id, body).await.as_ref() == Some(&odd_content)
        })
        .await;
    }
    // What Synapse could not hold would end the conversation.
    let too_large = json!({ "msgtype": "m.text", "body": "large", "n": u64::MAX });
    let refused = ann.request("PUT", &format!("{send}/large"), Some(&too_large)).await;
    assert_eq!((refused.status, &refused.body["errcode"]), (400, &json!("M_BAD_JSON")));
    // A message to a device of somebody one shares no room with, and then a plain message.
    let zoe = cabin.server.register("zoe").await;
    let messages =
        json!({ "messages": { &zoe.user_id: { "*": { "f": 1.5, "big": 1_u64 << 60 } } } });
    bob.request("PUT", "/sendToDevice/m.test/1", Some(&messages)).await.ok();
    say(&bob, &room_id, "plain").await;
    until_says(&ann, &room_id, &bob, "plain").await;
    until("the odd message to a device arrives", async || {
        let synced = fresh_sync(&zoe).await;
        synced["to_device"]["events"][0]["content"]["f"] == json!(1.5)
    })
    .await;
    say(&ann, &room_id, "plain, too").await;
    until_says(&bob, &room_id, &ann, "plain, too").await;
}
