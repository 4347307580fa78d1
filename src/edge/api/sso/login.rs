//! Single sign-on (client-server API, "Client login via SSO"): a browser goes from the client to a
//! provider, back here, and on to the client with a login token. [`auth::sso`] has what it carries
//! meanwhile.
//!
//! [`auth::sso`]: crate::api::auth::sso

use http::{HeaderMap, StatusCode, header::SET_COOKIE};
use maud::{Markup, html};
use ruma::{
    OwnedUserId, UserId,
    api::{
        auth_scheme::{AccessToken, NoAccessToken},
        client::uiaa::{AuthData, AuthType},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use crate::{
    api::{
        addresses::{client_api, is_offered},
        answer::json,
        auth::{
            claim::{Claim, named_user, verified},
            registration::newcomers_id,
            sso::{
                AWAY_MS, SsoAttempt, SsoPurpose, TRIP, cookie, cookie_name, hash, is_trusted,
                of_provider, place, redirect_url, secrets, see, set_out, signed, with_token,
            },
            uiaa::{self, confirm_identity, providers_of},
            validation::check_allowed,
        },
        browser::{
            cookies,
            page::{AnyBrowser, Page, literal},
        },
        oauth,
        screening::admit_by_sso,
        server::Server,
    },
    http::{ApiError, Cx, ErrorCode, Json, LoginRefusal, Reply, endpoint, refused_login},
};
use logcabin_base::clock::random_token;
use logcabin_config::HookPoint;
use logcabin_decide::{
    account::{MetRequirements, Register, Wait},
    sso::{LinkSso, RegisterLinked, VerifiedAddress},
};
use logcabin_engine::Durable;
use logcabin_outside::oidc::{Person, Provider};
use logcabin_record::{address as threepid, command::SignedInBy};
use logcabin_service::uiaa::{Denied, Proof};

endpoint! {
    /// The paths to which clients send browsers, with and without the provider's id.
    pub(super) struct Redirect = GET
        "/_matrix/client/r0/login/sso/redirect"
        "/_matrix/client/v3/login/sso/redirect"
        "/_matrix/client/unstable/org.matrix.msc2858/login/sso/redirect/{idp_id}"
        "/_matrix/client/v3/login/sso/redirect/{idp_id}";
    for AnyBrowser;
    { idp_id: Option<String> = path_if_any }
}

endpoint! {
    /// The path to which providers send browsers back.
    pub(super) struct Callback = GET "/_matrix/client/v3/login/sso/callback";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The path of the page on which a newcomer chooses an account.
    pub(super) struct ChooseAccount = POST "/_matrix/client/v3/login/sso/account";
    for NoAccessToken;
    { headers: HeaderMap = headers, body: AccountChoice = json }
}

endpoint! {
    /// The paths of the page of the stage `m.login.sso` of user-interactive authentication.
    pub(super) struct StagePage = GET
        "/_matrix/client/r0/auth/m.login.sso/fallback/web"
        "/_matrix/client/v3/auth/m.login.sso/fallback/web";
    for AnyBrowser;
    {}
}

endpoint! {
    /// The path by which a user who is logged in links the account with a provider.
    pub(super) struct Link = POST "/_matrix/client/unstable/org.logcabin/sso/link/{idp_id}";
    for AccessToken;
    { idp_id: String = path, body: LinkBody = json }
}

const ERRAND: &str = "sso errand";
const PENDING: &str = "sso account";
const SCRIPT: &str = include_str!("sso.js");

const NOT_COMPLETE: &str = "The address is not complete.";

/// An identified person without an account.
#[derive(Serialize, Deserialize)]
struct Pending {
    provider: String,
    subject: String,
    display_name: Option<String>,
    email: Option<String>,
    errand: SsoPurpose,
}

pub(super) async fn redirect(cx: Cx<Server, ()>, request: Redirect) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    let errand = match cx.query("errand")? {
        Some(signed) => {
            let errand = app.signing.signer.open(ERRAND, &signed, app.engine.clock().now_ms());
            let errand = errand.map(|(errand, _)| errand);
            errand.ok_or_else(|| ApiError::forbidden("This address is no longer valid."))?
        }
        None => {
            let redirect_url = redirect_url(&app.config, cx.query("redirectUrl")?)?;
            if request.idp_id.is_none() && is_offered(&app.config.oauth, &app.config.server) {
                // All ways to sign in, and to register, are on one page.
                let register = cx.query("action")?.as_deref() == Some("register");
                return oauth::choose_way(&app.config.server, &redirect_url, register);
            }
            SsoPurpose::Login { redirect_url }
        }
    };
    let provider = match (request.idp_id, app.outside.providers.all()) {
        (Some(id), _) => app.outside.providers.get(&id),
        (None, [only]) => Some(only),
        (None, []) => None,
        (None, _) => return Ok(choose_provider(app, cx.uri.query().unwrap_or_default())),
    };
    let provider =
        provider.ok_or_else(|| ApiError::not_found("There is no such way to log in here."))?;
    set_out(app, provider, errand).await
}

pub(super) async fn come_back(cx: Cx<Server, ()>, request: Callback) -> Result<Reply, ApiError> {
    let state = cx.query("state")?.ok_or_else(|| ApiError::bad_request(NOT_COMPLETE))?;
    // The login ends here, whatever its result.
    let forget = cookie(&cx.app.config.server, &state, "", 0)?;
    match arrive(&cx, &request.headers, &state).await {
        // It may have the cookie of a browser that is signed in now.
        Ok(reply) => Ok(reply.and_header(SET_COOKIE, forget)),
        Err(error) => {
            if error.status().is_client_error() && error.retry_after().is_none() {
                refused_login(cx.client, None, LoginRefusal::Sso);
            }
            Err(error.with_header(SET_COOKIE, forget))
        }
    }
}

async fn arrive(cx: &Cx<Server, ()>, headers: &HeaderMap, state: &str) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    let now_ms = app.engine.clock().now_ms();
    let trip = cookies(headers, &cookie_name(state))
        .find_map(|cookie| app.signing.signer.open::<SsoAttempt>(TRIP, cookie, now_ms))
        .map(|(trip, _)| trip)
        .filter(|trip| trip.state == state)
        .ok_or_else(|| {
            let why = "This browser has not started a login, or the login took too long.";
            ApiError::bad_request(why)
        })?;
    let provider = app.outside.providers.get(&trip.provider);
    let provider = provider
        .ok_or_else(|| ApiError::not_found("There is no such way to log in here any more."))?;
    let code = match (cx.query("error")?, cx.query("code")?) {
        (None, Some(code)) => code,
        (Some(error), _) => {
            let said = cx.query("error_description")?.unwrap_or(error);
            return Err(ApiError::forbidden(format!("{} says: {said}", provider.name())));
        }
        (None, None) => return Err(ApiError::bad_request(NOT_COMPLETE)),
    };
    let (nonce, verifier) = secrets(&app.signing.signer, state);
    let person = provider.finish(code, nonce, verifier).await;
    let person = person.map_err(|error| of_provider(provider, &error))?;
    let known = app.engine.state().accounts.linked(provider.id(), &person.subject);
    match trip.errand {
        errand @ (SsoPurpose::Login { .. } | SsoPurpose::Browser { .. }) => match known {
            Some(user_id) => {
                admit_by_sso(app, cx.client, HookPoint::Login, &user_id, provider.id()).await?;
                arrived(cx, headers, provider.id(), user_id, errand).await
            }
            None => newcomer(cx, headers, provider, person, errand).await,
        },
        SsoPurpose::Link { user_id } => match known {
            Some(known) if known == user_id => Ok(linked(provider, &user_id)),
            Some(_) => Err(ApiError::forbidden("This already belongs to another user.")
                .with_status(StatusCode::CONFLICT)),
            None => offer_link(app, provider, person, user_id),
        },
        SsoPurpose::Confirm { session, browser } => {
            if !cookies(headers, &cookie_name(&browser)).any(|mark| hash(mark) == browser) {
                let why = "This browser was not asked to confirm anything.";
                return Err(ApiError::forbidden(why));
            }
            confirm(app, &session, known).await
        }
    }
}

