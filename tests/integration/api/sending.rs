//! Sending messages: transactions, limits, redactions.

use serde_json::{Value, json};

use super::{PASSWORD, anonymous, each, next_batch, server, string, texts, user};
use crate::harness::{Answer, TestServer, User, encode, until};

fn text(body: &str) -> Value {
    json!({ "msgtype": "m.text", "body": body })
}

async fn send(user: &User, room_id: &str, txn_id: &str) -> String {
    user.send_text(room_id, txn_id, "hello").await
}

async fn redact(user: &User, room_id: &str, event_id: &str, txn_id: &str) -> Answer {
    let path = format!("/rooms/{}/redact/{}/{txn_id}", encode(room_id), encode(event_id));
    user.put(&path, json!({ "reason": "because" })).await
}

async fn event(user: &User, room_id: &str, event_id: &str) -> Answer {
    user.get_room(room_id, &format!("/event/{}", encode(event_id))).await
}

/// A public room of the first user with the second in it.
async fn room_of_two(ann: &User, bob: &User) -> String {
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    room_id
}

#[tokio::test]
async fn only_those_in_the_room_send_and_only_with_the_power_for_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.send(&room_id, "m.room.message", "t", &text("x")).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    send(&bob, &room_id, "t").await;
    let mut levels = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    levels["events"]["m.sticker"] = 10.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    bob.send(&room_id, "m.sticker", "t2", &text("x")).await.refused(403, "M_FORBIDDEN");
    send(&bob, &room_id, "t3").await;
    levels["events_default"] = 10.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    bob.send(&room_id, "m.room.message", "t4", &text("x")).await.refused(403, "M_FORBIDDEN");
    bob.set_state(&room_id, "m.room.power_levels", "", &levels).await.refused(403, "M_FORBIDDEN");
    let answer = bob.send("!none:e2e.test", "m.room.message", "t5", &text("x")).await;
    answer.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_user_who_sent_before_may_not_send_after_losing_the_power_for_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let mut number = 0;
    let mut attempt = async |allowed: bool| {
        // Twice, because the first one may be remembered.
        for _ in 0..2 {
            number += 1;
            let answer =
                bob.send(&room_id, "m.room.message", &number.to_string(), &text("x")).await;
            if allowed { drop(answer.ok()) } else { drop(answer.refused(403, "M_FORBIDDEN")) }
        }
    };
    let before = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    let levels = async |change: Value| {
        let mut levels = before.clone();
        for (key, value) in change.as_object().expect("an object") {
            levels[key] = value.clone();
        }
        ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    };
    attempt(true).await;
    levels(json!({ "events_default": 1 })).await;
    attempt(false).await;
    levels(json!({ "events_default": 1, "users": { &ann.user_id: 100, &bob.user_id: 1 } })).await;
    attempt(true).await;
    levels(json!({ "events": { "m.room.message": 2 } })).await;
    attempt(false).await;
    levels(json!({})).await;
    attempt(true).await;
    ann.post(&format!("/rooms/{room_id}/kick"), json!({ "user_id": bob.user_id })).await.ok();
    attempt(false).await;
    bob.join(&room_id).await.ok();
    attempt(true).await;
    ann.post(&format!("/rooms/{room_id}/ban"), json!({ "user_id": bob.user_id })).await.ok();
    attempt(false).await;
    // The rules look at the content of power levels, whether they are state or not.
    let levels = json!({ "users": { "no user": 1 } });
    for id in ["levels", "again"] {
        let answer = ann.send(&room_id, "m.room.power_levels", id, &levels).await;
        answer.refused(403, "M_FORBIDDEN");
    }
}

