//! Kills an appending process at random moments, and checks what it left behind.
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
            ArchiveError, ArchiveOptions, ArchiveReader, Archiver, LAG, archive_dir, verify_archive,
        },
        store::{SledLog, SledOptions, log_dir},
        verify,
    },
    record::{Class, NewRecord, Offset, Origin, Stream, command::LogErase},
    restore::{self, Request, Restored},
};

const DIRECTORY: &str = "LOGCABIN_CRASH_DIRECTORY";
const WRITERS: &str = "LOGCABIN_CRASH_WRITERS";
const ERASES: &str = "LOGCABIN_CRASH_ERASES";

/// The arguments that make this binary run `child`.
const CHILD: [&str; 5] = ["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"];

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
fn an_archive_restores_all_but_the_last_second() {
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
    let restored = restored(&archive, directory.path());
    let log = SledLog::open(SledOptions::new(directory.path())).unwrap();
    verify(&log, |_| ()).unwrap();
    let mut kept = log.read(Offset::new(1), usize::MAX).unwrap();
    // The restored records are followed by those of the restore itself.
    let new = kept.split_off(usize::try_from(restored.records).unwrap());
    let kinds: Vec<_> = new.iter().map(|record| &*record.header.kind).collect();
    assert_eq!(kinds, ["server.restore", "keys.drop"]);
    assert!(kept == records[..kept.len()], "the restored records are not the log's first ones");
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

/// The log in `data_dir`, rebuilt from the archive.
fn restored(archive: &Path, data_dir: &Path) -> Restored {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let request = Request {
        from: restore::RestoreSource::Path(archive.to_owned()),
        to: None,
        data_dir: data_dir.to_owned(),
        archive_dir: None,
        drop_keys: false,
        dry_run: false,
    };
    runtime.block_on(restore::restore(&request)).unwrap()
}

/// With one writer, each append is one group: what is written to the data file, and a sync of that
/// file, must both lie between two acknowledgements, in this order.
#[test]
fn every_acknowledgement_follows_a_sync_of_the_written_data() {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: there is no strace");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let mut child = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=pwrite64,fdatasync,write", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(CHILD)
        .env(DIRECTORY, directory.path())
        .env(WRITERS, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let acknowledged = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .filter(|line| line.starts_with("ack "))
        .take(200)
        .count();
    child.wait().unwrap();
    if acknowledged == 0 {
        eprintln!("skipped: strace may not trace here");
        return;
    }
    let (mut written, mut synced, mut checked) = (false, false, 0);
    // The thread whose sync has begun and not ended: strace writes such a call as two lines.
    let mut syncing = None;
    for line in std::fs::read_to_string(&trace).unwrap().lines() {
        let on_data_file = line.contains("/log/tails/") && line.contains("/db>");
        let thread = line.split_whitespace().next();
        if on_data_file && line.contains("pwrite64(") {
            (written, synced) = (true, false);
        } else if on_data_file && line.contains("fdatasync(") && !line.contains(" = -1") {
            synced = !line.contains("<unfinished");
            syncing = thread.filter(|_| !synced);
        } else if line.contains("fdatasync resumed") && syncing.is_some() && thread == syncing {
            synced = line.contains(" = 0");
            syncing = None;
        } else if line.contains("\"ack ") {
            assert!(written && synced, "acknowledged without a sync: {line}");
            (written, synced) = (false, false);
            checked += 1;
        }
    }
    println!("{checked} acknowledgements, each after its sync");
    assert!(checked >= acknowledged);
}

/// Killed again and again while it erases, compacts and rewrites archive segments.
#[test]
fn a_process_killed_while_erasing_leaves_an_intact_log_and_archive() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive_dir(directory.path());
    let (mut acknowledged, mut compacted) = (0, Offset::ZERO);
    for round in 0..rounds() {
        acknowledged =
            acknowledged.max(run_and_kill_with(directory.path(), &[(ERASES, "1"), (WRITERS, "2")]));
        let log = SledLog::open(SledOptions::new(directory.path())).unwrap();
        let verified = verify(&log, |_| ()).unwrap();
        assert!(
            verified.last.get() >= acknowledged,
            "round {round}: {acknowledged} was acknowledged"
        );
        compacted = compacted.max(log.compacted().unwrap());
        let archived = verify_archive(&archive, |_| ()).unwrap();
        println!(
            "round {round}: {acknowledged} acknowledged, {} erased, compacted up to {compacted}, \
             archived up to {}",
            verified.erased, archived.last
        );
    }
    assert!(compacted > Offset::ZERO, "no child lived long enough to compact");
    // Rebuilt from the archive, it is the same log without what was erased.
    std::fs::remove_dir_all(log_dir(directory.path())).unwrap();
    restored(&archive, directory.path());
    let log = SledLog::open(SledOptions::new(directory.path())).unwrap();
    assert!(verify(&log, |_| ()).unwrap().erased > 0);
}

/// Erases what it appends, and compacts, as fast as it can.
fn erase_for_ever(
    log: &Arc<SledLog>,
    mut archived: tokio::sync::watch::Receiver<Offset>,
    tasks: &mut tokio::task::JoinSet<()>,
) {
    let passing =
        |text: &str| NewRecord { ephemeral: true, payload: text.to_owned().into(), ..record(0) };
    let erasing = Arc::clone(log);
    tasks.spawn(async move {
        for number in 1.. {
            let records =
                (0..20).map(|_| passing(r#"{"user_id":"@u:e","room_id":"!r:e"}"#)).collect();
            let appended = erasing.append(Batch { expect: vec![], records }).await.unwrap();
            // As in a server, the archive has the whole record before the log erases it.
            archived.wait_for(|archived| *archived >= appended.last).await.unwrap();
            let erase = LogErase {
                superseded: vec![(appended.first, appended.last)],
                ..LogErase::default()
            };
            let new = NewRecord::new(Stream::server(), Origin::server(), &erase.into());
            erasing.append(Batch { expect: vec![], records: vec![new] }).await.unwrap();
            // Some before a compaction begins, and some while one is under way.
            let pause = if number % 3 == 0 { 400 } else { 20 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    });
    let compacting = Arc::clone(log);
    std::thread::spawn(move || {
        loop {
            let _ = compacting.compact(|| true);
        }
    });
}

/// Runs a child for a random time; returns the last offset that it acknowledged.
fn run_and_kill(directory: &Path) -> u64 {
    run_and_kill_with(directory, &[])
}

fn run_and_kill_with(directory: &Path, settings: &[(&str, &str)]) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(CHILD)
        .env(DIRECTORY, directory)
        .envs(settings.iter().copied())
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
    let count = std::env::var(WRITERS).map_or(16, |count| count.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    // Some sealing, and several volumes, in the life of a child.
    let options =
        SledOptions { seal_records: 2_000, volume_bytes: 1 << 18, ..SledOptions::new(&directory) };
    let sled_log = Arc::new(SledLog::open(options).unwrap());
    let log = Arc::clone(&sled_log) as Arc<dyn Log>;
    let options = ArchiveOptions {
        // Several segments in the life of a child.
        segment_bytes: 1 << 20,
        erase_quiet: Duration::ZERO,
        ..ArchiveOptions::new(archive_dir(Path::new(&directory)))
    };
    let archiver = match Archiver::start(options, Arc::clone(&log)) {
        Err(ArchiveError::Ahead { .. }) => panic!("the log lost what was archived"),
        started => started.unwrap(),
    };
    log.start(StreamHeads::new(), Box::new(|_| ()));
    runtime.block_on(async {
        let mut writers = tokio::task::JoinSet::new();
        if std::env::var_os(ERASES).is_some() {
            erase_for_ever(&sled_log, archiver.archived(), &mut writers);
        }
        for writer in 0..count {
            let log = Arc::clone(&log);
            writers.spawn(async move {
                for number in 0.. {
                    let records = (0..=number % 3).map(|_| record(writer)).collect();
                    let appended = log.append(Batch { expect: vec![], records }).await.unwrap();
                    // One write to the pipe: what the parent reads was acknowledged.
                    let line = format!("ack {}\n", appended.last);
                    if std::io::stdout().write_all(line.as_bytes()).is_err() {
                        // The parent has read enough.
                        std::process::exit(0);
                    }
                }
            });
        }
        // Ends even if the parent is gone.
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
fn an_archive_is_readable_after_its_archiver_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    run_and_kill(directory.path());
    let reader = ArchiveReader::open(&archive_dir(directory.path())).unwrap();
    for record in reader.records(Offset::ZERO) {
        record.unwrap();
    }
}
