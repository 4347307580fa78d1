//! The thread that maintains the index, and how it is asked.

use std::{
    iter::successors,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use ruma::OwnedEventId;
use tokio::sync::oneshot;

pub use super::index::Snapshot;
use super::{
    DIRECTORY, SearchError, Text,
    index::{Entry, Mark, Reader, Writer},
};
use logcabin_base::{
    background,
    metrics::{Background, metrics},
    progress::Work,
};
use logcabin_engine::Engine;
use logcabin_log::{ReadError, follow::Follow};
use logcabin_read::events::{EventRef, StoredEvent};
use logcabin_record::{
    Command, Offset, Record,
    command::{RoomErase, RoomRedactSender},
};
use logcabin_state::Room;

/// How often new records are indexed and committed while nobody searches.
const PAUSE: Duration = Duration::from_secs(15);

/// After more records than this in one go, the next ones are indexed soon, while they are still in
/// memory. They are not committed any sooner.
const MANY_RECORDS: u64 = 256;
const SHORT_PAUSE: Duration = Duration::from_millis(250);

/// The pause before the index is opened again after a failure, for example a full disk.
const RETRY: Duration = Duration::from_secs(10);

/// How many records are read at once.
const RECORDS: usize = 256;

/// The most records between two commits while catching up: after a restart, at most this many are
/// indexed again.
const COMMIT_RECORDS: u64 = 50_000;

/// How long a search waits for the index to contain earlier events.
const PATIENCE: Duration = Duration::from_secs(5);

/// The index and the thread that maintains it.
#[derive(Debug)]
pub struct Search {
    mailbox: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    reader: RwLock<Option<Reader>>,
    /// The offset up to which readers find everything.
    complete: AtomicU64,
    stopping: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("complete", &self.complete).finish_non_exhaustive()
    }
}

enum Message {
    /// Index up to this offset and report it.
    Reach(Offset, oneshot::Sender<()>),
    /// The index could not be read: rebuild it.
    Damaged,
    /// Check whether to stop.
    Stop,
}

