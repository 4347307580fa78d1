//! Login (client-server API, "Login"): each login type proves the user's identity, and then a
//! device is logged in.

use std::{net::IpAddr, time::Duration};

use ruma::{
    OwnedUserId, UserId,
    api::client::{
        session::{
            get_login_types::v3::{
                self as get_login_types, ApplicationServiceLoginType, IdentityProvider, LoginType,
                PasswordLoginType, SsoLoginType, TokenLoginType,
            },
            login::v3::{self as login_v3, ApplicationService, LoginInfo},
        },
        uiaa::{MatrixUserIdentifier, UserIdentifier},
    },
    thirdparty::Medium,
};
use serde_json::{Value, json};

use super::{
    claim::{Claim, named_user, verified},
    credentials::NewTokens,
    grants::legacy_is_off,
    login_token, rights, session,
};
use crate::{
    api::{
        addresses::{discovery_info, is_offered},
        answer::json,
        appservice::services::exclusive,
        server::Server,
    },
    http::{ApiError, Appservice, Cx, ErrorCode, Json, LoginRefusal, refused_login},
};
use logcabin_base::{
    clock::{Clock, millis},
    signed::Signer,
};
use logcabin_decide::account::{Login, LoginByToken};
use logcabin_engine::Engine;
use logcabin_record::Offset;
use logcabin_service::accounts::{
    login_token::LoginToken,
    names::{device_id_or_new, short_name},
};

pub(super) async fn login_types(
    cx: Cx<Server, ()>,
    _: get_login_types::Request,
) -> Result<Json, ApiError> {
    let (config, providers) = (&cx.app.config, cx.app.outside.providers.all());
    if !config.login.legacy {
        return Err(legacy_is_off());
    }
    let mut flows = Vec::new();
    if config.login.password {
        flows.push(LoginType::Password(PasswordLoginType::new()));
    }
    // Single sign-on leads to this server's own pages, too.
    let oauth = is_offered(&config.oauth, &config.server)
        && (config.login.password || !providers.is_empty());
    let by_sso = oauth || !providers.is_empty();
    // Clients show nothing else beside a preferred flow. A user with a password here gives it to
    // the client at once; clients of the OAuth API do not ask for these flows.
    let preferred = oauth && !config.login.password;
    if by_sso {
        let mut sso = SsoLoginType::new();
        sso.oauth_aware_preferred = preferred;
        let shown = |provider: &logcabin_outside::oidc::Provider| {
            let mut shown =
                IdentityProvider::new(provider.id().to_owned(), provider.name().to_owned());
            shown.icon = provider.icon().cloned();
            shown.brand = provider.brand().map(Into::into);
            shown
        };
        sso.identity_providers = providers.iter().map(shown).collect();
        flows.push(LoginType::Sso(sso));
    }
    if by_sso || config.login.get_token {
        let mut token = TokenLoginType::new();
        token.get_login_token = config.login.get_token;
        flows.push(LoginType::Token(token));
    }
    if cx.app.outside.services.iter().next().is_some() {
        flows.push(LoginType::ApplicationService(ApplicationServiceLoginType::new()));
    }
    let mut flows = serde_json::to_value(flows).map_err(ApiError::internal)?;
    let is_sso = |flow: &&mut Value| preferred && flow["type"] == "m.login.sso";
    for flow in flows.as_array_mut().into_iter().flatten().filter(is_sso) {
        // What it was called before Matrix 1.18.
        flow["delegated_oidc_compatibility"] = true.into();
        flow["org.matrix.msc3824.delegated_oidc_compatibility"] = true.into();
    }
    json(&json!({ "flows": flows }))
}

/// A proven user, and the proof.
struct ProvenUser {
    user_id: OwnedUserId,
    /// When the password was set that was verified.
    password: Option<Offset>,
    /// The login token that this uses up.
    token: Option<LoginToken>,
}

