//! What passwords have to be like, and how they are kept.

use logcabin::{
    log::archive::ArchiveReader,
    record::{Command, Offset},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PASSWORD, anonymous, server, unique, user};
use crate::harness::{Http, TestServer, User};

async fn register(http: &Http, name: &str, password: &str) -> crate::harness::Answer {
    let body = json!({ "username": name, "password": password, "inhibit_login": true });
    anonymous(http, "POST", "/register", Some(&body)).await
}

#[tokio::test]
async fn a_weak_password_is_refused_before_anything_else_is_asked_for() {
    let server = server().await;
    let http = server.http();
    let name = unique("hannah-smith");
    for weak in ["", "short", "Password", &*name] {
        register(&http, &name, weak).await.refused(400, "M_WEAK_PASSWORD");
    }
    register(&http, &name, &"x".repeat(513)).await.refused(400, "M_INVALID_PARAM");
    assert_eq!(register(&http, &name, "correct horse").await.status, 401);

    let ann = user(&server, "ann").await;
    let weak = json!({ "new_password": "short" });
    ann.post("/account/password", weak).await.refused(400, "M_WEAK_PASSWORD");
}

#[tokio::test]
async fn what_a_password_needs_is_configured() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_PASSWORDS_MIN_LENGTH", "12"),
        ("LOGCABIN_PASSWORDS_REQUIRE_DIGIT", "true"),
        ("LOGCABIN_PASSWORDS_REQUIRE_UPPERCASE", "true"),
        ("LOGCABIN_PASSWORDS_DENIED", "Autumn-Leaves-1, x"),
    ])
    .await;
    let http = server.http();
    for weak in ["Short 1", "no capitals 1", "No Digits Here", "AUTUMN-leaves-1"] {
        let body = register(&http, "ann", weak).await.refused(400, "M_WEAK_PASSWORD");
        assert!(body["error"].is_string());
    }
    assert_eq!(register(&http, "ann", "Long enough 1").await.status, 401);
}

/// How often a password was set, its hash was renewed, and somebody logged in, as the log has it.
fn told(server: &TestServer) -> [usize; 3] {
    let archive = ArchiveReader::open(&server.data_dir().join("archive")).expect("an archive");
    let mut told = [0; 3];
    for record in archive.records(Offset::new(1)) {
        match record.expect("a whole record").command().expect("a known kind") {
            Some(Command::UserPassword(body)) => told[usize::from(body.renewed)] += 1,
            Some(Command::DeviceLogin(_)) => told[2] += 1,
            _ => {}
        }
    }
    told
}

#[tokio::test]
async fn a_hash_is_renewed_at_the_next_login_once_and_is_no_change_of_the_password() {
    let directory = TempDir::new().expect("a temporary directory");
    let with = |iterations: &'static str| {
        let data_dir = directory.path().to_owned();
        async move {
            let settings = [("LOGCABIN_PASSWORDS_ITERATIONS", iterations)];
            TestServer::start_on_with(&data_dir, &settings).await
        }
    };
    let mut server = with("1000").await;
    server.register("ann").await;
    server.stop();

    let mut server = with("50000").await;
    let http = server.http();
    let wrong = json!({ "type": "m.login.password", "user": "ann", "password": "wrong" });
    anonymous(&http, "POST", "/login", Some(&wrong)).await.refused(403, "M_FORBIDDEN");
    // Of several at once, none is in the way of another.
    let logins: Vec<_> = (0..6).map(|_| tokio::spawn(login(http.clone(), PASSWORD))).collect();
    for login in logins {
        login.await.expect("no panic").get("/account/whoami").await.ok();
    }
    server.stop();
    assert_eq!(told(&server), [0, 1, 7]);

    // Not renewed to a weaker one, and good after a replay.
    let mut server = with("1000").await;
    login(server.http(), PASSWORD).await;
    server.stop();
    assert_eq!(told(&server), [0, 1, 8]);
}

async fn login(http: Http, password: &str) -> User {
    User::login(&http, "ann", password).await
}

#[tokio::test]
async fn a_changed_password_ends_the_refresh_tokens_of_other_devices_too() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let body = json!({
        "type": "m.login.password", "password": PASSWORD, "refresh_token": true,
        "identifier": { "type": "m.id.user", "user": ann.user_id },
    });
    let login = || anonymous(&ann.http, "POST", "/login", Some(&body));
    let (this, other): (Value, Value) = (login().await.ok(), login().await.ok());
    let this_user = User { access_token: super::string(&this, "access_token"), ..ann.clone() };
    let change = json!({
        "new_password": "another long password",
        "auth": {
            "type": "m.login.password", "password": PASSWORD,
            "identifier": { "type": "m.id.user", "user": ann.user_id },
        },
    });
    this_user.post("/account/password", change).await.ok();
    let refresh = json!({ "refresh_token": other["refresh_token"] });
    let refused = anonymous(&ann.http, "POST", "/refresh", Some(&refresh)).await;
    assert_eq!(refused.refused(401, "M_UNKNOWN_TOKEN")["soft_logout"], false);
    this_user.get("/account/whoami").await.ok();
    let devices = this_user.get("/devices").await.ok();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(1));
    assert_eq!(devices["devices"][0]["device_id"], this["device_id"]);
}
