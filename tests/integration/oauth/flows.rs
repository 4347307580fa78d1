//! The ways to tokens, and their end.

use serde_json::{Value, json};

use super::{
    Browser, CALLBACK, Client, FORM, PASSWORD, VERIFIER, authorize, challenge, description, error,
    exchange_of, find, metadata, parameters, post, query, register, revoke, scope, server, text,
    token, whoami,
};
use crate::administration::{done, user_command};
use crate::harness::{TestServer, encode};

#[tokio::test]
async fn clients_are_told_where_everything_is() {
    let server = server().await;
    let http = server.http();
    let told = metadata(&http).await;
    let issuer = text(&told, "issuer").to_owned();
    assert_eq!(issuer, format!("{}/_matrix/oauth2", server.base()));
    for endpoint in [
        "authorization_endpoint",
        "token_endpoint",
        "registration_endpoint",
        "revocation_endpoint",
        "device_authorization_endpoint",
        "account_management_uri",
        "jwks_uri",
        "userinfo_endpoint",
    ] {
        assert!(text(&told, endpoint).starts_with(&issuer), "{endpoint}: {told}");
    }
    for (name, value) in [
        ("response_types_supported", "code"),
        ("response_modes_supported", "query"),
        ("response_modes_supported", "fragment"),
        ("grant_types_supported", "authorization_code"),
        ("grant_types_supported", "refresh_token"),
        ("grant_types_supported", "urn:ietf:params:oauth:grant-type:device_code"),
        ("code_challenge_methods_supported", "S256"),
        ("prompt_values_supported", "create"),
        ("account_management_actions_supported", "org.matrix.cross_signing_reset"),
    ] {
        assert!(told[name].as_array().expect("a list").contains(&json!(value)), "{name}: {told}");
    }
    assert_eq!(told["code_challenge_methods_supported"], json!(["S256"]));
    for path in [
        "/_matrix/client/unstable/org.matrix.msc2965/auth_metadata",
        "/.well-known/oauth-authorization-server/_matrix/oauth2",
        "/_matrix/oauth2/.well-known/openid-configuration",
        "/_matrix/.well-known/openid-configuration",
    ] {
        assert_eq!(http.request("GET", path, None, None).await.ok(), told, "{path}");
    }
    let path = "/_matrix/client/unstable/org.matrix.msc2965/auth_issuer";
    assert_eq!(http.request("GET", path, None, None).await.ok(), json!({ "issuer": issuer }));
    let known = http.request("GET", "/.well-known/matrix/client", None, None).await.ok();
    assert_eq!(known["org.matrix.msc2965.authentication"]["issuer"], issuer);
}

#[tokio::test]
async fn a_client_that_describes_itself_gets_an_id_and_the_same_one_again() {
    let server = server().await;
    let http = server.http();
    let first = register(&http, &description()).await;
    assert_eq!(first.status, 201, "{first}");
    assert_eq!(first.body["client_name"], "My App");
    assert_eq!(first.body["redirect_uris"], json!([CALLBACK]));
    assert!(first.body.get("client_secret").is_none(), "{first}");
    let again = register(&http, &description()).await;
    assert_eq!(again.body["client_id"], first.body["client_id"]);
    let mut secret = description();
    secret["token_endpoint_auth_method"] = json!("client_secret_basic");
    let secret = register(&http, &secret).await;
    assert!(text(&secret.body, "client_secret").len() > 30, "{secret}");
    for (name, value, code) in [
        ("redirect_uris", json!(["http://app.example.com/"]), "invalid_redirect_uri"),
        ("redirect_uris", json!(["https://evil.org/"]), "invalid_redirect_uri"),
        ("client_uri", json!("http://example.com/"), "invalid_client_metadata"),
        ("grant_types", json!(["password"]), "invalid_client_metadata"),
        ("logo_uri", json!("https://evil.org/logo.png"), "invalid_client_metadata"),
    ] {
        let mut wrong = description();
        wrong[name] = value;
        error(register(&http, &wrong).await, 400, code);
    }
    let path = "/_matrix/oauth2/register";
    error(http.raw("POST", path, &[], "[]").await.json(), 400, "invalid_client_metadata");
}

