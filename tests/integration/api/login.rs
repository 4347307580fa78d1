//! Login in all its forms: the flows that there are, who is named how, login tokens, single sign-on
//! up to the door of the provider. (What is behind it is in `sso`, with a real provider and a
//! browser.) How a session goes on is in `sessions`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{PASSWORD, anonymous, server, string, unique, user};
use crate::harness::{Answer, Http, RawAnswer, TestServer, User, encode, run_logcabin};

const GET_TOKEN: &str = "/_matrix/client/v1/login/get_token";

async fn login(http: &Http, body: Value) -> Answer {
    anonymous(http, "POST", "/login", Some(&body)).await
}

fn by_password(user: &User) -> Value {
    json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": user.user_id },
        "password": PASSWORD,
    })
}

fn by_token(token: &str) -> Value {
    json!({ "type": "m.login.token", "token": token })
}

/// A login token by `POST /login/get_token`.
async fn get_token(user: &User) -> String {
    let token = Some(&*user.access_token);
    let asked = user.http.request("POST", GET_TOKEN, token, Some(&json!({}))).await;
    assert_eq!(asked.status, 401, "{asked}");
    let mut auth = by_password(user);
    auth["session"] = asked.body["session"].clone();
    let body = json!({ "auth": auth });
    let given = user.http.request("POST", GET_TOKEN, token, Some(&body)).await.ok();
    assert!(given["expires_in_ms"].as_u64().is_some_and(|ms| ms > 0), "{given}");
    string(&given, "login_token")
}

async fn flow_types(http: &Http) -> Vec<String> {
    let flows = anonymous(http, "GET", "/login", None).await.ok();
    super::each(&flows["flows"], "/type")
}

async fn get_page(http: &Http, path: &str, headers: &[(&str, &str)]) -> RawAnswer {
    http.raw("GET", path, headers, "").await
}

#[track_caller]
fn is_page(answer: &RawAnswer, status: u16) -> String {
    let html = String::from_utf8_lossy(&answer.bytes).into_owned();
    assert_eq!(answer.parts.status.as_u16(), status, "{html}");
    assert!(answer.header("content-type").starts_with("text/html"), "{html}");
    assert!(answer.header("content-security-policy").contains("default-src 'none'"));
    html
}

/// Without OAuth 2.0, single sign-on has pages of its own.
const WITHOUT_OAUTH: (&str, &str) = ("LOGCABIN_OAUTH_ENABLED", "false");

#[tokio::test]
async fn the_flows_are_those_that_the_configuration_allows() {
    let server = server().await;
    let flows = anonymous(&server.http(), "GET", "/login", None).await.ok();
    let expected = json!({ "flows": [
        { "type": "m.login.password" },
        { "type": "m.login.sso" },
        { "type": "m.login.token", "get_login_token": true },
    ]});
    assert_eq!(flows, expected);
    let without = TestServer::start_with(&[WITHOUT_OAUTH]).await;
    let flows = anonymous(&without.http(), "GET", "/login", None).await.ok();
    let expected = json!({ "flows": [
        { "type": "m.login.password" },
        { "type": "m.login.token", "get_login_token": true },
    ]});
    assert_eq!(flows, expected);

    // Where nobody has a password, the only way in is marked as the one of OAuth 2.0.
    let no_password = ("LOGCABIN_LOGIN_PASSWORD", "false");
    let settings = [no_password, ("LOGCABIN_LOGIN_GET_TOKEN", "false")];
    let marked = with_dead_providers(&["dead"], &settings).await;
    let flows = anonymous(&marked.http(), "GET", "/login", None).await.ok();
    let names = [
        "oauth_aware_preferred",
        "delegated_oidc_compatibility",
        "org.matrix.msc3824.delegated_oidc_compatibility",
    ];
    assert!(names.iter().all(|name| flows["flows"][0][name] == true), "{flows}");

    let closed = TestServer::start_with(&settings).await;
    assert!(flow_types(&closed.http()).await.is_empty());
    let ann = closed.register("ann").await;
    login(&closed.http(), by_password(&ann)).await.refused(400, "M_UNKNOWN");
    let token = Some(&*ann.access_token);
    ann.http
        .request("POST", GET_TOKEN, token, Some(&json!({})))
        .await
        .refused(404, "M_UNRECOGNIZED");
    let capabilities = ann.get("/capabilities").await.ok();
    // What is not named is not enabled.
    assert_ne!(capabilities["capabilities"]["m.get_login_token"]["enabled"], true);
}

