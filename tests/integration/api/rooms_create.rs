//! `POST /createRoom`.

use serde_json::{Value, json};

use super::{each, one_wins, server, string, unique, user};
use crate::harness::{User, encode};

/// The content of a state event with an empty key; null if there is none.
async fn state(user: &User, room_id: &str, event_type: &str) -> Value {
    let answer = user.state(room_id, event_type, "").await;
    if answer.status == 404 { Value::Null } else { answer.ok() }
}

#[tokio::test]
async fn a_room_begins_with_its_creator_and_what_the_preset_says() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for (options, join_rule, guest_access) in [
        (json!({}), "invite", json!("can_join")),
        (json!({ "preset": "private_chat" }), "invite", json!("can_join")),
        (json!({ "preset": "trusted_private_chat" }), "invite", json!("can_join")),
        (json!({ "preset": "public_chat" }), "public", Value::Null),
        (json!({ "visibility": "public" }), "public", Value::Null),
        (json!({ "visibility": "public", "preset": "private_chat" }), "invite", json!("can_join")),
    ] {
        let room_id = ann.create_room(options.clone()).await;
        assert_eq!(state(&ann, &room_id, "m.room.join_rules").await["join_rule"], join_rule);
        let visibility = state(&ann, &room_id, "m.room.history_visibility").await;
        assert_eq!(visibility["history_visibility"], "shared");
        let guests = state(&ann, &room_id, "m.room.guest_access").await;
        assert_eq!(guests["guest_access"], guest_access, "{options}");
        let create = state(&ann, &room_id, "m.room.create").await;
        assert_eq!(create["room_version"], "10");
        assert_eq!(create["creator"], ann.user_id.as_str());
        let levels = state(&ann, &room_id, "m.room.power_levels").await;
        assert_eq!(levels["users"], json!({ ann.user_id.as_str(): 100 }));
        assert_eq!(
            ann.state(&room_id, "m.room.member", &ann.user_id).await.ok()["membership"],
            "join"
        );
    }
    let first = ann.create_room(json!({})).await;
    let timeline = ann.get_room(&first, "/messages?dir=f&limit=3").await.ok();
    assert_eq!(
        each(&timeline["chunk"], "/type"),
        ["m.room.create", "m.room.member", "m.room.power_levels"]
    );
}

#[tokio::test]
async fn those_invited_to_a_trusted_room_have_its_creators_power() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let options = json!({ "preset": "trusted_private_chat", "invite": [bob.user_id] });
    let room_id = ann.create_room(options).await;
    let levels = state(&ann, &room_id, "m.room.power_levels").await;
    assert_eq!(levels["users"][&bob.user_id], 100);
    bob.join(&room_id).await.ok();
    bob.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
}

#[tokio::test]
async fn initial_state_wins_over_the_preset_and_name_and_topic_come_last() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann
        .create_room(json!({
            "preset": "public_chat",
            "name": "the name", "topic": "the topic",
            "initial_state": [
                { "type": "m.room.join_rules", "content": { "join_rule": "knock" } },
                { "type": "m.room.history_visibility", "state_key": "",
                  "content": { "history_visibility": "joined" } },
                { "type": "m.room.name", "content": { "name": "not this" } },
                { "type": "org.example.thing", "state_key": "a key", "content": { "x": [1, null] } },
            ],
        }))
        .await;
    assert_eq!(state(&ann, &room_id, "m.room.join_rules").await["join_rule"], "knock");
    let visibility = state(&ann, &room_id, "m.room.history_visibility").await;
    assert_eq!(visibility["history_visibility"], "joined");
    assert_eq!(state(&ann, &room_id, "m.room.name").await, json!({ "name": "the name" }));
    assert_eq!(state(&ann, &room_id, "m.room.topic").await["topic"], "the topic");
    let thing = ann.state(&room_id, "org.example.thing", "a key").await.ok();
    assert_eq!(thing, json!({ "x": [1, null] }));
}

