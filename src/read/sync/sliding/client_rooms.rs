//! What a client has of its rooms, in few bytes for each: most rooms were sent in the same way.

use std::{
    collections::{HashMap, HashSet},
    hash::{Hash, Hasher},
    mem::size_of,
    ops::Deref,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    connection::{RoomChange, SentRoom},
    rules::RequiredState,
};
use logcabin_base::limits;
use logcabin_record::Offset;

/// The rooms of which a client has something.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientRooms {
    /// Ordered by `room`.
    rooms: Vec<Entry>,
    ways: Shared<Way>,
    states: Shared<RequiredState>,
    /// The sum of [`RequiredState::weight`].
    states_weight: u64,
    members: MemberCount,
}

/// How many member events the rooms have, and how many bytes these take.
#[derive(Clone, Debug, Default)]
struct MemberCount {
    events: usize,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    /// The offset of the room's creation.
    room: Offset,
    /// How it was sent, but for the start of its timeline, which rooms do not share.
    way: Arc<Way>,
    timeline_start: Offset,
    members: MemberEvents,
}

/// Required states by their addresses, each with the shared copy of it.
type SharedStates = HashMap<*const RequiredState, (Arc<RequiredState>, Arc<RequiredState>)>;

/// How rooms were sent, with a required state that is there once. So it is compared by its address:
/// a client may choose many states that take long to compare.
#[derive(Clone, Debug)]
struct Way(SentRoom);

impl Deref for Way {
    type Target = SentRoom;

    fn deref(&self) -> &SentRoom {
        &self.0
    }
}

impl PartialEq for Way {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state) && self.0 == other.0
    }
}

impl Eq for Way {}

impl Hash for Way {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let SentRoom { form, events, receipts, typing, account_data, state, .. } = &self.0;
        (form, events, receipts, typing, account_data, Arc::as_ptr(state)).hash(hasher);
        (self.timeline_limit, self.timeline_start, self.is_dm).hash(hasher);
    }
}

/// What a client has of a room.
#[derive(Debug)]
pub(super) struct ClientRoom {
    pub(super) sent: SentRoom,
    /// The member events that were sent because a timeline needed them.
    pub(super) members: HashSet<Offset>,
}

/// The rooms as they are stored.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredRooms {
    states: Vec<RequiredState>,
    /// Each with the index of its state.
    ways: Vec<(usize, SentRoom)>,
    rooms: Vec<StoredRoom>,
}

#[derive(Serialize, Deserialize)]
struct StoredRoom {
    room: Offset,
    /// The index of the way in which it was sent.
    way: usize,
    timeline_start: Offset,
    members: MemberEvents,
}

impl StoredRooms {
    /// The changes that make these rooms of none; none if they cannot have been stored.
    pub(super) fn into_changes(self) -> Option<Vec<(Offset, RoomChange)>> {
        let states: Vec<_> = self.states.into_iter().map(Arc::new).collect();
        let changes = self.rooms.into_iter().map(|stored| {
            let StoredRoom { room, way, timeline_start, members } = stored;
            let (state, way) = self.ways.get(way)?;
            let state = Arc::clone(states.get(*state)?);
            let sent = SentRoom { timeline_start, state, ..way.clone() };
            let members = members.iter().collect();
            Some((room, RoomChange::Sent { sent, members, all_members: true }))
        });
        changes.collect()
    }
}

impl ClientRooms {
    /// What the client has of the room that was created at this offset.
    pub(super) fn get(&self, room: Offset) -> Option<ClientRoom> {
        let entry = self.rooms.get(self.index(room).ok()?)?;
        let sent = SentRoom { timeline_start: entry.timeline_start, ..entry.way.0.clone() };
        Some(ClientRoom { sent, members: entry.members.iter().collect() })
    }

    fn index(&self, room: Offset) -> Result<usize, usize> {
        self.rooms.binary_search_by_key(&room, |entry| entry.room)
    }

