//! The archive as a second copy: records that the log itself cannot read any more.
//!
//! The archive may still hold what was erased from the log. [`Spare`] knows what that is, and gives
//! every record as the log had it.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use super::{ArchiveError, ArchiveReader, eraser};
use crate::{
    log::{
        ReadError,
        erase::{EraseError, Targets, erasure, remainder},
    },
    record::{Chain, Offset, Payload, Record},
};

/// How exactly the records of an archive are to be as the log had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Erased {
    /// Without what was erased for a reason. What had done its work, such as a receipt that moved
    /// on, may be there.
    ForReason,
    /// Without anything that was erased. This may read the archive of a week.
    All,
}

/// Why an archive cannot stand in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpareError {
    /// It does not reach so far.
    #[error("the archive {} does not hold the records {first} to {last}", .dir.display())]
    Lacks {
        /// The archive.
        dir: PathBuf,
        /// The first record.
        first: Offset,
        /// The last record.
        last: Offset,
    },
    /// It is another log's.
    #[error("the archive {} holds other records than the log", .0.display())]
    Foreign(PathBuf),
    /// It cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// What was erased meanwhile cannot be read from the log.
    #[error(transparent)]
    Log(#[from] ReadError),
    /// An erasure that the log carried out cannot be carried out on the archive's record.
    #[error(transparent)]
    Erase(#[from] EraseError),
}

/// An archive that stands in for the log.
#[derive(Debug)]
pub(crate) struct Spare {
    dir: PathBuf,
    known: Mutex<Option<Known>>,
    /// The first records of the damaged blocks that were reported.
    reported: Mutex<HashSet<Offset>>,
}

/// What is erased from the log and may still be in the archive.
#[derive(Debug)]
struct Known {
    erased: Erased,
    upto: Offset,
    targets: Targets,
}

/// Records that are wanted, and how to tell that they are the log's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) first: Offset,
    pub(crate) last: Offset,
    /// A record at or after the last, and its chain value, which the archive must lead to.
    pub(crate) proof: (Offset, Chain),
}

impl Spare {
    /// The archive in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), known: Mutex::default(), reported: Mutex::default() }
    }

    /// Where it is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether damage at the record `first` is reported here for the first time.
    pub(crate) fn is_news(&self, first: Offset) -> bool {
        self.reported.lock().insert(first)
    }

    /// The wanted records. `get` reads what the log has and the archive has not yet. Blocks.
    ///
    /// # Errors
    /// When the archive does not hold them, is damaged, or is another log's.
    pub(crate) fn records(
        &self,
        wanted: Wanted,
        erased: Erased,
        get: impl FnMut(Offset) -> Result<Option<Record>, ReadError>,
    ) -> Result<Vec<Record>, SpareError> {
        let Wanted { first, last, proof: (end, chain) } = wanted;
        let lacks = || SpareError::Lacks { dir: self.dir.clone(), first, last };
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
            Some(reached) if reached != chain => return Err(SpareError::Foreign(self.dir.clone())),
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

    /// Brings what is known of erasures up to the log's end.
    fn refresh<'a>(
        &self,
        known: &'a mut Option<Known>,
        erased: Erased,
        mut get: impl FnMut(Offset) -> Result<Option<Record>, ReadError>,
    ) -> Result<&'a Known, SpareError> {
        let mut next = match known.take() {
            Some(known) if known.erased >= erased => known,
            _ => {
                let upto = eraser::carried_out(&self.dir, erased == Erased::All)?;
                Known { erased, upto, targets: Targets::default() }
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

impl Known {
    fn note(&mut self, record: &Record) {
        self.upto = record.offset();
        if let Some(erasure) = erasure(record) {
            self.targets.add(&erasure);
        }
    }
}
