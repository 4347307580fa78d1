//! The nodes of a cluster meet in a JetStream key-value bucket, whose entries expire: a node is
//! live while it renews its entry, and holds a lease while it renews that of the lease.
//!
//! The NATS servers keep the bucket in memory. If all of them stop, every lease is gone, and the
//! nodes create the bucket again.

mod files;
mod shared;
mod upkeep;

pub use files::Files;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_nats::{
    HeaderMap, Request,
    jetstream::{
        kv::{self, Operation, Store},
        stream::StorageType,
    },
};
use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, error, info, warn};

use super::{Answer, Cluster, Hear, LEASE, Lease, Node, Replica, Status, StreamStatus, Work};
use logcabin_base::{clock::Clock, shutdown::Shutdown};
use logcabin_log::{
    Log as _,
    nats::{NatsError, NatsLog, delete_stream, has_stream, patiently},
};
use logcabin_record::Offset;

/// How often an entry is renewed.
const RENEW: Duration = Duration::from_millis(1000);

/// The holder of a lease takes it to be this much shorter, because clocks drift.
const MARGIN: Duration = Duration::from_millis(500);

/// How long the bucket may take to answer.
const ANSWER: Duration = Duration::from_millis(900);

/// How long the other nodes leave a kind of work to its first choice.
const COURTESY: Duration = Duration::from_millis(1500);

/// The pause before the bucket is watched again after a failure.
const PAUSE: Duration = Duration::from_millis(500);

const NODE: &str = "node.";
const LEASED: &str = "lease.";

/// This node, and what it knows of the others.
pub struct Nodes {
    log: Arc<NatsLog>,
    bucket: Store,
    told: mpsc::Sender<(Option<u16>, Bytes)>,
    me: NodeIdentity,
    clock: Clock,
    seen: Mutex<BucketView>,
    departures: watch::Sender<u64>,
    changes: watch::Sender<u64>,
    shutdown: Shutdown,
}

#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Unique among the nodes of a cluster.
    pub name: String,
    /// The same over restarts.
    pub id: String,
    /// The addresses that it listens on.
    pub bind: Vec<String>,
}

/// The entries of the bucket, each with the time at which this node saw it renewed.
#[derive(Default)]
struct BucketView {
    nodes: BTreeMap<String, (Node, Instant)>,
    leases: BTreeMap<String, (LeaseHolder, Instant)>,
}

impl BucketView {
    /// The nodes that have renewed their entries in time.
    fn live(&self) -> impl Iterator<Item = &Node> {
        let live = self.nodes.values().filter(|(_, renewed)| renewed.elapsed() < LEASE);
        live.map(|(node, _)| node)
    }
}

/// The weight of a node for a kind of work or a stream: the node with the highest one is the first
/// choice (rendezvous hashing).
fn weight(of: &str, node: &str) -> [u8; 32] {
    *blake3::hash(format!("{of}/{node}").as_bytes()).as_bytes()
}

/// The entry of a lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LeaseHolder {
    node: String,
    /// The process: a restarted node does not hold the leases that it held before.
    process: String,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("me", &self.me).finish_non_exhaustive()
    }
}

fn nodes_bucket(log: &NatsLog) -> String {
    format!("{}-nodes", log.stream_name())
}

fn nodes_config(log: &NatsLog) -> kv::Config {
    kv::Config {
        bucket: nodes_bucket(log),
        description: "The nodes of a Logcabin cluster, and their leases.".to_owned(),
        max_age: LEASE,
        storage: StorageType::Memory,
        num_replicas: log.replicas(),
        history: 1,
        ..kv::Config::default()
    }
}

fn failed(error: &dyn fmt::Display) -> NatsError {
    NatsError::Stream(error.to_string())
}

