//! Every fixed limit, with its reason. Limits that an administrator may want to change are in
//! `logcabin_config`.

mod bodies;
mod calls;
mod doctor;
mod ephemeral;
mod federation;
mod import;
mod operation;
mod origins;
mod policies;
mod source;

use std::time::Duration;

pub use bodies::*;
pub use calls::*;
pub use doctor::*;
pub use ephemeral::*;
pub use federation::*;
pub use import::*;
pub use operation::*;
pub use origins::*;
pub use policies::*;
pub use source::*;

/// An event in federation format, as canonical JSON with its signatures (client-server API, "Size
/// limits").
pub const EVENT_BYTES: usize = 65_536;

/// The depth of an event: the greatest integer of canonical JSON.
pub const EVENT_DEPTH: u64 = (1 << 53) - 1;

/// `sender`, `room_id`, `state_key`, `type` and `event_id` of an event (same section).
pub const EVENT_FIELD_BYTES: usize = 255;

/// Proposals decided in one commit. A commit occupies a thread while it decides, at some 100
/// microseconds for each; beyond this the disk sync is shared well enough.
pub const COMMIT_PROPOSALS: usize = 48;

/// Initial state events and invites of a room. Each is authorised, hashed and signed before other
/// proposals on that thread.
pub const ROOM_EVENTS: usize = 500;

/// Invitations by address in one request. Each is looked up at an identity server, or has been
/// signed by one.
pub const ADDRESS_INVITES: usize = 20;

/// Bans and children of a space that an upgrade carries over. All of it is one batch, and each
/// event is authorised, hashed and signed before other proposals on that thread.
pub const UPGRADE_EVENTS: usize = 2000;

/// Media ids in one quarantine record, with some margin below the largest payload. More files take
/// several records.
pub const QUARANTINE_IDS: usize = 1000;

/// Members who are removed concurrently when a room is shut down: enough to share disk syncs, and
/// few enough for other requests to be served in between.
pub const SHUTDOWN_AT_ONCE: usize = 32;

/// How many users the last record of a shutdown names: of those who left, and of those who could
/// not be removed.
pub const SHUTDOWN_NAMED: usize = 1000;

/// Timeout of a request to another service, including its response. A person waits for most of
/// them.
pub const OUTBOUND_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of connecting to another service.
pub const OUTBOUND_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest registration file of an application service. Those of bridges have some hundred
/// bytes.
pub const REGISTRATION_BYTES: u64 = 1024 * 1024;

/// Namespaces of one kind of one application service: bridges have one or two.
pub const NAMESPACES: usize = 256;

/// A regular expression of a namespace, written out.
pub const NAMESPACE_BYTES: usize = 4096;

/// The memory that one such expression may take once it is compiled.
pub const NAMESPACE_COMPILED_BYTES: usize = 1024 * 1024;

/// The most items, and bytes of records, in one delivery. The last item may exceed the bytes.
pub const DELIVERY_ITEMS: usize = 100;
/// See [`DELIVERY_ITEMS`].
pub const DELIVERY_BYTES: usize = 1024 * 1024;

/// Records that a delivery reads at once.
pub const DELIVERY_RECORDS: usize = 256;

/// After how many records without interest to a receiver the position is recorded. After a restart,
/// at most this many are examined again.
pub const DELIVERY_PASSED: u64 = 10_000;

/// The first and the longest delay before a failed delivery is retried.
pub const DELIVERY_RETRY: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(60));

/// Rooms whose members a delivery caches. Beyond this it clears the cache.
pub const DELIVERY_ROOMS: usize = 100_000;

/// Concurrent queries to one application service on behalf of waiting users.
pub const APPSERVICE_QUESTIONS: usize = 32;

/// How often a query is sent to an unreachable application service, and the delay in between.
pub const APPSERVICE_TRIES: (usize, Duration) = (3, Duration::from_millis(250));

/// HTTP/2 flow-control windows for other services, of a stream and of a connection.
pub const OUTBOUND_WINDOWS: (u32, u32) = (256 * 1024, 512 * 1024);

/// The largest accepted response of another service, unless another limit applies.
pub const OUTBOUND_ANSWER_BYTES: usize = 1024 * 1024;

