//! The log of a cluster: one JetStream stream, which every node follows into its own local log.
//!
//! A node *proposes* a batch by publishing it to the stream, and the stream puts the proposals of
//! all nodes in one order. Every node takes them in that order and checks each against the heads of
//! the record streams, as the local log does with its own batches: it is appended, or refused with
//! a conflict. The check rests on the order alone, so all nodes come to the same result, and
//! offset, time and chain value of each record are the same on all of them. A proposal is
//! acknowledged once its node has taken it from the stream, and has it on its own disk.
//!
//! So JetStream does nothing but order and replicate: a proposal is one message, and needs neither
//! an expected sequence nor a batch of messages.
//!
//! - `wire`: the messages.
//! - `propose`: batches on their way to the stream, and the callers that wait for them.
//! - `take`: messages on their way into the local log.
//! - `position`: how far the local log has followed.
//! - `barrier`: whether it has followed everything that is acknowledged.
//! - `peer`: records from another node that the stream no longer has.
//!
//! A node never skips a message. If its disk is full, it waits; if it cannot read a message, or
//! finds that its log differs from the stream, it stops.

mod barrier;
mod consume;
mod peer;
mod position;
mod propose;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod wire;

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{
    ConnectOptions,
    jetstream::{
        self, ErrorCode,
        context::{Context, GetStreamErrorKind, PublishError, PublishErrorKind},
        message::PublishMessage,
        stream::{self, RawMessageErrorKind},
    },
};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use self::{
    barrier::Barrier,
    position::Position,
    propose::{Proposals, Waiting},
    wire::Message,
};
use super::{
    AppendError, Appending, Batch, Follower, Log, MAX_BATCH_BYTES, ReadError, StreamHeads,
    check_size, store::SledLog,
};
use logcabin_base::clock::{Clock, random_bytes};
use logcabin_config as config;
use logcabin_record::{Offset, Record};

/// How a node reaches the stream.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Addresses of NATS servers, such as `nats://n1:4222`; any of them will do.
    pub servers: Vec<String>,
    /// The name of the stream. It is created if it does not exist.
    pub stream: String,
    /// How many servers keep a new stream.
    pub replicas: usize,
    /// The most bytes that a new stream keeps; older messages are removed.
    pub max_bytes: u64,
    /// A file with credentials (a JWT and a seed), as `nsc` makes them.
    pub credentials: Option<PathBuf>,
    /// A file with certificates of authorities to trust besides the system's.
    pub ca: Option<PathBuf>,
    /// The name of this node.
    pub node: String,
    /// The source of the time of records.
    pub clock: Clock,
}

impl NatsOptions {
    pub fn of(log: &config::Log, server: &config::Server, clock: Clock) -> Self {
        Self {
            servers: log.servers.iter().map(|server| server.0.clone()).collect(),
            stream: log.stream.0.clone(),
            replicas: log.replicas,
            max_bytes: log.stream_bytes,
            credentials: log.credentials_file.as_ref().map(|file| file.0.clone()),
            ca: log.ca_file.as_ref().map(|file| file.0.clone()),
            node: log.node_name(server),
            clock,
        }
    }
}

/// Why a node cannot follow the stream.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// No server can be reached, or they refuse this node.
    #[error("NATS cannot be reached at {servers}: {reason}")]
    Connect {
        /// The addresses that were tried.
        servers: String,
        /// What happened.
        reason: String,
    },
    /// The servers lack something that a log needs.
    #[error("{0}")]
    Unfit(String),
    /// A request to JetStream failed.
    #[error("JetStream failed: {0}")]
    Stream(String),
    /// The local log does not belong to the stream.
    #[error("the log in {} does not belong to the stream `{stream}`: {reason}", .dir.display())]
    Foreign {
        /// The directory of the local log.
        dir: PathBuf,
        stream: String,
        /// What does not fit.
        reason: String,
    },
    /// The position of the local log cannot be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Position { path: PathBuf, source: std::io::Error },
}

