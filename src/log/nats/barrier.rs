//! How a node finds out that it has taken everything that was acknowledged anywhere.
//!
//! The last sequence of the stream, asked after a read began, covers every write that was
//! acknowledged before: once the node has taken that message, the read is current. Reads that begin
//! while a question is under way share the next one, so a busy node asks all the time, but never
//! more than one question at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use super::Shared;

/// How long a read waits until it is known to be current. Longer than the servers take to elect
/// another leader in most cases.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the servers may take to answer. Reads do not wait while they take longer.
const ANSWER: Duration = Duration::from_secs(1);

/// The pause after a question without an answer.
const PAUSE: Duration = Duration::from_millis(100);

/// The answers, by the number of the question.
#[derive(Clone, Copy, Default)]
struct Answered {
    question: u64,
    /// The last message of the stream.
    last: u64,
}

/// Asks how long the stream is.
pub(super) struct Barrier {
    /// The number of the latest question.
    asked: AtomicU64,
    wanted: Notify,
    answered: watch::Sender<Answered>,
    /// Whether the latest questions have got no answer in time.
    is_cut_off: AtomicBool,
}

impl Default for Barrier {
    fn default() -> Self {
        Self {
            asked: AtomicU64::new(0),
            wanted: Notify::new(),
            answered: watch::Sender::new(Answered::default()),
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
            let last = match answered.wait_for(|answered| answered.question >= question).await {
                Ok(answered) => answered.last,
                Err(_) => return false,
            };
            let mut taken = shared.taken.subscribe();
            taken.wait_for(|taken| taken.sequence >= last).await.is_ok()
        };
        timeout(PATIENCE, pass).await.unwrap_or(false)
    }

    /// Whether reads are known to be current.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Acquire)
    }

    /// Asks whenever somebody wants to know, until the log is closed.
    pub(super) async fn run(shared: Arc<Shared>) {
        let mut stop = shared.stop.subscribe();
        let this = &shared.barrier;
        let mut since = None;
        loop {
            if since.is_none() {
                tokio::select! {
                    () = this.wanted.notified() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
            }
            let question = this.asked.fetch_add(1, Ordering::SeqCst) + 1;
            let Ok(Ok(info)) = timeout(ANSWER, shared.stream.get_info()).await else {
                let since = *since.get_or_insert_with(tokio::time::Instant::now);
                if since.elapsed() + ANSWER >= PATIENCE
                    && !this.is_cut_off.swap(true, Ordering::AcqRel)
                {
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
            let last = info.state.last_sequence;
            shared.knows(last);
            this.answered.send_replace(Answered { question, last });
        }
    }
}
