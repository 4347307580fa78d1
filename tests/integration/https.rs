//! HTTPS by the server itself, by its own files and by an authority; Unix sockets; what a running
//! server takes over at SIGHUP; and HTTPS by the proxies for which there are examples.

mod acme;
mod proxies;
mod reload;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::administration::command;
use crate::federation::authority::Authority;
use crate::harness::{
    TestServer, free_address, logcabin_command, refused_start, runs, skip, until,
};
use crate::health::{ignore_complaints, start_on_sockets, terminate};
use crate::proxies::of_client;

/// What curl says of a request: the status and the version of HTTP on the first line, then the
/// headers and the body.
fn curl(arguments: &[&str]) -> Output {
    let format = "\n%{http_code} HTTP/%{http_version}";
    Command::new("curl")
        .args(["-sS", "-i", "--max-time", "30", "-w", format])
        .args(arguments)
        .output()
        .expect("curl runs")
}

/// The last line of what curl says.
#[track_caller]
fn outcome(arguments: &[&str]) -> String {
    let said = curl(arguments);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let complained = String::from_utf8_lossy(&said.stderr);
    text.lines().last().unwrap_or_else(|| panic!("nothing from curl: {complained}")).to_owned()
}

/// A server with HTTPS, alone even where the tests run on a cluster: its nodes would share a port.
struct Served {
    server: TestServer,
    https: SocketAddr,
    plain: SocketAddr,
    authority: Authority,
    _directory: TempDir,
}

impl Served {
    /// With this authority's certificate, and these settings besides.
    async fn start(authority: Authority, settings: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let (https, plain) = (free_address(), free_address());
        let (key, certificate) = authority.certify("clients");
        let own = [
            ("LOGCABIN_SERVER_NAME", "localhost".to_owned()),
            ("LOGCABIN_TLS_BIND", https.to_string()),
            ("LOGCABIN_TLS_CERTIFICATE", certificate.display().to_string()),
            ("LOGCABIN_TLS_CERTIFICATE_KEY", key.display().to_string()),
            ("LOGCABIN_TLS_REDIRECT_BIND", plain.to_string()),
        ];
        let mut all: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
        all.extend(settings);
        let server = TestServer::start_alone_with(&directory.path().join("data"), &all).await;
        Self { server, https, plain, authority, _directory: directory }
    }

    fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.https.port())
    }

    /// How a request to the server ends.
    #[track_caller]
    fn outcome(&self, arguments: &[&str], path: &str) -> String {
        let authority = self.authority.certificate().display().to_string();
        let url = self.url(path);
        let mut all = vec!["--cacert", authority.as_str()];
        all.extend(arguments);
        all.push(&url);
        outcome(&all)
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        connect(&self.authority.connector(), self.https).await
    }
}

async fn connect(connector: &TlsConnector, address: SocketAddr) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.expect("the server listens");
    let name = ServerName::try_from("localhost").expect("a name");
    connector.connect(name, stream).await.expect("TLS")
}

/// The certificate that a server has shown.
fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let certificates = stream.get_ref().1.peer_certificates().expect("a certificate");
    certificates[0].clone().into_owned()
}

/// The status line of the answer to a request on a connection that stays open.
async fn ask(stream: &mut TlsStream<TcpStream>, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the connection is open");
    let mut answer = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.expect("the connection is open");
        answer.push(byte[0]);
        if answer.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(answer).expect("a head is text").to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.and_then(|length| length.parse().ok()).expect("the length of the body");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.expect("the body");
    head.lines().next().unwrap_or_default().to_owned()
}

