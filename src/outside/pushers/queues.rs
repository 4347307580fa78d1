//! The notifications to send, in memory: positions in the log, from which everything else follows.

use std::collections::{HashMap, VecDeque};

use logcabin_base::limits;
use logcabin_record::{Offset, pusher::PusherAdvance};

/// The subject of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Event,
    /// A lower unread count.
    Count,
}

/// A notification to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The record.
    pub(super) offset: Offset,
    /// The record's time, in milliseconds since the Unix epoch.
    pub(super) time_ms: u64,
    pub(super) what: Subject,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Whether it is being worked on.
    at_work: bool,
    /// The count that was sent last, if it is known.
    unread: Option<u64>,
}

/// The queue of each pusher that was notified since the start, by the record that it was first set
/// with.
#[derive(Debug, Default)]
pub(super) struct Queues(HashMap<Offset, Queue>);

/// The result of adding a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Added {
    /// Whether work on the queue has to be started.
    pub(super) begin: bool,
    /// Whether an older notification was dropped for it.
    pub(super) full: bool,
}

impl Queues {
    /// Adds to the queue of a pusher.
    pub(super) fn add(&mut self, pusher: Offset, item: Item) -> Added {
        let queue = self.0.entry(pusher).or_default();
        // The count is sent once, however often it changed.
        let is_repeated = item.what == Subject::Count
            && queue.items.iter().skip(1).any(|i| i.what == Subject::Count);
        let full = !is_repeated && queue.items.len() >= limits::PUSH_QUEUE;
        if full {
            // The first may be in progress.
            queue.items.remove(1);
        }
        if !is_repeated {
            queue.items.push_back(item);
        }
        let begin = !queue.at_work && !queue.items.is_empty();
        queue.at_work |= begin;
        Added { begin, full }
    }

    /// The next notification. If there is none, nobody works on the queue any more.
    pub(super) fn next(&mut self, pusher: Offset) -> Option<Item> {
        let queue = self.0.get_mut(&pusher)?;
        let next = queue.items.front().copied();
        queue.at_work = next.is_some();
        next
    }

    /// It was sent, or is no longer necessary.
    pub(super) fn done(&mut self, pusher: Offset, item: Item) {
        if let Some(queue) = self.0.get_mut(&pusher)
            && queue.items.front() == Some(&item)
        {
            queue.items.pop_front();
            if queue.items.is_empty() {
                queue.items.shrink_to(0);
            }
        }
    }

    /// How many notifications wait, and the first record that one of them is about.
    pub(super) fn waiting(&self) -> (usize, Option<Offset>) {
        let count = self.0.values().map(|queue| queue.items.len()).sum();
        let firsts = self.0.values().filter_map(|queue| queue.items.front());
        (count, firsts.map(|item| item.offset).min())
    }

    /// Forgets a pusher that is gone.
    pub(super) fn forget(&mut self, pusher: Offset) {
        self.0.remove(&pusher);
    }

    /// Forgets all pushers except those in `there`.
    pub(super) fn keep(&mut self, there: impl Fn(Offset) -> bool) {
        self.0.retain(|pusher, _| there(*pusher));
    }

    /// The count that was sent last.
    pub(super) fn unread(&self, pusher: Offset) -> Option<u64> {
        self.0.get(&pusher)?.unread
    }

    /// Remembers the count that was sent.
    pub(super) fn set_unread(&mut self, pusher: Offset, unread: u64) {
        if let Some(queue) = self.0.get_mut(&pusher) {
            queue.unread = Some(unread);
        }
    }

