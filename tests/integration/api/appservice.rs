//! Application services, by a stand-in that behaves as each test says. A framework that bridges are
//! made with is in `clients`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{anonymous, each, user};
use crate::harness::{
    Bridge, DeviceKeys, Mood, Random, TestServer, User, encode, refused_start, until,
};

/// A server with these services.
async fn server_of(bridges: &[&Bridge]) -> TestServer {
    server_with(bridges, &[]).await
}

async fn server_with(bridges: &[&Bridge], more: &[(&str, &str)]) -> TestServer {
    let files: Vec<_> = bridges.iter().map(|bridge| bridge.file().display().to_string()).collect();
    let files = files.join(",");
    let mut settings = vec![("LOGCABIN_APPSERVICES_FILES", files.as_str())];
    settings.extend(more);
    TestServer::start_with(&settings).await
}

async fn room_with(server: &TestServer, bridge: &Bridge, ann: &User, ghost: &str) -> String {
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    join(server, bridge, ghost, &room_id).await;
    room_id
}

async fn join(server: &TestServer, bridge: &Bridge, ghost: &str, room_id: &str) {
    let path = format!("/v3/join/{}", encode(room_id));
    bridge.request(server, "POST", &path, Some(ghost), Some(&json!({}))).await.ok();
}

fn register(kind: &str, name: &str) -> Value {
    json!({ "type": kind, "username": name })
}

const OF_SERVICE: &str = "m.login.application_service";

#[tokio::test]
async fn a_service_acts_as_itself_and_as_the_users_it_has_registered() {
    let irc = Bridge::start("irc", "").await;
    let server = server_of(&[&irc]).await;
    let whoami = async |user_id: Option<&str>| {
        irc.request(&server, "GET", "/v3/account/whoami", user_id, None).await
    };
    let own = whoami(None).await.ok();
    assert_eq!(own, json!({ "user_id": "@ircbot:e2e.test" }));
    whoami(Some("@_irc_bob:e2e.test")).await.refused(403, "M_FORBIDDEN");
    let bob = irc.ghost(&server, "bob").await;
    assert_eq!(bob, "@_irc_bob:e2e.test");
    assert_eq!(whoami(Some(&bob)).await.ok()["user_id"], bob);
    for other in ["@ann:e2e.test", "@_irc_bob:elsewhere.test", "nonsense"] {
        whoami(Some(other)).await.refused(403, "M_FORBIDDEN");
    }
    // By the query, too, and by the other prefix.
    let path = "/_svc/client/v3/account/whoami?access_token=as-irc&user_id=%40_irc_bob%3Ae2e.test";
    let answer = server.http().request("GET", path, None, None).await.ok();
    assert_eq!(answer["user_id"], bob);
    let path = "/_matrix/client/v3/account/whoami";
    let answer = server.http().request("GET", path, Some("as-ird"), None).await;
    answer.refused(401, "M_UNKNOWN_TOKEN");
    // Accounts are not managed in this way.
    let body = json!({ "new_password": "a new password" });
    let answer =
        irc.request(&server, "POST", "/v3/account/password", Some(&bob), Some(&body)).await;
    answer.refused(403, "M_FORBIDDEN");
    // But it closes those that it has made, without a password.
    let body = register(OF_SERVICE, "_irc_old");
    irc.request(&server, "POST", "/v3/register", None, Some(&body)).await.ok();
    let old = Some("@_irc_old:e2e.test");
    let answer =
        irc.request(&server, "POST", "/v3/account/deactivate", old, Some(&json!({}))).await;
    assert_eq!(answer.ok(), json!({ "id_server_unbind_result": "success" }));
    let answer = irc.request(&server, "GET", "/v3/account/whoami", old, None).await;
    answer.refused(403, "M_USER_DEACTIVATED");
    // For a user of its own it does what a client does; `user_id` means nothing for one who logs
    // in.
    let ann = user(&server, "ann").await;
    let answer = ann.get(&format!("/account/whoami?user_id={}", encode(&bob))).await.ok();
    assert_eq!(answer["user_id"], ann.user_id);
}

#[tokio::test]
async fn a_service_invites_its_owner_before_the_owner_registers() {
    let (irc, xmpp) = (Bridge::start("irc", "").await, Bridge::start("xmpp", "").await);
    let server = server_of(&[&irc, &xmpp]).await;
    let owner = "@owner:e2e.test";
    let options = json!({ "invite": [owner], "is_direct": true });
    let made = irc.request(&server, "POST", "/v3/createRoom", None, Some(&options)).await.ok();
    let first = made["room_id"].as_str().expect("an id").to_owned();
    let made = irc.request(&server, "POST", "/v3/createRoom", None, Some(&json!({}))).await.ok();
    let second = made["room_id"].as_str().expect("an id").to_owned();
    let path = format!("/v3/rooms/{}/invite", encode(&second));
    irc.request(&server, "POST", &path, None, Some(&json!({ "user_id": owner }))).await.ok();
    // A user of another service is one that the service may make.
    let ghost = "@_xmpp_bob:e2e.test";
    irc.request(&server, "POST", &path, None, Some(&json!({ "user_id": ghost }))).await.ok();
    assert!(xmpp.arrived().iter().any(|arrived| arrived.path.contains("/users/")));
    // Nobody else knows that the name is free.
    let ann = user(&server, "ann").await;
    ann.post("/createRoom", options.clone()).await.refused(404, "M_NOT_FOUND");
    let owner = server.register("owner").await;
    let invites = owner.sync(None, 0, None).await["rooms"]["invite"].clone();
    assert!(invites.get(&first).is_some() && invites.get(&second).is_some(), "{invites}");
    owner.join(&first).await.ok();
}

