//! `logcabin prove`, `prove-consistency` and `checkpoints`: proofs about a log for people who do
//! not have it.

use std::{path::Path, process::ExitCode};

use super::{act::Common, columns};
use logcabin_log::archive::ArchiveReader;
use logcabin_ops::{
    admin::proofs::{self, CheckpointRow, Checkpoints, ListCheckpoints},
    history::{
        moment::Time,
        terminal::{clean, grouped},
    },
    proof::{First, ProofRequest},
};
use logcabin_record::{Command, Offset, command::LogCheckpoint};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Prove that a record is in the log
///
/// Prints JSON: the record's header, the hashes that link it to a checkpoint that the server
/// signed, and that checkpoint, which is made now if none covers the record yet. With the server's
/// public key, it can be verified by itself: `cargo run --example verify_proof -- KEY FILE`.
///
/// For an event in a room of version 1 or 2, it proves the bytes and, by the signatures in them,
/// who made them, but not the event's id: in these versions, servers choose the ids.
#[derive(Debug, clap::Args)]
pub(super) struct Prove {
    /// The record
    offset: u64,

    /// Include its payload. Refused if it contains a secret
    #[arg(long)]
    payload: bool,

    #[command(flatten)]
    common: Common,
}

/// Prove that a later log extends an earlier one
///
/// Prints JSON: two checkpoints that the server signed, and the hashes that link them. A checkpoint
/// is named by a record: the newest one at or before it.
#[derive(Debug, clap::Args)]
pub(super) struct ProveConsistency {
    /// The earlier checkpoint: by a record, or the last one in an archive or in the segments of a
    /// backup
    #[arg(value_name = "OFFSET|DIR")]
    first: String,

    /// The later checkpoint, by a record [default: one that covers the whole log]
    #[arg(value_name = "OFFSET")]
    second: Option<u64>,

    #[command(flatten)]
    common: Common,
}

/// List the checkpoints that proofs rest on, newest first, and the server's public key
#[derive(Debug, clap::Args)]
pub(super) struct ListOfCheckpoints {
    /// List at most COUNT checkpoints
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    last: usize,

    #[command(flatten)]
    common: Common,
}

impl ListOfCheckpoints {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        self.common.run(ListCheckpoints { before: None, limit: self.last }, list)
    }
}

fn list(all: &Checkpoints) -> String {
    let key = all.key.as_ref().map(|key| format!("{} {}\n", key.key_id, key.public_key));
    let heading = ["RECORD", "SIGNED", "BY", "COVERS UP TO"].map(str::to_owned);
    let row = |CheckpointRow { record, upto, time_ms, who }: &CheckpointRow| {
        let signed = Time(*time_ms).to_second();
        [grouped(record.get()), signed, clean(who), grouped(upto.get())]
    };
    let rows = std::iter::once(heading).chain(all.checkpoints.iter().map(row));
    format!("{}{}", key.unwrap_or_default(), columns(&rows.collect::<Vec<_>>()))
}

impl Prove {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self { offset, payload, common } = self;
        show(&common, ProofRequest::Inclusion { offset: Offset::new(offset), payload })
    }
}

impl ProveConsistency {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let first = match self.first.parse() {
            Ok(offset) => First::At(Offset::new(offset)),
            Err(_) => First::Said(last_in(Path::new(&self.first))?),
        };
        let second = self.second.map(Offset::new);
        show(&self.common, ProofRequest::Consistency { first, second })
    }
}

fn show(common: &Common, asked: ProofRequest) -> Result<ExitCode, Failure> {
    let proof = common.perform(proofs::Prove(asked))?;
    super::print(&(common.to_json(&proof)? + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The last checkpoint in an archive.
fn last_in(dir: &Path) -> Result<LogCheckpoint, Failure> {
    let archive = ArchiveReader::open(dir)?;
    for first in archive.segments().rev() {
        let mut last = None;
        for record in archive.records(first) {
            if let Ok(Some(Command::LogCheckpoint(said))) = record?.command() {
                last = Some(said);
            }
        }
        if let Some(last) = last {
            return Ok(last);
        }
    }
    Err(format!("there is no checkpoint in the archive {}", dir.display()).into())
}
