//! `POST /rooms/{roomId}/upgrade`.

use serde_json::{Value, json};

use super::{PASSWORD, anonymous, server, unique, user};
use crate::harness::{Answer, TestServer, User, encode};

async fn upgrade(user: &User, room_id: &str, body: Value) -> Answer {
    user.post(&format!("/rooms/{}/upgrade", encode(room_id)), body).await
}

async fn state(user: &User, room_id: &str, event_type: &str) -> Value {
    let answer = user.state(room_id, event_type, "").await;
    if answer.status == 404 { Value::Null } else { answer.ok() }
}

#[tokio::test]
async fn the_new_room_is_as_the_old_one_was_and_each_names_the_other() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    for (from, to) in
        [("9", "10"), ("10", "9"), ("10", "11"), ("11", "12"), ("12", "12"), ("12", "3")]
    {
        let name = unique("upgraded");
        let alias = format!("#{name}:e2e.test");
        let old = ann
            .create_room(json!({
                "room_version": from, "preset": "public_chat", "visibility": "public",
                "name": "the name", "topic": "the topic", "room_alias_name": name,
                "creation_content": { "type": "org.example.kind", "m.federate": false, "x": 1 },
                "initial_state": [
                    { "type": "m.room.avatar", "content": { "url": "mxc://e2e.test/a" } },
                    { "type": "m.room.encryption", "content": { "algorithm": "m.megolm.v1.aes-sha2" } },
                    { "type": "m.room.server_acl", "content": { "allow": ["*"] } },
                    { "type": "m.room.guest_access", "content": { "guest_access": "forbidden" } },
                    { "type": "m.room.history_visibility", "content": { "history_visibility": "joined" } },
                    { "type": "org.example.mine", "content": { "not": "carried" } },
                ],
                "power_level_content_override": { "kick": 42 },
            }))
            .await;
        bob.join(&old).await.ok();
        let mut levels = state(&ann, &old, "m.room.power_levels").await;
        levels["users"][&bob.user_id] = 60.into();
        ann.set_state(&old, "m.room.power_levels", "", &levels).await.ok();
        let ban = json!({ "user_id": cas.user_id, "reason": "spam" });
        ann.post(&format!("/rooms/{}/ban", encode(&old)), ban).await.ok();
        let last = ann.send_text(&old, "last", "the end").await;

        let new = upgrade(&ann, &old, json!({ "new_version": to })).await;
        let new = new.ok_string("replacement_room");
        assert_ne!(new, old);
        let tombstone = state(&bob, &old, "m.room.tombstone").await;
        assert_eq!(tombstone["replacement_room"], new.as_str());
        assert!(tombstone["body"].is_string());
        let create = state(&ann, &new, "m.room.create").await;
        assert_eq!(create["room_version"], to);
        assert_eq!(create["predecessor"]["room_id"], old.as_str());
        let event_id = create["predecessor"].get("event_id");
        assert_eq!(event_id.is_none(), to == "12", "{create}");
        assert!(event_id.is_none_or(|event_id| *event_id == last.as_str()), "{create}");
        assert_eq!(create["type"], "org.example.kind");
        assert_eq!((&create["m.federate"], create.get("x")), (&json!(false), None));
        for event_type in [
            "m.room.avatar",
            "m.room.encryption",
            "m.room.server_acl",
            "m.room.guest_access",
            "m.room.history_visibility",
            "m.room.join_rules",
            "m.room.name",
            "m.room.topic",
        ] {
            let carried = state(&ann, &new, event_type).await;
            assert_ne!(carried, Value::Null, "{event_type}");
            assert_eq!(carried, state(&ann, &old, event_type).await, "{event_type}");
        }
        assert_eq!(state(&ann, &new, "org.example.mine").await, Value::Null);
        let banned = ann.state(&new, "m.room.member", &cas.user_id).await.ok();
        assert_eq!(banned, json!({ "membership": "ban", "reason": "spam" }));
        ann.state(&new, "m.room.member", &bob.user_id).await.refused(404, "M_NOT_FOUND");

        let carried = state(&ann, &new, "m.room.power_levels").await;
        assert_eq!((&carried["kick"], &carried["users"][&bob.user_id]), (&json!(42), &json!(60)));
        let own = carried["users"].get(&ann.user_id).and_then(Value::as_i64);
        match (from, to) {
            (_, "12") => assert_eq!(own, None, "creators are above all levels"),
            ("12", _) => assert_eq!(own, Some(150), "what was above all is as high as any"),
            _ => assert_eq!(own, Some(100)),
        }
        let tombstone_level = &carried["events"]["m.room.tombstone"];
        assert_eq!(*tombstone_level, if [from, to].contains(&"12") { 150 } else { 100 });

        // The alias leads to the new room, which is named by it, and the old one is not any more.
        let found = ann.get(&format!("/directory/room/{}", encode(&alias))).await.ok();
        assert_eq!(found["room_id"], new.as_str());
        assert_eq!(state(&ann, &new, "m.room.canonical_alias").await["alias"], alias.as_str());
        assert_eq!(state(&ann, &old, "m.room.canonical_alias").await, json!({}));
        for (room_id, visibility) in [(&old, "private"), (&new, "public")] {
            let listed = ann.get(&format!("/directory/list/room/{}", encode(room_id))).await.ok();
            assert_eq!(listed["visibility"], visibility);
        }

        // In the old room nothing more is said.
        let closed = state(&ann, &old, "m.room.power_levels").await;
        assert_eq!((&closed["events_default"], &closed["invite"]), (&json!(50), &json!(50)));
        assert_eq!(closed["users"], levels["users"]);
        cas.join(&new).await.refused(403, "M_FORBIDDEN");
        bob.join(&new).await.ok();
        bob.send_text(&new, "t", "hello").await;
        ann.set_state(&new, "m.room.name", "", &json!({ "name": "renamed" })).await.ok();
    }
}

