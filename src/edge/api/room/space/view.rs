//! A room as users see it who may not be in it.

use ruma::{
    EventEncryptionAlgorithm, OwnedRoomId, ServerName, UserId,
    events::StateEventType,
    room::{JoinRuleSummary, RestrictedSummary, RoomSummary},
};

use logcabin_log::ReadError;
use logcabin_read::events::{EventStore, as_shown};
use logcabin_record::Offset;
use logcabin_service::public_rooms::describe;
use logcabin_state::{Membership, Room, State};

/// A user's view of rooms that they may not be in, as of an offset.
#[derive(Clone, Copy)]
pub(super) struct SpaceView<'a> {
    pub(super) state: &'a State,
    pub(super) events: &'a EventStore,
    /// `None` for a caller without an account.
    pub(super) user_id: Option<&'a UserId>,
    /// Whether it shows every room of this server, as to an administrator.
    pub(super) sees_all: bool,
    pub(super) at: Offset,
    /// The name of this homeserver, where others are asked for rooms that it is not in.
    pub(super) federates_as: Option<&'a ServerName>,
}

impl SpaceView<'_> {
    pub(super) fn text(
        &self,
        room: &Room,
        kind: StateEventType,
        field: &str,
    ) -> Result<String, ReadError> {
        Ok(self.events.state_text(room, &kind, field, self.at)?.unwrap_or_default())
    }

    /// Whether the user may see the room's description: they are in it or invited, everyone may
    /// read it, or they could join it or knock.
    pub(super) fn may_know_of(&self, room: &Room) -> Result<bool, ReadError> {
        if self.sees_all {
            // Of a room that this server was only invited to it has no description.
            return Ok(room.is_begun());
        }
        let membership = self.user_id.and_then(|user_id| room.membership(user_id, self.at));
        let membership = membership.map(|(_, membership)| membership);
        if matches!(membership, Some(Membership::Join | Membership::Invite | Membership::Knock)) {
            return Ok(true);
        }
        let kind = StateEventType::RoomHistoryVisibility;
        if self.text(room, kind, "history_visibility")? == "world_readable" {
            return Ok(true);
        }
        if membership == Some(Membership::Ban) {
            return Ok(false);
        }
        let rules = &room.rules.authorization;
        let rule = self.text(room, StateEventType::RoomJoinRules, "join_rule")?;
        let (open, by_membership) = match rule.as_str() {
            "public" => (true, false),
            "knock" => (rules.knocking, false),
            "restricted" => (false, rules.restricted_join_rule),
            "knock_restricted" => {
                (rules.knock_restricted_join_rule, rules.knock_restricted_join_rule)
            }
            _ => (false, false),
        };
        let Some(user_id) = self.user_id.filter(|_| by_membership && !open) else {
            return Ok(open);
        };
        let allowed = self.allowed_rooms(room)?;
        let is_in = |room_id: &OwnedRoomId| {
            let room = self.state.rooms.get(room_id);
            room.is_some_and(|room| room.is_joined(user_id, self.at))
        };
        Ok(allowed.iter().any(is_in))
    }

    /// The rooms whose members may join this one.
    pub(super) fn allowed_rooms(&self, room: &Room) -> Result<Vec<OwnedRoomId>, ReadError> {
        let kind = StateEventType::RoomJoinRules;
        let Some(offset) = room.state_event(&kind, "", self.at) else { return Ok(Vec::new()) };
        let event = self.events.get(offset)?.map(|event| as_shown(room, event, self.at));
        let content: Option<serde_json::Value> = event.and_then(|event| event.content_as().ok());
        let allow = content.as_ref().and_then(|content| content["allow"].as_array());
        let rooms = allow.into_iter().flatten().filter(|of| of["type"] == "m.room_membership");
        Ok(rooms.filter_map(|of| OwnedRoomId::try_from(of["room_id"].as_str()?).ok()).collect())
    }

    /// The room's summary: its directory entry, and what else is needed to join.
    pub(super) fn summary(&self, room: &Room) -> Result<RoomSummary, ReadError> {
        let described = describe(self.events, room, self.at)?;
        let join_rule = match JoinRuleSummary::from(described.join_rule) {
            JoinRuleSummary::Restricted(_) => {
                JoinRuleSummary::Restricted(RestrictedSummary::new(self.allowed_rooms(room)?))
            }
            JoinRuleSummary::KnockRestricted(_) => {
                JoinRuleSummary::KnockRestricted(RestrictedSummary::new(self.allowed_rooms(room)?))
            }
            other => other,
        };
        let mut summary = RoomSummary::new(
            described.room_id,
            join_rule,
            described.guest_can_join,
            described.num_joined_members,
            described.world_readable,
        );
        summary.canonical_alias = described.canonical_alias;
        summary.name = described.name;
        summary.topic = described.topic;
        summary.avatar_url = described.avatar_url;
        summary.room_type = described.room_type;
        let algorithm = self.text(room, StateEventType::RoomEncryption, "algorithm")?;
        summary.encryption =
            Some(algorithm).filter(|text| !text.is_empty()).map(EventEncryptionAlgorithm::from);
        summary.room_version = Some(room.version.clone());
        Ok(summary)
    }
}
