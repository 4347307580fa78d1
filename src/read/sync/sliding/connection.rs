//! What each connection has been sent (MSC4186, "Connections").
//!
//! A response has arrived once the client comes back with its `pos`. Until then the connection
//! stores what the client has for certain, and what each response in flight adds to it. A lost
//! response is sent again, from what the client has. Any other `pos` is unknown.
//!
//! All of this is in memory only, and bounded. After a restart or an eviction, a client gets
//! `M_UNKNOWN_POS` and starts over.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use ruma::OwnedRoomId;

use super::{
    list::Order,
    rules::{RequiredState, Rules},
};
use crate::view::token::{Pos, Token};
use logcabin_base::{background::lock_at_length, limits};
use logcabin_record::{Epoch, Offset};

/// All connections. The cache is bounded; the least recently used sessions are evicted.
#[derive(Debug)]
pub struct Connections {
    sessions: Cache<Offset, CacheEntry, ByWeight>,
    /// The last ticket. It starts at a random number, so that none is repeated after a restart.
    ticket: AtomicU64,
}

/// The connections of one session, least recently used first.
type OfSession = VecDeque<(Box<str>, Arc<Slot>)>;

#[derive(Debug, Default)]
struct Slot {
    connection: Mutex<Connection>,
    /// For a client that starts over: its earlier position, until it has come back.
    came_from: Mutex<Option<Token>>,
    /// In bytes, as of the last response, so that it is known without waiting for the lock.
    weight: AtomicU64,
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

/// An unknown or outdated `pos`: the client must start over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a position of this connection that is still known")]
pub struct UnknownPos;

/// A connection, as a request found it.
#[derive(Clone, Debug)]
pub struct Resumed {
    slot: Arc<Slot>,
    session: Offset,
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
#[derive(Debug, Default)]
pub(super) struct ClientState {
    ticket: u64,
    /// The position; [`Offset::ZERO`] before the first response.
    pub(super) at: Offset,
    /// A fingerprint of the last request's rules.
    pub(super) fingerprint: u64,
    /// The lengths of the lists.
    pub(super) counts: BTreeMap<String, usize>,
    /// The position of the global account data.
    pub(super) account_data: Offset,
    /// The rooms, by the offset of their creation.
    pub(super) rooms: HashMap<Offset, ClientRoom>,
    /// How many member events the rooms have.
    members: usize,
    /// The required states of the rooms, each with the number of rooms that share it.
    states: HashMap<Arc<RequiredState>, usize>,
    states_weight: u64,
}

/// What a client has of a room.
#[derive(Debug)]
pub(super) struct ClientRoom {
    pub(super) sent: SentRoom,
    /// The member events that were sent because a timeline needed them.
    pub(super) members: HashSet<Offset>,
}

/// What was sent of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentRoom {
    pub(super) form: Form,
    /// The position of its events and everything derived from them.
    pub(super) events: SentUpTo,
    pub(super) receipts: SentUpTo,
    pub(super) typing: SentUpTo,
    pub(super) account_data: SentUpTo,
    /// The required state that is kept up to date.
    pub(super) state: Arc<RequiredState>,
    pub(super) timeline_limit: usize,
    /// All visible events from here on were sent.
    pub(super) timeline_start: Offset,
    pub(super) is_dm: bool,
}

/// How a room was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As a joined room.
    Joined,
    /// As an invited or knocked room, with this member event.
    Stripped(Offset),
    /// As a room that the user was removed from, with this member event.
    Ended(Offset),
}

