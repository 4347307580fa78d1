//! What each connection has been sent (MSC4186, "Connections").
//!
//! A response has arrived once the client comes back with its `pos`. Until then the connection
//! stores what the client has for certain, and what each response in flight adds to it. A lost
//! response is sent again, from what the client has. Any other `pos` is unknown.
//!
//! The memory for this is bounded. What is evicted is written to a file ([`files`](super::files)),
//! and so is everything from time to time and when the server stops. A client that comes back goes
//! on from the file: it has what is noted there, and is sent everything since. A part of that may be
//! what it was sent already, as after a lost response. Only if there is no file does it get
//! `M_UNKNOWN_POS` and start over.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    hash::{Hash, Hasher},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter, sync::Cache};
use ruma::OwnedRoomId;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{
    client_rooms::ClientRooms,
    files::{ConnectionFiles, StoredConnection, StoredState},
    list::Order,
    rules::{RequiredState, Rules},
};
use crate::view::token::{Pos, Token};
use logcabin_base::{background::lock_at_length, limits};
use logcabin_record::{Epoch, Offset};

/// All connections. The cache is bounded; the least recently used sessions are evicted.
#[derive(Debug)]
pub struct Connections {
    sessions: Cache<Offset, CacheEntry, ByWeight, DefaultHashBuilder, Evicted>,
    files: Option<ConnectionFiles>,
    /// The last ticket. It starts at a random number, so that none is repeated after a restart.
    ticket: AtomicU64,
}

/// The connections of one session, least recently used first.
type OfSession = VecDeque<(Box<str>, Arc<Slot>)>;

#[derive(Debug, Default)]
struct Slot {
    /// The ticket with which it began. Every `pos` names it: a client that started over has nothing
    /// of its earlier connection.
    id: u64,
    connection: Mutex<Connection>,
    /// For a client that starts over: its earlier position, until it has come back.
    came_from: Mutex<Option<Token>>,
    /// In bytes, as of the last response, so that it is known without waiting for the lock.
    weight: AtomicU64,
    /// The ticket of what the client had when that was written to a file; 0 before.
    written: AtomicU64,
}

#[derive(Clone, Debug)]
struct CacheEntry {
    connections: Arc<Mutex<OfSession>>,
    /// In bytes, when it was put into the cache: a cache requires that weights do not change.
    weight: u64,
}

#[derive(Clone, Debug)]
struct ByWeight;

impl Weighter<Offset, CacheEntry> for ByWeight {
    fn weight(&self, _: &Offset, kept: &CacheEntry) -> u64 {
        kept.weight
    }
}

/// Collects what a cache evicts.
#[derive(Clone, Debug)]
struct Evicted;

impl Lifecycle<Offset, CacheEntry> for Evicted {
    type RequestState = Vec<(Offset, CacheEntry)>;

    fn on_evict(&self, evicted: &mut Self::RequestState, session: Offset, kept: CacheEntry) {
        evicted.push((session, kept));
    }
}

/// An unknown or outdated `pos`: the client must start over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a position of this connection that is still known")]
pub struct UnknownPos;

/// A connection, as a request found it.
#[derive(Clone, Debug)]
pub struct Resumed {
    slot: Arc<Slot>,
    connections: Arc<Mutex<OfSession>>,
    session: Offset,
    name: Box<str>,
    /// The ticket of what the client has; 0 for a new connection.
    ticket: u64,
}

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// What the client has.
    pub(super) has: ClientState,
    /// What the responses in flight add to it, oldest first.
    under_way: VecDeque<(u64, Addition)>,
    /// The lists of the last request, by name.
    pub(super) orders: BTreeMap<String, Order>,
    /// The user's direct chats, with the offset of the `m.direct` that names them.
    pub(super) direct: Option<(Offset, Arc<HashSet<OwnedRoomId>>)>,
}

