//! How often: requests, and wrong passwords.

use serde_json::{Value, json};

use super::{PASSWORD, unique};
use crate::harness::{Answer, Http, TestServer, User};

/// A server behind a proxy, so that requests can come from anywhere.
async fn limited(settings: &[(&str, &str)]) -> TestServer {
    let always = [
        ("LOGCABIN_RATE_LIMITS_ENABLED", "true"),
        ("LOGCABIN_SERVER_TRUST_FORWARDED_FOR", "true"),
        ("LOGCABIN_REGISTRATION_OPEN", "true"),
    ];
    TestServer::start_with(&[&always, settings].concat()).await
}

/// A request that comes from `from`.
async fn request(
    http: &Http,
    from: &str,
    token: Option<&str>,
    method: &str,
    path: &str,
    body: &Value,
) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("x-forwarded-for", from)];
    headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    let body = if method == "GET" { String::new() } else { body.to_string() };
    let answer = http.raw(method, path, &headers, body).await;
    if answer.parts.status == 429 {
        let seconds: u64 = answer.header("retry-after").parse().expect("whole seconds");
        let answer = answer.json();
        let ms = answer.body["retry_after_ms"].as_u64().expect("a number of milliseconds");
        assert!(ms >= 1 && seconds == ms.div_ceil(1000), "{seconds} s, {answer}");
        assert!(answer.body["error"].is_string(), "{answer}");
        return answer;
    }
    answer.json()
}

async fn register(server: &TestServer, from: &str, name: &str) -> User {
    let body = json!({
        "username": unique(name), "password": PASSWORD, "auth": { "type": "m.login.dummy" },
    });
    let http = server.http();
    let path = "/_matrix/client/v3/register";
    User::of(&http, request(&http, from, None, "POST", path, &body).await)
}

async fn login(http: &Http, from: &str, user: &str, password: &str) -> Answer {
    let body = json!({
        "type": "m.login.password", "password": password,
        "identifier": { "type": "m.id.user", "user": user },
    });
    request(http, from, None, "POST", "/_matrix/client/v3/login", &body).await
}

/// Every endpoint of part 1 of the specification: method, path, whether it takes a token, and
/// whether it is limited in rate.
const SUMMARY: [(&str, &str, bool, bool); 26] = [
    ("GET", "/.well-known/svc/client", false, false),
    ("GET", "/_svc/client/versions", false, false),
    ("GET", "/_svc/client/v1/register/m.login.registration_token/validity?token=x", false, true),
    ("GET", "/_svc/client/v3/login", false, true),
    ("POST", "/_svc/client/v3/login", false, true),
    ("POST", "/_svc/client/v3/refresh", false, true),
    ("POST", "/_svc/client/v3/logout", true, false),
    ("POST", "/_svc/client/v3/logout/all", true, false),
    ("POST", "/_svc/client/v3/account/deactivate", true, true),
    ("POST", "/_svc/client/v3/account/password", true, true),
    ("POST", "/_svc/client/v3/account/password/email/requestToken", false, false),
    ("POST", "/_svc/client/v3/account/password/msisdn/requestToken", false, false),
    ("POST", "/_svc/client/v3/register", false, true),
    ("GET", "/_svc/client/v3/register/available?username=x", false, true),
    ("POST", "/_svc/client/v3/register/email/requestToken", false, false),
    ("POST", "/_svc/client/v3/register/msisdn/requestToken", false, false),
    ("GET", "/_svc/client/v3/account/3pid", true, false),
    ("POST", "/_svc/client/v3/account/3pid", true, false),
    ("POST", "/_svc/client/v3/account/3pid/add", true, true),
    ("POST", "/_svc/client/v3/account/3pid/bind", true, true),
    ("POST", "/_svc/client/v3/account/3pid/delete", true, false),
    ("POST", "/_svc/client/v3/account/3pid/email/requestToken", false, false),
    ("POST", "/_svc/client/v3/account/3pid/msisdn/requestToken", false, false),
    ("POST", "/_svc/client/v3/account/3pid/unbind", true, false),
    ("GET", "/_svc/client/v3/account/whoami", true, true),
    ("GET", "/_svc/client/v3/capabilities", true, true),
];

