//! Creating an account on this server's pages (client-server API, "User registration"). The stages
//! that registration asks for are those of user-interactive authentication, on their pages: a
//! registration is a session of that, which only the browser that began it can go on with.

use http::{HeaderMap, StatusCode};
use maud::html;
use ruma::api::client::uiaa::{AuthData, AuthType, FallbackAcknowledgement};
use serde_json::{Map, Value, json};
use url::Url;

use super::{
    addresses::{ReturnPath, encoded, path},
    availability::must_be_offered,
    browser::{self, NewSignIn, Visitor, see},
    page_parts,
    parameters::Parameters,
};
use crate::{
    api::{
        addresses::client_api,
        auth::{
            credentials::check_password,
            registration::{self, newcomers_id},
            rights::may_log_in,
            uiaa::{self, BROWSER, answer_field, what_to_do},
        },
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_record::command::SignedInBy;
use logcabin_service::uiaa::{
    self as sessions, Attempt, Binding, Denied, Proof, QUESTION, RequestFacts, answered,
};

endpoint! {
    /// The page, and the way back to it from the pages of the stages.
    pub(super) struct SignUpPage = GET "/_matrix/oauth2/sign_up";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// Its form.
    pub(super) struct SignUpForm = POST "/_matrix/oauth2/sign_up";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

/// What the form is about.
const ABOUT: &str = "sign_up";

/// What a session remembers besides the parameters of a registration. No client can set it.
const NEXT: &str = "org.logcabin.next";

/// The newcomer's answer to the operator's question, which they gave with the form.
const ANSWER: &str = "org.logcabin.answer";

/// What newcomers are asked.
fn question(app: &Server) -> Option<&str> {
    app.config.registration.question.as_deref().filter(|_| app.approves())
}

/// Whether anyone can create an account.
pub(super) fn is_possible(app: &Server) -> bool {
    app.is_registration_open() && app.config.login.password
}

pub(super) async fn page(cx: Cx<Server, ()>, request: SignUpPage) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    if let Some(session) = cx.query("session")? {
        return go_on(&cx, &session, &request.headers, false).await;
    }
    let next = ReturnPath::of(cx.query("next")?.as_deref());
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.keep(
        &app.config.server,
        form(app, &visitor, &next, ("", ""), None, &request.headers).reply(),
    )
}

fn form(
    app: &Server,
    visitor: &Visitor,
    next: &ReturnPath,
    (username, answer): (&str, &str),
    wrong: Option<&str>,
    headers: &HeaderMap,
) -> Page {
    let config = &app.config;
    let possible = is_possible(app);
    let body = html! {
        (page_parts::purpose(&app.engine, &app.oauth.clients, next, headers))
        (page_parts::alert(wrong))
        @if possible {
            form method="post" action={ (path(&config.server)) "/sign_up" } {
                (page_parts::proof(&app.signing.signer, visitor, ABOUT))
                input type="hidden" name="next" value=(next.as_str());
                label for="username" { "User name" }
                input type="text" id="username" name="username" value=(username) required
                    maxlength="255" autocomplete="username" autocapitalize="none"
                    spellcheck="false" autofocus aria-describedby="wrong name-note";
                p.note id="name-note" {
                    "Others reach you at @" em { "name" } ":" (config.server.name)
                    ". It cannot be changed."
                }
                (page_parts::new_password(&app.config.passwords, "Password"))
                @if let Some(question) = question(app) { (answer_field(question, answer)) }
                @if app.approves() {
                    p.note { "Whoever runs this server has to approve the account first." }
                }
                button type="submit" { "Create the account" }
            }
        } @else {
            p { "New accounts are not created on these pages." }
        }
        (page_parts::ways(&app.config.server, &app.outside.providers, next, possible))
        p {
            "You have an account? "
            a href=(next.by(&config.server, "sign_in")) { "Sign in" }
        }
    };
    Page::new(format!("Create an account on {}", config.server.name), body)
}

pub(super) async fn submit(cx: Cx<Server, ()>, request: SignUpForm) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let fields = Parameters::of_form(&cx.body)?;
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.check(&app.signing.signer, &request.headers, ABOUT, &fields)?;
    if let Some(session) = fields.get("session") {
        return go_on(&cx, session, &request.headers, true).await;
    }
    let next = ReturnPath::of(fields.get("next"));
    let username = fields.text("username").trim();
    let begun = begin(&cx, &visitor, &next, username, &fields).await;
    match begun {
        Ok(session) => go_on(&cx, &session, &request.headers, false).await,
        Err(error) if error.status().is_client_error() => {
            let wrong = Some(error.message());
            let given = (username, fields.text("answer"));
            let page = form(app, &visitor, &next, given, wrong, &request.headers);
            Ok(page.status(error.status()).reply())
        }
        Err(error) => Err(error),
    }
}

/// Begins a registration. Errors in it are reported before the user has to prove anything.
async fn begin(
    cx: &Cx<Server, ()>,
    visitor: &Visitor,
    next: &ReturnPath,
    username: &str,
    fields: &Parameters,
) -> Result<String, ApiError> {
    let app = &*cx.app;
    if !is_possible(app) {
        return Err(ApiError::forbidden("Registration is closed on this server."));
    }
    let env = app.engine.env();
    env.accounts.check(&env.state.accounts)?;
    if app.approves() {
        env.accounts.check_waiting(&env.state.accounts)?;
    }
    let answer = fields.text("answer");
    if question(app).is_some() && answered(answer).is_none() {
        return Err(ApiError::invalid_param(Denied::NoAnswer.to_string()));
    }
    let user_id = newcomers_id(app, username)?;
    check_password(&app.config.passwords, user_id.localpart(), fields.text("password"))?;
    let password = fields.new_password()?;
    let parameters = Map::from_iter([
        ("username".to_owned(), json!(username)),
        ("password".to_owned(), json!(password)),
        (BROWSER.to_owned(), json!(visitor.mark())),
        (NEXT.to_owned(), json!(next.as_str())),
        (ANSWER.to_owned(), json!(answer)),
    ]);
    let attempt = Attempt {
        endpoint: "register",
        binding: Binding::Endpoint(sessions::Parameters(parameters)),
        auth: None,
        offer: app.auth.stages.of_registration(app.approves()),
        facts: RequestFacts { user_id: None, registers: true, client: cx.client },
    };
    Ok(app.auth.uiaa.begin(&attempt, app.engine.clock().now_ms()))
}

/// The next stage of a registration, or its end. With `skip`, a stage that asks nothing is chosen
/// among others.
async fn go_on(
    cx: &Cx<Server, ()>,
    id: &str,
    headers: &HeaderMap,
    mut skip: bool,
) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    let now_ms = app.engine.clock().now_ms();
    let over = || {
        let why = "This registration has ended, or has taken too long. Start again.";
        ApiError::not_found(why)
    };
    let session = app.auth.uiaa.open(id, now_ms).ok_or_else(over)?;
    let parameters = app.auth.uiaa.parameters(id, now_ms).await;
    let text = |name: &str| parameters.0.get(name).and_then(Value::as_str);
    let visitor = Visitor::of(&app.engine, &app.config.server, headers);
    if text(BROWSER) != Some(&*visitor.mark()) {
        return Err(ApiError::forbidden("This registration was started in another browser."));
    }
    let mut stages = session.next_stages().await;
    while stages == [AuthType::Dummy] || skip && stages.contains(&AuthType::Dummy) {
        skip = false;
        let done = async { Ok::<_, uiaa::Failure>(Proof::Done) };
        let completed = app.auth.uiaa.complete(id, &AuthType::Dummy, now_ms, done).await;
        completed.map_err(|_| over())?;
        stages = session.next_stages().await;
    }
    // It was answered with the first form. With that, an address need not be confirmed.
    let answer = text(ANSWER).and_then(answered);
    let is_answered = answer.is_some();
    if let Some(stage) = stages.iter().find(|stage| stage.as_str() == QUESTION)
        && let Some(answer) = answer.filter(|_| stages.len() == 1 || skip)
    {
        let done = async { Ok::<_, uiaa::Failure>(answer) };
        let completed = app.auth.uiaa.complete(id, stage, now_ms, done).await;
        completed.map_err(|_| over())?;
        stages = session.next_stages().await;
    }
    let page_of = |stage: &AuthType| {
        let api = client_api(&app.config.server);
        let api = api.parse::<Url>().map_or(api, |url| url.path().to_owned());
        format!("{api}/auth/{stage}/fallback/web?session={}", encoded(id))
    };
    let may_leave_out =
        |stage: &AuthType| *stage == AuthType::Dummy || is_answered && stage.as_str() == QUESTION;
    match &*stages {
        [] => finish(cx, id, &parameters, &visitor, headers).await,
        [only] => see(&page_of(only)),
        several => {
            let body = html! {
                p { "Choose how to continue:" }
                @for stage in several.iter().filter(|stage| !may_leave_out(stage)) {
                    a.button href=(page_of(stage)) { (what_to_do(stage)) }
                }
                @if several.iter().any(may_leave_out) {
                    form method="post" action={ (path(&app.config.server)) "/sign_up" } {
                        (page_parts::proof(&app.signing.signer, &visitor, ABOUT))
                        input type="hidden" name="session" value=(id);
                        button.second type="submit" { "Leave it out" }
                    }
                }
            };
            visitor.keep(&app.config.server, Page::new("One more step", body).reply())
        }
    }
}

