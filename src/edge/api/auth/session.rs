//! Sessions: tokens and their refresh, logout, whoami. [`login`](super::login) begins sessions.

use std::net::IpAddr;

use ruma::{
    DeviceId, UserId,
    api::client::{
        account::whoami::v3 as whoami_v3,
        session::{
            logout::v3 as logout_v3, logout_all::v3 as logout_all_v3,
            refresh_token::v3 as refresh_token_v3,
        },
    },
};

use super::credentials::NewTokens;
use crate::{
    api::{appservice::services::assert_identity, server::Server},
    http::{ApiError, App as _, Cx, Session},
};
use logcabin_base::{clock::Clock, signed::Signer};
use logcabin_decide::{
    Refusal,
    account::{ConfirmTokens, DeviceSet, Refresh, RemoveDevices},
    oauth::ConfirmGrant,
};
use logcabin_engine::{Durable, Engine, ProposeError};
use logcabin_log::AppendError;
use logcabin_record::{Offset, Origin, command::TokenHash};
use logcabin_service::accounts::token::{self, Kind};
use logcabin_state::{TokenUse, oauth::GrantUse};

/// The session of an access token; for an application service, that of the user in the query.
pub(crate) async fn authenticate(
    app: &Server,
    token: &str,
    uri: &http::Uri,
) -> Result<Session, ApiError> {
    match app.outside.services.by_token(&TokenHash::of(token)) {
        Some(service) => assert_identity(&app.engine, service, uri),
        None => of_token(app, token).await,
    }
}

/// The session of a device's access token. The first use of a refreshed token revokes the previous
/// ones, which is recorded before the request goes on.
pub(crate) async fn of_token(app: &Server, token: &str) -> Result<Session, ApiError> {
    let used = token::hash(token);
    let found = app.engine.state().accounts.access_token(&used);
    let Some(found) = found else { return of_grant(app, &used, token).await };
    let TokenUse { owner, session, expires_ms, login_ms, unconfirmed, .. } = found;
    if is_over(
        app.engine.clock(),
        [expires_ms, app.config.tokens.session_lifetime_seconds.end_ms(login_ms)],
    ) {
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
            used,
        };
        confirmed(app.engine.propose(origin, confirm).await)?;
    }
    Ok(Session { user_id: owner.user_id, device_id: owner.device_id, session, service: None })
}

/// Whether a session lasts: nobody has ended it, and it is not too old.
pub(crate) fn lasts(app: &Server, user_id: &UserId, device_id: &DeviceId, session: Offset) -> bool {
    let clock = app.engine.clock();
    if device_id.as_str().is_empty() {
        // That of a grant without a device.
        let lifetime = &app.config.tokens.session_lifetime_seconds;
        return app.engine.state().oauth.grant_of_session(session).is_some_and(|grant| {
            grant.user_id == *user_id && !is_over(clock, [lifetime.end_ms(grant.granted_ms), None])
        });
    }
    let account = app.engine.state().accounts.get(user_id);
    account.is_some_and(|account| {
        account.read().device(device_id).is_some_and(|device| {
            let end_ms = app.config.tokens.session_lifetime_seconds.end_ms(device.login_ms);
            device.session == session && !is_over(clock, [end_ms, None])
        })
    })
}

/// The session of the access token of a grant without a device, as with a device's.
async fn of_grant(app: &Server, used: &TokenHash, token: &str) -> Result<Session, ApiError> {
    let found = app.engine.state().oauth.access_token(used);
    let found =
        found.ok_or_else(|| unknown(&app.engine, &app.signing.lasting, Kind::Access, token))?;
    let GrantUse { grant, expires_ms, unconfirmed, .. } = found;
    let lifetime = &app.config.tokens.session_lifetime_seconds;
    if is_over(app.engine.clock(), [expires_ms, lifetime.end_ms(grant.granted_ms)]) {
        return Err(ApiError::unknown_token(true));
    }
    if unconfirmed {
        let (user_id, grant_id) = (grant.user_id.clone(), grant.grant_id);
        let origin = Origin { user: user_id.as_str().into(), ..Origin::default() };
        let confirm = ConfirmGrant { user_id, grant_id, used: *used };
        confirmed(app.engine.propose(origin, confirm).await)?;
    }
    let (user_id, session) = (grant.user_id, grant.session);
    Ok(Session { user_id, device_id: "".into(), session, service: None })
}

