//! Appending to the default log by several writers at once, with every append durable before it is
//! answered; and as its lower bound, bare writes of as many bytes to a file on the same disk, each
//! made durable.
//!
//! Criterion gives the time for one record of the many that are under way at once; percentiles of
//! the wait of one writer are printed after each. The directory is made in `LOGCABIN_BENCH_DIR` or
//! the current directory, not in a temporary one that may be in memory. With
//! `LOGCABIN_BENCH_ARCHIVE=1` the archiver runs along.

use std::{
    cell::LazyCell,
    ffi::OsString,
    io::{Seek as _, SeekFrom, Write as _},
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput};
use logcabin::{
    log::{
        Batch, Log, StreamHeads,
        archive::{ArchiveOptions, Archiver, archive_dir},
        store::{SledLog, SledOptions},
    },
    record::{Class, NewRecord, Origin, Stream},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::sizes;

/// About what a text message takes as a signed event.
const PAYLOAD_BYTES: usize = 800;

/// About what such a record takes in the log: the payload, and its header.
const RECORD_BYTES: usize = 1000;

const WRITERS: [u64; 4] = [1, 16, 64, 256];

fn directory() -> TempDir {
    let parent = std::env::var_os("LOGCABIN_BENCH_DIR").unwrap_or_else(|| OsString::from("."));
    tempfile::tempdir_in(parent).expect("a directory is made")
}

pub(crate) fn benches(criterion: &mut Criterion) {
    floor(criterion);
    let mut group = criterion.benchmark_group("append");
    // Each element is one record.
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for &writers in sizes(&WRITERS) {
        let appending = LazyCell::new(|| Appending::new(writers));
        let mut taken = Vec::new();
        group.bench_function(BenchmarkId::new("group commit, writers", writers), |bencher| {
            let appending = &*appending;
            bencher.iter_custom(|appends| {
                let (elapsed, each) = appending.runtime.block_on(appending.run(appends));
                taken.extend(each);
                elapsed
            });
        });
        if !taken.is_empty() {
            taken.sort_unstable();
            let percentile = |percent: usize| taken[(taken.len() - 1) * percent / 100];
            let (p50, p99, last) = (percentile(50), percentile(99), percentile(100));
            println!("{writers} writers: p50 {p50:?}, p99 {p99:?}, longest {last:?}");
            appending.end();
        }
    }
    group.finish();
}

/// One write of as many bytes as `records` records have, and `fdatasync`.
fn floor(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append");
    group.sample_size(10);
    for &records in sizes(&WRITERS) {
        let directory = directory();
        let bytes = vec![b'x'; RECORD_BYTES * usize::try_from(records).expect("a few")];
        let file =
            || std::fs::File::create(directory.path().join("floor")).expect("a file is made");
        group.throughput(Throughput::Elements(records));
        group.bench_function(BenchmarkId::new("floor, file grows, records", records), |bencher| {
            let mut file = file();
            bencher.iter(|| {
                file.write_all(&bytes).expect("a write");
                file.sync_data().expect("a sync");
            });
        });
        group.bench_function(BenchmarkId::new("floor, in place, records", records), |bencher| {
            let mut file = file();
            file.write_all(&bytes).expect("a write");
            file.sync_all().expect("a sync");
            bencher.iter(|| {
                file.seek(SeekFrom::Start(0)).expect("a file can be gone about in");
                file.write_all(&bytes).expect("a write");
                file.sync_data().expect("a sync");
            });
        });
    }
    group.finish();
}

struct Appending {
    runtime: Runtime,
    log: Arc<dyn Log>,
    archiver: Option<Archiver>,
    writers: u64,
    _directory: TempDir,
}

impl Appending {
    fn new(writers: u64) -> Self {
        let directory = directory();
        let log = SledLog::open(SledOptions::new(directory.path())).expect("the log opens");
        let log: Arc<dyn Log> = Arc::new(log);
        log.start(StreamHeads::new(), Box::new(|_| ()));
        let archiver = std::env::var_os("LOGCABIN_BENCH_ARCHIVE").map(|_| {
            let options = ArchiveOptions::new(archive_dir(directory.path()));
            Archiver::start(options, Arc::clone(&log)).expect("the archiver starts")
        });
        let runtime = Runtime::new().expect("a runtime starts");
        Self { runtime, log, archiver, writers, _directory: directory }
    }

    /// Appends at least `appends` records from all writers at once; returns the time that `appends`
    /// of them took together and each one's own.
    async fn run(&self, appends: u64) -> (Duration, Vec<Duration>) {
        let each = appends.div_ceil(self.writers);
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..self.writers {
            let log = Arc::clone(&self.log);
            tasks.spawn(async move {
                let new = record(writer);
                let mut taken = Vec::new();
                for _ in 0..each {
                    let began = Instant::now();
                    let batch = Batch { expect: vec![], records: vec![new.clone()] };
                    log.append(batch).await.expect("the log appends");
                    taken.push(began.elapsed());
                }
                taken
            });
        }
        let taken = tasks.join_all().await.concat();
        let all = (each * self.writers) as f64;
        (Duration::from_secs_f64(began.elapsed().as_secs_f64() * appends as f64 / all), taken)
    }

    fn end(&self) {
        self.log.close();
        if let Some(archiver) = &self.archiver {
            let behind = self.log.durable().borrow().get() - archiver.archived().borrow().get();
            println!("the archive is {behind} records behind");
        }
    }
}

fn record(writer: u64) -> NewRecord {
    NewRecord {
        stream: Stream::from_name(&format!("room/!{writer}:example.org")),
        kind: "room.event",
        version: 1,
        class: Class::Rewindable,
        ephemeral: false,
        origin: Origin::server(),
        payload: vec![b'x'; PAYLOAD_BYTES].into(),
    }
}
