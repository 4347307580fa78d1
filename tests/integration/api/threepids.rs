//! E-mail addresses and phone numbers of accounts: their validation by real mail, what they are
//! good for, and where they are published.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use logcabin::log::archive::ArchiveReader;
use logcabin::record::{Command, Offset};
use ruma::serde::Base64;
use ruma::signatures::{PublicKeyMap, verify_json};
use serde_json::{Value, json};

use super::{PASSWORD, anonymous, one_wins, unique};
use crate::administration;
use crate::crash::assert_verifies;
use crate::harness::mail::{MailServer, Security, link};
use crate::harness::{
    Answer, Asked, Http, StandIn, TestServer, User, encode, refused_start, until_ok,
};

const VALIDATE: &str = "/_svc/client/unstable/logcabin/validate";

pub(crate) async fn start(settings: &[(String, String)], more: &[(&str, &str)]) -> TestServer {
    let settings = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all: Vec<(&str, &str)> = settings.chain(more.iter().copied()).collect();
    TestServer::start_with(&all).await
}

/// Asks for a message to an e-mail address.
async fn ask(http: &Http, endpoint: &str, email: &str, secret: &str, attempt: u32) -> Answer {
    let body = json!({ "client_secret": secret, "email": email, "send_attempt": attempt });
    anonymous(http, "POST", &format!("{endpoint}/email/requestToken"), Some(&body)).await
}

/// What a person does with the link of a mail: looks at the page, and presses its button.
async fn confirm(http: &Http, mail: &Value) {
    let link = link(mail);
    let page = http.raw("GET", &link, &[], "").await;
    assert_eq!(page.parts.status, 200, "{}", page.bytes.escape_ascii());
    let answer = http.raw("POST", VALIDATE, &[], form(&page.bytes)).await;
    assert_eq!(answer.parts.status, 200, "{}", answer.bytes.escape_ascii());
}

/// What a browser posts of a page's form.
fn form(page: &[u8]) -> String {
    let page = String::from_utf8_lossy(page);
    let field = |rest: &str| -> Option<String> {
        let (name, rest) = rest.split_once("\" value=\"")?;
        let value = rest.split_once('"')?.0.replace("&amp;", "&").replace("&#39;", "'");
        Some(format!("{name}={}", encode(&value)))
    };
    let fields = page.split("<input type=\"hidden\" name=\"").skip(1).filter_map(field);
    fields.collect::<Vec<_>>().join("&")
}

async fn add(user: &User, sid: &str, secret: &str) -> Answer {
    let name = user.localpart();
    let body = json!({
        "client_secret": secret, "sid": sid,
        "auth": {
            "type": "m.login.password", "password": PASSWORD,
            "identifier": { "type": "m.id.user", "user": name },
        },
    });
    user.request("POST", "/account/3pid/add", Some(&body)).await
}

/// Adds an address to an account, all the way.
pub(crate) async fn add_email(mail: &MailServer, user: &User, email: &str) {
    let secret = unique("secret");
    let number = mail.mails(email).len();
    let sid = ask(&user.http, "/account/3pid", email, &secret, 1).await.ok_string("sid");
    confirm(&user.http, &mail.mail(email, number)).await;
    assert_eq!(add(user, &sid, &secret).await.ok(), json!({}));
}

async fn threepids(user: &User) -> Vec<Value> {
    let list = user.get("/account/3pid").await.ok();
    list["threepids"].as_array().expect("a list").clone()
}

async fn account_with_email(mail: &MailServer, server: &TestServer, name: &str) -> (User, String) {
    let user = User::register(&server.http(), &unique(name), PASSWORD).await;
    let email = format!("{}@example.org", unique(name));
    add_email(mail, &user, &email).await;
    (user, email)
}

#[tokio::test]
async fn an_address_is_added_once_its_link_was_confirmed_and_survives_a_restart_at_any_step() {
    let Some(mail) = MailServer::start_with("threepids", Security::Starttls) else { return };
    let mut server = start(&mail.settings(), &[]).await;
    let ann = User::register(&server.http(), "ann", PASSWORD).await;
    assert_eq!(ann.get("/account/3pid").await.ok(), json!({ "threepids": [] }));

    let sid = ask(&ann.http, "/account/3pid", " Ann@Example.ORG", "s1", 1).await;
    let sid = sid.ok_string("sid");
    assert!(sid.bytes().all(|b| b.is_ascii_alphanumeric()) && !sid.is_empty(), "{sid}");
    let letter = mail.mail("ann@example.org", 0);
    assert_eq!((&letter["tls"], &letter["login"]), (&json!(true), &json!("logcabin")));
    assert_eq!(letter["headers"]["from"], "Test <noreply@e2e.test>");
    assert_eq!(letter["headers"]["auto-submitted"], "auto-generated");
    assert!(letter["headers"]["subject"].as_str().unwrap_or_default().contains("e2e.test"));
    for form in ["plain", "html"] {
        assert!(letter[form].as_str().unwrap_or_default().contains("e2e.test"), "{letter}");
    }

    // Not before it is confirmed, and a look at the link does not confirm it.
    add(&ann, &sid, "s1").await.refused(403, "M_THREEPID_AUTH_FAILED");
    server.restart().await;
    let http = server.http();
    let page = http.raw("GET", &link(&letter), &[], "").await;
    assert_eq!(page.parts.status, 200);
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    assert!(String::from_utf8_lossy(&page.bytes).contains("ann@example.org"));
    add(&ann, &sid, "s1").await.refused(403, "M_THREEPID_AUTH_FAILED");

    confirm(&http, &letter).await;
    server.restart().await;
    add(&ann, &sid, "other").await.refused(403, "M_THREEPID_AUTH_FAILED");
    // The password is asked for.
    let body = json!({ "client_secret": "s1", "sid": sid });
    let asked = ann.request("POST", "/account/3pid/add", Some(&body)).await;
    assert_eq!(
        (asked.status, &asked.body["flows"][0]["stages"][0]),
        (401, &json!("m.login.password"))
    );
    add(&ann, &sid, "s1").await.ok();
    // It has served.
    add(&ann, &sid, "s1").await.refused(403, "M_THREEPID_AUTH_FAILED");
    let used = server.http().raw("GET", &link(&letter), &[], "").await;
    assert_eq!(used.parts.status, 400);
    assert!(String::from_utf8_lossy(&used.bytes).contains("cannot be used"));

    server.restart().await;
    let list = threepids(&ann).await;
    assert_eq!(
        (&list[0]["medium"], &list[0]["address"]),
        (&json!("email"), &json!("ann@example.org"))
    );
    let (added, validated) = (list[0]["added_at"].as_u64(), list[0]["validated_at"].as_u64());
    assert!(validated.is_some() && added > validated, "{list:?}");
    assert_eq!((list.len(), list[0].as_object().map(serde_json::Map::len)), (1, Some(4)));

    // Nobody else can have it, and once removed anybody can.
    let bob = User::register(&server.http(), "bob", PASSWORD).await;
    let again = ask(&bob.http, "/account/3pid", "ANN@example.org", "s2", 1).await;
    again.refused(400, "M_THREEPID_IN_USE");
    let remove = json!({ "medium": "email", "address": "ann@example.org" });
    let removed = ann.request("POST", "/account/3pid/delete", Some(&remove)).await;
    assert_eq!(removed.ok(), json!({ "id_server_unbind_result": "no-support" }));
    assert_eq!(threepids(&ann).await, Vec::<Value>::new());
    add_email(&mail, &bob, "ann@example.org").await;
    server.restart().await;
    assert_eq!(threepids(&bob).await.len(), 1);
}

#[tokio::test]
async fn mail_goes_by_tls_from_the_first_byte() {
    let Some(mail) = MailServer::start_with("threepids", Security::Tls) else { return };
    let server = start(&mail.settings(), &[]).await;
    ask(&server.http(), "/register", "ann@example.org", "s", 1).await.ok();
    assert_eq!(mail.mail("ann@example.org", 0)["tls"], true);

    // One whose certificate nobody vouches for gets no mail.
    let mut settings = mail.settings();
    settings.retain(|(name, _)| name != "LOGCABIN_EMAIL_CERTIFICATES");
    let server = start(&settings, &[]).await;
    let refused = ask(&server.http(), "/register", "bob@example.org", "s", 1).await;
    refused.refused(503, "M_UNKNOWN");
}

