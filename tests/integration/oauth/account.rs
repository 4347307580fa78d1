//! The page of the account, and what sessions that began by OAuth leave to it.

use serde_json::{Value, json};

use super::{
    Browser, Client, PASSWORD, VERIFIER, authorize, challenge, error, scope, server, text, whoami,
};
use crate::api::encryption::Key;
use crate::harness::{Http, TestServer, User, encode};

const ACCOUNT: &str = "/_matrix/oauth2/account";

fn action(name: &str) -> String {
    format!("{ACCOUNT}?action=org.matrix.{name}")
}

/// A session of this user that began by OAuth.
async fn session(http: &Http, user: &str, device_id: &str) -> (User, Client, Value) {
    let client = Client::register(http).await;
    let mut browser = Browser::signed_in(http, user).await;
    let tokens = client.login(&mut browser, &scope(device_id)).await;
    let access_token = text(&tokens, "access_token").to_owned();
    let me = whoami(http, &access_token).await.ok();
    let (http, device_id) = (http.clone(), device_id.to_owned());
    let user_id = text(&me, "user_id").to_owned();
    (User { http, user_id, access_token, device_id }, client, tokens)
}

#[tokio::test]
async fn a_link_of_a_client_leads_to_its_page_through_the_sign_in() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    for (name, title) in [
        ("profile", "Your profile"),
        ("devices_list", "Your devices"),
        ("sessions_list", "Your devices"),
        (&format!("device_view&device_id={}", ann.device_id), "Your device"),
        (&format!("device_delete&device_id={}", ann.device_id), "Sign this device out?"),
        (&format!("session_end&device_id={}", ann.device_id), "Sign this device out?"),
        ("cross_signing_reset", "Reset your digital identity?"),
        ("account_deactivate", "Deactivate your account?"),
        ("what_comes_later", "Your account"),
    ] {
        let mut browser = Browser::new(&http);
        let page = browser.get(&action(name)).await;
        assert_eq!(page.title(), "Sign in to e2e.test", "{name}");
        let page = page.submit(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
        assert_eq!(page.title(), title, "{name}");
    }
}

#[tokio::test]
async fn the_profile_is_changed_on_its_page() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(&action("profile")).await;
    let page = page.submit(&mut browser, 0, &[("name", "Ann <3")]).await;
    assert!(page.body().contains("Your name is saved."), "{}", page.body());
    let path = format!("/profile/{}", encode(&ann.user_id));
    assert_eq!(ann.get(&path).await.ok()["displayname"], "Ann <3");
    let long = "x".repeat(10_000);
    let page = page.submit(&mut browser, 0, &[("name", &long)]).await;
    assert!(page.status() >= 400 && page.body().contains("role=\"alert\""), "{}", page.body());
}

#[tokio::test]
async fn devices_of_either_kind_are_renamed_and_signed_out() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let (by_oauth, client, tokens) = session(&http, "ann", "PHONE").await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(&action("devices_list")).await;
    for told in [ann.device_id.as_str(), "My App", "This browser"] {
        assert!(page.body().contains(told), "{told}: {}", page.body());
    }
    let page = browser.get(&action("device_view&device_id=PHONE")).await;
    let page = page.submit(&mut browser, 0, &[("name", "My phone")]).await;
    assert!(page.body().contains("The name is saved."), "{}", page.body());
    let device = ann.get("/devices/PHONE").await.ok();
    assert_eq!(device["display_name"], "My phone");
    for device_id in ["PHONE", ann.device_id.as_str()] {
        let page = browser.get(&action(&format!("device_delete&device_id={device_id}"))).await;
        let page = page.submit(&mut browser, 0, &[]).await;
        assert!(page.body().contains("The device is signed out."), "{}", page.body());
    }
    by_oauth.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    error(client.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
    ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    let page = browser.get(&action("device_view&device_id=PHONE")).await;
    assert!(page.body().contains("not signed in"), "{}", page.body());
}

#[tokio::test]
async fn users_cannot_reach_the_data_of_other_users() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    server.register("bob").await;
    let mut browser = Browser::signed_in(&http, "bob").await;
    let path = action(&format!("device_delete&device_id={}", ann.device_id));
    let page = browser.get(&path).await;
    assert!(page.body().contains("not signed in"), "{}", page.body());
    ann.get("/account/whoami").await.ok();
}

#[tokio::test]
async fn other_services_and_browsers_are_signed_out() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let mut other = Browser::signed_in(&http, "ann").await;
    let tokens = client.login(&mut browser, "openid").await;
    let page = browser.get(&action("devices_list")).await;
    assert!(page.body().contains("Sign out of My App"), "{}", page.body());
    let page = page.submit(&mut browser, 0, &[]).await;
    assert!(page.body().contains("You are signed out there."), "{}", page.body());
    error(client.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
    let page = page.submit(&mut browser, 0, &[]).await;
    assert!(page.body().contains("That browser is signed out."), "{}", page.body());
    assert_eq!(other.get(ACCOUNT).await.title(), "Sign in to e2e.test");
    assert_eq!(browser.get(ACCOUNT).await.title(), "Your account");
}