#[tokio::test]
async fn old_clients_send_and_redact_without_transactions() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let post = async |user: &User, path: &str, body: Value| {
        user.post(&format!("/rooms/{}/{path}", encode(&room_id)), body).await
    };
    // Each request is an event of its own.
    let one = post(&ann, "send/m.room.message", text("a")).await.ok_string("event_id");
    let two = post(&ann, "send/m.room.message", text("a")).await.ok_string("event_id");
    assert_ne!(one, two);
    let seen = event(&bob, &room_id, &two).await.ok();
    assert_eq!((&seen["content"], &seen["sender"]), (&text("a"), &json!(ann.user_id)));
    assert!(seen["unsigned"].get("transaction_id").is_none(), "{seen}");

    let redact = format!("redact/{}", encode(&one));
    post(&bob, &redact, json!({})).await.refused(403, "M_FORBIDDEN");
    let by = post(&ann, &redact, json!({ "reason": "because" })).await.ok_string("event_id");
    let seen = event(&bob, &room_id, &one).await.ok();
    assert_eq!(seen["content"], json!({}));
    let because = &seen["unsigned"]["redacted_because"];
    assert_eq!(
        (&because["event_id"], &because["content"]["reason"]),
        (&json!(by), &json!("because"))
    );
    assert_eq!(seen["unsigned"]["redacted_by"], by);

    for (path, body, status, code) in [
        ("send/m.room.message", json!([]), 400, "M_BAD_JSON"),
        ("send/m.room.message", text(&"x".repeat(70_000)), 413, "M_TOO_LARGE"),
        ("send/m.room.redaction", json!({}), 400, "M_MISSING_PARAM"),
        ("redact/none", json!({}), 400, "M_INVALID_PARAM"),
        (&redact, json!({ "reason": 5 }), 400, "M_BAD_JSON"),
    ] {
        post(&ann, path, body).await.refused(status, code);
    }
    let nowhere = "/rooms/!none:e2e.test/send/m.room.message";
    ann.post(nowhere, text("x")).await.refused(403, "M_FORBIDDEN");
    let path = format!("/rooms/{}/send/m.room.message", encode(&room_id));
    anonymous(&server.http(), "POST", &path, Some(&text("x")))
        .await
        .refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn an_event_larger_than_65536_bytes_is_413() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let fits = text(&"x".repeat(64_000));
    let event_id = ann.send(&room_id, "m.room.message", "t1", &fits).await.ok_string("event_id");
    assert_eq!(event(&ann, &room_id, &event_id).await.ok()["content"], fits);
    for (txn, body) in [("t2", "x".repeat(65_536)), ("t3", "\u{1f600}".repeat(17_000))] {
        let answer = ann.send(&room_id, "m.room.message", txn, &text(&body)).await;
        answer.refused(413, "M_TOO_LARGE");
    }
    let state = json!({ "name": "x".repeat(65_536) });
    ann.set_state(&room_id, "m.room.name", "", &state).await.refused(413, "M_TOO_LARGE");
}

#[tokio::test]
async fn types_and_state_keys_have_255_bytes_at_most() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let (longest, longer) = ("x".repeat(255), "x".repeat(256));
    ann.send(&room_id, &longest, "t1", &json!({})).await.ok();
    ann.set_state(&room_id, &longest, &longest, &json!({})).await.ok();
    for answer in [
        ann.send(&room_id, &longer, "t2", &json!({})).await,
        ann.set_state(&room_id, &longer, "", &json!({})).await,
        ann.set_state(&room_id, "m.x", &longer, &json!({})).await,
        ann.set_state(&room_id, "m.x", &"\u{e4}".repeat(128), &json!({})).await,
    ] {
        assert!(matches!(answer.status, 400 | 413), "{answer}");
    }
}

#[tokio::test]
async fn numbers_that_canonical_json_lacks_are_bad_json() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    for content in [
        json!({ "x": 1.5 }),
        json!({ "x": [{ "y": 1e30 }] }),
        json!({ "x": 9_007_199_254_740_992_i64 }),
        json!({ "x": -9_007_199_254_740_992_i64 }),
    ] {
        ann.send(&room_id, "m.x", "t", &content).await.refused(400, "M_BAD_JSON");
        ann.set_state(&room_id, "m.x", "", &content).await.refused(400, "M_BAD_JSON");
    }
    let content = json!({ "x": 9_007_199_254_740_991_i64, "y": null, "z": "\u{1f600}\n\"\\" });
    let event_id = ann.send(&room_id, "m.x", "t", &content).await.ok_string("event_id");
    assert_eq!(event(&ann, &room_id, &event_id).await.ok()["content"], content);
}