/// A user came back, who wanted to log in.
async fn arrived(
    cx: &Cx<Server, ()>,
    headers: &HeaderMap,
    provider: &str,
    user_id: OwnedUserId,
    errand: SsoPurpose,
) -> Result<Reply, ApiError> {
    match errand {
        SsoPurpose::Login { redirect_url } => go_on(&cx.app, &user_id, redirect_url),
        SsoPurpose::Browser { next } => {
            let by = SignedInBy::Sso(provider.to_owned());
            let (cookie, location) = oauth::arrived(cx, headers, user_id, by, &next).await?;
            Ok(oauth::browser::see(&location)?.with_header(SET_COOKIE, cookie))
        }
        SsoPurpose::Link { .. } | SsoPurpose::Confirm { .. } => {
            Err(ApiError::forbidden("This is not a login."))
        }
    }
}

/// A first login: finds or creates an account, or asks for a name.
async fn newcomer(
    cx: &Cx<Server, ()>,
    headers: &HeaderMap,
    provider: &Provider,
    person: Person,
    errand: SsoPurpose,
) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    let wanted = person.localpart.as_deref();
    if provider.allows_existing_users()
        && let Some(user_id) = wanted.and_then(|name| named_user(&app.engine, name))
        && app.engine.state().accounts.contains(&user_id)
    {
        admit_by_sso(app, cx.client, HookPoint::Login, &user_id, provider.id()).await?;
        let user_id = link_to(cx, provider.id(), &person.subject, user_id).await?;
        return arrived(cx, headers, provider.id(), user_id, errand).await;
    }
    if provider.allows_registration()
        && let Some(Ok(user_id)) = wanted.map(|name| newcomers_id(app, name))
    {
        match register(cx, provider.id(), person.clone(), user_id).await {
            Ok(user_id) => return arrived(cx, headers, provider.id(), user_id, errand).await,
            // A concurrent registration has taken the name.
            Err(error) if matches!(error.code(), ErrorCode::UserInUse) => {}
            Err(error) => return Err(error),
        }
    }
    // Another login of the same person may have taken the name meanwhile.
    match app.engine.state().accounts.linked(provider.id(), &person.subject) {
        Some(user_id) => arrived(cx, headers, provider.id(), user_id, errand).await,
        None => choose_name(app, provider, person, errand),
    }
}

