//! Filters: uploaded and used by id, or given inline.

use serde_json::{Value, json};

use super::{each, event_ids, server, texts, user};
use crate::harness::{Answer, User, encode};

async fn upload(user: &User, of: &User, filter: &Value) -> Answer {
    user.post(&format!("/user/{}/filter", encode(&of.user_id)), filter.clone()).await
}

#[tokio::test]
async fn a_filter_is_given_back_as_it_was_uploaded() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let filter = json!({
        "event_fields": ["content.body"], "event_format": "client",
        "room": { "timeline": { "limit": 3 }, "org.example.unknown": [1] },
    });
    let id = upload(&ann, &ann, &filter).await.ok_string("filter_id");
    assert!(!id.starts_with('{'));
    let path = format!("/user/{}/filter/{id}", encode(&ann.user_id));
    assert_eq!(ann.get(&path).await.ok(), filter);
    bob.get(&path).await.refused(403, "M_FORBIDDEN");
    upload(&bob, &ann, &filter).await.refused(403, "M_FORBIDDEN");
    let unknown = format!("/user/{}/filter/none", encode(&ann.user_id));
    ann.get(&unknown).await.refused(404, "M_NOT_FOUND");
    upload(&ann, &ann, &json!({ "room": 3 })).await.refused(400, "M_BAD_JSON");
    let sync = ann.get("/sync?filter=none").await;
    assert_eq!(sync.status, 400, "{sync}");
    ann.get("/sync?filter=%7Bnonsense").await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_filter_works_the_same_inline_and_by_id() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (one, two) = (ann.create_room(json!({})).await, ann.create_room(json!({})).await);
    for room_id in [&one, &two] {
        ann.send_text(room_id, "1", "one").await;
        ann.send(room_id, "org.example.x", "2", &json!({ "body": "two" })).await.ok();
    }
    for (filter, rooms, expected) in [
        (json!({ "room": { "rooms": [one] } }), vec![&one], vec!["one", "two"]),
        (json!({ "room": { "not_rooms": [one] } }), vec![&two], vec!["one", "two"]),
        (json!({ "room": { "rooms": [one], "not_rooms": [one] } }), vec![], vec![]),
        (
            json!({ "room": { "rooms": [one], "timeline": { "types": ["org.*"] } } }),
            vec![&one],
            vec!["two"],
        ),
        (
            json!({ "room": { "rooms": [one], "timeline": { "not_types": ["org.*"], "limit": 1 } } }),
            vec![&one],
            vec!["one"],
        ),
        (
            json!({ "room": { "rooms": [one], "timeline": { "not_senders": [ann.user_id] } } }),
            vec![&one],
            vec![],
        ),
        (
            json!({ "room": { "rooms": [one, two], "timeline": { "rooms": [two], "limit": 2 },
                              "state": { "types": [] } } }),
            vec![&one, &two],
            vec!["one", "two"],
        ),
    ] {
        let id = upload(&ann, &ann, &filter).await.ok_string("filter_id");
        for given in [filter.to_string(), id] {
            let sync = ann.sync(None, 0, Some(&given)).await;
            let joined = sync["rooms"]["join"].as_object().cloned().unwrap_or_default();
            let mut wanted: Vec<&String> = rooms.clone();
            wanted.sort();
            assert_eq!(joined.keys().collect::<Vec<_>>(), wanted, "{filter}");
            let seen: Vec<String> =
                joined.values().flat_map(|room| texts(&room["timeline"]["events"])).collect();
            assert_eq!(seen, expected, "{filter}");
        }
    }
}

#[tokio::test]
async fn state_that_the_timelines_filter_leaves_out_is_not_lost() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let since = ann.here().await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "x" })).await.ok();
    ann.send_text(&room_id, "1", "one").await;
    let filter = r#"{"room":{"timeline":{"types":["m.room.message"]}}}"#;
    let sync = ann.sync(Some(&since), 0, Some(filter)).await;
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(texts(&room["timeline"]["events"]), ["one"]);
    assert_eq!(each(&room["state"]["events"], "/content/name"), ["x"]);
}

