//! OAuth clients as they describe themselves, and which descriptions this server accepts
//! (client-server API, "Client registration"; RFC 7591).

use std::{collections::BTreeMap, ops::RangeInclusive};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;
use url::Url;

use logcabin_base::limits;

/// Why a description is not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidClient {
    /// A redirect address is not allowed.
    #[error("{0}")]
    Redirect(String),
    /// Something else is not as it should be.
    #[error("{0}")]
    Metadata(String),
}

/// What a client runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplicationType {
    /// A web page.
    #[default]
    Web,
    /// An app.
    Native,
}

/// How a client proves who it is to the token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthMethod {
    /// Not at all: anyone can read what it holds.
    None,
    /// With its secret in the `Authorization` header.
    ClientSecretBasic,
    /// With its secret in the body.
    ClientSecretPost,
}

/// A way to get tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GrantType {
    /// With a code that a browser brings.
    #[serde(rename = "authorization_code")]
    AuthorizationCode,
    #[serde(rename = "refresh_token")]
    RefreshToken,
    /// With a code that the user typed into a browser elsewhere.
    #[serde(rename = "urn:ietf:params:oauth:grant-type:device_code")]
    DeviceCode,
}

impl GrantType {
    pub const ALL: [Self; 3] = [Self::AuthorizationCode, Self::RefreshToken, Self::DeviceCode];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AuthorizationCode => "authorization_code",
            Self::RefreshToken => "refresh_token",
            Self::DeviceCode => "urn:ietf:params:oauth:grant-type:device_code",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|grant_type| grant_type.as_str() == name)
    }
}

/// The members that may come in several languages: `client_name#de`.
const LOCALIZED: [&str; 4] = ["client_name", "logo_uri", "policy_uri", "tos_uri"];

/// A client's metadata (RFC 7591, section 2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientMetadata {
    pub application_type: ApplicationType,
    /// Its web page. All other addresses are on the same host or below.
    pub client_uri: String,
    pub grant_types: Vec<GrantType>,
    /// Where browsers may be sent back to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirect_uris: Vec<String>,
    /// What it can be sent there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_types: Vec<String>,
    pub token_endpoint_auth_method: AuthMethod,
    /// Its name, logo, policy and terms, with and without a language in the name.
    #[serde(flatten)]
    pub shown: BTreeMap<String, String>,
}

