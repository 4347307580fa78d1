//! Writes snapshots beside a running server, and compares them and the projections in service with what the
//! whole log adds up to.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tracing::{error, info, warn};

use super::{Begun, Difference, Header, SnapshotError, differ::difference, list, read, write};
use crate::{
    background::{self, Pace},
    disk,
    engine::{Engine, OpenError, replay_onto},
    log::{Log, verify::Checker},
    record::{Offset, Record},
    shutdown::Shutdown,
    state::{SECTIONS, Section, State},
};

/// The file beside the snapshots that keeps the newest [`Status`].
const STATUS: &str = "status.json";

/// How often it is looked whether something is due.
const TICK: Duration = Duration::from_secs(5);

/// A snapshot that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(10 * 60);

/// A stop that adds fewer records than this to the newest snapshot does not write another.
const WORTH_WRITING: u64 = 1_000;

/// When snapshots are written, and how long they are kept.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// After how many records the next is written.
    pub every: u64,
    /// How many are kept.
    pub keep: usize,
    /// How long after the start, and then after each other, the projections are compared with a replay of
    /// the whole log; `None`: never.
    pub scrub_every: Option<Duration>,
}

/// What is known of the projections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Up to and with this record the log was found intact, and the snapshots and the projections in service
    /// to be what it adds up to.
    pub verified_through: Offset,
    /// When, in milliseconds since 1970.
    pub verified_ms: u64,
    /// What was not as the log has it when they were compared last.
    pub fault: Option<Fault>,
    /// The projections in service that another version wrote, which are being made again.
    #[serde(default)]
    pub provisional: Vec<String>,
    /// The newest snapshot.
    #[serde(default)]
    pub snapshot: Offset,
}

/// Projections that were not what the log adds up to. They are so no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which.
    pub held: Holder,
    /// The last record at which all was as it should be, as far as is known.
    pub after: Offset,
    /// The record at which it was not.
    pub by: Offset,
    /// The first difference.
    pub first: Difference,
    /// All projections that differed.
    pub projections: Vec<String>,
}

/// Who holds projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Holder {
    /// A snapshot, which was removed.
    Snapshot,
    /// The server, which goes on with what the log adds up to.
    Server,
}

/// Writes the snapshots of a server. See [`super`].
#[derive(Debug)]
pub struct Keeper {
    dir: PathBuf,
    engine: Arc<Engine>,
    policy: Policy,
    shutdown: Shutdown,
    status: Mutex<Status>,
    /// Held by whoever writes or compares.
    turn: AsyncMutex<()>,
}

/// What a replay of the whole log came to, beside the projections in service.
struct Rebuilt {
    state: State,
    /// The snapshots that are what it adds up to.
    good: Vec<(Offset, PathBuf)>,
    fault: Option<Fault>,
}

impl Keeper {
    /// A keeper of the snapshots in `dir`, and of the projections of `engine`, which were begun from `begun`.
    pub(crate) fn new(
        dir: PathBuf,
        engine: Arc<Engine>,
        policy: Policy,
        begun: Begun,
        shutdown: Shutdown,
    ) -> Self {
        // What was seen before is worth telling, and nothing depends on it.
        let known = std::fs::read(dir.join(STATUS)).ok();
        let known = known.and_then(|text| serde_json::from_slice::<Status>(&text).ok());
        let status = Mutex::new(Status {
            provisional: begun.provisional.iter().map(ToString::to_string).collect(),
            snapshot: begun.snapshot.map_or(Offset::ZERO, |newest| newest.offset),
            ..known.unwrap_or_default()
        });
        Self { dir, engine, policy, shutdown, status, turn: AsyncMutex::default() }
    }