#[tokio::test]
async fn only_those_who_may_end_a_room_upgrade_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let to = |version: &str| json!({ "new_version": version });
    upgrade(&bob, &room_id, to("11")).await.refused(403, "M_FORBIDDEN");
    bob.join(&room_id).await.ok();
    upgrade(&bob, &room_id, to("11")).await.refused(403, "M_FORBIDDEN");
    for version in ["0", "13", "org.example.future"] {
        upgrade(&ann, &room_id, to(version)).await.refused(400, "M_UNSUPPORTED_ROOM_VERSION");
    }
    upgrade(&ann, &room_id, json!({})).await.refused(400, "M_BAD_JSON");
    upgrade(&ann, "!none:e2e.test", to("11")).await.refused(403, "M_FORBIDDEN");
    let path = format!("/rooms/{}/upgrade", encode(&room_id));
    let answer = anonymous(&server.http(), "POST", &path, Some(&to("11"))).await;
    answer.refused(401, "M_MISSING_TOKEN");
    assert_eq!(state(&ann, &room_id, "m.room.tombstone").await, Value::Null);
    assert_eq!(ann.get("/joined_rooms").await.ok(), json!({ "joined_rooms": [room_id] }));
    // One who may end it and no more makes a room that is as it was, too.
    let mut levels = state(&ann, &room_id, "m.room.power_levels").await;
    levels["events"]["m.room.tombstone"] = 0.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    ann.set_state(&room_id, "m.room.encryption", "", &json!({ "algorithm": "x" })).await.ok();
    let new = upgrade(&bob, &room_id, to("11")).await.ok_string("replacement_room");
    assert_eq!(state(&bob, &new, "m.room.power_levels").await, levels);
    assert_eq!(state(&bob, &new, "m.room.encryption").await["algorithm"], "x");
    // But closes nothing.
    assert_eq!(state(&bob, &room_id, "m.room.power_levels").await, levels);
}