async fn register(
    cx: &Cx<Server, ()>,
    provider: &str,
    person: Person,
    user_id: OwnedUserId,
) -> Result<OwnedUserId, ApiError> {
    admit_by_sso(&cx.app, cx.client, HookPoint::Registration, &user_id, provider).await?;
    let Person { subject, display_name, email, .. } = person;
    // An invalid address does not prevent an account.
    let email = email.and_then(|email| threepid::email(&email).ok());
    let now_ms = cx.app.engine.clock().now_ms();
    let address = email
        .filter(|email| check_allowed(&cx.app.config.threepids, email).is_ok())
        .map(|threepid| VerifiedAddress { threepid, now_ms });
    let display_name = display_name.unwrap_or_else(|| user_id.localpart().to_owned());
    let wait = Wait { answer: None, address: Some(cx.client) };
    let wait = cx.app.approves().then_some(wait);
    let met = MetRequirements { wait, now_ms, ..MetRequirements::default() };
    let register = Register { display_name: Some(display_name), met, ..Register::user(user_id) };
    let proposal = RegisterLinked { register, provider: provider.to_owned(), subject, address };
    cx.propose(proposal).await.map(Durable::into_inner)
}

async fn link_to(
    cx: &Cx<Server, ()>,
    provider: &str,
    subject: &str,
    user_id: OwnedUserId,
) -> Result<OwnedUserId, ApiError> {
    let (provider, subject) = (provider.to_owned(), subject.to_owned());
    cx.propose(LinkSso { user_id, provider, subject }).await.map(Durable::into_inner)
}

