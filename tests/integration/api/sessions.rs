//! Login, tokens, devices.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{PASSWORD, anonymous, server, string, user};
use crate::harness::{Answer, Http, TestServer, User, encode};

async fn login(http: &Http, body: Value) -> Answer {
    anonymous(http, "POST", "/login", Some(&body)).await
}

async fn refresh(http: &Http, refresh_token: &str) -> Answer {
    anonymous(http, "POST", "/refresh", Some(&json!({ "refresh_token": refresh_token }))).await
}

fn by_password(user: &User) -> Value {
    json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": user.user_id },
        "password": PASSWORD,
    })
}

async fn is_logged_in(user: &User) -> bool {
    let answer = user.get("/account/whoami").await;
    if answer.status == 200 {
        return true;
    }
    answer.refused(401, "M_UNKNOWN_TOKEN");
    false
}

/// Logs in as a client that can refresh: the user, its refresh token and the answer.
async fn login_refreshable(user: &User) -> (User, String, Value) {
    let mut body = by_password(user);
    body["refresh_token"] = true.into();
    let answer = login(&user.http, body).await;
    let body = answer.body.clone();
    (User::of(&user.http, answer), string(&body, "refresh_token"), body)
}

/// Asserts that a token is refused, and whether its session still exists.
#[track_caller]
fn over(answer: Answer, session_exists: bool) {
    let body = answer.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(body["soft_logout"], session_exists, "{body}");
}

async fn whoami(user: &User) -> Answer {
    user.get("/account/whoami").await
}

fn with_token(user: &User, body: &Value) -> User {
    User { access_token: string(body, "access_token"), ..user.clone() }
}

#[tokio::test]
async fn a_user_is_named_by_id_or_localpart_in_old_fields_and_new() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (id, local) = (ann.user_id.as_str(), ann.localpart());
    for mut body in [
        json!({ "identifier": { "type": "m.id.user", "user": id } }),
        json!({ "identifier": { "type": "m.id.user", "user": local } }),
        json!({ "user": id }),
        json!({ "user": local }),
    ] {
        body["type"] = "m.login.password".into();
        body["password"] = PASSWORD.into();
        let answer = login(&server.http(), body).await.ok();
        assert_eq!(answer["user_id"], id);
        assert_eq!(answer["well_known"]["m.homeserver"]["base_url"], server.base());
        assert!(answer.get("expires_in_ms").is_none(), "{answer}");
        assert!(answer.get("refresh_token").is_none(), "{answer}");
    }
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_user_look_the_same() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let mut wrong = by_password(&ann);
    wrong["password"] = "wrong".into();
    let mut unknown = by_password(&ann);
    unknown["identifier"]["user"] = "nobody".into();
    let mut foreign = by_password(&ann);
    foreign["identifier"]["user"] = format!("@{}:elsewhere.test", ann.localpart()).into();
    let mut by_mail = by_password(&ann);
    by_mail["identifier"] =
        json!({ "type": "m.id.thirdparty", "medium": "email", "address": "ann@example.org" });
    let expected = login(&server.http(), wrong).await.refused(403, "M_FORBIDDEN");
    for body in [unknown, foreign, by_mail] {
        assert_eq!(login(&server.http(), body).await.refused(403, "M_FORBIDDEN"), expected);
    }
}

