//! A NATS server for tests.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::NatsOptions;
use logcabin_base::clock::{Clock, random_letters};

/// The program: that which `LOGCABIN_NATS_SERVER` names, or that of `.ci/run`.
fn program() -> PathBuf {
    match env::var_os("LOGCABIN_NATS_SERVER") {
        Some(program) => program.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/e2e/venv/bin/nats-server"),
    }
}

/// A server with JetStream, on a port and a directory of its own.
pub(crate) struct NatsServer {
    dir: tempfile::TempDir,
    port: u16,
    process: Child,
}

impl NatsServer {
    /// Starts a server; `None` if there is no program on this machine, which is an error in CI.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let program = program();
        if Command::new(&program).arg("--version").output().is_err() {
            let message = format!("SKIPPED: {test}: nats-server is absent (install with .ci/run)");
            assert!(env::var_os("CI").is_none(), "{message}: in CI this is a failure");
            // Not captured by the test runner.
            let _ = writeln!(std::io::stderr(), "\n{message}");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\nmax_payload: 8MB\n\
             jetstream {{ store_dir: {:?}, sync_interval: always, max_file_store: 4GB }}\n",
            dir.path()
        );
        fs::write(dir.path().join("nats.conf"), config).unwrap();
        let process = Self::spawn(&program, dir.path(), port);
        Some(Self { dir, port, process })
    }

    fn spawn(program: &Path, dir: &Path, port: u16) -> Child {
        let process = Command::new(program)
            .arg("--config")
            .arg(dir.join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "nats-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        process
    }

    /// Options of a node on a stream of this server.
    pub(crate) fn options(&self, stream: &str) -> NatsOptions {
        NatsOptions {
            servers: vec![format!("nats://127.0.0.1:{}", self.port)],
            stream: stream.to_owned(),
            replicas: 1,
            max_bytes: 1 << 30,
            credentials: None,
            ca: None,
            node: random_letters(6),
            clock: Clock::manual(1_000),
        }
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the server again after it was killed.
    pub(crate) fn restart(&mut self) {
        self.process = Self::spawn(&program(), self.dir.path(), self.port);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
