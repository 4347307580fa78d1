//! Delayed events (MSC4140): the scheduled ones with their times, and for a while the finished
//! ones.
//!
//! The contents are in the log, at the offsets of the `delayed.schedule` records.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{DelayedFinish, DelayedOutcome, DelayedRestart, DelayedSchedule},
};

/// How many finished events of each user are kept, as MSC4140 recommends.
const FINISHED_KEPT: usize = 1000;

/// How long finished events are kept, in milliseconds: seven days, as MSC4140 recommends.
pub const FINISHED_KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// One delayed event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayedEvent {
    /// The record that scheduled it, which contains its content.
    pub offset: Offset,
    pub delay_id: String,
    /// The sender.
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
    pub event_type: String,
    /// The event's state key, for a state event.
    pub state_key: Option<String>,
    /// The delay, in milliseconds.
    pub delay_ms: u64,
    /// When the delay began, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// How it ended; `None` while it is scheduled.
    pub finished: Option<Finished>,
}

/// The end of a delayed event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Whether it was sent, cancelled, or failed.
    #[serde(with = "serializers::json")]
    pub outcome: DelayedOutcome,
    /// Whether a client asked for it.
    pub by_action: bool,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl DelayedEvent {
    /// When it is due, in milliseconds since the Unix epoch.
    pub const fn due_ms(&self) -> u64 {
        self.since_ms.saturating_add(self.delay_ms)
    }
}

/// All delayed events.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Delayed(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    /// By the offset of the record that scheduled it.
    events: BTreeMap<Offset, Arc<DelayedEvent>>,
    #[serde(with = "serializers::sorted")]
    by_id: HashMap<String, Offset>,
    /// The scheduled events, in the order in which they are due.
    due: BTreeSet<(u64, Offset)>,
    /// The scheduled state events of each key.
    #[serde(with = "serializers::sorted")]
    state: HashMap<(OwnedRoomId, String, String), BTreeSet<Offset>>,
    users: BTreeMap<OwnedUserId, UserDelayed>,
    /// The record that scheduled each sent event, in case the event is redacted.
    sent: BTreeMap<Offset, Offset>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct UserDelayed {
    scheduled: BTreeSet<Offset>,
    /// The finished events, by time.
    finished: BTreeSet<(u64, Offset)>,
}

impl Delayed {
    /// The delayed event with this id.
    pub fn get(&self, delay_id: &str) -> Option<Arc<DelayedEvent>> {
        let inner = self.0.read();
        inner.events.get(inner.by_id.get(delay_id)?).cloned()
    }

    /// When the first scheduled event is due.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.0.read().due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Up to `limit` scheduled events that are due at `now_ms`, in the order in which they are due.
    pub fn due(&self, now_ms: u64, limit: usize) -> Vec<Arc<DelayedEvent>> {
        let inner = self.0.read();
        let due = inner.due.iter().take_while(|(due_ms, _)| *due_ms <= now_ms).take(limit);
        due.filter_map(|(_, offset)| inner.events.get(offset).cloned()).collect()
    }

    /// The scheduled and finished events of `user_id`, in the order of scheduling.
    pub fn of(&self, user_id: &UserId) -> Vec<Arc<DelayedEvent>> {
        let inner = self.0.read();
        let Some(of_user) = inner.users.get(user_id) else { return Vec::new() };
        let mut offsets: Vec<_> = of_user.scheduled.iter().copied().collect();
        offsets.extend(of_user.finished.iter().map(|(_, offset)| *offset));
        offsets.sort_unstable();
        offsets.iter().filter_map(|offset| inner.events.get(offset).cloned()).collect()
    }

    /// The number of scheduled events of `user_id`, and when the first of them is due.
    pub fn scheduled(&self, user_id: &UserId) -> (usize, Option<u64>) {
        let inner = self.0.read();
        let Some(of_user) = inner.users.get(user_id) else { return (0, None) };
        let events = of_user.scheduled.iter().filter_map(|offset| inner.events.get(offset));
        (of_user.scheduled.len(), events.map(|event| event.due_ms()).min())
    }

