//! Pushers, by a stand-in of a push gateway that behaves as each test says.

use std::time::Duration;

use serde_json::{Value, json};

use super::{PASSWORD, each};
use crate::harness::{Gateway, Mood, TestServer, User, encode, until};

/// A room of the first in which all of them are.
async fn room_of(users: &[&User]) -> String {
    let room_id = users[0].create_room(json!({ "preset": "public_chat", "name": "Den" })).await;
    for other in &users[1..] {
        other.join(&room_id).await.ok();
    }
    room_id
}

async fn say(user: &User, room_id: &str, body: &str) -> String {
    user.send_text(room_id, &encode(&format!("txn-{body}")), body).await
}

async fn read(user: &User, room_id: &str, event_id: &str) {
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(room_id), encode(event_id));
    user.post(&path, json!({})).await.ok();
}

/// A pusher as `GET /pushers` shows it, which this device set.
fn as_shown(pusher: &Value, user: &User) -> Value {
    let mut shown = pusher.clone();
    shown["org.matrix.msc3881.enabled"] = true.into();
    shown["org.matrix.msc3881.device_id"] = user.device_id.as_str().into();
    shown
}

/// The keys of the user's pushers.
async fn keys(user: &User) -> Vec<String> {
    each(&user.get("/pushers").await.ok()["pushers"], "/pushkey")
}

/// Under just this name: no other test shares these servers.
async fn user(server: &TestServer, name: &str) -> User {
    User::register(&server.http(), name, PASSWORD).await
}

async fn login(server: &TestServer) -> User {
    User::login(&server.http(), "ann", PASSWORD).await
}

/// Waits until the server has given up on a notification.
async fn given_up(server: &TestServer) {
    let says = async || server.output().contains("too old to retry");
    until("a notification is given up", says).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_that_a_gateway_refuses_does_not_keep_others_from_being_sent() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    gateway.serves(&bob, "key").await;
    gateway.is(Mood::Status(400));
    say(&ann, &room_id, "refused").await;
    gateway.until("three attempts", |gateway| gateway.asked("key").len() == 3).await;
    let says = async || server.output().contains("dropping a notification that a gateway refuses");
    until("the notification is dropped", says).await;
    gateway.is(Mood::Fine);
    let taken = say(&ann, &room_id, "taken").await;
    gateway.until_events("key", &[taken]).await;
}

// ---- Setting and removing ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushers_are_set_listed_changed_and_removed_and_survive_a_restart() {
    let gateway = Gateway::start().await;
    let mut server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    assert_eq!(ann.get("/pushers").await.ok(), json!({ "pushers": [] }));
    let mut pusher = gateway.pusher("key");
    pusher["profile_tag"] = "tag".into();
    pusher["data"]["format"] = "event_id_only".into();
    ann.post("/pushers/set", pusher.clone()).await.ok();
    let before = ann.here().await;
    // Clients set theirs at each start: what is so already adds no record.
    ann.post("/pushers/set", pusher.clone()).await.ok();
    assert_eq!(ann.here().await, before);
    assert_eq!(ann.get("/pushers").await.ok(), json!({ "pushers": [as_shown(&pusher, &ann)] }));
    assert_eq!(keys(&bob).await, Vec::<String>::new());
    pusher["lang"] = "de".into();
    pusher["profile_tag"] = Value::Null;
    ann.post("/pushers/set", pusher.clone()).await.ok();
    gateway.serves(&ann, "other").await;
    pusher.as_object_mut().expect("an object").remove("profile_tag");
    server.restart().await;
    let all = [&pusher, &gateway.pusher("other")].map(|pusher| as_shown(pusher, &ann));
    assert_eq!(ann.get("/pushers").await.ok(), json!({ "pushers": all }));
    let remove = json!({ "app_id": "org.example.app", "pushkey": "key", "kind": null });
    for _ in 0..2 {
        assert_eq!(ann.post("/pushers/set", remove.clone()).await.ok(), json!({}));
        assert_eq!(keys(&ann).await, ["other"]);
    }
    // Of other users nothing is removed.
    let other = json!({ "app_id": "org.example.app", "pushkey": "other", "kind": null });
    bob.post("/pushers/set", other).await.ok();
    assert_eq!(keys(&ann).await, ["other"]);
}

