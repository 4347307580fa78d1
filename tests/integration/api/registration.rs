//! Registration where something is asked of newcomers: tokens, captcha, terms; and guests.

use std::path::Path;

use logcabin::clock::Clock;
use logcabin::decide::registration_token::{
    Change, CreateRegistrationToken, RemoveRegistrationToken, UpdateRegistrationToken,
};
use logcabin::record::command::TokenHash;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PASSWORD, anonymous};
use crate::harness::{Answer, Captcha, Http, TestServer, User, offline, refused_start};

const TERMS: &str = r#"
[privacy_policy]
version = "1.2"
en = { name = "Privacy Policy", url = "https://example.org/privacy-1.2-en.html" }
de = { name = "Datenschutz", url = "https://example.org/privacy-1.2-de.html" }
"#;

async fn register(http: &Http, body: &Value) -> Answer {
    anonymous(http, "POST", "/register", Some(body)).await
}

/// A first attempt; gives the session.
async fn begin(http: &Http, body: &Value) -> String {
    let asked = register(http, body).await;
    assert_eq!(asked.status, 401, "{asked}");
    assert!(asked.body.get("errcode").is_none(), "{asked}");
    super::string(&asked.body, "session")
}

async fn attempt(http: &Http, body: &Value, session: &str, mut auth: Value) -> Answer {
    auth["session"] = session.into();
    let mut body = body.clone();
    body["auth"] = auth;
    register(http, &body).await
}

fn newcomer(name: &str) -> Value {
    json!({ "username": name, "password": PASSWORD })
}

fn token(
    token: &str,
    uses_allowed: Option<u64>,
    expires_ms: Option<u64>,
) -> CreateRegistrationToken {
    let label = Some(format!("of {token}"));
    CreateRegistrationToken { token: TokenHash::of(token), label, uses_allowed, expires_ms }
}

fn update(uses_allowed: Change<u64>, expires_ms: Change<u64>) -> UpdateRegistrationToken {
    let token = TokenHash::of("twice");
    UpdateRegistrationToken { token, label: Change::Keep, uses_allowed, expires_ms }
}

fn by_token(token: &str) -> Value {
    json!({ "type": "m.login.registration_token", "token": token })
}

const REQUIRE: &str = "LOGCABIN_REGISTRATION_REQUIRE";

async fn start(data_dir: &Path, settings: &[(&str, &str)]) -> TestServer {
    TestServer::start_on_with(data_dir, settings).await
}

async fn is_valid(http: &Http, token: &str) -> Value {
    let path = "/_matrix/client/v1/register/m.login.registration_token/validity";
    let token = crate::harness::encode(token);
    http.request("GET", &format!("{path}?token={token}"), None, None).await.ok()["valid"].clone()
}

