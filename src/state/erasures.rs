//! What is to be erased from the log, and what was: redacted events that still have their content,
//! and ephemeral records that later ones have superseded.
//!
//! From a `log.erase` record on, the projections are the same whether the payloads that it names are
//! there or not. For this to hold, what `apply` takes from an event's content must either be left by
//! redaction or be gone once the redaction has been applied.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::{Offset, command::LogErase};

/// What is to be erased, and what was.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Erasures(#[serde(with = "kept::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    /// By the offset of the redaction and their own, the records that still have the content it took.
    redacted: BTreeMap<(Offset, Offset), Redacted>,
    /// The ephemeral records that say nothing any more.
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

impl Erasures {
    /// Up to `limit` records whose events were redacted at or before `until_ms` and that still have their
    /// content, in the order of their redactions.
    #[must_use]
    pub fn redacted(&self, until_ms: u64, limit: usize) -> Vec<Redacted> {
        let inner = self.0.read();
        // Times do not decrease along the log.
        let due = inner.redacted.values().take_while(|redacted| redacted.time_ms <= until_ms);
        due.take(limit).copied().collect()
    }

    /// Up to `limit` records that are superseded and still have their payload, in order.
    #[must_use]
    pub fn superseded(&self, limit: usize) -> Vec<Offset> {
        self.0.read().superseded.iter().take(limit).copied().collect()
    }

    /// How many records are superseded and still have their payload.
    #[must_use]
    pub fn superseded_count(&self) -> usize {
        self.0.read().superseded.len()
    }

    /// The last `log.erase` record and its time in milliseconds; [`Offset::ZERO`] and 0 before the
    /// first.
    #[must_use]
    pub fn last(&self) -> (Offset, u64) {
        let inner = self.0.read();
        (inner.done.last().copied().unwrap_or_default(), inner.done_ms)
    }

    /// The `log.erase` records after `after`, in order.
    #[must_use]
    pub fn since(&self, after: Offset) -> Vec<Offset> {
        let inner = self.0.read();
        let from = inner.done.partition_point(|offset| *offset <= after);
        inner.done[from..].to_vec()
    }

    pub(super) fn redact(&self, redacted: Redacted) {
        self.0.write().redacted.insert((redacted.because, redacted.event), redacted);
    }

    pub(super) fn supersede(&self, offsets: impl IntoIterator<Item = Offset>) {
        self.0.write().superseded.extend(offsets);
    }

    pub(super) fn erase(&self, offset: Offset, time_ms: u64, body: &LogErase) {
        let mut inner = self.0.write();
        for reduced in &body.reduced {
            inner.redacted.remove(&(reduced.because, reduced.offset));
        }
        for (first, last) in &body.superseded {
            // The record was written by whoever wrote the log: it need not make sense.
            if first > last {
                continue;
            }
            let mut from = inner.superseded.split_off(first);
            inner.superseded.append(&mut from.split_off(&last.next()));
        }
        inner.done.push(offset);
        inner.done_ms = time_ms;
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_erased_is_not_to_be_erased_any_more() {
        let offset = Offset::new;
        let erasures = Erasures::default();
        erasures.supersede([2, 3, 5, 8, 9].map(offset));
        let superseded = vec![(offset(3), offset(8)), (offset(7), offset(1))];
        erasures.erase(offset(20), 77, &LogErase { superseded, ..LogErase::default() });
        assert_eq!(erasures.superseded(10), [offset(2), offset(9)]);
        assert_eq!(erasures.last(), (offset(20), 77));
        assert_eq!(erasures.since(offset(19)), [offset(20)]);
        assert!(erasures.since(offset(20)).is_empty());
    }

    #[test]
    fn redacted_events_are_due_in_their_turn() {
        let erasures = Erasures::default();
        let redacted =
            |n| Redacted { event: Offset::new(n), because: Offset::new(n + 10), time_ms: n };
        for n in [1, 2, 3] {
            erasures.redact(redacted(n));
        }
        assert_eq!(erasures.redacted(2, 10), [redacted(1), redacted(2)]);
        assert_eq!(erasures.redacted(9, 1), [redacted(1)]);
    }
}