#[tokio::test]
async fn a_user_signs_in_allows_a_client_and_it_has_a_device() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("PHONE12345"), challenge(VERIFIER));
    let mut browser = Browser::new(&http);
    let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
    assert_eq!(page.title(), "Sign in to e2e.test");
    assert!(page.body().contains("My App"), "{}", page.body());
    let wrong = [("user", "ann"), ("password", "wrong")];
    let page = page.submit(&mut browser, 0, &wrong).await;
    assert_eq!(page.status(), 403);
    assert!(page.body().contains("role=\"alert\""), "{}", page.body());
    let page = page.submit(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
    assert_eq!(page.title(), "Sign in to My App?");
    let body = page.body();
    for told in ["app.example.com", "@ann:e2e.test", "PHONE12345", "https://example.com/terms"] {
        assert!(body.contains(told), "{told}: {body}");
    }
    let sent = page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    let address = sent.sent_to();
    assert!(address.starts_with("https://app.example.com/callback?"), "{address}");
    let given = parameters(address);
    assert_eq!(given["state"], "opaque & state");
    assert_eq!(given["iss"], client.issuer);
    let tokens = client.exchange(&given["code"]).await.ok();
    assert_eq!(tokens["token_type"], "Bearer");
    assert_eq!(tokens["scope"], scope);
    assert!(tokens["expires_in"].is_number(), "{tokens}");
    let me = whoami(&http, text(&tokens, "access_token")).await.ok();
    assert_eq!(me["user_id"], ann.user_id);
    assert_eq!(me["device_id"], "PHONE12345");
    let devices = ann.get("/devices").await.ok();
    let names = devices["devices"].as_array().expect("devices").iter();
    assert!(names.clone().any(|device| device["display_name"] == "My App"), "{devices}");
}

#[tokio::test]
async fn the_browser_comes_back_by_the_fragment_and_with_the_former_names_of_scopes() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let scope = "urn:matrix:org.matrix.msc2967.client:api:* \
                 urn:matrix:org.matrix.msc2967.client:device:WEB openid";
    let challenge = challenge(VERIFIER);
    let mut request = client.request(scope, &challenge);
    request[1].1 = "fragment";
    let page = browser.get(&authorize(&request)).await;
    let sent = page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    assert!(sent.sent_to().starts_with("https://app.example.com/callback#"), "{}", sent.sent_to());
    let tokens = client.exchange(&parameters(sent.sent_to())["code"]).await.ok();
    assert_eq!(tokens["scope"], scope);
    let me = whoami(&http, text(&tokens, "access_token")).await.ok();
    assert_eq!(me["device_id"], "WEB");
}

#[tokio::test]
async fn a_client_has_the_user_prove_again_who_they_are() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("AGAIN"), challenge(VERIFIER));
    for again in [("prompt", "login"), ("prompt", "select_account"), ("max_age", "0")] {
        let mut browser = Browser::signed_in(&http, "ann").await;
        let mut request = client.request(&scope, &challenge);
        request.push(again);
        let page = browser.get(&authorize(&request)).await;
        assert_eq!(page.title(), "Sign in to e2e.test", "{again:?}");
        let page = page.submit(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
        assert_eq!(page.title(), "Sign in to My App?", "{again:?}");
    }
    let mut browser = Browser::signed_in(&http, "ann").await;
    let mut request = client.request(&scope, &challenge);
    request.push(("max_age", "3600"));
    assert_eq!(browser.get(&authorize(&request)).await.title(), "Sign in to My App?");
    // Without a page, nothing is allowed, even to a user who is signed in.
    request.push(("prompt", "none"));
    let sent = browser.get(&authorize(&request)).await;
    assert_eq!(parameters(sent.sent_to())["error"], "consent_required");
}

#[tokio::test]
async fn a_user_who_denies_is_sent_back_with_that() {
    let (_server, client, mut browser) = super::ann().await;
    let (scope, challenge) = (scope("DENIED"), challenge(VERIFIER));
    let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
    let sent = page.submit(&mut browser, 0, &[("answer", "deny")]).await;
    let given = parameters(sent.sent_to());
    assert_eq!((given["error"].as_str(), given.get("code")), ("access_denied", None));
    assert_eq!(given["state"], "opaque & state");
    assert_eq!(given["iss"], client.issuer);
}