#[tokio::test]
async fn a_registration_token_lets_in_as_many_as_it_is_for_also_over_a_restart() {
    crate::harness::nodes::one_server!("it writes to a stopped server");
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let later = Clock::system().now_ms() + 3_600_000;
    let tokens = [token("twice", Some(2), Some(later)), token("gone.by", None, Some(1))];
    offline::decide(&data, tokens).await;
    let mut server = start(&data, &[(REQUIRE, "token")]).await;
    let http = server.http();
    assert_eq!(is_valid(&http, "twice").await, true);
    for bad in ["gone.by", "unheard-of", "not a token", ""] {
        if !bad.is_empty() {
            assert_eq!(is_valid(&http, bad).await, false, "{bad}");
        }
        let body = newcomer("ann");
        let session = begin(&http, &body).await;
        let refused = attempt(&http, &body, &session, by_token(bad)).await;
        assert_eq!(refused.body["session"], session.as_str());
        assert_eq!(refused.body["completed"], json!([]));
        refused.refused(401, "M_UNAUTHORIZED");
    }

    let ann = newcomer("ann");
    let session = begin(&http, &ann).await;
    User::of(&http, attempt(&http, &ann, &session, by_token("twice")).await);
    assert_eq!(is_valid(&http, "twice").await, true, "one is left");
    server.restart().await;
    let http = server.http();
    let bob = newcomer("bob");
    let session = begin(&http, &bob).await;
    User::of(&http, attempt(&http, &bob, &session, by_token("twice")).await);
    assert_eq!(is_valid(&http, "twice").await, false, "both were counted");
    let cleo = newcomer("cleo");
    let session = begin(&http, &cleo).await;
    attempt(&http, &cleo, &session, by_token("twice")).await.refused(401, "M_UNAUTHORIZED");

    // What is set again is good for more, what was used stays counted, and what is removed is gone.
    drop(http);
    server.stop();
    offline::decide(&data, [update(Change::To(3), Change::Clear)]).await;
    let mut server = start(&data, &[(REQUIRE, "token")]).await;
    let http = server.http();
    User::of(&http, attempt(&http, &cleo, &begin(&http, &cleo).await, by_token("twice")).await);
    assert_eq!(is_valid(&http, "twice").await, false);
    drop(http);
    server.stop();
    offline::decide(&data, [update(Change::Clear, Change::Keep)]).await;
    offline::decide(&data, [RemoveRegistrationToken { token: TokenHash::of("twice") }]).await;
    let mut server = start(&data, &[(REQUIRE, "token")]).await;
    assert_eq!(is_valid(&server.http(), "twice").await, false);
    server.stop();

    // The history says it all, and never the token.
    let shown = offline::history(&data);
    for said in [
        "(of twice) for 2 account(s)",
        "registered, with the registration token",
        "removed the registration token",
    ] {
        assert!(shown.contains(said), "expected {said:?} in {shown}");
    }
    let hash = format!("{:?}", TokenHash::of("twice"));
    assert!(!shown.contains("token twice") && !shown.contains(&hash), "{shown}");
}

#[tokio::test]
async fn a_registration_token_has_1_to_64_of_its_characters() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let longest = format!("AZaz09._~-{}", "x".repeat(54));
    let wrong = [&format!("{longest}x"), "with space", "a/b", "a+b", "\u{e4}"];
    // All of them are known, and good otherwise.
    let all = wrong.into_iter().chain([&*longest]);
    offline::decide(&data, all.map(|text| token(text, None, None))).await;
    let server = start(&data, &[(REQUIRE, "token")]).await;
    let http = server.http();
    let ann = newcomer("ann");
    let session = begin(&http, &ann).await;
    for wrong in wrong {
        assert_eq!(is_valid(&http, wrong).await, false, "{wrong}");
        let refused = attempt(&http, &ann, &session, by_token(wrong)).await;
        refused.refused(401, "M_UNAUTHORIZED");
    }
    assert_eq!(is_valid(&http, &longest).await, true);
    User::of(&http, attempt(&http, &ann, &session, by_token(&longest)).await);
}

#[tokio::test]
async fn the_last_use_of_a_registration_token_cannot_be_used_twice_concurrently() {
    crate::harness::nodes::one_server!("each node lets one in");
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    offline::decide(&data, [token("last", Some(1), None)]).await;
    let server = start(&data, &[(REQUIRE, "token,dummy")]).await;
    // All show the token while it is good, and come to the end together.
    let mut racers = Vec::new();
    for number in 0..12 {
        let http = server.http();
        let body = newcomer(&format!("racer-{number}"));
        let session = begin(&http, &body).await;
        let half = attempt(&http, &body, &session, by_token("last")).await;
        assert_eq!(half.body["completed"], json!(["m.login.registration_token"]), "{half}");
        racers.push((http, body, session));
    }
    let racers: Vec<_> = racers
        .into_iter()
        .map(|(http, body, session)| {
            tokio::spawn(async move {
                let dummy = json!({ "type": "m.login.dummy" });
                let last = attempt(&http, &body, &session, dummy).await;
                (session, last)
            })
        })
        .collect();
    let mut won = 0;
    for racer in racers {
        let (session, answer) = racer.await.expect("a racer does not panic");
        if answer.status == 200 {
            won += 1;
            continue;
        }
        // The others can go on with another token.
        assert_eq!(answer.body["session"], session.as_str(), "{answer}");
        assert_eq!(answer.body["completed"], json!([]), "{answer}");
        answer.refused(401, "M_UNAUTHORIZED");
    }
    assert_eq!(won, 1);
}

