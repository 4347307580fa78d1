//! `logcabin room`: the rooms of a server, running or not.

use std::process::ExitCode;

use super::erasure::PurgeRoom;

/// Change the rooms of a server
#[derive(Debug, clap::Args)]
pub(super) struct Room {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Purge(PurgeRoom),
}

impl Room {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::Purge(purge) => purge.run(),
        }
    }
}
