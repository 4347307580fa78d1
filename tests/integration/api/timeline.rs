//! Reading history: `/messages`, `/event`, `/context`, and who may see what.

use serde_json::{Value, json};

use super::{each, event_ids, next_batch, server, string, texts, user};
use crate::harness::{Answer, Direction, User, encode};

/// A room in which `count` texts were sent, named by their numbers from 0.
async fn room_with_texts(ann: &User, count: usize) -> (String, Vec<String>) {
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let mut ids = Vec::new();
    for number in 0..count {
        ids.push(ann.send_text(&room_id, &format!("t{number}"), &number.to_string()).await);
    }
    (room_id, ids)
}

async fn context(user: &User, room_id: &str, event_id: &str, query: &str) -> Answer {
    user.get_room(room_id, &format!("/context/{}{query}", encode(event_id))).await
}

#[tokio::test]
async fn history_is_paged_back_to_the_beginning_without_gap_or_repeat() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (room_id, ids) = room_with_texts(&ann, 23).await;
    for limit in [1, 4, 10, 1000] {
        let mut seen = Vec::new();
        let mut from: Option<String> = None;
        loop {
            let page = ann.messages(&room_id, from.as_deref(), None, Direction::Back, limit).await;
            if let Some(from) = &from {
                assert_eq!(page["start"], from.as_str());
            }
            seen.extend(event_ids(&page["chunk"]));
            match page.get("end") {
                Some(end) => from = end.as_str().map(str::to_owned),
                None => break,
            }
        }
        let all = ann.messages(&room_id, None, None, Direction::Forward, 1000).await;
        let mut all = event_ids(&all["chunk"]);
        all.reverse();
        assert_eq!(seen, all, "limit {limit}");
        assert_eq!(seen[..23].iter().rev().cloned().collect::<Vec<_>>(), ids);
    }
}

/// How many bytes the events of a list have as JSON.
fn bytes(events: &Value) -> usize {
    events.to_string().len()
}

#[tokio::test]
async fn a_page_of_large_events_is_bounded_in_bytes_and_history_goes_on_where_it_ended() {
    const PAGE: usize = 1024 * 1024 + 128 * 1024;
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let large = "x".repeat(60_000);
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push(ann.send_text(&room_id, &format!("t{number}"), &large).await);
    }
    let (mut seen, mut from, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let page = ann.messages(&room_id, from.as_deref(), None, Direction::Back, 1000).await;
        assert!(bytes(&page["chunk"]) < PAGE, "a page of {} bytes", bytes(&page["chunk"]));
        seen.extend(event_ids(&page["chunk"]));
        pages += 1;
        match page.get("end") {
            Some(end) => from = end.as_str().map(str::to_owned),
            None => break,
        }
    }
    assert!(pages >= 3, "{pages} pages");
    assert_eq!(seen[..50].iter().rev().cloned().collect::<Vec<_>>(), ids);
    let forward = ann.messages(&room_id, None, None, Direction::Forward, 1000).await;
    assert!(bytes(&forward["chunk"]) < PAGE && forward["end"].is_string());

    let around = context(&ann, &room_id, &ids[25], "?limit=1000").await.ok();
    assert!(bytes(&around["events_before"]) + bytes(&around["events_after"]) < PAGE + 70_000);
    assert!(event_ids(&around["events_before"]).len() > 5);

    let filter = json!({ "room": { "timeline": { "limit": 1000 } } }).to_string();
    let sync = ann.sync(None, 0, Some(&filter)).await;
    let timeline = &sync["rooms"]["join"][&room_id]["timeline"];
    assert!(bytes(&timeline["events"]) < PAGE);
    assert_eq!(timeline["limited"], true);
    let prev_batch = timeline["prev_batch"].as_str();
    let before = ann.messages(&room_id, prev_batch, None, Direction::Back, 1).await;
    let first = event_ids(&timeline["events"]).remove(0);
    let place = |id: &String| ids.iter().position(|known| known == id);
    assert_eq!(place(&event_ids(&before["chunk"])[0]).map(|place| place + 1), place(&first));
}

