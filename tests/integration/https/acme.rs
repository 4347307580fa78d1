//! Certificates from an authority: Pebble, which is made for such tests, and names that lead here.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{curl, outcome};
use crate::cluster::fleet::{Fleet, Node, Plan};
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
        Self::start_for(test, environment, json!({})).await
    }

    /// With customers only, whose keys are in base64url by their ids, if there are any.
    async fn start_for(test: &str, environment: &[(&str, &str)], customers: Value) -> Option<Self> {
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
            "externalAccountBindingRequired": customers != json!({}),
            "externalAccountMACKeys": customers,
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
    async fn serve(&self, data: &Path, more: &[(&str, &str)]) -> TestServer {
        let own = self.settings();
        let (https, plain) = (self.tls.to_string(), self.http.to_string());
        let mut all: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
        all.extend([
            ("LOGCABIN_SERVER_NAME", "example.test"),
            ("LOGCABIN_TLS_BIND", &*https),
            ("LOGCABIN_TLS_REDIRECT_BIND", &*plain),
        ]);
        all.extend(more);
        TestServer::start_alone_with(data, &all).await
    }

    /// How a server gets its certificate here.
    fn settings(&self) -> [(&'static str, String); 5] {
        [
            ("LOGCABIN_ACME_ENABLED", "true".to_owned()),
            ("LOGCABIN_ACME_DOMAINS", NAME.to_owned()),
            ("LOGCABIN_ACME_CONTACT", "ops@example.test".to_owned()),
            ("LOGCABIN_ACME_DIRECTORY", self.url()),
            ("LOGCABIN_ACME_CA", self.authority.certificate().display().to_string()),
        ]
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
        Self::outcome_at(self.tls, root)
    }

    /// The same at another address.
    fn outcome_at(address: SocketAddr, root: &str) -> String {
        let port = address.port();
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

/// The keys of two customers, in base64url.
const KEYS: [(&str, &str); 2] = [
    ("kid-1", "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"),
    ("kid-2", "b10lLJs8l1GPIzsLP0s6pMt8O0XVGnfTaCeROxQM0BIt2XrJMDHJZBM5NuQmQJQH"),
];

/// An authority that serves these customers only.
async fn for_customers(test: &str) -> Option<Pebble> {
    let customers = KEYS.iter().map(|(id, key)| ((*id).to_owned(), json!(key))).collect();
    let environment = [("PEBBLE_WFE_NONCEREJECT", "0")];
    Pebble::start_for(test, &environment, Value::Object(customers)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_with_customers_only_gives_a_certificate_for_a_key() {
    let Some(pebble) = for_customers("external account binding").await else { return };
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("eab.key");
    fs::write(&file, format!("{}\n", KEYS[0].1)).expect("the file can be written");
    let file = file.display().to_string();
    let key = [("LOGCABIN_ACME_EAB_KEY_ID", KEYS[0].0), ("LOGCABIN_ACME_EAB_KEY_FILE", &*file)];
    let data = directory.path().join("data");
    let mut server = pebble.serve(&data, &key).await;
    server.prints("the authority gave a certificate").await;
    let root = pebble.root(&directory);
    until("HTTPS works", async || pebble.outcome(&root).starts_with("200 ")).await;
    assert!(!server.output().contains(KEYS[0].1), "{}", server.output());

    // The account is there: the key is not needed for the next certificate.
    server.stop();
    fs::remove_file(data.join("acme/certificate.pem")).expect("the certificate");
    let server = pebble.serve(&data, &[]).await;
    server.prints("the authority gave a certificate").await;
    until("HTTPS works again", async || pebble.outcome(&root).starts_with("200 ")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_no_customer_of_an_authority_learns_what_to_do() {
    let Some(pebble) = for_customers("no external account binding").await else { return };
    let directory = TempDir::new().expect("a temporary directory");
    let mut server = pebble.serve(&directory.path().join("none"), &[]).await;
    server.prints("there is no new certificate").await;
    assert!(server.output().contains("set `acme.eab_key_id`"), "{}", server.output());
    server.stop();

    // The key of another customer.
    let file = directory.path().join("eab.key");
    fs::write(&file, KEYS[1].1).expect("the file can be written");
    let file = file.display().to_string();
    let key = [("LOGCABIN_ACME_EAB_KEY_ID", KEYS[0].0), ("LOGCABIN_ACME_EAB_KEY_FILE", &*file)];
    let mut server = pebble.serve(&directory.path().join("wrong"), &key).await;
    server.prints("there is no new certificate").await;
    assert!(!server.output().contains(KEYS[1].1), "{}", server.output());
    server.stop();
}

/// What the node that orders prints.
const ORDERS: &str = "certificates of the authority";

/// Whether a node has ever been the one that orders.
fn orders(output: &str) -> bool {
    let mut lines = output.lines();
    lines.any(|line| line.contains("this node does this work now") && line.contains(ORDERS))
}

/// Passes each connection to the node that does not order: that is the one which has to know the
/// answers of the other. With each node, the file of what it prints.
async fn pass_to_the_other(listener: TcpListener, nodes: [(PathBuf, SocketAddr); 2]) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let printed = |file: &Path| fs::read_to_string(file).unwrap_or_default();
        let idle = nodes.iter().find(|(file, _)| !orders(&printed(file)));
        let Some((_, address)) = idle.cloned() else { continue };
        tokio::spawn(async move {
            if let Ok(mut node) = TcpStream::connect(address).await {
                let _ = copy_bidirectional(&mut stream, &mut node).await;
            }
        });
    }
}

/// Passes connections on, once it is open; those that come before wait.
async fn pass_when_open(listener: TcpListener, to: SocketAddr, opened: watch::Receiver<bool>) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let mut opened = opened.clone();
        tokio::spawn(async move {
            if opened.wait_for(|open| *open).await.is_ok()
                && let Ok(mut behind) = TcpStream::connect(to).await
            {
                let _ = copy_bidirectional(&mut stream, &mut behind).await;
            }
        });
    }
}

/// Two nodes get one certificate, whichever of them the authority asks, and keep it when the one
/// that ordered it is gone.
async fn nodes_share_a_certificate(test: &str, challenge: &str) {
    let environment = [("PEBBLE_WFE_NONCEREJECT", "0")];
    let Some(pebble) = Pebble::start(test, &environment).await else { return };
    let directory = TempDir::new().expect("a temporary directory");
    let https = [(); 2].map(|()| free_address());
    let plain = [(); 2].map(|()| free_address());
    let of_nodes = |addresses: [SocketAddr; 2]| addresses.map(|one| one.to_string()).to_vec();
    let mut settings = pebble.settings().map(|(name, value)| (name.to_owned(), value)).to_vec();
    settings.push(("LOGCABIN_ACME_CHALLENGE".to_owned(), challenge.to_owned()));
    // Nobody orders until both nodes are there.
    let gate = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let port = gate.local_addr().expect("an address").port();
    let gated = format!("https://localhost:{port}/dir");
    settings.push(("LOGCABIN_ACME_DIRECTORY".to_owned(), gated));
    let (open, opened) = watch::channel(false);
    tokio::spawn(pass_when_open(gate, pebble.directory, opened));
    let plan = Plan {
        one_nats: true,
        server_name: Some("example.test".to_owned()),
        settings,
        by_node: vec![
            ("LOGCABIN_TLS_BIND".to_owned(), of_nodes(https)),
            ("LOGCABIN_TLS_REDIRECT_BIND".to_owned(), of_nodes(plain)),
        ],
        ..Plan::default()
    };
    let Some(mut fleet) = Fleet::plan(test, 2, plan) else { return };
    for (front, behind) in [(pebble.http, plain), (pebble.tls, https)] {
        let listener = TcpListener::bind(front).await.expect("the address is free");
        let prints = |number: usize| fleet.nodes[number].data_dir.with_extension("log");
        let nodes = [(prints(0), behind[0]), (prints(1), behind[1])];
        tokio::spawn(pass_to_the_other(listener, nodes));
    }
    fleet.nodes.iter_mut().for_each(Node::run);
    fleet.until_ready().await;
    open.send_replace(true);
    until("a node has a certificate", async || {
        fleet.nodes.iter().any(|node| node.output().contains("the authority gave"))
    })
    .await;
    let root = pebble.root(&directory);
    for address in https {
        until("HTTPS works on every node", async || {
            Pebble::outcome_at(address, &root).starts_with("200 ")
        })
        .await;
    }
    let acme = |fleet: &Fleet, node: usize| fleet.nodes[node].data_dir.join("acme");
    let certificate = |fleet: &Fleet, node: usize| {
        fs::read(acme(fleet, node).join("certificate.pem")).unwrap_or_default()
    };
    let shared = certificate(&fleet, 0);
    assert!(!shared.is_empty() && shared == certificate(&fleet, 1), "they have one certificate");
    let count = |fleet: &Fleet| {
        let outputs = fleet.nodes.iter().map(|node| node.output());
        outputs.map(|output| output.matches("the authority gave").count()).sum::<usize>()
    };
    assert_eq!(count(&fleet), 1, "one node orders");
    let (first, second) = match orders(&fleet.nodes[0].output()) {
        true => (0, 1),
        false => (1, 0),
    };
    assert!(!orders(&fleet.nodes[second].output()), "the other one answered the authority");

    // The other node takes over the work with the account, and needs no new certificate.
    fleet.nodes[first].kill();
    until("the other node does the work", async || orders(&fleet.nodes[second].output())).await;
    let is_account = |name: &str| name.starts_with("account-");
    until("the other node has the account", async || {
        let mut files = fs::read_dir(acme(&fleet, second)).into_iter().flatten().flatten();
        files.any(|file| is_account(&file.file_name().to_string_lossy()))
    })
    .await;
    for file in fs::read_dir(acme(&fleet, second)).expect("a directory").flatten() {
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file:?}");
    }
    // A node that comes without a certificate gets that of the others.
    fs::remove_dir_all(acme(&fleet, first)).expect("a directory");
    fleet.nodes[first].run();
    until("the node that came back has the certificate", async || {
        certificate(&fleet, first) == shared
    })
    .await;
    until("HTTPS works there again", async || {
        Pebble::outcome_at(https[first], &root).starts_with("200 ")
    })
    .await;
    assert_eq!(count(&fleet), 1, "nobody ordered another one");
    assert!(certificate(&fleet, second) == shared);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_have_one_certificate_by_http() {
    nodes_share_a_certificate("HTTP-01 in a cluster", "http-01").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_cluster_have_one_certificate_by_tls() {
    nodes_share_a_certificate("TLS-ALPN-01 in a cluster", "tls-alpn-01").await;
}