    /// The scheduled state events of this key.
    pub fn of_state(
        &self,
        room_id: &RoomId,
        event_type: &str,
        state_key: &str,
    ) -> Vec<Arc<DelayedEvent>> {
        let inner = self.0.read();
        if inner.state.is_empty() {
            return Vec::new();
        }
        let key = (room_id.to_owned(), event_type.to_owned(), state_key.to_owned());
        let offsets = inner.state.get(&key).into_iter().flatten();
        offsets.filter_map(|offset| inner.events.get(offset).cloned()).collect()
    }

    /// The record that scheduled the event at `event`, if it was scheduled.
    pub fn sent_as(&self, event: Offset) -> Option<Offset> {
        self.0.read().sent.get(&event).copied()
    }

    /// The records with the content of events that are, or were lately, scheduled for a room.
    pub fn of_room(&self, room_id: &RoomId) -> Vec<Offset> {
        let inner = self.0.read();
        let events = inner.events.values().filter(|event| event.room_id == *room_id);
        events.map(|event| event.offset).collect()
    }

    /// The id of the delayed event that the record at `offset` scheduled, if it is still scheduled.
    pub fn waits_at(&self, offset: Offset) -> Option<String> {
        let inner = self.0.read();
        let event = inner.events.get(&offset)?;
        event.finished.is_none().then(|| event.delay_id.clone())
    }

    pub(super) fn schedule(&self, offset: Offset, body: DelayedSchedule) {
        let event = DelayedEvent {
            offset,
            delay_id: body.delay_id,
            user_id: body.user_id,
            room_id: body.room_id,
            event_type: body.event_type,
            state_key: body.state_key,
            delay_ms: body.delay_ms,
            since_ms: body.since_ms,
            finished: None,
        };
        let mut inner = self.0.write();
        inner.by_id.insert(event.delay_id.clone(), offset);
        inner.due.insert((event.due_ms(), offset));
        if let Some(key) = state_of(&event) {
            inner.state.entry(key).or_default().insert(offset);
        }
        inner.users.entry(event.user_id.clone()).or_default().scheduled.insert(offset);
        inner.events.insert(offset, Arc::new(event));
    }

    /// Records that the event at `event` is the delayed one.
    pub(super) fn send(&self, event: Offset, delay_id: &str) {
        let mut inner = self.0.write();
        if let Some(schedule) = inner.by_id.get(delay_id).copied() {
            inner.sent.insert(event, schedule);
        }
    }

    pub(super) fn restart(&self, body: &DelayedRestart) {
        let mut inner = self.0.write();
        let Some(before) = inner.scheduled(&body.delay_id) else { return };
        let after = DelayedEvent { since_ms: body.since_ms, ..DelayedEvent::clone(&before) };
        inner.due.remove(&(before.due_ms(), before.offset));
        inner.due.insert((after.due_ms(), after.offset));
        inner.events.insert(after.offset, Arc::new(after));
    }