#[tokio::test]
async fn terms_are_told_and_agreed_to_and_remembered() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("terms.toml");
    std::fs::write(&file, TERMS).unwrap();
    let data = dir.path().join("data");
    let terms = file.display().to_string();
    let settings = [("LOGCABIN_REGISTRATION_TERMS", &*terms), (REQUIRE, "terms")];
    let mut server = start(&data, &settings).await;
    let http = server.http();
    let body = newcomer("ann");
    let asked = register(&http, &body).await;
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.terms"] }]));
    let policy = &asked.body["params"]["m.login.terms"]["policies"]["privacy_policy"];
    assert_eq!(policy["version"], "1.2");
    assert_eq!(policy["de"]["name"], "Datenschutz");
    assert_eq!(policy["en"]["url"], "https://example.org/privacy-1.2-en.html");
    let session = super::string(&asked.body, "session");
    User::of(&http, attempt(&http, &body, &session, json!({ "type": "m.login.terms" })).await);
    server.stop();
    let shown = offline::history(&data);
    assert!(shown.contains("agreed to privacy_policy 1.2"), "{shown}");
}

#[tokio::test]
async fn a_captcha_is_checked_by_its_service() {
    let dir = TempDir::new().unwrap();
    let captcha = Captcha::start().await;
    let settings = captcha.settings(dir.path());
    let mut settings: Vec<_> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    settings.extend([(REQUIRE, "captcha"), ("LOGCABIN_LOG", "debug")]);
    let server = TestServer::start_with(&settings).await;
    let http = server.http();
    let body = newcomer("ann");
    let asked = register(&http, &body).await;
    assert_eq!(asked.body["params"]["m.login.recaptcha"]["public_key"], "the-public-key");
    let session = super::string(&asked.body, "session");
    let answer = |response: &str| json!({ "type": "m.login.recaptcha", "response": response });
    attempt(&http, &body, &session, answer("")).await.refused(401, "M_CAPTCHA_NEEDED");
    let without = json!({ "type": "m.login.recaptcha" });
    attempt(&http, &body, &session, without).await.refused(401, "M_CAPTCHA_NEEDED");
    let array = json!(["m.login.recaptcha", session, "human"]);
    let mut listed = body.clone();
    listed["auth"] = array;
    register(&http, &listed).await.refused(400, "M_BAD_JSON");
    assert!(captcha.asked().is_empty());
    let wrong = attempt(&http, &body, &session, answer("machine")).await;
    assert_eq!(wrong.body["session"], session.as_str());
    wrong.refused(401, "M_CAPTCHA_INVALID");
    User::of(&http, attempt(&http, &body, &session, answer("human")).await);
    let asked = captcha.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[1]["response"], "human");
    assert_eq!(asked[1]["secret"], Captcha::secret());
    assert_eq!(asked[1]["remoteip"], "127.0.0.1");

    // A service that is down fails the attempt, and another may follow.
    captcha.stop().await;
    let body = newcomer("bob");
    let session = begin(&http, &body).await;
    attempt(&http, &body, &session, answer("human")).await.refused(503, "M_UNKNOWN");
    attempt(&http, &body, &session, answer("human")).await.refused(503, "M_UNKNOWN");
    assert!(!server.output().contains(Captcha::secret()));
}

