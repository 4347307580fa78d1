//! Files of other homeservers, for users of this one.

use std::io::Cursor;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use image::{DynamicImage, ImageFormat, ImageReader};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

use super::authority::Authority;
use super::with_synapse::both;
use super::{Federated, authority};
use crate::administration::{command, done};
use crate::console::{PASSWORD, cookie, get, log_in, status};
use crate::harness::stand_in::{Service, reply};
use crate::harness::{User, encode, until};

const V1: &str = "/_matrix/client/v1/media";

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let picture = DynamicImage::new_rgb8(width, height);
    picture.write_to(&mut bytes, ImageFormat::Png).expect("a picture is encoded");
    bytes.into_inner()
}

/// Uploads a file, and gives what follows `mxc://`.
pub(super) async fn upload(user: &User, name: &str, content_type: &str, bytes: Vec<u8>) -> String {
    let path = format!("/_matrix/media/v3/upload?filename={name}");
    let headers = [("content-type", content_type)];
    let uploaded = user.send_bytes("POST", &path, &headers, bytes).await.json();
    let address = uploaded.ok_string("content_uri");
    address.strip_prefix("mxc://").expect("an address").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_synapse_are_served_as_own_ones_are_and_stay_when_it_is_gone() {
    let Some((_authority, mut cabin, synapse)) = both("Synapse").await else { return };
    let mut ann = cabin.server.register("ann").await;
    let bob = synapse.register("bob").await;
    let large: Vec<u8> = (0..5_000_000).map(|byte| (byte % 251) as u8).collect();
    let mut places = Vec::new();
    for (name, content_type, bytes) in [
        ("a.png", "image/png", png(800, 600)),
        ("b.html", "text/html", b"<script>alert(1)</script>".to_vec()),
        ("c.bin", "application/octet-stream", large),
    ] {
        let place = upload(&bob, name, content_type, bytes.clone()).await;
        let file = ann.download(&place).await;
        assert_eq!(file.parts.status, 200, "{name}: {}", file.bytes.escape_ascii());
        assert!(file.bytes == bytes, "{name}");
        assert_eq!(file.header("content-type"), content_type);
        let shown = if content_type == "image/png" { "inline" } else { "attachment" };
        let disposition = file.header("content-disposition");
        assert_eq!(disposition, format!("{shown}; filename={name}"));
        assert!(file.header("content-security-policy").starts_with("sandbox"));
        // From the copy: a part of it, and under another name.
        let range = [("range", "bytes=4-9")];
        let part = ann.send_bytes("GET", &format!("{V1}/download/{place}"), &range, "").await;
        assert_eq!((part.parts.status.as_u16(), &*part.bytes), (206, &bytes[4..10]));
        let path = format!("{V1}/download/{place}/mine.txt");
        let named = ann.send_bytes("GET", &path, &[], "").await;
        assert!(named.header("content-disposition").ends_with("filename=mine.txt"));
        places.push((place, bytes));
    }
    let picture = places[0].0.clone();
    let small = ann.thumbnail(&picture, "width=90&height=90&method=crop").await;
    let read = ImageReader::new(Cursor::new(&small.bytes)).with_guessed_format();
    let read = read.expect("a picture").decode().expect("a picture");
    assert_eq!((read.width(), read.height()), (96, 96));
    ann.thumbnail(&places[1].0, "width=90&height=90").await.json().refused(400, "M_UNKNOWN");

    let nothing = format!("{}/nothing", synapse.name);
    ann.download(&nothing).await.json().refused(404, "M_NOT_FOUND");
    // An id without a file, and then with one.
    let created = bob.send_bytes("POST", "/_matrix/media/v1/create", &[], "").await.json();
    let later = created.ok_string("content_uri")["mxc://".len()..].to_owned();
    let path = format!("{V1}/download/{later}?timeout_ms=10");
    let asked = ann.send_bytes("GET", &path, &[], "").await;
    asked.json().refused(504, "M_NOT_YET_UPLOADED");
    let path = format!("/_matrix/media/v3/upload/{later}");
    bob.send_bytes("PUT", &path, &[("content-type", "text/plain")], "late").await.json().ok();
    assert_eq!(&*ann.download(&later).await.bytes, b"late");

    // Nobody gets them without a login, and no homeserver gets them.
    let path = format!("/_matrix/media/v3/download/{picture}");
    ann.http.request("GET", &path, None, None).await.refused(404, "M_NOT_FOUND");

    drop(synapse);
    for restarted in [false, true] {
        for (place, bytes) in &places {
            assert!(ann.download(place).await.bytes == bytes, "{restarted}: {place}");
        }
        let again = ann.thumbnail(&picture, "width=90&height=90&method=crop").await;
        assert_eq!(again.bytes, small.bytes);
        let asked = ann.download(&format!("{nothing}{restarted}")).await.json();
        asked.refused(502, "M_CONNECTION_FAILED");
        cabin.server.kill9();
        cabin.server.restart().await;
        ann.http = cabin.server.http();
    }
}

/// What a homeserver does with a request for a file.
#[derive(Clone)]
enum Step {
    Send(Vec<u8>),
    /// Sends this for ever.
    Repeat(Vec<u8>),
    /// Sends this again and again, with such pauses.
    Drip(Vec<u8>, Duration),
    /// Says nothing more, and stays connected.
    Stall,
}

type Steps = Arc<dyn Fn(&str) -> Vec<Step> + Send + Sync>;

/// A homeserver that answers requests for files byte by byte, and nothing else.
struct Origin {
    name: String,
    asked: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

impl Origin {
    async fn start(authority: &Authority, steps: Steps) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let acceptor = authority.acceptor(&port.to_string());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let remembered = Arc::clone(&asked);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (acceptor, steps) = (acceptor.clone(), Arc::clone(&steps));
                let remembered = Arc::clone(&remembered);
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    // It ends when the other side hangs up.
                    let _ = answer(stream, &steps, &remembered).await;
                });
            }
        });
        Self { name: format!("localhost:{port}"), asked, _serving: serving }
    }

    fn asked(&self, path: &str) -> usize {
        let asked = self.asked.lock().expect("no panic");
        asked.iter().filter(|asked| asked.contains(path)).count()
    }

    fn place(&self, media_id: &str) -> String {
        format!("{}/{media_id}", self.name)
    }
}

