//! The kinds of values a setting can have, and how they are read and written.

use std::{fmt, net::SocketAddr, path::PathBuf};

use ruma::OwnedServerName;
use toml::{Value, de::DeValue};

/// A value as a source gives it.
pub(super) enum Given<'a> {
    /// From the file.
    Toml(&'a DeValue<'a>),
    /// From the environment or a flag.
    Text(&'a str),
}

impl Given<'_> {
    fn text(&self) -> Option<&str> {
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
    const ALLOWED: &'static str = "the path of a directory";

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

/// A list is never empty; in the environment its values stand between commas.
impl<T: Setting> Setting for Vec<T> {
    const ALLOWED: &'static str = T::ALLOWED;

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

/// The path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl Setting for FilePath {
    const ALLOWED: &'static str = "the path of a file";
    const LISTED: &'static str = "a list, which may be empty, of the paths of files";

    fn read(given: &Given<'_>) -> Option<Self> {
        PathBuf::read(given).map(Self)
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

/// A list that may be empty; in the environment its values stand between commas, and there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Setting> Setting for List<T> {
    const ALLOWED: &'static str = T::LISTED;

    fn read(given: &Given<'_>) -> Option<Self> {
        match given {
            Given::Toml(DeValue::Array(values)) if values.is_empty() => Some(Self::default()),
            given => Vec::read(given).map(Self),
        }
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

/// Where browsers may be sent with a login: an address and all that begins with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectPrefix(reqwest::Url);

impl RedirectPrefix {
    /// Whether `url` is this address or one below it: the scheme, host and port are the same, and the
    /// path continues it at a slash.
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

/// The address at which clients reach the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicUrl {
    /// Made from the first address the server listens on.
    Auto,
    /// This one, without a slash at its end.
    Url(Box<str>),
}

impl Setting for PublicUrl {
    const ALLOWED: &'static str = "\"auto\" or an address such as \"https://matrix.example.org\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        let text = given.text()?;
        if text == "auto" {
            return Some(Self::Auto);
        }
        let uri: http::Uri = text.parse().ok()?;
        let web = matches!(uri.scheme_str(), Some("http" | "https"));
        (web && uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none())
            .then(|| Self::Url(text.trim_end_matches('/').into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::Url(url) => url.to_string(),
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

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text().map(str::to_owned)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.clone())
    }
}

/// A file that there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionalFile {
    /// There is none.
    Off,
    /// This one.
    Path(PathBuf),
}

impl Setting for OptionalFile {
    const ALLOWED: &'static str = "\"off\" or the path of a file";

    fn read(given: &Given<'_>) -> Option<Self> {
        match given.text()? {
            "" => None,
            "off" => Some(Self::Off),
            path => Some(Self::Path(path.into())),
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Off => "off".to_owned(),
            Self::Path(path) => path.display().to_string(),
        })
    }
}

/// The address of something on the web.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebUrl(Box<str>);

impl WebUrl {
    pub(super) fn new(url: &str) -> Self {
        Self(url.into())
    }
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for WebUrl {
    const ALLOWED: &'static str = "an address such as \"https://example.org/path\"";

    fn read(given: &Given<'_>) -> Option<Self> {
        let text = given.text()?;
        let uri: http::Uri = text.parse().ok()?;
        let web = matches!(uri.scheme_str(), Some("http" | "https"));
        (web && uri.host().is_some_and(|host| !host.is_empty())).then(|| Self::new(text))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
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
