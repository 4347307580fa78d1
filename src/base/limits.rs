//! Every bound that is not configuration, with its reason. What an operator may want to change is
//! in [`crate::config`] instead.

use std::time::Duration;

/// An event in federation format, as canonical JSON with its signatures (client-server API, "Size
/// limits").
pub const EVENT_BYTES: usize = 65_536;

/// `sender`, `room_id`, `state_key`, `type` and `event_id` of an event (same place).
pub const EVENT_FIELD_BYTES: usize = 255;

/// Proposals decided in one commit. A commit occupies a thread while it decides, at some 100
/// microseconds for each; beyond this the disk sync is shared well enough.
pub const COMMIT_PROPOSALS: usize = 48;

/// Receipts and typing notices decided in one commit: each takes some microseconds to decide.
pub const COMMIT_PASSING: usize = 1000;

/// Receipts in one record, with room to spare below the largest payload.
pub const RECEIPTS_BYTES: usize = 160 * 1024;

/// State events and invites with which a room is made: each is authorised, hashed and signed before
/// anyone else's proposal on that thread.
pub const ROOM_EVENTS: usize = 500;

/// Invitations by address in one request: an identity server is asked about each, or has signed
/// each.
pub const ADDRESS_INVITES: usize = 20;

/// Bans and children of a space that an upgrade carries over: all of it is one batch, and each is
/// authorised, hashed and signed before anyone else's proposal on that thread.
pub const UPGRADE_EVENTS: usize = 2000;

/// Media ids in one record of quarantine, with room to spare below the largest payload; of more
/// files there are several records.
pub const QUARANTINE_IDS: usize = 1000;

/// Members who are made to leave a room at the same time as it is shut down: enough for them to
/// share disk syncs, and few enough for others to be served in between.
pub const SHUTDOWN_AT_ONCE: usize = 32;

/// How many of those who left a room, and of those who could not, the record of the end of its
/// shutdown names.
pub const SHUTDOWN_NAMED: usize = 1000;

/// How long a request to another service may take, its answer included: a person waits for most of
/// them.
pub const OUTBOUND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long connecting to another service may take.
pub const OUTBOUND_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest registration file of an application service: those of bridges have some hundred
/// bytes.
pub const REGISTRATION_BYTES: u64 = 1024 * 1024;

/// Namespaces of one kind of one application service: bridges have one or two.
pub const NAMESPACES: usize = 256;

/// A regular expression of a namespace, written out.
pub const NAMESPACE_BYTES: usize = 4096;

/// The memory that one such expression may take once it is compiled.
pub const NAMESPACE_COMPILED_BYTES: usize = 1024 * 1024;

/// What one delivery tells of at most: things, and bytes of records. One thing more may be larger
/// than what is left of the bytes.
pub const DELIVERY_ITEMS: usize = 100;
/// See [`DELIVERY_ITEMS`].
pub const DELIVERY_BYTES: usize = 1024 * 1024;

/// Records that a delivery reads at once.
pub const DELIVERY_RECORDS: usize = 256;

/// How many records that are nothing to a receiver are passed before that is noted: after a restart
/// as many are looked at again.
pub const DELIVERY_PASSED: u64 = 10_000;

/// How long to wait before trying again what could not be delivered: at first, and at most.
pub const DELIVERY_RETRY: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(60));

/// Rooms of which a delivery remembers who is in them. Beyond this it begins to learn them anew.
pub const DELIVERY_ROOMS: usize = 100_000;

/// Questions to one application service at a time, for which people wait.
pub const APPSERVICE_QUESTIONS: usize = 32;

/// How often an application service that cannot be reached is asked one question, and how long
/// after another.
pub const APPSERVICE_TRIES: (usize, Duration) = (3, Duration::from_millis(250));

/// The largest answer of another service that is taken, unless said otherwise.
pub const OUTBOUND_ANSWER_BYTES: usize = 1024 * 1024;

/// Registration tokens (client-server API, "Token-authenticated registration").
pub const REGISTRATION_TOKEN_BYTES: usize = 64;

/// What the form of a page sends: some names, a password, the answer to a captcha.
pub const FORM_BYTES: usize = 64 * 1024;
/// The name of an uploaded file, and its type: each is in its record, and in a header of each
/// download.
pub const MEDIA_NAME_BYTES: usize = 1024;

