//! A value with its history: what it was as of any offset.

use serde::{Deserialize, Serialize};

use logcabin_record::Offset;

/// The values of something, each with the offset of the record that set it.
///
/// Offsets only grow, so a read *as of* an offset is a binary search, and applying newer records
/// does not disturb a reader at an older offset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History<T>(Vec<(Offset, T)>);

impl<T> Default for History<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> History<T> {
    /// Records that the value became `value` at `offset`.
    pub(super) fn push(&mut self, offset: Offset, value: T) {
        debug_assert!(self.0.last().is_none_or(|(last, _)| *last <= offset));
        if self.0.is_empty() {
            // Most values never change: a list takes the memory of four when it begins to grow.
            self.0.reserve_exact(1);
        }
        self.0.push((offset, value));
    }

    /// The value as of `at`, with the offset that wrote it.
    pub fn at(&self, at: Offset) -> Option<(Offset, &T)> {
        let after = self.0.partition_point(|(offset, _)| *offset <= at);
        let (offset, value) = self.0.get(after.checked_sub(1)?)?;
        Some((*offset, value))
    }

    /// The newest value.
    pub fn latest(&self) -> Option<&T> {
        self.0.last().map(|(_, value)| value)
    }

    /// Records that a value without history became `value` at `offset`; returns the offset that it
    /// replaces.
    pub(super) fn replace(&mut self, offset: Offset, value: T) -> Option<Offset> {
        let before = self.0.pop().map(|(offset, _)| offset);
        self.push(offset, value);
        before
    }

    /// Removes the changes that `is_kept` rejects, as if they had never existed.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(Offset) -> bool) {
        self.0.retain(|(offset, _)| is_kept(*offset));
    }

    /// The newest value, for in-place changes of facts without history.
    pub(super) fn latest_mut(&mut self) -> Option<&mut T> {
        self.0.last_mut().map(|(_, value)| value)
    }

    /// Every change, oldest first.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = (Offset, &T)> {
        self.0.iter().map(|(offset, value)| (*offset, value))
    }

    /// The changes after `since`, up to and including `to`, oldest first.
    pub fn between(
        &self,
        since: Offset,
        to: Offset,
    ) -> impl DoubleEndedIterator<Item = (Offset, &T)> {
        let from = self.0.partition_point(|(offset, _)| *offset <= since);
        let end = self.0.partition_point(|(offset, _)| *offset <= to).max(from);
        self.0[from..end].iter().map(|(offset, value)| (*offset, value))
    }

    /// The offset of the newest change.
    pub fn last_change(&self) -> Offset {
        self.0.last().map_or(Offset::ZERO, |(offset, _)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_never_changes_takes_no_more_than_itself() {
        let mut history = History::default();
        history.push(Offset::new(1), 'a');
        assert_eq!(history.0.capacity(), 1);
    }

    #[test]
    fn a_value_is_found_as_of_every_offset() {
        let mut history = History::default();
        assert!(history.at(Offset::MAX).is_none());
        history.push(Offset::new(3), 'a');
        history.push(Offset::new(7), 'b');
        let at = |n| history.at(Offset::new(n)).map(|(_, value)| *value);
        assert_eq!(
            [at(0), at(2), at(3), at(6), at(7), at(99)].map(|v| v.unwrap_or('-')),
            ['-', '-', 'a', 'a', 'b', 'b']
        );
        let between = |a, b| history.between(Offset::new(a), Offset::new(b)).count();
        assert_eq!((between(0, 9), between(3, 7), between(3, 6), between(7, 3)), (2, 1, 0, 0));
    }
}
