//! A copy of a server is tried out: nothing leaves it, at any exit. A trap stands behind each, and
//! without a rehearsal the same requests lead into every one of them.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, UdpSocket};

use crate::harness::{
    Bridge, Gateway, TestServer, User, encode, free_address, logcabin_command, refused_start_on,
    until, until_ok,
};

/// How long nothing must come: what delivers does so at once.
const WHILE: Duration = Duration::from_secs(3);

/// Counts whoever connects, and answers nobody.
struct Trap {
    address: SocketAddr,
    caught: Arc<AtomicUsize>,
}

impl Trap {
    async fn set() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        // TURN is asked by datagrams, too.
        let datagrams = UdpSocket::bind(address).await.expect("the same port");
        let caught = Arc::<AtomicUsize>::default();
        for_each_connection(listener, Arc::clone(&caught));
        let counted = Arc::clone(&caught);
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while datagrams.recv_from(&mut buffer).await.is_ok() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { address, caught }
    }

    fn caught(&self) -> usize {
        self.caught.load(Ordering::Relaxed)
    }
}

fn for_each_connection(listener: TcpListener, caught: Arc<AtomicUsize>) {
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            caught.fetch_add(1, Ordering::Relaxed);
            drop(stream);
        }
    });
}

/// The exits that have a trap.
const EXITS: [&str; 13] = [
    "captcha",
    "certificates",
    "homeservers",
    "identity servers",
    "login providers",
    "mail",
    "metrics",
    "nameservers",
    "notaries",
    "previews",
    "text messages",
    "traces",
    "TURN",
];

/// A trap behind each exit.
struct Traps(Vec<(&'static str, Trap)>);

impl Traps {
    async fn set() -> Self {
        let mut traps = Vec::new();
        for exit in EXITS {
            traps.push((exit, Trap::set().await));
        }
        Self(traps)
    }

    fn at(&self, exit: &str) -> SocketAddr {
        let found = self.0.iter().find(|(name, _)| *name == exit);
        found.expect("an exit with a trap").1.address
    }

    /// The exits through which something left.
    fn reached(&self) -> Vec<&'static str> {
        let reached = self.0.iter().filter(|(_, trap)| trap.caught() > 0);
        reached.map(|(exit, _)| *exit).collect()
    }
}

/// The settings that lead to the traps, at every exit that has one.
fn exits(traps: &Traps, directory: &Path) -> Vec<(&'static str, String)> {
    let at = |exit: &str| traps.at(exit).to_string();
    let http = |exit: &str| format!("http://{}", traps.at(exit));
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let issuer = http("login providers");
    let secret = file("provider-secret", "a secret of the two\n");
    let provider = format!(
        "id = \"live\"\nname = \"Elsewhere\"\nissuer = \"{issuer}\"\n\
         client_id = \"logcabin\"\nclient_secret_file = \"{secret}\"\n"
    );
    let turn = traps.at("TURN");
    vec![
        ("LOGCABIN_EMAIL_HOST", "127.0.0.1".to_owned()),
        ("LOGCABIN_EMAIL_PORT", traps.at("mail").port().to_string()),
        ("LOGCABIN_EMAIL_SECURITY", "none".to_owned()),
        ("LOGCABIN_EMAIL_FROM", "logcabin@example.org".to_owned()),
        ("LOGCABIN_SMS_URL", http("text messages")),
        ("LOGCABIN_REGISTRATION_OPEN", "true".to_owned()),
        ("LOGCABIN_REGISTRATION_REQUIRE", "captcha".to_owned()),
        ("LOGCABIN_CAPTCHA_PUBLIC_KEY", "key".to_owned()),
        ("LOGCABIN_CAPTCHA_SECRET_KEY_FILE", file("captcha", "secret")),
        ("LOGCABIN_CAPTCHA_VERIFY_URL", http("captcha")),
        ("LOGCABIN_METRICS_ENDPOINT", http("metrics")),
        ("LOGCABIN_METRICS_EVERY_SECONDS", "1".to_owned()),
        ("LOGCABIN_TRACES_ENDPOINT", http("traces")),
        ("LOGCABIN_TRACES_SAMPLE_PERCENT", "100".to_owned()),
        ("LOGCABIN_TURN_URIS", format!("turn:{turn}?transport=tcp,turn:{turn}?transport=udp")),
        ("LOGCABIN_TURN_SHARED_SECRET", "a secret that is long".to_owned()),
        ("LOGCABIN_MEDIA_PREVIEW_ALLOWED_RANGES", "127.0.0.0/8".to_owned()),
        ("LOGCABIN_FEDERATION_ALLOWED_NETWORKS", "127.0.0.0/8".to_owned()),
        ("LOGCABIN_FEDERATION_NOTARIES", at("notaries")),
        ("LOGCABIN_FEDERATION_NAMESERVERS", at("nameservers")),
        ("LOGCABIN_THREEPIDS_IDENTITY_SERVERS", format!("id.test={}", http("identity servers"))),
        ("LOGCABIN_SSO_PROVIDERS", file("live.toml", &provider)),
        ("LOGCABIN_TLS_BIND", free_address().to_string()),
        ("LOGCABIN_ACME_ENABLED", "true".to_owned()),
        ("LOGCABIN_ACME_DOMAINS", "cabin.example".to_owned()),
        ("LOGCABIN_ACME_DIRECTORY", http("certificates")),
        ("LOGCABIN_ACME_CHALLENGE", "tls-alpn-01".to_owned()),
    ]
}

fn as_given<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    settings.iter().map(|(name, value)| (*name, &**value)).collect()
}

