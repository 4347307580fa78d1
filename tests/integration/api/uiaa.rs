//! User-interactive authentication: sessions, and the pages of its stages.

use serde_json::{Value, json};

use super::{PASSWORD, anonymous, server, unique, user};
use crate::harness::{Http, RawAnswer, TestServer, encode};

const PAGE: &str = "/_svc/client/v3/auth";

fn page_of(stage: &str, session: &str) -> String {
    format!("{PAGE}/{stage}/fallback/web?session={}", encode(session))
}

async fn open(http: &Http, path: &str) -> RawAnswer {
    http.raw("GET", path, &[], "").await
}

async fn send(http: &Http, path: &str, form: &'static str) -> RawAnswer {
    http.raw("POST", path, &[("content-type", "application/x-www-form-urlencoded")], form).await
}

fn html(answer: &RawAnswer) -> String {
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

async fn register(http: &Http, body: &Value) -> crate::harness::Answer {
    anonymous(http, "POST", "/register", Some(body)).await
}

#[tokio::test]
async fn a_session_is_bound_to_request_and_user() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let other = ann.another_device().await;
    let path = format!("/devices/{}", encode(&other.device_id));
    let asked = ann.request("DELETE", &path, Some(&json!({}))).await;
    let session = asked.body["session"].clone();
    let auth = |user: &str| {
        json!({ "auth": {
            "type": "m.login.password", "password": PASSWORD, "session": session,
            "identifier": { "type": "m.id.user", "user": user },
        } })
    };
    // Another path, another body, another user.
    let own = format!("/devices/{}", encode(&ann.device_id));
    for answer in [
        ann.request("DELETE", &own, Some(&auth(&ann.user_id))).await,
        {
            let mut body = auth(&ann.user_id);
            body["more"] = true.into();
            ann.request("DELETE", &path, Some(&body)).await
        },
        bob.request("DELETE", &path, Some(&auth(&bob.user_id))).await,
    ] {
        assert_ne!(answer.body["session"], session, "{answer}");
        answer.refused(401, "M_UNAUTHORIZED");
    }
    // By localpart as by full id.
    let localpart = ann.localpart();
    ann.request("DELETE", &path, Some(&auth(localpart))).await.ok();
}

#[tokio::test]
async fn an_identifier_of_nobody_is_forbidden() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let body = json!({ "devices": ["X"], "auth": {
        "type": "m.login.password", "password": PASSWORD,
        "identifier": { "type": "m.id.thirdparty", "medium": "email", "address": "nobody@example.org" },
    } });
    ann.post("/delete_devices", body).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_page_completes_its_stage_and_the_session_alone_goes_on() {
    let server = server().await;
    let http = server.http();
    let mut body = json!({ "username": unique("ann"), "password": PASSWORD });
    let asked = register(&http, &body).await;
    let session = super::string(&asked.body, "session");
    let path = page_of("m.login.dummy", &session);
    let page = open(&http, &path).await;
    assert_eq!(page.parts.status, 200);
    let policy = page.header("content-security-policy").to_owned();
    assert!(policy.contains("default-src 'none'"), "{policy}");
    assert!(!policy.contains("http"), "{policy}");
    assert!(html(&page).contains("<form method=\"post\">"));
    // To look at the page completes nothing.
    body["auth"] = json!({ "session": session });
    let waiting = register(&http, &body).await;
    assert_eq!((waiting.status, &waiting.body["completed"]), (401, &json!([])), "{waiting}");
    assert!(waiting.body.get("errcode").is_none(), "{waiting}");

    let done = send(&http, &path, "").await;
    assert_eq!(done.parts.status, 200);
    let shown = html(&done);
    assert!(shown.contains("onAuthDone") && shown.contains("postMessage('authDone', '*')"));
    // Again, and by the other prefix and version.
    assert!(html(&send(&http, &path, "").await).contains("onAuthDone"));
    let other = path.replace("/_svc/client/v3", "/_matrix/client/r0");
    assert!(html(&open(&http, &other).await).contains("onAuthDone"));
    register(&http, &body).await.ok();
    // What was finished is over.
    let over = open(&http, &path).await;
    assert_eq!(over.parts.status, 404);
    html(&over);
}

#[tokio::test]
async fn a_page_of_nothing_says_so() {
    let server = server().await;
    let http = server.http();
    let asked = register(&http, &json!({ "username": unique("ann"), "password": PASSWORD })).await;
    let session = super::string(&asked.body, "session");
    for (path, status) in [
        (page_of("m.login.dummy", "made-up"), 404),
        (page_of("m.login.dummy", "<script>alert(1)</script>"), 404),
        (page_of("m.login.terms", &session), 404),
        (page_of("org.example.unheard", &session), 404),
        (format!("{PAGE}/m.login.dummy/fallback/web"), 400),
    ] {
        for answer in [open(&http, &path).await, send(&http, &path, "").await] {
            assert_eq!(answer.parts.status, status, "{path}");
            let shown = html(&answer);
            assert!(!shown.contains("alert(1)") && !shown.contains("onAuthDone"), "{shown}");
        }
    }
}

#[tokio::test]
async fn the_page_of_the_password_asks_for_the_callers() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let other = ann.another_device().await;
    let devices = json!({ "devices": [other.device_id] });
    let asked = ann.post("/delete_devices", devices.clone()).await;
    let session = super::string(&asked.body, "session");
    let path = page_of("m.login.password", &session);
    let shown = html(&open(&ann.http, &path).await);
    assert!(shown.contains(&ann.user_id) && shown.contains("type=\"password\""), "{shown}");
    // Whatever user the form names, it is the caller's password that counts.
    let wrong = send(&ann.http, &path, "user=someone&password=wrong").await;
    assert_eq!(wrong.parts.status, 403);
    let shown = html(&wrong);
    assert!(shown.contains("role=\"alert\"") && shown.contains("Wrong user name or password."));
    let right =
        send(&ann.http, &path, "user=someone&password=a+password+that+is+long+enough").await;
    assert!(html(&right).contains("onAuthDone"));
    let mut body = devices;
    body["auth"] = json!({ "session": session });
    ann.post("/delete_devices", body).await.ok();
    other.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test]
async fn guesses_on_a_page_are_limited() {
    let settings =
        [("LOGCABIN_RATE_LIMITS_ENABLED", "true"), ("LOGCABIN_RATE_LIMITS_ADDRESS", "1/h burst 5")];
    let server = TestServer::start_with(&settings).await;
    let http = server.http();
    let mut limited = 0;
    for _ in 0..30 {
        let answer = send(&http, &page_of("m.login.dummy", "x"), "").await;
        assert!(answer.header("content-type").starts_with("text/html"));
        limited += i32::from(answer.parts.status == 429);
    }
    assert_eq!(limited, 25);
}