#[tokio::test]
async fn power_levels_can_be_overridden_key_by_key() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let options = json!({ "power_level_content_override": { "events_default": 25, "ban": 75 } });
    let room_id = ann.create_room(options).await;
    let levels = state(&ann, &room_id, "m.room.power_levels").await;
    assert_eq!((&levels["events_default"], &levels["ban"]), (&json!(25), &json!(75)));
    assert_eq!(levels["users"][&ann.user_id], 100);
    assert_eq!(levels["kick"], 50);
}

#[tokio::test]
async fn invites_are_sent_and_marked_as_direct() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let options = json!({ "invite": [bob.user_id], "is_direct": true, "name": "us" });
    let room_id = ann.create_room(options).await;
    let member = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!((&member["membership"], &member["is_direct"]), (&json!("invite"), &json!(true)));
    let sync = bob.sync(None, 0, None).await;
    let invite = &sync["rooms"]["invite"][&room_id]["invite_state"]["events"];
    let own = invite
        .as_array()
        .and_then(|events| events.iter().find(|event| event["state_key"] == bob.user_id.as_str()));
    assert_eq!(own.map(|own| &own["content"]["is_direct"]), Some(&json!(true)), "{invite}");
    // One who cannot be reached spoils the room.
    let answer = ann.post("/createRoom", json!({ "invite": ["@x:elsewhere.test"] })).await;
    assert_eq!(answer.status, 403, "{answer}");
    let rooms = ann.get("/joined_rooms").await.ok();
    assert_eq!(rooms["joined_rooms"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn an_alias_is_made_once() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let name = unique("lounge");
    let options = json!({ "room_alias_name": name });
    let room_id = ann.create_room(options.clone()).await;
    let alias = format!("#{name}:e2e.test");
    assert_eq!(state(&ann, &room_id, "m.room.canonical_alias").await["alias"], alias.as_str());
    let found = ann.get(&format!("/directory/room/{}", encode(&alias))).await.ok();
    assert_eq!(found["room_id"], room_id.as_str());
    ann.post("/createRoom", options).await.refused(400, "M_ROOM_IN_USE");
    let bad = ann.post("/createRoom", json!({ "room_alias_name": "x".repeat(255) })).await;
    bad.refused(400, "M_INVALID_PARAM");
    let rooms = ann.get("/joined_rooms").await.ok();
    assert_eq!(rooms["joined_rooms"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn of_two_rooms_racing_for_an_alias_one_is_made() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let options = json!({ "room_alias_name": unique("race") });
    let racers: Vec<_> = (0..8)
        .map(|_| {
            let (ann, options) = (ann.clone(), options.clone());
            tokio::spawn(async move { ann.post("/createRoom", options).await })
        })
        .collect();
    one_wins(racers, "M_ROOM_IN_USE").await;
}

#[tokio::test]
async fn every_offered_room_version_makes_a_room_that_works() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    for version in 1..=12 {
        let options = json!({ "room_version": version.to_string(), "preset": "public_chat" });
        let room_id = ann.create_room(options).await;
        let create = state(&ann, &room_id, "m.room.create").await;
        assert_eq!(create["room_version"], version.to_string());
        assert_eq!(create.get("creator").is_some(), version < 11, "version {version}: {create}");
        assert_eq!(room_id.contains(':'), version < 12, "{room_id}");
        bob.join(&room_id).await.ok();
        let event_id = bob.send_text(&room_id, "t1", "hello").await;
        ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "n" })).await.ok();
        bob.set_state(&room_id, "m.room.name", "", &json!({ "name": "x" }))
            .await
            .refused(403, "M_FORBIDDEN");
        let path = format!("/rooms/{}/redact/{}/t2", encode(&room_id), encode(&event_id));
        ann.put(&path, json!({})).await.ok();
        let event = bob.get_room(&room_id, &format!("/event/{}", encode(&event_id))).await.ok();
        assert_eq!(event["content"], json!({}), "version {version}");
        ann.act(&room_id, "kick", Some(&bob)).await.ok();
    }
}