#[tokio::test]
async fn account_data_state_and_ephemeral_events_are_filtered() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let me = format!("/user/{}", encode(&ann.user_id));
    for kind in ["org.example.a", "org.example.b"] {
        ann.put(&format!("{me}/account_data/{kind}"), json!({ "n": 0 })).await.ok();
        let path = format!("{me}/rooms/{}/account_data/{kind}", encode(&room_id));
        ann.put(&path, json!({ "n": 0 })).await.ok();
    }
    let event_id = bob.send_text(&room_id, "1", "x").await;
    let room = format!("/rooms/{}", encode(&room_id));
    bob.post(&format!("{room}/receipt/m.read/{}", encode(&event_id)), json!({})).await.ok();
    let typing = json!({ "typing": true, "timeout": 30_000 });
    bob.put(&format!("{room}/typing/{}", encode(&bob.user_id)), typing).await.ok();
    let filter = json!({
        "account_data": { "types": ["org.example.a"] },
        "room": {
            "account_data": { "not_types": ["*.a"] },
            "state": { "types": ["m.room.create"] },
            "timeline": { "limit": 0 },
            "ephemeral": { "types": ["m.receipt"] },
        },
    });
    let sync = ann.sync(None, 0, Some(&filter.to_string())).await;
    assert_eq!(each(&sync["account_data"]["events"], "/type"), ["org.example.a"]);
    let joined = &sync["rooms"]["join"][&room_id];
    assert_eq!(each(&joined["account_data"]["events"], "/type"), ["org.example.b"]);
    assert_eq!(each(&joined["state"]["events"], "/type"), ["m.room.create"]);
    assert_eq!(each(&joined["ephemeral"]["events"], "/type"), ["m.receipt"]);
    // A part can leave out single rooms as well.
    let filter = json!({ "room": {
        "account_data": { "not_rooms": [room_id] },
        "ephemeral": { "rooms": [] },
    }});
    let sync = ann.sync(None, 0, Some(&filter.to_string())).await;
    let joined = &sync["rooms"]["join"][&room_id];
    assert_eq!(joined["account_data"]["events"], json!([]));
    assert_eq!(joined["ephemeral"]["events"], json!([]));
}

#[tokio::test]
async fn what_a_filter_leaves_out_does_not_end_a_wait() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let since = bob.here().await;
    let filter = json!({ "room": { "ephemeral": { "types": [] }, "timeline": {
        "not_types": ["org.*"] } } });
    let waiting = {
        let (bob, since, filter) = (bob.clone(), since.clone(), filter.to_string());
        tokio::spawn(async move { bob.sync(Some(&since), 10_000, Some(&filter)).await })
    };
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    ann.send(&room_id, "org.example.x", "1", &json!({})).await.ok();
    let typing = json!({ "typing": true, "timeout": 30_000 });
    let path = format!("/rooms/{}/typing/{}", encode(&room_id), encode(&ann.user_id));
    ann.put(&path, typing).await.ok();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    ann.send_text(&room_id, "2", "news").await;
    let sync = waiting.await.expect("a waiting sync does not panic");
    assert_eq!(texts(&sync["rooms"]["join"][&room_id]["timeline"]["events"]), ["news"]);
}

#[tokio::test]
async fn what_is_not_a_filter_is_refused_by_upload_and_inline() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let parts = [
        json!({ "limit": -1 }),
        json!({ "limit": "many" }),
        json!({ "types": "m.room.message" }),
        json!({ "senders": ["ann"] }),
        json!({ "not_senders": [3] }),
        json!({ "rooms": ["room"] }),
        json!({ "contains_url": "yes" }),
        json!({ "lazy_load_members": 1 }),
        json!({ "types": vec!["*x"; 101] }),
        json!({ "related_by_senders": ["ann"] }),
        json!({ "related_by_rel_types": "m.thread" }),
    ];
    let wholes = parts.iter().map(|part| json!({ "room": { "timeline": part } }));
    for filter in wholes.chain([
        json!({ "event_fields": "type" }),
        json!({ "event_fields": vec!["x"; 1001] }),
        json!({ "event_format": "other" }),
        json!({ "room": { "include_leave": "no" } }),
        json!({ "presence": [] }),
    ]) {
        upload(&ann, &ann, &filter).await.refused(400, "M_BAD_JSON");
        let inline = format!("/sync?filter={}", encode(&filter.to_string()));
        ann.get(&inline).await.refused(400, "M_INVALID_PARAM");
    }
    for part in parts {
        let path = format!("/messages?dir=b&filter={}", encode(&part.to_string()));
        ann.get_room(&room_id, &path).await.refused(400, "M_INVALID_PARAM");
    }
    let large = json!({ "room": { "rooms": vec![room_id; 10_000] } });
    upload(&ann, &ann, &large).await.refused(413, "M_TOO_LARGE");
}

