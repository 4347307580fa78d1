//! The authorization endpoint (client-server API, "Authorisation code flow"; RFC 6749, section
//! 4.1; RFC 7636; RFC 9207): a page that asks the user, and sends the browser back with a code.

use std::collections::BTreeSet;

use http::HeaderMap;
use maud::html;

use super::{
    addresses::{ReturnPath, issuer, path},
    availability::must_be_offered,
    browser::{SignedIn, Visitor, see},
    page_parts,
    parameters::{Parameters, without},
    problem::Problem,
};
use crate::{
    api::{
        browser::page::{AnyBrowser, Page},
        server::Server,
    },
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::{
    clock::{Clock, millis, random_token},
    limits,
};
use logcabin_decide::oauth::IssueCode;
use logcabin_record::{
    client::GrantType,
    command::{OauthCode, TokenHash},
    scope::Scope,
};
use logcabin_service::oauth::Client;

endpoint! {
    /// A client sends the browser here.
    pub(super) struct Authorize = GET "/_matrix/oauth2/authorize";
    for AnyBrowser;
    { headers: HeaderMap = headers }
}

endpoint! {
    /// The user's answer: the submitted form of the consent page.
    pub(super) struct Answer = POST "/_matrix/oauth2/authorize";
    for AnyBrowser;
    body Body::Short(limits::FORM_BYTES);
    { headers: HeaderMap = headers }
}

/// The most bytes of a `state`, and of a `nonce`.
const OPAQUE_BYTES: usize = 1024;

/// Where and how a browser is sent back.
#[derive(Clone, Debug)]
struct RedirectTarget {
    redirect_uri: String,
    fragment: bool,
    state: Option<String>,
    issuer: String,
}

impl RedirectTarget {
    /// The address, with these parameters.
    fn with(&self, parameters: &[(&str, &str)]) -> String {
        let state = self.state.as_deref().map(|state| ("state", state));
        let all = parameters.iter().copied().chain(state).chain([("iss", self.issuer.as_str())]);
        let all: Vec<_> = all.collect();
        let query = serde_html_form::to_string(all).unwrap_or_default();
        let uri = &self.redirect_uri;
        match (self.fragment, uri.contains('?')) {
            (true, _) => format!("{uri}#{query}"),
            (false, true) => format!("{uri}&{query}"),
            (false, false) => format!("{uri}?{query}"),
        }
    }

    fn refused(&self, problem: &Problem) -> Result<Reply, ApiError> {
        see(&self.with(&[("error", problem.code), ("error_description", &problem.description)]))
    }
}

/// What a client asks for.
struct AuthorizationRequest {
    client: Client,
    back: RedirectTarget,
    scope: Scope,
    code_challenge: String,
    nonce: Option<String>,
    prompt: BTreeSet<String>,
    max_age: Option<u64>,
}

/// Why a request is refused.
enum Refused {
    /// The redirect address is missing or not trusted: the error is shown here.
    Shown(ApiError),
    /// The error is sent to the client with a redirect.
    Redirected(Box<(RedirectTarget, Problem)>),
}

impl Refused {
    fn reply(self) -> Result<Reply, ApiError> {
        match self {
            Self::Shown(error) => Err(error),
            Self::Redirected(redirect) => redirect.0.refused(&redirect.1),
        }
    }
}

impl AuthorizationRequest {
    fn read(app: &Server, query: &str) -> Result<Self, Refused> {
        let here = |why: String| Refused::Shown(ApiError::bad_request(why));
        if query.len() > limits::OAUTH_REQUEST_BYTES {
            return Err(here("The address is too long.".to_owned()));
        }
        let given = Parameters::read(query.as_bytes()).map_err(|error| here(error.to_string()))?;
        let client_id = given.get("client_id");
        let client_id =
            client_id.ok_or_else(|| here("The address has no client_id.".to_owned()))?;
        let client = app.oauth.clients.get(&app.engine, client_id);
        let client = client.ok_or_else(|| {
            here("The app is not, or no longer, known here. Try again from the app.".to_owned())
        })?;
        let redirect_uri = given.get("redirect_uri");
        let redirect_uri =
            redirect_uri.ok_or_else(|| here("The address has no redirect_uri.".to_owned()))?;
        if !client.metadata.allows_redirect(redirect_uri) {
            let why = "The app asks to send you to an address that is not one of its own.";
            return Err(here(why.to_owned()));
        }
        let mode = given.get("response_mode");
        let mut back = RedirectTarget {
            redirect_uri: redirect_uri.to_owned(),
            fragment: mode == Some("fragment"),
            state: None,
            issuer: issuer(&app.config.server),
        };
        let state = given.get("state");
        if state.is_none_or(|state| state.len() <= OPAQUE_BYTES) {
            back.state = state.map(str::to_owned);
        } else {
            let problem = Problem::request("`state` is too long.");
            return Err(Refused::Redirected(Box::new((back, problem))));
        }
        match Self::read_rest(client, &back, &given) {
            Ok(asked) => Ok(asked),
            Err(problem) => Err(Refused::Redirected(Box::new((back, problem)))),
        }
    }

    /// Reads the remaining parameters. Errors in them can be reported to the client.
    fn read_rest(
        client: Client,
        back: &RedirectTarget,
        given: &Parameters,
    ) -> Result<Self, Problem> {
        for (name, code) in
            [("request", "request_not_supported"), ("request_uri", "request_uri_not_supported")]
        {
            if given.get(name).is_some() {
                return Err(Problem::new(code, format!("`{name}` is not supported.")));
            }
        }
        match given.get("response_type") {
            Some("code") => {}
            None => return Err(Problem::request("`response_type` is missing.")),
            Some(_) => {
                let why = "The only supported `response_type` is `code`.";
                return Err(Problem::new("unsupported_response_type", why));
            }
        }
        if !client.metadata.grant_types.contains(&GrantType::AuthorizationCode) {
            let why = "The client is not registered for authorization codes.";
            return Err(Problem::new("unauthorized_client", why));
        }
        if !matches!(given.get("response_mode"), None | Some("query" | "fragment")) {
            return Err(Problem::request("`response_mode` must be `query` or `fragment`."));
        }
        if given.get("code_challenge_method") != Some("S256") {
            return Err(Problem::request("`code_challenge_method` must be `S256`."));
        }
        let code_challenge = given.text("code_challenge");
        let is_hash = code_challenge.len() == 43
            && code_challenge.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        if !is_hash {
            let why = "`code_challenge` must be a SHA-256 hash in URL-safe base64.";
            return Err(Problem::request(why));
        }
        let scope = Scope::parse(given.text("scope"))
            .map_err(|invalid| Problem::new("invalid_scope", invalid.to_string()))?;
        let nonce = given.get("nonce");
        if nonce.is_some_and(|nonce| nonce.len() > OPAQUE_BYTES) {
            return Err(Problem::request("`nonce` is too long."));
        }
        let prompt: BTreeSet<_> =
            given.text("prompt").split(' ').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        if prompt.len() > 1 && prompt.contains("none") {
            return Err(Problem::request("`prompt` must not combine `none` with other values."));
        }
        let max_age = given.get("max_age").map(str::parse).transpose();
        let max_age = max_age.map_err(|_| Problem::request("`max_age` is not a number."))?;
        let (back, code_challenge) = (back.clone(), code_challenge.to_owned());
        let nonce = nonce.map(str::to_owned);
        Ok(Self { client, back, scope, code_challenge, nonce, prompt, max_age })
    }

    /// Whether the user must prove again who they are.
    fn must_sign_in_again(&self, clock: &Clock, signed_in: &SignedIn) -> bool {
        let max_age = self.max_age.map(std::time::Duration::from_secs);
        // The page for signing in is also where another account is chosen.
        ["login", "select_account"].iter().any(|asked| self.prompt.contains(*asked))
            || max_age
                .is_some_and(|max_age| max_age.is_zero() || !signed_in.is_fresh(clock, max_age))
    }
}

/// The address of the consent page below that of all pages. The CSRF token of its form is bound to
/// it.
fn page_address(query: &str) -> String {
    format!("authorize?{query}")
}

pub(super) async fn page(cx: Cx<Server, ()>, request: Authorize) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let query = cx.uri.query().unwrap_or_default();
    let asked = match AuthorizationRequest::read(app, query) {
        Ok(asked) => asked,
        Err(refused) => return refused.reply(),
    };
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    let signed_in = visitor.signed_in();
    if asked.prompt.contains("none") {
        // Nothing is granted without the user being asked: another app may pose as this client.
        let problem = match &signed_in {
            Some(signed_in) if !asked.must_sign_in_again(app.engine.clock(), signed_in) => {
                Problem::new("consent_required", "The user has to be asked.")
            }
            _ => Problem::new("login_required", "The user has to sign in."),
        };
        return asked.back.refused(&problem);
    }
    // Without `prompt`: it has been obeyed once the browser comes back, and would otherwise be
    // obeyed forever.
    let next = format!("authorize?{}", without(query, &["prompt"]));
    if asked.prompt.contains("create") {
        return see(&ReturnPath::of(Some(&next)).by(&app.config.server, "sign_up"));
    }
    let Some(signed_in) =
        signed_in.filter(|signed_in| !asked.must_sign_in_again(app.engine.clock(), signed_in))
    else {
        let next = match asked.max_age {
            Some(0) => format!("authorize?{}", without(query, &["prompt", "max_age"])),
            _ => next,
        };
        let again = if visitor.user().is_some() { "&again=1" } else { "" };
        return see(&format!(
            "{}{again}",
            ReturnPath::of(Some(&next)).by(&app.config.server, "sign_in")
        ));
    };
    visitor.keep(
        &app.config.server,
        consent_page(app, &visitor, &signed_in, &asked, query, &request.headers),
    )
}