#[tokio::test]
async fn the_timelines_of_a_sync_are_bounded_in_bytes_together() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let large = "x".repeat(60_000);
    let mut rooms = Vec::new();
    for _ in 0..12 {
        let room_id = ann.create_room(json!({})).await;
        for number in 0..20 {
            ann.send_text(&room_id, &number.to_string(), &large).await;
        }
        rooms.push(room_id);
    }
    let filter = json!({ "room": { "timeline": { "limit": 100 } } }).to_string();
    let sync = ann.sync(None, 0, Some(&filter)).await;
    let mut total = 0;
    for room_id in &rooms {
        let timeline = &sync["rooms"]["join"][room_id]["timeline"];
        assert!(!event_ids(&timeline["events"]).is_empty(), "{room_id}");
        total += bytes(&timeline["events"]);
    }
    assert!(total < 10 * 1024 * 1024, "{total} bytes");
}

#[tokio::test]
async fn history_is_paged_forward_to_the_end_and_on_from_there() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (room_id, ids) = room_with_texts(&ann, 7).await;
    let mut seen = Vec::new();
    let mut from: Option<String> = None;
    loop {
        let page = ann.messages(&room_id, from.as_deref(), None, Direction::Forward, 3).await;
        if page["chunk"].as_array().is_none_or(Vec::is_empty) {
            break;
        }
        seen.extend(event_ids(&page["chunk"]));
        from = Some(string(&page, "end"));
    }
    assert!(seen.ends_with(&ids));
    let later = ann.send_text(&room_id, "later", "later").await;
    let page = ann.messages(&room_id, from.as_deref(), None, Direction::Forward, 3).await;
    assert_eq!(event_ids(&page["chunk"]), [later]);
}

#[tokio::test]
async fn a_page_lies_between_from_and_to() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let mut tokens = vec![ann.here().await];
    for number in 0..6 {
        ann.send_text(&room_id, &format!("t{number}"), &number.to_string()).await;
        tokens.push(ann.here().await);
    }
    let page = |from: usize, to: usize, direction| {
        let (ann, room_id) = (ann.clone(), room_id.clone());
        let (from, to) = (tokens[from].clone(), tokens[to].clone());
        async move { ann.messages(&room_id, Some(&from), Some(&to), direction, 50).await }
    };
    assert_eq!(texts(&page(5, 2, Direction::Back).await["chunk"]), ["4", "3", "2"]);
    assert_eq!(texts(&page(2, 5, Direction::Forward).await["chunk"]), ["2", "3", "4"]);
    assert_eq!(texts(&page(3, 3, Direction::Back).await["chunk"]), [""; 0]);
    // A gap that is larger than a page is filled page by page, and ends at `to`.
    let (from, to) = (&tokens[6], &tokens[1]);
    let first = ann.messages(&room_id, Some(from), Some(to), Direction::Back, 3).await;
    assert_eq!(texts(&first["chunk"]), ["5", "4", "3"]);
    let end = string(&first, "end");
    let second = ann.messages(&room_id, Some(&end), Some(to), Direction::Back, 3).await;
    assert_eq!(texts(&second["chunk"]), ["2", "1"]);
}

