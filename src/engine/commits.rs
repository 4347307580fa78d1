//! Commits: proposals on one stream are decided one commit after the other.
//!
//! A commit takes the proposals that are queued on its stream, decides them, appends the outcome as
//! one batch, and waits until that is durable. So a busy room is not limited to one message per
//! disk sync, and nothing holds a lock while waiting for the disk. A conflict, which only another
//! writer on the same log can cause, means that the commit is decided again on the newer state.
//!
//! A commit whose first proposal [lingers](Proposal::lingers) is delayed for that long, to take the
//! proposals that arrive meanwhile.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{RwLock, oneshot};

use super::{Durable, Head, projections::Live};
use logcabin_base::{
    background::at_length,
    metrics::{WriteStage, metrics},
    traces::{self, traces},
};
use logcabin_decide::{Commit, Proposal, Refusal};
use logcabin_log::{AppendError, Batch, Log, ReadError};
use logcabin_record::{Offset, Origin, Stream};

/// How often a commit is decided again after a conflict before its proposals are given up.
const CONFLICTS: usize = 32;

/// For how long after a conflict a stream counts as contended.
const CONTENDED: Duration = Duration::from_secs(10);

/// The most streams that are remembered as contended.
const CONTENDED_STREAMS: usize = 1024;

/// Why a proposal had no effect.
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// The decision refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The log takes no writes.
    #[error(transparent)]
    Log(#[from] AppendError),
    /// The decision failed because of a bug. The server's log has the details.
    #[error("an internal error")]
    Broken,
}

impl ProposeError {
    /// Whether this server is the cause, and only temporarily: the same proposal can be recorded
    /// later.
    ///
    /// A proposal that fails because of a bug or a damaged record would fail again and again.
    pub const fn is_for_now(&self) -> bool {
        match self {
            Self::Log(error) => match error {
                AppendError::Conflict { .. }
                | AppendError::Full(_)
                | AppendError::Failed(_)
                | AppendError::Unavailable(_)
                | AppendError::Closed => true,
                AppendError::TooLarge(_) | AppendError::Erase(_) | AppendError::Foreign(_) => false,
            },
            Self::Refused(refusal) => matches!(refusal, Refusal::Read(ReadError::Storage(_))),
            Self::Broken => false,
        }
    }

    /// Whether what was proposed is too large.
    pub const fn is_about_size(&self) -> bool {
        matches!(self, Self::Refused(Refusal::TooLarge(_)) | Self::Log(AppendError::TooLarge(_)))
    }
}

/// The commits of all streams.
#[derive(Debug)]
pub(super) struct Commits {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    live: Arc<Live>,
    log: Arc<dyn Log>,
    head: Arc<Head>,
    /// Held by each commit from its decision until its records are applied: exclusively by
    /// exclusive commits, shared by all others.
    order: RwLock<()>,
    /// The streams with a running commit, each with the proposals for the next one.
    lanes: Mutex<HashMap<Stream, VecDeque<Box<dyn Job>>>>,
    /// The streams to which another writer of the log writes, too, each with the time of the last
    /// conflict.
    contended: Mutex<HashMap<Stream, Instant>>,
}

impl Shared {
    fn conflicted(&self, stream: Stream) {
        let mut contended = self.contended.lock();
        if contended.len() >= CONTENDED_STREAMS {
            contended.retain(|_, since| since.elapsed() < CONTENDED);
        }
        if contended.len() < CONTENDED_STREAMS {
            contended.insert(stream, Instant::now());
        }
    }
}

impl Commits {
    pub(super) fn new(live: Arc<Live>, log: Arc<dyn Log>, head: Arc<Head>) -> Self {
        Self {
            shared: Arc::new(Shared {
                live,
                log,
                head,
                order: RwLock::new(()),
                lanes: Mutex::default(),
                contended: Mutex::default(),
            }),
        }
    }