#[tokio::test]
async fn a_message_is_sent_again_for_a_higher_attempt_alone() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let mut server = start(&mail.settings(), &[]).await;
    let http = server.http();
    let email = "ann@example.org";
    let first = ask(&http, "/register", email, "s", 5).await.ok_string("sid");
    for attempt in [5, 4, 0] {
        assert_eq!(ask(&http, "/register", email, "s", attempt).await.ok_string("sid"), first);
    }
    server.restart().await;
    let http = server.http();
    assert_eq!(ask(&http, "/register", email, "s", 5).await.ok_string("sid"), first);
    assert_eq!(ask(&http, "/register", email, "s", 6).await.ok_string("sid"), first);
    // Another secret is another matter.
    assert_ne!(ask(&http, "/register", email, "t", 1).await.ok_string("sid"), first);
    mail.mail(email, 2);
    assert_eq!(mail.mails(email).len(), 3);
    // The newest link is the one that counts.
    let old = http.raw("GET", &link(&mail.mail(email, 0)), &[], "").await;
    let old = http.raw("POST", VALIDATE, &[], form(&old.bytes)).await;
    assert_eq!(old.parts.status, 400);
    confirm(&http, &mail.mail(email, 1)).await;

    // Of many who ask at once for the same, one is sent.
    let same = "bob@example.org";
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let http = http.clone();
            tokio::spawn(
                async move { ask(&http, "/register", same, "s", 1).await.ok_string("sid") },
            )
        })
        .collect();
    let mut sids = Vec::new();
    for asked in asking {
        sids.push(asked.await.expect("an answer"));
    }
    sids.dedup();
    assert_eq!((sids.len(), mail.mails(same).len()), (1, 1));
}

#[tokio::test]
async fn without_a_way_to_send_messages_nothing_is_offered_that_needs_them() {
    let server = TestServer::start().await;
    let http = server.http();
    for endpoint in ["/register", "/account/password", "/account/3pid"] {
        let refused = ask(&http, endpoint, "ann@example.org", "s", 1).await;
        refused.refused(400, "M_THREEPID_MEDIUM_NOT_SUPPORTED");
        let body = json!({
            "client_secret": "s", "country": "GB", "phone_number": "07400123456", "send_attempt": 1,
        });
        let path = format!("{endpoint}/msisdn/requestToken");
        let refused = anonymous(&http, "POST", &path, Some(&body)).await;
        refused.refused(400, "M_THREEPID_MEDIUM_NOT_SUPPORTED");
    }
    let body = json!({ "new_password": "another long password" });
    let refused = anonymous(&http, "POST", "/account/password", Some(&body)).await;
    refused.refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn secrets_ids_and_addresses_have_their_grammar() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let server = start(&mail.settings(), &[]).await;
    let http = server.http();
    for secret in ["", "with space", "\u{e4}", "a/b", &"x".repeat(256)] {
        for endpoint in ["/register", "/account/password", "/account/3pid"] {
            let refused = ask(&http, endpoint, "ann@example.org", secret, 1).await;
            refused.refused(400, "M_INVALID_PARAM");
        }
        let ann = User::register(&http, &unique("ann"), PASSWORD).await;
        add(&ann, "sid", secret).await.refused(400, "M_INVALID_PARAM");
        add(&ann, secret, "secret").await.refused(400, "M_INVALID_PARAM");
    }
    for email in ["", "ann", "ann@", "ann@127.0.0.1", "Ann <ann@example.org>"] {
        ask(&http, "/register", email, "s", 1).await.refused(400, "M_INVALID_PARAM");
    }
    for body in [
        json!({ "client_secret": "s", "send_attempt": 1 }),
        json!({ "client_secret": "s", "email": "ann@example.org" }),
        json!({ "email": "ann@example.org", "send_attempt": 1 }),
        json!({ "client_secret": 5, "email": "ann@example.org", "send_attempt": 1 }),
    ] {
        let path = "/register/email/requestToken";
        anonymous(&http, "POST", path, Some(&body)).await.refused(400, "M_BAD_JSON");
    }
    // The longest that there is, and an identity server's name, which does not matter here, nor
    // whether it is trusted: with a token for it, and without one, as older clients have it.
    for endpoint in ["/register", "/account/password", "/account/3pid"] {
        for token in [Some("abc"), None] {
            let mut body = json!({
                "client_secret": "x".repeat(255), "email": format!("{}@example.org", unique("ann")),
                "send_attempt": 1, "id_server": "id.example.org",
            });
            if let Some(token) = token {
                body["id_access_token"] = token.into();
            }
            let path = format!("{endpoint}/email/requestToken");
            anonymous(&http, "POST", &path, Some(&body)).await.ok_string("sid");
        }
    }
}

#[tokio::test]
async fn only_the_owner_of_an_address_learns_whether_it_has_an_account() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let server = start(&mail.settings(), &[]).await;
    let http = server.http();
    let (ann, taken) = account_with_email(&mail, &server, "ann").await;
    let free = "nobody-here@example.com";

    // Both are answered alike; the mail to the owner has no link.
    ask(&http, "/register", &taken, "s", 1).await.ok_string("sid");
    let letter = mail.mail(&taken, 1);
    let plain = letter["plain"].as_str().unwrap_or_default();
    assert!(plain.contains(&ann.user_id) && !plain.contains("http://"), "{plain}");
    assert!(plain.contains("Forgot password"), "{plain}");
    // Attempts count for these, too.
    ask(&http, "/register", &taken, "s", 1).await.ok();
    assert_eq!(mail.mails(&taken).len(), 2);

    let free = free.replace("nobody-here", "free");
    ask(&http, "/account/password", &free, "s", 1).await.ok_string("sid");
    let letter = mail.mail(&free, 0);
    let plain = letter["plain"].as_str().unwrap_or_default();
    assert!(plain.contains("There is none") && !plain.contains("http://"), "{plain}");

    // Where it is to be told, it is.
    let server = start(&mail.settings(), &[("LOGCABIN_THREEPIDS_REVEAL", "true")]).await;
    let http = server.http();
    let (_, taken) = account_with_email(&mail, &server, "bob").await;
    ask(&http, "/register", &taken, "s", 1).await.refused(400, "M_THREEPID_IN_USE");
    let unknown = ask(&http, "/account/password", "other@example.com", "s", 1).await;
    unknown.refused(400, "M_THREEPID_NOT_FOUND");
    assert!(mail.mails("other@example.com").is_empty());
}

#[tokio::test]
async fn what_is_denied_cannot_be_used() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let settings = [
        ("LOGCABIN_THREEPIDS_ALLOW", "email:*@example.org"),
        ("LOGCABIN_THREEPIDS_DENY", "email:root@*"),
    ];
    let server = start(&mail.settings(), &settings).await;
    let http = server.http();
    for endpoint in ["/register", "/account/3pid"] {
        for email in ["ann@example.com", "Root@example.org"] {
            ask(&http, endpoint, email, "s", 1).await.refused(403, "M_THREEPID_DENIED");
        }
        ask(&http, endpoint, "ann@example.org", "s", 1).await.ok();
    }
}

#[tokio::test]
async fn a_browser_is_sent_on_to_allowed_hosts_alone() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let hosts = ("LOGCABIN_THREEPIDS_NEXT_LINK_HOSTS", "app.example.org,*.good.example");
    let server = start(&mail.settings(), &[hosts]).await;
    let http = server.http();
    let ask = async |email: &str, next_link: &str| {
        let body = json!({
            "client_secret": "s", "email": email, "send_attempt": 1, "next_link": next_link,
        });
        anonymous(&http, "POST", "/register/email/requestToken", Some(&body)).await
    };
    for bad in [
        "https://evil.example/",
        "javascript:alert(1)",
        "https://app.example.org@evil.example/",
        "https://app.example.org.evil.example/",
        "//app.example.org/",
        "app.example.org",
        "",
        "https://user:pass@app.example.org/",
        &format!("https://app.example.org/{}", "x".repeat(2048)),
    ] {
        ask("ann@example.org", bad).await.refused(400, "M_INVALID_PARAM");
    }
    for (number, next) in ["https://app.example.org/#/register?a=1&b='2'", "http://x.good.example/"]
        .iter()
        .enumerate()
    {
        let email = format!("ann{number}@example.org");
        ask(&email, next).await.ok();
        let link = link(&mail.mail(&email, 0));
        let page = http.raw("GET", &link, &[], "").await;
        let origin = next.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let policy = page.header("content-security-policy").to_owned();
        assert!(policy.contains(&format!("form-action 'self' {origin}")), "{policy}");
        let answer = http.raw("POST", VALIDATE, &[], form(&page.bytes)).await;
        assert_eq!(answer.parts.status, 303);
        assert_eq!(answer.header("location").replace("%27", "'"), *next);

        // A link that someone has changed leads nowhere else.
        let changed = format!(
            "{}&next_link=https%3A%2F%2Fevil.example",
            link.split("&next_link").next().unwrap_or_default()
        );
        let page = http.raw("GET", &changed, &[], "").await;
        assert!(!form(&page.bytes).contains("evil"));
    }
}

#[tokio::test]
async fn an_app_that_brings_the_token_is_sent_nowhere() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let hosts = ("LOGCABIN_THREEPIDS_NEXT_LINK_HOSTS", "app.example.org");
    let server = start(&mail.settings(), &[hosts]).await;
    let http = server.http();
    let next = "https://app.example.org/";
    let body = json!({
        "client_secret": "s", "email": "ann@example.org", "send_attempt": 1, "next_link": next,
    });
    let asked = anonymous(&http, "POST", "/register/email/requestToken", Some(&body)).await;
    let link = link(&mail.mail("ann@example.org", 0));
    let token = link.split("token=").nth(1).and_then(|rest| rest.split('&').next());
    let body = json!({
        "sid": asked.ok_string("sid"), "client_secret": "s", "token": token.expect("a token"),
        "next_link": next,
    });
    let answer = http.raw("POST", VALIDATE, &[], body.to_string()).await;
    assert_eq!((answer.parts.status.as_u16(), answer.header("location")), (200, ""));
    assert_eq!(answer.json().ok(), json!({ "success": true }));
}

