//! Signing in to this server's pages, with a password or at a provider of single sign-on; and what
//! clients without OAuth 2.0 get of it, a login token (client-server API, "OAuth 2.0 aware
//! clients").

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use maud::html;
use ruma::{
    OwnedUserId,
    api::client::uiaa::{MatrixUserIdentifier, UserIdentifier},
    thirdparty::Medium,
};
use url::Url;

use super::{
    addresses::{ReturnPath, encoded, path},
    availability::must_be_offered,
    browser::{self, NewSignIn, Visitor, see},
    page_parts,
    parameters::Parameters,
    recover, sign_up,
};
use crate::{
    api::{
        auth::{
            claim::{Claim, verified},
            login::refused_at_last,
            sso::{self, SsoPurpose},
        },
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_config as config;
use logcabin_engine::Engine;
use logcabin_record::command::SignedInBy;

endpoint! {
    pub(super) struct SignInPage = GET "/_matrix/oauth2/sign_in";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// Its form.
    pub(super) struct SignInForm = POST "/_matrix/oauth2/sign_in";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The way to a provider of single sign-on.
    pub(super) struct BySso = GET "/_matrix/oauth2/sso";
    for AnyBrowser;
    {}
}

endpoint! {
    /// The way back to a client without OAuth 2.0.
    pub(super) struct Continue = GET "/_matrix/oauth2/continue";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The user wants to go there.
    pub(super) struct Confirm = POST "/_matrix/oauth2/continue";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

/// How recent a sign-in must be for the browser to go on to a trusted client by itself.
const JUST_NOW: Duration = Duration::from_secs(300);

/// What the form is about.
const ABOUT: &str = "sign_in";

pub(super) async fn page(cx: Cx<Server, ()>, request: SignInPage) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let next = ReturnPath::of(cx.query("next")?.as_deref());
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    let again = cx.query("again")?.is_some();
    if visitor.user().is_some() && !again {
        return see(&next.location(&app.config.server));
    }
    let hint = next.parameter("login_hint");
    let hint = hint.as_deref().map(|hint| hint.strip_prefix("mxid:").unwrap_or(hint));
    let signed_in = visitor.user().map(ToString::to_string);
    let user = hint.or(signed_in.as_deref()).unwrap_or_default();
    visitor
        .keep(&app.config.server, form(app, &visitor, &next, user, None, &request.headers).reply())
}

fn form(
    app: &Server,
    visitor: &Visitor,
    next: &ReturnPath,
    user: &str,
    wrong: Option<&str>,
    headers: &HeaderMap,
) -> Page {
    let config = &app.config;
    let providers = app.outside.providers.all();
    let by_password = config.login.password;
    let body = html! {
        (page_parts::purpose(&app.engine, &app.oauth.clients, next, headers))
        (page_parts::alert(wrong))
        @if by_password {
            form method="post" action={ (path(&config.server)) "/sign_in" } {
                (page_parts::proof(&app.signing.signer, visitor, ABOUT))
                input type="hidden" name="next" value=(next.as_str());
                label for="user" { "User name or e-mail address" }
                input type="text" id="user" name="user" value=(user) required maxlength="255"
                    autocomplete="username" autocapitalize="none" spellcheck="false"
                    autofocus[user.is_empty()] aria-describedby="wrong";
                label for="password" { "Password" }
                input type="password" id="password" name="password" required
                    autocomplete="current-password" autofocus[!user.is_empty()]
                    aria-describedby="wrong";
                button type="submit" { "Sign in" }
            }
        }
        (page_parts::ways(&app.config.server, &app.outside.providers, next, by_password))
        @if !by_password && providers.is_empty() {
            p { "Nobody can sign in to this server by its pages." }
        }
        @if recover::is_possible(app) {
            p { a href=(next.by(&config.server, "recover")) { "Forgot your password?" } }
        }
        @if sign_up::is_possible(app) {
            p {
                "No account on " (config.server.name) " yet? "
                a href=(next.by(&config.server, "sign_up")) { "Create one" }
            }
        }
    };
    Page::new(format!("Sign in to {}", config.server.name), body)
}

/// The account that a person means by what they typed.
fn claim(engine: &Engine, typed: &str) -> Claim {
    let is_email = !typed.starts_with('@') && typed.contains('@');
    let identifier = if is_email {
        UserIdentifier::third_party_id(Medium::Email, typed.to_owned())
    } else {
        UserIdentifier::Matrix(MatrixUserIdentifier::new(typed.to_owned()))
    };
    Claim::by_identifier(engine, &identifier)
}

pub(super) async fn submit(cx: Cx<Server, ()>, request: SignInForm) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let fields = Parameters::of_form(&cx.body)?;
    let next = ReturnPath::of(fields.get("next"));
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.check(&app.signing.signer, &request.headers, ABOUT, &fields)?;
    if !app.config.login.password {
        return Err(ApiError::forbidden("There is no login by password here."));
    }
    let user = fields.text("user").trim();
    let wrong = |error: ApiError| {
        let page = form(app, &visitor, &next, user, Some(error.message()), &request.headers);
        let status = match error.status() {
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
            other => other,
        };
        page.status(status).reply()
    };
    let password = fields.text("password").to_owned();
    let claim = claim(&app.engine, user);
    let verified = verified(&app.engine, &app.auth.passwords, cx.client, claim, password).await;
    let (user_id, set) = match verified {
        Ok(verified) => verified,
        Err(error) if error.status().is_client_error() => return Ok(wrong(error)),
        Err(error) => return Err(error),
    };
    app.auth.passwords.seen(&user_id, cx.client);
    let arrival = NewSignIn {
        verified: Some(set),
        ..NewSignIn::of(&cx, &request.headers, user_id.clone(), SignedInBy::Password)
    };
    match browser::sign_in(app, arrival).await {
        Ok(cookie) => browser::go_on(&app.config.server, &next, cookie),
        Err(error) if error.status().is_client_error() => {
            refused_at_last(cx.client, &user_id, &error, None);
            Ok(wrong(error))
        }
        Err(error) => Err(error),
    }
}

pub(super) async fn by_sso(cx: Cx<Server, ()>, _: BySso) -> Result<Reply, ApiError> {
    must_be_offered(&cx.app)?;
    let next = ReturnPath::of(cx.query("next")?.as_deref());
    let provider = cx.query("provider")?.unwrap_or_default();
    let provider = cx.app.outside.providers.get(&provider);
    let provider =
        provider.ok_or_else(|| ApiError::not_found("There is no such way to log in here."))?;
    sso::set_out(&cx.app, provider, SsoPurpose::Browser { next: next.as_str().to_owned() }).await
}

/// Signs in a user who comes back from a provider: the cookie for the browser, and where it goes
/// on.
pub(in crate::api) async fn arrived(
    cx: &Cx<Server, ()>,
    headers: &HeaderMap,
    user_id: OwnedUserId,
    by: SignedInBy,
    next: &str,
) -> Result<(HeaderValue, String), ApiError> {
    let arrival = NewSignIn::of(cx, headers, user_id, by);
    let cookie = browser::sign_in(&cx.app, arrival).await?;
    Ok((cookie, ReturnPath::of(Some(next)).location(&cx.app.config.server)))
}

/// Sends a browser that comes from a client without OAuth 2.0 to all ways to sign in, or to
/// register.
pub(in crate::api) fn choose_way(
    server: &config::Server,
    redirect_url: &Url,
    register: bool,
) -> Result<Reply, ApiError> {
    let next = format!("continue?redirectUrl={}", encoded(redirect_url.as_str()));
    see(&ReturnPath::of(Some(&next)).by(server, if register { "sign_up" } else { "sign_in" }))
}

/// What the form of the page about going on is about.
fn about(redirect_url: &Url) -> String {
    format!("continue to {redirect_url}")
}

pub(super) async fn go_on(cx: Cx<Server, ()>, request: Continue) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let redirect_url = sso::redirect_url(&app.config, cx.query("redirectUrl")?)?;
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    let Some(signed_in) = visitor.signed_in() else {
        return choose_way(&app.config.server, &redirect_url, false);
    };
    if sso::is_trusted(&app.config, &redirect_url)
        && signed_in.is_fresh(app.engine.clock(), JUST_NOW)
    {
        return see(sso::with_token(app, &signed_in.user_id, redirect_url)?.as_str());
    }
    let place = page_parts::place(redirect_url.as_str());
    let query = format!("continue?redirectUrl={}", encoded(redirect_url.as_str()));
    let body = html! {
        p {
            "You are about to give " strong { (place) } " access to your account "
            strong { (signed_in.user_id) } ". "
            a href={ (ReturnPath::of(Some(&query)).by(&app.config.server, "sign_in")) "&again=1" } {
                "Use another account"
            }
        }
        form method="post" action={ (path(&app.config.server)) "/" (query) } {
            (page_parts::proof(&app.signing.signer, &visitor, &about(&redirect_url)))
            button type="submit" { "Continue" }
        }
        p.note {
            "Continue only if that is where you wanted to log in. If you came here by a link that \
             somebody sent you, close this page."
        }
    };
    let page = Page::new(format!("Continue to {place}?"), body);
    visitor.keep(
        &app.config.server,
        page.leads_to(page_parts::leads_to(redirect_url.as_str())).reply(),
    )
}

pub(super) async fn confirm(cx: Cx<Server, ()>, request: Confirm) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let redirect_url = sso::redirect_url(&app.config, cx.query("redirectUrl")?)?;
    let fields = Parameters::of_form(&cx.body)?;
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.check(&app.signing.signer, &request.headers, &about(&redirect_url), &fields)?;
    let signed_in = visitor.must_be_signed_in()?;
    see(sso::with_token(app, &signed_in.user_id, redirect_url)?.as_str())
}
