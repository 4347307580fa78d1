//! The console: pages for the administrators of the server, off unless `console.enabled`.
//!
//! Whoever logs in gets a session like any other, whose token is in a cookie that scripts cannot
//! read and that other sites cannot have sent. The pages are complete without scripts; the one
//! script only refreshes what changes.

mod account;
mod activity;
mod acts;
mod bars;
mod disk;
mod federation;
mod lists;
mod log;
mod login;
mod now;
mod parts;
mod past;
mod plot;
mod relations;
mod timeline;
mod unread;
mod upkeep;
mod why;
mod work;

use http::{
    HeaderMap, HeaderValue,
    header::{HOST, ORIGIN},
};
use maud::{Markup, html};

use super::{
    addresses::CONSOLE_LOGIN,
    auth::{rights, session},
    browser::{cookies, is_from_elsewhere, page::Page},
    server::Server,
};
use crate::{
    edge::http::{ApiError, Class, Cx, OpenTo, Reply, Session, Table, limited},
    service::requester::Requester,
};

const SCRIPT: &str = include_str!("console.js");
const STYLE: &str = include_str!("console.css");

const COOKIE_NAME: &str = "logcabin_console";

/// The pages in the navigation: name, path, title.
const PAGES: [(&str, &str, &str); 18] = [
    ("now", "", "Now"),
    ("log", "/log", "Log"),
    ("timeline", "/timeline", "Time line"),
    ("past", "/past", "Time travel"),
    ("disk", "/disk", "Disk"),
    ("activity", "/activity", "Activity"),
    ("users", "/users", "Users"),
    ("rooms", "/rooms", "Rooms"),
    ("media", "/media", "Media"),
    ("reports", "/reports", "Reports"),
    ("tokens", "/tokens", "Tokens"),
    ("federation", "/federation", "Federation"),
    ("work", "/work", "Work"),
    ("erasures", "/erasures", "Erasures"),
    ("backups", "/backups", "Backups"),
    ("snapshots", "/snapshots", "Snapshots"),
    ("proofs", "/proofs", "Proofs"),
    ("cluster", "/cluster", "Cluster"),
];

/// The endpoints.
pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(login::page, limited(Class::Admin))
        .on(login::submit, limited(Class::Login))
        .on(login::leave, limited(Class::Admin))
        .on(account::set_out, limited(Class::Other))
        .on(account::arrive, limited(Class::Login))
        .on(now::page, limited(Class::Admin))
        .on(now::part, limited(Class::Admin))
        .on(log::page, limited(Class::Admin))
        .on(log::one, limited(Class::Admin))
        .on(log::live, limited(Class::Admin))
        .on(past::page, limited(Class::Admin))
        .on(why::page, limited(Class::Admin))
        .on(timeline::page, limited(Class::Admin))
        .on(relations::page, limited(Class::Admin))
        .on(disk::page, limited(Class::Admin))
        .on(activity::page, limited(Class::Admin))
        .on(work::page, limited(Class::Admin))
        .on(lists::users::list, limited(Class::Admin))
        .on(lists::users::one, limited(Class::Admin))
        .on(lists::rooms::list, limited(Class::Admin))
        .on(lists::rooms::one, limited(Class::Admin))
        .on(lists::media::list, limited(Class::Admin))
        .on(lists::reports::list, limited(Class::Admin))
        .on(lists::tokens::list, limited(Class::Admin))
        .on(unread::page, limited(Class::Admin))
        .on(upkeep::backups::list, limited(Class::Admin))
        .on(upkeep::snapshots::list, limited(Class::Admin))
        .on(upkeep::proofs::list, limited(Class::Admin))
        .on(upkeep::erasures::list, limited(Class::Admin))
        .on(upkeep::erasures::one, limited(Class::Admin))
        .on(upkeep::cluster::page, limited(Class::Admin))
        .on(federation::overview, limited(Class::Admin))
        .on(federation::one, limited(Class::Admin))
        .on(federation::refused, limited(Class::Admin))
        .on(federation::keys, limited(Class::Admin))
        .on(acts::form, limited(Class::Admin))
        .on(acts::submit, limited(Class::Admin))
}

/// Who has a page open.
struct Visitor {
    session: Session,
}

/// The visitor of a page; for those who are not logged in, the way to the page where they can.
async fn visitor(
    cx: &Cx<Server, ()>,
    headers: &HeaderMap,
) -> Result<Result<Visitor, Reply>, ApiError> {
    served(&cx.app)?;
    let Some(token) = cookie(headers) else { return Ok(Err(login_first())) };
    let Ok(session) = session::of_token(&cx.app, token).await else {
        return Ok(Err(login_first()));
    };
    rights::admit(&cx.app, &session, OpenTo::ADMINISTRATORS)?;
    Ok(Ok(Visitor { session }))
}

/// Refuses requests for a console that there is not.
fn served(app: &Server) -> Result<(), ApiError> {
    if app.config.console.enabled { Ok(()) } else { Err(ApiError::no_such_endpoint()) }
}

/// A page whose body is long work of the visitor's.
async fn show(
    cx: &Cx<Server, ()>,
    headers: &HeaderMap,
    (title, name): (&str, &str),
    body: impl FnOnce(&Server) -> Result<Markup, ApiError>,
) -> Result<Reply, ApiError> {
    let visitor = match visitor(cx, headers).await? {
        Ok(visitor) => visitor,
        Err(elsewhere) => return Ok(elsewhere),
    };
    let whose = Requester::User(visitor.session.user_id.clone());
    let body = cx.app.long_work.run(&whose, true, || body(&cx.app)).await;
    let body = body.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))??;
    Ok(visitor.page(title, name, body).reply())
}

fn login_first() -> Reply {
    see_other(CONSOLE_LOGIN)
}

fn see_other(path: &'static str) -> Reply {
    Reply::see_other(HeaderValue::from_static(path))
}

/// The token in the console's cookie.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookies(headers, COOKIE_NAME).next()
}

/// Refuses a form that a page of another site has sent.
fn of_this_site(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // Browsers say one of them, or both.
    let site = is_from_elsewhere(headers);
    let origin = text(ORIGIN);
    let is_other_origin = origin.is_some_and(|origin| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_none() || host != text(HOST)
    });
    // Behind a proxy, the host may be another: then the browser's word on the site counts.
    if site.unwrap_or(is_other_origin) {
        return Err(ApiError::forbidden("This form was sent by a page of another site."));
    }
    Ok(())
}

impl Visitor {
    /// A page of the console, the one of this name in the navigation.
    fn page(&self, title: &str, name: &str, body: Markup) -> Page {
        let current = |of: &str| (of == name).then_some("page");
        let header = html! {
            a.skip href="#main" { "Skip to the content" }
            header {
                strong { "Logcabin" }
                nav aria-label="Pages" {
                    @for (page, path, title) in PAGES {
                        a href={ "/_logcabin/console" (path) } aria-current=[current(page)] {
                            (title)
                        }
                    }
                }
                form method="post" action="/_logcabin/console/logout" {
                    span.who { bdi { (self.session.user_id) } }
                    button.second type="submit" { "Log out" }
                }
            }
        };
        Page::new(title, body).framed(STYLE, header).script(SCRIPT)
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
            assert_eq!(of_this_site(&headers(&given)).is_ok(), is_allowed, "{others:?}");
        }
    }
}
