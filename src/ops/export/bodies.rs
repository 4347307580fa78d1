//! The log of a [`Source`] as of one moment, for projections and views.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::source::{Source, SourceError};
use logcabin_log::{AppendError, Appending, Batch, Follower, Log, ReadError, StreamHeads};
use logcabin_record::{Offset, Record};

/// How many records are requested at once: the events of a room are close together, and a request
/// costs more than a few records.
const AHEAD: u64 = 64;

/// A log for reading, which ends where its source ended when this was created.
#[derive(Debug)]
pub(super) struct Bodies {
    source: Source,
    end: Offset,
    /// The records that were read last.
    near: Mutex<BTreeMap<Offset, Record>>,
}

impl Bodies {
    pub(super) fn of(source: Source) -> Result<Self, SourceError> {
        let end = source.end()?;
        Ok(Self { source, end, near: Mutex::default() })
    }

    /// Whether a running server has the log.
    pub(super) fn is_served(&self) -> bool {
        self.source.log().is_none()
    }

    fn fetch(&self, from: Offset, to: Offset) -> Result<Vec<Record>, ReadError> {
        let wanted: Vec<_> = (from.get()..=to.get()).map(Offset::new).collect();
        let mut records = Vec::with_capacity(wanted.len());
        let fetched: Result<(), SourceError> = self.source.fetch(&wanted, |record| {
            records.push(record);
            Ok(())
        });
        fetched.map_err(|error| match error {
            SourceError::Read(error) => error,
            error => ReadError::Storage(error.to_string()),
        })?;
        Ok(records)
    }
}

impl Log for Bodies {
    fn append(&self, _: Batch) -> Appending<'_> {
        Box::pin(async { Err(AppendError::Closed) })
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        if offset > self.end || offset == Offset::ZERO {
            return Ok(None);
        }
        if let Some(log) = self.source.log() {
            return log.get(offset);
        }
        let mut near = self.near.lock();
        if let Some(record) = near.get(&offset) {
            return Ok(Some(record.clone()));
        }
        let to = Offset::new(offset.get().saturating_add(AHEAD - 1)).min(self.end);
        *near = self.fetch(offset, to)?.into_iter().map(|of| (of.offset(), of)).collect();
        Ok(near.get(&offset).cloned())
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let to = Offset::new(from.get().saturating_add(limit).saturating_sub(1)).min(self.end);
        if from > to || limit == 0 { Ok(Vec::new()) } else { self.fetch(from, to) }
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        watch::Sender::new(self.end).subscribe()
    }

    fn start(&self, _: StreamHeads, _: Follower) {}

    fn close(&self) {}
}
