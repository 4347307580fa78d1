//! Registration.

use bytes::Bytes;
use ruma::{
    OwnedDeviceId, OwnedUserId, UserId,
    api::client::{
        account::{
            check_registration_token_validity::v1 as check_token,
            get_username_availability::v3 as get_username_availability,
            register::{LoginType, RegistrationKind, v3 as register_v3},
        },
        uiaa::AuthType,
    },
};
use serde::Serialize;

use super::{
    Server,
    appservice::{self, check_name},
    credentials::{NewTokens, check_password, device_id_or_new, short_name},
    json,
    uiaa::Purpose,
};
use crate::{
    appservice::Service,
    clock::random_letters,
    decide::account::{Login, Register},
    http::{ApiError, Caller, Cx, ErrorCode},
    limits,
    record::command::AccountKind,
};

pub(super) async fn register(
    cx: Cx<Server, Option<crate::http::Appservice>>,
    request: register_v3::Request,
) -> Result<Bytes, ApiError> {
    if request.login_type == Some(LoginType::ApplicationService) {
        let service = appservice::registering(cx.caller.as_ref())?;
        let username = request.username.as_deref();
        let username = username.ok_or_else(|| ApiError::missing_param("`username` is missing."))?;
        let user_id = free_user_id(&cx.app, username, Some(&service))?;
        return create(cx, request, user_id).await;
    }
    if !cx.app.config.registration_is_open() {
        return Err(ApiError::forbidden("Registration is closed on this server."));
    }
    if request.kind == RegistrationKind::Guest {
        return Err(ApiError::new(
            ErrorCode::GuestAccessForbidden,
            "This server has no guest accounts.",
        ));
    }
    let user_id = match &request.username {
        Some(username) => free_user_id(&cx.app, username, None)?,
        None => new_user_id(&cx.app)?,
    };
    if let Some(password) = &request.password {
        check_password(password)?;
    }
    device_id_or_new(request.device_id.clone())?;
    short_name(request.initial_device_display_name.clone())?;
    let purpose = Purpose { endpoint: "register", user: "", body: &cx.body };
    let now_ms = cx.app.engine.clock().now_ms();
    cx.app
        .uiaa
        .authenticate(purpose, &[AuthType::Dummy], request.auth.as_ref(), now_ms, |_| async {
            Err(ApiError::forbidden("There is no password to check yet."))
        })
        .await?;
    create(cx, request, user_id).await
}

/// Makes the account, and logs its first device in unless the client does not want that.
async fn create<C: Caller>(
    cx: Cx<Server, C>,
    request: register_v3::Request,
    user_id: OwnedUserId,
) -> Result<Bytes, ApiError> {
    let device_id = device_id_or_new(request.device_id)?;
    let display_name = short_name(request.initial_device_display_name)?;
    let password = match request.password {
        Some(password) => Some(
            cx.app
                .passwords
                .hash(password)
                .await
                .ok_or_else(|| ApiError::unavailable("The server is shutting down."))?,
        ),
        None => None,
    };
    let tokens = NewTokens::make(&cx.app, request.refresh_token);
    let login = (!request.inhibit_login).then(|| Login {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name,
        tokens: tokens.hashes(),
        verified: None,
    });
    let proposal = Register {
        user_id: user_id.clone(),
        kind: AccountKind::User,
        password,
        display_name: Some(user_id.localpart().to_owned()),
        login,
    };
    cx.propose(proposal).await?.into_inner();

    let session = (!request.inhibit_login).then(|| NewSession {
        access_token: tokens.access,
        device_id,
        refresh_token: tokens.refresh,
        expires_in_ms: tokens
            .expires_in
            .map(|expires| expires.as_millis().try_into().unwrap_or(u64::MAX)),
    });
    json(&Registered { user_id, session })
}

/// The response. Not ruma's, which says `null` for a device that was not asked for.
#[derive(Serialize)]
struct Registered {
    user_id: OwnedUserId,
    #[serde(flatten)]
    session: Option<NewSession>,
}

#[derive(Serialize)]
struct NewSession {
    access_token: String,
    device_id: OwnedDeviceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
}

/// There are no registration tokens here, so none is valid.
pub(super) async fn token_validity(
    _: Cx<Server, ()>,
    _: check_token::Request,
) -> Result<check_token::Response, ApiError> {
    Ok(check_token::Response::new(false))
}

pub(super) async fn available(
    cx: Cx<Server, ()>,
    request: get_username_availability::Request,
) -> Result<get_username_availability::Response, ApiError> {
    free_user_id(&cx.app, &request.username, None)?;
    Ok(get_username_availability::Response::new(true))
}

/// The user id that `username` gives, if it is valid, free, and open to the caller.
fn free_user_id(
    app: &Server,
    username: &str,
    caller: Option<&Service>,
) -> Result<OwnedUserId, ApiError> {
    let user_id = local_user_id(app, username)?;
    check_name(app, &user_id, caller)?;
    if app.engine.state().accounts.contains(&user_id) {
        return Err(ApiError::new(ErrorCode::UserInUse, "This user name is taken."));
    }
    Ok(user_id)
}

/// The user id of a new user with this name (appendices, "User Identifiers"). Capital letters are
/// mapped to small ones; everything else that a localpart cannot hold is refused.
fn local_user_id(app: &Server, username: &str) -> Result<OwnedUserId, ApiError> {
    let invalid = |why: &'static str| ApiError::new(ErrorCode::InvalidUsername, why);
    let localpart = username.to_ascii_lowercase();
    let valid = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '=' | '-' | '/' | '+');
    if localpart.is_empty() || !localpart.chars().all(valid) {
        return Err(invalid("A user name consists of a-z, 0-9 and the characters . _ = - / +"));
    }
    let user_id = UserId::parse_with_server_name(localpart, &app.config.server.name)
        .map_err(|_| invalid("This cannot be a user name."))?;
    if user_id.as_str().len() > limits::IDENTIFIER_BYTES {
        return Err(invalid("This user name is too long."));
    }
    Ok(user_id)
}

/// A free user id for one who did not ask for a name.
fn new_user_id(app: &Server) -> Result<OwnedUserId, ApiError> {
    free_user_id(app, &random_letters(12), None)
}
