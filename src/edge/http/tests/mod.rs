//! The edge as clients meet it: a program of a few endpoints behind real connections.

mod app;
mod connections;
mod turns;

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use futures_util::{StreamExt as _, stream};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::Frame;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

use self::app::{Fake, HELD_BEGUN, NEWS_AWAITED, NEWS_BEGUN, WAIT_ENDED, put_state, table, who};
use super::*;
use logcabin_base::rate::Rate;
use logcabin_config::Config;

type Body = BoxBody<Bytes, Infallible>;

struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
    client: Client<HttpConnector, Body>,
}

impl Running {
    async fn start() -> Self {
        Self::configured(|config| config.rate_limits.enabled = false).await
    }

    async fn configured(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.http.max_body_bytes = 65_536;
        config.media.max_upload_bytes = 1000;
        config.http.shutdown_seconds = 2;
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = Shutdown::when(async move {
            let _ = stopped.await;
        });
        let edge = Arc::new(Edge::new(Arc::new(Fake), table(), &config, shutdown).unwrap());
        let serving = tokio::spawn(serve::run(vec![Arc::new(listener.into())], edge, |_| {}));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, stop: Some(stop), serving, client }
    }

    async fn ask(&self, method: Method, path: &str, token: Option<&str>, body: &str) -> Answer {
        let mut request =
            Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = Full::new(Bytes::from(body.to_owned())).boxed();
        self.send(request.body(body).unwrap()).await
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        Answer::read(self.client.request(request).await.unwrap()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, Some("good"), "").await
    }
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: Bytes,
}

impl Answer {
    async fn read(response: http::Response<hyper::body::Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let answer = Self { status: parts.status, headers: parts.headers, body };
        // True of every answer in every test.
        let header = |name: &str| answer.headers.get(name).unwrap().to_str().unwrap();
        assert_eq!(header("access-control-allow-origin"), "*");
        assert_eq!(header("access-control-allow-methods"), "GET, POST, PUT, DELETE, OPTIONS");
        assert_eq!(
            header("access-control-allow-headers"),
            "X-Requested-With, Content-Type, Authorization"
        );
        assert!(!header("x-request-id").is_empty());
        assert!(!header("content-type").is_empty());
        if !answer.status.is_success() {
            assert_eq!(header("content-type"), "application/json");
            assert!(answer.json()["error"].is_string());
        }
        answer
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn brief(&self) -> (u16, String) {
        let json: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        (self.status.as_u16(), json["errcode"].as_str().unwrap_or_default().to_owned())
    }
}

fn is(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.brief(), (status, code.to_owned()), "{answer:?}");
}

#[tokio::test]
async fn long_answers_are_compressed_for_those_who_ask() {
    let get = async |server: &Running, path: &str, accepted: &str| {
        let request = Request::get(format!("http://{}{path}", server.address))
            .header(header::ACCEPT_ENCODING, accepted);
        let body = Full::new(Bytes::new()).boxed();
        let answer = server.send(request.body(body).unwrap()).await;
        let header =
            |name| answer.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let (encoding, vary) = (header(header::CONTENT_ENCODING), header(header::VARY));
        if let Some(length) = header(header::CONTENT_LENGTH) {
            assert_eq!(length, answer.body.len().to_string());
        }
        let plain = match encoding.as_deref() {
            None => answer.body.to_vec(),
            Some("zstd") => zstd::stream::decode_all(&*answer.body).unwrap(),
            Some("gzip") => {
                let mut plain = Vec::new();
                let mut decoder = flate2::read::GzDecoder::new(&*answer.body);
                std::io::Read::read_to_end(&mut decoder, &mut plain).unwrap();
                plain
            }
            Some(other) => panic!("{other}"),
        };
        (encoding.unwrap_or_default(), vary.is_some(), plain.len())
    };
    let server = Running::start().await;
    for (path, accepted, encoding, varies, length) in [
        ("/long/4095", "gzip, zstd", "", false, 4095),
        ("/long/4096", "gzip, zstd", "zstd", true, 4096),
        ("/long/4096", "gzip", "gzip", true, 4096),
        ("/long/4096", "br", "", true, 4096),
        ("/long/300000", "gzip", "gzip", true, 300_000),
        ("/long/300000", "zstd", "zstd", true, 300_000),
        // What comes in pieces, as files do, stays as it is.
        ("/page/a/x/b", "gzip", "", false, 4),
    ] {
        let answer = get(&server, path, accepted).await;
        assert_eq!(answer, (encoding.to_owned(), varies, length), "{path} {accepted}");
    }
    let plain = Running::configured(|config| config.http.compression = false).await;
    assert_eq!(get(&plain, "/long/4096", "gzip").await, (String::new(), true, 4096));
}

