//! Sources of records: a data directory, an archive, a backup, or a running server.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;

use crate::socket::{Client, SocketError, socket_path};
use logcabin_log::{
    Log, ReadError,
    archive::{ArchiveError, ArchiveReader, ArchiveRecords, TornTail, archive_dir},
    store::{OpenError, Shadow, SledLog, SledOptions, has_log},
};
use logcabin_record::{Offset, Record};

pub(crate) mod manifest;

pub use manifest::{Manifest, ManifestError, MediaEntry, SegmentEntry};

/// How many records are read from a store at a time.
const CHUNK: usize = 256;

/// Records closer together than this are read in one go, with what is between them: a request to a
/// server costs more than a few records.
const GAP: u64 = 64;

/// How often an archive is checked for new records.
const POLL: Duration = Duration::from_millis(500);

/// Why a source failed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// There is nothing to read.
    #[error(
        "{} is neither a data directory nor an archive; name a directory with a log in it, a directory of .lcseg files, or unix:PATH for a server's admin socket",
        .0.display()
    )]
    Nothing(PathBuf),
    /// There is no log in the directory.
    #[error(
        "there is no log in {}; `logcabin restore --from-archive` can make one from an archive",
        .0.display()
    )]
    NoLog(PathBuf),
    /// A running server has locked the log and does not answer.
    #[error(
        "a running server (or another tool) has the log in {} open, and its admin socket does not answer ({socket}); there is no archive beside it to read instead",
        .data_dir.display()
    )]
    InUse {
        /// The data directory.
        data_dir: PathBuf,
        socket: SocketError,
    },
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The backup cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The server does not provide the records.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Records in order, until the end or the first error.
pub type Records<'a> = Box<dyn Iterator<Item = Result<Record, SourceError>> + 'a>;

/// A log to read, wherever it is.
pub struct Source {
    kind: Kind,
    place: String,
    note: Option<String>,
    data_dir: Option<PathBuf>,
    /// A temporary directory with the copy that is read; removed afterwards.
    _shadow: Option<Shadow>,
}

