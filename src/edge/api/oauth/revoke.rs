//! Revocation (client-server API, "Token revocation"; RFC 7009): it ends the session.

use http::{HeaderMap, header::AUTHORIZATION};
use ruma::api::auth_scheme::NoAccessToken;
use serde_json::json;

use super::{
    availability::must_be_offered,
    clients::authenticated,
    parameters::Parameters,
    problem::{Failure, Problem, answer, refusal, replied},
    token::{end, superseded},
};
use crate::{
    api::server::Server,
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::{limits, signed::Signer};
use logcabin_engine::Engine;
use logcabin_record::command::{GrantEnd, TokenHash};
use logcabin_service::accounts::token::{self, Kind};
use logcabin_state::oauth::Grant;

endpoint! {
    /// The holder of a token may end its session.
    pub(super) struct Revoke = POST "/_matrix/oauth2/revoke";
    for NoAccessToken;
    body Body::Short(limits::FORM_BYTES);
    refusal refusal;
    { headers: HeaderMap = headers }
}

pub(super) async fn revoke(cx: Cx<Server, ()>, request: Revoke) -> Result<Reply, ApiError> {
    replied(end_of(&cx, &request.headers).await)
}

async fn end_of(cx: &Cx<Server, ()>, headers: &HeaderMap) -> Result<Reply, Failure> {
    must_be_offered(&cx.app)?;
    let parameters = Parameters::read(&cx.body)?;
    let text = parameters.get("token").ok_or_else(|| Problem::request("`token` is missing."))?;
    if !matches!(parameters.get("token_type_hint"), None | Some("access_token" | "refresh_token")) {
        let why = "`token_type_hint` is `access_token` or `refresh_token`.";
        return Err(Problem::new("unsupported_token_type", why).into());
    }
    // Anyone who has found a token may revoke it, but a client that names itself must authenticate.
    if headers.contains_key(AUTHORIZATION) || parameters.get("client_secret").is_some() {
        authenticated(&cx.app.engine, &cx.app.oauth.clients, headers, &parameters)?;
    }
    if let Some(grant) = grant_of(&cx.app.engine, &cx.app.signing.lasting, text) {
        end(cx, &grant, GrantEnd::Revoked).await?;
    }
    Ok(answer(&json!({})))
}

/// The grant of a token, which others may have followed.
fn grant_of(engine: &Engine, lasting: &Signer, text: &str) -> Option<Grant> {
    let of_session = |hash: &TokenHash| {
        let state = engine.state();
        let accounts = &state.accounts;
        let found = accounts.access_token(hash).or_else(|| accounts.refresh_token(hash));
        if let Some(found) = found {
            return state.oauth.grant_of_session(found.session);
        }
        let oauth = &state.oauth;
        oauth.access_token(hash).or_else(|| oauth.refresh_token(hash)).map(|found| found.grant)
    };
    of_session(&token::hash(text))
        .or_else(|| superseded(engine, lasting, Kind::Access, text))
        .or_else(|| superseded(engine, lasting, Kind::Refresh, text))
}
