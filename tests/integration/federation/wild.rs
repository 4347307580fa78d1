//! Whatever JSON allows, in every place that a client or a peer may fill: afterwards, a plain
//! message still arrives both ways.
//!
//! `LOGCABIN_WILD_SECONDS` says for how long (20 unless set), `LOGCABIN_WILD_SEED` repeats a run.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ruma::RoomVersionId;
use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::Peer;
use super::synapse::{self, Synapse};
use super::view::{say, texts};
use super::{Federated, authority};
use crate::harness::{Random, User, encode, number_from_env, skip, until};

/// A number below this one.
pub(super) fn below(random: &mut Random, most: usize) -> usize {
    usize::try_from(random.between(0, most as u64)).expect("a small number")
}

/// A value as a text, and the same in canonical form, as a peer signs it: numbers and strings that
/// homeservers write differently are the same in both.
#[derive(Clone, Debug)]
pub(super) struct Wild {
    pub(super) text: String,
    pub(super) canonical: String,
}

impl Wild {
    /// Whether it has a number beyond the range of doubles.
    fn is_beyond_doubles(&self) -> bool {
        let read = serde_json::from_str::<Value>(&self.text);
        read.is_err_and(|error| error.to_string().contains("out of range"))
    }

    fn same(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { canonical: text.clone(), text }
    }

    /// Some value, with other values in it down to this depth.
    pub(super) fn any(random: &mut Random, depth: usize) -> Self {
        match below(random, if depth == 0 { 6 } else { 9 }) {
            0 => Self::same(["null", "true", "false"][below(random, 3)]),
            1 | 2 => Self::number(random),
            3..=5 => Self::string(random),
            6 => {
                let all: Vec<_> =
                    (0..below(random, 5)).map(|_| Self::any(random, depth - 1)).collect();
                Self::joined("[", "]", &all)
            }
            7 => Self::object(random, depth - 1),
            _ => Self::deep(random),
        }
    }

    fn number(random: &mut Random) -> Self {
        const NUMBERS: [&str; 22] = [
            "0",
            "-0",
            "1",
            "-1",
            "1.5",
            "-0.0",
            "0.0",
            "1e2",
            "1E400",
            "-1e-400",
            "9007199254740991",
            "9007199254740992",
            "-9007199254740992",
            "9007199254741000",
            "1152921504606846976",
            "18446744073709551616",
            "123456789012345678901234567890",
            "1e16",
            "1e-7",
            "2147483648",
            "4294967296",
            "0.1e1",
        ];
        match below(random, 4) {
            0 => Self::same(format!("{}.{}", below(random, 1000), below(random, 1000))),
            1 => Self::same("9".repeat(1 + below(random, 400))),
            _ => Self::same(NUMBERS[below(random, NUMBERS.len())]),
        }
    }

    fn string(random: &mut Random) -> Self {
        const STRINGS: [&str; 14] = [
            "",
            "a",
            "\\ud800",
            "\\udfff\\ud800",
            "\\u0000",
            "\\u0001\\u001f",
            "\\\\",
            "\\\"",
            "é\u{2028}😀",
            "../..",
            "@a:b",
            "$e",
            "!r:b",
            "\u{202e}\u{feff}",
        ];
        let text = match below(random, 8) {
            0 => "x".repeat(1 << below(random, 17)),
            1 => return Self { text: "\"\\u0041\\/\"".to_owned(), canonical: "\"A/\"".to_owned() },
            _ => STRINGS[below(random, STRINGS.len())].to_owned(),
        };
        Self::same(format!("\"{text}\""))
    }

    /// Members that are sorted in the canonical form, of which some have the same name.
    fn object(random: &mut Random, depth: usize) -> Self {
        const NAMES: [&str; 10] = [
            "",
            "a",
            "b",
            "body",
            "msgtype",
            "m.relates_to",
            "membership",
            "unsigned",
            "é",
            "users",
        ];
        let mut members: Vec<(&str, Self)> = (0..below(random, 5))
            .map(|_| (NAMES[below(random, NAMES.len())], Self::any(random, depth)))
            .collect();
        let write = |(name, value): &(&str, Self)| format!("\"{name}\":{}", value.text);
        let text = members.iter().map(write).collect::<Vec<_>>().join(" , ");
        // Of several of one name, the last one counts.
        members.reverse();
        members.sort_by_key(|(name, _)| *name);
        members.dedup_by_key(|(name, _)| *name);
        let write = |(name, value): &(&str, Self)| format!("\"{name}\":{}", value.canonical);
        let canonical = members.iter().map(write).collect::<Vec<_>>().join(",");
        Self { text: format!("{{ {text}}}"), canonical: format!("{{{canonical}}}") }
    }

