//! What was imported from other servers' databases, and when what was imported happened.

use std::{borrow::Cow, collections::BTreeSet};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{ImportBegin, ImportSource},
};

/// All imports.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Imports(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    all: Vec<Import>,
    /// The times of events of the first import, in milliseconds since the Unix epoch. While it goes
    /// on: each event from this record on, and before the next step, happened at this time or up to
    /// [`STEP_MS`] later. Once it has ended, see [`settled`]: both ascend.
    steps: Vec<(u64, Offset)>,
    /// The last event of the first import.
    last: Offset,
}

/// The resolution of `steps`. A source with twenty years of history makes 7,000 of them.
const STEP_MS: u64 = 24 * 3_600_000;

/// An event's time is wrong if later events are of so many earlier days. A clock that was late for
/// some days must not make all events before it old, and with them expire.
const DAYS_AGAINST: usize = 30;

/// How many steps there are while an import goes on. Each needs 16 bytes, and only a clock that
/// jumps back again and again makes more.
const MOST_STEPS: usize = 100_000;

/// An import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    pub source: ImportSource,
    /// The `import.begin`.
    pub begun: Offset,
    /// The `import.end`, if the import was completed.
    pub ended: Option<Offset>,
}

impl Imports {
    /// All imports, oldest first.
    pub fn all(&self) -> Vec<Import> {
        self.0.read().all.clone()
    }

    /// The newest import from `source`.
    pub fn newest(&self, source: ImportSource) -> Option<Import> {
        self.0.read().all.iter().rev().find(|import| import.source == source).copied()
    }

    /// Whether an import was begun and not completed.
    pub fn unfinished(&self) -> bool {
        self.0.read().all.last().is_some_and(|import| import.ended.is_none())
    }

    /// A record such that every event up to it happened at or before `until_ms` (milliseconds since
    /// the Unix epoch), by the times of imported events; [`Offset::ZERO`] if they tell of none. It
    /// may be earlier than the last such record: by a day of events, or where the source had events
    /// out of order. A time that later events show to be wrong ([`DAYS_AGAINST`]) does not count.
    pub fn until(&self, until_ms: u64) -> Offset {
        let inner = self.0.read();
        let later = |(from_ms, _): &(u64, Offset)| from_ms.saturating_add(STEP_MS) > until_ms;
        let steps = match &*inner.all {
            [Import { ended: None, .. }] => Cow::Owned(settled(&inner.steps)),
            _ => Cow::Borrowed(inner.steps.as_slice()),
        };
        let first = steps.partition_point(|step| !later(step));
        match steps.get(first) {
            Some((_, offset)) => offset.prev(),
            None => inner.last,
        }
    }

    pub(super) fn begin(&self, offset: Offset, body: &ImportBegin) {
        let import = Import { source: body.source, begun: offset, ended: None };
        self.0.write().all.push(import);
    }

    pub(super) fn end(&self, offset: Offset) {
        let mut inner = self.0.write();
        let Some(import) = inner.all.last_mut() else { return };
        import.ended = Some(offset);
        if inner.all.len() == 1 {
            inner.steps = settled(&inner.steps);
        }
    }

    /// Notes an imported event of this time. Only while the first import goes on are all events
    /// before it imported, too: later ones live as long as if they had happened when they were
    /// recorded.
    pub(super) fn note_event(&self, offset: Offset, happened_ms: u64) {
        let mut inner = self.0.write();
        if !matches!(&*inner.all, [Import { ended: None, .. }]) {
            return;
        }
        inner.last = offset;
        let is_within = |(from_ms, _): &(u64, Offset)| {
            (*from_ms..from_ms.saturating_add(STEP_MS)).contains(&happened_ms)
        };
        if inner.steps.last().is_some_and(is_within) {
            return;
        }
        if inner.steps.len() >= MOST_STEPS {
            inner.steps = settled(&inner.steps);
        }
        inner.steps.push((happened_ms, offset));
    }

    /// Nothing for a log without imports: its digest is the same as before there were any.
    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let inner = self.0.read();
        if !inner.all.is_empty() {
            digest.add(&*inner);
        }
    }
}

