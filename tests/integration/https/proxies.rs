//! The examples of `packaging/` for proxies, each run by the real program in front of a server that
//! has the settings which the example names.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::prepared;
use crate::federation::authority::Authority;
use crate::harness::{TestServer, free_address, runs, skip, until};

const MESSAGE: &str = "Come in";
/// Of a test user, see [`TestServer::register`].
const PASSWORD: &str = "a password that is long enough";

#[derive(Clone, Copy)]
enum Program {
    Nginx,
    Caddy,
    HaProxy,
}

impl Program {
    /// The example in `packaging/`.
    fn example(self) -> String {
        let name = match self {
            Self::Nginx => "nginx.conf",
            Self::Caddy => "Caddyfile",
            Self::HaProxy => "haproxy.cfg",
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(name);
        fs::read_to_string(path).expect("an example")
    }

    /// The program. Debian installs two of them where only root looks.
    fn find(self) -> Option<&'static str> {
        let (names, argument) = match self {
            Self::Nginx => (["nginx", "/usr/sbin/nginx"], "-v"),
            Self::Caddy => (["caddy", "/usr/bin/caddy"], "version"),
            Self::HaProxy => (["haproxy", "/usr/sbin/haproxy"], "-v"),
        };
        names.into_iter().find(|name| runs(name, &[argument]))
    }

    /// The arguments that run it in the foreground, as one process.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Nginx => &["-c"],
            Self::Caddy => &["run", "--adapter", "caddyfile", "--config"],
            Self::HaProxy => &["-db", "-f"],
        }
    }
}

/// A server, and a proxy in front of it.
struct Behind {
    server: TestServer,
    proxy: Child,
    /// Where the proxy listens, in place of ports 443, 8448 and 80.
    clients: SocketAddr,
    homeservers: SocketAddr,
    plain: SocketAddr,
    authority: Authority,
    files: TempDir,
}

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
        if std::thread::panicking() {
            let said = fs::read_to_string(self.files.path().join("proxy.log")).unwrap_or_default();
            println!("--- the proxy said ---\n{said}");
        }
    }
}

