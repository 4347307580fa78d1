//! Which member events a device already has: what makes lazily loaded members redundant
//! (client-server API, "Lazy-loading room members").
//!
//! A member event counts as known once the device comes back with a `since` at or after the
//! response that held it, for then it has that response. One that comes back with an older `since`
//! lost what was answered later, and that is forgotten here, too. All of this is memory alone: a
//! device that the server knows nothing of (after a restart, or when memory is short) is sent
//! members it may already have, which is allowed.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};

use crate::{base::background::lock_at_length, record::Offset};

/// The memory for all devices, bounded: those not heard of for longest are forgotten.
#[derive(Debug)]
pub struct KnownMembers(Cache<Offset, Kept, ByWeight>);

/// What one session of a device was sent.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// Member event → the position of the response that held it.
    sent: HashMap<Offset, Offset>,
    newest: Offset,
    /// Room, by its creation → the position of the response with which the device began with it
    /// anew. What it knew of the room before, it may have thrown away.
    begun: HashMap<Offset, Offset>,
    /// Where the device was when it asked last.
    since: Offset,
}

#[derive(Clone, Debug)]
struct Kept {
    device: Arc<Mutex<Device>>,
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

impl KnownMembers {
    /// A memory of about this many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(Cache::with_weighter(1024, bytes, ByWeight))
    }

    /// What the device of this session knows when it asks for what is new after `since`.
    pub(super) fn of(&self, session: Offset, since: Option<Offset>) -> Arc<Mutex<Device>> {
        let known = self.0.get(&session).map_or_else(Arc::default, |kept| kept.device);
        lock_at_length(&known).forget_after(since.unwrap_or(Offset::ZERO));
        known
    }

    /// Keeps what was noted of the device.
    pub(super) fn keep(&self, session: Offset, device: Arc<Mutex<Device>>) {
        // What an entry takes in the map, and what a device takes besides.
        let inner = lock_at_length(&device);
        let weight = (inner.sent.len() + inner.begun.len()) as u64 * 24 + 192;
        drop(inner);
        self.0.insert(session, Kept { device, weight });
    }
}

impl Device {
    /// Whether the device has this member event of the room that was created at `room`.
    pub(super) fn has(&self, room: Offset, member: Offset) -> bool {
        let begun = self.begun.get(&room).copied().unwrap_or_default();
        self.sent.get(&member).is_some_and(|position| *position >= begun)
    }

    /// Notes that the device begins with a room anew with the response at `position`.
    pub(super) fn begin(&mut self, room: Offset, position: Offset) {
        self.begun.insert(room, position);
    }

    /// Notes that the response at `position` holds this member event. Not of a response that brings
    /// the device no further (to `full_state`, say): that it arrived could not be told from that it
    /// was lost.
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
        assert!(!known.of(session, None).lock().has(room, member), "an initial sync begins anew");
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
