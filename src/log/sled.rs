//! The default log: records in an embedded sled 0.34 tree, nothing to install, and old ones in volumes.
//!
//! Key: the offset as 8 bytes, big-endian. Value: the record's frame (`log_format.md`).
//!
//! A database takes the newest records. Once it holds many, another one takes its place, and its records
//! are *sealed*: written to volumes ([`super::volume`]), which take a fifth of the room and no time at a
//! start, and the database is removed. `layers` reads all of it as one log, `seal` does the sealing.
//!
//! One thread, the *committer*, does all writing. It takes every batch that is queued, checks each
//! against the stream heads as the batches before it leave them, writes what it accepts all or nothing (as
//! one sled batch, or, if it is one record, as that), makes that durable once, and only then lets anybody
//! know: watermark, follower, replies, in this order. After a group of many it waits a moment for the next. A refusal waits with the rest of its group, because the record it was decided against
//! may be in that group.
//!
//! What is not left to sled:
//!
//! - **Durability.** sled's `flush` ends in `sync_file_range` on Linux, which neither writes the
//!   file's metadata nor empties the device's cache. After each flush the committer calls
//!   `fdatasync` on sled's data file through a handle of its own. sled's timed flush is off.
//! - **Blobs.** sled writes a page that is larger than a quarter of a segment to a file of its own,
//!   and never syncs that file. A page holds up to 17 records, so segments are as large as sled takes
//!   and [`MAX_PAYLOAD_BYTES`](super::MAX_PAYLOAD_BYTES) keeps 17 of the largest records below the
//!   quarter. No record is ever in a blob.
//! - **Reuse of space.** sled may overwrite a segment once all its pages were written again elsewhere
//!   and flushed *in its sense*. A group writes less than one segment, so between the copy and the
//!   reuse there is always an `fdatasync` of ours.
//! - **Panics.** sled panics on some damage. Every call is fenced; a panic counts as a failed call.
//! - **Erasing.** A value that was replaced stays in sled's file until the place is used again, which
//!   may be never. What an erasure leaves of a record is written to the newest database, wherever the
//!   record itself is, and stands for it from then on. [`SledLog::compact`] then seals everything, so that
//!   the databases and the volumes that held what was erased are gone. sled uses paths only while it opens
//!   (but for blobs, of which there are none), so that a directory can be renamed under it.
//!
//! A failed write or sync ends writing for good: what the disk holds past the last durable record is
//! unknown, so every append is refused from then on. Reads, which end at the durable watermark, go on.

mod layers;
mod seal;
mod shadow;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    AppendError, Appended, Appending, Batch, Follower, Log, ReadError, StreamHeads, VerifyError,
    check_expected, check_size, erased_by,
    tip_file::{self, Noted, TipFile},
    verify::{Checker, Fault},
};
use crate::{
    clock::Clock,
    disk,
    record::{
        Offset, Record,
        codec::{self, CodecError, Frame, Tip},
        command::{Body as _, LogErase},
    },
};
use layers::Layers;
use seal::Sealer;
pub(crate) use shadow::Shadow;

/// How a [`SledLog`] is opened.
#[derive(Clone, Debug)]
pub struct SledOptions {
    /// The server's data directory. The log is in its sub-directory `log`.
    pub data_dir: PathBuf,
    /// Where record times come from.
    pub clock: Clock,
    /// Appends are refused while the disk has less room than this, in bytes.
    pub min_free_bytes: u64,
    /// How much memory sled may use to cache pages, in bytes.
    pub cache_bytes: u64,
    /// How many of the last records are verified on open.
    pub verify_tail: u64,
    /// How many records a database takes before they are sealed.
    pub seal_records: u64,
    /// How many bytes of frames make a volume.
    pub volume_bytes: u64,
}

impl SledOptions {
    /// The defaults for the log in `data_dir`.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            clock: Clock::system(),
            min_free_bytes: DEFAULT_MIN_FREE_BYTES,
            cache_bytes: DEFAULT_CACHE_BYTES,
            verify_tail: DEFAULT_VERIFY_TAIL,
            seal_records: DEFAULT_SEAL_RECORDS,
            volume_bytes: DEFAULT_VOLUME_BYTES,
        }
    }
}

/// Room for a few groups and for what sled writes besides them, so that sled itself never meets a
/// full disk.
pub const DEFAULT_MIN_FREE_BYTES: u64 = 64 * 1024 * 1024;

/// The newest records are what is read most; the kernel caches the file besides.
pub const DEFAULT_CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// More than a crash can touch, and still only milliseconds of work.
pub const DEFAULT_VERIFY_TAIL: u64 = 1000;

