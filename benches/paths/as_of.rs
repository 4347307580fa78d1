//! The past of a room with 100,000 changes of its state, at random moments. The log is in memory:
//! what is measured is the projections, and the reading of bodies through their cache.

use std::{
    cell::{Cell, LazyCell},
    sync::Arc,
};

use criterion::Criterion;
use futures_util::future::join_all;
use logcabin::{
    proof::{ProofRequest, Prover, checkpoint},
    record::{Offset, Origin},
    state::Room,
};

use crate::{
    common::{Server, room_id, set_state, state_type, user_id},
    size,
};

/// Events that are under way at once.
const AT_ONCE: u64 = 256;

struct Past {
    server: Server,
    room: Arc<Room>,
    keys: u64,
    random: Cell<u64>,
}

impl Past {
    fn new() -> Self {
        let server = Server::with_rooms(1, 1);
        let (changes, keys) = (size(100_000, 50), size(1_000, 5));
        let (engine, room, sender) = (&server.engine, room_id(0), user_id(0));
        server.wait(async {
            for first in (0..changes).step_by(256) {
                let numbers = first..(first + AT_ONCE).min(changes);
                let key = |number| format!("key{}", number % keys);
                let set = |number| set_state(engine, &room, &sender, key(number), number);
                join_all(numbers.map(set)).await;
            }
            checkpoint(engine, Origin::server()).await.expect("a checkpoint");
        });
        let room = server.room(0);
        Self { server, room, keys, random: Cell::new(1) }
    }

    /// Another number each time, the same in each run (xorshift).
    fn random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }

    fn moment(&self) -> Offset {
        let begin = self.room.created.get();
        Offset::new(begin + self.random() % (self.server.head().get() - begin))
    }
}

pub(crate) fn benches(criterion: &mut Criterion) {
    let past = LazyCell::new(Past::new);
    let mut group = criterion.benchmark_group("as of a random moment");
    let event_type = state_type();
    group.bench_function("one key of the state", |bencher| {
        let past = &*past;
        bencher.iter(|| {
            let key = format!("key{}", past.random() % past.keys);
            past.room.state_event(&event_type, &key, past.moment())
        });
    });
    group.bench_function("which records are the state", |bencher| {
        let past = &*past;
        bencher.iter(|| past.room.full_state(past.moment()));
    });
    group.bench_function("the state with its bodies", |bencher| {
        let past = &*past;
        let events = past.server.engine.events();
        bencher.iter(|| events.get_all(&past.room.full_state(past.moment())).expect("bodies"));
    });
    group.bench_function("what changed in 100 records", |bencher| {
        let past = &*past;
        bencher.iter(|| {
            let from = past.moment();
            past.room.state_delta(from, Offset::new(from.get() + 100))
        });
    });
    group.bench_function("a proof that a record is in the log", |bencher| {
        let past = &*past;
        let (state, log) = (past.server.engine.state(), past.server.engine.log());
        let server = state.server().expect("an identity");
        bencher.iter(|| {
            let asked = ProofRequest::Inclusion { offset: past.moment(), payload: false };
            Prover::new(&state.tree, &**log, &server).answer(asked).expect("a proof")
        });
    });
    group.finish();
}
