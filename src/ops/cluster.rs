//! Moves a log into a cluster and out of it again, and creates the log of a new node.
//!
//! All of this happens while no server runs on the data directory, and can be repeated if it was
//! interrupted.

use std::{collections::BTreeSet, io, path::Path, sync::Arc};

use crate::{
    former,
    source::{Source, SourceError},
};
use logcabin_base::{clock::Clock, limits, threads};
use logcabin_cluster::nats::{Files, Nodes};
use logcabin_config::{self as config, Config, MediaDir};
use logcabin_log::{
    AppendError, Log as _, StreamHeads,
    nats::{NatsError, NatsLog, NatsOptions},
    store::{OpenError, SledLog, SledOptions},
};
use logcabin_media::{shared_store::SharedStore as _, store};
use logcabin_outside::exits;
use logcabin_record::{
    Offset, Record,
    codec::{self, Frame},
};

/// Why a log was not moved.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The cluster cannot be reached, or does not fit.
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error("the log cannot be read: {0}")]
    Read(#[from] SourceError),
    /// The records are not those of the cluster, or cannot be written.
    #[error("the records cannot be copied: {0}")]
    Append(#[from] AppendError),
    #[error("uploaded files cannot be copied: {0}")]
    Files(#[from] io::Error),
    /// It cannot be done with this data directory.
    #[error("{0}")]
    Refused(String),
}

/// A moved log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedLog {
    /// Its last record.
    pub last: Offset,
    /// How many uploaded files were copied.
    pub files: u64,
}

fn refused<T>(reason: impl Into<String>) -> Result<T, ClusterError> {
    Err(ClusterError::Refused(reason.into()))
}

fn open(data_dir: &Path) -> Result<Arc<SledLog>, OpenError> {
    SledLog::open(SledOptions::new(data_dir)).map(Arc::new)
}

fn options(log: &config::Log, server: &config::Server) -> Result<NatsOptions, ClusterError> {
    if log.servers.is_empty() {
        return refused("name the NATS servers of the cluster: `--log nats://n1,n2,n3`");
    }
    Ok(NatsOptions::of(log, server, Clock::system()))
}

/// Creates a cluster that begins with the embedded log of `config`, whose server becomes its first
/// node.
///
/// # Errors
/// If the log is empty or already that of a node, or the cluster has a stream.
pub async fn move_in(config: &Config) -> Result<MovedLog, ClusterError> {
    let options = options(&config.log, &config.server)?;
    // The nodes have data directories of their own, without the notes in this one.
    former::must_be_usable(&config.server.data_dir)
        .map_err(|error| ClusterError::Refused(error.to_string()))?;
    let local = open(&config.server.data_dir)?;
    let last = *local.durable().borrow();
    if last == Offset::ZERO {
        return refused("the data directory has no log: start a node there instead");
    }
    if local.is_of_cluster() {
        return refused("the log is already that of a node");
    }
    // After an import, a node serves without the notes in this directory.
    former::note_departures(&config.server.data_dir)
        .map_err(|error| ClusterError::Refused(error.to_string()))?;
    exits::leaves("a log that a cluster begins with")
        .map_err(|error| ClusterError::Refused(format!("it cannot be noted: {error}")))?;
    let log = NatsLog::found(local, options).await?;
    let mut files = 0;
    if config.media.dir == MediaDir::Auto {
        let shared_store = Files::open(&log, Clock::system()).await?;
        for (hash, path) in store::files(&store::directory(&config.server.data_dir))? {
            shared_store.put(&hash, &path).await?;
            files += 1;
        }
    }
    Ok(MovedLog { last, files })
}

/// Turns the log of the last node into an embedded one, and removes the cluster.
///
/// # Errors
/// If other nodes are running, or the log lacks records of the cluster.
pub async fn move_out(config: &Config) -> Result<MovedLog, ClusterError> {
    let options = options(&config.log, &config.server)?;
    let local = open(&config.server.data_dir)?;
    if !local.is_of_cluster() {
        return refused("the log is not that of a node");
    }
    let log = NatsLog::join(Arc::clone(&local), options).await?;
    let live = Nodes::live(&log).await?;
    if !live.is_empty() {
        return refused(format!("these nodes are running; stop them first: {}", live.join(", ")));
    }
    let files = if config.media.dir == MediaDir::Auto {
        fetch_files(&log, &config.server.data_dir).await?
    } else {
        0
    };
    log.dissolve().await?;
    if config.media.dir == MediaDir::Auto {
        Files::delete(&log).await?;
    }
    Nodes::dissolve(&log).await?;
    Ok(MovedLog { last: *local.durable().borrow(), files })
}

/// Fetches the files of the cluster that are not on this disk.
async fn fetch_files(log: &NatsLog, data_dir: &Path) -> Result<u64, ClusterError> {
    let shared_store = Files::open(log, Clock::system()).await?;
    let there = store::files(&store::directory(data_dir))?;
    let there: BTreeSet<_> = there.into_iter().map(|(hash, _)| hash).collect();
    let store = Arc::new(store::Store::open(data_dir, 0, u64::MAX)?);
    let mut fetched = 0;
    for hash in shared_store.older(0).await?.into_iter().filter(|hash| !there.contains(hash)) {
        let Some(mut contents) = shared_store.fetch(&hash).await? else { continue };
        let mut receiving = store.receive(None).await?;
        loop {
            let mut piece = bytes::BytesMut::with_capacity(limits::MEDIA_PIECE_BYTES);
            if tokio::io::AsyncReadExt::read_buf(&mut contents, &mut piece).await? == 0 {
                break;
            }
            receiving.write(piece.freeze()).await?;
        }
        receiving.finish().await?;
        fetched += 1;
    }
    Ok(fetched)
}

/// Creates the log of a new node: a copy of `from` (a backup, an archive, another data directory),
/// if there is one, and then what the cluster has beyond it.
///
/// # Errors
/// If there is a log already, the cluster cannot be reached, or the records are not its own.
pub async fn join(
    log: &config::Log,
    server: &config::Server,
    from: Option<&Path>,
) -> Result<MovedLog, ClusterError> {
    let options = options(log, server)?;
    let local = open(&server.data_dir)?;
    if *local.durable().borrow() > Offset::ZERO && !local.is_of_cluster() {
        return refused("the data directory has a log already, which is not that of a node");
    }
    if let Some(from) = from {
        if *local.durable().borrow() > Offset::ZERO {
            return refused("the data directory has a log already");
        }
        copy(&local, from).await?;
        let closing = Arc::clone(&local);
        let _ = threads::spawn_blocking(move || closing.close()).await;
        drop(local);
        return finish(open(&server.data_dir)?, options).await;
    }
    finish(local, options).await
}

async fn finish(local: Arc<SledLog>, options: NatsOptions) -> Result<MovedLog, ClusterError> {
    let log = NatsLog::join(Arc::clone(&local), options).await?;
    let heads = heads(&local)?;
    log.start(heads, Box::new(|_| ()));
    log.caught_up().await?;
    let last = *local.durable().borrow();
    let closing = threads::spawn_blocking(move || log.close()).await;
    closing.map_err(|error| ClusterError::Refused(error.to_string()))?;
    Ok(MovedLog { last, files: 0 })
}

/// The last record of each stream of a log.
fn heads(local: &SledLog) -> Result<StreamHeads, ClusterError> {
    let mut heads = StreamHeads::new();
    let mut next = Offset::new(1);
    loop {
        let records = local.read(next, RECORDS);
        let records = records.map_err(|error| ClusterError::Refused(error.to_string()))?;
        let Some(last) = records.last() else { return Ok(heads) };
        next = last.offset().next();
        for record in &records {
            heads.insert(record.header.stream.clone(), record.offset());
        }
    }
}

/// How many records are written at once.
const RECORDS: usize = 1024;

/// Copies the whole batches of `from` into an empty log.
async fn copy(local: &SledLog, from: &Path) -> Result<(), ClusterError> {
    let source = Source::open(&from.display().to_string())?;
    local.start(StreamHeads::new(), Box::new(|_| ()));
    let (mut piece, mut whole) = (Vec::new(), 0);
    for record in source.records(Offset::new(1))? {
        let record = record?;
        if whole >= RECORDS && whole == piece.len() {
            local.copy(std::mem::take(&mut piece)).await?;
            whole = 0;
        }
        piece.push(framed(&record)?);
        whole = if record.header.batch_remaining == 0 { piece.len() } else { whole };
    }
    // The end of a backup can be in the middle of a batch.
    piece.truncate(whole);
    Ok(local.copy(piece).await?)
}

fn framed(record: &Record) -> Result<(Frame, bytes::Bytes), ClusterError> {
    let bytes = codec::encode_frame(record);
    let bytes = bytes.map_err(|error| ClusterError::Refused(error.to_string()))?.into();
    let frame = Frame::decode(&bytes).map_err(|error| ClusterError::Refused(error.to_string()))?;
    Ok((frame, bytes))
}