/// What a client has.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientState {
    pub(super) ticket: u64,
    /// The position that the `pos` with this ticket names.
    named: Offset,
    /// It comes from a file: the client may have more.
    is_older: bool,
    /// The position; [`Offset::ZERO`] before the first response.
    pub(super) at: Offset,
    /// A fingerprint of the last request's rules.
    pub(super) fingerprint: u64,
    /// The lengths of the lists.
    pub(super) counts: BTreeMap<String, usize>,
    /// The position of the global account data.
    pub(super) account_data: Offset,
    pub(super) rooms: ClientRooms,
}

/// What was sent of a room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SentRoom {
    pub(super) form: Form,
    /// The position of its events and everything derived from them.
    pub(super) events: SentUpTo,
    pub(super) receipts: SentUpTo,
    pub(super) typing: SentUpTo,
    pub(super) account_data: SentUpTo,
    /// The required state that is kept up to date. It is stored beside this.
    #[serde(skip)]
    pub(super) state: Arc<RequiredState>,
    pub(super) timeline_limit: usize,
    /// All visible events from here on were sent.
    pub(super) timeline_start: Offset,
    pub(super) is_dm: bool,
}

impl Hash for SentRoom {
    /// Without the required state, which is long, and mostly goes with the limit.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { form, events, receipts, typing, account_data, state: _, .. } = self;
        (form, events, receipts, typing, account_data).hash(hasher);
        (self.timeline_limit, self.timeline_start, self.is_dm).hash(hasher);
    }
}

/// How a room was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Form {
    /// As a joined room.
    Joined,
    /// As an invited or knocked room, with this member event.
    Stripped(Offset),
    /// As a room that the user was removed from, with this member event.
    Ended(Offset),
}

/// The position up to which something was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum SentUpTo {
    /// Not at all.
    #[default]
    Nothing,
    /// Up to this offset; later news was not requested.
    Until(Offset),
    /// Up to the connection's position.
    Current,
}

impl SentUpTo {
    /// The offset, if the connection is at `at`; `None` for what was never sent.
    pub(super) const fn offset(self, at: Offset) -> Option<Offset> {
        match self {
            Self::Nothing => None,
            Self::Until(offset) => Some(offset),
            Self::Current => Some(at),
        }
    }

    /// What remains if news after `at` was not sent.
    pub(super) const fn behind(self, at: Offset) -> Self {
        match self {
            Self::Current => Self::Until(at),
            other => other,
        }
    }
}

/// What a response adds to what the client has.
#[derive(Clone, Debug, Default)]
pub(super) struct Addition {
    pub(super) at: Offset,
    pub(super) fingerprint: u64,
    /// The length of the request that it answers, in bytes.
    pub(super) asked_bytes: usize,
    pub(super) counts: BTreeMap<String, usize>,
    pub(super) account_data: Offset,
    pub(super) rooms: Vec<(Offset, RoomChange)>,
}

/// How a response changes what the client has of a room.
#[derive(Clone, Debug)]
pub(super) enum RoomChange {
    /// It was sent up to here.
    Sent {
        sent: SentRoom,
        members: Vec<Offset>,
        /// Whether `members` replace those that it had.
        all_members: bool,
    },
    /// It is no longer among the user's rooms.
    Gone,
}

impl Connections {
    /// A cache of about this many bytes, whose tickets begin after `first_ticket`, a random number.
    pub fn new(bytes: u64, first_ticket: u64) -> Self {
        let ticket = AtomicU64::new(first_ticket >> 1);
        // With this few entries, the cache has a single shard. With several, none would keep an
        // entry larger than itself, and a client whose connection is not kept would start over
        // forever.
        let sessions = Cache::with(32, bytes, ByWeight, DefaultHashBuilder::default(), Evicted);
        Self { sessions, files: None, ticket }
    }

    /// Writes connections to files below `data_dir`, and reads them there.
    #[must_use]
    pub fn in_files(self, data_dir: &Path) -> Self {
        Self { files: Some(ConnectionFiles::of(data_dir)), ..self }
    }

