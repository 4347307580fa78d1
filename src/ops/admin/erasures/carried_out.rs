//! The records that carried erasures out.

use crate::{admin::context::ActContext, history::describe};
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset, Record, command::LogErase};

/// The `log.erase` records at these offsets.
pub(super) fn erasures(
    context: &ActContext,
    offsets: impl IntoIterator<Item = Offset>,
) -> impl Iterator<Item = Result<(Offset, LogErase), ReadError>> {
    let read = |offset| match context.engine.events().command(offset) {
        Ok(Some(Command::LogErase(erase))) => Some(Ok((offset, erase))),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    };
    offsets.into_iter().filter_map(read)
}

/// Who caused an erasure, what they did, and when, in milliseconds since the Unix epoch;
/// [`Offset::ZERO`] stands for superseded content.
pub(super) fn cause(
    context: &ActContext,
    because: Offset,
) -> Result<(String, String, u64), ReadError> {
    Ok(match context.engine.log().get(because)? {
        Some(record) => in_words(&record),
        None => ("server".to_owned(), "erased superseded content".to_owned(), 0),
    })
}

pub(super) fn in_words(record: &Record) -> (String, String, u64) {
    let words = describe::of_record(record);
    (words.who, words.text, record.header.time_ms)
}

/// What an erasure took: its cause, and the first and last of a run of records.
pub(super) fn takings(erase: &LogErase) -> impl Iterator<Item = (Offset, Offset, Offset)> {
    let reduced = erase.reduced.iter().map(|of| (of.because, of.offset, of.offset));
    let superseded = erase.superseded.iter().map(|(first, last)| (Offset::ZERO, *first, *last));
    let taken = erase.taken.iter().map(|of| (of.because, of.first, of.last));
    reduced.chain(superseded).chain(taken)
}
