//! Server side search.

use std::slice::from_ref;

use serde_json::{Value, json};

use super::{each, event_ids, server, string, texts, unique, user};
use crate::harness::{Answer, Direction, TestServer, User, encode};

/// A search for `term` with further criteria.
async fn search(user: &User, term: &str, more: Value) -> Value {
    found(try_search(user, term, more, None).await)
}

async fn try_search(user: &User, term: &str, more: Value, next: Option<&str>) -> Answer {
    let mut criteria = json!({ "search_term": term });
    for (key, value) in more.as_object().into_iter().flatten() {
        criteria[key] = value.clone();
    }
    let next = next.map_or_else(String::new, |next| format!("?next_batch={}", encode(next)));
    let body = json!({ "search_categories": { "room_events": criteria } });
    user.post(&format!("/search{next}"), body).await
}

#[track_caller]
fn found(answer: Answer) -> Value {
    answer.ok()["search_categories"]["room_events"].clone()
}

fn ids(found: &Value) -> Vec<String> {
    each(&found["results"], "/result/event_id")
}

/// A word that no other test has.
fn word(word: &str) -> String {
    unique(word).replace('-', "x")
}

async fn edit(user: &User, room_id: &str, event_id: &str, body: &str) -> String {
    let content = json!({
        "msgtype": "m.text", "body": format!("* {body}"),
        "m.new_content": { "msgtype": "m.text", "body": body },
        "m.relates_to": { "rel_type": "m.replace", "event_id": event_id },
    });
    user.send(room_id, "m.room.message", &unique("edit"), &content).await.ok_string("event_id")
}

async fn redact(user: &User, room_id: &str, event_id: &str) {
    let path = format!("/rooms/{}/redact/{}/{}", encode(room_id), encode(event_id), unique("r"));
    user.put(&path, json!({})).await.ok();
}

#[tokio::test]
async fn what_was_just_sent_is_found_with_all_its_words_in_any_order_and_case() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let (a, b) = (word("martian"), word("moon"));
    let both = ann.send_text(&room_id, "1", &format!("The {a}s? No: {a} and {b}!")).await;
    let one = ann.send_text(&room_id, "2", &format!("only {a}")).await;
    let found = search(&ann, &format!("{} {}", b.to_uppercase(), a), json!({})).await;
    assert_eq!(ids(&found), from_ref(&both));
    assert_eq!(found["count"], 1);
    assert_eq!(found["results"][0]["result"]["room_id"], room_id.as_str());
    assert!(found["results"][0]["rank"].as_f64().is_some_and(|rank| rank > 0.0), "{found}");
    let highlights = found["highlights"].as_array().map_or(0, Vec::len);
    assert_eq!(highlights, 2, "{found}");
    // By rank, a short text with the word comes before a long one; by time, the newest does.
    let by_rank = search(&ann, &a, json!({ "order_by": "rank" })).await;
    assert_eq!(ids(&by_rank).len(), 2);
    let ranks: Vec<_> = by_rank["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["rank"].as_f64().unwrap())
        .collect();
    assert!(ranks[0] >= ranks[1], "{ranks:?}");
    let recent = search(&ann, &a, json!({ "order_by": "recent" })).await;
    assert_eq!(ids(&recent), [one, both]);
    assert_eq!(ids(&search(&ann, &word("absent"), json!({})).await), [""; 0]);
}

#[tokio::test]
async fn names_of_people_and_scripts_without_spaces_are_found() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let mut sent = Vec::new();
    for (number, text) in
        ["Zoë Müller-Lüdenscheidt", "我们明天去东京塔看日落", "Привет, Ёжик", "สวัสดีครับ", "한국어로"]
            .into_iter()
            .enumerate()
    {
        sent.push(ann.send_text(&room_id, &number.to_string(), text).await);
    }
    for (term, number) in [
        ("zoe", 0),
        ("ludenscheidt MULLER", 0),
        ("东京", 1),
        ("塔", 1),
        ("日落 明天", 1),
        ("ежик", 2),
        ("สวัสดี", 3),
        ("한국어", 4),
    ] {
        let only = json!({ "filter": { "rooms": [room_id] } });
        assert_eq!(ids(&search(&ann, term, only).await), [sent[number].clone()], "{term}");
    }
    // Neighbours count, not just characters.
    assert_eq!(
        ids(&search(&ann, "京东", json!({ "filter": { "rooms": [room_id] } })).await).len(),
        0
    );
}

