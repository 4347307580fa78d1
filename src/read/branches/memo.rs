//! What is remembered of rooms' graphs between decisions. It only saves work: a room's memo can be
//! dropped at any time without changing an outcome.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};
use ruma::{EventId, OwnedEventId, OwnedRoomId, RoomId, events::StateEventType};

use super::{event_info::EventInfo, tree::StateTree};
use logcabin_base::limits;
use logcabin_record::{Offset, command::StateChange};
use logcabin_state::Room;

/// Numbers from here on stand for events that have no record yet.
const STAND_IN: u64 = 1 << 63;

#[derive(Debug, Default)]
pub struct Memo {
    /// The offset of the room's first event. Another room of the same id has another one.
    created: Offset,
    /// How many payloads had been reduced when the memo was last checked.
    reduced: u64,
    numbers: HashMap<Arc<(StateEventType, Box<str>)>, u32>,
    names: Vec<Arc<(StateEventType, Box<str>)>>,
    stand_ins: HashMap<OwnedEventId, u64>,
    /// The room's state as of one offset, from which those as of others are derived.
    pub(super) trunk: Option<(Offset, StateTree)>,
    pub(super) as_of: Recent<Offset, StateTree>,
    /// The states before events, by the events' records.
    pub(super) before: Recent<Offset, StateTree>,
    pub(super) events: Vec<EventInfo>,
    pub(super) ids: HashMap<OwnedEventId, u32>,
    /// The auth events of records that hold keys of whole states.
    pub(super) auth_events: HashMap<u64, Arc<[u32]>>,
    pub(super) records: HashMap<u64, u32>,
    /// Results of state resolution, by the hashes of the states; `None` if there was too much to
    /// look at.
    pub resolutions: Recent<Vec<u128>, Option<Arc<Resolved>>>,
    /// The differences between states, by their hashes.
    pub changes: Recent<(u128, u128), Arc<Vec<StateChange>>>,
    /// Events by the hashes of the states before them.
    pub described: Recent<u128, OwnedEventId>,
}

/// The result of state resolution.
#[derive(Debug)]
pub struct Resolved {
    pub state: StateTree,
    /// The numbers of the keys for which the states had different events.
    pub conflicted: Vec<u32>,
}

impl Memo {
    fn of(room: &Room, reduced: u64) -> Self {
        Self { created: room.created, reduced, ..Self::default() }
    }

    pub fn number(&mut self, event_type: &StateEventType, state_key: &str) -> u32 {
        let key = (event_type.clone(), Box::from(state_key));
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let key = Arc::new(key);
        self.names.push(Arc::clone(&key));
        self.numbers.insert(key, number);
        number
    }

    pub fn name(&self, number: u32) -> Option<&(StateEventType, Box<str>)> {
        self.names.get(number as usize).map(|name| &**name)
    }

    /// The number that stands for the record of an event that has none yet.
    pub(super) fn stand_in(&mut self, event_id: &EventId) -> u64 {
        if let Some(number) = self.stand_ins.get(event_id) {
            return *number;
        }
        let number = STAND_IN | self.stand_ins.len() as u64;
        self.stand_ins.insert(event_id.to_owned(), number);
        number
    }

    /// The offset of this record; [`PENDING`](super::PENDING) for a stand-in.
    pub const fn offset(record: u64) -> Offset {
        if is_stand_in(record) { super::PENDING } else { Offset::new(record) }
    }

    /// Forgets what is known of events if the memory is nearly full.
    pub fn keep_space(&mut self) {
        if self.events.len() > limits::RESOLUTION_CHAIN / 2 {
            self.forget_events();
        }
    }

    pub const fn knows_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn forget_events(&mut self) {
        self.auth_events = HashMap::new();
        self.events = Vec::new();
        self.ids = HashMap::new();
        self.records = HashMap::new();
    }

    /// Its approximate size, in bytes.
    fn bytes(&self) -> usize {
        // Trees share most of their nodes.
        let trees = self.as_of.len() + self.before.len() + 4 * self.resolutions.len();
        let changes: usize = self.changes.values().map(|changes| changes.len()).sum();
        let trunk = self.trunk.as_ref().map_or(0, |(_, tree)| tree.len());
        let resolved = self.resolutions.values().flatten();
        let conflicted: usize = resolved.map(|of| of.conflicted.len()).sum();
        1024 + 400 * self.events.len()
            + 80 * self.auth_events.len()
            + 200 * (self.names.len() + changes + self.stand_ins.len() + self.described.len())
            + 2048 * trees
            + 16 * (trunk + conflicted)
    }
}

pub(super) const fn is_stand_in(record: u64) -> bool {
    record & STAND_IN != 0
}

/// The most recently used values of one kind.
#[derive(Debug)]
pub struct Recent<K, V> {
    clock: u64,
    kept: HashMap<K, (u64, V)>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { clock: 0, kept: HashMap::new() }
    }
}

impl<K: Hash + Eq, V> Recent<K, V> {
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let (used, value) = self.kept.get_mut(key)?;
        self.clock += 1;
        *used = self.clock;
        Some(value)
    }

    /// Keeps the most recently used: at most twice as many as `most`.
    pub fn put(&mut self, key: K, value: V, most: usize) {
        self.clock += 1;
        self.kept.insert(key, (self.clock, value));
        if self.kept.len() > 2 * most {
            let mut used: Vec<_> = self.kept.values().map(|(used, _)| *used).collect();
            let (_, oldest, _) = used.select_nth_unstable(most);
            let oldest = *oldest;
            self.kept.retain(|_, (used, _)| *used > oldest);
        }
    }

    fn len(&self) -> usize {
        self.kept.len()
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.kept.values().map(|(_, value)| value)
    }
}

