//! A log on a modelled disk, for simulations: time passes while it writes and syncs, and a crash
//! loses what is not synced. `log/contract.rs` holds it to the contract of the real store.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::{
    AppendError, Appended, Appending, Batch, CompactError, Compacted, Follower, LocalLog, Log,
    ReadError, StreamHeads, check_expected, check_size, erased_by,
};
use logcabin_base::{
    clock::Clock,
    planted::{self, Fault},
};
use logcabin_record::{Offset, Record, codec::Tip};

/// What a disk holds of a log. It survives the server.
#[derive(Debug, Default)]
pub struct Disk(Mutex<Platters>);

#[derive(Debug, Default)]
struct Platters {
    /// Durable.
    synced: Vec<Arc<Record>>,
    written: Vec<Unsynced>,
    fault: Option<DiskFault>,
}

/// A batch that is written and not synced.
#[derive(Debug)]
struct Unsynced {
    records: Vec<Arc<Record>>,
    /// What it leaves of records that it erases.
    left: Vec<Record>,
}

impl Platters {
    fn sync(&mut self, Unsynced { records, left }: Unsynced) {
        for left in left {
            if let Some(record) = place(left.offset()).and_then(|at| self.synced.get_mut(at)) {
                *record = Arc::new(left);
            }
        }
        self.synced.extend(records);
    }
}

/// Where a record is among all.
fn place(offset: Offset) -> Option<usize> {
    offset.get().checked_sub(1).and_then(|at| usize::try_from(at).ok())
}

/// What a disk does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Writes are refused until there is space.
    Full,
    /// The next sync fails.
    Failing,
}

impl Disk {
    /// After a crash: of what was written and not synced, `kept` batches reached the disk.
    pub fn lose_power(&self, kept: usize) {
        let mut platters = self.0.lock();
        for unsynced in std::mem::take(&mut platters.written).into_iter().take(kept) {
            platters.sync(unsynced);
        }
        if planted::has(Fault::BatchForgotten) {
            platters.synced.pop();
            while platters.synced.last().is_some_and(|last| last.header.batch_remaining > 0) {
                platters.synced.pop();
            }
        }
    }

    /// How many batches are written and not synced.
    pub fn unsynced(&self) -> usize {
        self.0.lock().written.len()
    }

    pub fn set_fault(&self, fault: Option<DiskFault>) {
        self.0.lock().fault = fault;
    }

    /// The durable records.
    pub fn records(&self) -> Vec<Arc<Record>> {
        self.0.lock().synced.clone()
    }
}

/// How long the disk takes for a group of batches.
pub type Latency = Box<dyn Fn() -> Duration + Send + Sync>;

/// A log on a [`Disk`].
pub struct ModelledLog {
    shared: Arc<Shared>,
}

struct Shared {
    disk: Arc<Disk>,
    clock: Clock,
    latency: Latency,
    queue: Mutex<Queue>,
    /// Notified when a batch is queued.
    queued: Notify,
    /// The batches that are written and not synced.
    group: Mutex<Vec<Reply>>,
    follower: Mutex<Option<Follower>>,
    durable: watch::Sender<Offset>,
    failure: watch::Sender<Option<Arc<str>>>,
}

#[derive(Default)]
struct Queue {
    /// After the last record that is written.
    tip: Tip,
    heads: StreamHeads,
    waiting: Vec<Waiting>,
    started: bool,
    closed: bool,
}

struct Waiting {
    batch: Batch,
    reply: oneshot::Sender<Result<Appended, AppendError>>,
}

/// A batch that is written, or was refused, with what its writer is told once it is durable.
struct Reply {
    outcome: Result<Appended, AppendError>,
    reply: oneshot::Sender<Result<Appended, AppendError>>,
}

impl fmt::Debug for ModelledLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let durable = *self.shared.durable.borrow();
        f.debug_struct("ModelledLog").field("durable", &durable).finish_non_exhaustive()
    }
}

