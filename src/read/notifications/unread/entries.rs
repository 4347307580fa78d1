//! The unread events of a memo: a bit for each event of a stretch of the room's timeline, so that
//! thousands of them take less than a kilobyte.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use serde::{Deserialize, Serialize};

use logcabin_record::Offset;
use logcabin_state::reads::Thread;

/// An unread event that notifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its index in the room's timeline.
    pub(super) index: usize,
    pub(super) thread: Thread,
    pub(super) highlight: bool,
}

/// Unread events that notify, in the order of the timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entries {
    /// The index of the first bit.
    first: usize,
    notifying: VecDeque<u64>,
    /// Up to the last one that is highlighted.
    highlighted: VecDeque<u64>,
    /// The roots of those in threads, by their indexes.
    roots: BTreeMap<usize, Offset>,
}

impl Entries {
    /// Adds an entry after all others.
    pub(super) fn push(&mut self, Entry { index, thread, highlight }: Entry) {
        if self.notifying.is_empty() {
            *self = Self { first: index, ..Self::default() };
        }
        let (word, bit) = ((index - self.first) / 64, 1 << ((index - self.first) % 64));
        set(&mut self.notifying, word, bit);
        if highlight {
            set(&mut self.highlighted, word, bit);
        }
        if let Thread::Root(root) = thread {
            self.roots.insert(index, root);
        }
    }

    /// The entries with these indexes.
    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = Entry> {
        let from = range.start.saturating_sub(self.first) / 64;
        let words = self.notifying.iter().enumerate().skip(from);
        let words = words.take_while(move |(word, _)| self.first + 64 * word < range.end);
        let entries = words.flat_map(move |(word, bits)| {
            let highlighted = self.highlighted.get(word).copied().unwrap_or_default();
            let is_set = move |bit: &usize| bits >> bit & 1 == 1;
            (0..64).filter(is_set).map(move |bit| self.entry(64 * word + bit, highlighted >> bit))
        });
        let is_in = move |entry: &Entry| range.contains(&entry.index);
        entries.filter(is_in)
    }

    fn entry(&self, bit: usize, highlighted: u64) -> Entry {
        let index = self.first + bit;
        let thread = self.roots.get(&index).map_or(Thread::Main, |root| Thread::Root(*root));
        Entry { index, thread, highlight: highlighted & 1 == 1 }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.range(0..usize::MAX)
    }

    /// The index of the first entry.
    pub(super) fn first(&self) -> Option<usize> {
        self.iter().next().map(|entry| entry.index)
    }

    /// Takes the entries out for which this holds.
    pub(super) fn take(&mut self, gone: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        let taken: Vec<_> = self.iter().filter(gone).collect();
        for Entry { index, .. } in &taken {
            let (word, bit) = ((index - self.first) / 64, 1 << ((index - self.first) % 64));
            for bits in [&mut self.notifying, &mut self.highlighted] {
                if let Some(bits) = bits.get_mut(word) {
                    *bits &= !bit;
                }
            }
            self.roots.remove(index);
        }
        while self.notifying.front() == Some(&0) {
            self.notifying.pop_front();
            self.highlighted.pop_front();
            self.first += 64;
        }
        for bits in [&mut self.notifying, &mut self.highlighted] {
            while bits.back() == Some(&0) {
                bits.pop_back();
            }
            if bits.capacity() > 8.max(4 * bits.len()) {
                bits.shrink_to_fit();
            }
        }
        taken
    }

    /// Its approximate size in bytes, without itself.
    pub(super) fn bytes(&self) -> usize {
        8 * (self.notifying.capacity() + self.highlighted.capacity()) + 32 * self.roots.len()
    }
}

fn set(bits: &mut VecDeque<u64>, word: usize, bit: u64) {
    if bits.len() <= word {
        // They are few: no need to double them.
        if bits.capacity() <= word {
            bits.reserve_exact(word + 8 - bits.len());
        }
        bits.resize(word + 1, 0);
    }
    if let Some(bits) = bits.get_mut(word) {
        *bits |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_a_list_of_entries(
            steps in prop::collection::vec((1..200_usize, 0..4_u64, any::<bool>(), 0..6_usize), 0..60)
        ) {
            let (mut entries, mut model, mut index) = (Entries::default(), Vec::new(), 7);
            for (ahead, root, highlight, remove) in steps {
                index += ahead;
                let root = (root > 0).then(|| Thread::Root(Offset::new(root)));
                let entry = Entry { index, thread: root.unwrap_or(Thread::Main), highlight };
                entries.push(entry);
                model.push(entry);
                let gone = |entry: &Entry| match remove {
                    0 => entry.index + 100 < index,
                    1 => entry.thread == Thread::Main,
                    2 => entry.index.is_multiple_of(3),
                    _ => false,
                };
                let taken: Vec<_> = model.iter().filter(|entry| gone(entry)).copied().collect();
                model.retain(|entry| !gone(entry));
                prop_assert_eq!(entries.take(gone), taken);
                prop_assert_eq!(entries.iter().collect::<Vec<_>>(), &model[..]);
                prop_assert_eq!(entries.first(), model.first().map(|entry| entry.index));
                let middle = 100..index;
                let some: Vec<_> =
                    model.iter().filter(|entry| middle.contains(&entry.index)).copied().collect();
                prop_assert_eq!(entries.range(middle).collect::<Vec<_>>(), some);
            }
        }
    }

    #[test]
    fn five_thousand_take_less_than_a_kilobyte() {
        let mut entries = Entries::default();
        for index in 100_000..105_000 {
            entries.push(Entry { index, thread: Thread::Main, highlight: index == 100_100 });
        }
        entries.take(|_| false);
        assert_eq!(entries.iter().count(), 5000);
        assert!(entries.bytes() <= 1024, "{}", entries.bytes());
    }
}
