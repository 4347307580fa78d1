//! The kinds of values a setting can have, and how they are read and written.

use std::{fmt, net::SocketAddr, path::PathBuf};

use ruma::{OwnedMxcUri, OwnedServerName, OwnedUserId, RoomVersionId};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use toml::{Value, de::DeValue};

use crate::{
    base::{glob::Glob, lifetime::Rule, network::Range, rate::Rate},
    record::room_version::is_for_new_rooms,
};

/// A value as a source gives it.
pub(super) enum Given<'a> {
    /// From the file.
    Toml(&'a DeValue<'a>),
    /// From the environment or a flag.
    Text(&'a str),
}

impl Given<'_> {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.trim()),
            Self::Toml(DeValue::String(text)) => Some(text),
            Self::Toml(_) => None,
        }
    }
}

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Toml(DeValue::String(std::borrow::Cow::Borrowed(text))) => {
                write!(f, "{text:?}")
            }
            Self::Toml(DeValue::String(text)) => write!(f, "{text:?}"),
            Self::Toml(DeValue::Integer(number)) => write!(f, "{number}"),
            Self::Toml(DeValue::Float(number)) => write!(f, "{number}"),
            Self::Toml(DeValue::Boolean(truth)) => write!(f, "{truth}"),
            Self::Toml(DeValue::Datetime(date)) => write!(f, "{date}"),
            Self::Toml(DeValue::Array(_)) => f.write_str("this list"),
            Self::Toml(DeValue::Table(_)) => f.write_str("a table"),
        }
    }
}

/// A type that settings can have.
pub(super) trait Setting: Sized {
    /// What values there are, as the end of "allowed is …".
    const ALLOWED: &'static str;
    /// The same of a list that may be empty.
    const LISTED: &'static str = Self::ALLOWED;
    /// The same of one that need not be there.
    const OPTIONAL: &'static str = Self::ALLOWED;
    /// Whether a value may be a secret, or hold one: then no message quotes what was given.
    const SECRET: bool = false;
    /// The value, or `None` if it is not one of this type.
    fn read(given: &Given<'_>) -> Option<Self>;
    /// The value as it is written in the file.
    fn to_toml(&self) -> Value;
}

impl Setting for bool {
    const ALLOWED: &'static str = "true or false";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given {
            Given::Toml(DeValue::Boolean(truth)) => Some(*truth),
            Given::Text(text) => text.trim().parse().ok(),
            Given::Toml(_) => None,
        }
    }

    fn to_toml(&self) -> Value {
        Value::Boolean(*self)
    }
}

macro_rules! whole_numbers {
    ($($type:ty),+) => {$(
        impl Setting for $type {
            const ALLOWED: &'static str = "a whole number";

            fn read(given: &Given<'_>) -> Option<Self> {
                match given {
                    Given::Toml(DeValue::Integer(number)) => {
                        Self::from_str_radix(number.as_str(), number.radix()).ok()
                    }
                    Given::Text(text) => text.trim().replace('_', "").parse().ok(),
                    Given::Toml(_) => None,
                }
            }

            fn to_toml(&self) -> Value {
                // Every bound in the list lies far below this one.
                Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }
        }
    )+};
}

whole_numbers!(u32, u64, usize);

impl Setting for PathBuf {
    const ALLOWED: &'static str = "the path of a file or directory";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(Self::from)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.display().to_string())
    }
}

