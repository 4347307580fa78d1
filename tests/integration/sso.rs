//! Single sign-on and the login page, end to end: a real OpenID Connect provider and a real
//! browser, in one program of `tests/e2e/`, which judges for itself.
//!
//! `LOGCABIN_E2E_SCREENSHOTS` names a directory to keep the pictures of the pages in.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::administration::user_command;
use crate::antispam::Antispam;
use crate::harness::tools::{chromium, judged, node, programs};
use crate::harness::{TestServer, alone, free_address, skip};

/// As in the program.
const PASSWORD: &str = "a password that is long enough";

/// Describes the provider at a port of this machine to a server, in a file.
fn knows(directory: &Path, port: u16) -> String {
    let file = directory.join("live.toml");
    let text = format!(
        "id = \"live\"\nname = \"Elsewhere\"\nissuer = \"http://127.0.0.1:{port}\"\n\
         client_id = \"logcabin\"\nclient_secret_file = \"secret\"\n\
         add_email = true\n"
    );
    std::fs::write(&file, text).expect("a file of the provider");
    std::fs::write(directory.join("secret"), "a secret of the two\n").expect("its secret");
    file.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_log_in_with_single_sign_on_and_on_the_login_page() {
    let tools =
        node("oidc-provider").and_then(|()| node("puppeteer-core")).and_then(|()| chromium());
    if let Err(missing) = tools {
        return skip("sso", &missing);
    }
    let _alone = alone().await;
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let (provider, client) = (free_address().port(), free_address().port());
    let file = knows(directory.path(), provider);
    let trusted = format!("http://127.0.0.1:{client}/trusted");
    let settings = [("LOGCABIN_SSO_PROVIDERS", file), ("LOGCABIN_SSO_REDIRECTS", trusted)];
    let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
    let server = TestServer::start_with(&settings).await;

    let root = user_command(server.data_dir(), "create root --admin", PASSWORD);
    assert!(root.status.success(), "{root:?}");

    let screenshots = env::var_os("LOGCABIN_E2E_SCREENSHOTS");
    let screenshots = screenshots.map_or_else(|| directory.path().join("shots"), Into::into);
    let mut command = Command::new("node");
    command.arg(programs().join("sso.mjs")).arg(server.base());
    command.args([provider.to_string(), client.to_string()]).arg(screenshots);
    let said = judged("sso.mjs", command).await;
    assert!(said.contains("all went well"), "sso.mjs ended early:\n{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_logs_in_to_the_console_with_single_sign_on() {
    let tools =
        node("oidc-provider").and_then(|()| node("puppeteer-core")).and_then(|()| chromium());
    if let Err(missing) = tools {
        return skip("sso", &missing);
    }
    let _alone = alone().await;
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let provider = free_address().port();
    let file = knows(directory.path(), provider);
    let settings = [("LOGCABIN_SSO_PROVIDERS", &*file), ("LOGCABIN_CONSOLE_ENABLED", "true")];
    let hook = Antispam::start().await;
    let server = hook.server(&settings).await;
    let root = user_command(server.data_dir(), "create root --admin", PASSWORD);
    assert!(root.status.success(), "{root:?}");
    let mut command = Command::new("node");
    command.arg(programs().join("sso_console.mjs")).arg(server.base()).arg(provider.to_string());
    let said = judged("sso_console.mjs", command).await;
    assert!(said.contains("the console was entered"), "sso_console.mjs ended early:\n{said}");
    // The antispam hook was asked about those who came.
    let asked: Vec<_> = ["registration", "login"].iter().flat_map(|point| hook.at(point)).collect();
    let of = |asked: &serde_json::Value| asked["request"]["content"]["provider"] == "live";
    assert!(asked.iter().any(|asked| asked["hook"] == "login" && of(asked)), "{asked:?}");
}
