//! The token endpoint (RFC 6749, sections 4.1.3 and 6; RFC 8628, section 3.4): codes and refresh
//! tokens are exchanged for tokens.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderMap;
use ruma::{OwnedUserId, api::auth_scheme::NoAccessToken};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{
    availability::must_be_offered,
    claims::id_token,
    clients::authenticated,
    parameters::Parameters,
    problem::{Failure, Problem, answer, refusal, replied},
};
use crate::{
    api::{
        auth::{
            credentials::{IssuedTokens, NewTokens},
            session,
        },
        server::Server,
    },
    http::{ApiError, Body, Cx, LoginRefusal, Reply, endpoint, refused_login},
};
use logcabin_base::{clock::random_letters, limits, signed::Signer};
use logcabin_decide::{
    Refusal,
    account::{Login, Refresh},
    oauth::{EndGrants, Exchange, Exchanged, RefreshGrant},
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_record::{
    client::GrantType,
    command::{GrantEnd, OauthGrant, TokenHash},
    scope::Scope,
};
use logcabin_service::{
    accounts::token::{self, Kind},
    oauth::Client,
};
use logcabin_state::oauth::Grant;

endpoint! {
    /// A client exchanges something for tokens.
    pub(super) struct Token = POST "/_matrix/oauth2/token";
    for NoAccessToken;
    body Body::Short(limits::FORM_BYTES);
    refusal refusal;
    { headers: HeaderMap = headers }
}

type Caller = Cx<Server, ()>;

pub(super) async fn token(cx: Caller, request: Token) -> Result<Reply, ApiError> {
    replied(exchange(&cx, &request.headers).await)
}

async fn exchange(cx: &Caller, headers: &HeaderMap) -> Result<Reply, Failure> {
    must_be_offered(&cx.app)?;
    let parameters = Parameters::read(&cx.body)?;
    let client = authenticated(&cx.app.engine, &cx.app.oauth.clients, headers, &parameters)
        .map_err(Failure::from)
        .inspect_err(|failure| told_of(cx, failure))?;
    let name = parameters.get("grant_type");
    let name = name.ok_or_else(|| Problem::request("`grant_type` is missing."))?;
    let unsupported = || Problem::new("unsupported_grant_type", "There is no such grant type.");
    let grant_type = GrantType::named(name).ok_or_else(unsupported)?;
    let registered = client.metadata.grant_types.contains(&grant_type);
    match grant_type {
        GrantType::AuthorizationCode if registered => {
            by_code(cx, &client, &parameters).await.inspect_err(|failure| told_of(cx, failure))
        }
        GrantType::DeviceCode if registered => {
            let given = by_device_code(cx, &client, &parameters).await;
            given.inspect_err(|failure| told_of(cx, failure))
        }
        // Everything that is granted can be refreshed.
        GrantType::RefreshToken => by_refresh_token(cx, &client, &parameters).await,
        _ => {
            let why = "The client is not registered for this grant type.";
            Err(Problem::new("unauthorized_client", why).into())
        }
    }
}

/// Tells of a code or of a client's secret that is not valid. Refresh tokens become invalid in the
/// ordinary course of things, and are no logins.
fn told_of(cx: &Caller, failure: &Failure) {
    if let Failure::Problem(problem) = failure
        && matches!(problem.code, "invalid_grant" | "invalid_client")
    {
        refused_login(cx.client, None, LoginRefusal::Oauth);
    }
}

fn required<'a>(parameters: &'a Parameters, name: &str) -> Result<&'a str, Problem> {
    parameters.get(name).ok_or_else(|| Problem::request(format!("`{name}` is missing.")))
}

/// Whether a verifier is the one of a challenge (RFC 7636, section 4.6).
fn verifies(verifier: &str, challenge: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let is_one = (43..=128).contains(&verifier.len()) && verifier.bytes().all(valid);
    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
    is_one && bool::from(hash.as_bytes().ct_eq(challenge.as_bytes()))
}

