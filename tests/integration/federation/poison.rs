//! What cannot be sent, or is refused by its receiver, blocks nothing that comes after it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use logcabin::clock::Clock;
use logcabin::decide::federation::NoteReached;
use logcabin::decide::to_device::SendToDevice;
use logcabin::record::Offset;
use logcabin::record::command::{Failing, Reached, Transaction};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::Peer;
use super::{Authority, Federated, authority};
use crate::administration::{command, done, done_json};
use crate::harness::stand_in::reply_json;
use crate::harness::{Asked, User, encode, offline, until};

const UNLIMITED: &[(&str, &str)] = &[("LOGCABIN_RATE_LIMITS_ENABLED", "false")];

/// The values that JSON has and no homeserver need take.
fn impossible() -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
    let mut values =
        ["1.5", "1e2", "1e999", "-0", "9007199254740992", "1152921504606846976"].to_vec();
    values.extend([r#""\ud800""#, r#""\udc00x""#, &deep]);
    values.into_iter().map(ToOwned::to_owned).collect()
}

/// A homeserver that answers each transaction with a status of the test's choice, and remembers
/// what it took.
struct Picky {
    peer: Peer,
    /// With which status it refuses transactions that contain `poison`.
    of_some: Arc<AtomicU16>,
    /// With which status it refuses all; 200 for none.
    of_all: Arc<AtomicU16>,
    taken: Arc<Mutex<Vec<Value>>>,
}

impl Picky {
    async fn start(authority: &Authority) -> Self {
        let (of_some, of_all) = (Arc::new(AtomicU16::new(400)), Arc::new(AtomicU16::new(200)));
        let taken = Arc::<Mutex<Vec<Value>>>::default();
        let (some, all, kept) = (Arc::clone(&of_some), Arc::clone(&of_all), Arc::clone(&taken));
        let answers = Arc::new(move |asked: &Asked| {
            if !asked.path.starts_with("/_matrix/federation/v1/send/") {
                return None;
            }
            let is_poisoned = String::from_utf8_lossy(&asked.bytes).contains("poison");
            let status = match all.load(Ordering::SeqCst) {
                200 if is_poisoned => some.load(Ordering::SeqCst),
                status => status,
            };
            Some(match status {
                200 => {
                    kept.lock().expect("no panic").push(asked.body.clone());
                    reply_json(200, &json!({ "pdus": {} }))
                }
                _ => reply_json(status, &json!({ "errcode": "M_BAD_JSON", "error": "No thanks" })),
            })
        });
        let peer = Peer::start_with(authority, Duration::from_secs(3600), answers).await;
        Self { peer, of_some, of_all, taken }
    }

    /// The texts of the messages that it took, in order: of rooms, and to devices.
    fn texts(&self) -> Vec<String> {
        let taken = self.taken.lock().expect("no panic").clone();
        let list = |body: &Value, name: &str| body[name].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let mut texts = Vec::new();
        for body in &taken {
            texts.extend(list(body, "pdus").iter().filter_map(|pdu| text(&pdu["content"]["body"])));
            for edu in list(body, "edus") {
                let users = edu["content"]["messages"].as_object().cloned().unwrap_or_default();
                let letters = users.values().filter_map(|devices| text(&devices["*"]["text"]));
                texts.extend(letters);
            }
        }
        texts
    }

    /// The ids of the transactions that it was sent.
    fn ids(&self) -> Vec<String> {
        let asked = self.peer.asked().into_iter();
        let sent = asked.filter(|asked| asked.path.starts_with("/_matrix/federation/v1/send/"));
        sent.map(|asked| asked.path).collect()
    }
}

fn status(data_dir: &Path, name: &str) -> Value {
    done_json(command("federation", data_dir, &format!("status {name} --json"), ""))
}

/// A server with a user and a room that has a user of `peer`.
async fn shared(authority: &Authority, peer: &Peer) -> (Federated, User, String) {
    let cabin = Federated::start_with(authority, UNLIMITED).await;
    let ann = cabin.server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    Hostile::new(peer, &cabin, &room_id).join().await;
    (cabin, ann, room_id)
}

async fn say(user: &User, room_id: &str, text: &str) {
    user.send_text(room_id, &encode(text), text).await;
}

async fn write_to(user: &User, to: &str, text: &str) {
    let path = format!("/sendToDevice/m.test/{}", encode(text));
    let body = json!({ "messages": { to: { "*": { "text": text } } } });
    user.request("PUT", &path, Some(&body)).await.ok();
}

/// The status and the code of the answer to a body that is sent as it is.
async fn put_raw(user: &User, method: &str, path: &str, body: String) -> (u16, String) {
    let token = format!("Bearer {}", user.access_token);
    let headers = [("authorization", &*token), ("content-type", "application/json")];
    let path = format!("/_matrix/client/{path}");
    let answer = user.http.raw(method, &path, &headers, body).await;
    let body: Value = serde_json::from_slice(&answer.bytes).unwrap_or_default();
    let code = body["errcode"].as_str().unwrap_or_default().to_owned();
    (answer.parts.status.as_u16(), code)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_leave_is_refused_where_a_client_puts_it_in() {
    let Some(authority) = authority("poison") else { return };
    let picky = Picky::start(&authority).await;
    let (_cabin, ann, room_id) = shared(&authority, &picky.peer).await;
    let (pia, room) = (format!("@pia:{}", picky.peer.name), encode(&room_id));
    let me = encode(&ann.user_id);
    for (number, bad) in impossible().into_iter().enumerate() {
        let content = format!(r#"{{"a":{bad}}}"#);
        let doors = [
            (
                "PUT",
                format!("v3/sendToDevice/m.test/{number}"),
                format!(r#"{{"messages":{{"{pia}":{{"*":{content}}}}}}}"#),
            ),
            ("PUT", format!("v3/rooms/{room}/send/m.test/{number}"), content.clone()),
            ("PUT", format!("v3/rooms/{room}/state/m.test/"), content.clone()),
            ("PUT", format!("v3/rooms/{room}/redact/$e/{number}"), content.clone()),
            ("POST", format!("v3/rooms/{room}/invite"), format!(r#"{{"user_id":{bad}}}"#)),
            (
                "POST",
                "v3/createRoom".to_owned(),
                format!(r#"{{"initial_state":[{{"type":"m.test","content":{content}}}]}}"#),
            ),
            ("POST", "v3/createRoom".to_owned(), format!(r#"{{"creation_content":{content}}}"#)),
            ("PUT", format!("v3/profile/{me}/m.test"), format!(r#"{{"m.test":{bad}}}"#)),
            ("PUT", format!("v3/presence/{me}/status"), format!(r#"{{"presence":{bad}}}"#)),
            ("POST", format!("v3/rooms/{room}/receipt/m.read/$e"), content.clone()),
            ("POST", format!("v3/rooms/{room}/read_markers"), content.clone()),
            (
                "PUT",
                format!("v3/rooms/{room}/typing/{me}"),
                format!(r#"{{"typing":true,"timeout":{bad}}}"#),
            ),
            (
                "POST",
                "v3/keys/upload".to_owned(),
                format!(r#"{{"one_time_keys":{{"a:b":{bad}}}}}"#),
            ),
            ("POST", "v3/keys/upload".to_owned(), format!(r#"{{"device_keys":{content}}}"#)),
            (
                "POST",
                "v3/keys/device_signing/upload".to_owned(),
                format!(r#"{{"master_key":{{"unsigned":{content}}}}}"#),
            ),
            (
                "POST",
                "v3/keys/signatures/upload".to_owned(),
                format!(r#"{{"{pia}":{{"A":{content}}}}}"#),
            ),
            ("POST", format!("v3/rooms/{room}/report"), format!(r#"{{"reason":{bad}}}"#)),
            ("PUT", "v3/directory/room/%23a:b".to_owned(), format!(r#"{{"room_id":{bad}}}"#)),
            ("POST", "v3/user/x/openid/request_token".to_owned(), content.clone()),
        ];
        // The content of an event is rewritten, with 0 in the place of -0.
        let is_mended = |path: &str| bad == "-0" && path.contains("/m.test");
        for (method, path, body) in doors {
            if is_mended(&path) && path.contains("/rooms/") {
                assert_eq!(put_raw(&ann, method, &path, body).await.0, 200, "{path}");
                continue;
            }
            let (status, code) = put_raw(&ann, method, &path, body).await;
            // Of a new room, the event that cannot be is known by another code.
            let fits = code == "M_BAD_JSON" || code == "M_INVALID_ROOM_STATE";
            assert!(status == 400 && fits, "{method} {path} with {bad}: {status} {code}");
        }
    }
    // What only its owner reads may have fractions, such as the order of a tag.
    let tag = format!("v3/user/{me}/rooms/{room}/tags/m.favourite");
    assert_eq!(put_raw(&ann, "PUT", &tag, r#"{"order":0.25}"#.to_owned()).await.0, 200);
    let data = format!("v3/user/{me}/account_data/m.test");
    assert_eq!(put_raw(&ann, "PUT", &data, r#"{"a":1e2}"#.to_owned()).await.0, 200);
    for bad in [r#"{"a":1e999}"#, r#"{"a":"\ud800"}"#] {
        assert_eq!(put_raw(&ann, "PUT", &data, bad.to_owned()).await.0, 400, "{bad}");
    }
    write_to(&ann, &pia, "a plain message").await;
    until("it arrives", async || picky.texts() == ["a plain message"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_in_before_it_was_refused_does_not_block_what_comes_after_it() {
    crate::harness::nodes::one_server!("it changes the log of one server");
    let Some(authority) = authority("poison") else { return };
    let picky = Picky::start(&authority).await;
    let (mut cabin, ann, room_id) = shared(&authority, &picky.peer).await;
    let pia = format!("@pia:{}", picky.peer.name);
    write_to(&ann, &pia, "before").await;
    until("it arrives", async || picky.texts() == ["before"]).await;
    cabin.server.stop();
    let data_dir = cabin.server.data_dir().to_owned();
    let mut bad = impossible();
    // Such a record cannot be read again.
    bad.retain(|value| !value.starts_with("[["));
    let letter = |(number, bad): (usize, &String)| {
        let content = RawValue::from_string(format!(r#"{{"a":{bad}}}"#)).expect("JSON");
        SendToDevice {
            sender: ann.user_id.as_str().try_into().expect("a user"),
            event_type: "m.test".to_owned(),
            messages: [(pia.as_str().try_into().expect("a user"), vec![(None, content)])].into(),
            outside: Some(format!("old{number}")),
            transaction: Transaction {
                session: Offset::new(1),
                id: format!("old{number}"),
                scope: "sendToDevice/m.test".to_owned(),
            },
        }
    };
    let letters: Vec<_> = bad.iter().enumerate().map(letter).collect();
    offline::decide_as(&cabin.name, &data_dir, letters).await;
    cabin.server.restart().await;
    write_to(&ann, &pia, "after").await;
    say(&ann, &room_id, "in the room").await;
    until("what comes after it arrives", async || {
        // What was sent in the last second before a restart is sent again.
        let texts: BTreeSet<_> = picky.texts().into_iter().collect();
        texts == ["before", "after", "in the room"].map(str::to_owned).into()
    })
    .await;
    let count = bad.len() as u64;
    until("it is recorded what was set aside", async || {
        status(&data_dir, picky.peer.name.as_str())["set_aside"] == count
    })
    .await;
    let shown = status(&data_dir, picky.peer.name.as_str());
    let newest = shown["newest_aside"].as_array().expect("a list");
    assert_eq!(newest.len() as u64, count.min(8), "{shown}");
    for item in newest {
        assert_eq!(item["item"], "m.direct_to_device", "{item}");
        assert!(item["status"].is_null() && item["record"].as_u64() > Some(0), "{item}");
        assert!(item["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{item}");
    }
    let said = done(command("federation", &data_dir, &format!("status {}", picky.peer.name), ""));
    assert!(said.contains("cannot be sent: canonical JSON has no number"), "{said}");
    cabin.server.prints("an item cannot be sent to a homeserver and is set aside").await;
}

/// A homeserver that fails, since when it is said to have done so.
fn failing(name: &str, since_ms: u64) -> NoteReached {
    NoteReached(vec![Reached {
        server_name: name.try_into().expect("a name"),
        up_to: Offset::new(1_000_000),
        failing: Some(Failing {
            since_ms,
            attempts: 3,
            again_ms: since_ms,
            error: "it answered with status 500".to_owned(),
        }),
        set_aside: Default::default(),
    }])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_keeps_failing_on_an_item_gets_all_others() {
    crate::harness::nodes::one_server!("it restarts one server");
    let Some(authority) = authority("poison") else { return };
    let picky = Picky::start(&authority).await;
    let (mut cabin, ann, _) = shared(&authority, &picky.peer).await;
    let (data_dir, name) = (cabin.server.data_dir().to_owned(), picky.peer.name.to_string());
    let pia = format!("@pia:{name}");
    let now_ms = Clock::system().now_ms();
    for (is_long, is_other) in [(false, true), (true, false), (true, true)] {
        picky.of_all.store(200, Ordering::SeqCst);
        let first = format!("first of {is_long} {is_other}");
        write_to(&ann, &pia, &first).await;
        until("it is taken", async || picky.texts().contains(&first)).await;
        picky.of_some.store(500, Ordering::SeqCst);
        picky.of_all.store(503, Ordering::SeqCst);
        write_to(&ann, &pia, &format!("poison of {is_long} {is_other}")).await;
        let other = format!("other of {is_long}");
        if is_other {
            write_to(&ann, &pia, &other).await;
        }
        until("it fails", async || !status(&data_dir, &name)["failing"].is_null()).await;
        cabin.server.stop();
        let up_to = status(&data_dir, &name)["up_to"].as_u64().expect("an offset");
        let mut since = failing(&name, now_ms - if is_long { 3_600_000 } else { 60_000 });
        since.0[0].up_to = Offset::new(up_to);
        offline::decide_as(&cabin.name, &data_dir, [since]).await;
        picky.of_all.store(200, Ordering::SeqCst);
        cabin.server.restart().await;
        let attempts = picky.peer.asked().len();
        if is_long && is_other {
            until("it has the other one", async || picky.texts().contains(&other)).await;
            until("it is recorded", async || status(&data_dir, &name)["set_aside"] == 1).await;
            let shown = status(&data_dir, &name);
            assert_eq!(shown["newest_aside"][0]["status"], 500, "{shown}");
            assert!(shown["failing"].is_null(), "{shown}");
        } else {
            let again = |shown: &Value| shown["failing"]["attempts"].as_u64() > Some(3);
            until("it is tried", async || {
                picky.peer.asked().len() > attempts && again(&status(&data_dir, &name))
            })
            .await;
            let shown = status(&data_dir, &name);
            assert_eq!(shown["set_aside"], 0, "{shown}");
            assert!(!picky.texts().contains(&other));
            done(command("federation", &data_dir, &format!("reset {name} --yes"), ""));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_refuses_an_item_gets_all_others() {
    crate::harness::nodes::one_server!("it restarts one server");
    let Some(authority) = authority("poison") else { return };
    let picky = Picky::start(&authority).await;
    let (mut cabin, ann, room_id) = shared(&authority, &picky.peer).await;
    let (data_dir, name) = (cabin.server.data_dir().to_owned(), picky.peer.name.to_string());
    let pia = format!("@pia:{name}");
    let mut expected = Vec::new();
    for (round, status_code) in [400, 413].into_iter().enumerate() {
        picky.of_some.store(status_code, Ordering::SeqCst);
        // While it does not answer the first one, the others wait, and go together.
        picky.peer.is_silent_on(&["/_matrix/federation/v1/send/"]);
        let first = format!("first of {round}");
        say(&ann, &room_id, &first).await;
        until("it is asked", async || picky.texts().contains(&first)).await;
        expected.push(first);
        let mut letters = Vec::new();
        for number in 0..9 {
            let text = match number {
                2 | 7 => format!("poison {number} of {round}"),
                _ => format!("{number} of {round}"),
            };
            match number % 3 {
                0 => {
                    write_to(&ann, &pia, &text).await;
                    letters.push(text);
                }
                _ => {
                    say(&ann, &room_id, &text).await;
                    if !text.starts_with("poison") {
                        expected.push(text);
                    }
                }
            }
        }
        picky.peer.is_silent_on(&[]);
        let is_letter = |text: &String| letters.contains(text);
        until("it has the others", async || {
            let texts = picky.texts();
            texts.iter().filter(|text| letters.contains(text)).count() == letters.len()
                && texts.len() >= expected.len() + letters.len()
        })
        .await;
        let texts = picky.texts();
        // Messages of rooms come in order, and so do those to devices.
        let of_round = |texts: &[String]| -> Vec<String> {
            texts.iter().filter(|text| is_letter(text)).cloned().collect()
        };
        assert_eq!(of_round(&texts), letters);
        let suffix = format!("of {round}");
        let of_room = texts.iter().filter(|text| text.ends_with(&suffix) && !is_letter(text));
        let of_room: Vec<_> = of_room.collect();
        let wanted: Vec<_> = expected.iter().filter(|text| text.ends_with(&suffix)).collect();
        assert_eq!(of_room, wanted);
        expected.extend(letters);
        let count = 2 * (round as u64 + 1);
        until("it is recorded", async || {
            let shown = status(&data_dir, &name);
            shown["set_aside"] == count && shown["waiting"]["events"] == 0
        })
        .await;
        let shown = status(&data_dir, &name);
        assert!(shown["failing"].is_null(), "{shown}");
        let last = shown["newest_aside"].as_array().and_then(|all| all.last()).cloned();
        let last = last.expect("an item");
        assert_eq!((&last["item"], &last["status"]), (&json!("event"), &json!(status_code)));
        assert_eq!(last["reason"], "M_BAD_JSON: No thanks");
        // It is still known after the server was killed, and is not sent again.
        let sent = picky.ids().len();
        cabin.server.kill9();
        cabin.server.restart().await;
        let after = format!("after {round}");
        say(&ann, &room_id, &after).await;
        until("it has what comes after", async || picky.texts().contains(&after)).await;
        expected.push(after);
        assert_eq!(picky.ids().len(), sent + 1, "what was refused is not sent again");
        assert_eq!(status(&data_dir, &name)["set_aside"], count);
    }
    assert_eq!(picky.texts().len(), expected.len(), "each came once: {:?}", picky.texts());
    let ids = picky.ids();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "each id was used once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_refuses_everything_loses_nothing() {
    crate::harness::nodes::one_server!("it restarts one server");
    let Some(authority) = authority("poison") else { return };
    let picky = Picky::start(&authority).await;
    let (mut cabin, ann, room_id) = shared(&authority, &picky.peer).await;
    let (data_dir, name) = (cabin.server.data_dir().to_owned(), picky.peer.name.to_string());
    let pia = format!("@pia:{name}");
    let mut expected = BTreeSet::new();
    for status_code in [400_u16, 413, 403] {
        picky.of_all.store(status_code, Ordering::SeqCst);
        for number in 0..3 {
            let (text, letter) = (
                format!("{number} of {status_code}"),
                format!("to pia, {number} of {status_code}"),
            );
            say(&ann, &room_id, &text).await;
            write_to(&ann, &pia, &letter).await;
            expected.extend([text, letter]);
        }
        let fails = |shown: &Value| shown["failing"]["attempts"].as_u64() >= Some(1);
        until("it fails", async || fails(&status(&data_dir, &name))).await;
        let shown = status(&data_dir, &name);
        let error = shown["failing"]["error"].as_str().unwrap_or_default();
        assert!(error.contains(&status_code.to_string()), "{shown}");
        assert_eq!(shown["set_aside"], 0, "{shown}");
        cabin.server.kill9();
        cabin.server.restart().await;
        picky.of_all.store(200, Ordering::SeqCst);
        done(command("federation", &data_dir, &format!("retry {name}"), ""));
        until("it has everything", async || {
            picky.texts().into_iter().collect::<BTreeSet<_>>() == expected
        })
        .await;
        until("it does not fail", async || status(&data_dir, &name)["failing"].is_null()).await;
        assert_eq!(status(&data_dir, &name)["set_aside"], 0);
    }
}
