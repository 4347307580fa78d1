//! OAuth 2.0 on the real program: a client and a browser without scripts, which follows links and
//! fills in forms as a person does.

mod account;
mod attacks;
mod clients;
mod console;
mod flows;
mod limits;
mod pages;
mod restart;

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use regex::Regex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::harness::{Answer, Http, RawAnswer, TestServer, encode};

/// The password of every user here.
const PASSWORD: &str = "a password that is long enough";

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// The verifier of every login here, unless it says otherwise.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";

const CALLBACK: &str = "https://app.example.com/callback";

/// Parameters as a query or a form.
fn query(parameters: &[(&str, &str)]) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The parameters of an address, from its query or its fragment.
fn parameters(address: &str) -> BTreeMap<String, String> {
    let start = address.find('#').or_else(|| address.find('?')).map_or(address.len(), |at| at + 1);
    url_parameters(&address[start..])
}

fn url_parameters(text: &str) -> BTreeMap<String, String> {
    serde_html_form::from_str::<Vec<(String, String)>>(text).expect("a query").into_iter().collect()
}

fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()))
}

/// The scope of a client of Matrix on this device.
fn scope(device_id: &str) -> String {
    format!("urn:matrix:client:api:* urn:matrix:client:device:{device_id}")
}

/// What a client of Matrix says of itself.
fn description() -> Value {
    json!({
        "client_name": "My App",
        "client_uri": "https://example.com/",
        "logo_uri": "https://example.com/logo.png",
        "tos_uri": "https://example.com/terms",
        "application_type": "web",
        "redirect_uris": [CALLBACK],
        "response_types": ["code"],
        "grant_types": [
            "authorization_code", "refresh_token",
            "urn:ietf:params:oauth:grant-type:device_code",
        ],
        "token_endpoint_auth_method": "none",
    })
}

/// A server that anybody may register on.
async fn server() -> TestServer {
    TestServer::start().await
}

async fn metadata(http: &Http) -> Value {
    http.request("GET", "/_matrix/client/v1/auth_metadata", None, None).await.ok()
}

/// A registered client.
#[derive(Clone)]
struct Client {
    http: Http,
    id: String,
    issuer: String,
}

impl Client {
    async fn register(http: &Http) -> Self {
        Self::described(http, &description()).await
    }

    async fn described(http: &Http, description: &Value) -> Self {
        let answer = register(http, description).await;
        assert_eq!(answer.status, 201, "{answer}");
        let id = answer.body["client_id"].as_str().expect("an id").to_owned();
        let issuer = metadata(http).await["issuer"].as_str().expect("an issuer").to_owned();
        Self { http: http.clone(), id, issuer }
    }