/// Registration tokens (client-server API, "Token-authenticated registration").
pub const REGISTRATION_TOKEN_BYTES: usize = 64;

/// The form fields of a page: some names, a password, a captcha response.
pub const FORM_BYTES: usize = 64 * 1024;
/// The name and the content type of an uploaded file. They are in its record, and in a header of
/// each download.
pub const MEDIA_NAME_BYTES: usize = 1024;

/// Concurrent uploads of one user. Each holds a file on disk that does not count towards a quota
/// yet.
pub const UPLOADS_AT_ONCE: usize = 16;

/// How much of an upload or download is in memory at a time.
pub const MEDIA_PIECE_BYTES: usize = 256 * 1024;

/// How much of an upload is written between two syncs. A message that is sent meanwhile may have to
/// wait for such a sync.
pub const MEDIA_SYNC_BYTES: usize = 1024 * 1024;

/// The longest time that a download waits for an upload in progress.
pub const MEDIA_WAIT: Duration = Duration::from_secs(60);

/// The largest file for thumbnails. Decoders read some formats into memory as a whole.
pub const PICTURE_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// The largest decoded picture for thumbnails, in bytes: 44 million opaque pixels.
pub const PICTURE_BYTES: u64 = 128 * 1024 * 1024;

/// The largest colour profile of a picture that is used, in bytes. Those of screens and cameras
/// have some kilobytes, and those of printers are not for RGB.
pub const PICTURE_PROFILE_BYTES: u64 = 1024 * 1024;

/// Parts of a PNG between which something is left out, such as texts: pictures have a few.
pub const PICTURE_CHUNKS: usize = 1000;

/// The longest side of a picture for thumbnails.
pub const PICTURE_SIDE: u32 = 32_768;

/// The longest side of a thumbnail. A request for a larger one gets the picture itself.
pub const THUMBNAIL_SIDE: u32 = 2048;

/// Frames of an animated thumbnail. A longer animation gets a still thumbnail, its first frame.
pub const THUMBNAIL_FRAMES: usize = 500;

/// Time limit for making an animated thumbnail. After it, the first frame is used.
pub const THUMBNAIL_TIME: Duration = Duration::from_secs(10);

/// The largest animated thumbnail. If it would be larger, the first frame is used.
pub const THUMBNAIL_BYTES: usize = 8 * 1024 * 1024;

/// Pictures that are decoded concurrently. Each may take some 300 MiB of memory.
pub const PICTURES_AT_ONCE: usize = 2;

/// How much of a page is read for its preview. The relevant elements are at its beginning.
pub const PREVIEW_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Redirects that a preview follows.
pub const PREVIEW_REDIRECTS: usize = 5;

/// Pages that are fetched concurrently for previews.
pub const PREVIEWS_AT_ONCE: usize = 16;

pub const PREVIEW_CACHE_BYTES: u64 = 16 << 20;

/// The longest text of a preview, in characters: clients show a few lines.
pub const PREVIEW_TEXT_CHARS: usize = 1000;

/// The longest address that is previewed.
pub const PREVIEW_URL_BYTES: usize = 8192;

/// Bytes of the caches of page ends: one for spaces, one for lists of threads.
pub const WALKS_BYTES: u64 = 16 << 20;

/// Rooms on one page of a space's hierarchy.
pub const HIERARCHY_ROOMS: usize = 50;

/// Rooms and children of spaces that one page of a hierarchy examines: the user may be allowed to
/// see few of them. The next page continues there.
pub const HIERARCHY_LOOKS: usize = 5000;

/// Rooms and children of spaces that a whole hierarchy examines; later ones are not shown. A page
/// that begins at an unknown position costs as much.
pub const HIERARCHY_WALK: usize = 50_000;

/// Bytes of the children events on one page of a hierarchy, beyond which the page ends.
pub const HIERARCHY_BYTES: usize = 4 << 20;

/// Children of one space that are examined, the most recently changed ones. Spaces made by people
/// have some hundred.
pub const SPACE_CHILDREN: usize = 5000;

/// Bytes of the children events of one space, beyond which older ones are not examined.
pub const SPACE_CHILDREN_BYTES: usize = 2 << 20;

