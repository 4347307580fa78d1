//! The fallback page of each stage, for clients that do not support it (client-server API,
//! "Fallback"). It completes the stage in the client's session and tells its opener, so that the
//! client goes on.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use http::{HeaderMap, HeaderValue, StatusCode, header::ACCEPT_LANGUAGE};
use maud::{Markup, html};
use ruma::api::client::uiaa::{
    AuthData, AuthType, Dummy, MatrixUserIdentifier, Password, ReCaptcha, RegistrationToken,
    Terms as TermsAccepted, UserIdentifier,
};

use serde_json::json;

use super::{
    failure::Failure,
    stages::{self, purpose_of},
};
use crate::{
    api::{
        addresses::sign_up_of,
        auth::validation::{request_for_page, show_token},
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::{
    clock::random_token,
    limits::{self, REGISTRATION_ANSWER_BYTES},
    text::encoded,
};
use logcabin_record::{address as threepid, threepid::Medium};
use logcabin_service::uiaa::{QUESTION, Session, StageStatus};

endpoint! {
    /// The page of a stage.
    pub(crate) struct StagePage = GET
        "/_matrix/client/r0/auth/{auth_type}/fallback/web"
        "/_matrix/client/v3/auth/{auth_type}/fallback/web";
    for AnyBrowser;
    { auth_type: String = path, headers: HeaderMap = headers }
}

endpoint! {
    /// The form of a stage's page.
    pub(crate) struct StageForm = POST
        "/_matrix/client/r0/auth/{auth_type}/fallback/web"
        "/_matrix/client/v3/auth/{auth_type}/fallback/web";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { auth_type: String = path, headers: HeaderMap = headers }
}

/// Tells the client, which may have opened the page in an embedded view or in a window.
const TELL: &str = "\
if (typeof window.onAuthDone === 'function') {
  window.onAuthDone();
} else if (window.opener && typeof window.opener.postMessage === 'function') {
  window.opener.postMessage('authDone', '*');
}";

/// Submits the form once the captcha is solved, and fits it to a narrow screen.
const CAPTCHA: &str = "\
window.solved = () => document.querySelector('form').submit();
if (window.innerWidth < 420) document.querySelector('.g-recaptcha').dataset.size = 'compact';";

/// Names the countries in the browser's language, in its order.
const COUNTRIES: &str = "\
const select = document.getElementById('country');
const names = new Intl.DisplayNames(navigator.languages, { type: 'region' });
const chosen = select.value;
const [first, ...countries] = select.options;
for (const option of countries) option.text = `${names.of(option.value)} ${option.dataset.code}`;
countries.sort((a, b) => a.text.localeCompare(b.text));
select.append(first, ...countries);
select.value = chosen;";

/// What a session remembers of a registration on this server's own pages: the browser that began
/// it. No client can set it.
pub(in crate::api) const BROWSER: &str = "org.logcabin.browser";

/// The page that goes on with a registration, if it was begun on a page of this server.
async fn continuation(app: &Server, session: &str) -> Option<String> {
    let now_ms = app.engine.clock().now_ms();
    let parameters = app.auth.uiaa.parameters(session, now_ms).await;
    parameters.0.contains_key(BROWSER).then(|| sign_up_of(&app.config.server, session))
}

/// The subject of a page.
struct Subject<'a> {
    app: &'a Server,
    stage: AuthType,
    session: Arc<Session>,
    /// The browser's `Accept-Language`.
    languages: String,
    /// The country in the form.
    country: Option<String>,
}

/// `GET …/auth/{type}/fallback/web`.
pub(crate) async fn page(cx: Cx<Server, ()>, request: StagePage) -> Result<Reply, ApiError> {
    Ok(match subject(&cx, &request.auth_type, &request.headers).await? {
        Ok(subject) => subject.form(None).reply(),
        Err(other) => other,
    })
}