    /// The connection with this name in a session as of `pos`; a new one in its place without a
    /// `pos`. A `pos` must be one that this server may have given out: not beyond the log's end.
    ///
    /// # Errors
    /// When `pos` is not one of the connection's last two, and there is no file of the connection.
    pub fn resume(
        &self,
        session: Offset,
        name: &str,
        pos: Option<Pos>,
    ) -> Result<Resumed, UnknownPos> {
        let kept = self.sessions.get(&session).map(|kept| kept.connections);
        let Some(pos) = pos else {
            // One connection that starts over leaves the others as they are.
            let connections = kept.or_else(|| self.read(session)).unwrap_or_default();
            let slot = Slot { id: self.next_ticket(), ..Slot::default() };
            let mut of_session = connections.lock();
            if let Some(before) = of_session.iter().find(|(other, _)| **other == *name) {
                *slot.came_from.lock() = *before.1.came_from.lock();
            }
            let slot = Arc::new(slot);
            put(&mut of_session, name, &slot);
            drop(of_session);
            self.keep(session, Arc::clone(&connections));
            return Ok(Resumed { slot, connections, session, name: name.into(), ticket: 0 });
        };
        let is_read = kept.is_none();
        let connections = kept.or_else(|| self.read(session)).ok_or(UnknownPos)?;
        let mut of_session = connections.lock();
        let used = of_session.iter().find(|(other, _)| **other == *name).ok_or(UnknownPos)?;
        let slot = Arc::clone(&used.1);
        put(&mut of_session, name, &slot);
        drop(of_session);
        if slot.id != pos.connection {
            return Err(UnknownPos);
        }
        lock_at_length(&slot.connection).arrived(pos)?;
        *slot.came_from.lock() = None;
        if is_read {
            self.keep(session, Arc::clone(&connections));
        }
        Ok(Resumed { slot, connections, session, name: name.into(), ticket: pos.ticket })
    }