#[tokio::test]
async fn a_dead_mail_server_delays_nobody_else_and_the_mail_can_be_asked_for_again() {
    let Some(mail) = MailServer::start("threepids") else { return };
    // It takes connections and never says anything.
    let dead = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = dead.local_addr().expect("an address").port().to_string();
    let settings = [
        ("LOGCABIN_EMAIL_HOST", "127.0.0.1"),
        ("LOGCABIN_EMAIL_PORT", &port),
        ("LOGCABIN_EMAIL_SECURITY", "none"),
        ("LOGCABIN_EMAIL_TIMEOUT_SECONDS", "3"),
        ("LOGCABIN_EMAIL_CONCURRENT", "2"),
        ("LOGCABIN_EMAIL_FROM", "noreply@e2e.test"),
    ];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data_dir = directory.path().join("data");
    let mut server = TestServer::start_on_with(&data_dir, &settings).await;
    let http = server.http();
    let asking: Vec<_> = (0..20)
        .map(|number| {
            let http = http.clone();
            let email = format!("ann{number}@example.org");
            tokio::spawn(async move { ask(&http, "/register", &email, "s", 1).await })
        })
        .collect();
    let began = Instant::now();
    let ann = User::register(&http, "ann", PASSWORD).await;
    let room = ann.create_room(json!({})).await;
    ann.send_text(&room, "1", "hello").await;
    assert!(began.elapsed() < Duration::from_secs(3), "others waited {:?}", began.elapsed());
    for asked in asking {
        asked.await.expect("an answer").refused(503, "M_UNKNOWN");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());

    // The attempt has not been used up.
    server.stop();
    let settings = mail.settings();
    let settings: Vec<_> = settings.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let server = TestServer::start_on_with(&data_dir, &settings).await;
    ask(&server.http(), "/register", "ann0@example.org", "s", 1).await.ok();
    mail.mail("ann0@example.org", 0);
}

#[tokio::test]
async fn what_the_mail_server_refuses_is_told() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let server = start(&mail.settings(), &[]).await;
    let http = server.http();
    ask(&http, "/register", "nobody@example.org", "s", 1).await.refused(400, "M_UNKNOWN");
    ask(&http, "/register", "busy@example.org", "s", 1).await.refused(503, "M_UNKNOWN");
    ask(&http, "/register", "ann@example.org", "s", 1).await.ok();
}

#[tokio::test]
async fn messages_to_one_address_are_limited() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let most = ("LOGCABIN_THREEPIDS_MESSAGES_PER_ADDRESS", "3");
    let mut server = start(&mail.settings(), &[most]).await;
    let http = server.http();
    ask(&http, "/register", "ann@example.org", "a", 1).await.ok();
    ask(&http, "/register", "ann@example.org", "a", 2).await.ok();
    ask(&http, "/account/password", "ann@example.org", "b", 1).await.ok();
    server.restart().await;
    let refused = ask(&server.http(), "/register", "ann@example.org", "c", 1).await;
    let body = refused.refused(429, "M_LIMIT_EXCEEDED");
    assert!(
        body["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0 && wait <= 3_600_000),
        "{body}"
    );
    // The answer to what is known already does not change.
    ask(&server.http(), "/register", "ann@example.org", "a", 2).await.ok();
    ask(&server.http(), "/register", "bob@example.org", "c", 1).await.ok();
    assert_eq!(mail.mails("ann@example.org").len(), 3);
}

#[tokio::test]
async fn a_forgotten_password_is_reset_by_mail() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let server = start(&mail.settings(), &[]).await;
    let http = server.http();
    let (ann, email) = account_with_email(&mail, &server, "ann").await;
    let (_, other) = account_with_email(&mail, &server, "bob").await;

    let mut body = json!({ "new_password": "a new and long password" });
    let asked = anonymous(&http, "POST", "/account/password", Some(&body)).await;
    assert_eq!(asked.status, 401);
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.email.identity"] }]));
    let session = asked.body["session"].clone();
    // With a session of one's own, the password is what is asked for.
    let with_token = ann.request("POST", "/account/password", Some(&body)).await;
    assert_eq!(with_token.body["flows"], json!([{ "stages": ["m.login.password"] }]));

    let sid = ask(&http, "/account/password", &email, "s", 1).await.ok_string("sid");
    let credentials = json!({ "sid": sid, "client_secret": "s" });
    body["auth"] = json!({
        "type": "m.login.email.identity", "session": session, "threepid_creds": credentials,
    });
    let early = anonymous(&http, "POST", "/account/password", Some(&body)).await;
    assert_eq!((early.status, &early.body["errcode"]), (401, &json!("M_THREEPID_AUTH_FAILED")));
    assert_eq!(early.body["completed"], json!([]));
    // Nothing but the session: still not done, and then done.
    body["auth"] = json!({ "session": session });
    let early = anonymous(&http, "POST", "/account/password", Some(&body)).await;
    assert_eq!((early.status, early.body.get("errcode")), (401, None));
    confirm(&http, &mail.mail(&email, 1)).await;
    let done = anonymous(&http, "POST", "/account/password", Some(&body)).await;
    assert_eq!(done.ok(), json!({}));

    let name = ann.localpart().to_owned();
    User::login(&http, &name, "a new and long password").await;
    ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    // It has served, and that of another address, or for another purpose, never will.
    let registering = ask(&http, "/register", "free@example.org", "s", 1).await.ok_string("sid");
    confirm(&http, &mail.mail("free@example.org", 0)).await;
    for (sid, secret) in [(&sid, "s"), (&registering, "s"), (&sid, "t")] {
        body["auth"] = json!({
            "type": "m.login.email.identity",
            "threepid_creds": { "sid": sid, "client_secret": secret },
        });
        let refused = anonymous(&http, "POST", "/account/password", Some(&body)).await;
        assert_eq!(
            (refused.status, &refused.body["errcode"]),
            (401, &json!("M_THREEPID_AUTH_FAILED"))
        );
    }
    // Other devices may be kept.
    let bob_sid = ask(&http, "/account/password", &other, "s", 1).await.ok_string("sid");
    confirm(&http, &mail.mail(&other, 1)).await;
    let body = json!({
        "new_password": "bob's long password", "logout_devices": false,
        "auth": {
            "type": "m.login.email.identity",
            "threepid_creds": { "sid": bob_sid, "client_secret": "s" },
        },
    });
    anonymous(&http, "POST", "/account/password", Some(&body)).await.ok();
}

#[tokio::test]
async fn passwords_that_cannot_be_changed_cannot_be_reset_either() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let switch = ("LOGCABIN_ACCOUNTS_CHANGE_PASSWORD", "false");
    let server = start(&mail.settings(), &[switch]).await;
    let (_, email) = account_with_email(&mail, &server, "ann").await;
    let http = server.http();
    let sid = ask(&http, "/account/password", &email, "s", 1).await.ok_string("sid");
    confirm(&http, &mail.mail(&email, 1)).await;
    let body = json!({
        "new_password": "a new and long password",
        "auth": {
            "type": "m.login.email.identity",
            "threepid_creds": { "sid": sid, "client_secret": "s" },
        },
    });
    let refused = anonymous(&http, "POST", "/account/password", Some(&body)).await;
    refused.refused(401, "M_MISSING_TOKEN");
}

/// One who registers by a mail alone, and never sets a password.
async fn newcomer(mail: &MailServer, http: &Http, name: &str) -> (User, String) {
    let (name, secret) = (unique(name), unique("secret"));
    let email = format!("{name}@example.org");
    let sid = ask(http, "/register", &email, &secret, 1).await.ok_string("sid");
    confirm(http, &mail.mail(&email, 0)).await;
    let body = json!({
        "username": name,
        "auth": {
            "type": "m.login.email.identity",
            "threepid_creds": {
                "sid": sid, "client_secret": secret,
                // As clients send them that know no better.
                "id_server": "id.example.org", "id_access_token": "abc",
            },
        },
    });
    (User::of(http, anonymous(http, "POST", "/register", Some(&body)).await), email)
}