#[tokio::test]
async fn names_in_an_exclusive_namespace_are_for_their_service_alone() {
    let (irc, xmpp) = (Bridge::start("irc", "").await, Bridge::start("xmpp", "").await);
    let server = server_of(&[&irc, &xmpp]).await;
    let http = server.http();
    for name in ["_irc_ann", "_IRC_ann", "ircbot", "_xmpp_ann"] {
        let path = format!("/register/available?username={name}");
        anonymous(&http, "GET", &path, None).await.refused(400, "M_EXCLUSIVE");
        // Before authentication, not only after it.
        let body = json!({ "username": name, "password": super::PASSWORD });
        anonymous(&http, "POST", "/register", Some(&body)).await.refused(400, "M_EXCLUSIVE");
    }
    let by_irc = async |name: &str| {
        let body = register(OF_SERVICE, name);
        irc.request(&server, "POST", "/v3/register", None, Some(&body)).await
    };
    by_irc("_xmpp_ann").await.refused(400, "M_EXCLUSIVE");
    by_irc("ann").await.refused(400, "M_EXCLUSIVE");
    by_irc("_irc_a b").await.refused(400, "M_INVALID_USERNAME");
    let made = by_irc("_irc_ann").await.ok();
    assert_eq!(made["user_id"], "@_irc_ann:e2e.test");
    // Unless it says otherwise, it is logged in, too.
    let token = made["access_token"].as_str().expect("a token");
    let path = "/_matrix/client/v3/account/whoami";
    let who = http.request("GET", path, Some(token), None).await.ok();
    assert_eq!(who["device_id"], made["device_id"]);
    by_irc("_irc_ann").await.refused(400, "M_USER_IN_USE");
    let nameless = json!({ "type": OF_SERVICE });
    let answer = irc.request(&server, "POST", "/v3/register", None, Some(&nameless)).await;
    answer.refused(400, "M_MISSING_PARAM");
    // Without a token, and with one that is not a service's.
    let body = register(OF_SERVICE, "_irc_x");
    anonymous(&http, "POST", "/register", Some(&body)).await.refused(401, "M_MISSING_TOKEN");
    let ann = user(&server, "ann").await;
    ann.post("/register", body).await.refused(401, "M_UNKNOWN_TOKEN");

    // Aliases likewise.
    let room_id = ann.create_room(json!({})).await;
    let to_room = json!({ "room_id": room_id });
    let alias = format!("/directory/room/{}", encode("#_irc_x:e2e.test"));
    ann.put(&alias, to_room.clone()).await.refused(400, "M_EXCLUSIVE");
    let room = json!({ "room_alias_name": "_irc_x" });
    ann.post("/createRoom", room).await.refused(400, "M_EXCLUSIVE");
    let by = async |bridge: &Bridge, method: &str, body: Option<&Value>| {
        bridge.request(&server, method, &format!("/v3{alias}"), None, body).await
    };
    by(&xmpp, "PUT", Some(&to_room)).await.refused(400, "M_EXCLUSIVE");
    // In its own namespace a service needs no leave of the room's.
    by(&irc, "PUT", Some(&to_room)).await.ok();
    ann.request("DELETE", &alias, None).await.refused(400, "M_EXCLUSIVE");
    by(&xmpp, "DELETE", None).await.refused(400, "M_EXCLUSIVE");
    by(&irc, "DELETE", None).await.ok();
    ann.get(&alias).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn a_service_logs_its_users_in() {
    let irc = Bridge::start("irc", "").await;
    let server = server_of(&[&irc]).await;
    let bob = irc.ghost(&server, "bob").await;
    let login = |user: &str| {
        json!({ "type": OF_SERVICE, "identifier": { "type": "m.id.user", "user": user },
                "device_id": "PUPPET" })
    };
    let by_irc =
        async |body: &Value| irc.request(&server, "POST", "/v3/login", None, Some(body)).await;
    let http = server.http();
    let flows = anonymous(&http, "GET", "/login", None).await.ok();
    assert!(each(&flows["flows"], "/type").contains(&OF_SERVICE.to_owned()), "{flows}");
    for name in [&*bob, "_irc_bob"] {
        let session = by_irc(&login(name)).await.ok();
        assert_eq!((&session["user_id"], &session["device_id"]), (&json!(bob), &json!("PUPPET")));
        let token = session["access_token"].as_str().expect("a token");
        let path = "/_matrix/client/v3/account/whoami";
        assert_eq!(http.request("GET", path, Some(token), None).await.ok()["user_id"], bob);
    }
    by_irc(&login("_irc_nobody")).await.refused(403, "M_FORBIDDEN");
    let ann = user(&server, "ann").await;
    by_irc(&login(&ann.user_id)).await.refused(400, "M_EXCLUSIVE");
    anonymous(&http, "POST", "/login", Some(&login(&bob))).await.refused(401, "M_MISSING_TOKEN");
    ann.post("/login", login(&bob)).await.refused(403, "M_FORBIDDEN");
    let path = "/_matrix/client/v3/login";
    let wrong = http.request("POST", path, Some("wrong"), Some(&login(&bob))).await;
    wrong.refused(403, "M_FORBIDDEN");
    // The token of an older session does not get in the way of any other login.
    let body = json!({ "type": "m.login.password", "password": super::PASSWORD,
        "identifier": { "type": "m.id.user", "user": ann.user_id } });
    http.request("POST", path, Some("old"), Some(&body)).await.ok();
}

#[tokio::test]
async fn a_refresh_is_for_whom_its_token_is_whatever_a_service_says() {
    let irc = Bridge::start("irc", "").await;
    let server = server_of(&[&irc]).await;
    let (ann, bob) = (user(&server, "ann").await, irc.ghost(&server, "bob").await);
    let refresh = async |token: &str| {
        let body = json!({ "refresh_token": token });
        irc.request(&server, "POST", "/v3/refresh", Some(&bob), Some(&body)).await
    };
    for token in ["as-irc", "", &*ann.access_token] {
        refresh(token).await.refused(401, "M_UNKNOWN_TOKEN");
    }
    let body = json!({
        "type": "m.login.password", "password": super::PASSWORD, "refresh_token": true,
        "identifier": { "type": "m.id.user", "user": ann.user_id },
    });
    let session = anonymous(&ann.http, "POST", "/login", Some(&body)).await;
    let refreshed = refresh(&session.ok_string("refresh_token")).await;
    let token = refreshed.ok_string("access_token");
    let path = "/_matrix/client/v3/account/whoami";
    let who = ann.http.request("GET", path, Some(&token), None).await.ok();
    assert_eq!(who["user_id"], ann.user_id);
}

#[tokio::test]
async fn a_service_says_when_something_was_sent_and_nobody_else_does() {
    let irc = Bridge::start("irc", "").await;
    let server = server_of(&[&irc]).await;
    let (ann, bob) = (user(&server, "ann").await, irc.ghost(&server, "bob").await);
    let room_id = room_with(&server, &irc, &ann, &bob).await;
    let room = encode(&room_id);
    let text = json!({ "msgtype": "m.text", "body": "long ago" });
    let path = format!("/v3/rooms/{room}/send/m.room.message/t1?ts=1234567");
    let sent = irc.request(&server, "PUT", &path, Some(&bob), Some(&text)).await;
    let sent = sent.ok_string("event_id");
    let event = async |event_id: &str| {
        ann.get_room(&room_id, &format!("/event/{}", encode(event_id))).await.ok()
    };
    assert_eq!(event(&sent).await["origin_server_ts"], 1_234_567);
    // The same transaction is the same event; of another ghost it is another one.
    let again = irc.request(&server, "PUT", &path, Some(&bob), Some(&text)).await;
    assert_eq!(again.ok_string("event_id"), sent);
    let eve = irc.ghost(&server, "eve").await;
    join(&server, &irc, &eve, &room_id).await;
    let of_eve = irc.request(&server, "PUT", &path, Some(&eve), Some(&text)).await;
    assert_ne!(of_eve.ok_string("event_id"), sent);
    let path = format!("/v3/rooms/{room}/state/org.example/x?ts=7654321");
    let state = irc.request(&server, "PUT", &path, Some(&bob), Some(&json!({}))).await;
    // Whoever may set it: here only ann may.
    state.refused(403, "M_FORBIDDEN");
    let path = format!("/v3/rooms/{room}/state/m.room.member/{}?ts=7654321", encode(&bob));
    let member = json!({ "membership": "join", "displayname": "Bob of old" });
    let state = irc.request(&server, "PUT", &path, Some(&bob), Some(&member)).await;
    assert_eq!(event(&state.ok_string("event_id")).await["origin_server_ts"], 7_654_321);
    let path = format!("/v3/rooms/{room}/send/m.room.message/t2?ts=soon");
    let answer = irc.request(&server, "PUT", &path, Some(&bob), Some(&text)).await;
    answer.refused(400, "M_INVALID_PARAM");
    // A client's word for it does not count.
    let path = format!("/rooms/{room}/send/m.room.message/t3?ts=1234567");
    let of_ann = ann.put(&path, text).await.ok_string("event_id");
    assert!(event(&of_ann).await["origin_server_ts"].as_u64() > Some(1_600_000_000_000));
}

#[tokio::test]
async fn a_service_names_the_device_and_makes_and_removes_it_without_a_password() {
    let irc = Bridge::start("irc", "").await;
    let server = server_of(&[&irc]).await;
    let bob = irc.ghost(&server, "bob").await;
    let by = async |method: &str, path: &str, body: Option<&Value>| {
        irc.request(&server, method, path, Some(&bob), body).await
    };
    for parameter in ["device_id", "org.matrix.msc3202.device_id"] {
        let path = format!("/v3/account/whoami?{parameter}=GHOST");
        by("GET", &path, None).await.refused(400, "M_UNKNOWN_DEVICE");
    }
    let name = json!({ "display_name": "a bridge" });
    by("PUT", "/v3/devices/GHOST", Some(&name)).await.ok();
    for parameter in ["device_id", "org.matrix.msc3202.device_id"] {
        let path = format!("/v3/account/whoami?{parameter}=GHOST");
        assert_eq!(by("GET", &path, None).await.ok()["device_id"], "GHOST");
    }
    assert_eq!(by("GET", "/v3/devices/GHOST", None).await.ok()["display_name"], "a bridge");
    // What only a device can do says so without one.
    let keys = DeviceKeys::of(&bob, "GHOST");
    let keys = json!({ "device_keys": keys.identity(), "one_time_keys": keys.one_time(&["A"]) });
    by("POST", "/v3/keys/upload", Some(&keys)).await.refused(400, "M_MISSING_PARAM");
    by("POST", "/v3/logout", Some(&json!({}))).await.refused(400, "M_MISSING_PARAM");
    by("POST", "/v3/keys/upload?device_id=GHOST", Some(&keys)).await.ok();
    // A sync waits, without a device as well.
    for device in ["", "&device_id=GHOST"] {
        let path = format!("/v3/sync?timeout=0{device}");
        let since = by("GET", &path, None).await.ok_string("next_batch");
        let path = format!("/v3/sync?timeout=50&since={since}{device}");
        by("GET", &path, None).await.ok();
    }
    by("DELETE", "/v3/devices/GHOST", None).await.ok();
    by("GET", "/v3/devices/GHOST", None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn a_service_is_told_what_happens_around_its_users_as_it_happens() {
    let irc = Bridge::start("irc", "").await;
    let server = server_of(&[&irc]).await;
    let (ann, bob) = (user(&server, "ann").await, irc.ghost(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "The cabin" })).await;
    ann.send_text(&room_id, "1", "before it is invited").await;
    let invite = json!({ "user_id": bob });
    ann.post(&format!("/rooms/{}/invite", encode(&room_id)), invite).await.ok();
    ann.send_text(&room_id, "2", "before it joins").await;
    join(&server, &irc, &bob, &room_id).await;
    ann.send_text(&room_id, "3", "one").await;
    ann.send_text(&room_id, "4", "two").await;
    let body = json!({ "user_id": bob, "reason": "enough" });
    ann.post(&format!("/rooms/{}/kick", encode(&room_id)), body).await.ok();
    ann.send_text(&room_id, "5", "after it left").await;
    // A room of which it is told by its alias, with nobody in it.
    let other = ann.create_room(json!({})).await;
    let alias = format!("/v3/directory/room/{}", encode("#_irc_other:e2e.test"));
    let to_room = json!({ "room_id": other });
    irc.request(&server, "PUT", &alias, None, Some(&to_room)).await.ok();
    ann.send_text(&other, "6", "by the alias").await;
    irc.request(&server, "DELETE", &alias, None, None).await.ok();
    ann.send_text(&other, "7", "without the alias").await;
    // It is told of this one last.
    let last = room_with(&server, &irc, &ann, &bob).await;
    ann.send_text(&last, "8", "last").await;
    irc.until("the last text", |irc| irc.texts().contains(&"last".to_owned())).await;
    assert_eq!(irc.texts(), ["one", "two", "by the alias", "last"]);
    let events = irc.told("events");
    let members: Vec<_> = events.iter().filter(|event| event["type"] == "m.room.member").collect();
    let memberships = each(&json!(members), "/content/membership");
    assert_eq!(memberships, ["invite", "join", "leave", "join"]);
    let invite = members[0];
    assert_eq!((&invite["room_id"], &invite["state_key"]), (&json!(room_id), &json!(bob)));
    assert_eq!(invite["sender"], ann.user_id);
    let name = invite["unsigned"]["invite_room_state"].as_array().expect("what it is invited to");
    let name = name.iter().find(|event| event["type"] == "m.room.name").expect("the name");
    assert_eq!(name["content"]["name"], "The cabin");
    assert_eq!(members[2]["unsigned"]["prev_content"]["membership"], "join");
    for arrived in irc.arrived() {
        assert_eq!((&*arrived.method, &*arrived.authorization), ("PUT", "Bearer hs-irc"));
        let id = arrived.path.strip_prefix("/_matrix/app/v1/transactions/").unwrap_or_default();
        assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()), "{}", arrived.path);
        assert!(!arrived.path.contains("hs-irc"), "{}", arrived.path);
    }
}

