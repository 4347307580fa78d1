//! Which backups were verified, and when: a small file in the data directory, for `logcabin doctor`
//! and metrics. When backups were made, the log says.
//!
//! It is only a note for those who look after the server; a restore verifies anyway. It is not
//! beside the backups, which may be on a disk that the server cannot read or that hangs. It is
//! replaced as a whole, and what cannot be understood counts as nothing.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt as _, chown},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::BackupCheck;
use logcabin_base::disk;
use logcabin_record::command::BackupMoment;

/// The name of the file in the data directory.
const FILE: &str = "backup-status.json";

/// What is known of the backups in each directory, as the log names it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Verified(BTreeMap<String, Results>);

/// Times in milliseconds since the Unix epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Results {
    /// When all backups were last found intact together.
    all_ms: Option<u64>,
    /// When each backup was last found intact.
    intact: BTreeMap<String, u64>,
}

fn name(moment: &BackupMoment) -> String {
    format!("{}-{}", moment.epoch.0, moment.offset)
}

fn read(data_dir: &Path) -> io::Result<Verified> {
    match fs::read(data_dir.join(FILE)) {
        Ok(json) => Ok(serde_json::from_slice(&json).unwrap_or_default()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Verified::default()),
        Err(error) => Err(error),
    }
}

/// Notes the results of a check of the backups in `destination`. One of all backups also forgets
/// those that are gone.
///
/// # Errors
/// When that cannot be written.
pub fn note(
    data_dir: &Path,
    destination: &str,
    checked: &BackupCheck,
    is_of_all: bool,
    now_ms: u64,
) -> io::Result<()> {
    let mut verified = read(data_dir)?;
    let known = verified.0.entry(destination.to_owned()).or_default();
    if is_of_all {
        known.intact.clear();
        if checked.intact {
            known.all_ms = Some(now_ms);
        }
    }
    for of in &checked.moments {
        let Some(moment) = &of.moment else { continue };
        match of.faults.is_empty() {
            true => known.intact.insert(name(moment), now_ms),
            false => known.intact.remove(&name(moment)),
        };
    }
    write(data_dir, &verified)
}

fn write(data_dir: &Path, verified: &Verified) -> io::Result<()> {
    let path = data_dir.join(FILE);
    // Each verification is a process of its own.
    let partial = data_dir.join(format!("{FILE}.{}.new", std::process::id()));
    let written = disk::write_aside(&partial, &path, &serde_json::to_vec(verified)?);
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written?;
    // Root may verify backups; the server must read the file.
    let (of_dir, of_file) = (fs::metadata(data_dir)?, fs::metadata(&path)?);
    if of_file.uid() != of_dir.uid() {
        chown(&path, Some(of_dir.uid()), Some(of_dir.gid()))?;
    }
    Ok(())
}

/// When this backup was last found intact, in milliseconds since the Unix epoch; none if it never
/// was, or was found damaged since.
///
/// # Errors
/// When the file is there and cannot be read.
pub(crate) fn when(
    data_dir: &Path,
    destination: &str,
    moment: &BackupMoment,
) -> io::Result<Option<u64>> {
    let verified = read(data_dir)?;
    let known = verified.0.get(destination);
    Ok(known.and_then(|known| known.intact.get(&name(moment)).copied()))
}

/// When all backups in this directory were last found intact, in milliseconds since the Unix
/// epoch; none if that is not known.
pub fn all_ms(data_dir: &Path, destination: &str) -> Option<u64> {
    read(data_dir).ok()?.0.get(destination)?.all_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::CheckedBackup;
    use logcabin_record::{Epoch, Offset};

    fn moment(offset: u64) -> BackupMoment {
        BackupMoment { epoch: Epoch::default(), offset: Offset::new(offset) }
    }

    fn checked(offset: u64, faults: &[&str]) -> BackupCheck {
        let moment = CheckedBackup {
            manifest: "m".into(),
            server_name: String::new(),
            moment: Some(moment(offset)),
            record_ms: 0,
            made_ms: 0,
            files: 0,
            bytes: 0,
            is_prefix: None,
            faults: faults.iter().map(|fault| (*fault).to_owned()).collect(),
        };
        BackupCheck { intact: faults.is_empty(), moments: vec![moment] }
    }

    #[test]
    fn what_was_found_last_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let known = |offset| when(dir, "/b", &moment(offset)).unwrap();
        let note =
            |checked: BackupCheck, is_of_all, ms| note(dir, "/b", &checked, is_of_all, ms).unwrap();
        assert_eq!((known(1), all_ms(dir, "/b")), (None, None));
        note(checked(1, &[]), true, 10);
        note(checked(2, &[]), false, 20);
        assert_eq!((known(1), known(2), all_ms(dir, "/b")), (Some(10), Some(20), Some(10)));
        note(checked(1, &["damaged"]), false, 30);
        assert_eq!((known(1), known(2)), (None, Some(20)));
        note(checked(3, &[]), true, 40);
        assert_eq!((known(2), known(3), all_ms(dir, "/b")), (None, Some(40), Some(40)));
        note(checked(3, &["damaged"]), true, 50);
        assert_eq!((known(3), all_ms(dir, "/b")), (None, Some(40)));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn each_directory_is_known_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        note(dir, "/b", &checked(1, &[]), true, 10).unwrap();
        note(dir, "/c", &checked(1, &[]), false, 20).unwrap();
        assert_eq!(when(dir, "/b", &moment(1)).unwrap(), Some(10));
        assert_eq!(when(dir, "/c", &moment(1)).unwrap(), Some(20));
        assert_eq!(
            [all_ms(dir, "/b"), all_ms(dir, "/c"), all_ms(dir, "/d")],
            [Some(10), None, None]
        );
        // A damaged file is replaced: it holds nothing that the next check does not tell again.
        fs::write(dir.join(FILE), "{").unwrap();
        assert_eq!(when(dir, "/b", &moment(1)).unwrap(), None);
        note(dir, "/b", &checked(1, &[]), true, 30).unwrap();
        assert_eq!(all_ms(dir, "/b"), Some(30));
    }
}