/// Transaction ids. The specification sets no limit; 255 bytes is the limit of all other
/// identifiers.
pub const TRANSACTION_ID_BYTES: usize = 255;

/// How deep a JSON body may nest. serde_json (and many a client's parser) gives up at 128 levels,
/// and content is wrapped in several more before a client reads it back in a sync response.
pub const JSON_DEPTH: usize = 100;

/// How deep an event or an EDU may nest as a whole: deeper than what a client sends by what servers
/// put around it, and still less than serde_json reads in a record.
pub const ITEM_DEPTH: usize = 110;

/// How deep a text may nest whose signature is verified: deeper than any event of the largest size,
/// so that a deep event is refused alone, and not with its transaction.
pub const TEXT_DEPTH: usize = 70_000;

/// Characters of a number that an error message repeats.
pub(crate) const NUMBER_SHOWN: usize = 40;

/// How much of the body of a refused request is read and discarded to keep its connection usable.
/// After a longer body the connection is closed.
pub const REFUSED_BODY_DRAIN: u64 = 256 * 1024;

/// How long such a body may take to arrive.
pub const REFUSED_BODY_TIME: Duration = Duration::from_secs(2);

/// How long a connection that is closed after a refusal is still read, so that the client receives
/// the refusal instead of a connection reset.
pub const LINGER: Duration = Duration::from_secs(5);

/// The size of the pieces in which responses are sent. Each piece that the client takes counts as
/// progress.
pub const RESPONSE_PIECE: usize = 64 * 1024;

/// The smallest response that counts towards its caller's response memory.
pub const HELD_FROM: usize = 16 * 1024;

/// How much of an oversized body is read and discarded, so that the client receives the refusal
/// instead of a connection reset.
pub const OVERSIZED_BODY_DRAIN: usize = 16 * 1024 * 1024;

/// Requests in progress on one HTTP/2 connection: the fewest that RFC 9113 (section 6.5.2)
/// recommends to allow.
pub const HTTP2_STREAMS: u32 = 100;

/// Bytes of all headers of one HTTP/2 request; HTTP/1 bounds them by its read buffer.
pub const HTTP2_HEADER_BYTES: u32 = 32 * 1024;

/// The HTTP/1 read buffer, which bounds the request line with all headers.
pub const HTTP1_BUFFER_BYTES: usize = 32 * 1024;

/// How often a silent HTTP/2 peer is pinged.
pub const HTTP2_PING: Duration = Duration::from_secs(60);

/// How long to wait before accepting again after the operating system refused (for example because
/// all file descriptors are in use). Retrying at once would not help.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How often rate limiters drop callers that have their full allowance again. It bounds their
/// memory to the callers of about this time.
pub const RATE_LIMIT_SWEEP: Duration = Duration::from_secs(60);

/// Callers of one rate limiter above which it cleans up every second: some 20 MB.
pub(crate) const RATE_LIMIT_KEYS: usize = 200_000;

/// Remembered addresses from which accounts were used lately, so that guesses from elsewhere do not
/// lock their owners out. Forgetting one costs nothing unless there is an attack at that time.
pub const KNOWN_ADDRESSES: usize = 100_000;

/// Passwords that may be queued for hashing, for each that can be hashed concurrently. At a tenth
/// of a second each, the last one waits about as long as a person will.
pub const HASHES_WAITING: usize = 64;

/// How long a browser may remember that cross-origin requests are allowed, in seconds: two hours is
/// the most that common browsers honour.
pub const CORS_MAX_AGE_S: &str = "7200";

/// Identifiers of users, rooms, events and devices (appendices, "Identifier Grammar").
pub const IDENTIFIER_BYTES: usize = 255;

/// Passwords: longer than any that a person or a password manager makes; hashing reads it all.
pub const PASSWORD_BYTES: usize = 512;

/// Display names of users and devices: the limit of other servers.
pub const DISPLAY_NAME_BYTES: usize = 256;

/// Avatar addresses of users. They are repeated in a member event of each room.
pub const AVATAR_URL_BYTES: usize = 1024;

/// Filters and account data: what fits into one record beside its envelope.
pub const ACCOUNT_DATA_BYTES: usize = 128 * 1024;

/// Events of one page of history. Clients ask for 10 to 100; the response is built in memory.
pub const PAGE_EVENTS: u64 = 1000;