    /// The positions of all pushers, if everything up to `read` was queued.
    pub(super) fn told(&self, read: Offset) -> PusherAdvance {
        let mut behind: Vec<(Offset, Offset)> = self
            .0
            .iter()
            .filter_map(|(pusher, queue)| {
                // A count is not sent again after a restart.
                let first = queue.items.iter().find(|item| item.what == Subject::Event)?;
                Some((*pusher, first.offset.prev()))
            })
            .collect();
        behind.sort_unstable_by_key(|(pusher, told)| (*told, *pusher));
        // If too many lag, the one that lags least stands for the others.
        let done = behind.get(limits::PUSH_BEHIND).map_or(read, |(_, told)| *told);
        behind.truncate(limits::PUSH_BEHIND);
        behind.sort_unstable();
        PusherAdvance { done, behind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(offset: u64, what: Subject) -> Item {
        Item { offset: Offset::new(offset), time_ms: offset, what }
    }

    #[test]
    fn one_is_at_work_until_there_is_nothing_left() {
        let (mut queues, pusher) = (Queues::default(), Offset::new(1));
        let (one, two) = (item(5, Subject::Event), item(6, Subject::Event));
        assert!(queues.add(pusher, one).begin);
        assert!(!queues.add(pusher, two).begin);
        assert_eq!(queues.next(pusher), Some(one));
        queues.done(pusher, one);
        // Confirming twice is the same as once.
        queues.done(pusher, one);
        assert_eq!(queues.next(pusher), Some(two));
        queues.done(pusher, two);
        assert_eq!(queues.next(pusher), None);
        assert!(queues.add(pusher, item(7, Subject::Event)).begin);
    }

    #[test]
    fn a_full_queue_gives_up_the_oldest_that_is_not_under_way() {
        let (mut queues, pusher) = (Queues::default(), Offset::new(1));
        for offset in 1..=limits::PUSH_QUEUE as u64 {
            assert!(!queues.add(pusher, item(offset, Subject::Event)).full);
        }
        assert!(queues.add(pusher, item(9_999, Subject::Event)).full);
        let first = queues.next(pusher).unwrap();
        queues.done(pusher, first);
        let second = queues.next(pusher).unwrap();
        assert_eq!((first.offset.get(), second.offset.get()), (1, 3));
    }

    #[test]
    fn one_who_reads_while_the_gateway_is_away_loses_no_notification() {
        let (mut queues, pusher) = (Queues::default(), Offset::new(1));
        queues.add(pusher, item(1, Subject::Event));
        queues.add(pusher, item(2, Subject::Count));
        for offset in 3..=limits::PUSH_QUEUE as u64 {
            queues.add(pusher, item(offset, Subject::Event));
        }
        assert!(!queues.add(pusher, item(10_000, Subject::Count)).full);
        assert_eq!(queues.0[&pusher].items.len(), limits::PUSH_QUEUE);
    }

    #[test]
    fn pushers_that_are_gone_are_forgotten() {
        let mut queues = Queues::default();
        let (here, gone) = (Offset::new(1), Offset::new(2));
        for pusher in [here, gone] {
            queues.add(pusher, item(5, Subject::Event));
        }
        queues.keep(|pusher| pusher == here);
        assert_eq!((queues.0.len(), queues.next(gone)), (1, None));
    }

    #[test]
    fn those_that_are_behind_are_named_and_too_many_hold_all_back() {
        let mut queues = Queues::default();
        let most = limits::PUSH_BEHIND as u64;
        queues.add(Offset::new(1), item(50, Subject::Event));
        queues.add(Offset::new(1), item(70, Subject::Event));
        let one = (Offset::new(1), Offset::new(49));
        let expected = PusherAdvance { done: Offset::new(90), behind: vec![one] };
        assert_eq!(queues.told(Offset::new(90)), expected);
        for pusher in 0..most {
            queues.add(Offset::new(1000 + pusher), item(60 + pusher, Subject::Event));
        }
        let told = queues.told(Offset::new(999_999));
        assert_eq!(told.behind.len(), limits::PUSH_BEHIND);
        assert_eq!((told.behind[0], told.done.get()), (one, 60 + most - 2));
        let next = queues.next(Offset::new(1)).unwrap();
        queues.done(Offset::new(1), next);
        assert_eq!(queues.told(Offset::new(9)).behind[0].1.get(), 69);
    }
}