async fn answer(
    mut stream: TlsStream<TcpStream>,
    steps: &Steps,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    asked.lock().expect("no panic").push(head.clone());
    let id = path.split('?').next().unwrap_or_default();
    for step in steps(id) {
        match step {
            Step::Send(bytes) => stream.write_all(&bytes).await?,
            Step::Repeat(bytes) => loop {
                stream.write_all(&bytes).await?;
            },
            Step::Drip(bytes, pause) => loop {
                stream.write_all(&bytes).await?;
                stream.flush().await?;
                tokio::time::sleep(pause).await;
            },
            Step::Stall => {
                stream.flush().await?;
                // Until the other side hangs up.
                let _ = stream.read_u8().await;
            }
        }
    }
    stream.shutdown().await
}

const HEAD: &str =
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: multipart/mixed; boundary=b\r\n";
const BEFORE: &str = "--b\r\nContent-Type: application/json\r\n\r\n{}\r\n--b\r\n";

fn send(text: impl AsRef<[u8]>) -> Step {
    Step::Send(text.as_ref().to_vec())
}

/// A proper answer with a file.
fn file(headers: &str, content: &str) -> Vec<Step> {
    vec![send(format!("{HEAD}\r\n{BEFORE}{headers}\r\n{content}\r\n--b--\r\n"))]
}