/// Bytes of the events of one page. A page of large events ends earlier, with at least one event.
pub const PAGE_BYTES: usize = 1024 * 1024;

/// Bytes of the events of all pages in one response: the timelines of a sync, or the contexts of
/// search results. Once they are used up, each further page has one event.
pub const ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Events that one request examines in a timeline if few of them are visible or match its filter.
/// The client continues from there. Examining this many takes some 20 milliseconds.
pub const SCANNED_EVENTS: usize = 10_000;

/// One-time keys that a device may have on the server. Clients keep some fifty.
pub const ONE_TIME_KEYS: usize = 1000;

/// Algorithms for which a device may have a fallback key. Every sync of the device lists the unused
/// ones. Clients use one.
pub const FALLBACK_KEYS: usize = 16;

/// Bytes of backed-up room keys in one record, with room for the largest of them below the largest
/// payload.
pub const KEY_BACKUP_RECORD_BYTES: usize = 128 * 1024;

/// Records that are read for one piece of a large backup: some 20 milliseconds.
pub const KEY_BACKUP_RECORDS: usize = 64;

/// Backed-up room keys that an import puts into one batch.
pub const IMPORTED_ROOM_KEYS: usize = 100;

/// A key, a signature or another element of uploaded keys, in bytes. Device keys with their
/// signatures take about one thousand.
pub const KEY_BYTES: usize = 32 * 1024;

/// Users, or devices of a user, that one request about keys may name.
pub const KEY_QUERY: usize = 10_000;

/// To-device messages in one sync. The client syncs again for more.
pub const TO_DEVICE_MESSAGES: usize = 100;

/// Types with a `*` in one list of a filter: each is matched with each examined event.
pub const FILTER_PATTERNS: usize = 100;

/// Bytes of the cache of sync filters: those of some thousand kinds of clients. Evicted ones are
/// parsed again.
pub const FILTERS_BYTES: u64 = 8 << 20;

/// Fields of events in a filter: each is looked for in each event that is returned.
pub const FILTER_FIELDS: usize = 1000;

/// Relations, or senders, by which a filter selects events with related events: each is looked up
/// for each event.
pub const FILTER_RELATED: usize = 100;

/// Edits of an event that are examined to find the newest, from the last one back.
pub const SCANNED_EDITS: usize = 100;

/// Related events of one event that are skipped because they are by an ignored user or have
/// expired. After these, others are looked up by sender, or none.
pub const SCANNED_CHILDREN: usize = 1000;

/// Relations to one event up to which a filter that only names senders examines each for its
/// sender.
pub const SCANNED_RELATIONS: usize = 100;

/// Equal reactions of one user to one event that a new one is compared with, from the last one
/// back.
pub const SCANNED_ANNOTATIONS: usize = 1000;

/// Events that relate to one event, directly or through others. Above this number, a page of them
/// is found by scanning the room's timeline.
pub const RELATED_EVENTS: usize = 10_000;

/// Threads that are examined for one page of a room's threads, because few of them may match.
pub const THREADS_LOOKED_AT: usize = 2000;

/// Threads before a page that are examined for it if the end of the previous page is no longer
/// cached.
pub const THREADS_PASSED: usize = 20_000;

/// References that are bundled with the event that they refer to, the newest ones. A poll has one
/// for each vote. The relations endpoint returns all of them.
pub const BUNDLED_REFERENCES: usize = 1000;

/// Events that are read for the references and threads of all events in one response.
pub const BUNDLED_LOOKS: usize = 10_000;

/// How many levels of relations are followed from an event to indirectly related ones. The
/// specification recommends at least this many.
pub const RELATION_DEPTH: usize = 3;
/// The reason of a report: a page of text.
pub const REPORT_REASON_BYTES: usize = 4096;

/// Words of a search term that are searched for; later ones are ignored. People type a few.
pub const SEARCH_WORDS: usize = 32;

/// Index hits that one search evaluates; each is an event to read. Further hits are on later pages
/// and not in the count.
pub const SEARCH_HITS: usize = 1000;

/// Texts with the search words that one search examines, in all rooms together. Later ones are not
/// found. Examining this many takes some 50 milliseconds.
pub const SEARCH_TEXTS: usize = 1_000_000;

