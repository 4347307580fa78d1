//! The default log: new records in an embedded sled 0.34 tree, old ones in volumes.
//!
//! Key: an offset as 8 bytes, big-endian. Value: the frames of the records that were committed
//! together, compressed (`group`, and `log_format.md`).
//!
//! A database takes the newest records. When it is full, a new one takes over and its records are
//! *sealed*: they are written to volumes ([`super::volume`]), which take a fifth of the space and
//! no time at startup, and the database is removed. `layers` reads all of it as one log, and `seal`
//! does the sealing.
//!
//! One thread, the *committer*, does all writing. It takes every queued batch and checks each
//! against the stream heads as the batches before it leave them. It writes the accepted batches
//! atomically (as one sled batch, or as a single insert for one record) and syncs once. Only then
//! does it publish them: first the watermark, then the follower, then the replies. A refusal waits
//! with the rest of its group, because the record that caused it may be in that group. After a
//! group of many, the committer waits a moment for the next one.
//!
//! `store` wraps sled and lists what is not left to it.
//!
//! **Erasing.** sled keeps a replaced value in its file until it reuses the place, which may be
//! never. What remains of an erased record is written to the newest database, wherever the record
//! itself is, and replaces it from then on. [`SledLog::compact`] then seals everything, which
//! removes the databases and volumes with the erased content. sled uses paths only while it opens
//! (except for blobs, and there are none), so a directory can be renamed while it is open.
//!
//! A failed write or sync ends writing until a restart. What the disk holds past the last durable
//! record is unknown, so every append is refused from then on. Reads end at the durable watermark
//! and go on.

mod committer;
mod data_dir;
mod database;
mod full_disk;
mod group;
mod layers;
mod ordered;
mod recent;
mod refusal;
mod repair;
mod seal;
mod shadow;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    fs::File,
    io,
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
    AppendError, Appended, Appending, Batch, Follower, LocalLog, Log, ReadError, StreamHeads,
    VerifyError,
    archive::ArchiveFallback,
    check_size,
    fault::Fault,
    tip_file::{self, DurableTip, TipFile},
    verify::Checker,
    volume::VolumeError,
};
use committer::{Committer, Message, QUEUE_BATCHES, Request, Work};
pub use data_dir::log_dir;
use data_dir::make_private_dir;
pub use data_dir::{has_log, importing_dir, lock_data_dir, ready_dir, swapping_dir};
#[cfg(test)]
use database::key;
pub use database::{Store, StoreError};
use layers::Layers;
use logcabin_base::clock::Clock;
use logcabin_record::{
    Offset, Record,
    codec::{CodecError, Frame, Tip},
};
use recent::Recent;
pub use repair::{RepairError, Repaired, repair};
use seal::Sealer;
pub use shadow::Shadow;

/// How a [`SledLog`] is opened.
#[derive(Clone, Debug)]
pub struct SledOptions {
    /// The server's data directory. The log is in its sub-directory `log`.
    pub data_dir: PathBuf,
    /// Where record times come from.
    pub clock: Clock,
    /// Appends are refused while the disk has less free space than this, in bytes.
    pub min_free_bytes: u64,
    /// How much memory may cache records, in bytes: half of it new ones, in sled, half old ones.
    pub cache_bytes: u64,
    /// How many of the last records are verified on open.
    pub verify_tail: u64,
    /// How many records a database takes before they are sealed.
    pub seal_records: u64,
    /// A volume is completed at this many bytes of frames.
    pub volume_bytes: u64,
    /// The archive, which replaces records of a damaged volume.
    pub archive: Option<PathBuf>,
}

impl SledOptions {
    /// The defaults for the log in `data_dir`.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            clock: Clock::system(),
            min_free_bytes: DEFAULT_MIN_FREE_BYTES,
            cache_bytes: DEFAULT_CACHE_BYTES,
            verify_tail: DEFAULT_VERIFY_TAIL,
            seal_records: DEFAULT_SEAL_RECORDS,
            volume_bytes: DEFAULT_VOLUME_BYTES,
            archive: None,
        }
    }
}

/// Space for a few groups and for sled's own overhead, so that sled itself never meets a full disk.
pub const DEFAULT_MIN_FREE_BYTES: u64 = 64 * 1024 * 1024;

