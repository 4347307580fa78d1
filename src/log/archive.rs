//! The archive: every durable record once more, in plain files that need no database to be read.
//!
//! The [`Archiver`] follows the log's durable watermark in a thread of its own and copies what is new
//! into *segments* (`log_format.md`, "Archive segments"), at most [`LAG`] behind. It only ever reads
//! the log, so it can be slow, fail and catch up without anybody waiting for it. [`ArchiveReader`]
//! reads an archive back and verifies all of it; [`restore_from_archive`] makes a new log of one.
//!
//! **An archive that is not a prefix of the log is refused** ([`ArchiveError::Ahead`],
//! [`ArchiveError::Foreign`]) rather than moved aside: it may be the only good copy there is. Whoever
//! lost the log's directory and starts the server anew must be told to restore, before the server
//! takes a first write that could never be reconciled. Damage at the archive's end, on the other hand,
//! is cut off and copied again, since the log has those records.

use std::{
    collections::VecDeque,
    fmt,
    fs::{File, OpenOptions},
    io::{self, BufReader, BufWriter, Read, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    Log, MAX_HEADER_TEXT_BYTES, MAX_PAYLOAD_BYTES, ReadError, VerifyError,
    sled::{self as sled_log, DEFAULT_CACHE_BYTES, OpenError, Store, StoreError},
    verify::{Checker, Fault},
};
use crate::{
    clock::Clock,
    record::{
        CHAIN_START, Chain, Command, Epoch, NewRecord, Offset, Origin, Record, Stream,
        codec::{self, CodecError, Frame, Tip},
        command::ServerRestore,
    },
};

/// How far the archive may be behind the log while its disk works.
pub const LAG: Duration = Duration::from_secs(1);

/// How often the archiver looks for new records. With a copy and a sync on top, well below [`LAG`].
const INTERVAL: Duration = Duration::from_millis(250);

/// Catching up, too, syncs this often, so that what is archived counts.
const SYNC_EVERY: Duration = Duration::from_millis(500);

/// How many records the archiver reads at a time.
const CHUNK: usize = 256;

/// The pause after a failure doubles from the first to the last of these.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// Small enough to copy elsewhere one by one, large enough that a year of a busy server is thousands
/// of files and not millions.
pub const DEFAULT_SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

pub(crate) const MAGIC: &[u8; 8] = b"LCSEG\r\n\x01";
const HEADER_BYTES: usize = 8 + 8 + 32;
pub(crate) const TAG_RECORD: u8 = b'R';
pub(crate) const TAG_SEAL: u8 = b'S';
const EXTENSION: &str = "lcseg";

/// No frame is longer: a payload, a header with all its texts, the chain value, the state.
pub(crate) const MAX_FRAME_BYTES: usize = MAX_PAYLOAD_BYTES + MAX_HEADER_TEXT_BYTES + 512;

/// Where and how the archive is kept.
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// The archive's directory; nothing else should be in it.
    pub dir: PathBuf,
    /// A segment is sealed at the end of the batch with which it reaches this size, in bytes.
    pub segment_bytes: u64,
}

impl ArchiveOptions {
    /// The defaults for an archive in `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), segment_bytes: DEFAULT_SEGMENT_BYTES }
    }
}

/// The default directory of the archive of a data directory.
#[must_use]
pub fn archive_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("archive")
}

/// Why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file or directory could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A segment is damaged.
    #[error("the archive segment {} is damaged at byte {at}: {reason}", .path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The position of the first damaged entry.
        at: u64,
        /// What is wrong.
        reason: String,
    },
    /// A segment does not begin where the one before it ends.
    #[error("the archive lacks records {missing} and after, before the segment {}", .next.display())]
    Gap {
        /// The first missing record.
        missing: Offset,
        /// The segment after the gap.
        next: PathBuf,
    },
    /// The archive holds records that the log does not have.
    #[error(
        "the archive {} ends at record {archive}, but the log ends at {log}: the log has lost records. Restore it with `logcabin restore --from-archive`, or move the archive away to go on without them",
        .dir.display()
    )]
    Ahead {
        /// The archive.
        dir: PathBuf,
        /// Its last record.
        archive: Offset,
        /// The log's last record.
        log: Offset,
    },
    /// The archive is that of another log.
    #[error(
        "the archive {} is not an archive of this log: its record {at} is another one. Name another archive directory, or restore from this one with `logcabin restore --from-archive`",
        .dir.display()
    )]
    Foreign {
        /// The archive.
        dir: PathBuf,
        /// The last record of the archive, where the two were compared.
        at: Offset,
    },
    /// The log could not be read.
    #[error(transparent)]
    Log(#[from] ReadError),
    /// A command in the archive cannot be read, though its bytes are intact.
    #[error(transparent)]
    Command(#[from] VerifyError),
}

impl ArchiveError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// Copies a log into an archive for as long as it lives.
pub struct Archiver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    archived: watch::Sender<Offset>,
    failure: watch::Sender<Option<String>>,
    stopping: AtomicBool,
}

impl fmt::Debug for Archiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archiver")
            .field("archived", &*self.shared.archived.borrow())
            .finish_non_exhaustive()
    }
}

