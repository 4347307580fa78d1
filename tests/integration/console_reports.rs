//! The reports' inbox of the console: what it shows, what its buttons do, and what others make of
//! reports; and the tasks that administrators have most, counted in a browser.

use serde_json::{Value, json};

use crate::administration::{command, done, done_json, user_command};
use crate::console::{CONSOLE, PASSWORD, cookie, get, log_in, status, text};
use crate::harness::{RawAnswer, TestServer, User, encode, until};

const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{202e}gnp.exe";

/// A server with an administrator, their cookie, and a room in which eve is.
struct Place {
    server: TestServer,
    admin: User,
    ann: User,
    eve: User,
    mine: String,
    room_id: String,
}

async fn place() -> Place {
    let settings =
        [("LOGCABIN_CONSOLE_ENABLED", "true"), ("LOGCABIN_SERVER_NOTICES_LOCALPART", "notices")];
    let server = TestServer::start_with(&settings).await;
    let (admin, ann) = (server.register("admin").await, server.register("ann").await);
    let eve = server.register("eve").await;
    done(user_command(server.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    let room_id = ann.create_room(json!({ "name": "Lobby", "preset": "public_chat" })).await;
    eve.join(&room_id).await.ok();
    let mine = cookie(&log_in(&server, "admin", PASSWORD, &[]).await);
    Place { server, admin, ann, eve, mine, room_id }
}

async fn report(by: &User, room_id: &str, event_id: &str, reason: &str) {
    let path = format!("/rooms/{}/report/{}", encode(room_id), encode(event_id));
    by.request("POST", &path, Some(&json!({ "reason": reason }))).await.ok();
}

async fn report_user(by: &User, of: &User, reason: &str) {
    let path = format!("/users/{}/report", encode(&of.user_id));
    by.request("POST", &path, Some(&json!({ "reason": reason }))).await.ok();
}

impl Place {
    async fn see(&self, path: &str) -> String {
        let answer = get(&self.server, path, &self.mine).await;
        let page = text(&answer);
        assert_eq!(status(&answer), 200, "{path}: {page}");
        assert!(!page.contains("<img") && !page.contains('\u{202e}'), "{page}");
        page
    }

    /// The newest report of each line of the inbox.
    async fn lines(&self, query: &str) -> Vec<u64> {
        let page = self.see(&format!("/reports{query}")).await;
        let boxes = page.split("name=\"reports\" value=\"").skip(1);
        boxes.filter_map(|line| line.split_once('"')?.0.parse().ok()).collect()
    }

    async fn decide_as(&self, cookie: &str, body: &str) -> RawAnswer {
        let form = ("content-type", "application/x-www-form-urlencoded");
        let path = format!("{CONSOLE}/reports/decide");
        let headers = [form, ("cookie", cookie)];
        self.server.http().raw("POST", &path, &headers, body.to_owned()).await
    }

    async fn decide(&self, body: &str) -> RawAnswer {
        self.decide_as(&self.mine, body).await
    }

    async fn is_suspended(&self, user: &User) -> bool {
        let shown = done_json(user_command(
            self.server.data_dir(),
            &format!("show {} --json", user.user_id),
            "",
        ));
        shown["suspended"] == true
    }
}

fn has(page: &str, present: &[&str], absent: &[&str]) {
    for words in present {
        assert!(page.contains(words), "no `{words}` in {page}");
    }
    for words in absent {
        assert!(!page.contains(words), "`{words}` is in {page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_about_the_same_are_one_line_of_the_inbox() {
    let place = place().await;
    let Place { server, admin, ann, eve, room_id, .. } = &place;
    let bob = server.register("bob").await;
    bob.join(room_id).await.ok();
    let rude = eve.send_text(room_id, "1", HOSTILE).await;
    for (by, reason) in [(ann, "rude"), (&bob, HOSTILE), (&bob, "still there")] {
        report(by, room_id, &rude, reason).await;
    }
    report_user(&bob, eve, "").await;
    report_user(ann, &bob, "a bore").await;
    let path = format!("/rooms/{}/report", encode(room_id));
    bob.request("POST", &path, Some(&json!({ "reason": "a loud room" }))).await.ok();

    let page = place.see("/reports").await;
    has(
        &page,
        &[
            "&lt;img src=x onerror=alert(1)&gt;",
            "<span class=\"count\">3<span class=\"hidden\"> reports</span></span>",
            "in <bdi>Lobby</bdi>, ",
            "“<bdi>still there</bdi>”",
            "no reason given",
            "4 in all",
        ],
        &[],
    );
    let all = place.lines("").await;
    assert!(all.len() == 4 && all.is_sorted_by(|a, b| a > b), "{all:?}");
    let oldest = place.lines("?order=oldest").await;
    assert_eq!(oldest, all.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(place.lines("?of=messages").await, [all[3]]);
    assert_eq!(place.lines("?of=users").await, [all[1], all[2]]);
    assert_eq!(place.lines("?of=rooms").await, [all[0]]);

    // A report beside the list, and each of its reporters.
    let shown = place.see(&format!("/reports?of=messages&report={}", all[3])).await;
    has(
        &shown,
        &[
            "“<bdi>rude</bdi>”",
            "“<bdi>still there</bdi>”",
            "here since",
            "in 1 room(s)",
            "value=\"redact\"",
            "value=\"warn\"",
            "value=\"ignore\"",
            "aria-current=\"true\"",
        ],
        &["suspended</strong>"],
    );
    let of_user = place.see(&format!("/reports/{}", all[2])).await;
    has(&of_user, &["value=\"suspend\"", "value=\"clean-up\""], &["value=\"redact\" data"]);
    let of_room = place.see(&format!("/reports/{}", all[0])).await;
    has(&of_room, &["value=\"ignore\" data"], &["value=\"suspend\" data", "value=\"ban\" data"]);

    // Only administrators see and decide anything.
    let as_ann = format!("logcabin_console={}", ann.access_token);
    for path in ["/reports", "/reports/decided", &format!("/reports/{}", all[0])] {
        assert_eq!(status(&get(server, path, &as_ann).await), 403, "{path}");
        assert_eq!(status(&get(server, path, "").await), 303, "{path}");
    }
    let order = format!("decision=ignore&reports={}&confirmed=yes&close=yes", all[0]);
    assert_eq!(status(&place.decide_as(&as_ann, &order).await), 403);
    assert_eq!(status(&place.decide_as("", &order).await), 303);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let elsewhere = [form, ("cookie", &*place.mine), ("origin", "https://evil.example")];
    let path = format!("{CONSOLE}/reports/decide");
    let answer = server.http().raw("POST", &path, &elsewhere, order).await;
    assert_eq!(status(&answer), 403);
    assert_eq!(place.lines("").await.len(), 4);
    for wrong in ["decision=nothing", "reports=1", "decision=ignore&reports=x"] {
        let answer = place.decide(wrong).await;
        assert!(matches!(status(&answer), 400 | 404), "{wrong}: {}", text(&answer));
    }
    assert_eq!(status(&place.decide("decision=ignore").await), 409);

    // A room that is gone and a user who is gone leave their reports.
    let purge = format!("purge {room_id} --force --yes");
    done(command("room", server.data_dir(), &purge, ""));
    done(user_command(server.data_dir(), &format!("erase {} --yes", bob.user_id), ""));
    for id in place.lines("").await {
        let page = place.see(&format!("/reports/{id}")).await;
        has(&page, &["value=\"ignore\" data"], &["value=\"redact\" data", "value=\"ban\" data"]);
    }
    has(&place.see("/reports?of=messages").await, &["a message that is gone", "in <bdi>"], &[]);
    has(&place.see("/reports?of=rooms").await, &[], &["a message that is gone"]);
    assert!(!admin.user_id.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_button_says_what_it_would_do_then_does_it_closes_the_report_and_opens_the_next() {
    let place = place().await;
    let Place { server, ann, eve, room_id, .. } = &place;
    let rude = eve.send_text(room_id, "1", "rude words").await;
    let more = eve.send_text(room_id, "2", "more of them").await;
    report(ann, room_id, &rude, "rude").await;
    report(ann, room_id, &more, "ruder").await;
    let [second, first] = place.lines("").await[..] else { panic!("two lines") };

    let asked = format!("decision=redact&reports={first}");
    let preview = text(&place.decide(&asked).await);
    has(
        &preview,
        &["in the name of", "This cannot be undone", "close this report", "Redact the message"],
        &[],
    );
    let event = format!("/rooms/{}/event/{}", encode(room_id), encode(&rude));
    let body = async || ann.request("GET", &event, None).await.ok()["content"]["body"].clone();
    assert_eq!(body().await, "rude words");
    let order = format!("{asked}&confirmed=yes&close=yes&reason=rude+<b>words</b>");
    let answer = place.decide(&order).await;
    assert_eq!(status(&answer), 303, "{}", text(&answer));
    let next = answer.header("location").trim_start_matches(CONSOLE).to_owned();
    assert_eq!(next, format!("/reports?report={second}&closed={first}"));
    assert_eq!(body().await, Value::Null);
    let page = place.see(&next).await;
    has(
        &page,
        &[
            &format!("Report {first} was closed by"),
            "message redacted: rude &lt;b&gt;words",
            &format!("<title>Report {second}"),
            "“<bdi>ruder</bdi>”",
        ],
        &["<b>words"],
    );
    // The other report knows of it: the same user, the same reporter.
    has(&page, &["Other reports about the same", "message redacted"], &[]);

    // Whoever comes second is told so, and nothing is done.
    let late = place.decide(&format!("decision=suspend&reports={first}&confirmed=yes")).await;
    assert_eq!(status(&late), 409);
    let said = text(&late);
    has(&said, &["Somebody has dealt with this meanwhile", "message redacted", "act/undo"], &[]);
    assert!(!place.is_suspended(eve).await);
    let gone = place.see(&format!("/reports/{first}")).await;
    has(&gone, &["was closed by", "message redacted"], &["value=\"suspend\" data"]);

    // Without closing it, the report stays.
    let stays = place.decide(&format!("decision=suspend&reports={second}&confirmed=yes")).await;
    has(&text(&stays), &["This was done", "stay open"], &[]);
    assert!(place.is_suspended(eve).await);
    assert_eq!(place.lines("").await, [second]);
    let page = place.see(&format!("/reports/{second}")).await;
    has(&page, &["<strong>suspended</strong>"], &[]);
    // What is so already can be ordered again, and closes the report.
    let again = format!("decision=suspend&reports={second}&confirmed=yes&close=yes");
    let answer = place.decide(&again).await;
    assert!(answer.header("location").ends_with(&format!("/reports?closed={second}")));

    let decided = place.see("/reports/decided").await;
    has(
        &decided,
        &["user suspended", "message redacted: rude", "2 in all", "act/undo", &place.admin.user_id],
        &["<b>words"],
    );
    // Undone, it is open again, and not decided any more.
    let record = decided.split("act/undo?record=").nth(1).and_then(|rest| rest.split('"').next());
    let undo = record.expect("a record").to_owned();
    done(command("undo", server.data_dir(), &undo, ""));
    assert_eq!(place.lines("").await, [second]);
    has(&place.see("/reports/decided").await, &["1 in all"], &["user suspended"]);

    // Of two who decide at the same moment, one closes it, and both are told who.
    let order = format!("decision=ignore&reports={second}&confirmed=yes&close=yes");
    for answer in <[RawAnswer; 2]>::from(tokio::join!(place.decide(&order), place.decide(&order))) {
        assert!(matches!(status(&answer), 303 | 409), "{}", text(&answer));
    }
    let decided = place.see("/reports/decided").await;
    has(&decided, &["2 in all"], &[]);
    assert_eq!(decided.matches("no action").count(), 1, "{decided}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_leaves_the_report_open_and_says_why() {
    let place = place().await;
    let Place { server, ann, room_id, .. } = &place;
    // The only user of this server who has power in the room is the one who is to be banned.
    let said = ann.send_text(room_id, "1", "I rule").await;
    report(&place.eve, room_id, &said, "boastful").await;
    let [id] = place.lines("").await[..] else { panic!("a line") };
    let order = format!("decision=ban&reports={id}&confirmed=yes&close=yes");
    let answer = place.decide(&order).await;
    has(&text(&answer), &["This could not be done", "stay open"], &[]);
    assert_eq!(place.lines("").await, [id]);
    // A warning reaches the user, in the words that were chosen.
    let asked = format!("decision=warn&reports={id}");
    has(&text(&place.decide(&asked).await), &["What the user is told", "gets a notice"], &[]);
    let order = format!("{asked}&text=Be+<b>modest</b>&confirmed=yes&close=yes");
    assert_eq!(status(&place.decide(&order).await), 303);
    assert_eq!(place.lines("").await, [0_u64; 0]);
    until("ann is warned", async || {
        let synced = ann.request("GET", "/sync?full_state=true", None).await.ok();
        synced["rooms"]["invite"].as_object().is_some_and(|rooms| !rooms.is_empty())
    })
    .await;
    has(&place.see("/reports/decided").await, &["warned by a notice"], &[]);
    let log = place.see("/log?kind=room.event").await;
    assert!(log.contains("notices"), "{log}");

    // Without somebody to send notices, there is no such button.
    let settings =
        [("LOGCABIN_CONSOLE_ENABLED", "true"), ("LOGCABIN_SERVER_NOTICES_LOCALPART", "off")];
    let without = TestServer::start_with(&settings).await;
    let (admin, eve) = (without.register("admin").await, without.register("eve").await);
    done(user_command(without.data_dir(), &format!("set-admin {}", admin.user_id), ""));
    report_user(&admin, &eve, "rude").await;
    let mine = cookie(&log_in(&without, "admin", PASSWORD, &[]).await);
    let page = text(&get(&without, "/reports", &mine).await);
    let id = page.split("name=\"reports\" value=\"").nth(1).and_then(|of| of.split('"').next());
    let id = id.expect("a report");
    let page = text(&get(&without, &format!("/reports/{id}"), &mine).await);
    has(&page, &["value=\"suspend\" data"], &["value=\"warn\" data"]);
    assert!(!server.base().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_up_says_which_reports_it_closes_and_takes_closed_accounts() {
    let place = place().await;
    let Place { server, ann, eve, room_id, .. } = &place;
    let bob = server.register("bob").await;
    bob.join(room_id).await.ok();
    let spam = eve.send_text(room_id, "1", "spam").await;
    report(ann, room_id, &spam, "spam").await;
    report_user(&bob, eve, "spam").await;
    report_user(ann, &bob, "a bore").await;
    let [of_bob, _, of_spam] = place.lines("").await[..] else { panic!("three lines") };
    let asked = format!("decision=clean-up&reports={of_spam}");
    let preview = text(&place.decide(&asked).await);
    has(&preview, &["close all 2 reports about the user", "and 1 about the same user"], &[]);
    let answer = place.decide(&format!("{asked}&confirmed=yes&close=yes")).await;
    assert_eq!(status(&answer), 303, "{}", text(&answer));
    assert_eq!(place.lines("").await, [of_bob]);
    assert!(place.is_suspended(eve).await);

    // What does not apply any more is no success; a closed account is cleaned up after.
    done(user_command(server.data_dir(), &format!("deactivate {} --yes", bob.user_id), ""));
    let asked = format!("reports={of_bob}&confirmed=yes&close=yes");
    let answer = text(&place.decide(&format!("decision=suspend&{asked}")).await);
    let why = format!("does not apply to report {of_bob} any more");
    has(&answer, &["This could not be done", &why, "stay open"], &[]);
    assert_eq!(place.lines("").await, [of_bob]);
    let answer = place.decide(&format!("decision=clean-up&{asked}")).await;
    assert_eq!(status(&answer), 303, "{}", text(&answer));
    assert_eq!(place.lines("").await, [0_u64; 0]);

    // Only the first reports of many that were closed are named.
    let many: Vec<_> = (1..=12).map(|id| id.to_string()).collect();
    let page = place.see(&format!("/reports?closed={}", many.join("+"))).await;
    has(&page, &["And 2 more"], &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_shows_the_picture_and_each_text_of_a_message() {
    let place = place().await;
    let Place { server, ann, eve, room_id, .. } = &place;
    let upload = "/_matrix/media/v3/upload?filename=face.png";
    let kind = [("content-type", "image/png")];
    let uploaded = eve.send_bytes("POST", upload, &kind, b"a file".to_vec()).await;
    let url = uploaded.json().ok_string("content_uri");
    let content = json!({
        "msgtype": "m.image", "body": "kind words", "url": url,
        "format": "org.matrix.custom.html", "formatted_body": format!("rude {HOSTILE} &lt;b&gt;"),
    });
    let path = format!("/rooms/{}/send/m.room.message/1", encode(room_id));
    let event_id = eve.request("PUT", &path, Some(&content)).await.ok();
    let event_id = event_id["event_id"].as_str().expect("an event");
    report(ann, room_id, event_id, "rude").await;
    let [id] = place.lines("").await[..] else { panic!("a line") };
    let page = text(&get(server, &format!("/reports/{id}"), &place.mine).await);
    has(
        &page,
        &["kind words", "Formatted:", "rude ", "&lt;b&gt;", "console/thumbnail/", "all their"],
        &["<img src=x", "\u{202e}"],
    );
    let preview = text(&place.decide(&format!("decision=quarantine&reports={id}")).await);
    has(
        &preview,
        &["These are all files that", "Quarantine all their uploads", "console/thumbnail/"],
        &[],
    );

    // A warning has words, and a reason fits; of two at once, one is sent.
    let asked = format!("decision=warn&reports={id}&confirmed=yes&close=yes");
    let long = encode(&"é".repeat(1000));
    for wrong in [format!("{asked}&text=+"), format!("{asked}&reason={long}")] {
        assert_eq!(status(&place.decide(&wrong).await), 400);
    }
    assert_eq!(place.lines("").await, [id]);
    let answers = tokio::join!(place.decide(&asked), place.decide(&asked));
    let mut answers = [status(&answers.0), status(&answers.1)];
    answers.sort_unstable();
    assert_eq!(answers, [303, 409]);
    // Who redacted a message is said.
    let rude = eve.send_text(room_id, "2", "rude").await;
    report(ann, room_id, &rude, "rude").await;
    let path = format!("/rooms/{}/redact/{}/1", encode(room_id), encode(&rude));
    eve.request("PUT", &path, Some(&json!({}))).await.ok();
    let [id] = place.lines("").await[..] else { panic!("a line") };
    let page = text(&get(server, &format!("/reports/{id}"), &place.mine).await);
    has(&page, &["Redacted by "], &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_reports_are_decided_at_once() {
    let place = place().await;
    let Place { server, ann, eve, room_id, .. } = &place;
    let bob = server.register("bob").await;
    bob.join(room_id).await.ok();
    let mut said = Vec::new();
    for (number, by) in [eve, eve, &bob].into_iter().enumerate() {
        said.push(by.send_text(room_id, &format!("m{number}"), "spam").await);
        report(ann, room_id, &said[number], "spam").await;
    }
    report_user(ann, eve, "spam").await;
    let ids = place.lines("").await;
    assert_eq!(ids.len(), 4);
    let ticked =
        |ids: &[u64]| -> String { ids.iter().map(|id| format!("&reports={id}")).collect() };
    // A report about a user has no message: it is named, and stays.
    let asked = format!("decision=redact{}", ticked(&ids));
    let preview = text(&place.decide(&asked).await);
    let stays = format!("does not apply to report {}", ids[0]);
    let not_asked = format!("name=\"reports\" value=\"{}\"", ids[0]);
    has(&preview, &[&stays, "close these reports"], &[&not_asked]);
    let of_user = format!("decision=redact&reports={}&confirmed=yes&close=yes", ids[0]);
    let answer = place.decide(&of_user).await;
    has(&text(&answer), &["This could not be done", &stays, "stay open"], &[]);
    assert_eq!(place.lines("").await, ids);
    let asked = format!("decision=redact{}", ticked(&ids[1..]));
    let answer = place.decide(&format!("{asked}&confirmed=yes&close=yes")).await;
    assert_eq!(status(&answer), 303, "{}", text(&answer));
    let page = place.see(answer.header("location").trim_start_matches(CONSOLE)).await;
    assert_eq!(page.matches("message redacted").count(), 3, "{page}");
    assert_eq!(place.lines("").await, [ids[0]]);
    for event_id in &said {
        let path = format!("/rooms/{}/event/{}", encode(room_id), encode(event_id));
        let event = ann.request("GET", &path, None).await.ok();
        assert_eq!(event["content"], json!({}), "{event}");
    }

    // Two reports about one user suspend them once.
    report_user(ann, &bob, "spam").await;
    let more = eve.send_text(room_id, "more", "spam").await;
    report(ann, room_id, &more, "spam").await;
    let ids = place.lines("").await;
    let asked = format!("decision=suspend{}", ticked(&ids));
    let preview = text(&place.decide(&asked).await);
    assert_eq!(preview.matches(" is suspended").count(), 2, "{preview}");
    assert_eq!(status(&place.decide(&format!("{asked}&confirmed=yes&close=yes")).await), 303);
    assert!(place.is_suspended(eve).await && place.is_suspended(&bob).await);
    assert_eq!(place.lines("").await, [0_u64; 0]);
    assert_eq!(status(&place.decide(&asked).await), 409);
}
