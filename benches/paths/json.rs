//! JSON in and out: a request to send a message read, answers written.

use std::{cell::LazyCell, hint::black_box};

use criterion::{BenchmarkId, Criterion, Throughput};

use crate::{
    common::{Server, page, read_send, sync_since, text},
    size, sizes,
};

pub(crate) fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("json");
    let body = text(1).to_string();
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("read a request to send", |bencher| {
        bencher.iter(|| read_send(black_box(body.as_bytes())));
    });

    for &rooms in sizes(&[1, 20, 200]) {
        let response = LazyCell::new(|| {
            let server = Server::with_rooms(rooms, 10);
            server.sync(&server.person(1), &sync_since(None))
        });
        group.bench_function(
            BenchmarkId::new("write an initial sync, rooms of 10", rooms),
            |bencher| {
                let response = &*response;
                bencher.iter(|| serde_json::to_vec(response).expect("JSON"));
            },
        );
    }
    let response = LazyCell::new(|| {
        let server = Server::with_rooms(1, 10);
        let before = server.head();
        server.say(0);
        server.sync(&server.person(1), &sync_since(Some(before)))
    });
    group.bench_function("write a sync of one message", |bencher| {
        let response = &*response;
        bencher.iter(|| serde_json::to_vec(response).expect("JSON"));
    });

    let events = size(100, 3);
    let server = LazyCell::new(|| {
        let server = Server::with_rooms(1, 10);
        for _ in 0..events {
            server.say(0);
        }
        server
    });
    group.throughput(Throughput::Elements(events));
    group.bench_function(format!("look up and write a page of {events} events"), |bencher| {
        let person = server.person(1);
        bencher.iter(|| page(&server, &person, usize::try_from(events).expect("a few")));
    });
    group.finish();
}
