use std::{
    fs::OpenOptions,
    io::Write as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use tokio::sync::watch;

use super::{
    archiver::RETRY_FIRST,
    segment::{HEADER_BYTES, is_packed, plain, segments},
    *,
};
use crate::{
    Log, ReadError, StreamHeads,
    memory::MemoryLog,
    samples::{self, batch, erasure, event, one, passing, payload, start},
    store::{SledLog, SledOptions, log_dir},
};
use logcabin_base::clock::Clock;
use logcabin_record::{Offset, Record};

struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn options(&self) -> ArchiveOptions {
        ArchiveOptions {
            segment_bytes: 2_000,
            erase_quiet: Duration::ZERO,
            compact_percent: 0,
            ..ArchiveOptions::new(archive_dir(self.0.path()))
        }
    }

    fn log(&self) -> Arc<dyn Log> {
        let log = Arc::new(SledLog::open(SledOptions::new(self.0.path())).unwrap());
        start(&*log);
        log
    }

    fn archive(&self, log: &Arc<dyn Log>) -> Result<(), ArchiveError> {
        Archiver::start(self.options(), Arc::clone(log)).map(Archiver::stop)
    }

    fn segments(&self) -> Vec<PathBuf> {
        segments(&self.options().dir).unwrap().into_iter().map(|(_, path)| path).collect()
    }

    fn records(&self) -> Vec<Record> {
        let reader = ArchiveReader::open(&self.options().dir).unwrap();
        reader.records(Offset::ZERO).map(Result::unwrap).collect()
    }
}

async fn fill(log: &dyn Log, batches: u64) {
    for number in 0..batches {
        log.append(batch("room/!r", number % 3 + 1)).await.unwrap();
    }
}

fn all(log: &dyn Log) -> Vec<Record> {
    log.read(Offset::new(1), usize::MAX).unwrap()
}

fn memory() -> Arc<dyn Log> {
    let log = MemoryLog::new(Clock::manual(5));
    log.start(StreamHeads::new(), Box::new(|_| ()));
    Arc::new(log)
}

#[tokio::test]
async fn an_archive_holds_every_record_in_sealed_segments() {
    let place = TestDir::new();
    let log = place.log();
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    fill(&*log, 30).await;
    let appended = Instant::now();
    let mut archived = archiver.archived();
    let durable = *log.durable().borrow();
    tokio::time::timeout(LAG * 5, archived.wait_for(|at| *at >= durable)).await.unwrap().unwrap();
    // The promise is one second; a loaded test machine gets twice that.
    assert!(appended.elapsed() < LAG * 2, "{:?} behind", appended.elapsed());
    archiver.stop();
    assert!(place.segments().len() > 3, "{:?}", place.segments());
    assert_eq!(place.segments()[0].file_name().unwrap(), "00000000000000000001.lcseg");
    assert_eq!(place.records(), all(&*log));
    let reader = ArchiveReader::open(&place.options().dir).unwrap();
    for from in [1, 2, 17, durable.get(), durable.get() + 1] {
        let tail: Vec<_> = reader.records(Offset::new(from)).map(Result::unwrap).collect();
        assert_eq!(tail, log.read(Offset::new(from), usize::MAX).unwrap());
    }
    let verified = verify_archive(&place.options().dir, |_| ()).unwrap();
    assert_eq!((verified.records, verified.last), (durable.get(), durable));
    assert_eq!((verified.chain, verified.torn), (all(&*log).last().unwrap().chain, None));
}

#[tokio::test]
async fn a_restart_continues_in_the_same_segment() {
    let place = TestDir::new();
    let log = place.log();
    let mut options = place.options();
    options.segment_bytes = 1 << 20;
    for _ in 0..4 {
        fill(&*log, 5).await;
        Archiver::start(options.clone(), Arc::clone(&log)).unwrap().stop();
    }
    assert_eq!(place.segments().len(), 1);
    // With smaller segments, this one is sealed, including the records of earlier starts.
    fill(&*log, 5).await;
    place.archive(&log).unwrap();
    assert_eq!(place.segments().len(), 2);
    assert_eq!(place.records(), all(&*log));
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_copied_again() {
    let place = TestDir::new();
    let log = place.log();
    fill(&*log, 9).await;
    place.archive(&log).unwrap();
    let expected = place.records();
    // Any part of the last segment may be missing or overwritten.
    for cut in [1, 2, 50, 200, 1_000, 1 << 20] {
        let path = place.segments().pop().unwrap();
        let length = std::fs::metadata(&path).unwrap().len();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length.saturating_sub(cut)).unwrap();
        if cut == 200 {
            file.set_len(length + 100).unwrap();
        }
        let reader = ArchiveReader::open(&place.options().dir).unwrap();
        let intact: Vec<_> = reader.records(Offset::ZERO).map(Result::unwrap).collect();
        assert!(expected.starts_with(&intact));
        place.archive(&log).unwrap();
        assert_eq!(place.records(), expected, "after a cut of {cut} bytes");
    }
}

