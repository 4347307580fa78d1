//! The time to compute a `/sync` response, without HTTP and before it is written as JSON.

use std::{
    cell::LazyCell,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion};

use crate::{
    common::{Server, sync_since},
    sizes,
};

pub(crate) fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sync");
    for &rooms in sizes(&[10, 100, 1_000]) {
        let server = LazyCell::new(|| Server::with_rooms(rooms, 2));
        group.bench_function(BenchmarkId::new("nothing new, rooms", rooms), |bencher| {
            let person = server.person(1);
            let request = sync_since(Some(server.head()));
            bencher.iter(|| server.sync(&person, &request));
        });
        group.bench_function(BenchmarkId::new("one message, rooms", rooms), |bencher| {
            let person = server.person(1);
            bencher.iter_custom(|count| {
                let mut took = Duration::ZERO;
                for number in 0..count {
                    let request = sync_since(Some(server.head()));
                    server.say(number % rooms);
                    let began = Instant::now();
                    let response = server.sync(&person, &request);
                    took += began.elapsed();
                    assert!(!response.is_empty(), "there was a message");
                }
                took
            });
        });
    }
    for &rooms in sizes(&[5, 50, 200]) {
        let server = LazyCell::new(|| Server::with_rooms(rooms, 10));
        group.bench_function(BenchmarkId::new("initial, rooms of 10", rooms), |bencher| {
            let person = server.person(1);
            let request = sync_since(None);
            bencher.iter(|| server.sync(&person, &request));
        });
    }
    group.finish();
}
