//! Login tokens (client-server API, "Token-based"): what a browser brings back from single sign-on,
//! and what a device gets for another one (`POST /login/get_token`). They are signed and not
//! stored; the log records their use.

use std::time::Duration;

use ruma::{OwnedUserId, UserId, api::client::session::get_login_token::v1 as get_login_token};
use serde::{Deserialize, Serialize};

use super::uiaa::confirm_identity;
use crate::{
    base::clock::random_token,
    edge::{
        api::{Server, about::capabilities::may_get_login_token},
        http::{ApiError, Cx},
    },
};

const PURPOSE: &str = "login token";
const PREFIX: &str = "lcl_";

/// The content of a login token.
#[derive(Clone, Debug)]
pub(super) struct LoginToken {
    /// The user that it logs in.
    pub(super) user_id: OwnedUserId,
    /// Identifies the token.
    pub(super) nonce: String,
    /// When it expires.
    pub(super) expires_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct Statement {
    #[serde(rename = "u")]
    user_id: OwnedUserId,
    #[serde(rename = "n")]
    nonce: String,
}

/// A new login token for this user.
pub(super) fn make(app: &Server, user_id: &UserId, seconds: u64) -> Result<String, ApiError> {
    let statement = Statement { user_id: user_id.to_owned(), nonce: random_token() };
    let expires_ms = app.engine.clock().now_ms().saturating_add(seconds.saturating_mul(1000));
    let signed = app.signing.signer.sign(PURPOSE, &statement, expires_ms);
    Ok(format!("{PREFIX}{}", signed.map_err(ApiError::internal)?))
}

/// The content of a login token, if this server created it and it has not expired. It may have been
/// used.
pub(super) fn open(app: &Server, token: &str) -> Option<LoginToken> {
    let now_ms = app.engine.clock().now_ms();
    let signed = token.strip_prefix(PREFIX)?;
    let (Statement { user_id, nonce }, expires_ms) =
        app.signing.signer.open(PURPOSE, signed, now_ms)?;
    Some(LoginToken { user_id, nonce, expires_ms })
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