#[tokio::test]
async fn logging_in_as_a_known_device_ends_its_old_token_and_keeps_its_name() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let mut body = by_password(&ann);
    body["device_id"] = "PHONE".into();
    body["initial_device_display_name"] = "my phone".into();
    let first = User::of(&ann.http, login(&ann.http, body.clone()).await);
    assert_eq!(first.device_id, "PHONE");
    body["initial_device_display_name"] = "another name".into();
    let second = User::of(&ann.http, login(&ann.http, body).await);
    assert!(!is_logged_in(&first).await);
    assert!(is_logged_in(&second).await);
    assert!(is_logged_in(&ann).await);
    assert_eq!(second.get("/devices/PHONE").await.ok()["display_name"], "my phone");
    let devices = second.get("/devices").await.ok();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_refresh_token_is_good_until_the_new_access_token_is_used() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (old, token, answer) = login_refreshable(&ann).await;
    assert_eq!(answer["expires_in_ms"], 3_600_000);
    // The answer was lost: the client asks again.
    let lost = refresh(&ann.http, &token).await.ok();
    assert_eq!(lost["expires_in_ms"], 3_600_000);
    let refreshed = refresh(&ann.http, &token).await.ok();
    for key in ["access_token", "refresh_token"] {
        assert_eq!(refreshed[key], lost[key]);
    }
    assert!(is_logged_in(&old).await);
    let new = with_token(&old, &refreshed);
    assert_eq!(whoami(&new).await.ok()["device_id"], old.device_id.as_str());
    over(refresh(&ann.http, &token).await, true);
    over(whoami(&old).await, true);
    assert!(is_logged_in(&new).await);
}

#[tokio::test]
async fn a_refresh_token_is_good_until_the_new_refresh_token_is_used() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (old, first, _) = login_refreshable(&ann).await;
    let second = string(&refresh(&ann.http, &first).await.ok(), "refresh_token");
    let third = refresh(&ann.http, &second).await.ok();
    over(refresh(&ann.http, &first).await, true);
    assert!(is_logged_in(&with_token(&old, &third)).await);
    over(refresh(&ann.http, &second).await, true);
    over(refresh(&ann.http, "made up").await, false);
}

#[tokio::test]
async fn an_expired_access_token_is_a_soft_logout_and_can_be_refreshed() {
    let server = TestServer::start_with(&[("LOGCABIN_TOKENS_ACCESS_LIFETIME_SECONDS", "4")]).await;
    let ann = user(&server, "ann").await;
    let (session, token, answer) = login_refreshable(&ann).await;
    assert_eq!(answer["expires_in_ms"], 4000);
    assert!(is_logged_in(&session).await);
    // The time is the claim.
    tokio::time::sleep(Duration::from_millis(4100)).await;
    let body = session.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(body["soft_logout"], true);
    // Those who cannot refresh do not expire.
    assert!(is_logged_in(&ann).await);
    let refreshed = refresh(&ann.http, &token).await.ok();
    assert!(is_logged_in(&with_token(&session, &refreshed)).await);
    // The old one is good no more, but its session is.
    over(whoami(&session).await, true);
}

#[tokio::test]
async fn logout_ends_one_session_with_its_device() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (first, token, _) = login_refreshable(&ann).await;
    let refreshed = refresh(&ann.http, &token).await.ok();
    let other = with_token(&first, &refreshed);
    assert_eq!(other.post("/logout", json!({})).await.ok(), json!({}));
    for session in [&first, &other] {
        over(whoami(session).await, false);
    }
    for token in [token, string(&refreshed, "refresh_token")] {
        over(refresh(&ann.http, &token).await, false);
    }
    assert!(is_logged_in(&ann).await);
    ann.get(&format!("/devices/{}", other.device_id)).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn logout_all_ends_every_session_of_the_user_alone() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bob = user(&server, "bob").await;
    let other = ann.another_device().await;
    ann.post("/logout/all", json!({})).await.ok();
    assert!(!is_logged_in(&ann).await);
    assert!(!is_logged_in(&other).await);
    assert!(is_logged_in(&bob).await);
    let back = ann.another_device().await;
    let devices = back.get("/devices").await.ok();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn whoami_names_user_and_device() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let answer = ann.get("/account/whoami").await.ok();
    assert_eq!(answer["user_id"], ann.user_id.as_str());
    assert_eq!(answer["device_id"], ann.device_id.as_str());
    assert_ne!(answer["is_guest"], true);
}