/// Uploads of one user that may be under way at a time. Each holds a file on the disk that counts
/// towards no quota yet.
pub(crate) const UPLOADS_AT_ONCE: usize = 16;

/// How much of an upload is in memory before it is written, and of a download when it is read.
pub(crate) const MEDIA_PIECE_BYTES: usize = 256 * 1024;

/// How much of an upload is written before it is synced: what a message may have to wait for that
/// is sent meanwhile.
pub(crate) const MEDIA_SYNC_BYTES: usize = 1024 * 1024;

/// The longest time that a download waits for what is still to be uploaded.
pub(crate) const MEDIA_WAIT: Duration = Duration::from_secs(60);

/// The largest file of which thumbnails are made: decoders read some formats into memory as a
/// whole.
pub const PICTURE_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// The largest picture of which thumbnails are made, decoded, in bytes: one of 44 million opaque
/// pixels.
pub const PICTURE_BYTES: u64 = 128 * 1024 * 1024;

/// The longest side of a picture of which thumbnails are made.
pub const PICTURE_SIDE: u32 = 32_768;

/// The longest side of a thumbnail. Who asks for more is given the picture itself.
pub const THUMBNAIL_SIDE: u32 = 2048;

/// Frames of an animated thumbnail. Of an animation with more, its first frame is the thumbnail.
pub const THUMBNAIL_FRAMES: usize = 500;

/// How long the making of an animated thumbnail may take. After that the first frame is the
/// thumbnail.
pub const THUMBNAIL_TIME: Duration = Duration::from_secs(10);

/// The largest animated thumbnail. Of an animation that makes a larger one, its first frame is the
/// thumbnail.
pub const THUMBNAIL_BYTES: usize = 8 * 1024 * 1024;

/// Pictures that are decoded at a time: each may take some 300 MiB of memory for a while.
pub const PICTURES_AT_ONCE: usize = 2;

/// How much of a page is read for its preview. What a preview is made of stands at a page's
/// beginning.
pub(crate) const PREVIEW_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Redirects that are followed for a preview.
pub(crate) const PREVIEW_REDIRECTS: usize = 5;

/// Pages that are fetched for previews at a time.
pub(crate) const PREVIEWS_AT_ONCE: usize = 16;

/// How many bytes of previews are kept in memory.
pub(crate) const PREVIEW_CACHE_BYTES: u64 = 16 << 20;

/// The longest text of a preview, in characters: clients show a few lines.
pub(crate) const PREVIEW_TEXT_CHARS: usize = 1000;

/// The longest address of which a preview is made.
pub(crate) const PREVIEW_URL_BYTES: usize = 8192;

/// How much is kept of where pages of spaces, and of lists of threads, ended: of each kind, in
/// bytes.
pub(crate) const WALKS_BYTES: u64 = 16 << 20;

/// Rooms on one page of a space's hierarchy.
pub const HIERARCHY_ROOMS: usize = 50;

/// Rooms, and children of spaces, that are looked at for one page of a hierarchy: the user may know
/// of few of them. The next page goes on from there.
pub const HIERARCHY_LOOKS: usize = 5000;

/// Rooms, and children of spaces, that are looked at for a whole hierarchy: those after them are
/// not shown. A page that begins somewhere unknown costs as much.
pub const HIERARCHY_WALK: usize = 50_000;

/// What the children of the spaces on one page of a hierarchy say, in bytes, beyond which the page
/// ends.
pub const HIERARCHY_BYTES: usize = 4 << 20;

/// Children of one space that are looked at: those that were added or changed last. People see some
/// hundred.
pub const SPACE_CHILDREN: usize = 5000;

/// What the children of one space say, in bytes, beyond which older ones are not looked at.
pub const SPACE_CHILDREN_BYTES: usize = 2 << 20;

/// Transaction ids: the specification sets no bound; identifiers of 255 bytes are the longest
/// anywhere else.
pub const TRANSACTION_ID_BYTES: usize = 255;

/// How deep a JSON body may nest. serde_json (and many a client's parser) gives up at 128 levels;
/// content is wrapped in several more before a client reads it back in a sync response.
pub(crate) const JSON_DEPTH: usize = 100;

