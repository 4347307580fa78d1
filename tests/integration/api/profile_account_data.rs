//! Profiles and account data.

use serde_json::json;

use super::{anonymous, each, next_batch, server, user};
use crate::harness::{TestServer, User, encode};

fn profile(user: &User) -> String {
    format!("/profile/{}", encode(&user.user_id))
}

#[tokio::test]
async fn a_profile_begins_with_the_localpart_and_is_public() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let localpart = ann.localpart();
    let answer = anonymous(&server.http(), "GET", &profile(&ann), None).await.ok();
    assert_eq!(answer, json!({ "displayname": localpart }));
    let none = anonymous(&server.http(), "GET", "/profile/@none:e2e.test", None).await;
    none.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn fields_are_set_read_and_removed_by_their_owner() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let path = profile(&ann);
    let name = format!("{path}/displayname");
    let avatar = format!("{path}/avatar_url");
    ann.get(&avatar).await.refused(404, "M_NOT_FOUND");
    ann.put(&name, json!({ "displayname": "Ann \u{1f600}" })).await.ok();
    ann.put(&avatar, json!({ "avatar_url": "mxc://e2e.test/a" })).await.ok();
    assert_eq!(bob.get(&name).await.ok(), json!({ "displayname": "Ann \u{1f600}" }));
    assert_eq!(bob.get(&avatar).await.ok(), json!({ "avatar_url": "mxc://e2e.test/a" }));
    let whole = json!({ "displayname": "Ann \u{1f600}", "avatar_url": "mxc://e2e.test/a" });
    assert_eq!(bob.get(&path).await.ok(), whole);
    bob.put(&name, json!({ "displayname": "x" })).await.refused(403, "M_FORBIDDEN");
    ann.put(&name, json!({ "displayname": "" })).await.ok();
    bob.get(&name).await.refused(404, "M_NOT_FOUND");
    ann.request("DELETE", &avatar, None).await.ok();
    bob.get(&avatar).await.refused(404, "M_NOT_FOUND");
    ann.put(&name, json!({ "displayname": 3 })).await.refused(400, "M_BAD_JSON");
    // The field that the path names is looked for, whatever is beside it.
    ann.put(&name, json!({ "avatar_url": "mxc://e2e.test/a" })).await.refused(400, "M_BAD_JSON");
    ann.put(&name, json!({ "avatar_url": "mxc://e2e.test/a", "displayname": "A" })).await.ok();
    assert_eq!(bob.get(&path).await.ok(), json!({ "displayname": "A" }));
}

#[tokio::test]
async fn a_name_too_long_for_a_member_event_is_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for (field, value) in [
        ("displayname", "x".repeat(257)),
        ("avatar_url", format!("mxc://e2e.test/{}", "x".repeat(1024))),
    ] {
        let answer = ann.put(&format!("{}/{field}", profile(&ann)), json!({ field: value })).await;
        answer.refused(413, "M_TOO_LARGE");
    }
    ann.create_room(json!({})).await;
}

