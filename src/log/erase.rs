//! Erasing: the effect of a `log.erase` record on the payloads of earlier records.
//!
//! Every store of records carries out the `log.erase` records among them: a log atomically with the
//! append, the archive soon after, a restore while it reads. [`remainder`] computes what remains of
//! one record, [`Targets`] collects the named records, and [`Audit`] checks the reverse: that a
//! record names every missing payload.

use std::collections::BTreeMap;

use super::fault::{Fault, VerifyError};
use logcabin_record::{
    Command, Offset, Payload, Record, ReduceError, Remains,
    command::{Body as _, LogErase, Reduced},
    reduced, remains,
};

/// The most payloads that one `log.erase` record names. Each frame is rewritten in the group of the
/// append.
pub const MAX_ERASED: u64 = 1024;

/// Why a record cannot be erased as named.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    /// Records of this kind cannot be erased in this way.
    #[error("record {0} may not be erased like this")]
    Kind(Offset),
    /// The event cannot be reduced.
    #[error("record {offset} cannot be reduced: {source}")]
    Reduce {
        /// The record's offset.
        offset: Offset,
        source: ReduceError,
    },
    /// The remaining part of the event does not have the named hash.
    #[error("the remainder of record {0} does not match the record")]
    Hash(Offset),
}

/// The erasures in `record`; `None` if it is of another kind.
pub fn erasure(record: &Record) -> Option<LogErase> {
    if &*record.header.kind != LogErase::KIND.name {
        return None;
    }
    match record.command() {
        Ok(Some(Command::LogErase(erase))) => Some(erase),
        _ => None,
    }
}

/// How a payload is erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// It is replaced by a reduced one.
    Reduced(Reduced),
    /// It is removed.
    Superseded,
}

/// The records that `log.erase` records name.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    reduced: BTreeMap<Offset, Reduced>,
    superseded: Runs,
}

impl Targets {
    /// Adds the records that one `log.erase` record names.
    pub fn add(&mut self, erase: &LogErase) {
        self.reduced.extend(erase.reduced.iter().map(|reduced| (reduced.offset, reduced.clone())));
        self.superseded.extend(erase.runs());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reduced.is_empty() && self.superseded.0.is_empty()
    }

    /// How the payload at `offset` is erased, if it is named.
    pub fn get(&self, offset: Offset) -> Option<Target> {
        if let Some(reduced) = self.reduced.get(&offset) {
            return Some(Target::Reduced(reduced.clone()));
        }
        self.superseded.contains(offset).then_some(Target::Superseded)
    }

    /// Adds the others.
    pub(crate) fn extend(&mut self, others: &Self) {
        let reduced = others.reduced.iter();
        self.reduced.extend(reduced.map(|(offset, reduced)| (*offset, reduced.clone())));
        self.superseded.extend(others.superseded.0.iter().copied());
    }

    /// How many are in `first..=last`.
    pub(crate) fn count_in(&self, first: Offset, last: Offset) -> u64 {
        self.reduced.range(first..=last).count() as u64 + self.superseded.count_in(first, last)
    }

    /// Removes those in `first..=last`.
    pub(crate) fn remove_in(&mut self, first: Offset, last: Offset) {
        self.reduced.retain(|offset, _| *offset < first || last < *offset);
        self.superseded.remove_in(first, last);
    }

    /// Whether any target is in `first..=last`.
    pub fn any_in(&self, first: Offset, last: Offset) -> bool {
        self.reduced.range(first..=last).next().is_some() || self.superseded.any_in(first, last)
    }

    /// Every target, each with how it is erased.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Offset, Target)> {
        let reduced =
            self.reduced.values().map(|reduced| (reduced.offset, Target::Reduced(reduced.clone())));
        let each = |(first, last): &(Offset, Offset)| (first.get()..=last.get()).map(Offset::new);
        reduced.chain(
            self.superseded.0.iter().flat_map(each).map(|offset| (offset, Target::Superseded)),
        )
    }
}

/// The payload that remains of `record`.
pub fn remainder(record: &Record, target: &Target) -> Result<Payload, EraseError> {
    let offset = record.offset();
    match (target, &record.payload) {
        // The header tells the kind for records of earlier versions, too.
        (Target::Superseded, _)
            if record.header.ephemeral || remains(&record.header.kind) == Remains::Nothing =>
        {
            Ok(Payload::Erased)
        }
        (Target::Reduced(target), payload) => {
            let Payload::Present(bytes) = payload else { return Ok(payload.clone()) };
            let version = target.room_version.as_ref();
            let bytes =
                reduced(&record.header.kind, bytes, version).map_err(|source| match source {
                    ReduceError::Kind(_) => EraseError::Kind(offset),
                    source => EraseError::Reduce { offset, source },
                })?;
            if *blake3::hash(&bytes).as_bytes() != target.hash {
                return Err(EraseError::Hash(offset));
            }
            Ok(Payload::Reduced(bytes))
        }
        _ => Err(EraseError::Kind(offset)),
    }
}

/// Runs of offsets that ascend and do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Runs(Vec<(Offset, Offset)>);

