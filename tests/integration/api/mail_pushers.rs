//! Mail about what was missed, by a real mail server. A gate before it decides when mail can be
//! handed over: what happens while it is closed has happened before the mail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use logcabin::log::archive::ArchiveReader;
use logcabin::record::{Command, Offset};
use serde_json::{Value, json};

use super::threepids::{add_email, start};
use super::{PASSWORD, each};
use crate::harness::mail::{Gate, MailServer, link};
use crate::harness::{Gateway, Random, TestServer, User, encode};

const SENT: &str = "sent a mail about what was missed";
const FAILED: &str = "a mail could not be sent";
const ADDRESS: &str = "ann@example.org";

/// A server whose mail goes through a gate, and two of its users, of whom the first has an address.
struct Place {
    mail: MailServer,
    gate: Gate,
    server: TestServer,
    ann: User,
    bob: User,
    /// Mails that are not about what was missed.
    before: usize,
}

impl Place {
    /// `None` after having said that the test is skipped.
    async fn new(more: &[(&str, &str)]) -> Option<Self> {
        let mail = MailServer::start("mail_pushers")?;
        let gate = Gate::start(mail.port()).await;
        let port = gate.port().to_string();
        let mut settings = vec![
            ("LOGCABIN_EMAIL_PORT", port.as_str()),
            ("LOGCABIN_PUSH_EMAIL_DELAY_SECONDS", "0"),
            ("LOGCABIN_PUSH_EMAIL_INTERVAL_SECONDS", "1"),
            ("LOGCABIN_PUSH_EMAIL_MAX_INTERVAL_SECONDS", "1"),
            ("LOGCABIN_PUSH_ALLOW_HTTP", "true"),
            ("LOGCABIN_PUSH_ALLOWED_NETWORKS", "127.0.0.0/8"),
        ];
        settings.extend(more);
        let server = start(&mail.settings(), &settings).await;
        let ann = User::register(&server.http(), "ann", PASSWORD).await;
        let bob = User::register(&server.http(), "bob", PASSWORD).await;
        add_email(&mail, &ann, ADDRESS).await;
        let before = mail.mails(ADDRESS).len();
        Some(Self { mail, gate, server, ann, bob, before })
    }

    /// A room of bob's that ann is in, too.
    async fn room(&self, name: &str) -> String {
        let options = json!({ "preset": "public_chat", "name": name });
        let room_id = self.bob.create_room(options).await;
        self.ann.join(&room_id).await.ok();
        room_id
    }

    /// The mail of this number, from 0, once the server knows that it was taken.
    async fn taken(&self, number: usize) -> Value {
        self.until_output(SENT, number + 1).await;
        self.mail.mail(ADDRESS, self.before + number)
    }

    async fn until_output(&self, words: &str, times: usize) {
        let until = Instant::now() + Duration::from_secs(120);
        while self.server.output().matches(words).count() < times {
            assert!(Instant::now() < until, "never {times} times in the output: {words}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn pusher(address: &str) -> Value {
    json!({
        "app_id": "m.email", "pushkey": address, "kind": "email", "lang": "en",
        "app_display_name": "Email Notifications", "device_display_name": address,
        "data": { "brand": "Element" },
    })
}

async fn wants_mail(user: &User) {
    user.post("/pushers/set", pusher(ADDRESS)).await.ok();
}

async fn keys(user: &User) -> Vec<String> {
    each(&user.get("/pushers").await.ok()["pushers"], "/pushkey")
}

async fn say(user: &User, room_id: &str, body: &str) -> String {
    user.send_text(room_id, &encode(&format!("txn-{body}")), body).await
}

async fn read(user: &User, room_id: &str, event_id: &str) {
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(room_id), encode(event_id));
    user.post(&path, json!({})).await.ok();
}

fn text<'a>(mail: &'a Value, part: &str) -> &'a str {
    mail[part].as_str().expect("it has this part")
}

// ---- Setting and removing ----

