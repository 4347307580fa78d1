//! Opens a copy of a log, so that the log itself stays untouched.
//!
//! Opening a log writes to it: sled recovers and notes how far it came, and leftovers of a crash
//! are tidied up. So a copy is opened. The copy links to the volumes, which are only read, and
//! copies the databases. These take at most half a gigabyte, except in a log that was just restored
//! and has not been sealed yet. The copy is beside the log, where its records are just as safe, and
//! where file systems that can share blocks do so.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{
    OpenError, SledLog, SledOptions, importing_dir, layers, lock_data_dir, log_dir,
    make_private_dir, remove_dir,
};
use crate::{tip_file, volume};
use logcabin_base::disk;

/// Where the copy is. A killed process leaves it behind. The next lock on the data directory
/// removes it, because it may contain content that is to be erased.
pub(super) fn shadow_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("verifying")
}

/// A copy of the log in a data directory. It is removed when this is dropped.
pub struct Shadow {
    data_dir: PathBuf,
    /// A data directory with the copy in it.
    dir: PathBuf,
    /// The lock of the original data directory.
    _lock: File,
}

impl Shadow {
    /// Copies the files that opening the log would write to. Blocks.
    pub fn of(data_dir: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: data_dir.to_owned(), source };
        let lock = lock_data_dir(data_dir)?;
        if importing_dir(data_dir).exists() {
            return Err(OpenError::Importing(data_dir.to_owned()));
        }
        let data_dir = data_dir.canonicalize().map_err(failed)?;
        let dir = shadow_dir(&data_dir);
        let shadow = Self { data_dir, dir, _lock: lock };
        let (from, to) = (log_dir(&shadow.data_dir), log_dir(&shadow.dir));
        make_private_dir(&to)?;
        shadow.copy(&from, &to).map_err(|source| OpenError::Io { path: from, source })?;
        Ok(shadow)
    }

    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        for path in disk::entries(from)? {
            let name = path.file_name().unwrap_or_default();
            let is_database = name == "db"
                || name == "conf"
                || name.as_encoded_bytes().starts_with(b"snap.")
                || path == tip_file::path(from);
            if is_database && path.is_file() {
                fs::copy(&path, to.join(name))?;
            } else if name == "blobs" {
                copy_all(&path, &to.join(name))?;
            }
        }
        let volumes = layers::volumes_dir(to);
        fs::create_dir(&volumes)?;
        for path in disk::entries(&layers::volumes_dir(from))? {
            if path.extension() == Some(OsStr::new(volume::EXTENSION)) {
                symlink(&path, volumes.join(path.file_name().unwrap_or_default()))?;
            }
        }
        let tails = layers::tails_dir(from);
        for path in disk::entries(&tails)? {
            let name = path.file_name().unwrap_or_default();
            if name.to_str().is_some_and(|name| name.parse::<u64>().is_ok()) {
                copy_all(&path, &layers::tails_dir(to).join(name))?;
            }
        }
        Ok(())
    }

    /// Opens the copy without verifying records.
    pub fn open(&self) -> Result<SledLog, OpenError> {
        let options = SledOptions { verify_tail: 0, ..SledOptions::new(&self.dir) };
        SledLog::open(options).map_err(|error| self.named(error))
    }

    /// The same error, with the paths of the original log.
    fn named(&self, error: OpenError) -> OpenError {
        let real = |path: PathBuf| match path.strip_prefix(&self.dir) {
            Ok(inside) => self.data_dir.join(inside),
            Err(_) => path,
        };
        match error {
            OpenError::Io { path, source } => OpenError::Io { path: real(path), source },
            OpenError::Store { path, reason } => OpenError::Store { path: real(path), reason },
            OpenError::Lost { found, known, note } => {
                OpenError::Lost { found, known, note: real(note) }
            }
            other => other,
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        if let Err(error) = remove_dir(&self.dir) {
            tracing::warn!(%error, "the temporary copy could not be removed");
        }
    }
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for path in disk::entries(from)? {
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_all(&path, &to)?;
        } else {
            fs::copy(&path, &to)?;
        }
    }
    Ok(())
}