/// `POST` of the page's form to the same address.
pub(crate) async fn submit(cx: Cx<Server, ()>, request: StageForm) -> Result<Reply, ApiError> {
    let mut subject = match subject(&cx, &request.auth_type, &request.headers).await? {
        Ok(subject) => subject,
        Err(other) => return Ok(other),
    };
    let fields: Vec<(String, String)> = serde_html_form::from_bytes(&cx.body)
        .map_err(|error| ApiError::bad_request("The form cannot be read.").with_cause(error))?;
    let fields: HashMap<String, String> = fields.into_iter().collect();
    subject.country = fields.get("country").cloned();
    if let Some(medium) = subject.medium()
        && !fields.contains_key("sid")
    {
        return Ok(subject.send(&cx, medium, &fields).await.reply());
    }
    if let (Some(sid), Some(secret)) = (fields.get("sid"), fields.get("client_secret"))
        && let Some(code) = fields.get("code")
    {
        // The check below says whether it was correct.
        show_token(&cx, sid, secret, code).await?;
    }
    let sent =
        subject.medium().zip(fields.get("sid").cloned()).zip(fields.get("client_secret").cloned());
    let Some(auth) = subject.auth_data(fields) else {
        return Ok(unknown_stage().reply());
    };
    let id = cx.query("session")?.unwrap_or_default();
    let now_ms = cx.app.engine.clock().now_ms();
    let mut facts = subject.session.facts().clone();
    // The captcha is solved by whoever has the page open.
    facts.client = cx.client;
    let check = stages::check(&cx.app, &facts, &auth);
    let page = match cx.app.auth.uiaa.complete(&id, &subject.stage, now_ms, check).await {
        Ok(()) => {
            if let Some(registration) = continuation(&cx.app, &id).await {
                return see_other(&registration);
            }
            match cx.query("then")?.map(AuthType::from) {
                Some(then) if subject.session.is_ahead(&then).await => {
                    return see_other(&page_of(&then, &id, None));
                }
                _ => done(),
            }
        }
        Err(Failure::Retry(denied)) => {
            let message = denied.to_string();
            let form = match sent {
                Some(((medium, sid), secret)) => {
                    subject.sent(medium, &sid, &secret, Some(&message))
                }
                None => subject.form(Some(&message)),
            };
            form.status(StatusCode::FORBIDDEN)
        }
        Err(Failure::Final(error)) => subject.form(Some(error.message())).status(error.status()),
    };
    Ok(page.reply())
}

/// The subject of the request; or, where there is nothing to do, the page that says why, or the way
/// to where there is something.
async fn subject<'a>(
    cx: &'a Cx<Server, ()>,
    auth_type: &str,
    headers: &HeaderMap,
) -> Result<Result<Subject<'a>, Reply>, ApiError> {
    let stage = AuthType::from(auth_type);
    let Some(id) = cx.query("session")? else {
        let page = problem("Nothing to confirm", "The address of this page lacks its session.");
        return Ok(Err(page.status(StatusCode::BAD_REQUEST).reply()));
    };
    let Some(session) = cx.app.auth.uiaa.open(&id, cx.app.engine.clock().now_ms()) else {
        let page = problem(
            "This is over",
            "What you were about to confirm is done, or has taken too long. Go back to your app and \
             begin again.",
        );
        return Ok(Err(page.status(StatusCode::NOT_FOUND).reply()));
    };
    let standing = session.standing(&stage).await;
    // Somebody who registers on this server's pages went back, or loaded the page again.
    if !matches!(standing, StageStatus::Next)
        && let Some(registration) = continuation(&cx.app, &id).await
    {
        return Ok(Err(see_other(&registration)?));
    }
    Ok(match standing {
        StageStatus::Next => {
            let languages = headers.get(ACCEPT_LANGUAGE);
            let languages = languages.and_then(|value| value.to_str().ok()).unwrap_or_default();
            Ok(Subject {
                app: &cx.app,
                stage,
                session,
                languages: languages.to_owned(),
                country: None,
            })
        }
        StageStatus::Completed => Err(done().reply()),
        StageStatus::Later => Err(match &*session.before(&stage).await {
            [first] => see_other(&page_of(first, &id, Some(&stage)))?,
            before => not_yet(before, &stage, &id).reply(),
        }),
        StageStatus::NotOffered => Err(unknown_stage().reply()),
    })
}

