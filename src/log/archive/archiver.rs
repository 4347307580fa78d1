//! The archiver: a thread that copies what is durable in the log and not yet in the archive.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{ArchiveError, ArchiveOptions, eraser::Eraser, segment::Writer};
use crate::{base::clock::Clock, log::Log, record::Offset};

/// How often the archiver looks for new records. With a copy and a sync on top, well below
/// [`LAG`](super::LAG).
const INTERVAL: Duration = Duration::from_millis(250);

/// Catching up, too, syncs this often, so that what is archived counts.
const SYNC_EVERY: Duration = Duration::from_millis(500);

/// How many records the archiver reads at a time.
const CHUNK: usize = 256;

/// The pause after a failure doubles from the first to the last of these.
pub(super) const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);

/// Copies a log into an archive for as long as it lives.
pub struct Archiver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    archived: watch::Sender<Offset>,
    erased: watch::Sender<Offset>,
    failure: watch::Sender<Option<String>>,
    stopping: AtomicBool,
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
    /// A failing disk is no error here: it is reported, and tried again in the background.
    ///
    /// # Errors
    /// [`ArchiveError::Ahead`] or [`ArchiveError::Foreign`] when the archive is not a prefix.
    pub fn start(options: ArchiveOptions, log: Arc<dyn Log>) -> Result<Self, ArchiveError> {
        let shared = Arc::new(Shared {
            archived: watch::Sender::new(Offset::ZERO),
            erased: watch::Sender::new(Offset::ZERO),
            failure: watch::Sender::new(None),
            stopping: AtomicBool::new(false),
        });
        let writer = match Writer::open(&options, &*log, None) {
            Ok(writer) => {
                shared.archived.send_replace(writer.last);
                Some(writer)
            }
            Err(error @ (ArchiveError::Ahead { .. } | ArchiveError::Foreign { .. })) => {
                return Err(error);
            }
            Err(error) => {
                shared.report(&error);
                None
            }
        };
        let shared_with = Arc::clone(&shared);
        let worker =
            Worker { options, log, shared: shared_with, writer, synced: None, eraser: None };
        let spawned =
            std::thread::Builder::new().name("log-archiver".to_owned()).spawn(move || worker.run());
        let thread = match spawned {
            Ok(thread) => Some(thread),
            Err(error) => {
                shared.report(&format!("the archiver's thread could not be started: {error}"));
                None
            }
        };
        Ok(Self { shared, thread })
    }

    /// The last record that is durable in the archive, as it moves.
    #[must_use]
    pub fn archived(&self) -> watch::Receiver<Offset> {
        self.shared.archived.subscribe()
    }

    /// The record up to which every erasure has been carried out in the archive, as it moves, but
    /// for what had only done its work.
    #[must_use]
    pub fn erased(&self) -> watch::Receiver<Offset> {
        self.shared.erased.subscribe()
    }

    /// What keeps the archiver from copying, while something does.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.shared.failure.subscribe()
    }

    /// Copies what is durable by now and stops. To be called after the log was closed. Blocks.
    pub fn stop(mut self) {
        self.stop_thread();
    }

    fn stop_thread(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                self.shared.report(&"the archiver's thread panicked");
            }
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
        tracing::error!(%error, "the archive is not being written; the server goes on without it");
        self.failure.send_replace(Some(error.to_string()));
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}

/// The archiver's thread.
struct Worker {
    options: ArchiveOptions,
    log: Arc<dyn Log>,
    shared: Arc<Shared>,
    writer: Option<Writer>,
    /// How much the last writer knew to be on disk, if it failed.
    synced: Option<(PathBuf, u64)>,
    eraser: Option<Eraser>,
}

impl Worker {
    fn run(mut self) {
        let mut pause = RETRY_FIRST;
        loop {
            let last_round = self.shared.stopping();
            match self.round() {
                Ok(()) => {
                    pause = RETRY_FIRST;
                    if self.shared.failure.send_replace(None).is_some() {
                        tracing::info!("the archive is being written again");
                    }
                    if last_round {
                        return;
                    }
                    std::thread::park_timeout(INTERVAL);
                }
                Err(error) => {
                    // It begins again with what is known to be carried out.
                    self.eraser = None;
                    self.shared.report(&error);
                    if let Some(writer) = self.writer.take() {
                        self.synced = writer.synced();
                    }
                    if last_round {
                        return;
                    }
                    std::thread::park_timeout(pause);
                    pause = (pause * 2).min(RETRY_LAST);
                }
            }
        }
    }

    /// Copies everything up to the durable watermark.
    fn round(&mut self) -> Result<(), ArchiveError> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let writer = Writer::open(&self.options, &*self.log, self.synced.as_ref())?;
                self.writer.insert(writer)
            }
        };
        let eraser = match &mut self.eraser {
            Some(eraser) => eraser,
            None => self.eraser.insert(Eraser::open(&self.options)?),
        };
        let durable = *self.log.durable().borrow();
        let mut unsynced_since = Instant::now();
        while writer.last < durable {
            for record in self.log.read(writer.last.next(), CHUNK)? {
                writer.append(&record)?;
                eraser.note(&record);
            }
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
        let more = eraser.scan(&*self.log, writer.last)?;
        let now_ms = Clock::system().now_ms();
        if !more && eraser.is_due(now_ms)? {
            // The last segment is opened again in the next round.
            self.writer = None;
            self.synced = None;
            if let Err(error) = eraser.carry_out(&*self.log, now_ms) {
                tracing::error!(%error, "erasing from the archive failed; retrying later");
                eraser.put_off();
            }
        } else if !more {
            eraser.keep_note()?;
        }
        self.shared.erased.send_if_modified(|erased| {
            let moved = *erased != eraser.erased();
            *erased = eraser.erased();
            moved
        });
        Ok(())
    }
}
