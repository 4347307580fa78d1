//! What was imported from other servers' databases, and when what was imported happened.

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
    /// The times of events of the first import: from this record on, one happened at this time
    /// (milliseconds since the Unix epoch), and none before the next step later than [`STEP_MS`]
    /// after it. Ascending.
    steps: Vec<(u64, Offset)>,
    /// The last event of the first import.
    last: Offset,
}

/// The resolution of `steps`. A source with twenty years of history makes 7,000 of them.
const STEP_MS: u64 = 24 * 3_600_000;

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
    /// out of order.
    pub fn until(&self, until_ms: u64) -> Offset {
        let inner = self.0.read();
        let later = |(from_ms, _): &(u64, Offset)| from_ms.saturating_add(STEP_MS) > until_ms;
        let first = inner.steps.partition_point(|step| !later(step));
        match inner.steps.get(first) {
            Some((_, offset)) => offset.prev(),
            None => inner.last,
        }
    }

    pub(super) fn begin(&self, offset: Offset, body: &ImportBegin) {
        let import = Import { source: body.source, begun: offset, ended: None };
        self.0.write().all.push(import);
    }

    pub(super) fn end(&self, offset: Offset) {
        if let Some(import) = self.0.write().all.last_mut() {
            import.ended = Some(offset);
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
        let before = inner.steps.last().map(|(from_ms, _)| from_ms.saturating_add(STEP_MS));
        if before.is_none_or(|until_ms| happened_ms >= until_ms) {
            inner.steps.push((happened_ms, offset));
        }
    }

    /// Nothing for a log without imports: its digest is the same as before there were any.
    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let inner = self.0.read();
        if !inner.all.is_empty() {
            digest.add(&*inner);
        }
    }
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
        assert_eq!(imports.until(54 * 3_600_000), Offset::new(14));
        assert_eq!(imports.until(300 * 3_600_000), Offset::new(20));
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