#[tokio::test]
async fn a_client_learns_what_is_wrong_with_its_request() {
    let server = server().await;
    let http = server.http();
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    let request = client.request(&scope, &challenge);
    for (name, value, code) in [
        ("response_type", "token", "unsupported_response_type"),
        ("response_type", "", "invalid_request"),
        ("response_mode", "form_post", "invalid_request"),
        ("scope", "urn:matrix:client:api:*", "invalid_scope"),
        ("scope", "what:ever", "invalid_scope"),
        ("code_challenge_method", "plain", "invalid_request"),
        ("code_challenge", "", "invalid_request"),
        ("code_challenge", "short", "invalid_request"),
        ("prompt", "none", "login_required"),
        ("prompt", "none login", "invalid_request"),
        ("request", "x", "request_not_supported"),
        ("request_uri", "https://x.example/", "request_uri_not_supported"),
        ("max_age", "soon", "invalid_request"),
    ] {
        let mut wrong: Vec<_> =
            request.iter().copied().filter(|(known, _)| *known != name).collect();
        wrong.push((name, value));
        let sent = Browser::new(&http).get(&authorize(&wrong)).await;
        let given = parameters(sent.sent_to());
        assert_eq!(given.get("error").map(String::as_str), Some(code), "{name}={value}");
        assert!(sent.sent_to().starts_with(CALLBACK), "{}", sent.sent_to());
        assert_eq!(given["iss"], client.issuer);
    }
}

#[tokio::test]
async fn a_code_is_exchanged_with_all_that_it_was_given_for() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let code = client.code(&mut browser, &scope("ONE")).await;
    for (name, value, code_of_error) in [
        ("code_verifier", "x".repeat(43), "invalid_grant"),
        ("code_verifier", String::new(), "invalid_request"),
        ("redirect_uri", "https://app.example.com/other".to_owned(), "invalid_grant"),
        ("redirect_uri", String::new(), "invalid_request"),
        ("code", "lcc_other".to_owned(), "invalid_grant"),
        ("grant_type", "password".to_owned(), "unsupported_grant_type"),
        ("grant_type", String::new(), "invalid_request"),
    ] {
        let mut wrong = exchange_of(&code);
        let place = wrong.iter().position(|(known, _)| *known == name).expect("a parameter");
        wrong[place].1 = &value;
        error(client.token(&wrong).await, 400, code_of_error);
    }
    error(token(&http, &exchange_of(&code)).await, 401, "invalid_client");
    let other = [&exchange_of(&code)[..], &[("client_id", "nobody")]].concat();
    error(token(&http, &other).await, 401, "invalid_client");
    let twice = format!("{}&client_id={}&client_id=x", query(&exchange_of(&code)), client.id);
    let path = "/_matrix/oauth2/token";
    error(http.raw("POST", path, &[FORM], twice).await.json(), 400, "invalid_request");
    client.exchange(&code).await.ok();
}

#[tokio::test]
async fn tokens_are_refreshed_and_the_former_ones_end_with_the_first_use() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let first = client.login(&mut browser, &scope("ONE")).await;
    let second = client.refresh(text(&first, "refresh_token")).await.ok();
    assert_ne!(second["access_token"], first["access_token"]);
    assert_ne!(second["refresh_token"], first["refresh_token"]);
    assert_eq!(second["scope"], first["scope"]);
    // An answer that was lost on the way can be had again.
    let again = client.refresh(text(&first, "refresh_token")).await.ok();
    assert_eq!(again["access_token"], second["access_token"]);
    whoami(&http, text(&first, "access_token")).await.ok();
    whoami(&http, text(&second, "access_token")).await.ok();
    whoami(&http, text(&first, "access_token")).await.refused(401, "M_UNKNOWN_TOKEN");
    // Not by the endpoint of the other kind of sessions.
    let body = json!({ "refresh_token": second["refresh_token"] });
    let path = "/_matrix/client/v3/refresh";
    http.request("POST", path, None, Some(&body)).await.refused(403, "M_FORBIDDEN");
    let wider = [
        ("grant_type", "refresh_token"),
        ("refresh_token", text(&second, "refresh_token")),
        ("scope", "urn:synapse:admin:*"),
    ];
    error(client.token(&wider).await, 400, "invalid_scope");
    let unknown = [("grant_type", "refresh_token"), ("refresh_token", "lcr_unknown")];
    error(client.token(&unknown).await, 400, "invalid_grant");
}