async fn finish(
    cx: &Cx<Server, ()>,
    id: &str,
    parameters: &sessions::Parameters,
    visitor: &Visitor,
    headers: &HeaderMap,
) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    let text = |name: &str| parameters.0.get(name).and_then(Value::as_str).unwrap_or_default();
    let next = ReturnPath::of(Some(text(NEXT)));
    let auth = AuthData::FallbackAcknowledgement(FallbackAcknowledgement::new(id.to_owned()));
    let offer = app.auth.stages.of_registration(app.approves());
    let facts = RequestFacts { user_id: None, registers: true, client: cx.client };
    let binding = Binding::Endpoint(parameters.clone());
    let authenticated =
        uiaa::authenticate(app, "register", binding, Some(&auth), offer, facts).await?;
    let (username, password) = (text("username"), text("password").to_owned());
    let created = async {
        let user_id = newcomers_id(app, username)?;
        let from = (cx.origin(), cx.client);
        registration::create(app, from, &user_id, password, authenticated).await?;
        Ok::<_, ApiError>(user_id)
    };
    let user_id = match created.await {
        Ok(user_id) => user_id,
        // Others had the name or the address first, or the registration token was used up
        // meanwhile, or there are enough accounts: what the registration was for goes on.
        Err(error) if error.status().is_client_error() => {
            let given = (username, text(ANSWER));
            let page = form(app, visitor, &next, given, Some(error.message()), headers);
            return visitor.keep(&app.config.server, page.status(StatusCode::CONFLICT).reply());
        }
        Err(error) => return Err(error),
    };
    if may_log_in(&app.engine, &user_id).is_err() {
        let body = html! {
            p.good role="status" {
                "Your account " strong { (user_id) } " is registered. Whoever runs this server has \
                 to approve it: you can log in once that is done."
            }
        };
        return visitor.keep(&app.config.server, Page::new("Thank you", body).reply());
    }
    let arrival = NewSignIn::of(cx, headers, user_id, SignedInBy::Registration);
    let cookie = browser::sign_in(app, arrival).await?;
    browser::go_on(&app.config.server, &next, cookie)
}