    /// Whether other writers of the log have got in the way of commits on this stream lately.
    pub(super) fn is_contended(&self, stream: &Stream) -> bool {
        let contended = self.shared.contended.lock();
        contended.get(stream).is_some_and(|since| since.elapsed() < CONTENDED)
    }

    pub(super) async fn propose<P: Proposal>(
        &self,
        origin: Origin,
        proposal: P,
    ) -> Result<Durable<P::Outcome>, ProposeError> {
        let stream = proposal.stream();
        let lingers = proposal.lingers(&self.shared.live.env());
        let (reply, answer) = oneshot::channel();
        let queued = Instant::now();
        let (verdict, bytes) = (None, 0);
        let job = Box::new(Pending { proposal, origin, lingers, queued, verdict, bytes, reply });
        self.queue(stream, job);
        answer.await.unwrap_or(Err(ProposeError::Broken))
    }

    /// Queues a proposal on its stream. This does not depend on the proposal's type, so it is
    /// compiled once.
    fn queue(&self, stream: Stream, job: Box<dyn Job>) {
        match self.shared.lanes.lock().entry(stream.clone()) {
            Entry::Occupied(mut waiting) => waiting.get_mut().push_back(job),
            Entry::Vacant(lane) => {
                lane.insert(VecDeque::from([job]));
                tokio::spawn(run(Arc::clone(&self.shared), stream));
            }
        }
    }
}

/// Runs commits on one stream until no proposal is left.
async fn run(shared: Arc<Shared>, stream: Stream) {
    let mut occupied = Lane { shared: &shared, stream: &stream, left: false };
    loop {
        let lingers = match shared
            .lanes
            .lock()
            .get(&stream)
            .and_then(|lane| Some((lane.front()?, lane.len())))
        {
            // A full commit gains nothing by waiting.
            Some((first, waiting)) if waiting < first.commit_size() => first.lingers(),
            _ => Duration::ZERO,
        };
        if !lingers.is_zero() {
            tokio::time::sleep(lingers).await;
        }
        let jobs = match shared.lanes.lock().entry(stream.clone()) {
            Entry::Occupied(lane) if lane.get().is_empty() => {
                lane.remove();
                occupied.left = true;
                return;
            }
            Entry::Occupied(mut lane) => take(lane.get_mut()),
            Entry::Vacant(_) => return,
        };
        commit(&shared, &stream, jobs).await;
    }
}

/// A stream's lane while its commits run. If one panics, the lane is freed: the queued proposals
/// get an error, and the next proposal starts over.
struct Lane<'a> {
    shared: &'a Shared,
    stream: &'a Stream,
    left: bool,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.shared.lanes.lock().remove(self.stream);
        }
    }
}

/// The proposals of the next commit: the first, and those behind it that may share its commit.
fn take(waiting: &mut VecDeque<Box<dyn Job>>) -> Vec<Box<dyn Job>> {
    let size = waiting.front().map_or(1, |first| first.commit_size());
    let shares = waiting.iter().take(size).take_while(|job| job.shares_commit());
    let count = shares.count().max(1).min(waiting.len());
    waiting.drain(..count).collect()
}

/// Decides `jobs` on the current projections: returns the records to write, and the last record
/// that was applied by then.
fn decide(
    shared: &Shared,
    stream: &Stream,
    jobs: &mut [Box<dyn Job>],
    is_exclusive: bool,
) -> (Batch, Offset) {
    let env = shared.live.env();
    let mut commit = Commit::new(&env, stream);
    if is_exclusive {
        commit.rests_on_everything();
    }
    for job in jobs {
        job.decide(&mut commit);
    }
    (commit.into_batch(), env.state.applied())
}