#[tokio::test]
async fn a_pusher_that_cannot_be_is_refused() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let ann = user(&server, "ann").await;
    let with = |path: &str, value: Value| {
        let mut body = gateway.pusher("key");
        *body.pointer_mut(path).expect("it is there") = value;
        body
    };
    let without = |name: &str| {
        let mut body = gateway.pusher("key");
        body.as_object_mut().expect("an object").remove(name);
        body
    };
    for name in
        ["kind", "app_id", "pushkey", "app_display_name", "device_display_name", "lang", "data"]
    {
        ann.post("/pushers/set", without(name)).await.refused(400, "M_MISSING_PARAM");
    }
    ann.post("/pushers/set", with("/data", json!({}))).await.refused(400, "M_MISSING_PARAM");
    for (path, value) in [
        ("/kind", json!(1)),
        ("/app_id", json!(1)),
        ("/pushkey", json!([])),
        ("/lang", json!({})),
        ("/data", json!("x")),
        ("/data/url", json!(1)),
    ] {
        ann.post("/pushers/set", with(path, value)).await.refused(400, "M_BAD_JSON");
    }
    let path = "/_matrix/push/v1/notify";
    for (at, value) in [
        ("/kind", json!("email")),
        ("/kind", json!("pigeon")),
        ("/app_id", json!("a".repeat(65))),
        ("/app_id", json!("")),
        ("/pushkey", json!("é".repeat(257))),
        ("/pushkey", json!("")),
        ("/lang", json!("x".repeat(257))),
        ("/data/brand", json!("x".repeat(9000))),
        ("/data/url", json!("nonsense")),
        ("/data/url", json!("ftp://push.example.org/_matrix/push/v1/notify")),
        ("/data/url", json!("https://push.example.org/notify")),
        ("/data/url", json!(format!("https://ann:secret@push.example.org{path}"))),
        ("/data/url", json!(format!("https://10.0.0.1{path}"))),
        ("/data/url", json!(format!("https://[::1]{path}"))),
    ] {
        ann.post("/pushers/set", with(at, value)).await.refused(400, "M_INVALID_PARAM");
    }
    for (name, value) in [("format", json!("all")), ("format", json!(1))] {
        let mut body = gateway.pusher("key");
        body["data"][name] = value;
        ann.post("/pushers/set", body).await.refused(400, "M_INVALID_PARAM");
    }
    // What is just within.
    let mut body = with("/pushkey", json!("k".repeat(512)));
    body["app_id"] = "ü".repeat(64).into();
    ann.post("/pushers/set", body).await.ok();
    for number in 1..100 {
        gateway.serves(&ann, &number.to_string()).await;
    }
    let one_more = ann.post("/pushers/set", gateway.pusher("key")).await;
    one_more.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn without_leave_gateways_are_asked_by_https_and_outside_alone() {
    let gateway = Gateway::start().await;
    let server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    ann.post("/pushers/set", gateway.pusher("key")).await.refused(400, "M_INVALID_PARAM");
    let mut outside = gateway.pusher("key");
    outside["data"]["url"] = "https://push.example.org/_matrix/push/v1/notify".into();
    ann.post("/pushers/set", outside).await.ok();
    // A name is looked at when it is asked: this one leads to this machine.
    let server = TestServer::start_with(&[
        ("LOGCABIN_PUSH_ALLOW_HTTP", "true"),
        ("LOGCABIN_PUSH_GIVE_UP_SECONDS", "1"),
    ])
    .await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let mut local = gateway.pusher("key");
    local["data"]["url"] = gateway.url().replace("127.0.0.1", "localhost").into();
    ann.post("/pushers/set", local).await.ok();
    let room_id = room_of(&[&ann, &bob]).await;
    say(&bob, &room_id, "hello").await;
    given_up(&server).await;
    server.prints("not one of the public internet").await;
    assert_eq!(gateway.asked("key"), []);
}