#[tokio::test]
async fn a_transaction_sends_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let first = send(&ann, &room_id, "t").await;
    assert_eq!(send(&ann, &room_id, "t").await, first);
    // What it said the second time is not looked at.
    assert_eq!(ann.send_text(&room_id, "t", "another").await, first);
    let timeline = ann.get_room(&room_id, "/messages?dir=b&limit=50").await.ok();
    assert_eq!(texts(&timeline["chunk"]), ["hello"]);

    let other_room = ann.create_room(json!({})).await;
    assert_ne!(send(&ann, &other_room, "t").await, first);
    let other_type = ann.send(&room_id, "m.sticker", "t", &text("x")).await.ok_string("event_id");
    assert_ne!(other_type, first);
    assert_ne!(send(&bob, &room_id, "t").await, first);
    assert_ne!(send(&ann.another_device().await, &room_id, "t").await, first);
}

#[tokio::test]
async fn the_same_transaction_sent_at_once_many_times_sends_once() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let racers: Vec<_> = (0..16)
        .map(|_| {
            let (ann, room_id) = (ann.clone(), room_id.clone());
            tokio::spawn(async move { send(&ann, &room_id, "t").await })
        })
        .collect();
    let mut ids = std::collections::HashSet::new();
    for racer in racers {
        ids.insert(racer.await.expect("a racer does not panic"));
    }
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn a_transaction_outlives_a_token_and_a_restart_but_not_a_logout() {
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let login = json!({
        "type": "m.login.password", "user": ann.user_id, "password": PASSWORD,
        "refresh_token": true, "device_id": "PHONE",
    });
    let session = anonymous(&ann.http, "POST", "/login", Some(&login)).await.ok();
    let phone = User { access_token: string(&session, "access_token"), ..ann.clone() };
    let first = send(&phone, &room_id, "t").await;
    let refresh = json!({ "refresh_token": session["refresh_token"] });
    let refreshed = anonymous(&ann.http, "POST", "/refresh", Some(&refresh)).await.ok();
    let phone = User { access_token: string(&refreshed, "access_token"), ..phone };
    assert_eq!(send(&phone, &room_id, "t").await, first);
    let redaction = redact(&phone, &room_id, &first, "r").await.ok_string("event_id");

    server.restart().await;
    let phone = User { http: server.http(), ..phone };
    assert_eq!(send(&phone, &room_id, "t").await, first);
    assert_eq!(redact(&phone, &room_id, &first, "r").await.ok_string("event_id"), redaction);

    phone.post("/logout", json!({})).await.ok();
    let session = anonymous(&phone.http, "POST", "/login", Some(&login)).await.ok();
    let phone = User { access_token: string(&session, "access_token"), ..phone };
    assert_ne!(send(&phone, &room_id, "t").await, first);
}

#[tokio::test]
async fn a_transaction_id_is_told_to_the_device_that_sent_it_alone() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let other = ann.another_device().await;
    let room_id = room_of_two(&ann, &bob).await;
    let since = ann.here().await;
    let event_id = send(&ann, &room_id, "my-txn").await;
    for (viewer, expected) in [(&ann, json!("my-txn")), (&other, Value::Null), (&bob, Value::Null)]
    {
        let sync = viewer.news(&since).await;
        let in_sync = &sync["rooms"]["join"][&room_id]["timeline"]["events"][0];
        assert_eq!(in_sync["event_id"], event_id.as_str());
        assert_eq!(in_sync["unsigned"]["transaction_id"], expected);
        let alone = event(viewer, &room_id, &event_id).await.ok();
        assert_eq!(alone["unsigned"]["transaction_id"], expected);
        let page = viewer.get_room(&room_id, "/messages?dir=b&limit=1").await.ok();
        assert_eq!(page["chunk"][0]["unsigned"]["transaction_id"], expected);
    }
}

