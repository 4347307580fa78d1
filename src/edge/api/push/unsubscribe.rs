//! Unsubscribing from mail about missed messages without a login, through a link in each mail.
//!
//! The link opens a page with a button, and only the button unsubscribes, so that a program that
//! scans mail does not. Mail programs post to the same address when their user asks them to (RFC
//! 8058); their body carries no further information.

use http::StatusCode;
use ruma::api::auth_scheme::NoAccessToken;

use crate::{
    base::limits,
    config::Config,
    decide::pusher::RemovePusher,
    edge::{
        api::{
            Server,
            browser::page::{Page, refusal, text},
        },
        http::{ApiError, Body, Cx, Reply, endpoint},
    },
    outside::pushers::unsubscription,
    record::pusher::PusherEnd,
};

const PATH: &str = "/_matrix/client/unstable/logcabin/unsubscribe";

endpoint! {
    /// The page of the link in a mail.
    pub(super) struct UnsubscribePage = GET "/_matrix/client/unstable/logcabin/unsubscribe";
    for NoAccessToken;
    refusal refusal;
    { token: Option<String> = parameter }
}

endpoint! {
    /// The page's form, or a mail program.
    pub(super) struct Unsubscribe = POST "/_matrix/client/unstable/logcabin/unsubscribe";
    for NoAccessToken;
    body Body::Short(limits::FORM_BYTES);
    refusal refusal;
    { token: Option<String> = parameter }
}

/// The address of the page, without the token.
pub(crate) fn url(config: &Config) -> String {
    let prefix = config.server.prefixes.first().map_or_else(String::new, ToString::to_string);
    format!("{}{}", config.public_url(), PATH.replacen("/_matrix", &prefix, 1))
}

/// The page of the link in a mail.
pub(super) async fn page(cx: Cx<Server, ()>, request: UnsubscribePage) -> Result<Reply, ApiError> {
    let found = request.token.as_ref().and_then(|token| {
        unsubscription(&cx.app.signing.lasting, &cx.app.engine.state(), token).zip(Some(token))
    });
    let Some((found, token)) = found else { return Ok(useless_link(&cx.app)) };
    let Some(ids) = found.ids else { return Ok(ended(&cx.app)) };
    let body = format!(
        "<p>The account <strong>{}</strong> on {} has mail sent to <strong>{}</strong> about messages \
         that it has not read.</p>\n\
         <form method=\"post\" action=\"{}?token={}\">\n\
         <button type=\"submit\" autofocus>Send no more of it</button>\n</form>\n\
         <p class=\"note\">It can be had again at any time, in the app's settings.</p>",
        text(found.user_id.as_str()),
        text(cx.app.config.server.name.as_str()),
        text(&ids.pushkey),
        text(cx.uri.path()),
        text(token),
    );
    Ok(Page::new("No more mail about messages?", body).reply())
}

/// Unsubscribes: for the page's button, or for a mail program.
pub(super) async fn submit(cx: Cx<Server, ()>, request: Unsubscribe) -> Result<Reply, ApiError> {
    let found = request
        .token
        .and_then(|token| unsubscription(&cx.app.signing.lasting, &cx.app.engine.state(), &token));
    let Some(found) = found else { return Ok(useless_link(&cx.app)) };
    if let Some(ids) = found.ids {
        let remove = RemovePusher { user_id: found.user_id, ids, because: PusherEnd::Asked };
        cx.propose(remove).await?.into_inner();
    }
    Ok(ended(&cx.app))
}

fn ended(app: &Server) -> Reply {
    let body = format!(
        "<p class=\"good\" role=\"status\">{} sends you no mail about messages.</p>\n\
         <p>You can close this page.</p>",
        text(app.config.server.name.as_str())
    );
    Page::new("No more mail about messages", body).reply()
}

fn useless_link(app: &Server) -> Reply {
    let body = format!(
        "<p role=\"alert\">This link is not whole, or not one of {}.</p>\n\
         <p>Mail about messages can also be ended in the settings of the app in which it was asked \
         for.</p>",
        text(app.config.server.name.as_str())
    );
    Page::new("This link cannot be used", body).status(StatusCode::BAD_REQUEST).reply()
}
