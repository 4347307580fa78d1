//! The antispam hook, and the checks of messages.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::administration::{command, done, done_json, user_command};
use crate::harness::stand_in::{Service, reply_json};
use crate::harness::{Asked, TestServer, User, encode, refused_start};

const SECRET: &str = "a secret for the hook";

/// A service that refuses what speaks of spam, and notes what is dubious.
pub(crate) struct Antispam {
    asked: Arc<Mutex<Vec<Value>>>,
    /// How many requests it does not answer.
    fails: Arc<AtomicUsize>,
    service: Service,
    secret: tempfile::NamedTempFile,
}

fn verdict(question: &Value) -> Value {
    let text = question["request"].to_string();
    match () {
        () if text.contains("spam") => json!({ "action": "refuse", "message": "No spam here." }),
        () if text.contains("dubious") => json!({ "action": "mark" }),
        () if text.contains("shady") => json!({ "action": "shadow" }),
        () => json!({ "action": "allow" }),
    }
}

/// Whether this server asks.
fn is_signed(asked: &Asked) -> bool {
    let header = asked.headers["x-logcabin-signature"].to_str().expect("text");
    let (time, signature) = header.split_once(",v1=").expect("two parts");
    let time = time.strip_prefix("t=").expect("a time");
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("a key");
    mac.update(format!("{time}.").as_bytes());
    mac.update(&asked.bytes);
    let hex: String = mac.finalize().into_bytes().iter().map(|of| format!("{of:02x}")).collect();
    hex == signature
}

impl Antispam {
    pub(crate) async fn start() -> Self {
        let (asked, fails) = (Arc::<Mutex<Vec<Value>>>::default(), Arc::<AtomicUsize>::default());
        let (hears, failing) = (Arc::clone(&asked), Arc::clone(&fails));
        let answer = move |asked: Asked| {
            let (hears, failing) = (Arc::clone(&hears), Arc::clone(&failing));
            async move {
                assert!(is_signed(&asked), "{asked:?}");
                let left = |left: usize| left.checked_sub(1);
                if failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
                    return reply_json(500, &json!({}));
                }
                let questions = asked.body["questions"].as_array().expect("questions").clone();
                let answers: Vec<_> = questions.iter().map(verdict).collect();
                hears.lock().expect("no panic").extend(questions);
                reply_json(200, &json!({ "answers": answers }))
            }
        };
        let secret = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(secret.path(), format!("{SECRET}\n")).expect("written");
        Self { asked, fails, service: Service::start(answer).await, secret }
    }

    pub(crate) async fn server(&self, more: &[(&str, &str)]) -> TestServer {
        let url = format!("http://{}/ask", self.service.address);
        let secret = self.secret.path().display().to_string();
        let mut settings = vec![
            ("LOGCABIN_ANTISPAM_HOOK_URL", &*url),
            ("LOGCABIN_ANTISPAM_HOOK_SECRET_FILE", &*secret),
        ];
        settings.extend(more);
        TestServer::start_with(&settings).await
    }

    /// The questions at this point so far.
    pub(crate) fn at(&self, point: &str) -> Vec<Value> {
        let asked = self.asked.lock().expect("no panic");
        asked.iter().filter(|question| question["hook"] == point).cloned().collect()
    }
}

