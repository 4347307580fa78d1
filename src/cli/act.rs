//! Carries out acts: in the running server or, while none runs, in this process.

use std::{path::PathBuf, process::ExitCode};

use super::{password::confirms, work::watched};
use logcabin_base::progress;
use logcabin_config::{Config, ConfigError};
use logcabin_log::store::OpenError;
use logcabin_ops::{
    admin::{
        act::{Act, Order, Outcome},
        actor,
        context::ActError,
        offline,
        work::ListWork,
    },
    history::terminal::clean,
    socket::{Client, SocketError, socket_path},
};

/// The options of every act.
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
    /// Performs an act, and prints the result: as `text` words it, or as JSON.
    pub(super) fn run<A: Act>(
        &self,
        act: A,
        text: impl FnOnce(&A::Done) -> String,
    ) -> Result<ExitCode, Failure> {
        self.print::<A>(&self.perform(act)?, text)
    }

    /// The configuration that a server on this data would run with.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        self.at.load()
    }

    /// `value` as JSON: on one line with `--json`, else indented.
    pub(super) fn to_json<T: serde::Serialize>(&self, value: &T) -> serde_json::Result<String> {
        if self.json { serde_json::to_string(value) } else { serde_json::to_string_pretty(value) }
    }

    pub(super) fn print<A: Act>(
        &self,
        done: &A::Done,
        text: impl FnOnce(&A::Done) -> String,
    ) -> Result<ExitCode, Failure> {
        self.print_as(A::DONE, done, text)
    }

    fn print_as<T: serde::Serialize>(
        &self,
        name: &'static str,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode, Failure> {
        let text = if self.json {
            serde_json::to_string(&Printed { done: name, result })? + "\n"
        } else {
            text(result)
        };
        super::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) fn data_dir(&self) -> Result<PathBuf, Failure> {
        Ok(self.at.load()?.server.data_dir)
    }

    pub(super) fn perform<A: Act>(&self, act: A) -> Result<A::Done, Failure> {
        match self.carry_out(act.into())? {
            Outcome::Done(done) => Ok(done),
            Outcome::WouldDo(_) => Err("the act was not done, only described".into()),
        }
    }

    /// Carries out an order: the running server does, or this process if none runs.
    fn carry_out<A: Act>(&self, order: Order<A>) -> Result<Outcome<A::Done>, Failure> {
        let config = self.at.load()?;
        let socket = socket_path(&config.server.data_dir);
        let unreached = match Client::connect(&socket) {
            Ok(mut server) => {
                // Progress needs a connection of its own: the act keeps its one busy.
                let mut other = None;
                let under_way = || {
                    let client = match &mut other {
                        Some(client) => client,
                        None => other.insert(Client::connect(&socket).ok()?),
                    };
                    match Order::from(ListWork {}).send(client).ok()? {
                        Outcome::Done(all) => Some(all.work),
                        Outcome::WouldDo(_) => None,
                    }
                };
                return Ok(watched(under_way, || order.send(&mut server))?);
            }
            Err(error) => error,
        };
        let actor = actor::name(Some(rustix::process::getuid().as_raw()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let carried_out = watched(
            || Some(progress::under_way()),
            || offline::carry_out(&runtime, &config, &order, &actor),
        );
        match carried_out {
            Err(ActError::Open(error @ OpenError::InUse { .. })) => {
                Err(in_use(&error, &unreached).into())
            }
            done => Ok(done?),
        }
    }
}

/// The JSON output: the fields of a result, and its name as `done`.
#[derive(serde::Serialize)]
struct Printed<'a, T> {
    done: &'static str,
    #[serde(flatten)]
    result: &'a T,
}

/// The JSON output of a dry run.
#[derive(serde::Serialize)]
struct Effect {
    effect: Vec<String>,
}

/// The options of acts that change something.
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
    /// Performs an act, or describes what it would do, and prints the result.
    pub(super) fn run<A: Act>(
        &self,
        act: A,
        text: impl FnOnce(&A::Done) -> String,
    ) -> Result<ExitCode, Failure> {
        let order = Order { act, reason: self.reason.clone(), dry_run: self.dry_run };
        match self.common.carry_out(order)? {
            Outcome::Done(done) => self.common.print::<A>(&done, text),
            Outcome::WouldDo(effect) => {
                self.common
                    .print_as("would-do", &Effect { effect }, |Effect { effect }| would_do(effect))
            }
        }
    }

    /// As [`ActOptions::run`], for acts that cannot be undone: describes what will happen, and asks
    /// for confirmation, unless `yes` is set.
    pub(super) fn run_if_meant<A: Act>(
        &self,
        act: A,
        yes: bool,
        name: &str,
        text: impl FnOnce(&A::Done) -> String,
    ) -> Result<ExitCode, Failure> {
        if !yes && !self.dry_run {
            let asked = Order { act: act.clone(), reason: None, dry_run: true };
            if let Outcome::WouldDo(effect) = self.common.carry_out(asked)? {
                eprint!("{}", would_do(&effect));
            }
            let question = "To continue, type the name as you gave it:";
            if !confirms(question, name)? {
                return Err("nothing was done; confirm it with --yes".into());
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
    format!("{error}; and its server cannot be asked: {unreached}")
}
