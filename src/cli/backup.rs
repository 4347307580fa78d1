//! `logcabin backup`, `logcabin backups`, `logcabin verify-backup` and `logcabin prune-backups`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use super::{act, columns};
use logcabin_base::clock::Clock;
use logcabin_log::store::log_dir;
use logcabin_ops::{
    admin::snapshots::{BackupRow, Backups, ListBackups, NoteBackup},
    backup::{self, BackupCheck, NewBackup, Options, Pruned, Retention, verified},
    history::{
        moment::Time,
        progress::Progress,
        terminal::{bytes, clean, grouped},
    },
    source::{Manifest, Source},
};
use logcabin_record::{
    Offset,
    command::{BackupMade, BackupMoment, FileHash},
};

/// The most removed backups that one request names, which keeps it far below its size limit.
const NOTED_AT_ONCE: usize = 200;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Back up the log and the uploaded files of a running or stopped server
///
/// Copies only what the directory lacks. Each backup can be restored by itself, and an interrupted
/// backup does not affect earlier ones. A backup contains the server's private key, the password
/// hashes and every message.
#[derive(Debug, clap::Args)]
pub(super) struct Backup {
    /// The directory of the backups; created if it is missing
    #[arg(value_name = "DEST")]
    dest: PathBuf,

    /// Keep this many backups, this one included, and delete the oldest [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,

    #[command(flatten)]
    common: act::Common,
}

impl Backup {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let config = self.common.config()?;
        let data_dir = &config.server.data_dir;
        let source = Source::of_log(data_dir)?;
        let keep = self.keep.map(|keep| usize::try_from(keep).unwrap_or(usize::MAX));
        let options = Options { keep, segment_bytes: config.log.archive_segment_bytes };
        let mut progress = Progress::begin(source.end()?);
        let taken =
            backup::take(&source, data_dir, &self.dest, options, |offset| progress.at(offset))?;
        drop((progress, source));
        let destination = destination(&self.dest);
        note(&self.common, &destination, (&taken.manifest, taken.hash), &taken.removed);
        super::print(&if self.common.json {
            json!({
                "destination": destination,
                "epoch": taken.manifest.epoch,
                "offset": taken.manifest.offset,
                "chain": taken.manifest.chain,
                "manifest": taken.hash,
                "segments": taken.manifest.segments.len(),
                "copied_records": taken.copied_records,
                "copied_bytes": taken.copied_bytes,
                "files": taken.manifest.media.files,
                "copied_files": taken.copied_files,
                "copied_file_bytes": taken.copied_file_bytes,
                "damaged": taken.damaged,
                "removed": taken.removed,
            })
            .to_string()
                + "\n"
        } else {
            self.text(&taken)
        })?;
        Ok(if taken.damaged.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn text(&self, taken: &NewBackup) -> String {
        let NewBackup { manifest, copied_records, copied_bytes, copied_files, .. } = taken;
        let mut text = format!(
            "Backed up {} records and {} uploaded files in {}, up to record {} of {}.\n\
             Copied {} records ({}) and {} files ({}); the rest was already there.\n",
            grouped(manifest.offset.get()),
            grouped(manifest.media.files),
            self.dest.display(),
            manifest.offset,
            Time(manifest.record_ms).to_second(),
            grouped(*copied_records),
            bytes(*copied_bytes),
            grouped(*copied_files),
            bytes(taken.copied_file_bytes),
        );
        for path in &taken.damaged {
            text += &format!(
                "{} does not match the hash in its name, and was left out.\n",
                path.display()
            );
        }
        for BackupMoment { offset, .. } in &taken.removed {
            text += &format!("Removed the backup up to record {offset}.\n");
        }
        text
    }
}

/// The directory as the log names it, whatever the working directory is.
fn destination(dest: &Path) -> String {
    dest.canonicalize().unwrap_or_else(|_| dest.to_owned()).to_string_lossy().into_owned()
}

/// Records a backup in the log, and which older ones were removed. The backups are as good without
/// that, but then erasures cannot report which of them contain the content.
fn note(
    common: &act::Common,
    destination: &str,
    (manifest, hash): (&Manifest, FileHash),
    removed: &[BackupMoment],
) {
    let made = |removed: &[BackupMoment]| BackupMade {
        destination: destination.to_owned(),
        moment: manifest.moment(),
        chain: manifest.chain,
        manifest: hash,
        removed: removed.to_vec(),
    };
    let mut notes: Vec<_> = removed.chunks(NOTED_AT_ONCE).map(made).collect();
    if notes.is_empty() {
        notes.push(made(&[]));
    }
    for made in notes {
        if let Err(error) = common.perform(NoteBackup { made }) {
            eprintln!("logcabin: this could not be noted in the log: {error}");
            return;
        }
    }
}

/// List the backups that the log knows of, newest first
///
/// `logcabin verify-backup` checks whether they are still there and intact.
#[derive(Debug, clap::Args)]
pub(super) struct ListOfBackups {
    /// List at most COUNT backups
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    last: usize,

    #[command(flatten)]
    common: act::Common,
}

impl ListOfBackups {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        self.common.run(ListBackups { from: 0, limit: self.last }, list)
    }
}