/// Completes a request that asks for the password.
async fn with_password(user: &User, method: &str, path: &str, mut body: Value) -> Answer {
    let asked = user.request(method, path, Some(&body)).await;
    assert_eq!(asked.status, 401, "{asked}");
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.password"] }]));
    body["auth"] = json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": user.user_id },
        "password": "wrong",
        "session": asked.body["session"],
    });
    let wrong = user.request(method, path, Some(&body)).await;
    assert_eq!(wrong.body["session"], asked.body["session"]);
    wrong.refused(401, "M_FORBIDDEN");
    body["auth"]["password"] = PASSWORD.into();
    user.request(method, path, Some(&body)).await
}

#[tokio::test]
async fn a_new_password_logs_out_the_other_devices_unless_told_not_to() {
    let server = server().await;
    for (logout_devices, stays) in [(None, false), (Some(true), false), (Some(false), true)] {
        let ann = user(&server, "ann").await;
        let other = ann.another_device().await;
        let mut body = json!({ "new_password": "another long password" });
        if let Some(logout_devices) = logout_devices {
            body["logout_devices"] = logout_devices.into();
        }
        with_password(&ann, "POST", "/account/password", body).await.ok();
        assert!(is_logged_in(&ann).await);
        assert_eq!(is_logged_in(&other).await, stays);
        login(&ann.http, by_password(&ann)).await.refused(403, "M_FORBIDDEN");
        User::login(&ann.http, &ann.user_id, "another long password").await;
    }
}

#[tokio::test]
async fn another_users_password_does_not_authorise() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bob = user(&server, "bob").await;
    let body = json!({
        "new_password": "another long password",
        "auth": {
            "type": "m.login.password", "password": PASSWORD,
            "identifier": { "type": "m.id.user", "user": bob.user_id },
        },
    });
    ann.post("/account/password", body).await.refused(401, "M_FORBIDDEN");
}

#[tokio::test]
async fn devices_are_listed_renamed_and_deleted() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bob = user(&server, "bob").await;
    let other = ann.another_device().await;
    let path = format!("/devices/{}", encode(&other.device_id));
    ann.put(&path, json!({ "display_name": "the other" })).await.ok();
    let device = ann.get(&path).await.ok();
    assert_eq!(device["device_id"], other.device_id.as_str());
    assert_eq!(device["display_name"], "the other");
    // A rename without a name changes nothing.
    ann.put(&path, json!({})).await.ok();
    assert_eq!(ann.get(&path).await.ok()["display_name"], "the other");
    ann.put("/devices/NONE", json!({ "display_name": "x" })).await.refused(404, "M_NOT_FOUND");
    bob.get(&path).await.refused(404, "M_NOT_FOUND");
    bob.put(&path, json!({ "display_name": "x" })).await.refused(404, "M_NOT_FOUND");

    with_password(&ann, "DELETE", &path, json!({})).await.ok();
    assert!(!is_logged_in(&other).await);
    ann.get(&path).await.refused(404, "M_NOT_FOUND");

    let (third, fourth) = (ann.another_device().await, ann.another_device().await);
    let devices = json!({ "devices": [third.device_id, fourth.device_id] });
    with_password(&ann, "POST", "/delete_devices", devices).await.ok();
    assert!(!is_logged_in(&third).await && !is_logged_in(&fourth).await);
    assert!(is_logged_in(&ann).await);
}

#[tokio::test]
async fn the_home_server_in_a_response_is_that_of_the_user_id() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let logged_in = login(&ann.http, by_password(&ann)).await.ok();
    let body = json!({
        "username": super::unique("bob"), "password": PASSWORD,
        "auth": { "type": "m.login.dummy" },
    });
    let registered = anonymous(&ann.http, "POST", "/register", Some(&body)).await.ok();
    for answer in [logged_in, registered] {
        assert_eq!(answer["home_server"], "e2e.test", "{answer}");
        assert!(string(&answer, "user_id").ends_with(":e2e.test"), "{answer}");
    }
}