#[tokio::test]
async fn events_come_with_the_fields_that_are_wanted() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let content = json!({ "body": "x", "msgtype": "m.text", "a.b": { "c\\d": 1, "e": 2 } });
    let event_id = ann.send(&room_id, "m.room.message", "1", &content).await.ok_string("event_id");
    for (fields, expected) in [
        (json!(["event_id"]), json!({ "event_id": event_id })),
        (
            json!(["event_id", "content.body"]),
            json!({ "event_id": event_id, "content": { "body": "x" } }),
        ),
        (json!([r"content.a\.b.c\\d"]), json!({ "content": { "a.b": { "c\\d": 1 } } })),
        (json!(["content.a.b", "none.at.all"]), json!({})),
        (json!(["content"]), json!({ "content": content })),
        (json!([]), json!({})),
    ] {
        let filter = json!({ "event_fields": fields, "room": { "timeline": { "limit": 1 } } });
        let id = upload(&ann, &ann, &filter).await.ok_string("filter_id");
        for given in [filter.to_string(), id] {
            let sync = ann.sync(None, 0, Some(&given)).await;
            let room = &sync["rooms"]["join"][&room_id];
            assert_eq!(room["timeline"]["events"], json!([expected]), "{filter}");
        }
    }
    // State events alike; what is not an event is whole.
    let filter = json!({ "event_fields": ["type"] }).to_string();
    let sync = ann.sync(None, 0, Some(&filter)).await;
    for part in ["state", "timeline"] {
        for event in
            sync["rooms"]["join"][&room_id][part]["events"].as_array().into_iter().flatten()
        {
            assert_eq!(event.as_object().map(|event| event.len()), Some(1), "{event}");
        }
    }
    assert!(sync["account_data"]["events"][0]["content"].is_object());
}

#[tokio::test]
async fn the_federation_format_is_the_event_as_servers_exchange_it() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for version in ["10", "11", "12"] {
        let room_id = ann.create_room(json!({ "room_version": version })).await;
        let kept = ann.send_text(&room_id, "1", "kept").await;
        let gone = ann.send_text(&room_id, "2", "gone").await;
        let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&gone));
        ann.put(&path, json!({})).await.ok();
        let filter = json!({ "event_format": "federation", "room": { "rooms": [room_id] } });
        let sync = ann.sync(None, 0, Some(&filter.to_string())).await;
        let room = &sync["rooms"]["join"][&room_id];
        let mut events = room["state"]["events"].as_array().cloned().unwrap_or_default();
        events.extend(room["timeline"]["events"].as_array().cloned().unwrap_or_default());
        assert!(events.len() > 5);
        for event in &events {
            for field in ["auth_events", "prev_events", "depth", "hashes", "signatures"] {
                assert!(event.get(field).is_some(), "no {field} in {event}");
            }
            for field in ["unsigned", "event_id"] {
                assert!(event.get(field).is_none(), "{field} in {event}");
            }
            let names_room = !(version == "12" && event["type"] == "m.room.create");
            assert_eq!(event.get("room_id").is_some(), names_room, "{event}");
        }
        let texts = texts(&room["timeline"]["events"]);
        assert_eq!(texts, ["kept"], "what was redacted is gone from this format, too");
        let contents: Vec<_> = events
            .iter()
            .filter(|event| event["type"] == "m.room.message")
            .map(|event| event["content"].clone())
            .collect();
        assert_eq!(contents, [json!({ "msgtype": "m.text", "body": "kept" }), json!({})]);
        // The client's format is the default.
        let filter = json!({ "event_format": "client", "room": { "rooms": [room_id] } });
        let sync = ann.sync(None, 0, Some(&filter.to_string())).await;
        let events = &sync["rooms"]["join"][&room_id]["timeline"]["events"];
        assert!(each(events, "/event_id").contains(&kept));
    }
}

