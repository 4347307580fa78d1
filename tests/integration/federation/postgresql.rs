//! A PostgreSQL of a test's own, as Debian has it, for Synapse.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{runs, until};

/// A running cluster that listens on a socket alone, with an empty database.
pub(super) struct Postgresql {
    server: Child,
    directory: TempDir,
    programs: PathBuf,
    /// Whom it runs as: it refuses to run as root.
    owner: Option<(u32, u32)>,
}

impl Postgresql {
    /// The programs of the newest PostgreSQL, if this Python can speak with one.
    pub(super) fn programs(python: &Path) -> Result<PathBuf, String> {
        if !runs(&python.to_string_lossy(), &["-c", "import psycopg2"]) {
            return Err(format!("{} with psycopg2 is absent", python.display()));
        }
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let numbered = versions.filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let programs = entry.path().join("bin");
            ["initdb", "createdb", "postgres"]
                .iter()
                .all(|program| programs.join(program).exists())
                .then_some((number, programs))
        });
        let newest = numbered.max_by_key(|(number, _)| *number);
        newest.map(|(_, programs)| programs).ok_or_else(|| "PostgreSQL is absent".to_owned())
    }

    pub(super) async fn start(programs: &Path) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let owner = unprivileged();
        if let Some((user, group)) = owner {
            chown(directory.path(), Some(user), Some(group)).expect("it can be given away");
        }
        let made = as_owner(owner, &programs.join("initdb"), directory.path())
            .args(["--pgdata", "data", "--username", "synapse", "--auth", "trust"])
            .args(["--encoding", "UTF8", "--locale", "C", "--no-sync"])
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let log = File::create(directory.path().join("log")).expect("a file");
        // The machine does not lose power during a test.
        let server = as_owner(owner, &programs.join("postgres"), directory.path())
            .args(["-D", "data", "-c", "listen_addresses=", "-c", "fsync=off", "-k"])
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("PostgreSQL runs");
        let mut this = Self { server, directory, programs: programs.to_owned(), owner };
        until("PostgreSQL has a database", async || {
            let ended = this.server.try_wait().expect("the child can be asked");
            assert!(ended.is_none(), "PostgreSQL ended: {}", this.log());
            let created = as_owner(this.owner, &this.programs.join("createdb"), this.place())
                .args(["--username", "synapse", "synapse", "--host"])
                .arg(this.place())
                .stderr(Stdio::null())
                .status();
            created.is_ok_and(|status| status.success())
        })
        .await;
        this
    }

    fn place(&self) -> &Path {
        self.directory.path()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place().join("log")).unwrap_or_default()
    }

    /// The database, as homeserver.yaml has it.
    pub(super) fn database(&self) -> Value {
        json!({ "name": "psycopg2", "args": {
            "user": "synapse", "dbname": "synapse", "host": self.place(),
            "cp_min": 1, "cp_max": 5,
        } })
    }
}

impl Drop for Postgresql {
    fn drop(&mut self) {
        let stopped = as_owner(self.owner, &self.programs.join("pg_ctl"), self.place())
            .args(["stop", "-D", "data", "-m", "fast"])
            .stdout(Stdio::null())
            .status();
        if !stopped.is_ok_and(|status| status.success()) {
            let _ = self.server.kill();
        }
        let _ = self.server.wait();
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(20)..];
            println!("--- PostgreSQL's last lines ---\n{}", tail.join("\n"));
        }
    }
}

/// A program as this user, in this directory.
fn as_owner(owner: Option<(u32, u32)>, program: &Path, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory);
    if let Some((user, group)) = owner {
        command.uid(user).gid(group);
    }
    command
}

/// Another user than root, if this is root.
fn unprivileged() -> Option<(u32, u32)> {
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("users");
    let ids = |wanted: &str| {
        let line = users.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix(":x:"))?;
        let mut numbers = line.split(':').map_while(|number| number.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    Some(ids("postgres").or_else(|| ids("nobody")).expect("a user who is not root"))
}
