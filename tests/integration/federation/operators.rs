//! What operators see of other homeservers, and do about them.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::{Hostile, now, texts, with_pia};
use super::peer::Peer;
use super::{Authority, Federated, authority};
use crate::administration::{command, done, done_json, failed, user_command};
use crate::console::{CONSOLE, PASSWORD, cookie, get, log_in, status, text};
use crate::harness::stand_in::reply_json;
use crate::harness::tools::{chromium, judged, node, programs};
use crate::harness::{User, encode, free_address, run_logcabin, skip, until};
use crate::monitoring::{scrape, value};

/// What `logcabin federation` says.
pub(super) fn federation(data_dir: &Path, arguments: &str) -> Value {
    done_json(command("federation", data_dir, &format!("{arguments} --json"), ""))
}

/// The texts of the messages that a homeserver was told of.
pub(super) fn told(peer: &Peer) -> Vec<String> {
    let asked = peer.asked().into_iter();
    let told = asked.filter(|asked| asked.path.starts_with("/_matrix/federation/v1/send/"));
    let pdus = told.flat_map(|asked| asked.body["pdus"].as_array().cloned().unwrap_or_default());
    pdus.filter_map(|pdu| Some(pdu["content"]["body"].as_str()?.to_owned())).collect()
}

/// A homeserver that takes transactions while the switch says so.
pub(super) async fn fickle(authority: &Authority) -> (Peer, Arc<AtomicBool>) {
    let takes = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&takes);
    let answers = Arc::new(move |asked: &crate::harness::Asked| {
        let is_sent = asked.path.starts_with("/_matrix/federation/v1/send/");
        is_sent.then(|| match takes.load(Ordering::SeqCst) {
            true => reply_json(200, &json!({ "pdus": {} })),
            false => reply_json(502, &json!({ "errcode": "M_UNKNOWN" })),
        })
    });
    (Peer::start_with(authority, Duration::from_secs(3600), answers).await, switch)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_cannot_be_reached_is_seen_and_tried_again_or_reset() {
    crate::harness::nodes::one_server!("it looks at the metrics of one server");
    let Some(authority) = authority("operators") else { return };
    let metrics = free_address().to_string();
    let settings = [
        ("LOGCABIN_RATE_LIMITS_ENABLED", "false"),
        ("LOGCABIN_CONSOLE_ENABLED", "true"),
        ("LOGCABIN_METRICS_BIND", &*metrics),
    ];
    let mut cabin = Federated::start_with(&authority, &settings).await;
    let (peer, takes) = fickle(&authority).await;
    let name = peer.name.to_string();
    let ann = cabin.server.register("ann").await;
    done(user_command(cabin.server.data_dir(), &format!("set-admin {}", ann.user_id), ""));
    let mine = cookie(&log_in(&cabin.server, "ann", PASSWORD, &[]).await);
    let data_dir = cabin.server.data_dir().to_owned();
    let nobody = federation(&data_dir, "status");
    assert_eq!((&nobody["total"], &nobody["is_on"]), (&json!(0), &json!(true)), "{nobody}");
    let options = json!({ "preset": "public_chat", "room_version": "10", "name": "Lobby" });
    let room_id = ann.create_room(options).await;
    Hostile::new(&peer, &cabin, &room_id).join().await;
    let say = async |text: &str| ann.send_text(&room_id, &encode(text), text).await;
    let row = || federation(&data_dir, "status")["destinations"][0].clone();
    let until_row = async |what: &str, holds: &dyn Fn(&Value) -> bool| {
        until(what, async || holds(&row())).await;
        row()
    };

    say("first").await;
    let reached = |row: &Value| row["failing"].is_null() && row["waiting"]["events"] == 0;
    let shown = until_row("the peer is told of everything", &reached).await;
    assert_eq!((&shown["server_name"], &shown["rooms"]), (&json!(name), &json!(1)), "{shown}");
    assert_eq!(told(&peer), ["first"]);

    takes.store(false, Ordering::SeqCst);
    say("second").await;
    say("third").await;
    let attempts = |row: &Value| row["failing"]["attempts"].as_u64().unwrap_or_default();
    let shown = until_row("it fails", &|row| attempts(row) == 1).await;
    assert_eq!(shown["waiting"]["events"], 2, "{shown}");
    assert!(shown["waiting"]["records"].as_u64() >= Some(2), "{shown}");
    assert!(shown["failing"]["error"].as_str().is_some_and(|why| why.contains("502")), "{shown}");
    // Each time it is tried at once, the next pause is longer: at last more than a minute.
    for tried in 2..=5 {
        let again_ms = row()["failing"]["again_ms"].as_u64().expect("a time");
        let done = federation(&data_dir, &format!("retry {name}"));
        assert_eq!(done["was_failing"], true, "{done}");
        until_row("it is tried", &|row| attempts(row) == tried).await;
        // By then the pause is so long that it would not have been tried yet.
        assert!(tried < 5 || now() < again_ms, "it is tried when the pause is over");
    }
    let more = federation(&data_dir, &format!("status {name}"));
    assert_eq!(more["shared"][0]["room_id"], json!(room_id), "{more}");
    assert_eq!(more["shared"][0]["name"], "Lobby", "{more}");
    assert_eq!(more["shared"][0]["members"], 1, "{more}");
    assert_eq!(more["shared"][0]["waiting"]["events"], 2, "{more}");
    assert!(more["key_ids"][0].as_str().is_some_and(|id| id.starts_with("ed25519:")), "{more}");
    let said = done(command("federation", &data_dir, "status", ""));
    assert!(said.contains("1 in all, 1 cannot be reached") && said.contains("5 in "), "{said}");
    let home = text(&get(&cabin.server, "", &mine).await);
    assert!(home.contains("1 of 1 other homeservers cannot be reached"), "{home}");
    assert!(home.contains("There is no backup"), "{home}");
    let page = text(&get(&cabin.server, "/federation", &mine).await);
    for part in ["1 of 1 homeservers cannot be reached", "status 502", "act/retry-destination"] {
        assert!(page.contains(part), "no `{part}` in {page}");
    }
    let page = text(&get(&cabin.server, &format!("/federation/server/{name}"), &mine).await);
    assert!(page.contains("Lobby") && page.contains("2, in "), "{page}");
    let counted = scrape(&metrics).await;
    let unreachable = value(&counted, "logcabin_federation_destinations{reachable=\"no\"}");
    assert_eq!(unreachable, Some(1.0));
    let fails = value(&counted, "logcabin_federation_transactions_sent_total{outcome=\"failed\"}");
    assert!(fails >= Some(5.0), "{fails:?}");

    // Tools see the same, and have it tried at once.
    let of_peer = format!("/v1/federation/destinations/{}", encode(&name));
    let listed = ann.administer("GET", "/v1/federation/destinations", None).await.ok();
    let one = ann.administer("GET", &of_peer, None).await.ok();
    assert_eq!((&listed["total"], &listed["destinations"]), (&json!(1), &json!([one])), "{listed}");
    let times = ["failure_ts", "retry_last_ts", "last_successful_stream_ordering"];
    assert!(times.iter().all(|time| one[*time].as_u64() > Some(0)), "{one}");
    assert!(one["retry_interval"].as_u64() > Some(10_000), "{one}");
    for order in ["destination&dir=f", "failure_ts&dir=b", "last_successful_stream_ordering&dir=b"]
    {
        // As Ketesa asks.
        let path = format!("/v1/federation/destinations?from=0&limit=50&order_by={order}");
        let listed = ann.administer("GET", &path, None).await.ok();
        assert_eq!(listed["destinations"][0]["destination"], json!(name), "{order}");
    }
    let other = ann.administer("GET", "/v1/federation/destinations?destination=other", None).await;
    assert_eq!(other.ok()["total"], 0);
    let shared = ann.administer("GET", &format!("{of_peer}/rooms"), None).await.ok();
    assert_eq!((&shared["total"], &shared["rooms"][0]["room_id"]), (&json!(1), &json!(room_id)));
    let room = ann.administer("GET", &format!("/v1/rooms/{}", encode(&room_id)), None).await.ok();
    let members = (&room["joined_members"], &room["joined_local_members"]);
    assert_eq!(members, (&json!(2), &json!(1)), "{room}");
    let nowhere = "/v1/federation/destinations/nowhere.example";
    ann.administer("GET", nowhere, None).await.refused(404, "M_NOT_FOUND");

    takes.store(true, Ordering::SeqCst);
    let retry = format!("{of_peer}/reset_connection");
    ann.administer("POST", &retry, Some(json!({}))).await.ok();
    until_row("the peer has everything", &reached).await;
    ann.administer("POST", &retry, None).await.refused(400, "M_UNKNOWN");
    let one = ann.administer("GET", &of_peer, None).await.ok();
    assert_eq!((&one["failure_ts"], &one["retry_interval"]), (&Value::Null, &json!(0)), "{one}");
    let heard = told(&peer);
    assert!(heard.contains(&"second".to_owned()) && heard.ends_with(&["third".to_owned()]));
    let done_nothing = federation(&data_dir, &format!("retry {name}"));
    assert_eq!(done_nothing["was_failing"], false, "{done_nothing}");

    // What is given up is not told later.
    takes.store(false, Ordering::SeqCst);
    say("fourth").await;
    until_row("it fails", &|row| attempts(row) >= 1).await;
    let told_before = told(&peer).len();
    let would = federation(&data_dir, &format!("reset {name} --dry-run"));
    assert!(would.to_string().contains("1 event(s) that wait for"), "{would}");
    let order = format!("{CONSOLE}/act/reset-destination");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let filled = format!("server={}&reason=stuck&confirmed=yes", encode(&name));
    let answer = cabin.server.http().raw("POST", &order, &[form, ("cookie", &mine)], filled).await;
    assert_eq!(status(&answer), 200, "{}", text(&answer));
    until_row("it is reset", &reached).await;
    takes.store(true, Ordering::SeqCst);
    say("fifth").await;
    until("the peer is told of what comes", async || told(&peer).contains(&"fifth".to_owned()))
        .await;
    cabin.server.kill9();
    let offline = federation(&data_dir, "status");
    assert_eq!((&offline["total"], &offline["failing"]), (&json!(1), &json!(0)), "{offline}");
    cabin.server.restart().await;
    say("sixth").await;
    until("the peer is told of what comes", async || told(&peer).contains(&"sixth".to_owned()))
        .await;
    let later = told(&peer).split_off(told_before);
    assert!(!later.contains(&"fourth".to_owned()), "{later:?}");
    for of in ["nowhere.example", &cabin.name, "not a name"] {
        let line = format!("status {}", of.replace(' ', "_"));
        assert!(failed(command("federation", &data_dir, &line, "")).contains("shares no room"));
    }
}