/// What sled looks through at a start after a crash, which takes it some two microseconds by record.
pub const DEFAULT_SEAL_RECORDS: u64 = 100_000;

/// Enough that there are few of them, little enough that one is written anew within a second.
pub const DEFAULT_VOLUME_BYTES: u64 = 64 * 1024 * 1024;

/// Databases that have come to this size are sealed, whatever they hold.
const SEAL_BYTES: u64 = 512 * 1024 * 1024;

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error(
        "another logcabin{} is using the directory {}; stop it first or give this one another data directory",
        .pid.map_or_else(String::new, |pid| format!(" (process {pid})")),
        .data_dir.display()
    )]
    InUse {
        /// The data directory.
        data_dir: PathBuf,
        /// The other process, if it said who it is.
        pid: Option<u32>,
    },
    /// A directory or file could not be made or opened.
    #[error("{} cannot be used to keep data: {source}", .path.display())]
    Io {
        /// What could not be opened.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store below could not be opened or read.
    #[error("the log's store {} cannot be used: {reason}; `logcabin restore --from-archive` can rebuild it from an archive", .path.display())]
    Store {
        /// The store's directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Records that were durable are gone or have been replaced.
    #[error(
        "the log ends at record {found}, but record {known} was durable{}: records were lost; \
         `logcabin restore --from-archive` can rebuild the log from an archive (to go on without them, \
         remove {})",
        if *.found < *.known { "" } else { " with other contents" },
        .note.display()
    )]
    Lost {
        /// The last record that is there.
        found: Offset,
        /// A record that was durable before.
        known: Offset,
        /// The file that says so.
        note: PathBuf,
    },
    /// An import into the directory did not come to its end.
    #[error(
        "an import into {} did not come to its end; `logcabin import` with the same directories begins it anew",
        .0.display()
    )]
    Importing(PathBuf),
    /// The end of the log is damaged.
    #[error(
        "the log is damaged at {0}; `logcabin restore --from-archive` can rebuild it from an archive"
    )]
    Damaged(#[source] VerifyError),
}

/// A log in an embedded sled database. See the module's documentation.
pub struct SledLog {
    layers: Current,
    shared: Arc<Shared>,
    queue: mpsc::Sender<Message>,
    idle: Mutex<Option<Idle>>,
    sealer: Arc<Sealer>,
    seal_records: u64,
    /// The threads, in the order in which they end.
    threads: Mutex<Vec<JoinHandle<()>>>,
    log_dir: PathBuf,
    // Released last: only then may another process open the directory.
    _lock: File,
}

/// All that the log is kept in, of which sealing makes other ones.
type Current = Arc<RwLock<Arc<Layers>>>;

/// What the committer is made from when the log is started.
struct Idle {
    queue: mpsc::Receiver<Message>,
    tip: Tip,
    clock: Clock,
}

/// What the committer and the log's users both see.
struct Shared {
    durable: watch::Sender<Offset>,
    failure: watch::Sender<Option<Arc<str>>>,
    /// The last durable record, for the note of it.
    tip: Mutex<Noted>,
    closing: AtomicBool,
    /// Set once nothing more will become durable.
    ended: AtomicBool,
    min_free_bytes: AtomicU64,
}

enum Message {
    Append(Request),
    /// Go on in another database.
    Swap(Swap),
    /// Wakes the committer so that it sees `closing`.
    Close,
}

struct Request {
    batch: Batch,
    reply: oneshot::Sender<Result<Appended, AppendError>>,
}

/// An empty database to go on in. The reply says whether that is so.
struct Swap {
    number: u64,
    store: Arc<Store>,
    reply: oneshot::Sender<bool>,
}

/// How many batches may wait for the committer; further appends wait outside the queue. Some
/// multiples of what the busiest measured load has under way.
const QUEUE_BATCHES: usize = 1024;

/// How many batches share one sync.
const MAX_GROUP_BATCHES: usize = QUEUE_BATCHES;

/// With how many batches in a group it is followed by the next no sooner than [`PACE`] after it began: a sync wakes all
/// of sled's threads, and costs as much as some of the messages that wait for it. About what a sync takes on a good disk.
const CROWD: usize = 4;
const PACE: Duration = Duration::from_micros(1500);

/// A group is closed once its payloads reach this. With the largest batch on top (4 MiB) and sled
/// writing each record up to about twice, a group stays below one segment (16 MiB).
const MAX_GROUP_BYTES: usize = 2 * 1024 * 1024;

impl fmt::Debug for SledLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledLog")
            .field("dir", &self.log_dir)
            .field("durable", &*self.shared.durable.borrow())
            .finish_non_exhaustive()
    }
}

