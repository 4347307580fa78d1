//! The values of the settings that make a server a node of a cluster.

use std::path::PathBuf;

use toml::Value;

use super::value::{RawSetting, Setting};

/// The address of a NATS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsServer(pub String);

impl Setting for NatsServer {
    const ALLOWED: &'static str = "an address such as \"nats://10.0.0.1:4222\"";
    const LISTED: &'static str =
        "a list, which may be empty, of addresses such as \"nats://10.0.0.1:4222\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?.trim();
        // `--log nats://n1,n2,n3` gives the scheme once.
        let url = if text.contains("://") { text.to_owned() } else { format!("nats://{text}") };
        let parsed = url::Url::parse(&url).ok()?;
        let is_nats = matches!(parsed.scheme(), "nats" | "tls" | "ws" | "wss");
        // A password would be shown with the settings: it belongs into the credentials.
        let is_plain = parsed.username().is_empty() && parsed.password().is_none();
        (is_nats && is_plain && parsed.host_str().is_some_and(|host| !host.is_empty()))
            .then_some(Self(url))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.clone())
    }
}

/// The name of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamName(pub String);

impl Default for StreamName {
    fn default() -> Self {
        Self("logcabin".to_owned())
    }
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

impl Setting for StreamName {
    const ALLOWED: &'static str = "at most 64 letters, digits, \"-\" and \"_\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text().filter(|text| is_name(text)).map(|text| Self(text.to_owned()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.clone())
    }
}

/// The name of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeName {
    /// The name of the machine and a port.
    Auto,
    /// This.
    Name(String),
}

impl Setting for NodeName {
    const ALLOWED: &'static str = "\"auto\" or at most 64 letters, digits, \"-\", \"_\" and \".\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        if text == "auto" {
            return Some(Self::Auto);
        }
        is_name(&text.replace('.', "-")).then(|| Self::Name(text.to_owned()))
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::Name(name) => name.clone(),
        })
    }
}

/// The directory of the uploaded files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaDir {
    /// The directory `media` in the data directory.
    Auto,
    /// This.
    Path(PathBuf),
}

impl Setting for MediaDir {
    const ALLOWED: &'static str = "\"auto\" or the path of a directory";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given.text()? {
            "" => None,
            "auto" => Some(Self::Auto),
            path => Some(Self::Path(path.into())),
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::Path(path) => path.display().to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_given_with_or_without_a_scheme() {
        let read = |text| NatsServer::read(&RawSetting::Text(text)).map(|server| server.0);
        assert_eq!(read("n1").as_deref(), Some("nats://n1"));
        assert_eq!(read("tls://n1:4222").as_deref(), Some("tls://n1:4222"));
        for wrong in ["", "http://n1", "nats://", "nats://user:secret@n1"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
