//! The log: append-only, durable, and the only truth.
//!
//! [`Log`] is the contract. A backend accepts *batches*. All records of a batch are appended next
//! to each other, or none. A batch names the streams that its decision depended on, and the last
//! offset of each. If one of them has moved on, the batch is refused with a conflict, and the
//! decision must be made again. A local backend checks this itself; a replicated log has the same
//! operation on its server.
//!
//! Reads are local in every backend: a backend with a remote log keeps a local copy up to its
//! durable watermark.

#![cfg_attr(all(feature = "nats", not(test)), warn(unused_crate_dependencies))]

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use tokio::sync::watch;

use logcabin_record::{Chain, NewRecord, Offset, Record, Stream, hex};

pub mod archive;
mod block;
pub mod bulk;
#[cfg(test)]
mod contract;
pub mod erase;
pub mod fault;
pub mod follow;
pub mod format;
pub mod memory;
#[cfg(feature = "simulate")]
pub mod modelled;
#[cfg(feature = "nats")]
pub mod nats;
#[doc(hidden)]
pub mod samples;
pub mod store;
mod tip_file;
pub mod verify;
pub mod volume;

pub use fault::VerifyError;
pub use store::{CompactError, Compacted};
pub use verify::verify;

/// The largest payload of one record.
///
/// Twice the size of the largest event with some margin, and small enough that no page of the
/// default backend leaves its main file: see [`sled`].
pub const MAX_PAYLOAD_BYTES: usize = 192 * 1024;

/// The largest sum of the text fields of a record's header: stream, kind, user, device, request.
/// Identifiers have at most 255 bytes each.
pub const MAX_HEADER_TEXT_BYTES: usize = 2 * 1024;

/// The largest sum of the payloads of one batch. A batch is written, sent to followers and kept in
/// memory as a whole. Creating a room with every option takes a few dozen records.
pub const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

/// What the limits of decisions allow fits into the log: a commit is one batch.
const _: () = {
    use logcabin_base::limits::{
        COMMIT_PASSING, COMMIT_PROPOSALS, EVENT_BYTES, IDENTIFIER_BYTES, IMPORTED_ROOM_KEYS,
        KEY_BACKUP_RECORD_BYTES, KEY_BYTES, RECEIPTS_BYTES,
    };
    assert!(COMMIT_PROPOSALS * (EVENT_BYTES + 16 * 1024) <= MAX_BATCH_BYTES);
    // Only thread ids are not of this server's making: each of their bytes can become six in JSON.
    assert!(COMMIT_PASSING * 10 * IDENTIFIER_BYTES < MAX_BATCH_BYTES);
    assert!(IMPORTED_ROOM_KEYS * (KEY_BYTES + 8 * IDENTIFIER_BYTES) < MAX_BATCH_BYTES);
    assert!(RECEIPTS_BYTES + 8 * 1024 < MAX_PAYLOAD_BYTES);
    assert!(KEY_BACKUP_RECORD_BYTES + KEY_BYTES + 8 * IDENTIFIER_BYTES < MAX_PAYLOAD_BYTES);
};

/// Records that are appended atomically.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The streams that the decision depended on, each with its last offset at that time
    /// ([`Offset::ZERO`] for a stream that must not exist yet). [`Stream::all`] stands for the
    /// whole log.
    pub expect: Vec<(Stream, Offset)>,
    /// The records, in order.
    pub records: Vec<NewRecord>,
}

/// Where a batch was appended: the offsets of its first and last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub first: Offset,
    pub last: Offset,
}

/// Why a batch was not appended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// A stream has moved on since the decision was taken.
    #[error("stream `{stream}` is at {actual}, the decision was taken at {expected}")]
    Conflict {
        stream: Stream,
        /// Its last offset when the decision was taken.
        expected: Offset,
        /// Its last offset now.
        actual: Offset,
    },
    /// The batch or one of its records exceeds a limit of the log.
    #[error("the write does not fit the log: {0}")]
    TooLarge(String),
    /// The disk is full, or nearly so. Reads go on; writes are accepted again once there is space.
    #[error("no room for writes: {0}")]
    Full(String),
    /// A write or sync failed. Nothing after the last durable record is known to be on disk, so the
    /// log takes no more writes until the server is restarted. Reads go on.
    #[error("the log has refused writes since one failed: {0}")]
    Failed(Arc<str>),
    /// A `log.erase` record does not match the records that it names.
    #[error("nothing was erased: {0}")]
    Erase(String),
    /// The log's replicas do not answer, or too few of them do. Whether the batch will still be
    /// appended is unknown.
    #[error("the log does not answer: {0}")]
    Unavailable(String),
    /// Records of another log do not continue this one.
    #[error("the records are not of this log: {0}")]
    Foreign(String),
    /// The log is shutting down.
    #[error("the server is shutting down")]
    Closed,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The underlying store failed.
    #[error("reading the log failed: {0}")]
    Storage(String),
    /// The bytes at this offset are not a record.
    #[error("record {offset} is damaged: {source}")]
    Damaged {
        offset: Offset,
        /// What is wrong.
        source: logcabin_record::codec::CodecError,
    },
    /// A record between others is missing.
    #[error("record {0} is missing")]
    Missing(Offset),
}

/// A boxed future, so that [`Log`] can be a trait object.
pub type Appending<'a> = Pin<Box<dyn Future<Output = Result<Appended, AppendError>> + Send + 'a>>;

/// Receives every durable record once, in order, from the log's own thread.
///
/// An append resolves only after the follower has returned from its records: what is acknowledged
/// is durable *and* applied. A follower does not panic: records that are durable and cannot be
/// applied end the process (`engine::follower`).
pub type Follower = Box<dyn FnMut(&[Arc<Record>]) + Send>;