impl Archiver {
    /// Finds the end of the archive, checks that it is a prefix of `log`, and begins to copy. To be
    /// called before the log is started, so that a refusal comes before the first write. Blocks.
    ///
    /// A failing disk is no error here: it is reported, and tried again in the background.
    ///
    /// # Errors
    /// [`ArchiveError::Ahead`] or [`ArchiveError::Foreign`] when the archive is not a prefix.
    pub fn start(options: ArchiveOptions, log: Arc<dyn Log>) -> Result<Self, ArchiveError> {
        let shared = Arc::new(Shared {
            archived: watch::Sender::new(Offset::ZERO),
            failure: watch::Sender::new(None),
            stopping: AtomicBool::new(false),
        });
        let writer = match Writer::open(&options, &*log, None) {
            Ok(writer) => {
                shared.archived.send_replace(writer.last);
                Some(writer)
            }
            Err(error @ (ArchiveError::Ahead { .. } | ArchiveError::Foreign { .. })) => {
                return Err(error);
            }
            Err(error) => {
                shared.report(&error);
                None
            }
        };
        let worker = Worker { options, log, shared: Arc::clone(&shared), writer, synced: None };
        let spawned =
            std::thread::Builder::new().name("log-archiver".to_owned()).spawn(move || worker.run());
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                shared.report(&format!("the archiver's thread could not be started: {error}"));
                None
            }
        };
        Ok(Self { shared, thread })
    }

    /// The last record that is durable in the archive, as it moves.
    #[must_use]
    pub fn archived(&self) -> watch::Receiver<Offset> {
        self.shared.archived.subscribe()
    }

    /// What keeps the archiver from copying, while something does.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.shared.failure.subscribe()
    }

    /// Copies what is durable by now and stops. To be called after the log was closed. Blocks.
    pub fn stop(mut self) {
        self.stop_thread();
    }

    fn stop_thread(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                self.shared.report(&"the archiver's thread panicked");
            }
        }
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

impl Shared {
    fn report(&self, error: &dyn fmt::Display) {
        tracing::error!(%error, "the archive is not being written; the server goes on without it");
        self.failure.send_replace(Some(error.to_string()));
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

/// The archiver's thread.
struct Worker {
    options: ArchiveOptions,
    log: Arc<dyn Log>,
    shared: Arc<Shared>,
    writer: Option<Writer>,
    /// How much of which segment is known to be on disk. After a failed sync the rest may look
    /// written and not be.
    synced: Option<(PathBuf, u64)>,
}

impl Worker {
    fn run(mut self) {
        let mut pause = RETRY_FIRST;
        loop {
            let last_round = self.shared.stopping();
            match self.round() {
                Ok(()) => {
                    pause = RETRY_FIRST;
                    if self.shared.failure.send_replace(None).is_some() {
                        tracing::info!("the archive is being written again");
                    }
                    if last_round {
                        return;
                    }
                    std::thread::park_timeout(INTERVAL);
                }
                Err(error) => {
                    self.shared.report(&error);
                    self.writer = None;
                    if last_round {
                        return;
                    }
                    std::thread::park_timeout(pause);
                    pause = (pause * 2).min(RETRY_LAST);
                }
            }
        }
    }

    /// Copies everything up to the durable watermark.
    fn round(&mut self) -> Result<(), ArchiveError> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let writer = Writer::open(&self.options, &*self.log, self.synced.as_ref())?;
                self.writer.insert(writer)
            }
        };
        let durable = *self.log.durable().borrow();
        let mut unsynced_since = Instant::now();
        while writer.last < durable {
            for record in self.log.read(writer.last.next(), CHUNK)? {
                writer.append(&record)?;
            }
            if unsynced_since.elapsed() >= SYNC_EVERY {
                self.synced = writer.sync()?;
                self.shared.archived.send_replace(writer.last);
                unsynced_since = Instant::now();
            }
        }
        if writer.last > *self.shared.archived.borrow() {
            self.synced = writer.sync()?;
            self.shared.archived.send_replace(writer.last);
        }
        Ok(())
    }
}

/// Writes segments.
struct Writer {
    dir: PathBuf,
    segment_bytes: u64,
    last: Offset,
    chain: Chain,
    at_batch_end: bool,
    open: Option<Segment>,
}

/// A segment that is being written.
struct Segment {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    length: u64,
    count: u64,
}

