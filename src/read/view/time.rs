//! Finds the event closest to a time. The timestamp of an event is by its sender's clock, and does
//! not always increase along the timeline.

use ruma::{api::Direction, events::StateEventType};

use super::View;
use crate::{log::ReadError, read::events::EventRef, record::Offset, state::Room};

impl View<'_> {
    /// The visible event whose timestamp is closest to `ts` (milliseconds since the Unix epoch), at
    /// or after it when looking forward, at or before it when looking backward. Of several with the
    /// same timestamp, it is the first in that direction. It reads few events: a binary search
    /// finds the position among the events with increasing timestamps, and invisible ranges are
    /// skipped.
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

    /// The index in the timeline before which all ordered events are before `ts`, and after which
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

    /// The first ordered event from `index` on, before `end`.
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

    /// The event at this index, unless its timestamp is earlier than that of an event before it, or
    /// it was erased.
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
            // The following events are just as invisible, up to the next turn.
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
            // The earlier events are just as invisible, back to the last turn; the turn itself may
            // be visible.
            let last = turns.partition_point(|turn| *turn <= event.offset).checked_sub(1);
            let turn = last.and_then(|last| turns.get(last)).copied().unwrap_or_default();
            if turn < event.offset {
                end = room.event_count(turn);
            }
        }
        Ok(None)
    }

    /// The offsets at which visibility may change for the user: between two of these, they see
    /// either all events or none.
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
