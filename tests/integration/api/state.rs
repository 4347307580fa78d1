//! Reading and setting a room's state.

use serde_json::{Value, json};

use super::{each, server, user};
use crate::harness::{User, encode};

#[tokio::test]
async fn state_is_set_and_read_with_and_without_a_key_or_a_slash() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let room = format!("/rooms/{}", encode(&room_id));
    for (path, name) in [("/state/m.room.name", "one"), ("/state/m.room.name/", "two")] {
        let answer = ann.put(&format!("{room}{path}"), json!({ "name": name })).await;
        assert!(answer.ok_string("event_id").starts_with('$'));
        for path in ["/state/m.room.name", "/state/m.room.name/"] {
            assert_eq!(ann.get_room(&room_id, path).await.ok(), json!({ "name": name }));
        }
    }
    let key = format!("{room}/state/org.example.x/key");
    ann.put(&key, json!({ "of": "key" })).await.ok();
    assert_eq!(ann.get(&key).await.ok(), json!({ "of": "key" }));
    ann.get_room(&room_id, "/state/org.example.x").await.refused(404, "M_NOT_FOUND");
    ann.get_room(&room_id, "/state/org.example.y/key").await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn the_whole_event_is_given_for_format_event() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "name": "first" })).await;
    let content = json!({ "name": "second" });
    let set = ann.set_state(&room_id, "m.room.name", "", &content).await.ok_string("event_id");
    let event = ann.get_room(&room_id, "/state/m.room.name?format=event").await.ok();
    assert_eq!(event["event_id"], set.as_str());
    assert_eq!(event["type"], "m.room.name");
    assert_eq!(event["state_key"], "");
    assert_eq!(event["sender"], ann.user_id.as_str());
    assert_eq!(event["room_id"], room_id.as_str());
    assert!(event["origin_server_ts"].is_u64());
    assert_eq!(event["content"], content);
    assert_eq!(event["unsigned"]["prev_content"], json!({ "name": "first" }));
    assert!(event["unsigned"]["age"].is_i64());
    let content_only = ann.get_room(&room_id, "/state/m.room.name?format=content").await.ok();
    assert_eq!(content_only, content);
}

#[tokio::test]
async fn all_state_is_listed_once_per_key() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "name": "a", "topic": "t" })).await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "b" })).await.ok();
    let state = ann.get_room(&room_id, "/state").await.ok();
    let mut types = each(&state, "/type");
    types.sort();
    assert_eq!(
        types,
        [
            "m.room.create",
            "m.room.guest_access",
            "m.room.history_visibility",
            "m.room.join_rules",
            "m.room.member",
            "m.room.name",
            "m.room.power_levels",
            "m.room.topic",
        ]
    );
    assert_eq!(each(&state, "/room_id"), vec![room_id; types.len()]);
}

#[tokio::test]
async fn state_needs_power_and_some_of_it_never_changes() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let name = json!({ "name": "x" });
    bob.set_state(&room_id, "m.room.name", "", &name).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    bob.set_state(&room_id, "m.room.name", "", &name).await.refused(403, "M_FORBIDDEN");
    ann.set_state(&room_id, "m.room.create", "", &json!({})).await.refused(403, "M_FORBIDDEN");
    // A key that is a user id belongs to that user.
    let mut levels = ann.state(&room_id, "m.room.power_levels", "").await.ok();
    levels["state_default"] = 0.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    bob.set_state(&room_id, "m.x", &ann.user_id, &json!({})).await.refused(403, "M_FORBIDDEN");
    bob.set_state(&room_id, "m.x", &bob.user_id, &json!({})).await.ok();
    let bad = json!({ "users": { ann.user_id.as_str(): "100" } });
    let answer = ann.set_state(&room_id, "m.room.power_levels", "", &bad).await;
    assert!(matches!(answer.status, 400 | 403), "{answer}");
}

#[tokio::test]
async fn a_canonical_alias_must_point_at_the_room() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let other = ann.create_room(json!({})).await;
    let alias = format!("#{}:e2e.test", super::unique("alias"));
    let set = |alias: &str| json!({ "alias": alias });
    let kind = "m.room.canonical_alias";
    ann.set_state(&room_id, kind, "", &set(&alias)).await.refused(400, "M_BAD_ALIAS");
    let path = format!("/directory/room/{}", encode(&alias));
    ann.put(&path, json!({ "room_id": room_id })).await.ok();
    ann.set_state(&room_id, kind, "", &set(&alias)).await.ok();
    ann.set_state(&other, kind, "", &set(&alias)).await.refused(400, "M_BAD_ALIAS");
    ann.set_state(&room_id, kind, "", &set("nonsense")).await.refused(400, "M_INVALID_PARAM");
    let alt = json!({ "alt_aliases": [alias, "#none:e2e.test"] });
    ann.set_state(&room_id, kind, "", &alt).await.refused(400, "M_BAD_ALIAS");
    ann.set_state(&room_id, kind, "", &json!({})).await.ok();
}

