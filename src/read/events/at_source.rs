//! Positions of the server from which this one was imported. That server numbered its events, and
//! they were imported in the order of their numbers. Those that it had fetched from the past have
//! numbers below zero, in another order; they are in the gaps of their rooms.

use super::EventStore;
use crate::view::token::SourcePlace;
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Room, imports::Import, rooms::gaps::TimelinePosition};

impl EventStore {
    /// The position in a room's history that a token of the source names; `None` if the import was
    /// not completed.
    pub fn past_at_source(
        &self,
        room: &Room,
        import: &Import,
        place: SourcePlace,
    ) -> Result<Option<TimelinePosition>, ReadError> {
        let Some(ended) = import.ended else { return Ok(None) };
        if place.number < 0 {
            return self.place_in_gaps(room, ended, place).map(Some);
        }
        let next = |after, to| room.events_forward(after, to, 1).first().copied();
        let last = self.last_numbered((import.begun, ended), place.number, &next)?;
        // What is in the gap before the next event was before the position, too.
        let next = next(last, ended).map(|event| room.before_event(event));
        let within = next.filter(|place| matches!(place, TimelinePosition::Within { .. }));
        Ok(Some(within.unwrap_or(TimelinePosition::After(last))))
    }

    /// The last imported event with this number or a lower one, among those that `next` goes
    /// through: it returns the first after a record, up to and including another. If there is none,
    /// where the import began.
    pub(crate) fn last_numbered(
        &self,
        between: (Offset, Offset),
        number: i64,
        next: &dyn Fn(Offset, Offset) -> Option<Offset>,
    ) -> Result<Offset, ReadError> {
        last_numbered(between, number, next, &mut |offset| self.number_at_source(offset))
    }

    /// A position among the events that the source had fetched from the past: it shows them by
    /// their depth, and so they were put into the gaps.
    fn place_in_gaps(
        &self,
        room: &Room,
        ended: Offset,
        place: SourcePlace,
    ) -> Result<TimelinePosition, ReadError> {
        let gaps = room.gaps(ended, limits::IMPORTED_GAPS);
        let Some(newest) = gaps.first().copied() else {
            return Ok(TimelinePosition::After(Offset::ZERO));
        };
        // Rather too new a position than one that leaves something out: clients know the events
        // that they have.
        let Some(depth) = place.depth else {
            return Ok(TimelinePosition::Within { gap: newest, passed: 0 });
        };
        let mut gap_of_depth: Option<(u64, Offset)> = None;
        for gap in gaps {
            let Some(event) = self.get(gap)?.filter(|event| event.depth > depth) else { continue };
            if gap_of_depth.is_none_or(|least| (event.depth, gap) < least) {
                gap_of_depth = Some((event.depth, gap));
            }
        }
        let Some((_, gap)) = gap_of_depth else {
            return Ok(TimelinePosition::Within { gap: newest, passed: 0 });
        };
        let known = room.filled_as_of(gap, ended);
        let passed = passed_by_depth::<ReadError>(known, &mut |number| {
            let Some(offset) = room.event_of_gap(gap, number) else { return Ok(false) };
            let Some(event) = self.get(offset)? else { return Ok(false) };
            if event.depth != depth {
                return Ok(event.depth > depth);
            }
            Ok(self.number_at_source(offset)?.is_some_and(|number| number > place.number))
        })?;
        Ok(TimelinePosition::Within { gap, passed })
    }
}

/// See [`EventStore::last_numbered`]. What has no number, or one below zero, is passed over.
fn last_numbered<E>(
    (begun, ended): (Offset, Offset),
    number: i64,
    next: &dyn Fn(Offset, Offset) -> Option<Offset>,
    number_of: &mut dyn FnMut(Offset) -> Result<Option<i64>, E>,
) -> Result<Offset, E> {
    // No event up to `low` has a higher number, and every event after `high` has one.
    let (mut low, mut high) = (begun, ended);
    while low < high {
        let middle = Offset::new(low.get() + (high.get() - low.get()) / 2);
        let mut at = middle;
        let found = loop {
            let Some(event) = next(at, high) else { break None };
            match number_of(event)? {
                Some(found) if found >= 0 => break Some((event, found)),
                _ => at = event,
            }
        };
        match found {
            Some((event, found)) if found <= number => low = event,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// How many of a gap's events, counted from 1 backward in time, are after a position.
fn passed_by_depth<E>(
    known: u32,
    is_after: &mut dyn FnMut(u32) -> Result<bool, E>,
) -> Result<u32, E> {
    let (mut low, mut high) = (0, known);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_after(middle + 1)? { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Compares with the definition. Most records are no events, and some events are of the past.
    #[test]
    fn a_number_is_found_between_records_without_one() {
        const NUMBERS: [Option<i64>; 16] = [
            None,
            Some(3),
            Some(4),
            None,
            None,
            Some(-2),
            Some(9),
            None,
            Some(-1),
            Some(-7),
            Some(12),
            Some(13),
            None,
            Some(-3),
            None,
            None,
        ];
        let (begun, ended) = (Offset::new(5), Offset::new(5 + NUMBERS.len() as u64 + 1));
        let all: Vec<_> = (6..).map(Offset::new).zip(NUMBERS).collect();
        for among in [0, 1, 2] {
            let is_among = |offset: Offset| among == 0 || offset.get() % 2 == among - 1;
            let next = |after, to| {
                let mut later = all.iter().map(|(offset, _)| *offset);
                later.find(|offset| is_among(*offset) && *offset > after && *offset <= to)
            };
            for number in -1..16 {
                let mut looks = 0;
                let found = last_numbered((begun, ended), number, &next, &mut |offset| {
                    looks += 1;
                    let of = all.iter().find(|(at, _)| *at == offset);
                    Ok::<_, Infallible>(of.and_then(|(_, number)| *number))
                });
                let expected = all.iter().rev().find(|(offset, of)| {
                    is_among(*offset) && of.is_some_and(|of| (0..=number).contains(&of))
                });
                let expected = expected.map_or(begun, |(offset, _)| *offset);
                assert_eq!(found, Ok(expected), "event {number} among {among}");
            }
        }
    }

    #[test]
    fn a_number_is_found_with_few_looks() {
        let next = |after: Offset, to: Offset| Some(after.next()).filter(|next| *next <= to);
        let mut looks = 0;
        let ends = (Offset::new(7), Offset::new(1_000_007));
        let found = last_numbered(ends, 654_321, &next, &mut |offset| {
            looks += 1;
            Ok::<_, Infallible>(Some(offset.get() as i64))
        });
        assert_eq!(found, Ok(Offset::new(654_321)));
        assert!(looks <= 21, "{looks}");
    }

    #[test]
    fn a_depth_is_found_in_a_gap() {
        let depths = [9, 8, 8, 5, 2];
        for (depth, passed) in [(10, 0), (9, 0), (8, 1), (7, 3), (5, 3), (4, 4), (2, 4), (1, 5)] {
            let found =
                passed_by_depth(5, &mut |at| Ok::<_, Infallible>(depths[at as usize - 1] > depth));
            assert_eq!(found, Ok(passed), "depth {depth}");
        }
    }
}
