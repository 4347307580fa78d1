//! The server as a process of its own: started, killed, stopped, started again on the same data.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use logcabin::source::Source;
use tempfile::TempDir;

use super::nodes::{self, NodePlan, Nodes};
use super::{Http, User, free_address, until};

/// How long a server may take to answer its first request. Generous: the machine may be busy, and
/// no test is about this.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long a server may take to end after SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// A running `logcabin serve` on a port and a data directory of its own.
pub(crate) struct TestServer {
    /// Removed when the server is dropped; `None` for a directory the test owns.
    _temporary: Option<TempDir>,
    data_dir: PathBuf,
    address: SocketAddr,
    /// A program that runs the server, for example `strace` and its arguments.
    wrapper: Vec<OsString>,
    /// Environment variables of the server.
    settings: Vec<(String, String)>,
    child: Option<Child>,
    /// Where a server is a cluster: the other nodes, and what they share.
    cluster: Option<Nodes>,
    others: Vec<Child>,
    output: Arc<Mutex<String>>,
}

impl TestServer {
    /// Starts a server on an empty data directory.
    pub(crate) async fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let data_dir = directory.path().join("data");
        Self::launch(Some(directory), data_dir, Vec::new()).await
    }

    /// Starts a server on a data directory that the caller owns.
    pub(crate) async fn start_on(data_dir: &Path) -> Self {
        Self::launch(None, data_dir.to_owned(), Vec::new()).await
    }

    /// The same, alone even where the tests run on a cluster.
    pub(crate) async fn start_embedded_on(data_dir: &Path) -> Self {
        let mut server = Self::new(None, data_dir.to_owned(), Vec::new());
        server.cluster = None;
        server.spawn().await;
        server
    }

    /// Starts a server with settings of its own, as environment variables.
    pub(crate) async fn start_with(settings: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let data_dir = directory.path().join("data");
        let mut server = Self::new(Some(directory), data_dir, Vec::new());
        let given = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        server.settings.extend(given);
        server.spawn().await;
        server
    }

    /// Starts a server with settings of its own on a data directory that the caller owns.
    pub(crate) async fn start_on_with(data_dir: &Path, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::new(None, data_dir.to_owned(), Vec::new());
        let given = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        server.settings.extend(given);
        server.spawn().await;
        server
    }

    /// The same, alone even where the tests run on a cluster.
    pub(crate) async fn start_alone_with(data_dir: &Path, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::new(None, data_dir.to_owned(), Vec::new());
        server.cluster = None;
        // Those of a cluster that are in there would make it a node.
        server.settings.truncate(2);
        let given = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        server.settings.extend(given);
        server.spawn().await;
        server
    }

    /// Starts a server that listens where another one did, on a data directory that the caller
    /// owns: it is alone.
    pub(crate) async fn start_at(
        address: SocketAddr,
        data_dir: &Path,
        settings: &[(&str, &str)],
    ) -> Self {
        let mut server = Self::new(None, data_dir.to_owned(), Vec::new());
        server.cluster = None;
        server.settings.truncate(2);
        server.address = address;
        let given = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        server.settings.extend(given);
        server.spawn().await;
        server
    }

    /// Starts a server under another program.
    pub(crate) async fn start_under(wrapper: Vec<OsString>) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let data_dir = directory.path().join("data");
        Self::launch(Some(directory), data_dir, wrapper).await
    }

    async fn launch(temporary: Option<TempDir>, data_dir: PathBuf, wrapper: Vec<OsString>) -> Self {
        let mut server = Self::new(temporary, data_dir, wrapper);
        server.spawn().await;
        server
    }

    fn new(temporary: Option<TempDir>, data_dir: PathBuf, wrapper: Vec<OsString>) -> Self {
        // Tests register many users; none of them is worth a guess at its password.
        let iterations = ("LOGCABIN_PASSWORDS_ITERATIONS".to_owned(), "1000".to_owned());
        let unlimited = ("LOGCABIN_RATE_LIMITS_ENABLED".to_owned(), "false".to_owned());
        let (address, nodes) = (free_address(), nodes::count());
        let cluster = (nodes > 1 && wrapper.is_empty()).then(|| Nodes::new(nodes, address));
        let shared = cluster.as_ref().map(Nodes::settings).unwrap_or_default();
        Self {
            _temporary: temporary,
            data_dir,
            address,
            wrapper,
            settings: [iterations, unlimited].into_iter().chain(shared).collect(),
            child: None,
            cluster,
            others: Vec::new(),
            output: Arc::default(),
        }
    }

    /// Starts the process and waits until it answers.
    async fn spawn(&mut self) {
        let nodes = match &self.cluster {
            Some(cluster) => {
                cluster.adopt(&self.data_dir, &self.settings);
                cluster.plans(&self.data_dir, &self.settings)
            }
            None => {
                let (bind, data_dir) = (self.address.to_string().into(), self.data_dir.clone());
                let arguments = vec!["--bind".into(), bind, "--data-dir".into(), data_dir.into()];
                vec![NodePlan { address: self.address, arguments, settings: Vec::new() }]
            }
        };
        for (number, node) in nodes.iter().enumerate() {
            let child = self.start_process(node);
            match number {
                0 => self.child = Some(child),
                _ => self.others.push(child),
            }
        }
        for NodePlan { address, .. } in nodes {
            self.wait_until_ready(&Http::new(&format!("http://{address}"))).await;
        }
        self.wait_until_ready(&self.http()).await;
    }

    fn start_process(&self, node: &NodePlan) -> Child {
        let mut line = self.wrapper.iter().cloned().chain([program()]);
        let mut command = Command::new(line.next().expect("at least the program itself"));
        let has_name = self.settings.iter().any(|(name, _)| name == "LOGCABIN_SERVER_NAME");
        let name: &[&str] = if has_name { &[] } else { &["--server-name", "e2e.test"] };
        without_settings(&mut command)
            .args(line)
            .arg("serve")
            .args(name)
            .envs(self.settings.iter().chain(&node.settings).map(|(name, value)| (name, value)))
            .args(&node.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {:?}: {error}", command.get_program()));
        collect(child.stdout.take().expect("stdout is piped"), &self.output);
        collect(child.stderr.take().expect("stderr is piped"), &self.output);
        child
    }

    async fn wait_until_ready(&mut self, http: &Http) {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let asked = http.try_request("GET", "/_matrix/client/versions", None, None);
            let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
            if asked.is_ok_and(|asked| asked.is_ok_and(|answer| answer.status == 200)) {
                return;
            }
            for child in self.child.iter_mut().chain(&mut self.others) {
                if let Some(status) = child.try_wait().expect("the child can be asked") {
                    panic!("the server ended at start ({status}):\n{}", self.output());
                }
            }
            if Instant::now() > deadline {
                panic!("the server did not answer within {READY_WITHIN:?}:\n{}", self.output());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The address to speak to, for example `http://127.0.0.1:34567`.
    pub(crate) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client with connections of its own.
    pub(crate) fn http(&self) -> Http {
        Http::new(&self.base())
    }

    /// Where the server keeps its data.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Waits until the archive has the records that the log has now.
    pub(crate) async fn until_archived(&self) {
        let end_of = |place: &str| {
            let end = || Source::open(place).and_then(|source| source.end());
            tokio::task::block_in_place(end)
        };
        let end = end_of(&format!("unix:{}", self.data_dir.join("admin.sock").display()));
        let end = end.expect("the end of the log");
        let archive = self.data_dir.join("archive").display().to_string();
        // There is none before the first record is archived.
        let archived = || end_of(&archive).is_ok_and(|archived| archived >= end);
        until("the archive has caught up", async || archived()).await;
    }

    pub(crate) async fn register(&self, username: &str) -> User {
        User::register(&self.http(), username, "a password that is long enough").await
    }

    /// What the server has printed so far.
    pub(crate) fn output(&self) -> String {
        self.output.lock().expect("no test thread panicked while it printed").clone()
    }

    /// Waits until the server has printed `text`: its output does not come with its answers.
    pub(crate) async fn prints(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.output().contains(text) {
            assert!(Instant::now() < deadline, "no `{text}` in {}", self.output());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The id of its process.
    pub(crate) fn process(&self) -> Option<u32> {
        serving_process(self.child.as_ref()?, !self.wrapper.is_empty())
    }

    /// The most memory that the server has taken so far, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let child = self.child.as_ref().expect("the server runs");
        let id = serving_process(child, !self.wrapper.is_empty()).expect("the server runs");
        let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the server runs");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.trim().strip_suffix("kB")?.trim().parse().ok());
        let kilobytes: u64 = peak.unwrap_or_else(|| panic!("no peak of memory in {status}"));
        1024 * kilobytes
    }

    /// Has the server read its configuration and certificates again.
    pub(crate) fn hang_up(&self) {
        self.signal("HUP");
    }

    /// Kills the server with SIGKILL: it gets no chance to write anything more.
    pub(crate) fn kill9(&mut self) {
        self.signal("KILL");
        let mut child = self.child.take().expect("the server runs");
        child.wait().expect("the server can be waited for");
        for mut child in self.others.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks the server to end (SIGTERM), waits for it, and demands that it ends well.
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        let mut child = self.child.take().expect("the server runs");
        let Some(status) = wait(&mut child, STOP_WITHIN) else {
            self.child = Some(child);
            panic!("still running {STOP_WITHIN:?} after SIGTERM");
        };
        assert!(status.success(), "the server ended with {status}:\n{}", self.output());
        for child in &self.others {
            signal("TERM", child.id());
        }
        for mut child in std::mem::take(&mut self.others) {
            let status = wait(&mut child, STOP_WITHIN).expect("a node ends after SIGTERM");
            assert!(status.success(), "a node ended with {status}:\n{}", self.output());
        }
    }

    fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("the server runs");
        let process = serving_process(child, !self.wrapper.is_empty());
        let sent = process.is_some_and(|process| signal(name, process));
        assert!(sent, "cannot send SIG{name}: the server is gone:\n{}", self.output());
    }

    /// Starts the server again on the same data and port; kills it first if it runs.
    pub(crate) async fn restart(&mut self) {
        if self.child.is_some() {
            self.kill9();
        }
        self.spawn().await;
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            if let Some(process) = serving_process(child, !self.wrapper.is_empty()) {
                signal("KILL", process);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        for child in &mut self.others {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            let output = self.output.lock().map(|output| output.clone()).unwrap_or_default();
            let skipped = output.lines().count().saturating_sub(60);
            let tail: Vec<&str> = output.lines().skip(skipped).collect();
            println!("--- the server's last {} lines ---\n{}", tail.len(), tail.join("\n"));
        }
    }
}

/// Runs the program with `arguments`, and kills it after this time if it has not ended by itself.
/// Returns whether it had ended well.
pub(crate) fn run_and_kill<I, S>(arguments: I, after: Duration) -> bool
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut child = logcabin_command()
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("logcabin can be started");
    let ended = wait(&mut child, after);
    // SIGKILL: it gets no chance to write anything more.
    let _ = child.kill();
    let _ = child.wait();
    ended.is_some_and(|status| status.success())
}

/// Runs the program with `arguments` to its end.
pub(crate) fn run_logcabin<I, S>(arguments: I) -> Output
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    logcabin_command()
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("logcabin can be started")
}

/// The output of a server that must refuse to start with these settings and arguments.
#[track_caller]
pub(crate) fn refused_start(settings: &[(&str, &str)], arguments: &[&str]) -> String {
    let directory = TempDir::new().expect("a temporary directory");
    refused_start_on(&directory.path().join("data"), settings, arguments)
}

/// The same on a data directory that the caller owns.
#[track_caller]
pub(crate) fn refused_start_on(
    data_dir: &Path,
    settings: &[(&str, &str)],
    arguments: &[&str],
) -> String {
    let mut child = logcabin_command()
        .args(["serve", "--bind", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .args(arguments)
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("logcabin can be started");
    let status = wait(&mut child, READY_WITHIN);
    let _ = child.kill();
    let output = child.wait_with_output().expect("logcabin can be waited for");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = status.unwrap_or_else(|| panic!("it started with {settings:?}: {said}"));
    assert!(!status.success(), "{settings:?}: {said}");
    said
}

/// Like [`run_logcabin`], with something to read on standard input.
pub(crate) fn run_logcabin_with<I, S>(input: &str, arguments: I) -> Output
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut child = logcabin_command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("logcabin can be started");
    // A program that wants no input may have ended.
    let _ = child.stdin.take().expect("stdin is piped").write_all(input.as_bytes());
    child.wait_with_output().expect("logcabin can be waited for")
}

/// The program under test: this build's, or what `LOGCABIN_E2E_PROGRAM` names, such as a release.
pub(crate) fn program() -> OsString {
    env::var_os("LOGCABIN_E2E_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_logcabin").into())
}

/// The program, without the settings of the test's own environment.
pub(crate) fn logcabin_command() -> Command {
    let mut command = Command::new(program());
    without_settings(&mut command);
    command
}

/// Rebuilds a data directory from an archive.
#[track_caller]
pub(crate) fn restore(archive: &Path, data_dir: &Path) {
    let output = run_logcabin([
        "restore".as_ref(),
        "--from-archive".as_ref(),
        archive.as_os_str(),
        "--data-dir".as_ref(),
        data_dir.as_os_str(),
    ]);
    assert!(
        output.status.success(),
        "`logcabin restore` ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The tests' own variables begin like the server's settings, and the server refuses unknown ones.
pub(crate) fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("LOGCABIN_") {
            command.env_remove(name);
        }
    }
    command
}

/// Collects what a process prints, in a thread of its own.
fn collect(stream: impl Read + Send + 'static, output: &Arc<Mutex<String>>) {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let mut output = output.lock().expect("no test thread panicked while it printed");
            output.push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
}

/// The process id of the server: the child itself, or the child's child under a wrapper. `None`
/// when a wrapper has none.
fn serving_process(child: &Child, wrapped: bool) -> Option<u32> {
    let id = child.id();
    if !wrapped {
        return Some(id);
    }
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Sends a signal and returns whether that went well. It uses the `kill` program, because the crate
/// forbids unsafe code, and one dependency for one call is too much.
fn signal(name: &str, process: u32) -> bool {
    Command::new("kill")
        .args(["-s", name, &process.to_string()])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Waits for a process with a limit.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("the child can be asked") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}
