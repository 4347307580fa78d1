//! What the server speaks to besides its clients: a mail server (aiosmtpd, a process of its own), and
//! stand-ins for services that are asked over HTTP.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use warp::Filter;

use super::{runs, skip};

/// How long a mail may take to arrive. No test is about this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a mail server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    None,
    Starttls,
    Tls,
}

/// A mail server. Ends when dropped.
pub(crate) struct MailServer {
    process: Child,
    port: u16,
    security: Security,
    directory: TempDir,
    mails: Arc<(Mutex<Vec<Value>>, Condvar)>,
}

/// The name and password that a mail server wants.
const LOGIN: (&str, &str) = ("logcabin", "a secret of the mail server");

fn python() -> PathBuf {
    match std::env::var_os("LOGCABIN_E2E_PYTHON") {
        Some(python) => python.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("target/e2e/venv/bin/python"),
    }
}

impl MailServer {
    /// A mail server without any security; `None` after having said that `test` is skipped.
    pub(crate) fn start(test: &str) -> Option<Self> {
        Self::start_with(test, Security::None)
    }

    /// A mail server, which with TLS wants a login, too.
    pub(crate) fn start_with(test: &str, security: Security) -> Option<Self> {
        let python = python();
        if !runs(&python.to_string_lossy(), &["-c", "import aiosmtpd"]) {
            skip(test, &format!("{} with aiosmtpd is absent", python.display()));
            return None;
        }
        let directory = TempDir::new().expect("a temporary directory");
        let mut command = Command::new(python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/mail_server.py"));
        if security != Security::None {
            let (key, certificate) = (directory.path().join("key"), directory.path().join("cert"));
            let subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
            let made = Command::new("openssl")
                .args(["req", "-x509", "-nodes", "-days", "30", "-newkey", "ec", "-pkeyopt"])
                .args(["ec_paramgen_curve:prime256v1", "-addext", "basicConstraints=CA:FALSE"])
                .args(subject)
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&certificate)
                .output();
            if !made.is_ok_and(|made| made.status.success()) {
                skip(test, "openssl is absent");
                return None;
            }
            let security = if security == Security::Tls { "tls" } else { "starttls" };
            command.args(["--security", security, "--user", LOGIN.0, "--password", LOGIN.1]);
            command.arg("--certificate").arg(certificate).arg("--key").arg(key);
        }
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.expect("the mail server can be started");
        let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let first = lines.next().expect("the mail server tells its port").expect("a line");
        let first: Value = serde_json::from_str(&first).expect("JSON");
        let port = first["port"].as_u64().and_then(|port| port.try_into().ok()).expect("a port");
        let mails = Arc::<(Mutex<Vec<Value>>, Condvar)>::default();
        let told = Arc::clone(&mails);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mail = serde_json::from_str(&line).expect("JSON");
                told.0.lock().unwrap_or_else(PoisonError::into_inner).push(mail);
                told.1.notify_all();
            }
        });
        Some(Self { process, port, security, directory, mails })
    }

    /// The settings by which a server sends its mail here.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let mut settings = vec![
            ("LOGCABIN_EMAIL_HOST".to_owned(), "localhost".to_owned()),
            ("LOGCABIN_EMAIL_PORT".to_owned(), self.port.to_string()),
            ("LOGCABIN_EMAIL_FROM".to_owned(), "Test <noreply@e2e.test>".to_owned()),
        ];
        let security = match self.security {
            Security::None => "none",
            Security::Starttls => "starttls",
            Security::Tls => "tls",
        };
        settings.push(("LOGCABIN_EMAIL_SECURITY".to_owned(), security.to_owned()));
        if self.security != Security::None {
            let certificate = self.directory.path().join("cert").display().to_string();
            let password = self.directory.path().join("password");
            std::fs::write(&password, format!("{}\n", LOGIN.1)).expect("a file can be written");
            let password = password.display().to_string();
            settings.push(("LOGCABIN_EMAIL_CERTIFICATES".to_owned(), certificate));
            settings.push(("LOGCABIN_EMAIL_USER".to_owned(), LOGIN.0.to_owned()));
            settings.push(("LOGCABIN_EMAIL_PASSWORD_FILE".to_owned(), password));
        }
        settings
    }

    /// Where it listens on this machine.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// All mail for `to` so far.
    pub(crate) fn mails(&self, to: &str) -> Vec<Value> {
        let mails = self.mails.0.lock().unwrap_or_else(PoisonError::into_inner);
        mails.iter().filter(|mail| mail["to"][0] == to).cloned().collect()
    }

    /// The mail of this number (from 0) for `to`, once it is there.
    pub(crate) fn mail(&self, to: &str, number: usize) -> Value {
        let until = Instant::now() + PATIENCE;
        let mut mails = self.mails.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut found = mails.iter().filter(|mail| mail["to"][0] == to);
            if let Some(mail) = found.nth(number) {
                return mail.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "mail {number} for {to} did not arrive");
            let waited = self.mails.1.wait_timeout(mails, left);
            mails = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A way to a service on this machine that can be closed.
pub(crate) struct Gate {
    port: u16,
    open: Arc<watch::Sender<bool>>,
    serving: JoinHandle<()>,
}

impl Gate {
    /// An open gate before the service at this port.
    pub(crate) async fn start(to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let open = Arc::new(watch::Sender::new(true));
        let gate = Arc::clone(&open);
        let serving = tokio::spawn(async move {
            // Aborted with the task.
            let mut connections = JoinSet::new();
            loop {
                let Ok((mut from, _)) = listener.accept().await else { continue };
                let mut open = gate.subscribe();
                connections.spawn(async move {
                    let through = async {
                        let mut to = TcpStream::connect(("127.0.0.1", to)).await?;
                        tokio::io::copy_bidirectional(&mut from, &mut to).await
                    };
                    tokio::select! {
                        _ = through => {}
                        _ = open.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Self { port, open, serving }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Cuts all connections, and lets none through.
    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The link of a mail: its path and query.
#[track_caller]
pub(crate) fn link(mail: &Value) -> String {
    let plain = mail["plain"].as_str().unwrap_or_default();
    let link = plain.split_whitespace().find(|word| word.starts_with("http://"));
    let link = link.unwrap_or_else(|| panic!("no link in {mail}"));
    let html = mail["html"].as_str().unwrap_or_default();
    assert!(html.contains(&link.replace('&', "&amp;")), "the HTML has another link: {html}");
    let path = link.splitn(4, '/').nth(3).expect("a path");
    format!("/{path}")
}

/// A request to a stand-in.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// A service that is asked over HTTP: answers each request as it is told to, and remembers it.
pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl StandIn {
    /// A service that answers with a status and a body.
    pub(crate) async fn start(
        answer: impl Fn(&Asked) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let remembered = Arc::clone(&asked);
        let served = warp::path::full()
            .and(warp::header::headers_cloned())
            .and(warp::body::bytes())
            .map(move |path: warp::path::FullPath, headers: HeaderMap, body: Bytes| {
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let asked = Asked { path: path.as_str().to_owned(), headers, body };
                let (status, body) = answer(&asked);
                remembered.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
                let status = StatusCode::from_u16(status).expect("a status");
                let text = if body.is_null() { String::new() } else { body.to_string() };
                Response::builder().status(status).body(text).expect("a response")
            });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(warp::serve(served).incoming(listener).run());
        Self { address, asked }
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
