//! Users who are shadow-banned: they are answered as usual, and nobody learns of anything.

use serde_json::{Value, json};

use super::{admin, end, server, user, written_by};
use crate::administration::{command, done, failed};
use crate::harness::{Answer, TestServer, User, encode, nodes};

async fn shadow_ban(admin: &User, user: &User, method: &str) -> Answer {
    let path = format!("/v1/users/{}/shadow_ban", encode(&user.user_id));
    admin.administer(method, &path, (method == "POST").then(|| json!({}))).await
}

/// The events that the room's members see, each with what it says.
async fn seen(by: &User, room_id: &str) -> Vec<(Value, Value)> {
    let path = format!("/rooms/{}/messages?dir=f&limit=100", encode(room_id));
    let page = by.request("GET", &path, None).await.ok();
    let events = page["chunk"].as_array().expect("a chunk").iter();
    events.map(|event| (event["event_id"].clone(), event["content"].clone())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_shadow_banned_user_does_reaches_nobody_and_is_not_recorded() {
    let server = server().await;
    let admin = admin(&server).await;
    let [ann, bob, eve] =
        [user(&server, "ann").await, user(&server, "bob").await, user(&server, "eve").await];
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let own = eve.create_room(json!({ "preset": "public_chat" })).await;
    eve.join(&room_id).await.ok();
    let said = ann.send_text(&room_id, "before", "hello").await;
    let mine = eve.send_text(&room_id, "before", "before").await;
    let shown = shadow_ban(&admin, &eve, "POST").await;
    assert_eq!(shown.ok(), json!({}));
    let path = format!("/v2/users/{}", encode(&eve.user_id));
    assert_eq!(admin.administer("GET", &path, None).await.ok()["shadow_banned"], true);

    let (before, timeline) = (end(&server), seen(&ann, &room_id).await);
    let room = encode(&room_id);
    let event_id = async |method: &str, path: &str, body: Value| {
        let sent = eve.request(method, path, Some(&body)).await.ok_string("event_id");
        // As an event of a room of this version has it.
        assert_eq!((sent.len(), sent.starts_with('$'), sent.contains(':')), (44, true, false));
        sent
    };
    let text = json!({ "msgtype": "m.text", "body": "buy this" });
    let path = format!("/rooms/{room}/send/m.room.message/1");
    let sent = event_id("PUT", &path, text.clone()).await;
    assert_eq!(event_id("PUT", &path, text.clone()).await, sent, "a repetition is the same");
    let other = json!({ "msgtype": "m.text", "body": "something else" });
    assert_eq!(event_id("PUT", &path, other).await, sent, "also with another content");
    // Where anybody else is refused, so are they.
    let elsewhere = format!("/rooms/{}/send/m.room.message/9", encode("!nowhere:e2e.test"));
    eve.request("PUT", &elsewhere, Some(&text)).await.refused(403, "M_FORBIDDEN");
    let path = format!("/rooms/{room}/send/m.room.message/2");
    assert_ne!(event_id("PUT", &path, text.clone()).await, sent);
    event_id("POST", &format!("/rooms/{room}/send/m.room.message"), text.clone()).await;
    let name = json!({ "name": "buy this" });
    event_id("PUT", &format!("/rooms/{}/state/m.room.name", encode(&own)), name).await;
    let profile = json!({ "membership": "join", "displayname": "buy this" });
    let member = format!("/rooms/{room}/state/m.room.member/{}", encode(&eve.user_id));
    event_id("PUT", &member, profile).await;
    let redact = |event: &str| format!("/rooms/{room}/redact/{}/1", encode(event));
    event_id("PUT", &redact(&mine), json!({ "reason": "x" })).await;
    event_id("PUT", &redact(&said), json!({})).await;
    let later = format!("/rooms/{room}/send/m.room.message/3?org.matrix.msc4140.delay=1000");
    eve.request("PUT", &later, Some(&text)).await.ok_string("delay_id");
    for (room_id, action) in [(&own, "invite"), (&room_id, "invite"), (&room_id, "kick")] {
        let target = if action == "kick" { &ann } else { &bob };
        assert_eq!(eve.act(room_id, action, Some(target)).await.ok(), json!({}));
    }
    let upgrade = format!("/rooms/{}/upgrade", encode(&own));
    let replaced = eve.request("POST", &upgrade, Some(&json!({ "new_version": "12" }))).await;
    assert!(replaced.ok_string("replacement_room").starts_with('!'));
    let typing = format!("/rooms/{room}/typing/{}", encode(&eve.user_id));
    let types = json!({ "typing": true, "timeout": 30_000 });
    assert_eq!(eve.request("PUT", &typing, Some(&types)).await.ok(), json!({}));
    let profile = format!("/profile/{}/displayname", encode(&eve.user_id));
    let named = json!({ "displayname": "buy this" });
    assert_eq!(eve.request("PUT", &profile, Some(&named)).await.ok(), json!({}));
    let listed = format!("/directory/list/room/{}", encode(&own));
    let public = json!({ "visibility": "public" });
    assert_eq!(eve.request("PUT", &listed, Some(&public)).await.ok(), json!({}));

    if nodes::count() == 1 {
        let written = written_by(&eve, &server, before);
        let written: Vec<_> = written.iter().filter(|kind| &***kind != "device.seen").collect();
        assert!(written.is_empty(), "{written:?}");
    }
    assert_eq!(seen(&ann, &room_id).await, timeline);
    let got = bob.sync(None, 0, None).await;
    assert!(
        got["rooms"]
            .get("invite")
            .is_none_or(|all| all.as_object().is_none_or(|all| all.is_empty())),
        "{got}"
    );
    assert_ne!(ann.get(&profile).await.ok()["displayname"], "buy this");

    // They come and go, make rooms, and read.
    let invite = json!({
        "type": "m.room.member", "state_key": bob.user_id,
        "content": { "membership": "invite", "reason": "buy this" },
    });
    let room_of_own = json!({
        "invite": [bob.user_id], "visibility": "public", "initial_state": [invite],
        "room_alias_name": "buy-this",
    });
    let alone = eve.create_room(room_of_own).await;
    let rules = eve.state(&alone, "m.room.join_rules", "").await.ok();
    assert_eq!(rules["join_rule"], "public");
    let alias = "/directory/room/%23buy-this:e2e.test";
    bob.get(alias).await.refused(404, "M_NOT_FOUND");
    eve.request("PUT", alias, Some(&json!({ "room_id": alone }))).await.ok();
    bob.get(alias).await.refused(404, "M_NOT_FOUND");
    let got = bob.sync(None, 0, None).await;
    assert!(!got["rooms"].to_string().contains(&alone), "{got}");
    let goes = json!({ "reason": "buy this" });
    eve.request("POST", &format!("/rooms/{room}/leave"), Some(&goes)).await.ok();
    let left = ann.request("GET", &member, None).await.ok();
    assert_eq!((&left["membership"], left.get("reason")), (&json!("leave"), None), "{left}");
    eve.join(&room_id).await.ok();
    let goes = json!({ "membership": "leave", "reason": "buy", "displayname": "this", "x": 1 });
    eve.request("PUT", &member, Some(&goes)).await.ok();
    let left = ann.request("GET", &member, None).await.ok();
    assert_eq!(left, json!({ "membership": "leave" }));
    eve.join(&room_id).await.ok();

    assert_eq!(shadow_ban(&admin, &eve, "DELETE").await.ok(), json!({}));
    let heard = eve.send_text(&room_id, "after", "sorry").await;
    let heard = |events: Vec<(Value, Value)>| events.iter().any(|(id, _)| *id == *heard);
    assert!(heard(seen(&ann, &room_id).await));
    shadow_ban(&ann, &eve, "POST").await.refused(403, "M_FORBIDDEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_ban_is_an_act_like_others() {
    nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let (ann, eve) = (server.register("ann").await, server.register("eve").await);
    let data_dir = server.data_dir().to_owned();
    let run = |arguments: &str| command("user", &data_dir, arguments, "");
    done(run("set-admin ann"));
    let would = done(run("shadow-ban eve --dry-run"));
    assert!(would.contains("@eve:e2e.test is shadow-banned"), "{would}");
    let why = failed(run("shadow-ban ann"));
    assert!(why.contains("administrator"), "{why}");
    done(run("shadow-ban eve --reason spam"));
    assert!(failed(run("set-admin eve")).contains("shadow-banned"));
    assert!(done(run("list --shadow-banned")).contains("@eve:e2e.test"));
    let room_id = eve.create_room(json!({})).await;
    let count = async |user: &User, room_id: &str| seen(user, room_id).await.len();
    let before = count(&eve, &room_id).await;
    eve.send_text(&room_id, "1", "nothing").await;
    server.kill9();
    server.restart().await;
    let (ann, eve) = (User { http: server.http(), ..ann }, User { http: server.http(), ..eve });
    eve.send_text(&room_id, "2", "nothing").await;
    assert_eq!(count(&eve, &room_id).await, before);

    let last = {
        use logcabin::{
            record::Offset,
            socket::{Client, socket_path},
        };
        let mut client = Client::connect(&socket_path(&data_dir)).expect("the admin socket");
        let records = client.records(Offset::new(1), end(&server)).expect("records");
        let of_kind = records.map(|record| record.expect("a record"));
        let of_kind = of_kind.filter(|record| &*record.header.kind == "user.status");
        of_kind.map(|record| record.offset().get()).last().expect("a record")
    };
    let order = json!({ "act": { "record": last }, "reason": "a mistake" });
    let path = "/_logcabin/admin/v1/acts/undo";
    ann.http.request("POST", path, Some(&ann.access_token), Some(&order)).await.ok();
    eve.send_text(&room_id, "3", "something").await;
    assert_eq!(count(&eve, &room_id).await, before + 1);
    done(run("shadow-ban eve"));
    done(run("lift-shadow-ban eve"));
    eve.send_text(&room_id, "4", "something").await;
    assert_eq!(count(&eve, &room_id).await, before + 2);
    server.stop();
    let told = crate::administration::history(&data_dir);
    for part in ["shadow-banned @eve:e2e.test: spam", "lifted the shadow ban of @eve:e2e.test"] {
        assert!(told.contains(part), "no `{part}` in {told}");
    }
}
