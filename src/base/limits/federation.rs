//! Limits on what other homeservers may cause.

use std::time::Duration;

use crate::rate::Rate;

/// How many homeservers' signing keys are kept. The public network has some ten thousand.
pub const PEERS: usize = 100_000;

/// Keys that a homeserver may publish, and old ones of it that are kept.
pub const PEER_OLD_KEYS: usize = 32;

/// The largest document with the signing keys of a homeserver. Such a document is recorded; those
/// of homeservers have some hundred bytes.
pub const PEER_KEYS_BYTES: usize = 16 * 1024;

/// Concurrent requests for keys of homeservers: of those whose keys are known, of those that failed
/// to answer the last time, of unknown ones, and ahead of expiry.
pub const PEER_KEYS_FETCHES: usize = 16;

/// How long a request for the keys of one homeserver may take.
pub const PEER_KEYS_TIME: Duration = Duration::from_secs(10);

/// A homeserver that takes longer to answer with its keys is asked again as rarely as one that does
/// not answer.
pub const PEER_KEYS_SLOW: Duration = Duration::from_secs(5);

/// How long before the keys of a homeserver expire its requests cause them to be fetched again, and
/// the shortest time between two such fetches.
pub const PEER_KEYS_AHEAD: (Duration, Duration) =
    (Duration::from_secs(3600), Duration::from_secs(600));

/// The same as [`PEER_KEYS_FETCHES`] for the keys that the events of an answer need, which may be
/// of very many homeservers, and how long each request may take.
pub const PEER_KEYS_IN_BULK: (usize, Duration) = (64, Duration::from_secs(15));

/// The rate at which keys of unknown homeservers are recorded. It bounds how fast made-up names
/// make the log grow.
pub const PEERS_NEW: Rate = Rate::per_minute(60, 2_000);

/// How long the keys of a homeserver are not fetched again: after a success, after a first failure,
/// and at most. The pause grows with each failure.
pub const PEER_KEYS_AGAIN: [Duration; 3] =
    [Duration::from_secs(30), Duration::from_secs(60), Duration::from_secs(3600)];

/// The longest that published keys of another homeserver are believed (server-server API,
/// "Publishing Keys": 7 days).
pub const PEER_KEYS_LIFETIME: Duration = Duration::from_secs(7 * 86_400);

/// How long this server's published keys are valid.
pub const OWN_KEYS_LIFETIME: Duration = Duration::from_secs(86_400);

/// Homeservers that one request to a notary may name. Each may cause a request to another server.
pub const NOTARY_SERVERS: usize = 50;

/// How many such requests this server makes at a time to one notary, and how long it asks notaries
/// for the keys that one answer needs.
pub const NOTARY_REQUESTS: usize = 4;
/// See [`NOTARY_REQUESTS`].
pub const NOTARY_TIME: Duration = Duration::from_secs(30);

/// How many wrong signatures may come from one address.
pub const WRONG_SIGNATURES: Rate = Rate::per_minute(20, 50);

/// Time limit for a request to another homeserver, including its response.
pub const FEDERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for a TLS handshake, on either side.
pub const TLS_HANDSHAKE: Duration = Duration::from_secs(10);

/// How many connections to one homeserver are kept, and how long. 10,000 homeservers may be idle.
pub const FEDERATION_IDLE: (usize, Duration) = (2, Duration::from_secs(20));

/// How many homeservers' delegations are remembered.
pub const DELEGATIONS: usize = 20_000;

/// The largest `/.well-known/matrix/server`, and how many redirects lead to it.
pub const DELEGATION_BYTES: usize = 50 * 1024;
/// See [`DELEGATION_BYTES`].
pub const DELEGATION_REDIRECTS: usize = 5;

