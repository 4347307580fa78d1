//! The pace at which a homeserver is sent the events of a room.
//!
//! Some homeservers answer a transaction before they have processed its events, which wait in a
//! queue of their room. Synapse drops most events of such a queue when it is long, and its users
//! find them only by reading back. So a homeserver is sent no more events of a room while it may
//! have many that it has not processed. If more wait, it is asked for the last one of them: it has
//! processed what it can answer with. It is not asked about few events: it is assumed to process
//! those in time, one after the other, whatever their rooms.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{EventId, OwnedEventId, OwnedRoomId, RoomId, ServerName};
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::{Sender, is_told};
use crate::federation::{FederationRequest, FederationResponse, Unreachable};
use logcabin_base::{limits, text::encoded};
use logcabin_record::{Command, Offset};

/// What a homeserver may not have processed yet. A room of which it has processed all is not here.
#[derive(Debug, Default)]
pub(super) struct Pace {
    rooms: BTreeMap<OwnedRoomId, InFlight>,
    /// When it is assumed to have processed everything, one event after the other.
    until: Option<Instant>,
    /// When it was asked last, for any room.
    asked: Option<Instant>,
}

/// The events of a room that a homeserver may not have processed yet.
#[derive(Debug)]
struct InFlight {
    events: usize,
    /// When it is assumed to have processed all of them.
    until: Instant,
    /// The last one.
    last: OwnedEventId,
    /// When it was asked last.
    asked: Option<Instant>,
    /// Since when it has said that it does not have the last one.
    missing_since: Option<Instant>,
    /// It does not tell what it has processed.
    is_silent: bool,
}

/// What a homeserver says about an event that it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Processed,
    NotYet,
    /// It gives no answer.
    Unknown,
}

impl Pace {
    /// How many more events of a room it may be sent.
    fn left(&self, room_id: &RoomId, now: Instant) -> usize {
        let (most, _) = limits::ROOM_IN_FLIGHT;
        let of = self.rooms.get(room_id);
        most.saturating_sub(of.map_or(0, |of| of.events(now)))
    }

    /// Whether it may be sent so many events, whatever their rooms.
    fn takes(&self, events: usize, now: Instant) -> bool {
        let (most, _) = limits::ROOM_IN_FLIGHT;
        let in_flight = self.rooms.values().map(|of| of.events(now)).max();
        events.saturating_add(in_flight.unwrap_or(0)) <= most
    }

    /// It was sent an event.
    fn sent(&mut self, room_id: &RoomId, event_id: &EventId, now: Instant) {
        let (_, each) = limits::ROOM_IN_FLIGHT;
        let until = self.until.map_or(now, |until| until.max(now)) + each;
        // What it has confirmed takes no more time.
        let until = until.min(now + each.saturating_mul(self.in_all(now).saturating_add(1)));
        self.until = Some(until);
        let last = event_id.to_owned();
        match self.rooms.get_mut(room_id).filter(|of| of.until > now) {
            Some(of) => (of.events, of.until, of.last) = (of.events + 1, of.until.max(until), last),
            None => {
                let (asked, missing_since, is_silent) = (None, None, false);
                let of = InFlight { events: 1, until, last, asked, missing_since, is_silent };
                self.rooms.insert(room_id.to_owned(), of);
            }
        }
    }

    /// How many it has not processed yet, in all rooms.
    fn in_all(&self, now: Instant) -> u32 {
        let events: usize = self.rooms.values().map(|of| of.events(now)).sum();
        u32::try_from(events).unwrap_or(u32::MAX)
    }

    /// Forgets the rooms of which it has processed all.
    pub(super) fn settle(&mut self, now: Instant) {
        self.rooms.retain(|_, of| of.until > now);
        if self.rooms.is_empty() {
            self.until = None;
        }
    }

