//! Puts a new log in its place.
//!
//! It is built in `DATA_DIR/restoring`. Where there was no log, it is then renamed. Otherwise it
//! replaces the old log in one step, a swap with `log.ready`, which contains the new log before it
//! and the old one afterwards; the old one is then renamed after its epoch. [`tidy`] distinguishes
//! the two by their epochs. On a file system that cannot swap, three renames do it, and the next
//! process that takes the lock of the directory completes them ([`disk::finish_exchange`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Request, RestoreError, RestoreSource, Restored};
use crate::source::{Source, SourceError};
use logcabin_base::{
    disk,
    owner::{Claim, Claimant, is_elsewhere},
};
use logcabin_log::store::{self, AtRest};
use logcabin_media::store as files;
use logcabin_record::{Chain, Epoch, Offset, Record, command::FileHash, hex};
use logcabin_snapshot as snapshot;
use logcabin_snapshot::shutdown_digest::ShutdownDigest;

/// Where the new log is built: a data directory of its own.
pub(super) fn aside(data_dir: &Path) -> PathBuf {
    data_dir.join("restoring")
}

/// Completes an interrupted restore, or undoes it. The caller must hold the lock.
pub(super) fn tidy(data_dir: &Path) -> Result<(), RestoreError> {
    remove(&aside(data_dir))?;
    // Leftovers of earlier versions.
    remove(&data_dir.join("log.restoring"))?;
    let (log, ready) = (store::log_dir(data_dir), store::ready_dir(data_dir));
    if !ready.exists() {
        return Ok(());
    }
    let epoch = epoch(&ready)?;
    if log.exists() && epoch > self::epoch(&log)? {
        // It was never put in place.
        return remove(&ready);
    }
    keep(&ready, &log, epoch.unwrap_or_default())?;
    Ok(())
}

/// The epoch of a log's last record.
fn epoch(log: &Path) -> Result<Option<Epoch>, RestoreError> {
    let last = AtRest::open(log)?.last().map_err(RestoreError::Read)?;
    Ok(last.map(|last| last.header.epoch))
}

/// Refuses a directory with a log that a restore would destroy.
pub(super) fn must_be_empty(data_dir: &Path) -> Result<(), RestoreError> {
    let log = store::log_dir(data_dir);
    if !log.exists() {
        return Ok(());
    }
    let is_empty = fs::read_dir(&log).map_err(RestoreError::io(&log))?.next().is_none();
    // A log that cannot be opened may still be of value. A server that was refused beside an
    // archive leaves a log without records.
    if is_empty || matches!(epoch(&log), Ok(None)) {
        return remove(&log);
    }
    Err(RestoreError::NotEmpty(log))
}

/// Copies the uploaded files that the new log refers to from `from`, unless they exist.
pub(super) fn copy_files(
    from: Option<&Path>,
    named: &[FileHash],
    data_dir: &Path,
    restored: &mut Restored,
) -> Result<(), RestoreError> {
    let root = files::directory(data_dir);
    let incoming = root.join("incoming");
    if from.is_some() && !named.is_empty() {
        disk::make_private_dir(&root).map_err(RestoreError::io(&root))?;
        disk::make_private_dir(&incoming).map_err(RestoreError::io(&incoming))?;
    }
    for hash in named {
        let to = files::place(&root, hash);
        if to.is_file() {
            continue;
        }
        let source = from.map(|from| files::place(from, hash)).filter(|path| path.is_file());
        let Some(source) = source else {
            restored.missing_files += 1;
            continue;
        };
        let copied = crate::backup::copy_media(&source, &to, &incoming, hash);
        match copied.map_err(RestoreError::io(&source))? {
            Some(_) => restored.files += 1,
            None => {
                tracing::warn!(path = %source.display(), "an uploaded file is damaged");
                restored.missing_files += 1;
            }
        }
    }
    Ok(())
}

/// Locks the archive of the configuration, which may have to make room for another one.
///
/// # Errors
/// When it is another data directory's.
pub(super) fn claim_archive(
    request: &Request,
    from: &Source,
) -> Result<Option<Claim>, RestoreError> {
    let data_dir = &request.data_dir;
    let archive = request.archive_dir.as_ref();
    let Some(archive) = archive.filter(|dir| dir.is_dir() && is_elsewhere(dir, data_dir)) else {
        return Ok(None);
    };
    let first = first(from)?;
    let claimant = Claimant::new(data_dir, first.clone(), "log.archive_dir");
    let claim = Claim::begin(archive, claimant.map_err(RestoreError::io(data_dir))?)?;
    if claim.must_fit() && !claim.was_ours() {
        let archived = Source::archive(archive);
        let is_empty = archived.end().is_ok_and(|end| end == Offset::ZERO);
        if !is_empty && !self::first(&archived).is_ok_and(|archived| archived == first) {
            return Err(claim.misfit().into());
        }
    }
    Ok(Some(claim))
}

