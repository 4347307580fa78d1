//! The console: who may see it, what others can make of it, and a person who uses it in Chromium.

use std::env;
use std::process::Command;

use serde_json::{Value, json};

use crate::administration::{command, done, done_json, failed, user_command};
use crate::console_plots::{keep_samples, write_weeks};
use crate::harness::tools::{chromium, judged, node, programs};
use crate::harness::{RawAnswer, TestServer, encode, skip, until};

pub(crate) const PASSWORD: &str = "a password that is long enough";
pub(crate) const CONSOLE: &str = "/_logcabin/console";

pub(crate) async fn server() -> TestServer {
    TestServer::start_with(&[("LOGCABIN_CONSOLE_ENABLED", "true")]).await
}

pub(crate) async fn log_in(
    server: &TestServer,
    user: &str,
    password: &str,
    more: &[(&str, &str)],
) -> RawAnswer {
    let body = format!("user={}&password={}", encode(user), encode(password));
    let headers = [&[("content-type", "application/x-www-form-urlencoded")], more].concat();
    server.http().raw("POST", &format!("{CONSOLE}/login"), &headers, body).await
}

pub(crate) async fn get(server: &TestServer, path: &str, cookie: &str) -> RawAnswer {
    server.http().raw("GET", &format!("{CONSOLE}{path}"), &[("cookie", cookie)], "").await
}

pub(crate) fn text(answer: &RawAnswer) -> String {
    String::from_utf8(answer.bytes.to_vec()).expect("text")
}

pub(crate) fn status(answer: &RawAnswer) -> u16 {
    answer.parts.status.as_u16()
}