impl SledLog {
    /// Opens the log, or makes an empty one: verifies its last records and drops a last batch that
    /// is not whole. Blocks.
    ///
    /// # Errors
    /// When another process uses it, the disk fails, or the log's end is damaged.
    pub fn open(options: SledOptions) -> Result<Self, OpenError> {
        let lock = lock_data_dir(&options.data_dir)?;
        if importing_dir(&options.data_dir).exists() {
            return Err(OpenError::Importing(options.data_dir));
        }
        let dir = log_dir(&options.data_dir);
        make_private_dir(&dir)?;
        let layers = Layers::open(&dir, options.cache_bytes)?;
        let tip = match recover(&layers, &dir, options.verify_tail) {
            // Who verifies every record asks for the first fault, wherever it was met.
            Err(OpenError::Damaged(met)) if options.verify_tail == 0 => {
                return Err(OpenError::Damaged(first_fault(&layers).unwrap_or(met)));
            }
            recovered => recovered?,
        };
        match check_noted(&layers, &dir, &tip) {
            // What is there may have a fault before its end.
            Err(lost @ OpenError::Lost { .. }) if options.verify_tail == 0 => {
                let fault = first_fault(&layers).filter(|fault| fault.offset <= tip.offset);
                return Err(fault.map_or(lost, OpenError::Damaged));
            }
            checked => checked?,
        }
        Ok(Self::with_layers(layers, tip, lock, options))
    }

    fn with_layers(layers: Layers, tip: Tip, lock: File, options: SledOptions) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE_BATCHES);
        let shared = Arc::new(Shared {
            durable: watch::Sender::new(tip.offset),
            failure: watch::Sender::new(None),
            tip: Mutex::new(Noted { offset: tip.offset, chain: tip.chain }),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            min_free_bytes: AtomicU64::new(options.min_free_bytes),
        });
        let layers = Arc::new(RwLock::new(Arc::new(layers)));
        let log_dir = log_dir(&options.data_dir);
        let sealer = Arc::new(Sealer {
            layers: Arc::clone(&layers),
            shared: Arc::clone(&shared),
            queue: queue.clone(),
            log_dir: log_dir.clone(),
            cache_bytes: options.cache_bytes,
            volume_bytes: options.volume_bytes,
            turn: Mutex::new(()),
        });
        Self {
            layers,
            shared,
            queue,
            idle: Mutex::new(Some(Idle { queue: receiver, tip, clock: options.clock })),
            sealer,
            seal_records: options.seal_records,
            threads: Mutex::default(),
            log_dir,
            _lock: lock,
        }
    }

    /// Why the log takes no more writes, once a write or sync has failed.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.shared.failure.subscribe()
    }

    /// Changes the room that the disk must have for appends, in bytes.
    pub fn set_min_free_bytes(&self, bytes: u64) {
        self.shared.min_free_bytes.store(bytes, Ordering::Relaxed);
    }

    fn current(&self) -> Arc<Layers> {
        Arc::clone(&self.layers.read())
    }

    /// The bytes that the log takes on the disk.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn disk_bytes(&self) -> io::Result<u64> {
        self.current().disk_bytes()
    }

    /// The offset up to which every erasure has left the disk, not only the log.
    ///
    /// # Errors
    /// When the store fails.
    pub fn compacted(&self) -> Result<Offset, ReadError> {
        Ok(self.current().compacted()?)
    }

    /// Seals all there is, while appends and reads go on: what was erased is then off the disk. `pause` is
    /// called after each piece; the compaction is given up when it says false. Blocks.
    ///
    /// Killed at any moment it leaves the whole log; the next start takes it up again.
    ///
    /// # Errors
    /// When there is no room for a second copy of what is written anew, a disk fails, a record is damaged,
    /// or the log is closed; the log goes on as it was.
    pub fn compact(&self, pause: impl FnMut() -> bool) -> Result<Compacted, CompactError> {
        if self.idle.lock().is_some() {
            return Err(CompactError::Closed);
        }
        let before = self.disk_bytes().map_err(CompactError::Disk)?;
        self.sealer.seal(pause)?;
        let after = self.disk_bytes().map_err(CompactError::Disk)?;
        Ok(Compacted { before, after })
    }

    async fn outcome(
        &self,
        reply: oneshot::Receiver<Result<Appended, AppendError>>,
    ) -> Result<Appended, AppendError> {
        reply.await.unwrap_or_else(|_| Err(self.shared.gone()))
    }
}

impl Shared {
    /// What an append gets that no committer takes any more.
    fn gone(&self) -> AppendError {
        self.failure.borrow().clone().map_or(AppendError::Closed, AppendError::Failed)
    }

