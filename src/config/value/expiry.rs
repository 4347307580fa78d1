//! How long something lasts or is kept, and until when.

use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use toml::Value;

use super::{RawSetting, Setting};
use logcabin_base::lifetime::Rule;

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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
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
    pub fn end_ms(self, begun_ms: u64) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Seconds(seconds) => Some(begun_ms.saturating_add(u64::from(seconds) * 1000)),
        }
    }
}

impl Setting for Lifetime {
    const ALLOWED: &'static str = "\"never\" or a whole number from 1 up";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
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
