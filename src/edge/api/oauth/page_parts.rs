//! What pages have in common: the client, what it asks for, and the fields that protect a form.

use http::{HeaderMap, header::ACCEPT_LANGUAGE};
use maud::{Markup, html};
use ruma::UserId;
use url::Url;

use super::{
    addresses::{ReturnPath, encoded},
    browser::{FIELD, Visitor},
};
use crate::api::browser::page::Page;
use logcabin_base::signed::Signer;
use logcabin_config as config;
use logcabin_engine::Engine;
use logcabin_outside::oidc::Providers;
use logcabin_record::scope::Scope;
use logcabin_service::oauth::{Client, Clients};

/// The browser's languages, in its order.
pub(super) fn languages(headers: &HeaderMap) -> Vec<&str> {
    let header = headers.get(ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let tags = header.unwrap_or_default().split(',').map(|tag| tag.split(';').next());
    tags.flatten().map(str::trim).filter(|tag| !tag.is_empty()).take(20).collect()
}

/// The hidden field of a form about this.
pub(super) fn proof(signer: &Signer, visitor: &Visitor, about: &str) -> Markup {
    html! { input type="hidden" name=(FIELD) value=(visitor.proof(signer, about)); }
}

/// The last error, if any: fields refer to it as their description.
pub(super) fn alert(wrong: Option<&str>) -> Markup {
    html! {
        @if let Some(wrong) = wrong { p.bad id="wrong" role="alert" { (wrong) } }
    }
}

/// The fields for a new password, which is asked for twice.
pub(super) fn new_password(policy: &config::Passwords, label: &str) -> Markup {
    html! {
        label for="password" { (label) }
        input type="password" id="password" name="password" required
            minlength=(policy.min_length) autocomplete="new-password"
            aria-describedby="wrong";
        label for="repeated" { "The same password again" }
        input type="password" id="repeated" name="repeated" required
            autocomplete="new-password" aria-describedby="wrong";
    }
}

/// The providers of single sign-on.
pub(super) fn ways(
    server: &config::Server,
    providers: &Providers,
    next: &ReturnPath,
    second: bool,
) -> Markup {
    html! {
        @for provider in providers.all() {
            a.button.second[second]
                href={ (next.by(server, "sso")) "&provider=" (encoded(provider.id())) } {
                "Continue with " (provider.name())
            }
        }
    }
}

/// What the user signs in for.
pub(super) fn purpose(
    engine: &Engine,
    clients: &Clients,
    next: &ReturnPath,
    headers: &HeaderMap,
) -> Markup {
    let client = next.parameter("client_id").filter(|_| next.is("authorize"));
    let client = client.and_then(|id| clients.get(engine, &id));
    let redirect_url = next.parameter("redirectUrl").filter(|_| next.is("continue"));
    let languages = languages(headers);
    html! {
        @if let Some(client) = client {
            p { "To continue to " strong { bdi { (name(&client, &languages)) } } "." }
        } @else if let Some(url) = redirect_url {
            p { "To continue to " strong { (place(&url)) } "." }
        } @else if next.is("link") {
            p { "To sign in another device." }
        }
    }
}

/// The name of a client; its host, if it has none.
pub(super) fn name<'a>(client: &'a Client, languages: &[&str]) -> &'a str {
    let named = client.metadata.in_language("client_name", languages);
    named.unwrap_or_else(|| client.metadata.host())
}

/// A client, with its logo and its page. Everything but the host was chosen by whoever registered
/// it.
pub(super) fn client(client: &Client, languages: &[&str]) -> Markup {
    let metadata = &client.metadata;
    html! {
        div.client {
            @if let Some(logo) = metadata.in_language("logo_uri", languages) {
                img src=(logo) alt="" width="48" height="48" referrerpolicy="no-referrer";
            }
            div {
                strong { bdi { (name(client, languages)) } }
                br;
                a href=(metadata.client_uri) target="_blank" rel="noopener noreferrer nofollow" {
                    (metadata.host())
                }
            }
        }
    }
}