impl Behind {
    /// `None` if something is missing.
    async fn start(test: &str, program: Program) -> Option<Self> {
        let Some(path) = program.find() else {
            skip(test, "the proxy is absent");
            return None;
        };
        let authority = prepared(test)?;
        let files = TempDir::new().expect("a temporary directory");
        let [clients, homeservers, plain, federation] = [(); 4].map(|()| free_address());
        let server = serve(program, clients, federation, &files.path().join("data")).await;

        let at = server.base();
        let mut example = program.example();
        substitute(&mut example, "127.0.0.1:8008", at.trim_start_matches("http://"));
        substitute(&mut example, "127.0.0.1:8449", &federation.to_string());
        let [https, fed, http] = [clients, homeservers, plain].map(|one| one.port());
        let (key, certificate) = authority.certify("proxy");
        let (key, certificate) = (shown(&key), shown(&certificate));
        let own = shown(files.path());
        let config = match program {
            Program::Nginx => {
                let live = "/etc/letsencrypt/live/example.org";
                substitute(&mut example, &format!("{live}/fullchain.pem"), &certificate);
                substitute(&mut example, &format!("{live}/privkey.pem"), &key);
                substitute(&mut example, "443 ssl", &format!("{https} ssl"));
                substitute(&mut example, "8448 ssl", &format!("{fed} ssl"));
                substitute(&mut example, "listen 80;", &format!("listen {http};"));
                substitute(&mut example, "listen [::]:80;", &format!("listen [::]:{http};"));
                let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let paths = paths.map(|of| format!("{of}_temp_path {own}/{of};\n"));
                format!(
                    "daemon off;\nmaster_process off;\npid {own}/pid;\nerror_log stderr;\n\
                     events {{}}\nhttp {{\naccess_log off;\n{}{example}}}\n",
                    paths.concat()
                )
            }
            Program::Caddy => {
                // Its own way to a certificate needs an authority that reaches this machine.
                let tls = format!("localhost:{fed} {{\n\ttls {certificate} {key}\n");
                substitute(&mut example, "example.org:8448 {\n", &tls);
                format!(
                    "{{\n\tadmin off\n\thttp_port {http}\n\thttps_port {https}\n\
                     \tskip_install_trust\n\tstorage file_system {own}/store\n}}\n{example}"
                )
            }
            Program::HaProxy => {
                let both = files.path().join("both.pem");
                let parts = [&certificate, &key].map(|part| fs::read(part).expect("a file"));
                fs::write(&both, parts.concat()).expect("the file can be written");
                substitute(&mut example, "/etc/haproxy/example.org.pem", &shown(&both));
                substitute(&mut example, ":::443 ", &format!(":::{https} "));
                substitute(&mut example, ":::8448 ", &format!(":::{fed} "));
                substitute(&mut example, ":::80 ", &format!(":::{http} "));
                example
            }
        };
        let path_of_config = files.path().join("proxy.conf");
        fs::write(&path_of_config, config.replace("example.org", "localhost")).expect("a file");
        let log = File::create(files.path().join("proxy.log")).expect("a file");
        let proxy = Command::new(path)
            .args(program.arguments())
            .arg(path_of_config)
            .env("HOME", files.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("the proxy can be started");
        let mut behind = Self { server, proxy, clients, homeservers, plain, authority, files };
        behind.until_it_answers().await;
        Some(behind)
    }

    async fn until_it_answers(&mut self) {
        let ca = shown(&self.authority.certificate());
        let url = url(self.clients, "/_matrix/client/versions");
        until("the proxy answers", async || {
            let ended = self.proxy.try_wait().expect("the proxy can be asked");
            assert!(ended.is_none(), "the proxy ended: {ended:?}");
            runs("curl", &["-sf", "--cacert", &ca, &url])
        })
        .await;
    }

    /// A request that curl makes.
    fn curl(&self, arguments: &[&str], url: &str) -> Command {
        let mut curl = Command::new("curl");
        // The status goes where errors go, apart from the body.
        curl.args(["-4", "-sS", "--max-time", "60", "-w", "%{stderr}%{http_code}", "--cacert"]);
        curl.arg(self.authority.certificate()).args(arguments).arg(url);
        curl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        curl
    }

    /// The status and the body of the answer to a client's request.
    #[track_caller]
    fn ask(&self, arguments: &[&str], path: &str) -> (String, Vec<u8>) {
        let mut curl = self.curl(arguments, &url(self.clients, path));
        answer(curl.output().expect("curl runs"))
    }

    /// The body of an answer that must be a success.
    #[track_caller]
    fn ok(&self, arguments: &[&str], path: &str) -> Value {
        let (status, body) = self.ask(arguments, path);
        assert_eq!(status, "200", "{path}: {}", body.escape_ascii());
        serde_json::from_slice(&body).expect("an answer in JSON")
    }

    /// The status of a login from an address of this machine, which claims to be from another.
    fn log_in_from(&self, address: &str) -> (String, Value) {
        let login = json!({
            "type": "m.login.password",
            "identifier": { "type": "m.id.user", "user": "ann" },
            "password": PASSWORD,
        });
        let pretends = "X-Forwarded-For: 203.0.113.9";
        let login = login.to_string();
        let arguments = ["--interface", address, "-H", pretends, "-d", login.as_str()];
        let (status, body) = self.ask(&arguments, "/_matrix/client/v3/login");
        (status, serde_json::from_slice(&body).expect("an answer in JSON"))
    }
}

/// A server with the settings that go with the example, and few logins for each address.
async fn serve(
    program: Program,
    clients: SocketAddr,
    federation: SocketAddr,
    data: &Path,
) -> TestServer {
    let example = program.example();
    let mut settings = vec![
        ("LOGCABIN_SERVER_NAME".to_owned(), "localhost".to_owned()),
        ("LOGCABIN_REGISTRATION_OPEN".to_owned(), "true".to_owned()),
        ("LOGCABIN_RATE_LIMITS_ENABLED".to_owned(), "true".to_owned()),
        ("LOGCABIN_RATE_LIMITS_LOGIN".to_owned(), "1/h burst 1".to_owned()),
    ];
    let mut section = String::new();
    for line in example.lines().filter_map(|line| line.strip_prefix("#   ")) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.to_ascii_uppercase();
        } else if let Some((key, value)) = line.split_once(" = ") {
            let name = format!("LOGCABIN_{section}_{}", key.to_ascii_uppercase());
            let value = value.trim_matches(['[', ']', '"']);
            let value = value.replace("127.0.0.1:8449", &federation.to_string());
            settings.push((name, value.replace("example.org", &url_host(clients))));
        }
    }
    for expected in ["SERVER_PUBLIC_URL", "SERVER_TRUST_FORWARDED_FOR", "FEDERATION_BIND"] {
        let is_there = settings.iter().any(|(name, _)| name.ends_with(expected));
        assert!(is_there, "the example does not name {expected}");
    }
    let settings: Vec<_> = settings.iter().map(|(name, value)| (&**name, &**value)).collect();
    TestServer::start_alone_with(data, &settings).await
}

/// Replaces what must be in an example.
#[track_caller]
fn substitute(example: &mut String, what: &str, by: &str) {
    assert!(example.contains(what), "the example has no `{what}`");
    *example = example.replace(what, by);
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn url_host(address: SocketAddr) -> String {
    format!("localhost:{}", address.port())
}

fn url(address: SocketAddr, path: &str) -> String {
    format!("https://{}{path}", url_host(address))
}

/// The status and the body of what curl got.
#[track_caller]
fn answer(output: Output) -> (String, Vec<u8>) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "curl: {said}");
    (said, output.stdout)
}

