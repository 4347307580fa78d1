//! Snapshots of the projections, so that a start replays the end of the log and not all of it.
//!
//! A snapshot is one file, `snapshots/<offset>.snapshot` in the data directory: what all projections were
//! once the record at that offset was applied. It is disposable. A server uses the newest that is whole,
//! was written by a version that projects the same facts, and belongs to its log, which the chain value of
//! its last record tells; any other is passed over with a warning, and what no snapshot holds is replayed.
//!
//! # The file
//!
//! A line of JSON ([`Header`]) padded with spaces to [`HEADER_BYTES`], then the body: the projections in the
//! binary form of `postcard`, whose length and blake3 the header has. `head -c 1024` shows what a file is.
//! Like the log, it holds hashes of passwords and the server's private key: its mode is 0600.
//!
//! [`Keeper`] writes them.

mod keeper;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read as _, Seek as _, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

pub use keeper::{Keeper, Policy, Status};

use crate::{
    disk,
    engine::{OpenError, replay_onto},
    log::{Log, ReadError, VerifyError},
    record::{Chain, Offset, hex},
    state::State,
};

/// The form of the file.
const FORMAT: u32 = 1;

/// What the projections are. To be raised with every change of what they hold, or of how that is written:
/// a test compares them with what they were when it was raised last.
pub const PROJECTIONS: u32 = 2;

/// The length of the header with its padding.
pub const HEADER_BYTES: usize = 1024;

/// What the first line of a snapshot says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The form of the file.
    pub snapshot: u32,
    /// Which projections it holds: [`PROJECTIONS`] of the version that wrote it.
    pub projections: u32,
    /// The version of logcabin that wrote it.
    pub version: String,
    /// The last record that had been applied.
    pub offset: Offset,
    /// The chain value of that record, in hex.
    pub chain: String,
    /// [`State::digest`], in hex.
    pub digest: String,
    /// The length of the body.
    pub bytes: u64,
    /// blake3 of the body, in hex.
    pub blake3: String,
}

/// Why a snapshot cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file or its directory failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The log failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log is not intact.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The log cannot be replayed.
    #[error(transparent)]
    Replay(Box<OpenError>),
    /// The file is damaged.
    #[error("{} is damaged: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file is one that this version does not read.
    #[error("{} was written by logcabin {version}, which keeps other facts", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version.
        version: String,
    },
    /// The file is of another log.
    #[error("{} is not a snapshot of this log", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopped,
}

impl From<OpenError> for SnapshotError {
    fn from(error: OpenError) -> Self {
        Self::Replay(Box::new(error))
    }
}

/// The directory of the snapshots of a data directory.
#[must_use]
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("snapshots")
}

