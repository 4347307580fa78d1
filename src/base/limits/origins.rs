//! What other homeservers may send and ask for: see `logcabin_service::federation::Accounts`.

use std::time::Duration;

use crate::rate::Rate;

/// The rates of one homeserver by its standing: a stranger has no user in a room with a user of
/// this server, a newcomer has one but was first heard of less than [`NEWCOMER_TIME`] ago, all
/// others are neighbours.
///
/// Names are cheap: a wildcard in DNS gives as many homeservers as somebody wants. So all strangers
/// together also have a share, all newcomers, and the neighbours of a site ([`SITE_NEIGHBOURS`]).
/// The burst of a neighbour must be enough for all that it has to catch up with after an outage.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    pub stranger: Rate,
    pub newcomer: Rate,
    pub neighbour: Rate,
    /// Of all strangers together.
    pub strangers: Rate,
    /// Of all newcomers together.
    pub newcomers: Rate,
}

/// The share of all neighbours of one `logcabin_service::federation::Site` together, as a multiple
/// of the share of one.
pub const SITE_NEIGHBOURS: u32 = 4;

/// Bodies of requests, in KiB.
pub const ORIGIN_KIB: Shares = Shares {
    stranger: Rate::per_second(32, 4 * 1024),
    newcomer: Rate::per_second(1024, 64 * 1024),
    neighbour: Rate::per_second(4096, 512 * 1024),
    strangers: Rate::per_second(256, 32 * 1024),
    newcomers: Rate::per_second(4096, 256 * 1024),
};

/// Events in transactions.
pub const ORIGIN_EVENTS: Shares = Shares {
    stranger: Rate::per_second(1, 100),
    newcomer: Rate::per_second(100, 10_000),
    neighbour: Rate::per_second(200, 20_000),
    strangers: Rate::per_second(10, 500),
    newcomers: Rate::per_second(300, 30_000),
};

/// To-device messages for users who share no room with the sender. Some are legitimate: a user who
/// has left a room may still be sent its keys.
pub const ORIGIN_TO_DEVICE: Shares = Shares {
    stranger: Rate::per_second(1, 50),
    newcomer: Rate::per_second(2, 200),
    neighbour: Rate::per_second(10, 1000),
    strangers: Rate::per_second(10, 500),
    newcomers: Rate::per_second(20, 2000),
};

/// Users who were in no room that this server knows: a homeserver can make up any number.
pub const ORIGIN_NEW_USERS: Shares = Shares {
    stranger: Rate::per_minute(20, 50),
    newcomer: Rate::per_minute(60, 500),
    neighbour: Rate::per_minute(600, 5000),
    strangers: Rate::per_minute(120, 500),
    newcomers: Rate::per_minute(300, 2000),
};

/// EDUs about devices and cross-signing keys.
pub const ORIGIN_DEVICE_LISTS: Shares = Shares {
    stranger: Rate::per_second(1, 20),
    newcomer: Rate::per_second(10, 1000),
    neighbour: Rate::per_second(50, 5000),
    strangers: Rate::per_second(5, 100),
    newcomers: Rate::per_second(50, 5000),
};

/// EDUs of other kinds: typing, receipts and presence, which have rates of their own for what is
/// recorded ([`REMOTE_EPHEMERAL`](super::REMOTE_EPHEMERAL)), and those that this server does not
/// know.
pub const ORIGIN_EDUS: Shares = Shares {
    stranger: Rate::per_second(1, 50),
    newcomer: Rate::per_second(50, 2000),
    neighbour: Rate::per_second(100, 5000),
    strangers: Rate::per_second(10, 500),
    newcomers: Rate::per_second(200, 10_000),
};

/// Invites. A first contact between two homeservers is one.
pub const ORIGIN_INVITES: Shares = Shares {
    stranger: Rate::per_minute(6, 20),
    newcomer: Rate::per_minute(30, 100),
    neighbour: Rate::per_minute(120, 300),
    strangers: Rate::per_minute(60, 200),
    newcomers: Rate::per_minute(120, 500),
};

pub const ORIGIN_KNOCKS: Shares = Shares {
    stranger: Rate::per_minute(6, 20),
    newcomer: Rate::per_minute(6, 20),
    neighbour: Rate::per_minute(60, 100),
    strangers: Rate::per_minute(60, 200),
    newcomers: Rate::per_minute(60, 200),
};

