//! The pages in headless Chromium: people register and recover their passwords on the way to an
//! app, without scripts where none is needed, and every page is seen on three widths, in light and
//! dark, by a program that knows what screen readers need. It is in `tests/e2e/`.

use std::env;
use std::process::Command;
use std::sync::Arc;

use logcabin::decide::registration_token::CreateRegistrationToken;
use logcabin::record::command::TokenHash;
use serde_json::json;
use tempfile::TempDir;

use super::{PASSWORD, url_parameters};
use crate::administration::{done, user_command};
use crate::harness::mail::{MailServer, link};
use crate::harness::stand_in::{Service, reply_json};
use crate::harness::tools::{chromium, judged, node, programs};
use crate::harness::{Asked, Captcha, TestServer, alone, free_address, offline, skip};

const TOKEN: &str = "for.friends";

const TERMS: &str = r#"
[privacy_policy]
version = "1"
en = { name = "Privacy Policy", url = "https://example.org/privacy.html" }
"#;

/// A service at which nobody signs in here: its button is a part of the pages.
const PROVIDER: &str = r#"
id = "elsewhere"
name = "Elsewhere"
issuer = "http://127.0.0.1:9"
client_id = "logcabin"
client_secret = "a secret of the two"
"#;

/// A server that asks for all this of those who register.
async fn server(dir: &TempDir, settings: &[(String, String)], require: &str) -> TestServer {
    let data = dir.path().join(require);
    let token = TokenHash::of(TOKEN);
    let friends =
        CreateRegistrationToken { token, label: None, uses_allowed: None, expires_ms: None };
    offline::decide(&data, [friends]).await;
    let settings = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let require = ("LOGCABIN_REGISTRATION_REQUIRE", require);
    let settings: Vec<_> = settings.chain([require]).collect();
    TestServer::start_on_with(&data, &settings).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_use_every_page_on_their_way_to_an_app_and_to_the_console() {
    let tools = node("puppeteer-core").and_then(|()| node("axe-core"));
    let chromium = match tools.and_then(|()| chromium()) {
        Ok(chromium) => chromium,
        Err(missing) => return skip("the pages of OAuth", &missing),
    };
    let Some(mail) = MailServer::start("the pages of OAuth") else { return };
    let _alone = alone().await;
    let dir = TempDir::new().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("the directory can be written to");
        path.display().to_string()
    };
    let captcha = Captcha::start().await;
    let client = free_address().port().to_string();
    let mut settings = mail.settings();
    settings.extend(captcha.settings(dir.path()));
    let more = [
        ("LOGCABIN_CONSOLE_ENABLED", "true".to_owned()),
        ("LOGCABIN_REGISTRATION_TERMS", file("terms.toml", TERMS)),
        ("LOGCABIN_SSO_PROVIDERS", file("elsewhere.toml", PROVIDER)),
        ("LOGCABIN_SSO_REDIRECTS", format!("http://127.0.0.1:{client}/trusted")),
    ];
    settings.extend(more.map(|(name, value)| (name.to_owned(), value)));
    let with_captcha = server(&dir, &settings, "token,email,captcha,terms").await;
    let plain = server(&dir, &settings, "token,email,terms").await;

    // Tells the links of mails, and appoints an administrator.
    let (mail, data_dir) = (Arc::new(mail), with_captcha.data_dir().to_owned());
    let mailbox = Service::start(move |asked: Asked| {
        let (mail, data_dir) = (Arc::clone(&mail), data_dir.clone());
        async move {
            let query = asked.path.split_once('?').expect("a query").1.to_owned();
            let answered = tokio::task::spawn_blocking(move || {
                if let Some(user) = url_parameters(&query).get("appoint") {
                    done(user_command(&data_dir, &format!("set-admin {user}"), ""));
                    return json!({});
                }
                let email = url_parameters(&query)["to"].clone();
                let last = mail.mails(&email).len().saturating_sub(1);
                json!({ "link": link(&mail.mail(&email, last)) })
            });
            reply_json(200, &answered.await.expect("no panic"))
        }
    });
    let mailbox = mailbox.await;

    let mut program = Command::new("node");
    program.arg(programs().join("oauth_pages.mjs"));
    program.args([with_captcha.base(), plain.base(), chromium, client]);
    program.args([&format!("http://{}/", mailbox.address), TOKEN, PASSWORD]);
    program.args(env::var_os("LOGCABIN_E2E_SCREENSHOTS"));
    let said = judged("oauth_pages.mjs", program).await;
    assert!(said.contains("all went well"), "it ended early:\n{said}");
}
