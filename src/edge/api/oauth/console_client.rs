//! The console as a client of this server: it sends the browser to the authorization endpoint, as
//! every client does, and exchanges the code here, without a request to itself. Nobody else can
//! exchange its codes, because nobody has its secret.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderMap;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{
    addresses::issuer,
    availability::must_be_offered,
    problem::Failure,
    token::{HeldCode, IssuedGrant, end, redeem},
};
use crate::{
    api::{addresses::is_offered, auth::credentials::NewTokens, browser::cookies, server::Server},
    http::{ApiError, Cx},
};
use logcabin_base::{
    clock::{millis, random_token},
    limits,
    signed::Signer,
};
use logcabin_engine::Engine;
use logcabin_record::command::{GrantEnd, TokenHash};
use logcabin_service::oauth::{CONSOLE, Client, Clients};

/// What the console may do: administer the server, which only administrators can allow.
const SCOPE: &str = "openid urn:synapse:admin:*";

/// The cookie of a login under way.
pub(in crate::api) const COOKIE_NAME: &str = "logcabin_console_login";

/// A login under way: a secret of the browser. All that the client must recognise follows from it,
/// so that no node has to remember anything.
pub(in crate::api) struct Attempt(String);

/// Whether users can log in to the console this way.
pub(in crate::api) fn is_possible(app: &Server) -> bool {
    is_offered(&app.config.oauth, &app.config.server)
        && console(&app.engine, &app.oauth.clients).is_ok()
}

fn console(engine: &Engine, clients: &Clients) -> Result<Client, ApiError> {
    let client = clients.get(engine, CONSOLE);
    client.ok_or_else(ApiError::no_such_endpoint)
}

fn redirect_uri(client: &Client) -> &str {
    client.metadata.redirect_uris.first().map_or("", String::as_str)
}

impl Attempt {
    /// A new one.
    pub(in crate::api) fn begin() -> Self {
        Self(random_token())
    }

    /// What the browser keeps of it.
    pub(in crate::api) fn secret(&self) -> &str {
        &self.0
    }

    fn part(&self, signer: &Signer, purpose: &str) -> String {
        signer.secret(&format!("console login: {purpose}"), &self.0)
    }

    /// Where the browser goes.
    pub(in crate::api) fn location(&self, app: &Server) -> Result<String, ApiError> {
        must_be_offered(app)?;
        let client = console(&app.engine, &app.oauth.clients)?;
        let part = |purpose: &str| self.part(&app.signing.signer, purpose);
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(part("verifier")));
        let (state, nonce) = (part("state"), part("nonce"));
        // An unattended browser must not give access to the administration.
        let max_age = limits::OAUTH_FRESH.as_secs().to_string();
        let query = serde_html_form::to_string([
            ("response_type", "code"),
            ("response_mode", "query"),
            ("client_id", &*client.id),
            ("redirect_uri", redirect_uri(&client)),
            ("scope", SCOPE),
            ("state", &*state),
            ("nonce", &*nonce),
            ("code_challenge", &*challenge),
            ("code_challenge_method", "S256"),
            ("max_age", &*max_age),
        ]);
        let query = query.map_err(ApiError::internal)?;
        Ok(format!("{}/authorize?{query}", issuer(&app.config.server)))
    }

    /// The one of a browser that comes back with this state.
    fn of(signer: &Signer, headers: &HeaderMap, state: &str) -> Option<Self> {
        let mut given = cookies(headers, COOKIE_NAME).map(|cookie| Self(cookie.to_owned()));
        given.find(|attempt| {
            bool::from(attempt.part(signer, "state").as_bytes().ct_eq(state.as_bytes()))
        })
    }
}

/// The access token of an administrator whose browser comes back from the authorization endpoint.
pub(in crate::api) async fn arrive(
    cx: &Cx<Server, ()>,
    headers: &HeaderMap,
) -> Result<String, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let client = console(&app.engine, &app.oauth.clients)?;
    let state = cx.query("state")?.unwrap_or_default();
    let attempt = Attempt::of(&app.signing.signer, headers, &state).ok_or_else(|| {
        ApiError::forbidden(
            "This login was started in another browser, or too long ago. Start again.",
        )
    })?;
    if cx.query("iss")?.as_deref() != Some(&*issuer(&app.config.server)) {
        return Err(ApiError::forbidden("This does not come from the sign-in of this server."));
    }
    let Some(code) = cx.query("code")? else {
        return Err(ApiError::forbidden(match cx.query("error")?.as_deref() {
            Some("access_denied") => "You did not allow it.",
            _ => "The login did not work. Start again.",
        }));
    };
    let verifier = attempt.part(&app.signing.signer, "verifier");
    let redirect_uri = redirect_uri(&client);
    let held = HeldCode { code: &code, redirect_uri, verifier: &verifier };
    let now_ms = app.engine.clock().now_ms();
    let end_ms = now_ms.saturating_add(millis(limits::CONSOLE_SESSION));
    let tokens = NewTokens::make(app, false).ending(Some(end_ms));
    let given = match redeem(cx, &client, &held, tokens).await {
        Ok(given) => given,
        Err(Failure::Problem(problem)) => return Err(ApiError::forbidden(problem.description)),
        Err(Failure::Error(error)) => return Err(error),
    };
    let IssuedGrant { user_id, nonce, tokens, .. } = given;
    let standing = app.engine.state().accounts.standing(&user_id).unwrap_or_default();
    // The verifier has shown that the code is of this login, and so does the nonce.
    if !standing.admin || nonce.as_deref() != Some(&*attempt.part(&app.signing.signer, "nonce")) {
        if let Some(grant) = app.engine.state().oauth.grant_of_code(&TokenHash::of(&code)) {
            end(cx, &grant, GrantEnd::Revoked).await?;
        }
        return Err(ApiError::forbidden("You do not administer this server."));
    }
    Ok(tokens.access)
}
