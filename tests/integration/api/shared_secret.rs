//! Registration by a shared secret, as existing tools speak it.

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha1::Sha1;

use super::{PASSWORD, anonymous};
use crate::harness::{Answer, Http, TestServer, User, refused_start, run_logcabin};

const SECRET: &str = "a secret of some length";
const PATH: &str = "/_synapse/admin/v1/register";

async fn nonce(http: &Http) -> String {
    http.request("GET", PATH, None, None).await.ok_string("nonce")
}

/// A request as the tools make it.
fn signed(nonce: &str, name: &str, admin: bool, user_type: Option<&str>, secret: &str) -> Value {
    let mut mac = Hmac::<Sha1>::new_from_slice(secret.as_bytes()).expect("any key is one");
    let role = if admin { "admin" } else { "notadmin" };
    mac.update([nonce, name, PASSWORD, role].join("\0").as_bytes());
    let mut body =
        json!({ "nonce": nonce, "username": name, "password": PASSWORD, "admin": admin });
    if let Some(user_type) = user_type {
        mac.update(format!("\0{user_type}").as_bytes());
        body["user_type"] = user_type.into();
    }
    let mac = mac.finalize().into_bytes();
    body["mac"] = mac.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    body
}

async fn register(http: &Http, body: &Value) -> Answer {
    http.request("POST", PATH, None, Some(body)).await
}

#[tokio::test]
async fn whoever_knows_the_secret_makes_accounts_while_registration_is_closed() {
    let settings =
        [("LOGCABIN_REGISTRATION_OPEN", "false"), ("LOGCABIN_REGISTRATION_SHARED_SECRET", SECRET)];
    let server = TestServer::start_with(&settings).await;
    let http = server.http();
    let body = json!({ "username": "eve", "password": PASSWORD });
    anonymous(&http, "POST", "/register", Some(&body)).await.refused(403, "M_FORBIDDEN");

    let body = signed(&nonce(&http).await, "ann", true, None, SECRET);
    let ann = User::of(&http, register(&http, &body).await);
    assert_eq!(ann.user_id, "@ann:e2e.test");
    ann.get("/account/whoami").await.ok();
    User::login(&http, "ann", PASSWORD).await;
    let moderation = ann.get("/capabilities").await.ok();
    assert_eq!(moderation["capabilities"]["m.account_moderation"]["lock"], true);

    let body = signed(&nonce(&http).await, "bob", false, Some("bot"), SECRET);
    let bob = User::of(&http, register(&http, &body).await);
    let moderation = bob.get("/capabilities").await.ok();
    assert_ne!(moderation["capabilities"]["m.account_moderation"]["lock"], true);

    // A nonce serves once, also when the request is refused.
    register(&http, &body).await.refused(400, "M_UNKNOWN");
    let taken = signed(&nonce(&http).await, "bob", false, None, SECRET);
    register(&http, &taken).await.refused(400, "M_USER_IN_USE");
    register(&http, &taken).await.refused(400, "M_UNKNOWN");
    let invalid = signed(&nonce(&http).await, "No Name!", false, None, SECRET);
    register(&http, &invalid).await.refused(400, "M_INVALID_USERNAME");
    let wrong = signed(&nonce(&http).await, "cas", false, None, "another secret");
    register(&http, &wrong).await.refused(403, "M_FORBIDDEN");
    let mut raised = signed(&nonce(&http).await, "cas", false, None, SECRET);
    raised["admin"] = true.into();
    register(&http, &raised).await.refused(403, "M_FORBIDDEN");
    let strange = signed(&nonce(&http).await, "cas", false, Some("king"), SECRET);
    register(&http, &strange).await.refused(400, "M_INVALID_PARAM");
    let mut body = signed(&nonce(&http).await, "cas", false, None, SECRET);
    body.as_object_mut().expect("an object").remove("password");
    register(&http, &body).await.refused(400, "M_BAD_JSON");
    anonymous(&http, "GET", "/register/available?username=cas", None).await.ok();
}

#[tokio::test]
async fn without_a_secret_there_is_no_such_registration_and_a_weak_one_does_not_count() {
    let server = super::server().await;
    let http = server.http();
    http.request("GET", PATH, None, None).await.refused(403, "M_FORBIDDEN");
    let body = signed("nonce", "ann", true, None, "");
    register(&http, &body).await.refused(403, "M_FORBIDDEN");

    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let file = directory.path().join("logcabin.toml");
    std::fs::write(&file, "[registration]\nshared_secret = \"\"\n").expect("a file");
    let output = run_logcabin(["config".as_ref(), "--config".as_ref(), file.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "an empty one is taken");
    assert!(said.contains("not empty"), "{said}");
    // A short one is taken, and warned of.
    let server = TestServer::start_with(&[("LOGCABIN_REGISTRATION_SHARED_SECRET", "short")]).await;
    server.prints("fewer than 16 characters").await;
    let body = signed(&nonce(&server.http()).await, "dee", false, None, "short");
    User::of(&server.http(), register(&server.http(), &body).await);
    // A good one is not printed.
    let file = directory.path().join("logcabin.toml");
    let text = format!("[registration]\nshared_secret = \"{SECRET}\"\n");
    std::fs::write(&file, text).expect("a file");
    let output = run_logcabin(["config".as_ref(), "--config".as_ref(), file.as_os_str()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("(hidden)") && !said.contains(SECRET));
}

#[test]
fn a_server_that_refuses_a_secret_says_nothing_of_it() {
    const SECRET: &str = "Zq9073514792xV";
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path in Unicode");
    std::fs::write(file.path(), format!("client_secret = {SECRET}\n")).expect("to write it");
    let bad = |name: &'static str, value: &str| vec![(name, value.to_owned())];
    let email = |mut more: Vec<(&'static str, String)>| {
        more.extend(bad("LOGCABIN_EMAIL_HOST", "localhost"));
        more.extend(bad("LOGCABIN_EMAIL_USER", "ann"));
        more
    };
    let captcha = |mut more: Vec<(&'static str, String)>| {
        more.extend(bad("LOGCABIN_CAPTCHA_PUBLIC_KEY", "public"));
        more
    };
    let sms = |mut more: Vec<(&'static str, String)>| {
        more.extend(bad("LOGCABIN_SMS_URL", &format!("https://localhost/?key={SECRET}")));
        more
    };
    for (settings, names) in [
        (bad("LOGCABIN_SMS_URL", &format!("gw.example/?key={SECRET}")), "sms.url"),
        (bad("LOGCABIN_SMS_TEMPLATE", &format!("{{\"key\":\"{SECRET}\"")), "sms.template"),
        (sms(bad("LOGCABIN_SMS_HEADERS", SECRET)), "sms.headers"),
        (email(bad("LOGCABIN_EMAIL_PASSWORD_FILE", SECRET)), "email.password_file"),
        (captcha(bad("LOGCABIN_CAPTCHA_SECRET_KEY_FILE", SECRET)), "captcha.secret_key_file"),
        (bad("LOGCABIN_SSO_PROVIDERS", path), "line 1"),
    ] {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, &**value)).collect();
        let said = refused_start(&settings, &[]);
        assert!(said.contains(names), "{settings:?}: {said}");
        assert!(!said.contains(SECRET), "{settings:?}: {said}");
    }
}