/// The largest message: a batch of the largest size, and what describes it.
const MAX_MESSAGE_BYTES: usize = MAX_BATCH_BYTES + 512 * 1024;

/// How long JetStream recognises a message that is published again. Longer than anybody waits for a
/// proposal ([`propose::DEADLINE`]).
const DUPLICATES: Duration = Duration::from_secs(120);

/// How long a node waits for an answer of JetStream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a starting node retries what JetStream did not do.
const PATIENCE: Duration = Duration::from_secs(30);

/// Retries a request while the NATS servers may be starting, or electing a leader.
///
/// # Errors
/// Permanent ones at once; others after 30 seconds.
pub async fn patiently<T>(
    mut attempt: impl AsyncFnMut() -> Result<T, NatsError>,
) -> Result<T, NatsError> {
    let mut patience = Patience::default();
    loop {
        match attempt().await {
            Err(error) => patience.wait(error).await?,
            Ok(done) => return Ok(done),
        }
    }
}

/// How long a request has failed: [`patiently`], for futures that move between threads.
#[derive(Debug, Default)]
pub struct Patience {
    since: Option<std::time::Instant>,
}

impl Patience {
    /// Waits until it is time for the next attempt.
    ///
    /// # Errors
    /// `error` itself, if it is permanent or 30 seconds have passed since the first.
    pub async fn wait(&mut self, error: NatsError) -> Result<(), NatsError> {
        if !matches!(error, NatsError::Connect { .. } | NatsError::Stream(_)) {
            return Err(error);
        }
        match self.since {
            Some(since) if since.elapsed() > PATIENCE => return Err(error),
            Some(_) => {}
            None => {
                tracing::warn!(%error, "retrying for {} s", PATIENCE.as_secs());
                self.since = Some(std::time::Instant::now());
            }
        }
        tokio::time::sleep(consume::PAUSE).await;
        Ok(())
    }
}

/// Whether JetStream has a stream of this name.
///
/// # Errors
/// When it does not say.
pub async fn has_stream(jetstream: &Context, name: &str) -> Result<bool, NatsError> {
    patiently(async || match jetstream.get_stream(name).await {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(said)
                if said.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(false)
            }
            _ => Err(NatsError::Stream(error.to_string())),
        },
    })
    .await
}

/// Deletes a stream, if there is one of this name.
///
/// # Errors
/// When JetStream does not delete it.
pub async fn delete_stream(jetstream: &Context, name: &str) -> Result<(), NatsError> {
    patiently(async || {
        if !has_stream(jetstream, name).await? {
            return Ok(());
        }
        let deleted = jetstream.delete_stream(name).await;
        deleted.map(|_| ()).map_err(|error| NatsError::Stream(error.to_string()))
    })
    .await
}

/// The log of a cluster. See the module's documentation.
pub struct NatsLog {
    local: Arc<SledLog>,
    shared: Arc<Shared>,
    proposals: Proposals,
    idle: Mutex<Option<consume::StreamConsumer>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What the tasks of a node share.
struct Shared {
    /// This process. Drawn at random at each start.
    node: u64,
    subject: String,
    jetstream: Context,
    stream: stream::Stream<stream::Info>,
    clock: Clock,
    waiting: Waiting,
    barrier: Barrier,
    /// The last record of the log that the stream began with.
    base: Offset,
    /// What the log has settled.
    position: Mutex<Position>,
    /// Whether this node needs records of another one. Meanwhile, it answers no other node.
    lacks_records: watch::Sender<bool>,
    closing: AtomicBool,
    stop: watch::Sender<bool>,
    /// The message that was taken last, and the last one of the stream as far as is known.
    taken: watch::Sender<StreamProgress>,
    /// Why the node no longer follows the stream.
    failure: watch::Sender<Option<Arc<str>>>,
}

/// How far a node has followed the stream, as sequences of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamProgress {
    /// The message that was taken last: its records are durable here.
    pub sequence: u64,
    /// The last message of the stream, as far as this node knows.
    pub last: u64,
}

