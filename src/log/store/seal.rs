//! Sealing moves old records from databases into volumes, and removes erased content from the disk.
//!
//! 1. The committer continues in a new database. The old one takes no more writes.
//! 2. Volumes from which the old database erased something are rewritten. Its own records follow,
//!    in the last volume if that is small.
//! 3. The old database is removed.
//!
//! Each volume replaces its predecessor as a whole, and contains only what could be read anyway. So
//! repeating a step changes nothing: after a kill, the next start finds the old database and
//! continues with step 2.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot};

use super::{
    CompactError, Current, Shared, StoreError,
    committer::{Message, Swap},
    layers::{self, Layers},
};
use crate::{
    archive::Erased,
    verify::Checker,
    volume::{Packing, Volume, VolumeError, Writer},
};
use logcabin_base::{
    background::{self, Pace},
    clock::millis,
    disk,
    metrics::{Background, metrics},
};
use logcabin_record::{CHAIN_START, Chain, Offset, codec::Frame};

/// Sealing may pause after this many bytes.
const PIECE_BYTES: usize = 1024 * 1024;

/// How often the sealer checks whether there is enough to seal.
const TICK: Duration = Duration::from_secs(1);

/// How long the sealer waits before it retries after a failure.
const RETRY: Duration = Duration::from_secs(60);

/// Seals one database at a time.
pub(super) struct Sealer {
    pub(super) layers: Current,
    pub(super) shared: Arc<Shared>,
    pub(super) queue: mpsc::Sender<Message>,
    pub(super) log_dir: PathBuf,
    pub(super) cache_bytes: u64,
    /// A volume is completed at this many bytes of frames.
    pub(super) volume_bytes: u64,
    pub(super) turn: parking_lot::Mutex<()>,
}

impl Sealer {
    /// Seals whenever the newest database reaches `records` records or `bytes` bytes, or when a
    /// start has found an older one, until the log closes.
    pub(super) fn run(&self, records: u64, bytes: u64) {
        background::stand_back();
        let mut put_off = Instant::now();
        loop {
            std::thread::park_timeout(TICK);
            if self.shared.closing.load(Ordering::SeqCst) {
                return;
            }
            if Instant::now() < put_off || !self.is_due(records, bytes) {
                continue;
            }
            let mut pace = Pace::begin();
            let rest = || {
                pace.rest();
                !self.shared.closing.load(Ordering::SeqCst)
            };
            let began = Instant::now();
            let sealed = self.seal(rest);
            metrics().worked(
                Background::Sealing,
                began,
                sealed.as_ref().err().is_none_or(|error| {
                    matches!(error, CompactError::GivenUp | CompactError::Closed)
                }),
            );
            match sealed {
                Ok(()) | Err(CompactError::GivenUp | CompactError::Closed) => {}
                Err(error) => {
                    tracing::warn!(%error, "old records could not be sealed; retrying later");
                    put_off = Instant::now() + RETRY;
                }
            }
        }
    }

    fn is_due(&self, records: u64, bytes: u64) -> bool {
        let layers = Arc::clone(&self.layers.read());
        if layers.are_aside() {
            return false;
        }
        let durable = *self.shared.durable.borrow();
        let new = durable.get().saturating_sub(layers.before_tail.get());
        let large =
            || layers.tail().is_ok_and(|tail| tail.disk_bytes().is_ok_and(|now| now >= bytes));
        layers.stores.len() > 1 || new >= records || (new > 0 && large())
    }

