//! Names and addresses of hosts, and addresses on the web.

use std::{fmt, net::SocketAddr};

use ruma::OwnedServerName;
use toml::Value;

use super::{RawSetting, Setting};
use logcabin_base::{glob::Glob, network::Range};

impl Setting for OwnedServerName {
    const ALLOWED: &'static str = "a host name or address, with a port if need be, such as \
                                   \"example.org\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text().and_then(|text| Self::try_from(text).ok())
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl Setting for SocketAddr {
    const ALLOWED: &'static str = "a list of addresses with ports, such as \"127.0.0.1:8008\" or \
                                   \"[::]:8008\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl Setting for Range {
    const ALLOWED: &'static str =
        "an address, or a range of them, such as \"10.0.0.0/8\" or \"fd00::/8\"";
    const LISTED: &'static str = "a list, which may be empty, of addresses, or ranges of them, such as \
                                  \"10.0.0.0/8\" or \"fd00::/8\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// Where browsers may be sent with a login: an address and all that begins with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectPrefix(url::Url);

impl RedirectPrefix {
    /// Whether `url` is this address or one below it: the scheme, host and port are the same, and
    /// the path continues it at a slash.
    pub fn covers(&self, url: &url::Url) -> bool {
        let path = self.0.path().trim_end_matches('/');
        let same_place = self.0.scheme() == url.scheme()
            && self.0.host() == url.host()
            && self.0.port_or_known_default() == url.port_or_known_default()
            && url.username().is_empty()
            && url.password().is_none();
        same_place
            && url
                .path()
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl Setting for RedirectPrefix {
    const ALLOWED: &'static str =
        "an address such as \"https://app.example.org\" or \"org.example.app:/\"";
    const LISTED: &'static str = "a list, which may be empty, of addresses such as \
                                  \"https://app.example.org\" or \"org.example.app:/\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let url: url::Url = given.text()?.parse().ok()?;
        (url.query().is_none() && url.fragment().is_none()).then_some(Self(url))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// A pattern of addresses on the web: of hosts, such as `*.example.org`, or, with a slash, of hosts
/// with paths, such as `example.org/private/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPattern(Box<str>);

impl UrlPattern {
    /// Whether it matches an address of this host and path.
    pub fn matches(&self, host: &str, path: &str) -> bool {
        let pattern = Glob::new(&self.0);
        let is = |text: &str| pattern.as_ref().is_some_and(|pattern| pattern.is(text));
        if self.0.contains('/') { is(&format!("{host}{path}")) } else { is(host) }
    }
}

impl Setting for UrlPattern {
    const ALLOWED: &'static str = "a list of patterns such as \"*.example.org\" or \
                                   \"example.org/private/*\", without \"https://\" (none in the \
                                   environment: \"none\")";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"*?.-_~/:[]%+=&@,;".contains(&byte);
        let host = text.split('/').next()?;
        (!host.is_empty() && !text.contains("://") && text.bytes().all(fine))
            .then(|| Glob::new(text))
            .flatten()
            .map(|_| Self(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// What the paths of the API begin with: one or more segments, such as `/_matrix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPrefix(Box<str>);

impl PathPrefix {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(prefix.into())
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for PathPrefix {
    const ALLOWED: &'static str = "a list of paths that begin and do not end with a slash, such \
                                   as \"/_matrix\", of letters, digits and -._~";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        let fine = |segment: &str| {
            !segment.is_empty()
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
        };
        text.strip_prefix('/')?.split('/').all(fine).then(|| Self::new(text))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// The address of something on the web: http or https, and a host.
pub(super) fn web_address(text: &str) -> Option<url::Url> {
    let url = url::Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// Where the paths of an API begin: an address on the web, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(Box<str>);

impl std::ops::Deref for BaseUrl {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Setting for BaseUrl {
    const ALLOWED: &'static str = "an address such as \"https://matrix.example.org\"";
    const OPTIONAL: &'static str = "\"off\" or an address such as \"https://identity.example.org\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        let url = web_address(text)?;
        let plain = url.query().is_none() && url.fragment().is_none();
        plain.then(|| Self(text.trim_end_matches('/').into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// The address at which clients reach the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicUrl {
    /// Made from the first address the server listens on.
    Auto,
    /// This one.
    Url(BaseUrl),
}

impl Setting for PublicUrl {
    const ALLOWED: &'static str = "\"auto\" or an address such as \"https://matrix.example.org\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given.text()? {
            "auto" => Some(Self::Auto),
            _ => BaseUrl::read(given).map(Self::Url),
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::Url(url) => url.to_string(),
        })
    }
}

/// The address of something on the web.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebUrl(Box<str>);

impl WebUrl {
    pub(crate) fn new(url: &str) -> Self {
        Self(url.into())
    }

    /// The address, taken apart.
    pub fn url(&self) -> Result<url::Url, String> {
        web_address(&self.0).ok_or_else(|| format!("{} is not an address on the web", self.0))
    }
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for WebUrl {
    const ALLOWED: &'static str = "an address such as \"https://example.org/path\"";
    const OPTIONAL: &'static str = "\"off\" or an address such as \"https://example.org/path\"";
    const LISTED: &'static str =
        "a list, which may be empty, of addresses such as \"https://example.org/path\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text().filter(|text| web_address(text).is_some()).map(Self::new)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// The address of a service that speaks WebSocket (RFC 6455).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketUrl(Box<str>);

impl SocketUrl {
    /// The address at which it answers plain requests.
    pub fn for_requests(&self) -> Result<url::Url, String> {
        let http = self.0.strip_prefix("ws").map(|rest| format!("http{rest}"));
        http.as_deref().and_then(web_address).ok_or_else(|| format!("{self} is no address"))
    }
}

impl fmt::Display for SocketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for SocketUrl {
    const ALLOWED: &'static str = "an address such as \"wss://livekit.example.org\"";
    const OPTIONAL: &'static str = "\"off\" or an address such as \"wss://livekit.example.org\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        let is_socket = text.starts_with("wss://") || text.starts_with("ws://");
        let url = Self(text.into());
        let requests = url.for_requests().ok().filter(|_| is_socket)?;
        let is_plain = requests.query().is_none() && requests.fragment().is_none();
        (is_plain && requests.username().is_empty() && requests.password().is_none()).then_some(url)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// The address of a TURN or STUN server (RFC 7065, RFC 7064).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnUri(Box<str>);

impl fmt::Display for TurnUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for TurnUri {
    const ALLOWED: &'static str = "an address such as \"turn:turn.example.org?transport=udp\"";
    const LISTED: &'static str = "a list, which may be empty, of addresses such as \
                                  \"turn:turn.example.org?transport=udp\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        let (scheme, host) = text.split_once(':')?;
        let fine = matches!(scheme, "turn" | "turns" | "stun" | "stuns")
            && !host.is_empty()
            && !host.starts_with('/')
            && !host.contains(char::is_whitespace);
        fine.then(|| Self(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}
