//! The archiver: a thread that copies what is durable in the log and not yet in the archive.

use std::{
    fmt, io,
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::{runtime, sync::watch, time::sleep};

use super::{
    ArchiveError, ArchiveOptions, eraser::Eraser, packed::Packer, place::Place, segment::Writer,
};
use crate::{Log, follow::Follow};
use logcabin_base::{clock::Clock, owner::OwnerError};
use logcabin_record::Offset;

/// How long new records wait for others, with which they share a sync. With the copy and the sync
/// on top, well below [`LAG`](super::LAG).
const GATHER: Duration = Duration::from_millis(250);

/// How often the archiver syncs while it catches up, so that the archived offset advances.
const SYNC_EVERY: Duration = Duration::from_millis(500);

/// How many records the archiver reads at a time.
const CHUNK: usize = 256;

/// The pause after a failure doubles from the first to the last of these.
pub(super) const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// How often the archiver looks whether its directory is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// For how long it is told that the directory had vanished: long enough for everything that asks
/// now and then.
const TELL_FOR: Duration = Duration::from_secs(600);

/// Copies a log into an archive for as long as it lives.
pub struct Archiver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    archived: watch::Sender<Offset>,
    erased: watch::Sender<Offset>,
    failure: watch::Sender<Option<String>>,
    stopping: watch::Sender<bool>,
}

impl fmt::Debug for Archiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archiver")
            .field("archived", &*self.shared.archived.borrow())
            .finish_non_exhaustive()
    }
}

impl Archiver {
    /// Finds the end of the archive, checks that it is a prefix of `log`, and begins to copy. To be
    /// called before the log is started, so that a refusal comes before the first write. Blocks.
    ///
    /// A failing disk is not an error here: it is reported, and retried in the background.
    ///
    /// # Errors
    /// [`ArchiveError::Ahead`] or [`ArchiveError::Foreign`] when the archive is not a prefix,
    /// [`ArchiveError::Owner`] when its directory is another server's.
    pub fn start(options: ArchiveOptions, log: Arc<dyn Log>) -> Result<Self, ArchiveError> {
        let shared = Arc::new(Shared {
            archived: watch::Sender::new(Offset::ZERO),
            erased: watch::Sender::new(Offset::ZERO),
            failure: watch::Sender::new(None),
            stopping: watch::Sender::new(false),
        });
        let mut worker = Worker {
            packer: Packer::new(&options.dir),
            options,
            log,
            shared: Arc::clone(&shared),
            place: None,
            copying: None,
            synced: None,
            eraser: None,
            told_until: None,
        };
        match worker.open() {
            Ok(()) => {}
            Err(
                error @ (ArchiveError::Ahead { .. }
                | ArchiveError::Foreign { .. }
                | ArchiveError::Owner(
                    OwnerError::InUse { .. }
                    | OwnerError::OtherDataDir { .. }
                    | OwnerError::OtherLog { .. },
                )),
            ) => return Err(error),
            Err(error) => shared.report(&error),
        }
        let thread = match spawn(worker) {
            Ok(thread) => Some(thread),
            Err(error) => {
                shared.report(&format!("the archiver's thread could not be started: {error}"));
                None
            }
        };
        Ok(Self { shared, thread })
    }

    /// The last record that is durable in the archive, as it moves.
    pub fn archived(&self) -> watch::Receiver<Offset> {
        self.shared.archived.subscribe()
    }

    /// The record up to which every erasure has been carried out in the archive, as it moves;
    /// superseded payloads may remain.
    pub fn erased(&self) -> watch::Receiver<Offset> {
        self.shared.erased.subscribe()
    }

    /// What keeps the archiver from copying, while something does.
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.shared.failure.subscribe()
    }

    /// Copies what is durable by now and stops. Must be called after the log was closed. Blocks.
    pub fn stop(mut self) {
        self.stop_thread();
    }

    fn stop_thread(&mut self) {
        self.shared.stopping.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            self.shared.report(&"the archiver's thread panicked");
        }
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

