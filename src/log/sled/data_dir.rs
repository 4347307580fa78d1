//! What is in a data directory, as far as the log goes, and the lock on it.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{OpenError, remove_dir, shadow};
use crate::base::disk;

/// The directory of the log in a data directory.
#[must_use]
pub fn log_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log")
}

/// Where an import makes the log of a data directory, until all of it is there.
pub(crate) fn importing_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.importing")
}

/// Where a restore in place has the log that is about to take the name of the one that is there,
/// and then that one.
pub(crate) fn ready_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.ready")
}

/// Where the log is that is there while the two exchange their names, if that takes more than one
/// step.
pub(crate) fn swapping_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.swapping")
}

/// Whether there is a log in a data directory, be it that it is about to get its name.
pub(crate) fn has_log(data_dir: &Path) -> bool {
    log_dir(data_dir).is_dir() || swapping_dir(data_dir).is_dir()
}

/// Makes the data directory, if need be, and takes the lock that keeps other processes out of it.
/// The log has its name then, also if a restore was interrupted.
pub(crate) fn lock_data_dir(data_dir: &Path) -> Result<File, OpenError> {
    make_private_dir(data_dir)?;
    let path = data_dir.join("lock");
    let failed = |source| OpenError::Io { path: path.clone(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(OpenError::InUse { data_dir: data_dir.to_owned(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    // Only for the message that another process prints: a full disk is no reason not to go on.
    let said = file
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
    if let Err(error) = said {
        tracing::debug!(%error, "the lock file does not say who has it");
    }
    remove_dir(&shadow::shadow_dir(data_dir))?;
    let swapping = swapping_dir(data_dir);
    disk::finish_exchange(&log_dir(data_dir), &ready_dir(data_dir), &swapping)
        .map_err(|source| OpenError::Io { path: swapping, source })?;
    Ok(file)
}

/// Makes a directory that only its owner can enter, with those above it.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { path: path.to_owned(), source };
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    }
    Ok(())
}

/// The bytes that an ordinary user may still write on the disk of `path`.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
