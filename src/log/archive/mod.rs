//! The archive: a copy of every durable record in plain files that can be read without a database.
//!
//! The [`Archiver`] follows the log's durable watermark in its own thread and copies new records
//! into *segments* (`log_format.md`, "Archive segments"), at most [`LAG`] behind. It only reads the
//! log, so it can be slow, fail and catch up without blocking anything. [`ArchiveReader`] reads an
//! archive back and verifies it; `logcabin_ops::restore` builds a new log from one. `archiver`
//! writes `segment` files and `reader` reads them; `packed` compresses sealed ones, and `eraser`
//! rewrites segments after an erasure;
//! `fallback` serves records that the log itself cannot read; `place` knows whose the directory is.
//!
//! **An archive that is not a prefix of the log is refused** ([`ArchiveError::Ahead`],
//! [`ArchiveError::Foreign`]) rather than moved aside: it may be the only good copy. An
//! administrator who lost the log's directory and starts the server must be told to restore before
//! the server takes a first write that could never be reconciled. Damage at the archive's end, in
//! contrast, is cut off and copied again, because the log has those records.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{ReadError, VerifyError};
use logcabin_base::owner::OwnerError;
use logcabin_record::Offset;

mod archiver;
mod eraser;
mod fallback;
mod packed;
mod place;
mod reader;
mod segment;
#[cfg(test)]
mod tests;

pub use archiver::Archiver;
pub use eraser::has_erased;
pub(crate) use fallback::{ArchiveFallback, Erased, FallbackError, RecordRange};
pub use reader::{ArchiveReader, ArchiveRecords, TornTail, VerifiedArchive, verify_archive};
pub use segment::{MAGIC, MAX_FRAME_BYTES, Segment, TAG_RECORD, TAG_SEAL};

/// How far the archive may lag the log while its disk works.
pub const LAG: Duration = Duration::from_secs(1);

/// Small enough to copy elsewhere one by one, large enough that a year of a busy server is
/// thousands of files and not millions.
pub const DEFAULT_SEGMENT_BYTES: u64 = 64 * 1024 * 1024;

/// Long enough that one sweep rewrites each segment once; far less than the time between two
/// sweeps.
pub const DEFAULT_ERASE_QUIET: Duration = Duration::from_secs(2);

/// At this share a segment is rewritten at most four times before nearly all of it is superseded.
pub const DEFAULT_COMPACT_PERCENT: u64 = 25;

/// Superseded payloads may reveal who was where, and when. For these alone, a segment is rewritten
/// at most once in this time, a week.
pub const DEFAULT_COMPACT_AFTER_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// Where and how the archive is kept.
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// The archive's directory; nothing else should be in it.
    pub dir: PathBuf,
    /// The data directory of the log. A directory outside of it is claimed for it; with none,
    /// nothing is claimed.
    pub data_dir: Option<PathBuf>,
    /// A segment is sealed at the end of the batch with which it reaches this size, in bytes.
    pub segment_bytes: u64,
    /// Erasures come in bursts. Segments are rewritten this long after the last one of a burst.
    pub erase_quiet: Duration,
    /// A segment is rewritten for superseded payloads alone once these are this share of its
    /// records, in percent.
    pub compact_percent: u64,
    /// ... or once they have waited this long, in milliseconds.
    pub compact_after_ms: u64,
}

impl ArchiveOptions {
    /// The defaults for an archive in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            data_dir: None,
            segment_bytes: DEFAULT_SEGMENT_BYTES,
            erase_quiet: DEFAULT_ERASE_QUIET,
            compact_percent: DEFAULT_COMPACT_PERCENT,
            compact_after_ms: DEFAULT_COMPACT_AFTER_MS,
        }
    }
}

/// The default directory of the archive of a data directory.
pub fn archive_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("archive")
}

/// Why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file or directory could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the archive segment {} is damaged at byte {at}: {reason}", .path.display())]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The position of the first damaged entry.
        at: u64,
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
    #[error(
        "the archive {} is not an archive of this log: its record {at} differs. Name another archive directory, or restore from this one with `logcabin restore --from-archive`",
        .dir.display()
    )]
    Foreign {
        /// The archive.
        dir: PathBuf,
        /// The last record of the archive, where the two were compared.
        at: Offset,
    },
    /// The directory is another server's.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The directory was renamed or removed while the server ran.
    #[error("the archive {} has vanished while the server ran: a new one is made in its place", .0.display())]
    Vanished(PathBuf),
    #[error(
        "the archive {} has vanished, and with it the disk that it was on: nothing is archived until that is mounted again",
        .0.display()
    )]
    Unmounted(PathBuf),
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
