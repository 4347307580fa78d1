//! The addresses of the endpoints and pages, as others are told.

pub(super) use crate::api::addresses::{issuer, path};
use logcabin_base::limits;
pub(super) use logcabin_base::text::encoded;
use logcabin_config::Server;

/// The pages to which a sign-in may lead.
const TARGETS: [&str; 4] = ["account", "authorize", "continue", "link"];

/// Where a sign-in leads: one of the pages, with its query. Whatever else is given leads to the
/// account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReturnPath(String);

impl ReturnPath {
    /// From what a browser brings.
    pub(super) fn of(given: Option<&str>) -> Self {
        let known = |given: &&str| {
            let page = given.split('?').next().unwrap_or_default();
            TARGETS.contains(&page)
                && given.len() <= 2 * limits::OAUTH_REQUEST_BYTES
                && given.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'<>\\".contains(&byte))
        };
        Self(given.filter(known).unwrap_or("account").to_owned())
    }

    /// The text that a browser brings back.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Its path.
    pub(super) fn location(&self, server: &Server) -> String {
        format!("{}/{}", path(server), self.0)
    }

    /// A page with `next` in its query, which leads there.
    pub(super) fn by(&self, server: &Server, page: &str) -> String {
        format!("{}/{page}?next={}", path(server), encoded(&self.0))
    }

    /// A parameter of its query.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.0.split_once('?')?;
        let pairs: Vec<(String, String)> = serde_html_form::from_str(query).ok()?;
        pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Whether it is this page.
    pub(super) fn is(&self, page: &str) -> bool {
        self.0.split('?').next() == Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_pages_of_this_server_alone() {
        let server = Server::default();
        for given in ["account", "authorize?client_id=x&state=%22", "link?user_code=A-B"] {
            assert_eq!(ReturnPath::of(Some(given)).as_str(), given);
            assert!(ReturnPath::of(Some(given)).location(&server).starts_with("/_matrix/oauth2/"));
        }
        let long = format!("account?{}", "x".repeat(2 * limits::OAUTH_REQUEST_BYTES));
        for given in [
            "",
            "//evil.org",
            "https://evil.org",
            "account/../../evil",
            "accounts",
            "/account",
            "account\r\nSet-Cookie: x",
            "account?<script>",
            "account\\evil",
            "token",
            &long,
        ] {
            assert_eq!(ReturnPath::of(Some(given)).as_str(), "account", "{given}");
        }
        let next = ReturnPath::of(Some("authorize?login_hint=mxid%3A%40ann%3Ax&x"));
        assert_eq!(next.parameter("login_hint").as_deref(), Some("mxid:@ann:x"));
        assert_eq!(next.parameter("hint"), None);
    }
}
