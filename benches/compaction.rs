//! Disk space per record, before and after what is no longer needed is erased: receipts and
//! presence that newer ones superseded, messages to devices that arrived, and expired events.
//!
//! The log is made by the commands themselves, in the shares of a small server on which people
//! encrypt. It is made in `LOGCABIN_BENCH_DIR` or the current directory. `LOGCABIN_BENCH_RECORDS`
//! names another size than `100000`. Run with `cargo bench --bench compaction`.

mod common;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use logcabin::{
    clock::Clock,
    decide::retention::{Retention, SweepPolicy},
    engine::Engine,
    erasure,
    log::{
        Batch, Log,
        store::{SledLog, SledOptions},
    },
    record::{Command, NewRecord, Offset, Origin, Stream},
};
use ruma::{OwnedRoomId, OwnedUserId};
use tokio::runtime::Runtime;

use common::{create_room, is_measuring, options, register, room_id, size_of, user_id};

/// Records in one batch.
const BATCH: u64 = 500;

fn main() {
    // `cargo test --benches` runs this, too.
    if !is_measuring() {
        return;
    }
    let sizes = std::env::var("LOGCABIN_BENCH_RECORDS");
    let sizes = sizes.unwrap_or_else(|_| "100000".to_owned());
    let parent = std::env::var_os("LOGCABIN_BENCH_DIR").unwrap_or_else(|| ".".into());
    println!(
        "| records | on disk, each | after a sweep | compacted | and without old messages | sweep | compaction |"
    );
    println!("|---|---|---|---|---|---|---|");
    for size in sizes.split(',').filter_map(|size| size.trim().parse().ok()) {
        let directory = tempfile::tempdir_in(&parent).expect("a directory is made");
        Runtime::new().expect("a runtime starts").block_on(measure(directory.path(), size));
    }
}

async fn measure(dir: &Path, records: u64) {
    let log = Arc::new(SledLog::open(SledOptions::new(dir)).expect("the log opens"));
    let engine = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options(Clock::system()))
        .await
        .expect("an engine");
    fill(&engine, records).await;
    let records = engine.head().offset().get();
    let each = || size_of(&dir.join("log")) / records;
    let before = each();

    let (swept, took) = sweep(&engine, &SweepPolicy::at_once()).await;
    assert!(swept > 0, "something had done its work");
    let after_sweep = each();
    let compaction = compact(&log).await;
    let compacted = each();

    let rules = vec!["* * 0".parse().expect("a rule")];
    let retention = Arc::new(Retention { rules, ..Retention::default() });
    let policy = SweepPolicy { retention, ..SweepPolicy::at_once() };
    let (swept, _) = sweep(&engine, &policy).await;
    assert!(swept > 0, "messages had lived long enough");
    compact(&log).await;
    println!(
        "| {records} | {before} B | {after_sweep} B | {compacted} B | {} B | {took:.1?} | {compaction:.1?} |",
        each()
    );
    log.close();
}

async fn sweep(engine: &Engine, policy: &SweepPolicy) -> (u64, Duration) {
    let began = Instant::now();
    let swept = erasure::sweep(engine, policy, Offset::MAX).await.expect("a sweep");
    (swept.erased + swept.superseded, began.elapsed())
}

async fn compact(log: &Arc<SledLog>) -> Duration {
    let (log, began) = (Arc::clone(log), Instant::now());
    let compacting = tokio::task::spawn_blocking(move || log.compact(|| true));
    compacting.await.expect("no panic").expect("a compaction");
    began.elapsed()
}

/// Of ten records, three messages, three receipts, a presence, and two messages to devices of which
/// one is acknowledged at once.
async fn fill(engine: &Engine, records: u64) {
    let users: Vec<OwnedUserId> = (0..5).map(user_id).collect();
    for user_id in &users {
        register(engine, user_id).await;
    }
    let room_id = create_room(engine, room_id(0), &users[0]).await;
    while engine.head().offset() < Offset::new(records) {
        let first = engine.head().offset().get();
        let batch = (0..BATCH).map(|n| {
            let user = &users[usize::try_from(first + n).unwrap_or_default() % users.len()];
            one(n % 10, first + n + 1, user, &room_id)
        });
        let batch = Batch { expect: Vec::new(), records: batch.collect() };
        engine.log().append(batch).await.expect("an append");
    }
}

fn one(which: u64, number: u64, user: &OwnedUserId, room_id: &OwnedRoomId) -> NewRecord {
    let cipher = "A".repeat(700);
    let (stream, kind, payload) = match which {
        0..=2 => (
            Stream::room(room_id),
            "room.event",
            format!(
                r#"{{"room_id":"{room_id}","event_id":"$event{number}","pdu":{{"auth_events":[],"content":{{"algorithm":"m.megolm.v1.aes-sha2","ciphertext":"{cipher}"}},"depth":{number},"hashes":{{}},"origin_server_ts":{number},"prev_events":[],"room_id":"{room_id}","sender":"{user}","signatures":{{}},"type":"m.room.encrypted"}}}}"#
            ),
        ),
        3..=5 => (
            Stream::ephemeral(room_id),
            "room.receipt",
            format!(
                r#"{{"room_id":"{room_id}","receipts":[{{"user_id":"{user}","receipt_type":"m.read","event_id":"$event{number}","ts":{number}}}]}}"#
            ),
        ),
        6 => (
            Stream::presence(user),
            "presence.set",
            format!(
                r#"{{"user_id":"{user}","presence":"online","currently_active":true,"last_active_ms":{number}}}"#
            ),
        ),
        7 | 8 => (
            Stream::user(user),
            "to_device.send",
            format!(
                r#"{{"sender":"{user}","type":"m.room.encrypted","messages":{{"@user0:test":{{"DEVICE":{{"ciphertext":"{cipher}"}}}}}}}}"#
            ),
        ),
        _ => (
            Stream::user(user),
            "to_device.ack",
            format!(r#"{{"user_id":"@user0:test","device_id":"DEVICE","up_to":{number}}}"#),
        ),
    };
    let command = Command::decode(kind, version(kind), payload.as_bytes()).expect("a command");
    NewRecord::new(stream, Origin::server(), &command)
}

fn version(kind: &str) -> u16 {
    let mut kinds = logcabin::record::command::KINDS.iter();
    kinds.find(|of| of.name == kind).map_or(1, |of| of.version)
}
