//! What the console draws: what takes how much disk, when people write, and what is about an event.

use std::path::Path;
use std::sync::Arc;

use logcabin::clock::Clock;
use logcabin::decide::account::Register;
use logcabin::decide::create_room::{CreateRoom, Preset};
use logcabin::decide::send::SendEvent;
use logcabin::engine::{Engine, Options};
use logcabin::log::Log;
use logcabin::log::store::{SledLog, SledOptions};
use logcabin::record::Origin;
use ruma::events::TimelineEventType;
use ruma::{RoomVersionId, owned_room_id, owned_user_id};
use serde_json::{Value, json};

use crate::administration::{command, done, done_json, user_command};
use crate::console::{PASSWORD, cookie, get, log_in, server, status, text};
use crate::harness::{TestServer, encode, until};

const HOSTILE: &str = "<script>alert(1)</script>\u{202e}gnp.exe\u{7}";

const HOUR_MS: u64 = 3_600_000;

/// Four weeks in which somebody has written: nothing by night, and little on one day of the week.
pub(crate) async fn write_weeks(data_dir: &Path) {
    let begin = (Clock::system().now_ms() / HOUR_MS / 24 - 28) * 24 * HOUR_MS;
    let clock = Clock::manual(begin);
    let mut options = SledOptions::new(data_dir);
    options.clock = clock.clone();
    let log: Arc<dyn Log> = Arc::new(SledLog::open(options).expect("the log can be opened"));
    let options = Options {
        server_name: "e2e.test".try_into().expect("a server name"),
        ..Options::small(clock.clone())
    };
    let engine = Engine::open(Arc::clone(&log), options).await.expect("an engine");
    let sender = owned_user_id!("@writer:e2e.test");
    let origin = || Origin { user: sender.as_str().into(), ..Origin::default() };
    let register =
        Register { display_name: Some(HOSTILE.to_owned()), ..Register::user(sender.clone()) };
    engine.propose(origin(), register).await.expect("a user").into_inner();
    let create = CreateRoom {
        name: Some(HOSTILE.to_owned()),
        ..CreateRoom::new(
            owned_room_id!("!weeks:e2e.test"),
            sender.clone(),
            RoomVersionId::V10,
            Preset::PublicChat,
            clock.timestamp(),
        )
    };
    let room_id = engine.propose(origin(), create).await.expect("a room").into_inner();
    for hour in 0..28 * 24_u64 {
        let messages = match (hour % 24, hour / 24 % 7) {
            (0..7, _) => 0,
            (of_day, 5) => of_day / 12 * (hour % 2),
            (9..12 | 19..22, of_week) => 1 + (hour + of_week) % 3,
            _ => hour * 7 % 2,
        };
        for number in 0..messages {
            clock.advance(HOUR_MS / messages - 60_000);
            let body = "words ".repeat((20 + 7 * number) as usize);
            let content = json!({ "msgtype": "m.text", "body": body });
            let message = SendEvent {
                room_id: room_id.clone(),
                sender: sender.clone(),
                event_type: TimelineEventType::RoomMessage,
                state_key: None,
                content: serde_json::from_value(content).expect("canonical JSON"),
                redacts: None,
                transaction: None,
                ts: clock.timestamp(),
            };
            drop(engine.propose(origin(), message).await.expect("a message").into_inner());
        }
        let begun = begin + hour * HOUR_MS;
        clock.advance((begun + HOUR_MS).saturating_sub(clock.now_ms()));
    }
    log.close();
}

