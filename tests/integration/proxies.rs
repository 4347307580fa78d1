//! Proxies in front of the server that say whose a connection is before its first byte (PROXY
//! protocol, version 2).

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use crate::administration::command;
use crate::harness::{free_address, logcabin_command, runs, skip, until};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The header of a client's connection.
pub(crate) fn of_client(client: [u8; 4]) -> Vec<u8> {
    let addresses = [&client[..], &[127, 0, 0, 1], &[0x30, 0x39], &[0x1f, 0x48]].concat();
    [SIGNATURE, &[0x21, 0x11, 0, 12], &addresses].concat()
}

/// The header of a proxy's own connection.
fn of_proxy() -> Vec<u8> {
    [SIGNATURE, &[0x20, 0x00, 0, 0]].concat()
}

/// A server whose clients come by proxies.
struct Proxied {
    child: Child,
    address: SocketAddr,
    socket: PathBuf,
    output: PathBuf,
    _directory: TempDir,
}

impl Proxied {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let (socket, output) = (directory.path().join("client.sock"), directory.path().join("log"));
        let address = free_address();
        // A file, as both kinds of listeners cannot be given by the flag.
        let config = directory.path().join("logcabin.toml");
        let text = format!(
            "[server]\nname = \"e2e.test\"\nbind = [\"{address}\", \"unix:{}\"]\n\
             proxy_protocol = true\n[passwords]\niterations = 1000\n",
            socket.display()
        );
        fs::write(&config, text).expect("a file can be written");
        let child = logcabin_command()
            .arg("serve")
            .arg("--config")
            .arg(config)
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&output).expect("a file can be written"))
            .spawn()
            .expect("the server can be started");
        let server = Self { child, address, socket, output, _directory: directory };
        server.prints("serving").await;
        server
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.output).expect("the output")
    }

    /// Waits until the server has printed `text`.
    async fn prints(&self, text: &str) {
        until(&format!("it prints {text}"), async || self.output().contains(text)).await;
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the server listens")
    }

    async fn versions(&self, header: &[u8]) -> Option<u16> {
        asked(self.connect().await, header, VERSIONS).await
    }

    async fn login(&self, header: &[u8]) -> Option<u16> {
        asked(self.connect().await, header, &wrong_login()).await
    }
}