#[tokio::test]
async fn a_profile_has_fields_of_any_name_and_its_limits() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let field = |name: &str| format!("{}/{name}", profile(&ann));
    let zone = json!({ "m.tz": "Europe/Paris" });
    ann.put(&field("m.tz"), zone.clone()).await.ok();
    let pets = json!({ "org.example.pets": [{ "name": "Rex" }, null] });
    ann.put(&field("org.example.pets"), pets.clone()).await.ok();
    assert_eq!(bob.get(&field("m.tz")).await.ok(), zone);
    let whole = anonymous(&bob.http, "GET", &profile(&ann), None).await.ok();
    assert_eq!(
        (&whole["m.tz"], &whole["org.example.pets"]),
        (&zone["m.tz"], &pets["org.example.pets"])
    );
    // The name in the path is the name in the body, and is one.
    assert_eq!(ann.put(&field("m.tz"), json!({ "m.other": 1 })).await.status, 400);
    for name in ["Org.example", ".example", "1.example", "org example", "örg.example"] {
        let set = ann.put(&field(&encode(name)), json!({ name: 1 })).await;
        set.refused(400, "M_INVALID_PARAM");
    }
    let name = format!("org.{}", "x".repeat(251));
    ann.put(&field(&name), json!({ name.as_str(): 1 })).await.ok();
    let name = format!("{name}x");
    let long = ann.put(&field(&name), json!({ name.as_str(): 1 })).await;
    long.refused(400, "M_KEY_TOO_LARGE");
    // All of it together has a size.
    let half = "x".repeat(33 * 1024);
    ann.put(&field("org.example.a"), json!({ "org.example.a": half })).await.ok();
    let more = ann.put(&field("org.example.b"), json!({ "org.example.b": half })).await;
    more.refused(400, "M_PROFILE_TOO_LARGE");
    ann.request("DELETE", &field("org.example.a"), None).await.ok();
    ann.put(&field("org.example.b"), json!({ "org.example.b": half })).await.ok();
    bob.get(&field("org.example.a")).await.refused(404, "M_NOT_FOUND");
    bob.request("DELETE", &field("org.example.b"), None).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_new_name_reaches_the_rooms_one_is_in() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let left = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&left).await.ok();
    ann.act(&left, "leave", None).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    let name = format!("{}/displayname", profile(&ann));
    ann.put(&name, json!({ "displayname": "Ann" })).await.ok();
    let sync = bob.news(&since).await;
    let rooms = sync["rooms"]["join"].as_object().map(serde_json::Map::len);
    assert_eq!(rooms, Some(1), "{sync}");
    let event = &sync["rooms"]["join"][&room_id]["timeline"]["events"][0];
    assert_eq!(event["content"], json!({ "membership": "join", "displayname": "Ann" }));
    let joined = bob.get_room(&room_id, "/joined_members").await.ok();
    assert_eq!(joined["joined"][&ann.user_id]["display_name"], "Ann");
    // The same name again is no news.
    let since = next_batch(&sync);
    ann.put(&name, json!({ "displayname": "Ann" })).await.ok();
    assert_eq!(bob.news(&since).await["rooms"]["join"], json!({}));
}

#[tokio::test]
async fn global_account_data_is_kept_for_its_owner() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let path = format!("/user/{}/account_data/org.example.x", encode(&ann.user_id));
    ann.get(&path).await.refused(404, "M_NOT_FOUND");
    let since = next_batch(&ann.sync(None, 0, None).await);
    let other = ann.another_device().await;
    for value in [1, 2] {
        ann.put(&path, json!({ "value": value, "float": 0.5 })).await.ok();
    }
    assert_eq!(other.get(&path).await.ok(), json!({ "value": 2, "float": 0.5 }));
    let events = other.news(&since).await["account_data"]["events"].clone();
    let expected = json!([{ "type": "org.example.x", "content": { "value": 2, "float": 0.5 } }]);
    assert_eq!(events, expected);
    let first = ann.sync(None, 0, None).await;
    assert!(each(&first["account_data"]["events"], "/type").contains(&"org.example.x".into()));
    bob.get(&path).await.refused(403, "M_FORBIDDEN");
    bob.put(&path, json!({})).await.refused(403, "M_FORBIDDEN");
    assert!(!bob.sync(None, 0, None).await.to_string().contains("org.example.x"));
    ann.http
        .raw(
            "PUT",
            &format!("/_matrix/client/v3{path}"),
            &[("authorization", &format!("Bearer {}", ann.access_token))],
            "[]",
        )
        .await
        .json()
        .refused(400, "M_BAD_JSON");
}

