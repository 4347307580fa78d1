//! The pages for browsers, in headless Chromium, driven with the keyboard by programs on puppeteer
//! that judge for themselves (`tests/e2e/`).
//!
//! `LOGCABIN_E2E_CHROMIUM` names another Chromium than Debian's; `LOGCABIN_E2E_SCREENSHOTS` a
//! directory for what the pages look like.

use std::env;
use std::process::Command;

use logcabin::decide::registration_token::CreateRegistrationToken;
use logcabin::record::command::TokenHash;
use tempfile::TempDir;

use crate::harness::tools::{chromium, judged, node, programs};
use crate::harness::{Captcha, TestServer, offline, skip};

const TERMS: &str = r#"
[privacy_policy]
version = "1.2"
en = { name = "Privacy Policy", url = "https://example.org/privacy-1.2-en.html" }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stage_can_be_completed_on_its_page() {
    let chromium = match node("puppeteer-core").and_then(|()| chromium()) {
        Ok(chromium) => chromium,
        Err(missing) => return skip("pages", &missing),
    };
    let dir = TempDir::new().expect("a temporary directory");
    let data = dir.path().join("data");
    let token = TokenHash::of("for.friends");
    let friends =
        CreateRegistrationToken { token, label: None, uses_allowed: Some(2), expires_ms: None };
    offline::decide(&data, [friends]).await;
    let captcha = Captcha::start().await;
    let terms = dir.path().join("terms.toml");
    std::fs::write(&terms, TERMS).expect("the directory can be written to");
    let mut settings = captcha.settings(dir.path());
    let registration = |name: &str| format!("LOGCABIN_REGISTRATION_{name}");
    settings.push((registration("TERMS"), terms.display().to_string()));
    settings.push((registration("REQUIRE"), "token,captcha,terms,dummy".to_owned()));
    let settings: Vec<_> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let server = TestServer::start_on_with(&data, &settings).await;

    let mut node = Command::new("node");
    node.arg(programs().join("fallback_pages.mjs"));
    node.args([&server.base(), &chromium, "for.friends"]);
    node.args(env::var_os("LOGCABIN_E2E_SCREENSHOTS"));
    judged("fallback_pages.mjs", node).await;
}
