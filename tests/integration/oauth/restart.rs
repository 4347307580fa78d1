//! What is left of logins when the server is killed between any two of their steps.

use tempfile::TempDir;

use super::{
    Browser, Client, VERIFIER, authorize, challenge, error, exchange_of, parameters, post, scope,
    text, whoami,
};
use crate::harness::{TestServer, run_logcabin};

/// Kills the server, and starts it again on the same data and address.
async fn again(server: &mut TestServer) {
    server.kill9();
    server.restart().await;
}

#[tokio::test]
async fn a_login_goes_on_after_each_of_its_steps() {
    let mut server = TestServer::start().await;
    let http = server.http();
    server.register("ann").await;
    again(&mut server).await;
    let client = Client::register(&http).await;
    again(&mut server).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    again(&mut server).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
    again(&mut server).await;
    let sent = page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    let code = parameters(sent.sent_to())["code"].clone();
    again(&mut server).await;
    let first = client.exchange(&code).await.ok();
    again(&mut server).await;
    whoami(&http, text(&first, "access_token")).await.ok();
    let second = client.refresh(text(&first, "refresh_token")).await.ok();
    again(&mut server).await;
    // The answer may not have arrived: asked again, it is the same.
    let same = client.refresh(text(&first, "refresh_token")).await.ok();
    assert_eq!(same["refresh_token"], second["refresh_token"]);
    let third = client.refresh(text(&second, "refresh_token")).await.ok();
    again(&mut server).await;
    error(client.refresh(text(&first, "refresh_token")).await, 400, "invalid_grant");
    again(&mut server).await;
    whoami(&http, text(&third, "access_token")).await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(browser.get("/_matrix/oauth2/account").await.title(), "Your account");
}

#[tokio::test]
async fn a_code_is_used_up_and_a_device_waits_across_a_restart() {
    let mut server = TestServer::start().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let code = client.code(&mut browser, &scope("A")).await;
    let tokens = client.exchange(&code).await.ok();
    let request = [("client_id", client.id.as_str()), ("scope", &scope("TV"))];
    let begun = post(&http, "/_matrix/oauth2/device", &request).await.ok();
    again(&mut server).await;
    error(client.exchange(&code).await, 400, "invalid_grant");
    let access = text(&tokens, "access_token");
    whoami(&http, access).await.refused(401, "M_UNKNOWN_TOKEN");
    let link = text(&begun, "verification_uri_complete");
    let page = browser.get(link.strip_prefix(&server.base()).expect("its address")).await;
    page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    again(&mut server).await;
    let poll = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", text(&begun, "device_code")),
    ];
    let tokens = client.token(&poll).await.ok();
    whoami(&http, text(&tokens, "access_token")).await.ok();
}

#[tokio::test]
async fn an_exchange_that_is_killed_gave_everything_or_nothing() {
    let mut server = TestServer::start().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    for round in 0..6_u32 {
        let code = client.code(&mut browser, &scope(&format!("ROUND{round}"))).await;
        let parameters = [&[("client_id", client.id.as_str())][..], &exchange_of(&code)].concat();
        let body = super::query(&parameters);
        let uri = format!("{}/_matrix/oauth2/token", server.base());
        let request = http::Request::post(uri).header(super::FORM.0, super::FORM.1);
        let request = request.body(http_body_util::Full::new(body.into())).expect("a request");
        let asked = {
            let http = http.clone();
            tokio::spawn(async move { http.try_raw(request).await.map_err(|_| ()) })
        };
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        again(&mut server).await;
        match asked.await.expect("no panic") {
            // Whoever got tokens has a session.
            Ok(answer) => {
                let tokens = answer.json().ok();
                whoami(&http, text(&tokens, "access_token")).await.ok();
            }
            // Whoever got none can still have them, or begins again; no session is left over.
            Err(()) => {
                let second = client.exchange(&code).await;
                if second.status == 200 {
                    whoami(&http, text(&second.body, "access_token")).await.ok();
                } else {
                    let mut fresh = Browser::signed_in(&http, "ann").await;
                    let path = "/_matrix/oauth2/account?action=org.matrix.devices_list";
                    let page = fresh.get(path).await.body();
                    assert!(!page.contains(&format!("ROUND{round}")), "{page}");
                }
            }
        }
    }
}

#[tokio::test]
async fn history_shows_each_grant_its_client_and_user_and_its_end() {
    let directory = TempDir::new().expect("a temporary directory");
    let data = directory.path().join("data");
    let mut server = TestServer::start_on(&data).await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let tokens = client.login(&mut browser, &scope("PHONE")).await;
    let refreshed = client.refresh(text(&tokens, "refresh_token")).await.ok();
    client.refresh(text(&refreshed, "refresh_token")).await.ok();
    error(client.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
    server.stop();
    let why = |words: &[&str]| {
        let data = data.display().to_string();
        let line = [&["history", "why", data.as_str()], words].concat();
        let output = run_logcabin(&line);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let told = why(&["user", "@ann:e2e.test", "grants"]);
    for part in [client.id.as_str(), "PHONE", "allowed the client", "granted the client"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told = why(&["client", &client.id]);
    for part in ["registered the client", "My App", "@ann:e2e.test", "PHONE"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told = why(&["user", "@ann:e2e.test", "device", "PHONE"]);
    assert!(told.contains(&client.id), "{told}");
}