#[tokio::test]
async fn pages_are_filtered() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    ann.send_text(&room_id, "1", "of ann").await;
    bob.send_text(&room_id, "1", "of bob").await;
    let image = json!({ "msgtype": "m.image", "body": "image", "url": "mxc://e2e.test/x" });
    ann.send(&room_id, "m.room.message", "2", &image).await.ok();
    ann.send(&room_id, "org.example.x", "3", &json!({ "body": "other" })).await.ok();
    for (filter, expected) in [
        (json!({ "types": ["m.room.message"] }), vec!["image", "of bob", "of ann"]),
        (json!({ "types": ["m.room.*", "org.*"], "not_types": ["m.*"] }), vec!["other"]),
        (json!({ "types": [] }), vec![]),
        (json!({ "senders": [bob.user_id] }), vec!["of bob"]),
        (json!({ "not_senders": [ann.user_id] }), vec!["of bob"]),
        (json!({ "senders": [bob.user_id], "not_senders": [bob.user_id] }), vec![]),
        (json!({ "contains_url": true }), vec!["image"]),
        (json!({ "contains_url": false, "types": ["m.room.message"] }), vec!["of bob", "of ann"]),
        (json!({ "types": ["m.room.message"], "limit": 2 }), vec!["image", "of bob"]),
        (json!({ "not_rooms": [room_id] }), vec![]),
        (json!({ "rooms": [room_id], "types": ["org.*"] }), vec!["other"]),
    ] {
        let path = format!("/messages?dir=b&limit=50&filter={}", encode(&filter.to_string()));
        let page = ann.get_room(&room_id, &path).await.ok();
        assert_eq!(texts(&page["chunk"]), expected, "{filter}");
    }
    // The members of those who speak, and of nobody else.
    let lazy = encode(&json!({ "lazy_load_members": true, "types": ["org.*"] }).to_string());
    let page = ann.get_room(&room_id, &format!("/messages?dir=b&filter={lazy}")).await.ok();
    assert_eq!(each(&page["state"], "/state_key"), std::slice::from_ref(&ann.user_id));
    ann.get_room(&room_id, "/messages?dir=b&filter=nonsense").await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn pages_are_filtered_by_the_relations_of_their_events() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let root = ann.send_text(&room_id, "1", "root").await;
    let mut gone = String::new();
    for (number, rel_type) in ["m.thread", "m.replace", "m.thread"].into_iter().enumerate() {
        let text = format!("{rel_type} {number}");
        let content = json!({
            "msgtype": "m.text", "body": text, "m.new_content": { "msgtype": "m.text", "body": "" },
            "m.relates_to": { "rel_type": rel_type, "event_id": root },
        });
        let sent = ann.send(&room_id, "m.room.message", &text, &content).await;
        gone = sent.ok_string("event_id");
    }
    let page = async |rel_types: Value| {
        let mut filter = json!({ "types": ["m.room.message"] });
        for (name, value) in rel_types.as_object().expect("an object") {
            filter[format!("org.matrix.msc3874.{name}")] = value.clone();
        }
        let path = format!("/messages?dir=b&limit=50&filter={}", encode(&filter.to_string()));
        texts(&ann.get_room(&room_id, &path).await.ok()["chunk"])
    };
    let threads = json!({ "rel_types": ["m.thread"] });
    assert_eq!(page(threads.clone()).await, ["m.thread 2", "m.thread 0"]);
    assert_eq!(page(json!({ "not_rel_types": ["m.thread"] })).await, ["m.replace 1", "root"]);
    let both = json!({ "rel_types": ["m.thread", "m.replace"], "not_rel_types": ["m.thread"] });
    assert_eq!(page(both).await, ["m.replace 1"]);
    assert_eq!(page(json!({ "rel_types": [] })).await, Vec::<String>::new());
    let path = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&gone));
    ann.put(&path, json!({})).await.ok();
    assert_eq!(page(threads).await, ["m.thread 0"]);
}

#[tokio::test]
async fn a_filter_that_lets_nothing_pass_still_reaches_the_beginning() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (room_id, _) = room_with_texts(&ann, 5).await;
    let filter = encode(r#"{"types":["none"]}"#);
    let path = format!("/messages?dir=b&limit=2&filter={filter}");
    let page = ann.get_room(&room_id, &path).await.ok();
    assert_eq!(page["chunk"], json!([]));
    assert!(page.get("end").is_none(), "{page}");
}

#[tokio::test]
async fn an_event_is_given_with_what_surrounds_it() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (room_id, ids) = room_with_texts(&ann, 9).await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "later" })).await.ok();
    let around = context(&ann, &room_id, &ids[4], "?limit=5").await.ok();
    assert_eq!(around["event"]["event_id"], ids[4].as_str());
    assert_eq!(texts(&around["events_before"]), ["3", "2", "1"]);
    assert_eq!(texts(&around["events_after"]), ["5", "6"]);
    // The state is that at the last event returned.
    assert!(!each(&around["state"], "/type").contains(&"m.room.name".to_owned()));
    assert!(each(&around["state"], "/type").contains(&"m.room.create".to_owned()));
    let (start, end) = (string(&around, "start"), string(&around, "end"));
    let before = ann.messages(&room_id, Some(&start), None, Direction::Back, 1).await;
    assert_eq!(texts(&before["chunk"]), ["0"]);
    let after = ann.messages(&room_id, Some(&end), None, Direction::Forward, 2).await;
    assert_eq!(texts(&after["chunk"]), ["7", "8"]);

    let none = context(&ann, &room_id, &ids[4], "?limit=0").await.ok();
    assert_eq!((&none["events_before"], &none["events_after"]), (&json!([]), &json!([])));
    let ten = context(&ann, &room_id, &ids[4], "").await.ok();
    assert_eq!(texts(&ten["events_before"]), ["3", "2", "1", "0"]);
    let filter = encode(r#"{"types":["m.room.name"],"lazy_load_members":true}"#);
    let names = context(&ann, &room_id, &ids[8], &format!("?filter={filter}")).await.ok();
    assert_eq!(names["event"]["event_id"], ids[8].as_str());
    assert_eq!(each(&names["events_after"], "/type"), ["m.room.name"]);
    context(&ann, &room_id, "$none", "").await.refused(404, "M_NOT_FOUND");
    let other = ann.create_room(json!({})).await;
    context(&ann, &other, &ids[4], "").await.refused(404, "M_NOT_FOUND");
    ann.get_room(&other, &format!("/event/{}", encode(&ids[4]))).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn strangers_read_nothing() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (room_id, ids) = room_with_texts(&ann, 1).await;
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    bob.get_room(&room_id, "/messages?dir=b").await.refused(403, "M_FORBIDDEN");
    bob.get_room(&room_id, &format!("/event/{}", encode(&ids[0])))
        .await
        .refused(404, "M_NOT_FOUND");
    context(&bob, &room_id, &ids[0], "").await.refused(404, "M_NOT_FOUND");
}

