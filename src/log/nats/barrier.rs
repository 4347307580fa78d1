//! How a node finds out that it has taken everything that was acknowledged anywhere.
//!
//! The last sequence of the stream, asked after a read began, covers every write that was
//! acknowledged before: once the node has taken that message, the read is current. Reads that begin
//! while a question is under way share the next one, so a busy node asks all the time, but never
//! more than one question at once.
//!
//! The server that leads the stream answers. A server that was replaced as the leader does not know
//! that at once, and a new leader may not have applied what the one before acknowledged. So two
//! things must hold before an answer counts:
//!
//! - The leader has heard from a majority so recently that no other can have been elected.
//! - Since it became the leader, a message has been published through it. A node publishes a mark,
//!   a message without batches, when it notices a new leader or got no answer before.
//!
//! Another replica may deliver a message before the leader has applied it. So a node does not take
//! a message until the leader has answered with it, or acknowledged it: what a client has seen on
//! one node is covered by the next question of every other node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::jetstream::stream;
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use super::Shared;

/// How long a read waits until this node has applied what it must, if the stream answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// After this long without an answer, reads do not wait for one.
const SILENCE: Duration = Duration::from_secs(2);

/// How long the servers may take to answer. Reads do not wait while they take longer.
const ANSWER: Duration = Duration::from_secs(1);

/// How recently the leader must have heard from a replica: at most half of an election timeout.
const HEARD: Duration = Duration::from_secs(2);

/// The pause after a question without an answer.
const PAUSE: Duration = Duration::from_millis(100);

/// The latest answered question.
#[derive(Clone, Copy, Default)]
struct BarrierAnswers {
    question: u64,
    /// The last message that the leader is known to have applied.
    last: u64,
}

/// Asks how long the stream is.
pub(super) struct Barrier {
    /// The number of the latest question.
    asked: AtomicU64,
    wanted: Notify,
    answered: watch::Sender<BarrierAnswers>,
    /// Whether the latest questions have got no answer in time.
    is_cut_off: AtomicBool,
}

impl Default for Barrier {
    fn default() -> Self {
        Self {
            asked: AtomicU64::new(0),
            wanted: Notify::new(),
            answered: watch::Sender::new(BarrierAnswers::default()),
            is_cut_off: AtomicBool::new(false),
        }
    }
}

impl Barrier {
    /// Waits until this node has taken what was in the stream when this was called. Returns `false`
    /// if that cannot be found out in time.
    pub(super) async fn pass(&self, shared: &Shared) -> bool {
        if self.is_cut_off.load(Ordering::Acquire) || shared.failed().is_some() {
            return false;
        }
        // A question that is under way may have been answered already: the next one counts.
        let question = self.asked.load(Ordering::SeqCst) + 1;
        self.wanted.notify_one();
        let pass = async {
            let mut answered = self.answered.subscribe();
            let is_settled = |answered: &BarrierAnswers| {
                answered.question >= question || self.is_cut_off.load(Ordering::Acquire)
            };
            let last = match answered.wait_for(is_settled).await {
                Ok(answered) if answered.question >= question => answered.last,
                _ => return false,
            };
            let mut taken = shared.taken.subscribe();
            taken.wait_for(|taken| taken.sequence >= last).await.is_ok()
        };
        timeout(PATIENCE, pass).await.unwrap_or(false)
    }

    /// Waits until the leader is known to have applied a message.
    pub(super) async fn confirm(&self, sequence: u64) {
        if self.answered.borrow().last >= sequence {
            return;
        }
        let mut answered = self.answered.subscribe();
        while answered.borrow_and_update().last < sequence {
            self.wanted.notify_one();
            if answered.changed().await.is_err() {
                return;
            }
        }
    }

    /// The leader has acknowledged this message.
    pub(super) fn acknowledged(&self, sequence: u64) {
        self.answered.send_if_modified(|answered| {
            let is_news = sequence > answered.last;
            answered.last = answered.last.max(sequence);
            is_news
        });
    }

    /// Asks whenever somebody wants to know, until the log is closed.
    pub(super) async fn run(shared: Arc<Shared>) {
        let mut stop = shared.stop.subscribe();
        let this = &shared.barrier;
        let mut since = None;
        let mut confirmed = None;
        loop {
            if since.is_none() {
                tokio::select! {
                    () = this.wanted.notified() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
            }
            let question = this.asked.fetch_add(1, Ordering::SeqCst) + 1;
            let Some(last) = last(&shared, &mut confirmed).await else {
                confirmed = None;
                let since = *since.get_or_insert_with(tokio::time::Instant::now);
                if since.elapsed() + ANSWER >= SILENCE
                    && !this.is_cut_off.swap(true, Ordering::AcqRel)
                {
                    // Waiting callers check the answer again.
                    this.answered.send_modify(|_| ());
                    tracing::warn!(
                        "the stream does not answer: reads may be older than the newest writes"
                    );
                }
                tokio::select! {
                    () = sleep(PAUSE) => continue,
                    _ = stop.wait_for(|stop| *stop) => return,
                }
            };
            since = None;
            if this.is_cut_off.swap(false, Ordering::AcqRel) {
                tracing::info!("the stream answers again: reads are current");
            }
            shared.knows(last);
            this.answered.send_modify(|answered| {
                *answered = BarrierAnswers { question, last: last.max(answered.last) };
            });
        }
    }
}

/// A server that leads the stream, and since when.
type Leadership = (String, Option<String>);

fn reign(info: &stream::Info) -> Option<Leadership> {
    let cluster = info.cluster.as_ref()?;
    let since = cluster.leader_since.map(|since| since.to_string());
    cluster.leader.clone().map(|leader| (leader, since))
}

/// Whether the leader that answered has heard from a majority.
fn has_majority(info: &stream::Info) -> bool {
    let replicas = info.cluster.as_ref().map_or(&[][..], |cluster| &cluster.replicas);
    let heard = replicas.iter().filter(|replica| !replica.offline && replica.active < HEARD);
    2 * (heard.count() + 1) > replicas.len() + 1
}

/// A sequence that is at least that of every message acknowledged before this call.
async fn last(shared: &Shared, confirmed: &mut Option<Leadership>) -> Option<u64> {
    let info = timeout(ANSWER, shared.stream.get_info()).await.ok()?.ok()?;
    if !has_majority(&info) {
        return None;
    }
    let is_alone = info.config.num_replicas <= 1;
    let reign = reign(&info);
    if is_alone || *confirmed == reign && reign.is_some() {
        return Some(info.state.last_sequence);
    }
    let acknowledged = timeout(ANSWER, shared.mark()).await.ok()?.ok()?;
    *confirmed = reign;
    Some(acknowledged)
}
