//! The device authorization grant (client-server API, "Device authorisation flow"; RFC 8628): a
//! client without a browser shows a code, which the user confirms in a browser elsewhere.

use http::{HeaderMap, StatusCode};
use maud::html;
use ruma::api::auth_scheme::NoAccessToken;
use serde_json::json;

use super::{
    addresses::{ReturnPath, encoded, issuer, path},
    authorize::may_grant,
    availability::must_be_offered,
    browser::{SignedIn, Visitor, see},
    clients::authenticated,
    page_parts,
    parameters::Parameters,
    problem::{Failure, Problem, answer as answered, refusal as refused, replied},
};
use crate::{
    api::{
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, ErrorCode, LoginRefusal, Reply, endpoint, refused_login},
};
use logcabin_base::{
    clock::{millis, random_bytes, random_token},
    limits,
};
use logcabin_config as config;
use logcabin_decide::oauth::{AnswerDevice, RequestDevice};
use logcabin_record::{
    client::GrantType,
    command::{OauthDeviceAnswer, OauthDeviceRequest, TokenHash},
    scope::Scope,
};
use logcabin_state::oauth::DeviceRequest;

endpoint! {
    /// A client begins.
    pub(super) struct Request = POST "/_matrix/oauth2/device";
    for NoAccessToken;
    body Body::Short(limits::FORM_BYTES);
    refusal refused;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The page on which the user types the code, and is asked.
    pub(super) struct LinkPage = GET "/_matrix/oauth2/link";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The form of the page.
    pub(super) struct LinkForm = POST "/_matrix/oauth2/link";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

/// The characters of a code that people type (RFC 8628, section 6.1): no vowels, and nothing that
/// looks like something else.
const LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
/// How many there are. Of 20^8 codes, guesses within the rate limit find none.
const LENGTH: usize = 8;
/// How often another code is tried if one is in use.
const TRIES: usize = 5;

pub(super) async fn request(cx: Cx<Server, ()>, request: Request) -> Result<Reply, ApiError> {
    replied(begin(&cx, &request.headers).await)
}

async fn begin(cx: &Cx<Server, ()>, headers: &HeaderMap) -> Result<Reply, Failure> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let parameters = Parameters::read(&cx.body)?;
    let client = authenticated(&app.engine, &app.oauth.clients, headers, &parameters)?;
    if !client.metadata.grant_types.contains(&GrantType::DeviceCode) {
        let why = "The client is not registered for device codes.";
        return Err(Problem::new("unauthorized_client", why).into());
    }
    let scope = Scope::parse(parameters.text("scope"))
        .map_err(|invalid| Problem::new("invalid_scope", invalid.to_string()))?;
    let device_code = format!("lcd_{}", random_token());
    let now_ms = app.engine.clock().now_ms();
    let lifetime = limits::OAUTH_DEVICE_CODE;
    let mut user_code = None;
    for _ in 0..TRIES {
        let code = new_code();
        let request = OauthDeviceRequest {
            device_code: TokenHash::of(&device_code),
            user_code: TokenHash::of(&code),
            client_id: client.id.clone(),
            scope: scope.to_string(),
            expires_ms: now_ms.saturating_add(millis(lifetime)),
        };
        let proposal = RequestDevice { request, configured: client.configured, now_ms };
        if cx.propose(proposal).await?.into_inner() {
            user_code = Some(code);
            break;
        }
    }
    let user_code = user_code.ok_or_else(|| ApiError::unavailable("Try again."))?;
    let shown = shown(&user_code);
    let uri = format!("{}/link", issuer(&app.config.server));
    Ok(answered(&json!({
        "device_code": device_code,
        "user_code": shown,
        "verification_uri": uri,
        "verification_uri_complete": format!("{uri}?user_code={shown}"),
        "expires_in": lifetime.as_secs(),
        "interval": limits::OAUTH_INTERVAL.as_secs(),
    })))
}

fn new_code() -> String {
    let mut code = String::with_capacity(LENGTH);
    while code.len() < LENGTH {
        for byte in random_bytes::<16>() {
            // 240 is the largest multiple of 20 below 256: larger bytes would favour some letters.
            if byte < 240 && code.len() < LENGTH {
                code.push(char::from(LETTERS[usize::from(byte) % LETTERS.len()]));
            }
        }
    }
    code
}

/// A code as people read it.
fn shown(code: &str) -> String {
    let (first, second) = code.split_at(LENGTH / 2);
    format!("{first}-{second}")
}

/// The typed code, without separators.
fn typed(text: &str) -> Option<String> {
    let code: String = text
        .chars()
        .filter(|c| !c.is_whitespace() && !matches!(c, '-' | '\u{2010}'..='\u{2015}' | '.' | '_'))
        .take(LENGTH + 1)
        .map(|c| c.to_ascii_uppercase())
        .collect();
    (code.len() == LENGTH && code.bytes().all(|byte| LETTERS.contains(&byte))).then_some(code)
}

/// What the form about a request is about.
fn about(request: &DeviceRequest) -> String {
    format!("link {:?}", request.device_code)
}

