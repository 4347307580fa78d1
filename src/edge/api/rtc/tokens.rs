//! Tokens for calls, from a user's own homeserver (MSC4195, "Acquiring LiveKit access tokens"). For
//! the LiveKit server of another homeserver, it asks that one.

use ruma::{
    OwnedRoomId, OwnedServerName, OwnedUserId,
    api::{auth_scheme::AccessToken, federation::authentication::ServerSignatures},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::entry::{Entry, must_be_names};
use crate::{
    api::{
        answer::{json as to_json, not_in_it},
        server::Server,
    },
    http::{ApiError, Cx, ErrorCode, Homeserver, Json, endpoint},
};
use logcabin_outside::livekit::identity;

endpoint! {
    pub(super) struct Get = POST
        "/_matrix/client/unstable/io.element.msc4195/rtc/livekit/get_token"
        "/_matrix/client/v1/rtc/livekit/get_token";
    for AccessToken;
    { body: Asked = json }
}

endpoint! {
    /// The same for users of other homeservers, by these.
    pub(in crate::api) struct GetForServer = POST
        "/_matrix/federation/unstable/io.element.msc4195/rtc/livekit/get_token"
        "/_matrix/federation/v1/rtc/livekit/get_token";
    for ServerSignatures;
    { body: AskedForUser = json }
}

/// What a client asks for.
#[derive(Deserialize)]
pub(super) struct Asked {
    server_name: Option<OwnedServerName>,
    #[serde(flatten)]
    call: Call,
}

/// What a homeserver asks for.
#[derive(Deserialize, Serialize)]
pub(in crate::api) struct AskedForUser {
    user_id: OwnedUserId,
    #[serde(flatten)]
    call: Call,
}

#[derive(Deserialize, Serialize)]
struct Call {
    url: String,
    room_id: OwnedRoomId,
    slot_id: String,
    member_id: String,
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    let Asked { server_name, call } = request.body;
    must_be_names(&[&call.slot_id, &call.member_id])?;
    let asked = AskedForUser { user_id: cx.caller.user_id.clone(), call };
    let own = &cx.app.config.server.name;
    match server_name.filter(|server| server != own) {
        None => give(&cx.app, &asked, true).await,
        Some(server) => to_json(&json!({ "jwt": elsewhere(&cx, &server, &asked).await? })),
    }
}

pub(in crate::api) async fn get_for_server(
    cx: Cx<Server, Homeserver>,
    request: GetForServer,
) -> Result<Json, ApiError> {
    let asked = request.body;
    let Homeserver(server) = &cx.caller;
    cx.app.livekit()?;
    if asked.user_id.server_name() != server {
        return Err(not_in_it());
    }
    must_be_names(&[&asked.call.slot_id, &asked.call.member_id])?;
    cx.app.count_call_token(&asked.user_id)?;
    give(&cx.app, &asked, false).await
}

/// A token for this server's LiveKit. All members may begin calls there, but only this server's
/// users send by it.
async fn give(app: &Server, asked: &AskedForUser, can_publish: bool) -> Result<Json, ApiError> {
    let AskedForUser { user_id, call: Call { url, room_id, slot_id, member_id } } = asked;
    if app.outside.livekit.as_ref().is_none_or(|livekit| livekit.url() != url) {
        return Err(ApiError::invalid_param("This is not the address of this server's LiveKit."));
    }
    let identity = identity(&[user_id.as_str(), member_id]);
    let entry = Entry { room_id, slot_id, user_id, identity, may_begin: true, can_publish };
    to_json(&json!({ "jwt": app.let_into_call(entry).await? }))
}

/// A token for the LiveKit of another homeserver, which is in the room, too: nobody has this server
/// ask any other.
async fn elsewhere(
    cx: &Cx<Server>,
    server: &OwnedServerName,
    asked: &AskedForUser,
) -> Result<String, ApiError> {
    let room_id = &asked.call.room_id;
    cx.app.must_be_joined(room_id, &asked.user_id)?;
    if !cx.is_remote(server) || !cx.app.calls_with(&*cx.app.room(room_id)?, server)? {
        return Err(not_in_it());
    }
    let standing = cx.app.engine.state().accounts.standing(&asked.user_id);
    if standing.is_some_and(|standing| standing.shadow_banned) {
        // They meet nobody.
        return Err(not_let_in());
    }
    let given = cx.remote_call_token(server, asked).await;
    given.map_err(|error| match error.code() {
        ErrorCode::Forbidden | ErrorCode::InvalidParam | ErrorCode::LimitExceeded { .. } => error,
        _ => not_let_in().with_cause(error.message().to_owned()),
    })
}

fn not_let_in() -> ApiError {
    let told = "The other server does not let you into its calls now.";
    ApiError::new(ErrorCode::Unknown, told).with_status(http::StatusCode::BAD_GATEWAY)
}
