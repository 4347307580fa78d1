//! Load balancers and service managers learn how the server is.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::administration::{command, done};
use crate::harness::{
    Http, PATIENCE, TestServer, encode, free_address, logcabin_command, program, until, until_ok,
    without_settings,
};

#[tokio::test]
async fn a_server_that_works_is_ready() {
    let server = TestServer::start().await;
    let http = server.http();
    let live = http.raw("GET", "/health/live", &[], "").await;
    assert_eq!(live.header("cache-control"), "no-store");
    assert_eq!(live.json().ok(), json!({ "status": "live" }));
    let ready = http.request("GET", "/health/ready", None, None).await;
    assert_eq!(ready.ok(), json!({ "status": "ready" }));
}

#[tokio::test]
async fn a_server_whose_disk_is_nearly_full_is_alive_and_not_ready() {
    let all = [("LOGCABIN_LOG_MIN_FREE_BYTES", "1099511627776")];
    let directory = TempDir::new().expect("a temporary directory");
    let data = directory.path().join("data");
    // The first record has to be written.
    TestServer::start_on(&data).await.stop();
    let server = TestServer::start_on_with(&data, &all).await;
    let http = server.http();
    assert_eq!(http.request("GET", "/health/live", None, None).await.status, 200);
    let ready = http.request("GET", "/health/ready", None, None).await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.body["status"], "unready");
    assert_eq!(ready.body["reasons"][0]["check"], "log");
    let reason = ready.body["reasons"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("free space") && !reason.contains('/'), "{reason}");
}

