//! What the log consists of: records and bytes by kind, room, user and day, and how busy its hours
//! were.
//!
//! [`Tally`] follows the log behind everybody else, reads each record once, and keeps running
//! totals of a bounded size, so that nobody has to read the log to learn them. They are kept on
//! disk now and then; counting goes on after a restart where it was, and begins again if the file
//! is missing, damaged, or of another log.

mod counts;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tracing::{info, warn};

pub use self::counts::{Amount, Counts, HOURS, Mark, NamedAmounts, sizes};
use logcabin_base::{
    background::{Pace, at_length},
    disk,
    shutdown::Shutdown,
    threads,
};
use logcabin_decide::erasure::files_in;
use logcabin_engine::Engine;
use logcabin_log::{
    ReadError,
    erase::{MAX_ERASED, erasure},
};
use logcabin_record::{Offset, Record};
use logcabin_state::media::Item;

const FILE: &str = "console.tally";

/// The version of the file. One of another version is not read.
const FORMAT: u32 = 2;

/// Records that are read together.
const CHUNK: usize = 512;

/// New records are gathered for so long.
const GATHER: Duration = Duration::from_secs(1);

/// How often the totals are kept on disk.
const KEEP_EVERY: Duration = Duration::from_secs(600);

/// The pause after the log could not be read.
const RETRY: Duration = Duration::from_secs(60);

/// The totals, and where they are kept.
#[derive(Debug)]
pub struct Tally {
    file: PathBuf,
    counts: Mutex<Counts>,
}

#[derive(Serialize)]
struct StoredCountsRef<'a>(u32, &'a Counts);

#[derive(Deserialize)]
struct StoredCounts(u32, Counts);

impl Tally {
    /// The totals that an earlier process kept in `data_dir`, or none yet.
    pub fn of(data_dir: &Path) -> Self {
        let file = data_dir.join(FILE);
        let counts = std::fs::read(&file).ok().and_then(|bytes| read(&bytes));
        Self { file, counts: Mutex::new(counts.unwrap_or_default()) }
    }

    /// Shows the totals to `look`.
    pub fn look<T>(&self, look: impl FnOnce(&Counts) -> T) -> T {
        look(&self.counts.lock())
    }

    /// Counts what is appended until the server stops.
    pub async fn follow(self: Arc<Self>, engine: Arc<Engine>, shutdown: Shutdown) {
        let mut kept = (Instant::now(), self.look(|counts| counts.through));
        let mut head = engine.head().follow();
        while !shutdown.is_given() {
            let (tally, counted_by) = (Arc::clone(&self), Arc::clone(&engine));
            let stopping = shutdown.clone();
            let counting = threads::spawn_blocking(move || tally.count(&counted_by, &stopping));
            let pause = match counting.await {
                Ok(Ok(())) => GATHER,
                Ok(Err(error)) => {
                    warn!(%error, "the records could not be counted for the console");
                    RETRY
                }
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            };
            let through = self.look(|counts| counts.through);
            if kept.0.elapsed() >= KEEP_EVERY && kept.1 != through {
                at_length(|| self.keep());
                kept = (Instant::now(), through);
            }
            let more = async {
                // It fails when the engine is gone, and then the server stops.
                let _ = head.wait_for(|head| *head > through).await;
                sleep(pause).await;
            };
            tokio::select! {
                () = more => {}
                () = sleep(KEEP_EVERY) => {}
                () = shutdown.given() => {}
            }
        }
        at_length(|| self.keep());
    }

    /// Counts all records that are not counted yet. Blocks, and leaves half of a processor to
    /// others.
    fn count(&self, engine: &Engine, stopping: &Shutdown) -> Result<(), ReadError> {
        let log = engine.log();
        let mut through = self.look(|counts| counts.through);
        if !self.belongs_to(engine)? {
            info!("the records are counted for the console from the first one on");
            *self.counts.lock() = Counts::default();
            through = Offset::ZERO;
        }
        let address = format!("mxc://{}/", engine.env().server.name);
        let mut pace = Pace::begin();
        loop {
            let end = engine.head().offset();
            let left = usize::try_from(end.get().saturating_sub(through.get())).unwrap_or(CHUNK);
            if left == 0 || stopping.is_given() {
                return Ok(());
            }
            let records = log.read(through.next(), left.min(CHUNK))?;
            for record in &records {
                let erased = Self::erased_by(engine, record)?;
                let files = files_of(engine, record, &address);
                let mut counts = self.counts.lock();
                counts.add(record);
                erased.iter().for_each(|record| counts.erase(record));
                if let Some(room_id) = record.header.stream.room_id() {
                    files.iter().for_each(|bytes| counts.add_file(room_id.as_str(), *bytes));
                }
            }
            let missing = || ReadError::Missing(through.next());
            through = records.last().map(Record::offset).ok_or_else(missing)?;
            if left > CHUNK {
                pace.rest();
            }
        }
    }