#[tokio::test]
async fn names_and_topics_are_found_by_their_keys() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let word = word("cabin");
    let room_id = ann
        .create_room(json!({ "name": format!("The {word}"), "topic": format!("{word} talk") }))
        .await;
    ann.send_text(&room_id, "1", &word).await;
    for (keys, types) in [
        (json!(["content.body"]), vec!["m.room.message"]),
        (json!(["content.name"]), vec!["m.room.name"]),
        (json!(["content.topic", "content.name"]), vec!["m.room.topic", "m.room.name"]),
    ] {
        let found = search(&ann, &word, json!({ "keys": keys, "order_by": "recent" })).await;
        assert_eq!(each(&found["results"], "/result/type"), types);
    }
    assert_eq!(ids(&search(&ann, &word, json!({})).await).len(), 3);
    for bad in [
        json!({ "keys": ["content.secret"] }),
        json!({ "order_by": "colour" }),
        json!({ "groupings": { "group_by": [{ "key": "type" }] } }),
    ] {
        try_search(&ann, &word, bad, None).await.refused(400, "M_INVALID_PARAM");
    }
    try_search(&ann, &word, json!({}), Some("nonsense")).await.refused(400, "M_INVALID_PARAM");
    ann.post("/search", json!({})).await.refused(400, "M_BAD_JSON");
    let nothing = ann.post("/search", json!({ "search_categories": {} })).await.ok();
    assert_eq!(nothing, json!({ "search_categories": {} }));
}

#[tokio::test]
async fn hostile_terms_are_plain_words() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let word = word("plain");
    let event_id = ann.send_text(&room_id, "1", &format!("{word} or not")).await;
    for term in [
        format!("\"{word}"),
        format!("{word}* AND (not OR"),
        format!("+{word} -:~^ body:not"),
        format!("{word}\u{0}\u{202e}"),
    ] {
        let found = try_search(&ann, &term, json!({}), None).await;
        let found = found.ok()["search_categories"]["room_events"].clone();
        let expected = !term.contains("AND") && !term.contains("body");
        assert_eq!(ids(&found) == [event_id.clone()], expected, "{term}");
    }
    for term in
        ["", " ", "\"", "*", "(((((", "a".repeat(65_536).as_str(), "a b ".repeat(16_384).as_str()]
    {
        let found = search(&ann, term, json!({ "filter": { "rooms": [room_id] } })).await;
        assert_eq!((&found["count"], &found["results"]), (&json!(0), &json!([])));
    }
    // A word of any length is found by itself.
    let long = word.repeat(1000);
    let event_id = ann.send_text(&room_id, "2", &long).await;
    assert_eq!(ids(&search(&ann, &long, json!({})).await), [event_id]);
}