#[tokio::test]
async fn creators_of_the_new_room_are_those_who_are_named() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = ann
        .create_room(json!({
            "room_version": "12", "preset": "public_chat",
            "creation_content": { "additional_creators": [cas.user_id] },
        }))
        .await;
    let body = json!({
        "new_version": "12", "additional_creators": [bob.user_id, ann.user_id, bob.user_id],
    });
    let new = upgrade(&ann, &room_id, body.clone()).await.ok_string("replacement_room");
    let create = state(&ann, &new, "m.room.create").await;
    assert_eq!(create["additional_creators"], json!([bob.user_id]));
    bob.join(&new).await.ok();
    bob.set_state(&new, "m.room.tombstone", "", &json!({})).await.ok();
    // A version with one creator ignores it; a user id that is none is refused.
    let room_id = ann.create_room(json!({})).await;
    let body = json!({ "new_version": "11", "additional_creators": [bob.user_id] });
    let new = upgrade(&ann, &room_id, body).await.ok_string("replacement_room");
    assert!(state(&ann, &new, "m.room.create").await.get("additional_creators").is_none());
    let body = json!({ "new_version": "12", "additional_creators": ["nobody"] });
    let answer = upgrade(&ann, &room_id, body).await;
    assert_eq!(answer.status, 400, "{answer}");
}

#[tokio::test]
async fn levels_that_were_texts_become_numbers_where_the_version_wants_them() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "room_version": "9" })).await;
    let mut levels = state(&ann, &room_id, "m.room.power_levels").await;
    levels["users"][&bob.user_id] = json!("30");
    levels["ban"] = json!(" 70 ");
    levels["events"]["m.room.name"] = json!("20");
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    let body = json!({ "new_version": "10" });
    let new = upgrade(&ann, &room_id, body).await.ok_string("replacement_room");
    let carried = state(&ann, &new, "m.room.power_levels").await;
    assert_eq!(carried["users"][&bob.user_id], 30);
    assert_eq!((&carried["ban"], &carried["events"]["m.room.name"]), (&json!(70), &json!(20)));
    // From version 10 on, a text is no level.
    ann.set_state(&new, "m.room.power_levels", "", &levels).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_join_rule_that_the_version_lacks_becomes_one_that_it_has() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for (rule, to, becomes) in [
        ("knock_restricted", "10", "knock_restricted"),
        ("knock_restricted", "8", "restricted"),
        ("knock_restricted", "6", "invite"),
        ("restricted", "7", "invite"),
        ("knock", "7", "knock"),
        ("knock", "6", "invite"),
        ("public", "3", "public"),
    ] {
        let join_rules = json!({ "type": "m.room.join_rules", "content": { "join_rule": rule } });
        let room_id = ann.create_room(json!({ "initial_state": [join_rules] })).await;
        let new = upgrade(&ann, &room_id, json!({ "new_version": to })).await;
        let new = new.ok_string("replacement_room");
        assert_eq!(state(&ann, &new, "m.room.join_rules").await["join_rule"], becomes, "{to}");
    }
}

#[tokio::test]
async fn a_space_keeps_its_children_and_what_was_redacted_stays_so() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let space = ann.create_room(json!({ "creation_content": { "type": "m.space" } })).await;
    let child = json!({ "via": ["e2e.test"], "order": "a" });
    for (key, content) in [("!in:e2e.test", &child), ("!out:e2e.test", &json!({}))] {
        ann.set_state(&space, "m.space.child", key, content).await.ok();
    }
    let name = json!({ "name": "secret" });
    let event_id = ann.set_state(&space, "m.room.name", "", &name).await.ok_string("event_id");
    let path = format!("/rooms/{}/redact/{}/r", encode(&space), encode(&event_id));
    ann.put(&path, json!({})).await.ok();
    let new = upgrade(&ann, &space, json!({ "new_version": "11" })).await;
    let new = new.ok_string("replacement_room");
    assert_eq!(state(&ann, &new, "m.room.create").await["type"], "m.space");
    assert_eq!(ann.state(&new, "m.space.child", "!in:e2e.test").await.ok(), child);
    ann.state(&new, "m.space.child", "!out:e2e.test").await.refused(404, "M_NOT_FOUND");
    assert_eq!(state(&ann, &new, "m.room.name").await, json!({}));
}