/// The time limit for all of it.
pub const DELEGATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The lifetime of a delegation: at least, by default, and at most (server-server API, "Resolving
/// server names").
pub const DELEGATION_LIFETIME: [Duration; 3] =
    [Duration::from_secs(3600), Duration::from_secs(24 * 3600), Duration::from_secs(48 * 3600)];

/// How long the absence of a delegation is remembered: after the first failure, and at most.
pub const NO_DELEGATION_LIFETIME: [Duration; 2] =
    [Duration::from_secs(60), Duration::from_secs(3600)];

/// How many addresses of one homeserver are tried.
pub const FEDERATION_ADDRESSES: usize = 6;

/// How often the files of a certificate are checked for changes.
pub const CERTIFICATE_LOOK: Duration = Duration::from_secs(2);

/// From which time before a certificate expires that is logged, once a day.
pub const CERTIFICATE_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// Time limit for a request to an authority that gives certificates.
pub const ACME_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an authority may take to check the challenges of an order, and to sign.
pub const ACME_PATIENCE: Duration = Duration::from_secs(120);

/// The largest answer of an authority.
pub const ACME_ANSWER_BYTES: usize = 256 * 1024;

/// The pause after the first failed order, and the longest one: authorities count failed orders.
pub const ACME_PAUSES: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(6 * 3600)];

/// The buffer of a connection to another homeserver, which bounds the head of its answers.
pub const FEDERATION_BUFFER_BYTES: usize = 32 * 1024;

/// How often a caller may query other homeservers for profiles, aliases and public rooms.
pub const REMOTE_QUESTIONS: Rate = Rate::per_second(5, 60);

/// The rate at which a user may have this server write to homeservers that it has never reached.
/// Each may be a made-up name, is tried for [`STRANGER_TIME`], and leaves a position behind.
pub const STRANGERS: Rate = Rate::per_minute(1, 60);

/// How long a homeserver without a room in common may be unreachable before what waits for it is
/// dropped.
pub const STRANGER_TIME: Duration = Duration::from_secs(86_400);

/// Homeservers that are asked for a room of a space, one after the other.
pub const HIERARCHY_VIA: usize = 3;

/// Rooms of spaces that other homeservers are asked for during one request of a client. The next
/// page continues there.
pub const HIERARCHY_ASKED: usize = 20;

/// Memory for what other homeservers said about rooms.
pub const DESCRIPTIONS_BYTES: u64 = 8 << 20;

/// How long that is remembered, and how long it is remembered that nobody answered.
pub const DESCRIPTION_TIME: (Duration, Duration) =
    (Duration::from_secs(300), Duration::from_secs(60));

/// Characters of the reason with which another homeserver refuses a request, which a client is
/// told, and the longest pause that it may ask for.
pub const REFUSED_TEXT: usize = 500;
/// See [`REFUSED_TEXT`].
pub const REFUSED_PAUSE: Duration = Duration::from_secs(3600);

/// How many servers that have a room are told to a client.
pub const REMOTE_SERVERS: usize = 50;

/// The answer to a request for one event, in bytes.
pub const ONE_EVENT_BYTES: usize = 320 << 10;

/// Predecessors that an event names (room version 1, "Event format").
pub const PREDECESSORS: usize = 20;

/// Events before another one among which one is looked for whose past is not known.
pub const TOLD_VISITED: usize = 100;

/// Forward extremities of a room: an event of this server names all of them. A homeserver that
/// lacks some asks for the events before it; Synapse asks for ten, and refuses an event if one of
/// its predecessors is not among them.
pub const EXTREMITIES: usize = 10;

/// How many of them may be of one homeserver.
pub const EXTREMITIES_OF_ONE: usize = 5;

/// Refused events that are walked back over from an event to find the extremities before it. An
/// extremity that is not found is merely named once more.
pub const SOFT_FAILED_BEFORE: usize = 100;

/// Events that are considered when a room's state is resolved where branches meet: those for whose
/// keys the branches have different events, and the auth events in which they differ. If there are
/// more, the event is not judged, as with [`STATE_BEFORE_BYTES`].
pub const RESOLUTION_EVENTS: usize = 50_000;

/// Events in the auth chains of these that the memo of a room knows of. With some 400 bytes each,
/// this bounds the memory that one resolution takes.
pub const RESOLUTION_CHAIN: usize = 200_000;

/// Visits of events in one state resolution. The other limits keep it far lower, except in rooms
/// that were built to reach it.
pub const RESOLUTION_WORK: usize = 2_000_000;

/// The same while the room's other events wait: some milliseconds.
pub const RESOLUTION_IN_TURN: usize = 500;

/// Visits after which a resolution checks whether others wait: about a millisecond.
pub const RESOLUTION_PAUSE: usize = 500;

