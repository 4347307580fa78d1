//! Login tokens (client-server API, "Token-based"): what a browser brings back from single sign-on,
//! and what a device gets for another one (`POST /login/get_token`).

use std::time::Duration;

use ruma::{UserId, api::client::session::get_login_token::v1 as get_login_token};

use super::uiaa::confirm_identity;
use crate::{
    api::{auth::capabilities::may_get_login_token, server::Server},
    http::{ApiError, Cx},
};
use logcabin_service::accounts::login_token::{self, LoginToken, Purpose};

const PREFIX: &str = "lcl_";

/// A new login token for this user.
pub(super) fn make(app: &Server, user_id: &UserId, seconds: u64) -> Result<String, ApiError> {
    let expires_ms = app.engine.clock().now_ms().saturating_add(seconds.saturating_mul(1000));
    let signed = login_token::make(&app.signing.signer, Purpose::Login, user_id, expires_ms);
    Ok(format!("{PREFIX}{}", signed.map_err(ApiError::internal)?))
}

/// The content of a login token, if this server created it and it has not expired. It may have been
/// used.
pub(super) fn open(app: &Server, token: &str) -> Option<LoginToken> {
    open_for(app, Purpose::Login, token.strip_prefix(PREFIX)?)
}

/// The same of a link to the console.
pub(super) fn open_link(app: &Server, link: &str) -> Option<LoginToken> {
    open_for(app, Purpose::Console, link)
}

fn open_for(app: &Server, purpose: Purpose, text: &str) -> Option<LoginToken> {
    login_token::open(&app.signing.signer, purpose, text, app.engine.clock().now_ms())
}

pub(super) async fn get_token(
    cx: Cx<Server>,
    request: get_login_token::Request,
) -> Result<get_login_token::Response, ApiError> {
    may_get_login_token(&cx.app, &cx.caller)?;
    let auth = request.auth.as_ref();
    confirm_identity(&cx.app, &cx.caller, cx.client, "login_token", &cx.body, auth).await?;
    let seconds = cx.app.config.login.get_token_seconds;
    let token = make(&cx.app, &cx.caller.user_id, seconds)?;
    Ok(get_login_token::Response::new(Duration::from_secs(seconds), token))
}
