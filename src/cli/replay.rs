//! `logcabin replay`: computes the projections from the log alone.

use std::{path::PathBuf, process::ExitCode, time::Instant};

use serde::Serialize;

use logcabin_engine as engine;
use logcabin_ops::{
    history::{
        progress::Progress,
        query::Counts,
        terminal::{bytes, grouped},
    },
    source::Source,
};
use logcabin_record::Offset;

/// Rebuild the state from the first record, and report its digest and the time taken
///
/// Writes nothing. A server does the same when it starts. For the same log, the digest is always
/// the same, on every machine.
#[derive(Debug, clap::Args)]
pub(super) struct Replay {
    #[command(flatten)]
    pub(super) at: super::DataDirOrDir,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The result of a replay.
#[derive(Debug, Serialize)]
struct Replayed {
    data_dir: PathBuf,
    records: u64,
    bytes: u64,
    seconds: f64,
    records_per_second: f64,
    megabytes_per_second: f64,
    digest: String,
    #[serde(flatten)]
    counts: Counts,
}

impl Replay {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let data_dir = self.at.load()?.server.data_dir;
        let source = Source::stopped(&data_dir)?;
        let Some(log) = source.log() else { return Ok(ExitCode::FAILURE) };
        let begun = Instant::now();
        let mut progress = Progress::begin(source.end()?);
        let (state, replayed) = engine::replay(log, |at: Offset, _| progress.at(at))?;
        drop(progress);
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        let replayed = Replayed {
            data_dir,
            records: replayed.records,
            bytes: replayed.bytes,
            seconds,
            records_per_second: replayed.records as f64 / seconds,
            megabytes_per_second: replayed.bytes as f64 / 1e6 / seconds,
            digest: state.digest().to_hex().to_string(),
            counts: Counts::of(&state),
        };
        super::print(&if self.json {
            serde_json::to_string(&replayed)? + "\n"
        } else {
            replayed.text()
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Replayed {
    fn text(&self) -> String {
        let Counts { users, devices, rooms, events, aliases } = &self.counts;
        format!(
            "Replayed {records} records ({size}) of {place} in {seconds:.2} s: \
             {rate} records/s, {megabytes:.1} MB/s\n\
             Digest   {digest}\n\
             Holds    users {}, devices {}, rooms {}, events {}, aliases {}\n",
            grouped(*users),
            grouped(*devices),
            grouped(*rooms),
            grouped(*events),
            grouped(*aliases),
            records = grouped(self.records),
            size = bytes(self.bytes),
            place = self.data_dir.display(),
            seconds = self.seconds,
            rate = grouped(self.records_per_second as u64),
            megabytes = self.megabytes_per_second,
            digest = self.digest,
        )
    }
}
