//! Stripped state: what a room shows to users who are invited or knock (client-server API,
//! "Stripped state").

use ruma::{
    UserId,
    events::{StateEventType, TimelineEventType},
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{EventRef, EventStore, StoredEvent, as_shown, to_raw};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Room;

/// The state that identifies a room to people.
const STRIPPED: [StateEventType; 8] = [
    StateEventType::RoomCreate,
    StateEventType::RoomName,
    StateEventType::RoomAvatar,
    StateEventType::RoomTopic,
    StateEventType::RoomJoinRules,
    StateEventType::RoomCanonicalAlias,
    StateEventType::RoomEncryption,
    StateEventType::RoomPowerLevels,
];

impl EventStore {
    /// The stripped state for `member`, an invite or a knock: as of that event, with the membership
    /// of the inviter, and without what was redacted up to `at`.
    pub fn stripped_state(
        &self,
        room: &Room,
        member: &StoredEvent,
        at: Offset,
    ) -> Result<Vec<Box<RawValue>>, ReadError> {
        // This is all that the server has of a room that it was not in.
        if let Some(received) = member.received.as_ref().filter(|of| !of.stripped.is_empty()) {
            return Ok(received.stripped.clone());
        }
        Ok(self.state_to_strip(room, member, at)?.iter().map(strip).collect())
    }

    /// The events that stripped state is made from.
    pub fn state_to_strip(
        &self,
        room: &Room,
        member: &StoredEvent,
        at: Offset,
    ) -> Result<Vec<EventRef>, ReadError> {
        let key = |event_type: &StateEventType, state_key: &str| {
            room.state_event(event_type, state_key, member.offset)
        };
        let mut offsets: Vec<_> =
            STRIPPED.iter().filter_map(|event_type| key(event_type, "")).collect();
        if member.state_key.as_deref() != Some(member.sender.as_str()) {
            offsets.extend(key(&StateEventType::RoomMember, member.sender.as_str()));
        }
        let events = self.get_all(&offsets)?.into_iter();
        Ok(events.map(|event| as_shown(room, event, at)).collect())
    }
}

/// An event reduced to the fields of stripped state.
pub(crate) fn strip(event: &EventRef) -> Box<RawValue> {
    #[derive(Serialize)]
    struct Stripped<'a> {
        #[serde(rename = "type")]
        event_type: &'a TimelineEventType,
        state_key: &'a str,
        sender: &'a UserId,
        content: &'a RawValue,
    }
    to_raw(&Stripped {
        event_type: &event.event_type,
        state_key: event.state_key.as_deref().unwrap_or_default(),
        sender: &event.sender,
        content: &event.content,
    })
}