/// State events that come with all results of a search. A room with more than the remaining number
/// comes without its members, and with at most the remaining number.
pub const SEARCH_STATE: usize = 20_000;

/// Results on one page of a search; each may come with surrounding events.
pub const SEARCH_RESULTS: u64 = 100;

/// Events before, and events after, each result of a search.
pub const SEARCH_CONTEXT: u64 = 20;

/// Users in one response of the user directory.
pub const DIRECTORY_USERS: usize = 100;

/// Rooms on one page of mutual rooms.
pub const MUTUAL_ROOMS: usize = 100;

/// The identifier of an app (client-server API, "Push notifications", `/pushers/set`), in
/// characters.
pub const APP_ID_CHARS: usize = 64;

/// The provider's identifier of a device (same section).
pub const PUSHKEY_BYTES: usize = 512;

/// Each of the other texts of a pusher: names that people read.
pub const PUSHER_TEXT_BYTES: usize = 256;

/// The `data` that a gateway gets with each notification. Apps put the format of their messages
/// there.
pub const PUSHER_DATA_BYTES: usize = 8 * 1024;

/// Pushers of one user: one for each app on each device, and some leftovers.
pub const PUSHERS: usize = 100;

/// Notifications that may be queued for one pusher. Beyond this the oldest are dropped: a user with
/// that many looks at the newest.
pub const PUSH_QUEUE: usize = 1000;

/// Concurrent requests to one push gateway, so that a slow one takes no more than this of the
/// server.
pub const PUSHES_TO_GATEWAY: usize = 32;

/// Concurrent requests to all push gateways. Each holds a connection.
pub const PUSHES_AT_ONCE: u32 = 1024;

/// How often a push gateway may refuse a notification (400 or 413) before it is dropped. A fault of
/// the gateway may be over by then.
pub const PUSH_REFUSALS: u32 = 3;

/// How long after a delivered notification its position is recorded, together with all others of
/// this time. Notifications delivered since are sent again if the server is killed.
pub const PUSH_NOTE: Duration = Duration::from_secs(2);

/// Pushers whose lag a position record lists individually. If more lag, the least lagging ones hold
/// back the common position, and are sent those notifications again if the server is killed.
pub const PUSH_BEHIND: usize = 1000;

/// Rooms, and messages of each room, in one mail about missed messages: the newest. It says how
/// many more there are.
pub const MAIL_ROOMS: usize = 10;
/// See [`MAIL_ROOMS`].
pub const MAIL_MESSAGES: usize = 5;

/// Characters of one message in such a mail. Longer texts are cut.
pub const MAIL_TEXT_CHARS: usize = 300;

/// Characters of the name of a room or a person in such a mail. Longer names are cut.
pub const MAIL_NAME_CHARS: usize = 80;

/// The first and the longest delay before a mail that the mail server refused is retried. Permanent
/// refusals wait the longest, because the address or the server may be corrected.
pub const MAIL_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15 * 60));

/// How long after reading something a device is sent its new count: people read room after room.
pub const PUSH_BADGE: Duration = Duration::from_secs(1);

/// A user's own push rules. Most of them mute a room or a sender, and one lookup covers all of
/// these.
pub const PUSH_RULES: usize = 1_000;

/// Conditions, and patterns of content rules, in all of a user's own push rules. Each may be
/// evaluated for every event in the user's rooms.
pub const PUSH_CONDITIONS: usize = 500;

/// A pattern of a push rule. People type words; clients write identifiers, of 255 bytes at most.
pub const PUSH_PATTERN_BYTES: usize = 512;

/// The property that a push condition refers to, as a dot-separated path.
pub const PUSH_KEY_BYTES: usize = 512;

/// All of a user's changes to their push rules, as stored.
pub const PUSH_RULES_BYTES: usize = 96 * 1024;

/// Pieces of long work done concurrently, for each processor. The operating system shares the
/// processors among them, so a short piece does not wait for long ones to end.
pub(crate) const LONG_WORK_PER_PROCESSOR: usize = 8;

/// Requests of one caller that may wait for long work: a client has a few in flight.
pub(crate) const LONG_WORK_WAITING: usize = 32;

