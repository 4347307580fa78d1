//! Changes of rooms' states without an event of the room after them.

use std::collections::{BTreeMap, HashSet};

use super::{index::Status, progress::WaitingChange, writer::Writer};
use crate::{
    ImportError,
    facts::{Key, Origin},
};
use logcabin_base::limits;
use logcabin_record::{Offset, Stream, command::RoomState, division::parts};

/// Where a change was found.
fn origin(change: &WaitingChange) -> Origin {
    Origin { table: "current_state_delta_stream", key: Key::Number(change.stream) }
}

/// The places at which the source forgot the room's state, because nobody of this server is in the
/// room any more. Here it stays as it was.
pub(super) fn forgotten(changes: &[WaitingChange]) -> HashSet<i64> {
    changes
        .iter()
        .filter(|change| change.event_id.is_none() && change.event_type == "m.room.create")
        .map(|change| change.stream)
        .collect()
}

impl Writer<'_> {
    /// Notes that a change does not come along, because its event did not come.
    pub(super) fn leave_change(&mut self, change: &WaitingChange) -> Result<(), ImportError> {
        let WaitingChange { event_type, state_key, event_id, .. } = change;
        let event_id = event_id.as_deref().unwrap_or_default();
        let why = format!("{event_id} holds {event_type} `{state_key}`, and is not in the log");
        self.leave(&origin(change), "its event is not in the log", &why)
    }

    /// Writes the changes that no event of their room came after, when nothing more is to come. The
    /// source makes such changes when it has been told of all members of a room.
    pub(super) fn write_waiting_changes(&mut self) -> Result<(), ImportError> {
        let rooms: Vec<String> = self.progress.waiting.by_room.keys().cloned().collect();
        for room_id in rooms {
            self.write_waiting_of(&room_id)?;
            self.within()?;
        }
        Ok(())
    }

    fn write_waiting_of(&mut self, room_id: &str) -> Result<(), ImportError> {
        let waiting = self.progress.waiting.take(room_id, i64::MAX);
        let (Ok(id), Some(_)) = (super::convert::room(room_id), self.known.room(room_id)) else {
            return waiting.iter().try_for_each(|change| self.leave_change(change));
        };
        self.known.look_at(room_id);
        let forgotten = forgotten(&waiting);
        let mut last: BTreeMap<(String, String), (Option<Offset>, Origin)> = BTreeMap::new();
        for change in waiting {
            let key = (change.event_type.clone(), change.state_key.clone());
            match change.event_id.as_deref() {
                None if forgotten.contains(&change.stream) => {}
                None => {
                    last.insert(key, (None, origin(&change)));
                }
                Some(event_id) => match self.known.seen(event_id) {
                    Some(seen) if seen.status != Status::Rejected => {
                        last.insert(key, (Some(seen.offset), origin(&change)));
                    }
                    _ => self.leave_change(&change)?,
                },
            }
        }
        let mut changes = Vec::new();
        let mut of = None;
        for (key, (event, origin)) in last {
            let holder = self.known.room(room_id).and_then(|room| room.holder(&key.0, &key.1));
            if holder != event {
                changes.push(self.change(key, event, true)?);
                of = Some(origin);
            }
        }
        let Some(origin) = of else { return Ok(()) };
        let stream = Stream::room(&id);
        for changes in parts(changes, limits::STATE_CHANGES_BYTES) {
            let (room_id, from) = (id.clone(), self.own.clone());
            let body = RoomState { room_id, from, changes, unverified: None };
            if !self.put_states(&origin, &stream, vec![body])? {
                break;
            }
        }
        Ok(())
    }
}