impl fmt::Debug for NatsLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsLog")
            .field("subject", &self.shared.subject)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl NatsLog {
    /// Connects to the stream, which is created if it does not exist, and checks that `local` is a
    /// copy of its records.
    pub async fn open(local: Arc<SledLog>, options: NatsOptions) -> Result<Self, NatsError> {
        let (jetstream, stream) = patiently(async || {
            let jetstream = jetstream(&options).await?;
            let stream = open_stream(&jetstream, &options, Offset::ZERO).await?;
            Ok((jetstream, stream))
        })
        .await?;
        Self::with_stream(local, options, jetstream, stream).await
    }

    /// As [`NatsLog::open`], for a stream that must exist. If `local` never followed a stream, its
    /// records are assumed to be a copy of the cluster's, of whatever age.
    pub async fn join(local: Arc<SledLog>, options: NatsOptions) -> Result<Self, NatsError> {
        let jetstream = patiently(async || jetstream(&options).await).await?;
        let stream = patiently(async || {
            let stream = jetstream.get_stream(&options.stream).await;
            stream.map_err(|error| NatsError::Stream(error.to_string()))
        })
        .await?;
        if Position::of(&local)?.is_none() {
            let info = stream.cached_info();
            let offset = base(info).min(*local.durable().borrow());
            Position::first(info, offset).note(&local)?;
        }
        Self::with_stream(local, options, jetstream, stream).await
    }

    /// Creates a stream, which must not exist yet, from the records of `local`, and becomes a node.
    pub async fn found(local: Arc<SledLog>, options: NatsOptions) -> Result<Self, NatsError> {
        let jetstream = patiently(async || jetstream(&options).await).await?;
        let end = *local.durable().borrow();
        let stream = patiently(async || open_stream(&jetstream, &options, end).await).await?;
        let info = stream.cached_info();
        if base(info) != end || info.state.last_sequence > 0 {
            return Err(NatsError::Unfit(format!(
                "there is a stream `{}` already; `log.stream` names another one",
                options.stream
            )));
        }
        Position::first(info, end).note(&local)?;
        Self::with_stream(local, options, jetstream, stream).await
    }

    async fn with_stream(
        local: Arc<SledLog>,
        options: NatsOptions,
        jetstream: Context,
        stream: stream::Stream<stream::Info>,
    ) -> Result<Self, NatsError> {
        let position =
            patiently(async || consume::position(&local, &jetstream, &stream).await).await?;
        let info = stream.cached_info();
        let base = base(info);
        let taken = StreamProgress { sequence: position.sequence, last: info.state.last_sequence };
        let shared = Arc::new(Shared {
            node: u64::from_be_bytes(random_bytes()),
            subject: subject(&options.stream),
            jetstream,
            clock: options.clock,
            waiting: Waiting::default(),
            barrier: Barrier::default(),
            base,
            lacks_records: watch::Sender::new(position.is_new()),
            position: Mutex::new(position.clone()),
            stream,
            closing: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            taken: watch::Sender::new(taken),
            failure: watch::Sender::new(None),
        });
        let taker = consume::StreamConsumer::new(Arc::clone(&local), Arc::clone(&shared), position);
        Ok(Self {
            local,
            proposals: Proposals::new(Arc::clone(&shared)),
            shared,
            idle: Mutex::new(Some(taker)),
            tasks: Mutex::default(),
        })
    }

    /// How far this node has followed the stream, as it advances.
    pub fn taken(&self) -> watch::Receiver<StreamProgress> {
        self.shared.taken.subscribe()
    }

    /// Why this node no longer follows the stream, once it has stopped.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.shared.failure.subscribe()
    }

    /// Waits until this node has taken every message that is in the stream now, however long that
    /// takes.
    ///
    /// # Errors
    /// When JetStream does not say how long the stream is, or the node stops following it.
    pub async fn caught_up(&self) -> Result<(), NatsError> {
        let failed = |error: &dyn fmt::Display| NatsError::Stream(error.to_string());
        let last = patiently(async || self.stream_info().await).await?.state.last_sequence;
        let (mut taken, mut durable, mut failure) =
            (self.taken(), self.local.durable(), self.failure());
        let reach = async {
            let base = self.shared.base;
            durable.wait_for(|durable| *durable >= base).await.map(|_| ())?;
            taken.wait_for(|taken| taken.sequence >= last).await.map(|_| ())
        };
        tokio::select! {
            reached = reach => reached.map_err(|error| failed(&error)),
            stopped = failure.wait_for(Option::is_some) => {
                let reason = stopped.ok().and_then(|reason| reason.clone()).unwrap_or_default();
                Err(NatsError::Stream(reason.to_string()))
            }
        }
    }

    /// Waits until this node has taken every message that is in the stream now, for some seconds at
    /// most. Returns `false` if that cannot be found out: reads may then miss the newest writes.
    pub async fn is_current(&self) -> bool {
        self.shared.barrier.pass(&self.shared).await
    }

    /// Identifies this process among the nodes. Drawn at random at each start.
    pub fn process(&self) -> u64 {
        self.shared.node
    }

    /// Takes the local log out of the cluster: from now on it is an embedded one. The stream is
    /// removed. The log must have taken all messages, and be closed.
    ///
    /// # Errors
    /// When the log lacks messages, or JetStream does not answer.
    pub async fn dissolve(&self) -> Result<(), NatsError> {
        let last = patiently(async || self.stream_info().await).await?.state.last_sequence;
        let taken = self.shared.position.lock().sequence;
        if taken < last {
            return Err(NatsError::Unfit(format!(
                "this node has message {taken}, but the stream goes to {last}"
            )));
        }
        // They would note the position again.
        self.shared.stop.send_replace(true);
        let tasks: Vec<_> = self.tasks.lock().drain(..).collect();
        for task in tasks {
            let _ = task.await;
        }
        let forgotten = Position::forget(self.local.dir());
        forgotten.map_err(|source| self.unwritten(source))?;
        delete_stream(&self.shared.jetstream, self.stream_name()).await
    }

    fn unwritten(&self, source: std::io::Error) -> NatsError {
        NatsError::Position { path: position::path(self.local.dir()), source }
    }

    pub fn stream_name(&self) -> &str {
        &self.shared.stream.cached_info().config.name
    }

    /// How many servers kept the stream when the log was opened.
    pub fn replicas(&self) -> usize {
        self.shared.stream.cached_info().config.num_replicas
    }

    /// The id of this node, the same across restarts.
    pub fn node_id(&self) -> std::io::Result<String> {
        position::node_id(self.local.dir())
    }

    /// The connection, for what nodes share besides the log.
    pub fn jetstream(&self) -> &Context {
        &self.shared.jetstream
    }

    /// The stream as JetStream describes it now.
    pub async fn stream_info(&self) -> Result<stream::Info, NatsError> {
        let info = self.shared.stream.get_info().await;
        info.map_err(|error| NatsError::Stream(error.to_string()))
    }

    /// Overwrites a message on the disks of the NATS servers, if it exists.
    pub async fn overwrite(&self, sequence: u64) -> Result<(), NatsError> {
        match self.shared.stream.delete_message(sequence).await {
            Ok(_) => Ok(()),
            // It does not exist, or the request failed.
            Err(error) => match self.shared.stream.get_raw_message(sequence).await {
                Err(found) if found.kind() == RawMessageErrorKind::NoMessageFound => Ok(()),
                _ => Err(NatsError::Stream(error.to_string())),
            },
        }
    }

    /// Removes the messages up to `last` from the stream.
    pub async fn remove_up_to(&self, last: u64) -> Result<(), NatsError> {
        let purged = self.shared.stream.purge().sequence(last + 1).await;
        purged.map(|_| ()).map_err(|error| NatsError::Stream(error.to_string()))
    }

    /// Takes this node out of the cluster: it accepts no more writes and follows no further.
    pub fn take_out(&self, reason: String) {
        self.shared.fail(reason);
        self.shared.stop.send_replace(true);
    }
}

