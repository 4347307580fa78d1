//! Writes snapshots while the server runs, and compares them and the live projections with a replay
//! of the whole log.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tracing::{error, info, warn};

use super::{
    Difference, Header, SnapshotError, SnapshotFile, StartedFrom, differ::difference, list, read,
    write,
};
use crate::shutdown_digest::ShutdownDigest;
use logcabin_base::{
    background::{self, Pace},
    clock::millis,
    disk,
    metrics::{Background, metrics},
    progress::{self, Work},
    shutdown::Shutdown,
    threads,
};
use logcabin_engine::{Engine, OpenError, replay_onto};
use logcabin_log::{Log, verify::Checker};
use logcabin_read::notifications::{Unread, unread::written_at};
use logcabin_record::{Offset, Record};
use logcabin_state::{SECTIONS, Section, State};

/// The file beside the snapshots that stores the newest [`Status`].
const STATUS: &str = "status.json";

/// The file beside the snapshots that stores unread counts.
const COUNTS: &str = "unread.counts";

/// How often it checks whether something is due.
const TICK: Duration = Duration::from_secs(5);

/// The delay before a failed snapshot is retried.
const RETRY: Duration = Duration::from_secs(10 * 60);

/// A shutdown writes no snapshot if it would add fewer records than this to the newest one.
const WORTH_WRITING: u64 = 1_000;

/// When snapshots are written, and how long they are kept.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The number of records between two snapshots.
    pub every: u64,
    /// How many are kept.
    pub keep: usize,
    /// The time from the start, and then between two scrubs: comparisons of the projections with a
    /// replay of the whole log. `None`: never.
    pub scrub_every: Option<Duration>,
}

/// What is known about the projections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Up to this record, the log was intact, and the snapshots and the live projections matched a
    /// replay.
    pub verified_through: Offset,
    /// When, in milliseconds since 1970.
    pub verified_ms: u64,
    /// What differed in the last comparison.
    pub fault: Option<Fault>,
    /// The live projections that another version wrote and that are being rebuilt.
    #[serde(default)]
    pub provisional: Vec<String>,
    /// The newest snapshot.
    #[serde(default)]
    pub snapshot: Offset,
}

/// Projections that differed from a replay of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Where they were.
    pub held: FaultLocation,
    /// The last record at which everything is known to have matched.
    pub after: Offset,
    /// The record at which it did not.
    pub by: Offset,
    /// The first difference, once it is located.
    pub first: Option<Difference>,
    /// All projections that differed.
    pub projections: Vec<String>,
}

/// Where projections are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultLocation {
    /// In a snapshot, which was removed.
    Snapshot,
    /// In the server, which now uses the replayed projections.
    Server,
    /// In the server, which must be restarted: the ends of streams differed, and the open log
    /// depends on them.
    Stale,
}

/// Writes the snapshots of a server. See [`super`].
#[derive(Debug)]
pub struct Keeper {
    dir: PathBuf,
    engine: Arc<Engine>,
    /// Unread counts that are stored beside the snapshots, if there are any.
    unread: Option<Arc<Unread>>,
    policy: Policy,
    shutdown: Shutdown,
    status: Mutex<Status>,
    /// Held while writing or comparing.
    turn: AsyncMutex<()>,
}

/// The result of a replay of the whole log beside the live projections.
struct Rebuilt {
    state: State,
    /// The snapshots that matched it, newest first.
    good: Vec<(Offset, PathBuf)>,
    found: Option<PendingFault>,
}

/// The result of a comparison with the live projections.
struct Compared {
    through: Offset,
    /// Whether the replayed ones replaced them.
    replaced: bool,
    found: Option<PendingFault>,
}

/// A fault whose first difference is still to be located.
struct PendingFault {
    fault: Fault,
    /// The wrong state, as of the offset in the fault or later.
    held: Arc<State>,
    /// The first wrong section.
    section: &'static Section,
}

impl PendingFault {
    /// Locates the first difference, by replays. Blocks.
    fn locate(
        &self,
        good: &[(Offset, PathBuf)],
        log: &dyn Log,
        shutdown: &Shutdown,
    ) -> Result<Difference, SnapshotError> {
        let (by, section) = (self.fault.by, self.section);
        let replayed = |offset| replayed(good, log, offset, shutdown);
        let right = section.outline(&replayed(by)?);
        difference(section, &section.outline(&self.held), &right, by, replayed)
    }
}