/// The cookie that an answer sets, as it is sent back.
pub(crate) fn cookie(answer: &RawAnswer) -> String {
    answer.header("set-cookie").split(';').next().expect("a cookie").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_administrators_see_the_console_and_only_where_it_is_enabled() {
    let without = TestServer::start().await;
    for path in ["", "/login", "/log", "/log/1", "/plots"] {
        assert_eq!(status(&get(&without, path, "").await), 404, "{path}");
    }
    let server = server().await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let not_the_cookie = format!("logcabin_console=x{}", admin.access_token);
    for path in
        ["", "/log", "/log/1", "/plots", "/past", "/why", "/users", "/rooms", "/act/purge-room"]
    {
        for cookie in ["", &not_the_cookie, "logcabin_console="] {
            let answer = get(&server, path, cookie).await;
            assert_eq!(status(&answer), 303, "{path}");
            assert_eq!(answer.header("location"), "/_logcabin/console/login");
        }
    }
    assert_eq!(status(&get(&server, "/live", "").await), 401);
    let as_ann = format!("logcabin_console={}", ann.access_token);
    for path in ["", "/log", "/log/1", "/plots", "/live"] {
        assert_eq!(status(&get(&server, path, &as_ann).await), 403, "{path}");
    }

    let wrong = log_in(&server, "admin", "wrong", &[]).await;
    assert_eq!((status(&wrong), wrong.header("set-cookie")), (403, ""));
    let not_admin = log_in(&server, "ann", PASSWORD, &[]).await;
    assert_eq!((status(&not_admin), not_admin.header("set-cookie")), (403, ""));
    assert!(text(&not_admin).contains("You do not administer this server."));
    for elsewhere in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        let answer = log_in(&server, "admin", PASSWORD, &[elsewhere]).await;
        assert_eq!((status(&answer), answer.header("set-cookie")), (403, ""), "{elsewhere:?}");
    }

    let entered = log_in(&server, "admin", PASSWORD, &[("origin", &server.base())]).await;
    assert_eq!(status(&entered), 303, "{}", text(&entered));
    let set = entered.header("set-cookie");
    for flag in ["HttpOnly", "SameSite=Strict", "Path=/_logcabin/console"] {
        assert!(set.contains(flag), "{set}");
    }
    let mine = cookie(&entered);
    let page = get(&server, "", &mine).await;
    assert_eq!(status(&page), 200);
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");

    // The session is one of the user's, and ends as such.
    let devices = admin.request("GET", "/devices", None).await.ok();
    assert!(devices.to_string().contains("Logcabin console"), "{devices}");
    let leave = format!("{CONSOLE}/logout");
    let from_elsewhere = [("cookie", &*mine), ("origin", "https://evil.example")];
    assert_eq!(status(&server.http().raw("POST", &leave, &from_elsewhere, "").await), 403);
    assert_eq!(status(&get(&server, "", &mine).await), 200);
    let left = server.http().raw("POST", &leave, &[("cookie", &*mine)], "").await;
    assert_eq!(status(&left), 303);
    assert_eq!(status(&get(&server, "", &mine).await), 303);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_searched_page_by_page_and_shows_hostile_text_harmlessly() {
    let server = server().await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let name = "<script>alert(1)</script>\u{202e}gnp.exe\u{7}";
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": name })).await;
    for number in 0..120 {
        ann.send_text(&room_id, &number.to_string(), &format!("number {number}")).await;
    }
    let hostile = format!("</pre></td>{name}{}", "x".repeat(40_000));
    ann.send_text(&room_id, "hostile", &hostile).await;
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    let offsets = |page: &str| -> Vec<u64> {
        let links = page.split("<a href=\"/_logcabin/console/log/").skip(1);
        links.filter_map(|link| link.split_once('"')?.0.parse().ok()).collect()
    };
    // All records of a kind are found, newest first, by following the links.
    let (mut path, mut found) = ("/log?kind=room.event".to_owned(), Vec::new());
    loop {
        let answer = get(&server, &path, &mine).await;
        assert_eq!(status(&answer), 200);
        let page = text(&answer);
        assert!(!page.contains("<script>alert") && !page.contains('\u{202e}'), "{page}");
        assert!(page.len() < 200_000, "{} bytes", page.len());
        found.extend(offsets(&page));
        let Some((before, _)) = page.split_once("\">Older records") else { break };
        let query = before.rsplit_once("href=\"").expect("a link").1.replace("&amp;", "&");
        path = format!("/log{query}");
    }
    assert!(found.len() > 125 && found.is_sorted_by(|a, b| a > b), "{found:?}");
    let newest = found.first().expect("a record");
    let record = text(&get(&server, &format!("/log/{newest}"), &mine).await);
    assert!(record.contains("&lt;script&gt;alert") && !record.contains("<script>alert"));
    assert!(!record.contains('\u{202e}') && !record.contains('\u{7}'));

    let of_room = format!("/log?room={}&at={newest}", encode(&room_id));
    assert_eq!(offsets(&text(&get(&server, &of_room, &mine).await)).first(), Some(newest));
    for at in ["-0s", "2999-01-01"] {
        let page = text(&get(&server, &format!("/log?at={at}"), &mine).await);
        assert!(offsets(&page).first() > Some(newest), "{at}");
    }
    let long_ago = text(&get(&server, "/log?at=2001-01-01", &mine).await);
    assert_eq!(offsets(&long_ago), [0; 0]);
    for wrong in ["/log?kind=nothing", "/log?at=yesterday", "/log?user=x"] {
        assert_eq!(status(&get(&server, wrong, &mine).await), 400, "{wrong}");
    }
    for missing in ["/log/0", "/log/999999", "/log/x"] {
        assert_eq!(status(&get(&server, missing, &mine).await), 404, "{missing}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_shows_any_moment_what_changed_between_two_and_who_changed_it() {
    let server = server().await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    let newest = async || {
        let page = text(&get(&server, "/log", &mine).await);
        let link = page.split("<a href=\"/_logcabin/console/log/").nth(1).expect("a record");
        link.split('"').next().expect("a number").parse::<u64>().expect("a number")
    };
    let rename = async |name: &str| {
        let path = format!("/profile/{}/displayname", encode(&ann.user_id));
        ann.request("PUT", &path, Some(&json!({ "displayname": name }))).await.ok();
    };
    let room_id = ann.create_room(json!({ "name": "<i>First</i>" })).await;
    rename("Ann the first").await;
    ann.send_text(&room_id, "1", "early words").await;
    let early = newest().await;
    let name = format!("/rooms/{}/state/m.room.name/", encode(&room_id));
    ann.request("PUT", &name, Some(&json!({ "name": "Second\u{202e}" }))).await.ok();
    rename("Ann the second").await;
    ann.send_text(&room_id, "2", "late words").await;
    done(user_command(server.data_dir(), "reset-password ann --keep-devices", "other words 123\n"));
    let late = newest().await;
    for number in 0..40 {
        ann.send_text(&room_id, &format!("m{number}"), "later").await;
    }
    let see = async |path: &str| {
        let answer = get(&server, path, &mine).await;
        let page = text(&answer);
        assert_eq!(status(&answer), 200, "{path}: {page}");
        assert!(!page.contains("<i>First") && !page.contains('\u{202e}'), "{page}");
        page
    };
    let (room, user) = (encode(&room_id), encode(&ann.user_id));
    let has = |page: &str, present: &[&str], absent: &[&str]| {
        for words in present {
            assert!(page.contains(words), "no `{words}` in {page}");
        }
        for words in absent {
            assert!(!page.contains(words), "`{words}` is in {page}");
        }
    };
    let then = see(&format!("/past?room={room}&at={early}")).await;
    has(&then, &["First", "early words"], &["Second", "late words", ">later<"]);
    let now = see(&format!("/past?room={room}&at={late}")).await;
    has(&now, &["Second", "early words", "late words"], &[]);
    let then = see(&format!("/past?user={user}&at={early}")).await;
    has(&then, &["Ann the first"], &["Ann the second"]);
    has(&see(&format!("/past?user={user}&at={late}")).await, &["Ann the second"], &[]);
    // What changed between two moments, and who changed it.
    let between = see(&format!("/past?room={room}&from={early}&at={late}")).await;
    has(&between, &["What changed", "First", "Second"], &["joined members"]);
    let between = see(&format!("/past?user={user}&from={early}&at={late}")).await;
    has(&between, &["Ann the first", "Ann the second", "password"], &[]);
    let why = see(&format!("/why?of={}", encode(&format!("room {room_id} name")))).await;
    has(&why, &["First", "Second", &ann.user_id], &["late words"]);
    let why = see(&format!("/why?of={}&at={early}", encode(&format!("room {room_id} name")))).await;
    has(&why, &["First"], &["Second"]);
    let words = format!("room\n{room_id}\npower\n{}", ann.user_id);
    has(&see(&format!("/why?of={}", encode(&words))).await, &["100"], &[]);
    let why = see(&format!("/why?of={}", encode("user ann profile displayname"))).await;
    has(&why, &["Ann the first", "Ann the second"], &[]);
    let why = see(&format!("/why?of={}", encode("user ann password"))).await;
    has(&why, &["user.register", "user.password", "$…"], &[]);
    // What no index knows is looked for among the last records.
    let why = see(&format!("/why?of={}", encode("user admin account"))).await;
    has(&why, &["user.status"], &["were examined"]);
    let outline = see(&format!("/past?from=1&at={late}")).await;
    has(&outline, &["new users since record 1", &ann.user_id, &room_id], &[]);
    let before = see(&format!("/past?room={room}&at=2")).await;
    has(&before, &["did not exist yet as of record 2", "type=\"range\""], &[]);
    for (wrong, expected) in [
        ("/past?room=%21nowhere%3Alocalhost", 404),
        ("/past?user=nobody", 404),
        ("/past?at=soon", 400),
        ("/why?of=what%20is%20this", 400),
        ("/why?of=user%20nobody%20password", 404),
    ] {
        assert_eq!(status(&get(&server, wrong, &mine).await), expected, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrators_can_search_and_an_act_shows_its_effect_before_it_is_confirmed() {
    let server = server().await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    for number in 0..110 {
        let name = format!("guest-of-{number:03}");
        done(user_command(server.data_dir(), &format!("create {name} --no-password"), ""));
    }
    let room_id = ann.create_room(json!({ "name": "<img src=x>Den" })).await;
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    let see = async |path: &str| {
        let answer = get(&server, path, &mine).await;
        let page = text(&answer);
        assert_eq!(status(&answer), 200, "{path}: {page}");
        assert!(!page.contains("<img"), "{page}");
        page
    };
    // Lists have pages and a search.
    let first = see("/users").await;
    assert!(first.contains("112 in all") && !first.contains("guest-of-109"), "{first}");
    let second = see("/users?from=100").await;
    assert!(second.contains("guest-of-109"), "{second}");
    let found = see("/users?name=of-109").await;
    assert!(found.contains("guest-of-109") && found.contains("1 in all"), "{found}");
    let rooms = see("/rooms?name=den").await;
    assert!(rooms.contains("Den") && rooms.contains("1 in all"), "{rooms}");
    for path in ["/media", "/reports", "/tokens"] {
        see(path).await;
    }
    let room = see(&format!("/rooms/{}", encode(&room_id))).await;
    assert!(room.contains("purge-room") && room.contains("Den"), "{room}");
    let user = see(&format!("/users/{}", encode(&ann.user_id))).await;
    assert!(user.contains("reset-password") && user.contains("Devices"), "{user}");
    for missing in ["/users/nobody", "/rooms/%21x%3Ay", "/act/nothing", "/act/list-users"] {
        assert!(matches!(status(&get(&server, missing, &mine).await), 400 | 404), "{missing}");
    }

    // An act says what it would do, and does nothing before it is confirmed.
    let order = async |name: &str, body: &str, more: &[(&str, &str)]| {
        let form = ("content-type", "application/x-www-form-urlencoded");
        let headers = [&[form, ("cookie", &*mine)], more].concat();
        server.http().raw("POST", &format!("{CONSOLE}/act/{name}"), &headers, body.to_owned()).await
    };
    let form = see(&format!("/act/set-status?user={}&locked=yes", encode(&ann.user_id))).await;
    assert!(form.contains(&ann.user_id) && form.contains("value=\"yes\" selected"), "{form}");
    let filled = format!("user={}&locked=yes&reason=spam", encode(&ann.user_id));
    let shown = order("set-status", &filled, &[]).await;
    let page = text(&shown);
    assert_eq!(status(&shown), 200, "{page}");
    assert!(page.contains("This would happen") && page.contains("is locked"), "{page}");
    let user = see(&format!("/users/{}", encode(&ann.user_id))).await;
    assert!(!user.contains("<strong>Locked"), "{user}");
    let confirmed = format!("{filled}&confirmed=yes");
    for elsewhere in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        assert_eq!(status(&order("set-status", &confirmed, &[elsewhere]).await), 403);
    }
    let page = text(&order("set-status", &confirmed, &[]).await);
    assert!(page.contains("This was done"), "{page}");
    let user = see(&format!("/users/{}", encode(&ann.user_id))).await;
    assert!(user.contains("<strong>Locked") && user.contains("“<bdi>spam</bdi>”"), "{user}");
    // It is a record, by the administrator and with the reason.
    let log = see("/log?kind=user.status").await;
    assert!(log.contains(&admin.user_id) && log.contains("spam"), "{log}");

    // A secret is asked for at the end, and is in no page.
    let page = text(&order("reset-password", "user=ann&keep_devices=no", &[]).await);
    assert!(page.contains("type=\"password\"") && page.contains("This would happen"), "{page}");
    let weak = order("reset-password", "user=ann&confirmed=yes&password=x7%20q", &[]).await;
    assert_eq!(status(&weak), 400);
    assert!(text(&weak).contains("role=\"alert\"") && !text(&weak).contains("x7 q"));
    let strong = "user=ann&confirmed=yes&password=quite+another+one";
    let page = text(&order("reset-password", strong, &[]).await);
    assert!(page.contains("This was done") && !page.contains("quite another"), "{page}");
    // What cannot be done is said in the form; what cannot be undone, too.
    let refused = order("join-room", "user=nobody&room=%23x%3Ay", &[]).await;
    assert!(text(&refused).contains("role=\"alert\""), "{}", text(&refused));
    let room = encode(&room_id);
    let page = text(&order("purge-room", &format!("room={room}&force=yes"), &[]).await);
    assert!(page.contains("This cannot be undone"), "{page}");
    let purged = order("purge-room", &format!("room={room}&force=yes&confirmed=yes"), &[]).await;
    assert!(text(&purged).contains("This was done"), "{}", text(&purged));
    assert_eq!(status(&get(&server, &format!("/rooms/{room}"), &mine).await), 404);
    // Nobody else can order anything.
    let as_ann = [("cookie", &*format!("logcabin_console={}", ann.access_token))];
    let path = format!("{CONSOLE}/act/create-user");
    let answer = server.http().raw("POST", &path, &as_ann, "user=x&confirmed=yes").await;
    assert!(matches!(status(&answer), 303 | 403), "{}", text(&answer));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_from_the_command_line_logs_an_administrator_in_once() {
    let server = server().await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    let link = |of: &str| command("console", server.data_dir(), of, "");
    assert!(failed(link("--json")).contains("has no administrator"));
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    assert!(failed(link("ann")).contains("does not administer"));
    let printed = done_json(link("--json"));
    assert_eq!(printed["user_id"], *admin.user_id);
    let url = printed["url"].as_str().expect("a link");
    assert!(url.starts_with(&server.base()), "{url}");
    let secret = url.split_once("/_logcabin/console/login?link=").expect("the console").1;
    // Whoever only looks at it does not use it up.
    for _ in 0..2 {
        let page = text(&get(&server, &format!("/login?link={secret}"), "").await);
        assert!(page.contains("Log in as") && page.contains(&admin.user_id), "{page}");
    }
    let enter = async |name: &str, value: &str| {
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let body = format!("{name}={}", encode(value));
        server.http().raw("POST", &format!("{CONSOLE}/login"), &form, body).await
    };
    // It is a link to the console, and no login token.
    assert_eq!(status(&enter("token", secret).await), 403);
    let entered = enter("link", secret).await;
    assert_eq!(status(&entered), 303, "{}", text(&entered));
    assert_eq!(status(&get(&server, "", &cookie(&entered)).await), 200);
    for wrong in [secret, "nothing", &secret[1..]] {
        let refused = enter("link", wrong).await;
        assert_eq!((status(&refused), refused.header("set-cookie")), (403, ""), "{wrong}");
    }
    assert_eq!(status(&get(&server, "/login?link=nothing", "").await), 403);
    // Whoever ceases to be an administrator does not get in by an older link.
    let printed = done_json(link("--json"));
    done(user_command(server.data_dir(), &format!("set-admin {}", ann.user_id), ""));
    done(user_command(server.data_dir(), &format!("unset-admin {}", admin.user_id), ""));
    let url = printed["url"].as_str().expect("a link").to_owned();
    let refused = enter("link", url.split_once("link=").expect("a link").1).await;
    assert_eq!((status(&refused), refused.header("set-cookie")), (403, ""));
    // The log has the use, and nothing of the link.
    let printed = done_json(link("--json ann"));
    let url = printed["url"].as_str().expect("a link").to_owned();
    let mine = cookie(&enter("link", url.split_once("link=").expect("a link").1).await);
    let log = text(&get(&server, "/log", &mine).await);
    assert!(!log.contains(secret), "{log}");
    for path in ["/work", "/users"] {
        assert_eq!(status(&get(&server, path, &mine).await), 200, "{path}");
    }
    for path in ["/timeline", "/timeline?from=0&to=1", "/timeline?to=99999999999999"] {
        let page = text(&get(&server, path, &mine).await);
        assert!(page.contains("Events of rooms") && !page.contains("NaN"), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_uses_the_console_in_a_browser() {
    let found = node("puppeteer-core").and_then(|()| node("axe-core"));
    let chromium = match found.and_then(|()| chromium()) {
        Ok(chromium) => chromium,
        Err(missing) => return skip("the console", &missing),
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    write_weeks(directory.path()).await;
    keep_samples(directory.path());
    let settings = [
        ("LOGCABIN_CONSOLE_ENABLED", "true"),
        ("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"),
        ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1"),
    ];
    let server = TestServer::start_on_with(directory.path(), &settings).await;
    let admin = server.register("admin").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let room_id = admin.create_room(json!({ "name": "<b>Cabin</b>" })).await;
    for number in 0..60 {
        admin.send_text(&room_id, &number.to_string(), &"hello ".repeat(number)).await;
    }
    // Something in every list, and none of it harmless.
    let hostile = "<img src=x onerror=alert(1)>\u{202e}gnp.exe";
    let report = format!("/rooms/{}/report", encode(&room_id));
    admin.request("POST", &report, Some(&json!({ "reason": hostile }))).await.ok();
    let token = format!("Bearer {}", admin.access_token);
    let headers = [("authorization", &*token), ("content-type", "text/html")];
    let upload = format!("/_matrix/media/v3/upload?filename={}", encode(hostile));
    let uploaded = server.http().raw("POST", &upload, &headers, "<script>alert(1)</script>").await;
    assert_eq!(status(&uploaded), 200, "{}", text(&uploaded));
    done(command("registration-token", server.data_dir(), "create --label <b>guests</b>", ""));
    // What keeps the data has something to show, too.
    let place = directory.path().join("backup");
    done(command("backup", server.data_dir(), &place.display().to_string(), ""));
    done(command("snapshot", server.data_dir(), "write", ""));
    done(command("prove", server.data_dir(), "2", ""));
    let ann = server.register("ann").await;
    admin.act(&room_id, "invite", Some(&ann)).await.ok();
    ann.join(&room_id).await.ok();
    let said = ann.send_text(&room_id, "hostile", hostile).await;
    let redact = format!("/rooms/{}/redact/{}/gone", encode(&room_id), encode(&said));
    let asked = ann.send_text(&room_id, "asks", "admin: is the stove still warm?").await;
    ann.request("PUT", &redact, Some(&json!({ "reason": hostile }))).await.ok();
    until("a sweep erased it", async || {
        let listed = done_json(command("erasure", server.data_dir(), "list --json", ""));
        listed["rows"].as_array().is_some_and(|rows| rows.iter().any(|row| row["because"] != 0))
    })
    .await;
    let read = format!("/rooms/{}/receipt/m.read/{}", encode(&room_id), encode(&asked));
    ann.request("POST", &read, Some(&json!({}))).await.ok();
    admin.send_text(&room_id, "answers", "ann, it is still warm").await;
    let mut node = Command::new("node");
    node.arg(programs().join("console.mjs"));
    node.args([&*server.base(), &*chromium, "admin", PASSWORD, &*room_id, &*admin.access_token]);
    node.args(env::var_os("LOGCABIN_E2E_SCREENSHOTS"));
    judged("console.mjs", node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_search_field_leads_to_what_an_id_names_whatever_others_are_called() {
    let server = server().await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    // Somebody is called like the address that everybody comes from, and like a room.
    let (mimic, lobby) = (server.register("127.0.0.1").await, server.register("lobby").await);
    let room_id = ann.create_room(json!({ "name": "Lobby", "preset": "public_chat" })).await;
    let event_id = ann.send_text(&room_id, "1", "hello").await;
    let token = format!("Bearer {}", ann.access_token);
    let headers = [("authorization", &*token), ("content-type", "text/plain")];
    let uploaded = server.http().raw("POST", "/_matrix/media/v3/upload", &headers, "a file").await;
    let uploaded: Value = serde_json::from_slice(&uploaded.bytes).expect("JSON");
    let address = uploaded["content_uri"].as_str().expect("an address");
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    let find =
        async |wanted: &str| get(&server, &format!("/find?q={}", encode(wanted)), &mine).await;
    let leads = async |wanted: &str| {
        let answer = find(wanted).await;
        assert_eq!(status(&answer), 303, "{wanted}: {}", text(&answer));
        answer.header("location").trim_start_matches(CONSOLE).to_owned()
    };
    let lists = async |wanted: &str| {
        let answer = find(wanted).await;
        assert_eq!(status(&answer), 200, "{wanted}");
        text(&answer)
    };
    assert!(leads(&ann.user_id).await.starts_with("/users/%40ann%3A"));
    assert!(leads(&room_id).await.starts_with("/rooms/%21"));
    assert_eq!(leads("7").await, "/log/7");
    for of in [&*event_id, address, address.rsplit('/').next().expect("an id")] {
        assert!(leads(of).await.starts_with("/log/"), "{of}");
    }
    assert_eq!(leads("").await, "");

    let at_address = lists("127.0.0.1").await;
    for user in [&admin, &ann, &mimic, &lobby] {
        assert!(at_address.contains(&*user.user_id), "{at_address}");
    }
    // Where but one thing has a name, the search leads to it; a homeserver is an id.
    server.register("pathfinder").await;
    assert!(leads("pathfinder").await.starts_with("/users/%40pathfinder%3A"));
    assert_eq!(leads("backups").await, "/backups");
    assert_eq!(leads("POLICY LISTS").await, "/policies");
    let acts = lists("clean up").await;
    assert!(acts.contains("/act/clean-up"), "{acts}");
    let named = lists("lobby").await;
    assert!(named.contains(&*lobby.user_id) && named.contains(">Lobby<"), "{named}");
    let nothing = "Nothing on this server has this name.";
    let foreign = address.replace("mxc://", "mxc://elsewhere.");
    for of in ["999999999999", "!no:room", "$none", "@nobody:e2e.test", &foreign, "<script>"] {
        let page = lists(of).await;
        assert!(page.contains(nothing) && !page.contains("<script>alert"), "{of}: {page}");
    }
    let path = leads("@eve:elsewhere.example").await;
    let elsewhere = text(&get(&server, &path, &mine).await);
    assert!(elsewhere.contains("in 0 room(s) of this one"), "{elsewhere}");
    assert_eq!(status(&get(&server, "/find?q=7", "").await), 303);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_is_shown_with_what_was_said_and_what_can_be_done() {
    let server = server().await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    let eve = server.register("eve").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let room_id = ann.create_room(json!({ "name": "Lobby", "preset": "public_chat" })).await;
    eve.join(&room_id).await.ok();
    ann.send_text(&room_id, "1", "a quiet evening").await;
    let first = eve.send_text(&room_id, "1", "buy <b>now</b>").await;
    let second = eve.send_text(&room_id, "2", "buy more").await;
    for event_id in [&first, &second] {
        let report = format!("/rooms/{}/report/{}", encode(&room_id), encode(event_id));
        ann.request("POST", &report, Some(&json!({ "reason": "sp\u{202e}am" }))).await.ok();
    }
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    let listed = text(&get(&server, "/reports", &mine).await);
    let lines = listed.split("name=\"reports\" value=\"").skip(1);
    let ids: Vec<_> = lines.filter_map(|line| Some(line.split_once('"')?.0.to_owned())).collect();
    assert_eq!(ids.len(), 2, "{listed}");
    let form = format!("/act/remove-reports?reports={}&reports={}", ids[0], ids[1]);
    let form = text(&get(&server, &form, &mine).await);
    assert!(form.contains(&format!("value=\"{} {}\"", ids[0], ids[1])), "{form}");
    let page = text(&get(&server, &format!("/reports/{}", ids[1]), &mine).await);
    for part in [
        "a quiet evening",
        "<div class=\"reported\"><bdi class=\"said\">buy &lt;b&gt;now&lt;/b&gt;\n</bdi>",
        "buy more",
        "act/redact-event",
        "act/redact-user",
        "act/set-status",
        "act/remove-report",
        &format!("report={}", ids[0]),
    ] {
        assert!(page.contains(part), "no `{part}` in {page}");
    }
    assert!(!page.contains('\u{202e}') && !page.contains("<b>now"), "{page}");
    // What was redacted since is not shown again.
    let redact = format!("redact {room_id} {first} --yes");
    done(command("room", server.data_dir(), &redact, ""));
    let page = text(&get(&server, &format!("/reports/{}", ids[1]), &mine).await);
    assert!(page.contains("m.room.message, redacted") && !page.contains("now&lt;"), "{page}");
    for none in ["999999", "0", "x"] {
        assert_eq!(status(&get(&server, &format!("/reports/{none}"), &mine).await), 404, "{none}");
    }
}
