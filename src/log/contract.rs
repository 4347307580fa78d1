//! The contract of every log, as one test suite that runs against each backend.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::{
    AppendError, Appended, Appending, Batch, Log, MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES, StreamHeads,
    memory::MemoryLog,
    samples::{self, batch, erasure, event, one, passing, payload, record, start, stream},
    store::{SledLog, SledOptions},
    verify,
};
use logcabin_base::clock::Clock;
use logcabin_record::{
    Command, NewRecord, Offset, Origin, Payload, Record, Stream, command::LogErase,
};

/// A log that can be closed and opened again with the same records.
trait Backend {
    fn open(&self) -> Arc<dyn Log>;
}

#[derive(Default)]
struct InMemory(Mutex<Vec<Arc<MemoryLog>>>);

impl Backend for InMemory {
    fn open(&self) -> Arc<dyn Log> {
        let mut opened = self.0.lock();
        let records = opened.last().map_or_else(Vec::new, |log| {
            log.read(Offset::new(1), usize::MAX).unwrap().into_iter().map(Arc::new).collect()
        });
        let log = Arc::new(MemoryLog::with_records(Clock::manual(1_000), records));
        opened.push(Arc::clone(&log));
        log
    }
}

struct OnDisk(tempfile::TempDir);

impl Backend for OnDisk {
    fn open(&self) -> Arc<dyn Log> {
        let options =
            SledOptions { clock: Clock::manual(1_000), ..SledOptions::new(self.0.path()) };
        Arc::new(SledLog::open(options).unwrap())
    }
}

/// A log that seals everything after each append.
#[derive(Debug)]
struct Sealing(SledLog);

impl samples::Wrapper for Sealing {
    fn inner(&self) -> &dyn Log {
        &self.0
    }

    fn append(&self, batch: Batch) -> Appending<'_> {
        let appending = self.0.append(batch);
        Box::pin(async move {
            let appended = appending.await;
            // It has nothing to seal before it is started or after it is closed.
            let _ = tokio::task::block_in_place(|| self.0.compact(|| true));
            appended
        })
    }
}

struct InVolumes(tempfile::TempDir);

impl Backend for InVolumes {
    fn open(&self) -> Arc<dyn Log> {
        let options = SledOptions {
            clock: Clock::manual(1_000),
            volume_bytes: 4_000,
            ..SledOptions::new(self.0.path())
        };
        Arc::new(Sealing(SledLog::open(options).unwrap()))
    }
}

/// A log that follows a stream.
#[cfg(feature = "nats")]
struct InStream(tempfile::TempDir, super::nats::testing::NatsServer);

#[cfg(feature = "nats")]
impl Backend for InStream {
    fn open(&self) -> Arc<dyn Log> {
        let options =
            SledOptions { clock: Clock::manual(1_000), ..SledOptions::new(self.0.path()) };
        let local = Arc::new(SledLog::open(options).unwrap());
        let opening = super::nats::NatsLog::open(local, self.1.options("contract"));
        let runtime = tokio::runtime::Handle::current();
        Arc::new(tokio::task::block_in_place(|| runtime.block_on(opening)).unwrap())
    }
}

#[cfg(feature = "simulate")]
#[derive(Default)]
struct OnModelledDisk(Arc<super::modelled::Disk>);

#[cfg(feature = "simulate")]
impl Backend for OnModelledDisk {
    fn open(&self) -> Arc<dyn Log> {
        let latency = Box::new(|| std::time::Duration::from_millis(1));
        let disk = Arc::clone(&self.0);
        Arc::new(super::modelled::ModelledLog::open(disk, Clock::manual(1_000), latency))
    }
}

macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::InMemory::default()).await;
            })*
        }

        mod sled {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::OnDisk(tempfile::tempdir().unwrap())).await;
            })*
        }

        #[cfg(feature = "simulate")]
        mod modelled {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::OnModelledDisk::default()).await;
            })*
        }

        mod volumes {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&super::InVolumes(tempfile::tempdir().unwrap())).await;
            })*
        }

        #[cfg(feature = "nats")]
        mod nats {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let server = crate::nats::testing::NatsServer::start(stringify!($test));
                let Some(server) = server else { return };
                let dir = tempfile::tempdir().unwrap();
                super::$test(&super::InStream(dir, server)).await;
            })*
        }
    };
}

contract!(
    a_new_log_is_empty,
    what_was_appended_is_read,
    a_decision_on_an_old_stream_is_refused,
    a_decision_on_the_whole_log_is_refused_after_any_record,
    a_batch_is_appended_whole_or_not_at_all,
    the_follower_sees_every_record_once_before_the_append_resolves,
    a_reopened_log_continues_where_it_ended,
    one_of_many_writers_wins_each_step,
    a_dropped_append_is_not_taken_back,
    writes_outside_the_limits_are_refused,
    a_closed_log_refuses_appends,
    time_never_decreases,
    an_erasure_removes_the_payloads_that_it_names,
    an_erasure_that_does_not_match_is_refused,
);

