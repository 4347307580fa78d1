//! Batches on their way to the stream, and the callers that wait for them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::jetstream::context::PublishErrorKind;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    Shared,
    wire::{self, Message, Proposed},
};
use crate::{AppendError, Appended, Appending, Batch};

/// How long a proposal may take. Then its caller gets an error, and does not know whether it will
/// still be appended: a request with a transaction id can be repeated.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// How many batches may wait to be published; further ones wait outside the queue.
const QUEUE_BATCHES: usize = 1024;

/// A message is closed once its batches reach this many bytes.
const MESSAGE_BYTES: usize = 512 * 1024;

/// A message has at most this many batches.
const MESSAGE_BATCHES: usize = 256;

/// How many messages may be on their way at once.
const MESSAGES_UNDER_WAY: usize = 8;

/// The pause before a message is published again after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// How often proposals are checked for expiry.
const TICK: Duration = Duration::from_millis(250);

type Reply = oneshot::Sender<Result<Appended, AppendError>>;

/// A caller that waits for a batch.
struct Caller {
    since: Instant,
    reply: Reply,
    _counted: Counted,
}

/// The batches that this node has proposed and not taken from the stream yet, by number.
#[derive(Default)]
pub(super) struct Waiting {
    callers: Mutex<BTreeMap<u64, Caller>>,
    /// How many batches are queued or have a number.
    open: Arc<Open>,
}

#[derive(Default)]
struct Open {
    count: Mutex<usize>,
    none: Condvar,
}

/// A batch that counts as open until this is dropped.
struct Counted(Arc<Open>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

impl Waiting {
    fn open(&self) -> Counted {
        *self.open.count.lock() += 1;
        Counted(Arc::clone(&self.open))
    }

    fn add(&self, number: u64, caller: Caller) {
        self.callers.lock().insert(number, caller);
    }

    /// Answers a proposal of this node, if anybody still waits for it.
    pub(super) fn settle(&self, number: u64, result: Result<Appended, AppendError>) {
        let caller = self.callers.lock().remove(&number);
        if let Some(caller) = caller {
            let _ = caller.reply.send(result);
        }
    }

    fn is_waiting(&self, numbers: std::ops::Range<u64>) -> bool {
        self.callers.lock().range(numbers).next().is_some()
    }

    pub(super) fn fail_all(&self, error: &AppendError) {
        let callers = std::mem::take(&mut *self.callers.lock());
        for caller in callers.into_values() {
            let _ = caller.reply.send(Err(error.clone()));
        }
    }

    fn expire(&self) {
        let mut callers = self.callers.lock();
        let is_late = |caller: &Caller| caller.since.elapsed() >= DEADLINE;
        let late = callers.iter().filter(|(_, caller)| is_late(caller)).map(|(number, _)| *number);
        let late: Vec<_> = late.collect();
        let late: Vec<_> = late.iter().filter_map(|number| callers.remove(number)).collect();
        drop(callers);
        if !late.is_empty() {
            tracing::warn!(proposals = late.len(), "the cluster did not confirm proposals in time");
        }
        for caller in late {
            let _ = caller.reply.send(Err(AppendError::Unavailable(
                "the cluster has not confirmed the write in time".to_owned(),
            )));
        }
    }

    /// Blocks until no batch is open, for at most `limit`.
    pub(super) fn until_none(&self, limit: Duration) {
        let mut count = self.open.count.lock();
        let _ = self.open.none.wait_while_for(&mut count, |count| *count > 0, limit);
    }
}

struct Queued {
    batch: Batch,
    caller: Caller,
}

/// The queue of batches to publish.
pub(super) struct Proposals {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Queued>,
    receiver: Mutex<Option<mpsc::Receiver<Queued>>>,
}

impl Proposals {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE_BATCHES);
        Self { shared, queue, receiver: Mutex::new(Some(receiver)) }
    }

    /// Publishes `batch`, and resolves once this node has taken it from the stream.
    pub(super) fn propose(&self, batch: Batch) -> Appending<'_> {
        let (reply, outcome) = oneshot::channel();
        let _counted = self.shared.waiting.open();
        let queued = Queued { batch, caller: Caller { since: Instant::now(), reply, _counted } };
        // Queued now rather than when first polled, so a caller that goes away does not cancel it.
        let (full, sent) = match self.queue.try_send(queued) {
            Ok(()) => (None, true),
            Err(mpsc::error::TrySendError::Full(queued)) => (Some(queued), true),
            Err(mpsc::error::TrySendError::Closed(_)) => (None, false),
        };
        Box::pin(async move {
            let sent = match full {
                Some(queued) => self.queue.send(queued).await.is_ok(),
                None => sent,
            };
            if !sent {
                return Err(self.shared.failed().unwrap_or(AppendError::Closed));
            }
            outcome
                .await
                .unwrap_or_else(|_| Err(self.shared.failed().unwrap_or(AppendError::Closed)))
        })
    }

    /// Starts the tasks that publish what is queued.
    pub(super) fn start(&self) -> Vec<JoinHandle<()>> {
        let Some(receiver) = self.receiver.lock().take() else { return Vec::new() };
        let shared = Arc::clone(&self.shared);
        let expirer = Arc::clone(&self.shared);
        vec![tokio::spawn(publish_all(shared, receiver)), tokio::spawn(expire(expirer))]
    }
}