impl Subject<'_> {
    /// The page that asks for what the stage needs, with the last error.
    fn form(&self, wrong: Option<&str>) -> Page {
        let server = &self.app.config.server.name;
        let form = |title: &str, before: Markup, fields: Markup, button: &str| {
            let body = html! {
                (before)
                (alert(wrong))
                form method="post" {
                    (fields)
                    button type="submit" { (button) }
                }
            };
            Page::new(title, body)
        };
        match &self.stage {
            AuthType::Dummy => {
                let before = html! { p { "One more step on " strong { (server) } "." } };
                form("Continue", before, Markup::default(), "Continue")
            }
            AuthType::Terms => {
                let before = html! {
                    p { "To have an account on " strong { (server) } ", read and agree to:" }
                    ul {
                        @for document in self.app.auth.stages.terms.in_language(&self.languages) {
                            li {
                                a href=(document.url) target="_blank" rel="noopener" {
                                    (document.name)
                                }
                            }
                        }
                    }
                };
                form("Terms", before, Markup::default(), "I agree")
            }
            AuthType::RegistrationToken => {
                let before = html! {
                    p {
                        "An account on " strong { (server) } " is for those with a registration \
                         token. You get one from whoever runs the server."
                    }
                };
                let fields = html! {
                    label for="token" { "Registration token" }
                    input type="text" id="token" name="token" required maxlength="64"
                        autocomplete="off" autocapitalize="none" spellcheck="false" autofocus
                        aria-describedby="wrong";
                };
                form("Registration token", before, fields, "Continue")
            }
            AuthType::ReCaptcha => self.captcha(&form),
            AuthType::Password => {
                let user_id = &self.session.facts().user_id;
                let before = html! {
                    p {
                        @if let Some(user_id) = user_id {
                            "Confirm with your password that you are " strong { (user_id) } "."
                        } @else {
                            "Your password on " strong { (server) } "."
                        }
                    }
                };
                let fields = html! {
                    @if let Some(user_id) = user_id {
                        // For password managers.
                        input type="text" name="user" value=(user_id) autocomplete="username" hidden;
                    } @else {
                        label for="user" { "User name" }
                        input type="text" id="user" name="user" required autocomplete="username"
                            autocapitalize="none" spellcheck="false" autofocus;
                    }
                    label for="password" { "Password" }
                    input type="password" id="password" name="password" required
                        autocomplete="current-password" autofocus aria-describedby="wrong";
                };
                form("Confirm it is you", before, fields, "Confirm")
            }
            AuthType::EmailIdentity => {
                let before = html! {
                    p {
                        "Show " strong { (server) } " that an e-mail address is yours: you will get a \
                         message with a link."
                    }
                };
                let fields = html! {
                    label for="email" { "E-mail address" }
                    input type="email" id="email" name="email" required maxlength="254"
                        autocomplete="email" autofocus aria-describedby="wrong";
                };
                form("Your e-mail address", before, fields, "Send the message")
            }
            AuthType::Msisdn => {
                let before = html! {
                    p {
                        "Show " strong { (server) } " that a phone number is yours: you will get a \
                         message with a code."
                    }
                };
                let fields = html! {
                    label for="country" { "Country" }
                    select id="country" name="country" autocomplete="country" {
                        (countries(self.country.as_deref(), &self.languages))
                    }
                    label for="phone" { "Phone number" }
                    input type="tel" id="phone" name="phone" required maxlength="64"
                        autocomplete="tel" autofocus aria-describedby="wrong";
                };
                form("Your phone number", before, fields, "Send the message").script(COUNTRIES)
            }
            other if other.as_str() == QUESTION => {
                let question = self.app.config.registration.question.as_deref();
                let before = html! {
                    p {
                        "Whoever runs " strong { (server) } " reads your answer, and decides about \
                         your account."
                    }
                };
                let fields = answer_field(question.unwrap_or_default(), "");
                form("One question", before, fields, "Continue")
            }
            _ => unknown_stage(),
        }
    }

    /// The medium of the stage's messages, if it sends any.
    fn medium(&self) -> Option<Medium> {
        match &self.stage {
            AuthType::EmailIdentity => Some(Medium::Email),
            AuthType::Msisdn => Some(Medium::Msisdn),
            _ => None,
        }
    }

    /// Sends the message to the address in the form.
    async fn send(
        &self,
        cx: &Cx<Server, ()>,
        medium: Medium,
        fields: &HashMap<String, String>,
    ) -> Page {
        let field = |name: &str| fields.get(name).map_or("", String::as_str);
        let threepid = match medium {
            Medium::Email => threepid::email(field("email")),
            Medium::Msisdn if field("country").is_empty() => {
                threepid::parse("msisdn", field("phone"))
            }
            Medium::Msisdn => threepid::phone(field("country"), field("phone")),
        };
        let secret = random_token();
        let asked = async {
            let purpose = purpose_of(self.session.facts());
            request_for_page(cx, purpose, threepid?, &secret).await
        };
        match asked.await {
            Ok(sid) => self.sent(medium, &sid, &secret, None),
            Err(error) => self.form(Some(error.message())).status(error.status()),
        }
    }

    /// The page that waits for the code in the message.
    fn sent(&self, medium: Medium, sid: &str, secret: &str, wrong: Option<&str>) -> Page {
        let body = html! {
            p {
                @match medium {
                    Medium::Email => {
                        "Open the link in the message that was sent to you, then continue here."
                    }
                    Medium::Msisdn => "Enter the code from the message that was sent to you.",
                }
            }
            (alert(wrong))
            form method="post" {
                input type="hidden" name="sid" value=(sid);
                input type="hidden" name="client_secret" value=(secret);
                @if medium == Medium::Msisdn {
                    label for="code" { "Code" }
                    input type="text" id="code" name="code" required inputmode="numeric"
                        autocomplete="one-time-code" autofocus aria-describedby="wrong";
                }
                button type="submit" { "Continue" }
            }
        };
        Page::new("A message is on its way", body)
    }

    fn captcha(&self, form: &dyn Fn(&str, Markup, Markup, &str) -> Page) -> Page {
        let Some(captcha) = &self.app.auth.stages.captcha else { return unknown_stage() };
        let fields = html! {
            div.g-recaptcha data-sitekey=(captcha.public_key) data-callback="solved" {}
            noscript { p.bad { "The captcha needs JavaScript." } }
            script src=(captcha.script_url) async defer {}
        };
        let before = html! { p { "Solve the captcha to continue." } };
        let page = form("Are you human?", before, fields, "Continue");
        captcha.origins().into_iter().fold(page.script(CAPTCHA), Page::outside)
    }

    /// The form as the `auth` of a client that supports the stage.
    fn auth_data(&self, mut fields: HashMap<String, String>) -> Option<AuthData> {
        let mut field = |name: &str| fields.remove(name).unwrap_or_default();
        Some(match &self.stage {
            AuthType::Dummy => AuthData::Dummy(Dummy::new()),
            AuthType::Terms => AuthData::Terms(TermsAccepted::new()),
            AuthType::RegistrationToken => AuthData::RegistrationToken(RegistrationToken::new(
                field("token").trim().to_owned(),
            )),
            AuthType::ReCaptcha => {
                AuthData::ReCaptcha(ReCaptcha::new(field("g-recaptcha-response")))
            }
            AuthType::Password => {
                let user = match &self.session.facts().user_id {
                    Some(user_id) => user_id.to_string(),
                    None => field("user").trim().to_owned(),
                };
                let identifier = UserIdentifier::Matrix(MatrixUserIdentifier::new(user));
                AuthData::Password(Password::new(identifier, field("password")))
            }
            AuthType::EmailIdentity | AuthType::Msisdn => {
                let credentials =
                    json!({ "sid": field("sid"), "client_secret": field("client_secret") });
                let data = [("threepid_creds".to_owned(), credentials)].into_iter().collect();
                return AuthData::new(self.stage.as_str(), None, data).ok();
            }
            other if other.as_str() == QUESTION => {
                let data = [("answer".to_owned(), field("answer").into())].into_iter().collect();
                return AuthData::new(QUESTION, None, data).ok();
            }
            _ => return None,
        })
    }
}

