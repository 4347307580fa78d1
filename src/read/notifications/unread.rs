//! A user's unread notifications in a room (client-server API, "Receiving notifications", "Threaded
//! read receipts").
//!
//! The counts are a function of user, room and offset. Of the [`limits::UNREAD_EVENTS`] newest
//! events of the room as of the offset, those count that
//!
//! - came after the user joined and after their read receipts at that offset,
//! - were not redacted by then, and
//! - notify under the rules of their own time.
//!
//! With more unread events than that, the counts are a lower bound. A message of the user's own
//! marks its conversation as read up to itself.
//!
//! An event that stops counting never counts again. So the counts are a projection that is computed
//! on demand, cached (across restarts, too: see [`stored`]) and updated with new events.

mod entries;
mod stored;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use ruma::{OwnedRoomId, OwnedUserId, UserId};

use self::entries::{Entries, Entry};
pub use self::stored::CountsError;
pub use self::stored::written_at;
use super::Judge;
use crate::events::{EventRef, EventStore};
use logcabin_base::{
    background::lock_at_length,
    limits,
    metrics::{CacheName, metrics},
};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{
    Membership, Room, State,
    reads::{Covers, Thread},
};

/// Bytes of the cache of counts.
const KEPT_BYTES: u64 = 32 * 1024 * 1024;

/// How many events are read from the log at a time.
const CHUNK: usize = 256;

/// An unread event that notifies a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadEvent {
    pub offset: Offset,
    pub highlight: bool,
}

/// The unread notifications of one conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many events notify.
    pub notifications: u64,
    /// How many of them are highlighted.
    pub highlights: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.notifications += other.notifications;
        self.highlights += other.highlights;
    }
}

/// The unread notifications of a room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Outside of threads.
    pub main: Count,
    /// In each thread that has any, by the offset of the thread's root.
    pub threads: BTreeMap<Offset, Count>,
}

impl Counts {
    /// The sum for the room.
    pub fn total(&self) -> Count {
        let mut total = self.main;
        self.threads.values().for_each(|count| total += *count);
        total
    }

    fn add(&mut self, entry: &Entry) {
        let count = match entry.thread {
            Thread::Main => &mut self.main,
            Thread::Root(root) => self.threads.entry(root).or_default(),
        };
        count.notifications += 1;
        count.highlights += u64::from(entry.highlight);
    }

    /// Reverses [`Counts::add`].
    fn take(&mut self, entry: &Entry) {
        let count = match entry.thread {
            Thread::Main => &mut self.main,
            Thread::Root(root) => self.threads.entry(root).or_default(),
        };
        count.notifications = count.notifications.saturating_sub(1);
        count.highlights = count.highlights.saturating_sub(u64::from(entry.highlight));
        if let Thread::Root(root) = entry.thread
            && *count == Count::default()
        {
            self.threads.remove(&root);
        }
    }
}

/// The cached counts, by user and room. The cache is bounded; evicted counts are computed again.
pub struct Unread(Cache<(OwnedUserId, OwnedRoomId), CacheEntry, BySize>);

impl std::fmt::Debug for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unread").field("kept_bytes", &self.0.weight()).finish()
    }
}

impl Default for Unread {
    fn default() -> Self {
        Self(Cache::with_weighter(4096, KEPT_BYTES, BySize))
    }
}

impl Unread {
    /// The counts of `user_id` in `room` as of `at`; zero for a user who is not joined then.
    pub fn counts(
        &self,
        state: &State,
        events: &EventStore,
        user_id: &UserId,
        room: &Room,
        at: Offset,
    ) -> Result<Counts, ReadError> {
        let judge = Judge { state, events, user_id, room };
        self.look(judge, at, |memo, at| memo.counts(room, at))
    }

    /// The number of unread notifications of `user_id` as of `at` in all joined rooms.
    pub fn of_user(
        &self,
        state: &State,
        events: &EventStore,
        user_id: &UserId,
        at: Offset,
    ) -> Result<u64, ReadError> {
        let mut unread = 0;
        for part in state.memberships.of(user_id, at) {
            if part.membership == Membership::Join
                && let Some(room) = state.rooms.get(&part.room_id)
            {
                unread += self.counts(state, events, user_id, &room, at)?.total().notifications;
            }
        }
        Ok(unread)
    }

    /// Whether the counts as of `at` may differ from those as of `since`: if the user read, wrote,
    /// or was notified in between. It costs no more than the counts as of `at`.
    pub fn changed(&self, judge: Judge<'_>, since: Offset, at: Offset) -> Result<bool, ReadError> {
        let Judge { state, user_id, room, .. } = judge;
        let moved = || state.reads.look(user_id, &room.id, |marks| marks.moved(since, at));
        let too_old = |at| room.before_last(limits::UNREAD_EVENTS, at);
        if moved().is_some()
            || !room.redacted_between(since, at).is_empty()
            || too_old(since) != too_old(at)
        {
            return Ok(true);
        }
        if room.events_forward(since, at, 1).is_empty() {
            return Ok(false);
        }
        self.look(judge, at, |memo, at| {
            let new = room.event_count(since)..room.event_count(at);
            memo.entries.range(new).next().is_some() || (memo.wrote > since && memo.wrote <= at)
        })
    }

