//! What a burst of receipts costs: everyone in a large room reads one message after another.
//!
//! Prints how many records they become, what these take on the disk before and after a sweep and a
//! compaction, and how long it takes until all waiting members are woken. By default 10,000
//! members and 1,000,000 receipts; `LOGCABIN_BENCH_MEMBERS` and `LOGCABIN_BENCH_RECEIPTS` say
//! otherwise. The directory is made in `LOGCABIN_BENCH_DIR` or the current directory. `cargo bench
//! --bench receipts`.

mod common;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use logcabin::{
    clock::Clock,
    decide::{
        ephemeral::{Gather, SetReceipt, SetTyping},
        retention::SweepPolicy,
    },
    engine::Engine,
    erasure,
    log::{
        Log,
        archive::{ArchiveOptions, Archiver, archive_dir},
        store::{SledLog, SledOptions},
    },
    record::{Offset, Origin},
};
use ruma::{OwnedEventId, OwnedRoomId};

use common::{create_room, is_measuring, join, number, options, room_id, say, user_id};

/// Everyone reads up to `event_id`, at once.
async fn all_read(
    engine: &Arc<Engine>,
    room_id: &OwnedRoomId,
    event_id: &OwnedEventId,
    count: u64,
) {
    let mut reading = tokio::task::JoinSet::new();
    for reader in 0..count {
        let engine = Arc::clone(engine);
        let receipt = SetReceipt {
            room_id: room_id.clone(),
            user_id: user_id(reader),
            receipt_type: "m.read".to_owned(),
            event_id: event_id.clone(),
            thread_id: None,
            ts: 1_770_000_000_000,
        };
        reading.spawn(async move {
            engine.propose(Origin::server(), receipt).await.expect("receipts move").into_inner();
        });
    }
    while let Some(read) = reading.join_next().await {
        read.expect("no receipt panics");
    }
}

/// How long from a typing notice to the waking of the last of `waiting` members.
async fn wake(engine: &Arc<Engine>, room_id: &OwnedRoomId, waiting: u64) -> Duration {
    let mut listening = tokio::task::JoinSet::new();
    let (ready, mut all_ready) = tokio::sync::mpsc::channel::<()>(1);
    for member in 0..waiting {
        let (engine, ready) = (Arc::clone(engine), ready.clone());
        listening.spawn(async move {
            let member = user_id(member);
            let listener = engine.head().listen(&member);
            let woken = listener.woken();
            tokio::pin!(woken);
            woken.as_mut().enable();
            drop(ready);
            woken.await;
        });
    }
    drop(ready);
    let _ = all_ready.recv().await;
    let typing = SetTyping {
        room_id: room_id.clone(),
        user_id: user_id(0),
        until_ms: engine.clock().now_ms() + 30_000,
        only_if_until: None,
    };
    let stop = SetTyping { until_ms: 0, ..typing.clone() };
    let began = Instant::now();
    engine.propose(Origin::server(), typing).await.expect("members may type").into_inner();
    while listening.join_next().await.is_some() {}
    let took = began.elapsed();
    engine.propose(Origin::server(), stop).await.expect("members may stop").into_inner();
    took
}

fn directory_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

async fn measure(dir: &Path) {
    let (members, receipts) =
        (number("LOGCABIN_BENCH_MEMBERS", 10_000), number("LOGCABIN_BENCH_RECEIPTS", 1_000_000));
    let log = Arc::new(SledLog::open(SledOptions::new(dir)).expect("the log opens"));
    let as_log = Arc::clone(&log) as Arc<dyn Log>;
    let archive = ArchiveOptions::new(archive_dir(dir));
    let archiver = Archiver::start(archive.clone(), Arc::clone(&as_log)).expect("it starts");
    let options = options(Clock::system());
    let engine = Arc::new(Engine::open(as_log, options).await.expect("it opens"));
    let room_id = create_room(&engine, room_id(0), &user_id(0)).await;
    let mut joining = tokio::task::JoinSet::new();
    for member in 1..members {
        let (engine, room_id) = (Arc::clone(&engine), room_id.clone());
        joining.spawn(async move { join(&engine, &room_id, &user_id(member)).await });
    }
    while joining.join_next().await.is_some() {}
    let sizes = |when: &str| {
        println!(
            "{when}: log {:.1} MB on disk, archive {:.1} MB",
            log.disk_bytes().expect("the disk works") as f64 / 1e6,
            directory_bytes(&archive.dir) as f64 / 1e6
        );
    };
    sizes("before the receipts");

    let (before, began) = (engine.head().offset(), Instant::now());
    let rounds = receipts / members;
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let event_id = say(&engine, &room_id, &user_id(0), round).await;
        let began = Instant::now();
        all_read(&engine, &room_id, &event_id, members).await;
        slowest = slowest.max(began.elapsed());
    }
    let records = engine.head().offset().get() - before.get() - rounds;
    println!(
        "{} receipts of {members} members in {:.1} s: {records} records; all have read a message within {slowest:?}",
        rounds * members,
        began.elapsed().as_secs_f64()
    );
    let durable = engine.head().offset();
    archiver.archived().wait_for(|at| *at >= durable).await.expect("the archiver goes on");
    sizes("with the receipts");

    let room = engine.state().rooms.get(&room_id).expect("the room is there");
    let began = Instant::now();
    let none = room.receipts_between(engine.head().offset(), Offset::MAX).len();
    println!("receipts_between: {none} new of {members} in {:?}", began.elapsed());
    for waiting in [1, 100, members] {
        let took = wake(&engine, &room_id, waiting).await.saturating_sub(Gather::default().window);
        println!(
            "a typing notice wakes {waiting} of {members} within {took:?} (beside the window)"
        );
    }

    let began = Instant::now();
    let policy = SweepPolicy { redacted_after: None, ..SweepPolicy::at_once() };
    let swept = erasure::sweep(&engine, &policy, Offset::MAX).await.expect("the log takes writes");
    println!("swept {} records in {:?}", swept.superseded, began.elapsed());
    let began = Instant::now();
    let compacting = Arc::clone(&log);
    let compacted = tokio::task::spawn_blocking(move || compacting.compact(|| true));
    compacted.await.expect("no panic").expect("it compacts");
    println!("compacted in {:?}", began.elapsed());
    let last = engine.head().offset();
    archiver.erased().wait_for(|at| *at >= last).await.expect("the archiver goes on");
    sizes("after sweep and compaction");
    log.close();
    archiver.stop();
}

fn main() {
    // `cargo test --benches` runs this, too.
    if !is_measuring() {
        return;
    }
    let parent = std::env::var_os("LOGCABIN_BENCH_DIR").unwrap_or_else(|| ".".into());
    let directory = tempfile::tempdir_in(&parent).expect("a directory is made");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    runtime.block_on(measure(directory.path()));
}
