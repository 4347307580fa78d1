//! Acts of an operator: asked of the running server, or done here while there is none.

use std::{path::PathBuf, process::ExitCode};

use super::password::confirms;
use crate::{
    config::{Config, ConfigError},
    log::store::OpenError,
    ops::{
        admin::{Act, Done, office},
        history::look::clean,
        socket::{Client, SocketError, socket_path},
    },
};

/// What every act takes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    at: super::DataDir,

    /// Print JSON instead of text
    #[arg(long)]
    pub(super) json: bool,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Common {
    /// Does it, and prints what came of it: in the words of `text`, or as JSON.
    pub(super) fn run(
        &self,
        act: Act,
        text: impl FnOnce(&Done) -> String,
    ) -> Result<ExitCode, Failure> {
        self.print(&self.carry_out(act)?, text)
    }

    /// The configuration that a server on this data would run with.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        self.at.load()
    }

    /// `value` as JSON: on one line, if that was asked for.
    pub(super) fn to_json<T: serde::Serialize>(&self, value: &T) -> serde_json::Result<String> {
        if self.json { serde_json::to_string(value) } else { serde_json::to_string_pretty(value) }
    }

    /// Prints what was done.
    pub(super) fn print(
        &self,
        done: &Done,
        text: impl FnOnce(&Done) -> String,
    ) -> Result<ExitCode, Failure> {
        super::print(&if self.json { serde_json::to_string(done)? + "\n" } else { text(done) })?;
        Ok(ExitCode::SUCCESS)
    }

    /// The data directory.
    pub(super) fn data_dir(&self) -> Result<PathBuf, Failure> {
        Ok(self.at.load()?.server.data_dir)
    }

    /// Does it: the running server does, or this process while there is none.
    pub(super) fn carry_out(&self, act: Act) -> Result<Done, Failure> {
        let config = self.at.load()?;
        let socket = socket_path(&config.server.data_dir);
        let unreached = match Client::connect(&socket) {
            Ok(mut server) => return Ok(act.ask(&mut server)?),
            Err(error) => error,
        };
        let actor = office::actor(Some(rustix::process::getuid().as_raw()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        match runtime.block_on(office::without_a_server(&config, act, &actor)) {
            Err(office::ActError::Open(error @ OpenError::InUse { .. })) => {
                Err(in_use(&error, &unreached).into())
            }
            done => Ok(done?),
        }
    }
}

/// What every act takes that changes something.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ActOptions {
    /// Report what would happen and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// The reason, stored with the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    common: Common,
}

impl ActOptions {
    /// Does it, or says what would happen, and prints what came of it.
    pub(super) fn run(
        &self,
        act: Act,
        text: impl FnOnce(&Done) -> String,
    ) -> Result<ExitCode, Failure> {
        let act = match self.reason.clone() {
            Some(reason) => Act::Because { reason, of: Box::new(act) },
            None => act,
        };
        let act = if self.dry_run { Act::DryRun { of: Box::new(act) } } else { act };
        self.common.run(act, |done| match done {
            Done::WouldDo { effect } => would_do(effect),
            done => text(done),
        })
    }

    /// As [`ActOptions::run`], for what cannot be undone: says what will happen, and asks whether
    /// it is meant, unless that was said with `yes`.
    pub(super) fn run_if_meant(
        &self,
        act: Act,
        yes: bool,
        name: &str,
        text: impl FnOnce(&Done) -> String,
    ) -> Result<ExitCode, Failure> {
        if !yes && !self.dry_run {
            let asked = Act::DryRun { of: Box::new(act.clone()) };
            if let Done::WouldDo { effect } = self.common.carry_out(asked)? {
                eprint!("{}", would_do(&effect));
            }
            let question = "To go on, type the name as you gave it:";
            if !confirms(question, name)? {
                return Err("nothing was done; --yes says that it is meant".into());
            }
        }
        self.run(act, text)
    }
}

fn would_do(effect: &[String]) -> String {
    if effect.is_empty() {
        return "Nothing would change.\n".to_owned();
    }
    let lines = effect.iter().map(|line| format!("- {}\n", clean(line)));
    format!("This would happen:\n{}", lines.collect::<String>())
}

fn in_use(error: &OpenError, unreached: &SocketError) -> String {
    format!("{error}; and it cannot be asked: {unreached}")
}
