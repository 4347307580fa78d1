//! Making a backup.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{BackupError, copy_media, prune, sync_dir};
use crate::{
    former,
    source::{Manifest, MediaEntry, SegmentEntry, Source, SourceError},
};
use logcabin_base::clock::Clock;
use logcabin_log::{
    archive::Segment,
    erase::{Targets, erasure},
    verify::Checker,
};
use logcabin_media::store;
use logcabin_record::{
    CHAIN_START, Command, Offset, Record, codec,
    command::{BackupMoment, FileHash, ServerIdentity},
};

/// The options of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many backups are kept, including this one; none for all.
    pub keep: Option<usize>,
    /// A segment is sealed at the end of the batch with which it reaches this size, in bytes.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { keep: None, segment_bytes: logcabin_log::archive::DEFAULT_SEGMENT_BYTES }
    }
}

#[derive(Clone, Debug)]
pub struct NewBackup {
    pub manifest: Manifest,
    /// blake3 of the manifest's file.
    pub hash: FileHash,
    /// How many records were copied; earlier ones exist already.
    pub copied_records: u64,
    /// The size of the copied segments.
    pub copied_bytes: u64,
    /// How many uploaded files were copied.
    pub copied_files: u64,
    /// Their size.
    pub copied_file_bytes: u64,
    /// Uploaded files with a wrong hash, which are left out.
    pub damaged: Vec<PathBuf>,
    /// The backups that were removed.
    pub removed: Vec<BackupMoment>,
}

/// The directories of a backup.
const PARTS: [&str; 5] = ["incoming", "lists", "manifests", "media", "segments"];

/// Makes a backup of the log in `source` and the uploaded files in `data_dir` into `dest`, as of
/// the last record that is durable when it starts. Blocks. `on_progress` is called with each record
/// that is copied.
///
/// # Errors
/// Earlier backups are unaffected.
pub fn take(
    source: &Source,
    data_dir: &Path,
    dest: &Path,
    options: Options,
    on_progress: impl FnMut(Offset),
) -> Result<NewBackup, BackupError> {
    if former::is_for_rehearsals(data_dir) {
        return Err(BackupError::Rehearsal(data_dir.to_owned()));
    }
    let _lock = open(dest)?;
    let made_ms = Clock::system().now_ms();
    let end = source.end()?;
    let identity = identity(source)?;
    let mut copying = Copying { source, dest, options, on_progress, records: 0, bytes: 0 };
    let base = copying.base(&identity, end)?;
    let (segments, last) = copying.segments(base.as_ref(), end)?;
    let (copied_records, copied_bytes) = (copying.records, copying.bytes);
    // After the records: the files that they refer to exist before the records do.
    let mut media = Media { dest, files: BTreeMap::new(), copied: (0, 0), damaged: Vec::new() };
    media.copy(&store::directory(data_dir))?;
    let manifest = Manifest {
        format: 0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server_name: identity.server_name.clone(),
        public_key: identity.public_key.clone(),
        epoch: last.header.epoch,
        offset: last.offset(),
        chain: FileHash(last.chain),
        record_ms: last.header.time_ms,
        made_ms,
        segments,
        media: MediaEntry::write(dest, &media.files)?,
        signatures: BTreeMap::new(),
    };
    let manifest = manifest.sign(&identity)?;
    for part in PARTS {
        sync_dir(&dest.join(part))?;
    }
    let hash = manifest.write(dest)?;
    let removed = prune::keep_newest(dest, options.keep, &manifest)?;
    let (copied_files, copied_file_bytes) = media.copied;
    Ok(NewBackup {
        manifest,
        hash,
        copied_records,
        copied_bytes,
        copied_files,
        copied_file_bytes,
        damaged: media.damaged,
        removed,
    })
}