pub(super) async fn page(cx: Cx<Server, ()>, request: LinkPage) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    let given = cx.query("user_code")?;
    let Some(signed_in) = visitor.signed_in() else {
        let code = given.as_deref().and_then(typed);
        let code = code.map_or_else(String::new, |code| format!("?user_code={}", shown(&code)));
        return see(&ReturnPath::of(Some(&format!("link{code}"))).by(&app.config.server, "sign_in"));
    };
    let Some(given) = given else {
        return visitor.keep(&app.config.server, entry(&app.config.server, None, "").reply());
    };
    let now_ms = app.engine.clock().now_ms();
    let found = typed(&given)
        .and_then(|code| app.engine.state().oauth.request_for_user(&TokenHash::of(&code), now_ms));
    let reply = match found.filter(|request| request.answer.is_none()) {
        Some(found) => question(app, &visitor, &signed_in, &found, &given, &request.headers)?,
        None => {
            let user = signed_in.user_id.as_str();
            refused_login(cx.client, Some(user), LoginRefusal::Oauth);
            let why = "There is no such code, or it was used, or has expired.";
            entry(&app.config.server, Some(why), &given).status(StatusCode::NOT_FOUND).reply()
        }
    };
    visitor.keep(&app.config.server, reply)
}

/// The page for a code.
fn entry(server: &config::Server, wrong: Option<&str>, given: &str) -> Page {
    let body = html! {
        p { "Enter the code that your other device shows." }
        (page_parts::alert(wrong))
        form method="get" action={ (path(server)) "/link" } {
            label for="user_code" { "Code" }
            input type="text" id="user_code" name="user_code" value=(given) required
                autocomplete="off" autocapitalize="characters" spellcheck="false" autofocus
                maxlength="20" placeholder="ABCD-EFGH" aria-describedby="wrong";
            button type="submit" { "Continue" }
        }
    };
    Page::new("Sign in another device", body)
}

fn question(
    app: &Server,
    visitor: &Visitor,
    signed_in: &SignedIn,
    request: &DeviceRequest,
    given: &str,
    headers: &HeaderMap,
) -> Result<Reply, ApiError> {
    let client = app.oauth.clients.get(&app.engine, &request.client_id);
    let client = client.ok_or_else(|| ApiError::not_found("The app is no longer known."))?;
    let languages = page_parts::languages(headers);
    let scope = Scope::recorded(&request.scope);
    let may = may_grant(app, &scope, signed_in);
    let code = typed(given).map(|code| shown(&code)).unwrap_or_default();
    let again = ReturnPath::of(Some(&format!("link?user_code={}", encoded(&code))));
    let body = html! {
        (page_parts::client(&client, &languages))
        p { "Does your other device show this code?" }
        p.code { (code) }
        p { "The app on it asks to:" }
        (page_parts::scope(&app.engine, &scope, &signed_in.user_id))
        p.note {
            "You are signed in as " strong { (signed_in.user_id) } ". "
            a href={ (again.by(&app.config.server, "sign_in")) "&again=1" } {
                "Use another account"
            }
        }
        p.bad {
            "Allow this only if the device is yours and in front of you. If somebody sent you the \
             code or a link, they are trying to get into your account."
        }
        @if let Err(why) = &may { p.bad role="alert" { (why) } }
        form method="post" action={ (path(&app.config.server)) "/link" } {
            (page_parts::proof(&app.signing.signer, visitor, &about(request)))
            input type="hidden" name="user_code" value=(code);
            @if may.is_ok() {
                button type="submit" name="answer" value="allow" { "Allow" }
            }
            button.second type="submit" name="answer" value="deny" { "Do not allow" }
        }
        (page_parts::documents(&client, &languages))
    };
    let title = format!("Sign in to {}?", page_parts::name(&client, &languages));
    Ok(page_parts::with_logo(Page::new(title, body), &client, &languages).reply())
}

pub(super) async fn answer(cx: Cx<Server, ()>, request: LinkForm) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let form = Parameters::of_form(&cx.body)?;
    let now_ms = app.engine.clock().now_ms();
    let code = typed(form.text("user_code"));
    let found = code
        .and_then(|code| app.engine.state().oauth.request_for_user(&TokenHash::of(&code), now_ms));
    let gone = || ApiError::not_found("This code was used, or has expired.");
    let found = found.ok_or_else(gone)?;
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.check(&app.signing.signer, &request.headers, &about(&found), &form)?;
    let signed_in = visitor.must_be_signed_in()?;
    let allowed = form.get("answer") == Some("allow");
    if allowed {
        let scope = Scope::recorded(&found.scope);
        may_grant(app, &scope, &signed_in).map_err(ApiError::forbidden)?;
    }
    let proposal = AnswerDevice {
        answer: OauthDeviceAnswer {
            user_id: signed_in.user_id.clone(),
            device_code: found.device_code,
            allowed,
            auth_ms: signed_in.auth_ms,
        },
        browser: visitor.hash,
        now_ms,
    };
    let origin = signed_in.origin(&cx.request_id);
    app.engine
        .propose(origin, proposal)
        .await
        .map_err(|error| match ApiError::from(error) {
            error if *error.code() == ErrorCode::NotFound => gone(),
            error => error,
        })?
        .into_inner();
    let body = html! {
        @if allowed {
            p.good role="status" { "Done. Your other device continues by itself." }
        } @else {
            p role="status" { "The other device gets nothing." }
        }
        p { "You can close this page." }
    };
    Ok(Page::new(if allowed { "Allowed" } else { "Not allowed" }, body).reply())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_recognised_however_it_is_typed() {
        for _ in 0..100 {
            let code = new_code();
            assert_eq!(typed(&code).as_deref(), Some(&*code));
            let low = shown(&code).to_lowercase();
            assert_eq!(typed(&low).as_deref(), Some(&*code), "{low}");
        }
        assert_eq!(typed(" wd jb\u{2013}mjht ").as_deref(), Some("WDJBMJHT"));
        for bad in ["", "WDJB-MJH", "WDJB-MJHTT", "ADJB-MJHT", "WDJB/MJHT"] {
            assert_eq!(typed(bad), None, "{bad}");
        }
    }
}
