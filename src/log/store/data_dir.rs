//! The log's place in a data directory, and the directory's lock.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use super::{OpenError, remove_dir, shadow};
use logcabin_base::{disk, owner};

/// The log's directory in a data directory.
pub fn log_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log")
}

/// Where an import builds the log of a data directory until it is complete.
pub fn importing_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.importing")
}

/// Where an in-place restore keeps the log that is about to replace the present one, and afterwards
/// the replaced one.
pub fn ready_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.ready")
}

/// Where the present log is while the two swap names, if that takes more than one step.
pub fn swapping_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.swapping")
}

/// Whether a data directory contains a log, even if it is about to get its name.
pub fn has_log(data_dir: &Path) -> bool {
    log_dir(data_dir).is_dir() || swapping_dir(data_dir).is_dir()
}

/// Creates the data directory, if need be, and takes the lock that keeps other processes out.
/// Completes an interrupted swap, so that the log has its name.
pub fn lock_data_dir(data_dir: &Path) -> Result<File, OpenError> {
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
    match owner::retry_lock(|| file.try_lock()) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(OpenError::InUse { data_dir: data_dir.to_owned(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    // Only for the message of another process: a full disk is no reason to stop.
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

/// As [`disk::make_private_dir`], with the error of opening a log.
pub(super) fn make_private_dir(path: &Path) -> Result<(), OpenError> {
    disk::make_private_dir(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{SledLog, SledOptions};

    #[test]
    fn directories_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let parent = tempfile::tempdir().unwrap();
        let data_dir = parent.path().join("new/data");
        drop(SledLog::open(SledOptions::new(&data_dir)).unwrap());
        for dir in [data_dir.clone(), log_dir(&data_dir)] {
            assert_eq!(std::fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
        }
    }
}