#[tokio::test]
async fn a_device_that_another_user_has_now_is_told_of_theirs_alone() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cat = user(&server, "cat").await;
    gateway.serves(&ann, "key").await;
    let mut appended = gateway.pusher("key");
    appended["append"] = true.into();
    bob.post("/pushers/set", appended).await.ok();
    assert_eq!((keys(&ann).await, keys(&bob).await), (vec!["key".to_owned()], vec!["key".into()]));
    gateway.serves(&cat, "key").await;
    assert_eq!([keys(&ann).await, keys(&bob).await], [Vec::<String>::new(), Vec::new()]);
    assert_eq!(keys(&cat).await, ["key"]);
    let room_id = room_of(&[&ann, &bob, &cat]).await;
    let event = say(&ann, &room_id, "hello").await;
    gateway.until_events("key", &[event]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_device_turns_a_pusher_off_and_on() {
    let gateway = Gateway::start().await;
    let mut server = Gateway::server(&[]).await;
    let (phone, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let laptop = login(&server).await;
    let room_id = room_of(&[&bob, &phone]).await;
    gateway.serves(&phone, "key").await;
    let heard = say(&bob, &room_id, "heard").await;
    gateway.until_events("key", std::slice::from_ref(&heard)).await;
    // The laptop gives back what it was told, with one change.
    let toggle = async |enabled: bool| {
        let mut pusher = laptop.get("/pushers").await.ok()["pushers"][0].take();
        assert_eq!(pusher["org.matrix.msc3881.device_id"], phone.device_id.as_str());
        pusher["org.matrix.msc3881.enabled"] = enabled.into();
        laptop.post("/pushers/set", pusher).await.ok();
        let pusher = laptop.get("/pushers").await.ok()["pushers"][0].take();
        assert_eq!(pusher["org.matrix.msc3881.enabled"], enabled);
    };
    toggle(false).await;
    server.restart().await;
    let shown = phone.get("/pushers").await.ok()["pushers"][0].take();
    assert_eq!(shown["org.matrix.msc3881.enabled"], false);
    say(&bob, &room_id, "not heard").await;
    toggle(true).await;
    let again = say(&bob, &room_id, "heard again").await;
    gateway.until_events("key", &[heard, again]).await;
    // It is still the phone's.
    laptop.post("/logout", json!({})).await.ok();
    assert_eq!(keys(&phone).await, ["key"]);
    let mut pusher = gateway.pusher("key");
    pusher["org.matrix.msc3881.enabled"] = "no".into();
    phone.post("/pushers/set", pusher).await.refused(400, "M_BAD_JSON");
}

#[tokio::test]
async fn pushers_go_with_the_session_that_set_them() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let first = user(&server, "ann").await;
    let second = login(&server).await;
    gateway.serves(&first, "first").await;
    gateway.serves(&second, "second").await;
    second.post("/logout", json!({})).await.ok();
    assert_eq!(keys(&first).await, ["first"]);
    // A login on the same device ends the session before it.
    let third = login(&server).await;
    gateway.serves(&third, "third").await;
    let body = json!({
        "type": "m.login.password", "password": PASSWORD, "device_id": third.device_id,
        "identifier": { "type": "m.id.user", "user": "ann" },
    });
    let again = server.http().request("POST", "/_matrix/client/v3/login", None, Some(&body)).await;
    let third = User::of(&server.http(), again);
    assert_eq!(keys(&first).await, ["first"]);
    gateway.serves(&third, "third").await;
    // A new password, once without ending other sessions and once with it.
    for (logout_devices, left) in [(false, vec!["first", "third"]), (true, vec!["first"])] {
        let body = json!({
            "new_password": PASSWORD, "logout_devices": logout_devices,
            "auth": {
                "type": "m.login.password", "password": PASSWORD,
                "identifier": { "type": "m.id.user", "user": "ann" },
            },
        });
        first.post("/account/password", body).await.ok();
        assert_eq!(keys(&first).await, left);
    }
    // The account's end.
    let bob = user(&server, "bob").await;
    let room_id = room_of(&[&bob, &first]).await;
    let event = say(&bob, &room_id, "before").await;
    gateway.until_events("first", std::slice::from_ref(&event)).await;
    let auth = json!({
        "type": "m.login.password", "password": PASSWORD,
        "identifier": { "type": "m.id.user", "user": "ann" },
    });
    first.post("/account/deactivate", json!({ "auth": auth })).await.ok();
    gateway.serves(&bob, "first").await;
    assert_eq!(keys(&bob).await, ["first"]);
    say(&bob, &room_id, "after").await;
    assert_eq!(gateway.events("first"), [event]);
}

// ---- Telling ----

#[tokio::test]
async fn each_notification_arrives_once_in_order_with_all_there_is_to_say() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&bob, &ann]).await;
    say(&bob, &room_id, "before there was a pusher").await;
    gateway.serves(&ann, "key").await;
    let cat = user(&server, "cat").await;
    cat.join(&room_id).await.ok();
    // One's own notify nobody, here or elsewhere. (Later in this room they would have read the
    // others, and what is read before it is told is not told.)
    say(&ann, &room_id, "own").await;
    let other_room = room_of(&[&ann, &bob]).await;
    let mut events = Vec::new();
    for number in 0..20 {
        events.push(say(&bob, &room_id, &format!("message {number}")).await);
        say(&ann, &other_room, &format!("own {number}")).await;
    }
    events.push(say(&bob, &room_id, "ann, look").await);
    gateway.until_events("key", &events).await;
    let took = gateway.took("key");
    let of_event = |id: &str| took.iter().find(|told| told["event_id"] == id).expect("it is there");
    let first = of_event(&events[0]);
    assert_eq!(
        (&first["type"], &first["sender"], &first["room_id"], &first["content"]["body"]),
        (&json!("m.room.message"), &json!(bob.user_id), &json!(room_id), &json!("message 0"))
    );
    assert_eq!(
        (&first["room_name"], &first["sender_display_name"]),
        (&json!("Den"), &json!("bob"))
    );
    let device = &first["devices"][0];
    assert_eq!(
        (&device["app_id"], &device["data"]),
        (&json!("org.example.app"), &json!({ "brand": "b" }))
    );
    assert!(device["pushkey_ts"].as_u64().is_some_and(|seconds| seconds > 1_600_000_000));
    assert!(first.get("user_is_target").is_none(), "{first}");
    let last = of_event(&events[20]);
    assert_eq!(
        (&last["prio"], &last["devices"][0]["tweaks"]["highlight"]),
        (&json!("high"), &json!(true))
    );
    assert_eq!(of_event(&events[1])["prio"], "low");
    // An invite is of the one who is invited.
    let invite =
        cat.create_room(json!({ "preset": "private_chat", "invite": [ann.user_id] })).await;
    gateway.until("an invite", |gateway| gateway.events("key").len() > events.len()).await;
    let took = gateway.took("key");
    let told = took.iter().find(|told| told["room_id"] == invite).expect("the invite");
    assert_eq!(told["user_is_target"], true, "{told}");
}

