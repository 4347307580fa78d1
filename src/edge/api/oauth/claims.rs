//! Who a user is, for services that are no clients of Matrix: ID tokens, `userinfo`, and the keys
//! that ID tokens are checked with (OpenID Connect Core, sections 2 and 5.3).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, WWW_AUTHENTICATE},
};
use ruma::{UserId, api::auth_scheme::NoAccessToken};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    addresses::issuer,
    availability::must_be_offered,
    problem::{answer, refusal},
};
use crate::{
    api::{
        auth::{grants::grant_of, rights, session},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, access_token, endpoint},
};
use logcabin_base::limits;
use logcabin_record::threepid::Medium;
use logcabin_service::oauth::IdTokenError;

endpoint! {
    /// The public keys.
    pub(super) struct Keys = GET "/_matrix/oauth2/keys.json";
    for NoAccessToken;
    refusal refusal;
    {}
}

endpoint! {
    /// Who the owner of an access token is.
    pub(super) struct Userinfo = GET "/_matrix/oauth2/userinfo";
    for NoAccessToken;
    refusal refusal;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The same by the other method.
    pub(super) struct PostUserinfo = POST "/_matrix/oauth2/userinfo";
    for NoAccessToken;
    body Body::Short(limits::FORM_BYTES);
    refusal refusal;
    { headers: HeaderMap = headers }
}

impl From<IdTokenError> for ApiError {
    fn from(error: IdTokenError) -> Self {
        match error {
            IdTokenError::Key(_) => Self::internal(error),
            IdTokenError::Propose(error) => error.into(),
        }
    }
}

pub(super) async fn keys(cx: Cx<Server, ()>, _: Keys) -> Result<Reply, ApiError> {
    must_be_offered(&cx.app)?;
    let keys = cx.app.oauth.id_tokens.public(&cx.app.engine).await?;
    let caching = HeaderValue::from_static("public, max-age=600");
    Ok(Reply::json(keys.to_string()).with_header(CACHE_CONTROL, caching))
}

/// An ID token about a user who proved who they are at `auth_ms`, for a client.
pub(super) async fn id_token(
    app: &Server,
    (user_id, client_id, auth_ms): (&UserId, &str, u64),
    nonce: Option<String>,
    access_token: &str,
) -> Result<String, ApiError> {
    let now = app.engine.clock().now_ms() / 1000;
    let hash = Sha256::digest(access_token.as_bytes());
    let mut claims = json!({
        "iss": issuer(&app.config.server),
        "sub": user_id,
        "aud": client_id,
        "iat": now,
        "exp": now + limits::OAUTH_ID_TOKEN.as_secs(),
        "auth_time": auth_ms / 1000,
        "at_hash": URL_SAFE_NO_PAD.encode(&hash[..hash.len() / 2]),
    });
    if let Some(nonce) = nonce {
        claims["nonce"] = json!(nonce);
    }
    Ok(app.oauth.id_tokens.sign(&app.engine, &claims).await?)
}

pub(super) async fn userinfo(cx: Cx<Server, ()>, request: Userinfo) -> Result<Reply, ApiError> {
    claims(&cx, &request.headers).await
}

pub(super) async fn post_userinfo(
    cx: Cx<Server, ()>,
    request: PostUserinfo,
) -> Result<Reply, ApiError> {
    claims(&cx, &request.headers).await
}

async fn claims(cx: &Cx<Server, ()>, headers: &HeaderMap) -> Result<Reply, ApiError> {
    must_be_offered(&cx.app)?;
    match told(cx, headers).await {
        Ok(claims) => Ok(answer(&claims)),
        Err(error)
            if matches!(error.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
        {
            let code = if error.status() == StatusCode::FORBIDDEN {
                "insufficient_scope"
            } else {
                "invalid_token"
            };
            let body = json!({ "error": code, "error_description": error.message() });
            let scheme = format!("Bearer error=\"{code}\"");
            let scheme = HeaderValue::from_str(&scheme).map_err(ApiError::internal)?;
            let reply = answer(&body).with_status(error.status());
            Ok(reply.with_header(WWW_AUTHENTICATE, scheme))
        }
        Err(error) => Err(error),
    }
}

async fn told(cx: &Cx<Server, ()>, headers: &HeaderMap) -> Result<Value, ApiError> {
    let app = &*cx.app;
    let no_query = http::Uri::default();
    let token = access_token(headers, &no_query).ok_or_else(ApiError::missing_token)?;
    let session = session::of_token(app, &token).await?;
    rights::may_log_in(&app.engine, &session.user_id)?;
    let grant = grant_of(&app.engine, &session);
    let scope = grant.map(|grant| grant.scope()).filter(|scope| scope.openid);
    let scope = scope.ok_or_else(|| ApiError::forbidden("The token's scope lacks `openid`."))?;
    let user_id = &session.user_id;
    let mut claims = json!({ "sub": user_id });
    if scope.profile {
        claims["preferred_username"] = json!(user_id.localpart());
        let account = app.engine.state().accounts.get(user_id);
        let name = account.and_then(|account| account.read().profile_field("displayname").cloned());
        if let Some(name) = name {
            claims["name"] = name;
        }
    }
    if scope.email {
        let own = app.engine.state().threepids.of_user(user_id).into_iter();
        let mut emails = own.filter(|(threepid, _)| threepid.medium == Medium::Email);
        if let Some((email, _)) = emails.next() {
            claims["email"] = json!(email.address);
            // Nobody has an address here that they have not confirmed.
            claims["email_verified"] = json!(true);
        }
    }
    Ok(claims)
}
