//! Registration.

use serde_json::{Value, json};

use super::{PASSWORD, anonymous, one_wins, server, unique, user};
use crate::harness::{Http, TestServer, User};

async fn register(http: &Http, body: Value) -> crate::harness::Answer {
    anonymous(http, "POST", "/register", Some(&body)).await
}

fn dummy() -> Value {
    json!({ "type": "m.login.dummy" })
}

#[tokio::test]
async fn registration_goes_through_user_interactive_authentication() {
    let server = server().await;
    let http = server.http();
    let mut body = json!({ "username": unique("ann"), "password": PASSWORD });
    let asked = register(&http, body.clone()).await;
    assert_eq!(asked.status, 401);
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.dummy"] }]));
    assert!(asked.body.get("errcode").is_none());
    body["auth"] = json!({ "type": "m.login.dummy", "session": asked.body["session"] });
    let ann = User::of(&http, register(&http, body.clone()).await);
    assert!(ann.user_id.ends_with(":e2e.test"));
    ann.get("/account/whoami").await.ok();
    // The session has served.
    body["username"] = unique("ann").into();
    let again = register(&http, body).await;
    assert_eq!(again.status, 401);
    assert!(again.body["session"].is_string());
}

#[tokio::test]
async fn a_wrong_session_or_stage_is_asked_again() {
    let server = server().await;
    let http = server.http();
    let mut body = json!({ "username": unique("ann"), "password": PASSWORD });
    for auth in [
        json!({ "type": "m.login.dummy", "session": "made up" }),
        json!({ "type": "m.login.recaptcha", "response": "x" }),
    ] {
        body["auth"] = auth;
        let answer = register(&http, body.clone()).await;
        assert_eq!(answer.status, 401);
        assert!(answer.body["errcode"].is_string(), "{answer}");
        assert!(answer.body["session"].is_string(), "{answer}");
        assert_eq!(answer.body["flows"][0]["stages"][0], "m.login.dummy");
    }
}

#[tokio::test]
async fn a_dummy_stage_needs_no_session() {
    let server = server().await;
    let http = server.http();
    let body = json!({ "username": unique("ann"), "password": PASSWORD, "auth": dummy() });
    register(&http, body).await.ok();
}

#[tokio::test]
async fn inhibit_login_gives_a_user_id_alone() {
    let server = server().await;
    let http = server.http();
    let name = unique("ann");
    let body = json!({
        "username": name, "password": PASSWORD, "auth": dummy(), "inhibit_login": true,
        "refresh_token": true,
    });
    let answer = register(&http, body).await.ok();
    assert_eq!(answer["user_id"], format!("@{name}:e2e.test"));
    for key in ["access_token", "device_id", "refresh_token", "expires_in_ms"] {
        assert!(answer.get(key).is_none(), "{answer}");
    }
    User::login(&http, &name, PASSWORD).await;
}

#[tokio::test]
async fn a_missing_user_name_or_device_id_is_generated() {
    let server = server().await;
    let http = server.http();
    let body = json!({ "password": PASSWORD, "auth": dummy() });
    let first = User::of(&http, register(&http, body.clone()).await);
    let second = User::of(&http, register(&http, body).await);
    assert_ne!(first.user_id, second.user_id);
    assert!(!first.device_id.is_empty());
    // What was made up is a good user name.
    for user in [&first, &second] {
        let name = user.user_id.strip_prefix('@').and_then(|id| id.strip_suffix(":e2e.test"));
        let name = name.expect("an id of this server");
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._=-/+".contains(c);
        assert!(!name.is_empty() && name.chars().all(fine), "{name}");
    }
    User::login(&http, &first.user_id, PASSWORD).await;
}

#[tokio::test]
async fn device_and_refresh_token_are_as_asked() {
    let server = server().await;
    let http = server.http();
    let body = json!({
        "username": unique("ann"), "password": PASSWORD, "auth": dummy(), "device_id": "TABLET",
        "initial_device_display_name": "my tablet", "refresh_token": true,
    });
    let answer = register(&http, body).await;
    assert!(answer.body["refresh_token"].is_string(), "{answer}");
    assert_eq!(answer.body["expires_in_ms"], 3_600_000);
    let ann = User::of(&http, answer);
    assert_eq!(ann.device_id, "TABLET");
    assert_eq!(ann.get("/devices/TABLET").await.ok()["display_name"], "my tablet");
}