/// The time over which processor time used for a homeserver or a room counts, to decide who comes
/// first.
pub(crate) const TURNS_WINDOW: Duration = Duration::from_secs(10);

/// How long work runs before others may come in between: long compared to what a switch costs, and
/// short enough that nobody notices.
pub(crate) const TURNS_SLICE: Duration = Duration::from_millis(50);

/// Pieces of work that may be paused at a time because others come first. Each holds memory.
pub(crate) const TURNS_PAUSED: usize = 1;

/// How often a resolution is prepared for one event because the room has moved on meanwhile. After
/// that, it takes place in the room's turn.
pub const RESOLUTION_TRIES: usize = 4;

/// States of a room that are remembered. Most are nearly the same, and take some KiB each.
pub const RESOLUTION_STATES: usize = 256;

/// Results of state resolution that are remembered of a room.
pub const RESOLUTION_RESULTS: usize = 16;

/// Memory for what is remembered of rooms to resolve their states. A room of 50,000 members takes
/// about a third of it.
pub const RESOLUTION_MEMO_BYTES: usize = 64 << 20;

/// The newest erasures from payloads, which are kept for the memos of rooms. A memo that missed
/// more is dropped.
pub const RESOLUTION_REDUCED: usize = 10_000;

/// Events that are visited for one list of auth events that a homeserver asks for.
pub const AUTH_EVENTS_VISITED: usize = 50_000;

/// Conflicts that the record of a resolution explains.
pub const RESOLUTION_CONFLICTS: usize = 100;

/// The longest chain of records of differences from the state before an event to a state of the
/// room; or the number of keys in which these two differ, if that is more. So reading a state takes
/// time in proportion to its size, and writing it again costs little compared to its changes.
pub const STATE_LINKS: usize = 1000;

/// How many events are recorded in one commit as known without a place in the timeline, and their
/// size in bytes. What users send waits behind such a commit: it takes a few milliseconds.
pub const OUTLIERS_AT_ONCE: (usize, usize) = (500, 512 << 10);

/// Events from which on signatures are verified on all processors, and events that are verified
/// before other answers get their turn.
pub const VERIFIED_IN_PARALLEL: usize = 32;
pub const VERIFIED_AT_ONCE: usize = 2000;

/// The largest body that is verified on the thread that answers: below a millisecond.
pub const VERIFIED_AT_ONCE_BYTES: usize = 64 * 1024;

/// How long a larger one waits while others are verified, each over copies of its body. Less than
/// [`BODY_IDLE`](super::BODY_IDLE).
pub const LARGE_VERIFICATION_WAIT: Duration = Duration::from_millis(250);

/// How long the signing keys that the events of one answer need are fetched. If there is no time
/// for the keys of events on which others may rest, the answer is not used.
pub const EVENT_KEYS_TIME: Duration = Duration::from_secs(60);

/// The state before an event in the record of the event, as its difference from another state, in
/// bytes; and the same for what the event changes, and for its conflicts.
pub const EVENT_STATE_BYTES: usize = 32 << 10;

/// Changes of state in one record when they take several, in bytes.
pub const STATE_CHANGES_BYTES: usize = 96 << 10;

/// The whole difference between the state before an event and recorded states, in bytes. Beyond
/// that, the event is not judged: what follows it rests on what its sender's homeserver says.
pub const STATE_BEFORE_BYTES: usize = 1 << 20;

/// All that one event changes, in bytes. Beyond that, it changes nothing, and is no extremity.
pub const RESOLVED_BYTES: usize = 2 << 20;

/// Changes of state that are recorded at once when a room of other homeservers is joined, in bytes.
pub const ENTERED_BYTES: usize = 3 << 20;

/// The joins that cannot be verified when a room of other homeservers is joined: users and events,
/// in bytes.
pub const UNVERIFIED_BYTES: usize = 256 << 10;

/// Events in the state of a room when it is taken from another homeserver.
pub const STATE_EVENTS: usize = 250_000;

/// The answer of a homeserver with the state of a room, in bytes.
pub const FEDERATION_STATE_BYTES: usize = 64 << 20;

/// The answer with the ids of a room's state, in bytes: [`STATE_EVENTS`] ids of state events and as
/// many of auth events, of 44 characters each.
pub const FEDERATION_IDS_BYTES: usize = 24 << 20;

