//! The pending deliveries of one homeserver.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use ruma::{OwnedRoomId, OwnedServerName};
use tokio::{sync::Notify, time::Instant};

use super::{edus::Edu, pace::Pace};
use logcabin_base::{
    clock::millis,
    limits,
    planted::{self, Fault},
};
use logcabin_record::{
    Offset,
    command::{Failing, Reached, SetAside, SetAsideItem},
};

/// The pending deliveries of one homeserver. An idle one is its number and its rooms.
#[derive(Debug, Default)]
pub(super) struct Destination {
    /// Everything up to this record has been delivered.
    pub(super) up_to: Offset,
    /// The next records to deliver, in order.
    next: VecDeque<Offset>,
    /// The last record that was ever in `next`.
    last: Offset,
    /// The last record that was delivered. Earlier ones may be in `next`.
    told_to: Offset,
    /// Transient EDUs, which are dropped if the homeserver is unreachable: the newest of each key,
    /// oldest first.
    transient: Vec<(String, Edu)>,
    /// It has missed further records, after those in `next`.
    pub(super) is_behind: bool,
    /// Since when there have been such records.
    behind_since: Option<Instant>,
    /// The rooms in which it may have missed something.
    pub(super) rooms: BTreeSet<OwnedRoomId>,
    /// What it may not have processed yet.
    pub(super) pace: Pace,
    /// It was slow to answer last.
    pub(super) is_slow: bool,
    /// It has a task.
    pub(super) is_served: bool,
    pub(super) failing: Option<Failing>,
    /// When it was last noted that it fails, in milliseconds since the Unix epoch.
    failing_noted_ms: u64,
    /// What is never sent to it.
    pub(super) set_aside: SetAside,
    /// Notified when it is likely to be reachable again.
    pub(super) back: Arc<Notify>,
    /// Records up to here are dropped by an operator's order.
    given_up: Offset,
    /// Its position, or whether it fails, has changed since it was last recorded.
    pub(super) is_to_be_noted: bool,
}

/// The next delivery to a homeserver.
pub(super) enum Next {
    /// Find the records that it missed since this offset.
    Missed(Offset),
    /// Send these records, as many as a transaction takes and its pace allows, and the transient
    /// EDUs.
    Records(Vec<Offset>),
}

impl Destination {
    /// A destination with this recorded state.
    pub(super) fn known(up_to: Offset, failing: Option<Failing>, set_aside: SetAside) -> Self {
        Self { up_to, last: up_to, failing, set_aside, ..Self::default() }
    }

    /// Its state as it is recorded.
    pub(super) fn reached(&self, server_name: OwnedServerName) -> Reached {
        let (failing, set_aside) = (self.failing.clone(), self.set_aside.clone());
        Reached { server_name, up_to: self.up_to, failing, set_aside }
    }

    /// A request of it has arrived.
    pub(super) fn is_back(&mut self) {
        if self.failing.is_none() {
            return;
        }
        if self.is_served {
            self.back.notify_one();
        } else {
            self.failing = None;
            self.is_to_be_noted = true;
        }
    }

    /// Notes a record to deliver to it.
    pub(super) fn note(&mut self, offset: Offset) {
        // Later records are found by the catch-up, and earlier ones are here.
        if self.is_behind || offset <= self.last {
            return;
        }
        if self.next.len() < limits::DESTINATION_EVENTS {
            self.next.push_back(offset);
            self.last = offset;
        } else {
            self.is_behind = true;
        }
    }

    /// Adds an EDU, which replaces the one with the same key, unless the homeserver is unreachable.
    /// Returns whether it was added.
    pub(super) fn add_transient(&mut self, key: String, edu: Edu, now_ms: u64) -> bool {
        if self.failing.as_ref().is_some_and(|failing| now_ms < failing.again_ms) {
            return false;
        }
        self.transient.retain(|(other, _)| *other != key);
        if self.transient.len() >= limits::DESTINATION_TRANSIENT {
            self.transient.remove(0);
        }
        self.transient.push((key, edu));
        true
    }