    fn deep(random: &mut Random) -> Self {
        let levels = [90, 97, 100, 105, 120, 130, 500, 5000][below(random, 8)];
        let (open, close) = [("[", "]"), ("{\"a\":", "}")][below(random, 2)];
        Self::same(format!("{}1{}", open.repeat(levels), close.repeat(levels)))
    }

    fn joined(open: &str, close: &str, all: &[Self]) -> Self {
        let texts: Vec<_> = all.iter().map(|of| &*of.text).collect();
        let canonical: Vec<_> = all.iter().map(|of| &*of.canonical).collect();
        Self {
            text: format!("{open}{}{close}", texts.join(" , ")),
            canonical: format!("{open}{}{close}", canonical.join(",")),
        }
    }
}

/// Puts a wild value in the place of this text in some JSON.
pub(super) const HERE: &str = "\"WILD\"";

/// Requests of a client with a body in which something wild stands.
fn client_request(
    random: &mut Random,
    ann: &User,
    room_id: &str,
    others: &[String],
) -> (&'static str, String, Value) {
    let (room, number) = (encode(room_id), below(random, 1 << 30));
    let user = encode(&ann.user_id);
    let other = &others[below(random, others.len())];
    let device = &ann.device_id;
    let keys = |wild: &str| {
        json!({
            "user_id": ann.user_id, "device_id": device, "algorithms": ["a"], "keys": {},
            "signatures": {}, "unsigned": wild,
        })
    };
    match below(random, 14) {
        0 => (
            "PUT",
            format!("/rooms/{room}/send/m.room.message/w{number}"),
            json!({ "msgtype": "m.text", "body": "wild", "w": "WILD" }),
        ),
        1 => ("PUT", format!("/rooms/{room}/send/m.room.message/w{number}"), json!("WILD")),
        2 => ("PUT", format!("/rooms/{room}/state/m.wild/{number}"), json!({ "w": "WILD" })),
        3 => (
            "PUT",
            format!("/sendToDevice/m.wild/w{number}"),
            json!({ "messages": { other: { "*": { "w": "WILD" } } } }),
        ),
        4 => (
            "PUT",
            format!("/sendToDevice/m.wild/w{number}"),
            json!({ "messages": { other: { "*": "WILD" } } }),
        ),
        5 => ("PUT", format!("/profile/{user}/org.wild"), json!({ "org.wild": "WILD" })),
        6 => ("PUT", format!("/profile/{user}/displayname"), json!({ "displayname": "WILD" })),
        7 => ("PUT", format!("/user/{user}/account_data/org.wild"), json!({ "w": "WILD" })),
        8 => ("POST", "/keys/upload".to_owned(), json!({ "device_keys": keys("WILD") })),
        9 => (
            "POST",
            "/keys/upload".to_owned(),
            json!({ "one_time_keys": { "signed_curve25519:A": { "key": "k", "w": "WILD" } } }),
        ),
        10 => (
            "PUT",
            format!("/presence/{user}/status"),
            json!({ "presence": "online", "status_msg": "WILD" }),
        ),
        11 => (
            "PUT",
            format!("/rooms/{room}/typing/{user}"),
            json!({ "typing": true, "timeout": "WILD" }),
        ),
        12 => (
            "PUT",
            format!("/rooms/{room}/state/m.room.member/{user}"),
            json!({ "membership": "join", "displayname": "WILD", "w": "WILD" }),
        ),
        _ => {
            ("PUT", format!("/rooms/{room}/redact/%24none/w{number}"), json!({ "reason": "WILD" }))
        }
    }
}

