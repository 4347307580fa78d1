//! `logcabin snapshot`: the snapshots from which a server starts.

use std::process::ExitCode;

use super::act::Common;
use crate::{
    admin::{Act, Done},
    history::look::{bytes, grouped},
};

/// Write a snapshot of what the log adds up to, or compare it with the log
///
/// A server that starts loads the newest snapshot and replays only the records after it. It writes one
/// now and then and when it stops; they are never needed, and can be deleted at any time.
#[derive(Debug, clap::Args)]
pub(super) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Write(Write),
    Compare(Compare),
}

/// Write one now, beside the running server if there is one
#[derive(Debug, clap::Args)]
struct Write {
    #[command(flatten)]
    common: Common,
}

/// Check the whole log, replay it, and compare the snapshots with what it adds up to
#[derive(Debug, clap::Args)]
struct Compare {
    #[command(flatten)]
    common: Common,
}

impl Snapshot {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::Write(Write { common }) => common.run(Act::WriteSnapshot, said),
            Command::Compare(Compare { common }) => {
                let done = common.carry_out(Act::CompareSnapshots)?;
                let differs = matches!(&done, Done::Compared(status) if status.fault.is_some());
                common.print(&done, said)?;
                Ok(if differs { ExitCode::FAILURE } else { ExitCode::SUCCESS })
            }
        }
    }
}

fn said(done: &Done) -> String {
    match done {
        Done::Snapshot(header) => format!(
            "wrote a snapshot of the projections at record {}: {}\n",
            grouped(header.offset.get()),
            bytes(header.bytes)
        ),
        Done::Compared(status) => match status.fault {
            Some((equal, differs)) => format!(
                "a snapshot was not what the log adds up to: they differ after record {} and by record {}; it is removed, \
                 and a server that began with it is to be started anew\n",
                grouped(equal.get()),
                grouped(differs.get())
            ),
            None => format!(
                "the log is intact up to record {}, and the snapshots are what it adds up to\n",
                grouped(status.verified_through.get())
            ),
        },
        _ => String::new(),
    }
}
