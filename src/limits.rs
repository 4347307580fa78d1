//! Every bound that is not configuration, with its reason. What an operator may want to change is
//! in [`crate::config`] instead.

use std::time::Duration;

/// An event in federation format, as canonical JSON with its signatures (client-server API, "Size
/// limits").
pub const EVENT_BYTES: usize = 65_536;

/// `sender`, `room_id`, `state_key`, `type` and `event_id` of an event (same place).
pub const EVENT_FIELD_BYTES: usize = 255;

/// Proposals decided in one turn. A turn occupies a thread while it decides, at some 100
/// microseconds for each; beyond this the disk sync is shared well enough.
pub const TURN_PROPOSALS: usize = 48;

// A turn of the largest events is one batch.
const _: () = assert!(TURN_PROPOSALS * (EVENT_BYTES + 16 * 1024) <= crate::log::MAX_BATCH_BYTES);

/// State events and invites with which a room is made: each is authorised, hashed and signed before
/// anyone else's proposal on that thread.
pub const ROOM_EVENTS: usize = 500;

/// Transaction ids: the specification sets no bound; identifiers of 255 bytes are the longest
/// anywhere else.
pub const TRANSACTION_ID_BYTES: usize = 255;

/// How deep a JSON body may nest. serde_json (and many a client's parser) gives up at 128 levels;
/// content is wrapped in several more before a client reads it back in a sync response.
pub(crate) const JSON_DEPTH: usize = 100;

/// How much of an oversized body is read and thrown away, so that the client gets to read the
/// refusal instead of a reset connection.
pub(crate) const OVERSIZED_BODY_DRAIN: usize = 16 * 1024 * 1024;

/// Requests in progress on one HTTP/2 connection. Browsers ask for about this many.
pub(crate) const HTTP2_STREAMS: u32 = 128;

/// Bytes of all headers of one HTTP/2 request; HTTP/1 bounds them by its read buffer.
pub(crate) const HTTP2_HEADER_BYTES: u32 = 32 * 1024;

/// The HTTP/1 read buffer, which bounds the request line with all headers.
pub(crate) const HTTP1_BUFFER_BYTES: usize = 64 * 1024;

/// How often an HTTP/2 peer that says nothing is asked whether it is still there.
pub(crate) const HTTP2_PING: Duration = Duration::from_secs(60);

/// How long to wait before accepting again after the operating system refused (for example because
/// all file descriptors are in use): the condition does not go away any faster by asking again.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How often rate limiters forget the callers that have been quiet long enough to have their whole
/// allowance back. Bounds their memory to the callers of about this long.
pub(crate) const RATE_LIMIT_SWEEP: Duration = Duration::from_secs(60);

/// How long a browser may remember that cross-origin requests are allowed, in seconds: two hours is
/// the most that common browsers honour.
pub(crate) const CORS_MAX_AGE_S: &str = "7200";

/// Identifiers of users, rooms, events and devices (appendices, "Identifier Grammar").
pub const IDENTIFIER_BYTES: usize = 255;

/// Passwords: longer than any that a person or a password manager makes; hashing reads it all.
pub const PASSWORD_BYTES: usize = 512;

/// Display names of users and devices: as other servers have it.
pub const DISPLAY_NAME_BYTES: usize = 256;

/// Avatar addresses of users: they are repeated in a member event of each room.
pub const AVATAR_URL_BYTES: usize = 1024;

/// Filters and account data: what one record holds comfortably beside its envelope.
pub const ACCOUNT_DATA_BYTES: usize = 128 * 1024;

/// Events of one page of history. Clients ask for 10 to 100; the answer is made in memory.
pub const PAGE_EVENTS: u64 = 1000;

/// Events that one look at a timeline goes through when few of them are visible or pass its filter:
/// the client goes on from where the look ended. A look at this many takes some 20 milliseconds.
pub const SCANNED_EVENTS: usize = 10_000;

/// A whole profile (client-server API, "Profiles").
pub const PROFILE_BYTES: usize = 64 * 1024;

/// How long someone is shown as typing whose client does not say how long: as long as common
/// clients ask for.
pub(crate) const TYPING: Duration = Duration::from_secs(30);

/// How much is remembered of which members each device was sent, in bytes: some 2.5 million of them. What
/// is forgotten is sent again.
pub const KNOWN_MEMBERS_BYTES: u64 = 64 << 20;

/// How much is remembered of what sliding-sync connections were sent, in bytes: some 1,000 connections
/// with 400 rooms each. A client whose connection is forgotten begins anew.
pub const SLIDING_BYTES: u64 = 128 << 20;

/// Sliding-sync connections of one session. Clients have two or three.
pub const SLIDING_CONNECTIONS: usize = 8;

/// The name of a sliding-sync connection: as for other identifiers.
pub const SLIDING_NAME_BYTES: usize = 255;

/// Lists in a sliding-sync request (MSC4186, "Top-level").
pub const SLIDING_LISTS: usize = 100;

/// Ranges of one list: clients ask for one or two.
pub const SLIDING_RANGES: usize = 100;

/// Rooms that a sliding-sync request subscribes to: many more than a client shows at a time.
pub const SLIDING_SUBSCRIPTIONS: usize = 1000;

/// Entries of `required_state`: clients ask for some twenty.
pub const SLIDING_REQUIRED_STATE: usize = 200;

/// Member events that one sliding-sync connection is remembered to have been sent. Beyond this they
/// are forgotten, and sent again when a timeline needs them.
pub const SLIDING_MEMBERS: usize = 50_000;
