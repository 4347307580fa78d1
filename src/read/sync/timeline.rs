//! The newest events of a room's timeline for a client.

use crate::{
    events::EventRef,
    view::{PageLimit, View, filter::EventFilter, token::HistoryToken},
};
use logcabin_base::planted::{self, Fault};
use logcabin_log::ReadError;
use logcabin_record::{Epoch, Offset};
use logcabin_state::Room;

/// A part of a timeline.
#[derive(Debug)]
pub(super) struct TimelineSlice {
    /// The events, oldest first.
    pub(super) events: Vec<EventRef>,
    /// Whether visible events between `since` and the first one were left out.
    pub(super) limited: bool,
    /// The first offset of the part: it contains all visible events from here on. Even if it is not
    /// limited, there may be invisible events before it.
    pub(super) start: Offset,
    /// The last offset that the stretch covers.
    pub(super) at: Offset,
}

impl TimelineSlice {
    /// The newest visible events after `since`, up to and including `at`, at most `limit`.
    pub(super) fn newest<'a>(
        view: &View<'a>,
        room: &Room,
        since: Offset,
        at: Offset,
        limit: PageLimit<'a>,
        filter: &EventFilter,
    ) -> Result<Self, ReadError> {
        if !filter.wants_room(&room.id) {
            return Ok(Self { events: Vec::new(), limited: false, start: at.next(), at });
        }
        let page = view.page_backward(room, at, since, limit, filter)?;
        let mut events = page.events;
        events.reverse();
        if planted::has(Fault::EventLeftOut) && events.len() > 1 {
            events.remove(0);
        }
        let start = match (&page.next, events.first()) {
            // Nothing was left out: the timeline reaches back to `since`.
            (None, _) => since.next(),
            (Some(_), Some(first)) => first.offset,
            (Some(_), None) => at.next(),
        };
        let limited = match page.next {
            Some(next) => {
                let left_out = view.page_backward(room, next, since, 1, filter)?;
                !left_out.events.is_empty() || left_out.next.is_some()
            }
            None => false,
        };
        if room.is_gapped()
            && let Some(gap) = room.last_gap(start.prev(), at)
        {
            // Events in a gap are in no timeline.
            events.retain(|event| event.offset >= gap);
            return Ok(Self { events, limited: true, start: gap, at });
        }
        Ok(Self { events, limited, start, at })
    }

    /// A part with only the event at `at`, without a claim about earlier ones.
    pub(super) fn only(view: &View<'_>, at: Offset) -> Result<Self, ReadError> {
        let events = view.events.get_all(&[at])?;
        Ok(Self { events, limited: false, start: at, at })
    }

    /// The last offset before it. The state there is the state at its beginning.
    pub(super) fn before(&self) -> Offset {
        self.start.prev().min(self.at)
    }

    /// The position right before it, from which a client pages back.
    pub(super) fn prev_batch(&self, room: &Room, epoch: Epoch) -> String {
        let place = room.before_event(self.start.min(self.at.next()));
        HistoryToken { epoch, place }.to_string()
    }
}