#[tokio::test]
async fn the_endpoints_that_the_specification_says_are_limited_and_no_others() {
    crate::harness::nodes::one_server!("limits hold within a factor of two");
    let server = limited(&[
        ("LOGCABIN_RATE_LIMITS_ADDRESS", "1/h burst 3"),
        ("LOGCABIN_RATE_LIMITS_DEVICE", "1/h burst 3"),
    ])
    .await;
    let http = server.http();
    for (number, (method, path, takes_token, is_limited)) in SUMMARY.into_iter().enumerate() {
        // Each from an address, and by a user, of its own.
        let user = register(&server, &format!("10.1.0.{number}"), "ann").await;
        let token = takes_token.then_some(&*user.access_token);
        let from = format!("10.2.0.{number}");
        let mut refused = 0;
        for _ in 0..6 {
            let answer = request(&http, &from, token, method, path, &json!({})).await;
            assert_ne!(answer.body["errcode"], "M_UNRECOGNIZED", "{method} {path} is not served");
            refused += i32::from(answer.status == 429);
        }
        assert_eq!(refused, if is_limited { 3 } else { 0 }, "{method} {path}");
    }
}

#[tokio::test]
async fn one_address_is_a_whole_prefix_of_ipv6() {
    crate::harness::nodes::one_server!("limits hold within a factor of two");
    let server = limited(&[("LOGCABIN_RATE_LIMITS_ADDRESS", "1/h burst 2")]).await;
    let http = server.http();
    let path = "/_svc/client/v3/login";
    for (from, status) in [
        ("2001:db8:1:1::1", 200),
        ("2001:db8:1:1:ffff::2", 200),
        ("2001:db8:1:1:eeee::3", 429),
        ("2001:db8:1:2::1", 200),
    ] {
        let answer = request(&http, from, None, "GET", path, &json!({})).await;
        assert_eq!(answer.status, status, "{from}");
    }
}

#[tokio::test]
async fn a_user_with_a_limit_of_their_own_is_not_held_to_the_others() {
    crate::harness::nodes::one_server!("limits hold within a factor of two");
    let server = limited(&[
        ("LOGCABIN_RATE_LIMITS_DEVICE", "1/h burst 2"),
        ("LOGCABIN_RATE_LIMITS_USERS", "@bot:e2e.test off, @helper:e2e.test 1/h burst 5"),
    ])
    .await;
    for (name, allowed) in [("bot", 20), ("helper", 5), ("ann", 2)] {
        let user = server.register(name).await;
        let mut answered = 0;
        for _ in 0..20 {
            answered += i32::from(user.get("/account/whoami").await.status == 200);
        }
        assert_eq!(answered, allowed, "{name}");
    }
}

#[tokio::test]
async fn too_many_messages_are_refused_while_reading_goes_on() {
    let server = limited(&[("LOGCABIN_RATE_LIMITS_MESSAGES", "1/h burst 3")]).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    for number in 0..3 {
        ann.send_text(&room_id, &number.to_string(), "hello").await;
    }
    let refused = ann.try_send_text(&room_id, "3", "hello").await.expect("an answer");
    refused.refused(429, "M_LIMIT_EXCEEDED");
    ann.sync(None, 0, None).await;
    ann.get("/account/whoami").await.ok();
}

/// Requests as often as one likes, passwords not.
const GUESSING: [(&str, &str); 4] = [
    ("LOGCABIN_RATE_LIMITS_ADDRESS", "1000/s burst 1000"),
    ("LOGCABIN_RATE_LIMITS_LOGIN", "1000/s burst 1000"),
    ("LOGCABIN_RATE_LIMITS_WRONG_PASSWORDS_OF_ADDRESS", "1/h burst 3"),
    ("LOGCABIN_RATE_LIMITS_WRONG_PASSWORDS_FOR_USER", "1/h burst 5"),
];

