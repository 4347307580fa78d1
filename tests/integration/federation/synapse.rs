//! Synapse, as it comes from PyPI.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, thread};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::authority::Authority;
use crate::harness::{Http, User, free_address, runs, until};

/// A running Synapse, with TLS of its own, and an authority that it trusts. Its database is SQLite
/// unless it was told another.
pub(super) struct Synapse {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    clients: SocketAddr,
    python: PathBuf,
    child: Option<Child>,
    directory: TempDir,
}

/// The Python with Synapse; `LOGCABIN_E2E_SYNAPSE` names another than that of `.ci/run`.
pub(super) fn python() -> Result<PathBuf, String> {
    let python = match std::env::var_os("LOGCABIN_E2E_SYNAPSE") {
        Some(python) => python.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("target/e2e/synapse/bin/python"),
    };
    if runs(&python.to_string_lossy(), &["-c", "import synapse"]) {
        Ok(python)
    } else {
        Err(format!("{} with Synapse is absent", python.display()))
    }
}

/// Removes the locks that a Synapse has.
const UNLOCK: &str = "import json
database = json.load(open('homeserver.yaml'))['database']
if database['name'] == 'sqlite3':
    import sqlite3
    db = sqlite3.connect(database['args']['database'])
    tables = \"SELECT name FROM sqlite_master WHERE type = 'table'\"
else:
    import psycopg2
    args = {name: value for name, value in database['args'].items() if not name.startswith('cp_')}
    db = psycopg2.connect(**args)
    tables = \"SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'\"
cursor = db.cursor()
cursor.execute(tables)
for name, in cursor.fetchall():
    if name.endswith('_locks'):
        cursor.execute(f'DELETE FROM {name}')
db.commit()";

impl Synapse {
    pub(super) async fn start(python: &Path, authority: &Authority) -> Self {
        Self::start_with(python, authority, &json!({})).await
    }

    /// One with these settings, too.
    pub(super) async fn start_with(python: &Path, authority: &Authority, settings: &Value) -> Self {
        let address = free_address();
        let name = format!("localhost:{}", address.port());
        Self::launch(python, authority, (name, address), settings).await
    }

    /// A Synapse of this name that listens there.
    pub(super) async fn start_as(
        python: &Path,
        authority: &Authority,
        name: String,
        address: SocketAddr,
    ) -> Self {
        Self::launch(python, authority, (name, address), &json!({})).await
    }

    pub(super) async fn launch(
        python: &Path,
        authority: &Authority,
        (name, address): (String, SocketAddr),
        settings: &Value,
    ) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let clients = free_address();
        let (key, certificate) = authority.certify(&format!("synapse{}", address.port()));
        let here = |name: &str| directory.path().join(name).display().to_string();
        let log = json!({
            "version": 1,
            "formatters": { "plain": { "format": "%(name)s %(levelname)s %(message)s" } },
            "handlers": { "file": {
                "class": "logging.FileHandler",
                "formatter": "plain",
                "filename": here("synapse.log"),
            } },
            "root": { "level": "INFO", "handlers": ["file"] },
            "disable_existing_loggers": false,
        });
        let unlimited = json!({ "per_second": 1e9, "burst_count": 1e9 });
        let listener = |address: SocketAddr, tls: bool, resource: &str| {
            json!({
                "port": address.port(), "bind_addresses": ["127.0.0.1"], "type": "http", "tls": tls,
                "resources": [{ "names": [resource] }],
            })
        };
        // YAML is a superset of JSON.
        let mut config = json!({
            "server_name": name,
            "pid_file": here("pid"),
            "listeners": [listener(address, true, "federation"), listener(clients, false, "client")],
            "database": { "name": "sqlite3", "args": { "database": here("synapse.db") } },
            "log_config": here("log.yaml"),
            "media_store_path": here("media"),
            "signing_key_path": here("signing.key"),
            "tls_certificate_path": certificate,
            "tls_private_key_path": key,
            // It tries again soon what was down.
            "federation": {
                "max_long_retry_delay": "1s", "destination_min_retry_interval": "1s",
                "destination_retry_multiplier": 1, "destination_max_retry_interval": "2s",
            },
            "federation_custom_ca_list": [authority.certificate()],
            "ip_range_blacklist": [],
            "federation_ip_range_blacklist": [],
            "trusted_key_servers": [],
            "suppress_key_server_warning": true,
            "registration_shared_secret": "none",
            "macaroon_secret_key": "none",
            "form_secret": "none",
            "report_stats": false,
            "enable_registration": true,
            "enable_registration_without_verification": true,
            "allow_public_rooms_over_federation": true,
            "room_list_publication_rules": [{ "action": "allow" }],
            "bcrypt_rounds": 4,
            "rc_joins": { "local": unlimited, "remote": unlimited },
            "rc_joins_per_room": unlimited,
            "rc_invites": { "per_room": unlimited, "per_user": unlimited, "per_issuer": unlimited },
            "rc_login": { "address": unlimited, "account": unlimited },
            "rc_message": unlimited, "rc_registration": unlimited, "rc_room_creation": unlimited,
        });
        for (name, value) in settings.as_object().expect("settings") {
            config[name] = value.clone();
        }
        fs::write(here("homeserver.yaml"), config.to_string()).expect("a file");
        fs::write(here("log.yaml"), log.to_string()).expect("a file");
        let python = python.to_owned();
        let mut synapse = Self { name, address, clients, python, child: None, directory };
        let made = synapse.command().arg("--generate-keys").output().expect("Synapse runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        synapse.run().await;
        synapse
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.args(["-m", "synapse.app.homeserver", "-c", "homeserver.yaml"]);
        command.current_dir(self.directory.path());
        command
    }

    /// Starts it, perhaps after it has been killed.
    pub(super) async fn run(&mut self) {
        // The locks of a Synapse that was killed stand in the way of the next one for two minutes.
        self.script(UNLOCK);
        let mut command = self.command();
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("Synapse runs"));
        until("Synapse answers", async || {
            let versions = "/_matrix/client/versions";
            self.http().try_request("GET", versions, None, None).await.is_ok()
        })
        .await;
    }

    /// Runs a script in its directory, by its Python.
    pub(super) fn script(&self, script: &str) {
        let mut python = Command::new(&self.python);
        let run = python.args(["-c", script]).current_dir(self.directory.path()).status();
        assert!(run.is_ok_and(|status| status.success()), "it failed: {script}");
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Its configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.directory.path().join("homeserver.yaml")
    }

    /// Where it listens for clients.
    pub(super) const fn clients(&self) -> SocketAddr {
        self.clients
    }

    /// Where clients reach it.
    pub(super) fn base(&self) -> String {
        format!("http://{}", self.clients)
    }

    /// A client of it.
    pub(super) fn http(&self) -> Http {
        Http::new(&self.base())
    }

    /// The id of its process.
    pub(super) fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) async fn register(&self, username: &str) -> User {
        User::register(&self.http(), username, "correct horse battery").await
    }
}

impl Drop for Synapse {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("synapse.log"));
            let log = log.unwrap_or_default();
            let lines = log.lines().filter(|line| !line.contains("/_matrix/client/"));
            let tail: Vec<&str> = lines.collect();
            let tail = &tail[tail.len().saturating_sub(60)..];
            println!("--- Synapse's last {} lines ---\n{}", tail.len(), tail.join("\n"));
        }
    }
}
