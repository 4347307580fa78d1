//! What each connection has been sent (MSC4186, "Connections").
//!
//! A response has arrived once the client comes back with its `pos`. Until then the connection
//! stores what the client has for certain, and what each response in flight adds to it. A lost
//! response is sent again, from what the client has. Any other `pos` is unknown.
//!
//! The memory for this is bounded. What is evicted is written to a file ([`files`](super::files)),
//! and so is everything when the server stops. There, too, only these positions are known: what a
//! client has dropped since an earlier one, such as a room that it left, would not be sent again.
//! With any other `pos`, it gets `M_UNKNOWN_POS` and starts over.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
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

use super::{
    client_rooms::ClientRooms,
    files::{ConnectionFiles, StoredConnection, StoredState},
    list::Order,
    rules::{RequiredState, Rules},
};
use crate::view::token::{Pos, Token};
use logcabin_base::{
    background::{at_length, lock_at_length},
    limits,
};
use logcabin_record::{Epoch, Offset};

/// All connections. The cache is bounded; the least recently used sessions are evicted.
#[derive(Debug)]
pub struct Connections {
    sessions: Cache<Offset, CacheEntry, ByWeight, DefaultHashBuilder, Evicted>,
    files: Option<ConnectionFiles>,
    /// Held while connections are read from a file, so that there is one copy of them.
    reading: Mutex<()>,
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
    /// The ticket of the newest response that was written to a file; 0 before.
    written: AtomicU64,
    /// It was read from a file.
    is_read: bool,
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
        Self { sessions, files: None, reading: Mutex::default(), ticket }
    }

    /// Writes connections to files below `data_dir`, and reads them there.
    #[must_use]
    pub fn in_files(self, data_dir: &Path) -> Self {
        Self { files: Some(ConnectionFiles::of(data_dir)), ..self }
    }

    /// The connection with this name in a session as of `pos`; a new one in its place without a
    /// `pos`.
    ///
    /// # Errors
    /// When `pos` is not one of the connection's last two, or was forgotten.
    pub fn resume(
        &self,
        session: Offset,
        name: &str,
        pos: Option<Pos>,
    ) -> Result<Resumed, UnknownPos> {
        let connections = self.of_session(session);
        let mut of_session = connections.lock();
        let before = of_session.iter().find(|(other, _)| **other == *name);
        let before = before.map(|(_, slot)| Arc::clone(slot));
        let Some(pos) = pos else {
            let slot = Slot { id: self.next_ticket(), ..Slot::default() };
            *slot.came_from.lock() = before.and_then(|before| *before.came_from.lock());
            let slot = Arc::new(slot);
            put(&mut of_session, name, &slot);
            drop(of_session);
            self.keep(session, Arc::clone(&connections));
            return Ok(Resumed { slot, connections, session, name: name.into(), ticket: 0 });
        };
        let slot = before.filter(|slot| slot.id == pos.connection).ok_or(UnknownPos)?;
        put(&mut of_session, name, &slot);
        drop(of_session);
        lock_at_length(&slot.connection).arrived(pos)?;
        *slot.came_from.lock() = None;
        Ok(Resumed { slot, connections, session, name: name.into(), ticket: pos.ticket })
    }

    /// The connections of a session: in memory, in its file, or none yet.
    fn of_session(&self, session: Offset) -> Arc<Mutex<OfSession>> {
        let kept = || self.sessions.get(&session).map(|kept| kept.connections);
        kept().unwrap_or_else(|| {
            at_length(|| {
                let one_copy = self.reading.lock();
                if let Some(kept) = kept() {
                    return kept;
                }
                let connections = self.read(session).unwrap_or_default();
                let evicted = self.insert(session, Arc::clone(&connections));
                // Others need not wait for what is written.
                drop(one_copy);
                evicted.iter().for_each(|(other, kept)| self.write(*other, &kept.connections));
                connections
            })
        })
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
        let connections = self.of_session(resumed.session);
        if !Arc::ptr_eq(&connections, &resumed.connections) {
            // They were evicted while the client waited, and what was read again is older, unless
            // the client has started over.
            let mut of_session = connections.lock();
            let other = of_session.iter().find(|(other, _)| *other == resumed.name);
            if other.is_none_or(|(_, other)| other.is_read || other.id == resumed.slot.id) {
                put(&mut of_session, &resumed.name, &resumed.slot);
            }
        }
        self.keep(resumed.session, connections);
        Ok(Pos { token, connection: resumed.slot.id, ticket })
    }

    /// Puts the connections of a session into the cache, and what is evicted into files.
    fn keep(&self, session: Offset, connections: Arc<Mutex<OfSession>>) {
        let evicted = self.insert(session, connections);
        if !evicted.is_empty() {
            at_length(|| {
                evicted.iter().for_each(|(other, kept)| self.write(*other, &kept.connections));
            });
        }
    }

    /// Puts the connections of a session into the cache. Returns what is evicted.
    fn insert(
        &self,
        session: Offset,
        connections: Arc<Mutex<OfSession>>,
    ) -> Vec<(Offset, CacheEntry)> {
        let of_session = connections.lock();
        let weights = of_session.iter().map(|(_, slot)| slot.weight.load(Ordering::Relaxed));
        let weight = weights.sum::<u64>() + 256;
        drop(of_session);
        let mut evicted = Vec::new();
        let entry = CacheEntry { connections, weight };
        self.sessions.insert_with_lifecycle(session, entry, &mut evicted);
        // An entry that is replaced counts as evicted, too.
        evicted.retain(|(other, _)| *other != session || !self.sessions.contains_key(&session));
        evicted
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
            let came_from = Mutex::default();
            let slot = Slot { id, connection, came_from, weight, written, is_read: true };
            of_session.push_back((name, Arc::new(slot)));
        }
        Some(Arc::new(Mutex::new(of_session)))
    }

    /// Writes the connections of a session to its file, unless there is nothing new in them.
    fn write(&self, session: Offset, connections: &Mutex<OfSession>) {
        let Some(files) = &self.files else { return };
        // Whoever writes later, writes what is newer.
        let mut writer = files.writer();
        let of_session: Vec<_> = connections.lock().iter().cloned().collect();
        let (mut stored, mut newest) = (Vec::new(), Vec::new());
        for (name, slot) in of_session {
            let connection = lock_at_length(&slot.connection);
            let (has, last) = connection.stored();
            drop(connection);
            // A client that has nothing can as well start over.
            if let Some(ticket) = last.as_ref().or(has.as_ref()).map(|state| state.ticket) {
                stored.push(StoredConnection { name, id: slot.id, has, last });
                newest.push((slot, ticket));
            }
        }
        let is_new =
            |(slot, ticket): &(Arc<Slot>, u64)| slot.written.load(Ordering::Relaxed) != *ticket;
        if newest.iter().any(is_new) && writer.write(session, &stored) {
            for (slot, ticket) in newest {
                slot.written.store(ticket, Ordering::Relaxed);
            }
        }
    }

    /// Writes what is new to the files. Blocks.
    pub fn write_all(&self) {
        if let Some(files) = &self.files {
            files.writer().begin();
        }
        for (session, kept) in self.sessions.iter() {
            self.write(session, &kept.connections);
        }
    }

    /// Removes the files of sessions that are not live, those that are too old, and the oldest ones
    /// of too many. Blocks.
    pub fn sweep_files(&self, now_ms: u64, live: &HashSet<Offset>) {
        if let Some(files) = &self.files {
            files.sweep(now_ms, live);
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
        let connection = lock_at_length(&self.slot.connection);
        // The lists are not in the files.
        let is_listed = rules.lists.iter().all(|list| connection.orders.contains_key(&list.name));
        is_listed && connection.has.fingerprint == rules.fingerprint
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
        if self.has.ticket == pos.ticket && self.has.at == pos.token.offset {
            return Ok(());
        }
        let known =
            |(ticket, add): &(u64, Addition)| *ticket == pos.ticket && add.at == pos.token.offset;
        let index = self.under_way.iter().position(known).ok_or(UnknownPos)?;
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
    fn add(&mut self, ticket: u64, addition: Addition) {
        let Addition { at, fingerprint, asked_bytes: _, counts, account_data, rooms } = addition;
        (self.ticket, self.at, self.fingerprint) = (ticket, at, fingerprint);
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
        connections.write_all();
        // The last response that was written has arrived, or not.
        for (tickets, pos, expected) in [(1 << 19, second, &[11, 21][..]), (1 << 29, first, &[11])]
        {
            let restarted = start(tickets);
            let (next, had) = with_rooms(&restarted, mine, Some(pos), 30, &[3]).expect("a file");
            assert_eq!(had, expected);
            let (_, had) = with_rooms(&restarted, mine, Some(next), 40, &[]).expect("known");
            assert_eq!(had, [expected, &[31]].concat());
            let (_, had) = with_rooms(&restarted, yours, Some(other), 30, &[]).expect("a file");
            assert_eq!(had, [51]);
        }

        // Nothing else is taken for one of its positions, such as one that the file does not tell.
        let (third, _) = with_rooms(&connections, mine, Some(second), 20, &[3]).expect("known");
        let restarted = start(1 << 49);
        for wrong in [
            third,
            Pos { ticket: third.ticket, ..second },
            Pos { connection: first.connection + 1, ..second },
            Pos { token: Token { offset: Offset::new(5), ..second.token }, ..second },
            other,
        ] {
            assert_eq!(with_rooms(&restarted, mine, Some(wrong), 50, &[]), Err(UnknownPos));
        }
        let (started, had) = with_rooms(&restarted, mine, None, 50, &[]).expect("new");
        assert_eq!(had, [0_u64; 0]);
        assert_eq!(with_rooms(&restarted, mine, Some(second), 60, &[]), Err(UnknownPos));
        with_rooms(&restarted, mine, Some(started), 60, &[]).expect("known");

        // A damaged file is none, and that of a session that is over is removed.
        let path = |session: &str| super::super::files::directory(dir.path()).join(session);
        let mut file = std::fs::read(path("2")).expect("a file");
        *file.last_mut().expect("a byte") ^= 1;
        std::fs::write(path("2"), file).expect("a file");
        assert_eq!(with_rooms(&restarted, again, Some(late), 60, &[]), Err(UnknownPos));
        std::fs::create_dir(path("else")).expect("a directory");
        restarted.sweep_files(0, &HashSet::from([Offset::new(1)]));
        assert!(path("1").exists() && !path("2").exists());
        restarted.sweep_files(u64::MAX, &HashSet::from([Offset::new(1)]));
        assert!(!path("1").exists());
    }

    #[test]
    fn what_cannot_be_written_is_written_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let connections = Connections::new(1 << 20, 7).in_files(dir.path());
        let pos = with_rooms(&connections, (1, ""), None, 10, &[1]).expect("new").0;
        let path = super::super::files::directory(dir.path());
        std::fs::write(&path, "in its way").expect("a file");
        connections.write_all();
        std::fs::remove_file(&path).expect("the file");
        connections.write_all();
        let restarted = Connections::new(1 << 20, 1 << 19).in_files(dir.path());
        with_rooms(&restarted, (1, ""), Some(pos), 20, &[]).expect("a file");
    }

    #[test]
    fn who_waits_while_the_session_is_evicted_goes_on_beside_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let connections = Connections::new(4000, 7).in_files(dir.path());
        let (waits, polls) = ((1, "a"), (1, "b"));
        let first = with_rooms(&connections, waits, None, 10, &[1]).expect("new").0;
        let other = with_rooms(&connections, polls, None, 10, &[5]).expect("new").0;
        let evict = || {
            for session in 2..40 {
                with_rooms(&connections, (session, ""), None, 10, &[1, 2, 3]).expect("new");
            }
            assert!(!connections.sessions.contains_key(&Offset::new(1)));
        };
        let waiting = connections.resume(Offset::new(1), "a", Some(first)).expect("known");
        evict();
        let other = with_rooms(&connections, polls, Some(other), 20, &[6]).expect("a file").0;
        evict();
        let addition = Addition { rooms: vec![(Offset::new(2), sent(20))], ..addition(20) };
        let second = connections.sent(&waiting, Epoch(0), addition).expect("nobody else asks");
        evict();
        let (_, had) = with_rooms(&connections, polls, Some(other), 30, &[]).expect("a file");
        assert_eq!(had, [51, 61]);
        let (_, had) = with_rooms(&connections, waits, Some(second), 30, &[]).expect("a file");
        assert_eq!(had, [11, 21]);
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