async fn a_new_log_is_empty(backend: &dyn Backend) {
    let log = backend.open();
    assert_eq!(*log.durable().borrow(), Offset::ZERO);
    assert!(log.read(Offset::ZERO, 10).unwrap().is_empty());
    assert!(log.read(Offset::new(1), 10).unwrap().is_empty());
    assert!(log.read(Offset::MAX, 10).unwrap().is_empty());
    for offset in [Offset::ZERO, Offset::new(1), Offset::MAX] {
        assert_eq!(log.get(offset).unwrap(), None);
    }
    assert_eq!(verify(&*log, |_| ()).unwrap().records, 0);
}

async fn what_was_appended_is_read(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    let first = log.append(batch("a", 3)).await.unwrap();
    assert_eq!(first, Appended { first: Offset::new(1), last: Offset::new(3) });
    let second = log.append(batch("b", 1)).await.unwrap();
    assert_eq!(second, Appended { first: Offset::new(4), last: Offset::new(4) });
    assert_eq!(*log.durable().borrow(), Offset::new(4));

    let all = log.read(Offset::new(1), 100).unwrap();
    let offsets: Vec<u64> = all.iter().map(|record| record.offset().get()).collect();
    assert_eq!(offsets, [1, 2, 3, 4]);
    let remaining: Vec<u32> = all.iter().map(|record| record.header.batch_remaining).collect();
    assert_eq!(remaining, [2, 1, 0, 0]);
    assert_eq!(all[1].payload.bytes(), Some(&payload(1)));
    assert_eq!(log.read(Offset::ZERO, 2).unwrap(), all[..2]);
    assert_eq!(log.read(Offset::new(2), 2).unwrap(), all[1..3]);
    assert!(log.read(Offset::new(2), 0).unwrap().is_empty());
    assert!(log.read(Offset::new(5), 2).unwrap().is_empty());
    assert_eq!(log.get(Offset::new(3)).unwrap().as_ref(), Some(&all[2]));
    assert_eq!(log.get(Offset::new(5)).unwrap(), None);
    let verified = verify(&*log, |_| ()).unwrap();
    assert_eq!(
        (verified.records, verified.last, verified.chain),
        (4, Offset::new(4), all[3].chain)
    );
}

/// Of two appends at once that expect the same, one is at `offset`, and the other is refused
/// because of it. The contract does not say which: a log may publish them side by side.
fn one_is_refused(mut outcomes: [Result<Appended, AppendError>; 2], offset: Offset) {
    outcomes.sort_by_key(Result::is_err);
    let [appended, refused] = outcomes;
    assert_eq!(appended.unwrap().last, offset);
    assert!(matches!(refused, Err(AppendError::Conflict { actual, .. }) if actual == offset));
}

async fn a_decision_on_an_old_stream_is_refused(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    let taken_at = |at: u64| Batch {
        expect: vec![(stream("user/ann"), Offset::new(at))],
        records: vec![record("user/ann", payload(at))],
    };
    assert_eq!(log.append(taken_at(0)).await.unwrap().last, Offset::new(1));
    match log.append(taken_at(0)).await.unwrap_err() {
        AppendError::Conflict { stream: moved, expected, actual } => {
            assert_eq!(moved, stream("user/ann"));
            assert_eq!((expected, actual), (Offset::ZERO, Offset::new(1)));
        }
        other => panic!("{other}"),
    }
    assert_eq!(log.append(taken_at(1)).await.unwrap().last, Offset::new(2));
    // A stream does not move when others do.
    log.append(batch("user/bob", 2)).await.unwrap();
    assert_eq!(log.append(taken_at(2)).await.unwrap().last, Offset::new(5));
    // Within one group, each batch sees the ones before it.
    let (one, two) = (log.append(taken_at(5)), log.append(taken_at(5)));
    one_is_refused([one.await, two.await], Offset::new(6));
}

async fn a_decision_on_the_whole_log_is_refused_after_any_record(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    let taken_at = |at: u64| Batch {
        expect: vec![(Stream::all(), Offset::new(at))],
        records: vec![record("user/ann", payload(at))],
    };
    assert_eq!(log.append(taken_at(0)).await.unwrap().last, Offset::new(1));
    log.append(batch("user/bob", 2)).await.unwrap();
    match log.append(taken_at(1)).await.unwrap_err() {
        AppendError::Conflict { stream, expected, actual } => {
            assert_eq!(stream, Stream::all());
            assert_eq!((expected, actual), (Offset::new(1), Offset::new(3)));
        }
        other => panic!("{other}"),
    }
    // Within one group, too, whichever stream the other record is of.
    let mut of_bob = taken_at(3);
    of_bob.records = vec![record("user/bob", payload(3))];
    let (one, two) = (log.append(of_bob), log.append(taken_at(3)));
    one_is_refused([one.await, two.await], Offset::new(4));
    assert_eq!(log.append(taken_at(4)).await.unwrap().last, Offset::new(5));
}