impl Shared {
    /// Stops following for good: the node's log and the stream cannot be reconciled.
    fn fail(&self, reason: String) {
        tracing::error!(%reason, "this node no longer follows the stream");
        let reason: Arc<str> = reason.into();
        self.failure.send_replace(Some(Arc::clone(&reason)));
        self.waiting.fail_all(&AppendError::Failed(reason));
    }

    /// Publishes a mark: see [`mark`].
    async fn mark(&self) -> Result<u64, PublishError> {
        mark(&self.jetstream, &self.subject, self.node).await
    }

    fn knows(&self, last: u64) {
        self.taken.send_if_modified(|taken| {
            let is_news = last > taken.last;
            taken.last = taken.last.max(last);
            is_news
        });
    }

    fn failed(&self) -> Option<AppendError> {
        self.failure.borrow().clone().map(AppendError::Failed)
    }
}

impl Log for NatsLog {
    fn append(&self, batch: Batch) -> Appending<'_> {
        let refused = check_size(&batch).err().or_else(|| self.shared.failed());
        let closed = || self.shared.closing.load(Ordering::SeqCst).then_some(AppendError::Closed);
        let full = || self.local.is_full().map(AppendError::Full);
        if let Some(error) = refused.or_else(closed).or_else(full) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.proposals.propose(batch)
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        self.local.get(offset)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        self.local.read(from, limit)
    }

    fn off_disk(&self) -> Result<Offset, ReadError> {
        self.local.off_disk()
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        self.local.durable()
    }

    fn start(&self, heads: StreamHeads, follower: Follower) {
        let Some(taker) = self.idle.lock().take() else {
            tracing::error!("the log was started twice; the second start is ignored");
            return;
        };
        self.local.start(heads, follower);
        let mut tasks = self.tasks.lock();
        tasks.extend(taker.start());
        tasks.extend(self.proposals.start());
        tasks.push(tokio::spawn(Barrier::run(Arc::clone(&self.shared))));
        tasks.push(tokio::spawn(peer::serve(Arc::clone(&self.shared), Arc::clone(&self.local))));
    }

    fn close(&self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.waiting.until_none(propose::DEADLINE);
        self.shared.stop.send_replace(true);
        // The tasks end by themselves. They are on the runtime, which may be this thread's.
        self.local.close();
    }
}