#[tokio::test]
async fn nobody_completes_another_users_stage_with_their_own_address() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let require = ("LOGCABIN_REGISTRATION_REQUIRE", "email");
    let server = start(&mail.settings(), &[require]).await;
    let http = server.http();
    let (ann, email) = newcomer(&mail, &http, "ann").await;
    let (mallory, other) = newcomer(&mail, &http, "mallory").await;
    // Who has come by a token of Ann's, and nothing else, tries to make the account theirs.
    let sid = ask(&http, "/account/password", &other, "s", 1).await.ok_string("sid");
    confirm(&http, &mail.mail(&other, 1)).await;
    let mut body = json!({ "new_password": "a new and long password" });
    let asked = ann.request("POST", "/account/password", Some(&body)).await;
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.email.identity"] }]));
    let session = asked.body["session"].clone();
    let by = |sid: &str| {
        json!({
            "type": "m.login.email.identity", "session": session,
            "threepid_creds": { "sid": sid, "client_secret": "s" },
        })
    };
    body["auth"] = by(&sid);
    let refused = ann.request("POST", "/account/password", Some(&body)).await;
    assert_eq!(refused.body["completed"], json!([]), "{refused}");
    refused.refused(401, "M_THREEPID_AUTH_FAILED");
    // In Ann's session, as another user and as nobody, for whom it would do.
    body["auth"] = json!({ "session": session });
    for answer in [
        mallory.request("POST", "/account/password", Some(&body)).await,
        anonymous(&http, "POST", "/account/password", Some(&body)).await,
        ann.request("POST", "/account/password", Some(&body)).await,
    ] {
        assert_eq!((answer.status, &answer.body["completed"]), (401, &json!([])), "{answer}");
    }
    // Ann does it with her own.
    let sid = ask(&http, "/account/password", &email, "s", 1).await.ok_string("sid");
    body["auth"] = by(&sid);
    let early = ann.request("POST", "/account/password", Some(&body)).await;
    early.refused(401, "M_THREEPID_AUTH_FAILED");
    confirm(&http, &mail.mail(&email, 1)).await;
    body["auth"] = json!({ "session": session });
    ann.request("POST", "/account/password", Some(&body)).await.ok();
}

#[tokio::test]
async fn a_user_can_log_in_with_an_address() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let gateway = StandIn::start(|_| (200, json!({}))).await;
    let url = format!("http://{}/send", gateway.address);
    let server = start(&mail.settings(), &[("LOGCABIN_SMS_URL", &url)]).await;
    let http = server.http();
    let (ann, email) = account_with_email(&mail, &server, "ann").await;
    add_phone(&gateway, &ann, "GB", "07400 123456").await;
    let shouted = email.to_uppercase();
    for who in [
        json!({ "identifier": { "type": "m.id.thirdparty", "medium": "email", "address": email } }),
        json!({ "identifier": { "type": "m.id.thirdparty", "medium": "email", "address": shouted } }),
        json!({ "identifier": { "type": "m.id.thirdparty", "medium": "msisdn", "address": "447400123456" } }),
        json!({ "identifier": { "type": "m.id.phone", "country": "GB", "phone": "07400123456" } }),
        json!({ "identifier": { "type": "m.id.phone", "country": "DE", "phone": "+44 7400 123456" } }),
        json!({ "medium": "email", "address": email }),
    ] {
        let mut body = who.clone();
        body["type"] = "m.login.password".into();
        body["password"] = PASSWORD.into();
        let answer = anonymous(&http, "POST", "/login", Some(&body)).await;
        assert_eq!(answer.ok()["user_id"], ann.user_id, "{who}");
        body["password"] = "wrong".into();
        anonymous(&http, "POST", "/login", Some(&body)).await.refused(403, "M_FORBIDDEN");
    }
    let unknown = json!({
        "type": "m.login.password", "password": PASSWORD,
        "identifier": { "type": "m.id.thirdparty", "medium": "email", "address": "x@example.org" },
    });
    anonymous(&http, "POST", "/login", Some(&unknown)).await.refused(403, "M_FORBIDDEN");

    // And confirm things by it.
    let mut body = json!({
        "auth": {
            "type": "m.login.password", "password": PASSWORD,
            "identifier": { "type": "m.id.thirdparty", "medium": "email", "address": email },
        },
    });
    let device = User::login(&http, &ann.user_id, PASSWORD).await;
    let path = format!("/devices/{}", device.device_id);
    ann.request("DELETE", &path, Some(&body)).await.ok();
    // Nobody's is refused as another's is.
    let (_, other) = account_with_email(&mail, &server, "bob").await;
    let mut refused = Vec::new();
    for address in ["x@example.org", &*other] {
        body["auth"]["identifier"]["address"] = address.into();
        let answer = ann.request("DELETE", &path, Some(&body)).await;
        refused.push(answer.refused(403, "M_FORBIDDEN"));
    }
    assert_eq!(refused[0], refused[1]);
}

#[tokio::test]
async fn what_the_mail_server_has_against_this_server_is_not_told_of_the_address() {
    let refused = async |security, more: &[(&str, &str)], address: &str| {
        let mail = MailServer::start_with("threepids", security)?;
        let server = start(&mail.settings(), more).await;
        Some(ask(&server.http(), "/register", address, "s", 1).await)
    };
    // The recipient is refused, over every way to the mail server.
    for security in [Security::None, Security::Starttls, Security::Tls] {
        let Some(answer) = refused(security, &[], "nobody@example.org").await else { return };
        answer.refused(400, "M_UNKNOWN");
    }
    // The sender is refused (550).
    let sender = [("LOGCABIN_EMAIL_FROM", "banned@e2e.test")];
    let Some(answer) = refused(Security::None, &sender, "ann@example.org").await else { return };
    answer.refused(503, "M_UNKNOWN");
    // The content is refused (554).
    let Some(answer) = refused(Security::None, &[], "filtered@example.org").await else { return };
    answer.refused(503, "M_UNKNOWN");
    // The login is refused (535).
    let dir = tempfile::TempDir::new().unwrap();
    let wrong = dir.path().join("password");
    std::fs::write(&wrong, "wrong").unwrap();
    let wrong = wrong.display().to_string();
    let login = [("LOGCABIN_EMAIL_PASSWORD_FILE", wrong.as_str())];
    let Some(answer) = refused(Security::Tls, &login, "ann@example.org").await else { return };
    answer.refused(503, "M_UNKNOWN");
}

async fn ask_sms(http: &Http, endpoint: &str, country: &str, number: &str, secret: &str) -> Answer {
    ask_sms_again(http, endpoint, (country, number), secret, 1).await
}

async fn ask_sms_again(
    http: &Http,
    endpoint: &str,
    (country, number): (&str, &str),
    secret: &str,
    attempt: u32,
) -> Answer {
    let body = json!({
        "client_secret": secret, "country": country, "phone_number": number,
        "send_attempt": attempt,
    });
    anonymous(http, "POST", &format!("{endpoint}/msisdn/requestToken"), Some(&body)).await
}

/// The code of the last message, which went to `number`.
#[track_caller]
fn code(gateway: &StandIn, number: &str) -> String {
    let last = gateway.asked().pop().expect("a message");
    assert_eq!(last.body["to"], format!("+{number}"));
    let text = last.body["text"].as_str().unwrap_or_default().to_owned();
    let code: String = text.chars().take_while(char::is_ascii_digit).collect();
    assert_eq!(code.len(), 6, "{text}");
    code
}

async fn add_phone(gateway: &StandIn, user: &User, country: &str, number: &str) {
    let answer = ask_sms(&user.http, "/account/3pid", country, number, "s").await.ok();
    let (sid, submit) = (&answer["sid"], answer["submit_url"].as_str().unwrap_or_default());
    assert!(submit.ends_with(VALIDATE), "{answer}");
    let code = code(gateway, "447400123456");
    let body = json!({ "sid": sid, "client_secret": "s", "token": code });
    let done = user.http.request("POST", VALIDATE, None, Some(&body)).await;
    assert_eq!(done.ok(), json!({ "success": true }));
    add(user, sid.as_str().unwrap_or_default(), "s").await.ok();
}

