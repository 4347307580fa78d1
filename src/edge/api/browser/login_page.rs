//! A page for logging in with any browser, for clients that support no other way (client-server
//! API, "Login fallback").

use maud::html;

use super::page::{AnyBrowser, Page};
use crate::{
    api::{
        addresses::{client_api, prefix},
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::text::encoded;
use logcabin_config as config;

endpoint! {
    /// Its path, with and without a trailing slash.
    pub(super) struct LoginPage = GET "/_matrix/static/client/login";
    for AnyBrowser;
    {}
}

const SCRIPT: &str = include_str!("login_page.js");

pub(super) async fn page(cx: Cx<Server, ()>, _: LoginPage) -> Result<Reply, ApiError> {
    let config = &cx.app.config;
    let providers = cx.app.outside.providers.all();
    let here = address(&config.server, cx.uri.query());
    let here = encoded(&here);
    let api = client_api(&config.server);
    let body = html! {
        p id="message" role="status" aria-live="polite" {}
        div id="ways" {
            @if config.login.password {
                form id="password-form" method="post" {
                    label for="user" { "User name" }
                    input type="text" id="user" name="user" autocomplete="username"
                        autocapitalize="none" spellcheck="false" required;
                    label for="password" { "Password" }
                    input type="password" id="password" name="password"
                        autocomplete="current-password" required;
                    button type="submit" { "Log in" }
                }
            }
            @for provider in providers {
                a.button.second[config.login.password]
                    href={ (api) "/login/sso/redirect/" (provider.id()) "?redirectUrl=" (here) } {
                    "Continue with " (provider.name())
                }
            }
            @if !config.login.password && providers.is_empty() {
                p { "This server offers no login by a page." }
            }
        }
        noscript { p.bad { "This page needs JavaScript." } }
    };
    let title = format!("Log in to {}", config.server.name);
    Ok(Page::new(title, body).script(SCRIPT).reply())
}

/// The page's address, with its query but without login tokens.
fn address(server: &config::Server, query: Option<&str>) -> String {
    let pairs = query.unwrap_or_default().split('&');
    let kept: Vec<_> =
        pairs.filter(|pair| !pair.is_empty() && !pair.starts_with("loginToken=")).collect();
    let address = format!("{}{}/static/client/login/", server.url(), prefix(server));
    if kept.is_empty() { address } else { format!("{address}?{}", kept.join("&")) }
}
