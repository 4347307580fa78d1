//! Snapshots of the projections, so that a start replays only the end of the log.
//!
//! A snapshot is one file, `snapshots/<offset>.snapshot` in the data directory: all projections
//! after the record at that offset was applied. It is disposable. A start uses the newest one that
//! is intact and belongs to its log, which the chain value of its last record shows. It skips
//! others with a warning, and replays the records after the snapshot.
//!
//! Each projection is a [section](logcabin_state::SECTIONS) of the file with a version of its own.
//! A section that another version of logcabin wrote is loaded as far as possible and is
//! *provisional*: the server uses it at once, while [`Keeper`] rebuilds all projections from the
//! log and then replaces them. Commands that act on the log of a stopped server use provisional
//! sections, too. Everything else, including the writing of snapshots, skips such a file.
//!
//! # The file
//!
//! The file is a line of JSON ([`Header`]) padded with spaces to [`HEADER_BYTES`], followed by the
//! sections in the binary format of `postcard`. The header has their lengths and blake3. `head -n
//! 1` shows what a file is. Like the log, it contains password hashes and the server's private key,
//! so its mode is 0600.
//!
//! [`Keeper`] writes snapshots, and compares them and the live projections with the log.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod differ;
mod keeper;
pub mod shutdown_digest;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read as _, Seek as _, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Instant, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

pub use differ::Difference;
pub use keeper::{Fault, FaultLocation, Keeper, Policy, Status};

use logcabin_base::{clock::millis, disk};
use logcabin_engine::{OpenError, replay_onto};
use logcabin_log::{Log, ReadError, VerifyError};
use logcabin_record::{Chain, Offset, hex};
use logcabin_state::{
    SECTIONS, State,
    sections::{self, SectionError, Written},
};

/// The version of the file format.
const FORMAT: u32 = 2;

/// The length of the header with its padding.
pub const HEADER_BYTES: usize = 8192;

/// The first line of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the file format.
    pub snapshot: u32,
    /// The version of logcabin that wrote it.
    pub version: String,
    /// The last record that was applied.
    pub offset: Offset,
    /// The chain value of that record, in hex.
    pub chain: String,
    /// [`State::digest`], in hex.
    pub digest: String,
    /// The length of all sections, in bytes.
    pub bytes: u64,
    /// The sections, in their order in the file.
    pub sections: Vec<SectionHeader>,
}

/// A section in a [`Header`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionHeader {
    /// Its name: see [`SECTIONS`].
    pub name: String,
    /// The version of its content.
    pub version: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its blake3, in hex.
    pub blake3: String,
}

/// A snapshot that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFile {
    /// The last record that was applied, according to its name.
    pub offset: Offset,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// When it was written, in milliseconds since the Unix epoch.
    pub written_ms: u64,
    /// The version of logcabin that wrote it; none if its header cannot be read.
    pub version: Option<String>,
}

impl SnapshotFile {
    fn read(offset: Offset, path: &Path) -> io::Result<Self> {
        let file = fs::metadata(path)?;
        let written = file.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let version = header(path).ok().map(|header| header.version);
        Ok(Self { offset, bytes: file.len(), written_ms: millis(written), version })
    }
}

/// The content of a snapshot.
#[derive(Debug)]
pub struct SnapshotContent {
    pub state: State,
    pub header: Header,
    /// The names of the provisional projections, which another version wrote.
    pub provisional: Vec<&'static str>,
}

impl SnapshotContent {
    /// The content, if none of it is provisional.
    pub fn exact(self, path: &Path) -> Result<(State, Header), SnapshotError> {
        if self.provisional.is_empty() {
            return Ok((self.state, self.header));
        }
        Err(SnapshotError::Version { path: path.to_owned(), version: self.header.version })
    }
}

/// What the projections were started from.
#[derive(Clone, Debug, Default)]
pub struct StartedFrom {
    /// The header of the snapshot, if a usable one existed.
    pub snapshot: Option<Header>,
    /// The names of the projections that are provisional.
    pub provisional: Vec<&'static str>,
}

/// Why a snapshot cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file or its directory failed.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
    #[error(transparent)]
    Replay(Box<OpenError>),
    #[error("{} is damaged: {what}", .path.display())]
    Damaged { path: PathBuf, what: String },
    /// The file has a version that this version of logcabin does not read.
    #[error("{} was written by logcabin {version}, whose snapshots differ", .path.display())]
    Version { path: PathBuf, version: String },
    #[error("{} is not a snapshot of this log", .path.display())]
    Foreign { path: PathBuf },
    #[error("the server is stopping")]
    Stopped,
}

impl From<OpenError> for SnapshotError {
    fn from(error: OpenError) -> Self {
        Self::Replay(Box::new(error))
    }
}

/// The directory of the snapshots of a data directory.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("snapshots")
}