impl ClientMetadata {
    /// The description in a registration, without what this server does not know.
    pub fn parse(given: &Map<String, Value>) -> Result<Self, InvalidClient> {
        let wrong = |why: String| InvalidClient::Metadata(why);
        let text = |name: &str| match given.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(wrong(format!("`{name}` is not a string."))),
        };
        let list = |name: &str| match given.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(items)) => {
                let items = items.iter().map(|item| item.as_str().map(str::to_owned));
                let items: Option<Vec<String>> = items.collect();
                items.map(Some).ok_or_else(|| wrong(format!("`{name}` is not a list of strings.")))
            }
            Some(_) => Err(wrong(format!("`{name}` is not a list."))),
        };
        let application_type = match text("application_type")? {
            None | Some("web") => ApplicationType::Web,
            Some("native") => ApplicationType::Native,
            Some(_) => return Err(wrong("`application_type` is `web` or `native`.".to_owned())),
        };
        let client_uri = text("client_uri")?;
        let client_uri = client_uri.ok_or_else(|| wrong("`client_uri` is missing.".to_owned()))?;
        let base = Base::of(client_uri).map_err(|why| wrong(format!("`client_uri` {why}.")))?;
        let token_endpoint_auth_method = match text("token_endpoint_auth_method")? {
            Some("none") => AuthMethod::None,
            // RFC 7591, section 2.
            None | Some("client_secret_basic") => AuthMethod::ClientSecretBasic,
            Some("client_secret_post") => AuthMethod::ClientSecretPost,
            Some(_) => {
                let why = "`token_endpoint_auth_method` is `none`, `client_secret_basic` or \
                           `client_secret_post`.";
                return Err(wrong(why.to_owned()));
            }
        };
        let grant_types = match list("grant_types")? {
            None => vec![GrantType::AuthorizationCode],
            Some(names) => {
                let known = names.iter().filter_map(|name| GrantType::named(name));
                let mut known: Vec<_> = known.collect();
                known.sort_unstable();
                known.dedup();
                known
            }
        };
        let by_browser = grant_types.contains(&GrantType::AuthorizationCode);
        if !by_browser && !grant_types.contains(&GrantType::DeviceCode) {
            let why = "`grant_types` has none by which a user can grant anything here.";
            return Err(wrong(why.to_owned()));
        }
        let response_types = list("response_types")?.unwrap_or_else(|| vec!["code".to_owned()]);
        if by_browser && !response_types.iter().any(|name| name == "code") {
            return Err(wrong("`response_types` lacks `code`.".to_owned()));
        }
        let response_types = if by_browser { vec!["code".to_owned()] } else { Vec::new() };
        let redirect_uris = list("redirect_uris")?.unwrap_or_default();
        if by_browser && redirect_uris.is_empty() {
            let why = "`redirect_uris` is missing.".to_owned();
            return Err(InvalidClient::Redirect(why));
        }
        if redirect_uris.len() > limits::OAUTH_REDIRECTS {
            let why = format!("There are more than {} addresses.", limits::OAUTH_REDIRECTS);
            return Err(InvalidClient::Redirect(why));
        }
        for uri in &redirect_uris {
            base.check_redirect(uri, application_type)
                .map_err(|why| InvalidClient::Redirect(format!("One of `redirect_uris` {why}.")))?;
        }
        let shown = shown(given, &base)?;
        Ok(Self {
            application_type,
            client_uri: client_uri.to_owned(),
            grant_types,
            redirect_uris,
            response_types,
            token_endpoint_auth_method,
            shown,
        })
    }

    /// A member that may come in several languages, in the first of `languages` that it has.
    pub fn in_language(&self, name: &str, languages: &[&str]) -> Option<&str> {
        let of = |language: &str| {
            let key = |language: &str| format!("{name}#{language}");
            let whole = self.shown.get(&key(language));
            whole.or_else(|| self.shown.get(&key(language.split('-').next()?)))
        };
        let found = languages.iter().find_map(|language| of(language));
        found.or_else(|| self.shown.get(name)).map(String::as_str)
    }

    /// The host of its web page.
    pub fn host(&self) -> &str {
        let rest = self.client_uri.split_once("://").map_or("", |(_, rest)| rest);
        rest.split(['/', '?']).next().unwrap_or_default()
    }

    /// Whether a browser may be sent to `asked`: it is a registered address, character for
    /// character, except that an app's address on its own machine may have any port (RFC 8252,
    /// section 7.3).
    pub fn allows_redirect(&self, asked: &str) -> bool {
        self.redirect_uris.iter().any(|uri| {
            uri == asked
                || self.application_type == ApplicationType::Native
                    && without_port(asked).as_deref() == Some(uri)
        })
    }
}

/// An address on the machine itself without its port; `None` for any other address.
fn without_port(uri: &str) -> Option<String> {
    let rest = uri.strip_prefix("http://")?;
    let host = LOOPBACK.into_iter().find(|host| rest.starts_with(host))?;
    let rest = rest.strip_prefix(host)?.strip_prefix(':')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (port, path) = rest.split_at(end);
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let ends = (path.is_empty() || path.starts_with(['/', '?'])) && is_plain(uri);
    (is_port && ends && Url::parse(uri).is_ok()).then(|| format!("http://{host}{path}"))
}

/// The hosts of addresses on the machine itself.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The host that all addresses of a client have in common.
struct Base {
    host: String,
}

/// An address of the web, over TLS, without a user.
fn https(uri: &str) -> Result<Url, &'static str> {
    if uri.len() > limits::OAUTH_URI_BYTES {
        return Err("is too long");
    }
    if !is_plain(uri) {
        return Err("has characters that an address cannot have");
    }
    let url = Url::parse(uri).map_err(|_| "is not an address")?;
    if !uri.starts_with("https://") || url.host_str().is_none() {
        return Err("does not begin with https://");
    }
    if !url.username().is_empty() || url.password().is_some() || authority(uri).contains('@') {
        return Err("has a user or a password");
    }
    Ok(url)
}