#[tokio::test]
async fn ephemeral_events_and_to_device_messages_are_sent_to_services_that_ask_for_them() {
    let wants = "receive_ephemeral: true";
    let (irc, xmpp) = (Bridge::start("irc", wants).await, Bridge::start("xmpp", "").await);
    let old = Bridge::start("old", "de.sorunome.msc2409.push_ephemeral: true").await;
    let server = server_of(&[&irc, &xmpp, &old]).await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    for bridge in [&irc, &xmpp, &old] {
        let ghost = bridge.ghost(&server, "bob").await;
        join(&server, bridge, &ghost, &room_id).await;
    }
    let (bob, room) = ("@_irc_bob:e2e.test", encode(&room_id));
    let event_id = ann.send_text(&room_id, "1", "hello").await;
    let presence = format!("/presence/{}/status", encode(&ann.user_id));
    ann.put(&presence, json!({ "presence": "online" })).await.ok();
    let typing = format!("/rooms/{room}/typing/{}", encode(&ann.user_id));
    ann.put(&typing, json!({ "typing": true, "timeout": 30_000 })).await.ok();
    let receipt = |kind: &str| format!("/rooms/{room}/receipt/{kind}/{}", encode(&event_id));
    ann.post(&receipt("m.read.private"), json!({})).await.ok();
    ann.post(&receipt("m.read"), json!({})).await.ok();
    let of_bob = format!("/v3{}", receipt("m.read.private"));
    irc.request(&server, "POST", &of_bob, Some(bob), Some(&json!({}))).await.ok();
    let name = json!({});
    irc.request(&server, "PUT", "/v3/devices/D", Some(bob), Some(&name)).await.ok();
    let messages = json!({ "messages": { bob: { "D": { "x": 1 } }, &ann.user_id: { "*": {} } } });
    ann.put("/sendToDevice/org.example/1", messages).await.ok();
    ann.send_text(&room_id, "2", "last").await;
    for bridge in [&irc, &xmpp, &old] {
        bridge.until("the last text", |it| it.texts().contains(&"last".to_owned())).await;
    }
    let of_type = |list: Vec<Value>, event_type: &str| -> Vec<Value> {
        list.into_iter().filter(|event| event["type"] == event_type).collect()
    };
    let typing = of_type(irc.told("ephemeral"), "m.typing");
    assert_eq!(typing[0]["room_id"], room_id);
    assert_eq!(typing[0]["content"], json!({ "user_ids": [ann.user_id] }));
    let receipts = of_type(irc.told("ephemeral"), "m.receipt");
    let content: Vec<_> = receipts.iter().map(|event| &event["content"][&event_id]).collect();
    assert_eq!(content.len(), 2, "ann's private one is hers: {content:?}");
    assert!(content[0]["m.read"][&ann.user_id]["ts"].is_u64(), "{content:?}");
    assert!(content[1]["m.read.private"][bob]["ts"].is_u64(), "{content:?}");
    let message = json!({ "type": "org.example", "sender": ann.user_id, "content": { "x": 1 },
        "to_user_id": bob, "to_device_id": "D" });
    assert_eq!(irc.told("to_device"), [message]);
    let presence = of_type(irc.told("ephemeral"), "m.presence");
    assert!(presence.iter().any(|event| event["sender"] == ann.user_id), "{presence:?}");
    // The message waits for a sync nevertheless: the service has not said that it takes it this
    // way.
    let path = "/v3/sync?device_id=D";
    let sync = irc.request(&server, "GET", path, Some(bob), None).await.ok();
    assert_eq!(sync["to_device"]["events"][0]["type"], "org.example");
    assert!(xmpp.told("ephemeral").is_empty() && xmpp.told("to_device").is_empty());
    let by_old_name = old.told("de.sorunome.msc2409.ephemeral");
    assert_eq!(of_type(by_old_name, "m.typing").len(), typing.len());
}