enum Kind {
    Log(Box<SledLog>),
    /// The log of this process, up to a record.
    Own(Arc<dyn Log>, Offset),
    Archive(PathBuf),
    /// The segments of a backup, and the last record in them.
    Backup(Vec<(Offset, PathBuf)>, Offset),
    /// The connection for short requests; each walk through the log gets its own.
    Server(PathBuf, Mutex<Client>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Source {
    /// Opens what `place` names: a data directory, the directory of an archive, that of backups (of
    /// which the newest is read), a socket, or `unix:` and the path of a socket.
    ///
    /// A data directory that a running server has locked is read through that server's admin
    /// socket; if that does not answer, from the archive in it, with a [`Source::note`].
    pub fn open(place: &str) -> Result<Self, SourceError> {
        if let Some(socket) = place.strip_prefix("unix:") {
            return Self::server(Path::new(socket));
        }
        let path = Path::new(place);
        if has_log(path) {
            return Self::data_dir(path);
        }
        if is_archive(path) {
            return Ok(Self::new(Kind::Archive(path.to_owned()), format!("archive {place}")));
        }
        if let Some(newest) = Manifest::list(path).ok().and_then(|mut all| all.pop()) {
            let manifest = Manifest::read(&newest)?;
            return Ok(Self::backup(path, &manifest));
        }
        if path.exists() && !path.is_dir() {
            return Self::server(path);
        }
        Err(SourceError::Nothing(path.to_owned()))
    }

    pub fn archive(dir: &Path) -> Self {
        Self::new(Kind::Archive(dir.to_owned()), format!("archive {}", dir.display()))
    }

    /// The backup in `dir` that `manifest` describes.
    pub fn backup(dir: &Path, manifest: &Manifest) -> Self {
        let kind = Kind::Backup(manifest.segments(dir), manifest.offset);
        Self::new(kind, format!("backup {} up to record {}", dir.display(), manifest.offset))
    }

    /// The log of this process, up to `end`.
    pub fn own(log: Arc<dyn Log>, end: Offset) -> Self {
        Self::new(Kind::Own(log, end), "this server".to_owned())
    }

    /// The log of this process, if this reads it: any of its records costs one look.
    pub(crate) fn own_log(&self) -> Option<&Arc<dyn Log>> {
        match &self.kind {
            Kind::Own(log, _) => Some(log),
            _ => None,
        }
    }

    fn new(kind: Kind, place: String) -> Self {
        Self { kind, place, note: None, data_dir: None, _shadow: None }
    }

    fn server(socket: &Path) -> Result<Self, SourceError> {
        let client = Client::connect(socket)?;
        let place = format!("running server {}", socket.display());
        Ok(Self::new(Kind::Server(socket.to_owned(), Mutex::new(client)), place))
    }

    /// The log in `data_dir`, which no server may be using.
    pub fn stopped(data_dir: &Path) -> Result<Self, SourceError> {
        // Opening creates what is missing, which a reader must not.
        if !has_log(data_dir) {
            return Err(SourceError::NoLog(data_dir.to_owned()));
        }
        // Every record is read afterwards; a fault at the end is found like any other.
        let options = SledOptions { verify_tail: 0, ..SledOptions::new(data_dir) };
        let log = Kind::Log(Box::new(SledLog::open(options)?));
        let source = Self::new(log, format!("data directory {}", data_dir.display()));
        Ok(Self { data_dir: Some(data_dir.to_owned()), ..source })
    }

    /// As [`Source::stopped`], without changing anything, not even what opening a log tidies: the
    /// parts that this would write to are copied first.
    pub fn untouched(data_dir: &Path) -> Result<Self, SourceError> {
        if !has_log(data_dir) {
            return Err(SourceError::NoLog(data_dir.to_owned()));
        }
        let shadow = Shadow::of(data_dir)?;
        let log = Kind::Log(Box::new(shadow.open()?));
        let source = Self::new(log, format!("data directory {}", data_dir.display()));
        Ok(Self { data_dir: Some(data_dir.to_owned()), _shadow: Some(shadow), ..source })
    }

    /// The log of `data_dir` itself, whether the server is running or stopped; not its archive,
    /// which may lag.
    pub fn of_log(data_dir: &Path) -> Result<Self, SourceError> {
        match Self::stopped(data_dir) {
            Err(SourceError::Open(OpenError::InUse { .. })) => Self::server(&socket_path(data_dir))
                .map_err(|error| match error {
                    SourceError::Socket(socket) => {
                        SourceError::InUse { data_dir: data_dir.to_owned(), socket }
                    }
                    error => error,
                }),
            other => other,
        }
    }

    /// The log in `data_dir`, whether a server is using it or not, as in [`Source::open`].
    pub fn data_dir(data_dir: &Path) -> Result<Self, SourceError> {
        let source = match Self::stopped(data_dir) {
            Err(SourceError::Open(OpenError::InUse { .. })) => {
                match Self::server(&socket_path(data_dir)) {
                    Err(SourceError::Socket(socket)) => Self::archive_instead(data_dir, socket)?,
                    other => other?,
                }
            }
            other => other?,
        };
        Ok(Self { data_dir: Some(data_dir.to_owned()), ..source })
    }

    fn archive_instead(data_dir: &Path, socket: SocketError) -> Result<Self, SourceError> {
        let dir = archive_dir(data_dir);
        if !is_archive(&dir) {
            return Err(SourceError::InUse { data_dir: data_dir.to_owned(), socket });
        }
        let note = format!(
            "the log is in use and its server's admin socket does not answer; this is the archive {}, which may be a second behind",
            dir.display()
        );
        Ok(Self { note: Some(note), ..Self::archive(&dir) })
    }

    /// A description of the source.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// A warning about the source, if there is one.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The data directory, if that is what was opened.
    pub fn dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// The unfinished entry at the end of an archive whose archiver was killed while it wrote.
    pub fn torn(&self) -> Result<Option<TornTail>, SourceError> {
        let Kind::Archive(dir) = &self.kind else { return Ok(None) };
        let from = segments(dir).last().copied().unwrap_or(Offset::ZERO);
        let mut records = archive_records(dir, from)?;
        for record in records.by_ref() {
            record?;
        }
        Ok(records.torn().cloned())
    }

    /// The log, if it is a stopped server's.
    pub fn log(&self) -> Option<&dyn Log> {
        match &self.kind {
            Kind::Log(log) => Some(&**log),
            Kind::Own(..) | Kind::Archive(_) | Kind::Backup(..) | Kind::Server(..) => None,
        }
    }

    /// The offset of the present last record.
    pub fn end(&self) -> Result<Offset, SourceError> {
        match &self.kind {
            Kind::Log(log) => Ok(*log.durable().borrow()),
            Kind::Server(_, client) => Ok(client.lock().end()?),
            Kind::Own(_, end) | Kind::Backup(_, end) => Ok(*end),
            Kind::Archive(dir) => {
                let mut end = Offset::ZERO;
                // Reads only the last segment, because the ones before it are complete.
                let from = segments(dir).last().copied().unwrap_or(Offset::ZERO);
                for record in archive_records(dir, from)? {
                    end = record?.offset();
                }
                // A segment without records follows a complete one.
                Ok(if end == Offset::ZERO { from.prev() } else { end })
            }
        }
    }

    /// The records from `from` to the present last one, in order.
    pub fn records(&self, from: Offset) -> Result<Records<'_>, SourceError> {
        let from = from.max(Offset::new(1));
        Ok(match &self.kind {
            Kind::Log(log) => {
                let end = *log.durable().borrow();
                Box::new(LogRecords { log: &**log, next: from, end, chunk: Vec::new().into_iter() })
            }
            Kind::Own(log, end) => Box::new(LogRecords {
                log: &**log,
                next: from,
                end: *end,
                chunk: Vec::new().into_iter(),
            }),
            Kind::Archive(_) | Kind::Backup(..) => {
                Box::new(self.walk(from)?.map(|record| Ok(record?)))
            }
            Kind::Server(socket, client) => {
                let end = client.lock().end()?;
                if from > end {
                    return Ok(Box::new(std::iter::empty()));
                }
                let answer = Client::connect(socket)?.into_records(from, end)?;
                Box::new(answer.map(|record| Ok(record?)))
            }
        })
    }

    /// The records from `from` on, in order, each new one as it becomes durable; `None` for a
    /// source to which nobody writes.
    pub fn follow(&self, from: Offset) -> Result<Option<Records<'_>>, SourceError> {
        let from = from.max(Offset::new(1));
        Ok(match &self.kind {
            Kind::Log(_) | Kind::Own(..) | Kind::Backup(..) => None,
            Kind::Archive(dir) => {
                Some(Box::new(ArchiveFollower { dir, next: from, current: None, seen: None }))
            }
            Kind::Server(socket, _) => {
                let answer = Client::connect(socket)?.into_follow(from)?;
                Some(Box::new(answer.map(|record| Ok(record?))))
            }
        })
    }

