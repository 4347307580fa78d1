//! Events that the source fetched from a room's past: they fill the gaps of its history.

use std::collections::{BTreeMap, HashMap};

use ruma::{OwnedEventId, OwnedRoomId};

use super::{
    index::Status,
    known::{KnownGap, KnownRoom, Unplaced},
    writer::Writer,
};
use crate::{ImportError, facts::BackwardExtremity};
use logcabin_base::limits;
use logcabin_record::{
    Command, Offset, Stream,
    command::{Filled, RoomGap},
};

/// The row of records about gaps.
const ROW: &str = "event_backward_extremities";

/// Where the source knows that history is missing: by room, the missing events, each with an event
/// that names it.
pub(super) type Missing = BTreeMap<String, Vec<(String, Option<String>)>>;

/// Redactions by the events that they name.
type Redactions = BTreeMap<Box<str>, Vec<Offset>>;

/// Keeps where history is missing.
pub(super) fn note_missing(missing: &mut Missing, fact: BackwardExtremity) {
    let BackwardExtremity { room_id, event_id, before } = fact;
    missing.entry(room_id).or_default().push((event_id, before));
}

/// A history visibility; an unknown value counts as the default.
fn known_name(name: &str) -> &str {
    match name {
        "joined" | "invited" | "world_readable" => name,
        _ => "shared",
    }
}

/// The gap of an event: the first one that it can precede, by its depth.
fn gap_of(gaps: &BTreeMap<Offset, KnownGap>, depth: u64) -> Option<Offset> {
    let later = gaps.iter().filter(|(_, gap)| gap.depth > depth);
    let first = later.min_by_key(|(offset, gap)| (gap.depth, **offset));
    first.or_else(|| gaps.iter().max_by_key(|(_, gap)| gap.depth)).map(|(offset, _)| *offset)
}