/// Processor time that a caller's long work may take at once after a pause. The initial sync of an
/// account with thousands of rooms takes about a second.
pub(crate) const LONG_WORK_BURST: Duration = Duration::from_secs(10);

/// How long a request waits for its caller's share of a processor. If it would take longer, the
/// request is refused.
pub(crate) const LONG_WORK_PATIENCE: Duration = Duration::from_secs(10);

/// Callers whose usage is tracked before those without debt are dropped: some 2 MB.
pub(crate) const LONG_WORK_CALLERS: usize = 10_000;

/// The largest sync that counts as short work: rooms with news, and events in all of them. Such a
/// sync takes a few milliseconds at most, and usually a tenth of one.
pub const SHORT_SYNC: usize = 16;

/// How many records back a sync may go and still count as short work.
pub const SHORT_SYNC_RECORDS: u64 = 10_000;

/// The budget for evaluating one user's push rules on one event, in steps of comparing one
/// character: a fifth of a millisecond. A message of 1,000 characters can be matched with 200
/// patterns; one of the largest possible, with three that have stars. An event that exceeds the
/// budget matches no rule of this user.
pub const PUSH_STEPS: u64 = 200_000;

/// Conditions of one push rule: the server's own have three at most.
pub const PUSH_RULE_CONDITIONS: usize = 32;

/// Notifications on one page of the list, also the default.
pub const NOTIFICATIONS: u64 = 100;

/// The newest events of a room among which unread notifications are counted. No client shows a
/// larger number. Counting this many takes some 50 milliseconds, once for a user and room.
pub const UNREAD_EVENTS: usize = 5_000;

/// A whole profile (client-server API, "Profiles").
pub const PROFILE_BYTES: usize = 64 * 1024;

/// Bytes of the cache of members that each device was sent: some 2.5 million of them. Evicted ones
/// are sent again.
pub const KNOWN_MEMBERS_BYTES: u64 = 64 << 20;

/// A user's presence message: a few words. Everyone who shares a room with them gets it.
pub const STATUS_MSG_BYTES: usize = 1024;

/// How long after an action a user counts as active (client-server API, "Last active ago"). The
/// shorter it is, the more often others are told that it has passed.
pub const CURRENTLY_ACTIVE: Duration = Duration::from_secs(60);

/// Presence changes that are recorded together, to share a disk sync.
pub const PRESENCE_BATCH: usize = 64;

/// Delayed events that are sent together; those of one room are sent one after the other.
pub const DELAYED_BATCH: usize = 256;

/// Delayed events on one page of their list: by default all that a user may have, because older
/// clients do not read a second page.
pub const DELAYED_PAGE: usize = 100;

/// The delay before an append that the log refused is retried, for example while the disk is full.
pub const TIMER_RETRY: Duration = Duration::from_secs(5);

/// The longest sleep of a timer. If the clock is set or the machine sleeps, a timer is late by at
/// most this.
pub(crate) const TIMER_SLEEP: Duration = Duration::from_secs(60);

/// Tags' names (client-server API, "Room Tagging").
pub const TAG_BYTES: usize = 255;

/// Tags that one user may give a room. They share one piece of account data, which every change
/// rewrites.
pub const TAGS: usize = 100;

/// The content of a tag. Clients store a number there.
pub const TAG_INFO_BYTES: usize = 1024;

/// Aliases of one room, from all users. One response lists them all.
pub const ROOM_ALIASES: usize = 1000;

/// Signatures by one user on one key. They are all read whenever that user queries the key. Clients
/// add one for each new signing key.
pub const SIGNATURES: usize = 64;

/// Bytes of the cache of what sliding sync connections were sent: some 1,500 connections with 1,000
/// rooms each. Others are in files.
pub const SLIDING_BYTES: u64 = 128 << 20;

/// Bytes of the files of sliding sync connections, and of what is written to them in an hour: tens
/// of thousands of connections with 1,000 rooms each. Beyond this, the clients that have been away
/// longest start over.
pub const SLIDING_FILES_BYTES: u64 = 1 << 30;

/// Bytes of the file of one session: hundreds of thousands of rooms.
pub const SLIDING_FILE_BYTES: usize = 4 << 20;