#[tokio::test]
async fn muted_rooms_ignored_users_and_read_events_push_nothing() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cat = user(&server, "cat").await;
    gateway.serves(&ann, "key").await;
    let (loud, muted) = (room_of(&[&bob, &ann, &cat]).await, room_of(&[&bob, &ann, &cat]).await);
    let rule = format!("/pushrules/global/override/{}", encode(&muted));
    let conditions = json!([{ "kind": "event_match", "key": "room_id", "pattern": muted }]);
    ann.put(&rule, json!({ "actions": [], "conditions": conditions })).await.ok();
    let list = format!("/user/{}/account_data/m.ignored_user_list", encode(&ann.user_id));
    ann.put(&list, json!({ "ignored_users": { cat.user_id.clone(): {} } })).await.ok();
    say(&bob, &muted, "muted").await;
    say(&cat, &loud, "ignored").await;
    // Read while the gateway is not to be reached: there is no need to tell it later.
    gateway.is(Mood::Status(503));
    let seen = say(&bob, &loud, "seen").await;
    gateway.until("a try", |gateway| !gateway.asked("key").is_empty()).await;
    let redacted = say(&bob, &loud, "redacted").await;
    read(&ann, &loud, &seen).await;
    let path = format!("/rooms/{}/redact/{}/r", encode(&loud), encode(&redacted));
    bob.put(&path, json!({})).await.ok();
    let told = say(&bob, &loud, "news").await;
    gateway.is(Mood::Fine);
    gateway.until("news", |gateway| !gateway.events("key").is_empty()).await;
    let events = gateway.events("key");
    assert_eq!(events.last(), Some(&told), "{events:?}");
    // That something was redacted notifies nobody; that it was said came to nothing.
    assert!(!events.contains(&seen) && !events.contains(&redacted), "{events:?}");
}