    /// The event to ask it for, if more events of these rooms wait, and when.
    fn question(
        &self,
        held: &BTreeSet<OwnedRoomId>,
        now: Instant,
    ) -> (Option<(OwnedRoomId, OwnedEventId)>, Instant) {
        let (pause, _) = limits::ROOM_IN_FLIGHT_ASKED;
        let of = |room_id| self.rooms.get_key_value(room_id);
        let asked = held.iter().filter_map(of).filter(|(_, of)| !of.is_silent);
        let next = asked.min_by_key(|(_, of)| of.asked);
        let question = next.map(|(room_id, of)| (room_id.clone(), of.last.clone()));
        // Without a question, time itself makes room.
        let due = match (&question, self.asked) {
            (None, _) => now + pause,
            (Some(_), None) => now,
            (Some(_), Some(asked)) => asked + pause,
        };
        (question, due)
    }

    /// It was asked for an event.
    fn answered(&mut self, room_id: &RoomId, event_id: &EventId, what: Progress, now: Instant) {
        self.asked = Some(now);
        // How long it takes for all that it has, if it is slow.
        let (most, each) = limits::ROOM_IN_FLIGHT;
        let in_all = each.saturating_mul(self.in_all(now).max(u32::try_from(most).unwrap_or(1)));
        let Some(of) = self.rooms.get_mut(room_id) else { return };
        if of.last != event_id {
            return;
        }
        of.asked = Some(now);
        match what {
            Progress::Processed => {
                self.rooms.remove(room_id);
                self.settle(now);
            }
            Progress::NotYet => {
                let since = *of.missing_since.get_or_insert(now);
                if now.duration_since(since) < limits::ROOM_IN_FLIGHT_PATIENCE.max(in_all) {
                    of.until = of.until.max(now + in_all);
                } else {
                    // Perhaps it never takes it.
                    of.falls_silent(now);
                }
            }
            Progress::Unknown => of.falls_silent(now),
        }
    }
}

impl InFlight {
    /// It does not tell about these: it is assumed to need the usual time, and then asked again
    /// about others.
    fn falls_silent(&mut self, now: Instant) {
        let (_, each) = limits::ROOM_IN_FLIGHT;
        let events = u32::try_from(self.events).unwrap_or(u32::MAX);
        self.until = self.until.min(now + each.saturating_mul(events));
        self.is_silent = true;
    }

    /// How many it has not processed yet, as far as is known.
    fn events(&self, now: Instant) -> usize {
        if self.until > now { self.events } else { 0 }
    }
}

impl Sender {
    /// Those of the next records for a homeserver that it is to be sent now, and the rooms of which
    /// more wait until it has processed what it has.
    pub(super) fn ready(
        &self,
        server: &ServerName,
        mut offsets: Vec<Offset>,
    ) -> (Vec<Offset>, BTreeSet<OwnedRoomId>) {
        let most = limits::TRANSACTION_PDUS + limits::TRANSACTION_EDUS;
        let (now, mut held) = (Instant::now(), BTreeSet::new());
        let mut left: BTreeMap<OwnedRoomId, usize> = {
            let mut all = self.destinations.lock();
            let Some(destination) = all.get_mut(server) else { return (Vec::new(), held) };
            let is_behind_for_long = destination.is_behind_for(now) > limits::ROOM_IN_FLIGHT_BEHIND;
            let pace = &mut destination.pace;
            pace.settle(now);
            if pace.takes(offsets.len(), now) || is_behind_for_long {
                offsets.truncate(most);
                return (offsets, held);
            }
            let rooms = pace.rooms.keys();
            rooms.map(|room_id| (room_id.clone(), pace.left(room_id, now))).collect()
        };
        let (mut ready, mut events) = (Vec::new(), 0);
        for offset in offsets {
            if ready.len() >= most || events >= limits::TRANSACTION_PDUS {
                break;
            }
            // What cannot be read is found when it is sent.
            let event = self.engine.events().get(offset).ok().flatten();
            if let Some(event) = event.filter(|event| is_told(event, server)) {
                let left = match left.get_mut(&event.room_id) {
                    Some(left) => left,
                    None => left.entry(event.room_id.clone()).or_insert(limits::ROOM_IN_FLIGHT.0),
                };
                if *left == 0 {
                    held.insert(event.room_id.clone());
                    continue;
                }
                *left -= 1;
                events += 1;
            } else if !held.is_empty()
                && self.receipt_room(offset).is_some_and(|of| held.contains(&of))
            {
                // Some homeservers ignore receipts for events that they do not have yet.
                continue;
            }
            ready.push(offset);
        }
        (ready, held)
    }