/// The request of the page on which an account is chosen.
#[derive(Deserialize)]
struct AccountChoice {
    pending: String,
    /// The name of a new account,
    username: Option<String>,
    /// or that of an existing one,
    user: Option<String>,
    password: Option<String>,
}

pub(super) async fn choose_account(
    cx: Cx<Server, ()>,
    ChooseAccount { headers, body: choice }: ChooseAccount,
) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    let now_ms = app.engine.clock().now_ms();
    let pending = app.signing.signer.open::<Pending>(PENDING, &choice.pending, now_ms);
    let (Pending { provider, subject, display_name, email, errand }, _) =
        pending.ok_or_else(|| ApiError::forbidden("This took too long: log in again."))?;
    let of = app.outside.providers.get(&provider);
    let of = of.ok_or_else(|| ApiError::forbidden("There is no such way to log in any more."))?;
    match errand {
        SsoPurpose::Link { user_id } => {
            let linked = link_to(&cx, &provider, &subject, user_id.clone()).await?;
            if linked != user_id {
                return Err(ApiError::forbidden("This already belongs to another user."));
            }
            let done = format!("You can log in as {user_id} with {} from now on.", of.name());
            return Ok(Reply::json(json!({ "done": done }).to_string()));
        }
        SsoPurpose::Confirm { .. } => {
            return Err(ApiError::forbidden("There is nothing to choose."));
        }
        SsoPurpose::Login { .. } | SsoPurpose::Browser { .. } => {}
    }
    let user_id = match (choice.username, choice.user, choice.password) {
        (Some(name), ..) if of.allows_registration() => {
            let user_id = newcomers_id(app, &name)?;
            let person = Person { subject, localpart: None, display_name, email };
            register(&cx, &provider, person, user_id).await?
        }
        (None, Some(user), Some(password)) if app.config.login.password => {
            let claim = Claim::by_name(&app.engine, &user);
            let (user_id, _) =
                verified(&app.engine, &app.auth.passwords, cx.client, claim, password).await?;
            admit_by_sso(app, cx.client, HookPoint::Login, &user_id, &provider).await?;
            link_to(&cx, &provider, &subject, user_id).await?
        }
        _ => return Err(ApiError::forbidden("This is not a choice here.")),
    };
    match errand {
        SsoPurpose::Browser { next } => {
            let by = SignedInBy::Sso(provider);
            let (cookie, location) = oauth::arrived(&cx, &headers, user_id, by, &next).await?;
            let reply = Reply::json(json!({ "location": location }).to_string());
            Ok(reply.with_header(SET_COOKIE, cookie))
        }
        SsoPurpose::Login { redirect_url } => {
            // The page has shown where this leads.
            let location = with_token(app, &user_id, redirect_url)?;
            Ok(Reply::json(json!({ "location": location }).to_string()))
        }
        SsoPurpose::Link { .. } | SsoPurpose::Confirm { .. } => {
            Err(ApiError::forbidden("There is nothing to choose."))
        }
    }
}

/// The body of a request to link an account.
#[derive(Deserialize)]
pub(super) struct LinkBody {
    auth: Option<AuthData>,
}

pub(super) async fn link(cx: Cx<Server>, request: Link) -> Result<Json, ApiError> {
    let app = &*cx.app;
    let provider = app.outside.providers.get(&request.idp_id);
    let provider = provider.ok_or_else(|| ApiError::not_found("There is no such provider."))?;
    let purpose = format!("sso_link/{}", provider.id());
    confirm_identity(app, &cx.caller, cx.client, &purpose, &cx.body, request.body.auth.as_ref())
        .await?;
    let errand = SsoPurpose::Link { user_id: cx.caller.user_id.clone() };
    let errand = signed(app.engine.clock(), &app.signing.signer, ERRAND, &errand)?;
    let url = format!(
        "{}/login/sso/redirect/{}?errand={errand}",
        client_api(&app.config.server),
        provider.id()
    );
    json(&json!({ "url": url, "expires_in_ms": AWAY_MS }))
}

