//! How the memory of `server.memory_bytes` is divided.

/// What the server takes under load besides its caches: the program, its threads, sled's write
/// buffers of 16 MiB, the search index's writer and what the allocator keeps.
const BESIDES: u64 = 96 * 1024 * 1024;

/// The sizes of the caches, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caches {
    /// Parsed events and what was derived from them: the recent history of busy rooms. Other events
    /// are read from the log.
    pub(super) events: u64,
    /// The log's records, as they are stored.
    pub(super) records: u64,
}

impl Caches {
    /// The division of `memory_bytes`. The caches get at least an eighth.
    pub(super) fn of(memory_bytes: u64) -> Self {
        let caches = memory_bytes.saturating_sub(BESIDES).max(memory_bytes / 8);
        let records = caches / 4;
        Self { events: caches - records, records }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn caches_and_the_rest_add_up_to_the_configured_memory() {
        for memory in [128 * MIB, 8192 * MIB] {
            let Caches { events, records } = Caches::of(memory);
            assert_eq!(events + records + BESIDES, memory);
        }
    }

    #[test]
    fn the_least_memory_leaves_room_for_small_caches() {
        assert_eq!(Caches::of(64 * MIB), Caches { events: 6 * MIB, records: 2 * MIB });
    }
}