#[tokio::test]
async fn creators_of_version_12_stand_above_every_level() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = ann
        .create_room(json!({
            "room_version": "12", "preset": "trusted_private_chat", "invite": [bob.user_id],
        }))
        .await;
    let create = ann.get_room(&room_id, "/state/m.room.create/?format=event").await.ok();
    assert_eq!(create["event_id"].as_str().map(|id| id.replace('$', "!")), Some(room_id.clone()));
    assert_eq!(create["sender"], ann.user_id.as_str());
    assert_eq!(create["content"]["additional_creators"], json!([bob.user_id]));
    let mut levels = state(&ann, &room_id, "m.room.power_levels").await;
    assert!(levels["users"].get(&ann.user_id).is_none(), "{levels}");
    bob.join(&room_id).await.ok();
    bob.set_state(&room_id, "m.room.tombstone", "", &json!({ "body": "x" })).await.ok();
    // A creator's power cannot be written into the levels, and no level reaches a creator.
    levels["users"][&ann.user_id] = 100.into();
    ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.refused(403, "M_FORBIDDEN");
    levels["users"] = json!({ cas.user_id.as_str(): 1000 });
    bob.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
    ann.act(&room_id, "invite", Some(&cas)).await.ok();
    cas.join(&room_id).await.ok();
    cas.act(&room_id, "kick", Some(&ann)).await.refused(403, "M_FORBIDDEN");
    ann.act(&room_id, "kick", Some(&cas)).await.ok();
    let options = json!({
        "room_version": "12",
        "power_level_content_override": { "users": { ann.user_id.as_str(): 100 } },
    });
    assert_eq!(ann.post("/createRoom", options).await.status, 400);
}

#[tokio::test]
async fn an_unsupported_room_version_is_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for version in ["0", "13", "org.example.future"] {
        let answer = ann.post("/createRoom", json!({ "room_version": version })).await;
        answer.refused(400, "M_UNSUPPORTED_ROOM_VERSION");
    }
}

#[tokio::test]
async fn creation_content_is_kept_but_for_what_the_server_says() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann
        .create_room(json!({
            "creation_content": {
                "m.federate": false, "type": "m.space", "org.example.x": 1,
                "creator": "@someone:else.test", "room_version": "3",
                "predecessor": { "room_id": "!old:e2e.test", "event_id": "$last" },
            },
        }))
        .await;
    let create = state(&ann, &room_id, "m.room.create").await;
    assert_eq!(create["m.federate"], false);
    assert_eq!((&create["type"], &create["org.example.x"]), (&json!("m.space"), &json!(1)));
    assert_eq!(create["predecessor"]["room_id"], "!old:e2e.test");
    assert_eq!(create["creator"], ann.user_id.as_str());
    assert_eq!(create["room_version"], "10");
}

#[tokio::test]
async fn bad_initial_state_is_named_as_such_and_leaves_no_room() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for state in [
        json!([{ "type": "m.room.create", "content": {} }]),
        json!([{ "type": "m.room.member", "state_key": "@x:e2e.test",
                 "content": { "membership": "join" } }]),
        json!([{ "type": "m.room.power_levels", "content": { "users": 3 } }]),
        json!([{ "type": "org.example.x", "content": { "float": 0.5 } }]),
    ] {
        let answer = ann.post("/createRoom", json!({ "initial_state": state })).await;
        answer.refused(400, "M_INVALID_ROOM_STATE");
    }
    for body in [
        json!({ "initial_state": [{ "content": {} }] }),
        json!({ "initial_state": [3] }),
        json!({ "creation_content": { "x": 0.5 } }),
    ] {
        ann.post("/createRoom", body).await.refused(400, "M_BAD_JSON");
    }
    let creators = json!({ "additional_creators": ["nonsense"] });
    let body = json!({ "room_version": "12", "creation_content": creators });
    ann.post("/createRoom", body).await.refused(400, "M_INVALID_ROOM_STATE");
    let preset = ann.post("/createRoom", json!({ "preset": "org.example.none" })).await;
    preset.refused(400, "M_INVALID_PARAM");
    let hidden = ann.post("/createRoom", json!({ "visibility": "hidden" })).await;
    hidden.refused(400, "M_INVALID_PARAM");
    assert_eq!(ann.get("/joined_rooms").await.ok(), json!({ "joined_rooms": [] }));
}

