//! Events that could not be placed when they arrived, because others could not be asked for what
//! they come after, or for keys. Their senders do not send them again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use ruma::{EventId, OwnedEventId, OwnedServerName, ServerName};
use serde_json::value::RawValue;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::Site;
use logcabin_base::limits;

/// The events that are to be tried again, in the order in which they arrived.
#[derive(Default)]
pub(crate) struct UnplacedEvents {
    all: Mutex<Vec<Unplaced>>,
    changed: Notify,
}

struct Unplaced {
    origin: OwnedServerName,
    site: Site,
    event_id: OwnedEventId,
    pdu: Box<RawValue>,
    /// When it is tried next, and how often it was tried again.
    next: Instant,
    tries: u32,
    is_tried: bool,
}

/// An event while it is tried again. Unless it is settled, it is tried once more later.
pub(crate) struct Trial {
    unplaced: Arc<UnplacedEvents>,
    pub(crate) origin: OwnedServerName,
    pub(crate) event_id: OwnedEventId,
    pub(crate) pdu: Box<RawValue>,
    /// It was placed, or never will be.
    pub(crate) is_settled: bool,
}

/// The pause before an event is tried again, if it was tried so often.
fn pause(tries: u32) -> Duration {
    let (first, longest) = limits::UNPLACED_RETRY;
    longest.min(first * 2_u32.saturating_pow(tries))
}

impl UnplacedEvents {
    /// Keeps an event of a homeserver until it is tried again. False if it is known already, or
    /// there are too many.
    pub(crate) fn keep(
        &self,
        origin: &ServerName,
        event_id: &EventId,
        pdu: &RawValue,
        now: Instant,
    ) -> bool {
        let (site, mut all) = (Site::of(origin), self.all.lock());
        if all.iter().any(|kept| *kept.event_id == *event_id && *kept.origin == *origin) {
            return false;
        }
        let size = |(events, bytes), kept: &Unplaced| (events + 1, bytes + kept.pdu.get().len());
        let fits = |(events, bytes): (usize, usize), most: (usize, usize)| {
            events < most.0 && bytes + pdu.get().len() <= most.1
        };
        let of_site = all.iter().filter(|kept| kept.site == site).fold((0, 0), size);
        if !fits(of_site, limits::UNPLACED_OF_SITE) {
            return false;
        }
        while !fits(all.iter().fold((0, 0), size), limits::UNPLACED_IN_ALL) {
            // Sites that have many give way to those that have few.
            let mut counts = HashMap::<&Site, usize>::new();
            all.iter().for_each(|kept| *counts.entry(&kept.site).or_default() += 1);
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            let Some((most, count)) = most else { return false };
            let newest = all.iter().rposition(|kept| kept.site == *most && !kept.is_tried);
            match newest {
                Some(newest) if count > of_site.0 + 1 => drop(all.remove(newest)),
                _ => return false,
            }
        }
        all.push(Unplaced {
            origin: origin.to_owned(),
            site,
            event_id: event_id.to_owned(),
            pdu: pdu.to_owned(),
            next: now + pause(0),
            tries: 0,
            is_tried: false,
        });
        drop(all);
        self.changed.notify_one();
        true
    }

