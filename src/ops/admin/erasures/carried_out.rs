//! The records that carried erasures out.

use crate::{
    log::ReadError,
    ops::{admin::office::Office, history::words},
    record::{Command, Offset, Record, command::LogErase},
};

/// Every `log.erase`.
pub(super) fn erasures(office: &Office) -> Result<Vec<(Offset, LogErase)>, ReadError> {
    let mut all = Vec::new();
    for offset in office.engine.state().erasures.since(Offset::ZERO) {
        if let Some(Command::LogErase(erase)) = office.engine.events().command(offset)? {
            all.push((offset, erase));
        }
    }
    Ok(all)
}

pub(super) fn in_words(record: &Record) -> (String, String, u64) {
    let words = words::of_record(record);
    (words.who, words.text, record.header.time_ms)
}
/// What an erasure took: for which record, and a run of records.
pub(super) fn takings(erase: &LogErase) -> impl Iterator<Item = (Offset, Offset, Offset)> {
    let reduced = erase.reduced.iter().map(|of| (of.because, of.offset, of.offset));
    let superseded = erase.superseded.iter().map(|(first, last)| (Offset::ZERO, *first, *last));
    let taken = erase.taken.iter().map(|of| (of.because, of.first, of.last));
    reduced.chain(superseded).chain(taken)
}