/// Steps of which each time is higher than the ones before it, made from those of all events: from
/// each record on, one happened at this time, and none before the next later than [`STEP_MS`] after
/// it. A time that later ones show to be wrong is replaced by what they allow: otherwise, a clock
/// that was in the future once would make all later events young.
fn settled(steps: &[(u64, Offset)]) -> Vec<(u64, Offset)> {
    let mut later_days: BTreeSet<u64> = BTreeSet::new();
    let mut allowed = Vec::with_capacity(steps.len());
    for (from_ms, offset) in steps.iter().rev() {
        let most = later_days.last().filter(|_| later_days.len() >= DAYS_AGAINST);
        let most_ms = most.map_or(u64::MAX, |day| day.saturating_add(1).saturating_mul(STEP_MS));
        allowed.push(((*from_ms).min(most_ms), *offset));
        later_days.insert(from_ms / STEP_MS);
        if later_days.len() > DAYS_AGAINST {
            later_days.pop_last();
        }
    }
    let mut settled: Vec<(u64, Offset)> = Vec::new();
    for step in allowed.into_iter().rev() {
        if settled.last().is_none_or(|(last_ms, _)| step.0 > *last_ms) {
            settled.push(step);
        }
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(version: &str) -> ImportBegin {
        ImportBegin {
            source: ImportSource::Synapse,
            version: version.to_owned(),
            schema: 94,
            database: "sqlite".to_owned(),
            tool: "0.1.0".to_owned(),
            begun_ms: 7,
        }
    }

    #[test]
    fn an_import_is_unfinished_until_its_end() {
        let imports = Imports::default();
        assert!(!imports.unfinished() && imports.newest(ImportSource::Synapse).is_none());
        imports.begin(Offset::new(2), &begin("1.157.0"));
        assert!(imports.unfinished());
        imports.end(Offset::new(9));
        assert!(!imports.unfinished());
        let import = Import {
            source: ImportSource::Synapse,
            begun: Offset::new(2),
            ended: Some(Offset::new(9)),
        };
        assert_eq!(imports.all(), [import]);
        assert_eq!(imports.newest(ImportSource::Synapse), Some(import));
    }

    /// Compares with the definition, for events that come out of order.
    #[test]
    fn no_event_up_to_a_bound_is_younger_than_it() {
        let imports = Imports::default();
        imports.begin(Offset::new(2), &begin("1.157.0"));
        assert_eq!(imports.until(u64::MAX), Offset::ZERO);
        let hours = [1, 2, 30, 29, 31, 60, 50, 200, 100, 101, 230];
        let times: Vec<u64> = hours.iter().map(|hour| hour * 3_600_000).collect();
        for (number, time_ms) in (10..).zip(&times) {
            imports.note_event(Offset::new(number), *time_ms);
        }
        for hour in 0..300 {
            let until_ms = hour * 3_600_000;
            let bound = imports.until(until_ms);
            let up_to = (10..).zip(&times).filter(|(number, _)| *number <= bound.get());
            for (number, time_ms) in up_to {
                assert!(*time_ms <= until_ms, "event {number} for hour {hour}");
            }
        }
        for is_over in [false, true] {
            if is_over {
                imports.end(Offset::new(21));
            }
            assert_eq!(imports.until(54 * 3_600_000), Offset::new(14));
            assert_eq!(imports.until(300 * 3_600_000), Offset::new(20));
        }
    }

    /// Ten years, with three days on which the source's clock was wrong.
    fn ten_years_with(wrong_ms: u64) -> Imports {
        let imports = Imports::default();
        imports.begin(Offset::new(2), &begin("1.157.0"));
        for day in 0..3650 {
            let is_wrong = (100..103).contains(&day);
            let time_ms = if is_wrong { wrong_ms } else { (day + 20_000) * STEP_MS };
            imports.note_event(Offset::new(day + 3), time_ms);
        }
        imports.end(Offset::new(4000));
        imports
    }

    #[test]
    fn a_clock_that_was_in_the_future_once_makes_no_later_event_young() {
        let imports = ten_years_with(24_000 * STEP_MS);
        for day in [0, 50, 200, 1000, 3000] {
            let until = imports.until((day + 20_001) * STEP_MS);
            assert_eq!(until, Offset::new(day + 3), "day {day}");
        }
        // What came then is as old as what came after it.
        let until = imports.until((102 + 20_001) * STEP_MS);
        assert!(until < Offset::new(103), "{until}");
    }

    #[test]
    fn a_clock_that_was_in_the_past_once_makes_no_earlier_event_old() {
        let imports = ten_years_with(5);
        for day in [0, 50, 98, 103, 1000, 3000] {
            let until = imports.until((day + 20_001) * STEP_MS);
            assert_eq!(until, Offset::new(day + 3), "day {day}");
        }
        assert_eq!(imports.until(10_000 * STEP_MS), Offset::new(2));
    }

    #[test]
    fn steps_are_bounded() {
        let imports = Imports::default();
        imports.begin(Offset::new(2), &begin("1.157.0"));
        for number in 0..3 * MOST_STEPS as u64 {
            imports.note_event(Offset::new(number + 3), (number % 2) * 40 * STEP_MS);
        }
        assert!(imports.0.read().steps.len() <= MOST_STEPS);
        assert_eq!(imports.until(STEP_MS), Offset::new(3));
    }

    /// Between an import's end and what follows, this server's own events are.
    #[test]
    fn events_outside_the_first_import_have_no_part_in_it() {
        let imports = Imports::default();
        imports.note_event(Offset::new(1), 5);
        assert_eq!(imports.until(u64::MAX), Offset::ZERO);
        imports.begin(Offset::new(2), &begin("1.157.0"));
        imports.note_event(Offset::new(3), 5);
        imports.end(Offset::new(4));
        imports.note_event(Offset::new(9), 5);
        imports.begin(Offset::new(10), &begin("1.158.0"));
        imports.note_event(Offset::new(11), 5);
        assert_eq!(imports.until(u64::MAX), Offset::new(3));
    }

    #[test]
    fn only_an_import_changes_the_digest() {
        let of = |imports: &Imports| {
            let mut digest = crate::digest::Digest::default();
            imports.digest(&mut digest);
            digest.finish()
        };
        let imports = Imports::default();
        assert_eq!(of(&imports), crate::digest::Digest::default().finish());
        imports.begin(Offset::new(2), &begin("1.157.0"));
        let begun = of(&imports);
        imports.end(Offset::new(3));
        assert!(begun != of(&imports) && begun != of(&Imports::default()));
    }
}