#[tokio::test]
async fn one_of_several_flows_is_enough() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let file = dir.path().join("terms.toml");
    std::fs::write(&file, TERMS).unwrap();
    let terms = file.display().to_string();
    offline::decide(&data, [token("friend", None, None)]).await;
    let settings = [("LOGCABIN_REGISTRATION_TERMS", &*terms), (REQUIRE, "terms,token|dummy")];
    let server = start(&data, &settings).await;
    let http = server.http();
    let (ann, bob) = (newcomer("ann"), newcomer("bob"));
    let asked = register(&http, &ann).await;
    let flows = json!([
        { "stages": ["m.login.terms", "m.login.registration_token"] },
        { "stages": ["m.login.terms", "m.login.dummy"] },
    ]);
    assert_eq!(asked.body["flows"], flows);
    for (body, last) in [(&ann, by_token("friend")), (&bob, json!({ "type": "m.login.dummy" }))] {
        let session = begin(&http, body).await;
        let early = attempt(&http, body, &session, last.clone()).await;
        assert_eq!(early.body["completed"], json!([]));
        early.refused(401, "M_UNAUTHORIZED");
        let half = attempt(&http, body, &session, json!({ "type": "m.login.terms" })).await;
        assert_eq!(half.status, 401);
        assert_eq!(half.body["completed"], json!(["m.login.terms"]));
        User::of(&http, attempt(&http, body, &session, last).await);
    }
}

#[tokio::test]
async fn a_session_of_registration_remembers_its_parameters() {
    let server = super::server().await;
    let http = server.http();
    let dummy = || json!({ "type": "m.login.dummy" });
    // The client asks what is needed, then registers with the session it got.
    let name = super::unique("ann");
    let session = begin(&http, &json!({})).await;
    let ann = User::of(&http, attempt(&http, &newcomer(&name), &session, dummy()).await);
    assert_eq!(ann.localpart(), name);
    // The client completes a stage with `auth` alone.
    let name = super::unique("bob");
    let body = json!({
        "username": name, "password": PASSWORD, "device_id": "PHONE", "refresh_token": true,
        "initial_device_display_name": "bob's phone",
    });
    let session = begin(&http, &body).await;
    let answer = attempt(&http, &json!({}), &session, dummy()).await;
    assert!(answer.body["refresh_token"].is_string(), "{answer}");
    let bob = User::of(&http, answer);
    assert_eq!((bob.localpart(), bob.device_id.as_str()), (&*name, "PHONE"));
    assert_eq!(bob.get("/devices/PHONE").await.ok()["display_name"], "bob's phone");
    User::login(&http, &name, PASSWORD).await;
    // Each attempt adds to what the session remembers, and replaces what it names again.
    let name = super::unique("cleo");
    let first = json!({ "username": super::unique("x"), "device_id": "TABLET" });
    let session = begin(&http, &first).await;
    let second = json!({ "username": name, "password": PASSWORD });
    let waits = attempt(&http, &second, &session, json!({})).await;
    assert_eq!((waits.status, &waits.body["session"]), (401, &json!(session)), "{waits}");
    let cleo = User::of(&http, attempt(&http, &json!({}), &session, dummy()).await);
    assert_eq!((cleo.localpart(), cleo.device_id.as_str()), (&*name, "TABLET"));
    // What is over is remembered by nobody.
    let again = attempt(&http, &json!({}), &session, dummy()).await;
    assert_ne!(again.body["session"], json!(session));
    again.refused(401, "M_UNAUTHORIZED");
    // What is remembered is judged like what is said.
    let session = begin(&http, &json!({})).await;
    let taken = newcomer(cleo.localpart());
    attempt(&http, &taken, &session, dummy()).await.refused(400, "M_USER_IN_USE");
    let dora = newcomer(&super::unique("dora"));
    User::of(&http, attempt(&http, &dora, &session, dummy()).await);
}