    fn fail(&self, reason: &str) -> AppendError {
        let reason: Arc<str> = reason.into();
        tracing::error!(%reason, "the log failed and takes no more writes");
        self.failure.send_replace(Some(Arc::clone(&reason)));
        AppendError::Failed(reason)
    }
}

impl Log for SledLog {
    fn append(&self, batch: Batch) -> Appending<'_> {
        if let Err(error) = check_size(&batch) {
            return Box::pin(std::future::ready(Err(error)));
        }
        if self.shared.closing.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(self.shared.gone())));
        }
        let (reply, outcome) = oneshot::channel();
        // Queued now rather than when first polled: a caller that goes away does not take it back.
        match self.queue.try_send(Message::Append(Request { batch, reply })) {
            Ok(()) => Box::pin(self.outcome(outcome)),
            Err(mpsc::error::TrySendError::Full(message)) => Box::pin(async move {
                if self.queue.send(message).await.is_err() {
                    return Err(self.shared.gone());
                }
                self.outcome(outcome).await
            }),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                Box::pin(std::future::ready(Err(self.shared.gone())))
            }
        }
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        if offset == Offset::ZERO || offset > *self.shared.durable.borrow() {
            return Ok(None);
        }
        let frame = self.current().get(offset)?.ok_or(ReadError::Missing(offset))?;
        decode(offset, &frame).map(Some)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        let durable = *self.shared.durable.borrow();
        self.current().read(from.max(Offset::new(1)), durable, limit)
    }

    fn off_disk(&self) -> Result<Offset, ReadError> {
        self.compacted()
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        self.shared.durable.subscribe()
    }

    fn start(&self, heads: StreamHeads, follower: Follower) {
        let Some(Idle { queue, tip, clock }) = self.idle.lock().take() else {
            tracing::error!("the log was started twice; the second start is ignored");
            return;
        };
        let committer = Committer {
            layers: Arc::clone(&self.layers),
            shared: Arc::clone(&self.shared),
            clock,
            tip,
            heads,
            follower,
            began: Instant::now(),
            crowded: false,
        };
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work)
        };
        let mut threads = self.threads.lock();
        match spawn("log-committer", Box::new(move || committer.run(queue))) {
            Ok(handle) => threads.push(handle),
            Err(error) => {
                self.shared.fail(&format!("the committer's thread could not be started: {error}"));
            }
        }
        let (sealer, records) = (Arc::clone(&self.sealer), self.seal_records);
        match spawn("log-sealer", Box::new(move || sealer.run(records, SEAL_BYTES))) {
            Ok(handle) => threads.push(handle),
            Err(error) => tracing::error!(%error, "old records are not sealed"),
        }
        let (shared, dir) = (Arc::clone(&self.shared), self.log_dir.clone());
        match spawn("log-tip", Box::new(move || note_tip(&shared, &dir))) {
            Ok(handle) => threads.push(handle),
            Err(error) => tracing::error!(%error, "how far the log has come is not noted"),
        }
    }

    fn close(&self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // A full queue needs no wake-up: the committer looks at `closing` after each group.
        let _ = self.queue.try_send(Message::Close);
        drop(self.idle.lock().take());
        for thread in self.threads.lock().drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            // The note of the last record comes after the committer.
            self.shared.ended.store(name == "log-tip", Ordering::SeqCst);
            thread.thread().unpark();
            if thread.join().is_err() {
                self.shared.fail(&format!("the thread {name} panicked"));
            }
        }
    }
}

/// Notes how far the log has come, now and then and at the end. Of no consequence to those who
/// append: a note that cannot be written is tried again.
fn note_tip(shared: &Shared, dir: &Path) {
    let mut noted = Offset::ZERO;
    loop {
        let ended = shared.ended.load(Ordering::SeqCst);
        let tip = *shared.tip.lock();
        if tip.offset > noted {
            match TipFile::open(dir).and_then(|file| file.write(tip)) {
                Ok(()) => noted = tip.offset,
                Err(error) => tracing::warn!(%error, "how far the log has come cannot be noted"),
            }
        }
        if ended {
            return;
        }
        std::thread::park_timeout(NOTE_EVERY);
    }
}

/// How often the end of the log is noted: what is older than this cannot be lost unseen.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Checks that the log still holds what was durable when its end was last noted.
fn check_noted(layers: &Layers, dir: &Path, tip: &Tip) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { path: tip_file::path(dir), source };
    let Some(known) = tip_file::read(dir).map_err(failed)? else { return Ok(()) };
    let unusable = |error: StoreError| OpenError::Store { path: dir.to_owned(), reason: error.0 };
    let frame = layers.get(known.offset).map_err(unusable)?;
    let record = frame.and_then(|frame| Frame::decode(&frame).ok()).map(|frame| frame.record);
    if known.offset == Offset::ZERO || record.is_some_and(|record| record.chain == known.chain) {
        return Ok(());
    }
    let note = tip_file::path(dir);
    Err(OpenError::Lost { found: tip.offset, known: known.offset, note })
}

