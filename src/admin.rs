//! The local admin socket: the log of a running server, for tools on the same machine.
//!
//! The store lets one process in at a time, so a server that runs hands out its records itself, over
//! a Unix socket in its data directory (mode 0600, in a directory of mode 0700). It only ever reads
//! the log.
//!
//! # Protocol
//!
//! A client sends a request, one line of text; the server answers it; then the next may follow.
//!
//! | request | answer |
//! |---|---|
//! | `end` | `D`, then the offset of the last durable record as `u64` |
//! | `records FROM` | the records from offset FROM to the last durable one |
//! | `records FROM TO` | the records from FROM to TO |
//! | `records FROM follow` | the records from FROM, then each new one as it becomes durable |
//!
//! Records are sent **as an archive segment** (`log_format.md`, "Archive segments"): magic, first
//! offset, chain value before it, an entry for each record, and a seal, which tells a complete answer
//! from one that was cut off. So a client verifies chain and hashes itself, and what `records 1`
//! answers can be stored as it is for an archive. One that follows gets its seal when the server
//! stops; it ends the answer itself by closing the connection.
//!
//! Wherever a magic, an entry or a `D` may stand, an `E` may stand instead: a `u16` length and that
//! much text follow, saying why there is no (more) answer, and the connection ends. Integers are
//! big-endian.

use std::{
    borrow::BorrowMut,
    fmt,
    io::{self, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixListener,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    limits,
    log::{
        Log, ReadError, VerifyError,
        archive::{MAGIC, MAX_FRAME_BYTES, TAG_RECORD, TAG_SEAL},
        verify::Checker,
    },
    record::{
        CHAIN_START, Chain, Offset, Record,
        codec::{self, CodecError, Frame},
    },
    shutdown::Shutdown,
};

const TAG_END: u8 = b'D';
const TAG_ERROR: u8 = b'E';

/// People with a terminal and a script or two.
const CONNECTIONS: usize = 16;

/// No request is longer.
const REQUEST_BYTES: u64 = 128;

/// How many records are read at a time: with the largest payloads some 12 MiB for a connection.
const CHUNK: usize = 64;

/// How long a client may take over a request, and over reading what it was sent.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of a data directory.
#[must_use]
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("admin.sock")
}

/// Serves `log` on a socket at `path` until the server goes down; then the socket is removed and
/// the task ends. To be called by the process that holds the data directory's lock: a socket that is
/// there already is a dead one. Must be called within a tokio runtime.
///
/// # Errors
/// When the socket cannot be made.
pub(crate) fn serve(
    path: &Path,
    log: Arc<dyn Log>,
    shutdown: Shutdown,
) -> io::Result<JoinHandle<()>> {
    let listener = bind(path)?;
    let path = path.to_owned();
    Ok(tokio::spawn(async move {
        accept(&listener, &log, &shutdown).await;
        if let Err(error) = std::fs::remove_file(&path) {
            debug!(%error, path = %path.display(), "cannot remove the admin socket");
        }
    }))
}

/// Serves `log` on a socket at `path` until `stop` completes, for programs that embed the log.
/// Must be called within a tokio runtime.
///
/// # Errors
/// When the socket cannot be made.
pub fn serve_until(
    path: &Path,
    log: Arc<dyn Log>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    serve(path, log, Shutdown::when(stop))
}

/// The socket appears under its name only once nobody else can connect to it, and in the place of
/// one that a crash left behind.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let partial = path.with_extension("new");
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&partial)?;
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&partial, path)?;
    Ok(listener)
}

async fn accept(listener: &UnixListener, log: &Arc<dyn Log>, shutdown: &Shutdown) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = shutdown.given() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "the admin socket cannot accept");
                sleep(limits::ACCEPT_RETRY).await;
                continue;
            }
        };
        let permit = Arc::clone(&permits).try_acquire_owned();
        let (log, shutdown) = (Arc::clone(log), shutdown.clone());
        connections.spawn(async move {
            let (reader, writer) = stream.into_split();
            let mut connection =
                Connection { reader: tokio::io::BufReader::new(reader), writer, log, shutdown };
            let served = match permit {
                Ok(_permit) => connection.run().await,
                Err(_) => Err(Failure::Refused("too many connections are open".to_owned())),
            };
            if let Err(Failure::Refused(reason)) = &served {
                // Whoever hung up will not read it.
                let _ = connection.send(&error_frame(reason)).await;
            }
            if let Err(error) = served {
                debug!(%error, "an admin connection ended");
            }
        });
    }
    // Those that follow get their seal; those that do not read any more are not waited for.
    let _ =
        timeout(Duration::from_secs(1), async { while connections.join_next().await.is_some() {} })
            .await;
}

