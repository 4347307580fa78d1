//! Removing old backups, and the files that no other backup needs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{BackupError, check, sync_dir, take::open};
use crate::source::Manifest;
use logcabin_media::store;
use logcabin_record::command::{BackupMoment, FileHash};

/// Which backups are kept: those that break neither rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How many, the newest; none for all.
    pub keep: Option<usize>,
    /// How long after they were made, in milliseconds; none for ever.
    pub max_age_ms: Option<u64>,
}

impl Retention {
    /// How many of these backups are to be removed, counted from the oldest. `made_ms` is when each
    /// was made, the oldest first.
    fn surplus(&self, made_ms: &[u64], now_ms: u64) -> usize {
        let by_count = self.keep.map_or(0, |keep| made_ms.len().saturating_sub(keep));
        let by_age = self
            .max_age_ms
            .map_or(0, |age| made_ms.partition_point(|made| made.saturating_add(age) < now_ms));
        by_count.max(by_age)
    }
}

/// The result of pruning.
#[derive(Clone, Debug)]
pub struct Pruned {
    /// The backups that are left, the oldest first.
    pub kept: Vec<BackupMoment>,
    /// The backups that were removed, the oldest first.
    pub removed: Vec<BackupMoment>,
    /// The newest intact backup, and blake3 of its manifest's file. It was verified if there was
    /// anything to remove.
    pub newest_intact: Option<(Manifest, FileHash)>,
}

/// A backup whose manifest can be read.
struct Readable {
    manifest: Manifest,
    path: PathBuf,
}

/// Removes the backups that break a rule of `retention`, except the newest that is intact: before
/// it removes anything it verifies backups, beginning with the newest, until it finds that one.
/// Blocks.
///
/// # Errors
/// If there is no backup, or none is intact; then nothing is removed.
pub fn prune(dest: &Path, retention: Retention, now_ms: u64) -> Result<Pruned, BackupError> {
    let none = || BackupError::None { dir: dest.to_owned(), offset: None };
    // Looked for first, because locking makes missing directories.
    if !dest.join("manifests").is_dir() {
        return Err(none());
    }
    let _lock = open(dest)?;
    let mut backups = readable(dest)?;
    if backups.is_empty() {
        return Err(none());
    }
    let made_ms: Vec<_> = backups.iter().map(|backup| backup.manifest.made_ms).collect();
    let surplus = retention.surplus(&made_ms, now_ms);
    let moments = |of: &[Readable]| of.iter().map(|of| of.manifest.moment()).collect();
    if surplus == 0 {
        let (kept, removed) = (moments(&backups), Vec::new());
        return Ok(Pruned { kept, removed, newest_intact: None });
    }
    let intact = newest_intact(dest, &backups)?;
    let mut old: Vec<_> = backups.drain(..surplus).collect();
    if intact < surplus {
        backups.insert(0, old.remove(intact));
    }
    let newest = backups.get(intact.saturating_sub(surplus)).ok_or_else(none)?;
    let bytes = fs::read(&newest.path).map_err(BackupError::io(&newest.path))?;
    let newest_intact = Some((newest.manifest.clone(), FileHash::from(blake3::hash(&bytes))));
    let kept = moments(&backups);
    let removed = remove(dest, old)?;
    Ok(Pruned { kept, removed, newest_intact })
}

/// The place of the newest intact backup. Reads every byte of those that it looks at.
fn newest_intact(dest: &Path, backups: &[Readable]) -> Result<usize, BackupError> {
    for (place, backup) in backups.iter().enumerate().rev() {
        let moment = backup.manifest.moment();
        let checked = check(dest, Some(moment.offset), None, |_| {})?;
        let mut moments = checked.moments.iter();
        if moments.any(|found| found.moment == Some(moment) && found.faults.is_empty()) {
            return Ok(place);
        }
        tracing::warn!(offset = %moment.offset, "a backup is damaged");
    }
    Err(BackupError::NoneIntact(dest.to_owned()))
}

