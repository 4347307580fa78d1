//! Registrations that wait for approval.

use serde_json::{Value, json};

use super::{admin, end, server, user};
use crate::administration::{command, done, done_json, history};
use crate::console;
use crate::crash::assert_verifies;
use crate::harness::mail::{MailServer, link};
use crate::harness::{Answer, Http, TestServer, User, encode, nodes};

const PASSWORD: &str = "a password that is long enough";
const CODE: &str = "ORG.MATRIX.MSC3866_USER_AWAITING_APPROVAL";
const ON: (&str, &str) = ("LOGCABIN_REGISTRATION_APPROVAL", "true");
const QUESTION: (&str, &str) = ("LOGCABIN_REGISTRATION_QUESTION", "Who told you of us?");

async fn register(http: &Http, body: &Value) -> Answer {
    http.request("POST", "/_matrix/client/v3/register", None, Some(body)).await
}

/// Registers, with the stages that need nothing.
async fn newcomer(http: &Http, name: &str, more: Value) -> Answer {
    let mut body = json!({ "username": name, "password": PASSWORD });
    let asked = register(http, &body).await;
    body["auth"] = json!({ "type": "m.login.dummy", "session": asked.body["session"] });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    register(http, &body).await
}

async fn login(http: &Http, name: &str) -> Answer {
    let body = json!({
        "type": "m.login.password",
        "identifier": { "type": "m.id.user", "user": name },
        "password": PASSWORD,
    });
    http.request("POST", "/_matrix/client/v3/login", None, Some(&body)).await
}