impl Setting for OwnedServerName {
    const ALLOWED: &'static str = "a host name or address, with a port if need be, such as \
                                   \"example.org\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text().and_then(|text| Self::try_from(text).ok())
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl Setting for SocketAddr {
    const ALLOWED: &'static str = "a list of addresses with ports, such as \"127.0.0.1:8008\" or \
                                   \"[::]:8008\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// A list, which is empty only where that means something; in the environment its values stand
/// between commas.
impl<T: Setting> Setting for Vec<T> {
    const ALLOWED: &'static str = T::ALLOWED;
    const SECRET: bool = T::SECRET;

    fn read(given: &Given<'_>) -> Option<Self> {
        let values: Self = match given {
            Given::Toml(DeValue::Array(values)) => {
                values.iter().map(|value| T::read(&Given::Toml(value.get_ref()))).collect()
            }
            Given::Toml(_) => None,
            Given::Text(text) => text.split(',').map(|text| T::read(&Given::Text(text))).collect(),
        }?;
        (!values.is_empty()).then_some(values)
    }

    fn to_toml(&self) -> Value {
        Value::Array(self.iter().map(Setting::to_toml).collect())
    }
}

/// What need not be there: "off" if it is not.
impl<T: Setting> Setting for Option<T> {
    const ALLOWED: &'static str = T::OPTIONAL;
    const SECRET: bool = T::SECRET;

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text() {
            Some("off") => Some(None),
            Some("") => None,
            _ => T::read(given).map(Some),
        }
    }

    fn to_toml(&self) -> Value {
        self.as_ref().map_or_else(|| Value::String("off".to_owned()), Setting::to_toml)
    }
}

/// The path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl Setting for FilePath {
    const ALLOWED: &'static str = "the path of a file";
    const LISTED: &'static str = "a list, which may be empty, of the paths of files";
    const OPTIONAL: &'static str = "\"off\" or the path of a file";

    fn read(given: &Given<'_>) -> Option<Self> {
        PathBuf::read(given).map(Self)
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

/// The path of a file that holds a secret and nothing else. Somebody may put the secret itself
/// here: no message quotes it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretFile(PathBuf);

impl SecretFile {
    /// What the file holds, without the end of its last line.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self) -> std::io::Result<String> {
        let text = std::fs::read_to_string(&self.0)?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl fmt::Debug for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Setting for SecretFile {
    const ALLOWED: &'static str = FilePath::ALLOWED;
    const OPTIONAL: &'static str = FilePath::OPTIONAL;
    const SECRET: bool = true;

    fn read(given: &Given<'_>) -> Option<Self> {
        PathBuf::read(given).map(Self)
    }

    /// What names a file is printed.
    fn to_toml(&self) -> Value {
        if self.0.exists() { self.0.to_toml() } else { Value::String(HIDDEN.to_owned()) }
    }
}

/// A list that may be empty; in the environment its values stand between commas, and `none`, or
/// nothing, is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(values: Vec<T>) -> Self {
        Self(values)
    }
}

impl<T> std::ops::Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Setting> Setting for List<T> {
    const ALLOWED: &'static str = T::LISTED;
    const SECRET: bool = T::SECRET;