    fn next_ticket(&self) -> u64 {
        self.ticket.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records that the client of this connection was at `token` and must start over.
    pub fn starts_over(&self, session: Offset, name: &str, token: Token) {
        if let Ok(resumed) = self.resume(session, name, None) {
            *resumed.slot.came_from.lock() = Some(token);
        }
    }

    /// Records that the response with this addition is sent; returns its `pos`.
    ///
    /// # Errors
    /// When a later request has moved the connection on: nobody waits for this response any more.
    pub(super) fn sent(
        &self,
        resumed: &Resumed,
        epoch: Epoch,
        addition: Addition,
    ) -> Result<Pos, UnknownPos> {
        let ticket = self.next_ticket();
        let token = Token { epoch, offset: addition.at };
        let mut connection = resumed.lock()?;
        connection.under_way.push_back((ticket, addition));
        // A cancelled request may be answered after the one that replaced it.
        if connection.under_way.len() > 2 {
            connection.under_way.pop_front();
        }
        resumed.slot.weight.store(connection.weight(), Ordering::Relaxed);
        drop(connection);
        // It may have been evicted while the client waited.
        let kept = self.sessions.get(&resumed.session).map(|kept| kept.connections);
        let connections = kept.unwrap_or_else(|| Arc::clone(&resumed.connections));
        if !Arc::ptr_eq(&connections, &resumed.connections) {
            let mut of_session = connections.lock();
            let other = of_session.iter().find(|(other, _)| *other == resumed.name);
            if other.is_some_and(|(_, other)| other.id == resumed.slot.id) {
                put(&mut of_session, &resumed.name, &resumed.slot);
            }
        }
        self.keep(resumed.session, connections);
        Ok(Pos { token, connection: resumed.slot.id, ticket })
    }

    fn keep(&self, session: Offset, connections: Arc<Mutex<OfSession>>) {
        let of_session = connections.lock();
        let weights = of_session.iter().map(|(_, slot)| slot.weight.load(Ordering::Relaxed));
        let weight = weights.sum::<u64>() + 256;
        drop(of_session);
        let mut evicted = Vec::new();
        let entry = CacheEntry { connections, weight };
        self.sessions.insert_with_lifecycle(session, entry, &mut evicted);
        for (other, kept) in evicted {
            // An entry that is replaced counts as evicted, too.
            if other != session || !self.sessions.contains_key(&session) {
                self.write(other, &kept.connections);
            }
        }
    }

    /// The connections of a session in its file.
    fn read(&self, session: Offset) -> Option<Arc<Mutex<OfSession>>> {
        let stored = self.files.as_ref()?.read(session)?;
        let mut of_session = OfSession::new();
        for StoredConnection { name, id, has, last } in stored {
            let written = AtomicU64::new(last.as_ref().or(has.as_ref())?.ticket);
            let connection = Connection::restored(has, last)?;
            let weight = AtomicU64::new(connection.weight());
            let connection = Mutex::new(connection);
            let slot = Slot { id, connection, weight, written, ..Slot::default() };
            of_session.push_back((name, Arc::new(slot)));
        }
        Some(Arc::new(Mutex::new(of_session)))
    }

    /// Writes the connections of a session to its file, unless there is nothing new in them.
    fn write(&self, session: Offset, connections: &Mutex<OfSession>) {
        let Some(files) = &self.files else { return };
        let of_session: Vec<_> = connections.lock().iter().cloned().collect();
        let (mut stored, mut is_new) = (Vec::new(), false);
        for (name, slot) in of_session {
            let connection = lock_at_length(&slot.connection);
            let (has, last) = connection.stored();
            // A client that has nothing can as well start over.
            if let Some(newest) = last.as_ref().or(has.as_ref()) {
                is_new |= slot.written.swap(newest.ticket, Ordering::Relaxed) != newest.ticket;
                stored.push(StoredConnection { name, id: slot.id, has, last });
            }
        }
        if is_new && let Err(error) = files.write(session, &stored) {
            warn!(%error, "the connections of a client are not written, and it may start over");
        }
    }

    /// Writes what is new to the files, and removes those that are too old or too many. Blocks.
    pub fn write_all(&self, now_ms: u64) {
        let Some(files) = &self.files else { return };
        for (session, kept) in self.sessions.iter() {
            self.write(session, &kept.connections);
        }
        if let Err(error) = files.sweep(now_ms) {
            warn!(%error, "old files of clients' connections are not removed");
        }
    }
}

/// Makes `slot` the connection of this name, and the last one used.
fn put(of_session: &mut OfSession, name: &str, slot: &Arc<Slot>) {
    of_session.retain(|(other, _)| **other != *name);
    if of_session.len() >= limits::SLIDING_CONNECTIONS {
        of_session.pop_front();
    }
    of_session.push_back((name.into(), Arc::clone(slot)));
}

impl Resumed {
    /// Whether the client repeats the same request: then an attempt costs what changed, and
    /// otherwise what is requested.
    pub fn goes_on(&self, rules: &Rules) -> bool {
        lock_at_length(&self.slot.connection).has.fingerprint == rules.fingerprint
    }

    /// For a client that starts over: its earlier position.
    pub fn came_from(&self) -> Option<Token> {
        *self.slot.came_from.lock()
    }

    /// Locks the connection, if it is still as the request found it.
    ///
    /// # Errors
    /// When a later request has moved it on.
    pub(super) fn lock(&self) -> Result<parking_lot::MutexGuard<'_, Connection>, UnknownPos> {
        let connection = lock_at_length(&self.slot.connection);
        if connection.has.ticket == self.ticket { Ok(connection) } else { Err(UnknownPos) }
    }
}

impl Connection {
    /// The client has come back with this `pos`, so it has that response.
    fn arrived(&mut self, pos: Pos) -> Result<(), UnknownPos> {
        if self.has.ticket == pos.ticket && self.has.named == pos.token.offset {
            self.has.is_older = false;
            return Ok(());
        }
        let known =
            |(ticket, add): &(u64, Addition)| *ticket == pos.ticket && add.at == pos.token.offset;
        let Some(index) = self.under_way.iter().position(known) else {
            self.has.goes_on_at(pos)?;
            self.under_way.clear();
            return Ok(());
        };
        let (ticket, addition) = self.under_way.remove(index).ok_or(UnknownPos)?;
        // Other responses to the same request, which the client lost or discarded.
        self.under_way.clear();
        self.has.add(ticket, addition);
        Ok(())
    }