impl Drop for Proxied {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const VERSIONS: &str =
    "GET /_matrix/client/versions HTTP/1.1\r\nHost: e2e.test\r\nConnection: close\r\n\r\n";

/// A login with a wrong password, in which the client lies about its address.
fn wrong_login() -> String {
    let body = json!({
        "type": "m.login.password", "password": "wrong",
        "identifier": { "type": "m.id.user", "user": "@ann:e2e.test" },
    })
    .to_string();
    format!(
        "POST /_matrix/client/v3/login HTTP/1.1\r\nHost: e2e.test\r\nConnection: close\r\n\
         X-Forwarded-For: 198.51.100.99\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The status of the answer to a request after a header; none if the connection was closed.
async fn asked(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    header: &[u8],
    request: &str,
) -> Option<u16> {
    let mut answer = Vec::new();
    // A connection that is closed early may also be reset.
    let _ = stream.write_all(&[header, request.as_bytes()].concat()).await;
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_header_of_a_proxy_tells_whose_a_connection_is() {
    let settings = [
        ("LOGCABIN_RATE_LIMITS_LOGIN", "1/m burst 2"),
        // The header of HTTP is the client's own word.
        ("LOGCABIN_SERVER_TRUST_FORWARDED_FOR", "true"),
    ];
    let server = Proxied::start(&settings).await;
    let (one, other) = (of_client([203, 0, 113, 7]), of_client([203, 0, 113, 8]));
    assert_eq!(server.versions(&one).await, Some(200));
    assert_eq!(server.login(&one).await, Some(403));
    let line = "refused login address=203.0.113.7 user=\"@ann:e2e.test\" reason=\"password\"";
    server.prints(line).await;
    assert_eq!(server.login(&one).await, Some(403));
    assert_eq!(server.login(&one).await, Some(429), "it was too often");
    assert_eq!(server.login(&other).await, Some(403), "another client has a rate of its own");
    server.prints("refused login address=203.0.113.8").await;
    assert!(!server.output().contains("address=198.51.100.99"), "{}", server.output());

    // By the Unix socket, too, and for a check of health.
    let stream = UnixStream::connect(&server.socket).await.expect("the server listens");
    assert_eq!(asked(stream, &of_client([203, 0, 113, 9]), &wrong_login()).await, Some(403));
    server.prints("refused login address=203.0.113.9").await;
    assert_eq!(server.versions(&of_proxy()).await, Some(200));
    let stream = UnixStream::connect(&server.socket).await.expect("the server listens");
    assert_eq!(asked(stream, &of_proxy(), VERSIONS).await, Some(200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_sends_a_header_to_ask_whether_the_server_is_ready() {
    let server = Proxied::start(&[]).await;
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("logcabin.toml");
    let ready = |bind: &str, from: &str| {
        let text = format!(
            "[server]\nbind = [\"{bind}\"]\nproxy_protocol = true\n\
             [http]\nproxy_protocol_from = [\"{from}\"]\n"
        );
        fs::write(&file, text).expect("a file can be written");
        let arguments = format!("--ready --config {}", file.display());
        let asked = command("status", &directory.path().join("data"), &arguments, "");
        let said = [asked.stdout, asked.stderr].concat();
        (asked.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let address = server.address.to_string();
    let well = (Some(0), "The server is ready.\n".to_owned());
    assert_eq!(ready(&address, "127.0.0.0/8"), well);
    assert_eq!(ready(&format!("unix:{}", server.socket.display()), "192.0.2.0/24"), well);
    let (code, said) = ready(&address, "192.0.2.0/24");
    assert!(code == Some(1) && said.contains("not in `http.proxy_protocol_from`"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_header_to_believe_is_closed() {
    let server = Proxied::start(&[]).await;
    assert_eq!(server.versions(b"").await, None, "there is no header");
    server.prints("it has no PROXY header").await;
    let text = b"PROXY TCP4 203.0.113.7 127.0.0.1 12345 8008\r\n";
    assert_eq!(server.versions(text).await, None, "it is of version 1");
    let stream = UnixStream::connect(&server.socket).await.expect("the server listens");
    assert_eq!(asked(stream, b"", VERSIONS).await, None, "there is no header");
    // One that drips is closed, and so is one that says nothing.
    for first in [&SIGNATURE[..3], b""] {
        let mut stream = server.connect().await;
        stream.write_all(first).await.expect("the server listens");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(answer, b"");
    }
    // Others are served meanwhile.
    assert_eq!(server.versions(&of_client([203, 0, 113, 7])).await, Some(200));

    let settings = [("LOGCABIN_HTTP_PROXY_PROTOCOL_FROM", "192.0.2.0/24")];
    let server = Proxied::start(&settings).await;
    let header = of_client([203, 0, 113, 7]);
    assert_eq!(server.versions(&header).await, None, "this machine is not trusted");
    server.prints("it is not from `http.proxy_protocol_from`").await;
    // Who may connect to the socket is.
    let stream = UnixStream::connect(&server.socket).await.expect("the server listens");
    assert_eq!(asked(stream, &header, VERSIONS).await, Some(200));
}

/// Starts HAProxy, which passes connections on as they are, with headers before them.
fn haproxy(program: &str, directory: &Path, front: SocketAddr, server: &Proxied) -> Child {
    let config = format!(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         listen clients\n bind {front}\n option httpchk GET /health/live\n \
         server cabin {} send-proxy-v2 check inter 100ms\n",
        server.address
    );
    let path = directory.join("haproxy.cfg");
    fs::write(&path, config).expect("a file can be written");
    Command::new(program)
        .arg("-db")
        .arg("-f")
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("HAProxy can be started")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_tells_whom_it_forwards_for() {
    // Debian installs it where only root looks.
    let program = ["haproxy", "/usr/sbin/haproxy"].into_iter().find(|one| runs(one, &["-v"]));
    let Some(program) = program else { return skip("PROXY protocol", "haproxy is absent") };
    let server = Proxied::start(&[]).await;
    let directory = TempDir::new().expect("a temporary directory");
    let front = free_address();
    let mut running = haproxy(program, directory.path(), front, &server);
    // A client at another address of this machine.
    let from_elsewhere = async || {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).expect("an address of this machine");
        socket.connect(front).await
    };
    until("HAProxy forwards", async || match from_elsewhere().await {
        Ok(stream) => asked(stream, b"", VERSIONS).await == Some(200),
        Err(_) => false,
    })
    .await;
    let stream = from_elsewhere().await.expect("HAProxy listens");
    assert_eq!(asked(stream, b"", &wrong_login()).await, Some(403));
    server.prints("refused login address=127.0.0.2").await;
    let _ = running.kill();
    let _ = running.wait();
}
