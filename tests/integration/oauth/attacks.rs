//! The attacks of RFC 9700, "Best Current Practice for OAuth 2.0 Security", and of its neighbours.
//!
//! | attack | section | what the server does against it | test |
//! |---|---|---|---|
//! | redirect address that is not the client's | RFC 9700, 4.1 | addresses are compared byte by byte, and nobody is sent elsewhere | `nobody_is_sent_to_an_address_that_is_not_the_clients` |
//! | leaks by the `Referer` and by histories | 4.2, 4.3 | no page gives its address away or is stored; codes are good once, for a minute | `pages_keep_their_addresses_to_themselves` |
//! | mix-up | 4.4 | each answer names its issuer (RFC 9207) | `each_answer_names_its_issuer` |
//! | code injection | 4.5 | a code needs its verifier, its client and its redirect address | `a_stolen_code_is_of_no_use_without_its_verifier` |
//! | code replay | RFC 6749, 4.1.2 | a second use ends what the first gave | `a_second_use_of_a_code_revokes_the_tokens_of_the_first` |
//! | PKCE downgrade | 4.8.2 | no code without S256, no exchange without the verifier | `no_code_is_given_without_pkce_or_with_its_weak_form` |
//! | cross-site requests to the client | 4.7 | `state` comes back as it was | `each_answer_names_its_issuer` |
//! | cross-site requests to the pages | 4.7 | a form is one that this server showed to this browser for this | `no_other_site_can_send_a_form` |
//! | session fixation | | signing in replaces the cookie | `a_cookie_that_somebody_planted_is_not_signed_in` |
//! | open redirector | 4.11 | sign-ins lead to pages of this server alone | `a_sign_in_leads_nowhere_else` |
//! | 307 redirects | 4.12 | forms are answered with 303 | `a_form_with_a_password_is_not_sent_on` |
//! | stolen refresh tokens | 4.14 | rotation; a former one that is used ends the grant | `a_former_refresh_token_ends_the_session_of_thief_and_owner` |
//! | tokens of other clients | 4.10, 4.14 | a refresh token is good for its client alone | `tokens_and_codes_of_one_client_are_nothing_to_another` |
//! | misuse of an account page as resource owner | 4.15 | a user id is never a client id: they are of different forms | – |
//! | clickjacking | 4.16 | no page is shown in a frame | `no_page_is_shown_in_a_frame` |
//! | guessing user codes | RFC 8628, 5.1 | entering codes is limited | `limits::guesses_at_codes_are_limited` |
//! | remote phishing by a device code | RFC 8628, 5.4 | the page asks, with the code and a warning, even when it is in the address | `a_link_with_a_code_asks_first` |
//! | names that deceive | RFC 7591, 5 | the host is shown, and names cannot hide it | `a_name_cannot_pass_for_markup_or_for_another_direction` |
//! | any of these against the console, which is a client | | it is held to the same rules, and nobody has its secret | those in `console` |
//! | secrets in logs | 4.2.4 | neither the log of the server nor its records have any | `no_secret_is_in_any_log` |

use std::fs;

use serde_json::{Value, json};

use super::{
    Browser, Client, FORM, PASSWORD, VERIFIER, authorize, challenge, description, error,
    exchange_of, find, parameters, post, query, scope, server, text, whoami,
};
use crate::harness::{TestServer, encode};

