//! What a node does together with the other nodes of its cluster, besides the log.
//!
//! A server with an embedded log is alone: it is always current, and does all work itself. The
//! nodes of a cluster share a log ([`logcabin_log`]) and
//!
//! - make sure that a read sees every write that was acknowledged by any node
//!   ([`Cluster::is_current`]);
//! - divide the work that only one of them may do at a time, by leases ([`Cluster::lease`]);
//! - answer each other's requests, where one of them has in memory what a request refers to
//!   ([`Cluster::forward`]);
//! - compare the chain values of their logs, so that a node that differs takes itself out;
//! - report their status ([`Cluster::status`]);
//! - share small values that are in no record, such as the key of tokens ([`Cluster::shared`]).
//!
//! No durable data depends on this: the log orders writes and detects conflicts.

#![cfg_attr(all(feature = "nats", not(test)), warn(unused_crate_dependencies))]
// Without the feature there is no cluster, and much of this is not used.
#![cfg_attr(not(feature = "nats"), allow(dead_code))]

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use logcabin_record::Offset;

#[cfg(feature = "nats")]
pub mod nats;

/// How long a lease lasts without being renewed.
pub(crate) const LEASE: Duration = Duration::from_secs(4);

/// The cluster of a node.
pub trait Cluster: Send + Sync + fmt::Debug {
    /// Waits, for some seconds at most, until this node has applied every write that was
    /// acknowledged before the call. Returns `false` if it cannot find that out.
    fn is_current(&self) -> BoxFuture<'_, bool>;

    /// The number of messages of the stream that this node has not taken yet, as far as it knows.
    fn lag(&self) -> u64;

    /// Identifies this process, in the ids of what it has in memory.
    fn tag(&self) -> u16;

    /// The tag of the process that takes the writes of a stream while several nodes write to it;
    /// `None` if it is this one.
    fn preferred(&self, stream: &str) -> Option<u16>;

    /// The answer of the process with tag `to` to a request; `None` if that process is gone.
    fn forward(&self, to: u16, request: Bytes) -> BoxFuture<'_, Option<Bytes>>;

    /// Sends all other nodes a message, which may be lost.
    fn tell(&self, message: Bytes);

    /// Sends the process with tag `to` a message, which may be lost.
    fn tell_one(&self, to: u16, message: Bytes);

    /// The tags of the live processes, this one included.
    fn there(&self) -> Vec<u16>;

    /// Changes whenever a node joins or leaves.
    fn changes(&self) -> watch::Receiver<u64>;

    /// From now on, `answer` answers the requests to this process, and `hear` takes the messages of
    /// other nodes.
    fn serve(&self, answer: Answer, hear: Hear);

    /// The lease of a kind of work. From now on this node tries to hold it.
    fn lease(self: Arc<Self>, work: &'static str) -> Lease;

    /// The number of nodes that have left so far, as far as this node knows. Others then continue
    /// the work that these had in memory.
    fn departures(&self) -> watch::Receiver<u64>;

    fn status(&self) -> BoxFuture<'_, Result<Status, String>>;

    /// What all nodes have under this name; `None` if nothing was put there.
    ///
    /// # Errors
    /// When it cannot be found out now; the text says why.
    fn shared<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, String>>;

    /// Has all nodes find `value` under this name, in the place of what was there.
    ///
    /// # Errors
    /// When it is not known whether they do; the text says why.
    fn put_shared<'a>(&'a self, name: &'a str, value: Bytes) -> BoxFuture<'a, Result<(), String>>;
}

/// Answers a forwarded request.
pub(crate) type Answer = Arc<dyn Fn(Bytes) -> BoxFuture<'static, Bytes> + Send + Sync>;

/// Takes a message of another node.
pub(crate) type Hear = Arc<dyn Fn(Bytes) + Send + Sync>;

/// Whether this node may do a kind of work.
#[derive(Clone, Debug)]
pub struct Lease(watch::Receiver<Option<tokio::time::Instant>>);

impl Lease {
    /// `until` is when the lease expires; `None` while this node does not hold it.
    pub(crate) const fn new(until: watch::Receiver<Option<tokio::time::Instant>>) -> Self {
        Self(until)
    }

    /// Resolves once it is held; never if the node is closing.
    pub async fn held(&mut self) {
        let is_held = |until: &Option<tokio::time::Instant>| {
            until.is_some_and(|until| tokio::time::Instant::now() < until)
        };
        if self.0.wait_for(is_held).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves once it is no longer held.
    pub async fn lost(&mut self) {
        loop {
            let until = *self.0.borrow_and_update();
            let Some(until) = until.filter(|until| tokio::time::Instant::now() < *until) else {
                return;
            };
            tokio::select! {
                changed = self.0.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The live nodes, by name.
    pub nodes: Vec<Node>,
    /// The work that only one node does at a time.
    pub work: Vec<Work>,
    pub stream: StreamStatus,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    /// Whether it is the node that was asked.
    #[serde(default)]
    pub is_this: bool,
    /// The version of Logcabin.
    pub version: String,
    /// The addresses that it listens on.
    pub bind: Vec<String>,
    /// The last message that it has taken from the stream.
    pub sequence: u64,
    /// Its last record.
    pub offset: Offset,
    /// The chain value of that record, in hex.
    pub chain: String,
    /// When it started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// See [`Cluster::tag`].
    pub tag: u16,
    /// The same over restarts.
    pub id: String,
}

/// A kind of work, and the node that does it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    pub name: String,
    pub node: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamStatus {
    pub name: String,
    /// The first message that it still has.
    pub first: u64,
    pub last: u64,
    pub bytes: u64,
    /// The server that leads its replicas; none while they have no quorum.
    pub leader: Option<String>,
    /// The replicas besides the leader.
    pub replicas: Vec<Replica>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replica {
    /// The name of its server.
    pub name: String,
    /// Whether it has everything that the leader has.
    pub is_current: bool,
    /// Whether it does not answer.
    pub is_offline: bool,
    /// In messages.
    pub lag: u64,
}