/// The field for the answer to the operator's question.
pub(in crate::api) fn answer_field(question: &str, answer: &str) -> Markup {
    html! {
        label for="answer" { bdi { (question) } }
        textarea id="answer" name="answer" rows="4" required maxlength=(REGISTRATION_ANSWER_BYTES)
            aria-describedby="wrong" { (answer) }
    }
}

/// The page of a completed stage.
pub(in crate::api) fn done() -> Page {
    let body = html! {
        p.good role="status" { "Thank you. You can close this page and go back to your app." }
    };
    Page::new("Done", body).script(TELL)
}

/// The last error, if any: fields refer to it as their description.
fn alert(wrong: Option<&str>) -> Markup {
    html! {
        @if let Some(wrong) = wrong { p.bad id="wrong" role="alert" { (wrong) } }
    }
}

/// The page of a stage that must wait for one of others: which ones, and links.
fn not_yet(before: &[AuthType], stage: &AuthType, session: &str) -> Page {
    if before.is_empty() {
        let sentence = "Your app has chosen another way. Go back to it.";
        return problem("Not needed", sentence).status(StatusCode::CONFLICT);
    }
    let body = html! {
        p { "One of these comes first:" }
        @for first in before {
            a.button href=(page_of(first, session, Some(stage))) { (what_to_do(first)) }
        }
    };
    Page::new("One step before this", body)
}

