//! The directory of an archive: whose it is, and whether it is still there.
//!
//! A directory that another process renames or removes keeps its open files, so nothing would fail
//! until the next segment. The archiver therefore looks at its name again and again.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use super::{ArchiveError, ArchiveOptions};
use crate::{Log, identity};
use logcabin_base::{
    disk,
    owner::{Claim, Claimant, is_elsewhere},
};
use logcabin_record::Offset;

/// The setting that names the directory.
const SETTING: &str = "log.archive_dir";

/// A directory that the archiver writes to.
pub(super) struct Place {
    id: DirId,
    /// None for a directory inside of the data directory, whose lock protects it.
    claim: Option<Claim>,
}

/// What tells a directory from another one with the same path.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DirId {
    device: u64,
    number: u64,
}

impl DirId {
    fn of(dir: &Path) -> io::Result<Self> {
        let about = fs::metadata(dir)?;
        Ok(Self { device: about.dev(), number: about.ino() })
    }
}

impl Place {
    /// Creates the directory, if need be, and locks it.
    ///
    /// # Errors
    /// [`ArchiveError::Owner`] when it is another log's or another data directory's.
    pub(super) fn enter(options: &ArchiveOptions, log: &dyn Log) -> Result<Self, ArchiveError> {
        let dir = &options.dir;
        let failed = ArchiveError::io(dir);
        disk::make_private_dir(dir).map_err(ArchiveError::io(dir))?;
        let claim = match &options.data_dir {
            Some(data_dir) if is_elsewhere(dir, data_dir) => {
                let claimant = Claimant::new(data_dir, identity(log)?, SETTING);
                let claimant = claimant.map_err(ArchiveError::io(data_dir))?;
                Some(Claim::begin(dir, claimant)?)
            }
            _ => None,
        };
        Ok(Self { id: DirId::of(dir).map_err(failed)?, claim })
    }

    /// Notes whose the directory is, after its content was found to be a part of the log.
    pub(super) fn settle(&mut self, log: &dyn Log) -> Result<(), ArchiveError> {
        match &mut self.claim {
            Some(claim) => Ok(claim.settle(identity(log)?)?),
            None => Ok(()),
        }
    }

    /// Whether it is not noted yet to which log the directory belongs.
    pub(super) fn is_unsettled(&self, last: Offset) -> bool {
        last > Offset::ZERO && self.claim.as_ref().is_some_and(|claim| !claim.names_log())
    }

    /// Whether the path still leads to this directory. A disk that fails says nothing about that.
    pub(super) fn is_there(&self, dir: &Path) -> bool {
        match DirId::of(dir) {
            Ok(id) => id == self.id,
            Err(error) => !is_missing(&error),
        }
    }

    /// Whether a new directory at the path would be on the same disk. If it is not, a disk was
    /// unmounted, and the archive would fill the one below.
    pub(super) fn is_on_same_disk(&self, dir: &Path) -> bool {
        let device = match DirId::of(dir) {
            Err(error) if is_missing(&error) => dir.parent().map(DirId::of),
            found => Some(found),
        };
        matches!(device, Some(Ok(id)) if id.device == self.id.device)
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
