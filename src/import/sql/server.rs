//! A PostgreSQL server of a test's own, at a socket in its directory.

use std::{
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use postgres::{Client, Config, NoTls};
use tempfile::TempDir;

/// How long a start may take: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    directory: TempDir,
    process: Child,
    port: u16,
}

impl Server {
    /// None if PostgreSQL is not installed, which is said visibly; in CI it must be.
    pub(crate) fn start(test: &str) -> Option<Self> {
        Self::start_as(test, None)
    }

    /// The same, which also answers at 127.0.0.1, by TLS. `prepare` makes files in a directory:
    /// `server.crt` with `server.key`, `ca.crt` for the certificates of clients, and `pg_hba.conf`,
    /// which says who is let in.
    pub(crate) fn start_with_tls(test: &str, prepare: &dyn Fn(&Path)) -> Option<Self> {
        Self::start_as(test, Some(prepare))
    }

    fn start_as(test: &str, prepare: Option<&dyn Fn(&Path)>) -> Option<Self> {
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
        let give_away = |path: &Path| {
            if let Some(user) = user {
                chown(path, Some(user), None).expect("given away");
            }
        };
        give_away(directory.path());
        let mut settings = vec!["fsync=off".to_owned()];
        let mut port = 5432;
        match prepare {
            None => settings.push("listen_addresses=".to_owned()),
            Some(prepare) => {
                prepare(directory.path());
                let made = fs::read_dir(directory.path()).expect("a directory");
                made.for_each(|made| give_away(&made.expect("a file").path()));
                let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
                port = free.local_addr().expect("an address").port();
                settings.extend(["listen_addresses=127.0.0.1", "ssl=on"].map(str::to_owned));
                for (setting, file) in [
                    ("ssl_cert_file", "server.crt"),
                    ("ssl_key_file", "server.key"),
                    ("ssl_ca_file", "ca.crt"),
                    ("hba_file", "pg_hba.conf"),
                ] {
                    let file = directory.path().join(file);
                    settings.push(format!("{setting}={}", file.display()));
                }
            }
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
            .args(["-p", &port.to_string()])
            .args(settings.iter().flat_map(|setting| ["-c", setting]))
            .stderr(log)
            .spawn()
            .expect("postgres");
        let mut server = Self { directory, process, port };
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

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new();
        config.host_path(self.directory.path()).port(self.port).user("mas").dbname("postgres");
        config
    }

    pub(crate) fn run(&self, sql: &str) {
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
pub(crate) fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin"));
    let is_whole =
        |folder: &Path| ["initdb", "postgres", "psql"].iter().all(|of| folder.join(of).exists());
    found.filter(|folder| is_whole(folder)).max()
}