/// Connections of one address to the listener for other homeservers, if no proxy is before it. A
/// homeserver of many workers has some for each of them.
pub const FEDERATION_CONNECTIONS: usize = 250;

/// How long this server waits for the state of a room.
pub const FEDERATION_STATE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long the events of one transaction wait for rooms that are being entered. Whoever is slow to
/// let this server into a room must not delay what others send for long.
pub const ENTRY_WAIT: Duration = Duration::from_secs(10);

/// Events of other homeservers that could not be placed when they arrived, and that are tried
/// again: their number and bytes, of one site.
pub const UNPLACED_OF_SITE: (usize, usize) = (100, 1 << 20);

/// See [`UNPLACED_OF_SITE`]: in all.
pub const UNPLACED_IN_ALL: (usize, usize) = (1000, 8 << 20);

/// When they are tried again: after this time at first, after twice the time before from then on,
/// and at most after this.
pub const UNPLACED_RETRY: (Duration, Duration) =
    (Duration::from_secs(10), Duration::from_secs(1800));

/// How often they are tried again: over three hours. What the homeserver sends later in the room
/// brings them along, too.
pub const UNPLACED_TRIES: u32 = 13;

/// How many are tried at the same time, of as many sites.
pub const UNPLACED_AT_ONCE: usize = 8;

/// Events that are fetched because another one comes after them: requests, events, bytes and time.
pub const MISSING_EVENTS: (usize, usize, usize, Duration) =
    (10, 500, 5 << 20, Duration::from_secs(30));

/// Events of one transaction whose content does not match their hash and that their senders'
/// homeservers are asked for, and the time for that in all: those homeservers may be gone.
pub const SENDERS_ASKED: (usize, Duration) = (100, Duration::from_secs(5));

/// How many of them are asked for at the same time.
pub const SENDERS_AT_ONCE: usize = 20;

/// How long the keys with which the events of one transaction are signed are fetched. Other
/// homeservers give up a transaction after a minute.
pub const TRANSACTION_KEYS_TIME: Duration = Duration::from_secs(20);

/// Events in one answer about missing events, or to a backfill.
pub const EVENTS_FOR_SERVER: usize = 100;

/// Events of a room's state that are fetched one by one; for more, the whole state is.
pub const EVENTS_ONE_BY_ONE: usize = 30;

/// Events in one transaction, received or sent (server-server API, "Transactions").
pub const TRANSACTION_PDUS: usize = 50;

/// The body of a transaction, in bytes: `TRANSACTION_PDUS` events of the largest size, and EDUs.
pub const TRANSACTION_BYTES: usize = 8 << 20;

/// EDUs in one transaction (same section).
pub const TRANSACTION_EDUS: usize = 100;

/// Homeservers to which this one sends at the same time.
pub const DESTINATIONS_AT_ONCE: usize = 100;

/// Events that are queued for a homeserver. What it has missed beyond that is found in the rooms.
pub const DESTINATION_EVENTS: usize = 1000;

/// Events of one room, the newest, that a homeserver is sent after it was unreachable.
pub const DESTINATION_MISSED: usize = 50;

/// The same after a short absence: of one room, and of all rooms together.
pub const DESTINATION_MISSED_BRIEFLY: (usize, usize) = (200, 5000);

/// Events of one room that a homeserver is sent before it has confirmed that it has processed them,
/// and the time in which it is assumed to process one if it is not asked. Synapse answers before it
/// has, and drops events from its queue of a room when there are 100, of all homeservers.
pub const ROOM_IN_FLIGHT: (usize, Duration) = (50, Duration::from_millis(200));

/// The pause before a homeserver is asked again whether it has processed such events, and how long
/// it may take for an answer.
pub const ROOM_IN_FLIGHT_ASKED: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_secs(2));

/// How long more events of a room wait for such a confirmation. Afterwards they are sent at the
/// pace of [`ROOM_IN_FLIGHT`].
pub const ROOM_IN_FLIGHT_PATIENCE: Duration = Duration::from_secs(30);

/// How long more events wait for such confirmations if so many records wait that nothing can
/// overtake them. Afterwards they are sent without a pause.
pub const ROOM_IN_FLIGHT_BEHIND: Duration = Duration::from_secs(60);

