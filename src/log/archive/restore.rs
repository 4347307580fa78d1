//! Restoring: a new log from an archive alone.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{ArchiveError, ArchiveReader, TornTail};
use crate::{
    clock::Clock,
    log::{
        erase::{self, Targets},
        sled::{self as sled_log, AtRest, DEFAULT_CACHE_BYTES, OpenError, Store, StoreError},
    },
    record::{
        Chain, Command, Epoch, NewRecord, Offset, Origin, Record, Stream,
        codec::{self, Tip},
        command::ServerRestore,
    },
};

/// What [`restore_from_archive`] made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// How many records were restored.
    pub records: u64,
    /// The last of them.
    pub last: Offset,
    /// The chain value of the last.
    pub chain: Chain,
    /// How many records were left out because the rest of their batch is not in the archive.
    pub dropped: u64,
    /// What could not be read at the archive's end.
    pub torn: Option<TornTail>,
    /// How many payloads the archive still held that its records say were erased: they were left
    /// behind.
    pub erased: u64,
    /// The epoch that begins with the restore, in a record of its own after the last restored one.
    pub epoch: Epoch,
}

/// Why a log could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is a log already.
    #[error("{} is not empty; move it away first, it is not overwritten", .0.display())]
    NotEmpty(PathBuf),
    /// The archive does not begin with the first record.
    #[error("the archive {} does not begin with record 1, but with {}", .dir.display(), .first.map_or_else(|| "nothing".to_owned(), |first| first.to_string()))]
    Incomplete {
        /// The archive.
        dir: PathBuf,
        /// Its first record.
        first: Option<Offset>,
    },
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The new log cannot be written.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A write to the new log failed.
    #[error("writing the new log failed: {0}")]
    Write(String),
    /// A directory could not be renamed or removed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl From<StoreError> for RestoreError {
    fn from(error: StoreError) -> Self {
        Self::Write(error.0)
    }
}

/// A restore makes its writes durable in pieces of this many bytes.
const RESTORE_BYTES: usize = 1024 * 1024;

/// Makes a new log in `data_dir` from the segments in `archive_dir` alone. The log appears under its
/// name only once it is complete. A last batch that is not whole is left out. Blocks.
///
/// # Errors
/// When there is a log already, the archive is damaged or incomplete, or a disk fails.
pub fn restore_from_archive(archive_dir: &Path, data_dir: &Path) -> Result<Restored, RestoreError> {
    let failed = |path: &Path, source| RestoreError::Io { path: path.to_owned(), source };
    let archive = ArchiveReader::open(archive_dir)?;
    if archive.first() != Some(Offset::new(1)) {
        return Err(RestoreError::Incomplete {
            dir: archive_dir.to_owned(),
            first: archive.first(),
        });
    }
    let _lock = sled_log::lock_data_dir(data_dir)?;
    let target = sled_log::log_dir(data_dir);
    if target.exists() {
        // A server that was refused beside this archive has left a log without a record.
        // What cannot be opened may still be worth something to somebody.
        if !matches!(AtRest::open(&target).map(|log| log.last()), Ok(Ok(None))) {
            return Err(RestoreError::NotEmpty(target));
        }
        std::fs::remove_dir_all(&target).map_err(|error| failed(&target, error))?;
    }
    let partial = data_dir.join("log.restoring");
    if partial.exists() {
        std::fs::remove_dir_all(&partial).map_err(|error| failed(&partial, error))?;
    }
    sled_log::make_private_dir(&partial)?;

    let restored = {
        let store = Store::open(&partial, DEFAULT_CACHE_BYTES)?;
        copy_into(&store, &archive)?
    };
    std::fs::rename(&partial, &target).map_err(|error| failed(&target, error))?;
    File::open(data_dir).and_then(|dir| dir.sync_all()).map_err(|error| failed(data_dir, error))?;
    Ok(restored)
}

