//! `logcabin export`: a server, or one of its users, as files that any tool can read.

use std::{path::PathBuf, process::ExitCode};

use logcabin_ops::{
    export::{self, ExportScope, FILE_BYTES, Manifest},
    history::terminal::{bytes, grouped},
};

/// Export a server, or one user, as JSON lines and files
///
/// Exports the whole server, running or stopped. With --user, exports the user's data, and what the
/// user may see. The directory must be empty or missing. Its manifest lists every file with its
/// hash and is signed by the server; docs/export.md describes the files. `logcabin import` creates
/// a server from the export of one.
///
/// The export of a server contains its private key, the password hashes and every message: protect
/// it like a private key. The export of a user contains no secret of the server, but everything
/// that the user may read.
#[derive(Debug, clap::Args)]
pub(super) struct Export {
    /// The directory to write to
    #[arg(value_name = "DEST")]
    dest: PathBuf,

    /// Export only this user: @name:server, or just the name
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// Start a new file of records before one exceeds this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = FILE_BYTES, conflicts_with = "user")]
    file_bytes: u64,

    #[command(flatten)]
    at: super::DataDir,

    /// Print the manifest, in JSON, instead of text
    #[arg(long)]
    json: bool,
}

impl Export {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let data_dir = self.at.load()?.server.data_dir;
        let manifest = match &self.user {
            Some(user) => export::export_user(&data_dir, user, &self.dest)?,
            None => export::export_server(&data_dir, &self.dest, self.file_bytes)?,
        };
        super::print(&if self.json {
            serde_json::to_string(&manifest)? + "\n"
        } else {
            self.text(&manifest)
        })?;
        for missing in &manifest.missing {
            eprintln!("logcabin: not exported: {}: {}", missing.path, missing.reason);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self, manifest: &Manifest) -> String {
        let size = manifest.files.iter().map(|file| file.bytes).sum();
        let what = match (&manifest.holds, &manifest.user_id) {
            (ExportScope::User, Some(user_id)) => user_id.to_string(),
            _ => manifest.server_name.clone(),
        };
        let mut text = format!(
            "Exported {what} as of record {} to {}: {} files, {}.\n",
            grouped(manifest.last.get()),
            self.dest.display(),
            grouped(manifest.files.len() as u64),
            bytes(size)
        );
        if let Some(digest) = &manifest.state_digest {
            text += &format!("Digest   {digest}\n");
        }
        text += &format!("Signed   {} {}\n", manifest.key_id, manifest.public_key);
        if manifest.running && manifest.holds == ExportScope::Server {
            text += "The server was running: later records are missing. To move a server, stop it \
                     first.\n";
        }
        text
    }
}
