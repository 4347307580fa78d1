//! Pages for browsers: small, self-contained, and with a restrictive content security policy.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};

use crate::{
    base::clock::random_bytes,
    edge::http::{ApiError, Reply},
};

pub(crate) use crate::base::text::html as text;

const STYLE: &str = include_str!("page.css");
const HTML: &str = "text/html; charset=utf-8";
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");

/// A page. Callers escape its HTML with [`text`].
pub(crate) struct Page {
    title: String,
    body: String,
    script: Option<String>,
    /// Other origins of scripts and frames, if needed.
    outside: Vec<String>,
    /// Another origin that its form may lead to.
    leads_to: Option<String>,
    status: StatusCode,
}

impl Page {
    /// A page with this title, in plain text, and this HTML below it.
    pub(crate) fn new(title: impl Into<String>, body: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            body: body.into(),
            script: None,
            outside: Vec::new(),
            leads_to: None,
            status: StatusCode::OK,
        }
    }

    /// Adds a script, the only one that the browser runs.
    #[must_use]
    pub(crate) fn script(mut self, script: impl Into<String>) -> Self {
        self.script = Some(script.into());
        self
    }

    /// Allows scripts and frames of this origin.
    #[must_use]
    pub(crate) fn outside(mut self, origin: impl Into<String>) -> Self {
        self.outside.push(origin.into());
        self
    }

    /// Allows the form to lead to this origin: browsers check redirects after a form, too.
    #[must_use]
    pub(crate) fn leads_to(mut self, origin: impl Into<String>) -> Self {
        self.leads_to = Some(origin.into());
        self
    }

    /// Sets a status other than 200.
    #[must_use]
    pub(crate) const fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The page as a response.
    pub(crate) fn reply(self) -> Reply {
        let nonce = STANDARD.encode(random_bytes::<16>());
        let title = text(&self.title);
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style nonce=\"{nonce}\">\n{STYLE}</style>\n</head>\n<body>\n\
             <main>\n<h1>{title}</h1>\n{}\n</main>\n",
            self.body
        );
        if let Some(script) = &self.script {
            let _ = writeln!(html, "<script nonce=\"{nonce}\">\n{script}\n</script>");
        }
        html.push_str("</body>\n</html>\n");
        let outside = self.outside.join(" ");
        let leads_to = self.leads_to.unwrap_or_default();
        let policy = format!(
            "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}' {outside}; \
             frame-src {}; connect-src 'self'; img-src 'self' data:; form-action 'self' {leads_to}; \
             base-uri 'none'; frame-ancestors 'none'",
            if outside.is_empty() { "'none'" } else { &outside }
        );
        let mut reply = Reply::bytes(HTML, html)
            .with_status(self.status)
            .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
            // The address of a page may contain a token.
            .with_header(REFERRER_POLICY, HeaderValue::from_static("no-referrer"))
            .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .with_header(PERMISSIONS_POLICY, HeaderValue::from_static("interest-cohort=()"));
        if let Ok(policy) = HeaderValue::from_str(&policy) {
            reply = reply.with_header(CONTENT_SECURITY_POLICY, policy);
        }
        reply
    }
}

/// The page for a failed request.
pub(crate) fn refusal(error: &ApiError) -> Reply {
    let again = match error.retry_after() {
        Some(wait) => {
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            format!("Wait {seconds} second{}, and load this page again.", plural(seconds))
        }
        None => "Go back to where you came from, and try again from there.".to_owned(),
    };
    let html =
        format!("<p class=\"bad\" role=\"alert\">{}</p>\n<p>{again}</p>", text(error.message()));
    Page::new("This did not work", html).status(error.status()).reply()
}

fn plural(count: u128) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A value as a literal in the page's script: JSON that cannot end the script element.
pub(crate) fn literal(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_input_cannot_end_an_element() {
        assert_eq!(text("<a href='x'>&\""), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;");
        let script = literal(&"</script><!--\u{2028}");
        assert!(!script.contains('<') && !script.contains('>') && !script.contains('\u{2028}'));
        assert_eq!(serde_json::from_str::<String>(&script).unwrap(), "</script><!--\u{2028}");
    }
}