#[tokio::test]
async fn a_login_that_lacks_something_is_a_bad_request() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let without = |key: &str| {
        let mut body = by_password(&ann);
        body.as_object_mut().unwrap().remove(key);
        body
    };
    for (body, status) in [
        (without("type"), 400),
        (without("password"), 400),
        (without("identifier"), 400),
        (json!({ "type": "m.login.token" }), 400),
        (json!({ "type": 5 }), 400),
        (
            json!({ "type": "m.login.password", "password": PASSWORD, "medium": "msisdn", "address": "1" }),
            400,
        ),
        (json!({ "type": "m.login.password", "password": 5, "user": "ann" }), 400),
    ] {
        let answer = login(&server.http(), body).await;
        assert_eq!(answer.status, status, "{answer}");
        assert!(answer.body["errcode"].is_string() && answer.body["error"].is_string());
    }
    login(&server.http(), without("identifier")).await.refused(400, "M_MISSING_PARAM");
    let unknown = json!({ "type": "org.example.magic", "token": "x" });
    login(&server.http(), unknown).await.refused(400, "M_UNKNOWN");
    let mut odd = by_password(&ann);
    odd["identifier"] = json!({ "type": "org.example.face", "user": "ann" });
    login(&server.http(), odd).await.refused(400, "M_UNKNOWN");
}

#[tokio::test]
async fn an_address_or_number_that_nobody_has_is_forbidden() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for identifier in [
        json!({ "type": "m.id.thirdparty", "medium": "email", "address": "nobody@example.org" }),
        json!({ "type": "m.id.thirdparty", "medium": "msisdn", "address": "447700900123" }),
        json!({ "type": "m.id.thirdparty", "medium": "org.example.fax", "address": "1" }),
        json!({ "type": "m.id.phone", "country": "GB", "phone": "07700 900123" }),
    ] {
        let mut body = by_password(&ann);
        body["identifier"] = identifier;
        login(&server.http(), body).await.refused(403, "M_FORBIDDEN");
    }
    let old = json!({
        "type": "m.login.password", "medium": "email", "address": "nobody@example.org",
        "password": PASSWORD,
    });
    login(&server.http(), old).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn the_answer_names_user_device_and_server() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let mut body = by_password(&ann);
    body["device_id"] = "TABLET".into();
    body["refresh_token"] = true.into();
    let answer = login(&server.http(), body).await.ok();
    assert_eq!(answer["user_id"], ann.user_id);
    assert_eq!(answer["device_id"], "TABLET");
    assert_eq!(answer["home_server"], "e2e.test");
    assert_eq!(answer["well_known"]["m.homeserver"]["base_url"], server.base());
    assert!(answer["expires_in_ms"].is_u64() && answer["refresh_token"].is_string(), "{answer}");
    let generated = login(&server.http(), by_password(&ann)).await.ok();
    assert!(!string(&generated, "device_id").is_empty());
}

#[tokio::test]
async fn no_device_has_the_name_of_a_cross_signing_key() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let public = |fill: &str| fill.repeat(43);
    let key = |public: &str| {
        json!({ "master_key": {
            "user_id": ann.user_id, "usage": ["master"],
            "keys": { format!("ed25519:{public}"): public },
        }})
    };
    let path = "/keys/device_signing/upload";
    ann.post(path, key(&public("A"))).await.ok();
    let mut body = by_password(&ann);
    body["device_id"] = public("A").into();
    login(&server.http(), body.clone()).await.refused(403, "M_FORBIDDEN");
    // Another user's device may, and another device of this user.
    let bob = user(&server, "bob").await;
    let mut of_bob = by_password(&bob);
    of_bob["device_id"] = public("A").into();
    login(&server.http(), of_bob).await.ok();
    body["device_id"] = public("B").into();
    login(&server.http(), body).await.ok();
    // And the other way round.
    ann.post(path, key(&public("B"))).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_login_token_is_good_once_even_if_the_server_was_killed_between() {
    let mut server = TestServer::start().await;
    let ann = server.register("ann").await;
    let token = get_token(&ann).await;
    let unused = get_token(&ann).await;
    let mut body = by_token(&token);
    body["device_id"] = "NEW".into();
    body["initial_device_display_name"] = "by token".into();
    let new = User::of(&ann.http, login(&ann.http, body).await);
    assert_eq!((new.user_id.as_str(), new.device_id.as_str()), (ann.user_id.as_str(), "NEW"));
    assert_eq!(new.get("/devices/NEW").await.ok()["display_name"], "by token");
    login(&ann.http, by_token(&token)).await.refused(403, "M_FORBIDDEN");
    server.restart().await;
    login(&ann.http, by_token(&token)).await.refused(403, "M_FORBIDDEN");
    login(&ann.http, by_token(&unused)).await.ok();
    login(&ann.http, by_token(&unused)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_login_token_cannot_be_used_twice_concurrently() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for _ in 0..5 {
        let token = get_token(&ann).await;
        let clients: Vec<_> = (0..8).map(|_| server.http()).collect();
        let answers = join_all(clients.iter().map(|http| login(http, by_token(&token)))).await;
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 403).count(), 7, "{statuses:?}");
    }
}

