//! What is to be erased from the log, and what was: redacted events that still have their content,
//! records of deleted rooms and users or expired events, and superseded records.
//!
//! From a `log.erase` record on, the projections are the same whether the payloads that it names
//! are there or not. So whatever `apply` reads from an event's content must either survive
//! redaction or be removed when the redaction is applied.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, RoomVersionId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{Offset, command::LogErase};

/// What is to be erased, and what was.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Erasures(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    /// The records that still have redacted content, by the offset of the redaction and their own.
    redacted: BTreeMap<(Offset, Offset), Redacted>,
    /// The records whose content is to be erased without delay, each with the reason.
    condemned: BTreeMap<Offset, Offset>,
    /// The rooms that were purged.
    purged: BTreeMap<OwnedRoomId, Purged>,
    /// The users whose records are still to be found and condemned.
    owed: BTreeMap<OwnedUserId, PendingErasure>,
    /// The superseded records.
    superseded: BTreeSet<Offset>,
    /// The `log.erase` records.
    done: Vec<Offset>,
    /// The time of the last of them.
    done_ms: u64,
}

/// A record that still has the content of a redacted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redacted {
    /// The event, or the `delayed.schedule` that it was sent from.
    pub event: Offset,
    /// The redaction.
    pub because: Offset,
    /// When it was redacted, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

/// A room that was purged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// The `room.purge`.
    pub because: Offset,
    pub version: RoomVersionId,
    /// The offset of its `m.room.create` event.
    pub created: Offset,
}

/// The remaining work of erasing a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingErasure {
    /// The `user.deactivate`.
    pub because: Offset,
    /// Whether their messages are erased.
    pub messages: bool,
    /// Whether their uploaded files are deleted.
    pub media: bool,
}

impl Erasures {
    /// Up to `limit` records that still have content redacted at or before `until_ms`, in the order
    /// of the redactions.
    pub fn redacted(&self, until_ms: u64, limit: usize) -> Vec<Redacted> {
        let inner = self.0.read();
        // Times do not decrease along the log. Where those of imported redactions do, some content
        // stays a little longer.
        let due = inner.redacted.values().take_while(|redacted| redacted.time_ms <= until_ms);
        due.take(limit).copied().collect()
    }

    /// Up to `limit` condemned records that still have their content, in order, each with the
    /// reason.
    pub fn condemned(&self, limit: usize) -> Vec<(Offset, Offset)> {
        let inner = self.0.read();
        inner.condemned.iter().take(limit).map(|(record, because)| (*record, *because)).collect()
    }

    /// How many records still have content that is condemned because of the record at `because`.
    pub fn condemned_for(&self, because: Offset) -> u64 {
        self.0.read().condemned.values().filter(|of| **of == because).count() as u64
    }

    /// How many condemned records still have their content.
    pub fn condemned_count(&self) -> u64 {
        self.0.read().condemned.len() as u64
    }

    /// How many records a sweep is to erase: those that are condemned or superseded, and those with
    /// content that was redacted at or before `until_ms`.
    pub fn due(&self, until_ms: Option<u64>) -> u64 {
        let inner = self.0.read();
        let is_due = |redacted: &&Redacted| until_ms.is_some_and(|until| redacted.time_ms <= until);
        let redacted = inner.redacted.values().take_while(is_due).count();
        (redacted + inner.condemned.len() + inner.superseded.len()) as u64
    }

    /// The purge of a room.
    pub fn purged(&self, room_id: &RoomId) -> Option<Purged> {
        self.0.read().purged.get(room_id).cloned()
    }

    /// The users with remaining work, in order.
    pub fn owed(&self) -> Vec<(OwnedUserId, PendingErasure)> {
        self.0.read().owed.iter().map(|(user_id, owed)| (user_id.clone(), *owed)).collect()
    }

    /// Whether anything is to be erased without delay.
    pub fn is_urgent(&self) -> bool {
        let inner = self.0.read();
        !inner.condemned.is_empty() || !inner.owed.is_empty()
    }

    /// Up to `limit` superseded records that still have their payload, in order.
    pub fn superseded(&self, limit: usize) -> Vec<Offset> {
        self.0.read().superseded.iter().take(limit).copied().collect()
    }

    /// How many superseded records still have their payload.
    pub fn superseded_count(&self) -> usize {
        self.0.read().superseded.len()
    }

    /// The last `log.erase` record and its time in milliseconds; [`Offset::ZERO`] and 0 before the
    /// first.
    pub fn last(&self) -> (Offset, u64) {
        let inner = self.0.read();
        (inner.done.last().copied().unwrap_or_default(), inner.done_ms)
    }

    /// The `log.erase` records after `after`, in order.
    pub fn since(&self, after: Offset) -> Vec<Offset> {
        let inner = self.0.read();
        let from = inner.done.partition_point(|offset| *offset <= after);
        inner.done[from..].to_vec()
    }

    /// Up to `limit` of the newest `log.erase` records up to and including `upto`, newest first.
    pub fn until(&self, upto: Offset, limit: usize) -> Vec<Offset> {
        let inner = self.0.read();
        let end = inner.done.partition_point(|offset| *offset <= upto);
        inner.done[..end].iter().rev().take(limit).copied().collect()
    }

