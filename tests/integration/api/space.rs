//! The hierarchy of a space and the summary of a room.

use serde_json::{Value, json};

use super::{each, server, string, unique, user};
use crate::harness::{Answer, Http, TestServer, User, encode};

async fn hierarchy(user: &User, space: &str, query: &str) -> Answer {
    let path = format!("/_matrix/client/v1/rooms/{}/hierarchy{query}", encode(space));
    user.http.request("GET", &path, Some(&user.access_token), None).await
}

async fn rooms(user: &User, space: &str, query: &str) -> Vec<String> {
    each(&hierarchy(user, space, query).await.ok()["rooms"], "/room_id")
}

async fn summary(http: &Http, user: Option<&User>, room: &str) -> Answer {
    let path = format!("/_matrix/client/v1/room_summary/{}", encode(room));
    http.request("GET", &path, user.map(|user| &*user.access_token), None).await
}

async fn space(user: &User, options: Value) -> String {
    let mut options = options;
    options["creation_content"] = json!({ "type": "m.space" });
    user.create_room(options).await
}

async fn add(user: &User, space: &str, child: &str, content: Value) {
    user.set_state(space, "m.space.child", child, &content).await.ok();
}

fn child() -> Value {
    json!({ "via": ["e2e.test"] })
}

#[tokio::test]
async fn the_tree_is_walked_depth_first_in_the_order_of_children_and_each_room_once() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let root = space(&ann, json!({ "name": "root" })).await;
    let inner = space(&ann, json!({})).await;
    let mut leaves = Vec::new();
    for name in ["a", "b", "c", "d"] {
        leaves.push(ann.create_room(json!({ "name": name })).await);
    }
    // Those without an order come last, the oldest first; an order that is not valid is none.
    add(&ann, &root, &leaves[0], child()).await;
    add(&ann, &root, &leaves[1], json!({ "via": ["x"], "order": "\u{e4}" })).await;
    add(&ann, &root, &inner, json!({ "via": ["x"], "order": "b" })).await;
    add(&ann, &root, &leaves[2], json!({ "via": ["x"], "order": " " })).await;
    add(&ann, &root, "!elsewhere:x.test", child()).await;
    add(&ann, &root, "nonsense", child()).await;
    // A loop, and a room that is in two spaces.
    add(&ann, &inner, &root, child()).await;
    add(&ann, &inner, &leaves[3], child()).await;
    add(&ann, &inner, &leaves[0], child()).await;
    let expected = [&root, &leaves[2], &inner, &leaves[3], &leaves[0], &leaves[1]];
    assert_eq!(rooms(&ann, &root, "").await, expected.map(Clone::clone));

    let whole = hierarchy(&ann, &root, "").await.ok();
    let first = &whole["rooms"][0];
    assert_eq!((&first["name"], &first["room_type"]), (&json!("root"), &json!("m.space")));
    assert_eq!(first["num_joined_members"], 1);
    let children = &first["children_state"];
    let order = [&leaves[2], &inner, &leaves[0], &leaves[1]].map(Clone::clone);
    assert_eq!(each(children, "/state_key")[..4], order);
    let fields: Vec<_> = children[0].as_object().into_iter().flat_map(|o| o.keys()).collect();
    assert_eq!(fields, ["content", "origin_server_ts", "sender", "state_key", "type"]);
    assert_eq!(whole["rooms"][1]["children_state"], json!([]));
    assert!(whole.get("next_batch").is_none());

    // One that was taken out, in whichever way, is not in it.
    add(&ann, &root, &leaves[2], json!({})).await;
    add(&ann, &root, &inner, json!({ "via": [] })).await;
    assert_eq!(rooms(&ann, &root, "").await, [&root, &leaves[0], &leaves[1]].map(Clone::clone));
}