/// What one sees of a room: by `/messages` both ways, by `/event` and `/context` one by one.
async fn assert_sees(who: &User, room_id: &str, sent: &[(&str, String)], expected: &[&str]) {
    let page = who.messages(room_id, None, None, Direction::Forward, 100).await;
    assert_eq!(texts(&page["chunk"]), expected, "{} forward", who.user_id);
    let page = who.messages(room_id, None, None, Direction::Back, 100).await;
    let mut back = texts(&page["chunk"]);
    back.reverse();
    assert_eq!(back, expected, "{} back", who.user_id);
    for (text, event_id) in sent {
        let event = who.get_room(room_id, &format!("/event/{}", encode(event_id))).await;
        let around = context(who, room_id, event_id, "?limit=100").await;
        if expected.contains(text) {
            assert_eq!(event.ok()["content"]["body"], *text);
            let around = around.ok();
            let mut seen = texts(&around["events_before"]);
            seen.reverse();
            seen.push((*text).to_owned());
            seen.extend(texts(&around["events_after"]));
            assert_eq!(seen, expected, "{} around {text}", who.user_id);
        } else {
            event.refused(404, "M_NOT_FOUND");
            around.refused(404, "M_NOT_FOUND");
        }
    }
}

#[tokio::test]
async fn history_visibility_decides_who_sees_what() {
    let server = server().await;
    let (before, invited, joined, after) = ("before", "invited", "joined", "after");
    for (visibility, left, newcomer) in [
        ("joined", vec![joined], vec![]),
        ("invited", vec![invited, joined], vec![]),
        ("shared", vec![before, invited, joined], vec![before, invited, joined, after]),
        (
            "world_readable",
            vec![before, invited, joined, after],
            vec![before, invited, joined, after],
        ),
    ] {
        let ann = user(&server, "ann").await;
        let (bob, cas) = (user(&server, "bob").await, user(&server, "cas").await);
        let stranger = user(&server, "dan").await;
        let room_id = ann
            .create_room(json!({
                "preset": "public_chat",
                "initial_state": [{ "type": "m.room.history_visibility",
                                    "content": { "history_visibility": visibility } }],
            }))
            .await;
        let mut sent = vec![(before, ann.send_text(&room_id, "1", before).await)];
        ann.act(&room_id, "invite", Some(&bob)).await.ok();
        sent.push((invited, ann.send_text(&room_id, "2", invited).await));
        bob.join(&room_id).await.ok();
        sent.push((joined, ann.send_text(&room_id, "3", joined).await));
        bob.act(&room_id, "leave", None).await.ok();
        sent.push((after, ann.send_text(&room_id, "4", after).await));
        let cas_since = cas.here().await;
        cas.join(&room_id).await.ok();

        assert_sees(&ann, &room_id, &sent, &[before, invited, joined, after]).await;
        assert_sees(&bob, &room_id, &sent, &left).await;
        assert_sees(&cas, &room_id, &sent, &newcomer).await;
        if visibility == "world_readable" {
            assert_sees(&stranger, &room_id, &sent, &newcomer).await;
        } else {
            stranger.get_room(&room_id, "/messages?dir=b").await.refused(403, "M_FORBIDDEN");
        }

        // The same through sync.
        let filter = r#"{"room":{"include_leave":true,"timeline":{"limit":100}}}"#;
        let of = |sync: &Value, section: &str| {
            texts(&sync["rooms"][section][&room_id]["timeline"]["events"])
        };
        let until_left: Vec<&str> = left.into_iter().filter(|text| *text != after).collect();
        assert_eq!(of(&bob.sync(None, 0, Some(filter)).await, "leave"), until_left);
        assert_eq!(of(&cas.sync(None, 0, Some(filter)).await, "join"), newcomer);
        assert_eq!(of(&cas.sync(Some(&cas_since), 0, Some(filter)).await, "join"), newcomer);
    }
}