#[tokio::test]
async fn a_redacted_event_has_no_url_and_relates_to_nothing() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let image = json!({ "body": "image", "url": "mxc://x/y" });
    let image_id = ann.send(&room_id, "m.room.message", "1", &image).await.ok_string("event_id");
    let root = ann.send_text(&room_id, "2", "root").await;
    let reply = json!({ "body": "reply",
                        "m.relates_to": { "rel_type": "m.thread", "event_id": root } });
    let reply = bob.send(&room_id, "m.room.message", "3", &reply).await.ok_string("event_id");
    let like =
        json!({ "m.relates_to": { "rel_type": "m.annotation", "event_id": root, "key": "+" } });
    ann.send(&room_id, "m.reaction", "4", &like).await.ok();
    let pages = |filter: Value| {
        let (ann, room_id) = (ann.clone(), room_id.clone());
        async move {
            let path = format!("/messages?dir=b&limit=50&filter={}", encode(&filter.to_string()));
            event_ids(&ann.get_room(&room_id, &path).await.ok()["chunk"])
        }
    };
    let with_url = json!({ "contains_url": true });
    let threads = json!({ "related_by_rel_types": ["m.thread"] });
    let of_bob = json!({ "related_by_senders": [bob.user_id] });
    let likes_of_bob =
        json!({ "related_by_senders": [bob.user_id], "related_by_rel_types": ["m.annotation"] });
    let root = vec![root];
    assert_eq!(pages(with_url.clone()).await, std::slice::from_ref(&image_id));
    assert_eq!(pages(threads.clone()).await, root);
    assert_eq!(pages(of_bob.clone()).await, root);
    assert_eq!(pages(likes_of_bob).await, [""; 0], "one child has to be both");
    assert_eq!(pages(json!({ "related_by_rel_types": [] })).await, [""; 0]);
    for event_id in [&image_id, &reply] {
        let path =
            format!("/rooms/{}/redact/{}/{}", encode(&room_id), encode(event_id), &event_id[1..9]);
        ann.put(&path, json!({})).await.ok();
    }
    for filter in [with_url, threads, of_bob] {
        assert_eq!(pages(filter.clone()).await, [""; 0], "{filter}");
    }
}

#[tokio::test]
async fn limits_of_none_and_of_more_than_there_is_are_limits() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    ann.send_text(&room_id, "1", "one").await;
    for (limit, expected) in [(0_u64, 0), (1, 1), (9_007_199_254_740_991, 7)] {
        let filter = json!({ "room": { "timeline": { "limit": limit, "types": ["m.room.*"] } } });
        let sync = ann.sync(None, 0, Some(&filter.to_string())).await;
        let events = &sync["rooms"]["join"][&room_id]["timeline"]["events"];
        assert_eq!(event_ids(events).len(), expected, "{limit}: {events}");
        let filter = encode(&json!({ "limit": limit }).to_string());
        let path = format!("/messages?dir=b&limit=1000&filter={filter}");
        let page = ann.get_room(&room_id, &path).await.ok();
        assert_eq!(event_ids(&page["chunk"]).len(), expected, "{limit}: {page}");
    }
}

#[tokio::test]
async fn rooms_are_chosen_before_the_parts_of_a_filter_are_looked_at() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (one, two) = (ann.create_room(json!({})).await, ann.create_room(json!({})).await);
    let me = encode(&ann.user_id);
    for room_id in [&one, &two] {
        ann.send_text(room_id, "1", "text").await;
        let path = format!("/user/{me}/rooms/{}/account_data/org.example.x", encode(room_id));
        ann.put(&path, json!({ "x": 1 })).await.ok();
        let typing = json!({ "typing": true, "timeout": 30_000 });
        ann.put(&format!("/rooms/{}/typing/{me}", encode(room_id)), typing).await.ok();
    }
    let both = json!({ "rooms": [one, two] });
    // All of it there is in the first room; the parts cannot bring in the second.
    let wide = json!({ "room": {
        "rooms": [one], "timeline": both, "state": both, "account_data": both, "ephemeral": both,
    }});
    let sync = ann.sync(None, 0, Some(&wide.to_string())).await;
    let joined = sync["rooms"]["join"].as_object().cloned().unwrap_or_default();
    assert_eq!(joined.keys().collect::<Vec<_>>(), [&one]);
    for part in ["timeline", "account_data", "ephemeral"] {
        assert_ne!(joined[&one][part]["events"], json!([]), "{part}");
    }
    // Parts that are about another room leave nothing of this one, and what is excluded twice is
    // out.
    for parts in [json!({ "rooms": [two] }), json!({ "rooms": [one], "not_rooms": [one] })] {
        let narrow = json!({ "room": {
            "rooms": [one, two], "not_rooms": [two],
            "timeline": parts, "state": parts, "account_data": parts, "ephemeral": parts,
        }});
        let sync = ann.sync(None, 0, Some(&narrow.to_string())).await;
        assert!(sync["rooms"]["join"].get(&two).is_none(), "{sync}");
        for part in ["timeline", "state", "account_data", "ephemeral"] {
            let events = sync["rooms"]["join"][&one][part]["events"].as_array().map(Vec::len);
            assert_eq!(events.unwrap_or_default(), 0, "{part}: {sync}");
        }
    }
}