#[tokio::test]
async fn an_edited_message_is_found_by_its_newest_text() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let (old, new, newest) = (word("old"), word("new"), word("newest"));
    let event_id = ann.send_text(&room_id, "1", &old).await;
    let first = edit(&ann, &room_id, &event_id, &new).await;
    assert_eq!(ids(&search(&bob, &old, json!({})).await).len(), 0);
    assert_eq!(ids(&search(&bob, &new, json!({})).await), from_ref(&event_id));
    // One who left keeps what they saw.
    bob.act(&room_id, "leave", None).await.ok();
    let second = edit(&ann, &room_id, &event_id, &newest).await;
    assert_eq!(ids(&search(&ann, &newest, json!({})).await), from_ref(&event_id));
    assert_eq!(ids(&search(&ann, &new, json!({})).await).len(), 0);
    assert_eq!(ids(&search(&bob, &newest, json!({})).await).len(), 0);
    assert_eq!(ids(&search(&bob, &new, json!({})).await), from_ref(&event_id));
    // What was edited away by an edit that is redacted counts again; what others write does not.
    redact(&ann, &room_id, &second).await;
    assert_eq!(ids(&search(&ann, &new, json!({})).await), from_ref(&event_id));
    let foreign = word("foreign");
    bob.join(&room_id).await.ok();
    let of_bob = edit(&bob, &room_id, &event_id, &foreign).await;
    assert_eq!(ids(&search(&ann, &foreign, json!({})).await), [of_bob]);
    assert_eq!(ids(&search(&ann, &new, json!({})).await), from_ref(&event_id));
    // With the message, all its texts go.
    redact(&ann, &room_id, &event_id).await;
    for word in [&old, &new, &newest] {
        assert_eq!(ids(&search(&ann, word, json!({})).await).len(), 0, "{word}");
    }
    edit(&ann, &room_id, &event_id, &newest).await;
    assert_eq!(ids(&search(&ann, &newest, json!({})).await).len(), 0);
    let _ = first;
}

#[tokio::test]
async fn only_what_one_may_see_is_found_and_counted() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let stranger = user(&server, "eve").await;
    let word = word("secret");
    let joined = json!([{ "type": "m.room.history_visibility",
                          "content": { "history_visibility": "joined" } }]);
    let room_id =
        ann.create_room(json!({ "preset": "public_chat", "initial_state": joined })).await;
    ann.send_text(&room_id, "1", &word).await;
    bob.join(&room_id).await.ok();
    let seen = ann.send_text(&room_id, "2", &word).await;
    bob.act(&room_id, "leave", None).await.ok();
    ann.send_text(&room_id, "3", &word).await;
    assert_eq!(ids(&search(&ann, &word, json!({})).await).len(), 3);
    let found = search(&bob, &word, json!({ "include_state": true })).await;
    assert_eq!((ids(&found), &found["count"]), (vec![seen], &json!(1)));
    // What is around it is as little as they may see, and the state is that of when they left.
    let context = &found["results"][0]["context"];
    assert_eq!(texts(&context["events_before"]).len() + texts(&context["events_after"]).len(), 0);
    let members = found["state"][&room_id].as_array().unwrap();
    let bob_is = members.iter().find(|event| event["state_key"] == bob.user_id.as_str()).unwrap();
    assert_eq!(bob_is["content"]["membership"], "leave");
    assert_eq!(search(&stranger, &word, json!({})).await["count"], 0);
    bob.act(&room_id, "forget", None).await.ok();
    assert_eq!(search(&bob, &word, json!({})).await["count"], 0);
    // Nor by naming the room.
    let by_room = json!({ "filter": { "rooms": [room_id] } });
    assert_eq!(search(&stranger, &word, by_room).await["count"], 0);
    let http = server.http();
    super::anonymous(&http, "POST", "/search", Some(&json!({})))
        .await
        .refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn redacted_text_is_found_no_more() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let word = word("regret");
    let room_id = ann.create_room(json!({ "topic": word })).await;
    let event_id = ann.send_text(&room_id, "1", &word).await;
    assert_eq!(ids(&search(&ann, &word, json!({})).await).len(), 2);
    redact(&ann, &room_id, &event_id).await;
    let found = search(&ann, &word, json!({})).await;
    assert_eq!(each(&found["results"], "/result/type"), ["m.room.topic"]);
}