/// What an earlier version has kept of the last month: the plots are drawn from it.
pub(crate) fn keep_samples(data_dir: &Path) {
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs_f64();
    let begun_ms = ((now - 3e6) * 1000.0) as u64;
    let ring = |count: u32, every: f64| -> Vec<Value> {
        let begun = now - f64::from(count) * every;
        let (mut requests, mut records) = (0.0, 0.0);
        let (mut slow, mut fast) = ([0.0; 19], [0.0; 16]);
        let sample = |number: u32| {
            let at = begun + f64::from(number) * every;
            let day = (at / 86_400.0 * std::f64::consts::TAU).sin();
            let busy = (1.0 + 0.6 * day + 0.3 * (f64::from(number) / 7.0).sin()).max(0.1);
            requests += every * 40.0 * busy;
            records += every * 12.0 * busy;
            let add = |within: &mut [f64], middle: f64| {
                // The answers within each bound of their histogram, and all.
                let all = within.len() - 1;
                for (bound, answers) in within.iter_mut().enumerate() {
                    let part = 1.0 / (1.0 + ((middle + busy - bound as f64) * 1.7).exp());
                    *answers += every * 12.0 * busy * if bound == all { 1.0 } else { part };
                }
            };
            add(&mut slow, 3.0);
            add(&mut fast, 6.0);
            json!({
                "at_ms": (at * 1000.0) as u64, "begun_ms": begun_ms, "requests": requests,
                "records": records, "requests_within": slow.to_vec(),
                "writes_within": fast.to_vec(), "news_within": slow.to_vec(),
                "cpu_seconds": requests * 0.0004, "waiting": (90.0 + 40.0 * busy).round(),
                "memory": 1.2e8 + 4e6 * busy, "disk_used": 2e9 + (at - now) * 3e2,
                "disk_free": 3e10, "errors": requests * 1e-4, "lag": 0.0,
            })
        };
        // For a while, the server was away.
        let was_away = |number: &u32| (count * 6 / 10..count * 7 / 10).contains(number);
        (0..count).filter(|number| !was_away(number)).map(sample).collect()
    };
    let growth: Vec<Value> = (0..240_u64)
        .map(|number| {
            let days = (240 - number) as f64 / 4.0;
            let log = 16.8e6 - days * 2e5 + 1e5 * days.sin();
            let parts = [log, log * 0.02, 0.0, 0.0, 0.0, 0.0];
            let used = parts.map(|bytes| bytes as u64);
            json!({ "at_ms": ((now - days * 86_400.0) * 1000.0) as u64, "used": used, "free": 0 })
        })
        .collect();
    let start = |days: f64, version: &str| json!({ "at_ms": ((now - days * 86_400.0) * 1000.0) as u64, "version": version });
    let rings = json!({
        "hour": ring(360, 10.0), "day": ring(720, 120.0), "week": ring(672, 900.0),
        "month": ring(744, 3600.0), "growth": growth,
        "starts": [start(20.0, "0.0.8"), start(5.0, "0.0.8"), start(0.02, "0.0.9")],
    });
    std::fs::write(data_dir.join("console.samples"), rings.to_string()).expect("it is written");
}

/// A server with an administrator who has the console open.
async fn opened(server: &TestServer) -> (crate::harness::User, String) {
    let admin = server.register("admin").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let entered = log_in(server, "admin", PASSWORD, &[]).await;
    (admin, cookie(&entered))
}

async fn page(server: &TestServer, path: &str, mine: &str) -> String {
    let answer = get(server, path, mine).await;
    let page = text(&answer);
    assert_eq!(status(&answer), 200, "{path}: {page}");
    for harm in ["<script>alert", "\u{202e}", "\u{7}", "NaN", "style=\""] {
        assert!(!page.contains(harm), "`{harm}` is in {path}: {page}");
    }
    page
}