/// The backups whose manifests can be read, the oldest first.
fn readable(dest: &Path) -> Result<Vec<Readable>, BackupError> {
    let paths = Manifest::list(dest)?.into_iter();
    let mut found: Vec<_> = paths
        .filter_map(|path| Some(Readable { manifest: Manifest::read(&path).ok()?, path }))
        .collect();
    found.sort_by_key(|Readable { manifest, .. }| (manifest.made_ms, manifest.moment()));
    Ok(found)
}

/// Removes all but the newest `keep` backups. `newest` is one of them.
pub(super) fn keep_newest(
    dest: &Path,
    keep: Option<usize>,
    newest: &Manifest,
) -> Result<Vec<BackupMoment>, BackupError> {
    let mut old = Vec::new();
    if let Some(keep) = keep {
        // Unreadable manifests stay: it is not known what they are.
        old = readable(dest)?;
        // Even if the clock was set back since the others were made.
        old.retain(|backup| backup.manifest.moment() != newest.moment());
        let surplus = (old.len() + 1).saturating_sub(keep.max(1));
        old.truncate(surplus);
    }
    remove(dest, old)
}

/// Removes these backups, and the files that none of the others needs.
fn remove(dest: &Path, old: Vec<Readable>) -> Result<Vec<BackupMoment>, BackupError> {
    let mut removed = Vec::new();
    for Readable { manifest, path } in old {
        fs::remove_file(&path).map_err(BackupError::io(&path))?;
        removed.push(manifest.moment());
    }
    sync_dir(&dest.join("manifests"))?;
    let mut segments = BTreeSet::new();
    let mut lists = BTreeSet::new();
    let mut media = BTreeSet::new();
    for path in Manifest::list(dest)? {
        // Files are removed only if the needs of every backup are known.
        let Ok(manifest) = Manifest::read(&path) else { return Ok(removed) };
        segments.extend(manifest.segments.iter().map(|segment| segment.file.clone()));
        if !removed.is_empty() && lists.insert(manifest.media.list) {
            let Ok(files) = manifest.media.read(dest) else { return Ok(removed) };
            media.extend(files.into_keys());
        }
    }
    remove_others(&dest.join("segments"), |name| segments.contains(name))?;
    if !removed.is_empty() {
        let hash = FileHash::from_hex;
        remove_others(&dest.join("lists"), |name| {
            hash(name).is_some_and(|of| lists.contains(&of))
        })?;
        let root = dest.join("media");
        for (hash, path) in store::files(&root).map_err(BackupError::io(&root))? {
            if !media.contains(&hash) {
                fs::remove_file(&path).map_err(BackupError::io(&path))?;
            }
        }
    }
    Ok(removed)
}

fn remove_others(dir: &Path, needed: impl Fn(&str) -> bool) -> Result<(), BackupError> {
    for entry in fs::read_dir(dir).map_err(BackupError::io(dir))? {
        let path = entry.map_err(BackupError::io(dir))?.path();
        if !path.file_name().and_then(|name| name.to_str()).is_some_and(&needed) {
            fs::remove_file(&path).map_err(BackupError::io(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_removed_by_count_or_by_age() {
        let made = [10, 20, 30, 40];
        let surplus = |keep, max_age_ms| Retention { keep, max_age_ms }.surplus(&made, 45);
        assert_eq!(surplus(None, None), 0);
        assert_eq!(surplus(Some(3), None), 1);
        assert_eq!(surplus(Some(9), None), 0);
        assert_eq!(surplus(None, Some(15)), 2);
        assert_eq!(surplus(None, Some(1)), 4);
        // The stricter rule decides.
        assert_eq!(surplus(Some(3), Some(15)), 2);
        assert_eq!(surplus(Some(1), Some(15)), 3);
        assert_eq!(surplus(None, Some(u64::MAX)), 0);
    }

    #[test]
    fn a_directory_without_backups_is_refused_and_left_alone() {
        let directory = tempfile::TempDir::new().unwrap();
        let retention = Retention { keep: Some(1), max_age_ms: None };
        let refused = prune(directory.path(), retention, 0);
        assert!(matches!(refused, Err(BackupError::None { .. })), "{refused:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
