//! A changed byte, and a dropped, repeated or swapped record, are located: in frames in memory, in
//! the files of an archive, and in the default store.
//!
//! Each test prints its seed; `LOGCABIN_TAMPER_SEED` repeats it, and `LOGCABIN_TAMPER_ROUNDS` names
//! another number of places.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use logcabin::{
    clock::{Clock, random_bytes},
    history::{Source, check::check_all},
    log::{
        AppendError, Appending, Batch, Follower, Log, ReadError, StreamHeads,
        archive::{ArchiveOptions, ArchiveReader, Archiver, verify_archive},
        memory::MemoryLog,
        store::{OpenError, SledLog, SledOptions, log_dir},
        verify,
    },
    record::{
        Offset, Record,
        codec::{self, Frame},
    },
};
use tokio::sync::watch;

/// Numbers that follow from a seed: splitmix64.
struct Random(u64);

impl Random {
    fn begin(test: &str) -> Self {
        let seed = std::env::var("LOGCABIN_TAMPER_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from_be_bytes(random_bytes()));
        println!("{test}: LOGCABIN_TAMPER_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn rounds(usual: usize) -> usize {
    let given = std::env::var("LOGCABIN_TAMPER_ROUNDS").ok().and_then(|given| given.parse().ok());
    given.unwrap_or(usual)
}

/// A log with every kind of record, some of them erased.
fn records() -> Vec<Record> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/0.1.0");
    let archive = ArchiveReader::open(&golden).unwrap();
    archive.records(Offset::ZERO).map(Result::unwrap).collect()
}

fn frames() -> Vec<Vec<u8>> {
    records().iter().map(|record| codec::encode_frame(record).unwrap()).collect()
}

/// What is done to a log, and the place at which it has to be found.
#[derive(Clone, Copy, Debug)]
enum Tampering {
    /// One bit of this record is flipped.
    Bit { record: usize, byte: usize, bit: u8 },
    /// The record is gone, and its place is empty.
    Hole { record: usize },
    /// The record is gone, and all later ones move up.
    Dropped { record: usize },
    /// The record is there twice, and all later ones move down.
    Repeated { record: usize },
    /// Two records stand in each other's place.
    Swapped { record: usize, other: usize },
}

impl Tampering {
    fn random(random: &mut Random, frames: &[Vec<u8>]) -> Self {
        let record = random.below(frames.len());
        match random.below(8) {
            // Nothing else in a log tells that its last record is missing.
            0 if record + 1 < frames.len() => Self::Hole { record },
            1 if record + 1 < frames.len() => Self::Dropped { record },
            2 => Self::Repeated { record },
            3 => match random.below(frames.len()) {
                other if other == record => Self::Repeated { record },
                other => Self::Swapped { record: record.min(other), other: record.max(other) },
            },
            _ => {
                let byte = random.below(frames[record].len());
                Self::Bit { record, byte, bit: random.below(8) as u8 }
            }
        }
    }

    /// The offset of the first changed place.
    fn place(self) -> u64 {
        match self {
            Self::Bit { record, .. }
            | Self::Hole { record }
            | Self::Dropped { record }
            | Self::Swapped { record, .. } => record as u64 + 1,
            Self::Repeated { record } => record as u64 + 2,
        }
    }

    /// The content of each place afterwards.
    fn apply(self, frames: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
        let mut places: Vec<_> = frames.iter().cloned().map(Some).collect();
        match self {
            Self::Bit { record, byte, bit } => {
                let mut frame = frames[record].clone();
                frame[byte] ^= 1 << bit;
                places[record] = Some(frame);
            }
            Self::Hole { record } => places[record] = None,
            Self::Dropped { record } => drop(places.remove(record)),
            Self::Repeated { record } => places.insert(record, Some(frames[record].clone())),
            Self::Swapped { record, other } => places.swap(record, other),
        }
        places
    }
}

/// A store that keeps frames under offsets, and nothing else.
struct Frames {
    frames: BTreeMap<u64, Bytes>,
    durable: watch::Sender<Offset>,
}

impl Frames {
    fn new(places: Vec<Option<Vec<u8>>>) -> Self {
        let end = Offset::new(places.len() as u64);
        let frames = places.into_iter().zip(1..);
        let frames = frames.filter_map(|(frame, place)| Some((place, Bytes::from(frame?))));
        Self { frames: frames.collect(), durable: watch::Sender::new(end) }
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Frames")
    }
}

impl Log for Frames {
    fn append(&self, _: Batch) -> Appending<'_> {
        Box::pin(async { Err(AppendError::Closed) })
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        let Some(frame) = self.frames.get(&offset.get()) else { return Ok(None) };
        let damaged = |source| ReadError::Damaged { offset, source };
        Frame::decode(frame).map(|frame| Some(frame.record)).map_err(damaged)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        let end = self.durable.borrow().get();
        let places = (from.get()..=end).take(limit).map(Offset::new);
        places.map(|place| self.get(place)?.ok_or(ReadError::Missing(place))).collect()
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        self.durable.subscribe()
    }

    fn start(&self, _: StreamHeads, _: Follower) {}

    fn close(&self) {}
}

#[test]
fn a_change_to_a_log_is_located() {
    let frames = frames();
    let whole = Frames::new(frames.iter().cloned().map(Some).collect());
    assert_eq!(verify(&whole, |_| ()).unwrap().records, frames.len() as u64);
    let mut random = Random::begin("frames");
    for round in 0..rounds(1000) {
        let tampering = Tampering::random(&mut random, &frames);
        match verify(&Frames::new(tampering.apply(&frames)), |_| ()) {
            Ok(_) => panic!("round {round}: {tampering:?} was not found"),
            Err(error) => {
                assert_eq!(
                    error.offset.get(),
                    tampering.place(),
                    "{round}: {tampering:?}: {error}"
                );
            }
        }
    }
}

/// An archive of several sealed segments and an open one, with the place of each entry in its file.
struct Archive {
    dir: PathBuf,
    /// Each file with its bytes, and each entry's end with the record that it is of.
    files: Vec<(PathBuf, Vec<u8>, Ends)>,
}

type Ends = Vec<(usize, u64)>;

impl Archive {
    fn make(dir: &Path) -> Self {
        let records = records().into_iter().map(Arc::new).collect();
        let log: Arc<dyn Log> = Arc::new(MemoryLog::with_records(Clock::default(), records));
        let options = ArchiveOptions { segment_bytes: 30_000, ..ArchiveOptions::new(dir) };
        let archiver = Archiver::start(options, Arc::clone(&log)).unwrap();
        log.close();
        archiver.stop();
        let archive = ArchiveReader::open(dir).unwrap();
        let files = archive.segments().map(|first| {
            let path = dir.join(format!("{:020}.lcseg", first.get()));
            let bytes = std::fs::read(&path).unwrap();
            let (mut at, mut record, mut ends) = (48, first.get(), vec![(48, first.get())]);
            while bytes.get(at) == Some(&b'R') {
                let length = u32::from_be_bytes(bytes[at + 1..at + 5].try_into().unwrap());
                at += 5 + length as usize;
                ends.push((at, record));
                record += 1;
            }
            // The seal stands where the next record would.
            ends.push((bytes.len(), record));
            (path, bytes, ends)
        });
        Self { dir: dir.to_owned(), files: files.collect() }
    }