#[tokio::test]
async fn paths_and_methods_are_told_apart() {
    let server = Running::start().await;
    for path in [
        "/_svc/client/versions",
        "/_matrix/client/versions",
        "/_matrix/client/versions/",
        "/_matrix/client/v3/account/whoami",
        "/_svc/client/r0/account/whoami",
        "/_matrix/client/v3/pushrules/",
        "/_matrix/client/v3/pushrules",
    ] {
        is(&server.get(path).await, 200, "");
    }
    for path in ["/", "//", "/_matrix", "/_other/client/versions", "/_matrix/client/versions//"] {
        is(&server.get(path).await, 404, "M_UNRECOGNIZED");
    }
    let answer = server.ask(Method::POST, "/_matrix/client/versions", None, "{}").await;
    is(&answer, 405, "M_UNRECOGNIZED");
    let answer = server.ask(Method::PATCH, "/_svc/client/v3/login", None, "{}").await;
    is(&answer, 405, "M_UNRECOGNIZED");
}

#[tokio::test]
async fn path_segments_are_decoded_after_matching() {
    let server = Running::start().await;
    let answer = server.get("/_matrix/client/v3/directory/room/%23a%2Fb%3Aexample.org").await;
    assert_eq!(answer.json()["alias"], "#a/b:example.org");
    let answer = server.get("/_matrix/client/v3/directory/room/%FF").await;
    is(&answer, 400, "M_INVALID_PARAM");
    let answer = server.get("/_matrix/client/v3/directory/room/nothing").await;
    is(&answer, 400, "M_INVALID_PARAM");
    let answer = server.get("/page/1%2F2/x/%F0%9F%90%BB").await;
    assert_eq!(answer.body, "1/2;🐻;");
    assert_eq!(answer.headers["content-type"], "text/plain");
}

#[tokio::test]
async fn an_empty_state_key_has_paths_of_its_own() {
    let server = Running::start().await;
    let room = "/_svc/client/v3/rooms/!r:example.org/state";
    for (path, key) in [("m.room.topic", ""), ("m.room.topic/", ""), ("m.room.topic/k%2F", "k/")] {
        let path = format!("{room}/{path}");
        assert_eq!(server.get(&path).await.json()["key"], key);
        let answer = server.ask(Method::PUT, &path, Some("good"), "{}").await;
        assert_eq!(answer.json()["key"], key);
    }
}

#[tokio::test]
async fn tokens_are_asked_for_where_they_are_needed() {
    let server = Running::start().await;
    let whoami = "/_matrix/client/v3/account/whoami";
    let ask = |token| server.ask(Method::GET, whoami, token, "");
    is(&ask(None).await, 401, "M_MISSING_TOKEN");
    is(&ask(Some("bad")).await, 401, "M_UNKNOWN_TOKEN");
    assert_eq!(ask(Some("bad")).await.json()["soft_logout"], false);
    assert_eq!(ask(Some("old")).await.json()["soft_logout"], true);
    assert_eq!(ask(Some("good")).await.json()["user_id"], "@ann:example.org");
    let in_query = format!("{whoami}?access_token=good");
    is(&server.ask(Method::GET, &in_query, None, "").await, 200, "");
    let versions = "/_matrix/client/versions";
    is(&server.ask(Method::GET, versions, None, "").await, 200, "");
    // The token of an older session does not keep anyone from logging in.
    let body = r#"{"type":"m.login.password","user":"a","password":"b"}"#;
    let answer = server.ask(Method::POST, "/_matrix/client/v3/login", Some("bad"), body).await;
    is(&answer, 403, "M_FORBIDDEN");
}

#[tokio::test]
async fn bad_bodies_are_told_apart() {
    let server = Running::start().await;
    let login = |body: &'static str| server.ask(Method::POST, "/_svc/client/v3/login", None, body);
    is(&login("").await, 400, "M_NOT_JSON");
    is(&login("{}").await, 400, "M_BAD_JSON");
    is(&login("[]").await, 400, "M_BAD_JSON");
    is(&login("{\"type\":").await, 400, "M_NOT_JSON");
    let join = "/_matrix/client/v3/rooms/!r:example.org/join";
    is(&server.ask(Method::POST, join, Some("good"), "").await, 200, "");
    is(&server.ask(Method::POST, join, Some("good"), "null").await, 400, "M_BAD_JSON");
    let bomb = format!("{{\"a\":{}", "[".repeat(50_000));
    is(&server.ask(Method::POST, join, Some("good"), &bomb).await, 400, "M_BAD_JSON");
}

