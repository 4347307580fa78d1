//! Whose a directory outside of the data directory is.
//!
//! Settings can name directories elsewhere, for the archive and for uploaded files. Two servers
//! that name the same one, such as a server and a restored copy of it, would destroy each other's
//! files. So each of these directories has the file [`FILE`], which names a log and its data
//! directory, and whoever writes there holds a lock on that file.
//!
//! A directory of an earlier version has no such file: it is taken if its content fits the log,
//! which its user checks between [`Claim::begin`] and [`Claim::settle`]. A data directory that was
//! moved keeps its directories: the log is the same, and the old path has no log any more.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing::info;

/// The file that says whose a directory is.
pub const FILE: &str = "owner.json";

/// No such file is longer, in bytes: it has a hash and a path.
const MAX_BYTES: u64 = 16 * 1024;

/// Who may use a directory at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One data directory.
    Alone,
    /// The nodes of a cluster, which have one log.
    Nodes,
}

/// Who claims a directory, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The data directory, without links.
    data_dir: String,
    /// What identifies the log; `None` while it has no record.
    log: Option<String>,
    /// The setting that names the directory, for messages.
    setting: &'static str,
    sharing: Sharing,
}

impl Claimant {
    /// # Errors
    /// When the data directory does not exist.
    pub fn new(data_dir: &Path, log: Option<String>, setting: &'static str) -> io::Result<Self> {
        let data_dir = fs::canonicalize(data_dir)?.to_string_lossy().into_owned();
        Ok(Self { data_dir, log, setting, sharing: Sharing::Alone })
    }

    #[must_use]
    pub fn sharing(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }
}

/// Why a directory is not this server's to use.
#[derive(Debug, Error)]
pub enum OwnerError {
    #[error(
        "the directory {} is in use by another logcabin{}: stop that one first, or name another directory in `{setting}`",
        .dir.display(),
        .data_dir.as_ref().map_or_else(String::new, |path| format!(", with the data directory {path}"))
    )]
    InUse {
        dir: PathBuf,
        /// The other one's data directory, if it is known.
        data_dir: Option<String>,
        setting: &'static str,
    },
    #[error(
        "the directory {} belongs to the data directory {data_dir}: name another directory in `{setting}`. If that data directory is no longer used, remove {}",
        .dir.display(),
        .dir.join(FILE).display()
    )]
    OtherDataDir { dir: PathBuf, data_dir: String, setting: &'static str },
    #[error(
        "the directory {} does not belong to this log{}: name another directory in `{setting}`, or move its content away",
        .dir.display(),
        .data_dir.as_ref().map_or_else(String::new, |path| format!(", but to that of the data directory {path}"))
    )]
    OtherLog {
        dir: PathBuf,
        /// The data directory of its log, if it is known.
        data_dir: Option<String>,
        setting: &'static str,
    },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl OwnerError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    log: Option<String>,
    /// None for the nodes of a cluster.
    data_dir: Option<String>,
}

/// A directory that this process may use. It is locked while this exists.
#[derive(Debug)]
pub struct Claim {
    dir: PathBuf,
    claimant: Claimant,
    /// None until [`Claim::settle`], if the directory had no owner.
    file: Option<File>,
    owner: Option<Owner>,
    must_fit: bool,
}

