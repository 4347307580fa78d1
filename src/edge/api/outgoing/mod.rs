//! Requests of this server's clients that this server forwards to other homeservers.

mod refused;

use std::collections::{BTreeMap, BTreeSet};

use ruma::{
    OwnedRoomId, OwnedServerName, OwnedUserId, RoomAliasId, RoomId, ServerName, UserId,
    api::federation::space::SpaceHierarchyParentSummary,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

pub(super) use self::refused::AskedServer;
use crate::{
    api::server::Server,
    http::{ApiError, Caller, Cx},
};
use logcabin_base::{limits, text::encoded};
use logcabin_outside::federation::FederationRequest;
use logcabin_record::Offset;

/// The room of an alias.
#[derive(Deserialize, Serialize)]
pub(in crate::api) struct ResolvedAlias {
    pub(in crate::api) room_id: OwnedRoomId,
    pub(in crate::api) servers: Vec<OwnedServerName>,
}

impl<C: Caller> Cx<Server, C> {
    /// Whether this is another homeserver, and federation allows requests to it.
    pub(in crate::api) fn is_remote(&self, server: &ServerName) -> bool {
        self.app.outside.federation.is_some() && *server != self.app.config.server.name
    }

    /// The profile of a user of another homeserver.
    pub(in crate::api) async fn remote_profile(
        &self,
        user_id: &UserId,
    ) -> Result<BTreeMap<String, Value>, ApiError> {
        let query = query(&[("user_id", user_id.as_str())])?;
        let mut question =
            FederationRequest::get(format!("/_matrix/federation/v1/query/profile?{query}"));
        question.max_bytes = limits::PROFILE_BYTES;
        let mut fields: BTreeMap<String, Value> = self.ask(user_id.server_name(), question).await?;
        // Clients require these to be strings.
        fields.retain(|name, value| {
            value.is_string() || !matches!(name.as_str(), "displayname" | "avatar_url")
        });
        Ok(fields)
    }

    /// The room that an alias of another homeserver names.
    pub(in crate::api) async fn remote_alias(
        &self,
        alias: &RoomAliasId,
    ) -> Result<ResolvedAlias, ApiError> {
        let query = query(&[("room_alias", alias.as_str())])?;
        let question =
            FederationRequest::get(format!("/_matrix/federation/v1/query/directory?{query}"));
        let mut found: ResolvedAlias = self.ask(alias.server_name(), question).await?;
        found.servers.truncate(limits::REMOTE_SERVERS);
        Ok(found)
    }

    /// The public rooms of another homeserver, as it describes them.
    pub(in crate::api) async fn remote_rooms<T: DeserializeOwned>(
        &self,
        server: &ServerName,
        asked: &impl Serialize,
    ) -> Result<T, ApiError> {
        self.ask(server, FederationRequest::post("/_matrix/federation/v1/publicRooms", asked)).await
    }

    /// A room and its direct children, as another homeserver describes them.
    pub(in crate::api) async fn remote_space(
        &self,
        server: &ServerName,
        room_id: &RoomId,
    ) -> Result<SpaceHierarchyParentSummary, ApiError> {
        #[derive(Deserialize)]
        struct HierarchyResponse {
            room: SpaceHierarchyParentSummary,
        }
        let path = format!("/_matrix/federation/v1/hierarchy/{}", encoded(room_id.as_str()));
        let said: HierarchyResponse = self.ask(server, FederationRequest::get(path)).await?;
        Ok(said.room)
    }

    /// The user whom an OpenID token of another homeserver is about, as it says.
    pub(in crate::api) async fn remote_openid_user(
        &self,
        server: &ServerName,
        token: &str,
    ) -> Result<OwnedUserId, ApiError> {
        #[derive(Deserialize)]
        struct UserInfo {
            sub: OwnedUserId,
        }
        let query = query(&[("access_token", token)])?;
        let path = format!("/_matrix/federation/v1/openid/userinfo?{query}");
        let mut question = FederationRequest::get(path).unsigned();
        question.max_bytes = limits::FOREIGN_USER_INFO_BYTES;
        let UserInfo { sub } = self.ask(server, question).await?;
        Ok(sub)
    }

    /// A token for calls by way of another homeserver's LiveKit server (MSC4195).
    pub(in crate::api) async fn remote_call_token(
        &self,
        server: &ServerName,
        asked: &impl Serialize,
    ) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Given {
            jwt: String,
        }
        let path = "/_matrix/federation/unstable/io.element.msc4195/rtc/livekit/get_token";
        let mut question = FederationRequest::post(path, asked);
        question.max_bytes = limits::CALL_TOKEN_ANSWER_BYTES;
        let Given { jwt } = self.ask(server, question).await?;
        Ok(jwt)
    }

    /// Counts a request to another homeserver against the caller.
    pub(in crate::api) fn may_ask(&self) -> Result<(), ApiError> {
        if self.app.config.rate_limits.enabled {
            let taken = self.app.outside.query_rates.question(self.whose());
            taken.map_err(ApiError::limit_exceeded)?;
        }
        Ok(())
    }

    /// Counts the homeservers that this one has never reached against the caller who writes to
    /// these users.
    pub(in crate::api) fn may_write_to<'a>(
        &self,
        users: impl Iterator<Item = &'a UserId>,
    ) -> Result<(), ApiError> {
        let state = self.app.engine.state();
        let is_strange = |user_id: &&UserId| {
            let server = user_id.server_name();
            let reached = state.destinations.get(server).map(|of| of.up_to);
            self.is_remote(server)
                && state.memberships.count(user_id) == 0
                && reached.is_none_or(|up_to| up_to == Offset::ZERO)
        };
        if !self.app.config.rate_limits.enabled {
            return Ok(());
        }
        let strangers: BTreeSet<_> = users.filter(is_strange).map(UserId::server_name).collect();
        if strangers.len() > limits::STRANGERS.burst().get() as usize {
            let why = "There are too many servers that this one does not know. Write to fewer.";
            return Err(ApiError::too_large(why));
        }
        let taken = self.app.outside.query_rates.strangers(&self.whose(), strangers.len());
        taken.map_err(ApiError::limit_exceeded)
    }

    /// Asks another homeserver while the caller waits.
    async fn ask<T: DeserializeOwned>(
        &self,
        server: &ServerName,
        mut question: FederationRequest,
    ) -> Result<T, ApiError> {
        let federation = self.app.outside.federation.as_deref();
        let federation =
            federation.ok_or_else(|| ApiError::forbidden("This server does not federate."))?;
        self.may_ask()?;
        question.timeout = limits::OUTBOUND_TIMEOUT;
        let unreachable = |error| AskedServer::Other.unreachable(error);
        let answer = federation.client.send(server, question).await.map_err(unreachable)?;
        match answer.refused() {
            Some(refused) => Err(AskedServer::Other.refused(refused)),
            None => answer.json().map_err(unreachable),
        }
    }
}

fn query(pairs: &[(&str, &str)]) -> Result<String, ApiError> {
    serde_html_form::to_string(pairs).map_err(ApiError::internal)
}
