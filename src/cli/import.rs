//! `logcabin import`: creates a data directory from the export of a server.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;

use logcabin_ops::{
    export::{self, Imported},
    history::terminal::grouped,
};

/// Create a data directory from an export
///
/// The new server has the same records, so that chain, state and the clients' tokens are the same.
/// The directory must be empty or missing. Every byte of the export is checked before anything is
/// written; errors name file and line.
///
/// Never run the exported and the imported server at the same time, or in turn: they would be two
/// servers with one name.
#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// The directory that `logcabin export` wrote
    #[arg(value_name = "SRC")]
    src: PathBuf,

    /// Check the export, of a server or of a user, and write nothing
    #[arg(long)]
    check: bool,

    /// Start a new epoch, because the exported server has taken writes since: clients with later
    /// positions sync from the start. Implied if the server was running during the export
    #[arg(long)]
    new_epoch: bool,

    #[command(flatten)]
    at: super::DataDir,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Import {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        if self.check {
            return self.check();
        }
        let data_dir = self.at.load()?.server.data_dir;
        let imported = export::import_server(&self.src, &data_dir, self.new_epoch)?;
        super::print(&if self.json {
            json!({
                "data_dir": data_dir,
                "server_name": imported.manifest.server_name,
                "records": imported.records,
                "last": imported.manifest.last,
                "chain": imported.manifest.chain,
                "digest": imported.digest,
                "digest_compared": imported.compared,
                "erased": imported.erased,
                "files": imported.files,
                "running": imported.manifest.running,
                "new_epoch": imported.new_epoch,
            })
            .to_string()
                + "\n"
        } else {
            self.text(&imported, &data_dir)
        })?;
        for missing in &imported.manifest.missing {
            eprintln!("logcabin: the export lacks {}: {}", missing.path, missing.reason);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn check(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let manifest = export::check_export(&self.src)?;
        super::print(&if self.json {
            serde_json::to_string(&manifest)? + "\n"
        } else {
            format!(
                "All {} files are as {} signed them, with {} {}\n",
                grouped(manifest.files.len() as u64),
                manifest.server_name,
                manifest.key_id,
                manifest.public_key
            )
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self, imported: &Imported, data_dir: &Path) -> String {
        let manifest = &imported.manifest;
        let mut text = format!(
            "Imported {} from {} to {}: {} records and {} files.\n",
            manifest.server_name,
            self.src.display(),
            data_dir.display(),
            grouped(imported.records),
            grouped(imported.files)
        );
        text += &format!("Chain    {}\nDigest   {}", manifest.chain, imported.digest);
        text += match imported.compared {
            true => ", as the exporting server had it\n",
            false => ", not compared: another version of logcabin wrote the export\n",
        };
        if let Some(epoch) = imported.new_epoch {
            text += &format!(
                "Epoch    {} begins: clients that saw more than record {} sync from the start\n",
                epoch.0,
                grouped(manifest.last.get())
            );
        }
        text + &format!("Check it with: logcabin verify --data-dir {}\n", data_dir.display())
    }
}