impl Claim {
    /// Checks whose `dir` is, and locks it if it has an owner. Changes nothing.
    ///
    /// # Errors
    /// When it is somebody else's.
    pub fn begin(dir: &Path, claimant: Claimant) -> Result<Self, OwnerError> {
        let path = dir.join(FILE);
        let found = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = match found {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dir = dir.to_owned();
                if let Some(data_dir) = part_of(&dir) {
                    let (data_dir, setting) = (data_dir.display().to_string(), claimant.setting);
                    return Err(OwnerError::OtherDataDir { dir, data_dir, setting });
                }
                return Ok(Self { dir, claimant, file: None, owner: None, must_fit: true });
            }
            Err(error) => return Err(OwnerError::io(&path)(error)),
        };
        let owner = read(&mut file).map_err(OwnerError::io(&path))?;
        lock(&file, dir, &claimant, owner.as_ref())?;
        // Whoever had the lock may have written it meanwhile.
        let owner = read(&mut file).map_err(OwnerError::io(&path))?;
        let must_fit = match &owner {
            Some(owner) => judge(owner, dir, &claimant)?,
            None => true,
        };
        Ok(Self { dir: dir.to_owned(), claimant, file: Some(file), owner, must_fit })
    }

    /// Whether only the content of the directory can tell if it is this log's.
    pub const fn must_fit(&self) -> bool {
        self.must_fit
    }

    /// Whether the directory was this data directory's before.
    pub fn was_ours(&self) -> bool {
        let of = self.owner.as_ref().and_then(|owner| owner.data_dir.as_deref());
        of.is_some_and(|of| is_same(of, &self.claimant.data_dir))
    }

    /// The error for a directory whose content does not fit.
    pub fn misfit(&self) -> OwnerError {
        let data_dir = self.owner.as_ref().and_then(|owner| owner.data_dir.clone());
        let data_dir = data_dir.filter(|path| *path != self.claimant.data_dir);
        OwnerError::OtherLog { dir: self.dir.clone(), data_dir, setting: self.claimant.setting }
    }

    /// Whether the directory's file names the log.
    pub fn names_log(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.log.is_some())
    }

    /// Makes the directory this claimant's. `log` identifies the log, once it has a record.
    ///
    /// # Errors
    /// When the file cannot be written, or somebody else has claimed the directory meanwhile.
    pub fn settle(&mut self, log: Option<String>) -> Result<(), OwnerError> {
        self.claimant.log = log.or_else(|| self.claimant.log.take());
        let Claimant { data_dir, log, sharing, .. } = &self.claimant;
        let new = Owner {
            log: log.clone(),
            data_dir: (*sharing == Sharing::Alone).then(|| data_dir.clone()),
        };
        if self.owner.as_ref() == Some(&new) {
            return Ok(());
        }
        let path = self.dir.join(FILE);
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let made = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(&path);
                let file = made.map_err(OwnerError::io(&path))?;
                lock(&file, &self.dir, &self.claimant, None)?;
                self.file.insert(file)
            }
        };
        write(file, &new).map_err(OwnerError::io(&path))?;
        let before = self.owner.replace(new).and_then(|owner| owner.data_dir);
        if let Some(from) = before.filter(|from| from != data_dir) {
            info!(dir = %self.dir.display(), from, to = data_dir, "the data directory was moved; its directory elsewhere goes with it");
        }
        self.must_fit = false;
        Ok(())
    }
}

/// Whether `dir` is a directory of its own, and not a part of the data directory, whose lock
/// protects all that is in it. Links are followed.
pub fn is_elsewhere(dir: &Path, data_dir: &Path) -> bool {
    let Ok(data_dir) = fs::canonicalize(data_dir) else { return true };
    let Ok(dir) = std::path::absolute(dir) else { return true };
    // What does not exist has no links.
    let real = dir.ancestors().find_map(|part| {
        let rest = dir.strip_prefix(part).ok()?;
        Some(fs::canonicalize(part).ok()?.join(rest))
    });
    !real.is_some_and(|real| real.starts_with(data_dir))
}

