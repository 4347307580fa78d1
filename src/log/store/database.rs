//! One sled database, with panics caught and writes made durable.
//!
//! What is not left to sled:
//!
//! - **Durability.** sled's `flush` ends in `sync_file_range` on Linux, which neither writes the
//!   file's metadata nor flushes the device's cache. Each flush is followed by `fdatasync` on
//!   sled's data file, through a handle of our own. sled's timed flush is off.
//! - **Blobs.** sled writes a page larger than a quarter of a segment to a file of its own, and
//!   never syncs that file. A page holds up to 17 values, so segments are as large as sled allows
//!   and [`MAX_PAYLOAD_BYTES`](crate::MAX_PAYLOAD_BYTES) keeps 17 of the largest groups below
//!   the quarter. No record is ever in a blob.
//! - **Reuse of space.** sled may overwrite a segment once all its pages were rewritten elsewhere
//!   and flushed *in its sense*. A group writes less than one segment, so our `fdatasync` always
//!   happens between the copy and the reuse.
//! - **Panics.** sled panics on some damage. Every call catches panics; a panic counts as a failed
//!   call.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};

use super::{
    OpenError,
    group::{self, Packer},
};
use crate::{ReadError, block::Block};
use logcabin_base::{
    disk,
    metrics::{CacheName, metrics},
};
use logcabin_record::{Offset, codec::CodecError};

/// A sled database, with panics caught and writes made durable.
pub struct Store {
    pub(super) records: sled::Tree,
    packer: Packer,
    /// The groups that were read last.
    groups: Cache<Offset, Arc<Block>, ByBytes>,
    /// Whether anything that remains of erased records is stored.
    has_remains: AtomicBool,
    /// Facts about the store itself.
    about: sled::Tree,
    db: sled::Db,
    /// sled's data file, through a handle of our own.
    pub(super) data: File,
    pub(super) dir: PathBuf,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Offset, Arc<Block>> for ByBytes {
    fn weight(&self, _: &Offset, block: &Arc<Block>) -> u64 {
        block.weight()
    }
}

/// Why a store could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A call into sled, or a sync, failed.
    #[error("{0}")]
    Failed(String),
    /// A group was altered after it was written.
    #[error("the records from {first} on are damaged: {what}")]
    Damaged {
        /// Its first record.
        first: Offset,
        what: String,
    },
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Failed(reason) => Self::Storage(reason),
            StoreError::Damaged { first, what } => {
                Self::Damaged { offset: first, source: CodecError::Group(what) }
            }
        }
    }
}

/// The largest segment that sled allows; see the module's documentation. It can never change: sled
/// refuses to open a database with another size.
const SEGMENT_BYTES: usize = 16 * 1024 * 1024;

/// The name of the tree of records.
const TREE: &str = "records";

/// The first byte of the keys of what remains of erased records; the offset follows. The keys of
/// groups are offsets, which never begin with this byte.
const REMAINS: u8 = 0xff;

/// How many bytes of groups are kept after they were read.
const GROUP_CACHE_BYTES: u64 = 4 * 1024 * 1024;

/// The name of the other tree, and its key: the offset up to which erased content has left the
/// disk.
const ABOUT: &str = "about";
const COMPACTED: &str = "compacted";

/// sled's own threads can hold its lock for a moment after its last handle in this process was
/// dropped. No other process can have it, because our lock is taken first.
const LOCK_RETRIES: u32 = 100;
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(50);