impl Drop for SledLog {
    fn drop(&mut self) {
        self.close();
    }
}

/// The one thread that writes.
struct Committer {
    layers: Current,
    shared: Arc<Shared>,
    clock: Clock,
    tip: Tip,
    heads: StreamHeads,
    follower: Follower,
    /// When the last group began.
    began: Instant,
    /// Whether it was of many.
    crowded: bool,
}

/// The records of a group, on their way to the disk.
#[derive(Default)]
struct Group {
    frames: Vec<(Offset, Vec<u8>)>,
    records: Vec<Arc<Record>>,
}

impl Committer {
    fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut requests = Vec::new();
        while let Some(message) = queue.blocking_recv() {
            self.pace();
            self.take(message, &mut queue, &mut requests);
            if self.shared.closing.load(Ordering::SeqCst) {
                queue.close();
                while let Ok(message) = queue.try_recv() {
                    self.take(message, &mut queue, &mut requests);
                }
                return;
            }
        }
    }

    /// Waits for more to share the next group, if there are likely to be more.
    fn pace(&mut self) {
        if self.crowded
            && let Some(left) = PACE.checked_sub(self.began.elapsed())
        {
            std::thread::sleep(left);
        }
        self.began = Instant::now();
    }

    /// Commits the group that begins with `message`, and what was met behind it.
    fn take(
        &mut self,
        message: Message,
        queue: &mut mpsc::Receiver<Message>,
        requests: &mut Vec<Request>,
    ) {
        let swap = gather(message, queue, requests);
        self.commit(requests);
        if let Some(Swap { number, store, reply }) = swap {
            // After a failure nothing may look as if it were sealed or durable.
            let goes_on = self.shared.failure.borrow().is_none();
            if goes_on {
                let mut layers = self.layers.write();
                *layers = Arc::new(layers.with_tail(number, store, self.tip.offset));
            }
            let _ = reply.send(goes_on);
        }
    }

    /// Commits one group and answers all of it.
    fn commit(&mut self, requests: &mut Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        if let Err(error) = self.may_write() {
            for request in requests.drain(..) {
                let _ = request.reply.send(Err(error.clone()));
            }
            return;
        }
        let now_ms = self.clock.now_ms();
        let mut group = Group::default();
        self.crowded = requests.len() >= CROWD;
        let mut answers = Vec::with_capacity(requests.len());
        for Request { batch, reply } in requests.drain(..) {
            answers.push((reply, self.accept(batch, now_ms, &mut group)));
        }
        if let Err(error) = self.publish(group) {
            // Nothing in the group is known to be on disk, nor what its refusals were decided on.
            for (reply, _) in answers {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
        for (reply, answer) in answers {
            // Whoever asked may be gone; what was appended stays.
            let _ = reply.send(answer);
        }
    }

    fn may_write(&self) -> Result<(), AppendError> {
        if let Some(reason) = self.shared.failure.borrow().clone() {
            return Err(AppendError::Failed(reason));
        }
        let reserve = self.shared.min_free_bytes.load(Ordering::Relaxed);
        let dir = match self.layers.read().tail() {
            Ok(tail) => tail.dir.clone(),
            Err(error) => return Err(AppendError::Full(error.0)),
        };
        let free = free_bytes(&dir)
            .map_err(|error| AppendError::Full(format!("free space is unknown: {error}")))?;
        if free < reserve {
            return Err(AppendError::Full(format!(
                "{free} bytes are free on the disk of {}, {reserve} are kept in reserve",
                dir.display()
            )));
        }
        Ok(())
    }

    /// Adds `batch` to the group, as a whole or not at all.
    fn accept(
        &mut self,
        batch: Batch,
        now_ms: u64,
        group: &mut Group,
    ) -> Result<Appended, AppendError> {
        check_expected(&self.heads, &batch)?;
        let mut tip = self.tip.clone();
        let first = tip.offset.next();
        let mut accepted = Vec::with_capacity(batch.records.len());
        let mut remaining = u32::try_from(batch.records.len())
            .map_err(|_| AppendError::TooLarge("too many records".to_owned()))?;
        for new in batch.records {
            remaining -= 1;
            accepted.push(
                tip.extend(new, remaining, now_ms)
                    .map_err(|error| AppendError::TooLarge(error.to_string()))?,
            );
        }
        let (layers, durable) = (Arc::clone(&self.layers.read()), *self.shared.durable.borrow());
        let get = |offset: Offset| match layers.get(offset)? {
            Some(frame) if offset <= durable => decode(offset, &frame).map(Some),
            _ => Ok(None),
        };
        for left in erased_by(accepted.iter().map(|(record, _)| record), get)? {
            let frame = codec::encode_frame(&left)
                .map_err(|error| AppendError::Erase(error.to_string()))?;
            group.frames.push((left.offset(), frame));
        }
        for (record, frame) in accepted {
            self.heads.insert(record.header.stream.clone(), record.offset());
            group.frames.push((record.offset(), frame));
            group.records.push(Arc::new(record));
        }
        self.tip = tip;
        Ok(Appended { first, last: self.tip.offset })
    }

    /// Makes the group durable, then visible.
    fn publish(&mut self, group: Group) -> Result<(), AppendError> {
        if group.records.is_empty() {
            return Ok(());
        }
        let layers = Arc::clone(&self.layers.read());
        let written = layers.tail().and_then(|tail| tail.put(group.frames));
        written.map_err(|error| self.shared.fail(&error.0))?;
        *self.shared.tip.lock() = Noted { offset: self.tip.offset, chain: self.tip.chain };
        self.shared.durable.send_replace(self.tip.offset);
        catch_unwind(AssertUnwindSafe(|| (self.follower)(&group.records))).map_err(|panic| {
            self.shared.fail(&format!(
                "the records up to {} are durable, but applying them panicked: {}",
                self.tip.offset,
                panic_text(&*panic)
            ))
        })
    }
}

/// Takes what is queued behind `message`, up to the size of a group or to a change of the database.
fn gather(
    message: Message,
    queue: &mut mpsc::Receiver<Message>,
    requests: &mut Vec<Request>,
) -> Option<Swap> {
    let mut bytes = 0;
    let mut next = Some(message);
    while let Some(message) = next {
        match message {
            Message::Append(request) => {
                for new in &request.batch.records {
                    // An erasure writes other records again.
                    let erases = new.kind == LogErase::KIND.name;
                    bytes += if erases { MAX_GROUP_BYTES } else { new.payload.len() };
                }
                requests.push(request);
            }
            Message::Swap(swap) => return Some(swap),
            Message::Close => {}
        }
        if bytes >= MAX_GROUP_BYTES || requests.len() >= MAX_GROUP_BATCHES {
            return None;
        }
        next = queue.try_recv().ok();
    }
    None
}

/// Drops a last batch that is not whole, verifies the last records, and gives the log's end.
fn recover(layers: &Layers, dir: &Path, verify_tail: u64) -> Result<Tip, OpenError> {
    let unusable = |error: StoreError| OpenError::Store { path: dir.to_owned(), reason: error.0 };
    let damaged = |offset, fault| OpenError::Damaged(VerifyError { offset, fault });
    let load = |offset| -> Result<Record, OpenError> {
        let frame = layers.get(offset).map_err(unusable)?;
        let frame = frame.ok_or_else(|| damaged(offset, Fault::Missing))?;
        Frame::decode(&frame)
            .map(|frame| frame.record)
            .map_err(|error| damaged(offset, Fault::Damaged(error)))
    };

    let Some(end) = layers.last().map_err(unusable)? else { return Ok(Tip::default()) };
    if end == Offset::ZERO {
        return Err(damaged(end, Fault::OutOfOrder { found: end }));
    }
    let mut last = end;
    let unfinished = load(end)?.header.batch_remaining;
    if unfinished != 0 && end <= layers.before_tail {
        // Only what was written last can be interrupted.
        return Err(damaged(end.next(), Fault::Unfinished(unfinished)));
    }
    if unfinished != 0 {
        while last > Offset::ZERO && load(last)?.header.batch_remaining != 0 {
            last = last.prev();
        }
        tracing::warn!(
            first = last.next().get(),
            last = end.get(),
            "the last batch of the log is not whole; its records are dropped"
        );
        let mut torn = sled::Batch::default();
        for offset in last.get() + 1..=end.get() {
            torn.remove(&key(Offset::new(offset)));
        }
        layers.tail().and_then(|tail| tail.write(torn)).map_err(unusable)?;
    }
    if last == Offset::ZERO {
        return Ok(Tip::default());
    }

    load(Offset::new(1))?;
    let before = Offset::new(last.get().saturating_sub(verify_tail));
    let mut checker =
        if before == Offset::ZERO { Checker::from_start() } else { Checker::after(&load(before)?) };
    let mut tip = Tip::default();
    while checker.last() < last {
        let record = load(checker.last().next())?;
        checker.check(&record).map_err(OpenError::Damaged)?;
        tip = Tip::after(&record);
    }
    if tip.offset != last {
        tip = Tip::after(&load(last)?);
    }
    Ok(tip)
}

/// The first fault of a log that is known to have one.
fn first_fault(layers: &Layers) -> Option<VerifyError> {
    let mut checker = Checker::from_start();
    loop {
        let offset = checker.last().next();
        let fault = |fault| Some(VerifyError { offset, fault });
        match layers.get(offset).ok()? {
            None => return fault(Fault::Missing),
            Some(frame) => match Frame::decode(&frame) {
                Err(error) => return fault(Fault::Damaged(error)),
                Ok(frame) => {
                    if let Err(error) = checker.check(&frame.record) {
                        return Some(error);
                    }
                }
            },
        }
    }
}

/// What a compaction came to: the bytes that the log took on the disk before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

/// Why a log was not compacted. It goes on as it was.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    /// There is no room for what is written anew beside what is there.
    #[error("what is written anew and the reserve take {needed} bytes, {free} are free")]
    Room {
        /// The bytes that must be free.
        needed: u64,
        /// Those that are.
        free: u64,
    },
    /// A store failed.
    #[error("{0}")]
    Store(String),
    /// A directory could not be made, removed or exchanged.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The disk failed.
    #[error(transparent)]
    Disk(io::Error),
    /// It was given up.
    #[error("it was given up")]
    GivenUp,
    /// The log takes no writes: it is not started, or closed.
    #[error("the log takes no writes")]
    Closed,
}