/// Whether the content of the directory must be checked. An error if it is somebody else's.
fn judge(owner: &Owner, dir: &Path, claimant: &Claimant) -> Result<bool, OwnerError> {
    let Claimant { data_dir, log, setting, sharing } = claimant;
    let same_log = owner.log.as_ref().zip(log.as_ref()).map(|(one, other)| one == other);
    match &owner.data_dir {
        Some(of) if is_same(of, data_dir) => return Ok(same_log != Some(true)),
        Some(of) if *sharing == Sharing::Alone && may_have_log(Path::new(of)) => {
            let (dir, data_dir) = (dir.to_owned(), of.clone());
            return Err(OwnerError::OtherDataDir { dir, data_dir, setting });
        }
        _ => {}
    }
    match same_log {
        Some(false) => {
            let (dir, data_dir) = (dir.to_owned(), owner.data_dir.clone());
            Err(OwnerError::OtherLog { dir, data_dir, setting })
        }
        same => Ok(same.is_none()),
    }
}

/// Whether two paths lead to one directory, which may be mounted twice.
fn is_same(one: &str, other: &str) -> bool {
    let id = |path| fs::metadata(path).map(|about| (about.dev(), about.ino()));
    one == other || matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether there is a log in a data directory. If that cannot be found out, there may be.
fn may_have_log(data_dir: &Path) -> bool {
    let names = ["log", "log.swapping"];
    names.iter().any(|name| !matches!(data_dir.join(name).try_exists(), Ok(false)))
}

/// The data directory that a directory without an owner file is a part of, if it is one.
fn part_of(dir: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(dir).ok()?;
    let data_dir = real.parent()?;
    let has = ["log/tails", "log/volumes"].iter().any(|name| data_dir.join(name).is_dir());
    (has && data_dir.join("lock").is_file()).then(|| data_dir.to_owned())
}

/// None if the file is empty or damaged, as after a power failure.
fn read(file: &mut File) -> io::Result<Option<Owner>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    io::Read::by_ref(file).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes).ok())
}

/// In place, because the lock is on this file.
fn write(file: &mut File, owner: &Owner) -> io::Result<()> {
    let mut text = serde_json::to_string(owner)?;
    text.push('\n');
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

fn lock(
    file: &File,
    dir: &Path,
    claimant: &Claimant,
    owner: Option<&Owner>,
) -> Result<(), OwnerError> {
    let locked = retry_lock(|| match claimant.sharing {
        Sharing::Alone => file.try_lock(),
        Sharing::Nodes => file.try_lock_shared(),
    });
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let data_dir = owner.and_then(|owner| owner.data_dir.clone());
            Err(OwnerError::InUse { dir: dir.to_owned(), data_dir, setting: claimant.setting })
        }
        Err(TryLockError::Error(source)) => Err(OwnerError::io(&dir.join(FILE))(source)),
    }
}