/// The snapshots in `dir` by name, newest first.
///
/// # Errors
/// When the directory cannot be read. A missing directory counts as empty.
pub fn list(dir: &Path) -> Result<Vec<(Offset, PathBuf)>, SnapshotError> {
    let failed = |source| SnapshotError::Io { path: dir.to_owned(), source };
    let mut found = Vec::new();
    for path in disk::entries(dir).map_err(failed)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_suffix(".snapshot").and_then(|number| number.parse().ok());
        if let Some(number) = number {
            found.push((Offset::new(number), path));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// The state of `log`: the newest usable snapshot in `dir` and the records after it. Blocks.
///
/// # Errors
/// When the log cannot be replayed. Faults of snapshots are only logged.
pub fn recall(dir: &Path, log: &dyn Log) -> Result<(State, StartedFrom), OpenError> {
    let snapshots = list(dir).unwrap_or_else(|error| {
        warn!(%error, "the snapshots cannot be read; the whole log is replayed");
        Vec::new()
    });
    let newest = snapshots.iter().find_map(|(_, path)| {
        read(path, log).inspect_err(|error| warn!(%error, "skipping a snapshot")).ok()
    });
    let (state, begun) = match newest {
        Some(SnapshotContent { state, header, provisional }) => {
            (state, StartedFrom { snapshot: Some(header), provisional })
        }
        None => (State::default(), StartedFrom::default()),
    };
    let (end, mut told) = (*log.durable().borrow(), Instant::now());
    replay_onto(&state, log, end, |_| {
        // A long replay reports progress.
        if told.elapsed().as_secs() >= 5 {
            told = Instant::now();
            info!(at = %state.applied(), %end, "replaying the log");
        }
        Ok::<_, OpenError>(())
    })?;
    Ok((state, begun))
}

/// Reads the header of a snapshot.
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
        .map_err(|error| damaged(format!("its header is invalid: {error}")))?;
    Ok((header, file))
}

/// Reads a snapshot of `log`.
///
/// # Errors
/// When it is not intact, of a version that this one cannot convert, or of another log.
pub fn read(path: &Path, log: &dyn Log) -> Result<SnapshotContent, SnapshotError> {
    read_with(path, |offset| Ok(log.get(offset)?.map(|record| record.chain)))
}

/// Reads a snapshot of the log whose chain values `chain` returns.
pub fn read_with(
    path: &Path,
    chain: impl FnOnce(Offset) -> Result<Option<Chain>, ReadError>,
) -> Result<SnapshotContent, SnapshotError> {
    let damaged = |what: String| SnapshotError::Damaged { path: path.to_owned(), what };
    let (header, mut file) = open(path)?;
    if header.snapshot != FORMAT {
        return Err(SnapshotError::Version { path: path.to_owned(), version: header.version });
    }
    if chain(header.offset)?.is_none_or(|chain| hex(&chain) != header.chain) {
        return Err(SnapshotError::Foreign { path: path.to_owned() });
    }
    // Never allocate more than the file's length.
    let length = file.metadata().map(|metadata| metadata.len().saturating_sub(HEADER_BYTES as u64));
    let told = header.sections.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.bytes));
    if told != Some(header.bytes) || length.as_ref().is_ok_and(|length| *length != header.bytes) {
        return Err(damaged("it is not as long as its header says".to_owned()));
    }
    let mut body = Vec::with_capacity(usize::try_from(header.bytes).unwrap_or_default());
    file.read_to_end(&mut body)
        .map_err(|source| SnapshotError::Io { path: path.to_owned(), source })?;
    let mut left = &*body;
    let mut written = Vec::with_capacity(header.sections.len());
    for part in &header.sections {
        let split = usize::try_from(part.bytes).ok().and_then(|bytes| left.split_at_checked(bytes));
        let Some((bytes, rest)) = split else {
            return Err(damaged("it is not as long as its header says".to_owned()));
        };
        written.push(Written {
            name: &part.name,
            version: part.version,
            bytes,
            blake3: &part.blake3,
        });
        left = rest;
    }
    let (state, provisional) = sections::read(&written).map_err(|error| match error {
        SectionError::Version(_) => {
            SnapshotError::Version { path: path.to_owned(), version: header.version.clone() }
        }
        SectionError::Damaged(..) => damaged(error.to_string()),
    })?;
    if state.applied() != header.offset {
        return Err(damaged("its offset is not the one in its header".to_owned()));
    }
    Ok(SnapshotContent { state, header, provisional })
}

/// Writes a snapshot of `state`, which must be the state of `log` at the applied offset, to `dir`,
/// atomically. Must be called while nothing is being applied. Blocks.
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
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(&[b' '; HEADER_BYTES]).map_err(io)?;
    let mut parts = Vec::with_capacity(SECTIONS.len());
    for section in SECTIONS {
        let mut part = Hashing { out: &mut out, hasher: blake3::Hasher::new(), bytes: 0 };
        section.write(state, &mut part).map_err(io)?;
        parts.push(SectionHeader {
            name: section.name.to_owned(),
            version: section.version,
            bytes: part.bytes,
            blake3: part.hasher.finalize().to_hex().to_string(),
        });
    }
    let header = Header {
        snapshot: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        offset,
        chain: hex(&record.chain),
        digest: state.digest().to_hex().to_string(),
        bytes: parts.iter().map(|part| part.bytes).sum(),
        sections: parts,
    };
    let finish = || {
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
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

/// Counts and hashes the bytes written.
struct Hashing<'a, W> {
    out: &'a mut W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Write for Hashing<'_, W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buffer)?;
        self.hasher.update(&buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