/// Most reads are of the newest records. The kernel caches the file as well.
pub const DEFAULT_CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// More than a crash can affect, and still only milliseconds of work.
pub const DEFAULT_VERIFY_TAIL: u64 = 1000;

/// sled scans these at startup after a crash, about two microseconds for each.
pub const DEFAULT_SEAL_RECORDS: u64 = 100_000;

/// Large enough that there are few volumes, small enough that one is rewritten within a second.
pub const DEFAULT_VOLUME_BYTES: u64 = 64 * 1024 * 1024;

/// Databases of this size are sealed, however many records they hold.
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
        /// The other process, if its id is known.
        pid: Option<u32>,
    },
    /// A directory or file could not be made or opened.
    #[error("{} cannot be used to keep data: {source}", .path.display())]
    Io {
        /// What could not be opened.
        path: PathBuf,
        source: io::Error,
    },
    /// The underlying store could not be opened or read.
    #[error("the log's store {} cannot be used: {reason}; `logcabin restore --from-archive` can rebuild it from an archive", .path.display())]
    Store {
        /// The store's directory.
        path: PathBuf,
        reason: String,
    },
    /// The disk is full, and there is no space elsewhere for a copy to read from.
    #[error(
        "the disk of {} is full: free at least {room} bytes there, or make room in the directory for \
         temporary files, from which the log can be read meanwhile",
        .path.display()
    )]
    Full {
        /// The directory of the newest records.
        path: PathBuf,
        /// How many bytes have to be free.
        room: u64,
    },
    /// Records that were durable are missing or have been replaced.
    #[error(
        "the log ends at record {found}, but record {known} was durable{}: records were lost; \
         `logcabin restore --from-archive` can rebuild the log from an archive (to go on without them, \
         remove {})",
        if *.found < *.known { "" } else { " with other contents" },
        .note.display()
    )]
    Lost {
        /// The last record in the log.
        found: Offset,
        /// A record that was durable before.
        known: Offset,
        /// The file that notes it.
        note: PathBuf,
    },
    /// An import into the directory was interrupted.
    #[error(
        "an import into {} is incomplete; run `logcabin import` with the same directories again",
        .0.display()
    )]
    Importing(PathBuf),
    /// A volume of old records cannot be used.
    #[error("{0}; `logcabin verify --repair` can rebuild it from the archive")]
    Volume(#[source] VolumeError),
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
    /// The threads, in the order in which they are joined.
    threads: Mutex<Vec<JoinHandle<()>>>,
    log_dir: PathBuf,
    is_of_cluster: bool,
    // Released last: only then may another process open the directory.
    _lock: File,
}

/// The current databases and volumes; sealing replaces them.
type Current = Arc<RwLock<Arc<Layers>>>;

/// The parts of the committer, before the log is started.
struct Idle {
    queue: mpsc::Receiver<Message>,
    tip: Tip,
    clock: Clock,
}

/// State shared by the committer and the log's users.
struct Shared {
    durable: watch::Sender<Offset>,
    failure: watch::Sender<Option<Arc<str>>>,
    recent: Recent,
    /// The last durable record, for the tip file.
    tip: Mutex<DurableTip>,
    closing: AtomicBool,
    /// Set once nothing more will become durable.
    ended: AtomicBool,
    min_free_bytes: AtomicU64,
    /// Why the committer waits for space, while it does.
    full: Mutex<Option<String>>,
}

impl fmt::Debug for SledLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledLog")
            .field("dir", &self.log_dir)
            .field("durable", &*self.shared.durable.borrow())
            .finish_non_exhaustive()
    }
}

/// The file in the log's directory that says how far the log has followed the stream of a cluster.
pub(crate) const CLUSTER_FILE: &str = "cluster.json";