/// After this time without news for its connection, a client starts over.
pub const SLIDING_FILES_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// How often files of sliding sync connections that are no longer needed are removed.
pub const SLIDING_FILES_SWEPT: Duration = Duration::from_secs(3600);

/// Sliding-sync connections of one session. Clients have two or three.
pub const SLIDING_CONNECTIONS: usize = 8;

/// The name of a sliding sync connection, limited like other identifiers.
pub const SLIDING_NAME_BYTES: usize = 255;

/// Lists in a sliding-sync request (MSC4186, "Top-level").
pub const SLIDING_LISTS: usize = 100;

/// Ranges of one list: clients ask for one or two.
pub const SLIDING_RANGES: usize = 100;

/// Rooms that a sliding-sync request subscribes to: many more than a client shows at a time.
pub const SLIDING_SUBSCRIPTIONS: usize = 1000;

/// Entries of `required_state`: clients ask for some twenty.
pub const SLIDING_REQUIRED_STATE: usize = 200;

/// Member events that one sliding sync connection is remembered to have been sent. Beyond this they
/// are forgotten, and sent again when a timeline needs them.
pub const SLIDING_MEMBERS: usize = 50_000;

/// An e-mail address (RFC 5321, 4.5.3.1.3, without the angle brackets).
pub const EMAIL_BYTES: usize = 254;

/// A phone number as typed: fifteen digits with separators.
pub const PHONE_BYTES: usize = 64;

/// Where a browser goes after a validation: the longest address that every browser accepts.
pub const NEXT_LINK_BYTES: usize = 2048;

/// Concurrent validations of third-party identifiers; beyond this the one that expires first is
/// dropped. Each takes some 600 bytes.
pub const VALIDATIONS: usize = 100_000;

/// Wrong tokens that a validation accepts. A code that people type has six digits: this many
/// guesses succeed once in 100,000 times.
pub const VALIDATION_MISSES: u64 = 10;

/// Third-party identifiers of one account, and their bindings on identity servers.
pub const THREEPIDS: usize = 50;

/// Sessions whose last use is kept in memory, some 250 bytes each. For evicted ones, the recorded
/// time is used.
pub const SEEN_DEVICES: usize = 100_000;

/// How often the last use of devices is recorded, for those that are due. They share a disk sync.
pub const SEEN_TICK: Duration = Duration::from_secs(60);

/// Devices whose last use is recorded together.
pub const SEEN_BATCH: usize = 256;

/// The payload that two devices exchange at a rendezvous (MSC4388, "Maximum payload size").
pub const RENDEZVOUS_BYTES: usize = 4096;

/// How long a rendezvous lasts (MSC4388: 120 to 300 seconds).
pub const RENDEZVOUS: Duration = Duration::from_secs(300);

/// Concurrent rendezvous sessions, some 5 KB each; beyond this the one that expires first is
/// dropped.
pub const RENDEZVOUS_SESSIONS: usize = 1000;

/// Writes to one rendezvous session, whose outcomes are remembered by their transaction ids.
/// Signing in takes some ten.
pub const RENDEZVOUS_WRITES: u64 = 256;

/// The scope in an OAuth request. Clients send some two hundred bytes.
pub const OAUTH_SCOPE_BYTES: usize = 1024;

/// One address in the metadata of an OAuth client.
pub const OAUTH_URI_BYTES: usize = 1024;

/// Redirect addresses of an OAuth client: one for each of its platforms and builds.
pub const OAUTH_REDIRECTS: usize = 20;

/// The name of an OAuth client, in characters.
pub const OAUTH_NAME_CHARS: usize = 100;

/// Names, logos, policies and terms of an OAuth client, in all languages.
pub const OAUTH_SHOWN: usize = 100;

/// The metadata of an OAuth client in its registration. Less than this is recorded.
pub const OAUTH_CLIENT_BYTES: usize = 16 * 1024;

/// OAuth clients without a grant, some kilobytes each. Beyond this the one that has been idle
/// longest is removed.
pub const OAUTH_UNUSED_CLIENTS: usize = 4_000;

/// The query of an OAuth request that begins in a browser. It goes through addresses and forms.
pub const OAUTH_REQUEST_BYTES: usize = 4096;