/// Whether an address has only valid characters, which no program reads as others.
fn is_plain(uri: &str) -> bool {
    uri.bytes().all(|byte| byte.is_ascii_graphic() && !b"\\\"<>^`{|}".contains(&byte))
}

/// What is between the scheme and the path.
fn authority(uri: &str) -> &str {
    let rest = uri.split_once("://").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

impl Base {
    fn of(client_uri: &str) -> Result<Self, &'static str> {
        let url = https(client_uri)?;
        let host = url.host_str().unwrap_or_default().trim_end_matches('.').to_owned();
        // A top-level domain would cover the hosts of everyone.
        if !host.contains('.') && !host.starts_with('[') {
            return Err("has no domain of the client's own");
        }
        Ok(Self { host })
    }

    /// Whether an address is on the host or on one below it.
    fn covers(&self, url: &Url) -> bool {
        url.host_str().is_some_and(|host| {
            let below = host.strip_suffix(self.host.as_str());
            let is_name = url.domain().is_some();
            below.is_some_and(|below| below.is_empty() || is_name && below.ends_with('.'))
        })
    }

    fn check_redirect(&self, uri: &str, of: ApplicationType) -> Result<(), &'static str> {
        if uri.len() > limits::OAUTH_URI_BYTES {
            return Err("is too long");
        }
        if uri.contains('#') {
            return Err("has a fragment");
        }
        if uri.starts_with("https:") {
            let url = https(uri)?;
            return if self.covers(&url) { Ok(()) } else { Err("is not on the client's host") };
        }
        if of == ApplicationType::Web {
            return Err("does not begin with https://, which those of web clients do");
        }
        if let Some(rest) = uri.strip_prefix("http://") {
            let host = LOOPBACK.into_iter().find(|host| rest.starts_with(host));
            let rest = host.and_then(|host| rest.strip_prefix(host));
            let rest = rest.ok_or("begins with http:// and is not on the machine itself")?;
            if rest.starts_with(':') {
                return Err("has a port, which may be any when it is used");
            }
            let ends = rest.is_empty() || rest.starts_with(['/', '?']);
            return match Url::parse(uri) {
                Ok(_) if ends && is_plain(uri) => Ok(()),
                _ => Err("begins with http:// and is not on the machine itself"),
            };
        }
        self.check_scheme(uri)
    }

    /// A scheme of the app's own begins with the client's host, from back to front.
    fn check_scheme(&self, uri: &str) -> Result<(), &'static str> {
        let (scheme, rest) = uri.split_once(':').ok_or("is not an address")?;
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(valid) {
            return Err("is not an address");
        }
        if rest.starts_with("//") {
            return Err("has a host, which an app's own scheme cannot have");
        }
        let reversed: Vec<&str> = self.host.rsplit('.').collect();
        let reversed = reversed.join(".");
        let scheme = scheme.to_ascii_lowercase();
        let below = scheme.strip_prefix(&reversed);
        if !below.is_some_and(|below| below.is_empty() || below.starts_with('.')) {
            return Err("has a scheme that does not begin with the client's host, reversed");
        }
        let is_address = is_plain(uri) && Url::parse(uri).is_ok();
        if is_address { Ok(()) } else { Err("is not an address") }
    }
}