/// Sends such a request. Returns the status of the answer, and what it was.
async fn ask_wildly(
    random: &mut Random,
    user: &User,
    room_id: &str,
    others: &[String],
    wild: &Wild,
) -> (u16, String) {
    let (method, path, body) = client_request(random, user, room_id, others);
    let body = body.to_string().replace(HERE, &wild.text);
    let authorization = format!("Bearer {}", user.access_token);
    let headers = [("authorization", &*authorization), ("content-type", "application/json")];
    let path = format!("/_matrix/client/v3{path}");
    let answer = user.http.raw(method, &path, &headers, Bytes::from(body)).await;
    (answer.parts.status.as_u16(), format!("{method} {path}"))
}

/// Items of a peer in which something wild stands: the EDUs and PDUs of a transaction.
pub(super) async fn peer_items(
    random: &mut Random,
    hostile: &Hostile<'_>,
    ann: &User,
    room_id: &str,
) -> Value {
    let pia = hostile.user("pia");
    let edu = |name: &str, content: Value| json!({ "edu_type": name, "content": content });
    let id = format!("w{}", below(random, 1 << 30));
    let to_device = |id: &str| {
        json!({
            "sender": pia, "type": "m.wild", "message_id": id,
            "messages": { ann.user_id.clone(): { "*": { "w": "WILD" } } },
        })
    };
    let receipt = json!({ "data": { "ts": "WILD" }, "event_ids": ["WILD"] });
    let online = json!({ "user_id": pia, "presence": "online", "last_active_ago": "WILD" });
    let device = json!({
        "user_id": pia, "device_id": "D", "stream_id": "WILD", "prev_id": [], "keys": "WILD",
    });
    let edus = json!([
        edu("m.direct_to_device", to_device("WILD")),
        edu("m.direct_to_device", to_device(&id)),
        edu("m.typing", json!({ "room_id": room_id, "user_id": pia, "typing": "WILD" })),
        edu("m.receipt", json!({ room_id: { "m.read": { pia.clone(): receipt } } })),
        edu("m.presence", json!({ "push": [online, "WILD"] })),
        edu("m.device_list_update", device),
        edu("m.signing_key_update", json!({ "user_id": pia, "master_key": "WILD" })),
        edu("WILD", json!("WILD")),
        "WILD",
    ]);
    let mut pdu = hostile.message("wild").await;
    let members: Vec<_> = pdu.as_object().expect("an event").keys().cloned().collect();
    let member = &members[below(random, members.len())];
    pdu[member] = json!("WILD");
    pdu["hashes"] = json!({ "sha256": "WILD" });
    pdu["signatures"] = json!({ "a": { "ed25519:a": "b" } });
    let edus = edus.as_array().expect("a list");
    let edu = edus[below(random, edus.len())].clone();
    json!({ "edus": [edu], "pdus": [pdu, "WILD"] })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_message_arrives_after_anything_that_json_allows() {
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let one = Federated::start_with(&authority, &unlimited).await;
    let two = Federated::start_with(&authority, &unlimited).await;
    let peer = Peer::start_taking(&authority).await;
    let (ann, bob) = (one.server.register("ann").await, two.server.register("bob").await);
    let mut random = Random::from_env("LOGCABIN_WILD_SEED");
    let version = ["5", "10"][below(&mut random, 2)];
    let options = json!({ "preset": "public_chat", "room_version": version });
    let room_id = ann.create_room(options).await;
    let via = format!("/join/{}?via={}", encode(&room_id), encode(&one.name));
    bob.request("POST", &via, Some(&json!({}))).await.ok();
    let version = RoomVersionId::try_from(version).expect("a version");
    let mut hostile = Hostile::new(&peer, &one, &room_id).of_version(version);
    hostile.join().await;
    let others = [bob.user_id.clone(), hostile.user("pia"), format!("@nobody:{}", two.name)];
    let lasts = Duration::from_secs(number_from_env("LOGCABIN_WILD_SECONDS", 20));
    let (began, mut case) = (Instant::now(), 0_u64);
    while began.elapsed() < lasts {
        case += 1;
        let depth = 1 + below(&mut random, 3);
        let wild = Wild::any(&mut random, depth);
        let shown: String = wild.text.chars().take(200).collect();
        let (status, request) = ask_wildly(&mut random, &ann, &room_id, &others, &wild).await;
        assert!(status < 500, "case {case}: {request} with {shown}: {status}");
        // A peer.
        let items = peer_items(&mut random, &hostile, &ann, &room_id).await;
        let status = hostile.send_text(&items, HERE, (&wild.text, &wild.canonical)).await;
        assert_eq!(status, 200, "case {case}: {items} with {shown}");
        // Everybody still hears of each other.
        let text = format!("plain {case}");
        let (id, message) = hostile.signed(hostile.message(&text).await);
        let said = hostile.send(&[message]).await;
        assert_eq!(said, json!({ &*id: {} }), "case {case} with {shown}");
        say(&ann, &room_id, &format!("ann's {text}")).await;
        say(&bob, &room_id, &format!("bob's {text}")).await;
        let body = |of: &str| format!("{of}'s {text}");
        let what = format!("case {case}: {request} and {items} with {shown}: messages arrive");
        until(&what, async || {
            let hears = |all: &[(String, String)], body: &str| all.iter().any(|(_, of)| of == body);
            let (of_ann, of_bob) = (texts(&ann, &room_id).await, texts(&bob, &room_id).await);
            let peer_has = peer
                .asked()
                .iter()
                .rev()
                .take(50)
                .any(|asked| asked.body.to_string().contains(&body("ann")));
            hears(&of_ann, &body("bob"))
                && hears(&of_ann, &text)
                && hears(&of_bob, &body("ann"))
                && peer_has
        })
        .await;
    }
    println!("{case} cases");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_message_arrives_at_synapse_and_from_it_after_anything_that_json_allows() {
    let Some(authority) = authority("Synapse") else { return };
    let Ok(python) = synapse::python().map_err(|missing| skip("Synapse", &missing)) else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let synapse = Synapse::start(&python, &authority).await;
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let (ann, sam) = (cabin.server.register("ann").await, synapse.register("sam").await);
    // What Synapse does is not in our hands: without a seed, this is the same each time.
    let mut random = Random::from_seed(number_from_env("LOGCABIN_WILD_SEED", 12));
    let version = ["3", "5", "6", "10", "12"][below(&mut random, 5)];
    let options = json!({ "preset": "public_chat", "room_version": version });
    // Either of them begins the room.
    let (first, name, second) = match below(&mut random, 2) {
        0 => (&ann, &cabin.name, &sam),
        _ => (&sam, &synapse.name, &ann),
    };
    let room_id = first.create_room(options).await;
    let via = format!("/join/{}?via={}", encode(&room_id), encode(name));
    second.request("POST", &via, Some(&json!({}))).await.ok();
    let others = [
        ann.user_id.clone(),
        sam.user_id.clone(),
        format!("@nobody:{}", synapse.name),
        format!("@nobody:{}", cabin.name),
    ];
    let lasts = Duration::from_secs(number_from_env("LOGCABIN_WILD_SECONDS", 20));
    let (began, mut case) = (Instant::now(), 0_u64);
    while began.elapsed() < lasts {
        case += 1;
        let mut asked = String::new();
        for user in [&ann, &sam] {
            let depth = 1 + below(&mut random, 3);
            let mut wild = Wild::any(&mut random, depth);
            // Synapse gives its own users numbers that this test could not read.
            while user.user_id == sam.user_id && wild.is_beyond_doubles() {
                wild = Wild::any(&mut random, depth);
            }
            let (status, request) = ask_wildly(&mut random, user, &room_id, &others, &wild).await;
            let shown: String = wild.text.chars().take(200).collect();
            asked += &format!("{} {request} with {shown}: {status}; ", user.user_id);
            // What Synapse makes of its own clients' requests is its own affair.
            assert!(status < 500 || user.user_id == sam.user_id, "case {case}: {asked}");
        }
        for (user, name) in [(&ann, "ann"), (&sam, "sam")] {
            say(user, &room_id, &format!("{name}'s plain {case}")).await;
        }
        until(&format!("case {case}: {asked}messages arrive"), async || {
            let hears = async |user: &User, of: &str| {
                let all = texts(user, &room_id).await;
                all.iter().any(|(_, body)| *body == format!("{of}'s plain {case}"))
            };
            hears(&ann, "sam").await && hears(&sam, "ann").await
        })
        .await;
    }
    println!("{case} cases in a room of version {version}");
}