/// How much of the body of a refused request is read and thrown away, so that its connection can be
/// used again. A longer body ends the connection.
pub(crate) const REFUSED_BODY_DRAIN: u64 = 256 * 1024;

/// How long such a body may take to arrive.
pub(crate) const REFUSED_BODY_TIME: Duration = Duration::from_secs(2);

/// How long a connection that ends with a refusal is read on, and thrown away what comes, so that
/// the client gets to read the refusal instead of a reset connection.
pub(crate) const LINGER: Duration = Duration::from_secs(5);

/// The pieces in which responses are given to the connection: each that the client takes counts as
/// progress.
pub(crate) const RESPONSE_PIECE: usize = 64 * 1024;

/// The size from which on a response counts towards what its caller holds in memory.
pub(crate) const HELD_FROM: usize = 16 * 1024;

/// How much of an oversized body is read and thrown away, so that the client gets to read the
/// refusal instead of a reset connection.
pub(crate) const OVERSIZED_BODY_DRAIN: usize = 16 * 1024 * 1024;

/// Requests in progress on one HTTP/2 connection: the fewest that RFC 9113 (section 6.5.2)
/// recommends to allow.
pub(crate) const HTTP2_STREAMS: u32 = 100;

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

/// Callers that one rate limiter remembers before it looks every second for those it can forget:
/// some 20 MB.
pub(crate) const RATE_LIMIT_KEYS: usize = 200_000;

/// Addresses from which accounts were used lately that are remembered, so that guesses from
/// elsewhere do not lock their owners out. Forgetting one costs nothing unless there is an attack
/// meanwhile.
pub(crate) const KNOWN_ADDRESSES: usize = 100_000;

/// Passwords that wait to be hashed, for each that can be hashed at once. At a tenth of a second
/// for each, the last of them waits about as long as a person will.
pub(crate) const HASHES_WAITING: usize = 64;

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

/// Bytes of the events of one page: a page of large events ends earlier, and has at least one.
pub const PAGE_BYTES: usize = 1024 * 1024;

/// Bytes of the events of all pages in one answer: the timelines of a sync's rooms, or what is
/// around the results of a search. When they are used up, each page has one event.
pub const ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Events that one look at a timeline goes through when few of them are visible or pass its filter:
/// the client goes on from where the look ended. A look at this many takes some 20 milliseconds.
pub const SCANNED_EVENTS: usize = 10_000;

/// One-time keys that a device may have on the server at once. Clients keep some fifty there.
pub const ONE_TIME_KEYS: usize = 1000;

/// Algorithms of which a device may have a fallback key: every sync of the device names those that
/// were not handed out. Clients use one.
pub const FALLBACK_KEYS: usize = 16;

/// Backed up room keys in one record, with room for the largest of them below the largest payload.
pub const KEY_BACKUP_RECORD_BYTES: usize = 128 * 1024;

/// Records that are read for one piece of a large backup: some 20 milliseconds.
pub const KEY_BACKUP_RECORDS: usize = 64;

/// Backed up room keys that an import puts in one batch.
pub const IMPORTED_ROOM_KEYS: usize = 100;

/// A key, a signature or what else a client uploads of its keys in one piece, in bytes: devices'
/// keys with their signatures take about one thousand.
pub const KEY_BYTES: usize = 32 * 1024;

/// Users, or devices of a user, that one request about keys may name.
pub const KEY_QUERY: usize = 10_000;

/// Messages to a device that one sync gives it; it asks again for more.
pub const TO_DEVICE_MESSAGES: usize = 100;

/// Types with a `*` in one list of a filter: each is tried on each event that is looked at.
pub const FILTER_PATTERNS: usize = 100;

/// How much is kept of the filters of syncs, in bytes: those of some thousand kinds of clients.
/// What is forgotten is made again.
pub(crate) const FILTERS_BYTES: u64 = 8 << 20;

/// Fields of events in a filter: each is looked for in each event that is returned.
pub const FILTER_FIELDS: usize = 1000;

/// Relations, or senders, by which a filter asks for events that others relate to: each is looked
/// for at each event.
pub const FILTER_RELATED: usize = 100;

/// Edits of an event that are looked at to find the newest, from the last one back.
pub const SCANNED_EDITS: usize = 100;