/// Why a connection ends before the client has hung up.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The client is told.
    #[error("{0}")]
    Refused(String),
    /// The client does not listen.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<CodecError> for Failure {
    fn from(error: CodecError) -> Self {
        Self::Refused(error.to_string())
    }
}

fn error_frame(reason: &str) -> Vec<u8> {
    let text: String = reason.chars().take(1024).collect();
    let length = u16::try_from(text.len()).unwrap_or_default();
    [&[TAG_ERROR][..], &length.to_be_bytes(), text.as_bytes()].concat()
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    End,
    Records { from: Offset, to: Offset, follow: bool },
}

impl FromStr for Request {
    type Err = Failure;

    fn from_str(line: &str) -> Result<Self, Failure> {
        let refused = || Failure::Refused(format!("`{line}` is not a request"));
        let offset = |word: &str| word.parse().map(Offset::new).map_err(|_| refused());
        match *line.split_ascii_whitespace().collect::<Vec<_>>() {
            ["end"] => Ok(Self::End),
            ["records", from] => {
                Ok(Self::Records { from: offset(from)?, to: Offset::MAX, follow: false })
            }
            ["records", from, "follow"] => {
                Ok(Self::Records { from: offset(from)?, to: Offset::MAX, follow: true })
            }
            ["records", from, to] => {
                Ok(Self::Records { from: offset(from)?, to: offset(to)?, follow: false })
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("end"),
            Self::Records { from, follow: true, .. } => write!(f, "records {from} follow"),
            Self::Records { from, to: Offset::MAX, .. } => write!(f, "records {from}"),
            Self::Records { from, to, .. } => write!(f, "records {from} {to}"),
        }
    }
}

/// One client.
struct Connection {
    reader: tokio::io::BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    log: Arc<dyn Log>,
    shutdown: Shutdown,
}

impl Connection {
    async fn run(&mut self) -> Result<(), Failure> {
        loop {
            let mut line = Vec::new();
            let mut bounded = (&mut self.reader).take(REQUEST_BYTES);
            let read = timeout(PATIENCE, bounded.read_until(b'\n', &mut line));
            let read = tokio::select! {
                read = read => read,
                () = self.shutdown.given() => return Ok(()),
            };
            if read.map_err(|_| Failure::Refused("no request came".to_owned()))?? == 0 {
                return Ok(());
            }
            match String::from_utf8_lossy(&line).trim_end().parse()? {
                Request::End => {
                    let durable = *self.log.durable().borrow();
                    let answer = [&[TAG_END][..], &durable.get().to_be_bytes()].concat();
                    self.send(&answer).await?;
                }
                Request::Records { from, to, follow } => self.records(from, to, follow).await?,
            }
        }
    }

    async fn records(&mut self, from: Offset, to: Offset, follow: bool) -> Result<(), Failure> {
        let mut durable = self.log.durable();
        let last = *durable.borrow_and_update();
        if from == Offset::ZERO || from > last.next() {
            return Err(Failure::Refused(format!(
                "there is no record {from}; the log ends at {last}"
            )));
        }
        let mut segment = Sending { hasher: blake3::Hasher::new(), count: 0, chain: CHAIN_START };
        if let Some(before) = self.read(from.prev(), 1).await?.first()
            && from > Offset::new(1)
        {
            segment.chain = before.chain;
        }
        let header = [&MAGIC[..], &from.get().to_be_bytes(), &segment.chain].concat();
        self.send(segment.hashed(&header)).await?;
        let mut next = from;
        loop {
            let end = (*durable.borrow_and_update()).min(to);
            while next <= end && !self.shutdown.is_given() {
                let left = usize::try_from(end.get() - next.get()).unwrap_or(CHUNK);
                let records = self.read(next, left.saturating_add(1).min(CHUNK)).await?;
                let Some(last) = records.last().map(Record::offset) else {
                    return Err(ReadError::Missing(next).into());
                };
                let entries = segment.entries(&records)?;
                self.send(&entries).await?;
                next = last.next();
            }
            if !follow || self.shutdown.is_given() {
                break;
            }
            let mut ignored = [0; 1];
            tokio::select! {
                changed = durable.changed() => if changed.is_err() { break },
                () = self.shutdown.given() => break,
                // Whatever a follower says, it wants no more.
                _ = self.reader.read(&mut ignored) => {
                    return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
                }
            }
        }
        let seal = segment.seal();
        self.send(&seal).await
    }