#[tokio::test]
async fn state_and_timelines_are_filtered_by_sender_and_by_url_in_a_sync() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let avatar = json!({ "url": "mxc://e2e.test/a" });
    ann.set_state(&room_id, "m.room.avatar", "", &avatar).await.ok();
    ann.send_text(&room_id, "1", "text").await;
    // The key counts, whatever it holds.
    let image = json!({ "body": "image", "url": null });
    bob.send(&room_id, "m.room.message", "2", &image).await.ok();
    let (a, b) = (&ann.user_id, &bob.user_id);
    let of = |part: &'static str, filter: Value| {
        let (ann, room_id) = (ann.clone(), room_id.clone());
        let filter = match part {
            "state" => json!({ "timeline": { "types": [] }, "state": filter }),
            _ => json!({ "timeline": filter, "state": { "types": [] } }),
        };
        async move {
            let filter = json!({ "room": filter }).to_string();
            let sync = ann.sync(None, 0, Some(&filter)).await;
            let events = sync["rooms"]["join"][&room_id][part]["events"].clone();
            (each(&events, "/type"), each(&events, "/sender"))
        }
    };
    for part in ["state", "timeline"] {
        for (filter, expected) in [
            (json!({ "senders": [b] }), vec![b]),
            (json!({ "not_senders": [a] }), vec![b]),
            (json!({ "senders": [a, b], "not_senders": [a] }), vec![b]),
            (json!({ "senders": [] }), vec![]),
            (json!({}), vec![a, b]),
        ] {
            let (_, mut senders) = of(part, filter.clone()).await;
            senders.sort();
            senders.dedup();
            let mut expected = expected;
            expected.sort();
            assert_eq!(senders.iter().collect::<Vec<_>>(), expected, "{part}: {filter}");
        }
    }
    assert_eq!(of("state", json!({ "contains_url": true })).await.0, ["m.room.avatar"]);
    let types = of("state", json!({ "contains_url": false })).await.0;
    assert!(types.len() > 5 && !types.contains(&"m.room.avatar".to_owned()), "{types:?}");
    let (types, senders) = of("timeline", json!({ "contains_url": true })).await;
    assert_eq!(types, ["m.room.avatar", "m.room.message"]);
    assert_eq!(senders, [a.clone(), b.clone()]);
    let types = of("timeline", json!({ "contains_url": false, "types": ["m.room.mess*"] })).await.0;
    assert_eq!(types, ["m.room.message"]);
    // What a limit left out of the state would reach the client nowhere: state has none.
    let whole = of("state", json!({})).await.0;
    assert_eq!(of("state", json!({ "limit": 1 })).await.0, whole);
}

#[tokio::test]
async fn account_data_has_no_sender_and_is_left_out_where_senders_are_listed() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let me = format!("/user/{}", encode(&ann.user_id));
    let own = format!("{me}/account_data/org.example.x");
    let of_room = format!("{me}/rooms/{}/account_data/org.example.x", encode(&room_id));
    for path in [&own, &of_room] {
        ann.put(path, json!({ "x": 1 })).await.ok();
    }
    for (filter, shown) in [
        (json!({}), true),
        (json!({ "not_senders": [ann.user_id] }), true),
        (json!({ "senders": [ann.user_id] }), false),
        (json!({ "types": ["org.*"] }), true),
        (json!({ "types": ["org.*"], "not_types": ["org.example.*"] }), false),
        // A limit is none: what it left out would reach the client nowhere.
        (json!({ "types": ["m.*", "org.*"], "limit": 1 }), true),
    ] {
        let whole = json!({ "account_data": filter, "room": { "account_data": filter } });
        let sync = ann.sync(None, 0, Some(&whole.to_string())).await;
        for events in [
            &sync["account_data"]["events"],
            &sync["rooms"]["join"][&room_id]["account_data"]["events"],
        ] {
            let types = each(events, "/type");
            assert_eq!(types.contains(&"org.example.x".to_owned()), shown, "{filter}: {types:?}");
        }
    }
}