#[tokio::test]
async fn options_runs_nothing_anywhere() {
    let server = Running::start().await;
    for path in ["/_matrix/client/v3/account/whoami", "/nowhere", "/%FF"] {
        let answer = server.ask(Method::OPTIONS, path, None, "not json").await;
        is(&answer, 200, "");
        assert_eq!(answer.body, "{}");
    }
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let server = Running::start().await;
    let whole = server.get("/_matrix/client/versions").await;
    let head = server.ask(Method::HEAD, "/_matrix/client/versions", None, "").await;
    is(&head, 200, "");
    assert!(head.body.is_empty());
    assert_eq!(head.headers["content-length"], whole.body.len().to_string());
}

#[tokio::test]
async fn bodies_are_read_however_they_are_sent() {
    let server = Running::start().await;
    let join = format!("http://{}/_matrix/client/v3/rooms/!r:example.org/join", server.address);
    let chunked = |pieces: Vec<Bytes>| {
        let frames = stream::iter(pieces).map(|piece| Ok(Frame::data(piece)));
        Request::post(&join)
            .header(header::AUTHORIZATION, "Bearer good")
            .body(BodyExt::boxed(StreamBody::new(frames)))
            .unwrap()
    };
    let pieces = ["{\"rea", "son\":", "\"x\"}"].map(Bytes::from).to_vec();
    is(&server.send(chunked(pieces)).await, 200, "");
    let piece = Bytes::from(vec![b' '; 50_000]);
    is(&server.send(chunked(vec![piece; 30])).await, 413, "M_TOO_LARGE");
    let large = " ".repeat(65_537);
    let path = "/_matrix/client/v3/rooms/!r:example.org/join";
    is(&server.ask(Method::POST, path, Some("good"), &large).await, 413, "M_TOO_LARGE");
    is(&server.ask(Method::POST, path, Some("good"), &large[1..]).await, 200, "");
}

#[tokio::test]
async fn uploads_are_bytes_with_a_limit_of_their_own() {
    let server = Running::start().await;
    let path = "/_matrix/media/v3/upload";
    let answer = server.ask(Method::POST, path, Some("good"), "[not json").await;
    assert_eq!(answer.json()["content_uri"], "mxc://x/9");
    let answer = server.ask(Method::POST, path, Some("good"), &"x".repeat(1001)).await;
    is(&answer, 413, "M_TOO_LARGE");
}

#[tokio::test]
async fn a_panic_costs_one_request() {
    let server = Running::start().await;
    let send = "/_matrix/client/v3/rooms/!r:example.org/send/m.room.message";
    let answer =
        server.ask(Method::PUT, &format!("{send}/panic"), Some("good"), "{\"body\":\"x\"}").await;
    is(&answer, 500, "M_UNKNOWN");
    is(&server.ask(Method::PUT, &format!("{send}/1"), Some("good"), "{}").await, 200, "");
}