fn list(all: &Backups) -> String {
    if all.backups.is_empty() {
        return "The log knows of no backup.\n".to_owned();
    }
    let heading = ["MADE", "UP TO RECORD", "EPOCH", "BY", "DIRECTORY"].map(str::to_owned);
    let row = |BackupRow { copy, noted_ms, who }: &BackupRow| {
        let BackupMoment { epoch, offset } = copy.moment;
        let (made, upto) = (Time(*noted_ms).to_second(), grouped(offset.get()));
        [made, upto, epoch.0.to_string(), clean(who), clean(&copy.destination)]
    };
    columns(&std::iter::once(heading).chain(all.backups.iter().map(row)).collect::<Vec<_>>())
}

/// Verify backups: every byte, the hash chain and the signatures
///
/// Exits with 0 if everything is intact, 1 if there is a fault, 2 if nothing could be checked. The
/// data directory, if there is one, notes which backups are intact, for `logcabin doctor`, metrics
/// and alerts.
#[derive(Debug, clap::Args)]
pub(super) struct VerifyBackup {
    /// The directory of the backups
    #[arg(value_name = "DEST")]
    dest: PathBuf,

    /// Verify only the backup that ends at this record
    #[arg(long, value_name = "OFFSET")]
    offset: Option<u64>,

    /// Also check that each backup is a prefix of the log in this archive or data directory (of a
    /// running or stopped server)
    #[arg(long, value_name = "SOURCE")]
    of: Option<String>,

    #[command(flatten)]
    common: act::Common,
}

impl VerifyBackup {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let checked = match self.check() {
            Ok(checked) => checked,
            Err(error) => {
                eprintln!("logcabin: nothing was checked: {error}");
                return Ok(ExitCode::from(2));
            }
        };
        if let Err(error) = self.note(&checked) {
            eprintln!("logcabin: `logcabin doctor` and metrics will not know of this: {error}");
        }
        super::print(&if self.common.json {
            serde_json::to_string(&checked)? + "\n"
        } else {
            text(&checked)
        })?;
        Ok(if checked.intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Notes the result in the data directory of the backups, if it is on this machine.
    fn note(&self, checked: &BackupCheck) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let of = self.of.as_ref().map(PathBuf::from).filter(|of| log_dir(of).is_dir());
        let data_dir = match of {
            Some(of) => of,
            None => self.common.data_dir()?,
        };
        if !log_dir(&data_dir).is_dir() {
            return Ok(());
        }
        let (is_of_all, now_ms) = (self.offset.is_none(), Clock::system().now_ms());
        verified::note(&data_dir, &destination(&self.dest), checked, is_of_all, now_ms)?;
        Ok(())
    }

    fn check(&self) -> Result<BackupCheck, Box<dyn std::error::Error + Send + Sync>> {
        let of = self.of.as_deref().map(Source::open).transpose()?;
        Ok(backup::check(&self.dest, self.offset.map(Offset::new), of.as_ref(), |_| {})?)
    }
}

/// Remove old backups, never the newest that is intact
///
/// Removes the backups that are too many or too old. Before it removes anything it verifies
/// backups, beginning with the newest, until it finds one that is intact, and keeps that one. The
/// log in the data directory, if there is one, notes which were removed.
#[derive(Debug, clap::Args)]
#[group(id = "rules", required = true, multiple = true, args = ["keep", "max_age_days"])]
pub(super) struct PruneBackups {
    /// The directory of the backups
    #[arg(value_name = "DEST")]
    dest: PathBuf,

    /// Keep this many backups and remove older ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,

    /// Remove backups that were made more than this many days ago
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..))]
    max_age_days: Option<u64>,

    #[command(flatten)]
    common: act::Common,
}

impl PruneBackups {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let retention = Retention {
            keep: self.keep.map(|keep| usize::try_from(keep).unwrap_or(usize::MAX)),
            max_age_ms: self.max_age_days.map(|days| days.saturating_mul(DAY_MS)),
        };
        let pruned = backup::prune(&self.dest, retention, Clock::system().now_ms())?;
        let destination = destination(&self.dest);
        // On a machine that only keeps copies of backups there is no log.
        if let Some((manifest, hash)) = &pruned.newest_intact
            && !pruned.removed.is_empty()
            && self.common.data_dir()?.join("log").is_dir()
        {
            note(&self.common, &destination, (manifest, *hash), &pruned.removed);
        }
        super::print(&if self.common.json {
            let Pruned { kept, removed, .. } = &pruned;
            json!({ "destination": destination, "kept": kept, "removed": removed }).to_string()
                + "\n"
        } else {
            pruned_text(&pruned)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn pruned_text(pruned: &Pruned) -> String {
    let mut text = String::new();
    for BackupMoment { offset, .. } in &pruned.removed {
        text += &format!("Removed the backup up to record {offset}.\n");
    }
    text + &format!("{} removed, {} kept.\n", pruned.removed.len(), pruned.kept.len())
}

fn text(checked: &BackupCheck) -> String {
    let mut text = String::new();
    for moment in &checked.moments {
        match &moment.moment {
            Some(BackupMoment { epoch, offset }) => {
                text += &format!(
                    "{}: record {offset} of epoch {}, {}; {} uploaded files; {} in all\n",
                    moment.server_name,
                    epoch.0,
                    Time(moment.record_ms).to_second(),
                    grouped(moment.files),
                    bytes(moment.bytes),
                );
            }
            None => text += &format!("{}\n", moment.manifest.display()),
        }
        if moment.is_prefix == Some(true) {
            text += "  is a prefix of the log\n";
        }
        for fault in &moment.faults {
            text += &format!("  FAULT: {fault}\n");
        }
    }
    text + if checked.intact { "All is intact.\n" } else { "Not all is intact.\n" }
}
