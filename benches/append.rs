//! How fast the default log appends, with every append durable: records per second from criterion,
//! and percentiles of the time that one append takes, printed after each group.
//!
//! The directory is made in `LOGCABIN_BENCH_DIR` or the current directory, not in a temporary one
//! that may be in memory. With `LOGCABIN_BENCH_ARCHIVE=1` the archiver runs along. Run with
//! `cargo bench --bench append`.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use logcabin::{
    log::{
        Batch, Log, StreamHeads,
        archive::{ArchiveOptions, Archiver, archive_dir},
        sled::{SledLog, SledOptions},
    },
    record::{Class, NewRecord, Origin, Stream},
};
use tokio::runtime::Runtime;

/// About what a text message takes as a signed event.
const PAYLOAD_BYTES: usize = 800;

const WRITERS: [usize; 3] = [1, 32, 256];

fn append(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime starts");
    let parent = std::env::var_os("LOGCABIN_BENCH_DIR").unwrap_or_else(|| ".".into());
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(1)).sample_size(10);
    for writers in WRITERS {
        let directory = tempfile::tempdir_in(&parent).expect("a directory is made");
        let log = SledLog::open(SledOptions::new(directory.path())).expect("the log opens");
        let log: Arc<dyn Log> = Arc::new(log);
        log.start(StreamHeads::new(), Box::new(|_| ()));
        let archiver = std::env::var_os("LOGCABIN_BENCH_ARCHIVE").map(|_| {
            let options = ArchiveOptions::new(archive_dir(directory.path()));
            Archiver::start(options, Arc::clone(&log)).expect("the archiver starts")
        });
        let mut latencies = Vec::new();
        group.bench_function(BenchmarkId::new("writers", writers), |bencher| {
            bencher.iter_custom(|appends| {
                let (elapsed, taken) = runtime.block_on(run(&log, writers, appends));
                latencies.extend(taken);
                elapsed
            });
        });
        latencies.sort_unstable();
        let percentile = |percent: usize| latencies.get(latencies.len() * percent / 100);
        println!(
            "append/writers/{writers}: {} appends, p50 {:?}, p99 {:?}, longest {:?}",
            latencies.len(),
            percentile(50).copied().unwrap_or_default(),
            percentile(99).copied().unwrap_or_default(),
            latencies.last().copied().unwrap_or_default(),
        );
        log.close();
        if let Some(archiver) = archiver {
            let behind = log.durable().borrow().get() - archiver.archived().borrow().get();
            println!("append/writers/{writers}: the archive is {behind} records behind");
            archiver.stop();
        }
        let records = log.durable().borrow().get();
        drop(log);
        report_opening(directory.path(), records);
    }
    group.finish();
}

/// What the log takes on the disk, and how long it takes to open it again: sled goes through all that
/// was written since it was last opened, so the second time is quicker.
fn report_opening(data_dir: &Path, records: u64) {
    let log = SledLog::open(SledOptions::new(data_dir)).expect("the log opens again");
    let bytes = log.disk_bytes().expect("the disk says");
    drop(log);
    let open = || {
        let began = Instant::now();
        let log = SledLog::open(SledOptions::new(data_dir)).expect("the log opens again");
        let taken = began.elapsed();
        drop(log);
        taken
    };
    println!(
        "append: {records} records take {} bytes each on the disk; opened again in {:?}, then in {:?}",
        bytes / records.max(1),
        open(),
        open(),
    );
}

/// Appends at least `appends` records from `writers` tasks at once; gives the time that `appends` of
/// them took together and each one's own.
async fn run(log: &Arc<dyn Log>, writers: usize, appends: u64) -> (Duration, Vec<Duration>) {
    let each = appends.div_ceil(writers as u64);
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let log = Arc::clone(log);
        tasks.spawn(async move {
            let new = record(writer);
            let mut taken = Vec::with_capacity(each as usize);
            for _ in 0..each {
                let began = Instant::now();
                let batch = Batch { expect: vec![], records: vec![new.clone()] };
                log.append(batch).await.expect("the log appends");
                taken.push(began.elapsed());
            }
            taken
        });
    }
    let latencies = tasks.join_all().await.concat();
    let elapsed = began.elapsed().as_secs_f64() * appends as f64 / (each * writers as u64) as f64;
    (Duration::from_secs_f64(elapsed), latencies)
}

fn record(writer: usize) -> NewRecord {
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

criterion_group!(benches, append);
criterion_main!(benches);
