//! Tracks which member events a device already has, to omit redundant ones (client-server API,
//! "Lazy-loading room members").
//!
//! A device has a member event once it comes back with a `since` at or after the response that
//! contained it. A device that comes back with an older `since` has lost later responses, and they
//! are forgotten here, too. All of this is in memory only: after a restart or an eviction, a device
//! is sent members that it may already have, which is allowed.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};

use logcabin_base::background::lock_at_length;
use logcabin_record::Offset;

/// The known members of all devices. The cache is bounded; the least recently used are evicted.
#[derive(Debug)]
pub struct KnownMembers(Cache<Offset, CacheEntry, ByWeight>);

/// The members that one session of a device was sent.
#[derive(Debug, Default)]
pub(super) struct SentMembers {
    /// Member event → the position of the response that contained it.
    sent: HashMap<Offset, Offset>,
    newest: Offset,
    /// Room, by its creation → the position of the response in which the device started over with
    /// it. It may have discarded what it knew of the room before.
    begun: HashMap<Offset, Offset>,
    /// The `since` of its last request.
    since: Offset,
}

#[derive(Clone, Debug)]
struct CacheEntry {
    device: Arc<Mutex<SentMembers>>,
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

impl KnownMembers {
    /// A cache of about this many bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Cache::with_weighter(1024, bytes, ByWeight))
    }

    /// What the device of this session knows when it syncs from `since`.
    pub(super) fn of(&self, session: Offset, since: Option<Offset>) -> Arc<Mutex<SentMembers>> {
        let known = self.0.get(&session).map_or_else(Arc::default, |kept| kept.device);
        lock_at_length(&known).forget_after(since.unwrap_or(Offset::ZERO));
        known
    }

    /// Stores what a device was sent.
    pub(super) fn keep(&self, session: Offset, device: Arc<Mutex<SentMembers>>) {
        // The size of an entry in the map, and of a device without entries.
        let inner = lock_at_length(&device);
        let weight = (inner.sent.len() + inner.begun.len()) as u64 * 24 + 192;
        drop(inner);
        self.0.insert(session, CacheEntry { device, weight });
    }
}

impl SentMembers {
    /// Whether the device has this member event of the room that was created at `room`.
    pub(super) fn has(&self, room: Offset, member: Offset) -> bool {
        let begun = self.begun.get(&room).copied().unwrap_or_default();
        self.sent.get(&member).is_some_and(|position| *position >= begun)
    }

    /// Records that the device starts over with a room in the response at `position`.
    pub(super) fn begin(&mut self, room: Offset, position: Offset) {
        self.begun.insert(room, position);
    }

    /// Records that the response at `position` contains this member event. Not for a response that
    /// does not advance the position (to `full_state`, for example): whether it arrived could not
    /// be told.
    pub(super) fn note(&mut self, member: Offset, position: Offset) {
        if position > self.since {
            self.sent.insert(member, position);
            self.newest = self.newest.max(position);
        }
    }

    fn forget_after(&mut self, since: Offset) {
        self.since = since;
        if self.newest > since {
            self.sent.retain(|_, position| *position <= since);
            self.newest = since;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_known_once_the_device_comes_back_with_the_response_that_held_it() {
        let known = KnownMembers::new(1 << 20);
        let (session, room, member) = (Offset::new(1), Offset::new(3), Offset::new(5));
        let sent = |since: u64, position: u64| {
            let device = known.of(session, Some(Offset::new(since)));
            let mut inner = device.lock();
            let had = inner.has(room, member);
            inner.note(member, Offset::new(position));
            drop(inner);
            known.keep(session, device);
            had
        };
        assert!(!sent(10, 20));
        assert!(!sent(10, 21), "the first response was lost");
        assert!(sent(21, 30));
        assert!(!sent(15, 31), "the device was set back to what it had before");
        assert!(known.of(session, Some(Offset::new(31))).lock().has(room, member));
        assert!(sent(31, 31), "a response that leads to where the device is already");
        assert!(!sent(15, 15));
        assert!(!sent(15, 15), "the same, and it was lost");
        assert!(!sent(31, 40), "it was set back");
        known.of(session, Some(Offset::new(40))).lock().begin(room, Offset::new(50));
        assert!(!sent(40, 50), "the device left the room and came back");
        assert!(sent(50, 60));
        assert!(!known.of(session, None).lock().has(room, member), "an initial sync starts over");
    }

    #[test]
    fn the_memory_is_bounded() {
        let known = KnownMembers::new(10_000);
        for session in 1..=1000 {
            let device = known.of(Offset::new(session), None);
            for member in 1..=10 {
                device.lock().note(Offset::new(member), Offset::new(2));
            }
            known.keep(Offset::new(session), device);
        }
        assert!(known.0.weight() <= 10_000);
    }
}
