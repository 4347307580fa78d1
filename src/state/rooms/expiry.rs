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

    /// Up to `limit` of the events that can expire, of any type, between two records, both of which
    /// are not among them. Oldest first.
    pub fn messages_between(&self, after: Offset, before: Offset, limit: usize) -> Vec<Offset> {
        let mut found: Vec<_> = {
            let inner = self.inner.read();
            let of_type = |offsets: &Vec<Offset>| {
                let some = between(offsets, after, before);
                some[..some.len().min(limit)].to_vec()
            };
            inner.messages.values().flat_map(of_type).collect()
        };
        found.sort_unstable();
        found.truncate(limit);
        found
    }

    /// How many events that can expire came before a record.
    pub fn count_messages(&self, before: Offset) -> usize {
        let inner = self.inner.read();
        let counts = inner.messages.values().map(|of| between(of, Offset::ZERO, before).len());
        counts.sum()
    }

    /// Those of these, in ascending order, that are still in the room and can expire.
    pub fn still_messages(&self, events: &[Offset]) -> Vec<Offset> {
        let (Some(first), Some(last)) = (events.first(), events.last()) else { return Vec::new() };
        let there = self.messages_between(first.prev(), last.next(), usize::MAX);
        events.iter().copied().filter(|event| there.binary_search(event).is_ok()).collect()
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

/// Those of these, in ascending order, that are between two records.
fn between(offsets: &[Offset], after: Offset, before: Offset) -> &[Offset] {
    let begin = offsets.partition_point(|offset| *offset <= after);
    let end = offsets.partition_point(|offset| *offset < before);
    offsets.get(begin..end).unwrap_or_default()
}
