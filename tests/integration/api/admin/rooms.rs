//! Rooms: lists, blocks, shutdowns.

use serde_json::{Value, json};

use super::super::{each, unique};
use super::{admin, dry_run, server, user};
use crate::administration::{command, done, done_json, failed, history};
use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, encode, until};

fn of_room(room_id: &str, path: &str) -> String {
    format!("/v1/rooms/{}{path}", encode(room_id))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rooms_are_listed_in_any_order_and_described() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let bob = user(&server, "bob").await;
    let word = unique("timber");
    let small = ann.create_room(json!({ "name": format!("{word} A") })).await;
    let large = ann
        .create_room(json!({
            "name": format!("{word} B"), "preset": "public_chat", "visibility": "public",
            "topic": "logs", "room_version": "12", "creation_content": { "type": "m.space" },
        }))
        .await;
    bob.join(&large).await.ok();
    bob.send_text(&large, "1", "hello").await;

    let list = async |query: &str| {
        let path = format!("/v1/rooms?search_term={word}{query}");
        admin.administer("GET", &path, None).await.ok()
    };
    let ids = |list: &Value| each(&list["rooms"], "/room_id");
    let both = list("").await;
    assert_eq!(ids(&both), [small.clone(), large.clone()], "{both}");
    assert_eq!((&both["total_rooms"], &both["offset"]), (&json!(2), &json!(0)));
    assert!(both.get("next_batch").is_none(), "{both}");
    assert_eq!(ids(&list("&dir=b").await), [large.clone(), small.clone()]);
    for order in ["joined_members", "size", "version", "public&dir=b", "state_events"] {
        let first = ids(&list(&format!("&order_by={order}")).await);
        assert!(order == "state_events" || first[0] == large, "{order}: {first:?}");
    }
    let first = list("&limit=1").await;
    assert_eq!((ids(&first), &first["next_batch"]), (vec![small.clone()], &json!(1)));
    let second = list("&limit=1&from=1").await;
    assert_eq!((ids(&second), &second["prev_batch"]), (vec![large.clone()], &json!(0)));
    assert_eq!(ids(&list("&public_rooms=true").await), std::slice::from_ref(&large));
    assert_eq!(ids(&list("&empty_rooms=true").await), Vec::<String>::new());

    let room = admin.administer("GET", &of_room(&large, ""), None).await.ok();
    for (field, value) in [
        ("name", json!(format!("{word} B"))),
        ("topic", json!("logs")),
        ("joined_members", json!(2)),
        ("joined_local_members", json!(2)),
        ("joined_local_devices", json!(2)),
        ("version", json!("12")),
        ("creator", json!(ann.user_id)),
        ("encryption", Value::Null),
        ("federatable", json!(true)),
        ("public", json!(true)),
        ("join_rules", json!("public")),
        ("history_visibility", json!("shared")),
        ("room_type", json!("m.space")),
        ("forgotten", json!(false)),
        ("canonical_alias", Value::Null),
    ] {
        assert_eq!(room[field], value, "{field} in {room}");
    }
    let members = admin.administer("GET", &of_room(&large, "/members"), None).await.ok();
    assert_eq!(members["total"], 2, "{members}");
    let state = admin.administer("GET", &of_room(&large, "/state?type=m.room.topic"), None).await;
    assert_eq!(each(&state.ok()["state"], "/content/topic"), ["logs"]);
    let messages = of_room(&large, "/messages?dir=b&limit=1");
    let page = admin.administer("GET", &messages, None).await.ok();
    assert_eq!(each(&page["chunk"], "/content/body"), ["hello"], "{page}");
    let end = page["end"].as_str().expect("there is more");
    let more = format!("{messages}&from={}", encode(end));
    let page = admin.administer("GET", &more, None).await.ok();
    assert_eq!(each(&page["chunk"], "/type"), ["m.room.member"], "{page}");

    let run = |arguments: &str| command("room", server.data_dir(), arguments, "");
    let listed = done_json(run(&format!("list --search {word} --order joined_members --json")));
    assert_eq!(ids(&listed), [large.clone(), small.clone()]);
    let said = done(run(&format!("show {large}")));
    assert!(said.contains("Topic     logs") && said.contains("2, 0 invited"), "{said}");
    assert!(done(run(&format!("list --search {word}"))).contains("2 of 2 room(s)"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_into_a_blocked_room_until_it_is_unblocked() {
    let mut server = TestServer::start().await;
    let (mut admin, mut ann) = (admin(&server).await, server.register("ann").await);
    let mut bob = server.register("bob").await;
    let options = json!({ "preset": "public_chat", "room_version": "10" });
    let room_id = ann.create_room(options).await;
    let path = of_room(&room_id, "/block");
    assert_eq!(admin.administer("GET", &path, None).await.ok(), json!({ "block": false }));
    let body = json!({ "block": true, "reason": "spam" });
    let said = dry_run(&server, &admin, "PUT", &path, body.clone()).await;
    assert_eq!(said.len(), 1, "{said:?}");
    admin.administer("PUT", &path, Some(body)).await.ok();
    let blocked = admin.administer("GET", &path, None).await.ok();
    assert_eq!(blocked, json!({ "block": true, "user_id": admin.user_id }));

    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    let joined = json!({ "membership": "join" });
    let state = bob.set_state(&room_id, "m.room.member", &bob.user_id, &joined).await;
    state.refused(403, "M_FORBIDDEN");
    ann.act(&room_id, "invite", Some(&bob)).await.refused(403, "M_FORBIDDEN");
    let knock = format!("/knock/{}", encode(&room_id));
    bob.post(&knock, json!({})).await.refused(403, "M_FORBIDDEN");
    // Those who are in it go on, and cannot come back once they have left.
    ann.send_text(&room_id, "1", "still here").await;

    server.kill9();
    server.restart().await;
    for user in [&mut admin, &mut ann, &mut bob] {
        user.http = server.http();
    }
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    let room = admin.administer("GET", &of_room(&room_id, ""), None).await.ok();
    assert_eq!(room["blocked"], true);
    let run = |arguments: &str| command("room", server.data_dir(), arguments, "");
    let dry = done(run(&format!("unblock {room_id} --dry-run")));
    assert!(dry.starts_with("This would happen:"), "{dry}");
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    let said = done(run(&format!("unblock {room_id} --reason mistake")));
    assert_eq!(said, format!("{room_id} is not blocked now.\n"));
    bob.join(&room_id).await.ok();

    // One that is not known here, yet.
    let unknown = "!unknown:e2e.test";
    admin.administer("PUT", &of_room(unknown, "/block"), Some(json!({ "block": true }))).await.ok();
    let known = admin.administer("GET", &of_room(unknown, "/block"), None).await.ok();
    assert_eq!(known["block"], true);
    let body = json!({ "block": true, "purge": false });
    let gone = admin.administer("DELETE", "/v1/rooms/!other:e2e.test", Some(body)).await.ok();
    assert_eq!(gone["kicked_users"], json!([]));

    server.stop();
    let words = history(server.data_dir());
    let by_http = format!("{} blocked the room {room_id}: spam", admin.user_id);
    assert!(words.contains(&by_http), "{words}");
    assert!(words.contains(&format!("unblocked the room {room_id}: mistake")), "{words}");
    assert_verifies(server.data_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_is_shut_down_with_its_members_its_aliases_and_its_place_in_the_directory() {
    let server = TestServer::start().await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let (bob, cas) = (server.register("bob").await, server.register("cas").await);
    let options = json!({
        "preset": "public_chat", "visibility": "public", "room_alias_name": "bad",
        "invite": [cas.user_id], "name": "Bad",
    });
    let room_id = ann.create_room(options).await;
    bob.join(&room_id).await.ok();
    let body = json!({
        "new_room_user_id": admin.user_id, "room_name": "Gone", "message": "It is gone.",
        "block": true, "purge": false, "reason": "abuse",
    });
    let said = dry_run(&server, &admin, "DELETE", &of_room(&room_id, ""), body.clone()).await;
    let said = said.join("\n");
    for part in [
        "2 member(s) leave",
        "1 invite(s)",
        "#bad:e2e.test points at the new room",
        "public directory",
        "creates a new room, \"Gone\"",
        "nobody can join",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }

    let gone = admin.administer("DELETE", &of_room(&room_id, ""), Some(body.clone())).await.ok();
    let mut left = [&ann, &bob, &cas].map(|user| user.user_id.clone());
    left.sort();
    assert_eq!(gone["kicked_users"], json!(left), "{gone}");
    assert_eq!(gone["local_aliases"], json!(["#bad:e2e.test"]));
    assert_eq!(gone["failed_to_kick_users"], json!([]));
    let new_room = gone["new_room_id"].as_str().expect("a new room").to_owned();

    for user in [&ann, &bob] {
        let rooms = user.get("/joined_rooms").await.ok();
        assert_eq!(rooms["joined_rooms"], json!([new_room]), "{}", user.user_id);
    }
    assert_eq!(cas.get("/joined_rooms").await.ok()["joined_rooms"], json!([]));
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    let alias = bob.get("/directory/room/%23bad%3Ae2e.test").await.ok();
    assert_eq!(alias["room_id"], new_room.as_str());
    assert_eq!(bob.get("/publicRooms").await.ok()["chunk"], json!([]));
    let page = bob.get_room(&new_room, "/messages?dir=f").await.ok();
    assert!(each(&page["chunk"], "/content/body").contains(&"It is gone.".to_owned()), "{page}");
    let said = bob.try_send_text(&new_room, "1", "why?").await.expect("an answer");
    said.refused(403, "M_FORBIDDEN");

    let status = format!("/v2/rooms/{}/delete_status", encode(&room_id));
    let told = admin.administer("GET", &status, None).await.ok();
    let one = &told["results"][0];
    assert_eq!((&one["status"], &one["shutdown_room"]), (&json!("complete"), &gone), "{told}");

    // By the command line, with no room in its place; first, what it would come to, and without a
    // yes.
    let other = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&other).await.ok();
    let run = |arguments: &str| command("room", server.data_dir(), arguments, "");
    let dry = done(run(&format!("shutdown {other} --dry-run")));
    assert!(dry.contains("- 2 member(s) leave"), "{dry}");
    let refused = run(&format!("shutdown {other}"));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(
        bob.get("/joined_rooms").await.ok()["joined_rooms"].as_array().map(Vec::len),
        Some(2)
    );
    let said = done(run(&format!("shutdown {other} --block --yes --reason closed")));
    assert_eq!(said, format!("Shut down {other}, which 2 user(s) left.\n"));
    assert_eq!(ann.get("/joined_rooms").await.ok()["joined_rooms"], json!([new_room]));
    bob.join(&other).await.refused(403, "M_FORBIDDEN");

    let (data_dir, mut server) = (server.data_dir().to_owned(), server);
    server.stop();
    let words = history(&data_dir);
    let begun =
        format!("{} began to shut down {room_id}, in favour of {new_room}: abuse", admin.user_id);
    assert!(words.contains(&begun), "{words}");
    assert!(words.contains(&format!("began to shut down {other}: closed")), "{words}");
    assert_verifies(&data_dir);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_that_a_crash_cuts_short_goes_on_to_its_end() {
    crate::harness::nodes::one_server!(
        "a cluster waits until the work of a node that is gone is taken over"
    );
    const MEMBERS: usize = 160;
    let mut server = TestServer::start().await;
    let mut admin = admin(&server).await;
    let ann = server.register("ann").await;
    let options = json!({ "preset": "public_chat", "room_alias_name": "many" });
    let room_id = ann.create_room(options).await;
    let http = server.http();
    for number in 0..MEMBERS {
        let name = format!("member-{number}");
        let user = User::register(&http, &name, "a password that is long enough").await;
        user.join(&room_id).await.ok();
    }
    let body = json!({ "new_room_user_id": admin.user_id, "purge": false, "block": true });
    let path = format!("/v2/rooms/{}", encode(&room_id));
    let begun = admin.administer("DELETE", &path, Some(body.clone())).await;
    let delete_id = begun.ok_string("delete_id");
    let again = admin.administer("DELETE", &path, Some(body)).await;
    if again.status != 200 {
        again.refused(400, "M_INVALID_PARAM");
    }
    server.kill9();
    let words = history(server.data_dir());
    let finished = format!("has shut down {room_id}");
    assert!(!words.contains(&finished), "the crash came too late to show anything");

    server.restart().await;
    admin.http = server.http();
    let status = format!("/v2/rooms/delete_status/{delete_id}");
    let told = async || admin.administer("GET", &status, None).await.ok();
    until("the shutdown has come to its end", async || told().await["status"] == "complete").await;
    let told = told().await;
    let kicked = told["shutdown_room"]["kicked_users"].as_array().map(Vec::len);
    assert_eq!(kicked, Some(MEMBERS + 1), "{told}");
    assert_eq!(told["shutdown_room"]["failed_to_kick_users"], json!([]));
    let old = admin.administer("GET", &of_room(&room_id, ""), None).await.ok();
    assert_eq!((&old["joined_members"], &old["aliases"]), (&json!(0), &json!([])), "{old}");
    let new_room = told["shutdown_room"]["new_room_id"].as_str().expect("a new room");
    let new = admin.administer("GET", &of_room(new_room, ""), None).await.ok();
    assert_eq!(new["joined_members"], MEMBERS + 2, "{new}");
    assert_eq!(new["aliases"], json!(["#many:e2e.test"]));

    // Nobody left twice, and the new room was made once.
    server.stop();
    let words = history(server.data_dir());
    assert_eq!(words.matches(&finished).count(), 1);
    for number in 0..MEMBERS {
        let left = format!("@member-{number}:e2e.test left");
        let count = words.lines().filter(|line| line.starts_with(&left)).count();
        assert_eq!(count, 1, "member-{number}");
    }
    assert_verifies(server.data_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_put_in_charge_of_a_room_and_into_it() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let bob = user(&server, "bob").await;
    for version in ["10", "12"] {
        let room_id = ann.create_room(json!({ "room_version": version })).await;
        let path = of_room(&room_id, "/make_room_admin");
        // Without a name, the one who asks; one who could not join is invited.
        admin.administer("POST", &path, Some(json!({}))).await.ok();
        admin.join(&room_id).await.ok();
        let topic = json!({ "topic": "mine" });
        admin.set_state(&room_id, "m.room.topic", "", &topic).await.ok();
        let body = json!({ "user_id": bob.user_id, "reason": "moderation" });
        admin.administer("POST", &path, Some(body)).await.ok();
        bob.join(&room_id).await.ok();
        let levels = bob.state(&room_id, "m.room.power_levels", "").await.ok();
        let level = levels["users"][&bob.user_id].as_i64();
        assert!(level >= Some(100), "{version}: {levels}");
        bob.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    }

    // Into a room that nobody can join without an invite.
    let room_id = ann.create_room(json!({})).await;
    bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
    let path = format!("/v1/join/{}", encode(&room_id));
    let body = json!({ "user_id": bob.user_id });
    let joined = admin.administer("POST", &path, Some(body.clone())).await.ok();
    assert_eq!(joined["room_id"], room_id.as_str());
    bob.send_text(&room_id, "1", "here").await;
    admin.administer("POST", &path, Some(body)).await.ok();
    ann.act(&room_id, "leave", None).await.ok();
    bob.act(&room_id, "leave", None).await.ok();
    // Nobody is left whose power could be shared, or who could invite.
    let path = of_room(&room_id, "/make_room_admin");
    admin.administer("POST", &path, Some(json!({}))).await.refused(400, "M_INVALID_PARAM");
    let path = format!("/v1/join/{}", encode(&room_id));
    let body = json!({ "user_id": admin.user_id });
    admin.administer("POST", &path, Some(body)).await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_that_is_deleted_with_a_purge_is_gone() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    for version in ["v1", "v2"] {
        let room_id = bob.create_room(json!({ "preset": "public_chat", "name": "Bad" })).await;
        let said = bob.send_text(&room_id, version, "something bad").await;
        let body = json!({ "purge": true, "block": true });
        let path = format!("/{version}/rooms/{}", encode(&room_id));
        let would = dry_run(&server, &admin, "DELETE", &path, body.clone()).await.join("\n");
        assert!(would.contains("the room is purged"), "{would}");
        let answer = admin.administer("DELETE", &path, Some(body)).await.ok();
        let status = if version == "v1" {
            answer
        } else {
            let id = answer["delete_id"].as_str().expect("an id").to_owned();
            let status = format!("/v2/rooms/delete_status/{id}");
            let mut told = json!({});
            until("the room is gone", async || {
                told = admin.administer("GET", &status, None).await.ok();
                told["status"] == "complete"
            })
            .await;
            told["shutdown_room"].clone()
        };
        assert_eq!(status["kicked_users"], json!([bob.user_id]), "{status}");
        let of_room = format!("/v1/rooms/{}", encode(&room_id));
        admin.administer("GET", &of_room, None).await.refused(404, "M_NOT_FOUND");
        let path = format!("/event/{}", encode(&said));
        let status = bob.get_room(&room_id, &path).await.status;
        assert!([403, 404].contains(&status), "{status}");
        bob.join(&room_id).await.refused(403, "M_FORBIDDEN");
        let blocked = admin.administer("GET", &format!("{of_room}/block"), None).await.ok();
        assert_eq!(blocked["block"], true, "{blocked}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_reads_an_event_and_what_is_around_it_without_being_in_the_room() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let room_id = ann.create_room(json!({ "name": "Private" })).await;
    let mut said = Vec::new();
    for number in 0..6 {
        said.push(ann.send_text(&room_id, &number.to_string(), &number.to_string()).await);
    }
    let around = |event_id: &str, query: &str| {
        of_room(&room_id, &format!("/context/{}{query}", encode(event_id)))
    };
    let seen = admin.administer("GET", &around(&said[2], "?limit=5"), None).await.ok();
    assert_eq!(seen["event"]["event_id"], json!(said[2]), "{seen}");
    assert_eq!(each(&seen["events_after"], "/event_id"), said[3..5], "{seen}");
    let before = each(&seen["events_before"], "/event_id");
    assert_eq!((before.len(), &before[..2]), (3, &[said[1].clone(), said[0].clone()][..]));
    assert!(each(&seen["state"], "/type").contains(&"m.room.name".to_owned()), "{seen}");
    // The tokens are those of the pages of messages.
    let end = seen["end"].as_str().expect("a token");
    let next = of_room(&room_id, &format!("/messages?dir=f&from={}", encode(end)));
    let next = admin.administer("GET", &next, None).await.ok();
    assert_eq!(each(&next["chunk"], "/event_id"), said[5..], "{next}");
    let none = admin.administer("GET", &around(&said[2], "?limit=0"), None).await.ok();
    assert_eq!((&none["events_before"], &none["events_after"]), (&json!([]), &json!([])));

    let fetch = |event_id: &str| format!("/v1/fetch_event/{}", encode(event_id));
    let event = admin.administer("GET", &fetch(&said[2]), None).await.ok();
    assert_eq!(event["event"]["content"]["body"], "2", "{event}");
    assert_eq!(event["event"]["event_id"], json!(said[2]), "{event}");
    assert!(event["event"]["prev_events"].is_array(), "{event}");

    let ends = admin.administer("GET", &of_room(&room_id, "/forward_extremities"), None).await.ok();
    assert_eq!((&ends["count"], &ends["results"][0]["event_id"]), (&json!(1), &json!(said[5])));
    assert!(ends["results"][0]["received_ts"].as_u64() > Some(0), "{ends}");

    let elsewhere = ann.create_room(json!({})).await;
    let wrong = format!("/v1/rooms/{}/context/{}", encode(&elsewhere), encode(&said[2]));
    admin.administer("GET", &wrong, None).await.refused(404, "M_NOT_FOUND");
    for path in [around("$nothing", ""), fetch("$nothing")] {
        admin.administer("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    }
    assert_eq!(admin.administer("GET", &fetch("nothing"), None).await.status, 400);
    let path = of_room("!nowhere:e2e.test", "/forward_extremities");
    admin.administer("GET", &path, None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_redacts_an_event_in_the_name_of_a_member_who_may() {
    crate::harness::nodes::one_server!("it stops the server");
    let mut server = TestServer::start().await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let first = bob.send_text(&room_id, "1", "buy now").await;
    let second = bob.send_text(&room_id, "2", "buy more").await;
    let third = ann.send_text(&room_id, "3", "stop it").await;
    let data_dir = server.data_dir().to_owned();
    let redact = |event_id: &str, more: &str| {
        command("room", &data_dir, &format!("redact {room_id} {event_id} {more}"), "")
    };
    let shown = async |event_id: &str| {
        ann.get(&format!("/rooms/{}/event/{}", encode(&room_id), encode(event_id))).await.ok()
    };

    let would = done(redact(&first, "--dry-run"));
    assert!(would.contains("m.room.message that @bob:e2e.test sent is removed"), "{would}");
    assert!(would.contains("in the name of @bob:e2e.test"), "{would}");
    assert_eq!(shown(&first).await["content"]["body"], "buy now");
    let said = done(redact(&first, "--yes --say spam --reason raid"));
    assert!(said.contains("@bob:e2e.test redacted"), "{said}");
    let gone = shown(&first).await;
    assert_eq!(gone["content"], json!({}), "{gone}");
    assert_eq!(gone["unsigned"]["redacted_because"]["content"]["reason"], "spam", "{gone}");
    let again = done(redact(&first, "--yes"));
    assert!(again.contains("is redacted already"), "{again}");
    assert!(done(redact(&first, "--dry-run")).contains("Nothing would change"));

    // A sender who has left cannot.
    bob.act(&room_id, "leave", None).await.ok();
    let said = done_json(redact(&second, "--yes --json"));
    assert_eq!(said["by"], json!(ann.user_id), "{said}");
    // One who may send no redactions has it done by another, who may.
    let aaron = server.register("aaron").await;
    for user in [&aaron, &bob] {
        user.join(&room_id).await.ok();
    }
    let fourth = bob.send_text(&room_id, "4", "buy again").await;
    let levels = json!({
        "users": { (&*ann.user_id): 100, (&*aaron.user_id): 50 }, "events": { "m.room.redaction": 100 },
    });
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    assert_eq!(done_json(redact(&fourth, "--yes --json"))["by"], json!(ann.user_id));
    // What a room rests on stays, and where nobody may, it is refused.
    let state = ann.get(&format!("/rooms/{}/state", encode(&room_id))).await.ok();
    let state = state.as_array().expect("a list");
    let create = state.iter().find(|event| event["type"] == "m.room.create").expect("the first");
    let refused = failed(redact(create["event_id"].as_str().expect("an id"), "--yes"));
    assert!(refused.contains("cannot be redacted"), "{refused}");
    let other = bob.create_room(json!({})).await;
    let refused = failed(command("room", &data_dir, &format!("redact {other} {third} --yes"), ""));
    assert!(refused.contains("There is no event"), "{refused}");
    for user in [&ann, &bob, &aaron] {
        user.act(&room_id, "leave", None).await.ok();
    }
    let refused = failed(redact(&third, "--yes"));
    assert!(refused.contains("No user of this server who is in the room may"), "{refused}");

    server.stop();
    let words = history(&data_dir);
    assert!(words.contains("did so because: raid"), "{words}");
    assert_verifies(&data_dir);
}

/// Lets the clock go on, so that what comes next has another time.
async fn tick() {
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_event_closest_to_a_time_is_found_whoever_may_see_it() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let private = json!({
        "initial_state": [{ "type": "m.room.history_visibility",
                            "content": { "history_visibility": "joined" } }],
    });
    let room_id = ann.create_room(private).await;
    let mut sent = Vec::new();
    for text in ["first", "second"] {
        tick().await;
        let event_id = ann.send_text(&room_id, text, text).await;
        let event = ann.get_room(&room_id, &format!("/event/{}", encode(&event_id))).await.ok();
        sent.push((event_id, event["origin_server_ts"].as_u64().expect("a time")));
        tick().await;
    }
    let [(first, at_first), (second, at_second)] = &sent[..] else { panic!("two events") };
    let closest = async |query: &str| {
        let path = of_room(&room_id, &format!("/timestamp_to_event{query}"));
        admin.administer("GET", &path, None).await
    };
    let is = |event_id: &str, ts: &u64| json!({ "event_id": event_id, "origin_server_ts": ts });
    for (query, expected) in [
        (format!("?ts={}&dir=f", at_first + 1), is(second, at_second)),
        (format!("?ts={}", at_first + 1), is(second, at_second)),
        (format!("?ts={at_first}"), is(first, at_first)),
        (format!("?ts={}&dir=b", at_second - 1), is(first, at_first)),
        (format!("?ts={}&dir=b", u64::MAX), is(second, at_second)),
    ] {
        assert_eq!(closest(&query).await.ok(), expected, "{query}");
    }
    // The administrator is not in the room, and sees nothing of it as a user.
    let as_user = format!(
        "/_matrix/client/v1/rooms/{}/timestamp_to_event?ts={at_first}&dir=f",
        encode(&room_id)
    );
    let refused = admin.http.request("GET", &as_user, Some(&admin.access_token), None).await;
    refused.refused(403, "M_FORBIDDEN");
    closest(&format!("?ts={}", at_second + 1)).await.refused(404, "M_NOT_FOUND");
    closest("?ts=0&dir=b").await.refused(404, "M_NOT_FOUND");
    closest("").await.refused(400, "M_MISSING_PARAM");
    closest("?ts=-1").await.refused(400, "M_INVALID_PARAM");
    closest("?ts=1&dir=x").await.refused(400, "M_INVALID_PARAM");
    let none = "/v1/rooms/!none:e2e.test/timestamp_to_event?ts=1";
    admin.administer("GET", none, None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_space_shows_an_administrator_every_room_in_it_page_by_page() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let space = |name: &str| json!({ "name": name, "creation_content": { "type": "m.space" } });
    let root = ann.create_room(space("root")).await;
    let inner = ann.create_room(space("inner")).await;
    let mut rooms = Vec::new();
    for name in ["a", "b"] {
        rooms.push(ann.create_room(json!({ "name": name })).await);
    }
    for (of, child, order) in
        [(&root, &inner, "1"), (&root, &rooms[1], "2"), (&inner, &rooms[0], "1")]
    {
        let content = json!({ "via": ["e2e.test"], "order": order });
        ann.set_state(of, "m.space.child", child, &content).await.ok();
    }
    let elsewhere = json!({ "via": ["elsewhere.test"], "order": "0" });
    ann.set_state(&root, "m.space.child", "!x:elsewhere.test", &elsewhere).await.ok();

    let hierarchy = async |query: &str| {
        admin.administer("GET", &of_room(&root, &format!("/hierarchy{query}")), None).await
    };
    let whole = hierarchy("").await.ok();
    let all = [&root, &inner, &rooms[0], &rooms[1]].map(Clone::clone);
    assert_eq!(each(&whole["rooms"], "/room_id"), all, "{whole}");
    assert!(whole.get("next_batch").is_none(), "{whole}");
    let first = &whole["rooms"][0];
    assert_eq!((&first["name"], &first["room_type"]), (&json!("root"), &json!("m.space")));
    assert_eq!((&first["num_joined_members"], &first["join_rule"]), (&json!(1), &json!("invite")));
    let children = ["!x:elsewhere.test", &inner, &rooms[1]];
    assert_eq!(each(&first["children_state"], "/state_key"), children);
    let top = hierarchy("?max_depth=0").await.ok();
    assert_eq!(each(&top["rooms"], "/room_id"), std::slice::from_ref(&root));
    let upper = hierarchy("?max_depth=1").await.ok();
    let expected = [&root, &inner, &rooms[1]].map(Clone::clone);
    assert_eq!(each(&upper["rooms"], "/room_id"), expected);

    let page = hierarchy("?limit=3").await.ok();
    assert_eq!(each(&page["rooms"], "/room_id"), all[..3]);
    let from = encode(page["next_batch"].as_str().expect("there is more"));
    let rest = hierarchy(&format!("?limit=3&from={from}")).await.ok();
    assert_eq!(each(&rest["rooms"], "/room_id"), all[3..]);
    assert!(rest.get("next_batch").is_none(), "{rest}");

    // For the same person as a user, there is no such space, also with a token.
    for query in [String::new(), format!("?from={from}")] {
        let path = format!("/_matrix/client/v1/rooms/{}/hierarchy{query}", encode(&root));
        let answer = admin.http.request("GET", &path, Some(&admin.access_token), None).await;
        assert!([400, 403].contains(&answer.status), "{answer}");
    }
    for query in ["?limit=0", "?limit=-1", "?max_depth=x", "?from=nonsense"] {
        hierarchy(query).await.refused(400, "M_INVALID_PARAM");
    }
    hierarchy(&format!("?max_depth=1&from={from}")).await.refused(400, "M_INVALID_PARAM");
    let none = "/v1/rooms/!none:e2e.test/hierarchy";
    admin.administer("GET", none, None).await.refused(404, "M_NOT_FOUND");
}
