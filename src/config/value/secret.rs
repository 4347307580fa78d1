//! Secrets, which no message quotes and `logcabin config` does not print.

use std::{fmt, path::PathBuf};

use toml::Value;

use super::{FilePath, RawSetting, Setting, WebUrl, address::web_address};

/// The path of a file that holds a secret and nothing else. Somebody may put the secret itself
/// here: no message quotes it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretFile(PathBuf);

impl SecretFile {
    /// What the file holds, without the end of its last line.
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        PathBuf::read(given).map(Self)
    }

    /// What names a file is printed.
    fn to_toml(&self) -> Value {
        if self.0.exists() { self.0.to_toml() } else { Value::String(HIDDEN.to_owned()) }
    }
}

/// What is printed in place of a secret.
const HIDDEN: &str = "(hidden)";

/// A text that is not shown again.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(Box<str>);

impl Hidden {
    /// The text.
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(|text| Self(text.into()))
    }

    /// It is printed for people to read.
    fn to_toml(&self) -> Value {
        Value::String(HIDDEN.to_owned())
    }
}

/// A JSON object in which texts hold places to be filled in. Some services want their key in it.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonTemplate(pub serde_json::Value);

impl JsonTemplate {
    /// What is sent unless something else is configured.
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(given.text()?).ok()?;
        value.is_object().then_some(Self(value))
    }

    fn to_toml(&self) -> Value {
        let is_usual = *self == Self::usual();
        Value::String(if is_usual { self.0.to_string() } else { HIDDEN.to_owned() })
    }
}

/// A secret that is shared with tools that create accounts. Anyone who guesses it is an
/// administrator, so it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSecret(pub Hidden);

impl SharedSecret {
    /// Whether it is so short that it may be guessed.
    pub fn is_short(&self) -> bool {
        self.0.expose().chars().count() < 16
    }
}

impl Setting for SharedSecret {
    const ALLOWED: &'static str = "a text that is not empty";
    const OPTIONAL: &'static str = "\"off\" or a text that is not empty";
    const SECRET: bool = true;

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        // What stands for it where it was printed is not taken for one.
        let is_one = |secret: &Hidden| !secret.expose().is_empty() && secret.expose() != HIDDEN;
        Hidden::read(given).filter(is_one).map(Self)
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

/// The address of a service on the web, in which a key may be: of a user, or in the query.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(url::Url);

impl SecretUrl {
    /// The address.
    pub const fn url(&self) -> &url::Url {
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        web_address(given.text()?).map(Self)
    }

    /// Where it is, and no more.
    fn to_toml(&self) -> Value {
        let origin = self.0.origin().ascii_serialization();
        let is_all = self.0.as_str().trim_end_matches('/') == origin;
        Value::String(if is_all { origin } else { format!("{origin} {HIDDEN}") })
    }
}
