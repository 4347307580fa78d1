//! The time to apply a record, and to replay a log, from memory: without the disk (`start` has
//! that).

use std::{
    cell::LazyCell,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput};
use logcabin::{clock::Clock, engine, log::memory::MemoryLog, record::Record, state::State};

use crate::{common::Server, size};

pub(crate) fn benches(criterion: &mut Criterion) {
    let log = LazyCell::new(|| Server::log_of_messages(size(10_000, 10)));
    criterion.bench_function("apply/message in a room of 10", |bencher| {
        let (records, before) = &*log;
        bencher.iter_custom(|count| apply(records, *before, count));
    });
    let replayed = LazyCell::new(|| {
        MemoryLog::with_records(
            Clock::manual(1_800_000_000_000),
            Server::log_of_messages(size(10_000, 10)).0,
        )
    });
    let mut group = criterion.benchmark_group("replay");
    group.sample_size(10);
    let records = size(10_000, 10);
    group.throughput(Throughput::Elements(records));
    group.bench_function(format!("{records} messages"), |bencher| {
        let log = &*replayed;
        bencher.iter(|| engine::replay(log, |_, _| {}).expect("a replay"));
    });
    group.finish();
}

/// Applies `count` messages, and times that: from the first again when there are no more.
fn apply(records: &[Arc<Record>], before: usize, count: u64) -> Duration {
    let (mut left, mut took) = (usize::try_from(count).expect("a few"), Duration::ZERO);
    let (beginning, messages) = records.split_at(before);
    while left > 0 {
        let state = State::default();
        for record in beginning {
            drop(state.apply(record).expect("a record is applied"));
        }
        let now = &messages[..left.min(messages.len())];
        let began = Instant::now();
        for record in now {
            drop(state.apply(record).expect("a record is applied"));
        }
        took += began.elapsed();
        left -= now.len();
    }
    took
}