/// Whether a request goes on after the first use of its tokens was to be recorded.
fn confirmed(outcome: Result<Durable<()>, ProposeError>) -> Result<(), ApiError> {
    match outcome {
        Ok(confirmed) => {
            confirmed.into_inner();
            Ok(())
        }
        // Both pairs stay valid until this can be recorded; reads go on meanwhile.
        Err(ProposeError::Log(
            AppendError::Full(_) | AppendError::Failed(_) | AppendError::Unavailable(_),
        )) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Records where a session begins, with its first access token.
pub(crate) async fn begun(app: &Server, token: &str, client: IpAddr) {
    // The device may have been logged out or in again meanwhile.
    if let Ok(session) = of_token(app, token).await {
        app.seen(&session, client, None);
    }
}

/// The refusal of a token that is not valid (any more). As long as its session exists, the client
/// may log in again as the same device and keep its data.
fn unknown(engine: &Engine, lasting: &Signer, kind: Kind, token: &str) -> ApiError {
    ApiError::unknown_token(token::is_of_a_session(engine, lasting, kind, token))
}

/// Whether any of these times has passed.
pub(crate) fn is_over(clock: &Clock, ends_ms: [Option<u64>; 2]) -> bool {
    ends_ms.into_iter().flatten().min().is_some_and(|end| end <= clock.now_ms())
}

pub(super) async fn refresh(
    cx: Cx<Server, ()>,
    request: refresh_token_v3::Request,
) -> Result<refresh_token_v3::Response, ApiError> {
    let presented = token::hash(&request.refresh_token);
    let found = cx.app.engine.state().accounts.refresh_token(&presented);
    let superseded =
        || unknown(&cx.app.engine, &cx.app.signing.lasting, Kind::Refresh, &request.refresh_token);
    let TokenUse { owner, session, login_ms, issued_ms, .. } = found.ok_or_else(superseded)?;
    if cx.app.engine.state().oauth.grant_of_session(session).is_some() {
        let why = "This session began by OAuth 2.0: it is refreshed at the token endpoint.";
        return Err(ApiError::forbidden(why));
    }
    let config = &cx.app.config.tokens;
    let idle = config.refresh_lifetime_seconds.end_ms(issued_ms);
    if is_over(cx.app.engine.clock(), [idle, config.session_lifetime_seconds.end_ms(login_ms)]) {
        // The client may log in again as the same device, and keep its data.
        return Err(ApiError::unknown_token(true));
    }
    let tokens = NewTokens::refreshed(&cx.app, &request.refresh_token, login_ms);
    let proposal = Refresh {
        user_id: owner.user_id,
        device_id: owner.device_id,
        presented,
        tokens: tokens.hashes(),
        good_enough_ms: tokens.half_life_ms(),
    };
    let expires_ms = match cx.app.engine.propose(cx.origin(), proposal).await {
        Ok(refreshed) => refreshed.into_inner(),
        // The result of another refresh was used meanwhile.
        Err(ProposeError::Refused(Refusal::UnknownToken)) => return Err(superseded()),
        Err(error) => return Err(error.into()),
    };
    let tokens = tokens.ending(expires_ms).told(&cx.app);
    let mut response = refresh_token_v3::Response::new(tokens.access);
    response.refresh_token = tokens.refresh;
    response.expires_in_ms = tokens.expires_in;
    Ok(response)
}

pub(super) async fn logout(
    cx: Cx<Server>,
    _: logout_v3::Request,
) -> Result<logout_v3::Response, ApiError> {
    let which = DeviceSet::These(vec![cx.caller.device()?.clone()]);
    cx.propose(RemoveDevices { user_id: cx.caller.user_id.clone(), which }).await?.into_inner();
    Ok(logout_v3::Response::new())
}

pub(super) async fn logout_all(
    cx: Cx<Server>,
    _: logout_all_v3::Request,
) -> Result<logout_all_v3::Response, ApiError> {
    let user_id = cx.caller.user_id.clone();
    cx.propose(RemoveDevices { user_id, which: DeviceSet::All }).await?.into_inner();
    Ok(logout_all_v3::Response::new())
}

pub(super) async fn whoami(
    cx: Cx<Server>,
    _: whoami_v3::Request,
) -> Result<whoami_v3::Response, ApiError> {
    let is_guest = cx.app.engine.state().accounts.is_guest(&cx.caller.user_id);
    let device_id = cx.caller.device().ok().cloned();
    let mut response = whoami_v3::Response::new(cx.caller.user_id, is_guest);
    response.device_id = device_id;
    Ok(response)
}