#[tokio::test]
async fn one_redacts_ones_own_events_and_with_power_those_of_others() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let (of_ann, of_bob) = (send(&ann, &room_id, "1").await, send(&bob, &room_id, "1").await);
    redact(&bob, &room_id, &of_ann, "r1").await.refused(403, "M_FORBIDDEN");
    assert_eq!(event(&bob, &room_id, &of_ann).await.ok()["content"]["body"], "hello");
    let own = redact(&bob, &room_id, &of_bob, "r2").await.ok_string("event_id");
    let again = send(&bob, &room_id, "2").await;
    redact(&ann, &room_id, &again, "r3").await.ok();
    for (gone, by) in [(&of_bob, &bob), (&again, &ann)] {
        let event = event(&bob, &room_id, gone).await.ok();
        assert_eq!(event["content"], json!({}));
        assert_eq!(event["unsigned"]["redacted_because"]["sender"], by.user_id.as_str());
        let reason = &event["unsigned"]["redacted_because"]["content"]["reason"];
        assert_eq!(reason, "because");
    }
    let redaction = event(&bob, &room_id, &own).await.ok();
    assert_eq!(redaction["type"], "m.room.redaction");
    assert_eq!(redaction["redacts"], of_bob.as_str());
    assert_eq!(redaction["content"]["redacts"], of_bob.as_str(), "newer clients look here");
    redact(&ann, &room_id, "$none", "r4").await.refused(404, "M_NOT_FOUND");
    let elsewhere = ann.create_room(json!({})).await;
    redact(&ann, &elsewhere, &of_ann, "r5").await.refused(404, "M_NOT_FOUND");
    let stranger = user(&server, "cas").await;
    redact(&stranger, &room_id, &of_ann, "r6").await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn redacted_content_is_gone_wherever_one_looks() {
    const SECRET: &str = "the-secret-text";
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "visibility": "public" })).await;
    bob.join(&room_id).await.ok();
    let since = bob.here().await;
    let member = json!({ "membership": "join", "displayname": SECRET });
    let mut redacted = vec![
        ann.send_text(&room_id, "m", SECRET).await,
        ann.set_state(&room_id, "m.room.name", "", &json!({ "name": SECRET }))
            .await
            .ok_string("event_id"),
        ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": SECRET }))
            .await
            .ok_string("event_id"),
        ann.set_state(&room_id, "m.room.member", &ann.user_id, &member).await.ok_string("event_id"),
    ];
    let message = redacted[0].clone();
    for (index, event_id) in redacted.drain(..).enumerate() {
        redact(&ann, &room_id, &event_id, &format!("r{index}")).await.ok();
    }
    ann.act(&room_id, "invite", Some(&cas)).await.ok();
    let id = encode(&message);
    let from_beginning = cas.sync(None, 0, None).await.to_string();
    let mut answers = vec![
        bob.news(&since).await.to_string(),
        bob.sync(None, 0, None).await.to_string(),
        from_beginning,
        bob.get("/publicRooms?limit=1000").await.ok().to_string(),
        bob.post("/publicRooms", json!({ "limit": 1000 })).await.ok().to_string(),
    ];
    for path in [
        "/messages?dir=b&limit=100",
        "/messages?dir=f&limit=100",
        "/state",
        "/state/m.room.name",
        "/state/m.room.topic",
        "/members",
        "/joined_members",
        &format!("/state/m.room.member/{}", encode(&ann.user_id)),
        &format!("/event/{id}"),
        &format!("/context/{id}?limit=100"),
    ] {
        answers.push(bob.get_room(&room_id, path).await.ok().to_string());
    }
    for answer in answers {
        assert!(!answer.contains(SECRET), "{answer}");
    }
    // What comes after a redacted state event does not show it either.
    let since = bob.here().await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "new" })).await.ok();
    let news = bob.news(&since).await;
    assert!(!news.to_string().contains(SECRET), "{news}");
}

