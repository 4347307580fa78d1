//! Which of several items a homeserver refuses: a transaction that it refuses is halved until the
//! refused item is alone.

use std::{collections::VecDeque, ops::Range};

/// The items that are still to be sent, in transactions, in order.
#[derive(Debug)]
pub(super) struct Bisection {
    /// Each is one transaction. Together they are all items from the first one on.
    left: VecDeque<Range<usize>>,
    count: usize,
}

impl Bisection {
    /// Of items for which `fits` tells how many of those from an index on fit into a transaction.
    pub(super) fn new(count: usize, fits: impl Fn(usize) -> usize) -> Self {
        let mut left = VecDeque::new();
        let mut next = 0;
        while next < count {
            let end = next.saturating_add(fits(next).max(1)).min(count);
            left.push_back(next..end);
            next = end;
        }
        Self { left, count }
    }

    /// The items of the next transaction.
    pub(super) fn next(&self) -> Option<Range<usize>> {
        self.left.front().cloned()
    }

    /// The items before this one are done with.
    pub(super) fn done(&self) -> usize {
        self.left.front().map_or(self.count, |part| part.start)
    }

    /// The next transaction has arrived, or its only item is set aside.
    pub(super) fn pass(&mut self) {
        self.left.pop_front();
    }

    /// Halves the next transaction, which was refused. It has more than one item.
    pub(super) fn halve(&mut self) {
        let Some(part) = self.left.pop_front() else { return };
        let middle = part.start + part.len().div_ceil(2);
        if middle < part.end {
            self.left.push_front(middle..part.end);
        }
        self.left.push_front(part.start..middle);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What a homeserver gets that refuses each transaction with one of these items, how many
    /// transactions it is sent, and what is set aside.
    fn deliver(
        count: usize,
        fits: usize,
        refused: &BTreeSet<usize>,
    ) -> (Vec<usize>, usize, Vec<usize>) {
        let (mut told, mut sent, mut aside) = (Vec::new(), 0, Vec::new());
        let mut parts = Bisection::new(count, |_| fits);
        while let Some(part) = parts.next() {
            assert_eq!(parts.done(), part.start);
            assert!(!part.is_empty() && part.len() <= fits.max(1), "{part:?}");
            sent += 1;
            if part.clone().any(|item| refused.contains(&item)) {
                if part.len() == 1 {
                    aside.push(part.start);
                    parts.pass();
                } else {
                    parts.halve();
                }
            } else {
                told.extend(part);
                parts.pass();
            }
        }
        assert_eq!(parts.done(), count);
        (told, sent, aside)
    }

    proptest! {
        #[test]
        fn exactly_the_refused_items_are_set_aside_and_the_others_arrive_in_order(
            count in 0_usize..200,
            fits in 0_usize..120,
            refused in prop::collection::btree_set(0_usize..200, 0..20),
        ) {
            let refused: BTreeSet<_> = refused.into_iter().filter(|item| *item < count).collect();
            let (told, sent, aside) = deliver(count, fits, &refused);
            let others: Vec<_> = (0..count).filter(|item| !refused.contains(item)).collect();
            prop_assert_eq!(told, others);
            prop_assert_eq!(aside, refused.iter().copied().collect::<Vec<_>>());
            // Each refused item costs at most two transactions for each halving.
            let halvings = count.next_power_of_two().trailing_zeros() as usize;
            let parts = count.div_ceil(fits.max(1));
            prop_assert!(sent <= parts + refused.len() * 2 * halvings, "{sent}");
        }
    }
}