#[tokio::test]
async fn a_public_room_is_listed() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for (visibility, listed) in [("public", true), ("private", false)] {
        let room_id = ann.create_room(json!({ "visibility": visibility })).await;
        let path = format!("/directory/list/room/{}", encode(&room_id));
        assert_eq!(string(&ann.get(&path).await.ok(), "visibility"), visibility);
        let rooms = ann.get("/publicRooms?limit=1000").await.ok();
        assert_eq!(each(&rooms["chunk"], "/room_id").contains(&room_id), listed);
    }
}

#[tokio::test]
async fn null_means_absent() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let options = json!({
        "name": null, "topic": null, "preset": null, "invite": null, "room_alias_name": null,
        "room_version": null, "initial_state": null, "creation_content": null,
    });
    let room_id = ann.create_room(options).await;
    assert_eq!(state(&ann, &room_id, "m.room.name").await, Value::Null);
}

#[tokio::test]
async fn a_name_too_large_for_an_event_makes_no_room() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let options = json!({ "name": "x".repeat(66_000), "room_alias_name": unique("large") });
    ann.post("/createRoom", options.clone()).await.refused(413, "M_TOO_LARGE");
    let path = format!(
        "/directory/room/{}",
        encode(&format!("#{}:e2e.test", string(&options, "room_alias_name")))
    );
    ann.get(&path).await.refused(404, "M_NOT_FOUND");
    let options = json!({ "power_level_content_override": { "users": "nobody" } });
    ann.post("/createRoom", options).await.refused(400, "M_INVALID_ROOM_STATE");
}

#[tokio::test]
async fn initial_state_is_validated_like_later_state() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let name = unique("named");
    let own = format!("#{name}:e2e.test");
    let elsewhere = unique("elsewhere");
    ann.create_room(json!({ "room_alias_name": elsewhere })).await;
    let alias = |content: Value| json!([{ "type": "m.room.canonical_alias", "content": content }]);
    for (content, status, code) in [
        (json!({ "alias": format!("#{elsewhere}:e2e.test") }), 400, "M_BAD_ALIAS"),
        (json!({ "alt_aliases": [own, "#none:e2e.test"] }), 400, "M_BAD_ALIAS"),
    ] {
        let options = json!({ "room_alias_name": name, "initial_state": alias(content) });
        ann.post("/createRoom", options).await.refused(status, code);
    }
    let content = json!({ "alt_aliases": [own] });
    let options = json!({ "room_alias_name": name, "initial_state": alias(content.clone()) });
    let room_id = ann.create_room(options).await;
    assert_eq!(state(&ann, &room_id, "m.room.canonical_alias").await, content);
    // An invite in it is one, and reaches no other server's users.
    let member = |of: &str, content: Value| json!([{ "type": "m.room.member", "state_key": of, "content": content }]);
    let invite = json!({ "membership": "invite", "join_authorised_via_users_server": ann.user_id });
    let initial_state = member(&bob.user_id, invite.clone());
    let room_id = ann.create_room(json!({ "initial_state": initial_state })).await;
    let invited = ann.state(&room_id, "m.room.member", &bob.user_id).await.ok();
    assert_eq!(invited, json!({ "membership": "invite" }));
    let answer =
        ann.post("/createRoom", json!({ "initial_state": member("@x:else.test", invite) }));
    assert_eq!(answer.await.status, 400);
}

#[tokio::test]
async fn a_creator_without_the_power_for_the_requested_state_creates_no_room() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let users = json!({ "users": { ann.user_id.as_str(): 10 } });
    for what in [
        json!({ "name": "x" }),
        json!({ "topic": "x" }),
        json!({ "initial_state": [{ "type": "m.x", "content": {} }] }),
        json!({}),
    ] {
        let mut options = what;
        options["power_level_content_override"] = users.clone();
        ann.post("/createRoom", options).await.refused(400, "M_INVALID_ROOM_STATE");
    }
    assert_eq!(ann.get("/joined_rooms").await.ok(), json!({ "joined_rooms": [] }));
}

