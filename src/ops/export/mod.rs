//! Exports: a whole server, or the data of one user, as JSON lines and files that any tool can
//! read; and their import.
//!
//! An export is a directory (`docs/export.md` describes its layout, field by field). Its
//! [`Manifest`] is written last and lists every other file with length and hash, signed by the
//! server: a directory without one is an unfinished export, and is refused.
//!
//! - [`export_server`] walks through the log of a stopped or running server: every record with its
//!   header and chain value, and every file that a record refers to.
//! - [`import_server`] creates a data directory with the same records, and so the same chain and
//!   state. It checks everything before it writes.
//! - [`export_user`] uses the same [`View`](logcabin_read::view::View) as the endpoints, so it
//!   contains nothing that the user could not have requested. The parts that can live on another
//!   server become an account there ([`place_files`], and an act of administration).

mod bodies;
mod chosen_ids;
mod folder;
mod import;
mod import_user;
mod line;
mod manifest;
mod server;
mod user;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use import::{ImportError, Imported, check_export, import_server};
pub(crate) use import_user::{ImportableData, import_user};
pub use import_user::{ImportedUser, place_files};
pub use manifest::{Entry, ExportScope, Manifest, Missing};
pub use server::export_server;
pub use user::export_user;

use crate::source::SourceError;
use logcabin_log::{ReadError, VerifyError};
use logcabin_record::{Offset, hex};
use logcabin_state::ApplyError;

/// The maximum size of a file of records, in bytes.
pub const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Why an export failed. What was written stays, marked as unfinished.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(
        "{} is not empty (there is `{found}`); name a new directory, nothing is overwritten",
        .dir.display()
    )]
    NotEmpty {
        dir: PathBuf,
        /// An entry in it.
        found: String,
    },
    /// What was imported from it would be taken for the real server.
    #[error("{} is for rehearsals, of which there are no exports", .0.display())]
    Rehearsal(PathBuf),
    /// Another process writes there.
    #[error("another export is being written to {}", .0.display())]
    Busy(PathBuf),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the log is not intact, and `logcabin verify` says more: {0}")]
    Verify(#[from] VerifyError),
    /// The records cannot be replayed.
    #[error("the log cannot be replayed: {0}")]
    Apply(#[from] ApplyError),
    /// The projections cannot be opened.
    #[error(transparent)]
    Replay(Box<logcabin_engine::OpenError>),
    /// A record cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record cannot be written as a line.
    #[error("record {offset} cannot be written as a line: {reason}")]
    Record {
        /// The record.
        offset: Offset,
        reason: String,
    },
    /// A file cannot be written or read.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The log has no identity yet: no server has run on it.
    #[error("the log is empty: there is nothing to export")]
    Empty,
    /// No user has this name.
    #[error("no user has the id or name `{0}`")]
    NoUser(String),
    #[error("the manifest cannot be signed: {0}")]
    Signing(String),
}

impl From<logcabin_engine::OpenError> for ExportError {
    fn from(error: logcabin_engine::OpenError) -> Self {
        Self::Replay(Box::new(error))
    }
}

/// Adds the file to an I/O error.
fn at(path: &Path) -> impl Fn(io::Error) -> ExportError + '_ {
    move |source| ExportError::Io { path: path.to_owned(), source }
}
