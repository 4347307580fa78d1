//! Filters: read once for each request, and asked about each event that might be wanted.

use std::{cell::LazyCell, hint::black_box};

use criterion::{Criterion, Throughput};
use logcabin::view::filter::{EventFilter, Filter};

use crate::common::Server;

/// The filter of a client that wants only messages.
const PICKY: &str = r#"{
    "types": ["m.room.message", "m.room.encrypted", "m.room.name", "org.example.*", "m.call.*"],
    "not_senders": ["@user7:test", "@user8:test"],
    "not_rooms": ["!other:test"]
}"#;

pub(crate) fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("filter");
    let whole = format!(
        r#"{{ "presence": {{ "not_types": ["*"] }},
              "room": {{ "timeline": {PICKY}, "state": {{ "lazy_load_members": true }} }} }}"#
    );
    group.bench_function("read", |bencher| {
        bencher.iter(|| Filter::parse(black_box(&whole)).expect("a filter"));
    });
    let server = LazyCell::new(|| Server::with_rooms(1, 3));
    for (name, filter) in [("open", "{}"), ("picky", PICKY)] {
        let filter = EventFilter::parse(filter).expect("a filter");
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("one event, {name}"), |bencher| {
            let (room, at) = (server.room(0), server.head());
            let event = server.engine.events().get(at).expect("the log is read");
            let event = event.expect("the last record is a message");
            bencher.iter(|| filter.matches(black_box(&room), black_box(&event), at));
        });
    }
    group.finish();
}