#[tokio::test]
async fn wrong_passwords_from_one_address_end_and_do_not_tell_who_exists() {
    let server = limited(&GUESSING).await;
    let http = server.http();
    let ann = register(&server, "10.0.0.1", "ann").await;
    let mut told = Vec::new();
    for (from, user) in [("10.0.1.1", &*ann.user_id), ("10.0.1.2", "nobody")] {
        let mut answers = Vec::new();
        for _ in 0..5 {
            let answer = login(&http, from, user, "wrong").await;
            answers.push((
                answer.status,
                answer.body["errcode"].clone(),
                answer.body["error"].clone(),
            ));
        }
        told.push(answers);
    }
    assert_eq!(told[0], told[1]);
    let statuses: Vec<u16> = told[0].iter().map(|(status, _, _)| *status).collect();
    assert_eq!(statuses, [403, 403, 403, 429, 429]);
    // Not even the right one is looked at there; elsewhere it is.
    login(&http, "10.0.1.1", &ann.user_id, PASSWORD).await.refused(429, "M_LIMIT_EXCEEDED");
    login(&http, "10.0.1.3", &ann.user_id, PASSWORD).await.ok();
    // Right ones do not count.
    for _ in 0..10 {
        login(&http, "10.0.1.3", &ann.user_id, PASSWORD).await.ok();
    }
}

#[tokio::test]
async fn guesses_for_a_user_end_whatever_they_come_from_but_not_for_the_owner() {
    crate::harness::nodes::one_server!("limits hold within a factor of two");
    let server = limited(&GUESSING).await;
    let http = server.http();
    let ann = register(&server, "10.0.0.1", "ann").await;
    let whoami = "/_matrix/client/v3/account/whoami";
    let token = Some(&*ann.access_token);
    request(&http, "10.0.0.7", token, "GET", whoami, &json!({})).await.ok();
    // However the name is written.
    let names = [ann.user_id.clone(), ann.user_id.to_uppercase().replace(":E2E.TEST", ":e2e.test")];
    for number in 0..5 {
        let from = format!("10.0.2.{number}");
        login(&http, &from, &names[number % 2], "wrong").await.refused(403, "M_FORBIDDEN");
    }
    login(&http, "10.0.2.9", &ann.user_id, "wrong").await.refused(429, "M_LIMIT_EXCEEDED");
    login(&http, "10.0.2.9", &ann.user_id, PASSWORD).await.refused(429, "M_LIMIT_EXCEEDED");
    // Where the owner has been lately, they get in.
    login(&http, "10.0.0.7", &ann.user_id, PASSWORD).await.ok();
}

#[tokio::test]
async fn the_password_stage_is_no_way_around_the_limit() {
    let server = limited(&GUESSING).await;
    let http = server.http();
    let ann = register(&server, "10.0.0.1", "ann").await;
    let change = |password: &str| {
        let body = json!({
            "new_password": "another long password",
            "auth": {
                "type": "m.login.password", "password": password,
                "identifier": { "type": "m.id.user", "user": ann.user_id },
            },
        });
        let (http, token) = (http.clone(), ann.access_token.clone());
        async move {
            let path = "/_matrix/client/v3/account/password";
            request(&http, "10.0.0.1", Some(&token), "POST", path, &body).await
        }
    };
    for _ in 0..3 {
        change("wrong").await.refused(401, "M_FORBIDDEN");
    }
    change("wrong").await.refused(429, "M_LIMIT_EXCEEDED");
    change(PASSWORD).await.refused(429, "M_LIMIT_EXCEEDED");
    // The session goes on.
    let whoami = "/_matrix/client/v3/account/whoami";
    request(&http, "10.0.0.1", Some(&ann.access_token), "GET", whoami, &json!({})).await.ok();
}