#[tokio::test]
async fn a_new_password_ends_the_sessions_that_the_user_chooses() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let mut other = Browser::signed_in(&http, "ann").await;
    let path = format!("{ACCOUNT}?action=org.logcabin.password");
    let page = browser.get(&path).await;
    let new = "another password that is long";
    let wrong = [("password", new), ("repeated", "not the same")];
    assert_eq!(page.submit(&mut browser, 0, &wrong).await.status(), 400);
    let fields = [("password", new), ("repeated", new)];
    let done = page.submit(&mut browser, 0, &fields).await;
    assert_eq!(done.title(), "Your new password");
    ann.get("/account/whoami").await.ok();
    let page = browser.get(&path).await;
    let fields = [("password", PASSWORD), ("repeated", PASSWORD), ("everywhere", "yes")];
    page.submit(&mut browser, 0, &fields).await;
    ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(other.get(ACCOUNT).await.title(), "Sign in to e2e.test");
    assert_eq!(browser.get(ACCOUNT).await.title(), "Your account");
    Browser::signed_in(&http, "ann").await;
}

#[tokio::test]
async fn an_account_is_deactivated_by_who_writes_its_name() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let (by_oauth, ..) = session(&http, "ann", "PHONE").await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(&action("account_deactivate")).await;
    let page = page.submit(&mut browser, 0, &[("confirm", "ann")]).await;
    assert_eq!(page.status(), 400);
    ann.get("/account/whoami").await.ok();
    let done = page.submit(&mut browser, 0, &[("confirm", &ann.user_id)]).await;
    assert_eq!(done.title(), "Deactivated");
    for user in [&ann, &by_oauth] {
        user.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    }
    assert_eq!(browser.get(ACCOUNT).await.title(), "Sign in to e2e.test");
}

/// New cross-signing keys of a user.
fn keys(user: &User) -> Value {
    json!({ "master_key": Key::new("").cross_signing(user, "master") })
}

#[tokio::test]
async fn cross_signing_keys_are_replaced_once_after_the_page_allowed_it() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let (ann, ..) = session(&http, "ann", "PHONE").await;
    let path = "/keys/device_signing/upload";
    ann.post(path, keys(&ann)).await.ok();
    let asked = ann.post(path, keys(&ann)).await;
    assert_eq!(asked.status, 401, "{asked}");
    let flows = asked.body["flows"].as_array().expect("flows");
    assert!(flows.contains(&json!({ "stages": ["m.oauth"] })), "{asked}");
    let url = text(&asked.body["params"]["m.oauth"], "url");
    let url = url.strip_prefix(&server.base()).expect("its address");
    assert_eq!(url, action("cross_signing_reset"));
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(url).await;
    let done = page.submit(&mut browser, 0, &[]).await;
    assert_eq!(done.title(), "Allowed");
    let mut body = keys(&ann);
    body["auth"] = json!({ "session": asked.body["session"] });
    ann.post(path, body).await.ok();
    assert_eq!(ann.post(path, keys(&ann)).await.status, 401);
}

#[tokio::test]
async fn what_needs_user_interactive_authentication_is_left_to_the_page() {
    let server = server().await;
    let http = server.http();
    let other = server.register("ann").await;
    let (ann, ..) = session(&http, "ann", "PHONE").await;
    let password = json!({
        "new_password": "another password that is long",
        "auth": { "type": "m.login.password", "password": PASSWORD,
                  "identifier": { "type": "m.id.user", "user": "ann" } },
    });
    let devices = json!({ "devices": [other.device_id] });
    for (path, body) in [
        ("/account/password", &password),
        ("/account/deactivate", &json!({})),
        ("/delete_devices", &devices),
    ] {
        ann.post(path, body.clone()).await.refused(403, "M_FORBIDDEN");
    }
    let (path, token) = ("/_matrix/client/v1/login/get_token", Some(ann.access_token.as_str()));
    let refused = http.request("POST", path, token, Some(&json!({}))).await;
    refused.refused(403, "M_FORBIDDEN");
    let capabilities = ann.get("/capabilities").await.ok();
    let capabilities = &capabilities["capabilities"];
    for name in ["m.change_password", "m.3pid_changes", "m.get_login_token"] {
        assert_eq!(capabilities[name]["enabled"], false, "{name}: {capabilities}");
    }
    // Others may go on as before.
    let capabilities = other.get("/capabilities").await.ok();
    assert_eq!(capabilities["capabilities"]["m.change_password"]["enabled"], true);
}

#[tokio::test]
async fn a_locked_user_gets_nothing_and_keeps_no_browser() {
    let (server, client, mut browser) = super::ann().await;
    let code = client.code(&mut browser, &scope("A")).await;
    let tokens = client.login(&mut browser, &scope("B")).await;
    lock(&server).await;
    error(client.exchange(&code).await, 400, "invalid_grant");
    error(client.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
    let challenge = challenge(VERIFIER);
    let scope = scope("C");
    let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
    assert_eq!(page.title(), "Sign in to e2e.test");
    let page = page.submit(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
    assert_eq!(page.status(), 403);
}

async fn lock(server: &TestServer) {
    use crate::administration::{done, user_command};
    done(user_command(server.data_dir(), "lock ann", ""));
}