fn copy_into(store: &Store, archive: &ArchiveReader) -> Result<Restored, RestoreError> {
    // Before the first byte is written: what was erased is not to get to the disk again.
    let mut targets = Targets::default();
    for record in archive.records(Offset::new(1)) {
        if let Some(erasure) = erase::erasure(&record?) {
            targets.add(&erasure);
        }
    }
    let mut records = archive.records(Offset::new(1));
    let mut copying = Copying::into(store, &targets);
    while let Some(next) = records.next_with_frame() {
        let (record, frame) = next?;
        copying.put(record, Some(frame))?;
    }
    let dropped = copying.leave_out_unfinished();
    let (count, last, chain) = (copying.records, copying.tip.offset, copying.tip.chain);
    if count > 0 {
        let restore = ServerRestore { source: "archive".to_owned(), last, undone: None };
        let epoch = Epoch(copying.tip.epoch.0.saturating_add(1));
        copying.begin_epoch(epoch, restore, Clock::system().now_ms())?;
    }
    let epoch = copying.tip.epoch;
    let erased = copying.erased;
    copying.finish()?;
    let torn = records.torn().cloned();
    Ok(Restored { records: count, last, chain, dropped, torn, erased, epoch })
}

/// A log in the making: records as they were, then new ones.
pub(crate) struct Copying<'a> {
    store: &'a Store,
    targets: &'a Targets,
    /// Only whole batches leave it for `writes`.
    batch: Vec<(Record, Bytes)>,
    writes: ::sled::Batch,
    bytes: usize,
    pub(crate) tip: Tip,
    /// How many records are in it.
    records: u64,
    /// How many payloads were left behind that `targets` name.
    erased: u64,
}

impl<'a> Copying<'a> {
    /// Nothing of what `targets` name is written.
    pub(crate) fn into(store: &'a Store, targets: &'a Targets) -> Self {
        Self {
            store,
            targets,
            batch: Vec::new(),
            writes: ::sled::Batch::default(),
            bytes: 0,
            tip: Tip::default(),
            records: 0,
            erased: 0,
        }
    }

    /// Adds the next record, which was verified. `frame` is what it is stored as, if that is at hand.
    pub(crate) fn put(
        &mut self,
        mut record: Record,
        mut frame: Option<Bytes>,
    ) -> Result<(), RestoreError> {
        let damaged = |error: &dyn std::fmt::Display| RestoreError::Write(error.to_string());
        if let Some(target) = self.targets.get(record.offset()) {
            let left = erase::remainder(&record, &target).map_err(|error| damaged(&error))?;
            if left != record.payload {
                self.erased += 1;
                record.payload = left;
                frame = None;
            }
        }
        let frame = match frame {
            Some(frame) => frame,
            None => codec::encode_frame(&record).map_err(|error| damaged(&error))?.into(),
        };
        let is_last = record.header.batch_remaining == 0;
        self.batch.push((record, frame));
        if is_last {
            for (record, frame) in std::mem::take(&mut self.batch) {
                self.tip = Tip::after(&record);
                self.write(record.offset(), &frame)?;
            }
        }
        Ok(())
    }

    /// Gives up the records of a last batch that is not whole, and says how many they are.
    pub(crate) fn leave_out_unfinished(&mut self) -> u64 {
        std::mem::take(&mut self.batch).len() as u64
    }

    /// Adds the record that follows a restore. Positions after the last one may have been given out before,
    /// for records that are lost now: the new epoch tells those from the positions to come.
    pub(crate) fn begin_epoch(
        &mut self,
        epoch: Epoch,
        restore: ServerRestore,
        now_ms: u64,
    ) -> Result<Record, RestoreError> {
        self.tip.epoch = epoch;
        let command = Command::from(restore);
        self.append(NewRecord::new(Stream::server(), Origin::server(), &command), now_ms)
    }

    /// Adds a new record.
    pub(crate) fn append(&mut self, new: NewRecord, now_ms: u64) -> Result<Record, RestoreError> {
        let (record, frame) = self
            .tip
            .extend(new, 0, now_ms)
            .map_err(|error| RestoreError::Write(error.to_string()))?;
        self.write(record.offset(), &frame)?;
        Ok(record)
    }

    fn write(&mut self, offset: Offset, frame: &[u8]) -> Result<(), RestoreError> {
        self.records += 1;
        self.bytes += frame.len();
        self.writes.insert(&sled_log::key(offset), frame);
        if self.bytes >= RESTORE_BYTES {
            self.bytes = 0;
            self.store.write(std::mem::take(&mut self.writes))?;
        }
        Ok(())
    }

    /// Makes all of it durable.
    pub(crate) fn finish(self) -> Result<(), RestoreError> {
        self.store.write(self.writes)?;
        // Nothing that was erased until here ever got to this disk.
        self.store.note_compacted(self.tip.offset)?;
        Ok(())
    }
}
