//! Limits that keep a server in operation: file descriptors, lines of its log output, and what
//! waits for its administrators.

use std::time::Duration;

use crate::rate::Rate;

/// The limit on file descriptors to which a server raises its own: more than the largest
/// `http.max_connections` needs.
pub const DESCRIPTORS: u64 = 1 << 21;

/// File descriptors that are kept from connections: a quarter of the limit, within these bounds.
/// Half of them are kept from downloads and requests to other homeservers, too.
pub const DESCRIPTORS_KEPT: (u64, u64) = (32, 1024);

/// File descriptors that a server has open without any connection: the runtime, the log and its
/// archive, the search index, the admin socket.
pub const DESCRIPTORS_OWN: u64 = 64;

/// How long a new connection waits for the place of one that waits for a request. After that, a
/// request that waits for news is answered early, so that its connection ends: some milliseconds
/// more than an idle connection takes to end.
pub const ROOM_PATIENCE: Duration = Duration::from_millis(5);

/// How long a new connection waits for the place of a request that is answered early before the
/// next one is: longer than a slow machine takes to answer.
pub const ROOM_ANSWER_TIME: Duration = Duration::from_millis(100);

/// How often a server that is short of file descriptors looks whether it has some again.
pub const DESCRIPTORS_RETRY: Duration = Duration::from_millis(10);

/// How often a server says that it is short of them.
pub const SHORTAGE_SAID: Duration = Duration::from_secs(60);

/// Requests to other services, push gateways or identity servers for example, that are under way at
/// once; fewer where file descriptors are few.
pub const OUTBOUND_AT_ONCE: usize = 256;

/// Idle connections to one service that are kept for its next request, and for how long.
pub const OUTBOUND_IDLE: (usize, Duration) = (8, Duration::from_secs(30));

/// How long the addresses of a server that this one has taken over from are asked at a start.
pub const FORMER_TIME: Duration = Duration::from_secs(4);

/// Lines of the log about refused logins from one address: more than a program that bans addresses
/// waits for.
pub const REFUSED_LOGIN_LINES: Rate = Rate::per_minute(30, 60);

/// The same from all addresses together: at some 120 bytes, 100 MB in a day at most.
pub const ALL_REFUSED_LOGIN_LINES: Rate = Rate::per_second(10, 1000);

/// Lines of the access log that wait to be written. Beyond it they are dropped, so that a slow disk
/// delays no request.
pub const ACCESS_LINES: usize = 4096;

/// A header or a path in a line of the access log, in bytes.
pub const ACCESS_FIELD_BYTES: usize = 256;

/// How long a server that stops may take to record the last uses. A cluster without a quorum would
/// take forever.
pub const SEEN_LAST: Duration = Duration::from_secs(5);

/// The length to which a client's user agent is cut.
pub const AGENT_BYTES: usize = 256;

/// The time in which a proxy must send the PROXY header of a connection. It sends it at once.
pub const PROXY_HEADER_TIME: Duration = Duration::from_secs(5);

/// The largest PROXY header, in bytes after its first 16. Addresses take 216 at most; the rest is
/// what proxies say besides, such as the names in certificates.
pub const PROXY_HEADER_BYTES: usize = 4096;

/// The time in which the outbound proxy must connect to a target, in addition to the time for the
/// connection to the proxy itself.
pub const PROXY_CONNECT_TIME: Duration = Duration::from_secs(10);

/// The largest head of the outbound proxy's answer, in bytes.
pub const PROXY_ANSWER_BYTES: usize = 8192;

/// How many addresses of a service are tried.
pub const OUTBOUND_ADDRESSES: usize = 4;

/// A record of what a kick or a ban redacts names at most this many events. This many rooms with
/// kicks and bans are looked at in turns.
pub const REDACTED_BY_A_RECORD: usize = 256;
pub const REDACTING_ROOMS: usize = 64;

/// How many of the reports that were closed last are known without a search in the log.
pub const CLOSED_REPORTS: usize = 1000;

/// With an event that a user redacts, at most this many are redacted that relate to it, among the
/// newest of these.
pub const RELATED_REDACTED: usize = 1000;
pub const RELATED_LOOKED_AT: usize = 20_000;

/// What a user sent is redacted this many events at a time. At the end, this many are named that
/// could not be redacted. While the log takes no writes, it is tried again after these pauses, and
/// from then on after the last of them.
pub const REDACTED_AT_ONCE: usize = 32;
pub const REDACTIONS_NAMED: usize = 100;
pub const REDACTION_PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];

/// Accounts that wait for an administrator's approval. Somebody has to read them all; further ones
/// are refused until then.
pub const WAITING_ACCOUNTS: usize = 1000;

/// What a newcomer answers to the operator's question: a page.
pub const REGISTRATION_ANSWER_BYTES: usize = 4096;
