//! An index of the children of events that have many, by relation type and sender, so that queries
//! cost about the same however many there are.
//!
//! It is derived from the children and the redactions, and is not in snapshots.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
};

use ruma::{OwnedUserId, UserId};

use super::Child;
use logcabin_record::Offset;

/// The least number of children of an indexed parent. Fewer are scanned.
pub(super) const MANY: usize = 64;

/// The index.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By parent and relation type.
    kinds: BTreeMap<Offset, BTreeMap<u32, ChildrenOfType>>,
    /// By child.
    parents: BTreeMap<Offset, (Offset, u32, u32)>,
}

/// The children of one parent with one relation type.
#[derive(Debug, Default)]
struct ChildrenOfType {
    /// Those that are not redacted, oldest first.
    live: Vec<Offset>,
    /// The same by sender.
    by_sender: BTreeMap<u32, Vec<Offset>>,
    /// The redacted ones, in the order of their redactions.
    gone: Vec<RedactedChild>,
    /// The newest, redacted or not.
    newest: Offset,
}

#[derive(Debug)]
struct RedactedChild {
    redaction: Offset,
    child: Offset,
    sender: u32,
}

impl Index {
    pub(super) fn has(&self, parent: Offset) -> bool {
        self.kinds.contains_key(&parent)
    }

    /// Adds a child that is newer than all others. A child that is redacted already comes with its
    /// redaction.
    pub(super) fn add(
        &mut self,
        parent: Offset,
        child: Offset,
        rel_type: u32,
        sender: u32,
        redaction: Option<Offset>,
    ) {
        let kind = self.kinds.entry(parent).or_default().entry(rel_type).or_default();
        kind.newest = child;
        self.parents.insert(child, (parent, rel_type, sender));
        match redaction {
            Some(redaction) => {
                let at = kind.gone.partition_point(|gone| gone.redaction < redaction);
                kind.gone.insert(at, RedactedChild { redaction, child, sender });
            }
            None => {
                kind.live.push(child);
                kind.by_sender.entry(sender).or_default().push(child);
            }
        }
    }

    pub(super) fn redact(&mut self, child: Offset, redaction: Offset) {
        let Some((parent, rel_type, sender)) = self.parents.get(&child) else { return };
        let kinds = self.kinds.get_mut(parent);
        let Some(kind) = kinds.and_then(|kinds| kinds.get_mut(rel_type)) else { return };
        take(&mut kind.live, child);
        if let Entry::Occupied(mut of_sender) = kind.by_sender.entry(*sender) {
            take(of_sender.get_mut(), child);
            if of_sender.get().is_empty() {
                of_sender.remove();
            }
        }
        let at = kind.gone.partition_point(|gone| gone.redaction <= redaction);
        kind.gone.insert(at, RedactedChild { redaction, child, sender: *sender });
    }

    /// The newest child of `parent` with this relation type, redacted or not.
    pub(super) fn newest(&self, parent: Offset, rel_type: u32) -> Option<Offset> {
        Some(self.kinds.get(&parent)?.get(&rel_type)?.newest)
    }

    /// The children of `parent` with this relation type, of one sender or of all, that were not
    /// redacted as of `at`.
    pub(super) fn kin(
        &self,
        parent: Offset,
        rel_type: u32,
        sender: Option<u32>,
        at: Offset,
    ) -> Children<'_> {
        let Some(kind) = self.kinds.get(&parent).and_then(|kinds| kinds.get(&rel_type)) else {
            return Children::default();
        };
        let live = match sender {
            None => &kind.live,
            Some(sender) => match kind.by_sender.get(&sender) {
                Some(live) => live,
                None => const { &Vec::new() },
            },
        };
        let later = kind.gone.partition_point(|gone| gone.redaction <= at);
        let later = kind.gone[later..].iter();
        let later = later.filter(|gone| sender.is_none_or(|sender| sender == gone.sender));
        let mut since: Vec<Offset> = later.map(|gone| gone.child).collect();
        since.sort_unstable();
        Children { live: Cow::Borrowed(live), since }
    }

    /// The senders of children of `parent` with this relation type that are not redacted.
    pub(super) fn senders(&self, parent: Offset, rel_type: u32) -> impl Iterator<Item = u32> {
        let kind = self.kinds.get(&parent).and_then(|kinds| kinds.get(&rel_type));
        kind.into_iter().flat_map(|kind| kind.by_sender.keys().copied())
    }

    /// The relation types of children of `parent`.
    pub(super) fn rel_types(&self, parent: Offset) -> impl Iterator<Item = u32> {
        self.kinds.get(&parent).into_iter().flat_map(|kinds| kinds.keys().copied())
    }
}