impl Writer {
    /// Opens the archive at its end, once it is clear that it is a prefix of `log`. Whatever follows
    /// the last whole batch is cut off.
    fn open(
        options: &ArchiveOptions,
        log: &dyn Log,
        synced: Option<&(PathBuf, u64)>,
    ) -> Result<Self, ArchiveError> {
        let dir = &options.dir;
        sled_log::make_private_dir(dir).map_err(|error| match error {
            OpenError::Io { path, source } => ArchiveError::Io { path, source },
            other => ArchiveError::Io { path: dir.clone(), source: io::Error::other(other) },
        })?;
        if let Some((path, length)) = synced {
            let failed = ArchiveError::io(path);
            match OpenOptions::new().write(true).open(path) {
                Ok(file) if file.metadata().is_ok_and(|meta| meta.len() > *length) => {
                    file.set_len(*length).map_err(failed)?;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let end = find_end(dir)?;
        let durable = *log.durable().borrow();
        let ahead = |archive| ArchiveError::Ahead { dir: dir.clone(), archive, log: durable };
        if end.last > durable {
            return Err(ahead(end.last));
        }
        for (path, at) in &end.faults {
            // What the log lacks is never cut off, even where damage lies before it.
            if let Some(beyond) = record_follows(path, *at, durable)? {
                return Err(ahead(beyond));
            }
        }
        if end.last != Offset::ZERO
            && log.get(end.last)?.is_none_or(|record| record.chain != end.chain)
        {
            return Err(ArchiveError::Foreign { dir: dir.clone(), at: end.last });
        }
        for path in &end.unusable {
            tracing::warn!(path = %path.display(), "an archive segment without a whole batch is removed");
            std::fs::remove_file(path).map_err(ArchiveError::io(path))?;
        }
        let open = end.unsealed.map(|unsealed| unsealed.reopen()).transpose()?;
        Ok(Self {
            dir: dir.clone(),
            segment_bytes: options.segment_bytes,
            last: end.last,
            chain: end.chain,
            at_batch_end: true,
            open,
        })
    }

    fn append(&mut self, record: &Record) -> Result<(), ArchiveError> {
        let damaged = |source| ReadError::Damaged { offset: record.offset(), source };
        let frame = codec::encode_frame(record).map_err(damaged)?;
        let segment = match &mut self.open {
            // Only between batches, so that what a torn batch leaves is never in two segments.
            Some(segment) if self.at_batch_end && segment.length >= self.segment_bytes => {
                segment.seal(&self.chain)?;
                self.open.insert(Segment::create(&self.dir, record.offset(), &self.chain)?)
            }
            Some(segment) => segment,
            None => self.open.insert(Segment::create(&self.dir, record.offset(), &self.chain)?),
        };
        segment.append(&frame)?;
        self.last = record.offset();
        self.chain = record.chain;
        self.at_batch_end = record.header.batch_remaining == 0;
        Ok(())
    }

    /// Returns once everything appended is durable, with what that is in the open segment.
    fn sync(&mut self) -> Result<Option<(PathBuf, u64)>, ArchiveError> {
        let Some(segment) = &mut self.open else { return Ok(None) };
        segment.sync()?;
        Ok(Some((segment.path.clone(), segment.length)))
    }
}

impl Segment {
    fn create(dir: &Path, first: Offset, before: &Chain) -> Result<Self, ArchiveError> {
        let path = dir.join(format!("{:020}.{EXTENSION}", first.get()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(ArchiveError::io(&path))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(ArchiveError::io(dir))?;
        let mut segment = Self {
            path,
            file: BufWriter::new(file),
            hasher: blake3::Hasher::new(),
            length: 0,
            count: 0,
        };
        segment.put(MAGIC)?;
        segment.put(&first.get().to_be_bytes())?;
        segment.put(before)?;
        Ok(segment)
    }

    fn append(&mut self, frame: &[u8]) -> Result<(), ArchiveError> {
        let too_long = |_| ArchiveError::Io {
            path: self.path.clone(),
            source: io::Error::other("a frame is too long"),
        };
        let length = u32::try_from(frame.len()).map_err(too_long)?;
        self.put(&[TAG_RECORD])?;
        self.put(&length.to_be_bytes())?;
        self.put(frame)?;
        self.count += 1;
        Ok(())
    }

    fn seal(&mut self, chain: &Chain) -> Result<(), ArchiveError> {
        self.put(&[TAG_SEAL])?;
        self.put(&self.count.to_be_bytes())?;
        self.put(chain)?;
        let hash = *self.hasher.finalize().as_bytes();
        self.put(&hash)?;
        self.sync()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.file.write_all(bytes).map_err(ArchiveError::io(&self.path))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), ArchiveError> {
        self.file.flush().map_err(ArchiveError::io(&self.path))?;
        self.file.get_ref().sync_data().map_err(ArchiveError::io(&self.path))
    }
}

/// Where an archive ends: after its last whole batch.
struct End {
    last: Offset,
    chain: Chain,
    /// The segment to go on in.
    unsealed: Option<Unsealed>,
    /// Segments at the end without a whole batch.
    unusable: Vec<PathBuf>,
    /// Where reading stopped before a segment's end.
    faults: Vec<(PathBuf, u64)>,
}

struct Unsealed {
    path: PathBuf,
    length: u64,
    count: u64,
}

impl Unsealed {
    fn reopen(self) -> Result<Segment, ArchiveError> {
        let failed = ArchiveError::io(&self.path);
        let reopened = || {
            let mut file = OpenOptions::new().read(true).write(true).open(&self.path)?;
            let torn = file.metadata()?.len().saturating_sub(self.length);
            if torn > 0 {
                tracing::warn!(
                    path = %self.path.display(),
                    bytes = torn,
                    "the end of the last archive segment is torn; it is cut off and copied again"
                );
                file.set_len(self.length)?;
                file.sync_all()?;
            }
            let mut hasher = blake3::Hasher::new();
            // Leaves the file at its end, where writing goes on.
            hasher.update_reader(&mut file)?;
            Ok((file, hasher))
        };
        let (file, hasher) = reopened().map_err(failed)?;
        Ok(Segment {
            path: self.path,
            file: BufWriter::new(file),
            hasher,
            length: self.length,
            count: self.count,
        })
    }
}

fn find_end(dir: &Path) -> Result<End, ArchiveError> {
    let (mut unusable, mut faults) = (Vec::new(), Vec::new());
    for (_, path) in segments(dir)?.into_iter().rev() {
        let Ok(mut reader) = SegmentReader::open(&path)? else {
            faults.push((path.clone(), 0));
            unusable.push(path);
            continue;
        };
        let mut whole = None;
        loop {
            match reader.next()? {
                Ok(Some((record, _))) if record.header.batch_remaining == 0 => {
                    whole = Some((record.offset(), record.chain, reader.position, reader.count));
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    faults.push((path.clone(), reader.position));
                    break;
                }
            }
        }
        let Some((last, chain, length, count)) = whole else {
            unusable.push(path);
            continue;
        };
        let unsealed = (!reader.sealed).then_some(Unsealed { path, length, count });
        return Ok(End { last, chain, unsealed, unusable, faults });
    }
    Ok(End { last: Offset::ZERO, chain: CHAIN_START, unsealed: None, unusable, faults })
}

/// The segments of a directory with the first offset of each, in order.
fn segments(dir: &Path) -> Result<Vec<(Offset, PathBuf)>, ArchiveError> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(ArchiveError::io(dir))? {
        let path = entry.map_err(ArchiveError::io(dir))?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION)
            && let Some(first) = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
        {
            segments.push((Offset::new(first), path));
        }
    }
    segments.sort();
    Ok(segments)
}

/// What is wrong with a segment, at [`SegmentReader::position`].
struct SegmentFault(String);

/// Reads one segment from its start, verifying it.
struct SegmentReader {
    path: PathBuf,
    input: BufReader<File>,
    hasher: blake3::Hasher,
    checker: Checker,
    /// The end of the last good entry.
    position: u64,
    count: u64,
    sealed: bool,
}

impl SegmentReader {
    fn open(path: &Path) -> Result<Result<Self, SegmentFault>, ArchiveError> {
        let file = File::open(path).map_err(ArchiveError::io(path))?;
        let mut reader = Self {
            path: path.to_owned(),
            input: BufReader::with_capacity(256 * 1024, file),
            hasher: blake3::Hasher::new(),
            checker: Checker::from_start(),
            position: 0,
            count: 0,
            sealed: false,
        };
        let mut header = [0; HEADER_BYTES];
        if !reader.fill(&mut header)? {
            return Ok(Err(SegmentFault("the file ends inside its header".to_owned())));
        }
        let mut fields = &header[..];
        let (mut magic, mut first, mut before) = ([0; 8], [0; 8], [0; 32]);
        for field in [&mut magic[..], &mut first[..], &mut before[..]] {
            fields.read_exact(field).map_err(ArchiveError::io(path))?;
        }
        if &magic != MAGIC {
            return Ok(Err(SegmentFault("the file is not a segment of a known format".to_owned())));
        }
        let before_first = Offset::new(u64::from_be_bytes(first)).prev();
        if before_first == Offset::ZERO && before != CHAIN_START {
            return Ok(Err(SegmentFault("the chain does not begin at its start".to_owned())));
        }
        reader.checker = Checker::from_chain(before_first, before);
        reader.position = HEADER_BYTES as u64;
        Ok(Ok(reader))
    }

    /// The next record and its frame; `None` at the segment's end, sealed or not.
    fn next(&mut self) -> Result<Result<Option<(Record, Bytes)>, SegmentFault>, ArchiveError> {
        let fault = |text: &str| Ok(Err(SegmentFault(text.to_owned())));
        let mut tag = [0; 1];
        if self.sealed {
            let more = self.input.read(&mut tag).map_err(ArchiveError::io(&self.path))?;
            return if more == 0 { Ok(Ok(None)) } else { fault("bytes follow the seal") };
        }
        if !self.fill(&mut tag)? {
            return Ok(Ok(None));
        }
        match tag {
            [TAG_RECORD] => {
                let mut length = [0; 4];
                if !self.fill(&mut length)? {
                    return fault("the file ends inside an entry");
                }
                let length = u32::from_be_bytes(length) as usize;
                if length > MAX_FRAME_BYTES {
                    return fault("an entry is longer than records are");
                }
                let mut frame = vec![0; length];
                if !self.fill(&mut frame)? {
                    return fault("the file ends inside an entry");
                }
                let frame = Bytes::from(frame);
                let record = match Frame::decode(&frame) {
                    Ok(frame) => frame.record,
                    Err(error) => return Ok(Err(SegmentFault(error.to_string()))),
                };
                if let Err(error) = self.checker.check(&record) {
                    return Ok(Err(SegmentFault(error.to_string())));
                }
                self.count += 1;
                self.position += 5 + length as u64;
                Ok(Ok(Some((record, frame))))
            }
            [TAG_SEAL] => {
                let (mut count, mut chain, mut hash) = ([0; 8], [0; 32], [0; 32]);
                if !self.fill(&mut count)? || !self.fill(&mut chain)? {
                    return fault("the file ends inside its seal");
                }
                let expected = *self.hasher.finalize().as_bytes();
                if !self.fill(&mut hash)? {
                    return fault("the file ends inside its seal");
                }
                if u64::from_be_bytes(count) != self.count
                    || chain != *self.checker.chain()
                    || hash != expected
                {
                    return fault("the seal does not fit the segment");
                }
                self.sealed = true;
                self.position += 1 + 8 + 32 + 32;
                self.next()
            }
            _ => fault("an entry of an unknown kind"),
        }
    }

    /// Whether the file had enough bytes left.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, ArchiveError> {
        match self.input.read_exact(bytes) {
            Ok(()) => {
                self.hasher.update(bytes);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(ArchiveError::io(&self.path)(error)),
        }
    }
}

/// The records of an archive.
#[derive(Debug)]
pub struct ArchiveReader {
    segments: Vec<(Offset, PathBuf)>,
}

/// What follows the last intact record of an archive's last segment: an entry that was being
/// written when the archiver was stopped, as a crash leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub path: PathBuf,
    /// The end of its last intact entry.
    pub at: u64,
    /// How many bytes follow.
    pub bytes: u64,
}

impl ArchiveReader {
    /// Opens the archive in `dir`. It may be one that is being written.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn open(dir: &Path) -> Result<Self, ArchiveError> {
        Ok(Self { segments: segments(dir)? })
    }

    /// The offset of the archive's first record; none in an empty one.
    #[must_use]
    pub fn first(&self) -> Option<Offset> {
        self.segments.first().map(|(first, _)| *first)
    }

    /// The records from `from` on, in order, verified: every hash, the chain from one segment to
    /// the next, every seal. Ends after an error. Costs the reading of `from`'s segment from its
    /// start.
    #[must_use]
    pub fn records(&self, from: Offset) -> ArchiveRecords {
        let skip = self.segments.partition_point(|(first, _)| *first <= from).saturating_sub(1);
        ArchiveRecords {
            segments: self.segments.iter().skip(skip).map(|(_, path)| path.clone()).collect(),
            from,
            current: None,
            checker: None,
            torn: None,
            done: false,
        }
    }
}

/// The iterator of [`ArchiveReader::records`].
pub struct ArchiveRecords {
    segments: VecDeque<PathBuf>,
    from: Offset,
    current: Option<SegmentReader>,
    /// The end of the segment before.
    checker: Option<Checker>,
    torn: Option<TornTail>,
    done: bool,
}

impl fmt::Debug for ArchiveRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveRecords")
            .field("segments", &self.segments)
            .field("torn", &self.torn)
            .finish_non_exhaustive()
    }
}