/// Requests other than transactions: they have this server look for an answer. How long it computes
/// is bounded by `rate_limits.processor_percent`.
pub const ORIGIN_QUESTIONS: Shares = Shares {
    stranger: Rate::per_second(5, 200),
    newcomer: Rate::per_second(20, 2000),
    neighbour: Rate::per_second(50, 5000),
    strangers: Rate::per_second(50, 2000),
    newcomers: Rate::per_second(200, 10_000),
};

/// Answers, in KiB: counted once they are made. Even a stranger must get the state of a large room,
/// which it joins.
pub const ORIGIN_ANSWERS_KIB: Shares = Shares {
    stranger: Rate::per_second(128, 64 * 1024),
    newcomer: Rate::per_second(512, 128 * 1024),
    neighbour: Rate::per_second(2048, 512 * 1024),
    strangers: Rate::per_second(1024, 256 * 1024),
    newcomers: Rate::per_second(4096, 512 * 1024),
};

/// Records that come of requests, in KiB: counted once they are recorded, with all that an event
/// has this server record besides. Strangers have no rooms here, so they leave messages to devices
/// and invites only.
pub const ORIGIN_RECORDED_KIB: Shares = Shares {
    stranger: Rate::per_second(4, 4 * 1024),
    newcomer: Rate::per_second(256, 64 * 1024),
    neighbour: Rate::per_second(1024, 256 * 1024),
    strangers: Rate::per_second(32, 32 * 1024),
    newcomers: Rate::per_second(1024, 256 * 1024),
};

/// For how long a homeserver that shares a room is a newcomer, after it was first heard of.
pub const NEWCOMER_TIME: Duration = Duration::from_secs(600);

/// How long a homeserver's standing is remembered: a stranger's, and that of one that shares a
/// room. Finding it out examines every room.
pub const STANDING_TIME: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Homeservers that have accounts of their own: some 6 MB. Others count only towards the share of
/// all strangers.
pub const ORIGINS_REMEMBERED: usize = 20_000;

/// The largest transaction, in bytes, that is counted without letting other answers go first: one
/// to-device message may be for very many users.
pub const COUNTED_BYTES: usize = 64 * 1024;

/// What one node of a cluster may count in hindsight without telling the others, in KiB.
pub const ORIGIN_TOLD: u64 = 16;

/// The longest that a homeserver waits for what it has spent beyond its share: what is counted in
/// hindsight can exceed it by far.
pub const ORIGIN_DEBT: Duration = Duration::from_secs(600);

/// To-device messages of a homeserver that wait for one device of a user who shares no room with
/// the sender. Further ones are dropped. Strangers also leave half of `quotas.to_device` free.
pub const STRANGE_LETTERS: usize = 200;

/// Pending invites of one user by people of other homeservers who share no room with the user: of
/// one homeserver, and of all. Beyond that, the oldest are rejected.
pub const STRANGE_INVITES: (usize, usize) = (20, 500);

/// Pending knocks on a room by users of one homeserver, and of all other homeservers.
pub const ROOM_KNOCKS: (usize, usize) = (50, 1000);

/// The delay after which a homeserver whose knock was one too many may retry: members of the room
/// have to answer others first.
pub const ROOM_KNOCKS_AGAIN: Duration = Duration::from_secs(600);

/// How often users of one homeserver may knock on one room, and those of all other homeservers:
/// each leaves a member in the state of the room, even if the knock is withdrawn.
pub const ROOM_KNOCK_RATES: (Rate, Rate) = (Rate::per_minute(1, 50), Rate::per_minute(10, 300));

/// The rate of typing, receipts and presence from all neighbours together, and from all other
/// homeservers together. Each is a record, and wakes those who see it.
pub const REMOTE_EPHEMERAL_IN_ALL: Rate = Rate::per_second(100, 2000);

/// Users in the presence of one transaction. Further ones are skipped: presence is repeated.
pub const PRESENCE_UPDATES: usize = 1000;

/// Memory for answers that other homeservers have not read yet, in bytes. Beyond it, a homeserver
/// with an unread answer gets no other large one; beyond twice as much, none does.
pub const ANSWERS_TO_SERVERS_BYTES: u64 = 128 << 20;

/// Pieces of long work done at a time for other homeservers, for each processor: fewer than for
/// users, who come first.
pub(crate) const LONG_WORK_FOR_SERVERS: usize = 2;
