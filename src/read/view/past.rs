//! Pages of the history of a room that has, or had, gaps.

use super::{PageLimit, View, chunk, filter::EventFilter, shown_bytes, visibility::Visibility};
use crate::{
    base::limits,
    log::ReadError,
    read::events::EventRef,
    record::Offset,
    state::{
        Room,
        rooms::gaps::{Place, Reading},
    },
};

/// A part of a room's history.
#[derive(Debug, Default)]
pub struct PastPage {
    /// The events, in the requested direction.
    pub events: Vec<EventRef>,
    /// The position after the last examined event; `None` at the end of the range.
    pub next: Option<Place>,
    /// The position after the last event, in the direction of the page.
    pub last: Option<Place>,
    /// The page ends at this gap, of which more may be found.
    pub open: Option<Offset>,
}

/// The requested part of a room's history.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Where it begins.
    pub from: Place,
    /// Where it ends.
    pub to: Place,
    /// Whether that is before `from`.
    pub backward: bool,
    /// Whether a page ends at a gap of which more may be found.
    pub stops: bool,
}

impl<'a> View<'a> {
    /// Up to `limit` visible events that match the filter.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn past(
        &self,
        room: &Room,
        wanted: Wanted,
        limit: impl Into<PageLimit<'a>>,
        filter: &EventFilter,
    ) -> Result<PastPage, ReadError> {
        let (at, limit) = (self.at(), limit.into());
        let reading = Reading { at, now_ms: self.viewer.now_ms, stops: wanted.stops };
        let end = Place::After(at);
        let (mut position, to) = if wanted.backward {
            (wanted.from.min(end), wanted.to)
        } else {
            (wanted.from, wanted.to.min(end))
        };
        let visibility = Visibility::of(self, room);
        let mut page = PastPage::default();
        let (mut looked_at, mut bytes, looks) = (0, 0, filter.looks());
        let chunk = chunk(limit.events);
        loop {
            let walk = if wanted.backward {
                room.walk_back(position, to, reading, chunk)
            } else {
                room.walk_on(position, to, reading, chunk)
            };
            let exhausted = walk.events.len() < chunk;
            for (offset, after) in walk.events {
                let is_full = page.events.len() == limit.events
                    || (bytes >= limit.bytes() && !page.events.is_empty());
                if is_full || looked_at >= limits::SCANNED_EVENTS {
                    page.next = Some(position);
                    break;
                }
                looked_at += looks;
                position = after;
                if let Some(event) = self.events.get(offset)?
                    && filter.matches(room, &event, at)
                    && visibility.shows(self, &event)?
                {
                    bytes += shown_bytes(&event);
                    page.events.push(event);
                    page.last = Some(after);
                }
            }
            if exhausted && page.next.is_none() && walk.open.is_some() {
                page.open = walk.open;
                page.next = Some(position);
            }
            if exhausted || page.next.is_some() {
                if let Some(budget) = limit.budget {
                    budget.take(bytes);
                }
                return Ok(page);
            }
        }
    }
}