#[tokio::test]
async fn of_an_encrypted_event_by_its_id_the_gateway_learns_only_where_it_is() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let mut pusher = gateway.pusher("ids");
    pusher["data"]["format"] = "event_id_only".into();
    ann.post("/pushers/set", pusher).await.ok();
    gateway.serves(&ann, "all").await;
    let room_id = room_of(&[&bob, &ann]).await;
    let content = json!({ "algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "xyz",
        "session_id": "s", "sender_key": "k", "device_id": "d" });
    let sent = bob.send(&room_id, "m.room.encrypted", "e1", &content).await.ok_string("event_id");
    for key in ["ids", "all"] {
        gateway.until_events(key, std::slice::from_ref(&sent)).await;
    }
    let ids = gateway.took("ids").pop().expect("a notification");
    let device = json!({ "app_id": "org.example.app", "pushkey": "ids",
        "pushkey_ts": ids["devices"][0]["pushkey_ts"],
        "data": { "brand": "b", "format": "event_id_only" } });
    let expected = json!({ "event_id": sent, "room_id": room_id, "prio": "high",
        "counts": { "unread": 1 }, "devices": [device] });
    assert_eq!(ids, expected);
    let all = gateway.took("all").pop().expect("a notification");
    assert_eq!((&all["type"], &all["content"]), (&json!("m.room.encrypted"), &content));
}

#[tokio::test]
async fn a_device_is_told_when_less_is_left_to_read() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (one, two) = (room_of(&[&bob, &ann]).await, room_of(&[&bob, &ann]).await);
    gateway.serves(&ann, "key").await;
    let mut events = Vec::new();
    for (room_id, body) in [(&one, "a"), (&one, "b"), (&two, "c")] {
        events.push(say(&bob, room_id, body).await);
    }
    gateway.until_events("key", &events).await;
    let counts: Vec<_> =
        gateway.took("key").iter().map(|told| told["counts"]["unread"].clone()).collect();
    assert_eq!(counts.last(), Some(&json!(3)), "{counts:?}");
    read(&ann, &one, &events[1]).await;
    gateway.until("a count", |gateway| gateway.counts("key") == [1]).await;
    // A message of one's own reads, too.
    say(&ann, &two, "d").await;
    gateway.until("nothing left", |gateway| gateway.counts("key") == [1, 0]).await;
    // Where nothing is left, nothing less can be.
    read(&ann, &two, &events[2]).await;
    let more = say(&bob, &one, "e").await;
    events.push(more);
    gateway.until_events("key", &events).await;
    assert_eq!(gateway.counts("key"), [1, 0]);
}

#[tokio::test]
async fn a_pusher_that_the_gateway_rejects_is_removed() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&bob, &ann]).await;
    gateway.serves(&ann, "old").await;
    gateway.serves(&ann, "new").await;
    // Of what it was not asked about, it may say what it likes.
    gateway.rejects("old");
    gateway.rejects("nobody's");
    let first = say(&bob, &room_id, "a").await;
    for key in ["old", "new"] {
        gateway.until_events(key, std::slice::from_ref(&first)).await;
    }
    until("the rejected key is gone", async || keys(&ann).await == ["new"]).await;
    let second = say(&bob, &room_id, "b").await;
    gateway.until_events("new", &[first.clone(), second]).await;
    assert_eq!(gateway.events("old"), [first]);
}

// ---- What goes wrong ----