async fn a_batch_is_appended_whole_or_not_at_all(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    log.append(batch("alias/#a", 1)).await.unwrap();
    let refused = Batch {
        expect: vec![(stream("room/!r"), Offset::ZERO), (stream("alias/#a"), Offset::ZERO)],
        records: vec![record("room/!r", payload(1)), record("alias/#a", payload(2))],
    };
    assert!(matches!(log.append(refused.clone()).await, Err(AppendError::Conflict { .. })));
    assert_eq!(log.read(Offset::new(1), 10).unwrap().len(), 1);
    let mut accepted = refused;
    accepted.expect[1].1 = Offset::new(1);
    let appended = log.append(accepted).await.unwrap();
    assert_eq!(appended, Appended { first: Offset::new(2), last: Offset::new(3) });
    // Both streams have moved.
    for (name, at) in [("room/!r", 2), ("alias/#a", 3)] {
        let expect = vec![(stream(name), Offset::new(at))];
        log.append(Batch { expect, records: vec![] }).await.unwrap();
    }
}

async fn the_follower_sees_every_record_once_before_the_append_resolves(backend: &dyn Backend) {
    let log = backend.open();
    let seen = Arc::new(Mutex::new(Vec::<u64>::new()));
    let follower = {
        let (seen, durable) = (Arc::clone(&seen), log.durable());
        Box::new(move |records: &[Arc<Record>]| {
            let last = records.last().unwrap().offset();
            assert!(*durable.borrow() >= last, "shown before it was durable");
            seen.lock().extend(records.iter().map(|record| record.offset().get()));
        })
    };
    log.start(StreamHeads::new(), follower);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8_u64 {
        let (log, seen) = (Arc::clone(&log), Arc::clone(&seen));
        writers.spawn(async move {
            for round in 0..20 {
                let name = format!("room/{writer}");
                let appended = log.append(batch(&name, round % 3 + 1)).await.unwrap();
                assert!(seen.lock().contains(&appended.last.get()), "acknowledged before applied");
            }
        });
    }
    while let Some(result) = writers.join_next().await {
        result.unwrap();
    }
    let last = log.durable().borrow().get();
    assert_eq!(*seen.lock(), (1..=last).collect::<Vec<u64>>());
}

async fn a_reopened_log_continues_where_it_ended(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    log.append(batch("a", 5)).await.unwrap();
    log.append(batch("b", 2)).await.unwrap();
    let before = log.read(Offset::new(1), 100).unwrap();
    log.close();
    drop(log);

    let log = backend.open();
    assert_eq!(*log.durable().borrow(), Offset::new(7));
    assert_eq!(log.read(Offset::new(1), 100).unwrap(), before);
    start(&*log);
    let stale =
        Batch { expect: vec![(stream("a"), Offset::ZERO)], records: vec![record("a", payload(0))] };
    assert!(matches!(log.append(stale).await, Err(AppendError::Conflict { .. })));
    assert_eq!(log.append(batch("a", 1)).await.unwrap().last, Offset::new(8));
    assert_eq!(verify(&*log, |_| ()).unwrap().records, 8);
}