#[tokio::test]
async fn nobody_is_sent_to_an_address_that_is_not_the_clients() {
    let server = server().await;
    let http = server.http();
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    for address in [
        "https://evil.example.com/callback",
        "https://app.example.com/callback/",
        "https://app.example.com/callback?x=y",
        "https://app.example.com/callback#x",
        "https://app.example.com/Callback",
        "https://app.example.com:443/callback",
        "https://app.example.com/callback/../other",
        "https://app.example.com@evil.org/callback",
        "http://app.example.com/callback",
        "javascript:alert(1)",
        "",
    ] {
        let mut request = client.request(&scope, &challenge);
        request[3].1 = address;
        let seen = Browser::new(&http).get(&authorize(&request)).await;
        assert_eq!(seen.status(), 400, "{address}");
        assert!(seen.answer.header("location").is_empty(), "{address}");
        assert!(seen.title().contains("did not work"), "{}", seen.title());
    }
    // Nor with a client that is not known, or with parameters that are there twice.
    for change in [("client_id", "nobody"), ("redirect_uri", "https://evil.org/")] {
        let mut request = client.request(&scope, &challenge);
        request.push(change);
        let seen = Browser::new(&http).get(&authorize(&request)).await;
        assert_eq!((seen.status(), seen.answer.header("location")), (400, ""), "{change:?}");
    }
    // On the machine itself, any port is right: the client does not know it before.
    let mut native = description();
    native["application_type"] = json!("native");
    native["redirect_uris"] = json!(["http://127.0.0.1/callback", "com.example.app:/callback"]);
    let native = Client::described(&http, &native).await;
    for (address, is_right) in [
        ("http://127.0.0.1:51234/callback", true),
        ("com.example.app:/callback", true),
        ("http://127.0.0.1:51234/other", false),
        ("http://127.0.0.1:51234@evil.org/callback", false),
        ("com.example.app:/other", false),
    ] {
        let mut request = native.request(&scope, &challenge);
        request[3].1 = address;
        let seen = Browser::new(&http).get(&authorize(&request)).await;
        assert_eq!(seen.status() == 200, is_right, "{address}");
    }
}

#[tokio::test]
async fn pages_keep_their_addresses_to_themselves() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
    let sent = page.submit(&mut browser, 0, &[("answer", "allow")]).await;
    for seen in [&page, &sent] {
        assert_eq!(seen.answer.header("referrer-policy"), "no-referrer");
        assert_eq!(seen.answer.header("cache-control"), "no-store");
    }
    let tokens = http.raw("POST", "/_matrix/oauth2/token", &[FORM], "").await;
    assert_eq!(tokens.header("cache-control"), "no-store");
}

#[tokio::test]
async fn each_answer_names_its_issuer() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    let mut browser = Browser::signed_in(&http, "ann").await;
    for answer in ["allow", "deny"] {
        let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
        let sent = page.submit(&mut browser, 0, &[("answer", answer)]).await;
        let given = parameters(sent.sent_to());
        assert_eq!(given["iss"], client.issuer);
        assert_eq!(given["state"], "opaque & state");
    }
}

#[tokio::test]
async fn a_stolen_code_is_of_no_use_without_its_verifier() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let code = client.code(&mut browser, &scope("A")).await;
    let own = "a-verifier-of-the-thief-that-is-long-enough-to-be-one";
    let mut stolen = exchange_of(&code);
    stolen[3].1 = own;
    error(client.token(&stolen).await, 400, "invalid_grant");
    // The attempts of a thief take nothing from the owner.
    let tokens = client.exchange(&code).await.ok();
    error(client.token(&stolen).await, 400, "invalid_grant");
    whoami(&http, text(&tokens, "access_token")).await.ok();
}

#[tokio::test]
async fn a_second_use_of_a_code_revokes_the_tokens_of_the_first() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    let code = client.code(&mut browser, &scope("A")).await;
    let tokens = client.exchange(&code).await.ok();
    let access = text(&tokens, "access_token");
    whoami(&http, access).await.ok();
    error(client.exchange(&code).await, 400, "invalid_grant");
    whoami(&http, access).await.refused(401, "M_UNKNOWN_TOKEN");
    error(client.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
    // Of several at once, one at most stays.
    let code = client.code(&mut browser, &scope("B")).await;
    let answers = futures_util::future::join_all((0..8).map(|_| client.exchange(&code))).await;
    let given: Vec<_> = answers.iter().filter(|answer| answer.status == 200).collect();
    assert_eq!(given.len(), 1, "{answers:?}");
    let access = text(&given[0].body, "access_token");
    whoami(&http, access).await.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test]