async fn commit(shared: &Shared, stream: &Stream, mut jobs: Vec<Box<dyn Job>>) {
    let (_alone, _together);
    let is_exclusive = jobs.iter().any(|job| job.is_exclusive());
    if is_exclusive {
        _alone = shared.order.write().await;
    } else {
        _together = shared.order.read().await;
    }
    let stages = &metrics().write_stage;
    if let Some(first) = jobs.first() {
        // It is the one that has waited longest.
        stages.since(WriteStage::Turn, first.queued());
    }
    for attempt in 1..=CONFLICTS {
        let began = Instant::now();
        let is_long = jobs.iter().any(|job| job.is_long());
        let mut decide = || decide(shared, stream, &mut jobs, is_exclusive);
        let (batch, applied) = if is_long { at_length(&mut decide) } else { decide() };
        stages.since(WriteStage::Decide, began);
        trace(&jobs, began);
        if batch.records.is_empty() {
            // Nothing to write: everything was refused or had no effect, because of records that
            // are durable and applied. The replies wait until readers see those, too.
            shared.head.reached(applied).await;
            jobs.into_iter().for_each(|job| job.settle(Ok(applied)));
            return;
        }
        match shared.log.append(batch).await {
            Ok(appended) => {
                jobs.into_iter().for_each(|job| job.settle(Ok(appended.last)));
                return;
            }
            Err(AppendError::Conflict { stream, expected, actual }) if attempt < CONFLICTS => {
                metrics().write_conflicts.inc();
                tracing::debug!(%stream, %expected, %actual, "decided again");
                shared.conflicted(stream);
            }
            Err(error) => {
                jobs.into_iter().for_each(|job| job.settle(Err(error.clone())));
                return;
            }
        }
    }
}

/// Tells the traces of the jobs' requests that they waited for their turn until `began`, and were
/// decided since.
fn trace(jobs: &[Box<dyn Job>], began: Instant) {
    let Some(traces) = traces() else { return };
    let decided = Instant::now();
    for job in jobs {
        if let Some(traced) = traces::traced(job.request()) {
            traces.child(traced, "turn", job.queued(), began, Vec::new());
            traces.child(traced, "decide", began, decided, Vec::new());
        }
    }
}

/// A proposal of any type, with its reply channel.
trait Job: Send + std::fmt::Debug {
    fn shares_commit(&self) -> bool;
    fn commit_size(&self) -> usize;
    fn is_exclusive(&self) -> bool;
    fn is_long(&self) -> bool;
    fn lingers(&self) -> Duration;
    fn queued(&self) -> Instant;
    /// The id of the request that caused it; empty if none did.
    fn request(&self) -> &str;
    fn decide(&mut self, commit: &mut Commit<'_>);
    fn settle(self: Box<Self>, result: Result<Offset, AppendError>);
}

struct Pending<P: Proposal> {
    proposal: P,
    origin: Origin,
    lingers: Duration,
    queued: Instant,
    verdict: Option<Result<P::Outcome, Refusal>>,
    /// The size of its records.
    bytes: u64,
    reply: oneshot::Sender<Result<Durable<P::Outcome>, ProposeError>>,
}

impl<P: Proposal> std::fmt::Debug for Pending<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl<P: Proposal> Job for Pending<P> {
    fn shares_commit(&self) -> bool {
        self.proposal.shares_commit()
    }

    fn commit_size(&self) -> usize {
        self.proposal.commit_size()
    }

    fn is_exclusive(&self) -> bool {
        self.proposal.is_exclusive()
    }

    fn is_long(&self) -> bool {
        self.proposal.is_long()
    }

    fn lingers(&self) -> Duration {
        self.lingers
    }

    fn queued(&self) -> Instant {
        self.queued
    }

    fn request(&self) -> &str {
        &self.origin.request
    }

    fn decide(&mut self, commit: &mut Commit<'_>) {
        let before = commit.len();
        self.verdict = Some(commit.take(&self.proposal, &self.origin));
        self.bytes = commit.bytes_from(before);
    }

