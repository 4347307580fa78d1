//! Logging in to the console, and out.

use std::collections::HashMap;

use http::{HeaderMap, HeaderValue, header::SET_COOKIE};
use maud::html;

use super::{
    parts::encoded,
    visitor::{
        COOKIE_NAME, cookie as given, login_first, require_enabled, require_same_site, see_other,
    },
};
use crate::{
    api::{
        addresses::{CONSOLE_LOGIN, CONSOLE_SIGN_IN},
        auth::{
            grants::grant_of,
            login::{self, LoginMethod},
            session,
        },
        browser::page::{AnyBrowser, Page},
        oauth::console_client,
        server::Server,
    },
    http::{ApiError, Body, Cx, LoginRefusal, Received, Reply, endpoint, refused_login},
};
use logcabin_base::limits;
use logcabin_config as config;
use logcabin_decide::{
    account::{DeviceSet, RemoveDevices},
    oauth::EndGrants,
};
use logcabin_record::command::GrantEnd;

endpoint! {
    /// The page with the form; with a link or a token, a button.
    pub(super) struct LoginPage = GET "/_logcabin/console/login";
    for AnyBrowser;
    { link: Option<String> = parameter, login_token: Option<String> = login_token }
}

endpoint! {
    /// The form.
    pub(super) struct LoginForm = POST "/_logcabin/console/login";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The button that ends the session.
    pub(super) struct LogOut = POST "/_logcabin/console/logout";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

trait LoginParts {
    /// From `loginToken` in the query, by which single sign-on returns.
    fn login_token(&mut self, name: &str) -> Result<Option<String>, ApiError>;
}

impl LoginParts for Received<'_> {
    fn login_token(&mut self, _: &str) -> Result<Option<String>, ApiError> {
        self.parameter("loginToken")
    }
}

pub(super) async fn page(cx: Cx<Server, ()>, request: LoginPage) -> Result<Reply, ApiError> {
    require_enabled(&cx.app.config.console)?;
    let (name, value) = match (request.link, request.login_token) {
        (Some(link), _) => ("link", link),
        (None, Some(token)) => ("token", token),
        (None, None) => return Ok(form(&cx.app, "", None)),
    };
    // Only the form uses the link up: programs that look at links do not send it.
    let by = if name == "link" {
        LoginMethod::Link(value.clone())
    } else {
        LoginMethod::Token(value.clone())
    };
    let Some(user_id) = login::who_may_enter(cx.app.engine.clock(), &cx.app.signing.signer, &by)
    else {
        let reason = if name == "link" { LoginRefusal::Link } else { LoginRefusal::Token };
        refused_login(cx.client, None, reason);
        let error = ApiError::forbidden("This link is not valid, or has expired.");
        return Ok(form(&cx.app, "", Some(&error)));
    };
    let body = html! {
        form method="post" action=(CONSOLE_LOGIN) {
            input type="hidden" name=(name) value=(value);
            button type="submit" { "Log in as " bdi { (user_id) } }
        }
        p.note { "If somebody sent you this link, close this page." }
    };
    Ok(Page::new(format!("Console of {}", cx.app.config.server.name), body).reply())
}

pub(super) fn form(app: &Server, user: &str, refused: Option<&ApiError>) -> Reply {
    let body = html! {
        @if let Some(error) = refused { p.bad role="alert" { (error.message()) } }
        @if console_client::is_possible(app) {
            a.button.second href={ (app.config.server.url()) (CONSOLE_SIGN_IN) } {
                "Log in with your account"
            }
        }
        @let own = format!("{}{CONSOLE_LOGIN}", app.config.server.url());
        @for provider in app.outside.providers.all() {
            a.button.second href={
                "/_matrix/client/v3/login/sso/redirect/" (encoded(provider.id()))
                    "?redirectUrl=" (encoded(&own))
            } { "Log in with " (provider.name()) }
        }
        form method="post" action=(CONSOLE_LOGIN) {
            label for="user" { "User name" }
            input type="text" id="user" name="user" value=(user) autocomplete="username"
                autocapitalize="none" spellcheck="false" required;
            label for="password" { "Password" }
            input type="password" id="password" name="password" autocomplete="current-password"
                required;
            button type="submit" { "Log in" }
        }
        p.note { "For the administrators of this server." }
    };
    let page = Page::new(format!("Console of {}", app.config.server.name), body);
    let page = refused.map(ApiError::status).into_iter().fold(page, Page::status);
    page.reply()
}

pub(super) async fn submit(cx: Cx<Server, ()>, request: LoginForm) -> Result<Reply, ApiError> {
    require_enabled(&cx.app.config.console)?;
    require_same_site(&request.headers)?;
    let fields: Vec<(String, String)> = serde_html_form::from_bytes(&cx.body)
        .map_err(|error| ApiError::bad_request("The form cannot be read.").with_cause(error))?;
    let mut fields: HashMap<String, String> = fields.into_iter().collect();
    let mut field = |name| fields.remove(name).unwrap_or_default();
    let (link, token) = (field("link"), field("token"));
    let (user, password) = (field("user").trim().to_owned(), field("password"));
    let by = match (link.is_empty(), token.is_empty()) {
        (false, _) => LoginMethod::Link(link),
        (true, false) => LoginMethod::Token(token),
        (true, true) => LoginMethod::Password { user: user.clone(), password },
    };
    let lifetime = limits::CONSOLE_SESSION;
    match login::administrator(&cx, by, "Logcabin console", lifetime).await {
        Ok(token) => {
            let seconds = lifetime.as_secs();
            Ok(see_other("/_logcabin/console")
                .with_header(SET_COOKIE, set_cookie(&cx.app.config.server, &token, seconds)?))
        }
        Err(error) if error.status().is_client_error() && error.retry_after().is_none() => {
            Ok(form(&cx.app, &user, Some(&error)))
        }
        Err(error) => Err(error),
    }
}

/// A cookie for the console alone, which neither scripts nor other sites can use.
pub(super) fn set_cookie(
    server: &config::Server,
    value: &str,
    seconds: u64,
) -> Result<HeaderValue, ApiError> {
    let limits = "Path=/_logcabin/console; SameSite=Strict";
    cookie(server, &format!("{COOKIE_NAME}={value}"), limits, seconds)
}

/// A cookie that scripts cannot use, with these limits.
pub(super) fn cookie(
    server: &config::Server,
    pair: &str,
    limits: &str,
    seconds: u64,
) -> Result<HeaderValue, ApiError> {
    let secure = if server.url().starts_with("https:") { "; Secure" } else { "" };
    let text = format!("{pair}; {limits}; HttpOnly; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).map_err(ApiError::internal)
}

pub(super) async fn leave(cx: Cx<Server, ()>, request: LogOut) -> Result<Reply, ApiError> {
    require_enabled(&cx.app.config.console)?;
    require_same_site(&request.headers)?;
    let forget = set_cookie(&cx.app.config.server, "", 0)?;
    if let Some(token) = given(&request.headers)
        && let Ok(session) = session::of_token(&cx.app, token).await
    {
        let user_id = session.user_id.clone();
        let which = DeviceSet::These(vec![session.device_id.clone()]);
        let grant = grant_of(&cx.app.engine, &session);
        let cx = cx.called_by(session);
        match grant {
            Some(grant) => {
                let (grants, because) = (vec![grant.grant_id], GrantEnd::Revoked);
                cx.propose(EndGrants { user_id, grants, because }).await?.into_inner();
            }
            None => cx.propose(RemoveDevices { user_id, which }).await?.into_inner(),
        }
    }
    Ok(login_first().with_header(SET_COOKIE, forget))
}
