//! Pages of the history of a room that has, or had, gaps.

use super::{Filled, PageLimit, View, filter::EventFilter};
use crate::events::EventRef;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{
    Room,
    rooms::gaps::{ReadOptions, TimelinePosition},
};

/// A part of a room's history.
#[derive(Debug, Default)]
pub struct PastPage {
    /// The events, in the requested direction.
    pub events: Vec<EventRef>,
    /// The position after the last examined event; `None` at the end of the range.
    pub next: Option<TimelinePosition>,
    /// The position after the last event, in the direction of the page.
    pub last: Option<TimelinePosition>,
    /// The gap at which the page ends, if more of it may be found.
    pub open: Option<Offset>,
}

/// The requested part of a room's history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryRange {
    pub from: TimelinePosition,
    pub to: TimelinePosition,
    /// Whether `to` is before `from`.
    pub backward: bool,
    /// Whether a page ends at a gap if more of it may be found.
    pub stops: bool,
}

impl<'a> View<'a> {
    /// Up to `limit` visible events that match the filter.
    pub fn past(
        &self,
        room: &Room,
        wanted: HistoryRange,
        limit: impl Into<PageLimit<'a>>,
        filter: &EventFilter,
    ) -> Result<PastPage, ReadError> {
        let at = self.at();
        let reading = ReadOptions { at, now_ms: self.viewer.now_ms, stops: wanted.stops };
        let end = TimelinePosition::After(at);
        let (from, to) = if wanted.backward {
            (wanted.from.min(end), wanted.to)
        } else {
            (wanted.from, wanted.to.min(end))
        };
        let mut open = None;
        let next = |position, count| {
            let walk = if wanted.backward {
                room.walk_back(position, to, reading, count)
            } else {
                room.walk_on(position, to, reading, count)
            };
            open = walk.open;
            walk.events.into_iter()
        };
        let filled = self.fill(room, from, limit.into(), filter, next, |_| Ok(true))?;
        let Filled { events, position, last, cut } = filled;
        // A page that is cut short may not have reached the gap.
        let open = open.filter(|_| cut.is_none());
        let next = cut.or_else(|| open.map(|_| position));
        Ok(PastPage { events, next, last, open })
    }
}
