//! Finds the event closest to a time. The timestamp of an event is by its sender's clock, and does
//! not always increase along the timeline.

use ruma::{api::Direction, events::StateEventType};

use super::View;
use crate::events::{EventRef, EventStore};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Room;

impl View<'_> {
    /// The visible event whose timestamp is closest to `ts` (milliseconds since the Unix epoch), at
    /// or after it when looking forward, at or before it when looking backward. Of several with the
    /// same timestamp, it is the first in that direction. It reads few events: a binary search
    /// finds the position among the events with increasing timestamps, and invisible ranges are
    /// skipped.
    pub fn closest_event(
        &self,
        room: &Room,
        ts: u64,
        direction: Direction,
    ) -> Result<Option<EventRef>, ReadError> {
        let by_time = self.by_time(room);
        let in_order = match direction {
            Direction::Forward => self.first_from(room, by_time.place_of(ts)?)?,
            Direction::Backward => match ts.checked_add(1) {
                Some(after) => self.last_before(room, by_time.place_of(after)?)?,
                None => self.last_before(room, room.event_count(self.at()))?,
            },
        };
        let may_see = |event: &EventRef| self.may_see(room, event);
        let others = by_time.closest_other(ts, direction, may_see)?;
        Ok(closer(in_order, others, direction))
    }

    fn by_time<'r>(&'r self, room: &'r Room) -> ByTime<'r> {
        ByTime { events: self.events, room, at: self.at() }
    }

    fn first_from(&self, room: &Room, mut index: usize) -> Result<Option<EventRef>, ReadError> {
        let turns = self.turns(room);
        let end = room.event_count(self.at());
        while let Some((found, event)) = self.by_time(room).in_order_from(index, end)? {
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
            let Some(event) = self.by_time(room).in_order(index)? else { continue };
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
}

/// The events of a room by their timestamps.
pub struct ByTime<'a> {
    pub events: &'a EventStore,
    pub room: &'a Room,
    pub at: Offset,
}

impl ByTime<'_> {
    /// The event whose timestamp is closest to `ts`, as [`View::closest_event`], among those that
    /// `wanted` accepts. At most this many events of the timeline are examined.
    pub fn closest(
        &self,
        ts: u64,
        direction: Direction,
        wanted: impl Fn(&EventRef) -> Result<bool, ReadError>,
        most: usize,
    ) -> Result<Option<EventRef>, ReadError> {
        let end = self.room.event_count(self.at);
        let place = match direction {
            Direction::Forward => self.place_of(ts)?,
            Direction::Backward => match ts.checked_add(1) {
                Some(after) => self.place_of(after)?,
                None => end,
            },
        };
        let indexes: &mut dyn Iterator<Item = usize> = match direction {
            Direction::Forward => &mut (place..end),
            Direction::Backward => &mut (0..place).rev(),
        };
        let mut found = None;
        for index in indexes.take(most) {
            if let Some(event) = self.in_order(index)?
                && wanted(&event)?
            {
                found = Some(event);
                break;
            }
        }
        Ok(closer(found, self.closest_other(ts, direction, wanted)?, direction))
    }

    /// The index in the timeline before which all ordered events are before `ts`, and after which
    /// none is.
    fn place_of(&self, ts: u64) -> Result<usize, ReadError> {
        let (mut low, mut high) = (0, self.room.event_count(self.at));
        while low < high {
            let middle = low.midpoint(high);
            match self.in_order_from(middle, high)? {
                Some((index, event)) if time(&event) < ts => low = index + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// The first ordered event from `index` on, before `end`.
    fn in_order_from(
        &self,
        mut index: usize,
        end: usize,
    ) -> Result<Option<(usize, EventRef)>, ReadError> {
        while index < end {
            if let Some(event) = self.in_order(index)? {
                return Ok(Some((index, event)));
            }
            index += 1;
        }
        Ok(None)
    }

    /// The event at this index, unless its timestamp is earlier than that of an event before it, or
    /// it was erased.
    fn in_order(&self, index: usize) -> Result<Option<EventRef>, ReadError> {
        match self.room.nth_event(index).filter(|offset| !self.room.is_late(*offset)) {
            Some(offset) => self.events.get(offset),
            None => Ok(None),
        }
    }

    /// The closest of those events whose timestamps are in no order: those that came late, and
    /// those in gaps.
    fn closest_other(
        &self,
        ts: u64,
        direction: Direction,
        wanted: impl Fn(&EventRef) -> Result<bool, ReadError>,
    ) -> Result<Option<EventRef>, ReadError> {
        let mut others = self.room.late_events(self.at);
        if self.room.is_gapped() {
            others.extend(self.room.filled_times(self.at));
        }
        match direction {
            Direction::Forward => {
                others.retain(|(_, time)| *time >= ts);
                others.sort_unstable_by_key(|(offset, time)| (*time, *offset));
            }
            Direction::Backward => {
                others.retain(|(_, time)| *time <= ts);
                others.sort_unstable_by_key(|(offset, time)| std::cmp::Reverse((*time, *offset)));
            }
        }
        for (offset, _) in others {
            if let Some(event) = self.events.get(offset)?
                && wanted(&event)?
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

fn closer(a: Option<EventRef>, b: Option<EventRef>, direction: Direction) -> Option<EventRef> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if is_closer(&b, &a, direction) { b } else { a }),
        (a, b) => a.or(b),
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