/// The client's policy and terms, if it has any.
pub(super) fn documents(client: &Client, languages: &[&str]) -> Markup {
    let of = |name: &str| client.metadata.in_language(name, languages);
    let links = [("Privacy policy", of("policy_uri")), ("Terms of service", of("tos_uri"))];
    html! {
        @if links.iter().any(|(_, uri)| uri.is_some()) {
            p.note {
                "Of " bdi { (name(client, languages)) } ": "
                @for (text, uri) in links.iter().filter_map(|(text, uri)| Some((text, (*uri)?))) {
                    a href=(uri) target="_blank" rel="noopener noreferrer nofollow" { (text) } " "
                }
            }
        }
    }
}

/// A page that may show the logo of a client.
pub(super) fn with_logo(page: Page, client: &Client, languages: &[&str]) -> Page {
    let logo = client.metadata.in_language("logo_uri", languages);
    let origin =
        logo.and_then(|logo| Some(logo.parse::<Url>().ok()?.origin().ascii_serialization()));
    match origin {
        Some(origin) => page.pictures(origin),
        None => page,
    }
}

/// What a scope allows, for the user who is asked.
pub(super) fn scope(engine: &Engine, scope: &Scope, user_id: &UserId) -> Markup {
    let account = engine.state().accounts.get(user_id);
    let replaced = scope.device.as_ref().and_then(|device_id| {
        let account = account.as_ref()?.read();
        Some(account.device(device_id)?.display_name.clone().unwrap_or_default())
    });
    html! {
        ul.scope {
            @if scope.api {
                li {
                    "Use your account: read and send messages, change rooms and your profile, and \
                     everything else that an app can do"
                }
            }
            @if let Some(device_id) = &scope.device {
                li {
                    "Be a device of yours, " code { (device_id) }
                    @if let Some(name) = &replaced {
                        strong.bad {
                            ". It takes the place of a device that you have, "
                            bdi { (name) } ", which will be signed out"
                        }
                    }
                }
            }
            @if scope.admin {
                li { strong.bad { "Administer this server: every account, room and file" } }
            }
            @if scope.changes && !scope.admin {
                li {
                    strong.bad { "Follow everything that happens on this server: every record of \
                                  its log, messages included" }
                }
            }
            @if scope.openid { li { "Know who you are: " (user_id) } }
            @if scope.profile { li { "Know your display name" } }
            @if scope.email { li { "Know your e-mail address" } }
        }
    }
}

/// Where a browser goes, for people: a host, or the app that its own scheme leads to.
pub(super) fn place(uri: &str) -> String {
    match uri.parse::<Url>() {
        Ok(url) if matches!(url.scheme(), "http" | "https") => {
            let host = url.host_str().unwrap_or_default();
            if matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
                return "an app on this device".to_owned();
            }
            url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
        }
        Ok(url) => format!("the app for {}: addresses", url.scheme()),
        Err(_) => "an unknown place".to_owned(),
    }
}

/// What a form that ends there must be allowed to lead to: browsers check redirects after a form.
pub(super) fn leads_to(uri: &str) -> String {
    // The client may send the browser on to another of its hosts. And a policy has no way to name
    // an IPv6 address.
    let scheme = uri.split(':').next().unwrap_or_default();
    format!("{scheme}:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_by_who_controls_them() {
        for (uri, named) in [
            ("https://app.example.org/callback?x", "app.example.org"),
            ("https://app.example.org:8443/", "app.example.org:8443"),
            ("http://[::1]:5000/", "an app on this device"),
            ("org.example.app:/callback", "the app for org.example.app: addresses"),
        ] {
            assert_eq!(place(uri), named);
        }
        assert_eq!(leads_to("org.example.app:/callback"), "org.example.app:");
        assert_eq!(leads_to("https://x.example/"), "https:");
    }

    #[test]
    fn languages_are_those_of_the_browser_in_its_order() {
        let mut headers = HeaderMap::new();
        assert!(languages(&headers).is_empty());
        headers.insert(ACCEPT_LANGUAGE, "de-CH, de;q=0.9,,en;q=0.8".parse().unwrap());
        assert_eq!(languages(&headers), ["de-CH", "de", "en"]);
    }
}
