//! The names of rooms, in memory: sorting or searching all rooms must not read a record for each.

use dashmap::DashMap;
use ruma::{OwnedRoomId, events::StateEventType};

use logcabin_base::{background::Pace, text};
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Room;

/// The names of rooms that were looked up so far.
#[derive(Debug, Default)]
pub struct Names {
    names: CachedTexts,
    aliases: CachedTexts,
}

/// A text of each room, folded, with the event that set it.
type CachedTexts = DashMap<OwnedRoomId, (Offset, Option<String>)>;

impl Names {
    /// The room's name, folded for comparisons.
    pub(super) fn name(&self, engine: &Engine, room: &Room) -> Result<Option<String>, ReadError> {
        of(&self.names, engine, room, &StateEventType::RoomName, "name")
    }

    /// The room's main alias, folded for comparisons.
    pub(super) fn alias(&self, engine: &Engine, room: &Room) -> Result<Option<String>, ReadError> {
        of(&self.aliases, engine, room, &StateEventType::RoomCanonicalAlias, "alias")
    }

    /// Looks up the names of all rooms, and forgets rooms that no longer exist. Blocks, and ends
    /// early once `goes_on` returns false.
    pub fn learn(&self, engine: &Engine, goes_on: impl Fn() -> bool) -> Result<(), ReadError> {
        let state = engine.state().share();
        for known in [&self.names, &self.aliases] {
            known.retain(|room_id, _| state.rooms.get(room_id).is_some());
        }
        let mut pace = Pace::begin();
        for rooms in state.rooms.all().chunks(100) {
            for room in rooms {
                self.name(engine, room)?;
                self.alias(engine, room)?;
            }
            pace.rest();
            if !goes_on() {
                break;
            }
        }
        Ok(())
    }
}

fn of(
    known: &CachedTexts,
    engine: &Engine,
    room: &Room,
    kind: &StateEventType,
    field: &str,
) -> Result<Option<String>, ReadError> {
    let Some(event) = room.state_event(kind, "", Offset::MAX) else { return Ok(None) };
    if room.redaction_of(event, Offset::MAX).is_some() {
        known.remove(&room.id);
        return Ok(None);
    }
    if let Some(known) = known.get(&room.id)
        && known.0 == event
    {
        return Ok(known.1.clone());
    }
    let text = engine.events().state_text(room, kind, field, Offset::MAX)?;
    let text = text.as_deref().map(text::fold);
    known.insert(room.id.clone(), (event, text.clone()));
    Ok(text)
}
