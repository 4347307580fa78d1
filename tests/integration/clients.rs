//! Clients nobody here wrote: matrix-nio and matrix-js-sdk talk to each other through the server,
//! and matrix-rust-sdk shows its room list by sliding sync. Each is a process that takes commands
//! on stdin and tells on stdout what it sees; the programs, and the protocol, are in `tests/e2e/`.
//! Other programs there drive several users on matrix-js-sdk at once and judge for themselves.
//!
//! `LOGCABIN_E2E_ADDRESS` runs the same scenario against another server, to check the clients.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::harness::files::Kind;
use crate::harness::{Random, TestServer, User, encode, mail::MailServer, skip, tools};

/// How long a client may take to answer or to see something. No test is about this time; it only
/// ends a run that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

const HISTORY: usize = 500;

/// How many messages each writes before it waits for the other to see them.
const BURST: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_nio_and_matrix_js_sdk_talk_to_each_other() {
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(missing) => return skip("clients", &missing),
    };
    let other = env::var("LOGCABIN_E2E_ADDRESS").ok();
    let mut server = match other {
        Some(_) => None,
        None => Some(TestServer::start().await),
    };
    let address = match (&other, &server) {
        (Some(address), _) => address.clone(),
        (None, Some(server)) => server.base(),
        (None, None) => unreachable!("one of them is there"),
    };

    // Another server may know the names of an earlier run.
    let mut random = Random::from_env("LOGCABIN_E2E_SEED");
    let names = [random.next(), random.next()].map(|number| format!("{number:016x}"));
    let [ann_name, bob_name] = [format!("ann-{}", names[0]), format!("bob-{}", names[1])];

    let ann = Client::nio(&tools, &address, "ann on matrix-nio");
    let bob = Client::js_sdk(&tools, &address, "bob on matrix-js-sdk");
    let ann_id = text(&ann.ok("register", json!({ "user": ann_name })), "user_id");
    let bob_id = text(&bob.ok("register", json!({ "user": bob_name })), "user_id");
    ann.ok("start", json!({}));
    bob.ok("start", json!({}));

    // A room with both, made by ann.
    let room = text(&ann.ok("create_room", json!({ "name": "Logs and timber" })), "room_id");
    meet(&ann, &bob, &room, &bob_id);

    // Each sees the other's messages live.
    let hello = say(&ann, &bob, &room, &ann_id, "hello from nio");
    let answer = say(&bob, &ann, &room, &bob_id, "hello from js-sdk");

    // Each sees the other's edit, and js-sdk shows the message with its new text.
    for (writer, reader, of, body) in
        [(&ann, &bob, &hello, "hello, edited"), (&bob, &ann, &answer, "same here")]
    {
        writer.ok("edit", json!({ "room_id": room, "event_id": of, "body": body }));
        reader.sees(json!({ "event": "edit", "room_id": room, "of": of, "body": body }));
    }

    // Each sees the other's redaction.
    for (writer, reader, of) in [(&ann, &bob, &hello), (&bob, &ann, &answer)] {
        writer.ok("redact", json!({ "room_id": room, "event_id": of, "reason": "a slip" }));
        let seen = json!({ "event": "redaction", "room_id": room, "of": of, "reason": "a slip" });
        reader.sees(seen);
    }

    // A kick without the power for it is refused, and its target is still there. Both ways, so that
    // each client is once the one that is refused.
    bob.refused("kick", json!({ "room_id": room, "user_id": ann_id }), "M_FORBIDDEN");
    say(&ann, &bob, &room, &ann_id, "still here");
    let bobs = text(&bob.ok("create_room", json!({ "name": "Another" })), "room_id");
    meet(&bob, &ann, &bobs, &ann_id);
    ann.refused("kick", json!({ "room_id": bobs, "user_id": bob_id }), "M_FORBIDDEN");
    say(&bob, &ann, &bobs, &bob_id, "here too");

    // The server is killed and started again; both clients find it by themselves and go on.
    if let Some(server) = &mut server {
        server.restart().await;
        let restarted = Instant::now();
        say(&ann, &bob, &room, &ann_id, "back again");
        say(&bob, &ann, &room, &bob_id, "so am I");
        println!("the clients were back {:?} after the restart", restarted.elapsed());
    }

    // A long history, written by both at the same time and seen live by both, each message once. In
    // bursts smaller than any client's timeline, which a client may rightly find `limited`
    // otherwise.
    let mut sent = [Vec::new(), Vec::new()];
    for burst in 0..HISTORY / 2 / BURST {
        let commands = [(&ann, "nio"), (&bob, "js")].map(|(client, who)| {
            std::array::from_fn::<u64, BURST, _>(|number| {
                let body = format!("history {who} {}", burst * BURST + number);
                client.command("send", json!({ "room_id": room, "body": body }))
            })
        });
        for (of, (writer, reader)) in [(&ann, &bob), (&bob, &ann)].into_iter().enumerate() {
            for command in commands[of] {
                let event_id = text(&writer.taken(command, "send"), "event_id");
                let seen = json!({ "event": "message", "room_id": room, "event_id": event_id });
                reader.sees(seen);
                sent[of].push(event_id);
            }
        }
    }
    ann.assert_saw_no_message_twice();
    bob.assert_saw_no_message_twice();

    // New devices of both page back through it from a timeline that holds its end.
    let new_ann = Client::nio(&tools, &address, "ann's new device on matrix-nio");
    let new_bob = Client::js_sdk(&tools, &address, "bob's new device on matrix-js-sdk");
    let mut histories = Vec::new();
    for (client, user) in [(&new_ann, &ann_name), (&new_bob, &bob_name)] {
        client.ok("login", json!({ "user": user }));
        client.ok("start", json!({}));
        let history = client.ok("page_back", json!({ "room_id": room, "limit": 37 }));
        histories.push(assert_whole_history(client.name, &history, &sent));
    }
    assert!(histories[0] == histories[1], "the two clients read different histories");

    // bob leaves and ann sees it; ann leaves too.
    bob.ok("leave", json!({ "room_id": room }));
    let left = json!({
        "event": "member", "room_id": room, "user_id": bob_id, "membership": "leave"
    });
    ann.sees(left);
    ann.ok("leave", json!({ "room_id": room }));

    let mut requests = BTreeMap::new();
    for client in [ann, bob, new_ann, new_bob] {
        client.stop(&mut requests);
    }
    assert_every_request_was_known(&requests);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_every_kind_pass_between_matrix_nio_and_matrix_js_sdk() {
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(missing) => return skip("clients", &missing),
    };
    // By the paths without a login, too.
    let mut server = TestServer::start_with(&[("LOGCABIN_MEDIA_UNAUTHENTICATED", "all")]).await;
    let ann = Client::nio(&tools, &server.base(), "ann on matrix-nio");
    let bob = Client::js_sdk(&tools, &server.base(), "bob on matrix-js-sdk");
    let ann_id = text(&ann.ok("register", json!({ "user": "ann" })), "user_id");
    let bob_id = text(&bob.ok("register", json!({ "user": "bob" })), "user_id");
    ann.ok("start", json!({}));
    bob.ok("start", json!({}));
    let room = text(&ann.ok("create_room", json!({ "name": "Pictures" })), "room_id");
    meet(&ann, &bob, &room, &bob_id);

    let kinds = Kind::all();
    let mut sent = Vec::new();
    for (writer, reader) in [(&ann, &bob), (&bob, &ann)] {
        for kind in &kinds {
            let place = upload(writer, kind, false);
            let seen = send_file(writer, reader, &room, kind, &place);
            if reader.name == ann.name {
                assert_eq!(seen["as"], kind.of_nio);
            }
            assert_eq!(seen["url"], place["url"]);
            assert_downloads(reader, kind, &seen);
            sent.push((kind, seen));
        }
        // Encrypted on the way by one and decrypted by the other: to the server they are bytes.
        let picture = &kinds[0];
        let place = upload(writer, picture, true);
        let seen = send_file(writer, reader, &room, picture, &place);
        if reader.name == ann.name {
            assert_eq!(seen["as"], "RoomEncryptedImage");
        }
        let got = reader.ok("download", json!({ "file": seen["content"]["file"] }));
        assert!(got["content"] == BASE64.encode(&picture.bytes), "decrypted, it is another");
        assert_eq!(
            (&got["content_type"], &got["disposition"]),
            (&json!(OCTETS), &json!("attachment"))
        );
        let stored = reader.ok("download", json!({ "url": seen["content"]["file"]["url"] }));
        assert!(stored["content"] != got["content"], "the server has it in the clear");
    }
    // Pictures of users and rooms, each seen by the other: nio's by ann, who may change the room.
    for (writer, reader, user_id) in [(&ann, &bob, &ann_id), (&bob, &ann, &bob_id)] {
        let place = upload(writer, &kinds[0], false);
        writer.ok("set_avatar", place.clone());
        let shown = reader.ok("avatar", json!({ "user_id": user_id }));
        assert_eq!(shown["url"], place["url"]);
        assert_downloads(reader, &kinds[0], &shown);
        let theirs = text(&writer.ok("create_room", json!({ "name": "Own" })), "room_id");
        meet(writer, reader, &theirs, if user_id == &ann_id { &bob_id } else { &ann_id });
        writer.ok("set_room_avatar", json!({ "room_id": theirs, "url": place["url"] }));
        reader.sees(json!({ "event": "room_avatar", "room_id": theirs, "url": place["url"] }));
        // Small pictures of it are the same by every path.
        let size = json!({ "url": place["url"], "width": 96, "height": 96 });
        let mut legacy = size.clone();
        legacy["legacy"] = true.into();
        let thumbnails = [(&ann, &size), (&bob, &size), (&bob, &legacy)]
            .map(|(client, wish)| client.ok("thumbnail", wish.clone()));
        let bytes = BASE64.decode(text(&thumbnails[0], "content")).expect("base64");
        let picture = image::load_from_memory(&bytes).expect("a picture");
        assert_eq!((picture.width(), picture.height()), (96, 96));
        assert_eq!(
            (&thumbnails[0]["content_type"], &thumbnails[0]["disposition"]),
            (&json!("image/jpeg"), &json!("inline"))
        );
        assert!(thumbnails.iter().all(|thumbnail| *thumbnail == thumbnails[0]), "{thumbnails:?}");
    }
    // A picture of one's own for an emoji: the other device finds it in the account data.
    let other = Client::nio(&tools, &server.base(), "bob's other device, on matrix-nio");
    other.ok("login", json!({ "user": "bob" }));
    other.ok("start", json!({}));
    let place = upload(&bob, &kinds[0], false);
    let emotes = json!({ "images": { "log": { "url": place["url"], "usage": ["emoticon"] } } });
    let kept = json!({ "type": "im.ponies.user_emotes", "content": emotes });
    bob.ok("set_account_data", kept.clone());
    other.sees(json!({ "event": "account_data", "type": kept["type"], "content": emotes }));
    assert_downloads(&other, &kinds[0], &place);

    // All of it is there after the server was killed.
    server.restart().await;
    for (kind, seen) in sent {
        assert_downloads(&ann, kind, &seen);
        assert_downloads(&bob, kind, &seen);
    }
    for client in [ann, bob, other] {
        client.stop(&mut BTreeMap::new());
    }
}

