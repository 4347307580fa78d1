//! `logcabin verify`: checks that the log is complete and unchanged.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use logcabin_log::store::{self, OpenError, RepairError, Repaired};
use logcabin_ops::{
    history::{
        HistoryError, Layout, Report,
        check::{check_all, unopened},
        render_report,
    },
    source::{Source, SourceError},
};

/// Verify the log, and the archive, snapshots and files beside it
///
/// Reads every record of the data directory of a stopped server, or of an archive. In a data
/// directory it also compares the state with the one that the server had when it last stopped, and
/// the archive with the log, and reads every uploaded file. Without `--repair` it changes nothing:
/// the newest records are in a database that can only be read from a copy, which is in
/// `DATA_DIR/verifying` while the command runs.
///
/// For events in rooms of versions 1 and 2, where servers choose the ids, this verifies the bytes,
/// but not that the id belongs to them.
///
/// Exits with 0 when all is intact, 1 when there is a fault (its offset is named), 2 when nothing
/// could be checked.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    #[command(flatten)]
    pub(super) at: super::DataDirOrDir,

    /// Check this archive: alone, or against the log if `--data-dir` is given too
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,

    /// Repair damaged volumes of the log from the archive first
    ///
    /// A damaged volume is replaced only by one whose hash chain fits the rest of the log.
    #[arg(long)]
    repair: bool,

    /// Print JSON instead of text
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
                    eprintln!("A running server is checked with: logcabin history verify DIR");
                }
                return Ok(ExitCode::from(2));
            }
        };
        super::print(&if self.json {
            serde_json::to_string(&report)? + "\n"
        } else {
            render_report(&report, &Layout::of_stdout())
        })?;
        Ok(if report.intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn report(&self) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
        if let (Some(archive), None, false) = (&self.archive, self.at.given(), self.repair) {
            return Ok(check_all(&Source::archive(archive), None)?);
        }
        let config = self.at.load()?;
        let data_dir = &config.server.data_dir;
        let archive = self.archive.clone().or_else(|| config.archive_dir());
        let repaired = if self.repair {
            let archive = archive.as_deref().ok_or("there is no archive to repair the log from")?;
            Some(Self::repaired(data_dir, archive)?)
        } else {
            None
        };
        let mut report = Self::checked(data_dir, archive, self.archive.is_some())?;
        if let Some(repaired) = &repaired {
            report.note_repair(repaired);
        }
        Ok(report)
    }

    /// Repairs the log. The outer error is that of a log that cannot be opened at all.
    fn repaired(
        data_dir: &Path,
        archive: &Path,
    ) -> Result<Result<Vec<Repaired>, RepairError>, HistoryError> {
        match store::repair(data_dir, archive) {
            Err(RepairError::Open(error @ (OpenError::InUse { .. } | OpenError::Importing(_)))) => {
                Err(SourceError::Open(error).into())
            }
            repaired => Ok(repaired),
        }
    }

    fn checked(
        data_dir: &Path,
        archive: Option<PathBuf>,
        is_named: bool,
    ) -> Result<Report, HistoryError> {
        match Source::untouched(data_dir) {
            Ok(source) => {
                let archive = archive.filter(|dir| is_named || dir.is_dir());
                check_all(&source, archive.as_deref())
            }
            Err(SourceError::Open(error)) => {
                let place = format!("data directory {}", data_dir.display());
                unopened(&place, error)
            }
            Err(error) => Err(HistoryError::from(error)),
        }
    }
}
