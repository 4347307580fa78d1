//! `logcabin snapshot`: the snapshots from which a server starts.

use std::process::ExitCode;

use super::{act::Common, columns};
use logcabin_ops::{
    admin::snapshots::{CompareSnapshots, ListSnapshots, SnapshotStatus, Snapshots, WriteSnapshot},
    history::{
        moment::Time,
        terminal::{bytes, clean, grouped},
    },
};
use logcabin_record::Offset;
use logcabin_snapshot::{self as snapshot, Difference, Fault, FaultLocation, SnapshotFile};

/// Write a snapshot of the state, or compare snapshots with the log
///
/// A server that starts loads the newest snapshot and replays only the records after it. It writes
/// one from time to time and when it stops. Snapshots are optional: they can be deleted at any
/// time.
#[derive(Debug, clap::Args)]
pub(super) struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Write(Write),
    Compare(Compare),
    List(List),
    Status(Status),
}

/// Write a snapshot now, also while the server runs
#[derive(Debug, clap::Args)]
struct Write {
    #[command(flatten)]
    common: Common,
}

/// Verify the whole log, replay it, and compare the snapshots and the running server with the
/// result
///
/// Differences are corrected, in the running server, too.
#[derive(Debug, clap::Args)]
struct Compare {
    #[command(flatten)]
    common: Common,
}

/// List the snapshots, newest first
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    common: Common,
}

/// Show up to which record snapshots were compared with the log, and what is being rebuilt
#[derive(Debug, clap::Args)]
struct Status {
    #[command(flatten)]
    common: Common,
}

impl Snapshot {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::Write(Write { common }) => common.run(WriteSnapshot {}, written),
            Command::List(List { common }) => common.run(ListSnapshots {}, list),
            Command::Status(Status { common }) => common.run(SnapshotStatus {}, status_text),
            Command::Compare(Compare { common }) => {
                let status = common.perform(CompareSnapshots {})?;
                common.print::<CompareSnapshots>(&status, compared)?;
                Ok(if status.fault.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
            }
        }
    }
}

fn list(all: &Snapshots) -> String {
    if all.snapshots.is_empty() {
        return "no snapshot\n".to_owned();
    }
    let heading = ["UP TO RECORD", "WRITTEN", "SIZE", "VERSION"].map(str::to_owned);
    let row = |kept: &SnapshotFile| {
        let version = kept.version.as_deref().map_or_else(|| "cannot be read".to_owned(), clean);
        let written = Time(kept.written_ms).to_second();
        [grouped(kept.offset.get()), written, bytes(kept.bytes), version]
    };
    columns(&std::iter::once(heading).chain(all.snapshots.iter().map(row)).collect::<Vec<_>>())
}

fn written(header: &snapshot::Header) -> String {
    format!(
        "wrote a snapshot of the projections at record {}: {}\n",
        grouped(header.offset.get()),
        bytes(header.bytes)
    )
}

fn compared(status: &snapshot::Status) -> String {
    match &status.fault {
        Some(fault) => fault_text(fault),
        None => format!(
            "the log is intact up to record {}, and the snapshots match it\n",
            grouped(status.verified_through.get())
        ),
    }
}

fn fault_text(fault: &Fault) -> String {
    let (who, what) = match fault.held {
        FaultLocation::Snapshot => ("a snapshot", "it is removed"),
        FaultLocation::Server => ("the server", "it continues with the state rebuilt from the log"),
        FaultLocation::Stale => ("the server", "restart it"),
    };
    let first = match &fault.first {
        None => String::new(),
        Some(Difference { projection, place, record }) => {
            let record = record.map_or_else(
                || "set by no record".to_owned(),
                |record| format!("set by record {}", grouped(record.get())),
            );
            format!("the first difference: {projection} / {place}, {record}\n")
        }
    };
    format!(
        "{who} came to differ from the log after record {} and by record {}; {what}\n\
         projections that differed: {}\n{first}",
        grouped(fault.after.get()),
        grouped(fault.by.get()),
        fault.projections.join(", "),
    )
}

fn status_text(status: &snapshot::Status) -> String {
    let mut text = match status.snapshot {
        Offset::ZERO => "no snapshot\n".to_owned(),
        offset => format!("newest snapshot: record {}\n", grouped(offset.get())),
    };
    text += &match status.verified_through {
        Offset::ZERO => "not compared with the log yet\n".to_owned(),
        offset => format!(
            "compared with the log up to record {}, {}\n",
            grouped(offset.get()),
            Time(status.verified_ms)
        ),
    };
    if !status.provisional.is_empty() {
        text += &format!("being rebuilt: {}\n", status.provisional.join(", "));
    }
    text + &status.fault.as_ref().map_or_else(String::new, fault_text)
}