#[tokio::test]
async fn a_change_of_visibility_does_not_reach_back() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let set = |visibility: &'static str| {
        let (ann, room_id) = (ann.clone(), room_id.clone());
        async move {
            let content = json!({ "history_visibility": visibility });
            ann.set_state(&room_id, "m.room.history_visibility", "", &content).await.ok()
        }
    };
    let mut sent = vec![("shared", ann.send_text(&room_id, "1", "shared").await)];
    set("joined").await;
    sent.push(("joined", ann.send_text(&room_id, "2", "joined").await));
    set("shared").await;
    sent.push(("again", ann.send_text(&room_id, "3", "again").await));
    bob.join(&room_id).await.ok();
    assert_sees(&bob, &room_id, &sent, &["shared", "again"]).await;
}

#[tokio::test]
async fn one_who_was_kicked_sees_the_kick_and_nothing_after_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let here = next_batch(&bob.sync(None, 0, None).await);
    ann.act(&room_id, "kick", Some(&bob)).await.ok();
    let hidden = ann.send_text(&room_id, "1", "hidden").await;
    let page = bob.messages(&room_id, Some(&here), None, Direction::Forward, 10).await;
    assert_eq!(each(&page["chunk"], "/content/membership"), ["leave"]);
    bob.get_room(&room_id, &format!("/event/{}", encode(&hidden)))
        .await
        .refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn everyone_reads_the_state_of_a_world_readable_room() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann
        .create_room(json!({
            "name": "glass house",
            "initial_state": [{ "type": "m.room.history_visibility",
                                "content": { "history_visibility": "world_readable" } }],
        }))
        .await;
    assert_eq!(bob.state(&room_id, "m.room.name", "").await.ok()["name"], "glass house");
    for path in ["/state", "/members", "/messages?dir=b", "/aliases"] {
        bob.get_room(&room_id, path).await.ok();
    }
    // Once it is closed, it is closed to those who were never in it.
    let closed = json!({ "history_visibility": "shared" });
    ann.set_state(&room_id, "m.room.history_visibility", "", &closed).await.ok();
    for path in ["/state", "/members", "/messages?dir=b", "/aliases"] {
        bob.get_room(&room_id, path).await.refused(403, "M_FORBIDDEN");
    }
}

#[tokio::test]
async fn a_single_event_has_the_membership_at_its_time() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let before = ann.send_text(&room_id, "1", "before").await;
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    let invited = ann.send_text(&room_id, "2", "invited").await;
    bob.join(&room_id).await.ok();
    let joined = ann.send_text(&room_id, "3", "joined").await;
    for (event_id, expected) in [(before, "leave"), (invited, "invite"), (joined, "join")] {
        let path = format!("/event/{}", encode(&event_id));
        let event = bob.get_room(&room_id, &path).await.ok();
        assert_eq!(event["unsigned"]["membership"], expected);
    }
}

#[tokio::test]
async fn the_previous_content_is_told_to_those_who_may_see_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann
        .create_room(json!({
            "preset": "public_chat", "topic": "secret",
            "initial_state": [{ "type": "m.room.history_visibility",
                                "content": { "history_visibility": "joined" } }],
        }))
        .await;
    bob.join(&room_id).await.ok();
    let mut ids = Vec::new();
    for topic in ["open", "more open"] {
        let set = ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": topic })).await;
        ids.push(set.ok_string("event_id"));
    }
    let unsigned = |who: &User, event_id: &str| {
        let (who, room_id, event_id) = (who.clone(), room_id.clone(), encode(event_id));
        async move {
            who.get_room(&room_id, &format!("/event/{event_id}")).await.ok()["unsigned"].take()
        }
    };
    let seen = unsigned(&ann, &ids[0]).await;
    assert_eq!(seen["prev_content"]["topic"], "secret");
    assert_eq!(seen["prev_sender"], ann.user_id.as_str());
    assert!(seen["replaces_state"].is_string());
    let hidden = unsigned(&bob, &ids[0]).await;
    for field in ["prev_content", "prev_sender", "replaces_state"] {
        assert!(hidden.get(field).is_none(), "{hidden}");
    }
    let seen = unsigned(&bob, &ids[1]).await;
    assert_eq!(seen["prev_content"]["topic"], "open");
    assert_eq!(seen["replaces_state"], ids[0].as_str());
    // One who was not in the room is not told what they were, and a message has no content before
    // it.
    let page = bob.get_room(&room_id, "/messages?dir=f&limit=100").await.ok();
    let page = page["chunk"].as_array().cloned().unwrap_or_default();
    let join = page.iter().find(|event| event["state_key"] == bob.user_id.as_str());
    let join = join.unwrap_or_else(|| panic!("expected the join of bob in {page:?}"));
    assert_eq!(join["unsigned"].get("prev_content"), None, "{join}");
    let message = ann.send_text(&room_id, "1", "x").await;
    assert_eq!(unsigned(&bob, &message).await.get("prev_content"), None);
}