#[tokio::test]
async fn a_revoked_token_ends_the_session_whichever_of_the_two_it_is() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let client = Client::register(&http).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    for name in ["access_token", "refresh_token"] {
        let tokens = client.login(&mut browser, &scope("ENDS")).await;
        revoke(&http, text(&tokens, name)).await.ok();
        let access = text(&tokens, "access_token");
        whoami(&http, access).await.refused(401, "M_UNKNOWN_TOKEN");
        error(client.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
        ann.get("/devices/ENDS").await.refused(404, "M_NOT_FOUND");
        // Of a token that is revoked already, the same is said.
        revoke(&http, text(&tokens, name)).await.ok();
    }
    revoke(&http, "unknown").await.ok();
    error(post(&http, "/_matrix/oauth2/revoke", &[]).await, 400, "invalid_request");
    let hint = [("token", "x"), ("token_type_hint", "id_token")];
    error(post(&http, "/_matrix/oauth2/revoke", &hint).await, 400, "unsupported_token_type");
    // The session of a password is nothing of a client's.
    revoke(&http, &ann.access_token).await.ok();
    ann.get("/account/whoami").await.ok();
}

#[tokio::test]
async fn a_logout_by_the_client_server_api_ends_the_grant() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let tokens = client.login(&mut browser, &scope("OUT")).await;
    let access = text(&tokens, "access_token");
    http.request("POST", "/_matrix/client/v3/logout", Some(access), None).await.ok();
    error(client.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
}

/// Begins a device authorization.
async fn begin(client: &Client, scope: &str) -> Value {
    let parameters = [("client_id", client.id.as_str()), ("scope", scope)];
    post(&client.http, "/_matrix/oauth2/device", &parameters).await.ok()
}

fn poll_of(device_code: &str) -> [(&str, &str); 2] {
    [("grant_type", "urn:ietf:params:oauth:grant-type:device_code"), ("device_code", device_code)]
}

#[tokio::test]
async fn a_device_without_a_browser_is_logged_in_from_another() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let client = Client::register(&http).await;
    let begun = begin(&client, &scope("TV")).await;
    let device_code = text(&begun, "device_code");
    assert!(begun["expires_in"].as_u64() > Some(60) && begun["interval"] == 5, "{begun}");
    let poll = poll_of(device_code);
    error(client.token(&poll).await, 400, "authorization_pending");
    error(client.token(&poll).await, 400, "slow_down");
    let mut browser = Browser::new(&http);
    let uri = text(&begun, "verification_uri").strip_prefix(&server.base()).expect("its address");
    let page = browser.get(uri).await;
    let page = page.submit(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
    assert_eq!(page.title(), "Sign in another device");
    let typed = text(&begun, "user_code").to_lowercase();
    let page = browser.get(&format!("{uri}?user_code={}", encode(&typed))).await;
    assert_eq!(page.title(), "Sign in to My App?");
    assert!(page.body().contains(text(&begun, "user_code")), "{}", page.body());
    let page = page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    assert_eq!(page.title(), "Allowed");
    let tokens = client.token(&poll).await.ok();
    let me = whoami(&http, text(&tokens, "access_token")).await.ok();
    assert_eq!((&me["user_id"], &me["device_id"]), (&json!(ann.user_id), &json!("TV")));
    // It is used up; and another use ends what it was used for.
    assert_eq!(browser.get(&format!("{uri}?user_code={}", encode(&typed))).await.status(), 404);
    error(client.token(&poll).await, 400, "invalid_grant");
    let access = text(&tokens, "access_token");
    whoami(&http, access).await.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test]
async fn a_denied_or_unknown_code_of_a_device_gives_nothing() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let begun = begin(&client, &scope("TV")).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let whole = text(&begun, "verification_uri_complete");
    let whole = whole.strip_prefix(&server.base()).expect("its address");
    let page = browser.get(whole).await;
    let page = page.submit(&mut browser, 0, &[("answer", "deny")]).await;
    assert_eq!(page.title(), "Not allowed");
    error(client.token(&poll_of(text(&begun, "device_code"))).await, 400, "access_denied");
    error(client.token(&poll_of("lcd_unknown")).await, 400, "invalid_grant");
    assert_eq!(browser.get("/_matrix/oauth2/link?user_code=BBBB-BBBB").await.status(), 404);
    let mut without = description();
    without["grant_types"] = json!(["authorization_code"]);
    let without = Client::described(&http, &without).await;
    let parameters = [("client_id", without.id.as_str()), ("scope", "openid")];
    let refused = post(&http, "/_matrix/oauth2/device", &parameters).await;
    error(refused, 400, "unauthorized_client");
}