#[tokio::test]
async fn pages_of_a_space_follow_one_another_though_it_changes_meanwhile() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let root = space(&ann, json!({})).await;
    let mut expected = vec![root.clone()];
    for number in 0..6 {
        let room_id = ann.create_room(json!({})).await;
        add(&ann, &root, &room_id, json!({ "via": ["x"], "order": number.to_string() })).await;
        expected.push(room_id);
    }
    let first = hierarchy(&ann, &root, "?limit=3&max_depth=2").await.ok();
    let mut seen = each(&first["rooms"], "/room_id");
    let mut token = first["next_batch"].as_str().map(ToOwned::to_owned);
    add(&ann, &root, &expected[1], json!({})).await;
    let late = ann.create_room(json!({})).await;
    add(&ann, &root, &late, json!({ "via": ["x"], "order": "00" })).await;
    let from = token.clone().unwrap_or_default();
    while let Some(next) = token {
        let query = format!("?limit=3&max_depth=2&from={}", encode(&next));
        let page = hierarchy(&ann, &root, &query).await.ok();
        assert!(page["rooms"].as_array().is_some_and(|rooms| rooms.len() <= 3));
        seen.extend(each(&page["rooms"], "/room_id"));
        token = page["next_batch"].as_str().map(ToOwned::to_owned);
    }
    assert_eq!(seen, expected);
    // A token belongs to its space and to its parameters, and is one that was given out.
    for query in ["?from=", "?max_depth=1&from=", "?max_depth=2&suggested_only=true&from="] {
        let query = format!("{query}{}", encode(&from));
        hierarchy(&ann, &root, &query).await.refused(400, "M_INVALID_PARAM");
    }
    let query = format!("?max_depth=2&from={}", encode(&from));
    let other = space(&ann, json!({})).await;
    hierarchy(&ann, &other, &query).await.refused(400, "M_INVALID_PARAM");
    for query in ["?from=nonsense", "?from=s1.2.3", "?limit=0"] {
        hierarchy(&ann, &root, query).await.refused(400, "M_INVALID_PARAM");
    }
    for query in ["?limit=-1", "?max_depth=-1", "?max_depth=x"] {
        let answer = hierarchy(&ann, &root, query).await;
        assert_eq!(answer.status, 400, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_a_space_follows_the_one_before_it_after_a_restart() {
    let mut server = TestServer::start().await;
    let mut ann = server.register("ann").await;
    let root = space(&ann, json!({})).await;
    let inner = space(&ann, json!({})).await;
    add(&ann, &root, &inner, child()).await;
    for space in [&root, &inner] {
        for _ in 0..3 {
            let leaf = ann.create_room(json!({})).await;
            add(&ann, space, &leaf, child()).await;
        }
    }
    let whole = rooms(&ann, &root, "").await;
    for limit in 1..4 {
        let (mut seen, mut query) = (Vec::new(), format!("?limit={limit}"));
        for page in 0.. {
            let answer = hierarchy(&ann, &root, &query).await.ok();
            seen.extend(each(&answer["rooms"], "/room_id"));
            let Some(next) = answer["next_batch"].as_str() else { break };
            query = format!("?limit={limit}&from={}", encode(next));
            if page % 2 == 0 {
                server.restart().await;
                ann.http = server.http();
            }
        }
        assert_eq!(seen, whole);
    }
}

#[tokio::test]
async fn a_space_is_walked_as_deep_as_asked_and_by_suggestion() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let root = space(&ann, json!({})).await;
    let inner = space(&ann, json!({})).await;
    let (deep, plain) = (ann.create_room(json!({})).await, ann.create_room(json!({})).await);
    let suggested = json!({ "via": ["x"], "suggested": true });
    add(&ann, &root, &inner, suggested.clone()).await;
    add(&ann, &inner, &deep, suggested).await;
    add(&ann, &inner, &plain, json!({ "via": ["x"], "suggested": "yes" })).await;
    assert_eq!(rooms(&ann, &root, "?max_depth=0").await, std::slice::from_ref(&root));
    assert_eq!(rooms(&ann, &root, "?max_depth=1").await, [&root, &inner].map(Clone::clone));
    assert_eq!(rooms(&ann, &root, "?max_depth=2").await.len(), 4);
    let chosen = hierarchy(&ann, &root, "?suggested_only=true").await.ok();
    let expected = [&root, &inner, &deep].map(Clone::clone);
    assert_eq!(each(&chosen["rooms"], "/room_id"), expected);
    assert_eq!(each(&chosen["rooms"][1]["children_state"], "/state_key"), [deep]);
}

/// A room of ann's by its join rule and history visibility.
async fn room(ann: &User, rule: Value, visibility: &str) -> String {
    ann.create_room(json!({ "initial_state": [
        { "type": "m.room.join_rules", "content": rule },
        { "type": "m.room.history_visibility", "content": { "history_visibility": visibility } },
    ]}))
    .await
}

#[tokio::test]
async fn a_room_is_known_to_those_who_could_read_or_enter_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let http = server.http();
    let club = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&club).await.ok();
    let allow = |rule: &str, room_id: &str| json!({ "join_rule": rule, "allow": [{ "type": "m.room_membership", "room_id": room_id }] });
    let closed = ann.create_room(json!({})).await;
    let root = space(&ann, json!({ "preset": "public_chat" })).await;
    // The rule, the visibility, whether bob knows of it, and whether everyone does.
    for (rule, visibility, to_bob, to_all) in [
        (json!({ "join_rule": "public" }), "joined", true, true),
        (json!({ "join_rule": "knock" }), "joined", true, true),
        (json!({ "join_rule": "invite" }), "world_readable", true, true),
        (json!({ "join_rule": "invite" }), "shared", false, false),
        (json!({ "join_rule": "private" }), "shared", false, false),
        (allow("restricted", &club), "shared", true, false),
        (allow("restricted", &closed), "shared", false, false),
        (allow("knock_restricted", &closed), "shared", true, true),
    ] {
        let room_id = room(&ann, rule.clone(), visibility).await;
        add(&ann, &root, &room_id, child()).await;
        for (user, known) in [(Some(&ann), true), (Some(&bob), to_bob), (None, to_all)] {
            let answer = summary(&http, user, &room_id).await;
            if known {
                let shown = answer.ok();
                let is = shown.get("membership").and_then(Value::as_str);
                let expected =
                    user.map(|user| if user.user_id == ann.user_id { "join" } else { "leave" });
                assert_eq!(is, expected, "{rule}");
            } else {
                answer.refused(404, "M_NOT_FOUND");
            }
        }
        assert_eq!(rooms(&bob, &root, "").await.contains(&room_id), to_bob, "{rule} {visibility}");
        // The same of the room as the root; and an invite makes it known, a ban hides it.
        let answer = hierarchy(&bob, &room_id, "").await;
        if to_bob {
            answer.ok();
        } else {
            answer.refused(403, "M_FORBIDDEN");
        }
        ann.act(&room_id, "invite", Some(&bob)).await.ok();
        assert_eq!(summary(&http, Some(&bob), &room_id).await.ok()["membership"], "invite");
        assert!(rooms(&bob, &root, "").await.contains(&room_id), "{rule}");
        ann.act(&room_id, "ban", Some(&bob)).await.ok();
        let readable = visibility == "world_readable";
        assert_eq!(rooms(&bob, &root, "").await.contains(&room_id), readable, "{rule}");
    }
    summary(&http, None, "!none:e2e.test").await.refused(404, "M_NOT_FOUND");
    hierarchy(&bob, "!none:e2e.test", "").await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_room_that_is_closed_between_two_pages_is_not_on_the_second() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let root = space(&ann, json!({ "preset": "public_chat" })).await;
    let open = room(&ann, json!({ "join_rule": "public" }), "shared").await;
    add(&ann, &root, &open, child()).await;
    let first = hierarchy(&bob, &root, "?limit=1").await.ok();
    let from = string(&first, "next_batch");
    ann.set_state(&open, "m.room.join_rules", "", &json!({ "join_rule": "invite" })).await.ok();
    assert_eq!(rooms(&bob, &root, &format!("?from={}", encode(&from))).await, [""; 0]);
}