/// How long a homeserver may take to answer a transaction.
pub const DESTINATION_TIMEOUT: Duration = Duration::from_secs(60);

/// The time above which an answer to a transaction is slow, and the places that slow homeservers
/// share.
pub const DESTINATION_SLOW: (Duration, usize) = (Duration::from_secs(5), 50);

/// How long a homeserver must answer with its own error before a single item may be the cause.
pub const DESTINATION_FAULTS: Duration = Duration::from_secs(600);

/// The first pause before a homeserver that failed is tried again, and the longest one while it has
/// failed for minutes, and for hours.
pub const DESTINATION_RETRY: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(50), Duration::from_secs(9 * 60)];

/// The attempts after which a homeserver that failed is sent nothing before a connection to it
/// succeeds, how many of these connections are opened at the same time, and how long each may take.
pub const DESTINATION_PROBES: (u32, usize, Duration) = (5, 200, Duration::from_secs(10));

/// How often it is recorded that a homeserver fails still, once it has failed as long as that.
pub const DESTINATION_FAILING_NOTED: Duration = Duration::from_secs(6 * 3600);

/// The shortest and the longest pause before a homeserver that asks to retry later is asked again.
pub const DESTINATION_PATIENCE: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(6 * 3600));

/// How often the positions of destinations are recorded.
pub const DESTINATIONS_NOTED: Duration = Duration::from_secs(1);

/// How many of the events and EDUs that were set aside for a homeserver are kept, the newest. Each
/// record of its position repeats them: with a reason each, they take some 2 KB.
pub const SET_ASIDE_KEPT: usize = 8;

/// The reason why an item was set aside, in bytes; a part of it comes from the homeserver.
pub const SET_ASIDE_REASON_BYTES: usize = 200;

/// Homeservers in one record of positions.
pub const DESTINATIONS_IN_RECORD: usize = 1000;

/// The size of such a record: below the largest payload, whatever homeservers give as reasons.
pub const DESTINATIONS_RECORD_BYTES: usize = 128 << 10;

/// The error with which a homeserver could not be reached, in bytes.
pub const FAILURE_BYTES: usize = 400;

/// Homeservers or rooms in one answer of `federation status`.
pub const DESTINATION_ROWS: usize = 1000;

/// Events that are examined for one such answer: some tens of milliseconds.
pub const DESTINATION_LOOK: usize = 20_000;

/// The newest rejected and soft-failed events that can be listed.
pub const REFUSED_EVENTS: usize = 10_000;

/// How long a policy server may take to sign an event.
pub const POLICY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a policy server that did not answer is not asked about events of this homeserver.
pub const POLICY_PAUSE: Duration = Duration::from_secs(5);

/// The largest answer of a policy server: a signature, or why there is none.
pub const POLICY_ANSWER_BYTES: usize = 16 * 1024;

/// Characters of why a policy server does not sign an event.
pub const POLICY_REASON: usize = 500;

/// How long policy servers are asked during one transaction of another homeserver.
pub const POLICY_TIME: Duration = Duration::from_secs(15);

/// How often an event is made and signed again because others came before it.
pub const POLICY_ATTEMPTS: usize = 8;

/// Events of the stripped state that comes with an invite.
pub const STRIPPED_EVENTS: usize = 50;

/// Files of other homeservers that are fetched at a time: of one homeserver, for one caller, and in
/// all. Others wait for their turn.
pub const REMOTE_FILES_AT_ONCE: (usize, usize, usize) = (4, 16, 256);

/// Files of other homeservers that are fetched or wait for their turn: for one caller, and in all.
pub const REMOTE_FILES_WANTED: (usize, usize) = (100, 2000);

/// How fast such a file must arrive, in bytes each second, beyond `media.remote_wait_seconds`.
pub const REMOTE_FILE_PACE: u64 = 64 * 1024;

/// What comes before such a file in an answer, in bytes.
pub const REMOTE_FILE_HEAD_BYTES: usize = 32 * 1024;

/// The answer of a homeserver that does not have a file, in bytes.
pub const REMOTE_FILE_ERROR_BYTES: usize = 64 * 1024;

/// Redirects that lead to such a file.
pub const REMOTE_FILE_REDIRECTS: usize = 5;