    /// What the client has for certain, if that is anything, and what it has if the last response
    /// arrives, if that is under way.
    fn stored(&self) -> (Option<StoredState>, Option<StoredState>) {
        let has = (self.has.at > Offset::ZERO).then(|| StoredState::from(&self.has));
        let last = self.under_way.back().map(|(ticket, addition)| {
            let mut has = self.has.clone();
            has.add(*ticket, addition.clone());
            StoredState::from(&has)
        });
        (has, last)
    }

    fn restored(has: Option<StoredState>, last: Option<StoredState>) -> Option<Self> {
        let mut connection = Self::default();
        if let Some(has) = has {
            let (ticket, addition) = has.into_addition()?;
            connection.has.add(ticket, addition);
            connection.has.is_older = true;
        }
        if let Some(last) = last {
            let (ticket, mut addition) = last.into_addition()?;
            let gone = connection.has.rooms.without(&addition.rooms).into_iter();
            addition.rooms.extend(gone.map(|room| (room, RoomChange::Gone)));
            connection.under_way.push_back((ticket, addition));
        }
        Some(connection)
    }

    /// Its approximate size in bytes. Computing it costs as much as the responses in flight
    /// contain.
    fn weight(&self) -> u64 {
        let under_way: usize = self.under_way.iter().map(|(_, add)| add.rooms.len()).sum();
        let listed: usize = self.orders.values().map(Order::len).sum();
        let direct = self.direct.as_ref().map_or(0, |(_, rooms)| rooms.len());
        // The approximate size of each in its map or list. Names and filters are counted with the
        // requests.
        let under_way = under_way * 256;
        let asked: usize = self.under_way.iter().map(|(_, add)| add.asked_bytes * 2).sum();
        let rest = listed * 16 + direct * 96 + asked + 512;
        self.has.rooms.weight() + (under_way + rest) as u64
    }
}

impl ClientState {
    /// The client has what is noted here, and more, up to this `pos`. It is sent everything since.
    fn goes_on_at(&mut self, pos: Pos) -> Result<(), UnknownPos> {
        if !self.is_older || pos.token.offset < self.at {
            return Err(UnknownPos);
        }
        (self.ticket, self.named, self.is_older) = (pos.ticket, pos.token.offset, false);
        // A client drops its members at a gap, of which there may have been some.
        self.rooms.forget_members();
        Ok(())
    }