impl Drop for NatsLog {
    fn drop(&mut self) {
        self.shared.stop.send_replace(true);
    }
}

/// Names, in the metadata of a stream, the last record of the log that it began with.
const BASE: &str = "logcabin.base";

fn base(info: &stream::Info) -> Offset {
    let base = info.config.metadata.get(BASE).and_then(|base| base.parse().ok());
    Offset::new(base.unwrap_or_default())
}

/// The subject to which the nodes publish.
fn subject(stream: &str) -> String {
    format!("{stream}.proposals")
}

/// Publishes a message without batches, and returns its sequence. It comes after every message that
/// the stream has, whether or not its leader has applied them.
async fn mark(jetstream: &Context, subject: &str, node: u64) -> Result<u64, PublishError> {
    let mark = Message { node, number: 0, batches: Vec::new() }.encode();
    let mark = mark.map_err(|error| PublishError::with_source(PublishErrorKind::Other, error))?;
    let mark = PublishMessage::build().payload(mark);
    let acknowledged = jetstream.send_publish(subject.to_owned(), mark).await?.await?;
    Ok(acknowledged.sequence)
}

/// The last message of the stream, if it is not after `taken`, which a node has taken: then the
/// stream has lost messages. A new leader may not have applied all of them yet, but what it
/// publishes comes after all of them.
async fn lost_since(
    (jetstream, subject, node): (&Context, &str, u64),
    state: &stream::State,
    taken: u64,
) -> Result<Option<u64>, PublishError> {
    if state.last_sequence >= taken {
        return Ok(None);
    }
    let end = mark(jetstream, subject, node).await?;
    Ok((end <= taken).then_some(end))
}

