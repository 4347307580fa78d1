//! What lists say about a room.

use ruma::{OwnedRoomId, events::StateEventType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::context::{ActContext, ActError};
use logcabin_log::ReadError;
use logcabin_read::events::as_shown;
use logcabin_record::Offset;
use logcabin_state::Room;

/// One room in a list, in the words of the tools that speak `/_synapse/admin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSummary {
    pub room_id: OwnedRoomId,
    pub name: Option<String>,
    pub canonical_alias: Option<String>,
    pub joined_members: u64,
    /// Those of this server: all, as long as it does not federate.
    pub(crate) joined_local_members: usize,
    pub version: String,
    pub creator: Option<String>,
    /// The algorithm, if it is encrypted.
    pub encryption: Option<String>,
    /// Whether users of other servers could join.
    pub(crate) federatable: bool,
    /// Whether the public directory lists it.
    pub public: bool,
    pub join_rules: Option<String>,
    pub(crate) guest_access: Option<String>,
    pub history_visibility: Option<String>,
    pub state_events: usize,
    /// For example `m.space`.
    pub room_type: Option<String>,
    /// The number of events, state events included.
    pub events: usize,
    pub blocked: bool,
}

pub(super) fn state_content(
    context: &ActContext,
    room: &Room,
    kind: StateEventType,
) -> Result<Value, ReadError> {
    let Some(offset) = room.state_event(&kind, "", Offset::MAX) else { return Ok(Value::Null) };
    let event = context.engine.events().get(offset)?;
    let event = event.map(|event| as_shown(room, event, Offset::MAX));
    Ok(event.and_then(|event| event.content_as().ok()).unwrap_or_default())
}

pub(super) fn creator(context: &ActContext, room: &Room) -> Result<Option<String>, ReadError> {
    let create = room.create_event();
    let event = create.map(|offset| context.engine.events().get(offset)).transpose()?.flatten();
    Ok(event.map(|event| event.sender.to_string()))
}

/// How many users of this server are in the room.
pub(super) fn joined_here(context: &ActContext, room: &Room) -> usize {
    room.joined_of(&context.engine.env().server.name)
}

pub(super) fn summary(context: &ActContext, room: &Room) -> Result<RoomSummary, ActError> {
    use StateEventType as Kind;
    let create = state_content(context, room, Kind::RoomCreate)?;
    let joined = room.counts(Offset::MAX).joined;
    Ok(RoomSummary {
        room_id: room.id.clone(),
        name: context.state_text(room, Kind::RoomName, "name")?,
        canonical_alias: context.state_text(room, Kind::RoomCanonicalAlias, "alias")?,
        joined_members: joined,
        joined_local_members: joined_here(context, room),
        version: room.version.to_string(),
        creator: creator(context, room)?,
        encryption: context.state_text(room, Kind::RoomEncryption, "algorithm")?,
        federatable: create["m.federate"] != Value::Bool(false),
        public: room.is_public(),
        join_rules: context.state_text(room, Kind::RoomJoinRules, "join_rule")?,
        guest_access: context.state_text(room, Kind::RoomGuestAccess, "guest_access")?,
        history_visibility: context.state_text(
            room,
            Kind::RoomHistoryVisibility,
            "history_visibility",
        )?,
        state_events: room.full_state(Offset::MAX).len(),
        room_type: create["type"].as_str().map(ToOwned::to_owned),
        events: room.event_count(Offset::MAX),
        blocked: context.engine.state().closures.blocked(&room.id).is_some(),
    })
}