pub(super) async fn login(
    cx: Cx<Server, Option<Appservice>>,
    request: login_v3::Request,
) -> Result<login_v3::Response, ApiError> {
    let is_service = matches!(request.login_info, LoginInfo::ApplicationService(_));
    if !cx.app.config.login.legacy && !is_service {
        return Err(legacy_is_off());
    }
    let device_id = device_id_or_new(request.device_id)?;
    let display_name = short_name(request.initial_device_display_name)?;
    let ProvenUser { user_id, password, token } = match request.login_info {
        LoginInfo::Password(password) => by_password(&cx.app, cx.client, password).await?,
        LoginInfo::Token(token) => {
            by_token(cx.app.engine.clock(), &cx.app.signing.signer, &token.token)
                .inspect_err(|_| refused_login(cx.client, None, LoginRefusal::Token))?
        }
        LoginInfo::ApplicationService(info) => {
            let user_id = by_application_service(&cx.app.engine, cx.caller.as_ref(), info)
                .inspect_err(|_| refused_login(cx.client, None, LoginRefusal::Appservice))?;
            ProvenUser { user_id, password: None, token: None }
        }
        other => {
            let login_type = other.login_type().escape_debug();
            return Err(ApiError::bad_request(format!("There is no login by {login_type} here.")));
        }
    };

    let tokens = NewTokens::make(&cx.app, request.refresh_token);
    let login = Login {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name,
        tokens: tokens.hashes(),
        verified: password,
    };
    let reason = token.is_some().then_some(LoginRefusal::Token);
    let done = match token {
        Some(LoginToken { nonce, expires_ms, .. }) => {
            cx.propose(LoginByToken { login, nonce, expires_ms }).await
        }
        None => cx.propose(login).await,
    };
    done.inspect_err(|error| refused_at_last(cx.client, &user_id, error, reason))?.into_inner();

    let tokens = tokens.told(&cx.app);
    session::begun(&cx.app, &tokens.access, cx.client).await;
    #[allow(deprecated, reason = "old clients read `home_server`")]
    let response = {
        let mut response = login_v3::Response::new(user_id, tokens.access, device_id);
        response.home_server = Some(cx.app.config.server.name.clone());
        response.refresh_token = tokens.refresh;
        response.expires_in = tokens.expires_in;
        response.well_known = discovery_info(&cx.app.config.server);
        response
    };
    Ok(response)
}

/// The user in a login of type `m.login.application_service`. An unknown token is treated like a
/// client's: it may not log in this way.
fn by_application_service(
    engine: &Engine,
    caller: Option<&Appservice>,
    info: ApplicationService,
) -> Result<OwnedUserId, ApiError> {
    let caller = caller.ok_or_else(ApiError::missing_token)?;
    let service = caller
        .service()
        .ok_or_else(|| ApiError::forbidden("Only an application service logs in this way."))?;
    #[allow(deprecated, reason = "old clients name the user in `user`")]
    let named = match (info.identifier, info.user) {
        (Some(UserIdentifier::Matrix(id)), _) => id.user,
        (None, Some(user)) => user,
        _ => return Err(ApiError::missing_param("`identifier` names a user, as `m.id.user`.")),
    };
    let unknown = || ApiError::forbidden("The application service has not registered this user.");
    let user_id = named_user(engine, &named).ok_or_else(unknown)?;
    if !service.owns_user(&user_id) {
        return Err(exclusive("This user is not in the application service's namespace."));
    }
    if !engine.state().accounts.contains(&user_id) {
        return Err(unknown());
    }
    Ok(user_id)
}

/// By what an administrator logs in to a page.
pub(crate) enum LoginMethod {
    Password {
        user: String,
        password: String,
    },
    /// What single sign-on gave to the browser.
    Token(String),
    /// A link to the console.
    Link(String),
}

/// Logs an administrator in for a page and for some time; returns the access token.
pub(crate) async fn administrator(
    cx: &Cx<Server, ()>,
    by: LoginMethod,
    device_name: &str,
    lifetime: Duration,
) -> Result<String, ApiError> {
    let reason = match &by {
        LoginMethod::Password { .. } => None,
        LoginMethod::Token(_) => Some(LoginRefusal::Token),
        LoginMethod::Link(_) => Some(LoginRefusal::Link),
    };
    let ProvenUser { user_id, password, token } = match by {
        LoginMethod::Password { user, password } => {
            let user = UserIdentifier::Matrix(MatrixUserIdentifier::new(user));
            by_password(&cx.app, cx.client, login_v3::Password::new(user, password)).await?
        }
        LoginMethod::Token(token) => {
            by_token(cx.app.engine.clock(), &cx.app.signing.signer, &token)
                .inspect_err(|_| refused_login(cx.client, None, LoginRefusal::Token))?
        }
        LoginMethod::Link(link) => by_link(cx.app.engine.clock(), &cx.app.signing.signer, &link)
            .inspect_err(|_| refused_login(cx.client, None, LoginRefusal::Link))?,
    };
    rights::may_log_in(&cx.app.engine, &user_id)
        .inspect_err(|error| refused_at_last(cx.client, &user_id, error, None))?;
    let standing = cx.app.engine.state().accounts.standing(&user_id).unwrap_or_default();
    if !standing.admin {
        refused_login(cx.client, Some(user_id.as_str()), LoginRefusal::Administrator);
        return Err(ApiError::forbidden("You do not administer this server."));
    }
    let now_ms = cx.app.engine.clock().now_ms();
    let lifetime_ms = millis(lifetime);
    let tokens = NewTokens::make(&cx.app, false).ending(Some(now_ms.saturating_add(lifetime_ms)));
    let login = Login {
        user_id: user_id.clone(),
        device_id: device_id_or_new(None)?,
        display_name: Some(device_name.to_owned()),
        tokens: tokens.hashes(),
        verified: password,
    };
    let done = match token {
        Some(LoginToken { nonce, expires_ms, .. }) => {
            cx.propose(LoginByToken { login, nonce, expires_ms }).await
        }
        None => cx.propose(login).await,
    };
    done.inspect_err(|error| refused_at_last(cx.client, &user_id, error, reason))?.into_inner();
    let tokens = tokens.told(&cx.app);
    session::begun(&cx.app, &tokens.access, cx.client).await;
    Ok(tokens.access)
}

