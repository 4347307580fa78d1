//! Limits of an import from another server's database, and of what came with it.

use std::time::Duration;

/// The frames of a volume that an import writes, in bytes: what a server makes of its own log. They
/// are in memory until the volume is complete.
pub const IMPORT_VOLUME_BYTES: u64 = 64 << 20;

/// What an import remembers of rooms is saved after this many volumes. One that was killed reads
/// the records after that again: at most a gigabyte.
pub const IMPORT_SAVE_VOLUMES: u64 = 16;

/// How many states of each room's branches an import can name by an event that has them. More than
/// that many branches at once are described by their differences from the room's state.
pub const IMPORT_STATES: usize = 64;

/// Changes of a room's state that wait for their event. A batch of the source's has at most some
/// hundred events; when a server enters a large room, there is a change for each member.
pub const IMPORT_WAITING_CHANGES: usize = 1_000_000;

/// How long an import waits for a source that does not answer, and how often it tries.
pub const IMPORT_RETRY: Duration = Duration::from_secs(1);
/// See [`IMPORT_RETRY`].
pub const IMPORT_RETRIES: u32 = 120;

/// How often an import that follows a running server looks for news.
pub const IMPORT_FOLLOW: Duration = Duration::from_millis(500);

/// The bytes of an import's report of what it left. After that, only counts go on.
pub const IMPORT_REPORT_BYTES: u64 = 64 << 20;

/// Keys, receipts and positions that an import puts into one record, in bytes: far less than a
/// record may have, so that what surrounds them fits, too.
pub const IMPORT_GROUP_BYTES: usize = 96 << 10;

/// Receipts for events that a copy has not read yet. If there are more, all receipts are read again
/// at the end.
pub const IMPORT_WAITING_RECEIPTS: usize = 100_000;

/// Account data that comes along, in bytes. Clients of this server may set less; this is what fits
/// into a record.
pub const IMPORT_ACCOUNT_DATA_BYTES: usize = 190 << 10;

/// Events that one record puts into a gap of a room's history.
pub const IMPORT_GAP_EVENTS: usize = 500;

/// The newest gaps of an imported room among which a client's position at the source is looked for.
/// In a room with more, the client may get events again that it has.
pub const IMPORTED_GAPS: usize = 100;

/// The strongest password hashes of other servers that are checked. Synapse's cost of bcrypt is 12
/// by default, and each step doubles the time: with 16, a check takes about four seconds.
pub const IMPORTED_BCRYPT_COST: u32 = 16;

/// The same for Argon2: memory in KiB. matrix-authentication-service takes 19 MiB.
pub const IMPORTED_ARGON2_KIB: u32 = 256 * 1024;

/// The same: passes over the memory.
pub const IMPORTED_ARGON2_PASSES: u32 = 32;

/// The same: memory in KiB times passes, which is the time that a check takes: with this much,
/// about a second.
pub const IMPORTED_ARGON2_WORK_KIB: u64 = 4 * IMPORTED_ARGON2_KIB as u64;

/// The same: lanes. They are computed one after the other, so that more of them cost no more.
pub const IMPORTED_ARGON2_LANES: u32 = 32;

/// The same for PBKDF2: iterations. OWASP recommends 600,000 with SHA-256.
pub const IMPORTED_PBKDF2_ITERATIONS: u32 = 2_000_000;

/// The longest hash that is compared, in bytes: that of SHA-512.
pub const IMPORTED_HASH_BYTES: usize = 64;

/// The longest password that is checked with a hash of another server, in bytes. Synapse accepts
/// 512 characters.
pub const IMPORTED_PASSWORD_BYTES: usize = 4 * 512;