    fn add(&mut self, ticket: u64, addition: Addition) {
        let Addition { at, fingerprint, asked_bytes: _, counts, account_data, rooms } = addition;
        (self.ticket, self.at, self.fingerprint) = (ticket, at, fingerprint);
        (self.named, self.is_older) = (at, false);
        (self.counts, self.account_data) = (counts, account_data);
        self.rooms.apply(rooms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addition(at: u64) -> Addition {
        Addition { at: Offset::new(at), ..Addition::default() }
    }

    fn answer(connections: &Connections, pos: Option<Pos>, at: u64) -> Result<Pos, UnknownPos> {
        let resumed = connections.resume(Offset::new(1), "", pos)?;
        connections.sent(&resumed, Epoch(0), addition(at))
    }

    #[test]
    fn the_last_two_positions_are_known_and_no_other() {
        let connections = Connections::new(1 << 20, 7);
        let first = answer(&connections, None, 10).expect("a new connection");
        let second = answer(&connections, Some(first), 20).expect("the first");
        let lost = answer(&connections, Some(first), 20).expect("the first again");
        assert_ne!(second, lost, "at the same offset, but not the same response");
        let third = answer(&connections, Some(lost), 20).expect("the last");
        assert_eq!(answer(&connections, Some(first), 30), Err(UnknownPos));
        assert_eq!(answer(&connections, Some(second), 30), Err(UnknownPos), "it was not taken");
        answer(&connections, Some(third), 30).expect("the last");
        let forged = Pos { token: Token { offset: Offset::new(1), ..third.token }, ..third };
        assert_eq!(answer(&connections, Some(forged), 30), Err(UnknownPos));
        answer(&connections, None, 40).expect("a new connection");
        assert_eq!(answer(&connections, Some(third), 50), Err(UnknownPos), "it was replaced");
    }

    fn sent(timeline_start: u64) -> RoomChange {
        let sent = SentRoom {
            form: Form::Joined,
            events: SentUpTo::Current,
            receipts: SentUpTo::Until(Offset::new(3)),
            typing: SentUpTo::Nothing,
            account_data: SentUpTo::Nothing,
            state: Arc::default(),
            timeline_limit: 9,
            timeline_start: Offset::new(timeline_start),
            is_dm: true,
        };
        RoomChange::Sent { sent, members: vec![Offset::new(2)], all_members: true }
    }

    /// Answers with these rooms, and says what the client had before.
    fn with_rooms(
        connections: &Connections,
        (session, name): (u64, &str),
        pos: Option<Pos>,
        at: u64,
        rooms: &[u64],
    ) -> Result<(Pos, Vec<u64>), UnknownPos> {
        let resumed = connections.resume(Offset::new(session), name, pos)?;
        let had = {
            let connection = resumed.lock()?;
            let of = |room: &u64| {
                let room = connection.has.rooms.get(Offset::new(*room))?;
                assert_eq!(room.sent.receipts, SentUpTo::Until(Offset::new(3)));
                Some(room.sent.timeline_start.get() + room.members.len() as u64)
            };
            (1..9).filter_map(|room| of(&room)).collect()
        };
        let rooms = rooms.iter().map(|room| (Offset::new(*room), sent(10 * room))).collect();
        let addition = Addition { rooms, ..addition(at) };
        Ok((connections.sent(&resumed, Epoch(0), addition)?, had))
    }

    #[test]
    fn a_connection_goes_on_from_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let start = |tickets| Connections::new(1 << 20, tickets).in_files(dir.path());
        let (mine, yours, again) = ((1, "a"), (1, "b"), (2, "a"));
        let connections = start(1 << 9);
        let first = with_rooms(&connections, mine, None, 10, &[1]).expect("new").0;
        let (second, had) = with_rooms(&connections, mine, Some(first), 20, &[2]).expect("known");
        assert_eq!(had, [11]);
        let other = with_rooms(&connections, yours, None, 20, &[5]).expect("new").0;
        let late = with_rooms(&connections, again, None, 20, &[]).expect("new").0;
        connections.write_all(0);
        // What the file does not tell.
        let (third, had) = with_rooms(&connections, mine, Some(second), 30, &[3]).expect("known");
        assert_eq!(had, [11, 21]);

        // The last response that was written has arrived, or not.
        let restarted = start(1 << 19);
        let (_, had) = with_rooms(&restarted, mine, Some(second), 30, &[]).expect("a file");
        assert_eq!(had, [11, 21]);
        let restarted = start(1 << 29);
        let (_, had) = with_rooms(&restarted, mine, Some(first), 30, &[]).expect("a file");
        assert_eq!(had, [11]);
        let (_, had) = with_rooms(&restarted, yours, Some(other), 30, &[]).expect("a file");
        assert_eq!(had, [51]);
        // A later one has. Members that its client may have dropped since are not counted on.
        let restarted = start(1 << 39);
        let (next, had) = with_rooms(&restarted, mine, Some(third), 40, &[3]).expect("a file");
        assert_eq!(had, [10]);
        let (_, had) = with_rooms(&restarted, mine, Some(third), 40, &[3]).expect("again");
        assert_eq!(had, [10]);
        let (_, had) = with_rooms(&restarted, mine, Some(next), 50, &[]).expect("known");
        assert_eq!(had, [10, 31]);

        // Nothing else is taken for one of its positions.
        let restarted = start(1 << 49);
        for wrong in [
            Pos { connection: first.connection + 1, ..third },
            Pos { token: Token { offset: Offset::new(5), ..third.token }, ..third },
            other,
        ] {
            assert_eq!(with_rooms(&restarted, mine, Some(wrong), 50, &[]), Err(UnknownPos));
        }
        let (started, had) = with_rooms(&restarted, mine, None, 50, &[]).expect("new");
        assert_eq!(had, [0_u64; 0]);
        assert_eq!(with_rooms(&restarted, mine, Some(third), 60, &[]), Err(UnknownPos));
        with_rooms(&restarted, mine, Some(started), 60, &[]).expect("known");
        let path = super::super::files::directory(dir.path()).join("2");
        let mut file = std::fs::read(&path).expect("a file");
        *file.last_mut().expect("a byte") ^= 1;
        std::fs::write(&path, file).expect("a file");
        assert_eq!(with_rooms(&restarted, again, Some(late), 60, &[]), Err(UnknownPos));
    }

    #[test]
    fn what_is_evicted_is_not_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let connections = Connections::new(50_000, 7).in_files(dir.path());
        let mut positions: Vec<_> = (1..200).map(|session| (session, None)).collect();
        for round in 0..4 {
            for (session, pos) in &mut positions {
                let (next, had) =
                    with_rooms(&connections, (*session, ""), *pos, 10 + round, &[1 + round])
                        .expect("known");
                assert_eq!(had.len(), round as usize);
                *pos = Some(next);
            }
        }
        assert!(connections.sessions.weight() <= 50_000);
        assert!(std::fs::read_dir(dir.path().join("sliding")).expect("a directory").count() > 100);
    }