const OCTETS: &str = "application/octet-stream";

/// Uploads a file and gives what goes into the event that names it.
fn upload(client: &Client, kind: &Kind, encrypt: bool) -> Value {
    let content = BASE64.encode(&kind.bytes);
    client.ok("upload", json!({ "content": content, "content_type": kind.content_type, "name": kind.name, "encrypt": encrypt }))
}

/// `writer` sends a file that was uploaded and `reader` sees it, as it was sent; gives what it
/// sees.
fn send_file(writer: &Client, reader: &Client, room: &str, kind: &Kind, place: &Value) -> Value {
    let content = kind.content(place);
    let event = json!({ "room_id": room, "type": kind.event_type(), "content": content });
    let event_id = text(&writer.ok("send_event", event), "event_id");
    let seen = reader.wait(&format!("{} from {}", kind.name, writer.name), |line| {
        line["event"] == "media" && line["event_id"] == *event_id
    });
    assert_eq!((&seen["type"], &seen["content"]), (&json!(kind.event_type()), &content));
    seen
}

/// The file at this `url` is what was uploaded, by each path, and goes by its name and by one that
/// is asked for.
#[track_caller]
fn assert_downloads(client: &Client, kind: &Kind, place: &Value) {
    let mut ways =
        vec![(json!({}), kind.name), (json!({ "name": "another näme.bin" }), "another näme.bin")];
    if client.name.contains("js-sdk") {
        ways.push((json!({ "legacy": true }), kind.name));
    }
    for (mut way, name) in ways {
        way["url"] = place["url"].clone();
        let got = client.ok("download", way.clone());
        let content = BASE64.encode(&kind.bytes);
        assert!(got["content"] == content, "{}: {} is another: {way}", client.name, kind.name);
        let about = ["content_type", "name", "disposition"].map(|field| got[field].clone());
        let expected = [kind.content_type, name, kind.disposition].map(Value::from);
        assert_eq!(about, expected, "{}: {way}", client.name);
    }
}

