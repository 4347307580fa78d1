//! Which events of a room can expire, and when.

use super::{Inner, Room};
use crate::lifetimes::{RetentionClass, RoomRetention};
use logcabin_record::Offset;

impl Room {
    /// The lifetimes of events according to the room's state.
    pub fn lifetime(&self) -> RoomRetention {
        self.inner.read().lifetime()
    }

    /// Up to `limit` events of this type up to and including `until`, oldest first, that can
    /// expire.
    pub fn messages(&self, event_type: &str, until: Offset, limit: usize) -> Vec<Offset> {
        let inner = self.inner.read();
        let all = inner.messages.get(event_type).into_iter().flatten().copied();
        all.take_while(|offset| *offset <= until).take(limit).collect()
    }

    /// The types of the events that can expire.
    pub fn message_types(&self) -> Vec<Box<str>> {
        self.inner.read().messages.keys().cloned().collect()
    }

    /// The oldest event of each type.
    pub(super) fn oldest(&self) -> Vec<(RetentionClass, Offset)> {
        let inner = self.inner.read();
        let own = inner.lifetime();
        let oldest = inner.messages.iter().filter_map(|(event_type, offsets)| {
            Some((RetentionClass { own, event_type: event_type.clone() }, *offsets.first()?))
        });
        oldest.collect()
    }
}

impl Inner {
    pub(crate) fn lifetime(&self) -> RoomRetention {
        self.lifetimes.iter().flatten().next().map(|(_, own)| *own).unwrap_or_default()
    }
}