#[tokio::test]
async fn a_user_registers_on_the_way_to_a_client() {
    let server = server().await;
    let http = server.http();
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("NEW"), challenge(VERIFIER));
    let mut request = client.request(&scope, &challenge);
    request.push(("prompt", "create"));
    let mut browser = Browser::new(&http);
    let page = browser.get(&authorize(&request)).await;
    assert_eq!(page.title(), "Create an account on e2e.test");
    let fields = [("username", "eve"), ("password", PASSWORD), ("repeated", "another")];
    let page = page.submit(&mut browser, 0, &fields).await;
    assert_eq!(page.status(), 400);
    let fields = [("username", "eve"), ("password", PASSWORD), ("repeated", PASSWORD)];
    let page = page.submit(&mut browser, 0, &fields).await;
    assert_eq!(page.title(), "Sign in to My App?");
    let sent = page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    let tokens = client.exchange(&parameters(sent.sent_to())["code"]).await.ok();
    let me = whoami(&http, text(&tokens, "access_token")).await.ok();
    assert_eq!(me["user_id"], "@eve:e2e.test");
    // A name that is taken is said so on the page.
    let mut other = Browser::new(&http);
    let page = other.get("/_matrix/oauth2/sign_up").await;
    let page = page.submit(&mut other, 0, &fields).await;
    assert_eq!(page.status(), 400);
    assert!(page.body().contains("role=\"alert\""), "{}", page.body());
}

#[tokio::test]
async fn a_registration_on_the_pages_waits_for_approval() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_REGISTRATION_APPROVAL", "true"),
        ("LOGCABIN_REGISTRATION_QUESTION", "Who told you of us?"),
    ])
    .await;
    let http = server.http();
    let mut browser = Browser::new(&http);
    let page = browser.get("/_matrix/oauth2/sign_up").await;
    assert!(page.body().contains("Who told you of us?"), "{}", page.body());
    let account = [("username", "eve"), ("password", PASSWORD), ("repeated", PASSWORD)];
    let page = page.submit(&mut browser, 0, &[&account[..], &[("answer", " ")]].concat()).await;
    assert_eq!(page.status(), 400);
    let page = page.submit(&mut browser, 0, &[&account[..], &[("answer", "Ann")]].concat()).await;
    assert_eq!(page.title(), "Thank you", "{}", page.body());
    let listed = done(user_command(server.data_dir(), "list --waiting", ""));
    assert!(listed.contains("@eve:e2e.test") && listed.contains("Ann"), "{listed}");

    let login = [("user", "eve"), ("password", PASSWORD)];
    let page = browser.get("/_matrix/oauth2/sign_in").await;
    let page = page.submit(&mut browser, 0, &login).await;
    assert_eq!(page.status(), 403);
    assert!(page.body().contains("awaits the approval of an administrator"), "{}", page.body());
    done(user_command(server.data_dir(), "approve eve", ""));
    let page = browser.get("/_matrix/oauth2/sign_in").await;
    page.submit(&mut browser, 0, &login).await;
    let client = Client::register(&http).await;
    client.login(&mut browser, &scope("APPROVED")).await;
}

#[tokio::test]
async fn a_registration_that_fails_at_its_end_still_leads_to_the_client() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let terms = dir.path().join("terms.toml");
    let text =
        "[terms]\nversion = \"1\"\nen = { name = \"Terms\", url = \"https://x.example/\" }\n";
    std::fs::write(&terms, text).expect("the directory can be written to");
    let server = TestServer::start_with(&[
        ("LOGCABIN_REGISTRATION_TERMS", &*terms.display().to_string()),
        ("LOGCABIN_REGISTRATION_REQUIRE", "terms"),
        ("LOGCABIN_REGISTRATION_MAX_ACCOUNTS", "1"),
    ])
    .await;
    let http = server.http();
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("NEW"), challenge(VERIFIER));
    let mut request = client.request(&scope, &challenge);
    request.push(("prompt", "create"));
    let mut browser = Browser::new(&http);
    let page = browser.get(&authorize(&request)).await;
    let fields = [("username", "eve"), ("password", PASSWORD), ("repeated", PASSWORD)];
    let page = page.submit(&mut browser, 0, &fields).await;
    assert_eq!(page.title(), "Terms");
    // Somebody else has the last account.
    done(user_command(server.data_dir(), "create bob --no-password", ""));
    let sent = browser.request("POST", &page.path, &[FORM], String::new()).await;
    let page = browser.follow(sent).await;
    assert_eq!((page.status(), &*page.title()), (409, "Create an account on e2e.test"));
    for part in ["role=\"alert\"", "To continue to", "My App", "value=\"eve\""] {
        assert!(page.body().contains(part), "no {part} in {}", page.body());
    }
}