    pub(super) fn redact(&self, redacted: Redacted) {
        self.0.write().redacted.insert((redacted.because, redacted.event), redacted);
    }

    pub(super) fn supersede(&self, offsets: impl IntoIterator<Item = Offset>) {
        self.0.write().superseded.extend(offsets);
    }

    pub(super) fn condemn(&self, because: Offset, records: impl IntoIterator<Item = Offset>) {
        let mut inner = self.0.write();
        for record in records {
            inner.condemned.entry(record).or_insert(because);
        }
    }

    pub(super) fn purge(&self, room_id: OwnedRoomId, purged: Purged) {
        self.0.write().purged.insert(room_id, purged);
    }

    pub(super) fn owe(&self, user_id: OwnedUserId, owed: PendingErasure) {
        let mut inner = self.0.write();
        let before = inner.owed.get(&user_id).copied();
        let (messages, media) = before.map_or((false, false), |of| (of.messages, of.media));
        let owed = PendingErasure {
            messages: owed.messages || messages,
            media: owed.media || media,
            ..owed
        };
        inner.owed.insert(user_id, owed);
    }

    pub(super) fn settle(&self, user_id: &OwnedUserId) {
        self.0.write().owed.remove(user_id);
    }

    pub(super) fn erase(&self, offset: Offset, time_ms: u64, body: &LogErase) {
        let inner = &mut *self.0.write();
        for reduced in &body.reduced {
            inner.redacted.remove(&(reduced.because, reduced.offset));
            inner.condemned.remove(&reduced.offset);
            inner.superseded.remove(&reduced.offset);
        }
        for (first, last) in body.runs() {
            // The record comes from a log, and may be malformed.
            if first > last {
                continue;
            }
            let mut from = inner.superseded.split_off(&first);
            inner.superseded.append(&mut from.split_off(&last.next()));
            let mut from = inner.condemned.split_off(&first);
            inner.condemned.append(&mut from.split_off(&last.next()));
        }
        inner.done.push(offset);
        inner.done_ms = time_ms;
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

/// The records in these runs that are before the one at `offset`: a record can only name earlier
/// ones.
pub(super) fn named(runs: &[(Offset, Offset)], offset: Offset) -> BTreeSet<Offset> {
    let runs = runs.iter().map(|(first, last)| (*first, (*last).min(offset.prev())));
    runs.filter(|(first, last)| first <= last)
        .flat_map(|(first, last)| (first.get()..=last.get()).map(Offset::new))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::command::ErasedRun;

    #[test]
    fn erased_records_are_not_erased_again() {
        let offset = Offset::new;
        let erasures = Erasures::default();
        erasures.supersede([2, 3, 5, 8, 9].map(offset));
        let superseded = vec![(offset(3), offset(8)), (offset(7), offset(1))];
        erasures.erase(offset(20), 77, &LogErase { superseded, ..LogErase::default() });
        assert_eq!(erasures.superseded(10), [offset(2), offset(9)]);
        assert_eq!(erasures.last(), (offset(20), 77));
        assert_eq!(erasures.since(offset(19)), [offset(20)]);
        assert_eq!(erasures.until(offset(20), 9), [offset(20)]);
        assert!(
            erasures.until(offset(19), 9).is_empty() && erasures.until(offset(20), 0).is_empty()
        );
        assert!(erasures.since(offset(20)).is_empty());
    }

    #[test]
    fn a_condemned_record_keeps_its_first_reason_until_it_is_erased() {
        let offset = Offset::new;
        let erasures = Erasures::default();
        erasures.condemn(offset(10), [2, 3, 4].map(offset));
        erasures.condemn(offset(11), [4, 5].map(offset));
        let condemned = |limit| -> Vec<(u64, u64)> {
            erasures.condemned(limit).iter().map(|(a, b)| (a.get(), b.get())).collect()
        };
        assert_eq!(condemned(9), [(2, 10), (3, 10), (4, 10), (5, 11)]);
        assert_eq!((condemned(1), erasures.condemned_for(offset(10))), (vec![(2, 10)], 3));
        let reduced = logcabin_record::command::Reduced {
            offset: offset(2),
            because: offset(10),
            room_version: None,
            hash: [0; 32],
        };
        let taken = ErasedRun { first: offset(3), last: offset(4), because: offset(10) };
        let body = LogErase { reduced: vec![reduced], taken: vec![taken], ..LogErase::default() };
        erasures.erase(offset(20), 77, &body);
        assert_eq!((condemned(9), erasures.is_urgent()), (vec![(5, 11)], true));
    }

    #[test]
    fn redacted_events_are_due_in_order() {
        let erasures = Erasures::default();
        let redacted =
            |n| Redacted { event: Offset::new(n), because: Offset::new(n + 10), time_ms: n };
        for n in [1, 2, 3] {
            erasures.redact(redacted(n));
        }
        assert_eq!(erasures.redacted(2, 10), [redacted(1), redacted(2)]);
        assert_eq!(erasures.redacted(9, 1), [redacted(1)]);
        erasures.supersede([Offset::new(7)]);
        erasures.condemn(Offset::new(9), [Offset::new(8)]);
        assert_eq!(
            [None, Some(0), Some(2), Some(9)].map(|until| erasures.due(until)),
            [2, 2, 4, 5]
        );
    }
}
