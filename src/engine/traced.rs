//! The last records that traced requests caused. What happens because of one, such as the answer to
//! a sync that waited for it, belongs to the request's trace.

use std::{collections::VecDeque, time::Instant};

use parking_lot::Mutex;

use logcabin_base::{
    limits,
    traces::{self, Traced, traces},
};
use logcabin_record::{Offset, Record, Stream};

/// Empty unless requests are traced.
#[derive(Debug, Default)]
pub struct TracedRecords(Mutex<VecDeque<One>>);

#[derive(Debug)]
struct One {
    offset: Offset,
    stream: Stream,
    traced: Traced,
    /// How many more consequences are traced.
    left: usize,
}

impl TracedRecords {
    /// Remembers a record if a traced request caused it.
    pub(super) fn note(&self, record: &Record) {
        if let Some(traced) = traces::traced(&record.header.origin.request) {
            self.add(record.offset(), record.header.stream.clone(), traced);
        }
    }

    fn add(&self, offset: Offset, stream: Stream, traced: Traced) {
        let mut records = self.0.lock();
        if records.len() >= limits::TRACED_RECORDS {
            records.pop_front();
        }
        records.push_back(One { offset, stream, traced, left: limits::TRACE_FOLLOWERS });
    }

    /// The traces of the records after `since` and up to `until` whose stream `concerns` accepts.
    /// Each record is returned a limited number of times.
    pub fn between(
        &self,
        since: Offset,
        until: Offset,
        concerns: impl Fn(&Stream) -> bool,
    ) -> Vec<(Offset, Traced)> {
        let mut records = self.0.lock();
        let first = records.partition_point(|one| one.offset <= since);
        let mut found = Vec::new();
        for one in records.range_mut(first..).take_while(|one| one.offset <= until) {
            if one.left > 0 && concerns(&one.stream) {
                one.left -= 1;
                found.push((one.offset, one.traced));
            }
        }
        found
    }

    /// Adds to the traces of these records what was done because of them, from `since` until now.
    pub fn tell(
        &self,
        records: impl IntoIterator<Item = Offset>,
        name: &'static str,
        since: Instant,
    ) {
        let Some(traces) = traces() else { return };
        let until = Instant::now();
        for record in records {
            for (offset, traced) in self.between(record.prev(), record, |_| true) {
                traces.child(traced, name, since, until, vec![traces::about(offset.get())]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_number_of_consequences_of_a_record_are_traced() {
        let records = TracedRecords::default();
        let traced = Traced::of("a-1.4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
        for offset in 1..=limits::TRACED_RECORDS as u64 + 5 {
            records.add(Offset::new(offset), Stream::server(), traced);
        }
        let between = |since, until| {
            let found = records.between(Offset::new(since), Offset::new(until), |_| true);
            found.into_iter().map(|(offset, _)| offset.get()).collect::<Vec<_>>()
        };
        assert_eq!(between(0, 8), [6, 7, 8]);
        assert!(between(7, 7).is_empty());
        for _ in 1..limits::TRACE_FOLLOWERS {
            assert_eq!(between(7, 8), [8]);
        }
        assert_eq!(between(7, 9), [9]);
        assert!(records.between(Offset::ZERO, Offset::MAX, |_| false).is_empty());
    }
}
