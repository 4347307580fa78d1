//! Rooms that this homeserver is not in, as others describe them (server-server API, "Spaces").

use ruma::{OwnedServerName, RoomId, ServerName, UserId, room::JoinRuleSummary};

use super::view::SpaceView;
use crate::{
    api::server::Server,
    http::{ApiError, Caller, Cx, ErrorCode},
};
use logcabin_base::limits;
use logcabin_service::spaces::Described;
use logcabin_state::{Membership, Room};

impl SpaceView<'_> {
    /// Whether a room is looked up at other homeservers: this one federates and is not in it.
    pub(super) fn is_remote_room(&self, room: Option<&Room>) -> bool {
        let Some(own) = self.federates_as else { return false };
        room.is_none_or(|room| !room.has_server(own) && !room.servers().is_empty())
    }

    /// Whether the user may see how others describe a room: they could join it, knock on it, or
    /// read it.
    pub(super) fn may_know_of_remote(&self, described: &Described) -> bool {
        let summary = &described.summary;
        let own = self.user_id.and_then(|user_id| {
            let room = self.state.rooms.get(&summary.room_id)?;
            room.membership(user_id, self.at).map(|(_, membership)| membership)
        });
        if summary.world_readable || own == Some(Membership::Invite) {
            return true;
        }
        match &summary.join_rule {
            JoinRuleSummary::Public | JoinRuleSummary::Knock => own != Some(Membership::Ban),
            JoinRuleSummary::Restricted(restricted)
            | JoinRuleSummary::KnockRestricted(restricted) => self.user_id.is_some_and(|user_id| {
                let mut allowed = restricted.allowed_room_ids.iter();
                allowed.any(|room_id| self.is_joined(user_id, room_id))
            }),
            _ => false,
        }
    }

    fn is_joined(&self, user_id: &UserId, room_id: &RoomId) -> bool {
        let room = self.state.rooms.get(room_id);
        room.is_some_and(|room| room.is_joined(user_id, self.at))
    }
}

impl<C: Caller> Cx<Server, C> {
    /// Asks homeservers for a room, one after the other, and remembers what they say.
    ///
    /// # Errors
    /// When the caller may not have them asked now.
    pub(super) async fn describe(
        &self,
        room_id: &RoomId,
        via: &[OwnedServerName],
    ) -> Result<(), ApiError> {
        let servers = via.iter().filter(|server| self.is_remote(server));
        let mut described = None;
        for server in servers.take(limits::HIERARCHY_VIA) {
            match self.remote_space(server, room_id).await {
                Ok(said) if said.summary.room_id == *room_id => {
                    described = Some(Described::new(said));
                    break;
                }
                Err(error) if matches!(error.code(), ErrorCode::LimitExceeded { .. }) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        let descriptions = &self.app.listing.descriptions;
        descriptions.keep((room_id.to_owned(), via.to_vec()), described);
        Ok(())
    }
}

/// Homeservers that may know a room: those that are named, and that of the room's id.
pub(super) fn via(room_id: &RoomId, named: &[OwnedServerName]) -> Vec<OwnedServerName> {
    let own = room_id.server_name().map(ServerName::to_owned);
    let mut via = named.to_vec();
    via.extend(own.filter(|own| !named.contains(own)));
    via
}
