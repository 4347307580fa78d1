//! Backups: the log and the uploaded files as of certain moments, in a directory of their own.
//!
//! A backup is taken from a running server (through its admin socket) or a stopped one, and copies
//! only what the directory lacks. [`check`] verifies backups, [`crate::restore`] restores
//! them:
//!
//! ```text
//! DEST/manifests/EPOCH-OFFSET.json   what a moment consists of, signed by the server
//! DEST/segments/FIRST-HASH.lcseg     records, as in an archive (`log_format.md`), sealed
//! DEST/lists/HASH                    which uploaded files: a line `HASH LENGTH` for each, in order
//! DEST/media/ab/cd/HASH              an uploaded file, named by its blake3
//! DEST/incoming/                     what is being copied; emptied by the next backup
//! DEST/lock                          locked while a backup is made
//! ```
//!
//! A file is written under a temporary name, synced, and renamed; the manifest comes last. So an
//! interrupted backup does not affect earlier ones. Backups share files. `HASH` is the blake3 of
//! the file's bytes in hexadecimal; a segment's name contains its first 16 digits.
//!
//! **Erased content is not in backups that are made afterwards:** the records since the last backup
//! say what was erased meanwhile, and segments with any of it are copied again. Earlier backups
//! keep what they contain until they are removed; `state::Copies` lists them.
//!
//! **Segments stay few.** New records are merged with preceding segments that have no more records
//! than they do: so there are about as many segments as the number of records has binary digits,
//! besides the full ones, and each record is copied about as often.

mod check;
mod prune;
mod take;
pub mod verified;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

pub use check::{BackupCheck, CheckedBackup, check};
pub use prune::{Pruned, Retention, prune};
pub use take::{NewBackup, Options, take};

use crate::source::{ManifestError, SourceError};
use logcabin_base::disk;
use logcabin_log::VerifyError;
use logcabin_record::codec::CodecError;

/// Why a backup cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is not empty and holds no backup", .0.display())]
    NotABackup(PathBuf),
    #[error("there is no backup in {}{}", .dir.display(), .offset.map_or_else(String::new, |offset| format!(" that ends at record {offset}")))]
    None {
        dir: PathBuf,
        /// The requested one.
        offset: Option<logcabin_record::Offset>,
    },
    #[error("{} holds backups of the server {found}, and this is {ours}", .dir.display())]
    OtherServer {
        dir: PathBuf,
        /// The server of the backups.
        found: String,
        /// The server of the log.
        ours: String,
    },
    #[error("another backup is being made in {}", .0.display())]
    InUse(PathBuf),
    /// What was restored from it would be taken for the real server.
    #[error("{} is for rehearsals, of which there are no backups", .0.display())]
    Rehearsal(PathBuf),
    #[error(
        "no backup in {} is intact, so none was removed; `logcabin verify-backup` tells what is \
         wrong",
        .0.display()
    )]
    NoneIntact(PathBuf),
    /// A manifest, or a list that it names, cannot be read or written.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The log is empty, or does not identify its server.
    #[error("the log holds no server's identity")]
    NoIdentity,
    /// The log cannot be read.
    #[error(transparent)]
    Source(#[from] Box<SourceError>),
    /// A record is not intact.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A record cannot be written.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A segment cannot be read or written.
    #[error(transparent)]
    Segment(#[from] logcabin_log::archive::ArchiveError),
}

impl From<SourceError> for BackupError {
    fn from(error: SourceError) -> Self {
        Self::Source(Box::new(error))
    }
}

impl BackupError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// Makes the names of a directory's files durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), BackupError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(BackupError::io(dir))
}

/// Copies a file durably to its place, through `incoming`, if its hash is right; returns its
/// length, or nothing for a damaged file. Creates the directories.
pub(crate) fn copy_media(
    from: &Path,
    to: &Path,
    incoming: &Path,
    hash: &logcabin_record::command::FileHash,
) -> io::Result<Option<u64>> {
    use std::{io::Read as _, io::Write as _, os::unix::fs::DirBuilderExt as _};
    let mut file = File::open(from)?;
    let partial = incoming.join(hash.to_string());
    let mut out = File::create(&partial)?;
    let (mut hasher, mut length) = (blake3::Hasher::new(), 0);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let read = file.read(&mut buffer)?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else { break };
        hasher.update(piece);
        out.write_all(piece)?;
        length += read as u64;
    }
    if *hasher.finalize().as_bytes() != hash.0 {
        std::fs::remove_file(&partial)?;
        return Ok(None);
    }
    out.sync_all()?;
    let parent = to.parent().unwrap_or(to);
    if !parent.is_dir() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let made = parent.ancestors().take(3);
        for dir in made.skip(1) {
            File::open(dir)?.sync_all()?;
        }
    }
    disk::put_in_place(&partial, to)?;
    Ok(Some(length))
}
