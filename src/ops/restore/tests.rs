//! Restores from an archive, compared byte for byte.

use std::{fs::OpenOptions, path::PathBuf, sync::Arc, time::Duration};

use super::*;
use logcabin_log::{
    Batch,
    archive::{ArchiveOptions, ArchiveReader, Archiver, DEFAULT_SEGMENT_BYTES, archive_dir},
    samples::{batch, erasure, event, one, passing, payload, record, start},
    store::log_dir,
    verify,
};
use logcabin_record::codec;

struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn archive_dir(&self) -> PathBuf {
        archive_dir(self.0.path())
    }

    fn log(&self) -> Arc<dyn Log> {
        let log = Arc::new(SledLog::open(SledOptions::new(self.0.path())).unwrap());
        start(&*log);
        log
    }

    fn archive(&self, log: &Arc<dyn Log>, segment_bytes: u64) {
        let options = ArchiveOptions {
            segment_bytes,
            erase_quiet: Duration::ZERO,
            ..ArchiveOptions::new(self.archive_dir())
        };
        Archiver::start(options, Arc::clone(log)).unwrap().stop();
    }

    fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.archive_dir()).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| {
            path.extension()
                .is_some_and(|extension| ["lcseg", "lcvol"].iter().any(|of| extension == *of))
        });
        paths.sort();
        paths
    }

    fn archived(&self) -> Vec<Record> {
        let reader = ArchiveReader::open(&self.archive_dir()).unwrap();
        reader.records(Offset::ZERO).map(Result::unwrap).collect()
    }

    async fn restore(&self, data_dir: &Path) -> Result<Restored, RestoreError> {
        let request = Request {
            from: RestoreSource::Path(self.archive_dir()),
            to: None,
            data_dir: data_dir.to_owned(),
            archive_dir: (data_dir == self.0.path()).then(|| self.archive_dir()),
            drop_keys: false,
            dry_run: false,
        };
        Box::pin(restore(&request)).await
    }

    async fn restore_here(&self) -> Result<Restored, RestoreError> {
        self.restore(self.0.path()).await
    }

    fn lose_log(&self) {
        std::fs::remove_dir_all(log_dir(self.0.path())).unwrap();
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

/// Asserts that the log holds these records, followed by those that begin the next epoch.
fn assert_restored(found: &[Record], expected: &[Record], restored: &Restored) {
    let (copied, new) = found.split_at(expected.len());
    assert!(copied == expected, "the restored records are not the archived ones");
    assert_eq!(restored.records, expected.len() as u64);
    assert_eq!(restored.chain, hex(&expected.last().unwrap().chain));
    assert_eq!(restored.epoch, Epoch(1));
    let kinds: Vec<_> = new.iter().map(|record| &*record.header.kind).collect();
    assert_eq!(kinds, ["server.restore", "keys.drop"]);
    assert!(new.iter().all(|record| record.header.epoch == Epoch(1)));
}

#[tokio::test]
async fn a_log_is_restored_byte_for_byte() {
    let place = TestDir::new();
    let log = place.log();
    fill(&*log, 40).await;
    log.append(Batch { expect: vec![], records: vec![record("a", payload(1)); 3] }).await.unwrap();
    place.archive(&log, 2_000);
    let expected = all(&*log);
    let in_use = place.restore_here().await;
    assert!(matches!(in_use, Err(RestoreError::Open(OpenError::InUse { .. }))));
    drop(log);
    let there = place.restore_here().await;
    assert!(matches!(there, Err(RestoreError::NotEmpty(_))));
    place.lose_log();
    // A server that refused to start beside the archive leaves this.
    drop(place.log());
    let restored = place.restore_here().await.unwrap();
    assert_eq!((restored.dropped, restored.torn_bytes, &restored.kept_archive), (0, None, &None));
    let log = place.log();
    assert_restored(&all(&*log), &expected, &restored);
    verify(&*log, |_| ()).unwrap();
    fill(&*log, 3).await;
    place.archive(&log, 2_000);
    assert_eq!(place.archived(), all(&*log));
}

#[tokio::test]
async fn an_incomplete_batch_is_not_restored() {
    // The damaged record ends a segment, or is alone in one.
    for segment_bytes in [DEFAULT_SEGMENT_BYTES, 1] {
        // Its last record is there in part, or not at all.
        for whole_entries in [false, true] {
            let place = TestDir::new();
            let log = place.log();
            log.append(batch("a", 2)).await.unwrap();
            log.append(batch("b", 3)).await.unwrap();
            place.archive(&log, segment_bytes);
            let expected = all(&*log);
            drop(log);
            let path = place.segments().pop().unwrap();
            let length = std::fs::metadata(&path).unwrap().len();
            let last_entry = 5 + codec::encode_frame(&expected[4]).unwrap().len() as u64;
            let cut = if whole_entries { last_entry } else { 10 };
            OpenOptions::new().write(true).open(&path).unwrap().set_len(length - cut).unwrap();

            place.lose_log();
            let restored = place.restore_here().await.unwrap();
            assert_eq!((restored.records, restored.dropped), (2, 2));
            assert_eq!(restored.torn_bytes.is_none(), whole_entries, "{restored:?}");
            let log = place.log();
            assert_restored(&all(&*log), &expected[..2], &restored);
            // The archive continues after the last complete batch, with the log's current records.
            place.archive(&log, segment_bytes);
            assert_eq!(place.archived(), all(&*log));
            fill(&*log, 3).await;
            place.archive(&log, segment_bytes);
            assert_eq!(place.archived(), all(&*log));
        }
    }
}

/// Puts an old copy of a segment back among newer ones.
#[tokio::test]
async fn a_restore_erases_again_what_an_old_copy_still_holds() {
    const SECRET: &str = "the-eagle-has-landed";
    let place = TestDir::new();
    let log = place.log();
    log.append(one(event(SECRET))).await.unwrap();
    for number in 0..3 {
        log.append(one(passing(payload(number)))).await.unwrap();
    }
    fill(&*log, 30).await;
    place.archive(&log, 2_000);
    let old = place.segments().remove(0);
    let copy = std::fs::read(&old).unwrap();
    let appended = log.append(one(erasure(&*log, &[1], &[(2, 3)]))).await.unwrap();
    // The end is archived, and erased payloads are removed, before the archiver stops.
    place.archive(&log, 2_000);
    let records = all(&*log);
    drop(log);
    for path in place.segments() {
        if path.file_stem() == old.file_stem() {
            std::fs::remove_file(path).unwrap();
        }
    }
    std::fs::write(&old, copy).unwrap();

    let fresh = tempfile::tempdir().unwrap();
    let restored = place.restore(fresh.path()).await.unwrap();
    assert_eq!((restored.last, restored.erased), (appended.last, 3));
    let log = SledLog::open(SledOptions::new(fresh.path())).unwrap();
    assert_eq!(log.read(Offset::new(1), records.len()).unwrap(), records);
    assert!(log.compacted().unwrap() >= appended.last);
    let db = std::fs::read(log_dir(fresh.path()).join("db")).unwrap();
    assert!(!db.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()));
    verify(&log, |_| ()).unwrap();
}

#[test]
fn repeated_erasures_are_recorded_in_pieces_and_completely() {
    let offset = Offset::new;
    let runs = [(1, 3), (5, 5), (10, 400), (402, 402)].map(|(a, b)| (offset(a), offset(b)));
    let reduced = (500..520).map(|at| Reduced {
        offset: offset(at),
        because: offset(600),
        room_version: Some(ruma::RoomVersionId::V11),
        hash: [0; 32],
    });
    let pieces = in_pieces(reduced, runs.to_vec());
    assert!(pieces.len() > 5);
    let mut named = Vec::new();
    for piece in &pieces {
        assert!(piece.count() <= PIECE, "{}", piece.count());
        named.extend(piece.reduced.iter().map(|gone| gone.offset.get()));
        let run = |(first, last): &(Offset, Offset)| first.get()..=last.get();
        named.extend(piece.superseded.iter().flat_map(run));
    }
    named.sort_unstable();
    let all = (1..=3).chain([5]).chain(10..=400).chain([402]).chain(500..520);
    assert_eq!(named, all.collect::<Vec<_>>());
    assert!(in_pieces(std::iter::empty(), Vec::new()).is_empty());
}
