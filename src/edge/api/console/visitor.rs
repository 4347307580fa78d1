//! Who is visiting the console.

use http::{
    HeaderMap, HeaderValue, Method,
    header::{HOST, ORIGIN},
};
use maud::Markup;

use super::frame;
use crate::{
    api::{
        addresses::CONSOLE_LOGIN,
        auth::{rights, session},
        browser::{
            cookies, is_from_elsewhere,
            page::{self, Page},
        },
        server::Server,
    },
    http::{
        Access, ApiError, Caller, CallerIdentity, Cx, ErrorRenderer, Gate, OpenTo, Reply, Session,
    },
};
use logcabin_config as config;
use logcabin_service::requester::Requester;

/// The cookie lasts for `limits::CONSOLE_SESSION`, as its session does.
pub(super) const COOKIE_NAME: &str = "logcabin_console";

/// The authentication scheme of pages: for administrators who are logged in in this browser. A
/// visitor without a session is sent to the login page; others are shown an error.
pub(super) struct ConsoleLogin;

/// The same for endpoints that are not pages, such as streams: callers without a session get an
/// error in JSON.
pub(super) struct ConsoleStream;

impl Gate for ConsoleLogin {
    type Caller = Visitor;
    const ACCESS: Access = Access::Login;
    const REFUSAL: Option<ErrorRenderer> = Some(page::refusal);

    fn caller(who: CallerIdentity) -> Option<Visitor> {
        who.visitor.map(|session| Visitor { session })
    }
}

impl Gate for ConsoleStream {
    type Caller = Visitor;
    const ACCESS: Access = Access::Login;

    fn caller(who: CallerIdentity) -> Option<Visitor> {
        who.visitor.map(|session| Visitor { session })
    }
}

/// An administrator who is logged in in this browser. Only the gates above create one.
#[derive(Clone)]
pub(super) struct Visitor {
    session: Session,
}

impl Caller for Visitor {
    /// `None`, so that requests for pages are rate-limited by address, whoever is logged in. The
    /// session is [`Visitor::browser_session`].
    fn session(&self) -> Option<&Session> {
        None
    }
}

/// The session of the administrator who is logged in in the browser that sent this; `None` if there
/// is no valid one.
///
/// # Errors
/// When the console is disabled, a page of another site sent the form, or the user is not an
/// administrator.
pub(in crate::api) async fn logged_in(
    app: &Server,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Option<Session>, ApiError> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        require_same_site(headers)?;
    }
    require_enabled(&app.config.console)?;
    let Some(token) = cookie(headers) else { return Ok(None) };
    let Ok(session) = session::of_token(app, token).await else { return Ok(None) };
    rights::admit(&app.engine, &session, OpenTo::ADMINISTRATORS)?;
    Ok(Some(session))
}

/// A page whose body takes long to compute: it waits its turn in the queue for long work.
pub(super) async fn show(
    cx: &Cx<Server, Visitor>,
    names: (&str, &str),
    body: impl FnOnce(&Server) -> Result<Markup, ApiError>,
) -> Result<Reply, ApiError> {
    let body = in_turn(cx, body).await?;
    Ok(cx.caller.page(&cx.app, names, body).reply())
}

/// The same, with what is shown in the place of its title before the body.
pub(super) async fn show_headed(
    cx: &Cx<Server, Visitor>,
    names: (&str, &str),
    parts: impl FnOnce(&Server) -> Result<(Markup, Markup), ApiError>,
) -> Result<Reply, ApiError> {
    let (heading, body) = in_turn(cx, parts).await?;
    Ok(cx.caller.page(&cx.app, names, body).headed(heading).reply())
}

/// Work for a page that waits its turn in the queue for long work.
pub(super) async fn in_turn<T>(
    cx: &Cx<Server, Visitor>,
    work: impl FnOnce(&Server) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let whose = Requester::User(cx.caller.session.user_id.clone());
    let done = cx.app.long_work.run(&whose, true, || work(&cx.app)).await;
    done.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))?
}

/// Refuses every request if the console is disabled.
pub(super) fn require_enabled(console: &config::Console) -> Result<(), ApiError> {
    if console.enabled { Ok(()) } else { Err(ApiError::no_such_endpoint()) }
}

/// A redirect to the login page.
pub(in crate::api) fn login_first() -> Reply {
    see_other(CONSOLE_LOGIN)
}

/// A redirect to another page.
pub(super) fn see_other(path: &'static str) -> Reply {
    Reply::see_other(HeaderValue::from_static(path))
}

/// The token in the console's cookie.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookies(headers, COOKIE_NAME).next()
}

/// Refuses a form that was sent by a page of another site.
pub(super) fn require_same_site(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // Browsers send `Sec-Fetch-Site`, `Origin` or both.
    let site = is_from_elsewhere(headers);
    let origin = text(ORIGIN);
    let is_other_origin = origin.is_some_and(|origin| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_none() || host != text(HOST)
    });
    // Behind a proxy, `Host` may differ from the origin: `Sec-Fetch-Site` then decides, if the
    // browser sent it.
    if site.unwrap_or(is_other_origin) {
        return Err(ApiError::forbidden("This form was sent by a page of another site."));
    }
    Ok(())
}

impl Visitor {
    pub(super) const fn browser_session(&self) -> &Session {
        &self.session
    }

    /// In whose name long work waits its turn.
    pub(super) fn requester(&self) -> Requester {
        Requester::User(self.session.user_id.clone())
    }

    /// A page of the console: the one of this name in the navigation, or one below it.
    pub(super) fn page(&self, app: &Server, names: (&str, &str), body: Markup) -> Page {
        frame::page(app, &self.session.user_id, names, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (http::HeaderName::from_static(name), HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn everything_but_logging_in_and_out_is_for_those_who_are_logged_in() {
        let prefixes = config::Server::default().prefixes;
        let served = crate::api::endpoints(&prefixes).list().into_iter();
        let console = served.filter(|one| one.path.starts_with("/_logcabin/console"));
        let (gated, open): (Vec<_>, Vec<_>) = console.partition(|one| one.access == Access::Login);
        assert!(gated.len() > 30, "{}", gated.len());
        let open: Vec<_> = open.iter().map(|one| format!("{} {}", one.method, one.path)).collect();
        let expected = [
            "GET /_logcabin/console/callback",
            "GET /_logcabin/console/login",
            "POST /_logcabin/console/login",
            "POST /_logcabin/console/logout",
            "GET /_logcabin/console/sign_in",
        ];
        assert_eq!(open, expected);
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        assert_eq!(cookie(&headers(&[("cookie", "a=b; logcabin_console=xyz; c=d")])), Some("xyz"));
        assert_eq!(cookie(&headers(&[("cookie", "not_logcabin_console=xyz")])), None);
        assert_eq!(cookie(&headers(&[])), None);
    }

    #[test]
    fn forms_of_other_sites_are_refused() {
        let host = ("host", "a.example:8008");
        for (others, is_allowed) in [
            (&[][..], true),
            (&[("origin", "http://a.example:8008")], true),
            (&[("origin", "http://b.example:8008")], false),
            (&[("origin", "null")], false),
            (&[("sec-fetch-site", "same-origin"), ("origin", "https://front.example")], true),
            (&[("sec-fetch-site", "same-site"), ("origin", "http://a.example:8008")], false),
            (&[("sec-fetch-site", "cross-site")], false),
        ] {
            let given = [&[host], others].concat();
            assert_eq!(require_same_site(&headers(&given)).is_ok(), is_allowed, "{others:?}");
        }
    }
}