#[tokio::test]
async fn the_state_of_a_context_is_that_of_its_last_event_and_filtered() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "before" })).await;
    let first = ann.send_text(&room_id, "1", "first").await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "between" })).await.ok();
    bob.join(&room_id).await.ok();
    bob.send_text(&room_id, "2", "second").await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "after" })).await.ok();
    let names = |page: &Value| {
        let state = page["state"].as_array().cloned().unwrap_or_default().into_iter();
        let names = state.filter(|event| event["type"] == "m.room.name");
        names.map(|event| event["content"]["name"].clone()).collect::<Vec<_>>()
    };
    for (limit, expected) in
        [(0, "before"), (1, "before"), (2, "between"), (6, "between"), (8, "after")]
    {
        let page = context(&ann, &room_id, &first, &format!("?limit={limit}")).await.ok();
        assert_eq!(names(&page), [expected], "limit {limit}");
        let around =
            event_ids(&page["events_before"]).len() + event_ids(&page["events_after"]).len();
        assert!(around <= limit, "limit {limit}: {page}");
    }
    // Lazily loaded, the members are those who sent what is returned.
    let lazy = encode(r#"{"lazy_load_members":true}"#);
    for (limit, expected) in [(0, vec![&ann]), (6, vec![&ann, &bob])] {
        let query = format!("?limit={limit}&filter={lazy}");
        let page = context(&ann, &room_id, &first, &query).await.ok();
        let state = page["state"].as_array().cloned().unwrap_or_default().into_iter();
        let members = Value::Array(state.filter(|e| e["type"] == "m.room.member").collect());
        let expected: Vec<_> = expected.into_iter().map(|user| user.user_id.clone()).collect();
        assert_eq!(each(&members, "/state_key"), expected, "limit {limit}");
        assert_eq!(names(&page).len(), 1);
    }
    // The filter is on what surrounds the event and on the state, not on the event.
    let filter = encode(&json!({ "types": ["m.room.name"] }).to_string());
    let page = context(&ann, &room_id, &first, &format!("?filter={filter}")).await.ok();
    assert_eq!(page["event"]["event_id"], first.as_str());
    for part in ["events_before", "events_after", "state"] {
        let types = each(&page[part], "/type");
        assert!(
            !types.is_empty() && types.iter().all(|is| is == "m.room.name"),
            "{part}: {types:?}"
        );
    }
    for bad in ["?limit=-1", "?limit=x", "?filter=x", "?filter=%7B%22types%22%3A1%7D"] {
        context(&ann, &room_id, &first, bad).await.refused(400, "M_INVALID_PARAM");
    }
}

