//! Erasing from the archive: segments that contain payloads named by `log.erase` records are
//! rewritten.
//!
//! Content that was erased for a reason (a redaction, an expired lifetime, a deleted user or room)
//! leaves its segment within seconds. Superseded payloads (receipts that moved on, delivered
//! messages) wait until one of these holds:
//!
//! - They are a large enough share of the segment.
//! - They have waited long enough.
//! - The segment is rewritten for another reason.
//! - A user is erased or a room purged: the payloads may have been theirs.
//!
//! The log carries out an erasure before its record can be read, so the eraser takes the remaining
//! payloads from the log. A rename puts the new segment in place: a reader, and a crash, see one or
//! the other, or both of a plain one and the packed one that replaces it. A file beside the
//! segments notes how far the archive has come. Repeating an erasure changes nothing.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    ArchiveError, ArchiveOptions,
    packed::remove,
    segment::{REWRITING, Segment, SegmentReader, is_packed, plain, remove_unfinished, segments},
};
use crate::{
    Log, ReadError,
    erase::{Targets, erasure},
    volume::{self, Packing},
};
use logcabin_base::disk;
use logcabin_record::{
    Chain, Offset, Payload, Record,
    codec::{self, CodecError},
    command::{Body as _, LogErase, RoomPurge, UserErase},
};

/// The pause after a failure, usually a damaged segment or a full disk.
const RETRY: Duration = Duration::from_secs(60);

/// How many existing records of an archive are scanned at a time.
const SCAN: usize = 4096;

/// The note is updated after this many records without an erasure, so that the next start does not
/// scan them.
const NOTE_EVERY: u64 = 100_000;

/// How often waiting payloads are checked for whether they have waited long enough.
const LOOK: Duration = Duration::from_secs(3600);

/// What must still be erased from an archive.
pub(super) struct Eraser {
    dir: PathBuf,
    /// Payloads to erase at once.
    targets: Targets,
    /// Payloads that wait, by their `log.erase` record.
    waiting: BTreeMap<Offset, Waiting>,
    /// Whether the waiting payloads must be erased at once, too.
    all: bool,
    /// All `log.erase` records up to here are in `targets`, in `waiting` or carried out.
    scanned: Offset,
    /// The content of the note.
    noted: Offset,
    /// Waiting `log.erase` records from the note, which are still to be read.
    recalled: Vec<Offset>,
    /// When the last `log.erase` record arrived.
    seen: Instant,
    /// When the waiting payloads were last checked; `None` if they were not checked since the last
    /// one arrived.
    looked: Option<Instant>,
    options: ArchiveOptions,
}

/// The waiting payloads of one `log.erase` record.
struct Waiting {
    time_ms: u64,
    targets: Targets,
}

impl Eraser {
    /// Reads how far the archive has come.
    pub(super) fn open(options: &ArchiveOptions) -> Result<Self, ArchiveError> {
        remove_unfinished(&options.dir)?;
        let Note { upto, waiting } = read_note(&note_path(&options.dir))?;
        Ok(Self {
            dir: options.dir.clone(),
            targets: Targets::default(),
            waiting: BTreeMap::new(),
            all: false,
            scanned: upto,
            noted: upto,
            recalled: waiting,
            seen: Instant::now(),
            looked: None,
            options: options.clone(),
        })
    }

    /// Notes the erasures of the next archived record.
    pub(super) fn note(&mut self, record: &Record) {
        if record.offset() != self.scanned.next() {
            return;
        }
        self.scanned = record.offset();
        let kind = &*record.header.kind;
        if [UserErase::KIND.name, RoomPurge::KIND.name].contains(&kind) {
            self.all = true;
            // The `log.erase` record for it comes next, and takes the waiting payloads along.
            self.seen = Instant::now();
        }
        if let Some(erasure) = erasure(record) {
            let (done, because) = erasure.divided();
            self.targets.add(&because);
            self.put_aside(record, &done);
        }
    }

    fn put_aside(&mut self, record: &Record, done: &LogErase) {
        let mut targets = Targets::default();
        targets.add(done);
        if !targets.is_empty() {
            let time_ms = record.header.time_ms;
            self.waiting.insert(record.offset(), Waiting { time_ms, targets });
        }
        self.seen = Instant::now();
        self.looked = None;
    }

    /// Scans some of the records up to `archived` that were archived earlier. Returns whether there
    /// are more.
    pub(super) fn scan(&mut self, log: &dyn Log, archived: Offset) -> Result<bool, ReadError> {
        // A record that cannot be read now is kept for later.
        while let Some(offset) = self.recalled.last() {
            let record = log.get(*offset)?;
            self.recalled.pop();
            let Some(record) = record else { continue };
            if let Some(erasure) = erasure(&record) {
                self.put_aside(&record, &erasure.divided().0);
            }
        }
        if self.scanned < archived {
            for record in log.read(self.scanned.next(), SCAN)? {
                if record.offset() <= archived {
                    self.note(&record);
                }
            }
        }
        Ok(self.scanned < archived)
    }