/// An append-only log. See the module's documentation for the contract.
pub trait Log: Send + Sync + fmt::Debug + 'static {
    /// Appends all of `batch`, or nothing. Resolves once the batch is durable and the follower has
    /// seen it. Dropping the future does not cancel the append. The order of appends that are under
    /// way at once is the log's: whoever needs one waits for the first, or expects an offset.
    ///
    /// A `log.erase` record erases the payloads that it names, atomically. It is refused if they
    /// are not durable yet or do not match it.
    fn append(&self, batch: Batch) -> Appending<'_>;

    /// The record at `offset`, if the log is that long.
    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError>;

    /// Up to `limit` records, beginning with the one at `from`, in order.
    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError>;

    /// The offset up to which erased content has not only been hidden from readers but left the
    /// disk.
    fn off_disk(&self) -> Result<Offset, ReadError> {
        Ok(*self.durable().borrow())
    }

    /// The offset of the last durable record, as it advances.
    fn durable(&self) -> watch::Receiver<Offset>;

    /// Starts to accept appends. Must be called once, after the records up to the durable watermark
    /// have been read. `heads` is the last offset of each stream among them. The follower receives
    /// every record after them.
    fn start(&self, heads: StreamHeads, follower: Follower);

    /// Refuses new appends, completes those in progress and makes everything durable. Blocks.
    fn close(&self);
}

/// The log on this machine's disk: what a server writes to, or has of the log of its cluster.
pub trait LocalLog: Log {
    /// Why the log takes no more writes, once a write or sync has failed.
    fn failure(&self) -> watch::Receiver<Option<Arc<str>>>;

    /// The error that an append would get now because of the log or its disk.
    fn refusal(&self) -> Option<AppendError>;

    /// The offset up to which every erasure has left the disk, not only the log.
    fn compacted(&self) -> Result<Offset, ReadError>;

    /// Removes erased content from the disk while appends and reads go on. `pause` is called after
    /// each piece; if it returns false, the compaction is abandoned. Blocks.
    fn compact(&self, pause: &mut dyn FnMut() -> bool) -> Result<Compacted, CompactError>;
}

/// What tells a log from every other one, and not from its copies: the chain value of its first
/// record, in hex. None for an empty log.
pub fn identity(log: &dyn Log) -> Result<Option<String>, ReadError> {
    Ok(log.get(Offset::new(1))?.map(|record| hex(&record.chain)))
}

/// The last offset of each stream.
pub type StreamHeads = std::collections::HashMap<Stream, Offset>;

/// Checks a batch before [`Log::append`] takes it, the same for every local backend. `last` is the
/// last record before the batch.
///
/// # Errors
/// [`AppendError::Conflict`] for the first stream that has moved on.
pub(crate) fn check_expected(
    heads: &StreamHeads,
    last: Offset,
    batch: &Batch,
) -> Result<(), AppendError> {
    for (stream, expected) in &batch.expect {
        let head = if stream.is_all() { Some(last) } else { heads.get(stream).copied() };
        let actual = head.unwrap_or_default();
        if actual != *expected {
            return Err(AppendError::Conflict {
                stream: stream.clone(),
                expected: *expected,
                actual,
            });
        }
    }
    Ok(())
}

/// What the `log.erase` records among `added` leave of the records that they name, the same for
/// every backend. `get` returns a durable record.
///
/// # Errors
/// [`AppendError::Erase`].
pub(crate) fn erased_by<'a>(
    added: impl Iterator<Item = &'a Record>,
    mut get: impl FnMut(Offset) -> Result<Option<Record>, ReadError>,
) -> Result<Vec<Record>, AppendError> {
    let refused = |reason: &dyn fmt::Display| AppendError::Erase(reason.to_string());
    let mut left = Vec::new();
    for erasure in added.filter_map(erase::erasure) {
        if erasure.count() > erase::MAX_ERASED {
            return Err(refused(&format!("{} records at once", erasure.count())));
        }
        let mut targets = erase::Targets::default();
        targets.add(&erasure);
        for (offset, target) in targets.iter() {
            let record = get(offset).map_err(|error| refused(&error))?;
            let mut record = record.ok_or_else(|| refused(&format!("no record {offset} yet")))?;
            record.payload = erase::remainder(&record, &target).map_err(|error| refused(&error))?;
            left.push(record);
        }
    }
    Ok(left)
}

/// Refuses a batch that is larger than a log takes, the same for every backend.
///
/// # Errors
/// [`AppendError::TooLarge`].
pub(crate) fn check_size(batch: &Batch) -> Result<(), AppendError> {
    let mut total = 0;
    for record in &batch.records {
        let NewRecord { stream, kind, origin, payload, .. } = record;
        if payload.is_empty() {
            return Err(AppendError::TooLarge("a payload must not be empty".to_owned()));
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(AppendError::TooLarge(format!(
                "a payload of {} bytes; the most is {MAX_PAYLOAD_BYTES}",
                payload.len()
            )));
        }
        let text = stream.as_str().len()
            + kind.len()
            + origin.user.len()
            + origin.device.len()
            + origin.request.len();
        if text > MAX_HEADER_TEXT_BYTES {
            return Err(AppendError::TooLarge(format!(
                "{text} bytes of names and ids; the most is {MAX_HEADER_TEXT_BYTES}"
            )));
        }
        total += payload.len();
    }
    if total > MAX_BATCH_BYTES {
        return Err(AppendError::TooLarge(format!(
            "a batch of {total} bytes; the most is {MAX_BATCH_BYTES}"
        )));
    }
    Ok(())
}

/// The result of a check of the whole log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many records were checked.
    pub records: u64,
    pub last: Offset,
    /// The last chain value.
    pub chain: Chain,
    /// How many payloads were erased or reduced.
    pub erased: u64,
}