/// A forked child holds the locks of its parent until it executes another program. So a lock that
/// is taken is retried for a fifth of a second.
pub fn retry_lock(lock: impl Fn() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    for _ in 0..10 {
        match lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
    lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data directory with a log.
    fn data_dir(parent: &Path, name: &str) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir_all(path.join("log")).unwrap();
        path
    }

    fn claim(dir: &Path, data_dir: &Path, log: Option<&str>) -> Result<Claim, OwnerError> {
        let claimant = Claimant::new(data_dir, log.map(Into::into), "log.archive_dir").unwrap();
        Claim::begin(dir, claimant)
    }

    fn settled(dir: &Path, data_dir: &Path, log: &str) -> Claim {
        let mut claim = claim(dir, data_dir, Some(log)).unwrap();
        claim.settle(None).unwrap();
        claim
    }

    #[test]
    fn a_directory_belongs_to_one_data_directory() {
        let parent = tempfile::tempdir().unwrap();
        let (live, copy) = (data_dir(parent.path(), "live"), data_dir(parent.path(), "copy"));
        let dir = parent.path().join("archive");
        fs::create_dir(&dir).unwrap();
        let mut first = claim(&dir, &live, None).unwrap();
        assert!(first.must_fit() && !dir.join(FILE).exists());
        first.settle(None).unwrap();
        assert!(!first.names_log());
        first.settle(Some("one".to_owned())).unwrap();
        assert!(first.names_log());
        let error = claim(&dir, &copy, Some("one")).unwrap_err();
        assert!(matches!(&error, OwnerError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("live"), "{error}");
        drop(first);
        let error = claim(&dir, &copy, Some("one")).unwrap_err();
        assert!(matches!(&error, OwnerError::OtherDataDir { .. }), "{error}");
        assert!(error.to_string().contains("`log.archive_dir`"), "{error}");
        assert!(!claim(&dir, &live, Some("one")).unwrap().must_fit());
        // The content decides whether a log that began again may have it.
        assert!(claim(&dir, &live, Some("two")).unwrap().must_fit());
    }

    #[test]
    fn a_data_directory_that_was_moved_keeps_its_directories() {
        let parent = tempfile::tempdir().unwrap();
        let (old, new) = (data_dir(parent.path(), "old"), parent.path().join("new"));
        let dir = parent.path().join("media");
        fs::create_dir(&dir).unwrap();
        drop(settled(&dir, &old, "one"));
        fs::rename(&old, &new).unwrap();
        let error = claim(&dir, &new, Some("two")).unwrap_err();
        assert!(matches!(&error, OwnerError::OtherLog { .. }), "{error}");
        assert!(claim(&dir, &new, None).unwrap().must_fit());
        drop(settled(&dir, &new, "one"));
        fs::create_dir_all(old.join("log")).unwrap();
        assert!(claim(&dir, &old, Some("one")).is_err());
    }

    #[test]
    fn the_nodes_of_a_cluster_share_a_directory() {
        let parent = tempfile::tempdir().unwrap();
        let (one, other) = (data_dir(parent.path(), "one"), data_dir(parent.path(), "other"));
        let dir = parent.path().join("media");
        fs::create_dir(&dir).unwrap();
        let node = |data_dir: &Path, log: &str| {
            let claimant = Claimant::new(data_dir, Some(log.to_owned()), "media.dir").unwrap();
            let mut claim = Claim::begin(&dir, claimant.sharing(Sharing::Nodes))?;
            claim.settle(None).map(|()| claim)
        };
        let (first, second) = (node(&one, "log").unwrap(), node(&other, "log").unwrap());
        assert!(matches!(node(&other, "another"), Err(OwnerError::OtherLog { .. })));
        assert!(matches!(claim(&dir, &one, Some("log")), Err(OwnerError::InUse { .. })));
        drop((first, second));
        // The last node is alone again.
        drop(settled(&dir, &one, "log"));
        assert!(claim(&dir, &other, Some("log")).is_err());
    }

    #[test]
    fn what_is_in_the_data_directory_needs_no_owner() {
        let parent = tempfile::tempdir().unwrap();
        let data = data_dir(parent.path(), "data");
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, data.join("media")).unwrap();
        for inside in ["archive", "new/archive", "log"] {
            assert!(!is_elsewhere(&data.join(inside), &data), "{inside}");
        }
        assert!(is_elsewhere(&data.join("media"), &data));
        assert!(is_elsewhere(&parent.path().join("data2/archive"), &data));
    }

    #[test]
    fn a_part_of_another_data_directory_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let (live, copy) = (data_dir(parent.path(), "live"), data_dir(parent.path(), "copy"));
        let archive = live.join("archive");
        fs::create_dir_all(live.join("log/tails")).unwrap();
        fs::create_dir(&archive).unwrap();
        fs::write(live.join("lock"), "").unwrap();
        let error = claim(&archive, &copy, Some("one")).unwrap_err();
        assert!(matches!(&error, OwnerError::OtherDataDir { .. }), "{error}");
    }

    #[test]
    fn a_damaged_owner_file_counts_as_none() {
        let parent = tempfile::tempdir().unwrap();
        let data = data_dir(parent.path(), "data");
        for text in ["", "{\"log\":", "[]"] {
            fs::write(parent.path().join(FILE), text).unwrap();
            assert!(claim(parent.path(), &data, Some("one")).unwrap().must_fit());
        }
    }
}