    #[test]
    fn an_overtaken_request_is_not_answered() {
        let connections = Connections::new(1 << 20, 7);
        let first = answer(&connections, None, 10).expect("a new connection");
        let waiting = connections.resume(Offset::new(1), "", Some(first)).expect("known");
        let second = answer(&connections, Some(first), 20).expect("known");
        assert!(waiting.lock().is_ok(), "the second may be lost");
        connections.resume(Offset::new(1), "", Some(second)).expect("known");
        assert!(waiting.lock().is_err());
        assert_eq!(connections.sent(&waiting, Epoch(0), addition(30)), Err(UnknownPos));
    }

    #[test]
    fn a_large_connection_is_kept() {
        let connections = Connections::new(1 << 20, 7);
        let resumed = connections.resume(Offset::new(1), "", None).expect("new");
        let rooms = (1..=3000).map(|room| (Offset::new(room), RoomChange::Gone)).collect();
        let addition = Addition { rooms, ..addition(10) };
        let pos = connections.sent(&resumed, Epoch(0), addition).expect("nobody else asks");
        assert!(connections.resume(Offset::new(1), "", Some(pos)).is_ok());
    }

    #[test]
    fn connections_are_bounded_for_a_session_and_in_all() {
        let connections = Connections::new(100_000, 7);
        let open = |session: u64, name: &str| {
            let resumed = connections.resume(Offset::new(session), name, None).expect("new");
            connections.sent(&resumed, Epoch(0), addition(5)).expect("nobody else asks")
        };
        let names: Vec<String> = (0..=limits::SLIDING_CONNECTIONS).map(|n| n.to_string()).collect();
        let first = open(1, &names[0]);
        let second = open(1, &names[1]);
        for name in &names[2..] {
            open(1, name);
        }
        assert!(connections.resume(Offset::new(1), &names[0], Some(first)).is_err());
        assert!(connections.resume(Offset::new(1), &names[1], Some(second)).is_ok());
        for session in 2..1000 {
            open(session, "x");
        }
        assert!(connections.sessions.weight() <= 100_000);
    }
}
