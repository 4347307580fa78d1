//! `logcabin verify`: is all of the log there, and as it was written?

use std::{path::PathBuf, process::ExitCode};

use crate::{
    history::{
        HistoryError, Look, Report,
        check::{check_all, unopened},
        render_report,
        source::{Source, SourceError},
    },
    log::sled::OpenError,
};

/// Check the whole log: chain, payloads, commands, replay, and what lies beside it
///
/// Reads every record of the data directory of a stopped server, or of an archive. In a data
/// directory it also compares the state with the one that the server had when it last stopped, and
/// the archive with the log, and reads every uploaded file. It changes nothing: of the newest records, which
/// are in a database that cannot be read otherwise, it makes a copy in `DATA_DIR/verifying` for the time being.
///
/// Exits with 0 when all is intact, 1 when there is a fault (its offset is named), 2 when nothing
/// could be checked.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    #[command(flatten)]
    at: super::DataDir,

    /// Check this archive: alone, or against the log if `--data-dir` is given too
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,

    /// Write one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let report = match self.report() {
            Ok(report) => report,
            Err(error) => {
                eprintln!("logcabin: nothing was checked: {error}");
                if matches!(
                    error.downcast_ref(),
                    Some(HistoryError::Source(SourceError::Open(OpenError::InUse { .. })))
                ) {
                    eprintln!(
                        "A running server is checked with: cargo run --example history -- verify DIR"
                    );
                }
                return Ok(ExitCode::from(2));
            }
        };
        super::print(&if self.json {
            serde_json::to_string(&report)? + "\n"
        } else {
            render_report(&report, &Look::of_stdout())
        })?;
        Ok(if report.intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn report(&self) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
        if let (Some(archive), None) = (&self.archive, &self.at.data_dir) {
            return Ok(check_all(&Source::archive(archive), None)?);
        }
        let config = self.at.load()?;
        let data_dir = &config.server.data_dir;
        let archive = self.archive.clone().or_else(|| config.archive_dir());
        match Source::untouched(data_dir) {
            Ok(source) => {
                let archive = archive.filter(|dir| self.archive.is_some() || dir.is_dir());
                Ok(check_all(&source, archive.as_deref())?)
            }
            Err(SourceError::Open(error)) => {
                let place = format!("data directory {}", data_dir.display());
                Ok(unopened(&place, error)?)
            }
            Err(error) => Err(HistoryError::from(error).into()),
        }
    }
}