    fn read(given: &Given<'_>) -> Option<Self> {
        match given {
            Given::Text(text) if matches!(text.trim(), "" | "none") => Some(Self::default()),
            Given::Toml(DeValue::Array(values)) if values.is_empty() => Some(Self::default()),
            given => Vec::read(given).map(Self),
        }
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

impl Setting for Range {
    const ALLOWED: &'static str =
        "an address, or a range of them, such as \"10.0.0.0/8\" or \"fd00::/8\"";
    const LISTED: &'static str = "a list, which may be empty, of addresses, or ranges of them, such as \
                                  \"10.0.0.0/8\" or \"fd00::/8\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// Where browsers may be sent with a login: an address and all that begins with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectPrefix(reqwest::Url);

impl RedirectPrefix {
    /// Whether `url` is this address or one below it: the scheme, host and port are the same, and
    /// the path continues it at a slash.
    #[must_use]
    pub fn covers(&self, url: &reqwest::Url) -> bool {
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

    fn read(given: &Given<'_>) -> Option<Self> {
        let url: reqwest::Url = given.text()?.parse().ok()?;
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
    #[must_use]
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

    fn read(given: &Given<'_>) -> Option<Self> {
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

/// What the paths serve that need no access token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unauthenticated {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// What was uploaded before this moment, in milliseconds since the Unix epoch.
    Before(u64),
}

impl Unauthenticated {
    /// Whether they serve what was uploaded at this time.
    #[must_use]
    pub const fn serves(self, time_ms: u64) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Before(moment) => time_ms < moment,
        }
    }
}

impl Setting for Unauthenticated {
    const ALLOWED: &'static str = "\"none\", \"all\" or a moment such as \"2026-01-31T12:00:00Z\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text()? {
            "none" => Some(Self::None),
            "all" => Some(Self::All),
            moment => {
                let moment = OffsetDateTime::parse(moment, &Rfc3339).ok()?;
                let ms = moment.unix_timestamp_nanos() / 1_000_000;
                u64::try_from(ms).ok().map(Self::Before)
            }
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::None => "none".to_owned(),
            Self::All => "all".to_owned(),
            Self::Before(ms) => {
                let nanoseconds = i128::from(*ms) * 1_000_000;
                let moment = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).ok();
                moment.and_then(|moment| moment.format(&Rfc3339).ok()).unwrap_or_default()
            }
        })
    }
}

/// What the paths of the API begin with: one or more segments, such as `/_matrix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPrefix(Box<str>);

impl PathPrefix {
    pub(super) fn new(prefix: &str) -> Self {
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

    fn read(given: &Given<'_>) -> Option<Self> {
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
fn web_address(text: &str) -> Option<reqwest::Url> {
    let url = reqwest::Url::parse(text).ok()?;
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

    fn read(given: &Given<'_>) -> Option<Self> {
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

    fn read(given: &Given<'_>) -> Option<Self> {
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

/// How to reach whoever runs the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminContact {
    /// It is not said.
    None,
    /// By mail to this address.
    Mail(Box<str>),
    /// As this user, who may be on another server.
    User(OwnedUserId),
    /// As this page says.
    Page(Box<str>),
}

impl AdminContact {
    /// The contact as a URI, if there is one.
    #[must_use]
    pub fn uri(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Mail(address) => Some(format!("mailto:{address}")),
            Self::User(user_id) => Some(user_id.matrix_uri(false).to_string()),
            Self::Page(page) => Some(page.to_string()),
        }
    }
}

impl Setting for AdminContact {
    const ALLOWED: &'static str = "\"none\", an address such as \"mailto:admin@example.org\" or \
                                   \"https://example.org/help\", or a user id such as \
                                   \"@admin:example.org\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        let text = given.text()?;
        if text == "none" {
            return Some(Self::None);
        }
        if let Some(address) = text.strip_prefix("mailto:") {
            let (local, domain) = address.rsplit_once('@')?;
            let plain = |c: char| c.is_ascii_graphic() && !"?&#%<>\"".contains(c);
            let fine = !local.is_empty() && !domain.is_empty() && address.chars().all(plain);
            return fine.then(|| Self::Mail(address.into()));
        }
        if text.starts_with('@') {
            return OwnedUserId::try_from(text).ok().map(Self::User);
        }
        web_address(text).map(|_| Self::Page(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::None => "none".to_owned(),
            Self::Mail(address) => format!("mailto:{address}"),
            Self::User(user_id) => user_id.to_string(),
            Self::Page(page) => page.to_string(),
        })
    }
}

/// Whether anyone may create an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRegistration {
    /// Only while the server listens on loopback addresses alone.
    Auto,
    /// Yes.
    Yes,
    /// No.
    No,
}

impl Setting for OpenRegistration {
    const ALLOWED: &'static str = "\"auto\", true or false";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text() {
            Some("auto") => Some(Self::Auto),
            _ => bool::read(given).map(|open| if open { Self::Yes } else { Self::No }),
        }
    }

    fn to_toml(&self) -> Value {
        match self {
            Self::Auto => Value::String("auto".to_owned()),
            Self::Yes => Value::Boolean(true),
            Self::No => Value::Boolean(false),
        }
    }
}

/// How long something is kept before it is erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseAfter {
    /// It is never erased.
    Off,
    /// This many seconds.
    Seconds(u32),
}

impl Setting for EraseAfter {
    const ALLOWED: &'static str = "\"off\" or a whole number";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text() {
            Some("off") => Some(Self::Off),
            _ => u32::read(given).map(Self::Seconds),
        }
    }

    fn to_toml(&self) -> Value {
        match self {
            Self::Off => Value::String("off".to_owned()),
            Self::Seconds(seconds) => seconds.to_toml(),
        }
    }
}

impl Setting for Rule {
    const ALLOWED: &'static str = "a list of rules such as \"!room:example.org * 604800\", \
                                   \"* m.room.encrypted 2592000\" or \"!room:example.org * off\" \
                                   (none in the environment: \"none\")";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// Where the archive of the log is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveDir {
    /// The directory `archive` in the data directory.
    Auto,
    /// Nowhere: there is no archive.
    Off,
    /// Here.
    Path(PathBuf),
}

