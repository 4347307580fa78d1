//! Kills a process that appends, at random moments, and looks at what it left behind.
//!
//! The child is this test binary itself, asked to run the ignored "test" `child` in a directory. It
//! prints every acknowledged append, is killed with SIGKILL, and leaves the checks to the parent.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use logcabin::{
    clock::random_bytes,
    log::{
        Batch, Log, StreamHeads,
        archive::{
            ArchiveError, ArchiveOptions, ArchiveReader, Archiver, LAG, archive_dir,
            restore_from_archive,
        },
        sled::{SledLog, SledOptions, log_dir},
        verify,
    },
    record::{Class, NewRecord, Offset, Origin, Stream},
};

const DIRECTORY: &str = "LOGCABIN_CRASH_DIRECTORY";
const WRITERS: usize = 16;

/// `LOGCABIN_CRASH_ROUNDS` asks for more.
fn rounds() -> u32 {
    std::env::var("LOGCABIN_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 0..rounds() {
        let before = acknowledged;
        acknowledged = acknowledged.max(run_and_kill(directory.path()));
        let log = SledLog::open(SledOptions::new(directory.path())).unwrap();
        let verified = verify(&log, |_| ()).unwrap();
        assert!(
            verified.last.get() >= acknowledged,
            "round {round}: {acknowledged} was acknowledged, the log ends at {}",
            verified.last
        );
        println!(
            "round {round}: {before} to {acknowledged} acknowledged, the log ends at {}",
            verified.last
        );
    }
    assert!(acknowledged > 0, "no child lived long enough to append");
}

#[test]
fn an_archive_rebuilds_all_but_the_last_second() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for _ in 0..3 {
        acknowledged = acknowledged.max(run_and_kill(directory.path()));
    }
    let (records, times) = {
        let log = SledLog::open(SledOptions::new(directory.path())).unwrap();
        let records = log.read(Offset::new(1), usize::MAX).unwrap();
        let times: Vec<u64> = records.iter().map(|record| record.header.time_ms).collect();
        (records, times)
    };
    std::fs::remove_dir_all(log_dir(directory.path())).unwrap();

    let archive = archive_dir(directory.path());
    let restored = restore_from_archive(&archive, directory.path()).unwrap();
    let log = SledLog::open(SledOptions::new(directory.path())).unwrap();
    verify(&log, |_| ()).unwrap();
    let kept = log.read(Offset::new(1), usize::MAX).unwrap();
    assert_eq!(kept, records[..kept.len()]);
    assert_eq!(kept.len() as u64, restored.records);
    // Machines that run tests are busy: twice the stated lag.
    let window = 2 * LAG.as_millis() as u64;
    let lost = times[kept.len()..].first().map_or(0, |first| times.last().unwrap() - first);
    println!(
        "{} of {} records restored, the last {lost} ms are missing",
        kept.len(),
        records.len()
    );
    assert!(lost <= window, "{lost} ms are missing; {restored:?}");
    assert!(acknowledged > 0);
}

/// Runs a child for a random time; gives the last offset it said was acknowledged.
fn run_and_kill(directory: &Path) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let acknowledged = |line: String| line.strip_prefix("ack ")?.parse::<u64>().ok();
        output.lines().map_while(Result::ok).filter_map(acknowledged).max().unwrap_or(0)
    });
    let millis = 200 + u64::from(u16::from_be_bytes(random_bytes())) % 1_500;
    std::thread::sleep(Duration::from_millis(millis));
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

#[test]
#[ignore = "run by the tests above, as the process that is killed"]
fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let log: Arc<dyn Log> = Arc::new(SledLog::open(SledOptions::new(&directory)).unwrap());
    let options = ArchiveOptions {
        // Several segments in the life of a child.
        segment_bytes: 1 << 20,
        ..ArchiveOptions::new(archive_dir(Path::new(&directory)))
    };
    let _archiver = match Archiver::start(options, Arc::clone(&log)) {
        Err(ArchiveError::Ahead { .. }) => panic!("the log lost what was archived"),
        started => started.unwrap(),
    };
    log.start(StreamHeads::new(), Box::new(|_| ()));
    runtime.block_on(async {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let log = Arc::clone(&log);
            writers.spawn(async move {
                for number in 0.. {
                    let records = (0..=number % 3).map(|_| record(writer)).collect();
                    let appended = log.append(Batch { expect: vec![], records }).await.unwrap();
                    // One write to the pipe: what the parent reads was acknowledged.
                    let line = format!("ack {}\n", appended.last);
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            });
        }
        // Should the parent be gone, so is this.
        let end = Instant::now() + Duration::from_secs(30);
        tokio::time::sleep_until(end.into()).await;
    });
}

fn record(writer: usize) -> NewRecord {
    let payload = format!(
        r#"{{"user_id":"@u{writer}:example.org","room_id":"!r:example.org","filler":"{:0600}"}}"#,
        writer
    );
    NewRecord {
        stream: Stream::from_name("room/!r:example.org"),
        kind: "room.forget",
        version: 1,
        class: Class::Rewindable,
        ephemeral: false,
        origin: Origin::server(),
        payload: payload.into(),
    }
}

#[test]
fn an_archive_reads_while_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    run_and_kill(directory.path());
    let reader = ArchiveReader::open(&archive_dir(directory.path())).unwrap();
    for record in reader.records(Offset::ZERO) {
        record.unwrap();
    }
}
