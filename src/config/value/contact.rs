//! How people are reached: by mail, by text message, through identity servers; and how the
//! administrators are.

use ruma::{OwnedServerName, OwnedUserId};
use toml::Value;

use super::{RawSetting, Setting, address::web_address, words};
use logcabin_record::address::Pattern;

/// How to reach the administrators of the server.
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
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

words!(
    MailSecurity,
    "\"none\", \"starttls\" or \"tls\"",
    None = "none",
    Starttls = "starttls",
    Tls = "tls"
);

/// An identity server: its name, and the address at which it is asked if that is not its name by
/// https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityServer {
    /// The name, as clients say it: a host, with a port if need be.
    pub name: Box<str>,
    /// Where its API is.
    pub url: url::Url,
    /// Whether the host is meant with any port.
    any_port: bool,
    written: Box<str>,
}

impl IdentityServer {
    /// The identity server that a client calls `name`, if this setting means it.
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

    fn read(given: &RawSetting<'_>) -> Option<Self> {
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

impl Setting for Pattern {
    const ALLOWED: &'static str =
        "a list of patterns such as \"email:*@example.org\" or \"msisdn:49*\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}