impl Shared {
    fn report(&self, error: &dyn fmt::Display) {
        tracing::error!(%error, "the archive is not being written; the server runs without it");
        self.failure.send_replace(Some(error.to_string()));
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    async fn stop(&self) {
        // The sender is part of `self`: it does not go away.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }
}

/// Starts the thread, which has a runtime of its own to wait in.
fn spawn(worker: Worker) -> io::Result<JoinHandle<()>> {
    let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
    let thread = std::thread::Builder::new().name("log-archiver".to_owned());
    thread.spawn(move || worker.run(&runtime))
}

/// The archiver's thread.
struct Worker {
    options: ArchiveOptions,
    log: Arc<dyn Log>,
    shared: Arc<Shared>,
    place: Option<Place>,
    copying: Option<Copying>,
    /// How much the last writer knew to be on disk, if it failed.
    synced: Option<(PathBuf, u64)>,
    eraser: Option<Eraser>,
    packer: Packer,
    /// Until when it is told that the directory had vanished.
    told_until: Option<Instant>,
}

struct Copying {
    writer: Writer,
    records: Follow,
}

impl Copying {
    /// Copies what follows the records that `writer` has written.
    fn after(writer: Writer, log: &Arc<dyn Log>) -> Self {
        let records = Arc::clone(log).follow(writer.last.next()).in_chunks_of(CHUNK);
        Self { writer, records }
    }
}

impl Worker {
    fn run(mut self, runtime: &runtime::Runtime) {
        let mut pause = RETRY_FIRST;
        loop {
            let last_round = self.shared.is_stopping();
            let round = self.round();
            if round.is_ok() {
                pause = RETRY_FIRST;
                if self.told_until.is_none_or(|until| until <= Instant::now())
                    && self.shared.failure.send_replace(None).is_some()
                {
                    tracing::info!("the archive is being written again");
                }
            }
            if let Err(error) = &round {
                self.shared.report(error);
                // The next one starts from what is known to be carried out.
                self.eraser = None;
                self.packer.stop();
                if let Some(Copying { writer, .. }) = self.copying.take() {
                    self.synced = writer.synced();
                }
            }
            if last_round {
                return;
            }
            let shared = Arc::clone(&self.shared);
            runtime.block_on(async {
                tokio::select! {
                    () = self.rest(round.as_ref().ok().copied(), pause) => {}
                    () = shared.stop() => {}
                }
            });
            if round.is_err() {
                pause = (pause * 2).min(RETRY_LAST);
            }
        }
    }

    /// Opens the archive at its end, in a directory that is this log's.
    fn open(&mut self) -> Result<(), ArchiveError> {
        let place = match &mut self.place {
            Some(place) => place,
            None => self.place.insert(Place::enter(&self.options, &*self.log)?),
        };
        let writer = match Writer::open(&self.options, &*self.log, self.synced.as_ref()) {
            Ok(writer) => writer,
            Err(error) => {
                // Nothing of another server stays locked.
                self.place = None;
                return Err(error);
            }
        };
        place.settle(&*self.log)?;
        self.shared.archived.send_if_modified(|archived| {
            let is_behind = *archived < writer.last;
            *archived = writer.last.max(*archived);
            is_behind
        });
        self.copying = Some(Copying::after(writer, &self.log));
        Ok(())
    }

    /// Gives up a directory that has vanished, so that the next round makes a new one.
    fn look(&mut self) -> Result<(), ArchiveError> {
        let dir = &self.options.dir;
        let Some(place) = self.place.as_ref().filter(|place| !place.is_there(dir)) else {
            return Ok(());
        };
        self.copying = None;
        self.eraser = None;
        self.packer.stop();
        self.synced = None;
        self.told_until = Some(Instant::now() + TELL_FOR);
        self.shared.archived.send_replace(Offset::ZERO);
        if !place.is_on_same_disk(dir) {
            return Err(ArchiveError::Unmounted(dir.clone()));
        }
        self.place = None;
        Err(ArchiveError::Vanished(dir.clone()))
    }

    /// Waits for the next round: for more records or a due erasure; after a failure, for `pause`.
    async fn rest(&mut self, done: Option<Round>, pause: Duration) {
        let (place, dir) = (self.place.as_ref(), &self.options.dir);
        let vanished = async {
            while place.is_none_or(|place| place.is_there(dir)) {
                sleep(LOOK_EVERY).await;
            }
        };
        match (done, &mut self.copying, &self.eraser) {
            (None, ..) => sleep(pause).await,
            (Some(Round::Complete), Some(Copying { records, .. }), Some(eraser)) => {
                tokio::select! {
                    _ = records.wait() => {}
                    () = sleep(eraser.next_look()) => {}
                    () = vanished => {}
                }
                sleep(GATHER).await;
            }
            (Some(_), ..) => sleep(GATHER).await,
        }
    }

    /// Copies everything up to the durable watermark.
    fn round(&mut self) -> Result<Round, ArchiveError> {
        self.look()?;
        if self.copying.is_none() {
            self.open()?;
        }
        let Some(Copying { writer, records }) = &mut self.copying else {
            return Ok(Round::Unscanned);
        };
        let eraser = match &mut self.eraser {
            Some(eraser) => eraser,
            None => self.eraser.insert(Eraser::open(&self.options)?),
        };
        let durable = *self.log.durable().borrow();
        let mut unsynced_since = Instant::now();
        while writer.last < durable
            && let Some(record) = records.ready()?
        {
            writer.append(&record)?;
            eraser.note(&record);
            if unsynced_since.elapsed() >= SYNC_EVERY {
                writer.sync()?;
                self.shared.archived.send_replace(writer.last);
                unsynced_since = Instant::now();
            }
        }
        if writer.last > *self.shared.archived.borrow() {
            writer.sync()?;
            self.shared.archived.send_replace(writer.last);
        }
        if let Some(place) = self.place.as_mut().filter(|place| place.is_unsettled(writer.last)) {
            place.settle(&*self.log)?;
        }
        let more = eraser.scan(&*self.log, writer.last)?;
        let now_ms = Clock::system().now_ms();
        let mut round = if more { Round::Unscanned } else { Round::Complete };
        if !more && eraser.is_due(now_ms)? {
            self.packer.make_way(&eraser.due(now_ms)?);
            // The last segment is opened again in the next round.
            self.copying = None;
            self.synced = None;
            round = Round::Unscanned;
            if let Err(error) = eraser.carry_out(&*self.log, now_ms) {
                tracing::error!(%error, "erasing from the archive failed; retrying later");
                eraser.put_off();
            }
        } else if !more {
            eraser.keep_note()?;
            if !self.shared.is_stopping() && self.packer.step(writer.sealed) {
                round = Round::Unscanned;
            }
        }
        self.shared.erased.send_if_modified(|erased| {
            let moved = *erased != eraser.erased();
            *erased = eraser.erased();
            moved
        });
        Ok(round)
    }
}

/// What a round left to do.
#[derive(Clone, Copy)]
enum Round {
    /// Nothing, until there are new records or an erasure is due.
    Complete,
    /// The next round goes on soon.
    Unscanned,
}
