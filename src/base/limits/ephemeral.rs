//! Limits on receipts, typing and presence.

use std::time::Duration;

/// Receipts and typing notices decided in one commit: each takes some microseconds to decide.
pub const COMMIT_PASSING: usize = 1000;

/// Receipts in one record, with some margin below the largest payload.
pub const RECEIPTS_BYTES: usize = 160 * 1024;

/// The receipts of others that a client is sent of a room of which it has nothing, or of which it
/// missed some events: the newest. Clients draw a few faces beside an event. In a room with fewer
/// members, this is all.
pub const RECEIPTS_OF_OTHERS: usize = 100;

/// The receipts among which those are found: others may have read privately, which nobody is told.
/// All that moved in one record are examined.
pub const RECEIPTS_LOOKED_AT: usize = 2000;

/// How long a typing notification lasts if the client gives no timeout: as long as common clients
/// ask for.
pub const TYPING: Duration = Duration::from_secs(30);

/// The users of a room who are shown as typing: the ones who began first. Clients name two or
/// three.
pub const TYPISTS: usize = 20;

/// The shortest and the longest time between two records of typing in a large room. In between it
/// is a millisecond for each joined member, so that typing wakes at most a thousand of them in a
/// second.
pub const TYPING_WAVE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The shortest time between two recorded changes of a user's presence, unless they set it
/// themselves. A client that changes it with every sync costs at most a record each second.
pub const PRESENCE_REST: Duration = Duration::from_secs(1);

/// How long presence changes are collected before waiting syncs are woken for them. In a room of
/// thousands, someone's presence changes all the time, and each change would wake thousands.
pub const PRESENCE_WAVE: Duration = Duration::from_secs(1);