    /// Notes what the client has been sent. Each room is named once.
    pub(super) fn apply(&mut self, changes: Vec<(Offset, RoomChange)>) {
        let (mut new, mut gone) = (Vec::new(), HashSet::new());
        // What is no longer held is released last, so that no state comes twice meanwhile.
        let (mut states, mut released) = (HashMap::new(), Vec::new());
        for (room, change) in changes {
            let index = self.index(room);
            match (change, index) {
                (RoomChange::Sent { sent, members, all_members }, _) => {
                    let timeline_start = sent.timeline_start;
                    let way = self.hold(sent, &mut states);
                    let known = index.ok().and_then(|index| self.rooms.get_mut(index));
                    match known {
                        Some(entry) => {
                            entry.timeline_start = timeline_start;
                            released.push(std::mem::replace(&mut entry.way, way));
                            if all_members || !members.is_empty() {
                                let kept = (!all_members).then(|| entry.members.iter());
                                let all = kept.into_iter().flatten().chain(members).collect();
                                self.members.remove(&entry.members);
                                entry.members = MemberEvents::new(all);
                                self.members.add(&entry.members);
                            }
                        }
                        None => {
                            let members = MemberEvents::new(members);
                            self.members.add(&members);
                            new.push(Entry { room, way, timeline_start, members });
                        }
                    }
                }
                (RoomChange::Gone, Ok(_)) => {
                    gone.insert(room);
                }
                (RoomChange::Gone, Err(_)) => {}
            }
        }
        released.iter().for_each(|way| self.release(way));
        if !gone.is_empty() {
            self.remove(&gone);
        }
        if !new.is_empty() {
            self.rooms.append(&mut new);
            // It finds the ordered parts.
            self.rooms.sort_by_key(|entry| entry.room);
            self.rooms.shrink_to(self.rooms.len() + self.rooms.len() / 8);
        }
        // Forgotten members are sent again, which is allowed.
        if self.members.events > limits::SLIDING_MEMBERS {
            self.rooms.iter_mut().for_each(|entry| entry.members = MemberEvents::default());
            self.members = MemberCount::default();
        }
    }

    fn remove(&mut self, gone: &HashSet<Offset>) {
        let rooms = std::mem::take(&mut self.rooms).into_iter();
        let (removed, rest) = rooms.partition::<Vec<_>, _>(|entry| gone.contains(&entry.room));
        self.rooms = rest;
        for entry in removed {
            self.members.remove(&entry.members);
            self.release(&entry.way);
        }
    }

    pub(super) fn stored(&self) -> StoredRooms {
        let mut state_index = HashMap::new();
        let mut states = Vec::new();
        for state in self.states.0.keys() {
            state_index.insert(Arc::as_ptr(state), states.len());
            states.push(RequiredState::clone(state));
        }
        let mut way_index = HashMap::new();
        let mut ways = Vec::new();
        for way in self.ways.0.keys() {
            let Some(state) = state_index.get(&Arc::as_ptr(&way.state)) else { continue };
            way_index.insert(Arc::as_ptr(way), ways.len());
            ways.push((*state, way.0.clone()));
        }
        let rooms = self.rooms.iter().filter_map(|entry| {
            Some(StoredRoom {
                room: entry.room,
                way: *way_index.get(&Arc::as_ptr(&entry.way))?,
                timeline_start: entry.timeline_start,
                members: entry.members.clone(),
            })
        });
        StoredRooms { rooms: rooms.collect(), states, ways }
    }

    /// The rooms that a client has of which these have nothing.
    pub(super) fn without(&self, others: &[(Offset, RoomChange)]) -> Vec<Offset> {
        let others: HashSet<_> = others.iter().map(|(room, _)| *room).collect();
        let rooms = self.rooms.iter().map(|entry| entry.room);
        rooms.filter(|room| !others.contains(room)).collect()
    }

