//! The feed of changes: every record once and in order, to those who may read it, however often
//! they, the server or the connection are interrupted.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};

use futures_util::StreamExt as _;
use logcabin::record::Offset;
use logcabin::source::Source;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::administration::{done, user_command};
use crate::harness::{Http, Random, TestServer, User, encode, run_logcabin, runs, skip, until};

const PATH: &str = "/_logcabin/v1/changes";

async fn admin(server: &TestServer) -> User {
    let admin = server.register("admin").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    admin
}

/// How the feed is read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Lines,
    Events,
}

/// A connection to the feed.
struct Feed {
    form: Form,
    stream: TcpStream,
    /// What was received of the body.
    received: Vec<u8>,
    /// What of the connection's bytes is not of the body yet.
    raw: Vec<u8>,
    /// The position of the last whole line.
    position: Option<String>,
}

impl Feed {
    /// Sends a request; the server's answer is not read.
    async fn ask(mut stream: TcpStream, admin: &User, query: &str, form: Form) -> Self {
        let accept = if form == Form::Events { "text/event-stream" } else { "*/*" };
        let request = format!(
            "GET {PATH}{query} HTTP/1.1\r\nhost: test\r\naccept: {accept}\r\nauthorization: Bearer \
             {}\r\n\r\n",
            admin.access_token
        );
        stream.write_all(request.as_bytes()).await.expect("the server reads");
        Self { form, stream, received: Vec::new(), raw: Vec::new(), position: None }
    }

    async fn open(server: &TestServer, admin: &User, query: &str, form: Form) -> Self {
        let address = server.base();
        let address = address.strip_prefix("http://").expect("an address");
        let stream = TcpStream::connect(address).await.expect("a connection");
        Self::ask(stream, admin, query, form).await
    }

    /// Moves what is whole of the chunked body from `raw` to `received`.
    fn unchunk(&mut self) {
        if self.raw.starts_with(b"HTTP/1.1 ") {
            let Some(end) = find(&self.raw, b"\r\n\r\n") else { return };
            let head = String::from_utf8_lossy(&self.raw[..end]).to_lowercase();
            assert!(head.starts_with("http/1.1 200"), "{head}");
            assert!(head.contains("transfer-encoding: chunked"), "{head}");
            let kind = if self.form == Form::Events { "text/event-stream" } else { "x-ndjson" };
            assert!(head.contains(kind), "{head}");
            self.raw.drain(..end + 4);
        }
        while let Some(end) = find(&self.raw, b"\r\n") {
            let size = std::str::from_utf8(&self.raw[..end]).expect("a length");
            let size = usize::from_str_radix(size, 16).expect("a length in hex");
            if size == 0 || self.raw.len() < end + 2 + size + 2 {
                return;
            }
            self.received.extend_from_slice(&self.raw[end + 2..end + 2 + size]);
            self.raw.drain(..end + 2 + size + 2);
        }
    }

    /// The next line; `None` when the connection has ended.
    async fn next(&mut self) -> Option<Value> {
        let delimiter: &[u8] = if self.form == Form::Events { b"\n\n" } else { b"\n" };
        loop {
            if let Some(end) = find(&self.received, delimiter) {
                let line: Vec<u8> = self.received.drain(..end + delimiter.len()).collect();
                let line = std::str::from_utf8(&line).expect("text").trim_end();
                let line = self.read(line);
                self.position = Some(line["position"].as_str().expect("a position").to_owned());
                return Some(line);
            }
            match self.stream.read_buf(&mut self.raw).await {
                Ok(1..) => self.unchunk(),
                _ => return None,
            }
        }
    }

    fn read(&self, line: &str) -> Value {
        if self.form == Form::Lines {
            return serde_json::from_str(line).expect("JSON");
        }
        let field =
            |name: &str| line.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let data: Value = serde_json::from_str(field("data").expect("data")).expect("JSON");
        assert_eq!(data["position"].as_str(), field("id"), "{line}");
        let named = if data.get("offset").is_some() {
            None
        } else if data.get("end").is_some() {
            Some("end")
        } else {
            Some("position")
        };
        assert_eq!(field("event"), named, "{line}");
        data
    }