#[tokio::test]
async fn a_taken_or_impossible_name_is_refused_before_authentication() {
    let server = server().await;
    let http = server.http();
    let ann = user(&server, "ann").await;
    let name = ann.localpart();
    let shouted = name.to_ascii_uppercase();
    for (username, errcode) in [
        (name, "M_USER_IN_USE"),
        (&shouted, "M_USER_IN_USE"),
        ("", "M_INVALID_USERNAME"),
        ("with space", "M_INVALID_USERNAME"),
        ("\u{e4}nn", "M_INVALID_USERNAME"),
        ("@ann:e2e.test", "M_INVALID_USERNAME"),
        (&"x".repeat(250), "M_INVALID_USERNAME"),
    ] {
        let body = json!({ "username": username, "password": PASSWORD });
        register(&http, body).await.refused(400, errcode);
    }
}

#[tokio::test]
async fn availability_is_told() {
    let server = server().await;
    let http = server.http();
    let ann = user(&server, "ann").await;
    let name = ann.localpart();
    let path = |name: &str| format!("/register/available?username={name}");
    let free = anonymous(&http, "GET", &path(&unique("free")), None).await;
    assert_eq!(free.ok(), json!({ "available": true }));
    anonymous(&http, "GET", &path(name), None).await.refused(400, "M_USER_IN_USE");
    anonymous(&http, "GET", &path("%25"), None).await.refused(400, "M_INVALID_USERNAME");
}

#[tokio::test]
async fn concurrent_registrations_of_a_name_have_exactly_one_winner() {
    let server = server().await;
    let name = unique("race");
    let racers: Vec<_> = (0..16)
        .map(|_| {
            let http = server.http();
            let body = json!({ "username": name, "password": PASSWORD, "auth": dummy() });
            tokio::spawn(async move { register(&http, body).await })
        })
        .collect();
    one_wins(racers, "M_USER_IN_USE").await;
}

#[tokio::test]
async fn guests_are_refused() {
    let server = server().await;
    let answer = anonymous(&server.http(), "POST", "/register?kind=guest", Some(&json!({}))).await;
    answer.refused(403, "M_GUEST_ACCESS_FORBIDDEN");
}

#[tokio::test]
async fn a_closed_registration_is_403() {
    let server = TestServer::start_with(&[("LOGCABIN_REGISTRATION_OPEN", "false")]).await;
    let body = json!({ "username": "ann", "password": PASSWORD, "auth": dummy() });
    register(&server.http(), body).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn no_registration_token_is_valid_where_there_are_none() {
    let server = server().await;
    let path = "/_matrix/client/v1/register/m.login.registration_token/validity";
    let http = server.http();
    let answer = http.request("GET", &format!("{path}?token=abc"), None, None).await.ok();
    assert_eq!(answer, json!({ "valid": false }));
    http.request("GET", path, None, None).await.refused(400, "M_MISSING_PARAM");
}

#[tokio::test]
async fn capital_letters_of_a_name_become_small_ones() {
    let server = server().await;
    let http = server.http();
    let name = unique("Ann.O'Clock").replace('\'', "_");
    let body = json!({ "username": name, "password": PASSWORD, "auth": dummy() });
    let ann = User::of(&http, register(&http, body).await);
    assert_eq!(ann.user_id, format!("@{}:e2e.test", name.to_lowercase()));
    User::login(&http, &name, PASSWORD).await;
}

#[tokio::test]
async fn to_ask_for_a_name_does_not_reserve_it() {
    let server = server().await;
    let http = server.http();
    let name = unique("free");
    let path = format!("/register/available?username={name}");
    for _ in 0..2 {
        assert_eq!(anonymous(&http, "GET", &path, None).await.ok()["available"], true);
    }
    // Not even by one who has begun to register.
    let mut body = json!({ "username": name, "password": PASSWORD });
    assert_eq!(register(&http, body.clone()).await.status, 401);
    assert_eq!(anonymous(&http, "GET", &path, None).await.ok()["available"], true);
    body["auth"] = dummy();
    register(&Http::new(&server.base()), body).await.ok();
    anonymous(&http, "GET", &path, None).await.refused(400, "M_USER_IN_USE");
}