#[tokio::test]
async fn a_login_token_expires() {
    let server = TestServer::start_with(&[("LOGCABIN_LOGIN_GET_TOKEN_SECONDS", "1")]).await;
    let ann = server.register("ann").await;
    let token = get_token(&ann).await;
    // The time is the claim.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    login(&ann.http, by_token(&token)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_login_token_that_the_server_has_not_made_is_forbidden() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let token = get_token(&ann).await;
    let other = TestServer::start().await;
    login(&other.http(), by_token(&token)).await.refused(403, "M_FORBIDDEN");
    let without_prefix = token.trim_start_matches("lcl_");
    let cut = &token[..token.len() - 1];
    for bad in ["", "x", "lcl_", "lcl_.", without_prefix, cut, &token.replace('.', "..")] {
        login(&ann.http, by_token(bad)).await.refused(403, "M_FORBIDDEN");
    }
    login(&ann.http, by_token(&token)).await.ok();
}

#[tokio::test]
async fn whoever_asks_for_a_login_token_proves_who_they_are() {
    let server = server().await;
    let [ann, bob] = [user(&server, "ann").await, user(&server, "bob").await];
    ann.http
        .request("POST", GET_TOKEN, None, Some(&json!({})))
        .await
        .refused(401, "M_MISSING_TOKEN");
    let mut auth = by_password(&ann);
    for (user, password) in [(&ann, "wrong"), (&bob, PASSWORD)] {
        auth["identifier"]["user"] = user.user_id.clone().into();
        auth["password"] = password.into();
        let body = json!({ "auth": auth });
        let token = Some(&*ann.access_token);
        let answer = ann.http.request("POST", GET_TOKEN, token, Some(&body)).await;
        assert_eq!((answer.status, &answer.body["errcode"]), (401, &json!("M_FORBIDDEN")));
    }
    let capabilities = ann.get("/capabilities").await.ok();
    assert_eq!(capabilities["capabilities"]["m.get_login_token"]["enabled"], true);
}

#[tokio::test]
async fn the_login_page_is_served_by_each_of_its_names() {
    let server = server().await;
    let http = server.http();
    for path in ["/_matrix/static/client/login", "/_svc/static/client/login"] {
        for path in [path.to_owned(), format!("{path}/"), format!("{path}/?device_id=X")] {
            let html = is_page(&get_page(&http, &path, &[]).await, 200);
            assert!(html.contains("id=\"password\""), "{html}");
        }
    }
}

/// A file that describes a provider at `issuer`.
fn provider(directory: &Path, id: &str, issuer: &str, more: &str) -> PathBuf {
    let path = directory.join(format!("{id}.toml"));
    let text = format!(
        "id = \"{id}\"\nname = \"The {id} <service>\"\nissuer = \"{issuer}\"\n\
         client_id = \"logcabin\"\nclient_secret = \"secret\"\n{more}"
    );
    std::fs::write(&path, text).expect("a file can be written");
    path
}

/// A server with these providers, none of which answers.
async fn with_dead_providers(ids: &[&str], settings: &[(&str, &str)]) -> TestServer {
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let files: Vec<_> = ids
        .iter()
        .map(|id| provider(directory.path(), id, "http://127.0.0.1:1", ""))
        .map(|path| path.display().to_string())
        .collect();
    let files = files.join(",");
    let mut all = vec![("LOGCABIN_SSO_PROVIDERS", files.as_str())];
    all.extend(settings);
    TestServer::start_with(&all).await
}