impl From<StoreError> for CompactError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.0)
    }
}

fn remove_dir(path: &Path) -> Result<(), OpenError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(OpenError::Io { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// What is in a log's directory, for one who has the data directory's lock and appends nothing.
pub(crate) struct AtRest(Layers);

impl AtRest {
    /// Opens what is in `log_dir`, which must be there. Blocks.
    pub(crate) fn open(log_dir: &Path) -> Result<Self, OpenError> {
        Layers::open(log_dir, DEFAULT_CACHE_BYTES).map(Self)
    }

    /// The record at `offset`.
    pub(crate) fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        let frame = self.0.get(offset)?;
        frame.map(|frame| decode(offset, &frame)).transpose()
    }

    /// The last record.
    pub(crate) fn last(&self) -> Result<Option<Record>, ReadError> {
        self.0.last()?.map_or(Ok(None), |last| self.get(last))
    }

    /// Notes that nothing that was erased up to `offset` was ever written to this directory.
    pub(crate) fn note_compacted(&self, offset: Offset) -> Result<(), StoreError> {
        self.0.tail()?.note_compacted(offset)
    }
}

/// The directory of the log in a data directory.
#[must_use]
pub fn log_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log")
}

/// Where an import makes the log of a data directory, until all of it is there.
pub(crate) fn importing_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.importing")
}