impl Store {
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, OpenError> {
        let unusable = |error: StoreError| OpenError::Store {
            path: dir.to_owned(),
            reason: error.to_string(),
        };
        let failed = |path: &Path, source| OpenError::Io { path: path.to_owned(), source };
        let config = sled::Config::new()
            .path(dir)
            .flush_every_ms(None)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(cache_bytes);
        let (mut retries, mut begun_again) = (0, false);
        let db = loop {
            match fenced("opening the database", || config.open()) {
                Err(error)
                    if error.to_string().contains("could not acquire lock")
                        && retries < LOCK_RETRIES =>
                {
                    retries += 1;
                    std::thread::sleep(LOCK_RETRY_PAUSE);
                }
                Err(error)
                    if error.to_string().contains("corrupted")
                        && !begun_again
                        && set_snapshots_aside(dir).map_err(|source| failed(dir, source))? =>
                {
                    begun_again = true;
                    tracing::warn!(
                        %error,
                        dir = %dir.display(),
                        "the database disagrees with its own snapshot file; reading it from the beginning"
                    );
                }
                opened => break opened.map_err(unusable)?,
            }
        };
        let records = fenced("opening the tree", || db.open_tree(TREE)).map_err(unusable)?;
        let about = fenced("opening the tree", || db.open_tree(ABOUT)).map_err(unusable)?;
        let path = dir.join("db");
        let data = File::open(&path).map_err(|source| failed(&path, source))?;
        let remains = fenced("reading", || records.range([REMAINS]..).next().transpose());
        let has_remains = AtomicBool::new(remains.map_err(unusable)?.is_some());
        let packer = Packer::new().map_err(|source| failed(dir, source))?;
        let groups = Cache::with_weighter(64, GROUP_CACHE_BYTES, ByBytes);
        let store =
            Self { records, packer, groups, has_remains, about, db, data, dir: dir.to_owned() };
        store.sync().map_err(unusable)?;
        // The files' names must survive a power cut too, and sled's own configuration file.
        let conf = dir.join("conf");
        for path in [conf.as_path(), dir] {
            File::open(path).and_then(|file| file.sync_all()).map_err(|e| failed(path, e))?;
        }
        Ok(store)
    }

    /// Writes the frames of consecutive records and what remains of erased ones atomically, and
    /// returns once they are durable.
    pub fn put(
        &self,
        frames: &[(Offset, Vec<u8>)],
        remains: Vec<(Offset, Vec<u8>)>,
    ) -> Result<(), StoreError> {
        let mut groups = self.packer.pack(frames)?;
        if groups.len() == 1
            && remains.is_empty()
            && let Some((first, group)) = groups.pop()
        {
            // A single insert saves the separate write of a batch, and the wait for it.
            fenced("writing", || self.records.insert(key(first), group))?;
            return self.sync();
        }
        let mut batch = sled::Batch::default();
        for (first, group) in groups {
            batch.insert(&key(first), group);
        }
        if !remains.is_empty() {
            // Before the write: a reader that looks too early finds nothing there.
            self.has_remains.store(true, Ordering::SeqCst);
        }
        for (offset, frame) in remains {
            batch.insert(&remains_key(offset), frame);
        }
        self.write(batch)
    }