    /// The shared way in which a room was sent. `states` has the shared copies of the states of one
    /// response, which are few, and each of them is looked up once.
    fn hold(&mut self, mut sent: SentRoom, states: &mut SharedStates) -> Arc<Way> {
        sent.timeline_start = Offset::ZERO;
        let shared = states.entry(Arc::as_ptr(&sent.state)).or_insert_with(|| {
            let shared = self.states.get(&sent.state).unwrap_or_else(|| Arc::clone(&sent.state));
            (Arc::clone(&sent.state), shared)
        });
        sent.state = Arc::clone(&shared.1);
        let way = Way(sent);
        if let Some(held) = self.ways.again(&way) {
            return held;
        }
        if self.states.again(&way.state).is_none() {
            self.states_weight += way.state.weight();
            self.states.first(Arc::clone(&way.state));
        }
        self.ways.first(Arc::new(way))
    }

    fn release(&mut self, way: &Arc<Way>) {
        if self.ways.release(way) && self.states.release(&way.state) {
            self.states_weight -= way.state.weight();
        }
    }

    /// Its approximate size in bytes.
    pub(super) fn weight(&self) -> u64 {
        let rooms = self.rooms.len() * (size_of::<Entry>() + size_of::<Entry>() / 8);
        // With what each takes in its map.
        let ways = self.ways.0.len() * (size_of::<SentRoom>() + 48);
        self.states_weight + (rooms + ways + self.members.bytes) as u64
    }
}

impl MemberCount {
    fn add(&mut self, members: &MemberEvents) {
        self.events += members.count();
        self.bytes += members.bytes();
    }

    fn remove(&mut self, members: &MemberEvents) {
        self.events -= members.count();
        self.bytes -= members.bytes();
    }
}