    /// Reading blocks, on the store's locks and on the disk.
    async fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, Failure> {
        let log = Arc::clone(&self.log);
        let read = tokio::task::spawn_blocking(move || log.read(from, limit)).await;
        Ok(read.map_err(|_| Failure::Refused("reading the log failed".to_owned()))??)
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let sent = timeout(PATIENCE, self.writer.write_all(bytes)).await;
        Ok(sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??)
    }
}

/// A segment on its way to a client.
struct Sending {
    hasher: blake3::Hasher,
    count: u64,
    chain: Chain,
}

impl Sending {
    fn hashed<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.hasher.update(bytes);
        bytes
    }

    fn entries(&mut self, records: &[Record]) -> Result<Vec<u8>, CodecError> {
        let mut out = Vec::new();
        for record in records {
            let frame = codec::encode_frame(record)?;
            let length = u32::try_from(frame.len()).map_err(|_| CodecError::TooLong("frame"))?;
            out.push(TAG_RECORD);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&frame);
            self.count += 1;
            self.chain = record.chain;
        }
        self.hasher.update(&out);
        Ok(out)
    }

    fn seal(&mut self) -> Vec<u8> {
        let mut out = vec![TAG_SEAL];
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(&self.chain);
        self.hasher.update(&out);
        out.extend_from_slice(self.hasher.finalize().as_bytes());
        out
    }
}

/// Why a running server could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The socket failed.
    #[error("the server's admin socket {}: {source}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server does not answer the request.
    #[error("the server answers: {0}")]
    Refused(String),
    /// What came is not an answer.
    #[error("the server's answer is not understood: {0}")]
    Protocol(&'static str),
    /// A record is not intact.
    #[error(transparent)]
    Damaged(#[from] VerifyError),
    /// The bytes of a record cannot be read.
    #[error("record {offset} as the server sent it: {source}")]
    Frame {
        /// Which record should have come.
        offset: Offset,
        /// What is wrong.
        source: CodecError,
    },
}

/// A connection to a running server. Blocks.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<net::UnixStream>,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(path: &Path) -> Result<Self, AdminError> {
        let failed = |source| AdminError::Io { path: path.to_owned(), source };
        let stream = net::UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        let stream = BufReader::with_capacity(256 * 1024, stream);
        Ok(Self { path: path.to_owned(), stream })
    }

    /// The offset of the last durable record.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn end(&mut self) -> Result<Offset, AdminError> {
        self.request(Request::End)?;
        let mut tag = [0; 1];
        self.fill(&mut tag)?;
        match tag {
            [TAG_END] => {
                let mut end = [0; 8];
                self.fill(&mut end)?;
                Ok(Offset::new(u64::from_be_bytes(end)))
            }
            [TAG_ERROR] => Err(self.refusal()),
            _ => Err(AdminError::Protocol("an unknown tag")),
        }
    }

    /// The records from `from` to `to`, verified. To be read to the end before the next request.
    ///
    /// # Errors
    /// When the connection fails or the server refuses.
    pub fn records(&mut self, from: Offset, to: Offset) -> Result<Answer<&mut Self>, AdminError> {
        Answer::to(self, Request::Records { from, to, follow: false })
    }

    /// As [`Client::records`], on a connection of its own.
    ///
    /// # Errors
    /// When the connection fails or the server refuses.
    pub fn into_records(self, from: Offset, to: Offset) -> Result<Answer<Self>, AdminError> {
        Answer::to(self, Request::Records { from, to, follow: false })
    }

    /// The records from `from` on, verified, and each new one as it becomes durable. Ends when the
    /// server stops.
    ///
    /// # Errors
    /// When the connection fails or the server refuses.
    pub fn into_follow(self, from: Offset) -> Result<Answer<Self>, AdminError> {
        let forever = self.stream.get_ref().set_read_timeout(None);
        forever.map_err(|source| AdminError::Io { path: self.path.clone(), source })?;
        Answer::to(self, Request::Records { from, to: Offset::MAX, follow: true })
    }

    fn request(&mut self, request: Request) -> Result<(), AdminError> {
        let line = format!("{request}\n");
        let sent = self.stream.get_mut().write_all(line.as_bytes());
        sent.map_err(|source| AdminError::Io { path: self.path.clone(), source })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), AdminError> {
        let filled = self.stream.read_exact(bytes);
        filled.map_err(|source| AdminError::Io { path: self.path.clone(), source })
    }

    fn refusal(&mut self) -> AdminError {
        let mut length = [0; 2];
        if let Err(error) = self.fill(&mut length) {
            return error;
        }
        let mut text = vec![0; u16::from_be_bytes(length).into()];
        match self.fill(&mut text) {
            Ok(()) => AdminError::Refused(String::from_utf8_lossy(&text).into_owned()),
            Err(error) => error,
        }
    }
}