/// Tells of a user who is proven and yet not logged in: because of the account, or because the
/// proof, for which `reason` is, was used before.
pub(crate) fn refused_at_last(
    client: IpAddr,
    user_id: &UserId,
    error: &ApiError,
    reason: Option<LoginRefusal>,
) {
    let reason = match error.code() {
        ErrorCode::UserLocked
        | ErrorCode::UserDeactivated
        | ErrorCode::UserSuspended
        | ErrorCode::UserAwaitingApproval => Some(LoginRefusal::Account),
        ErrorCode::Forbidden => Some(reason.unwrap_or(LoginRefusal::Password)),
        _ => None,
    };
    if let Some(reason) = reason {
        refused_login(client, Some(user_id.as_str()), reason);
    }
}

/// Whom a link or a token to the console logs in, if it is good; it may have been used.
pub(crate) fn who_may_enter(
    clock: &Clock,
    signer: &Signer,
    by: &LoginMethod,
) -> Option<OwnedUserId> {
    let proven = match by {
        LoginMethod::Password { .. } => return None,
        LoginMethod::Token(token) => by_token(clock, signer, token),
        LoginMethod::Link(link) => by_link(clock, signer, link),
    };
    proven.ok().map(|proven| proven.user_id)
}

fn by_link(clock: &Clock, signer: &Signer, link: &str) -> Result<ProvenUser, ApiError> {
    let link = login_token::open_link(clock, signer, link)
        .ok_or_else(|| ApiError::forbidden("This link is not valid, or has expired."))?;
    Ok(ProvenUser { user_id: link.user_id.clone(), password: None, token: Some(link) })
}

async fn by_password(
    app: &Server,
    client: IpAddr,
    info: login_v3::Password,
) -> Result<ProvenUser, ApiError> {
    if !app.config.login.password {
        return Err(ApiError::bad_request("There is no login by password here."));
    }
    let claim = Claim::by_identifier(&app.engine, &identifier(&info)?);
    let (user_id, password) =
        verified(&app.engine, &app.auth.passwords, client, claim, info.password).await?;
    app.auth.passwords.seen(&user_id, client);
    Ok(ProvenUser { user_id, password: Some(password), token: None })
}

fn by_token(clock: &Clock, signer: &Signer, token: &str) -> Result<ProvenUser, ApiError> {
    let token = login_token::open(clock, signer, token)
        .ok_or_else(|| ApiError::forbidden("This login token is not valid, or has expired."))?;
    Ok(ProvenUser { user_id: token.user_id.clone(), password: None, token: Some(token) })
}

/// The user in a password login: in `identifier`, or in the older fields.
#[allow(deprecated, reason = "old clients name the user in `user`, or in `medium` and `address`")]
fn identifier(info: &login_v3::Password) -> Result<UserIdentifier, ApiError> {
    match (&info.identifier, &info.user, &info.medium, &info.address) {
        (Some(identifier), ..) => match identifier.identifier_type() {
            "m.id.user" | "m.id.thirdparty" | "m.id.phone" => Ok(identifier.clone()),
            _ => Err(ApiError::bad_request("There is no such type of identifier here.")),
        },
        (None, Some(user), ..) => {
            Ok(UserIdentifier::Matrix(MatrixUserIdentifier::new(user.clone())))
        }
        (None, None, Some(medium), Some(address)) if medium == "email" => {
            Ok(UserIdentifier::third_party_id(Medium::Email, address.clone()))
        }
        (None, None, Some(_), Some(_)) => {
            Err(ApiError::invalid_param("`medium` can only be `email`; use `identifier`."))
        }
        (None, None, ..) => Err(ApiError::missing_param("`identifier` is missing.")),
    }
}
