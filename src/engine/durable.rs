//! The outcome of a write that is durable.

use crate::record::Offset;

/// A value that rests on durable, applied records only. The engine alone makes one, once the log
/// has said that the records are on disk. Nothing requires one of an answer: a handler must await
/// [`Engine::propose`](super::Engine::propose), and unwraps what it gives.
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

    /// The value, which may be told.
    pub fn into_inner(self) -> T {
        self.value
    }
}
