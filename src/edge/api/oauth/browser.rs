//! The browser in which a page is open: its cookie, who is signed in with it, and proofs that a
//! form is one that this server showed to it.
//!
//! A browser gets a cookie with its first page. Signing in replaces it, so that nobody can have
//! given the browser a cookie that they know; the log has a hash of it. A form has a MAC of the
//! cookie and of what the form is about, so that no other site can send it, and none of another
//! page either.

use std::{net::IpAddr, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use maud::html;
use ruma::{OwnedUserId, UserId};

use super::{
    addresses::{ReturnPath, issuer, path},
    parameters::Parameters,
};
use crate::{
    api::{
        auth::rights,
        browser::{cookies, is_from_elsewhere, page::Page},
        server::Server,
    },
    http::{ApiError, Cx, Reply},
};
use logcabin_base::{
    clock::{Clock, millis, random_token},
    limits,
    signed::Signer,
};
use logcabin_config as config;
use logcabin_decide::oauth::SignIn;
use logcabin_engine::Engine;
use logcabin_record::{
    Offset, Origin,
    command::{BrowserSignIn, SignedInBy, TokenHash},
};
use logcabin_state::oauth::Browser;

/// The domain of the MACs in forms.
const FORM: &str = "oauth form";

/// Where a browser goes after the page (HTML Standard, "Refresh").
const REFRESH: HeaderName = HeaderName::from_static("refresh");

/// The field with the MAC.
pub(super) const FIELD: &str = "form";

/// A browser.
pub(super) struct Visitor {
    cookie: String,
    /// Whether it has the cookie already.
    knows: bool,
    /// The hash of the cookie.
    pub(super) hash: TokenHash,
    signed_in: Option<Browser>,
}

/// A user who is signed in.
#[derive(Clone, Debug)]
pub(super) struct SignedIn {
    pub(super) user_id: OwnedUserId,
    /// When they proved who they are, in milliseconds since the Unix epoch.
    pub(super) auth_ms: u64,
}

impl SignedIn {
    /// Whether they proved it within this time.
    pub(super) fn is_fresh(&self, clock: &Clock, within: Duration) -> bool {
        clock.now_ms() <= self.auth_ms.saturating_add(millis(within))
    }

    /// The origin of what they do.
    pub(super) fn origin(&self, request_id: &str) -> Origin {
        Origin {
            user: self.user_id.as_str().into(),
            device: Box::default(),
            request: request_id.into(),
        }
    }
}

impl Visitor {
    /// The browser that sent these headers.
    pub(super) fn of(engine: &Engine, server: &config::Server, headers: &HeaderMap) -> Self {
        let (state, now_ms) = (engine.state(), engine.clock().now_ms());
        let name = name(server);
        let valid = |cookie: &&str| cookie.len() == 43 && cookie.is_ascii();
        let mut given: Vec<&str> = cookies(headers, name).filter(valid).collect();
        let signed_in = |cookie: &str| {
            let browser = state.oauth.browser(&TokenHash::of(cookie), now_ms);
            browser.filter(|browser| rights::may_log_in(engine, &browser.user_id).is_ok())
        };
        // Another path of the host may have set one of the same name.
        given.sort_by_key(|cookie| signed_in(cookie).is_none());
        match given.first() {
            Some(cookie) => Self {
                cookie: (*cookie).to_owned(),
                knows: true,
                hash: TokenHash::of(cookie),
                signed_in: signed_in(cookie),
            },
            None => {
                let cookie = random_token();
                let hash = TokenHash::of(&cookie);
                Self { cookie, knows: false, hash, signed_in: None }
            }
        }
    }

    /// Who is signed in.
    pub(super) fn signed_in(&self) -> Option<SignedIn> {
        let Browser { user_id, auth_ms, .. } = self.signed_in.clone()?;
        Some(SignedIn { user_id, auth_ms })
    }

    /// Who is signed in, for a form that nobody else can send.
    pub(super) fn must_be_signed_in(&self) -> Result<SignedIn, ApiError> {
        self.signed_in().ok_or_else(|| ApiError::forbidden("You are not signed in."))
    }

    /// The user who is signed in.
    pub(super) fn user(&self) -> Option<&UserId> {
        self.signed_in.as_ref().map(|browser| &*browser.user_id)
    }

    /// The proof for a form about this.
    pub(super) fn proof(&self, signer: &Signer, about: &str) -> String {
        signer.mac(FORM, &self.proved(about))
    }

    /// Refuses a form that this server has not shown to this browser, about this.
    pub(super) fn check(
        &self,
        signer: &Signer,
        headers: &HeaderMap,
        about: &str,
        form: &Parameters,
    ) -> Result<(), ApiError> {
        let is_own = is_from_elsewhere(headers) != Some(true);
        let proof = form.text(FIELD);
        if is_own && self.knows && signer.is_mac(FORM, &self.proved(about), proof) {
            return Ok(());
        }
        let why = "This page is too old, or your browser keeps no cookies. Load it again.";
        Err(ApiError::forbidden(why))
    }

    fn proved(&self, about: &str) -> String {
        let user = self.user().map_or("", UserId::as_str);
        format!("{}\n{user}\n{about}", self.cookie)
    }

    /// A mark of this browser that is no secret.
    pub(super) fn mark(&self) -> String {
        self.hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The reply, with the cookie if the browser does not have it.
    pub(super) fn keep(&self, server: &config::Server, reply: Reply) -> Result<Reply, ApiError> {
        if self.knows {
            return Ok(reply);
        }
        Ok(reply.with_header(header::SET_COOKIE, cookie(server, &self.cookie, None)?))
    }
}

/// What a browser's new sign-in is about.
pub(super) struct NewSignIn<'a> {
    pub(super) user_id: OwnedUserId,
    /// How they proved who they are.
    pub(super) by: SignedInBy,
    /// When the password was set that was verified.
    pub(super) verified: Option<Offset>,
    /// From where.
    pub(super) client: IpAddr,
    /// The request's headers.
    pub(super) headers: &'a HeaderMap,
    pub(super) request_id: &'a str,
}

impl<'a> NewSignIn<'a> {
    /// One without a password that was verified for it.
    pub(super) fn of(
        cx: &'a Cx<Server, ()>,
        headers: &'a HeaderMap,
        user_id: OwnedUserId,
        by: SignedInBy,
    ) -> Self {
        let (client, request_id) = (cx.client, &*cx.request_id);
        Self { user_id, by, verified: None, client, headers, request_id }
    }
}

/// Signs a user in, and returns the cookie for the browser.
pub(super) async fn sign_in(app: &Server, arrival: NewSignIn<'_>) -> Result<HeaderValue, ApiError> {
    let NewSignIn { user_id, by, verified, client, headers, request_id } = arrival;
    let visitor = Visitor::of(&app.engine, &app.config.server, headers);
    let cookie = random_token();
    let now_ms = app.engine.clock().now_ms();
    let seconds = app.config.oauth.browser_seconds;
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let agent = agent.map(|agent| agent.chars().take(limits::AGENT_BYTES).collect());
    let proposal = SignIn {
        sign_in: BrowserSignIn {
            user_id,
            browser: TokenHash::of(&cookie),
            by,
            expires_ms: now_ms.saturating_add(seconds.saturating_mul(1000)),
            address: Some(client),
            agent,
        },
        verified,
        replaces: Some(visitor.hash),
        now_ms,
    };
    let origin = Origin { request: request_id.into(), ..Origin::default() };
    app.engine.propose(origin, proposal).await?.into_inner();
    self::cookie(&app.config.server, &cookie, Some(seconds))
}

/// A cookie that ends the sign-in.
pub(super) fn forgotten(server: &config::Server) -> Result<HeaderValue, ApiError> {
    cookie(server, "", Some(0))
}

fn is_secure(server: &config::Server) -> bool {
    issuer(server).starts_with("https:")
}

fn name(server: &config::Server) -> &'static str {
    // Browsers take one with this prefix from secure pages alone.
    if is_secure(server) { "__Secure-logcabin_browser" } else { "logcabin_browser" }
}

