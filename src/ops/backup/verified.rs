//! Which backups of a directory were verified, and when: `DEST/verified.json`.
//!
//! It is only a note for those who look after the server; a restore verifies anyway. So it is
//! replaced as a whole, and what cannot be read counts as nothing.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::BackupCheck;
use logcabin_base::disk;
use logcabin_record::command::BackupMoment;

const FILE: &str = "verified.json";

#[derive(Debug, Default, Serialize, Deserialize)]
struct Verified {
    /// When each backup was last found intact, in milliseconds since the Unix epoch.
    intact: BTreeMap<String, u64>,
}

fn name(moment: &BackupMoment) -> String {
    format!("{}-{}", moment.epoch.0, moment.offset)
}

fn read(dest: &Path) -> io::Result<Verified> {
    match fs::read(dest.join(FILE)) {
        Ok(json) => Ok(serde_json::from_slice(&json).unwrap_or_default()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // If the directory is gone, too, nothing is known of what was in it.
            fs::metadata(dest)?;
            Ok(Verified::default())
        }
        Err(error) => Err(error),
    }
}

/// Notes the results of a check. One of all backups also forgets those that are gone.
pub fn note(dest: &Path, checked: &BackupCheck, is_of_all: bool, now_ms: u64) -> io::Result<()> {
    let mut known = if is_of_all { Verified::default() } else { read(dest)? };
    for of in &checked.moments {
        let Some(moment) = &of.moment else { continue };
        match of.faults.is_empty() {
            true => known.intact.insert(name(moment), now_ms),
            false => known.intact.remove(&name(moment)),
        };
    }
    disk::write_whole(&dest.join(FILE), &serde_json::to_vec(&known)?)
}

/// When this backup was last found intact, in milliseconds since the Unix epoch; none if it never
/// was.
///
/// # Errors
/// When the directory cannot be read here.
pub(crate) fn when(dest: &Path, moment: &BackupMoment) -> io::Result<Option<u64>> {
    Ok(read(dest)?.intact.get(&name(moment)).copied())
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
        let dest = tempfile::tempdir().unwrap();
        let dest = dest.path();
        let known = |offset| when(dest, &moment(offset)).unwrap();
        assert_eq!(known(1), None);
        note(dest, &checked(1, &[]), true, 10).unwrap();
        note(dest, &checked(2, &[]), false, 20).unwrap();
        assert_eq!((known(1), known(2)), (Some(10), Some(20)));
        note(dest, &checked(1, &["damaged"]), false, 30).unwrap();
        assert_eq!((known(1), known(2)), (None, Some(20)));
        note(dest, &checked(3, &[]), true, 40).unwrap();
        assert_eq!((known(2), known(3)), (None, Some(40)));
        fs::write(dest.join(FILE), "{").unwrap();
        assert_eq!(known(3), None);
        assert!(when(&dest.join("gone"), &moment(1)).is_err());
    }
}