#[tokio::test]
async fn a_refresh_needs_its_token_and_no_other() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (session, token, _) = login_refreshable(&ann).await;
    let path = "/_matrix/client/v3/refresh";
    let body = json!({ "refresh_token": token });
    // Neither no access token nor a bad one is in the way, and a good one is none.
    for access_token in [None, Some("wrong"), Some(ann.access_token.as_str())] {
        ann.http.request("POST", path, access_token, Some(&body)).await.ok();
    }
    let empty = ann.http.request("POST", path, Some(&session.access_token), Some(&json!({}))).await;
    empty.refused(400, "M_BAD_JSON");
    for other in [session.access_token.as_str(), "made up", ""] {
        let told = refresh(&ann.http, other).await.refused(401, "M_UNKNOWN_TOKEN");
        assert_eq!(told["soft_logout"], false, "{told}");
    }
    // Nor is a refresh token an access token.
    let answer = ann.http.request("GET", "/_matrix/client/v3/sync", Some(&token), None).await;
    answer.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test]
async fn a_logout_needs_no_body() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for path in ["logout", "logout/all"] {
        let other = ann.another_device().await;
        let bearer = format!("Bearer {}", other.access_token);
        let headers = [("authorization", bearer.as_str())];
        let path = format!("/_svc/client/v3/{path}");
        // One whose body is not what a body is ends nothing.
        let answer = ann.http.raw("POST", &path, &headers, "{'a':1}").await;
        answer.json().refused(400, "M_NOT_JSON");
        assert!(is_logged_in(&other).await);
        assert_eq!(ann.http.raw("POST", &path, &headers, "").await.json().ok(), json!({}));
        assert!(!is_logged_in(&other).await);
    }
}

/// The devices of `user` whose keys another user is told of.
async fn devices_with_keys(by: &User, user: &User) -> Vec<String> {
    let asked = json!({ "device_keys": { user.user_id.as_str(): [] } });
    let keys = by.post("/keys/query", asked).await.ok();
    let devices = keys["device_keys"][&user.user_id].as_object();
    devices.into_iter().flatten().map(|(device_id, _)| device_id.clone()).collect()
}

async fn upload_keys(user: &User) {
    let keys = user.keys();
    let body = json!({ "device_keys": keys.identity(), "one_time_keys": keys.one_time(&["a"]) });
    user.post("/keys/upload", body).await.ok();
}

#[tokio::test]
async fn the_keys_of_devices_go_with_a_logout() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (phone, tablet) = (ann.another_device().await, ann.another_device().await);
    for device in [&ann, &phone, &tablet] {
        upload_keys(device).await;
    }
    assert_eq!(devices_with_keys(&bob, &ann).await.len(), 3);
    phone.post("/logout", json!({})).await.ok();
    let left = devices_with_keys(&bob, &ann).await;
    assert!(left.len() == 2 && !left.contains(&phone.device_id), "{left:?}");
    ann.post("/logout/all", json!({})).await.ok();
    assert!(devices_with_keys(&bob, &ann).await.is_empty());
    let devices = [&ann, &phone, &tablet].map(|device| device.device_id.as_str());
    let wanted: serde_json::Map<_, _> =
        devices.iter().map(|id| ((*id).to_owned(), "signed_curve25519".into())).collect();
    let claim = json!({ "one_time_keys": { ann.user_id.as_str(): wanted } });
    let claimed = bob.post("/keys/claim", claim).await.ok();
    let of_ann = claimed["one_time_keys"].get(&ann.user_id).and_then(Value::as_object);
    assert!(of_ann.is_none_or(serde_json::Map::is_empty), "{claimed}");
}

#[tokio::test]
async fn a_device_that_logs_in_again_has_its_keys_still() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    upload_keys(&ann).await;
    let mut body = by_password(&ann);
    body["device_id"] = ann.device_id.as_str().into();
    let again = User::of(&ann.http, login(&ann.http, body).await);
    assert_eq!(again.device_id, ann.device_id);
    assert_eq!(devices_with_keys(&bob, &ann).await, [ann.device_id.as_str()]);
    assert!(!is_logged_in(&ann).await);
}