impl SledLog {
    /// Opens the log, or creates an empty one. Verifies its last records and drops an incomplete
    /// last batch. Blocks.
    pub fn open(options: SledOptions) -> Result<Self, OpenError> {
        let lock = lock_data_dir(&options.data_dir)?;
        if importing_dir(&options.data_dir).exists() {
            return Err(OpenError::Importing(options.data_dir));
        }
        let dir = log_dir(&options.data_dir);
        make_private_dir(&dir)?;
        let fallback = options.archive.as_deref().map(|dir| Arc::new(ArchiveFallback::new(dir)));
        let layers = Layers::open(&dir, options.cache_bytes, fallback)?;
        let tip = match recover(&layers, &dir, options.verify_tail) {
            // A caller that verifies every record wants the first fault, not the one met here.
            Err(OpenError::Damaged(met)) if options.verify_tail == 0 => {
                return Err(OpenError::Damaged(first_fault(&layers).unwrap_or(met)));
            }
            recovered => recovered?,
        };
        match check_noted(&layers, &dir, &tip) {
            // The remaining records may have a fault before their end.
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
            recent: Recent::default(),
            tip: Mutex::new(DurableTip { offset: tip.offset, chain: tip.chain }),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            min_free_bytes: AtomicU64::new(options.min_free_bytes),
            full: Mutex::default(),
        });
        let layers = Arc::new(RwLock::new(Arc::new(layers)));
        let log_dir = log_dir(&options.data_dir);
        let is_of_cluster = log_dir.join(CLUSTER_FILE).exists();
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
            is_of_cluster,
            _lock: lock,
        }
    }

    /// Why the log takes no more writes, once a write or sync has failed.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.shared.failure.subscribe()
    }

    /// Sets how much free space the disk must have for appends, in bytes.
    #[cfg(test)]
    fn set_min_free_bytes(&self, bytes: u64) {
        self.shared.min_free_bytes.store(bytes, Ordering::Relaxed);
    }

    fn current(&self) -> Arc<Layers> {
        Arc::clone(&self.layers.read())
    }

    /// The log's size on disk in bytes.
    pub fn disk_bytes(&self) -> io::Result<u64> {
        self.current().disk_bytes()
    }

    /// The offset up to which every erasure has left the disk, not only the log.
    pub fn compacted(&self) -> Result<Offset, ReadError> {
        Ok(self.current().compacted()?)
    }

    /// Seals everything while appends and reads go on. Afterwards erased content is off the disk.
    /// `pause` is called after each piece; if it returns false, the compaction is abandoned.
    /// Blocks.
    ///
    /// If it is killed, the log stays intact and the next start continues.
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
    /// The error of an append that no committer takes any more.
    fn gone(&self) -> AppendError {
        self.failure.borrow().clone().map_or(AppendError::Closed, AppendError::Failed)
    }

    fn fail(&self, reason: &str) -> AppendError {
        let reason: Arc<str> = reason.into();
        tracing::error!(%reason, "the log failed and no longer takes writes");
        self.failure.send_replace(Some(Arc::clone(&reason)));
        AppendError::Failed(reason)
    }
}

impl LocalLog for SledLog {
    fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        Self::failure(self)
    }

    fn refusal(&self) -> Option<AppendError> {
        Self::refusal(self)
    }

    fn compacted(&self) -> Result<Offset, ReadError> {
        Self::compacted(self)
    }

    fn compact(&self, pause: &mut dyn FnMut() -> bool) -> Result<Compacted, CompactError> {
        Self::compact(self, pause)
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
        if self.is_of_cluster {
            let reason = "it belongs to a node of a cluster, which is not running";
            return Box::pin(std::future::ready(Err(AppendError::Unavailable(reason.to_owned()))));
        }
        let (reply, outcome) = oneshot::channel();
        // Queued now rather than when first polled, so a caller that goes away does not cancel it.
        let request = Request { work: Work::Proposed(batch), queued: Instant::now(), reply };
        match self.queue.try_send(Message::Append(request)) {
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
        if let Some(recent) = self.shared.recent.read(offset, offset, 1) {
            return Ok(recent.into_iter().next());
        }
        let frame = self.current().get(offset)?.ok_or(ReadError::Missing(offset))?;
        decode(offset, &frame).map(Some)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        let (from, durable) = (from.max(Offset::new(1)), *self.shared.durable.borrow());
        match self.shared.recent.read(from, durable, limit) {
            Some(records) => Ok(records),
            None => self.current().read(from, durable, limit),
        }
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
        let committer = Committer::new(
            Arc::clone(&self.layers),
            Arc::clone(&self.shared),
            self.log_dir.clone(),
            clock,
            tip,
            heads,
            follower,
        );
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
            // The tip of the last record is written after the committer has ended.
            self.shared.ended.store(name == "log-tip", Ordering::SeqCst);
            thread.thread().unpark();
            if thread.join().is_err() {
                self.shared.fail(&format!("the thread {name} panicked"));
            }
        }
    }
}