#[tokio::test]
async fn bytes_after_a_seal_are_cut_off() {
    let place = TestDir::new();
    let log = place.log();
    fill(&*log, 9).await;
    place.archive(&log).unwrap();
    // A sealed segment is the last one until the next is created.
    std::fs::remove_file(place.segments().pop().unwrap()).unwrap();
    let sealed = place.segments().pop().unwrap();
    let mut file = OpenOptions::new().append(true).open(&sealed).unwrap();
    file.write_all(&[0; 100]).unwrap();
    place.archive(&log).unwrap();
    assert_eq!(place.records(), all(&*log));
}

#[tokio::test]
async fn an_archive_can_be_read_while_it_is_written() {
    let place = TestDir::new();
    let log = memory();
    fill(&*log, 5_000).await;
    let options = ArchiveOptions { segment_bytes: 100_000, ..place.options() };
    let archiver = Archiver::start(options.clone(), Arc::clone(&log)).unwrap();
    let durable = *log.durable().borrow();
    let (archived, mut read) = (archiver.archived(), Vec::new());
    while read.len() as u64 != durable.get() {
        let complete = *archived.borrow() >= durable;
        let from = Offset::new(read.len() as u64 + 1);
        let reader = ArchiveReader::open(&options.dir).unwrap();
        read.extend(reader.records(from).map(Result::unwrap));
        assert!(!complete || read.len() as u64 == durable.get(), "the archive ends early");
    }
    archiver.stop();
    assert!(read == all(&*log), "what was read is not what the log holds");
}

#[tokio::test]
async fn a_damaged_segment_is_reported() {
    let place = TestDir::new();
    let log = place.log();
    fill(&*log, 30).await;
    place.archive(&log).unwrap();
    let segments = place.segments();
    let read = || {
        let reader = ArchiveReader::open(&place.options().dir).unwrap();
        reader.records(Offset::ZERO).find_map(Result::err)
    };
    for (path, index) in [(&segments[0], 3), (&segments[1], 20), (&segments[2], 700)] {
        let good = std::fs::read(path).unwrap();
        for index in [index, good.len() - 1, good.len() / 2] {
            let mut bad = good.clone();
            bad[index] ^= 4;
            std::fs::write(path, bad).unwrap();
            match read() {
                Some(ArchiveError::Damaged { path: found, .. }) => assert_eq!(&found, path),
                other => panic!("byte {index} of {}: {other:?}", path.display()),
            }
        }
        std::fs::write(path, good).unwrap();
    }
    // Damage in the last segment, too, is distinguished from a torn end by later records.
    let last = segments.last().unwrap();
    let good = std::fs::read(last).unwrap();
    let mut bad = good.clone();
    bad[HEADER_BYTES + 100] ^= 1;
    std::fs::write(last, bad).unwrap();
    assert!(matches!(read(), Some(ArchiveError::Damaged { .. })));
    // So is a missing record before the very last one, although nothing follows that one.
    let mut ends = vec![HEADER_BYTES];
    while let Some(&[_, a, b, c, d]) = good.get(ends[ends.len() - 1]..ends[ends.len() - 1] + 5) {
        ends.push(ends[ends.len() - 1] + 5 + u32::from_be_bytes([a, b, c, d]) as usize);
    }
    let &[.., from, to, end] = &ends[..] else {
        panic!("the last segment has fewer than two entries")
    };
    assert_eq!(end, good.len());
    std::fs::write(last, [&good[..from], &good[to..]].concat()).unwrap();
    assert!(matches!(read(), Some(ArchiveError::Damaged { .. })));
    std::fs::write(last, good).unwrap();
    std::fs::remove_file(&segments[1]).unwrap();
    assert!(matches!(read(), Some(ArchiveError::Gap { next, .. }) if next == segments[2]));
}