#[tokio::test]
async fn the_same_device_id_of_two_users_is_two_devices() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let mut sessions = Vec::new();
    for (user, name) in [(&ann, "of ann"), (&bob, "of bob")] {
        let mut body = by_password(user);
        body["device_id"] = "SHARED".into();
        body["initial_device_display_name"] = name.into();
        sessions.push((User::of(&user.http, login(&user.http, body).await), name));
    }
    for (session, name) in sessions {
        assert_eq!(session.get("/devices/SHARED").await.ok()["display_name"], name);
    }
}

#[tokio::test]
async fn an_invalid_new_password_is_refused_before_authentication() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    ann.post("/account/password", json!({})).await.refused(400, "M_BAD_JSON");
    ann.post("/account/password", json!({ "new_password": 7 })).await.refused(400, "M_BAD_JSON");
    let empty = json!({ "new_password": "" });
    ann.post("/account/password", empty).await.refused(400, "M_WEAK_PASSWORD");
    let body = json!({ "new_password": "another long password", "logout_devices": "no" });
    ann.post("/account/password", body).await.refused(400, "M_BAD_JSON");
    // None of it was a change.
    let body = json!({ "new_password": "another long password" });
    assert_eq!(with_password(&ann, "POST", "/account/password", body).await.ok(), json!({}));
}

#[tokio::test]
async fn device_ids_names_and_passwords_are_bounded() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let with = |key: &str, value: String| {
        let mut body = by_password(&ann);
        body[key] = value.into();
        let http = ann.http.clone();
        async move { login(&http, body).await }
    };
    with("device_id", "x".repeat(256)).await.refused(400, "M_INVALID_PARAM");
    with("device_id", "a\nb".to_owned()).await.refused(400, "M_INVALID_PARAM");
    with("device_id", "x".repeat(255)).await.ok();
    let name = "initial_device_display_name";
    with(name, "x".repeat(257)).await.refused(413, "M_TOO_LARGE");
    with(name, "x".repeat(256)).await.ok();
    with("password", "x".repeat(60_000)).await.refused(403, "M_FORBIDDEN");
    with("password", "x".repeat(100_000)).await.refused(413, "M_TOO_LARGE");
    let long = json!({
        "username": super::unique("bob"), "password": "x".repeat(513),
        "auth": { "type": "m.login.dummy" },
    });
    let answer = anonymous(&ann.http, "POST", "/register", Some(&long)).await;
    answer.refused(400, "M_INVALID_PARAM");
}

/// Logs in again as the device that the user was logged out of, as after a soft logout.
async fn again(user: &User) -> (User, Value) {
    let mut body = by_password(user);
    body["device_id"] = user.device_id.clone().into();
    body["refresh_token"] = true.into();
    let answer = login(&user.http, body).await;
    let body = answer.body.clone();
    (User::of(&user.http, answer), body)
}

#[tokio::test]
async fn clients_that_cannot_refresh_may_be_given_tokens_that_expire_and_keep_their_device() {
    let setting = ("LOGCABIN_TOKENS_UNREFRESHABLE_LIFETIME_SECONDS", "2");
    let server = TestServer::start_with(&[setting]).await;
    let ann = user(&server, "ann").await;
    let path = format!("/devices/{}", ann.device_id);
    ann.put(&path, json!({ "display_name": "my phone" })).await.ok();
    let told = login(&ann.http, by_password(&ann)).await.ok();
    assert_eq!(told["expires_in_ms"], 2000);
    assert!(told.get("refresh_token").is_none(), "{told}");
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let refused = ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(refused["soft_logout"], true);

    let (back, _) = again(&ann).await;
    assert_eq!(back.device_id, ann.device_id);
    assert_eq!(back.get(&path).await.ok()["display_name"], "my phone");
    // By now the old one is over for good.
    let refused = ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(refused["soft_logout"], false);
}