#[tokio::test]
async fn a_session_of_registration_serves_a_guest_who_came_without_a_name() {
    let dir = TempDir::new().unwrap();
    let settings = [("LOGCABIN_REGISTRATION_GUESTS", "true")];
    let server = start(&dir.path().join("data"), &settings).await;
    let http = server.http();
    let guest = anonymous(&http, "POST", "/register?kind=guest", Some(&json!({}))).await;
    let guest = User::of(&http, guest);
    let session = begin(&http, &json!({})).await;
    let body = json!({
        "username": guest.localpart(), "password": PASSWORD,
        "guest_access_token": guest.access_token,
    });
    let answer = attempt(&http, &body, &session, json!({ "type": "m.login.dummy" })).await;
    assert_eq!(User::of(&http, answer).user_id, guest.user_id);
}

#[tokio::test]
async fn the_page_of_a_later_stage_leads_to_the_one_before_it() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let file = dir.path().join("terms.toml");
    std::fs::write(&file, TERMS).unwrap();
    let terms = file.display().to_string();
    offline::decide(&data, [token("friend", None, None)]).await;
    let settings = [("LOGCABIN_REGISTRATION_TERMS", &*terms), (REQUIRE, "token,terms,dummy")];
    let server = start(&data, &settings).await;
    let http = server.http();
    let body = newcomer("ann");
    let session = begin(&http, &body).await;
    let page = |stage: &str, then: &str| {
        let stage = format!("/_matrix/client/v3/auth/{stage}/fallback/web");
        format!("{stage}?session={}{then}", crate::harness::encode(&session))
    };
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let html =
        |answer: &crate::harness::RawAnswer| String::from_utf8_lossy(&answer.bytes).into_owned();
    // Whichever stage is opened, the way is through what comes first.
    let early = http.raw("GET", &page("m.login.dummy", ""), &[], "").await;
    assert_eq!(early.parts.status, 303);
    let location = early.header("location");
    assert!(location.starts_with("../../m.login.registration_token/fallback/web?session="));
    assert!(location.ends_with("&then=m%2Elogin%2Edummy"), "{location}");
    let path = page("m.login.registration_token", "&then=m.login.dummy");
    let next = http.raw("POST", &path, &form, "token=friend").await;
    assert_eq!(next.parts.status, 303);
    assert!(
        next.header("location").starts_with("../../m%2Elogin%2Edummy/fallback/web?session=")
            || next.header("location").starts_with("../../m.login.dummy/fallback/web?session=")
    );
    let early = http.raw("GET", &page("m.login.dummy", ""), &[], "").await;
    assert!(early.header("location").starts_with("../../m.login.terms/fallback/web?session="));
    let path = page("m.login.terms", "&then=m.login.dummy");
    assert_eq!(http.raw("POST", &path, &form, "").await.parts.status, 303);
    // A stage that is no stage of this session leads nowhere.
    let path = page("m.login.dummy", "&then=m.login.password");
    assert!(html(&http.raw("POST", &path, &form, "").await).contains("onAuthDone"));
    User::of(&http, attempt(&http, &body, &session, json!({})).await);
}

#[tokio::test]
async fn an_address_and_a_number_can_each_be_optional() {
    let dir = TempDir::new().unwrap();
    let settings = [
        (REQUIRE, "email|dummy,msisdn|dummy"),
        ("LOGCABIN_EMAIL_HOST", "127.0.0.1"),
        ("LOGCABIN_EMAIL_SECURITY", "none"),
        ("LOGCABIN_EMAIL_FROM", "logcabin@example.org"),
        ("LOGCABIN_SMS_URL", "http://127.0.0.1:9/"),
    ];
    let server = start(&dir.path().join("data"), &settings).await;
    let asked = register(&server.http(), &newcomer("ann")).await;
    let flows: Vec<Value> = [
        &["m.login.email.identity", "m.login.msisdn"][..],
        &["m.login.email.identity", "m.login.dummy"],
        &["m.login.msisdn"],
        &["m.login.dummy"],
    ]
    .into_iter()
    .map(|stages| json!({ "stages": stages }))
    .collect();
    let offered = asked.body["flows"].as_array().cloned().unwrap_or_default();
    assert_eq!(offered.len(), flows.len(), "{asked}");
    assert!(flows.iter().all(|flow| offered.contains(flow)), "{asked}");
}

