//! The events that wait for a homeserver.

use std::sync::Arc;

use ruma::ServerName;
use serde::{Deserialize, Serialize};

use logcabin_base::limits;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_read::servers::{ServerStays, concerns};
use logcabin_record::Offset;
use logcabin_state::Room;

/// The events that wait for a homeserver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingEvents {
    /// Their number.
    pub events: usize,
    /// There may be more: the search has a limit.
    pub and_more: bool,
    /// The number of records from the first of these events to the end of the log; 0 if there is no
    /// event.
    pub records: u64,
    /// When the first of them was recorded, here or where it was imported from, in milliseconds
    /// since the Unix epoch.
    pub since_ms: Option<u64>,
}

/// Finds the events that wait for homeservers, within one limit for all of them.
pub(super) struct Search<'a> {
    engine: &'a Engine,
    left: usize,
}

impl<'a> Search<'a> {
    pub(super) const fn new(engine: &'a Engine) -> Self {
        Self { engine, left: limits::DESTINATION_LOOK }
    }

    /// The events of these rooms after `up_to` that wait for a homeserver.
    pub(super) fn waiting(
        &mut self,
        server: &ServerName,
        up_to: Offset,
        rooms: &[Arc<Room>],
    ) -> Result<WaitingEvents, ReadError> {
        let mut waiting = WaitingEvents::default();
        let mut first: Option<Offset> = None;
        for room in rooms.iter().filter(|room| room.changed() > up_to) {
            let most = self.left.min(limits::DESTINATION_EVENTS);
            let stays = ServerStays::of(room, server, up_to);
            let recent = room.events_backward(Offset::MAX, up_to, most + 1);
            waiting.and_more |= recent.len() > most;
            self.left -= recent.len().min(most);
            for offset in recent.into_iter().take(most) {
                let Some(event) = self.engine.events().get(offset)? else { continue };
                if concerns(&event, server, &stays) {
                    waiting.events += 1;
                    first = Some(first.map_or(offset, |first| first.min(offset)));
                }
            }
        }
        if let Some(first) = first {
            let head = self.engine.head().offset();
            waiting.records = head.get().saturating_sub(first.get()) + 1;
            let record = self.engine.log().get(first)?;
            waiting.since_ms = record.map(|record| record.happened_ms());
        }
        Ok(waiting)
    }
}