    /// The room of a receipt.
    fn receipt_room(&self, offset: Offset) -> Option<OwnedRoomId> {
        match self.engine.log().get(offset).ok()??.command().ok()?? {
            Command::RoomReceipt(receipt) => Some(receipt.room_id),
            _ => None,
        }
    }

    /// Notes that a homeserver has taken these records.
    pub(super) fn in_flight(&self, server: &ServerName, offsets: &[Offset]) {
        let events = offsets.iter().filter_map(|offset| self.engine.events().get(*offset).ok()?);
        let events: Vec<_> = events.filter(|event| is_told(event, server)).collect();
        let (now, mut all) = (Instant::now(), self.destinations.lock());
        if let Some(destination) = all.get_mut(server) {
            events.iter().for_each(|of| destination.pace.sent(&of.room_id, &of.event_id, now));
        }
    }

    /// Asks a homeserver whether it has processed what it has of one of these rooms. If it was
    /// asked only just, this waits, but only `if_idle`.
    pub(super) async fn confirm(
        &self,
        server: &ServerName,
        held: &BTreeSet<OwnedRoomId>,
        if_idle: bool,
    ) {
        let now = Instant::now();
        let (question, due) = match self.destinations.lock().get(server) {
            Some(destination) => destination.pace.question(held, now),
            None => return,
        };
        if due > now {
            if !if_idle {
                return;
            }
            sleep_until(due).await;
        }
        let Some((room_id, event_id)) = question else { return };
        let what = self.progress(server, &event_id).await;
        let mut all = self.destinations.lock();
        if let Some(destination) = all.get_mut(server) {
            destination.pace.answered(&room_id, &event_id, what, Instant::now());
        }
    }

    /// Whether a homeserver has processed an event that it was sent.
    async fn progress(&self, server: &ServerName, event_id: &EventId) -> Progress {
        let path = format!("/_matrix/federation/v1/event/{}", encoded(event_id.as_str()));
        let mut question = FederationRequest::get(path);
        (_, question.timeout) = limits::ROOM_IN_FLIGHT_ASKED;
        // It cannot be closed.
        let _place = self.places.acquire().await;
        let answer = self.client.send(server, question).await;
        let what = progress(&answer);
        debug!(%server, %event_id, ?what, "a homeserver was asked for an event that it was sent");
        what
    }
}