#[tokio::test]
async fn too_many_requests_are_refused_with_the_time_to_wait() {
    let server = Running::configured(|config| {
        config.rate_limits.address = Rate::per_second(1, 2);
    })
    .await;
    let body = r#"{"type":"m.login.password","user":"a","password":"b"}"#;
    let login = || server.ask(Method::POST, "/_svc/client/v3/login", None, body);
    is(&login().await, 403, "M_FORBIDDEN");
    is(&login().await, 403, "M_FORBIDDEN");
    let refused = login().await;
    is(&refused, 429, "M_LIMIT_EXCEEDED");
    assert!(refused.json()["retry_after_ms"].as_u64().unwrap() <= 1000);
    assert_eq!(refused.headers["retry-after"], "1");
    // Others, and endpoints without limits, are not concerned.
    is(&server.get("/_matrix/client/v3/account/whoami").await, 200, "");
    is(&server.ask(Method::GET, "/_svc/client/versions", None, "").await, 200, "");
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_are_told_apart() {
    for (trusted, second) in [(true, 403), (false, 429)] {
        let server = Running::configured(|config| {
            config.rate_limits.address = Rate::per_second(1, 1);
            config.server.trust_forwarded_for = trusted;
        })
        .await;
        for (client, status) in [("9.9.9.9, 10.0.0.1", 403), ("9.9.9.9, 10.0.0.2", second)] {
            let body = r#"{"type":"m.login.password","user":"a","password":"b"}"#;
            let request = Request::post(format!("http://{}/_svc/client/v3/login", server.address))
                .header("x-forwarded-for", client)
                .body(Full::new(Bytes::from(body)).boxed())
                .unwrap();
            assert_eq!(server.send(request).await.status, status, "{client}");
        }
    }
}

#[test]
fn a_proxy_may_add_the_port_to_an_address() {
    for (entry, address) in [
        ("203.0.113.12", Some("203.0.113.12")),
        (" 203.0.113.12:5555 ", Some("203.0.113.12")),
        ("2001:db8::6", Some("2001:db8::6")),
        ("[2001:db8::6]", Some("2001:db8::6")),
        ("[2001:db8::6]:443", Some("2001:db8::6")),
        ("203.0.113.12:", None),
        ("[203.0.113.12", None),
        ("unknown", None),
        ("", None),
    ] {
        let expected = address.map(|address| address.parse().unwrap());
        assert_eq!(edge::forwarded_address(entry), expected, "{entry}");
    }
}

#[tokio::test]
async fn http2_without_tls_is_spoken() {
    let server = Running::start().await;
    let client: Client<_, Body> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    for method in [Method::GET, Method::HEAD] {
        let request = Request::builder()
            .method(&method)
            .uri(format!("http://{}/_svc/client/versions", server.address))
            .body(Full::default().boxed())
            .unwrap();
        let response = client.request(request).await.unwrap();
        assert_eq!(response.version(), http::Version::HTTP_2);
        let answer = Answer::read(response).await;
        is(&answer, 200, "");
        assert_eq!(answer.body.is_empty(), method == Method::HEAD);
    }
}

async fn exchange(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test]
async fn connections_are_kept_alive() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = "GET /_svc/client/versions HTTP/1.1\r\nHost: x\r\n\r\n";
    for _ in 0..3 {
        assert!(exchange(&mut stream, request).await.starts_with("HTTP/1.1 200"));
    }
    // A refusal before the body is read does not end the connection either.
    let refused = "POST /_svc/client/v3/rooms/!r:x/join HTTP/1.1\r\nHost: x\r\n\
                   Content-Length: 2\r\n\r\n{}";
    assert!(exchange(&mut stream, refused).await.starts_with("HTTP/1.1 401"));
    assert!(exchange(&mut stream, request).await.starts_with("HTTP/1.1 200"));
}

/// The status and the body of the next answer on a connection.
async fn next_answer(stream: &mut TcpStream) -> (u16, String) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    (head[9..12].parse().unwrap(), String::from_utf8(body).unwrap())
}

fn waited(millis: u64, sent: usize) -> (u16, String) {
    (200, format!("{{\"waited\":{millis},\"sent\":{sent}}}"))
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

const A_WHILE: Duration = Duration::from_millis(50);

#[tokio::test]
async fn a_connection_goes_on_after_requests_that_wait() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for millis in [0, 1, 100, 0, 100] {
        stream.write_all(get(&format!("/wait/{millis}")).as_bytes()).await.unwrap();
        assert_eq!(next_answer(&mut stream).await, waited(millis, 0));
    }
    // With a body, in pieces, and one that does not say its length.
    let post = |headers: &str| format!("POST /wait/100 HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n");
    let chunked = ["3\r\nabc\r\n", "0\r\n\r\n"];
    for (head, pieces, length) in [
        (post("Content-Length: 6"), ["abc", "def"], 6),
        (post("Transfer-Encoding: chunked"), chunked, 3),
        (post("Connection: Keep-Alive\r\nContent-Length: 0"), ["", ""], 0),
    ] {
        for piece in [&head[..], pieces[0], pieces[1]] {
            stream.write_all(piece.as_bytes()).await.unwrap();
            tokio::time::sleep(A_WHILE).await;
        }
        assert_eq!(next_answer(&mut stream).await, waited(100, length));
    }
    let head = "HEAD /wait/100 HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = exchange(&mut stream, head).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    stream.write_all(get("/wait/1").as_bytes()).await.unwrap();
    assert_eq!(next_answer(&mut stream).await, waited(1, 0));
}

