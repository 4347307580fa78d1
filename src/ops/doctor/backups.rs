//! Whether there is a backup to restore from, and whether it is one.

use std::{fs, io, path::Path};

use super::{Finding, Level, Subject, failing, unknown};
use crate::{
    admin::snapshots::{BackupRow, backups},
    backup::verified,
    history::terminal::duration,
};
use logcabin_base::{clock::millis, limits};
use logcabin_state::Backup;

/// The newest backup that the log knows of.
#[derive(Clone, Debug)]
struct Newest {
    data_dir: String,
    age_ms: u64,
    destination: String,
    /// When it was verified, in milliseconds since the Unix epoch; or why that is not known.
    verified_ms: Result<Option<u64>, String>,
}

pub(super) fn findings(of: &Subject<'_>) -> Vec<Finding> {
    match gather(of) {
        Ok(newest) => judge(newest.as_ref()),
        Err(reason) => {
            let mend = "logcabin backups --data-dir DIR";
            vec![unknown("backup", "Whether there is a backup", &failing(&reason), mend)]
        }
    }
}

fn gather(of: &Subject<'_>) -> Result<Option<Newest>, String> {
    let context = of.context.map_err(str::to_owned)?;
    let page = backups(context, 0, 1).map_err(|error| error.to_string())?;
    let newest = page.backups.into_iter().next();
    let data_dir = &of.config.server.data_dir;
    Ok(newest.map(|BackupRow { copy, noted_ms, .. }| Newest {
        data_dir: data_dir.display().to_string(),
        age_ms: of.now_ms.saturating_sub(noted_ms),
        verified_ms: verified_ms(data_dir, &copy).map_err(|error| error.to_string()),
        destination: copy.destination,
    }))
}

/// When a backup was verified; an error if its directory is out of sight: it may be gone.
fn verified_ms(data_dir: &Path, copy: &Backup) -> io::Result<Option<u64>> {
    fs::metadata(&copy.destination)?;
    verified::when(data_dir, &copy.destination, &copy.moment)
}

fn judge(newest: Option<&Newest>) -> Vec<Finding> {
    let Some(of) = newest else {
        return vec![Finding::new(
            "backup",
            Level::Warning,
            "There is no backup.",
            "If this disk or machine is lost, everything is: accounts, rooms, messages, and the name \
             of the server.",
            "logcabin backup DIRECTORY, with a directory on another disk or machine",
        )];
    };
    let age = duration(of.age_ms / 1000);
    let made = format!("The last backup was made {age} ago, in {}.", of.destination);
    let age = match of.age_ms > millis(limits::BACKUP_OLD) {
        false => Finding::ok("backup", made),
        true => Finding::new(
            "backup",
            Level::Warning,
            made,
            "What came since is lost with the disk.",
            format!("logcabin backup {}, every day", of.destination),
        ),
    };
    vec![age, verification(of)]
}

fn verification(of: &Newest) -> Finding {
    const CHECK: &str = "backup-verified";
    let mend = format!("logcabin verify-backup {} --data-dir {}", of.destination, of.data_dir);
    match &of.verified_ms {
        Ok(Some(_)) => Finding::ok(CHECK, "The last backup was verified, and is intact."),
        Ok(None) => Finding::new(
            CHECK,
            Level::Warning,
            "The last backup was never verified, or was not intact.",
            "A backup that cannot be restored is none.",
            mend,
        ),
        Err(reason) => {
            let reason = format!("{} cannot be read: {}", of.destination, failing(reason));
            unknown(CHECK, "Whether the last backup was verified", &reason, &mend)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(age_days: u64, verified_ms: Result<Option<u64>, String>) -> Vec<Level> {
        let newest = Newest {
            data_dir: "/data".to_owned(),
            age_ms: age_days * 86_400_000,
            destination: "/backup".to_owned(),
            verified_ms,
        };
        judge(Some(&newest)).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn no_backup_an_old_one_and_one_that_nobody_verified_are_found() {
        assert_eq!(judge(None)[0].level, Level::Warning);
        assert_eq!(levels(1, Ok(Some(7))), [Level::Ok, Level::Ok]);
        assert_eq!(levels(8, Ok(Some(7))), [Level::Warning, Level::Ok]);
        assert_eq!(levels(1, Ok(None)), [Level::Ok, Level::Warning]);
        assert_eq!(levels(1, Err("gone".to_owned())), [Level::Ok, Level::Unknown]);
    }
}