#[tokio::test]
async fn arrays_are_not_read_as_objects() {
    let server = super::server().await;
    let http = server.http();
    let mut body = newcomer(&super::unique("ann"));
    body["auth"] = json!(["m.login.dummy"]);
    register(&http, &body).await.refused(400, "M_BAD_JSON");
    body["auth"] = json!({ "type": "m.login.dummy" });
    let ann = User::of(&http, register(&http, &body).await);
    let path = format!("/user/{}/filter", crate::harness::encode(&ann.user_id));
    for filter in [json!({ "room": [] }), json!({ "room": { "timeline": [10] } })] {
        ann.post(&path, filter.clone()).await.refused(400, "M_BAD_JSON");
        let filter = crate::harness::encode(&filter.to_string());
        ann.get(&format!("/sync?filter={filter}")).await.refused(400, "M_INVALID_PARAM");
    }
    let state = json!({ "initial_state": [["m.room.topic", "", { "topic": "x" }]] });
    ann.post("/createRoom", state).await.refused(400, "M_BAD_JSON");
    let login = json!({
        "type": "m.login.password", "password": PASSWORD,
        "identifier": ["m.id.user", ann.user_id],
    });
    anonymous(&http, "POST", "/login", Some(&login)).await.refused(400, "M_BAD_JSON");
    let room = ann.create_room(json!({})).await;
    let path = format!("/rooms/{}/messages?dir=b&filter=", crate::harness::encode(&room));
    ann.get(&(path + "%5B%5D")).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_server_does_not_start_if_a_required_stage_is_not_configured() {
    let dir = TempDir::new().unwrap();
    let bad = dir.path().join("terms.toml");
    std::fs::write(&bad, "[a]\nversion = \"1\"\n").unwrap();
    for (settings, said) in [
        (vec![(REQUIRE, "captcha")], "captcha.public_key"),
        (vec![(REQUIRE, "terms")], "registration.terms"),
        (vec![(REQUIRE, "email")], "email.host"),
        (vec![(REQUIRE, "msisdn")], "sms.url"),
        (vec![("LOGCABIN_REGISTRATION_TERMS", bad.to_str().unwrap())], "no language"),
        (vec![("LOGCABIN_REGISTRATION_TERMS", "/does/not/exist")], "/does/not/exist"),
        (vec![(REQUIRE, "magic")], "allowed is"),
    ] {
        let told = refused_start(&settings, &[]);
        assert!(told.contains(said), "{settings:?}: {told}");
    }
}

#[tokio::test]
async fn guests_register_without_stages_and_stay_guests_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let settings =
        [("LOGCABIN_REGISTRATION_GUESTS", "true"), ("LOGCABIN_REGISTRATION_OPEN", "false")];
    let mut server = start(&dir.path().join("data"), &settings).await;
    let http = server.http();
    // All but the device's name is ignored.
    let body = json!({
        "username": "ann", "password": "", "device_id": "TABLET", "inhibit_login": true,
        "refresh_token": true, "initial_device_display_name": "a guest's phone",
        "auth": { "type": "m.login.dummy", "session": "none" },
    });
    let answer = anonymous(&http, "POST", "/register?kind=guest", Some(&body)).await;
    assert!(answer.body.get("refresh_token").is_none(), "{answer}");
    assert_eq!(answer.body["home_server"], "e2e.test");
    let guest = User::of(&http, answer);
    assert_ne!(guest.user_id, "@ann:e2e.test");
    assert_ne!(guest.device_id, "TABLET");
    let device = format!("/devices/{}", guest.device_id);
    assert_eq!(guest.get(&device).await.ok()["display_name"], "a guest's phone");
    let other = anonymous(&http, "POST", "/register?kind=guest", Some(&json!({}))).await;
    assert_ne!(User::of(&http, other).user_id, guest.user_id);
    let strange = json!({
        "auth": 5, "username": ["ann"], "device_id": {}, "password": 7, "inhibit_login": "x",
        "initial_device_display_name": "phone",
    });
    let third = anonymous(&http, "POST", "/register?kind=guest", Some(&strange)).await;
    let third = User::of(&http, third);
    let device = format!("/devices/{}", third.device_id);
    assert_eq!(third.get(&device).await.ok()["display_name"], "phone");
    server.restart().await;
    guest.get("/account/whoami").await.ok();
    register(&http, &body).await.refused(403, "M_FORBIDDEN");
    anonymous(&http, "POST", "/register?kind=robot", Some(&json!({})))
        .await
        .refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_guest_becomes_a_full_user_with_the_same_name() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let mut server = start(&data, &[("LOGCABIN_REGISTRATION_GUESTS", "true")]).await;
    let http = server.http();
    let answer = anonymous(&http, "POST", "/register?kind=guest", Some(&json!({}))).await;
    let guest = User::of(&http, answer);
    let name = guest.localpart().to_owned();
    let upgrade = |name: Option<&str>, token: &str| {
        let mut body = json!({
            "password": PASSWORD, "guest_access_token": token, "auth": { "type": "m.login.dummy" },
        });
        if let Some(name) = name {
            body["username"] = name.into();
        }
        body
    };
    register(&http, &upgrade(None, &guest.access_token)).await.refused(400, "M_MISSING_PARAM");
    register(&http, &upgrade(Some("another"), &guest.access_token))
        .await
        .refused(400, "M_INVALID_USERNAME");
    register(&http, &upgrade(Some(&name), "made up")).await.refused(403, "M_FORBIDDEN");
    register(&http, &newcomer(&name)).await.refused(400, "M_USER_IN_USE");
    let full = User::of(&http, register(&http, &upgrade(Some(&name), &guest.access_token)).await);
    assert_eq!(full.user_id, guest.user_id);
    server.restart().await;
    User::login(&http, &name, PASSWORD).await;
    register(&http, &upgrade(Some(&name), &full.access_token)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn of_two_who_authenticate_for_one_name_one_gets_it_and_the_other_is_told() {
    let server = super::server().await;
    let http = server.http();
    let name = super::unique("contested");
    let bodies = [PASSWORD, "another password, as long"]
        .map(|password| json!({ "username": name, "password": password }));
    let mut sessions = Vec::new();
    for body in &bodies {
        sessions.push(begin(&http, body).await);
    }
    let dummy = || json!({ "type": "m.login.dummy" });
    let (first, second) = tokio::join!(
        attempt(&http, &bodies[0], &sessions[0], dummy()),
        attempt(&http, &bodies[1], &sessions[1], dummy()),
    );
    let (won, lost) = if first.status == 200 { (first, second) } else { (second, first) };
    assert_eq!(won.ok()["user_id"], format!("@{name}:e2e.test"));
    lost.refused(400, "M_USER_IN_USE");
}

#[tokio::test]
async fn an_account_that_nobody_could_use_is_not_created() {
    let server = super::server().await;
    let http = server.http();
    let name = super::unique("ann");
    let dummy = json!({ "type": "m.login.dummy" });
    let body = json!({ "username": name, "inhibit_login": true, "auth": dummy });
    register(&http, &body).await.refused(400, "M_MISSING_PARAM");
    // One without a password can be used for as long as its device is logged in.
    let body = json!({ "username": name, "auth": dummy });
    let ann = User::of(&http, register(&http, &body).await);
    ann.get("/account/whoami").await.ok();
    let body = json!({ "devices": [] });
    ann.post("/delete_devices", body).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_closed_registration_has_no_valid_tokens() {
    let server = TestServer::start_with(&[("LOGCABIN_REGISTRATION_OPEN", "false")]).await;
    let path = "/_matrix/client/v1/register/m.login.registration_token/validity?token=abc";
    server.http().request("GET", path, None, None).await.refused(403, "M_FORBIDDEN");
}
