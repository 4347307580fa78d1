//! The console logs administrators in by OpenID Connect, as a client of the server that it is a
//! part of.

use super::{
    Browser, CALLBACK, Client, PASSWORD, Seen, VERIFIER, authorize, challenge, error, exchange_of,
    find, parameters, query, server, text, token, whoami,
};
use crate::administration::user_command;
use crate::harness::{TestServer, User};

const SIGN_IN: &str = "/_logcabin/console/sign_in";
const COOKIE: &str = "logcabin_console";
const UNDER_WAY: &str = "logcabin_console_login";

/// A server with a console, and root, who administers it, with a browser.
async fn root() -> (TestServer, User, Browser) {
    let server = TestServer::start_with(&[("LOGCABIN_CONSOLE_ENABLED", "true")]).await;
    let root = server.register("root").await;
    appoint(&server, "set-admin");
    let browser = Browser::signed_in(&server.http(), "root").await;
    (server, root, browser)
}

fn appoint(server: &TestServer, act: &str) {
    let appointed = user_command(server.data_dir(), &format!("{act} root"), "");
    assert!(appointed.status.success(), "{appointed:?}");
}

/// An address of the server as a path.
fn path(address: &str) -> String {
    let (_, rest) = address.split_once("://").expect("an address");
    rest.find('/').map_or_else(String::new, |at| rest[at..].to_owned())
}

/// Follows an answer that leads anywhere on the server, and no further.
async fn go(browser: &mut Browser, path: &str) -> Seen {
    browser.request("GET", path, &[], String::new()).await
}

/// The page that asks.
async fn asked(browser: &mut Browser) -> Seen {
    let sent = go(browser, SIGN_IN).await;
    browser.get(&path(sent.sent_to())).await
}

/// Allows it. Returns the path that the browser is sent back to.
async fn allowed(browser: &mut Browser) -> String {
    let page = asked(browser).await;
    assert_eq!(page.title(), "Sign in to Console of e2e.test?");
    path(page.submit(browser, 0, &[("answer", "allow")]).await.sent_to())
}

/// What is told to a browser that may not enter.
#[track_caller]
fn refused(seen: &Seen, browser: &Browser) {
    assert!(seen.status() == 403 && seen.body().contains("role=\"alert\""), "{}", seen.body());
    assert!(seen.body().contains("Log in with your account"), "{}", seen.body());
    assert!(!browser.cookies.contains_key(COOKIE), "{:?}", browser.cookies);
}