impl Keeper {
    /// A keeper of the snapshots in `dir`, and of the projections of `engine`, which started from
    /// `begun`.
    pub fn new(
        dir: PathBuf,
        engine: Arc<Engine>,
        policy: Policy,
        begun: StartedFrom,
        shutdown: Shutdown,
    ) -> Self {
        // The earlier status is only informative; nothing depends on it.
        let known = std::fs::read(dir.join(STATUS)).ok();
        let known = known.and_then(|text| serde_json::from_slice::<Status>(&text).ok());
        let mut known = known.unwrap_or_default();
        // This is the restart that was asked for.
        if let Some(fault) = known.fault.as_mut().filter(|fault| fault.held == FaultLocation::Stale)
        {
            fault.held = FaultLocation::Server;
        }
        let status = Mutex::new(Status {
            provisional: begun.provisional.iter().map(ToString::to_string).collect(),
            snapshot: begun.snapshot.map_or(Offset::ZERO, |newest| newest.offset),
            ..known
        });
        Self { dir, engine, unread: None, policy, shutdown, status, turn: AsyncMutex::default() }
    }

    /// Also stores `unread` counts beside the snapshots, and reads the stored ones. Blocks.
    pub fn with_counts(mut self, unread: Arc<Unread>) -> Self {
        if self.are_exact() {
            let generation = self.engine.state().generation();
            match unread.read(&self.dir.join(COUNTS), &**self.engine.log(), generation) {
                Ok(0) => {}
                Ok(counts) => info!(counts, "loaded the unread counts"),
                Err(error) => warn!(%error, "recounting unread notifications"),
            }
        }
        self.unread = Some(unread);
        self
    }

    /// Writes the present unread counts. Blocks.
    fn write_counts(&self) {
        let Some(unread) = self.unread.as_ref().filter(|_| self.are_exact()) else { return };
        let (path, state) = (self.dir.join(COUNTS), self.engine.state());
        if let Err(error) = unread.write(&path, &**self.engine.log(), &state) {
            warn!(%error, "unread counts could not be saved; they will be recounted after a restart");
        }
    }

    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// The snapshots, the newest first.
    pub fn list(&self) -> Result<Vec<SnapshotFile>, SnapshotError> {
        let mut kept = Vec::new();
        for (offset, path) in list(&self.dir)? {
            match SnapshotFile::read(offset, &path) {
                Ok(one) => kept.push(one),
                // It was replaced meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(SnapshotError::Io { path, source }),
            }
        }
        Ok(kept)
    }

    /// Writes snapshots and scrubs when they are due, until the server stops.
    pub async fn run(self: Arc<Self>) {
        let (mut put_off, mut scrubbed) = (Instant::now(), Instant::now());
        // Projections of another version are rebuilt at once.
        let mut again = (!self.status().provisional.is_empty()).then(Instant::now);
        loop {
            let is_due = self.policy.scrub_every.is_some_and(|every| scrubbed.elapsed() >= every);
            if is_due || again.is_some_and(|again| Instant::now() >= again) {
                scrubbed = Instant::now();
                match self.scrub().await {
                    Ok(_) => {}
                    Err(SnapshotError::Stopped) => return,
                    Err(error) => {
                        error!(%error, "the log could not be compared with its projections");
                    }
                }
                let provisional = !self.status().provisional.is_empty();
                again = provisional.then(|| Instant::now() + RETRY);
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = self.shutdown.given() => return,
            }
            if self.is_due(self.policy.every) && Instant::now() >= put_off {
                match self.make().await {
                    Ok(_) | Err(SnapshotError::Stopped) => {}
                    Err(error) => {
                        warn!(%error, "a snapshot could not be written; retrying later");
                        put_off = Instant::now() + RETRY;
                    }
                }
            }
        }
    }

    /// Whether enough records are in no snapshot, or a snapshot may contain something erased since.
    fn is_due(&self, every: u64) -> bool {
        let newest = self.newest();
        let (erased, _) = self.engine.state().erasures.last();
        let new = self.engine.state().applied().get().saturating_sub(newest.get());
        new >= every || (newest < erased && newest > Offset::ZERO)
    }