/// What a page's token says, before its MAC: as of when, and how many rooms were shown.
fn position(token: &str) -> (&str, &str) {
    let mut parts = token.splitn(3, '.');
    let at = parts.next().and_then(|at| at.split_once('_')).map(|(_, offset)| offset);
    at.zip(parts.next()).unwrap_or_else(|| panic!("a token of another form: {token}"))
}

#[tokio::test]
async fn a_made_up_token_of_a_space_shows_nothing_of_the_past() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let root = space(&ann, json!({ "name": "secret", "topic": "secret" })).await;
    let hidden = room(&ann, json!({ "join_rule": "public" }), "shared").await;
    add(&ann, &root, &hidden, child()).await;
    let before = ann.here().await;
    let before = before.rsplit('_').next().expect("an offset");
    // Nothing of that is there any more by the time that others may know of the space.
    add(&ann, &root, &hidden, json!({})).await;
    let shown = ann.create_room(json!({ "preset": "public_chat" })).await;
    add(&ann, &root, &shown, child()).await;
    ann.set_state(&root, "m.room.name", "", &json!({ "name": "open" })).await.ok();
    ann.set_state(&root, "m.room.join_rules", "", &json!({ "join_rule": "public" })).await.ok();

    let first = hierarchy(&bob, &root, "?limit=1").await.ok();
    let token = string(&first, "next_batch");
    let (at, passed) = position(&token);
    assert_eq!((first["rooms"][0]["name"].as_str(), passed), (Some("open"), "1"));
    let refused = async |user: &User, token: &str| {
        let answer = hierarchy(user, &root, &format!("?from={}", encode(token))).await;
        answer.refused(400, "M_INVALID_PARAM");
    };
    for (from, to) in [
        (format!("_{at}."), format!("_{before}.")),
        (format!(".{passed}."), ".0.".to_owned()),
        (format!("_{at}.{passed}."), format!("_{before}.0.")),
    ] {
        refused(&bob, &token.replacen(&from, &to, 1)).await;
    }
    // Nor does the token of somebody who could see more at the time.
    let anns = string(&hierarchy(&ann, &root, "?limit=1").await.ok(), "next_batch");
    refused(&bob, &anns).await;
    assert_eq!(rooms(&bob, &root, &format!("?from={}", encode(&token))).await, [shown]);
}