    /// What is known of the projections.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Writes snapshots and compares them when it is time, until the server stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut put_off, mut scrubbed) = (Instant::now(), Instant::now());
        // What another version wrote is made again at once.
        let mut scrub_now = !self.status().provisional.is_empty();
        loop {
            if scrub_now || self.policy.scrub_every.is_some_and(|every| scrubbed.elapsed() >= every)
            {
                (scrub_now, scrubbed) = (false, Instant::now());
                match self.scrub().await {
                    Ok(_) | Err(SnapshotError::Stopped) => {}
                    Err(error) => {
                        error!(%error, "the log could not be compared with its projections");
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = self.shutdown.given() => return,
            }
            if self.is_due(self.policy.every) && Instant::now() >= put_off {
                match self.make().await {
                    Ok(_) | Err(SnapshotError::Stopped) => {}
                    Err(error) => {
                        warn!(%error, "a snapshot could not be made; it is tried again");
                        put_off = Instant::now() + RETRY;
                    }
                }
            }
        }
    }

    /// Whether there is so much that no snapshot holds, or something was erased that one may hold.
    fn is_due(&self, every: u64) -> bool {
        let newest = self.newest();
        let (erased, _) = self.engine.state().erasures.last();
        let new = self.engine.state().applied().get().saturating_sub(newest.get());
        new >= every || (newest < erased && newest > Offset::ZERO)
    }

    fn newest(&self) -> Offset {
        self.status.lock().snapshot
    }

    /// Writes a snapshot of what is durable now: of projections that are made beside those in service, from
    /// the newest snapshot and what came after it. Gives its header.
    ///
    /// # Errors
    /// When the disk or the log fails, or the server stops meanwhile.
    pub async fn make(&self) -> Result<Header, SnapshotError> {
        let _turn = self.turn.lock().await;
        let (dir, log, shutdown) = self.parts();
        let written = apart(move || {
            let began = Instant::now();
            let end = *log.durable().borrow();
            let known = list(&dir)?;
            let state = exact(&known, Offset::MAX, &*log).unwrap_or_default();
            advance(&state, &*log, end, &shutdown, |_| Ok(()))?;
            let header = write(&dir, &*log, &state)?;
            info!(
                offset = %header.offset,
                bytes = header.bytes,
                took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                "wrote a snapshot"
            );
            Ok(header)
        })
        .await?;
        self.status.lock().snapshot = written.offset;
        self.prune()?;
        Ok(written)
    }

    /// Writes a snapshot of the projections in service. To be called once nothing is applied any more.
    /// Blocks.
    ///
    /// # Errors
    /// When the disk or the log fails.
    pub(crate) fn make_last(&self) -> Result<(), SnapshotError> {
        if !self.is_due(WORTH_WRITING) || !self.status().provisional.is_empty() {
            return Ok(());
        }
        let written = write(&self.dir, &**self.engine.log(), &self.engine.state())?;
        self.status.lock().snapshot = written.offset;
        self.prune()
    }

    /// Removes the snapshots that are too many, those that may hold what was erased since, and those of
    /// offsets that the log has not come to: they are another log's.
    fn prune(&self) -> Result<(), SnapshotError> {
        let (erased, _) = self.engine.state().erasures.last();
        let newest = self.newest();
        let mut kept = 0;
        disk::remove_unfinished(&self.dir)
            .map_err(|source| SnapshotError::Io { path: self.dir.clone(), source })?;
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

    /// Replays the whole log beside the projections in service and checks each record, compares what it adds up to
    /// with the snapshots and with the projections in service, section by section, and removes what differs: a
    /// snapshot is deleted, and projections in service that differ, or are provisional, make way for those that
    /// the replay made. Readers notice nothing; what is written waits while a section is hashed.
    ///
    /// # Errors
    /// When the log is not intact or cannot be replayed, or the server stops meanwhile.
    pub async fn scrub(&self) -> Result<Status, SnapshotError> {
        let _turn = self.turn.lock().await;
        let began = Instant::now();
        let provisional = self.status().provisional;
        let (erased, _) = self.engine.state().erasures.last();
        let (dir, log, shutdown) = self.parts();
        let keep = !provisional.is_empty();
        let (rebuilt, written) = apart(move || {
            let rebuilt = rebuild(&dir, &*log, erased, &shutdown)?;
            // The next start is to find what this one did not.
            let written = if keep { Some(write(&dir, &*log, &rebuilt.state)?) } else { None };
            Ok((rebuilt, written))
        })
        .await?;
        if let Some(written) = written {
            self.status.lock().snapshot = written.offset;
        }
        // At the priority of everything else: writes wait for it.
        let (engine, skipped) = (Arc::clone(&self.engine), provisional.clone());
        let (_, log, shutdown) = self.parts();
        let compared = tokio::task::spawn_blocking(move || {
            compare(&engine, &*log, rebuilt, &skipped, &shutdown)
        });
        let (through, fault) = compared.await.unwrap_or(Err(SnapshotError::Stopped))?;
        match &fault {
            Some(fault) => error!(
                held = ?fault.held,
                projections = ?fault.projections,
                place = fault.first.place,
                after = %fault.after,
                by = %fault.by,
                record = fault.first.record.map(Offset::get),
                "projections were not what the log adds up to; they were replaced"
            ),
            None => info!(
                %through,
                replaced = ?provisional,
                took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                "the log and its projections were compared: all is equal"
            ),
        }
        let status = {
            let mut status = self.status.lock();
            status.verified_through = through;
            status.verified_ms = self.engine.clock().now_ms();
            status.fault = fault;
            status.provisional.clear();
            status.clone()
        };
        self.prune()?;
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

/// The projections of the newest of `known`, the newest of which comes first, that is whole, was written by
/// this version, and is not after `upto`.
fn exact(known: &[(Offset, PathBuf)], upto: Offset, log: &dyn Log) -> Option<State> {
    let fits = known.iter().filter(|(offset, _)| *offset <= upto);
    fits.map(|(_, path)| read(path, log)?.exact(path)).find_map(Result::ok).map(|(state, _)| state)
}

/// Makes the projections from the whole log, checks each record, and compares the snapshots on the way.
fn rebuild(
    dir: &Path,
    log: &dyn Log,
    erased: Offset,
    shutdown: &Shutdown,
) -> Result<Rebuilt, SnapshotError> {
    let mut known = list(dir)?;
    known.reverse();
    let (state, mut checker) = (State::default(), Checker::from_start());
    let mut intact = |record: &Record| checker.check(record).map_err(SnapshotError::from);
    let (mut good, mut fault) = (Vec::new(), None);
    for (offset, path) in known {
        // What was erased since leaves another state there. What no start would use as it is is no matter.
        if offset < erased {
            continue;
        }
        let Ok((held, _)) = read(&path, log).and_then(|held| held.exact(&path)) else { continue };
        advance(&state, log, offset, shutdown, &mut intact)?;
        let differing = differing(&held, &state);
        let Some(first) = differing.first() else {
            good.insert(0, (offset, path));
            continue;
        };
        std::fs::remove_file(&path).map_err(|source| SnapshotError::Io { path, source })?;
        if fault.is_none() {
            let (held, right) = (first.outline(&held), first.outline(&state));
            let replayed = |offset| replayed(&good, log, offset, shutdown);
            fault = Some(Fault {
                held: Holder::Snapshot,
                after: good.first().map_or(Offset::ZERO, |(offset, _)| *offset),
                by: offset,
                first: difference(first, &held, &right, offset, replayed)?,
                projections: names(&differing),
            });
        }
    }
    let end = *log.durable().borrow();
    advance(&state, log, end, shutdown, &mut intact)?;
    Ok(Rebuilt { state, good, fault })
}

/// Compares what was rebuilt with what is in service, section by section, and puts it in its place if that is
/// to be; `skipped` are the sections that are known to be others.
fn compare(
    engine: &Engine,
    log: &dyn Log,
    rebuilt: Rebuilt,
    skipped: &[String],
    shutdown: &Shutdown,
) -> Result<(Offset, Option<Fault>), SnapshotError> {
    let Rebuilt { state, good, mut fault } = rebuilt;
    let end = *log.durable().borrow();
    replay_onto(&state, log, end, |_| match shutdown.is_given() {
        true => Err(SnapshotError::Stopped),
        false => Ok(()),
    })?;
    let beside = engine.beside(state)?;
    let (mut first, mut differing) = (None, Vec::new());
    let is_skipped = |section: &&Section| skipped.iter().any(|name| name == section.name);
    for section in SECTIONS.iter().filter(|section| !is_skipped(section)) {
        let look = |in_service: &State, made: &State| {
            if section.digest(in_service) == section.digest(made) {
                return;
            }
            differing.push(section);
            // Both go on to change after this.
            first.get_or_insert_with(|| {
                (section, section.outline(in_service), section.outline(made), made.applied())
            });
        };
        beside.look(look).map_err(OpenError::from)?;
    }
    let through = if skipped.is_empty() && differing.is_empty() {
        beside.look(|_, made| made.applied())
    } else {
        beside.replace()
    };
    let through = through.map_err(OpenError::from)?;
    if let Some((section, held, right, by)) = first {
        let replayed = |offset| replayed(&good, log, offset, shutdown);
        fault = Some(Fault {
            held: Holder::Server,
            after: fault.as_ref().map_or(Offset::ZERO, |fault| fault.after),
            by,
            first: difference(section, &held, &right, by, replayed)?,
            projections: names(&differing),
        });
    }
    Ok((through, fault))
}

fn differing(held: &State, right: &State) -> Vec<&'static Section> {
    let differs = |section: &&Section| section.digest(held) != section.digest(right);
    SECTIONS.iter().filter(differs).collect()
}

fn names(sections: &[&Section]) -> Vec<String> {
    sections.iter().map(|section| section.name.to_owned()).collect()
}

/// What the log adds up to at an offset, from the nearest of the snapshots that are known to be good.
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

/// Applies the records that `state` lacks up to `end`, each once `check` has looked at it, as long as the
/// server runs.
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

/// Runs `work` on a thread of its own, which stands back behind all others.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SnapshotError> + Send + 'static,
) -> Result<T, SnapshotError> {
    let (done, result) = oneshot::channel();
    let run = move || {
        background::stand_back();
        // Nobody waits any more: then nobody wants to know.
        let _ = done.send(work());
    };
    let thread = std::thread::Builder::new().name("snapshot".to_owned()).spawn(run);
    thread.map_err(|source| SnapshotError::Io { path: PathBuf::from("(a thread)"), source })?;
    // A panic in there has been logged.
    result.await.unwrap_or(Err(SnapshotError::Stopped))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{
        clock::Clock,
        decide::account::{Met, Register},
        engine::Options,
        log::memory::MemoryLog,
        record::{Origin, command::AccountKind},
        state::sections,
    };

    fn register(writer: usize, number: usize) -> Register {
        Register {
            user_id: ruma::UserId::parse(format!("@w{writer}-{number}:test")).unwrap(),
            kind: AccountKind::User,
            password: None,
            display_name: Some(format!("Writer {writer}")),
            login: None,
            met: Met::default(),
        }
    }

    /// Others take the place of the projections in service again and again while many write: nobody misses
    /// what they wrote, and in the end all is what the log adds up to.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn projections_make_way_for_others_unnoticed_by_those_who_write() {
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
                        // The log is to grow more slowly than it is replayed.
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
                Begun { snapshot: None, provisional: vec!["names"] },
                Shutdown::when(std::future::pending()),
            );
            let status = keeper.scrub().await.unwrap();
            assert_eq!((status.fault, &*status.provisional), (None, &[][..]));
            assert!(!Arc::ptr_eq(&before, &engine.state().share()));
            // What has made way stays as it was.
            assert!(before.applied() <= status.verified_through);
        }
        done.store(true, Ordering::Release);
        let mut written = 0;
        for writer in writers {
            written += writer.await.unwrap();
        }
        let state = engine.state();
        assert_eq!(state.accounts.user_ids().len(), written);
        let (whole, _) = crate::engine::replay(&*log, |_, _| {}).unwrap();
        assert!(sections::bytes(&whole) == sections::bytes(&state));
    }
}