#[tokio::test]
async fn a_number_is_validated_by_the_code_of_a_text_message() {
    let gateway = StandIn::start(|asked| {
        let to = asked.body["to"].as_str().unwrap_or_default();
        if to.ends_with('9') { (500, json!({})) } else { (202, json!({})) }
    })
    .await;
    let url = format!("http://{}/v1/send", gateway.address);
    let settings = [
        ("LOGCABIN_SMS_URL", url.as_str()),
        ("LOGCABIN_SMS_HEADERS", "Authorization: Bearer gateway,X-Account: 7"),
        (
            "LOGCABIN_SMS_TEMPLATE",
            r#"{"to":"+{number}","text":"{text}","from":{"name":"{server}","n":[1]}}"#,
        ),
    ];
    let mut server = start(&[], &settings).await;
    let http = server.http();
    let ann = User::register(&http, "ann", PASSWORD).await;
    let answer = ask_sms(&http, "/account/3pid", "GB", "07400 123456", "s").await.ok();
    let first = code(&gateway, "447400123456");
    let asked = gateway.asked().remove(0);
    assert_eq!(asked.path, "/v1/send");
    assert_eq!(
        (&asked.headers["authorization"], &asked.headers["x-account"]),
        (&"Bearer gateway".parse().unwrap(), &"7".parse().unwrap())
    );
    assert_eq!(asked.body["from"], json!({ "name": "e2e.test", "n": [1] }));

    let submit =
        async |http: &Http, body: Value| http.request("POST", VALIDATE, None, Some(&body)).await;
    let sid = answer["sid"].clone();
    let right = json!({ "sid": sid, "client_secret": "s", "token": first });
    for (key, value) in [("token", "wrong"), ("client_secret", "t"), ("sid", "unknown")] {
        let mut wrong = right.clone();
        wrong[key] = value.into();
        assert_eq!(submit(&http, wrong).await.ok(), json!({ "success": false }), "{key}");
        let mut missing = right.clone();
        missing.as_object_mut().expect("an object").remove(key);
        submit(&http, missing).await.refused(400, "M_MISSING_PARAM");
    }
    // At either prefix, after a restart, and as often as one likes.
    server.restart().await;
    let http = server.http();
    let other = VALIDATE.replace("/_svc", "/_matrix");
    for path in [VALIDATE, &other] {
        let done = http.request("POST", path, None, Some(&right)).await;
        assert_eq!(done.ok(), json!({ "success": true }));
    }
    add(&ann, sid.as_str().unwrap_or_default(), "s").await.ok();
    assert_eq!(threepids(&ann).await[0]["address"], "447400123456");

    // A code cannot be guessed by trying.
    let answer = ask_sms(&http, "/register", "GB", "07400 123457", "s").await.ok();
    let mut guess = json!({ "sid": answer["sid"], "client_secret": "s", "token": "x" });
    for _ in 0..10 {
        assert_eq!(submit(&http, guess.clone()).await.ok(), json!({ "success": false }));
    }
    server.restart().await;
    guess["token"] = code(&gateway, "447400123457").into();
    assert_eq!(submit(&server.http(), guess).await.ok(), json!({ "success": false }));

    // What the gateway does not take is told, and numbers are numbers of a country.
    ask_sms(&http, "/register", "GB", "07400 123459", "s").await.refused(503, "M_UNKNOWN");
    for (country, number) in [("gb", "07400123456"), ("GB", "12"), ("ZZ", "07400123456")] {
        ask_sms(&http, "/register", country, number, "s").await.refused(400, "M_INVALID_PARAM");
    }
    // A new password by text message.
    let sid = ask_sms(&http, "/account/password", "GB", "07400123456", "p").await.ok_string("sid");
    let body = json!({ "sid": sid, "client_secret": "p", "token": code(&gateway, "447400123456") });
    submit(&server.http(), body).await.ok();
    let body = json!({
        "new_password": "a new and long password",
        "auth": { "type": "m.login.msisdn", "threepid_creds": { "sid": sid, "client_secret": "p" } },
    });
    anonymous(&http, "POST", "/account/password", Some(&body)).await.ok();
    User::login(&http, "ann", "a new and long password").await;
}

#[tokio::test]
async fn a_text_message_is_sent_again_for_a_higher_attempt_alone() {
    let gateway = StandIn::start(|_| (200, json!({}))).await;
    let url = format!("http://{}/", gateway.address);
    let mut server = start(&[], &[("LOGCABIN_SMS_URL", &url)]).await;
    let british = ("GB", "07400 123456");
    let ask = async |http: &Http, number: (&str, &str), secret: &str, attempt: u32| {
        ask_sms_again(http, "/register", number, secret, attempt).await.ok_string("sid")
    };
    let first = ask(&server.http(), british, "s", 5).await;
    for attempt in [5, 4, 0] {
        assert_eq!(ask(&server.http(), british, "s", attempt).await, first);
    }
    server.restart().await;
    let http = server.http();
    assert_eq!(ask(&http, british, "s", 5).await, first);
    assert_eq!(gateway.asked().len(), 1);
    assert_eq!(ask(&http, british, "s", 6).await, first);
    assert_eq!(gateway.asked().len(), 2);
    // Another secret, another number: another matter.
    assert_ne!(ask(&http, british, "t", 1).await, first);
    assert_ne!(ask(&http, ("GB", "07400 123457"), "s", 1).await, first);
    assert_eq!(gateway.asked().len(), 4);
}

#[tokio::test]
async fn where_newcomers_must_show_a_number_it_becomes_the_accounts() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let gateway = StandIn::start(|_| (200, json!({}))).await;
    let url = format!("http://{}/", gateway.address);
    let settings = [("LOGCABIN_REGISTRATION_REQUIRE", "msisdn"), ("LOGCABIN_SMS_URL", &url)];
    let server = start(&mail.settings(), &settings).await;
    let http = server.http();
    let mut body = json!({ "username": "newcomer", "password": PASSWORD });
    let asked = anonymous(&http, "POST", "/register", Some(&body)).await;
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.msisdn"] }]));
    let mut register = async |credentials: Value| {
        body["auth"] = json!({
            "type": "m.login.msisdn", "session": asked.body["session"],
            "threepid_creds": credentials,
        });
        anonymous(&http, "POST", "/register", Some(&body)).await
    };
    // An address is no number.
    let email = ask(&http, "/register", "ann@example.org", "s", 1).await.ok_string("sid");
    confirm(&http, &mail.mail("ann@example.org", 0)).await;
    let sid = ask_sms(&http, "/register", "GB", "07400 123456", "s").await.ok_string("sid");
    for (sid, secret) in [(&email, "s"), (&sid, "s"), (&sid, "t")] {
        let refused = register(json!({ "sid": sid, "client_secret": secret })).await;
        refused.refused(401, "M_THREEPID_AUTH_FAILED");
    }
    register(json!({ "sid": sid })).await.refused(400, "M_BAD_JSON");
    let code = code(&gateway, "447400123456");
    let shown = json!({ "sid": sid, "client_secret": "s", "token": code });
    http.request("POST", VALIDATE, None, Some(&shown)).await.ok();
    let credentials = json!({
        "sid": sid, "client_secret": "s", "id_server": "id.example.org", "id_access_token": "abc",
    });
    let newcomer = User::of(&http, register(credentials).await);
    assert_eq!(threepids(&newcomer).await[0]["address"], "447400123456");
}

