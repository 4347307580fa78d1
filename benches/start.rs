//! How long a start takes, and what it takes it from: the log is opened, then all of it is replayed, or the
//! newest snapshot is loaded. Also how long a snapshot takes to write, and what a record takes on the disk.
//!
//! The log is that of a server: rooms in which users talk, set names and read. It is made in
//! `LOGCABIN_BENCH_DIR` or the current directory, which takes minutes for a million records.
//! `LOGCABIN_BENCH_RECORDS` names other sizes than `100000,1000000`. Run with `cargo bench --bench start`.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use logcabin::{
    clock::Clock,
    decide::{
        account::{Met, Register},
        create_room::{CreateRoom, Preset},
        ephemeral::Gather,
        membership::{Change, ChangeMembership},
        send::SendEvent,
    },
    engine::{self, Engine, Options},
    log::{
        Log,
        sled::{SledLog, SledOptions},
    },
    record::{Offset, Origin, command::AccountKind},
    snapshot,
};
use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, RoomVersionId,
    events::TimelineEventType,
};
use tokio::runtime::Runtime;

/// One room for so many records.
const RECORDS_PER_ROOM: u64 = 2_000;
/// Members of each room.
const MEMBERS: usize = 5;
/// Messages that are under way at once.
const AT_ONCE: usize = 256;

fn main() {
    // `cargo test --benches` runs this, too.
    if !std::env::args().any(|argument| argument == "--bench") {
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
    let options = Options {
        server_name: "test".try_into().expect("a server name"),
        event_cache_bytes: 16 << 20,
        gather: Gather::default(),
        accounts: Default::default(),
        clock: Clock::system(),
    };
    let engine = Engine::open(Arc::clone(&log), options).await.expect("an engine");
    let users: Vec<_> = (0..MEMBERS).map(|number| user_id(&format!("user{number}"))).collect();
    for user_id in &users {
        let register = Register {
            user_id: user_id.clone(),
            kind: AccountKind::User,
            password: None,
            display_name: Some(user_id.localpart().to_owned()),
            login: None,
            met: Met::default(),
        };
        engine.propose(Origin::server(), register).await.expect("a user").into_inner();
    }
    let rooms =
        (0..(records / RECORDS_PER_ROOM).max(1)).map(|number| room(&engine, &users, number));
    let rooms = join_all(rooms).await;
    let mut sent = 0_usize;
    while engine.head().offset() < Offset::new(records) {
        let left = records - engine.head().offset().get();
        let messages = (0..AT_ONCE.min(usize::try_from(left).unwrap_or(AT_ONCE))).map(|_| {
            sent += 1;
            message(&engine, &rooms[sent % rooms.len()], &users[sent % MEMBERS], sent)
        });
        join_all(messages.collect::<Vec<_>>()).await;
    }
    let last = engine.head().offset().get();
    log.close();
    last
}

async fn room(engine: &Engine, users: &[OwnedUserId], number: u64) -> OwnedRoomId {
    let create = CreateRoom {
        room_id: format!("!room{number}:test").try_into().expect("a room id"),
        creator: users[0].clone(),
        version: RoomVersionId::V10,
        preset: Preset::PublicChat,
        creation_content: CanonicalJsonObject::new(),
        power_levels: CanonicalJsonObject::new(),
        initial_state: Vec::new(),
        name: Some(format!("Room {number}")),
        topic: None,
        alias: None,
        invite: Vec::new(),
        is_direct: false,
        public: false,
        ts: MilliSecondsSinceUnixEpoch::now(),
    };
    let room_id = engine.propose(Origin::server(), create).await.expect("a room").into_inner();
    for user_id in &users[1..] {
        let join = ChangeMembership {
            room_id: room_id.clone(),
            sender: user_id.clone(),
            target: user_id.clone(),
            change: Change::Join,
            reason: None,
            is_direct: false,
            third_party_signed: None,
            ts: MilliSecondsSinceUnixEpoch::now(),
        };
        drop(engine.propose(Origin::server(), join).await.expect("a member").into_inner());
    }
    room_id
}

async fn message(engine: &Engine, room_id: &OwnedRoomId, sender: &OwnedUserId, number: usize) {
    let text =
        format!("This is message {number} of those that are said here, and about as long as most.");
    let content = serde_json::json!({ "msgtype": "m.text", "body": text });
    let send = SendEvent {
        room_id: room_id.clone(),
        sender: sender.clone(),
        event_type: TimelineEventType::RoomMessage,
        state_key: None,
        content: serde_json::from_value(content).expect("canonical JSON"),
        redacts: None,
        transaction: None,
        ts: MilliSecondsSinceUnixEpoch::now(),
    };
    engine.propose(Origin::server(), send).await.expect("a message").into_inner();
}

fn user_id(name: &str) -> OwnedUserId {
    format!("@{name}:test").try_into().expect("a user id")
}
