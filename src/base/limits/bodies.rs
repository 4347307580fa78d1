//! Limits on bodies and answers that are on their way.

use std::time::Duration;

use crate::rate::Rate;

/// HTTP/2 flow-control windows for clients, of a stream and of a connection: this much is in memory
/// for a connection whose requests are not read. Another homeserver may be far away, but it is
/// nearby proxies that speak HTTP/2.
pub const HTTP2_WINDOWS: (u32, u32) = (64 * 1024, 256 * 1024);

/// A complete body of at most this size is not charged: it takes little more than its connection
/// alone. While it arrives, it counts like others.
pub const SMALL_BODY_BYTES: usize = 4 * 1024;

/// A body larger than this is decoded as long work, in its sender's turn: nearly all are smaller.
pub const LONG_BODY_BYTES: usize = 64 * 1024;

/// What a byte of a JSON body counts for: itself, and its copy in the decoded request, where texts
/// and events are kept as written.
pub const BODY_WEIGHT: u64 = 2;

/// The steps in which memory is reserved for a body as it arrives.
pub(crate) const BODY_QUANTUM: u64 = 16 * 1024;

/// Once this fraction of the announced length of a body has arrived, room is made for all of it.
pub const BODY_BELIEVED: usize = 4;

/// The charged size of bodies for which the last part of the memory is reserved: an eighth of that
/// for requests, and a ninth of that for answers. Almost all are smaller.
pub(crate) const BODY_SMALL_SHARE: u64 = 256 * 1024;

/// How often a waiting body checks for room, and about how often it searches for bodies that could
/// make some.
pub(crate) const BODY_LOOK: Duration = Duration::from_millis(50);

/// How long a body may hold memory without growing by [`BODY_QUANTUM`] before it makes room for
/// others: 32 KiB a second.
pub(crate) const BODY_IDLE: Duration = Duration::from_millis(500);

/// How long a body waits before larger and older ones make room for it although they progress.
pub(crate) const BODY_YIELDS: Duration = Duration::from_secs(1);

/// How long a body of another homeserver may be handled before it may have to make room.
pub(crate) const BODY_HANDLED: Duration = Duration::from_secs(10);

/// How long the body of a request waits for room. Then its sender is asked to retry.
pub const BODY_PATIENCE: Duration = Duration::from_secs(5);

/// The delay after which a sender whose body found no room, or had to make some, is asked to retry.
pub const BODY_AGAIN: Duration = Duration::from_secs(2);

/// Bodies of requests that wait for room; more are refused at once. Each holds the last piece that
/// was read of it.
pub(crate) const BODIES_WAITING: usize = 256;

/// The largest JSON body of a request without an access token, in bytes: names, passwords and
/// proofs of who one is.
pub const ANONYMOUS_BODY_BYTES: usize = 64 * 1024;

/// How often an answer that a user waits for checks, before its turn, whether one that nobody waits
/// for has had its turn for too long.
pub(crate) const LARGE_ANSWER_LOOK: Duration = Duration::from_secs(1);
/// How long one that nobody waits for keeps its turn then.
pub(crate) const LARGE_ANSWER_YIELDS: Duration = Duration::from_secs(15);

/// The slowest pace of an answer: at least this many bytes in each such time. One that stops
/// halfway ends before its request times out.
pub const ANSWER_PACE: (usize, Duration) = (16 * 1024, Duration::from_secs(10));

/// The same for a large answer at its turn while others wait: half a megabyte a second.
pub const LARGE_ANSWER_PACE: (usize, Duration) = (2 << 20, Duration::from_secs(4));

/// The bytes of answers of one homeserver: beyond 8 MiB a second and 128 MiB at once, it is not
/// asked for the state of a room because of an event.
pub const ANSWER_RATE: Rate = Rate::per_second(8 << 20, 128 << 20);

/// How much of an answer is given back to the system at a time, as its parts are taken from it.
pub const ANSWER_CUT_BYTES: usize = 1 << 20;