    /// The segments that [`Self::carry_out`] rewrites at `now_ms`.
    pub(super) fn due(&self, now_ms: u64) -> Result<Vec<PathBuf>, ArchiveError> {
        let due = self.plan(now_ms)?.into_iter().filter(|(.., is_due)| *is_due);
        Ok(due.map(|(path, ..)| path).collect())
    }

    /// Whether segments must be rewritten at `now_ms`.
    pub(super) fn is_due(&mut self, now_ms: u64) -> Result<bool, ArchiveError> {
        if self.seen.elapsed() < self.options.erase_quiet {
            return Ok(false);
        }
        if !self.is_clean() {
            return Ok(true);
        }
        let is_soon = self.looked.is_some_and(|looked| looked.elapsed() < LOOK);
        if self.waiting.is_empty() || is_soon {
            return Ok(false);
        }
        self.looked = Some(Instant::now());
        Ok(!self.due(now_ms)?.is_empty())
    }

    /// How long [`Eraser::is_due`] stays false, unless more erasures arrive.
    pub(super) fn next_look(&self) -> Duration {
        let quiet = self.options.erase_quiet.saturating_sub(self.seen.elapsed());
        match self.looked {
            _ if !self.is_clean() => quiet,
            _ if self.waiting.is_empty() => LOOK,
            Some(looked) => quiet.max(LOOK.saturating_sub(looked.elapsed())),
            None => quiet,
        }
    }

    /// Whether nothing has to be erased at once.
    fn is_clean(&self) -> bool {
        self.targets.is_empty() && (!self.all || self.waiting.is_empty())
    }

    /// Puts the work off after a failure.
    pub(super) fn put_off(&mut self) {
        self.seen = Instant::now() + RETRY;
    }

    /// Every segment, with its first and last record, and whether it must be rewritten.
    fn plan(&self, now_ms: u64) -> Result<Vec<(PathBuf, Offset, Offset, bool)>, ArchiveError> {
        let segments = segments(&self.dir)?;
        let planned = segments.iter().enumerate().map(|(index, (first, path))| {
            let last = segments.get(index + 1).map_or(Offset::MAX, |(next, _)| next.prev());
            (path.clone(), *first, last, self.is_to_go(*first, last, now_ms))
        });
        Ok(planned.collect())
    }

    fn is_to_go(&self, first: Offset, last: Offset, now_ms: u64) -> bool {
        if self.targets.any_in(first, last) {
            return true;
        }
        let mut count = 0;
        for Waiting { time_ms, targets } in self.waiting.values() {
            let here = targets.count_in(first, last);
            let long = now_ms.saturating_sub(*time_ms) >= self.options.compact_after_ms;
            if here > 0 && (self.all || long) {
                return true;
            }
            count += here;
        }
        let records = last.min(self.scanned).get().saturating_sub(first.get()) + 1;
        count > 0
            && count.saturating_mul(100) >= records.saturating_mul(self.options.compact_percent)
    }

    /// Rewrites every segment that is due. Nobody may be writing to the last one.
    pub(super) fn carry_out(&mut self, log: &dyn Log, now_ms: u64) -> Result<(), ArchiveError> {
        let mut all = self.targets.clone();
        self.waiting.values().for_each(|waiting| all.extend(&waiting.targets));
        for (path, first, last, is_due) in self.plan(now_ms)? {
            if !is_due {
                continue;
            }
            rewrite(&path, &all, log, last == Offset::MAX)?;
            self.waiting.retain(|_, waiting| {
                waiting.targets.remove_in(first, last);
                !waiting.targets.is_empty()
            });
        }
        self.targets = Targets::default();
        self.all = false;
        self.write_note()
    }

    /// The offset up to which everything that was erased for a reason has left the archive.
    pub(super) fn erased(&self) -> Offset {
        if self.is_clean() { self.scanned } else { self.noted }
    }

    /// Updates the note when it has fallen far behind.
    pub(super) fn keep_note(&mut self) -> Result<(), ArchiveError> {
        let behind = self.scanned.get().saturating_sub(self.noted.get());
        if self.is_clean() && behind >= NOTE_EVERY { self.write_note() } else { Ok(()) }
    }

    fn write_note(&mut self) -> Result<(), ArchiveError> {
        let path = note_path(&self.dir);
        let waiting = self.waiting.keys().chain(&self.recalled);
        let lines = [&self.scanned].into_iter().chain(waiting);
        let text: String = lines.map(|offset| format!("{offset}\n")).collect();
        disk::write_whole(&path, text.as_bytes()).map_err(ArchiveError::io(&path))?;
        self.noted = self.scanned;
        Ok(())
    }
}

/// The content of the file `erased`.
#[derive(Default)]
struct Note {
    /// Everything that `log.erase` records up to here erased for a reason has left the archive.
    upto: Offset,
    /// The `log.erase` records up to there whose superseded payloads may still be in the archive.
    waiting: Vec<Offset>,
}

