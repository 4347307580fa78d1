//! Erasing from the archive: segments that hold what a `log.erase` record names are written anew.
//!
//! The log has carried out an erasure before its record can be read, so what is left of a payload is
//! taken from the log. The new segment replaces the old one by a rename: a reader, and a crash, meet
//! one or the other, whole. How far the archive has come is noted in a file beside the segments; what
//! is done twice changes nothing.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    ArchiveError, ArchiveOptions,
    segment::{Segment, SegmentReader, segments},
};
use crate::{
    disk,
    log::{
        Log, ReadError,
        erase::{Targets, erasure},
    },
    record::{
        Offset, Payload, Record,
        codec::{self, CodecError},
    },
};

/// The pause after a failure, which mostly is a damaged segment or a full disk.
const RETRY: Duration = Duration::from_secs(60);

/// How many records of an archive from before are looked through at a time.
const SCAN: usize = 4096;

/// The note is renewed after this many records without an erasure, so that the next start need not
/// look through them.
const NOTE_EVERY: u64 = 100_000;

/// What is to be erased from an archive.
pub(super) struct Eraser {
    dir: PathBuf,
    targets: Targets,
    /// All `log.erase` records up to here are in `targets` or carried out.
    scanned: Offset,
    /// What the note says.
    noted: Offset,
    /// When the last one came.
    seen: Instant,
    quiet: Duration,
}

impl Eraser {
    /// Where the archive had come to.
    pub(super) fn open(options: &ArchiveOptions) -> Result<Self, ArchiveError> {
        let noted = read_note(&note_path(&options.dir))?;
        Ok(Self {
            dir: options.dir.clone(),
            targets: Targets::default(),
            scanned: noted,
            noted,
            seen: Instant::now(),
            quiet: options.erase_quiet,
        })
    }

    /// Notes what the next archived record says.
    pub(super) fn note(&mut self, record: &Record) {
        if record.offset() != self.scanned.next() {
            return;
        }
        self.scanned = record.offset();
        if let Some(erasure) = erasure(record) {
            self.targets.add(&erasure);
            self.seen = Instant::now();
        }
    }

    /// Looks through some of the records up to `archived` that were archived before. Says whether
    /// there are more.
    pub(super) fn scan(&mut self, log: &dyn Log, archived: Offset) -> Result<bool, ReadError> {
        if self.scanned < archived {
            for record in log.read(self.scanned.next(), SCAN)? {
                if record.offset() <= archived {
                    self.note(&record);
                }
            }
        }
        Ok(self.scanned < archived)
    }

    /// Whether segments are to be written anew now.
    pub(super) fn is_due(&self) -> bool {
        !self.targets.is_empty() && self.seen.elapsed() >= self.quiet
    }

    /// After a failure.
    pub(super) fn put_off(&mut self) {
        self.seen = Instant::now() + RETRY;
    }

    /// Writes anew every segment that holds what is to be erased. Nobody may be writing the last one.
    pub(super) fn carry_out(&mut self, log: &dyn Log) -> Result<(), ArchiveError> {
        let segments = segments(&self.dir)?;
        for (index, (first, path)) in segments.iter().enumerate() {
            let last = segments.get(index + 1).map_or(Offset::MAX, |(next, _)| next.prev());
            if self.targets.any_in(*first, last) {
                rewrite(path, *first, &self.targets, log)?;
            }
        }
        self.targets = Targets::default();
        self.write_note()
    }

    /// How far everything is erased.
    pub(super) fn erased(&self) -> Offset {
        if self.targets.is_empty() { self.scanned } else { self.noted }
    }

    /// Renews the note when it has fallen far behind.
    pub(super) fn keep_note(&mut self) -> Result<(), ArchiveError> {
        let behind = self.scanned.get().saturating_sub(self.noted.get());
        if self.targets.is_empty() && behind >= NOTE_EVERY { self.write_note() } else { Ok(()) }
    }

    fn write_note(&mut self) -> Result<(), ArchiveError> {
        let path = note_path(&self.dir);
        let text = format!("{}\n", self.scanned);
        disk::write_whole(&path, text.as_bytes()).map_err(ArchiveError::io(&path))?;
        self.noted = self.scanned;
        Ok(())
    }
}

/// The offset up to which everything that `log.erase` records name has left the archive in `dir`, as far as
/// that is noted.
#[must_use]
pub fn erased(dir: &Path) -> Offset {
    read_note(&note_path(dir)).unwrap_or_default()
}

fn note_path(dir: &Path) -> PathBuf {
    dir.join("erased")
}

fn read_note(path: &Path) -> Result<Offset, ArchiveError> {
    match std::fs::read_to_string(path) {
        // What cannot be read counts for nothing: then all is looked through.
        Ok(text) => Ok(Offset::new(text.trim().parse().unwrap_or(0))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Offset::ZERO),
        Err(error) => Err(ArchiveError::io(path)(error)),
    }
}

/// Writes a segment anew, with the payloads of its targets as the log has them.
fn rewrite(
    path: &Path,
    first: Offset,
    targets: &Targets,
    log: &dyn Log,
) -> Result<(), ArchiveError> {
    let damaged = |fault: super::segment::SegmentFault| ArchiveError::Damaged {
        path: fault.path,
        at: fault.at,
        reason: fault.reason,
    };
    let partial = path.with_extension("rewriting");
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(ArchiveError::io(&partial)(error));
        }
        _ => {}
    }
    let mut reader = SegmentReader::open(path)?.map_err(damaged)?;
    let mut segment = Segment::create_at(partial.clone(), first, reader.checker.chain())?;
    let mut changed = false;
    while let Some((mut record, mut frame)) = reader.next()?.map_err(damaged)? {
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
        segment.append(&frame)?;
    }
    if !changed {
        drop(segment);
        return std::fs::remove_file(&partial).map_err(ArchiveError::io(&partial));
    }
    if reader.sealed {
        segment.seal(reader.checker.chain())?;
    } else {
        segment.sync()?;
    }
    disk::put_in_place(&partial, path).map_err(ArchiveError::io(path))
}