impl Runs {
    fn extend(&mut self, runs: impl IntoIterator<Item = (Offset, Offset)>) {
        self.0.extend(runs.into_iter().filter(|(first, last)| first <= last));
        self.0.sort_unstable();
        let mut merged: Vec<(Offset, Offset)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match merged.last_mut() {
                Some((_, end)) if first <= end.next() => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        self.0 = merged;
    }

    /// Adds an offset after all others.
    fn push(&mut self, offset: Offset) {
        match self.0.last_mut() {
            Some((_, last)) if last.next() == offset => *last = offset,
            _ => self.0.push((offset, offset)),
        }
    }

    fn contains(&self, offset: Offset) -> bool {
        self.any_in(offset, offset)
    }

    fn any_in(&self, first: Offset, last: Offset) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < first);
        self.0.get(at).is_some_and(|(begin, _)| *begin <= last)
    }

    fn count_in(&self, first: Offset, last: Offset) -> u64 {
        let from = self.0.partition_point(|(_, end)| *end < first);
        let here = self.0[from..].iter().take_while(|(begin, _)| *begin <= last);
        here.map(|(begin, end)| end.min(&last).get() - begin.max(&first).get() + 1).sum()
    }

    fn remove_in(&mut self, first: Offset, last: Offset) {
        let cut = |(begin, end): (Offset, Offset)| {
            let before = (begin < first).then(|| (begin, end.min(first.prev())));
            let after = (last < end).then(|| (begin.max(last.next()), end));
            [before, after].into_iter().flatten()
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(cut).collect();
    }

    /// The first of these offsets that is not in `others`.
    fn first_outside(&self, others: &Self) -> Option<Offset> {
        self.0.iter().find_map(|(first, last)| {
            let at = others.0.partition_point(|(_, end)| end < first);
            match others.0.get(at) {
                Some((begin, end)) if begin <= first => (end < last).then(|| end.next()),
                _ => Some(*first),
            }
        })
    }
}

/// Checks that a `log.erase` record names every missing or reduced payload, with the right hash. It
/// takes every record of a log, in order.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    named: Targets,
    erased: Runs,
    /// blake3 of each reduced payload.
    reduced: BTreeMap<Offset, [u8; 32]>,
}

impl Audit {
    /// Takes the next record.
    pub fn note(&mut self, record: &Record) {
        let offset = record.offset();
        match &record.payload {
            Payload::Present(_) => {}
            Payload::Reduced(bytes) => {
                self.reduced.insert(offset, *blake3::hash(bytes).as_bytes());
            }
            Payload::Erased => self.erased.push(offset),
        }
        if let Some(erase) = erasure(record) {
            // A record can only name earlier ones.
            let earlier = |of: Offset| of < offset;
            self.named.add(&LogErase {
                reduced: erase.reduced.into_iter().filter(|r| earlier(r.offset)).collect(),
                superseded: erase.superseded.into_iter().filter(|(_, to)| earlier(*to)).collect(),
                taken: erase.taken.into_iter().filter(|taken| earlier(taken.last)).collect(),
            });
        }
    }

    /// How many payloads are missing or reduced.
    pub fn gone(&self) -> u64 {
        let run = |(first, last): &(Offset, Offset)| last.get() - first.get() + 1;
        self.reduced.len() as u64 + self.erased.0.iter().map(run).sum::<u64>()
    }

    /// How many named payloads are still complete: the store is behind with erasing.
    pub fn behind(&self) -> u64 {
        self.whole().count() as u64
    }

    /// The named payloads that are still complete, each with how it is to be erased.
    pub fn whole(&self) -> impl Iterator<Item = (Offset, Target)> {
        self.named.iter().filter(|(offset, _)| {
            !self.reduced.contains_key(offset) && !self.erased.contains(*offset)
        })
    }

    /// The result, after every record.
    ///
    /// # Errors
    /// The first payload that is missing or reduced without a record that says so.
    pub fn finish(&self) -> Result<(), VerifyError> {
        let named = |offset: &Offset, hash: &[u8; 32]| {
            self.named.reduced.get(offset).is_some_and(|named| named.hash == *hash)
        };
        let replaced = self.reduced.iter().find(|(offset, hash)| !named(offset, hash));
        let replaced = replaced.map(|(offset, _)| (*offset, Fault::Replaced));
        let gone = self.erased.first_outside(&self.named.superseded);
        let gone = gone.map(|offset| (offset, Fault::Gone));
        match replaced.into_iter().chain(gone).min_by_key(|(offset, _)| *offset) {
            Some((offset, fault)) => Err(VerifyError { offset, fault }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(runs: &[(u64, u64)]) -> Runs {
        let mut made = Runs::default();
        made.extend(runs.iter().map(|(a, b)| (Offset::new(*a), Offset::new(*b))));
        made
    }

    #[test]
    fn adjacent_runs_are_merged() {
        assert_eq!(runs(&[(5, 6), (1, 2), (3, 3), (9, 8), (5, 5)]), runs(&[(1, 3), (5, 6)]));
        let all = runs(&[(1, 3), (5, 6)]);
        let held: Vec<_> = (0..8).filter(|n| all.contains(Offset::new(*n))).collect();
        assert_eq!(held, [1, 2, 3, 5, 6]);
        assert!(!all.any_in(Offset::new(4), Offset::new(4)));
        assert!(all.any_in(Offset::new(4), Offset::new(5)));
        let mut pushed = Runs::default();
        for n in [1, 2, 3, 5, 6] {
            pushed.push(Offset::new(n));
        }
        assert_eq!(pushed, all);
    }

    #[test]
    fn offsets_outside_of_the_runs_are_found() {
        let outside =
            |a: &[(u64, u64)], b: &[(u64, u64)]| runs(a).first_outside(&runs(b)).map(Offset::get);
        assert_eq!(outside(&[(2, 4), (7, 7)], &[(1, 9)]), None);
        assert_eq!(outside(&[(2, 4), (7, 7)], &[(1, 3), (7, 7)]), Some(4));
        assert_eq!(outside(&[(2, 4), (7, 7)], &[(2, 4)]), Some(7));
        assert_eq!(outside(&[(2, 4)], &[(3, 4)]), Some(2));
        assert_eq!(outside(&[(2, 4)], &[]), Some(2));
        assert_eq!(outside(&[], &[]), None);
    }
}
