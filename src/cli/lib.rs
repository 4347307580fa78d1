//! The command line: one file for each subcommand.

#![cfg_attr(all(feature = "nats", not(test)), warn(unused_crate_dependencies))]

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};
use rustix::fs::Mode;

use logcabin_config::{ArchiveDir, Config, ConfigError, Effective, MediaDir, Override};
use logcabin_ops::history::{Layout, terminal::aligned};

mod act;
mod approval;
mod backup;
mod cluster;
mod config;
mod console;
mod doctor;
mod du;
mod endpoints;
mod erasure;
mod export;
mod federation;
mod history;
mod history_purge;
mod import;
#[cfg(feature = "import")]
mod import_synapse;
mod import_user;
mod media;
mod moderation;
mod notice;
mod password;
mod policy;
mod prove;
mod ready;
mod redaction;
mod registration_token;
mod replay;
mod report;
mod restore;
mod room;
mod serve;
mod setup;
mod shell;
mod snapshot;
pub mod telemetry;
mod undo;
mod user;
mod verify;
mod work;

pub use history::History;

/// The version, the commit and the features, from the build script.
const LONG_VERSION: &str = env!("LONG_VERSION");

/// A Matrix-compatible homeserver whose only truth is an append-only log.
///
/// Without a command it runs the server on 127.0.0.1:8008, with its data in ./data.
#[derive(Debug, Parser)]
#[command(name = "logcabin", version, long_version = LONG_VERSION)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Every setting can also be given in a file or in the environment: \
                        `logcabin config` prints them all, explained.")]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// The flags of `serve`, which is the default command.
    #[command(flatten)]
    serve: serve::Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Setup(setup::Setup),
    Config(config::Print),
    Console(console::Console),
    Cluster(cluster::Cluster),
    Doctor(doctor::Doctor),
    Status(doctor::Status),
    Endpoints(endpoints::Endpoints),
    Replay(replay::Replay),
    Verify(verify::Verify),
    Backup(backup::Backup),
    Backups(backup::ListOfBackups),
    VerifyBackup(backup::VerifyBackup),
    PruneBackups(backup::PruneBackups),
    Restore(restore::Restore),
    Export(export::Export),
    Import(import::Import),
    ImportUser(import_user::ImportUser),
    #[cfg(feature = "import")]
    ImportSynapse(import_synapse::ImportSynapse),
    Snapshot(snapshot::Snapshot),
    Du(du::Du),
    History(History),
    Prove(prove::Prove),
    ProveConsistency(prove::ProveConsistency),
    Checkpoints(prove::ListOfCheckpoints),
    User(user::User),
    Erasure(erasure::Erasure),
    Federation(federation::Federation),
    RegistrationToken(registration_token::RegistrationToken),
    Room(room::Room),
    Notice(notice::Notice),
    Media(media::Media),
    Report(report::Report),
    Policy(policy::Policy),
    Undo(undo::Undo),
    Work(work::Work),
    Completions(shell::Completions),
    Man(shell::Man),
}

impl Cli {
    /// Parses the arguments of this process. Exits if they are invalid or ask for help.
    pub fn of_process() -> Self {
        Self::parse_from(history::with_source(std::env::args_os().collect()))
    }

    pub fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        // Files contain users' messages: only the owner may read those that this process creates.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        match self.command {
            None => self.serve.run(),
            Some(Command::Serve(serve)) => serve.run(),
            Some(Command::Setup(setup)) => setup.run(),
            Some(Command::Config(print)) => print.run(),
            Some(Command::Console(console)) => console.run(),
            Some(Command::Cluster(cluster)) => cluster.run(),
            Some(Command::Doctor(doctor)) => doctor.run(),
            Some(Command::Status(status)) => status.run(),
            Some(Command::Endpoints(endpoints)) => endpoints.run(),
            Some(Command::Replay(replay)) => replay.run(),
            Some(Command::Verify(verify)) => verify.run(),
            Some(Command::Backup(backup)) => backup.run(),
            Some(Command::Backups(list)) => list.run(),
            Some(Command::VerifyBackup(verify)) => verify.run(),
            Some(Command::PruneBackups(prune)) => prune.run(),
            Some(Command::Restore(restore)) => restore.run(),
            Some(Command::Export(export)) => export.run(),
            Some(Command::Import(import)) => import.run(),
            Some(Command::ImportUser(import)) => import.run(),
            #[cfg(feature = "import")]
            Some(Command::ImportSynapse(import)) => import.run(),
            Some(Command::Snapshot(snapshot)) => snapshot.run(),
            Some(Command::History(history)) => Ok(history.run()),
            Some(Command::Du(du)) => du.run(),
            Some(Command::Prove(prove)) => prove.run(),
            Some(Command::ProveConsistency(prove)) => prove.run(),
            Some(Command::Checkpoints(list)) => list.run(),
            Some(Command::User(user)) => user.run(),
            Some(Command::Erasure(erasure)) => erasure.run(),
            Some(Command::Federation(federation)) => federation.run(),
            Some(Command::RegistrationToken(token)) => token.run(),
            Some(Command::Room(room)) => room.run(),
            Some(Command::Notice(notice)) => notice.run(),
            Some(Command::Media(media)) => media.run(),
            Some(Command::Report(report)) => report.run(),
            Some(Command::Policy(policy)) => policy.run(),
            Some(Command::Undo(undo)) => undo.run(),
            Some(Command::Work(work)) => work.run(),
            Some(Command::Completions(completions)) => completions.run(),
            Some(Command::Man(man)) => man.run(),
        }
    }
}