    /// Seals everything that is in the log now. `pause` is called now and then; if it returns
    /// false, sealing is abandoned. Blocks.
    pub(super) fn seal(&self, mut pause: impl FnMut() -> bool) -> Result<(), CompactError> {
        let _one = self.turn.lock();
        if self.shared.closing.load(Ordering::SeqCst) {
            return Err(CompactError::Closed);
        }
        if self.layers.read().are_aside() {
            let free = disk::free_bytes(&self.log_dir).map_err(CompactError::Disk)?;
            let needed = self.shared.min_free_bytes.load(Ordering::Relaxed);
            return Err(CompactError::Room { needed, free });
        }
        let began = Instant::now();
        // Leftovers of a start or a failure are sealed first, so that there are never three
        // databases.
        if self.layers.read().stores.len() > 1 {
            self.seal_older(&mut pause)?;
        }
        if self.layers.read().tail()?.last()?.is_some() {
            self.begin_tail()?;
            self.seal_older(&mut pause)?;
        }
        let layers = Arc::clone(&self.layers.read());
        tracing::debug!(
            sealed = %layers.sealed(),
            volumes = layers.volumes.len(),
            took_ms = millis(began.elapsed()),
            "sealed"
        );
        Ok(())
    }

    /// Makes the committer continue in a new database.
    fn begin_tail(&self) -> Result<(), CompactError> {
        let layers = Arc::clone(&self.layers.read());
        let number = layers.stores.first().map_or(0, |(number, _)| *number) + 1;
        let compacted = layers.compacted()?;
        let store = layers::begin_tail(&self.log_dir, number, self.cache_bytes / 2, compacted)?;
        let (reply, swapped) = oneshot::channel();
        let swap = Message::Swap(Swap { number, store: Arc::new(store), reply });
        let sent =
            !self.shared.closing.load(Ordering::SeqCst) && self.queue.blocking_send(swap).is_ok();
        let swapped = if sent { swapped.blocking_recv().ok() } else { None };
        match swapped {
            Some(true) => Ok(()),
            // It is empty, and nobody will write to it.
            Some(false) | None => {
                layers::remove_tail(&self.log_dir, number)?;
                Err(CompactError::Closed)
            }
        }
    }

    /// Moves the records of all databases but the newest into volumes, and removes these databases.
    fn seal_older(&self, pause: &mut impl FnMut() -> bool) -> Result<(), CompactError> {
        let now = Arc::clone(&self.layers.read());
        let Some(last) = now.older().last()? else { return Ok(()) };
        let mut old = now.older();
        // As they are on the disk: an earlier attempt may have stopped half-way.
        let found = layers::volumes(&self.log_dir)?;
        let known = |volume: Arc<Volume>| {
            let known = now.volumes.iter().find(|known| known.is(&volume));
            known.map_or(volume, Arc::clone)
        };
        old.volumes = found.into_iter().map(known).collect();
        self.check_room(&old)?;
        let dir = layers::volumes_dir(&self.log_dir);
        super::make_private_dir(&dir)?;
        let volumes = write_volumes(&old, last, (&dir, self.volume_bytes), pause)?;
        let sealed = Arc::new(now.with_volumes(volumes));
        let tail = Arc::clone(sealed.tail()?);
        *self.layers.write() = sealed;
        tail.note_compacted(last)?;
        // Readers of the old database may go on. The disk space is free once the last of them has
        // finished.
        for (number, _) in &old.stores {
            layers::remove_tail(&self.log_dir, *number)?;
        }
        Ok(())
    }

    fn check_room(&self, old: &Layers) -> Result<(), CompactError> {
        let largest = old.volumes.iter().map(|volume| volume.full_bytes).max().unwrap_or_default();
        let mut needed = largest + self.shared.min_free_bytes.load(Ordering::Relaxed);
        for (_, store) in &old.stores {
            needed = needed.saturating_add(store.disk_bytes().map_err(CompactError::Disk)?);
        }
        let free = disk::free_bytes(&self.log_dir).map_err(CompactError::Disk)?;
        if free < needed { Err(CompactError::Room { needed, free }) } else { Ok(()) }
    }
}

