//! What changed in a room, and when.

use std::collections::HashSet;

use ruma::events::StateEventType;

use super::Room;
use crate::record::Offset;

impl Room {
    /// Whether the public directory listed the room as of `at`.
    #[must_use]
    pub fn was_public(&self, at: Offset) -> bool {
        self.inner.read().public.at(at).is_some_and(|(_, public)| *public)
    }

    /// When the room entered and left the public directory, up to and including `at`.
    #[must_use]
    pub fn public_changes(&self, at: Offset) -> Vec<Offset> {
        let inner = self.inner.read();
        inner.public.between(Offset::ZERO, at).map(|(offset, _)| offset).collect()
    }

    /// The types and state keys of the state that changed after `since`, up to and including `to`:
    /// at most `most`, those that changed last before the others. The cost is proportional to the
    /// changes.
    #[must_use]
    pub fn changed_keys(
        &self,
        since: Offset,
        to: Offset,
        most: usize,
    ) -> Vec<(StateEventType, String)> {
        let inner = self.inner.read();
        let from = inner.state_log.partition_point(|(offset, _)| *offset <= since);
        let end = inner.state_log.partition_point(|(offset, _)| *offset <= to).max(from);
        let mut seen = HashSet::new();
        let changes = inner.state_log.get(from..end).unwrap_or_default().iter().rev();
        changes
            .filter(|(_, key)| seen.insert(*key))
            .filter_map(|(_, key)| inner.keys.get(*key as usize))
            .map(|(event_type, state_key)| (event_type.clone(), state_key.to_string()))
            .take(most)
            .collect()
    }
}