/// Creates missing directories, and locks them against other backups. Removes what a killed backup
/// left unfinished.
pub(super) fn open(dest: &Path) -> Result<File, BackupError> {
    let make = |dir: &Path| {
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(BackupError::io(dir))
    };
    make(dest)?;
    if !dest.join("manifests").is_dir() {
        let known = |name: &std::ffi::OsStr| {
            name.to_str().is_some_and(|name| name == "lock" || PARTS.contains(&name))
        };
        for entry in fs::read_dir(dest).map_err(BackupError::io(dest))? {
            if !known(&entry.map_err(BackupError::io(dest))?.file_name()) {
                return Err(BackupError::NotABackup(dest.to_owned()));
            }
        }
    }
    let path = dest.join("lock");
    let mut lock = OpenOptions::new();
    let lock = lock.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = lock.map_err(BackupError::io(&path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(BackupError::InUse(dest.to_owned())),
        Err(TryLockError::Error(error)) => return Err(BackupError::io(&path)(error)),
    }
    for part in PARTS {
        make(&dest.join(part))?;
    }
    sync_dir(dest)?;
    let incoming = dest.join("incoming");
    for left in fs::read_dir(&incoming).map_err(BackupError::io(&incoming))? {
        let left = left.map_err(BackupError::io(&incoming))?.path();
        fs::remove_file(&left).map_err(BackupError::io(&left))?;
    }
    Ok(lock)
}

/// The identity of the server, from its first record.
fn identity(source: &Source) -> Result<ServerIdentity, BackupError> {
    let mut found = None;
    source.fetch(&[Offset::new(1)], |record| {
        found = record.command().ok().flatten();
        Ok::<_, SourceError>(())
    })?;
    match found {
        Some(Command::ServerIdentity(identity)) => Ok(identity),
        _ => Err(BackupError::NoIdentity),
    }
}

/// The copying of records.
struct Copying<'a, P> {
    source: &'a Source,
    dest: &'a Path,
    options: Options,
    on_progress: P,
    records: u64,
    bytes: u64,
}

impl<P: FnMut(Offset)> Copying<'_, P> {
    /// The newest backup that is a prefix of the log.
    fn base(
        &self,
        identity: &ServerIdentity,
        end: Offset,
    ) -> Result<Option<Manifest>, BackupError> {
        for path in Manifest::list(self.dest)?.into_iter().rev() {
            let manifest = match Manifest::read(&path) {
                Ok(manifest) => manifest,
                Err(error) => {
                    tracing::warn!(%error, "skipping a manifest");
                    continue;
                }
            };
            if manifest.server_name != identity.server_name
                || manifest.public_key != identity.public_key
            {
                return Err(BackupError::OtherServer {
                    dir: self.dest.to_owned(),
                    found: manifest.server_name,
                    ours: identity.server_name.clone(),
                });
            }
            if manifest.offset <= end
                && self.record(manifest.offset)?.is_some_and(|ours| ours.chain == manifest.chain.0)
            {
                return Ok(Some(manifest));
            }
        }
        Ok(None)
    }

    fn record(&self, offset: Offset) -> Result<Option<Record>, BackupError> {
        let mut found = None;
        self.source.fetch(&[offset], |record| {
            found = Some(record);
            Ok::<_, SourceError>(())
        })?;
        Ok(found)
    }

    /// Copies what `base` lacks, and returns all segments and the last record.
    fn segments(
        &mut self,
        base: Option<&Manifest>,
        end: Offset,
    ) -> Result<(Vec<SegmentEntry>, Record), BackupError> {
        let mut segments = base.map_or_else(Vec::new, |base| base.segments.clone());
        let had = base.map_or(Offset::ZERO, |base| base.offset);
        // The new records, with short preceding segments, which are merged.
        let mut from = had.next();
        while let Some(before) = segments.last()
            && had < end
            && before.bytes < self.options.segment_bytes
            && before.records() <= end.get() - from.prev().get()
        {
            from = before.first;
            segments.pop();
        }
        let mut erased = Targets::default();
        let mut last = None;
        let added = self.copy(from, end, |record| {
            if record.offset() > had
                && let Some(erasure) = erasure(record)
            {
                erased.add(&erasure);
            }
            last = Some(record.clone());
        })?;
        for segment in &mut segments {
            let length = fs::metadata(segment.path(self.dest)).map(|about| about.len());
            let there = length.is_ok_and(|length| length == segment.bytes);
            if there && !erased.any_in(segment.first, segment.last) {
                continue;
            }
            // With the same bounds, and without the content that was erased since.
            let whole = Options { segment_bytes: u64::MAX, ..self.options };
            let options = std::mem::replace(&mut self.options, whole);
            let again = self.copy(segment.first, segment.last, |_| {});
            self.options = options;
            if let Some(again) = again?.pop() {
                *segment = again;
            }
        }
        segments.extend(added);
        let last = match last {
            Some(last) => last,
            None => self.record(end)?.ok_or(BackupError::NoIdentity)?,
        };
        Ok((segments, last))
    }

    /// Copies the records from `from` to `to` into segments of their own.
    fn copy(
        &mut self,
        from: Offset,
        to: Offset,
        mut on_record: impl FnMut(&Record),
    ) -> Result<Vec<SegmentEntry>, BackupError> {
        let mut made = Vec::new();
        if from > to {
            return Ok(made);
        }
        let (mut checker, mut chain) = (Checker::from_start(), CHAIN_START);
        if from > Offset::new(1) {
            let missing = || {
                BackupError::from(SourceError::from(logcabin_log::ReadError::Missing(from.prev())))
            };
            let before = self.record(from.prev())?.ok_or_else(missing)?;
            (checker, chain) = (Checker::after(&before), before.chain);
        }
        let mut open: Option<Open> = None;
        for record in self.source.records(from)? {
            let record = record?;
            if record.offset() > to {
                break;
            }
            checker.check(&record)?;
            let segment = match &mut open {
                Some(segment) => segment,
                None => open.insert(Open::begin(self.dest, record.offset(), &chain)?),
            };
            segment.segment.append(&codec::encode_frame(&record)?)?;
            chain = record.chain;
            on_record(&record);
            (self.on_progress)(record.offset());
            self.records += 1;
            if record.header.batch_remaining == 0
                && segment.segment.length() >= self.options.segment_bytes
                && let Some(full) = open.take()
            {
                made.push(full.seal(self.dest, record.offset(), &chain)?);
            }
        }
        if let Some(full) = open {
            made.push(full.seal(self.dest, checker.last(), &chain)?);
        }
        if checker.last() != to {
            let missing =
                SourceError::from(logcabin_log::ReadError::Missing(checker.last().next()));
            return Err(missing.into());
        }
        self.bytes += made.iter().map(|segment| segment.bytes).sum::<u64>();
        Ok(made)
    }
}