impl ArchiveRecords {
    /// What was left out at the archive's end, once the iterator has ended.
    #[must_use]
    pub const fn torn(&self) -> Option<&TornTail> {
        self.torn.as_ref()
    }

    fn advance(&mut self) -> Result<Option<(Record, Bytes)>, ArchiveError> {
        loop {
            let Some(reader) = &mut self.current else {
                let Some(path) = self.segments.pop_front() else { return Ok(None) };
                self.current = self.open_segment(&path)?;
                continue;
            };
            match reader.next()? {
                Ok(Some((record, frame))) => {
                    if record.offset() >= self.from {
                        return Ok(Some((record, frame)));
                    }
                }
                Ok(None) => {
                    if !reader.sealed && !self.segments.is_empty() {
                        return Err(ArchiveError::Damaged {
                            path: reader.path.clone(),
                            at: reader.position,
                            reason: "the segment is not sealed, though another follows it"
                                .to_owned(),
                        });
                    }
                    self.checker = Some(reader.checker.clone());
                    self.current = None;
                }
                Err(fault) => {
                    let (path, at) = (reader.path.clone(), reader.position);
                    let last = reader.checker.last();
                    self.current = None;
                    self.end_torn(path, at, last, fault)?;
                }
            }
        }
    }

    fn open_segment(&mut self, path: &Path) -> Result<Option<SegmentReader>, ArchiveError> {
        let mut reader = match SegmentReader::open(path)? {
            Ok(reader) => reader,
            Err(fault) => {
                let last = self.checker.as_ref().map_or(Offset::ZERO, Checker::last);
                self.end_torn(path.to_owned(), 0, last, fault)?;
                return Ok(None);
            }
        };
        if let Some(before) = self.checker.take() {
            if before.last() != reader.checker.last() {
                let missing = before.last().next();
                return Err(ArchiveError::Gap { missing, next: path.to_owned() });
            }
            if before.chain() != reader.checker.chain() {
                return Err(ArchiveError::Damaged {
                    path: path.to_owned(),
                    at: 0,
                    reason: CodecError::Chain.to_string(),
                });
            }
            reader.checker = before;
        }
        Ok(Some(reader))
    }