#[tokio::test]
async fn a_slow_or_broken_gateway_delays_nobody_and_is_retried_in_order() {
    let (slow, broken) = (Gateway::start().await, Gateway::start().await);
    let fine = Gateway::start().await;
    let server = Gateway::server(&[]).await;
    let bob = user(&server, "bob").await;
    let mut users = vec![bob];
    for (name, gateway) in [("ann", &slow), ("cat", &broken), ("dan", &fine)] {
        let user = user(&server, name).await;
        gateway.serves(&user, name).await;
        users.push(user);
    }
    let room_id = room_of(&users.iter().collect::<Vec<_>>()).await;
    slow.is(Mood::Slow(Duration::from_secs(3600)));
    broken.is(Mood::Status(500));
    let mut events = Vec::new();
    for number in 0..10 {
        events.push(say(&users[0], &room_id, &format!("m{number}")).await);
    }
    fine.until_events("dan", &events).await;
    assert_eq!(slow.took("ann"), Vec::<Value>::new());
    broken.until("two tries", |gateway| gateway.asked("cat").len() >= 2).await;
    let tried: Vec<_> =
        broken.asked("cat").iter().map(|(told, _)| told["event_id"].clone()).collect();
    assert!(tried.iter().all(|id| *id == json!(events[0])), "one after the other: {tried:?}");
    broken.is(Mood::Dies);
    broken.until("a hang-up", |gateway| gateway.asked("cat").len() > tried.len()).await;
    broken.is(Mood::Fine);
    broken.until_events("cat", &events).await;
}

#[tokio::test]
async fn what_a_dead_gateway_does_not_take_is_given_up_in_time() {
    let gateway = Gateway::start().await;
    let server = Gateway::server(&[("LOGCABIN_PUSH_GIVE_UP_SECONDS", "2")]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&bob, &ann]).await;
    gateway.serves(&ann, "key").await;
    gateway.is(Mood::Status(502));
    say(&bob, &room_id, "old").await;
    given_up(&server).await;
    gateway.is(Mood::Fine);
    let new = say(&bob, &room_id, "new").await;
    gateway.until_events("key", &[new]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_told_twice_over_a_restart_and_nothing_left_out() {
    let (gateway, dead) = (Gateway::start().await, Gateway::start().await);
    let mut server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cat = user(&server, "cat").await;
    let room_id = room_of(&[&bob, &ann, &cat]).await;
    gateway.serves(&ann, "key").await;
    dead.serves(&cat, "dead").await;
    dead.is(Mood::Status(503));
    let mut events = Vec::new();
    for round in 0..3 {
        for number in 0..5 {
            events.push(say(&bob, &room_id, &format!("{round} {number}")).await);
        }
        // Some of them may be under way.
        server.stop();
        server.restart().await;
    }
    gateway.until_events("key", &events).await;
    // One who is behind, and only that one, goes on where it was.
    dead.is(Mood::Fine);
    dead.until_events("dead", &events).await;
    server.stop();
    server.restart().await;
    events.push(say(&bob, &room_id, "last").await);
    gateway.until_events("key", &events).await;
    dead.until_events("dead", &events).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_nothing_is_left_out_and_the_order_is_kept() {
    let gateway = Gateway::start().await;
    let mut server = Gateway::server(&[]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&bob, &ann]).await;
    gateway.serves(&ann, "key").await;
    gateway.is(Mood::Slow(Duration::from_millis(30)));
    let mut events = Vec::new();
    for round in 0..4 {
        for number in 0..6 {
            events.push(say(&bob, &room_id, &format!("{round} {number}")).await);
        }
        gateway.until("some of it", |gateway| !gateway.events("key").is_empty()).await;
        server.restart().await;
    }
    let last = events.last().expect("an event").clone();
    gateway.until("the last", |gateway| gateway.events("key").contains(&last)).await;
    // Told again is what came since the last note, in the same order.
    let told = gateway.events("key");
    let mut known: Vec<String> = Vec::new();
    for id in &told {
        if !known.contains(id) {
            known.push(id.clone());
        }
    }
    assert_eq!(known, events, "all of them, first told in order");
}
