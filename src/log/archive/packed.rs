//! Packed segments: sealed ones, as volumes (`log_format.md`, "Volumes").
//!
//! Plain segments are large, and are written record by record. Once one is sealed, the [`Packer`]
//! writes a volume with the same records beside it, reads that to its end, and removes the plain
//! segment. A reader, and a crash, see either or both.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    ArchiveError,
    segment::{SegmentFault, SegmentReader, is_packed, plain, segments},
};
use crate::{
    block::Block,
    verify::Checker,
    volume::{Packing, Volume, VolumeError, Writer},
};
use logcabin_record::{CHAIN_START, Offset, Record, codec::Frame};

/// How many bytes of records are packed, or read again, at a time: a fraction of a second.
const PIECE_BYTES: usize = 2 * 1024 * 1024;

/// The pause after a failure, usually a full disk.
const RETRY: Duration = Duration::from_secs(60);

impl From<VolumeError> for ArchiveError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::Io { path, source } => Self::Io { path, source },
            VolumeError::Damaged { path, what } => Self::Damaged { path, at: 0, reason: what },
        }
    }
}

/// Reads a packed segment.
pub(super) struct PackedReader {
    pub(super) path: PathBuf,
    volume: Volume,
    next_block: usize,
    block: Option<Block>,
    pub(super) checker: Checker,
}

impl PackedReader {
    pub(super) fn open(path: &Path) -> Result<Result<Self, SegmentFault>, ArchiveError> {
        let volume = match Volume::open(path.to_owned()) {
            Ok(volume) => volume,
            Err(VolumeError::Damaged { path, what }) => return Ok(Err(fault(path, &what))),
            Err(error) => return Err(error.into()),
        };
        let before = volume.first.prev();
        if before == Offset::ZERO && volume.before != CHAIN_START {
            return Ok(Err(fault(path.to_owned(), "the chain does not begin at its start")));
        }
        let checker = Checker::from_chain(before, volume.before);
        Ok(Ok(Self { path: path.to_owned(), volume, next_block: 0, block: None, checker }))
    }

    pub(super) fn next(
        &mut self,
    ) -> Result<Result<Option<(Record, Bytes)>, SegmentFault>, ArchiveError> {
        let offset = self.checker.last().next();
        if offset > self.volume.last {
            let is_whole = *self.checker.chain() == self.volume.chain;
            return Ok(if is_whole {
                Ok(None)
            } else {
                Err(self.fault("its last chain value is not that of its last record"))
            });
        }
        let kept = self.block.as_ref().and_then(|block| block.get(offset));
        let frame = match kept {
            Some(frame) => frame,
            None => match self.volume.block(self.next_block) {
                Ok(block) => {
                    self.next_block += 1;
                    let frame = block.get(offset);
                    self.block = Some(block);
                    let Some(frame) = frame else {
                        return Ok(Err(self.fault("a record is missing")));
                    };
                    frame
                }
                Err(VolumeError::Damaged { what, .. }) => return Ok(Err(self.fault(&what))),
                Err(error) => return Err(error.into()),
            },
        };
        let record = match Frame::decode(&frame) {
            Ok(frame) => frame.record,
            Err(error) => return Ok(Err(self.fault(&error.to_string()))),
        };
        match self.checker.check(&record) {
            Ok(()) => Ok(Ok(Some((record, frame)))),
            Err(error) => Ok(Err(self.fault(&error.to_string()))),
        }
    }

    pub(super) fn fault(&self, reason: &str) -> SegmentFault {
        fault(self.path.clone(), reason)
    }
}

/// A volume is complete before it gets its name, so any fault is damage.
fn fault(path: PathBuf, reason: &str) -> SegmentFault {
    SegmentFault { path, at: 0, length: 0, may_be_torn: false, reason: reason.to_owned() }
}

/// Packs the sealed segments of an archive, one at a time.
pub(super) struct Packer {
    dir: PathBuf,
    work: Work,
    /// How many segments the writer had sealed when there was nothing left to pack.
    idle_at: Option<u64>,
    /// Segments that cannot be read.
    damaged: BTreeSet<PathBuf>,
    put_off: Instant,
}

enum Work {
    None,
    Packing(SegmentReader, Box<Writer>),
    /// Reads a packed segment, before the plain one is removed.
    Checking(SegmentReader),
}

