//! Acts of an operator: asked of the running server, or done here while there is none.

use std::process::ExitCode;

use crate::{
    admin::{Act, AdminError, Client, Done, office, socket_path},
    log::sled::OpenError,
};

/// What every act takes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Common {
    #[command(flatten)]
    at: super::DataDir,

    /// Write one JSON object instead of text
    #[arg(long)]
    json: bool,
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

    /// Does it: the running server does, or this process while there is none.
    pub(super) fn carry_out(&self, act: Act) -> Result<Done, Failure> {
        let config = self.at.load()?;
        let socket = socket_path(&config.server.data_dir);
        let unreached = match Client::connect(&socket) {
            Ok(mut server) => return Ok(server.act(act)?),
            Err(error) => error,
        };
        let actor = office::actor(own_uid());
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        match runtime.block_on(office::without_a_server(&config, act, &actor)) {
            Err(office::ActError::Open(error @ OpenError::InUse { .. })) => {
                Err(in_use(&error, &unreached).into())
            }
            done => Ok(done?),
        }
    }
}

fn in_use(error: &OpenError, unreached: &AdminError) -> String {
    format!("{error}; and it cannot be asked: {unreached}")
}

/// The user who runs this process: the owner of its entry among the processes.
fn own_uid() -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").ok().map(|of| of.uid())
}