/// Asks for everything that would lead outside. What is answered does not matter.
async fn ask_for_everything(user: &User, traps: &Traps) {
    let ask = async |method: &str, path: &str, body: Option<Value>| {
        let path = format!("/_matrix/client{path}");
        let asked = user.http.try_request(method, &path, Some(&user.access_token), body.as_ref());
        let answer = tokio::time::timeout(Duration::from_secs(20), asked).await;
        answer.ok().and_then(Result::ok).map(|answer| answer.body).unwrap_or_default()
    };
    let email = json!({ "client_secret": "s", "email": "a@example.org", "send_attempt": 1 });
    ask("POST", "/v3/register/email/requestToken", Some(email.clone())).await;
    ask("POST", "/v3/account/3pid/email/requestToken", Some(email)).await;
    let phone = json!({
        "client_secret": "s", "country": "DE", "phone_number": "015112345678", "send_attempt": 1,
    });
    ask("POST", "/v3/account/3pid/msisdn/requestToken", Some(phone)).await;
    let bind = json!({
        "client_secret": "s", "sid": "1", "id_server": "id.test", "id_access_token": "token",
    });
    ask("POST", "/v3/account/3pid/bind", Some(bind)).await;
    let newcomer = json!({ "username": "newcomer", "password": "a password that is long enough" });
    let asked = ask("POST", "/v3/register", Some(newcomer.clone())).await;
    let mut solved = newcomer;
    solved["auth"] = json!({
        "type": "m.login.recaptcha", "response": "human", "session": asked["session"],
    });
    ask("POST", "/v3/register", Some(solved)).await;
    let back = encode("http://127.0.0.1/");
    // It answers with a page.
    let path = format!("/_matrix/client/v3/login/sso/redirect/live?redirectUrl={back}");
    let asked = user.http.raw("GET", &path, &[], "");
    let _ = tokio::time::timeout(Duration::from_secs(20), asked).await;
    let page = encode(&format!("http://{}/page", traps.at("previews")));
    ask("GET", &format!("/v1/media/preview_url?url={page}"), None).await;
    let server = traps.at("homeservers");
    ask("GET", &format!("/v1/media/download/{server}/file"), None).await;
    let (other, alias) = (encode(&format!("@sam:{server}")), encode(&format!("#room:{server}")));
    ask("GET", &format!("/v3/profile/{other}"), None).await;
    ask("POST", &format!("/v3/join/{alias}"), Some(json!({}))).await;
    ask("GET", &format!("/v3/publicRooms?server={server}"), None).await;
    let devices = json!({ "device_keys": { (format!("@sam:{server}")): [] } });
    ask("POST", "/v3/keys/query", Some(devices)).await;
    let invite = json!({ "invite": [format!("@sam:{server}")] });
    ask("POST", "/v3/createRoom", Some(invite)).await;
    let bridged = encode("#_irc_lobby:e2e.test");
    ask("GET", &format!("/v3/directory/room/{bridged}"), None).await;
    let named = encode("@sam:names.example");
    ask("GET", &format!("/v3/profile/{named}"), None).await;
    signed_by(user, server).await;
}

/// Makes a request with a signature of another homeserver, whose key is then fetched.
async fn signed_by(user: &User, origin: SocketAddr) {
    let path = format!("/_matrix/federation/v1/query/profile?user_id={}", encode(&user.user_id));
    let signature = "A".repeat(86);
    let header = format!(
        "X-Matrix origin=\"{origin}\",destination=\"e2e.test\",key=\"ed25519:1\",\
         sig=\"{signature}\""
    );
    let headers = [("authorization", &*header)];
    let asked = user.http.raw("GET", &path, &headers, "");
    let _ = tokio::time::timeout(Duration::from_secs(60), asked).await;
}