/// The snapshots in `dir` by their names, the newest first.
///
/// # Errors
/// When the directory cannot be read. One that is not there has none.
pub fn list(dir: &Path) -> Result<Vec<(Offset, PathBuf)>, SnapshotError> {
    let failed = |source| SnapshotError::Io { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_suffix(".snapshot").and_then(|number| number.parse().ok());
        if let Some(number) = number {
            found.push((Offset::new(number), path));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// What `log` adds up to: the newest snapshot in `dir` that can be used, whose header is given, and the
/// records after it. Blocks.
///
/// # Errors
/// When the log cannot be replayed. What is wrong with snapshots is logged.
pub fn recall(dir: &Path, log: &dyn Log) -> Result<(State, Option<Header>), OpenError> {
    let newest = newest(dir, log, |error| warn!(%error, "a snapshot is passed over"));
    let newest = newest.unwrap_or_else(|error| {
        warn!(%error, "the snapshots cannot be read; the whole log is replayed");
        None
    });
    let (state, header) = match newest {
        Some((state, header)) => (state, Some(header)),
        None => (State::default(), None),
    };
    let (end, mut told) = (*log.durable().borrow(), Instant::now());
    replay_onto(&state, log, end, |_| {
        // A long replay says that it goes on.
        if told.elapsed().as_secs() >= 5 {
            told = Instant::now();
            info!(at = %state.applied(), %end, "replaying the log");
        }
        Ok::<_, OpenError>(())
    })?;
    Ok((state, header))
}

/// The newest snapshot in `dir` that can be used with `log`: its projections and what its header says.
/// Those that cannot be used are told to `passed_over`.
///
/// # Errors
/// When the directory cannot be read.
pub fn newest(
    dir: &Path,
    log: &dyn Log,
    mut passed_over: impl FnMut(&SnapshotError),
) -> Result<Option<(State, Header)>, SnapshotError> {
    for (_, path) in list(dir)? {
        match read(&path, log) {
            Ok(found) => return Ok(Some(found)),
            Err(error) => passed_over(&error),
        }
    }
    Ok(None)
}

/// Reads the header of a snapshot.
///
/// # Errors
/// When there is none, or it is not one.
pub fn header(path: &Path) -> Result<Header, SnapshotError> {
    open(path).map(|(header, _)| header)
}

fn open(path: &Path) -> Result<(Header, File), SnapshotError> {
    let io = |source| SnapshotError::Io { path: path.to_owned(), source };
    let damaged = |what: String| SnapshotError::Damaged { path: path.to_owned(), what };
    let mut file = File::open(path).map_err(io)?;
    let mut line = [0; HEADER_BYTES];
    file.read_exact(&mut line).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it is too short".to_owned()),
        _ => io(error),
    })?;
    let header: Header = serde_json::from_slice(&line)
        .map_err(|error| damaged(format!("its header is not one: {error}")))?;
    Ok((header, file))
}

/// Reads a snapshot of `log`.
///
/// # Errors
/// When it is not whole, of another version, or of another log.
pub fn read(path: &Path, log: &dyn Log) -> Result<(State, Header), SnapshotError> {
    read_with(path, |offset| Ok(log.get(offset)?.map(|record| record.chain)))
}

/// Reads a snapshot of the log that has the chain values which `chain` gives.
///
/// # Errors
/// As for [`read`].
pub fn read_with(
    path: &Path,
    chain: impl FnOnce(Offset) -> Result<Option<Chain>, ReadError>,
) -> Result<(State, Header), SnapshotError> {
    let damaged = |what: String| SnapshotError::Damaged { path: path.to_owned(), what };
    let (header, mut file) = open(path)?;
    if (header.snapshot, header.projections) != (FORMAT, PROJECTIONS) {
        return Err(SnapshotError::Version { path: path.to_owned(), version: header.version });
    }
    if chain(header.offset)?.is_none_or(|chain| hex(&chain) != header.chain) {
        return Err(SnapshotError::Foreign { path: path.to_owned() });
    }
    // No more than the file has is asked for.
    let length = file.metadata().map(|metadata| metadata.len().saturating_sub(HEADER_BYTES as u64));
    if length.as_ref().is_ok_and(|length| *length != header.bytes) {
        return Err(damaged("it is not as long as its header says".to_owned()));
    }
    let mut body = Vec::with_capacity(usize::try_from(header.bytes).unwrap_or_default());
    file.read_to_end(&mut body)
        .map_err(|source| SnapshotError::Io { path: path.to_owned(), source })?;
    if blake3::hash(&body).to_hex().as_str() != header.blake3 {
        return Err(damaged("its hash is another".to_owned()));
    }
    let state = State::from_bytes(&body).map_err(|error| damaged(error.to_string()))?;
    if state.applied() != header.offset {
        return Err(damaged("it is of another offset than it says".to_owned()));
    }
    Ok((state, header))
}

/// Writes a snapshot of `state`, which is what `log` adds up to at the offset that has been applied, under
/// its name in `dir`: whole or not at all. To be called while nothing is being applied. Blocks.
///
/// # Errors
/// When the disk or the log fails.
pub fn write(dir: &Path, log: &dyn Log, state: &State) -> Result<Header, SnapshotError> {
    let offset = state.applied();
    let record = log.get(offset)?.ok_or(ReadError::Missing(offset))?;
    let path = dir.join(format!("{:020}.snapshot", offset.get()));
    let io = |source| SnapshotError::Io { path: path.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
    let partial = path.with_extension("new");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&partial)
        .map_err(io)?;
    let inner = BufWriter::with_capacity(1 << 20, file);
    let mut body = Hashing { inner, hasher: blake3::Hasher::new(), bytes: 0 };
    body.inner.write_all(&[b' '; HEADER_BYTES]).map_err(io)?;
    let body = state.write_to(body).map_err(io)?;
    let header = Header {
        snapshot: FORMAT,
        projections: PROJECTIONS,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        offset,
        chain: hex(&record.chain),
        digest: state.digest().to_hex().to_string(),
        bytes: body.bytes,
        blake3: body.hasher.finalize().to_hex().to_string(),
    };
    let finish = || {
        let mut file = body.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        let mut line = serde_json::to_vec(&header)?;
        if line.len() >= HEADER_BYTES {
            return Err(io::Error::other("the header does not fit"));
        }
        line.resize(HEADER_BYTES - 1, b' ');
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_all()?;
        disk::put_in_place(&partial, &path)
    };
    finish().map_err(io)?;
    Ok(header)
}

/// Counts and hashes what is written.
struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.hasher.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