    fn newest(&self) -> Offset {
        self.status.lock().snapshot
    }

    /// Writes a snapshot of what is durable now, computed beside the live projections from the
    /// newest snapshot and the records after it. Returns its header.
    pub async fn make(&self) -> Result<Header, SnapshotError> {
        let _turn = self.turn.lock().await;
        let began = Instant::now();
        let made = self.make_now().await;
        if !matches!(made, Err(SnapshotError::Stopped)) {
            metrics().worked(Background::Snapshot, began, made.is_ok());
        }
        made
    }

    async fn make_now(&self) -> Result<Header, SnapshotError> {
        let (dir, log, shutdown) = self.parts();
        let written = apart(move || {
            let began = Instant::now();
            let end = *log.durable().borrow();
            let known = list(&dir)?;
            let state = exact(&known, Offset::MAX, &*log).unwrap_or_default();
            let work = Work::begin(progress::SNAPSHOT, state.applied().get(), end.get());
            advance(&state, &*log, end, &shutdown, |record| {
                work.at(record.offset().get());
                Ok(())
            })?;
            let header = write(&dir, &*log, &state)?;
            info!(
                offset = %header.offset,
                bytes = header.bytes,
                took_ms = millis(began.elapsed()),
                "wrote a snapshot"
            );
            Ok(header)
        })
        .await?;
        self.status.lock().snapshot = written.offset;
        background::at_length(|| self.write_counts());
        self.prune()?;
        Ok(written)
    }

    /// Writes a snapshot of the live projections. Must be called once nothing is applied any more.
    /// Blocks.
    pub fn make_last(&self) -> Result<(), SnapshotError> {
        self.write_counts();
        if !self.is_due(WORTH_WRITING) || !self.are_exact() {
            return Ok(());
        }
        let written = write(&self.dir, &**self.engine.log(), &self.engine.state())?;
        self.status.lock().snapshot = written.offset;
        self.prune()
    }

    /// Whether the live projections are known to match the log.
    fn are_exact(&self) -> bool {
        let status = self.status.lock();
        let is_stale =
            status.fault.as_ref().is_some_and(|fault| fault.held == FaultLocation::Stale);
        status.provisional.is_empty() && !is_stale
    }

    /// Writes the digest of the live projections to `data_dir`, for `logcabin verify`; no digest if
    /// they are not exact. Nothing depends on it. Must be called once nothing is applied any more.
    /// Blocks.
    pub fn note_state(&self, data_dir: &Path) {
        let noted = if self.are_exact() {
            ShutdownDigest::write(data_dir, &self.engine.state()).map(drop)
        } else {
            ShutdownDigest::remove(data_dir)
        };
        if let Err(error) = noted {
            warn!(%error, "the state digest could not be written");
        }
    }

    /// Removes surplus snapshots, those that may contain something erased since, and those beyond
    /// the end of the log, which belong to another log.
    fn prune(&self) -> Result<(), SnapshotError> {
        let (erased, _) = self.engine.state().erasures.last();
        let newest = self.newest();
        let mut kept = 0;
        disk::remove_unfinished(&self.dir)
            .map_err(|source| SnapshotError::Io { path: self.dir.clone(), source })?;
        let counts = self.dir.join(COUNTS);
        if written_at(&counts).is_some_and(|written| written < erased && newest >= erased) {
            std::fs::remove_file(&counts)
                .map_err(|source| SnapshotError::Io { path: counts, source })?;
        }
        for (offset, path) in list(&self.dir)? {
            let stale = offset < erased && newest >= erased;
            if offset > newest || stale || kept >= self.policy.keep {
                std::fs::remove_file(&path).map_err(|source| SnapshotError::Io { path, source })?;
            } else {
                kept += 1;
            }
        }
        Ok(())
    }

