//! The end of an account (client-server API, "Account deactivation").

use logcabin::decide::status::Deactivate;
use serde_json::{Value, json};

use super::{PASSWORD, anonymous, each, server, string, unique, user};
use crate::administration::{done, user_command};
use crate::crash::assert_verifies;
use crate::harness::{Answer, Direction, TestServer, User, encode, offline, until};

fn proof(of: &User, password: &str) -> Value {
    json!({
        "type": "m.login.password", "password": password,
        "identifier": { "type": "m.id.user", "user": of.user_id },
    })
}

impl User {
    /// Closes the account for good; `body` is what is asked for besides.
    async fn deactivate(&self, mut body: Value) -> Answer {
        body["auth"] = proof(self, PASSWORD);
        self.post("/account/deactivate", body).await
    }
}

async fn refused_login(of: &User) {
    let mut body = proof(of, PASSWORD);
    let answer = anonymous(&of.http, "POST", "/login", Some(&body)).await;
    answer.refused(403, "M_USER_DEACTIVATED");
    body["password"] = "another".into();
    let answer = anonymous(&of.http, "POST", "/login", Some(&body)).await;
    answer.refused(403, "M_USER_DEACTIVATED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_account_is_gone_and_its_name_stays_taken() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let other_device = bob.another_device().await;
    bob.upload_identity().await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let invited = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    let later = format!(
        "/rooms/{}/send/m.room.message/later?org.matrix.msc4140.delay=1000000",
        encode(&room_id)
    );
    let later = bob.put(&later, json!({ "body": "later" })).await.ok_string("delay_id");
    let text = bob.send_text(&room_id, "1", "still here").await;
    let before = ann.here().await;

    // It takes a proof, of the right user.
    let asked = bob.post("/account/deactivate", json!({})).await;
    assert_eq!(asked.status, 401);
    assert!(asked.body["flows"].is_array(), "{asked}");
    let body = json!({ "auth": proof(&bob, "wrong") });
    bob.post("/account/deactivate", body).await.refused(401, "M_FORBIDDEN");
    let body = json!({ "auth": proof(&ann, PASSWORD) });
    bob.post("/account/deactivate", body).await.refused(401, "M_FORBIDDEN");
    bob.get("/account/whoami").await.ok();

    let closed = bob.deactivate(json!({})).await.ok();
    assert_eq!(closed, json!({ "id_server_unbind_result": "success" }));
    for session in [&bob, &other_device] {
        session.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    }
    refused_login(&bob).await;
    let name = &bob.user_id[1..bob.user_id.find(':').expect("a user id")];
    let available = format!("/register/available?username={name}");
    anonymous(&ann.http, "GET", &available, None).await.refused(400, "M_USER_IN_USE");
    let body = json!({ "username": name, "password": PASSWORD });
    anonymous(&ann.http, "POST", "/register", Some(&body)).await.refused(400, "M_USER_IN_USE");

    // Rooms, invites, scheduled events, keys, the directory.
    for room in [&room_id, &invited] {
        let member = ann.state(room, "m.room.member", &bob.user_id).await.ok();
        assert_eq!(member["membership"], "leave", "{room}");
    }
    let act = format!("/_matrix/client/unstable/org.matrix.msc4140/delayed_events/{later}/send");
    let send = ann.http.request("POST", &act, None, Some(&json!({}))).await;
    assert_eq!(send.status, 409, "{send}");
    let found = ann.post("/keys/query", json!({ "device_keys": { &bob.user_id: [] } })).await.ok();
    assert_eq!(found["device_keys"][&bob.user_id], json!({}), "{found}");
    let search = json!({ "search_term": bob.user_id });
    let found = ann.post("/user_directory/search", search).await.ok();
    assert_eq!(found["results"], json!([]));
    let news = ann.news(&before).await;
    assert!(news.to_string().contains(&bob.user_id), "{news}");
    ann.act(&room_id, "invite", Some(&bob)).await.refused(403, "M_FORBIDDEN");
    // Without `erase`, what they said stays, for those who come later too.
    let cas = user(&server, "cas").await;
    cas.join(&room_id).await.ok();
    let event = cas.get_room(&room_id, &format!("/event/{}", encode(&text))).await.ok();
    assert_eq!(event["content"]["body"], "still here");
    anonymous(&ann.http, "GET", &format!("/profile/{}", bob.user_id), None).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_erased_user_sent_is_kept_from_those_who_had_not_seen_it() {
    let mut server = TestServer::start().await;
    let (mut ann, bob) = (server.register("ann").await, server.register("bob").await);
    let (mut cas, mut dee) = (server.register("cas").await, server.register("dee").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    for user in [&bob, &cas] {
        user.join(&room_id).await.ok();
    }
    bob.put(&format!("/profile/{}/displayname", bob.user_id), json!({ "displayname": "Bobby" }))
        .await
        .ok();
    let word = unique("secretword");
    let text = bob.send_text(&room_id, "1", &word).await;
    let levels = json!({ "users": { &ann.user_id: 100, &bob.user_id: 50 } });
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    bob.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "of the room" })).await.ok();
    cas.act(&room_id, "leave", None).await.ok();
    bob.deactivate(json!({ "erase": true })).await.ok();
    anonymous(&ann.http, "GET", &format!("/profile/{}", bob.user_id), None)
        .await
        .refused_or_empty();

    for restarted in [false, true] {
        if restarted {
            server.restart().await;
            for user in [&mut ann, &mut cas, &mut dee] {
                user.http = server.http();
            }
        }
        dee.join(&room_id).await.ok();
        cas.join(&room_id).await.ok();
        let content = async |user: &User| {
            let path = format!("/event/{}", encode(&text));
            user.get_room(&room_id, &path).await.ok()["content"].clone()
        };
        assert_eq!(content(&ann).await["body"], word);
        assert_eq!(content(&cas).await["body"], word);
        assert_eq!(content(&dee).await, json!({}));
        // By every way.
        let pages = [
            dee.messages(&room_id, None, None, Direction::Back, 100).await,
            dee.sync(None, 0, Some(r#"{"room":{"timeline":{"limit":100}}}"#)).await,
            dee.get_room(&room_id, &format!("/context/{}?limit=50", encode(&text))).await.ok(),
            dee.get_room(&room_id, "/initialSync?limit=100").await.ok(),
        ];
        for page in pages {
            let page = page.to_string();
            assert!(page.contains(&text), "{page}");
            assert!(!page.contains(&word) && !page.contains("Bobby"), "{page}");
        }
        let search = json!({ "search_categories": { "room_events": { "search_term": word } } });
        let found = async |user: &User| {
            let found = user.post("/search", search.clone()).await.ok();
            each(&found["search_categories"]["room_events"]["results"], "/result/event_id")
        };
        assert_eq!(found(&ann).await, std::slice::from_ref(&text));
        assert!(found(&dee).await.is_empty());
        // What the room is, stays.
        let topic = dee.state(&room_id, "m.room.topic", "").await.ok();
        assert_eq!(string(&topic, "topic"), "of the room");
    }
}

impl Answer {
    /// The profile of nobody, or an empty one.
    #[track_caller]
    fn refused_or_empty(self) {
        assert!(self.status == 404 || self.body == json!({}), "{self}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_rooms_are_left_in_the_end_wherever_the_server_is_killed() {
    crate::harness::nodes::one_server!("it kills the only process");
    let mut server = TestServer::start().await;
    let (mut ann, mut bob) = (server.register("ann").await, server.register("bob").await);
    let cas = server.register("cas").await;
    let mut rooms = Vec::new();
    for number in 0..20 {
        let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
        bob.join(&room_id).await.ok();
        if number % 2 == 0 {
            ann.act(&room_id, "invite", Some(&cas)).await.ok();
        }
        rooms.push(room_id);
    }
    // Killed while it leaves: at the first room that is left.
    let closing = {
        let bob = bob.clone();
        tokio::spawn(async move {
            let body = json!({ "auth": proof(&bob, PASSWORD) });
            let _ = bob.try_request("POST", "/account/deactivate", Some(&body)).await;
        })
    };
    until("a room is left", async || left(&ann, &rooms, &bob).await > 0).await;
    server.kill9();
    closing.await.expect("no panic");
    // And closed without a single room being left, as when it is killed a moment earlier.
    close_only(server.data_dir(), &cas).await;
    server.restart().await;
    (ann.http, bob.http) = (server.http(), server.http());
    refused_login(&bob).await;
    until("every room is left", async || {
        left(&ann, &rooms, &bob).await == 20 && left(&ann, &rooms, &cas).await == 10
    })
    .await;
    server.stop();
    assert_verifies(server.data_dir());
}

async fn left(sees: &User, rooms: &[String], user: &User) -> usize {
    let mut left = 0;
    for room_id in rooms {
        let member = sees.state(room_id, "m.room.member", &user.user_id).await;
        left += usize::from(member.body["membership"] == "leave");
    }
    left
}

/// Closes an account in the log of a server that does not run, and leaves no room.
async fn close_only(data_dir: &std::path::Path, user: &User) {
    let user_id = user.user_id.as_str().try_into().expect("a user id");
    let (erase, messages, media) = (false, false, false);
    let closing = Deactivate { user_id, erase, messages, media, reason: None, ts: 0 };
    assert_eq!(offline::decide(data_dir, [closing]).await, [true], "it was open");
}

#[tokio::test]
async fn an_account_is_closed_without_a_session_by_its_password() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let close = async |auth: Value| {
        let body = json!({ "auth": auth });
        anonymous(&ann.http, "POST", "/account/deactivate", Some(&body)).await
    };
    let asked = anonymous(&ann.http, "POST", "/account/deactivate", Some(&json!({}))).await;
    assert_eq!(asked.status, 401);
    assert_eq!(asked.body["flows"], json!([{ "stages": ["m.login.password"] }]));
    close(proof(&ann, "wrong")).await.refused(401, "M_FORBIDDEN");
    let nobody = User { user_id: "@nobody:e2e.test".to_owned(), ..ann.clone() };
    close(proof(&nobody, PASSWORD)).await.refused(401, "M_FORBIDDEN");
    // What a locked user may not do with a session, they may not do without one.
    let locked = user_command(server.data_dir(), &format!("lock {}", ann.user_id), "");
    done(locked);
    close(proof(&ann, PASSWORD)).await.refused(401, "M_USER_LOCKED");
    done(user_command(server.data_dir(), &format!("unlock {}", ann.user_id), ""));
    ann.get("/account/whoami").await.ok();

    let closed = close(proof(&ann, PASSWORD)).await.ok();
    assert_eq!(closed, json!({ "id_server_unbind_result": "success" }));
    ann.get("/account/whoami").await.refused(401, "M_UNKNOWN_TOKEN");
    refused_login(&ann).await;
    close(proof(&ann, PASSWORD)).await.refused(403, "M_USER_DEACTIVATED");
    bob.get("/account/whoami").await.ok();
}