#[derive(Debug, Default)]
pub struct Memos {
    rooms: Mutex<Rooms>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Rooms {
    memos: HashMap<OwnedRoomId, Slot>,
    bytes: usize,
    clock: u64,
    /// The payloads that were reduced last, and the number of those before them.
    reduced: VecDeque<Offset>,
    reduced_before: u64,
}

#[derive(Debug)]
enum Slot {
    Here { memo: Box<Memo>, bytes: usize, used: u64 },
    Lent,
}

impl Memos {
    /// The memo of a room. If it is in use, this blocks until it is returned, or, without `waits`,
    /// begins a new one that is not kept.
    pub(super) fn lend(&self, room: &Room, waits: bool) -> BorrowedMemo<'_> {
        let mut rooms = self.rooms.lock();
        loop {
            match rooms.memos.insert(room.id.clone(), Slot::Lent) {
                Some(Slot::Lent) if waits => self.returned.wait(&mut rooms),
                Some(Slot::Lent) => return BorrowedMemo { memo: Self::private(room), home: None },
                Some(Slot::Here { memo, bytes, .. }) => {
                    rooms.bytes -= bytes;
                    let home = Some((self, room.id.clone()));
                    return BorrowedMemo { memo: rooms.checked(memo, room), home };
                }
                None => {
                    let memo = Box::new(Memo::of(room, rooms.reduced_in_all()));
                    return BorrowedMemo { memo, home: Some((self, room.id.clone())) };
                }
            }
        }
    }

    /// A new memo that is not kept.
    pub(super) fn private(room: &Room) -> Box<Memo> {
        Box::new(Memo::of(room, 0))
    }

    /// Notes that these payloads were reduced by an erasure.
    pub(crate) fn reduced(&self, offsets: impl Iterator<Item = Offset>) {
        let mut rooms = self.rooms.lock();
        rooms.reduced.extend(offsets);
        while rooms.reduced.len() > limits::RESOLUTION_REDUCED {
            rooms.reduced.pop_front();
            rooms.reduced_before += 1;
        }
    }
}

impl Rooms {
    fn reduced_in_all(&self) -> u64 {
        self.reduced_before + self.reduced.len() as u64
    }

    /// The memo, or a new one if it is of another room, or an event that it uses was reduced.
    fn checked(&self, mut memo: Box<Memo>, room: &Room) -> Box<Memo> {
        let in_all = self.reduced_in_all();
        let news = memo.reduced.checked_sub(self.reduced_before);
        let rests_on = |offset: &Offset| memo.records.contains_key(&offset.get());
        let is_good = memo.created == room.created
            && news
                .and_then(|news| usize::try_from(news).ok())
                .is_some_and(|news| !self.reduced.iter().skip(news).any(rests_on));
        if !is_good {
            return Box::new(Memo::of(room, in_all));
        }
        memo.reduced = in_all;
        memo
    }

    /// Drops the least recently used memos, but not `newest`, which a decision is about to need.
    /// However large that is, the others keep half of the space.
    fn make_space(&mut self, newest: &RoomId, its_bytes: usize) {
        let most = limits::RESOLUTION_MEMO_BYTES;
        let for_others = most.saturating_sub(its_bytes).max(most / 2);
        while self.bytes.saturating_sub(its_bytes) > for_others {
            let here = self.memos.iter().filter_map(|(room_id, slot)| match slot {
                Slot::Here { used, bytes, .. } if *room_id != *newest => {
                    Some((*used, *bytes, room_id))
                }
                _ => None,
            });
            let Some((_, bytes, oldest)) = here.min_by_key(|(used, ..)| *used) else { return };
            let oldest = oldest.clone();
            self.memos.remove(&oldest);
            self.bytes -= bytes;
        }
    }
}

/// A memo in exclusive use, returned when dropped.
#[derive(Debug)]
pub(super) struct BorrowedMemo<'a> {
    memo: Box<Memo>,
    home: Option<(&'a Memos, OwnedRoomId)>,
}

impl BorrowedMemo<'_> {
    /// One that is not kept.
    pub(super) fn private(room: &Room) -> Self {
        Self { memo: Memos::private(room), home: None }
    }
}

impl std::ops::Deref for BorrowedMemo<'_> {
    type Target = Memo;

    fn deref(&self) -> &Memo {
        &self.memo
    }
}

impl std::ops::DerefMut for BorrowedMemo<'_> {
    fn deref_mut(&mut self) -> &mut Memo {
        &mut self.memo
    }
}

impl Drop for BorrowedMemo<'_> {
    fn drop(&mut self) {
        let Some((memos, room_id)) = self.home.take() else { return };
        let memo = std::mem::take(&mut self.memo);
        let bytes = memo.bytes();
        let mut rooms = memos.rooms.lock();
        // After a panic, it may be inconsistent.
        if std::thread::panicking() {
            rooms.memos.remove(&room_id);
        } else {
            rooms.clock += 1;
            let used = rooms.clock;
            rooms.memos.insert(room_id.clone(), Slot::Here { memo, bytes, used });
            rooms.bytes += bytes;
            rooms.make_space(&room_id, bytes);
        }
        drop(rooms);
        memos.returned.notify_all();
    }
}