/// Has a browser look at the pages about other homeservers.
async fn look_at(cabin: &Federated, pages: &[(&str, String)]) {
    let found = node("puppeteer-core").and_then(|()| node("axe-core"));
    let chromium = match found.and_then(|()| chromium()) {
        Ok(chromium) => chromium,
        Err(missing) => return skip("the pages about other homeservers", &missing),
    };
    let mut node = Command::new("node");
    node.arg(programs().join("console_pages.mjs"));
    node.args([&*cabin.server.base(), &*chromium, "ann", PASSWORD]);
    node.arg(std::env::var_os("LOGCABIN_E2E_SCREENSHOTS").unwrap_or_default());
    node.args(pages.iter().map(|(name, path)| format!("{name}={path}")));
    judged("console_pages.mjs", node).await;
}

/// A server with an administrator, and a room that a peer can join.
struct Stage {
    cabin: Federated,
    /// It takes no transactions.
    peer: Peer,
    ann: User,
    /// The cookie of ann's session in the console.
    mine: String,
    room_id: String,
}

impl Stage {
    async fn set(authority: &Authority) -> Self {
        let settings =
            [("LOGCABIN_RATE_LIMITS_ENABLED", "false"), ("LOGCABIN_CONSOLE_ENABLED", "true")];
        let cabin = Federated::start_with(authority, &settings).await;
        let peer = Peer::start(authority).await;
        let ann = cabin.server.register("ann").await;
        done(user_command(cabin.server.data_dir(), &format!("set-admin {}", ann.user_id), ""));
        let mine = cookie(&log_in(&cabin.server, "ann", PASSWORD, &[]).await);
        let options = json!({ "preset": "public_chat", "room_version": "10" });
        let room_id = ann.create_room(options).await;
        Self { cabin, peer, ann, mine, room_id }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_refused_is_shown_with_the_reason() {
    let Some(authority) = authority("refused events") else { return };
    let Stage { cabin, peer, ann, mine, room_id } = Stage::set(&authority).await;
    let data_dir = cabin.server.data_dir().to_owned();
    let mut of_peer = Hostile::new(&peer, &cabin, &room_id);
    of_peer.join().await;
    let none = federation(&data_dir, "refused");
    assert_eq!(none["events"], json!([]), "{none}");
    // One that is not allowed at all, and one that is not allowed any more.
    let mut power = of_peer.message("<img>").await;
    power["type"] = json!("m.room.power_levels");
    power["state_key"] = json!("");
    power["content"] = json!({ "users": { of_peer.user("pia"): 100 } });
    let (rejected, power) = of_peer.signed(power);
    let (soft_failed, late) = of_peer.signed(of_peer.message("late").await);
    of_peer.send(&[power]).await;
    let path = format!("/rooms/{}/ban", encode(&room_id));
    let ban = json!({ "user_id": of_peer.user("pia") });
    ann.request("POST", &path, Some(&ban)).await.ok();
    of_peer.send(&[late]).await;
    let shown = federation(&data_dir, "refused");
    let events = shown["events"].as_array().expect("a list");
    let of = |event: &Value| (event["event_id"].clone(), event["outcome"].clone());
    let all: Vec<_> = events.iter().map(of).collect();
    let expected =
        [(json!(soft_failed), json!("soft_failed")), (json!(rejected), json!("rejected"))];
    assert_eq!(all, expected, "{shown}");
    for event in events {
        assert_eq!(event["from"], json!(peer.name), "{event}");
        let reason = event["reason"].as_str().expect("a reason");
        let said = done(command("federation", &data_dir, "refused", ""));
        assert!(!reason.is_empty() && said.contains(reason), "{said}");
        for path in ["/federation", "/federation/refused"] {
            let page = text(&get(&cabin.server, path, &mine).await);
            assert!(page.contains(&format!("/log/{}\"", event["record"])), "{page}");
        }
    }
    let pages = [
        ("federation", "/federation".to_owned()),
        ("homeserver", format!("/federation/server/{}", peer.name)),
        ("refused", "/federation/refused".to_owned()),
        ("keys", "/federation/keys".to_owned()),
        ("reset", format!("/act/reset-destination?server={}", peer.name)),
        ("why-refused", format!("/why?of={}", encode(&format!("event {rejected}")))),
    ];
    look_at(&cabin, &pages).await;
    let only = federation(&data_dir, "refused --limit 1");
    assert_eq!(only["events"].as_array().map(Vec::len), Some(1), "{only}");
    assert_eq!(only["and_more"], true, "{only}");
    let page = text(&get(&cabin.server, "/federation/keys", &mine).await);
    assert!(page.contains(peer.name.as_str()), "{page}");
    let ben = cabin.server.register("ben").await;
    let as_ben = format!("logcabin_console={}", ben.access_token);
    for path in ["/federation", "/federation/refused", "/federation/keys", "/federation/server/a"] {
        assert_eq!(status(&get(&cabin.server, path, "").await), 303, "{path}");
        assert_eq!(status(&get(&cabin.server, path, &as_ben).await), 403, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_says_which_rule_of_state_resolution_decided() {
    let Some(authority) = authority("state resolution") else { return };
    let Stage { cabin, peer, ann, mine, room_id } = Stage::set(&authority).await;
    let data_dir = cabin.server.data_dir().to_owned();
    let mut of_peer = Hostile::new(&peer, &cabin, &room_id);
    of_peer.join().await;
    let levels = format!("/rooms/{}/state/m.room.power_levels/", encode(&room_id));
    let mut powers = ann.request("GET", &levels, None).await.ok();
    powers["users"][of_peer.user("pia")] = json!(100);
    ann.request("PUT", &levels, Some(&powers)).await.ok();
    // Pia's topics are of before ann's, and of an hour later.
    let mut topic = of_peer.message("").await;
    topic["type"] = json!("m.room.topic");
    topic["state_key"] = json!("");
    topic["content"] = json!({ "topic": "of <b>pia</b>" });
    topic["origin_server_ts"] = json!(topic["origin_server_ts"].as_u64().unwrap() - 60_000);
    let (early, sooner) = of_peer.signed(topic.clone());
    topic["origin_server_ts"] = json!(topic["origin_server_ts"].as_u64().unwrap() + 3_600_000);
    let (late, later) = of_peer.signed(topic);
    let set = ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "of ann" })).await.ok();
    let of_ann = set["event_id"].as_str().expect("an id").to_owned();
    for event in [sooner, later] {
        assert!(of_peer.send(&[event]).await.to_string().contains("{}"));
    }
    let why = |place: &str, words: &[&str]| -> Vec<Value> {
        let line = ["history", "why", place].into_iter().chain(words.iter().copied());
        let said = done(run_logcabin(line.chain(["--json"])));
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let archive = data_dir.join("archive").display().to_string();
    cabin.server.until_archived().await;
    for place in [&*data_dir.display().to_string(), &*archive] {
        let steps = why(place, &["room", &room_id, "topic"]);
        let after: Vec<_> = steps.iter().map(|step| step["after"]["topic"].clone()).collect();
        assert_eq!(after, ["of ann", "of ann", "of <b>pia</b>"], "{steps:?}");
        let events = |step: &Value| step["resolution"]["disputes"][0]["events"].clone();
        let first = events(&steps[1]);
        assert_eq!(
            (&first[0]["event_id"], &first[0]["fate"]),
            (
                &json!(early),
                &json!({
                    "fate": "replaced", "rule": "time",
                })
            )
        );
        assert_eq!(
            (&first[1]["event_id"], &first[1]["fate"]["fate"]),
            (&json!(of_ann), &json!("holds"))
        );
        let second = events(&steps[2]);
        let holder = second.as_array().and_then(|all| all.last()).expect("events");
        assert_eq!((&holder["event_id"], &holder["fate"]["fate"]), (&json!(late), &json!("holds")));
        let of_event = why(place, &["event", &early]);
        assert_eq!(of_event[0]["after"], json!({ "outcome": "accepted", "takes_effect": false }));
        assert_eq!(events(&of_event[0])[0]["event_id"], json!(early));
    }
    let lost = &why(&archive, &["event", &early])[0]["offset"];
    for of in [format!("room {room_id} topic"), format!("event {early}")] {
        let page = text(&get(&cabin.server, &format!("/why?of={}", encode(&of)), &mine).await);
        assert!(page.contains("has a later time"), "{page}");
        // That of the event that did not take effect, too.
        let row = format!("<td data-label=\"Record\"><a href=\"/_logcabin/console/log/{lost}\"");
        assert!(page.contains(&row), "no `{row}` in {page}");
        assert!(page.contains("of &lt;b&gt;pia") && !page.contains("<b>pia"), "{page}");
    }
    look_at(
        &cabin,
        &[("why-resolved", format!("/why?of={}", encode(&format!("room {room_id} topic"))))],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_of_another_homeserver_sent_is_redacted_and_that_homeserver_is_told() {
    let Some(authority) = authority("redactions") else { return };
    let cabin = Federated::start(&authority).await;
    let (peer, _) = fickle(&authority).await;
    let (ann, room_id, mut pia) = with_pia(&peer, &cabin).await;
    let user_id = pia.user("pia");
    for text in ["buy", "buy more"] {
        let message = pia.message(text).await;
        let (_, event) = pia.signed(message);
        pia.send(&[event]).await;
    }
    assert_eq!(texts(&ann, &room_id).await, ["buy more", "buy"]);
    let data_dir = cabin.server.data_dir();
    done(user_command(data_dir, &format!("set-admin {}", ann.user_id), ""));
    let of_pia = |what: &str| format!("/v1/users/{}/{what}", encode(&user_id));
    let rooms = ann.administer("GET", &of_pia("joined_rooms"), None).await.ok();
    assert_eq!(rooms, json!({ "total": 1, "joined_rooms": [room_id] }));
    let rooms = ann.administer("GET", &of_pia("memberships"), None).await.ok();
    assert_eq!(rooms["memberships"], json!({ (&*room_id): "join" }));
    let done = done_json(user_command(data_dir, &format!("redact {user_id} --yes --json"), ""));
    assert_eq!((&done["redacted"], &done["failures"]), (&json!(3), &json!(0)), "{done}");
    assert_eq!(texts(&ann, &room_id).await, [] as [&str; 0]);
    let redactions = || {
        let told = peer.asked().into_iter();
        let told = told.filter(|asked| asked.path.starts_with("/_matrix/federation/v1/send/"));
        let pdus = told.flat_map(|asked| asked.body["pdus"].as_array().cloned());
        pdus.flatten().filter(|pdu| pdu["type"] == "m.room.redaction").count()
    };
    until("the homeserver is told", async || redactions() >= 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_by_another_homeserver_redacts_what_its_user_sent() {
    let Some(authority) = authority("redacting") else { return };
    let cabin = Federated::start(&authority).await;
    let (peer, _) = fickle(&authority).await;
    let (ann, room_id, mut pia) = with_pia(&peer, &cabin).await;
    let bob = cabin.server.register("bob").await;
    bob.join(&room_id).await.ok();
    for (number, text) in ["buy", "buy more"].into_iter().enumerate() {
        bob.send_text(&room_id, &number.to_string(), text).await;
    }
    ann.send_text(&room_id, "ann", "please stop").await;
    let ban = async |pia: &mut Hostile<'_>, user_id: &str| {
        let mut event = pia.message("").await;
        event["type"] = json!("m.room.member");
        event["state_key"] = json!(user_id);
        event["content"] = json!({ "membership": "ban", "org.matrix.msc4293.redact_events": true });
        let (event_id, event) = pia.signed(event);
        pia.send(&[event]).await[&event_id].clone()
    };
    // Without the power to ban, the event is refused.
    let said = ban(&mut pia, &bob.user_id).await;
    assert!(said["error"].is_string(), "{said}");
    let mut levels = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    levels["users"][pia.user("pia")] = json!(60);
    levels["events"]["m.room.redaction"] = json!(70);
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let cas = cabin.server.register("cas").await;
    cas.join(&room_id).await.ok();
    cas.send_text(&room_id, "cas", "stays").await;
    // With it, but without that to send redactions, nothing is redacted.
    assert_eq!(ban(&mut pia, &cas.user_id).await, json!({}));
    levels["events"]["m.room.redaction"] = json!(60);
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    assert_eq!(ban(&mut pia, &bob.user_id).await, json!({}));
    until("what bob sent is redacted", async || {
        texts(&ann, &room_id).await == ["stays", "please stop"]
    })
    .await;
}