/// The stream behind a bucket of keys and values.
fn stream_of(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// Opens a bucket, and creates it if it is missing.
async fn bucket(log: &NatsLog, config: kv::Config) -> Result<Store, NatsError> {
    patiently(async || bucket_now(log, &config).await).await
}

async fn bucket_now(log: &NatsLog, config: &kv::Config) -> Result<Store, NatsError> {
    // Of nodes that start together, one creates it, and the others find it.
    if let Ok(found) = log.jetstream().get_key_value(&config.bucket).await {
        return Ok(found);
    }
    let created = log.jetstream().create_key_value(config.clone()).await;
    created.map_err(|error| failed(&error))
}

impl Nodes {
    /// Joins the nodes on the stream of `log`, and starts to renew this node's entry.
    ///
    /// # Errors
    /// If the bucket cannot be created, or a live node has the same name.
    pub async fn join(
        log: Arc<NatsLog>,
        me: NodeIdentity,
        clock: Clock,
        shutdown: Shutdown,
    ) -> Result<Arc<Self>, NatsError> {
        let bucket = bucket(&log, nodes_config(&log)).await?;
        let (told, queue) = mpsc::channel(TOLD);
        let nodes = Arc::new(Self {
            log,
            told,
            bucket,
            me,
            clock,
            seen: Mutex::default(),
            departures: watch::Sender::new(0),
            changes: watch::Sender::new(0),
            shutdown,
        });
        patiently(async || nodes.enter().await).await?;
        tokio::spawn(Arc::clone(&nodes).renew());
        tokio::spawn(tell_all(Arc::clone(&nodes.log), nodes.process(), queue));
        tokio::spawn(Arc::clone(&nodes).watch());
        tokio::spawn(Arc::clone(&nodes).count_departures());
        tokio::spawn(upkeep::run(Arc::clone(&nodes)));
        Ok(nodes)
    }

    /// The names of the live nodes of the cluster of `log`.
    pub async fn live(log: &NatsLog) -> Result<Vec<String>, NatsError> {
        let name = nodes_bucket(log);
        if !has_stream(log.jetstream(), &stream_of(&name)).await? {
            return Ok(Vec::new());
        }
        patiently(async || {
            let bucket = log.jetstream().get_key_value(&name).await;
            let bucket = bucket.map_err(|error| failed(&error))?;
            let mut keys = bucket.keys().await.map_err(|error| failed(&error))?;
            let mut live = Vec::new();
            while let Some(key) = keys.next().await {
                let key = key.map_err(|error| failed(&error))?;
                let entry = bucket.get(&key).await.map_err(|error| failed(&error))?;
                if let Some(entry) = entry.filter(|_| key.starts_with(NODE))
                    && let Ok(node) = serde_json::from_slice::<Node>(&entry)
                {
                    live.push(node.name);
                }
            }
            live.sort_unstable();
            Ok(live)
        })
        .await
    }

    /// Removes the buckets of the cluster of `log`.
    pub async fn dissolve(log: &NatsLog) -> Result<(), NatsError> {
        for bucket in [nodes_bucket(log), shared::bucket_name(log)] {
            delete_stream(log.jetstream(), &stream_of(&bucket)).await?;
        }
        Ok(())
    }

    /// Creates this node's entry, or takes over the one from before a crash.
    async fn enter(&self) -> Result<(), NatsError> {
        let began = Instant::now();
        loop {
            let created = self.bucket.create(self.key(), self.entry()).await;
            let Err(error) = created else { return Ok(()) };
            if error.kind() != kv::CreateErrorKind::AlreadyExists {
                return Err(failed(&error));
            }
            let found = self.bucket.get(self.key()).await.map_err(|error| failed(&error))?;
            let found = found.and_then(|entry| serde_json::from_slice::<Node>(&entry).ok());
            if found.is_some_and(|node| node.id == self.me.id) {
                // The lock on the data directory proves that the process before has ended.
                return self
                    .bucket
                    .put(self.key(), self.entry())
                    .await
                    .map(|_| ())
                    .map_err(|error| failed(&error));
            }
            if began.elapsed() > 3 * LEASE {
                return Err(NatsError::Unfit(format!(
                    "a node named `{}` is already running: give each its own name by `log.node`",
                    self.me.name
                )));
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn key(&self) -> String {
        format!("{NODE}{}", key_of(&self.me.name))
    }

    fn process(&self) -> String {
        format!("{:016x}", self.log.process())
    }

    /// This node, as it is now.
    fn this(&self, started_ms: u64) -> Node {
        let sequence = self.log.taken().borrow().sequence;
        let offset = *self.log.durable().borrow();
        let chain = self.chain_at(offset).unwrap_or_default();
        Node {
            name: self.me.name.clone(),
            is_this: false,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            bind: self.me.bind.clone(),
            sequence,
            offset,
            chain,
            started_ms,
            tag: self.tag(),
            id: self.me.id.clone(),
        }
    }

    fn chain_at(&self, offset: Offset) -> Option<String> {
        let record = self.log.get(offset).ok().flatten()?;
        Some(hex(&record.chain))
    }

    fn entry(&self) -> Bytes {
        serde_json::to_vec(&self.this(self.clock.now_ms())).unwrap_or_default().into()
    }

    /// Renews this node's entry until the server stops.
    async fn renew(self: Arc<Self>) {
        let started_ms = self.clock.now_ms();
        loop {
            tokio::select! {
                () = sleep(RENEW) => {}
                () = self.shutdown.given() => break,
            }
            let entry = serde_json::to_vec(&self.this(started_ms)).unwrap_or_default();
            let renewed = timeout(ANSWER, self.bucket.put(self.key(), entry.into())).await;
            let is_renewed = matches!(renewed, Ok(Ok(_)));
            match renewed {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => debug!(%error, "the node's entry was not renewed"),
                Err(_) => debug!("the node's entry was not renewed in time"),
            }
            if !is_renewed {
                // A single NATS server loses the bucket when it restarts.
                let config = nodes_config(&self.log);
                let again = timeout(ANSWER, bucket_now(&self.log, &config)).await;
                if let Ok(Err(error)) = again {
                    debug!(%error, "the bucket of the nodes could not be created");
                }
            }
        }
        // So that others need not wait for it to expire.
        let _ = timeout(ANSWER, self.bucket.delete(self.key())).await;
    }

    /// Follows the entries of all nodes until the server stops.
    async fn watch(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.watch_once() => {}
                () = self.shutdown.given() => return,
            }
            sleep(PAUSE).await;
        }
    }

    async fn watch_once(&self) {
        let mut entries = match self.bucket.watch_with_history(">").await {
            Ok(entries) => entries,
            Err(error) => return debug!(%error, "the nodes cannot be watched"),
        };
        loop {
            // A watch does not notice that its consumer is gone. This node's own entry comes each
            // second.
            let entry = match timeout(LEASE, entries.next()).await {
                Ok(Some(Ok(entry))) => entry,
                Ok(Some(Err(error))) => return debug!(%error, "the nodes cannot be watched"),
                Ok(None) | Err(_) => return,
            };
            self.see(&entry);
        }
    }

    fn see(&self, entry: &kv::Entry) {
        let is_there = entry.operation == Operation::Put;
        if entry.key.starts_with(NODE) {
            let node = serde_json::from_slice::<Node>(&entry.value).ok();
            match node.filter(|_| is_there) {
                Some(node) => {
                    self.compare(&node);
                    let now = Instant::now();
                    let before =
                        self.seen.lock().nodes.insert(entry.key.clone(), (node.clone(), now));
                    let is_new = before.is_none_or(|(before, _)| before.tag != node.tag);
                    if is_new && node.name != self.me.name {
                        info!(node = node.name, "another node joined");
                        self.changes.send_modify(|count| *count += 1);
                    }
                }
                None => self.forget(&entry.key),
            }
        } else if entry.key.starts_with(LEASED) {
            let holder = serde_json::from_slice::<LeaseHolder>(&entry.value).ok();
            let mut seen = self.seen.lock();
            match holder.filter(|_| is_there) {
                Some(holder) => {
                    seen.leases.insert(entry.key.clone(), (holder, Instant::now()));
                }
                None => {
                    seen.leases.remove(&entry.key);
                }
            }
        }
    }

    fn forget(&self, key: &str) {
        let gone = self.seen.lock().nodes.remove(key);
        if let Some((node, _)) = gone
            && node.name != self.me.name
        {
            warn!(node = node.name, "a node left");
            self.departures.send_modify(|count| *count += 1);
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Looks for expired entries, because the watch does not report them.
    async fn count_departures(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = sleep(RENEW) => {}
                () = self.shutdown.given() => return,
            }
            let late: Vec<_> = {
                let mut seen = self.seen.lock();
                seen.leases.retain(|_, (_, renewed)| renewed.elapsed() < LEASE);
                let late = seen.nodes.iter().filter(|(_, (_, renewed))| renewed.elapsed() > LEASE);
                late.map(|(key, _)| key.clone()).collect()
            };
            late.iter().for_each(|key| self.forget(key));
        }
    }

    /// Compares this node's chain value with another's. It covers all records before it, so if the
    /// values differ, the logs do.
    fn compare(&self, other: &Node) {
        if other.name == self.me.name || other.chain.is_empty() {
            return;
        }
        let Some(mine) = self.chain_at(other.offset) else { return };
        if mine == other.chain {
            return;
        }
        let (at, node) = (other.offset, &other.name);
        error!(%at, node, mine, theirs = other.chain, "two nodes have different records");
        // Of three nodes, the one that differs from the others stops. Which of two is wrong cannot
        // be known: both stop, and `logcabin verify` can tell.
        let agrees = |node: &Node| {
            node.name != self.me.name
                && self.chain_at(node.offset).is_some_and(|mine| mine == node.chain)
        };
        let is_alone = !self.seen.lock().nodes.values().any(|(node, _)| agrees(node));
        if is_alone {
            self.log.take_out(format!(
                "record {at} of this node differs from that of the node `{node}`, and no other \
                 node agrees with this one"
            ));
        }
    }

    /// The last message that every live node has taken, and the last record that each of them has.
    fn everyone_has(&self) -> (u64, Offset) {
        let mine = (self.log.taken().borrow().sequence, *self.log.durable().borrow());
        let seen = self.seen.lock();
        seen.nodes.values().fold(mine, |(sequence, offset), (node, _)| {
            (sequence.min(node.sequence), offset.min(node.offset))
        })
    }

    /// The number of live nodes that come before this one for a kind of work.
    fn place(&self, work: &str) -> usize {
        let mine = weight(work, &self.me.name);
        let seen = self.seen.lock();
        seen.live().filter(|node| weight(work, &node.name) > mine).count()
    }

    /// Tries to hold the lease of `work` until the server stops.
    async fn hold(self: Arc<Self>, work: &'static str, held: watch::Sender<Option<Instant>>) {
        let key = format!("{LEASED}{}", key_of(work));
        let holder = LeaseHolder { node: self.me.name.clone(), process: self.process() };
        let entry: Bytes = serde_json::to_vec(&holder).unwrap_or_default().into();
        let (mut revision, mut free_since) = (None, None);
        loop {
            let asked = Instant::now();
            let result = match revision {
                Some(last) => {
                    let renewed = timeout(ANSWER, self.bucket.update(&key, entry.clone(), last));
                    renewed.await.ok().map(|result| result.map_err(|error| error.to_string()))
                }
                None if self.is_free(&key, work, &mut free_since) => {
                    let taken = timeout(ANSWER, self.bucket.create(&key, entry.clone()));
                    taken.await.ok().map(|result| result.map_err(|error| error.to_string()))
                }
                None => Some(Err("another node has it".to_owned())),
            };
            match result {
                Some(Ok(number)) => {
                    if revision.replace(number).is_none() {
                        info!(work, "this node does this work now");
                    }
                    held.send_replace(Some(asked + LEASE - MARGIN));
                }
                Some(Err(reason)) => {
                    // The entry may have been renewed although the answer was lost. The lease then
                    // expires, and any node can take it.
                    if revision.take().is_some() {
                        warn!(work, reason, "this node no longer does this work");
                        held.send_replace(None);
                    }
                }
                // No answer: the lease expires by itself.
                None => {
                    if held.borrow().is_some_and(|until| Instant::now() >= until) {
                        revision = None;
                        held.send_replace(None);
                    }
                }
            }
            tokio::select! {
                () = sleep(RENEW) => {}
                () = self.shutdown.given() => break,
            }
        }
        // The work may still need the lease to record where it stopped.
        let until = *held.borrow();
        if let Some(until) = until {
            let _ = timeout_at(until, held.closed()).await;
        }
        held.send_replace(None);
        if let Some(last) = revision {
            let _ = timeout(ANSWER, self.bucket.delete_expect_revision(&key, Some(last))).await;
        }
    }

    /// Whether no node is known to hold a lease, and it is this one's turn to try.
    fn is_free(&self, key: &str, work: &str, free_since: &mut Option<Instant>) -> bool {
        let is_held = |(holder, renewed): &(LeaseHolder, Instant)| {
            renewed.elapsed() < LEASE && holder.process != self.process()
        };
        if self.seen.lock().leases.get(key).is_some_and(is_held) {
            *free_since = None;
            return false;
        }
        let since = *free_since.get_or_insert_with(Instant::now);
        since.elapsed() >= COURTESY * u32::try_from(self.place(work).min(1)).unwrap_or(1)
    }
}

/// A name as a part of a key: all characters but letters, digits, `-` and `_` are escaped.
fn key_of(name: &str) -> String {
    let mut key = String::new();
    for c in name.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => key.push(c),
            ' ' => key.push('_'),
            other => key.push_str(&format!("={:x}", u32::from(other))),
        }
    }
    key
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How long another node may take for a request: longer than any long-poll.
const FORWARDED: Duration = Duration::from_secs(180);

/// The most messages to other nodes that wait to be sent.
const TOLD: usize = 4096;

/// The header that names the sender of a message.
const FROM: &str = "Logcabin-From";

/// The most forwarded requests that a node answers at once.
const FORWARDED_AT_ONCE: usize = 4096;

impl Nodes {
    /// The subject of the requests for a process.
    fn subject(&self, tag: u16) -> String {
        format!("{}.node.{tag:04x}", self.log.stream_name())
    }

    /// Resolves once no live node has this tag.
    async fn gone(&self, tag: u16) {
        loop {
            {
                let seen = self.seen.lock();
                if !seen.nodes.values().any(|(node, _)| node.tag == tag) {
                    return;
                }
            }
            sleep(RENEW / 4).await;
        }
    }

    /// Answers the requests for this process until the server stops.
    async fn answer_all(log: Arc<NatsLog>, subject: String, answer: Answer, shutdown: Shutdown) {
        let client = log.jetstream().client();
        let places = Arc::new(Semaphore::new(FORWARDED_AT_ONCE));
        loop {
            // The client subscribes again by itself after it has lost its connection.
            let mut requests = match client.subscribe(subject.clone()).await {
                Ok(requests) => requests,
                Err(error) => {
                    warn!(%error, "requests of other nodes cannot be answered; retrying");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            loop {
                let request = tokio::select! {
                    request = requests.next() => request,
                    () = shutdown.given() => return,
                };
                let Some(request) = request else { break };
                let Some(reply) = request.reply else { continue };
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                let (client, answer) = (client.clone(), Arc::clone(&answer));
                tokio::spawn(async move {
                    let answered = answer(request.payload).await;
                    if let Err(error) = client.publish(reply, answered).await {
                        debug!(%error, "another node did not get its answer");
                    }
                    drop(place);
                });
            }
        }
    }
}

/// The subject of messages to all nodes, or to one.
fn told_subject(log: &NatsLog, to: Option<u16>) -> String {
    match to {
        None => format!("{}.told.all", log.stream_name()),
        Some(tag) => format!("{}.told.{tag:04x}", log.stream_name()),
    }
}

/// Publishes this node's messages to others.
async fn tell_all(log: Arc<NatsLog>, me: String, mut told: mpsc::Receiver<(Option<u16>, Bytes)>) {
    let client = log.jetstream().client();
    while let Some((to, message)) = told.recv().await {
        let subject = told_subject(&log, to);
        let mut headers = HeaderMap::new();
        headers.insert(FROM, me.as_str());
        if let Err(error) = client.publish_with_headers(subject, headers, message).await {
            debug!(%error, "a message to other nodes was not sent");
        }
    }
}

/// Passes the messages of other nodes to `hear`, until the server stops.
async fn hear_all(log: Arc<NatsLog>, me: String, hear: Hear, shutdown: Shutdown) {
    let client = log.jetstream().client();
    let tag = tag_of(&log);
    loop {
        let all = client.subscribe(told_subject(&log, None)).await;
        let own = client.subscribe(told_subject(&log, Some(tag))).await;
        if let (Ok(all), Ok(own)) = (all, own) {
            let mut messages = futures_util::stream::select(all, own);
            loop {
                let message = tokio::select! {
                    message = messages.next() => message,
                    () = shutdown.given() => return,
                };
                let Some(message) = message else { break };
                let from = message.headers.as_ref().and_then(|headers| headers.get(FROM));
                if from.is_none_or(|from| from.as_str() != me) {
                    hear(message.payload);
                }
            }
        }
        sleep(PAUSE).await;
    }
}

/// The tag of the process with this log.
fn tag_of(log: &NatsLog) -> u16 {
    (log.process() >> 48) as u16
}

impl Cluster for Nodes {
    fn tag(&self) -> u16 {
        tag_of(&self.log)
    }

    fn preferred(&self, stream: &str) -> Option<u16> {
        let seen = self.seen.lock();
        let first = seen.live().max_by_key(|node| weight(stream, &node.name))?;
        Some(first.tag).filter(|tag| *tag != self.tag())
    }

    fn forward(&self, to: u16, request: Bytes) -> BoxFuture<'_, Option<Bytes>> {
        Box::pin(async move {
            let client = self.log.jetstream().client();
            let request = Request::new().payload(request).timeout(Some(FORWARDED));
            tokio::select! {
                answer = client.send_request(self.subject(to), request) => {
                    answer.ok().map(|answer| answer.payload)
                }
                () = self.gone(to) => None,
            }
        })
    }

    fn tell(&self, message: Bytes) {
        // If the queue is full, the message is dropped.
        let _ = self.told.try_send((None, message));
    }

    fn tell_one(&self, to: u16, message: Bytes) {
        let _ = self.told.try_send((Some(to), message));
    }

    fn there(&self) -> Vec<u16> {
        let seen = self.seen.lock();
        seen.live().map(|node| node.tag).chain([self.tag()]).collect()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn serve(&self, answer: Answer, hear: Hear) {
        let (log, subject) = (Arc::clone(&self.log), self.subject(self.tag()));
        tokio::spawn(Self::answer_all(log, subject, answer, self.shutdown.clone()));
        let (log, me) = (Arc::clone(&self.log), self.process());
        tokio::spawn(hear_all(log, me, hear, self.shutdown.clone()));
    }

    fn is_current(&self) -> BoxFuture<'_, bool> {
        Box::pin(self.log.is_current())
    }

    fn lease(self: Arc<Self>, work: &'static str) -> Lease {
        let held = watch::Sender::new(None);
        let lease = Lease::new(held.subscribe());
        tokio::spawn(self.hold(work, held));
        lease
    }

    fn departures(&self) -> watch::Receiver<u64> {
        self.departures.subscribe()
    }

    fn lag(&self) -> u64 {
        let taken = *self.log.taken().borrow();
        taken.last.saturating_sub(taken.sequence)
    }

    fn shared<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, String>> {
        Box::pin(self.shared_value(name))
    }

    fn put_shared<'a>(&'a self, name: &'a str, value: Bytes) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.put_shared_value(name, value))
    }

    fn status(&self) -> BoxFuture<'_, Result<Status, String>> {
        Box::pin(async {
            let info = timeout(ANSWER, self.log.stream_info()).await;
            let info = info.map_err(|_| "the stream does not answer".to_owned())?;
            let info = info.map_err(|error| error.to_string())?;
            let cluster = info.cluster.unwrap_or_default();
            let replicas = cluster.replicas.into_iter().map(|peer| Replica {
                name: peer.name,
                is_current: peer.current,
                is_offline: peer.offline,
                lag: peer.lag.unwrap_or_default(),
            });
            let stream = StreamStatus {
                name: info.config.name,
                first: info.state.first_sequence,
                last: info.state.last_sequence,
                bytes: info.state.bytes,
                leader: cluster.leader,
                replicas: replicas.collect(),
            };
            let seen = self.seen.lock();
            let is_this = |node: &Node| node.name == self.me.name;
            let nodes = seen
                .nodes
                .values()
                .map(|(node, _)| Node { is_this: is_this(node), ..node.clone() });
            let work = seen.leases.iter().map(|(key, (holder, _))| Work {
                name: key.strip_prefix(LEASED).unwrap_or(key).replace('_', " "),
                node: holder.node.clone(),
            });
            Ok(Status { nodes: nodes.collect(), work: work.collect(), stream })
        })
    }
}