fn refusal(status: u16, errcode: &str) -> Vec<Step> {
    let body = json!({ "errcode": errcode }).to_string();
    vec![send(format!(
        "HTTP/1.1 {status} No\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ))]
}

/// How a homeserver that means harm answers.
fn hostile(path: &str) -> Vec<Step> {
    let id = path.rsplit('/').next().unwrap_or_default();
    let begin = send(format!("{HEAD}\r\n{BEFORE}\r\n"));
    match id {
        "endless" => vec![begin, Step::Repeat(vec![7; 1 << 16])],
        "endlessHeaders" => vec![send("HTTP/1.1 200 OK\r\n"), Step::Repeat(b"a: b\r\n".to_vec())],
        "endlessPart" => vec![send(format!("{HEAD}\r\n--b\r\n")), Step::Repeat(vec![b'x'; 999])],
        "endlessError" => {
            vec![
                send("HTTP/1.1 404 No\r\nConnection: close\r\n\r\n"),
                Step::Repeat(vec![b'x'; 999]),
            ]
        }
        "tooLong" => {
            let length = "Content-Length: 999999999999\r\n";
            vec![send(format!("{HEAD}{length}\r\n{BEFORE}\r\n")), Step::Stall]
        }
        "lying" => {
            let length = "Content-Length: 5000\r\n";
            vec![send(format!("{HEAD}{length}\r\n{BEFORE}\r\nhalf"))]
        }
        "half" => vec![begin, send("half of it")],
        "notParts" => vec![send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")],
        "onePart" => vec![send(format!("{HEAD}\r\n--b\r\n\r\nhello\r\n--b--\r\n"))],
        "garbage" => vec![send("\0\u{1}\u{2}hello\r\n\r\n")],
        "silent" => vec![Step::Stall],
        "stalling" => vec![begin, send("some"), Step::Stall],
        "dripping" => vec![begin, Step::Drip(b"x".to_vec(), Duration::from_millis(50))],
        "inner" => file("Location: https://10.0.0.1/secret\r\n", ""),
        "mapped" => file("Location: https://[::ffff:a00:1]/secret\r\n", ""),
        "metadata" => file("Location: https://169.254.169.254/latest\r\n", ""),
        "plain" => file("Location: http://example.org/\r\n", ""),
        "nowhere" => file("Location: file:///etc/passwd\r\n", ""),
        "gone" => refusal(404, "M_NOT_FOUND"),
        "notYet" => refusal(504, "M_NOT_YET_UPLOADED"),
        "refused" => refusal(403, "M_FORBIDDEN"),
        "broken" => refusal(500, "M_UNKNOWN"),
        "large" => refusal(502, "M_TOO_LARGE"),
        "limited" => refusal(429, "M_LIMIT_EXCEEDED"),
        "named" => file(
            "Content-Type: text/html\r\nContent-Disposition: inline; filename=\"a\\\"b.html\"\r\n",
            "<script>",
        ),
        "strange" => file("Content-Type: \u{7f}\r\nContent-Disposition: ;;;=\r\n", "strange"),
        _ => file("Content-Type: text/plain\r\n", id),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_means_harm_is_bounded_and_answered_for() {
    crate::harness::nodes::one_server!("each node has copies of its own");
    let Some(authority) = authority("hostile peers") else { return };
    let settings = [
        ("LOGCABIN_MEDIA_REMOTE_FILE_BYTES", "100000"),
        ("LOGCABIN_MEDIA_REMOTE_WAIT_SECONDS", "2"),
        ("LOGCABIN_RATE_LIMITS_ENABLED", "false"),
    ];
    let cabin = Federated::start_with(&authority, &settings).await;
    let ann = cabin.server.register("ann").await;
    for (id, status, errcode) in [
        ("endless", 502, "M_TOO_LARGE"),
        ("endlessHeaders", 502, "M_CONNECTION_FAILED"),
        ("endlessPart", 502, "M_CONNECTION_FAILED"),
        ("endlessError", 404, "M_NOT_FOUND"),
        ("tooLong", 502, "M_TOO_LARGE"),
        ("lying", 502, "M_CONNECTION_FAILED"),
        ("half", 502, "M_CONNECTION_FAILED"),
        ("notParts", 502, "M_CONNECTION_FAILED"),
        ("onePart", 502, "M_CONNECTION_FAILED"),
        ("garbage", 502, "M_CONNECTION_FAILED"),
        ("silent", 504, "M_CONNECTION_TIMEOUT"),
        ("stalling", 504, "M_CONNECTION_TIMEOUT"),
        ("dripping", 504, "M_CONNECTION_TIMEOUT"),
        // Not 504: no connection is tried.
        ("inner", 502, "M_CONNECTION_FAILED"),
        ("mapped", 502, "M_CONNECTION_FAILED"),
        ("plain", 502, "M_CONNECTION_FAILED"),
        ("metadata", 502, "M_CONNECTION_FAILED"),
        ("nowhere", 502, "M_CONNECTION_FAILED"),
        ("gone", 404, "M_NOT_FOUND"),
        ("notYet", 504, "M_NOT_YET_UPLOADED"),
        ("refused", 403, "M_FORBIDDEN"),
        ("broken", 502, "M_CONNECTION_FAILED"),
        ("large", 502, "M_TOO_LARGE"),
        ("limited", 429, "M_LIMIT_EXCEEDED"),
    ] {
        // Each its own homeserver: one that breaks off is not asked again at once.
        let origin = Origin::start(&authority, Arc::new(hostile)).await;
        let path = format!("{V1}/download/{}?timeout_ms=0", origin.place(id));
        let began = Instant::now();
        let refused = ann.send_bytes("GET", &path, &[], "").await.json();
        assert_eq!((refused.status, &refused.body["errcode"]), (status, &json!(errcode)), "{id}");
        // The bound is 2 s, with what a busy machine takes.
        assert!(began.elapsed() < Duration::from_secs(20), "{id}: {:?}", began.elapsed());
    }

    let origin = Origin::start(&authority, Arc::new(hostile)).await;
    let named = ann.download(&origin.place("named")).await;
    assert_eq!(named.header("content-disposition"), "attachment; filename=\"a\\\"b.html\"");
    assert_eq!(named.header("x-content-type-options"), "nosniff");
    let strange = ann.download(&origin.place("strange")).await;
    assert_eq!((strange.parts.status.as_u16(), &*strange.bytes), (200, &b"strange"[..]));
    // What is no id is not even asked for.
    for id in ["..%2F..%2Flog", "a%00b", "a%20b", "%2e%2e"] {
        ann.download(&origin.place(id)).await.json().refused(404, "M_NOT_FOUND");
    }
    assert_eq!(origin.asked("GET"), 2);
    // A file that it does not have is not asked for again at once.
    for _ in 0..3 {
        ann.download(&origin.place("gone")).await.json().refused(404, "M_NOT_FOUND");
    }
    assert_eq!(origin.asked("/gone"), 1);
    // Its errors are not those of this server, which stays as it was.
    assert!(!cabin.server.output().contains("ERROR"), "{}", cabin.server.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_fetched_once_however_many_ask_and_few_at_a_time() {
    crate::harness::nodes::one_server!("each node has copies of its own");
    let Some(authority) = authority("hostile peers") else { return };
    let origin = Origin::start(
        &authority,
        Arc::new(|path: &str| match path.rsplit('/').next().unwrap_or_default() {
            id if id.starts_with("slow") => vec![Step::Stall],
            _ => hostile(path),
        }),
    )
    .await;
    let settings =
        [("LOGCABIN_MEDIA_REMOTE_WAIT_SECONDS", "12"), ("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let (ann, bob) = (cabin.server.register("ann").await, cabin.server.register("bob").await);
    let place = origin.place("once");
    let asking = (0..20).map(|_| ann.download(&place));
    for answer in futures_util::future::join_all(asking).await {
        assert_eq!(&*answer.bytes, b"once");
    }
    assert_eq!(origin.asked("/once"), 1);

    // More at a time than a homeserver is asked for: the others wait, and are then refused.
    let places: Vec<_> = (0..30).map(|number| origin.place(&format!("slow{number}"))).collect();
    let asked = places.iter().map(|place| {
        let path = format!("{V1}/download/{place}?timeout_ms=0");
        let ann = &ann;
        async move { ann.send_bytes("GET", &path, &[], "").await }
    });
    let (answers, ()) = tokio::join!(futures_util::future::join_all(asked), async {
        until("the homeserver is asked", async || origin.asked("/slow") == 4).await;
        // Who asks another homeserver is not kept waiting.
        let other = Origin::start(&authority, Arc::new(hostile)).await;
        assert_eq!(&*bob.download(&other.place("other")).await.bytes, b"other");
    });
    let count = |status: u16| {
        answers.iter().filter(|answer| answer.parts.status.as_u16() == status).count()
    };
    assert_eq!(count(504) + count(429), 30, "{} {}", count(504), count(429));
    assert!(origin.asked("/slow") <= 16, "{}", origin.asked("/slow"));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_have_a_limit_and_administrators_decide_about_them() {
    crate::harness::nodes::one_server!("each node has copies of its own");
    let Some(authority) = authority("hostile peers") else { return };
    let origin = Origin::start(
        &authority,
        Arc::new(|path: &str| {
            let id = path.rsplit('/').next().unwrap_or_default();
            let id = if id == "twin" { "file39" } else { id };
            file("Content-Type: text/plain\r\n", &id.repeat(2000))
        }),
    )
    .await;
    let settings =
        [("LOGCABIN_MEDIA_REMOTE_CACHE_BYTES", "70000"), ("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let mut cabin = Federated::start_with(&authority, &settings).await;
    let mut ann = cabin.server.register("ann").await;
    let admin = cabin.server.register("admin").await;
    let data_dir = cabin.server.data_dir().to_owned();
    done(command("user", &data_dir, &format!("set-admin {}", admin.user_id), ""));
    let remote = cabin.server.data_dir().join("media/remote");
    let huge = origin.place(&"x".repeat(60));
    ann.download(&huge).await.json().refused(502, "M_TOO_LARGE");
    for number in 10..40 {
        let id = format!("file{number}");
        let got = ann.download(&origin.place(&id)).await;
        assert!(*got.bytes == *id.repeat(2000).as_bytes(), "{id}");
        let bytes = bytes_below(&remote);
        assert!(bytes <= 70_000, "{bytes}");
    }
    // The last ones are there, the first ones are fetched again.
    ann.download(&origin.place("file39")).await;
    ann.download(&origin.place("file10")).await;
    assert_eq!((origin.asked("/file39"), origin.asked("/file10")), (1, 2));

    let bad = origin.place("file39");
    let info = admin.administer("GET", &format!("/v1/media/{bad}"), None).await.ok();
    assert_eq!(info["media_info"]["media_length"], 12_000, "{info}");
    assert_eq!(info["media_info"]["media_origin"], origin.name, "{info}");
    let never = origin.place("never");
    let info = admin.administer("GET", &format!("/v1/media/{never}"), None).await;
    info.refused(404, "M_NOT_FOUND");
    for place in [&bad, &never] {
        let path = format!("/v1/media/quarantine/{place}");
        admin.administer("POST", &path, Some(json!({ "reason": "harmful" }))).await.ok();
    }
    // The same file is in quarantine wherever it is, here and elsewhere.
    let twin = origin.place("twin");
    let same = upload(&ann, "a.txt", "text/plain", "file39".repeat(2000).into_bytes()).await;
    for restarted in [false, true] {
        for place in [&bad, &never, &same, &twin] {
            ann.download(place).await.json().refused(404, "M_NOT_FOUND");
            let small = ann.thumbnail(place, "width=9&height=9").await;
            small.json().refused(404, "M_NOT_FOUND");
        }
        if !restarted {
            cabin.server.kill9();
            cabin.server.restart().await;
            ann.http = cabin.server.http();
        }
    }
    assert_eq!(origin.asked("/never"), 0);
    let run = |arguments: &str| done(command("media", &data_dir, arguments, ""));
    let listed = run(&format!("list mxc://{bad}"));
    assert!(listed.contains("in quarantine") && listed.contains(&bad), "{listed}");
    let released = run(&format!("unquarantine mxc://{bad}"));
    assert!(released.contains("1 file(s) can be downloaded"), "{released}");
    for place in [&bad, &same, &twin] {
        assert_eq!(ann.download(place).await.parts.status, 200, "{place}");
    }
    assert_eq!(origin.asked("/file39"), 1);

    // What is deleted is fetched again.
    let admin = User { http: cabin.server.http(), ..admin };
    let path = format!("/v1/media/{bad}");
    let gone: Value = admin.administer("DELETE", &path, None).await.ok();
    assert_eq!(gone, json!({ "deleted_media": ["file39"], "total": 1 }));
    admin.administer("DELETE", &path, None).await.refused(404, "M_NOT_FOUND");
    assert_eq!(ann.download(&bad).await.parts.status, 200);
    assert_eq!(origin.asked("/file39"), 2);
    let purge = "/v1/purge_media_cache?before_ts=";
    let gone = admin.administer("POST", &format!("{purge}631152000001"), None).await.ok();
    assert_eq!(gone["deleted"], 0);
    let gone = admin.administer("POST", &format!("{purge}9999999999999"), None).await.ok();
    assert!(gone["deleted"].as_u64().is_some_and(|deleted| deleted > 1), "{gone}");
    admin.administer("POST", &format!("{purge}5"), None).await.refused(400, "M_INVALID_PARAM");
    assert!(run("purge-remote").contains("Copies of 0 file(s)"));
    assert_eq!(ann.download(&bad).await.parts.status, 200);
    assert_eq!(origin.asked("/file39"), 3);
    assert_eq!(ann.download(&same).await.parts.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn homeservers_of_old_versions_and_ones_that_redirect_are_asked_as_they_can_answer() {
    let Some(authority) = authority("hostile peers") else { return };
    // Where files are that the homeserver redirects to.
    let store = Origin::start(&authority, Arc::new(|path: &str| match path {
        "/moved" => vec![send(
            "HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
        )],
        "/there" => vec![send(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: image/png\r\n\
             Content-Disposition: attachment; filename=there.png\r\nContent-Length: 5\r\n\r\nthere",
        )],
        _ => vec![send(format!(
            "HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: {path}\r\nContent-Length: 0\r\n\r\n"
        ))],
    }))
    .await;
    let at = store.name.clone();
    // And one that anybody on the way could stand in for.
    let asked_in_the_clear = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked_in_the_clear);
    let plain = Service::start(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(reply(200, "text/plain", "plain"))
    })
    .await;
    let in_the_clear = plain.address;
    let origin = Origin::start(
        &authority,
        Arc::new(move |path: &str| match path {
            "/_matrix/federation/v1/media/download/plain" => {
                file(&format!("Location: http://{in_the_clear}/plain\r\n"), "")
            }
            "/_matrix/federation/v1/media/download/moved" => {
                file(&format!("Location: https://{at}/moved\r\n"), "")
            }
            "/_matrix/federation/v1/media/download/circle" => {
                file(&format!("Location: https://{at}/circle\r\n"), "")
            }
            "/_matrix/federation/v1/media/download/old" => refusal(404, "M_UNRECOGNIZED"),
            "/_matrix/federation/v1/media/download/gone" => refusal(404, "M_UNRECOGNIZED"),
            path if path.starts_with("/_matrix/media/v3/download/") && path.ends_with("/old") => {
                vec![send(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: image/gif\r\n\
                 Content-Disposition: inline; filename=old.gif\r\n\r\nold",
                )]
            }
            _ => refusal(404, "M_NOT_FOUND"),
        }),
    )
    .await;
    let ca = authority.certificate().display().to_string();
    let settings =
        [("LOGCABIN_OUTBOUND_CERTIFICATES", &*ca), ("LOGCABIN_MEDIA_UNAUTHENTICATED", "all")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let ann = cabin.server.register("ann").await;
    for (id, content_type, name, bytes) in
        [("moved", "image/png", "there.png", "there"), ("old", "image/gif", "old.gif", "old")]
    {
        let file = ann.download(&origin.place(id)).await;
        assert_eq!(String::from_utf8_lossy(&file.bytes), bytes);
        assert_eq!(file.header("content-type"), content_type);
        assert_eq!(file.header("content-disposition"), format!("inline; filename={name}"));
    }
    assert_eq!(origin.asked("allow_remote=false"), 1);
    let signed = origin.asked.lock().expect("no panic").clone();
    let signed: Vec<_> = signed.iter().map(|head| head.contains("X-Matrix")).collect();
    assert_eq!(signed, [true, true, false], "only the new endpoint gets to know who asks");
    ann.download(&origin.place("gone")).await.json().refused(404, "M_NOT_FOUND");
    let circle = ann.download(&origin.place("circle")).await;
    circle.json().refused(502, "M_CONNECTION_FAILED");
    assert_eq!(store.asked("/circle"), 6);
    ann.download(&origin.place("plain")).await.json().refused(502, "M_CONNECTION_FAILED");
    assert_eq!(asked_in_the_clear.load(Ordering::SeqCst), 0, "it is asked without TLS");
    assert_eq!(store.asked("X-Matrix"), 0, "a signature is for its homeserver only");

    // Without a login, as far as the settings say, and as far as the caller allows.
    let old = format!("/_matrix/media/v3/download/{}", origin.place("old"));
    assert_eq!(&*ann.http.raw("GET", &old, &[], "").await.bytes, b"old");
    let path = format!("{old}?allow_remote=false");
    ann.http.request("GET", &path, None, None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_login_only_what_was_fetched_before_the_freeze_is_served() {
    let Some(authority) = authority("hostile peers") else { return };
    let origin = Origin::start(&authority, Arc::new(hostile)).await;
    let soon = time::OffsetDateTime::now_utc() + Duration::from_secs(3600);
    for (moment, status) in [(soon, 200), (soon - Duration::from_secs(7200), 404)] {
        let moment = moment.format(&time::format_description::well_known::Rfc3339).expect("a time");
        let settings = [("LOGCABIN_MEDIA_UNAUTHENTICATED", &*moment)];
        let cabin = Federated::start_with(&authority, &settings).await;
        let ann = cabin.server.register("ann").await;
        let path = format!("/_matrix/media/v3/download/{}", origin.place("file"));
        for fetched in [false, true] {
            let answer = ann.http.raw("GET", &path, &[], "").await;
            assert_eq!(answer.parts.status, status, "{moment} {fetched}");
            ann.download(&origin.place("file")).await;
        }
    }
}

/// The bytes of all files in a directory, apart from those on their way.
fn bytes_below(directory: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_below(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_shows_copies_also_in_quarantine_and_fetches_none() {
    crate::harness::nodes::one_server!("each node has copies of its own");
    let Some(authority) = authority("the console") else { return };
    let picture = |_: &str| {
        let head = format!("{HEAD}\r\n{BEFORE}Content-Type: image/png\r\n\r\n");
        vec![send(head), send(png(40, 30)), send("\r\n--b--\r\n")]
    };
    let origin = Origin::start(&authority, Arc::new(picture)).await;
    let cabin = Federated::start_with(&authority, &[("LOGCABIN_CONSOLE_ENABLED", "true")]).await;
    let ann = cabin.server.register("ann").await;
    let admin = cabin.server.register("admin").await;
    let data_dir = cabin.server.data_dir().to_owned();
    done(command("user", &data_dir, &format!("set-admin {}", admin.user_id), ""));
    let mine = cookie(&log_in(&cabin.server, "admin", PASSWORD, &[]).await);
    let place = origin.place("view");
    let (server, id) = place.split_once('/').expect("a place");
    let path = format!("/thumbnail/{}/{id}?width=320", encode(server));
    let shown = async || get(&cabin.server, &path, &mine).await;
    assert_eq!(status(&shown().await), 404);
    assert_eq!(origin.asked("/view"), 0);
    assert_eq!(ann.download(&place).await.parts.status, 200);
    assert_eq!(status(&shown().await), 200);
    done(command("media", &data_dir, &format!("quarantine mxc://{place}"), ""));
    ann.download(&place).await.json().refused(404, "M_NOT_FOUND");
    let copy = shown().await;
    assert_eq!((status(&copy), copy.header("content-type")), (200, "image/jpeg"));
    assert_eq!(origin.asked("/view"), 1);
}
