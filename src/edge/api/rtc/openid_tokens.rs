//! Tokens for calls, for whoever shows by an OpenID token who they are: what clients of today ask
//! for, of this server's users and of others.

use ruma::{OwnedServerName, OwnedUserId, RoomId, UserId, api::auth_scheme::NoAccessToken};
use serde::Deserialize;
use serde_json::{Value, json};

use super::entry::{Entry, must_be_names, room_of};
use crate::{
    api::{account::openid, answer::json as to_json, auth::rights, server::Server},
    http::{ApiError, Cx, ErrorCode, Json, endpoint},
};
use logcabin_base::limits;
use logcabin_outside::livekit::identity;

/// The one place for calls that clients of `/sfu/get` know.
const ONLY_SLOT: &str = "m.call#ROOM";

endpoint! {
    pub(super) struct Get = POST "/_matrix/client/unstable/org.logcabin/rtc/get_token";
    for NoAccessToken;
    { body: Asked = json }
}

endpoint! {
    /// The former version, which has no names for the members of calls.
    pub(super) struct GetOfDevice = POST "/_matrix/client/unstable/org.logcabin/rtc/sfu/get";
    for NoAccessToken;
    { body: AskedOfDevice = json }
}

endpoint! {
    pub(super) struct Health = GET "/_matrix/client/unstable/org.logcabin/rtc/healthz";
    for NoAccessToken;
    {}
}

#[derive(Deserialize)]
pub(super) struct Asked {
    room_id: String,
    slot_id: String,
    openid_token: OpenIdToken,
    member: Member,
    #[serde(flatten)]
    delegation: Delegation,
}

#[derive(Deserialize)]
pub(super) struct AskedOfDevice {
    room: String,
    openid_token: OpenIdToken,
    device_id: String,
    #[serde(flatten)]
    delegation: Delegation,
}

#[derive(Deserialize)]
struct Member {
    id: String,
    claimed_user_id: String,
    claimed_device_id: String,
}

#[derive(Deserialize)]
struct OpenIdToken {
    access_token: String,
    matrix_server_name: OwnedServerName,
}

/// The event that is to be sent when the client loses its connection.
#[derive(Deserialize)]
struct Delegation {
    delay_id: Option<Value>,
    delay_timeout: Option<Value>,
}

impl Delegation {
    /// Refuses what is not done here: a client that believed it would let its event be sent in the
    /// middle of the call. One that is refused like this looks after its event itself.
    fn must_be_empty(&self) -> Result<(), ApiError> {
        match (&self.delay_id, &self.delay_timeout) {
            (None, None) => Ok(()),
            _ => Err(ApiError::bad_json("This server does not take charge of delayed events.")),
        }
    }
}

pub(super) async fn get(cx: Cx<Server, ()>, request: Get) -> Result<Json, ApiError> {
    let Asked { room_id, slot_id, openid_token, member, delegation } = request.body;
    let Member { id, claimed_user_id, claimed_device_id } = &member;
    must_be_names(&[&slot_id, id, claimed_user_id, claimed_device_id])?;
    delegation.must_be_empty()?;
    let room_id = room_of(&room_id)?;
    let user_id = user_of(&cx, &openid_token, &room_id).await?;
    if *claimed_user_id != user_id.as_str() {
        return Err(unauthorised());
    }
    let identity = identity(&[user_id.as_str(), claimed_device_id, id]);
    give(&cx, &room_id, &slot_id, &user_id, identity).await
}

pub(super) async fn get_of_device(
    cx: Cx<Server, ()>,
    request: GetOfDevice,
) -> Result<Json, ApiError> {
    let AskedOfDevice { room, openid_token, device_id, delegation } = request.body;
    must_be_names(&[&device_id])?;
    delegation.must_be_empty()?;
    let room_id = room_of(&room)?;
    let user_id = user_of(&cx, &openid_token, &room_id).await?;
    let identity = format!("{user_id}:{device_id}");
    give(&cx, &room_id, ONLY_SLOT, &user_id, identity).await
}

/// What monitoring asks of such services.
pub(super) async fn health(cx: Cx<Server, ()>, _: Health) -> Result<Json, ApiError> {
    cx.app.livekit()?;
    to_json(&json!({}))
}

/// A token and where it is good for. Members of other homeservers may send by this server's
/// LiveKit: clients of today all meet at the one that the first of them has chosen.
async fn give(
    cx: &Cx<Server, ()>,
    room_id: &RoomId,
    slot_id: &str,
    user_id: &UserId,
    identity: String,
) -> Result<Json, ApiError> {
    let server = user_id.server_name();
    let is_own = *server == cx.app.config.server.name;
    let may_begin = is_own || cx.app.config.rtc.may_begin(server);
    let entry = Entry { room_id, slot_id, user_id, identity, may_begin, can_publish: true };
    let jwt = cx.app.let_into_call(entry).await?;
    to_json(&json!({ "url": cx.app.livekit()?.url(), "jwt": jwt }))
}

/// The user who has this token. No homeserver is asked that is not in the room, so that nobody can
/// have this one ask any other. Whether it is in the room is not told.
async fn user_of(
    cx: &Cx<Server, ()>,
    token: &OpenIdToken,
    room_id: &RoomId,
) -> Result<OwnedUserId, ApiError> {
    let OpenIdToken { access_token, matrix_server_name } = token;
    cx.app.livekit()?;
    if access_token.len() > limits::FOREIGN_TOKEN_BYTES {
        return Err(unauthorised());
    }
    if *matrix_server_name == cx.app.config.server.name {
        let user_id = openid::user_of(&cx.app, access_token).ok_or_else(unauthorised)?;
        cx.app.count_call_token(&user_id)?;
        rights::may_take_part(&cx.app.engine, &user_id)?;
        return Ok(user_id);
    }
    let room = cx.app.room(room_id).map_err(|_| unauthorised())?;
    if !cx.is_remote(matrix_server_name) || !cx.app.calls_with(&room, matrix_server_name)? {
        return Err(unauthorised());
    }
    let asked = cx.remote_openid_user(matrix_server_name, access_token).await;
    let user_id = asked.map_err(|error| match error.code() {
        ErrorCode::LimitExceeded { .. } => error,
        _ => unauthorised().with_cause(error.message().to_owned()),
    })?;
    if user_id.server_name() != matrix_server_name {
        return Err(unauthorised());
    }
    cx.app.count_call_token(&user_id)?;
    Ok(user_id)
}

/// The one refusal for all that is wrong with a token.
fn unauthorised() -> ApiError {
    ApiError::new(ErrorCode::Unauthorized, "This OpenID token is not valid here.")
}