    /// The next delivery. Without one, its task ends.
    pub(super) fn next(&mut self) -> Option<Next> {
        if self.next.is_empty() && std::mem::take(&mut self.is_behind) {
            return Some(Next::Missed(self.last.max(self.up_to)));
        }
        if self.next.is_empty() && self.transient.is_empty() {
            self.is_served = false;
            // It may stay idle for long.
            self.next = VecDeque::new();
            self.transient = Vec::new();
            return None;
        }
        Some(Next::Records(self.next.iter().copied().collect()))
    }

    /// How long it has been behind. Meanwhile, nothing can overtake what is in `next`.
    pub(super) fn is_behind_for(&mut self, now: Instant) -> Duration {
        self.behind_since = self.is_behind.then(|| self.behind_since.unwrap_or(now));
        self.behind_since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    /// Drops everything up to here by an operator's order, unless more was delivered already.
    pub(super) fn give_up(&mut self, up_to: Offset) {
        if self.up_to > up_to {
            return;
        }
        self.up_to = up_to;
        self.given_up = up_to;
        self.last = self.last.max(up_to);
        while self.next.front().is_some_and(|next| *next <= up_to) {
            self.next.pop_front();
        }
        self.failing = None;
        self.set_aside = SetAside::default();
    }

    /// Whether some of these records were dropped.
    pub(super) fn has_given_up(&self, offsets: &[Offset]) -> bool {
        offsets.iter().any(|offset| *offset <= self.given_up)
    }

    /// The transient EDUs, which are sent once.
    pub(super) fn take_transient(&mut self) -> Vec<Edu> {
        std::mem::take(&mut self.transient).into_iter().map(|(_, edu)| edu).collect()
    }

    /// Adds records that it missed, as many as fit.
    pub(super) fn add_missed(&mut self, mut missed: BTreeSet<Offset>) {
        missed.extend(self.next.drain(..));
        if planted::has(Fault::MissedForgotten) {
            missed.pop_first();
        }
        // An operator may have dropped some of them meanwhile.
        missed.retain(|offset| *offset > self.given_up);
        let mut missed: Vec<_> = missed.into_iter().collect();
        self.is_behind |= missed.len() > limits::DESTINATION_EVENTS;
        missed.truncate(limits::DESTINATION_EVENTS);
        self.last = missed.last().copied().unwrap_or_default().max(self.last);
        self.next = missed.into();
    }

    /// Adds records from before it was in a room. What does not fit is left out: no search for
    /// missed records finds them, and none may begin after them.
    pub(super) fn add_beside(&mut self, mut beside: BTreeSet<Offset>) {
        if self.is_behind {
            beside.retain(|offset| *offset <= self.last);
        }
        self.add_missed(beside);
    }

    /// The search for the records missed since this one failed, and is repeated.
    pub(super) fn missed_again(&mut self, since: Offset) {
        self.next.clear();
        self.last = since.max(self.given_up);
        self.is_behind = true;
    }

    /// These records were delivered, or are set aside.
    pub(super) fn told(&mut self, offsets: &[Offset]) {
        let Some(last) = offsets.last() else { return };
        // An operator may have dropped some of them meanwhile, and earlier ones may be new.
        self.next.retain(|next| offsets.binary_search(next).is_err());
        self.told_to = self.told_to.max(*last);
        // Some of a room may wait while others have overtaken them.
        let before_next = self.next.front().map_or(self.told_to, |next| next.prev());
        self.up_to = self.up_to.max(self.told_to.min(before_next));
        self.is_to_be_noted = true;
    }

    /// Notes items that are never sent to it.
    pub(super) fn set_aside(&mut self, items: Vec<SetAsideItem>) {
        self.is_to_be_noted |= !items.is_empty();
        items.into_iter().for_each(|item| self.set_aside.add(item));
    }

    /// It could not be reached, or refuses everything. A homeserver that has failed for long is
    /// noted rarely: there may be thousands of them, and each is tried for ever.
    pub(super) fn fails(&mut self, failing: Failing, now_ms: u64) {
        let rarely_ms = millis(limits::DESTINATION_FAILING_NOTED);
        let is_new = now_ms.saturating_sub(failing.since_ms) < rarely_ms;
        if is_new || now_ms.saturating_sub(self.failing_noted_ms) >= rarely_ms {
            self.failing_noted_ms = now_ms;
            self.is_to_be_noted = true;
        }
        self.failing = Some(failing);
    }

    /// It has taken a transaction.
    pub(super) fn is_reached(&mut self) {
        self.is_to_be_noted |= self.failing.take().is_some();
    }
}

/// The pause before a homeserver is tried again that has failed so often, and for so long. It is
/// found within a tenth of the time for which it was away, but no more than a minute or ten minutes
/// late.
pub(super) fn pause(attempts: u32, failed_for: Duration) -> Duration {
    let [first, of_minutes, of_hours] = limits::DESTINATION_RETRY;
    let longest = (failed_for / 10).clamp(of_minutes, of_hours);
    first.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_found_is_looked_for_from_where_it_was_before() {
        let mut destination = Destination::known(Offset::new(5), None, SetAside::default());
        destination.is_behind = true;
        assert_eq!(told_next(&mut destination), Some(vec![0, 5]));
        destination.note(Offset::new(9));
        destination.missed_again(Offset::new(5));
        assert_eq!(told_next(&mut destination), Some(vec![0, 5]));
        destination.add_missed([7, 9].map(Offset::new).into());
        assert_eq!(told_next(&mut destination), Some(vec![7, 9]));
    }

    #[test]
    fn what_is_given_up_while_it_is_looked_for_is_not_told() {
        let mut destination = Destination::known(Offset::new(5), None, SetAside::default());
        destination.is_behind = true;
        assert_eq!(told_next(&mut destination), Some(vec![0, 5]));
        destination.give_up(Offset::new(8));
        destination.add_missed([7, 8, 9].map(Offset::new).into());
        assert_eq!(told_next(&mut destination), Some(vec![9]));
        assert!(destination.has_given_up(&[Offset::new(8), Offset::new(9)]));
        assert!(!destination.has_given_up(&[Offset::new(9)]));
    }

    #[test]
    fn what_is_added_before_what_is_being_told_stays() {
        let mut destination = Destination::known(Offset::new(5), None, SetAside::default());
        destination.note(Offset::new(9));
        assert_eq!(told_next(&mut destination), Some(vec![9]));
        destination.add_beside([7].map(Offset::new).into());
        destination.told(&[Offset::new(9)]);
        assert_eq!(told_next(&mut destination), Some(vec![7]));
        destination.told(&[Offset::new(7)]);
        assert_eq!((told_next(&mut destination), destination.up_to.get()), (None, 9));
    }

    #[test]
    fn a_search_for_what_was_missed_does_not_begin_after_what_is_added() {
        let mut destination = Destination::known(Offset::new(5), None, SetAside::default());
        destination.add_missed([7, 9].map(Offset::new).into());
        destination.is_behind = true;
        destination.add_beside([8, 50].map(Offset::new).into());
        assert_eq!(told_next(&mut destination), Some(vec![7, 8, 9]));
        destination.told(&[7, 8, 9].map(Offset::new));
        assert_eq!(told_next(&mut destination), Some(vec![0, 9]));
    }

    #[test]
    fn what_waits_while_others_overtake_it_is_not_passed() {
        let mut destination = Destination::known(Offset::new(5), None, SetAside::default());
        (6..=9).for_each(|offset| destination.note(Offset::new(offset)));
        destination.told(&[6, 8].map(Offset::new));
        assert_eq!((told_next(&mut destination), destination.up_to.get()), (Some(vec![7, 9]), 6));
        destination.told(&[9].map(Offset::new));
        assert_eq!((told_next(&mut destination), destination.up_to.get()), (Some(vec![7]), 6));
        destination.told(&[7].map(Offset::new));
        assert_eq!((told_next(&mut destination), destination.up_to.get()), (None, 9));
    }

    #[test]
    fn a_homeserver_that_failed_is_found_soon() {
        let second = Duration::from_secs(1);
        let (mut now, mut attempts, mut pauses) = (Duration::ZERO, 0, Vec::new());
        while now < 48 * 3600 * second {
            attempts += 1;
            let pause = pause(attempts, now);
            assert!(pause <= 10 * 60 * second, "{pause:?} after {now:?}");
            assert!(now > 10 * 60 * second || pause <= 60 * second, "{pause:?} after {now:?}");
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses[..6], [5, 10, 20, 40, 50, 50]);
        assert!(attempts < 48 * 6 * 2, "{attempts} attempts");
    }

    #[test]
    fn one_that_has_failed_for_long_is_noted_rarely() {
        let rarely_ms = millis(limits::DESTINATION_FAILING_NOTED);
        let mut destination = Destination::default();
        let mut noted = |now_ms| {
            let error = String::new();
            let failing = Failing { since_ms: 0, attempts: 1, again_ms: now_ms, error };
            destination.is_to_be_noted = false;
            destination.fails(failing, now_ms);
            destination.is_to_be_noted
        };
        assert!(noted(5) && noted(6) && noted(rarely_ms - 1));
        assert!(!noted(rarely_ms) && !noted(2 * rarely_ms - 2));
        assert!(noted(2 * rarely_ms - 1) && !noted(2 * rarely_ms));
    }

    fn told_next(destination: &mut Destination) -> Option<Vec<u64>> {
        match destination.next()? {
            Next::Missed(since) => Some(vec![0, since.get()]),
            Next::Records(offsets) => Some(offsets.into_iter().map(Offset::get).collect()),
        }
    }

    #[test]
    fn what_does_not_fit_is_found_later_and_nothing_is_told_twice() {
        let most = limits::DESTINATION_EVENTS as u64;
        let mut destination = Destination::known(Offset::new(5), None, SetAside::default());
        for offset in 1..=most + 10 {
            destination.note(Offset::new(5 + offset));
        }
        assert!(destination.is_behind);
        let mut next = 6;
        while let Some(told) = told_next(&mut destination).filter(|told| told[0] != 0) {
            assert_eq!(told[0], next);
            let offsets: Vec<_> = told.iter().copied().map(Offset::new).collect();
            destination.told(&offsets);
            next += told.len() as u64;
        }
        assert_eq!(next, 6 + most, "the first ones");
        // While they are looked up, another one arrives.
        let found = (next..next + most + 1).map(Offset::new);
        destination.note(Offset::new(next + 7));
        destination.add_missed(found.collect());
        assert!(destination.is_behind, "one more than fit");
        destination.note(Offset::new(next + 8));
        destination.note(Offset::new(next + 2 * most));
        let queued: Vec<_> = destination.next.iter().map(|offset| offset.get()).collect();
        assert_eq!(queued, (next..next + most).collect::<Vec<_>>());
    }

    #[test]
    fn the_newest_transient_edus_are_kept_and_only_while_the_homeserver_can_be_reached() {
        let edu = |text: &str| -> Edu { serde_json::value::to_raw_value(text).expect("JSON") };
        let mut destination = Destination::default();
        assert!(destination.next().is_none());
        for number in 0..limits::DESTINATION_TRANSIENT + 2 {
            assert!(destination.add_transient(number.to_string(), edu(&number.to_string()), 0));
        }
        assert!(destination.add_transient("5".to_owned(), edu("again"), 0));
        assert!(matches!(destination.next(), Some(Next::Records(none)) if none.is_empty()));
        let transient = destination.take_transient();
        assert_eq!(transient.len(), limits::DESTINATION_TRANSIENT);
        assert_eq!(transient.first().map(|edu| edu.get()), Some("\"2\""));
        assert_eq!(transient.last().map(|edu| edu.get()), Some("\"again\""));
        assert!(destination.next().is_none());
        let failing = Failing { since_ms: 0, attempts: 1, again_ms: 9, error: String::new() };
        destination.failing = Some(failing);
        assert!(!destination.add_transient("a".to_owned(), edu("a"), 8));
        assert!(destination.add_transient("a".to_owned(), edu("a"), 9));
    }
}