#[tokio::test]
async fn only_an_address_of_ones_own_gets_mail_and_only_while_it_is_that() {
    let Some(mut place) = Place::new(&[]).await else { return };
    let (ann, bob) = (&place.ann, &place.bob);
    let refused = |body: Value| async move { ann.post("/pushers/set", body).await };
    bob.post("/pushers/set", pusher(ADDRESS)).await.refused(400, "M_THREEPID_NOT_FOUND");
    refused(pusher("other@example.org")).await.refused(400, "M_THREEPID_NOT_FOUND");
    for (path, value) in [("/pushkey", "not an address"), ("/app_id", "org.example.app")] {
        let mut body = pusher(ADDRESS);
        *body.pointer_mut(path).expect("it is there") = value.into();
        refused(body).await.refused(400, "M_INVALID_PARAM");
    }
    for name in ["app_display_name", "device_display_name", "lang", "data"] {
        let mut body = pusher(ADDRESS);
        body.as_object_mut().expect("an object").remove(name);
        refused(body).await.refused(400, "M_MISSING_PARAM");
    }
    // However it is written, it is one address.
    for written in [ADDRESS, "Ann@Example.ORG"] {
        let mut body = pusher(ADDRESS);
        body["pushkey"] = written.into();
        ann.post("/pushers/set", body).await.ok();
        let mut shown = pusher(ADDRESS);
        shown["org.matrix.msc3881.enabled"] = true.into();
        assert_eq!(ann.get("/pushers").await.ok(), json!({ "pushers": [shown] }));
    }
    // It is for those who are away: it stays when a session ends, which one of an app does not.
    let second = User::login(&ann.http, "ann", PASSWORD).await;
    wants_mail(&second).await;
    second.post("/logout", json!({})).await.ok();
    place.server.restart().await;
    assert_eq!(keys(&place.ann).await, [ADDRESS]);
    let address = json!({ "medium": "email", "address": ADDRESS });
    place.ann.post("/account/3pid/delete", address).await.ok();
    assert_eq!(keys(&place.ann).await, Vec::<String>::new());
    place.ann.post("/pushers/set", pusher(ADDRESS)).await.refused(400, "M_THREEPID_NOT_FOUND");
    place.server.restart().await;
    assert_eq!(keys(&place.ann).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_server_that_sends_no_mail_takes_no_pusher_for_it() {
    let server = TestServer::start().await;
    let ann = server.register("ann").await;
    ann.post("/pushers/set", pusher(ADDRESS)).await.refused(400, "M_INVALID_PARAM");
}

// ---- What a mail says ----

#[tokio::test]
async fn a_mail_lists_missed_messages_and_its_link_unsubscribes() {
    let Some(place) = Place::new(&[]).await else { return };
    let Place { gate, server, ann, bob, .. } = &place;
    let den = place.room("Den & <b>sons</b>").await;
    say(bob, &den, "before there was a pusher").await;
    wants_mail(ann).await;
    gate.close();
    for number in 0..4 {
        say(bob, &den, &format!("earlier {number}")).await;
    }
    say(bob, &den, "Look & see: <script>alert(1)</script>").await;
    say(bob, &den, "ann: are you there?").await;
    let encrypted = json!({ "algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "SECRET",
        "session_id": "s", "sender_key": "k", "device_id": "d", "body": "SECRET" });
    for txn in ["e1", "e2"] {
        bob.send(&den, "m.room.encrypted", txn, &encrypted).await.ok();
    }
    say(ann, &den, "of one's own, in another conversation").await;
    // That has read all of it: said again.
    for body in ["one", "two", "ann: three", "<script>alert(1)</script> & <i>so on</i>"] {
        say(bob, &den, body).await;
    }
    bob.send_text(&den, "long", &"longer ".repeat(1000)).await;
    for txn in ["e3", "e4"] {
        bob.send(&den, "m.room.encrypted", txn, &encrypted).await.ok();
    }
    let invite = json!({ "preset": "private_chat", "name": "Loft", "invite": [ann.user_id] });
    bob.create_room(invite).await;
    let direct = json!({ "preset": "trusted_private_chat", "is_direct": true });
    let direct = bob.create_room(direct).await;
    bob.act(&direct, "invite", Some(ann)).await.ok();
    ann.join(&direct).await.ok();
    let picture = json!({ "msgtype": "m.image", "body": "cat.png", "url": "mxc://e2e.test/x" });
    bob.send(&direct, "m.room.message", "p", &picture).await.ok();
    gate.open();
    let mail = place.taken(0).await;
    if let Ok(directory) = std::env::var("LOGCABIN_E2E_SCREENSHOTS") {
        let path = std::path::Path::new(&directory).join("missed-mail.html");
        std::fs::write(path, text(&mail, "html")).expect("the directory can be written to");
    }
    let headers = &mail["headers"];
    assert_eq!(headers["subject"], "8 new messages and 1 invitation on e2e.test");
    assert_eq!(headers["auto-submitted"], "auto-generated");
    assert_eq!(headers["list-unsubscribe-post"], "List-Unsubscribe=One-Click");
    let plain = text(&mail, "plain").replace("\r\n", "\n");
    for said in [
        "Den & <b>sons</b>: 7 new messages\n\n  2 earlier messages are not shown.\n",
        "UTC, about you] bob (@bob:e2e.test): ann: three\n",
        "UTC] bob (@bob:e2e.test): <script>alert(1)</script> & <i>so on</i>\n",
        "UTC] bob (@bob:e2e.test) sent 2 encrypted messages\n",
        "bob: 1 new message\n",
        "UTC] bob (@bob:e2e.test) sent a picture: cat.png\n",
        "bob invited you to Loft.\n",
        "You get this mail because you asked for it in Element",
    ] {
        assert!(plain.contains(said), "{said:?} is not in {plain}");
    }
    let html = text(&mail, "html");
    for said in
        ["&lt;script&gt;alert(1)&lt;/script&gt; &amp; &lt;i&gt;so on", "Den &amp; &lt;b&gt;"]
    {
        assert!(html.contains(said), "{said:?} is not in {html}");
    }
    for unsaid in ["SECRET", "before there was", "earlier 0", "are you there", "bob:e2e.test): two"]
    {
        assert!(!plain.contains(unsaid) && !html.contains(unsaid), "{unsaid:?} is in {plain}");
    }
    assert!(!html.contains("<script>") && plain.len() < 3_000, "{plain}");

    // The link shows a page, and only its button ends anything.
    let link = link(&mail);
    let header = headers["list-unsubscribe"].as_str().expect("the header");
    assert!(header.starts_with('<') && header.ends_with(&format!("{link}>")), "{header}");
    let http = server.http();
    let page = http.raw("GET", &link, &[], "").await;
    assert_eq!(page.parts.status, 200);
    let shown = String::from_utf8_lossy(&page.bytes).into_owned();
    assert!(shown.contains(ADDRESS) && shown.contains("@ann:e2e.test"), "{shown}");
    assert!(shown.contains(&format!("action=\"{link}\"")), "{link} is not in {shown}");
    assert!(page.header("content-security-policy").contains("form-action 'self'"));
    assert_eq!(keys(ann).await, [ADDRESS]);
    for broken in
        [format!("{link}x"), link.replace("token=", "token=x"), link.replace("token", "t")]
    {
        assert_eq!(http.raw("GET", &broken, &[], "").await.parts.status, 400, "{broken}");
        assert_eq!(http.raw("POST", &broken, &[], "").await.parts.status, 400, "{broken}");
    }
    assert_eq!(keys(ann).await, [ADDRESS]);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for _ in 0..2 {
        let ended = http.raw("POST", &link, &form, "List-Unsubscribe=One-Click").await;
        assert_eq!(ended.parts.status, 200, "{}", ended.bytes.escape_ascii());
        assert_eq!(keys(ann).await, Vec::<String>::new());
    }
    let page = http.raw("GET", &link, &[], "").await;
    assert!(String::from_utf8_lossy(&page.bytes).contains("sends you no mail about messages"));
}

// ---- When ----

/// What a mail tells, of messages that begin with `m-`.
fn told(mail: &Value) -> Vec<String> {
    let words = text(mail, "plain").split_whitespace();
    words.filter(|word| word.starts_with("m-")).map(ToOwned::to_owned).collect()
}

/// The messages that the server says notify the user and are not read.
async fn unread(user: &User) -> BTreeSet<String> {
    let list = user.get("/notifications?limit=100").await.ok();
    let list = list["notifications"].as_array().expect("a list").clone();
    let unread = list.iter().filter(|told| told["read"] == json!(false));
    let body = |told: &Value| told["event"]["content"]["body"].as_str().map(str::to_owned);
    unread.filter_map(body).collect()
}

/// Whatever happens before it, and however often the server is killed, a mail tells what is unread
/// then and was in no mail before.
#[tokio::test]
async fn only_unread_messages_are_mailed_and_none_twice() {
    let mut random = Random::from_env("LOGCABIN_MAIL_SEED");
    let Some(mut place) = Place::new(&[]).await else { return };
    let rooms = [place.room("one").await, place.room("two").await, place.room("three").await];
    let rule = format!("/pushrules/global/room/{}", encode(&rooms[2]));
    place.ann.put(&rule, json!({ "actions": [] })).await.ok();
    wants_mail(&place.ann).await;
    let (mut mailed, mut number) = (BTreeSet::new(), 0);
    let mut sent: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for round in 0..4 {
        place.gate.close();
        let mut messages = 0;
        for step in 0..random.between(4, 16) {
            let room = usize::try_from(random.between(0, 3)).expect("a small number");
            let Place { ann, bob, .. } = &place;
            match random.between(0, 8) {
                0 => {
                    if let Some(last) = sent.get(&room).and_then(|sent| sent.last()) {
                        read(ann, &rooms[room], last).await;
                    }
                }
                1 => {
                    if let Some(event) = sent.get_mut(&room).and_then(Vec::pop) {
                        let (room, event) = (encode(&rooms[room]), encode(&event));
                        let path = format!("/rooms/{room}/redact/{event}/r-{round}-{step}");
                        bob.put(&path, json!({})).await.ok();
                    }
                }
                2 => place.server.restart().await,
                // No more than one mail shows of a room, with the last.
                _ if messages < 4 => {
                    let event = say(bob, &rooms[room], &format!("m-{round}-{step}")).await;
                    sent.entry(room).or_default().push(event);
                    messages += 1;
                }
                _ => {}
            }
        }
        // There is always something to tell.
        let last = say(&place.bob, &rooms[0], &format!("m-{round}-last")).await;
        sent.entry(0).or_default().push(last);
        let expected: BTreeSet<_> = unread(&place.ann).await.difference(&mailed).cloned().collect();
        place.gate.open();
        let mail = place.taken(number).await;
        number += 1;
        let told = told(&mail);
        let set: BTreeSet<_> = told.iter().cloned().collect();
        assert_eq!(set.len(), told.len(), "each once: {told:?}");
        assert_eq!(set, expected);
        mailed.extend(expected);
    }
    assert_eq!(place.mail.mails(ADDRESS).len(), place.before + number);
}

#[tokio::test]
async fn a_dead_mail_server_delays_nobody_and_messages_read_meanwhile_are_not_mailed() {
    let gateway = Gateway::start().await;
    let Some(mut place) = Place::new(&[]).await else { return };
    let room_id = place.room("Den").await;
    wants_mail(&place.ann).await;
    gateway.serves(&place.ann, "phone").await;
    place.gate.close();
    let first = say(&place.bob, &room_id, "m-read").await;
    place.until_output(FAILED, 2).await;
    let second = say(&place.bob, &room_id, "m-redacted").await;
    gateway.until_events("phone", &[first.clone(), second.clone()]).await;
    read(&place.ann, &room_id, &first).await;
    let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&second));
    place.bob.put(&path, json!({})).await.ok();
    say(&place.bob, &room_id, "m-unread").await;
    place.server.restart().await;
    place.until_output(FAILED, 3).await;
    place.gate.open();
    assert_eq!(told(&place.taken(0).await), ["m-unread"]);
}