async fn by_code(cx: &Caller, client: &Client, parameters: &Parameters) -> Result<Reply, Failure> {
    let held = HeldCode {
        code: required(parameters, "code")?,
        redirect_uri: required(parameters, "redirect_uri")?,
        verifier: required(parameters, "code_verifier")?,
    };
    let given = redeem(cx, client, &held, NewTokens::make(&cx.app, true)).await?;
    told_to(&cx.app, client, given).await
}

/// An authorization code, and the client's proof that it is its own.
pub(super) struct HeldCode<'a> {
    pub(super) code: &'a str,
    pub(super) redirect_uri: &'a str,
    pub(super) verifier: &'a str,
}

/// Exchanges a code for these tokens.
pub(super) async fn redeem(
    cx: &Caller,
    client: &Client,
    held: &HeldCode<'_>,
    tokens: NewTokens,
) -> Result<IssuedGrant, Failure> {
    let invalid = || Problem::grant("The code is not, or no longer, valid.");
    let HeldCode { code, redirect_uri, verifier } = *held;
    let code = TokenHash::of(code);
    let (oauth, now_ms) = (&cx.app.engine.state().oauth, cx.app.engine.clock().now_ms());
    let Some(found) = oauth.code(&code, now_ms) else {
        let used = oauth.grant_of_code(&code).filter(|used| used.client_id == client.id);
        // The code alone, from a log or a history, does not suffice to end the session.
        let challenge = |used: &Grant| used.code_challenge.clone().unwrap_or_default();
        if let Some(used) = used.filter(|used| verifies(verifier, &challenge(used))) {
            end(cx, &used, GrantEnd::CodeReused).await?;
        }
        return Err(invalid().into());
    };
    let is_theirs = found.client_id == client.id
        && found.redirect_uri == redirect_uri
        && verifies(verifier, &found.code_challenge);
    if !is_theirs {
        return Err(invalid().into());
    }
    let granted = CodeGrant {
        user_id: found.user_id,
        scope: Scope::recorded(&found.scope),
        code,
        nonce: found.nonce,
        auth_ms: found.auth_ms,
    };
    give(cx, client, granted, tokens).await
}

async fn by_device_code(
    cx: &Caller,
    client: &Client,
    parameters: &Parameters,
) -> Result<Reply, Failure> {
    let code = TokenHash::of(required(parameters, "device_code")?);
    let (oauth, now_ms) = (&cx.app.engine.state().oauth, cx.app.engine.clock().now_ms());
    let request = oauth.request(&code).filter(|request| request.client_id == client.id);
    let Some(request) = request else {
        let used = oauth.grant_of_code(&code).filter(|used| used.client_id == client.id);
        if let Some(used) = used {
            end(cx, &used, GrantEnd::CodeReused).await?;
        }
        let why = "There is no such device code, or it was used, or has expired long ago.";
        return Err(Problem::grant(why).into());
    };
    if request.expires_ms <= now_ms {
        cx.app.oauth.polls.forget(&code);
        return Err(Problem::new("expired_token", "The device code has expired.").into());
    }
    let Some(answered) = request.answer else {
        let problem = if cx.app.oauth.polls.is_too_soon(&code, now_ms) {
            Problem::new("slow_down", "Ask less often.")
        } else {
            Problem::new("authorization_pending", "The user has not answered yet.")
        };
        return Err(problem.into());
    };
    cx.app.oauth.polls.forget(&code);
    if !answered.allowed {
        return Err(Problem::new("access_denied", "The user denied the request.").into());
    }
    let granted = CodeGrant {
        user_id: answered.user_id,
        scope: Scope::recorded(&request.scope),
        code,
        nonce: None,
        auth_ms: answered.auth_ms,
    };
    let given = give(cx, client, granted, NewTokens::make(&cx.app, true)).await?;
    told_to(&cx.app, client, given).await
}

/// What a code is exchanged for.
struct CodeGrant {
    user_id: OwnedUserId,
    scope: Scope,
    code: TokenHash,
    nonce: Option<String>,
    auth_ms: u64,
}