#[tokio::test]
async fn a_service_that_encrypts_is_told_of_devices_and_keys() {
    let wants = "receive_ephemeral: true\norg.matrix.msc3202: true";
    let irc = Bridge::start("irc", wants).await;
    let server = server_of(&[&irc]).await;
    let (ann, bob) = (user(&server, "ann").await, irc.ghost(&server, "bob").await);
    room_with(&server, &irc, &ann, &bob).await;
    irc.request(&server, "PUT", "/v3/devices/D", Some(&bob), Some(&json!({}))).await.ok();
    // It has no keys, which the service learns so that it uploads some.
    let counts = |body: &Value| body["device_one_time_keys_count"][&bob]["D"].clone();
    let unused = |body: &Value| body["device_unused_fallback_key_types"][&bob]["D"].clone();
    irc.until("the new device", |irc| {
        let mut bodies = irc.transactions().into_iter().map(|(_, body, _)| body);
        bodies.any(|body| {
            counts(&body) == json!({ "signed_curve25519": 0 }) && unused(&body) == json!([])
        })
    })
    .await;
    ann.upload_identity().await;
    let keys = json!({ "one_time_keys": DeviceKeys::of(&bob, "D").one_time(&["A"]) });
    irc.request(&server, "POST", "/v3/keys/upload?device_id=D", Some(&bob), Some(&keys)).await.ok();
    let message = json!({ "messages": { &bob: { "D": { "x": 1 } } } });
    ann.put("/sendToDevice/org.example/1", message).await.ok();
    irc.until("the message", |irc| !irc.told("to_device").is_empty()).await;
    let bodies: Vec<_> = irc.transactions().into_iter().map(|(_, body, _)| body).collect();
    let changed = |body: &Value| each_text(&body["device_lists"]["changed"]);
    assert!(bodies.iter().any(|body| changed(body).contains(&ann.user_id)), "{bodies:?}");
    let counted = json!({ "signed_curve25519": 1 });
    assert!(bodies.iter().any(|body| counts(body) == counted), "{bodies:?}");
    // It has the message: a sync does not bring it again.
    let sync = async || {
        let path = "/v3/sync?device_id=D";
        irc.request(&server, "GET", path, Some(&bob), None).await.ok()["to_device"].clone()
    };
    until("a sync does not bring it", async || {
        sync().await["events"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
}

fn each_text(list: &Value) -> Vec<String> {
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// The texts arrive each, in order; what arrives again is a whole transaction. [`Bridge::told`]
/// sees to that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_moved_whatever_the_service_and_the_server_do() {
    let mut random = Random::from_env("LOGCABIN_APPSERVICE_SEED");
    let mut irc = Bridge::start("irc", "").await;
    let mut server = server_of(&[&irc]).await;
    let (ann, bob) = (user(&server, "ann").await, irc.ghost(&server, "bob").await);
    let room_id = room_with(&server, &irc, &ann, &bob).await;
    let mut said = Vec::new();
    for round in 0..24 {
        let mood = match random.between(0, 6) {
            0 => Mood::Status(500),
            1 => Mood::Status(302),
            2 => Mood::Slow(Duration::from_millis(30)),
            3 => Mood::Dies,
            4 => {
                irc.vanish().await;
                Mood::Fine
            }
            _ => Mood::Fine,
        };
        irc.is(mood);
        for number in 0..random.between(1, 30) {
            let text = format!("{round}.{number}");
            ann.send_text(&room_id, &text, &text).await;
            said.push(text);
        }
        if random.between(0, 3) == 0 {
            server.kill9();
            server.restart().await;
        }
        irc.is(Mood::Fine);
        if random.between(0, 2) == 0 {
            irc.vanish().await;
            irc.listen().await;
        }
    }
    irc.vanish().await;
    irc.listen().await;
    irc.is(Mood::Fine);
    irc.until("the last text", |irc| irc.texts().last() == said.last()).await;
    assert_eq!(irc.texts(), said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_under_way_is_the_same_after_the_server_was_killed() {
    let irc = Bridge::start("irc", "").await;
    let mut server = server_of(&[&irc]).await;
    let (ann, bob) = (user(&server, "ann").await, irc.ghost(&server, "bob").await);
    let room_id = room_with(&server, &irc, &ann, &bob).await;
    ann.send_text(&room_id, "0", "zero").await;
    irc.until("the first text", |irc| irc.texts() == ["zero"]).await;
    irc.is(Mood::Dies);
    ann.send_text(&room_id, "1", "one").await;
    irc.until("a try", |irc| irc.texts() == ["zero", "one"]).await;
    ann.send_text(&room_id, "2", "two").await;
    server.restart().await;
    let before = irc.arrived().len();
    irc.until("another try", |irc| irc.arrived().len() > before).await;
    irc.is(Mood::Fine);
    irc.until("the rest", |irc| irc.texts() == ["zero", "one", "two"]).await;
    let tries = irc.transactions();
    let one = tries.iter().find(|(_, body, _)| body["events"][0]["content"]["body"] == "one");
    let (id, body, _) = one.expect("it was tried");
    let same: Vec<_> = tries.iter().filter(|(other, ..)| other == id).collect();
    assert!(same.len() >= 2 && same.iter().all(|(_, other, _)| other == body), "{same:?}");
    // What has arrived is not sent again by a restart.
    // Once that is noted.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = irc.arrived().len();
    server.stop();
    server.restart().await;
    ann.send_text(&room_id, "3", "three").await;
    irc.until("the newest", |irc| irc.texts().last().is_some_and(|text| text == "three")).await;
    assert_eq!(irc.arrived().len(), before + 1);
}

#[tokio::test]
async fn a_service_that_does_not_answer_delays_nobody() {
    let (stuck, fine) = (Bridge::start("stuck", "").await, Bridge::start("fine", "").await);
    let server = server_of(&[&stuck, &fine]).await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    stuck.is(Mood::Slow(Duration::from_secs(3600)));
    for bridge in [&stuck, &fine] {
        let ghost = bridge.ghost(&server, "bob").await;
        join(&server, bridge, &ghost, &room_id).await;
    }
    let began = Instant::now();
    for number in 0..200 {
        ann.send_text(&room_id, &number.to_string(), &number.to_string()).await;
    }
    fine.until("all of it", |fine| fine.texts().len() == 200).await;
    let texts: Vec<_> = (0..200).map(|number| number.to_string()).collect();
    assert_eq!(fine.texts(), texts);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(stuck.arrived().is_empty());
}

#[tokio::test]
async fn an_old_service_is_told_by_the_path_that_it_knows() {
    let irc = Bridge::start("irc", "").await;
    let server = server_with(&[&irc], &[("LOGCABIN_APPSERVICES_TOKEN_IN_QUERY", "true")]).await;
    irc.is(Mood::Old);
    let (ann, bob) = (user(&server, "ann").await, irc.ghost(&server, "bob").await);
    let room_id = room_with(&server, &irc, &ann, &bob).await;
    ann.send_text(&room_id, "1", "hello").await;
    let answered = |irc: &Bridge| irc.arrived().into_iter().rfind(|arrived| arrived.answered);
    irc.until("an answer", |irc| answered(irc).is_some()).await;
    let arrived = answered(&irc).expect("it is there");
    assert!(arrived.path.starts_with("/transactions/"), "{}", arrived.path);
    assert!(arrived.path.ends_with("?access_token=hs-irc"), "{}", arrived.path);
    assert_eq!(arrived.authorization, "Bearer hs-irc");
}

#[tokio::test]
async fn a_service_makes_aliases_and_users_when_it_is_asked_for_them() {
    let irc = Bridge::start("irc", "").await;
    let server = server_of(&[&irc]).await;
    let ann = user(&server, "ann").await;
    let get = async |path: &str| ann.get(path).await;
    let alias = encode("#_irc_logs:e2e.test");
    get(&format!("/directory/room/{alias}")).await.refused(404, "M_NOT_FOUND");
    let asked = irc.arrived().pop().expect("it was asked");
    assert_eq!(asked.path, "/_matrix/app/v1/rooms/%23_irc_logs:e2e.test");
    // What is not in its namespace it is not asked for.
    get(&format!("/directory/room/{}", encode("#logs:e2e.test"))).await.refused(404, "M_NOT_FOUND");
    get(&format!("/profile/{}", encode("@nobody:e2e.test"))).await.refused(404, "M_NOT_FOUND");
    assert_eq!(irc.arrived().len(), 1);

    let (http, token) = (server.http(), Some("as-irc"));
    let make_room = move || {
        let http = http.clone();
        async move {
            let room = json!({ "room_alias_name": "_irc_logs", "preset": "public_chat" });
            let path = "/_matrix/client/v3/createRoom";
            http.request("POST", path, token, Some(&room)).await.ok();
        }
    };
    irc.knows("/rooms/%23_irc_logs:e2e.test", make_room);
    ann.join("#_irc_logs:e2e.test").await.ok();
    get(&format!("/directory/room/{alias}")).await.ok();

    let http = server.http();
    let make_user = move || {
        let http = http.clone();
        async move {
            let body = register(OF_SERVICE, "_irc_eve");
            let path = "/_matrix/client/v3/register";
            http.request("POST", path, token, Some(&body)).await.ok();
        }
    };
    let eve = "@_irc_eve:e2e.test";
    let profile = format!("/profile/{}", encode(eve));
    get(&profile).await.refused(404, "M_NOT_FOUND");
    irc.knows("/users/@_irc_eve:e2e.test", make_user);
    let room_id = ann.create_room(json!({})).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    ann.post(&path, json!({ "user_id": eve })).await.ok();
    assert_eq!(get(&profile).await.ok()["displayname"], "_irc_eve");
    // One that does not answer leaves the question open.
    irc.is(Mood::Dies);
    let open = get(&format!("/profile/{}", encode("@_irc_x:e2e.test"))).await;
    assert_eq!(open.status, 408, "{open}");
}

#[tokio::test]
async fn a_ping_goes_there_and_back_and_says_what_is_wrong() {
    let irc = Bridge::start("irc", "").await;
    let mut xmpp = Bridge::start("xmpp", "").await;
    let deaf = Bridge::start("deaf", "").await;
    let text = std::fs::read_to_string(deaf.file()).expect("its file");
    let line = text.lines().find(|line| line.starts_with("url")).expect("its url").to_owned();
    std::fs::write(deaf.file(), text.replace(&line, "url: null")).expect("its file");
    let server = server_of(&[&irc, &xmpp, &deaf]).await;
    let ping = async |by: &Bridge, of: &str| {
        let path = format!("/v1/appservice/{of}/ping");
        let body = json!({ "transaction_id": "meow" });
        by.request(&server, "POST", &path, None, Some(&body)).await
    };
    let pong = ping(&irc, "irc").await.ok();
    assert!(pong["duration_ms"].as_u64().is_some_and(|ms| ms > 0), "{pong}");
    let arrived = irc.arrived().pop().expect("the ping");
    assert_eq!((&*arrived.method, &*arrived.path), ("POST", "/_matrix/app/v1/ping"));
    assert_eq!(arrived.body, json!({ "transaction_id": "meow" }));
    ping(&irc, "xmpp").await.refused(403, "M_FORBIDDEN");
    ping(&deaf, "deaf").await.refused(400, "M_URL_NOT_SET");
    irc.is(Mood::Status(403));
    let bad = ping(&irc, "irc").await.refused(502, "M_BAD_STATUS");
    assert_eq!((&bad["status"], &bad["body"]), (&json!(403), &json!(r#"{"error":"no"}"#)));
    xmpp.vanish().await;
    ping(&xmpp, "xmpp").await.refused(502, "M_CONNECTION_FAILED");
    let (ann, path) = (user(&server, "ann").await, "/_matrix/client/v1/appservice/irc/ping");
    let http = server.http();
    let body = json!({});
    let by_ann = http.request("POST", path, Some(&ann.access_token), Some(&body)).await;
    by_ann.refused(403, "M_FORBIDDEN");
    http.request("POST", path, None, Some(&body)).await.refused(401, "M_MISSING_TOKEN");
    xmpp.listen().await;
    xmpp.is(Mood::Slow(Duration::from_secs(3600)));
    ping(&xmpp, "xmpp").await.refused(504, "M_CONNECTION_TIMEOUT");
}

#[tokio::test]
async fn a_service_is_not_limited_unless_its_file_says_so() {
    let free = Bridge::start("free", "").await;
    let held = Bridge::start("held", "rate_limited: true").await;
    let limits = [
        ("LOGCABIN_RATE_LIMITS_ENABLED", "true"),
        ("LOGCABIN_RATE_LIMITS_USER", "1/h burst 2"),
        ("LOGCABIN_RATE_LIMITS_DEVICE", "1/h burst 2"),
        ("LOGCABIN_RATE_LIMITS_ADDRESS", "1/h burst 2"),
    ];
    let server = server_with(&[&free, &held], &limits).await;
    let many = async |bridge: &Bridge, user_id: Option<&str>| {
        let mut limited = 0;
        for _ in 0..20 {
            let path = "/v3/account/whoami";
            let answer = bridge.request(&server, "GET", path, user_id, None).await;
            limited += usize::from(answer.status == 429);
        }
        limited
    };
    for number in 0..5 {
        free.ghost(&server, &number.to_string()).await;
    }
    held.ghost(&server, "0").await;
    assert_eq!(many(&free, Some("@_free_0:e2e.test")).await, 0);
    assert_eq!(many(&held, None).await, 0, "the service itself is never limited");
    assert!(many(&held, Some("@_held_0:e2e.test")).await > 0);
}

#[tokio::test]
async fn a_registration_that_cannot_be_used_stops_the_start_and_is_named_with_its_line() {
    let (irc, same) = (Bridge::start("irc", "").await, Bridge::start("irc", "").await);
    let start = |files: String| {
        let directory = tempfile::TempDir::new().expect("a temporary directory");
        let config = directory.path().join("logcabin.toml");
        std::fs::write(&config, format!("[appservices]\nfiles = [{files}]\n")).expect("a file");
        refused_start(&[], &["--config", &config.display().to_string()])
    };
    let (file, other) = (irc.file().display().to_string(), same.file().display().to_string());
    let said = start(format!("{file:?}, {other:?}"));
    assert!(said.contains(&other) && said.contains("the same `id`"), "{said}");
    let text = std::fs::read_to_string(&file).expect("its file");
    std::fs::write(&file, text.replace("'@_irc_.*'", "'@_irc_(.*'")).expect("its file");
    let said = start(format!("{file:?}"));
    assert!(said.contains(&format!("{file}:9")) && said.contains("regular expression"), "{said}");
    let said = start(r#""/nowhere/at/all.yaml""#.to_owned());
    assert!(said.contains("/nowhere/at/all.yaml"), "{said}");
    assert!(!said.contains("hs-irc"), "{said}");
}

#[tokio::test]
async fn networks_are_described_and_searched_by_those_who_are_bridges_to_them() {
    let irc = Bridge::start("irc", "protocols: [irc]").await;
    let other = Bridge::start("other", "protocols: [irc, gone]").await;
    let server = server_of(&[&irc, &other]).await;
    let ann = user(&server, "ann").await;
    let of = |name: &str| json!({ "user_fields": ["nick"], "instances": [{ "desc": name }] });
    irc.says("/thirdparty/protocol/irc", of("one"));
    other.says("/thirdparty/protocol/irc", of("two"));
    let both = json!({
        "user_fields": ["nick"], "instances": [{ "desc": "one" }, { "desc": "two" }],
    });
    assert_eq!(ann.get("/thirdparty/protocols").await.ok(), json!({ "irc": both }));
    assert_eq!(ann.get("/thirdparty/protocol/irc").await.ok(), both);
    for absent in ["gone", "unheard-of"] {
        let answer = ann.get(&format!("/thirdparty/protocol/{absent}")).await;
        answer.refused(404, "M_NOT_FOUND");
    }
    let found = json!([{ "userid": "@_irc_bob:e2e.test", "protocol": "irc", "fields": {} }]);
    irc.says("/thirdparty/user/irc?nick=b%26b", found.clone());
    let token = format!("access_token={}", ann.access_token);
    let path = format!("/_matrix/client/v3/thirdparty/user/irc?nick=b%26b&{token}");
    assert_eq!(server.http().request("GET", &path, None, None).await.ok(), found);
    ann.get("/thirdparty/user/irc?nick=eve").await.refused(404, "M_NOT_FOUND");
    let place = json!([{ "alias": "#_irc_x:e2e.test", "protocol": "irc", "fields": {} }]);
    other.says("/thirdparty/location?alias=%23_irc_x%3Ae2e.test", place.clone());
    let path = format!("/thirdparty/location?alias={}", encode("#_irc_x:e2e.test"));
    assert_eq!(ann.get(&path).await.ok(), place);
    anonymous(&server.http(), "GET", "/thirdparty/protocols", None)
        .await
        .refused(401, "M_MISSING_TOKEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rooms_of_a_network_are_listed_by_its_service_and_apart_from_others() {
    let irc = Bridge::start("irc", "protocols: [irc]").await;
    let mut server = server_of(&[&irc]).await;
    let mut ann = user(&server, "ann").await;
    let instance = json!({ "desc": "one", "network_id": "libera" });
    irc.says("/thirdparty/protocol/irc", json!({ "instances": [instance] }));
    let told = ann.get("/thirdparty/protocol/irc").await.ok();
    let instance_id = told["instances"][0]["instance_id"].as_str().expect("an id").to_owned();
    let of_network = ann.create_room(json!({ "name": "#bridged" })).await;
    let public = ann.create_room(json!({ "visibility": "public", "name": "public" })).await;
    let path = format!("/v3/directory/list/appservice/libera/{}", encode(&of_network),);
    let body = |visibility: &str| json!({ "visibility": visibility });
    // Only for services.
    let by_users = format!("/_matrix/client{path}");
    ann.http
        .request("PUT", &by_users, Some(&ann.access_token), Some(&body("public")))
        .await
        .refused(403, "M_FORBIDDEN");
    ann.http
        .request("PUT", &by_users, None, Some(&body("public")))
        .await
        .refused(401, "M_MISSING_TOKEN");
    irc.request(&server, "PUT", &path, None, Some(&body("public"))).await.ok();
    irc.request(&server, "PUT", &path, None, Some(&body("neither")))
        .await
        .refused(400, "M_INVALID_PARAM");
    let nowhere = "/v3/directory/list/appservice/libera/!none:e2e.test";
    irc.request(&server, "PUT", nowhere, None, Some(&body("public")))
        .await
        .refused(404, "M_NOT_FOUND");
    for _ in 0..2 {
        for (asked, expected) in [
            (json!({}), vec![&public]),
            (json!({ "third_party_instance_id": instance_id }), vec![&of_network]),
            (json!({ "third_party_instance_id": "irc|other" }), vec![]),
            (json!({ "include_all_networks": true }), vec![&of_network, &public]),
        ] {
            let list = ann.post("/publicRooms", asked.clone()).await.ok();
            let chunk = list["chunk"].as_array().expect("a list").iter();
            let mut ids: Vec<_> = chunk.filter_map(|room| room["room_id"].as_str()).collect();
            let mut expected: Vec<_> = expected.into_iter().map(String::as_str).collect();
            ids.sort_unstable();
            expected.sort_unstable();
            assert_eq!(ids, expected, "{asked}");
        }
        server.restart().await;
        ann.http = server.http();
    }
    irc.request(&server, "PUT", &path, None, Some(&body("private"))).await.ok();
    let list =
        ann.post("/publicRooms", json!({ "third_party_instance_id": instance_id })).await.ok();
    assert_eq!(list["chunk"], json!([]));
}