/// What an answer to the question for an event says.
fn progress(answer: &Result<FederationResponse, Unreachable>) -> Progress {
    let Ok(answer) = answer else { return Progress::Unknown };
    let refused = answer.refused();
    match answer.status.as_u16() {
        // It says that this homeserver may not see it, so it has it.
        200 | 403 => Progress::Processed,
        // It has no queue that it could be asked about.
        404 if refused.is_some_and(|refused| refused.errcode == "M_UNRECOGNIZED") => {
            Progress::Processed
        }
        404 => Progress::NotYet,
        _ => Progress::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use ruma::{event_id, room_id};

    use super::*;
    use crate::federation::AnswerBody;

    const MOST: usize = limits::ROOM_IN_FLIGHT.0;

    /// A homeserver that was sent so many events of `!busy`, the last one `$last`.
    fn busy(events: usize, now: Instant) -> Pace {
        let mut pace = Pace::default();
        for number in 1..=events {
            let id = if number == events { event_id!("$last") } else { event_id!("$other") };
            pace.sent(room_id!("!busy"), id, now);
        }
        pace
    }

    fn held() -> BTreeSet<OwnedRoomId> {
        [room_id!("!busy").to_owned()].into()
    }

    fn answered(pace: &mut Pace, what: Progress, now: Instant) {
        pace.answered(room_id!("!busy"), event_id!("$last"), what, now);
    }

    #[test]
    fn few_events_are_not_held_and_no_question_is_asked() {
        let now = Instant::now();
        let mut pace = busy(MOST - 1, now);
        assert!(pace.takes(1, now) && !pace.takes(2, now));
        assert_eq!(pace.left(room_id!("!busy"), now), 1);
        assert_eq!(pace.left(room_id!("!calm"), now), MOST);
        // After the time that it takes for them, it counts as having processed them.
        let later = now + limits::ROOM_IN_FLIGHT.1 * u32::try_from(MOST - 1).expect("few");
        assert_eq!(pace.left(room_id!("!busy"), later - Duration::from_millis(1)), 1);
        assert!(pace.takes(MOST, later));
        pace.settle(later);
        assert!(pace.rooms.is_empty());
        assert_eq!(pace.question(&held(), later).0, None);
    }

    #[test]
    fn no_more_is_in_flight_until_the_last_event_is_confirmed() {
        let now = Instant::now();
        let mut pace = busy(MOST, now);
        assert_eq!(pace.left(room_id!("!busy"), now), 0);
        assert_eq!(pace.left(room_id!("!calm"), now), MOST);
        let asked = (room_id!("!busy").to_owned(), event_id!("$last").to_owned());
        assert_eq!(pace.question(&held(), now), (Some(asked.clone()), now), "at once");
        let soon = now + Duration::from_millis(900);
        answered(&mut pace, Progress::NotYet, soon);
        assert_eq!(pace.left(room_id!("!busy"), soon), 0, "time alone does not count");
        let again = soon + limits::ROOM_IN_FLIGHT_ASKED.0;
        assert_eq!(pace.question(&held(), soon), (Some(asked), again));
        // An answer about an earlier event says nothing.
        pace.answered(room_id!("!busy"), event_id!("$other"), Progress::Processed, again);
        assert!(pace.left(room_id!("!busy"), again) < MOST);
        answered(&mut pace, Progress::Processed, again);
        assert_eq!(pace.left(room_id!("!busy"), again), MOST);
    }

    #[test]
    fn one_that_does_not_tell_is_sent_more_after_a_time() {
        let (now, each) = (Instant::now(), limits::ROOM_IN_FLIGHT.1);
        let whole = each * u32::try_from(MOST).expect("few");
        let mut silent = busy(MOST, now);
        answered(&mut silent, Progress::Unknown, now);
        let mut never = busy(MOST, now);
        answered(&mut never, Progress::NotYet, now);
        let end = now + limits::ROOM_IN_FLIGHT_PATIENCE;
        answered(&mut never, Progress::NotYet, end - each);
        assert!(never.question(&held(), end).0.is_some());
        answered(&mut never, Progress::NotYet, end);
        for (pace, now) in [(silent, now), (never, end)] {
            let (question, due) = pace.question(&held(), now);
            assert_eq!(question, None);
            assert!(due > now, "or it would look without a pause");
            assert_eq!(pace.left(room_id!("!busy"), now), 0);
            assert_eq!(pace.left(room_id!("!busy"), now + whole), MOST);
        }
    }

    #[test]
    fn many_busy_rooms_share_the_time_of_the_homeserver() {
        let (start, each) = (Instant::now(), limits::ROOM_IN_FLIGHT.1);
        let rooms: Vec<_> = (0..20).map(|number| format!("!room{number}")).collect();
        let rooms: Vec<_> =
            rooms.iter().map(|id| <&RoomId>::try_from(&**id).expect("id")).collect();
        // It takes one event after the other, as fast as this server assumes, and this server
        // sends twice as fast.
        let (mut pace, mut now, mut sent) = (Pace::default(), start, 0_u32);
        for _ in 0..MOST {
            for room_id in &rooms {
                pace.sent(room_id, event_id!("$last"), now);
                sent += 1;
                now += each / 2;
            }
        }
        for room_id in &rooms {
            // The first one or two were over before there was a queue.
            assert!(pace.left(room_id, now) < 3, "{sent} sent, half of them processed");
        }
        let held: BTreeSet<_> = rooms.iter().map(|room_id| (*room_id).to_owned()).collect();
        // Each is asked about in turn, and none is given up or passed before all could be done.
        let end = start + each * sent + each * sent / 3;
        while now < end {
            let (question, due) = pace.question(&held, now);
            let (room_id, event_id) = question.expect("a question");
            now = due.max(now);
            pace.answered(&room_id, &event_id, Progress::NotYet, now);
            assert!(rooms.iter().all(|room_id| pace.left(room_id, now) < 3));
        }
    }

    #[test]
    fn what_was_confirmed_of_one_room_holds_back_no_other() {
        let (mut now, each) = (Instant::now(), limits::ROOM_IN_FLIGHT.1);
        let mut pace = busy(MOST, now);
        // All of this is confirmed, in far less time than is assumed, while another room goes on.
        for _ in 0..100 {
            answered(&mut pace, Progress::Processed, now);
            pace.sent(room_id!("!other"), event_id!("$b"), now);
            pace.answered(room_id!("!other"), event_id!("$b"), Progress::Processed, now);
            pace.sent(room_id!("!other"), event_id!("$c"), now);
            for _ in 0..MOST {
                pace.sent(room_id!("!busy"), event_id!("$last"), now);
            }
            now += each;
        }
        assert_eq!(pace.left(room_id!("!busy"), now), 0);
        answered(&mut pace, Progress::Unknown, now);
        let whole = each * u32::try_from(MOST).expect("few");
        assert_eq!(pace.left(room_id!("!busy"), now + whole), MOST);
    }

    #[test]
    fn rooms_are_asked_about_in_turn() {
        let now = Instant::now();
        let mut pace = busy(MOST, now);
        pace.sent(room_id!("!loud"), event_id!("$loud"), now);
        let held: BTreeSet<_> = [room_id!("!busy"), room_id!("!loud")].map(Into::into).into();
        let room = |pace: &Pace| pace.question(&held, now).0.expect("a question").0;
        assert_eq!(room(&pace), "!busy");
        answered(&mut pace, Progress::NotYet, now);
        assert_eq!(room(&pace), "!loud");
        pace.answered(
            room_id!("!loud"),
            event_id!("$loud"),
            Progress::NotYet,
            now + limits::ROOM_IN_FLIGHT.1,
        );
        assert_eq!(room(&pace), "!busy");
    }

    #[test]
    fn what_an_answer_says() {
        let says = |status: u16, body: &str| {
            let body = AnswerBody::new(body.as_bytes().to_vec(), None);
            let status = StatusCode::from_u16(status).expect("a status");
            progress(&Ok(FederationResponse { status, body }))
        };
        assert_eq!(says(200, r#"{"pdus":[{}]}"#), Progress::Processed);
        assert_eq!(says(403, r#"{"errcode":"M_FORBIDDEN"}"#), Progress::Processed);
        assert_eq!(says(404, r#"{"errcode":"M_UNRECOGNIZED"}"#), Progress::Processed);
        // As Synapse says it.
        assert_eq!(says(404, r#""""#), Progress::NotYet);
        assert_eq!(says(404, r#"{"errcode":"M_NOT_FOUND"}"#), Progress::NotYet);
        assert_eq!(says(429, "{}"), Progress::Unknown);
        assert_eq!(says(500, ""), Progress::Unknown);
        assert_eq!(progress(&Err(Unreachable::Late)), Progress::Unknown);
    }
}