/// Whatever a client or another homeserver does through the proxy works, and the server knows the
/// client's own address.
async fn serves(test: &str, program: Program) {
    let Some(behind) = Behind::start(test, program).await else { return };
    behind.server.register("ann").await;

    // The limit is that of the client's address, not the proxy's or one that a client makes up.
    let (status, body) = behind.log_in_from("127.0.0.2");
    assert_eq!(status, "200", "{body}");
    let bearer = format!("Authorization: Bearer {}", body["access_token"].as_str().expect("one"));
    let (status, body) = behind.log_in_from("127.0.0.2");
    assert_eq!(status, "429", "{body}");
    behind.server.prints("refused login address=127.0.0.2 ").await;
    let (status, body) = behind.log_in_from("127.0.0.3");
    assert_eq!(status, "200", "{body}");

    sync_waits_for_a_message(&behind, &bearer);
    large_files_pass(&behind, &bearer);

    // Other homeservers come to a port of their own or to that of clients.
    for address in [behind.homeservers, behind.clients] {
        let keys = url(address, "/_matrix/key/v2/server");
        let (status, body) = answer(behind.curl(&[], &keys).output().expect("curl runs"));
        let body: Value = serde_json::from_slice(&body).expect("an answer in JSON");
        assert_eq!((&*status, &body["server_name"]), ("200", &json!("localhost")), "{body}");
    }
    let told = behind.ok(&[], "/.well-known/matrix/client");
    assert_eq!(told["m.homeserver"]["base_url"], url(behind.clients, ""));
    let plain = format!("http://localhost:{}/a?b", behind.plain.port());
    let head = behind.curl(&["-I"], &plain).output().expect("curl runs");
    let (status, head) = answer(head);
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(["301", "308"].contains(&&*status), "{head}");
    assert!(head.contains("location: https://localhost"), "{head}");
}

/// A sync that waits is answered when there is something to tell.
fn sync_waits_for_a_message(behind: &Behind, bearer: &str) {
    let room = behind.ok(&["-H", bearer, "-d", "{}"], "/_matrix/client/v3/createRoom");
    let room = room["room_id"].as_str().expect("a room").to_owned();
    let first = behind.ok(&["-H", bearer], "/_matrix/client/v3/sync");
    let sync = |since: &Value| {
        let since = since.as_str().expect("a position");
        let path = format!("/_matrix/client/v3/sync?since={since}&timeout=30000");
        let mut curl = behind.curl(&["-H", bearer], &url(behind.clients, &path));
        curl.spawn().expect("curl runs")
    };
    let mut waiting = sync(&first["next_batch"]);
    let message = json!({ "msgtype": "m.text", "body": MESSAGE }).to_string();
    let path = format!("/_matrix/client/v3/rooms/{room}/send/m.room.message/1");
    behind.ok(&["-H", bearer, "-X", "PUT", "-d", &message], &path);
    for _ in 0..10 {
        let (status, news) = answer(waiting.wait_with_output().expect("curl ends"));
        let news: Value = serde_json::from_slice(&news).expect("an answer in JSON");
        assert_eq!(status, "200", "{news}");
        if news.to_string().contains(MESSAGE) {
            return;
        }
        waiting = sync(&news["next_batch"]);
    }
    panic!("no sync brought the message");
}

/// Proxies have limits and buffers of their own for what passes through them.
fn large_files_pass(behind: &Behind, bearer: &str) {
    let content: Vec<u8> =
        (0..5_000_000_u32).map(|number| (number.wrapping_mul(number) >> 8) as u8).collect();
    let path = behind.files.path().join("upload");
    fs::write(&path, &content).expect("the file can be written");
    let body = format!("@{}", path.display());
    let kind = "Content-Type: application/octet-stream";
    let arguments = ["-H", bearer, "-H", kind, "--data-binary", body.as_str()];
    let uploaded = behind.ok(&arguments, "/_matrix/media/v3/upload");
    let uri = uploaded["content_uri"].as_str().and_then(|uri| uri.strip_prefix("mxc://"));
    let path = format!("/_matrix/client/v1/media/download/{}", uri.expect("the address of a file"));
    let (status, got) = behind.ask(&["-H", bearer], &path);
    assert_eq!(status, "200", "{}", got.escape_ascii());
    assert!(got == content, "another file came back, of {} bytes", got.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_serves_as_its_example_says() {
    serves("nginx", Program::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caddy_serves_as_its_example_says() {
    serves("Caddy", Program::Caddy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_serves_as_its_example_says() {
    serves("HAProxy", Program::HaProxy).await;
}
