//! Checks a log from its first record to its last.
//!
//! [`verify`] reads any [`Log`] and returns the offset of the first fault. [`Checker`] checks one
//! record after another. Opening a log, reading an archive and restoring from one all use it, so
//! they agree on what is intact.

use super::{
    Log, Verified,
    erase::Audit,
    fault::{Fault, VerifyError},
};
use logcabin_record::{
    CHAIN_START, Chain, Epoch, Offset, Payload, Record,
    codec::{self, CodecError},
};

/// How many records are read at a time.
const CHUNK: usize = 512;

/// Checks every record of `log` up to its durable watermark: contiguous offsets, hash chain,
/// payload hashes, decodable commands, times and epochs that do not decrease, complete batches, and
/// a `log.erase` record for every missing payload. `on_progress` is called now and then with the
/// last offset checked.
///
/// # Errors
/// The first fault, with its offset.
pub fn verify(log: &dyn Log, mut on_progress: impl FnMut(Offset)) -> Result<Verified, VerifyError> {
    let durable = *log.durable().borrow();
    let mut checker = Checker::from_start();
    let mut audit = Audit::default();
    while checker.last() < durable {
        let from = checker.last().next();
        // Damage anywhere in a chunk fails the whole read. Reading one by one finds the first
        // fault.
        let records = match log.read(from, CHUNK) {
            Ok(records) => records,
            Err(_) => log.read(from, 1).map_err(|error| VerifyError::reading(from, error))?,
        };
        if records.is_empty() {
            return Err(VerifyError { offset: from, fault: Fault::Missing });
        }
        for record in &records {
            checker.check(record)?;
            audit.note(record);
            record
                .command()
                .map_err(|error| VerifyError::at(record.offset(), Fault::Command(error)))?;
        }
        on_progress(checker.last());
    }
    audit.finish()?;
    checker.finish()
}

/// Checks records one after another.
#[derive(Clone, Debug)]
pub struct Checker {
    last: Offset,
    chain: Chain,
    time_ms: u64,
    epoch: Epoch,
    batch_remaining: u32,
    records: u64,
    erased: u64,
}

impl Checker {
    /// A checker whose next record is the first of a log.
    pub const fn from_start() -> Self {
        Self::from_chain(Offset::ZERO, CHAIN_START)
    }

    /// A checker whose next record follows the record `last`, of which only the chain value is
    /// known.
    pub const fn from_chain(last: Offset, chain: Chain) -> Self {
        Self { last, chain, time_ms: 0, epoch: Epoch(0), batch_remaining: 0, records: 0, erased: 0 }
    }

    /// A checker whose next record follows `record`, which is accepted as it is.
    pub fn after(record: &Record) -> Self {
        Self {
            time_ms: record.header.time_ms,
            epoch: record.header.epoch,
            batch_remaining: record.header.batch_remaining,
            ..Self::from_chain(record.offset(), record.chain)
        }
    }

    /// The offset of the last record that was checked.
    pub const fn last(&self) -> Offset {
        self.last
    }

    /// The chain value of the last record that was checked.
    pub const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Checks that `record` is intact and follows the previous one.
    ///
    /// # Errors
    /// The first fault. The checker does not advance in that case.
    pub fn check(&mut self, record: &Record) -> Result<(), VerifyError> {
        let expected = self.last.next();
        let fault = |fault| VerifyError::at(expected, fault);
        let header = &record.header;
        if header.offset != expected {
            return Err(fault(if header.offset > expected {
                Fault::Missing
            } else {
                Fault::OutOfOrder { found: header.offset }
            }));
        }
        let encoded = codec::encode_header(header).map_err(|error| fault(Fault::Damaged(error)))?;
        if codec::chain(&self.chain, &encoded) != record.chain {
            return Err(fault(Fault::Damaged(CodecError::Chain)));
        }
        if !record.holds_its_payload() {
            return Err(fault(Fault::Damaged(CodecError::PayloadHash)));
        }
        if header.time_ms < self.time_ms {
            return Err(fault(Fault::Time(self.time_ms - header.time_ms)));
        }
        if header.epoch < self.epoch {
            return Err(fault(Fault::Epoch { found: header.epoch, before: self.epoch }));
        }
        if let Some(expected) = self.batch_remaining.checked_sub(1)
            && header.batch_remaining != expected
        {
            return Err(fault(Fault::Batch { found: header.batch_remaining, expected }));
        }
        *self = Self {
            last: header.offset,
            chain: record.chain,
            time_ms: header.time_ms,
            epoch: header.epoch,
            batch_remaining: header.batch_remaining,
            records: self.records + 1,
            erased: self.erased + u64::from(!matches!(record.payload, Payload::Present(_))),
        };
        Ok(())
    }