impl Setting for ArchiveDir {
    const ALLOWED: &'static str = "\"auto\", \"off\" or the path of a directory";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text()? {
            "" => None,
            "auto" => Some(Self::Auto),
            "off" => Some(Self::Off),
            path => Some(Self::Path(path.into())),
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::Path(path) => path.display().to_string(),
        })
    }
}

impl Setting for String {
    const ALLOWED: &'static str = "a text";
    const OPTIONAL: &'static str = "\"off\" or a text";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(Self::from)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.clone())
    }
}

/// What is before the colon of a user id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Localpart(Box<str>);

impl Localpart {
    /// This one, which is to be such.
    pub(super) fn new(localpart: &str) -> Self {
        Self(localpart.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Setting for Localpart {
    const ALLOWED: &'static str = "a user name, of a-z, 0-9 and the characters . _ = - / +";
    const OPTIONAL: &'static str =
        "\"off\" or a user name, of a-z, 0-9 and the characters . _ = - / +";

    fn read(given: &Given<'_>) -> Option<Self> {
        let valid =
            |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '=' | '-' | '/' | '+');
        let text = given.text()?;
        (!text.is_empty() && text.len() <= 128 && text.chars().all(valid)).then(|| Self::new(text))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// A version of rooms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomVersion(pub RoomVersionId);

impl Setting for RoomVersion {
    const ALLOWED: &'static str = "a room version, from \"3\" to \"12\" (1 and 2 are too old)";
    const OPTIONAL: &'static str = "\"off\" or a room version, from \"3\" to \"12\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        let version = RoomVersionId::try_from(given.text()?).ok()?;
        is_for_new_rooms(&version).then_some(Self(version))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// The address of an uploaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MxcAddress(pub OwnedMxcUri);

impl Setting for MxcAddress {
    const ALLOWED: &'static str =
        "the address of an uploaded file, such as \"mxc://example.org/abc\"";
    const OPTIONAL: &'static str =
        "\"off\" or the address of an uploaded file, such as \"mxc://example.org/abc\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        let address = OwnedMxcUri::from(given.text()?);
        address.is_valid().then_some(Self(address))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// What is printed in place of a secret.
const HIDDEN: &str = "(hidden)";

/// A text that is not shown again.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(Box<str>);

impl Hidden {
    /// The text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Setting for Hidden {
    const ALLOWED: &'static str = "a text, which is not shown again";
    const OPTIONAL: &'static str = "\"off\" or a text, which is not shown again";
    const SECRET: bool = true;

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(|text| Self(text.into()))
    }

    /// It is printed for people to read.
    fn to_toml(&self) -> Value {
        Value::String(HIDDEN.to_owned())
    }
}

/// How a connection to a mail server is kept from being listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailSecurity {
    /// It is not.
    None,
    /// It begins in the clear, and must then change to TLS.
    Starttls,
    /// TLS from the first byte.
    Tls,
}

impl Setting for MailSecurity {
    const ALLOWED: &'static str = "\"none\", \"starttls\" or \"tls\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text()? {
            "none" => Some(Self::None),
            "starttls" => Some(Self::Starttls),
            "tls" => Some(Self::Tls),
            _ => None,
        }
    }

    fn to_toml(&self) -> Value {
        let word = match self {
            Self::None => "none",
            Self::Starttls => "starttls",
            Self::Tls => "tls",
        };
        Value::String(word.to_owned())
    }
}

/// A JSON object in which texts hold places to be filled in. Some services want their key in it.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonTemplate(pub serde_json::Value);

impl JsonTemplate {
    /// What is sent unless something else is configured.
    #[must_use]
    pub fn usual() -> Self {
        Self(serde_json::json!({ "to": "+{number}", "text": "{text}" }))
    }
}

impl fmt::Debug for JsonTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Setting for JsonTemplate {
    const ALLOWED: &'static str = "a JSON object, which is not shown again";
    const SECRET: bool = true;

    fn read(given: &Given<'_>) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(given.text()?).ok()?;
        value.is_object().then_some(Self(value))
    }

    fn to_toml(&self) -> Value {
        let is_usual = *self == Self::usual();
        Value::String(if is_usual { self.0.to_string() } else { HIDDEN.to_owned() })
    }
}

/// An identity server: its name, and the address at which it is asked if that is not its name by
/// https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityServer {
    /// The name, as clients say it: a host, with a port if need be.
    pub name: Box<str>,
    /// Where its API is.
    pub url: reqwest::Url,
    /// Whether the host is meant with any port.
    any_port: bool,
    written: Box<str>,
}

impl IdentityServer {
    /// The identity server that a client calls `name`, if this setting means it.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Self> {
        if self.name.eq_ignore_ascii_case(name) {
            return Some(self.clone());
        }
        let full = OwnedServerName::try_from(name).ok().filter(|_| self.any_port)?;
        let url = web_address(&format!("https://{name}"))?;
        let is_host = full.host().eq_ignore_ascii_case(&self.name);
        is_host.then(|| Self { name: name.into(), url, any_port: false, ..self.clone() })
    }
}