#[tokio::test]
async fn results_are_paged_in_either_order_without_gap_or_repeat() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let word = word("page");
    let mut sent = Vec::new();
    for number in 0..13 {
        let text = format!("{word} {}", "and more ".repeat(number % 5));
        sent.push(ann.send_text(&room_id, &number.to_string(), &text).await);
    }
    sent.sort();
    for order in ["rank", "recent"] {
        let mut seen = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let more = json!({ "order_by": order, "filter": { "limit": 4 } });
            let page = found(try_search(&ann, &word, more, next.as_deref()).await);
            assert_eq!(page["count"], 13);
            assert!(ids(&page).len() <= 4);
            seen.extend(ids(&page));
            // What comes meanwhile is not of this search.
            ann.send_text(&room_id, &unique("t"), &word.repeat(2)).await;
            match page.get("next_batch") {
                Some(token) => next = token.as_str().map(str::to_owned),
                None => break,
            }
        }
        seen.sort();
        assert_eq!(seen, sent, "{order}");
    }
}

#[tokio::test]
async fn results_are_grouped_and_each_group_goes_on_by_itself() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let word = word("group");
    let mut rooms = Vec::new();
    for _ in 0..2 {
        let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
        bob.join(&room_id).await.ok();
        rooms.push(room_id);
    }
    let mut in_first = Vec::new();
    for number in 0..8 {
        let sender = if number % 2 == 0 { &ann } else { &bob };
        let room_id = &rooms[usize::from(number >= 4)];
        let id = sender.send_text(room_id, &number.to_string(), &word).await;
        if number < 4 {
            in_first.insert(0, id);
        }
    }
    let grouped = |limit: usize| {
        json!({
            "order_by": "recent", "filter": { "limit": limit },
            "groupings": { "group_by": [{ "key": "room_id" }, { "key": "sender" }] },
        })
    };
    let page = search(&ann, &word, grouped(5)).await;
    let by_room = &page["groups"]["room_id"];
    assert_eq!(by_room[&rooms[1]]["order"], 0);
    assert_eq!(by_room[&rooms[1]]["results"].as_array().map(Vec::len), Some(4));
    assert_eq!(by_room[&rooms[0]]["order"], 1);
    assert_eq!(by_room[&rooms[0]]["results"], json!([in_first[0]]));
    assert_eq!(page["groups"]["sender"][&bob.user_id]["results"].as_array().map(Vec::len), Some(3));
    // The rest of one group.
    let next = string(&by_room[&rooms[0]], "next_batch");
    let rest = found(try_search(&ann, &word, grouped(5), Some(&next)).await);
    assert_eq!(ids(&rest), in_first[1..]);
    let next = string(&page["groups"]["sender"][&ann.user_id], "next_batch");
    let rest = found(try_search(&ann, &word, grouped(5), Some(&next)).await);
    assert_eq!(each(&rest["results"], "/result/sender"), [&*ann.user_id, &*ann.user_id]);
    // A whole answer has nothing to go on with.
    let whole = search(&ann, &word, grouped(100)).await;
    assert!(whole.get("next_batch").is_none(), "{whole}");
    assert!(whole["groups"]["room_id"][&rooms[0]].get("next_batch").is_none(), "{whole}");
}