    /// The result, after every record.
    ///
    /// # Errors
    /// When the last record does not end its batch.
    pub const fn finish(self) -> Result<Verified, VerifyError> {
        if self.batch_remaining != 0 {
            return Err(VerifyError::at(self.last, Fault::Unfinished(self.batch_remaining)));
        }
        Ok(Verified {
            records: self.records,
            last: self.last,
            chain: self.chain,
            erased: self.erased,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::{
        memory::MemoryLog,
        samples::{payload, record},
    };
    use logcabin_base::clock::Clock;
    use logcabin_record::{
        Command, NewRecord, Origin, Stream,
        codec::Tip,
        command::{LogErase, Reduced},
    };

    /// Batches of three, three and one.
    fn records() -> Vec<Record> {
        let mut tip = Tip::default();
        let remaining = [2, 1, 0, 2, 1, 0, 0];
        let records = remaining.iter().zip(1..).map(|(remaining, number)| {
            tip.extend(record("a", payload(number)), *remaining, 1_000 + number).unwrap().0
        });
        records.collect()
    }

    fn check(records: Vec<Record>) -> Result<Verified, VerifyError> {
        let log =
            MemoryLog::with_records(Clock::default(), records.into_iter().map(Arc::new).collect());
        verify(&log, |_| ())
    }

    /// Gives every record from `index` on the chain value it should have.
    fn rechain(records: &mut [Record], index: usize) {
        for index in index..records.len() {
            let before = index.checked_sub(1).map_or(CHAIN_START, |before| records[before].chain);
            let header = codec::encode_header(&records[index].header).unwrap();
            records[index].chain = codec::chain(&before, &header);
        }
    }

    /// The fault after `change` was made to record 5, with and without a chain that fits it.
    fn faults(change: impl Fn(&mut Record)) -> [Fault; 2] {
        [false, true].map(|chained| {
            let mut records = records();
            change(&mut records[4]);
            if chained {
                rechain(&mut records, 4);
            }
            let error = check(records).unwrap_err();
            assert_eq!(error.offset, Offset::new(5), "{error}");
            error.fault
        })
    }

    #[test]
    fn a_log_verifies_without_the_payloads_that_a_record_says_were_erased() {
        let erase = |runs: &[(u64, u64)]| {
            let mut records = records();
            let runs = runs.iter().map(|(a, b)| (Offset::new(*a), Offset::new(*b)));
            let erase = LogErase { superseded: runs.collect(), ..LogErase::default() };
            let new = NewRecord::new(Stream::server(), Origin::server(), &Command::from(erase));
            records.push(Tip::after(&records[6]).extend(new, 0, 2_000).unwrap().0);
            records[1].payload = Payload::Erased;
            records[4].payload = Payload::Erased;
            records
        };
        let records = erase(&[(2, 2), (4, 6)]);
        let chain = records[7].chain;
        let verified = check(records).unwrap();
        assert_eq!(verified, Verified { records: 8, last: Offset::new(8), chain, erased: 2 });
        for (runs, gone) in [(&[][..], 2), (&[(2, 3)], 5), (&[(5, 5)], 2), (&[(2, 9)], 2)] {
            let error = check(erase(runs)).unwrap_err();
            assert_eq!(error.offset.get(), gone, "{runs:?}: {error}");
            assert!(matches!(error.fault, Fault::Gone), "{error}");
        }
    }

    #[test]
    fn a_reduced_payload_must_match_its_erasure() {
        let left = payload(3);
        for (hash, found) in [(*blake3::hash(&left).as_bytes(), None), ([7; 32], Some(3))] {
            let mut records = records();
            let reduced = Reduced {
                offset: Offset::new(3),
                because: Offset::new(4),
                room_version: Some(ruma::RoomVersionId::V10),
                hash,
            };
            let erase = LogErase { reduced: vec![reduced], ..LogErase::default() };
            let new = NewRecord::new(Stream::server(), Origin::server(), &Command::from(erase));
            records.push(Tip::after(&records[6]).extend(new, 0, 2_000).unwrap().0);
            records[2].payload = Payload::Reduced(left.clone());
            let fault = check(records).err();
            assert_eq!(fault.as_ref().map(|error| error.offset.get()), found, "{fault:?}");
            assert!(fault.is_none_or(|error| matches!(error.fault, Fault::Replaced)));
        }
    }

    #[test]
    fn each_fault_is_found_at_its_offset() {
        let broken = |fault: &Fault| matches!(fault, Fault::Damaged(CodecError::Chain));
        let [found, chained] = faults(|record| record.header.time_ms = 1);
        assert!(broken(&found) && matches!(chained, Fault::Time(1_003)));
        let [found, chained] = faults(|record| record.header.batch_remaining = 2);
        assert!(broken(&found));
        assert!(matches!(chained, Fault::Batch { found: 2, expected: 1 }));
        let [found, chained] = faults(|record| record.header.kind = "room.unheard_of".into());
        assert!(broken(&found) && matches!(chained, Fault::Command(_)));
        let [found, _] = faults(|record| record.payload = Payload::Present(Bytes::from("{}")));
        assert!(matches!(found, Fault::Damaged(CodecError::PayloadHash)));
        let [found, _] = faults(|record| record.header.offset = Offset::new(4));
        assert!(matches!(found, Fault::OutOfOrder { found } if found == Offset::new(4)));
    }

    #[test]
    fn missing_and_swapped_records_are_found() {
        let mut missing = records();
        missing.remove(3);
        let error = check(missing).unwrap_err();
        assert!(
            matches!(error, VerifyError { offset, fault: Fault::Missing } if offset.get() == 4)
        );
        let mut swapped = records();
        swapped.swap(2, 3);
        assert_eq!(check(swapped).unwrap_err().offset, Offset::new(3));
        let mut torn = records();
        torn.truncate(5);
        let error = check(torn).unwrap_err();
        assert!(matches!(error.fault, Fault::Unfinished(1)), "{error}");
    }

    #[test]
    fn a_later_epoch_is_fine_and_an_earlier_one_is_not() {
        let mut records = records();
        for record in &mut records[3..] {
            record.header.epoch = Epoch(1);
        }
        rechain(&mut records, 3);
        check(records.clone()).unwrap();
        records[6].header.epoch = Epoch(0);
        rechain(&mut records, 6);
        assert!(matches!(check(records).unwrap_err().fault, Fault::Epoch { .. }));
    }
}
