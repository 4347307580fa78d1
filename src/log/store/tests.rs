//! The log in sled and volumes: opened, truncated, damaged and killed.

#[path = "../../../tests/contents/mod.rs"]
mod contents;

use contents::files_with;

use super::*;
use crate::{
    MAX_PAYLOAD_BYTES,
    samples::{batch, erasure, event, one, passing, payload, record, start},
    verify,
};
use logcabin_record::{NewRecord, codec};

fn options(dir: &tempfile::TempDir) -> SledOptions {
    SledOptions { clock: Clock::manual(1_000), ..SledOptions::new(dir.path()) }
}

fn open(dir: &tempfile::TempDir) -> SledLog {
    let log = SledLog::open(options(dir)).unwrap();
    start(&log);
    log
}

fn newest_tail(dir: &tempfile::TempDir) -> PathBuf {
    let log_dir = log_dir(dir.path());
    let newest = layers::tails(&log_dir).unwrap()[0];
    layers::tail_dir(&log_dir, newest)
}

/// Changes the stored frames behind the log's back. Each is a value of its own, as earlier versions
/// wrote them.
fn tamper(dir: &tempfile::TempDir, change: impl FnOnce(&Store)) {
    tamper_with_groups(dir, |store| {
        for (offset, frame) in take_all(store) {
            put(store, offset.get(), &frame);
        }
        change(store);
    });
}

fn tamper_with_groups(dir: &tempfile::TempDir, change: impl FnOnce(&Store)) {
    let store = newest_tail(dir);
    let store = Store::open(&store, DEFAULT_CACHE_BYTES).unwrap();
    change(&store);
    store.sync().unwrap();
}

/// Removes all frames from the store.
fn take_all(store: &Store) -> Vec<(Offset, Vec<u8>)> {
    let frame = |offset| (offset, store.get(offset).unwrap().unwrap().to_vec());
    let frames = store.offsets_to(Offset::MAX).unwrap().into_iter().map(frame).collect();
    store.records.clear().unwrap();
    frames
}

fn put(store: &Store, offset: u64, frame: &[u8]) {
    store.records.insert(key(Offset::new(offset)), frame).unwrap();
}

fn damaged_at(result: Result<SledLog, OpenError>) -> u64 {
    match result {
        Err(OpenError::Damaged(error)) => error.offset.get(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_second_process_is_told_who_has_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    let error = SledLog::open(options(&dir)).unwrap_err();
    let OpenError::InUse { pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*pid, Some(std::process::id()));
    assert!(error.to_string().contains("another logcabin"), "{error}");
    drop(log);
    SledLog::open(options(&dir)).unwrap();
}

#[tokio::test]
async fn a_torn_last_batch_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    log.append(batch("a", 2)).await.unwrap();
    log.append(batch("b", 4)).await.unwrap();
    drop(log);
    tamper(&dir, |store| {
        store.records.remove(key(Offset::new(6))).unwrap();
    });
    // A torn batch was never durable, nor noted as durable.
    std::fs::remove_file(tip_file::path(&log_dir(dir.path()))).unwrap();
    let log = open(&dir);
    assert_eq!(*log.durable().borrow(), Offset::new(2));
    assert_eq!(log.append(batch("b", 1)).await.unwrap().last, Offset::new(3));
    assert_eq!(verify(&log, |_| ()).unwrap().records, 3);
    drop(log);
    // Even if it is the only one.
    tamper(&dir, |store| {
        for offset in 2..=3 {
            store.records.remove(key(Offset::new(offset))).unwrap();
        }
    });
    std::fs::remove_file(tip_file::path(&log_dir(dir.path()))).unwrap();
    assert_eq!(*open(&dir).durable().borrow(), Offset::ZERO);
}

#[tokio::test]
async fn a_torn_last_batch_is_dropped_from_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    log.append(batch("a", 2)).await.unwrap();
    log.append(batch("b", 4)).await.unwrap();
    let before = log.read(Offset::new(1), 10).unwrap();
    drop(log);
    tamper_with_groups(&dir, |store| {
        let mut frames = take_all(store);
        frames.pop();
        store.put(&frames, Vec::new()).unwrap();
    });
    std::fs::remove_file(tip_file::path(&log_dir(dir.path()))).unwrap();
    let log = open(&dir);
    assert_eq!(log.read(Offset::new(1), 10).unwrap(), before[..2]);
    log.append(batch("c", 3)).await.unwrap();
    drop(log);
    assert_eq!(verify(&open(&dir), |_| ()).unwrap().records, 5);
}

