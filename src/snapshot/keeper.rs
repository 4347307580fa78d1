//! Writes snapshots beside a running server, and compares them with what the whole log adds up to.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tracing::{error, info, warn};

use super::{Header, SnapshotError, list, newest, read, write};
use crate::{
    background::{self, Pace},
    disk,
    engine::{Engine, replay_onto},
    log::{Log, verify::Checker},
    record::{Offset, Record},
    shutdown::Shutdown,
    state::State,
};

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

/// What a comparison came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Up to and with this record, the log is intact and adds up to what the snapshots say, as was last
    /// seen.
    pub verified_through: Offset,
    /// The snapshots that are not what the log adds up to: the last offset at which all was equal, and the
    /// first at which it was not.
    pub fault: Option<(Offset, Offset)>,
}

/// Writes the snapshots of a server. See [`super`].
#[derive(Debug)]
pub struct Keeper {
    dir: PathBuf,
    engine: Arc<Engine>,
    policy: Policy,
    shutdown: Shutdown,
    /// The offset of the newest snapshot.
    newest: Mutex<Offset>,
    /// Held by whoever writes or compares.
    turn: AsyncMutex<()>,
}

impl Keeper {
    /// A keeper of the snapshots in `dir`; `newest` is the one that the server began with.
    pub(crate) fn new(
        dir: PathBuf,
        engine: Arc<Engine>,
        policy: Policy,
        newest: Option<Header>,
        shutdown: Shutdown,
    ) -> Self {
        let newest = Mutex::new(newest.map_or(Offset::ZERO, |newest| newest.offset));
        Self { dir, engine, policy, shutdown, newest, turn: AsyncMutex::default() }
    }

    /// Writes snapshots and compares them when it is time, until the server stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut put_off, mut scrubbed) = (Instant::now(), Instant::now());
        loop {
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
            if self.policy.scrub_every.is_some_and(|every| scrubbed.elapsed() >= every) {
                scrubbed = Instant::now();
                match self.scrub().await {
                    Ok(_) | Err(SnapshotError::Stopped) => {}
                    Err(error) => {
                        error!(%error, "the log could not be compared with its projections")
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
        *self.newest.lock()
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
            let state = match newest(&dir, &*log, |_| {})? {
                Some((state, _)) => state,
                None => State::default(),
            };
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
        *self.newest.lock() = written.offset;
        self.prune()?;
        Ok(written)
    }

    /// Writes a snapshot of the projections in service. To be called once nothing is applied any more.
    /// Blocks.
    ///
    /// # Errors
    /// When the disk or the log fails.
    pub(crate) fn make_last(&self) -> Result<(), SnapshotError> {
        if !self.is_due(WORTH_WRITING) {
            return Ok(());
        }
        let written = write(&self.dir, &**self.engine.log(), self.engine.state())?;
        *self.newest.lock() = written.offset;
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

    /// Replays the whole log beside the projections in service, checks each record, and compares what it
    /// adds up to with the snapshots; one that differs is removed.
    ///
    /// # Errors
    /// When the log is not intact or cannot be replayed, or the server stops meanwhile.
    pub async fn scrub(&self) -> Result<Status, SnapshotError> {
        let _turn = self.turn.lock().await;
        let (dir, log, shutdown) = self.parts();
        let (erased, _) = self.engine.state().erasures.last();
        let (through, fault) = apart(move || {
            let mut known: Vec<_> = list(&dir)?;
            known.reverse();
            let (state, mut checker) = (State::default(), Checker::from_start());
            let mut intact = |record: &Record| checker.check(record).map_err(SnapshotError::from);
            let mut equal = Offset::ZERO;
            for (offset, path) in known {
                // What was erased since leaves another state there. What no start would use is no matter.
                if offset < erased {
                    continue;
                }
                let Ok((held, _)) = read(&path, &*log) else { continue };
                let held = held.digest();
                advance(&state, &*log, offset, &shutdown, &mut intact)?;
                if state.digest() != held {
                    std::fs::remove_file(&path)
                        .map_err(|source| SnapshotError::Io { path, source })?;
                    return Ok((equal, Some((equal, offset))));
                }
                equal = offset;
            }
            let end = *log.durable().borrow();
            advance(&state, &*log, end, &shutdown, &mut intact)?;
            Ok((end, None))
        })
        .await?;
        match fault {
            Some((equal, differs)) => error!(
                %equal,
                %differs,
                "a snapshot was not what the log adds up to and is removed; start the server anew if it began with it"
            ),
            None => info!(%through, "the log and its projections were compared: all is equal"),
        }
        Ok(Status { verified_through: through, fault })
    }

    fn parts(&self) -> (PathBuf, Arc<dyn Log>, Shutdown) {
        (self.dir.clone(), Arc::clone(self.engine.log()), self.shutdown.clone())
    }
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