    /// Whether the totals are of this log. After a restore they may be of what was given up.
    fn belongs_to(&self, engine: &Engine) -> Result<bool, ReadError> {
        let through = self.look(|counts| counts.through);
        let record = match through <= engine.head().offset() {
            true => engine.log().get(through)?,
            false => None,
        };
        Ok(self.look(|counts| counts.are_of(record.map(|record| record.chain))))
    }

    /// The records that `record` erases, as they are.
    fn erased_by(engine: &Engine, record: &Record) -> Result<Vec<Record>, ReadError> {
        let Some(erasure) = erasure(record) else { return Ok(Vec::new()) };
        let reduced = erasure.reduced.iter().map(|reduced| reduced.offset);
        let runs = erasure.runs().flat_map(|(first, last)| first.get()..=last.get());
        let mut erased = Vec::new();
        // The record comes from a log, and may be malformed.
        let most = usize::try_from(MAX_ERASED).unwrap_or(usize::MAX);
        let named = reduced.chain(runs.map(Offset::new)).take(most);
        for offset in named.filter(|offset| *offset < record.offset()) {
            erased.extend(engine.log().get(offset)?);
        }
        Ok(erased)
    }

    fn keep(&self) {
        let body = self.look(|counts| postcard::to_stdvec(&StoredCountsRef(FORMAT, counts)));
        let kept = body.map_err(std::io::Error::other).and_then(|body| {
            let hash = *blake3::hash(&body).as_bytes();
            disk::write_whole(&self.file, &[&hash[..], &body].concat())
        });
        // Without it, more is counted again after the next start.
        if let Err(error) = kept {
            warn!(%error, "the totals for the console cannot be kept");
        }
    }
}

fn read(bytes: &[u8]) -> Option<Counts> {
    let (hash, body) = bytes.split_at_checked(32)?;
    if blake3::hash(body).as_bytes() != hash {
        return None;
    }
    let StoredCounts(format, counts) = postcard::from_bytes(body).ok()?;
    (format == FORMAT).then_some(counts)
}

/// The sizes of this server's files that an event has sent to its room. State does not count: each
/// membership repeats a picture.
fn files_of(engine: &Engine, record: &Record, address: &str) -> Vec<u64> {
    let text = record.payload.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let is_message = text.is_some_and(|text| !text.contains("\"state_key\":"));
    if &*record.header.kind != "room.event" || !is_message {
        return Vec::new();
    }
    let size = |id: &String| match engine.state().media.get(id) {
        Some(Item::Stored(stored)) => Some(stored.size),
        _ => None,
    };
    let mut ids: Vec<String> = files_in(record, address).collect();
    ids.dedup();
    ids.iter().filter_map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_base::clock::Clock;
    use logcabin_engine::Options;
    use logcabin_log::{Batch, Log, memory::MemoryLog, samples::typing};

    async fn engine(clock: Clock) -> Arc<Engine> {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
        Arc::new(Engine::open(log, Options::small(clock)).await.unwrap())
    }

    async fn write(engine: &Engine, records: usize) {
        let records = (0..records).map(|_| typing()).collect();
        engine.log().append(Batch { expect: Vec::new(), records }).await.unwrap();
    }

    #[tokio::test]
    async fn counting_goes_on_after_a_restart_and_begins_again_for_another_log() {
        let dir = tempfile::tempdir().unwrap();
        let going_on = Shutdown::when(std::future::pending());
        let one = engine(Clock::manual(1)).await;
        write(&one, 700).await;
        let tally = Tally::of(dir.path());
        tally.count(&one, &going_on).unwrap();
        let typed = |tally: &Tally| tally.look(|counts| counts.kinds["room.typing"].records);
        assert_eq!(typed(&tally), 700);
        tally.keep();
        write(&one, 5).await;

        // Whoever counted again what was counted would have more.
        let again = Tally::of(dir.path());
        assert_eq!(typed(&again), 700);
        again.count(&one, &going_on).unwrap();
        assert_eq!(typed(&again), 705);
        again.keep();

        // A log with as many records, and a shorter one.
        for (records, seed) in [(900, 2), (3, 3)] {
            let other = engine(Clock::manual(seed)).await;
            write(&other, records).await;
            let tally = Tally::of(dir.path());
            tally.count(&other, &going_on).unwrap();
            assert_eq!(typed(&tally), records as u64);
        }

        // A damaged file, and one of nothing.
        let file = dir.path().join(FILE);
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        for bytes in [&bytes[..], &bytes[..5], b""] {
            std::fs::write(&file, bytes).unwrap();
            assert_eq!(Tally::of(dir.path()).look(|counts| counts.through), Offset::ZERO);
        }
    }
}