#[tokio::test]
async fn the_page_of_a_number_takes_it_as_it_is_dialled_in_its_country() {
    let gateway = StandIn::start(|_| (200, json!({}))).await;
    let url = format!("http://{}/", gateway.address);
    let settings = [
        ("LOGCABIN_REGISTRATION_REQUIRE", "msisdn"),
        ("LOGCABIN_SMS_URL", &*url),
        ("LOGCABIN_SMS_TEMPLATE", r#"{"to":"+{number}","text":"{text}"}"#),
    ];
    let server = start(&[], &settings).await;
    let http = server.http();
    let mut body = json!({ "username": "newcomer", "password": PASSWORD });
    let asked = anonymous(&http, "POST", "/register", Some(&body)).await;
    let session = asked.body["session"].as_str().unwrap_or_default();
    let path =
        format!("/_matrix/client/v3/auth/m.login.msisdn/fallback/web?session={}", encode(session));
    let html =
        |answer: &crate::harness::RawAnswer| String::from_utf8_lossy(&answer.bytes).into_owned();
    // The country of the browser's language is chosen already.
    let shown = html(&http.raw("GET", &path, &[("accept-language", "de-AT,en;q=0.5")], "").await);
    assert!(shown.contains("<option value=\"AT\" data-code=\"+43\" selected>"), "{shown}");
    assert_eq!(shown.matches(" selected>").count(), 1);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for wrong in ["country=&phone=07400+123456", "country=ZZ&phone=07400+123456", "country=GB"] {
        let answer = http.raw("POST", &path, &form, wrong).await;
        assert_eq!(answer.parts.status, 400, "{wrong}");
        assert!(html(&answer).contains("role=\"alert\""), "{wrong}");
    }
    let mut shown = String::new();
    for fine in ["country=GB&phone=07400+123456", "country=&phone=%2B44+7400+123456"] {
        shown = html(&http.raw("POST", &path, &form, fine).await);
        assert!(shown.contains("Enter the code"), "{shown}");
    }
    let value = |name: &str| {
        let start = format!("name=\"{name}\" value=\"");
        let rest = shown.split(&start).nth(1).expect("a field");
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    let (sid, secret) = (value("sid"), value("client_secret"));
    let code = code(&gateway, "447400123456");
    let fields = format!("sid={sid}&client_secret={secret}&code={code}");
    let done = html(&http.raw("POST", &path, &form, fields).await);
    assert!(done.contains("onAuthDone"), "{done}");
    body["auth"] = json!({ "session": session });
    let newcomer = User::of(&http, anonymous(&http, "POST", "/register", Some(&body)).await);
    assert_eq!(threepids(&newcomer).await[0]["address"], "447400123456");
}

#[tokio::test]
async fn of_accounts_that_race_for_an_address_exactly_one_gets_it() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let server = start(&mail.settings(), &[]).await;
    let http = server.http();
    let email = "race@example.org";
    let mut racers = Vec::new();
    for number in 0..6 {
        let user = User::register(&http, &unique("racer"), PASSWORD).await;
        let secret = format!("s{number}");
        let sid = ask(&http, "/account/3pid", email, &secret, 1).await.ok_string("sid");
        confirm(&http, &mail.mail(email, number)).await;
        racers.push((user, sid, secret));
    }
    let racing: Vec<_> = racers
        .into_iter()
        .map(|(user, sid, secret)| tokio::spawn(async move { add(&user, &sid, &secret).await }))
        .collect();
    one_wins(racing, "M_THREEPID_IN_USE").await;
}

/// The key by which others know requests and events of this server.
async fn public_key(server: &TestServer) -> (String, Base64) {
    let archive = server.data_dir().join("archive");
    until_ok("the key is in the archive", async || {
        let archive = ArchiveReader::open(&archive).map_err(|error| error.to_string())?;
        let first = archive.records(Offset::new(1)).next().ok_or("no record")?;
        let first = first.map_err(|error| error.to_string())?;
        match first.command() {
            Ok(Some(Command::ServerIdentity(body))) => {
                Ok((body.key_id, Base64::parse(&body.public_key).expect("base64")))
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Whether `asked` was signed by `e2e.test` for `id.test`, under this name for whom it is for.
fn is_signed(asked: &Asked, addressee: &str, (key_id, key): &(String, Base64)) -> bool {
    let header = asked.headers["authorization"].to_str().expect("text");
    let fields: BTreeMap<&str, &str> = header
        .strip_prefix("X-Matrix ")
        .expect("a signed request")
        .split(',')
        .filter_map(|field| field.split_once('='))
        .map(|(name, value)| (name, value.trim_matches('"')))
        .collect();
    assert_eq!(
        (fields["origin"], fields["destination"], fields["key"]),
        ("e2e.test", "id.test", &**key_id)
    );
    let signed = json!({
        "method": "POST", "uri": asked.path, "origin": "e2e.test", addressee: "id.test",
        "content": asked.body, "signatures": { "e2e.test": { key_id: fields["sig"] } },
    });
    let signed = serde_json::from_value(signed).expect("canonical JSON");
    let keys = BTreeMap::from([(key_id.clone(), key.clone())]);
    verify_json(&PublicKeyMap::from([("e2e.test".to_owned(), keys)]), &signed).is_ok()
}

/// An identity server: `bind` publishes any session but `early`, and `unbind` answers as the user's
/// address has it.
fn identity_server(asked: &Asked) -> (u16, Value) {
    if asked.path.starts_with("/old/") {
        return (404, Value::Null);
    }
    if asked.path.ends_with("/bind") {
        let early = asked.body["sid"] == "early";
        let errcode = if early { "M_SESSION_NOT_VALIDATED" } else { "M_TERMS_NOT_SIGNED" };
        return match asked.headers["authorization"].to_str() {
            Ok("Bearer good") if !early => {
                let address =
                    format!("{}@example.org", asked.body["sid"].as_str().unwrap_or_default());
                (200, json!({ "medium": "email", "address": address, "mxid": asked.body["mxid"] }))
            }
            _ => {
                (if early { 400 } else { 403 }, json!({ "errcode": errcode, "error": "Not yet." }))
            }
        };
    }
    match asked.body["threepid"]["address"].as_str().unwrap_or_default() {
        "unknown@example.org" => (404, Value::Null),
        "forbidden@example.org" => (403, json!({ "errcode": "M_FORBIDDEN", "error": "No." })),
        "broken@example.org" => (500, Value::Null),
        _ => (200, json!({})),
    }
}

#[tokio::test]
async fn addresses_are_published_on_trusted_identity_servers_and_taken_back_from_them() {
    let id = StandIn::start(identity_server).await;
    let servers = format!(
        "id.test=http://{0},old.test=http://{0}/old,dead.test=http://127.0.0.1:1",
        id.address
    );
    let mut server = start(&[], &[("LOGCABIN_THREEPIDS_IDENTITY_SERVERS", &servers)]).await;
    let key = public_key(&server).await;
    let ann = User::register(&server.http(), "ann", PASSWORD).await;
    let bind = async |id_server: &str, sid: &str, token: &str| {
        let body = json!({
            "client_secret": "s", "sid": sid, "id_server": id_server, "id_access_token": token,
        });
        ann.request("POST", "/account/3pid/bind", Some(&body)).await
    };
    assert_eq!(bind("id.test", "ann", "good").await.ok(), json!({}));
    let asked = id.asked().pop().expect("a request");
    assert_eq!(asked.path, "/_matrix/identity/v2/3pid/bind");
    assert_eq!(asked.body, json!({ "sid": "ann", "client_secret": "s", "mxid": ann.user_id }));
    // What was published there is no address of the account here.
    assert_eq!(threepids(&ann).await, Vec::<Value>::new());
    bind("evil.test", "ann", "good").await.refused(400, "M_SERVER_NOT_TRUSTED");
    let refused = bind("id.test", "ann", "bad").await.refused(403, "M_TERMS_NOT_SIGNED");
    assert_eq!(refused["error"], "Not yet.");
    bind("id.test", "early", "good").await.refused(400, "M_SESSION_NOT_VALIDATED");
    bind("dead.test", "ann", "good").await.refused(502, "M_UNKNOWN");
    bind("old.test", "ann", "good").await.refused(502, "M_UNKNOWN");
    bind("id.test", "with space", "good").await.refused(400, "M_INVALID_PARAM");

    // As it was before.
    let old = async |id_server: &str, sid: &str| {
        let credentials = json!({
            "client_secret": "s", "sid": sid, "id_server": id_server, "id_access_token": "good",
        });
        let body = json!({ "three_pid_creds": credentials });
        ann.request("POST", "/account/3pid", Some(&body)).await
    };
    assert_eq!(old("id.test", "second").await.ok(), json!({}));
    old("id.test", "early").await.refused(403, "M_THREEPID_AUTH_FAILED");
    old("evil.test", "ann").await.refused(400, "M_SERVER_NOT_TRUSTED");
    ann.request("POST", "/account/3pid", Some(&json!({}))).await.refused(400, "M_BAD_JSON");

    server.restart().await;
    let act = async |what: &str, address: &str, id_server: Option<&str>| {
        let mut body = json!({ "medium": "email", "address": address });
        if let Some(id_server) = id_server {
            body["id_server"] = id_server.into();
        }
        ann.request("POST", &format!("/account/3pid/{what}"), Some(&body)).await
    };
    let (success, no_support) = (
        json!({ "id_server_unbind_result": "success" }),
        json!({ "id_server_unbind_result": "no-support" }),
    );
    // Where it was bound is known.
    assert_eq!(act("unbind", "Ann@example.org", None).await.ok(), success);
    let asked = id.asked().pop().expect("a request");
    assert_eq!(asked.path, "/_matrix/identity/v2/3pid/unbind");
    let threepid = json!({ "medium": "email", "address": "ann@example.org" });
    assert_eq!(asked.body, json!({ "mxid": ann.user_id, "threepid": threepid }));
    assert!(is_signed(&asked, "destination", &key), "{asked:?}");
    // And then is not bound any more.
    assert_eq!(act("unbind", "ann@example.org", None).await.ok(), no_support);
    assert_eq!(act("delete", "second@example.org", None).await.ok(), success);
    // One that is named is asked, whatever is known.
    assert_eq!(act("unbind", "third@example.org", Some("id.test")).await.ok(), success);
    for what in ["unbind", "delete"] {
        act(what, "third@example.org", Some("evil.test"))
            .await
            .refused(400, "M_SERVER_NOT_TRUSTED");
        act(what, "third", None).await.refused(400, "M_INVALID_PARAM");
        assert_eq!(act(what, "unknown@example.org", Some("id.test")).await.ok(), no_support);
        assert_eq!(act(what, "third@example.org", Some("old.test")).await.ok(), no_support);
    }
    let tried: Vec<String> = id.asked().into_iter().map(|asked| asked.path).collect();
    assert!(
        tried.ends_with(&[
            "/old/_matrix/identity/v2/3pid/unbind".to_owned(),
            "/old/_svc/identity/v2/3pid/unbind".to_owned()
        ]),
        "{tried:?}"
    );
    // An error is handed on by the one; the other has removed what there was, and says what it can.
    let before = id.asked().len();
    act("unbind", "forbidden@example.org", Some("id.test")).await.refused(403, "M_FORBIDDEN");
    let asked = id.asked();
    assert!(is_signed(&asked[before], "destination", &key), "as the specification has it");
    assert!(is_signed(&asked[before + 1], "destination_is", &key), "as Sydent has it");
    assert!(!is_signed(&asked[before + 1], "destination", &key));
    act("unbind", "broken@example.org", Some("id.test")).await.refused(502, "M_UNKNOWN");
    act("unbind", "third@example.org", Some("dead.test")).await.refused(502, "M_UNKNOWN");
    for (address, id_server) in
        [("forbidden@example.org", "id.test"), ("third@example.org", "dead.test")]
    {
        assert_eq!(act("delete", address, Some(id_server)).await.ok(), no_support);
    }
    let fax = json!({ "medium": "fax", "address": "1" });
    ann.request("POST", "/account/3pid/unbind", Some(&fax)).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_published_address_needs_its_full_credentials_and_may_have_several_owners() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let id = StandIn::start(identity_server).await;
    let servers = format!("id.test=http://{}", id.address);
    let settings = [("LOGCABIN_THREEPIDS_IDENTITY_SERVERS", &*servers)];
    let server = start(&mail.settings(), &settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let credentials = json!({
        "client_secret": "s", "sid": "ann", "id_server": "id.test", "id_access_token": "good",
    });
    let bind = async |user: &User, body: &Value| {
        user.request("POST", "/account/3pid/bind", Some(body)).await
    };
    for key in ["client_secret", "sid", "id_server", "id_access_token"] {
        let mut lacking = credentials.clone();
        lacking.as_object_mut().expect("an object").remove(key);
        bind(&ann, &lacking).await.refused(400, "M_BAD_JSON");
        let old = json!({ "three_pid_creds": lacking });
        ann.request("POST", "/account/3pid", Some(&old)).await.refused(400, "M_BAD_JSON");
    }
    let address = json!({ "medium": "email", "address": "ann@example.org" });
    for key in ["medium", "address"] {
        let mut lacking = address.clone();
        lacking.as_object_mut().expect("an object").remove(key);
        for what in ["unbind", "delete"] {
            let path = format!("/account/3pid/{what}");
            ann.request("POST", &path, Some(&lacking)).await.refused(400, "M_BAD_JSON");
        }
    }
    assert!(id.asked().is_empty(), "{:?}", id.asked());

    // The same address: each is known to be bound, until each unbinds it.
    for user in [&ann, &bob] {
        assert_eq!(bind(user, &credentials).await.ok(), json!({}));
    }
    let unbind = async |user: &User| {
        let answer = user.request("POST", "/account/3pid/unbind", Some(&address)).await;
        answer.ok_string("id_server_unbind_result")
    };
    assert_eq!(unbind(&ann).await, "success");
    assert_eq!(unbind(&ann).await, "no-support");
    assert_eq!(unbind(&bob).await, "success");

    // Neither the one nor the other concerns the addresses that the account has here, whatever
    // `bind` was once.
    let old = json!({ "three_pid_creds": credentials, "bind": true });
    ann.request("POST", "/account/3pid", Some(&old)).await.ok();
    assert_eq!(threepids(&ann).await, Vec::<Value>::new());
    add_email(&mail, &ann, "ann@example.org").await;
    assert_eq!(unbind(&ann).await, "success");
    assert_eq!(threepids(&ann).await.len(), 1);
}

#[tokio::test]
async fn where_addresses_cannot_be_changed_they_are_not() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let switch = ("LOGCABIN_ACCOUNTS_THIRD_PARTY_IDS", "false");
    let server = start(&mail.settings(), &[switch]).await;
    let ann = User::register(&server.http(), "ann", PASSWORD).await;
    ask(&ann.http, "/account/3pid", "ann@example.org", "s", 1).await.refused(403, "M_FORBIDDEN");
    let creds = json!({
        "client_secret": "s", "sid": "s", "id_server": "id.test", "id_access_token": "t",
    });
    let address = json!({ "medium": "email", "address": "ann@example.org" });
    for (path, body) in [
        ("/account/3pid/add", creds.clone()),
        ("/account/3pid/bind", creds.clone()),
        ("/account/3pid", json!({ "three_pid_creds": creds })),
        ("/account/3pid/unbind", address.clone()),
        ("/account/3pid/delete", address),
    ] {
        ann.request("POST", path, Some(&body)).await.refused(403, "M_FORBIDDEN");
    }
    assert_eq!(threepids(&ann).await, Vec::<Value>::new());
    // These are not changes.
    ask(&ann.http, "/register", "ann@example.org", "s", 1).await.ok();
}

#[tokio::test]
async fn everything_requires_a_login() {
    let server = TestServer::start().await;
    let http = server.http();
    let body = json!({});
    anonymous(&http, "GET", "/account/3pid", None).await.refused(401, "M_MISSING_TOKEN");
    for path in ["", "/add", "/bind", "/unbind", "/delete"] {
        let path = format!("/account/3pid{path}");
        anonymous(&http, "POST", &path, Some(&body)).await.refused(401, "M_MISSING_TOKEN");
    }
    let page = http.raw("GET", VALIDATE, &[], "").await;
    assert_eq!(page.parts.status, 400);
    assert!(page.header("content-type").starts_with("text/html"));
    let posted = http.raw("POST", VALIDATE, &[], "nonsense").await;
    assert_eq!(posted.parts.status, 400);
    http.raw("POST", VALIDATE, &[], "{").await.json().refused(400, "M_NOT_JSON");
}

#[tokio::test]
async fn where_newcomers_must_show_an_address_it_becomes_the_accounts() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let require = ("LOGCABIN_REGISTRATION_REQUIRE", "email");
    let mut server = start(&mail.settings(), &[require]).await;
    let http = server.http();
    let email = "newcomer@example.org";
    let mut body = json!({ "username": "newcomer", "password": PASSWORD });
    let asked = anonymous(&http, "POST", "/register", Some(&body)).await;
    assert_eq!(asked.status, 401);
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.email.identity"] }]));
    let sid = ask(&http, "/register", email, "s", 1).await.ok_string("sid");
    let credentials = json!({ "sid": sid, "client_secret": "s" });
    body["auth"] = json!({
        "type": "m.login.email.identity", "session": asked.body["session"],
        "threepid_creds": credentials,
    });
    let early = anonymous(&http, "POST", "/register", Some(&body)).await;
    assert_eq!((early.status, &early.body["errcode"]), (401, &json!("M_THREEPID_AUTH_FAILED")));
    confirm(&http, &mail.mail(email, 0)).await;
    // With nothing but the session, as a client does that has waited.
    body["auth"] = json!({ "session": asked.body["session"] });
    let newcomer = User::of(&http, anonymous(&http, "POST", "/register", Some(&body)).await);
    assert_eq!(threepids(&newcomer).await[0]["address"], email);

    // It serves for one account, whatever becomes of the validation.
    let sids = [ask(&http, "/register", "two@example.org", "s", 1).await.ok_string("sid"), sid];
    confirm(&http, &mail.mail("two@example.org", 0)).await;
    server.restart().await;
    let http = server.http();
    let register = async |name: &str, sid: &str| {
        let body = json!({
            "username": name, "password": PASSWORD,
            "auth": {
                "type": "m.login.email.identity",
                "threepid_creds": { "sid": sid, "client_secret": "s" },
            },
        });
        anonymous(&http, "POST", "/register", Some(&body)).await
    };
    let used = register("third", &sids[1]).await;
    assert_eq!((used.status, &used.body["errcode"]), (401, &json!("M_THREEPID_AUTH_FAILED")));
    let (one, other) = tokio::join!(register("one", &sids[0]), register("other", &sids[0]));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert!(statuses[0] == 200 && statuses[1] != 200, "{one} {other}");
}

#[tokio::test]
async fn a_page_validates_an_address_for_clients_that_cannot() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let gateway = StandIn::start(|_| (200, json!({}))).await;
    let url = format!("http://{}/", gateway.address);
    let require = ("LOGCABIN_REGISTRATION_REQUIRE", "email,msisdn");
    let server = start(&mail.settings(), &[require, ("LOGCABIN_SMS_URL", &url)]).await;
    let http = server.http();
    let mut body = json!({ "username": "newcomer", "password": PASSWORD });
    let asked = anonymous(&http, "POST", "/register", Some(&body)).await;
    let session = asked.body["session"].as_str().expect("a session").to_owned();
    let path = |stage: &str| {
        format!("/_svc/client/v3/auth/m.login.{stage}/fallback/web?session={}", encode(&session))
    };
    let email = path("email.identity");
    let page = http.raw("GET", &email, &[], "").await;
    assert!(String::from_utf8_lossy(&page.bytes).contains("type=\"email\""));
    let bad = http.raw("POST", &email, &[], "email=nonsense").await;
    assert!(String::from_utf8_lossy(&bad.bytes).contains("not an e-mail address"));
    let sent = http.raw("POST", &email, &[], "email=page%40example.org").await;
    let fields = form(&sent.bytes);
    assert!(fields.contains("sid=") && fields.contains("client_secret="), "{fields}");
    let early = http.raw("POST", &email, &[], fields.clone()).await;
    assert_eq!(early.parts.status, 403);
    assert_eq!(form(&early.bytes), fields);
    confirm(&http, &mail.mail("page@example.org", 0)).await;
    let done = http.raw("POST", &email, &[], fields).await;
    assert!(String::from_utf8_lossy(&done.bytes).contains("onAuthDone"));

    let phone = path("msisdn");
    let sent = http.raw("POST", &phone, &[], "phone=%2B44+7400+123456").await;
    let fields = form(&sent.bytes);
    let wrong = http.raw("POST", &phone, &[], format!("{fields}&code=nonsense")).await;
    assert_eq!(wrong.parts.status, 403);
    let code = code(&gateway, "447400123456");
    let done = http.raw("POST", &phone, &[], format!("{fields}&code={code}")).await;
    assert!(String::from_utf8_lossy(&done.bytes).contains("onAuthDone"));
    body["auth"] = json!({ "session": session });
    let newcomer = User::of(&http, anonymous(&http, "POST", "/register", Some(&body)).await);
    assert_eq!(threepids(&newcomer).await.len(), 2);
}

#[test]
fn a_server_does_not_start_with_messages_that_it_could_not_send() {
    for (settings, said) in [
        (
            vec![("LOGCABIN_EMAIL_HOST", "mail.test"), ("LOGCABIN_EMAIL_FROM", "nonsense")],
            "email.from",
        ),
        (
            vec![("LOGCABIN_EMAIL_HOST", "mail.test"), ("LOGCABIN_EMAIL_SECURITY", "none")],
            "`email.security`: \"none\" is only allowed for a mail server on this machine",
        ),
        (
            vec![("LOGCABIN_EMAIL_HOST", "mail.test"), ("LOGCABIN_EMAIL_CERTIFICATES", "/none")],
            "email.certificates",
        ),
        (
            vec![("LOGCABIN_SMS_URL", "http://localhost/"), ("LOGCABIN_SMS_HEADERS", "s3cret")],
            "sms.headers",
        ),
    ] {
        let error = refused_start(&settings, &[]);
        assert!(error.contains(said), "{said}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn registration_that_is_closed_sends_no_mail() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let server = start(&mail.settings(), &[("LOGCABIN_REGISTRATION_OPEN", "false")]).await;
    ask(&server.http(), "/register", "ann@example.org", "s", 1).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn neither_the_log_nor_what_is_printed_holds_a_token() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let mut server = start(&mail.settings(), &[]).await;
    let (_, email) = account_with_email(&mail, &server, "ann").await;
    let link = link(&mail.mail(&email, 0));
    let token =
        link.split("token=").nth(1).and_then(|rest| rest.split('&').next()).expect("a token");
    let secret = link
        .split("client_secret=")
        .nth(1)
        .and_then(|rest| rest.split('&').next())
        .expect("a secret");
    assert!(!server.output().contains(token) && !server.output().contains(secret));
    server.stop();
    let mut archived = Vec::new();
    for entry in std::fs::read_dir(server.data_dir().join("archive")).expect("the archive") {
        archived.extend(std::fs::read(entry.expect("a file").path()).expect("a file to be read"));
    }
    let holds = |text: &str| archived.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(holds(&email), "what is there is not found");
    for kept in [token, secret] {
        assert!(!holds(kept), "{kept} is in the log");
    }
}

/// Publishes `{sid}@example.org` as the user's.
async fn publish(user: &User, sid: &str) {
    let body = json!({
        "client_secret": "s", "sid": sid, "id_server": "id.test", "id_access_token": "good",
    });
    user.request("POST", "/account/3pid/bind", Some(&body)).await.ok();
}

/// The addresses that the identity server was asked to forget.
fn unbound(id: &StandIn) -> Vec<String> {
    let asked = id.asked().into_iter().filter(|asked| asked.path.ends_with("/unbind"));
    let address = |asked: Asked| asked.body["threepid"]["address"].as_str().map(ToOwned::to_owned);
    asked.filter_map(address).collect()
}

async fn close(user: &User, mut body: Value) -> Value {
    body["auth"] = json!({
        "type": "m.login.password", "password": PASSWORD,
        "identifier": { "type": "m.id.user", "user": user.user_id },
    });
    let closed = user.request("POST", "/account/deactivate", Some(&body)).await.ok();
    user.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    closed["id_server_unbind_result"].clone()
}

// The identity server answers while the command line waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_account_has_no_address_and_is_published_nowhere() {
    crate::harness::nodes::one_server!("it writes to a stopped server");
    let Some(mail) = MailServer::start("threepids") else { return };
    let id = StandIn::start(identity_server).await;
    let servers = format!("id.test=http://{},dead.test=http://127.0.0.1:1", id.address);
    let named = [("LOGCABIN_THREEPIDS_IDENTITY_SERVERS", servers.as_str())];
    let mut server = start(&mail.settings(), &named).await;
    let http = server.http();

    // Without a session, by an address of the account.
    let (ann, email) = account_with_email(&mail, &server, "ann").await;
    publish(&ann, "ann").await;
    publish(&ann, "also").await;
    let asked = anonymous(&http, "POST", "/account/deactivate", Some(&json!({}))).await;
    assert_eq!(asked.status, 401, "{asked}");
    let flows =
        json!([{ "stages": ["m.login.password"] }, { "stages": ["m.login.email.identity"] }]);
    assert_eq!(asked.body["flows"], flows);
    let sid = ask(&http, "/account/password", &email, "s", 1).await.ok_string("sid");
    let body = json!({ "auth": {
        "type": "m.login.email.identity", "session": asked.body["session"],
        "threepid_creds": { "sid": sid, "client_secret": "s" },
    }});
    let early = anonymous(&http, "POST", "/account/deactivate", Some(&body)).await;
    assert_eq!((early.status, &early.body["errcode"]), (401, &json!("M_THREEPID_AUTH_FAILED")));
    ann.get("/account/whoami").await.ok();
    confirm(&http, &mail.mail(&email, 1)).await;
    let closed = anonymous(&http, "POST", "/account/deactivate", Some(&body)).await.ok();
    assert_eq!(closed, json!({ "id_server_unbind_result": "success" }));
    ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    assert_eq!(unbound(&id), ["also@example.org", "ann@example.org"]);

    // The address is free, and nobody gets into the closed account by it.
    server.restart().await;
    let http = server.http();
    let mut bob = User::register(&http, &unique("bob"), PASSWORD).await;
    add_email(&mail, &bob, &email).await;
    assert_eq!(threepids(&bob).await[0]["address"], email);

    // A server that is named is asked for all that the account has; one that is not trusted is not.
    bob.http = http.clone();
    publish(&bob, "bob").await;
    let before = unbound(&id).len();
    assert_eq!(close(&bob, json!({ "id_server": "id.test" })).await, "success");
    let mut forgotten = unbound(&id).split_off(before);
    forgotten.sort_unstable();
    let mut expected = vec!["bob@example.org".to_owned(), email];
    expected.sort_unstable();
    assert_eq!(forgotten, expected);
    let (cas, _) = account_with_email(&mail, &server, "cas").await;
    publish(&cas, "cas").await;
    assert_eq!(close(&cas, json!({ "id_server": "evil.test" })).await, "no-support");
    // What cannot be reached, or does not know how, hinders nobody.
    let (dee, _) = account_with_email(&mail, &server, "dee").await;
    assert_eq!(close(&dee, json!({ "id_server": "dead.test" })).await, "no-support");
    let eve = User::register(&http, &unique("eve"), PASSWORD).await;
    publish(&eve, "unknown").await;
    publish(&eve, "eve").await;
    let before = unbound(&id).len();
    assert_eq!(close(&eve, json!({})).await, "no-support");
    assert!(unbound(&id)[before..].contains(&"eve@example.org".to_owned()));

    // By the command line, too, which says what is left.
    let fay = User::register(&http, "fay", PASSWORD).await;
    let gus = User::register(&http, "gus", PASSWORD).await;
    publish(&fay, "fay").await;
    publish(&gus, "gus").await;
    let data_dir = server.data_dir().to_owned();
    let deactivate = |name: &str| {
        let arguments = format!("deactivate {name} --yes");
        administration::done(administration::user_command(&data_dir, &arguments, ""))
    };
    let said = deactivate("fay");
    assert!(said.contains("Deactivated") && !said.contains("unbound"), "{said}");
    assert_eq!(unbound(&id).last().map(String::as_str), Some("fay@example.org"));
    server.stop();
    // Here no setting says that the identity server is trusted.
    let said = deactivate("gus");
    assert!(said.contains("It could not be unbound: gus@example.org on id.test."), "{said}");
    assert_verifies(server.data_dir());
}

#[tokio::test]
async fn nobody_has_more_messages_sent_than_the_limit_says() {
    let Some(mail) = MailServer::start("threepids") else { return };
    let limits =
        [("LOGCABIN_RATE_LIMITS_ENABLED", "true"), ("LOGCABIN_RATE_LIMITS_NOTICES", "1/h burst 2")];
    let server = start(&mail.settings(), &limits).await;
    let http = server.http();
    let sid = ask(&http, "/register", "first@example.org", "s", 1).await.ok_string("sid");
    ask(&http, "/register", "second@example.org", "s", 1).await.ok();
    let refused = ask(&http, "/register", "third@example.org", "s", 1).await;
    let refused = refused.refused(429, "M_LIMIT_EXCEEDED");
    assert!(refused["retry_after_ms"].as_u64() > Some(1_000_000), "{refused}");
    ask(&http, "/account/password", "first@example.org", "s", 1)
        .await
        .refused(429, "M_LIMIT_EXCEEDED");
    // What sends no message is not counted.
    for _ in 0..3 {
        let again = ask(&http, "/register", "first@example.org", "s", 1).await.ok_string("sid");
        assert_eq!(again, sid);
    }
    ask(&http, "/register", "first@example.org", "s", 2).await.refused(429, "M_LIMIT_EXCEEDED");
    assert!(mail.mails("third@example.org").is_empty());
}
