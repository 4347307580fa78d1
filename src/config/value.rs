//! The kinds of values a setting can have, and how they are read and written.

mod account;
mod acme;
mod address;
mod antispam;
mod bind;
mod contact;
mod expiry;
mod file;
mod matrix;
mod proxy;
mod secret;

use std::fmt;

use toml::{Value, de::DeValue};

pub use self::{
    account::*, acme::*, address::*, antispam::*, bind::*, contact::*, expiry::*, file::*,
    matrix::*, proxy::*, secret::*,
};

/// A value as a source gives it.
pub(super) enum RawSetting<'a> {
    /// From the file.
    Toml(&'a DeValue<'a>),
    /// From the environment or a flag.
    Text(&'a str),
}

impl RawSetting<'_> {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.trim()),
            Self::Toml(DeValue::String(text)) => Some(text),
            Self::Toml(_) => None,
        }
    }
}

impl fmt::Display for RawSetting<'_> {
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
    fn read(given: &RawSetting<'_>) -> Option<Self>;
    /// The value as it is written in the file.
    fn to_toml(&self) -> Value;
}

/// A setting whose values are words.
macro_rules! words {
    ($type:ident, $allowed:literal, $($variant:ident = $word:literal),+) => {
        impl Setting for $type {
            const ALLOWED: &'static str = $allowed;
            const OPTIONAL: &'static str = concat!("\"off\", ", $allowed);

            fn read(given: &RawSetting<'_>) -> Option<Self> {
                match given.text()? {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn to_toml(&self) -> Value {
                let word = match self {
                    $(Self::$variant => $word,)+
                };
                Value::String(word.to_owned())
            }
        }
    };
}

pub(super) use words;

impl Setting for bool {
    const ALLOWED: &'static str = "true or false";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given {
            RawSetting::Toml(DeValue::Boolean(truth)) => Some(*truth),
            RawSetting::Text(text) => text.trim().parse().ok(),
            RawSetting::Toml(_) => None,
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

            fn read(given: &RawSetting<'_>) -> Option<Self> {
                match given {
                    RawSetting::Toml(DeValue::Integer(number)) => {
                        Self::from_str_radix(number.as_str(), number.radix()).ok()
                    }
                    RawSetting::Text(text) => text.trim().replace('_', "").parse().ok(),
                    RawSetting::Toml(_) => None,
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

/// A list, which is empty only where that means something; in the environment its values stand
/// between commas.
impl<T: Setting> Setting for Vec<T> {
    const ALLOWED: &'static str = T::ALLOWED;
    const SECRET: bool = T::SECRET;

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let values: Self = match given {
            RawSetting::Toml(DeValue::Array(values)) => {
                values.iter().map(|value| T::read(&RawSetting::Toml(value.get_ref()))).collect()
            }
            RawSetting::Toml(_) => None,
            RawSetting::Text(text) => {
                text.split(',').map(|text| T::read(&RawSetting::Text(text))).collect()
            }
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given {
            RawSetting::Text(text) if matches!(text.trim(), "" | "none") => Some(Self::default()),
            RawSetting::Toml(DeValue::Array(values)) if values.is_empty() => Some(Self::default()),
            given => Vec::read(given).map(Self),
        }
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

impl Setting for String {
    const ALLOWED: &'static str = "a text";
    const LISTED: &'static str = "a list, which may be empty, of texts";
    const OPTIONAL: &'static str = "\"off\" or a text";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(Self::from)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.clone())
    }
}