/// Where a restore in place has the log that is about to take the name of the one that is there, and then that one.
pub(crate) fn ready_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.ready")
}

/// Where the log is that is there while the two exchange their names, if that takes more than one step.
pub(crate) fn swapping_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("log.swapping")
}

/// Whether there is a log in a data directory, be it that it is about to get its name.
pub(crate) fn has_log(data_dir: &Path) -> bool {
    log_dir(data_dir).is_dir() || swapping_dir(data_dir).is_dir()
}

/// Makes the data directory, if need be, and takes the lock that keeps other processes out of it. The log has its name
/// then, also if a restore was interrupted.
pub(crate) fn lock_data_dir(data_dir: &Path) -> Result<File, OpenError> {
    make_private_dir(data_dir)?;
    let path = data_dir.join("lock");
    let failed = |source| OpenError::Io { path: path.clone(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(OpenError::InUse { data_dir: data_dir.to_owned(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    // Only for the message that another process prints.
    file.set_len(0).map_err(failed)?;
    file.rewind().map_err(failed)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
    remove_dir(&shadow::shadow_dir(data_dir))?;
    let swapping = swapping_dir(data_dir);
    disk::finish_exchange(&log_dir(data_dir), &ready_dir(data_dir), &swapping)
        .map_err(|source| OpenError::Io { path: swapping, source })?;
    Ok(file)
}

/// Makes a directory that only its owner can enter, with those above it.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { path: path.to_owned(), source };
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
    }
    Ok(())
}

/// The bytes that an ordinary user may still write on the disk of `path`.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// sled with its calls fenced and its writes made durable.
pub(crate) struct Store {
    records: sled::Tree,
    /// What is known of the store itself.
    about: sled::Tree,
    db: sled::Db,
    /// sled's data file, through a handle of our own.
    data: File,
    dir: PathBuf,
}

/// A call into sled, or a sync, failed.
#[derive(Debug)]
pub(crate) struct StoreError(pub(crate) String);

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self::Storage(error.0)
    }
}

/// The largest segment that sled takes, see the module's documentation. Fixed for ever: sled refuses
/// to open a database with another one.
const SEGMENT_BYTES: usize = 16 * 1024 * 1024;

/// The name of the tree.
const TREE: &str = "records";

/// The name of the other tree, and its key: the offset up to which all that was erased is off the
/// disk.
const ABOUT: &str = "about";
const COMPACTED: &str = "compacted";

/// sled's own threads can hold its lock for a moment after its last handle in this process was
/// dropped. Nobody else can have it: ours is taken first.
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
        let mut retries = 0;
        let db = loop {
            match fenced("opening the database", || config.open()) {
                Err(error)
                    if error.0.contains("could not acquire lock") && retries < LOCK_RETRIES =>
                {
                    retries += 1;
                    std::thread::sleep(LOCK_RETRY_PAUSE);
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

    /// Writes `frames`, all or none of them, and returns once they are durable.
    fn put(&self, mut frames: Vec<(Offset, Vec<u8>)>) -> Result<(), StoreError> {
        if frames.len() == 1
            && let Some((offset, frame)) = frames.pop()
        {
            // What holds a batch together is written, and waited for, by itself.
            fenced("writing", || self.records.insert(key(offset), frame))?;
            return self.sync();
        }
        let mut batch = sled::Batch::default();
        frames.into_iter().for_each(|(offset, frame)| batch.insert(&key(offset), frame));
        self.write(batch)
    }

    /// Applies `batch`, whole or not at all, and returns once it is durable.
    pub(crate) fn write(&self, batch: sled::Batch) -> Result<(), StoreError> {
        fenced("writing", || self.records.apply_batch(batch))?;
        self.sync()
    }

    fn compacted(&self) -> Result<Offset, StoreError> {
        let value = fenced("reading", || self.about.get(COMPACTED))?;
        let value = value.and_then(|value| <[u8; 8]>::try_from(&*value).ok());
        Ok(value.map_or(Offset::ZERO, |value| Offset::new(u64::from_be_bytes(value))))
    }

    /// Notes that nothing that was erased up to `offset` was ever written to this store.
    pub(crate) fn note_compacted(&self, offset: Offset) -> Result<(), StoreError> {
        fenced("writing", || self.about.insert(COMPACTED, &key(offset)))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), StoreError> {
        fenced("flushing", || self.db.flush())?;
        self.data
            .sync_data()
            .map_err(|error| StoreError(format!("syncing the data file failed: {error}")))
    }

    pub(crate) fn get(&self, offset: Offset) -> Result<Option<Bytes>, StoreError> {
        let value = fenced("reading", || self.records.get(key(offset)))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// The offsets up to `last` that are here.
    fn offsets_to(&self, last: Offset) -> impl Iterator<Item = Result<Offset, StoreError>> {
        let mut keys = self.records.range(..=key(last)).keys();
        std::iter::from_fn(move || fenced("reading", || keys.next().transpose()).transpose())
            .map(|key| offset(&key?))
    }

    /// The bytes that it takes on the disk.
    fn disk_bytes(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt as _;
        // Blocks that were given back count for nothing.
        Ok(self.data.metadata()?.blocks() * 512)
    }

    /// The offset of the last record.
    pub(crate) fn last(&self) -> Result<Option<Offset>, StoreError> {
        let Some((key, _)) = fenced("reading", || self.records.last())? else { return Ok(None) };
        offset(&key).map(Some)
    }
}

fn offset(key: &[u8]) -> Result<Offset, StoreError> {
    let key = <[u8; 8]>::try_from(key)
        .map_err(|_| StoreError(format!("a key of {} bytes is in the tree", key.len())))?;
    Ok(Offset::new(u64::from_be_bytes(key)))
}

pub(crate) const fn key(offset: Offset) -> [u8; 8] {
    offset.get().to_be_bytes()
}

fn decode(offset: Offset, frame: &Bytes) -> Result<Record, ReadError> {
    let damaged = |source| ReadError::Damaged { offset, source };
    let record = Frame::decode(frame).map_err(damaged)?.record;
    if record.offset() != offset {
        let value = record.offset().get();
        return Err(damaged(CodecError::Value { field: "offset", value }));
    }
    Ok(record)
}

/// Calls into sled, taking a panic for a failure.
fn fenced<T>(what: &str, call: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
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