    /// How many events must be evaluated for the counts as of `at`: those since the counts were
    /// last known. If no more than `few` are unread, it returns their number, which is cheaper to
    /// compute.
    pub fn distance(
        &self,
        state: &State,
        user_id: &UserId,
        room: &Room,
        at: Offset,
        few: usize,
    ) -> usize {
        let Some(joined) = room.joined_since(user_id, at) else { return 0 };
        let all_read = state.reads.look(user_id, &room.id, |marks| marks.at(Covers::All, at));
        let too_old = room.before_last(limits::UNREAD_EVENTS, at);
        let from = joined.max(all_read).max(too_old);
        let after = |offset| room.event_count(at).saturating_sub(room.event_count(offset));
        let unread = after(from);
        if unread <= few {
            return unread;
        }
        let kept = self.0.get(&(user_id.to_owned(), room.id.clone()));
        let mut known = Offset::ZERO;
        if let Some(kept) = kept {
            // Another thread is counting: the distance is unknown.
            let Some(memo) = kept.memo.try_lock() else { return usize::MAX };
            if memo.fits(room, joined, state.generation(), at) {
                known = memo.to;
            }
        }
        after(known.max(from))
    }

    /// Whether the user has read `event`, which notified them, as of `at`.
    pub fn has_read(
        &self,
        judge: Judge<'_>,
        event: &EventRef,
        at: Offset,
    ) -> Result<bool, ReadError> {
        let Judge { user_id, room, .. } = judge;
        let joined = room.joined_since(user_id, at);
        let too_old = room.before_last(limits::UNREAD_EVENTS, at);
        if joined.is_some_and(|joined| event.offset > joined.max(too_old)) {
            let after = room.event_count(event.offset);
            let unread = |memo: &Memo, _| {
                memo.entries.range(after.saturating_sub(1)..after).next().is_some()
            };
            return self.look(judge, at, unread).map(|unread| !unread);
        }
        // It is not among the counted events: a receipt decides.
        let thread = judge.thread(event)?;
        let read = judge.state.reads.look(user_id, &room.id, |marks| marks.read_up_to(thread, at));
        Ok(event.offset <= read)
    }

    /// The events of a room after `after` that count as unread as of `at`, oldest first.
    pub fn events(
        &self,
        judge: Judge<'_>,
        after: Offset,
        at: Offset,
    ) -> Result<Vec<UnreadEvent>, ReadError> {
        self.look(judge, at, |memo, at| {
            let room = judge.room;
            let event = |entry: Entry| {
                let offset = room.nth_event(entry.index)?;
                Some(UnreadEvent { offset, highlight: entry.highlight })
            };
            let new = room.event_count(after)..room.event_count(at);
            memo.entries.range(new).filter_map(event).collect()
        })
    }

    fn look<T: Default>(
        &self,
        judge: Judge<'_>,
        at: Offset,
        look: impl FnOnce(&Memo, Offset) -> T,
    ) -> Result<T, ReadError> {
        let Some(joined) = judge.room.joined_since(judge.user_id, at) else {
            return Ok(T::default());
        };
        let key = (judge.user_id.to_owned(), judge.room.id.clone());
        let kept = self.0.get(&key);
        metrics().looked_up(CacheName::Unread, kept.is_some());
        let kept = kept.unwrap_or_default();
        let mut memo = lock_at_length(&kept.memo);
        let generation = judge.state.generation();
        let fits = memo.fits(judge.room, joined, generation, at);
        if !fits && at < memo.to {
            // A request for an earlier offset must not discard the work for later ones.
            let mut earlier = Memo::begin(joined, generation);
            earlier.go_on(judge, at)?;
            return Ok(look(&earlier, at));
        }
        if !fits {
            *memo = Memo::begin(joined, generation);
        }
        if memo.to < at {
            // Taken out, so that a failure starts over.
            let mut next = std::mem::take(&mut *memo);
            next.go_on(judge, at)?;
            *memo = next;
            let bytes = memo.bytes();
            if kept.bytes != bytes {
                // It is new or has changed its size, so the cache must be told.
                self.0.insert(key, CacheEntry { bytes, memo: Arc::clone(&kept.memo) });
            }
        }
        Ok(look(&memo, at))
    }
}

#[derive(Clone, Debug, Default)]
struct CacheEntry {
    memo: Arc<Mutex<Memo>>,
    /// Its approximate size in bytes when it was put into the cache.
    bytes: u64,
}

impl CacheEntry {
    fn new(memo: Memo) -> Self {
        Self { bytes: memo.bytes(), memo: Arc::new(Mutex::new(memo)) }
    }
}