#[tokio::test]
async fn one_who_left_sees_the_state_as_it_was_then() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let stranger = user(&server, "cas").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "then" })).await;
    bob.join(&room_id).await.ok();
    bob.act(&room_id, "leave", None).await.ok();
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "now" })).await.ok();
    assert_eq!(bob.state(&room_id, "m.room.name", "").await.ok()["name"], "then");
    let state = bob.get_room(&room_id, "/state").await.ok();
    assert!(!state.to_string().contains("\"now\""), "{state}");
    stranger.state(&room_id, "m.room.name", "").await.refused(403, "M_FORBIDDEN");
    stranger.get_room(&room_id, "/state").await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_canonical_alias_may_be_absent_null_or_empty_beside_others() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let (alias, other) = (super::unique("main"), super::unique("other"));
    let [alias, other] = [alias, other].map(|name| format!("#{name}:e2e.test"));
    for name in [&alias, &other] {
        let path = format!("/directory/room/{}", encode(name));
        ann.put(&path, json!({ "room_id": room_id })).await.ok();
    }
    let kind = "m.room.canonical_alias";
    for content in [
        json!({ "alias": alias, "alt_aliases": [other] }),
        json!({ "alt_aliases": [alias, other] }),
        json!({ "alias": null, "alt_aliases": [other] }),
        json!({ "alias": "", "alt_aliases": [other] }),
        json!({ "alias": "" }),
        json!({ "alias": null }),
        json!({}),
    ] {
        ann.set_state(&room_id, kind, "", &content).await.ok();
        assert_eq!(ann.state(&room_id, kind, "").await.ok(), content);
    }
    for content in [json!({ "alias": 3 }), json!({ "alt_aliases": other })] {
        let answer = ann.set_state(&room_id, kind, "", &content).await;
        assert_eq!(answer.status, 400, "{content}: {answer}");
    }
}

#[tokio::test]
async fn an_event_of_aliases_is_an_event_and_means_nothing() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for version in ["3", "10", "12"] {
        let room_id = ann.create_room(json!({ "room_version": version })).await;
        let alias = format!("#{}:e2e.test", super::unique("historical"));
        let content = json!({ "aliases": [alias] });
        ann.set_state(&room_id, "m.room.aliases", "e2e.test", &content).await.ok();
        assert_eq!(ann.state(&room_id, "m.room.aliases", "e2e.test").await.ok(), content);
        let path = format!("/directory/room/{}", encode(&alias));
        ann.get(&path).await.refused(404, "M_NOT_FOUND");
        assert_eq!(ann.get_room(&room_id, "/aliases").await.ok(), json!({ "aliases": [] }));
    }
}

#[tokio::test]
async fn the_create_event_is_the_first_and_stays_as_it_was() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    for version in ["3", "10", "12"] {
        let options = json!({ "room_version": version, "preset": "public_chat" });
        let room_id = ann.create_room(options).await;
        bob.join(&room_id).await.ok();
        let first = ann.get_room(&room_id, "/messages?dir=f&limit=1").await.ok();
        assert_eq!(each(&first["chunk"], "/type"), ["m.room.create"]);
        let before = ann.state(&room_id, "m.room.create", "").await.ok();
        assert_eq!(before["room_version"], version, "never left to its default");
        let mut changed = before.clone();
        changed["m.federate"] = false.into();
        for (who, content) in [(&ann, &changed), (&ann, &before), (&bob, &changed)] {
            let answer = who.set_state(&room_id, "m.room.create", "", content).await;
            answer.refused(403, "M_FORBIDDEN");
        }
        assert_eq!(ann.state(&room_id, "m.room.create", "").await.ok(), before);
    }
}

#[tokio::test]
async fn state_that_is_there_already_is_not_set_again() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let levels = json!({
        "users": { &ann.user_id: 100, &bob.user_id: 50 }, "state_default": 50, "redact": 50,
    });
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let topic = json!({ "topic": "one", "more": [1, { "a": "b" }] });
    let set = async |user: &User, content: &Value| {
        let answer = user.set_state(&room_id, "m.room.topic", "", content).await;
        answer.ok_string("event_id")
    };
    let first = set(&ann, &topic).await;
    let since = ann.sync(None, 0, None).await["next_batch"].as_str().expect("a token").to_owned();
    assert_eq!(set(&ann, &topic).await, first);
    let news = ann.sync(Some(&since), 0, None).await;
    assert_eq!(news["rooms"]["join"], json!({}), "{news}");
    // Said by somebody else, or after something else, it is new.
    let second = set(&bob, &topic).await;
    assert_ne!(second, first);
    let other = set(&bob, &json!({ "topic": "two" })).await;
    let third = set(&bob, &topic).await;
    assert!(![&first, &second, &other].contains(&&third));
    // Of what was redacted nothing stands.
    let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&third));
    ann.put(&path, json!({})).await.ok();
    assert_ne!(set(&bob, &topic).await, third);
    // One who may not set it any more is refused, although it is so.
    let levels = json!({ "users": { &ann.user_id: 100 }, "state_default": 50 });
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    bob.set_state(&room_id, "m.room.topic", "", &topic).await.refused(403, "M_FORBIDDEN");
}