/// The chain value of the first record, in hex.
fn first(source: &Source) -> Result<Option<String>, SourceError> {
    let mut chain = None;
    source.fetch(&[Offset::new(1)], |record| {
        chain = Some(hex(&record.chain));
        Ok::<_, SourceError>(())
    })?;
    Ok(chain)
}

/// Puts the new log in place. `end` is the last record of the log that it replaces, if there is
/// one. The caller must hold the lock.
pub(super) fn take(
    request: &Request,
    end: Option<Offset>,
    restored: &mut Restored,
) -> Result<(), RestoreError> {
    let data_dir = &request.data_dir;
    let (log, aside) = (store::log_dir(data_dir), aside(data_dir));
    let ready = store::ready_dir(data_dir);
    let new = store::log_dir(&aside);
    let mut before = None;
    if let Some(end) = end {
        let last = AtRest::open(&log)?.last().map_err(RestoreError::Read)?;
        if last.as_ref().map(Record::offset) != Some(end) {
            return Err(RestoreError::Moved(data_dir.clone()));
        }
        before = last.map(|last| last.header.epoch);
    }
    // An interrupted import is dropped: here is a log.
    remove(&store::importing_dir(data_dir))?;
    // Everything that is derived from the log is rebuilt.
    remove(&snapshot::directory(data_dir))?;
    remove(&data_dir.join("search"))?;
    remove(&data_dir.join("sliding"))?;
    ShutdownDigest::remove(data_dir)
        .map_err(|error| RestoreError::io(data_dir)(io::Error::other(error)))?;
    if let Some(archive) = &request.archive_dir
        && archive.is_dir()
        && !is_prefix(archive, &new, restored)
    {
        let old = restored.epoch.0.saturating_sub(1);
        restored.kept_archive = Some(keep(archive, archive, before.unwrap_or(Epoch(old)))?);
    }
    if request.from == RestoreSource::InPlace {
        remove(&ready)?;
        rename(&new, &ready)?;
        let swapped = disk::exchange(&log, &ready, &store::swapping_dir(data_dir));
        swapped.map_err(RestoreError::io(&log))?;
        restored.kept_log = Some(keep(&ready, &log, before.unwrap_or_default())?);
    } else {
        rename(&new, &log)?;
    }
    remove(&aside)
}

/// Whether the archive belongs to the new log: it ends before the new records, except for an
/// incomplete batch, with a record of this log.
fn is_prefix(archive: &Path, log: &Path, restored: &Restored) -> bool {
    let source = Source::archive(archive);
    let Ok(end) = source.end() else { return false };
    let cut = restored.last;
    let unfinished = if restored.undone.is_none() { restored.dropped } else { 0 };
    if end.get() > cut.get().saturating_add(unfinished) {
        return false;
    }
    let at = end.min(cut);
    if at == Offset::ZERO {
        return true;
    }
    let mut chain: Option<Chain> = None;
    let read = source.fetch(&[at], |record| {
        chain = Some(record.chain);
        Ok::<_, SourceError>(())
    });
    let ours = AtRest::open(log).ok().and_then(|log| log.get(at).ok()?);
    let ours = ours.map(|record| record.chain);
    read.is_ok() && ours.is_some() && chain == ours
}

/// Renames `path` to a name beside `named` with its epoch.
fn keep(path: &Path, named: &Path, epoch: Epoch) -> Result<PathBuf, RestoreError> {
    let name = named.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = (1..).map(|number: u32| match number {
        1 => format!("{name}.epoch-{}", epoch.0),
        number => format!("{name}.epoch-{}.{number}", epoch.0),
    });
    let free = names.map(|name| named.with_file_name(name)).find(|path| !path.exists());
    let kept = free.unwrap_or_else(|| named.with_extension("kept"));
    rename(path, &kept)?;
    Ok(kept)
}

fn rename(from: &Path, to: &Path) -> Result<(), RestoreError> {
    disk::put_in_place(from, to).map_err(RestoreError::io(from))
}

fn remove(dir: &Path) -> Result<(), RestoreError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(RestoreError::io(dir)(error)),
        _ => Ok(()),
    }
}