#[derive(Clone)]
struct BySize;

impl Weighter<(OwnedUserId, OwnedRoomId), CacheEntry> for BySize {
    fn weight(&self, _: &(OwnedUserId, OwnedRoomId), kept: &CacheEntry) -> u64 {
        kept.bytes
    }
}

/// The state of a count.
#[derive(Debug, Default)]
struct Memo {
    /// When the user joined.
    joined: Offset,
    /// The generation of the projections: see [`State::generation`].
    generation: u64,
    /// The entries are valid for each offset from here…
    from: Offset,
    /// …to here.
    to: Offset,
    /// The unread events that notify, oldest first.
    entries: Entries,
    /// Their number.
    counts: Counts,
    /// The last message by the user up to `to`.
    wrote: Offset,
}

impl Memo {
    fn begin(joined: Offset, generation: u64) -> Self {
        Self { joined, generation, ..Self::default() }
    }

    /// Its approximate size in memory, in bytes.
    fn bytes(&self) -> u64 {
        (256 + self.entries.bytes() + 64 * self.counts.threads.len()) as u64
    }

    /// Whether the cached entries can be used as of `at`.
    fn fits(&self, room: &Room, joined: Offset, generation: u64, at: Offset) -> bool {
        let is_same = self.joined == joined && self.generation == generation;
        // Erased events may have been counted.
        is_same && self.from <= at && room.erased() <= self.to
    }

    /// The counts as of an offset for which the entries are valid.
    fn counts(&self, room: &Room, at: Offset) -> Counts {
        if at == self.to {
            return self.counts.clone();
        }
        let mut counts = Counts::default();
        self.entries.range(0..room.event_count(at)).for_each(|entry| counts.add(&entry));
        counts
    }

    /// Advances to `at`.
    fn go_on(&mut self, judge: Judge<'_>, at: Offset) -> Result<(), ReadError> {
        let Judge { state, events, user_id, room } = judge;
        let read_up_to =
            |thread| state.reads.look(user_id, &room.id, |marks| marks.read_up_to(thread, at));
        let (all_read, moved) = state
            .reads
            .look(user_id, &room.id, |marks| (marks.at(Covers::All, at), marks.moved(self.to, at)));
        let first = self.to == Offset::ZERO;
        let too_old = room.before_last(limits::UNREAD_EVENTS, at);

        // Entries that are removed below existed as of earlier offsets.
        let mut from = if first { at } else { self.from };
        let mut gone = BTreeSet::new();
        for (redaction, target) in room.redacted_between(self.to.max(self.joined), at) {
            from = from.max(redaction);
            gone.insert(target);
        }
        let index = |offset| room.event_count(offset).saturating_sub(1);
        let gone_indexes: BTreeSet<_> =
            gone.iter().filter(|offset| room.has_event(**offset)).map(|of| index(*of)).collect();
        if let Some(moved) = moved {
            from = from.max(moved);
        }
        if !gone.is_empty() || moved.is_some() {
            let mut read = BTreeMap::new();
            for thread in self.entries.iter().map(|entry| entry.thread) {
                read.entry(thread).or_insert_with(|| room.event_count(read_up_to(thread)));
            }
            let is_read =
                |entry: &Entry| read.get(&entry.thread).is_some_and(|of| entry.index < *of);
            self.take(|entry| gone_indexes.contains(&entry.index) || is_read(entry));
        }
        let old = room.event_count(too_old);
        if too_old > self.to || self.entries.first().is_some_and(|first| first < old) {
            from = at;
            self.take(|entry| entry.index < old);
        }

        let mut position = self.to.max(self.joined).max(all_read).max(too_old);
        loop {
            let (before, offsets) = room.events_after(position, at, CHUNK);
            for (index, offset) in (before..).zip(&offsets) {
                position = *offset;
                let Some(event) = events.get(*offset)? else { continue };
                if event.sender == user_id {
                    // Sending state, such as a new name in every room, does not mean reading.
                    if event.state_key.is_none() {
                        let thread = judge.thread(&event)?;
                        from = from.max(*offset);
                        self.wrote = *offset;
                        self.take(|entry| entry.thread == thread);
                    }
                    continue;
                }
                if gone.contains(offset) {
                    continue;
                }
                let Some(outcome) = judge.outcome(&event)?.filter(|outcome| outcome.notify) else {
                    continue;
                };
                let thread = judge.thread(&event)?;
                if *offset > read_up_to(thread) {
                    let highlight = outcome.highlight;
                    let entry = Entry { index, thread, highlight };
                    self.counts.add(&entry);
                    self.entries.push(entry);
                }
            }
            if offsets.len() < CHUNK {
                break;
            }
        }
        self.from = from;
        self.to = at;
        Ok(())
    }

    fn take(&mut self, gone: impl Fn(&Entry) -> bool) {
        for entry in self.entries.take(gone) {
            self.counts.take(&entry);
        }
    }
}
