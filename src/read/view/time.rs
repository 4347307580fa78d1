//! The event closest to a moment. Events say their time by the clock of who sent them, which does
//! not always move forward along the timeline.

use ruma::{api::Direction, events::StateEventType};

use super::View;
use crate::{log::ReadError, read::events::EventRef, record::Offset, state::Room};

impl View<'_> {
    /// The visible event whose time is closest to `ts` (milliseconds since the Unix epoch), not
    /// before it when looking forward, not after it when looking backward. Of several at the same
    /// time, the first in the direction of looking. Reads few events: of those with times in order
    /// the place is found by halving, and a stretch of which the user may see nothing is passed
    /// over whole.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn closest_event(
        &self,
        room: &Room,
        ts: u64,
        direction: Direction,
    ) -> Result<Option<EventRef>, ReadError> {
        let in_order = match direction {
            Direction::Forward => self.first_from(room, self.place_of(room, ts)?)?,
            Direction::Backward => match ts.checked_add(1) {
                Some(after) => self.last_before(room, self.place_of(room, after)?)?,
                None => self.last_before(room, room.event_count(self.at()))?,
            },
        };
        let late = self.closest_late(room, ts, direction)?;
        Ok(match (in_order, late) {
            (Some(a), Some(b)) => Some(if is_closer(&b, &a, direction) { b } else { a }),
            (a, b) => a.or(b),
        })
    }

    /// The place on the timeline before which all events in order are before `ts`, and after which
    /// none is.
    fn place_of(&self, room: &Room, ts: u64) -> Result<usize, ReadError> {
        let (mut low, mut high) = (0, room.event_count(self.at()));
        while low < high {
            let middle = low.midpoint(high);
            match self.in_order_from(room, middle, high)? {
                Some((index, event)) if time(&event) < ts => low = index + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The first event from `index` on, before `end`, that has its place by its time.
    fn in_order_from(
        &self,
        room: &Room,
        mut index: usize,
        end: usize,
    ) -> Result<Option<(usize, EventRef)>, ReadError> {
        while index < end {
            if let Some(event) = self.in_order(room, index)? {
                return Ok(Some((index, event)));
            }
            index += 1;
        }
        Ok(None)
    }

    /// The event at this place, unless it says an earlier time than one before it or was erased.
    fn in_order(&self, room: &Room, index: usize) -> Result<Option<EventRef>, ReadError> {
        match room.nth_event(index).filter(|offset| !room.is_late(*offset)) {
            Some(offset) => self.events.get(offset),
            None => Ok(None),
        }
    }

    fn first_from(&self, room: &Room, mut index: usize) -> Result<Option<EventRef>, ReadError> {
        let turns = self.turns(room);
        let end = room.event_count(self.at());
        while let Some((found, event)) = self.in_order_from(room, index, end)? {
            if self.may_see(room, &event)? {
                return Ok(Some(event));
            }
            // What follows is as invisible, up to the next turn.
            let next = turns.partition_point(|turn| *turn <= event.offset);
            let Some(turn) = turns.get(next) else { return Ok(None) };
            index = room.event_count(turn.prev()).max(found + 1);
        }
        Ok(None)
    }

    fn last_before(&self, room: &Room, mut end: usize) -> Result<Option<EventRef>, ReadError> {
        let turns = self.turns(room);
        while let Some(index) = end.checked_sub(1) {
            end = index;
            let Some(event) = self.in_order(room, index)? else { continue };
            if self.may_see(room, &event)? {
                return Ok(Some(event));
            }
            // What came before is as invisible, back to the last turn; the turn itself may be seen.
            let last = turns.partition_point(|turn| *turn <= event.offset).checked_sub(1);
            let turn = last.and_then(|last| turns.get(last)).copied().unwrap_or_default();
            if turn < event.offset {
                end = room.event_count(turn);
            }
        }
        Ok(None)
    }

    /// Where it may change what the user sees: between two of these, they see either all or
    /// nothing.
    pub(super) fn turns(&self, room: &Room) -> Vec<Offset> {
        let visibility = &StateEventType::RoomHistoryVisibility;
        let mut turns = room.state_events_of(visibility, "", self.at());
        let memberships = room.membership_changes(self.user_id(), self.at());
        turns.extend(memberships.into_iter().map(|(offset, _)| offset));
        turns.sort_unstable();
        turns
    }

    fn closest_late(
        &self,
        room: &Room,
        ts: u64,
        direction: Direction,
    ) -> Result<Option<EventRef>, ReadError> {
        let mut late = room.late_events(self.at());
        match direction {
            Direction::Forward => {
                late.retain(|(_, time)| *time >= ts);
                late.sort_unstable_by_key(|(offset, time)| (*time, *offset));
            }
            Direction::Backward => {
                late.retain(|(_, time)| *time <= ts);
                late.sort_unstable_by_key(|(offset, time)| std::cmp::Reverse((*time, *offset)));
            }
        }
        for (offset, _) in late {
            if let Some(event) = self.events.get(offset)?
                && self.may_see(room, &event)?
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

fn time(event: &EventRef) -> u64 {
    event.origin_server_ts.get().into()
}

fn is_closer(a: &EventRef, b: &EventRef, direction: Direction) -> bool {
    let (a, b) = ((time(a), a.offset), (time(b), b.offset));
    match direction {
        Direction::Forward => a < b,
        Direction::Backward => a > b,
    }
}
