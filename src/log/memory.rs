//! A log in memory, for tests and for embedding. It has the same contract, and is durable for as
//! long as the process lives.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    AppendError, Appended, Appending, Batch, Follower, Log, ReadError, StreamHeads, check_expected,
    check_size, erased_by,
};
use logcabin_base::clock::Clock;
use logcabin_record::{Offset, Record, codec::Tip};

pub struct MemoryLog {
    clock: Clock,
    inner: Mutex<Inner>,
    durable: watch::Sender<Offset>,
}

#[derive(Default)]
struct Inner {
    records: Vec<Arc<Record>>,
    tip: Tip,
    heads: StreamHeads,
    follower: Option<Follower>,
    closed: bool,
}

impl std::fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLog").field("durable", &*self.durable.borrow()).finish()
    }
}

impl MemoryLog {
    /// An empty log.
    pub fn new(clock: Clock) -> Self {
        Self::with_records(clock, Vec::new())
    }

    /// A log that holds `records` already, as if it had been opened from a disk.
    pub fn with_records(clock: Clock, records: Vec<Arc<Record>>) -> Self {
        let tip = records.last().map(|record| Tip::after(record)).unwrap_or_default();
        let durable = watch::Sender::new(tip.offset);
        Self { clock, inner: Mutex::new(Inner { records, tip, ..Inner::default() }), durable }
    }

    fn append_now(&self, batch: Batch) -> Result<Appended, AppendError> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if inner.closed {
            return Err(AppendError::Closed);
        }
        check_size(&batch)?;
        check_expected(&inner.heads, inner.tip.offset, &batch)?;
        let now = self.clock.now_ms();
        let mut tip = inner.tip.clone();
        let mut added = Vec::with_capacity(batch.records.len());
        let count = batch.records.len();
        for (index, new) in batch.records.into_iter().enumerate() {
            let remaining = u32::try_from(count - index - 1).unwrap_or(u32::MAX);
            let (record, _) = tip
                .extend(new, remaining, now)
                .map_err(|error| AppendError::TooLarge(error.to_string()))?;
            added.push(Arc::new(record));
        }
        let get = |offset: Offset| {
            let index = offset.get().checked_sub(1).and_then(|index| usize::try_from(index).ok());
            Ok(index.and_then(|index| inner.records.get(index)).map(|record| Record::clone(record)))
        };
        for left in erased_by(added.iter().map(|record| &**record), get)? {
            if let Some(index) = left.offset().get().checked_sub(1)
                && let Some(record) =
                    usize::try_from(index).ok().and_then(|i| inner.records.get_mut(i))
            {
                *record = Arc::new(left);
            }
        }
        let appended = Appended { first: inner.tip.offset.next(), last: tip.offset };
        for record in &added {
            inner.heads.insert(record.header.stream.clone(), record.offset());
        }
        inner.tip = tip;
        inner.records.extend(added.iter().cloned());
        self.durable.send_replace(appended.last);
        if let Some(follower) = &mut inner.follower {
            follower(&added);
        }
        Ok(appended)
    }
}

impl Log for MemoryLog {
    fn append(&self, batch: Batch) -> Appending<'_> {
        let result = self.append_now(batch);
        Box::pin(std::future::ready(result))
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        let Some(index) = offset.get().checked_sub(1) else { return Ok(None) };
        let inner = self.inner.lock();
        let record = usize::try_from(index).ok().and_then(|index| inner.records.get(index));
        Ok(record.map(|record| Record::clone(record)))
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        let skip = usize::try_from(from.get().saturating_sub(1)).unwrap_or(usize::MAX);
        let inner = self.inner.lock();
        Ok(inner
            .records
            .iter()
            .skip(skip)
            .take(limit)
            .map(|record| Record::clone(record))
            .collect())
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        self.durable.subscribe()
    }

    fn start(&self, heads: StreamHeads, follower: Follower) {
        let mut inner = self.inner.lock();
        inner.heads = heads;
        inner.follower = Some(follower);
    }

    fn close(&self) {
        self.inner.lock().closed = true;
    }
}