async fn no_code_is_given_without_pkce_or_with_its_weak_form() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let scope = scope("A");
    let mut browser = Browser::signed_in(&http, "ann").await;
    for parameters_of in [
        vec![],
        vec![("code_challenge", VERIFIER)],
        vec![("code_challenge", VERIFIER), ("code_challenge_method", "plain")],
        vec![("code_challenge_method", "S256")],
    ] {
        let mut request: Vec<_> = client.request(&scope, "").into_iter().take(6).collect();
        request.extend(parameters_of);
        let sent = browser.get(&authorize(&request)).await;
        assert_eq!(parameters(sent.sent_to())["error"], "invalid_request");
    }
    let code = client.code(&mut browser, &scope).await;
    let without = &exchange_of(&code)[..3];
    error(client.token(without).await, 400, "invalid_request");
}

#[tokio::test]
async fn no_other_site_can_send_a_form() {
    let server = server().await;
    let http = server.http();
    let ann = server.register("ann").await;
    server.register("bob").await;
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    let address = authorize(&client.request(&scope, &challenge));
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(&address).await;
    let (action, hidden) = page.form(0);
    let proof = hidden[0].1.clone();
    let allow = |proof: &str| query(&[("form", proof), ("answer", "allow")]);
    // Without the proof, with another browser's, with the one of another form.
    let other = {
        let mut other = Browser::signed_in(&http, "bob").await;
        other.get(&address).await.form(0).1[0].1.clone()
    };
    let of_another = browser.get("/_matrix/oauth2/account").await.form(0).1[0].1.clone();
    for wrong in ["", "wrong", &other, &of_another] {
        let seen = browser.request("POST", &action, &[FORM], allow(wrong)).await;
        assert_eq!(seen.status(), 403, "{wrong}");
    }
    // With the right proof, but for another request.
    let wider = authorize(&client.request("openid", &challenge));
    assert_eq!(browser.request("POST", &wider, &[FORM], allow(&proof)).await.status(), 403);
    // With it, but from another site.
    for site in ["cross-site", "same-site"] {
        let headers = [FORM, ("sec-fetch-site", site)];
        let seen = browser.request("POST", &action, &headers, allow(&proof)).await;
        assert_eq!(seen.status(), 403, "{site}");
    }
    // With it, in a browser without the cookie.
    let seen = Browser::new(&http).request("POST", &action, &[FORM], allow(&proof)).await;
    assert_eq!(seen.status(), 403);
    for (act, target) in [("deactivate", ""), ("reset", ""), ("device_remove", &*ann.device_id)] {
        let fields =
            [("act", act), ("target", target), ("confirm", "@ann:e2e.test"), ("form", &proof)];
        let path = "/_matrix/oauth2/account";
        let seen = browser.request("POST", path, &[FORM], query(&fields)).await;
        assert_eq!(seen.status(), 403, "{act}");
    }
    ann.get("/account/whoami").await.ok();
    let headers = [FORM, ("sec-fetch-site", "same-origin")];
    let sent = browser.request("POST", &action, &headers, allow(&proof)).await;
    assert!(parameters(sent.sent_to()).contains_key("code"));
}