fn cookie(
    server: &config::Server,
    value: &str,
    seconds: Option<u64>,
) -> Result<HeaderValue, ApiError> {
    let (name, path) = (name(server), path(server));
    let age = seconds.map_or_else(String::new, |seconds| format!("; Max-Age={seconds}"));
    let secure = if is_secure(server) { "; Secure" } else { "" };
    HeaderValue::from_str(&format!(
        "{name}={value}; Path={path}{age}; HttpOnly; SameSite=Lax{secure}"
    ))
    .map_err(|error| ApiError::internal(error.to_string()))
}

/// Sends a browser in which a user has just signed in, with this cookie, where that leads.
pub(super) fn go_on(
    server: &config::Server,
    next: &ReturnPath,
    cookie: HeaderValue,
) -> Result<Reply, ApiError> {
    let location = next.location(server);
    let reply = if next.is("continue") {
        // A client that is trusted is next. Browsers hold a redirect to it against the policy of
        // the page whose form was sent, which cannot name it: a page of its own starts over.
        let body = html! { a.button href=(location) { "Continue" } };
        let at_once = HeaderValue::from_str(&format!("0; url={location}"));
        Page::new("You are signed in", body)
            .reply()
            .with_header(REFRESH, at_once.map_err(ApiError::internal)?)
    } else {
        see(&location)?
    };
    Ok(reply.with_header(header::SET_COOKIE, cookie))
}

/// Sends the browser to another page or site with a request of its own (RFC 9700, section 4.12).
pub(crate) fn see(location: &str) -> Result<Reply, ApiError> {
    let location =
        HeaderValue::from_str(location).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Reply::bytes("text/plain; charset=utf-8", "")
        .with_status(StatusCode::SEE_OTHER)
        .with_header(header::LOCATION, location)
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .with_header(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")))
}