#[tokio::test]
async fn requests_ahead_of_their_turn_are_answered_in_turn() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let third = get("/wait/3");
    let (beginning, end) = third.split_at(10);
    // All at once, and while the first waits; the third only begins.
    for pause in [Duration::ZERO, A_WHILE] {
        stream.write_all(get("/wait/200").as_bytes()).await.unwrap();
        tokio::time::sleep(pause).await;
        stream.write_all(get("/wait/100").as_bytes()).await.unwrap();
        stream.write_all(get("/wait/50").as_bytes()).await.unwrap();
        for millis in [200, 100, 50] {
            assert_eq!(next_answer(&mut stream).await, waited(millis, 0));
        }
        stream.write_all((get("/wait/100") + beginning).as_bytes()).await.unwrap();
        tokio::time::sleep(4 * A_WHILE).await;
        stream.write_all(end.as_bytes()).await.unwrap();
        assert_eq!(next_answer(&mut stream).await, waited(100, 0));
        assert_eq!(next_answer(&mut stream).await, waited(3, 0));
    }
}

#[tokio::test]
async fn the_rest_of_a_refused_request_is_not_taken_for_another() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let smuggled = get("/wait/7");
    let refused = format!(
        "POST /_svc/client/v3/rooms/!r:x/join HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        smuggled.len()
    );
    stream.write_all(refused.as_bytes()).await.unwrap();
    assert_eq!(next_answer(&mut stream).await.0, 401);
    // The server may have closed the connection instead of waiting for the rest.
    let _ = stream.write_all((smuggled + &get("/wait/8")).as_bytes()).await;
    let mut rest = vec![0; 4096];
    let length = stream.read(&mut rest).await.unwrap_or(0);
    let rest = String::from_utf8_lossy(&rest[..length]);
    assert!(!rest.contains("\"waited\":7"), "{rest}");
}

#[tokio::test]
async fn a_connection_ends_after_a_wait_if_the_client_said_so() {
    let server = Running::start().await;
    for head in [
        "GET /wait/100 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "GET /wait/100 HTTP/1.0\r\nHost: x\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(next_answer(&mut stream).await, waited(100, 0));
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "{head}");
    }
}

#[tokio::test]
async fn a_slow_reader_gets_the_whole_response() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for length in [10_000_000, 20, 10_000_000] {
        stream.write_all(get(&format!("/long/{length}")).as_bytes()).await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        let (status, body) = next_answer(&mut stream).await;
        assert_eq!((status, body.len()), (200, length));
    }
}

#[tokio::test]
async fn a_wait_is_given_up_when_its_client_hangs_up() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(get("/wait/60000").as_bytes()).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    drop(stream);
    tokio::time::timeout(Duration::from_secs(10), WAIT_ENDED.notified()).await.unwrap();
}

#[tokio::test]
async fn stopping_answers_waiting_requests_and_closes_idle_connections() {
    let mut server = Running::start().await;
    let mut waiting = TcpStream::connect(server.address).await.unwrap();
    waiting.write_all(get("/wait/30000").as_bytes()).await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(get("/wait/0").as_bytes()).await.unwrap();
    assert_eq!(next_answer(&mut idle).await, waited(0, 0));
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    server.stop.take().unwrap().send(()).unwrap();
    assert_eq!(next_answer(&mut waiting).await, waited(30_000, 0));
    for stream in [&mut waiting, &mut idle, &mut silent] {
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    tokio::time::timeout(Duration::from_secs(1), server.serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_that_say_too_little_are_closed() {
    let server = Running::configured(|config| {
        config.http.header_timeout_seconds = 1;
        config.http.body_timeout_seconds = 1;
    })
    .await;
    let unfinished = "GET / HTTP/1.1\r\nHost: x\r\n";
    let idle = format!("{unfinished}\r\n");
    for beginning in ["", "P", unfinished, &idle] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest));
        assert!(closed.await.is_ok(), "after {beginning:?}");
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let slow = "PUT /_svc/client/v3/rooms/!r:x/send/m/1 HTTP/1.1\r\nHost: x\r\n\
                Authorization: Bearer good\r\nContent-Length: 20\r\n\r\n{";
    assert!(exchange(&mut stream, slow).await.starts_with("HTTP/1.1 408"));
}

#[tokio::test]
async fn stopping_lets_requests_finish_and_long_polls_end() {
    let mut server = Running::start().await;
    let send = "/_matrix/client/v3/rooms/!r:example.org/send/m.room.message";
    let (slow, poll) = (format!("{send}/300"), format!("{send}/poll"));
    let stop = server.stop.take().unwrap();
    let address = server.address;
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.send(()).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(TcpStream::connect(address).await.is_err(), "no more are accepted");
    };
    let (slow, poll, ()) = tokio::join!(
        server.ask(Method::PUT, &slow, Some("good"), "{}"),
        server.ask(Method::PUT, &poll, Some("good"), "{}"),
        stopping,
    );
    is(&slow, 200, "");
    is(&poll, 200, "");
    tokio::time::timeout(Duration::from_secs(1), server.serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn stopping_does_not_wait_for_ever() {
    let mut server = Running::configured(|config| config.http.shutdown_seconds = 1).await;
    let path = "/_matrix/client/v3/rooms/!r:example.org/send/m.room.message/60000";
    let request = Request::put(format!("http://{}{path}", server.address))
        .header(header::AUTHORIZATION, "Bearer good")
        .body(Full::new(Bytes::from("{}")).boxed())
        .unwrap();
    let cut_off = tokio::spawn(server.client.request(request));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.take().unwrap().send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(3), server.serving).await.unwrap().unwrap();
    assert!(cut_off.await.unwrap().is_err());
}

/// The head of the next answer on a connection; the body is thrown away.
async fn next_head(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    head
}

#[tokio::test]
async fn a_connection_goes_on_after_a_refusal_whose_body_comes_later() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = "x".repeat(100_000);
    for (line, status) in [
        ("POST /_svc/client/v3/rooms/!r:x/join", "401"),
        ("POST /_svc/client/v3/nowhere", "404"),
        ("POST /_svc/client/v3/account/whoami", "405"),
        ("POST /_svc/media/v3/upload", "401"),
    ] {
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        // As clients do that write the head first.
        tokio::time::sleep(A_WHILE).await;
        stream.write_all(body.as_bytes()).await.unwrap();
        let head = next_head(&mut stream).await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{line}: {head}");
        assert!(!head.contains("connection: close"), "{line}: {head}");
        stream.write_all(get("/_svc/client/versions").as_bytes()).await.unwrap();
        assert!(next_head(&mut stream).await.starts_with("http/1.1 200"), "after {line}");
    }
}

