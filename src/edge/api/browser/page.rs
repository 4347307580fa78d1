//! Pages for browsers: small, self-contained, and with a restrictive content security policy.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        X_FRAME_OPTIONS,
    },
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::http::{Access, ApiError, CallerIdentity, ErrorRenderer, Gate, Reply};
use logcabin_base::clock::random_bytes;

const STYLE: &str = include_str!("page.css");
const HTML: &str = "text/html; charset=utf-8";
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");

/// A page.
pub(crate) struct Page {
    title: String,
    /// What is shown in the place of its title, with a heading in it.
    heading: Option<Markup>,
    /// Whose page it is, for the title of the window.
    site: Option<String>,
    body: Markup,
    script: Option<String>,
    /// Other origins of scripts and frames, if needed.
    outside: Vec<String>,
    /// Other origins of pictures, if needed.
    pictures: Vec<String>,
    /// Another origin that its form may lead to.
    leads_to: Option<String>,
    /// More style, and what is above the title.
    frame: (&'static str, Markup),
    status: StatusCode,
}

impl Page {
    /// A page with this title, and this HTML below it.
    pub(crate) fn new(title: impl Into<String>, body: Markup) -> Self {
        Self {
            title: title.into(),
            heading: None,
            site: None,
            body,
            script: None,
            outside: Vec::new(),
            pictures: Vec::new(),
            leads_to: None,
            frame: ("", html! {}),
            status: StatusCode::OK,
        }
    }

    /// Names whose page it is in the title of the window.
    #[must_use]
    pub(crate) fn of_site(mut self, name: impl Into<String>) -> Self {
        self.site = Some(name.into());
        self
    }

    /// Shows this in the place of its title; it has a heading.
    #[must_use]
    pub(crate) fn headed(mut self, heading: Markup) -> Self {
        self.heading = Some(heading);
        self
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

    /// Allows pictures of this origin.
    #[must_use]
    pub(crate) fn pictures(mut self, origin: impl Into<String>) -> Self {
        self.pictures.push(origin.into());
        self
    }

    /// Allows the form to lead to this origin: browsers check redirects after a form, too.
    #[must_use]
    pub(crate) fn leads_to(mut self, origin: impl Into<String>) -> Self {
        self.leads_to = Some(origin.into());
        self
    }

    /// Adds to the style, and something above the title.
    #[must_use]
    pub(crate) fn framed(mut self, style: &'static str, header: Markup) -> Self {
        self.frame = (style, header);
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
        let Self { title, heading, site, body, script, frame: (style, header), .. } = &self;
        let html = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (title) @if let Some(site) = site { " · " (site) } }
                    style nonce=(nonce) { (PreEscaped(STYLE)) (PreEscaped(style)) }
                }
                body {
                    (header)
                    main id="main" {
                        @match heading {
                            Some(heading) => (heading),
                            None => h1 { (title) },
                        }
                        (body)
                    }
                    @if let Some(script) = script {
                        // Its values are literals: see `literal`.
                        script nonce=(nonce) { (PreEscaped(script)) }
                    }
                }
            }
        };
        let (outside, pictures) = (self.outside.join(" "), self.pictures.join(" "));
        let leads_to = self.leads_to.unwrap_or_default();
        let policy = format!(
            "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}' {outside}; \
             frame-src {}; connect-src 'self'; img-src 'self' data: {pictures}; form-action 'self' {leads_to}; \
             base-uri 'none'; frame-ancestors 'none'",
            if outside.is_empty() { "'none'" } else { &outside }
        );
        let mut reply = Reply::bytes(HTML, html.into_string())
            .with_status(self.status)
            .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
            // The address of a page may contain a token.
            .with_header(REFERRER_POLICY, HeaderValue::from_static("no-referrer"))
            // For browsers that do not know `frame-ancestors`.
            .with_header(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"))
            .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .with_header(PERMISSIONS_POLICY, HeaderValue::from_static("interest-cohort=()"));
        if let Ok(policy) = HeaderValue::from_str(&policy) {
            reply = reply.with_header(CONTENT_SECURITY_POLICY, policy);
        }
        reply
    }
}

/// The authentication scheme of pages for anybody: a refusal is a page, too.
pub(crate) struct AnyBrowser;

impl Gate for AnyBrowser {
    type Caller = ();
    const ACCESS: Access = Access::None;
    const REFUSAL: Option<ErrorRenderer> = Some(refusal);

    fn caller(_: CallerIdentity) -> Option<()> {
        Some(())
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
    let body = html! {
        p.bad role="alert" { (error.message()) }
        p { (again) }
    };
    Page::new("This did not work", body).status(error.status()).reply()
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
        let page = html! { a href="\"><script>" { "<script>&" } };
        let escaped = "<a href=\"&quot;&gt;&lt;script&gt;\">&lt;script&gt;&amp;</a>";
        assert_eq!(page.into_string(), escaped);
        let script = literal(&"</script><!--\u{2028}");
        assert!(!script.contains('<') && !script.contains('>') && !script.contains('\u{2028}'));
        assert_eq!(serde_json::from_str::<String>(&script).unwrap(), "</script><!--\u{2028}");
    }
}