    pub(super) fn finish(&self, body: DelayedFinish) {
        let mut inner = self.0.write();
        let Some(before) = inner.scheduled(&body.delay_id) else { return };
        let offset = before.offset;
        inner.due.remove(&(before.due_ms(), offset));
        if let Some(key) = state_of(&before)
            && let Some(offsets) = inner.state.get_mut(&key)
        {
            offsets.remove(&offset);
            if offsets.is_empty() {
                inner.state.remove(&key);
            }
        }
        let DelayedFinish { outcome, by_action, ts, .. } = body;
        let finished = Some(Finished { outcome, by_action, ts });
        let after = DelayedEvent { finished, ..DelayedEvent::clone(&before) };
        let of_user = inner.users.entry(after.user_id.clone()).or_default();
        of_user.scheduled.remove(&offset);
        of_user.finished.insert((ts, offset));
        let mut forgotten = Vec::new();
        while let Some((finished, offset)) = of_user.finished.first().copied()
            && (of_user.finished.len() > FINISHED_KEPT
                || finished.saturating_add(FINISHED_KEPT_MS) < ts)
        {
            of_user.finished.pop_first();
            forgotten.push(offset);
        }
        inner.events.insert(offset, Arc::new(after));
        for offset in forgotten {
            if let Some(event) = inner.events.remove(&offset) {
                inner.by_id.remove(&event.delay_id);
            }
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        // All other fields are indexes of these.
        let inner = self.0.read();
        digest.add(&inner.events);
        digest.add(&inner.sent);
    }
}

impl Inner {
    fn scheduled(&self, delay_id: &str) -> Option<Arc<DelayedEvent>> {
        let event = self.events.get(self.by_id.get(delay_id)?)?;
        event.finished.is_none().then(|| Arc::clone(event))
    }
}

fn state_of(event: &DelayedEvent) -> Option<(OwnedRoomId, String, String)> {
    let state_key = event.state_key.clone()?;
    Some((event.room_id.clone(), event.event_type.clone(), state_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(delayed: &Delayed, offset: u64, delay_ms: u64) {
        let body = serde_json::json!({
            "delay_id": format!("d{offset}"), "user_id": "@ann:test", "room_id": "!r:test",
            "type": "t", "state_key": "", "content": {}, "delay_ms": delay_ms, "since_ms": 1000,
        });
        let body = serde_json::from_str(&body.to_string()).unwrap();
        delayed.schedule(Offset::new(offset), body);
    }

    fn finish(delayed: &Delayed, number: u64, ts: u64) {
        let delay_id = format!("d{number}");
        let outcome = DelayedOutcome::Cancel;
        delayed.finish(DelayedFinish { delay_id, outcome, by_action: true, ts });
    }

    fn due(delayed: &Delayed, now_ms: u64) -> Vec<String> {
        delayed.due(now_ms, 10).iter().map(|event| event.delay_id.clone()).collect()
    }

    #[test]
    fn due_events_are_ordered_by_time() {
        let delayed = Delayed::default();
        schedule(&delayed, 1, 30);
        schedule(&delayed, 2, 10);
        schedule(&delayed, 3, 10);
        assert_eq!(delayed.next_due_ms(), Some(1010));
        assert!(due(&delayed, 1009).is_empty());
        assert_eq!(due(&delayed, 1010), ["d2", "d3"]);
        assert_eq!(due(&delayed, 2000), ["d2", "d3", "d1"]);
        delayed.restart(&DelayedRestart { delay_id: "d2".to_owned(), since_ms: 1100 });
        assert_eq!(due(&delayed, 2000), ["d3", "d1", "d2"]);
        finish(&delayed, 3, 1);
        assert_eq!(due(&delayed, 2000), ["d1", "d2"]);
        let user_id: OwnedUserId = "@ann:test".try_into().unwrap();
        assert_eq!(delayed.scheduled(&user_id), (2, Some(1030)));
        assert_eq!(delayed.of(&user_id).len(), 3);
        assert_eq!(delayed.of_state(<&RoomId>::try_from("!r:test").unwrap(), "t", "").len(), 2);
    }

    #[test]
    fn finished_events_stay_finished_and_are_forgotten_in_time() {
        let delayed = Delayed::default();
        schedule(&delayed, 1, 10);
        finish(&delayed, 1, 5);
        finish(&delayed, 1, 6);
        delayed.restart(&DelayedRestart { delay_id: "d1".to_owned(), since_ms: 1100 });
        assert_eq!(delayed.next_due_ms(), None);
        let ts = delayed.get("d1").and_then(|event| event.finished.as_ref().map(|f| f.ts));
        assert_eq!(ts, Some(5));
        schedule(&delayed, 2, 10);
        finish(&delayed, 2, 5 + FINISHED_KEPT_MS);
        assert!(delayed.get("d1").is_some());
        schedule(&delayed, 3, 10);
        finish(&delayed, 3, 6 + FINISHED_KEPT_MS);
        assert!(delayed.get("d1").is_none() && delayed.get("d2").is_some());
        let last = 4 + FINISHED_KEPT as u64;
        for number in 4..=last {
            schedule(&delayed, number, 10);
            finish(&delayed, number, 6 + FINISHED_KEPT_MS);
        }
        assert!(delayed.get("d4").is_none() && delayed.get("d5").is_some());
        assert_eq!(delayed.0.read().events.len(), FINISHED_KEPT);
    }
}