/// Events that relate to one event and are passed over because they are of somebody whom the user
/// ignores, or have lived long enough. After these, others are looked for by their senders, or
/// none.
pub const SCANNED_CHILDREN: usize = 1000;

/// Relations to one event, by which a filter that names senders alone has it looked for theirs.
pub const SCANNED_RELATIONS: usize = 100;

/// Equal reactions of one user to one event that a new one is compared with, from the last one
/// back.
pub const SCANNED_ANNOTATIONS: usize = 1000;

/// Events that relate to one event, directly or by others, beyond which a page of them is found by
/// going through the room's timeline.
pub const RELATED_EVENTS: usize = 10_000;

/// Threads that are looked at for one page of a room's threads, as few of them may be wanted.
pub const THREADS_LOOKED_AT: usize = 2000;

/// Threads that stand before a page and are looked at for it, where it is not known any more how
/// the page before ended.
pub const THREADS_PASSED: usize = 20_000;

/// References that are named with the event that they refer to, the newest: a poll has one for each
/// vote. All are to be had from the endpoint for relations.
pub const BUNDLED_REFERENCES: usize = 1000;

/// Events that are read for the references and threads of all events of one answer.
pub const BUNDLED_LOOKS: usize = 10_000;

/// How many relations are followed from an event to those that relate to it by others: the
/// specification recommends at least this many.
pub const RELATION_DEPTH: usize = 3;
/// The reason of a report: a page of text.
pub const REPORT_REASON_BYTES: usize = 4096;

/// Words of a search term that are looked for; what comes after them is not looked at. People type
/// a few.
pub const SEARCH_WORDS: usize = 32;

/// Hits of the index that one search judges: each is an event to be read. Whatever comes after them
/// is on later pages, and is not in the count.
pub const SEARCH_HITS: usize = 1000;

/// Texts with the words of a search that one search looks at, whatever rooms they are of: after
/// these, nothing is found. A look at so many takes some 50 milliseconds.
pub const SEARCH_TEXTS: usize = 1_000_000;

/// State events that come with all results of a search. A room with more than are left of these
/// comes without its members, and with no more than are left.
pub const SEARCH_STATE: usize = 20_000;

/// Results of one page of a search; each may come with events around it.
pub const SEARCH_RESULTS: u64 = 100;

/// Events before, and events after, each result of a search.
pub const SEARCH_CONTEXT: u64 = 20;

/// Users of one answer of the user directory.
pub const DIRECTORY_USERS: usize = 100;

/// Rooms of one page of those that two users share.
pub const MUTUAL_ROOMS: usize = 100;

/// The identifier of an app (client-server API, "Push notifications", `/pushers/set`), in
/// characters.
pub const APP_ID_CHARS: usize = 64;

/// What an app's provider knows a device by (same place).
pub const PUSHKEY_BYTES: usize = 512;

/// What else a pusher says of itself in each of its texts: names that people read.
pub const PUSHER_TEXT_BYTES: usize = 256;

/// What a pusher has the gateway told with each notification. Apps put the form of their message
/// there.
pub const PUSHER_DATA_BYTES: usize = 8 * 1024;

/// Pushers of one user: one for each app on each device, and some that were left behind.
pub const PUSHERS: usize = 100;

/// Notifications that wait for one pusher. Beyond this the oldest are given up: who comes back to
/// so many looks at the newest.
pub const PUSH_QUEUE: usize = 1000;

/// Requests to one push gateway at a time: one that is slow takes no more than this of the server.
pub const PUSHES_TO_GATEWAY: usize = 32;

/// Requests to all push gateways at a time. Each holds a connection.
pub const PUSHES_AT_ONCE: u32 = 1024;

/// How long after a notification arrived that is noted, together with all others of this time. What
/// arrived within it before the server was killed is sent again.
pub const PUSH_NOTE: Duration = Duration::from_secs(2);

/// Pushers of which a note says one by one how far behind they are. Of more, the least behind hold
/// the position of all back: they are sent again what came since if the server is killed.
pub const PUSH_BEHIND: usize = 1000;

