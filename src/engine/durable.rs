//! The outcome of a write that is durable.

use logcabin_record::Offset;

/// A value that depends on durable, applied records only. Only the engine creates one, once the log
/// has reported that the records are on disk. The type does not force an answer to wait: a handler
/// must await [`Engine::propose`](super::Engine::propose), and unwraps the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Durable<T> {
    value: T,
    offset: Offset,
    bytes: u64,
}

impl<T> Durable<T> {
    /// For [`super::commits`], after the batch was appended.
    pub(super) const fn proven(value: T, offset: Offset, bytes: u64) -> Self {
        Self { value, offset, bytes }
    }

    /// The last durable record on which the value depends.
    pub const fn offset(&self) -> Offset {
        self.offset
    }

    /// The size of the records that the proposal itself caused, in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The value, which may be reported.
    pub fn into_inner(self) -> T {
        self.value
    }
}
