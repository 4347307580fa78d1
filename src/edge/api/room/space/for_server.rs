//! The hierarchy of a space, for another homeserver: one space and what is directly in it, as far
//! as this server has it (server-server API, "Spaces").

use ruma::{
    ServerName,
    api::federation::space::{
        SpaceHierarchyParentSummary, get_hierarchy::v1 as get_hierarchy_for_server,
    },
};

use super::{Child, Rooms, Walk, view::SpaceView};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Homeserver},
};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_service::spaces::Paused;
use logcabin_state::{Membership, Room};

pub(in crate::api) async fn hierarchy_for_server(
    cx: Cx<Server, Homeserver>,
    request: get_hierarchy_for_server::Request,
) -> Result<get_hierarchy_for_server::Response, ApiError> {
    let get_hierarchy_for_server::Request { room_id, suggested_only, .. } = request;
    let Homeserver(server) = &cx.caller;
    let look = SpaceView {
        state: &cx.app.engine.state(),
        events: cx.app.engine.events(),
        user_id: None,
        sees_all: false,
        at: cx.app.engine.head().offset(),
        federates_as: None,
    };
    cx.at_length(|| {
        // A room that the homeserver may not know of does not exist for it.
        let hidden = || ApiError::not_found("There is no such room.");
        let room = look.state.rooms.get(&room_id).ok_or_else(hidden)?;
        if !look.server_may_know_of(&room, server)? {
            return Err(hidden());
        }
        let walk = Walk { root: room_id, suggested_only, max_depth: Some(0), sees_all: false };
        let (descriptions, state) = (&cx.app.listing.descriptions, Paused::default());
        let mut rooms = Rooms { walk: &walk, then: look, now: look, descriptions, state };
        let children = rooms.children(&room)?;
        let shown = children.iter().map(Child::stripped).collect();
        let parent = SpaceHierarchyParentSummary::new(look.summary(&room)?, shown);
        let mut response = get_hierarchy_for_server::Response::new(parent);
        for child in children.into_iter().take(limits::HIERARCHY_LOOKS) {
            let Some(room) = look.state.rooms.get(&child.room_id) else { continue };
            if !look.server_may_know_of(&room, server)? {
                response.inaccessible_children.push(child.room_id);
            } else if response.children.len() < limits::HIERARCHY_ROOMS {
                response.children.push(look.summary(&room)?);
            }
        }
        Ok(response)
    })
    .await
}

impl SpaceView<'_> {
    /// Whether a homeserver may know of the room: anybody may, or one of its users is in it, or may
    /// join it because they are in another room.
    fn server_may_know_of(&self, room: &Room, server: &ServerName) -> Result<bool, ReadError> {
        if self.may_know_of(room)? || self.has_member_of(room, server) {
            return Ok(true);
        }
        let rules = &room.rules.authorization;
        let rule = self.text(room, ruma::events::StateEventType::RoomJoinRules, "join_rule")?;
        let by_membership = match rule.as_str() {
            "restricted" => rules.restricted_join_rule,
            "knock_restricted" => rules.knock_restricted_join_rule,
            _ => false,
        };
        if !by_membership {
            return Ok(false);
        }
        let allowed = self.allowed_rooms(room)?;
        let mut allowed = allowed.iter().filter_map(|room_id| self.state.rooms.get(room_id));
        Ok(allowed.any(|room| self.has_member_of(&room, server)))
    }

    fn has_member_of(&self, room: &Room, server: &ServerName) -> bool {
        let members = room.members(Membership::Join, self.at);
        members.iter().any(|(user_id, _)| user_id.server_name() == server)
    }
}