impl ModelledLog {
    /// Opens the log of a disk.
    pub fn open(disk: Arc<Disk>, clock: Clock, latency: Latency) -> Self {
        let tip = {
            let mut platters = disk.0.lock();
            platters.written.clear();
            platters.synced.last().map(|record| Tip::after(record)).unwrap_or_default()
        };
        let durable = watch::Sender::new(tip.offset);
        let shared = Shared {
            disk,
            clock,
            latency,
            queue: Mutex::new(Queue { tip, ..Queue::default() }),
            queued: Notify::new(),
            group: Mutex::default(),
            follower: Mutex::default(),
            durable,
            failure: watch::Sender::new(None),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Shared {
    fn refusal(&self) -> Option<AppendError> {
        if let Some(reason) = self.failure.borrow().clone() {
            return Some(AppendError::Failed(reason));
        }
        let fault = self.disk.0.lock().fault;
        (fault == Some(DiskFault::Full)).then(|| AppendError::Full("the disk is full".to_owned()))
    }

    /// Writes what is queued, group by group.
    async fn commit(&self) {
        loop {
            self.queued.notified().await;
            while self.write_group() {
                tokio::time::sleep((self.latency)()).await;
                self.publish_group();
            }
        }
    }

    /// Writes what is queued. Returns whether there was anything.
    fn write_group(&self) -> bool {
        let group = std::mem::take(&mut self.queue.lock().waiting);
        let is_any = !group.is_empty();
        for Waiting { batch, reply } in group {
            let outcome = self.write(batch);
            if planted::has(Fault::AnsweredBeforeSync) {
                let _ = reply.send(outcome);
                continue;
            }
            self.group.lock().push(Reply { outcome, reply });
        }
        is_any
    }

    /// Syncs what is written, and publishes it.
    fn publish_group(&self) {
        let synced = self.sync();
        let replies = std::mem::take(&mut *self.group.lock());
        match synced {
            Ok(synced) => {
                if let Some(last) = synced.last() {
                    self.durable.send_replace(last.offset());
                    if let Some(follower) = &mut *self.follower.lock() {
                        follower(&synced);
                    }
                }
                for Reply { outcome, reply } in replies {
                    let _ = reply.send(outcome);
                }
            }
            Err(reason) => {
                self.failure.send_replace(Some(Arc::clone(&reason)));
                for Reply { reply, .. } in replies {
                    let _ = reply.send(Err(AppendError::Failed(Arc::clone(&reason))));
                }
            }
        }
    }

    fn write(&self, batch: Batch) -> Result<Appended, AppendError> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let queue = &mut *self.queue.lock();
        check_expected(&queue.heads, queue.tip.offset, &batch)?;
        let (now, count) = (self.clock.now_ms(), batch.records.len());
        let mut tip = queue.tip.clone();
        let mut added = Vec::with_capacity(count);
        for (index, new) in batch.records.into_iter().enumerate() {
            let remaining = u32::try_from(count - index - 1).unwrap_or(u32::MAX);
            let extended = tip.extend(new, remaining, now);
            let (record, _) = extended.map_err(|error| AppendError::TooLarge(error.to_string()))?;
            added.push(Arc::new(record));
        }
        let platters = &mut *self.disk.0.lock();
        let get = |offset| {
            let record = place(offset).and_then(|at| platters.synced.get(at));
            Ok(record.map(|record| Record::clone(record)))
        };
        let left = erased_by(added.iter().map(|record| &**record), get)?;
        let appended = Appended { first: queue.tip.offset.next(), last: tip.offset };
        for record in &added {
            queue.heads.insert(record.header.stream.clone(), record.offset());
        }
        queue.tip = tip;
        platters.written.push(Unsynced { records: added, left });
        Ok(appended)
    }

    /// Makes durable what is written, and returns it.
    fn sync(&self) -> Result<Vec<Arc<Record>>, Arc<str>> {
        let platters = &mut *self.disk.0.lock();
        if platters.fault == Some(DiskFault::Failing) {
            return Err("the disk failed".into());
        }
        let before = platters.synced.len();
        for unsynced in std::mem::take(&mut platters.written) {
            platters.sync(unsynced);
        }
        Ok(platters.synced.get(before..).unwrap_or_default().to_vec())
    }
}

impl Log for ModelledLog {
    fn append(&self, batch: Batch) -> Appending<'_> {
        if let Err(error) = check_size(&batch) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let (reply, outcome) = oneshot::channel();
        {
            let mut queue = self.shared.queue.lock();
            if queue.closed || !queue.started {
                return Box::pin(std::future::ready(Err(AppendError::Closed)));
            }
            queue.waiting.push(Waiting { batch, reply });
        }
        self.shared.queued.notify_one();
        Box::pin(async move { outcome.await.unwrap_or(Err(AppendError::Closed)) })
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        Ok(self.read(offset, 1)?.pop().filter(|record| record.offset() == offset))
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        let skip = usize::try_from(from.get().saturating_sub(1)).unwrap_or(usize::MAX);
        let platters = self.shared.disk.0.lock();
        let found = platters.synced.iter().skip(skip).take(limit);
        Ok(found.map(|record| Record::clone(record)).collect())
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        self.shared.durable.subscribe()
    }

    fn start(&self, heads: StreamHeads, follower: Follower) {
        {
            let mut queue = self.shared.queue.lock();
            (queue.heads, queue.started) = (heads, true);
        }
        *self.shared.follower.lock() = Some(follower);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move { shared.commit().await });
    }

    fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.write_group();
        self.shared.publish_group();
    }
}

impl LocalLog for ModelledLog {
    fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.shared.failure.subscribe()
    }

    fn refusal(&self) -> Option<AppendError> {
        if self.shared.queue.lock().closed {
            return Some(AppendError::Closed);
        }
        self.shared.refusal()
    }

    fn compacted(&self) -> Result<Offset, ReadError> {
        Ok(*self.shared.durable.borrow())
    }

    fn compact(&self, _: &mut dyn FnMut() -> bool) -> Result<Compacted, CompactError> {
        Ok(Compacted { before: 0, after: 0 })
    }
}
