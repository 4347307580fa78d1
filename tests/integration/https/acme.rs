//! Certificates from an authority: Pebble, which is made for such tests, and names that lead here.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::{curl, outcome};
use crate::federation::authority::Authority;
use crate::harness::{TestServer, free_address, runs, skip, until};

const NAME: &str = "matrix.example.test";

/// An authority, and the name server that it asks.
struct Pebble {
    directory: SocketAddr,
    management: SocketAddr,
    /// Where it looks for answers to challenges.
    http: SocketAddr,
    tls: SocketAddr,
    children: Vec<Child>,
    authority: Authority,
    _files: TempDir,
}

impl Pebble {
    /// `None` if it is absent. The environment sets how it misbehaves.
    async fn start(test: &str, environment: &[(&str, &str)]) -> Option<Self> {
        let is_there = |program: &str| Command::new(program).arg("-h").output().is_ok();
        if !is_there("pebble") || !is_there("pebble-challtestsrv") {
            skip(test, "pebble is absent");
            return None;
        }
        if !runs("curl", &["--version"]) {
            skip(test, "curl is absent");
            return None;
        }
        let authority = Authority::new().map_err(|missing| skip(test, &missing)).ok()?;
        let files = TempDir::new().expect("a temporary directory");
        let [directory, management, http, tls, names, control] = [(); 6].map(|()| free_address());
        let (key, certificate) = authority.certify("pebble");
        let config = json!({ "pebble": {
            "listenAddress": directory.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": certificate,
            "privateKey": key,
            "httpPort": http.port(),
            "tlsPort": tls.port(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
        } });
        let path = files.path().join("pebble.json");
        fs::write(&path, config.to_string()).expect("the file can be written");
        let mut resolver = Command::new("pebble-challtestsrv");
        resolver.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-http01", ""]);
        resolver.args(["-https01", "", "-tlsalpn01", "", "-dns01", &names.to_string()]);
        resolver.args(["-management", &control.to_string()]);
        let mut pebble = Command::new("pebble");
        pebble.arg("-config").arg(&path).args(["-dnsserver", &names.to_string()]);
        pebble.env("PEBBLE_VA_NOSLEEP", "1").envs(environment.iter().copied());
        let start = |mut program: Command| {
            program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            program.spawn().expect("the program can be started")
        };
        let children = vec![start(resolver), start(pebble)];
        let this = Self { directory, management, http, tls, children, authority, _files: files };
        let url = this.url();
        let ca = this.authority.certificate().display().to_string();
        until("the authority answers", async || {
            outcome(&["--cacert", &ca, &url]).starts_with("200 ")
        })
        .await;
        Some(this)
    }

    fn url(&self) -> String {
        format!("https://localhost:{}/dir", self.directory.port())
    }

    /// A server that gets its certificate here.
    async fn serve(&self, data: &std::path::Path, more: &[(&str, &str)]) -> TestServer {
        let own = [
            ("LOGCABIN_SERVER_NAME", "example.test".to_owned()),
            ("LOGCABIN_ACME_ENABLED", "true".to_owned()),
            ("LOGCABIN_ACME_DOMAINS", NAME.to_owned()),
            ("LOGCABIN_ACME_CONTACT", "ops@example.test".to_owned()),
            ("LOGCABIN_ACME_DIRECTORY", self.url()),
            ("LOGCABIN_ACME_CA", self.authority.certificate().display().to_string()),
            ("LOGCABIN_TLS_BIND", self.tls.to_string()),
            ("LOGCABIN_TLS_REDIRECT_BIND", self.http.to_string()),
        ];
        let mut all: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
        all.extend(more);
        TestServer::start_alone_with(data, &all).await
    }

    /// The root of the certificates that it gives, in a file.
    fn root(&self, directory: &TempDir) -> String {
        let path = directory.path().join("root.pem").display().to_string();
        let ca = self.authority.certificate().display().to_string();
        let url = format!("https://localhost:{}/roots/0", self.management.port());
        let got = Command::new("curl")
            .args(["-sS", "--fail", "--cacert", &ca, "-o", &path, &url])
            .status();
        assert!(got.expect("curl runs").success());
        path
    }

    /// How a request by HTTPS for the name ends, if this root is trusted.
    fn outcome(&self, root: &str) -> String {
        let port = self.tls.port();
        let resolve = format!("{NAME}:{port}:127.0.0.1");
        let url = format!("https://{NAME}:{port}/_matrix/client/versions");
        let said = curl(&["--cacert", root, "--resolve", &resolve, &url]);
        String::from_utf8_lossy(&said.stdout).lines().last().unwrap_or_default().to_owned()
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A server has no certificate at first, then gets one, and keeps it over a restart.
async fn gets_a_certificate(test: &str, environment: &[(&str, &str)], challenge: &str) {
    let Some(pebble) = Pebble::start(test, environment).await else { return };
    let directory = TempDir::new().expect("a temporary directory");
    let data = directory.path().join("data");
    let challenge = [("LOGCABIN_ACME_CHALLENGE", challenge)];
    let mut server = pebble.serve(&data, &challenge).await;
    server.prints("the authority gave a certificate").await;
    let root = pebble.root(&directory);
    until("HTTPS works", async || pebble.outcome(&root).starts_with("200 ")).await;
    let acme = data.join("acme");
    let files: Vec<_> = fs::read_dir(&acme).expect("a directory").flatten().collect();
    assert_eq!(files.len(), 2, "an account and a certificate: {files:?}");
    for file in files {
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file:?}");
    }

    let certificate = fs::read(acme.join("certificate.pem")).expect("the certificate");
    server.stop();
    let server = pebble.serve(&data, &challenge).await;
    until("HTTPS works after a restart", async || pebble.outcome(&root).starts_with("200 ")).await;
    let again = fs::read(acme.join("certificate.pem")).expect("the certificate");
    assert!(again == certificate, "another one was ordered:\n{}", server.output());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_gives_a_certificate_for_an_answer_by_http() {
    gets_a_certificate("HTTP-01", &[("PEBBLE_WFE_NONCEREJECT", "0")], "http-01").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_gives_a_certificate_for_an_answer_by_tls() {
    gets_a_certificate("TLS-ALPN-01", &[("PEBBLE_WFE_NONCEREJECT", "0")], "tls-alpn-01").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_nonces_do_not_keep_a_server_from_its_certificate() {
    gets_a_certificate("bad nonces", &[("PEBBLE_WFE_NONCEREJECT", "20")], "http-01").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_validation_is_told_and_does_not_stop_the_server() {
    let Some(pebble) = Pebble::start("failed validation", &[]).await else { return };
    let directory = TempDir::new().expect("a temporary directory");
    // The challenge is answered where the authority does not look.
    let elsewhere = free_address().to_string();
    let metrics = free_address().to_string();
    let settings =
        [("LOGCABIN_TLS_REDIRECT_BIND", &*elsewhere), ("LOGCABIN_METRICS_BIND", &*metrics)];
    let server = pebble.serve(&directory.path().join("data"), &settings).await;
    server.prints("there is no new certificate").await;
    let said = server.output();
    let line = said.lines().find(|line| line.contains("there is no new certificate"));
    let line = line.unwrap_or_default();
    assert!(line.contains(NAME) && line.contains("again_in_s"), "{line}");
    // Without a certificate no connection comes to TLS; clients without it are served.
    assert!(!pebble.outcome("/etc/ssl/certs/ca-certificates.crt").starts_with("200 "));
    server.http().request("GET", "/_matrix/client/versions", None, None).await.ok();
    let redirected = format!("http://{elsewhere}/");
    let redirected = outcome(&["-H", &format!("Host: {NAME}"), &redirected]);
    assert!(redirected.starts_with("308 "), "{redirected}");
    let scraped = curl(&[&format!("http://{metrics}/metrics")]);
    let scraped = String::from_utf8_lossy(&scraped.stdout).into_owned();
    assert!(scraped.contains("logcabin_acme_orders_total{outcome=\"failed\"} 1"), "{scraped}");
    let expiry = "logcabin_certificate_expiry_timestamp_seconds{listener=\"clients\"} 0";
    assert!(scraped.contains(expiry), "{scraped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_that_cannot_be_reached_does_not_stop_the_server() {
    let directory = TempDir::new().expect("a temporary directory");
    let [nowhere, https, plain] = [(); 3].map(|()| free_address().to_string());
    let authority = format!("https://{nowhere}/dir");
    let settings = [
        ("LOGCABIN_SERVER_NAME", "example.test"),
        ("LOGCABIN_ACME_ENABLED", "true"),
        ("LOGCABIN_ACME_DIRECTORY", &*authority),
        ("LOGCABIN_TLS_BIND", &*https),
        ("LOGCABIN_TLS_REDIRECT_BIND", &*plain),
    ];
    let mut server = TestServer::start_alone_with(&directory.path().join("data"), &settings).await;
    server.prints("there is no new certificate").await;
    server.http().request("GET", "/_matrix/client/versions", None, None).await.ok();
    let began = Instant::now();
    server.stop();
    // It does not wait for the next try.
    assert!(began.elapsed() < Duration::from_secs(30));
}