    /// The parameters that it sends a browser with.
    fn request<'a>(&'a self, scope: &'a str, challenge: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("response_type", "code"),
            ("response_mode", "query"),
            ("client_id", &self.id),
            ("redirect_uri", CALLBACK),
            ("scope", scope),
            ("state", "opaque & state"),
            ("code_challenge", challenge),
            ("code_challenge_method", "S256"),
        ]
    }

    async fn token(&self, parameters: &[(&str, &str)]) -> Answer {
        token(&self.http, &[&[("client_id", self.id.as_str())], parameters].concat()).await
    }

    async fn exchange(&self, code: &str) -> Answer {
        self.token(&exchange_of(code)).await
    }

    async fn refresh(&self, refresh_token: &str) -> Answer {
        self.token(&[("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
    }

    /// A code for this scope, allowed in this browser.
    async fn code(&self, browser: &mut Browser, scope: &str) -> String {
        let challenge = challenge(VERIFIER);
        let page = browser.get(&authorize(&self.request(scope, &challenge))).await;
        let sent = page.submit(browser, 0, &[("answer", "allow")]).await;
        let given = parameters(sent.sent_to());
        given.get("code").unwrap_or_else(|| panic!("no code: {given:?}")).clone()
    }

    /// The tokens of a new login.
    async fn login(&self, browser: &mut Browser, scope: &str) -> Value {
        let code = self.code(browser, scope).await;
        self.exchange(&code).await.ok()
    }
}

/// A server, a client, and a browser in which ann is signed in.
async fn ann() -> (TestServer, Client, Browser) {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let browser = Browser::signed_in(&http, "ann").await;
    (server, client, browser)
}

/// The parameters of an exchange of a code.
fn exchange_of(code: &str) -> [(&str, &str); 4] {
    [
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", CALLBACK),
        ("code_verifier", VERIFIER),
    ]
}

/// The address that a client sends a browser to.
fn authorize(parameters: &[(&str, &str)]) -> String {
    format!("/_matrix/oauth2/authorize?{}", query(parameters))
}

async fn register(http: &Http, description: &Value) -> Answer {
    http.request("POST", "/_matrix/oauth2/register", None, Some(description)).await
}

async fn post(http: &Http, path: &str, parameters: &[(&str, &str)]) -> Answer {
    http.raw("POST", path, &[FORM], query(parameters)).await.json()
}

async fn token(http: &Http, parameters: &[(&str, &str)]) -> Answer {
    post(http, "/_matrix/oauth2/token", parameters).await
}

async fn revoke(http: &Http, token: &str) -> Answer {
    post(http, "/_matrix/oauth2/revoke", &[("token", token)]).await
}

/// An answer with an error of OAuth.
#[track_caller]
fn error(answer: Answer, status: u16, code: &str) {
    assert!(answer.status == status && answer.body["error"] == code, "not {code}: {answer}");
    assert!(answer.body["error_description"].is_string(), "{answer}");
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no `{name}` in {value}"))
}

async fn whoami(http: &Http, token: &str) -> Answer {
    http.request("GET", "/_matrix/client/v3/account/whoami", Some(token), None).await
}

/// A browser without scripts, which keeps cookies.
#[derive(Clone)]
struct Browser {
    http: Http,
    cookies: BTreeMap<String, String>,
}

impl Browser {
    fn new(http: &Http) -> Self {
        Self { http: http.clone(), cookies: BTreeMap::new() }
    }

    /// A browser in which this user is signed in.
    async fn signed_in(http: &Http, user: &str) -> Self {
        let mut browser = Self::new(http);
        let page = browser.get("/_matrix/oauth2/account").await;
        let page = page.submit(&mut browser, 0, &[("user", user), ("password", PASSWORD)]).await;
        assert_eq!(page.title(), "Your account");
        browser
    }

    async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Seen {
        let pairs = self.cookies.iter().map(|(name, value)| format!("{name}={value}"));
        let cookies = pairs.collect::<Vec<_>>().join("; ");
        let mut all = headers.to_vec();
        if !cookies.is_empty() {
            all.push(("cookie", &cookies));
        }
        let answer = self.http.raw(method, path, &all, body).await;
        for set in answer.parts.headers.get_all("set-cookie") {
            let pair = set.to_str().expect("text").split(';').next().unwrap_or_default();
            let (name, value) = pair.split_once('=').expect("a cookie");
            if value.is_empty() {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        Seen { path: path.to_owned(), answer }
    }

    /// The page at an address, or where that leads on the server.
    async fn get(&mut self, path: &str) -> Seen {
        let seen = self.request("GET", path, &[], String::new()).await;
        self.follow(seen).await
    }

    async fn follow(&mut self, mut seen: Seen) -> Seen {
        for _ in 0..10 {
            let location = seen.answer.header("location").to_owned();
            let at_once = seen.answer.header("refresh").strip_prefix("0; url=");
            let location = at_once.map_or(location, str::to_owned);
            if at_once.is_none() && seen.status() != 303 || !location.starts_with('/') {
                return seen;
            }
            seen = self.request("GET", &location, &[], String::new()).await;
        }
        panic!("sent around in circles: {}", seen.path);
    }
}

/// What a browser sees.
struct Seen {
    path: String,
    answer: RawAnswer,
}

impl Seen {
    fn status(&self) -> u16 {
        self.answer.parts.status.as_u16()
    }

    fn body(&self) -> String {
        String::from_utf8(self.answer.bytes.to_vec()).expect("text")
    }

    #[track_caller]
    fn title(&self) -> String {
        let body = self.body();
        let title = find(&body, "<h1>(.*?)</h1>");
        title.unwrap_or_else(|| panic!("no page: {} {}", self.status(), body))
    }

    /// Where the browser is sent, off the server.
    #[track_caller]
    fn sent_to(&self) -> &str {
        let location = self.answer.header("location");
        let body = self.body();
        assert!(self.status() == 303 && location.contains(':'), "{}: {body}", self.status());
        location
    }

    /// The method, the address and the hidden fields of a form.
    #[track_caller]
    fn form(&self, number: usize) -> (String, Vec<(String, String)>) {
        let body = self.body();
        let forms = Regex::new("(?s)<form method=\"post\" action=\"([^\"]*)\">(.*?)</form>");
        let forms = forms.expect("an expression");
        let form = forms.captures_iter(&body).nth(number);
        let form = form.unwrap_or_else(|| panic!("no form: {}", self.body()));
        let hidden = Regex::new(
            "type=\"hidden\" name=\"([^\"]*)\" (?:autocomplete=\"[^\"]*\" )?value=\"([^\"]*)\"",
        );
        let hidden = hidden.expect("an expression");
        let fields = hidden.captures_iter(&form[2]);
        let fields = fields.map(|field| (plain(&field[1]), plain(&field[2])));
        (plain(&form[1]), fields.collect())
    }

    /// Fills in and sends a form.
    async fn submit(&self, browser: &mut Browser, number: usize, fields: &[(&str, &str)]) -> Self {
        let seen = self.send(browser, number, fields).await;
        browser.follow(seen).await
    }

    /// The same without looking where the answer leads.
    async fn send(&self, browser: &mut Browser, number: usize, fields: &[(&str, &str)]) -> Self {
        let (action, hidden) = self.form(number);
        let hidden = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let all: Vec<_> = hidden.chain(fields.iter().copied()).collect();
        browser.request("POST", &action, &[FORM], query(&all)).await
    }
}

fn find(text: &str, pattern: &str) -> Option<String> {
    let pattern = Regex::new(pattern).expect("an expression");
    pattern.captures(text).map(|found| plain(&found[1]))
}

/// HTML as text.
fn plain(html: &str) -> String {
    html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}
