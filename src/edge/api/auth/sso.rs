//! The way to a provider of single sign-on and back (client-server API, "Client login via SSO").
//!
//! The server stores nothing meanwhile. The state of a login is in a signed cookie, which only the
//! browser that started it has, and which belongs to the `state` that the provider sends back. The
//! nonce and the PKCE verifier are derived from that state and the server's key when they are
//! needed.

use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, LOCATION, REFERRER_POLICY, SET_COOKIE},
};
use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};
use tracing::warn;
use url::Url;

use super::{login_token, rights};
use crate::{
    api::{
        addresses::{client_api, is_console_login, is_login_page},
        server::Server,
    },
    http::{ApiError, ErrorCode, Reply},
};
use logcabin_base::{
    clock::{Clock, random_token},
    signed::Signer,
    tag::Tag,
};
use logcabin_config::{self as config, Config};
use logcabin_outside::oidc::{OidcError, Provider};

/// The longest time that a browser may take, in milliseconds.
pub(in crate::api) const AWAY_MS: u64 = 30 * 60 * 1000;
/// The longest address to return to.
const REDIRECT_BYTES: usize = 1500;
/// The longest value of a cookie. With its name and the rest, browsers take 4,096 bytes.
const COOKIE_BYTES: usize = 3800;

pub(in crate::api) const TRIP: &str = "sso trip";
const NONCE: &str = "sso nonce";
const VERIFIER: &str = "sso verifier";

/// Why a browser was sent to a provider.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::api) enum SsoPurpose {
    /// To log in, and return to the client with a login token.
    Login { redirect_url: Url },
    /// To sign in to this server's own pages, and go on there.
    Browser { next: String },
    /// To link the account of a user who is logged in.
    Link { user_id: OwnedUserId },
    /// To complete the stage `m.login.sso` of a session of user-interactive authentication, in the
    /// browser that was shown the stage's page: `browser` is the hash of a mark that it has.
    Confirm { session: String, browser: String },
}

/// A browser at a provider.
#[derive(Serialize, Deserialize)]
pub(in crate::api) struct SsoAttempt {
    pub(in crate::api) state: String,
    pub(in crate::api) provider: String,
    pub(in crate::api) errand: SsoPurpose,
}

/// The address to which providers send browsers back.
pub fn callback(server: &config::Server) -> String {
    format!("{}/login/sso/callback", client_api(server))
}

/// Sends a browser to a provider.
pub(in crate::api) async fn set_out(
    app: &Server,
    provider: &Provider,
    errand: SsoPurpose,
) -> Result<Reply, ApiError> {
    // The browser comes back to the node that has the session which it confirms.
    let tag = match &errand {
        SsoPurpose::Confirm { session, .. } => Tag::in_id(session).map(Tag::of),
        _ => None,
    };
    let state = tag.unwrap_or_default().mark(random_token());
    let (nonce, verifier) = secrets(&app.signing.signer, &state);
    let url = provider.begin(state.clone(), nonce, verifier).await;
    let url = url.map_err(|error| of_provider(provider, &error))?;
    let trip = SsoAttempt { state, provider: provider.id().to_owned(), errand };
    let signed = signed(app.engine.clock(), &app.signing.signer, TRIP, &trip)?;
    if signed.len() > COOKIE_BYTES {
        return Err(ApiError::bad_request("The address of the app is too long for this."));
    }
    let cookie = cookie(&app.config.server, &trip.state, &signed, AWAY_MS / 1000)?;
    Ok(see(&url)?.with_header(SET_COOKIE, cookie))
}

/// The address of a client, with a login token for this user.
pub(in crate::api) fn with_token(
    app: &Server,
    user_id: &UserId,
    mut redirect_url: Url,
) -> Result<Url, ApiError> {
    // Refused here, where a person sees it; the client could not do anything with the token.
    rights::may_log_in(&app.engine, user_id)?;
    let token = login_token::make(
        app.engine.clock(),
        &app.signing.signer,
        user_id,
        app.config.sso.token_seconds,
    )?;
    redirect_url.query_pairs_mut().append_pair("loginToken", &token);
    Ok(redirect_url)
}