/// What `du` says of all records, as the page writes it.
fn all_records(server: &TestServer) -> (u64, Value) {
    let usage = done_json(command("du", server.data_dir(), "--json", ""));
    (usage["log"]["records"].as_u64().expect("a number"), usage)
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let chunks = digits.as_bytes().rchunks(3).rev();
    chunks.map(|chunk| String::from_utf8_lossy(chunk)).collect::<Vec<_>>().join(",")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_knows_what_takes_disk_without_reading_the_log_and_across_restarts() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_weeks(directory.path()).await;
    let enabled = [("LOGCABIN_CONSOLE_ENABLED", "true")];
    let mut server = TestServer::start_on_with(directory.path(), &enabled).await;
    let (admin, mine) = opened(&server).await;
    let room_id = admin.create_room(json!({ "name": HOSTILE })).await;
    let headers = [
        ("authorization", &*format!("Bearer {}", admin.access_token)),
        ("content-type", "image/png"),
    ];
    let bytes = "x".repeat(54_321);
    let uploaded = server.http().raw("POST", "/_matrix/media/v3/upload", &headers, bytes).await;
    let uploaded: Value = serde_json::from_str(&text(&uploaded)).expect("JSON");
    let file = json!({ "msgtype": "m.image", "body": HOSTILE, "url": uploaded["content_uri"] });
    admin.send(&room_id, "m.room.message", "file", &file).await.ok();
    for number in 0..30 {
        admin.send_text(&room_id, &format!("m{number}"), &"hello ".repeat(500)).await;
    }
    let agrees = async |server: &TestServer| {
        until("the page agrees with `logcabin du`", async || {
            let disk = page(server, "/disk", &mine).await;
            let (records, usage) = all_records(server);
            let kind = &usage["kinds"][0]["name"].as_str().expect("a kind").replace('.', "%2E");
            !disk.contains("Counted so far")
                && disk.contains(&format!("{} records", grouped(records)))
                && disk.contains(&format!("kind={kind}"))
        })
        .await;
    };
    agrees(&server).await;
    let disk = page(&server, "/disk", &mine).await;
    let named = [&*room_id, &admin.user_id, "room.event", "54.3 kB", "!weeks:e2e.test", "writer"];
    for named in named {
        assert!(disk.contains(named), "no {named} in {disk}");
    }
    assert!(disk.contains("not known before two days") && disk.contains("Free"), "{disk}");
    let activity = page(&server, "/activity", &mine).await;
    assert!(activity.contains(", in 4.") && activity.contains("Wednesday"), "{activity}");

    // It goes on where it was: whoever counts anything twice has more than there is.
    server.stop();
    server.restart().await;
    admin.send_text(&room_id, "again", "hello").await;
    agrees(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plots_have_ranges_gaps_and_marks_that_lead_to_the_log_across_restarts() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    keep_samples(directory.path());
    let enabled = [("LOGCABIN_CONSOLE_ENABLED", "true")];
    let mut server = TestServer::start_on_with(directory.path(), &enabled).await;
    let (admin, mine) = opened(&server).await;
    for (range, ticks) in
        [("hour", ":15<"), ("day", "04:00<"), ("week", "<text"), ("month", "<text")]
    {
        let home = page(&server, &format!("?range={range}"), &mine).await;
        assert_eq!(home.matches("class=\"canvas\"").count(), 12, "{home}");
        let chosen = format!("<a href=\"?range={range}\" aria-current=\"true\">{range}</a>");
        assert!(home.contains(&chosen), "no {chosen} in {home}");
        assert!(home.contains(&format!("/plots?range={range}\"")), "{home}");
        assert!(home.contains(ticks), "no {ticks} in {range}: {home}");
        // The server was away once, and is another process now.
        let memory = home.split("Memory: ").nth(1).and_then(|rest| rest.split("</figure>").next());
        let memory = memory.expect("a plot of the memory");
        assert!(memory.matches("class=\"line s0\"").count() >= 3, "{range}: {memory}");
        let part = page(&server, &format!("/plots?range={range}"), &mine).await;
        assert!(part.starts_with("<div class=\"plots\">"), "{part}");
    }
    for path in ["?range=year", "/plots?range=%3Cb%3E", "/activity?range=-1"] {
        assert_eq!(status(&get(&server, path, &mine).await), 400, "{path}");
    }
    let upgrade = format!("Version {} after 0.0.9", env!("CARGO_PKG_VERSION"));
    assert!(page(&server, "?range=hour", &mine).await.contains(&upgrade), "no `{upgrade}`");

    // What an administrator does is marked as soon as it is counted, with the way to its record.
    let room_id = admin.create_room(json!({ "name": HOSTILE })).await;
    let block = format!("block {} --reason spam", room_id);
    done(command("room", server.data_dir(), &block, ""));
    let place = tempfile::tempdir().expect("a temporary directory");
    let backup = place.path().join("backup");
    done(command("backup", server.data_dir(), &backup.display().to_string(), ""));
    let marks = async |server: &TestServer| {
        let home = page(server, "?range=hour", &mine).await;
        let list = home.split("What happened</h2>").nth(1).expect("a list");
        list.split("</ul>").next().unwrap_or_default().to_owned()
    };
    until("the backup is marked", async || marks(&server).await.contains("Backup by")).await;
    let list = marks(&server).await;
    let newest = list.split("<a href=\"/_logcabin/console").nth(1).expect("a link");
    let newest = newest.split('"').next().expect("an address");
    let log = page(&server, newest, &mine).await;
    let first = log.split("data-label=\"Kind\">").nth(1).and_then(|rest| rest.split('<').next());
    assert_eq!(first, Some("backup.made"), "{newest}: {log}");

    // Samples and marks are there after a restart, which is a mark itself.
    let lines = |home: &str| home.matches(';').count();
    let before = page(&server, "?range=week", &mine).await;
    server.stop();
    server.restart().await;
    let after = page(&server, "?range=week", &mine).await;
    assert!(lines(&after) + 50 > lines(&before), "{after}");
    until("the acts are still marked", async || {
        let list = marks(&server).await;
        list.contains("Start of the server") && list.contains("Backup by")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_about_an_event_is_drawn_and_listed_as_far_as_a_page_goes() {
    let server = server().await;
    let (admin, mine) = opened(&server).await;
    let room_id = admin.create_room(json!({ "preset": "public_chat" })).await;
    let root = admin.send_text(&room_id, "root", HOSTILE).await;
    let say = async |txn: &str, kind: &str, body: &str, relates_to: Value| {
        let content = json!({ "msgtype": "m.text", "body": body, "m.relates_to": relates_to });
        admin.send(&room_id, kind, txn, &content).await.ok_string("event_id")
    };
    let message = "m.room.message";
    let related = |rel_type: &str, id: &str| json!({ "rel_type": rel_type, "event_id": id });
    let reply_to = |id: &str| json!({ "m.in_reply_to": { "event_id": id } });
    let reply = say("reply", message, "the reply", reply_to(&root)).await;
    let threaded = say("thread", message, "in the thread", related("m.thread", &root)).await;
    say("edit", message, "better words", related("m.replace", &root)).await;
    let mut reaction = related("m.annotation", &threaded);
    reaction["key"] = json!(HOSTILE);
    say("reaction", "m.reaction", "", reaction).await;
    let redacted = say("gone", message, "bad words", related("m.thread", &root)).await;
    let redact = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&redacted));
    admin.request("PUT", &redact, Some(&json!({ "reason": HOSTILE }))).await.ok();

    let of = async |event: &str| {
        page(&server, &format!("/relations?event={}", encode(event)), &mine).await
    };
    let drawn = of(&root).await;
    for expected in [
        "replies to",
        "is in the thread of",
        "edits",
        "reacts to",
        "redacts",
        "the reply",
        "class=\"event focus\"",
        "class=\"event gone\"",
    ] {
        assert!(drawn.contains(expected), "no `{expected}` in {drawn}");
    }
    assert!(!drawn.contains("bad words"), "{drawn}");
    // Root, reply, thread, edit, reaction, redacted event, redaction.
    assert_eq!(drawn.matches("<rect class=\"event").count(), 7, "{drawn}");
    // From a reply, what it is about is there.
    let of_reply = of(&reply).await;
    assert_eq!(of_reply.matches("<rect class=\"event").count(), 2, "{of_reply}");
    // A record leads there, by its number.
    let log = page(&server, "/log?kind=room.event", &mine).await;
    let offset =
        log.split("/_logcabin/console/log/").nth(1).and_then(|rest| rest.split('"').next());
    let offset = offset.expect("a record");
    let record = page(&server, &format!("/log/{offset}"), &mine).await;
    assert!(record.contains(&format!("relations?event={offset}")), "{record}");
    of(offset).await;

    // However much there is about an event, a page is bounded.
    for number in 0..70 {
        say(&format!("more{number}"), message, "more", related("m.thread", &root)).await;
    }
    let many = of(&root).await;
    let events = many.matches("<rect class=\"event").count();
    assert!(events <= 60 && many.contains("more events are about it"), "{events}: {many}");

    let missing = format!("$%20{}", "x".repeat(43));
    for (wrong, expected) in
        [("99999999", 404), ("1", 404), (&*missing, 404), ("nothing", 400), ("-1", 400)]
    {
        let answer = get(&server, &format!("/relations?event={wrong}"), &mine).await;
        assert_eq!(status(&answer), expected, "{wrong}: {}", text(&answer));
    }
    page(&server, "/relations?event=", &mine).await;

    // The pages are for administrators.
    let ann = server.register("ann").await;
    let as_ann = format!("logcabin_console={}", ann.access_token);
    for path in ["/disk", "/activity", "/relations", "/relations?event=1"] {
        assert_eq!(status(&get(&server, path, "").await), 303, "{path}");
        assert_eq!(status(&get(&server, path, &as_ann).await), 403, "{path}");
    }
}

/// Orders of lists, and searches, are those of the values that are shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rooms_are_found_and_ordered_by_the_names_that_they_have_now() {
    let server = server().await;
    let (admin, mine) = opened(&server).await;
    let room = async |name: &str| admin.create_room(json!({ "name": name })).await;
    room("Birch").await;
    let two = room("alder").await;
    let places = async |path: &str| {
        let rooms = page(&server, path, &mine).await;
        let at = |name: &str| rooms.find(&format!("<bdi>{name}</bdi></a>"));
        (at("Birch"), at("alder"), at("Cedar"))
    };
    let (birch, alder, _) = places("/rooms?order=name").await;
    assert!(alder < birch && alder.is_some(), "{alder:?}, {birch:?}");
    let rename = format!("/rooms/{}/state/m.room.name/", encode(&two));
    admin.request("PUT", &rename, Some(&json!({ "name": "Cedar" }))).await.ok();
    let (birch, alder, cedar) = places("/rooms?order=name").await;
    assert!(birch < cedar && birch.is_some() && alder.is_none(), "{birch:?}, {cedar:?}");
    assert_eq!(places("/rooms?name=alder").await.1, None);
    assert!(places("/rooms?name=CEDAR").await.2.is_some());
    // A name that was redacted is none.
    let events = format!("/rooms/{}/messages?dir=b&limit=1", encode(&two));
    let newest = admin.request("GET", &events, None).await.ok();
    let event_id = newest["chunk"][0]["event_id"].as_str().expect("an event").to_owned();
    let redact = format!("/rooms/{}/redact/{}/r", encode(&two), encode(&event_id));
    admin.request("PUT", &redact, Some(&json!({}))).await.ok();
    assert_eq!(places("/rooms?name=cedar").await.2, None);
}
