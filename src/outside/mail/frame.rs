//! The common layout of all mail.
//!
//! Elements have inline styles, because many mail programs ignore everything else. The style sheet
//! is for those that do not, in dark mode.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The style of a button.
pub(super) const BUTTON: &str = "display:inline-block;padding:12px 32px;background:#7a4a21;\
                                 color:#ffffff;text-decoration:none;font-weight:600;border-radius:6px";
/// The style of a link.
pub(super) const LINK: &str = "color:#7a4a21";
/// The style of secondary text.
pub(super) const SOFT: &str = "color:#59636e";

const DARK: &str = ":root{color-scheme:light dark}@media (prefers-color-scheme:dark){\
.paper{background:#1b1917!important}.card{background:#26231f!important;color:#ece8e1!important;\
border-color:#4a443c!important;border-top-color:#d79a5f!important}.soft{color:#a8a196!important}\
.link{color:#d79a5f!important}.line{border-color:#4a443c!important}\
.button,.tag{background:#d79a5f!important;color:#1b1917!important}}";

/// A mail with this subject, plain text and HTML. Elements of the classes `soft`, `link`, `line`,
/// `button` and `tag` change their colours in dark mode.
pub(super) fn frame(subject: &str, body: &Markup, server: &str) -> String {
    let card = "padding:32px 24px;background:#ffffff;border:1px solid #d5cfc5;\
                border-top:4px solid #7a4a21;border-radius:8px;color:#1f2328;\
                font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;overflow-wrap:anywhere";
    let mail = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="supported-color-schemes" content="light dark";
                title { (subject) }
                style { (PreEscaped(DARK)) }
            }
            body.paper style="margin:0;padding:24px 12px;background:#f6f3ee" {
                table role="presentation" align="center" width="100%" cellpadding="0" cellspacing="0"
                    style="max-width:520px;margin:0 auto;border-collapse:separate" {
                    tr {
                        td.card style=(card) {
                            h1 style="margin:0 0 16px;font-size:21px;line-height:1.3" { (subject) }
                            (body)
                        }
                    }
                    tr {
                        td.soft style={
                            "padding:16px;text-align:center;font:13px/1.5 system-ui,sans-serif;" (SOFT)
                        } {
                            "Sent by " (server) ", which cannot read answers to this mail."
                        }
                    }
                }
            }
        }
    };
    mail.into_string()
}
