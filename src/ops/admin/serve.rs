//! The server's side of the admin socket.

use std::{io, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
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

use super::{actor, context::ActContext, registry};
use crate::socket::{
    BadRequest, DONE_BYTES, PATIENCE, REQUEST_BYTES, Request, TAG_DONE, TAG_END, TAG_ERROR,
};
use logcabin_base::{limits, shutdown::Shutdown, threads};
use logcabin_log::{
    Log, ReadError,
    archive::{MAGIC, TAG_RECORD, TAG_SEAL},
};
use logcabin_record::{
    CHAIN_START, Chain, Offset, Origin, Record,
    codec::{self, CodecError},
};

/// Enough for some people at terminals, with a script or two.
const CONNECTIONS: usize = 16;

/// How many records are read at a time: with the largest payloads some 12 MiB for a connection.
const CHUNK: usize = 64;

/// Serves `log` and the acts of `context` on a socket at `path` until the server stops, and then
/// removes the socket. The process must hold the data directory's lock: an existing socket is then
/// a dead one. Must be called within a tokio runtime.
pub fn serve(
    path: &Path,
    log: Arc<dyn Log>,
    context: Option<Arc<ActContext>>,
    shutdown: Shutdown,
) -> io::Result<JoinHandle<()>> {
    let listener = bind(path)?;
    let path = path.to_owned();
    Ok(tokio::spawn(async move {
        accept(&listener, &log, context.as_ref(), &shutdown).await;
        if let Err(error) = std::fs::remove_file(&path) {
            debug!(%error, path = %path.display(), "cannot remove the admin socket");
        }
    }))
}

/// Serves `log` on a socket at `path` until `stop` completes, for programs that embed the log.
/// Clients can only read. Must be called within a tokio runtime.
pub fn serve_until(
    path: &Path,
    log: Arc<dyn Log>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    serve(path, log, None, Shutdown::when(stop))
}

/// The socket gets its name only once other users cannot connect to it, and replaces one that a
/// crash left behind.
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

async fn accept(
    listener: &UnixListener,
    log: &Arc<dyn Log>,
    context: Option<&Arc<ActContext>>,
    shutdown: &Shutdown,
) {
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
        let (log, context, shutdown) = (Arc::clone(log), context.cloned(), shutdown.clone());
        connections.spawn(async move {
            // The operating system says who it is.
            let uid = stream.peer_cred().ok().map(|peer| peer.uid());
            let (reader, writer) = stream.into_split();
            let reader = tokio::io::BufReader::new(reader);
            let mut connection = Connection { reader, writer, log, context, uid, shutdown };
            let served = match permit {
                Ok(_permit) => connection.run().await,
                Err(_) => Err(Failure::Refused("too many connections are open".to_owned())),
            };
            if let Err(Failure::Refused(reason)) = &served {
                // A client that hung up will not read it.
                let _ = connection.send(&error_frame(reason)).await;
            }
            if let Err(error) = served {
                debug!(%error, "an admin connection ended");
            }
        });
    }
    // Followers get their seal; clients that no longer read are not waited for.
    let _ =
        timeout(Duration::from_secs(1), async { while connections.join_next().await.is_some() {} })
            .await;
}

fn error_frame(reason: &str) -> Vec<u8> {
    let text: String = reason.chars().take(1024).collect();
    let length = u16::try_from(text.len()).unwrap_or_default();
    [&[TAG_ERROR][..], &length.to_be_bytes(), text.as_bytes()].concat()
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

impl From<BadRequest> for Failure {
    fn from(error: BadRequest) -> Self {
        Self::Refused(error.to_string())
    }
}

struct Connection {
    reader: tokio::io::BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    log: Arc<dyn Log>,
    context: Option<Arc<ActContext>>,
    uid: Option<u32>,
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
                Request::Act(act) => self.act(act).await?,
                Request::Records { from, to, follow } => self.records(from, to, follow).await?,
            }
        }
    }

    async fn act(&mut self, message: String) -> Result<(), Failure> {
        let context = self.context.clone();
        let context =
            context.ok_or_else(|| Failure::Refused("this log can only be read".to_owned()))?;
        let origin = Origin::administrator(&actor::name(self.uid));
        // In its own task, so that the act is completed even if the client hangs up.
        let done =
            tokio::spawn(async move { registry::answer(&message, &context, origin).await }).await;
        let done = done.map_err(|_| Failure::Refused("the server failed to do this".to_owned()))?;
        let json = done.map_err(|error| Failure::Refused(error.to_string()))?;
        let length = u32::try_from(json.len()).ok().filter(|_| json.len() <= DONE_BYTES);
        let length = length.ok_or_else(|| Failure::Refused("the answer is too long".to_owned()))?;
        self.send(&[&[TAG_DONE][..], &length.to_be_bytes(), json.as_bytes()].concat()).await
    }

    async fn records(&mut self, from: Offset, to: Offset, follow: bool) -> Result<(), Failure> {
        let last = *self.log.durable().borrow();
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
        let end = if follow { to } else { to.min(last) };
        let records = Arc::clone(&self.log).follow(from).until(end).in_chunks_of(CHUNK);
        let mut records = records.ready_chunks(CHUNK);
        let mut ignored = [0; 1];
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.shutdown.given() => break,
                chunk = records.next() => chunk,
                // Anything that a follower sends ends the stream.
                _ = self.reader.read(&mut ignored), if follow => {
                    return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into());
                }
            };
            let Some(chunk) = chunk else { break };
            let chunk = chunk.into_iter().collect::<Result<Vec<_>, _>>()?;
            self.send(&segment.entries(&chunk)?).await?;
        }
        let seal = segment.seal();
        self.send(&seal).await
    }

    /// Reading blocks, on the store's locks and on the disk.
    async fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, Failure> {
        let log = Arc::clone(&self.log);
        let read = threads::spawn_blocking(move || log.read(from, limit)).await;
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