async fn text(user: &User, room_id: &str, text: &str) -> crate::harness::Answer {
    let path = format!("/rooms/{}/send/m.room.message/{}", encode(room_id), encode(text));
    user.request("PUT", &path, Some(&json!({ "msgtype": "m.text", "body": text }))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hook_is_asked_before_something_is_done_and_may_refuse_it() {
    let hook = Antispam::start().await;
    let server = hook.server(&[]).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id =
        ann.create_room(json!({ "preset": "public_chat", "invite": [bob.user_id] })).await;
    bob.join(&room_id).await.ok();
    text(&ann, &room_id, "hello").await.ok();
    let refused = text(&ann, &room_id, "buy spam").await.refused(403, "M_FORBIDDEN");
    assert_eq!(refused["error"], "No spam here.");
    text(&ann, &room_id, "dubious").await.ok();
    let page = format!("/rooms/{}/messages?dir=b&limit=20", encode(&room_id));
    let seen = bob.get(&page).await.ok().to_string();
    assert!(seen.contains("hello") && seen.contains("dubious") && !seen.contains("buy spam"));
    ann.post("/createRoom", json!({ "name": "spam" })).await.refused(403, "M_FORBIDDEN");
    let topic = json!({ "topic": "spam" });
    ann.set_state(&room_id, "m.room.topic", "", &topic).await.refused(403, "M_FORBIDDEN");
    let invite = json!({ "membership": "invite", "reason": "spam" });
    let answer = ann.set_state(&room_id, "m.room.member", "@cas:e2e.test", &invite).await;
    answer.refused(403, "M_FORBIDDEN");
    let name = format!("/profile/{}/displayname", encode(&ann.user_id));
    let spam = json!({ "displayname": "spam" });
    ann.request("PUT", &name, Some(&spam)).await.refused(403, "M_FORBIDDEN");
    let register = json!({
        "username": "spammer", "password": "correct horse", "auth": { "type": "m.login.dummy" },
    });
    let path = "/_matrix/client/v3/register";
    server.http().request("POST", path, None, Some(&register)).await.refused(403, "M_FORBIDDEN");
    let upload = "/_matrix/media/v3/upload?filename=spam.txt";
    let answer = ann.http.request("POST", upload, Some(&ann.access_token), None).await;
    answer.refused(403, "M_FORBIDDEN");

    // What it is told, and what not.
    let message = &hook.at("message")[0];
    assert_eq!(message["user_id"], ann.user_id);
    assert_eq!(message["request"]["parameters"]["roomId"], room_id);
    assert_eq!(message["request"]["parameters"]["eventType"], "m.room.message");
    assert_eq!(message["request"]["content"]["body"], "hello");
    assert!(message["account_age_ms"].as_u64().is_some_and(|age| age < 600_000), "{message}");
    assert_eq!(message["ip"], "127.0.0.1");
    assert!(!hook.at("registration").is_empty() && !hook.at("join").is_empty());
    assert_eq!(hook.at("invite").len(), 1, "{:?}", hook.at("invite"));
    let all = json!(*hook.asked.lock().expect("no panic")).to_string();
    assert!(!all.contains("correct horse") && !all.contains("m.login.dummy"), "{all}");
    assert!(!all.contains(&ann.access_token));
    let kept = done_json(command("policy", server.data_dir(), "kept-away --json", ""));
    let kept = kept["kept_away"].as_array().expect("a list").clone();
    let of = |area: &str, refused: bool| {
        kept.iter().any(|kept| {
            kept["area"] == area
                && kept["refused"] == refused
                && kept["setting"] == "antispam.hook_url"
        })
    };
    assert!(of("message", false) && of("create_room", true) && of("profile", true), "{kept:?}");

    // Many at once are asked together, and each gets its own answer.
    let texts: Vec<_> = (0..40)
        .map(|n| if n % 2 == 0 { format!("fine {n}") } else { format!("spam {n}") })
        .collect();
    let sent =
        futures_util::future::join_all(texts.iter().map(|of| text(&bob, &room_id, of))).await;
    for (number, answer) in sent.into_iter().enumerate() {
        assert_eq!(answer.status, if number % 2 == 0 { 200 } else { 403 }, "{number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hook_may_shadow_ban_and_is_not_asked_about_repetitions() {
    let hook = Antispam::start().await;
    let server = hook.server(&[]).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let first = text(&bob, &room_id, "hello").await.ok();
    let asked = hook.at("message").len();
    assert_eq!(text(&bob, &room_id, "hello").await.ok(), first);
    assert_eq!(hook.at("message").len(), asked);
    // Another message under that id is not sent, and so it need not be asked about.
    let path = format!("/rooms/{}/send/m.room.message/hello", encode(&room_id));
    let other = json!({ "msgtype": "m.text", "body": "buy spam" });
    assert_eq!(bob.request("PUT", &path, Some(&other)).await.ok(), first);

    // Sent later, it is another message.
    let later = format!("{path}?org.matrix.msc4140.delay=1000");
    bob.request("PUT", &later, Some(&other)).await.refused(403, "M_FORBIDDEN");
    let event_id = first["event_id"].as_str().expect("an id").to_owned();
    let redact = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&event_id));
    let spam = json!({ "reason": "spam" });
    bob.request("PUT", &redact, Some(&spam)).await.refused(403, "M_FORBIDDEN");

    // From the message on that the hook finds shady, what bob says reaches nobody.
    let seems = text(&bob, &room_id, "shady").await.ok();
    assert!(seems["event_id"].as_str().is_some_and(|id| id.starts_with('$')), "{seems}");
    let asked = hook.at("message").len();
    text(&bob, &room_id, "later").await.ok();
    assert_eq!(hook.at("message").len(), asked);
    assert_eq!(text(&bob, &room_id, "hello").await.ok(), first);
    text(&ann, &room_id, "end").await.ok();
    let page = format!("/rooms/{}/messages?dir=b&limit=20", encode(&room_id));
    let seen = ann.get(&page).await.ok().to_string();
    assert!(seen.contains("hello") && seen.contains("end"), "{seen}");
    for hidden in ["shady", "later", "buy spam"] {
        assert!(!seen.contains(hidden), "{seen}");
    }
    let shown = done_json(user_command(server.data_dir(), "show bob --json", ""));
    assert_eq!(shown["shadow_banned"], true, "{shown}");
    // Nobody can be shadow-banned before there is an account.
    let register = json!({
        "username": "shady", "password": "correct horse", "auth": { "type": "m.login.dummy" },
    });
    let path = "/_matrix/client/v3/register";
    server.http().request("POST", path, None, Some(&register)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_fails_is_left_alone_and_what_then_happens_is_configured() {
    let hook = Antispam::start().await;
    let server = hook.server(&[("LOGCABIN_ANTISPAM_HOOKS", "message")]).await;
    let closed =
        [("LOGCABIN_ANTISPAM_HOOKS", "message"), ("LOGCABIN_ANTISPAM_HOOK_FAILS", "closed")];
    let strict = hook.server(&closed).await;
    let (ann, eve) = (server.register("ann").await, strict.register("eve").await);
    let (open, shut) = (ann.create_room(json!({})).await, eve.create_room(json!({})).await);
    hook.fails.store(usize::MAX, Ordering::SeqCst);
    for number in 0..7 {
        text(&ann, &open, &format!("spam {number}")).await.ok();
    }
    text(&eve, &shut, "fine").await.refused(503, "M_UNKNOWN");
    // It is not waited for while it is left alone.
    let began = Instant::now();
    text(&ann, &open, "spam again").await.ok();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(hook.at("registration").is_empty(), "it is asked about messages only");
    hook.fails.store(0, Ordering::SeqCst);
    let mut number = 0;
    crate::harness::until("it is asked again", async || {
        number += 1;
        text(&ann, &open, &format!("more spam {number}")).await.status == 403
    })
    .await;

    // Without a secret, nobody could tell who asks.
    let url = ("LOGCABIN_ANTISPAM_HOOK_URL", "http://127.0.0.1:1/");
    assert!(refused_start(&[url], &[]).contains("antispam.hook_secret_file"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spam_is_noted_or_refused_by_the_checks_without_a_service() {
    let settings = [
        ("LOGCABIN_ANTISPAM_DUPLICATE_ROOMS", "2"),
        ("LOGCABIN_ANTISPAM_MENTIONS", "3"),
        ("LOGCABIN_ANTISPAM_NEW_ACCOUNT_LINKS", "2"),
    ];
    for outcome in ["mark", "refuse"] {
        let mut all = settings.to_vec();
        all.push(("LOGCABIN_ANTISPAM_CHECKS", outcome));
        let server = TestServer::start_with(&all).await;
        let eve = server.register("eve").await;
        let mut rooms = Vec::new();
        for _ in 0..3 {
            rooms.push(eve.create_room(json!({})).await);
        }
        let is_refused = async |room: &str, body: &str| text(&eve, room, body).await.status == 403;
        let refuses = outcome == "refuse";
        assert!(!is_refused(&rooms[0], "same").await && !is_refused(&rooms[1], "same").await);
        assert_eq!(is_refused(&rooms[2], "same").await, refuses);
        assert_eq!(is_refused(&rooms[0], "@a:x @b:x @c:x @d:x").await, refuses);
        assert!(!is_refused(&rooms[0], "https://x.example").await);
        assert_eq!(is_refused(&rooms[0], "https://y.example http://z.example").await, refuses);
        let said = done(command("policy", server.data_dir(), "kept-away", ""));
        let what = if refuses { "refused" } else { "noted" };
        for setting in ["duplicate_rooms", "mentions", "new_account_links"] {
            let line = format!(
                "message: {what} @eve:e2e.test, 1 time(s), by setting `antispam.{setting}`"
            );
            assert!(said.contains(&line), "{said}");
        }
        // Administrators may do as they like.
        let admin = server.register("root").await;
        done(user_command(server.data_dir(), "set-admin root", ""));
        let room_id = admin.create_room(json!({})).await;
        text(&admin, &room_id, "@a:x @b:x @c:x @d:x").await.ok();
    }
}