/// What `logcabin doctor` finds, with these settings.
fn examined(data_dir: &Path, settings: &[(&'static str, String)]) -> String {
    let mut doctor = logcabin_command();
    doctor.args(["doctor", "--json", "--data-dir"]).arg(data_dir);
    let output = doctor.envs(as_given(settings)).output().expect("logcabin can be started");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the traps are worth: without a rehearsal, something leaves by each exit.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_rehearsal_each_exit_leads_to_its_trap() {
    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("data");
    let mut server = TestServer::start_alone_with(&data_dir, &[]).await;
    let ann = server.register("ann").await;
    server.stop();
    let traps = Traps::set().await;
    let mut settings = exits(&traps, directory.path());
    settings.extend(federation(free_address()));
    let server = TestServer::start_alone_with(&data_dir, &as_given(&settings)).await;
    let ann = User { http: server.http(), ..ann };
    ask_for_everything(&ann, &traps).await;
    examined(&data_dir, &settings);
    until_ok("something leaves by each exit", async || {
        let reached = traps.reached();
        let closed: Vec<_> = EXITS.iter().filter(|exit| !reached.contains(exit)).collect();
        if closed.is_empty() { Ok(()) } else { Err(closed) }
    })
    .await;
}

fn federation(bind: SocketAddr) -> [(&'static str, String); 3] {
    [
        ("LOGCABIN_FEDERATION_ENABLED", "true".to_owned()),
        ("LOGCABIN_FEDERATION_BIND", bind.to_string()),
        ("LOGCABIN_FEDERATION_AT_CLIENT_ADDRESSES", "true".to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaves_a_server_in_a_rehearsal() {
    let (gateway, bridge) = (Gateway::start().await, Bridge::start("irc", "").await);
    let directory = TempDir::new().expect("a temporary directory");
    let live = directory.path().join("live");
    let with_others = [
        ("LOGCABIN_PUSH_ALLOW_HTTP", "true".to_owned()),
        ("LOGCABIN_PUSH_ALLOWED_NETWORKS", "127.0.0.0/8".to_owned()),
        ("LOGCABIN_APPSERVICES_FILES", bridge.file().display().to_string()),
    ];
    let mut server = TestServer::start_alone_with(&live, &as_given(&with_others)).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    gateway.serves(&ann, "key").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let ghost = bridge.ghost(&server, "carl").await;
    let path = format!("/v3/join/{}", encode(&room_id));
    bridge.request(&server, "POST", &path, Some(&ghost), Some(&json!({}))).await.ok();
    let event = bob.send_text(&room_id, "live", "before").await;
    gateway.until_events("key", &[event]).await;
    until("the bridge has it", async || bridge.texts().iter().any(|text| text == "before")).await;
    server.stop();

    // The live directory is none for rehearsals. A copy becomes one by its mark.
    let rehearsing = [("LOGCABIN_OUTBOUND_REHEARSAL", "true")];
    let why = refused_start_on(&live, &rehearsing, &[]);
    assert!(why.contains("is not for rehearsals"), "{why}");
    let copy = directory.path().join("copy");
    let copied = Command::new("cp").arg("-a").arg(&live).arg(&copy).status().expect("cp");
    assert!(copied.success());
    std::fs::write(copy.join("rehearsal.json"), "").expect("a mark");
    let why = refused_start_on(&copy, &[], &[]);
    assert!(why.contains("is for rehearsals"), "{why}");

    for by_proxy in [false, true] {
        let (traps, proxy, bind) = (Traps::set().await, Trap::set().await, free_address());
        let mut settings = with_others.to_vec();
        settings.extend(exits(&traps, directory.path()));
        settings.extend(federation(bind));
        settings.push(("LOGCABIN_OUTBOUND_REHEARSAL", "true".to_owned()));
        if by_proxy {
            settings.push(("LOGCABIN_OUTBOUND_PROXY", format!("http://{}", proxy.address)));
            settings.push(("LOGCABIN_OUTBOUND_NO_PROXY", "none".to_owned()));
        }
        let mut server = TestServer::start_alone_with(&copy, &as_given(&settings)).await;
        let [ann, bob] = [&ann, &bob].map(|user| User { http: server.http(), ..user.clone() });
        let (pushed, bridged) = (gateway.asked("key").len(), bridge.arrived().len());
        bob.send_text(&room_id, &format!("rehearsed-{by_proxy}"), "in the rehearsal").await;
        ask_for_everything(&ann, &traps).await;
        let report = examined(&copy, &settings);
        assert!(report.contains("\"rehearsal\""), "{report}");
        // Nobody outside gets the keys, or anything else.
        for path in ["/_matrix/key/v2/server", "/_matrix/federation/v1/version"] {
            let answer = server.http().request("GET", path, None, None).await;
            assert_eq!(answer.status, 404, "{path}: {answer}");
        }
        assert!(TcpStream::connect(bind).is_err(), "it listens for homeservers");
        tokio::time::sleep(WHILE).await;
        assert_eq!(traps.reached(), [""; 0], "something left, by a proxy: {by_proxy}");
        assert_eq!(proxy.caught(), 0, "something left by the proxy");
        assert_eq!(gateway.asked("key").len(), pushed, "a notification left");
        assert_eq!(bridge.arrived().len(), bridged, "a bridge was told");
        server.stop();
    }

    // The live one goes on as if nothing had been.
    let server = TestServer::start_alone_with(&live, &as_given(&with_others)).await;
    let bob = User { http: server.http(), ..bob };
    let event = bob.send_text(&room_id, "live-again", "after").await;
    until("the gateway has it", async || gateway.events("key").contains(&event)).await;
    until("the bridge has it", async || bridge.texts().iter().any(|text| text == "after")).await;
    assert!(!bridge.texts().iter().any(|text| text == "in the rehearsal"));
}