async fn expire(shared: Arc<Shared>) {
    let mut stop = shared.stop.subscribe();
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => shared.waiting.expire(),
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    shared.waiting.fail_all(&AppendError::Closed);
}

async fn publish_all(shared: Arc<Shared>, mut queue: mpsc::Receiver<Queued>) {
    let (next, under_way) = (AtomicU64::new(0), Arc::new(Semaphore::new(MESSAGES_UNDER_WAY)));
    let mut stop = shared.stop.subscribe();
    let mut left = None;
    loop {
        let first = match left.take() {
            Some(queued) => queued,
            None => tokio::select! {
                queued = queue.recv() => match queued {
                    Some(queued) => queued,
                    None => return,
                },
                _ = stop.wait_for(|stop| *stop) => return,
            },
        };
        // While others are on their way, more batches come to share the next message.
        let Ok(permit) = Arc::clone(&under_way).acquire_owned().await else { return };
        let mut bytes = wire::bytes_of(&first.batch);
        let mut all = vec![first];
        while all.len() < MESSAGE_BATCHES
            && let Ok(queued) = queue.try_recv()
        {
            bytes += wire::bytes_of(&queued.batch);
            if bytes > MESSAGE_BYTES {
                left = Some(queued);
                break;
            }
            all.push(queued);
        }
        let time_ms = shared.clock.now_ms();
        let number = next.fetch_add(all.len() as u64, Ordering::Relaxed);
        let numbers = number..number + all.len() as u64;
        let mut batches = Vec::with_capacity(all.len());
        for (number, Queued { batch, caller }) in numbers.clone().zip(all) {
            shared.waiting.add(number, caller);
            batches.push(Proposed { time_ms, batch });
        }
        let message = Message { node: shared.node, number, batches };
        match message.encode() {
            Ok(bytes) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    publish(&shared, numbers, bytes).await;
                    drop(permit);
                });
            }
            Err(error) => {
                for number in numbers {
                    let refused = AppendError::TooLarge(error.to_string());
                    shared.waiting.settle(number, Err(refused));
                }
            }
        }
    }
}

/// Publishes a message, and retries until JetStream has it or nobody waits for it any more.
async fn publish(shared: &Shared, numbers: std::ops::Range<u64>, bytes: Bytes) {
    let id = format!("{:016x}-{}", shared.node, numbers.start);
    let mut warned = false;
    while shared.waiting.is_waiting(numbers.clone()) {
        let message = async_nats::jetstream::message::PublishMessage::build()
            .payload(bytes.clone())
            .message_id(&id);
        let published =
            async { shared.jetstream.send_publish(shared.subject.clone(), message).await?.await };
        let error = match published.await {
            Ok(acknowledged) => return shared.barrier.acknowledged(acknowledged.sequence),
            Err(error) => error,
        };
        if !warned {
            warned = true;
            tracing::warn!(%error, "a proposal could not be published; retrying");
        }
        if error.kind() == PublishErrorKind::MaxPayloadExceeded {
            for number in numbers {
                let refused = AppendError::TooLarge(error.to_string());
                shared.waiting.settle(number, Err(refused));
            }
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