/// Rooms that one mail about what was missed tells of, and messages of each: the newest. It says
/// how many more there are.
pub const MAIL_ROOMS: usize = 10;
/// See [`MAIL_ROOMS`].
pub const MAIL_MESSAGES: usize = 5;

/// What such a mail shows of one message, in characters. More is cut.
pub const MAIL_TEXT_CHARS: usize = 300;

/// What such a mail shows of the name of a room or a person, in characters. More is cut.
pub const MAIL_NAME_CHARS: usize = 80;

/// How long to wait before trying again a mail that the mail server did not take: at first, and at
/// most. What it refuses for good waits the longest, since the address or the server may be put
/// right.
pub const MAIL_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15 * 60));

/// How long after something was read a device is told of its new count: people read room after
/// room.
pub const PUSH_BADGE: Duration = Duration::from_secs(1);

/// A user's own push rules. Most of them mute a room or a sender, which takes one look-up for all
/// of them.
pub const PUSH_RULES: usize = 1_000;

/// Conditions, patterns of content rules included, in all of a user's own push rules. Each may be
/// tried on every event of the user's rooms.
pub const PUSH_CONDITIONS: usize = 500;

/// A pattern of a push rule. People type words; clients write identifiers, of 255 bytes at most.
pub const PUSH_PATTERN_BYTES: usize = 512;

/// The property that a condition of a push rule looks at, as a dot-separated path.
pub const PUSH_KEY_BYTES: usize = 512;

/// All that a user changed of their push rules, as it is kept.
pub const PUSH_RULES_BYTES: usize = 96 * 1024;

/// Pieces of long work done at once, for each processor: the operating system shares the processors
/// among them, so that a short piece does not wait for long ones to end.
pub(crate) const LONG_WORK_PER_PROCESSOR: usize = 8;

/// Requests of one caller that may wait for its long work: a client has a few under way.
pub(crate) const LONG_WORK_WAITING: usize = 32;

/// How much time of a processor a caller's long work may take at once, after a pause: the initial
/// sync of an account with thousands of rooms takes about a second.
pub(crate) const LONG_WORK_BURST: Duration = Duration::from_secs(10);

/// How long a request waits for its caller's share of a processor. If it would take longer, it is
/// refused.
pub(crate) const LONG_WORK_PATIENCE: Duration = Duration::from_secs(10);

/// Callers whose use is remembered before those that owe nothing are forgotten: some 2 MB.
pub(crate) const LONG_WORK_CALLERS: usize = 10_000;

/// How much may have happened in a user's rooms for a sync to be a short piece of work: rooms, and
/// events of all of them. Such a sync takes a few milliseconds at most, and usually a tenth of one.
pub(crate) const SHORT_SYNC: usize = 16;

/// How many records a sync may go back to be a short piece of work.
pub(crate) const SHORT_SYNC_RECORDS: u64 = 10_000;

/// How much work it may be to judge one event by one user's push rules, in steps of comparing one
/// character: a fifth of a millisecond. A message of 1,000 characters can be compared with 200
/// patterns; one of the largest possible with three that have stars. An event that takes more
/// matches no rule of this user.
pub const PUSH_STEPS: u64 = 200_000;

/// Conditions of one push rule: the server's own have three at most.
pub const PUSH_RULE_CONDITIONS: usize = 32;

/// Notifications in one list of them; as many come unless the client says.
pub const NOTIFICATIONS: u64 = 100;

/// The newest events of a room among which unread notifications are counted. No client shows a
/// larger number; counting this many anew takes some 50 milliseconds, once for a user and room.
pub const UNREAD_EVENTS: usize = 5_000;

/// A whole profile (client-server API, "Profiles").
pub const PROFILE_BYTES: usize = 64 * 1024;

/// How long someone is shown as typing whose client does not say how long: as long as common
/// clients ask for.
pub(crate) const TYPING: Duration = Duration::from_secs(30);

/// How much is remembered of which members each device was sent, in bytes: some 2.5 million of
/// them. What is forgotten is sent again.
pub const KNOWN_MEMBERS_BYTES: u64 = 64 << 20;

/// What a user says of their presence: a few words. It goes to everyone in a room with them.
pub const STATUS_MSG_BYTES: usize = 1024;

/// For how long after doing something a user counts as active (client-server API, "Last active
/// ago"): the finer it is, the more often others are told that it has passed.
pub(crate) const CURRENTLY_ACTIVE: Duration = Duration::from_secs(60);