#[tokio::test]
async fn one_who_is_invited_twice_is_invited_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let options = json!({ "invite": [bob.user_id, ann.user_id, bob.user_id] });
    let room_id = ann.create_room(options).await;
    let timeline = ann.get_room(&room_id, "/messages?dir=f&limit=50").await.ok();
    let members = each(&timeline["chunk"], "/type").into_iter().filter(|t| t == "m.room.member");
    assert_eq!(members.count(), 2, "the creator and the invited");
}

#[tokio::test]
async fn the_capabilities_name_the_versions_that_can_be_made() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let capabilities = ann.get("/capabilities").await.ok();
    let versions = &capabilities["capabilities"]["m.room_versions"];
    assert_eq!(versions["default"], "10");
    let available = versions["available"].as_object().cloned().unwrap_or_default();
    let mut names: Vec<u8> = available.keys().filter_map(|name| name.parse().ok()).collect();
    names.sort_unstable();
    assert_eq!(names, (1..=12).collect::<Vec<u8>>());
    assert!(available.values().all(|stability| stability == "stable"), "{versions}");
}

#[tokio::test]
async fn a_topic_has_its_rich_form_too() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "topic": "trains" })).await;
    let topic = json!({
        "topic": "trains",
        "m.topic": { "m.text": [{ "body": "trains", "mimetype": "text/plain" }] },
    });
    assert_eq!(state(&ann, &room_id, "m.room.topic").await, topic);
}

#[tokio::test]
async fn redaction_keeps_what_the_room_version_says() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    // Of a create event all is kept from version 11 on; of levels, `invite` is; of join rules,
    // `allow` from version 8 on; of a membership, who authorised it from version 9 on.
    for version in 1..=12 {
        let options = json!({
            "room_version": version.to_string(),
            "creation_content": { "org.example.x": 1 },
        });
        let room_id = ann.create_room(options).await;
        let rules = json!({ "join_rule": "restricted", "allow": [], "x": 1 });
        ann.set_state(&room_id, "m.room.join_rules", "", &rules).await.ok();
        for (event_type, key, kept) in [
            ("m.room.create", "org.example.x", version >= 11),
            ("m.room.power_levels", "invite", version >= 11),
            ("m.room.power_levels", "users", true),
            ("m.room.power_levels", "notifications", false),
            ("m.room.join_rules", "allow", version >= 8),
            ("m.room.join_rules", "join_rule", true),
            ("m.room.join_rules", "x", false),
        ] {
            let path = format!("/state/{event_type}/?format=event");
            let event = ann.get_room(&room_id, &path).await.ok();
            let event_id = encode(&string(&event, "event_id"));
            let path = format!("/rooms/{}/redact/{event_id}/{}", encode(&room_id), unique("txn"));
            ann.put(&path, json!({})).await.ok();
            let content = state(&ann, &room_id, event_type).await;
            assert_eq!(content.get(key).is_some(), kept, "version {version}: {key} of {content}");
        }
    }
}

#[tokio::test]
async fn every_offered_room_version_begins_with_levels_that_stay() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let kind = "m.room.power_levels";
    for version in 1..=12 {
        for options in [json!({}), json!({ "preset": "public_chat" })] {
            let mut options = options;
            options["room_version"] = version.to_string().into();
            let room_id = ann.create_room(options).await;
            let first = ann.get_room(&room_id, "/messages?dir=f&limit=3").await.ok();
            let event = &first["chunk"][2];
            assert_eq!(event["type"], kind, "version {version}: {first}");
            assert_eq!(state(&ann, &room_id, kind).await, event["content"]);
            // Redacted, it is still there, and says who has which level.
            let path = format!(
                "/rooms/{}/redact/{}/t",
                encode(&room_id),
                encode(&string(event, "event_id"))
            );
            ann.put(&path, json!({})).await.ok();
            let left = state(&ann, &room_id, kind).await;
            for key in ["users", "state_default", "events_default", "ban", "kick", "redact"] {
                assert_eq!(left[key], event["content"][key], "version {version}: {key}");
            }
        }
    }
}
