//! How long a start takes, and what it takes it from: the log is opened, then all of it is replayed, or the
//! newest snapshot is loaded. Also how long a snapshot takes to write, and what a record takes on the disk.
//!
//! The log is that of a server: rooms in which users talk, set names and read. It is made in
//! `LOGCABIN_BENCH_DIR` or the current directory, which takes minutes for a million records.
//! `LOGCABIN_BENCH_RECORDS` names other sizes than `100000,1000000`. Run with `cargo bench --bench start`.

mod common;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use logcabin::{
    clock::Clock,
    engine::{self, Engine},
    log::{
        Log,
        sled::{SledLog, SledOptions},
    },
    record::Offset,
    snapshot,
};
use ruma::{OwnedRoomId, OwnedUserId};
use tokio::runtime::Runtime;

use common::{create_room, is_measuring, join, options, register, room_id, say, user_id};

/// One room for so many records.
const RECORDS_PER_ROOM: u64 = 2_000;
/// Members of each room.
const MEMBERS: u64 = 5;
/// Messages that are under way at once.
const AT_ONCE: usize = 256;

fn main() {
    // `cargo test --benches` runs this, too.
    if !is_measuring() {
        return;
    }
    let sizes = std::env::var("LOGCABIN_BENCH_RECORDS");
    let sizes = sizes.unwrap_or_else(|_| "100000,1000000".to_owned());
    let parent = std::env::var_os("LOGCABIN_BENCH_DIR").unwrap_or_else(|| ".".into());
    println!(
        "| records | on disk, each | open the log | replay | records/s | write a snapshot | its size | load it |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for size in sizes.split(',').filter_map(|size| size.trim().parse().ok()) {
        let directory = tempfile::tempdir_in(&parent).expect("a directory is made");
        let records =
            Runtime::new().expect("a runtime starts").block_on(make(directory.path(), size));
        measure(directory.path(), records);
    }
}

fn measure(dir: &Path, records: u64) {
    let snapshots = snapshot::directory(dir);
    let (log, opened) = timed(|| open(dir));
    let ((state, _), replayed) = timed(|| engine::replay(&*log, |_, _| {}).expect("a replay"));
    let (header, written) =
        timed(|| snapshot::write(&snapshots, &*log, &state).expect("a snapshot"));
    let digest = state.digest();
    drop(state);
    let ((state, from), loaded) = timed(|| snapshot::recall(&snapshots, &*log).expect("a start"));
    assert_eq!(from.snapshot.map(|from| from.offset), Some(Offset::new(records)));
    assert_eq!(state.digest(), digest, "the snapshot is what the log adds up to");
    let rate = records as f64 / replayed.as_secs_f64();
    println!(
        "| {records} | {} B | {opened:.0?} | {replayed:.1?} | {rate:.0} | {written:.0?} | {:.1} MiB | {loaded:.0?} |",
        size_of(&dir.join("log")) / records,
        header.bytes as f64 / f64::from(1 << 20),
    );
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    (work(), began.elapsed())
}

fn open(dir: &Path) -> Arc<dyn Log> {
    Arc::new(SledLog::open(SledOptions::new(dir)).expect("the log opens"))
}

fn size_of(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    entries
        .map(|entry| entry.path())
        .map(|path| if path.is_dir() { size_of(&path) } else { size(&path) })
        .sum()
}

/// Makes the log of a server; gives how many records it has.
async fn make(dir: &Path, records: u64) -> u64 {
    let log = open(dir);
    let engine = Engine::open(Arc::clone(&log), options(Clock::system())).await.expect("an engine");
    let users: Vec<_> = (0..MEMBERS).map(user_id).collect();
    for user_id in &users {
        register(&engine, user_id).await;
    }
    let rooms =
        (0..(records / RECORDS_PER_ROOM).max(1)).map(|number| room(&engine, &users, number));
    let rooms = join_all(rooms).await;
    let mut sent = 0_usize;
    while engine.head().offset() < Offset::new(records) {
        let left = records - engine.head().offset().get();
        let messages = (0..AT_ONCE.min(usize::try_from(left).unwrap_or(AT_ONCE))).map(|_| {
            sent += 1;
            say(&engine, &rooms[sent % rooms.len()], &users[sent % users.len()], sent as u64)
        });
        join_all(messages.collect::<Vec<_>>()).await;
    }
    let last = engine.head().offset().get();
    log.close();
    last
}

async fn room(engine: &Engine, users: &[OwnedUserId], number: u64) -> OwnedRoomId {
    let room_id = create_room(engine, room_id(number), &users[0]).await;
    for user_id in &users[1..] {
        join(engine, &room_id, user_id).await;
    }
    room_id
}