/// How long a user's presence is left as it is told before it may be told anew, unless they set it
/// themselves: a client that flips it with every sync costs a record each second at most.
pub(crate) const PRESENCE_REST: Duration = Duration::from_secs(1);

/// For how long changes of presence are collected before those who wait are woken for them: in a
/// room of thousands someone's presence changes all the time, and each time would wake thousands.
pub(crate) const PRESENCE_WAVE: Duration = Duration::from_secs(1);

/// Users whose presence is recorded at once: they share a disk sync.
pub(crate) const PRESENCE_BATCH: usize = 64;

/// Delayed events that are sent in one go, those of one room one after the other.
pub(crate) const DELAYED_BATCH: usize = 256;

/// Delayed events on one page of their list. All that a user may have scheduled, unless configured
/// otherwise: older clients read no second page.
pub(crate) const DELAYED_PAGE: usize = 100;

/// How long to wait before trying again what the log did not take, for example while the disk is
/// full.
pub(crate) const TIMER_RETRY: Duration = Duration::from_secs(5);

/// The longest time that a timer sleeps at once. The clock may be set, or the machine asleep: what
/// is due then comes this much later at most.
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

/// How much is remembered of what sliding-sync connections were sent, in bytes: some 1,000
/// connections with 400 rooms each. A client whose connection is forgotten begins anew.
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

/// An e-mail address (RFC 5321, 4.5.3.1.3, without the angle brackets).
pub const EMAIL_BYTES: usize = 254;

/// A phone number as someone types it: fifteen digits and what is between them.
pub const PHONE_BYTES: usize = 64;

/// Where a browser goes after a validation: as long as an address that every browser takes.
pub const NEXT_LINK_BYTES: usize = 2048;

/// Validations of third-party identifiers under way at once; beyond this the one that ends first is
/// forgotten. Each takes some 600 bytes.
pub const VALIDATIONS: usize = 100_000;

/// Wrong tokens that a validation takes. A code that people type has six digits: this many tries
/// find it once in 100,000 times.
pub const VALIDATION_MISSES: u64 = 10;

/// Third-party identifiers of one account, and of one user on identity servers.
pub const THREEPIDS: usize = 50;

/// Sessions of which it is kept in memory when they were last in use, some 250 bytes each. Of one
/// that is forgotten, what was recorded is known.
pub(crate) const SEEN_DEVICES: usize = 100_000;

/// How often what devices were in use is recorded, of those of which it is time: they share a disk
/// sync.
pub(crate) const SEEN_TICK: Duration = Duration::from_secs(60);

/// Devices that are recorded to have been in use in one go.
pub(crate) const SEEN_BATCH: usize = 256;

/// What a client calls itself, as far as it is kept.
pub(crate) const AGENT_BYTES: usize = 256;

/// How long an OpenID token is good for: whoever is given it asks at once whose it is.
pub(crate) const OPENID_TOKEN: Duration = Duration::from_secs(3600);

/// What two devices leave for each other at a rendezvous (MSC4388, "Maximum payload size").
pub(crate) const RENDEZVOUS_BYTES: usize = 4096;

/// How long a rendezvous lasts (MSC4388: 120 to 300 seconds).
pub(crate) const RENDEZVOUS: Duration = Duration::from_secs(300);

/// Rendezvous at a time, some 5 KB each; beyond this the one that ends first is given up.
pub(crate) const RENDEZVOUS_SESSIONS: usize = 1000;

/// Writes to one rendezvous, whose outcomes are remembered by their transaction ids: signing in
/// takes some ten.
pub(crate) const RENDEZVOUS_WRITES: u64 = 256;

/// The length from which on a response is compressed, in bytes: what is shorter fits into few
/// packets.
pub const COMPRESS_FROM: usize = 4096;

/// How long a body may be, in bytes, to be compressed where it was made: a longer one takes more
/// than half a millisecond, in which the thread's other tasks go on elsewhere.
pub const COMPRESS_AT_ONCE: usize = 64 * 1024;

/// How hard responses are compressed, for zstd and gzip: the least, which costs the least time.
pub const COMPRESSION_LEVEL: i32 = 1;
