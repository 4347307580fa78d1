//! The values of the settings for certificates of an authority.

use std::fmt;

use toml::Value;

use super::{RawSetting, Setting};

/// How the authority is shown that a name is this server's (RFC 8555, section 8; RFC 8737).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// By an answer on port 80.
    Http01,
    /// By a certificate on port 443.
    TlsAlpn01,
}

impl fmt::Display for AcmeChallenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
        })
    }
}

impl Setting for AcmeChallenge {
    const ALLOWED: &'static str = "\"http-01\" or \"tls-alpn-01\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given.text()? {
            "http-01" => Some(Self::Http01),
            "tls-alpn-01" => Some(Self::TlsAlpn01),
            _ => None,
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// The name of a host in the domain name system, in small letters and without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(Box<str>);

impl HostName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Setting for HostName {
    const ALLOWED: &'static str = "a host name without a port, such as \"matrix.example.org\"";
    const LISTED: &'static str = "a list, which may be empty, of host names without a port, such as \
                                  \"matrix.example.org\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let name = given.text()?.to_ascii_lowercase();
        let is_label = |label: &str| {
            let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            (1..=63).contains(&label.len())
                && label.bytes().all(fine)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let fine = name.len() <= 253
            && name.split('.').all(is_label)
            // Authorities certify names, and this would be an address.
            && name.parse::<std::net::Ipv4Addr>().is_err();
        fine.then(|| Self(name.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_has_no_port_and_no_pattern() {
        let read = |text| HostName::read(&RawSetting::Text(text)).map(|name| name.0.to_string());
        assert_eq!(read("Matrix.Example.org").as_deref(), Some("matrix.example.org"));
        assert_eq!(read("xn--bcher-kva.example").as_deref(), Some("xn--bcher-kva.example"));
        for bad in ["", "a:443", "*.example.org", "a..b", "-a.b", "1.2.3.4", "[::1]", "a b"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
