//! The log as a stream.
//!
//! A [`Follow`] reads one record after the other, and waits at the end for the next: up to the
//! durable watermark (`log.follow`), or up to the head, where records are applied too
//! (`Engine::follow`). Nothing is queued for it. However far it lags behind, it costs the memory of
//! one chunk, and does not hold up the log.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    vec,
};

use tokio::sync::watch;
use tokio_stream::{Stream, wrappers::WatchStream};

use super::{Log, ReadError};
use logcabin_base::background::at_length;
use logcabin_record::{Offset, Record};

/// How many records are read together.
const CHUNK: usize = 64;

/// Fewer records than this are read without telling the runtime: they are usually in memory.
const FEW: u64 = 16;

/// Reads at most this many items, starting at an offset.
type Read<T> = Box<dyn Fn(Offset, usize) -> Result<Vec<T>, ReadError> + Send + Sync>;

/// A stream of the items at consecutive offsets, usually records.
///
/// After an error, the stream continues where it stopped.
pub struct Follow<T = Record> {
    read: Read<T>,
    chunk: usize,
    /// The offset of the next item.
    next: Offset,
    until: Offset,
    items: vec::IntoIter<T>,
    watermark: watch::Receiver<Offset>,
    moved: WatchStream<Offset>,
}

impl dyn Log {
    /// The records from `from` on, each once it is durable.
    #[must_use]
    pub fn follow(self: Arc<Self>, from: Offset) -> Follow {
        let durable = self.durable();
        Follow::records(self, from, durable)
    }
}

impl Follow {
    /// The records of `log` from `from` on, each once `watermark` has reached it.
    pub fn records(log: Arc<dyn Log>, from: Offset, watermark: watch::Receiver<Offset>) -> Self {
        Self::new(from, watermark, Box::new(move |from, limit| log.read(from, limit)))
    }
}

impl<T> Follow<T> {
    /// The items that `read` returns from `from` on, each once `watermark` has reached its offset.
    /// `read` must leave out no offset.
    pub fn new(from: Offset, watermark: watch::Receiver<Offset>, read: Read<T>) -> Self {
        Self {
            read,
            chunk: CHUNK,
            next: from,
            until: Offset::MAX,
            items: Vec::new().into_iter(),
            moved: WatchStream::from_changes(watermark.clone()),
            watermark,
        }
    }

    /// Ends after `last`.
    #[must_use]
    pub const fn until(mut self, last: Offset) -> Self {
        self.until = last;
        self
    }

    /// Reads `chunk` records together.
    #[must_use]
    pub const fn in_chunks_of(mut self, chunk: usize) -> Self {
        self.chunk = chunk;
        self
    }

    /// The offset of the next item.
    pub const fn next_offset(&self) -> Offset {
        self.next
    }

    /// Continues at `next`.
    pub fn skip_to(&mut self, next: Offset) {
        self.next = next;
        self.items = Vec::new().into_iter();
    }

    /// The next item, if it can be read without waiting.
    pub fn ready(&mut self) -> Result<Option<T>, ReadError> {
        if self.items.len() == 0 {
            let end = (*self.watermark.borrow()).min(self.until);
            if self.next > end {
                return Ok(None);
            }
            let left = end.get() - self.next.get();
            let limit = usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1);
            let read = || (self.read)(self.next, limit.min(self.chunk));
            let items = if left < FEW { read()? } else { at_length(read)? };
            if items.is_empty() {
                return Err(ReadError::Missing(self.next));
            }
            self.items = items.into_iter();
        }
        self.next = self.next.next();
        Ok(self.items.next())
    }

    /// Waits until [`Follow::ready`] has an item. False if there will be none.
    pub async fn wait(&mut self) -> bool {
        self.reach(self.next).await
    }

    /// Waits until `offset` can be read. False if it never can.
    pub async fn reach(&mut self, offset: Offset) -> bool {
        offset <= self.until && self.watermark.wait_for(|end| *end >= offset).await.is_ok()
    }
}

impl<T> Unpin for Follow<T> {}

impl<T> Stream for Follow<T> {
    type Item = Result<T, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.ready().transpose() {
                return Poll::Ready(Some(item));
            }
            if self.next > self.until || ready!(Pin::new(&mut self.moved).poll_next(cx)).is_none() {
                return Poll::Ready(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::{Batch, StreamHeads, memory::MemoryLog, samples::typing};
    use logcabin_base::clock::Clock;

    async fn log_of(records: usize) -> Arc<dyn Log> {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(1)));
        log.start(StreamHeads::default(), Box::new(|_| {}));
        add(&*log, records).await;
        log
    }

    async fn add(log: &dyn Log, records: usize) {
        let records = (0..records).map(|_| typing()).collect();
        log.append(Batch { expect: Vec::new(), records }).await.unwrap();
    }

    #[tokio::test]
    async fn records_are_contiguous_across_chunks_and_the_end_of_the_log() {
        let log = log_of(150).await;
        let mut follow = Arc::clone(&log).follow(Offset::new(3));
        for offset in 3..=150 {
            assert_eq!(follow.next().await.unwrap().unwrap().offset().get(), offset);
        }
        assert!(follow.next().now_or_never().is_none());
        assert!(follow.ready().unwrap().is_none());
        let (next, ()) = tokio::join!(follow.next(), add(&*log, 2));
        assert_eq!(next.unwrap().unwrap().offset().get(), 151);
        assert!(follow.wait().await);
        assert_eq!(follow.ready().unwrap().unwrap().offset().get(), 152);
    }

    #[tokio::test]
    async fn a_stream_ends_after_its_last_offset() {
        let log = log_of(10).await;
        let follow = log.follow(Offset::new(8)).until(Offset::new(9));
        let offsets: Vec<_> = follow.map(|record| record.unwrap().offset().get()).collect().await;
        assert_eq!(offsets, [8, 9]);
    }

    #[tokio::test]
    async fn a_missing_record_is_an_error() {
        let log = log_of(3).await;
        let watermark = watch::Sender::new(Offset::new(5));
        let mut follow = Follow::records(log, Offset::new(3), watermark.subscribe());
        assert!(follow.ready().unwrap().is_some());
        for _ in 0..2 {
            let missing = follow.next().await.unwrap();
            assert!(matches!(missing, Err(ReadError::Missing(at)) if at == Offset::new(4)));
        }
    }
}