/// Notes the end of the log, once a second and at shutdown. Appends do not depend on it: a note
/// that cannot be written is retried.
fn note_tip(shared: &Shared, dir: &Path) {
    let (mut noted, mut failing) = (Offset::ZERO, false);
    loop {
        let ended = shared.ended.load(Ordering::SeqCst);
        let tip = *shared.tip.lock();
        if tip.offset > noted {
            match TipFile::open(dir).and_then(|file| file.write(tip)) {
                Ok(()) => (noted, failing) = (tip.offset, false),
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "how far the log has come cannot be noted");
                    }
                    failing = true;
                }
            }
        }
        if ended {
            return;
        }
        std::thread::park_timeout(NOTE_EVERY);
    }
}

/// How often the end of the log is noted. The loss of older records is always detected.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Checks that the log still holds the record that the tip file notes.
fn check_noted(layers: &Layers, dir: &Path, tip: &Tip) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { path: tip_file::path(dir), source };
    let Some(known) = tip_file::read(dir).map_err(failed)? else { return Ok(()) };
    let unusable =
        |error: StoreError| OpenError::Store { path: dir.to_owned(), reason: error.to_string() };
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

/// Drops an incomplete last batch, verifies the last records, and returns the log's end.
fn recover(layers: &Layers, dir: &Path, verify_tail: u64) -> Result<Tip, OpenError> {
    let unusable =
        |error: StoreError| OpenError::Store { path: dir.to_owned(), reason: error.to_string() };
    let damaged = |offset, fault| OpenError::Damaged(VerifyError { offset, fault });
    let load = |offset| -> Result<Record, OpenError> {
        let frame = layers.get(offset).map_err(|error| match error {
            StoreError::Damaged { first, what } => {
                damaged(first, Fault::Damaged(CodecError::Group(what)))
            }
            error @ StoreError::Failed(_) => unusable(error),
        })?;
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
        // Only the newest records can be incomplete.
        return Err(damaged(end.next(), Fault::Unfinished(unfinished)));
    }
    if unfinished != 0 {
        while last > Offset::ZERO && load(last)?.header.batch_remaining != 0 {
            last = last.prev();
        }
        tracing::warn!(
            first = last.next().get(),
            last = end.get(),
            "the last batch of the log is incomplete; its records are dropped"
        );
        layers.tail().and_then(|tail| tail.truncate(last)).map_err(unusable)?;
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

/// The result of a compaction: the log's size on disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    pub before: u64,
    pub after: u64,
}

/// Why a log was not compacted. It goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    /// There is not enough space for the rewritten files beside the old ones.
    #[error("rewriting takes {needed} bytes including the reserve, but only {free} are free")]
    Room {
        /// The bytes that must be free.
        needed: u64,
        /// The bytes that are free.
        free: u64,
    },
    /// A store failed.
    #[error("{0}")]
    Store(String),
    /// A directory could not be created, removed or exchanged.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The disk failed.
    #[error(transparent)]
    Disk(io::Error),
    #[error("it was abandoned")]
    GivenUp,
    /// The log takes no writes: it has not been started, or was closed.
    #[error("the log takes no writes")]
    Closed,
}

impl From<StoreError> for CompactError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
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

/// The files of a log that no server has open. The owner holds the data directory's lock and
/// appends nothing.
pub struct AtRest(Layers);

impl AtRest {
    /// Opens the log in `log_dir`, which must exist. Blocks.
    pub fn open(log_dir: &Path) -> Result<Self, OpenError> {
        Layers::open(log_dir, DEFAULT_CACHE_BYTES, None).map(Self)
    }

    pub fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        let frame = self.0.get(offset)?;
        frame.map(|frame| decode(offset, &frame)).transpose()
    }

    pub fn last(&self) -> Result<Option<Record>, ReadError> {
        self.0.last()?.map_or(Ok(None), |last| self.get(last))
    }

    /// Notes that this directory never contained what was erased up to `offset`.
    pub fn note_compacted(&self, offset: Offset) -> Result<(), StoreError> {
        self.0.tail()?.note_compacted(offset)
    }
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