    /// Takes a fault for the end of the archive if a crash can have caused it: it is in the last
    /// segment and no intact record follows it.
    fn end_torn(
        &mut self,
        path: PathBuf,
        at: u64,
        last: Offset,
        fault: SegmentFault,
    ) -> Result<(), ArchiveError> {
        if !self.segments.is_empty() || record_follows(&path, at, last)?.is_some() {
            return Err(ArchiveError::Damaged { path, at, reason: fault.0 });
        }
        let length = std::fs::metadata(&path).map_err(ArchiveError::io(&path))?.len();
        self.torn = Some(TornTail { path, at, bytes: length.saturating_sub(at) });
        Ok(())
    }

    /// As the iterator gives them, with the bytes each record is stored as.
    fn next_with_frame(&mut self) -> Option<Result<(Record, Bytes), ArchiveError>> {
        if self.done {
            return None;
        }
        let next = self.advance();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

impl Iterator for ArchiveRecords {
    type Item = Result<Record, ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_with_frame()?.map(|(record, _)| record))
    }
}

/// A record after `last`, if one can be decoded anywhere after byte `at`. What a crash leaves is
/// the last thing in a segment; if good records follow, the disk has damaged what lies before them.
fn record_follows(path: &Path, at: u64, last: Offset) -> Result<Option<Offset>, ArchiveError> {
    let bytes = Bytes::from(std::fs::read(path).map_err(ArchiveError::io(path))?);
    let start = usize::try_from(at).unwrap_or(usize::MAX).saturating_add(1);
    for position in start..bytes.len() {
        let Some([TAG_RECORD, length @ ..]) = bytes.get(position..position + 5) else { continue };
        let Ok(length) = <[u8; 4]>::try_from(length) else { continue };
        let length = u32::from_be_bytes(length) as usize;
        let begin = position + 5;
        if length > MAX_FRAME_BYTES || begin + length > bytes.len() {
            continue;
        }
        if let Ok(frame) = Frame::decode(&bytes.slice(begin..begin + length))
            && frame.record.offset() > last
        {
            return Ok(Some(frame.record.offset()));
        }
    }
    Ok(None)
}

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
    match std::fs::remove_dir(&target) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            return Err(RestoreError::NotEmpty(target));
        }
        Err(error) => return Err(failed(&target, error)),
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
    let mut records = archive.records(Offset::new(1));
    let mut restored = Restored {
        records: 0,
        last: Offset::ZERO,
        chain: CHAIN_START,
        dropped: 0,
        torn: None,
        epoch: Epoch(0),
    };
    // Only whole batches leave `batch` for `writes`.
    let mut batch = Vec::new();
    let mut writes = ::sled::Batch::default();
    let mut bytes = 0;
    let mut tip = Tip::default();
    while let Some(next) = records.next_with_frame() {
        let (record, frame) = next?;
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

/// What [`verify_archive`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedArchive {
    /// How many records were checked.
    pub records: u64,
    /// The last of them.
    pub last: Offset,
    /// The chain value of the last.
    pub chain: Chain,
    /// What a crash left at the archive's end.
    pub torn: Option<TornTail>,
}