/// Whether everything that the `log.erase` record at `record`, and those before it, erased for a
/// reason has left the archive in `dir`, according to the note; with `whole`, also the superseded
/// payloads that this record erased.
pub fn has_erased(dir: &Path, record: Offset, whole: bool) -> bool {
    let Note { upto, waiting } = read_note(&note_path(dir)).unwrap_or_default();
    upto >= record && !(whole && waiting.contains(&record))
}

/// The offset up to which every `log.erase` record has been carried out in the archive in `dir`;
/// with `all`, superseded payloads included.
pub(super) fn carried_out(dir: &Path, all: bool) -> Result<Offset, ArchiveError> {
    let Note { upto, waiting } = read_note(&note_path(dir))?;
    let first = waiting.into_iter().min().filter(|_| all);
    Ok(first.map_or(upto, |first| upto.min(first.prev())))
}

fn note_path(dir: &Path) -> PathBuf {
    dir.join("erased")
}

fn read_note(path: &Path) -> Result<Note, ArchiveError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Note::default()),
        Err(error) => return Err(ArchiveError::io(path)(error)),
    };
    // An unreadable note is ignored: then everything is scanned.
    let offsets: Result<Vec<u64>, _> = text.lines().map(|line| line.trim().parse()).collect();
    let mut offsets = offsets.unwrap_or_default().into_iter().map(Offset::new);
    Ok(Note { upto: offsets.next().unwrap_or_default(), waiting: offsets.collect() })
}

/// Rewrites a segment, with the payloads of its targets as the log has them. All but the last one
/// are packed then.
fn rewrite(
    path: &Path,
    targets: &Targets,
    log: &dyn Log,
    is_last: bool,
) -> Result<(), ArchiveError> {
    let mut reader = SegmentReader::open(path)??;
    let mut copy = Replacement::begin(path, &mut reader, is_last)?;
    let mut changed = false;
    while let Some((mut record, mut frame)) = reader.next()?? {
        let offset = record.offset();
        if record.payload != Payload::Erased && targets.get(offset).is_some() {
            let ours = log.get(offset)?.ok_or(ReadError::Missing(offset))?;
            if ours.chain != record.chain {
                return Err(ReadError::Damaged { offset, source: CodecError::Chain }.into());
            }
            if ours.payload != record.payload {
                changed = true;
                record.payload = ours.payload;
                let encoded = codec::encode_frame(&record);
                frame = encoded.map_err(|source| ReadError::Damaged { offset, source })?.into();
            }
        }
        copy.append(&frame, record.chain)?;
    }
    if !is_last && !reader.is_sealed() {
        return Err(reader.damaged("it is not sealed"));
    }
    if changed {
        copy.put_in_place(&mut reader, path)?;
    } else {
        copy.abandon()?;
    }
    // A crash may have left it after the packed one was written.
    if is_packed(path) { remove(&plain(path)) } else { Ok(()) }
}

/// A segment that is to replace another one.
enum Replacement {
    Plain(Box<Segment>, PathBuf),
    Packed(Box<volume::Writer>),
}

impl Replacement {
    fn begin(path: &Path, reader: &mut SegmentReader, is_last: bool) -> Result<Self, ArchiveError> {
        let (first, before) = (reader.checker().last().next(), *reader.checker().chain());
        if !is_last || is_packed(path) {
            let dir = path.parent().unwrap_or(path);
            let writer = volume::Writer::create(dir, first, before, Packing::SEQUENTIAL)?;
            return Ok(Self::Packed(Box::new(writer)));
        }
        let partial = path.with_extension(REWRITING);
        remove(&partial)?;
        let segment = Segment::create_at(partial.clone(), first, &before)?;
        Ok(Self::Plain(Box::new(segment), partial))
    }

    fn append(&mut self, frame: &[u8], chain: Chain) -> Result<(), ArchiveError> {
        match self {
            Self::Plain(segment, _) => segment.append(frame),
            Self::Packed(writer) => Ok(writer.append(frame, chain)?),
        }
    }

    fn put_in_place(self, reader: &mut SegmentReader, path: &Path) -> Result<(), ArchiveError> {
        match self {
            Self::Plain(mut segment, partial) => {
                if reader.is_sealed() {
                    segment.seal(reader.checker().chain())?;
                } else {
                    segment.sync()?;
                }
                disk::put_in_place(&partial, path).map_err(ArchiveError::io(path))
            }
            Self::Packed(writer) => {
                let volume = writer.finish()?;
                remove(&plain(volume.path()))
            }
        }
    }

    fn abandon(self) -> Result<(), ArchiveError> {
        match self {
            Self::Plain(segment, partial) => {
                drop(segment);
                remove(&partial)
            }
            Self::Packed(writer) => Ok(writer.abandon()?),
        }
    }
}
