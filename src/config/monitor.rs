//! The values of the monitoring settings.

use std::net::SocketAddr;

use toml::Value;

use super::value::{RawSetting, Setting};

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