#[tokio::test]
async fn a_dead_provider_makes_a_page_that_says_so_and_stops_nobody_else() {
    let server = with_dead_providers(&["dead"], &[WITHOUT_OAUTH]).await;
    let http = server.http();
    let flows = anonymous(&http, "GET", "/login", None).await.ok();
    let sso = json!({ "type": "m.login.sso", "identity_providers": [
        { "id": "dead", "name": "The dead <service>", "icon": null, "brand": null },
    ]});
    assert_eq!(flows["flows"][1], sso);
    let ways = [
        "/_matrix/client/v3/login/sso/redirect",
        "/_svc/client/v3/login/sso/redirect",
        "/_matrix/client/v3/login/sso/redirect/dead",
        "/_matrix/client/r0/login/sso/redirect",
    ];
    for way in ways {
        let path = format!("{way}?redirectUrl={}", encode("https://app.example.org/"));
        let html = is_page(&get_page(&http, &path, &[]).await, 502);
        assert!(html.contains("The dead &lt;service&gt; does not answer"), "{html}");
    }
    server.register("ann").await;
}

#[tokio::test]
async fn who_comes_too_often_is_told_so_on_a_page() {
    let settings = [
        ("LOGCABIN_RATE_LIMITS_ENABLED", "true"),
        ("LOGCABIN_RATE_LIMITS_ADDRESS", "1/h burst 1"),
        WITHOUT_OAUTH,
    ];
    let server = with_dead_providers(&["dead"], &settings).await;
    let http = server.http();
    let path = "/_matrix/client/v3/login/sso/redirect?redirectUrl=https%3A%2F%2Fa.example.org";
    is_page(&get_page(&http, path, &[]).await, 502);
    for path in [path, "/_svc/client/v3/login/sso/callback?state=x"] {
        let answer = get_page(&http, path, &[]).await;
        let html = is_page(&answer, 429);
        let seconds: u64 = answer.header("retry-after").parse().expect("whole seconds");
        assert!(html.contains("Too many requests."), "{html}");
        assert!(html.contains(&format!("Wait {seconds} seconds")), "{html}");
    }
}

#[tokio::test]
async fn a_browser_is_sent_only_where_an_address_can_lead() {
    let settings = [
        ("LOGCABIN_SSO_OTHER_REDIRECTS", "false"),
        ("LOGCABIN_SSO_REDIRECTS", "https://app.example.org/web,org.example.app:/"),
    ];
    let server = with_dead_providers(&["dead"], &settings).await;
    let http = server.http();
    for (address, status) in [
        ("javascript:alert(1)", 400),
        ("data:text/html,x", 400),
        ("not an address", 400),
        ("https://me@app.example.org/web", 400),
        ("https://app.example.org/website", 403),
        ("https://app.example.org:444/web", 403),
        ("http://app.example.org/web", 403),
        ("https://app.example.org.evil.example/web", 403),
        // These are fine: it is the provider that is dead.
        ("https://app.example.org/web", 502),
        ("https://app.example.org/web/#/login?x=y", 502),
        ("org.example.app:/callback", 502),
        (&format!("{}/_matrix/static/client/login/?device_id=X", server.base()), 502),
    ] {
        let path =
            format!("/_matrix/client/v3/login/sso/redirect/dead?redirectUrl={}", encode(address));
        let answer = get_page(&http, &path, &[]).await;
        assert_eq!(answer.parts.status.as_u16(), status, "{address}");
        is_page(&answer, status);
    }
    is_page(&get_page(&http, "/_matrix/client/v3/login/sso/redirect", &[]).await, 400);
    let long =
        format!("/_matrix/client/v3/login/sso/redirect?redirectUrl=https://a/{}", "x".repeat(2000));
    is_page(&get_page(&http, &long, &[]).await, 400);
}

#[tokio::test]
async fn without_a_named_provider_a_page_asks_which_one() {
    let server = with_dead_providers(&["one", "two"], &[WITHOUT_OAUTH]).await;
    let http = server.http();
    let query = "redirectUrl=https%3A%2F%2Fapp.example.org%2F";
    let path = format!("/_matrix/client/v3/login/sso/redirect?{query}");
    let html = is_page(&get_page(&http, &path, &[]).await, 200);
    for id in ["one", "two"] {
        assert!(html.contains(&format!("/login/sso/redirect/{id}?{query}\"")), "{html}");
    }
    let path = format!("/_matrix/client/v3/login/sso/redirect/three?{query}");
    is_page(&get_page(&http, &path, &[]).await, 404);
}