#[tokio::test]
async fn account_data_of_a_room_comes_with_the_room() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let path =
        format!("/user/{}/rooms/{}/account_data/m.tag", encode(&ann.user_id), encode(&room_id));
    ann.get(&path).await.refused(404, "M_NOT_FOUND");
    let since = next_batch(&ann.sync(None, 0, None).await);
    let of_bob = next_batch(&bob.sync(None, 0, None).await);
    let tags = json!({ "tags": { "m.favourite": { "order": 0.5 } } });
    ann.put(&path, tags.clone()).await.ok();
    assert_eq!(ann.get(&path).await.ok(), tags);
    let expected = json!([{ "type": "m.tag", "content": tags }]);
    for sync in [ann.news(&since).await, ann.sync(None, 0, None).await] {
        let room = &sync["rooms"]["join"][&room_id];
        assert_eq!(room["account_data"]["events"], expected, "{sync}");
        assert!(!sync["account_data"].to_string().contains("m.tag"));
    }
    assert_eq!(bob.news(&of_bob).await["rooms"]["join"], json!({}));
    bob.get(&path).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn what_the_server_keeps_itself_is_not_written_as_account_data() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let me = format!("/user/{}", encode(&ann.user_id));
    let fully_read = format!("{me}/rooms/{}/account_data/m.fully_read", encode(&room_id));
    ann.put(&fully_read, json!({ "event_id": "$x" })).await.refused(405, "M_BAD_JSON");
    let push_rules = format!("{me}/account_data/m.push_rules");
    ann.put(&push_rules, json!({})).await.refused(405, "M_BAD_JSON");
    assert!(ann.get(&push_rules).await.ok()["global"].is_object());
    assert!(ann.get("/pushrules/").await.ok()["global"]["override"].is_array());
}

#[tokio::test]
async fn a_profile_that_was_on_its_way_when_the_server_was_killed_reaches_every_room() {
    let mut server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let mut rooms = Vec::new();
    for _ in 0..40 {
        let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
        bob.join(&room_id).await.ok();
        rooms.push(room_id);
    }
    for name in ["First", "Second"] {
        let path = format!("{}/displayname", profile(&ann));
        let setting = {
            let (ann, body) = (ann.clone(), json!({ "displayname": name }));
            let path = path.clone();
            tokio::spawn(async move { ann.try_request("PUT", &path, Some(&body)).await.is_ok() })
        };
        // The profile is set first, then it goes from room to room.
        named(&bob, &path, name).await;
        server.kill9();
        setting.await.expect("it ends");
        server.restart().await;
        let bob = User { http: server.http(), ..bob.clone() };
        for room_id in &rooms {
            let key = encode(&ann.user_id);
            let path = format!("/rooms/{}/state/m.room.member/{key}", encode(room_id));
            named(&bob, &path, name).await;
        }
    }
}

/// Waits until what is at `path` has this display name.
async fn named(user: &User, path: &str, name: &str) {
    for _ in 0..10_000 {
        if user.get(path).await.ok()["displayname"] == name {
            return;
        }
    }
    panic!("{path} never got the name {name}");
}

#[tokio::test]
async fn a_name_for_one_room_outlives_a_restart() {
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    ann.put(&format!("{}/displayname", profile(&ann)), json!({ "displayname": "Ann" })).await.ok();
    let own = json!({ "membership": "join", "displayname": "in this room" });
    ann.set_state(&room_id, "m.room.member", &ann.user_id, &own).await.ok();
    let other = ann.create_room(json!({})).await;
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    // A change that comes after all that the restart could have brought about.
    ann.set_state(&other, "m.room.name", "", &json!({ "name": "n" })).await.ok();
    assert_eq!(ann.state(&room_id, "m.room.member", &ann.user_id).await.ok(), own);
}

#[tokio::test]
async fn a_new_name_brings_back_nothing_that_was_redacted() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let name = format!("{}/displayname", profile(&ann));
    ann.put(&name, json!({ "displayname": "Ann" })).await.ok();
    let content = json!({ "membership": "join", "displayname": "Ann", "org.example.x": "secret" });
    let member = ann.set_state(&room_id, "m.room.member", &ann.user_id, &content).await;
    let event_id = encode(&member.ok_string("event_id"));
    let path = format!("/rooms/{}/redact/{event_id}/r", encode(&room_id));
    ann.put(&path, json!({})).await.ok();
    ann.put(&name, json!({ "displayname": "Other" })).await.ok();
    let member = ann.state(&room_id, "m.room.member", &ann.user_id).await.ok();
    assert_eq!(member, json!({ "membership": "join", "displayname": "Other" }));
    // What was redacted is not so any more: it can be said again.
    ann.set_state(&room_id, "m.room.member", &ann.user_id, &content).await.ok();
    assert_eq!(ann.state(&room_id, "m.room.member", &ann.user_id).await.ok(), content);
}