#[tokio::test]
async fn what_was_mailed_is_known_after_a_kill_and_mails_are_counted_until_something_is_read() {
    let Some(mut place) = Place::new(&[]).await else { return };
    let room_id = place.room("Den").await;
    wants_mail(&place.ann).await;
    for (number, body) in ["m-0", "m-1", "m-2"].into_iter().enumerate() {
        let event = say(&place.bob, &room_id, body).await;
        assert_eq!(told(&place.taken(number).await), [body]);
        place.server.restart().await;
        if number == 1 {
            read(&place.ann, &room_id, &event).await;
            place.server.restart().await;
        }
    }
    let archive = place.server.data_dir().join("archive");
    let in_a_row = || -> Option<Vec<u32>> {
        let records = ArchiveReader::open(&archive).ok()?;
        let records = records.records(Offset::new(1)).filter_map(Result::ok);
        let mails = records.filter_map(|record| match record.command().ok()?? {
            Command::PusherMail(mail) => Some(mail.in_a_row),
            _ => None,
        });
        Some(mails.collect())
    };
    let until = Instant::now() + Duration::from_secs(60);
    while in_a_row().is_none_or(|mails| mails != [1, 2, 1]) {
        assert!(Instant::now() < until, "{:?}", in_a_row());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(place.mail.mails(ADDRESS).len(), place.before + 3);
}
