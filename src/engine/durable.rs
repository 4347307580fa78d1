//! The proof that a write is durable.

use crate::record::Offset;

/// A value that rests on durable, applied records only. Made by the engine alone, after the log has
/// said that the records are on disk: an answer that needs one cannot be given early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Durable<T> {
    value: T,
    offset: Offset,
}

impl<T> Durable<T> {
    /// For [`super::commits`], once the batch has been appended.
    pub(super) const fn proven(value: T, offset: Offset) -> Self {
        Self { value, offset }
    }

    /// The offset up to which the log is durable and that the value rests on.
    pub const fn offset(&self) -> Offset {
        self.offset
    }

    /// The value, now that it may be told.
    pub fn into_inner(self) -> T {
        self.value
    }
}
