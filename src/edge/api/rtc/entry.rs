//! The way into a call, whoever asks: only members of the room get there.

use std::time::Instant;

use ruma::{OwnedRoomId, RoomId, ServerName, UserId};

use crate::{
    api::{answer::not_in_it, server::Server},
    http::{ApiError, ErrorCode},
};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_outside::livekit::{Livekit, LivekitError, room_name};
use logcabin_read::servers::admits;
use logcabin_record::Offset;
use logcabin_state::Room;

/// Where somebody wants to take part, and what they may do there.
pub(super) struct Entry<'a> {
    pub(super) room_id: &'a RoomId,
    pub(super) slot_id: &'a str,
    pub(super) user_id: &'a UserId,
    /// LiveKit's name for this one participant.
    pub(super) identity: String,
    pub(super) may_begin: bool,
    pub(super) can_publish: bool,
}

impl Server {
    pub(super) fn livekit(&self) -> Result<&Livekit, ApiError> {
        self.outside.livekit.as_ref().ok_or_else(ApiError::no_such_endpoint)
    }

    /// A token for a member of a room, for whom the LiveKit room is made if need be.
    pub(super) async fn let_into_call(&self, entry: Entry<'_>) -> Result<String, ApiError> {
        let Entry { room_id, slot_id, user_id, identity, may_begin, can_publish } = entry;
        let livekit = self.livekit()?;
        self.must_be_joined(room_id, user_id)?;
        let standing = self.engine.state().accounts.standing(user_id);
        // Shadow-banned users are in calls of their own, and meet nobody.
        let apart = standing.is_some_and(|standing| standing.shadow_banned);
        let name = room_name(room_id.as_str(), slot_id, apart.then_some(user_id.as_str()));
        let now_ms = self.engine.clock().now_ms();
        if may_begin {
            livekit.create_room(&name, now_ms).await.map_err(not_made)?;
        }
        livekit.token(&name, &identity, can_publish, now_ms).map_err(ApiError::internal)
    }

    /// Only members get into the calls of a room, while this server hears who they are.
    pub(super) fn must_be_joined(
        &self,
        room_id: &RoomId,
        user_id: &UserId,
    ) -> Result<(), ApiError> {
        let room = self.room(room_id)?;
        let is_in = room.is_joined(user_id, Offset::MAX)
            && self.calls_with(&room, user_id.server_name())?;
        is_in.then_some(()).ok_or_else(not_in_it)
    }

    /// Whether users of a homeserver take part in the calls of a room: it is in the room, as this
    /// server is, and the room's access control list admits it.
    pub(super) fn calls_with(&self, room: &Room, server: &ServerName) -> Result<bool, ReadError> {
        let own = &self.config.server.name;
        let are_in = room.has_server(own) && room.has_server(server);
        Ok(are_in && (server == own || admits(self.engine.events(), room, server)?))
    }

    /// Counts a token for calls against a user for whom others vouch.
    pub(super) fn count_call_token(&self, user_id: &UserId) -> Result<(), ApiError> {
        if !self.config.rate_limits.enabled {
            return Ok(());
        }
        let taken = self.outside.call_tokens.take(user_id.to_owned(), Instant::now());
        taken.map_err(ApiError::limit_exceeded)
    }
}

fn not_made(error: LivekitError) -> ApiError {
    let is_late = matches!(&error, LivekitError::Unreached(unreached) if unreached.is_timeout());
    let code = if is_late { ErrorCode::ConnectionTimeout } else { ErrorCode::ConnectionFailed };
    tracing::warn!(%error, "LiveKit does not make a room");
    ApiError::new(code, "The server for calls does not answer as it should.").with_cause(error)
}

/// Refuses names that are empty, or longer than those of events.
pub(super) fn must_be_names(names: &[&str]) -> Result<(), ApiError> {
    let is_name = |name: &&str| !name.is_empty() && name.len() <= limits::CALL_NAME_BYTES;
    match names.iter().all(is_name) {
        true => Ok(()),
        false => Err(ApiError::bad_json("An id in the request is empty or too long.")),
    }
}

/// A room id as it is in a request.
pub(super) fn room_of(text: &str) -> Result<OwnedRoomId, ApiError> {
    let wrong = |_| ApiError::bad_json("The room id is not one.");
    OwnedRoomId::try_from(text).map_err(wrong)
}