/// The flags that change settings; they take precedence over the environment and the file.
#[derive(Clone, Debug, Args)]
struct Settings {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", env = "LOGCABIN_CONFIG")]
    config: Option<PathBuf>,

    /// Store all data in this directory [default: ./data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,

    /// Address to listen on; can be given several times [default: 127.0.0.1:8008]
    #[arg(long, value_name = "ADDR:PORT")]
    bind: Vec<String>,

    /// The name in user and room ids; cannot be changed after the first start [default: localhost]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,

    /// Share the log of a cluster, through these NATS servers, such as nats://n1,n2,n3
    #[arg(long, value_name = "SERVERS")]
    log: Option<String>,

    /// Let anyone register; without this, only while listening on loopback addresses
    #[arg(long)]
    open_registration: bool,

    /// Disable rate limits
    #[arg(long)]
    no_rate_limits: bool,

    /// Set by the commands that have the flag.
    #[arg(skip)]
    rehearsal: bool,
}

impl Settings {
    /// The configuration from all sources.
    fn load(&self) -> Result<Effective, ConfigError> {
        let file = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
                Some((path.clone(), text))
            }
            None => None,
        };
        // A variable whose name is not Unicode is not ours. A value that is not is refused.
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()));
        Effective::load(file, env, &self.overrides())
    }

    fn overrides(&self) -> Vec<Override> {
        let mut given = Vec::new();
        let mut give = |key, flag, text: Option<String>| {
            given.extend(text.map(|text| Override { key, flag, text }));
        };
        give("server.data_dir", "--data-dir", self.data_dir.clone());
        give("server.bind", "--bind", (!self.bind.is_empty()).then(|| self.bind.join(",")));
        give("server.name", "--server-name", self.server_name.clone());
        give("log.servers", "--log", self.log.clone());
        let set = |flag: bool, value: &str| flag.then(|| value.to_owned());
        give("registration.open", "--open-registration", set(self.open_registration, "true"));
        give("rate_limits.enabled", "--no-rate-limits", set(self.no_rate_limits, "false"));
        give("outbound.rehearsal", "--rehearsal", set(self.rehearsal, "true"));
        given
    }
}

/// The settings that locate the data, for commands without a server.
#[derive(Clone, Debug, Args)]
struct DataDir {
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", env = "LOGCABIN_CONFIG")]
    config: Option<PathBuf>,

    /// The data directory [default: ./data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
}

impl DataDir {
    /// The configuration that a server on this data would run with.
    fn load(&self) -> Result<Config, ConfigError> {
        self.load_with(None)
    }

    /// The same with these NATS servers, if there are any.
    fn load_with(&self, log: Option<String>) -> Result<Config, ConfigError> {
        let settings = Settings {
            config: self.config.clone(),
            data_dir: self.data_dir.clone(),
            bind: Vec::new(),
            server_name: None,
            log,
            open_registration: false,
            no_rate_limits: false,
            rehearsal: false,
        };
        Ok(settings.load()?.config)
    }
}

impl DataDir {
    /// As [`DataDir::load`], for commands that write. If `--data-dir` is another directory than the
    /// one that the file or the environment names, their directories for the archive and for
    /// uploaded files are those of another server: they are left out, and the second value says so.
    fn load_for_writing(&self) -> Result<(Config, Vec<String>), ConfigError> {
        let mut config = self.load()?;
        let Some(flag) = &self.data_dir else { return Ok((config, Vec::new())) };
        let settings = Settings {
            config: self.config.clone(),
            data_dir: None,
            bind: Vec::new(),
            server_name: None,
            log: None,
            open_registration: false,
            no_rate_limits: false,
            rehearsal: false,
        };
        let named = settings.load()?;
        let other = &named.config.server.data_dir;
        let real = |path: &std::path::Path| std::fs::canonicalize(path).ok();
        let is_same = *other == config.server.data_dir
            || real(other).is_some_and(|other| Some(other) == real(&config.server.data_dir));
        if is_same || named.source("server", "data_dir").is_none() {
            return Ok((config, Vec::new()));
        }
        let mut notes = Vec::new();
        let mut leave = |setting: &str, path: &std::path::Path| {
            notes.push(format!(
                "{} is left alone: `{setting}` is for the data directory {}, not for {flag}",
                path.display(),
                other.display(),
            ));
        };
        if let ArchiveDir::Path(path) = &config.log.archive_dir {
            leave("log.archive_dir", path);
            config.log.archive_dir = ArchiveDir::Auto;
        }
        if let MediaDir::Path(path) = &config.media.dir {
            leave("media.dir", path);
            config.media.dir = MediaDir::Auto;
        }
        Ok((config, notes))
    }
}