fn take(offsets: &mut Vec<Offset>, offset: Offset) {
    if let Ok(at) = offsets.binary_search(&offset) {
        offsets.remove(at);
    }
}

/// Children of one parent as of some offset.
#[derive(Debug, Default)]
pub(super) struct Children<'a> {
    live: Cow<'a, [Offset]>,
    /// Those that were redacted later, oldest first. As of the present there are few or none.
    since: Vec<Offset>,
}

impl Children<'_> {
    /// These children, of a parent that is not indexed.
    pub(super) fn few(children: impl Iterator<Item = Offset>) -> Self {
        Self { live: children.collect(), since: Vec::new() }
    }

    /// How many there are after `after`, up to and including `to`.
    pub(super) fn count(&self, after: Offset, to: Offset) -> usize {
        let count = |offsets: &[Offset]| {
            let up_to = |offset| offsets.partition_point(|of| *of <= offset);
            up_to(to).saturating_sub(up_to(after))
        };
        count(&self.live) + count(&self.since)
    }

    /// Those up to and including `to` and after `after`, newest first.
    pub(super) fn back(&self, after: Offset, to: Offset) -> impl Iterator<Item = Offset> {
        let up_to = |offsets: &[Offset]| offsets.partition_point(|of| *of <= to);
        let (mut live, mut since) = (up_to(&self.live), up_to(&self.since));
        std::iter::from_fn(move || {
            let one = live.checked_sub(1).and_then(|at| self.live.get(at));
            let other = since.checked_sub(1).and_then(|at| self.since.get(at));
            let next = one.max(other).copied().filter(|offset| *offset > after)?;
            if one == Some(&next) {
                live -= 1
            } else {
                since -= 1
            }
            Some(next)
        })
    }

    /// Those after `after`, up to and including `to`, oldest first.
    pub(super) fn forward(&self, after: Offset, to: Offset) -> impl Iterator<Item = Offset> {
        let up_to = |offsets: &[Offset]| offsets.partition_point(|of| *of <= after);
        let (mut live, mut since) = (up_to(&self.live), up_to(&self.since));
        std::iter::from_fn(move || {
            let (one, other) = (self.live.get(live), self.since.get(since));
            let next = match (one, other) {
                (Some(one), Some(other)) => one.min(other),
                (one, other) => one.or(other)?,
            };
            let next = Some(*next).filter(|offset| *offset <= to)?;
            if one == Some(&next) {
                live += 1
            } else {
                since += 1
            }
            Some(next)
        })
    }
}

/// A query for the children that are visible to a user.
#[derive(Clone, Copy, Debug)]
pub struct ChildQuery<'a> {
    /// The visible ranges of the timeline, oldest first: each after an offset, up to and including
    /// another.
    pub stretches: &'a [(Offset, Offset)],
    /// The ignored senders.
    pub without: &'a BTreeSet<OwnedUserId>,
    /// As of this offset.
    pub at: Offset,
}

impl ChildQuery<'_> {
    /// Everything that is not redacted.
    pub const EVERYTHING: Self = ChildQuery {
        stretches: &[(Offset::ZERO, Offset::MAX)],
        without: &BTreeSet::new(),
        at: Offset::MAX,
    };

    pub(super) fn count(&self, kin: &Children<'_>) -> usize {
        self.stretches.iter().map(|(after, to)| kin.count(*after, *to)).sum()
    }

    pub(super) fn back(&self, kin: &Children<'_>) -> impl Iterator<Item = Offset> {
        self.stretches.iter().rev().flat_map(|(after, to)| kin.back(*after, *to))
    }

    pub(super) fn leaves_out(&self, child: &Child) -> bool {
        let sender = <&UserId>::try_from(&*child.sender);
        !self.without.is_empty() && sender.map_or(true, |sender| self.without.contains(sender))
    }

    /// Whether this offset is in one of the ranges.
    pub fn holds(&self, child: Offset) -> bool {
        let after = self.stretches.partition_point(|(after, _)| *after < child);
        after
            .checked_sub(1)
            .and_then(|at| self.stretches.get(at))
            .is_some_and(|(_, to)| child <= *to)
    }
}
