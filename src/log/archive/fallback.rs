//! The archive as a second copy, for records that the log itself cannot read.
//!
//! The archive may still contain erased payloads. [`ArchiveFallback`] knows which, and returns
//! every record as the log had it.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use super::{ArchiveError, ArchiveReader, eraser};
use crate::{
    ReadError,
    erase::{EraseError, Targets, erasure, remainder},
};
use logcabin_record::{Chain, Offset, Payload, Record};

/// Which erasures the archive's records must reflect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Erased {
    /// Content that was erased for a reason is gone. Superseded payloads, such as a receipt that
    /// moved on, may be there.
    ForReason,
    /// Everything erased is gone. This may read a week of the archive.
    All,
}

/// Why an archive cannot replace the log's records.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FallbackError {
    /// It does not contain these records.
    #[error("the archive {} does not hold the records {first} to {last}", .dir.display())]
    Lacks {
        /// The archive.
        dir: PathBuf,
        /// The first record.
        first: Offset,
        /// The last record.
        last: Offset,
    },
    /// It belongs to another log.
    #[error("the archive {} holds other records than the log", .0.display())]
    Foreign(PathBuf),
    /// It cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Erasures that the archive has not seen cannot be read from the log.
    #[error(transparent)]
    Log(#[from] ReadError),
    /// An erasure that the log carried out cannot be carried out on the archive's record.
    #[error(transparent)]
    Erase(#[from] EraseError),
}

/// An archive that replaces unreadable records of the log.
#[derive(Debug)]
pub(crate) struct ArchiveFallback {
    dir: PathBuf,
    known: Mutex<Option<ErasedPayloads>>,
    /// The first records of the damaged blocks that were reported.
    reported: Mutex<HashSet<Offset>>,
}

/// What was erased from the log and may still be in the archive.
#[derive(Debug)]
struct ErasedPayloads {
    erased: Erased,
    upto: Offset,
    targets: Targets,
}

/// Wanted records, and how to tell that they are the log's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRange {
    pub(crate) first: Offset,
    pub(crate) last: Offset,
    /// A record at or after the last wanted one, with its chain value, which the archive must lead
    /// to.
    pub(crate) proof: (Offset, Chain),
}

impl ArchiveFallback {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), known: Mutex::default(), reported: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether damage at the record `first` has not been reported before.
    pub(crate) fn is_news(&self, first: Offset) -> bool {
        self.reported.lock().insert(first)
    }

    /// The wanted records. `get` reads records that the log has and the archive does not have yet.
    /// Blocks.
    pub(crate) fn records(
        &self,
        wanted: RecordRange,
        erased: Erased,
        get: impl FnMut(Offset) -> Result<Option<Record>, ReadError>,
    ) -> Result<Vec<Record>, FallbackError> {
        let RecordRange { first, last, proof: (end, chain) } = wanted;
        let lacks = || FallbackError::Lacks { dir: self.dir.clone(), first, last };
        let mut records = Vec::new();
        let mut reached = None;
        for record in ArchiveReader::open(&self.dir)?.records(first) {
            let record = record?;
            let offset = record.offset();
            if offset == end {
                reached = Some(record.chain);
            }
            if offset <= last {
                records.push(record);
            }
            if offset >= end {
                break;
            }
        }
        let is_whole = records.first().is_some_and(|record| record.offset() == first)
            && records.last().is_some_and(|record| record.offset() == last);
        match reached {
            Some(reached) if reached != chain => {
                return Err(FallbackError::Foreign(self.dir.clone()));
            }
            Some(_) if is_whole => {}
            _ => return Err(lacks()),
        }
        let mut known = self.known.lock();
        let known = self.refresh(&mut known, erased, get)?;
        for record in &mut records {
            if matches!(record.payload, Payload::Present(_))
                && let Some(target) = known.targets.get(record.offset())
            {
                record.payload = remainder(record, &target)?;
            }
        }
        Ok(records)
    }

    /// Updates the known erasures up to the log's end.
    fn refresh<'a>(
        &self,
        known: &'a mut Option<ErasedPayloads>,
        erased: Erased,
        mut get: impl FnMut(Offset) -> Result<Option<Record>, ReadError>,
    ) -> Result<&'a ErasedPayloads, FallbackError> {
        let mut next = match known.take() {
            Some(known) if known.erased >= erased => known,
            _ => {
                let upto = eraser::carried_out(&self.dir, erased == Erased::All)?;
                ErasedPayloads { erased, upto, targets: Targets::default() }
            }
        };
        for record in ArchiveReader::open(&self.dir)?.records(next.upto.next()) {
            let record = record?;
            if record.offset() > next.upto {
                next.note(&record);
            }
        }
        while let Some(record) = get(next.upto.next())? {
            next.note(&record);
        }
        Ok(known.insert(next))
    }
}

impl ErasedPayloads {
    fn note(&mut self, record: &Record) {
        self.upto = record.offset();
        if let Some(erasure) = erasure(record) {
            self.targets.add(&erasure);
        }
    }
}