impl Search {
    /// Opens or creates the index in `data_dir` and begins to follow the log of `engine`. Does not
    /// wait for it to catch up.
    pub fn start(data_dir: &Path, engine: Arc<Engine>) -> std::io::Result<Self> {
        let (mailbox, messages) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let worker = Worker {
            dir: data_dir.join(DIRECTORY),
            engine,
            shared: Arc::clone(&shared),
            messages,
            waiting: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("search".to_owned());
        let thread = thread.spawn(move || worker.run())?;
        Ok(Self { mailbox, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Waits briefly until everything up to `offset` is indexed. Returns the offset up to which
    /// everything is indexed, which is earlier only while the index is being built.
    pub async fn reach(&self, offset: Offset) -> Offset {
        if self.complete() < offset {
            let (reached, wait) = oneshot::channel();
            if self.mailbox.send(Message::Reach(offset, reached)).is_ok() {
                // The result shows whether it was in time.
                let _ = tokio::time::timeout(PATIENCE, wait).await;
            }
        }
        self.complete()
    }

    /// Reads the index as it is now. Blocks on the disk.
    ///
    /// # Errors
    /// When the index cannot be read (it is then rebuilt), or does not exist yet.
    pub fn look<T>(
        &self,
        look: impl FnOnce(&Snapshot) -> tantivy::Result<T>,
    ) -> Result<T, SearchError> {
        let Some(reader) = self.shared.reader.read().clone() else {
            return Err(SearchError::Unreadable("it is being opened".to_owned()));
        };
        // tantivy trusts the contents of its files, and panics on some damage.
        let seen = catch_unwind(AssertUnwindSafe(|| look(&reader.snapshot())));
        let reason = match seen {
            Ok(Ok(seen)) => return Ok(seen),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "reading it panicked".to_owned(),
        };
        // Without a worker there is nobody to notify.
        let _ = self.mailbox.send(Message::Damaged);
        Err(SearchError::Unreadable(reason))
    }

    /// Commits everything and ends the thread. Blocks.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // It may have ended already.
        let _ = self.mailbox.send(Message::Stop);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the search index panicked");
        }
    }

    /// The offset up to which everything is indexed.
    pub fn complete(&self) -> Offset {
        Offset::new(self.shared.complete.load(Ordering::Acquire))
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Why the index is opened again.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Index(#[from] tantivy::TantivyError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("it is damaged")]
    Damaged,
}

/// What is at an offset: an event in memory, or its record.
enum Source {
    Event(EventRef),
    Record(Box<Record>),
}

/// The thread that maintains the index.
struct Worker {
    dir: PathBuf,
    engine: Arc<Engine>,
    shared: Arc<Shared>,
    messages: mpsc::Receiver<Message>,
    /// Searches that wait for an offset.
    waiting: Vec<(Offset, oneshot::Sender<()>)>,
}

impl Worker {
    fn run(mut self) {
        // The threads that tantivy starts have the same priority.
        background::stand_back();
        let mut rebuild = false;
        while !self.is_stopping() {
            let failure = match catch_unwind(AssertUnwindSafe(|| self.follow(rebuild))) {
                Ok(Ok(())) => return,
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Damaged,
            };
            tracing::warn!(error = %failure, "the search index failed; reopening it");
            rebuild = matches!(failure, Failure::Damaged);
            self.waiting.clear();
            if !rebuild {
                self.rest();
            }
        }
    }

    /// Waits before the next attempt. Searches that arrive meanwhile are answered at once.
    fn rest(&self) {
        let until = Instant::now() + RETRY;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !self.is_stopping()
        {
            match self.messages.recv_timeout(left) {
                Ok(message) => drop(message),
                Err(_) => return,
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Acquire)
    }

    /// Opens the index and maintains it until the server stops.
    fn follow(&mut self, rebuild: bool) -> Result<(), Failure> {
        let (mut writer, mut committed) = self.open(rebuild)?;
        let mut sources = self.sources(committed);
        self.shared.complete.store(committed.get(), Ordering::Release);
        *self.shared.reader.write() = Some(writer.reader());
        let mut commit_from = Instant::now();
        loop {
            let before = sources.next_offset();
            self.catch_up(&mut sources, &mut writer, &mut committed)?;
            let taken = sources.next_offset().prev();
            if self.is_stopping() {
                if committed < taken {
                    self.commit(&mut writer, taken, &mut committed)?;
                }
                return Ok(());
            }
            let is_busy = taken.get() - before.prev().get() > MANY_RECORDS;
            let is_due = !is_busy || !self.waiting.is_empty() || Instant::now() >= commit_from;
            if !writer.is_dirty() {
                self.say(taken);
            } else if is_due {
                self.commit(&mut writer, taken, &mut committed)?;
                commit_from = Instant::now() + PAUSE;
            }
            writer.purge()?;
            match self.messages.recv_timeout(if is_busy { SHORT_PAUSE } else { PAUSE }) {
                Ok(message) => {
                    for message in [message].into_iter().chain(self.messages.try_iter()) {
                        match message {
                            Message::Reach(offset, reached) => self.waiting.push((offset, reached)),
                            Message::Damaged => return Err(Failure::Damaged),
                            Message::Stop => {}
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// The existing index, if it is of this log; otherwise an empty one. With it, the offset up to
    /// which it is complete.
    fn open(&self, rebuild: bool) -> Result<(Writer, Offset), Failure> {
        // Reading damaged files may panic.
        let found = catch_unwind(AssertUnwindSafe(|| Writer::open(&self.dir)));
        let found = match found {
            _ if rebuild => None,
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the search index cannot be opened");
                None
            }
            Err(_) => None,
        };
        if let Some((writer, mark)) = found {
            let record = self.engine.log().get(mark.offset)?;
            if record.is_some_and(|record| record.chain == *mark.chain.as_bytes()) {
                return Ok((writer, mark.offset));
            }
        }
        tracing::info!("rebuilding the search index");
        // Readers of the old index would keep its files.
        *self.shared.reader.write() = None;
        Ok((Writer::create(&self.dir)?, Offset::ZERO))
    }

    /// What remains to be indexed after `taken`. Recent events are in memory and need no disk read.
    fn sources(&self, taken: Offset) -> Follow<Source> {
        let engine = Arc::clone(&self.engine);
        let read = move |from: Offset, limit: usize| {
            // The effect of a redaction is in its record.
            let recall = |offset| engine.events().recall(offset).filter(|e| e.redacts.is_none());
            let offsets = successors(Some(from), |offset| Some(offset.next())).take(limit);
            let mut known = offsets.map(recall).peekable();
            if known.peek().is_some_and(Option::is_some) {
                return Ok(known.map_while(|event| event.map(Source::Event)).collect());
            }
            let unknown = known.take_while(Option::is_none).count();
            let records = engine.log().read(from, unknown)?;
            Ok(records.into_iter().map(|record| Source::Record(Box::new(record))).collect())
        };
        let head = self.engine.head().follow();
        Follow::new(taken.next(), head, Box::new(read)).in_chunks_of(RECORDS)
    }

    /// Indexes the records up to the head. Commits only if there are very many.
    fn catch_up(
        &mut self,
        sources: &mut Follow<Source>,
        writer: &mut Writer,
        committed: &mut Offset,
    ) -> Result<(), Failure> {
        let (from, head) = (sources.next_offset().get(), self.engine.head().offset().get());
        let is_long = head.saturating_sub(from) > COMMIT_RECORDS;
        let work = is_long.then(|| Work::begin("Builds the search index", from, head));
        while !self.is_stopping()
            && let Some(source) = sources.ready()?
        {
            let taken = sources.next_offset().prev();
            // A panic would repeat itself, and the index would be rebuilt forever.
            let index = || match source {
                // What is in no timeline is indexed once it has a place.
                Source::Event(event) if event.aside.is_some() => Ok(()),
                Source::Event(event) => say(writer, &self.engine, &event),
                Source::Record(record) => take(writer, &self.engine, &record),
            };
            match catch_unwind(AssertUnwindSafe(index)) {
                Ok(indexed) => indexed?,
                Err(_) => {
                    tracing::error!(record = %taken, "indexing a record panicked; it is left out");
                }
            }
            work.iter().for_each(|work| work.at(taken.get()));
            if taken.get() - committed.get() >= COMMIT_RECORDS {
                self.commit(writer, taken, committed)?;
            }
        }
        Ok(())
    }

    fn commit(
        &mut self,
        writer: &mut Writer,
        taken: Offset,
        committed: &mut Offset,
    ) -> Result<(), Failure> {
        let record = self.engine.log().get(taken)?.ok_or(ReadError::Missing(taken))?;
        let began = Instant::now();
        let done = writer.commit(Mark { offset: taken, chain: record.chain.into() });
        metrics().worked(Background::Index, began, done.is_ok());
        done?;
        *committed = taken;
        self.say(taken);
        Ok(())
    }

    /// Tells waiting searches what is complete now.
    fn say(&mut self, complete: Offset) {
        self.shared.complete.store(complete.get(), Ordering::Release);
        for (_, reached) in self.waiting.extract_if(.., |(offset, _)| *offset <= complete) {
            // They may have given up.
            let _ = reached.send(());
        }
    }
}

/// Indexes one record, and removes what it redacts or deletes.
fn take(writer: &mut Writer, engine: &Engine, record: &Record) -> Result<(), Failure> {
    if !matches!(
        &*record.header.kind,
        "room.event" | "room.gap" | "room.redact_sender" | "room.erase" | "room.purge"
    ) {
        return Ok(());
    }
    match record.command() {
        Ok(Some(Command::RoomEvent(body))) => {
            if let Some(redacted) = body.redacts {
                writer.remove(redacted);
            }
            if let Ok(event) = StoredEvent::new(record.offset(), body) {
                say(writer, engine, &event)?;
            }
        }
        Ok(Some(Command::RoomGap(body))) => {
            // The oldest first, as everywhere else.
            for filled in body.events.into_iter().rev() {
                filled.redacts.into_iter().for_each(|redacted| writer.remove(redacted));
                if let Some(event) = engine.events().get(filled.event)? {
                    say(writer, engine, &event)?;
                }
            }
        }
        Ok(Some(
            Command::RoomErase(RoomErase { events, .. })
            | Command::RoomRedactSender(RoomRedactSender { events, .. }),
        )) => {
            events.into_iter().for_each(|event| writer.remove(event));
        }
        Ok(Some(Command::RoomPurge(body))) => {
            if let Some(purged) = engine.state().erasures.purged(&body.room_id) {
                writer.remove_room(purged.created);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Indexes the text of an event.
fn say(writer: &mut Writer, engine: &Engine, event: &StoredEvent) -> Result<(), Failure> {
    let Some(room) = engine.state().rooms.get(&event.room_id) else { return Ok(()) };
    let Some(text) = Text::of(event) else { return Ok(()) };
    let original = match &text.edits {
        Some(target) => match edited(engine, &room, event, target)? {
            Edited::Event(original) => original.offset,
            Edited::Redacted => return Ok(()),
            // An invalid edit is a message like any other.
            Edited::Nothing => event.offset,
        },
        None => event.offset,
    };
    // Texts that are already redacted or deleted in the state are not indexed.
    let is_gone = !room.shows_event(event.offset) || !room.shows_event(original);
    if is_gone || room.redaction_of(event.offset, Offset::MAX).is_some() {
        return Ok(());
    }
    let entry = Entry {
        room: room.created,
        event: original,
        version: event.offset,
        key: text.key,
        text: &text.text,
    };
    Ok(writer.add(&entry)?)
}

/// The target of an edit.
enum Edited {
    Event(EventRef),
    Redacted,
    Nothing,
}

/// The message that `edit` may replace (client-server API, "Validity of replacement events").
fn edited(
    engine: &Engine,
    room: &Room,
    edit: &StoredEvent,
    target: &OwnedEventId,
) -> Result<Edited, ReadError> {
    let (state, events) = (engine.state(), engine.events());
    let redacted = |offset: &Offset| room.redaction_of(*offset, Offset::MAX).is_some();
    if state.events.candidates(target).iter().any(|o| room.shows_event(*o) && redacted(o)) {
        return Ok(Edited::Redacted);
    }
    let original = events.find_shown(&state, target)?;
    Ok(match original {
        Some(original) if is_edit_of(edit, &original) => Edited::Event(original),
        _ => Edited::Nothing,
    })
}

fn is_edit_of(edit: &StoredEvent, original: &StoredEvent) -> bool {
    original.room_id == edit.room_id
        && original.sender == edit.sender
        && original.offset < edit.offset
        && original.event_type == edit.event_type
        && original.state_key.is_none()
        && Text::of(original).is_none_or(|text| text.edits.is_none())
}

#[cfg(test)]
mod tests;