impl Work {
    fn checking(packed: &Path) -> Result<Self, ArchiveError> {
        Ok(Self::Checking(SegmentReader::open(packed)??))
    }
}

impl Packer {
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            work: Work::None,
            idle_at: None,
            damaged: BTreeSet::new(),
            put_off: Instant::now(),
        }
    }

    /// Does a piece of the work, if there is any. `sealed` is how many segments the writer has
    /// sealed. Returns whether there is more.
    pub(super) fn step(&mut self, sealed: u64) -> bool {
        if Instant::now() < self.put_off || self.idle_at == Some(sealed) {
            return false;
        }
        match self.try_step() {
            Ok(true) => true,
            Ok(false) => {
                self.idle_at = Some(sealed);
                false
            }
            Err(error) => {
                tracing::error!(%error, "a segment of the archive cannot be packed");
                match error {
                    ArchiveError::Damaged { path, .. } => drop(self.damaged.insert(plain(&path))),
                    _ => self.put_off = Instant::now() + RETRY,
                }
                self.stop();
                false
            }
        }
    }

    /// Gives up what is not finished, if it is one of these segments that are about to change.
    pub(super) fn make_way(&mut self, changing: &[PathBuf]) {
        let is_at = match &self.work {
            Work::None => None,
            Work::Packing(reader, _) | Work::Checking(reader) => reader.path().file_stem(),
        };
        if is_at.is_some_and(|at| changing.iter().any(|path| path.file_stem() == Some(at))) {
            self.stop();
        }
    }

    /// Gives up what is not finished.
    pub(super) fn stop(&mut self) {
        if let Work::Packing(_, writer) = std::mem::replace(&mut self.work, Work::None) {
            // Otherwise the next attempt overwrites it.
            let _ = writer.abandon();
        }
        self.idle_at = None;
    }

    fn try_step(&mut self) -> Result<bool, ArchiveError> {
        let mut bytes = 0;
        match &mut self.work {
            Work::None => match self.next()? {
                Work::None => return Ok(false),
                next => self.work = next,
            },
            Work::Packing(reader, writer) => {
                while bytes < PIECE_BYTES {
                    if let Some((record, frame)) = reader.next()?? {
                        writer.append(&frame, record.chain)?;
                        bytes += frame.len();
                        continue;
                    }
                    if !reader.is_sealed() {
                        return Err(reader.damaged("it is not sealed"));
                    }
                    if let Work::Packing(_, writer) = std::mem::replace(&mut self.work, Work::None)
                    {
                        self.work = Work::checking(writer.finish()?.path())?;
                    }
                    break;
                }
            }
            Work::Checking(reader) => {
                while bytes < PIECE_BYTES {
                    match reader.next()? {
                        Ok(Some((_, frame))) => bytes += frame.len(),
                        Ok(None) => {
                            remove(&plain(reader.path()))?;
                            self.work = Work::None;
                            break;
                        }
                        Err(_) => {
                            let plain = plain(reader.path());
                            self.work = self.packing(&plain)?;
                            break;
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// What to do next: with what a crash interrupted, or with the first plain segment to which no
    /// records are added any more.
    fn next(&self) -> Result<Work, ArchiveError> {
        let segments = segments(&self.dir)?;
        let sealed = segments.split_last().map_or(&[][..], |(_, sealed)| sealed);
        for (_, path) in &segments {
            let plain = plain(path);
            if is_packed(path) && plain.exists() && !self.damaged.contains(&plain) {
                return match Work::checking(path) {
                    Err(ArchiveError::Damaged { .. }) => self.packing(&plain),
                    begun => begun,
                };
            }
        }
        for (_, path) in sealed {
            if !is_packed(path) && !self.damaged.contains(path) {
                return self.packing(path);
            }
        }
        Ok(Work::None)
    }

    /// Packs a plain segment. What is packed of it already is replaced.
    fn packing(&self, plain: &Path) -> Result<Work, ArchiveError> {
        let mut reader = SegmentReader::open(plain)??;
        let (first, before) = (reader.checker().last().next(), *reader.checker().chain());
        let writer = Writer::create(&self.dir, first, before, Packing::SEQUENTIAL)?;
        Ok(Work::Packing(reader, Box::new(writer)))
    }
}

pub(super) fn remove(path: &Path) -> Result<(), ArchiveError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ArchiveError::io(path)(error)),
        _ => Ok(()),
    }
}