/// The members for people: names, and addresses on the client's host.
fn shown(
    given: &Map<String, Value>,
    base: &Base,
) -> Result<BTreeMap<String, String>, InvalidClient> {
    let wrong = |why: String| InvalidClient::Metadata(why);
    let mut shown = BTreeMap::new();
    for (key, value) in given {
        let (name, language) = match key.split_once('#') {
            Some((name, language)) => (name, Some(language)),
            None => (key.as_str(), None),
        };
        if !LOCALIZED.contains(&name) || value.is_null() {
            continue;
        }
        if language.is_some_and(|language| !is_language(language)) {
            return Err(wrong(format!("`{name}` is in an invalid language.")));
        }
        let value = value.as_str().ok_or_else(|| wrong(format!("`{name}` is not a string.")))?;
        let value = if name == "client_name" {
            let name: String = value.chars().filter(|c| is_visible(*c)).collect();
            let name = name.trim().to_owned();
            if name.is_empty() {
                continue;
            }
            if name.chars().count() > limits::OAUTH_NAME_CHARS {
                return Err(wrong("`client_name` is too long.".to_owned()));
            }
            name
        } else {
            let url = https(value).map_err(|why| wrong(format!("`{name}` {why}.")))?;
            if !base.covers(&url) {
                return Err(wrong(format!("`{name}` is not on the client's host.")));
            }
            value.to_owned()
        };
        shown.insert(key.clone(), value);
    }
    if shown.len() > limits::OAUTH_SHOWN {
        return Err(wrong("There are too many translations.".to_owned()));
    }
    Ok(shown)
}

/// Characters without a width, and those that change the direction of the text around them.
const INVISIBLE: [RangeInclusive<char>; 4] = [
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
];

/// Whether a character of a name is visible and changes nothing around it.
fn is_visible(c: char) -> bool {
    !c.is_control() && !INVISIBLE.iter().any(|range| range.contains(&c))
}