#[tokio::test]
async fn a_cookie_that_somebody_planted_is_not_signed_in() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let mut thief = Browser::new(&http);
    thief.get("/_matrix/oauth2/sign_in").await;
    // The victim has the thief's cookie, and signs in.
    let mut victim = thief.clone();
    let page = victim.get("/_matrix/oauth2/sign_in").await;
    let page = page.submit(&mut victim, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
    assert_eq!(page.title(), "Your account");
    assert_eq!(thief.get("/_matrix/oauth2/account").await.title(), "Sign in to e2e.test");
    let set = {
        let mut browser = Browser::new(&http);
        let page = browser.get("/_matrix/oauth2/sign_in").await;
        page.send(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await
    };
    let cookie = set.answer.header("set-cookie");
    for part in ["HttpOnly", "SameSite=Lax", "Path=/_matrix/oauth2"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    // After signing out, the cookie is worth nothing, wherever a copy of it is.
    let mut copy = victim.clone();
    let page = victim.get("/_matrix/oauth2/account").await;
    page.submit(&mut victim, 0, &[]).await;
    assert_eq!(copy.get("/_matrix/oauth2/account").await.title(), "Sign in to e2e.test");
    // Behind TLS, the cookie is for TLS alone.
    let public = [("LOGCABIN_SERVER_PUBLIC_URL", "https://matrix.example.org")];
    let server = TestServer::start_with(&public).await;
    let page = server.http().raw("GET", "/_matrix/oauth2/sign_in", &[], "").await;
    let cookie = page.header("set-cookie");
    assert!(cookie.starts_with("__Secure-") && cookie.ends_with("Secure"), "{cookie}");
}

#[tokio::test]
async fn a_sign_in_leads_nowhere_else() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    for next in ["https://evil.org/", "//evil.org/", "/\\evil.org", "javascript:alert(1)", "x"] {
        let mut browser = Browser::new(&http);
        let page = browser.get(&format!("/_matrix/oauth2/sign_in?next={}", encode(next))).await;
        let page = page.submit(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
        assert_eq!(page.title(), "Your account", "{next}");
        let again = browser.get(&format!("/_matrix/oauth2/sign_in?next={}", encode(next))).await;
        assert_eq!(again.title(), "Your account", "{next}");
    }
}

#[tokio::test]
async fn a_form_with_a_password_is_not_sent_on() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let mut browser = Browser::new(&http);
    let page = browser.get("/_matrix/oauth2/sign_in").await;
    let seen = page.send(&mut browser, 0, &[("user", "ann"), ("password", PASSWORD)]).await;
    assert_eq!(seen.status(), 303);
}

#[tokio::test]
async fn a_former_refresh_token_ends_the_session_of_thief_and_owner() {
    let (server, client, mut browser) = super::ann().await;
    let http = server.http();
    // With a device, and without one.
    for scope in [scope("A"), "openid".to_owned()] {
        let first = client.login(&mut browser, &scope).await;
        let second = client.refresh(text(&first, "refresh_token")).await.ok();
        let third = client.refresh(text(&second, "refresh_token")).await.ok();
        error(client.refresh(text(&first, "refresh_token")).await, 400, "invalid_grant");
        error(client.refresh(text(&third, "refresh_token")).await, 400, "invalid_grant");
        let access = text(&third, "access_token");
        whoami(&http, access).await.refused(401, "M_UNKNOWN_TOKEN");
    }
}

#[tokio::test]
async fn tokens_and_codes_of_one_client_are_nothing_to_another() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let mut other = description();
    other["client_name"] = json!("Another");
    let other = Client::described(&http, &other).await;
    assert_ne!(client.id, other.id);
    let mut browser = Browser::signed_in(&http, "ann").await;
    let code = client.code(&mut browser, &scope("A")).await;
    error(other.exchange(&code).await, 400, "invalid_grant");
    let tokens = client.exchange(&code).await.ok();
    error(other.exchange(&code).await, 400, "invalid_grant");
    error(other.refresh(text(&tokens, "refresh_token")).await, 400, "invalid_grant");
    whoami(&http, text(&tokens, "access_token")).await.ok();
    client.refresh(text(&tokens, "refresh_token")).await.ok();
    let request = [("client_id", client.id.as_str()), ("scope", "openid")];
    let begun = post(&http, "/_matrix/oauth2/device", &request).await.ok();
    let poll = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", text(&begun, "device_code")),
    ];
    error(other.token(&poll).await, 400, "invalid_grant");
    error(client.token(&poll).await, 400, "authorization_pending");
}

#[tokio::test]
async fn no_page_is_shown_in_a_frame() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let (scope, challenge) = (scope("A"), challenge(VERIFIER));
    let mut browser = Browser::new(&http);
    let mut seen = vec![
        browser.get("/_matrix/oauth2/sign_in").await,
        browser.get("/_matrix/oauth2/sign_up").await,
        browser.get("/_matrix/oauth2/recover").await,
        browser.get("/_matrix/oauth2/authorize").await,
    ];
    let mut browser = Browser::signed_in(&http, "ann").await;
    seen.extend([
        browser.get("/_matrix/oauth2/account").await,
        browser.get("/_matrix/oauth2/link").await,
        browser.get(&authorize(&client.request(&scope, &challenge))).await,
    ]);
    for seen in seen {
        let policy = seen.answer.header("content-security-policy");
        assert!(policy.contains("frame-ancestors 'none'"), "{}: {policy}", seen.path);
        assert!(policy.contains("default-src 'none'"), "{}: {policy}", seen.path);
        assert_eq!(seen.answer.header("x-frame-options"), "DENY", "{}", seen.path);
        assert!(!seen.body().contains("<script"), "{}", seen.path);
    }
}