    /// Waits until an event is due. Those of one site are tried one after the other, so that one
    /// that does not answer delays no others.
    pub(crate) async fn due(self: &Arc<Self>) -> Trial {
        loop {
            let next = match self.take_due(Instant::now()) {
                Ok(trial) => return trial,
                Err(next) => next,
            };
            let changed = self.changed.notified();
            match next {
                Some(next) => tokio::select! {
                    () = sleep_until(next) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// The event that has been due for the longest time, or else when one will be.
    fn take_due(self: &Arc<Self>, now: Instant) -> Result<Trial, Option<Instant>> {
        let mut all = self.all.lock();
        let tried: Vec<_> = all.iter().filter(|event| event.is_tried).map(|of| &of.site).collect();
        let is_free = |at: &usize| !tried.contains(&&all[*at].site);
        let first = (0..all.len()).filter(is_free).min_by_key(|at| all[*at].next).ok_or(None)?;
        let event = &mut all[first];
        if event.next > now {
            return Err(Some(event.next));
        }
        event.is_tried = true;
        let (origin, event_id) = (event.origin.clone(), event.event_id.clone());
        let (unplaced, pdu) = (Arc::clone(self), event.pdu.clone());
        Ok(Trial { unplaced, origin, event_id, pdu, is_settled: false })
    }

    fn tried(&self, origin: &ServerName, event_id: &EventId, is_settled: bool, now: Instant) {
        let mut all = self.all.lock();
        let is_it = |kept: &Unplaced| *kept.event_id == *event_id && *kept.origin == *origin;
        if let Some(event) = all.iter_mut().find(|kept| is_it(kept)) {
            event.is_tried = false;
            event.tries += 1;
            event.next = now + pause(event.tries);
        }
        all.retain(|kept| !is_it(kept) || (!is_settled && kept.tries < limits::UNPLACED_TRIES));
        drop(all);
        self.changed.notify_one();
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.unplaced.tried(&self.origin, &self.event_id, self.is_settled, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use ruma::{event_id, server_name};

    use super::*;

    const FIRST: Duration = limits::UNPLACED_RETRY.0;

    fn pdu(length: usize) -> Box<RawValue> {
        RawValue::from_string(format!("{{\"body\":\"{}\"}}", "x".repeat(length))).unwrap()
    }

    fn id(number: usize) -> OwnedEventId {
        format!("${number}").try_into().unwrap()
    }

    fn due(unplaced: &Arc<UnplacedEvents>, now: Instant) -> Trial {
        unplaced.take_due(now).expect("an event is due")
    }

    /// Ends a trial at a time.
    fn end(trial: Trial, is_settled: bool, now: Instant) {
        let unplaced = Arc::clone(&trial.unplaced);
        unplaced.tried(&trial.origin, &trial.event_id, is_settled, now);
        std::mem::forget(trial);
    }

    #[test]
    fn an_event_is_due_after_growing_pauses_until_it_is_settled_or_given_up() {
        let (unplaced, origin) = (Arc::<UnplacedEvents>::default(), server_name!("a.org"));
        let (one, two, mut now) = (event_id!("$one"), event_id!("$two"), Instant::now());
        assert!(unplaced.keep(origin, one, &pdu(1), now));
        assert!(!unplaced.keep(origin, one, &pdu(1), now), "it is known");
        assert_eq!(unplaced.take_due(now).err(), Some(Some(now + FIRST)));
        now += FIRST;
        let trial = due(&unplaced, now);
        assert_eq!(unplaced.take_due(now).err(), Some(None), "it is being tried");
        end(trial, false, now);
        assert_eq!(unplaced.take_due(now).err(), Some(Some(now + FIRST * 2)));
        // Another event has pauses of its own.
        assert!(unplaced.keep(origin, two, &pdu(1), now));
        now += FIRST;
        let trial = due(&unplaced, now);
        assert_eq!(trial.event_id, two);
        end(trial, true, now);
        let mut tries = 1;
        while !unplaced.all.lock().is_empty() {
            now += limits::UNPLACED_RETRY.1;
            end(due(&unplaced, now), false, now);
            tries += 1;
        }
        assert_eq!(tries, limits::UNPLACED_TRIES);
    }

    #[test]
    fn events_of_one_site_are_tried_one_after_the_other() {
        let (unplaced, now) = (Arc::<UnplacedEvents>::default(), Instant::now());
        let names =
            ["a.spam.org", "b.spam.org", "good.org"].map(|name| ServerName::parse(name).unwrap());
        for (number, name) in names.iter().enumerate() {
            let arrived = now + Duration::from_millis(number as u64);
            assert!(unplaced.keep(name, &id(number), &pdu(1), arrived));
        }
        let later = now + FIRST * 2;
        let (first, other) = (due(&unplaced, later), due(&unplaced, later));
        assert_eq!((&first.origin, &other.origin), (&names[0], &names[2]));
        assert_eq!(unplaced.take_due(later).err(), Some(None));
        // A trial that is interrupted ends as one without an outcome does.
        drop(first);
        assert_eq!(due(&unplaced, later).origin, names[1]);
    }

    #[test]
    fn sites_that_have_many_give_way_to_those_that_have_few() {
        let (unplaced, now) = (Arc::<UnplacedEvents>::default(), Instant::now());
        let (of_site, in_all) = (limits::UNPLACED_OF_SITE.0, limits::UNPLACED_IN_ALL.0);
        let names = [server_name!("a.spam.org"), server_name!("b.spam.org")];
        for number in 0..of_site {
            assert!(unplaced.keep(names[number % 2], &id(number), &pdu(1), now));
        }
        assert!(!unplaced.keep(names[0], &id(of_site), &pdu(1), now));
        for number in of_site..in_all {
            let origin = ServerName::parse(format!("s{}.org", number / of_site)).unwrap();
            assert!(unplaced.keep(&origin, &id(number), &pdu(1), now));
        }
        let good = server_name!("good.org");
        for number in 0..of_site / 2 {
            assert!(unplaced.keep(good, &id(in_all + number), &pdu(1), now));
            assert_eq!(unplaced.all.lock().len(), in_all);
        }
        assert!(!unplaced.keep(good, &id(2 * in_all), &pdu(limits::UNPLACED_OF_SITE.1), now));
        let all = unplaced.all.lock();
        assert_eq!(all.iter().filter(|kept| *kept.origin == *good).count(), of_site / 2);
    }
}
