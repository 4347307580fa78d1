//! Logging in to the console on the server's own pages for signing in, by OpenID Connect.

use http::{HeaderMap, HeaderValue, header::SET_COOKIE};

use super::{login, visitor::require_enabled};
use crate::{
    api::{
        browser::page::AnyBrowser,
        oauth::{
            browser::see,
            console_client::{self, Attempt},
        },
        server::Server,
    },
    http::{ApiError, Cx, LoginRefusal, Reply, endpoint, refused_login},
};
use logcabin_base::limits;
use logcabin_config as config;
use logcabin_service::oauth::CONSOLE_CALLBACK;

endpoint! {
    /// The way to the pages for signing in.
    pub(super) struct BeginSignIn = GET "/_logcabin/console/sign_in";
    for AnyBrowser;
    {}
}

endpoint! {
    /// The way back from there.
    pub(super) struct SignInCallback = GET "/_logcabin/console/callback";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

pub(super) async fn set_out(cx: Cx<Server, ()>, _: BeginSignIn) -> Result<Reply, ApiError> {
    require_enabled(&cx.app.config.console)?;
    let attempt = Attempt::begin();
    let cookie = cookie(&cx.app.config.server, attempt.secret(), limits::CONSOLE_LOGIN.as_secs())?;
    Ok(see(&attempt.location(&cx.app)?)?.with_header(SET_COOKIE, cookie))
}

pub(super) async fn arrive(cx: Cx<Server, ()>, request: SignInCallback) -> Result<Reply, ApiError> {
    require_enabled(&cx.app.config.console)?;
    let forget = cookie(&cx.app.config.server, "", 0)?;
    let reply = match console_client::arrive(&cx, &request.headers).await {
        Ok(token) => {
            let seconds = limits::CONSOLE_SESSION.as_secs();
            let cookie = login::set_cookie(&cx.app.config.server, &token, seconds)?;
            see("/_logcabin/console")?.with_header(SET_COOKIE, cookie)
        }
        Err(error) if error.status().is_client_error() && error.retry_after().is_none() => {
            refused_login(cx.client, None, LoginRefusal::Oauth);
            login::form(&cx.app, "", Some(&error))
        }
        Err(error) => return Err(error),
    };
    Ok(reply.and_header(SET_COOKIE, forget))
}

/// The cookie of a login under way, which only the way back sees.
fn cookie(server: &config::Server, value: &str, seconds: u64) -> Result<HeaderValue, ApiError> {
    // The browser comes back from a page of the same site; but from where it came before that, it
    // may have been another.
    let limits = format!("Path={CONSOLE_CALLBACK}; SameSite=Lax");
    login::cookie(server, &format!("{}={value}", console_client::COOKIE_NAME), &limits, seconds)
}
