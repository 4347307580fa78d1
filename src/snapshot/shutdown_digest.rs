//! The digest of a server's projections when it stopped, for `logcabin verify` to compare with a
//! replay of the log.
//!
//! A [`ShutdownDigest`] is one small file in the data directory, replaced whole at each shutdown.
//! Nothing ever depends on it: it is evidence, not truth.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use logcabin_base::disk;
use logcabin_record::Offset;
use logcabin_state::State;

/// The file's name in the data directory, which is older than the signed checkpoints of the log
/// (`ops::proof`) and has nothing to do with them.
const FILE: &str = "checkpoint.json";

/// The digest of a server's projections as of an offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownDigest {
    /// The last record that was applied.
    pub offset: Offset,
    /// [`State::digest`] at that offset, in hex.
    pub digest: String,
    /// The version of logcabin that wrote it. Another version may compute other projections, so
    /// digests are comparable only within one version.
    pub version: String,
}

/// Why a digest could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ShutdownDigestError {
    /// The file or its directory failed.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is not the digest of a shutdown: {source}", .path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
}

impl ShutdownDigest {
    /// The digest of `state` as it stands. To be called while nothing is being applied.
    pub fn of(state: &State) -> Self {
        Self {
            offset: state.applied(),
            digest: state.digest().to_hex().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Stores the digest of `state` in `data_dir`, atomically replacing the previous one. To be
    /// called once the log is closed. Blocks.
    pub fn write(data_dir: &Path, state: &State) -> Result<Self, ShutdownDigestError> {
        let digest = Self::of(state);
        let path = data_dir.join(FILE);
        let failed = |source| ShutdownDigestError::Io { path: path.clone(), source };
        let text = serde_json::to_vec(&digest).map_err(|error| failed(error.into()))?;
        disk::write_whole(&path, &text).map_err(failed)?;
        Ok(digest)
    }

    /// The digest in `data_dir`; none if no server has stopped there yet.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, ShutdownDigestError> {
        let path = data_dir.join(FILE);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|source| ShutdownDigestError::Malformed { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ShutdownDigestError::Io { path, source }),
        }
    }

    /// Removes the digest of `data_dir`, which says nothing about a log that replaces the one
    /// it was made of.
    pub fn remove(data_dir: &Path) -> Result<(), ShutdownDigestError> {
        let path = data_dir.join(FILE);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ShutdownDigestError::Io { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Whether this version's digests are comparable with it.
    pub fn is_comparable(&self) -> bool {
        self.version == env!("CARGO_PKG_VERSION")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(ShutdownDigest::read(directory.path()).unwrap(), None);
        let state = State::default();
        let written = ShutdownDigest::write(directory.path(), &state).unwrap();
        assert_eq!(written, ShutdownDigest::of(&state));
        assert_eq!(ShutdownDigest::read(directory.path()).unwrap(), Some(written));
        ShutdownDigest::remove(directory.path()).unwrap();
        ShutdownDigest::remove(directory.path()).unwrap();
        assert_eq!(ShutdownDigest::read(directory.path()).unwrap(), None);
    }

    #[test]
    fn a_damaged_digest_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), "{\"offset\":").unwrap();
        let error = ShutdownDigest::read(directory.path()).unwrap_err();
        assert!(matches!(error, ShutdownDigestError::Malformed { .. }), "{error}");
    }
}
