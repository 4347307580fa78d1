//! `logcabin restore`: restores a log, completely or as of an earlier moment.

use std::{path::PathBuf, process::ExitCode};

use logcabin_ops::{
    history::{
        moment::{Moment, Time},
        terminal::grouped,
    },
    restore::{self, Request, RestoreSource, Restored},
};

/// Restore a data directory from a backup, an archive or another log, up to any moment
///
/// A log is never overwritten: move it away (`DIR/log`), or restore `--in-place`, which keeps it
/// under another name. The source is verified, and the new log appears only once it is complete.
/// With `--to`, everything after that moment is lost, except what must survive: passwords, tokens
/// and devices, keys that were handed out, erasures. A new epoch starts; clients with later
/// positions sync from the start.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true).args(["from", "in_place"]))]
pub(super) struct Restore {
    /// The source: a directory of backups, an archive, or another data directory
    #[arg(long, value_name = "SOURCE", visible_alias = "from-archive")]
    from: Option<PathBuf>,

    /// Restore from the log in the data directory, and keep that log under another name
    #[arg(long)]
    in_place: bool,

    /// The moment: an offset, a time (2026-03-01 14:00 in UTC), or -10m for ten minutes ago
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    to: Option<Moment>,

    /// Drop all one-time keys, even if it is known which were handed out
    #[arg(long)]
    drop_keys: bool,

    /// Report what would be lost and what would be kept, and change nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    at: super::DataDir,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Restore {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let (config, notes) = self.at.load_for_writing()?;
        for note in notes {
            eprintln!("logcabin: {note}");
        }
        let request = Request {
            from: self.from.clone().map_or(RestoreSource::InPlace, RestoreSource::Path),
            to: self.to,
            archive_dir: config.archive_dir(),
            data_dir: config.server.data_dir,
            drop_keys: self.drop_keys,
            dry_run: self.dry_run,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let restored = runtime.block_on(restore::restore(&request))?;
        super::print(&if self.json {
            serde_json::to_string(&restored)? + "\n"
        } else {
            self.text(&restored, &request)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self, restored: &Restored, request: &Request) -> String {
        let data_dir = request.data_dir.display();
        let from = self.from.as_ref().unwrap_or(&request.data_dir).display();
        let mut text = format!(
            "{} {} records from {from} to {data_dir}, up to record {} of {}.\n",
            if self.dry_run { "Would restore" } else { "Restored" },
            grouped(restored.records),
            restored.last,
            Time(restored.last_ms).to_second(),
        );
        let mut say = |line: String| text += &(line + "\n");
        if restored.dropped > 0 {
            say(format!(
                "Left out the last {} records, because their batch is incomplete.",
                restored.dropped
            ));
        }
        if restored.erased > 0 {
            say(format!("Left out {} payloads that were erased later.", grouped(restored.erased)));
        }
        if let Some(bytes) = restored.torn_bytes {
            say(format!("The last {bytes} bytes belong to an unfinished entry."));
        }
        if let Some(undone) = restored.undone {
            say(format!("What came after that, up to record {undone}, is lost:"));
            if restored.lost_events > 0 {
                say(format!("  {} events in rooms that stay", grouped(restored.lost_events)));
            }
            if restored.lost_rooms > 0 {
                say(format!("  {} rooms, with all that was in them", grouped(restored.lost_rooms)));
            }
            for (kind, count) in &restored.lost {
                say(format!("  {:>10} {kind}", grouped(*count)));
            }
            say("Except for what is carried over:".to_owned());
            for (kind, count) in &restored.carried {
                say(format!("  {:>10} {kind}", grouped(*count)));
            }
        }
        if restored.redacted_again > 0 {
            say(format!("{} redactions are applied again.", grouped(restored.redacted_again)));
        }
        if restored.redacted_without > 0 {
            say(format!(
                "{} more cannot be applied; the texts are erased all the same.",
                grouped(restored.redacted_without)
            ));
        }
        if restored.keys_dropped {
            let why = if restored.complete { "" } else { "It is not known what came after. " };
            say(format!("{why}All one-time keys are dropped: devices upload new ones."));
        }
        if restored.files > 0 {
            say(format!("Copied {} uploaded files.", grouped(restored.files)));
        }
        if restored.missing_files > 0 {
            say(format!(
                "{} uploaded files are missing: copy them to {}.",
                grouped(restored.missing_files),
                logcabin_media::store::directory(&request.data_dir).display()
            ));
        }
        if let Some(kept) = &restored.kept_log {
            say(format!("The previous log is now in {}.", kept.display()));
        }
        if let Some(kept) = &restored.kept_archive {
            say(format!("The previous archive is now in {}.", kept.display()));
        }
        if !self.dry_run {
            say(format!(
                "Epoch {} begins. Check it with: logcabin verify --data-dir {data_dir}",
                restored.epoch.0
            ));
        }
        text
    }
}