/// Values of which each is there once, with the number of its holders.
#[derive(Clone, Debug)]
struct Shared<T>(HashMap<Arc<T>, usize>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> Shared<T> {
    fn get(&self, value: &T) -> Option<Arc<T>> {
        self.0.get_key_value(value).map(|(held, _)| Arc::clone(held))
    }

    /// A value that is there, for one more holder.
    fn again(&mut self, value: &T) -> Option<Arc<T>> {
        *self.0.get_mut(value)? += 1;
        self.get(value)
    }

    /// A value that is not there yet, for its first holder.
    fn first(&mut self, value: Arc<T>) -> Arc<T> {
        self.0.insert(Arc::clone(&value), 1);
        value
    }

    /// Returns whether nobody holds the value any more.
    fn release(&mut self, value: &Arc<T>) -> bool {
        let Some(holders) = self.0.get_mut(value) else { return false };
        *holders -= 1;
        let is_last = *holders == 0;
        if is_last {
            self.0.remove(value);
        }
        is_last
    }
}

/// A set of events: for each, in order, the difference from the one before, of seven bits in each
/// byte, the lowest first; the last byte of each has its highest bit clear.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MemberEvents(Box<[u8]>);

impl MemberEvents {
    fn new(mut events: Vec<Offset>) -> Self {
        events.sort_unstable();
        events.dedup();
        let (mut bytes, mut before) = (Vec::with_capacity(events.len() * 3), 0);
        for event in events {
            let mut left = event.get() - before;
            while left >= 0x80 {
                bytes.push(left as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
            before = event.get();
        }
        Self(bytes.into())
    }

    fn iter(&self) -> impl Iterator<Item = Offset> {
        let is_last = |byte: &u8| byte & 0x80 == 0;
        self.0.split_inclusive(is_last).scan(0, |before, bytes| {
            let difference = bytes.iter().rev();
            let difference = difference.fold(0, |high, byte| high << 7 | u64::from(byte & 0x7f));
            *before = u64::wrapping_add(*before, difference);
            Some(Offset::new(*before))
        })
    }

    fn count(&self) -> usize {
        self.0.iter().filter(|byte| **byte & 0x80 == 0).count()
    }

    /// The bytes that it takes beside itself.
    fn bytes(&self) -> usize {
        // With what the allocator adds.
        if self.0.is_empty() { 0 } else { self.0.len() + 16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::sliding::connection::{Form, SentUpTo};
    use proptest::prelude::*;

    fn sent(timeline_limit: usize, timeline_start: u64, state: &[&str]) -> SentRoom {
        let pairs = state.iter().map(|kind| ((*kind).to_owned(), String::new())).collect();
        SentRoom {
            form: Form::Joined,
            events: SentUpTo::Current,
            receipts: SentUpTo::Nothing,
            typing: SentUpTo::Nothing,
            account_data: SentUpTo::Nothing,
            state: Arc::new(RequiredState::new(ruma::user_id!("@ann:test"), pairs)),
            timeline_limit,
            timeline_start: Offset::new(timeline_start),
            is_dm: false,
        }
    }

    fn change() -> impl Strategy<Value = RoomChange> {
        let members = prop::collection::vec((1_u64..1 << 40).prop_map(Offset::new), 0..4);
        prop_oneof![
            Just(RoomChange::Gone),
            (0..6_usize, 1..99_u64, members, any::<bool>()).prop_map(
                |(number, start, members, all_members)| {
                    let state = &["a", "b"][..number % 3];
                    let sent = sent(number / 3, start, state);
                    RoomChange::Sent { sent, members, all_members }
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn it_has_what_was_sent_last(
            answers in prop::collection::vec(
                prop::collection::btree_map(1..9_u64, change(), 0..6), 0..20)
        ) {
            let mut rooms = ClientRooms::default();
            let mut model = HashMap::<Offset, (SentRoom, HashSet<Offset>)>::new();
            for changes in answers {
                for (room, change) in &changes {
                    let room = Offset::new(*room);
                    let before = model.remove(&room).map(|of| of.1).unwrap_or_default();
                    if let RoomChange::Sent { sent, members, all_members } = change {
                        let mut known = if *all_members { HashSet::new() } else { before };
                        known.extend(members);
                        model.insert(room, (sent.clone(), known));
                    }
                }
                let changes = changes.into_iter().map(|(room, of)| (Offset::new(room), of));
                rooms.apply(changes.collect());
                for room in (0..10).map(Offset::new) {
                    let has = rooms.get(room).map(|of| (of.sent, of.members));
                    prop_assert_eq!(has.as_ref(), model.get(&room));
                }
                let mut again = ClientRooms::default();
                again.apply(rooms.stored().into_changes().expect("as they were stored"));
                prop_assert_eq!(again.weight(), rooms.weight());
                for room in (0..10).map(Offset::new) {
                    let of = |rooms: &ClientRooms| rooms.get(room).map(|of| (of.sent, of.members));
                    prop_assert_eq!(of(&again), of(&rooms));
                }
                let members: usize = model.values().map(|of| of.1.len()).sum();
                prop_assert_eq!(rooms.members.events, members);
                let states: HashSet<_> = model.values().map(|of| &of.0.state).collect();
                prop_assert_eq!(rooms.states.0.len(), states.len());
                let ways: HashSet<_> =
                    model.values().map(|of| (&of.0.state, of.0.timeline_limit)).collect();
                prop_assert_eq!(rooms.ways.0.len(), ways.len());
                let weight: u64 = states.iter().map(|state| state.weight()).sum();
                prop_assert_eq!(rooms.states_weight, weight);
            }
            let all: Vec<_> = (0..10).map(|room| (Offset::new(room), RoomChange::Gone)).collect();
            rooms.apply(all);
            prop_assert_eq!(rooms.weight(), 0);
        }
    }

    #[test]
    fn a_thousand_rooms_take_less_than_a_hundred_bytes_each() {
        let mut rooms = ClientRooms::default();
        let of = |room: u64| {
            let members = (1..=5).map(|member| Offset::new(room + 200 * member)).collect();
            let sent = sent(20, room + 5000, &["m.room.name", "m.room.create"]);
            (Offset::new(room), RoomChange::Sent { sent, members, all_members: true })
        };
        rooms.apply((1..=1000).map(|room| of(room * 1000)).collect());
        assert!(rooms.weight() < 90_000, "{}", rooms.weight());
    }
}
