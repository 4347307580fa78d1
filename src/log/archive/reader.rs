//! Reads an archive back: its segments in sequence, as one verified series of records.

use std::{
    collections::VecDeque,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    ArchiveError,
    segment::{SegmentFault, SegmentReader, record_follows, segments},
};
use crate::{VerifyError, erase::Audit, fault::Fault, verify::Checker};
use logcabin_record::{CHAIN_START, Chain, Offset, Record, codec::CodecError};

/// The records of an archive.
#[derive(Debug)]
pub struct ArchiveReader {
    segments: Vec<(Offset, PathBuf)>,
}

impl ArchiveReader {
    /// Opens the archive in `dir`, which may still be growing: each segment is read as far as it
    /// reaches when the reader gets to it.
    pub fn open(dir: &Path) -> Result<Self, ArchiveError> {
        // While a segment is packed, a listing may have neither of its names.
        let mut listed = segments(dir)?;
        loop {
            let again = segments(dir)?;
            if again == listed {
                return Ok(Self { segments: listed });
            }
            listed = again;
        }
    }

    /// Reads these segments, each with its first offset, in order.
    pub const fn of(segments: Vec<(Offset, PathBuf)>) -> Self {
        Self { segments }
    }

    /// The records of one segment, which must follow those that `before` has checked; `None` for
    /// the first segment.
    pub fn segment(path: PathBuf, before: Option<Checker>) -> ArchiveRecords {
        let mut records = Self::of(vec![(Offset::ZERO, path)]).records(Offset::ZERO);
        records.checker = before;
        records
    }

    /// The offset of the archive's first record; `None` if it is empty.
    pub fn first(&self) -> Option<Offset> {
        self.segments.first().map(|(first, _)| *first)
    }

    /// The offset of the first record of each segment, in order.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Offset> {
        self.segments.iter().map(|(first, _)| *first)
    }

    /// The records from `from` on, in order. Every hash, the chain across segments, and every seal
    /// are verified. The iterator ends after an error. It reads the segment of `from` from its
    /// start.
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
    /// The end of the previous segment.
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
    /// The torn end that was left out, once the iterator has ended.
    pub const fn torn(&self) -> Option<&TornTail> {
        self.torn.as_ref()
    }

    /// The checker of all records, once the iterator has ended.
    pub fn into_checker(self) -> Option<Checker> {
        self.checker
    }

    fn advance(&mut self) -> Result<Option<Record>, ArchiveError> {
        loop {
            let Some(reader) = &mut self.current else {
                let Some(path) = self.segments.pop_front() else { return Ok(None) };
                self.current = self.open_segment(&path)?;
                continue;
            };
            match reader.next()? {
                Ok(Some((record, _))) => {
                    if record.offset() >= self.from {
                        return Ok(Some(record));
                    }
                }
                Ok(None) => {
                    if !reader.is_sealed() && !self.segments.is_empty() {
                        let what = "the segment is not sealed, though another follows it";
                        return Err(reader.damaged(what));
                    }
                    self.checker = Some(reader.checker().clone());
                    self.current = None;
                }
                Err(fault) => {
                    let last = reader.checker().last();
                    self.current = None;
                    self.end_torn(fault, last)?;
                }
            }
        }
    }

    fn open_segment(&mut self, path: &Path) -> Result<Option<SegmentReader>, ArchiveError> {
        let mut reader = match SegmentReader::open(path)? {
            Ok(reader) => reader,
            Err(fault) => {
                let last = self.checker.as_ref().map_or(Offset::ZERO, Checker::last);
                self.end_torn(fault, last)?;
                return Ok(None);
            }
        };
        if let Some(before) = self.checker.take() {
            if before.last() != reader.checker().last() {
                let missing = before.last().next();
                return Err(ArchiveError::Gap { missing, next: path.to_owned() });
            }
            if before.chain() != reader.checker().chain() {
                return Err(ArchiveError::Damaged {
                    path: path.to_owned(),
                    at: 0,
                    reason: CodecError::Chain.to_string(),
                });
            }
            *reader.checker() = before;
        }
        Ok(Some(reader))
    }

    /// Treats a fault as the end of the archive if a crash can have caused it: it is in the last
    /// segment and no intact record follows it.
    fn end_torn(&mut self, fault: SegmentFault, last: Offset) -> Result<(), ArchiveError> {
        let is_damage = !self.segments.is_empty()
            || !fault.may_be_torn
            || record_follows(&fault, last)?.is_some();
        if is_damage {
            return Err(fault.into());
        }
        let SegmentFault { path, at, length, .. } = fault;
        self.torn = Some(TornTail { path, at, bytes: length.saturating_sub(at) });
        Ok(())
    }
}

impl Iterator for ArchiveRecords {
    type Item = Result<Record, ArchiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.advance();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// The bytes after the last intact record of an archive's last segment: an entry that was being
/// written when the archiver was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub path: PathBuf,
    /// The end of its last intact entry.
    pub at: u64,
    /// How many bytes follow.
    pub bytes: u64,
}

/// The result of [`verify_archive`].
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

/// Verifies a whole archive, that every command in it can be decoded, and that a `log.erase` record
/// names every missing payload. `on_progress` is called with each offset.
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
    let mut audit = Audit::default();
    for record in records.by_ref() {
        let record = record?;
        audit.note(&record);
        let unreadable =
            |error| VerifyError { offset: record.offset(), fault: Fault::Command(error) };
        record.command().map_err(unreadable)?;
        verified.records += 1;
        verified.last = record.offset();
        verified.chain = record.chain;
        on_progress(record.offset());
    }
    audit.finish()?;
    verified.torn = records.torn().cloned();
    Ok(verified)
}