async fn waiting(admin: &User) -> Vec<String> {
    let page = admin.administer("GET", "/v2/users?approved=false", None).await.ok();
    let users = page["users"].as_array().expect("users").iter();
    users.map(|user| user["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_waits_until_an_administrator_has_decided_about_it() {
    nodes::one_server!("it stops the server");
    let mut server = TestServer::start_with(&[ON]).await;
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("user", &data_dir, arguments, "");
    // Those whom an administrator makes do not wait.
    done(command("user", &data_dir, "create admin --admin", &format!("{PASSWORD}\n")));
    let root = User::login(&server.http(), "admin", PASSWORD).await;
    let room_id = root.create_room(json!({ "preset": "public_chat" })).await;

    let http = server.http();
    newcomer(&http, "ann", json!({})).await.refused(403, CODE);
    let quiet = newcomer(&http, "bob", json!({ "inhibit_login": true })).await.ok();
    assert_eq!((&quiet["user_id"], quiet.get("access_token")), (&json!("@bob:e2e.test"), None));
    newcomer(&http, "eve", json!({})).await.refused(403, CODE);
    for name in ["ann", "bob", "eve"] {
        login(&http, name).await.refused(403, CODE);
    }
    // Their names are taken, nobody finds them, and nobody can invite them.
    register(&http, &json!({ "username": "ann", "password": PASSWORD }))
        .await
        .refused(400, "M_USER_IN_USE");
    let found = async |of: &User| {
        let term = json!({ "search_term": "ann" });
        let answer = of.request("POST", "/user_directory/search", Some(&term)).await.ok();
        answer["results"].as_array().expect("results").len()
    };
    assert_eq!(found(&root).await, 0);
    let invite = json!({ "user_id": "@ann:e2e.test" });
    let path = format!("/rooms/{}/invite", encode(&room_id));
    root.request("POST", &path, Some(&invite)).await.refused(403, "M_FORBIDDEN");

    assert_eq!(waiting(&root).await, ["@ann:e2e.test", "@bob:e2e.test", "@eve:e2e.test"]);
    let shown = root.administer("GET", "/v2/users/@ann:e2e.test", None).await.ok();
    assert_eq!(shown["approved"], false, "{shown}");
    let listed = done_json(run("list --waiting --json"));
    let first = &listed["waiting"][0];
    assert_eq!(
        (&first["user_id"], &first["address"]),
        (&json!("@ann:e2e.test"), &json!("127.0.0.1"))
    );

    // A dry run changes nothing; what waits waits on after a crash.
    let before = end(&server);
    let would = done(run("approve ann bob --dry-run"));
    assert!(would.contains("@ann:e2e.test is approved, and can log in"), "{would}");
    assert_eq!(end(&server), before);
    server.kill9();
    server.restart().await;
    let http = server.http();
    let root = User { http: server.http(), ..root };
    login(&http, "ann").await.refused(403, CODE);

    let said = done(run("approve ann --reason known"));
    assert!(said.contains("Approved 1 registration(s)."), "{said}");
    assert!(done(run("approve ann")).contains("@ann:e2e.test does not wait"));
    let ann = User::login(&http, "ann", PASSWORD).await;
    ann.join(&room_id).await.ok();
    assert_eq!(found(&root).await, 1);
    // As Synapse's tools do it.
    let put = |approved: bool| Some(json!({ "approved": approved }));
    let path = "/v2/users/@bob:e2e.test";
    let done_so = root.administer("PUT", path, put(true)).await.ok();
    assert_eq!(done_so["approved"], true, "{done_so}");
    root.administer("PUT", path, put(false)).await.refused(400, "M_INVALID_PARAM");
    login(&http, "bob").await.ok();

    let said = done(run("refuse eve ann --yes --reason spam"));
    assert!(said.contains("Refused 1 registration(s)."), "{said}");
    assert!(said.contains("@ann:e2e.test does not wait"), "{said}");
    login(&http, "eve").await.refused(403, "M_USER_DEACTIVATED");
    register(&http, &json!({ "username": "eve", "password": PASSWORD }))
        .await
        .refused(400, "M_USER_IN_USE");
    assert_eq!(waiting(&root).await, Vec::<String>::new());
    ann.request("GET", "/account/whoami", None).await.ok();

    server.kill9();
    server.restart().await;
    User::login(&server.http(), "ann", PASSWORD).await;
    login(&server.http(), "eve").await.refused(403, "M_USER_DEACTIVATED");
    server.stop();
    let told = history(&data_dir);
    for part in [
        "waits for approval, registered from 127.0.0.1",
        "approved @ann:e2e.test: known",
        "deactivated @eve:e2e.test",
    ] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
    assert_verifies(&data_dir);
}

#[tokio::test]
async fn newcomers_answer_the_question_of_the_operator() {
    let server = TestServer::start_with(&[ON, QUESTION]).await;
    let http = server.http();
    let mut body = json!({ "username": "ann", "password": PASSWORD });
    let asked = register(&http, &body).await.body;
    assert_eq!(asked["flows"], json!([{ "stages": ["org.logcabin.question"] }]));
    assert_eq!(asked["params"]["org.logcabin.question"]["question"], QUESTION.1);
    let answer = |answer: Value| json!({ "type": "org.logcabin.question", "session": asked["session"], "answer": answer });
    for wrong in [json!(null), json!(" "), json!(7), json!("x".repeat(4097))] {
        body["auth"] = answer(wrong);
        register(&http, &body).await.refused(401, "M_INVALID_PARAM");
    }
    body["auth"] = answer(json!("a friend <b>of</b> mine"));
    register(&http, &body).await.refused(403, CODE);

    // On the page of the stage, for clients that do not know it.
    let begun = register(&http, &json!({ "username": "bob", "password": PASSWORD })).await.body;
    let session = begun["session"].as_str().expect("a session");
    let path =
        format!("/_matrix/client/v3/auth/org.logcabin.question/fallback/web?session={session}");
    let page = http.raw("GET", &path, &[], "").await;
    assert!(console::text(&page).contains(QUESTION.1), "{}", console::text(&page));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let empty = http.raw("POST", &path, &form, "answer=").await;
    assert_eq!(console::status(&empty), 403);
    let given = http.raw("POST", &path, &form, "answer=Ann+did").await;
    assert_eq!(console::status(&given), 200, "{}", console::text(&given));
    let auth = json!({ "auth": { "session": session } });
    register(&http, &auth).await.refused(403, CODE);

    let listed = done_json(command("user", server.data_dir(), "list --waiting --json", ""));
    let answers = listed["waiting"].as_array().expect("a list").iter();
    let answers: Vec<_> = answers.map(|one| one["answer"].clone()).collect();
    assert_eq!(answers, [json!("a friend <b>of</b> mine"), json!("Ann did")], "{listed}");
}

#[tokio::test]
async fn those_who_are_decided_about_get_a_mail_and_a_notice() {
    let test = "those_who_are_decided_about_get_a_mail_and_a_notice";
    let Some(mail) = MailServer::start(test) else { return };
    let settings = mail.settings();
    let mut settings: Vec<_> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    settings.extend([
        ON,
        ("LOGCABIN_REGISTRATION_REQUIRE", "email"),
        ("LOGCABIN_SERVER_NOTICES_LOCALPART", "notices"),
    ]);
    let server = TestServer::start_with(&settings).await;
    let http = server.http();
    for name in ["ann", "eve"] {
        let address = format!("{name}@example.org");
        let ask = json!({ "client_secret": "secret", "email": address, "send_attempt": 1 });
        let path = "/_matrix/client/v3/register/email/requestToken";
        let sid = http.request("POST", path, None, Some(&ask)).await.ok()["sid"].clone();
        let link = link(&mail.mail(&address, 0));
        let token = link.split("token=").nth(1).and_then(|rest| rest.split('&').next());
        let body = json!({ "sid": sid, "client_secret": "secret", "token": token });
        let (page, _) = link.split_once('?').expect("a query");
        let validated = http.raw("POST", page, &[], body.to_string()).await;
        assert_eq!(validated.json().ok(), json!({ "success": true }));
        let mut body = json!({ "username": name, "password": PASSWORD });
        let asked = register(&http, &body).await;
        body["auth"] = json!({
            "type": "m.login.email.identity", "session": asked.body["session"],
            "threepid_creds": { "sid": sid, "client_secret": "secret" },
        });
        register(&http, &body).await.refused(403, CODE);
    }
    let run = |arguments: &str| done(command("user", server.data_dir(), arguments, ""));
    let said = run("approve ann");
    assert!(said.contains("1 mail(s)") && said.contains("1 notice(s)"), "{said}");
    let told = mail.mail("ann@example.org", 1).to_string();
    assert!(told.contains("approved") && told.contains("@ann:e2e.test"), "{told}");
    let said = run("refuse eve --yes");
    assert!(said.contains("1 mail(s)"), "{said}");
    let told = mail.mail("eve@example.org", 1).to_string();
    assert!(told.contains("not approved"), "{told}");
    let ann = User::login(&http, "ann", PASSWORD).await;
    let invites = ann.sync(None, 0, None).await["rooms"]["invite"].clone();
    assert_eq!(invites.as_object().map_or(0, serde_json::Map::len), 1, "{invites}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_shows_who_waits_and_decides_about_several_at_once() {
    let settings = [("LOGCABIN_CONSOLE_ENABLED", "true"), ON];
    let server = TestServer::start_with(&settings).await;
    let http = server.http();
    let run =
        |arguments: &str, input: &str| done(command("user", server.data_dir(), arguments, input));
    run("create root --admin", &format!("{PASSWORD}\n"));
    let cookie = console::cookie(&console::log_in(&server, "root", PASSWORD, &[]).await);
    let page = async |path: &str| console::text(&console::get(&server, path, &cookie).await);
    assert!(page("/waiting").await.contains("Nobody waits for approval."));
    assert!(!page("").await.contains("waiting registration(s)"));
    for name in ["ann", "bob", "eve"] {
        newcomer(&http, name, json!({})).await.refused(403, CODE);
    }
    assert!(page("").await.contains("3 waiting registration(s)"));
    let list = page("/waiting").await;
    for part in ["@ann:e2e.test", "127.0.0.1", "type=\"checkbox\"", "refuse-users"] {
        assert!(list.contains(part), "no `{part}` in {list}");
    }
    assert!(page("/users/%40ann%3Ae2e.test").await.contains("Waiting for approval"));
    // What is ticked is filled in.
    let ticked = "/act/approve-users?users=%40ann%3Ae2e.test&users=%40bob%3Ae2e.test";
    let form = page(ticked).await;
    assert!(form.contains("value=\"@ann:e2e.test @bob:e2e.test\""), "{form}");
    let path = format!("{}/act/approve-users", console::CONSOLE);
    let headers = [("cookie", &*cookie), ("content-type", "application/x-www-form-urlencoded")];
    let order = "users=%40ann%3Ae2e.test+%40bob%3Ae2e.test";
    let foretold = http.raw("POST", &path, &headers, order).await;
    assert!(console::text(&foretold).contains("@bob:e2e.test is approved"));
    login(&http, "ann").await.refused(403, CODE);
    let done_so = http.raw("POST", &path, &headers, format!("{order}&confirmed=yes")).await;
    assert!(console::text(&done_so).contains("This was done."), "{}", console::text(&done_so));
    for name in ["ann", "bob"] {
        login(&http, name).await.ok();
    }
    login(&http, "eve").await.refused(403, CODE);
    assert!(page("").await.contains("1 waiting registration(s)"));
}

#[tokio::test]
async fn a_guest_who_becomes_a_user_waits_too() {
    let guests = ("LOGCABIN_REGISTRATION_GUESTS", "true");
    let server = TestServer::start_with(&[ON, guests]).await;
    let http = server.http();
    let path = "/_matrix/client/v3/register?kind=guest";
    let guest = http.request("POST", path, None, Some(&json!({}))).await;
    let guest = User::of(&http, guest);
    guest.request("GET", "/account/whoami", None).await.ok();
    let more = json!({
        "username": guest.localpart(), "guest_access_token": guest.access_token,
    });
    let mut body = json!({ "password": PASSWORD });
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let asked = register(&http, &body).await;
    body["auth"] = json!({ "type": "m.login.dummy", "session": asked.body["session"] });
    register(&http, &body).await.refused(403, CODE);
    guest.request("GET", "/account/whoami", None).await.refused(403, CODE);
    let run = |arguments: &str| done(command("user", server.data_dir(), arguments, ""));
    run(&format!("approve {}", guest.user_id));
    User::login(&http, guest.localpart(), PASSWORD).await;
    guest.request("GET", "/account/whoami", None).await.ok();
}

#[tokio::test]
async fn only_administrators_decide_about_registrations() {
    let server = server().await;
    let (ann, root) = (user(&server, "ann").await, admin(&server).await);
    for name in ["approve-users", "refuse-users"] {
        let path = format!("/_logcabin/admin/v1/acts/{name}");
        let order = json!({ "act": { "users": [ann.user_id] } });
        let by = async |user: &User, order: &Value| {
            user.http.request("POST", &path, Some(&user.access_token), Some(order)).await
        };
        by(&ann, &order).await.refused(403, "M_FORBIDDEN");
        // She does not wait.
        let said = by(&root, &order).await.ok();
        assert_eq!(said["result"]["not_waiting"], json!([ann.user_id]), "{said}");
        by(&root, &json!({ "act": {} })).await.refused(400, "M_INVALID_PARAM");
    }
    ann.request("GET", "/account/whoami", None).await.ok();
}