    /// Removes the records after `last`.
    pub(super) fn truncate(&self, last: Offset) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        let mut kept = Vec::new();
        if let Some((first, block)) = self.group_of(last)? {
            for offset in (first.get()..=last.get()).map(Offset::new) {
                kept.extend(block.get(offset).map(|frame| (offset, frame.to_vec())));
            }
        }
        for (first, group) in self.packer.pack(&kept)? {
            batch.insert(&key(first), group);
        }
        let after = key(last.next());
        for first in self.records.range(&after[..]..&[REMAINS][..]).keys() {
            batch.remove(fenced("reading", || first)?);
        }
        self.groups.clear();
        self.write(batch)
    }

    /// Applies `batch` atomically, and returns once it is durable.
    fn write(&self, batch: sled::Batch) -> Result<(), StoreError> {
        fenced("writing", || self.records.apply_batch(batch))?;
        self.sync()
    }

    pub(super) fn compacted(&self) -> Result<Offset, StoreError> {
        let value = fenced("reading", || self.about.get(COMPACTED))?;
        let value = value.and_then(|value| <[u8; 8]>::try_from(&*value).ok());
        Ok(value.map_or(Offset::ZERO, |value| Offset::new(u64::from_be_bytes(value))))
    }

    /// Notes that this store never contained what was erased up to `offset`.
    pub fn note_compacted(&self, offset: Offset) -> Result<(), StoreError> {
        fenced("writing", || self.about.insert(COMPACTED, &key(offset)))?;
        self.sync()
    }

    pub(super) fn sync(&self) -> Result<(), StoreError> {
        fenced("flushing", || self.db.flush())?;
        self.data
            .sync_data()
            .map_err(|error| StoreError::Failed(format!("syncing the data file failed: {error}")))
    }

    /// The frame of a record, or what remains of it.
    pub(crate) fn get(&self, offset: Offset) -> Result<Option<Bytes>, StoreError> {
        if let Some(remains) = self.remains(offset)? {
            return Ok(Some(remains));
        }
        let Some((first, value)) = self.value_of(offset)? else { return Ok(None) };
        let kept = self.groups.get(&first);
        metrics().looked_up(CacheName::Groups, kept.is_some());
        if let Some(block) = kept {
            return Ok(block.get(offset));
        }
        let block = Arc::new(Packer::unpack(first, &value)?);
        let frame = block.get(offset);
        self.groups.insert(first, block);
        Ok(frame)
    }

    /// What remains of an erased record.
    pub(super) fn remains(&self, offset: Offset) -> Result<Option<Bytes>, StoreError> {
        if !self.has_remains.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let value = fenced("reading", || self.records.get(remains_key(offset)))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// The group that would contain `offset`, with its first record; the record may be after it.
    pub(super) fn group_of(&self, offset: Offset) -> Result<Option<(Offset, Block)>, StoreError> {
        let Some((first, value)) = self.value_of(offset)? else { return Ok(None) };
        Ok(Some((first, Packer::unpack(first, &value)?)))
    }

    fn value_of(&self, offset: Offset) -> Result<Option<(Offset, sled::IVec)>, StoreError> {
        let mut values = self.records.range(..=key(offset));
        match fenced("reading", || values.next_back().transpose())? {
            Some((key, value)) => Ok(Some((self::offset(&key)?, value))),
            None => Ok(None),
        }
    }

    /// The offsets up to `last` in this store.
    pub(super) fn offsets_to(&self, last: Offset) -> Result<BTreeSet<Offset>, StoreError> {
        let mut offsets = BTreeSet::new();
        for value in self.records.range(..=key(last)) {
            let (key, value) = fenced("reading", || value)?;
            let first = offset(&key)?.get();
            let end = last.get().min(first.saturating_add(group::count(&value)).saturating_sub(1));
            offsets.extend((first..=end).map(Offset::new));
        }
        for key in self.records.range([REMAINS]..).keys() {
            let key = fenced("reading", || key)?;
            let offset = offset(key.get(1..).unwrap_or_default())?;
            offsets.extend((offset <= last).then_some(offset));
        }
        Ok(offsets)
    }

    /// Its size on disk in bytes.
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        // Blocks that were given back do not count.
        Ok(disk::bytes_of(&self.data.metadata()?))
    }

    /// The offset of the first record.
    pub(super) fn first(&self) -> Result<Option<Offset>, StoreError> {
        let mut keys = self.records.range(..&[REMAINS][..]).keys();
        fenced("reading", || keys.next().transpose())?.map(|key| offset(&key)).transpose()
    }

    /// The offset of the last record.
    pub(crate) fn last(&self) -> Result<Option<Offset>, StoreError> {
        let mut values = self.records.range(..&[REMAINS][..]);
        let Some((key, value)) = fenced("reading", || values.next_back().transpose())? else {
            return Ok(None);
        };
        let first = offset(&key)?.get();
        Ok(Some(Offset::new(first.saturating_add(group::count(&value)).saturating_sub(1))))
    }
}

/// Moves away sled's own snapshot, from which it would continue. Without it, sled reads its whole
/// file. The result is checked against the tip file as usual. Returns whether there was any.
fn set_snapshots_aside(dir: &Path) -> io::Result<bool> {
    let mut any = false;
    for path in disk::entries(dir)? {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.starts_with(b"snap.") {
            std::fs::rename(&path, dir.join("aside.snap"))?;
            any = true;
        }
    }
    Ok(any)
}

pub(super) fn offset(key: &[u8]) -> Result<Offset, StoreError> {
    let key = <[u8; 8]>::try_from(key)
        .map_err(|_| StoreError::Failed(format!("a key of {} bytes is in the tree", key.len())))?;
    Ok(Offset::new(u64::from_be_bytes(key)))
}

pub(super) const fn key(offset: Offset) -> [u8; 8] {
    offset.get().to_be_bytes()
}

fn remains_key(offset: Offset) -> [u8; 9] {
    let mut key = [REMAINS; 9];
    key[1..].copy_from_slice(&self::key(offset));
    key
}

/// Calls into sled and turns a panic into a failure.
pub(super) fn fenced<T>(
    what: &str,
    call: impl FnOnce() -> sled::Result<T>,
) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(StoreError::Failed(format!("{what} failed: {error}"))),
        Err(panic) => Err(StoreError::Failed(format!("{what} panicked: {}", panic_text(&*panic)))),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
