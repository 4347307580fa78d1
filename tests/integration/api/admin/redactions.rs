//! What a user sent is redacted.

use serde_json::{Value, json};

use super::{admin, dry_run, server, user};
use crate::administration::{done, done_json, failed, history, user_command};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode, until};

/// The texts that a room shows, the oldest first.
async fn texts(user: &User, room_id: &str) -> Vec<String> {
    let path = format!("/rooms/{}/messages?dir=f&limit=1000", encode(room_id));
    let page = user.get(&path).await.ok();
    let events = page["chunk"].as_array().expect("events").iter();
    events.filter_map(|event| Some(event["content"]["body"].as_str()?.to_owned())).collect()
}

/// The content of a user's membership.
async fn member(user: &User, room_id: &str, of: &User) -> Value {
    let path = format!("/rooms/{}/state/m.room.member/{}", encode(room_id), encode(&of.user_id));
    user.get(&path).await.ok()
}

/// Orders a redaction of what a user sent. Returns what came of it.
async fn redact(admin: &User, of: &str, body: Value) -> Value {
    let path = format!("/v1/user/{}/redact", encode(of));
    let id = admin.administer("POST", &path, Some(body)).await.ok_string("redact_id");
    let status = format!("/v1/user/redact_status/{id}");
    let told = async || admin.administer("GET", &status, None).await.ok();
    until("the redaction is complete", async || told().await["status"] == "complete").await;
    told().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_redacts_what_a_user_sent_and_nothing_else() {
    let server = server().await;
    let admin = admin(&server).await;
    let (ann, eve) = (user(&server, "ann").await, user(&server, "eve").await);
    let name = json!({ "displayname": "Buy Now" });
    eve.put(&format!("/profile/{}/displayname", encode(&eve.user_id)), name).await.ok();
    let (mut rooms, options) = (Vec::new(), json!({ "preset": "public_chat" }));
    for _ in 0..2 {
        let room_id = ann.create_room(options.clone()).await;
        eve.join(&room_id).await.ok();
        for number in 0..3 {
            eve.send_text(&room_id, &format!("{number}"), &format!("buy {number}")).await;
            ann.send_text(&room_id, &format!("{number}"), &format!("hello {number}")).await;
        }
        rooms.push(room_id);
    }
    let own = eve.create_room(json!({ "name": "Shop" })).await;
    eve.send_text(&own, "1", "my own").await;
    let path = format!("/v1/user/{}/redact", encode(&eve.user_id));

    // First the latest of one room.
    let body = json!({ "rooms": [rooms[0]], "limit": 1, "reason": "spam" });
    let said = dry_run(&server, &admin, "POST", &path, body.clone()).await;
    assert!(said[0].contains("1 event(s)") && said[0].contains("1 room(s)"), "{said:?}");
    let done = redact(&admin, &eve.user_id, body.clone()).await;
    assert_eq!((&done["redacted"], &done["failed_redactions"]), (&json!(1), &json!({})), "{done}");
    let left = ["buy 0", "hello 0", "buy 1", "hello 1", "hello 2"];
    assert_eq!(texts(&ann, &rooms[0]).await, left);
    assert!(dry_run(&server, &admin, "POST", &path, body).await.is_empty());

    // Then everything. They have left one room, and are banned from another.
    eve.act(&rooms[0], "leave", None).await.ok();
    ann.act(&rooms[1], "ban", Some(&eve)).await.ok();
    let done = redact(&admin, &eve.user_id, json!({ "rooms": [], "reason": "spam" })).await;
    // The messages and the joins; nobody is in their own room but they.
    assert_eq!((&done["redacted"], &done["failed_redactions"]), (&json!(9), &json!({})), "{done}");
    for room_id in &rooms {
        assert_eq!(texts(&ann, room_id).await, ["hello 0", "hello 1", "hello 2"]);
    }
    assert_eq!(texts(&eve, &own).await, [] as [&str; 0]);
    let own_state = eve.get(&format!("/rooms/{}/state/m.room.name/", encode(&own))).await.ok();
    assert_eq!(own_state["name"], "Shop");
    assert_eq!(member(&eve, &own, &eve).await, json!({ "membership": "join" }));
    let path = format!("/rooms/{}/messages?dir=b&limit=1000", encode(&rooms[1]));
    let page = ann.get(&path).await.ok();
    let events = page["chunk"].as_array().expect("events");
    let gone = events.iter().filter(|event| event["unsigned"]["redacted_because"].is_object());
    let reasons: Vec<_> =
        gone.map(|event| &event["unsigned"]["redacted_because"]["content"]["reason"]).collect();
    assert_eq!(reasons, [&json!("spam"); 4], "three messages and a join");

    let tasks = async |more: &str| {
        let path = format!("/v1/scheduled_tasks?resource_id={}{more}", encode(&eve.user_id));
        admin.administer("GET", &path, None).await.ok()["scheduled_tasks"].clone()
    };
    let all = tasks("&action_name=redact_all_events&status=complete").await;
    assert_eq!(all.as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!(all[1]["result"], json!({ "failed_redactions": {} }), "{all}");
    let first = all[0]["timestamp_ms"].as_u64().expect("a time");
    for none in ["&status=active", &format!("&max_timestamp={first}"), "&action_name=purge_room"] {
        assert_eq!(tasks(none).await, json!([]), "{none}");
    }

    // Nonsense is refused.
    let order = async |of: &str, body: Value| {
        admin.administer("POST", &format!("/v1/user/{}/redact", encode(of)), Some(body)).await
    };
    order("nobody", json!({ "rooms": [] })).await.refused(404, "M_NOT_FOUND");
    order(&eve.user_id, json!({ "rooms": ["!no:room"] })).await.refused(404, "M_NOT_FOUND");
    order(&eve.user_id, json!({ "rooms": 5 })).await.refused(400, "M_BAD_JSON");
    order(&eve.user_id, json!({})).await.refused(400, "M_BAD_JSON");
    let late = json!({ "rooms": [], "after_ts": 4_000_000_000_000_u64 });
    assert_eq!(redact(&admin, &ann.user_id, late).await["redacted"], 0);
    let none = admin.administer("GET", "/v1/scheduled_tasks?status=odd", None).await;
    none.refused(400, "M_INVALID_PARAM");
    let nothing = admin.administer("GET", "/v1/user/redact_status/nothing", None).await;
    nothing.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_of_this_server_may_redact_it_is_said_which_events_stay() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let (ann, eve) = (server.register("ann").await, server.register("eve").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    eve.join(&room_id).await.ok();
    let stays = eve.send_text(&room_id, "1", "buy").await;
    eve.act(&room_id, "leave", None).await.ok();
    ann.act(&room_id, "leave", None).await.ok();
    let data_dir = server.data_dir().to_owned();
    let run = |more: &str| user_command(&data_dir, &format!("redact {more}"), "");
    let said = done_json(run("eve --yes --json --reason raid --say sorry"));
    assert_eq!((&said["complete"], &said["failures"]), (&json!(true), &json!(2)), "{said}");
    let why = said["failed"][&stays].as_str().expect("a reason");
    assert!(why.contains("No user of this server"), "{why}");
    assert!(failed(run("nobody --yes")).contains("there is no user `nobody`"));

    // A stopped server does it, too, in another's name.
    ann.join(&room_id).await.ok();
    server.stop();
    let said = done(run("eve --yes --by ann"));
    assert!(said.contains("Redacted 2 event(s) of @eve:e2e.test."), "{said}");
    assert!(done(run("eve --dry-run")).contains("Nothing would change"));
    let words = history(&data_dir);
    assert!(words.contains("began to redact what @eve:e2e.test sent: sorry"), "{words}");
    assert!(words.contains("did so because: raid"), "{words}");
    assert!(words.contains("has redacted 2 event(s) of @eve:e2e.test"), "{words}");
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redaction_that_a_crash_cuts_short_continues_to_its_end() {
    crate::harness::nodes::one_server!(
        "a cluster waits until the work of a node that is gone is taken over"
    );
    const MESSAGES: usize = 400;
    let mut server = TestServer::start().await;
    let mut admin = admin(&server).await;
    let mut ann = server.register("ann").await;
    let eve = server.register("eve").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    eve.join(&room_id).await.ok();
    for number in 0..MESSAGES {
        eve.send_text(&room_id, &number.to_string(), "buy").await;
    }
    ann.send_text(&room_id, "1", "hello").await;
    let path = format!("/v1/user/{}/redact", encode(&eve.user_id));
    let body = json!({ "rooms": [room_id], "reason": "spam" });
    let id = admin.administer("POST", &path, Some(body.clone())).await.ok_string("redact_id");
    let again = admin.administer("POST", &path, Some(body)).await;
    if again.status != 200 {
        again.refused(400, "M_INVALID_PARAM");
    }
    server.kill9();
    let finished = "has redacted";
    let words = history(server.data_dir());
    assert!(!words.contains(finished), "the crash came too late to show anything");

    server.restart().await;
    for user in [&mut admin, &mut ann] {
        user.http = server.http();
    }
    let status = format!("/v1/user/redact_status/{id}");
    let told = async || admin.administer("GET", &status, None).await.ok();
    until("the redaction is complete", async || told().await["status"] == "complete").await;
    let told = told().await;
    assert_eq!(told["redacted"], MESSAGES + 1, "{told}");
    assert_eq!(texts(&ann, &room_id).await, ["hello"]);
    server.stop();
    let words = history(server.data_dir());
    assert_eq!(words.matches(finished).count(), 1);
    assert_verifies(server.data_dir());
}
