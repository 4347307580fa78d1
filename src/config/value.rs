//! The kinds of values a setting can have, and how they are read and written.

use std::{fmt, net::SocketAddr, path::PathBuf};

use ruma::OwnedServerName;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use toml::{Value, de::DeValue};

use crate::{media::network::Range, push::glob::Glob};

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

/// A list that may be empty; in the environment its values stand between commas, and `none` is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Setting> Setting for List<T> {
    const ALLOWED: &'static str = T::ALLOWED;

    fn read(given: &Given<'_>) -> Option<Self> {
        match given {
            Given::Text(text) if text.trim() == "none" => Some(Self::default()),
            Given::Toml(DeValue::Array(values)) if values.is_empty() => Some(Self::default()),
            given => Vec::read(given).map(Self),
        }
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

impl Setting for Range {
    const ALLOWED: &'static str = "a list of addresses, or ranges of them, such as \"10.0.0.0/8\" or \
                                   \"fd00::/8\" (none in the environment: \"none\")";

    fn read(given: &Given<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// A pattern of addresses on the web: of hosts, such as `*.example.org`, or, with a slash, of hosts with
/// paths, such as `example.org/private/*`.
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