#[tokio::test]
async fn a_client_with_a_secret_proves_who_it_is() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    for method in ["client_secret_basic", "client_secret_post"] {
        let mut own = description();
        own["token_endpoint_auth_method"] = json!(method);
        let registered = register(&http, &own).await;
        assert_eq!(registered.status, 201, "{registered}");
        let (id, secret) =
            (text(&registered.body, "client_id"), text(&registered.body, "client_secret"));
        let issuer = metadata(&http).await["issuer"].as_str().expect("an issuer").to_owned();
        let client = Client { http: http.clone(), id: id.to_owned(), issuer };
        let code = client.code(&mut browser, &scope("SECRET")).await;
        error(client.exchange(&code).await, 401, "invalid_client");
        let with = |secret: &str| {
            use base64::{Engine as _, engine::general_purpose::STANDARD};
            let basic = format!("Basic {}", STANDARD.encode(format!("{id}:{secret}")));
            let mut fields = exchange_of(&code).to_vec();
            fields.extend([("client_id", id), ("client_secret", secret)]);
            match method {
                "client_secret_basic" => (Some(basic), query(&exchange_of(&code))),
                _ => (None, query(&fields)),
            }
        };
        let ask = async |secret: &str| {
            let (basic, body) = with(secret);
            let mut headers = vec![FORM];
            headers.extend(basic.as_deref().map(|basic| ("authorization", basic)));
            http.raw("POST", "/_matrix/oauth2/token", &headers, body).await
        };
        let wrong = ask("wrong").await;
        assert!(wrong.header("www-authenticate").starts_with("Basic"), "{wrong:?}");
        error(wrong.json(), 401, "invalid_client");
        ask(secret).await.json().ok();
    }
}

#[tokio::test]
async fn a_device_id_belongs_to_its_grant() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    let client = Client::register(&http).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let first = client.login(&mut browser, &scope("SAME")).await;
    let second = client.login(&mut browser, &scope("SAME")).await;
    // The second login takes the place of the first.
    let access = text(&first, "access_token");
    whoami(&http, access).await.refused(401, "M_UNKNOWN_TOKEN");
    error(client.refresh(text(&first, "refresh_token")).await, 400, "invalid_grant");
    whoami(&http, text(&second, "access_token")).await.ok();
    // The page says so for a device that has another session.
    let page = {
        let scope = scope(&ann.device_id);
        let challenge = challenge(VERIFIER);
        browser.get(&authorize(&client.request(&scope, &challenge))).await
    };
    assert!(page.body().contains("takes the place"), "{}", page.body());
}