#[tokio::test]
async fn a_link_with_a_code_asks_first() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let request = [("client_id", client.id.as_str()), ("scope", "openid")];
    let begun = post(&http, "/_matrix/oauth2/device", &request).await.ok();
    let link = text(&begun, "verification_uri_complete");
    let link = link.strip_prefix(&server.base()).expect("its address");
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(link).await;
    let body = page.body();
    assert!(body.contains("Does your other device show this code?"), "{body}");
    assert!(body.contains("somebody sent you the code"), "{body}");
    let poll = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", text(&begun, "device_code")),
    ];
    error(client.token(&poll).await, 400, "authorization_pending");
}

#[tokio::test]
async fn a_name_cannot_pass_for_markup_or_for_another_direction() {
    let server = server().await;
    let http = server.http();
    server.register("ann").await;
    let mut deceiving = description();
    deceiving["client_name"] = json!("</strong><script>alert(1)</script>\u{202e}ppA\n\u{200b}");
    let client = Client::described(&http, &deceiving).await;
    let (scope, challenge) = (scope("<b>"), challenge(VERIFIER));
    let mut browser = Browser::signed_in(&http, "ann").await;
    let page = browser.get(&authorize(&client.request(&scope, &challenge))).await;
    let body = page.body();
    assert!(!body.contains("<script") && !body.contains("<b>"), "{body}");
    assert!(!body.contains('\u{202e}') && !body.contains('\u{200b}'), "{body}");
    assert!(find(&body, "(example\\.com)</a>").is_some(), "{body}");
}

#[tokio::test]
async fn no_secret_is_in_any_log() {
    let settings = [("LOGCABIN_LOG", "trace")];
    let mut server = TestServer::start_with(&settings).await;
    let http = server.http();
    server.register("ann").await;
    let client = Client::register(&http).await;
    let mut browser = Browser::signed_in(&http, "ann").await;
    let code = client.code(&mut browser, &scope("A")).await;
    let first = client.exchange(&code).await.ok();
    let second = client.refresh(text(&first, "refresh_token")).await.ok();
    whoami(&http, text(&second, "access_token")).await.ok();
    let request = [("client_id", client.id.as_str()), ("scope", "openid")];
    let begun = post(&http, "/_matrix/oauth2/device", &request).await.ok();
    let cookie = browser.cookies.values().next().expect("a cookie").clone();
    let mut owned = description();
    owned["token_endpoint_auth_method"] = json!("client_secret_post");
    let owned = super::register(&http, &owned).await;
    let of = |value: &Value, name: &str| text(value, name).to_owned();
    let secrets = [
        ("the code", code),
        ("an access token", of(&first, "access_token")),
        ("a refresh token", of(&first, "refresh_token")),
        ("the next access token", of(&second, "access_token")),
        ("the next refresh token", of(&second, "refresh_token")),
        ("the device code", of(&begun, "device_code")),
        ("the user code", of(&begun, "user_code")),
        ("the cookie", cookie),
        ("the secret of a client", of(&owned.body, "client_secret")),
        ("the verifier", VERIFIER.to_owned()),
        ("the password", PASSWORD.to_owned()),
    ];
    server.stop();
    let output = server.output();
    let mut files = vec![("the output".to_owned(), output.into_bytes())];
    let mut folders = vec![server.data_dir().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.display().to_string(), fs::read(&path).expect("a file")));
            }
        }
    }
    for (file, bytes) in &files {
        for (what, secret) in &secrets {
            // Of a token, the part that is random is enough.
            let part = secret.as_bytes();
            let found = bytes.windows(part.len()).any(|window| window == part);
            assert!(!found, "{what} is in {file}");
        }
    }
    assert!(files.len() > 3, "{}", files.len());
}