    /// The first record that is not intact (`None` if all are), and whether that is reported as
    /// damage.
    fn fault(&self) -> (Option<u64>, bool) {
        let mut last = 0;
        match verify_archive(&self.dir, |offset| last = offset.get()) {
            Ok(verified) => (verified.torn.map(|_| verified.last.get() + 1), false),
            Err(_) => (Some(last + 1), true),
        }
    }
}

#[test]
fn a_change_to_an_archive_is_located() {
    let directory = tempfile::tempdir().unwrap();
    let archive = Archive::make(directory.path());
    assert!(archive.files.len() > 3, "several segments");
    assert_eq!(archive.fault(), (None, false));
    let mut random = Random::begin("archive");
    for round in 0..rounds(300) {
        let (path, bytes, ends) = &archive.files[random.below(archive.files.len())];
        let last_file = path == &archive.files[archive.files.len() - 1].0;
        let entries = ends.len() - 2;
        let entry = random.below(entries);
        let [from, to] = [ends[entry].0, ends[entry + 1].0];
        let record = ends[entry + 1].1;
        let (what, changed, place) = match random.below(8) {
            0 if !(last_file && entry + 1 == entries) => {
                ("dropped", [&bytes[..from], &bytes[to..]].concat(), record)
            }
            1 => ("repeated", [&bytes[..to], &bytes[from..]].concat(), record + 1),
            2 if entry + 1 < entries => {
                let end = ends[entry + 2].0;
                let swapped = [&bytes[..from], &bytes[to..end], &bytes[from..to], &bytes[end..]];
                ("swapped", swapped.concat(), record)
            }
            _ => {
                let at = random.below(bytes.len());
                let (_, of) = ends.iter().find(|(end, _)| at < *end).unwrap();
                let mut changed = bytes.clone();
                changed[at] ^= 1 << random.below(8);
                ("bit", changed, *of)
            }
        };
        std::fs::write(path, changed).unwrap();
        let (fault, damage) = archive.fault();
        let name = path.file_name().unwrap().to_string_lossy();
        assert_eq!(fault, Some(place), "round {round}: {what} record {record} of {name}");
        // An entry at the very end may just be unfinished: only the log can tell.
        let end = archive.files.last().unwrap().2[entries_of(&archive) - 1].1;
        assert!(damage || place >= end, "round {round}: {what} record {record} of {name}");
        if round % 50 == 0 && damage {
            let report = check_all(&Source::archive(&archive.dir), None).unwrap();
            assert_eq!(report.fault, Some(Offset::new(place)), "{report:?}");
        }
        std::fs::write(path, bytes).unwrap();
    }
}

/// How many ends of entries the last file of an archive has.
fn entries_of(archive: &Archive) -> usize {
    archive.files.last().unwrap().2.len() - 1
}

fn with_records<T>(data_dir: &Path, work: impl FnOnce(&sled::Tree) -> T) -> T {
    let config = sled::Config::new().path(log_dir(data_dir)).flush_every_ms(None);
    let config = config.segment_size(16 * 1024 * 1024);
    // Threads of a database that was dropped give up its lock when they come to it.
    let deadline = Instant::now() + Duration::from_secs(30);
    let db = loop {
        match config.open() {
            Ok(db) => break db,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let done = work(&db.open_tree("records").unwrap());
    db.flush().unwrap();
    done
}

/// Writes only what differs from before.
fn store(tree: &sled::Tree, before: &[Option<Vec<u8>>], places: &[Option<Vec<u8>>]) {
    for index in 0..before.len().max(places.len()) {
        let [was, is] = [before, places].map(|all| all.get(index).and_then(Option::as_ref));
        let place = (index as u64 + 1).to_be_bytes();
        match is {
            _ if was == is => {}
            Some(frame) => drop(tree.insert(place, &frame[..]).unwrap()),
            None => drop(tree.remove(place).unwrap()),
        }
    }
}

#[test]
fn a_change_to_the_default_store_is_located() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let frames = frames();
    // Creates the directory and an empty log.
    drop(SledLog::open(SledOptions::new(data_dir)).unwrap());
    let whole: Vec<_> = frames.iter().cloned().map(Some).collect();
    with_records(data_dir, |tree| store(tree, &[], &whole));
    let options = || SledOptions { verify_tail: 0, ..SledOptions::new(data_dir) };
    let log = SledLog::open(options()).unwrap();
    assert_eq!(verify(&log, |_| ()).unwrap().records, frames.len() as u64);
    // As a server leaves it: the end is noted outside of the store, too.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    log.start(StreamHeads::default(), Box::new(|_| ()));
    log.close();
    drop(log);
    let mut random = Random::begin("default store");
    for round in 0..rounds(40) {
        let tampering = Tampering::random(&mut random, &frames);
        let places = tampering.apply(&frames);
        with_records(data_dir, |tree| store(tree, &whole, &places));
        let found = match SledLog::open(options()) {
            Ok(log) => verify(&log, |_| ()).err().map(|error| error.offset),
            Err(OpenError::Damaged(fault)) => Some(fault.offset),
            // If the last record says that its batch continues, the whole batch is dropped.
            Err(OpenError::Lost { found, .. }) => Some(found.next()),
            Err(error) => panic!("round {round}: {tampering:?}: {error}"),
        };
        let found = found.map(Offset::get);
        assert_eq!(found, Some(tampering.place()), "round {round}: {tampering:?}");
        with_records(data_dir, |tree| store(tree, &places, &whole));
    }
}
