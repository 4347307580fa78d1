//! What it costs to ask for the past: the state of a room as of a random moment, where the state changed very often.
//!
//! By default 100,000 changes of 1,000 keys; `LOGCABIN_BENCH_CHANGES` and `LOGCABIN_BENCH_KEYS` say otherwise. The log
//! is in memory: what is measured is the projections, and the reading of bodies through their cache.
//! `cargo bench --bench as_of`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use logcabin::{
    clock::{Clock, random_bytes},
    decide::{
        create_room::{CreateRoom, Preset},
        ephemeral::Gather,
        send::SendEvent,
    },
    engine::{Engine, Options},
    log::{Log, memory::MemoryLog},
    proof::{Asked, Prover, checkpoint},
    record::{Offset, Origin},
};
use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, RoomVersionId,
    events::{StateEventType, TimelineEventType},
};
use tokio::runtime::Runtime;

/// Events that are under way at once.
const AT_ONCE: u64 = 256;
/// How often each question is asked.
const TIMES: usize = 1_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    // `cargo test --benches` runs this, too.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let changes = number("LOGCABIN_BENCH_CHANGES", 100_000);
    let keys = number("LOGCABIN_BENCH_KEYS", 1_000);
    let runtime = Runtime::new().expect("a runtime starts");
    let clock = Clock::system();
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
    let options = Options {
        server_name: "test".try_into().expect("a server name"),
        event_cache_bytes: 64 << 20,
        gather: Gather::default(),
        accounts: Default::default(),
        clock,
    };
    let engine = runtime.block_on(Engine::open(Arc::clone(&log), options)).expect("an engine");
    let ann: OwnedUserId = "@ann:test".try_into().expect("a user id");
    let began = Instant::now();
    let room_id = runtime.block_on(room(&engine, &ann));
    let mut sent = 0;
    while sent < changes {
        let next = (sent + AT_ONCE).min(changes);
        let events =
            (sent..next).map(|number| change(&engine, &room_id, &ann, number % keys, number));
        runtime.block_on(join_all(events));
        sent = next;
    }
    println!("{changes} changes of {keys} keys, made in {:.1?}\n", began.elapsed());

    let room = engine.state().rooms.get(&room_id).expect("the room");
    let end = engine.head().offset();
    let at = || {
        let random = u64::from_be_bytes(random_bytes());
        Offset::new(room.created.get() + random % (end.get() - room.created.get()))
    };
    let key = || format!("key{}", u64::from_be_bytes(random_bytes()) % keys);
    let event_type = StateEventType::from("org.example.state");
    println!("| as of a random moment | median | 99 of 100 |");
    println!("|---|---|---|");
    measure("one key of the state", || {
        let _ = std::hint::black_box(room.state_event(&event_type, &key(), at()));
    });
    measure("which records are the state", || drop(room.full_state(at())));
    measure("the state with its bodies", || {
        drop(engine.events().get_all(&room.full_state(at())).expect("bodies"));
    });
    measure("what changed in 100 records", || {
        let from = at();
        drop(room.state_delta(from, Offset::new(from.get() + 100)));
    });
    runtime.block_on(checkpoint(&engine, Origin::server())).expect("a checkpoint");
    let server = engine.state().server().expect("an identity");
    measure("a proof that a record is in the log", || {
        let state = engine.state();
        let mut prover = Prover::new(&state.tree, &*log, &server);
        let asked = Asked::Inclusion { offset: at(), payload: false };
        drop(prover.answer(asked).expect("a proof"));
    });
}

fn measure(what: &str, mut ask: impl FnMut()) {
    let mut took: Vec<Duration> = (0..TIMES)
        .map(|_| {
            let began = Instant::now();
            ask();
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    println!("| {what} | {:.1?} | {:.1?} |", took[TIMES / 2], took[TIMES * 99 / 100]);
}

async fn room(engine: &Engine, creator: &OwnedUserId) -> OwnedRoomId {
    let create = CreateRoom {
        room_id: "!room:test".try_into().expect("a room id"),
        creator: creator.clone(),
        version: RoomVersionId::V10,
        preset: Preset::PublicChat,
        creation_content: CanonicalJsonObject::new(),
        power_levels: CanonicalJsonObject::new(),
        initial_state: Vec::new(),
        name: None,
        topic: None,
        alias: None,
        invite: Vec::new(),
        is_direct: false,
        public: false,
        ts: MilliSecondsSinceUnixEpoch::now(),
    };
    engine.propose(Origin::server(), create).await.expect("a room").into_inner()
}

async fn change(
    engine: &Engine,
    room_id: &OwnedRoomId,
    sender: &OwnedUserId,
    key: u64,
    number: u64,
) {
    let content = serde_json::json!({ "number": number, "what": "what holds under this key" });
    let send = SendEvent {
        room_id: room_id.clone(),
        sender: sender.clone(),
        event_type: TimelineEventType::from("org.example.state"),
        state_key: Some(format!("key{key}")),
        content: serde_json::from_value(content).expect("canonical JSON"),
        redacts: None,
        transaction: None,
        ts: MilliSecondsSinceUnixEpoch::now(),
    };
    engine.propose(Origin::server(), send).await.expect("a change").into_inner();
}