/// As [`DataDir`], for commands without other arguments: `DIR` alone is also the data directory.
#[derive(Clone, Debug, Args)]
struct DataDirOrDir {
    #[command(flatten)]
    at: DataDir,

    /// The same as `--data-dir`
    #[arg(value_name = "DIR", conflicts_with = "data_dir")]
    dir: Option<String>,
}

impl DataDirOrDir {
    fn given(&self) -> Option<&String> {
        self.dir.as_ref().or(self.at.data_dir.as_ref())
    }

    /// The configuration that a server on this data would run with.
    fn load(&self) -> Result<Config, ConfigError> {
        DataDir { data_dir: self.given().cloned(), ..self.at.clone() }.load()
    }
}

/// Writes the answer of a command to standard output.
fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has seen enough (`logcabin … | head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Rows of a table, with aligned columns, as wide as the terminal.
fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    aligned(rows, terminal_width())
}

/// The width of the terminal; none if standard output is none.
fn terminal_width() -> Option<usize> {
    // Tests compare what is printed, wherever they run.
    if cfg!(test) { None } else { Layout::of_stdout().width }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_long_version_says_version_commit_and_features() {
        let (version, rest) = LONG_VERSION.split_once(" (commit ").expect("a commit");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let (commit, features) = rest.split_once("; features: ").expect("the features");
        let is_hash = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_hash || commit == "unknown", "{commit}");
        for (name, is_there) in [
            ("import", cfg!(feature = "import")),
            ("nats", cfg!(feature = "nats")),
            ("otlp", cfg!(feature = "otlp")),
            ("search", cfg!(feature = "search")),
            ("sso", cfg!(feature = "sso")),
        ] {
            assert_eq!(features.contains(name), is_there, "{name} in {features}");
        }
    }

    #[test]
    fn a_data_directory_is_an_option_or_an_argument() {
        for line in ["verify --data-dir d", "verify d", "replay d", "du d", "du --data-dir d"] {
            let line = std::iter::once("logcabin").chain(line.split(' '));
            let at = match Cli::try_parse_from(line).unwrap().command.unwrap() {
                Command::Verify(verify) => verify.at,
                Command::Replay(replay) => replay.at,
                Command::Du(du) => du.at,
                other => panic!("{other:?}"),
            };
            assert_eq!(at.load().unwrap().server.data_dir, PathBuf::from("d"));
        }
        assert!(Cli::try_parse_from(["logcabin", "verify", "d", "--data-dir", "d"]).is_err());
    }

    #[test]
    fn another_data_directory_leaves_the_archive_of_the_configuration_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("live.toml");
        let text = "[server]\ndata_dir = \"/live\"\n[log]\narchive_dir = \"/archive\"\n";
        std::fs::write(&file, text).unwrap();
        let at = |data_dir: Option<&str>| {
            let data_dir = data_dir.map(ToOwned::to_owned);
            DataDir { config: Some(file.clone()), data_dir }.load_for_writing().unwrap()
        };
        for same in [None, Some("/live")] {
            let (config, notes) = at(same);
            assert_eq!(config.archive_dir(), Some("/archive".into()));
            assert!(notes.is_empty(), "{notes:?}");
        }
        let (config, notes) = at(Some("/other"));
        assert_eq!(config.archive_dir(), Some("/other/archive".into()));
        assert!(notes[0].contains("/archive is left alone"), "{notes:?}");
        // A file that names no data directory is for the one on the command line.
        std::fs::write(&file, "[log]\narchive_dir = \"/archive\"\n").unwrap();
        assert_eq!(at(Some("/other")).0.archive_dir(), Some("/archive".into()));
    }

    #[test]
    fn flags_become_settings() {
        let line = "logcabin --bind 127.0.0.1:1 --bind [::1]:2 --data-dir d --server-name a.example \
                    --open-registration --no-rate-limits";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let config = Effective::load(None, [], &cli.serve.settings.overrides()).unwrap().config;
        assert_eq!(config.server.bind.len(), 2);
        assert_eq!(config.server.data_dir, PathBuf::from("d"));
        assert_eq!(config.server.name, "a.example");
        assert!(config.registration.is_open(&config.server));
        assert!(!config.rate_limits.enabled);
    }
}
