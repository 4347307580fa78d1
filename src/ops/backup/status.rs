//! When the last backup was made and verified: a small file in the data directory, which metrics
//! and the operator's tools read.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use logcabin_base::disk;

/// The name of the file in the data directory.
const NAME: &str = "backup-status.json";

/// What is known of the backups of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupStatus {
    /// When the last backup was completed, in milliseconds since the Unix epoch.
    pub completed_ms: Option<u64>,
    /// When all backups of a directory were last found intact, in milliseconds since the Unix
    /// epoch.
    pub verified_ms: Option<u64>,
    /// The directory of the backups that this was noted of last.
    pub path: Option<PathBuf>,
}

/// What is known of the backups of this data directory; nothing if the file is missing.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn backup_status(data_dir: &Path) -> io::Result<BackupStatus> {
    match fs::read(data_dir.join(NAME)) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BackupStatus::default()),
        Err(error) => Err(error),
    }
}

/// Notes that a backup of `data_dir` in `dest` was completed.
///
/// # Errors
/// When that cannot be written. The backup is as good without it.
pub fn note_completed(data_dir: &Path, dest: &Path, now_ms: u64) -> io::Result<()> {
    note(data_dir, dest, |status| status.completed_ms = Some(now_ms))
}

/// Notes that all backups of `data_dir` in `dest` were found intact.
///
/// # Errors
/// When that cannot be written.
pub fn note_verified(data_dir: &Path, dest: &Path, now_ms: u64) -> io::Result<()> {
    note(data_dir, dest, |status| status.verified_ms = Some(now_ms))
}

fn note(data_dir: &Path, dest: &Path, change: impl FnOnce(&mut BackupStatus)) -> io::Result<()> {
    let path = data_dir.join(NAME);
    // A damaged file is replaced: it holds nothing that the next backup does not tell again.
    let mut status = backup_status(data_dir).unwrap_or_default();
    change(&mut status);
    status.path = Some(dest.to_owned());
    // Backups and their verification are processes of their own.
    let partial = data_dir.join(format!("{NAME}.{}.new", std::process::id()));
    let written = disk::write_aside(&partial, &path, &serde_json::to_vec(&status)?);
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written?;
    // Root may make backups; the server must read the file.
    let (of_dir, of_file) = (fs::metadata(data_dir)?, fs::metadata(&path)?);
    if of_file.uid() != of_dir.uid() {
        chown(&path, Some(of_dir.uid()), Some(of_dir.gid()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_is_noted_is_read_and_the_rest_is_kept() {
        let dir = TempDir::new().unwrap();
        assert_eq!(backup_status(dir.path()).unwrap(), BackupStatus::default());
        note_completed(dir.path(), Path::new("/mnt/b"), 5).unwrap();
        note_verified(dir.path(), Path::new("/mnt/b"), 7).unwrap();
        note_completed(dir.path(), Path::new("/mnt/c"), 9).unwrap();
        let expected = BackupStatus {
            completed_ms: Some(9),
            verified_ms: Some(7),
            path: Some("/mnt/c".into()),
        };
        assert_eq!(backup_status(dir.path()).unwrap(), expected);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        fs::write(dir.path().join(NAME), "{").unwrap();
        assert!(backup_status(dir.path()).is_err());
        note_completed(dir.path(), Path::new("/mnt/c"), 11).unwrap();
        assert_eq!(backup_status(dir.path()).unwrap().completed_ms, Some(11));
    }
}