impl Writer<'_> {
    /// Puts the events that were fetched from the past into the gaps of their rooms.
    pub(super) fn fill_gaps(&mut self, mut missing: Missing) -> Result<(), ImportError> {
        let rooms: Vec<String> = self
            .known
            .all
            .rooms
            .iter()
            .filter(|(_, room)| !room.gaps.is_empty() || !room.unplaced.is_empty())
            .map(|(room_id, _)| room_id.to_string())
            .collect();
        for room_id in rooms {
            let missing = missing.remove(&room_id).unwrap_or_default();
            self.fill_room(&room_id, &missing)?;
            self.within()?;
        }
        Ok(())
    }

    fn fill_room(
        &mut self,
        room_id: &str,
        missing: &[(String, Option<String>)],
    ) -> Result<(), ImportError> {
        self.known.look_at(room_id);
        let Some(room) = self.known.room(room_id) else { return Ok(()) };
        let mut by_gap: BTreeMap<Offset, Vec<Unplaced>> = BTreeMap::new();
        let mut placed: HashMap<Box<str>, Offset> = HashMap::new();
        // By their events, which may be in another gap.
        let mut redactions: Redactions = room.unmet.clone();
        for event in &room.unplaced {
            if let Some(target) = &event.redacts {
                redactions.entry(target.clone()).or_default().push(event.offset);
            }
            if let Some(gap) = gap_of(&room.gaps, event.depth) {
                placed.insert(event.event_id.clone(), gap);
                by_gap.entry(gap).or_default().push(event.clone());
            }
        }
        if by_gap.is_empty() && !room.unplaced.is_empty() {
            let count = room.unplaced.len();
            let line = format!("room {room_id}: {count} events of its past have no place in it");
            self.list.note(&mut self.progress.counts, &line)?;
            return Ok(());
        }
        // What is still missing, by the gap of the event that names it.
        let mut ends: BTreeMap<Offset, Vec<OwnedEventId>> = BTreeMap::new();
        for (event_id, before) in missing {
            let seen = self.known.seen(event_id);
            if seen.is_some_and(|seen| seen.status != Status::Outlier) {
                continue;
            }
            let by = before.as_deref().and_then(|by| {
                let gap = placed.get(by).copied();
                gap.or_else(|| self.known.seen(by).map(|seen| seen.offset))
            });
            // An event of an earlier pass is in the only gap, or in that of its depth.
            let gap = by.filter(|by| room.gaps.contains_key(by));
            let gap = gap.or_else(|| room.gaps.keys().next().copied());
            if let (Some(gap), Ok(event_id)) = (gap, OwnedEventId::try_from(&**event_id)) {
                let ends = ends.entry(gap).or_default();
                if ends.len() < limits::GAP_ENDS {
                    ends.push(event_id);
                }
            }
        }
        for (gap, mut events) in by_gap {
            // The source shows them by their depth.
            events.sort_by_key(|event| (std::cmp::Reverse(event.depth), event.offset));
            let missing = ends.remove(&gap).unwrap_or_default();
            self.fill_gap(room_id, gap, &events, (&missing, &redactions))?;
        }
        Ok(())
    }

    fn fill_gap(
        &mut self,
        room_id: &str,
        gap: Offset,
        events: &[Unplaced],
        (missing, redactions): (&[OwnedEventId], &Redactions),
    ) -> Result<(), ImportError> {
        let Ok(id) = OwnedRoomId::try_from(room_id) else { return Ok(()) };
        let (mut now, is_said) = self.visibility_before(room_id, gap)?;
        let mut is_first = !is_said;
        let mut filled = Vec::with_capacity(events.len());
        for (at, event) in events.iter().enumerate() {
            let Ok(event_id) = OwnedEventId::try_from(&*event.event_id) else { continue };
            let before = match &event.visibility {
                None => now.clone(),
                Some(_) => {
                    let older = events[at + 1..].iter().find_map(|of| of.visibility.as_deref());
                    match older {
                        Some(older) => known_name(older).to_owned(),
                        // Nobody knows what it was: as little as possible is shown.
                        None if !missing.is_empty() => "joined".to_owned(),
                        None => "shared".to_owned(),
                    }
                }
            };
            let says = is_first || before != now;
            is_first = false;
            now.clone_from(&before);
            let mut redacted_by = None;
            for by in redactions.get(&event.event_id).into_iter().flatten() {
                if redacted_by.is_none() && self.may_redact(*by, event.offset)? {
                    redacted_by = Some(*by);
                }
            }
            let mut redacts = None;
            if let Some(target) = &event.redacts
                && let Some(seen) = self.known.seen(target)
                && seen.status == Status::Timeline
                && self.may_redact(event.offset, seen.offset)?
            {
                redacts = Some(seen.offset);
            }
            filled.push(Filled {
                event: event.offset,
                event_id,
                ts: event.ts,
                visibility: says.then_some(before),
                redacts,
                redacted_by,
            });
        }
        for events in filled.chunks(limits::IMPORT_GAP_EVENTS) {
            let body = RoomGap {
                room_id: id.clone(),
                gap,
                from: None,
                events: events.to_vec(),
                missing: missing.to_vec(),
                bytes: 0,
                given_up_until_ms: None,
            };
            let command = Command::RoomGap(body);
            let record = self.record(Stream::room(&id), ROW, None, &command);
            if self.append(vec![record])?.is_ok()
                && let Command::RoomGap(body) = command
            {
                self.known.note_gap(&body);
            }
        }
        Ok(())
    }

    /// The history visibility where a gap ends, seen backward in time, and whether a record says so
    /// already.
    fn visibility_before(
        &mut self,
        room_id: &str,
        gap: Offset,
    ) -> Result<(String, bool), ImportError> {
        let of_room = |room: &KnownRoom| {
            let said = room.gaps.get(&gap).and_then(|gap| gap.visibility.clone());
            (said, room.holder("m.room.history_visibility", ""))
        };
        let (said, holder) = self.known.room(room_id).map(of_room).unwrap_or_default();
        if let Some(said) = said {
            return Ok((said.into(), true));
        }
        let Some(holder) = holder else { return Ok(("shared".to_owned(), false)) };
        if holder > gap {
            // It has changed since: as little as possible is shown.
            return Ok(("joined".to_owned(), false));
        }
        let name = self.facts_at(holder)?.and_then(|facts| facts.visibility);
        Ok((known_name(name.as_deref().unwrap_or_default()).to_owned(), false))
    }

    /// Whether a redaction takes effect on an event: its sender may redact events of others, or the
    /// event is of the same server.
    fn may_redact(&mut self, redaction: Offset, event: Offset) -> Result<bool, ImportError> {
        let is_moderated = self.progress.moderated.contains(&redaction);
        let (Some(one), Some(other)) = (self.event_at(redaction)?, self.event_at(event)?) else {
            return Ok(false);
        };
        let is_of_server = one.sender.server_name() == other.sender.server_name();
        Ok(one.room_id == other.room_id && (is_moderated || is_of_server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_fills_the_first_gap_that_it_can_precede() {
        let gap = |depth| KnownGap { depth, ..KnownGap::default() };
        let gaps = BTreeMap::from([
            (Offset::new(5), gap(100)),
            (Offset::new(9), gap(300)),
            (Offset::new(12), gap(200)),
        ]);
        for (depth, expected) in [(1, 5), (99, 5), (100, 12), (250, 9), (300, 9), (999, 9)] {
            assert_eq!(gap_of(&gaps, depth), Some(Offset::new(expected)), "{depth}");
        }
        assert_eq!(gap_of(&BTreeMap::new(), 5), None);
    }
}
