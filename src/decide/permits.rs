//! Permits: remembered results of a room's authorisation rules.
//!
//! Whether a user may send an event that is no state, of a type without rules of its own, depends
//! on three state events alone: the room's creation, its power levels, and the sender's membership
//! (room version 11, "Authorization rules"). So one result holds for all further events of this
//! sender and type until one of the three changes, and has another offset then.

use std::sync::Arc;

use quick_cache::sync::Cache;
use ruma::{OwnedEventId, events::TimelineEventType};

use logcabin_record::Offset;

/// How many permits are kept, of some hundred bytes each.
const PERMITS: usize = 4096;

/// What a permit depends on. The membership identifies the room and the sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) create: Offset,
    /// The power levels; none before they are set.
    pub(super) levels: Option<Offset>,
    pub(super) member: Offset,
    pub(super) event_type: TimelineEventType,
}

/// Whether the rules of some room version look at more of events of this type.
pub(super) const fn has_own_rules(event_type: &TimelineEventType) -> bool {
    matches!(
        event_type,
        TimelineEventType::RoomCreate
            | TimelineEventType::RoomMember
            | TimelineEventType::RoomPowerLevels
            | TimelineEventType::RoomRedaction
            | TimelineEventType::RoomThirdPartyInvite
    )
}

/// The permits that were given last, each with the ids of the events that authorise it.
#[derive(Debug)]
pub struct Permits(Cache<Key, Arc<[OwnedEventId]>>);

impl Default for Permits {
    fn default() -> Self {
        Self(Cache::new(PERMITS))
    }
}

impl Permits {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<[OwnedEventId]>> {
        self.0.get(key)
    }

    pub(super) fn give(&self, key: Key, auth_events: &[OwnedEventId]) {
        self.0.insert(key, auth_events.into());
    }
}