/// How long an authorization code is valid (RFC 6749, section 4.1.2, allows ten minutes). A client
/// uses it at once.
pub const OAUTH_CODE: Duration = Duration::from_secs(60);

/// Authorization codes of one user that are valid at the same time.
pub const OAUTH_CODES: usize = 20;

/// How long the codes of a device authorization are valid (RFC 8628, section 3.2): a person finds
/// a browser and signs in.
pub const OAUTH_DEVICE_CODE: Duration = Duration::from_secs(20 * 60);

/// Pending device authorizations. Beyond this the one that expires first is dropped.
pub const OAUTH_DEVICE_REQUESTS: usize = 10_000;

/// How often a client may ask for the outcome of a device authorization (RFC 8628, section 3.5).
pub const OAUTH_INTERVAL: Duration = Duration::from_secs(5);

/// Grants of one user without a device: logins at other services. Beyond this the oldest ends.
pub const OAUTH_GRANTS: usize = 100;

/// Browsers in which one user is signed in. Beyond this the oldest is signed out.
pub const OAUTH_BROWSERS: usize = 20;

/// How recently a user must have signed in to change how others can sign in to the account.
pub const OAUTH_FRESH: Duration = Duration::from_secs(15 * 60);

/// How long the cross-signing keys may be replaced after the user has allowed it.
pub const OAUTH_RESET: Duration = Duration::from_secs(10 * 60);

/// How long an ID token is valid. Its recipient checks it at once.
pub const OAUTH_ID_TOKEN: Duration = Duration::from_secs(600);

/// The smallest response that is compressed, in bytes. A shorter one fits into few packets.
pub const COMPRESS_FROM: usize = 4096;

/// The largest body that is compressed on the spot, in bytes. A longer one takes more than half a
/// millisecond, in which the thread's other tasks continue elsewhere.
pub const COMPRESS_AT_ONCE: usize = 64 * 1024;

/// The compression level, for zstd and gzip: the fastest.
pub const COMPRESSION_LEVEL: i32 = 1;

/// Readers of the feed of changes at a time. Each takes a thread's time for what it reads.
pub const CHANGES_READERS: usize = 16;

/// About how many bytes of the feed of changes are made at once: three times as many are in memory
/// for each reader.
pub const CHANGES_PIECE_BYTES: usize = 64 * 1024;

/// The most records that are examined for one piece.
pub const CHANGES_LOOK: usize = 256;

/// After how long without a record a reader of the feed of changes is told its position.
pub const CHANGES_SILENCE: Duration = Duration::from_secs(15);

/// Records whose later effects can still be added to their traces, some 200 bytes each.
pub const TRACED_RECORDS: usize = 1024;

/// Spans in a trace of what followed from one record: answers to syncs, pushes, transactions, and
/// mail. A message in a large room wakes thousands.
pub const TRACE_FOLLOWERS: usize = 16;

/// Spans that wait to be sent, some 500 bytes each; more are dropped.
pub const TRACE_SPANS: usize = 8192;

/// How long spans wait for others, to be sent together.
pub const TRACE_TOGETHER: Duration = Duration::from_secs(1);

/// How long it may take to send spans.
pub const TRACE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a collector may take for metrics.
pub const METRICS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a session of the console lasts.
pub const CONSOLE_SESSION: Duration = Duration::from_secs(12 * 3600);

/// How long a login to the console by OpenID Connect may take: an administrator signs in first.
pub const CONSOLE_LOGIN: Duration = Duration::from_secs(20 * 60);

/// How long a link to the console is valid.
pub const CONSOLE_LINK: Duration = Duration::from_secs(10 * 60);

/// Records on one page of the console.
pub const CONSOLE_RECORDS: usize = 50;

/// Records that are examined for one page of the console: some tens of milliseconds.
pub const CONSOLE_LOOK: usize = 4000;

/// State resolutions that one page of the console explains.
pub const CONSOLE_EXPLAINED: usize = 5;

/// Records that are read for one part of the console's time line.
pub const CONSOLE_SAMPLES: u64 = 32;

/// Rows of one list on a page of the console.
pub const CONSOLE_ROWS: usize = 100;

/// Characters of one text on a page of the console.
pub const CONSOLE_TEXT: usize = 256 * 1024;