/// The page of the stage `m.login.sso` (client-server API, "Fallback"), which leads to the
/// providers that know the session's user.
pub(super) async fn fallback(cx: Cx<Server, ()>, _: StagePage) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    let now_ms = app.engine.clock().now_ms();
    let session = cx.query("session")?.unwrap_or_default();
    let open = app.auth.uiaa.open(&session, now_ms);
    let Some(user_id) = open.and_then(|open| open.facts().user_id.clone()) else {
        return Err(ApiError::not_found("The time to confirm this is over."));
    };
    // Anyone who has the session could fetch this page themselves, and send the user straight to a
    // provider that asks nothing. So the way back is open only to the browser that was shown this
    // page.
    let mark = random_token();
    let browser = hash(&mark);
    let cookie = cookie(&app.config.server, &browser, &mark, AWAY_MS / 1000)?;
    let errand = SsoPurpose::Confirm { session, browser };
    let errand = signed(app.engine.clock(), &app.signing.signer, ERRAND, &errand)?;
    let providers = providers_of(&app.engine, &app.outside.providers, &user_id);
    let body = html! {
        p { (app.config.server.name) " asks that you confirm who you are." }
        p.note {
            "If you have not just changed something in your account, close this page: somebody else \
             may be trying to."
        }
        (buttons(app, providers, &format!("errand={errand}")))
    };
    Ok(Page::new("Confirm that it is you", body).reply().with_header(SET_COOKIE, cookie))
}

/// Completes the stage, if the person who came back is the session's user.
async fn confirm(
    app: &Server,
    session: &str,
    known: Option<OwnedUserId>,
) -> Result<Reply, ApiError> {
    let now_ms = app.engine.clock().now_ms();
    let open = app.auth.uiaa.open(session, now_ms);
    let asked = open.and_then(|open| open.facts().user_id.clone());
    let check = async {
        match known {
            Some(known) if asked.as_ref() == Some(&known) => Ok(Proof::User(known)),
            _ => Err(uiaa::Failure::Retry(Denied::OtherUser)),
        }
    };
    match app.auth.uiaa.complete(session, &AuthType::Sso, now_ms, check).await {
        Ok(()) => Ok(uiaa::done().reply()),
        Err(uiaa::Failure::Final(error)) => Err(error),
        Err(uiaa::Failure::Retry(why)) => Err(ApiError::forbidden(why.to_string())),
    }
}

/// Returns to the client with a login token; with a page that shows the destination, unless it is
/// known.
fn go_on(app: &Server, user_id: &UserId, redirect_url: Url) -> Result<Reply, ApiError> {
    let trusted = is_trusted(&app.config, &redirect_url);
    let place = place(&redirect_url);
    let url = with_token(app, user_id, redirect_url)?;
    if trusted {
        return see(&url);
    }
    let body = html! {
        p {
            "You are about to give " strong { (place) } " access to your account "
            strong { (user_id) } "."
        }
        p.note {
            "Continue only if that is where you wanted to log in. If you came here by a link that \
             somebody sent you, close this page."
        }
        a.button id="continue" href=(url) { "Continue" }
    };
    Ok(Page::new(format!("Continue to {place}?"), body).reply())
}

/// The pages in between.
fn choose_provider(app: &Server, query: &str) -> Reply {
    let body = html! {
        p { "How do you want to log in?" }
        (buttons(app, app.outside.providers.all().iter(), query))
    };
    Page::new(format!("Log in to {}", app.config.server.name), body).reply()
}

