//! Login tokens (client-server API, "Token-based"): what a browser brings back from single sign-on,
//! and what a device gets for another one (`POST /login/get_token`).

use std::time::Duration;

use ruma::{UserId, api::client::session::get_login_token::v1 as get_login_token};

use super::uiaa::confirm_identity;
use crate::{
    api::{auth::capabilities::may_get_login_token, server::Server},
    http::{ApiError, Cx},
};
use logcabin_base::{clock::Clock, signed::Signer};
use logcabin_service::accounts::login_token::{self, LoginToken, Purpose};

const PREFIX: &str = "lcl_";

/// A new login token for this user.
pub(super) fn make(
    clock: &Clock,
    signer: &Signer,
    user_id: &UserId,
    seconds: u64,
) -> Result<String, ApiError> {
    let expires_ms = clock.now_ms().saturating_add(seconds.saturating_mul(1000));
    let signed = login_token::make(signer, Purpose::Login, user_id, expires_ms);
    Ok(format!("{PREFIX}{}", signed.map_err(ApiError::internal)?))
}

/// The content of a login token, if this server created it and it has not expired. It may have been
/// used.
pub(super) fn open(clock: &Clock, signer: &Signer, token: &str) -> Option<LoginToken> {
    open_for(clock, signer, Purpose::Login, token.strip_prefix(PREFIX)?)
}

/// The same of a link to the console.
pub(super) fn open_link(clock: &Clock, signer: &Signer, link: &str) -> Option<LoginToken> {
    open_for(clock, signer, Purpose::Console, link)
}

fn open_for(clock: &Clock, signer: &Signer, purpose: Purpose, text: &str) -> Option<LoginToken> {
    login_token::open(signer, purpose, text, clock.now_ms())
}

pub(super) async fn get_token(
    cx: Cx<Server>,
    request: get_login_token::Request,
) -> Result<get_login_token::Response, ApiError> {
    may_get_login_token(&cx.app, &cx.caller)?;
    let auth = request.auth.as_ref();
    confirm_identity(&cx.app, &cx.caller, cx.client, "login_token", &cx.body, auth).await?;
    let seconds = cx.app.config.login.get_token_seconds;
    let token = make(cx.app.engine.clock(), &cx.app.signing.signer, &cx.caller.user_id, seconds)?;
    Ok(get_login_token::Response::new(Duration::from_secs(seconds), token))
}