    /// Replays the whole log beside the live projections and verifies each record. Compares the
    /// result with the snapshots and with the live projections, section by section, and removes
    /// differences: a wrong snapshot is deleted, and live projections that are wrong or provisional
    /// are replaced by the replayed ones. Readers notice nothing; writes wait while a section is
    /// hashed.
    ///
    /// # Errors
    /// When the log is not intact or cannot be replayed, or the server stops.
    pub async fn scrub(&self) -> Result<Status, SnapshotError> {
        let _turn = self.turn.lock().await;
        let began = Instant::now();
        let scrubbed = self.scrub_now().await;
        if !matches!(scrubbed, Err(SnapshotError::Stopped)) {
            metrics().worked(Background::Scrub, began, scrubbed.is_ok());
            let is_damaged =
                matches!(scrubbed, Err(SnapshotError::Verify(_) | SnapshotError::Read(_)));
            metrics().log_damaged.set(is_damaged.into());
        }
        scrubbed
    }

    async fn scrub_now(&self) -> Result<Status, SnapshotError> {
        let began = Instant::now();
        let provisional = self.status().provisional;
        let (dir, log, shutdown) = self.parts();
        let (engine, keep) = (Arc::clone(&self.engine), !provisional.is_empty());
        let (rebuilt, written) = apart(move || {
            let erased = || engine.state().erasures.last().0;
            let rebuilt = rebuild(&dir, &*log, &erased, &shutdown)?;
            // So that the next start finds what this one lacked.
            let written = if keep { Some(write(&dir, &*log, &rebuilt.state)?) } else { None };
            Ok((rebuilt, written))
        })
        .await?;
        let Rebuilt { state, good, mut found } = rebuilt;
        // At normal priority, because writes wait for it.
        let (engine, skipped) = (Arc::clone(&self.engine), provisional.clone());
        let (dir, log, shutdown) = self.parts();
        let compared = threads::spawn_blocking({
            let (log, shutdown) = (Arc::clone(&log), shutdown.clone());
            move || compare(&engine, &*log, state, &skipped, &shutdown)
        });
        let compared = compared.await.map_err(|panic| SnapshotError::Io {
            path: dir.clone(),
            source: std::io::Error::other(panic),
        })?;
        let Compared { through, replaced, found: in_service } = compared?;
        if let Some(in_service) = in_service {
            let after = found.as_ref().map_or(Offset::ZERO, |found| found.fault.after);
            let fault = Fault { after, ..in_service.fault };
            found = Some(PendingFault { fault, ..in_service });
        }
        let newest = list(&dir)?.first().map_or(Offset::ZERO, |(offset, _)| *offset);
        {
            let mut status = self.status.lock();
            status.snapshot = written.map_or(newest, |written| written.offset);
            status.verified_through = through;
            status.verified_ms = self.engine.clock().now_ms();
            status.fault = found.as_ref().map(|found| found.fault.clone());
            if replaced {
                status.provisional.clear();
            }
        }
        match found {
            Some(found) => {
                let fault = &found.fault;
                let done = match fault.held {
                    FaultLocation::Snapshot | FaultLocation::Server => "they were replaced",
                    FaultLocation::Stale => "restart the server",
                };
                let (after, by, projections) = (fault.after, fault.by, &fault.projections);
                error!(%after, %by, ?projections, "projections differed from a replay of the log: {done}");
                // It takes as long as many replays, and is only for people.
                let located = apart(move || found.locate(&good, &*log, &shutdown)).await;
                match located {
                    Ok(first) => {
                        error!(
                            projection = first.projection,
                            place = first.place,
                            record = first.record.map(Offset::get),
                            "the first difference"
                        );
                        if let Some(fault) = &mut self.status.lock().fault {
                            fault.first = Some(first);
                        }
                    }
                    Err(error) => warn!(%error, "the first difference could not be located"),
                }
            }
            None => info!(
                %through,
                replaced = ?provisional,
                took_ms = millis(began.elapsed()),
                "the log and its projections were compared and match"
            ),
        }
        self.prune()?;
        let status = self.status();
        let path = self.dir.join(STATUS);
        let failed = |source| SnapshotError::Io { path: path.clone(), source };
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        let text = serde_json::to_vec(&status).map_err(|error| failed(error.into()))?;
        disk::write_whole(&path, &text).map_err(failed)?;
        Ok(status)
    }

    fn parts(&self) -> (PathBuf, Arc<dyn Log>, Shutdown) {
        (self.dir.clone(), Arc::clone(self.engine.log()), self.shutdown.clone())
    }
}