/// The instruction of a stage.
pub(in crate::api) fn what_to_do(stage: &AuthType) -> &'static str {
    match stage {
        AuthType::Terms => "Agree to the terms",
        AuthType::RegistrationToken => "Enter your registration token",
        AuthType::ReCaptcha => "Solve the captcha",
        AuthType::Password => "Enter your password",
        AuthType::EmailIdentity => "Confirm your email address",
        AuthType::Msisdn => "Confirm your phone number",
        other if other.as_str() == QUESTION => "Answer a question",
        _ => "Continue",
    }
}

/// The address of a stage's page, which continues with the page of `then` once the stage is
/// completed. It is relative to the page of another stage, so that it works with any prefix.
fn page_of(stage: &AuthType, session: &str, then: Option<&AuthType>) -> String {
    let mut address = format!("../../{stage}/fallback/web?session={}", encoded(session));
    if let Some(then) = then {
        let _ = write!(address, "&then={}", encoded(then.as_str()));
    }
    address
}

fn see_other(address: &str) -> Result<Reply, ApiError> {
    let location = HeaderValue::from_str(address).map_err(ApiError::internal)?;
    Ok(Reply::see_other(location))
}

/// The countries of phone numbers as options. `chosen` is selected, or a country where the
/// browser's preferred language is spoken.
fn countries(chosen: Option<&str>, languages: &str) -> Markup {
    let preferred = languages.split([',', ';']).next().and_then(|tag| tag.rsplit_once('-'));
    let preferred = preferred.map(|(_, region)| region).filter(|region| region.len() == 2);
    let chosen = chosen.or(preferred).unwrap_or_default();
    let regions: BTreeMap<&str, u16> = phonenumber::metadata::DATABASE
        .iter()
        .map(|region| (region.id(), region.country_code()))
        .filter(|(id, _)| id.bytes().all(|byte| byte.is_ascii_alphabetic()))
        .collect();
    html! {
        option value="" { "Any: the number begins with +" }
        @for (id, code) in regions {
            option value=(id) data-code={ "+" (code) } selected[id.eq_ignore_ascii_case(chosen)] {
                (id) " +" (code)
            }
        }
    }
}

fn unknown_stage() -> Page {
    problem("Nothing to confirm", "Nothing of this kind is asked for here.")
        .status(StatusCode::NOT_FOUND)
}

fn problem(title: &str, sentence: &str) -> Page {
    Page::new(title, html! { p role="alert" { (sentence) } })
}
