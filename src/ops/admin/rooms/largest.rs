//! The rooms that take most of the log.

use std::cmp::Reverse;

use ruma::OwnedRoomId;

use crate::admin::context::ActContext;
use logcabin_log::{Log, ReadError};
use logcabin_record::Offset;
use logcabin_service::tally::sizes;

/// How many rooms are measured: those with the most events.
const MEASURED: usize = 500;

/// How many events of a room's timeline are read, and as many of those that are not in it.
const SAMPLES: usize = 16;

/// The rooms that take most of the log, the largest first, each with the bytes of its events before
/// compression. No projection has their sizes, so they are estimated from some events of each room.
pub fn largest(context: &ActContext, most: usize) -> Result<Vec<(OwnedRoomId, u64)>, ReadError> {
    let (log, state) = (&**context.engine.log(), context.engine.state());
    let rooms = state.rooms.all().into_iter();
    let mut rooms: Vec<_> =
        rooms.map(|room| (room.event_count(Offset::MAX) + room.asides().len(), room)).collect();
    rooms.sort_by_key(|(events, _)| Reverse(*events));
    let mut largest = Vec::new();
    for (_, room) in rooms.into_iter().take(MEASURED) {
        let (timeline, asides) = (room.event_count(Offset::MAX), room.asides());
        let bytes = estimate(log, timeline, |index| room.nth_event(index))?
            + estimate(log, asides.len(), |index| asides.get(index).copied())?;
        largest.push((room.id.clone(), bytes));
    }
    largest.sort_by(|(one, a), (other, b)| b.cmp(a).then_with(|| one.cmp(other)));
    largest.truncate(most);
    Ok(largest)
}

/// The bytes of this many records, of which some are read.
fn estimate(
    log: &dyn Log,
    count: usize,
    nth: impl Fn(usize) -> Option<Offset>,
) -> Result<u64, ReadError> {
    let samples = count.min(SAMPLES);
    let (mut read, mut bytes) = (0, 0);
    for sample in 0..samples {
        // They are spread evenly: a room may have had shorter messages once.
        let at = nth(sample * count / samples);
        if let Some(record) = at.map(|at| log.get(at)).transpose()?.flatten() {
            read += 1;
            bytes += sizes(&record).0;
        }
    }
    Ok(bytes.saturating_mul(count as u64).checked_div(read).unwrap_or(0))
}