/// What a client has got.
pub(super) struct IssuedGrant {
    pub(super) user_id: OwnedUserId,
    /// The nonce that the client gave.
    pub(super) nonce: Option<String>,
    pub(super) tokens: IssuedTokens,
    scope: Scope,
    auth_ms: u64,
}

async fn give(
    cx: &Caller,
    client: &Client,
    granted: CodeGrant,
    tokens: NewTokens,
) -> Result<IssuedGrant, Failure> {
    let CodeGrant { user_id, scope, code, nonce, auth_ms } = granted;
    let app = &*cx.app;
    let device_id = scope.device.clone();
    let login = device_id.clone().map(|device_id| Login {
        user_id: user_id.clone(),
        device_id,
        display_name: client.metadata.in_language("client_name", &[]).map(str::to_owned),
        tokens: tokens.hashes(),
        verified: None,
    });
    let grant = OauthGrant {
        grant_id: random_letters(16),
        user_id: user_id.clone(),
        client_id: client.id.clone(),
        scope: scope.to_string(),
        tokens: login.is_none().then(|| tokens.hashes()),
        device_id,
        code,
        auth_ms,
    };
    let now_ms = app.engine.clock().now_ms();
    let configured = client.configured;
    let exchanged = match cx
        .app
        .engine
        .propose(cx.origin(), Exchange { login, grant, configured, now_ms })
        .await
    {
        Ok(exchanged) => exchanged.into_inner(),
        // The account was locked meanwhile, or has too many devices.
        Err(ProposeError::Refused(
            refusal @ (Refusal::UserLocked
            | Refusal::UserDeactivated
            | Refusal::AwaitsApproval
            | Refusal::OverQuota(_)
            | Refusal::Forbidden(_)),
        )) => return Err(Problem::grant(refusal.to_string()).into()),
        Err(error) => return Err(ApiError::from(error).into()),
    };
    if exchanged != Exchanged::Granted {
        return Err(Problem::grant("The code is not, or no longer, valid.").into());
    }
    let tokens = tokens.told(app);
    session::begun(app, &tokens.access, cx.client).await;
    Ok(IssuedGrant { user_id, nonce, tokens, scope, auth_ms })
}

/// The answer with what a client has got.
async fn told_to(app: &Server, client: &Client, given: IssuedGrant) -> Result<Reply, Failure> {
    let IssuedGrant { user_id, nonce, tokens, scope, auth_ms } = given;
    let id_token = if scope.openid {
        let about = (&*user_id, client.id.as_str(), auth_ms);
        Some(id_token(app, about, nonce, &tokens.access).await?)
    } else {
        None
    };
    Ok(successful(tokens, &scope, id_token))
}

/// The successful answer.
fn successful(tokens: IssuedTokens, scope: &Scope, id_token: Option<String>) -> Reply {
    let mut body = json!({
        "access_token": tokens.access,
        "token_type": "Bearer",
        "scope": scope.to_string(),
    });
    if let Some(lifetime) = tokens.expires_in {
        body["expires_in"] = json!(lifetime.as_secs());
    }
    if let Some(refresh) = tokens.refresh {
        body["refresh_token"] = json!(refresh);
    }
    if let Some(id_token) = id_token {
        body["id_token"] = json!(id_token);
    }
    answer(&body)
}

pub(super) async fn end(cx: &Caller, grant: &Grant, because: GrantEnd) -> Result<(), ApiError> {
    let (user_id, grants) = (grant.user_id.clone(), vec![grant.grant_id.clone()]);
    cx.propose(EndGrants { user_id, grants, because }).await?.into_inner();
    Ok(())
}

/// What a refresh token is of.
struct RefreshedGrant {
    grant: Grant,
    login_ms: u64,
    issued_ms: u64,
}

