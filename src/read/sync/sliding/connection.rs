//! What each connection has been sent (MSC4186, "Connections").
//!
//! A response is taken to have arrived once the client comes back with its `pos`. Until then the
//! connection knows both: what the client has for certain, and what each response under way adds to
//! it. So a lost response is answered again, from what the client has; and a `pos` of neither is
//! not known any more.
//!
//! All of this is memory alone, and bounded. A client whose connection was forgotten (after a
//! restart, or when memory is short) is told `M_UNKNOWN_POS` and begins anew.

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
use crate::{
    base::{background::lock_at_length, limits},
    read::view::token::{Pos, Token},
    record::{Epoch, Offset},
};

/// The memory for all connections, bounded: those of sessions not heard of for longest are
/// forgotten.
#[derive(Debug)]
pub struct Connections {
    sessions: Cache<Offset, Kept, ByWeight>,
    /// The last ticket given out. It begins at random, so that none is given out again after a
    /// restart.
    ticket: AtomicU64,
}

/// The connections of one session, the one not used for longest first.
type OfSession = VecDeque<(Box<str>, Arc<Slot>)>;

#[derive(Debug, Default)]
struct Slot {
    connection: Mutex<Connection>,
    /// For one that begins anew: where the client was, until it has come back.
    came_from: Mutex<Option<Token>>,
    /// In bytes, as of the last response: known without waiting for one who looks.
    weight: AtomicU64,
}

#[derive(Clone, Debug)]
struct Kept {
    connections: Arc<Mutex<OfSession>>,
    /// In bytes, as of when it was put there: a cache must find what it put there to weigh the
    /// same.
    weight: u64,
}

#[derive(Clone, Debug)]
struct ByWeight;

impl Weighter<Offset, Kept> for ByWeight {
    fn weight(&self, _: &Offset, kept: &Kept) -> u64 {
        kept.weight
    }
}

/// A `pos` that is not known, or not any more: the client has to begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a position of this connection that is still known")]
pub struct UnknownPos;

/// A connection, as one request found it.
#[derive(Clone, Debug)]
pub struct Resumed {
    slot: Arc<Slot>,
    session: Offset,
    /// What the client has, by its ticket; 0 for one that begins.
    ticket: u64,
}

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// What the client has.
    pub(super) has: Has,
    /// What the responses under way add to it, the oldest first.
    under_way: VecDeque<(u64, Addition)>,
    /// By name, the lists of the last request.
    pub(super) orders: BTreeMap<String, Order>,
    /// The user's direct chats, with the offset of the `m.direct` that names them.
    pub(super) direct: Option<(Offset, Arc<HashSet<OwnedRoomId>>)>,
}

/// What a client has.
#[derive(Debug, Default)]
pub(super) struct Has {
    ticket: u64,
    /// Up to where; [`Offset::ZERO`] before the first response.
    pub(super) at: Offset,
    /// The rules of the last request.
    pub(super) fingerprint: u64,
    /// How long the lists are.
    pub(super) counts: BTreeMap<String, usize>,
    /// Up to where it has the global account data.
    pub(super) account_data: Offset,
    /// By the offset of the room's creation.
    pub(super) rooms: HashMap<Offset, HasRoom>,
    /// How many member events the rooms know.
    members: usize,
    /// The states of the rooms, each with how many of them have it.
    states: HashMap<Arc<RequiredState>, usize>,
    states_weight: u64,
}

/// What a client has of a room.
#[derive(Debug)]
pub(super) struct HasRoom {
    pub(super) sent: Sent,
    /// The member events that were sent because a timeline needed them.
    pub(super) members: HashSet<Offset>,
}

/// What was sent of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) form: Form,
    /// The events and all that follows from them.
    pub(super) events: Reach,
    pub(super) receipts: Reach,
    pub(super) typing: Reach,
    pub(super) account_data: Reach,
    /// Which state it is kept up to date with.
    pub(super) state: Arc<RequiredState>,
    pub(super) timeline_limit: usize,
    /// From here on all visible events were sent.
    pub(super) timeline_start: Offset,
    pub(super) is_dm: bool,
}

/// In which form a room was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As to one who is joined.
    Joined,
    /// As to one who is invited or knocked, by this member event.
    Stripped(Offset),
    /// As to one who was thrown out, by this member event.
    Ended(Offset),
}

/// Up to where something was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reach {
    /// Not at all.
    #[default]
    Nothing,
    /// Up to this offset; what came later was not wanted.
    Until(Offset),
    /// As far as the connection has got.
    Current,
}

impl Reach {
    /// Up to which offset, where the connection has got to `at`; `None` for what was never sent.
    pub(super) const fn offset(self, at: Offset) -> Option<Offset> {
        match self {
            Self::Nothing => None,
            Self::Until(offset) => Some(offset),
            Self::Current => Some(at),
        }
    }