    fn settle(self: Box<Self>, result: Result<Offset, AppendError>) {
        let answer = match (result, self.verdict) {
            // A refusal is reported as soon as what it depends on is durable. It would be valid
            // despite a failed batch only if it depends on nothing in the batch, which is not known
            // here: so the log's failure is reported instead.
            (Err(error), _) => Err(ProposeError::Log(error)),
            (Ok(offset), Some(Ok(outcome))) => Ok(Durable::proven(outcome, offset, self.bytes)),
            (Ok(_), Some(Err(refusal))) => Err(ProposeError::Refused(refusal)),
            (Ok(_), None) => Err(ProposeError::Broken),
        };
        // The requester may have hung up.
        let _ = self.reply.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::{Engine, Options};
    use logcabin_base::clock::Clock;
    use logcabin_decide::Commit;
    use logcabin_log::{Appending, memory::MemoryLog};
    use logcabin_record::command::RoomTyping;

    #[test]
    fn temporary_failures_are_told_from_permanent_ones() {
        let storage = ReadError::Storage("a disk".to_owned());
        for error in [
            ProposeError::Log(AppendError::Full("a disk".to_owned())),
            ProposeError::Log(AppendError::Failed("a disk".into())),
            ProposeError::Log(AppendError::Unavailable("too few nodes".to_owned())),
            ProposeError::Log(AppendError::Closed),
            ProposeError::Refused(storage.into()),
        ] {
            assert!(error.is_for_now(), "{error}");
        }
        for error in [
            ProposeError::Log(AppendError::TooLarge("an event".to_owned())),
            ProposeError::Refused(Refusal::Forbidden("no".to_owned())),
            ProposeError::Refused(Refusal::Broken),
            ProposeError::Refused(ReadError::Missing(Offset::ZERO).into()),
            ProposeError::Broken,
        ] {
            assert!(!error.is_for_now(), "{error}");
        }
    }

    /// A log on a slow disk.
    #[derive(Debug)]
    struct Slow(MemoryLog);

    impl logcabin_log::samples::Wrapper for Slow {
        fn inner(&self) -> &dyn Log {
            &self.0
        }

        fn append(&self, batch: Batch) -> Appending<'_> {
            Box::pin(async {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                self.0.append(batch).await
            })
        }
    }

    /// Adds one record, and returns the last record that the decision saw.
    struct Add {
        typing: RoomTyping,
        is_exclusive: bool,
    }

    impl Proposal for Add {
        type Outcome = Offset;

        fn stream(&self) -> Stream {
            Stream::ephemeral(&self.typing.room_id)
        }

        fn is_exclusive(&self) -> bool {
            self.is_exclusive
        }

        fn decide(&self, commit: &mut Commit<'_>) -> Result<Offset, Refusal> {
            commit.append(self.stream(), self.typing.clone());
            Ok(commit.env.state.applied())
        }
    }

    #[tokio::test]
    async fn nothing_comes_between_an_exclusive_decision_and_its_records() {
        let clock = Clock::manual(1);
        let log = Arc::new(Slow(MemoryLog::new(clock.clone())));
        let engine = Engine::open(log, Options::small(clock)).await.unwrap();
        let add = |number: u64, is_exclusive| Add {
            typing: RoomTyping {
                room_id: format!("!{number}:test").try_into().unwrap(),
                user_id: "@ann:test".try_into().unwrap(),
                until_ms: 1,
                since: None,
            },
            is_exclusive,
        };
        let all =
            (0..30).map(|number| engine.propose(Origin::server(), add(number, number % 5 == 2)));
        let (mut alone, mut together) = (0, 0);
        for (number, added) in join_all(all).await.into_iter().enumerate() {
            let added = added.unwrap();
            let (offset, decided_on) = (added.offset(), added.into_inner());
            match number % 5 == 2 {
                true => {
                    assert_eq!(offset, decided_on.next(), "something came in between");
                    alone += 1;
                }
                false => together += usize::from(offset != decided_on.next()),
            }
        }
        assert_eq!(alone, 6);
        assert!(together > 0, "the others wait for each other");
    }
}