#[tokio::test]
async fn a_client_whose_upload_is_refused_early_can_read_why() {
    let server = Running::start().await;
    for _ in 0..5 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let body = vec![b'x'; 8 * 1024 * 1024];
        let head = format!(
            "POST /_svc/media/v3/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer old\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // Sends all of it before it reads.
        stream.write_all(&body).await.unwrap();
        let head = next_head(&mut stream).await;
        assert!(head.starts_with("http/1.1 401"), "{head}");
        assert!(head.contains("connection: close"), "{head}");
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the connection ends");
    }
}

#[tokio::test]
async fn a_client_that_expects_100_continue_is_refused_before_it_sends_the_body() {
    let server = Running::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /_svc/media/v3/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\n\
                Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let head = next_head(&mut stream).await;
    assert!(head.starts_with("http/1.1 401") && head.contains("connection: close"), "{head}");
}

#[tokio::test]
async fn a_body_that_arrives_too_slowly_is_refused() {
    let server = Running::configured(|config| {
        config.rate_limits.enabled = false;
        config.http.body_timeout_seconds = 1;
        config.http.min_body_bytes_per_second = 1000;
    })
    .await;
    let began = std::time::Instant::now();
    for (path, token) in [("client/v3/login", "none"), ("media/v3/upload", "good")] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /_svc/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: 900\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reading, mut writing) = stream.split();
        let drip = async {
            // Each byte comes long before any time-out between two of them.
            while writing.write_all(b"{").await.is_ok() {
                tokio::time::sleep(A_WHILE).await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = vec![0; 4096];
        let length = tokio::select! {
            length = reading.read(&mut answer) => length.unwrap(),
            () = drip => unreachable!("it waits forever"),
        };
        let answer = String::from_utf8_lossy(&answer[..length]).to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 408"), "{path}: {answer}");
        assert!(answer.contains("connection: close"), "{path}: {answer}");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // A body that is slow, but not too slow, is read.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /_svc/media/v3/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\
                Content-Length: 900\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..9 {
        stream.write_all(&[b'x'; 100]).await.unwrap();
        tokio::time::sleep(A_WHILE).await;
    }
    assert!(next_head(&mut stream).await.starts_with("http/1.1 200"));
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let server = Running::configured(|config| config.http.max_connections = 4).await;
    let versions = get("/_svc/client/versions");
    let (mut one, mut two) = (
        TcpStream::connect(server.address).await.unwrap(),
        TcpStream::connect(server.address).await.unwrap(),
    );
    for stream in [&mut one, &mut two] {
        assert!(exchange(stream, &versions).await.starts_with("HTTP/1.1 200"));
    }
    let mut three = TcpStream::connect(server.address).await.unwrap();
    let _ = three.write_all(versions.as_bytes()).await;
    assert_eq!(three.read(&mut [0]).await.unwrap_or(0), 0, "a third is closed");
    // Others are let in meanwhile: on Linux all of 127.0.0.0/8 is this machine.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let mut other = socket.connect(server.address).await.unwrap();
    assert!(exchange(&mut other, &versions).await.starts_with("HTTP/1.1 200"));
    drop(one);
    let let_in = async || {
        let mut again = TcpStream::connect(server.address).await.unwrap();
        let _ = again.write_all(versions.as_bytes()).await;
        again.read(&mut [0; 12]).await.unwrap_or(0) > 0
    };
    // The server learns of it in its own time.
    while !let_in().await {}
}

#[tokio::test]
async fn behind_a_trusted_proxy_requests_in_progress_count_by_client() {
    let server = Running::configured(|config| {
        config.server.trust_forwarded_for = true;
        config.http.max_connections_per_address = 1;
    })
    .await;
    let ask = |path: &str, client: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n")
    };
    let mut waiting = TcpStream::connect(server.address).await.unwrap();
    waiting.write_all(ask("/wait/59000", "10.0.0.1").as_bytes()).await.unwrap();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    loop {
        // Until the first is on its way.
        let answer = exchange(&mut stream, &ask("/wait/1", "10.0.0.1")).await;
        if answer.starts_with("HTTP/1.1 429") {
            break;
        }
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let answer = exchange(&mut stream, &ask("/wait/1", "10.0.0.2")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_response_that_is_not_read_ends_its_connection() {
    let server = Running::configured(|config| config.http.response_timeout_seconds = 1).await;
    let mut unread = TcpStream::connect(server.address).await.unwrap();
    unread.write_all(get("/long/50000000").as_bytes()).await.unwrap();
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(get("/long/50000000").as_bytes()).await.unwrap();
    let mut taken = vec![0; 2_000_000];
    let mut length = 0;
    let mut all = Vec::new();
    // Takes longer than the time-out in all, but never pauses for as long.
    for _ in 0..10 {
        length += slow.read(&mut taken).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let ended = tokio::time::timeout(Duration::from_secs(5), unread.read_to_end(&mut all));
    let ended = ended.await.expect("the connection of the one who did not read is open");
    assert!(ended.is_err() || all.len() < 50_000_000, "all of it was sent");
    while length < 50_000_000 {
        let read = slow.read(&mut taken).await.unwrap();
        assert!(read > 0, "cut off after {length} bytes");
        length += read;
    }
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Begins HTTP/2 with room for `window` bytes of each response, and asks for `path` on each of
/// `streams`.
async fn http2(server: &Running, window: u32, path: &str, streams: u32) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(4, 0, 0, &settings));
    for number in 0..streams {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        // GET, http, and literals without indexing (RFC 7541, section 6.2.2).
        let mut head = vec![0x82, 0x86, 0x04];
        head.extend(text(path));
        head.push(0x01);
        head.extend(text("x"));
        said.extend(frame(1, 5, 2 * number + 1, &head));
    }
    connection.write_all(&said).await.unwrap();
    connection
}

#[tokio::test]
async fn a_response_for_which_http2_opens_no_window_ends_its_connection() {
    let server = Running::configured(|config| config.http.response_timeout_seconds = 1).await;
    for (window, length) in [(0, 20), (0, 500_000), (100, 500_000), (100_000, 500_000)] {
        let mut connection = http2(&server, window, &format!("/long/{length}"), 3).await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), connection.read_to_end(&mut rest));
        assert!(ended.await.is_ok(), "window {window}, {length} bytes");
    }
    // A wait is not a response that nobody reads.
    let mut connection = http2(&server, 0, "/wait/59000", 1).await;
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(3), connection.read_to_end(&mut rest));
    assert!(ended.await.is_err(), "it was closed");
}

