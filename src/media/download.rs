//! Reads a file back, and checks that it is still the one that was uploaded.

use std::{
    fs::File,
    io::{self, BufReader},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
};

use bytes::Bytes;

use super::Store;
use logcabin_base::{
    descriptors::{self, Purpose},
    limits,
};
use logcabin_record::command::FileHash;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("the file is gone")]
    Missing,
    /// It differs from the one that was uploaded.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// The last file descriptors are for what cannot wait.
    #[error("too many files and connections are open")]
    Busy,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for DownloadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            // It was truncated after it was opened.
            io::ErrorKind::UnexpectedEof => Self::Damaged("it is too short".to_owned()),
            _ => Self::Io(error),
        }
    }
}

/// Where a file is, and the hash and length that it must have.
#[derive(Clone, Debug)]
pub struct FileLocation {
    pub store: Arc<Store>,
    /// Its name there.
    pub name: FileHash,
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
}

/// A file that is being read.
#[derive(Debug)]
pub struct Download {
    place: FileLocation,
    file: File,
    length: u64,
}

impl Download {
    /// Opens the file at this place, if it has the length that it must have. Blocks.
    pub fn open(place: &FileLocation) -> Result<Self, DownloadError> {
        let file = File::open(place.store.path(&place.name))?;
        if !descriptors::is_spare(&file, Purpose::Request) {
            return Err(DownloadError::Busy);
        }
        let (length, size) = (file.metadata()?.len(), place.size);
        if length != size {
            return Err(DownloadError::Damaged(format!("it has {length} bytes instead of {size}")));
        }
        Ok(Self { place: place.clone(), file, length })
    }

    /// Its length in bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Reads a part of it, unchecked. Blocks.
    pub fn read(&self, range: &Range<u64>) -> Result<Bytes, DownloadError> {
        let length = usize::try_from(range.end - range.start).unwrap_or_default();
        let mut piece = vec![0; length];
        self.file.read_exact_at(&mut piece, range.start)?;
        Ok(Bytes::from(piece))
    }

    /// Reads all of a file that is no larger than [`limits::MEDIA_PIECE_BYTES`], and checks it.
    /// Blocks.
    pub fn read_small(&self) -> Result<Option<Bytes>, DownloadError> {
        if self.length > limits::MEDIA_PIECE_BYTES as u64 {
            return Ok(None);
        }
        let bytes = self.read(&(0..self.length))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        self.check(&hasher)?;
        Ok(Some(bytes))
    }

    /// Checks that `hasher` has seen the file that was uploaded.
    pub fn check(&self, hasher: &blake3::Hasher) -> Result<(), DownloadError> {
        if FileHash::from(hasher.finalize()) == self.place.hash {
            return Ok(());
        }
        Err(DownloadError::Damaged("its content does not match its hash".to_owned()))
    }

    /// Reads all of it, and checks it. Blocks.
    pub fn verify(&self) -> Result<(), DownloadError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(BufReader::new(&self.file))?;
        self.check(&hasher)
    }

    /// Logs that it cannot be served, once for each file.
    pub fn report(&self, error: &DownloadError) {
        self.place.store.report(&self.place.name, error);
    }
}

/// Checks the file with this hash at `path`, which must have `size` bytes.
pub fn verify(path: &Path, hash: &FileHash, size: u64) -> Result<(), String> {
    let broken = |error: io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(broken)?;
    let length = file.metadata().map_err(broken)?.len();
    if length != size {
        return Err(format!("{} has {length} bytes instead of {size}", path.display()));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(BufReader::new(file)).map_err(broken)?;
    if FileHash::from(hasher.finalize()) != *hash {
        return Err(format!("{} is damaged: its content does not match its hash", path.display()));
    }
    Ok(())
}