    /// Reads the records at `offsets`, in ascending order, and calls `found` with each. Missing
    /// ones are skipped.
    pub fn fetch<E: From<SourceError>>(
        &self,
        offsets: &[Offset],
        mut found: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let lost = |error: SocketError| E::from(error.into());
        match &self.kind {
            Kind::Log(log) => each_of(&**log, offsets, found)?,
            Kind::Own(log, _) => each_of(&**log, offsets, found)?,
            Kind::Archive(_) | Kind::Backup(..) => {
                let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
                    return Ok(());
                };
                let mut wanted = offsets.iter().peekable();
                for record in self.walk(*first).map_err(E::from)? {
                    let record = record.map_err(|error| E::from(error.into()))?;
                    let offset = record.offset();
                    if wanted.next_if(|wanted| **wanted == offset).is_some() {
                        found(record)?;
                    }
                    if offset >= *last {
                        break;
                    }
                }
            }
            Kind::Server(_, client) => {
                let mut client = client.lock();
                for run in offsets.chunk_by(|a, b| b.get() - a.get() <= GAP) {
                    let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
                    for record in client.records(*first, *last).map_err(lost)? {
                        let record = record.map_err(lost)?;
                        if run.binary_search(&record.offset()).is_ok() {
                            found(record)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Source {
    /// The records of segments.
    fn walk(&self, from: Offset) -> Result<ArchiveRecords, SourceError> {
        match &self.kind {
            Kind::Backup(segments, _) => Ok(ArchiveReader::of(segments.clone()).records(from)),
            Kind::Archive(dir) => archive_records(dir, from),
            Kind::Log(_) | Kind::Own(..) | Kind::Server(..) => {
                Err(SourceError::Nothing(PathBuf::new()))
            }
        }
    }
}

/// Passes the records at `offsets` to `found`.
fn each_of<E: From<SourceError>>(
    log: &dyn Log,
    offsets: &[Offset],
    mut found: impl FnMut(Record) -> Result<(), E>,
) -> Result<(), E> {
    for offset in offsets {
        let record = log.get(*offset).map_err(|error| E::from(error.into()))?;
        record.map_or(Ok(()), &mut found)?;
    }
    Ok(())
}

fn archive_records(dir: &Path, from: Offset) -> Result<ArchiveRecords, SourceError> {
    Ok(ArchiveReader::open(dir)?.records(from))
}

fn is_archive(dir: &Path) -> bool {
    !segments(dir).is_empty()
}

/// The first offset of each segment in `dir`, in order.
fn segments(dir: &Path) -> Vec<Offset> {
    ArchiveReader::open(dir).map_or_else(|_| Vec::new(), |archive| archive.segments().collect())
}

/// The records of a stopped server's log, a chunk at a time.
struct LogRecords<'a> {
    log: &'a dyn Log,
    next: Offset,
    end: Offset,
    chunk: std::vec::IntoIter<Record>,
}

impl Iterator for LogRecords<'_> {
    type Item = Result<Record, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.chunk.next() {
            self.next = record.offset().next();
            return Some(Ok(record));
        }
        if self.next > self.end {
            return None;
        }
        // Damage in a chunk fails the whole read; one by one, the records before it can be read.
        let read = self.log.read(self.next, CHUNK).or_else(|_| self.log.read(self.next, 1));
        match read {
            Ok(records) if records.is_empty() => {
                let missing = std::mem::replace(&mut self.next, Offset::MAX);
                Some(Err(ReadError::Missing(missing).into()))
            }
            Ok(records) => {
                self.chunk = records.into_iter();
                self.next()
            }
            Err(error) => {
                self.next = Offset::MAX;
                Some(Err(error.into()))
            }
        }
    }
}

/// The records of an archive that is being written.
struct ArchiveFollower<'a> {
    dir: &'a Path,
    next: Offset,
    current: Option<ArchiveRecords>,
    /// The archive's size when it was last read.
    seen: Option<u64>,
}

impl Iterator for ArchiveFollower<'_> {
    type Item = Result<Record, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(records) = &mut self.current {
                match records.next() {
                    Some(Ok(record)) => {
                        self.next = record.offset().next();
                        return Some(Ok(record));
                    }
                    Some(Err(error)) => return Some(Err(error.into())),
                    None => self.current = None,
                }
            }
            let size = size(self.dir);
            if self.seen == Some(size) {
                std::thread::sleep(POLL);
                continue;
            }
            self.seen = Some(size);
            match archive_records(self.dir, self.next) {
                Ok(records) => self.current = Some(records),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn size(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
}
