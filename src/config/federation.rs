//! Patterns of the names of other homeservers, and who may federate with this one.

use ruma::ServerName;
use toml::Value;

use super::{
    Federation, Rtc,
    value::{RawSetting, Setting},
};
use logcabin_base::glob::Glob;

/// A pattern of server names, such as `*.example.org`. It is matched with the name without its
/// port, as in server ACLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPattern(Box<str>);

impl ServerPattern {
    /// Whether it matches the name of this server.
    pub fn matches(&self, server: &ServerName) -> bool {
        Glob::new(&self.0).is_some_and(|pattern| pattern.is(server.host()))
    }
}

impl std::fmt::Display for ServerPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for ServerPattern {
    const ALLOWED: &'static str = "a pattern of host names, such as \"*.example.org\"";
    const LISTED: &'static str = "a list, which may be empty, of patterns of host names without \
                                  ports, such as \"*.example.org\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"*?.-:[]".contains(&byte);
        (!text.is_empty() && text.len() <= 255 && text.bytes().all(fine))
            .then(|| Glob::new(text))
            .flatten()
            .map(|_| Self(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

impl Federation {
    /// Whether this server has to do with `server`: it is allowed, and not denied.
    pub fn permits(&self, server: &ServerName) -> bool {
        let is_allowed =
            self.allow.is_empty() || self.allow.iter().any(|pattern| pattern.matches(server));
        is_allowed && !self.deny.iter().any(|pattern| pattern.matches(server))
    }
}

impl Rtc {
    /// Whether there are calls of many, whoever lets users into them.
    pub fn has_calls(&self) -> bool {
        self.livekit_url.is_some() || !self.service_urls.is_empty()
    }

    /// Whether users of another homeserver may begin calls.
    pub fn may_begin(&self, server: &ServerName) -> bool {
        self.may_begin.iter().any(|pattern| pattern.matches(server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::List;

    fn patterns(list: &[&str]) -> List<ServerPattern> {
        List(
            list.iter().map(|text| ServerPattern::read(&RawSetting::Text(text)).unwrap()).collect(),
        )
    }

    fn permits(allow: &[&str], deny: &[&str], server: &str) -> bool {
        let federation =
            Federation { allow: patterns(allow), deny: patterns(deny), ..Federation::default() };
        federation.permits(server.try_into().unwrap())
    }

    #[test]
    fn a_denied_server_is_denied_whether_or_not_it_is_allowed() {
        assert!(permits(&[], &[], "a.example:8448"));
        assert!(!permits(&["*.org"], &[], "a.example"));
        assert!(permits(&["*.org", "a.*"], &[], "a.example"));
        assert!(permits(&["*.org"], &[], "A.ORG:1"));
        assert!(!permits(&["*"], &["a.example"], "a.example:8448"));
        assert!(!permits(&["a.example"], &["*.example"], "a.example"));
        assert!(permits(&[], &["1.2.3.*"], "1.2.4.1:8448"));
        assert!(!permits(&[], &["1.2.3.*"], "1.2.3.4"));
        assert!(!permits(&[], &["[::1]"], "[::1]:8448"));
    }

    #[test]
    fn a_pattern_is_of_names() {
        for bad in ["", "a b", "https://a", "a/b"] {
            assert_eq!(ServerPattern::read(&RawSetting::Text(bad)), None, "{bad}");
        }
    }
}