fn buttons<'a>(app: &Server, providers: impl Iterator<Item = &'a Provider>, query: &str) -> Markup {
    let api = client_api(&app.config.server);
    html! {
        @for provider in providers {
            a.button href={ (api) "/login/sso/redirect/" (provider.id()) "?" (query) } {
                "Continue with " (provider.name())
            }
        }
    }
}

fn choose_name(
    app: &Server,
    provider: &Provider,
    person: Person,
    errand: SsoPurpose,
) -> Result<Reply, ApiError> {
    let by_password = app.config.login.password;
    if !provider.allows_registration() && !by_password {
        let why = format!("You have no account on {}.", app.config.server.name);
        return Err(ApiError::forbidden(why));
    }
    let place = match &errand {
        SsoPurpose::Login { redirect_url } => Some(place(redirect_url)),
        _ => None,
    };
    let localpart = person.localpart.clone();
    let pending = pending(app, provider, person, errand)?;
    let registers = provider.allows_registration();
    let body = html! {
        p {
            (provider.name()) " knows you; this server does not yet."
            @if let Some(name) = localpart.filter(|_| registers) {
                " The name " strong { (name) } " cannot be yours here."
            }
        }
        p id="message" role="status" aria-live="polite" {}
        @if registers {
            form method="post" data-account {
                label for="username" { "Choose a user name" }
                input type="text" id="username" name="username" autocomplete="username"
                    autocapitalize="none" spellcheck="false" required;
                button type="submit" { "Create the account" }
            }
        }
        @if by_password {
            details {
                summary { "I have an account here already" }
                form method="post" data-account {
                    label for="user" { "Its user name" }
                    input type="text" id="user" name="user" autocomplete="username"
                        autocapitalize="none" spellcheck="false" required;
                    label for="password" { "Its password" }
                    input type="password" id="password" name="password"
                        autocomplete="current-password" required;
                    button.second type="submit" { "Link it" }
                }
            }
        }
        @if let Some(place) = place {
            p.note { "After that, " strong { (place) } " has access to the account." }
        }
    };
    Ok(Page::new("Which account?", body).script(script(app, &pending)).reply())
}

fn offer_link(
    app: &Server,
    provider: &Provider,
    person: Person,
    user_id: OwnedUserId,
) -> Result<Reply, ApiError> {
    let who = person.display_name.clone().or_else(|| person.localpart.clone());
    let who = who.unwrap_or_else(|| person.subject.clone());
    let body = html! {
        p {
            "From then on, anyone who logs in to " (provider.name()) " as " strong { (who) } " is "
            strong { (user_id) } " here."
        }
        p.note { "If that is not your account, close this page." }
        p id="message" role="status" aria-live="polite" {}
        form method="post" data-account { button type="submit" { "Link them" } }
    };
    let pending = pending(app, provider, person, SsoPurpose::Link { user_id })?;
    Ok(Page::new("Link your account?", body).script(script(app, &pending)).reply())
}

fn linked(provider: &Provider, user_id: &UserId) -> Reply {
    let body = html! {
        p.good { "You can log in as " (user_id) " with " (provider.name()) "." }
    };
    Page::new("Your account is linked", body).reply()
}

fn pending(
    app: &Server,
    provider: &Provider,
    person: Person,
    errand: SsoPurpose,
) -> Result<String, ApiError> {
    let pending = Pending {
        provider: provider.id().to_owned(),
        subject: person.subject,
        display_name: person.display_name,
        email: person.email,
        errand,
    };
    signed(app.engine.clock(), &app.signing.signer, PENDING, &pending)
}

fn script(app: &Server, pending: &str) -> String {
    // Relative, because the page may be opened at another address than the public one.
    let endpoint = format!("{}/login/sso/account", client_api(&app.config.server));
    let path = endpoint.parse::<Url>().map_or(endpoint, |url| url.path().to_owned());
    format!("const endpoint = {}, pending = {};\n{SCRIPT}", literal(&path), literal(&pending))
}