/// Verifies a whole archive, and that every command in it can be read. `on_progress` is called with
/// each offset.
///
/// # Errors
/// The first damage or gap.
pub fn verify_archive(
    dir: &Path,
    mut on_progress: impl FnMut(Offset),
) -> Result<VerifiedArchive, ArchiveError> {
    let archive = ArchiveReader::open(dir)?;
    let mut records = archive.records(Offset::ZERO);
    let mut verified =
        VerifiedArchive { records: 0, last: Offset::ZERO, chain: CHAIN_START, torn: None };
    for record in records.by_ref() {
        let record = record?;
        let unreadable =
            |error| VerifyError { offset: record.offset(), fault: Fault::Command(error) };
        record.command().map_err(unreadable)?;
        verified.records += 1;
        verified.last = record.offset();
        verified.chain = record.chain;
        on_progress(record.offset());
    }
    verified.torn = records.torn().cloned();
    Ok(verified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        log::{
            Batch,
            contract::{batch, payload, record, start},
            memory::MemoryLog,
            sled::{SledLog, SledOptions, log_dir},
            verify,
        },
    };

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn options(&self) -> ArchiveOptions {
            ArchiveOptions { dir: archive_dir(self.0.path()), segment_bytes: 2_000 }
        }

        fn log(&self) -> Arc<dyn Log> {
            let log = Arc::new(SledLog::open(SledOptions::new(self.0.path())).unwrap());
            start(&*log);
            log
        }

        fn archive(&self, log: &Arc<dyn Log>) -> Result<(), ArchiveError> {
            Archiver::start(self.options(), Arc::clone(log)).map(Archiver::stop)
        }

        fn segments(&self) -> Vec<PathBuf> {
            segments(&self.options().dir).unwrap().into_iter().map(|(_, path)| path).collect()
        }

        fn records(&self) -> Vec<Record> {
            let reader = ArchiveReader::open(&self.options().dir).unwrap();
            reader.records(Offset::ZERO).map(Result::unwrap).collect()
        }
    }

    async fn fill(log: &dyn Log, batches: u64) {
        for number in 0..batches {
            log.append(batch("room/!r", number % 3 + 1)).await.unwrap();
        }
    }

    fn all(log: &dyn Log) -> Vec<Record> {
        log.read(Offset::new(1), usize::MAX).unwrap()
    }

    fn memory() -> Arc<dyn Log> {
        let log = MemoryLog::new(Clock::manual(5));
        log.start(super::super::StreamHeads::new(), Box::new(|_| ()));
        Arc::new(log)
    }

    #[tokio::test]
    async fn an_archive_holds_every_record_in_sealed_segments() {
        let place = Place::new();
        let log = place.log();
        let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
        fill(&*log, 30).await;
        let appended = Instant::now();
        let mut archived = archiver.archived();
        let durable = *log.durable().borrow();
        tokio::time::timeout(LAG * 5, archived.wait_for(|at| *at >= durable))
            .await
            .unwrap()
            .unwrap();
        // The promise is one second; a loaded test machine is given twice that.
        assert!(appended.elapsed() < LAG * 2, "{:?} behind", appended.elapsed());
        archiver.stop();
        assert!(place.segments().len() > 3, "{:?}", place.segments());
        assert_eq!(place.segments()[0].file_name().unwrap(), "00000000000000000001.lcseg");
        assert_eq!(place.records(), all(&*log));
        let reader = ArchiveReader::open(&place.options().dir).unwrap();
        for from in [1, 2, 17, durable.get(), durable.get() + 1] {
            let tail: Vec<_> = reader.records(Offset::new(from)).map(Result::unwrap).collect();
            assert_eq!(tail, log.read(Offset::new(from), usize::MAX).unwrap());
        }
        let verified = verify_archive(&place.options().dir, |_| ()).unwrap();
        assert_eq!((verified.records, verified.last), (durable.get(), durable));
        assert_eq!((verified.chain, verified.torn), (all(&*log).last().unwrap().chain, None));
    }

    #[tokio::test]
    async fn a_restart_goes_on_in_the_same_segment() {
        let place = Place::new();
        let log = place.log();
        let mut options = place.options();
        options.segment_bytes = 1 << 20;
        for _ in 0..4 {
            fill(&*log, 5).await;
            Archiver::start(options.clone(), Arc::clone(&log)).unwrap().stop();
        }
        assert_eq!(place.segments().len(), 1);
        // Smaller segments from now on: this one is sealed, with what earlier starts wrote.
        fill(&*log, 5).await;
        place.archive(&log).unwrap();
        assert_eq!(place.segments().len(), 2);
        assert_eq!(place.records(), all(&*log));
    }

    #[tokio::test]
    async fn a_torn_end_is_cut_off_and_copied_again() {
        let place = Place::new();
        let log = place.log();
        fill(&*log, 9).await;
        place.archive(&log).unwrap();
        let expected = place.records();
        // However much of the last segment is missing or overwritten.
        for cut in [1, 2, 50, 200, 1_000, 1 << 20] {
            let path = place.segments().pop().unwrap();
            let length = std::fs::metadata(&path).unwrap().len();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(length.saturating_sub(cut)).unwrap();
            if cut == 200 {
                file.set_len(length + 100).unwrap();
            }
            let reader = ArchiveReader::open(&place.options().dir).unwrap();
            let intact: Vec<_> = reader.records(Offset::ZERO).map(Result::unwrap).collect();
            assert!(expected.starts_with(&intact));
            place.archive(&log).unwrap();
            assert_eq!(place.records(), expected, "after a cut of {cut} bytes");
        }
    }

    #[tokio::test]
    async fn a_damaged_segment_is_named() {
        let place = Place::new();
        let log = place.log();
        fill(&*log, 30).await;
        place.archive(&log).unwrap();
        let segments = place.segments();
        let read = || {
            let reader = ArchiveReader::open(&place.options().dir).unwrap();
            reader.records(Offset::ZERO).find_map(Result::err)
        };
        for (path, index) in [(&segments[0], 3), (&segments[1], 20), (&segments[2], 700)] {
            let good = std::fs::read(path).unwrap();
            for index in [index, good.len() - 1, good.len() / 2] {
                let mut bad = good.clone();
                bad[index] ^= 4;
                std::fs::write(path, bad).unwrap();
                match read() {
                    Some(ArchiveError::Damaged { path: found, .. }) => assert_eq!(&found, path),
                    other => panic!("byte {index} of {}: {other:?}", path.display()),
                }
            }
            std::fs::write(path, good).unwrap();
        }
        // Damage in the last segment, too, is told from a torn end by the records after it.
        let last = segments.last().unwrap();
        let good = std::fs::read(last).unwrap();
        let mut bad = good.clone();
        bad[HEADER_BYTES + 100] ^= 1;
        std::fs::write(last, bad).unwrap();
        assert!(matches!(read(), Some(ArchiveError::Damaged { .. })));
        std::fs::write(last, good).unwrap();
        std::fs::remove_file(&segments[1]).unwrap();
        assert!(matches!(read(), Some(ArchiveError::Gap { next, .. }) if next == segments[2]));
    }

    #[tokio::test]
    async fn a_log_is_restored_byte_for_byte() {
        let place = Place::new();
        let log = place.log();
        fill(&*log, 40).await;
        log.append(Batch { expect: vec![], records: vec![record("a", payload(1)); 3] })
            .await
            .unwrap();
        place.archive(&log).unwrap();
        let expected = all(&*log);
        let in_use = restore_from_archive(&place.options().dir, place.0.path());
        assert!(matches!(in_use, Err(RestoreError::Open(OpenError::InUse { .. }))));
        drop(log);
        let there = restore_from_archive(&place.options().dir, place.0.path());
        assert!(matches!(there, Err(RestoreError::NotEmpty(_))));

        std::fs::remove_dir_all(log_dir(place.0.path())).unwrap();
        // A server on an empty log must not write next to this archive.
        let empty = place.log();
        assert!(matches!(place.archive(&empty), Err(ArchiveError::Ahead { .. })));
        drop(empty);
        std::fs::remove_dir_all(log_dir(place.0.path())).unwrap();

        let restored = restore_from_archive(&place.options().dir, place.0.path()).unwrap();
        assert_eq!(restored.records, expected.len() as u64);
        assert_eq!(restored.chain, expected.last().unwrap().chain);
        assert_eq!((restored.dropped, &restored.torn), (0, &None));
        let log = place.log();
        assert_restored(&all(&*log), &expected, &restored);
        verify(&*log, |_| ()).unwrap();
        fill(&*log, 3).await;
        place.archive(&log).unwrap();
        assert_eq!(place.records(), all(&*log));
    }

    #[tokio::test]
    async fn records_that_the_log_lacks_are_not_cut_off_behind_damage() {
        let place = Place::new();
        let (short, long) = (memory(), memory());
        short.append(batch("a", 1)).await.unwrap();
        let options = ArchiveOptions::new(place.options().dir);
        long.append(batch("a", 1)).await.unwrap();
        fill(&*long, 9).await;
        Archiver::start(options.clone(), Arc::clone(&long)).unwrap().stop();
        let path = place.segments().pop().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[HEADER_BYTES + 400] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let refused = Archiver::start(options.clone(), Arc::clone(&short));
        assert!(matches!(refused, Err(ArchiveError::Ahead { .. })), "{refused:?}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        // The log that has them copies them again.
        Archiver::start(options, Arc::clone(&long)).unwrap().stop();
        assert_eq!(place.records(), all(&*long));
    }

    #[tokio::test]
    async fn a_batch_that_is_not_whole_is_not_restored() {
        let place = Place::new();
        let log = place.log();
        log.append(batch("a", 2)).await.unwrap();
        log.append(batch("b", 3)).await.unwrap();
        let options = ArchiveOptions::new(place.options().dir);
        Archiver::start(options, Arc::clone(&log)).unwrap().stop();
        let expected = all(&*log);
        drop(log);
        // Cut inside the last record of the second batch.
        let path = place.segments().pop().unwrap();
        let length = std::fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 10).unwrap();

        std::fs::remove_dir_all(log_dir(place.0.path())).unwrap();
        let restored = restore_from_archive(&place.options().dir, place.0.path()).unwrap();
        assert_eq!((restored.records, restored.dropped), (2, 2));
        assert_eq!(restored.torn.as_ref().unwrap().path, path);
        let log = place.log();
        assert_restored(&all(&*log), &expected[..2], &restored);
        place.archive(&log).unwrap();
        assert_eq!(place.records(), all(&*log));
    }

    /// The restored records, and then the one that begins the next epoch.
    fn assert_restored(found: &[Record], expected: &[Record], restored: &Restored) {
        let (restore, copied) = found.split_last().unwrap();
        assert!(copied == expected, "the restored records are not the archived ones");
        assert_eq!(restored.epoch, Epoch(1));
        assert_eq!((restore.header.epoch, &*restore.header.kind), (Epoch(1), "server.restore"));
    }

    #[tokio::test]
    async fn the_archive_of_another_log_is_refused_and_left_as_it_is() {
        let place = Place::new();
        let (one, other) = (memory(), memory());
        fill(&*one, 4).await;
        place.archive(&one).unwrap();
        let bytes = std::fs::read(&place.segments()[0]).unwrap();
        other.append(batch("user/other", 20)).await.unwrap();
        assert!(matches!(place.archive(&other), Err(ArchiveError::Foreign { .. })));
        assert_eq!(std::fs::read(&place.segments()[0]).unwrap(), bytes);
    }

    #[tokio::test]
    async fn a_failing_archive_disk_stops_nothing_and_is_tried_again() {
        let place = Place::new();
        let log = memory();
        // A file where the directory should be.
        let dir = place.options().dir;
        std::fs::write(&dir, "in the way").unwrap();
        let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
        assert!(archiver.failure().borrow().is_some());
        fill(&*log, 3).await;
        std::fs::remove_file(&dir).unwrap();
        let mut archived = archiver.archived();
        let durable = *log.durable().borrow();
        tokio::time::timeout(RETRY_FIRST * 10, archived.wait_for(|at| *at >= durable))
            .await
            .unwrap()
            .unwrap();
        archiver.stop();
        assert_eq!(place.records(), all(&*log));
    }
}