impl Setting for IdentityServer {
    const ALLOWED: &'static str = "a list of host names such as \"id.example.org\" or, with any \
                                   port, \"id.example.org:*\", or of names with addresses such as \
                                   \"id.example.org=http://10.0.0.3:8090\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        let written = given.text()?;
        let (name, any_port) = match written.strip_suffix(":*") {
            Some(host) => (host, true),
            None => (written, false),
        };
        let (name, url) = match name.split_once('=') {
            Some(_) if any_port => return None,
            Some((name, url)) => (name, web_address(url)?),
            None => (name, web_address(&format!("https://{name}"))?),
        };
        let parsed = OwnedServerName::try_from(name).ok()?;
        if any_port && parsed.port().is_some() {
            return None;
        }
        Some(Self { name: name.into(), url, any_port, written: written.into() })
    }

    fn to_toml(&self) -> Value {
        Value::String(self.written.to_string())
    }
}

impl Setting for crate::record::address::Pattern {
    const ALLOWED: &'static str =
        "a list of patterns such as \"email:*@example.org\" or \"msisdn:49*\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// A user whose requests have a limit of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRate {
    /// The user.
    pub user_id: OwnedUserId,
    /// The limit of all their limited requests together.
    pub rate: OwnRate,
}

/// The limit of one user's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRate {
    /// None.
    Unlimited,
    /// This one, instead of any other.
    Rate(Rate),
}

impl std::str::FromStr for UserRate {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (user_id, rate) = text.trim().split_once(' ').ok_or(())?;
        let rate = match rate.trim() {
            "off" => OwnRate::Unlimited,
            rate => OwnRate::Rate(rate.parse()?),
        };
        Ok(Self { user_id: OwnedUserId::try_from(user_id).map_err(|_| ())?, rate })
    }
}

impl Setting for UserRate {
    const ALLOWED: &'static str = "a list of users, each with a rate or \"off\", such as \
                                   \"@bot:example.org 100/s burst 1000\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(match self.rate {
            OwnRate::Unlimited => format!("{} off", self.user_id),
            OwnRate::Rate(rate) => format!("{} {rate}", self.user_id),
        })
    }
}

/// How long something is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It does not expire.
    Never,
    /// This many seconds.
    Seconds(u32),
}

impl Lifetime {
    /// When what began at `begun_ms` ends, in milliseconds; `None` if it does not.
    #[must_use]
    pub fn end_ms(self, begun_ms: u64) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Seconds(seconds) => Some(begun_ms.saturating_add(u64::from(seconds) * 1000)),
        }
    }
}

impl Setting for Lifetime {
    const ALLOWED: &'static str = "\"never\" or a whole number from 1 up";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text() {
            Some("never") => Some(Self::Never),
            _ => u32::read(given).filter(|seconds| *seconds > 0).map(Self::Seconds),
        }
    }

    fn to_toml(&self) -> Value {
        match self {
            Self::Never => Value::String("never".to_owned()),
            Self::Seconds(seconds) => seconds.to_toml(),
        }
    }
}

/// A password that nobody may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedPassword(pub Box<str>);

impl Setting for DeniedPassword {
    const ALLOWED: &'static str = "a list of passwords";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(|text| Self(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

impl Setting for Rate {
    const ALLOWED: &'static str = "so many in a second (s), minute (m) or hour (h), and so many at \
                                    once, such as \"10/s burst 100\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// A secret that others who make accounts know. Whoever guesses it is an administrator: it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSecret(pub Hidden);

impl SharedSecret {
    /// Whether it is so short that it may be guessed.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.expose().chars().count() < 16
    }
}

impl Setting for SharedSecret {
    const ALLOWED: &'static str = "a text that is not empty";
    const OPTIONAL: &'static str = "\"off\" or a text that is not empty";
    const SECRET: bool = true;