/// How long a homeserver is not asked again for a file that it did not have, and for any file if it
/// could not be reached.
pub const REMOTE_FILE_FAILED: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(10));

/// How many such failures are remembered.
pub const REMOTE_FILES_FAILED: usize = 10_000;

/// How many homeservers' newest to-device messages are remembered by their ids, and how many of
/// each: a homeserver repeats what it has sent in its last second, or its last transaction.
pub const RECEIVED_IDS: (usize, usize) = (10_000, 1_000);

/// The longest id of a to-device message of another homeserver, in bytes: 32 characters
/// (server-server API, "Send-to-device messaging").
pub const MESSAGE_ID_BYTES: usize = 128;

/// The EDUs of a transaction in bytes, without its PDUs: with them it fits into what homeservers
/// take. One EDU may be larger than that.
pub const TRANSACTION_EDU_BYTES: usize = 2 << 20;

/// The largest event or EDU that is sent: with the frame of a transaction, it fits into what
/// homeservers take.
pub const TRANSACTION_ITEM_BYTES: usize = TRANSACTION_BYTES - (64 << 10);

/// Transient EDUs, such as typing, that wait for a homeserver while a transaction to it is in
/// progress.
pub const DESTINATION_TRANSIENT: usize = 100;

/// The rates of typing, receipts and presence from a homeserver, and about each of its users. Each
/// is a record, if it changes something.
pub const REMOTE_EPHEMERAL: (Rate, Rate) = (Rate::per_second(50, 1000), Rate::per_second(2, 60));

/// How long a user of another homeserver counts as typing, unless it says so again or otherwise.
pub const REMOTE_TYPING: Duration = Duration::from_secs(60);

/// Events that one receipt of another homeserver may name. The last of them counts.
pub const RECEIPT_EVENTS: usize = 10;

/// The age at which the unchanged presence of a user of another homeserver is recorded again, and
/// the age at which it expires because its homeserver has not repeated it.
pub const REMOTE_PRESENCE: (Duration, Duration) =
    (Duration::from_secs(10 * 60), Duration::from_secs(40 * 60));

/// How often the unchanged presence of a user is repeated to other homeservers. For them it expires
/// after half an hour.
pub const PRESENCE_AGAIN: Duration = Duration::from_secs(20 * 60);

/// Users whose presence a homeserver is sent when its first user joins their room, and how many of
/// them one EDU names. Others follow at their next change.
pub const PRESENCE_AT_JOIN: usize = 500;
/// See [`PRESENCE_AT_JOIN`].
pub const PRESENCE_IN_EDU: usize = 50;

/// How long after its join a homeserver is told, and how much later once more: it drops what comes
/// before it has recorded the join.
pub const PRESENCE_AFTER_JOIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];

/// How often presence is checked for repetition and expiry.
pub const PRESENCE_LOOK: Duration = Duration::from_secs(60);

/// Users of other homeservers in rooms of this one whose names are kept for the user directory.
pub const REMOTE_NAMES: usize = 200_000;

/// The longest name by which such a user is found, in bytes.
pub const REMOTE_NAME_BYTES: usize = 1024;

/// How many users' device lists of other homeservers are kept.
pub const DEVICE_LISTS: usize = 100_000;

/// The stored keys of one user of another homeserver, in bytes. Larger ones are fetched each time.
pub const DEVICE_LIST_BYTES: usize = 160 * 1024;

/// The largest list in which a single device is changed: a larger one is fetched again instead, so
/// that small EDUs do not make large records.
pub const DEVICE_LIST_CHANGED_BYTES: usize = 16 * 1024;

/// How often a change of a list is tried again because the list has changed meanwhile. After that,
/// the list is fetched.
pub const DEVICE_CHANGE_TRIES: usize = 4;

/// The answer of a homeserver with keys of its users, in bytes.
pub const REMOTE_KEYS_BYTES: usize = 8 << 20;

/// The same for one user's devices.
pub const REMOTE_DEVICES_BYTES: usize = 1 << 20;

/// How many homeservers are asked for keys at a time, for all users and for one. Some do not
/// answer.
pub const REMOTE_KEYS_IN_ALL: usize = 512;
pub const REMOTE_KEYS_BY_ONE: usize = 32;