/// The position up to which something was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Debug, Default)]
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
#[derive(Debug)]
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
        Self { sessions: Cache::with_weighter(32, bytes, ByWeight), ticket }
    }

    /// The connection with this name in a session as of `pos`; a new one in its place without a
    /// `pos`.
    ///
    /// # Errors
    /// When `pos` is not one of the connection's last two, or was evicted.
    pub fn resume(
        &self,
        session: Offset,
        name: &str,
        pos: Option<Pos>,
    ) -> Result<Resumed, UnknownPos> {
        let kept = self.sessions.get(&session);
        let Some(pos) = pos else {
            let connections = kept.map_or_else(Arc::default, |kept| kept.connections);
            let slot = Arc::<Slot>::default();
            let mut of_session = connections.lock();
            of_session.retain(|(other, before)| {
                let replaced = **other == *name;
                if replaced {
                    *slot.came_from.lock() = *before.came_from.lock();
                }
                !replaced
            });
            if of_session.len() >= limits::SLIDING_CONNECTIONS {
                of_session.pop_front();
            }
            of_session.push_back((name.into(), Arc::clone(&slot)));
            drop(of_session);
            self.keep(session, connections);
            return Ok(Resumed { slot, session, ticket: 0 });
        };
        let connections = kept.ok_or(UnknownPos)?.connections;
        let mut of_session = connections.lock();
        let index = of_session.iter().position(|(other, _)| **other == *name).ok_or(UnknownPos)?;
        let used = of_session.remove(index).ok_or(UnknownPos)?;
        let slot = Arc::clone(&used.1);
        of_session.push_back(used);
        drop(of_session);
        lock_at_length(&slot.connection).arrived(pos)?;
        *slot.came_from.lock() = None;
        Ok(Resumed { slot, session, ticket: pos.ticket })
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
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed) + 1;
        let token = Token { epoch, offset: addition.at };
        let mut connection = resumed.lock()?;
        connection.under_way.push_back((ticket, addition));
        // A cancelled request may be answered after the one that replaced it.
        if connection.under_way.len() > 2 {
            connection.under_way.pop_front();
        }
        resumed.slot.weight.store(connection.weight(), Ordering::Relaxed);
        drop(connection);
        if let Some(kept) = self.sessions.get(&resumed.session) {
            self.keep(resumed.session, kept.connections);
        }
        Ok(Pos { token, ticket })
    }

    fn keep(&self, session: Offset, connections: Arc<Mutex<OfSession>>) {
        let of_session = connections.lock();
        let weights = of_session.iter().map(|(_, slot)| slot.weight.load(Ordering::Relaxed));
        let weight = weights.sum::<u64>() + 256;
        drop(of_session);
        self.sessions.insert(session, CacheEntry { connections, weight });
    }
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

    /// Its approximate size in bytes. Computing it costs as much as the responses in flight
    /// contain.
    fn weight(&self) -> u64 {
        let under_way: usize = self.under_way.iter().map(|(_, add)| add.rooms.len()).sum();
        let listed: usize = self.orders.values().map(Order::len).sum();
        let direct = self.direct.as_ref().map_or(0, |(_, rooms)| rooms.len());
        // The approximate size of each in its map or list. Names and filters are counted with the
        // requests.
        let rooms = (self.has.rooms.len() + under_way) * 256;
        let asked: usize = self.under_way.iter().map(|(_, add)| add.asked_bytes * 2).sum();
        let rest = self.has.members * 16 + listed * 16 + direct * 96 + asked + 512;
        self.has.states_weight + (rooms + rest) as u64
    }
}

impl ClientState {
    fn add(&mut self, ticket: u64, addition: Addition) {
        let Addition { at, fingerprint, asked_bytes: _, counts, account_data, rooms } = addition;
        (self.ticket, self.at, self.fingerprint) = (ticket, at, fingerprint);
        (self.counts, self.account_data) = (counts, account_data);
        for (room, change) in rooms {
            let before = self.rooms.remove(&room);
            if let Some(before) = &before {
                self.members -= before.members.len();
                self.release(&before.sent.state);
            }
            if let RoomChange::Sent { mut sent, members, all_members } = change {
                let before = before.filter(|_| !all_members);
                let mut known = before.map(|before| before.members).unwrap_or_default();
                known.extend(members);
                self.members += known.len();
                sent.state = self.hold(sent.state);
                self.rooms.insert(room, ClientRoom { sent, members: known });
            }
        }
        // Forgotten members are sent again, which is allowed.
        if self.members > limits::SLIDING_MEMBERS {
            self.rooms.values_mut().for_each(|room| room.members = HashSet::new());
            self.members = 0;
        }
    }

    /// The copy of this state that all rooms with the same state share.
    fn hold(&mut self, state: Arc<RequiredState>) -> Arc<RequiredState> {
        if let Some((held, rooms)) = self.states.remove_entry(&state) {
            self.states.insert(Arc::clone(&held), rooms + 1);
            return held;
        }
        self.states_weight += state.weight();
        self.states.insert(Arc::clone(&state), 1);
        state
    }

    fn release(&mut self, state: &Arc<RequiredState>) {
        if let Some(rooms) = self.states.get_mut(state) {
            *rooms -= 1;
            if *rooms == 0 {
                self.states.remove(state);
                self.states_weight -= state.weight();
            }
        }
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