/// Whether the console is open to this browser.
async fn is_in(browser: &mut Browser) -> bool {
    let seen = go(browser, "/_logcabin/console").await;
    assert!([200, 303].contains(&seen.status()), "{}", seen.body());
    seen.status() == 200
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_logs_in_to_the_console_with_their_account_and_out() {
    let (server, _, mut browser) = root().await;
    let http = server.http();
    let sent = go(&mut browser, SIGN_IN).await;
    let asked = parameters(sent.sent_to());
    assert_eq!(asked["scope"], "openid urn:synapse:admin:*");
    assert_eq!((&*asked["code_challenge_method"], &*asked["max_age"]), ("S256", "900"));
    let cookie = sent.answer.header("set-cookie");
    for part in ["Path=/_logcabin/console/callback", "SameSite=Lax", "HttpOnly"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let back = allowed(&mut browser).await;
    assert!(back.starts_with("/_logcabin/console/callback?"), "{back}");
    let arrived = go(&mut browser, &back).await;
    assert_eq!((arrived.status(), arrived.answer.header("location")), (303, "/_logcabin/console"));
    assert_eq!(arrived.answer.header("cache-control"), "no-store");
    let cookies = arrived.answer.parts.headers.get_all("set-cookie").iter();
    let cookies: Vec<_> = cookies.map(|cookie| cookie.to_str().expect("text")).collect();
    let session = cookies.iter().find(|cookie| cookie.starts_with(COOKIE)).expect("its cookie");
    for part in ["Path=/_logcabin/console;", "SameSite=Strict", "HttpOnly", "Max-Age=43200"] {
        assert!(session.contains(part), "{session}");
    }
    assert!(!browser.cookies.contains_key(UNDER_WAY));
    assert!(is_in(&mut browser).await);
    let page = go(&mut browser, "/_logcabin/console/users").await;
    assert!(page.body().contains("@root:e2e.test"), "{}", page.body());

    // It is a session like any other on the page of the account, and ends there.
    let mut other = browser.clone();
    let devices = "/_matrix/oauth2/account?action=org.matrix.devices_list";
    let page = other.get(devices).await;
    assert!(page.body().contains("Sign out of Console of e2e.test"), "{}", page.body());
    page.submit(&mut other, 0, &[]).await;
    assert!(!is_in(&mut browser).await);

    // Logging out ends it, too, for whoever has the cookie.
    let back = allowed(&mut browser).await;
    go(&mut browser, &back).await;
    let mut thief = browser.clone();
    let token = browser.cookies[COOKIE].clone();
    assert!(is_in(&mut thief).await);
    let page = go(&mut browser, "/_logcabin/console").await;
    let left = page.send(&mut browser, 0, &[]).await;
    assert_eq!((left.status(), left.answer.header("location")), (303, "/_logcabin/console/login"));
    assert!(!browser.cookies.contains_key(COOKIE) && !is_in(&mut thief).await);
    whoami(&http, &token).await.refused(401, "M_UNKNOWN_TOKEN");
    let page = browser.get(devices).await;
    assert!(!page.body().contains("Console of"), "{}", page.body());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_but_an_administrator_enters_the_console_with_their_account() {
    let (server, _, mut browser) = root().await;
    server.register("ann").await;
    let mut anns = Browser::signed_in(&server.http(), "ann").await;
    let page = asked(&mut anns).await;
    assert!(page.body().contains("Only an administrator"), "{}", page.body());
    assert!(!page.body().contains("value=\"allow\""), "{}", page.body());
    let forced = page.submit(&mut anns, 0, &[("answer", "allow")]).await;
    assert_eq!(forced.status(), 403);
    let denied = page.submit(&mut anns, 0, &[("answer", "deny")]).await;
    let seen = go(&mut anns, &path(denied.sent_to())).await;
    refused(&seen, &anns);
    assert!(seen.body().contains("You did not allow it."), "{}", seen.body());

    // One who ceases to be an administrator between the two steps leaves nothing behind.
    let back = allowed(&mut browser).await;
    appoint(&server, "unset-admin");
    let seen = go(&mut browser, &back).await;
    refused(&seen, &browser);
    let page = browser.get("/_matrix/oauth2/account?action=org.matrix.devices_list").await;
    assert!(!page.body().contains("Console of"), "{}", page.body());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_enters_the_console_only_with_the_login_that_it_began() {
    let (server, _, mut browser) = root().await;
    let http = server.http();
    // Without its cookie, or with that of another login, it is a login that somebody else began.
    let back = allowed(&mut browser).await;
    let mut without = Browser::new(&http);
    refused(&go(&mut without, &back).await, &without);
    let mut other = browser.clone();
    go(&mut other, SIGN_IN).await;
    refused(&go(&mut other, &back).await, &other);
    // Neither is one with another state, of another issuer, or without a code.
    let given = parameters(&back);
    let with = |name: &str, value: &str| {
        let mut changed = given.clone();
        changed.insert(name.to_owned(), value.to_owned());
        changed.retain(|_, value| !value.is_empty());
        let pairs: Vec<_> = changed.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        format!("/_logcabin/console/callback?{}", query(&pairs))
    };
    let changed = [("state", "x"), ("state", ""), ("iss", "https://evil.example"), ("iss", "")];
    for (name, value) in changed.into_iter().chain([("code", ""), ("code", "lcc_x")]) {
        let mut same = browser.clone();
        let seen = go(&mut same, &with(name, value)).await;
        refused(&seen, &same);
    }
    // All that has not used the code up.
    let mut kept = browser.clone();
    assert_eq!(go(&mut browser, &back).await.status(), 303);
    assert!(is_in(&mut browser).await);
    // A second use gives nothing, and ends what the first gave: one of the two has stolen it.
    let seen = go(&mut kept, &back).await;
    refused(&seen, &kept);
    assert!(!is_in(&mut browser).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codes_of_the_console_and_of_other_clients_are_nothing_to_each_other() {
    let (server, _, mut browser) = root().await;
    let http = server.http();
    let client = Client::register(&http).await;
    let injected = |back: &str, code: &str| {
        let own = parameters(back)["code"].clone();
        back.replace(&own, code)
    };
    // A code of another client, and one of another login to the console, of an administrator, too.
    let theirs = client.code(&mut browser, "openid").await;
    let mut attacker = browser.clone();
    let of_attacker = parameters(&allowed(&mut attacker).await)["code"].clone();
    let back = allowed(&mut browser).await;
    for code in [&theirs, &of_attacker] {
        let mut same = browser.clone();
        refused(&go(&mut same, &injected(&back, code)).await, &same);
    }
    // Nobody exchanges the console's codes: it has a secret that nobody has.
    let code = parameters(&back)["code"].clone();
    let asked = exchange_of(&code);
    error(client.exchange(&code).await, 400, "invalid_grant");
    for secret in [None, Some(("client_secret", "guessed"))] {
        let id = Some(("client_id", "logcabin-console"));
        let all: Vec<_> = asked.into_iter().chain(id).chain(secret).collect();
        error(token(&http, &all).await, 401, "invalid_client");
    }
    assert_eq!(go(&mut browser, &back).await.status(), 303);
    // A code of the console comes to the console alone.
    let challenge = challenge(VERIFIER);
    let mut request = client.request("openid urn:synapse:admin:*", &challenge);
    request[2].1 = "logcabin-console";
    assert_eq!(request[3], ("redirect_uri", CALLBACK));
    let seen = browser.get(&authorize(&request)).await;
    assert_eq!((seen.status(), seen.answer.header("location")), (400, ""));
    // A form that was shown for it cannot be sent by another site.
    let page = self::asked(&mut browser).await;
    let (action, hidden) = page.form(0);
    let hidden = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let body = query(&hidden.chain([("answer", "allow")]).collect::<Vec<_>>());
    let elsewhere = [super::FORM, ("sec-fetch-site", "cross-site")];
    assert_eq!(browser.request("POST", &action, &elsewhere, body).await.status(), 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_is_a_client_only_where_it_is_enabled() {
    let is_known = async |server: &TestServer| {
        let challenge = challenge(VERIFIER);
        let own = format!("{}/_logcabin/console/callback", server.base());
        let request = [
            ("response_type", "code"),
            ("client_id", "logcabin-console"),
            ("redirect_uri", &*own),
            ("scope", "openid"),
            ("code_challenge", &*challenge),
            ("code_challenge_method", "S256"),
        ];
        let seen = Browser::new(&server.http()).get(&authorize(&request)).await;
        (seen.status(), find(&seen.body(), "<h1>(.*?)</h1>"))
    };
    let without = server().await;
    assert_eq!(is_known(&without).await.0, 400);
    for path in [SIGN_IN, "/_logcabin/console/callback?state=x&code=y"] {
        assert_eq!(go(&mut Browser::new(&without.http()), path).await.status(), 404, "{path}");
    }
    let (with, _, mut browser) = root().await;
    let (status, title) = is_known(&with).await;
    assert_eq!((status, title.as_deref()), (200, Some("Sign in to e2e.test")));
    // The other ways stay.
    let page = go(&mut browser, "/_logcabin/console/login").await;
    assert!(page.body().contains("Log in with your account"), "{}", page.body());
    let fields = [("user", "root"), ("password", PASSWORD)];
    let entered = page.send(&mut browser, 0, &fields).await;
    assert_eq!(entered.status(), 303, "{}", entered.body());
    assert!(is_in(&mut browser).await);
    // Where there is no OAuth 2.0, there are only those.
    let settings = [("LOGCABIN_CONSOLE_ENABLED", "true"), ("LOGCABIN_OAUTH_ENABLED", "false")];
    let without = TestServer::start_with(&settings).await;
    let mut browser = Browser::new(&without.http());
    let page = go(&mut browser, "/_logcabin/console/login").await;
    assert!(!page.body().contains("Log in with your account"), "{}", page.body());
    assert!(go(&mut browser, SIGN_IN).await.status() >= 400);
    let metadata = super::metadata(&with.http()).await;
    assert!(text(&metadata, "issuer").contains("oauth2"));
}
