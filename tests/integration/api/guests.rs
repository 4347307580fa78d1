//! What guests may do (client-server API, "Guest Access").

use std::path::Path;

use logcabin::{
    decide::account::{Login, MetRequirements, Register},
    record::command::{AccountKind, TokenHash, Tokens},
};
use ruma::OwnedUserId;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{TestServer, User, encode, offline, until};

/// A log in which a server finds these guests, each with a session.
pub(crate) async fn log_with_guests(data_dir: &Path, names: &[&str]) {
    let guest = |name: &&str| {
        let user_id: OwnedUserId = format!("@{name}:e2e.test").try_into().expect("a user id");
        let tokens = Tokens { access: TokenHash::of(name), expires_ms: None, refresh: None };
        let login = Login {
            user_id: user_id.clone(),
            device_id: "GUEST".into(),
            display_name: None,
            tokens,
            verified: None,
        };
        let kind = AccountKind::Guest;
        Register {
            user_id,
            kind,
            password: None,
            display_name: None,
            login: Some(login),
            met: MetRequirements::default(),
        }
    };
    offline::decide(data_dir, names.iter().map(guest)).await;
}

pub(crate) fn guest(server: &TestServer, name: &str) -> User {
    User {
        http: server.http(),
        user_id: format!("@{name}:e2e.test"),
        access_token: name.to_owned(),
        device_id: "GUEST".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_do_what_is_listed_and_nothing_else() {
    let directory = TempDir::new().expect("a temporary directory");
    log_with_guests(directory.path(), &["gus"]).await;
    let server = TestServer::start_on(directory.path()).await;
    let (ann, gus) = (server.register("ann").await, guest(&server, "gus"));
    let whoami = gus.get("/account/whoami").await.ok();
    assert_eq!(whoami["is_guest"], true, "{whoami}");
    assert_ne!(ann.get("/account/whoami").await.ok()["is_guest"], true);

    // `private_chat` lets guests in, `public_chat` does not.
    let open = ann
        .create_room(json!({
            "preset": "public_chat",
            "initial_state": [{ "type": "m.room.guest_access",
                                "content": { "guest_access": "can_join" } }],
        }))
        .await;
    let closed = ann.create_room(json!({ "preset": "public_chat" })).await;
    for path in [format!("/rooms/{}/join", encode(&closed)), format!("/join/{}", encode(&closed))] {
        gus.post(&path, json!({})).await.refused(403, "M_GUEST_ACCESS_FORBIDDEN");
    }
    // Nor by the event itself, nor where they are invited.
    let join = json!({ "membership": "join" });
    let refused = gus.set_state(&closed, "m.room.member", &gus.user_id, &join).await;
    refused.refused(403, "M_GUEST_ACCESS_FORBIDDEN");
    ann.act(&closed, "invite", Some(&gus)).await.ok();
    gus.join(&closed).await.refused(403, "M_GUEST_ACCESS_FORBIDDEN");

    gus.join(&open).await.ok();
    let event_id = gus.send_text(&open, "1", "hello").await;
    gus.send(&open, "org.example.any", "2", &json!({})).await.ok();
    let room = |path: &str| format!("/rooms/{}{path}", encode(&open));
    for path in [
        room("/state"),
        room("/state/m.room.create"),
        room(&format!("/context/{}", encode(&event_id))),
        room(&format!("/event/{}", encode(&event_id))),
        room("/messages?dir=b"),
        room("/members"),
        room("/initialSync"),
        "/sync".to_owned(),
        "/events?timeout=0".to_owned(),
        "/devices".to_owned(),
        "/devices/GUEST".to_owned(),
    ] {
        gus.get(&path).await.ok();
    }
    let profile = |field: &str| format!("/profile/{}/{field}", encode(&gus.user_id));
    gus.put(&profile("displayname"), json!({ "displayname": "Gus" })).await.ok();
    gus.put("/devices/GUEST", json!({ "display_name": "browser" })).await.ok();
    gus.post("/keys/upload", json!({})).await.ok();
    gus.post("/keys/query", json!({ "device_keys": {} })).await.ok();
    gus.post("/keys/claim", json!({ "one_time_keys": {} })).await.ok();
    gus.put("/sendToDevice/m.x/1", json!({ "messages": {} })).await.ok();

    for (method, path) in [
        ("PUT", profile("avatar_url")),
        ("POST", "/createRoom".to_owned()),
        ("POST", room("/invite")),
        ("POST", room("/kick")),
        ("POST", format!("/knock/{}", encode(&closed))),
        ("PUT", room("/redact/%24x/1")),
        ("PUT", room(&format!("/typing/{}", encode(&gus.user_id)))),
        ("POST", room("/read_markers")),
        ("GET", "/joined_rooms".to_owned()),
        ("GET", "/capabilities".to_owned()),
        ("POST", "/user_directory/search".to_owned()),
        ("POST", format!("/user/{}/filter", encode(&gus.user_id))),
        ("PUT", format!("/user/{}/account_data/m.x", encode(&gus.user_id))),
        ("GET", "/pushrules/".to_owned()),
        ("POST", "/account/password".to_owned()),
        ("POST", "/account/deactivate".to_owned()),
        ("POST", "/keys/device_signing/upload".to_owned()),
        ("DELETE", "/devices/GUEST".to_owned()),
    ] {
        let body = match path.rsplit('/').next() {
            Some("avatar_url") => json!({ "avatar_url": "mxc://a/b" }),
            _ => json!({}),
        };
        let body = (method != "GET").then_some(body);
        let answer = gus.request(method, &path, body.as_ref()).await;
        answer.refused(403, "M_GUEST_ACCESS_FORBIDDEN");
    }
    // Whoever needs no token for it is no worse off with one.
    gus.get("/publicRooms").await.ok();

    gus.act(&open, "leave", None).await.ok();
    gus.post("/logout", json!({})).await.ok();
    gus.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_leave_a_room_that_takes_none_any_more_also_after_a_restart() {
    let directory = TempDir::new().expect("a temporary directory");
    log_with_guests(directory.path(), &["gus", "hal"]).await;
    let mut server = TestServer::start_on(directory.path()).await;
    let (mut ann, mut gus) = (server.register("ann").await, guest(&server, "gus"));
    let bob = server.register("bob").await;
    let open = json!({ "preset": "private_chat", "invite": [gus.user_id, bob.user_id] });
    let rooms = [ann.create_room(open.clone()).await, ann.create_room(open).await];
    for room_id in &rooms {
        gus.join(room_id).await.ok();
        bob.join(room_id).await.ok();
    }
    let forbidden = json!({ "guest_access": "forbidden" });
    let event = ann.set_state(&rooms[0], "m.room.guest_access", "", &forbidden).await;
    event.ok();
    has_left(&ann, &rooms[0], &gus).await;
    // A setting that was redacted says nothing, and so does not let them stay.
    let state = ann.get_room(&rooms[1], "/state").await.ok();
    let access = state.as_array().expect("a list").iter();
    let mut access = access.filter(|event| event["type"] == "m.room.guest_access");
    let event_id = access.next().expect("the setting")["event_id"].as_str().expect("an id");
    ann.put(&format!("/rooms/{}/redact/{}/1", encode(&rooms[1]), encode(event_id)), json!({}))
        .await
        .ok();
    has_left(&ann, &rooms[1], &gus).await;
    for room_id in &rooms {
        let member = ann.state(room_id, "m.room.member", &bob.user_id).await.ok();
        assert_eq!(member["membership"], "join");
    }
    // One is killed right after: the guest leaves when it runs again.
    let room_id =
        ann.create_room(json!({ "preset": "private_chat", "invite": [gus.user_id] })).await;
    gus.join(&room_id).await.ok();
    ann.set_state(&room_id, "m.room.guest_access", "", &forbidden).await.ok();
    server.restart().await;
    (ann.http, gus.http) = (server.http(), server.http());
    has_left(&ann, &room_id, &gus).await;
}

/// Waits until `user` has left the room.
async fn has_left(sees: &User, room_id: &str, user: &User) {
    until("the guest has left", async || {
        let member = sees.state(room_id, "m.room.member", &user.user_id).await.ok();
        member["membership"] == "leave"
    })
    .await;
}
