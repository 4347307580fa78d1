//! What clients ask of rooms that this homeserver is not in, by way of others that are.

use std::sync::Arc;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedEventId, OwnedRoomId, OwnedServerName,
    OwnedUserId, RoomAliasId, RoomId, RoomOrAliasId, ServerName, UserId,
};
use tracing::warn;

use super::directory::must_be_listed;
use crate::{
    api::{appservice::services as appservice, outgoing::AskedServer, server::Server},
    http::{ApiError, Caller, Cx, ErrorCode},
};
use logcabin_decide::may_be_entered;
use logcabin_engine::Engine;
use logcabin_record::Offset;
use logcabin_service::federation::{EntryRequest, MembershipChange};
use logcabin_state::Membership;

/// A room that a client names, and homeservers that may be in it.
pub(super) struct RoomReference {
    pub(super) room_id: OwnedRoomId,
    pub(super) via: Vec<OwnedServerName>,
}

impl Server {
    /// The name of this homeserver, if it federates.
    pub(super) fn federates_as(&self) -> Option<&ServerName> {
        self.outside.federation.is_some().then_some(&*self.config.server.name)
    }
}

impl<C: Caller> Cx<Server, C> {
    /// The room of an id or an alias, which may be one of another homeserver.
    pub(super) async fn place(
        &self,
        room: &RoomOrAliasId,
        mut via: Vec<OwnedServerName>,
    ) -> Result<RoomReference, ApiError> {
        let Ok(alias) = <&RoomAliasId>::try_from(room) else {
            return Ok(RoomReference { room_id: appservice::resolve(&self.app, room).await?, via });
        };
        let room_id = if self.is_remote(alias.server_name()) {
            let found = self.remote_alias(alias).await?;
            via.extend(found.servers);
            via.push(alias.server_name().to_owned());
            found.room_id
        } else {
            appservice::resolve(&self.app, room).await?
        };
        must_be_listed(&self.app, &room_id, alias, self.caller.session())?;
        Ok(RoomReference { room_id, via })
    }
}

impl Cx<Server> {
    /// Whether the room is only on other homeservers: this one federates, and is not in it.
    pub(super) fn is_remote_room(&self, room_id: &RoomId) -> bool {
        self.app.outside.federation.is_some()
            && self
                .app
                .engine
                .state()
                .rooms
                .get(room_id)
                .is_none_or(|room| !room.has_server(&self.app.config.server.name))
            && !self.was_made_here(room_id)
    }

    /// Whether this homeserver federates, and users of others are in the room.
    pub(super) fn has_others(&self, room_id: &RoomId) -> bool {
        let own = &self.app.config.server.name;
        let room = self.app.engine.state().rooms.get(room_id);
        let others = room.is_some_and(|room| room.servers().iter().any(|server| server != own));
        others && self.app.outside.federation.is_some()
    }

    /// A room that was made here, and that everybody has left, is nowhere else unless others are in
    /// it.
    fn was_made_here(&self, room_id: &RoomId) -> bool {
        let Some(room) = self.app.engine.state().rooms.get(room_id) else { return false };
        let made = self.app.engine.events().get(room.created).ok().flatten();
        room.servers().is_empty()
            && made.is_some_and(|event| {
                event.received.is_none()
                    && event.aside.is_none()
                    && event.sender.server_name() == self.app.config.server.name
            })
    }

    /// Joins, knocks or leaves by way of another homeserver.
    pub(super) async fn change_membership_elsewhere(
        &self,
        change: MembershipChange,
        place: RoomReference,
        reason: Option<String>,
    ) -> Result<(), ApiError> {
        let app = Arc::clone(&self.app);
        let user_id = self.caller.user_id.clone();
        if app.engine.state().accounts.is_guest(&user_id) {
            return Err(ApiError::new(
                ErrorCode::GuestAccessForbidden,
                "Guests cannot enter rooms of other servers.",
            ));
        }
        let RoomReference { room_id, via } = place;
        if change != MembershipChange::Leave {
            // Before others are asked: the decision at the end comes too late for what they send.
            let env = app.engine.env();
            may_be_entered(&env, &room_id, &user_id)?;
            env.quotas.room(&env.state, &user_id)?;
        }
        let via = all_via(&app.engine, &room_id, &user_id, via);
        let key = (user_id, room_id, change);
        let lost = ApiError::internal;
        let mut running =
            self.app.outside.entry_attempts.run(key, lost, |(user_id, room_id, change)| {
                // It continues if the client hangs up: other homeservers may have recorded it
                // already.
                tokio::spawn(async move {
                    let wish = EntryRequest {
                        room_id: &room_id,
                        user_id: &user_id,
                        reason: reason.as_deref(),
                    };
                    let failed = |error| AskedServer::OfRoom.failed(error);
                    app.receiving()?.change_membership(change, wish, &via).await.map_err(failed)
                })
            });
        match running.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.as_ref().copied().map_err(|error| error.again()),
            _ => Err(ApiError::internal("an attempt to enter a room was lost")),
        }
    }

    /// Invites a user of another homeserver, by an event with this content.
    pub(super) async fn invite_elsewhere(
        &self,
        room_id: OwnedRoomId,
        target: OwnedUserId,
        content: CanonicalJsonObject,
    ) -> Result<OwnedEventId, ApiError> {
        let (app, user_id) = (Arc::clone(&self.app), self.caller.user_id.clone());
        let inviting = tokio::spawn(async move {
            let failed = |error| AskedServer::OfInvited.failed(error);
            app.receiving()?.invite(&room_id, &user_id, &target, content).await.map_err(failed)
        });
        inviting.await.map_err(ApiError::internal)?
    }

    /// Invites users of other homeservers to a new room.
    pub(super) async fn invite_all_elsewhere(
        &self,
        room_id: &RoomId,
        targets: Vec<OwnedUserId>,
        is_direct: bool,
    ) {
        for target in targets {
            // The room exists: a client that got an error would create another.
            let content = invite_content(None, is_direct);
            let invite = self.invite_elsewhere(room_id.to_owned(), target.clone(), content);
            if let Err(error) = invite.await {
                warn!(%room_id, %target, %error, "a user could not be invited to a new room");
            }
        }
    }
}

/// What an invite says besides whom it is for.
pub(super) fn invite_content(reason: Option<String>, is_direct: bool) -> CanonicalJsonObject {
    let mut content = CanonicalJsonObject::new();
    content.extend(reason.map(|of| ("reason".to_owned(), CanonicalJsonValue::String(of))));
    if is_direct {
        content.insert("is_direct".to_owned(), CanonicalJsonValue::Bool(true));
    }
    content
}

/// Homeservers that may be in a room: those that the client names, that of who invited the user,
/// and that of the room's id.
fn all_via(
    engine: &Engine,
    room_id: &RoomId,
    user_id: &UserId,
    mut via: Vec<OwnedServerName>,
) -> Vec<OwnedServerName> {
    if let Some(room) = engine.state().rooms.get(room_id) {
        let event = room.membership(user_id, Offset::MAX);
        let event = event.filter(|(_, is)| matches!(is, Membership::Invite | Membership::Knock));
        let event = event.and_then(|(offset, _)| engine.events().get(offset).ok().flatten());
        if let Some(event) = event {
            via.push(event.sender.server_name().to_owned());
            via.extend(event.received.as_ref().map(|received| received.from.clone()));
        }
        via.extend(room.servers());
    }
    via.extend(room_id.server_name().map(ToOwned::to_owned));
    let mut seen = std::collections::HashSet::new();
    via.retain(|server| *server != engine.env().server.name && seen.insert(server.clone()));
    via
}
