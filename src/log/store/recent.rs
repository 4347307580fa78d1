//! The newest records, in memory. A follower of the log reads each record right after it was
//! written, and finds it here instead of reading, unpacking and decoding it.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::RwLock;

use logcabin_base::metrics::{CacheName, metrics};
use logcabin_record::{Offset, Record};

/// How many bytes of payloads are kept: at a thousand messages a second, those of some seconds.
const BYTES: usize = 4 * 1024 * 1024;

/// About what a record takes besides its payload.
const AROUND: usize = 512;

/// The newest records, without gaps.
#[derive(Debug, Default)]
pub(super) struct Recent(RwLock<Ring>);

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<Arc<Record>>,
    bytes: usize,
}

impl Recent {
    /// Adds the records that follow the newest one.
    pub(super) fn add(&self, records: &[Arc<Record>]) {
        let mut ring = self.0.write();
        for record in records {
            ring.bytes += size(record);
            ring.records.push_back(Arc::clone(record));
        }
        while ring.bytes > BYTES
            && let Some(oldest) = ring.records.pop_front()
        {
            ring.bytes -= size(&oldest);
        }
    }

    /// Drops all records, because what remains of one has changed.
    pub(super) fn clear(&self) {
        *self.0.write() = Ring::default();
    }

    /// The records from `from` to `to`, at most `limit`; none if they are not all here.
    pub(super) fn read(&self, from: Offset, to: Offset, limit: usize) -> Option<Vec<Record>> {
        let read = self.find(from, to, limit);
        metrics().looked_up(CacheName::Records, read.is_some());
        read
    }

    fn find(&self, from: Offset, to: Offset, limit: usize) -> Option<Vec<Record>> {
        let ring = self.0.read();
        let first = ring.records.front()?.offset();
        let skip = usize::try_from(from.get().checked_sub(first.get())?).ok()?;
        let last = ring.records.back()?.offset();
        if to > last {
            return None;
        }
        let count = (to.get() + 1).checked_sub(from.get())?;
        let count = usize::try_from(count).unwrap_or(limit).min(limit);
        Some(
            ring.records
                .iter()
                .skip(skip)
                .take(count)
                .map(|record| Record::clone(record))
                .collect(),
        )
    }
}

fn size(record: &Record) -> usize {
    record.header.payload_len as usize + AROUND
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{payload, record};
    use logcabin_record::codec::Tip;

    fn records(count: u64) -> Vec<Arc<Record>> {
        let mut tip = Tip::default();
        let next = |number| Arc::new(tip.extend(record("a", payload(number)), 0, 1).unwrap().0);
        (0..count).map(next).collect()
    }

    #[test]
    fn the_newest_records_are_kept_and_older_ones_are_not() {
        let recent = Recent::default();
        let all = records(10_000);
        let at = |offset: u64| Offset::new(offset);
        assert!(recent.read(at(1), at(1), 1).is_none());
        for group in all.chunks(7) {
            recent.add(group);
        }
        let offsets = |from, to, limit| {
            let read = recent.read(at(from), at(to), limit);
            read.map(|read| read.iter().map(|record| record.offset().get()).collect::<Vec<_>>())
        };
        assert_eq!(offsets(9_998, 10_000, 10), Some(vec![9_998, 9_999, 10_000]));
        assert_eq!(offsets(9_000, 10_000, 2), Some(vec![9_000, 9_001]));
        assert_eq!(offsets(10_000, 9_999, 2), Some(vec![]));
        assert_eq!(offsets(9_999, 10_001, 10), None, "there is no such record yet");
        assert_eq!(offsets(1, 10_000, 10), None, "it is too old");
        recent.clear();
        assert_eq!(offsets(10_000, 10_000, 1), None);
    }
}