#[tokio::test]
async fn a_browser_that_has_not_set_out_cannot_come_back() {
    let server = with_dead_providers(&["dead"], &[]).await;
    let http = server.http();
    let callback = "/_matrix/client/v3/login/sso/callback";
    for query in ["", "?code=x", "?state=x", "?state=x&code=y", "?state=x&error=access_denied"] {
        is_page(&get_page(&http, &format!("{callback}{query}"), &[]).await, 400);
    }
    let cookies = [("cookie", "logcabin_sso_=x; logcabin_sso_0123456789abcdef=a.b; ;=")];
    is_page(&get_page(&http, &format!("{callback}?state=x&code=y"), &cookies).await, 400);
    let body = json!({ "pending": "a.b", "username": unique("ann") });
    let path = "/_matrix/client/v3/login/sso/account";
    http.request("POST", path, None, Some(&body)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn linking_an_account_begins_with_a_proof() {
    let server = with_dead_providers(&["dead"], &[]).await;
    let ann = server.register("ann").await;
    let path = "/_matrix/client/unstable/org.logcabin/sso/link/dead";
    let http = server.http();
    http.request("POST", path, None, Some(&json!({}))).await.refused(401, "M_MISSING_TOKEN");
    let token = Some(&*ann.access_token);
    let asked = http.request("POST", path, token, Some(&json!({}))).await;
    assert_eq!(asked.status, 401, "{asked}");
    let body = json!({ "auth": by_password(&ann) });
    let given = http.request("POST", path, token, Some(&body)).await.ok();
    let url = string(&given, "url");
    let way = url.strip_prefix(&server.base()).unwrap();
    is_page(&get_page(&http, way, &[]).await, 502);
    is_page(&get_page(&http, &format!("{way}x"), &[]).await, 403);
    let unknown = "/_matrix/client/unstable/org.logcabin/sso/link/other";
    http.request("POST", unknown, token, Some(&body)).await.refused(404, "M_NOT_FOUND");
}

#[test]
fn a_provider_that_cannot_be_used_stops_the_start() {
    let directory = tempfile::TempDir::new().unwrap();
    let data = directory.path().join("data");
    let config = directory.path().join("logcabin.toml");
    let good = provider(directory.path(), "good", "https://good.example", "");
    let bad = provider(directory.path(), "bad", "https://bad.example", "colour = 1\n");
    for (files, said) in [
        (vec![directory.path().join("none.toml")], "none.toml"),
        (vec![bad], "colour"),
        (vec![good.clone(), good], "another one with the id `good`"),
    ] {
        std::fs::write(&config, format!("[sso]\nproviders = {files:?}\n")).unwrap();
        let output = run_logcabin([
            "serve".as_ref(),
            "--config".as_ref(),
            config.as_os_str(),
            "--data-dir".as_ref(),
            data.as_os_str(),
            "--bind".as_ref(),
            "127.0.0.1:0".as_ref(),
        ]);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && complained.contains(said), "{complained}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refused_login_is_told_in_one_line() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_HTTP_ACCESS_LOG", "combined"),
        ("LOGCABIN_HTTP_ACCESS_LOG_TO", "stderr"),
    ])
    .await;
    let ann = server.register("ann").await;
    let mut wrong = by_password(&ann);
    wrong["password"] = "hunter2".into();
    login(&server.http(), wrong).await.refused(403, "M_FORBIDDEN");
    let line = "WARN refused login address=127.0.0.1 user=\"@ann:e2e.test\" reason=\"password\"";
    server.prints(line).await;
    let mut mistaken = by_password(&ann);
    mistaken["identifier"]["user"] = "my Secret!".into();
    login(&server.http(), mistaken).await.refused(403, "M_FORBIDDEN");
    server.prints("WARN refused login address=127.0.0.1 user=\"?\" reason=\"password\"").await;
    login(&server.http(), by_token("guessed")).await.refused(403, "M_FORBIDDEN");
    server.prints("WARN refused login address=127.0.0.1 user=\"?\" reason=\"token\"").await;
    server.prints("\"POST /_matrix/client/v3/login HTTP/1.1\" 403").await;
    let said = server.output();
    for secret in ["hunter2", "Secret", "guessed"] {
        assert!(!said.contains(secret), "{said}");
    }
}
