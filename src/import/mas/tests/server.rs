//! A PostgreSQL server of a test's own, at a socket in its directory.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use postgres::{Client, Config, NoTls};
use tempfile::TempDir;

/// How long a start may take: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Server {
    directory: TempDir,
    process: Child,
}

impl Server {
    /// None if PostgreSQL is not installed, which is said visibly; in CI it must be.
    pub(super) fn start(test: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            let message = format!("SKIPPED: {test}: postgresql is absent (install with .ci/run)");
            let in_ci = std::env::var("CI").is_ok_and(|of| !matches!(&*of, "" | "0" | "false"));
            assert!(!in_ci, "{message}: in CI this is a failure");
            let _ = writeln!(std::io::stderr(), "\n{message}");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        // It does not run as root.
        let user = is_root().then(postgres);
        if let Some(user) = user {
            chown(directory.path(), Some(user), None).expect("given away");
        }
        let data = directory.path().join("data");
        let command = |program: &str| {
            let mut command = Command::new(programs.join(program));
            command.current_dir(directory.path()).stdout(Stdio::null());
            if let Some(user) = user {
                command.uid(user);
            }
            command
        };
        let arguments = ["--username=mas", "--auth=trust", "--no-sync", "--encoding=UTF8"];
        let mut initdb = command("initdb");
        let made = initdb.args(arguments).arg("--pgdata").arg(&data).output().expect("initdb");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let log = fs::File::create(directory.path().join("log")).expect("a file");
        let process = command("postgres")
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(directory.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off"])
            .stderr(log)
            .spawn()
            .expect("postgres");
        let mut server = Self { directory, process };
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = server.config().connect(NoTls) {
            let ended = server.process.try_wait().expect("a process").is_some();
            assert!(!ended && Instant::now() < deadline, "{error}: {}", server.told());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    fn told(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(super) fn config(&self) -> Config {
        let mut config = Config::new();
        config.host_path(self.directory.path()).user("mas").dbname("postgres");
        config
    }

    pub(super) fn run(&self, sql: &str) {
        let mut client: Client = self.config().connect(NoTls).expect("a connection");
        client.batch_execute(sql).unwrap_or_else(|error| panic!("{error:?}: {sql}"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// The user whom Debian's package makes.
fn postgres() -> u32 {
    let users = fs::read_to_string("/etc/passwd").expect("the users of this machine");
    let of = |name: &str| {
        let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let line = lines.find(|line| line.first() == Some(&name))?;
        line.get(2)?.parse().ok()
    };
    of("postgres").or_else(|| of("nobody")).expect("a user other than root")
}

/// Where the newest server is installed that has all programs: Debian has them outside the path.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin"));
    let is_whole = |folder: &Path| ["initdb", "postgres"].iter().all(|of| folder.join(of).exists());
    found.filter(|folder| is_whole(folder)).max()
}