#[tokio::test]
async fn administration_needs_its_scope_and_an_administrator() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    done(user_command(server.data_dir(), "set-admin ann", ""));
    let client = Client::register(&http).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let path = "/_synapse/admin/v2/users";
    http.request("GET", path, Some(&ann.access_token), None).await.ok();
    let plain = client.login(&mut browser, &scope("PLAIN")).await;
    let access = text(&plain, "access_token");
    http.request("GET", path, Some(access), None).await.refused(403, "M_FORBIDDEN");
    let with = format!("{} urn:synapse:admin:*", scope("ADMIN"));
    let admin = client.login(&mut browser, &with).await;
    http.request("GET", path, Some(text(&admin, "access_token")), None).await.ok();
    // Alone, it is no device, and nothing but administration.
    let alone = client.login(&mut browser, "urn:synapse:admin:*").await;
    let access = text(&alone, "access_token");
    http.request("GET", path, Some(access), None).await.ok();
    let sync = http.request("GET", "/_matrix/client/v3/sync", Some(access), None).await;
    sync.refused(403, "M_FORBIDDEN");
    // The feed of changes has a scope of its own, which gives nothing else.
    let feed = client.login(&mut browser, "urn:logcabin:changes").await;
    let feed = text(&feed, "access_token");
    let changes = "/_logcabin/v1/changes?from=1&follow=false";
    let authorization = format!("Bearer {feed}");
    let told = http.raw("GET", changes, &[("authorization", &authorization)], "").await;
    assert_eq!(told.parts.status, 200);
    assert!(told.bytes.windows(8).any(|bytes| bytes == b"reached\""), "the feed has no end");
    for other in [path, "/_matrix/client/v3/sync"] {
        http.request("GET", other, Some(feed), None).await.refused(403, "M_FORBIDDEN");
    }
    let of_app = format!("Bearer {}", text(&plain, "access_token"));
    let refused = http.raw("GET", changes, &[("authorization", &of_app)], "").await;
    assert_eq!(refused.parts.status, 403);
    // Others cannot allow it.
    server.register("bob").await;
    let mut bob = Browser::signed_in(&http, "bob").await;
    let challenge = challenge(VERIFIER);
    let page = bob.get(&authorize(&client.request(&with, &challenge))).await;
    assert!(!page.body().contains("value=\"allow\""), "{}", page.body());
    let forced = page.submit(&mut bob, 0, &[("answer", "allow")]).await;
    assert_eq!(forced.status(), 403);
    let page = bob.get(&authorize(&client.request("urn:logcabin:changes", &challenge))).await;
    assert!(!page.body().contains("value=\"allow\""), "{}", page.body());
}

#[tokio::test]
async fn either_way_can_be_turned_off() {
    let server = TestServer::start_with(&[("LOGCABIN_OAUTH_ENABLED", "false")]).await;
    let http = server.http();
    let path = "/_matrix/client/v1/auth_metadata";
    http.request("GET", path, None, None).await.refused(404, "M_UNRECOGNIZED");
    assert_eq!(http.raw("GET", "/_matrix/oauth2/sign_in", &[], "").await.parts.status, 404);
    server.register("ann").await;
    let server = TestServer::start_with(&[("LOGCABIN_LOGIN_LEGACY", "false")]).await;
    let http = server.http();
    for (method, path) in [("GET", "login"), ("POST", "login"), ("POST", "register")] {
        let path = format!("/_matrix/client/v3/{path}");
        let body = json!({ "type": "m.login.password", "password": "x", "user": "ann" });
        let body = (method == "POST").then_some(&body);
        http.request(method, &path, None, body).await.refused(404, "M_UNRECOGNIZED");
    }
    let client = Client::register(&http).await;
    let mut browser = Browser::new(&http);
    let page = browser.get("/_matrix/oauth2/sign_up").await;
    let fields = [("username", "eve"), ("password", PASSWORD), ("repeated", PASSWORD)];
    page.submit(&mut browser, 0, &fields).await;
    client.login(&mut browser, &scope("ONLY")).await;
}

#[tokio::test]
async fn a_client_of_the_other_api_is_led_through_the_same_pages() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let flows = http.request("GET", "/_matrix/client/v3/login", None, None).await.ok();
    let mut flows = flows["flows"].as_array().expect("flows").iter();
    assert!(flows.any(|flow| *flow == json!({ "type": "m.login.sso" })), "{flows:?}");
    let mut browser = Browser::new(&http);
    let place = encode("https://app.example.com/after");
    let path = format!("/_matrix/client/v3/login/sso/redirect?redirectUrl={place}");
    for (action, title) in
        [("login", "Sign in to e2e.test"), ("register", "Create an account on e2e.test")]
    {
        let path = format!("{path}&action={action}");
        let seen = browser.request("GET", &path, &[], String::new()).await;
        let location = seen.answer.header("location").to_owned();
        assert_eq!(browser.get(&location).await.title(), title);
    }
    let seen = browser.request("GET", &path, &[], String::new()).await;
    let location = seen.answer.header("location").to_owned();
    let page = browser.get(&location).await;
    let page = page.submit(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
    assert_eq!(page.title(), "Continue to app.example.com?");
    let sent = page.submit(&mut browser, 0, &[]).await;
    let login_token = find(sent.sent_to(), "loginToken=([^&]*)").expect("a token");
    let body = json!({ "type": "m.login.token", "token": login_token });
    http.request("POST", "/_matrix/client/v3/login", None, Some(&body)).await.ok();
}
