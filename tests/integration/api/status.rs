//! Administrators, locked and suspended accounts (client-server API, "Account locking", "Account
//! suspension", "Server Administration").

use serde_json::json;

use super::{PASSWORD, anonymous, next_batch, server, unique, user};
use crate::administration::{done, user_command};
use crate::harness::{Answer, TestServer, User, encode};

fn run(server: &TestServer, arguments: &str) {
    done(user_command(server.data_dir(), arguments, ""));
}

pub(super) async fn admin(server: &TestServer) -> User {
    let admin = user(server, "admin").await;
    run(server, &format!("set-admin {}", admin.user_id));
    admin
}

impl User {
    /// A request under `/_matrix/client/v1/admin`.
    pub(crate) async fn moderate(
        &self,
        what: &str,
        of: &str,
        set: Option<serde_json::Value>,
    ) -> Answer {
        let path = format!("/_matrix/client/v1/admin/{what}/{}", encode(of));
        let method = if set.is_some() { "PUT" } else { "GET" };
        self.http.request(method, &path, Some(&self.access_token), set.as_ref()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_user_can_do_nothing_but_log_out_and_keeps_their_sessions() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let since = bob.here().await;
    let waiting = {
        let bob = bob.clone();
        tokio::spawn(async move { bob.try_sync(Some(&since), 30_000, None).await })
    };
    admin.moderate("lock", &bob.user_id, Some(json!({ "locked": true }))).await.ok();
    assert_eq!(admin.moderate("lock", &bob.user_id, None).await.ok(), json!({ "locked": true }));
    // The sync that waited is told, too.
    let told = waiting.await.expect("no panic").expect("an answer");
    assert_eq!(told.refused(401, "M_USER_LOCKED")["soft_logout"], true);
    for (method, path) in [
        ("GET", "/account/whoami"),
        ("GET", "/sync"),
        ("GET", "/capabilities"),
        ("POST", "/createRoom"),
        ("POST", "/account/deactivate"),
    ] {
        let body = (method == "POST").then(|| json!({}));
        let refused = bob.request(method, path, body.as_ref()).await;
        let refused = refused.refused(401, "M_USER_LOCKED");
        assert_eq!(refused["soft_logout"], true, "{method} {path}");
    }
    let body = json!({
        "type": "m.login.password", "password": PASSWORD,
        "identifier": { "type": "m.id.user", "user": bob.user_id },
    });
    let refused = anonymous(&server.http(), "POST", "/login", Some(&body)).await;
    assert_eq!(refused.refused(401, "M_USER_LOCKED")["soft_logout"], true);
    // A wrong password learns nothing of it.
    let mut wrong = body.clone();
    wrong["password"] = "a wrong one".into();
    let refused = anonymous(&server.http(), "POST", "/login", Some(&wrong)).await;
    refused.refused(403, "M_FORBIDDEN");

    admin.moderate("lock", &bob.user_id, Some(json!({ "locked": false }))).await.ok();
    bob.get("/account/whoami").await.ok();
    admin.moderate("lock", &bob.user_id, Some(json!({ "locked": true }))).await.ok();
    bob.post("/logout", json!({})).await.ok();
    admin.moderate("lock", &bob.user_id, Some(json!({ "locked": false }))).await.ok();
    bob.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_user_reads_leaves_and_redacts_their_own_and_does_nothing_that_others_see() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let bob = user(&server, "bob").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let other_room = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let levels = json!({ "users": { &ann.user_id: 100, &bob.user_id: 50 } });
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let own = bob.send_text(&room_id, "1", "mine").await;
    let others = ann.send_text(&room_id, "1", "hers").await;
    let invited = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    let delay = format!(
        "/rooms/{}/send/m.room.message/later?org.matrix.msc4140.delay=86400000",
        encode(&room_id)
    );
    let delayed = bob.put(&delay, json!({ "msgtype": "m.text", "body": "later" })).await;
    let delay_id = delayed.ok_string("delay_id");
    admin.moderate("suspend", &bob.user_id, Some(json!({ "suspended": true }))).await.ok();
    let told = admin.moderate("suspend", &bob.user_id, None).await.ok();
    assert_eq!(told, json!({ "suspended": true }));

    // What they may not.
    let room = |path: &str| format!("/rooms/{}{path}", encode(&room_id));
    for (method, path, body) in [
        ("PUT", room("/send/m.room.message/2"), json!({ "msgtype": "m.text", "body": "x" })),
        ("PUT", room("/state/m.room.topic"), json!({ "topic": "x" })),
        ("POST", format!("/join/{}", encode(&other_room)), json!({})),
        ("POST", format!("/rooms/{}/join", encode(&invited)), json!({})),
        ("POST", format!("/knock/{}", encode(&other_room)), json!({})),
        ("POST", room("/invite"), json!({ "user_id": admin.user_id })),
        ("POST", room("/kick"), json!({ "user_id": ann.user_id })),
        ("POST", "/createRoom".to_owned(), json!({})),
        ("PUT", format!("/profile/{}/displayname", bob.user_id), json!({ "displayname": "x" })),
        (
            "PUT",
            format!("/profile/{}/avatar_url", bob.user_id),
            json!({ "avatar_url": "mxc://a/b" }),
        ),
        ("PUT", room(&format!("/typing/{}", bob.user_id)), json!({ "typing": true })),
        ("PUT", room(&format!("/redact/{}/r1", encode(&others))), json!({})),
    ] {
        let refused = bob.request(method, &path, Some(&body)).await;
        refused.refused(403, "M_USER_SUSPENDED");
    }
    // What was scheduled before is not sent either.
    let send =
        format!("/_matrix/client/unstable/org.matrix.msc4140/delayed_events/{delay_id}/send");
    let body = json!({});
    let refused = bob.http.request("POST", &send, None, Some(&body)).await;
    refused.refused(403, "M_USER_SUSPENDED");

    // What they may.
    let sync = bob.sync(None, 0, None).await;
    assert!(sync["rooms"]["join"].get(&room_id).is_some(), "{sync}");
    let news = ann.send_text(&room_id, "2", "still read").await;
    assert!(bob.news(&next_batch(&sync)).await.to_string().contains(&news));
    bob.get(&room("/messages?dir=b")).await.ok();
    bob.put(&room(&format!("/redact/{}/r2", encode(&own))), json!({})).await.ok();
    let data = format!("/user/{}/account_data/m.secret_storage.key.x", bob.user_id);
    bob.put(&data, json!({ "a": 1 })).await.ok();
    bob.post("/keys/upload", json!({})).await.ok();
    let receipt = room(&format!("/receipt/m.read.private/{}", encode(&news)));
    bob.post(&receipt, json!({})).await.ok();
    bob.act(&invited, "leave", None).await.ok();
    bob.act(&room_id, "leave", None).await.ok();
    let another = bob.another_device().await;
    another.post("/createRoom", json!({})).await.refused(403, "M_USER_SUSPENDED");
    another.post("/logout", json!({})).await.ok();

    admin.moderate("suspend", &bob.user_id, Some(json!({ "suspended": false }))).await.ok();
    bob.join(&other_room).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_administrators_moderate_and_not_each_other() {
    let server = server().await;
    let (admin, other) = (admin(&server).await, admin(&server).await);
    let (bob, cas) = (user(&server, "bob").await, user(&server, "cas").await);
    let nobody = format!("@{}:e2e.test", unique("nobody"));
    for (what, set) in
        [("lock", json!({ "locked": true })), ("suspend", json!({ "suspended": true }))]
    {
        // Whoever may not learns nothing of who there is.
        for of in [&cas.user_id, &nobody, &"@a:elsewhere.test".to_owned()] {
            bob.moderate(what, of, Some(set.clone())).await.refused(403, "M_FORBIDDEN");
            bob.moderate(what, of, None).await.refused(403, "M_FORBIDDEN");
        }
        for (of, status, code) in [
            (&admin.user_id, 403, "M_FORBIDDEN"),
            (&other.user_id, 403, "M_FORBIDDEN"),
            (&nobody, 404, "M_NOT_FOUND"),
            (&"@a:elsewhere.test".to_owned(), 400, "M_INVALID_PARAM"),
        ] {
            admin.moderate(what, of, Some(set.clone())).await.refused(status, code);
            admin.moderate(what, of, None).await.refused(status, code);
        }
        admin.moderate(what, &cas.user_id, Some(json!({}))).await.refused(400, "M_BAD_JSON");
    }
    run(&server, &format!("deactivate {} --yes", cas.user_id));
    let set = Some(json!({ "locked": true }));
    admin.moderate("lock", &cas.user_id, set).await.refused(404, "M_NOT_FOUND");

    let told = |answer: serde_json::Value| answer["capabilities"]["m.account_moderation"].clone();
    let moderation = told(admin.get("/capabilities").await.ok());
    assert_eq!(moderation, json!({ "lock": true, "suspend": true }));
    assert_ne!(told(bob.get("/capabilities").await.ok())["lock"], true);

    let whois = format!("/admin/whois/{}", bob.user_id);
    let own = bob.get(&whois).await.ok();
    assert_eq!(own, admin.get(&whois).await.ok());
    assert!(own["devices"].get(&bob.device_id).is_some(), "{own}");
    let other = format!("/admin/whois/{}", admin.user_id);
    bob.get(&other).await.refused(403, "M_FORBIDDEN");
    admin.get(&format!("/admin/whois/{nobody}")).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_survives_a_restart() {
    let mut server = TestServer::start().await;
    let (mut admin, mut bob) = (server.register("admin").await, server.register("bob").await);
    run(&server, "set-admin admin");
    admin.moderate("lock", &bob.user_id, Some(json!({ "locked": true }))).await.ok();
    server.restart().await;
    (admin.http, bob.http) = (server.http(), server.http());
    bob.get("/account/whoami").await.refused(401, "M_USER_LOCKED");
    admin.moderate("lock", &bob.user_id, Some(json!({ "locked": false }))).await.ok();
    bob.get("/account/whoami").await.ok();
}
