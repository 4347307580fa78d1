//! Clients that nobody here wrote: Authlib and openid-client, which know nothing of Matrix, Element
//! Web in Chromium, and matrix-rust-sdk. The programs are in `tests/e2e/`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use super::{Browser, PASSWORD, Seen, server, text};
use crate::clients::Client as Program;
use crate::harness::tools::{chromium, judged, node, programs, python};
use crate::harness::{TestServer, alone, encode, skip};

async fn judge(interpreter: PathBuf, name: &str) {
    let server = server().await;
    server.register("ann").await;
    let mut program = Command::new(interpreter);
    program.arg(programs().join(name)).args([&server.base(), "ann", PASSWORD]);
    judged(name, program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_on_authlib_knows_who_the_user_is() {
    match python("authlib") {
        Ok(python) => judge(python, "oauth_authlib.py").await,
        Err(missing) => skip("oauth with Authlib", &missing),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_and_a_television_on_openid_client_log_in() {
    match node("openid-client") {
        Ok(()) => judge("node".into(), "oauth_openid_client.mjs").await,
        Err(missing) => skip("oauth with openid-client", &missing),
    }
}

/// Where Element Web is served, no host has TLS: it cannot register itself.
const ELEMENT: &str = r#"
client_id = "element"
client_name = "Element"
client_uri = "https://element.example.org/"
application_type = "native"
redirect_uris = ["http://127.0.0.1/"]
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_sign_in_register_and_sign_out_in_element_web() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/e2e/element");
    let chromium = match node("puppeteer-core").and_then(|()| chromium()) {
        Ok(chromium) if client.join("built").is_file() => chromium,
        Ok(_) => return skip("oauth with Element Web", "Element Web is absent"),
        Err(missing) => return skip("oauth with Element Web", &missing),
    };
    let _alone = alone().await;
    let dir = TempDir::new().expect("a temporary directory");
    let element = dir.path().join("element.toml");
    std::fs::write(&element, ELEMENT).expect("the directory can be written to");
    let element = element.display().to_string();
    let server = TestServer::start_with(&[("LOGCABIN_OAUTH_CLIENTS", &element)]).await;
    for name in ["ann", "cat"] {
        server.register(name).await;
    }
    let mut program = Command::new("node");
    program.arg(programs().join("oauth_element.mjs")).arg(server.base()).arg(chromium);
    program.arg(client).args(["ann", PASSWORD]).args(env::var_os("LOGCABIN_E2E_SCREENSHOTS"));
    judged("oauth_element.mjs", program).await;
}

/// The steps of a person who is asked whether a device may log in, or an app be allowed.
async fn allowed(server: &TestServer, browser: &mut Browser, url: &str) -> Seen {
    let path = url.strip_prefix(&server.base()).expect("an address of the server");
    let page = browser.get(path).await;
    page.submit(browser, 0, &[("answer", "allow")]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matrix_rust_sdk_logs_in_by_a_browser_and_then_another_device_by_its_qr_code() {
    let program = match Program::sdk_program() {
        Ok(program) => program,
        Err(missing) => return skip("oauth with matrix-rust-sdk", &missing),
    };
    let _alone = alone().await;
    // The new device shows the code, and has no session yet.
    let server = TestServer::start_with(&[("LOGCABIN_RENDEZVOUS_FOR_ANYONE", "true")]).await;
    server.register("ann").await;
    let mut browser = Browser::signed_in(&server.http(), "ann").await;
    let start = |name| Program::start(Command::new(&program), &server.base(), name);

    let old = start("a device");
    let url = text(&old.ok("oauth_begin", json!({})), "url").to_owned();
    let back = allowed(&server, &mut browser, &url).await;
    let me = old.ok("oauth_finish", json!({ "url": back.sent_to() }));
    assert_eq!(text(&me, "user_id"), "@ann:e2e.test");
    old.ok("oauth_refresh", json!({}));
    let account = old.ok("account", json!({}));
    assert!(text(&account, "url").ends_with("/_matrix/oauth2/account"), "{account}");
    old.ok("start", json!({}));
    old.ok("cross_sign", json!({}));
    old.ok("back_up", json!({}));

    let new = start("a new device");
    let qr = new.ok("qr_show", json!({}))["qr"].clone();
    let code = old.ok("qr_scan", json!({ "qr": qr }))["code"].clone();
    assert_eq!(new.ok("qr_next", json!({}))["scanned"], true);
    new.ok("qr_enter", json!({ "code": code }));
    let uri = text(&old.ok("qr_next", json!({})), "uri").to_owned();
    let page = allowed(&server, &mut browser, &uri).await;
    assert_eq!(page.title(), "Allowed");
    let logged_in = new.ok("qr_next", json!({}));
    assert_eq!(text(&logged_in, "user_id"), "@ann:e2e.test");
    assert_ne!(logged_in["device_id"], me["device_id"]);
    assert_eq!(old.ok("qr_next", json!({}))["granted"], true);
    new.ok("start", json!({}));
    assert_eq!(new.ok("knows_secrets", json!({}))["complete"], true);
    // It revokes tokens only over TLS. The user signs the device out on the page of the account.
    new.ok("oauth_refresh", json!({}));
    let device_id = text(&logged_in, "device_id");
    let path = "/_matrix/oauth2/account?action=org.matrix.device_delete&device_id=";
    let page = browser.get(&format!("{path}{}", encode(device_id))).await;
    page.submit(&mut browser, 0, &[]).await;
    let refused = new.asked("oauth_refresh", json!({})).expect_err("the device is signed out");
    assert!(refused.to_string().contains("invalid_grant"), "{refused}");
    old.ok("oauth_refresh", json!({}));
}
