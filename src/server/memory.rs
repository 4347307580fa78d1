//! How the memory of `server.memory_bytes` is divided.

/// What the server takes without its caches: the program, its threads, the buffers of the log and
/// of the search index.
const BESIDES: u64 = 56 * 1024 * 1024;

/// The sizes of the caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caches {
    /// Parsed events: the recent history of busy rooms. Other events are read from the log.
    pub(super) events: u64,
    /// The log's records, as they are stored.
    pub(super) records: u64,
}

impl Caches {
    /// The division of `memory_bytes`.
    pub(super) const fn of(memory_bytes: u64) -> Self {
        let caches = memory_bytes.saturating_sub(BESIDES);
        let records = caches / 3;
        Self { events: caches - records, records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_and_everything_else_are_as_large_as_configured() {
        const MIB: u64 = 1024 * 1024;
        for memory in [64 * MIB, 128 * MIB, 8192 * MIB] {
            let Caches { events, records } = Caches::of(memory);
            assert_eq!(events + records + BESIDES, memory);
            assert!(records >= 2 * MIB && events >= 5 * MIB);
        }
    }
}