/// The authority of a test, unless something is missing.
fn prepared(test: &str) -> Option<Authority> {
    if !runs("curl", &["--version"]) {
        skip(test, "curl is absent");
        return None;
    }
    Authority::new().map_err(|missing| skip(test, &missing)).ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_served_by_https_in_both_versions_of_http() {
    let Some(authority) = prepared("https") else { return };
    let served = Served::start(authority, &[]).await;
    let versions = "/_matrix/client/versions";
    assert_eq!(served.outcome(&["--http1.1"], versions), "200 HTTP/1.1");
    assert_eq!(served.outcome(&["--http2"], versions), "200 HTTP/2");
    // The address follows from the certificate's name.
    let authority = served.authority.certificate().display().to_string();
    let told = curl(&["--cacert", &authority, &served.url("/.well-known/matrix/client")]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(&format!("https://localhost:{}", served.https.port())), "{told}");
    // Requests that wait let go of what HTTP/1 needs, and are answered by the same connection.
    let mut stream = served.connect().await;
    for _ in 0..3 {
        assert_eq!(ask(&mut stream, versions).await, "http/1.1 200 ok");
        // Longer than a connection is kept ready for the next request.
        tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_without_tls_is_redirected_if_it_is_for_this_server() {
    let Some(authority) = prepared("redirect") else { return };
    let served = Served::start(authority, &[]).await;
    let asked = format!("http://{}/a/b%20c?d=e&f", served.plain);
    let to = |host: &str| {
        let said = curl(&["-H", &format!("Host: {host}"), &asked]);
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let own = to("localhost:80");
    assert!(own.starts_with("HTTP/1.1 308"), "{own}");
    let target = format!("location: https://localhost:{}/a/b%20c?d=e&f", served.https.port());
    assert!(own.to_ascii_lowercase().contains(&target), "{own}");
    let other = to("evil.example");
    assert!(other.starts_with("HTTP/1.1 404") && !other.contains("evil"), "{other}");
    let challenge = format!("http://{}/.well-known/acme-challenge/unknown", served.plain);
    assert_eq!(outcome(&["-H", "Host: localhost", &challenge]), "404 HTTP/1.1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_and_its_redirect_are_served_on_the_sockets_of_a_service_manager() {
    let Some(authority) = prepared("sockets of a service manager") else { return };
    let directory = TempDir::new().expect("a temporary directory");
    let [https, plain] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let port = |of: &TcpListener| of.local_addr().expect("an address").port();
    let (key, certificate) = authority.certify("clients");
    let own = [
        ("LOGCABIN_SERVER_NAME", "localhost".to_owned()),
        ("LOGCABIN_SERVER_BIND", free_address().to_string()),
        // This machine has no such address.
        ("LOGCABIN_TLS_BIND", format!("192.0.2.1:{}", port(&https))),
        ("LOGCABIN_TLS_REDIRECT_BIND", "192.0.2.1:1".to_owned()),
        ("LOGCABIN_TLS_CERTIFICATE", certificate.display().to_string()),
        ("LOGCABIN_TLS_CERTIFICATE_KEY", key.display().to_string()),
    ];
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    let data = directory.path().join("data");
    let mut child = start_on_sockets([&https, &plain], "https:redirect", &data, &own);
    ignore_complaints(&mut child);
    let ca = authority.certificate().display().to_string();
    let ready = format!("https://localhost:{}/health/ready", port(&https));
    until("the server is ready", async || outcome(&["--cacert", &ca, &ready]).starts_with("200 "))
        .await;
    let told = curl(&["-H", "Host: localhost", &format!("http://127.0.0.1:{}/a", port(&plain))]);
    let told = String::from_utf8_lossy(&told.stdout).to_ascii_lowercase();
    let target = format!("location: https://localhost:{}/a", port(&https));
    assert!(told.starts_with("http/1.1 308") && told.contains(&target), "{told}");
    terminate(&mut child);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_serves_clients_and_other_homeservers() {
    let Some(authority) = prepared("one address") else { return };
    let settings = [
        ("LOGCABIN_FEDERATION_ENABLED", "true"),
        ("LOGCABIN_FEDERATION_BIND", "none"),
        ("LOGCABIN_FEDERATION_AT_CLIENT_ADDRESSES", "true"),
    ];
    let served = Served::start(authority, &settings).await;
    for path in
        ["/_matrix/client/versions", "/_matrix/federation/v1/version", "/_matrix/key/v2/server"]
    {
        assert_eq!(served.outcome(&["--http2"], path), "200 HTTP/2", "{path}");
    }
    // What homeservers sign is asked for there as elsewhere.
    let unsigned = served.outcome(&[], "/_matrix/federation/v1/publicRooms");
    assert!(unsigned.starts_with("401 "), "{unsigned}");
    assert!(served.outcome(&[], "/_matrix/federation/v9/nothing").starts_with("404 "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_alone_do_not_share_their_address_unasked() {
    let Some(authority) = prepared("not shared") else { return };
    let fed = free_address().to_string();
    let settings = [("LOGCABIN_FEDERATION_ENABLED", "true"), ("LOGCABIN_FEDERATION_BIND", &*fed)];
    let served = Served::start(authority, &settings).await;
    assert!(served.outcome(&[], "/_matrix/federation/v1/version").starts_with("404 "));
    // The listener for other homeservers has the certificate of that for clients.
    let authority = served.authority.certificate().display().to_string();
    let port = fed.rsplit(':').next().unwrap_or_default();
    let url = format!("https://localhost:{port}/_matrix/federation/v1/version");
    assert!(outcome(&["--cacert", &authority, &url]).starts_with("200 "));
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_what_to_do() {
    for (settings, expected) in [
        (&[("LOGCABIN_TLS_CERTIFICATE", "/none")][..], "needs `tls.certificate_key`"),
        (&[("LOGCABIN_TLS_REDIRECT_BIND", "127.0.0.1:1")][..], "set `acme.enabled`"),
        (
            &[("LOGCABIN_ACME_ENABLED", "true"), ("LOGCABIN_ACME_CHALLENGE", "tls-alpn-01")][..],
            "set `acme.domains`",
        ),
        (
            &[("LOGCABIN_ACME_ENABLED", "true"), ("LOGCABIN_ACME_DOMAINS", "a.example")][..],
            "is answered at `tls.redirect_bind`",
        ),
        (
            &[("LOGCABIN_TLS_CERTIFICATE", "/none"), ("LOGCABIN_TLS_CERTIFICATE_KEY", "/none")][..],
            "HTTPS: /none",
        ),
    ] {
        let said = refused_start(settings, &[]);
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_header_of_a_proxy_comes_before_tls() {
    let Some(authority) = prepared("https") else { return };
    let served = Served::start(authority, &[("LOGCABIN_TLS_PROXY_PROTOCOL", "true")]).await;
    let name = || ServerName::try_from("localhost").expect("a name");
    let mut stream = TcpStream::connect(served.https).await.expect("the server listens");
    stream.write_all(&of_client([203, 0, 113, 7])).await.expect("the connection is open");
    let connector = served.authority.connector();
    let mut stream = connector.connect(name(), stream).await.expect("TLS");
    assert_eq!(ask(&mut stream, "/_matrix/client/versions").await, "http/1.1 200 ok");
    let stream = TcpStream::connect(served.https).await.expect("the server listens");
    assert!(connector.connect(name(), stream).await.is_err(), "there is no header");
}

/// A server on a Unix socket, and no address.
fn start_on_socket(socket: &Path, data: &Path) -> Child {
    logcabin_command()
        .args(["serve", "--server-name", "e2e.test", "--data-dir"])
        .arg(data)
        .arg("--bind")
        .arg(format!("unix:{}", socket.display()))
        .env("LOGCABIN_SERVER_TRUST_FORWARDED_FOR", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server can be started")
}

#[tokio::test]
async fn clients_are_served_at_a_unix_socket_that_goes_with_the_server() {
    if !runs("curl", &["--version"]) {
        return skip("Unix socket", "curl is absent");
    }
    let directory = TempDir::new().expect("a temporary directory");
    let (socket, data) = (directory.path().join("client.sock"), directory.path().join("data"));
    let at = socket.display().to_string();
    let versions = "http://localhost/_matrix/client/versions";
    let get = |more: &[&str]| {
        let mut all = vec!["--unix-socket", at.as_str(), versions];
        all.extend(more);
        outcome(&all)
    };
    let mut child = start_on_socket(&socket, &data);
    until("the socket answers", async || get(&[]) == "200 HTTP/1.1").await;
    // Proxies may speak HTTP/2 without TLS.
    assert_eq!(get(&["--http2-prior-knowledge"]), "200 HTTP/2");
    assert_eq!(get(&["-H", "X-Forwarded-For: 192.0.2.1"]), "200 HTTP/1.1");
    let file = directory.path().join("logcabin.toml").display().to_string();
    fs::write(&file, format!("[server]\nbind = [\"unix:{at}\"]\n")).expect("it can be written");
    let ready = command("status", &data, &format!("--ready --config {file}"), "");
    assert!(ready.status.success(), "{ready:?}");
    let about = fs::metadata(&socket).expect("a socket");
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o777, 0o660);

    let other = start_on_socket(&socket, &directory.path().join("other"));
    let refused = other.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("client.sock (`server.bind`): another program listens there"), "{said}");

    // A crash leaves the socket behind; the next start takes its place.
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(socket.exists());
    let mut child = start_on_socket(&socket, &data);
    until("the socket answers again", async || get(&[]) == "200 HTTP/1.1").await;
    let stopped = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(stopped.expect("kill runs").success());
    assert!(child.wait().expect("it ends").success());
    assert!(!socket.exists(), "the socket was left behind");
}
