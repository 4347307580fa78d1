//! Restoring: a new log from an archive alone.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use super::{ArchiveError, ArchiveReader, TornTail};
use crate::{
    clock::Clock,
    log::{
        erase::{self, Targets},
        sled::{self as sled_log, DEFAULT_CACHE_BYTES, OpenError, Store, StoreError},
    },
    record::{
        CHAIN_START, Chain, Command, Epoch, NewRecord, Offset, Origin, Stream,
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
        if !sled_log::is_empty(&target) {
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
    let mut restored = Restored {
        records: 0,
        last: Offset::ZERO,
        chain: CHAIN_START,
        dropped: 0,
        torn: None,
        erased: 0,
        epoch: Epoch(0),
    };
    // Only whole batches leave `batch` for `writes`.
    let mut batch = Vec::new();
    let mut writes = ::sled::Batch::default();
    let mut bytes = 0;
    let mut tip = Tip::default();
    while let Some(next) = records.next_with_frame() {
        let (mut record, mut frame) = next?;
        if let Some(target) = targets.get(record.offset()) {
            let damaged = |error: &dyn std::fmt::Display| RestoreError::Write(error.to_string());
            let left = erase::remainder(&record, &target).map_err(|error| damaged(&error))?;
            if left != record.payload {
                restored.erased += 1;
                record.payload = left;
                frame = codec::encode_frame(&record).map_err(|error| damaged(&error))?.into();
            }
        }
        bytes += frame.len();
        batch.push((record.offset(), frame));
        if record.header.batch_remaining != 0 {
            continue;
        }
        restored.records += batch.len() as u64;
        restored.last = record.offset();
        restored.chain = record.chain;
        tip = Tip::after(&record);
        for (offset, frame) in batch.drain(..) {
            writes.insert(&sled_log::key(offset), &*frame);
        }
        if bytes >= RESTORE_BYTES {
            store.write(std::mem::take(&mut writes))?;
            bytes = 0;
        }
    }
    if restored.records > 0 {
        let (offset, frame) = begin_epoch(&mut tip)?;
        restored.epoch = tip.epoch;
        writes.insert(&sled_log::key(offset), &*frame);
    }
    store.write(writes)?;
    store.note_compacted(tip.offset)?;
    restored.dropped = batch.len() as u64;
    restored.torn = records.torn().cloned();
    Ok(restored)
}

/// The record that follows a restore. Positions after `tip` may have been given out before, for
/// records that are lost now: the new epoch tells those from the positions to come.
fn begin_epoch(tip: &mut Tip) -> Result<(Offset, Vec<u8>), RestoreError> {
    let restore = ServerRestore { source: "archive".to_owned(), last: tip.offset };
    let new = NewRecord::new(Stream::server(), Origin::server(), &Command::from(restore));
    tip.epoch = Epoch(tip.epoch.0.saturating_add(1));
    let (record, frame) = tip
        .extend(new, 0, Clock::system().now_ms())
        .map_err(|error| RestoreError::Write(error.to_string()))?;
    Ok((record.offset(), frame))
}
