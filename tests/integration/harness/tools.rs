//! Tools that tests need besides Rust, found or reported as missing, and the output of programs.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::{PATIENCE, runs};

/// The folder of programs built on other people's libraries.
pub(crate) fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e")
}

/// Runs a program that makes its own checks, and returns its output.
pub(crate) async fn judged(name: &str, mut program: Command) -> String {
    let run = tokio::task::spawn_blocking(move || program.output()).await;
    let output = match run {
        Ok(Ok(output)) => output,
        other => panic!("{name} did not run: {other:?}"),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}");
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} said last:\n{said}\n{complained}");
    said
}

/// A Python that has this module; `LOGCABIN_E2E_PYTHON` names another than that of `.ci/run`.
pub(crate) fn python(module: &str) -> Result<PathBuf, String> {
    let named = env::var_os("LOGCABIN_E2E_PYTHON").map(PathBuf::from);
    with_module(named.unwrap_or_else(|| of_venv("venv")), module)
}

/// A Python that has this module, for programs that need other versions of their dependencies.
pub(crate) fn python_of_programs(module: &str) -> Result<PathBuf, String> {
    with_module(of_venv("programs"), module)
}

/// A Python that has LiveKit's library.
pub(crate) fn python_for_livekit() -> Result<PathBuf, String> {
    with_module(of_venv("livekit"), "livekit.api")
}

fn of_venv(venv: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/e2e").join(venv).join("bin/python")
}

fn with_module(python: PathBuf, module: &str) -> Result<PathBuf, String> {
    if runs(&python.to_string_lossy(), &["-c", &format!("import {module}")]) {
        Ok(python)
    } else {
        Err(format!("{} with {module} is absent", python.display()))
    }
}

/// Checks that there is Node.js with this package.
pub(crate) fn node(package: &str) -> Result<(), String> {
    if !runs("node", &["--version"]) {
        return Err("node is absent".to_owned());
    }
    let is_there = programs().join("node_modules").join(package).is_dir();
    if is_there { Ok(()) } else { Err(format!("{package} is absent")) }
}

/// A Chromium; `LOGCABIN_E2E_CHROMIUM` names another than that of Debian.
pub(crate) fn chromium() -> Result<String, String> {
    let chromium =
        env::var("LOGCABIN_E2E_CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
    if runs(&chromium, &["--version"]) {
        Ok(chromium)
    } else {
        Err(format!("{chromium} is absent"))
    }
}

/// Checks that there is Prometheus with its tool.
pub(crate) fn prometheus() -> Result<(), String> {
    for program in ["prometheus", "promtool"] {
        if !runs(program, &["--version"]) {
            return Err(format!("{program} is absent"));
        }
    }
    Ok(())
}

/// What is to be loaded into a program so that its clock is another (Debian's `faketime`).
pub(crate) fn faketime() -> Option<PathBuf> {
    // Not what the program `faketime` prints: it fails where an ended process left files of its
    // number.
    let machines = fs::read_dir("/usr/lib").ok()?.flatten();
    let mut libraries = machines.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    libraries.find(|library| library.exists())
}

/// Removes the shared memory of a killed process that `faketime()` was loaded into, which would
/// disturb the next process of this number.
pub(crate) fn forget_faketime(process: &str) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
    }
}

/// A key and a certificate for `localhost`, in PEM, signed by itself.
pub(crate) fn certificate(directory: &Path) -> Result<(PathBuf, PathBuf), String> {
    let (key, certificate) = (directory.join("key"), directory.join("cert"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "30", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:prime256v1", "-addext", "basicConstraints=CA:FALSE"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output();
    let made = made.is_ok_and(|made| made.status.success());
    made.then_some((key, certificate)).ok_or_else(|| "openssl is absent".to_owned())
}

/// The standard output of a process, in lines of JSON.
pub(crate) struct Lines {
    told: Arc<(Mutex<Told>, Condvar)>,
}

#[derive(Default)]
struct Told {
    lines: Vec<Value>,
    /// Nothing more will come.
    ended: bool,
}

impl Lines {
    /// Reads them in a thread of its own.
    pub(crate) fn of(stdout: ChildStdout) -> Self {
        let told = Arc::<(Mutex<Told>, Condvar)>::default();
        let telling = Arc::clone(&told);
        thread::spawn(move || {
            let (told, bell) = &*telling;
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line);
                let line = line.unwrap_or_else(|error| panic!("not a line of JSON: {error}"));
                told.lock().unwrap_or_else(PoisonError::into_inner).lines.push(line);
                bell.notify_all();
            }
            told.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
            bell.notify_all();
        });
        Self { told }
    }

    /// All lines so far.
    pub(crate) fn all(&self) -> Vec<Value> {
        self.told.0.lock().unwrap_or_else(PoisonError::into_inner).lines.clone()
    }

    /// Waits until something is found in the lines.
    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, find: impl Fn(&[Value]) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let (told, bell) = &*self.told;
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = find(&told.lines) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let can_come = !told.ended && !left.is_zero();
            assert!(can_come, "never told: {what}; ended: {}, {:#?}", told.ended, told.lines);
            told = bell.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
