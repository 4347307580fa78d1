//! The values of the monitoring settings.

use std::{net::SocketAddr, path::PathBuf};

use toml::Value;

use super::value::{RawSetting, Setting, words};

/// One address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

impl Setting for ListenAddress {
    const ALLOWED: &'static str = "an address with a port, such as \"127.0.0.1:9108\"";
    const OPTIONAL: &'static str = "\"off\" or an address with a port, such as \"127.0.0.1:9108\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text()?.parse().ok().map(Self)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// How a line of the access log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    /// As the log of the same name of Apache and nginx, with the seconds at the end.
    Combined,
    /// One JSON object.
    Json,
}

words!(AccessFormat, "\"combined\" or \"json\"", Combined = "combined", Json = "json");

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogTo {
    /// Standard error, like the server's own log lines.
    Stderr,
    /// The end of this file.
    File(PathBuf),
}

impl Setting for AccessLogTo {
    const ALLOWED: &'static str = "\"stderr\" or the path of a file";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given.text()? {
            "" => None,
            "stderr" => Some(Self::Stderr),
            path => Some(Self::File(path.into())),
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Stderr => "stderr".to_owned(),
            Self::File(path) => path.display().to_string(),
        })
    }
}