/// The projections of the newest of `known` (newest first) that is intact, was written by this
/// version, and is not after `upto`.
fn exact(known: &[(Offset, PathBuf)], upto: Offset, log: &dyn Log) -> Option<State> {
    let fits = known.iter().filter(|(offset, _)| *offset <= upto);
    fits.map(|(_, path)| read(path, log)?.exact(path)).find_map(Result::ok).map(|(state, _)| state)
}

/// Computes the projections from the whole log, verifies each record, and compares the snapshots on
/// the way. `erased` is the last erasure so far.
fn rebuild(
    dir: &Path,
    log: &dyn Log,
    erased: &dyn Fn() -> Offset,
    shutdown: &Shutdown,
) -> Result<Rebuilt, SnapshotError> {
    let mut known = list(dir)?;
    known.reverse();
    let (state, mut checker) = (State::default(), Checker::from_start());
    let end = log.durable().borrow().get();
    let work = Work::begin(progress::COMPARISON, 0, end);
    let mut intact = |record: &Record| {
        work.at(record.offset().get());
        checker.check(record).map_err(SnapshotError::from)
    };
    let (mut good, mut found) = (Vec::new(), None);
    for (offset, path) in known {
        // A snapshot that no start would use does not matter.
        let Ok((held, _)) = read(&path, log).and_then(|held| held.exact(&path)) else { continue };
        advance(&state, log, offset, shutdown, &mut intact)?;
        // Anything erased since, even a moment ago, changes the state there.
        if offset < erased() {
            continue;
        }
        let differing = differing(&held, &state);
        if differing.is_empty() {
            good.insert(0, (offset, path));
            continue;
        }
        error!(%offset, projections = ?names(&differing), "a snapshot differs from a replay of the log");
        std::fs::remove_file(&path).map_err(|source| SnapshotError::Io { path, source })?;
        found.get_or_insert_with(|| PendingFault {
            fault: Fault {
                held: FaultLocation::Snapshot,
                after: good.first().map_or(Offset::ZERO, |(offset, _)| *offset),
                by: offset,
                first: None,
                projections: names(&differing),
            },
            held: Arc::new(held),
            section: differing[0],
        });
    }
    let end = *log.durable().borrow();
    advance(&state, log, end, shutdown, &mut intact)?;
    Ok(Rebuilt { state, good, found })
}

/// Compares the replayed `state` with the live projections, section by section, and replaces them
/// if necessary. `skipped` are the sections that are known to differ.
fn compare(
    engine: &Engine,
    log: &dyn Log,
    state: State,
    skipped: &[String],
    shutdown: &Shutdown,
) -> Result<Compared, SnapshotError> {
    let end = *log.durable().borrow();
    replay_onto(&state, log, end, |_| match shutdown.is_given() {
        true => Err(SnapshotError::Stopped),
        false => Ok(()),
    })?;
    let beside = engine.beside(state)?;
    let mut differing = Vec::new();
    let is_skipped = |section: &&Section| skipped.iter().any(|name| name == section.name);
    for section in SECTIONS.iter().filter(|section| !is_skipped(section)) {
        let differs = |held: &State, made: &State| section.digest(held) != section.digest(made);
        if beside.look(differs).map_err(OpenError::from)? {
            differing.push(section);
        }
    }
    if skipped.is_empty() && differing.is_empty() {
        let through = beside.look(|_, made| made.applied()).map_err(OpenError::from)?;
        return Ok(Compared { through, replaced: false, found: None });
    }
    let (before, through) = beside.replace().map_err(OpenError::from)?;
    let replaced = before.is_some();
    let held = if replaced { FaultLocation::Server } else { FaultLocation::Stale };
    let before = before.unwrap_or_else(|| engine.state().share());
    let found = differing.first().map(|section| PendingFault {
        fault: Fault {
            held,
            after: Offset::ZERO,
            by: through,
            first: None,
            projections: names(&differing),
        },
        held: before,
        section,
    });
    Ok(Compared { through, replaced, found })
}

fn differing(held: &State, right: &State) -> Vec<&'static Section> {
    let differs = |section: &&Section| section.digest(held) != section.digest(right);
    SECTIONS.iter().filter(differs).collect()
}

fn names(sections: &[&Section]) -> Vec<String> {
    sections.iter().map(|section| section.name.to_owned()).collect()
}

