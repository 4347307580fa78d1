//! Limits of reading another server's database.

use std::time::Duration;

/// Rows of one slice: few enough that a slice is read in a fraction of a second, and nothing that
/// the other server does waits for it; enough that asking costs little.
pub const SOURCE_SLICE_ROWS: usize = 4000;

/// Bytes of one slice, as they are in memory. One row more may be in it.
pub const SOURCE_SLICE_BYTES: usize = 8 * 1024 * 1024;

/// Changes of rooms' states in one slice, beyond which it ends at the next place. Entering a large
/// room brings more of them at one place.
pub const SOURCE_SLICE_DELTAS: usize = 50_000;

/// What SQLite keeps of the database in memory, in KiB. Slices read forward.
pub const SOURCE_CACHE_KIB: usize = 16 * 1024;

/// How long SQLite waits for a lock of the other server.
pub const SOURCE_LOCK_TIME: Duration = Duration::from_secs(10);

/// How long a place in the order of events that has been passed by may still be filled: Synapse
/// hands out places before it writes, and writes several at once. Its transactions take
/// milliseconds, and longer only when its database is overloaded; an event that came later than
/// this would be lost. A place stays empty for ever only where a write of Synapse failed, which is
/// rare, and once Synapse has stopped nothing is waited for.
pub const SOURCE_HOLE_PATIENCE: Duration = Duration::from_secs(60);

/// The age of an event after which nothing before it can be missing any more, in milliseconds.
pub const SOURCE_SETTLED_MS: u64 = 10 * 60 * 1000;

/// Events that are asked for by their ids at once: SQLite and PostgreSQL take more.
pub const SOURCE_EVENTS_AT_ONCE: usize = 500;

/// Users or rooms whose rows are asked for at once.
pub const SOURCE_OWNERS: usize = 500;

/// A homeserver.yaml, or a file that it names: those of servers have some kilobytes.
pub const SOURCE_SETTINGS_BYTES: u64 = 4 * 1024 * 1024;

/// Bad rows that a report lists. The rest is counted.
pub const SOURCE_BAD_LISTED: usize = 10_000;
