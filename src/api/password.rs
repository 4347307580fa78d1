//! Passwords: who a password proves, and its change.

use ruma::{
    OwnedUserId, UserId,
    api::client::{account::change_password::v3 as change_password_v3, uiaa::UserIdentifier},
};

use super::{
    Server,
    credentials::check_password,
    uiaa::{self, Facts},
};
use crate::{
    decide::account::{SetPassword, Which},
    http::{ApiError, Cx, Session},
    limits,
    record::command::Secret,
};

pub(super) async fn change_password(
    cx: Cx<Server, Option<Session>>,
    request: change_password_v3::Request,
) -> Result<change_password_v3::Response, ApiError> {
    let session = cx.caller.clone().ok_or_else(ApiError::missing_token)?;
    check_password(&request.new_password)?;
    confirm_identity(&cx.app, &session, "password", &cx.body, request.auth.as_ref()).await?;
    let hash = cx.app.passwords.hash(request.new_password).await;
    let password = hash.ok_or_else(|| ApiError::unavailable("The server is shutting down."))?;
    let log_out = request.logout_devices.then_some(Which::AllBut(session.device_id));
    let user_id = session.user_id;
    cx.propose(SetPassword { user_id, password, log_out }).await?.into_inner();
    Ok(change_password_v3::Response::new())
}

/// The user whom an identifier names (client-server API, "Identifier types"), whether there is such a user
/// or not; `None` if it cannot name any.
pub(super) fn account_of(app: &Server, identifier: &UserIdentifier) -> Option<OwnedUserId> {
    match identifier {
        UserIdentifier::Matrix(id) => named_user(app, &id.user),
        // Nobody has an address or a number here yet.
        _ => None,
    }
}

/// The user id of a user identifier's `user`: a full user id or a localpart of this server.
pub(super) fn named_user(app: &Server, name: &str) -> Option<OwnedUserId> {
    let name = name.to_ascii_lowercase();
    let user_id = match UserId::parse(&name) {
        Ok(user_id) => user_id,
        Err(_) => UserId::parse_with_server_name(name, &app.config.server.name).ok()?,
    };
    (user_id.server_name() == app.config.server.name).then_some(user_id)
}

/// The user, if the password is theirs, and the hash it was checked against. Says the same, after
/// the same time, when there is no such user.
pub(super) async fn verified(
    app: &Server,
    user_id: Option<OwnedUserId>,
    password: String,
) -> Result<(OwnedUserId, Secret), ApiError> {
    let account = user_id.as_ref().and_then(|user_id| app.engine.state().accounts.get(user_id));
    let stored = account.and_then(|account| account.read().password.latest().cloned().flatten());
    let right = password.len() <= limits::PASSWORD_BYTES
        && app.passwords.verify(password, stored.clone()).await;
    match (user_id, stored) {
        (Some(user_id), Some(stored)) if right => Ok((user_id, stored)),
        _ => Err(ApiError::forbidden("Wrong user name or password.")),
    }
}

/// Has the caller prove again that they are who they are. `endpoint` names the method and what the path
/// holds.
///
/// # Errors
/// 401 with what is still to be done; 403 when the caller has no way to prove it.
pub(super) async fn confirm_identity(
    app: &Server,
    session: &Session,
    endpoint: &str,
    body: &bytes::Bytes,
    auth: Option<&ruma::api::client::uiaa::AuthData>,
) -> Result<(), ApiError> {
    let offer = uiaa::ways_to_confirm(app, &session.user_id);
    if offer.is_empty() {
        return Err(ApiError::forbidden("This account has no password to confirm this with."));
    }
    let facts = Facts { user_id: Some(session.user_id.clone()), client: None };
    uiaa::authenticate(app, endpoint, body, auth, offer.into(), facts).await.map(drop)
}
