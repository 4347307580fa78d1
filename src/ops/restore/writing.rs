//! Writes a log: existing records, then new ones.
//!
//! [`OfflineWriter`] is the one exception to the rule that only the engine adds records. It writes
//! into the store of a log that no server has opened: the engine decides on the state of a complete
//! log, and this log is not complete yet. Its records were decided when they were first written.
//! Once it is complete, a restore continues through an engine as well.

use logcabin_log::{
    erase::{Targets, remainder},
    store::{Store, StoreError},
};
use logcabin_record::{
    Command, Epoch, NewRecord, Offset, Origin, Record, Stream,
    codec::{self, Tip},
    command::ServerRestore,
};
use logcabin_state::{ApplyError, State};

/// The new log is made durable in pieces of about this many bytes.
const PIECE_BYTES: usize = 1024 * 1024;

/// Why a new log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A record cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("writing the new log failed: {0}")]
    Write(String),
}

impl WriteError {
    pub(super) fn new(error: &dyn std::fmt::Display) -> Self {
        Self::Write(error.to_string())
    }
}

impl From<StoreError> for WriteError {
    fn from(error: StoreError) -> Self {
        Self::Write(error.to_string())
    }
}

/// Writes records, if there is a store, and applies them.
pub(crate) struct OfflineWriter<'a> {
    store: Option<&'a Store>,
    targets: &'a Targets,
    state: &'a State,
    tip: Tip,
    frames: Vec<(Offset, Vec<u8>)>,
    bytes: usize,
    /// How many records were copied.
    pub(crate) records: u64,
    /// How many payloads were left out of those.
    pub(crate) erased: u64,
}

impl<'a> OfflineWriter<'a> {
    /// Into `store`, or none for a dry run. Payloads in `targets` are left out. `state` must be
    /// empty, and has all records applied afterwards.
    pub(crate) fn begin(store: Option<&'a Store>, targets: &'a Targets, state: &'a State) -> Self {
        Self {
            store,
            targets,
            state,
            tip: Tip::default(),
            frames: Vec::new(),
            bytes: 0,
            records: 0,
            erased: 0,
        }
    }

    /// Adds the next record, which was verified, without what was erased.
    pub(crate) fn put(&mut self, mut record: Record) -> Result<(), WriteError> {
        if let Some(target) = self.targets.get(record.offset()) {
            let left = remainder(&record, &target).map_err(|error| WriteError::new(&error))?;
            if left != record.payload {
                self.erased += 1;
                record.payload = left;
            }
        }
        let frame = codec::encode_frame(&record).map_err(|error| WriteError::new(&error))?;
        self.write(&record, frame)?;
        self.tip = Tip::after(&record);
        self.records += 1;
        Ok(())
    }

    /// Adds the record that follows a restore. Positions after the last record may have been handed
    /// out before, for records that no longer exist: the new epoch tells them from future
    /// positions.
    pub(crate) fn begin_epoch(
        &mut self,
        epoch: Epoch,
        restore: ServerRestore,
        now_ms: u64,
    ) -> Result<Offset, WriteError> {
        self.tip.epoch = epoch;
        let command = Command::from(restore);
        self.add(NewRecord::new(Stream::server(), Origin::server(), &command), now_ms)
    }

    /// Adds a new record; returns its offset.
    pub(crate) fn add(&mut self, new: NewRecord, now_ms: u64) -> Result<Offset, WriteError> {
        let extended = self.tip.extend(new, 0, now_ms);
        let (record, frame) = extended.map_err(|error| WriteError::new(&error))?;
        self.write(&record, frame)?;
        Ok(record.offset())
    }

    /// The last record.
    pub(crate) const fn tip(&self) -> &Tip {
        &self.tip
    }

    fn write(&mut self, record: &Record, frame: Vec<u8>) -> Result<(), WriteError> {
        self.state.apply(record)?;
        let Some(store) = self.store else { return Ok(()) };
        self.bytes += frame.len();
        self.frames.push((record.offset(), frame));
        // Only whole batches, so that the store contains a valid log at any moment.
        if self.bytes >= PIECE_BYTES && record.header.batch_remaining == 0 {
            self.bytes = 0;
            store.put(&std::mem::take(&mut self.frames), Vec::new())?;
        }
        Ok(())
    }

    /// Makes all records durable.
    pub(crate) fn finish(self) -> Result<(), WriteError> {
        if let Some(store) = self.store {
            store.put(&self.frames, Vec::new())?;
            // Nothing that was erased so far was ever written to this store.
            store.note_compacted(self.tip.offset)?;
        }
        Ok(())
    }
}
