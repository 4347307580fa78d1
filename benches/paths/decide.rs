//! The decision of one message: authorised, hashed, signed, encoded as a record. The log
//! acknowledges what it is given and forgets it, so that each decision is the same one.

use std::cell::LazyCell;

use criterion::{BatchSize, BenchmarkId, Criterion};

use crate::{common::Server, sizes};

pub(crate) fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    for &members in sizes(&[10, 1_000, 10_000]) {
        let server = LazyCell::new(|| {
            let server = Server::with_rooms(1, members);
            server.forget_from_now_on();
            server
        });
        group.bench_function(BenchmarkId::new("message in a room of", members), |bencher| {
            let server = &*server;
            bencher.iter_batched(
                || server.next_message(0),
                |message| server.send(message),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}