/// The replayed state at an offset, from the nearest of the snapshots that are known to be good.
fn replayed(
    good: &[(Offset, PathBuf)],
    log: &dyn Log,
    offset: Offset,
    shutdown: &Shutdown,
) -> Result<State, SnapshotError> {
    let state = exact(good, offset, log).unwrap_or_default();
    advance(&state, log, offset, shutdown, |_| Ok(()))?;
    Ok(state)
}

/// Applies the records that `state` lacks up to `end`, each after `check` has accepted it, while
/// the server runs.
fn advance(
    state: &State,
    log: &dyn Log,
    end: Offset,
    shutdown: &Shutdown,
    mut check: impl FnMut(&Record) -> Result<(), SnapshotError>,
) -> Result<(), SnapshotError> {
    let mut pace = Pace::begin();
    replay_onto(state, log, end, |records| {
        records.iter().try_for_each(&mut check)?;
        pace.rest();
        if shutdown.is_given() { Err(SnapshotError::Stopped) } else { Ok(()) }
    })
}

/// Runs `work` on a thread of its own with low priority.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SnapshotError> + Send + 'static,
) -> Result<T, SnapshotError> {
    let (done, result) = oneshot::channel();
    let run = move || {
        background::stand_back();
        // Nobody waits for the result any more.
        let _ = done.send(work());
    };
    let thread = threads::spawn("snapshot", run);
    thread.map_err(|source| SnapshotError::Io { path: PathBuf::from("(a thread)"), source })?;
    // Its panic has been logged.
    result.await.unwrap_or(Err(SnapshotError::Stopped))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use logcabin_base::clock::Clock;
    use logcabin_decide::account::Register;
    use logcabin_engine::Options;
    use logcabin_log::memory::MemoryLog;
    use logcabin_record::Origin;
    use logcabin_state::sections;

    fn register(writer: usize, number: usize) -> Register {
        Register {
            display_name: Some(format!("Writer {writer}")),
            ..Register::user(ruma::UserId::parse(format!("@w{writer}-{number}:test")).unwrap())
        }
    }

    /// The projections are replaced again and again while there are many writes. Nobody misses a
    /// write, and in the end everything matches the log.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn projections_are_replaced_unnoticed_by_concurrent_writes() {
        const WRITERS: usize = 4;
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(1)));
        let options = Options::small(Clock::manual(1));
        let engine = Arc::new(Engine::open(Arc::clone(&log), options).await.unwrap());
        let directory = tempfile::tempdir().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (engine, done) = (Arc::clone(&engine), Arc::clone(&done));
                tokio::spawn(async move {
                    let mut number = 0;
                    while !done.load(Ordering::Acquire) {
                        let proposal = register(writer, number);
                        let user_id = proposal.user_id.clone();
                        engine.propose(Origin::server(), proposal).await.unwrap().into_inner();
                        assert!(engine.state().accounts.contains(&user_id), "{user_id}");
                        number += 1;
                        // The log must grow more slowly than it is replayed.
                        tokio::time::sleep(Duration::from_millis(3)).await;
                    }
                    number
                })
            })
            .collect();
        let policy = Policy { every: 1_000_000, keep: 2, scrub_every: None };
        for _ in 0..5 {
            let before = engine.state().share();
            let keeper = Keeper::new(
                directory.path().to_owned(),
                Arc::clone(&engine),
                policy,
                StartedFrom { snapshot: None, provisional: vec!["names"] },
                Shutdown::when(std::future::pending()),
            );
            let status = keeper.scrub().await.unwrap();
            assert_eq!((status.fault, &*status.provisional), (None, &[][..]));
            assert!(!Arc::ptr_eq(&before, &engine.state().share()));
            // The replaced state does not change any more.
            assert!(before.applied() <= status.verified_through);
        }
        done.store(true, Ordering::Release);
        let mut written = 0;
        for writer in writers {
            written += writer.await.unwrap();
        }
        let state = engine.state();
        assert_eq!(state.accounts.user_ids().len(), written);
        let (whole, _) = logcabin_engine::replay(&*log, |_, _| {}).unwrap();
        assert!(sections::bytes(&whole) == sections::bytes(&state));
    }
}