#[tokio::test]
async fn a_damaged_group_is_refused_with_the_offset() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    for _ in 0..10 {
        log.append(batch("a", 3)).await.unwrap();
    }
    drop(log);
    let mut good = sled::IVec::default();
    let at = key(Offset::new(7));
    tamper_with_groups(&dir, |store| good = store.records.get(at).unwrap().unwrap());
    for index in 1..good.len() {
        let mut bad = good.to_vec();
        bad[index] ^= 4;
        tamper_with_groups(&dir, |store| drop(store.records.insert(at, bad).unwrap()));
        assert_eq!(damaged_at(SledLog::open(options(&dir))), 7, "byte {index}");
    }
    tamper_with_groups(&dir, |store| drop(store.records.insert(at, good).unwrap()));
    verify(&open(&dir), |_| ()).unwrap();
}

/// If its newest part is damaged, sled silently comes back shorter.
#[tokio::test]
async fn a_log_that_comes_back_shorter_or_different_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    for _ in 0..10 {
        log.append(batch("a", 1)).await.unwrap();
    }
    drop(log);
    let last = |store: &Store| store.get(Offset::new(10)).unwrap().unwrap().to_vec();
    let mut good = Vec::new();
    tamper(&dir, |store| {
        good = last(store);
        store.records.remove(key(Offset::new(10))).unwrap();
    });
    let error = SledLog::open(options(&dir)).unwrap_err();
    assert!(
        matches!(&error, OpenError::Lost { found, known, .. }
            if (found.get(), known.get()) == (9, 10)),
        "{error}"
    );
    // Another history of the same length, intact in itself.
    tamper(&dir, |store| put(store, 10, &good));
    drop(open(&dir));
    let other = tempfile::tempdir().unwrap();
    let log = open(&other);
    for _ in 0..12 {
        log.append(batch("b", 1)).await.unwrap();
    }
    drop(log);
    std::fs::copy(tip_file::path(&log_dir(dir.path())), tip_file::path(&log_dir(other.path())))
        .unwrap();
    let error = SledLog::open(options(&other)).unwrap_err();
    assert!(matches!(error, OpenError::Lost { .. }), "{error}");
    // An administrator who knows better can remove the note.
    std::fs::remove_file(tip_file::path(&log_dir(other.path()))).unwrap();
    drop(open(&other));
}

#[tokio::test]
async fn a_damaged_end_is_refused_with_the_offset() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    for number in 0..20 {
        log.append(batch("a", number % 2 + 1)).await.unwrap();
    }
    drop(log);
    let frame = |offset: u64| {
        let mut frame = Bytes::new();
        tamper(&dir, |store| frame = store.get(Offset::new(offset)).unwrap().unwrap());
        frame.to_vec()
    };
    let good = frame(10);
    for index in [0, 9, 20, 60, good.len() - 1] {
        let mut bad = good.clone();
        bad[index] ^= 1;
        tamper(&dir, |store| put(store, 10, &bad));
        assert_eq!(damaged_at(SledLog::open(options(&dir))), 10, "byte {index}");
    }
    tamper(&dir, |store| put(store, 10, &frame_of_another_chain(&good)));
    assert_eq!(damaged_at(SledLog::open(options(&dir))), 10);
    tamper(&dir, |store| {
        store.records.remove(key(Offset::new(10))).unwrap();
    });
    assert_eq!(damaged_at(SledLog::open(options(&dir))), 10);
    // Before the tail, the full check finds it, and reads do.
    let later = SledOptions { verify_tail: 5, ..options(&dir) };
    let log = SledLog::open(later.clone()).unwrap();
    assert_eq!(verify(&log, |_| ()).unwrap_err().offset, Offset::new(10));
    assert!(matches!(log.get(Offset::new(10)), Err(ReadError::Missing(_))));
    drop(log);
    tamper(&dir, |store| put(store, 10, &good[..good.len() - 1]));
    let log = SledLog::open(later).unwrap();
    assert_eq!(verify(&log, |_| ()).unwrap_err().offset, Offset::new(10));
    drop(log);
    tamper(&dir, |store| put(store, 10, &good));
    verify(&open(&dir), |_| ()).unwrap();
}