#[tokio::test]
async fn a_redaction_names_what_it_redacts_inside_and_outside_of_its_content() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for version in ["3", "10", "11", "12"] {
        let room_id = ann.create_room(json!({ "room_version": version })).await;
        let event_id = ann.send_text(&room_id, "1", "x").await;
        let redact = |event_id: &str, txn_id: &'static str| {
            let path = format!("/rooms/{}/redact/{}/{txn_id}", encode(&room_id), encode(event_id));
            let ann = ann.clone();
            async move { ann.put(&path, json!({ "reason": "r" })).await.ok_string("event_id") }
        };
        let get = |event_id: &str| {
            let (ann, room_id, event_id) = (ann.clone(), room_id.clone(), encode(event_id));
            async move { ann.get_room(&room_id, &format!("/event/{event_id}")).await.ok() }
        };
        let redaction = redact(&event_id, "a").await;
        let shown = get(&redaction).await;
        let because = get(&event_id).await["unsigned"]["redacted_because"].take();
        for shown in [&shown, &because] {
            assert_eq!(shown["event_id"], redaction.as_str());
            assert_eq!(
                (&shown["redacts"], &shown["content"]["redacts"]),
                (&json!(event_id), &json!(event_id))
            );
            assert_eq!(shown["content"]["reason"], "r");
        }
        // Redacted itself, it says no more than its version's rules leave.
        redact(&redaction, "b").await;
        let shown = get(&redaction).await;
        let left = if matches!(version, "3" | "10") { Value::Null } else { json!(event_id) };
        assert_eq!((&shown["redacts"], &shown["content"]["redacts"]), (&left, &left), "{version}");
        assert_eq!(shown["content"].get("reason"), None);
    }
}

#[tokio::test]
async fn a_context_has_ten_events_around_the_event_unless_another_number_is_said() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (room_id, ids) = room_with_texts(&ann, 30).await;
    let numbers = |range: std::ops::Range<usize>| range.map(|n| n.to_string()).collect::<Vec<_>>();
    for (query, before, after) in
        [("", 10..15, 16..21), ("?limit=10", 10..15, 16..21), ("?limit=14", 8..15, 16..23)]
    {
        let around = context(&ann, &room_id, &ids[15], query).await.ok();
        let mut newest_first = numbers(before);
        newest_first.reverse();
        assert_eq!(texts(&around["events_before"]), newest_first, "{query}");
        assert_eq!(texts(&around["events_after"]), numbers(after), "{query}");
    }
}

#[tokio::test]
async fn every_event_has_the_fields_of_a_client_event_wherever_it_is_given() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": "x" })).await;
    bob.join(&room_id).await.ok();
    let text = json!({ "body": "x", "msgtype": "m.text", "org.example": [1, { "y": null }] });
    let sent = bob.send(&room_id, "m.room.message", "1", &text).await.ok_string("event_id");
    let id = encode(&sent);
    let limit = r#"{"room":{"timeline":{"limit":3}}}"#;
    let joined = ann.sync(None, 0, Some(limit)).await["rooms"]["join"][&room_id].take();
    let around = context(&ann, &room_id, &sent, "").await.ok();
    let lists = [
        ("sync, timeline", joined["timeline"]["events"].clone()),
        ("sync, state", joined["state"]["events"].clone()),
        ("context, event", json!([around["event"]])),
        ("context, before", around["events_before"].clone()),
        ("context, state", around["state"].clone()),
        ("messages", ann.get_room(&room_id, "/messages?dir=b").await.ok()["chunk"].take()),
        ("event", json!([ann.get_room(&room_id, &format!("/event/{id}")).await.ok()])),
        ("state", ann.get_room(&room_id, "/state").await.ok()),
        ("members", ann.get_room(&room_id, "/members").await.ok()["chunk"].take()),
    ];
    for (place, events) in &lists {
        let events = events.as_array().cloned().unwrap_or_default();
        assert!(!events.is_empty(), "{place}");
        for event in &events {
            assert!(event["type"].is_string(), "{place}: {event}");
            assert!(event["content"].is_object(), "{place}: {event}");
            assert!(event["event_id"].as_str().is_some_and(|id| id.starts_with('$')), "{event}");
            assert_eq!(event["room_id"], room_id.as_str(), "{place}: {event}");
            let sender = event["sender"].as_str();
            assert!(sender.is_some_and(|sender| sender.ends_with(":e2e.test")), "{place}: {event}");
            // In milliseconds: after 2020, and as long ago as `age` says.
            let ts = event["origin_server_ts"].as_u64();
            assert!(ts.is_some_and(|ts| ts > 1_577_836_800_000), "{place}: {event}");
            assert!(event["unsigned"]["age"].as_i64().is_some_and(|age| age < 600_000), "{event}");
            let is_message = event["type"] == "m.room.message";
            assert_eq!(event.get("state_key").is_none(), is_message, "{place}: {event}");
            if is_message {
                assert_eq!((&event["content"], &event["event_id"]), (&text, &json!(sent)));
                assert_eq!(event["sender"], bob.user_id.as_str());
            }
            if event["type"] == "m.room.name" {
                assert_eq!(event["state_key"], "", "{place}");
            }
        }
    }
}