/// Writes the volumes that hold all of `old` up to `last`. Returns all volumes.
fn write_volumes(
    old: &Layers,
    last: Offset,
    (dir, volume_bytes): (&Path, u64),
    pause: &mut impl FnMut() -> bool,
) -> Result<Vec<Arc<Volume>>, CompactError> {
    let mut volumes = old.volumes.clone();
    let sealed = old.sealed();
    // The last volume is extended if it is small.
    let goes_on =
        old.volumes.last().filter(|volume| last > sealed && volume.full_bytes < volume_bytes / 2);
    for number in changed(old)? {
        let volume = &old.volumes[number];
        if goes_on.is_some_and(|small| small.first == volume.first) {
            continue;
        }
        let mut writing = Writing::begin(dir, volume.first, volume.before)?;
        writing.copy(old, volume.last, u64::MAX, pause)?;
        volumes[number] = Arc::new(writing.end()?);
    }
    if last > sealed {
        let (mut first, mut before) =
            old.volumes.last().map_or((Offset::new(1), CHAIN_START), |v| (v.last.next(), v.chain));
        if let Some(small) = goes_on {
            (first, before) = (small.first, small.before);
            volumes.pop();
        }
        while first <= last {
            let mut writing = Writing::begin(dir, first, before)?;
            writing.copy(old, last, volume_bytes, pause)?;
            let volume = writing.end()?;
            (first, before) = (volume.last.next(), volume.chain);
            volumes.push(Arc::new(volume));
        }
    }
    Ok(volumes)
}

/// The volumes from which the databases have erased something.
fn changed(old: &Layers) -> Result<BTreeSet<usize>, CompactError> {
    let mut changed = BTreeSet::new();
    for (_, store) in &old.stores {
        for offset in store.offsets_to(old.sealed())? {
            if let Some(number) = old.volume_number(offset)
                && !changed.contains(&number)
                && old.differs_from_volume(offset)?
            {
                changed.insert(number);
            }
        }
    }
    Ok(changed)
}

/// A volume that is being written; its records are verified on the way.
struct Writing {
    writer: Writer,
    checker: Checker,
}

impl Writing {
    fn begin(dir: &Path, first: Offset, before: Chain) -> Result<Self, CompactError> {
        let writer = Writer::create(dir, first, before, Packing::RANDOM)?;
        Ok(Self { writer, checker: Checker::from_chain(first.prev(), before) })
    }

    /// Appends the records up to `last`, or until the volume reaches `bytes` bytes.
    fn copy(
        &mut self,
        old: &Layers,
        last: Offset,
        bytes: u64,
        pause: &mut impl FnMut() -> bool,
    ) -> Result<(), CompactError> {
        let mut frames = old.frames(self.checker.last().next(), last, Erased::All);
        let mut piece = PIECE_BYTES;
        while self.checker.last() < last && self.writer.full_bytes < bytes {
            if piece >= PIECE_BYTES {
                piece = 0;
                if !pause() {
                    return Err(CompactError::GivenUp);
                }
            }
            let next = self.checker.last().next();
            let frame = frames.next()?;
            let frame = frame.ok_or_else(|| damaged(next, &"it is missing"))?;
            let record = Frame::decode(&frame).map_err(|error| damaged(next, &error))?.record;
            self.checker.check(&record).map_err(|error| damaged(next, &error))?;
            self.writer.append(&frame, record.chain)?;
            piece += frame.len();
        }
        Ok(())
    }

    fn end(self) -> Result<Volume, CompactError> {
        Ok(self.writer.finish()?)
    }
}

/// Nothing is removed as long as a part of it cannot be read.
fn damaged(offset: Offset, what: &dyn std::fmt::Display) -> CompactError {
    CompactError::Store(format!("record {offset} cannot be sealed: {what}"))
}

impl From<VolumeError> for StoreError {
    fn from(error: VolumeError) -> Self {
        Self::Failed(format!("{error}; `logcabin verify --repair` can mend it from the archive"))
    }
}

impl From<VolumeError> for CompactError {
    fn from(error: VolumeError) -> Self {
        Self::Store(error.to_string())
    }
}
