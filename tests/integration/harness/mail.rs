//! A mail server: aiosmtpd, a process of its own.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::skip;
use super::tools::{self, Lines};

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
    /// Its input, and the number of the last mark that it was asked for.
    stdin: Mutex<(ChildStdin, u64)>,
    port: u16,
    security: Security,
    directory: TempDir,
    /// The lines of the process, most of which are mails.
    told: Lines,
}

/// The name and password that a mail server requires.
const LOGIN: (&str, &str) = ("logcabin", "a secret of the mail server");

impl MailServer {
    /// A mail server without any security; `None` after having said that `test` is skipped.
    pub(crate) fn start(test: &str) -> Option<Self> {
        Self::start_with(test, Security::None)
    }

    /// A mail server, which with TLS also requires a login.
    pub(crate) fn start_with(test: &str, security: Security) -> Option<Self> {
        let python = match tools::python("aiosmtpd") {
            Ok(python) => python,
            Err(missing) => {
                skip(test, &missing);
                return None;
            }
        };
        let directory = TempDir::new().expect("a temporary directory");
        let mut command = Command::new(python);
        command.arg(tools::programs().join("mail_server.py"));
        if security != Security::None {
            let (key, certificate) = match tools::certificate(directory.path()) {
                Ok(files) => files,
                Err(missing) => {
                    skip(test, &missing);
                    return None;
                }
            };
            let security = if security == Security::Tls { "tls" } else { "starttls" };
            command.args(["--security", security, "--user", LOGIN.0, "--password", LOGIN.1]);
            command.arg("--certificate").arg(certificate).arg("--key").arg(key);
        }
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.expect("the mail server can be started");
        let stdin = Mutex::new((process.stdin.take().expect("stdin is piped"), 0));
        let told = Lines::of(process.stdout.take().expect("stdout is piped"));
        let port = told.wait("its port", |told| told.first()?["port"].as_u64()?.try_into().ok());
        Some(Self { process, stdin, port, security, directory, told })
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

    /// All mail for `to` that it has taken so far, including mail that is still on its way from the
    /// process.
    pub(crate) fn mails(&self, to: &str) -> Vec<Value> {
        let mark = {
            let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
            stdin.1 += 1;
            let mark = stdin.1.to_string();
            writeln!(stdin.0, "{mark}").expect("the mail server runs");
            mark
        };
        self.told.wait("what it was told", |told| {
            told.iter().any(|line| line["again"] == mark).then(|| {
                told.iter().filter(|line| line["to"][0] == to).cloned().collect::<Vec<_>>()
            })
        })
    }

    /// The mail of this number (from 0) for `to`, once it is there.
    pub(crate) fn mail(&self, to: &str, number: usize) -> Value {
        self.told.wait(&format!("mail {number} for {to}"), |told| {
            told.iter().filter(|line| line["to"][0] == to).nth(number).cloned()
        })
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