#[tokio::test]
async fn account_data_that_was_deleted_is_gone_and_those_who_knew_it_are_told() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({})).await;
    let me = format!("/user/{}", encode(&ann.user_id));
    let delete = async |who: &User, path: &str| {
        let path = format!("/_matrix/client/unstable/org.matrix.msc3391{path}");
        who.http.request("DELETE", &path, Some(&who.access_token), None).await
    };
    for place in [String::new(), format!("/rooms/{}", encode(&room_id))] {
        let path = format!("{me}{place}/account_data/org.example.x");
        let data = |sync: &serde_json::Value| {
            let part = if place.is_empty() { sync } else { &sync["rooms"]["join"][&room_id] };
            let events = part["account_data"]["events"].as_array().cloned().unwrap_or_default();
            let mut own = events.into_iter().filter(|event| event["type"] == "org.example.x");
            own.next().map(|event| event["content"].clone())
        };
        delete(&ann, &path).await.ok();
        ann.put(&path, json!({ "a": 1 })).await.ok();
        let since = next_batch(&ann.sync(None, 0, None).await);
        delete(&bob, &path).await.refused(403, "M_FORBIDDEN");
        delete(&ann, &path).await.ok();
        ann.get(&path).await.refused(404, "M_NOT_FOUND");
        assert_eq!(data(&ann.news(&since).await), Some(json!({})));
        let sync = ann.sync(None, 0, None).await;
        assert_eq!(data(&sync), None);
        delete(&ann, &path).await.ok();
        assert_eq!(data(&ann.news(&next_batch(&sync)).await), None, "deleted already");
        // To set nothing is to delete.
        ann.put(&path, json!({ "a": 2 })).await.ok();
        let since = next_batch(&ann.sync(None, 0, None).await);
        ann.put(&path, json!({})).await.ok();
        ann.get(&path).await.refused(404, "M_NOT_FOUND");
        assert_eq!(data(&ann.news(&since).await), Some(json!({})));
        assert_eq!(data(&ann.sync(None, 0, None).await), None);
    }
    let own = format!("{me}/rooms/{}/account_data/m.fully_read", encode(&room_id));
    delete(&ann, &own).await.refused(405, "M_BAD_JSON");
    delete(&ann, &format!("{me}/account_data/m.push_rules")).await.refused(405, "M_BAD_JSON");
}

fn tags(user: &User, room_id: &str) -> String {
    format!("/user/{}/rooms/{}/tags", encode(&user.user_id), encode(room_id))
}

#[tokio::test]
async fn rooms_are_tagged_one_tag_at_a_time() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let path = tags(&ann, &room_id);
    assert_eq!(ann.get(&path).await.ok(), json!({ "tags": {} }));
    let since = next_batch(&ann.sync(None, 0, None).await);
    ann.put(&format!("{path}/m.favourite"), json!({ "order": 0.25 })).await.ok();
    ann.put(&format!("{path}/u.Work%20%2F%20x"), json!({ "org.example": [1] })).await.ok();
    let both = json!({
        "m.favourite": { "order": 0.25 }, "u.Work / x": { "org.example": [1] },
    });
    assert_eq!(ann.get(&path).await.ok()["tags"], both);
    let sync = ann.news(&since).await;
    let events = &sync["rooms"]["join"][&room_id]["account_data"]["events"];
    assert_eq!(*events, json!([{ "type": "m.tag", "content": { "tags": both } }]));
    // The same again is no news, nor is it to remove what is not there.
    let since = next_batch(&sync);
    ann.put(&format!("{path}/m.favourite"), json!({ "order": 0.25 })).await.ok();
    ann.request("DELETE", &format!("{path}/u.none"), None).await.ok();
    assert_eq!(ann.news(&since).await["rooms"]["join"], json!({}));
    ann.request("DELETE", &format!("{path}/m.favourite"), None).await.ok();
    ann.put(&format!("{path}/u.Work%20%2F%20x"), json!({})).await.ok();
    let sync = ann.news(&since).await;
    let events = &sync["rooms"]["join"][&room_id]["account_data"]["events"];
    assert_eq!(events[0]["content"], json!({ "tags": { "u.Work / x": {} } }));
    // Nobody else's business.
    bob.get(&path).await.refused(403, "M_FORBIDDEN");
    bob.put(&format!("{path}/u.x"), json!({})).await.refused(403, "M_FORBIDDEN");
    bob.request("DELETE", &format!("{path}/u.x"), None).await.refused(403, "M_FORBIDDEN");
    assert_eq!(bob.get(&tags(&bob, &room_id)).await.ok(), json!({ "tags": {} }));
}

