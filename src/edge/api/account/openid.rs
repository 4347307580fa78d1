//! OpenID (client-server API, "OpenID"): a user proves their identity to another service, without
//! giving it access to their account.
//!
//! The token is signed and not stored. Its holder learns the user id, for an hour, and nothing
//! else.

use ruma::{
    OwnedUserId,
    api::{
        auth_scheme::NoAccessToken,
        client::account::request_openid_token::v3 as request_openid_token,
    },
    authentication::TokenType,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::{
    clock::{millis, random_token},
    limits,
};
use logcabin_state::AccountStatus;

const PURPOSE: &str = "openid token";
const PREFIX: &str = "lco_";

/// The request of the other service.
#[derive(Deserialize)]
pub(crate) struct UserinfoRequest {
    access_token: Option<String>,
}

endpoint! {
    /// Where the other service asks: this one endpoint of the server-server API is called by
    /// services, too.
    pub(crate) struct UserInfo = GET "/_matrix/federation/v1/openid/userinfo";
    for NoAccessToken;
    { query: UserinfoRequest = query }
}

#[derive(Serialize, Deserialize)]
struct Statement {
    #[serde(rename = "u")]
    user_id: OwnedUserId,
    /// Makes every token different.
    #[serde(rename = "n")]
    nonce: String,
}

pub(super) async fn request_token(
    cx: Cx<Server>,
    request: request_openid_token::Request,
) -> Result<request_openid_token::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let statement = Statement { user_id: request.user_id, nonce: random_token() };
    let lasts_ms = millis(limits::OPENID_TOKEN);
    let expires_ms = cx.app.engine.clock().now_ms().saturating_add(lasts_ms);
    let signed =
        cx.app.signing.signer.sign(PURPOSE, &statement, expires_ms).map_err(ApiError::internal)?;
    Ok(request_openid_token::Response::new(
        format!("{PREFIX}{signed}"),
        TokenType::Bearer,
        cx.app.config.server.name.clone(),
        limits::OPENID_TOKEN,
    ))
}

pub(crate) async fn userinfo(cx: Cx<Server, ()>, request: UserInfo) -> Result<Json, ApiError> {
    let token = request.query.access_token.ok_or_else(ApiError::missing_token)?;
    let user_id = user_of(&cx.app, &token).ok_or_else(|| ApiError::unknown_token(false))?;
    to_json(&json!({ "sub": user_id }))
}

/// The user whom a token of this server is about.
pub(in crate::api) fn user_of(app: &Server, token: &str) -> Option<OwnedUserId> {
    let now_ms = app.engine.clock().now_ms();
    let signed = token.strip_prefix(PREFIX)?;
    let (Statement { user_id, .. }, _) = app.signing.signer.open(PURPOSE, signed, now_ms)?;
    match app.engine.state().accounts.standing(&user_id) {
        // A deactivated or locked account has no identity. An application service may prove the
        // identity of a user of its own without an account.
        Some(AccountStatus { deactivated: Some(_), .. } | AccountStatus { locked: true, .. }) => {
            None
        }
        _ => Some(user_id),
    }
}
