//! Limits on bodies and answers that are on their way.

use std::time::Duration;

/// What a client may send on a stream of HTTP/2, and on all of a connection, before somebody reads
/// it: so much is in memory for one connection whose requests are not read. Another homeserver may
/// be far away, but proxies are near, and they are who speaks HTTP/2.
pub const HTTP2_WINDOWS: (u32, u32) = (64 * 1024, 256 * 1024);

/// A body of at most this size, all of which is there, counts for nothing: with its connection, it
/// takes little more than the connection alone. While it is on its way, it counts like others.
pub const SMALL_BODY_BYTES: usize = 4 * 1024;

/// What a byte of a JSON body counts for: itself, and its copy in what is made of the body, where
/// texts and events are kept as they were written.
pub const BODY_WEIGHT: u64 = 2;

/// In which steps memory is reserved for a body as it arrives.
pub(crate) const BODY_QUANTUM: u64 = 16 * 1024;

/// Room is made for all of a body once a part of it is there: the announced length divided by this.
pub const BODY_BELIEVED: usize = 8;

/// The size of bodies, as they count, for which the last part of the memory is left: an eighth of
/// that for requests, and a ninth of that for answers. Almost all are smaller.
pub(crate) const BODY_SMALL_SHARE: u64 = 256 * 1024;

/// How often a body that waits for room looks whether there is some, and at most how often it looks
/// who could make some.
pub(crate) const BODY_LOOK: Duration = Duration::from_millis(50);

/// How long a body may hold memory without growing by [`BODY_QUANTUM`] before it makes room for
/// others: 32 KiB a second.
pub(crate) const BODY_IDLE: Duration = Duration::from_millis(500);

/// How long a body waits before larger and older ones that do arrive make room for it.
pub(crate) const BODY_YIELDS: Duration = Duration::from_secs(1);

/// How long a body of another homeserver may be worked on before it may have to make room.
pub(crate) const BODY_HANDLED: Duration = Duration::from_secs(10);

/// How long the body of a request waits for room. Then its sender is asked to come back.
pub const BODY_PATIENCE: Duration = Duration::from_secs(5);

/// When a sender whose body found no room, or had to make some, is asked to come back.
pub const BODY_AGAIN: Duration = Duration::from_secs(2);

/// How many bodies of requests wait for room; more are refused at once. Each holds what was read of
/// it last.
pub(crate) const BODIES_WAITING: usize = 256;

/// The largest JSON body of a request without an access token, in bytes: names, passwords and
/// proofs of who one is.
pub const ANONYMOUS_BODY_BYTES: usize = 64 * 1024;

/// How often an answer that a user waits for looks, before its turn, whether one that nobody waits
/// for has had its turn for long.
pub(crate) const LARGE_ANSWER_LOOK: Duration = Duration::from_secs(1);
/// How long that is.
pub(crate) const LARGE_ANSWER_YIELDS: Duration = Duration::from_secs(15);

/// The slowest pace of an answer: in so long, so many bytes have to come. One that stops half-way
/// is not waited for until its request has taken too long.
pub const ANSWER_PACE: (usize, Duration) = (16 * 1024, Duration::from_secs(10));

/// The same of a large answer at its turn, since others wait for it: half a megabyte a second.
pub const LARGE_ANSWER_PACE: (usize, Duration) = (2 << 20, Duration::from_secs(4));