    /// What remains where something came after `at` that was not sent.
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
    /// How long the request was that it answers.
    pub(super) asked_bytes: usize,
    pub(super) counts: BTreeMap<String, usize>,
    pub(super) account_data: Offset,
    pub(super) rooms: Vec<(Offset, RoomChange)>,
}

/// What a response changes of what the client has of a room.
#[derive(Debug)]
pub(super) enum RoomChange {
    /// It was sent so far.
    Sent {
        sent: Sent,
        members: Vec<Offset>,
        /// Whether `members` are all that it has.
        all_members: bool,
    },
    /// It is not among the user's rooms any more.
    Gone,
}

impl Connections {
    /// A memory of about this many bytes, whose tickets begin after `first_ticket`: a random
    /// number.
    #[must_use]
    pub fn new(bytes: u64, first_ticket: u64) -> Self {
        let ticket = AtomicU64::new(first_ticket >> 1);
        // As few as this make a cache of one part: of several, none would keep what is larger than
        // it, and a client whose connection is not kept would begin anew for ever.
        Self { sessions: Cache::with_weighter(32, bytes, ByWeight), ticket }
    }

    /// The connection of this name in a session as of `pos`; a new one in its place without a
    /// `pos`.
    ///
    /// # Errors
    /// When `pos` is none of the last two that the connection was given, or it is forgotten.
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

    /// Notes that the client of this connection was at `token` and is to begin anew.
    pub fn begins_anew(&self, session: Offset, name: &str, token: Token) {
        if let Ok(resumed) = self.resume(session, name, None) {
            *resumed.slot.came_from.lock() = Some(token);
        }
    }

    /// Notes that the response that makes this addition goes out; gives its `pos`.
    ///
    /// # Errors
    /// When a later request has moved the connection on: nobody waits for this one any more.
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
        // A request that the client took back may be answered after the one that it sent instead.
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
        self.sessions.insert(session, Kept { connections, weight });
    }
}

impl Resumed {
    /// Whether the client asks for the same as before: then a look costs what changed, and
    /// otherwise what is asked for.
    #[must_use]
    pub fn goes_on(&self, rules: &Rules) -> bool {
        lock_at_length(&self.slot.connection).has.fingerprint == rules.fingerprint
    }

    /// For one that begins anew: where the client was.
    #[must_use]
    pub fn came_from(&self) -> Option<Token> {
        *self.slot.came_from.lock()
    }

    /// The connection, as long as it stands where the request found it.
    ///
    /// # Errors
    /// When a later request has moved it on.
    pub(super) fn lock(&self) -> Result<parking_lot::MutexGuard<'_, Connection>, UnknownPos> {
        let connection = lock_at_length(&self.slot.connection);
        if connection.has.ticket == self.ticket { Ok(connection) } else { Err(UnknownPos) }
    }
}

impl Connection {
    /// The client has come back with this `pos`, and so it has what that response held.
    fn arrived(&mut self, pos: Pos) -> Result<(), UnknownPos> {
        if self.has.ticket == pos.ticket && self.has.at == pos.token.offset {
            return Ok(());
        }
        let known =
            |(ticket, add): &(u64, Addition)| *ticket == pos.ticket && add.at == pos.token.offset;
        let index = self.under_way.iter().position(known).ok_or(UnknownPos)?;
        let (ticket, addition) = self.under_way.remove(index).ok_or(UnknownPos)?;
        // Responses to the same request that the client did not get, or threw away.
        self.under_way.clear();
        self.has.add(ticket, addition);
        Ok(())
    }

    /// About how many bytes it takes. It costs what the responses under way hold.
    fn weight(&self) -> u64 {
        let under_way: usize = self.under_way.iter().map(|(_, add)| add.rooms.len()).sum();
        let listed: usize = self.orders.values().map(Order::len).sum();
        let direct = self.direct.as_ref().map_or(0, |(_, rooms)| rooms.len());
        // What each takes in its map or list, roughly; and the names and filters, which are part of
        // the requests.
        let rooms = (self.has.rooms.len() + under_way) * 256;
        let asked: usize = self.under_way.iter().map(|(_, add)| add.asked_bytes * 2).sum();
        let rest = self.has.members * 16 + listed * 16 + direct * 96 + asked + 512;
        self.has.states_weight + (rooms + rest) as u64
    }
}

impl Has {
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
                self.rooms.insert(room, HasRoom { sent, members: known });
            }
        }
        // What is forgotten here is sent again, which is allowed.
        if self.members > limits::SLIDING_MEMBERS {
            self.rooms.values_mut().for_each(|room| room.members = HashSet::new());
            self.members = 0;
        }
    }

    /// The one copy of this state that all rooms which are sent so share.
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
    fn a_request_that_a_later_one_has_overtaken_is_answered_no_more() {
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