fn is_language(tag: &str) -> bool {
    (1..=35).contains(&tag.len()) && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(changes: Value) -> Result<ClientMetadata, InvalidClient> {
        let mut given = json!({
            "client_name": "My App",
            "client_uri": "https://example.com/",
            "redirect_uris": ["https://app.example.com/callback"],
            "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
        });
        let given = given.as_object_mut().unwrap();
        for (name, value) in changes.as_object().unwrap() {
            given.insert(name.clone(), value.clone());
        }
        ClientMetadata::parse(given)
    }

    fn redirect(of: &str, uri: &str) -> Result<ClientMetadata, InvalidClient> {
        parsed(json!({ "application_type": of, "redirect_uris": [uri] }))
    }

    #[test]
    fn redirect_addresses_are_those_of_the_specification() {
        for uri in [
            "https://example.com/callback",
            "https://app.example.com/callback",
            "https://example.com:5173/?query=value",
        ] {
            redirect("web", uri).unwrap();
            redirect("native", uri).unwrap();
        }
        for uri in [
            "https://example.com/callback#fragment",
            "https://example.com/callback#",
            "http://example.com/callback",
            "http://localhost/",
            "https://localhost/callback",
            "https://ann@example.com/callback",
            "https://@example.com/callback",
            "https://example.com@evil.org/callback",
            "https://evil.org/?example.com",
            "https://evilexample.com/",
            "https://example.com.evil.org/",
            "https://example.com\\@evil.org/",
            "https://com/",
            "https:/example.com/",
            "javascript:alert(1)",
            "data:text/html,x",
            "",
            "/callback",
            "https://example.com/\nx",
        ] {
            let refused = redirect("web", uri);
            assert!(matches!(refused, Err(InvalidClient::Redirect(_))), "{uri}: {refused:?}");
        }
        for uri in [
            "com.example.app:/callback",
            "com.example:/",
            "com.example:callback",
            "http://localhost/callback",
            "http://127.0.0.1/callback",
            "http://[::1]/callback",
            "http://localhost",
        ] {
            redirect("native", uri).unwrap();
            assert!(redirect("web", uri).is_err(), "{uri}");
        }
        for uri in [
            "example:/callback",
            "com.example.app://callback",
            "com.examples:/callback",
            "com.evil:/callback",
            "https://localhost/callback",
            "http://localhost:1234/callback",
            "http://localhost.evil.org/",
            "http://localhost@evil.org/",
            "http://127.0.0.1.evil.org/",
            "http://example.com/",
            "com.example.app:/x y",
            "com.example.app:/#",
            "1com.example:/",
        ] {
            let refused = redirect("native", uri);
            assert!(matches!(refused, Err(InvalidClient::Redirect(_))), "{uri}: {refused:?}");
        }
    }

    #[test]
    fn an_address_must_match_exactly_but_for_the_port_on_the_machine_itself() {
        let web = redirect("web", "https://app.example.com/callback").unwrap();
        assert!(web.allows_redirect("https://app.example.com/callback"));
        for other in [
            "https://app.example.com/callback/",
            "https://app.example.com/callback?x=1",
            "https://app.example.com/",
            "https://APP.example.com/callback",
            "https://app.example.com:443/callback",
            "",
        ] {
            assert!(!web.allows_redirect(other), "{other}");
        }
        for host in LOOPBACK {
            let native = redirect("native", &format!("http://{host}/callback")).unwrap();
            assert!(native.allows_redirect(&format!("http://{host}/callback")));
            assert!(native.allows_redirect(&format!("http://{host}:53127/callback")));
            for other in [
                format!("http://{host}:53127/other"),
                format!("http://{host}:0/callback"),
                format!("http://{host}:99999/callback"),
                format!("http://{host}:1@evil.org/callback"),
                format!("http://{host}:/callback"),
                format!("https://{host}:1/callback"),
            ] {
                assert!(!native.allows_redirect(&other), "{other}");
            }
        }
        let bare = redirect("native", "http://localhost").unwrap();
        assert!(bare.allows_redirect("http://localhost:80"));
    }

    #[test]
    fn missing_members_have_defaults_and_unknown_ones_are_left_out() {
        let client = parsed(json!({
            "client_name#de": "Meine \u{202e}App", "tos_uri#fr": "https://example.com/fr",
            "grant_types": ["refresh_token", "authorization_code", "implicit"],
            "response_types": ["id_token", "code"], "software_id": "x",
        }));
        let client = client.unwrap();
        assert_eq!(client.application_type, ApplicationType::Web);
        assert_eq!(client.grant_types, [GrantType::AuthorizationCode, GrantType::RefreshToken]);
        assert_eq!(client.response_types, ["code"]);
        assert_eq!(client.in_language("client_name", &["de-CH"]), Some("Meine App"));
        assert_eq!(client.in_language("client_name", &["fr"]), Some("My App"));
        assert_eq!(client.in_language("tos_uri", &["en"]), None);
        assert_eq!(client.host(), "example.com");
        let secret = parsed(json!({ "token_endpoint_auth_method": null })).unwrap();
        assert_eq!(secret.token_endpoint_auth_method, AuthMethod::ClientSecretBasic);
        let device = parsed(json!({
            "grant_types": [GrantType::DeviceCode], "redirect_uris": null, "response_types": [],
        }));
        assert!(device.unwrap().redirect_uris.is_empty());
        let again = serde_json::to_value(&client).unwrap();
        assert_eq!(serde_json::from_value::<ClientMetadata>(again).unwrap(), client);
    }

    #[test]
    fn descriptions_that_do_not_fit_together_are_refused() {
        let many = vec!["https://example.com/"; limits::OAUTH_REDIRECTS + 1];
        for changes in [
            json!({ "client_uri": null }),
            json!({ "client_uri": "http://example.com/" }),
            json!({ "client_uri": "https://com/" }),
            json!({ "client_uri": "https://ann:x@example.com/" }),
            json!({ "client_uri": 7 }),
            json!({ "redirect_uris": [] }),
            json!({ "redirect_uris": "https://example.com/" }),
            json!({ "redirect_uris": [7] }),
            json!({ "redirect_uris": many }),
            json!({ "application_type": "desktop" }),
            json!({ "token_endpoint_auth_method": "private_key_jwt" }),
            json!({ "grant_types": ["implicit"] }),
            json!({ "grant_types": ["refresh_token"] }),
            json!({ "response_types": ["token"] }),
            json!({ "logo_uri": "https://evil.org/logo.png" }),
            json!({ "logo_uri": "http://example.com/logo.png" }),
            json!({ "policy_uri": "javascript:alert(1)" }),
            json!({ "client_name": "x".repeat(limits::OAUTH_NAME_CHARS + 1) }),
            json!({ "client_name": ["x"] }),
            json!({ "client_name#a b": "x" }),
        ] {
            assert!(parsed(changes.clone()).is_err(), "{changes}");
        }
    }
}
