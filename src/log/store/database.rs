//! One sled database, with panics caught and writes made durable.
//!
//! What is not left to sled:
//!
//! - **Durability.** sled's `flush` ends in `sync_file_range` on Linux, which neither writes the
//!   file's metadata nor flushes the device's cache. Each flush is followed by `fdatasync` on
//!   sled's data file, through a handle of our own. sled's timed flush is off.
//! - **Blobs.** sled writes a page larger than a quarter of a segment to a file of its own, and
//!   never syncs that file. A page holds up to 17 records, so segments are as large as sled allows
//!   and [`MAX_PAYLOAD_BYTES`](crate::log::MAX_PAYLOAD_BYTES) keeps 17 of the largest records below
//!   the quarter. No record is ever in a blob.
//! - **Reuse of space.** sled may overwrite a segment once all its pages were rewritten elsewhere
//!   and flushed *in its sense*. A group writes less than one segment, so our `fdatasync` always
//!   happens between the copy and the reuse.
//! - **Panics.** sled panics on some damage. Every call catches panics; a panic counts as a failed
//!   call.

use std::{
    fs::File,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;

use super::OpenError;
use crate::{base::disk, log::ReadError, record::Offset};

/// A sled database, with panics caught and writes made durable.
pub(crate) struct Store {
    pub(super) records: sled::Tree,
    /// Facts about the store itself.
    about: sled::Tree,
    db: sled::Db,
    /// sled's data file, through a handle of our own.
    pub(super) data: File,
    pub(super) dir: PathBuf,
}

/// A call into sled, or a sync, failed.
#[derive(Debug)]
pub(crate) struct StoreError(pub(crate) String);

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self::Storage(error.0)
    }
}

/// The largest segment that sled allows; see the module's documentation. It can never change: sled
/// refuses to open a database with another size.
const SEGMENT_BYTES: usize = 16 * 1024 * 1024;

/// The name of the tree of records.
const TREE: &str = "records";

/// The name of the other tree, and its key: the offset up to which erased content has left the
/// disk.
const ABOUT: &str = "about";
const COMPACTED: &str = "compacted";

/// sled's own threads can hold its lock for a moment after its last handle in this process was
/// dropped. No other process can have it, because our lock is taken first.
const LOCK_RETRIES: u32 = 100;
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(50);

impl Store {
    pub(crate) fn open(dir: &Path, cache_bytes: u64) -> Result<Self, OpenError> {
        let unusable =
            |error: StoreError| OpenError::Store { path: dir.to_owned(), reason: error.0 };
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
                    if error.0.contains("could not acquire lock") && retries < LOCK_RETRIES =>
                {
                    retries += 1;
                    std::thread::sleep(LOCK_RETRY_PAUSE);
                }
                Err(error)
                    if error.0.contains("corrupted")
                        && !begun_again
                        && set_snapshots_aside(dir).map_err(|source| failed(dir, source))? =>
                {
                    begun_again = true;
                    tracing::warn!(
                        error = error.0,
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
        let store = Self { records, about, db, data, dir: dir.to_owned() };
        store.sync().map_err(unusable)?;
        // The files' names must survive a power cut too, and sled's own configuration file.
        let conf = dir.join("conf");
        for path in [conf.as_path(), dir] {
            File::open(path).and_then(|file| file.sync_all()).map_err(|e| failed(path, e))?;
        }
        Ok(store)
    }

    /// Writes `frames` atomically, and returns once they are durable.
    pub(crate) fn put(&self, mut frames: Vec<(Offset, Vec<u8>)>) -> Result<(), StoreError> {
        if frames.len() == 1
            && let Some((offset, frame)) = frames.pop()
        {
            // The tree of a batch is written, and awaited, by itself.
            fenced("writing", || self.records.insert(key(offset), frame))?;
            return self.sync();
        }
        let mut batch = sled::Batch::default();
        frames.into_iter().for_each(|(offset, frame)| batch.insert(&key(offset), frame));
        self.write(batch)
    }

    /// Applies `batch` atomically, and returns once it is durable.
    pub(super) fn write(&self, batch: sled::Batch) -> Result<(), StoreError> {
        fenced("writing", || self.records.apply_batch(batch))?;
        self.sync()
    }

    pub(super) fn compacted(&self) -> Result<Offset, StoreError> {
        let value = fenced("reading", || self.about.get(COMPACTED))?;
        let value = value.and_then(|value| <[u8; 8]>::try_from(&*value).ok());
        Ok(value.map_or(Offset::ZERO, |value| Offset::new(u64::from_be_bytes(value))))
    }

    /// Notes that this store never contained what was erased up to `offset`.
    pub(crate) fn note_compacted(&self, offset: Offset) -> Result<(), StoreError> {
        fenced("writing", || self.about.insert(COMPACTED, &key(offset)))?;
        self.sync()
    }

    pub(super) fn sync(&self) -> Result<(), StoreError> {
        fenced("flushing", || self.db.flush())?;
        self.data
            .sync_data()
            .map_err(|error| StoreError(format!("syncing the data file failed: {error}")))
    }

    pub(crate) fn get(&self, offset: Offset) -> Result<Option<Bytes>, StoreError> {
        let value = fenced("reading", || self.records.get(key(offset)))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// The offsets up to `last` in this store.
    pub(super) fn offsets_to(
        &self,
        last: Offset,
    ) -> impl Iterator<Item = Result<Offset, StoreError>> {
        let mut keys = self.records.range(..=key(last)).keys();
        std::iter::from_fn(move || fenced("reading", || keys.next().transpose()).transpose())
            .map(|key| offset(&key?))
    }

    /// Its size on disk in bytes.
    pub(super) fn disk_bytes(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt as _;
        // Blocks that were given back do not count.
        Ok(self.data.metadata()?.blocks() * 512)
    }

    /// The offset of the last record.
    pub(crate) fn last(&self) -> Result<Option<Offset>, StoreError> {
        let Some((key, _)) = fenced("reading", || self.records.last())? else { return Ok(None) };
        offset(&key).map(Some)
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
        .map_err(|_| StoreError(format!("a key of {} bytes is in the tree", key.len())))?;
    Ok(Offset::new(u64::from_be_bytes(key)))
}

pub(super) const fn key(offset: Offset) -> [u8; 8] {
    offset.get().to_be_bytes()
}

/// Calls into sled and turns a panic into a failure.
pub(super) fn fenced<T>(
    what: &str,
    call: impl FnOnce() -> sled::Result<T>,
) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(StoreError(format!("{what} failed: {error}"))),
        Err(panic) => Err(StoreError(format!("{what} panicked: {}", panic_text(&*panic)))),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