#[tokio::test]
async fn tags_and_direct_chats_come_along_but_not_for_a_room_that_only_says_so() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let old = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&old).await.ok();
    let data = |user: &User, room: Option<&str>, event_type: &str| {
        let room = room.map_or_else(String::new, |room| format!("/rooms/{}", encode(room)));
        format!("/user/{}{room}/account_data/{event_type}", encode(&user.user_id))
    };
    let tags = json!({ "tags": { "m.favourite": { "order": 0.5 } } });
    for user in [&ann, &bob] {
        user.put(&data(user, Some(&old), "m.tag"), tags.clone()).await.ok();
    }
    let direct = json!({ "@x:e2e.test": [old, "!y:e2e.test"], "@z:e2e.test": ["!y:e2e.test"] });
    bob.put(&data(&bob, None, "m.direct"), direct).await.ok();
    let rule = |kind: &str, id: &str| format!("/pushrules/global/{kind}/{}", encode(id));
    let muted = json!({ "actions": [] });
    bob.put(&rule("room", &old), muted).await.ok();
    let named = |room_id: &str| {
        let condition = json!({ "kind": "event_match", "key": "room_id", "pattern": room_id });
        json!({ "actions": ["notify"], "conditions": [condition] })
    };
    bob.put(&rule("override", &old), named(&old)).await.ok();
    bob.put(&rule("override", "mine"), named(&old)).await.ok();
    let impostor = ann
        .create_room(json!({
            "preset": "public_chat",
            "creation_content": { "predecessor": { "room_id": old, "event_id": "$x" } },
        }))
        .await;
    bob.join(&impostor).await.ok();
    bob.get(&data(&bob, Some(&impostor), "m.tag")).await.refused(404, "M_NOT_FOUND");
    let new = upgrade(&ann, &old, json!({ "new_version": "12" })).await;
    let new = new.ok_string("replacement_room");
    assert_eq!(ann.get(&data(&ann, Some(&new), "m.tag")).await.ok(), tags);
    bob.get(&data(&bob, Some(&new), "m.tag")).await.refused(404, "M_NOT_FOUND");
    bob.join(&new).await.ok();
    assert_eq!(bob.get(&data(&bob, Some(&new), "m.tag")).await.ok(), tags);
    let direct = bob.get(&data(&bob, None, "m.direct")).await.ok();
    assert_eq!(direct["@x:e2e.test"], json!([old, "!y:e2e.test", new]));
    assert_eq!(direct["@z:e2e.test"], json!(["!y:e2e.test"]));
    let rules = bob.get("/pushrules/").await.ok();
    let of_room = |kind: &str, id: &str| {
        let rules = rules["global"][kind].as_array().into_iter().flatten();
        rules.filter(|rule| rule["rule_id"] == id).cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_room("room", &old).len(), 1, "{rules}");
    assert_eq!(of_room("room", &new)[0]["actions"], json!([]), "{rules}");
    for id in [new.clone(), format!("mine {new}")] {
        let carried = of_room("override", &id);
        assert_eq!(carried[0]["conditions"], named(&new)["conditions"], "{id}: {rules}");
        assert_eq!(carried.len(), 1, "{id}: {rules}");
    }
    // What is set for the new room by then stays.
    bob.put(&data(&bob, Some(&new), "m.tag"), json!({ "tags": {} })).await.ok();
    bob.act(&new, "leave", None).await.ok();
    bob.join(&new).await.ok();
    assert_eq!(bob.get(&data(&bob, Some(&new), "m.tag")).await.ok(), json!({ "tags": {} }));
    assert_eq!(bob.get("/pushrules/").await.ok(), rules);
}

#[tokio::test]
async fn an_upgrade_outlives_a_kill() {
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let old = ann.create_room(json!({ "room_alias_name": "moved", "name": "n" })).await;
    let new = upgrade(&ann, &old, json!({ "new_version": "12" })).await;
    let new = new.ok_string("replacement_room");
    server.kill9();
    server.restart().await;
    let ann = User::login(&server.http(), &ann.user_id, PASSWORD).await;
    assert_eq!(state(&ann, &old, "m.room.tombstone").await["replacement_room"], new.as_str());
    assert_eq!(state(&ann, &new, "m.room.name").await["name"], "n");
    let found = ann.get("/directory/room/%23moved:e2e.test").await.ok();
    assert_eq!(found["room_id"], new.as_str());
    ann.send_text(&new, "t", "still here").await;
}
