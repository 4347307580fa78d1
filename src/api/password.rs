//! Passwords: who a password proves, and its change.

use ruma::{
    OwnedUserId, UserId,
    api::client::{
        account::change_password::v3 as change_password_v3,
        uiaa::{AuthType, Password, UserIdentifier},
    },
};

use super::{Server, credentials::check_password, uiaa::Purpose};
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
    if session.service.is_some() {
        return Err(ApiError::forbidden("An application service does not manage accounts."));
    }
    check_password(&request.new_password)?;
    confirm_identity(&cx.app, &session, "password", &cx.body, request.auth.as_ref()).await?;
    let hash = cx.app.passwords.hash(request.new_password).await;
    let password = hash.ok_or_else(|| ApiError::unavailable("The server is shutting down."))?;
    let log_out = request.logout_devices.then_some(Which::AllBut(session.device_id));
    let user_id = session.user_id;
    cx.propose(SetPassword { user_id, password, log_out }).await?.into_inner();
    Ok(change_password_v3::Response::new())
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

/// Has the caller prove again, by password, that they are who they are. Users of an application service
/// have no password: it vouches for them.
pub(super) async fn confirm_identity(
    app: &Server,
    session: &Session,
    endpoint: &str,
    body: &bytes::Bytes,
    auth: Option<&ruma::api::client::uiaa::AuthData>,
) -> Result<(), ApiError> {
    if session.service.is_some() {
        return Ok(());
    }
    let purpose = Purpose { endpoint, user: session.user_id.as_str(), body };
    let now_ms = app.engine.clock().now_ms();
    let check = |password: Password| async move {
        let named = match &password.identifier {
            UserIdentifier::Matrix(id) => named_user(app, &id.user),
            _ => None,
        };
        let user_id = named.filter(|user_id| *user_id == session.user_id);
        verified(app, user_id, password.password).await.map(drop)
    };
    app.uiaa.authenticate(purpose, &[AuthType::Password], auth, now_ms, check).await
}