#[tokio::test]
async fn a_session_ends_when_its_time_is_over_however_often_it_is_refreshed() {
    let setting = ("LOGCABIN_TOKENS_SESSION_LIFETIME_SECONDS", "4");
    let mut server = TestServer::start_with(&[setting]).await;
    let ann = user(&server, "ann").await;
    let (session, token, told) = login_refreshable(&ann).await;
    assert!(told["expires_in_ms"].as_u64().is_some_and(|ms| ms <= 4000), "{told}");
    let begun = std::time::Instant::now();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    // It began when it began, also after a restart.
    server.restart().await;
    let refreshed = refresh(&ann.http, &token).await.ok();
    assert!(refreshed["expires_in_ms"].as_u64().is_some_and(|ms| ms <= 3000), "{refreshed}");
    let session = with_token(&session, &refreshed);
    assert!(is_logged_in(&session).await);
    tokio::time::sleep(Duration::from_millis(4100).saturating_sub(begun.elapsed())).await;
    let refused = session.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(refused["soft_logout"], true);
    let token = string(&refreshed, "refresh_token");
    let refused = refresh(&ann.http, &token).await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(refused["soft_logout"], true);
    let (back, _) = again(&session).await;
    assert_eq!(back.device_id, session.device_id);
    assert!(is_logged_in(&back).await);
}

#[tokio::test]
async fn a_client_that_stays_away_too_long_cannot_refresh() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_TOKENS_ACCESS_LIFETIME_SECONDS", "1"),
        ("LOGCABIN_TOKENS_REFRESH_LIFETIME_SECONDS", "3"),
    ])
    .await;
    let ann = user(&server, "ann").await;
    let (_, mut token, _) = login_refreshable(&ann).await;
    // As long as it comes back in time, it goes on, for longer than it may stay away.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1600)).await;
        token = string(&refresh(&ann.http, &token).await.ok(), "refresh_token");
    }
    tokio::time::sleep(Duration::from_millis(3100)).await;
    let refused = refresh(&ann.http, &token).await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(refused["soft_logout"], true);
}

#[tokio::test]
async fn a_refresh_that_was_not_used_yet_survives_the_death_of_the_server() {
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let (old, token, _) = login_refreshable(&ann).await;
    let lost = refresh(&ann.http, &token).await.ok();
    server.restart().await;
    assert!(is_logged_in(&old).await);
    let refreshed = refresh(&ann.http, &token).await.ok();
    assert_eq!(refreshed["access_token"], lost["access_token"]);
    let new = with_token(&old, &refreshed);
    assert!(is_logged_in(&new).await);
    server.restart().await;
    assert!(is_logged_in(&new).await);
    assert!(!is_logged_in(&old).await);
    over(refresh(&ann.http, &token).await, true);
    let next = string(&refreshed, "refresh_token");
    assert!(is_logged_in(&with_token(&old, &refresh(&ann.http, &next).await.ok())).await);
}

#[tokio::test]
async fn whichever_answer_a_client_keeps_of_refreshes_at_the_same_time_is_good() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (old, mut token, _) = login_refreshable(&ann).await;
    // The second time the token that is presented has not been used itself.
    for _ in 0..2 {
        let many: Vec<_> = (0..30)
            .map(|_| {
                let (http, token) = (ann.http.clone(), token.clone());
                tokio::spawn(async move { refresh(&http, &token).await.ok() })
            })
            .collect();
        let mut answers = Vec::new();
        for one in many {
            answers.push(one.await.expect("no panic"));
        }
        token = string(&answers[0], "refresh_token");
        for answer in &answers {
            assert!(is_logged_in(&with_token(&old, answer)).await, "{answer}");
            assert_eq!(answer["refresh_token"], token);
            assert!(answer["expires_in_ms"].as_u64().is_some_and(|ms| ms > 3_500_000), "{answer}");
        }
    }
    over(whoami(&old).await, true);
}