/// How many device lists are fetched at a time because their homeservers say that they changed.
pub const DEVICE_LISTS_IN_ALL: usize = 32;

/// Keys of users of other homeservers in the answer to one request of a client, in bytes. Beyond
/// that, keys are reported as missing.
pub const REMOTE_KEYS_ANSWERED: usize = 16 << 20;

/// The rate of changes to the devices of a user of another homeserver that are made in the stored
/// list, and the rate at which the list is fetched. Beyond that it is out of date, and is fetched
/// when somebody asks for it.
pub const DEVICE_CHANGES: Rate = Rate::per_minute(10, 60);

/// How long a client may have this server wait for the keys of others: by default, and at most.
pub const REMOTE_KEYS_TIMEOUT: (Duration, Duration) =
    (Duration::from_secs(10), Duration::from_secs(30));

/// How many homeservers are asked at the same time for one request about keys.
pub const REMOTE_KEYS_AT_ONCE: usize = 50;

/// How many homeservers are asked for one request about keys.
pub const REMOTE_KEYS_SERVERS: usize = 2000;

/// How many device lists are fetched from a homeserver after one of its transactions.
pub const DEVICE_LISTS_FETCHED: usize = 50;

/// Devices of a user that a homeserver is told of one by one. If more are new to it or are removed
/// at once, it is told that it has missed a change, so that it fetches the list.
pub const DEVICES_TOLD: usize = 20;

/// Changes of a user's devices that a homeserver is told of one by one after it was unreachable.
pub const DEVICE_CHANGES_TOLD: usize = 3;

/// How many device lists are recorded together.
pub const DEVICE_LISTS_AT_ONCE: usize = 100;

/// How long a homeserver that could not be reached last may take to answer about keys.
pub const REMOTE_KEYS_FAILING: Duration = Duration::from_secs(3);

/// How long a request of a client waits for what is missing in a room's history.
pub const GAP_TIMEOUT: Duration = Duration::from_secs(30);

/// How many times one such request has others asked.
pub const GAP_ROUNDS: usize = 5;

/// Events of a gap that are fetched at once, and the largest answer: that many of the largest size,
/// and some more to judge them.
pub const GAP_EVENTS: usize = 100;
/// See [`GAP_EVENTS`].
pub const GAP_BYTES: usize = 8 << 20;

/// Homeservers that are asked for a gap.
pub const GAP_SERVERS: usize = 3;

/// Missing events that a gap remembers: where its branches go on. Further ones are left out.
pub const GAP_ENDS: usize = 100;

/// Requests for auth events to judge one answer.
pub const GAP_REQUESTS: usize = 100;

/// Events that are recorded to judge one answer.
pub const GAP_AUTH_EVENTS: usize = 1000;

/// What is recorded for the gaps of one room, in bytes. A room of others is worth no more disk.
pub const ROOM_GAP_BYTES: u64 = 2 << 30;

/// What one homeserver may send for gaps, in KiB: a large room at once, and then as much as
/// somebody reads.
pub const GAP_KIB: Rate = Rate::per_minute(4 * 1024, 256 * 1024);

/// How many gaps are filled at a time; each may take the memory of an answer, and now and then that
/// of a room's state.
pub const GAPS_AT_ONCE: usize = 24;

/// How many are filled at a time for one user, who reads one room, and now and then another.
pub const GAPS_OF_USER: usize = 2;

/// How many of them one homeserver is asked for at a time, so that one that does not answer leaves
/// most of the places to others.
pub const GAPS_OF_ORIGIN: usize = 4;

/// Gaps for which it is remembered which homeservers could not fill them.
pub const GAPS_REMEMBERED: usize = 10_000;

/// When a homeserver that could not be reached is asked again for a gap: at first, and at most.
pub const GAP_RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// How long homeservers must be unreachable before a gap is given up, and how long it stays given
/// up.
pub const GAP_GIVEN_UP: (Duration, Duration) =
    (Duration::from_secs(3600), Duration::from_secs(24 * 3600));

/// How far the time of an event of another homeserver may be ahead of this one's clock, in
/// milliseconds, before the event counts as one that is out of order.
pub const EVENT_AHEAD_MS: u64 = 5 * 60 * 1000;