    /// The next record.
    async fn record(&mut self) -> Option<Value> {
        loop {
            let line = self.next().await?;
            if line.get("offset").is_some() {
                return Some(line);
            }
            assert!(line.get("end").is_none(), "it ended: {line}");
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// All lines of a feed that ends by itself.
async fn whole(server: &TestServer, admin: &User, query: &str) -> Vec<Value> {
    let mut feed = Feed::open(server, admin, query, Form::Lines).await;
    let mut lines = Vec::new();
    while let Some(line) = feed.next().await {
        let ends = line.get("end").is_some();
        lines.push(line);
        if ends {
            return lines;
        }
    }
    panic!("the feed broke off: {lines:?}");
}

fn offsets(lines: &[Value]) -> Vec<u64> {
    lines.iter().filter_map(|line| line["offset"].as_u64()).collect()
}

/// The kinds of the log's records, from the first one on.
fn kinds(server: &TestServer) -> Vec<String> {
    let source = Source::open(&server.data_dir().to_string_lossy()).expect("the log can be read");
    let records = source.records(Offset::new(1)).expect("the log can be read");
    records.map(|record| record.expect("a record").header.kind.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_gets_every_record_once_and_in_order_despite_disconnects() {
    let mut server = TestServer::start().await;
    let (mut admin, mut ann) = (admin(&server).await, server.register("ann").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    for form in [Form::Lines, Form::Events] {
        let mut random = Random::from_env("LOGCABIN_CHANGES_SEED");
        let (mut got, mut position) = (Vec::new(), None::<String>);
        for round in 0..12 {
            let writes = {
                let (ann, room_id) = (ann.clone(), room_id.clone());
                tokio::spawn(async move {
                    for number in 0..20 {
                        let txn_id = format!("{form:?}-{round}-{number}");
                        ann.send_text(&room_id, &txn_id, &"x".repeat(3000)).await;
                    }
                })
            };
            let query = match &position {
                Some(position) => format!("?since={position}"),
                None => "?from=1".to_owned(),
            };
            let mut feed = Feed::open(&server, &admin, &query, form).await;
            for _ in 0..random.between(0, 25) {
                got.push(feed.record().await.expect("a record")["offset"].as_u64().expect("one"));
            }
            position = feed.position.clone().or(position);
            // The reader hangs up, and now and then the server is killed.
            drop(feed);
            writes.await.expect("the writer goes on to its end");
            if round % 4 == 3 {
                server.kill9();
                server.restart().await;
                (admin.http, ann.http) = (server.http(), server.http());
            }
        }
        let since = position.expect("a position");
        let rest = whole(&server, &admin, &format!("?since={since}&follow=false")).await;
        got.extend(offsets(&rest));
        let last = rest.last().expect("an end");
        assert_eq!(last["end"], "reached", "{last}");
        let all: Vec<u64> = (1..=kinds(&server).len() as u64).collect();
        assert_eq!(got, all, "{form:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_record_is_told_at_once_and_a_server_that_stops_says_where_to_go_on() {
    let mut server = TestServer::start().await;
    let (mut admin, ann) = (admin(&server).await, server.register("ann").await);
    let room_id = ann.create_room(json!({})).await;
    let mut feed = Feed::open(&server, &admin, "?kind=room.event", Form::Events).await;
    let start = feed.next().await.expect("a position");
    assert!(start.get("offset").is_none() && start["position"].is_string(), "{start}");
    let event_id = ann.send_text(&room_id, "1", "hello").await;
    let told = feed.record().await.expect("a record");
    assert_eq!(told["payload"]["event_id"], event_id.as_str(), "{told}");
    assert_eq!(told["payload"]["pdu"]["content"]["body"], "hello", "{told}");
    server.stop();
    let last = feed.next().await.expect("a last line");
    assert_eq!(last["end"], "stopping", "{last}");
    let since = feed.position.clone().expect("a position");
    assert!(feed.next().await.is_none());
    server.restart().await;
    admin.http = server.http();
    let more = whole(&server, &admin, &format!("?since={since}&follow=false")).await;
    // What was written between the end of the feed and that of the server is not lost.
    let told = told["offset"].as_u64().expect("an offset");
    let next = offsets(&more).first().copied();
    assert!(next.is_none_or(|next| next > told), "{more:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_selects_by_kind_room_and_user_on_the_command_line_as_well() {
    let server = TestServer::start().await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let bob = server.register("bob").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let other = ann.create_room(json!({ "room_alias_name": "other" })).await;
    bob.join(&room_id).await.ok();
    ann.send_text(&room_id, "1", "one").await;
    bob.send_text(&room_id, "2", "two").await;
    ann.act(&room_id, "kick", Some(&bob)).await.ok();
    let all = whole(&server, &admin, "?from=1&follow=false").await;
    let chosen = |wanted: &dyn Fn(&Value) -> bool| -> Vec<u64> {
        offsets(&all.iter().filter(|line| wanted(line)).cloned().collect::<Vec<_>>())
    };
    let alias = format!("#other:{}", ann.user_id.split_once(':').expect("a server").1);
    let is = |line: &Value, name: &str, value: &str| line[name] == value;
    let about_bob = |line: &Value| {
        let pdu = &line["payload"]["pdu"];
        is(line, "user", &bob.user_id)
            || is(line, "stream", "user/bob")
            || is(pdu, "state_key", &bob.user_id)
    };
    let room = |line: &Value| is(line, "room", &room_id);
    let cases: [(String, String, Vec<u64>); 5] = [
        (
            "kind=room.event".into(),
            "--kind room.event".into(),
            chosen(&|line| is(line, "kind", "room.event")),
        ),
        (
            "kind=user.*,device.*".into(),
            "--kind user.*,device.*".into(),
            chosen(&|line| {
                let kind = line["kind"].as_str().unwrap_or_default();
                kind.starts_with("user.") || kind.starts_with("device.")
            }),
        ),
        (format!("room={}", encode(&room_id)), format!("--room {room_id}"), chosen(&room)),
        (
            format!("room={}", encode(&alias)),
            format!("--room {alias}"),
            chosen(&|line| is(line, "room", &other)),
        ),
        (
            format!("user={}&kind=room.*", encode(&bob.user_id)),
            "--user bob --kind room.*".into(),
            chosen(&|line| {
                about_bob(line) && line["kind"].as_str().is_some_and(|of| of.starts_with("room."))
            }),
        ),
    ];
    for (query, arguments, expected) in cases {
        assert!(!expected.is_empty() && expected.len() < offsets(&all).len(), "{query}");
        let lines = whole(&server, &admin, &format!("?from=1&follow=false&{query}")).await;
        assert_eq!(offsets(&lines), expected, "{query}");
        let data_dir = server.data_dir().to_string_lossy();
        let tail = |count: &str| -> Vec<u64> {
            let line = ["history", "--json", "tail", &data_dir, "--no-follow", "-n", count];
            let output = run_logcabin(line.into_iter().chain(arguments.split(' ')));
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).expect("text");
            let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
            offsets(&lines.collect::<Vec<_>>())
        };
        assert_eq!(tail("1000"), expected, "{arguments}");
        assert_eq!(tail("2"), expected[expected.len().saturating_sub(2)..], "{arguments}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_administrators_read_the_feed_and_only_as_long_as_they_are() {
    let server = TestServer::start().await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let get = async |token: Option<&str>, query: &str| {
        server.http().request("GET", &format!("{PATH}{query}"), token, None).await
    };
    get(None, "").await.refused(401, "M_MISSING_TOKEN");
    get(Some("wrong"), "").await.refused(401, "M_UNKNOWN_TOKEN");
    get(Some(&ann.access_token), "?from=1").await.refused(403, "M_FORBIDDEN");
    let token = Some(admin.access_token.as_str());
    for wrong in [
        "?from=x",
        "?from=100000",
        "?since=s0_100000",
        "?since=12",
        "?room=nowhere",
        "?user=ann",
        "?kind=room",
        "?kind=room.event,nothing.*",
        "?follow=maybe",
    ] {
        let refused = get(token, wrong).await.refused(400, "M_INVALID_PARAM");
        assert!(refused["error"].is_string(), "{wrong}");
    }

    // One loses the right to read, the other the session.
    let second = User::login(&server.http(), "admin", "a password that is long enough").await;
    let mut of_second = Feed::open(&server, &second, "", Form::Lines).await;
    let mut of_admin = Feed::open(&server, &admin, "", Form::Lines).await;
    of_second.next().await.expect("a position");
    of_admin.next().await.expect("a position");
    second.request("POST", "/logout", Some(&json!({}))).await.ok();
    ann.create_room(json!({})).await;
    let last = last_line(&mut of_second).await;
    assert_eq!(last["end"], "refused", "{last}");
    assert!(of_admin.record().await.is_some());
    done(user_command(server.data_dir(), &format!("unset-admin {}", admin.user_id), ""));
    ann.create_room(json!({})).await;
    let last = last_line(&mut of_admin).await;
    assert_eq!(last["end"], "refused", "{last}");
    assert_eq!(last["reason"], "You do not administer this server.", "{last}");
}

async fn last_line(feed: &mut Feed) -> Value {
    let mut last = Value::Null;
    while let Some(line) = feed.next().await {
        last = line;
        if last.get("end").is_some() {
            break;
        }
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_reads_nothing_is_cut_off_and_goes_on_where_it_was() {
    let settings = [("LOGCABIN_HTTP_RESPONSE_TIMEOUT_SECONDS", "1")];
    let server = TestServer::start_with(&settings).await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let room_id = ann.create_room(json!({})).await;
    // More than the buffers of both ends of a connection take.
    let body = "x".repeat(50_000);
    futures_util::stream::iter(0..240)
        .for_each_concurrent(8, |number| {
            let (ann, room_id, body) = (&ann, &room_id, &body);
            async move {
                ann.send_text(room_id, &number.to_string(), body).await;
            }
        })
        .await;
    let address = server.base();
    let address = address.strip_prefix("http://").expect("an address").parse().expect("one");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(64 * 1024).expect("the size can be set");
    let stream = socket.connect(address).await.expect("a connection");
    let mut feed = Feed::ask(stream, &admin, "?from=1", Form::Lines).await;
    until("the server cuts the reader off", async || {
        feed.stream.take_error().expect("it can be asked").is_some()
    })
    .await;
    let mut got = Vec::new();
    while let Some(line) = feed.next().await {
        got.extend(line["offset"].as_u64());
    }
    let end = kinds(&server).len() as u64;
    assert!((got.len() as u64) < end, "all of {end} records were in buffers");
    let since =
        feed.position.map_or_else(|| "from=1".to_owned(), |position| format!("since={position}"));
    let rest = whole(&server, &admin, &format!("?{since}&follow=false")).await;
    got.extend(offsets(&rest));
    assert_eq!(got, (1..=end).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bounded_number_of_readers_have_a_place_which_they_leave_when_they_hang_up() {
    let server = TestServer::start().await;
    let admin = admin(&server).await;
    let mut feeds = Vec::new();
    for _ in 0..16 {
        let mut feed = Feed::open(&server, &admin, "", Form::Lines).await;
        feed.next().await.expect("a position");
        feeds.push(feed);
    }
    let one_more = async || {
        let path = format!("{PATH}?follow=false");
        let request = http::Request::get(format!("{}{path}", server.base()))
            .header("authorization", format!("Bearer {}", admin.access_token))
            .body(http_body_util::Full::default())
            .expect("a request");
        let answer = Http::new(&server.base()).try_raw(request).await.expect("an answer");
        answer.parts.status.as_u16()
    };
    assert_eq!(one_more().await, 429);
    feeds.pop();
    until("the place is free", async || one_more().await == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_learns_that_a_restore_undid_records_that_it_has() {
    let mut server = TestServer::start().await;
    let (mut admin, ann) = (admin(&server).await, server.register("ann").await);
    let kept = kinds(&server).len() as u64;
    let room_id = ann.create_room(json!({})).await;
    ann.send_text(&room_id, "1", "lost").await;
    let lines = whole(&server, &admin, "?from=1&follow=false").await;
    let of = |offset: u64| {
        let line = lines.iter().find(|line| line["offset"] == offset).expect("it was told");
        line["position"].as_str().expect("a position").to_owned()
    };
    let (lost, before) = (lines.last().expect("an end")["position"].clone(), of(kept));
    server.stop();
    let (data_dir, to) = (server.data_dir().as_os_str(), kept.to_string());
    let restore = ["restore", "--data-dir"].map(OsStr::new);
    let restore = [&restore[..], &[data_dir, "--in-place".as_ref(), "--to".as_ref(), to.as_ref()]];
    let output = run_logcabin(restore.concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.restart().await;
    admin.http = server.http();
    let path = format!("{PATH}?since={}", lost.as_str().expect("a position"));
    let refused = admin.http.request("GET", &path, Some(&admin.access_token), None).await;
    let refused = refused.refused(400, "M_UNKNOWN_POS");
    let said = refused["error"].as_str().expect("a text");
    let since = said.trim_end_matches('.').rsplit(' ').next().expect("a position");
    let end = kinds(&server).len() as u64;
    for since in [since, &before] {
        let rest = whole(&server, &admin, &format!("?since={since}&follow=false")).await;
        assert_eq!(offsets(&rest), (kept + 1..=end).collect::<Vec<_>>(), "{said}");
    }
}

/// The example that copies the feed into a database.
struct Copier(Child);

impl Copier {
    fn start(server: &TestServer, admin: &User, database: &std::path::Path) -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/follow_changes.py");
        let mut command = Command::new("python3");
        command.arg(program).arg(server.base()).arg(database);
        command.env("LOGCABIN_TOKEN", &admin.access_token);
        Self(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("Python starts"))
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_copies_every_record_once_however_often_it_is_killed() {
    if !runs("python3", &["--version"]) {
        return skip("the example of the feed of changes", "there is no Python");
    }
    let mut server = TestServer::start().await;
    let (mut admin, mut ann) = (admin(&server).await, server.register("ann").await);
    let room_id = ann.create_room(json!({})).await;
    let directory = TempDir::new().expect("a temporary directory");
    let database = directory.path().join("changes.db");
    let query = |sql: &str| -> Vec<String> {
        let script = "import sys, sqlite3\n\
                      for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]): print(row[0])";
        let arguments = ["-c", script, &database.to_string_lossy(), sql];
        let output = Command::new("python3").args(arguments).output().expect("Python starts");
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    };
    for round in 0..4 {
        let copier = Copier::start(&server, &admin, &database);
        let before = query("SELECT offset FROM changes").len();
        for number in 0..50 {
            ann.send_text(&room_id, &format!("{round}-{number}"), "hello").await;
        }
        until("it copies", async || query("SELECT offset FROM changes").len() > before).await;
        drop(copier);
        if round == 2 {
            server.kill9();
            server.restart().await;
            (admin.http, ann.http) = (server.http(), server.http());
        }
    }
    let _copier = Copier::start(&server, &admin, &database);
    let all = kinds(&server);
    until("it has copied all", async || query("SELECT offset FROM changes").len() >= all.len())
        .await;
    let copied = query("SELECT kind FROM changes ORDER BY offset");
    assert_eq!(copied[..all.len()], all[..]);
    let offsets: BTreeSet<String> = query("SELECT offset FROM changes").into_iter().collect();
    assert!((1..=all.len()).all(|offset| offsets.contains(&offset.to_string())));
}
