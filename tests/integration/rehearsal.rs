//! A copy of a server is tried out: nothing leaves it, at any exit. A trap stands behind each.

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
    Bridge, Gateway, TestServer, User, encode, free_address, refused_start_on, run_logcabin, until,
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

/// The settings that lead to the trap, at every exit that has one.
fn exits(trap: SocketAddr, directory: &Path) -> Vec<(&'static str, String)> {
    let http = format!("http://{trap}");
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    vec![
        ("LOGCABIN_EMAIL_HOST", "127.0.0.1".to_owned()),
        ("LOGCABIN_EMAIL_PORT", trap.port().to_string()),
        ("LOGCABIN_EMAIL_SECURITY", "none".to_owned()),
        ("LOGCABIN_SMS_URL", http.clone()),
        ("LOGCABIN_CAPTCHA_PUBLIC_KEY", "key".to_owned()),
        ("LOGCABIN_CAPTCHA_SECRET_KEY_FILE", file("captcha", "secret")),
        ("LOGCABIN_CAPTCHA_VERIFY_URL", http.clone()),
        ("LOGCABIN_METRICS_ENDPOINT", http.clone()),
        ("LOGCABIN_METRICS_EVERY_SECONDS", "1".to_owned()),
        ("LOGCABIN_TRACES_ENDPOINT", http.clone()),
        ("LOGCABIN_TRACES_SAMPLE_PERCENT", "100".to_owned()),
        ("LOGCABIN_TURN_URIS", format!("turn:{trap}?transport=tcp,turn:{trap}?transport=udp")),
        ("LOGCABIN_TURN_SHARED_SECRET", "a secret that is long".to_owned()),
        ("LOGCABIN_MEDIA_PREVIEW_ALLOWED_RANGES", "127.0.0.0/8".to_owned()),
        ("LOGCABIN_FEDERATION_ALLOWED_NETWORKS", "127.0.0.0/8".to_owned()),
        ("LOGCABIN_FEDERATION_NOTARIES", format!("{trap}")),
        ("LOGCABIN_FEDERATION_NAMESERVERS", trap.to_string()),
        ("LOGCABIN_ACME_ENABLED", "true".to_owned()),
        ("LOGCABIN_ACME_DOMAINS", "cabin.example".to_owned()),
        ("LOGCABIN_ACME_DIRECTORY", http),
        ("LOGCABIN_ACME_CHALLENGE", "tls-alpn-01".to_owned()),
    ]
}

fn as_given<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    settings.iter().map(|(name, value)| (*name, &**value)).collect()
}

/// Asks for everything that would lead outside. What is answered does not matter.
async fn ask_for_everything(user: &User, trap: SocketAddr) {
    let ask = async |method: &str, path: &str, body: Option<Value>| {
        let path = format!("/_matrix/client{path}");
        let asked = user.http.try_request(method, &path, Some(&user.access_token), body.as_ref());
        let _ = tokio::time::timeout(Duration::from_secs(20), asked).await;
    };
    let email = json!({ "client_secret": "s", "email": "a@example.org", "send_attempt": 1 });
    ask("POST", "/v3/register/email/requestToken", Some(email.clone())).await;
    ask("POST", "/v3/account/3pid/email/requestToken", Some(email)).await;
    let phone = json!({
        "client_secret": "s", "country": "DE", "phone_number": "015112345678", "send_attempt": 1,
    });
    ask("POST", "/v3/account/3pid/msisdn/requestToken", Some(phone)).await;
    let page = encode(&format!("http://{trap}/page"));
    ask("GET", &format!("/v1/media/preview_url?url={page}"), None).await;
    ask("GET", &format!("/v1/media/download/{trap}/file"), None).await;
    let (other, alias) = (encode(&format!("@sam:{trap}")), encode(&format!("#room:{trap}")));
    ask("GET", &format!("/v3/profile/{other}"), None).await;
    ask("POST", &format!("/v3/join/{alias}"), Some(json!({}))).await;
    ask("GET", &format!("/v3/publicRooms?server={trap}"), None).await;
    let devices = json!({ "device_keys": { (format!("@sam:{trap}")): [] } });
    ask("POST", "/v3/keys/query", Some(devices)).await;
    let invite = json!({ "invite": [format!("@sam:{trap}")] });
    ask("POST", "/v3/createRoom", Some(invite)).await;
    let bridged = encode("#_irc_lobby:e2e.test");
    ask("GET", &format!("/v3/directory/room/{bridged}"), None).await;
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
        let (trap, federation) = (Trap::set().await, free_address());
        let mut settings = with_others.to_vec();
        settings.extend(exits(trap.address, directory.path()));
        settings.push(("LOGCABIN_FEDERATION_ENABLED", "true".to_owned()));
        settings.push(("LOGCABIN_FEDERATION_BIND", federation.to_string()));
        settings.push(("LOGCABIN_FEDERATION_AT_CLIENT_ADDRESSES", "true".to_owned()));
        settings.push(("LOGCABIN_OUTBOUND_REHEARSAL", "true".to_owned()));
        if by_proxy {
            settings.push(("LOGCABIN_OUTBOUND_PROXY", format!("http://{}", trap.address)));
            settings.push(("LOGCABIN_OUTBOUND_NO_PROXY", "none".to_owned()));
        }
        let mut server = TestServer::start_alone_with(&copy, &as_given(&settings)).await;
        let [ann, bob] = [&ann, &bob].map(|user| User { http: server.http(), ..user.clone() });
        let (pushed, bridged) = (gateway.asked("key").len(), bridge.arrived().len());
        bob.send_text(&room_id, &format!("rehearsed-{by_proxy}"), "in the rehearsal").await;
        ask_for_everything(&ann, trap.address).await;
        let doctor = run_logcabin(["doctor", "--json", "--data-dir", &copy.display().to_string()]);
        let report = String::from_utf8_lossy(&doctor.stdout);
        assert!(report.contains("\"rehearsal\""), "{report}");
        // Nobody outside gets the keys, or anything else.
        for path in ["/_matrix/key/v2/server", "/_matrix/federation/v1/version"] {
            let answer = server.http().request("GET", path, None, None).await;
            assert_eq!(answer.status, 404, "{path}: {answer}");
        }
        assert!(TcpStream::connect(federation).is_err(), "it listens for homeservers");
        tokio::time::sleep(WHILE).await;
        assert_eq!(trap.caught(), 0, "something left, by a proxy: {by_proxy}");
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