#[tokio::test]
async fn a_later_page_of_a_space_shows_nothing_that_was_redacted_since_the_first() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let root = space(&ann, json!({ "preset": "public_chat" })).await;
    let inner = space(&ann, json!({ "preset": "public_chat" })).await;
    add(&ann, &root, &inner, child()).await;
    let leaf = ann.create_room(json!({ "preset": "public_chat" })).await;
    let named = ann.set_state(&inner, "m.room.name", "", &json!({ "name": "secret" })).await;
    let linked = ann.set_state(&inner, "m.space.child", &leaf, &child()).await;
    let first = hierarchy(&bob, &root, "?limit=1").await.ok();
    let from = encode(&string(&first, "next_batch"));
    for event in [named, linked] {
        let event_id = event.ok_string("event_id");
        let path =
            format!("/rooms/{}/redact/{}/{}", encode(&inner), encode(&event_id), unique("r"));
        ann.put(&path, json!({})).await.ok();
    }
    let second = hierarchy(&bob, &root, &format!("?from={from}")).await.ok();
    assert_eq!(each(&second["rooms"], "/room_id"), [inner]);
    let shown = &second["rooms"][0];
    assert_eq!((shown.get("name"), &shown["children_state"]), (None, &json!([])));
}

#[tokio::test]
async fn a_user_who_is_banned_between_two_pages_of_a_space_gets_no_second_one() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let root = space(&ann, json!({ "preset": "public_chat" })).await;
    let leaf = ann.create_room(json!({ "preset": "public_chat" })).await;
    add(&ann, &root, &leaf, child()).await;
    let first = hierarchy(&bob, &root, "?limit=1").await.ok();
    let from = encode(&string(&first, "next_batch"));
    ann.act(&root, "ban", Some(&bob)).await.ok();
    hierarchy(&bob, &root, &format!("?from={from}")).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_summary_says_what_one_needs_to_know_under_each_of_its_paths() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let name = unique("summary");
    let alias = format!("#{name}:e2e.test");
    let room_id = ann
        .create_room(json!({
            "preset": "public_chat", "name": "Name", "topic": "Topic", "room_alias_name": name,
            "room_version": "11", "creation_content": { "type": "m.space" },
            "initial_state": [
                { "type": "m.room.encryption", "content": { "algorithm": "m.megolm.v1.aes-sha2" } },
                { "type": "m.room.avatar", "content": { "url": "mxc://e2e.test/a" } },
            ],
        }))
        .await;
    let expected = json!({
        "room_id": room_id, "name": "Name", "topic": "Topic", "canonical_alias": alias,
        "avatar_url": "mxc://e2e.test/a", "room_type": "m.space", "num_joined_members": 1,
        "world_readable": false, "guest_can_join": false, "room_version": "11",
        "encryption": "m.megolm.v1.aes-sha2", "membership": "join",
    });
    for room in [&room_id, &alias] {
        let room = encode(room);
        for path in [
            format!("/_matrix/client/v1/room_summary/{room}?via=e2e.test"),
            format!("/_svc/client/v1/room_summary/{room}"),
            format!("/_matrix/client/unstable/im.nheko.summary/rooms/{room}/summary"),
            format!("/_matrix/client/unstable/im.nheko.summary/summary/{room}?via=e2e.test"),
        ] {
            let answer = ann.http.request("GET", &path, Some(&ann.access_token), None).await;
            assert_eq!(answer.ok(), expected, "{path}");
        }
    }
    let path = "/_matrix/client/unstable/im.nheko.summary/summary/nonsense";
    ann.http.request("GET", path, None, None).await.refused(400, "M_INVALID_PARAM");
    summary(&ann.http, None, &format!("#{}:e2e.test", unique("none")))
        .await
        .refused(404, "M_NOT_FOUND");
    let bad = ann.http.request("GET", path, Some("no token"), None).await;
    bad.refused(401, "M_UNKNOWN_TOKEN");

    let club = ann.create_room(json!({})).await;
    let rules = json!({
        "join_rule": "restricted",
        "allow": [{ "type": "m.room_membership", "room_id": club }, { "type": "other" }],
    });
    ann.set_state(&room_id, "m.room.join_rules", "", &rules).await.ok();
    let shown = summary(&ann.http, Some(&ann), &room_id).await.ok();
    assert_eq!(
        (&shown["join_rule"], &shown["allowed_room_ids"]),
        (&json!("restricted"), &json!([club]))
    );
}
