//! The descriptions of the rooms in the directory.

use std::sync::Arc;

use dashmap::DashMap;
use ruma::{
    OwnedMxcUri, OwnedRoomAliasId, OwnedRoomId, UInt,
    directory::{PublicRoomsChunk, PublicRoomsChunkInit},
    events::StateEventType,
    room::{JoinRuleKind, RoomType},
};

use logcabin_log::ReadError;
use logcabin_read::events::EventStore;
use logcabin_record::Offset;
use logcabin_state::Room;

/// The descriptions of listed rooms that were requested so far. Each is cached until the state that
/// it was made from changes.
#[derive(Debug, Default)]
pub struct Catalogue(DashMap<OwnedRoomId, (CatalogueSource, Arc<PublicRoomsChunk>)>);

/// The state events that describe a room.
const DESCRIBING: [StateEventType; 8] = [
    StateEventType::RoomCreate,
    StateEventType::RoomName,
    StateEventType::RoomTopic,
    StateEventType::RoomAvatar,
    StateEventType::RoomCanonicalAlias,
    StateEventType::RoomJoinRules,
    StateEventType::RoomHistoryVisibility,
    StateEventType::RoomGuestAccess,
];

type CatalogueSource = [(Option<Offset>, Option<Offset>); DESCRIBING.len()];

impl Catalogue {
    /// More than the expected number of listed rooms; above it, the cache is cleared.
    const MOST: usize = 100_000;

    /// The room's description, with the present number of members.
    pub fn describe(
        &self,
        events: &EventStore,
        room: &Room,
    ) -> Result<Arc<PublicRoomsChunk>, ReadError> {
        let made_from = DESCRIBING.map(|event_type| {
            let offset = room.state_event(&event_type, "", Offset::MAX);
            (offset, offset.and_then(|offset| room.redaction_of(offset, Offset::MAX)))
        });
        let joined = joined(room, Offset::MAX);
        let known = self.0.get(&room.id).filter(|known| known.0 == made_from);
        let described = match known.map(|known| Arc::clone(&known.1)) {
            Some(described) if described.num_joined_members == joined => return Ok(described),
            Some(described) => {
                let mut described = PublicRoomsChunk::clone(&described);
                described.num_joined_members = joined;
                described
            }
            None => describe(events, room, Offset::MAX)?,
        };
        let described = Arc::new(described);
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(room.id.clone(), (made_from, Arc::clone(&described)));
        Ok(described)
    }
}

/// The directory's description of a room as of `at`.
pub fn describe(
    events: &EventStore,
    room: &Room,
    at: Offset,
) -> Result<PublicRoomsChunk, ReadError> {
    let field =
        |event_type: StateEventType, field: &str| events.state_text(room, &event_type, field, at);
    let visibility = field(StateEventType::RoomHistoryVisibility, "history_visibility")?;
    let guests = field(StateEventType::RoomGuestAccess, "guest_access")?;
    let init = PublicRoomsChunkInit {
        num_joined_members: joined(room, at),
        room_id: room.id.clone(),
        world_readable: visibility.as_deref() == Some("world_readable"),
        guest_can_join: guests.as_deref() == Some("can_join"),
    };
    let mut described = PublicRoomsChunk::from(init);
    described.name = field(StateEventType::RoomName, "name")?;
    described.topic = field(StateEventType::RoomTopic, "topic")?;
    described.avatar_url =
        field(StateEventType::RoomAvatar, "url")?.map(|url| OwnedMxcUri::from(url.as_str()));
    described.canonical_alias = field(StateEventType::RoomCanonicalAlias, "alias")?
        .and_then(|alias| OwnedRoomAliasId::try_from(alias).ok());
    if let Some(rule) = field(StateEventType::RoomJoinRules, "join_rule")? {
        described.join_rule = JoinRuleKind::from(rule);
    }
    described.room_type = field(StateEventType::RoomCreate, "type")?.map(RoomType::from);
    Ok(described)
}

fn joined(room: &Room, at: Offset) -> UInt {
    UInt::try_from(room.counts(at).joined).unwrap_or(UInt::MAX)
}