#[tokio::test]
async fn records_that_the_log_lacks_are_not_cut_off_after_damage() {
    let place = TestDir::new();
    let (short, long) = (memory(), memory());
    short.append(batch("a", 1)).await.unwrap();
    let options = ArchiveOptions::new(place.options().dir);
    long.append(batch("a", 1)).await.unwrap();
    fill(&*long, 9).await;
    Archiver::start(options.clone(), Arc::clone(&long)).unwrap().stop();
    let path = place.segments().pop().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[HEADER_BYTES + 400] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let refused = Archiver::start(options.clone(), Arc::clone(&short));
    assert!(matches!(refused, Err(ArchiveError::Ahead { .. })), "{refused:?}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    // The log that has them copies them again.
    Archiver::start(options, Arc::clone(&long)).unwrap().stop();
    assert_eq!(place.records(), all(&*long));
}

#[tokio::test]
async fn the_archive_of_another_log_is_refused_and_left_as_it_is() {
    let place = TestDir::new();
    let (one, other) = (memory(), memory());
    fill(&*one, 4).await;
    place.archive(&one).unwrap();
    let bytes = std::fs::read(&place.segments()[0]).unwrap();
    other.append(batch("user/other", 20)).await.unwrap();
    assert!(matches!(place.archive(&other), Err(ArchiveError::Foreign { .. })));
    assert_eq!(std::fs::read(&place.segments()[0]).unwrap(), bytes);
}

#[tokio::test]
async fn a_failing_archive_disk_stops_nothing_and_is_retried() {
    let place = TestDir::new();
    let log = memory();
    // A file where the directory should be.
    let dir = place.options().dir;
    std::fs::write(&dir, "in the way").unwrap();
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    assert!(archiver.failure().borrow().is_some());
    fill(&*log, 3).await;
    std::fs::remove_file(&dir).unwrap();
    let mut archived = archiver.archived();
    let durable = *log.durable().borrow();
    tokio::time::timeout(RETRY_FIRST * 10, archived.wait_for(|at| *at >= durable))
        .await
        .unwrap()
        .unwrap();
    archiver.stop();
    assert_eq!(place.records(), all(&*log));
}

#[tokio::test]
async fn a_failure_leaves_earlier_segments_intact() {
    let place = TestDir::new();
    let (durable, failing) = (watch::Sender::new(Offset::ZERO), AtomicBool::new(false));
    let log = Arc::new(FailingLog { log: memory(), durable, failing });
    let archiver = Archiver::start(place.options(), Arc::clone(&log) as Arc<dyn Log>).unwrap();
    let (mut archived, mut failure) = (archiver.archived(), archiver.failure());
    fill(&*log, 2).await;
    let end = log.publish();
    archived.wait_for(|at| *at == end).await.unwrap();

    // Some segments are sealed before it fails, and the last one contains more than was synced.
    log.failing.store(true, Ordering::SeqCst);
    fill(&*log, 300).await;
    let end = log.publish();
    failure.wait_for(Option::is_some).await.unwrap();
    log.failing.store(false, Ordering::SeqCst);
    archived.wait_for(|at| *at == end).await.unwrap();
    archiver.stop();
    assert_eq!(place.records(), all(&*log));
}

/// A log whose watermark moves on command, and whose reads fail after a while.
#[derive(Debug)]
struct FailingLog {
    log: Arc<dyn Log>,
    durable: watch::Sender<Offset>,
    failing: AtomicBool,
}

impl FailingLog {
    /// Publishes everything appended.
    fn publish(&self) -> Offset {
        let end = *self.log.durable().borrow();
        self.durable.send_replace(end);
        end
    }
}

impl samples::Wrapper for FailingLog {
    fn inner(&self) -> &dyn Log {
        &*self.log
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        if from > Offset::new(200) && self.failing.load(Ordering::SeqCst) {
            return Err(ReadError::Storage("it fails as it was told to".to_owned()));
        }
        self.log.read(from, limit)
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        self.durable.subscribe()
    }
}

/// The archive's files that contain `text`.
fn files_with(place: &TestDir, text: &str) -> usize {
    let holds = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        let bytes =
            if is_packed(path) { zstd::stream::decode_all(&*bytes).unwrap() } else { bytes };
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    let all = std::fs::read_dir(place.options().dir).unwrap();
    all.map(|entry| entry.unwrap().path()).filter(holds).count()
}

async fn erased(archiver: &Archiver, upto: Offset) {
    let mut erased = archiver.erased();
    let done = erased.wait_for(|erased| *erased >= upto);
    tokio::time::timeout(Duration::from_secs(60), done).await.unwrap().unwrap();
}

#[tokio::test]
async fn erased_content_leaves_the_archive() {
    const SECRET: &str = "the-eagle-has-landed";
    let place = TestDir::new();
    let log = place.log();
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    // One in a sealed segment, and one in the last, which is still growing.
    for number in 0..4 {
        fill(&*log, 10).await;
        log.append(one(event(SECRET))).await.unwrap();
        log.append(one(passing(format!(r#"{{"passed":"{number} swiftly"}}"#)))).await.unwrap();
    }
    let (mut events, mut passed) = (Vec::new(), Vec::new());
    for record in all(&*log) {
        let offset = record.offset().get();
        match &*record.header.kind {
            "room.event" => events.push(offset),
            _ if record.header.ephemeral => passed.push((offset, offset)),
            _ => {}
        }
    }
    let durable = *log.durable().borrow();
    archiver.archived().wait_for(|archived| *archived == durable).await.unwrap();
    assert!(files_with(&place, SECRET) > 1);
    let segments = place.segments();
    let appended = log.append(one(erasure(&*log, &events, &passed))).await.unwrap();
    erased(&archiver, appended.last).await;
    for text in [SECRET, "swiftly"] {
        assert_eq!(files_with(&place, text), 0, "{text}");
    }
    let firsts = |paths: &[PathBuf]| -> Vec<_> {
        paths.iter().map(|path| path.file_stem().unwrap().to_owned()).collect()
    };
    assert_eq!(firsts(&place.segments())[..segments.len()], firsts(&segments));
    fill(&*log, 10).await;
    archiver.stop();
    assert_eq!(place.records(), all(&*log));
    verify_archive(&place.options().dir, |_| ()).unwrap();
    // It continues after that, and has nothing left to do.
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    fill(&*log, 10).await;
    erased(&archiver, *log.durable().borrow()).await;
    archiver.stop();
    assert_eq!(place.records(), all(&*log));
}

#[tokio::test]
async fn an_archiver_that_was_stopped_before_it_erased_does_so_at_the_next_start() {
    const SECRET: &str = "the-eagle-has-landed";
    let place = TestDir::new();
    let log = place.log();
    let patient = ArchiveOptions { erase_quiet: Duration::from_secs(600), ..place.options() };
    let archiver = Archiver::start(patient, Arc::clone(&log)).unwrap();
    log.append(one(event(SECRET))).await.unwrap();
    fill(&*log, 30).await;
    let durable = *log.durable().borrow();
    archiver.archived().wait_for(|archived| *archived == durable).await.unwrap();
    let appended = log.append(one(erasure(&*log, &[1], &[]))).await.unwrap();
    archiver.stop();
    assert_eq!(files_with(&place, SECRET), 1);
    // Half-written files that a crash left are not part of the archive.
    for extension in ["rewriting", "new"] {
        std::fs::write(place.segments()[0].with_extension(extension), SECRET).unwrap();
    }
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    erased(&archiver, appended.last).await;
    archiver.stop();
    assert_eq!(files_with(&place, SECRET), 0);
    assert_eq!(place.records(), all(&*log));
}

#[tokio::test]
async fn a_payload_missing_from_an_archive_without_an_erasure_is_damage() {
    let place = TestDir::new();
    let log = place.log();
    for number in 1..=3 {
        log.append(one(passing(payload(number)))).await.unwrap();
    }
    let whole = all(&*log);
    // Intact in itself, except that nobody erased it.
    let gone = whole.into_iter().map(|mut record| {
        if record.offset() == Offset::new(2) {
            record.payload = logcabin_record::Payload::Erased;
        }
        Arc::new(record)
    });
    let other: Arc<dyn Log> = Arc::new(MemoryLog::with_records(Clock::manual(5), gone.collect()));
    place.archive(&other).unwrap();
    let error = verify_archive(&place.options().dir, |_| ()).unwrap_err();
    assert!(error.to_string().contains("record 2: the payload is missing"), "{error}");
}

#[tokio::test]
async fn a_server_that_lost_its_log_does_not_write_beside_its_archive() {
    let place = TestDir::new();
    let log = place.log();
    fill(&*log, 4).await;
    place.archive(&log).unwrap();
    drop(log);
    std::fs::remove_dir_all(log_dir(place.0.path())).unwrap();
    let empty = place.log();
    assert!(matches!(place.archive(&empty), Err(ArchiveError::Ahead { .. })));
}

#[tokio::test]
async fn superseded_payloads_wait_until_a_rewrite_pays_or_a_user_is_erased() {
    let place = TestDir::new();
    let log = place.log();
    let options = ArchiveOptions { compact_percent: 50, segment_bytes: 1 << 20, ..place.options() };
    let start = |options: &ArchiveOptions| Archiver::start(options.clone(), Arc::clone(&log));
    let archiver = start(&options).unwrap();
    for number in 0..4 {
        log.append(one(passing(format!(r#"{{"passed":"{number} swiftly"}}"#)))).await.unwrap();
    }
    fill(&*log, 20).await;
    let durable = *log.durable().borrow();
    archiver.archived().wait_for(|archived| *archived == durable).await.unwrap();
    // These are too few for a rewrite, and they are remembered across a restart.
    let few = log.append(one(erasure(&*log, &[], &[(1, 2)]))).await.unwrap().last;
    erased(&archiver, few).await;
    archiver.stop();
    assert_eq!(files_with(&place, "1 swiftly"), 1);
    let archiver = start(&options).unwrap();
    fill(&*log, 3).await;
    erased(&archiver, *log.durable().borrow()).await;
    archiver.stop();
    assert_eq!(files_with(&place, "1 swiftly"), 1);
    // A sufficient share: two of all.
    let records = log.durable().borrow().get();
    let large = ArchiveOptions { compact_percent: 200 / records, ..options.clone() };
    let archiver = start(&large).unwrap();
    wait_until_gone(&place, "1 swiftly").await;
    archiver.stop();
    assert!(has_erased(&place.options().dir, few, true));
    // They have waited long enough.
    let archiver = start(&options).unwrap();
    let third = log.append(one(erasure(&*log, &[], &[(3, 3)]))).await.unwrap().last;
    erased(&archiver, third).await;
    archiver.stop();
    assert_eq!(files_with(&place, "2 swiftly"), 1);
    let archiver = start(&ArchiveOptions { compact_after_ms: 0, ..options.clone() }).unwrap();
    wait_until_gone(&place, "2 swiftly").await;
    // If a user is erased, the payloads may have been theirs.
    archiver.stop();
    let archiver = start(&options).unwrap();
    log.append(one(erasure(&*log, &[], &[(4, 4)]))).await.unwrap();
    let erase = logcabin_record::command::UserErase {
        user_id: "@ann:test".try_into().unwrap(),
        because: Offset::new(1),
        records: Vec::new(),
        more: false,
    };
    let (stream, origin) = (logcabin_record::Stream::server(), logcabin_record::Origin::server());
    let record = logcabin_record::NewRecord::new(stream, origin, &erase.into());
    log.append(one(record)).await.unwrap();
    wait_until_gone(&place, "3 swiftly").await;
    archiver.stop();
    assert_eq!(place.records(), all(&*log));
    verify_archive(&place.options().dir, |_| ()).unwrap();
}

async fn wait_until_gone(place: &TestDir, text: &str) {
    for _ in 0..1200 {
        if files_with(place, text) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{text} does not leave the archive");
}

/// Waits until all segments but the last are packed.
async fn packed(place: &TestDir) {
    let all = async {
        loop {
            let segments = place.segments();
            let (_, sealed) = segments.split_last().unwrap();
            if sealed.iter().all(|path| is_packed(path) && !plain(path).exists()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
}

/// An archive of several segments, all packed but the last, and its log.
async fn packed_archive() -> (TestDir, Arc<dyn Log>) {
    let place = TestDir::new();
    let log = place.log();
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    fill(&*log, 30).await;
    let durable = *log.durable().borrow();
    archiver.archived().wait_for(|archived| *archived == durable).await.unwrap();
    packed(&place).await;
    archiver.stop();
    (place, log)
}

#[tokio::test]
async fn sealed_segments_are_packed_and_read_as_before() {
    let (place, log) = packed_archive().await;
    let durable = *log.durable().borrow();
    assert!(place.segments().len() > 3);
    assert_eq!(place.records(), all(&*log));
    let reader = ArchiveReader::open(&place.options().dir).unwrap();
    for from in [1, 2, 17, durable.get(), durable.get() + 1] {
        let tail: Vec<_> = reader.records(Offset::new(from)).map(Result::unwrap).collect();
        assert_eq!(tail, log.read(Offset::new(from), usize::MAX).unwrap());
    }
    verify_archive(&place.options().dir, |_| ()).unwrap();
    // It goes on after a packed segment, too.
    std::fs::remove_file(place.segments().pop().unwrap()).unwrap();
    fill(&*log, 30).await;
    place.archive(&log).unwrap();
    assert_eq!(place.records(), all(&*log));
}

#[tokio::test]
async fn a_packed_segment_whose_plain_one_is_still_there_counts_once() {
    let (place, log) = packed_archive().await;
    // As a crash leaves it: the plain one is complete, or what it was before an erasure.
    let path = place.segments().remove(0);
    std::fs::write(plain(&path), "anything").unwrap();
    assert_eq!(place.records(), all(&*log));
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    packed(&place).await;
    archiver.stop();
    assert_eq!(place.records(), all(&*log));
}

#[tokio::test]
async fn a_damaged_packed_segment_is_made_again_from_the_plain_one() {
    let place = TestDir::new();
    let log = place.log();
    fill(&*log, 30).await;
    place.archive(&log).unwrap();
    let first = plain(&place.segments().remove(0));
    let copy = std::fs::read(&first).unwrap();
    let pack = async || {
        let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
        packed(&place).await;
        archiver.stop();
    };
    pack().await;
    let path = place.segments().remove(0);
    let good = std::fs::read(&path).unwrap();
    for at in [8, good.len() / 3, good.len() - 20] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, bad).unwrap();
        std::fs::write(&first, &copy).unwrap();
        pack().await;
        assert_eq!(place.records(), all(&*log), "byte {at}");
    }
    // If both are damaged, both stay, and the others are packed.
    std::fs::write(&path, &good[1..]).unwrap();
    std::fs::write(&first, &copy[..copy.len() - 1]).unwrap();
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    fill(&*log, 30).await;
    let others = async {
        while place.segments().iter().rev().skip(1).any(|path| !is_packed(path)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), others).await.unwrap();
    archiver.stop();
    assert!(path.exists() && first.exists());
}

#[tokio::test]
async fn what_was_erased_does_not_stay_in_a_plain_segment_that_is_packed() {
    const SECRET: &str = "the-eagle-has-landed";
    let place = TestDir::new();
    let log = place.log();
    log.append(one(event(SECRET))).await.unwrap();
    fill(&*log, 30).await;
    place.archive(&log).unwrap();
    let first = plain(&place.segments().remove(0));
    let copy = std::fs::read(&first).unwrap();
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    packed(&place).await;
    let appended = log.append(one(erasure(&*log, &[1], &[]))).await.unwrap();
    erased(&archiver, appended.last).await;
    archiver.stop();
    // As if the server had been killed when it had rewritten the segment.
    std::fs::write(&first, copy).unwrap();
    std::fs::remove_file(place.options().dir.join("erased")).unwrap();
    let archiver = Archiver::start(place.options(), Arc::clone(&log)).unwrap();
    erased(&archiver, appended.last).await;
    assert_eq!(files_with(&place, SECRET), 0);
    archiver.stop();
}

#[tokio::test]
async fn damage_to_a_packed_segment_is_found_and_never_taken_for_a_torn_end() {
    let (place, log) = packed_archive().await;
    let open = place.segments().pop().unwrap();
    std::fs::remove_file(open).unwrap();
    let path = place.segments().pop().unwrap();
    let good = std::fs::read(&path).unwrap();
    for at in (0..good.len()).step_by(7) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, bad).unwrap();
        match verify_archive(&place.options().dir, |_| ()) {
            Err(ArchiveError::Damaged { path: found, .. }) => assert_eq!(found, path),
            // Some bytes do not matter, such as the length of the index for tools of zstd.
            Ok(verified) => assert_eq!(verified.torn, None, "byte {at}"),
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    for length in [0, 1, 100, good.len() - 1] {
        std::fs::write(&path, &good[..length]).unwrap();
        assert!(verify_archive(&place.options().dir, |_| ()).is_err(), "{length} bytes");
        // Nothing is cut off or replaced: it may be the only copy.
        place.archive(&log).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), good[..length]);
    }
}