async fn connect(options: &NatsOptions) -> Result<async_nats::Client, NatsError> {
    let failed = |error: &dyn fmt::Display| NatsError::Connect {
        servers: options.servers.join(", "),
        reason: error.to_string(),
    };
    let mut connect = ConnectOptions::new()
        .name(format!("logcabin {}", options.node))
        .connection_timeout(Duration::from_secs(5))
        .ping_interval(Duration::from_secs(2))
        .request_timeout(Some(REQUEST_TIMEOUT))
        .reconnect_delay_callback(|attempts| {
            Duration::from_millis(20 << attempts.clamp(1, 6)).min(Duration::from_secs(1))
        });
    if let Some(ca) = &options.ca {
        connect = connect.add_root_certificates(ca.clone()).require_tls(true);
    }
    if let Some(credentials) = &options.credentials {
        connect = connect.credentials_file(credentials).await.map_err(|error| failed(&error))?;
    }
    connect.connect(&options.servers[..]).await.map_err(|error| failed(&error))
}

/// A connection to JetStream.
async fn jetstream(options: &NatsOptions) -> Result<Context, NatsError> {
    let client = connect(options).await?;
    let info = client.server_info();
    if !client.is_server_compatible(2, 12, 0) {
        return Err(NatsError::Unfit(format!(
            "the NATS server is of version {}; 2.12 or newer is needed",
            info.version
        )));
    }
    let largest = info.max_payload;
    if largest < MAX_MESSAGE_BYTES {
        return Err(NatsError::Unfit(format!(
            "the NATS server takes messages of {largest} bytes; set `max_payload: 8MB` in its \
             configuration"
        )));
    }
    let mut jetstream = jetstream::new(client);
    jetstream.set_timeout(REQUEST_TIMEOUT);
    Ok(jetstream)
}

/// What to do about servers that lack space for the stream.
fn hint_on_storage(options: &NatsOptions) -> String {
    format!(
        ". The stream `{}` may take up {} bytes on each server (`log.stream_bytes`): set \
         `max_file_store` in each server's `jetstream` block, which is three quarters of the free \
         disk unless set, or make `log.stream_bytes` smaller",
        options.stream, options.max_bytes
    )
}

/// Opens the stream. Creates it, to follow the record `base`, if it does not exist.
async fn open_stream(
    jetstream: &Context,
    options: &NatsOptions,
    base: Offset,
) -> Result<stream::Stream<stream::Info>, NatsError> {
    let config = stream::Config {
        name: options.stream.clone(),
        description: Some("The log of a Logcabin cluster.".to_owned()),
        subjects: vec![subject(&options.stream)],
        storage: stream::StorageType::File,
        num_replicas: options.replicas,
        max_bytes: i64::try_from(options.max_bytes).unwrap_or(i64::MAX),
        discard: stream::DiscardPolicy::Old,
        metadata: [(BASE.to_owned(), base.to_string())].into(),
        duplicate_window: DUPLICATES,
        allow_direct: true,
        ..stream::Config::default()
    };
    let stream = jetstream.get_or_create_stream(config).await.map_err(|error| {
        // A cluster finds no server that has room.
        let lacks_room = error.to_string().contains("insufficient storage");
        let hint = if lacks_room { hint_on_storage(options) } else { String::new() };
        NatsError::Stream(format!("{error}{hint}"))
    })?;
    let found = &stream.cached_info().config;
    if found.storage != stream::StorageType::File {
        return Err(NatsError::Unfit(format!(
            "the stream `{}` is kept in memory: create it with file storage",
            options.stream
        )));
    }
    if found.num_replicas < options.replicas {
        tracing::warn!(
            replicas = found.num_replicas,
            wanted = options.replicas,
            "the stream is on fewer servers than configured"
        );
    }
    Ok(stream)
}
