//! What nobody can have more of.

use serde_json::json;

use super::{
    Browser, Client, FORM, VERIFIER, authorize, challenge, description, parameters, post, query,
    register, scope, server,
};
use crate::harness::TestServer;

/// A server with the rates that it has by default, except for this one.
async fn limited(name: &str, rate: &str) -> TestServer {
    let setting = format!("LOGCABIN_RATE_LIMITS_{name}");
    TestServer::start_with(&[("LOGCABIN_RATE_LIMITS_ENABLED", "true"), (&setting, rate)]).await
}

#[tokio::test]
async fn registrations_of_clients_are_limited_by_address() {
    let server = limited("CLIENTS", "1/m burst 3").await;
    let http = server.http();
    for number in 0..3 {
        let mut own = description();
        own["client_name"] = json!(format!("App {number}"));
        assert_eq!(register(&http, &own).await.status, 201);
    }
    let refused = register(&http, &description()).await;
    assert_eq!((refused.status, &refused.body["error"]), (429, &json!("temporarily_unavailable")));
    let device = post(&http, "/_matrix/oauth2/device", &[("client_id", "x")]).await;
    assert_eq!(device.status, 429);
}

#[tokio::test]
async fn guesses_at_codes_are_limited() {
    let server = limited("LOGIN", "1/m burst 5").await;
    let http = server.http();
    let mut browser = Browser::new(&http);
    let mut seen = Vec::new();
    for _ in 0..8 {
        let path = "/_matrix/oauth2/link?user_code=BBBB-BBBB";
        seen.push(browser.request("GET", path, &[], String::new()).await.status());
    }
    assert_eq!(seen.iter().filter(|status| **status == 429).count(), 3, "{seen:?}");
}

#[tokio::test]
async fn requests_that_are_too_large_are_refused() {
    let server = server().await;
    let http = server.http();
    let mut large = description();
    large["client_name#de"] = json!("x".repeat(20_000));
    assert_eq!(register(&http, &large).await.status, 413);
    let form = query(&[("grant_type", &"x".repeat(100_000))]);
    let answer = http.raw("POST", "/_matrix/oauth2/token", &[FORM], form).await;
    assert_eq!(answer.parts.status, 413);
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    let state = "x".repeat(2000);
    let mut request = client.request(&scope, &challenge);
    request[5].1 = &state;
    let sent = Browser::new(&http).get(&authorize(&request)).await;
    assert_eq!(parameters(sent.sent_to())["error"], "invalid_request");
    let state = "x".repeat(5000);
    request[5].1 = &state;
    assert_eq!(Browser::new(&http).get(&authorize(&request)).await.status(), 400);
}

#[tokio::test]
async fn codes_and_browsers_of_a_user_are_limited() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let mut codes = Vec::new();
    for number in 0..20 {
        codes.push(client.code(&mut browser, &scope(&format!("D{number}"))).await);
    }
    let (scope, challenge) = (scope("MORE"), challenge(VERIFIER));
    let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
    let refused = page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    assert!(refused.status() >= 400, "{}", refused.status());
    client.exchange(&codes[0]).await.ok();
    page.submit(&mut browser, 0, &[("answer", "allow")]).await.sent_to();
    // With one browser more than a user may have, the first is signed out.
    for _ in 0..20 {
        Browser::signed_in(&http, "ann").await;
    }
    let title = browser.get("/_matrix/oauth2/account").await.title();
    assert_eq!(title, "Sign in to e2e.test");
}
