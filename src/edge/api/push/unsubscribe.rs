//! Unsubscribing from mail about missed messages without a login, through a link in each mail.
//!
//! The link opens a page with a button, and only the button unsubscribes, so that a program that
//! scans mail does not. Mail programs post to the same address when their user asks them to (RFC
//! 8058); their body carries no further information.

use http::StatusCode;
use maud::html;
use ruma::ServerName;

use crate::{
    api::{
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_config as config;
use logcabin_decide::pusher::RemovePusher;
use logcabin_outside::pushers::unsubscription;
use logcabin_record::pusher::PusherEnd;

const PATH: &str = "/_matrix/client/unstable/logcabin/unsubscribe";

endpoint! {
    /// The page of the link in a mail.
    pub(super) struct UnsubscribePage = GET "/_matrix/client/unstable/logcabin/unsubscribe";
    for AnyBrowser;
    { token: Option<String> = parameter }
}

endpoint! {
    /// The page's form, or a mail program.
    pub(super) struct Unsubscribe = POST "/_matrix/client/unstable/logcabin/unsubscribe";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { token: Option<String> = parameter }
}

/// The address of the page, without the token.
pub fn url(server: &config::Server) -> String {
    let prefix = server.prefixes.first().map_or_else(String::new, ToString::to_string);
    format!("{}{}", server.url(), PATH.replacen("/_matrix", &prefix, 1))
}

/// The page of the link in a mail.
pub(super) async fn page(cx: Cx<Server, ()>, request: UnsubscribePage) -> Result<Reply, ApiError> {
    let found = request.token.as_ref().and_then(|token| {
        unsubscription(&cx.app.signing.lasting, &cx.app.engine.state(), token).zip(Some(token))
    });
    let Some((found, token)) = found else { return Ok(useless_link(&cx.app.config.server.name)) };
    let Some(ids) = found.ids else { return Ok(ended(&cx.app.config.server.name)) };
    let server = &cx.app.config.server.name;
    let body = html! {
        p {
            "The account " strong { (found.user_id) } " on " (server) " has mail sent to "
            strong { (ids.pushkey) } " about messages that it has not read."
        }
        form method="post" action={ (cx.uri.path()) "?token=" (token) } {
            button type="submit" autofocus { "Unsubscribe" }
        }
        p.note { "It can be had again at any time, in the app's settings." }
    };
    Ok(Page::new("No more mail about messages?", body).reply())
}

/// Unsubscribes: for the page's button, or for a mail program.
pub(super) async fn submit(cx: Cx<Server, ()>, request: Unsubscribe) -> Result<Reply, ApiError> {
    let found = request
        .token
        .and_then(|token| unsubscription(&cx.app.signing.lasting, &cx.app.engine.state(), &token));
    let Some(found) = found else { return Ok(useless_link(&cx.app.config.server.name)) };
    if let Some(ids) = found.ids {
        let remove = RemovePusher { user_id: found.user_id, ids, because: PusherEnd::Asked };
        cx.propose(remove).await?.into_inner();
    }
    Ok(ended(&cx.app.config.server.name))
}

fn ended(own: &ServerName) -> Reply {
    let body = html! {
        p.good role="status" { (own) " sends you no mail about messages." }
        p { "You can close this page." }
    };
    Page::new("No more mail about messages", body).reply()
}

fn useless_link(own: &ServerName) -> Reply {
    let body = html! {
        p role="alert" { "This link is not whole, or not one of " (own) "." }
        p {
            "Mail about messages can also be ended in the settings of the app in which it was asked \
             for."
        }
    };
    Page::new("This link cannot be used", body).status(StatusCode::BAD_REQUEST).reply()
}