fn frame_of_another_chain(frame: &[u8]) -> Vec<u8> {
    let mut record = Frame::decode(&Bytes::copy_from_slice(frame)).unwrap().record;
    let header = codec::encode_header(&record.header).unwrap();
    record.chain = codec::chain(&[7; 32], &header);
    codec::encode_frame(&record).unwrap()
}

#[tokio::test]
async fn a_full_disk_refuses_writes_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    log.append(batch("a", 1)).await.unwrap();
    log.set_min_free_bytes(u64::MAX);
    assert!(matches!(log.append(batch("a", 1)).await, Err(AppendError::Full(_))));
    assert_eq!(log.read(Offset::new(1), 10).unwrap().len(), 1);
    log.set_min_free_bytes(DEFAULT_MIN_FREE_BYTES);
    assert_eq!(log.append(batch("a", 1)).await.unwrap().last, Offset::new(2));
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_written_or_shown() {
    let dir = tempfile::tempdir().unwrap();
    let settings = options(&dir);
    let lock = lock_data_dir(dir.path()).unwrap();
    let mut store = Store::open(&log_dir(dir.path()), DEFAULT_CACHE_BYTES).unwrap();
    // The kernel refuses to sync this one.
    store.data = File::open("/dev/null").unwrap();
    let log = SledLog::with_layers(Layers::of(store), Tip::default(), lock, settings);
    log.start(StreamHeads::new(), Box::new(|_| panic!("shown, though not durable")));
    for _ in 0..3 {
        assert!(matches!(log.append(batch("a", 1)).await, Err(AppendError::Failed(_))));
    }
    assert!(log.failure().borrow().as_ref().unwrap().contains("sync"));
    assert_eq!(*log.durable().borrow(), Offset::ZERO);
    assert!(log.read(Offset::new(1), 10).unwrap().is_empty());
    log.close();
    assert!(matches!(log.append(batch("a", 1)).await, Err(AppendError::Failed(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_compaction_no_file_contains_erased_content() {
    const SECRET: &str = "the-eagle-has-landed";
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(open(&dir));
    for number in 0..200 {
        log.append(one(passing(format!(r#"{{"passed":"{number} swiftly"}}"#)))).await.unwrap();
    }
    log.append(one(event(SECRET))).await.unwrap();
    log.append(one(event("what stays"))).await.unwrap();
    log.append(one(erasure(&*log, &[201], &[(1, 200)]))).await.unwrap();
    assert!(log.compacted().unwrap() < Offset::new(203));
    // sled keeps replaced values: without a compaction the text would stay.
    assert!(!files_with(dir.path(), SECRET).is_empty());
    let before = log.read(Offset::new(1), 1000).unwrap();

    // Appends and reads go on meanwhile.
    let compacting = {
        let log = Arc::clone(&log);
        tokio::task::spawn_blocking(move || log.compact(|| true).unwrap())
    };
    for _ in 0..50 {
        log.append(batch("a", 1)).await.unwrap();
    }
    compacting.await.unwrap();
    for text in [SECRET, "swiftly"] {
        assert_eq!(files_with(dir.path(), text), Vec::<PathBuf>::new(), "{text}");
    }
    assert!(!files_with(dir.path(), "what stays").is_empty());
    log.append(batch("b", 3)).await.unwrap();
    let last = *log.durable().borrow();
    assert_eq!(last, Offset::new(203 + 50 + 3));
    assert!(log.compacted().unwrap() >= Offset::new(203));
    assert_eq!(log.read(Offset::new(1), before.len()).unwrap(), before);
    let all = log.read(Offset::new(1), 1000).unwrap();
    verify(&*log, |_| ()).unwrap();
    drop(log);

    let log = open(&dir);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    assert_eq!(verify(&log, |_| ()).unwrap().last, last);
    assert!(log.compacted().unwrap() >= Offset::new(203));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_compaction_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(open(&dir));
    for _ in 0..20 {
        log.append(batch("a", 3)).await.unwrap();
    }
    let compact = |log: &Arc<SledLog>, on: bool| {
        let log = Arc::clone(log);
        tokio::task::spawn_blocking(move || log.compact(|| on))
    };
    let given_up = compact(&log, false).await.unwrap();
    assert!(matches!(given_up, Err(CompactError::GivenUp)), "{given_up:?}");
    log.append(batch("a", 3)).await.unwrap();
    let all = log.read(Offset::new(1), 1000).unwrap();
    log.set_min_free_bytes(u64::MAX);
    let no_room = compact(&log, true).await.unwrap();
    assert!(matches!(no_room, Err(CompactError::Room { .. })), "{no_room:?}");
    log.set_min_free_bytes(DEFAULT_MIN_FREE_BYTES);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    log.close();
    let closed = compact(&log, true).await.unwrap();
    assert!(matches!(closed, Err(CompactError::Closed)), "{closed:?}");
    drop(log);
    // The next start continues the interrupted work.
    let log = Arc::new(open(&dir));
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    compact(&log, true).await.unwrap().unwrap();
    assert_eq!(sealed(&log), 63);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
}

fn sealed(log: &SledLog) -> u64 {
    log.current().sealed().get()
}

fn small_volumes(dir: &tempfile::TempDir) -> SledOptions {
    SledOptions { volume_bytes: 20_000, seal_records: 50, ..options(dir) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_records_are_sealed_automatically_and_read_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(SledLog::open(small_volumes(&dir)).unwrap());
    start(&*log);
    for _ in 0..40 {
        log.append(batch("a", 3)).await.unwrap();
    }
    let sealing = Arc::clone(&log);
    tokio::task::spawn_blocking(move || {
        while sealed(&sealing) < 120 {
            std::thread::sleep(Duration::from_millis(20));
        }
    })
    .await
    .unwrap();
    // Sealed and unsealed records are read as one log.
    for _ in 0..10 {
        log.append(batch("b", 2)).await.unwrap();
    }
    let all = log.read(Offset::new(1), 1000).unwrap();
    assert_eq!(all.len(), 140);
    for record in &all {
        assert_eq!(log.get(record.offset()).unwrap().as_ref(), Some(record));
    }
    assert_eq!(log.read(Offset::new(100), 30).unwrap(), all[99..129]);
    assert!(log.current().volumes.len() > 1, "more than one volume");
    drop(log);
    let log = open(&dir);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    assert_eq!(log.append(batch("a", 1)).await.unwrap().last, Offset::new(141));
    assert_eq!(verify(&log, |_| ()).unwrap().records, 141);
}

/// An erasure covers records whether they are sealed or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_erased_from_volumes_leaves_them_with_the_next_compaction() {
    const SECRET: &str = "the-eagle-has-landed";
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(SledLog::open(small_volumes(&dir)).unwrap());
    start(&*log);
    let compact = || {
        let log = Arc::clone(&log);
        tokio::task::spawn_blocking(move || log.compact(|| true).unwrap())
    };
    for number in 0..120 {
        let text = if number % 40 == 7 { SECRET } else { "what stays" };
        log.append(one(event(text))).await.unwrap();
    }
    compact().await.unwrap();
    assert!(log.current().volumes.len() > 2);
    let ids = || log.current().volumes.iter().map(|volume| volume.id).collect::<Vec<_>>();
    let before = ids();
    log.append(one(event(SECRET))).await.unwrap();
    assert!(!files_with(dir.path(), SECRET).is_empty());
    for offset in [8, 121] {
        log.append(one(erasure(&*log, &[offset], &[]))).await.unwrap();
        let left = log.get(Offset::new(offset)).unwrap().unwrap();
        assert!(matches!(left.payload, logcabin_record::Payload::Reduced(_)), "{offset}");
    }
    let all = log.read(Offset::new(1), 1000).unwrap();
    compact().await.unwrap();
    // Only the volumes that contained them were rewritten.
    assert!(!files_with(dir.path(), SECRET).is_empty());
    assert!(ids().iter().any(|id| before.contains(id)), "{before:?} {:?}", ids());
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    log.append(one(erasure(&*log, &[48, 88], &[]))).await.unwrap();
    let all = log.read(Offset::new(1), 1000).unwrap();
    compact().await.unwrap();
    assert_eq!(files_with(dir.path(), SECRET), Vec::<PathBuf>::new());
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    verify(&*log, |_| ()).unwrap();
    drop(log);
    assert_eq!(open(&dir).read(Offset::new(1), 1000).unwrap(), all);
}

/// A restore, and versions from before volumes, leave one database in the log's own directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_in_the_logs_own_directory_is_sealed_like_any_other() {
    let (from, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = open(&from);
    for _ in 0..40 {
        log.append(batch("a", 2)).await.unwrap();
    }
    let all = log.read(Offset::new(1), 1000).unwrap();
    drop(log);
    let place = log_dir(dir.path());
    make_private_dir(&place).unwrap();
    let store = Store::open(&place, DEFAULT_CACHE_BYTES).unwrap();
    for record in &all {
        put(&store, record.offset().get(), &codec::encode_frame(record).unwrap());
    }
    store.sync().unwrap();
    drop(store);
    let log = Arc::new(open(&dir));
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    log.append(batch("a", 1)).await.unwrap();
    let all = log.read(Offset::new(1), 1000).unwrap();
    let compacting = Arc::clone(&log);
    tokio::task::spawn_blocking(move || compacting.compact(|| true)).await.unwrap().unwrap();
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    assert_eq!(sealed(&log), 81);
    drop(log);
    assert_eq!(layers::tails(&place).unwrap(), [1]);
    let log = open(&dir);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    assert_eq!(log.append(batch("a", 1)).await.unwrap().last, Offset::new(82));
}

/// As after a kill between any two steps: the older database exists, and some of the volumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_sealing_is_continued_by_the_next_start() {
    const SECRET: &str = "the-eagle-has-landed";
    let dir = tempfile::tempdir().unwrap();
    let patient = || SledOptions { seal_records: u64::MAX, ..small_volumes(&dir) };
    let mut all = Vec::new();
    for round in 0..6 {
        let log = Arc::new(SledLog::open(patient()).unwrap());
        start(&*log);
        for number in 0..60 {
            let text = if number == round { SECRET } else { "what stays" };
            log.append(one(event(text))).await.unwrap();
        }
        let erased: Vec<u64> = (0..=round).map(|past| past * 61 + past + 1).collect();
        log.append(one(erasure(&*log, &erased[..], &[]))).await.unwrap();
        all = log.read(Offset::new(1), 1000).unwrap();
        let cut_off = Arc::clone(&log);
        tokio::task::spawn_blocking(move || {
            let mut pieces = 0;
            let _ = cut_off.sealer.seal(|| {
                pieces += 1;
                pieces < round
            });
        })
        .await
        .unwrap();
        assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all, "round {round}");
        verify(&*log, |_| ()).unwrap();
    }
    let log = open(&dir);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    let log = Arc::new(log);
    let compacting = Arc::clone(&log);
    tokio::task::spawn_blocking(move || compacting.compact(|| true)).await.unwrap().unwrap();
    assert_eq!(files_with(dir.path(), SECRET), Vec::<PathBuf>::new());
    assert_eq!(layers::tails(&log_dir(dir.path())).unwrap().len(), 1);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_volume_is_reported_and_a_damaged_record_is_not_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(SledLog::open(small_volumes(&dir)).unwrap());
    start(&*log);
    for number in 0..150 {
        log.append(one(event(&format!("text {number}")))).await.unwrap();
    }
    let compacting = Arc::clone(&log);
    tokio::task::spawn_blocking(move || compacting.compact(|| true)).await.unwrap().unwrap();
    drop(log);
    let volumes = layers::volumes_dir(&log_dir(dir.path()));
    let mut paths: Vec<_> =
        std::fs::read_dir(&volumes).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let good = std::fs::read(&paths[1]).unwrap();
    // In a block: the log opens, and verify finds the damage.
    let mut bad = good.clone();
    bad[100] ^= 1;
    std::fs::write(&paths[1], &bad).unwrap();
    let later = SledOptions { verify_tail: 1, ..options(&dir) };
    let log = SledLog::open(later.clone()).unwrap();
    let found = verify(&log, |_| ()).unwrap_err();
    let first = log.current().volumes[1].first;
    assert_eq!(found.offset, first);
    assert!(matches!(found.fault, Fault::Storage(ref why) if why.contains("volume")));
    drop(log);
    // In the index, or if the file is missing, the log does not open.
    let mut bad = good.clone();
    let end = bad.len() - 60;
    bad[end] ^= 1;
    for damage in [Some(bad), None] {
        match damage {
            Some(bad) => std::fs::write(&paths[1], bad).unwrap(),
            None => std::fs::remove_file(&paths[1]).unwrap(),
        }
        let error = SledLog::open(options(&dir)).unwrap_err();
        assert!(matches!(error, OpenError::Volume(_)), "{error}");
    }
    std::fs::write(&paths[1], good).unwrap();
    // An altered record of the newest database does not get sealed.
    let log = open(&dir);
    for _ in 0..5 {
        log.append(batch("a", 1)).await.unwrap();
    }
    drop(log);
    tamper(&dir, |store| {
        let good = store.get(Offset::new(152)).unwrap().unwrap();
        put(store, 152, &frame_of_another_chain(&good));
    });
    std::fs::remove_file(tip_file::path(&log_dir(dir.path()))).unwrap();
    let log = Arc::new(SledLog::open(later).unwrap());
    start(&*log);
    let compacting = Arc::clone(&log);
    let refused = tokio::task::spawn_blocking(move || compacting.compact(|| true)).await.unwrap();
    assert!(matches!(refused, Err(CompactError::Store(ref why)) if why.contains("152")));
    assert_eq!(verify(&*log, |_| ()).unwrap_err().offset, Offset::new(152));
}

#[tokio::test]
async fn more_appends_than_the_queue_holds_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let log = SledLog::open(options(&dir)).unwrap();
    let count = 3 * QUEUE_BATCHES as u64;
    let waiting: Vec<_> = (0..count).map(|_| log.append(batch("a", 1))).collect();
    let all = futures_util::future::join_all(waiting);
    let (results, ()) = tokio::join!(all, async { start(&log) });
    let last = results.into_iter().map(|result| result.unwrap().last).max();
    assert_eq!(last, Some(Offset::new(count)));
}

#[tokio::test]
async fn the_largest_records_are_never_blobs() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    let large = |number: u8| -> NewRecord { record("a", vec![number.max(1); MAX_PAYLOAD_BYTES]) };
    for number in 0..60 {
        log.append(Batch { expect: vec![], records: vec![large(number)] }).await.unwrap();
    }
    log.append(Batch { expect: vec![], records: (0..20).map(large).collect() }).await.unwrap();
    for _ in 0..40 {
        log.append(Batch { expect: vec![], records: vec![record("b", payload(1))] }).await.unwrap();
    }
    assert_eq!(log.read(Offset::new(1), usize::MAX).unwrap().len(), 120);
    log.close();
    let blobs = std::fs::read_dir(newest_tail(&dir).join("blobs")).unwrap();
    assert_eq!(blobs.count(), 0);
}

/// A log with a complete archive, in which record 8 contained `SECRET` until it was erased, and
/// which is in volumes up to record 120.
async fn archived(dir: &tempfile::TempDir, usual: &str) -> (SledOptions, Vec<Record>) {
    archived_to(dir, usual, u64::MAX).await
}

/// The same with an archive that ends with record 119 if `end` is less than 120.
async fn archived_to(dir: &tempfile::TempDir, usual: &str, end: u64) -> (SledOptions, Vec<Record>) {
    let archive = crate::archive::ArchiveOptions {
        erase_quiet: Duration::from_secs(1000),
        ..crate::archive::ArchiveOptions::new(dir.path().join("archive"))
    };
    let options = SledOptions {
        archive: Some(archive.dir.clone()),
        seal_records: u64::MAX,
        ..small_volumes(dir)
    };
    let log = Arc::new(SledLog::open(options.clone()).unwrap());
    start(&*log);
    for number in 0..119 {
        let text = if number == 7 { SECRET } else { usual };
        log.append(one(event(text))).await.unwrap();
    }
    let archiver =
        crate::archive::Archiver::start(archive, Arc::clone(&log) as Arc<dyn Log>).unwrap();
    let mut archived = archiver.archived();
    archived.wait_for(|archived| archived.get() >= 119).await.unwrap();
    let archiver = if end < 120 {
        archiver.stop();
        None
    } else {
        Some(archiver)
    };
    log.append(one(erasure(&*log, &[8], &[]))).await.unwrap();
    let compacting = Arc::clone(&log);
    tokio::task::spawn_blocking(move || compacting.compact(|| true).unwrap()).await.unwrap();
    assert_eq!(sealed(&log), 120);
    log.append(batch("b", 4)).await.unwrap();
    if let Some(archiver) = archiver {
        archiver.stop();
    }
    let all = log.read(Offset::new(1), 1000).unwrap();
    assert_eq!(all.len(), 124);
    // It is erased only from the log.
    assert_eq!(files_with(dir.path(), SECRET).len(), 1);
    (options, all)
}

const SECRET: &str = "the-eagle-has-landed";

fn volume_files(dir: &tempfile::TempDir) -> Vec<PathBuf> {
    let volumes = layers::volumes(&log_dir(dir.path())).unwrap();
    volumes.iter().map(|volume| volume.path().to_owned()).collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_damaged_volume_are_read_from_the_archive() {
    let dir = tempfile::tempdir().unwrap();
    let (options, all) = archived(&dir, "what stays").await;
    let files = volume_files(&dir);
    assert!(files.len() > 1);
    // In the first block, which contained what was erased.
    flip(&files[0], 200);
    let alone = SledOptions { archive: None, ..options.clone() };
    let error = SledLog::open(alone.clone()).unwrap_err().to_string();
    assert!(error.contains("is damaged") && error.contains("verify --repair"), "{error}");

    let log = SledLog::open(options.clone()).unwrap();
    start(&log);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    for record in &all {
        assert_eq!(log.get(record.offset()).unwrap().as_ref(), Some(record));
    }
    drop(log);

    // Another log's archive is not used for this one.
    let other = tempfile::tempdir().unwrap();
    archived(&other, "another log").await;
    let foreign = other.path().join("archive");
    let error = SledLog::open(SledOptions { archive: Some(foreign.clone()), ..options.clone() });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("holds other records than the log"), "{error}");
    let error = repair(dir.path(), &foreign).unwrap_err().to_string();
    assert!(error.contains("holds other records than the log"), "{error}");

    let repaired = repair(dir.path(), &dir.path().join("archive")).unwrap();
    assert_eq!(repaired.len(), 1);
    assert_eq!(repaired[0].path, files[0]);
    assert_eq!(repaired[0].runs[0].0, Offset::new(1));
    assert_eq!(repair(dir.path(), &foreign).unwrap(), Vec::new());
    let log = SledLog::open(alone).unwrap();
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    assert!(files_with(&log_dir(dir.path()), SECRET).is_empty());
    verify(&log, |_| ()).unwrap();
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_whose_index_is_damaged_are_rebuilt_from_the_archive() {
    let dir = tempfile::tempdir().unwrap();
    let (options, all) = archived(&dir, "what stays").await;
    let files = volume_files(&dir);
    let archive = dir.path().join("archive");
    let last = files.len() - 1;
    for (damaged, gone) in [
        (vec![0], false),
        (vec![last], false),
        (vec![0, last], false),
        ((0..=last).collect(), false),
        (vec![1], true),
        (vec![0, 1], true),
    ] {
        for file in &damaged {
            let path = &files[*file];
            if gone {
                std::fs::remove_file(path).unwrap();
                continue;
            }
            flip(path, std::fs::metadata(path).unwrap().len() as usize - 60);
        }
        let error = SledLog::open(options.clone()).unwrap_err();
        assert!(matches!(error, OpenError::Volume(_)), "{error}");
        assert!(error.to_string().contains("`logcabin verify --repair`"), "{error}");
        let repaired = repair(dir.path(), &archive).unwrap();
        assert_eq!(repaired.len(), if gone { 1 } else { damaged.len() });
        let log = SledLog::open(SledOptions { archive: None, ..options.clone() }).unwrap();
        assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
        verify(&log, |_| ()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_volume_is_repaired_when_it_is_sealed_again() {
    let dir = tempfile::tempdir().unwrap();
    let (options, _) = archived(&dir, "what stays").await;
    flip(&volume_files(&dir)[0], 200);
    let log = Arc::new(SledLog::open(options.clone()).unwrap());
    start(&*log);
    log.append(one(erasure(&*log, &[9], &[]))).await.unwrap();
    let all = log.read(Offset::new(1), 1000).unwrap();
    let compacting = Arc::clone(&log);
    tokio::task::spawn_blocking(move || compacting.compact(|| true).unwrap()).await.unwrap();
    drop(log);
    let log = SledLog::open(SledOptions { archive: None, ..options }).unwrap();
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    verify(&log, |_| ()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn erased_content_does_not_come_back_from_a_lagging_archive() {
    let dir = tempfile::tempdir().unwrap();
    let (options, all) = archived_to(&dir, "what stays", 119).await;
    let files = volume_files(&dir);
    let last = layers::volumes(&log_dir(dir.path())).unwrap().pop().unwrap();
    assert!(
        last.first < Offset::new(120) && Offset::new(120) <= last.last,
        "the erasure is sealed"
    );
    flip(&files[0], 200);
    let log = SledLog::open(options.clone()).unwrap();
    start(&log);
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    drop(log);
    repair(dir.path(), &dir.path().join("archive")).unwrap();
    let log = SledLog::open(SledOptions { archive: None, ..options }).unwrap();
    assert_eq!(log.read(Offset::new(1), 1000).unwrap(), all);
    assert!(files_with(&log_dir(dir.path()), SECRET).is_empty());
}

#[tokio::test]
async fn a_database_that_contradicts_its_snapshot_is_read_from_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir);
    for _ in 0..30 {
        log.append(batch("a", 3)).await.unwrap();
    }
    let all = log.read(Offset::new(1), 1000).unwrap();
    drop(log);
    // At the next start, sled notes how far it came.
    drop(open(&dir));
    let tail = newest_tail(&dir);
    let snapshots = || {
        let files = std::fs::read_dir(&tail).unwrap().map(|entry| entry.unwrap().path());
        let is_note =
            |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b"snap.");
        files.filter(is_note).collect::<Vec<_>>()
    };
    assert!(!snapshots().is_empty());
    for damage in [1, 9] {
        for path in snapshots() {
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.len() / damage - 1;
            bytes[at] ^= 0x20;
            std::fs::write(&path, bytes).unwrap();
        }
        let log = open(&dir);
        assert!(log.read(Offset::new(1), 1000).unwrap() == all, "other records");
        verify(&log, |_| ()).unwrap();
    }
}
