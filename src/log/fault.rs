//! What can be wrong with a record of a log.

use super::ReadError;
use logcabin_record::{CommandError, Epoch, Offset, codec::CodecError};

/// The first fault of a log.
#[derive(Debug, thiserror::Error)]
#[error("record {offset}: {fault}")]
pub struct VerifyError {
    pub offset: Offset,
    /// What is wrong.
    #[source]
    pub fault: Fault,
}

impl VerifyError {
    pub(super) const fn at(offset: Offset, fault: Fault) -> Self {
        Self { offset, fault }
    }

    pub(super) fn reading(from: Offset, error: ReadError) -> Self {
        match error {
            ReadError::Storage(reason) => Self::at(from, Fault::Storage(reason)),
            ReadError::Damaged { offset, source } => Self::at(offset, Fault::Damaged(source)),
            ReadError::Missing(offset) => Self::at(offset, Fault::Missing),
        }
    }
}

/// What is wrong with a record.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The store could not read it.
    #[error("reading it failed: {0}")]
    Storage(String),
    /// It is missing, though later ones exist or should exist.
    #[error("the record is missing")]
    Missing,
    /// Its bytes are not a record, its payload does not match its header, or it does not continue
    /// the chain.
    #[error("the record is damaged: {0}")]
    Damaged(#[source] CodecError),
    /// Another record is in its place.
    #[error("the record here has the offset {found}")]
    OutOfOrder {
        /// The offset in the header.
        found: Offset,
    },
    #[error("the record is {0} ms older than the previous one")]
    Time(u64),
    #[error("the record's epoch {} is lower than {}, that of the previous record", found.0, before.0)]
    Epoch {
        /// The record's epoch.
        found: Epoch,
        /// The epoch of the previous record.
        before: Epoch,
    },
    /// Its count does not continue the batch of the previous record.
    #[error(
        "the record says that {found} more of its batch follow; by the previous record, {expected} should"
    )]
    Batch {
        /// The count in the record.
        found: u32,
        /// The count that follows from the previous record.
        expected: u32,
    },
    /// The log ends inside a batch.
    #[error("the log ends {0} records before the end of a batch")]
    Unfinished(u32),
    /// Its command cannot be decoded.
    #[error(transparent)]
    Command(CommandError),
    #[error("the payload is missing, but no record says that it was erased")]
    Gone,
    #[error("the payload was replaced, but not by the reduced payload that a record names")]
    Replaced,
}
