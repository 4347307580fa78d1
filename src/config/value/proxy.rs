//! The proxy through which connections leave, and what is reached without it.

use std::{fmt, net::IpAddr};

use toml::Value;

use super::{RawSetting, Setting};
use logcabin_base::network::Range;

/// Where an HTTP proxy listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyUrl {
    /// A name or an address, without brackets.
    pub host: Box<str>,
    pub port: u16,
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "http://[{}]:{}", self.host, self.port),
            false => write!(f, "http://{}:{}", self.host, self.port),
        }
    }
}

impl Setting for ProxyUrl {
    const ALLOWED: &'static str = "an address such as \"http://proxy.example.org:3128\", without a \
                                   user and a path: see `outbound.proxy_user`";
    const OPTIONAL: &'static str = "\"off\" or an address such as \
                                    \"http://proxy.example.org:3128\", without a user and a path: \
                                    see `outbound.proxy_user`";
    /// Elsewhere, a password is often a part of it: no message quotes what was given.
    const SECRET: bool = true;

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let url = url::Url::parse(given.text()?).ok()?;
        let is_plain = url.scheme() == "http"
            && url.username().is_empty()
            && url.password().is_none()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none();
        let host = url.host_str().filter(|host| is_plain && !host.is_empty())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Some(Self { host: host.into(), port: url.port_or_known_default()? })
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// What is reached without the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoProxy {
    /// A name and all below it, in small letters.
    Name(Box<str>),
    /// All below a name, which has no dot in front here.
    Below(Box<str>),
    Range(Range),
}

impl NoProxy {
    /// The names and addresses of this machine itself.
    pub(crate) fn this_machine() -> Vec<Self> {
        let given = ["localhost", "127.0.0.0/8", "::1"];
        given.iter().filter_map(|text| Self::read(&RawSetting::Text(text))).collect()
    }

    /// Whether it covers a host: a name, or an address without brackets.
    pub fn covers(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.');
        match (self, host.parse::<IpAddr>()) {
            (Self::Range(range), Ok(address)) => range.contains(address),
            (Self::Name(name), Err(_)) => host.eq_ignore_ascii_case(name) || is_below(host, name),
            (Self::Below(name), Err(_)) => is_below(host, name),
            _ => false,
        }
    }

    /// Whether it covers an address that a name has.
    pub fn covers_address(&self, address: IpAddr) -> bool {
        matches!(self, Self::Range(range) if range.contains(address))
    }
}

fn is_below(host: &str, name: &str) -> bool {
    let Some(at) = host.len().checked_sub(name.len()) else { return false };
    let (host, name) = (host.as_bytes(), name.as_bytes());
    at > 1 && host[at..].eq_ignore_ascii_case(name) && host[at - 1] == b'.'
}

impl fmt::Display for NoProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Below(name) => write!(f, ".{name}"),
            Self::Range(range) => range.fmt(f),
        }
    }
}

impl Setting for NoProxy {
    const ALLOWED: &'static str =
        "a name such as \"example.org\" or \".example.org\", an address, or a range of them";
    const LISTED: &'static str = "a list, which may be empty, of names such as \"example.org\" or \
                                  \".example.org\", addresses, or ranges of them, such as \
                                  \"10.0.0.0/8\" or \"fd00::/8\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        if let Ok(range) = text.parse() {
            return Some(Self::Range(range));
        }
        let (is_below, name) = match text.strip_prefix('.') {
            Some(name) => (true, name),
            None => (false, text),
        };
        let fine = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        // Names do not end with a number: this is an address that is not one.
        let ends_with_letters =
            name.rsplit('.').next()?.bytes().any(|byte| byte.is_ascii_alphabetic());
        if !name.split('.').all(fine) || !ends_with_letters {
            return None;
        }
        let name = name.to_ascii_lowercase().into();
        Some(if is_below { Self::Below(name) } else { Self::Name(name) })
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(text: &str) -> Option<NoProxy> {
        NoProxy::read(&RawSetting::Text(text))
    }

    #[test]
    fn this_machine_is_reached_without_the_proxy() {
        let covers = |host| NoProxy::this_machine().iter().any(|one| one.covers(host));
        assert!(["localhost", "a.localhost", "127.0.0.9", "::1"].into_iter().all(covers));
        assert!(!covers("example.org") && !covers("10.0.0.1"));
    }

    #[test]
    fn names_suffixes_addresses_and_networks_are_reached_without_the_proxy() {
        for (given, host, is_covered) in [
            ("example.org", "example.org", true),
            ("Example.org", "EXAMPLE.ORG.", true),
            ("example.org", "a.b.example.org", true),
            ("example.org", "anexample.org", false),
            ("example.org", "example.org.evil", false),
            ("example.org", "org", false),
            (".example.org", "example.org", false),
            (".example.org", "a.example.org", true),
            (".example.org", ".example.org", false),
            ("localhost", "localhost", true),
            ("10.0.0.0/8", "10.2.3.4", true),
            ("10.0.0.0/8", "11.2.3.4", false),
            ("10.0.0.0/8", "::ffff:10.2.3.4", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe00::1", false),
            // A name is not looked up here.
            ("10.0.0.0/8", "ten.example.org", false),
        ] {
            let entry = without(given).unwrap_or_else(|| panic!("{given} is not taken"));
            assert_eq!(entry.covers(host), is_covered, "{given}: {host}");
        }
        for bad in ["", ".", "*", "*.org", "a..b", "http://a", "a:80", "10.0.0.0/33", "10.0.0", "é"]
        {
            assert_eq!(without(bad), None, "{bad}");
        }
        assert!(without("10.0.0.0/8").unwrap().covers_address([10, 1, 1, 1].into()));
        assert!(!without("example.org").unwrap().covers_address([10, 1, 1, 1].into()));
    }

    #[test]
    fn a_proxy_is_a_host_with_a_port() {
        for (given, shown) in [
            ("http://proxy.example.org:3128", "http://proxy.example.org:3128"),
            ("http://proxy/", "http://proxy:80"),
            ("http://[fd00::1]:8080/", "http://[fd00::1]:8080"),
        ] {
            let read = ProxyUrl::read(&RawSetting::Text(given)).unwrap();
            assert_eq!(read.to_string(), shown);
        }
        for bad in [
            "proxy:3128",
            "https://proxy:3128",
            "socks5://proxy:1080",
            "http://ann:secret@proxy:3128",
            "http://proxy/path",
            "http://proxy?a",
        ] {
            assert_eq!(ProxyUrl::read(&RawSetting::Text(bad)), None, "{bad}");
        }
    }
}