/// Asks again if the connection is closed: one whose request is late makes room for others.
async fn persistently(http: &Http, path: &str, token: Option<&str>) -> Value {
    loop {
        match http.try_request("GET", path, token, None).await {
            Ok(answer) => return answer.ok(),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_checks_and_commands_do_not_wait_for_syncs_that_hold_every_connection() {
    // Without limits for each address, of which the test has one.
    let settings =
        [("LOGCABIN_HTTP_MAX_CONNECTIONS", "4"), ("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let server = TestServer::start_with(&settings).await;
    let ann = server.register("ann").await;
    let mut since = None::<String>;
    for _ in 0..2 {
        let news = ann.sync(since.as_deref(), 0, None).await;
        since = news["next_batch"].as_str().map(str::to_owned);
    }
    let since = since.expect("a token of all news");
    let answered = Arc::new(AtomicUsize::new(0));
    for _ in 0..12 {
        let (http, token) = (server.http(), ann.access_token.clone());
        let path = format!("/_matrix/client/v3/sync?timeout=300000&since={}", encode(&since));
        let answered = Arc::clone(&answered);
        tokio::spawn(async move {
            // The last of them are not answered before the server is gone.
            assert!(persistently(&http, &path, Some(&token)).await["next_batch"].is_string());
            answered.fetch_add(1, Ordering::Relaxed);
        });
    }
    // As many as there are places wait; those before made room for them.
    until("syncs are answered early", async || answered.load(Ordering::Relaxed) >= 8).await;
    for _ in 0..3 {
        let live = persistently(&server.http(), "/health/live", None).await;
        assert_eq!(live, json!({ "status": "live" }));
    }
    let shown = done(command("status", server.data_dir(), "--config /dev/null", ""));
    assert!(shown.contains("running, process"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_tells_whether_the_server_is_ready() {
    let directory = TempDir::new().expect("a temporary directory");
    let data = directory.path().join("data");
    let file = directory.path().join("logcabin.toml").display().to_string();
    let ready = |server: &TestServer| {
        let address = server.base().replace("http://", "");
        let text = format!("[server]\nbind = [\"{address}\"]\n");
        fs::write(&file, text).expect("the file can be written");
        let asked = command("status", &data, &format!("--ready --config {file}"), "");
        let said = [asked.stdout, asked.stderr].concat();
        (asked.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let mut server = TestServer::start_on(&data).await;
    assert_eq!(ready(&server), (Some(0), "The server is ready.\n".to_owned()));
    server.stop();
    let (code, said) = ready(&server);
    assert!(code == Some(1) && said.contains("does not answer"), "{said}");
    let full = [("LOGCABIN_LOG_MIN_FREE_BYTES", "1099511627776")];
    let server = TestServer::start_on_with(&data, &full).await;
    let (code, said) = ready(&server);
    assert!(code == Some(1) && said.contains("too little free space"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_is_alive_and_not_ready_and_its_service_manager_is_told() {
    let directory = TempDir::new().expect("a temporary directory");
    let data = directory.path().join("data");
    TestServer::start_on(&data).await.stop();
    // A start looks at every snapshot, and waits for the content of this one.
    let snapshots = data.join("snapshots");
    fs::create_dir_all(&snapshots).expect("the directory can be made");
    let pipe = snapshots.join("1000000.snapshot");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    let socket = directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a time limit");

    let address = free_address();
    let mut child = logcabin_command()
        .args(["serve", "--server-name", "e2e.test", "--bind", &address.to_string()])
        .arg("--data-dir")
        .arg(&data)
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "200000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server can be started");
    let http = Http::new(&format!("http://{address}"));
    let ask = async |path: &'static str| http.try_request("GET", path, None, None).await;
    let live = until_ok("the server answers", async || ask("/health/live").await).await;
    assert_eq!(live.ok(), json!({ "status": "live" }));
    let ready = ask("/health/ready").await.expect("an answer");
    assert_eq!(ready.status, 503);
    assert_eq!(ready.body["reasons"][0]["check"], "projections");
    let path = format!("http://{address}/_matrix/client/versions");
    let request = Request::get(path).body(Full::default()).expect("a request");
    let other = http.try_raw(request).await.expect("an answer");
    assert_eq!((other.parts.status.as_u16(), other.header("retry-after")), (503, "5"));
    let told = receive(&manager);
    assert!(told.contains("EXTEND_TIMEOUT_USEC=60000000"), "{told}");

    fs::write(&pipe, b"not a snapshot").expect("the pipe can be written to");
    until_ok("the server is ready", async || match ask("/health/ready").await {
        Ok(answer) if answer.status == 200 => Ok(()),
        Ok(answer) => Err(answer.to_string()),
        Err(error) => Err(error.to_string()),
    })
    .await;
    assert_eq!(ask("/_matrix/client/versions").await.expect("an answer").status, 200);
    until_told(&manager, "READY=1");
    until_told(&manager, "WATCHDOG=1");
    until_told(&manager, "WATCHDOG=1");
    let killed = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    until_told(&manager, "STOPPING=1");
    assert!(child.wait().expect("it ends").success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_listens_on_the_sockets_that_its_service_manager_opened() {
    let directory = TempDir::new().expect("a temporary directory");
    let [clients, servers] =
        [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let [for_clients, for_servers] =
        [&clients, &servers].map(|of| Http::new(&format!("http://{}", of.local_addr().unwrap())));
    let settings = [
        ("LOGCABIN_SERVER_NAME", "e2e.test"),
        ("LOGCABIN_SERVER_BIND", "192.0.2.1:1"),
        ("LOGCABIN_FEDERATION_ENABLED", "true"),
    ];
    let data = directory.path().join("data");
    let start = |names: &str| start_on_sockets([&clients, &servers], names, &data, &settings);
    let refused = start("client:console").wait_with_output().expect("it ends");
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && complaint.contains("`console`"), "{complaint}");

    let mut child = start("client:federation");
    ignore_complaints(&mut child);
    let ready = async || match for_clients.try_request("GET", "/health/ready", None, None).await {
        Ok(answer) if answer.status == 200 => Ok(()),
        Ok(answer) => Err(answer.to_string()),
        Err(error) => Err(error.to_string()),
    };
    until_ok("the server is ready", ready).await;
    for_servers.request("GET", "/_matrix/federation/v1/version", None, None).await.ok();
    terminate(&mut child);
}

/// Starts a server on two sockets with these names, as a service manager does.
pub(crate) fn start_on_sockets(
    sockets: [&TcpListener; 2],
    names: &str,
    data: &Path,
    settings: &[(&str, &str)],
) -> Child {
    let mut command = Command::new("sh");
    let [first, second] = sockets.map(|of| of.try_clone().expect("a copy"));
    // The shell gives them the numbers that the protocol demands.
    without_settings(&mut command)
        .args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\" 3<&0 4<&1 </dev/null >&2"])
        .arg(program())
        .args(["serve", "--data-dir"])
        .arg(data)
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", names)
        .envs(settings.iter().copied())
        .stdin(OwnedFd::from(first))
        .stdout(OwnedFd::from(second))
        .stderr(Stdio::piped());
    command.spawn().expect("the server can be started")
}

/// Reads what a server logs, so that it never waits for that.
pub(crate) fn ignore_complaints(child: &mut Child) {
    let complaints = child.stderr.take().expect("stderr is piped");
    std::thread::spawn(move || std::io::copy(&mut { complaints }, &mut std::io::sink()));
}

/// Stops a server as a service manager does.
#[track_caller]
pub(crate) fn terminate(child: &mut Child) {
    let killed = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert!(child.wait().expect("it ends").success());
}

fn receive(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 1024];
    let length = manager.recv(&mut buffer).expect("the manager is told");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn until_told(manager: &UnixDatagram, what: &str) {
    while !receive(manager).lines().any(|line| line == what) {}
}
