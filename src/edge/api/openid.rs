//! OpenID (client-server API, "OpenID"): a user shows another service who they are, without giving
//! it anything that it could use in their name.
//!
//! The token is signed and not stored. Whoever holds it learns whose it is, for an hour, and
//! nothing else.

use ruma::{
    OwnedUserId, api::client::account::request_openid_token::v3 as request_openid_token,
    authentication::TokenType,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Server, json as to_json, query};
use crate::{
    base::{clock::random_token, limits},
    edge::http::{ApiError, Cx, RawRequest, Reply, Session},
    state::Standing,
};

const PURPOSE: &str = "openid token";
const PREFIX: &str = "lco_";

/// Where the other service asks: this one endpoint of the server-server API is called by services,
/// too.
pub(super) const USERINFO: &str = "/_matrix/federation/v1/openid/userinfo";

#[derive(Serialize, Deserialize)]
struct Statement {
    #[serde(rename = "u")]
    user_id: OwnedUserId,
    /// No two tokens are alike.
    #[serde(rename = "n")]
    nonce: String,
}

pub(super) async fn request_token(
    cx: Cx<Server>,
    request: request_openid_token::Request,
) -> Result<request_openid_token::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let statement = Statement { user_id: request.user_id, nonce: random_token() };
    let lasts_ms = u64::try_from(limits::OPENID_TOKEN.as_millis()).unwrap_or(u64::MAX);
    let expires_ms = cx.app.engine.clock().now_ms().saturating_add(lasts_ms);
    let signed = cx.app.signer.sign(PURPOSE, &statement, expires_ms).map_err(ApiError::internal)?;
    Ok(request_openid_token::Response::new(
        format!("{PREFIX}{signed}"),
        TokenType::Bearer,
        cx.app.config.server.name.clone(),
        limits::OPENID_TOKEN,
    ))
}

pub(super) async fn userinfo(
    cx: Cx<Server, Option<Session>>,
    request: RawRequest,
) -> Result<Reply, ApiError> {
    #[derive(Deserialize)]
    struct Query {
        access_token: Option<String>,
    }
    let Query { access_token } = query(&request.uri)?;
    let token = access_token.ok_or_else(ApiError::missing_token)?;
    let now_ms = cx.app.engine.clock().now_ms();
    let opened = token.strip_prefix(PREFIX);
    let opened = opened.and_then(|signed| cx.app.signer.open(PURPOSE, signed, now_ms));
    let (Statement { user_id, .. }, _) = opened.ok_or_else(|| ApiError::unknown_token(false))?;
    match cx.app.engine.state().accounts.standing(&user_id) {
        // One whose account is closed or locked is nobody here. An application service may show who
        // a user of its own is that has no account.
        Some(Standing { deactivated: Some(_), .. } | Standing { locked: true, .. }) => {
            Err(ApiError::unknown_token(false))
        }
        _ => Ok(Reply::json(to_json(&json!({ "sub": user_id }))?)),
    }
}