    fn read(given: &Given<'_>) -> Option<Self> {
        // What stands for it where it was printed is not taken for one.
        let is_one = |secret: &Hidden| !secret.expose().is_empty() && secret.expose() != HIDDEN;
        Hidden::read(given).filter(is_one).map(Self)
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

/// The address of something on the web.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebUrl(Box<str>);

impl WebUrl {
    pub(super) fn new(url: &str) -> Self {
        Self(url.into())
    }

    /// The address, taken apart.
    ///
    /// # Errors
    /// When it is none, which none that was configured is.
    pub fn url(&self) -> Result<reqwest::Url, String> {
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

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text().filter(|text| web_address(text).is_some()).map(Self::new)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// The address of a service on the web, in which a key may be: of a user, or in the query.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(reqwest::Url);

impl SecretUrl {
    /// The address.
    #[must_use]
    pub const fn url(&self) -> &reqwest::Url {
        &self.0
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Setting for SecretUrl {
    const ALLOWED: &'static str = WebUrl::ALLOWED;
    const OPTIONAL: &'static str = WebUrl::OPTIONAL;
    const SECRET: bool = true;

    fn read(given: &Given<'_>) -> Option<Self> {
        web_address(given.text()?).map(Self)
    }

    /// Where it is, and no more.
    fn to_toml(&self) -> Value {
        let origin = self.0.origin().ascii_serialization();
        let is_all = self.0.as_str().trim_end_matches('/') == origin;
        Value::String(if is_all { origin } else { format!("{origin} {HIDDEN}") })
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

    fn read(given: &Given<'_>) -> Option<Self> {
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

/// A public ed25519 key that there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// There is none.
    None,
    /// This one, in unpadded base64.
    Key(Box<str>),
}

impl Setting for PublicKey {
    const ALLOWED: &'static str = "\"none\" or an ed25519 key of 43 characters in base64";

    fn read(given: &Given<'_>) -> Option<Self> {
        use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
        let text = given.text()?;
        if text == "none" {
            return Some(Self::None);
        }
        let key = STANDARD_NO_PAD.decode(text).ok()?;
        (key.len() == 32).then(|| Self::Key(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::None => "none".to_owned(),
            Self::Key(key) => key.to_string(),
        })
    }
}

/// What a newcomer must do: one of these, as they choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement(pub Vec<RegistrationStage>);

impl Default for Requirement {
    fn default() -> Self {
        Self(vec![RegistrationStage::Dummy])
    }
}

/// One thing that a newcomer may have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationStage {
    /// Nothing.
    Dummy,
    /// Show a registration token.
    Token,
    /// Pass the captcha.
    Captcha,
    /// Agree to documents.
    Terms,
    /// Show that a mail address is theirs.
    Email,
    /// Show that a phone number is theirs.
    Msisdn,
}

impl RegistrationStage {
    const ALL: [Self; 6] =
        [Self::Dummy, Self::Token, Self::Captcha, Self::Terms, Self::Email, Self::Msisdn];

    /// What it is called in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dummy => "dummy",
            Self::Token => "token",
            Self::Captcha => "captcha",
            Self::Terms => "terms",
            Self::Email => "email",
            Self::Msisdn => "msisdn",
        }
    }
}

impl Setting for Requirement {
    const ALLOWED: &'static str = "a list of \"dummy\", \"token\", \"captcha\", \"terms\", \"email\" \
                                   and \"msisdn\", with | between those of which one is enough";

    fn read(given: &Given<'_>) -> Option<Self> {
        let stage = |name: &str| {
            RegistrationStage::ALL.into_iter().find(|stage| stage.as_str() == name.trim())
        };
        given.text()?.split('|').map(stage).collect::<Option<_>>().map(Self)
    }

    fn to_toml(&self) -> Value {
        let names: Vec<_> = self.0.iter().map(|stage| stage.as_str()).collect();
        Value::String(names.join("|"))
    }
}
