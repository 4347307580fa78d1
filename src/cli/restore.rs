//! `logcabin restore`: a new log from an archive.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use crate::{
    checkpoint::Checkpoint,
    history::look::grouped,
    log::archive::{Restored, restore_from_archive},
};

/// Rebuild a data directory from an archive alone
///
/// The directory must hold no log: one that is damaged is moved away first (`DIR/log`), so that
/// nothing is ever overwritten. The archive may be the one in the same directory. It is verified as
/// it is read, and the new log appears only once it is complete.
#[derive(Debug, clap::Args)]
pub(super) struct Restore {
    /// The archive: a directory of .lcseg files
    #[arg(long, value_name = "ARCHIVE")]
    from_archive: PathBuf,

    #[command(flatten)]
    at: super::DataDir,

    /// Write one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Restore {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let data_dir = self.at.load()?.server.data_dir;
        let restored = restore_from_archive(&self.from_archive, &data_dir)?;
        // It is of the log that was there before, which may have been longer.
        Checkpoint::remove(&data_dir)?;
        super::print(&if self.json {
            json!({
                "data_dir": data_dir,
                "records": restored.records,
                "last": restored.last,
                "chain": blake3::Hash::from_bytes(restored.chain).to_hex().to_string(),
                "dropped": restored.dropped,
                "erased": restored.erased,
                "torn_bytes": restored.torn.as_ref().map(|torn| torn.bytes),
            })
            .to_string()
                + "\n"
        } else {
            self.text(&restored, &data_dir)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self, restored: &Restored, data_dir: &Path) -> String {
        let mut text = format!(
            "Restored {} records from {} to {}.\n",
            grouped(restored.records),
            self.from_archive.display(),
            data_dir.display()
        );
        if restored.dropped > 0 {
            text += &format!(
                "Left out {} records at the end, as the rest of their batch is not in the archive.\n",
                restored.dropped
            );
        }
        if restored.erased > 0 {
            text += &format!(
                "{} payloads that it still held were erased later, and have been left behind.\n",
                grouped(restored.erased)
            );
        }
        if let Some(torn) = &restored.torn {
            text += &format!(
                "The last {} bytes of {} are of an entry that was not finished.\n",
                torn.bytes,
                torn.path.display()
            );
        }
        text + &format!("Check it with: logcabin verify --data-dir {}\n", data_dir.display())
    }
}
