//! Sessions: login, tokens and their refresh, logout, whoami, password change.

use ruma::{
    OwnedUserId, UserId,
    api::client::{
        account::{change_password::v3 as change_password_v3, whoami::v3 as whoami_v3},
        session::{
            get_login_types::v3::{self as get_login_types, LoginType, PasswordLoginType},
            login::v3::{self as login_v3, DiscoveryInfo, HomeserverInfo, LoginInfo},
            logout::v3 as logout_v3,
            logout_all::v3 as logout_all_v3,
            refresh_token::v3 as refresh_token_v3,
        },
        uiaa::{AuthType, Password, UserIdentifier},
    },
};

use super::{
    Server,
    credentials::{NewTokens, check_password, device_id_or_new, short_name},
    uiaa::Purpose,
};
use crate::{
    decide::account::{ConfirmTokens, Login, Refresh, RemoveDevices, SetPassword, Which},
    engine::Rejected,
    http::{ApiError, Appservice, Cx, Session},
    limits,
    log::AppendError,
    record::{
        Origin,
        command::{Secret, TokenHash},
    },
    state::TokenUse,
};

/// The session of an access token. The first use of a refreshed token ends the tokens before it,
/// which is recorded before the request goes on.
pub(super) async fn authenticate(app: &Server, token: &str) -> Result<Session, ApiError> {
    let hash = TokenHash::of(token);
    let found = app.engine.state().accounts.access_token(&hash);
    let TokenUse { owner, session, expires_ms, unconfirmed } =
        found.ok_or_else(|| ApiError::unknown_token(false))?;
    if expires_ms.is_some_and(|expires| expires <= app.engine.clock().now_ms()) {
        return Err(ApiError::unknown_token(true));
    }
    if unconfirmed {
        let origin = Origin {
            user: owner.user_id.as_str().into(),
            device: owner.device_id.as_str().into(),
            request: Box::default(),
        };
        let confirm = ConfirmTokens {
            user_id: owner.user_id.clone(),
            device_id: owner.device_id.clone(),
            used: hash,
        };
        match app.engine.propose(origin, confirm).await {
            Ok(confirmed) => confirmed.into_inner(),
            // Both pairs stay good until there is room to say otherwise; reads go on meanwhile.
            Err(Rejected::Log(AppendError::Full(_) | AppendError::Failed(_))) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Session { user_id: owner.user_id, device_id: owner.device_id, session })
}

pub(super) async fn login_types(
    _: Cx<Server, ()>,
    _: get_login_types::Request,
) -> Result<get_login_types::Response, ApiError> {
    Ok(get_login_types::Response::new(vec![LoginType::Password(PasswordLoginType::new())]))
}

pub(super) async fn login(
    cx: Cx<Server, Option<Appservice>>,
    request: login_v3::Request,
) -> Result<login_v3::Response, ApiError> {
    let LoginInfo::Password(info) = request.login_info else {
        return Err(ApiError::bad_request("This server offers login by password only."));
    };
    let device_id = device_id_or_new(request.device_id)?;
    let display_name = short_name(request.initial_device_display_name)?;
    #[allow(deprecated, reason = "old clients name the user in `user`")]
    let named = match (&info.identifier, &info.user) {
        (Some(UserIdentifier::Matrix(id)), _) => Some(id.user.clone()),
        (Some(_), _) => None,
        (None, user) => user.clone(),
    };
    let user_id = named.and_then(|name| named_user(&cx.app, &name));
    let (user_id, hash) = verified(&cx.app, user_id, info.password).await?;

    let tokens = NewTokens::make(&cx.app, request.refresh_token);
    let proposal = Login {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name,
        tokens: tokens.hashes(),
        verified: Some(hash),
    };
    cx.propose(proposal).await?.into_inner();

    let mut response = login_v3::Response::new(user_id, tokens.access, device_id);
    response.refresh_token = tokens.refresh;
    response.expires_in = tokens.expires_in;
    response.well_known = Some(DiscoveryInfo::new(HomeserverInfo::new(cx.app.config.public_url())));
    Ok(response)
}

/// The user id of a user identifier's `user`: a full user id or a localpart of this server.
fn named_user(app: &Server, name: &str) -> Option<OwnedUserId> {
    let name = name.to_ascii_lowercase();
    let user_id = match UserId::parse(&name) {
        Ok(user_id) => user_id,
        Err(_) => UserId::parse_with_server_name(name, &app.config.server.name).ok()?,
    };
    (user_id.server_name() == app.config.server.name).then_some(user_id)
}

/// The user, if the password is theirs, and the hash it was checked against. Says the same, after
/// the same time, when there is no such user.
async fn verified(
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

pub(super) async fn refresh(
    cx: Cx<Server, ()>,
    request: refresh_token_v3::Request,
) -> Result<refresh_token_v3::Response, ApiError> {
    let presented = TokenHash::of(&request.refresh_token);
    let found = cx.app.engine.state().accounts.refresh_token(&presented);
    let owner = found.ok_or_else(|| ApiError::unknown_token(false))?.owner;
    let tokens = NewTokens::make(&cx.app, true);
    let proposal = Refresh {
        user_id: owner.user_id,
        device_id: owner.device_id,
        presented,
        tokens: tokens.hashes(),
    };
    cx.propose(proposal).await?.into_inner();
    let mut response = refresh_token_v3::Response::new(tokens.access);
    response.refresh_token = tokens.refresh;
    response.expires_in_ms = tokens.expires_in;
    Ok(response)
}

pub(super) async fn logout(
    cx: Cx<Server>,
    _: logout_v3::Request,
) -> Result<logout_v3::Response, ApiError> {
    let which = Which::These(vec![cx.caller.device_id.clone()]);
    cx.propose(RemoveDevices { user_id: cx.caller.user_id.clone(), which }).await?.into_inner();
    Ok(logout_v3::Response::new())
}

pub(super) async fn logout_all(
    cx: Cx<Server>,
    _: logout_all_v3::Request,
) -> Result<logout_all_v3::Response, ApiError> {
    let user_id = cx.caller.user_id.clone();
    cx.propose(RemoveDevices { user_id, which: Which::All }).await?.into_inner();
    Ok(logout_all_v3::Response::new())
}

pub(super) async fn whoami(
    cx: Cx<Server>,
    _: whoami_v3::Request,
) -> Result<whoami_v3::Response, ApiError> {
    let mut response = whoami_v3::Response::new(cx.caller.user_id, false);
    response.device_id = Some(cx.caller.device_id);
    Ok(response)
}

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

/// Has the caller prove again, by password, that they are who they are.
pub(super) async fn confirm_identity(
    app: &Server,
    session: &Session,
    endpoint: &str,
    body: &bytes::Bytes,
    auth: Option<&ruma::api::client::uiaa::AuthData>,
) -> Result<(), ApiError> {
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