/// The page that asks for consent.
fn consent_page(
    app: &Server,
    visitor: &Visitor,
    signed_in: &SignedIn,
    asked: &AuthorizationRequest,
    query: &str,
    headers: &HeaderMap,
) -> Reply {
    let languages = page_parts::languages(headers);
    let client = &asked.client;
    let user_id = &signed_in.user_id;
    let may = may_grant(app, &asked.scope, signed_in);
    let place = page_parts::place(&asked.back.redirect_uri);
    let next = page_address(query);
    let body = html! {
        (page_parts::client(client, &languages))
        p { "It asks to:" }
        (page_parts::scope(&app.engine, &asked.scope, user_id))
        p.note {
            "You are signed in as " strong { (user_id) } ". "
            a href={ (ReturnPath::of(Some(&next)).by(&app.config.server, "sign_in")) "&again=1" } {
                "Use another account"
            }
        }
        @if let Err(why) = &may { p.bad role="alert" { (why) } }
        form method="post" action={ (path(&app.config.server)) "/" (page_address(query)) } {
            (page_parts::proof(&app.signing.signer, visitor, &page_address(query)))
            @if may.is_ok() {
                button type="submit" name="answer" value="allow" { "Allow" }
            }
            button.second type="submit" name="answer" value="deny" { "Do not allow" }
        }
        p.note {
            "Your browser then goes to " strong { (place) } ". Allow this only if you meant to sign \
             in there and started this yourself."
        }
        (page_parts::documents(client, &languages))
    };
    let title = format!("Sign in to {}?", page_parts::name(client, &languages));
    let page = Page::new(title, body).leads_to(page_parts::leads_to(&asked.back.redirect_uri));
    page_parts::with_logo(page, client, &languages).reply()
}