#[tokio::test]
async fn tags_that_cannot_be_are_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let path = tags(&ann, &room_id);
    for order in [json!(-0.1), json!(1.01), json!(2)] {
        let answer = ann.put(&format!("{path}/u.x"), json!({ "order": order })).await;
        answer.refused(400, "M_INVALID_PARAM");
    }
    let answer = ann.put(&format!("{path}/u.x"), json!({ "order": "first" })).await;
    answer.refused(400, "M_BAD_JSON");
    for order in [json!(0), json!(1), json!(null)] {
        ann.put(&format!("{path}/u.x"), json!({ "order": order })).await.ok();
    }
    let long = format!("{path}/{}", "x".repeat(256));
    ann.put(&long, json!({})).await.refused(400, "M_INVALID_PARAM");
    let large = json!({ "text": "x".repeat(140_000) });
    ann.put(&format!("{path}/u.large"), large).await.refused(413, "M_TOO_LARGE");
    let nowhere = tags(&ann, "!none:e2e.test");
    ann.get(&nowhere).await.refused(404, "M_NOT_FOUND");
    ann.put(&format!("{nowhere}/u.x"), json!({})).await.refused(404, "M_NOT_FOUND");
    // What was put there by hand does not stand in the way.
    let by_hand =
        format!("/user/{}/rooms/{}/account_data/m.tag", encode(&ann.user_id), encode(&room_id));
    ann.put(&by_hand, json!({ "tags": 5, "more": true })).await.ok();
    assert_eq!(ann.get(&path).await.ok(), json!({ "tags": {} }));
    ann.put(&format!("{path}/u.x"), json!({})).await.ok();
    assert_eq!(ann.get(&by_hand).await.ok(), json!({ "tags": { "u.x": {} }, "more": true }));
}

#[tokio::test]
async fn tags_that_are_set_concurrently_are_all_kept() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let path = tags(&ann, &room_id);
    let mut set = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (ann, path) = (ann.clone(), format!("{path}/u.{number}"));
        set.spawn(async move { ann.put(&path, json!({})).await.ok() });
    }
    set.join_all().await;
    let all = ann.get(&path).await.ok();
    assert_eq!(all["tags"].as_object().map(serde_json::Map::len), Some(20), "{all}");
}

#[tokio::test]
async fn the_preferred_identity_server_is_kept_and_reaches_the_other_devices() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let other = ann.another_device().await;
    let path = format!("/user/{}/account_data/m.identity_server", encode(&ann.user_id));
    ann.get(&path).await.refused(404, "M_NOT_FOUND");
    for content in [json!({ "base_url": "https://id.test" }), json!({ "base_url": null })] {
        let since = other.here().await;
        ann.put(&path, content.clone()).await.ok();
        assert_eq!(other.get(&path).await.ok(), content);
        let events = other.news(&since).await["account_data"]["events"].clone();
        assert_eq!(events, json!([{ "type": "m.identity_server", "content": content }]));
    }
}
