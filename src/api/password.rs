//! Passwords: who a password proves, and its change.

use ruma::{OwnedUserId, UserId, api::client::account::change_password::v3 as change_password_v3};

use super::{
    Server,
    credentials::check_password,
    threepid::{auth_failed, find_account},
    uiaa::{self, Facts, Proof},
};
use crate::{
    decide::{
        account::{SetPassword, Which},
        threepid::{ResetPassword, SpendValidation},
    },
    http::{ApiError, Caller as _, Cx, Session},
    limits,
    record::command::Secret,
};

pub(super) async fn change_password(
    cx: Cx<Server, Option<Session>>,
    request: change_password_v3::Request,
) -> Result<change_password_v3::Response, ApiError> {
    let Some(session) = cx.caller.clone() else { return reset_password(cx, request).await };
    check_password(&request.new_password)?;
    confirm_identity(&cx.app, &session, "password", &cx.body, request.auth.as_ref()).await?;
    let password = hashed(&cx.app, request.new_password).await?;
    let log_out = request.logout_devices.then_some(Which::AllBut(session.device_id));
    let user_id = session.user_id;
    cx.propose(SetPassword { user_id, password, log_out }).await?.into_inner();
    Ok(change_password_v3::Response::new())
}

/// A new password for one who has forgotten theirs, and shows that an address of the account is theirs.
async fn reset_password(
    cx: Cx<Server, Option<Session>>,
    request: change_password_v3::Request,
) -> Result<change_password_v3::Response, ApiError> {
    let offer = uiaa::ways_to_recover(&cx.app);
    if offer.is_empty() {
        return Err(ApiError::missing_token());
    }
    check_password(&request.new_password)?;
    let facts = Facts { user_id: None, client: Some(cx.client) };
    let auth = request.auth.as_ref();
    let authenticated =
        uiaa::authenticate(&cx.app, "password", &cx.body, auth, offer.into(), facts).await?;
    let proof = authenticated.proofs().find_map(|proof| match proof {
        Proof::Threepid(validated) => Some(validated.clone()),
        _ => None,
    });
    let proof = proof.ok_or_else(auth_failed)?;
    let user_id = find_account(&cx.app, &proof.threepid).ok_or_else(auth_failed)?;
    let password = hashed(&cx.app, request.new_password).await?;
    let log_out = request.logout_devices.then_some(Which::All);
    let set = SetPassword { user_id, password, log_out };
    cx.propose(ResetPassword { set, proof }).await?.into_inner();
    Ok(change_password_v3::Response::new())
}

async fn hashed(app: &Server, password: String) -> Result<Secret, ApiError> {
    let hash = app.passwords.hash(password).await;
    hash.ok_or_else(|| ApiError::unavailable("The server is shutting down."))
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
        return Err(ApiError::forbidden("This account has nothing to confirm this with."));
    }
    let facts = Facts { user_id: Some(session.user_id.clone()), client: None };
    let authenticated = uiaa::authenticate(app, endpoint, body, auth, offer.into(), facts).await?;
    for proof in authenticated.proofs() {
        if let Proof::Threepid(validated) = proof {
            let spent = SpendValidation(validated.clone());
            app.engine.propose(session.origin(""), spent).await?.into_inner();
        }
    }
    Ok(())
}
