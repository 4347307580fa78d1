//! How long a start takes: opening the log, then replaying all of it or loading the newest
//! snapshot. Also how long a snapshot takes to write, and the disk space per record.
//!
//! The log is that of a server: rooms in which users talk. Each room and its first message are made
//! as a server makes them; the messages that follow are copies of that one with invalid hashes and
//! signatures, which a start does not check. Making a million records takes a minute. The log is
//! made in the current directory and removed afterwards, or in `LOGCABIN_BENCH_DIR`, where it stays
//! for the next time. `LOGCABIN_BENCH_RECORDS` names other sizes than `100000,1000000`. Run with
//! `cargo bench --bench start`.

mod common;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use futures_util::future::join_all;
use logcabin::{
    clock::Clock,
    engine::{self, Engine},
    log::{
        Batch, Log,
        store::{SledLog, SledOptions},
    },
    record::{Command, NewRecord, Offset, Origin, Stream, command::RoomEvent},
    snapshot,
};
use ruma::{OwnedRoomId, OwnedUserId, UserId};
use serde_json::{Map, Value, value::to_raw_value};
use tokio::runtime::Runtime;

use common::{
    create_room, is_measuring, join, options, register, room_id, say, size_of, text, user_id,
};

/// Records for each room.
const RECORDS_PER_ROOM: u64 = 2_000;
/// Members of each room.
const MEMBERS: u64 = 5;
/// Messages that are written at once.
const AT_ONCE: u64 = 256;

fn main() {
    // `cargo test --benches` runs this, too.
    if !is_measuring() {
        return;
    }
    let sizes = std::env::var("LOGCABIN_BENCH_RECORDS");
    let sizes = sizes.unwrap_or_else(|_| "100000,1000000".to_owned());
    let kept = std::env::var_os("LOGCABIN_BENCH_DIR").map(PathBuf::from);
    let runtime = Runtime::new().expect("a runtime starts");
    println!(
        "| records | on disk, each | open the log | replay | records/s | write a snapshot | its size | load it |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for size in sizes.split(',').filter_map(|size| size.trim().parse().ok()) {
        let temporary = tempfile::tempdir_in(".").expect("a directory is made");
        let directory = match &kept {
            Some(kept) => kept.join(format!("start-{size}")),
            None => temporary.path().to_owned(),
        };
        let made = directory.join("made");
        if !made.exists() {
            runtime.block_on(make(&directory, size));
            std::fs::write(made, []).expect("a file is written");
        }
        measure(&directory);
    }
}

fn measure(dir: &Path) {
    let snapshots = snapshot::directory(dir);
    let (log, opened) = timed(|| open(dir));
    let records = log.durable().borrow().get();
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

/// Makes the log of a server.
async fn make(dir: &Path, records: u64) {
    let log = open(dir);
    let engine = Engine::open(Arc::clone(&log), options(Clock::system())).await.expect("an engine");
    let users: Vec<_> = (0..MEMBERS).map(user_id).collect();
    for user_id in &users {
        register(&engine, user_id).await;
    }
    let rooms =
        (0..(records / RECORDS_PER_ROOM).max(1)).map(|number| Talk::begin(&engine, &users, number));
    let rooms = join_all(rooms).await;
    let mut number = 0;
    while engine.head().offset() < Offset::new(records) {
        let left = records - engine.head().offset().get();
        let batch = Batch {
            expect: Vec::new(),
            records: (0..left.min(AT_ONCE))
                .map(|_| {
                    number += 1;
                    let talk = &rooms[usize::try_from(number).expect("a number") % rooms.len()];
                    talk.message(
                        &users[usize::try_from(number / 7).expect("a number") % users.len()],
                        number,
                    )
                })
                .collect(),
        };
        log.append(batch).await.expect("messages");
    }
    log.close();
}

/// A room in which users talk.
struct Talk {
    room_id: OwnedRoomId,
    /// The first message.
    first: RoomEvent,
    pdu: Value,
}

impl Talk {
    async fn begin(engine: &Engine, users: &[OwnedUserId], number: u64) -> Self {
        let room_id = create_room(engine, room_id(number), &users[0]).await;
        for user_id in &users[1..] {
            join(engine, &room_id, user_id).await;
        }
        let event_id = say(engine, &room_id, &users[0], number).await;
        let state = engine.state();
        let event = engine.events().find(&state, &event_id).expect("a log").expect("a message");
        let record = engine.log().get(event.offset).expect("a log").expect("a record");
        let Ok(Some(Command::RoomEvent(first))) = record.command() else { panic!("no message") };
        let pdu = serde_json::from_str(first.pdu.get()).expect("an event");
        Self { room_id, first, pdu }
    }

    /// A message after the first.
    fn message(&self, sender: &UserId, number: u64) -> NewRecord {
        let random = |what: &str| *blake3::hash(format!("{what} {number}").as_bytes()).as_bytes();
        let mut pdu = self.pdu.clone();
        pdu["content"] = text(number);
        pdu["depth"] = (20 + number).into();
        pdu["hashes"]["sha256"] = STANDARD_NO_PAD.encode(random("hash")).into();
        pdu["sender"] = sender.as_str().into();
        for signature in
            pdu["signatures"]["test"].as_object_mut().into_iter().flat_map(Map::values_mut)
        {
            *signature = STANDARD_NO_PAD.encode([random("one"), random("two")].concat()).into();
        }
        let event_id = format!("${}", URL_SAFE_NO_PAD.encode(random("id")));
        let event = RoomEvent {
            event_id: event_id.try_into().expect("an event id"),
            pdu: to_raw_value(&pdu).expect("JSON"),
            ..self.first.clone()
        };
        NewRecord::new(Stream::room(&self.room_id), Origin::server(), &Command::RoomEvent(event))
    }
}
