//! Limits on receipts and typing.

use std::time::Duration;

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

/// The users of a room who are shown as typing: those who began first. Clients name two or three.
pub const TYPISTS: usize = 20;

/// The shortest and the longest time between two records of typing in a large room. In between it
/// is a millisecond for each joined member, so that typing wakes at most a thousand of them in a
/// second.
pub const TYPING_WAVE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