/// A segment that is being written.
struct Open {
    segment: Segment,
    partial: PathBuf,
    first: Offset,
}

impl Open {
    fn begin(dest: &Path, first: Offset, before: &[u8; 32]) -> Result<Self, BackupError> {
        let partial = dest.join("incoming").join(format!("{:020}.lcseg", first.get()));
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(BackupError::io(&partial)(error));
            }
            _ => {}
        }
        Ok(Self { segment: Segment::create_at(partial.clone(), first, before)?, partial, first })
    }

    fn seal(
        mut self,
        dest: &Path,
        last: Offset,
        chain: &[u8; 32],
    ) -> Result<SegmentEntry, BackupError> {
        self.segment.seal(chain)?;
        let (bytes, hash) = (self.segment.length(), self.segment.hash());
        let file = format!("{:020}-{}.lcseg", self.first.get(), &hash.to_hex()[..16]);
        let entry =
            SegmentEntry { file, first: self.first, last, bytes, blake3: FileHash::from(hash) };
        let path = entry.path(dest);
        fs::rename(&self.partial, &path).map_err(BackupError::io(&path))?;
        Ok(entry)
    }
}

/// The copying of uploaded files.
struct Media<'a> {
    dest: &'a Path,
    files: BTreeMap<FileHash, u64>,
    copied: (u64, u64),
    damaged: Vec<PathBuf>,
}

impl Media<'_> {
    fn copy(&mut self, from: &Path) -> Result<(), BackupError> {
        let files = match store::files(from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            files => files.map_err(BackupError::io(from))?,
        };
        let (root, incoming) = (self.dest.join("media"), self.dest.join("incoming"));
        for (hash, path) in files {
            let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
            let length = match fs::metadata(&path) {
                Ok(about) => about.len(),
                // It was removed since it was listed.
                Err(error) if gone(&error) => continue,
                Err(error) => return Err(BackupError::io(&path)(error)),
            };
            let to = store::place(&root, &hash);
            if fs::metadata(&to).is_ok_and(|there| there.len() == length) {
                self.files.insert(hash, length);
                continue;
            }
            match copy_media(&path, &to, &incoming, &hash) {
                Ok(Some(length)) => {
                    self.files.insert(hash, length);
                    self.copied.0 += 1;
                    self.copied.1 += length;
                }
                Ok(None) => self.damaged.push(path),
                Err(error) if gone(&error) => {}
                Err(error) => return Err(BackupError::io(&path)(error)),
            }
        }
        Ok(())
    }
}