/// The records of one answer.
#[derive(Debug)]
pub struct Answer<C> {
    client: C,
    hasher: blake3::Hasher,
    checker: Checker,
    count: u64,
    done: bool,
}

impl<C: BorrowMut<Client>> Answer<C> {
    fn to(mut client: C, request: Request) -> Result<Self, AdminError> {
        let from = client.borrow_mut();
        from.request(request)?;
        let mut magic = [0; 8];
        from.fill(&mut magic[..1])?;
        if magic[0] == TAG_ERROR {
            return Err(from.refusal());
        }
        from.fill(&mut magic[1..])?;
        if magic != *MAGIC {
            return Err(AdminError::Protocol("it does not begin as a segment does"));
        }
        let (mut first, mut before) = ([0; 8], CHAIN_START);
        from.fill(&mut first)?;
        from.fill(&mut before)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&magic).update(&first).update(&before);
        let last = Offset::new(u64::from_be_bytes(first)).prev();
        let checker = Checker::from_chain(last, before);
        Ok(Self { client, hasher, checker, count: 0, done: false })
    }

    fn advance(&mut self) -> Result<Option<Record>, AdminError> {
        let client = self.client.borrow_mut();
        let mut tag = [0; 1];
        client.fill(&mut tag)?;
        match tag {
            [TAG_RECORD] => {
                let mut length = [0; 4];
                client.fill(&mut length)?;
                let size = u32::from_be_bytes(length) as usize;
                if size > MAX_FRAME_BYTES {
                    return Err(AdminError::Protocol("an entry is longer than records are"));
                }
                let mut frame = vec![0; size];
                client.fill(&mut frame)?;
                self.hasher.update(&tag).update(&length).update(&frame);
                let offset = self.checker.last().next();
                let frame = Frame::decode(&Bytes::from(frame))
                    .map_err(|source| AdminError::Frame { offset, source })?;
                self.checker.check(&frame.record)?;
                self.count += 1;
                Ok(Some(frame.record))
            }
            [TAG_SEAL] => {
                let (mut count, mut chain, mut hash) = ([0; 8], CHAIN_START, [0; 32]);
                client.fill(&mut count)?;
                client.fill(&mut chain)?;
                client.fill(&mut hash)?;
                self.hasher.update(&tag).update(&count).update(&chain);
                let fits = u64::from_be_bytes(count) == self.count
                    && chain == *self.checker.chain()
                    && hash == *self.hasher.finalize().as_bytes();
                if fits { Ok(None) } else { Err(AdminError::Protocol("the seal does not fit")) }
            }
            [TAG_ERROR] => Err(client.refusal()),
            _ => Err(AdminError::Protocol("an entry of an unknown kind")),
        }
    }
}

impl<C: BorrowMut<Client>> Iterator for Answer<C> {
    type Item = Result<Record, AdminError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.advance();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}