#[tokio::test]
async fn a_pair_that_ended_before_it_was_used_is_given_a_new_end() {
    let server = TestServer::start_with(&[("LOGCABIN_TOKENS_ACCESS_LIFETIME_SECONDS", "2")]).await;
    let ann = user(&server, "ann").await;
    let (old, token, _) = login_refreshable(&ann).await;
    let first = refresh(&ann.http, &token).await.ok();
    tokio::time::sleep(Duration::from_millis(2100)).await;
    over(whoami(&with_token(&old, &first)).await, true);
    let second = refresh(&ann.http, &token).await.ok();
    assert_eq!(second["access_token"], first["access_token"]);
    assert_eq!(second["expires_in_ms"], 2000);
    assert!(is_logged_in(&with_token(&old, &first)).await);
}

#[tokio::test]
async fn a_superseded_token_of_a_device_that_logged_in_again_has_no_session() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (first, token, _) = login_refreshable(&ann).await;
    let second = with_token(&first, &refresh(&ann.http, &token).await.ok());
    assert!(is_logged_in(&second).await);
    over(refresh(&ann.http, &token).await, true);
    let (third, _) = again(&first).await;
    for session in [&first, &second] {
        over(whoami(session).await, false);
    }
    over(refresh(&ann.http, &token).await, false);
    assert!(is_logged_in(&third).await);
}

#[tokio::test]
async fn nobody_learns_by_made_up_tokens_which_sessions_there_are() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (old, token, _) = login_refreshable(&ann).await;
    let new = with_token(&old, &refresh(&ann.http, &token).await.ok());
    assert!(is_logged_in(&new).await);
    over(refresh(&ann.http, &token).await, true);
    let parts: Vec<&str> = token.split('.').collect();
    let [secret, session, mac] = parts[..] else { panic!("a token of another form: {token}") };
    let other = secret.replace(&secret[4..8], "AAAA");
    for made_up in [
        format!("{other}.{session}.{mac}"),
        format!("{secret}.1.{mac}"),
        format!("{secret}.{session}.{}", mac.replace(&mac[..2], "AA")),
        format!("{secret}.{session}"),
        format!("{secret}.{session}."),
    ] {
        over(refresh(&ann.http, &made_up).await, false);
    }
    // A token of one kind is none of the other, whatever it says.
    over(refresh(&ann.http, &old.access_token).await, false);
}

/// Every file below a directory, with what is in it.
fn files_under(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_under(&path));
        } else {
            // A file may be gone again.
            found.extend(std::fs::read(&path).map(|bytes| (path, bytes)));
        }
    }
    found
}

#[tokio::test]
async fn the_key_of_tokens_is_in_no_other_file_and_can_be_lost() {
    crate::harness::nodes::one_server!("nodes share the key");
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let (old, token, _) = login_refreshable(&ann).await;
    let lost = refresh(&ann.http, &token).await.ok();
    let path = server.data_dir().join("tokens.key");
    let key = std::fs::read_to_string(&path).expect("the key");
    for (file, bytes) in files_under(server.data_dir()) {
        let holds = bytes.windows(key.trim().len()).any(|window| window == key.trim().as_bytes());
        assert!(!holds || file == path, "{} has it, too", file.display());
    }
    server.stop();
    std::fs::remove_file(&path).expect("to remove the key");
    server.restart().await;
    let other = refresh(&ann.http, &token).await.ok();
    assert_ne!(other["access_token"], lost["access_token"]);
    assert!(is_logged_in(&with_token(&old, &other)).await);
    over(refresh(&ann.http, &token).await, true);
}

#[tokio::test]
async fn an_access_token_is_no_refresh_token_nor_the_other_way_round() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (session, token, _) = login_refreshable(&ann).await;
    refresh(&ann.http, &session.access_token).await.refused(401, "M_UNKNOWN_TOKEN");
    let wrong = User { access_token: token, ..session };
    wrong.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    anonymous(&ann.http, "POST", "/refresh", Some(&json!({}))).await.refused(400, "M_BAD_JSON");
}