/// Signs a statement that stays valid for as long as a browser may take.
pub(in crate::api) fn signed(
    clock: &Clock,
    signer: &Signer,
    purpose: &str,
    statement: &impl Serialize,
) -> Result<String, ApiError> {
    let expires_ms = clock.now_ms().saturating_add(AWAY_MS);
    signer.sign(purpose, statement, expires_ms).map_err(ApiError::internal)
}

/// An address to return to, if browsers may be sent there.
pub(in crate::api) fn redirect_url(
    config: &Config,
    given: Option<String>,
) -> Result<Url, ApiError> {
    let wrong = |why: &'static str| ApiError::bad_request(why);
    let given = given.ok_or_else(|| wrong("The parameter redirectUrl is missing."))?;
    if given.len() > REDIRECT_BYTES {
        return Err(wrong("The address to return to is too long."));
    }
    let url: Url =
        given.parse().map_err(|_| wrong("The address to return to is not an address."))?;
    let is_code = matches!(
        url.scheme(),
        "javascript"
            | "data"
            | "vbscript"
            | "blob"
            | "file"
            | "filesystem"
            | "about"
            | "view-source"
    );
    if is_code || !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("Nobody can be sent to this address."));
    }
    if !config.sso.other_redirects && !is_trusted(config, &url) {
        let why = format!("This server does not send logins to {}.", place(&url));
        return Err(ApiError::forbidden(why));
    }
    Ok(url)
}

/// Whether the administrators trust this address.
pub(in crate::api) fn is_trusted(config: &Config, url: &Url) -> bool {
    is_login_page(&config.server, url)
        || is_console_login(&config.console, &config.server, url)
        || config.sso.redirects.0.iter().any(|known| known.covers(url))
}

/// The displayed name of an address.
pub(in crate::api) fn place(url: &Url) -> String {
    match (url.scheme(), url.host_str(), url.port()) {
        ("http" | "https", Some(host), None) => host.to_owned(),
        ("http" | "https", Some(host), Some(port)) => format!("{host}:{port}"),
        (scheme, ..) => format!("the app for {scheme}: addresses"),
    }
}

/// The nonce and the PKCE verifier of a state.
pub(in crate::api) fn secrets(signer: &Signer, state: &str) -> (String, String) {
    (signer.secret(NONCE, state), signer.secret(VERIFIER, state))
}

/// The error for a person whose provider does not do what it was asked for.
pub(in crate::api) fn of_provider(provider: &Provider, error: &OidcError) -> ApiError {
    let name = provider.name();
    if !matches!(error, OidcError::Unavailable(_)) {
        // The client gets an ordinary refusal; the administrator may have to act.
        warn!(provider = provider.id(), %error, "single sign-on failed");
    }
    match error {
        OidcError::Unavailable(_) => {
            let why = format!("{name} does not answer as it should.");
            ApiError::new(ErrorCode::ConnectionFailed, why).with_cause(error.to_string())
        }
        OidcError::Refused(_) => ApiError::forbidden(format!(
            "{name} does not accept this login; it may have taken too long."
        )),
        OidcError::Untrusted(_) => {
            ApiError::forbidden(format!("The answer of {name} cannot be trusted for this login."))
        }
    }
}

/// Redirects to another address, which may contain a token.
pub(in crate::api) fn see(url: &Url) -> Result<Reply, ApiError> {
    let location = HeaderValue::from_str(url.as_str())
        .map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Reply::bytes("text/plain; charset=utf-8", "")
        .with_status(StatusCode::FOUND)
        .with_header(LOCATION, location)
        .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .with_header(REFERRER_POLICY, HeaderValue::from_static("no-referrer")))
}

/// One cookie for each login, because a browser may have several in progress.
pub(in crate::api) fn cookie_name(state: &str) -> String {
    format!("logcabin_sso_{}", &hash(state)[..16])
}

/// A text that does not reveal this one.
pub(in crate::api) fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// A cookie for the way back from a provider.
pub(in crate::api) fn cookie(
    server: &config::Server,
    state: &str,
    value: &str,
    seconds: u64,
) -> Result<HeaderValue, ApiError> {
    let url = callback(server);
    let path = url.parse::<Url>().map_or_else(|_| "/".to_owned(), |url| url.path().to_owned());
    let secure = if url.starts_with("https:") { "; Secure" } else { "" };
    let name = cookie_name(state);
    HeaderValue::from_str(&format!(
        "{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    ))
    .map_err(|error| ApiError::internal(error.to_string()))
}