/// Programs that drive several users on matrix-js-sdk at once, and judge for themselves.
async fn js_sdk_program(name: &str) {
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(missing) => return skip(name, &missing),
    };
    let server = TestServer::start().await;
    let mut command = Command::new("node");
    command.arg(tools.programs.join(name)).arg(server.base());
    let said = tools::judged(name, command).await;
    assert!(said.contains("all went well"), "{name} ended early:\n{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_uses_threads_spaces_windows_search_and_upgrades() {
    js_sdk_program("js_rooms.mjs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_js_sdk_registers_by_mail_recovers_refreshes_and_is_logged_out_softly() {
    let name = "js_account.mjs";
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(missing) => return skip(name, &missing),
    };
    let Some(mail) = MailServer::start(name) else { return };
    let mut settings = mail.settings();
    for (key, value) in [
        ("LOGCABIN_REGISTRATION_REQUIRE", "email"),
        ("LOGCABIN_TOKENS_ACCESS_LIFETIME_SECONDS", "3"),
    ] {
        settings.push((key.to_owned(), value.to_owned()));
    }
    let settings: Vec<_> = settings.iter().map(|(key, value)| (&**key, &**value)).collect();
    let server = TestServer::start_with(&settings).await;
    let mut program = Command::new("node")
        .arg(tools.programs.join(name))
        .arg(server.base())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node can be started");
    let mut stdin = program.stdin.take().expect("stdin is piped");
    let stdout = BufReader::new(program.stdout.take().expect("stdout is piped"));
    let run = tokio::task::spawn_blocking(move || {
        let mut mails = HashMap::new();
        let mut said = String::new();
        for line in stdout.lines().map_while(Result::ok) {
            println!("{line}");
            if let Some(to) = line.strip_prefix("mail ") {
                let number: &mut usize = mails.entry(to.to_owned()).or_default();
                writeln!(stdin, "{}", mail.mail(to, *number)).expect("it reads its mail");
                *number += 1;
            }
            said = line;
        }
        (program.wait().expect("it ends"), said)
    });
    let (status, said) = run.await.expect("no panic");
    assert!(status.success() && said == "all went well", "{name} said last: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_rust_sdk_shows_its_room_list_by_sliding_sync() {
    let program = match Client::sdk_program() {
        Ok(program) => program,
        Err(missing) => return skip("clients", &missing),
    };
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let bob = Client::start(Command::new(program), &server.base(), "bob on matrix-rust-sdk");
    let bob_id = text(&bob.ok("register", json!({ "user": "bob" })), "user_id");

    // More rooms than the list's first window holds, of which it shows the newest first.
    let mut names: Vec<String> = Vec::new();
    for number in 0..30 {
        let name = format!("room {number:02}");
        let options = json!({ "name": name, "preset": "public_chat" });
        let room_id = ann.create_room(options).await;
        bob.ok("join", json!({ "room_id": room_id }));
        ann.send_text(&room_id, "first", "first").await;
        names.insert(0, name);
    }
    bob.ok("start", json!({}));
    let shows = |names: &[String]| {
        let room = |name: &String| json!({ "name": name, "state": "joined" });
        let rooms: Vec<_> = names.iter().map(room).collect();
        bob.sees(json!({ "event": "rooms", "rooms": rooms }));
    };
    shows(&names);

    // A new room is an invite until it is joined, and is then like any other.
    let room_id = ann.create_room(json!({ "name": "the cabin", "invite": [bob_id] })).await;
    let mut rooms: Vec<Value> = vec![json!({ "name": "the cabin", "state": "invited" })];
    rooms.extend(names.iter().map(|name| json!({ "name": name, "state": "joined" })));
    bob.sees(json!({ "event": "rooms", "rooms": rooms }));
    bob.ok("join", json!({ "room_id": room_id }));
    names.insert(0, "the cabin".to_owned());
    shows(&names);

    // A room that is subscribed to is live in both directions, each message once and in order.
    bob.ok("subscribe", json!({ "room_id": room_id }));
    let mut said: Vec<String> = Vec::new();
    let timeline = |said: &[String]| {
        bob.sees(json!({ "event": "timeline", "room_id": room_id, "bodies": said }));
    };
    for number in 0..5 {
        let body = format!("from ann {number}");
        ann.send_text(&room_id, &body.replace(' ', "-"), &body).await;
        said.push(body);
        timeline(&said);
        let body = format!("from bob {number}");
        bob.ok("send", json!({ "room_id": room_id, "body": body }));
        said.push(body);
        timeline(&said);
    }
    // A message elsewhere brings its room to the top.
    let old = names.pop().expect("thirty rooms");
    names.insert(0, old);
    let top = text(&bob.ok("room_named", json!({ "name": names[0] })), "room_id");
    ann.send_text(&top, "second", "second").await;
    shows(&names);

    // The server is killed and started again: the client starts over by itself and misses nothing.
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    ann.send_text(&room_id, "back", "back again").await;
    said.push("back again".to_owned());
    bob.sees(json!({ "event": "sync_error", "unknown_pos": true }));
    bob.sees_last("back again", &room_id);
    bob.ok("send", json!({ "room_id": room_id, "body": "so am I" }));
    said.push("so am I".to_owned());
    bob.sees_last("so am I", &room_id);
    let history = bob.ok("page_back", json!({ "room_id": room_id }));
    assert_eq!(history["bodies"], json!(said));

    // A room that one is thrown out of is gone.
    let kick = format!("/rooms/{}/kick", encode(&room_id));
    ann.request("POST", &kick, Some(&json!({ "user_id": bob_id }))).await.ok();
    names.retain(|name| name != "the cabin");
    shows(&names);
    bob.print_transcript();
    bob.ok("stop", json!({}));
}

/// `host` invites and `guest` joins, each seeing what the other did.
pub(crate) fn meet(host: &Client, guest: &Client, room: &str, guest_id: &str) {
    let member = |membership: &str| {
        json!({
            "event": "member", "room_id": room, "user_id": guest_id, "membership": membership
        })
    };
    host.ok("invite", json!({ "room_id": room, "user_id": guest_id }));
    guest.sees(member("invite"));
    guest.ok("join", json!({ "room_id": room }));
    host.sees(member("join"));
    guest.sees(member("join"));
}

/// `writer` sends and `reader` sees it; gives the event id.
pub(crate) fn say(
    writer: &Client,
    reader: &Client,
    room: &str,
    sender: &str,
    body: &str,
) -> String {
    let sent = writer.ok("send", json!({ "room_id": room, "body": body }));
    let event_id = text(&sent, "event_id");
    reader.sees(json!({
        "event": "message",
        "room_id": room,
        "event_id": event_id,
        "sender": sender,
        "body": body,
    }));
    event_id
}

/// From the room's creation to its end without gap or repeat; gives the event ids.
fn assert_whole_history(name: &str, history: &Value, sent: &[Vec<String>]) -> Vec<String> {
    let events = history["events"].as_array().expect("a list of events");
    let pages = history["pages"].as_u64().expect("a number of pages");
    assert!(pages > 5, "{name}: {pages} pages are not paging");
    assert_eq!(events[0]["type"], "m.room.create", "{name}: the history begins elsewhere");
    let ids: Vec<String> = events.iter().map(|event| text(event, "event_id")).collect();
    let mut unique = HashSet::new();
    for id in &ids {
        assert!(unique.insert(id), "{name}: {id} came twice");
    }
    let texts = events
        .iter()
        .filter(|event| event["body"].as_str().is_some_and(|body| body.starts_with("history ")));
    assert_eq!(texts.count(), HISTORY, "{name}");
    // js-sdk's own timeline has neither lost nor doubled one.
    if let Some(shown) = history["shown"].as_u64() {
        assert!(shown >= HISTORY as u64, "{name}: the SDK shows {shown} events");
    }
    for of_one in sent {
        let of_one: HashSet<&String> = of_one.iter().collect();
        let there = ids.iter().filter(|id| of_one.contains(id)).count();
        assert_eq!(there, of_one.len(), "{name}: sent and found again");
    }
    // Each sender's messages stand in the order of their numbers.
    for who in ["nio", "js"] {
        let prefix = format!("history {who} ");
        let numbers: Vec<usize> = events
            .iter()
            .filter_map(|event| event["body"].as_str()?.strip_prefix(&prefix)?.parse().ok())
            .collect();
        assert!(
            numbers.iter().copied().eq(0..HISTORY / 2),
            "{name}: the order of {who}: {numbers:?}"
        );
    }
    ids
}

/// The server knew every request that the clients made. While it started, it may have asked them to
/// wait.
pub(crate) fn assert_every_request_was_known(requests: &BTreeMap<String, BTreeSet<u64>>) {
    println!("requests of the clients and the statuses they got:");
    for (request, statuses) in requests {
        println!("  {request} {statuses:?}");
    }
    for (request, statuses) in requests {
        let started = statuses.contains(&200);
        let is_unknown = |status: &u64| match status {
            503 => !started,
            status => matches!(status, 404 | 405 | 500..),
        };
        assert!(!statuses.iter().any(is_unknown), "{request} got {statuses:?}");
    }
}

#[track_caller]
pub(crate) fn text(value: &Value, key: &str) -> String {
    match value[key].as_str() {
        Some(text) => text.to_owned(),
        None => panic!("expected a string `{key}` in {value}"),
    }
}

/// What the clients run on.
pub(crate) struct Tools {
    python: PathBuf,
    programs: PathBuf,
}

impl Tools {
    pub(crate) fn find() -> Result<Self, String> {
        let python = tools::python("nio")?;
        tools::node("matrix-js-sdk")?;
        let programs = tools::programs();
        Ok(Self { python, programs })
    }
}

/// A client process.
pub(crate) struct Client {
    pub(crate) name: &'static str,
    process: Child,
    stdin: ChildStdin,
    told: Arc<Told>,
    commands: Cell<u64>,
}

/// What a client has told so far, in order, and a bell for each line.
#[derive(Default)]
struct Told {
    lines: Mutex<Vec<Value>>,
    bell: Condvar,
    /// Nothing more will come on stdout.
    ended: AtomicBool,
}

impl Told {
    fn push(&self, line: Value) {
        self.lines().push(line);
        self.bell.notify_all();
    }

    /// The lines; a test that failed while it looked at them has not harmed them.
    fn lines(&self) -> MutexGuard<'_, Vec<Value>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    pub(crate) fn nio(tools: &Tools, address: &str, name: &'static str) -> Self {
        let mut command = Command::new(&tools.python);
        command.arg(tools.programs.join("nio_client.py"));
        Self::start(command, address, name)
    }

    pub(crate) fn js_sdk(tools: &Tools, address: &str, name: &'static str) -> Self {
        let mut command = Command::new("node");
        command.arg(tools.programs.join("js_client.mjs"));
        Self::start(command, address, name)
    }

    /// The program of matrix-rust-sdk, if it was built.
    pub(crate) fn sdk_program() -> Result<PathBuf, String> {
        let program = match env::var_os("LOGCABIN_E2E_SDK") {
            Some(program) => program.into(),
            None => {
                Path::new(env!("CARGO_MANIFEST_DIR")).join("target/e2e/sdk_client/debug/sdk_client")
            }
        };
        if program.is_file() {
            Ok(program)
        } else {
            Err(format!("{} is absent", program.display()))
        }
    }

    pub(crate) fn start(mut command: Command, address: &str, name: &'static str) -> Self {
        command.arg(address);
        Self::run(command, name)
    }

    pub(crate) fn run(mut command: Command, name: &'static str) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: cannot start {command:?}: {error}"));
        let stdin = process.stdin.take().expect("stdin is piped");
        let stdout = process.stdout.take().expect("stdout is piped");
        let stderr = process.stderr.take().expect("stderr is piped");
        let told = Arc::new(Told::default());
        let tell = Arc::clone(&told);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let noise = |_| json!({ "event": "noise", "line": line });
                tell.push(serde_json::from_str(&line).unwrap_or_else(noise));
            }
            tell.ended.store(true, Ordering::Release);
            tell.bell.notify_all();
        });
        // Only looked at when a test fails.
        let tell = Arc::clone(&told);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                tell.push(json!({ "event": "stderr", "line": line }));
            }
        });
        Self { name, process, stdin, told, commands: Cell::new(0) }
    }

    /// Gives a command and does not wait; gives its number.
    pub(crate) fn command(&self, name: &str, mut arguments: Value) -> u64 {
        let number = self.commands.get() + 1;
        self.commands.set(number);
        arguments["id"] = number.into();
        arguments["do"] = name.into();
        writeln!(&self.stdin, "{arguments}")
            .unwrap_or_else(|error| panic!("{}: {name}: the client is gone: {error}", self.name));
        number
    }

    /// Waits for the answer to a command.
    fn answer(&self, command: u64) -> Result<Value, Value> {
        let answer = self.wait(&format!("the answer to command {command}"), |line| {
            line["id"].as_u64() == Some(command)
        });
        match answer.get("ok") {
            Some(ok) => Ok(ok.clone()),
            None => Err(answer["error"].clone()),
        }
    }

    /// A command that may fail.
    pub(crate) fn asked(&self, name: &str, arguments: Value) -> Result<Value, Value> {
        self.answer(self.command(name, arguments))
    }

    /// A command that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, name: &str, arguments: Value) -> Value {
        let what = format!("{name} {arguments}");
        let command = self.command(name, arguments);
        self.taken(command, &what)
    }

    /// The answer to a command that must succeed.
    #[track_caller]
    pub(crate) fn taken(&self, command: u64, what: &str) -> Value {
        match self.answer(command) {
            Ok(value) => value,
            Err(error) => panic!("{}: {what}: {error}", self.name),
        }
    }

    /// A command that the server must refuse with `errcode`.
    #[track_caller]
    fn refused(&self, name: &str, arguments: Value, errcode: &str) {
        let shown = arguments.to_string();
        let command = self.command(name, arguments);
        match self.answer(command) {
            Ok(value) => panic!("{}: {name} {shown}: expected {errcode}, got {value}", self.name),
            Err(error) => assert!(
                error["errcode"] == errcode,
                "{}: {name} {shown}: expected {errcode}, got {error}",
                self.name
            ),
        }
    }

    /// Waits until the client has seen, by its sync, an event with all these fields.
    #[track_caller]
    pub(crate) fn sees(&self, expected: Value) {
        let fields = expected.as_object().expect("the fields of an event");
        self.wait(&expected.to_string(), |line| {
            fields.iter().all(|(key, value)| line.get(key) == Some(value))
        });
    }

    /// Waits until a timeline ends with a message, from now on.
    #[track_caller]
    fn sees_last(&self, body: &str, room_id: &str) {
        self.wait(&format!("a timeline that ends with {body}"), |line| {
            let last = line["bodies"].as_array().and_then(|bodies| bodies.last());
            line["room_id"] == room_id && last.is_some_and(|last| last == body)
        });
    }

    /// Prints all that the client told.
    fn print_transcript(&self) {
        println!("what {} told:", self.name);
        for line in self.told.lines().iter() {
            println!("  {line}");
        }
    }

    #[track_caller]
    fn wait(&self, what: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = self.told.lines();
        let mut looked_at = 0;
        loop {
            if let Some(line) = lines[looked_at..].iter().find(|line| matches(line)) {
                return line.clone();
            }
            looked_at = lines.len();
            let ended = self.told.ended.load(Ordering::Acquire);
            let now = Instant::now();
            if ended || now > deadline {
                let why = if ended { "the client ended" } else { "it did not come" };
                let from = lines.len().saturating_sub(12);
                let told: Vec<String> = lines[from..].iter().map(Value::to_string).collect();
                panic!(
                    "{}: waited for {what}, and {why}; it told last:\n{}",
                    self.name,
                    told.join("\n")
                );
            }
            (lines, _) = self
                .told
                .bell
                .wait_timeout(lines, deadline - now)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn assert_saw_no_message_twice(&self) {
        let lines = self.told.lines();
        let mut seen = HashSet::new();
        for line in lines.iter().filter(|line| line["event"] == "message") {
            let event_id = text(line, "event_id");
            assert!(seen.insert(event_id), "{}: saw twice: {line}", self.name);
        }
    }

    /// Ends the client and adds its requests to `requests`.
    pub(crate) fn stop(self, requests: &mut BTreeMap<String, BTreeSet<u64>>) {
        self.ok("stop", json!({}));
        let lines = self.told.lines();
        // That there is no such thing is an answer, unlike that there is no such endpoint.
        let counted = |line: &&Value| line["event"] == "http" && line["errcode"] != "M_NOT_FOUND";
        for line in lines.iter().filter(counted) {
            let request = format!("{} {}", text(line, "method"), pattern(&text(line, "path")));
            requests.entry(request).or_default().extend(line["status"].as_u64());
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A path with its identifiers replaced, so that requests can be counted by kind.
fn pattern(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        let replaced = match segments[..] {
            [.., "rooms" | "join"] => "{roomId}",
            [.., "user"] => "{userId}",
            [.., "filter"] => "{filterId}",
            [.., "redact"] => "{eventId}",
            [.., "redact" | "send", _] => "{txnId}",
            _ => segment,
        };
        segments.push(replaced);
    }
    segments.join("/")
}