#[tokio::test]
async fn an_http2_response_that_is_read_slowly_is_read_to_its_end() {
    let server = Running::configured(|config| config.http.response_timeout_seconds = 1).await;
    let client: Client<_, Body> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let uri = format!("http://{}/long/20000000", server.address);
    let request = Request::get(uri).body(Full::default().boxed()).unwrap();
    let mut body = client.request(request).await.unwrap().into_body();
    let (mut length, mut pauses) = (0, 0);
    while let Some(frame) = body.frame().await {
        length += frame.unwrap().data_ref().map_or(0, Bytes::len);
        // Two and a half seconds in all.
        if pauses < length / 4_000_000 {
            pauses += 1;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    assert_eq!((length, pauses), (20_000_000, 5));
}

#[tokio::test]
async fn the_unread_responses_of_a_caller_are_bounded() {
    let server = Running::configured(|config| {
        config.http.response_bytes_per_user = 1_048_576;
        config.http.response_bytes_per_address = 2_097_152;
    })
    .await;
    // A single response may be larger than what is left, because its size is known only then.
    let unread = http2(&server, 0, "/long/2500000", 1).await;
    let refused = async |wanted: bool| loop {
        let answer = server.ask(Method::GET, "/long/100000", None, "").await;
        if (answer.status == StatusCode::TOO_MANY_REQUESTS) == wanted {
            break answer;
        }
    };
    let answer = refused(true).await;
    is(&answer, 429, "M_LIMIT_EXCEEDED");
    assert!(answer.json()["retry_after_ms"].is_u64(), "{answer:?}");
    drop(unread);
    assert_eq!(refused(false).await.body.len(), 100_000);
}

/// A server has 8 KiB for each waiting request. The other half is for what the runtime, the
/// allocator and the handler add to these.
#[test]
fn a_request_that_waits_is_small() {
    fn size_of_future<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }
    type Sent = stream::Iter<std::vec::IntoIter<Result<Bytes, Infallible>>>;
    let connection = size_of_future(serve::Connection::run);
    let answer = |edge: &'static Edge<Fake>, inbound: edge::Inbound<Sent>| edge.answer(inbound);
    let answer = size_of_future(answer);
    assert!(connection <= 1536, "a connection without hyper: {connection} bytes");
    assert!(connection + answer <= 4096, "with a request that was begun: {answer} bytes more");
}

#[tokio::test]
async fn endpoints_registered_twice_are_an_error() {
    let shutdown = Shutdown::when(std::future::pending());
    let twice = table().on(who, limited(Class::Other));
    let error = Edge::new(Arc::new(Fake), twice, &Config::default(), shutdown).err().unwrap();
    assert!(matches!(error, TableError::Twice { .. }), "{error}");
}

/// Why a table is refused.
fn refused(table: Table<Fake>) -> TableError {
    let shutdown = Shutdown::when(std::future::pending());
    Edge::new(Arc::new(Fake), table, &Config::default(), shutdown).err().unwrap()
}

#[tokio::test]
async fn a_write_without_a_class_or_a_reason_is_an_error() {
    let error = refused(Table::new(&["/_matrix"]).on(put_state, cheap()));
    assert!(matches!(error, TableError::Policy { method: Method::PUT, .. }), "{error}");
    // So is a read that the specification has limited.
    let error = refused(Table::new(&["/_matrix"]).on(who, cheap()));
    assert!(matches!(error, TableError::Policy { method: Method::GET, .. }), "{error}");
}

/// Run by hand: `cargo test --release --lib what_a_request_costs -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn what_a_request_costs() {
    let shutdown = Shutdown::when(std::future::pending());
    let edge = Edge::new(Arc::new(Fake), table(), &Config::default(), shutdown).unwrap();
    let rounds = 200_000_u32;
    let mut headers = http::HeaderMap::new();
    headers.insert(header::AUTHORIZATION, header::HeaderValue::from_static("Bearer good"));
    headers.insert(header::ACCEPT, header::HeaderValue::from_static("*/*"));
    let body = Bytes::from(format!("{{\"msgtype\":\"m.text\",\"body\":\"{}\"}}", "x".repeat(100)));
    for (method, path) in [
        (Method::OPTIONS, "/"),
        (Method::GET, "/nowhere"),
        (Method::GET, "/_matrix/client/versions"),
        (Method::GET, "/_matrix/client/v3/account/whoami"),
        (Method::PUT, "/_matrix/client/v3/rooms/!r:example.org/state/m.room.topic/key"),
    ] {
        let started = std::time::Instant::now();
        for _ in 0..rounds {
            let body = stream::iter([Ok::<_, Infallible>(body.clone())]);
            let inbound = edge::Inbound {
                method: method.clone(),
                uri: http::Uri::from_static(path),
                headers: headers.clone(),
                peer: edge::Peer { address: [127, 0, 0, 1].into(), may_forward: true },
                version: http::Version::HTTP_11,
                hurry: Arc::default(),
                body,
            };
            std::hint::black_box(edge.answer(inbound).await);
        }
        println!("{:>8.0?} {method} {path}", started.elapsed() / rounds);
    }
}
