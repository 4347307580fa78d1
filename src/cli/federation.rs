//! `logcabin federation`: other homeservers.

use std::process::ExitCode;

use super::act::ActOptions;
use crate::ops::admin::federation::{KeyReplaced, NewKey};

/// Manage what concerns other homeservers
#[derive(Debug, clap::Args)]
pub(super) struct Federation {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Replace the key with which the server signs requests and events
    ///
    /// The former key is published as expired: what it signed stays valid, and nobody can sign with
    /// it any more. Other homeservers fetch the new key when they first meet it.
    NewKey {
        #[command(flatten)]
        options: ActOptions,
    },
}

impl Federation {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::NewKey { options } => options.run(NewKey {}, |KeyReplaced { key_id }| {
                format!("The server signs with {key_id}.\n")
            }),
        }
    }
}