async fn one_of_many_writers_wins_each_step(backend: &dyn Backend) {
    const WRITERS: u64 = 16;
    const STEPS: u64 = 10;
    let log = backend.open();
    start(&*log);
    let refused = Arc::new(AtomicU64::new(0));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (log, refused) = (Arc::clone(&log), Arc::clone(&refused));
        writers.spawn(async move {
            let (mut at, mut won) = (Offset::ZERO, Vec::new());
            while won.len() < STEPS as usize {
                let expect = vec![(stream("room/hot"), at)];
                let records = vec![record("room/hot", payload(writer))];
                match log.append(Batch { expect, records }).await {
                    Ok(appended) => {
                        won.push((at, appended.last));
                        at = appended.last;
                    }
                    Err(AppendError::Conflict { actual, .. }) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                        // A refusal is answered only once the record that caused it can be read.
                        assert!(log.get(actual).unwrap().is_some());
                        at = actual;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            won
        });
    }
    let mut steps = HashMap::new();
    while let Some(won) = writers.join_next().await {
        for (before, after) in won.unwrap() {
            assert_eq!(steps.insert(before, after), None, "two writers won the same step");
        }
    }
    assert_eq!(steps.len() as u64, WRITERS * STEPS);
    assert_eq!(log.durable().borrow().get(), WRITERS * STEPS);
    verify(&*log, |_| ()).unwrap();
}

async fn a_dropped_append_is_not_taken_back(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    drop(log.append(batch("a", 2)));
    assert_eq!(log.append(batch("b", 1)).await.unwrap().last, Offset::new(3));
}

async fn writes_outside_the_limits_are_refused(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    let of_bytes = |bytes: usize| record("a", vec![b'x'; bytes]);
    let full = MAX_BATCH_BYTES / MAX_PAYLOAD_BYTES;
    for too_large in [
        one(of_bytes(MAX_PAYLOAD_BYTES + 1)),
        one(of_bytes(0)),
        one(record(&"s".repeat(70_000), payload(1))),
        Batch { expect: vec![], records: vec![of_bytes(MAX_PAYLOAD_BYTES); full + 1] },
    ] {
        assert!(matches!(log.append(too_large).await, Err(AppendError::TooLarge(_))));
    }
    let largest = Batch { expect: vec![], records: vec![of_bytes(MAX_PAYLOAD_BYTES); full] };
    assert_eq!(log.append(largest).await.unwrap().first, Offset::new(1));
}

async fn a_closed_log_refuses_appends(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    let under_way = log.append(batch("a", 1));
    log.close();
    assert_eq!(under_way.await.unwrap().last, Offset::new(1));
    assert!(matches!(log.append(batch("a", 1)).await, Err(AppendError::Closed)));
    assert_eq!(log.read(Offset::new(1), 10).unwrap().len(), 1);
}

async fn an_erasure_removes_the_payloads_that_it_names(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    for new in [event("a secret"), passing(payload(1)), passing(payload(2)), passing(payload(3))] {
        log.append(one(new)).await.unwrap();
    }
    let whole = log.read(Offset::new(1), 10).unwrap();
    log.append(one(erasure(&*log, &[1], &[(2, 3)]))).await.unwrap();
    let left = log.read(Offset::new(1), 10).unwrap();
    for (was, is) in whole.iter().zip(&left) {
        assert_eq!((&was.header, was.chain), (&is.header, is.chain));
    }
    assert_eq!((&left[1].payload, &left[2].payload), (&Payload::Erased, &Payload::Erased));
    assert_eq!(left[3].payload, whole[3].payload);
    let Payload::Reduced(bytes) = &left[0].payload else { panic!("{:?}", left[0].payload) };
    assert!(!String::from_utf8_lossy(bytes).contains("secret"), "{bytes:?}");
    assert!(matches!(left[0].command(), Ok(Some(Command::RoomEvent(_)))));
    assert_eq!(verify(&*log, |_| ()).unwrap().erased, 3);
    // Repeating it changes nothing.
    log.append(one(erasure(&*log, &[1], &[(2, 3)]))).await.unwrap();
    log.close();
    drop(log);
    let log = backend.open();
    assert_eq!(log.read(Offset::new(1), 5).unwrap(), left);
    assert_eq!(verify(&*log, |_| ()).unwrap().erased, 3);
}

async fn an_erasure_that_does_not_match_is_refused(backend: &dyn Backend) {
    let log = backend.open();
    start(&*log);
    for new in [event("a secret"), passing(payload(1)), record("a", payload(2))] {
        log.append(one(new)).await.unwrap();
    }
    let whole = log.read(Offset::new(1), 10).unwrap();
    let mut wrong = LogErase::default();
    if let Ok(Command::LogErase(right)) =
        Command::decode("log.erase", 2, &erasure(&*log, &[1], &[]).payload)
    {
        wrong = right;
    }
    wrong.reduced[0].hash = [7; 32];
    let wrong = NewRecord::new(Stream::server(), Origin::server(), &Command::from(wrong));
    let runs = |runs: &[(u64, u64)]| erasure(&*log, &[], runs);
    for refused in
        [wrong, runs(&[(1, 1)]), runs(&[(2, 3)]), runs(&[(2, 2), (4, 4)]), runs(&[(2, 2000)])]
    {
        let error = log.append(one(refused)).await.unwrap_err();
        assert!(matches!(error, AppendError::Erase(_)), "{error}");
    }
    assert_eq!(log.read(Offset::new(1), 10).unwrap(), whole);
}

async fn time_never_decreases(backend: &dyn Backend) {
    let mut before = 0;
    for _ in 0..3 {
        // Each opening restarts the test's clock at the same moment.
        let log = backend.open();
        start(&*log);
        for _ in 0..5 {
            let last = log.append(batch("a", 1)).await.unwrap().last;
            let time_ms = log.get(last).unwrap().unwrap().header.time_ms;
            assert!(time_ms >= before);
            before = time_ms;
        }
        log.close();
    }
}