#[tokio::test]
async fn moderators_see_what_was_redacted_until_it_is_erased() {
    let settings = [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "86400")];
    let server = TestServer::start_with(&settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let cas = server.register("cas").await;
    let room_id = room_of_two(&ann, &bob).await;
    let gone = bob.send_text(&room_id, "1", "hello").await;
    let there = bob.send_text(&room_id, "2", "still here").await;
    redact(&bob, &room_id, &gone, "r").await.ok();
    let unredacted = async |user: &User, event_id: &str| {
        let query = "fi.mau.msc2815.include_unredacted_content=true";
        user.get_room(&room_id, &format!("/event/{}?{query}", encode(event_id))).await
    };
    let event = unredacted(&ann, &gone).await.ok();
    assert_eq!(event["content"]["body"], "hello");
    assert_eq!(event["unsigned"]["redacted_because"]["sender"], bob.user_id.as_str());
    assert_eq!(unredacted(&ann, &there).await.ok()["content"]["body"], "still here");
    // Not for whoever has no power, or is not in the room; not for whoever does not ask.
    unredacted(&bob, &gone).await.refused(403, "M_FORBIDDEN");
    assert_eq!(unredacted(&bob, &there).await.ok()["content"]["body"], "still here");
    unredacted(&cas, &gone).await.refused(404, "M_NOT_FOUND");
    let path = format!("/event/{}", encode(&gone));
    assert_eq!(ann.get_room(&room_id, &path).await.ok()["content"], json!({}));
    ann.post(&format!("/rooms/{}/leave", encode(&room_id)), json!({})).await.ok();
    unredacted(&ann, &gone).await.refused(403, "M_FORBIDDEN");

    // Once it is erased, nobody sees it.
    let settings =
        [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];
    let server = TestServer::start_with(&settings).await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let gone = ann.send_text(&room_id, "1", "hello").await;
    redact(&ann, &room_id, &gone, "r").await.ok();
    let query = "fi.mau.msc2815.include_unredacted_content=true";
    let path = format!("/event/{}?{query}", encode(&gone));
    let erased = async || ann.get_room(&room_id, &path).await.status == 404;
    until("the content is erased", erased).await;
    let error = ann.get_room(&room_id, &path).await;
    let error = error.refused(404, "FI.MAU.MSC2815_UNREDACTED_CONTENT_DELETED");
    assert_eq!(error["fi.mau.msc2815.content_keep_ms"], 0);
}

#[tokio::test]
async fn a_redacted_name_names_no_room() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let name = ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "x" })).await;
    redact(&ann, &room_id, &name.ok_string("event_id"), "r").await.ok();
    let sync = ann.sync(None, 0, None).await;
    let summary = &sync["rooms"]["join"][&room_id]["summary"];
    assert_eq!(summary["m.heroes"], json!([bob.user_id]), "{summary}");
}

#[tokio::test]
async fn a_redaction_shows_in_a_waiting_sync() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of_two(&ann, &bob).await;
    let event_id = send(&ann, &room_id, "t").await;
    let since = next_batch(&bob.sync(None, 0, None).await);
    redact(&ann, &room_id, &event_id, "r").await.ok();
    let news = bob.sync(Some(&since), 10_000, None).await;
    let timeline = &news["rooms"]["join"][&room_id]["timeline"]["events"];
    assert_eq!(each(timeline, "/type"), ["m.room.redaction"]);
    assert_eq!(each(timeline, "/redacts"), [event_id]);
}

#[tokio::test]
async fn a_redaction_sent_as_an_event_redacts() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "room_version": "11" })).await;
    let event_id = send(&ann, &room_id, "t").await;
    let content = json!({ "redacts": event_id });
    ann.send(&room_id, "m.room.redaction", "r", &content).await.ok();
    assert_eq!(event(&ann, &room_id, &event_id).await.ok()["content"], json!({}));
}

#[tokio::test]
async fn a_sender_has_255_bytes_at_most_and_keys_of_the_content_any_number() {
    let server = server().await;
    let http = server.http();
    let register = |bytes: usize| {
        // With `@` and `:e2e.test` around it.
        let name = super::unique("long");
        let name = format!("{name}{}", "x".repeat(bytes - 10 - name.len()));
        let body = json!({
            "username": name, "password": PASSWORD, "auth": { "type": "m.login.dummy" },
        });
        let http = http.clone();
        async move { anonymous(&http, "POST", "/register", Some(&body)).await }
    };
    register(256).await.refused(400, "M_INVALID_USERNAME");
    let longest = User::of(&http, register(255).await);
    assert_eq!(longest.user_id.len(), 255);
    let room_id = longest.create_room(json!({})).await;
    assert!(room_id.len() <= 255);
    let mut content = text("x");
    content["k".repeat(30_000)] = "v".repeat(30_000).into();
    let sent = longest.send(&room_id, "m.room.message", "t", &content).await;
    let event_id = sent.ok_string("event_id");
    assert!(event_id.len() <= 255);
    let event = event(&longest, &room_id, &event_id).await.ok();
    assert_eq!((&event["sender"], &event["content"]), (&json!(longest.user_id), &content));
}