/// Whether a user can grant this.
pub(super) fn may_grant(
    app: &Server,
    scope: &Scope,
    signed_in: &SignedIn,
) -> Result<(), &'static str> {
    let standing = app.engine.state().accounts.standing(&signed_in.user_id).unwrap_or_default();
    if (scope.admin || scope.changes) && !standing.admin {
        return Err("Only an administrator of this server can allow this, and you are not one.");
    }
    Ok(())
}

pub(super) async fn answer(cx: Cx<Server, ()>, request: Answer) -> Result<Reply, ApiError> {
    let app = &*cx.app;
    must_be_offered(app)?;
    let query = cx.uri.query().unwrap_or_default();
    let asked = match AuthorizationRequest::read(app, query) {
        Ok(asked) => asked,
        Err(refused) => return refused.reply(),
    };
    let form = Parameters::of_form(&cx.body)?;
    let visitor = Visitor::of(&app.engine, &app.config.server, &request.headers);
    visitor.check(&app.signing.signer, &request.headers, &page_address(query), &form)?;
    let signed_in = visitor.must_be_signed_in()?;
    if form.get("answer") != Some("allow") {
        let problem = Problem::new("access_denied", "The user denied the request.");
        return asked.back.refused(&problem);
    }
    may_grant(app, &asked.scope, &signed_in).map_err(ApiError::forbidden)?;
    let code = format!("lcc_{}", random_token());
    let now_ms = app.engine.clock().now_ms();
    let proposal = IssueCode {
        code: OauthCode {
            user_id: signed_in.user_id.clone(),
            client_id: asked.client.id.clone(),
            scope: asked.scope.to_string(),
            code: TokenHash::of(&code),
            redirect_uri: asked.back.redirect_uri.clone(),
            code_challenge: asked.code_challenge,
            nonce: asked.nonce,
            auth_ms: signed_in.auth_ms,
            expires_ms: now_ms.saturating_add(millis(limits::OAUTH_CODE)),
        },
        configured: asked.client.configured,
        browser: visitor.hash,
        now_ms,
    };
    app.engine.propose(signed_in.origin(&cx.request_id), proposal).await?.into_inner();
    see(&asked.back.with(&[("code", &code)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_added_to_the_query_or_put_into_the_fragment() {
        let back = |redirect_uri: &str, fragment| RedirectTarget {
            redirect_uri: redirect_uri.to_owned(),
            fragment,
            state: Some("a&b".to_owned()),
            issuer: "https://x.example".to_owned(),
        };
        let rest = "code=1&state=a%26b&iss=https%3A%2F%2Fx.example";
        for (uri, fragment, expected) in [
            ("https://y.example/", false, format!("https://y.example/?{rest}")),
            ("https://y.example/?z=1", false, format!("https://y.example/?z=1&{rest}")),
            ("https://y.example/?z=1", true, format!("https://y.example/?z=1#{rest}")),
            ("com.example:/", false, format!("com.example:/?{rest}")),
        ] {
            assert_eq!(back(uri, fragment).with(&[("code", "1")]), expected);
        }
    }
}