#[tokio::test]
async fn results_come_with_their_context_and_the_profiles_of_then() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let name = format!("/profile/{}/displayname", encode(&ann.user_id));
    ann.put(&name, json!({ "displayname": "Ann of then" })).await.ok();
    let room_id = ann.create_room(json!({})).await;
    let word = word("middle");
    let mut sent = Vec::new();
    for (number, text) in ["one", "two", "three", &word, "four", "five"].into_iter().enumerate() {
        sent.push(ann.send_text(&room_id, &number.to_string(), text).await);
    }
    ann.put(&name, json!({ "displayname": "Ann of now" })).await.ok();
    let context = json!({ "before_limit": 2, "after_limit": 1, "include_profile": true });
    let page = search(&ann, &word, json!({ "event_context": context })).await;
    let context = &page["results"][0]["context"];
    assert_eq!(texts(&context["events_before"]), ["three", "two"]);
    assert_eq!(texts(&context["events_after"]), ["four"]);
    assert_eq!(context["profile_info"][&ann.user_id]["displayname"], "Ann of then");
    let (start, end) = (string(context, "start"), string(context, "end"));
    let before = ann.messages(&room_id, Some(&start), None, Direction::Back, 1).await;
    assert_eq!(event_ids(&before["chunk"]), [sent[0].clone()]);
    let after = ann.messages(&room_id, Some(&end), None, Direction::Forward, 1).await;
    assert_eq!(event_ids(&after["chunk"]), [sent[5].clone()]);
    // Five on each side unless said otherwise, and no profiles.
    let page = search(&ann, &word, json!({})).await;
    let context = &page["results"][0]["context"];
    assert_eq!(texts(&context["events_before"]).len(), 3);
    assert_eq!(context["events_before"].as_array().map(Vec::len), Some(5));
    assert!(context.get("profile_info").is_none(), "{context}");
    // The state of the room, if asked for.
    assert!(page.get("state").is_none());
    let page = search(&ann, &word, json!({ "include_state": true })).await;
    assert!(each(&page["state"][&room_id], "/type").contains(&"m.room.create".to_owned()));
}

#[tokio::test]
async fn a_filter_narrows_what_is_found() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let word = word("filter");
    let room_id = ann.create_room(json!({ "preset": "public_chat", "name": word })).await;
    bob.join(&room_id).await.ok();
    let of_ann = ann.send_text(&room_id, "1", &word).await;
    let of_bob = bob.send_text(&room_id, "2", &word).await;
    let image = json!({ "msgtype": "m.image", "body": word, "url": "mxc://e2e.test/x" });
    let image = ann.send(&room_id, "m.room.message", "3", &image).await.ok_string("event_id");
    let other = ann.create_room(json!({})).await;
    let elsewhere = ann.send_text(&other, "4", &word).await;
    for (filter, expected) in [
        (json!({ "senders": [bob.user_id] }), vec![&of_bob]),
        (
            json!({ "not_senders": [bob.user_id], "contains_url": false, "types": ["m.room.message"] }),
            vec![&elsewhere, &of_ann],
        ),
        (json!({ "contains_url": true }), vec![&image]),
        (json!({ "rooms": [other] }), vec![&elsewhere]),
        (json!({ "not_rooms": [room_id] }), vec![&elsewhere]),
        (json!({ "limit": 1 }), vec![&elsewhere]),
        (json!({ "limit": 0 }), vec![]),
    ] {
        let page = search(&ann, &word, json!({ "filter": filter, "order_by": "recent" })).await;
        assert_eq!(ids(&page).iter().collect::<Vec<_>>(), expected, "{filter}");
    }
    let types = json!({ "filter": { "types": ["m.room.name"] } });
    assert_eq!(search(&ann, &word, types).await["count"], 1);
}

#[tokio::test]
async fn search_goes_on_after_a_restart_and_without_its_index() {
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let mut sent = vec![ann.send_text(&room_id, "1", "the first fish").await];
    assert_eq!(ids(&search(&ann, "fish", json!({})).await), sent);
    let again = |server: &TestServer| User { http: server.http(), ..ann.clone() };
    for how in ["kill", "stop", "lose", "damage"] {
        sent.push(again(&server).send_text(&room_id, how, &format!("a fish after {how}")).await);
        let index = server.data_dir().join("search");
        match how {
            "kill" => server.kill9(),
            _ => server.stop(),
        }
        match how {
            "lose" => std::fs::remove_dir_all(&index).expect("the index"),
            "damage" => std::fs::write(index.join("meta.json"), "nonsense").expect("the index"),
            _ => {}
        }
        server.restart().await;
        let page = search(&again(&server), "fish", json!({ "order_by": "recent" })).await;
        let mut found = ids(&page);
        found.reverse();
        assert_eq!(found, sent, "after: {how}");
    }
}