/// The grant of a valid refresh token.
fn presented(engine: &Engine, hash: &TokenHash) -> Option<RefreshedGrant> {
    let state = engine.state();
    if let Some(found) = state.accounts.refresh_token(hash) {
        let grant = state.oauth.grant_of_session(found.session)?;
        let (login_ms, issued_ms) = (found.login_ms, found.issued_ms);
        return Some(RefreshedGrant { grant, login_ms, issued_ms });
    }
    let found = state.oauth.refresh_token(hash)?;
    let (login_ms, issued_ms) = (found.grant.granted_ms, found.issued_ms);
    Some(RefreshedGrant { grant: found.grant, login_ms, issued_ms })
}

/// The grant that a token was of, if it is one of this server's that others have followed.
pub(super) fn superseded(
    engine: &Engine,
    lasting: &Signer,
    kind: Kind,
    token: &str,
) -> Option<Grant> {
    let session = kind.session(lasting, token)?;
    engine.state().oauth.grant_of_session(session)
}

async fn by_refresh_token(
    cx: &Caller,
    client: &Client,
    parameters: &Parameters,
) -> Result<Reply, Failure> {
    let app = &*cx.app;
    let text = required(parameters, "refresh_token")?;
    let hash = token::hash(text);
    let invalid = || Problem::grant("The refresh token is not, or no longer, valid.");
    let Some(RefreshedGrant { grant, login_ms, issued_ms }) = presented(&app.engine, &hash) else {
        let stolen = superseded(&app.engine, &app.signing.lasting, Kind::Refresh, text);
        if let Some(stolen) = stolen.filter(|stolen| stolen.client_id == client.id) {
            // Either of its two holders may be an attacker (RFC 9700, section 4.14.2).
            end(cx, &stolen, GrantEnd::RefreshReused).await?;
        }
        return Err(invalid().into());
    };
    if grant.client_id != client.id {
        return Err(invalid().into());
    }
    let scope = grant.scope();
    if let Some(asked) = parameters.get("scope")
        && Scope::parse(asked).as_ref().map(ToString::to_string) != Ok(scope.to_string())
    {
        let why = "A refresh keeps the scope: leave it out.";
        return Err(Problem::new("invalid_scope", why).into());
    }
    let config = &app.config.tokens;
    let idle = config.refresh_lifetime_seconds.end_ms(issued_ms);
    if session::is_over(
        app.engine.clock(),
        [idle, config.session_lifetime_seconds.end_ms(login_ms)],
    ) {
        return Err(Problem::grant("The refresh token has expired.").into());
    }
    let tokens = NewTokens::refreshed(app, text, login_ms);
    let (hashes, good_enough_ms) = (tokens.hashes(), tokens.half_life_ms());
    let user_id = grant.user_id.clone();
    let outcome = match grant.device_id.clone() {
        Some(device_id) => {
            let refresh =
                Refresh { user_id, device_id, presented: hash, tokens: hashes, good_enough_ms };
            app.engine.propose(cx.origin(), refresh).await
        }
        None => {
            let refresh = RefreshGrant {
                user_id,
                grant_id: grant.grant_id.clone(),
                presented: hash,
                tokens: hashes,
                good_enough_ms,
            };
            app.engine.propose(cx.origin(), refresh).await
        }
    };
    let expires_ms = match outcome {
        Ok(refreshed) => refreshed.into_inner(),
        Err(ProposeError::Refused(Refusal::UnknownToken)) => return Err(invalid().into()),
        Err(ProposeError::Refused(
            refusal @ (Refusal::UserLocked | Refusal::UserDeactivated | Refusal::AwaitsApproval),
        )) => return Err(Problem::grant(refusal.to_string()).into()),
        Err(error) => return Err(ApiError::from(error).into()),
    };
    Ok(successful(tokens.ending(expires_ms).told(app), &scope, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_is_that_of_its_challenge_alone() {
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
        assert!(verifies(verifier, challenge));
        assert!(!verifies(challenge, challenge));
        assert!(!verifies(&verifier[1..], challenge));
        assert!(!verifies(verifier, ""));
        let other = |verifier: &str| URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        for bad in ["x".repeat(42), "x".repeat(129), format!("{} ", "x".repeat(43))] {
            assert!(!verifies(&bad, &other(&bad)), "{bad}");
        }
    }
}
